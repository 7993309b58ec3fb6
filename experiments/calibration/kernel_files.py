"""Kernel files: the TOML file of an accelerator as its kernels were measured, each number with its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from experiments.calibration.kernel_fit import ClassFit, KernelFit
from experiments.profiling.measured_kernels import Measured, Measurements
from hardware_profiles import GIB, GraphicsProcessor, one_line, percent, toml_text

DIGITS = 4
"""Significant digits of a written number."""

UNITS: Mapping[str, tuple[str, float]] = {"saturation_seconds": ("saturation_us", 1e6)}
"""Keys of a file for constants that have another name there, and times what."""

PEAKS = {"int8": "tops_int8"}


def accelerator_text(
    name: str, base: str | None, device: GraphicsProcessor, found: Measurements, fit: KernelFit
) -> str:
    """The file of a device.

    base: name or path of the accelerator that it is like, with whose data sheet its shares go; None: its peaks are the best rates
        that were measured
    device: that accelerator, or the measured one
    """
    source = f"{found.device}, {found.software}, {found.date}"
    memory = device.memory_bytes + device.reserve_bytes
    sheet = "best rate that was measured" if base is None else f"as {base}"
    lines = [
        _line("kind", "gpu"),
        _line("name", name),
        _line("description", f"{found.device}, as its kernels were measured on {found.date}"),
        _line("memory_gib", short(memory / GIB), f"that of {found.device}" if base is None else sheet),
        _line("reserve_gib", short(device.reserve_bytes / GIB), "nobody measured it" if base is None else sheet),
        _line("memory_bandwidth_gb_per_s", short(device.memory_bandwidth / 1e9), sheet),
    ]
    if fit.host_bandwidth is not None:
        lines.append(_line("host_bandwidth_gb_per_s", short(fit.host_bandwidth / 1e9), f"best copy: {source}"))
    lines.append(_line("measured", True) if base is None else _line("like", base, "what no kernel below tells"))
    if device.generation:
        lines.append(_line("generation", device.generation))
    lines += ["", "[compute]"]
    lines += [
        _line(PEAKS.get(precision, f"tflops_{precision}"), short(rate / 1e12), sheet)
        for precision, rate in device.peak_flops.items()
    ]
    overheads = {
        "call_us": (None if fit.call is None else 0.0, "beside its steps"),
        "step_us": (fit.call, "a kernel with nothing to do"),
        "launch_us": (fit.launch, "host, a layer of a block"),
    }
    told = {key: (value, words) for key, (value, words) in overheads.items() if value is not None}
    lines += ["", "[overhead]"] if told else []
    lines += [_line(key, short(value * 1e6), f"{words}: {source}") for key, (value, words) in told.items()]
    by_kernel = {one.kernel: one for one in found.kernels}
    for one in fit.classes:
        words = f"{source}; {_fitted(one, [by_kernel[judged.kernel] for judged in one.kernels])}"
        lines += ["", f"[efficiency.{one.name}]"]
        for constant, value in one.after.items():
            key, unit = UNITS.get(constant, (constant, 1.0))
            lines.append(_line(key, short(value * unit), words))
    return "\n".join(lines) + "\n"


def _fitted(one: ClassFit, measured: Sequence[Measured]) -> str:
    """What the constants of a class rest on."""
    seen, held = (sum(judged.held is side for judged in one.kernels) for side in (False, True))
    runs, spread = min(row.runs for row in measured), median(row.spread for row in measured)
    words, fitted, unseen = f"fitted to {seen} kernels", one.error(False), one.error(True)
    assert fitted is not None, "a class that is written was fitted"
    words += f" (medians of {runs} runs, spread {percent(spread)}): {percent(fitted)} off"
    return words if unseen is None else f"{words}, {held} others {percent(unseen)}"


def short(value: float) -> float:
    """A number with so many digits as are written."""
    return float(f"{value:.{DIGITS}g}")


def _line(key: str, value: Any, comment: str = "") -> str:
    """A key with its value, and a comment of one line."""
    text = toml_text({key: value}).strip()
    return f"{text}  # {one_line(comment)}" if comment else text
