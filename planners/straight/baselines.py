"""Baselines: data parallelism, equal numbers of layers, and straight pipelines balanced by seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import comb, inf

import numpy as np

from planners.estimate.memory import least_excess
from planners.partitioning.fastest_cuts import fastest_cuts
from planners.partitioning.partition_costs import every_cuts, straight_costs, uniform_cuts
from planners.partitioning.straight_search import StraightShape, fastest_given, fastest_straight, quick_replays_know
from planners.partitioning.tight_memory import tight_plan
from planners.search.candidates import (
    closest_to_fit,
    device_choices,
    microbatch_counts,
    stage_devices,
    stages_per_device,
    straight_plan,
)
from planners.search.evaluator import Evaluator, fitting
from planners.search.request import Request
from planners.search.timed_orders import with_timed
from simulator import LayerCosts, Plan, Problem, Stage, equal_microbatches

FEW = 36
"""Partitions in all up to which every one is replayed for each number of micro-batches."""


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Every device holds the whole network and takes an equal part of the batch.

    Micro-batches are searched: the whole batch at once, or gradient accumulation, each forward followed by its backward, where
    that is what fits, or is faster.
    """

    request: Request = field(default_factory=Request)
    name: str = "data-parallel"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The fastest plan over numbers of micro-batches and choices of devices; InfeasiblePlanError if none fits."""
        choices = device_choices(problem, evaluate.layer_costs)
        plans = [self._plan(problem, held, count) for held in choices for count in self._counts(problem, len(held))]
        return fitting(self.name, closest_to_fit(plans, evaluate, excess=least_excess), evaluate)

    def _counts(self, problem: Problem, replicas: int) -> Iterable[int]:
        """Numbers of micro-batches, for each number of samples per replica the fewest: more only take longer."""
        counts = microbatch_counts(problem, self.request, 1)
        return sorted({-(-problem.batch // (count * replicas)): count for count in reversed(counts)}.values())

    def _plan(self, problem: Problem, devices: Sequence[int], count: int) -> Plan:
        """The plan of replicas of the whole network on these devices; count: micro-batches"""
        stage = Stage(tuple(range(len(problem.workload))), tuple(devices))
        schedule = self.request.schedule or ("gpipe" if count == 1 else "1f1b")
        return Plan(self.name, schedule, (stage,), equal_microbatches(problem.batch, count))


@dataclass(frozen=True, slots=True)
class UniformLayers:
    """GPipe without its partitioner: stages with equal numbers of layers (the first ones with one more), each on its own device.

    Stages, as many as devices or fewer, and micro-batches are searched; without a requested schedule also GPipe against 1F1B,
    which keeps fewer activations.
    """

    request: Request = field(default_factory=Request)
    name: str = "uniform"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The fastest plan over numbers of stages and micro-batches; InfeasiblePlanError if none fits."""
        best = self.fastest(problem, evaluate)
        if best is not None:
            return best
        layers = len(problem.workload)
        replayed = partial(
            _replayed, self.name, problem, self.request, evaluate, lambda row, count: [uniform_cuts(layers, len(row))]
        )
        # Where quick replays know every plan, none fits, and the closest has small micro-batches: the others need no replay.
        known = self.is_known(problem)
        closest = replayed(smallest=True) if known else replayed()
        return fitting(self.name, replayed() if known and evaluate(closest).fits else closest, evaluate)

    def is_known(self, problem: Problem) -> bool:
        """Whether `fastest` finds a plan wherever one fits."""
        return quick_replays_know(problem, _schedules(self.request)) and not self.request.family_options

    def fastest(self, problem: Problem, evaluate: Evaluator, beat: float = inf) -> Plan | None:
        """The fastest plan that fits, of those that quick replays lead to; None where there is none that is no slower than `beat`
        seconds.
        """
        return _quickest(self.name, problem, self.request, evaluate, partial(uniform_cuts, len(problem.workload)), beat)


@dataclass(frozen=True, slots=True)
class GreedyBalance:
    """Stages each on its own device, balanced by the seconds of stages and transfers.

    No replicas. Stages, as many as devices or fewer, cuts and micro-batches are searched together (`fastest_straight`), over the
    choices of devices and, without a requested schedule, GPipe and 1F1B: the name is older than that search. Where nothing fits:
    the cuts that memory permits.
    """

    request: Request = field(default_factory=Request)
    name: str = "greedy"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The fastest plan over schedules, stages, cuts and micro-batches; InfeasiblePlanError if none fits."""
        best = _quickest(self.name, problem, self.request, evaluate)
        if best is not None:
            return best
        best = _replayed(self.name, problem, self.request, evaluate, partial(promising_cuts, evaluate.layer_costs))
        if not evaluate(best).fits and self.request.slices is None:
            best = self._tight(problem, evaluate) or best
        return fitting(self.name, best, evaluate)

    def _tight(self, problem: Problem, evaluate: Evaluator) -> Plan | None:
        """The fastest plan that fits, however unbalanced; None if none is found."""
        found = []
        for schedule, devices in _rows(problem, self.request, evaluate):
            counts = microbatch_counts(problem, self.request, len(set(devices)))
            found.append(tight_plan(self.name, evaluate, schedule, devices, counts))
        return min((plan for plan in found if plan is not None), key=lambda plan: evaluate(plan).key, default=None)


def _quickest(
    name: str,
    problem: Problem,
    request: Request,
    evaluate: Evaluator,
    cuts_of: Callable[[int], Sequence[int]] | None = None,
    beat: float = inf,
) -> Plan | None:
    """The plan of `fastest_straight`, or, with `cuts_of`, of `fastest_given`, among all shapes that are asked for; None where it
    finds none, and where the schedule's family has options.

    cuts_of: number of stages -> their cuts; beat: as of `fastest_given`
    """
    if request.family_options:
        return None
    shapes = (
        StraightShape(schedule, devices, count)
        for schedule, devices in _rows(problem, request, evaluate)
        for count in microbatch_counts(problem, request, len(set(devices)))
    )
    if cuts_of is None:
        return fastest_straight(name, evaluate, shapes)
    return fastest_given(name, evaluate, shapes, cuts_of, beat=beat)


def _fastest(plans: Iterable[Plan], evaluate: Evaluator) -> Plan:
    """The fastest of some plans that fits, each also with an order timed for its stages, else the one closest to fit; the first
    of equals.
    """
    return min(with_timed(evaluate.problem, plans, evaluate.layer_costs), key=lambda plan: evaluate(plan).key)


def _replayed(
    name: str,
    problem: Problem,
    request: Request,
    evaluate: Evaluator,
    cuts_of: Callable[[tuple[int, ...], int], Iterable[Sequence[int]]],
    *,
    smallest: bool = False,
) -> Plan:
    """The best plan by replays alone, whether it fits or not.

    cuts_of: (devices of the stages, micro-batches) -> cuts to try
    smallest: for each number of stages try the smallest micro-batches alone
    """

    def best_count(schedule: str, devices: tuple[int, ...]) -> Plan:
        plan = partial(straight_plan, name, problem, schedule, devices=devices, options=request.family_options)
        counts = microbatch_counts(problem, request, len(set(devices)))[-1 if smallest else 0 :]
        several = ([plan(cuts, microbatches=count) for cuts in cuts_of(devices, count)] for count in counts)
        return closest_to_fit((_fastest(plans, evaluate) for plans in several), evaluate)

    return _fastest((best_count(*row) for row in _rows(problem, request, evaluate)), evaluate)


def _rows(problem: Problem, request: Request, evaluate: Evaluator) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Schedules with the devices of their stages, for each choice of devices and each number of them that holds the stages asked
    for.
    """
    choices = device_choices(problem, evaluate.layer_costs)
    for schedule in _schedules(request):
        chunks = stages_per_device(problem, request, schedule)
        lists = dict.fromkeys(
            stage_devices(problem, schedule, request, devices[:count])
            for devices in choices
            for count in range(len(devices), 0, -1)
            if count * chunks >= (request.stages or 1)
        )
        yield from ((schedule, devices) for devices in lists)


def _schedules(request: Request) -> tuple[str, ...]:
    """The schedule that is asked for, else those that are tried: of several stages per device where these are asked for."""
    if request.schedule is not None:
        return (request.schedule,)
    return ("looped-bfs", "interleaved-1f1b") if (request.chunks or 1) > 1 else ("gpipe", "1f1b")


def promising_cuts(costs: LayerCosts, devices: Sequence[int], microbatches: int) -> list[tuple[int, ...]]:
    """Cuts worth a replay: all where they are FEW, else equal numbers of layers and the best of the partition search.

    devices: of each stage. The search takes forwards and backwards to alternate on every device, as in 1F1B. For GPipe, which
    runs them in two passes, its seconds are an estimate: exact where one stage is the slowest in both passes and no link is
    slower.
    """
    layers, stages = len(costs.problem.workload), len(devices)
    if comb(layers - 1, stages - 1) <= FEW:
        return [tuple(cuts) for cuts in every_cuts(layers, stages).tolist()]
    uniform, samples = tuple(uniform_cuts(layers, stages)), -(-costs.problem.batch // microbatches)
    tables = straight_costs(costs, devices, samples, alternating=True)
    # A device that holds several stages is as fast as their sum: the slowest stage counts for every round.
    found = fastest_cuts(tables, microbatches * (stages // len(set(devices))))
    return [uniform, *(cuts for _, cuts in found[:1])]
