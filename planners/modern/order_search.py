"""Planners that order the ops themselves: `scheduler` for stages balanced by seconds, `modern` for stages searched with their
order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb, inf
from typing import Any

import numpy as np

from hardware_profiles import gibibytes, percent
from planners.estimate.memory import layer_bytes
from planners.estimate.pipeline_seconds import pipelined
from planners.modern.layouts import Layout, LayoutCosts
from planners.partitioning.fastest_cuts import fastest_cuts
from planners.partitioning.partition_costs import straight_costs
from planners.scheduler.bound import lower_bound
from planners.scheduler.instance import instance_of
from planners.scheduler.search import (
    LIST_SCHEDULING,
    OPS_PER_SECOND,
    FoundSchedule,
    SearchInterrupted,
    search_schedule,
)
from planners.search.candidates import (
    FEW_SAMPLES,
    MOST_OPS,
    asked_policies,
    counts_by_size,
    devices_in_order,
    one_a_device,
    searched_counts,
    straight_shape,
)
from planners.search.evaluator import BudgetSpent, Evaluator, fitting
from planners.search.memory_retry import missing_bytes, within_memory
from planners.search.notes import HALVES_ASSUMED, Note, halves_are_known
from planners.search.request import Request
from simulator import (
    PLACEMENTS,
    USUAL_CHUNKS,
    InfeasiblePlanError,
    Placement,
    Plan,
    Problem,
    Recompute,
    Score,
    chains_of,
    check_size,
    equal_microbatches,
)

TRIED: tuple[Placement, ...] = ("straight", "interleaved", "v")
"""Placements to try where none is requested."""

CLIMBS = ((8, 150), (2, 600))
"""Groups of the best layouts that are improved, one after the other, each: how many layouts, and moves of each, at most."""

WORK = 3 * 2**24
"""Ops that list schedules place while layouts are compared, at most, AN_ORDER per layout included; layouts after that are not
compared.
"""

LARGEST = 64
"""A quick order of a layout takes at most WORK / LARGEST ops where micro-batches are searched."""

AN_ORDER = 2**15
"""Ops that list schedules place in the time that it takes to begin and end a quick order, however short it is."""

FEW = 36
"""Partitions in all up to which every one is a layout to begin with."""

FINALISTS = 3
"""Layouts whose order is searched in full."""

A_PART = 0.2
"""Share of a finalist's seconds of search that other layouts get: those that are first for a request of one searched decision."""

BEGUN = 16
"""Layouts that are begun for such a request, beside those explored, are compared within WORK / BEGUN ops."""

STEPS = (1, 2, 4, 8)
"""Layers by which a move shifts cuts."""

LISTS, QUICK, FULL = 10, 0.0, 0.5
"""LISTS: list schedules of a quick order; QUICK: the seconds that stand for a quick order; FULL: seconds of search for a
finalist's order.
"""


@dataclass(frozen=True, slots=True)
class OrderBound(Note):
    """How good the order of a plan's ops is known to be, without updates and on links that share no channel.

    orders_tried: in the whole search; order_seconds: of the plan's order; order_lower_bound_seconds: of any order of these stages
    and micro-batches
    order_proven: no order of these is shorter
    halves_assumed: the workload does not divide its backward passes, so half of each counts as the weights' gradient
    """

    orders_tried: int
    order_seconds: float
    order_lower_bound_seconds: float
    order_proven: bool
    halves_assumed: bool


@dataclass(frozen=True, slots=True)
class OrderSearch:
    """Planner that searches the order of ops, for stages balanced by seconds or, where `climbs`, together with the stages.

    Layouts (placement, micro-batches, recomputation) are ranked by a few list schedules each; the cuts of the best are improved
    by moves that shift one cut or a run of them, or let a stage recompute or keep; the best few that their lower bound does not
    rule out get a full search within the memory of their devices, and replays with the problem's own options choose among these.
    Evaluations are the layouts that are ranked, and the plans that are replayed.
    """

    request: Request = field(default_factory=Request)
    name: str = "modern"
    climbs: bool = True

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan that fits; InfeasiblePlanError if no layout does."""
        explored = self.explored_request(problem)
        search = _Layouts(replace(self, request=explored), problem, evaluate, rng)
        try:
            ranked = search.ranked()
        except (KeyboardInterrupt, BudgetSpent):
            search.plan_best()
            raise
        finalists = [one for one in search.finalists(ranked) if search.meets(one, self.request)]
        best = search.best_of(finalists, self.seconds, None)
        parts = [*self.parts(problem)] if explored == self.request else [self.request]
        beside = [one for one in search.first_of_parts(parts, best) if one not in finalists]
        best = search.best_of(beside, self.seconds * A_PART, best)
        if best is None:
            word = problem.device_word
            raise InfeasiblePlanError(
                f"planner {self.name!r} finds no stages that fit: the best miss {gibibytes(search.value(ranked[0])[0])} "
                f"per {word} for one of {ranked[0].microbatches} micro-batches; use more {word}s or micro-batches, recomputation "
                "or a smaller batch"
            )
        search.tell(best)
        return fitting(self.name, best, evaluate)

    def explored_request(self, problem: Problem) -> Request:
        """The request whose layouts are explored: where this one fixes a single searched decision, the same with that one left
        open.

        So what is found with the decision fixed is among what is found without.
        """
        asked = [name for name in DECISIONS if self.request.fixed(name) is not None]
        if not self.climbs or len(asked) != 1:
            return self.request
        open_ = self.request.fixing(asked[0], None)
        tried = searched_together(problem, open_)[asked[0]]
        return open_ if self.request.fixed(asked[0]) in tried else self.request

    def parts(self, problem: Problem) -> Iterator[Request]:
        """Requests with one more decision fixed; the best layout of each is a finalist, too."""
        for name, values in searched_together(problem, self.request).items() if self.climbs else ():
            yield from (self.request.fixing(name, value) for value in values)

    @property
    def seconds(self) -> float:
        """Nominal seconds of search for the order of a finalist."""
        return float(self.request.asked("seconds") or FULL)


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the planner cannot plan what is asked for, as a sentence for the user; None where it can."""
    if request.schedule is not None:
        return f"it makes an order of its own, not {request.schedule!r}"
    if any(device.streams for device in problem.cluster.devices):
        return "layers of a stage stream on a board: a backward has no two halves"
    wanted = request.asked("placement")
    chunks, devices = request.chunks, len(problem.cluster.devices)
    if chunks is None and (wanted or (request.stages or 0) > devices):
        chunks = USUAL_CHUNKS[wanted or "v"]
    if wanted and chunks is not None:
        try:
            chains_of(wanted, chunks * devices, devices)
        except ValueError as error:
            return str(error)
    return straight_shape(problem, replace(request, chunks=chunks))


def _work_of(passes: int) -> int:
    """Ops that the list schedules of a quick order place; passes: micro-batches times stages"""
    return LISTS * 3 * passes


def tried_counts(problem: Problem, stages: int, *, every: bool) -> list[int]:
    """Numbers of micro-batches to try, rising: those whose largest has 1, 2, 3, 4, 6, 8, ... samples, as far as a quick order
    stays short.

    every: for a batch of few samples also all that other planners search
    """
    counts = counts_by_size(problem)
    if every and problem.batch <= FEW_SAMPLES:
        counts.update(searched_counts(problem))
    most = max(1, WORK // LARGEST // _work_of(stages))
    return sorted(count for count in counts if count <= most)


def searched(problem: Problem, request: Request) -> dict[str, list[int]]:
    """Values that `scheduler` tries, by the name of the decision, for decisions that the request leaves open."""
    placement = request.asked("placement") or "straight"
    stages = _stages(problem, request, request.chunks or USUAL_CHUNKS[placement])
    return {"microbatches": tried_counts(problem, stages, every=True)}


DECISIONS = ("microbatches", "stages", "chunks", "recompute", "placement")
"""Decisions that `modern` searches and a request may fix."""


def searched_together(problem: Problem, request: Request) -> dict[str, tuple[Any, ...]]:
    """Values that `modern` tries, by name of DECISIONS; none where a request fixes one of them."""
    if any(request.fixed(name) is not None for name in DECISIONS):
        return dict.fromkeys(DECISIONS, ())
    stages = one_a_device(problem)
    layers, chunks = len(problem.workload), {USUAL_CHUNKS[name] for name in TRIED}
    return {
        "microbatches": tuple(tried_counts(problem, len(stages), every=True)),
        "stages": tuple(stages),
        "chunks": tuple(sorted(count for count in chunks if count <= layers)),
        "recompute": asked_policies(problem, request),
        "placement": tuple(name for name in TRIED if USUAL_CHUNKS[name] <= layers),
    }


def _stages(problem: Problem, request: Request, chunks: int) -> int:
    """Number of stages: as asked for, else `chunks` per device on as many devices as there are layers for."""
    return request.stages or min(len(problem.cluster.devices), len(problem.workload) // chunks) * chunks


class _Layouts:
    """The layouts of one problem, with what is known of them.

    orders: that were tried; work: ops that may still be placed to compare layouts
    """

    def __init__(self, planner: OrderSearch, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> None:
        self.planner, self.problem, self.evaluate, self.rng = planner, problem, evaluate, rng
        self.costs = LayoutCosts(evaluate.layer_costs)
        self.policies = asked_policies(problem, planner.request)
        self.orders = 0
        self.work = WORK if planner.climbs else inf  # what does not climb compares all that it begins with
        self._values: dict[Layout, tuple[float, float]] = {}
        self._bounds: dict[Layout, tuple[float, float]] = {}
        self._found: dict[Plan, tuple[Layout, FoundSchedule]] = {}

    def ranked(self) -> list[Layout]:
        """Layouts to begin with and those that the best of them climb to, best first; raises BudgetSpent as `value`."""
        ranked = [*self.begin()]
        for layout in sorted(
            ranked, key=lambda one: one.microbatches
        ):  # where the work ends, few micro-batches are known
            self.value(layout)
        ranked.sort(key=self.value)
        for count, moves in CLIMBS if self.planner.climbs else ():
            ranked = sorted([*(self.climbed(one, moves) for one in ranked[:count]), *ranked[count:]], key=self.value)
        return list(dict.fromkeys(ranked))

    def finalists(self, ranked: Sequence[Layout]) -> list[Layout]:
        """Layouts whose order is searched in full, best first: the FINALISTS best, or where nothing climbs the best of each
        number of micro-batches.

        The latter so that what is found for a requested number is found where none is requested.
        """
        if self.planner.climbs:
            return [*ranked[:FINALISTS]]
        counts = [layout.microbatches for layout in ranked]
        return [layout for at, layout in enumerate(ranked) if counts[:at].count(layout.microbatches) < FINALISTS]

    def best_of(self, layouts: Iterable[Layout], seconds: float, best: Plan | None) -> Plan | None:
        """The fastest of the plan `best` and the plans of layouts that may beat it; None where there are none.

        seconds: of the search for each order
        """
        for layout in layouts:
            if best is None or self.may_beat(layout, self.evaluate(best)):
                plan = self.plan(layout, seconds)
                if plan is not None:
                    best = min(best or plan, plan, key=lambda one: self.evaluate(one).key)
        return best

    def first_of_parts(self, parts: Sequence[Request], best: Plan | None) -> list[Layout]:
        """The best layout of each of these requests, best first, without those that cannot beat the plan `best`."""
        score = self.evaluate(best) if best is not None and parts else None
        explored, self.work = [*self._values], inf
        first = [self._first(one, explored, score) for one in parts]
        return sorted(dict.fromkeys(filter(None, first)), key=self.value)

    def _first(self, asked: Request, explored: Sequence[Layout], best: Score | None) -> Layout | None:
        """The best layout of a request, of those explored and of those to begin with that may beat the score `best`; None where
        there is none.

        How many of these are compared depends on the request alone.
        """
        found = [layout for layout in explored if self.meets(layout, asked)]
        known, work, policies = frozenset(found), WORK // BEGUN, asked_policies(self.problem, asked)
        for shape in sorted(self._shapes(asked), key=self._estimate):
            if work <= 0 and not all(self.costs.missing_bytes(layout) for layout in found):
                break
            stages = len(shape.cuts) + 1
            partitions = comb(len(self.problem.workload) - 1, stages - 1)
            layouts = len(policies) * (partitions if partitions <= FEW else 2)
            work -= layouts * (AN_ORDER + _work_of(shape.microbatches * stages))
            if best is not None and best.fits and self._least_share(shape) >= best.iteration_seconds:
                continue
            found += [
                layout
                for layout in self._filled(shape, policies)
                if layout not in known and (best is None or self.may_beat(layout, best))
            ]
        return min(found, key=self.value, default=None)

    def meets(self, layout: Layout, asked: Request) -> bool:
        """Whether a layout has the numbers, the recompute policy and the placement that a request asks for."""
        stages = len(layout.recompute)
        return (
            asked.counts_are(layout.microbatches, stages, stages // len(layout.devices))
            and (asked.recompute is None or {*layout.recompute} == {asked.recompute})
            and asked.asked("placement") in (None, layout.placement)
        )

    def _estimate(self, shape: Layout) -> float:
        """Estimated seconds of a shape with equal stages, by which shapes are compared in turn."""
        return (
            pipelined(float(len(shape.devices)), 1.0, shape.microbatches)
            * self._least_share(shape)
            / shape.microbatches
        )

    def _least_share(self, layout: Layout) -> float:
        """Lower bound on the seconds of the most loaded device of a layout, wherever its cuts are."""
        batch, count = self.problem.batch, layout.microbatches
        kinds = {self.costs.costs.kind_of_device(device): device for device in layout.devices}.values()
        sizes = Counter(equal_microbatches(batch, count))
        seconds = sum(
            times * min(self._network_seconds(device, samples) for device in kinds) for samples, times in sizes.items()
        )
        return seconds / len(layout.devices) * (1.0 - 1e-9)

    def _network_seconds(self, device: int, samples: int) -> float:
        """Seconds of all passes of the whole network over so many samples on a device."""
        return sum(
            float(self.costs.costs.seconds(device, samples, phase).sum())
            for phase in ("forward", "input_gradient", "weight_gradient")
        )

    def may_beat(self, layout: Layout, best: Score) -> bool:
        """Whether a plan of a layout may be faster than the one with score `best`: its lower bound is lower, or one of them does
        not fit.
        """
        if not best.fits or self.costs.missing_bytes(layout):
            return True
        return self.costs.least_seconds(layout) < best.iteration_seconds

    def plan_best(self) -> None:
        """Replay a plan of the best layout so far, so that a search that is stopped has an answer."""
        best = min(self._values, key=self.value, default=None)
        if best is not None:
            self.plan(best, QUICK)

    def begin(self) -> Iterator[Layout]:
        """Layouts to begin with: every placement, number of micro-batches and recompute policy, with balanced cuts."""
        policies = self.policies if self.planner.climbs else self.policies[:1]
        for shape in self._shapes(self.planner.request):
            yield from self._filled(shape, policies)

    def _filled(self, shape: Layout, policies: Sequence[Recompute]) -> Iterator[Layout]:
        """Layouts of a shape with balanced cuts, each under one recompute policy for all stages."""
        for cuts in self._balanced(shape):
            for policy in policies:
                yield replace(shape, cuts=cuts, recompute=(policy,) * (len(cuts) + 1))

    def _shapes(self, request: Request) -> Iterator[Layout]:
        """Every placement and number of micro-batches of a request, as layouts without cuts (all are 0) and policies."""
        order = devices_in_order(self.problem)
        for placement in self._placements(request):
            chunks = request.chunks or USUAL_CHUNKS[placement]
            stages = _stages(self.problem, request, chunks)
            if stages % chunks or not 1 <= stages // chunks <= len(order):
                continue
            for count in self._counts(request, stages):
                yield Layout(placement, order[: stages // chunks], (0,) * (stages - 1), count, ())

    def _placements(self, request: Request) -> tuple[Placement, ...]:
        """The requested placement, else those of TRIED that have the stages, and stages per device, asked for; `scheduler` takes
        the first.
        """
        most = len(self.problem.cluster.devices)
        asked, chunks = request.asked("placement"), request.chunks
        if asked is not None:
            return tuple(name for name in PLACEMENTS if name == asked)
        fit = [
            name
            for name in TRIED
            if chunks in (None, USUAL_CHUNKS[name]) or (name == "interleaved" and (chunks or 0) > USUAL_CHUNKS[name])
            if (request.stages or 1) <= most * (chunks or USUAL_CHUNKS[name])
        ]
        return tuple(fit if self.planner.climbs else fit[:1])

    def _counts(self, request: Request, stages: int) -> list[int]:
        """Numbers of micro-batches: the requested one, else as in `tried_counts`; ValueError for more than a search replays."""
        asked = request.microbatches
        if asked is None:
            return tried_counts(self.problem, stages, every=not self.planner.climbs)
        check_size(stages, asked, most=MOST_OPS)
        return [asked]

    def _balanced(self, layout: Layout) -> list[tuple[int, ...]]:
        """Cuts to begin with: all where these are FEW; else those that balance seconds, and those that balance bytes."""
        costs, layers = self.evaluate.layer_costs, len(self.problem.workload)
        devices = [layout.devices[place] for place in layout.places]
        if comb(layers - 1, len(devices) - 1) <= FEW:
            return list(combinations(range(1, layers), len(devices) - 1))
        tables = straight_costs(costs, devices, self.costs.samples(layout.microbatches), alternating=True)
        chunks = len(devices) // len(layout.devices)
        found = [cuts for _, cuts in fastest_cuts(tables, layout.microbatches * chunks)[:1]]
        held = layer_bytes(costs, self.costs.samples(layout.microbatches))
        upto = np.cumsum(held)
        even = np.searchsorted(upto, upto[-1] * np.arange(1, len(devices)) / len(devices)) + 1
        room = len(held) - np.arange(len(devices) - 1, 0, -1)
        even = np.minimum(np.maximum.accumulate(np.maximum(even, np.arange(1, len(devices)))), room)
        if len(np.unique(even)) == len(even):
            found.append(tuple(even.tolist()))
        return list(dict.fromkeys(found))

    def value(self, layout: Layout) -> tuple[float, float]:
        """Rank of a layout, the least is the best: bytes that the fullest device lacks for one micro-batch, and seconds of a
        quick order.

        Infinite seconds where the work is done; BudgetSpent where the budget allows no more than one replay.
        """
        if layout not in self._values:
            missing = self.costs.missing_bytes(layout)
            if not missing:
                if self.work <= 0:
                    return 0.0, np.inf
                if self.evaluate.remaining <= 1:
                    raise BudgetSpent
                self.evaluate.credit(1)
                self.work -= AN_ORDER + _work_of(layout.microbatches * len(layout.recompute))
            seconds = 0.0 if missing else self.order(layout, QUICK).makespan
            self._values[layout] = missing, seconds * self._share(layout)
            self.evaluate.report(0, self._values[layout][1])
        return self._values[layout]

    def _share(self, layout: Layout) -> float:
        """Samples of the batch per sample of as many micro-batches as large as the largest."""
        return self.problem.batch / (layout.microbatches * self.costs.samples(layout.microbatches))

    def order(self, layout: Layout, seconds: float, spare: Sequence[float] = ()) -> FoundSchedule:
        """The best order that a search finds for a layout; seconds: QUICK for a few list schedules."""
        if seconds == QUICK:
            seconds = LIST_SCHEDULING * _work_of(layout.microbatches * len(layout.recompute)) / OPS_PER_SECOND
        found = search_schedule(self.costs.schedule_problem(layout, spare), seconds=seconds)
        self.orders += found.evaluations
        return found

    def climbed(self, layout: Layout, moves: int) -> Layout:
        """The layout after `moves` random moves at most, of which those that improve it are kept.

        A moved layout whose lower bound is no better gets no order.
        """
        for _ in range(moves):
            if self.work <= 0:
                break
            moved, best = self._moved(layout), self.value(layout)
            if moved is not None and self.bound(moved) < best and self.value(moved) < best:
                layout = moved
        return layout

    def bound(self, layout: Layout) -> tuple[float, float]:
        """Lower bound on `value`: bytes that the fullest device lacks for one micro-batch, and seconds that no order
        undercuts.
        """
        if layout not in self._bounds:
            missing = self.costs.missing_bytes(layout)
            self._bounds[layout] = (
                missing,
                0.0 if missing else lower_bound(instance_of(self.costs.schedule_problem(layout))),
            )
        return self._bounds[layout]

    def _moved(self, layout: Layout) -> Layout | None:
        """The layout with one cut or a run of cuts shifted, or another policy for one stage, at random; None where a stage gets
        no layer.
        """
        stages = len(layout.cuts) + 1
        if len(self.policies) > 1 and self.rng.random() < 1.0 / (1 + len(layout.cuts)):
            stage = int(self.rng.integers(stages))
            others = [policy for policy in self.policies if policy != layout.recompute[stage]]
            policy = others[int(self.rng.integers(len(others)))]
            return replace(layout, recompute=(*layout.recompute[:stage], policy, *layout.recompute[stage + 1 :]))
        if stages == 1:
            return None
        first = int(self.rng.integers(stages - 1))
        last = first if self.rng.random() < 0.5 else int(self.rng.integers(first, stages - 1))
        step = int(self.rng.choice(STEPS)) * (1 if self.rng.random() < 0.5 else -1)
        cuts = [cut + step * (first <= number <= last) for number, cut in enumerate(layout.cuts)]
        bounds = [0, *cuts, len(self.problem.workload)]
        return replace(layout, cuts=tuple(cuts)) if all(np.diff(bounds) > 0) else None

    def plan(self, layout: Layout, seconds: float) -> Plan | None:
        """The plan of a layout with the best order found, within what its replay needs of memory; None where no order fits.

        seconds: of the search
        """
        if self.costs.missing_bytes(layout):
            return None

        def search(misses: Sequence[Score]) -> Plan | None:
            spare = [missing_bytes(misses, (device,)) for device in layout.devices]
            if self.costs.missing_bytes(layout, spare):
                return None
            found = self.order(layout, seconds, spare)
            return self._plan_of(layout, found)

        try:
            return within_memory(self.evaluate, search)
        except SearchInterrupted as stopped:
            self.evaluate(self._plan_of(layout, stopped.found))
            raise

    def _plan_of(self, layout: Layout, found: FoundSchedule) -> Plan:
        """The plan of a layout with a found order."""
        plan = self.costs.plan(self.planner.name, layout, found.schedule)
        self._found[plan] = layout, found
        return plan

    def tell(self, plan: Plan) -> None:
        """Note how good the order of a plan is known to be."""
        layout, found = self._found[plan]
        alike = self.problem.batch % layout.microbatches == 0
        bound = found.bound if alike else self.costs.least_seconds(layout)
        proven, assumed = found.proven and alike, not halves_are_known(self.problem)
        known = "none is shorter" if proven else f"at most {percent(found.makespan / bound - 1, '.2g')} are left"
        self.evaluate.note(
            OrderBound(
                f"order of the ops: {found.makespan:.4g} s before updates, where links share no channel; with these stages and "
                f"micro-batches no order within the memory takes less than {bound:.4g} s: {known}",
                orders_tried=self.orders,
                order_seconds=found.makespan,
                order_lower_bound_seconds=bound,
                order_proven=proven,
                halves_assumed=assumed,
            )
        )
        if assumed:
            self.evaluate.note(HALVES_ASSUMED)
