"""Tight memory: no planner says that nothing fits where a plan of its own space does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import load_cluster
from planners import Evaluator, Request, make_plan, planner_entry
from planners.bapipe.explorer import schedules
from planners.estimate.memory import most_held, most_in_flight
from planners.partitioning import tight_memory
from planners.partitioning.partition_costs import straight_costs, uniform_cuts
from planners.partitioning.tight_memory import cuts_within, fitting_cuts, tight_plan
from planners.search.candidates import devices_in_order, microbatch_counts, straight_plan
from planners.straight.baselines import DataParallel
from planners.straight.brute_force import BruteForce
from planners.straight.grid import CutShape, GridSearch
from simulator import InfeasiblePlanError, OpKind, Plan, Problem, Score, build_schedule
from simulator.schedules.text import from_text
from tests.chains import chain
from tests.simulator.test_lower_bound import _gpu, _switched


def _problem(layers: int, devices: int, batch: int, recompute: bool, seed: int, memory_bytes: float = 1e12) -> Problem:
    """Layers of unlike weights, activations and boundaries: of 4 to 40 MB of state, and up to 40 MB per sample."""
    rng = np.random.default_rng(seed)
    network = chain(
        rng.uniform(1e9, 1e10, layers).tolist(),
        parameters=rng.integers(10**5, 10**6, layers).tolist(),
        output_elements=rng.uniform(1e4, 3e6, layers).tolist(),
        stashed_elements=rng.uniform(1e5, 1e7, layers).tolist(),
    )
    held = tuple(replace(_gpu(), memory_bytes=memory_bytes) for _ in range(devices))
    return Problem(network, _switched(held), batch, recompute=recompute)


def _straight(
    problem: Problem, schedule: str, cuts_of: Callable[[int, int], Iterator[tuple[int, ...]]]
) -> Iterator[Plan]:
    layers, order = len(problem.workload), devices_in_order(problem)
    stages = min(layers, len(order))
    for count in microbatch_counts(problem, Request(), stages):
        for cuts in cuts_of(layers, stages):
            yield straight_plan("space", problem, schedule, cuts, order[:stages], count)


def _every(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    return combinations(range(1, layers), stages - 1)


def _uniform(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    yield tuple(uniform_cuts(layers, stages))


def _grid(problem: Problem) -> Iterator[Plan]:
    search = GridSearch(problem, Evaluator(problem), Request(), "space")
    for shape in search.shapes():
        for cuts in _every(len(problem.workload), shape.stages):
            yield search.plan(CutShape(0.0, shape, cuts, 0.0))


SPACES: dict[str, Callable[[Problem], Iterator[Plan]]] = {
    "uniform": lambda problem: (plan for name in ("gpipe", "1f1b") for plan in _straight(problem, name, _uniform)),
    "greedy": lambda problem: (plan for name in ("gpipe", "1f1b") for plan in _straight(problem, name, _every)),
    "bapipe": lambda problem: (
        plan for name in schedules(problem, Request()) for plan in _straight(problem, name, _every)
    ),
    "data-parallel": lambda problem: (
        DataParallel()._plan(problem, devices_in_order(problem), count)
        for count in range(1, problem.batch // len(problem.cluster.devices) + 1)
        if count & (count - 1) == 0 or count == problem.batch // len(problem.cluster.devices)
    ),
    "pipeline-data": _grid,
    "brute-force": lambda problem: BruteForce().plans(problem),
}
"""Planner -> every plan that it could give, whatever it would choose."""


def _finds_what_fits(name: str, layers: int, devices: int, batch: int, recompute: bool, seed: int, room: float) -> None:
    roomy = _problem(layers, devices, batch, recompute, seed)
    if planner_entry(name).reason(roomy, Request()) is not None:
        return
    evaluate, peaks = Evaluator(roomy), []
    for plan in SPACES[name](roomy):
        try:
            peaks.append(evaluate(plan).peak_bytes)
        except InfeasiblePlanError:  # a shape of the space that cannot run at all
            continue
    if not peaks:
        return
    tight = _problem(layers, devices, batch, recompute, seed, min(peaks) * (1.0 + room))
    assert make_plan(name, tight).outcome.fits


SHAPES = {
    "layers": st.integers(2, 5),
    "devices": st.integers(1, 3),
    "batch": st.integers(3, 6),
    "recompute": st.booleans(),
    "seed": st.integers(0, 2**32 - 1),
    "room": st.sampled_from([1e-9, 0.05]),
}


@pytest.mark.parametrize("name", SPACES)
@given(**SHAPES)
@settings(deadline=None, max_examples=2)
def test_a_plan_that_fits_is_found(
    name: str, layers: int, devices: int, batch: int, recompute: bool, seed: int, room: float
) -> None:
    """Devices hold just what the plan of the space that needs least memory needs: the planner answers with a plan that fits."""
    _finds_what_fits(name, layers, devices, batch, recompute, seed, room)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
@given(**SHAPES)
@settings(deadline=None, max_examples=15)
def test_a_plan_that_fits_is_found_often(
    name: str, layers: int, devices: int, batch: int, recompute: bool, seed: int, room: float
) -> None:
    """The same over many more problems."""
    _finds_what_fits(name, layers, devices, batch, recompute, seed, room)


@pytest.mark.parametrize(("last", "expected"), [(1, []), (2, [tuple(range(2, 40, 2))])])
def test_dead_ends_are_not_followed(last: int, expected: list[tuple[int, ...]]) -> None:
    """Twenty stages of up to two of forty layers, one or none of 2^19 ways leaves the last what it holds: few looks find it."""
    stages, layers, looks = 20, 40, 0

    class Watched(np.ndarray[Any, np.dtype[np.int64]]):
        def __getitem__(self, key: Any) -> Any:
            nonlocal looks
            looks += 1
            assert looks <= 1000
            return super().__getitem__(key)

    problem = _problem(layers, stages, 4, False, 7)
    costs = straight_costs(Evaluator(problem).layer_costs, range(stages), 1, alternating=True)
    most = np.array([2] * (stages - 1) + [last])
    furthest = np.minimum(np.arange(layers + 1) + most[:, None], layers)
    assert list(cuts_within(replace(costs, furthest=furthest.view(Watched)))) == expected


def test_partitions_within_any_ends_are_all_and_only_those() -> None:
    """Two hundred tables of last ends, of places where no stage may begin too: as by looking at every partition, in its order."""
    problem, rng, numbers = _problem(6, 3, 4, False, 7), np.random.default_rng(0), set()
    costs = straight_costs(Evaluator(problem).layer_costs, (0, 1, 2), 1, alternating=True)
    for _ in range(200):
        furthest = rng.integers(-1, 7, (3, 7))
        expected = [
            cuts
            for cuts in combinations(range(1, 6), 2)
            if all(end <= furthest[stage, begin] for stage, (begin, end) in enumerate(pairwise((0, *cuts, 6))))
        ]
        assert list(cuts_within(replace(costs, furthest=furthest))) == expected
        numbers.add(len(expected))
    assert numbers >= {0, 1, 2, 3}


def test_activations_in_flight_are_counted_op_by_op() -> None:
    """A forward keeps a micro-batch of its stage, a backward or the gradient of the weights drops it; at forwards all count."""
    split = from_text("0F0 0F1 0I0 0F2 0W0 0F3 0I1 0W1 0I2 0I3 0W2 0W3")
    for schedule in (
        *(build_schedule(name, 3, 5) for name in ("gpipe", "1f1b", "eager-1f1b")),
        *(build_schedule(name, 6, 4, chunks=3) for name in ("interleaved-1f1b", "looped-bfs")),
        split,
    ):
        each = np.arange(1.0, 1.0 + schedule.stages)
        together, most = most_held(schedule, each)[0], dict.fromkeys(range(schedule.stages), 0)
        for rank, ops in enumerate(schedule.lists()):
            held, moments = dict.fromkeys(most, 0), []
            for op in ops:
                held[op.stage] += {OpKind.FORWARD: 1, OpKind.INPUT_GRADIENT: 0}.get(op.kind, -1)
                most[op.stage] = max(most[op.stage], held[op.stage])
                moments.append(sum(each[stage] * count for stage, count in held.items()))
            assert together[rank] == max(moments)
        assert most_in_flight(schedule).tolist() == list(most.values())
    assert most_in_flight(split).tolist() == [3]


def test_most_in_flight_is_that_of_the_plans_schedule() -> None:
    """1F1B keeps as many micro-batches as stages are left; where forwards run beside backwards one is counted."""
    problem = _problem(6, 3, 4, False, 7)
    evaluate = Evaluator(problem)
    for schedule, devices, most in (
        ("1f1b", (0, 1, 2), [3, 2, 1]),
        ("gpipe", (0, 1, 2), [4, 4, 4]),
        ("looped-bfs", (0, 1, 0, 1), [4, 4, 4, 4]),
    ):
        plan = straight_plan("test", problem, schedule, range(1, len(devices)), devices, 4)
        assert tight_memory.most_held_by(evaluate, plan).tolist() == most
    boards = replace(problem, cluster=load_cluster("fpga-vcu118-4"))
    plan = straight_plan("test", boards, "fbp-as", (2, 4), (0, 1, 2), 4)
    assert tight_memory.most_held_by(Evaluator(boards), plan).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("stages", "partitions"), [(1, 1), (2, 5), (3, 10)])
def test_without_limits_every_partition_is_one_and_few_are_looked_at(
    stages: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six layers: all cuts in their order. The first that fits is taken, unless there are more than are replayed."""
    costs = straight_costs(Evaluator(_problem(6, stages, 4, False, 7)).layer_costs, range(stages), 1)
    every = list(combinations(range(1, 6), stages - 1))
    assert costs.furthest is None
    assert list(cuts_within(costs)) == every
    assert len(every) == partitions
    looked: list[Any] = []

    def evaluate(plan: Any) -> Score:
        looked.append(plan)
        return Score(1.0, 2.0 if plan != every[-1] else 1.0, 1.0, 0)

    plan_of: Any = tuple
    for most, found in ((partitions, every[-1]), (partitions - 1, None)):
        monkeypatch.setattr(tight_memory, "EXHAUSTIVE", most)
        looked.clear()
        assert fitting_cuts(costs, evaluate, plan_of) == found  # type: ignore[arg-type]
        assert looked == (every if found is not None else [])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_tight_plan_is_found_where_a_partition_fits(schedule: str) -> None:
    """Devices that hold the peak of each of ten partitions in turn, or a byte less, and for each number of micro-batches."""
    roomy = _problem(6, 3, 4, False, 11)
    for count in (2, 4):
        plans = [
            straight_plan("test", roomy, schedule, cuts, (0, 1, 2), count) for cuts in combinations(range(1, 6), 2)
        ]
        peaks = sorted(Evaluator(roomy)(plan).peak_bytes for plan in plans)
        for memory_bytes in (peaks[0] - 1.0, *peaks[::3]):
            problem = _problem(6, 3, 4, False, 11, memory_bytes=memory_bytes)
            evaluate = Evaluator(problem)
            found = tight_plan("test", evaluate, schedule, (0, 1, 2), (count,))
            assert (found is not None) == (memory_bytes >= peaks[0])
            assert found is None or (evaluate(found).fits and len(found.microbatches) == count)
    quickest = tight_plan("test", Evaluator(roomy), schedule, (0, 1, 2), (2, 4))
    alone = [tight_plan("test", Evaluator(roomy), schedule, (0, 1, 2), (count,)) for count in (2, 4)]
    assert quickest == min((plan for plan in alone if plan), key=lambda plan: Evaluator(roomy)(plan).key)
