"""Rule of thumb: the layout that engineers write down by hand, without a search for seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hardware_profiles import counted
from planners.estimate.like_blocks import like_blocks
from planners.search.candidates import asked_degrees, asked_policies, asked_zeros, device_groups, ranks_of
from planners.search.evaluator import Evaluator, best_plan
from planners.search.request import Request
from simulator import InfeasiblePlanError, Plan, Problem, Recompute, equal_microbatches, stages_from_cuts

LARGEST_SAMPLES = 4
"""Samples of a micro-batch on one replica that are tried first, for a network of blocks; half as many where these do not fit."""


@dataclass(frozen=True, slots=True)
class HandMadeLayout:
    """Tensor parallelism inside a server, the pipeline across servers, data parallelism over the rest, ZeRO 1, 1F1B.

    The first layout that fits of these (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM", takeaways 1 to 3), in turn: tensor-parallel groups of 1, 2, 4, ... devices up to a server; then groups of
    a whole server in pipelines of 2, 4, 8, ... stages with equally many blocks (layers of a network without blocks); each with
    micro-batches of four samples, of two, of one (of such a network with the whole share of the batch, with half of it, ...); all
    without recomputation, then with the least and with more of it.
    """

    request: Request = field(default_factory=Request)
    name: str = "rule-of-thumb"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The first layout that fits; InfeasiblePlanError, with the numbers of the one that comes closest, if none does."""
        tried = []
        for plan in self.layouts(problem):
            tried.append(plan)
            if evaluate(plan).fits:
                break
        if not tried:
            asked = "" if self.request.stages is None else f" of {counted(self.request.stages, 'stage')}"
            raise InfeasiblePlanError(
                f"planner {self.name!r} finds no layout{asked}: it tries one stage, and 2, 4, 8, ... stages of a block or more, "
                f"each on groups of as many {problem.device_word}s as tensor parallelism may have"
            )
        return best_plan(self.name, tried, evaluate)

    def layouts(self, problem: Problem) -> Iterator[Plan]:
        """The layouts in the order in which they are tried."""
        possible = asked_degrees(problem, self.request)
        degrees = [one for one in possible if one & (one - 1) == 0] or [*possible]
        shapes = [(degree, 1) for degree in degrees]
        ranks = 2
        while problem.stack.runs.pipeline and degrees[-1] * ranks <= len(problem.cluster.devices):
            shapes.append((degrees[-1], ranks))
            ranks *= 2
        for policy in asked_policies(problem, self.request):
            for degree, count in shapes:
                yield from self._of_shape(problem, degree, count, policy)

    def _of_shape(self, problem: Problem, degree: int, ranks: int, policy: Recompute) -> Iterator[Plan]:
        """Layouts of one shape by falling size of micro-batches; ranks: stages of the pipeline, one per rank"""
        groups, blocks, layers = device_groups(problem, degree), like_blocks(problem.workload), len(problem.workload)
        copies = len(groups) // ranks
        places = layers if blocks is None else blocks.count
        if not copies or ranks > places or self.request.stages not in (None, ranks):
            return
        even = [round(rank * places / ranks) for rank in range(1, ranks)]
        cuts = even if blocks is None else [blocks.before + block * blocks.size for block in even]
        stages = stages_from_cuts(cuts, layers, ranks_of(groups, ranks, copies), degree)
        zeros = asked_zeros(problem, self.request)
        samples = max(1, problem.batch // copies) if blocks is None else LARGEST_SAMPLES
        while samples >= 1:
            count = self.request.microbatches or max(1, problem.batch // (copies * samples))
            yield Plan(
                self.name,
                self.request.schedule or "1f1b",
                stages,
                equal_microbatches(problem.batch, count),
                recompute=(policy,) * ranks,
                zero=(1 if 1 in zeros else zeros[0]) if copies > 1 else 0,
            )
            samples = 0 if self.request.microbatches else samples // 2


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the rule has no layout for what is asked for, as a sentence for the user; None where it has."""
    if request.schedule not in (None, "1f1b", "gpipe", "eager-1f1b", "zb-h1", "zb-h2"):
        return f"the rule's pipelines have one stage per {problem.device_word} and flush, not {request.schedule!r}"
    try:
        asked_degrees(problem, request)
        asked_zeros(problem, request)
    except ValueError as error:
        return str(error)
    return None
