"""Pipelines of equal ranks: what launchers know, degrees and blocks of a plan, and rules for plans that are no such pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import simulator
from hardware_profiles import counted

if TYPE_CHECKING:
    from simulator import Plan, Problem


@dataclass(frozen=True, slots=True)
class Pipelines:
    """A plan as degrees: so many equal pipelines, each of so many ranks of tensor-parallel groups.

    ranks: of a pipeline, each with `chunks` stages; data: pipelines; tensor, context, expert: as in a plan
    microbatch: samples of one micro-batch in one pipeline
    devices: of each process, in the order tensor, context, data, pipeline, the first changing fastest
    """

    ranks: int
    chunks: int
    data: int
    tensor: int
    context: int
    expert: int
    microbatch: int
    devices: tuple[int, ...]

    @property
    def copies(self) -> int:
        """Groups that hold the same weights, all of which gradients are summed over."""
        return self.data * self.context


def pipelines_of(plan: Plan) -> Pipelines:
    """The degrees of a plan that `equal_pipelines` has nothing against."""
    first = plan.stages[0]
    degree, data = (first.degrees or (1,))[0], len(first.leads)
    places = tuple(dict.fromkeys(stage.devices for stage in plan.stages))
    return Pipelines(
        ranks=len(places),
        chunks=plan.chunks,
        data=data,
        tensor=degree // plan.context,
        context=plan.context,
        expert=plan.expert,
        microbatch=plan.microbatches[0] // data,
        devices=tuple(device for place in places for device in place),
    )


def placement_of(plan: Plan) -> str:
    """How stages go round the ranks: the first of straight, interleaved, v, wave that fits; "" for none of them."""
    places = [stage.devices for stage in plan.stages]
    ranks = {place: number for number, place in enumerate(dict.fromkeys(places))}
    chain = tuple(ranks[place] for place in places)
    for name in ("straight", "interleaved", "v", "wave"):
        try:
            if simulator.chains_of(name, len(chain), len(ranks)) == (chain,):
                return name
        except ValueError:  # counts that it cannot have
            continue
    return ""


def equal_pipelines(problem: Problem, plan: Plan) -> Iterator[str]:
    """What a plan has that no launcher of equal pipelines runs: no flush, replicas that take turns, groups of unlike sizes, …"""
    if not simulator.flushes(plan):
        yield f"updates without a flush (schedule {plan.schedule})"
    if plan.replication == "round-robin" and max(plan.replicas) > 1:
        yield "replicas that take whole micro-batches in turn"
    if any(len(set(stage.degrees)) > 1 for stage in plan.stages):
        yield "replicas of a stage in groups of unlike sizes"
    if plan.slices > 1:
        yield f"slices of a sequence (schedule {plan.schedule})"
    if uneven := [size for size in plan.microbatches if size % plan.replicas[0]]:
        yield f"micro-batches of {uneven[0]} samples on {plan.replicas[0]} replicas"
    held = [device for place in {stage.devices for stage in plan.stages} for device in place]
    if len(set(held)) < len(held):
        yield "devices that two ranks share"


def transformers(problem: Problem) -> Iterator[str]:
    """What the problem has that a launcher of transformers alone does not run."""
    if not problem.workload.is_transformer:
        yield f"networks but transformers ({problem.workload.name})"


def whole_ends(problem: Problem, plan: Plan) -> Iterator[str]:
    """What a plan has that no launcher of whole transformer blocks runs: embeddings or output heads in several stages."""
    workload = problem.workload
    if not workload.is_transformer:
        return
    inside = [number for number, layer in enumerate(workload.layers) if layer.block]
    if not set(range(inside[0])) <= set(plan.stages[0].layers):
        yield "embeddings in several stages"
    head = {number for number, layer in enumerate(workload.layers) if layer.part == "output head"}
    if not head <= set(plan.stages[-1].layers):
        yield "output heads in several stages"


def stage_blocks(problem: Problem, plan: Plan) -> list[list[int]]:
    """Numbers from 1 of the blocks of each stage."""
    return [sorted(problem.workload.blocks_of(stage.layers)) for stage in plan.stages]


def launch_notes(found: Pipelines) -> tuple[str, ...]:
    """How many processes to launch, and on which devices where these are not in the order of the ranks."""
    from simulator import in_order

    count = len(found.devices)
    notes = [f"launch {counted(count, 'process')}"]
    if found.devices != tuple(range(count)):
        notes.append(f"ranks in their order on devices {in_order(found.devices)}")
    return ("; ".join(notes),)
