"""Planner `joint`: every decision of a flushed pipeline searched together.

The planners that search a part of the decisions exactly (shapes of large models, the pipeline × data grid, mixed devices) give
plans to begin with, climbs of niches others. From the fastest of unlike ones the search descends: it replays the neighbours
that one decision makes of a plan, goes to the best one, and ends where no neighbour is faster. A quick replay, which is never
slower than a replay, rules most neighbours out before they are replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count, islice, takewhile
from math import inf
from typing import Any

import numpy as np

from planners.joint.climbs import Climbs
from planners.joint.neighbourhood import CHUNKS, DIVIDING, FAMILIES, Neighbourhood
from planners.joint.niches import Niches
from planners.joint.orders import in_order, ops_of, orders, within
from planners.joint.pipeline import Pipeline, pipeline_of
from planners.joint.told import complexity, next_best, own_order, passes_devices, simpler_plan, unordered
from planners.partitioning.fraction_search import FractionSearch
from planners.scheduler.bound import lower_bound as order_bound
from planners.scheduler.instance import instance_of
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.search.candidates import (
    asked_degrees,
    asked_words,
    asked_zeros,
    searched_counts,
    straight_decisions,
    straight_shape,
)
from planners.search.evaluator import Evaluator, Planner, fitting
from planners.search.notes import HALVES_ASSUMED, Note, halves_are_known
from planners.search.quick_replay import QuickReplays, order_of, order_of_plan
from planners.search.replay_work import WORK_PER_SECOND, replay_work, work_of
from planners.search.request import Request
from planners.search.timed_orders import with_timed
from simulator import (
    InfeasiblePlanError,
    Plan,
    PlanCosts,
    Problem,
    Recompute,
    Schedule,
    ScheduleError,
    Score,
    cuts_of,
    flushes,
    lower_bound,
    schedule_families,
)

LEFT_OUT = (
    "not searched: offload of stashes and states to the host, groups of unlike sizes, layers that stages share but on boards, "
    "orders of ops but those of the fastest pipelines in one direction, of whole sequences"
)
"""Decisions that are not searched."""

STARTS = 32
"""Unlike plans from which the search descends."""

BRIEFLY = ("schedule", "ZeRO")
"""Decisions that are made of all these first; the rest follows from the fastest on."""

OF_BEGINNING = 0.3
"""Part of the work that these may take."""

OF_A_FORM = 2
"""Of these, plans of the same form; and seeds of each schedule family."""

UNTRIED, OF_UNTRIED = 6, 0.4
"""Forms of these that no earlier round came to, at most, from which a further one begins; the part of its descents' work."""

SECONDS = 20.0
"""Nominal seconds of replays where none are asked for; a round more where it is worth it."""

DRY = 0.5
"""Part of the work of a round: where one ends with less done, pipelines are sown that were left out on many devices."""

GAINED, LEFT = 0.005, 0.2
"""Parts of the seconds of the best plan that a round gains, and that the problem's bound leaves, at least, for a round more."""

FIRST_ROUND = 5.0
"""Nominal seconds of the first round of descents; each further one ends at twice the work of the one before."""

NEAR_BOUND = 0.05
"""Part of the best plan's seconds that the problem's bound leaves, at least, for a further round, where none are asked for."""

OF_ORDERS = 0.26
"""Part of the work that is left to searches for orders, where there are any."""

ROUNDS = ((8, 2.0, 0.05), (4, 4.0, 0.05), (2, 1.0, 0.05))
"""Rounds of searches for orders: of how many pipelines, the fastest so far, with transfers how many times as long, and nominal
seconds of each search.
"""

ORDERS = 2
"""Orders of a search that are replayed."""

OF_SAME_SHAPE = 8, 2
"""Pipelines of the same replicas, groups and stages per device, at most, whose orders are bounded, and searched."""

OF_A_REPLAY = 0.2
"""Part of a replay's work that it counts beside searches for orders, which take far longer for theirs."""

WORTH = 0.001
"""Part of the best seconds that a bound must leave to gain, for a search for an order."""

ORDERABLE, ORDERED = 24, 1.3
"""Pipelines, at most, of which those with most to gain have their orders searched, and how far above the best they may be."""

SHARED, OF_SHARED = 3, 0.15
"""Plans on boards, the fastest of unlike schedules and devices, whose cuts are moved into layers; the part of the work for it."""

AFTER_BEST = 3.0
"""Nominal seconds of replays, at least, without a better answer before the search ends."""

QUICK_BY_STAGE = 20
"""Ops whose replay takes as long as a stage of a quick replay."""

Key = tuple[float, float]
"""Bytes that a plan misses, and its seconds: the least is the best."""

MOST_GAINED = 0.85
"""Part of the seconds of the plans to begin with that descents do not undercut: where it beats no other answer there are none."""

LEAST_ABOVE = 0.4
"""Part of what these take above the problem's bound that descents leave: where it beats no other answer there are none either."""

PROMISING = 2.0
"""How far above the fastest plan to begin with another may be for a descent from it."""

SOWN_ON = 16
"""Devices up to which seeds are replayed beside plans of other planners that fit."""

SOWN, OF_SEEDS = 32, 0.15
"""Seeds that are replayed, at most, and the part of the work that they may take."""

OF_OTHERS = 8
"""Plans of other schedules, the fastest, whose stages are replayed under the one that is asked for."""

NICHED_ON = 32
"""Devices up to which niches are climbed."""

NICHES, BEGUN_BELOW, CLIMBED_BELOW = 24, 2.0, 1.2
"""Niches that are climbed, at most, and how far above the fastest plan their estimates may be to begin with and to climb."""

OF_NICHES = 1.8
"""Work that climbs of niches may take, per work of the first round, which it comes beside."""

CUTS, LOOKED_AT = "layers of stages", 24
"""The decision whose neighbours are looked at that estimates choose, so many of them."""

UNCLIMBED = CUTS, "recomputation", "ZeRO"
"""Decisions whose neighbours are not climbed from."""

PATIENCE = 12
"""Neighbours that are replayed without a better one before the rest of a decision's are given up."""

NEAR = 1.03
"""How far a neighbour may be above the plan, by its quick replay if that errs as the plan's own does, to be replayed."""

SAME = 1.0 + 1e-6
"""How far above the fastest a plan may be that is taken because it is simpler, or needs less memory."""

CANNOT_RUN = (InfeasiblePlanError, ScheduleError)
"""Why a neighbour has no replay: its ops or stages cannot be."""

Look = tuple[float, int, Pipeline, Plan, float]
"""Lower bound on a plan's quick replay, or that; its number; whose plan it is; and what the quick replay must be below."""

Part = Callable[[Problem, Request], Planner | None]
"""(problem, request) -> a planner whose plans are begun with; None where it plans none of what is asked for."""


@dataclass(frozen=True, slots=True)
class JointSearch:
    """The fastest plan that descents from the plans of other searches come to."""

    request: Request = field(default_factory=Request)
    parts: tuple[Part, ...] = ()
    name: str = "joint"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan that fits, of those of several ranks where a schedule is asked for and one of them fits;
        InfeasiblePlanError, with numbers, if none does.
        """
        search = _Descents(self, problem, evaluate)
        try:
            best = self._found(search, rng)
        except InfeasiblePlanError:
            if not search.in_a_row:
                raise
            search.look_for_all()
            best = self._found(search, rng)
        search.tell(best)
        if not halves_are_known(problem) and (best.order or best.schedule in DIVIDING):
            evaluate.note(HALVES_ASSUMED)
        return replace(best, planner=self.name)

    def _found(self, search: _Descents, rng: np.random.Generator) -> Plan:
        """The best plan of a search that fits; InfeasiblePlanError, with numbers, if none does."""
        refusal = search.begin(rng)
        if not search.replayed():
            raise refusal or InfeasiblePlanError(f"planner {self.name!r} finds no plan to begin with")
        try:
            return fitting(self.name, search.descend(), search.evaluate)
        except InfeasiblePlanError as error:
            if search.done < search.most:
                raise
            raise InfeasiblePlanError(f"{error}, or more --seconds: the search ended with its work done") from None


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why there is no pipeline of the kind that is asked for, or None."""
    if request.schedule is not None:
        family = schedule_families()[request.schedule]
        if not family.flush or family.lanes:
            return f"it plans schedules that flush, of one op at a time; {request.schedule!r} is none"
    try:
        for option in ("tensor", "context", "expert"):
            asked_degrees(problem, request, option=option)
        asked_zeros(problem, request)
    except ValueError as error:
        return str(error)
    return straight_shape(problem, request) or _not_opposite(problem, request)


def _not_opposite(problem: Problem, request: Request) -> str | None:
    """Why no two pipelines in opposite directions are as asked for, or None, also where none are asked for."""
    if request.schedule is None or schedule_families()[request.schedule].placement != "bidirectional":
        return None
    if request.microbatches == 1:
        return f"schedule {request.schedule!r} has micro-batches in both directions, at least 2, got 1"
    for name in ("tensor", "context", "expert"):
        if 1 not in (asked := request.asked(name) or (1,)):
            return f"schedule {request.schedule!r} has one {problem.device_word} per stage and direction, not {name} {asked[0]}"
    try:
        if request.stages is not None:
            order_of(request.schedule, request.stages, 2, 1, ())
    except ValueError as error:
        return str(error)
    return None


def searched(problem: Problem, request: Request) -> dict[str, Iterable[Any]]:
    """Values that a search tries for decisions that the request leaves open."""
    return {
        **straight_decisions(problem, request, FAMILIES, searched_counts(problem), (1, *CHUNKS)),
        "recompute": asked_words(problem, request),
        **{name: asked_degrees(problem, Request(), option=name) for name in ("tensor", "context", "expert")},
        "zero": asked_zeros(problem, Request()),
    }


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a pipeline: bytes that it misses and its seconds, and those of its quick replay."""

    key: Key
    quick: float

    @property
    def error(self) -> float:
        """Seconds of the replay per second of the quick one."""
        return self.key[1] / self.quick if self.quick else 1.0


@dataclass(slots=True)
class _Orderable:
    """Ops of a plan whose order is searched, the work of a replay of it, and the fewest seconds of those so far."""

    ops: ScheduleProblem
    work: int
    seconds: float


class _Descents:
    """The descents of one search.

    in_a_row: whether only plans that pass several devices in a row are looked for, as those that a schedule orders
    """

    def __init__(self, planner: JointSearch, problem: Problem, evaluate: Evaluator) -> None:
        self.planner, self.problem, self.evaluate = planner, problem, evaluate
        self.in_a_row = planner.request.schedule is not None and planner.request.stages != 1
        if self.in_a_row:
            evaluate.look_for(passes_devices)
        self.moves = Neighbourhood(problem, planner.request, evaluate.layer_costs)
        self.quick = QuickReplays(problem, evaluate.layer_costs)
        self.climbs = Climbs(problem, evaluate.layer_costs, self.quick)
        self.most = float(planner.request.asked("seconds") or SECONDS) * WORK_PER_SECOND
        self.done, self.done_at_best = 0.0, 0.0
        self.least: Key = (inf, inf)
        self.quickly: dict[Pipeline, dict[Plan, float]] = {}
        self.least_work: dict[Pipeline, float] = {}
        self.whole, self.passed, self.numbers = set[Plan](), set[tuple[Pipeline, int]](), count()
        self.ordered, self.tried = set[Pipeline](), set[object]()
        self.few = len(problem.cluster.devices) <= SOWN_ON
        self.boards = all(device.streams for device in problem.cluster.devices)
        self.climbs_niches = len(problem.cluster.devices) <= NICHED_ON and not self.boards

    @property
    def goes_on(self) -> bool:
        """Whether there is work left, and the last better answer is not longer ago than it took to find, or than AFTER_BEST."""
        since = self.done - self.done_at_best
        return self.done < self.most and since <= max(AFTER_BEST * WORK_PER_SECOND, self.done_at_best)

    def look_for_all(self) -> None:
        """Look for plans on one rank, too: no plan of several fits."""
        self.in_a_row = False
        self.evaluate.withdraw()
        self.evaluate.look_for(None)

    def begin(self, rng: np.random.Generator) -> InfeasiblePlanError | None:
        """Replay the plans to begin with; why the last of the parts that found none did not."""
        refusal = self._of_parts(self.planner.request, rng)
        if not self.few and not self.replayed():
            self._of_other_schedules(rng)
            if self.replayed():
                return refusal  # far nearer than any seed
        self._sow()
        return refusal

    def _of_parts(self, request: Request, rng: np.random.Generator) -> InfeasiblePlanError | None:
        """Let the other planners replay their plans; why the last of them that found none did not."""
        refusal = None
        for part in self.planner.parts:
            planner = part(self.problem, request)
            try:
                if planner is not None:
                    planner(self.problem, self.evaluate, rng)
            except InfeasiblePlanError as error:
                refusal = error
            finally:
                self.evaluate.withdraw()
        return refusal

    def _of_other_schedules(self, rng: np.random.Generator) -> None:
        """Replay pipelines under the schedule that is asked for which the other planners find under those that they plan."""
        self._of_parts(replace(self.planner.request, schedule=None), rng)
        others = self.evaluate.replayed
        for plan in sorted(others, key=lambda one: others[one].key)[:OF_OTHERS]:
            if (one := pipeline_of(self.problem, plan)) is not None:
                for other in filter(self.moves.allows, self.moves.schedules(one)):
                    self._replayed(other)
                    self.done += _work(other)

    def _sow(self) -> None:
        """Replay seeds: those of one rank that may be the fastest, and lead below what is to be beaten; of several ranks the
        quickest of each and its group, on many devices only where nothing fits yet.
        """
        most = self.done + OF_SEEDS * min(self.most, FIRST_ROUND * WORK_PER_SECOND)
        least = min((score.key for score in self.replayed().values()), default=(inf, inf))
        least = least if least[0] else (0.0, min(least[1], self.evaluate.beat / MOST_GAINED))
        below = None if least[0] else least[1]
        alone = (each for one in self.moves.seeds(most=1, below=below) for each in self._waiting(one, least))
        least = self._sow_rising(alone, least, most)
        if self.problem.stack.runs.looped_alone:
            least = self._sow_looped(least, most)
        if self.climbs_niches:
            self._sow_niches(least)
        if least[0] or (self.few and self.boards):
            self._sow_pipelines(least, most)

    def _sow_looped(self, least: Key, most: float) -> Key:
        """Replay again, with several stages each, the replicas of the whole network that were replayed: gradients of later stages
        are then reduced behind backwards of earlier ones. As `_sow_rising`.
        """
        replayed, alone = self.replayed(), dict[object, Pipeline]()
        for plan in sorted(replayed, key=lambda one: replayed[one].key):
            one = pipeline_of(self.problem, plan)
            if one is not None and one.stages == 1 and one.copies > 1:
                alone.setdefault((one.ranks, one.microbatches, one.group, one.context), one)
        looped = (each for one in alone.values() for each in self.moves.looped(one))
        return self._sow_rising((each for one in looped for each in self._waiting(one, least)), least, most)

    def _sow_rising(self, looks: Iterable[Look], least: Key, most: float) -> Key:
        """Replay by rising quick replay what may undercut the least key, until so much work is done; the least key after that."""
        for quick, _, seed, plan, _ in self._rising(looks):
            if (not least[0] and quick >= least[1]) or self.done + _work(seed) > most:
                break
            least = min(least, self._sown(seed, plan))
        return least

    def _sow_niches(self, least: Key) -> None:
        """Replay the fastest pipelines of the most promising niches, by what estimates of their placement err at least; those
        that do not fit with more recomputation.
        """
        words = sorted(self.moves.words, key=self.moves.again_seconds)
        niches, errors = Niches(self.moves, self.climbs, words[0]), dict[str, float]()
        waiting = list(niches.begun(inf if least[0] else least[1] * BEGUN_BELOW))
        most = OF_NICHES * min(self.most, FIRST_ROUND * WORK_PER_SECOND)
        for _ in range(min(NICHES, len(waiting))):
            if self.climbs.work > most:
                break
            waiting.sort(key=lambda each: each[0] * errors.get(each[1].placement, 1.0))
            seconds, niche, one = waiting.pop(0)
            if not least[0] and seconds * errors.get(niche.placement, 1.0) > least[1] * CLIMBED_BELOW:
                break
            for seconds, there in niches.fastest(one):
                known = self._replayed(there)
                if known is None:
                    continue
                errors[niche.placement] = min(errors.get(niche.placement, inf), max(1.0, known.key[1] / seconds))
                least = min(least, known.key)
                if known.key[0] and (least[0] or known.key[1] < least[1] * CLIMBED_BELOW):
                    least = min(least, self._sown_with_more_again(there, words[1:]))

    def _sown_with_more_again(self, one: Pipeline, words: Iterable[Recompute]) -> Key:
        """The key of the first of some policies with which a pipeline fits, climbed with it; else of the last."""
        known = None
        for word in words:
            other = replace(one, recompute=((word, 0),) * one.stages)
            there = self.climbs.climbed(other)
            known = self._replayed(other if there is None else there[1]) or known
            if known is not None and not known.key[0]:
                break
        return (inf, inf) if known is None else known.key

    def _sow_pipelines(self, least: Key, most: float, *, looked_at: float = inf) -> None:
        """Replay the quickest seeds of each several ranks and groups, until so much work is done, and look at no more of them."""
        seeds = takewhile(lambda _: self.done < looked_at, self.moves.seeds(least=2))
        quickest = dict[tuple[object, ...], tuple[Pipeline, Plan]]()
        for _, _, seed, plan, _ in self._rising(each for one in seeds for each in self._waiting(one, (0.0, inf))):
            quickest.setdefault((seed.ranks, seed.group), (seed, plan))
            if len(quickest) == SOWN:
                break
        for seed, plan in quickest.values():
            if self.done + _work(seed) > most and not least[0]:
                break
            least = min(least, self._sown(seed, plan))

    def _sown(self, seed: Pipeline, plan: Plan) -> Key:
        """The key of the replay of a seed's plan, infinite where it cannot run."""
        self.done += _work(seed)
        try:
            return self.evaluate(plan).key
        except CANNOT_RUN:
            return inf, inf

    def descend(self) -> Plan:
        """The best flushed plan of all descents, and of those replayed before.

        More work than that of FIRST_ROUND is for further rounds, each of which ends at twice the work of the one before: where
        the work ends with a round, it answers no worse than where it ended with an earlier one.
        """
        self.least = min((score.key for score in self.replayed().values()), default=self.least)
        more = unasked = self.planner.request.asked("seconds") is None
        sown = self.few or self.least[0] > 0.0
        whole, begun, end = self.most, 0.0, min(self.most, FIRST_ROUND * WORK_PER_SECOND)
        while self._may_beat():
            before = self.least
            self._round(begun, end)
            if self.done < begun + DRY * (end - begun) and not sown:
                self._sow_pipelines(self.least, end, looked_at=(begun + end) / 2.0)
                sown, begun = True, self.done
                continue
            if end == whole and more and self._is_worth_a_round(before):
                whole, more = 2.0 * whole, False
            if end >= whole or (unasked and not self._leaves(NEAR_BOUND)):
                break
            begun, end = self.done, min(whole, 2.0 * end)
        self.most = whole
        replayed = self.replayed()
        missing, seconds = min(score.key for score in replayed.values())
        best = [plan for plan, score in replayed.items() if score.key <= (missing, seconds * SAME)]
        return min(best, key=lambda plan: (complexity(plan), replayed[plan].peak_bytes, replayed[plan].key))

    def _may_beat(self) -> bool:
        """Whether descents may lead from what is known to less than the other answer that is to be beaten."""
        (missing, seconds), beat = self.least, self.evaluate.beat
        if missing or beat == inf:
            return True
        if self.evaluate.judge is not None:
            return seconds * MOST_GAINED < beat
        return max(seconds * MOST_GAINED, (1.0 - LEAST_ABOVE) * self._bound() + LEAST_ABOVE * seconds) < beat

    def _bound(self) -> float:
        """Lower bound on the seconds of any plan that is looked for."""
        return lower_bound(self.problem, self.evaluate.layer_costs).of(flush=True).seconds

    def _is_worth_a_round(self, before: Key) -> bool:
        """Whether the last round was better than what was there before by GAINED, and more than LEFT may be gained still."""
        if not before[0] and self.least[1] > before[1] * (1.0 - GAINED):
            return False
        return self._leaves(LEFT)

    def _leaves(self, part: float) -> bool:
        """Whether the problem's bound leaves more than this part of the best seconds to be gained."""
        missing, seconds = self.least
        return missing > 0.0 or self.evaluate.judge is not None or self._bound() < seconds * (1.0 - part)

    def _round(self, begun: float, end: float) -> None:
        """Descend until so much work is done, of which this round began at `begun`; then search orders, on boards fractions."""
        last, work = end, (end - begun) * (1.0 - OF_SHARED * self.boards)
        end = begun + work
        descents = begun + (1.0 - OF_ORDERS * self._orders_are_open) * work
        if begun:
            self._descend_from_untried(self.done + OF_UNTRIED * (descents - self.done))
            work = end - self.done
        self.most, self.done_at_best = self.done + OF_BEGINNING * work, self.done
        started = self._briefly_descended()
        self.most, self.done_at_best = descents, self.done
        for _, one, decisions in sorted(started, key=lambda each: each[0]):
            self._descend_from(one, decisions)
        starts = [] if self.done >= descents else self._of_families()
        for left, one in zip(range(len(starts), 0, -1), starts, strict=True):
            self.most, self.done_at_best = self.done + (descents - self.done) / left, self.done
            self._descend_from(one, self.moves.within_a_family)
        self.most = min(end, self.done + OF_ORDERS * work)
        if self._orders_are_open:
            self._order()
        self.most = last
        if self.boards:
            self._share()

    def _descend_from_untried(self, end: float) -> None:
        """Descend, until so much work is done, from forms that wait behind faster ones in every round: each takes as much."""
        starts = [one for one in self._starts() if _form(one) not in self.tried][:UNTRIED]
        for left, one in zip(range(len(starts), 0, -1), starts, strict=True):
            self.most, self.done_at_best = self.done + (end - self.done) / left, self.done
            self.tried.add(_form(one))
            self._descend_from(one, self.moves.decisions)

    def _briefly_descended(self) -> list[tuple[Key, Pipeline, Collection[str]]]:
        """Where brief descents from unlike pipelines lead, and the decisions to descend in from there: all of them, but from one
        that leads where another did from where it began, without the schedule, which led away.
        """
        found, ends = list[tuple[Key, Pipeline, Collection[str]]](), set[Pipeline]()
        for start in self._starts():
            self.done_at_best = self.done  # none of them ends early
            if self.goes_on:
                self.tried.add(_form(start))
            key, one = self._descend_from(start, BRIEFLY)
            if one != start and one in ends:
                known = self._replayed(start)
                found.append(((inf, inf) if known is None else known.key, start, self.moves.within_a_family))
            else:
                found.append((key, one, self.moves.decisions))
            ends.add(one)
        return found

    def _share(self) -> None:
        """Replay the fastest plans with cuts inside layers, which are moved while replays get better."""
        search, unlike = FractionSearch(self.evaluate, self.planner.request), dict[object, Plan]()
        replayed = self.replayed()
        for plan in sorted(replayed, key=lambda one: replayed[one].key):
            if len(plan.stages) > 1 and cuts_of(plan) is not None and len(unlike) < SHARED:
                unlike.setdefault((plan.schedule, *(stage.devices for stage in plan.stages)), plan)
        for plan in unlike.values():
            moves, moved = search.climbed(plan), True
            while moved and self.done < self.most:
                made = self.evaluate.evaluations
                moved = next(moves, None) is not None
                self.done += work_of(plan) * (self.evaluate.evaluations - made)

    def replayed(self) -> dict[Plan, Score]:
        """Flushed plans that were replayed and are what is asked for, and their scores."""
        return {plan: score for plan, score in self.evaluate.replayed.items() if self._is_asked_for(plan)}

    def _is_asked_for(self, plan: Plan) -> bool:
        """Whether a plan is flushed, may be the answer, and has the numbers that are asked for, which parts may leave open."""
        numbers = len(plan.microbatches), len(plan.stages), plan.chunks
        return flushes(plan) and self.evaluate.admits(plan) and self.planner.request.counts_are(*numbers)

    def tell(self, plan: Plan) -> None:
        """Note what the answer is beside other plans, what is not searched, and whether the work ended the search."""
        replayed = {
            one: score for one, score in self.evaluate.outcomes.items() if score.fits and self._is_asked_for(one)
        }
        notes: list[Note | None] = [own_order(plan, replayed), simpler_plan(self.problem, plan, replayed)]
        if self.planner.request.schedule is not None and self.planner.request.stages != 1:
            notes.append(unordered(self.problem, plan, self.evaluate))
        notes += [next_best(self.problem, plan, replayed), Note(LEFT_OUT)]
        if self.done >= self.most:
            notes.append(Note("the search ended with its work done: with more --seconds it may find more"))
        for note in filter(None, notes):
            self.evaluate.note(note)

    @property
    def _orders_are_open(self) -> bool:
        """Whether a plan may have an order of its own."""
        return self.planner.request.schedule is None and not self.problem.stack.runs.schedules

    def _order(self) -> None:
        """Replay searched orders of the fastest pipelines of unlike stages, of those again where they gain most, then with near
        numbers of micro-batches while these are faster.
        """
        found = self._orderable()
        for most, slower, seconds in ROUNDS:
            for plan in sorted(found, key=lambda one: found[one].seconds)[:most]:
                if self.done >= self.most:
                    return
                found |= self._in_orders(plan, found[plan], slower, seconds)
        better = bool(found)
        while better and self.done < self.most:
            fastest = min(found, key=lambda one: found[one].seconds)
            before = found[fastest].seconds
            for plan, one in self._with_other_counts(fastest, before * ORDERED):
                found[plan] = one
                found |= self._in_orders(plan, one, *ROUNDS[0][1:])
            better = min(one.seconds for one in found.values()) < before

    def _with_other_counts(self, plan: Plan, below: float) -> Iterator[tuple[Plan, _Orderable]]:
        """The plan with near numbers of micro-batches, if it takes less than `below` seconds, while there is work left."""
        for one in filter(self.moves.allows, self.moves.counts(self._pipeline(plan))):
            if self.done >= self.most:
                return
            other = one.plan(self.problem, self.planner.name)
            found = None if _unordered(one) in self.ordered else self._limited(other)
            if found is not None and found.seconds < below:
                yield other, found

    def _in_orders(self, plan: Plan, one: _Orderable, slower: float, seconds: float) -> dict[Plan, _Orderable]:
        """Replay searched orders of a plan, also with the cuts where moves of them lead under each; what these make faster."""
        found = dict[Plan, _Orderable]()
        self.done += seconds * WORK_PER_SECOND
        for order in orders(one.ops, slower, seconds)[:ORDERS]:
            one.seconds = min(one.seconds, self._in_order(plan, order, one.work))
            other = self._cut_for(plan, order)
            took = inf if other is None else self._in_order(other, order, one.work)
            if other is not None and took < one.seconds:
                there = self._limited(other)
                if there is not None:
                    there.seconds, found[other] = took, there
        return found

    def _in_order(self, plan: Plan, order: Schedule, work: int) -> float:
        """Seconds of a plan in an order of its own; inf where it cannot run or does not fit."""
        self.done += OF_A_REPLAY * work
        with suppress(*CANNOT_RUN):
            score = self.evaluate(in_order(plan, order))
            if score.fits:
                return score.key[1]
        return inf

    def _cut_for(self, plan: Plan, order: Schedule) -> Plan | None:
        """The plan with the cuts where moves of them lead under an order; None where they lead nowhere."""
        one, began = self._pipeline(plan), self.climbs.work
        there = self.climbs.climbed(one, order)
        self.done += self.climbs.work - began
        return None if there is None or there[1] == one else there[1].plan(self.problem, self.planner.name)

    def _orderable(self) -> dict[Plan, _Orderable]:
        """Pipelines of unlike stages that fit and whose orders no earlier round searched: those with most to gain, by a bound on
        their orders and what they take, few of the same shape.
        """
        promise, bounded = dict[Plan, float](), Counter[object]()
        for plan, seconds in self._unlike():
            shape = _shape(self._pipeline(plan))
            if len(promise) == ORDERABLE:
                break
            if bounded[shape] < OF_SAME_SHAPE[0]:
                ops = ops_of(PlanCosts(self.problem, plan, self.evaluate.layer_costs))
                least = order_bound(instance_of(ops), windows=False)
                if least <= self.least[1] * (1.0 - WORTH):
                    promise[plan] = least * seconds
                    bounded[shape] += 1
        orderable, searched = dict[Plan, _Orderable](), Counter[object]()
        for plan in sorted(promise, key=lambda one: promise[one]):
            shape = _shape(self._pipeline(plan))
            if self.done >= self.most or len(orderable) == ROUNDS[0][0]:
                break
            searched[shape] += 1
            found = self._limited(plan) if searched[shape] <= OF_SAME_SHAPE[1] else None
            if found is not None:
                orderable[plan] = found
        return orderable

    def _unlike(self) -> Iterator[tuple[Plan, float]]:
        """The fastest of the plans that differ in their order alone and whose orders no earlier round searched, and its seconds,
        by these, if it fits and is near the best.
        """
        replayed, stages = self.replayed(), set(self.ordered)
        for plan in sorted(replayed, key=lambda one: replayed[one].key):
            score, one = replayed[plan], pipeline_of(self.problem, plan)
            if not score.fits or score.iteration_seconds > self.least[1] * ORDERED:
                return
            if one is None or len(one.ranks) == 1 or one.opposite or one.slices > 1 or _unordered(one) in stages:
                continue
            stages.add(_unordered(one))
            if self.done + OF_A_REPLAY * _work(one) <= self.most:
                yield plan, score.iteration_seconds

    def _limited(self, plan: Plan) -> _Orderable | None:
        """The ops of a plan within the memory that it leaves; None where it does not fit, or its own order is none of them."""
        one = self._pipeline(plan)
        self.ordered.add(_unordered(one))
        self.done += OF_A_REPLAY * _work(one)
        try:
            missing, seconds = self.evaluate(plan).key
        except CANNOT_RUN:
            return None
        if missing:
            return None
        peaks = self.evaluate.peak_bytes(plan) or {}
        free = {device: self.problem.room_bytes(device) - peak for device, peak in peaks.items()}
        ops = within(ops_of(PlanCosts(self.problem, plan, self.evaluate.layer_costs)), plan, free)
        return None if ops is None else _Orderable(ops, _work(one), seconds)

    def _pipeline(self, plan: Plan) -> Pipeline:
        """The pipeline that a plan of a family is."""
        one = pipeline_of(self.problem, plan)
        assert one is not None
        return one

    def _of_families(self) -> list[Pipeline]:
        """Of each schedule family, which free descents may leave too soon: the fastest pipeline that was replayed, if near the
        best, and its quickest seeds.
        """
        found: dict[str, Pipeline] = {}
        replayed, most = self.replayed(), self.least[1] * ORDERED
        for plan in sorted(replayed, key=lambda one: replayed[one].key):
            if not replayed[plan].fits or replayed[plan].iteration_seconds > most:
                break
            if (one := pipeline_of(self.problem, plan)) is not None:
                found.setdefault(one.schedule, one)
        sown = list[Pipeline]()
        for name in self.moves.families if self.few else ():
            request = replace(self.planner.request, schedule=name)
            seeds = islice(Neighbourhood(self.problem, request, self.evaluate.layer_costs).seeds(), SOWN)
            near = (each for one in seeds for each in self._waiting(one, (0.0, self.least[1] * PROMISING)))
            sown += [one for _, _, one, _, _ in islice(self._rising(near), OF_A_FORM)]
        return list(dict.fromkeys([*found.values(), *sown]))

    def _starts(self) -> list[Pipeline]:
        """The fastest pipelines of unlike shapes that were replayed, those that fit first."""
        found: dict[tuple[object, object], Pipeline] = {}
        replayed = self.replayed()
        keys = {plan: score.key for plan, score in replayed.items()}
        missing, seconds = min(keys.values(), default=(inf, inf))
        for plan in sorted(keys, key=lambda one: keys[one]):
            one = pipeline_of(self.problem, plan)
            if one is not None and (missing or keys[plan] <= (0.0, seconds * PROMISING)):
                found.setdefault((_form(one), one.cuts), one)
        alike, starts = Counter[object](), list[Pipeline]()
        for (form, _), one in found.items():
            alike[form] += 1
            if alike[form] <= OF_A_FORM:
                starts.append(one)
        return starts[:STARTS]

    def _descend_from(self, one: Pipeline, decisions: Collection[str]) -> tuple[Key, Pipeline]:
        """Go to the best neighbour, decision by decision, until none is faster, a descent was there, or the work is done; where
        that was, and its key.
        """
        now = self._replayed(one)
        moved = now is not None
        while moved and self.goes_on:
            moved = False
            for name in decisions:
                while self.goes_on:
                    assert now is not None
                    found = self._best(self._near(name, one), now, climbing=self.few and name not in UNCLIMBED)
                    if found is None:
                        break
                    (one, now), moved = found, True
                    if (one, len(decisions)) in self.passed:
                        return now.key, one
                    self.passed.add((one, len(decisions)))
        return ((inf, inf) if now is None else now.key), one

    def _near(self, name: str, one: Pipeline) -> Iterable[Pipeline]:
        """The neighbours that a decision makes of a pipeline; of many partitions the fastest, and where they lead."""
        near = list(self.moves.decisions[name](one))
        if name != CUTS or len(near) <= LOOKED_AT:
            return near
        seconds = self.climbs.seconds(one, np.array([other.cuts for other in near], dtype=np.int64))
        if seconds is None:
            return near
        climbed = self.climbs.climbed(one)
        fastest = [near[place] for place in np.argsort(seconds, kind="stable")[:LOOKED_AT]]
        return fastest if climbed is None else dict.fromkeys((climbed[1], *fastest))

    def _replayed(self, one: Pipeline) -> _Known | None:
        """What is known of the faster of a pipeline's orders; None where it cannot run."""
        known = []
        for plan in self._plans(one):
            with suppress(*CANNOT_RUN):
                known.append(_Known(self.evaluate(plan).key, self._at_least(plan, self.quick(plan))))
        return min(known, key=lambda each: each.key, default=None)

    def _best(self, among: Iterable[Pipeline], now: _Known, *, climbing: bool) -> tuple[Pipeline, _Known] | None:
        """The fastest of some pipelines, if it is faster than the one that is known `now`; climbing: those that are replayed, and
        differ in more than cuts, also with the cuts where these lead.

        They are replayed by rising quick replay, as far as one that errs as that of `now` does promises less seconds, and until
        PATIENCE of them were no better, of orders for their own seconds and of others each, as the quick replays of these err
        unlike: all while memory is missing, of which quick replays tell nothing. One that is faster but does not fit is replayed
        again with more recomputation.
        """
        found, idle, best, error = None, Counter[bool](), now, now.error
        waiting = [one for each in among if self.goes_on for one in self._waiting(each, best.key)]
        heapify(waiting)
        climbed, more = (
            set[Pipeline](),
            set[Pipeline](),
        )  # with more recomputation: what one that does not fit leads to may lead back to it
        while waiting and self.goes_on:
            quick, _, one, plan, _ = look = heappop(waiting)
            if not best.key[0] and quick * error >= best.key[1] * NEAR:
                break
            if self._put_back(look, waiting):
                continue
            timed = plan.options != one.options
            if not best.key[0] and idle[timed] >= PATIENCE:
                continue
            if climbing and (alike := replace(one, cuts=())) not in climbed:
                climbed.add(alike)
                for each in self._climbed(one, best.key):
                    heappush(waiting, each)
            made = self.evaluate.evaluations
            try:
                score = self.evaluate(plan)
            except CANNOT_RUN:
                continue
            made = self.evaluate.evaluations - made  # none where an earlier round replayed it
            idle[timed] += made
            self.done += _work(one) * made
            if score.key < self.least:
                self.least, self.done_at_best = score.key, self.done
            if score.key < best.key:
                found, best = one, _Known(score.key, quick)
                idle.clear()
            elif not score.fits and (best.key[0] or score.iteration_seconds < best.key[1]):
                others = dict.fromkeys(self.moves.with_more_again(one, score.device))
                for each in [each for other in others if other not in more for each in self._waiting(other, best.key)]:
                    heappush(waiting, each)
                more.update(others)
        return None if found is None else (found, best)

    def _climbed(self, one: Pipeline, best: Key) -> Iterator[Look]:
        """Where moves of cuts lead from a pipeline, if they lead anywhere, and it may be faster there."""
        began = self.climbs.work
        there = self.climbs.climbed(one)
        self.done += self.climbs.work - began
        if there is not None and there[1] != one:
            yield from self._waiting(there[1], best)

    def _rising(self, looks: Iterable[Look]) -> Iterator[Look]:
        """Those that stay below what they must be, by rising quick replay; which is run of those alone that may be the next."""
        waiting = list(looks)
        heapify(waiting)
        while waiting:
            look = heappop(waiting)
            if not self._put_back(look, waiting):
                yield look

    def _put_back(self, look: Look, waiting: list[Look]) -> bool:
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

    def _waiting(self, one: Pipeline, best: Key) -> Iterator[Look]:
        """A pipeline's plans that may be faster; none of what is not asked for.

        Each counts as a quick replay when it is first looked at, whether or not a bound saves that.
        """
        if not self.moves.allows(one) or (self.in_a_row and len(one.ranks) == 1):
            return
        below = inf if best[0] else best[1]
        if one not in self.quickly:
            alike = replace(one, zero=0, shard=0)  # what replicas divide only adds to forwards and backwards
            if alike not in self.least_work:
                self.least_work[alike] = max(map(self.quick.fill_and_work, islice(self._plans(alike), 1)), default=0.0)
            self.quickly[one] = {plan: self._at_least(plan, self.least_work[alike]) for plan in self._plans(one)}
            self.done += QUICK_BY_STAGE * one.stages * len(self.quickly[one])
        for plan, seconds in self.quickly[one].items():
            if seconds < below:
                yield seconds, next(self.numbers), one, plan, below

    def _at_least(self, plan: Plan, seconds: float) -> float:
        """Lower bound on a plan's score whose seconds have one."""
        return seconds if self.evaluate.judge is None else self.evaluate.at_least(plan.devices, seconds)

    def _plans(self, one: Pipeline) -> Iterator[Plan]:
        """Its plan, and the one of an order for its own seconds where the family has such; none where it cannot run."""
        try:
            plan = one.plan(self.problem, self.planner.name)
            if one.opposite:
                order_of_plan(plan)  # not every number of stages has a mirror image
            yield from with_timed(self.problem, (plan,), self.evaluate.layer_costs)
        except ValueError:
            return


def _form(one: Pipeline) -> object:
    """What descents hardly change: replicas of each rank, degrees, and whether ranks have several stages."""
    return one.replicas, one.group, one.context, one.chunks > 1


def _shape(one: Pipeline) -> tuple[object, ...]:
    """Replicas of each rank, devices of a group and stages per rank."""
    return one.replicas, one.group, one.chunks


def _unordered(one: Pipeline) -> Pipeline:
    """The same for pipelines that differ in their order alone."""
    return replace(one, schedule=schedule_families()[one.schedule].placement, options=())


def _work(one: Pipeline) -> int:
    """`replay_work` of its plans, as if all ranks had the most replicas."""
    return replay_work(one.stages, max(one.replicas), one.microbatches * one.slices)
