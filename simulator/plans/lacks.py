"""Lacks: what a plan, or its problem, needs of what is to run it and does not get, each a noun phrase behind "no"."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from hardware_profiles import Runs
from simulator.schedules import schedule_families

if TYPE_CHECKING:
    from simulator.plans.plan import Plan, Problem


def problem_lacks(runs: Runs, problem: Problem) -> Iterator[str]:
    """What every plan of a problem needs, and something that runs such plans has not."""
    if runs.precisions and problem.precision not in runs.precisions:
        yield f"precision {problem.precision} ({_choices(runs.precisions)})"
    if not runs.fused_attention and any(layer.fused_pairs for layer in problem.workload.layers):
        yield f"fused attention: {problem.workload.name} needs --attention unfused"


def plan_lacks(runs: Runs, problem: Problem, plan: Plan) -> Iterator[str]:
    """What a plan needs, and something that runs such plans has not: by its lists, its ways of dividing, its further rules."""
    family = "" if plan.order else plan.schedule
    kept: tuple[tuple[Collection[object], dict[object, str]], ...] = (
        (runs.zero, {plan.zero: f"ZeRO {plan.zero}"} if len(plan.devices) > 1 else {}),
        (runs.schedules, {family: f"schedule {family}" if family else "order of ops"} if len(plan.stages) > 1 else {}),
        (runs.recompute, {one: f"recompute {one}" for one in plan.recompute or (problem.recompute,)}),
    )
    for allowed, found in kept:
        for value, words in sorted(found.items(), key=lambda one: one[1]):
            if allowed and value not in allowed:
                yield f"{words} ({_choices(allowed)})"
    sizes = {*plan.microbatches, *(size for one in (*plan.forward_sizes, *plan.backward_sizes) for size in one)}
    places = {(len(stage.devices), stage.degrees) for stage in plan.stages}
    degree = max((degree // plan.context for stage in plan.stages for degree in stage.degrees), default=1)
    yield from _lacking(
        (runs.tensor, degree, "tensor-parallel groups"),
        (runs.sequence_parallel, degree * problem.sequence_parallel, "sequence parallelism"),
        (runs.context, plan.context, "context parallelism"),
        (runs.expert, plan.expert, "expert parallelism"),
    )
    yield from number_lacks(runs, family, len(plan.stages), plan.chunks, len(plan.microbatches))
    yield from _lacking(
        (False, 1 + bool(plan.splits), "layers that stages share by output channels"),
        (runs.cut_blocks, 1 + _cuts_blocks(problem, plan), "stages that end inside blocks"),
        (
            runs.unlike_recompute,
            len(set(plan.recompute)),
            f"stages that recompute unlike ({', '.join(sorted(set(plan.recompute)))})",
        ),
        (
            runs.unlike_recompute,
            1 + _recomputes_unlike(problem, plan),
            f"stages that recompute unlike numbers of blocks ({', '.join(map(str, dict.fromkeys(plan.recomputed_blocks)))})",
        ),
        (runs.hybrid_sharding, min(plan.shard, 1) + 1, "ZeRO among part of the replicas"),
        (runs.unequal, len(sizes), f"micro-batches of unlike sizes ({', '.join(map(str, sorted(sizes)))})"),
        (runs.unequal, len(places), f"stages on unlike numbers of devices ({plan.notation})"),
    )
    for rule in runs.further:
        yield from rule(problem, plan)


def number_lacks(runs: Runs, schedule: str, stages: int, chunks: int, microbatches: int) -> Iterator[str]:
    """What pipelines of so many stages, stages per device and micro-batches need, and something that runs plans has not.

    schedule: its family; "" for an order of its own
    """
    ranks = stages // chunks
    once = bool(schedule) and chunks == 1 and "chunks" in schedule_families()[schedule].options
    yield from _lacking(
        (runs.pipeline, stages, "pipelines of several stages"),
        (runs.interleaved, chunks, "several stages per device"),
        (runs.looped_alone, chunks * (ranks == 1), "several stages on devices that hold the whole network"),
        (
            runs.short_groups,
            1 + (chunks > 1 and microbatches < ranks),
            f"several stages per device with fewer micro-batches ({microbatches}) than ranks ({ranks})",
        ),
        (runs.looped_once, stages * once, f"schedule {schedule} with one stage per device"),
    )


def _lacking(*ways: tuple[bool, int, str]) -> Iterator[str]:
    """Of whether something is permitted, how many a plan has, and words: the words where it has several, and may not."""
    yield from (words for permitted, count, words in ways if count > 1 and not permitted)


def _cuts_blocks(problem: Problem, plan: Plan) -> bool:
    """Whether stages hold parts of the same block."""
    held = [problem.workload.blocks_of(stage.layers) for stage in plan.stages]
    return sum(map(len, held)) > len(set[int]().union(*held))


def _recomputes_unlike(problem: Problem, plan: Plan) -> bool:
    """Whether stages recompute other numbers of their first blocks than as many as all do, as far as they have them."""
    most = max(plan.recomputed_blocks, default=0)
    if not most:
        return False
    held = [len(problem.workload.blocks_of(stage.layers)) for stage in plan.stages]
    counted = zip(plan.recomputed_blocks, held, strict=True)
    return any((count or blocks) != min(most, blocks) for count, blocks in counted)


def _choices(allowed: Iterable[object]) -> str:
    return f"choices: {', '.join(map(str, allowed))}"
