"""Baselines: data parallelism, equal numbers of layers, and greedily balanced seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planners.candidates import (
    closest_to_fit,
    device_choices,
    microbatch_counts,
    stage_devices,
    stages_per_device,
    straight_plan,
)
from planners.search import Evaluator, Request, best_plan, fitting
from planners.tight_memory import tight_plan
from simulator import Plan, Problem, Stage, equal_microbatches


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Every device holds the whole network and takes an equal part of the batch.

    Without a requested schedule or count: the whole batch at once, or, where that does not fit, gradient accumulation: the fewest
    micro-batches (a power of two) that do, each forward followed by its backward.
    """

    request: Request = field(default_factory=Request)
    name: str = "data-parallel"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The first count that fits, on the devices where that is fastest; InfeasiblePlanError if none does."""
        choices = device_choices(problem, evaluate.layer_costs)
        return best_plan(self.name, [self._first_that_fits(problem, evaluate, held) for held in choices], evaluate)

    def _first_that_fits(self, problem: Problem, evaluate: Evaluator, devices: Sequence[int]) -> Plan:
        """The plan with the fewest micro-batches that fits, else the last one."""
        most = max(1, problem.batch // len(devices))
        counts = (
            tuple(sorted({*(2**power for power in range(most.bit_length())), most}))
            if self.request.microbatches is None
            else microbatch_counts(problem, self.request, 1)
        )
        plan = self._plan(problem, devices, counts[0])
        for count in counts:
            plan = self._plan(problem, devices, count)
            if evaluate(plan).fits:
                break
        return plan

    def _plan(self, problem: Problem, devices: Sequence[int], count: int) -> Plan:
        stage = Stage(tuple(range(len(problem.workload))), tuple(devices))
        schedule = self.request.schedule or ("gpipe" if count == 1 else "1f1b")
        return Plan(self.name, schedule, (stage,), equal_microbatches(problem.batch, count))


@dataclass(frozen=True, slots=True)
class UniformLayers:
    """As many stages as devices, with equal numbers of layers (the first stages one more): GPipe without its partitioner.

    Without a requested schedule: GPipe, or, where no number of micro-batches fits, 1F1B, which keeps fewer activations.
    """

    request: Request = field(default_factory=Request)
    name: str = "uniform"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best number of micro-batches for that partition; InfeasiblePlanError if none fits."""
        return fitting(self.name, _first_schedule(self, problem, evaluate), evaluate)

    def best_count(self, problem: Problem, evaluate: Evaluator, schedule: str, devices: tuple[int, ...]) -> Plan:
        """The number of micro-batches with which these stages, one of each device of `devices`, are fastest."""
        cuts = uniform_cuts(len(problem.workload), len(devices))
        return closest_to_fit(
            (
                straight_plan(self.name, problem, schedule, cuts, devices, count)
                for count in microbatch_counts(problem, self.request, len(set(devices)))
            ),
            evaluate,
        )


@dataclass(frozen=True, slots=True)
class GreedyBalance:
    """As many stages as devices, balanced by the seconds of a micro-batch, each on its own device.

    Stages are filled up to their share of what is left; then the slowest stage hands boundary layers to a neighbour while that
    makes the slowest one faster. Without a requested schedule: GPipe, or, where no number of micro-batches fits, 1F1B, which
    keeps fewer activations. Where that does not fit either, the fullest stage hands layers over while memory is missing.
    """

    request: Request = field(default_factory=Request)
    name: str = "greedy"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best number of micro-batches, each with the balance for its size; InfeasiblePlanError if nothing fits."""
        best = self._relieve(_first_schedule(self, problem, evaluate), problem, evaluate)
        if not evaluate(best).fits:
            best = self._tight(problem, evaluate) or best
        return fitting(self.name, best, evaluate)

    def _tight(self, problem: Problem, evaluate: Evaluator) -> Plan | None:
        """The fastest plan that fits, whatever its balance; None if there is none."""
        found = []
        for schedule in _schedules(self.request):
            for devices in _device_lists(problem, self.request, schedule, evaluate):
                counts = microbatch_counts(problem, self.request, len(set(devices)))
                found.append(tight_plan(self.name, evaluate, schedule, devices, counts))
        return min((plan for plan in found if plan is not None), key=lambda plan: evaluate(plan).key, default=None)

    def best_count(self, problem: Problem, evaluate: Evaluator, schedule: str, devices: tuple[int, ...]) -> Plan:
        """The number of micro-batches, and the balance for their size, with which a pipeline on `devices` is fastest."""

        def plans() -> Iterator[Plan]:
            for count in microbatch_counts(problem, self.request, len(set(devices))):
                cuts = balanced_cuts(stage_seconds_table(evaluate, devices, -(-problem.batch // count)))
                yield straight_plan(self.name, problem, schedule, cuts, devices, count)

        return closest_to_fit(plans(), evaluate)

    def _relieve(self, plan: Plan, problem: Problem, evaluate: Evaluator) -> Plan:
        """Hand layers of the fullest device to neighbours while the memory that is missing shrinks."""
        devices = [stage.devices[0] for stage in plan.stages]
        cuts = [stage.layers[0] for stage in plan.stages[1:]]
        while not (score := evaluate(plan)).fits:
            moves = [
                moved
                for stage, device in enumerate(devices)
                if device == score.device
                for moved in boundary_moves(cuts, len(problem.workload), stage)
            ]
            if not moves:
                break
            plans = [
                straight_plan(self.name, problem, plan.schedule, moved, devices, len(plan.microbatches))
                for moved in moves
            ]
            best = min(range(len(plans)), key=lambda number: evaluate(plans[number]).key)
            if evaluate(plans[best]).key >= score.key:
                break
            cuts, plan = moves[best], plans[best]
        return plan


class _Straight(Protocol):
    """A planner of straight pipelines that knows its partition, and chooses the number of micro-batches by replay."""

    @property
    def request(self) -> Request:
        """What the user fixes."""

    def best_count(self, problem: Problem, evaluate: Evaluator, schedule: str, devices: tuple[int, ...]) -> Plan:
        """The fastest plan that fits, or the one closest to it, of one schedule on one choice of devices."""


def _first_schedule(planner: _Straight, problem: Problem, evaluate: Evaluator) -> Plan:
    """The plan of the first schedule with which one fits, on the devices where it is fastest; else the closest to fit of all."""
    request = planner.request
    closest: list[Plan] = []
    for schedule in _schedules(request):
        choices = _device_lists(problem, request, schedule, evaluate)
        plans = [planner.best_count(problem, evaluate, schedule, devices) for devices in choices]
        closest.append(min(plans, key=lambda plan: evaluate(plan).key))
        if evaluate(closest[-1]).fits:
            return closest[-1]
    return min(closest, key=lambda plan: evaluate(plan).key)


def _device_lists(
    problem: Problem, request: Request, schedule: str, evaluate: Evaluator
) -> tuple[tuple[int, ...], ...]:
    """The devices of the stages, for each choice of devices that holds the stages that are asked for."""
    choices = device_choices(problem, evaluate.layer_costs)
    chunks = stages_per_device(problem, request, schedule)
    roomy = [devices for devices in choices if len(devices) * chunks >= (request.stages or 1)]
    return tuple(dict.fromkeys(stage_devices(problem, schedule, request, devices) for devices in roomy))


def _schedules(request: Request) -> tuple[str, ...]:
    if request.schedule is not None:
        return (request.schedule,)
    return ("looped-bfs", "interleaved-1f1b") if (request.chunks or 1) > 1 else ("gpipe", "1f1b")


def uniform_cuts(layers: int, stages: int) -> list[int]:
    """Layers before each of the stages - 1 boundaries, stages as equal as whole layers permit, the first ones larger."""
    size, more = divmod(layers, stages)
    return [size * stage + min(stage, more) for stage in range(1, stages)]


def stage_seconds_table(evaluate: Evaluator, devices: Sequence[int], samples: int) -> NDArray[np.float64]:
    """Forward + backward seconds of each layer on each stage's device, float64 [stages, layers]."""
    return np.array([evaluate.layer_costs.round_trip_seconds(device, samples) for device in devices])


def balanced_cuts(seconds: NDArray[np.float64]) -> list[int]:
    """Cuts of a chain that even out the stages' seconds, found greedily.

    seconds: float64 [stages, layers], of each layer on the device of each stage; every stage gets at least one layer
    """
    cuts = _filled(seconds)
    totals = np.zeros((seconds.shape[0], seconds.shape[1] + 1))
    np.cumsum(seconds, axis=1, out=totals[:, 1:])
    while True:
        load = _loads(totals, cuts)
        slowest = int(load.argmax())
        best: tuple[float, list[int]] | None = None
        for moved in boundary_moves(cuts, seconds.shape[1], slowest):
            peak = float(_loads(totals, moved).max())
            if best is None or peak < best[0]:
                best = peak, moved
        if best is None or best[0] >= load[slowest]:
            return cuts
        cuts = best[1]


def boundary_moves(cuts: Sequence[int], layers: int, stage: int) -> list[list[int]]:
    """Cuts after one stage has handed its first layers to the stage before, or its last ones to the stage behind.

    One entry for every number of layers that leaves the stage at least one.
    """
    bounds = [0, *cuts, layers]
    size = bounds[stage + 1] - bounds[stage]
    moves = []
    for given in range(1, size):
        for boundary, change in ((stage - 1, given), (stage, -given)):
            if 0 <= boundary < len(cuts):
                moved = list(cuts)
                moved[boundary] += change
                moves.append(moved)
    return moves


def _filled(seconds: NDArray[np.float64]) -> list[int]:
    """Each stage takes layers until the next one would leave it further from its share of what is left.

    The share of a stage over the remaining layers is that of its speed: T with sum over the stages of T / (their seconds for all
    that is left) = 1.
    """
    stages, layers = seconds.shape
    cuts, start = [], 0
    for stage in range(stages - 1):
        left = seconds[stage:, start:].sum(axis=1)
        least = float(left.min())
        share = least / float((least / left).sum()) if least > 0 else 0.0
        stop, held = start + 1, float(seconds[stage, start])
        while stop < layers - (stages - 1 - stage) and held + seconds[stage, stop] / 2.0 <= share:
            held += float(seconds[stage, stop])
            stop += 1
        cuts.append(stop)
        start = stop
    return cuts


def _loads(totals: NDArray[np.float64], cuts: Sequence[int]) -> NDArray[np.float64]:
    bounds = np.array([0, *cuts, totals.shape[1] - 1])
    rows = np.arange(totals.shape[0])
    return np.asarray(totals[rows, bounds[1:]] - totals[rows, bounds[:-1]], dtype=np.float64)
