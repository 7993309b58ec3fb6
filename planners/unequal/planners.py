"""Unequal planners: a straight pipeline with a flush whose stages have micro-batch sizes of their own (UMPIPE).

The partition is the fastest of a few: the one of the fastest GPipe with equal sizes, transfers included ("best-equal", a tuned
GPipe; "dgap" starts from nothing better), and those that are fastest at 1, 2, 4, … samples, each with the sizes of the greedy
dynamic programme. So none but "local-greedy" is slower than a tuned GPipe ("greedy-dp" takes the better of greedy and equal
sizes). "unequal-nested" searches the partition too. The searches work on a relaxation of the replay (`unequal_tables`): what they
prove is a lower bound on the reference engine, and their plan is proven the fastest only where its replay there attains it.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from hardware_profiles import gibibytes, percent
from planners.partitioning.equal_partition import equal_partition
from planners.partitioning.fastest_cuts import fastest_cuts
from planners.partitioning.partition_costs import straight_costs
from planners.search.candidates import devices_in_order
from planners.search.evaluator import BudgetSpent, Evaluator, fitting
from planners.search.memory_retry import missing_bytes, within_memory
from planners.search.notes import Note
from planners.search.replay_work import OF_SIZES
from planners.search.request import Request
from planners.unequal.exact import exact_sizes
from planners.unequal.found_sizes import Cuts, FoundSizes, Report, Sized
from planners.unequal.genetic import Genetic
from planners.unequal.greedy import best_equal, evaluated_sizes, greedy_dp, local_greedy, one_size
from planners.unequal.nested import search_partition
from planners.unequal.problem import InfeasibleSizes, UnequalProblem, powers_of_two
from planners.unequal.profiles import lower_bound
from planners.unequal.replayed_sizes import Pair, replayed_sizes
from planners.unequal.tables import (
    WITHOUT_LINKS,
    UnequalTables,
    candidate_sizes,
    crowded_links,
    least_seconds,
    limited_problem,
    loosest_problem,
    memory_limits,
    tables_of,
    unequal_plan,
    unequal_problem,
)
from planners.unequal.tight_sizes import NothingFits, tight_sizes
from simulator import InfeasiblePlanError, Plan, Problem, Score

Search = Callable[[UnequalProblem, np.random.Generator, Report], FoundSizes]
"""(problem, generator, progress) -> sizes; progress: as of `planners.unequal.found_sizes`"""

MOST_DURATIONS = 2**20
"""Samples of a batch times layers, at most: about a minute of work, and 16 bytes each for every range of layers looked at."""

FRONT = 3
"""Partitions that are tried, at most, of those that `fastest_cuts` finds at one size."""
FRONT_SLACK = 0.02
"""Share by which these partitions may be slower than the fastest."""

REPLAYS = 2
"""Evaluations of its budget that a search leaves, to replay its plan with the search's engine and on the reference."""

ROUNDING = 1e-9
"""Relative tolerance: more than the rounding of durations to the grid of an unequal problem, and of their sums, can differ by."""


def _exact(problem: UnequalProblem, rng: np.random.Generator, progress: Report) -> FoundSizes:
    """Sizes by the exact method."""
    return exact_sizes(problem, progress=progress)


def _greedy_or_equal(problem: UnequalProblem, rng: np.random.Generator, progress: Report) -> FoundSizes:
    """Sizes by the greedy dynamic programme, or the best equal size where that is faster."""
    plans = [greedy_dp(problem, progress)]
    with suppress(BudgetSpent):
        plans.append(best_equal(problem, progress=lambda made, best: progress(plans[0].evaluations + made, best)))
    found = min(plans, key=lambda plan: plan.makespan_seconds)
    return replace(found, evaluations=sum(plan.evaluations for plan in plans))


def _local(problem: UnequalProblem, rng: np.random.Generator, progress: Report) -> FoundSizes:
    """Sizes of every stage by itself."""
    progress(1, float("inf"))
    return local_greedy(problem)


SEARCHES: dict[str, Search] = {
    "exact-unequal": _exact,
    "tidgap": Genetic(seeded=True),
    "dgap": Genetic(),
    "greedy-dp": _greedy_or_equal,
    "local-greedy": _local,
    "best-equal": lambda problem, rng, progress: best_equal(problem, progress),
}
"""Planner name -> its search of sizes for one partition."""

FROM_EQUAL = ("best-equal", "dgap")
"""Planners that take the partition of the fastest equal size as it is."""

NESTED = "unequal-nested"
"""Planner that searches the partition, too, with the exact method for the sizes of each."""

ON_REPLAYS = ("exact-unequal", NESTED)
"""Planners that continue with replays if the recurrence proves nothing."""

ONE_SIZE = ("best-equal",)
"""Planners whose plans have one size for all stages and passes."""


STORED = "a stage whose forward and backward sizes differ runs forward again: recompute cannot be 'none' for all stages"
"""Why there are no unequal sizes where all stages are to store their activations, in words for messages."""

BY_REPLAYS = "; all of them that bounds leave open were replayed by the compiled event loop or recurrence"
"""End of the words of a proof by replays, where the recurrence of unequal sizes proves nothing."""


def unequal_sizes(request: Request, name: str) -> UnequalSizes:
    """The planner of this name: a search of `SEARCHES`, or of partitions and sizes together (`NESTED`)."""
    return UnequalSizes(request, name, SEARCHES.get(name, _exact))


def number_of_stages(problem: Problem, request: Request) -> int:
    """Number of stages that are asked for, else as many as there are devices and layers."""
    return request.stages or min(len(problem.cluster.devices), len(problem.workload))


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why planners with unequal sizes cannot plan what is asked for, as a sentence for the user; None where they can."""
    if request.recompute == "none":
        return STORED
    return inapplicable_to_equal(problem, request)


def inapplicable_to_equal(problem: Problem, request: Request) -> str | None:
    """Why a planner with equal sizes cannot plan what is asked for, as a sentence for the user; None where it can."""
    durations = problem.batch * len(problem.workload)
    if (unlike := unlike_shape(problem, request)) is None and durations > MOST_DURATIONS:
        return (
            f"its tables have a duration for each number of samples and layer: {problem.batch:,} × {len(problem.workload):,} = "
            f"{durations:,}, the limit is {MOST_DURATIONS:,}; use a smaller batch"
        )
    return unlike


def unlike_shape(problem: Problem, request: Request) -> str | None:
    """Why what is asked for is no straight flushed pipeline of unequal sizes, as a sentence for the user; None where it is."""
    if problem.recompute not in ("none", "whole"):
        return f"stages run forward again as a whole or not at all, not {problem.recompute!r}"
    if request.schedule not in (None, "gpipe") or request.microbatches is not None:
        asked = f"{request.microbatches or 'any number of'} equal micro-batches"
        return (
            f"it chooses the sizes of every stage for a flush (gpipe), not {request.schedule or 'gpipe'!r} with {asked}"
        )
    stages, most = number_of_stages(problem, request), min(len(problem.cluster.devices), len(problem.workload))
    if stages > most:
        return f"{stages} stages are more than the {problem.cluster.counted_devices} or {len(problem.workload)} layers"
    granularity = request.asked("granularity") or 1
    if granularity > problem.batch:
        return f"a granularity of {granularity} samples is more than the batch of {problem.batch}"
    return None


class _Meter:
    """Counts the evaluations of searches as their planner's, and stops them with BudgetSpent before they exceed its budget, less
    a reserve.
    """

    def __init__(self, evaluate: Evaluator, reserve: int = REPLAYS) -> None:
        self.evaluate, self.reserve, self.spent = evaluate, reserve, False

    def __call__(self, evaluations: int, seconds: float) -> None:
        """The `Report` that searches are given."""
        if evaluations > self.evaluate.remaining - self.reserve or not self.evaluate.has_time(evaluations * OF_SIZES):
            self.spent = True
            raise BudgetSpent
        self.evaluate.report(evaluations, seconds)

    def run(self, search: Search, problem: UnequalProblem, rng: np.random.Generator) -> FoundSizes:
        """Run a search within the remaining budget and return its sizes."""
        sizes = search(problem, rng, self)
        self.evaluate.credit(sizes.evaluations, sizes.evaluations * OF_SIZES)
        return sizes


@dataclass(frozen=True, slots=True)
class SizesBound(Note):
    """How good the sizes of micro-batches are known to be, on links that share no channel.

    stage_forward_samples, stage_backward_samples: size in each stage; makespan_seconds: until the first stage's update ends
    sizes_lower_bound_seconds: no sizes take less, 0 where nothing is known; sizes_gap: share by which the replay is above it,
    None where nothing is known
    evaluations: of sizes; recomputation: "always", or "where-differs" if only stages whose two sizes differ recompute
    """

    stage_forward_samples: list[int]
    stage_backward_samples: list[int]
    makespan_seconds: float
    sizes_lower_bound_seconds: float
    sizes_gap: float | None
    proven_optimal: bool
    evaluations: int
    recomputation: str


@dataclass(frozen=True, slots=True)
class UnequalSizes:
    """Planner of sizes by one of the searches, for one partition, or (`NESTED`) for partitions that are searched with them.

    Partitions are searched by local moves (all of them, where there are few). Unless the user fixes the candidates they are
    compared at powers of two, and the best one, and the partition that the other searches take, get all candidates at the end.
    """

    request: Request
    name: str
    search: Search

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The fastest plan within the memory of the devices; InfeasiblePlanError if none fits.

        It is the fastest over numbers of stages, and over all sizes and powers of two, where these are not asked for: with one of
        them asked for the search finds the same, and nothing faster than all. A number of stages with which no plan can be faster
        than what is known is left out.
        """
        answers, failed, stopped = list[_SizedPlan](), None, False
        for tables, sizes in _choices(problem, self.request, evaluate):
            known = min((one.score.iteration_seconds for one in answers), default=math.inf)
            if answers and least_seconds(tables, sizes) >= known * (1.0 - ROUNDING):
                continue
            meter = _Meter(evaluate, reserve=0 if answers or failed else REPLAYS)
            try:
                answer = self._answer(_StagesAndSizes(tables, sizes, evaluate, meter, copy.deepcopy(rng), known))
            except InfeasiblePlanError as error:
                failed = failed or error
                continue
            except (BudgetSpent, KeyboardInterrupt):
                if not answers:
                    raise
                stopped = True
                break
            answers.append(answer)
            if answer.found.stopped and not answer.proven:
                stopped = True
                break
        if failed is not None and not answers:
            raise failed
        best = min(answers, key=lambda one: one.score.key)
        _tell(best, evaluate)
        if stopped:
            raise KeyboardInterrupt if not meter.spent and evaluate.remaining else BudgetSpent
        return fitting(self.name, best.plan, evaluate, evaluate.on_reference(best.plan))

    def _answer(self, choice: _StagesAndSizes) -> _SizedPlan:
        """The best plan for one number of stages and choice of candidate sizes."""
        if self.name != NESTED:
            return _within_memory(
                self.name, choice, lambda limits: self._of_one_partition(choice, limits), choice.sizes
            )
        asked, granularity = self.request.asked("candidates"), self.request.asked("granularity") or 1
        sizes = choice.sizes if asked else candidate_sizes(choice.tables.problem.batch, "powers-of-two", granularity)
        return _within_memory(self.name, choice, lambda limits: self._of_partitions(choice, limits, sizes), sizes)

    def _of_one_partition(self, choice: _StagesAndSizes, limits: list[float]) -> Sized:
        """The start partition with the sizes that the search finds for it."""
        tables, meter, rng = choice.tables, choice.meter, choice.rng
        start = start_partition(tables, choice.sizes, limits, meter, rng, equal=self.name in FROM_EQUAL)
        if start.stopped:
            return start
        try:
            plan = meter.run(self.search, start.unequal, rng)
        except BudgetSpent:
            return replace(start, stopped=True)
        best = plan if self.name == "local-greedy" else min(plan, start.sizes, key=lambda one: one.makespan_seconds)
        return replace(
            start,
            sizes=replace(best, evaluations=plan.evaluations),
            bound_seconds=_bound(tables, start.unequal, plan),
            stopped=plan.interrupted,
        )

    def _of_partitions(self, choice: _StagesAndSizes, limits: list[float], sizes: tuple[int, ...]) -> Sized:
        """The best partition at sizes `sizes`, then with the best of all candidate sizes."""
        tables, every, meter, rng = choice.tables, choice.sizes, choice.meter, choice.rng
        problem = tables.problem
        start = start_partition(tables, every, limits, meter, rng)
        complete = problem.contention and problem.communication not in WITHOUT_LINKS

        def build(cuts: Cuts) -> UnequalProblem:
            """The problem of a partition; where caps are stricter than memory, not all sizes that fit are in it."""
            nonlocal complete
            complete = complete and problem.recompute == "whole"
            return limited_problem(tables, cuts, sizes, limits)

        try:
            found = search_partition(
                build,
                tables.layers,
                len(tables.devices),
                starts=[start.cuts],
                solve=lambda unequal: meter.run(self.search, unequal, rng),
            )
        except BudgetSpent:
            return replace(start, stopped=True)
        whole = found.whole and complete
        bound = _bound(tables, found.unequal, found.sizes) if whole else 0.0
        found = replace(found, bound_seconds=bound, whole=whole)
        if every == sizes or found.stopped:
            return found
        ends = [found]
        for cuts in dict.fromkeys((found.cuts, start.cuts)):
            one = limited_problem(tables, cuts, every, limits)
            try:
                ends.append(Sized(cuts, one, meter.run(self.search, one, rng)))
            except BudgetSpent:
                return replace(min(ends, key=_model_seconds), stopped=True)
        return min(ends, key=_model_seconds)


def _model_seconds(sized: Sized) -> float:
    """Seconds of a mini-batch by the recurrence, by which answers are compared."""
    return sized.seconds


def _bound(tables: UnequalTables, unequal: UnequalProblem, plan: FoundSizes) -> float:
    """Lower bound on the seconds of any sizes of a partition in any replay."""
    loosest = loosest_problem(tables, unequal)
    if loosest is not unequal:
        return lower_bound(loosest) + loosest.fixed_seconds
    bound = plan.lower_bound_seconds
    if unequal.coupled and min(unequal.backward_caps or (unequal.samples,)) < max(unequal.candidates):
        # the caps are stricter than memory where sizes are equal: they may have cut off something better
        bound = min(bound, lower_bound(replace(unequal, backward_caps=None)))
    return bound + unequal.fixed_seconds


def start_partition(
    tables: UnequalTables,
    candidates: tuple[int, ...],
    limits: Sequence[float],
    meter: _Meter,
    rng: np.random.Generator,
    *,
    equal: bool = False,
) -> Sized:
    """The partition that the searches take, with its first sizes.

    limits: bytes of each device; equal: take the partition of the fastest equal size, whatever unequal sizes could make of
    another. On boards whose layers stream, where each range of layers has to be planned by itself, only equal sizes of 1, 2, 4, …
    samples count.
    Raises InfeasibleSizes where nothing fits.
    """
    streaming = any(tables.costs.streams(device) for device in tables.devices)
    sizes = [size for size in candidates if not streaming or size in powers_of_two(tables.problem.batch)]
    tuned = equal_partition(tables.costs, tables.devices, sizes, _spare(tables, limits))
    if tuned is None:
        raise InfeasibleSizes("no partition fits with one size for all")
    _, first, size = tuned
    unequal = limited_problem(tables, first, candidates, limits)
    best = Sized(first, unequal, one_size(unequal, size))
    if equal:
        return best
    for cuts in dict.fromkeys((first, *quick_partitions(tables, limits))):
        try:
            unequal = limited_problem(tables, cuts, candidates, limits)
            one = Sized(cuts, unequal, meter.run(_greedy_or_equal, unequal, rng))
        except InfeasibleSizes:
            continue
        except BudgetSpent:
            return replace(best, stopped=True)
        best = min(best, one, key=_model_seconds)
    return best


def balanced_problem(tables: UnequalTables) -> tuple[Cuts, UnequalProblem]:
    """The partition that the planners start from, within the memory of the devices, and its problem; InfeasibleSizes if none
    fits.
    """
    meter, rng = _Meter(Evaluator(tables.problem)), np.random.default_rng(0)
    found = start_partition(tables, candidate_sizes(tables.problem.batch), memory_limits(tables), meter, rng)
    return found.cuts, found.unequal


def quick_partitions(tables: UnequalTables, limits: Sequence[float]) -> list[Cuts]:
    """The partitions that are fastest with equal micro-batches of 1, 2, 4, … samples: FRONT of each size at most, without
    duplicates.
    """
    batch = tables.problem.batch
    found: list[Cuts] = []
    for size in powers_of_two(batch):
        costs = straight_costs(
            tables.costs, tables.devices, size, in_flight=[batch] * len(tables.devices), spare=_spare(tables, limits)
        )
        found += [cuts for _, cuts in fastest_cuts(costs, -(-batch // size), slack=FRONT_SLACK)[:FRONT]]
    return list(dict.fromkeys(found))


def _spare(tables: UnequalTables, limits: Sequence[float]) -> list[float]:
    """Bytes of each stage's device above the stage's limit."""
    return [held - limit for held, limit in zip(memory_limits(tables), limits, strict=True)]


@dataclass(frozen=True, slots=True)
class _StagesAndSizes:
    """The input of one search: stages, candidate sizes, and what the search uses.

    known: seconds of the fastest plan so far
    """

    tables: UnequalTables
    sizes: tuple[int, ...]
    evaluate: Evaluator
    meter: _Meter
    rng: np.random.Generator
    known: float


@dataclass(frozen=True, slots=True)
class _SizedPlan:
    """The result of one search: a plan, its score on the reference engine, and the space of its proof in words."""

    tables: UnequalTables
    found: Sized
    plan: Plan
    score: Score
    space: str

    @property
    def proven(self) -> bool:
        """Whether it is proven that no sizes in the space are faster."""
        return _attains(self.score, self.found)


def _choices(
    problem: Problem, request: Request, evaluate: Evaluator
) -> Iterator[tuple[UnequalTables, tuple[int, ...]]]:
    """Tables and candidate sizes to search, for each number of stages that is open, the most stages first."""
    devices, asked, granularity = (
        devices_in_order(problem),
        request.asked("candidates"),
        request.asked("granularity") or 1,
    )
    sizes = [candidate_sizes(problem.batch, word, granularity) for word in (asked, "powers-of-two")]
    most = number_of_stages(problem, request)
    for stages in [most] if request.stages else range(most, 0, -1):
        tables = tables_of(problem, devices[:stages], evaluate.layer_costs)
        yield from ((tables, one) for one in dict.fromkeys(sizes))


def _within_memory(
    name: str, choice: _StagesAndSizes, solve: Callable[[list[float]], Sized], sizes: Sequence[int]
) -> _SizedPlan:
    """The plan of the sizes that `solve` finds, solved again with less memory while the replay on the reference exceeds what
    there is.

    solve: bytes of each stage -> partition and sizes; sizes: among which a proof holds. Where no such search finds a plan that
    fits, `tight_sizes` looks for one with all sizes.
    """
    tables, evaluate, every, attempts = choice.tables, choice.evaluate, choice.sizes, list[Sized]()

    def search(misses: Sequence[Score]) -> Plan | None:
        if attempts and attempts[-1].stopped:
            return None
        held = zip(tables.devices, memory_limits(tables), strict=True)
        try:
            attempts.append(solve([memory - 1.01 * missing_bytes(misses, (device,)) for device, memory in held]))
        except InfeasibleSizes:
            return None
        plan = _plan(name, tables, attempts[-1])
        evaluate(plan)
        return plan

    closest = within_memory(evaluate.on_reference, search)
    first = attempts[0] if attempts else None
    found = attempts[-1] if attempts else None
    if closest is not None and found is not None and not (found.stopped or evaluate.on_reference(closest).fits):
        found = None
    if found is None:
        found = _tight(name, tables, evaluate, every)
    if first is not None and found is not first:
        # with less memory than there is nothing is proven; the first bound still holds for what it was for
        known = first.whole or first.cuts == found.cuts
        found = replace(found, bound_seconds=first.bound_seconds if known else 0.0, whole=first.whole)
    score = evaluate.on_reference(_plan(name, tables, found))
    space = _space(tables, found, sizes)
    hopeless = found.stopped or _attains(score, found) or found.bound_seconds >= choice.known * (1.0 - ROUNDING)
    if name in ON_REPLAYS and evaluate.engine != "recurrence" and not hopeless:
        found, every_one = _on_replays(name, tables, evaluate, found, every)
        score = evaluate.on_reference(_plan(name, tables, found))
        space = _space(tables, found, every, BY_REPLAYS) if every_one else space
    return _SizedPlan(tables, found, _plan(name, tables, found), score, space)


def _tell(answer: _SizedPlan, evaluate: Evaluator) -> None:
    """Note what is known of an answer, and declare it optimal where that is proven."""
    found, seconds = answer.found, answer.score.iteration_seconds
    bound = found.bound_seconds
    gap = max(0.0, seconds / bound - 1.0) if bound else None
    forward, backward = list(found.sizes.forward_sizes), list(found.sizes.backward_sizes)
    if answer.proven:
        known = "no choice of sizes is faster"
    elif gap is not None:
        known = f"no choice of sizes takes less than {bound:.4g} s: at most {percent(gap, '.2g')} are left"
    else:
        known = "nothing is proven of the sizes"
    evaluate.note(Note(f"sizes of each stage: forward {forward}, backward {backward}"))
    evaluate.note(
        SizesBound(
            f"{found.seconds:.4g} s where links share no channel and the first stage's update ends last; {known}",
            stage_forward_samples=forward,
            stage_backward_samples=backward,
            makespan_seconds=found.seconds,
            sizes_lower_bound_seconds=bound,
            sizes_gap=gap,
            proven_optimal=answer.proven,
            evaluations=found.sizes.evaluations,
            recomputation="always" if answer.tables.problem.recompute == "whole" else "where-differs",
        )
    )
    if answer.proven:
        evaluate.declare_optimal(answer.space)


def _attains(score: Score, found: Sized) -> bool:
    """Whether a plan fits and its replay takes no longer than the lower bound."""
    return score.fits and bool(0.0 < score.iteration_seconds <= found.bound_seconds * (1.0 + ROUNDING))


def _on_replays(
    name: str, tables: UnequalTables, evaluate: Evaluator, found: Sized, sizes: Sequence[int]
) -> tuple[Sized, bool]:
    """The fastest sizes of a partition that replays find, and whether they are proven the fastest of all its sizes.

    The search begins with the sizes found so far, with the best equal and greedy sizes, and with those for links as slow as if
    all that share a channel used it at once.
    """
    unequal = unequal_problem(tables, found.cuts, sizes)
    starts: list[Pair] = [(found.sizes.forward_sizes, found.sizes.backward_sizes)]
    made, meter = evaluate.evaluations, _Meter(evaluate, reserve=0)
    for one in (unequal, crowded_links(tables, unequal)):
        with suppress(BudgetSpent):
            quick = meter.run(_greedy_or_equal, one, np.random.default_rng(0))
            starts.append((quick.forward_sizes, quick.backward_sizes))
    if meter.spent:
        return replace(found, stopped=True), False
    replayed = replayed_sizes(name, tables, found.cuts, loosest_problem(tables, unequal), starts, evaluate)
    if replayed is None:
        return found, False
    evaluations = found.sizes.evaluations + evaluate.evaluations - made
    seconds = evaluated_sizes(unequal, *replayed.sizes, evaluations, time.perf_counter())
    if replayed.every:
        least = replayed.score.iteration_seconds
        return replace(found, unequal=unequal, sizes=seconds, bound_seconds=least, whole=False), True
    return replace(found, unequal=unequal, sizes=seconds, stopped=replayed.stopped), False


def _plan(name: str, tables: UnequalTables, sized: Sized) -> Plan:
    """The plan of a partition with sizes."""
    return unequal_plan(name, tables, sized.cuts, sized.sizes.forward_sizes, sized.sizes.backward_sizes)


def _tight(name: str, tables: UnequalTables, evaluate: Evaluator, sizes: Sequence[int]) -> Sized:
    """Sizes that fit by replays, with nothing proven; InfeasiblePlanError, which says what was tried, if none are found."""
    made = evaluate.evaluations
    tight = tight_sizes(name, tables, evaluate, sizes, equal=name in ONE_SIZE)
    if isinstance(tight, NothingFits):
        raise InfeasiblePlanError(_does_not_fit(name, tables, tight, max(evaluate.evaluations, made + tight.looked)))
    found = evaluated_sizes(
        tight.unequal, tight.forward, tight.backward, evaluate.evaluations - made, time.perf_counter()
    )
    return Sized(tight.cuts, tight.unequal, found)


def _space(tables: UnequalTables, found: Sized, sizes: Sequence[int], how: str = "") -> str:
    """The plans among which a proven one is the fastest, and what proves it, in words."""
    chosen = f"all from 1 to {sizes[-1]}" if len(sizes) == sizes[-1] else ", ".join(map(str, sizes))
    where = f"all partitions into {len(tables.devices)} stages" if found.whole else "this partition"
    return (
        f"unequal micro-batch sizes of {where} on these devices: gpipe, a size for each stage and pass out of {chosen} samples "
        f"(the last micro-batch takes what is left), replayed with "
        f"{'contention' if tables.problem.contention else 'unlimited links'}{how}"
    )


def _does_not_fit(name: str, tables: UnequalTables, nothing: NothingFits, evaluations: int) -> str:
    """The message that no sizes fit, or none that were tried, in one line, with the numbers of an even partition's stage that
    misses most.

    evaluations: a budget of more than these lets the planner look further
    """
    problem, stages, held = tables.problem, len(tables.devices), memory_limits(tables)
    cuts = [tables.layers * stage // stages for stage in range(1, stages)]
    even = [tables.stage_bytes(*ends) for ends in tables.ranges(cuts)]
    recomputed, stored = [one.recomputed(problem.batch, 1) for one in even], [one.stored(problem.batch) for one in even]
    needs = recomputed if problem.recompute == "whole" else stored
    if name not in ONE_SIZE:  # sizes that differ recompute
        needs = list(map(min, recomputed, needs))
    worst = max(range(stages), key=lambda stage: needs[stage] / held[stage])
    searched = "no sizes fit"
    if not nothing.every:
        searched = f"none of {nothing.tried:,} plans tried fits, others may: a budget above {evaluations:,} tries more"
    return (
        f"planner {name!r}: {searched}; stage {worst} of an even partition needs at least "
        f"{gibibytes(needs[worst])} on {problem.device_word} {tables.devices[worst]}, which holds {gibibytes(held[worst])}; "
        "use more stages, recomputation or a smaller batch"
    )
