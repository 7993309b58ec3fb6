"""State of one joint search: what is known of the pipelines that it looked at, and how much work it has done.

A plan is judged in up to three steps, each run only where the one before leaves it a chance to be the best: a lower bound that
needs no order of ops, a quick replay (a lower bound, too), and the replay on all devices.
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
"""Nominal seconds of replays of a search whose request names none; one further round may double them."""

AFTER_BEST = 3.0
"""Nominal seconds of replays for which a search goes on, at least, after its last better plan."""

QUICK_BY_STAGE = 20
"""Work (as of `replay_work`) that the quick replay of a plan counts as, per stage."""

FEW = 16
"""Devices up to which all kinds of plans are looked at, not only those near what other planners found."""

FIRST_ROUND = 5.0
"""Nominal seconds of the first round of descents; each further round ends at twice the work of the one before."""

NEAR_BEST = 1.3
"""Seconds per second of the best plan up to which a plan is searched further: under its own schedule family, or for an order of
its ops.
"""

MOST_GAINED = 0.85
"""Share of the seconds of the best plan to begin with that descents never undercut: where that beats no other answer no descent
is run.
"""

CANNOT_RUN = (InfeasiblePlanError, ScheduleError)
"""Errors of plans that cannot be replayed: their ops deadlock, or a stage cannot exist."""

Key = tuple[float, float]
"""Key by which plans are compared, the least is the best: bytes by which it exceeds memory (0 where it fits), then seconds."""

Look = tuple[float, int, Pipeline, Plan, float]
"""A plan that may be worth a replay: lower bound on its seconds (in the end its quick replay), a number that breaks ties, its
pipeline, the plan, and the seconds that the bound must stay below.
"""


@dataclass(frozen=True, slots=True)
class KnownPipeline:
    """Figures of a replayed pipeline. key: bytes missing and seconds of its replay; quick: seconds of its quick replay"""

    key: Key
    quick: float

    @property
    def error(self) -> float:
        """Seconds of the replay per second of the quick replay; 1 where there is no quick replay."""
        return self.key[1] / self.quick if self.quick else 1.0


class SearchState:
    """What one search knows and has done; work is in units of `replay_work`.

    in_a_row: whether only plans are looked for that pass data through several ranks, as a request for a schedule means
    done: work so far; most: work at which the search ends; done_at_best: `done` when the best plan so far was found
    least: key of the best plan so far
    quick_seconds: by pipeline and plan, the best lower bound so far on the plan's seconds
    quick_replayed: plans for which that bound is their quick replay
    least_work: by pipeline without ZeRO, a lower bound that needs no order of ops (`QuickReplays.fill_and_work`)
    few: whether the cluster has at most FEW devices; boards: whether all of them stream their layers, as FPGA boards do
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
        self.quick_seconds: dict[Pipeline, dict[Plan, float]] = {}
        self.least_work: dict[Pipeline, float] = {}
        self.quick_replayed, self.numbers = set[Plan](), count()
        self.few = len(problem.cluster.devices) <= FEW
        self.boards = all(device.streams for device in problem.cluster.devices)

    @property
    def goes_on(self) -> bool:
        """Whether work is left, and the best plan was found recently: less work ago than it took to find, or than AFTER_BEST."""
        since = self.done - self.done_at_best
        return self.done < self.most and since <= max(AFTER_BEST * WORK_PER_SECOND, self.done_at_best)

    @property
    def ended(self) -> bool:
        """Whether all of the work that the search may take is done."""
        return self.done >= self.most

    def until(self, end: float) -> None:
        """Let the search end once `end` work is done in all, and restart the count of work since the best plan."""
        self.most, self.done_at_best = end, self.done

    def look_for_all(self) -> None:
        """Admit plans of a single rank as well, since no plan of several ranks fits."""
        self.in_a_row = False
        self.evaluate.withdraw()
        self.evaluate.look_for(None)

    def replayed(self) -> dict[Plan, Score]:
        """Replayed plans that may be the answer (`is_asked_for`), with their scores."""
        return {plan: score for plan, score in self.evaluate.replayed.items() if self.is_asked_for(plan)}

    def is_asked_for(self, plan: Plan) -> bool:
        """Whether a plan is flushed, is admitted by the evaluator, and has the stages, micro-batches and chunks that the request
        names.

        The planners that find plans to begin with need not keep to these numbers.
        """
        numbers = len(plan.microbatches), len(plan.stages), plan.chunks
        return flushes(plan) and self.evaluate.admits(plan) and self.request.counts_are(*numbers)

    def bound(self) -> float:
        """Lower bound on the seconds of an iteration of any flushed plan of the problem."""
        return lower_bound(self.problem, self.evaluate.layer_costs).of(flush=True).seconds

    def leaves(self, part: float) -> bool:
        """Whether the problem's lower bound is below the best plan's seconds by more than this share of them.

        True also where nothing fits yet, and where plans are judged by something else than seconds.
        """
        missing, seconds = self.least
        return missing > 0.0 or self.evaluate.judge is not None or self.bound() < seconds * (1.0 - part)

    def known(self, pipeline: Pipeline) -> KnownPipeline | None:
        """Replay a pipeline and return its figures, of the better of its orders of ops; None where it cannot run."""
        known = []
        for plan in self.plans(pipeline):
            with suppress(*CANNOT_RUN):
                known.append(KnownPipeline(self.evaluate(plan).key, self._at_least(plan, self.quick(plan))))
        return min(known, key=lambda each: each.key, default=None)

    def key_of(self, pipeline: Pipeline, plan: Plan) -> Key:
        """Replay a plan of a pipeline, count the work, and return the plan's key; infinite where it cannot run."""
        self.done += ops_replayed(pipeline)
        try:
            return self.evaluate(plan).key
        except CANNOT_RUN:
            return inf, inf

    def rising(self, looks: Iterable[Look]) -> Iterator[Look]:
        """Looks in rising order of their plans' quick replays, without those whose quick replay is not below the look's limit.

        A plan's quick replay is run only once its cheaper bound is the least of all that wait.
        """
        waiting = list(looks)
        heapify(waiting)
        while waiting:
            look = heappop(waiting)
            if not self.put_back(look, waiting):
                yield look

    def put_back(self, look: Look, waiting: list[Look]) -> bool:
        """Replace a look whose bound is out of date: True if it was, and then it waits again if its new bound is below its limit.

        False if the bound is the plan's quick replay already: the look is ready to be replayed.
        """
        least, number, one, plan, below = look
        known = self.quick_seconds[one]
        if plan not in self.quick_replayed:
            self.quick_replayed.add(plan)
            known[plan] = max(known[plan], self._at_least(plan, self.quick(plan)))
        elif least == known[plan]:
            return False
        if known[plan] < below:
            heappush(waiting, (known[plan], number, one, plan, below))
        return True

    def waiting(self, pipeline: Pipeline, best: Key) -> Iterator[Look]:
        """Looks at the plans of a pipeline whose lower bound is below the seconds of `best`; none if the pipeline is not asked
        for.

        The work of a quick replay is counted when a pipeline is first looked at, whether or not a bound saves it.
        best: key to be undercut; while that misses memory every plan is looked at
        """
        if not self.moves.allows(pipeline) or (self.in_a_row and len(pipeline.ranks) == 1):
            return
        below = inf if best[0] else best[1]
        if pipeline not in self.quick_seconds:
            alike = replace(pipeline, zero=0, shard=0)  # what replicas divide only adds to forwards and backwards
            if alike not in self.least_work:
                self.least_work[alike] = max(map(self.quick.fill_and_work, islice(self.plans(alike), 1)), default=0.0)
            self.quick_seconds[pipeline] = {
                plan: self._at_least(plan, self.least_work[alike]) for plan in self.plans(pipeline)
            }
            self.done += QUICK_BY_STAGE * pipeline.stages * len(self.quick_seconds[pipeline])
        for plan, seconds in self.quick_seconds[pipeline].items():
            if seconds < below:
                yield seconds, next(self.numbers), pipeline, plan, below

    def _at_least(self, plan: Plan, seconds: float) -> float:
        """Lower bound on the score of a plan, given a lower bound on its seconds."""
        return seconds if self.evaluate.judge is None else self.evaluate.at_least(plan.devices, seconds)

    def plans(self, pipeline: Pipeline) -> Iterator[Plan]:
        """The plan of a pipeline, and for families whose order depends on seconds (`with_timed`) the one timed for its stages;
        none where it cannot run.
        """
        try:
            plan = pipeline.plan(self.problem, self.name)
            if pipeline.opposite:
                order_of_plan(plan)  # not every number of stages has a mirror image
            yield from with_timed(self.problem, (plan,), self.evaluate.layer_costs)
        except ValueError:
            return


def ops_replayed(pipeline: Pipeline) -> int:
    """Work of a replay of a pipeline (`replay_work`), as if all ranks had as many replicas as the largest."""
    return replay_work(pipeline.stages, max(pipeline.replicas), pipeline.microbatches * pipeline.slices)
