"""Tuned equal sizes: planner of the fastest GPipe, whose number of stages, partition and micro-batches are searched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planners.partitioning.straight_search import StraightShape, fastest_straight
from planners.search.candidates import devices_in_order, microbatch_counts, one_a_device
from planners.search.evaluator import Evaluator
from planners.search.notes import Note
from planners.search.request import Request
from planners.unequal.planners import unequal_sizes
from simulator import InfeasiblePlanError, Plan, Problem


@dataclass(frozen=True, slots=True)
class TunedEqual:
    """Planner of the fastest GPipe on the first devices of the cluster, one stage per device.

    For each number of stages it takes the best partition with one size for all micro-batches, the last of which takes what is
    left; and, over all of these numbers, the best with micro-batches as equal as whole samples permit, as other straight
    pipelines have them.
    """

    request: Request
    name: str = "best-equal"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The fastest plan that fits; InfeasiblePlanError, for the most stages, if none does."""
        best, failed = None, None
        try:
            best = unequal_sizes(self.request, self.name)(problem, evaluate, rng)
        except InfeasiblePlanError as error:
            failed = error
        straight = self._straight(problem, evaluate)
        plans = [plan for plan in (best, straight) if plan is not None]
        if not plans:
            raise failed or InfeasiblePlanError(f"planner {self.name!r} finds no plan")
        fastest = min(plans, key=lambda plan: evaluate.on_reference(plan).iteration_seconds)
        if fastest is not best:
            evaluate.withdraw()
            evaluate.note(
                Note(
                    "micro-batches as equal as whole samples permit are faster than those of one size and a smaller last one"
                )
            )
        return fastest

    def _straight(self, problem: Problem, evaluate: Evaluator) -> Plan | None:
        """The fastest plan with micro-batches as equal as possible; None where the request restricts sizes, and where none
        fits.
        """
        if self.request.asked("candidates") == "powers-of-two" or (self.request.asked("granularity") or 1) > 1:
            return None
        order, stages = devices_in_order(problem), self.request.stages
        shapes = (
            StraightShape("gpipe", order[:held], count)
            for held in (one_a_device(problem) if stages is None else (stages,))
            for count in microbatch_counts(problem, Request(), held)
        )
        return fastest_straight(self.name, evaluate, shapes)
