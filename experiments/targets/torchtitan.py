"""torchtitan: a plan as the TOML of a job: degrees, schedule, module names of each part, and a CSV of ops where torch has none.

What it can run and what its settings are called: pytorch/torchtitan, `config/job_config.py` (read with `--job.config_file`; since
0.3 the same names are fields of its Python configuration), `distributed/pipeline_parallel.py`, which takes the places of stages
from the schedule's name even beside a CSV, and `distributed/fsdp.py`, which divides weights among replicas and contexts together.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import simulator
from experiments.targets.imported import StageLayout, plan_of_layout
from experiments.targets.pipelines import (
    Pipelines,
    launch_notes,
    pipelines_of,
    placement_of,
    stage_blocks,
    transformers,
    whole_ends,
)
from experiments.targets.target import Target, Written
from experiments.targets.torch_csv import csv_of, torch_rules
from experiments.terminal.output import InputError, blamed_on
from hardware_profiles import MOST_DEVICES, Runs, check_whole, read_bytes, shown

if TYPE_CHECKING:
    from planners import Request
    from simulator import Plan, Problem

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

RECOMPUTE = {"none": "none", "every-second-product": "selective", "blocks": "full"}

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}

EAGER, COMPILED = "fsdp2-eager", "fsdp2-compiled"
"""Stacks that predict its seconds, without and with `compile.enable`."""

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
    checkpoint: dict[str, object] = {"mode": RECOMPUTE[again]}
    if checkpoint["mode"] == "selective":
        checkpoint["selective_ac_option"] = "op"
    return {
        "optimizer": {"name": "AdamW"},
        "training": training,
        "parallelism": parallelism,
        "activation_checkpoint": checkpoint,
        **({"compile": {"enable": True}} if problem.stack.name == COMPILED else {}),
    }


def named_schedule(plan: Plan, found: Pipelines) -> str:
    """The schedule's name in torch; "" for one that torch does not build for these counts, or not with these ops."""
    own = {name for name, _ in plan.options if name != "chunks"}
    count, stages = len(plan.microbatches), len(plan.stages)
    rounds = count // found.ranks  # of an interleaved schedule, each of as many micro-batches
    builds = found.chunks == 1 or (
        count >= stages if plan.schedule == "dualpipev" else rounds > 0 and count % rounds == 0
    )
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
    yield from whole_ends(problem, plan)
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
        files = {".csv": csv_of(problem, plan, "torchtitan")}
    toml = "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in section.items())
        for name, section in settings(problem, plan, f"{file}.csv").items()
    )
    return Written({"": toml, **files}, launch_notes(found))


def _read(path: str, problem: Problem, request: Request) -> Plan:
    """The plan of a job's TOML. InputError, one line with the key, for a file that says none of this problem."""
    sections = _sections(path)
    with blamed_on(path):
        parallel, training = _section(sections, "parallelism"), _section(sections, "training")
        ranks = _degree(parallel, "pipeline_parallel_degree")
        tensor, context = (_degree(parallel, f"{name}_parallel_degree") for name in ("tensor", "context"))
        replicas = _degree(parallel, "data_parallel_replicate_degree")
        left = len(problem.cluster.devices) // (ranks * tensor * context * replicas)
        shard = (
            max(left, 1)
            if parallel.get("data_parallel_shard_degree", -1) == -1
            else _degree(parallel, "data_parallel_shard_degree")
        )
        _agree(training, problem)
        schedule, placement, order = _schedule(parallel, path) if ranks > 1 else ("1f1b", "straight", ())
        blocks = _blocks(parallel.get("module_fqns_per_model_part"), problem) if ranks > 1 else [_all_blocks(problem)]
        words = {"never": 2, "always": 3, "default": 2 if ranks > 1 else 3}
        checkpoint = _section(sections, "activation_checkpoint")
        again = checkpoint.get("mode", "selective")
        if again == "selective":
            option = "activation_checkpoint.selective_ac_option"
            _chosen(option, checkpoint.get("selective_ac_option", "2"), {"op": ""})
        layout = StageLayout(
            blocks=blocks,
            ranks=ranks,
            schedule=schedule,
            placement=placement,
            data=replicas * shard,
            tensor=tensor,
            context=context,
            expert=_degree(parallel, "expert_parallel_degree"),
            zero=_chosen(
                "parallelism.fsdp_reshard_after_forward", parallel.get("fsdp_reshard_after_forward", "default"), words
            )
            if shard * context > 1
            else 0,
            shard=shard * context if shard * context > 1 and replicas > 1 else 0,
            microbatches=_microbatches(problem, parallel, training, ranks, replicas * shard),
            recompute=_chosen("activation_checkpoint.mode", again, {word: ours for ours, word in RECOMPUTE.items()}),
            order=order,
        )
        return plan_of_layout(problem, "torchtitan", layout)


def _agree(training: Mapping[str, Any], problem: Problem) -> None:
    """ValueError where what a job trains is not what the problem does; what it leaves out is the problem's."""
    usual = {"global_batch_size": -1}  # torchtitan's own word for what follows from the local one
    known = {
        "global_batch_size": (problem.batch, "batch"),
        "seq_len": (problem.workload.tokens, "sequence"),
        "mixed_precision_param": (PRECISIONS.get(problem.precision, problem.precision), "precision"),
    }
    for name, (own, option) in known.items():
        said = training.get(name, own)
        if said != usual.get(name) and (type(said) is not type(own) or said != own):
            raise ValueError(f"training.{name} = {shown(said)}: the problem has {own} (--{option})")


def _sections(path: str) -> Mapping[str, Any]:
    """What a job's TOML says; InputError for none."""
    if not path:
        raise InputError("--plan torchtitan: names no file, as in torchtitan:job.toml")
    try:
        text = read_bytes(Path(path)).decode()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not a text file (UTF-8)") from None
    with blamed_on(path):
        return tomllib.loads(text)


def _predicts(path: str) -> tuple[str, ...]:
    """The stack of a job whose blocks are compiled, or of one whose are not."""
    sections = _sections(path)
    with blamed_on(path):
        compiles = _section(sections, "compile").get("enable", False)
        if not isinstance(compiles, bool):
            raise ValueError(f"compile.enable = {shown(compiles)}; choices: true, false")
    return (COMPILED if compiles else EAGER,)


def _section(sections: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = sections.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be a table")
    return found


def _degree(section: Mapping[str, Any], name: str) -> int:
    value: int = section.get(name, 1)
    check_whole(name, value, 1, MOST_DEVICES)
    return value


def _chosen(name: str, value: object, choices: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} = {shown(str(value))}; choices: {', '.join(choices)}")
    return choices[value]


def _schedule(parallel: Mapping[str, Any], path: str) -> tuple[str, str, tuple[str, ...]]:
    """The family, the placement, and the lines of ops where a CSV says them."""
    names = {torch: ours for ours, torch in SCHEDULES.items()}
    family = _chosen(
        "parallelism.pipeline_parallel_schedule", parallel.get("pipeline_parallel_schedule", "1F1B"), names
    )
    placement = "v" if family in ("zb-v", "dualpipev") else "interleaved"
    if not (csv := parallel.get("pipeline_parallel_schedule_csv")):
        return family, placement, ()
    key = "parallelism.pipeline_parallel_schedule_csv"
    if not isinstance(csv, str) or "\0" in csv:
        raise ValueError(f"{key} = {shown(str(csv))} must be the path of a file")
    file = Path(csv) if Path(csv).exists() else Path(path).parent / Path(csv).name
    try:
        schedule = simulator.read_schedule(file)
    except simulator.ScheduleError:  # which would tell what stands there
        raise ValueError(f"{key}: no order of ops that can be read and runs; pipeplan check {file} says why") from None
    return "hand", placement, tuple(simulator.to_text(schedule).splitlines())


def _microbatches(
    problem: Problem, parallel: Mapping[str, Any], training: Mapping[str, Any], ranks: int, data: int
) -> int:
    """Micro-batches of an iteration: of a pipeline those of its local batch, which is all of the iteration's; else steps."""
    local = _degree(training, "local_batch_size")
    if ranks == 1:
        if problem.batch % (local * data):
            raise ValueError(
                f"training.local_batch_size = {local} on {data} replicas does not divide {problem.batch} samples"
            )
        return problem.batch // (local * data)
    if local * data != problem.batch:
        raise ValueError(
            f"training.local_batch_size = {local} in {data} pipelines is not the batch of {problem.batch}: each would flush "
            "several times in an iteration"
        )
    size = _degree(parallel, key := "pipeline_parallel_microbatch_size")
    if local % size:
        raise ValueError(f"training.local_batch_size = {local} must be a multiple of parallelism.{key}, {size}")
    return local // size


def _blocks(parts: object, problem: Problem) -> list[int]:
    """Blocks of each part; ValueError unless the names are those that are written, in order."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        raise ValueError("parallelism.module_fqns_per_model_part must be a list of lists of module names")
    counts = [sum(str(name).startswith("layers.") for name in part) for part in parts]
    named = [name for part in parts for name in part if str(name).startswith("layers.")]
    if named != [f"layers.{number}" for number in range(_all_blocks(problem))]:
        raise ValueError(
            f"parallelism.module_fqns_per_model_part must have layers.0 to layers.{_all_blocks(problem) - 1}, in order"
        )
    return counts


def _all_blocks(problem: Problem) -> int:
    return max(layer.block for layer in problem.workload.layers)


TORCHTITAN = Target(
    summary="TOML of a torchtitan job: degrees, schedule, modules of each part, and FILE.csv for ops that torch has no name for",
    runs=Runs(
        chips=("tensor-core",),
        zero=(0, 2, 3),
        recompute=tuple(RECOMPUTE),
        precisions=("fp32", "bf16"),
        looped_alone=False,
        cut_blocks=False,
        unlike_recompute=False,
        unequal=False,
        further=(_rules,),
    ),
    problem_rules=_problem_rules,
    write=_write,
    stacks=(EAGER, COMPILED),
    form=r".+\.toml",
    read=_read,
    predicts=_predicts,
)
