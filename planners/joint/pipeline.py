"""Pipeline: a flushed plan as the numbers that a joint search changes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hardware_profiles import OptionValue
from simulator import (
    Plan,
    Problem,
    Recompute,
    Zero,
    cuts_of,
    equal_microbatches,
    schedule_families,
    stages_from_cuts,
)

Again = tuple[Recompute, int]
"""A recompute policy, and how many of a stage's first blocks it holds for; 0 stands for all of them."""

Ranks = tuple[tuple[int, ...], ...]
"""Devices of each rank of a pipeline, replica after replica."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A flushed pipeline: ranks of devices, the layers of their stages, and how these run.

    schedule, options: of a schedule family; its placement says which stages each rank holds (of two directions, those of the
    first)
    ranks: devices of each rank; group: devices of each replica, the same for all
    cuts: layers before each boundary between stages, in the order of the data
    microbatches: how many, as equal as whole samples permit
    recompute: of each stage, its policy and how many of its blocks it holds for
    zero, context, expert, shard: as of a `Plan`
    """

    schedule: str
    ranks: Ranks
    cuts: tuple[int, ...]
    microbatches: int
    recompute: tuple[Again, ...]
    options: tuple[tuple[str, OptionValue], ...] = ()
    group: int = 1
    zero: Zero = 0
    context: int = 1
    expert: int = 1
    shard: int = 0

    @property
    def stages(self) -> int:
        """Number of stages, of all ranks."""
        return len(self.cuts) + 1

    @property
    def chunks(self) -> int:
        """Stages per rank."""
        return self.stages // len(self.ranks)

    @property
    def slices(self) -> int:
        """Number of slices of each sequence; 1 for schedules of whole sequences."""
        asked = dict(self.options).get("slices", 1)
        return asked if isinstance(asked, int) else 1

    @property
    def opposite(self) -> bool:
        """Whether two pipelines pass through its devices in opposite directions."""
        return schedule_families()[self.schedule].placement == "bidirectional"

    @property
    def tensor(self) -> int:
        """Tensor-parallel degree: devices of a replica per part of the context."""
        return self.group // self.context

    @property
    def replicas(self) -> tuple[int, ...]:
        """Number of replicas of each rank."""
        return tuple(len(rank) // self.group for rank in self.ranks)

    @property
    def copies(self) -> int:
        """Least number of copies of any stage's weights: replicas, times parts of the context, times directions."""
        return min(self.replicas, default=1) * self.context * (1 + self.opposite)

    @property
    def rank_of_stage(self) -> tuple[int, ...]:
        """The rank that holds each stage."""
        return schedule_families()[self.schedule].device_of_stage(range(len(self.ranks)), self.chunks)

    def bounds(self, layers: int) -> list[int]:
        """The first layer of each stage, then the number of layers."""
        return [0, *self.cuts, layers]

    def blocks(self, problem: Problem) -> list[int]:
        """Number of blocks of which each stage has layers."""
        bounds = self.bounds(len(problem.workload))
        return [len(problem.workload.blocks_of(range(*pair))) for pair in pairwise(bounds)]

    def plan(self, problem: Problem, planner: str) -> Plan:
        """The plan of this pipeline; ValueError for counts that its placement cannot have. planner: the name to put into the
        plan
        """
        held = [self.ranks[rank] for rank in self.rank_of_stage]
        if self.opposite:
            held = [tuple(dict.fromkeys(pair[0] + pair[1])) for pair in zip(held, reversed(held), strict=True)]
        stages = stages_from_cuts(self.cuts, len(problem.workload), held, self.group)
        policies = tuple(policy for policy, _ in self.recompute)
        counts = tuple(count for _, count in self.recompute)
        if any(counts):
            counts = tuple(count * (count < held) for count, held in zip(counts, self.blocks(problem), strict=True))
        return Plan(
            planner,
            self.schedule,
            stages,
            equal_microbatches(problem.batch, self.microbatches),
            "round-robin" if self.opposite else "split",
            recompute=() if set(policies) == {problem.recompute} else policies,
            recomputed_blocks=counts if any(counts) else (),
            options=self.options,
            zero=self.zero,
            context=self.context,
            expert=self.expert,
            shard=self.shard,
        )


def pipeline_of(problem: Problem, plan: Plan) -> Pipeline | None:
    """The pipeline of a plan; None where these numbers cannot say the plan.

    That is a plan of no known family that flushes, with an order or unequal sizes of its own, stages of layers that are not
    neighbours, or groups of unlike sizes.
    """
    family = schedule_families().get(plan.schedule)
    if family is None or not family.flush or family.lanes or plan.order or plan.forward_sizes:
        return None
    if plan.microbatches != equal_microbatches(problem.batch, len(plan.microbatches)):
        return None
    degrees = {degree for stage in plan.stages for degree in stage.degrees or (1,)}
    cuts = cuts_of(plan)
    if cuts is None:
        return None
    opposite = family.placement == "bidirectional"
    ranks = tuple(dict.fromkeys(stage.devices[: 1 if opposite else None] for stage in plan.stages))
    policies = plan.recompute or (problem.recompute,) * len(plan.stages)
    found = Pipeline(
        plan.schedule,
        ranks,
        cuts,
        len(plan.microbatches),
        tuple(zip(policies, plan.recomputed_blocks or (0,) * len(policies), strict=True)),
        plan.options,
        degrees.pop(),
        plan.zero,
        plan.context,
        plan.expert,
        plan.shard,
    )
    try:
        made = found.plan(problem, plan.planner)
    except ValueError:
        return None
    return found if (made.stages, made.replication) == (plan.stages, plan.replication) else None
