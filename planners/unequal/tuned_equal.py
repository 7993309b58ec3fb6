"""Tuned equal sizes: the fastest GPipe, with its number of stages, its partition and its micro-batches searched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from planners.partitioning.straight_search import StraightShape, fastest_straight
from planners.search.candidates import devices_in_order, microbatch_counts, one_a_device
from planners.search.evaluator import Evaluator
from planners.search.request import Request
from planners.unequal.planners import unequal_sizes
from simulator import InfeasiblePlanError, Plan, Problem


@dataclass(frozen=True, slots=True)
class TunedEqual:
    """The fastest GPipe on the first devices of the cluster, each with a stage.

    Of each number of stages the best partition with one size for all micro-batches, the last of which takes what is left; and,
    over all of these numbers, with micro-batches as equal as whole samples permit, as other straight pipelines have them.
    """

    request: Request
    name: str = "best-equal"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan that fits; InfeasiblePlanError, of the most stages, if none does."""
        asked = self.request.stages
        best: Plan | None = None
        seconds, failed = inf, None
        details, notes, among = evaluate.details, evaluate.notes, ""
        for stages in reversed(one_a_device(problem) if asked is None else (asked,)):
            evaluate.details, evaluate.notes, evaluate.optimal_among = {}, [], ""
            try:
                plan = unequal_sizes(replace(self.request, stages=stages), self.name)(problem, evaluate, rng)
            except InfeasiblePlanError as error:
                failed = failed or error
                continue
            if evaluate.on_reference(plan).iteration_seconds < seconds:
                best, seconds = plan, evaluate.on_reference(plan).iteration_seconds
                details, notes, among = evaluate.details, evaluate.notes, evaluate.optimal_among
        straight = self._straight(problem, evaluate)
        if straight is not None and evaluate.on_reference(straight).iteration_seconds < seconds:
            best, details, among = straight, {}, ""
            notes = [
                "micro-batches as equal as whole samples permit are faster than those of one size and a smaller last one"
            ]
        evaluate.details, evaluate.notes, evaluate.optimal_among = details, notes, among
        if best is None:
            raise failed or InfeasiblePlanError(f"planner {self.name!r} finds no plan")
        return best

    def _straight(self, problem: Problem, evaluate: Evaluator) -> Plan | None:
        """The fastest with equal micro-batches, of all sizes; None where only some sizes may be chosen, and where none fits."""
        if self.request.asked("candidates") == "powers-of-two":
            return None
        order, stages = devices_in_order(problem), self.request.stages
        shapes = (
            StraightShape("gpipe", order[:held], count)
            for held in (one_a_device(problem) if stages is None else (stages,))
            for count in microbatch_counts(problem, Request(), held)
        )
        return fastest_straight(self.name, evaluate, shapes)
