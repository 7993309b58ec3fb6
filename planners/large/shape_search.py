"""Planner `large`: how models of many like blocks are trained on one kind of GPU.

It chooses tensor, pipeline, data, expert and (where it is asked for) context parallelism, micro-batches, ZeRO, stages per device,
the blocks of each rank and what each runs again (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM"; Korthikanti et al. 2022; Rajbhandari et al. 2020). Shapes are opened in the order of a bound that no
division undercuts; a closed form finds the best division of each exactly; the best few are replayed with the problem's own
options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from hardware_profiles import Flags, Floats, Integers, gibibytes, percent
from planners.estimate.like_blocks import like_blocks
from planners.estimate.memory import one_stage_in_flight, state_bytes
from planners.estimate.stage_costs import ONLY
from planners.large.closed_form import ClosedForm, DividedShape, chunk_blocks
from planners.large.shape_bounds import ShapeBounds
from planners.large.shape_order import ShapeOrder
from planners.large.shapes import Shape, Wanted, grid
from planners.search.candidates import (
    asked_degrees,
    asked_policies,
    asked_zeros,
    device_groups,
    ranks_of,
    searched_counts,
)
from planners.search.evaluator import Evaluator, fitting
from planners.search.memory_retry import missing_bytes, within_memory
from planners.search.notes import Note
from planners.search.request import Request
from planners.search.result import RunnerUp
from planners.search.runner_ups import DECISIONS
from simulator import (
    InfeasiblePlanError,
    Plan,
    Problem,
    Recompute,
    Score,
    Zero,
    stages_from_cuts,
)

SCHEDULES = "1f1b", "interleaved-1f1b"
"""Schedules of one stage per device, and of several."""

MOST_WORK = 2**16
"""Work (`Shape.work`), at most, of all replays after the first plan that fits, but for candidates that promise more than the
best.
"""

MOST_LEFT_OUT = 16
"""Candidates left out because their replays take too much work, after which the search ends."""

BOUNDED = 64
"""Shapes, at most, whose bounds are refined in one step."""

NEAR = 1.05
"""Factor on the least bound within which shapes are refined in the same step."""

MOST_TRIED = 12
"""Candidates, at most, that are replayed while none of them fits, whatever their work."""

CLOSED_FORM_ERROR = 0.25
"""Share by which the closed form is taken to exceed a replay, at most: candidates further above the best replay are not
replayed.
"""


@dataclass(frozen=True, slots=True)
class ShapesSearched(Note):
    """How much of the grid was searched: shapes in the grid, shapes that the closed form divided into stages (`opened`), and
    candidates left out for the work of their replays.
    """

    shapes: int
    opened: int
    left_out: int


@dataclass(frozen=True, slots=True)
class LargeModels:
    """Planner for models of like blocks on one kind of GPU: the best plans of a grid by a closed form are replayed."""

    request: Request = field(default_factory=Request)
    name: str = "large"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan that fits; InfeasiblePlanError, with numbers, if none of the grid fits."""
        search = _ShapeSearch(self, problem, evaluate)
        replayed = search.replayed()
        if not replayed:
            raise InfeasiblePlanError(search.does_not_fit())
        search.tell(replayed)
        best = fitting(self.name, min(replayed, key=lambda plan: evaluate(plan).key), evaluate)
        if self.request.runner_ups:
            evaluate.runner_ups += search.runner_ups(best, replayed[best])
        return best


def _listed(numbers: Sequence[int]) -> str:
    """Numbers as words, such as `0, 1 and 3`."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the planner cannot plan what is asked for, as a sentence for the user; None where it can."""
    blocks, cluster = like_blocks(problem.workload), problem.cluster
    if request.schedule not in (None, *SCHEDULES):
        return f"it plans {' or '.join(SCHEDULES)}, not {request.schedule!r}"
    if len(kinds := sorted({device.name for device in cluster.devices})) > 1 or len(set(cluster.devices)) > 1:
        return f"it plans for one kind of accelerator; cluster {cluster.name!r} has {', '.join(kinds)}"
    if blocks is None:
        return f"workload {problem.workload.name!r} has no blocks in a row that are alike"
    if any(device.streams for device in cluster.devices):
        return "layers of a stage stream on a board: it is no sum of blocks"
    try:
        wanted = _wanted(problem, request)
        degrees = asked_degrees(problem, request)
        asked_zeros(problem, request)
    except ValueError as error:
        return str(error)
    groups = {degree: len(device_groups(problem, degree)) for degree in degrees}
    if not len(grid(degrees, groups.__getitem__, blocks.count, problem.batch, wanted)):
        return (
            f"no pipeline of {blocks.count} blocks, whole micro-batches of a batch of {problem.batch} and "
            f"{cluster.counted_devices} has the stages, stages per {cluster.device_word} and micro-batches that are asked for"
        )
    return None


def searched(problem: Problem, request: Request) -> dict[str, Iterable[Any]]:
    """Values that a search tries, by the name of the decision, for decisions that the request leaves open."""
    devices, batch = len(problem.cluster.devices), problem.batch
    chunks = range(1, 9) if request.chunks is None else (request.chunks,)
    return {
        "schedule": SCHEDULES,
        "microbatches": [count for count in searched_counts(problem) if batch % count == 0],
        "stages": sorted({ranks * held for ranks in range(1, devices + 1) for held in chunks}),
        "chunks": range(1, 9),
        "recompute": asked_policies(problem, request),
        **{name: asked_degrees(problem, Request(), option=name) for name in ("tensor", "context", "expert")},
        "zero": asked_zeros(problem, Request()),
    }


def _wanted(problem: Problem, request: Request) -> Wanted:
    """The decisions of the grid that a request fixes.

    ValueError for stages per device that its schedule lacks, for unequal micro-batches, and as of `asked_degrees`.
    """
    chunks, count = request.chunks, request.microbatches or 1
    if problem.batch % count:
        around = range(count, 0, -1), range(count, problem.batch + 1)
        near = (next(one for one in numbers if problem.batch % one == 0) for numbers in around)
        raise ValueError(
            f"{count} micro-batches do not divide a batch of {problem.batch} samples; nearest that do: "
            f"{', '.join(map(str, near))}"
        )
    least, most = {None: (1, 8), SCHEDULES[0]: (1, 1), SCHEDULES[1]: (2, 8)}[request.schedule]
    if chunks is not None:
        if request.schedule is not None and (chunks == 1) != (request.schedule == SCHEDULES[0]):
            raise ValueError(f"schedule {request.schedule!r} has not {chunks} stages per {problem.device_word} here")
        least, most = chunks, chunks
    runs = problem.stack.runs
    if not runs.interleaved or (runs.schedules and SCHEDULES[1] not in runs.schedules):
        most = min(most, 1)
    if runs.schedules and SCHEDULES[0] not in runs.schedules:
        least = max(least, 2)
    stages = 1 if request.stages is None and not runs.pipeline else request.stages
    contexts, experts = (asked_degrees(problem, request, option=one) for one in ("context", "expert"))
    return Wanted(stages, request.microbatches, contexts, experts, least, most)


class _Choice(NamedTuple):
    """A shape, its ZeRO stage, and the recompute policies from which each rank has one."""

    shape: Shape
    zero: Zero
    policies: tuple[Recompute, ...]


class _Place(NamedTuple):
    """A shape at a ZeRO stage that waits in the search.

    bound: seconds that no division of the shape undercuts; number: row of the shape in the grid; zero: index of its ZeRO stage
    """

    bound: float
    number: int
    zero: int


class _ShapeSearch:
    """The search of one problem's grid.

    limit: seconds by the closed form above which candidates are of no use; opened: shapes that were divided
    left_out: number of candidates left out for their work; least_left: seconds of the fastest of these, by the closed form
    """

    def __init__(self, planner: LargeModels, problem: Problem, evaluate: Evaluator) -> None:
        self.planner, self.problem, self.evaluate = planner, problem, evaluate
        blocks = like_blocks(problem.workload)
        assert blocks is not None  # as `inapplicable` says
        self.blocks, request = blocks, planner.request
        self.form = ClosedForm(problem, blocks, asked_policies(problem, request), asked_zeros(problem, request))
        self.shapes = grid(
            asked_degrees(problem, request),
            lambda degree: len(self.form.devices.groups(degree)),
            blocks.count,
            problem.batch,
            _wanted(problem, request),
        )
        self.bounds = ShapeBounds(self.form)
        self.order = ShapeOrder(self.shapes, self.bounds)
        self.opened = set[Shape]()
        self.limit, self.left_out, self.least_left = np.inf, 0, np.inf
        self._bounds = np.full((len(self.shapes), len(self.form.zeros)), np.nan)
        self._all_bounds = np.full_like(self._bounds, np.nan)
        self._best: dict[_Choice, tuple[float, DividedShape | None]] = {}

    def replayed(self) -> dict[Plan, DividedShape]:
        """Replay candidates, best first, until they are too far above the best replay or the work is done; plans with their
        divisions.

        A candidate that takes more work than is left is replayed all the same if it would be the best, had its replay the ratio
        to the closed form that the best one's has.
        """
        found: dict[Plan, DividedShape] = {}
        best, scale, left = np.inf, 0.0, float(MOST_WORK)
        for number, candidate in enumerate(self.candidates()):
            work, fits = candidate.shape.work(self.problem.batch), best < np.inf
            if candidate.seconds > self.limit or self.left_out == MOST_LEFT_OUT:
                break
            wanted = candidate.seconds * scale < best if fits else number < MOST_TRIED
            if work > left and not wanted:
                self.left_out += 1
                self.least_left = min(self.least_left, candidate.seconds)
                continue
            made = self.evaluate.evaluations
            plan = self.within_memory(candidate)
            found.setdefault(plan, candidate)
            score = self.evaluate(plan)
            left -= work * (self.evaluate.evaluations - made) * fits
            if score.fits and score.iteration_seconds < best:
                best, scale = score.iteration_seconds, score.iteration_seconds / candidate.seconds
                self.limit = best * (1.0 + CLOSED_FORM_ERROR)
        return found

    def candidates(self, among: Flags | None = None, zeros: Sequence[Zero] | None = None) -> Iterator[DividedShape]:
        """The best division of each shape at each ZeRO stage, then under each single recompute policy, best first, as far as they
        are below `limit`.

        among: shapes to choose from, bool [shapes], None for all; zeros: ZeRO stages, None for all that are asked for
        """
        asked = [self.form.zeros.index(zero) for zero in zeros or self.form.zeros]
        rising, counts = self.order.rising(among), count()
        ahead = next(rising, None)
        rough: list[_Place] = []
        waiting: list[tuple[float, int, _Choice | DividedShape]] = []
        while (least := self._least(ahead, rough, waiting)) <= self.limit and least < np.inf:
            if ahead is not None and ahead[0] == least:
                numbers = [ahead[1], *(number for _, number in islice(rising, BOUNDED - 1))]
                ahead = next(rising, None)
                for place in self._places(numbers, asked):
                    heappush(rough, place)
            elif rough and rough[0].bound == least:
                places = [heappop(rough)]
                while rough and len(places) < BOUNDED and rough[0].bound <= least * NEAR:
                    places.append(heappop(rough))
                for choice, bound in zip(map(self._choice, places), self._raised(places), strict=True):
                    heappush(waiting, (bound, next(counts), choice))
            else:
                _, _, one = heappop(waiting)
                if isinstance(one, _Choice):
                    found = self._division(one)
                    if found is not None:
                        heappush(waiting, (found.seconds, next(counts), found))
                    continue
                if self.problem.stack.runs.unlike_recompute or len(set(one.policies)) == 1:
                    yield one
                if one.choice == self.form.policies and len(one.choice) > 1:
                    for policy in one.choice:
                        if set(one.policies) != {policy}:  # else it is the same
                            heappush(waiting, (one.seconds, next(counts), _Choice(one.shape, one.zero, (policy,))))

    @staticmethod
    def _least(
        ahead: tuple[float, int] | None, rough: Sequence[_Place], waiting: Sequence[tuple[float, int, object]]
    ) -> float:
        """The least bound of all that waits: shapes in order, shapes with bounds in memory, choices and divisions."""
        return min(one[0] for one in (ahead, *rough[:1], *waiting[:1], (np.inf,)) if one is not None)

    def _places(self, numbers: Sequence[int], zeros: Sequence[int]) -> Iterator[_Place]:
        """Shapes at ZeRO stages with their bounds, without those of which no division fits; zeros: indices of ZeRO stages"""
        bounds = self._bounds_of(np.array(numbers))[:, zeros]
        bounds[self.shapes[numbers, 2] * self.shapes[numbers, 5] == 1, 1:] = np.inf
        for row, place in zip(*np.nonzero(bounds < np.inf), strict=True):
            yield _Place(float(bounds[row, place]), numbers[row], zeros[place])

    def _choice(self, place: _Place) -> _Choice:
        """The choice of a place, with all recompute policies."""
        return _Choice(Shape(*self.shapes[place.number].tolist()), self.form.zeros[place.zero], self.form.policies)

    def _raised(self, places: Sequence[_Place]) -> list[float]:
        """Bounds of some places with transfers and what follows the last backward added, in seconds."""
        bounds, numbers, zeros = map(np.array, zip(*places, strict=True))
        unknown = np.isnan(self._all_bounds[numbers, zeros])
        if unknown.any():
            rows, own = numbers[unknown], zeros[unknown]
            self._all_bounds[rows, own] = self.bounds.least_seconds_in_all(
                self.shapes[rows], np.array(self.form.zeros)[own], bounds[unknown]
            )
        return [float(one) for one in self._all_bounds[numbers, zeros]]

    def _bounds_of(self, numbers: Integers) -> Floats:
        """Seconds that no division of some shapes undercuts, by ZeRO stage, float64 [numbers, zeros]."""
        unknown = numbers[np.isnan(self._bounds[numbers, 0])]
        if len(unknown):
            self._bounds[unknown] = self.bounds.least_seconds_in_memory(self.shapes[unknown])
        return np.asarray(self._bounds[numbers])

    def _division(self, choice: _Choice) -> DividedShape | None:
        """The best division of a choice, None if none is below `limit`."""
        limit, known = self._best.get(choice, (-np.inf, None))
        if known is None and limit < self.limit:
            self.opened.add(choice.shape)
            known = self.form.division(*choice, limit=self.limit)
            self._best[choice] = self.limit, known
        return known

    def runner_ups(self, plan: Plan, chosen: DividedShape) -> list[RunnerUp]:
        """By decision, the best candidate that decides otherwise; seconds by the closed form, times the answer's ratio of replay
        to closed form.

        plan, chosen: the answer
        """
        scale, replayed, found = self.evaluate(plan).iteration_seconds / chosen.seconds, self.evaluate.replayed, []
        for decision, among, zeros in self._otherwise(chosen):
            self.limit = np.inf
            for candidate in self.candidates(among, zeros) if zeros else ():
                other = self.plan(candidate)
                if replace(other, planner="") in replayed:  # which tells more of itself
                    self.limit = np.inf
                    continue
                has, would = (str(DECISIONS[decision](self.problem, one)) for one in (plan, other))
                seconds = candidate.seconds * scale
                found.append(RunnerUp(decision, has, would, seconds, None, other.notation, self.problem, other))
                break
        return found

    def _otherwise(self, chosen: DividedShape) -> Iterator[tuple[str, Flags, Sequence[Zero]]]:
        """Decisions by name, each with the shapes that decide otherwise, bool [shapes], and the ZeRO stages to try."""
        tensor, pipeline, data, samples, chunks, context, expert = self.shapes.T
        own, stages = chosen.shape, pipeline * chunks
        zeros = self.form.zeros
        yield "schedule", (chunks > 1) != (own.chunks > 1), zeros
        yield "stages", stages != own.pipeline * own.chunks, zeros
        yield "stages per device", chunks != own.chunks, zeros
        yield "replicas", (data != own.data) & (stages == own.pipeline * own.chunks), zeros
        yield "tensor parallel", tensor != own.tensor, zeros
        yield "context parallel", context != own.context, zeros
        yield "expert parallel", expert != own.expert, zeros
        yield "micro-batches", data * samples != own.data * own.samples, zeros
        yield "ZeRO", data * context > 1, tuple(zero for zero in zeros if zero != chosen.zero)

    def plan(self, candidate: DividedShape) -> Plan:
        """The plan of a divided shape."""
        shape = candidate.shape
        devices = ranks_of(self.form.devices.groups(shape.tensor), shape.pipeline, shape.copies)
        last = shape.pipeline - 1
        chunks = [chunk_blocks(own, shape.chunks, last=rank == last) for rank, own in enumerate(candidate.blocks)]
        ends = np.cumsum(np.transpose(chunks)) * self.blocks.size + self.blocks.before
        cuts, group = ends[:-1].tolist(), shape.tensor * shape.context
        count = shape.microbatches(self.problem.batch)
        return Plan(
            self.planner.name,
            SCHEDULES[shape.chunks > 1],
            stages_from_cuts(cuts, self.blocks.layers, devices * shape.chunks, group),
            (shape.samples * shape.data,) * count,
            recompute=candidate.policies * shape.chunks,
            zero=candidate.zero,
            context=shape.context,
            expert=shape.expert,
        )

    def within_memory(self, candidate: DividedShape) -> Plan:
        """The candidate's plan; where its replay exceeds memory, the plan of a division that leaves as much more free, if that
        fits.

        The closed form does not count the buffers of transfers as exactly as a replay.
        """

        def search(misses: Sequence[Score]) -> Plan | None:
            spare = missing_bytes(misses, range(len(self.problem.cluster.devices)))
            choice = candidate.shape, candidate.zero, candidate.choice
            found = self.form.division(*choice, spare) if misses else candidate
            return self.plan(found) if found else None

        return within_memory(self.evaluate, search) or self.plan(candidate)

    def tell(self, replayed: Mapping[Plan, DividedShape]) -> None:
        """Note how much was searched, and declare what the best plan is proven among."""
        self.evaluate.note(ShapesSearched("", len(self.shapes), len(self.opened), self.left_out))
        more = "".join(f" × {name}" for name, at in (("context", 5), ("expert", 6)) if self.shapes[:, at].max() > 1)
        grid = f"tensor × pipeline × data{more} × micro-batch × stages per {self.problem.device_word}"
        plans = f"{len(replayed):,} plans replayed, with ZeRO {_listed(sorted({plan.zero for plan in replayed}))}"
        every = f"with ZeRO {_listed(self.form.zeros)}" + " and each recompute policy for all stages" * (
            len(self.form.policies) > 1
        )
        near = f"all that are by it within {percent(CLOSED_FORM_ERROR, '.0f')} of the answer"
        if self.left_out:
            answer = replayed[min(replayed, key=lambda plan: self.evaluate(plan).key)]
            beyond = self.least_left / answer.seconds - 1.0
            than = (
                f"at least {percent(beyond)} slower than the answer"
                if beyond >= 0.0
                else f"at most {percent(-beyond)} faster"
            )
            near = f"the best by it, while others that are by it {than} were left out for the work of their replays"
        self.evaluate.declare_optimal(
            f"{plans}: of {len(self.shapes):,} shapes ({grid}), each {every}, and divided by a closed form of seconds and memory "
            f"into whole blocks and recomputation by stage, {near}"
        )

    def does_not_fit(self) -> str:
        """The message that no plan fits, in one line: with the numbers of the shape and ZeRO stage that need least of a
        device.
        """
        state, kept, zero, policy = min(self._least_needs(), key=lambda one: one[0] + one[1])
        word, again = self.problem.device_word, "" if policy == "none" else f" with recomputation {policy!r}"
        return (
            f"planner {self.planner.name!r} finds no stages that fit: weights, gradients and optimizer states take at least "
            f"{gibibytes(state)} per {word} with ZeRO {zero}, and what it keeps of its micro-batches{again} "
            f"{gibibytes(kept)}; each of {self.problem.cluster.counted_devices} holds "
            f"{gibibytes(self.form.memory_bytes)}; use more {word}s or a smaller batch"
        )

    def _least_needs(self) -> Iterator[tuple[float, float, Zero, Recompute]]:
        """Lower bounds on bytes of weights and states, and on bytes of activations, of a device, with their ZeRO stage and
        policy: for each kind of shape the least.
        """
        _, pipeline, data, samples, _, context, _ = self.shapes.T
        count, copies = self.problem.batch // (data * samples), data * context
        for kind in np.unique(self.shapes[:, [0, 5, 6]], axis=0):
            rows = np.flatnonzero((self.shapes[:, [0, 5, 6]] == kind).all(axis=1))
            parallel, costs = Shape(*self.shapes[rows[0]].tolist()).parallel, self.form.costs
            held, experts = (one.own[ONLY] + one.block * self.blocks.count for one in costs.elements(parallel))
            flight = one_stage_in_flight(pipeline, count)[rows] * samples[rows] / pipeline[rows]
            for policy, (line, _) in zip(self.form.policies, costs.stashes(parallel), strict=True):
                kept = (line.own[ONLY] + line.block * self.blocks.count) * flight
                for zero in self.form.zeros:
                    own = held / pipeline[rows], (held + (parallel.expert - 1) * experts) / pipeline[rows]
                    state = state_bytes(self.problem, zero, *own, copies[rows])
                    least = int((state + kept).argmin())
                    yield float(state[least]), float(kept[least]), zero, policy
