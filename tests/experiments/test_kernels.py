"""Kernels: shares are found again from what a device with other ones would have taken, and a file says where each comes from."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from experiments.calibration.collective_fit import OPERATIONS
from experiments.calibration.kernel_fit import (
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
    Collective,
    Kernel,
    Measured,
    Measurements,
    standard_kernels,
)
from hardware_profiles import GraphicsProcessor, load_accelerator, load_cluster, load_stack
from tests.experiments.commands import ended, refused

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


@pytest.fixture(scope="module")
def fit() -> KernelFit:
    """Of the shipped H100 to the other one's kernels."""
    return fit_kernels(h100(), FOUND)


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
    rows = tuple(msgspec.structs.replace(one, seconds=60.0) for one in FOUND.kernels if one.kernel.what == "product")
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


def test_least_finds_the_bottom() -> None:
    """Of two numbers, one of which is best at the end of its range."""
    found = least(lambda at: abs(math.log(at["a"] / 3.0)) + at["b"], {"a": (1.0, 0.1, 10.0), "b": (1.0, 0.5, 2.0)})
    assert found == pytest.approx({"a": 3.0, "b": 0.5})


# ---- the command -----------------------------------------------------------------------------------------------------


def asked(folder: Path, *words: str) -> list[str]:
    """A command that reads kernels of a file."""
    path = folder / "kernels.json"
    path.write_bytes(msgspec.json.encode({"measurements": FOUND}))
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
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    line = refused(capsys, ["calibrate", "--kernels", "--out", str(tmp_path / "x.toml")], 2)
    assert "install pipeplan[torch]" in line
    assert not (tmp_path / "x.toml").exists()


@pytest.mark.parametrize(
    "words, said",
    [
        (["--accelerator", "vcu118"], "is no GPU"),
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
    assert "no document of measured kernels" in refused(capsys, ["calibrate", "--kernels", str(path), *out], 4)
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


def test_a_cluster_has_the_links_that_were_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its collectives take what was measured, at sizes and among devices that the fit did not see, too."""
    path, out = tmp_path / "kernels.json", tmp_path / "cluster.toml"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(FOUND, collectives=TOGETHER)))
    words = ["calibrate", "--kernels", str(path), "--out", str(tmp_path / "mine.toml"), "--cluster-out", str(out)]
    assert ended(capsys, [*words, "--json"])[0] == 0
    cluster = load_cluster(str(out))
    assert len(cluster.devices) == 8
    assert cluster.devices[0] == load_accelerator(str(tmp_path / "mine.toml"))
    for one in TOGETHER:
        seconds = cluster.collectives.seconds(OPERATIONS[one.operation], range(one.devices), one.bytes)
        slack = 6e-6 if one.operation != "all-reduce" else 0.0  # a gather and a scatter share their latency
        assert seconds == pytest.approx(one.seconds, rel=0.02, abs=slack)


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
def test_gates_multiply_and_memory_is_that_of_the_device_that_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 times silu of 0.5, which is 0.5 / (1 + 1 / sqrt(e)); the first GPU's bytes, or those of the machine."""
    import torch

    from experiments.profiling import kernel_timing as timing

    assert float(timing._gated(torch.tensor(3.0), torch.tensor(0.5))) == pytest.approx(3.0 * 0.5 / (1 + math.exp(-0.5)))
    known = {0: argparse.Namespace(total_memory=80 * 2**30)}
    monkeypatch.setattr(torch.cuda, "get_device_properties", known.__getitem__)
    assert timing._memory_bytes("cuda") == 80 * 2**30
    assert 2**28 < timing._memory_bytes("cpu") < 2**50
