"""Tests of `hardware_profiles.chips`: shares of kinds of chips; more of anything is never slower."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles import (
    LAYER_KINDS,
    GraphicsProcessor,
    Phase,
    Power,
    Precision,
    Work,
    load_accelerator,
    load_cluster,
    optional_members,
    percent,
)
from hardware_profiles.chips import CHIPS
from planners import make_plan
from simulator import Gpt, Problem
from tests.records import Recorded, weights

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "fp8")
PHASES: tuple[Phase, ...] = ("forward", "input_gradient", "weight_gradient", "backward")


def chip(folder: Path, numbers: Mapping[str, float], kind: str = "", name: str = "mine") -> GraphicsProcessor:
    """A chip of six numbers: peaks in TFLOP/s by precision, `bandwidth` in GB/s."""
    compute = "".join(f"tflops_{key} = {value!r}\n" for key, value in numbers.items() if key != "bandwidth")
    said = f'chip = "{kind}"\n' if kind else ""
    path = folder / f"{name}.toml"
    path.write_text(
        f'kind = "accelerator"\nname = "{name}"\n{said}memory_gib = 64\n'
        f"memory_bandwidth_gb_per_s = {numbers['bandwidth']!r}\n[compute]\n{compute}"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        device = load_accelerator(path)
    assert isinstance(device, GraphicsProcessor)
    return device


@pytest.mark.parametrize("name", ["a100-80", "b200"])
def test_tensor_cores_have_the_measured_shares_at_measured_peaks(name: str, tmp_path: Path) -> None:
    """Products forward, bandwidth of element-wise layers and what a call takes beside, in the measured precision and in fp8."""
    model = load_accelerator(name)
    assert isinstance(model, GraphicsProcessor)
    peak = model.peak_flops["fp16"] / 1e12
    numbers = {"fp32": 20.0, "fp16": peak, "fp8": 2.0 * peak, "bandwidth": model.memory_bandwidth / 1e9}
    device = chip(tmp_path, numbers, "tensor-core")
    for precision in ("fp16", "fp8"):
        shares = device.efficiencies_in[precision]
        assert shares["linear"].matrix == pytest.approx(model.efficiencies["linear"].matrix)
        assert shares["elementwise"].memory == pytest.approx(model.efficiencies["elementwise"].memory)
        assert shares["linear"].saturation_seconds == pytest.approx(model.efficiencies["linear"].saturation_seconds)


def test_between_measured_peaks_rates_rise_evenly_in_logarithms(tmp_path: Path) -> None:
    """Halfway between an A100 and a B200 in logarithms, the rate is the geometric mean of theirs."""
    peaks = 312.0, 2250.0
    numbers = {"fp16": (peaks[0] * peaks[1]) ** 0.5, "bandwidth": 2039.0}
    share = chip(tmp_path, numbers, "tensor-core").efficiencies_in["fp16"]["linear"].matrix
    assert share == pytest.approx((0.84 * 0.49) ** 0.5)


def test_shares_of_kinds_are_those_of_the_manual() -> None:
    """Products, attention in one kernel and memory, and the spread; attention in several kernels reaches half of products."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "model.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| `(\w+)` \| ([0-9.]+), ([0-9.]+), ([0-9.]+) \| ([0-9]+) % \|", text)
    told = {name: (CHIPS[name].shares or {}, CHIPS[name].spread) for name, *_ in rows}
    assert len(rows) == 3
    for name, products, fused, memory, spread in rows:
        shares, own = told[name]
        assert (shares["products"], shares["fused_attention"], shares["memory"]) == tuple(
            map(float, (products, fused, memory))
        )
        assert own == float(spread) / 100.0
    ratios = {name: shares["attention"] / shares["products"] for name, (shares, _) in told.items()}
    assert ratios == pytest.approx({"systolic": 0.5, "array": 0.28 / 0.58, "vector": 1.0})
    assert percent(CHIPS["tensor-core"].spread, ".0f") in text.split("| `tensor-core` |")[1].splitlines()[0]


@pytest.mark.parametrize("kind", sorted(CHIPS))
def test_layers_on_chips_of_a_kind(kind: str, tmp_path: Path, recorded: Recorded) -> None:
    """Microseconds of layers of each kind, forward and backward, on a chip of 20, 400 and 800 TFLOP/s and 1,500 GB/s, of which
    products take as long as their FLOP at the share of the peak, and element-wise work as its bytes at that of the bandwidth.
    (All but one by weight.)"""
    device = chip(tmp_path, {"fp32": 20.0, "bf16": 400.0, "fp8": 800.0, "bandwidth": 1500.0}, kind)
    works = {
        layer: Work(layer, 4e9, 3e5, 5e5, 20_000_000 if layer in ("linear", "convolution", "recurrent") else 0)
        for layer in sorted(LAYER_KINDS)
    }
    works["fused_attention"] = replace(works["attention"], fused_pairs=0.5)
    works["experts"] = replace(works["linear"], experts=8)
    found = {
        name: {
            f"{precision} {phase}": 1e6 * device.seconds(work, 8.0, phase, precision)
            for precision in ("fp32", "bf16", "fp8")
            for phase in ("forward", "input_gradient", "weight_gradient")
        }
        for name, work in works.items()
    }
    shares = CHIPS[kind].shares
    if shares is not None:
        large = Work("linear", 1e15, 1e6, 1e6, 10**6)
        assert device.seconds(large, 1.0, "forward", "bf16") == pytest.approx(
            1e15 / (400e12 * shares["products"]), rel=0.01
        )
        wide = Work("elementwise", 0.0, 1e12, 1e12, 0)
        assert device.seconds(wide, 1.0, "forward", "bf16") == pytest.approx(
            4e12 / (1500e9 * shares["memory"]), rel=0.01
        )
    recorded(**(found if kind == "tensor-core" else weights(found)))


def test_fused_attention_alone_is_slower_backward(tmp_path: Path) -> None:
    """By as much as on measured devices, on a chip whose products reach one share of the peak forward and backward."""
    shares = chip(tmp_path, {"bf16": 500.0, "bandwidth": 1000.0}, "systolic").efficiencies_in["bf16"]
    falls = {name: share.matrix_backward / share.matrix for name, share in shares.items() if share.matrix < 1.0}
    assert {name for name, fall in falls.items() if fall != 1.0} == {"fused_attention"}
    assert falls["fused_attention"] < 1.0


@pytest.mark.parametrize(
    ("name", "numbers", "kind", "word"),
    [
        ("tpu-v9", {"bf16": 500.0, "fp32": 10.0}, "systolic", "TPU"),
        ("trn3-core", {"bf16": 500.0, "fp32": 10.0}, "array", "NPU"),
        ("gaudi9", {"bf16": 500.0}, "array", "NPU"),
        ("sparc", {"fp32": 10.0}, "vector", "processor"),
        ("npu", {"bf16": 500.0, "fp32": 10.0}, "tensor-core", "NPU"),
    ],
)
def test_a_chip_that_says_no_kind_has_that_of_its_name(
    name: str, numbers: dict[str, float], kind: str, word: str, tmp_path: Path
) -> None:
    """Or that of its units; a chip that says it is the same one."""
    found = chip(tmp_path, numbers | {"bandwidth": 1000.0}, name=name)
    assert (found.chip, found.word) == (kind, word)
    assert found.spread == CHIPS[kind].spread > 0.0
    assert found == chip(tmp_path, numbers | {"bandwidth": 1000.0}, kind, name)


@pytest.mark.parametrize("kind", sorted(CHIPS))
def test_a_host_launches_kernels_where_programs_are_not_compiled_whole(kind: str, tmp_path: Path) -> None:
    """It takes what it takes of an A100; a program that is compiled whole waits for no host, neither a kernel nor a pass."""
    found, a100 = chip(tmp_path, {"fp32": 10.0, "bandwidth": 1000.0}, kind), load_accelerator("a100-80")
    assert isinstance(a100, GraphicsProcessor)
    hosted = [a100.launch_overhead, a100.pass_overhead]
    assert min(hosted) > 0.0
    assert [found.launch_overhead, found.pass_overhead] == [one * CHIPS[kind].hosted for one in hosted]
    assert CHIPS[kind].hosted == (
        kind == "tensor-core"
    )  # GPUs; others run programs that are compiled whole, or have no host


def test_a_spread_is_the_mean_error_of_chips_left_out() -> None:
    """Of TPUs, as their source tells it of each chip in turn."""
    kind = CHIPS["systolic"]
    told = [float(one) / 100.0 for one in re.findall(r"[0-9.]+", kind.source.rpartition(":")[2])]
    assert len(told) == 3
    assert kind.spread == pytest.approx(sum(told) / 3, abs=0.005)


@given(
    peaks=st.tuples(st.floats(1.0, 200.0), st.floats(5.0, 5000.0), st.floats(5.0, 10000.0), st.floats(50.0, 20000.0)),
    more=st.tuples(st.integers(0, 3), st.floats(1.0, 30.0)),
    kind=st.sampled_from(sorted(CHIPS)),
    layer=st.sampled_from(sorted(LAYER_KINDS)),
    sizes=st.tuples(*[st.floats(0.0, 1e10)] * 5),
    fused=st.booleans(),
)
def test_more_of_anything_is_never_slower(
    tmp_path_factory: pytest.TempPathFactory,
    peaks: tuple[float, ...],
    more: tuple[int, float],
    kind: str,
    layer: str,
    sizes: tuple[float, ...],
    fused: bool,
) -> None:
    """Of any layer, pass and precision, however many FLOP and bytes it has, on chips of any kind."""
    folder = tmp_path_factory.mktemp("chips")
    which, times = more
    flop, inputs, outputs, parameters, scratch = sizes
    work = Work(layer, flop, inputs, outputs, int(parameters), scratch_elements=scratch)
    if fused and layer == "attention":
        work = replace(work, fused_pairs=0.5, scratch_elements=0.0, parameters=0)
    seconds = []
    for factor in (1.0, times):
        numbers = [peak * (factor if place == which else 1.0) for place, peak in enumerate(peaks)]
        device = chip(folder, dict(zip((*PRECISIONS, "bandwidth"), numbers, strict=True)), kind)
        seconds.append([device.seconds(work, 2.0, phase, of) for phase in PHASES for of in PRECISIONS])
    for slow, fast in zip(*seconds, strict=True):
        assert fast <= slow * (1.0 + 1e-12)


@pytest.mark.parametrize(
    "numbers", [[(160, 800), (180, 800), (300, 800), (900, 800)], [(200, 1200), (200, 1400), (200, 4000)]]
)
def test_a_plan_on_more_is_never_slower(numbers: list[tuple[float, float]], tmp_path: Path) -> None:
    """GPT of four blocks on two of an unknown chip: the fastest plan takes less on every faster one."""
    seconds, network = [], Gpt(4, 1024, 16).workload()
    for peak, bandwidth in numbers:
        device = chip(tmp_path, {"fp32": 25.0, "bf16": peak, "bandwidth": bandwidth}, name="npu")
        cluster = load_cluster("dgx-a100:1").take(2)
        cluster = replace(cluster, devices=(device,) * 2)
        problem = Problem(network, cluster, 4, precision="bf16", optimizer="adam")
        seconds.append(make_plan("large", problem).iteration_seconds)
    assert all(fast < slow for slow, fast in pairwise(seconds))


@pytest.mark.parametrize(
    ("said", "generation"),
    [("", "ampere"), ("tflops_fp8 = 1979", "hopper"), ("[power]\nidle_w = 1\nfull_w = 2\n", "ampere")],
)
def test_a_chip_with_fp8_is_of_no_generation_without(said: str, generation: str, tmp_path: Path) -> None:
    """A file that is `like` an A100 and names no generation is of Ampere, but where it computes in fp8."""
    path = tmp_path / "one.toml"
    path.write_text(
        'kind = "gpu"\nname = "one"\nmemory_gib = 80\nmemory_bandwidth_gb_per_s = 2400\nlike = "a100-80"\n'
        f"[compute]\ntflops_fp32 = 67\ntflops_bf16 = 989\n{said}\n"
    )
    assert optional_members(load_accelerator(str(path))).generation == generation
    path.write_text('generation = "mine"\n' + path.read_text())
    assert optional_members(load_accelerator(str(path))).generation == "mine"


def limited(folder: Path, power: str) -> GraphicsProcessor:
    """A GPU with such a table of its power."""
    path = folder / "limited.toml"
    path.write_text(
        'kind = "gpu"\nname = "limited"\nmemory_gib = 80\nmemory_bandwidth_gb_per_s = 2400\nlike = "a100-80"\n'
        f"[compute]\ntflops_bf16 = 300\n[power]\n{power}\n"
    )
    device = load_accelerator(str(path))
    assert isinstance(device, GraphicsProcessor)
    return device


@pytest.mark.parametrize(("limit", "clock"), [(600.0, 1.0), (464.5, 0.9), (100 + 500 * 0.87**3, 0.87), (289.225, 0.5)])
def test_a_limit_of_power_slows_products_alone(limit: float, clock: float, tmp_path: Path) -> None:
    """Of 500 W above idle a clock of 0.9 draws 0.9 cubed, and half the clock half of it at 0.87 of the voltage, squared."""
    said = "idle_w = 100\nfull_w = 600\ncompute_w = 250\n"
    free, held = limited(tmp_path, said), limited(tmp_path, f"{said}limit_w = {limit}")
    share = (limit - 100.0) / 500.0
    assert held.power == Power(100.0, limit, compute=pytest.approx(250.0 * share))
    product = Work("linear", flop=1e13, input_elements=1e6, output_elements=1e6, parameters=1e6)
    took = [one.seconds(product, 1.0, "forward", "bf16") for one in (free, held)]
    assert took[1] - took[0] == pytest.approx((1 / clock - 1) * 1e13 / (0.84 * 300e12), rel=1e-3, abs=1e-9)
    moved = Work("activation", flop=1e6, input_elements=1e9, output_elements=1e9, parameters=0.0)
    assert held.seconds(moved, 1.0, "forward", "bf16") == free.seconds(moved, 1.0, "forward", "bf16")


@pytest.mark.parametrize("limit", [100, 601])
def test_a_limit_of_power_is_between_idle_and_full_load(limit: float, tmp_path: Path) -> None:
    """At idle power nothing is computed."""
    rule = re.escape(f"$.power.limit_w = {limit}: must be above idle_w, 100, and at most full_w, 600")
    with pytest.raises(ValueError, match=rule):
        limited(tmp_path, f"idle_w = 100\nfull_w = 600\nlimit_w = {limit}")
