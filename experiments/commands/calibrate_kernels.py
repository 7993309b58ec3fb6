"""Kernels of a device: `pipeplan calibrate --kernels` measures or reads them, and writes the shares that they tell."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import simulator
from experiments.profiling.measured_kernels import Measurements, standard_kernels
from experiments.terminal.argument_types import (
    Option,
    check_choice,
    check_torch,
    count,
    counts,
    names_of,
    natural,
    number,
    written_toml,
)
from experiments.terminal.output import InputError, UsageError, print_json, progress, say
from experiments.terminal.report_tables import ReportTable, figure, share
from hardware_profiles import (
    GENERIC,
    Constant,
    GraphicsProcessor,
    blaming,
    changed_stack_text,
    json_value,
    load_accelerator,
    read_bytes,
)

if TYPE_CHECKING:
    from experiments.calibration.kernel_fit import ClassFit, KernelFit

HERE = "here"

KERNELS: dict[str, Option] = {
    "--kernels [FILE=here]": "measure kernels on this machine, through PyTorch; or take those that --json printed to a file",
    "--accelerator NAME": "GPU whose data sheet counts: name or TOML file (default: the best rates that were measured)",
    "--device DEVICE": "cpu or cuda (default: cuda where there is one)",
    "--precision NAME": "of the kernels (default bf16; on a CPU fp32), or of a plan of a target's form",
    "--hidden N,N,...": ("hidden sizes (default 1024,2048,4096,5120,8192; on a CPU 128,256)", counts),
    "--tokens N,N,...": ("tokens of a product (default 512,4096,16384; on a CPU 64,512)", counts),
    "--vocabulary N": ("rows of embedding and head (default 32768; on a CPU 1000)", count),
    "--repeats N": ("measured runs of each kernel (default 9)", count),
    "--stack-out FILE": (
        "stack to write, TOML: --stack, with attention of odd sizes of heads as measured",
        written_toml,
    ),
    "--collectives N": (
        "devices whose collectives are measured, too, a process each (default: all GPUs; on a CPU none)",
        count,
    ),
    "--cluster-out FILE": ("cluster to write, TOML: a server of those devices, its links as measured", written_toml),
    "--seconds S": ("of measuring, at most (default: as long as it takes)", number),
    "--seed SEED": ("seed of inputs, and of the half of the shapes that judges (default 0)", natural, 0),
}
"""Arguments of a fit to measured kernels."""

KERNELS_ALONE = [name for name in names_of(KERNELS) if name != "kernels"]
"""Arguments that iterations have no use for."""

SIZES: Mapping[str, Mapping[str, Any]] = {
    "cuda": {
        "hidden": (1024, 2048, 4096, 5120, 8192),
        "tokens": (512, 4096, 16384),
        "vocabulary": 32768,
        "precision": "bf16",
        "bytes": tuple(4**power for power in range(8, 16)),
    },
    "cpu": {
        "hidden": (128, 256),
        "tokens": (64, 512),
        "vocabulary": 1000,
        "precision": "fp32",
        "bytes": tuple(2**power for power in range(14, 24)),
    },
}
"""What is measured where nobody says."""

Measure = Callable[[argparse.Namespace], Measurements]


def run(arguments: argparse.Namespace, measure: Measure | None = None) -> int:
    """Measure or read, fit, write, print.

    measure: in place of PyTorch
    """
    from experiments.calibration.collective_fit import cluster_text, fit_collectives
    from experiments.calibration.kernel_files import accelerator_text
    from experiments.calibration.kernel_fit import fit_kernels, measured_device

    base = arguments.accelerator
    device = None if base is None else _gpu(base)
    found = _read(Path(arguments.kernels)) if arguments.kernels != HERE else (measure or _measure)(arguments)
    with blaming(UsageError, "--kernels"):
        device = measured_device(found, arguments.out.stem) if device is None else device
        fit = fit_kernels(device, found, arguments.seed)
        links = fit_collectives(found.collectives, arguments.seed)
        if arguments.cluster_out is not None and not links:
            raise ValueError("--cluster-out: no collective was measured (--collectives N)")
    stack = None if arguments.stack_out is None else _stack_text(arguments, found, fit)
    like = os.path.realpath(base) if base and base.endswith(".toml") else base
    simulator.write_atomically(arguments.out, accelerator_text(arguments.out.stem, like, device, found, fit))
    if stack is not None:
        simulator.write_atomically(arguments.stack_out, stack)
    if arguments.cluster_out is not None:
        text = cluster_text(arguments.cluster_out.stem, os.path.realpath(arguments.out), found, links)
        simulator.write_atomically(arguments.cluster_out, text)
    document = _document(arguments, found, fit) | {"collectives": [one._asdict() for one in links]}
    (print_json if arguments.json else _print)(document)
    return 0


def _gpu(name: str) -> GraphicsProcessor:
    """The accelerator of a name. UsageError for one whose shares are none of a GPU's."""
    found = load_accelerator(name)
    if not isinstance(found, GraphicsProcessor):
        raise UsageError(f"--accelerator {name}: is no GPU; its kernels have no shares to fit")
    return found


def _stack_text(arguments: argparse.Namespace, found: Measurements, fit: KernelFit) -> str:
    """The file of the stack with what attention takes longer for odd sizes of heads."""
    if fit.odd_heads is None:
        raise UsageError("--stack-out: no attention was measured whose size of a head is no multiple of 8")
    base = arguments.stack or GENERIC.name
    source = f"measured: {found.device}, {found.software}, {found.date}"
    constants = {"odd_heads": Constant(fit.odd_heads, source)}
    words = f"{base}, with attention of odd sizes of heads as on {found.device}"
    return changed_stack_text(base, arguments.stack_out.stem, constants, [fit.device.generation], words)


def _document(arguments: argparse.Namespace, found: Measurements, fit: KernelFit) -> dict[str, Any]:
    rows = [{"class": one.name, **_told(one)} for one in fit.classes]
    constants = [
        {"class": one.name, "constant": name, "before": one.before[name], "after": value}
        for one in fit.classes
        for name, value in one.after.items()
    ]
    return {
        "accelerator": arguments.accelerator,
        "out": str(arguments.out),
        "device": found.device,
        "software": found.software,
        "date": found.date,
        "constants": constants,
        "classes": rows,
        "call_seconds": fit.call,
        "launch_seconds": fit.launch,
        "host_bandwidth": fit.host_bandwidth,
        "odd_heads": fit.odd_heads,
        "kernels": [
            {"class": one.name, **judged._asdict(), "kernel": str(judged.kernel)}
            for one in fit.classes
            for judged in one.kernels
        ],
        "measurements": msgspec.to_builtins(found),
    }


def _told(one: ClassFit) -> dict[str, Any]:
    """A class's line of a document: errors of what was fitted and of what was held out, and the worst kernel."""
    worst = one.worst
    return {
        "fitted": sum(not judged.held for judged in one.kernels),
        "held": sum(judged.held for judged in one.kernels),
        "error_before": one.error(True, after=False),
        "error_fitted": one.error(False),
        "error_held": one.error(True),
        "worst": str(worst.kernel),
        "worst_off": worst.after / worst.measured - 1.0,
    }


CONSTANTS = ReportTable(
    "Shares of {device} ({software}, {date})",
    "constants",
    {
        "kind": "{class}",
        "constant": "{constant}",
        "before": figure("before", ".4g"),
        "after": figure("after", ".4g"),
    },
)

CLASSES = ReportTable(
    "Mean errors of kernels: half of the shapes fitted, the others held out",
    "classes",
    {
        "kind": "{class}",
        "fitted": "{fitted}",
        "held out": "{held}",
        "before": share("error_before"),
        "off, fitted": share("error_fitted"),
        "off, held out": share("error_held"),
        "worst": "{worst}",
        "off": share("worst_off", "+.0f"),
    },
)


LINKS = ReportTable(
    "Collectives: half of the measurements fitted, the others held out",
    "collectives",
    {
        "collective": "{operation}",
        "latency": figure("latency", ".4g", 1e6, unit=" us"),
        "rate": figure("rate", ".4g", 1e-9, unit=" GB/s"),
        "off, fitted": share("error_fitted"),
        "off, held out": share("error_held"),
    },
)


def _print(document: Mapping[str, Any]) -> None:
    CONSTANTS.print(document)
    CLASSES.print(document)
    if document["collectives"]:
        LINKS.print(document)
    for key, words, scale, unit in (
        ("call_seconds", "a kernel with nothing to do", 1e6, "microseconds"),
        ("launch_seconds", "a layer of a small block, on the host", 1e6, "microseconds"),
        ("host_bandwidth", "copies over the host's link", 1e-9, "GB/s"),
        ("odd_heads", "attention where 8 does not divide the size of a head (a stack's odd_heads)", 100, "% longer"),
    ):
        if document[key] is not None:
            say(f"{words}: {document[key] * scale:.4g} {unit}")
    for kernel, why in document["measurements"]["failed"].items():
        say(f"not measured: {kernel}: {why}")
    say(f'{document["out"]} (accelerator = "{document["out"]}" in a cluster\'s file)')


def _read(path: Path) -> Measurements:
    try:
        return Measurements.of(json_value(read_bytes(path), path, InputError))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: is no document of measured kernels: {error}") from None


def _measure(arguments: argparse.Namespace) -> Measurements:
    check_torch("kernels")
    from experiments.profiling.kernel_timing import KernelSettings, measure_kernels, usual_device
    from experiments.profiling.layer_profiler import check_device

    device = arguments.device or usual_device()
    check_choice("--device", device, tuple(SIZES))
    check_device(device)
    usual = SIZES[device]
    precision = arguments.precision or usual["precision"]
    check_choice("--precision", precision, ("fp32", "tf32", "fp16", "bf16"))
    kernels = standard_kernels(
        arguments.hidden or usual["hidden"],
        arguments.tokens or usual["tokens"],
        arguments.vocabulary or usual["vocabulary"],
        precision,
    )
    settings = KernelSettings(
        device=device,
        warm_up=arguments.warm_up,
        repeats=arguments.repeats or 9,
        seed=arguments.seed,
        seconds=arguments.seconds or math.inf,
    )
    with progress("measuring kernels", len(kernels)) as report:
        found = measure_kernels(kernels, settings, report)
    devices = _together(device, arguments.collectives)
    if devices is None:
        return found
    from experiments.profiling.collective_timing import measure_collectives

    with blaming(UsageError, "--collectives"):
        collectives, failed = measure_collectives(device, devices, usual["bytes"], settings.repeats)
    return msgspec.structs.replace(found, collectives=collectives, failed={**found.failed, **failed})


def _together(device: str, asked: int | None) -> int | None:
    """Devices whose collectives are measured; None for none."""
    if asked is not None or device == "cpu":
        return asked
    import torch

    present = torch.cuda.device_count()
    return present if present > 1 else None
