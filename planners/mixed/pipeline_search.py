"""Planner `mixed`: pipelines over devices of several kinds (Sailor, SOSP 2025, holds the same space with equal layer counts)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, get_args

import numpy as np

from hardware_profiles import GIB, percent
from planners.estimate.like_blocks import like_blocks
from planners.mixed.cluster_space import MOST_SAMPLES, Choices, ClusterSpace
from planners.mixed.label_search import EXACT, FoundPipelines, search
from planners.mixed.space import MixedPipeline
from planners.search.candidates import asked_degrees, asked_policies, asked_zeros, searched_counts
from planners.search.evaluator import Evaluator, fitting
from planners.search.notes import Note
from planners.search.request import Request
from simulator import InfeasiblePlanError, Plan, Problem, Score, Zero, group_degrees

MOST_WORK = 2.5e6
"""Stages, at most, that a search extends, per ZeRO stage."""

FINALISTS = 4
"""Pipelines, at most, that are replayed of one search by the closed form, or of each number of micro-batches."""

UNSURE = 1.05
"""Factor on the best plan's seconds, by the closed form or its replay, above which the closed form rules plans out."""

ROUNDS = 4
"""Searches of a ZeRO stage, at most, each leaving more memory free than the last, while no finalist fits in its replay."""


@dataclass(frozen=True, slots=True)
class ClosedFormGap(Note):
    """How far the answer is above the lower bound of the closed form.

    shapes: of the space, each a size of micro-batches and a number of replicas; opened: searches of a shape
    closed_form_seconds, closed_form_bound: of the answer, and of any plan of the space; closed_form_gap: share by which they
    differ
    """

    shapes: int
    opened: int
    closed_form_seconds: float
    closed_form_bound: float
    closed_form_gap: float


@dataclass(frozen=True, slots=True)
class MixedPipelines:
    """Planner for clusters of several kinds of GPU: the best pipelines by a closed form are replayed."""

    request: Request = field(default_factory=Request)
    name: str = "mixed"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan that fits; InfeasiblePlanError, with what is proven, if the space has none."""
        run = _PipelineSearch(self.name, problem, evaluate)
        for choices in _choices(problem, self.request):
            run.replay_best_of(choices)
        if run.closest is None:
            raise InfeasiblePlanError(run.does_not_fit())
        best = fitting(self.name, run.closest, evaluate)
        run.tell(best)
        return best


def has_kinds(problem: Problem) -> bool:
    """Whether a network has a run of like blocks, and its cluster several kinds of device."""
    return len(set(problem.cluster.devices)) > 1 and like_blocks(problem.workload) is not None


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the planner cannot plan what is asked for, as a sentence for the user; None where it can."""
    if request.schedule not in (None, "1f1b"):
        return f"it plans 1f1b, not {request.schedule!r}"
    if like_blocks(problem.workload) is None:
        return f"workload {problem.workload.name!r} has no blocks in a row that are alike"
    if any(device.streams for device in problem.cluster.devices):
        return "layers of a stage stream on a board: it is no sum of blocks"
    try:
        choices = _choices(problem, request)
    except ValueError as error:
        return str(error)
    space = _space(problem, choices[0])
    if not space.variants:
        return f"no server has {min(choices[0].degrees)} {problem.device_word}s of one kind for a group"
    if not space.sizes:
        return f"no micro-batches of a batch of {problem.batch} are {request.microbatches} for whole replicas"
    return None


def searched(problem: Problem, request: Request) -> dict[str, Iterable[Any]]:
    """Values that a search tries, by the name of the decision, for decisions that the request leaves open."""
    return {
        "microbatches": searched_counts(problem),
        "recompute": asked_policies(problem, request),
        "tensor": group_degrees(problem),
        "zero": get_args(Zero),
    }


def _choices(problem: Problem, request: Request) -> list[Choices]:
    """The choices of plans of each ZeRO stage; ValueError for invalid options."""
    degrees = asked_degrees(problem, request)
    policies = asked_policies(problem, request)
    first, *others = (Choices(degrees, policies, zero, request.microbatches) for zero in asked_zeros(problem, request))
    return [first, *(replace(one, fewest_replicas=2) for one in others)]  # one replica divides nothing


def _space(problem: Problem, choices: Choices, spare: Mapping[int, float] | None = None) -> ClusterSpace:
    """The space of these choices; spare: bytes to leave free on each device of a kind, by the kind's number"""
    blocks = like_blocks(problem.workload)
    assert blocks is not None  # as `inapplicable` says
    return ClusterSpace(problem, blocks, choices, spare or {})


class _PipelineSearch:
    """One call of the planner.

    seconds: by the closed form, of the plans that were replayed
    found: of each ZeRO stage, the result of the last search of all its plans; last: the last search's result
    spared: whether any search left memory free for what replays need above the closed form
    closest: the best plan that was replayed, or while none fits the one that exceeds memory least
    """

    def __init__(self, name: str, problem: Problem, evaluate: Evaluator) -> None:
        self.name, self.problem, self.evaluate = name, problem, evaluate
        self.seconds: dict[Plan, float] = {}
        self.found: list[FoundPipelines] = []
        self.spared = False
        self.closest: Plan | None = None
        self.last: FoundPipelines

    def replay_best_of(self, choices: Choices) -> None:
        """Replay the best plans of a ZeRO stage by the closed form: of all numbers of micro-batches together while no plan is
        known to fit; then of each number, unless none is found at all.
        """
        if choices.microbatches is not None or self._of_use == inf:
            self._replay_what_fits(choices)
        found = self.last
        if choices.microbatches is None and self.closest is not None:
            space = _space(self.problem, choices)
            scores, found = self._replay(space, of_each=True), self.last
            fit = {len(plan.microbatches) for plan, score in scores.items() if score.fits}
            tight = {len(plan.microbatches) for plan in scores}.union(set(space.counts) - found.rounds) - fit
            for count in sorted(tight):
                self._replay_what_fits(replace(choices, microbatches=count))
        self.found.append(found)

    def _replay_what_fits(self, choices: Choices) -> None:
        """Replay the best plans of some choices; while none fits in its replay, the best of those that leave more memory free."""
        space = _space(self.problem, choices)
        for _ in range(ROUNDS):
            scores = self._replay(space)
            if not scores or any(score.fits for score in scores.values()):
                break
            space = self._sparing(space, scores.values())
            self.spared = True

    def _replay(self, space: ClusterSpace, *, of_each: bool = False) -> dict[Plan, Score]:
        """Replay the best plans of a space by the closed form, and return their scores; plans that the best one so far rules out
        are left out.

        Where no plan has room for the tensors that it sends, plans without that room are replayed: these may still fit.
        of_each: the best of each number of micro-batches
        """
        best = self._best(space, of_each)
        if not best and not of_each:
            best = self._best(_space(self.problem, replace(space.choices, buffers=False), space.spare_bytes))
        self.seconds |= best
        scores = {plan: self.evaluate(plan) for plan in best}
        among = [*scores, *([] if self.closest is None else [self.closest])]
        self.closest = min(among, key=lambda plan: self.evaluate(plan).key, default=None)
        return scores

    @property
    def _of_use(self) -> float:
        """Seconds by the closed form from which on no plan is replayed: UNSURE times the best one's, by it and in its replay; inf
        while none fits.
        """
        if self.closest is None or not self.evaluate(self.closest).fits:
            return inf
        return UNSURE * max(self.seconds[self.closest], self.evaluate(self.closest).iteration_seconds)

    def _best(self, space: ClusterSpace, of_each: bool = False) -> dict[Plan, float]:
        """The best plans of a space with their seconds by the closed form; on an interrupt the best so far is replayed first."""
        known: list[MixedPipeline] = []
        try:
            self.last = search(
                space,
                MOST_WORK,
                FINALISTS,
                lambda found: known.append(found.pipelines[0][1]),
                self._of_use,
                of_each=of_each,
            )
        except KeyboardInterrupt:
            if known:
                self.evaluate(space.plan(self.name, known[-1]))
            raise
        best, kept = dict[Plan, float](), Counter[int]()
        for seconds, pipeline in self.last.pipelines:
            rounds = space.rounds(pipeline.samples, pipeline.replicas) * of_each
            kept[rounds] += 1
            if kept[rounds] <= FINALISTS:
                best[space.plan(self.name, pipeline)] = seconds
        return best

    def _sparing(self, space: ClusterSpace, scores: Iterable[Score]) -> ClusterSpace:
        """The space that leaves more memory free on each kind of device: the most that a plan lacked there, beside what it leaves
        free already.
        """
        spare = dict(space.spare_bytes)
        for score in scores:
            kind = space.kind_of[score.device]
            lacking = 1.01 * (score.peak_bytes - score.capacity_bytes)
            spare[kind] = max(spare.get(kind, 0.0), space.spare_bytes.get(kind, 0.0) + lacking)
        return _space(self.problem, space.choices, spare)

    def tell(self, plan: Plan) -> None:
        """Note how far the plan may be from the best by the closed form, and declare it optimal where that is proven."""
        seconds = self.seconds[plan]
        best = min((found.pipelines[0][0] for found in self.found if found.pipelines), default=inf)
        bound = min(seconds, best, *(found.bound for found in self.found))
        gap = seconds / bound - 1.0
        self.evaluate.note(
            ClosedFormGap(
                f"by the closed form {seconds:.4g} s, and no plan that the planner chooses from takes less than "
                f"{bound:.4g} s by it: at most {percent(gap, '.2g')} are left",
                shapes=sum(found.shapes for found in self.found),
                opened=sum(found.opened for found in self.found),
                closed_form_seconds=seconds,
                closed_form_bound=bound,
                closed_form_gap=gap,
            )
        )
        if bound >= best * (1.0 - EXACT) and not self.spared:
            among = f"{len(self.seconds)} of the best by the closed form of " if len(self.seconds) > 1 else ""
            self.evaluate.declare_optimal(
                f"{among}all mixed pipelines (micro-batch of up to {MOST_SAMPLES} samples × equal replicas × stages of whole "
                "blocks, in each a degree for each kind of device and any share of the replicas, recomputation by stage)"
            )

    def does_not_fit(self) -> str:
        """The message that no plan fits: what is proven, and the numbers, in one line."""
        problem, proven, word = self.problem, all(found.proven for found in self.found), self.problem.device_word
        state = float(self.evaluate.layer_costs.parameters.sum()) * problem.state_bytes / GIB
        room = sum(problem.rooms) / GIB
        known = "proves that no mixed pipeline fits" if proven else "finds no mixed pipeline that fits"
        return (
            f"planner {self.name!r} {known}: weights, gradients and optimizer states take {state:.4g} GiB once, "
            f"{problem.cluster.counted_devices} hold {room:.4g} GiB together; use more {word}s or smaller groups of samples"
        )
