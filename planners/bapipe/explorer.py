"""BaPipe's explorer (arXiv 2012.12544): schedule x balanced partition x number of micro-batches, judged by simulation.

The search, as the reference notes reconstruct it:
1. for every number of micro-batches, the inter-layer partition with the fastest slowest stage (`minimax_cuts`, `filled_cuts`);
2. where a cut's transfer takes longer than a stage's forward, the same over coarse layers (`coarse_points`); and where layers do
   not stream, the fastest pipeline of any number of stages, its cuts and micro-batches searched together, which all planners
   share (`fastest_straight`); where they stream, the same by an estimate of whole stages (`StreamedSearch`), then moves of one
   cut while replays become faster;
3. for every schedule that the hardware can run: 1F1B-AS and FBP-AS on boards that stream, 1F1B-SNO where transfers block, 1F1B-SO
   and 1F1B (SNO's order and memory, but overlapped) where they do not, the best number of micro-batches; where none fits, the
   fullest stage hands layers to a neighbour at the least cost;
4. beside them PipeDream's partition (replicas included) under the same schedules, PipeDream's own synchronous plan, uniform GPipe
   and data parallelism, so that the answer is never slower than one of these;
5. where all boards stream, cuts inside layers (`planners.partitioning.fraction_search`): pipelines of every schedule, row of
   boards and number of micro-batches, evened out by fractions or cut on the finest grid that few replays allow, the best of them
   after moves of a cut, or of two neighbours, while replays become faster;
6. the first few of the ranking, and the plans of the other methods, replayed on SimPy, contention included; the fastest wins.

BaPipe chooses the schedule by a rule of thumb; `explore` records what the rule would take and where the simulation disagrees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from math import inf

import numpy as np

from hardware_profiles import Floats, Integers, counted, percent
from planners.estimate.memory import copied_bytes, least_excess, least_needed, may_have_room, range_bytes
from planners.estimate.pipeline_seconds import pipelined
from planners.partitioning.fraction_search import FractionSearch
from planners.partitioning.minimax_cuts import balanced_cuts, coarse_points, ideal_stage_seconds
from planners.partitioning.straight_search import StraightShape, fastest_straight, least_seconds_of
from planners.partitioning.streamed_search import StreamedSearch, one_moved
from planners.partitioning.tight_memory import tight_plan
from planners.pipedream.partitioner import partition
from planners.pipedream.planner import (
    ClusterView,
    PipeDreamFlush,
    cluster_views,
    known_partitions,
    place_stages,
    problem_table,
    without_levels,
)
from planners.pipedream.planner import inapplicable as no_pipedream
from planners.search.candidates import (
    closest_to_fit,
    device_choices,
    device_rows,
    microbatch_counts,
    stage_devices,
    straight_plan,
    unlike_rows,
)
from planners.search.evaluator import Evaluator, Planner, fitting, refusal
from planners.search.request import Request
from planners.straight.baselines import DataParallel, UniformLayers
from simulator import InfeasiblePlanError, Plan, Problem, Score, Stage, cuts_of, equal_microbatches, schedule_families

Layers = Integers
"""Indices of the layers of a stage."""

PARTITIONS = ("inter-layer", "coarse-grained", "stages and transfers")
"""Rules by which pipelines of whole layers with one device per stage are cut."""

INTRA_LAYER = "intra-layer"
"""Rule by which neighbouring stages may share a layer."""

EVENED, GRID, SPLIT = 64, 2000, 8
"""EVENED: pipelines whose cuts are then sought inside layers, at most; GRID: replays of all of them on grids of cuts; SPLIT:
those whose cuts are moved on.
"""

STREAMED = ("1f1b-as", "fbp-as")
CONFIRMED = 4
"""Plans of the ranking that are replayed on the reference engine."""

CLEAR_DIFFERENCE = 0.01
"""Share by which the rule's plan must be slower than the best one for the rule and the simulation to disagree."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan of the search.

    origin: the partition rule or method that it comes from, in words; score: on the search's engine; confirmed_seconds: of its
    replay on SimPy, None where it has none
    """

    origin: str
    plan: Plan
    score: Score
    confirmed_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of an iteration, on SimPy where the plan was confirmed there."""
        return self.score.iteration_seconds if self.confirmed_seconds is None else self.confirmed_seconds

    @property
    def balanced(self) -> bool:
        """Whether it is a pipeline of whole layers with one device per stage, cut in one of the ways of PARTITIONS."""
        return self.origin.startswith(PARTITIONS)


@dataclass(frozen=True, slots=True)
class RuleOfThumb:
    """The plan of BaPipe's rule, which takes the inter-layer partition and chooses the schedule by formula.

    reason: the condition that decided; formula_seconds: of the schedule's row in the paper's table, with F and B of the slowest
    stage and SR of the slowest cut
    candidate: the same plan, simulated
    """

    schedule: str
    reason: str
    formula_seconds: float
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Exploration:
    """The whole search: the best plan, every candidate that fits (best first), and the rule's choice."""

    best: Candidate
    candidates: tuple[Candidate, ...]
    rule: RuleOfThumb

    @property
    def disagreement(self) -> str:
        """A line that says where simulation finds a clearly faster plan than the rule, or refuses the rule's plan; empty where
        they agree.
        """
        rule, best = self.rule, self.best
        if not rule.candidate.score.fits:
            return (
                f"rule: {rule.schedule} ({rule.reason}); simulation: it does not fit, "
                f"best is {best.plan.schedule} {best.plan.notation}, {best.origin}"
            )
        excess = rule.candidate.seconds / best.seconds - 1.0
        if excess <= CLEAR_DIFFERENCE:
            return ""
        return (
            f"rule: {rule.schedule} ({rule.reason}), {rule.candidate.seconds:.4g} s; simulation: {best.plan.schedule} "
            f"{best.plan.notation}, {best.origin}, {best.seconds:.4g} s (the rule's plan takes {percent(excess, '.0f')} longer)"
        )


@dataclass(frozen=True, slots=True)
class BaPipe:
    """BaPipe's explorer as a planner; its answer is never slower on SimPy than the other methods' plans that it contains."""

    request: Request = field(default_factory=Request)
    name: str = "bapipe"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan that fits; InfeasiblePlanError if none does."""
        return _Explorer(problem, evaluate, rng, self.request, self.name).fastest()


def streams(problem: Problem) -> bool:
    """Whether every device streams results while it computes (an asynchronous accelerator in BaPipe's words)."""
    return all(device.streams for device in problem.cluster.devices)


def schedules(problem: Problem, request: Request) -> tuple[str, ...]:
    """Schedule families to try: the requested one, else BaPipe's own for the problem's hardware, of these only what the stack
    runs, if it runs any.
    """
    if request.schedule is not None:
        return (request.schedule,)
    if streams(problem):
        return STREAMED
    own = {
        "send-blocking": ("1f1b-sno",),
        "both-blocking": ("1f1b",),
    }.get(problem.communication, ("1f1b-so", "1f1b"))
    run = problem.stack.runs.schedules
    return tuple(name for name in own if name in run) or own


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why BaPipe cannot run the schedule that is asked for, as a sentence for the user; None where it can, or none is asked
    for.
    """
    wanted = request.schedule
    if wanted is None:
        return None
    family = schedule_families()[wanted]
    if not family.flush or family.placement != "straight":
        return (
            f"BaPipe's schedules are flushed, with one stage per {problem.device_word}; schedule {wanted!r} is not that"
        )
    if wanted in STREAMED and not streams(problem):
        return f"schedule {wanted!r} needs accelerators that stream results while they compute (FPGAs)"
    own = family.communications
    if wanted not in STREAMED and own and wanted == "1f1b-so" and problem.communication.endswith("blocking"):
        return f"schedule {wanted!r} overlaps transfers; the problem's communication is {problem.communication}"
    return None


def explore(
    problem: Problem, evaluate: Evaluator, rng: np.random.Generator, request: Request | None = None
) -> Exploration:
    """All candidates that fit, the first few confirmed on SimPy, and the rule of thumb's choice; InfeasiblePlanError, with
    numbers, if no plan fits.
    """
    search = _Explorer(problem, evaluate, rng, request or Request(), "bapipe")
    ranking = search.ranking()
    return Exploration(ranking[0], ranking, search.rule_of_thumb())


FLUSHED_PIPEDREAM = "PipeDream's synchronous plan"
UNIFORM = "uniform layers"
OTHER_METHODS = (UNIFORM, FLUSHED_PIPEDREAM, "data parallelism")


@dataclass(frozen=True, slots=True)
class _Explorer:
    """One search; all that it remembers is kept by the evaluator."""

    problem: Problem
    evaluate: Evaluator
    rng: np.random.Generator
    request: Request
    name: str

    def ranking(self) -> tuple[Candidate, ...]:
        """Every candidate that fits, confirmed ones first, each part by rising seconds (of equals less memory first)."""
        ranked = self._ranked()
        confirmed: list[Candidate] = []
        others: list[Candidate] = []
        for one in ranked:
            if len(confirmed) < CONFIRMED or one.origin in OTHER_METHODS:
                replayed = self.confirm(one)
                if replayed is not None:
                    confirmed.append(replayed)
            else:
                others.append(one)
        if not confirmed:
            raise InfeasiblePlanError(
                f"planner {self.name!r} finds no plan that fits once transfers queue on shared links: {len(ranked)} that fit "
                "on idle ones were tried"
            )
        return (*sorted(confirmed, key=lambda one: (one.seconds, one.score.peak_bytes)), *others)

    def fastest(self) -> Plan:
        """The plan that the ranking puts first, without pipelines that cannot be faster than what other methods find.

        Replays that know contention are SimPy's to the last bit: nothing is confirmed that was replayed so.
        """
        if self.evaluate.engine == "recurrence":
            return self.ranking()[0].plan
        ranked = self._ranked(only_faster=True)
        first = [one for number, one in enumerate(ranked) if number < CONFIRMED or one.origin in OTHER_METHODS]
        return min(first, key=lambda one: (one.seconds, one.score.peak_bytes)).plan

    def _ranked(self, *, only_faster: bool = False) -> list[Candidate]:
        """Every candidate that fits by rising seconds; InfeasiblePlanError, with numbers, if none does.

        only_faster: uniform layers, and pipelines whose stages and transfers are weighed, need only be found where they are no
            slower than the others
        """

        def fastest() -> float:
            return min((one.seconds for one in found if one.score.fits and only_faster), default=inf)

        methods = list(self.of_other_methods())
        partitions = self._partitions_of_pipedream([one for one in methods if one.origin == FLUSHED_PIPEDREAM])
        found = self._as_asked(methods)
        balanced = self._as_asked(self.pipelines(partitions, fastest()))
        found = [*balanced, *self._as_asked(methods)]
        uniform = self._as_asked(self._uniform(fastest(), only_faster=only_faster))
        found = [*balanced, *uniform, *self._as_asked(methods)]
        beat = fastest()
        weighed = self._streamed() if streams(self.problem) else self._straight(beat)
        found[:0] = self._as_asked(weighed)
        if not any(one.score.fits for one in found):
            found.extend(self._tight())
        if streams(self.problem):
            found.extend(self._as_asked(self._split()))
        if not found:
            raise self._refusal(partitions)
        fitting(self.name, min(found, key=lambda one: one.score.key).plan, self.evaluate)
        return sorted((one for one in found if one.score.fits), key=lambda one: one.score.iteration_seconds)

    def _as_asked(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates with as many stages as are asked for."""
        return [one for one in candidates if self.request.stages in (None, len(one.plan.stages))]

    def pipelines(self, partitions: Sequence[tuple[Stage, ...]], beat: float = inf) -> Iterator[Candidate]:
        """For each schedule, the best plan of each balanced partition, over numbers of micro-batches, and of PipeDream's
        `partitions`.

        beat: seconds of a plan that fits; what is slower under any cuts may be left out
        """
        for origin, order in self._orders():
            roomy = {one: self._faster(one, order, beat) for one in schedules(self.problem, self.request)}
            for rule in PARTITIONS[:2]:
                cut = {count: self.cuts(order, count, rule) for count in sorted(set().union(*roomy.values()))}
                for schedule, counts in roomy.items():
                    plans = [
                        straight_plan(self.name, self.problem, schedule, cuts, order, count)
                        for count in counts
                        if (cuts := cut[count]) is not None
                    ]
                    if plans:
                        best = closest_to_fit(plans, self.evaluate, excess=least_excess)
                        yield from self._fitted(rule + origin, best)
        for schedule in schedules(self.problem, self.request):
            for stages in partitions:
                plans = [
                    one
                    for one in self._replicated(schedule, stages)
                    if not least_excess(self.evaluate.layer_costs, one)
                ]
                if plans:
                    yield self._candidate("PipeDream's partition", closest_to_fit(plans, self.evaluate))

    def _faster(self, schedule: str, order: tuple[int, ...], beat: float) -> list[int]:
        """The numbers of micro-batches of `_counts` with which some cuts may be no slower than `beat` seconds."""
        counts = self._counts(schedule, order)
        if beat == inf or not counts:
            return counts
        least = least_seconds_of(self.evaluate, schedule, order, counts).tolist()
        return [count for count, seconds in zip(counts, least, strict=True) if seconds <= beat]

    def _counts(self, schedule: str, order: tuple[int, ...]) -> list[int]:
        """Numbers of micro-batches with which some cuts may fit into the memory of these devices."""
        counts, costs = microbatch_counts(self.problem, self.request, len(order)), self.evaluate.layer_costs
        if not may_have_room(costs, schedule, order, counts[-1]):
            return []  # of fewer, larger ones no stage holds less
        return [one for one in counts if may_have_room(costs, schedule, order, one)]

    def _replicated(self, schedule: str, stages: tuple[Stage, ...]) -> list[Plan]:
        """The plans of PipeDream's stages, by rising number of micro-batches."""
        counts = microbatch_counts(self.problem, self.request, len(stages))
        return [Plan(self.name, schedule, stages, equal_microbatches(self.problem.batch, count)) for count in counts]

    def _refusal(self, partitions: Sequence[tuple[Stage, ...]]) -> InfeasiblePlanError:
        """The error for a problem where memory rules out every pipeline, with the numbers of the closest one."""
        costs, plans = self.evaluate.layer_costs, list(self._smallest())
        for schedule in schedules(self.problem, self.request):
            plans.extend(plan for stages in partitions for plan in self._replicated(schedule, stages))
        scores = [least_needed(costs, plan) or self.evaluate(plan) for plan in plans]
        closest = min(range(len(plans)), key=lambda place: scores[place].key)
        return refusal(self.name, self.problem, plans[closest], scores[closest])

    def _smallest(self) -> Iterator[Plan]:
        """Pipelines of each schedule and order of devices with the smallest micro-batches, whether they may fit or not."""
        for schedule in schedules(self.problem, self.request):
            for _, order in self._orders():
                count = microbatch_counts(self.problem, self.request, len(order))[-1]
                cuts = self.cuts(order, count, "inter-layer") or []
                yield straight_plan(self.name, self.problem, schedule, cuts, order, count)

    def _straight(self, beat: float) -> Iterator[Candidate]:
        """The fastest pipeline of each schedule, over stages, cuts and micro-batches together (`fastest_straight`).

        beat: seconds of a plan that fits; slower pipelines may be left out
        """
        for schedule in schedules(self.problem, self.request):
            plan = fastest_straight(self.name, self.evaluate, self._shapes(schedule), beat=beat)
            if plan is not None:
                found = self._candidate(PARTITIONS[2], plan)
                beat = min(beat, found.seconds) if beat < inf else beat
                yield found

    def _streamed(self) -> Iterator[Candidate]:
        """The fastest pipeline of boards that stream, for each schedule, after moves of single cuts by replays."""
        shapes = [shape for schedule in schedules(self.problem, self.request) for shape in self._shapes(schedule)]
        for plan in StreamedSearch(self.evaluate).fastest(self.name, shapes):
            yield self._candidate(PARTITIONS[2], self._after_moves(plan))

    def _split(self) -> Iterator[Candidate]:
        """Pipelines with cuts inside layers, made of the best pipelines of all schedules, rows of boards and numbers of
        micro-batches.
        """
        search, shapes = FractionSearch(self.evaluate, self.request), dict[Hashable, Plan]()
        replayed = self.evaluate.replayed
        whole = sorted(filter(self._may_be_split, replayed), key=lambda one: replayed[one].key)
        for plan in chain(whole, self._of_all_shapes()):
            shapes.setdefault((plan.schedule, tuple(one.devices for one in plan.stages), len(plan.microbatches)), plan)
            if len(shapes) == EVENED:
                break
        evened = [search.on_grid(search.evened(plan), GRID // len(shapes)) for plan in shapes.values()]
        for plan in sorted(evened, key=lambda one: self.evaluate(one).key)[:SPLIT]:
            *_, found = plan, *search.climbed(plan)
            yield self._candidate(INTRA_LAYER, replace(found, planner=self.name))

    def _of_all_shapes(self) -> Iterator[Plan]:
        """A balanced pipeline of each schedule, row of boards and number of micro-batches, of several stages."""
        for schedule in schedules(self.problem, self.request):
            for one in self._shapes(schedule):
                if len(one.devices) > 1:
                    cuts = self.cuts(one.devices, one.microbatches, "inter-layer") or []
                    yield straight_plan(self.name, self.problem, schedule, cuts, one.devices, one.microbatches)

    def _may_be_split(self, plan: Plan) -> bool:
        """Whether a plan is one of BaPipe's pipelines of whole layers, of several stages."""
        known = plan.schedule in schedules(self.problem, self.request) and plan.notation == "straight"
        return known and cuts_of(plan) is not None

    def _shapes(self, schedule: str) -> Iterator[StraightShape]:
        """The shapes of a schedule: rows of devices in each order, of as many as are asked for, with each number of
        micro-batches.
        """
        orders = dict.fromkeys(order for _, order in self._orders())
        first = (order[:stages] for order in orders for stages in range(len(order), 0, -1))
        for devices in unlike_rows(self.problem, self.evaluate.layer_costs, (*first, *device_rows(self.problem))):
            if self.request.stages in (None, len(devices)):
                for count in microbatch_counts(self.problem, self.request, len(devices)):
                    yield StraightShape(schedule, devices, count)

    def _after_moves(self, plan: Plan) -> Plan:
        """The pipeline after moves of single cuts anywhere between their neighbours, while replays become faster."""
        layers = len(self.problem.workload)
        return self._climbed(plan, lambda cuts, score: one_moved(cuts, layers))

    def _climbed(
        self, plan: Plan, moves: Callable[[list[int], Score], Iterable[Sequence[int]]], *, until_it_fits: bool = False
    ) -> Plan:
        """The pipeline after the best of some moves of its cuts, again and again, while that one is better.

        moves: (cuts, score of the plan that has them) -> other cuts; until_it_fits: stop once the plan fits
        """
        devices, count = [stage.devices[0] for stage in plan.stages], len(plan.microbatches)
        while not ((score := self.evaluate(plan)).fits and until_it_fits):
            cuts = [stage.layers[0] for stage in plan.stages[1:]]
            tried = [
                straight_plan(self.name, self.problem, plan.schedule, moved, devices, count)
                for moved in moves(cuts, score)
            ]
            better = min(tried, key=lambda one: self.evaluate(one).key, default=plan)
            if self.evaluate(better).key >= score.key:
                break
            plan = better
        return plan

    def _tight(self) -> Iterator[Candidate]:
        """Pipelines that fit, however unbalanced, for each schedule and order of devices."""
        for schedule in schedules(self.problem, self.request):
            for origin, devices in self._orders():
                plan = tight_plan(self.name, self.evaluate, schedule, devices, self._counts(schedule, devices))
                if plan is not None:
                    yield self._candidate(f"memory first{origin}", plan)

    def of_other_methods(self) -> Iterator[Candidate]:
        """The plans of PipeDream run synchronously, and of data parallelism, where they exist."""
        others: list[tuple[str, Planner]] = []
        if no_pipedream(self.problem) is None:
            others.append((FLUSHED_PIPEDREAM, PipeDreamFlush(self.request)))
        others.append(("data parallelism", DataParallel(self.request)))
        for origin, planner in others:
            try:
                plan = planner(self.problem, self.evaluate, self.rng)
            except InfeasiblePlanError:
                continue  # that method has no plan, this one may
            yield self._candidate(origin, replace(plan, planner=self.name))

    def _uniform(self, beat: float, *, only_faster: bool) -> Iterator[Candidate]:
        """The plan of uniform GPipe, if there is one; only_faster: if it is no slower than `beat` seconds, as far as that is
        known
        """
        uniform = UniformLayers(self.request)
        try:
            plan = (
                uniform.fastest(self.problem, self.evaluate, beat)
                if only_faster and uniform.is_known(self.problem)
                else uniform(self.problem, self.evaluate, self.rng)
            )
        except InfeasiblePlanError:
            return  # that method has no plan, this one may
        if plan is not None:
            yield self._candidate(UNIFORM, replace(plan, planner=self.name))

    def confirm(self, one: Candidate) -> Candidate | None:
        """The candidate with its seconds on the reference engine; None if it does not fit there."""
        score = self.evaluate.on_reference(one.plan)
        return replace(one, confirmed_seconds=score.iteration_seconds) if score.fits else None

    # ---- partitions ----

    def _orders(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Orders of devices, one device per stage, each with a label: in the cluster's order, reversed where devices differ, and
        on some of them only.
        """
        choices = device_choices(self.problem, self.evaluate.layer_costs)
        several = len(choices) > 1
        if streams(self.problem) and self.request.stages is None:  # fewer boards, too, are an order of their own
            choices = tuple(order[:count] for order in choices for count in range(len(order), 0, -1))
        for devices in choices:
            label = "" if devices == choices[0] else f", {counted(len(devices), self.problem.device_word)}"
            yield label, stage_devices(self.problem, "1f1b", self.request, devices)
            if several:
                yield f"{label}, reversed", stage_devices(self.problem, "1f1b", self.request, devices[::-1])

    def cuts(self, devices: tuple[int, ...], count: int, rule: str) -> list[int] | None:
        """Cuts by one of the first two of PARTITIONS; None where the second is not called for, or cuts like the first."""
        problem, stages, costs = self.problem, len(devices), self.evaluate.layer_costs
        layers, samples = len(problem.workload), -(-problem.batch // count)
        cuts = balanced_cuts(costs, range(layers + 1), devices, samples)
        if rule == "inter-layer":
            return cuts
        if stages == 1:
            return None
        transfers = self.transfer_seconds(devices, samples)
        allowed = self.forward_seconds(devices, samples)
        if max(transfers[cut] for cut in cuts) <= allowed:
            return None
        other = balanced_cuts(costs, coarse_points(transfers, stages, allowed), devices, samples)
        return None if other == cuts else other

    def forward_seconds(self, devices: Sequence[int], samples: int) -> float:
        """Forward seconds of an ideally balanced stage, which BaPipe allows a transfer at most."""
        costs, layers = self.evaluate.layer_costs, np.arange(len(self.problem.workload), dtype=np.int64)
        return ideal_stage_seconds([costs.stage_seconds(device, layers, samples, "forward") for device in devices])

    def transfer_seconds(self, devices: Sequence[int], samples: int) -> Floats:
        """Seconds of a micro-batch over each cut on the slowest link between neighbours, float64 [layers + 1]."""
        cluster = self.problem.cluster
        sizes = self.evaluate.layer_costs.cut_bytes * samples
        rates = [cluster.point_to_point(one, two) for one, two in pairwise(devices)]
        if not rates or self.problem.communication == "free":
            return np.zeros(len(sizes))
        return np.asarray(np.max([latency + sizes / bandwidth for latency, bandwidth in rates], axis=0))

    def _partitions_of_pipedream(self, flushed: Sequence[Candidate]) -> list[tuple[Stage, ...]]:
        """Stages of PipeDream's partitions, replicas included: those of its plan, and those that it finds without a memory limit.

        Its own limit counts weight versions, which flushed schedules do not keep; here the replay decides what fits.
        """
        problem = self.problem
        found = [one.plan.stages for one in flushed]
        if without_levels(problem) is None:
            share = max(equal_microbatches(problem.batch, min(len(problem.cluster.devices), problem.batch)))
            table, known = problem_table(problem, self.evaluate, share), known_partitions(problem)

            def free(view: ClusterView) -> tuple[Stage, ...]:
                one = partition(table, view.levels)
                return place_stages(one.stages, one.levels, view.components)

            found += [known.of((share, one.levels), partial(free, one)) or () for one in cluster_views(problem)]
        return [stages for stages in dict.fromkeys(found) if len(stages) > 1]

    # ---- plans ----

    def _candidate(self, origin: str, plan: Plan) -> Candidate:
        """The candidate of a plan, with its score."""
        return Candidate(origin, plan, self.evaluate(plan))

    def _fitted(self, origin: str, plan: Plan) -> Iterator[Candidate]:
        """The candidate of a plan, and, where that exceeds memory, the one after its fullest stage has handed layers on."""
        yield self._candidate(origin, plan)
        if not self.evaluate(plan).fits and len(plan.stages) > 1:
            yield self._candidate(f"{origin}, memory-tuned", self._relieved(plan))

    def _relieved(self, plan: Plan) -> Plan:
        """The plan after its fullest stage has handed layers to a neighbour, each time at the least cost, while less memory is
        missing.
        """
        devices, layers = [stage.devices[0] for stage in plan.stages], len(self.problem.workload)

        def handovers(cuts: list[int], score: Score) -> Iterable[Sequence[int]]:
            return _handovers([0, *cuts, layers], devices.index(score.device))

        return self._climbed(plan, handovers, until_it_fits=True)

    # ---- the rule of thumb ----

    def rule_of_thumb(self) -> RuleOfThumb:
        """BaPipe's choice by formula: the schedule that memory and links permit, and the number of micro-batches with the least
        formula seconds.
        """
        problem, costs = self.problem, self.evaluate.layer_costs
        devices = stage_devices(problem, "1f1b", self.request)
        choices: list[tuple[float, str, str, int, list[int]]] = []
        for count in microbatch_counts(problem, self.request, len(devices)):
            cuts = self.cuts(devices, count, "inter-layer") or []
            samples = -(-problem.batch // count)
            bounds = [0, *cuts, len(problem.workload)]
            held = [np.arange(one, two, dtype=np.int64) for one, two in pairwise(bounds)]
            passes = [
                (costs.stage_seconds(d, h, samples, "forward"), costs.stage_seconds(d, h, samples, "backward"))
                for d, h in zip(devices, held, strict=True)
            ]
            forward, backward = max(passes, key=sum)
            transfers = self.transfer_seconds(devices, samples)
            sending = max((float(transfers[cut]) for cut in cuts), default=0.0)
            schedule, reason = self._by_rule(held, devices, samples, count, forward, sending)
            seconds = formula_seconds(schedule, len(devices), count, forward, backward, sending)
            choices.append((seconds, schedule, reason, count, cuts))
        seconds, schedule, reason, count, cuts = min(choices, key=lambda one: one[0])
        plan = straight_plan(self.name, problem, schedule, cuts, devices, count)
        simulated = self._candidate("rule of thumb", plan)
        return RuleOfThumb(schedule, reason, seconds, self.confirm(simulated) or simulated)

    def _by_rule(
        self, held: list[Layers], devices: Sequence[int], samples: int, count: int, forward: float, sending: float
    ) -> tuple[str, str]:
        """The schedule by BaPipe's rule, and the condition that decided, in words."""
        if self.request.schedule is not None:
            return self.request.schedule, "requested"
        costs, (begin, last) = self.evaluate.layer_costs, np.array([[one[0], one[-1]] for one in held]).T
        in_flight = np.minimum(2 * np.arange(len(devices), 0, -1), count) * samples
        needed = range_bytes(costs).needed(begin, last + 1, in_flight, samples) + copied_bytes(costs, begin, last + 1)
        fits = bool((needed <= costs.rooms[list(devices)]).all())
        if streams(self.problem):
            if sending > forward and fits:
                return "fbp-as", "bandwidth is tight: a/F exceeds the link"
            return "1f1b-as", "the link keeps up with a/F" if fits else "memory is tight"
        if self.problem.communication.endswith("blocking"):
            return "1f1b-sno", "transfers do not overlap"
        return ("1f1b-so", "2(N-i+1)·a fits") if fits else ("1f1b-sno", "2(N-i+1)·a does not fit")


def formula_seconds(
    schedule: str, stages: int, microbatches: int, forward: float, backward: float, sending: float
) -> float:
    """Seconds of a mini-batch by BaPipe's table; families that it does not list count as 1F1B without communication.

    forward, backward: F and B of a stage; sending: SR, one transfer; all in seconds
    """
    both, sent = forward + backward, 2.0 * sending
    through = stages * both + (stages - 1) * sent * (schedule in ("1f1b-sno", "1f1b-so"))
    return pipelined(through, both + sent * (schedule == "1f1b-sno"), microbatches)


def _handovers(bounds: Sequence[int], stage: int) -> Iterator[list[int]]:
    """Cuts after a stage has handed its first layers to the stage before it, or its last ones to the stage behind.

    bounds: the cuts, with both ends. One layer, two, four, ... are handed on: enough to find a better partition, few enough to
    replay.
    """
    for power in range((bounds[stage + 1] - bounds[stage] - 1).bit_length()):
        for bound, change in ((stage, 2**power), (stage + 1, -(2**power))):
            if 0 < bound < len(bounds) - 1:
                yield [one + change * (number == bound) for number, one in enumerate(bounds)][1:-1]
