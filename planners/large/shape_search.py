"""Planner `large`: how models of many like blocks are trained on one kind of GPU.

It chooses tensor, pipeline, data, expert and (where it is asked for) context parallelism, micro-batches, ZeRO, stages a device,
the blocks of each rank and what each runs again (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM"; Korthikanti et al. 2022; Rajbhandari et al. 2020). Shapes are opened in the order of a bound that no
division undercuts; a closed form finds the best division of each exactly; the best few are replayed with the problem's own
options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from planners.large.closed_form import ClosedForm, DividedShape, chunk_blocks
from planners.large.like_blocks import like_blocks
from planners.large.shape_bounds import ShapeBounds
from planners.large.shapes import Shape, Wanted, grid
from planners.search.candidates import asked_degrees, asked_words, asked_zeros, device_groups
from planners.search.evaluator import Evaluator, Request, Score, fitting
from planners.search.memory_retry import missing_bytes, within_memory
from planners.search.result import RunnerUp
from planners.search.runner_ups import DECISIONS
from simulator import (
    InfeasiblePlanError,
    Plan,
    Problem,
    Stage,
    Zero,
    context_degrees,
    stages_from_cuts,
)

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

SCHEDULES = "1f1b", "interleaved-1f1b"
"""Of one stage a device, and of several."""

FINALISTS = 6
"""Candidates that are replayed at most, once one of them fits."""

MOST_WORK = 2**17
"""Work (see `Shape.work`) of all that are replayed beside the first that fits; a candidate that has more than is left is not,
unless it is PROMISING."""

PROMISING = 0.02
"""Share by which the closed form of a candidate is below the best replay at least, so that it is worth any work."""

BOUNDED = 64
"""Shapes whose bounds are refined at once."""

LONG_PART = 8192
"""Tokens that a part of a sample has at least, where nothing is said of contexts: samples of up to so many stay whole."""

MOST_TRIED = 12
"""Candidates that are replayed while none of them fits."""

CLOSED_FORM_ERROR = 0.1
"""Share by which the closed form may be above a replay: no candidate is looked at that is this much above the best."""


@dataclass(frozen=True, slots=True)
class LargeModels:
    """The fastest plan of the grid: by the closed form, then by replay."""

    request: Request = field(default_factory=Request)
    name: str = "large"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan that fits; InfeasiblePlanError, with numbers, if none of the grid does."""
        search = _ShapeSearch(self, problem, evaluate)
        replayed: dict[Plan, DividedShape] = {}
        left = MOST_WORK
        for number, candidate in enumerate(search.candidates()):
            fit = [score.iteration_seconds for score in map(evaluate, replayed) if score.fits]
            hopeless = fit and candidate.seconds > (1.0 + CLOSED_FORM_ERROR) * min(fit)
            if hopeless or number >= (FINALISTS if fit else MOST_TRIED):
                break
            work = candidate.shape.work(problem.batch) if fit else 0
            if work <= left or candidate.seconds < (1.0 - PROMISING) * min(fit):
                left -= work
                replayed.setdefault(search.within_memory(candidate), candidate)
        search.tell(len(replayed))
        if not replayed:
            raise InfeasiblePlanError(search.does_not_fit())
        best = fitting(self.name, min(replayed, key=lambda plan: evaluate(plan).key), evaluate)
        if self.request.runner_ups:
            evaluate.runner_ups += search.runner_ups(best, replayed[best])
        return best


def has_like_blocks(problem: Problem) -> bool:
    """Whether a network has a run of like blocks."""
    return like_blocks(problem.workload) is not None


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the grid holds no plan of the kind that is asked for, or None."""
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
        asked_zeros(request)
    except ValueError as error:
        return str(error)
    groups = {degree: len(device_groups(problem, degree)) for degree in degrees}
    if not len(grid(degrees, groups.__getitem__, blocks.count, problem.batch, wanted)):
        return (
            f"no pipeline of {blocks.count} blocks, whole micro-batches of a batch of {problem.batch} and "
            f"{len(cluster.devices)} devices has the stages, stages a device and micro-batches that are asked for"
        )
    return None


def _wanted(problem: Problem, request: Request) -> Wanted:
    """What a request fixes of the grid; ValueError for stages a device that its schedule has not, for micro-batches that are not
    equal, and as of `asked_degrees`.
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
            raise ValueError(f"schedule {request.schedule!r} has not {chunks} stages a device here")
        least, most = chunks, chunks
    tokens = max(layer.causal_tokens for layer in problem.workload.layers)
    long = [degree for degree in context_degrees(problem.workload) if degree == 1 or tokens >= degree * LONG_PART]
    contexts, experts = (asked_degrees(problem, request, *one) for one in ((long, "context"), (None, "expert")))
    return Wanted(request.stages, request.microbatches, contexts, experts, least, most)


class _ShapeSearch:
    """The grid of one problem."""

    def __init__(self, planner: LargeModels, problem: Problem, evaluate: Evaluator) -> None:
        self.planner, self.problem, self.evaluate = planner, problem, evaluate
        blocks = like_blocks(problem.workload)
        assert blocks is not None  # as `inapplicable` says
        self.blocks, request = blocks, planner.request
        self.form = ClosedForm(problem, blocks, asked_words(problem, request), asked_zeros(request))
        self.shapes = grid(
            asked_degrees(problem, request),
            lambda degree: len(self.form.groups(degree)),
            blocks.count,
            problem.batch,
            _wanted(problem, request),
        )
        self.bounds = ShapeBounds(self.form)
        self.opened = 0
        self._bounds = np.full((len(self.shapes), len(self.form.zeros)), np.nan)
        self._best: dict[tuple[int, tuple[Zero, ...]], DividedShape] = {}

    @cached_property
    def _rough(self) -> Floats:
        return self.bounds.least_seconds(self.shapes)

    def candidates(
        self, among: Flags | None = None, zeros: Sequence[Zero] | None = None, several: int = MOST_TRIED
    ) -> Iterator[DividedShape]:
        """The best division of each shape that has one, best first, as far as more than `several` are not better.

        among: shapes that are meant, bool [shapes], if not all; zeros: what replicas may divide, if not all that is asked for
        """
        rough = self._rough if among is None else np.where(among, self._rough, np.inf)
        order = np.argsort(rough, kind="stable")[: None if among is None else int(among.sum())]
        among_zeros = [self.form.zeros.index(zero) for zero in zeros or self.form.zeros]
        bounded, waiting, found = 0, list[tuple[float, int, DividedShape | None]](), list[float]()
        while waiting or bounded < len(order):
            if bounded < len(order) and (not waiting or waiting[0][0] >= rough[order[bounded]]):
                numbers = order[bounded : bounded + BOUNDED]
                bounds = self._bounds_of(numbers)[:, among_zeros].min(axis=1)
                bounded += BOUNDED
                for bound, number in zip(bounds.tolist(), numbers.tolist(), strict=True):
                    if bound < np.inf:
                        heappush(waiting, (bound, number, None))
                continue
            bound, number, candidate = heappop(waiting)
            if candidate is not None:
                yield candidate
                continue
            limit = np.inf if len(found) < several else sorted(found)[several - 1]
            candidate = self._division(number, zeros or self.form.zeros, limit)
            if candidate is not None:
                found.append(candidate.seconds)
                heappush(waiting, (candidate.seconds, number, candidate))

    def _bounds_of(self, numbers: NDArray[np.int64]) -> Floats:
        """Seconds that no division of some shapes undercuts, by what replicas divide, float64 [numbers, zeros]."""
        unknown = numbers[np.isnan(self._bounds[numbers, 0])]
        if len(unknown):
            self._bounds[unknown] = self.bounds.least_seconds_in_memory(self.shapes[unknown])
        return np.asarray(self._bounds[numbers])

    def _division(self, number: int, zeros: Sequence[Zero], limit: float) -> DividedShape | None:
        """The best of a shape, if it is below `limit`."""
        key = number, tuple(zeros)
        known = self._best.get(key)
        if known is not None:
            return known if known.seconds < limit else None
        self.opened += 1
        bounds = dict(zip(self.form.zeros, self._bounds[number].tolist(), strict=True))
        own = {zero: bounds[zero] for zero in zeros}
        found = self.form.best(Shape(*self.shapes[number].tolist()), limit=limit, bounds=own)
        if found is not None:
            self._best[key] = found
        return found

    def runner_ups(self, plan: Plan, chosen: DividedShape) -> list[RunnerUp]:
        """By decision the best candidate that decides otherwise, with the answer's seconds in the proportion of the closed form.

        plan, chosen: the answer
        """
        scale = self.evaluate(plan).iteration_seconds / chosen.seconds
        found = []
        for decision, among, zeros in self._otherwise(chosen):
            candidate = next(self.candidates(among, zeros, 1), None) if zeros and among.any() else None
            if candidate is not None:
                other = self.plan(candidate)
                has, would = (str(DECISIONS[decision](self.problem, one)) for one in (plan, other))
                found.append(RunnerUp(decision, has, would, candidate.seconds * scale, None, other.notation))
        return found

    def _otherwise(self, chosen: DividedShape) -> Iterator[tuple[str, Flags, Sequence[Zero]]]:
        """Decisions; the shapes that decide each otherwise, and what their replicas may divide."""
        tensor, pipeline, data, samples, chunks, context, expert = self.shapes.T
        own, stages = chosen.shape, pipeline * chunks
        zeros = self.form.zeros
        yield "schedule", (chunks > 1) != (own.chunks > 1), zeros
        yield "stages", stages != own.pipeline * own.chunks, zeros
        yield "stages a device", chunks != own.chunks, zeros
        yield "replicas", (data != own.data) & (stages == own.pipeline * own.chunks), zeros
        yield "tensor parallel", tensor != own.tensor, zeros
        yield "context parallel", context != own.context, zeros
        yield "expert parallel", expert != own.expert, zeros
        yield "micro-batches", data * samples != own.data * own.samples, zeros
        yield "ZeRO", data * context > 1, tuple(zero for zero in zeros if zero != chosen.zero)

    def plan(self, candidate: DividedShape) -> Plan:
        """The plan of a candidate."""
        shape, groups = candidate.shape, self.form.groups(candidate.shape.tensor)
        held = [groups[rank * shape.copies : (rank + 1) * shape.copies] for rank in range(shape.pipeline)]
        devices = [tuple(device for group in one for device in group) for one in held]
        last = shape.pipeline - 1
        chunks = [chunk_blocks(own, shape.chunks, last=rank == last) for rank, own in enumerate(candidate.blocks)]
        ends = np.cumsum(np.transpose(chunks)) * self.blocks.size + self.blocks.before
        stages = stages_from_cuts(ends[:-1].tolist(), self.blocks.layers, devices * shape.chunks)
        degrees = (shape.tensor * shape.context,) * shape.data
        count = shape.microbatches(self.problem.batch)
        return Plan(
            self.planner.name,
            SCHEDULES[shape.chunks > 1],
            tuple(Stage(stage.layers, stage.devices, degrees) for stage in stages),
            (shape.samples * shape.data,) * count,
            recompute=candidate.words * shape.chunks,
            zero=candidate.zero,
            context=shape.context,
            expert=shape.expert,
        )

    def within_memory(self, candidate: DividedShape) -> Plan:
        """The candidate's plan; where its replay needs more memory than there is, that of a division which leaves as much free.

        The closed form counts no buffers of transfers as exactly as a replay.
        """

        def search(misses: Sequence[Score]) -> Plan | None:
            spare = missing_bytes(misses, range(len(self.problem.cluster.devices)))
            found = self.form.best(candidate.shape, spare) if misses else candidate
            return self.plan(found) if found else None

        return within_memory(self.evaluate, search) or self.plan(candidate)

    def tell(self, replayed: int) -> None:
        """Record what is proven of the best plan."""
        self.evaluate.details.update(shapes=len(self.shapes), opened=self.opened)
        among = f"{replayed} of the best by the closed form of seconds and memory of " if replayed > 1 else ""
        exact = "" if among else " by the closed form of seconds and memory"
        more = "".join(f" × {name}" for name, at in (("context", 5), ("expert", 6)) if self.shapes[:, at].max() > 1)
        grid = f"tensor × pipeline × data{more} × micro-batch × stages a device"
        self.evaluate.declare_optimal(
            f"{among}{len(self.shapes):,} shapes{exact} ({grid}), each with "
            "its best ZeRO, division of whole blocks and recomputation by stage"
        )

    def does_not_fit(self) -> str:
        """One line with the numbers: the weights alone, divided over all devices."""
        problem = self.problem
        state = float(self.evaluate.layer_costs.parameters.sum()) * problem.state_bytes
        held = max(device.memory_bytes for device in problem.cluster.devices)
        return (
            f"planner {self.planner.name!r} finds no stages that fit: weights, gradients and optimizer states take "
            f"{state / 2**30:.4g} GiB, each of {len(problem.cluster.devices)} devices holds {held / 2**30:.4g} GiB; "
            "use more devices or a smaller batch"
        )
