"""Joint search: stages, placement, order, micro-batches and recomputation against 1F1B on equal stages and tuned interleaving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from experiments.benchmarks.timing import least_seconds
from hardware_profiles import GraphicsProcessor, load_cluster
from planners import OrderBound, Request, Result, make_plan
from simulator import InfeasiblePlanError, Problem, Workload, load_workload, recompute_words

SEEDS = range(3)

BATCH = 64


@dataclass(frozen=True, slots=True)
class JointQuestion:
    """A network on eight A100s, of so many bytes each."""

    workload: Workload
    memory_bytes: float

    def problem(self, memory_bytes: float | None = None) -> Problem:
        """In fp16 with Adam, 64 samples per iteration; memory_bytes: per device, by default the question's."""
        cluster, held = load_cluster("dgx-a100:1"), self.memory_bytes if memory_bytes is None else memory_bytes
        devices = [replace(one, memory_bytes=held) for one in cluster.devices if isinstance(one, GraphicsProcessor)]
        cluster = replace(cluster, devices=tuple(devices))
        return Problem(self.workload, cluster, BATCH, precision="fp16", optimizer="adam")


def joint_questions() -> Iterator[JointQuestion]:
    """GPT-2 XL at 37 GB, and Llama-3-8B at 4,096 tokens and 75 GB; attention is unfused, so that recomputing it saves memory."""
    yield JointQuestion(load_workload("gpt2-xl"), 37e9)
    yield JointQuestion(load_workload("llama3-8b", sequence=4096, attention="unfused"), 75e9)


BASELINES = {
    "even 1F1B": ("uniform", Request(schedule="1f1b", stages=8)),
    "tuned interleaved": ("pipeline-data", Request(schedule="interleaved-1f1b", stages=16)),
}
"""What the joint search is compared with: their micro-batches are searched, the cuts of the second, too."""


def joint_rows(question: JointQuestion) -> Iterator[dict[str, Any]]:
    """One row per seed: seconds of an iteration, and of the baselines as a share above it."""
    baselines = {name: _baseline(question, name) for name in BASELINES}
    for seed in SEEDS:
        result, spent = least_seconds(partial(make_plan, "modern", question.problem(), seed=seed))
        order = result.noted(OrderBound)
        yield {
            "network": question.workload.name,
            "memory_bytes": question.memory_bytes,
            "seed": seed,
            "cpu_seconds": spent,
            "iteration_seconds": result.outcome.iteration_seconds,
            "order_lower_bound_seconds": order.order_lower_bound_seconds if order else None,
            "peak_bytes": result.outcome.fullest.peak_bytes,
            "placement_stages": len(result.plan.stages),
            "microbatches": len(result.plan.microbatches),
            "recompute": list(result.plan.recompute),
            "baselines": [
                {
                    "name": name,
                    "iteration_seconds": one.outcome.iteration_seconds,
                    "recompute": one.problem.recompute,
                    "peak_bytes": one.outcome.fullest.peak_bytes,
                    "fits": one.outcome.fullest.peak_bytes <= question.memory_bytes,
                    "ratio": one.outcome.iteration_seconds / result.outcome.iteration_seconds,
                }
                for name, one in baselines.items()
            ],
        }


def _baseline(question: JointQuestion, name: str) -> Result:
    """A baseline within the memory, recomputing what it must; where nothing helps, with as much memory as it likes."""
    planner, request = BASELINES[name]
    found = []
    for word in recompute_words(question.workload):
        with suppress(InfeasiblePlanError):
            found.append(make_plan(planner, replace(question.problem(), recompute=word), request))
    if not found:
        return make_plan(planner, question.problem(1e15), request)
    return min(found, key=lambda result: result.outcome.iteration_seconds)
