"""torchtitan: a plan as the TOML of a job: degrees, schedule, module names of each part, and a CSV of ops where torch has none.

What it can run and what its settings are called: pytorch/torchtitan, `config/job_config.py` (read with `--job.config_file`; since
0.3 the same names are fields of its Python configuration), `distributed/pipeline_parallel.py`, which takes the places of stages
from the schedule's name even beside a CSV, and `distributed/fsdp.py`, which divides weights among replicas and contexts together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from experiments.targets.pipelines import (
    Pipelines,
    alike_recomputation,
    launch_notes,
    pipelines_of,
    placement_of,
    stage_blocks,
    transformers,
    whole_blocks,
)
from experiments.targets.target import Target, Written
from experiments.targets.torch_csv import schedule_of, torch_rules
from hardware_profiles import Runs
from simulator import Plan, Problem, to_torch_csv

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zb": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""Families whose ops torch makes, too: name in torch."""

PLACED = {"straight": "Interleaved1F1B", "interleaved": "Interleaved1F1B", "v": "ZBVZeroBubble"}
"""Placement -> the name that says it beside a CSV."""

RECOMPUTE = {"none": "none", "blocks": "full"}

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}

RESHARD = {2: "never", 3: "always"}
"""Of ZeRO stages: whether weights are freed behind a forward, and gathered again for the backward."""


def settings(problem: Problem, plan: Plan, csv: str) -> dict[str, dict[str, object]]:
    """The settings of a job by section; csv: name of the file with the ops, for a schedule that torch has no name for."""
    found = pipelines_of(plan)
    copies = found.copies if plan.zero == 0 else found.copies // plan.shard if plan.shard else 1
    piped = found.ranks > 1
    training: dict[str, object] = {
        "local_batch_size": found.microbatch * (len(plan.microbatches) if piped else 1),
        "global_batch_size": problem.batch,
        "seq_len": problem.workload.tokens,
        "mixed_precision_param": PRECISIONS[problem.precision],
    }
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": copies,
        "data_parallel_shard_degree": found.data // copies,
        "tensor_parallel_degree": found.tensor,
        "context_parallel_degree": found.context,
        "expert_parallel_degree": found.expert,
        "pipeline_parallel_degree": found.ranks,
    }
    if plan.zero:
        parallelism["fsdp_reshard_after_forward"] = RESHARD[plan.zero]
    if found.tensor > 1 and not problem.sequence_parallel:
        parallelism["enable_sequence_parallel"] = False
    if piped:
        parallelism |= {
            "pipeline_parallel_microbatch_size": found.microbatch,
            "pipeline_parallel_schedule": named_schedule(plan, found) or PLACED[placement_of(plan)],
            **({} if named_schedule(plan, found) else {"pipeline_parallel_schedule_csv": csv}),
            "module_fqns_per_model_part": module_names(problem, plan),
        }
    again = (plan.recompute or (problem.recompute,))[0]
    return {
        "optimizer": {"name": "AdamW"},
        "training": training,
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": RECOMPUTE[again]},
    }


def named_schedule(plan: Plan, found: Pipelines) -> str:
    """The schedule's name in torch; "" for one that torch does not build for these counts, or not with these ops."""
    own = {name for name, _ in plan.options if name != "chunks"}
    count, stages = len(plan.microbatches), len(plan.stages)
    builds = found.chunks == 1 or (count >= stages if plan.schedule == "dualpipev" else count % found.ranks == 0)
    return SCHEDULES.get(plan.schedule, "") if builds and not own and not plan.order else ""


def module_names(problem: Problem, plan: Plan) -> list[list[str]]:
    """The modules of each stage, as torchtitan's language models call them."""
    held = stage_blocks(problem, plan)
    last = max(number for number, layer in enumerate(problem.workload.layers) if layer.block)
    after = min(last + 1, len(problem.workload) - 1)
    norm = next(number for number, stage in enumerate(plan.stages) if after in stage.layers)
    named = [[f"layers.{block - 1}" for block in blocks] for blocks in held]
    return [
        [
            *["tok_embeddings"] * (number == 0),
            *names,
            *["norm"] * (number == norm),
            *["lm_head"] * (number == len(named) - 1),
        ]
        for number, names in enumerate(named)
    ]


def to_toml(sections: Mapping[str, Mapping[str, object]]) -> str:
    """Sections of whole numbers, booleans, texts and lists of lists of texts, as TOML."""
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in section.items())
        for name, section in sections.items()
    )


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[\n" + "".join(f"  {json.dumps(one)},\n" for one in value) + "]"
    return json.dumps(value)


def _problem_rules(problem: Problem) -> Iterator[str]:
    yield from transformers(problem)
    if problem.optimizer != "adam":
        yield f"optimizer {problem.optimizer} (choices: adam)"


def _rules(problem: Problem, plan: Plan) -> Iterator[str]:
    """What no list says: where stages may be, and what FSDP divides."""
    yield from torch_rules(problem, plan)
    yield from whole_blocks(problem, plan)
    yield from alike_recomputation(problem, plan)
    if any(plan.recomputed_blocks):
        yield "recomputation of some blocks of a stage (it is of all or none)"
    if placement_of(plan) not in PLACED:
        yield f"stages but in a row, round the ranks, or in a V (placement {placement_of(plan) or 'of its own'})"
    if plan.context > 1 and not plan.zero:
        yield "context parallelism with ZeRO 0 (its contexts divide weights: choices: 2, 3)"
    if plan.shard % plan.context:
        yield f"ZeRO among {plan.shard} of groups that are {plan.context} for each context"
    if plan.expert > plan.context and not plan.zero:
        yield "expert parallelism over replicas with ZeRO 0 (choices: 2, 3)"


def _write(problem: Problem, plan: Plan, file: str) -> Written:
    found, files = pipelines_of(plan), {}
    if found.ranks > 1 and not named_schedule(plan, found):
        files = {".csv": to_torch_csv(schedule_of(problem, plan, "torchtitan"))}
    toml = to_toml(settings(problem, plan, f"{file}.csv"))
    return Written({"": toml, **files}, launch_notes(found))


TORCHTITAN = Target(
    summary="TOML of a torchtitan job: degrees, schedule, modules of each part, and FILE.csv for ops that torch has no name for",
    runs=Runs(
        chips=("tensor-core",),
        zero=(0, 2, 3),
        recompute=tuple(RECOMPUTE),
        precisions=("fp32", "bf16"),
        unequal=False,
        further=(_rules,),
    ),
    problem_rules=_problem_rules,
    write=_write,
    stacks=("fsdp2-eager", "fsdp2-compiled"),
)
