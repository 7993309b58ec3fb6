"""Megatron flags: a plan as arguments of Megatron-LM's training scripts, where these can say it."""

from __future__ import annotations

from hardware_profiles import Precision
from simulator import Plan, Problem

SCHEDULES = "1f1b", "interleaved-1f1b"

RECOMPUTE: dict[str, tuple[str, ...]] = {
    "none": (),
    "attention": ("--recompute-granularity", "selective"),
    "blocks": ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"),
}

ZERO: dict[int, tuple[str, ...]] = {0: (), 1: ("--use-distributed-optimizer",)}
"""Of a plan's `zero`, as far as these flags reach."""

PRECISIONS: dict[Precision, tuple[str, ...]] = {"fp32": (), "bf16": ("--bf16",), "fp16": ("--fp16",)}


class NoFlagsError(ValueError):
    """A plan that the flags cannot say; the message says why, as a clause."""


def megatron_flags(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """The flags that say how a plan divides its work; NoFlagsError, in one line, for one that they cannot say."""
    tensor, data = _group_and_replicas(plan)
    if plan.schedule not in SCHEDULES or plan.order:
        raise NoFlagsError(f"schedule {plan.schedule!r} is none of {', '.join(SCHEDULES)}")
    if plan.forward_sizes or len(set(plan.microbatches)) > 1 or plan.microbatches[0] % data:
        raise NoFlagsError(f"micro-batches are not equal on {data} replicas")
    if plan.zero not in ZERO:
        raise NoFlagsError(f"they have no ZeRO {plan.zero}")
    words = set(plan.recompute or (problem.recompute,))
    if len(words) > 1 or not words <= set(RECOMPUTE):
        raise NoFlagsError(f"recomputation ({', '.join(sorted(words))}) differs between stages, or is none of theirs")
    if len(first := set(plan.recomputed_blocks or (0,))) > 1:
        raise NoFlagsError("stages recompute unlike numbers of blocks")
    if problem.precision not in PRECISIONS:
        raise NoFlagsError(f"precision {problem.precision} is none of {', '.join(PRECISIONS)}")
    sizes = {
        "--tensor-model-parallel-size": tensor,
        "--pipeline-model-parallel-size": len(plan.stages) // plan.chunks,
        "--context-parallel-size": plan.context,
        "--expert-model-parallel-size": plan.expert,
    }
    flags = [word for name, size in sizes.items() if size > 1 for word in (name, str(size))]
    flags += _layers(problem, plan)
    flags += ["--micro-batch-size", str(plan.microbatches[0] // data), "--global-batch-size", str(problem.batch)]
    flags += ["--sequence-parallel"] * (problem.sequence_parallel and tensor > 1)
    copies = data * plan.context // plan.shard if plan.shard else 1
    flags += ["--num-distributed-optimizer-instances", str(copies)] * (copies > 1)
    again = RECOMPUTE[words.pop()]
    if blocks := first.pop():  # the method "block" recomputes the first of each stage
        again = (*again[:2], "--recompute-method", "block", "--recompute-num-layers", str(blocks))
    flags += [*ZERO[plan.zero], *again, *PRECISIONS[problem.precision]]
    flags += ["--accumulate-allreduce-grads-in-fp32"] * (problem.accumulated_bytes > problem.element_bytes)
    return tuple(flags)


def _group_and_replicas(plan: Plan) -> tuple[int, int]:
    """Devices of a tensor-parallel group, and replicas of a stage."""
    degrees = {degree for stage in plan.stages for degree in stage.degrees or (1,)}
    replicas = set(plan.replicas)
    if len(degrees) > 1 or len(replicas) > 1:
        raise NoFlagsError("stages have unlike groups or unlike numbers of replicas")
    return degrees.pop() // plan.context, replicas.pop()


def _layers(problem: Problem, plan: Plan) -> list[str]:
    """How blocks are divided: evenly, or where a device has one stage with others at the ends."""
    held = [problem.workload.blocks_of(stage.layers) for stage in plan.stages]
    counts = [len(blocks) for blocks in held]
    if sum(counts) != len(set().union(*held)) or not all(counts):
        raise NoFlagsError("some stage has no whole blocks")
    first, *middle, last = counts if len(counts) > 1 else (counts[0], counts[0])
    if plan.chunks > 1:
        if len(set(counts)) > 1:
            raise NoFlagsError(f"its {len(counts)} stages, {plan.chunks} per device, have unlike numbers of blocks")
        return ["--num-layers-per-virtual-pipeline-stage", str(first)]
    if len(set(counts)) == 1:
        return []
    if len(set(middle)) > 1:
        raise NoFlagsError("stages between the ends have unlike numbers of blocks")
    return ["--decoder-first-pipeline-num-layers", str(first), "--decoder-last-pipeline-num-layers", str(last)]
