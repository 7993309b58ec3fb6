"""Search for an order: known patterns, list scheduling under many settings, then annealing, each in a share of the work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import brief
from planners.scheduler.annealing import Walk, anneal, cost_of
from planners.scheduler.bound import OBJECTIVES, Objective, lower_bound
from planners.scheduler.greedy import Setting, list_schedule, settings_of
from planners.scheduler.instance import Codes, Instance, Integers, codes_of, instance_of, peaks_of, schedule_of
from planners.scheduler.problem import ScheduleProblem
from planners.scheduler.replay import Trace, replay, trace_of
from simulator import Schedule

OPS_PER_SECOND = 100_000_000
"""Ops replayed in a second of search: the work that one second stands for, whatever the machine takes for it."""

LONGEST_WALK = OPS_PER_SECOND // 2
"""Ops replayed by one walk at most: between walks an interrupt is heard."""

LIST_SCHEDULING = 10
"""Ops replayed in the time in which list scheduling places one."""

EXACT = 1e-9
"""Part of a bound by which rounding may part it from an order that attains it."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundSchedule:
    """An order and how good it is known to be.

    cost: seconds of the objective; makespan: seconds of the whole order; bound: seconds of the objective that no order can beat
    peaks: bytes that each device keeps for its micro-batches at most
    evaluations: orders made or replayed
    interrupted: the search was stopped from outside before its end
    """

    problem: ScheduleProblem
    schedule: Schedule
    objective: Objective
    cost: float
    makespan: float
    bound: float
    peaks: tuple[float, ...]
    evaluations: int
    interrupted: bool = False

    def __repr__(self) -> str:
        known = "proven" if self.proven else f"gap {100 * self.gap:.2f} %"
        return brief(self, f"{self.problem!r}: makespan {self.makespan:.6g} s, {known}")

    @property
    def gap(self) -> float:
        """How far the cost is above the bound, as a part of it."""
        if self.proven:
            return 0.0
        return self.cost / self.bound - 1.0 if self.bound else math.inf

    @property
    def proven(self) -> bool:
        """Whether no order within the limits has a lower cost (but for rounding)."""
        return self.cost <= self.bound * (1.0 + EXACT)


Improved = Callable[[int, float], object]
"""Told of every better order: orders made or replayed so far, and seconds of the objective."""


@dataclass(slots=True)
class _Search:
    """The one mutable object: the work left, and the best orders so far, best first."""

    instance: Instance
    longest_stage: bool
    bound: float
    work: int
    trace: Trace
    random: NDArray[np.uint64]
    progress: Improved
    evaluations: int = 0
    best: list[tuple[float, Codes]] = field(default_factory=list)

    @property
    def ops(self) -> int:
        return len(self.trace.order)

    def over(self) -> bool:
        """Whether nothing better is possible, or no work is left."""
        return self.work <= 0 or bool(self.best and self.best[0][0] <= self.bound * (1.0 + EXACT))

    def keep(self, makespan: float, order: Codes | None = None) -> None:
        """Remember an order, by default the one in the trace, if it is among the best few and differs from them in cost."""
        cost = cost_of(makespan, self.longest_stage, self.trace) if order is None else makespan
        if cost == math.inf or any(cost == other for other, _ in self.best):
            return
        if len(self.best) < KEPT or cost < self.best[-1][0]:
            self.best.append((cost, (self.trace.order if order is None else order).copy()))
            self.best.sort(key=lambda one: one[0])
            del self.best[KEPT:]
            if self.best[0][0] == cost:
                self.progress(self.evaluations, cost)

    def try_order(self, codes: Codes, offsets: Integers, fill: bool, tolerance: float = 0.0) -> None:
        """Replay an order and remember it."""
        self.work -= self.ops
        self.evaluations += 1
        self.keep(replay(self.instance, codes, offsets, fill, tolerance, self.trace))

    def list_schedule(self, setting: Setting) -> float:
        """List scheduling under a setting; its makespan."""
        self.work -= self.ops * LIST_SCHEDULING
        self.evaluations += 1
        return float(list_schedule(self.instance, setting, self.trace))


KEPT = 6
"""Orders that annealing begins from."""


def without_weights(instance: Instance, codes: Codes) -> tuple[Codes, Integers]:
    """The forwards and input gradients of an order, and their offsets by device."""
    rest = codes < 2 * len(instance.device)
    offsets = np.concatenate([[0], np.cumsum(rest)])[instance.offsets]
    return codes[rest], offsets


def one_at_a_time(instance: Instance) -> Codes:
    """The order that runs every micro-batch to its end before the next one: it fits wherever any order does."""
    positions = len(instance.device)
    chain = np.cumsum(instance.first) - 1
    lists: list[list[int]] = [[] for _ in instance.limit]
    for number in range(int(instance.passes.max())):
        for one in range(int(chain[-1]) + 1):
            held = np.flatnonzero((chain == one) & (instance.passes > number)).tolist()
            for p in held:
                lists[instance.device[p]].append(p)
            for p in reversed(held):
                lists[instance.device[p]] += [positions + p, 2 * positions + p][: 1 + int(instance.split[p])]
    return np.array([code for codes in lists for code in codes], dtype=np.int16)


def search_schedule(
    problem: ScheduleProblem,
    *,
    seconds: float = 1.0,
    objective: Objective = "makespan",
    seed: int = 0,
    patterns: Sequence[Schedule] = (),
    progress: Improved = lambda evaluations, cost: None,
) -> FoundSchedule:
    """The best order found in the work that `seconds` stand for (see OPS_PER_SECOND): the same on every machine.

    patterns: orders to begin from; the answer is never worse than one of them that fits
    An interrupt ends the search; what it has found by then is marked.
    Raises KeyboardInterrupt if that is nothing, and ValueError for seconds or a seed that are negative.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective {objective!r} is unknown; choices: {', '.join(OBJECTIVES)}")
    if not seconds >= 0 or seed < 0:
        raise ValueError(f"seconds and seed must be at least 0, got {seconds} and {seed}")
    instance = instance_of(problem)
    random = np.array([seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D & (2**64 - 1) or 1], dtype=np.uint64)
    search = _Search(
        instance,
        objective == "longest-stage",
        lower_bound(instance, objective),
        int(min(seconds, 1e9) * OPS_PER_SECOND),
        trace_of(instance),
        random,
        progress,
    )
    interrupted = False
    try:
        _run(search, problem, patterns)
    except KeyboardInterrupt:
        if not search.best:
            raise
        interrupted = True
    cost, codes = search.best[0]
    makespan = float(replay(instance, codes, instance.offsets, False, 0.0, search.trace))
    schedule = schedule_of(instance, codes, problem, "search")
    peaks = peaks_of(instance, codes, problem)
    return FoundSchedule(
        problem, schedule, objective, cost, makespan, search.bound, peaks, search.evaluations, interrupted
    )


def _run(search: _Search, problem: ScheduleProblem, patterns: Sequence[Schedule]) -> None:
    """Everything that the search tries, in turn."""
    instance = search.instance
    search.try_order(one_at_a_time(instance), instance.offsets, False)
    for pattern in patterns:
        codes = codes_of(instance, pattern, problem)
        if codes is not None:
            search.try_order(codes, instance.offsets, False)
    _list_scheduling(search, problem)
    _annealing(search)


def _list_scheduling(search: _Search, problem: ScheduleProblem) -> None:
    """List scheduling under every setting; of a long stream under those that are best on a short one."""
    settings = list(settings_of(search.instance, problem.stages))
    share = search.work // 3
    each = search.ops * LIST_SCHEDULING
    if each * len(settings) > share and problem.microbatches > 4 * problem.devices:
        short = replace(problem, microbatches=3 * problem.devices)
        trial_instance = instance_of(short)
        trial = replace(search, instance=trial_instance, trace=trace_of(trial_instance), best=[], bound=0.0)
        fit = max(1, share // (trial.ops * LIST_SCHEDULING))
        ranked = sorted((trial.list_schedule(one), number) for number, one in enumerate(settings[:fit]))
        search.work, search.evaluations = trial.work, trial.evaluations
        settings = [settings[number] for _, number in ranked]
    for setting in settings:
        if search.over() or search.work < each:
            return
        makespan = search.list_schedule(setting)
        if makespan < math.inf:
            order = search.trace.order.copy()
            search.keep(makespan)
            if search.work > 0:
                codes, offsets = without_weights(search.instance, order)
                search.try_order(codes, offsets, True, setting.weight_tolerance)


def _annealing(search: _Search) -> None:
    """Walks from the best orders, both forms in turn, each round twice as long as the one before."""
    instance, trace = search.instance, search.trace
    unit = float(instance.seconds.mean())
    whole = np.empty_like(trace.order)
    steps, turn = 2000, 0
    while not search.over() and search.work >= steps * search.ops // 8:
        for rank in range(len(search.best)):
            if search.over():
                break
            fill = turn % 2 == 0
            codes = search.best[min(rank, len(search.best) - 1)][1].copy()
            offsets = instance.offsets
            if fill:
                codes, offsets = without_weights(instance, codes)
            walk = Walk(
                fill,
                (0.0, 0.5, 1.0)[(turn // 2 + rank) % 3],
                search.longest_stage,
                min(steps, 1 + search.work // search.ops, 1 + LONGEST_WALK // search.ops),
                0.5 * unit,
                0.03 * unit,
                search.bound * (1.0 + EXACT),
            )
            cost, taken = anneal(instance, codes, offsets, walk, search.random, trace, whole)
            search.work -= taken * search.ops
            search.evaluations += taken
            search.keep(cost, whole)
        turn += 1
        steps = int(steps * 1.5)
