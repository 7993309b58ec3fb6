"""Tests of BaPipe's explorer: partitions by hand, fractions, the rule of thumb, and that no contained method is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hardware_profiles import Cluster, Runs, Stack, load_accelerator, load_cluster
from planners import Evaluator, Request, RuleOfThumb, explore, formula_seconds, make_plan, minimax_cuts
from planners.bapipe import explorer as bapipe
from planners.partitioning.fraction_search import GRAIN, FractionSearch, places_of, streamed_fractions
from planners.partitioning.minimax_cuts import coarse_points, filled_cuts, ideal_stage_seconds
from planners.search.candidates import straight_plan
from planners.testing import line
from simulator import (
    InfeasiblePlanError,
    Layer,
    LayerCosts,
    LayerSplit,
    Plan,
    Problem,
    Score,
    Workload,
    load_workload,
    read_profile,
    stages_from_cuts,
)
from simulator.simulation import simulate
from simulator.workloads.language_models import Llama
from simulator.workloads.synthetic import uniform_chain
from simulator.workloads.transformer import Experts, LatentAttention
from tests.chains import chain as compute_chain
from tests.chains import measured_chain, random_chain
from tests.planners.reasons import applicable_planners
from tests.simulator.strategies import chain_cluster

# ---- balanced partition ----------------------------------------------------------------------------------------------


Table = NDArray[np.float64]


def totals_of(table: Table) -> Table:
    """Prefix sums of a table float64 [stages, layers]."""
    return np.concatenate([np.zeros((len(table), 1)), np.cumsum(table, axis=1)], axis=1)


def slowest(totals: Table, cuts: Sequence[int]) -> float:
    """Seconds of the slowest stage."""
    bounds = (0, *cuts, totals.shape[1] - 1)
    return max(float(totals[stage, end] - totals[stage, begin]) for stage, (begin, end) in enumerate(pairwise(bounds)))


def test_ideal_time_is_the_harmonic_one() -> None:
    """Accelerators that need 6 and 3 s alone need 2 s together: 1 / (1/6 + 1/3)."""
    assert ideal_stage_seconds([6.0, 3.0]) == pytest.approx(2.0)
    assert ideal_stage_seconds([8.0] * 4) == 2.0
    assert ideal_stage_seconds([6.0, 0.0]) == 0.0


@settings(max_examples=30)
@given(
    times=st.lists(st.integers(1, 9), min_size=3, max_size=8),
    speeds=st.lists(st.sampled_from([1024.0, 2048.0, 512.0]), min_size=2, max_size=3),
)
def test_no_other_cuts_have_a_faster_slowest_stage(times: list[int], speeds: list[float]) -> None:
    """On small chains all cuts are tried, with unequal devices too; of equals the earliest; the harmonic time is a bound."""
    totals = totals_of(np.array([[time / speed for time in times] for speed in speeds]))

    def last_first(cuts: tuple[int, ...]) -> list[tuple[float, int]]:
        ends = (*cuts, len(times))
        return [(slowest(totals[: s + 1, : ends[s] + 1], cuts[:s]), cuts[s - 1]) for s in range(len(cuts), 0, -1)]

    every = list(combinations(range(1, len(times)), len(speeds) - 1))
    found = tuple(minimax_cuts(range(len(times) + 1), totals))
    assert found == min(every, key=last_first)
    assert slowest(totals, found) == min(slowest(totals, cuts) for cuts in every)
    assert slowest(totals, found) >= ideal_stage_seconds(totals[:, -1].tolist()) * (1 - 1e-12)


@settings(max_examples=30)
@given(times=st.lists(st.integers(1, 9), min_size=4, max_size=9), stages=st.integers(1, 4))
def test_filling_stages_is_as_good_on_equal_devices(times: list[int], stages: int) -> None:
    """Stage after stage takes what fits: the exact cuts' slowest stage, to the width at which the search stops."""
    totals = totals_of(np.array([times] * stages, dtype=np.float64) / 1024.0)
    cuts = filled_cuts(range(len(times) + 1), stages, lambda s, begin, end: float(totals[s, end] - totals[s, begin]))
    exact = slowest(totals, minimax_cuts(range(len(times) + 1), totals))
    assert slowest(totals, cuts) == pytest.approx(exact, rel=2e-3)


def test_coarse_points_leave_out_slow_cuts_but_enough_to_cut_at() -> None:
    """Cuts of more than 2 s are merged away; where one is not enough for three stages, the quickest two remain."""
    transfers = np.array([0.0, 5.0, 1.0, 4.0, 3.0, 0.0])
    assert coarse_points(transfers, 2, 2.0) == [0, 2, 5]
    assert coarse_points(transfers, 3, 2.0) == [0, 2, 4, 5]
    assert minimax_cuts(coarse_points(transfers, 2, 2.0), totals_of(np.ones((2, 5)))) == [2]
    with pytest.raises(ValueError, match="3 stages need at least 2 places to cut at, got 1"):
        minimax_cuts([0, 2, 5], totals_of(np.ones((3, 5))))


# ---- intra-layer fractions -------------------------------------------------------------------------------------------


def chain(macs: list[float]) -> Workload:
    """Linear layers of 100 outputs, weights as many as multiply-adds."""
    layers = tuple(
        Layer(f"layer{number}", "linear", 2.0 * one, int(one), 100.0, 100.0) for number, one in enumerate(macs)
    )
    return Workload("hand", layers, tuple(pairwise(range(len(layers)))))


def test_boards_that_stream_are_cut_inside_the_layer_between_them() -> None:
    """Three equal layers on two equal boards: half of the second each; on four boards, at three quarters, a half, a quarter."""
    problem = Problem(chain([3e9, 3e9, 3e9]), load_cluster("fpga-vcu118-4"), 64)
    assert streamed_fractions(problem, (0, 1), 64) == [24]
    assert streamed_fractions(problem, (0, 1, 2, 3), 64) == [12, 24, 36]
    with pytest.raises(
        ValueError,
        match=r"device 0 \(v100-sxm2\) does not stream layers; fractions are for FPGAs and analytic layers",
    ):
        streamed_fractions(replace(problem, cluster=load_cluster("pipedream-b").take(4)), (0, 1), 64)


@pytest.mark.parametrize(("macs", "whole"), [([3e9, 5e9, 2e9], 1), ([3e9, 1e9, 9e9], 0), ([8e9, 1e9, 1e9], 2)])
def test_streamed_cuts_are_as_good_as_the_best_of_all_places(macs: list[float], whole: int) -> None:
    """Sixteenths of layers on two equal boards, but for one layer that stays whole: all places are tried."""
    network = chain(macs)
    layers = tuple(replace(one, kind="activation") if n == whole else one for n, one in enumerate(network.layers))
    problem = Problem(replace(network, layers=layers), load_cluster("fpga-vcu118-4"), 64)
    board, works = problem.cluster.devices[0], LayerCosts(problem).works

    def seconds(begin: float, end: float) -> float:
        held = [
            replace(
                work,
                flop=work.flop * part,
                output_elements=work.output_elements * part,
                parameters=work.parameters * part,
            )
            for number, work in enumerate(works)
            if (part := min(end, number + 1.0) - max(begin, float(number))) > 0.0
        ]
        return sum(board.stage_seconds(held, 64, one, problem.precision) for one in ("forward", "backward"))  # type: ignore[attr-defined]

    places = [
        number + part / GRAIN
        for number in range(3)
        for part in range(1, GRAIN + 1)
        if (number != whole or part == GRAIN) and (number, part) != (2, GRAIN)
    ]
    (cut,) = (place / GRAIN for place in streamed_fractions(problem, (0, 1), 64))
    assert cut in places
    best = min(max(seconds(0.0, place), seconds(place, 3.0)) for place in places)
    assert max(seconds(0.0, cut), seconds(cut, 3.0)) <= best * (1 + 1e-3)


def test_the_rule_on_one_device_sends_nothing() -> None:
    """Two micro-batches of a sample, blocking sends: 2 x 3 ms, and no transfer."""
    rule = rule_of(by_hand([0.001], [1.0], 2, bandwidth=1.0, devices=1, communication="send-blocking"), 2)
    assert rule.formula_seconds == pytest.approx(0.006)


def test_measured_layers_do_not_stream() -> None:
    """On a board, too, they take the seconds that were measured."""
    problem = Problem(measured_chain([1.0, 2.0], [2.0, 4.0]), load_cluster("fpga-vcu118-4"), 4)
    with pytest.raises(
        ValueError, match=r"device 0 \(vcu118\) does not stream layers; fractions are for FPGAs and analytic layers"
    ):
        streamed_fractions(problem, (0, 1), 4)


def test_places_are_between_layers_and_inside_those_that_can_be_split() -> None:
    """Sixteenths of products that have a weight for each; others are whole."""
    network = chain([10.0, 40.0, 20.0])
    first, second, third = network.layers
    mixed = replace(network, layers=(replace(first, kind="pooling"), second, replace(third, parameters=15)))
    assert places_of(mixed) == [0, 16, *range(17, 32), 32, 48]
    enough = replace(mixed, layers=(*mixed.layers[:2], replace(third, parameters=16)))
    assert places_of(enough) == [*places_of(mixed)[:-1], *range(33, 49)]


def test_a_pipeline_ends_with_a_layer_that_cannot_be_split() -> None:
    """Cut in the middle of the second layer of three, of which the last is whole."""
    network = chain([10.0, 40.0, 20.0])
    first, second, third = network.layers
    problem = Problem(
        replace(network, layers=(first, second, replace(third, parameters=15))),
        load_cluster("fpga-vcu118-4").take(2),
        64,
    )
    whole = straight_plan("bapipe", problem, "1f1b", (1,), (0, 1), 4)
    plan = FractionSearch(Evaluator(problem), Request()).at(whole, (24,))
    assert [stage.layers for stage in plan.stages] == [(0, 1), (1, 2)]
    assert plan.splits == (LayerSplit(1, 0.5),)


def test_fractions_even_boards_out_and_pay_with_bytes() -> None:
    """Three equal layers on two boards: whole layers leave one board 2 of 3, a split 1.5 of 3, for more bytes on the link."""
    network = compute_chain([6e9] * 3, parameters=[10**5] * 3, output_elements=[1e3] * 3)
    problem = Problem(network, load_cluster("fpga-vcu118-4").take(2), 64)
    candidates = explored(problem, Request(microbatches=64)).candidates
    found = [one.plan for one in candidates if one.balanced or one.plan.splits]
    best = {bool(one.splits): simulate(problem, one) for one in found[::-1] if len(one.stages) == 2}
    assert best[True].iteration_seconds < 0.8 * best[False].iteration_seconds
    assert best[True].bytes_per_sample > best[False].bytes_per_sample
    assert best[True].plan.splits == (LayerSplit(1, 0.5),)


def explorer(problem: Problem, request: Request | None = None) -> bapipe._Explorer:
    """A search that has not begun."""
    return bapipe._Explorer(problem, Evaluator(problem), np.random.default_rng(0), request or Request(), "bapipe")


def explored(problem: Problem, request: Request | None = None) -> bapipe.Exploration:
    """All that the search finds."""
    return explore(problem, Evaluator(problem), np.random.default_rng(0), request)


# ---- schedules and the rule of thumb ---------------------------------------------------------------------------------


def test_formulas_are_the_papers() -> None:
    """N = 4, M = 8, F = 1, B = 2, SR = 0.3."""
    values = {name: formula_seconds(name, 4, 8, 1.0, 2.0, 0.3) for name in ("1f1b-as", "fbp-as", "1f1b-sno", "1f1b-so")}
    assert values == pytest.approx({"1f1b-as": 33.0, "fbp-as": 33.0, "1f1b-sno": 39.0, "1f1b-so": 34.8})


def slow_links(cluster: Cluster, bandwidth: float) -> Cluster:
    """The same devices on links of that many bytes/s."""
    return replace(cluster, links=tuple(replace(link, bandwidth=bandwidth) for link in cluster.links))


def test_streaming_schedules_are_for_boards_that_stream() -> None:
    """FPGA clusters get the AS schedules, GPU clusters the others; a request across is refused."""
    boards = Problem(uniform_chain(8), load_cluster("fpga-vcu118-4"), 8)
    gpus = Problem(uniform_chain(8), load_cluster("pipedream-b").take(4), 8)
    assert applicable_planners(boards, Request(schedule="fbp-as"))["bapipe"] is None
    assert "FPGA" in str(applicable_planners(gpus, Request(schedule="fbp-as"))["bapipe"])
    blocking = replace(gpus, communication="send-blocking")
    assert "overlaps" in str(applicable_planners(blocking, Request(schedule="1f1b-so"))["bapipe"])
    assert make_plan("bapipe", blocking, Request(schedule="1f1b-sno")).plan.schedule == "1f1b-sno"


def handovers(ranges: list[list[int]], stage: int) -> list[list[list[int]]]:
    """Layers of each stage after one has given its first or last 1, 2, 4, ... layers to the stage before or behind it."""
    own, found = ranges[stage], list[list[list[int]]]()
    for size in (size for size in (1, 2, 4, 8) if size < len(own)):
        for side, kept, gone in ((-1, own[size:], own[:size]), (1, own[:-size], own[-size:])):
            if 0 <= stage + side < len(ranges):
                moved = [*ranges]
                moved[stage], moved[stage + side] = kept, sorted([*ranges[stage + side], *gone])
                found.append(moved)
    return found


@pytest.mark.parametrize("layers", [1, 2, 5, 10])
def test_a_stage_hands_over_one_two_four_layers_but_keeps_one(layers: int) -> None:
    """Of every partition into up to three stages, every stage: its ends, to the stage before first."""
    for cuts in (cuts for stages in range(min(layers, 3)) for cuts in combinations(range(1, layers), stages)):
        bounds = [0, *cuts, layers]
        ranges = [list(range(*ends)) for ends in pairwise(bounds)]
        for stage in range(len(ranges)):
            expected = [[one[0] for one in moved[1:]] for moved in handovers(ranges, stage)]
            assert list(bapipe._handovers(bounds, stage)) == expected


@pytest.mark.parametrize("seed", range(6))
def test_the_fullest_stage_hands_layers_over_while_less_memory_is_missing(seed: int) -> None:
    """Ten layers of random bytes on three devices: always the handover that leaves least missing, until none leaves less."""
    rng = np.random.default_rng(seed)
    bytes_of, room = rng.integers(1, 30, 10), float(rng.integers(40, 90))
    problem = by_hand([1.0] * 10, [1.0] * 10, 4, bandwidth=1.0, devices=3)

    def score(ranges: Sequence[Sequence[int]]) -> Score:
        held = [float(bytes_of[list(one)].sum()) for one in ranges]
        return Score(float(len(ranges[0])), max(held), room, int(np.argmax(held)))

    class Weighed(Evaluator):
        def __call__(self, plan: Plan) -> Score:
            return score([stage.layers for stage in plan.stages])

    ranges = [list(range(8)), [8], [9]]
    plan = Plan("bapipe", "1f1b", stages_from_cuts((8, 9), 10, [(0,), (1,), (2,)]), (1,) * 4)
    while not score(ranges).fits:
        best = min(handovers(ranges, score(ranges).device), key=lambda one: score(one).key, default=ranges)
        if score(best).key >= score(ranges).key:
            break
        ranges = best
    search = bapipe._Explorer(problem, Weighed(problem), rng, Request(), "bapipe")
    assert [list(stage.layers) for stage in search._relieved(plan).stages] == ranges
    assert len(ranges[0]) < 8
    fitted = [(one.origin, [list(stage.layers) for stage in one.plan.stages]) for one in search._fitted("cut", plan)]
    assert fitted == [("cut", [list(range(8)), [8], [9]]), ("cut, memory-tuned", ranges)]
    whole = replace(plan, stages=stages_from_cuts((), 10, [(0,)]))
    assert len(list(search._fitted("cut", whole))) == 1
    room = 1e9
    assert len(list(search._fitted("cut", plan))) == 1


def test_orders_of_devices_begin_at_both_ends_where_kinds_differ() -> None:
    """All devices, the fastest, the two fastest kinds and each kind alone; of one kind there is one order."""
    network = compute_chain([1e10] * 6, parameters=[0] * 6)
    for speeds, orders in (
        (
            (1.0, 4.0, 2.0, 4.0),
            {
                "": (0, 1, 2, 3),
                ", reversed": (3, 2, 1, 0),
                ", 2 GPUs": (1, 3),
                ", 2 GPUs, reversed": (3, 1),
                ", 3 GPUs": (1, 2, 3),
                ", 3 GPUs, reversed": (3, 2, 1),
                ", 1 GPU": (0,),
                ", 1 GPU, reversed": (0,),
            },
        ),
        ((1.0, 1.0), {"": (0, 1)}),
    ):
        problem = Problem(network, line(speeds=speeds), 8)
        search = explorer(problem)
        assert dict(search._orders()) == orders
        limited = explorer(problem, Request(stages=2))
        assert all(len(order) <= 2 for _, order in limited._orders())


@pytest.mark.parametrize(
    ("batch", "count", "cuts"), [(7, 2, None), (8, 2, None), (6, 2, [1]), (5, 2, [1]), (4, 1, None)]
)
def test_slow_transfers_are_cut_elsewhere(batch: int, count: int, cuts: list[int] | None) -> None:
    """Four layers of 1 s on two devices, nine elements behind the second: n samples take 4 + n s to send and 2 n s to compute.

    A transfer may take as long as the forward of a stage, as it does from four samples on; a cut of one element is quicker.
    """
    problem = by_hand([1.0] * 4, [1.0, 9.0, 1.0, 1.0], batch, bandwidth=36.0, latency=4.0)
    search = explorer(problem)
    assert search.cuts((0, 1), count, "inter-layer") == [2]
    assert search.cuts((0, 1), count, "coarse-grained") == cuts
    assert search.cuts((0,), count, "coarse-grained") is None
    assert search.forward_seconds((0, 1), 3) == pytest.approx(6.0)
    assert search.transfer_seconds((0, 1), 3).tolist() == pytest.approx(
        [4.0, 4.0 + 1.0 / 3.0, 7.0, 4.0 + 1.0 / 3.0, 4.0]
    )
    assert search.transfer_seconds((0,), 3).tolist() == [0.0] * 5


@pytest.mark.parametrize("forward", [1.0, 2.0, 2.5])
@pytest.mark.parametrize("spare", [0.0, -1.0])
def test_the_rule_for_boards_needs_a_slow_link_and_room(
    forward: float, spare: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transfer of 2 s: forwards beside backwards where it takes longer than a forward and twice the features fit."""
    problem = by_hand([1.0, 1.0], [1.0, 1.0], 16, bandwidth=1e12, memory_bytes=124.0 + spare)
    search = explorer(problem)
    monkeypatch.setattr(bapipe, "streams", lambda problem: True)
    held = [np.array([0]), np.array([1])]
    expected = "1f1b-as", "memory is tight"
    if spare == 0.0:
        expected = "1f1b-as", "the link keeps up with a/F"
        if forward < 2.0:
            expected = "fbp-as", "bandwidth is tight: a/F exceeds the link"
    assert search._by_rule(held, (0, 1), 2, 8, forward, 2.0) == expected


def test_the_rules_plan_is_confirmed_where_it_fits() -> None:
    """Its seconds are the reference's; a plan that does not fit is handed back all the same, without."""
    for memory_bytes, fits in ((1e12, True), (10.0, False)):
        problem = by_hand([1.0, 1.0], [1.0, 1.0], 4, bandwidth=1e12, memory_bytes=memory_bytes)
        evaluate = Evaluator(problem)
        rule = explorer(problem).rule_of_thumb()
        reference = evaluate.on_reference(rule.candidate.plan)
        assert rule.candidate.confirmed_seconds == (reference.iteration_seconds if fits else None)
        assert rule.candidate.score.fits == fits


def test_disagreements_are_worth_a_line_from_one_percent_on() -> None:
    """The seconds are the confirmed ones where there are any; a plan that does not fit is worth a line, too."""
    plan = Plan("bapipe", "1f1b", stages_from_cuts((1,), 2, [(0,), (1,)]), (1,) * 4)
    best = bapipe.Candidate("inter-layer", replace(plan, schedule="gpipe"), Score(5.0, 1.0, 1.0, 0), 100.0)
    assert (best.seconds, replace(best, confirmed_seconds=None).seconds) == (100.0, 5.0)

    def line_of(score: Score, confirmed: float | None) -> str:
        rule = bapipe.RuleOfThumb("1f1b", "reason", 1.0, bapipe.Candidate("rule of thumb", plan, score, confirmed))
        return bapipe.Exploration(best, (best,), rule).disagreement

    assert line_of(Score(100.9, 1.0, 1.0, 0), None) == line_of(Score(500.0, 1.0, 1.0, 0), 99.0) == ""
    assert line_of(Score(1.0, 1.0, 1.0, 0), 125.0) == (
        "rule: 1f1b (reason), 125 s; simulation: gpipe straight, inter-layer, 100 s (the rule's plan takes 25 % longer)"
    )
    assert line_of(Score(1.0, 2.0, 1.0, 0), None) == (
        "rule: 1f1b (reason); simulation: it does not fit, best is gpipe straight, inter-layer"
    )


def test_forwards_beside_backwards_are_chosen_where_bandwidth_is_tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that carry a feature in between F and F+B: the rule and the simulation both take FBP-AS."""
    monkeypatch.setattr(bapipe, "GRID", 200)
    cluster = slow_links(load_cluster("fpga-vcu118-4").take(3), 1e7)
    workload = chain([2e9] * 3)
    workload = replace(
        workload, layers=tuple(replace(layer, output_elements=50_000.0, parameters=10**6) for layer in workload.layers)
    )
    problem = Problem(workload, cluster, 12)
    found = explored(problem, Request(microbatches=12))
    assert found.rule.schedule == "fbp-as"
    assert found.best.plan.schedule == "fbp-as"
    assert found.disagreement == ""


# F = 1 and B = 2 seconds per sample and unit of flop; 4 bytes an element.
def by_hand(
    flop: Sequence[float], outputs: Sequence[float], batch: int, *, bandwidth: float, latency: float = 0.0, **more: Any
) -> Problem:
    """A chain on as many devices as layers less one, at least two; a layer has 5 weights and keeps 2 elements per sample."""
    layers = tuple(
        Layer(f"layer{n}", "linear", one, 5, elements, 2.0)
        for n, (one, elements) in enumerate(zip(flop, outputs, strict=True))
    )
    workload = Workload("hand", layers, tuple(pairwise(range(len(layers)))))
    memory = more.pop("memory_bytes", 1e12)
    cluster = chain_cluster(more.pop("devices", 2), bandwidth=bandwidth, latency=latency, memory_bytes=memory)
    return Problem(workload, cluster, batch, contention=False, **more)


def rule_of(problem: Problem, microbatches: int | None = None) -> RuleOfThumb:
    return explored(problem, Request(microbatches=microbatches)).rule


def test_the_rules_seconds_are_the_tables_by_hand() -> None:
    """Four layers of 1 s on two devices, 7 samples in 2 micro-batches of at most 4: F = 8, B = 16, and 3 elements of 4 bytes for
    4 samples at 24 bytes/s make SR = 2: (2+2-1)(8+16) + 2·2·(2-1) = 76."""
    rule = rule_of(by_hand([1.0] * 4, [3.0] * 4, 7, bandwidth=24.0), 2)
    assert (rule.schedule, rule.reason) == ("1f1b-so", "2(N-i+1)·a fits")
    assert rule.formula_seconds == pytest.approx(76.0)
    assert [stage.layers for stage in rule.candidate.plan.stages] == [(0, 1), (2, 3)]


def test_the_rule_takes_the_slowest_stage_and_the_slowest_cut() -> None:
    """Layers of 2, 1, 1 s on three devices: F = 2, B = 4 are the first one's; of cuts of 1 and 5 elements at 10 bytes/s SR = 2 is
    the second one's: (2+3-1)(2+4) + 2·2·(3-1) = 32."""
    rule = rule_of(by_hand([2.0, 1.0, 1.0], [1.0, 5.0, 1.0], 2, bandwidth=10.0, devices=3), 2)
    assert rule.formula_seconds == pytest.approx(32.0)


@pytest.mark.parametrize(
    ("latency", "microbatches", "seconds"), [(0.5, 4, 19.0), (2.0, 2, 26.0), (3.0, 1, 30.0), (5.0, 1, 34.0)]
)
def test_the_rule_takes_the_number_of_microbatches_with_the_least_formula(
    latency: float, microbatches: int, seconds: float
) -> None:
    """Two layers, two devices, 4 samples, sends that block, SR = latency: (M+1)·12/M + 2·SR·M is 24 + 2·SR, 18 + 4·SR and
    15 + 8·SR for M = 1, 2, 4; of equals the fewest."""
    rule = rule_of(by_hand([1.0, 1.0], [1.0, 1.0], 4, bandwidth=1e12, latency=latency, communication="send-blocking"))
    assert (rule.schedule, rule.reason) == ("1f1b-sno", "transfers do not overlap")
    assert rule.formula_seconds == pytest.approx(seconds)
    assert len(rule.candidate.plan.microbatches) == microbatches


@pytest.mark.parametrize(
    ("spare", "schedule", "reason"),
    [(0.0, "1f1b-so", "2(N-i+1)·a fits"), (-1.0, "1f1b-sno", "2(N-i+1)·a does not fit")],
)
def test_the_rule_doubles_what_the_first_stage_keeps(spare: float, schedule: str, reason: str) -> None:
    """Two layers of 5 weights on two devices, SGD: 5 x (2 x 4 + 4) = 60 bytes, and of 8 micro-batches of 2 samples the first
    stage keeps 2 x 2, the second 2 x 1, of 2 elements: 60 + 4·2·8 = 124 bytes; a byte less is too little for the first alone."""
    assert Problem(load_workload("alexnet"), load_cluster("pipedream-b").take(2), 8).optimizer_bytes == 4.0
    problem = by_hand([1.0, 1.0], [1.0, 1.0], 16, bandwidth=1e12, memory_bytes=124.0 + spare)
    search = explorer(problem, Request(microbatches=8))
    assert search.rule_of_thumb().schedule == schedule
    assert search.rule_of_thumb().reason == reason


def test_what_is_kept_is_never_more_than_there_is() -> None:
    """With one micro-batch of 2 samples, two of them cannot be kept: 60 + 1·2·8 = 76 bytes are enough."""
    problem = by_hand([1.0, 1.0], [1.0, 1.0], 2, bandwidth=1e12, memory_bytes=76.0)
    search = explorer(problem, Request(microbatches=1))
    assert search.rule_of_thumb().schedule == "1f1b-so"


def test_stages_and_transfers_are_weighed_together() -> None:
    """Layers of 3, 1, 3, 1 s: the even cut (4, 4) has 100 elements behind it, the one before it 1: a stage of 5 s is faster than
    a transfer of 40 s."""
    problem = by_hand([3.0, 1.0, 3.0, 1.0], [1.0, 100.0, 100.0, 1.0], 8, bandwidth=10.0)
    search = explorer(problem)
    assert search.cuts((0, 1), 8, "inter-layer") == [2]
    found = explored(problem, Request(microbatches=8))
    assert [stage.layers[0] for stage in found.best.plan.stages] in ([0, 1], [0])
    assert {one.origin for one in found.candidates} >= {*bapipe.PARTITIONS}


def test_the_first_four_and_the_other_methods_are_replayed() -> None:
    """Of all that fit the four with the least seconds, and uniform layers, PipeDream's plan and data parallelism besides."""
    network = random_chain(5, np.random.default_rng(3), flop=2e9)
    problem = Problem(network, load_cluster("pipedream-b").take(3), 20)
    found = explored(problem).candidates
    ranked = sorted(found, key=lambda one: one.score.iteration_seconds)
    others = ("uniform layers", "PipeDream's synchronous plan", "data parallelism")
    assert ranked[3].score.iteration_seconds < ranked[4].score.iteration_seconds
    assert [one.confirmed_seconds is not None for one in ranked] == [
        place < 4 or one.origin in others for place, one in enumerate(ranked)
    ]
    assert any(one.confirmed_seconds is None for one in ranked)


@pytest.mark.parametrize(("parameters", "notations"), [(10**9, ["3-1"]), (0, [])])
def test_partitions_of_pipedream_are_tried_where_they_are_pipelines(parameters: int, notations: list[str]) -> None:
    """Heavy weights in the last of four layers stand alone, 3-1; without weights all is replicated, which is no pipeline."""
    network = compute_chain([1e10] * 4, parameters=[0, 0, 0, parameters], output_elements=[1e4] * 4)
    problem = Problem(network, load_cluster("pipedream-a").take(4), 16)
    search = explorer(problem)
    found = search._partitions_of_pipedream(())
    assert ["-".join(str(len(stage.devices)) for stage in stages) for stages in found] == notations


def test_layers_move_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two boards, heavy weights in the later layers: the balanced cut does not fit, the memory-tuned one does."""
    monkeypatch.setattr(bapipe, "GRID", 200)
    macs = [4e9, 1e9, 1e9, 1e9, 1e9]
    layers = tuple(
        Layer(f"layer{n}", "linear", 2.0 * one, 10 if n == 0 else 30_000_000, 100.0, 100.0)
        for n, one in enumerate(macs)
    )
    workload = Workload("heavy", layers, tuple(pairwise(range(5))))
    board = replace(load_accelerator("vcu118"), ddr_bytes=1e9)  # type: ignore[type-var]
    cluster = replace(load_cluster("fpga-vcu118-4").take(2), devices=(board, board))
    problem = Problem(workload, cluster, 8)
    found = explored(problem, Request(schedule="1f1b-as"))
    assert any("memory-tuned" in one.origin for one in found.candidates)
    assert simulate(problem, found.best.plan).fits


# ---- never slower than what it contains ------------------------------------------------------------------------------

WORKLOADS = (
    *("alexnet", "vgg16", "vgg19", "resnet50", "resnet101", "gnmt8", "gnmt16", "bert-base", "bert-large", "gpt-14"),
    *("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-175b", "megatron-1.7b", "opt-350m", "llama2-7b"),
)
PROFILES = ("alexnet", "vgg16", "resnet50", "gnmt", "gnmt_large")
CLUSTERS = ("pipedream-b/2", "pipedream-a/8", "fpga-mixed-4/3", "fpga-vcu118-4/2")


def never_slower(workload: Workload, cluster: str) -> None:
    name, devices = cluster.split("/")
    problem = Problem(workload, load_cluster(name).take(int(devices)), 8)
    request = Request(microbatches=None if len(workload) < 40 else 4)
    reasons = applicable_planners(problem, request)
    try:
        best = make_plan("bapipe", problem, request).outcome
    except InfeasiblePlanError:
        best = None
    compared = 0
    for other in ("uniform", "pipedream-flush", "data-parallel"):
        if reasons[other] is not None:
            continue
        try:
            outcome = make_plan(other, problem, request).outcome
        except InfeasiblePlanError:
            continue
        if outcome.fits:
            assert best is not None, f"{other} fits"
            assert best.fits
            assert best.iteration_seconds <= outcome.iteration_seconds, other
            compared += 1
    if not compared:
        pytest.skip(f"no other method has a plan of {workload.name} that fits {cluster}: nothing to compare with")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cluster"), [*product(WORKLOADS, [*CLUSTERS, "dgx-a100/16"])][::3])
def test_never_slower_on_any_workload(name: str, cluster: str) -> None:
    """On SimPy the plan is at least as fast as uniform GPipe, PipeDream's partition run synchronously and data parallelism.

    Of all pairs every third: each workload on one cluster or two.
    """
    never_slower(load_workload(name), cluster)


def test_never_slower_on_a_network_with_experts() -> None:
    """Latent attention and experts beside a shared one: blocks that part and meet (published ones fit no cluster here)."""
    latent, experts = LatentAttention(32, 16, 16, 8, 16), Experts(4, 2, 64, shared=64, dense=(0,))
    model = Llama(2, 64, 4, 128, 1000, intermediate=128, latent=latent, experts=experts, name="experts")
    never_slower(model.workload(), "pipedream-b/2")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", PROFILES)
def test_never_slower_on_any_profile(name: str, cluster: str, shared_data: Path) -> None:
    """The same on the bundled measured profiles."""
    never_slower(read_profile(shared_data / "pipedream_profiles" / f"{name}.txt"), cluster)


@pytest.mark.parametrize(("batch", "devices", "share"), [(5, 4, 2), (8, 4, 2), (3, 4, 1), (9, 2, 5)])
def test_pipedreams_partition_is_that_of_a_devices_largest_share(
    batch: int, devices: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of a mini-batch divided among the devices."""
    problem, shares = by_hand([1.0] * 4, [1.0] * 4, batch, bandwidth=1.0, devices=devices), list[int]()
    table_of = bapipe.problem_table

    def watched(problem: Problem, evaluate: Evaluator, minibatch: int) -> Any:
        shares.append(minibatch)
        return table_of(problem, evaluate, minibatch)

    monkeypatch.setattr(bapipe, "problem_table", watched)
    search = explorer(problem)
    found = search._partitions_of_pipedream(())
    assert shares == [share]
    assert all(len(stages) > 1 for stages in found)


def test_schedules_are_those_that_the_stack_runs() -> None:
    """Where it runs any of BaPipe's."""
    problem = Problem(uniform_chain(6), line(), 8)
    for runs, names in ((("1f1b", "gpipe"), ("1f1b",)), (("gpipe",), ("1f1b-so", "1f1b"))):
        stack = Stack(name="some", runs=Runs(schedules=runs))
        assert bapipe.schedules(replace(problem, stack=stack), Request()) == names
