"""Imported plans: degrees and stages as a target says them, as a plan of a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import simulator
from hardware_profiles import counted

if TYPE_CHECKING:
    from planners import Request
    from simulator import Plan, Problem, Recompute, Zero


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayout:
    """What a target says of a plan.

    blocks: of each stage in the order of the data; ranks: of the pipeline; placement: how stages go round them
    data, tensor, context, expert, zero, shard, microbatches, schedule, recompute, order: as in a plan; data: 0 for all devices
    """

    blocks: Sequence[int]
    ranks: int
    schedule: str
    placement: str = "interleaved"
    data: int = 0
    tensor: int = 1
    context: int = 1
    expert: int = 1
    zero: Zero = 0
    shard: int = 0
    microbatches: int = 0
    recompute: Recompute | None = None
    order: tuple[str, ...] = ()


def one_asked(request: Request, name: str) -> Any:
    """The value of an option that a planner chooses from several; None where it is not asked for, ValueError for several."""
    values = request.asked(name)
    if values is not None and len(set(values)) > 1:
        raise ValueError(f"{name} {', '.join(map(str, values))}: an imported plan has one value")
    return None if values is None else values[0]


def plan_of_layout(problem: Problem, name: str, layout: StageLayout) -> Plan:
    """The plan, with ranks on the devices in their order; ValueError, in one line, for a layout that the problem has no room for.

    Micro-batches have one sample in each pipeline where nobody says how many there are.
    """
    devices, group = len(problem.cluster.devices), layout.tensor * layout.context
    data = layout.data or devices // (layout.ranks * group)
    wanted = layout.ranks * group * max(data, 1)
    if wanted > devices:
        raise ValueError(
            f"{layout.ranks} ranks × {max(data, 1)} pipelines × groups of {group} take {counted(wanted, problem.device_word)}, "
            f"{problem.cluster.name} has {devices}"
        )
    count = layout.microbatches or problem.batch // data
    if count < 1 or problem.batch % count or problem.batch // count % data:
        raise ValueError(
            f"{max(count, 1)} micro-batches of {data} pipelines do not divide a batch of {problem.batch} evenly"
        )
    wide = data * group
    chain = simulator.chains_of(layout.placement, len(layout.blocks), layout.ranks)[0]
    places = [range(rank * wide, (rank + 1) * wide) for rank in chain]
    stages = simulator.stages_from_cuts(_cuts(problem, layout.blocks), len(problem.workload), places, group)
    return simulator.Plan(
        planner=name,
        schedule=layout.schedule,
        stages=stages,
        microbatches=simulator.equal_microbatches(problem.batch, count),
        recompute=() if layout.recompute is None else (layout.recompute,) * len(stages),
        zero=layout.zero,
        shard=layout.shard,
        context=layout.context,
        expert=layout.expert,
        order=layout.order,
    )


def _cuts(problem: Problem, blocks: Sequence[int]) -> list[int]:
    """Layers before each boundary: embeddings are of the first stage, the output head is of the last."""
    workload = problem.workload
    held = [layer.block for layer in workload.layers]
    if not workload.is_transformer:
        raise ValueError(f"{workload.name} has no transformer blocks")
    if sum(blocks) != max(held):
        raise ValueError(f"the stages have {sum(blocks)} blocks, {workload.name} has {max(held)}")
    head = next(number for number, layer in enumerate(workload.layers) if layer.part == "output head")
    cuts, passed = [], 0
    for number, count in enumerate(blocks[:-1]):
        passed += count
        cuts.append(head if passed == max(held) else held.index(passed + 1))
        if cuts[-1] == (cuts[-2] if number else 0):
            raise ValueError(f"stage {number} would hold no layer; every stage holds one")
    return cuts
