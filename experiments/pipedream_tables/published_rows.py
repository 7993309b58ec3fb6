"""Published rows: PipeDream's two result tables, and each of their rows simulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.input_sets import PIPEDREAM_PROFILES
from experiments.terminal.output import tracked
from experiments.training.method_throughput import data_parallel_plan
from hardware_profiles import Cluster, load_cluster
from planners import StateTable, make_plan, network_levels, partition, state_table
from simulator import (
    LayerCosts,
    Outcome,
    Plan,
    Problem,
    Stage,
    Workload,
    antichain_states,
    equal_microbatches,
    read_profile,
    simulate,
)

TOLERANCE = 0.15
"""Relative error of a simulated speedup that counts as reproduced."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A row of a published table.

    profile: its name, None where there is none; lacking: why the row cannot be run without it
    minibatch: of one device; replicas: of the published plan's stages, () for a straight pipeline over all devices
    speedup: epoch time of data parallelism over that of the plan; saved: share of communication, (low, high), None if not given
    """

    table: str
    model: str
    cluster: str
    devices: int
    plan: str
    replicas: tuple[int, ...]
    speedup: float
    minibatch: int = 0
    profile: str | None = None
    lacking: str = ""
    saved: tuple[float, float] | None = None
    recalled: bool = False


NO_TITAN = "no profile of a Titan X (the bundled ones are a V100's)"

ELSEWHERE = PIPEDREAM_PROFILES.more
"""Profiles that are not bundled: their rows are run where the folder has them."""

ROWS: tuple[PublishedRow, ...] = (
    PublishedRow("SOSP", "VGG-16", "pipedream-a", 16, "15-1", (15, 1), 5.28, 64, "vgg16", saved=(0.90, 0.95)),
    PublishedRow("SOSP", "VGG-16", "pipedream-b", 16, "15-1", (15, 1), 2.98, 64, "vgg16", saved=(0.90, 0.95)),
    PublishedRow("SOSP", "ResNet-50", "pipedream-a", 16, "16", (16,), 1.0, 128, "resnet50"),
    PublishedRow("SOSP", "ResNet-50", "pipedream-b", 16, "16", (16,), 1.0, 128, "resnet50"),
    PublishedRow("SOSP", "AlexNet", "pipedream-a", 16, "15-1", (15, 1), 4.92, 256, "alexnet"),
    PublishedRow("SOSP", "AlexNet", "pipedream-b", 16, "15-1", (15, 1), 2.04, 256, "alexnet"),
    PublishedRow("SOSP", "GNMT-16", "pipedream-a", 16, "straight", (), 2.34, 64, "gnmt_large", recalled=True),
    PublishedRow("SOSP", "GNMT-16", "pipedream-b", 16, "straight", (), 3.14, 64, "gnmt_large"),
    PublishedRow("SOSP", "AWD LM", "pipedream-a", 4, "straight", (), 4.25, lacking="no profile", saved=(0.88, 0.88)),
    PublishedRow("SOSP", "S2VT", "pipedream-c", 4, "2-1-1", (2, 1, 1), 3.01, lacking="no profile", saved=(0.85, 0.85)),
    PublishedRow(
        "arXiv", "VGG-16", "pipedream-arxiv-a", 4, "2-1-1", (2, 1, 1), 2.13, lacking=NO_TITAN, saved=(0.9, 0.9)
    ),
    PublishedRow("arXiv", "VGG-16", "pipedream-arxiv-a", 8, "7-1", (7, 1), 2.99, lacking=NO_TITAN, saved=(0.95, 0.95)),
    PublishedRow(
        "arXiv", "VGG-16", "pipedream-arxiv-a", 16, "9-5-1-1", (9, 5, 1, 1), 3.0, lacking=NO_TITAN, saved=(0.91, 0.91)
    ),
    PublishedRow("arXiv", "VGG-16", "pipedream-arxiv-b", 8, "7-1", (7, 1), 5.12, 32, "vgg16", saved=(0.95, 0.95)),
    PublishedRow(
        "arXiv",
        "Inception-v3",
        "pipedream-arxiv-a",
        8,
        "8",
        (8,),
        1.0,
        32,
        "inception_v3",
        "its profile is not bundled, msr-fiddle/pipedream has it (a V100's; the row ran on Titan X)",
        saved=(0.0, 0.0),
    ),
    PublishedRow(
        "arXiv", "S2VT", "pipedream-arxiv-a", 4, "2-1-1", (2, 1, 1), 3.01, lacking="no profile", saved=(0.95, 0.95)
    ),
)

EFFICIENCY_BAND: dict[str, tuple[float, float]] = {
    "pipedream-a": (0.56 / 1.25, 0.68 / 1.25),
    "pipedream-b": (1.0 / 3.125, 1.45 / 3.125),
    "pipedream-arxiv-a": (0.32, 0.46),  # assumed, as on cluster B of SOSP'19
    "pipedream-arxiv-b": (0.75, 0.95),  # no range is known: about a tenth on either side of the fit
}
"""Lowest and highest collective efficiency: on A and B the all-reduce rates that SOSP'19's speedups need over the line rate."""

FITTED: dict[str, tuple[str, ...]] = {
    "pipedream-a": ("VGG-16", "AlexNet"),
    "pipedream-b": ("VGG-16", "AlexNet"),
    "pipedream-arxiv-b": ("VGG-16",),
}
"""Cluster -> models on whose rows its collective efficiency was fitted. That of the arXiv paper's B was fitted to the speedup of
data parallelism over one machine in the run of its only row: nothing is left to fit where that is left out."""

SAMPLED = tuple(0.1 * 10 ** (step / 12) for step in range(13))
"""Efficiencies at which a row is simulated for a fit, 0.1 to 1; between them the logarithm of the speedup is interpolated."""

GPIPE_PUBLISHED = (0.35, 0.71)
"""How much lower GPipe's throughput is than PipeDream's on GNMT-16, 16 GPUs, same partition: lowest and highest published."""


def collective_efficiency(cluster: Cluster) -> float:
    """The network's collective efficiency of a cluster of servers."""
    return next(link.collective for link in cluster.links if "network" in (link.first, link.second))


def with_collective_efficiency(cluster: Cluster, efficiency: float) -> Cluster:
    """The same cluster whose network reaches another share of its bandwidth in all-reduces."""
    links = tuple(
        dataclasses.replace(link, collective=efficiency) if "network" in (link.first, link.second) else link
        for link in cluster.links
    )
    return dataclasses.replace(cluster, links=links)


# -------------------------------------------------------------------------------------------------------------- plans


def published_plan(problem: Problem, row: PublishedRow) -> Plan:
    """The plan of a row: its replicas on the devices in order, cut as the module's docstring says."""
    if len(row.replicas) == 1:
        return data_parallel_plan(problem)
    count = len(problem.cluster.devices)
    parts = _parts_at_last_pooling(problem.workload) if row.replicas else _straight_parts(problem, count)
    replicas = row.replicas or (1,) * len(parts)
    bounds = [sum(replicas[:i]) for i in range(len(replicas) + 1)]
    stages = tuple(Stage(held, tuple(range(bounds[i], bounds[i + 1]))) for i, held in enumerate(parts))
    return Plan("published", "1f1b-rr", stages, equal_microbatches(problem.batch, count), "round-robin")


def _parts_at_last_pooling(workload: Workload) -> tuple[tuple[int, ...], ...]:
    cut = 1 + max(i for i, layer in enumerate(workload.layers) if layer.kind == "pooling")
    return tuple(range(cut)), tuple(range(cut, len(workload)))


def _straight_parts(problem: Problem, devices: int) -> tuple[tuple[int, ...], ...]:
    """Layers of each stage of the search's best straight pipeline, all links at the rate of the slowest level."""
    bandwidth = min(level.bandwidth for level in problem.cluster.levels())
    found = partition(
        _table(problem, problem.batch // devices), network_levels((devices,), (bandwidth,)), straight=True
    )
    return tuple(stage.layers for stage in found.stages)


def _table(problem: Problem, minibatch: int) -> StateTable:
    return state_table(
        problem.workload,
        LayerCosts(problem).round_trip_seconds(0, minibatch),
        minibatch=minibatch,
        bytes_per_element=problem.element_bytes,
        states=antichain_states(problem.workload, drop_inputs=False),
    )


# --------------------------------------------------------------------------------------------------------------- rows


def run_row(row: PublishedRow, workload: Workload, *, search: bool = True) -> dict[str, Any]:
    """Simulate one row; the record of the tables.

    search: also plan with PipeDream's search (seconds per row) and simulate that plan
    """
    problem, plan, baseline = row_plans(row, workload)
    replayed, parallel = (simulate(problem, one, engine="compiled") for one in (plan, baseline))
    speedup = parallel.iteration_seconds / replayed.iteration_seconds
    band = sorted(speedup_at(row, workload, share) for share in EFFICIENCY_BAND[row.cluster])
    record: dict[str, Any] = {
        **_published(row),
        "stale": not replayed.schedule.flush,
        "collective_efficiency": collective_efficiency(problem.cluster),
        "efficiency_fitted_to_it": row.model in FITTED.get(row.cluster, ()),
        "data_parallel_seconds": parallel.iteration_seconds,
        "iteration_seconds": replayed.iteration_seconds,
        "feasible": replayed.fits,
        "stage_layers": [len(stage.layers) for stage in plan.stages],
        "speedup": speedup,
        "speedup_low": band[0],
        "speedup_high": band[1],
        "relative_error": speedup / row.speedup - 1.0,
        "within_tolerance": _within(speedup, row),
        "communication_saved": _saved(replayed, parallel),
        "left_out": None,
    }
    if search:
        planned = make_plan("pipedream", problem)
        own = planned.outcome
        record.update(
            planned=planned.plan.notation,
            planned_stale=not own.schedule.flush,
            planned_speedup=parallel.iteration_seconds / own.iteration_seconds,
            planned_communication_saved=_saved(own, parallel),
            planning_seconds=planned.planning_seconds,
        )
    return record


def row_plans(row: PublishedRow, workload: Workload) -> tuple[Problem, Plan, Plan]:
    """A row's problem, its published plan, and data parallelism."""
    problem = Problem(workload, load_cluster(row.cluster).take(row.devices), row.minibatch * row.devices)
    return problem, published_plan(problem, row), data_parallel_plan(problem)


def _within(speedup: float, row: PublishedRow) -> bool:
    return abs(speedup / row.speedup - 1.0) <= TOLERANCE


def _published(row: PublishedRow) -> dict[str, Any]:
    return {
        "table": row.table,
        "model": row.model,
        "cluster": row.cluster,
        "devices": row.devices,
        "minibatch": row.minibatch,
        "published_plan": row.plan,
        "published_speedup": row.speedup,
        "published_recalled": row.recalled,
        "published_communication_saved": row.saved,
    }


def speedup_at(row: PublishedRow, workload: Workload, efficiency: float) -> float:
    """The speedup of a row's plan if the network reached another share of its bandwidth in all-reduces."""
    problem, plan, baseline = row_plans(row, workload)
    if plan.stages == baseline.stages:
        return 1.0
    changed = dataclasses.replace(problem, cluster=with_collective_efficiency(problem.cluster, efficiency))
    parallel, replayed = (simulate(changed, one, engine="compiled") for one in (baseline, plan))
    return parallel.iteration_seconds / replayed.iteration_seconds


def left_out(rows: Sequence[tuple[PublishedRow, Workload]]) -> list[dict[str, Any] | None]:
    """Of rows of one cluster: each judged with the efficiency that the other rows fit; None for the only one.

    The fit: least squares of the logarithm of predicted over published speedups, over efficiencies from 0.1 to 1.
    """
    if len(rows) < 2:
        return [None] * len(rows)
    fine = np.linspace(np.log(SAMPLED[0]), np.log(SAMPLED[-1]), 1201)
    misses = []
    for row, workload in rows:
        sampled = np.log([speedup_at(row, workload, share) for share in SAMPLED])
        misses.append((np.interp(fine, np.log(SAMPLED), sampled) - np.log(row.speedup)) ** 2)
    found: list[dict[str, Any] | None] = []
    for number, (row, workload) in enumerate(rows):
        others = np.sum(misses[:number] + misses[number + 1 :], axis=0)
        efficiency = float(np.exp(fine[int(np.argmin(others))]))
        speedup = speedup_at(row, workload, efficiency)
        found.append(
            {
                "collective_efficiency": efficiency,
                "speedup": speedup,
                "relative_error": speedup / row.speedup - 1.0,
                "within_tolerance": _within(speedup, row),
            }
        )
    return found


def _saved(outcome: Outcome, baseline: Outcome) -> float:
    return 1.0 - outcome.bytes_per_sample / baseline.bytes_per_sample


# -------------------------------------------------------------------------------------------------------------- GPipe


def run_gpipe(row: PublishedRow, workload: Workload) -> list[dict[str, Any]]:
    """GPipe and 1F1B with flush against asynchronous PipeDream on the straight partition of a row.

    GPipe recomputes activations, as the original does, and runs as many micro-batches a flush as PipeDream has minibatches in
    flight (the number of devices), or the most (a power of two of that) that fit into memory. One record each.
    """
    problem, plan, _ = row_plans(row, workload)
    reference = simulate(problem, plan, engine="compiled")
    records = []
    for schedule, recompute in (("gpipe", True), ("gpipe", False), ("1f1b", False)):
        for flushed in _flushed(problem, plan, schedule, recompute):
            lower = 1.0 - flushed.samples_per_second / reference.samples_per_second
            records.append(
                {
                    "model": row.model,
                    "cluster": row.cluster,
                    "schedule": schedule,
                    "recompute": recompute,
                    "microbatches": len(flushed.plan.microbatches),
                    "samples_per_second": flushed.samples_per_second,
                    "pipedream_samples_per_second": reference.samples_per_second,
                    "lower_by": lower,
                    "published_lower_by": GPIPE_PUBLISHED if schedule == "gpipe" else None,
                    "within_published": GPIPE_PUBLISHED[0] <= lower <= GPIPE_PUBLISHED[1]
                    if schedule == "gpipe"
                    else None,
                }
            )
    return records


def _flushed(problem: Problem, plan: Plan, schedule: str, recompute: bool) -> list[Outcome]:
    """The plan with a flush: at the pipeline's own depth, and at the largest depth that fits."""
    devices = len(plan.stages)
    size = problem.batch // devices
    found: list[Outcome] = []
    for count in (devices * 2**power for power in range(5)):
        larger = dataclasses.replace(problem, batch=size * count, recompute="whole" if recompute else "none")
        outcome = simulate(larger, Plan(schedule, schedule, plan.stages, (size,) * count), engine="compiled")
        if not outcome.fits:
            break
        found = [*found[:1], outcome]
    return found


def profile_path(folder: Path, name: str) -> Path | None:
    """A profile in a folder of `NAME.txt`, or in a checkout of msr-fiddle/pipedream; None for one that it need not have."""
    return (PIPEDREAM_PROFILES.find if name in ELSEWHERE else PIPEDREAM_PROFILES.path)(folder, name)


def reproduce(
    profiles: Path,
    rows: Sequence[PublishedRow] = ROWS,
    *,
    profiled_minibatches: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Both tables and the comparison with GPipe; rows that cannot be run are listed with what they lack.

    profiled_minibatches: of the profiles that do not tell theirs, by name
    """
    missing = []
    given = profiled_minibatches or {}
    workloads: dict[str, Workload] = {}
    at_hand: list[tuple[PublishedRow, Workload]] = []
    for row in rows:
        path = None if row.profile is None else profile_path(profiles, row.profile)
        if row.profile is None or path is None:
            missing.append({**_published(row), "lacking": row.lacking})
            continue
        if row.profile not in workloads:
            workloads[row.profile] = read_profile(path, profiled_minibatch=given.get(row.profile))
        at_hand.append((row, workloads[row.profile]))
    records = {row: run_row(row, workload) for row, workload in tracked("simulating", at_hand, _named)}
    for cluster, models in tracked("leaving rows out", list(FITTED.items()), lambda item: item[0]):
        fitted = [one for one in at_hand if one[0].cluster == cluster and one[0].model in models]
        for (row, _), found in zip(fitted, left_out(fitted), strict=True):
            records[row]["left_out"] = found
    gpipe = [record for row in rows if row.model == "GNMT-16" for record in run_gpipe(row, workloads["gnmt_large"])]
    return {
        "tolerance": TOLERANCE,
        "within": _counted(list(records.values())),
        "rows": list(records.values()),
        "missing": missing,
        "gpipe": gpipe,
    }


def _named(item: tuple[PublishedRow, Workload]) -> str:
    return f"{item[0].model} on {item[0].cluster}"


def _counted(records: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """How many rows come within the tolerance, and of how many: those that a constant was fitted to, the same left out of the
    fit, and those that none was fitted to and whose plan is not data parallelism itself.
    """
    fitted = [record for record in records if record["efficiency_fitted_to_it"]]
    left = [record["left_out"] for record in fitted if record["left_out"] is not None]
    others = [record for record in records if record["stale"] and not record["efficiency_fitted_to_it"]]
    groups = {"fitted": fitted, "left_out": left, "never_fitted": others}
    return {name: [sum(one["within_tolerance"] for one in of), len(of)] for name, of in groups.items()}
