"""Kernels: shares are found again from what a device with other ones would have taken, and a file says where each comes from."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from experiments.calibration import kernel_fit
from experiments.calibration.collective_fit import OPERATIONS, cluster_text, fit_collectives
from experiments.calibration.kernel_fit import (
    ClassFit,
    JudgedKernel,
    KernelFit,
    fit_kernels,
    kernel_seconds,
    least,
    measured_device,
    with_shares,
)
from experiments.cli import main
from experiments.commands import calibrate_kernels as command
from experiments.profiling.measured_kernels import (
    FLOOR,
    KINDS,
    Collected,
    Collective,
    Kernel,
    Measured,
    Measurements,
    standard_kernels,
)
from hardware_profiles import GraphicsProcessor, load_accelerator, load_cluster, load_stack
from tests.experiments.commands import ended, refused
from tests.records import Recorded, lines

SIZES = {"hidden": (1024, 4096), "tokens": (512, 8192), "vocabulary": 32768}
KERNELS = standard_kernels(*SIZES.values(), "bf16")
ODD = 1.4
"""Times that attention with heads of odd sizes takes longer on the device below."""


def h100() -> GraphicsProcessor:
    """As shipped."""
    device = load_accelerator("h100")
    assert isinstance(device, GraphicsProcessor)
    return device


def other() -> GraphicsProcessor:
    """The same chip with other shares."""
    device = replace(h100(), call_overhead=0.0, step_overhead=4e-6)
    shares = {"matrix": 0.7, "matrix_backward": 0.6, "saturation_seconds": 30e-6}
    device = with_shares(with_shares(device, "linear", shares | {"memory": 0.5}), "fused_attention", shares)
    return with_shares(device, "normalization", {"memory": 0.8})


def measured(device: GraphicsProcessor) -> Measurements:
    """What its kernels would have taken."""

    def seconds(kernel: Kernel) -> float:
        if kernel == FLOOR:
            return device.step_overhead
        if kernel.what not in KINDS:
            host = 1.5 if kernel.phase == "backward" else 1.0
            return host * 15e-6 if kernel.what in ("launch", "layer") else 1e-5 + kernel.moved_bytes / 50e9
        return kernel_seconds(device, kernel) * (ODD if kernel.head_size % 8 else 1.0)

    rows = tuple(Measured(kernel=one, seconds=seconds(one), spread=0.01, runs=9) for one in KERNELS)
    return Measurements(
        device="NVIDIA\nH100", kind="cuda", software="torch 2", date="2026-11-27", memory_bytes=80 * 2**30, kernels=rows
    )


FOUND = measured(other())

FITS: dict[tuple[bytes, str, int], KernelFit] = {}
"""By kernels, device and seed."""


def fitted(device: GraphicsProcessor, found: Measurements, seed: int = 0) -> KernelFit:
    """As `fit_kernels` has it; what is asked again is answered from memory."""
    asked = msgspec.json.encode(msgspec.structs.replace(found, collectives=())), repr(device), seed
    if asked not in FITS:
        FITS[asked] = fit_kernels(device, found, seed)
    return FITS[asked]


@pytest.fixture(autouse=True)
def _fits_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are given the same kernels fit them once."""
    monkeypatch.setattr(kernel_fit, "fit_kernels", fitted)


@pytest.fixture(scope="module")
def fit() -> KernelFit:
    """Of the shipped H100 to the other one's kernels."""
    return fitted(h100(), FOUND)


def test_shares_are_found_again(fit: KernelFit) -> None:
    """Also on shapes that the fit did not see; what nothing tells stays."""
    efficiencies, wanted = fit.device.efficiencies, other().efficiencies
    assert efficiencies["linear"].matrix == pytest.approx(wanted["linear"].matrix, rel=0.02)
    assert efficiencies["linear"].matrix_backward == pytest.approx(wanted["linear"].matrix_backward, rel=0.02)
    assert efficiencies["normalization"].memory == pytest.approx(0.8, rel=0.02)
    assert efficiencies["linear"].accumulated == wanted["linear"].accumulated
    assert fit.odd_heads == pytest.approx(ODD - 1.0, rel=0.02)
    assert (fit.call, fit.launch) == (4e-6, pytest.approx(15e-6))
    assert (fit.device.call_overhead, fit.device.step_overhead) == (0.0, 4e-6)
    for one in fit.classes:
        assert (one.error(True) or 0.0) < 0.02
        assert (one.error(True) or 0.0) <= (one.error(True, after=False) or 0.0) + 0.02
    linear = fit.classes[0]
    assert {judged.kernel.shape for judged in linear.kernels if judged.held}.isdisjoint(
        judged.kernel.shape for judged in linear.kernels if not judged.held
    )


@pytest.mark.parametrize(
    ("kernel", "flop", "read", "made", "weights"),
    [
        (
            Kernel(what="attention", batch=2, tokens=8, heads=4, key_value_heads=2, head_size=16),
            4 * 8192,
            2048,
            1024,
            0,
        ),
        (Kernel(what="product", rows=8, inputs=16, outputs=4), 2 * 8 * 16 * 4, 8 * 16, 8 * 4, 16 * 4),
        (Kernel(what="embedding", rows=8, inputs=100, outputs=16), 0, 8, 8 * 16, 100 * 16),
        (Kernel(what="loss", rows=8, outputs=100), 0, 8 * 100, 8, 0),
        (Kernel(what="adam", inputs=10), 0, 4 * 10, 3 * 10, 0),
        *((Kernel(what=one, rows=8, inputs=16), 0, 2 * 128, 128, 0) for one in ("gated-silu", "add")),
        *((Kernel(what=one, rows=8, inputs=16), 0, 128, 128, 0) for one in ("gelu", "dropout")),
        (Kernel(what="layer-norm", rows=8, inputs=16), 0, 128, 128, 2 * 16),
        (Kernel(what="rms-norm", rows=8, inputs=16), 0, 128, 128, 16),
    ],
    ids=lambda one: one.what if isinstance(one, Kernel) else "",
)
def test_the_work_of_kernels_by_hand(kernel: Kernel, flop: float, read: float, made: float, weights: int) -> None:
    """FLOP are two a multiply-add: of attention of 2 x 8 tokens, 4/2 heads of 16, two products of 2 x 8 x 8 x 4 x 16.

    What is read are the operands (query, keys and values; of Adam weights, gradients and two moments), without the weights.
    """
    work = kernel.work()
    assert (work.flop, work.input_elements, work.output_elements, work.parameters) == (flop, read, made, weights)


def test_heads_have_pairs_of_features() -> None:
    """As rotary embeddings turn them; of some sizes 8 is no divisor, of others it is."""
    sizes = {one.head_size for one in KERNELS if one.what == "attention"}
    assert {size % 2 for size in sizes} == {0}
    assert {bool(size % 8) for size in sizes} == {True, False}


def test_shares_stay_in_their_ranges_whatever_was_measured() -> None:
    """Of a device that takes a minute for each product: a hundredth of the peak, half of it after 10 ms of work: no less."""
    rows = tuple(msgspec.structs.replace(one, seconds=60.0) for one in FOUND.kernels if one.kernel.what == "product")[
        ::4
    ]
    found = fit_kernels(h100(), msgspec.structs.replace(FOUND, kernels=rows)).device.efficiencies["linear"]
    assert (found.matrix, found.matrix_backward, found.saturation_seconds) == pytest.approx((0.01,) * 3, rel=0.01)


def test_more_flop_are_never_quicker(fit: KernelFit) -> None:
    """Of every kernel with the shares that were fitted."""
    for phase in ("forward", "input_gradient", "weight_gradient"):
        taken = [
            kernel_seconds(fit.device, Kernel(what="product", phase=phase, rows=rows, inputs=512, outputs=512))
            for rows in (1, 2, 8, 64, 512, 4096)
        ]
        assert taken == sorted(taken)


def test_peaks_are_the_best_rates_where_no_data_sheet_counts() -> None:
    """So that every share is one."""
    device = measured_device(FOUND, "mine")
    products = [one for one in FOUND.kernels if one.kernel.what == "product"]
    best = max(one.kernel.work().flop / one.seconds for one in products)
    assert device.peak_flops["bf16"] == best
    for kernels in ((), products, [one for one in FOUND.kernels if one not in products]):
        with pytest.raises(ValueError, match="products, and copies"):
            measured_device(msgspec.structs.replace(FOUND, kernels=tuple(kernels)), "mine")


def test_a_quick_device_reaches_its_peak_and_no_more() -> None:
    """Of one that takes no time for a product: the whole peak, all of it after 10 ns of work."""
    rows = tuple(msgspec.structs.replace(one, seconds=1e-12) for one in FOUND.kernels if one.kernel.what == "product")[
        ::4
    ]
    found = fit_kernels(h100(), msgspec.structs.replace(FOUND, kernels=rows)).device.efficiencies["linear"]
    assert (found.matrix, found.matrix_backward, found.saturation_seconds) == pytest.approx((1.0, 1.0, 1e-8), rel=0.01)


def test_half_of_the_shapes_judge_and_every_class_tells_its_kind(fit: KernelFit) -> None:
    """All passes of a shape on one side; of an odd number of shapes one more is fitted; kernels of odd heads are of no class."""
    kinds: dict[str, set[str]] = {}
    for one in fit.classes:
        shapes = {judged.kernel.shape: judged.held for judged in one.kernels}
        assert sum(shapes.values()) == len(shapes) // 2
        assert all(judged.held == shapes[judged.kernel.shape] for judged in one.kernels)
        kinds[one.name] = {judged.kernel.what for judged in one.kernels}
        assert not any(judged.kernel.head_size % 8 or judged.kernel == FLOOR for judged in one.kernels)
        assert one.error(True, after=False) is None or not any(shapes.values()) or one.error(True) is not None
    assert kinds == {
        "linear": {"product"},
        "fused_attention": {"attention"},
        "normalization": {"layer-norm", "rms-norm"},
        "activation": {"gelu", "gated-silu"},
        "dropout": {"dropout"},
        "elementwise": {"add", "adam"},
        "embedding": {"embedding"},
        "loss": {"loss"},
    }
    norms = msgspec.structs.replace(FOUND, kernels=tuple(one for one in FOUND.kernels if "norm" in one.kernel.what))
    assert len({fit_kernels(h100(), norms, seed).classes[0].kernels for seed in range(4)}) > 1


def test_errors_count_by_the_root_of_seconds() -> None:
    """10 % of 1 s and 40 % of 4 s are (0.1 + 2 * 0.4) / 3; half of what it took is farther off than 1.9 times it."""
    kernel = Kernel(what="add", inputs=8)
    rows = [JudgedKernel(kernel, 1.0, 3.0, 1.1, False), JudgedKernel(kernel, 4.0, 4.0, 2.4, False)]
    of = ClassFit(
        "elementwise",
        {},
        {},
        (*rows, JudgedKernel(kernel, 1.0, 2.0, 1.9, True), JudgedKernel(kernel, 1.0, 1.0, 0.5, True)),
    )
    assert of.error(False) == pytest.approx(0.3)
    assert of.error(False, after=False) == pytest.approx(2.0 / 3)
    assert of.error(True) == pytest.approx(0.7)
    assert of.worst.after == 0.5
    assert ClassFit("elementwise", {}, {}, tuple(rows)).error(True) is None


def test_attention_of_odd_heads_is_never_quicker() -> None:
    """Where it was measured to be, nothing is added; where it was not, nothing is known; a host's forward may be alone."""
    quick = [
        msgspec.structs.replace(one, seconds=one.seconds * (0.5 if one.kernel.head_size % 8 else 1.0))
        for one in FOUND.kernels
        if one.kernel.what == "attention" or (one.kernel.what, one.kernel.phase) == ("layer", "forward")
    ]
    found = fit_kernels(h100(), msgspec.structs.replace(FOUND, kernels=tuple(quick)))
    assert found.odd_heads == 0.0
    assert found.launch == pytest.approx(15e-6)
    even = tuple(one for one in quick if not one.kernel.head_size % 8 and one.kernel.what != "layer")
    found = fit_kernels(h100(), msgspec.structs.replace(FOUND, kernels=even))
    assert (found.odd_heads, found.launch) == (None, None)


def test_links_of_a_host_and_memory_have_the_best_measured_rates() -> None:
    """8 GB in 0.2 s over the link; a copy reads and writes, a sum of two reads twice and writes once, in two bytes."""
    rows = [
        (Kernel(what="to-host", inputs=8 * 10**9), 0.2),
        (Kernel(what="from-host", inputs=8 * 10**9), 0.4),
        (Kernel(what="copy", inputs=10**9), 2e-3),
        (Kernel(what="add", inputs=10**9), 3e-3),
        (Kernel(what="product", rows=100, inputs=100, outputs=100), 2e-3),
        (Kernel(what="product", precision="fp16", rows=100, inputs=100, outputs=100), 4e-3),
    ]
    found = msgspec.structs.replace(
        FOUND, kernels=tuple(Measured(kernel=one, seconds=took, spread=0.0, runs=1) for one, took in rows)
    )
    device = measured_device(found, "mine")
    assert (device.memory_bandwidth, device.memory_bytes) == (pytest.approx(2e12), 80 * 2**30)
    assert device.peak_flops == {"fp32": 1e9, "bf16": 1e9, "fp16": 5e8}
    assert fit_kernels(device, found).host_bandwidth == pytest.approx(40e9)
    assert fit_kernels(device, found).call is None


def test_kernels_of_networks_of_two_sizes() -> None:
    """Of hidden sizes 64 and 8 and of 32 tokens, by hand: square, wide and deep products and those of an eighth, each in three
    passes; attention of 32 tokens in all; element-wise work on the most tokens; a host's kernels.
    """
    found = [one for one in standard_kernels((64, 8), (32, 16), 100, "fp16") if one.phase in ("forward", "backward")]
    assert len(found) == len(set(found))
    assert {one.precision for one in found if one.what != "adam"} == {"fp16"}
    products = {(one.rows, one.inputs, one.outputs) for one in found if one.what == "product"}
    wide = {(64, 64), (64, 256), (256, 64), (64, 24), (8, 64)}
    assert products == {(rows, *one) for rows in (32, 16) for one in (*wide, (8, 8), (8, 32), (32, 8), (8, 24))}
    passes = [one.phase for one in standard_kernels((64,), (32,), 100, "bf16") if one.what == "product"]
    assert passes == ["forward", "input_gradient", "weight_gradient"] * 5
    attention = {
        (one.batch, one.tokens, one.heads, one.key_value_heads, one.head_size, one.causal)
        for one in found
        if one.what == "attention" and one.phase == "forward"
    }
    assert attention == {
        *((part, 32 // part, 16, 16, 128, True) for part in (1, 2, 4, 8, 16)),
        *((8, 4, 16, 16, size, True) for size in (56, 64, 80, 96, 108, 112, 128, 150, 192, 256)),
        *((part, 32 // part, 32, 8, 128, True) for part in (2, 8)),
        *((part, 32 // part, 16, 16, 64, True) for part in (2, 8)),
        *((4, 8, 16, 16, 128, False), (1, 2, 8, 8, 128, True)),
    }
    others = {
        (one.what, one.rows, one.inputs, one.outputs) for one in found if one.what not in ("product", "attention")
    }
    assert others == {
        *((what, 32, width, 0) for what in ("layer-norm", "rms-norm", "dropout", "add") for width in (64, 8)),
        *((what, 32, 4 * width, 0) for what in ("gelu", "gated-silu") for width in (64, 8)),
        *(("embedding", 32, 100, width) for width in (64, 8)),
        ("loss", 8, 0, 100),
        *(("adam", 1, part, 0) for part in (2048, 256, 32)),
        *((what, 1, 2 * part, 0) for what in ("copy", "to-host", "from-host") for part in (2048, 256, 32)),
        *((what, 1, 64, 0) for what in ("add", "launch", "layer")),
    }
    least = standard_kernels((1,), (1,), 1, "bf16")
    assert min(one.rows for one in least) == min(one.tokens for one in least if one.what == "attention") == 1
    assert {one.inputs for one in least if one.what == "product"} == {1, 4, 8}


def test_kernels_have_words_and_sizes() -> None:
    """A causal kernel scores half of the pairs; sizes of none are left out of the words; none is below 0."""
    kernel = Kernel(what="attention", batch=2, tokens=8, heads=4, key_value_heads=2, head_size=16)
    assert kernel.work().fused_pairs == 1.0
    assert msgspec.structs.replace(kernel, causal=True).work().fused_pairs == 0.5
    assert str(kernel) == "attention forward, 2 x 8 tokens, 4/2 heads of 16"
    assert str(msgspec.structs.replace(kernel, causal=True)).endswith("heads of 16, causal")
    assert str(Kernel(what="loss", rows=8, outputs=100)) == "loss forward, 8 x 100"
    for fields, good in (
        ({}, True),
        ({"rows": 0}, False),
        ({"inputs": -1}, False),
        ({"inputs": 2**53}, True),
        ({"inputs": 2**53 + 1}, False),
        ({"outputs": 0, "batch": 0}, True),
    ):
        if good:
            assert msgspec.convert({"what": "add", **fields}, Kernel)
        else:
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert({"what": "add", **fields}, Kernel)
    whole = {"kernel": {"what": "add"}, "seconds": 1.0, "spread": 0.0, "runs": 1}
    assert msgspec.convert(whole, Measured).calls == 1
    for changed in ({"seconds": -1.0}, {"runs": 0}, {"seconds": 1.1e18}, {"calls": 0}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(whole | changed, Measured)
    document = msgspec.to_builtins(msgspec.structs.replace(FOUND, kernels=()))
    for text, good in (("", False), ("x", True), ("x" * 500, True), ("x" * 501, False)):
        if good:
            assert Measurements.of(document | {"device": text}).device == text
        else:
            with pytest.raises(msgspec.ValidationError):
                Measurements.of(document | {"device": text})


def test_least_finds_the_bottom() -> None:
    """Of two numbers, one of which is best at the end of its range."""
    found = least(lambda at: abs(math.log(at["a"] / 3.0)) + at["b"], {"a": (1.0, 0.1, 10.0), "b": (1.0, 0.5, 2.0)})
    assert found == pytest.approx({"a": 3.0, "b": 0.5})


# ---- the command -----------------------------------------------------------------------------------------------------


def asked(folder: Path, *words: str, found: Measurements = FOUND) -> list[str]:
    """A command that reads kernels of a file."""
    path = folder / "kernels.json"
    path.write_bytes(msgspec.json.encode({"measurements": found}))
    return ["calibrate", "--kernels", str(path), "--out", str(folder / "mine.toml"), *words]


def test_files_say_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster takes the written accelerator at once, --stack the written stack; each number has its source."""
    stack = tmp_path / "odd.toml"
    code, printed, _ = ended(capsys, asked(tmp_path, "--accelerator", "h100", "--stack-out", str(stack), "--json"))
    document = json.loads(printed)
    assert code == 0
    assert msgspec.convert(document["measurements"], Measurements) == FOUND
    device = load_accelerator(str(tmp_path / "mine.toml"))
    assert isinstance(device, GraphicsProcessor)
    told = {(row["class"], row["constant"]): row["after"] for row in document["constants"]}
    assert device.efficiencies["linear"].matrix == pytest.approx(told["linear", "matrix"], rel=1e-3)
    assert (device.call_overhead, device.step_overhead) == (0.0, 4e-6)
    assert device.peak_flops == h100().peak_flops
    assert (device.memory_bytes, device.generation) == (h100().memory_bytes, "hopper")
    assert load_stack(str(stack)).odd_heads.on(device) == pytest.approx(ODD - 1.0, rel=0.02)
    text = (tmp_path / "mine.toml").read_text()
    assert "NVIDIA H100, torch 2, 2026-11-27; fitted to" in text
    assert "medians of 9 runs" in text
    assert 'generation = "hopper"' in text
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('name = "one"\n[[servers]]\ncount = 1\ndevices = 1\naccelerator = "./mine.toml"\n')
    assert load_cluster(str(cluster)).devices[0] == device


def test_without_a_data_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file has what was measured alone, and says so; tables name the worst kernel."""
    code, printed, _ = ended(capsys, asked(tmp_path))
    assert code == 0
    assert "fused_attention" in printed
    assert "attention where 8 does not divide" in printed
    assert "best rate that was measured" in (tmp_path / "mine.toml").read_text()
    load_accelerator(str(tmp_path / "mine.toml"))


def test_what_was_not_measured_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel that failed has its line; a stack of odd sizes of heads needs some, and nothing is written without."""
    even = tuple(one for one in FOUND.kernels if not one.kernel.head_size % 8)[::4]
    found = msgspec.structs.replace(FOUND, kernels=even, failed={"linear 8 x 8": "out of memory"})
    said = "--stack-out: no attention was measured whose size of a head is no multiple of 8"
    assert said in refused(capsys, asked(tmp_path, "--stack-out", str(tmp_path / "odd.toml"), found=found))
    assert not list(tmp_path.glob("*.toml"))
    code, printed, _ = ended(capsys, asked(tmp_path, found=found))
    assert (code, printed.splitlines()[-2]) == (0, "not measured: linear 8 x 8: out of memory")
    assert "attention where 8 does not divide" not in printed


def test_measuring_is_injected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What measures is asked once."""
    given = argparse.Namespace(
        kernels=command.HERE,
        accelerator="h100",
        out=tmp_path / "mine.toml",
        stack_out=None,
        cluster_out=None,
        seed=0,
        json=True,
    )
    assert command.run(given, lambda arguments: FOUND) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "NVIDIA\nH100"


def test_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what to install."""
    monkeypatch.setattr("experiments.terminal.argument_types.find_spec", lambda name: None)
    line = refused(capsys, ["calibrate", "--kernels", "--out", str(tmp_path / "x.toml")], 2)
    assert "measuring kernels needs PyTorch, which is not installed; install pipeplan[torch]" in line
    assert not (tmp_path / "x.toml").exists()


def test_what_is_asked_of_the_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in for what PyTorch measures: kernels and settings of the device that is there, or as options say; collectives
    between the GPUs where there are several, or of as many processes as are asked for."""
    asked: list[tuple[Any, ...]] = []

    def measure_kernels(kernels: Any, settings: argparse.Namespace, report: Any) -> Measurements:
        asked.append((kernels, vars(settings)))
        return FOUND

    def measure_collectives(device: str, devices: int, sizes: tuple[int, ...], repeats: int) -> Any:
        asked.append((device, devices, sizes[0], sizes[-1], repeats))
        return TOGETHER, {"all-to-all of 2": "no such operation"}

    there = ["cpu", 4]
    modules = {
        "experiments.profiling.kernel_timing": {
            "KernelSettings": argparse.Namespace, "measure_kernels": measure_kernels, "usual_device": lambda: there[0]
        },
        "experiments.profiling.layer_profiler": {"check_device": lambda device: asked.append((device,))},
        "experiments.profiling.collective_timing": {"measure_collectives": measure_collectives},
        "torch": {"cuda": argparse.Namespace(device_count=lambda: there[1])},
    }  # fmt: skip
    monkeypatch.setattr("experiments.terminal.argument_types.find_spec", lambda name: name)
    for name, members in modules.items():
        monkeypatch.setitem(sys.modules, name, argparse.Namespace(**members))  # type: ignore[arg-type]
    settings = {"device": "cpu", "warm_up": 5, "repeats": 9, "seed": 0, "seconds": math.inf}
    command = ["calibrate", "--kernels", "--accelerator", "h100", "--out", str(tmp_path / "mine.toml"), "--json"]

    def told(*words: str) -> dict[str, Any]:
        asked.clear()
        code, printed, _ = ended(capsys, [*command, *words])
        assert code == 0
        return dict(json.loads(printed)["measurements"])

    told()
    assert asked == [("cpu",), (standard_kernels((128, 256), (64, 512), 1000, "fp32"), settings)]
    there[:] = ["cuda", 1]
    told()
    large = standard_kernels((1024, 2048, 4096, 5120, 8192), (512, 4096, 16384), 32768, "bf16")
    assert asked == [("cuda",), (large, settings | {"device": "cuda"})]
    there[:] = ["cuda", 4]
    found = told()
    assert asked[2:] == [("cuda", 4, 4**8, 4**15, 9)]
    assert len(found["collectives"]) == len(TOGETHER)
    assert found["failed"] == {"all-to-all of 2": "no such operation"}
    sizes = "--device cpu --hidden 64 --tokens 32 --vocabulary 100 --precision fp16"
    told(*sizes.split(), *["--warm-up", "1", "--repeats", "2", "--seed", "3", "--seconds", "7", "--collectives", "2"])
    own = {"device": "cpu", "warm_up": 1, "repeats": 2, "seed": 3, "seconds": 7.0}
    assert asked[1:] == [(standard_kernels((64,), (32,), 100, "fp16"), own), ("cpu", 2, 2**14, 2**23, 2)]
    for words, said in ((["--device", "tpu"], "--device 'tpu'"), (["--precision", "int8"], "--precision 'int8'")):
        assert said in refused(capsys, [*command, *words])


@pytest.mark.parametrize(
    "words, said",
    [
        (["--accelerator", "vcu118"], "--accelerator vcu118: is no GPU; its kernels have no shares to fit"),
        (["--accelerator", "h1000"], "h1000"),
        (["--plan", "a.json"], "--plan does not go with --kernels"),
    ],
)
def test_words_that_do_not_go(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    """One line each, and nothing is written."""
    assert said in refused(capsys, asked(tmp_path, *words), 2)
    assert not (tmp_path / "mine.toml").exists()


def test_a_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named with what is wrong; an option of kernels alone is refused."""
    path = tmp_path / "bad.json"
    path.write_text('{"measurements": {"device": 3}}')
    out = ["--out", str(tmp_path / "mine.toml")]
    assert "is no document of measured kernels: Expected `str`, got `int` - at `$.device`" in refused(
        capsys, ["calibrate", "--kernels", str(path), *out], 4
    )
    path.write_text('{"measurements": {}, "measurements": {}}')
    assert f"{path}:1: key 'measurements' stands twice" in refused(
        capsys, ["calibrate", "--kernels", str(path), *out], 4
    )
    assert "--hidden goes with --kernels" in refused(capsys, ["calibrate", "--hidden", "64", *out], 2)
    assert main(["calibrate", "--kernels", str(tmp_path / "none.json"), *out]) != 0


# ---- collectives -----------------------------------------------------------------------------------------------------

LINK = {"all-reduce": (40e-6, 300e9, 2), "all-gather": (20e-6, 350e9, 1), "reduce-scatter": (30e-6, 330e9, 1)}
"""Latency, rate and passes of a link's collectives."""

TOGETHER = tuple(
    Collective(
        operation=name,
        devices=devices,
        bytes=size,
        seconds=latency + passes * (devices - 1) / devices * size / rate,
        spread=0.0,
        runs=9,
    )
    for name, (latency, rate, passes) in LINK.items()
    for devices in (2, 4, 8)
    for size in (2**16, 2**20, 2**24, 2**28)
)


def test_a_cluster_has_the_links_that_were_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: Recorded
) -> None:
    """Its collectives take what was measured, at sizes and among devices that the fit did not see, too."""
    path, out = tmp_path / "kernels.json", tmp_path / "cluster.toml"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(FOUND, collectives=TOGETHER)))
    words = ["calibrate", "--kernels", str(path), "--out", str(tmp_path / "mine.toml"), "--cluster-out", str(out)]
    code, printed, _ = ended(capsys, words)
    assert code == 0
    here = str(tmp_path)
    recorded(
        printed=[" ".join(line.split()).replace(here, "HERE") for line in printed.splitlines() if "──" not in line],
        written=[
            lines(path.read_text(encoding="utf-8").replace(here, "HERE")) for path in (tmp_path / "mine.toml", out)
        ],
    )
    cluster = load_cluster(str(out))
    assert len(cluster.devices) == 8
    assert cluster.devices[0] == load_accelerator(str(tmp_path / "mine.toml"))
    for one in TOGETHER:
        seconds = cluster.collectives.seconds(OPERATIONS[one.operation], range(one.devices), one.bytes)
        slack = 6e-6 if one.operation != "all-reduce" else 0.0  # a gather and a scatter share their latency
        assert seconds == pytest.approx(one.seconds, rel=0.02, abs=slack)


def test_constants_of_collectives_are_found_again() -> None:
    """Of each operation, on half of its measurements; the others are met. They stay within a second and 0.1 MB/s to 10 TB/s."""
    for one in fit_collectives(TOGETHER):
        latency, rate, _ = LINK[one.operation]
        assert (one.latency, one.rate) == (pytest.approx(latency, rel=1e-3), pytest.approx(rate, rel=1e-3))
        assert (one.fitted, one.held) == (6, 6)
        assert max(one.error_fitted or 0.0, one.error_held or 0.0) < 1e-3
    row = Collective(operation="all-gather", devices=2, bytes=2, seconds=5.0, spread=0.0, runs=1)
    (alone,) = fit_collectives([row])
    assert (alone.fitted, alone.held, alone.error_held, alone.latency) == (1, 0, None, 1.0)
    ends = []
    for bytes_per_second in (1e3, 1e15):
        rows = [
            msgspec.structs.replace(row, bytes=size, seconds=size / 2 / bytes_per_second) for size in (2**20, 2**24)
        ]
        ends.append(fit_collectives(rows)[0])
    assert (ends[0].rate, ends[1].rate) == (pytest.approx(1e5), pytest.approx(1e13))
    assert ends[1].latency == pytest.approx(1e-7)


def test_a_link_has_the_best_rate_and_shares_of_it() -> None:
    """350 GB/s of gathers; a gather and a scatter wait twice their mean, 50 us together, a sum 40."""
    fits = fit_collectives(TOGETHER)
    found = msgspec.structs.replace(FOUND, collectives=TOGETHER)
    link = tomllib.loads(cluster_text("mine", "h100", found, fits))["servers"][0]["inside"]
    assert link.pop("topology") == "switch"
    assert link == pytest.approx(
        {
            "bandwidth_gb_per_s": 350.0,
            "collective_efficiency": 300 / 350,
            "gather_efficiency": 1.0,
            "scatter_efficiency": 330 / 350,
            "collective_latency_us": 40.0,
            "gather_latency_us": 50.0,
        },
        rel=2e-3,
    )
    alone = [one for one in fits if one.operation == "all-gather"]
    link = tomllib.loads(cluster_text("mine", "h100", found, alone))["servers"][0]["inside"]
    assert link["gather_latency_us"] == pytest.approx(40.0, rel=2e-3)
    assert "collective_latency_us" not in link


def test_no_cluster_without_collectives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and nothing is written."""
    line = refused(capsys, asked(tmp_path, "--cluster-out", str(tmp_path / "cluster.toml")), 2)
    assert "--cluster-out: no collective was measured" in line
    assert not list(tmp_path.glob("*.toml"))


# ---- with PyTorch ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_kernels_and_collectives_run_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each takes some time, collectives between two processes; what was measured is fitted again from its document; one device
    has no collectives."""
    words = ["--device", "cpu", "--hidden", "64", "--tokens", "32", "--vocabulary", "100", "--repeats", "2"]
    out = ["--out", str(tmp_path / "mine.toml"), "--json"]
    command = ["calibrate", "--kernels", *words, "--warm-up", "1", *out]
    code, printed, _ = ended(capsys, [*command, "--collectives", "2", "--cluster-out", str(tmp_path / "two.toml")])
    document = json.loads(printed)
    rows, collectives = document["measurements"]["kernels"], document["measurements"]["collectives"]
    assert (code, document["measurements"]["failed"]) == (0, {})
    assert {row["kernel"]["what"] for row in rows} > set(KINDS)
    assert {row["operation"] for row in collectives} == set(LINK)
    assert all(row["seconds"] > 0.0 and row["runs"] == 2 for row in (*rows, *collectives))
    assert all(row["devices"] == 2 for row in collectives)
    assert len(load_cluster(str(tmp_path / "two.toml")).devices) == 2
    (tmp_path / "kernels.json").write_text(printed)
    code, again, _ = ended(capsys, ["calibrate", "--kernels", str(tmp_path / "kernels.json"), *out])
    assert json.loads(again)["constants"] == document["constants"]
    assert "need 2 devices or more" in refused(capsys, [*command, "--collectives", "1"], 2)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_a_gpu_that_is_not_there_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `pipeplan profile`: nothing is measured."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = refused(capsys, ["calibrate", "--kernels", "--device", "cuda", "--out", "x.toml"], 2)
    assert "--device cuda: torch finds no CUDA device here" in line


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_every_set_is_read_once_before_any_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of 1 ms a call: three sets once each, one call alone, then runs of 3 ms, of which those of the warm-up count none."""
    from experiments.profiling import kernel_timing as timing

    runs: list[list[object]] = []

    def seconds(calls: Iterator[Callable[[], object]], device: str, count: int) -> float:
        runs.append([next(calls)() for _ in range(count)])
        return 1e-3 if len(runs) <= 4 else len(runs) * 1e-3

    monkeypatch.setattr(timing, "_gpu_seconds", seconds)
    monkeypatch.setattr(timing, "_sets", lambda kernel, device: 3)
    monkeypatch.setitem(timing._PREPARE, "copy", lambda kernel, device: (partial(int, one) for one in count()))
    settings = timing.KernelSettings("cuda", warm_up=2, repeats=3, seed=0, seconds=math.inf)
    found = timing._measured(Kernel(what="copy", inputs=8), settings)
    assert runs == [[0, 1, 2], [0], *[[1, 2, 0]] * 5]
    assert (found.seconds, found.runs, found.calls) == (6e-3, 3, 3)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_clocks_begin_when_the_device_is_done_and_count_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's events stand around three calls, behind a delay of 0.1 ms a call at 2 GHz; 6 ms are 2 a call. A host that is ahead
    of its GPU does not wait for it before its clock stops."""
    import torch

    from experiments.profiling import kernel_timing as timing

    log: list[object] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def elapsed_time(self, end: object) -> float:
            return 6.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", log.append)
    monkeypatch.setattr(timing, "synchronize", lambda device: log.append(device))
    calls = iter(lambda: partial(log.append, "call"), None)
    assert timing._gpu_seconds(calls, "cuda", 3) == pytest.approx(2e-3)
    assert log == ["cuda", 600_000, "event", *["call"] * 3, "event", "cuda"]
    clock = count()

    def tick() -> int:
        log.append("clock")
        return 6 * next(clock)

    monkeypatch.setattr(timing.time, "perf_counter", tick)
    for device in ("cuda", "cpu"):
        log.clear()
        assert timing._host_seconds(calls, device, 3) == 2.0
        assert log == [device, "clock", *["call"] * 3, "clock", device]


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_runs_have_as_many_calls_as_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU 3 ms, at most 40 and at least one; of a host 40; of a CPU one. A block's seconds are those of ten layers."""
    from experiments.profiling import kernel_timing as timing

    took: dict[str, float] = {}
    monkeypatch.setattr(timing, "_gpu_seconds", lambda calls, device, count: took["gpu"])
    monkeypatch.setattr(timing, "_host_seconds", lambda calls, device, count: took["host"])

    def found(what: str, device: str, gpu: float = 1.0, host: float = 20.0) -> tuple[float, int]:
        took.update(gpu=gpu, host=host)
        monkeypatch.setitem(timing._PREPARE, what, lambda kernel, device: iter(lambda: int, None))
        settings = timing.KernelSettings(device, warm_up=1, repeats=3, seed=0, seconds=math.inf)
        one = timing._measured(Kernel(what=what, inputs=8), settings)  # type: ignore[arg-type]
        return one.seconds, one.calls

    assert found("copy", "cuda", gpu=1e-3 / 0.9) == (1e-3 / 0.9, 3)
    assert found("copy", "cuda", gpu=1e-6) == (1e-6, 40)
    assert found("copy", "cuda", gpu=0.0) == (0.0, 40)
    assert found("copy", "cuda") == (1.0, 1)
    assert found("copy", "cpu") == (20.0, 1)
    assert found("launch", "cuda") == found("launch", "cpu") == (20.0, 40)
    assert found("layer", "cuda") == found("layer", "cpu") == (2.0, 40)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_kernels_that_do_not_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the beginning of what the framework says; the others are measured, and none once the time is up."""
    from experiments.profiling import kernel_timing as timing

    def measured_one(kernel: Kernel, settings: object) -> Measured:
        if kernel.inputs == 8:
            raise RuntimeError("no\nmemory " + "x" * 300)
        return Measured(kernel=kernel, seconds=1.0, spread=0.0, runs=1)

    monkeypatch.setattr(timing, "_measured", measured_one)
    kernels = [Kernel(what="add", inputs=size) for size in (8, 16)]
    told: list[tuple[int, str]] = []
    settings = timing.KernelSettings("cpu", warm_up=0, repeats=1, seed=3, seconds=60.0)
    found = timing.measure_kernels(kernels, settings, lambda done, text: told.append((done, text)))
    assert told == [(0, str(kernels[0])), (1, str(kernels[1]))]
    assert [one.kernel for one in found.kernels] == kernels[1:]
    assert found.failed == {str(kernels[0]): "no memory " + "x" * 190}
    late = timing.measure_kernels(kernels, replace(settings, seconds=-1.0))
    assert (late.kernels, set(late.failed.values())) == ((), {"no time was left"})


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_what_runs_is_what_a_network_runs() -> None:
    """A causal kernel's first token sees itself alone; a block adds what it makes to what it reads; a loss of equal logits is the
    logarithm of their number; TF32 is allowed for as long as it is asked for; Adam moves every weight; copies copy."""
    import torch

    from experiments.profiling import kernel_timing as timing

    def call(**said: Any) -> Any:
        return next(timing._PREPARE[said["what"]](Kernel(precision="fp32", **said), "cpu"))

    sizes = {"what": "attention", "batch": 1, "tokens": 4, "heads": 2, "key_value_heads": 2, "head_size": 8}
    for causal in (True, False):
        one = call(causal=causal, **sizes)
        _, _, value = one.args
        assert torch.allclose(one()[0, :, 0], value[0, :, 0], atol=1e-6) == causal
    torch.manual_seed(0)
    norms = [torch.nn.LayerNorm(8) for _ in range(2)]
    products = [torch.nn.Linear(*size) for size in ((8, 24), (8, 8), (8, 32), (32, 8))]
    read = torch.randn(1, 8, 8)
    with torch.no_grad():
        for layer in (products[1], products[3]):
            layer.weight.zero_()
            layer.bias.zero_()
        assert torch.equal(timing._block(norms, products, read), read)
        products[1].bias.fill_(2.0)
        assert torch.allclose(timing._block(norms, products, read), read + 2.0)
        products[3].bias.fill_(3.0)
        assert torch.allclose(timing._block(norms, products, read), read + 5.0)
    loss = call(what="loss", rows=8, outputs=100)
    with torch.no_grad():
        loss.args[0].zero_()
    assert float(loss().detach()) == pytest.approx(math.log(100))
    norm = call(what="layer-norm", rows=8, inputs=16)
    plain = torch.nn.functional.layer_norm(norm.args[0], (16,))
    assert torch.allclose(norm(), plain * norm.args[1] + norm.args[2], atol=1e-5)
    before = torch.backends.cuda.matmul.allow_tf32
    for allowed in (True, False):
        with timing._tf32(allowed):
            assert torch.backends.cuda.matmul.allow_tf32 == allowed
        assert torch.backends.cuda.matmul.allow_tf32 == before
    adam = call(what="adam", inputs=16)
    (weights,) = adam.__self__.param_groups[0]["params"]
    was = weights.detach().clone()
    adam()
    assert bool((weights != was).all())
    copied = call(what="copy", inputs=16)
    copied.func.__self__.zero_()
    assert bool(copied().eq(1).all())


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_sets_are_together_just_larger_than_a_cache() -> None:
    """Of a GPU, 256 MiB: three of three tensors of 32 MiB, four of attention's 64 MiB, eight where more would be needed."""
    from experiments.profiling.kernel_timing import _sets

    product = Kernel(what="product", rows=4096, inputs=4096, outputs=4096)
    attention = Kernel(what="attention", batch=2, tokens=4096, heads=12, key_value_heads=4, head_size=128)
    thin = Kernel(what="product", rows=8, inputs=8, outputs=8)
    layer = Kernel(what="layer", inputs=4096)
    assert [_sets(one, "cuda") for one in (product, attention, thin, layer)] == [3, 4, 8, 1]
    assert [_sets(one, "cpu") for one in (product, attention, thin, layer)] == [1] * 4


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
@pytest.mark.parametrize(
    ("kernel", "made"),
    [
        (Kernel(what="product", rows=8, inputs=16, outputs=4), [(8, 4)]),
        (Kernel(what="product", phase="input_gradient", rows=8, inputs=16, outputs=4), [(8, 16)]),
        (Kernel(what="product", phase="weight_gradient", rows=8, inputs=16, outputs=4), [(4, 16)]),
        (Kernel(what="attention", batch=2, tokens=8, heads=4, key_value_heads=2, head_size=16), [(2, 4, 8, 16)]),
        (
            Kernel(what="attention", phase="backward", batch=2, tokens=8, heads=4, key_value_heads=4, head_size=16),
            [(2, 4, 8, 16)] * 3,
        ),
        (Kernel(what="layer-norm", phase="backward", rows=8, inputs=16), [(8, 16), (16,), (16,)]),
        (Kernel(what="rms-norm", phase="backward", rows=8, inputs=16), [(8, 16), (16,)]),
        (Kernel(what="gated-silu", rows=8, inputs=16), [(8, 16)]),
        (Kernel(what="gated-silu", phase="backward", rows=8, inputs=16), [(8, 16)] * 2),
        (Kernel(what="gelu", phase="backward", rows=8, inputs=16), [(8, 16)]),
        (Kernel(what="embedding", rows=8, inputs=100, outputs=16), [(8, 16)]),
        (Kernel(what="embedding", phase="backward", rows=8, inputs=100, outputs=16), [(100, 16)]),
        (Kernel(what="loss", rows=8, outputs=100), [()]),
        (Kernel(what="loss", phase="backward", rows=8, outputs=100), [(8, 100)]),
        (Kernel(what="to-host", inputs=32), [(32,)]),
        (Kernel(what="launch", inputs=64), [(64,)]),
        (
            Kernel(what="layer", phase="backward", inputs=64),
            [(1, 8, 64), *[(64,)] * 4, (192, 64), (192,), (64, 64), (64,), (256, 64), (256,), (64, 256), (64,)],
        ),
    ],
    ids=str,
)
def test_calls_make_what_their_kernel_says(kernel: Kernel, made: list[tuple[int, ...]]) -> None:
    """The result of a forward; of a backward the gradients of all that was read. Each set has tensors of its own."""
    from experiments.profiling.kernel_timing import _PREPARE

    calls = _PREPARE[kernel.what](msgspec.structs.replace(kernel, precision="fp32"), "cpu")
    first, second = (next(calls)() for _ in range(2))
    for result in (first, second):
        assert [tuple(one.shape) for one in (result if isinstance(result, tuple) else (result,))] == made
    one, other = (result[0] if isinstance(result, tuple) else result for result in (first, second))
    assert one.data_ptr() != other.data_ptr()


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_collectives_are_of_whole_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 KiB among four: gathers from quarters, scatters to them; of less than a number a device one each; seconds of runs
    after the warm-up alone."""
    from experiments.profiling import collective_timing as timing

    runs: list[list[int]] = []

    def ran(*given: Any, group: object) -> None:
        runs.append([one.numel() * one.element_size() for one in given])

    def reduced(one: Any, *by: object, group: object) -> None:
        if not by:  # the most of the seconds is no run
            ran(one, group=group)

    monkeypatch.setattr(timing.distributed, "barrier", lambda group: None)
    monkeypatch.setattr(timing.distributed, "all_reduce", reduced)
    monkeypatch.setattr(timing.distributed, "all_gather_into_tensor", ran)
    monkeypatch.setattr(timing.distributed, "reduce_scatter_tensor", ran)
    for size, whole in ((8192, 8192), (8195, 8192), (3, 16)):
        runs.clear()
        for operation in ("all-reduce", "all-gather", "reduce-scatter"):
            assert len(timing._seconds(operation, None, 4, size, "cpu", 2)) == 2
        each = timing.WARM_UP + 2
        assert runs == [[whole]] * each + [[whole, whole // 4]] * each + [[whole // 4, whole]] * each


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_collectives_are_of_two_four_and_all_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of six: a median of the runs of each operation and size; a process beyond a group takes no part in it; the first writes;
    what a backend does not have is named with the beginning of what it says."""
    from experiments.profiling import collective_timing as timing

    for name in ("init_process_group", "destroy_process_group", "barrier"):
        monkeypatch.setattr(timing.distributed, name, lambda *given, **named: None)
    monkeypatch.setattr(timing.distributed, "new_group", lambda ranks: ranks)

    def seconds(operation: str, group: object, count: int, size: int, device: str, repeats: int) -> list[float]:
        taken.append(count)
        if (operation, count) == ("all-gather", 4):
            raise RuntimeError("none " + "x" * 300)
        return [1.0, 4.0, 2.0]

    monkeypatch.setattr(timing, "_seconds", seconds)
    for rank, counts in ((5, {6}), (2, {4, 6}), (0, {2, 4, 6})):
        taken: list[int] = []
        timing._process(rank, "cpu", 6, (1024, 2048), 3, str(tmp_path))
        assert set(taken) == counts
        assert (tmp_path / "found.json").exists() == (rank == 0)
    found = msgspec.json.decode((tmp_path / "found.json").read_bytes(), type=Collected)
    assert [(one.devices, one.operation, one.bytes) for one in found.collectives] == [
        (count, operation, size)
        for count in (2, 4, 6)
        for operation in LINK
        for size in (1024, 2048)
        if (operation, count) != ("all-gather", 4)
    ]
    assert {(one.seconds, one.runs) for one in found.collectives} == {(2.0, 3)}
    assert found.failed == {f"all-gather of {size} bytes among 4": "none " + "x" * 195 for size in (1024, 2048)}
    with pytest.raises(ValueError, match=r"got 1 \(1 on this machine\)"):
        timing.measure_collectives("cpu", 1, (8,), 1)
    monkeypatch.setattr(timing.torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"got 3 \(2 on this machine\)"):
        timing.measure_collectives("cuda", 3, (8,), 1)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra pipeplan[torch])")
def test_gates_multiply_and_memory_is_that_of_the_device_that_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 times silu of 0.5, which is 0.5 / (1 + 1 / sqrt(e)); the first GPU's bytes, or those of the machine."""
    import torch

    from experiments.profiling import kernel_timing as timing

    assert float(timing._gated(torch.tensor(3.0), torch.tensor(0.5))) == pytest.approx(3.0 * 0.5 / (1 + math.exp(-0.5)))
    known = {0: argparse.Namespace(total_memory=80 * 2**30)}
    monkeypatch.setattr(torch.cuda, "get_device_properties", known.__getitem__)
    assert timing._memory_bytes("cuda") == 80 * 2**30
    assert 2**28 < timing._memory_bytes("cpu") < 2**50
