"""Megatron-LM: a plan as arguments of its training scripts.

What it can run and what its arguments are called: `megatron/training/arguments.py`, `pipeline_parallel_layer_layout.py` and
`schedules.py` of NVIDIA/Megatron-LM, August 2026, and its guide of Megatron-FSDP, which names tensor, context and expert
parallelism beside it, and no pipeline.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments.targets.imported import StageLayout, one_asked, plan_of_layout
from experiments.targets.pipelines import (
    Pipelines,
    equal_pipelines,
    launch_notes,
    pipelines_of,
    placement_of,
    stage_blocks,
    transformers,
    whole_ends,
)
from experiments.targets.target import Target, Written
from hardware_profiles import Precision, Runs, shown
from simulator import least_group

if TYPE_CHECKING:
    from planners import Request
    from simulator import Plan, Problem

RECOMPUTE: dict[str, tuple[str, ...]] = {
    "none": (),
    "attention": ("--recompute-granularity", "selective"),
    "blocks": ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"),
}

FSDP = ("--use-megatron-fsdp", "--ckpt-format", "fsdp_dtensor", "--data-parallel-sharding-strategy")

ZERO: dict[int, tuple[str, ...]] = {
    0: (),
    1: ("--use-distributed-optimizer",),
    2: (*FSDP, "optim_grads"),
    3: (*FSDP, "optim_grads_params"),
}

OVERLAPPED = ("--overlap-grad-reduce",)
"""Gradients reduced in buckets beside the last backward; Megatron-FSDP does so from ZeRO 2 on, unasked."""

PRECISIONS: dict[Precision, tuple[str, ...]] = {
    "fp32": (),
    "bf16": ("--bf16",),
    "fp16": ("--fp16",),
    "fp8": ("--bf16", "--fp8-format", "hybrid"),
}

OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "adam": (),
    "momentum": ("--optimizer", "sgd"),
    "sgd": ("--optimizer", "sgd", "--sgd-momentum", "0"),
}

LONGEST = 2**16
"""Letters of a layout string at most."""


def megatron_flags(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """The arguments that say how a plan divides its work, of a plan that the target can run."""
    found = pipelines_of(plan)
    sizes = {
        "--tensor-model-parallel-size": found.tensor,
        "--pipeline-model-parallel-size": found.ranks,
        "--context-parallel-size": found.context,
        "--expert-model-parallel-size": found.expert,
    }
    flags = [word for name, size in sizes.items() if size > 1 for word in (name, str(size))]
    flags += _stages(problem, plan, found)
    flags += ["--micro-batch-size", str(found.microbatch), "--global-batch-size", str(problem.batch)]
    flags += ["--sequence-parallel"] * (problem.sequence_parallel and found.tensor > 1)
    zero = plan.zero if found.copies > 1 else 0
    instances = found.copies // plan.shard if plan.shard else 1
    flags += ["--num-distributed-optimizer-instances", str(instances)] * (instances > 1)
    flags += [
        *ZERO[zero],
        *OVERLAPPED * (found.copies > 1 and zero < 2 and problem.gradient_reduction == "buckets"),
        *_recomputation(problem, plan),
        *PRECISIONS[problem.precision],
    ]
    flags += ["--accumulate-allreduce-grads-in-fp32"] * (problem.accumulated_bytes > problem.element_bytes)
    return (*flags, *OPTIMIZERS[problem.optimizer])


def layout_string(problem: Problem, plan: Plan) -> str:
    """The stages in the order of the data: E the embedding, t a block, L the output layer with the loss."""
    counts = [len(blocks) for blocks in stage_blocks(problem, plan)]
    return f"E{'|'.join(f't*{count}' if count > 1 else 't' * count for count in counts)}L"


def _stages(problem: Problem, plan: Plan, found: Pipelines) -> list[str]:
    """How blocks are divided: evenly, which is the default, or by a layout string; and the group of an interleaved schedule."""
    if len(plan.stages) == 1:
        return []
    counts = {len(blocks) for blocks in stage_blocks(problem, plan)}
    group = _group(plan, found.ranks)
    beside = ["--microbatch-group-size-per-virtual-pipeline-stage", str(group)] * (group != found.ranks)
    if len(counts) > 1:
        return ["--pipeline-model-parallel-layout", layout_string(problem, plan), *beside]
    if found.chunks > 1:
        return ["--num-layers-per-virtual-pipeline-stage", str(counts.pop()), *beside]
    return beside


def _group(plan: Plan, ranks: int) -> int:
    """Micro-batches that pass a virtual stage before the next one has its turn."""
    asked, count = dict(plan.options).get("microbatch_group_size"), len(plan.microbatches)
    return min(asked, count) if isinstance(asked, int) else least_group(count, ranks)


def _recomputation(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Of all blocks of a stage, or of its first ones (method "block")."""
    flags = RECOMPUTE[(plan.recompute or (problem.recompute,))[0]]
    first = max(plan.recomputed_blocks, default=0)
    return (*flags[:2], "--recompute-method", "block", "--recompute-num-layers", str(first)) if first else flags


def _rules(problem: Problem, plan: Plan) -> Iterator[str]:
    """What no list says: Megatron-FSDP without a pipeline."""
    yield from equal_pipelines(problem, plan)
    yield from whole_ends(problem, plan)
    experts = any(layer.experts for layer in problem.workload.layers)
    divided = any(degree > plan.context for stage in plan.stages for degree in stage.degrees)
    if experts and divided and not problem.sequence_parallel:
        yield "experts beside tensor-parallel groups without --sequence-parallel"
    if len(plan.stages) > 1 and plan.zero > 1:
        yield f"ZeRO {plan.zero} in a pipeline (Megatron-FSDP has one stage; pipelines run ZeRO 0 or 1)"
    if plan.chunks > 1:
        yield from _interleaving(plan)


def _interleaving(plan: Plan) -> Iterator[str]:
    """The rules of its interleaved schedule."""
    if placement_of(plan) != "interleaved":
        yield "stages per device but stage s on rank s mod ranks"
    if len({stage.devices for stage in plan.stages}) == 1:
        yield "several stages on the only rank"


def _write(problem: Problem, plan: Plan, file: str) -> Written:
    return Written({"": f"{shlex.join(megatron_flags(problem, plan))}\n"}, launch_notes(pipelines_of(plan)))


def _read(text: str, problem: Problem, request: Request) -> Plan:
    """The plan of a layout string; degrees, micro-batches, ZeRO and stages per rank (1) as the request says."""
    counts = layout_blocks(text)
    chunks, schedule = request.chunks or 1, request.schedule
    if len(counts) % chunks:
        raise ValueError(f"layout of {len(counts)} stages, {chunks} per device: it must be a multiple")
    layout = StageLayout(
        blocks=counts,
        ranks=len(counts) // chunks,
        schedule=schedule or ("interleaved-1f1b" if chunks > 1 else "1f1b"),
        tensor=one_asked(request, "tensor") or 1,
        context=one_asked(request, "context") or 1,
        expert=one_asked(request, "expert") or 1,
        zero=one_asked(request, "zero") or 0,
        microbatches=request.microbatches or 0,
    )
    return plan_of_layout(problem, "megatron", layout)


def layout_blocks(text: str) -> list[int]:
    """Blocks of each stage of a layout string, in which `x*3`, `(xy|)*3` repeat and commas say nothing; ValueError for none."""
    flat = text.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]*)\)\*([0-9]{1,6})", r"([^()*])\*([0-9]{1,6})"):
        if nothing := next((found[0] for found in re.finditer(pattern, flat) if not int(found[2])), None):
            raise ValueError(f"layout {shown(text)}: {nothing} repeats nothing; a count is at least 1")
        if sum(len(found[1]) * int(found[2]) for found in re.finditer(pattern, flat)) > LONGEST:
            raise ValueError(f"layout {shown(text)} has more than {LONGEST:,} layers")
        flat = re.sub(pattern, lambda found: found[1] * int(found[2]), flat)
    if wrong := sorted(set(flat) - set("EtL|")):
        raise ValueError(
            f"layout {shown(text)}: {wrong[0]!r} is none of E (embedding), t (block), L (loss), | (next stage)"
        )
    if not (flat.startswith("E") and flat.endswith("L") and flat.count("E") == flat.count("L") == 1):
        raise ValueError(f"layout {shown(text)} must begin with E, end with L, and have one of each")
    return [stage.count("t") for stage in flat.split("|")]


MEGATRON = Target(
    summary="arguments of Megatron-LM: degrees, layout of stages, ZeRO, recomputation, batches, precision",
    runs=Runs(
        chips=("tensor-core",),
        schedules=("1f1b", "interleaved-1f1b"),
        recompute=tuple(RECOMPUTE),
        precisions=tuple(PRECISIONS),
        looped_alone=False,
        short_groups=False,
        looped_once=False,
        cut_blocks=False,
        unlike_recompute=False,
        unequal=False,
        further=(_rules,),
    ),
    problem_rules=transformers,
    write=_write,
    stacks=("megatron-core",),
    read=_read,
    form=r"E[tL|()*,\d ]*L",
    takes=("schedule", "microbatches", "chunks", "tensor", "context", "expert", "zero"),
    words=lambda problem, plan: shlex.join(megatron_flags(problem, plan)),
)
