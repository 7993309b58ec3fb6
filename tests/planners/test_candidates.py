"""Candidates: devices of stages, choices of devices, numbers of micro-batches, and the choice among plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hardware_profiles import Runs, Stack
from planners import Evaluator, Request
from planners.search import candidates
from planners.search.candidates import (
    asked_zeros,
    closest_to_fit,
    device_choices,
    device_groups,
    least_microbatches,
    microbatch_counts,
    searched_counts,
    stage_devices,
    stages_per_device,
    straight_decisions,
    straight_plan,
    straight_shape,
)
from simulator import InfeasiblePlanError, LayerCosts, Plan, Problem, Score
from simulator.workloads.synthetic import uniform_chain
from tests.simulator.strategies import UnitDevice, star_cluster
from tests.simulator.test_lower_bound import _gpu, _switched


def _problem(layers: int = 6, speeds: tuple[float, ...] = (1.0,) * 4, batch: int = 8) -> Problem:
    return Problem(uniform_chain(layers), _switched(tuple(_gpu(speed) for speed in speeds)), batch)


@pytest.mark.parametrize(
    ("layers", "schedule", "devices"),
    [
        (6, "gpipe", (0, 1, 2, 3)),
        (3, "gpipe", (0, 1, 2)),
        (1, "gpipe", (0,)),
        (6, "looped-bfs", (0, 1, 2, 0, 1, 2)),  # two stages per device: three devices for six layers
        (5, "looped-bfs", (0, 1, 0, 1)),
        (9, "looped-bfs", (0, 1, 2, 3, 0, 1, 2, 3)),
        (2, "looped-bfs", (0, 0)),
        (1, "looped-bfs", (0,)),
    ],
)
def test_stages_take_as_many_devices_as_layers_permit(layers: int, schedule: str, devices: tuple[int, ...]) -> None:
    """Every stage has a layer; a looped schedule goes round its devices twice."""
    assert stage_devices(_problem(layers), schedule) == devices


def test_requested_stages_and_chunks_decide_the_devices() -> None:
    """Four stages, two a device, are two devices; an odd number of stages is one a device where none was asked for."""
    problem = _problem(9)
    assert stage_devices(problem, "looped-bfs", Request(stages=4)) == (0, 1, 0, 1)
    assert stage_devices(problem, "looped-bfs", Request(stages=3)) == (0, 1, 2)
    assert stage_devices(problem, "looped-bfs", Request(chunks=3)) == (0, 1, 2) * 3
    assert stage_devices(problem, "gpipe", Request(stages=2), (3, 1, 0)) == (3, 1)
    assert stages_per_device(problem, Request(chunks=3), "gpipe") == 1
    assert straight_decisions(problem, Request(chunks=2), (), (), (1, 2, 3))["stages"] == [2, 4, 6, 8]
    assert straight_decisions(problem, Request(), (), (), (1, 2))["stages"] == [1, 2, 3, 4, 6, 8]


def test_stages_that_no_devices_hold_are_refused() -> None:
    """Four devices hold eight stages of a looped schedule, two each, and four of any other."""
    problem = _problem(12)
    assert straight_shape(problem, Request(schedule="looped-bfs", stages=8)) is None
    assert straight_shape(problem, Request(schedule="gpipe", stages=4)) is None
    assert straight_shape(problem, Request(stages=12, chunks=3)) is None
    assert straight_shape(problem, Request(chunks=12)) is None
    assert straight_shape(problem, Request(chunks=13)) == "13 stages per GPU are more than the 12 layers"
    assert straight_shape(problem, Request(stages=13)) == "13 stages are more than the 12 layers"
    assert straight_shape(problem, Request(stages=5)) == "5 stages, 1 per GPU, are more than 4 GPUs hold"
    assert straight_shape(problem, Request(chunks=1, schedule="gpipe")) is None
    assert straight_shape(problem, Request(chunks=3, schedule="looped-bfs")) is None
    assert straight_shape(problem, Request(chunks=3, schedule="zb-v")) == "schedule 'zb-v' has 2 stages per GPU, not 3"
    for request in (Request(schedule="looped-bfs", stages=10), Request(schedule="gpipe", stages=5)):
        assert "are more than 4 GPUs hold" in (straight_shape(problem, request) or "")
    assert Request(microbatches=1, stages=1, chunks=1).microbatches == 1


def test_choices_of_devices_are_the_fastest_kinds_and_each_kind() -> None:
    """All first; then the fastest kind, the two fastest, and every kind alone, in the cluster's order."""
    mixed = _problem(speeds=(1.0, 4.0, 2.0, 4.0))
    assert device_choices(mixed, LayerCosts(mixed)) == ((0, 1, 2, 3), (1, 3), (1, 2, 3), (2,), (0,))
    alike = _problem()
    assert device_choices(alike, LayerCosts(alike)) == ((0, 1, 2, 3),)


def _chosen(seconds: list[float], fits: list[bool] | None = None) -> float:
    """The seconds of the choice of `closest_to_fit` among plans that take so many."""
    problem = _problem(batch=len(seconds))
    plans = [Plan("test", "none", (), (1,) * (number + 1)) for number in range(len(seconds))]

    class Fixed(Evaluator):
        def __call__(self, plan: Plan) -> Score:
            number = len(plan.microbatches) - 1
            return Score(seconds[number], 1.0 if fits is None or fits[number] else 3.0 - number / 100, 2.0, 0)

    return seconds[len(closest_to_fit(plans, Fixed(problem)).microbatches) - 1]


def test_rises_do_not_end_a_choice() -> None:
    """Seconds rise and fall with the micro-batches: the fastest that fits is chosen, wherever it stands."""
    assert _chosen([5, 4, 5, 6, 7, 1]) == 1
    assert _chosen([5, 6, 7, 8, 1], [False] * 5) == 1
    assert _chosen([5, 6, 7, 8, 1], [True, False, True, True, False]) == 5


def test_what_cannot_be_faster_is_not_replayed() -> None:
    """A plan whose quick replay, or whose fullest device, takes longer than the best replay so far has no replay."""
    problem = _problem(batch=16)
    plans = [straight_plan("test", problem, "1f1b", (3,), (0, 1), count) for count in range(1, 17)]
    evaluate = Evaluator(problem)
    best = closest_to_fit(plans, evaluate)
    assert evaluate.evaluations < len(plans)
    assert evaluate(best).key == min(evaluate(plan).key for plan in plans)


def test_of_equally_fast_plans_the_first_is_chosen() -> None:
    """With fewer micro-batches, whether they fit or not."""
    problem = _problem()
    plans = [Plan("test", "none", (), (1,) * count) for count in (1, 2, 3)]
    for full in (False, True):

        class Equal(Evaluator):
            def __call__(self, plan: Plan, full: bool = full) -> Score:
                return Score(7.0, 2.0 if full else 1.0, 1.0, 0)

        assert closest_to_fit(plans, Equal(problem)) == plans[0]


def test_what_rounding_makes_faster_is_as_fast() -> None:
    """A part in ten thousand million: the first is chosen where a later plan is faster by half of it, not by one and a half."""
    for less, first in ((0.5e-10, True), (1.5e-10, False)):
        assert (_chosen([7.0, 7.0 * (1.0 - less)]) == 7.0) == first


def test_numbers_of_microbatches() -> None:
    """All of few samples; of more powers of two, these times the devices, and the fewest for each size; no fewer than weight
    versions need.
    """
    problem = _problem(batch=13)
    assert microbatch_counts(problem, Request(), 3) == tuple(range(1, 14))
    assert microbatch_counts(problem, Request(schedule="2bw"), 3) == tuple(range(3, 14))
    large = _problem(batch=70)
    fewest = {-(-70 // size) for size in range(1, 71)}
    assert searched_counts(large) == tuple(sorted(fewest | {1, 2, 4, 8, 16, 32, 64}))
    assert microbatch_counts(large, Request(), 3) == tuple(sorted({*searched_counts(large), 3, 6, 12, 24, 48}))
    assert microbatch_counts(problem, Request(microbatches=5), 3) == (5,)
    assert (least_microbatches("2bw", 4), least_microbatches("gpipe", 4), least_microbatches(None, 4)) == (4, 1, 1)
    with pytest.raises(
        InfeasiblePlanError, match="schedule '2bw' needs at least 3 micro-batches, one per stage, got 2"
    ):
        microbatch_counts(problem, Request(schedule="2bw", microbatches=2), 3)
    with pytest.raises(ValueError, match="at most the batch of 13 samples, got 14"):
        microbatch_counts(problem, Request(microbatches=14), 3)
    assert microbatch_counts(problem, Request(schedule="2bw", microbatches=3), 3) == (3,)
    assert microbatch_counts(problem, Request(microbatches=13), 3) == (13,)
    with pytest.raises(InfeasiblePlanError, match="needs at least 3 micro-batches, one per stage, got 2"):
        microbatch_counts(replace(problem, batch=2), Request(schedule="2bw"), 3)


def test_plans_of_too_many_ops_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On three devices 24 ops are four micro-batches, forward and backward; as many as a schedule needs are tried always."""
    monkeypatch.setattr(candidates, "MOST_OPS", 24)
    problem = _problem(batch=13)
    assert microbatch_counts(problem, Request(), 3) == (1, 2, 3, 4)
    assert microbatch_counts(problem, Request(slices=2), 3) == (1, 2)
    monkeypatch.setattr(candidates, "MOST_OPS", 17)
    assert microbatch_counts(problem, Request(), 3) == (1, 2)
    assert microbatch_counts(problem, Request(schedule="2bw"), 3) == (3,)


class _Affine(UnitDevice):
    """A device with an overhead: its first two figures are seconds of a pass, and of each sample of it."""

    def seconds(self, work: Any, samples: float, phase: str, precision: str) -> float:
        return self.memory_bytes / 1e12 - 1.0 + self.rate * samples


@pytest.mark.parametrize(("batch", "fastest"), [(1, 1), (4, 1), (7, 1), (8, 0), (40, 0)])
def test_the_fastest_kind_is_that_for_a_devices_share_of_the_batch(batch: int, fastest: int) -> None:
    """On four devices: of 2 + n and 2.5 n seconds the first is less from two samples per device on, a batch of eight."""
    slow, quick = _Affine(3e12, 1.0, "overhead"), _Affine(1e12, 2.5, "steady")
    cluster = replace(_switched((slow, quick, slow, quick)), devices=(slow, quick, slow, quick))
    problem = Problem(uniform_chain(2), cluster, batch)
    kinds = ((0, 2), (1, 3))
    assert device_choices(problem, LayerCosts(problem)) == ((0, 1, 2, 3), kinds[fastest], kinds[1 - fastest])


def test_replicas_take_turns_where_the_schedule_asks_for_them() -> None:
    """Round robin where the family is made for a number of replicas, else they split each micro-batch."""
    problem = _problem()
    for schedule, replication in (("1f1b-rr", "round-robin"), ("1f1b", "split"), ("pipedream", "split")):
        assert straight_plan("test", problem, schedule, (3,), (0, 1), 4).replication == replication


def test_groups_cross_no_server_where_all_have_room() -> None:
    """Pairs in servers of three and of two, where groups may lie anywhere; threes only across them."""
    cluster = replace(star_cluster(5), servers=((0, 1, 2), (3, 4)), tensor_groups="cluster")
    problem = Problem(uniform_chain(2), cluster, 4)
    assert device_groups(problem, 2) == ((0, 1), (3, 4))
    assert device_groups(problem, 3) == ((0, 1, 2),)
    assert device_groups(problem, 4) == ((0, 1, 2, 3),)


def test_what_replicas_divide_is_what_the_stack_runs() -> None:
    """The default that it runs; where it runs none of these, all that it does."""
    problem = replace(_problem(), stack=Stack(name="divides", runs=Runs(zero=(1, 3))))
    assert asked_zeros(problem, Request()) == asked_zeros(problem, Request(), (0, 2)) == (1, 3)
    assert asked_zeros(problem, Request(), (0, 1)) == (1,)
