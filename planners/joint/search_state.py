"""State of a joint search: the pipelines that it looked at, what replays of them gave, and the work that is done.

A look at a pipeline costs a bound, then a quick replay, which is never slower than a replay, and only where both promise enough
a replay of all devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count, islice
from math import inf

from planners.joint.climbs import Climbs
from planners.joint.neighbourhood import Neighbourhood
from planners.joint.pipeline import Pipeline
from planners.joint.told import passes_devices
from planners.search.evaluator import Evaluator
from planners.search.quick_replay import QuickReplays, order_of_plan
from planners.search.replay_work import WORK_PER_SECOND, replay_work
from planners.search.request import Request
from planners.search.timed_orders import with_timed
from simulator import InfeasiblePlanError, Plan, Problem, ScheduleError, Score, flushes, lower_bound

SECONDS = 20.0
"""Nominal seconds of replays where none are asked for; a round more where it is worth it."""

AFTER_BEST = 3.0
"""Nominal seconds of replays, at least, without a better answer before the search ends."""

QUICK_BY_STAGE = 20
"""Ops whose replay takes as long as a stage of a quick replay."""

FEW = 16
"""Devices up to which all kinds of plans are looked at, beside plans of other planners that fit."""

FIRST_ROUND = 5.0
"""Nominal seconds of the first round of descents; each further one ends at twice the work of the one before."""

NEAR_BEST = 1.3
"""How far above the best plan one may be that is searched further: under its own schedule family, or for an order of its ops."""

MOST_GAINED = 0.85
"""Part of the seconds of the plans to begin with that descents do not undercut: where it beats no other answer there are none."""

CANNOT_RUN = (InfeasiblePlanError, ScheduleError)
"""Why a neighbour has no replay: its ops or stages cannot be."""

Key = tuple[float, float]
"""Bytes that a plan misses, and its seconds: the least is the best."""

Look = tuple[float, int, Pipeline, Plan, float]
"""Lower bound on a plan's quick replay, or that; its number; whose plan it is; and what the quick replay must be below."""


@dataclass(frozen=True, slots=True)
class KnownPipeline:
    """What is known of a pipeline: bytes that it misses and its seconds, and those of its quick replay."""

    key: Key
    quick: float

    @property
    def error(self) -> float:
        """Seconds of the replay per second of the quick one."""
        return self.key[1] / self.quick if self.quick else 1.0


class SearchState:
    """What one search knows and has done.

    in_a_row: whether only plans that pass several devices in a row are looked for, as those that a schedule orders
    done, most, done_at_best: work of replays that is done, may be done, and was when the best plan so far was found
    least: key of that plan
    """

    def __init__(self, problem: Problem, request: Request, evaluate: Evaluator, name: str = "joint") -> None:
        self.problem, self.request, self.evaluate, self.name = problem, request, evaluate, name
        self.in_a_row = request.schedule is not None and request.stages != 1
        if self.in_a_row:
            evaluate.look_for(passes_devices)
        self.moves = Neighbourhood(problem, request, evaluate.layer_costs)
        self.quick = QuickReplays(problem, evaluate.layer_costs)
        self.climbs = Climbs(problem, evaluate.layer_costs, self.quick)
        self.most = float(request.asked("seconds") or SECONDS) * WORK_PER_SECOND
        self.done, self.done_at_best = 0.0, 0.0
        self.least: Key = (inf, inf)
        self.quickly: dict[Pipeline, dict[Plan, float]] = {}
        self.least_work: dict[Pipeline, float] = {}
        self.whole, self.numbers = set[Plan](), count()
        self.few = len(problem.cluster.devices) <= FEW
        self.boards = all(device.streams for device in problem.cluster.devices)

    @property
    def goes_on(self) -> bool:
        """Whether there is work left, and the last better answer is not longer ago than it took to find, or than AFTER_BEST."""
        since = self.done - self.done_at_best
        return self.done < self.most and since <= max(AFTER_BEST * WORK_PER_SECOND, self.done_at_best)

    @property
    def ended(self) -> bool:
        """Whether the work that may be done is done."""
        return self.done >= self.most

    def until(self, end: float) -> None:
        """Let the search go on until so much work is done, as if a better answer had just been found."""
        self.most, self.done_at_best = end, self.done

    def look_for_all(self) -> None:
        """Look for plans on one rank, too: no plan of several fits."""
        self.in_a_row = False
        self.evaluate.withdraw()
        self.evaluate.look_for(None)

    def replayed(self) -> dict[Plan, Score]:
        """Flushed plans that were replayed and are what is asked for, and their scores."""
        return {plan: score for plan, score in self.evaluate.replayed.items() if self.is_asked_for(plan)}

    def is_asked_for(self, plan: Plan) -> bool:
        """Whether a plan is flushed, may be the answer, and has the numbers that are asked for, which parts may leave open."""
        numbers = len(plan.microbatches), len(plan.stages), plan.chunks
        return flushes(plan) and self.evaluate.admits(plan) and self.request.counts_are(*numbers)

    def bound(self) -> float:
        """Lower bound on the seconds of any plan that is looked for."""
        return lower_bound(self.problem, self.evaluate.layer_costs).of(flush=True).seconds

    def leaves(self, part: float) -> bool:
        """Whether the problem's bound leaves more than this part of the best seconds to be gained."""
        missing, seconds = self.least
        return missing > 0.0 or self.evaluate.judge is not None or self.bound() < seconds * (1.0 - part)

    def known(self, one: Pipeline) -> KnownPipeline | None:
        """What is known of the faster of a pipeline's orders; None where it cannot run."""
        known = []
        for plan in self.plans(one):
            with suppress(*CANNOT_RUN):
                known.append(KnownPipeline(self.evaluate(plan).key, self._at_least(plan, self.quick(plan))))
        return min(known, key=lambda each: each.key, default=None)

    def key_of(self, one: Pipeline, plan: Plan) -> Key:
        """The key of the replay of a pipeline's plan, infinite where it cannot run; the work counts."""
        self.done += ops_replayed(one)
        try:
            return self.evaluate(plan).key
        except CANNOT_RUN:
            return inf, inf

    def rising(self, looks: Iterable[Look]) -> Iterator[Look]:
        """Those that stay below what they must be, by rising quick replay; which is run of those alone that may be the next."""
        waiting = list(looks)
        heapify(waiting)
        while waiting:
            look = heappop(waiting)
            if not self.put_back(look, waiting):
                yield look

    def put_back(self, look: Look, waiting: list[Look]) -> bool:
        """Whether a look has a bound alone; it then waits again with its quick replay, if that is below what it must be."""
        least, number, one, plan, below = look
        known = self.quickly[one]
        if plan not in self.whole:
            self.whole.add(plan)
            known[plan] = max(known[plan], self._at_least(plan, self.quick(plan)))
        elif least == known[plan]:
            return False
        if known[plan] < below:
            heappush(waiting, (known[plan], number, one, plan, below))
        return True

    def waiting(self, one: Pipeline, best: Key) -> Iterator[Look]:
        """A pipeline's plans that may be faster; none of what is not asked for.

        Each counts as a quick replay when it is first looked at, whether or not a bound saves that.
        """
        if not self.moves.allows(one) or (self.in_a_row and len(one.ranks) == 1):
            return
        below = inf if best[0] else best[1]
        if one not in self.quickly:
            alike = replace(one, zero=0, shard=0)  # what replicas divide only adds to forwards and backwards
            if alike not in self.least_work:
                self.least_work[alike] = max(map(self.quick.fill_and_work, islice(self.plans(alike), 1)), default=0.0)
            self.quickly[one] = {plan: self._at_least(plan, self.least_work[alike]) for plan in self.plans(one)}
            self.done += QUICK_BY_STAGE * one.stages * len(self.quickly[one])
        for plan, seconds in self.quickly[one].items():
            if seconds < below:
                yield seconds, next(self.numbers), one, plan, below

    def _at_least(self, plan: Plan, seconds: float) -> float:
        """Lower bound on a plan's score whose seconds have one."""
        return seconds if self.evaluate.judge is None else self.evaluate.at_least(plan.devices, seconds)

    def plans(self, one: Pipeline) -> Iterator[Plan]:
        """Its plan, and the one of an order for its own seconds where the family has such; none where it cannot run."""
        try:
            plan = one.plan(self.problem, self.name)
            if one.opposite:
                order_of_plan(plan)  # not every number of stages has a mirror image
            yield from with_timed(self.problem, (plan,), self.evaluate.layer_costs)
        except ValueError:
            return


def ops_replayed(one: Pipeline) -> int:
    """`replay_work` of its plans, as if all ranks had the most replicas."""
    return replay_work(one.stages, max(one.replicas), one.microbatches * one.slices)
