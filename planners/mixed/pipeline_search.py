"""Planner `mixed`: pipelines over devices of several kinds (Sailor, SOSP 2025, holds the same space with equal layer counts)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np

from hardware_profiles import GIB, percent
from planners.estimate.like_blocks import like_blocks
from planners.mixed.cluster_space import MOST_SAMPLES, Choices, ClusterSpace
from planners.mixed.label_search import EXACT, FoundPipelines, search
from planners.search.candidates import asked_degrees, asked_words, asked_zeros, searched_counts
from planners.search.evaluator import Evaluator, fitting
from planners.search.notes import Note
from planners.search.request import Request
from simulator import InfeasiblePlanError, Plan, Problem, Score, Zero, group_degrees

MOST_WORK = 2.5e6
"""Most stages that a search extends, per ZeRO stage."""

FINALISTS = 4
"""Most pipelines that are replayed."""

UNSURE = 1.05
"""Times the closed form that the best plan takes, above which the best of each number of micro-batches are replayed, too."""

ROUNDS = 4
"""Most searches, each with more memory left free than the last one, while no finalist fits in its replay."""


@dataclass(frozen=True, slots=True)
class ClosedFormGap(Note):
    """Gap of the plan above the least seconds by the closed form, and numbers of shapes in the space and searched."""

    shapes: int
    opened: int
    closed_form_seconds: float
    closed_form_bound: float
    closed_form_gap: float


@dataclass(frozen=True, slots=True)
class MixedPipelines:
    """The fastest plan of the space: by the closed form, then by replay."""

    request: Request = field(default_factory=Request)
    name: str = "mixed"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan that fits; InfeasiblePlanError, with what is proven, if the space has none."""
        run = _PipelineSearch(self, problem, evaluate)
        for _ in range(ROUNDS):
            replayed = list(run.replayed())
            if not replayed:
                break
            fit = [plan for plan in replayed if evaluate(plan).fits]
            if fit:
                best = min(fit, key=lambda plan: evaluate(plan).key)
                if evaluate(best).iteration_seconds > UNSURE * run.seconds[best]:
                    replayed += run.of_each_count()
                    best = min((plan for plan in replayed if evaluate(plan).fits), key=lambda plan: evaluate(plan).key)
                run.tell(best, replayed)
                return best
            run.leave_free([evaluate(plan) for plan in replayed])
        if run.closest is None:
            raise InfeasiblePlanError(run.does_not_fit())
        return fitting(self.name, run.closest, evaluate)


def has_kinds(problem: Problem) -> bool:
    """Whether a network has like blocks, and its cluster several kinds of device."""
    return len(set(problem.cluster.devices)) > 1 and like_blocks(problem.workload) is not None


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the space holds no plan of the kind that is asked for, or None."""
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
    """Values that a search tries for decisions that the request leaves open."""
    return {
        "microbatches": searched_counts(problem),
        "recompute": asked_words(problem, request),
        "tensor": group_degrees(problem),
        "zero": get_args(Zero),
    }


def _choices(problem: Problem, request: Request) -> list[Choices]:
    """Choices of plans, per ZeRO stage; ValueError for invalid options."""
    degrees = asked_degrees(problem, request)
    policies = asked_words(problem, request)
    first, *others = (Choices(degrees, policies, zero, request.microbatches) for zero in asked_zeros(problem, request))
    return [first, *(replace(one, fewest_replicas=2) for one in others)]  # one replica divides nothing


def _space(problem: Problem, choices: Choices, spare: dict[int, float] | None = None) -> ClusterSpace:
    blocks = like_blocks(problem.workload)
    assert blocks is not None  # as `inapplicable` says
    return ClusterSpace(problem, blocks, choices, spare or {})


class _PipelineSearch:
    """One call of the planner.

    seconds: of the plans that were replayed, by the closed form
    """

    def __init__(self, planner: MixedPipelines, problem: Problem, evaluate: Evaluator) -> None:
        self.planner, self.problem, self.evaluate = planner, problem, evaluate
        self.spare: dict[int, float] = {}
        self.found: list[FoundPipelines] = []
        self.seconds: dict[Plan, float] = {}
        self.closest: Plan | None = None

    def replayed(self) -> Iterator[Plan]:
        """The best plans of the space by the closed form, each with a score; the best so far where an interrupt comes.

        Where none has room for what it sends, those that may do without it.
        """
        choices = _choices(self.problem, self.planner.request)
        best = self._best(choices) or self._best([replace(one, buffers=False) for one in choices])
        for plan, seconds in sorted(best.items(), key=lambda one: one[1])[:FINALISTS]:
            score = self.evaluate(plan)
            self.seconds[plan] = seconds
            if self.closest is None or score.key < self.evaluate(self.closest).key:
                self.closest = plan
            yield plan

    def _best(self, choices: list[Choices]) -> dict[Plan, float]:
        """The best plans, with their seconds."""
        best: dict[Plan, float] = {}
        self.found = []
        try:
            for one in choices:
                space = _space(self.problem, one, self.spare)

                def note(found: FoundPipelines, space: ClusterSpace = space, most: int = 1) -> None:
                    for seconds, pipeline in found.pipelines[:most]:
                        best[space.plan(self.planner.name, pipeline)] = seconds

                below = sorted(best.values())[FINALISTS - 1 : FINALISTS]
                self.found.append(search(space, MOST_WORK, FINALISTS, note, *below))
                note(self.found[-1], most=FINALISTS)
        except KeyboardInterrupt:
            if best:
                self.evaluate(min(best, key=lambda plan: best[plan]))
            raise
        return best

    def of_each_count(self) -> list[Plan]:
        """The best plans of each number of micro-batches: beside slow links the closed form ranks few stages too low."""
        found: list[Plan] = []
        asked = self.planner.request
        for count in searched_counts(self.problem) if asked.microbatches is None else ():
            request = replace(asked, microbatches=count)
            if inapplicable(self.problem, request) is None:
                one = _PipelineSearch(replace(self.planner, request=request), self.problem, self.evaluate)
                one.spare = self.spare
                found += [plan for plan in one.replayed() if plan not in self.seconds]
                self.seconds |= one.seconds
        return found

    def leave_free(self, scores: list[Score]) -> None:
        """Leave free on each kind of device, beside what is free already, the most that a plan lacked there."""
        kind_of = _space(self.problem, _choices(self.problem, self.planner.request)[0]).kind_of
        lacking: dict[int, float] = {}
        for score in scores:
            kind = kind_of[score.device]
            lacking[kind] = max(lacking.get(kind, 0.0), 1.01 * (score.peak_bytes - score.capacity_bytes))
        self.spare.update({kind: self.spare.get(kind, 0.0) + most for kind, most in lacking.items()})

    def tell(self, plan: Plan, replayed: list[Plan]) -> None:
        """Record what is known about the best plan."""
        seconds, best = self.seconds[plan], min(self.seconds[one] for one in replayed)
        bound = min(best, *(found.bound for found in self.found))
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
        if bound >= best * (1.0 - EXACT) and not self.spare:
            among = f"{len(replayed)} of the best by the closed form of " if len(replayed) > 1 else ""
            self.evaluate.declare_optimal(
                f"{among}all mixed pipelines (micro-batch of up to {MOST_SAMPLES} samples × equal replicas × stages of whole "
                "blocks, in each a degree for each kind of device and any share of the replicas, recomputation by stage)"
            )

    def does_not_fit(self) -> str:
        """One line: what is proven, and the numbers."""
        problem, proven, word = self.problem, all(found.proven for found in self.found), self.problem.device_word
        state = float(self.evaluate.layer_costs.parameters.sum()) * problem.state_bytes / GIB
        room = sum(problem.rooms) / GIB
        known = "proves that no mixed pipeline fits" if proven else "finds no mixed pipeline that fits"
        return (
            f"planner {self.planner.name!r} {known}: weights, gradients and optimizer states take {state:.4g} GiB once, "
            f"{problem.cluster.counted_devices} hold {room:.4g} GiB together; use more {word}s or smaller groups of samples"
        )
