"""Pipeline × data grid by hand: its quick replays, its bounds, and when it stops to replay shapes and to seek cuts again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from planners import Evaluator, Request
from planners.search import memory_retry
from planners.straight import grid
from planners.straight.grid import CutShape, GridSearch, GridShape, PipelineDataGrid
from simulator import BUCKET_BYTES, Layer, Plan, Problem, Score, Workload
from tests.simulator.strategies import UnitDevice, chain_cluster

SECONDS = 3.0
"""Of a unit of work and sample: 1 forward, 2 backward."""


def _search(
    flop: Sequence[float],
    outputs: Sequence[float],
    batch: int,
    *,
    devices: int = 2,
    parameters: Sequence[int] = (),
    rates: Sequence[float] = (),
    request: Request | None = None,
    bandwidth: float = 8.0,
    latency: float = 0.25,
    **more: Any,
) -> GridSearch:
    """The grid of a chain of such layers on devices in a row; updates are free, an element has 4 bytes."""
    layers = tuple(
        Layer(f"layer{n}", "linear", one, parameters[n] if parameters else 0, elements, 1.0)
        for n, (one, elements) in enumerate(zip(flop, outputs, strict=True))
    )
    cluster = chain_cluster(devices, bandwidth=bandwidth, latency=latency)
    if rates:
        cluster = replace(cluster, devices=tuple(UnitDevice(rate=rate, name=f"unit-{rate}") for rate in rates))
    workload = Workload("hand", layers, tuple(pairwise(range(len(layers)))))
    problem = Problem(workload, cluster, batch, **more)
    return GridSearch(problem, Evaluator(problem), request or Request(), "grid")


@pytest.mark.parametrize(("whole", "late"), [(False, 0.0), (True, 8.0)])
def test_gradients_that_are_reduced_whole_end_later(whole: bool, late: float) -> None:
    """Two replicas of one stage of two like layers, a bucket each that takes 8 s: one hides behind a backward.

    Six samples a replica in one micro-batch, two layers of 1 s forward and 2 s backward a sample: 12 + 24 s, and 8 or 16 s.
    """
    weights = [int(2 * BUCKET_BYTES / 4)] * 2
    search = _search(
        [1.0, 1.0],
        [0.0, 0.0],
        12,
        parameters=weights,
        bandwidth=2 * BUCKET_BYTES / 8.0,
        latency=0.0,
        gradient_reduction="whole" if whole else "buckets",
    )
    candidate = search.candidate(GridShape("1f1b", ((0, 1),), 1, 1))
    assert candidate is not None
    assert candidate.seconds == pytest.approx(12.0 + 24.0 + 8.0 + late)


def test_at_best_all_ranks_share_the_work_at_the_pace_of_their_slowest_replica() -> None:
    """12 s per sample on a device of rate 1, 24 on one of a half: alone, in turn, and as replicas of one stage.

    Rank after rank starts once. Of V seconds the first rank has V / 4 for its part of each of four micro-batches, the second a
    quarter of what is left, 3 V / 16; of chunks, of which the first may be small, each has V / 4.
    """
    search = _search([1.0, 1.0, 1.0, 1.0], [0.0] * 4, 8, rates=(1.0, 0.5), latency=0.0)
    assert search.at_best(GridShape("1f1b", ((0,),), 1, 4)) == pytest.approx(4 * 2 * 12.0)
    assert search.at_best(GridShape("1f1b", ((0, 1),), 1, 4)) == pytest.approx(4 * 1 * 24.0)
    assert search.at_best(GridShape("1f1b", ((0,), (1,)), 1, 4)) == pytest.approx(1 / (1 / 4 / 24 + 3 / 16 / 48))
    assert search.at_best(GridShape("interleaved-1f1b", ((1,), (0,)), 2, 4)) == pytest.approx(4 * 2 * 8.0)
    quick = _search([0.001], [0.0], 8, latency=0.0)
    assert quick.at_best(GridShape("1f1b", ((0,), (1,)), 1, 4)) == pytest.approx(0.006 / (1 / 4 + 3 / 16))
    assert 0.0 < _search([0.0], [0.0], 8).at_best(GridShape("1f1b", ((0,),), 1, 4)) < 1e-290
    assert search.at_best(GridShape("1f1b", ((1, 0),), 1, 4)) == pytest.approx(4 * 1 * 24.0)


def test_a_replica_holds_its_part_of_the_largest_micro_batch() -> None:
    """Of 8 samples in 3 micro-batches, 3 at most, one of two replicas has 2, each of four layers' 4 bytes."""
    search = _search([1.0] * 4, [0.0] * 4, 8)
    candidate = search.candidate(GridShape("1f1b", ((0, 1),), 1, 3))
    assert candidate is not None
    assert candidate.fullest * search.problem.cluster.devices[0].memory_bytes == pytest.approx(2 * 4 * 4)


def test_at_best_the_slowest_rank_hides_what_replicas_reduce() -> None:
    """Two ranks of two replicas, one at half the pace: its 16 s of the backward of a sample hide a ring, not the other's 8.

    A ring of two moves as many bytes as there are, of 400 weights, at 8 bytes a second each way. The slower rank, which has a
    third of the work, 4 · 8 s, may have all of them: weighed as their work is, both have a third at least; of two stages half.
    """
    shape = GridShape("1f1b", ((0, 1), (2, 3)), 1, 4)
    light, heavy = (
        _search([1.0] * 4, [0.0] * 4, 8, devices=4, rates=(1.0, 1.0, 0.5, 0.5), latency=0.0, parameters=[weights] * 4)
        for weights in (0, 100)
    )
    assert light.at_best(shape) == pytest.approx(1 / (1 / 4 / 12 + 3 / 16 / 24))
    assert heavy.at_best(shape) == pytest.approx(4 * 8.0 + 200.0 / 3 - 16.0)
    assert heavy.at_best(replace(shape, schedule="interleaved-1f1b", chunks=2)) == pytest.approx(
        32.0 + 200.0 / 6 - 16.0
    )


def test_rates_of_ranks_are_added_one_by_one() -> None:
    """To the bit: shapes that take equally long at best keep the grid's order, whichever of their ranks are alike."""
    search = _search([0.2, 1.0 / 7.0], [0.0] * 2, 8, devices=3, latency=0.0)
    rate = 1.0 / float(search.costs.round_trip_seconds(0, 1).sum())
    assert search.at_best(GridShape("1f1b", ((0,), (1,), (2,)), 1, 8)) == 8.0 / (rate + rate * 0.875 + rate * 0.875**2)


def test_the_busiest_channel_between_two_stages_counts() -> None:
    """Devices in a row: from 0 to 2 and from 1 to 3 both pass between 1 and 2, beside a cable that one of them uses alone.

    A sample's 4 bytes take half a second.
    """
    search = _search([1.0, 1.0], [1.0, 1.0], 8, devices=4)
    for groups, samples, crowd in ((((0, 1), (2, 3)), 1, 2), (((0, 2), (1, 3)), 1, 1), (((0,), (3,)), 2, 1)):
        costs = search.partition_costs(GridShape("1f1b", groups, 1, 4))
        assert costs.link_seconds.max() == crowd * samples * 4 / 8.0


def test_a_stage_has_the_memory_of_its_smallest_replica_and_a_refusal_that_of_the_largest_device() -> None:
    """Devices of 2 and 4 GiB; 2^27 weights, of which each takes 12 bytes with its gradient and its momentum."""
    search = _search([1.0, 1.0], [1.0, 1.0], 8, parameters=[2**26, 2**26])
    devices = tuple(UnitDevice(memory_bytes=size * 2.0**30, name=f"unit-{size}") for size in (2, 4))
    problem = replace(search.problem, cluster=replace(search.problem.cluster, devices=devices))
    search = GridSearch(problem, Evaluator(problem), Request(), "grid")
    found = [search.candidate(GridShape("1f1b", (group,), 1, 8)) for group in ((0, 1), (1, 0), (1,))]
    assert [one and one.fullest for one in found] == pytest.approx([0.75, 0.75, 0.375])
    assert problem.state_bytes == 12.0
    assert search.does_not_fit() == (
        "planner 'grid' finds no stages that fit: weights, gradients and optimizer states take 1.5 GiB, "
        "the largest of 2 devices holds 4 GiB; use more devices, recomputation or a smaller batch"
    )


class _Replayed:
    """An evaluator that answers with given scores, one a plan, by a plan's number of micro-batches."""

    def __init__(self, search: GridSearch, scores: dict[int, Score]) -> None:
        self.layer_costs, self.problem, self.scores = search.costs, search.problem, scores
        self.asked: list[int] = []

    def __call__(self, plan: Plan) -> Score:
        number = len(plan.microbatches)
        if number not in self.asked:
            self.asked.append(number)
        return self.scores[number]


def _answer(
    monkeypatch: pytest.MonkeyPatch, forms: Sequence[float], replays: Sequence[float], fits: Sequence[bool]
) -> tuple[int, list[int]]:
    """The number of micro-batches of the answer, and those replayed: candidate n has n micro-batches and these seconds."""
    search = _search([1.0], [0.0], 64)
    found = [
        CutShape(seconds, GridShape("1f1b", ((0,),), 1, number), (), 0.0)
        for number, seconds in enumerate(forms, start=1)
    ]
    scores = {
        number: Score(seconds, 1.0 if fit else 3.0, 2.0, 0)
        for number, (seconds, fit) in enumerate(zip(replays, fits, strict=True), start=1)
    }

    def candidates(self: GridSearch) -> Iterator[CutShape]:
        return iter(found)

    monkeypatch.setattr(GridSearch, "candidates", candidates)
    monkeypatch.setattr(GridSearch, "within_memory", GridSearch.plan)
    evaluate = _Replayed(search, scores)
    plan = PipelineDataGrid()(search.problem, evaluate, np.random.default_rng(0))  # type: ignore[arg-type]
    return len(plan.microbatches), evaluate.asked


def test_points_are_replayed_until_none_that_is_left_can_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick replay as slow as the fastest replay that fits ends the search; one that does not fit says nothing."""
    fits = [True, True, True, True]
    assert _answer(monkeypatch, [7.0, 7.9, 8.0, 1.0], [9.0, 8.0, 7.0, 1.0], fits) == (2, [1, 2])
    assert _answer(monkeypatch, [7.0, 7.5, 7.9, 7.9], [8.0, 8.0, 7.0, 9.0], fits) == (3, [1, 2, 3])
    short = [False, True, True, True]
    assert _answer(monkeypatch, [1.0, 1.0, 7.9, 8.0], [1.0, 8.0, 9.0, 1.0], short) == (2, [1, 2, 3])


def test_patience_ends_after_the_best_and_while_none_fits_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of shapes whose quick replays say nothing two more than the best are replayed, and four while none fits."""
    monkeypatch.setattr(grid, "PATIENCE", 2)
    monkeypatch.setattr(grid, "MOST_TRIED", 4)
    forms = [1.0] * 6
    assert _answer(monkeypatch, forms, [5.0, 4.0, 6.0, 6.0, 1.0, 1.0], [True] * 6) == (2, [1, 2, 3, 4])
    assert _answer(monkeypatch, forms, [5.0, 4.0, 3.0, 2.0, 6.0, 6.0], [False] * 3 + [True] * 3) == (
        4,
        [1, 2, 3, 4, 5, 6],
    )
    with pytest.raises(ValueError, match="finds no plan that fits"):
        _answer(monkeypatch, forms, [5.0, 4.0, 3.0, 2.0, 1.0, 1.0], [False] * 4 + [True] * 2)


def test_what_is_missing_is_left_free_by_all_stages_of_the_fullest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages per device share what misses, round after round, at most so many; then every partition is looked at."""
    search = _search([1.0] * 5, [0.0] * 5, 8)
    shape = GridShape("interleaved-1f1b", ((0,), (1,)), 2, 2)
    first = CutShape(1.0, shape, (1, 2, 3), 1.0)
    missing = iter([(1, 10.0), (0, 6.0), (1, 2.0)])
    answers: dict[int, Score] = {}
    spares: list[list[float]] = []

    def evaluate(plan: Plan) -> Score:
        if len(plan.microbatches) not in answers:
            device, bytes_missing = next(missing, (0, 0.0))
            answers[len(plan.microbatches)] = Score(1.0, 100.0 + bytes_missing, 100.0, device)
        return answers[len(plan.microbatches)]

    def again(self: GridSearch, shape: GridShape, spare: Sequence[float]) -> CutShape:
        spares.append(list(spare))
        return replace(first, shape=replace(shape, microbatches=2 + len(spares)))

    search.evaluate = evaluate  # type: ignore[assignment]
    monkeypatch.setattr(GridSearch, "candidate", again)
    monkeypatch.setattr(grid, "fitting_cuts", lambda costs, evaluate, plan_of: plan_of((2, 3, 4)))
    plan = search.within_memory(first)
    assert spares == [[0.0, 5.0, 0.0, 5.0], [3.0, 5.0, 3.0, 5.0], [3.0, 6.0, 3.0, 6.0]]
    assert (len(plan.microbatches), plan.stages[0].layers) == (5, (0,))
    monkeypatch.setattr(memory_retry, "ROUNDS", 3)
    for found, layers in (((2, 3, 4), (0, 1)), (None, (0,))):  # of plans that miss as much the first is kept
        monkeypatch.setattr(
            grid,
            "fitting_cuts",
            lambda costs, evaluate, plan_of, found=found: None if found is None else plan_of(found),
        )
        missing = iter([(1, 10.0)] * 6)
        answers.clear()
        spares.clear()
        plan = search.within_memory(first)
        assert (len(plan.microbatches), plan.stages[0].layers) == (2, layers)
        assert spares == [[0.0, 5.0, 0.0, 5.0], [0.0, 10.0, 0.0, 10.0], [5.0] * 4, [10.0] * 4, [15.0] * 4]


class _Listed(GridSearch):
    """A search of given shapes; `sought` are those whose cuts were asked for, in that order."""

    def __init__(self, at_best: Sequence[float], seconds: Sequence[float], fullest: Sequence[float | None]) -> None:
        search = _search([1.0], [0.0], 64)
        super().__init__(search.problem, search.evaluate, search.request, "grid")
        self.forms, self.sought = list(zip(at_best, seconds, fullest, strict=True)), list[int]()

    def shapes(self) -> Iterator[GridShape]:
        return (GridShape("1f1b", ((0,),), 1, number) for number in range(1, len(self.forms) + 1))

    def at_best(self, shape: GridShape) -> float:
        return self.forms[shape.microbatches - 1][0]

    def candidate(self, shape: GridShape, spare: Sequence[float] = ()) -> CutShape | None:
        _, seconds, fullest = self.forms[shape.microbatches - 1]
        self.sought.append(shape.microbatches)
        return None if fullest is None else CutShape(seconds, shape, (), fullest)


def _order(found: Iterator[CutShape]) -> list[int]:
    return [one.shape.microbatches for one in found]


def test_cuts_are_sought_for_points_that_may_still_be_the_best() -> None:
    """A shape is handed out once no other one can be faster, balanced at will, however many wait."""
    at_best, seconds = [1.0, 2.0, 2.5, 2.6, 4.0], [3.5, 2.5, 3.2, 2.7, 9.0]
    search = _Listed(at_best, seconds, [1.0] * 5)
    found = search.candidates()
    assert next(found).shape.microbatches == 2
    assert search.sought == [1, 2]
    assert _order(found) == [4, 3, 1, 5]
    assert _order(_Listed([1.0] * 4, [4.0, 3.0, 2.0, 1.0], [1.0] * 4).candidates()) == [4, 3, 2, 1]


def test_points_that_do_not_fit_come_last_by_what_they_miss() -> None:
    """First those that fit, a full device among them; then, least memory first, those whose replay has to tell."""
    search = _Listed([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 9.0, 4.0, 5.0], [1.2, 1.1, 1.0, None, 0.5])
    assert _order(search.candidates()) == [5, 3, 2, 1]
    assert search.sought == [1, 1, 2, 2, 3, 4, 4, 5]  # those that do not fit are sought again, without shares
