"""The shared partition search: exact over all cuts, with transfers, memory, unlike devices and alternating passes."""

import math
from bisect import bisect_left
from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import load_cluster
from planners import PartitionCosts, fastest_cuts, straight_costs
from planners.partitioning import fastest_cuts as fastest
from planners.partitioning import partition_costs as costing
from planners.partitioning.cut_moves import relocated
from planners.partitioning.partition_costs import makespans
from simulator import (
    LayerCosts,
    Plan,
    Problem,
    equal_microbatches,
    load_workload,
    simulate,
    stages_from_cuts,
)


@st.composite
def partition_costs(draw: st.DrawFn) -> PartitionCosts:
    """Any tables of small whole seconds or microseconds, with stages and cuts that must not be, and often memory."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    passes, kinds, layers = (int(rng.integers(*ends)) for ends in ((1, 3), (1, 3), (1, 8)))
    stages = int(rng.integers(1, layers + 1))

    unit = float(rng.choice([1.0, 2.0**-20]))

    def seconds(most: int, *shape: int) -> np.ndarray:
        values = rng.integers(0, most, shape) * unit
        values[rng.random(shape) < 0.05] = math.inf
        return values

    return PartitionCosts(
        stage_seconds=seconds(9, passes, kinds, layers + 1, layers + 1),
        kind=tuple(rng.integers(0, kinds, stages).tolist()),
        link_seconds=seconds(7, passes, stages - 1, layers + 1),
        latency_seconds=seconds(4, stages - 1, layers + 1),
        furthest=rng.integers(layers // 2, layers + 1, (stages, layers + 1)) if rng.random() < 0.5 else None,
    )


def _slowest_step(costs: PartitionCosts, cuts: tuple[int, ...]) -> float:
    """Seconds of the slowest stage of a partition, all passes and its link from the stage before included."""
    bounds = [0, *cuts, costs.layers]
    return max(
        sum(
            float(costs.stage_seconds[p, kind, bounds[stage], bounds[stage + 1]])
            + (float(costs.link_seconds[p, stage - 1, bounds[stage]]) if stage else 0.0)
            for p in range(len(costs.stage_seconds))
        )
        for stage, kind in enumerate(costs.kind)
    )


def test_one_micro_batch_needs_no_front() -> None:
    """500 layers, 16 stages, free links: sums differ by rounding only, in 10^28 ways; the stages are balanced all the same.

    A front of those sums has more labels than can be held.
    """
    seconds = np.random.default_rng(0).uniform(0.5, 1.5, 500)
    before = np.concatenate([[0.0], seconds.cumsum()])
    table = np.maximum(before[None, :] - before[:, None], 0.0)[None, None]
    costs = PartitionCosts(table, (0,) * 16, np.zeros((1, 15, 501)), np.zeros((15, 501)))
    [(total, cuts)] = fastest_cuts(costs, 1)
    assert total == pytest.approx(seconds.sum())
    assert np.diff(before[[0, *cuts, 500]]).max() <= seconds.sum() / 16 + seconds.max()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(partition_costs(), st.integers(1, 20), st.sampled_from([0.0, 0.3]))
def test_the_fastest_cuts_are_those_of_all(costs: PartitionCosts, microbatches: int, slack: float) -> None:
    """The least seconds of every choice of cuts, and within the slack every trade of sum against bottleneck."""
    every = [
        (costs.seconds(cuts, microbatches), cuts) for cuts in combinations(range(1, costs.layers), len(costs.kind) - 1)
    ]
    found = fastest_cuts(costs, microbatches, slack=slack)
    assert [value for value, _ in found] == [costs.seconds(cuts, microbatches) for _, cuts in found]
    best = min(value for value, _ in every)
    if best == math.inf:
        assert (found, fastest.least_seconds(costs, microbatches)) == ([], math.inf)
        return
    assert fastest.least_seconds(costs, microbatches) <= best
    assert found[0][0] == best == min(found)[0]
    if microbatches == 1:
        slowest = [_slowest_step(costs, cuts) for value, cuts in every if value == best]
        assert len(found) == 1
        assert _slowest_step(costs, found[0][1]) == min(slowest)
        return
    # with one micro-batch only the sum counts, with very many only the slowest: whatever partition is within the slack,
    # one that is handed back is nowhere worse
    for value, cuts in every:
        if value <= best * (1 + slack):
            assert any(
                all(costs.seconds(other, count) <= costs.seconds(cuts, count) for count in (1, 10**6))
                for _, other in found
            )


@pytest.mark.parametrize("passes", [1, 2])
def test_a_front_that_is_cut_in_bands_is_whole(monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
    """Stages of unlike speeds trade sum against slowest; with room for few partial partitions the answer is that of all cuts.

    The partitions that are handed back are those that no other beats in the sum and in the slowest of each pass.
    """
    rng, layers = np.random.default_rng(passes), 10
    seconds = rng.uniform(0.1, 1.0, (passes, layers))
    before = np.concatenate([np.zeros((passes, 1)), seconds.cumsum(axis=1)], axis=1)
    table = np.maximum(before[:, None, None, :] - before[:, None, :, None], 0.0) * np.array([1.0, 3.0])[:, None, None]
    costs = PartitionCosts(table, (0, 1, 0), rng.uniform(0.0, 0.5, (passes, 2, 11)), rng.uniform(0.0, 0.1, (2, 11)))
    monkeypatch.setattr(fastest, "LABELS_AN_END", 0.4)
    bands, narrowed = [], fastest._narrowed

    def counted(*given: Any) -> Any:
        bands.append(given)
        return narrowed(*given)

    monkeypatch.setattr(fastest, "_narrowed", counted)
    found = fastest_cuts(costs, 3, slack=0.2)
    assert len(bands) > 2
    every = np.array(list(combinations(range(1, layers), 2)))
    total = makespans(costs, every, 3)
    once = makespans(costs, every, 1)
    slowest = np.array(
        [
            [
                max(
                    *(table[p, costs.kind[s], b[s], b[s + 1]] for s in range(3)),
                    *(costs.link_seconds[p, s, b[s + 1]] for s in range(2)),
                )
                for p in range(passes)
            ]
            for b in ([0, *cuts, layers] for cuts in every.tolist())
        ]
    )
    objectives = np.column_stack([once, slowest])
    nowhere_worse = (objectives[:, None] <= objectives[None]).all(axis=2) & (
        objectives[:, None] < objectives[None]
    ).any(2)
    kept = ~nowhere_worse.any(axis=0) & (total <= total.min() * (1.0 + 0.2))
    assert {cuts for _, cuts in found} == {tuple(cuts) for cuts in every[kept].tolist()}
    assert [value for value, _ in found] == pytest.approx(sorted(total[kept]))


@pytest.mark.parametrize(
    ("limit", "seconds", "kept"),
    [(12.0, 1.0, [[2.0, 5.0], [11.0, 1.0]]), (11.0, 1.0, [[2.0, 5.0]]), (6.0, 1.0, []), (math.inf, math.inf, [])],
)
def test_partial_partitions_that_must_end_above_the_limit_are_not_kept(
    limit: float, seconds: float, kept: list[list[float]]
) -> None:
    """Sums of 1 and 10 s with slowest stages of 5 and 1 s: a stage of 1 s more makes 2 + 5 and 11 + 1 s, the least to come."""
    table = np.full((1, 1, 3, 3), seconds)
    tables = fastest.Tables(
        table, np.zeros(2, dtype=np.int64), np.zeros((1, 1, 3)), np.zeros((1, 3)), np.full((2, 3), 2)
    )
    ahead = fastest.Ahead(np.array([math.inf, math.inf, 0.0]), np.zeros((1, 3)), 1.0, limit)
    state, place = np.array([[1.0, 5.0], [10.0, 1.0]]), np.array([[1, 0], [1, 0]])
    found, _, complete = fastest._extended(tables, 1, state, place, ahead, 10)
    assert complete
    assert found.tolist() == kept


def small_tables(rng: np.random.Generator, passes: int, stages: int, layers: int) -> fastest.Tables:
    """Whole seconds; a stage that begins later reaches no less far, and at least one layer."""
    places = layers + 1
    furthest = np.maximum.accumulate(rng.integers(1, 4, (stages, places)) + np.arange(places), axis=1)
    return fastest.Tables(
        rng.integers(1, 9, (passes, 2, places, places)).astype(float),
        rng.integers(0, 2, stages),
        rng.integers(0, 9, (passes, stages - 1, places)).astype(float),
        rng.integers(0, 4, (stages - 1, places)).astype(float),
        np.minimum(furthest, layers),
    )


def figures(tables: fastest.Tables, first: int, bounds: tuple[int, ...]) -> tuple[float, list[float]]:
    """Sum, and slowest of each pass, of stages from `first` on, each with the link before it; infinite beyond their reach."""
    passes, steps = len(tables.stage_seconds), list(enumerate(pairwise(bounds), first))
    if any(end > tables.furthest[stage, begin] for stage, (begin, end) in steps):
        return math.inf, [math.inf] * passes
    busy = [[tables.stage_seconds[p, tables.kind[s], b, e] for s, (b, e) in steps] for p in range(passes)]
    sent = [[tables.link_seconds[p, s - 1, b] for s, (b, _) in steps if s] for p in range(passes)]
    latency = sum(tables.latency_seconds[s - 1, b] for s, (b, _) in steps if s)
    slowest = [float(max(both, default=0.0)) for both in map(list.__add__, busy, sent)]
    return float(sum(map(sum, (*busy, *sent))) + latency), slowest


@pytest.mark.parametrize("seed", range(12))
def test_completions_are_the_best_of_all(seed: int) -> None:
    """Of every stage and first layer that the stages before can leave: least sum, and least slowest of each pass, of all ends;
    with one micro-batch the cuts with the least sum, of these the ones whose slowest step is fastest."""
    rng, passes, stages, layers = np.random.default_rng(seed), 1 + seed % 2, 3, 6
    tables = small_tables(rng, passes, stages, layers)
    every = {cuts: figures(tables, 0, (0, *cuts, layers)) for cuts in combinations(range(1, layers), stages - 1)}
    rest, floor = fastest._completions.py_func(tables)
    if all(once == math.inf for once, _ in every.values()):
        assert (rest[:stages] == math.inf).all()
        return
    for stage, begin in product(range(stages + 1), range(layers + 1)):
        ways = (
            [(0, *inner, begin) for inner in combinations(range(1, begin), stage - 1)]
            if stage
            else [(0,)] * (begin == 0)
        )
        there = begin < layers or stage == stages
        there = there and any(figures(tables, 0, way)[0] < math.inf for way in ways)
        behind = (
            combinations(range(begin + 1, layers), stages - stage - 1) if stage < stages else [()] * (begin == layers)
        )
        ends = (
            [figures(tables, stage, (begin, *inner, *[layers] * (stage < stages))) for inner in behind] if there else []
        )
        assert rest[stage, begin] == min((once for once, _ in ends), default=math.inf)
        assert (
            floor[:, stage, begin].tolist()
            == np.min([slow for _, slow in ends] or [[math.inf] * passes], axis=0).tolist()
        )
    cuts = tuple(fastest._quickest_once.py_func(tables, rest).tolist())
    assert every[cuts][0] == rest[0, 0]
    costs = PartitionCosts(tables.stage_seconds, tuple(tables.kind.tolist()), *tables[2:])
    steps = [_slowest_step(costs, one) for one in every if every[one][0] == rest[0, 0]]
    assert _slowest_step(costs, cuts) == min(steps)


@pytest.mark.parametrize("seed", range(6))
def test_partial_partitions_that_are_kept_are_those_that_none_beats(seed: int) -> None:
    """Of each end: sum and slowest of each pass, no less than what follows makes it; of what may still end within a limit."""
    rng, passes, layers, stage = np.random.default_rng(seed), 1 + seed % 2, 6, seed % 3
    tables, begins = small_tables(rng, passes, 3, layers), sorted(rng.integers(stage, 4, 8).tolist()) if stage else [0]
    state = rng.integers(0, 9, (len(begins), 1 + passes)).astype(float)
    place = np.array([[begin, 0] for begin in begins])
    rest, floor = (
        np.append(rng.integers(0, 9, layers), math.inf),
        rng.integers(0, 6, (passes, layers + 1)).astype(float),
    )
    ahead = fastest.Ahead(rest, floor, 2.0, 48.0)
    expected: dict[int, set[tuple[float, ...]]] = {}
    for row, begin in enumerate(begins):
        for end in range(begin + 1, layers + 1):
            once, slow = figures(tables, stage, (begin, end))
            label = (state[row, 0] + once, *np.max([state[row, 1:], slow, ahead.floor[:, end]], axis=0).tolist())
            if label[0] + ahead.rest[end] + 2.0 * sum(label[1:]) <= 48.0:
                expected.setdefault(end, set()).add(label)
    best = {
        (end, *one)
        for end, labels in expected.items()
        for one in labels
        if not any(other != one and all(x <= y for x, y in zip(other, one, strict=True)) for other in labels)
    }
    found, ends, complete = fastest._extended(tables, stage, state, place, ahead, 1000)
    assert complete
    assert len(found) == len(best)
    assert {(end, *label) for end, label in zip(ends[:, 0].tolist(), found.tolist(), strict=True)} == best
    for (end, row), label in zip(ends.tolist(), found.tolist(), strict=True):
        assert label[0] == state[row, 0] + figures(tables, stage, (begins[row], end))[0]
    assert fastest._extended(tables, stage, state, place, ahead, len(best))[2]
    assert not fastest._extended(tables, stage, state, place, ahead, len(best) - 1)[2]


@settings(deadline=None)
@given(costs=partition_costs())
def test_first_cuts_rise_from_the_fastest_slowest_stage_to_the_least_sum(costs: PartitionCosts) -> None:
    """Of all partitions: the sums fall, the last is the least; none where none is feasible."""
    stages = len(costs.kind)
    sums = {
        cuts: costs.seconds(cuts, 1) for cuts in combinations(range(1, costs.layers), stages - 1)
    }  # one micro-batch: the sum
    found = [sums[tuple(cuts)] for cuts in fastest.first_cuts(costs)]
    least = min(sums.values(), default=math.inf)
    assert bool(found) == (least < math.inf)
    if found:
        assert found == sorted(found, reverse=True)
        assert len({tuple(cuts) for cuts in fastest.first_cuts(costs)}) == len(found)
        assert found[-1] == pytest.approx(least)


def test_a_cut_is_taken_away_and_another_stage_halved() -> None:
    """Every cut in turn, and every stage in its middle place; stages of one place have none, and remain as they cannot be."""
    places = np.arange(0, 21, 2)
    found = relocated(np.array([4, 6, 14]), places)
    assert found.shape == (12, 3)
    assert sorted(map(tuple, found.tolist())) == sorted(
        tuple(sorted((*pair, middle))) for pair in ((6, 14), (4, 14), (4, 6)) for middle in (2, 4, 10, 16)
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_last_ends_within_caps(seed: int) -> None:
    """By kind and first layer: the last end at which all passes are within their caps, that layer where none is."""
    rng = np.random.default_rng(seed)
    seconds, caps = rng.integers(1, 9, (2, 2, 7, 7)).astype(float), np.array([5.0, 4.0])
    found = fastest._last_ends.py_func(seconds, caps)
    for kind, begin in product(range(2), range(7)):
        within = [end for end in range(begin + 1, 7) if (seconds[:, kind, begin, end] <= caps).all()]
        assert found[kind, begin] == max(within, default=begin)


@pytest.mark.slow
def test_many_unlike_devices_have_a_front_that_can_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heavy last layer on a slow device bounds the rest loosely, and the sums of partitions differ by rounding.

    Few partial partitions for each end remain all the same, and the makespan is the least of all: an independent programme finds
    the least sum for every bound on the slowest stage.
    """
    layers, stages, count = 80, 16, 64
    seconds = np.append(np.random.default_rng(1).uniform(0.5, 1.5, layers - 1), 10.0)
    before = np.concatenate([[0.0], seconds.cumsum()])
    table = np.maximum(before[None, :] - before[:, None], 0.0) * np.array([1.0, 5.0])[:, None, None]
    link = np.ones((1, stages - 1, layers + 1))
    costs = PartitionCosts(table[None], (0,) * 8 + (1,) * 8, link, np.zeros((stages - 1, layers + 1)))
    most, extended = [0], fastest._extended

    def watched(*given: Any) -> Any:
        labels = extended(*given)
        most.append(len(labels[0]))
        return labels

    monkeypatch.setattr(fastest, "_extended", watched)
    [(found, _), *_] = fastest_cuts(costs, count)
    assert max(most) <= 2 * (layers + 1)
    assert found == pytest.approx(_least_over_bounds(costs, count, found * (1.0 + 1e-9)))


def _least_over_bounds(costs: PartitionCosts, microbatches: int, most: float) -> float:
    """The least makespan of one pass: the least sum for each bound on the slowest stage, and that bound."""

    def least_sum(bound: float) -> float:
        rest = np.where(np.arange(costs.layers + 1) == costs.layers, 0.0, math.inf)
        for stage in reversed(range(len(costs.kind))):
            held = costs.stage_seconds[0, costs.kind[stage]]
            behind = np.triu(np.ones_like(held, dtype=bool), 1)
            rest = np.where((held <= bound) & behind, held + rest[None, :], math.inf).min(axis=1)
            if stage:
                sent = costs.link_seconds[0, stage - 1]
                rest = np.where(sent <= bound, rest + sent, math.inf)
        return float(rest[0])

    bounds = np.unique(np.concatenate([costs.stage_seconds.ravel(), costs.link_seconds.ravel()])).tolist()
    first = bisect_left(bounds, True, key=lambda bound: least_sum(bound) < math.inf)
    near = [bound for bound in bounds[first:] if (microbatches - 1) * bound + least_sum(math.inf) <= most]
    return float(min(least_sum(bound) + (microbatches - 1) * bound for bound in near))


def by_hand(durations: list[list[float]]) -> float:
    """When the last micro-batch leaves the last process: durations by process and micro-batch, each waits for both before it."""
    ends = [0.0] * len(durations[0])
    for process in durations:
        free = 0.0
        for number, seconds in enumerate(process):
            free = ends[number] = max(free, ends[number]) + seconds
    return ends[-1]


@pytest.mark.parametrize("seed", range(8))
def test_a_smaller_last_micro_batch_waits_its_turn(seed: int) -> None:
    """Two passes, forward down the stages and backward up again, and one micro-batch more, no longer than the others."""
    rng = np.random.default_rng(seed)
    layers, whole = 4, int(rng.integers(0, 5))
    stage, link = rng.integers(1, 9, (2, 1, 5, 5)).astype(float), rng.integers(0, 9, (2, 2, 5)).astype(float)
    full = PartitionCosts(stage, (0, 0, 0), link, np.ones((2, 5)))
    last = PartitionCosts(
        np.floor(stage * rng.random(stage.shape)), (0, 0, 0), np.floor(link * rng.random(link.shape)), np.ones((2, 5))
    )
    cuts = np.array(list(combinations(range(1, layers), 2)))
    found = makespans(full, cuts, whole, last)
    for row, (first, second) in enumerate(cuts.tolist()):
        bounds = [(0, first), (first, second), (second, layers)]
        seconds = 2.0  # a latency at each cut
        for number in (0, 1):
            processes = []
            for s, (begin, end) in enumerate(bounds):
                processes.append([one.stage_seconds[number, 0, begin, end] for one in (*[full] * whole, last)])
                if s < 2:
                    processes.append([one.link_seconds[number, s, end] for one in (*[full] * whole, last)])
            seconds += by_hand(processes if number == 0 else processes[::-1])
        assert found[row] == seconds


def test_a_slow_link_moves_the_cut() -> None:
    """Two even halves would send 9 s over the link; a cut one layer later sends 1 s and is faster from two micro-batches on."""
    layer = np.array([1.0, 1.0, 1.0, 1.0])
    before = np.concatenate([[0.0], np.cumsum(layer)])
    stage = np.maximum(before[None, :] - before[:, None], 0.0)[None, None]
    free = PartitionCosts(stage, (0, 0), np.zeros((1, 1, 5)), np.zeros((1, 5)))
    slow = replace(free, link_seconds=np.array([[[0.0, 9.0, 9.0, 1.0, 0.0]]]))
    assert fastest_cuts(free, 4) == [(4.0 + 3 * 2.0, (2,))]
    assert fastest_cuts(slow, 4) == [(4.0 + 1.0 + 3 * 3.0, (3,))]


@pytest.mark.parametrize(("cluster", "recompute"), [("dapple-c", True), ("pipedream-c", False)])
def test_its_seconds_are_those_of_the_reference_replay(cluster: str, recompute: bool) -> None:
    """Equal micro-batches, forwards before backwards, links of their own: the closed form is what the engine replays, less the
    update."""
    problem = Problem(load_workload("vgg16"), load_cluster(cluster).take(4), 32, recompute=recompute)
    costs = LayerCosts(problem)
    for count in (4, 8, 32):
        tables = straight_costs(costs, (0, 1, 2, 3), 32 // count)
        for seconds, cuts in fastest_cuts(tables, count, slack=0.05):
            stages = stages_from_cuts(cuts, len(problem.workload), [(0,), (1,), (2,), (3,)])
            timeline = simulate(problem, Plan("test", "gpipe", stages, equal_microbatches(32, count))).timeline
            passed = timeline.end[timeline.compute()].max()
            assert seconds == pytest.approx(passed, rel=1e-9)


def test_wrong_shapes_are_named() -> None:
    """Tables that do not go together."""
    with pytest.raises(ValueError, match=r"link_seconds must have shape \(1, 1, 4\), got \(1, 2, 4\)"):
        PartitionCosts(np.zeros((1, 1, 4, 4)), (0, 0), np.zeros((1, 2, 4)), np.zeros((1, 4)))
    with pytest.raises(ValueError, match=r"kinds of stages must be from 0 to 0, got \(0, 1\)"):
        PartitionCosts(np.zeros((1, 1, 4, 4)), (0, 1), np.zeros((1, 1, 4)), np.zeros((1, 4)))


def test_deep_networks_on_boards_are_cut_at_places_that_divide_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each range of layers is divided on a board by itself: of 144 layers only those between 16 places."""
    monkeypatch.setattr(costing, "MOST_PLACES", 16)
    problem = Problem(load_workload("gpt-14"), load_cluster("fpga-vcu118-4").take(2), 8)
    costs = LayerCosts(problem)
    table = straight_costs(costs, (0, 1), 1).stage_seconds[0, 0]
    places = np.flatnonzero(np.isfinite(table[0]))
    work = np.cumsum([0.0, *(layer.flop for layer in problem.workload.layers)])
    assert (places[0], places[-1]) == (0, len(problem.workload))
    assert 8 < len(places) <= 16
    heaviest = max(layer.flop for layer in problem.workload.layers)
    assert np.diff(work[places]).max() <= work[-1] / 15 + heaviest
