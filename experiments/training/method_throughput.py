"""Method throughput: samples per second and memory of the methods of pipeline training, on equal stages and on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hardware_profiles import load_cluster
from planners import fastest_cuts, straight_costs
from simulator import (
    LayerCosts,
    OpKind,
    OpSeconds,
    Plan,
    Problem,
    Stage,
    build_schedule,
    equal_microbatches,
    given_costs,
    load_workload,
    lower,
    simulate,
    stages_from_cuts,
)
from simulator.engines import reference as engine

WORKLOAD, CLUSTER, DEVICES, BATCH = "bert-large", "dapple-b", 8, 32

WHOLE = 1
"""T of methods that send whole mini-batches through the pipeline."""

SHRUNK = ("pipedream", "spectrain-v2")
"""Schedules that are shown with a smaller mini-batch as well where theirs does not fit."""


def cluster_methods(stages: int) -> dict[str, tuple[str, int]]:
    """Label -> schedule and T of the methods on the cluster."""
    return {
        **{f"GPipe T={t}": ("gpipe", t) for t in (4, 8, 16)},
        **{f"1F1B T={t}": ("1f1b", t) for t in (4, 8, 16)},
        "PipeDream T=1": ("pipedream", WHOLE),
        "SpecTrain v1 T=1": ("spectrain-v1", WHOLE),
        "SpecTrain v2 T=1": ("spectrain-v2", WHOLE),
        "PipeOptim T=1": ("pipeoptim", WHOLE),
        f"2BW T={stages}": ("2bw", stages),
        **{f"XPipe T={t}": ("xpipe", t) for t in (1, 2, 4, 8, 16)},
    }


def cluster_problem(
    devices: int = DEVICES, workload: str = WORKLOAD, cluster: str = CLUSTER, batch: int = BATCH
) -> Problem:
    """The workload on the first devices of the cluster, Adam; ValueError for a cluster with fewer."""
    whole = load_cluster(cluster)
    if len(whole.devices) < devices:
        raise ValueError(f"cluster {cluster!r} has {len(whole.devices)} devices, {devices} are needed")
    return Problem(load_workload(workload), whole.take(devices), batch, optimizer="adam")


def balanced_stages(problem: Problem) -> tuple[Stage, ...]:
    """One partition for every method: stages and transfers balanced for four micro-batches, one device each."""
    devices = range(min(len(problem.cluster.devices), len(problem.workload)))
    tables = straight_costs(LayerCosts(problem), devices, -(-problem.batch // 4), alternating=True)
    cuts = fastest_cuts(tables, 4)[0][1]
    return stages_from_cuts(cuts, len(problem.workload), [(device,) for device in devices])


def data_parallel_plan(problem: Problem) -> Plan:
    """The whole network on every device, the mini-batch divided over them."""
    devices = tuple(range(len(problem.cluster.devices)))
    return Plan("data-parallel", "gpipe", (Stage(tuple(range(len(problem.workload))), devices),), (problem.batch,))


def balanced_rows(stages: Sequence[int], per_minibatch: Sequence[int]) -> list[dict[str, float]]:
    """Steady seconds of a mini-batch of XPipe and GPipe's makespan, N equal stages, F = 1, B = 2 per micro-batch, on SimPy."""
    rows = []
    for n in stages:
        for t in per_minibatch:
            schedule = build_schedule("xpipe", n, t * (2 * n + 4), microbatches_per_minibatch=t)
            timeline = engine.replay(lower(schedule, given_costs(n, OpSeconds(1.0, 2.0))))
            ends = timeline.end[(timeline.kind == OpKind.UPDATE) & (timeline.stage == 0)]
            steady = float(ends[-n - 1] - ends[-n - 2])
            gpipe = engine.replay(
                lower(build_schedule("gpipe", n, t), given_costs(n, OpSeconds(1.0, 2.0)))
            ).makespan_seconds
            rows.append(
                {
                    "stages": n,
                    "microbatches_per_minibatch": t,
                    "xpipe_seconds": steady,
                    "gpipe_seconds": gpipe,
                    "speedup": gpipe / steady,
                    "formula": (t + n - 1) / t,
                }
            )
    return rows


def cluster_rows(problem: Problem) -> list[dict[str, Any]]:
    """Samples per second, peak memory and weight copies of every method, on SimPy with contention.

    A method of whole mini-batches that does not fit has a second row: the largest mini-batch with which it does.
    """
    stages = balanced_stages(problem)
    rows = [_row("data parallel", problem, data_parallel_plan(problem))]
    for label, (schedule, count) in cluster_methods(len(stages)).items():
        whole = Plan("hand", schedule, stages, equal_microbatches(problem.batch, count))
        rows.append(_row(label, problem, whole))
        if count == WHOLE and schedule in SHRUNK and not rows[-1]["fits"]:
            rows += _largest_that_fits(label, problem, whole)
    return rows


def _largest_that_fits(label: str, problem: Problem, whole: Plan) -> list[dict[str, Any]]:
    """One row, or none where not even one sample fits; memory grows with the mini-batch, so the search halves."""
    least, most, best = 1, problem.batch - 1, None
    while least <= most:
        batch = (least + most) // 2
        row = _row(f"{label}, batch {batch}", replace(problem, batch=batch), replace(whole, microbatches=(batch,)))
        if row["fits"]:
            best, least = row, batch + 1
        else:
            most = batch - 1
    return [] if best is None else [best]


def _row(label: str, problem: Problem, plan: Plan) -> dict[str, Any]:
    outcome = simulate(problem, plan)
    fullest = outcome.fullest
    copies = [1.0 + one.peak_parts["weight versions"] / one.peak_parts["weights"] for one in outcome.memory]
    return {
        "label": label,
        "schedule": plan.schedule,
        "stale": not outcome.schedule.flush,
        "microbatches_per_minibatch": len(plan.microbatches),
        "batch": problem.batch,
        "samples_per_second": outcome.samples_per_second,
        "seconds_per_minibatch": outcome.iteration_seconds,
        "peak_memory_bytes": fullest.peak_bytes,
        "capacity_bytes": fullest.capacity_bytes,
        "weight_copies_bytes": fullest.peak_parts["weight versions"],
        "activation_bytes": fullest.peak_parts["activations"],
        "most_weight_copies": max(copies),
        "fits": outcome.fits,
    }
