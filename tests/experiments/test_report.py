"""Reports of plans: efficiency by hand, what limits plans made for each limit, and the command's documents."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeplan as pp
import planners
import simulator
from experiments.cli import main
from experiments.commands import plan_command
from experiments.compare.efficiency import efficiency, used_parameters
from experiments.report import pareto as pareto_search
from experiments.report.limits import Limit, limit_sentence, limits
from experiments.report.pareto import GIB, Pareto, UnbeatenPlan, _counted, in_less_memory, pareto
from experiments.terminal import output
from hardware_profiles import GENERIC, GraphicsProcessor, Power, load_cluster, load_stack, percent
from planners import Request, plan_over_stacks
from simulator import (
    TIME_PARTS,
    Layer,
    LayerSplit,
    Outcome,
    Plan,
    PlanFile,
    Problem,
    Score,
    Stage,
    Workload,
    equal_microbatches,
    load_workload,
    simulate,
    stages_from_cuts,
    workload_from_spec,
)
from tests.chains import chain
from tests.drawings import drawing
from tests.experiments.commands import ended
from tests.layout import assert_readable
from tests.records import Recorded, weights
from tests.simulator.strategies import UnitDevice, star_cluster
from tests.simulator.test_groups import CHAIN, CLUSTER, PAIRS
from tests.simulator.test_time_split import network

# ---- efficiency ------------------------------------------------------------------------------------------------------

TOKENS, BATCH = 10, 4
BLOCK = Workload(
    "block",
    (
        Layer("linear", "linear", 2.0 * 100 * TOKENS, 100, 10.0, 10.0, block=1),
        Layer("attention", "attention", 400.0, 0, 10.0, 30.0, causal_tokens=TOKENS, block=1),
    ),
    ((0, 1),),
    tokens=TOKENS,
)
"""100 weights that 10 tokens go through, and 400 FLOP of scores."""


def on_gpus(workload: Workload, count: int = 2, used: int = 1, **options: Any) -> Outcome:
    """A network on the first of some GPUs of 1 and 3 GFLOP/s, in one stage."""
    devices = tuple(GraphicsProcessor(f"gpu{n}", 1e9, 1e9, {"fp32": (1 + 2 * n) * 1e9}) for n in range(count))
    cluster = replace(star_cluster(count), devices=devices, prices=(1.0, 3.0)[:count])
    stage = Stage(tuple(range(len(workload))), tuple(range(used)))
    return simulate(Problem(workload, cluster, BATCH, **options), Plan("hand", "gpipe", (stage,), (BATCH,)))


def test_parts_of_a_shared_layer_run_again_as_the_whole() -> None:
    """Two boards share a layer, and keep what enters them alone: each forward runs twice."""
    problem = Problem(workload_from_spec("vgg16"), load_cluster("fpga-vcu118-4"), 4)
    stages = Stage(tuple(range(33)), (0,)), Stage(tuple(range(32, 40)), (1,))
    plan = Plan("hand", "gpipe", stages, (4,), recompute=("whole",) * 2, splits=(LayerSplit(32, 0.25),))
    found = efficiency(simulate(problem, plan))
    assert found.hardware_flop == pytest.approx(found.model_flop * 4 / 3)


def test_model_flop_are_three_times_the_forward() -> None:
    """2,400 FLOP per sample: 2,000 of products and 400 of scores, of which the causal mask hides half; 6 N counts products
    alone. The peak is that of both GPUs, though one is unused.
    """
    found = efficiency(on_gpus(BLOCK))
    assert found.model_flop == found.hardware_flop == 3 * 2400 * BATCH
    assert found.causal_flop == 3 * 2200 * BATCH
    assert found.parameter_flop == 6 * 100 * TOKENS * BATCH == 3 * 2000 * BATCH
    assert found.peak_flops == 4e9
    assert found.share_of_peak(found.model_flop) == 3 * 2400 * BATCH / (4e9 * found.seconds)


@pytest.mark.parametrize(("recompute", "again"), [("none", 0), ("attention", 400), ("blocks", 2400), ("whole", 2400)])
def test_hardware_flop_count_what_runs_again(recompute: Any, again: float) -> None:
    """The forward FLOP of attention layers, of blocks, of all; where there are none, nothing is said of them."""
    outcome = on_gpus(BLOCK, recompute=recompute)
    found = efficiency(outcome)
    assert found.hardware_flop - found.model_flop == again * BATCH
    assert any("HFU" in line for line in pp.report(outcome).remarks()) == bool(again)


def test_tokens_hours_and_cost() -> None:
    """40 tokens an iteration of T seconds on two devices: 10^12 take 10^12 T / 40 seconds of the cluster, twice as many of
    devices, and each hour costs 1 and 3; of what has no tokens samples count.
    """
    outcome = on_gpus(BLOCK)
    found = efficiency(outcome)
    hours = 1e12 * outcome.iteration_seconds / (TOKENS * BATCH) / 3600
    assert found.units_per_device == pytest.approx(TOKENS * BATCH / outcome.iteration_seconds / 2)
    assert found.device_hours == pytest.approx(2 * hours)
    assert found.cost == pytest.approx((1.0 + 3.0) * hours)
    assert efficiency(outcome, 0.5).cost == pytest.approx((0.5 + 0.5) * hours)
    assert efficiency(outcome, {"gpu0": 0.0, "gpu1": 2.0}).cost == pytest.approx(2.0 * hours)
    images = efficiency(on_gpus(replace(BLOCK, tokens=0)))
    assert images.unit == "samples"
    assert images.device_hours == pytest.approx(found.device_hours * TOKENS / 1000)
    assert images.units_per_device == pytest.approx(found.units_per_device / TOKENS)
    assert images.parameter_flop == 0.0
    for one, tokens in ((found, TOKENS), (images, 0)):
        told = one.record()
        assert (told["tokens_per_sample"], told["unit"]) == (tokens or None, "tokens" if tokens else "samples")
        assert told["samples_per_second_per_device"] == pytest.approx(BATCH / outcome.iteration_seconds / 2)
        assert told["tokens_per_second_per_device"] == (one.units_per_device if tokens else None)
        assert (told["amount"], told["devices"]) == (10**12 if tokens else 10**9, 2)
        assert (told["price_per_hour"], told["cost"]) == (one.price, one.cost)


def test_records_of_what_is_known(recorded: Recorded) -> None:
    """Of tokens and of images that run again, with prices and without, and of what has no FLOP."""
    images = replace(BLOCK, tokens=0)
    layers = tuple(replace(layer, flop=0.0, measured=((4.0, 1.0, 2.0),)) for layer in BLOCK.layers)
    recorded(
        tokens=efficiency(on_gpus(BLOCK, recompute="whole")).record(),
        images=efficiency(on_gpus(images), 0.5).record(),
        measured=efficiency(on_gpus(replace(BLOCK, layers=layers, bytes_per_element=4))).record(),
    )


def test_of_routed_experts_those_that_a_token_uses_count() -> None:
    """Two of eight experts of 50 weights; Mixtral's 12.9 of 46.7 thousand million."""
    experts = Layer("experts", "linear", 2.0 * 2 * 50 * TOKENS, 8 * 50, 10.0, 10.0, experts=8)
    assert used_parameters(replace(BLOCK, layers=(BLOCK.layers[0], experts))) == 100 + 2 * 50
    assert used_parameters(load_workload("mixtral-8x7b")) == pytest.approx(12.9e9, rel=0.01)


def test_what_is_not_known_is_no_figure() -> None:
    """Devices without a peak, profiles without FLOP, clusters without prices."""
    unknown = efficiency(
        simulate(Problem(BLOCK, star_cluster(1), 4), Plan("hand", "gpipe", (Stage((0, 1), (0,)),), (4,)))
    )
    assert (unknown.peak_flops, unknown.cost, unknown.record()["mfu"]) == (0.0, None, None)
    assert [unknown.record()[name] for name in ("peak_flops", "currency", "hfu", "mfu_causal")] == [None] * 4
    layers = tuple(replace(layer, flop=0.0, measured=((4.0, 1.0, 2.0),)) for layer in BLOCK.layers)
    measured = on_gpus(replace(BLOCK, layers=layers, bytes_per_element=4))
    assert efficiency(measured).record()["mfu"] is None
    assert any(line.startswith("no MFU: workload 'block' tells") for line in pp.report(measured).remarks())
    whole = on_gpus(BLOCK)
    devices = whole.problem.cluster.devices[0], UnitDevice()
    mixed = replace(whole.problem, cluster=replace(whole.problem.cluster, devices=devices))
    assert "no MFU: unit states no peak FLOP/s at fp32" in pp.report(simulate(mixed, whole.plan)).remarks()


@pytest.mark.parametrize(
    ("kind", "flop", "words"),
    [
        ("attention", 2e3, ", scores of attention whole, of"),
        ("convolution", 5e2, "MFU 33.3 % (3 × forward FLOP, of"),
        ("convolution", 1e5, "; more than the peak, as fast convolutions (Winograd) need fewer FLOP than are counted"),
        ("linear", 1e5, "MFU 6666.7 % (3 × forward FLOP, of"),
    ],
)
def test_utilisation_says_what_it_counts(kind: Any, flop: float, words: str) -> None:
    """Layers of a profile, four samples in 18 us on a GPU of 1 GFLOP/s; scores and Winograd where there are such layers."""
    measured = Layer("layer", kind, flop, 0, 10.0, 10.0, measured=((4.0, 6e-6, 12e-6),))
    workload = Workload("profile", (measured,), (), bytes_per_element=4)
    (told,) = (line for line in pp.report(on_gpus(workload, count=1)).remarks() if line.startswith("MFU "))
    assert words in told
    assert ("Winograd" in told, "attention" in told) == ("Winograd" in words, kind == "attention")


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf, {"gpu0": 1.0}, {"gpu0": 1.0, "gpu1": 1.0, "gpu2": 1.0}])
def test_prices_are_of_every_accelerator_and_finite(price: Any) -> None:
    """One line, which starts with the word."""
    with pytest.raises(ValueError, match=r"^price: [^\n]*$"):
        efficiency(on_gpus(BLOCK), price)


@pytest.mark.parametrize(("price", "got"), [({}, "got none"), (10**7, "got 10000000"), (2e6, "got 2e+06")])
def test_a_price_that_is_refused_is_told(price: Any, got: str) -> None:
    """As it was given."""
    with pytest.raises(ValueError, match=f"{re.escape(got)}$"):
        efficiency(on_gpus(BLOCK), price)


# ---- limits ----------------------------------------------------------------------------------------------------------


def found_limits(outcome: Outcome, **replayed: Any) -> tuple[Limit, ...]:
    return limits(outcome, outcome.time_split(), **{"replayed": {}, **replayed})


def two_stages(bandwidth: float = 1e15, work: tuple[float, float] = (1.0, 1.0), microbatches: int = 2) -> Outcome:
    """GPipe on two devices: forwards of 1 s per sample times `work`, backwards of twice that; 16 bytes over the boundary."""
    chain = network(2)
    layers = tuple(replace(layer, flop=flop) for layer, flop in zip(chain.layers, work, strict=True))
    problem = Problem(replace(chain, layers=layers), star_cluster(2, bandwidth=bandwidth), microbatches)
    stages = Stage((0,), (0,)), Stage((1,), (1,))
    return simulate(problem, Plan("hand", "1f1b", stages, equal_microbatches(microbatches, microbatches)))


def one_stage(parameters: int, bandwidth: float, **options: Any) -> Outcome:
    """Two layers on two replicas."""
    problem = Problem(network(2, parameters), star_cluster(2, bandwidth=bandwidth), 4, **options)
    return simulate(problem, Plan("hand", "gpipe", (Stage((0, 1), (0, 1)),), (4,)))


def grouped() -> Outcome:
    """Four layers on one group of two."""
    plan = Plan("hand", "gpipe", (Stage((0, 1, 2, 3), (0, 1), (2,)),), (2,))
    return simulate(Problem(CHAIN, CLUSTER, 2), plan)


def recomputed(memory_bytes: float = 100.0) -> Outcome:
    """Four micro-batches of three layers on one device, which holds what one of them keeps, not what all do."""
    cluster = replace(star_cluster(1), devices=(UnitDevice(memory_bytes=memory_bytes),))
    chain = network(3)
    problem = Problem(chain, cluster, 4, recompute="whole")
    return simulate(problem, Plan("hand", "gpipe", (Stage((0, 1, 2), (0,)),), (1, 1, 1, 1)))


def tiny_batch() -> Outcome:
    """A sample of AlexNet, 61 million weights, on one V100 with Adam."""
    problem = Problem(load_workload("alexnet"), load_cluster("pipedream-b").take(1), 1, optimizer="adam")
    return simulate(problem, Plan("hand", "gpipe", (Stage(tuple(range(len(problem.workload))), (0,)),), (1,)))


LIMITED: dict[str, Callable[[], Outcome]] = {
    "transfers": lambda: two_stages(bandwidth=1.0),
    "the bubble": two_stages,
    "unequal stages": lambda: two_stages(work=(1.0, 9.0), microbatches=32),
    "gradient sync": lambda: one_stage(7_000_000, 7e6),
    "tensor-parallel communication": grouped,
    "optimizer": tiny_batch,
    "memory": lambda: recomputed(52.0),
    "recomputation": recomputed,
    "computation": lambda: one_stage(0, 1e9),
}
"""Plans that are each made for one limit."""


@pytest.mark.parametrize("name", LIMITED)
def test_the_largest_saving_is_the_limit(name: str, recorded: Recorded) -> None:
    """Its sentence names it, and its seconds are the least; what could be free stands in their order; all that is printed."""
    told = pp.report(LIMITED[name]())
    recorded(printed=told.summary().splitlines())
    assert told.limit.removeprefix("limited by ").removeprefix("the ").startswith(name.removeprefix("the "))
    assert [one.seconds for one in told.limits] == sorted(one.seconds for one in told.limits)
    assert told.remarks()[-1] == f"L{told.limit[1:]}."


def test_seconds_of_what_is_free_by_hand() -> None:
    """Two micro-batches on two stages take 9 s, of which each device works 6. With nine times as much work in stage 1, 32
    micro-batches take 1 + 32 · 27 + 2 s, of which stage 1 waits 3, and stage 0, which works 96, waits 771.
    """
    assert {one.name: one.seconds for one in found_limits(two_stages())} == {"the bubble": pytest.approx(6.0)}
    uneven = found_limits(two_stages(work=(1.0, 9.0), microbatches=32))
    seconds = {"unequal stages": 867 - (771 - 3) / 2, "the bubble": 864.0}
    assert {one.name: one.seconds for one in uneven} == pytest.approx(seconds)


def test_stages_are_uneven_by_the_mean_of_all_devices() -> None:
    """A group of two that waits counts twice."""
    stages = Stage((0, 1), (0,)), Stage((2, 3), (2, 3), (2,))
    outcome = simulate(Problem(CHAIN, CLUSTER, 2), replace(PAIRS, stages=stages))
    bubble = outcome.time_split().seconds[:, TIME_PARTS.index("bubble")].tolist()
    (uneven,) = (one for one in found_limits(outcome) if one.name == "unequal stages")
    saved = (bubble[0] + 2 * bubble[1]) / 3 - min(bubble)
    assert uneven.seconds == pytest.approx(outcome.iteration_seconds - saved)
    assert bubble[0] != bubble[1]


@pytest.mark.parametrize(("share", "name"), [(0.04, "computation"), (0.06, "transfers")])
def test_what_saves_little_is_no_limit(share: float, name: str) -> None:
    """Below a twentieth of the iteration computation limits it."""
    outcome = two_stages()
    limit = Limit("transfers", (1 - share) * outcome.iteration_seconds, "with")
    assert limit_sentence(outcome, outcome.time_split(), (limit,), None).startswith(f"limited by {name}")


def test_memory_limits_where_a_faster_plan_does_not_fit() -> None:
    """The fastest plan replayed that does not fit; one that fits, is slower, or needs more than twice the memory is none."""
    outcome = two_stages()
    others = [replace(outcome.plan, schedule=name) for name in ("a", "b", "c", "d", "e")]
    needs = (8.0, 1.5), (7.0, 2), (5.0, 1), (6.0, 2.1), (99.0, 1.1)
    scores = [Score(seconds, need * 2.0**30, 2.0**30, 1) for seconds, need in needs]
    found = found_limits(outcome, replayed=dict(zip(others, scores, strict=True)))
    free = outcome.memory[1].capacity_bytes - outcome.memory[1].peak_bytes
    room = f", of whose memory {free / 2**30:.3g} GiB are free,"
    how = f"with 1 GiB more on device 1{room} and another plan (b, straight, 2 micro-batches)"
    assert [one for one in found if "memory" in one.name] == [Limit("the memory of another plan", 7.0, how)]


def test_recomputation_that_memory_does_not_ask_for() -> None:
    """Where all four keep what they compute, 12 s of 48 go, by whatever else they are limited."""
    assert found_limits(recomputed(1000.0)) == (Limit("recomputation", 36.0, "without recomputation, which fits,"),)


def test_memory_that_recomputation_saves() -> None:
    """Four micro-batches of three layers that keep 16 bytes each: 4 · 48 of a capacity of 100, in 4 · 9 s; half of it is free."""
    (memory,) = found_limits(recomputed())
    assert (memory.name, memory.seconds) == ("recomputation of whole stages", 36.0)
    (row,) = pp.report(recomputed()).memory_rows()
    assert (row["stages"], row["recompute"], row["devices"], row["workspace"]) == ([0], ["whole"], [0], 48.0)
    assert row["capacity_bytes"] - row["peak_bytes"] == 52.0
    free = f", of whose memory {52 / 2**30:.3g} GiB are free,"
    assert memory.how == f"without recomputation, which needs {92 / 2**30:.3g} GiB more on device 0{free}"


def test_recomputation_that_takes_no_time_is_no_limit() -> None:
    """Of a stage without FLOP; nor is that of an order with ops of its own for it, which has no plan without them."""
    problem = Problem(two_stages(work=(0.0, 1.0)).problem.workload, star_cluster(2, bandwidth=1e15), 2)
    plan = Plan("hand", "1f1b", (Stage((0,), (0,)), Stage((1,), (1,))), (1, 1), recompute=("whole", "none"))
    assert not [one for one in found_limits(simulate(problem, plan)) if "recompute" in one.how]
    own = replace(plan, recompute=("none", "whole"), schedule="", order=("0F0 0F1 0B0 0B1", "1F0 1A0 1B0 1F1 1A1 1B1"))
    assert not [one for one in found_limits(simulate(problem, own)) if "recomputation" in one.name]
    within = replace(own, order=("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"))
    assert "recomputation" in [one.name for one in found_limits(simulate(problem, within))]


def test_devices_that_lack_memory_are_told_and_no_others() -> None:
    """Of two like stages that run again what three micro-batches keep, the second device alone has room for all of it."""
    devices = UnitDevice(memory_bytes=70.0), UnitDevice(memory_bytes=1000.0)
    problem = Problem(network(4), replace(star_cluster(2, bandwidth=1e15), devices=devices), 3, recompute="whole")
    stages = Stage((0, 1), (0,)), Stage((2, 3), (1,))
    outcome = simulate(problem, Plan("hand", "gpipe", stages, (1, 1, 1)))
    kept = simulate(problem, replace(outcome.plan, recompute=("none",) * 2)).memory
    more = kept[0].peak_bytes - 70.0
    assert more > 0 > kept[1].peak_bytes - 1000.0
    (memory,) = (one for one in found_limits(outcome) if "recomputation" in one.how)
    assert memory.how.startswith(f"without recomputation, which needs {more / 2**30:.3g} GiB more on device 0")


def test_memory_is_the_limit_where_little_of_it_is_free() -> None:
    """The same plan where the device has the 48 bytes that it holds at the peak, and 4 more."""
    outcome = recomputed(52.0)
    (memory,) = found_limits(outcome)
    assert (memory.name, memory.seconds) == ("memory", 36.0)
    assert memory.how == f"without recomputation, which needs {140 / 2**30:.3g} GiB more on device 0,"


def test_what_least_memory_more_would_buy_is_told() -> None:
    """Four stages of GPT-2 medium that run whole blocks again: attention alone lacks less memory than nothing does."""
    problem = pp.Problem("gpt2-medium", "dgx-1-v100", 64, devices=4, recompute="blocks")
    outcome = pp.plan(problem, "uniform", microbatches=4, schedule="1f1b").outcome
    (memory,) = (one for one in found_limits(outcome) if one.name.startswith("recomputation"))
    kept = {
        word: simulate(problem, replace(outcome.plan, recompute=(word,) * 4, recomputed_blocks=()))
        for word in ("none", "attention")
    }
    more = {word: max(one.peak_bytes - one.capacity_bytes for one in found.memory) for word, found in kept.items()}
    assert 0.0 < more["attention"] < more["none"]
    free = min(one.capacity_bytes - one.peak_bytes for one in outcome.memory)
    assert memory.seconds == kept["none"].iteration_seconds
    assert memory.how == (
        f"without recomputation, which needs {more['none'] / 2**30:.3g} GiB more on GPUs 0-3, of whose memory "
        f"{free / 2**30:.3g} GiB are free ({more['attention'] / 2**30:.3g} GiB: attention, "
        f"{kept['attention'].iteration_seconds:.4g} s),"
    )


QUESTION = ("--workload", "chain:6", "--cluster", "pipedream-a", "--devices", "2", "--batch", "8")


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    printed = capsys.readouterr()
    return printed.err if code == 2 else printed.out


# ---- time, memory and devices ----------------------------------------------------------------------------------------


def point(devices: int, seconds: float, gib: float, notation: str = "2-2", joules: float | None = None) -> UnbeatenPlan:
    errors = 0.9 * seconds, 1.2 * seconds, gib * GIB, 0.9 * gib * GIB, 1.1 * gib * GIB
    return UnbeatenPlan(devices, seconds, *errors, "1f1b", notation, 8, 1, "none", 3600.0, None, joules, "generic")


def test_a_plan_beats_what_is_no_better_in_anything() -> None:
    """Fewer devices, less memory or less time, and no more of the others; not itself, nor its equal."""
    one = point(8, 2.0, 4.0)
    assert one.beats(point(16, 2.0, 4.0))
    assert one.beats(point(8, 2.5, 5.0))
    assert not one.beats(point(8, 2.0, 4.0))
    assert not one.beats(point(8, 1.0, 8.0))
    assert not one.beats(point(4, 9.0, 4.0))


def test_a_plan_of_less_energy_is_not_beaten() -> None:
    """Of two that are slower on as much one draws fewer joules; the table tells joules where they are known."""
    fast, lean, poor = point(8, 2.0, 4.0, joules=9.0), point(8, 3.0, 4.0, joules=5.0), point(8, 3.0, 4.0, joules=9.0)
    assert not fast.beats(lean)
    assert not lean.beats(fast)
    assert fast.beats(poor)
    assert lean.beats(poor)
    problem = pp.Problem("chain:4", "pipedream-a", 4)
    told = [Pareto(problem, "joint", (one,), {}, 1).tables()[0] for one in (lean, point(8, 2.0, 4.0))]
    assert ["J per sample" in one.headings for one in told] == [True, False]


def test_searches_go_on_in_less_memory_until_nothing_fits() -> None:
    """On one and on two devices: first the fastest plan, then slower ones with more micro-batches, in less memory."""
    workload = chain([1e9] * 4, output_elements=[1e6] * 4, parameters=[1000] * 4)
    problem = pp.Problem(workload, "pipedream-a", 4, devices=2)
    heard: list[int] = []
    found = pareto(problem, "uniform", (2, 1), Request(schedule="1f1b"), progress=lambda done, text: heard.append(done))
    assert heard == list(range(found.searches))
    for count in (1, 2):
        asked = pp.Problem(workload, "pipedream-a", 4, devices=count)
        fastest = pp.plan(asked, "uniform", schedule="1f1b", stages=count).outcome
        own = [one for one in found.points if one.devices == count]
        assert [one.peak_bytes for one in own] == sorted((one.peak_bytes for one in own), reverse=True)
        assert own[0].seconds == fastest.iteration_seconds
    assert not any(one.beats(other) for one in found.points for other in found.points)
    assert [(one.devices, one.microbatches) for one in found.points] == [(1, 1), (1, 2), (1, 4), (2, 2), (2, 4)]


def test_an_interrupt_keeps_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second search is stopped: the plan of the first is there, and that the searches ended early."""
    searches: list[int] = []

    def stopped(*asked: Any, **named: Any) -> Any:
        searches.append(1)
        if len(searches) > 1:
            raise KeyboardInterrupt
        return plan_over_stacks(*asked, **named)

    monkeypatch.setattr(pareto_search, "plan_over_stacks", stopped)
    found = pareto(pp.Problem("chain:6", "pipedream-a", 4, devices=1), "data-parallel", (1,), Request(microbatches=2))
    assert (len(found.points), found.searches, found.interrupted) == (1, 2, True)
    assert "INTERRUPTED" in found.tables()[0].title
    assert found.remarks()[0].startswith("interrupted: ")
    monkeypatch.setattr(pareto_search, "plan_over_stacks", plan_over_stacks)
    monkeypatch.setattr(pareto_search, "in_less_memory", raise_interrupt)  # between two searches
    found = pareto(pp.Problem("chain:6", "pipedream-a", 4, devices=1), "data-parallel", (1,), Request(microbatches=2))
    assert (len(found.points), found.interrupted) == (1, True)


@pytest.mark.parametrize("objective", ["time", "energy"])
def test_a_search_that_is_cut_short_ends_those_behind_it(monkeypatch: pytest.MonkeyPatch, objective: str) -> None:
    """What it has found counts; of more devices nothing is asked, nor by energy where it was one by seconds."""
    asked: list[tuple[int, str]] = []

    def early(planner: Any, problem: Problem, stacks: Any, request: Request, **named: Any) -> Any:
        asked.append((len(problem.cluster.devices), request.objective))
        found = plan_over_stacks(planner, problem, stacks, request, **named)
        return replace(found, interrupted=request.objective == objective)

    monkeypatch.setattr(pareto_search, "plan_over_stacks", early)
    problem = pp.Problem("chain:6", "dgx-h100:1", 4, devices=2)
    found = pareto(problem, "data-parallel", (2, 1), Request(microbatches=2))
    assert (found.interrupted, found.searches, {one.devices for one in found.points}) == (True, len(asked), {1})
    assert [one for one in asked if one[1] == objective] == asked[-1:] == [(1, objective)]


def test_what_does_not_fit_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a search in less memory, which is then the last one, and of that for the fewest joules, slower and smaller as it is."""
    asked: list[str] = []

    def large(planner: Any, problem: Problem, stacks: Any, request: Request, **named: Any) -> Any:
        asked.append(request.objective)
        found = plan_over_stacks(planner, problem, stacks, request, **named)
        if asked == ["time"]:
            return found
        less = in_less_memory(found.problem, 0.1 * found.outcome.fullest.peak_bytes)
        assert less is not None
        return replace(found, outcome=simulate(less, replace(found.plan, microbatches=(1,) * 4)))

    monkeypatch.setattr(pareto_search, "plan_over_stacks", large)
    workload = chain([1e9] * 4, output_elements=[1e7] * 4, parameters=[1000] * 4)
    found = pareto(pp.Problem(workload, "dgx-h100:1", 4, devices=1), "uniform", (1,), Request(schedule="1f1b"))
    assert (asked, [one.microbatches for one in found.points], found.refusals) == (["time", "time", "energy"], [1], {})


def test_memory_that_cannot_be_lowered_is_searched_once() -> None:
    """That of boards; and once for the fewest joules."""
    board = pp.Problem("chain:6", "fpga-vcu118-4", 4)
    found = pareto(board, "data-parallel", (2, 1), Request(microbatches=2))
    assert found.searches == 2 * (1 + found.power_is_known)


def test_an_interrupted_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Exit code 130; what is found is printed, and no figure is drawn."""
    monkeypatch.setattr(pareto_search, "in_less_memory", raise_interrupt)
    figure = tmp_path / "front.svg"
    asked = ("plan", *QUESTION, "--planner", "uniform", "--pareto", "1,2", "--figure", str(figure))
    code, out, err = ended(capsys, asked)
    assert (code, "INTERRUPTED" in out, figure.exists()) == (130, True, False)
    assert "pipeplan plan: no figure is drawn after an interrupt" in err


def raise_interrupt(*asked: Any) -> Any:
    """A user's Ctrl-C."""
    raise KeyboardInterrupt


def test_what_has_no_plan_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A planner that does not apply, by number of devices; exit code 3 where nothing has one."""
    figure = tmp_path / "front.svg"
    asked = ("plan", *QUESTION, "--planner", "large", "--pareto", "1,2", "--figure", str(figure))
    text = said(capsys, *asked, code=3)
    assert not figure.exists()
    assert "1 GPU: planner 'large' does not apply" in text
    assert "2 GPUs: planner 'large' does not apply" in text


def test_boards_have_the_memory_that_they_have() -> None:
    """Their memory is no number of its own that could be lowered; that of GPUs is, where it is more."""
    lowered = in_less_memory(pp.Problem("chain:6", "pipedream-a", 4), 2.0**30)
    assert lowered is not None
    assert {device.memory_bytes for device in lowered.cluster.devices} == {2.0**30}
    assert in_less_memory(pp.Problem("chain:6", "fpga-vcu118-4", 4), 2.0**30) is None
    old = load_stack("megatron-deepspeed")
    asked = pp.Problem("gpt2", "dgx-a100:1", 8, stack=old)
    assert in_less_memory(asked, 2.0**30) is None
    stacks = [old, GENERIC]  # of which the first leaves nothing of what a later search may fill
    found = pareto(replace(asked, stack=GENERIC), "data-parallel", [1], Request(), stacks=stacks)
    assert min(one.peak_bytes for one in found.points) < 6 * 2.0**30
    small = pp.Problem("chain:6", "dgx-a100:1", 8, stack=GENERIC)  # which fills no more than the stack itself
    alone = pareto(small, "data-parallel", [1], Request(), stacks=[old])
    assert ({one.stack for one in alone.points}, alone.searches) == ({old.name}, 2)
    boards = pp.Problem("chain:6", "fpga-vcu118-4", 4)
    assert pareto(boards, "data-parallel", [1], Request()).searches == 1 + (boards.cluster.devices[0].power is not None)


def test_plans_that_none_beats_can_be_read(recorded: Recorded) -> None:
    """A line for each number of devices, notation below each plan, the capacity as a line, a legend; the table says the same, of
    tokens or samples."""
    points = point(4, 9.0, 12.0), point(4, 12.0, 3.0, "t4"), point(8, 4.0, 14.0, "8x2t4"), point(8, 6.0, 7.0)
    found = Pareto(pp.Problem("chain:6", "pipedream-a", 8), "large", points, {16: "does not apply"}, 5)
    figure = found.plot()
    assert_readable(figure)
    priced = replace(
        found, problem=pp.Problem("gpt2", "dgx-a100", 8), points=(replace(points[0], cost=12345.6, stack="x"),)
    )
    for currency, heading in (("", "USD"), ("EUR", "EUR")):
        cluster = replace(found.problem.cluster, currency=currency)
        told = replace(priced, problem=replace(found.problem, cluster=cluster)).tables()[0]
        assert (told.headings[9], told.rows[0][9]) == (heading, "12,346")
    recorded(figure=drawing(figure), printed=[one.summary().splitlines() for one in (found, priced)])


def test_plans_by_energy_can_be_read(recorded: Recorded) -> None:
    """A panel beside it where all joules are known: every plan, a line through those that none beats in seconds and joules."""
    points = point(4, 9.0, 12.0, joules=5.0), point(4, 12.0, 3.0, joules=7.0), point(8, 4.0, 14.0, joules=6.0)
    found = Pareto(pp.Problem("chain:6", "pipedream-a", 8), "large", points, {}, 5)
    assert found.unbeaten_in_energy == (points[2], points[0])
    figure = found.plot()
    assert_readable(figure)
    memory, energy = figure.axes
    front, four, eight = (line.get_xydata().tolist() for line in energy.lines)
    assert front == [[6.0, 4.0], [5.0, 9.0]]
    assert (four, eight) == ([[5.0, 9.0], [7.0, 12.0]], [[6.0, 4.0]])
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == ["4 GPUs", "8 GPUs"]
    assert (memory.get_ylim(), energy.get_xlabel()) == (energy.get_ylim(), "joules per sample")
    assert min(text.get_window_extent().x0 for text in energy.texts) > energy.get_window_extent().x0
    assert len(replace(found, points=(*points, point(2, 20.0, 1.0))).plot().axes) == 1
    recorded(figure=weights(drawing(figure)))


def test_the_fewest_joules_are_searched_for_too() -> None:
    """On devices whose power is known: one more search for each number of them."""
    devices = pp.Problem("chain:6", "pipedream-a", 4, devices=2).cluster
    powered = tuple(
        replace(one, name=name, power=Power(100.0, 300.0))  # type: ignore[type-var]
        for name, one in zip("ab", devices.devices, strict=True)
    )
    problem = pp.Problem("chain:6", replace(devices, devices=powered), 4)
    found = pareto(problem, "data-parallel", (1, 2), Request(), price={"a": 3.0, "b": 5.0})
    means = {1: 3.0, 2: (3.0 + 5.0) / 2}
    assert [one.cost for one in found.points] == [
        pytest.approx(means[one.devices] * one.device_hours) for one in found.points
    ]
    plain = pareto(pp.Problem("chain:6", devices, 4), "data-parallel", (1, 2), Request())
    assert found.searches == plain.searches + 2
    assert found.power_is_known
    assert not plain.power_is_known
    assert [one.remarks()[-1].endswith(", or for the fewest joules") for one in (found, plain)] == [True, False]
    least = pp.plan(problem, "data-parallel", objective="energy").outcome.energy
    assert least is not None
    assert min(one.joules_per_sample or 0.0 for one in found.points) == least.joules_per_sample


def test_stages_that_are_alike_are_counted() -> None:
    """Of more than two, where all are: of three pairs of replicas, not of two."""
    problem = pp.Problem("chain:6", "pipedream-b", 12, devices=6)
    for count, notation in ((2, "2-2"), (3, "3x2")):
        request = Request(schedule="1f1b", stages=count, microbatches=6)
        assert pareto(problem, "pipeline-data", (2 * count,), request).points[0].notation == notation
    assert _counted("2-1-2") == "2-1-2"


def test_the_command_prints_the_document_and_saves_the_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One document; the figure is the file that is named; on stderr is where the searches are."""
    saved: list[str] = []
    monkeypatch.setattr(simulator, "save", lambda figure, stem: saved.append(stem))
    monkeypatch.setattr(output, "EVERY", 0.0)
    words = ("plan", *QUESTION, "--planner", "uniform", "--schedule", "gpipe", "--pareto", "1", "--price", "3")
    assert main([*words, "--json", "--figure", "front.png"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert printed.err.startswith("planning with uniform ")
    assert {one["devices"] for one in document["plans"]} == {1}
    assert all(one["cost"] == pytest.approx(3 * one["device_hours"]) for one in document["plans"])
    assert saved == [Path("front.png")]


def test_report_of_a_search_and_of_its_file_are_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One document each, whose time sums to the iteration on every device; of a file runner-ups change one thing of its plan."""
    monkeypatch.chdir(tmp_path)
    words = ("plan", *QUESTION, "--planner", "greedy", "--report", "--price", "2", "--json", "--out", "plan.json")
    planned = json.loads(said(capsys, *words))
    replayed = json.loads(said(capsys, "simulate", "--plan", "plan.json", "--report", "--price", "2", "--json"))
    for document in (planned, replayed):
        seconds = document["iteration_seconds"]
        assert sum(document["report"]["time"]["mean"].values()) == pytest.approx(seconds)
        for row in document["report"]["time"]["devices"]:
            assert sum(row[name] for name in TIME_PARTS) == pytest.approx(seconds)
    assert [row["decision"] for row in planned["report"]["runner_ups"]][:1] == ["schedule"]
    assert all(row["loses"] >= 0 for row in planned["report"]["runner_ups"])
    beside = replayed["report"].pop("runner_ups")
    assert [row["decision"] for row in beside] == ["schedule", "micro-batches", "recomputation", "layers of stages"]
    assert replayed["report"] == {name: value for name, value in planned["report"].items() if name != "runner_ups"}
    for row in planned["report"]["memory"]:
        assert sum(row["activations_by_part"].values()) == pytest.approx(row["activations"])
    assert planned["report"]["efficiency"]["cost"] > 0


def test_the_tables_say_what_the_document_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Memory, time, what could be free and runner-ups as tables; efficiency and the limit as sentences."""
    text = said(capsys, "plan", *QUESTION, "--planner", "greedy", "--report")
    for words in (
        "Memory at the peak, GiB",
        "Activations at the peak by part, GiB",
        "Seconds per iteration",
        "If it were free",
        "Runner-ups",
        "MFU ",
        "samples/s per GPU",
    ):
        assert words in text
    assert "--price, or price_per_device_hour in the cluster's file" in text
    assert any(line.startswith("Limited by ") for line in text.splitlines())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("plan", *QUESTION, "--price", "2"), "--price goes with --report"),
        (("plan", *QUESTION, "--figure", "a.png"), "--figure goes with --pareto"),
        (("plan", *QUESTION, "--runner-ups"), "--runner-ups goes with --report"),
        (("simulate", "--plan", "a.json", "--report", "--noise", "0.1"), "--noise does not go with --report"),
        (("simulate", "--plan", "a.json", "--report", "--engine", "recurrence"), "does not go with --report"),
        (("plan", *QUESTION, "--pareto", "1,3"), "devices 3: cluster pipedream-a has 2 devices"),
        (("plan", *QUESTION, "--pareto", "1", "--out", "a.json"), "--out is of one plan, --pareto searches several"),
        (("plan", *QUESTION, "--report", "--price", "-1"), "must be from 0 to 1e+06 per device and hour, got -1"),
        (("plan", *QUESTION, "--report", "--price", "1e308"), "got 1e+308"),
        (
            ("plan", *QUESTION, "--report", "--price", "a100=1"),
            "needs one number, or one for each of v100-pcie; got a100",
        ),
        (
            ("simulate", "--schedule", "1f1b", "--stages", "2", "--microbatches", "2", "--report"),
            "--report goes with --plan",
        ),
    ],
)
def test_what_a_report_cannot_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], complaint: str
) -> None:
    """One line, exit code 2, before anything is planned."""
    monkeypatch.setattr(plan_command.planners, "plan_by", lambda *asked, **options: pytest.fail("it plans"))
    told = said(capsys, *words, code=2).strip()
    assert complaint in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("x", "'x' must be a number, or NAME=NUMBER,…"), ("a=1,a=2", "'a=1,a=2' names an accelerator twice")],
)
def test_what_is_no_price(capsys: pytest.CaptureFixture[str], text: str, complaint: str) -> None:
    """Refused before anything is planned."""
    with pytest.raises(SystemExit, match="2"):
        main(["plan", *QUESTION, "--report", "--price", text])
    assert complaint in capsys.readouterr().err


def test_an_interrupted_report_leaves_the_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it is made: the document without a report, which says so, and exit code 130."""

    def stopped(*asked: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan_command, "explained", stopped)
    words = ("plan", *QUESTION, "--planner", "data-parallel", "--microbatches", "1", "--report", "--json")
    document = json.loads(said(capsys, *words, code=130))
    assert document["interrupted"]
    assert "report" not in document


def test_what_searches_beside_the_search_find_is_the_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A faster runner-up is written in place of the answer; an interrupt leaves this, and of an interrupted search nothing
    further is asked."""
    path = tmp_path / "plan.json"
    search = ("--planner", "uniform", "--schedule", "gpipe", "--runner-ups", "--report", "--out", str(path), "--json")

    def asked(code: int) -> tuple[Any, Plan, str]:
        found, out, err = ended(capsys, ("plan", *QUESTION, *search))
        assert found == code
        return json.loads(out), PlanFile.read_plan(path)[1], err

    def stopped(*given: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    document, own, _ = asked(0)
    found = plan_over_stacks("uniform", PlanFile.read_plan(path)[0], (), Request(schedule="1f1b"))
    monkeypatch.setattr(planners, "search_nearby", lambda *given, **named: found)
    document, plan, _ = asked(0)
    assert (document["schedule"], plan) == ("1f1b", found.plan)
    monkeypatch.setattr(planners, "search_nearby", stopped)
    document, plan, err = asked(130)
    assert (document["interrupted"], document["schedule"], plan) == (True, "gpipe", own)
    assert err == "pipeplan plan: no report is made after an interrupt\n"
    assert "report" not in document
    monkeypatch.setattr(planners, "plan_by", lambda *given, **named: replace(found, interrupted=True))
    monkeypatch.setattr(planners, "search_nearby", lambda *given, **named: pytest.fail("asked"))
    document, plan, again = asked(130)
    assert (document["interrupted"], plan, again) == (True, found.plan, err)


def test_an_unsteady_stream_is_said_beside_a_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, as the document has seconds alone; a table says it itself."""
    monkeypatch.setattr(Outcome, "warning", "no steady state")
    words = ("plan", *QUESTION, "--planner", "data-parallel", "--microbatches", "1")
    assert ended(capsys, (*words, "--json"))[::2] == (0, "warning: no steady state\n")
    code, out, err = ended(capsys, words)
    assert (code, "no steady state" in out, err) == (0, True, "")


def test_searches_beside_the_search_find_runner_ups(capsys: pytest.CaptureFixture[str]) -> None:
    """Of planner uniform, which replays every number of micro-batches of one schedule and as many stages as devices."""
    words = ("plan", *QUESTION, "--planner", "uniform", "--schedule", "gpipe", "--report", "--json")
    alone, beside = (json.loads(said(capsys, *words, *more))["report"] for more in ((), ("--runner-ups",)))
    found = [{one["decision"] for one in told["runner_ups"]} for told in (alone, beside)]
    assert "micro-batches" in found[0]
    assert found[1] - found[0] == {"stages"}


def test_plans_without_runner_ups_say_so() -> None:
    """Nothing can be changed alone of one layer in an order of its own."""
    problem = pp.Problem("chain:1", "pipedream-a", 2, devices=1)
    plan = Plan("hand", "", (Stage((0,), (0,)),), (1, 1), order=("0F0 0B0 0F1 0B1",))
    assert (
        "no runner-ups: no plan is known that fits and makes another choice"
        in pp.report(simulate(problem, plan)).remarks()
    )


def test_runner_ups_that_are_faster_are_named() -> None:
    """Of a plan by hand whose first stage has nearly all layers: one of them on the other stage."""
    problem = pp.Problem("chain:6", "pipedream-a", 8, devices=2)
    stages = stages_from_cuts([5], 6, [(0,), (1,)])
    outcome = simulate(problem, Plan("hand", "1f1b", stages, (2,) * 4))
    better = simulate(problem, replace(outcome.plan, stages=stages_from_cuts([4], 6, [(0,), (1,)])))
    (line,) = (one for one in pp.report(outcome).remarks() if one.startswith("faster by replay than this plan: "))
    assert (
        f"layers of stages 4, 2 ({percent(better.iteration_seconds / outcome.iteration_seconds - 1.0, '+.2f')})" in line
    )


def test_runner_ups_without_a_replay_are_told_as_such() -> None:
    """A plan of twice the seconds is told apart, one of as many is not; what has no replay has no peak and is none that is
    faster."""
    found = pp.report(two_stages())
    seconds = found.outcome.iteration_seconds
    others = tuple(planners.RunnerUp("schedule", "1f1b", f"{times} times", times * seconds) for times in (1, 1e3, 0.5))
    told = replace(found, runner_ups=others)
    rows = told.tables()[-1].rows
    assert [row[4:6] for row in rows] == [("no", ""), ("yes", ""), ("no", "")]
    assert not any(line.startswith(("faster by replay", "no runner-ups")) for line in told.remarks())


def test_a_board_s_peak_is_that_of_its_multipliers() -> None:
    """6,840 DSPs at 0.2 multiply-adds and 200 MHz, of four boards: the chain's FLOP over what they could do."""
    plan = Plan("hand", "gpipe", (Stage(tuple(range(6)), (0,)),), (4,))
    told = pp.report(simulate(pp.Problem("chain:6", "fpga-vcu118-4", 4), plan))
    problem = told.outcome.problem
    share = 12 * problem.workload.flop() / (4 * 2 * 6840 * 0.2 * 200e6 * told.outcome.iteration_seconds)
    assert told.record()["efficiency"]["mfu"] == pytest.approx(share)
