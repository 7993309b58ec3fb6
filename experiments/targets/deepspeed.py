"""DeepSpeed: a plan as the JSON of its configuration, and the Python of a `PipelineModule` whose stages are those of the plan.

What it can run and what its keys are called: deepspeedai/DeepSpeed, `runtime/config.py` and `runtime/zero/config.py`,
`runtime/pipe/module.py` (`_partition_layers` sets `self.parts`; no argument does) and `runtime/pipe/engine.py` (pipelines run
ZeRO 0 and 1, in 1F1B).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

import simulator
from experiments.targets.pipelines import equal_pipelines, launch_notes, pipelines_of
from experiments.targets.target import Target, Written
from hardware_profiles import Runs

if TYPE_CHECKING:
    from simulator import Plan, Problem

OPTIMIZERS = {
    "adam": {"type": "Adam"},
    "momentum": {"type": "SGD", "params": {"momentum": 0.9}},
    "sgd": {"type": "SGD"},
}

LATER = "its gradients are summed when the last backward has ended, which --gradient-reduction whole predicts"


def configuration(problem: Problem, plan: Plan) -> dict[str, object]:
    """The keys that say the plan."""
    found = pipelines_of(plan)
    return {
        "train_batch_size": problem.batch,
        "train_micro_batch_size_per_gpu": found.microbatch,
        "gradient_accumulation_steps": len(plan.microbatches),
        "optimizer": OPTIMIZERS[problem.optimizer],
        **{name: {"enabled": True} for name in ("bf16", "fp16") if problem.precision == name},
        "zero_optimization": {
            "stage": plan.zero,
            **(
                {"overlap_comm": True}
                if found.ranks == 1 and plan.zero > int(problem.gradient_reduction == "whole")
                else {}
            ),
        },
        **({"data_types": {"grad_accum_dtype": "fp32"}} if problem.accumulated_bytes > problem.element_bytes else {}),
    }


def parts(problem: Problem, plan: Plan) -> list[int]:
    """Entries of a `PipelineModule` before each stage, and all: a transformer's are the embedding, its blocks, and the head with
    the last norm; another network's are its layers.
    """
    entries = [_entry(problem, number) for number in range(len(problem.workload))]
    return [0, *accumulate(len({entries[layer] for layer in stage.layers}) for stage in plan.stages)]


def _entry(problem: Problem, layer: int) -> int:
    """The entry that a layer of the network belongs to."""
    workload = problem.workload
    if not workload.is_transformer:
        return layer
    block = workload.layers[layer].block
    first = next(number for number, one in enumerate(workload.layers) if one.block)
    blocks = max(one.block for one in workload.layers)
    return block or (0 if layer < first else blocks + 1)


def _module(problem: Problem, plan: Plan) -> str:
    """Python that a training script imports: the module class, and the places of processes."""
    found, again = pipelines_of(plan), (plan.recompute or (problem.recompute,))[0]
    return f'''"""Stages of plan {plan.planner!r} for {problem.workload.name}: written by pipeplan export --to deepspeed."""

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

PARTS = {parts(problem, plan)!r}
TOPOLOGY = {{"num_pp": {found.ranks}, "num_mp": {found.tensor}, "num_dp": {found.data}}}
ACTIVATION_CHECKPOINT_INTERVAL = {int(again == "blocks")}


class PlannedPipeline(PipelineModule):
    """A PipelineModule of {parts(problem, plan)[-1]} layers, cut as the plan says."""

    def __init__(self, layers, **options):
        options = {{"activation_checkpoint_interval": ACTIVATION_CHECKPOINT_INTERVAL, **options}}
        super().__init__(layers, topology=PipeModelDataParallelTopology(**TOPOLOGY), **options)

    def _partition_layers(self, method="uniform"):
        if len(self._layer_specs) != PARTS[-1]:
            raise ValueError(f"the plan is of {{PARTS[-1]}} layers, got {{len(self._layer_specs)}}")
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = PARTS
        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])
'''


def _problem_rules(problem: Problem) -> Iterator[str]:
    """What a sequence of layers cannot say: networks that branch, but for transformers, whose blocks are its layers."""
    workload = problem.workload
    if not workload.is_transformer and any(consumer - producer != 1 for producer, consumer in workload.edges):
        yield f"networks that branch ({workload.name})"


def _rules(problem: Problem, plan: Plan) -> Iterator[str]:
    """What no list says: stages of neighbouring entries, and ZeRO in a pipeline."""
    yield from equal_pipelines(problem, plan)
    if any(plan.recomputed_blocks):
        yield "recomputation of some blocks of a stage (it is of all or none)"
    if simulator.cuts_of(plan) is None:
        yield "stages of layers that are no neighbours"
        return
    entries = [{_entry(problem, layer) for layer in stage.layers} for stage in plan.stages]
    if sum(map(len, entries)) > len(set[int]().union(*entries)):
        yield "stages that end inside a block, the embedding or the output head"
    if len(plan.stages) > 1 and plan.zero > 1:
        yield f"ZeRO {plan.zero} in a pipeline (choices: 0, 1)"
    elif pipelines_of(plan).tensor > 1 and plan.zero > 1:
        yield f"ZeRO {plan.zero} beside tensor-parallel groups, which its PipelineModule forms (choices: 0, 1)"


def _write(problem: Problem, plan: Plan, file: str) -> Written:
    found = pipelines_of(plan)
    files = {".py": _module(problem, plan)} if found.ranks > 1 or found.tensor > 1 else {}
    again = (plan.recompute or (problem.recompute,))[0] == "blocks" and not files
    hooks = found.ranks == 1 and plan.zero > 0  # which reduce beside the last backward
    later = found.copies > 1 and problem.gradient_reduction == "buckets" and not hooks
    notes = (
        launch_notes(found)
        + (LATER,) * later
        + ("recompute every block in the model: no key of the configuration says it",) * again
    )
    return Written({"": json.dumps(configuration(problem, plan), indent=2) + "\n", **files}, notes)


DEEPSPEED = Target(
    summary="JSON of DeepSpeed's configuration, and FILE.py with the PipelineModule whose stages are the plan's",
    runs=Runs(
        chips=("tensor-core",),
        schedules=("1f1b",),
        recompute=("none", "blocks"),
        precisions=("fp32", "fp16", "bf16"),
        context=False,
        expert=False,
        interleaved=False,
        unlike_recompute=False,
        unequal=False,
        sequence_parallel=False,
        hybrid_sharding=False,
        further=(_rules,),
    ),
    problem_rules=_problem_rules,
    write=_write,
    stacks=("megatron-deepspeed",),
)
