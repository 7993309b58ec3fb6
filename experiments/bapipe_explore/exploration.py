"""Exploration: BaPipe's schedules, plans and claims, row by row; `experiments.bapipe_explore` says what each section asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from experiments.compare.comparison import ask, planning
from experiments.terminal.output import tracked
from hardware_profiles import GIB, Cluster, Link, Precision, load_accelerator, load_cluster
from planners import Evaluator, Exploration, Request, explore, formula_seconds
from simulator import (
    Communication,
    InfeasiblePlanError,
    OpSeconds,
    Outcome,
    Problem,
    Timeline,
    build_schedule,
    given_costs,
    gnmt,
    load_workload,
    lower,
    schedule_families,
    simulate,
)
from simulator.engines import reference as engine

Row = dict[str, Any]

ANY = Request()
"""Whatever a planner finds."""


def uniform_gpipe(problem: Problem) -> Request:
    """GPipe on all devices, which planner `uniform` is asked for: else it chooses schedule and stages, too."""
    return Request(schedule="gpipe", stages=min(len(problem.cluster.devices), len(problem.workload)))


WORKLOADS = ("vgg16", "resnet50", "gnmt8")
METHODS = ("data-parallel", "uniform", "pipedream", "pipedream-flush", "bapipe", "bapipe pipeline")
"""`bapipe pipeline`: the best of BaPipe's own plans with several stages, none replicated."""

SPEEDUP_CLAIM, MEMORY_CLAIM = 3.2, 4.0
"""Claims of the paper's abstract: `up to` these, over data parallelism and other pipelines."""

FPGA_BATCH, QUICK_FPGA_BATCH = 32, 4
"""Samples per board of an iteration: chosen; of `--quick` few, so that few numbers of micro-batches are searched."""

CHAIN_BANDWIDTH, CHAIN_LATENCY = 100e9 / 8 * 0.95, 1e-6
"""Links between boards of different kinds, bytes/s and seconds: as of the bundled chains."""


# ---- schedules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule of the paper's table: its family and options, and micro-batches kept at stage i of N.

    beyond: seconds that a mini-batch takes beyond the paper's formula, by N, F + B and SR
    """

    label: str
    family: str
    kept: Callable[[int, int], int]
    options: Mapping[str, str] = field(default_factory=dict)
    beyond: Callable[[int, float, float], float] = lambda n, both, sr: 0.0


SCHEDULE_ROWS = (
    ScheduleRow("1F1B-AS", "1f1b-as", lambda n, i: n - i + 1),
    ScheduleRow("FBP-AS", "fbp-as", lambda n, i: 2 * (n - i + 1), {"lanes": "shared"}),
    ScheduleRow("FBP split", "fbp-as", lambda n, i: 2 * (n - i + 1), {"lanes": "split"}, lambda n, both, sr: n * both),
    ScheduleRow("1F1B-SNO", "1f1b-sno", lambda n, i: n - i + 1, beyond=lambda n, both, sr: -sr),
    ScheduleRow("1F1B-SO", "1f1b-so", lambda n, i: 2 * (n - i) + 1),
)


def schedule_rows(quick: bool = False) -> list[Row]:
    """Formula, simulation and memory of every row of the table, over shapes and transfer seconds; F = 1, B = 2."""
    rows: list[Row] = []
    parts = (0.0, 0.3, 1.0, 1.5) if quick else (0.0, 0.15, 0.3, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5)
    for n, m in ((4, 8),) if quick else ((4, 8), (8, 32), (3, 5)):
        for sr in parts:
            rows.extend(_schedule_row(row, n, m, sr) for row in SCHEDULE_ROWS)
    return rows


def _schedule_row(row: ScheduleRow, n: int, m: int, sr: float) -> Row:
    communications = schedule_families()[row.family].communications

    def replayed(communication: Communication) -> Timeline:
        schedule = build_schedule(row.family, n, m, **row.options)
        costs = given_costs(n, OpSeconds(1.0, 2.0, transfer=sr), devices=schedule)
        return engine.replay(lower(schedule, costs, communication=communication))

    timeline = replayed(communications[0])
    return {
        "schedule": row.label,
        "stages": n,
        "microbatches": m,
        "transfer_seconds": sr,
        "formula_seconds": formula_seconds(row.family, n, m, 1.0, 2.0, sr) + row.beyond(n, 3.0, sr),
        "simulated_seconds": timeline.makespan_seconds,
        "kept_by_formula": [min(m, row.kept(n, i)) for i in range(1, n + 1)],
        "kept_simulated": timeline.peak_in_flight().tolist(),
        # an op that sends takes at least as long as its transfer
        "streamed_seconds": replayed("streaming").makespan_seconds if "streaming" in communications else None,
    }


# ---- plans -----------------------------------------------------------------------------------------------------------


def board_chain(names: Sequence[str]) -> Cluster:
    """FPGA boards in a row, each linked to the next."""
    nodes = tuple(f"board{number}" for number in range(len(names)))
    return Cluster(
        name="-".join(names),
        devices=tuple(load_accelerator(name) for name in names),
        nodes=nodes,
        switches=(),
        servers=(tuple(range(len(names))),),
        links=tuple(Link(one, two, CHAIN_BANDWIDTH, CHAIN_LATENCY) for one, two in pairwise(nodes)),
    )


def networks(quick: bool) -> Sequence[str]:
    """Names of the networks that are planned."""
    return WORKLOADS[:1] if quick else WORKLOADS


def gpu_problems(quick: bool) -> Iterator[tuple[str, Problem]]:
    """(label, problem) of the GPU study."""
    for name in networks(quick):
        for devices in (2,) if quick else (2, 4, 8):
            workload = load_workload(name)
            cluster = load_cluster("pipedream-b").take(devices)
            yield f"{devices} V100", Problem(workload, cluster, workload.minibatch * devices)


def fpga_problems(quick: bool) -> Iterator[tuple[str, Problem]]:
    """(label, problem) of the FPGA study."""
    chains: list[tuple[str, Cluster]] = [
        (f"{n} {kind.upper()}", load_cluster(f"fpga-{kind}-4").take(n))
        for kind in ("vcu118", "vcu129")
        for n in range(1, 5)
    ]
    chains.append(("2 VCU118 + 2 VCU129", load_cluster("fpga-mixed-4")))
    chains.append(("2 U280", board_chain(["u280", "u280"])))
    chains.append(("VCU118 + VCU129 + U280", board_chain(["vcu118", "vcu129", "u280"])))
    if quick:
        chains = chains[-1:]
    for name in networks(quick):
        for label, cluster in chains:
            yield label, Problem(load_workload(name), cluster, _fpga_batch(cluster, quick))


def _fpga_batch(cluster: Cluster, quick: bool) -> int:
    """Samples of an iteration on FPGA boards."""
    return (QUICK_FPGA_BATCH if quick else FPGA_BATCH) * len(cluster.devices)


def plan_rows(study: str, problems: Iterator[tuple[str, Problem]]) -> Iterator[tuple[str, Row]]:
    """(section, row): plans of every method, disagreements of BaPipe's rule and the simulation, and what splitting layers between
    FPGA boards saves."""
    for label, problem in tracked(study, [*problems], lambda one: f"{one[1].workload.name} on {one[0]}"):
        head = {"study": study, "workload": problem.workload.name, "cluster": label, "batch": problem.batch}
        outcomes = _outcomes(problem, METHODS[:4])
        found = _explored(problem)
        if found is not None:
            outcomes["bapipe"] = simulate(problem, found.best.plan)
            pipeline = _pipeline(problem, found)
            if pipeline is not None:
                outcomes["bapipe pipeline"] = pipeline
                if study == "fpga" and any(one.plan.splits for one in found.candidates):
                    yield "splits", head | _split_row(problem, found, pipeline)
            if found.disagreement:
                yield "disagreements", head | {"disagreement": found.disagreement}
        reference = outcomes.get("data-parallel")
        for method in METHODS:
            yield "plans", head | _plan_row(problem, method, outcomes.get(method), reference)


def _outcomes(problem: Problem, methods: Sequence[str], request: Request = ANY) -> dict[str, Outcome]:
    """Replays of the methods' plans, where they have one; KeyboardInterrupt where a search was interrupted: half a search is no
    row."""
    found = {}
    for method in methods:
        answer = ask(method, planning(problem, uniform_gpipe(problem) if method == "uniform" else request, method))
        if answer.interrupted:
            raise KeyboardInterrupt
        if answer.status == "failed" and answer.error is not None:
            raise answer.error
        if answer.result is not None:
            found[method] = answer.result.outcome
    return found


def _explored(problem: Problem) -> Exploration | None:
    try:
        return explore(problem, Evaluator(problem), np.random.default_rng(0))
    except InfeasiblePlanError:
        return None


def _pipeline(problem: Problem, found: Exploration) -> Outcome | None:
    """The fastest of BaPipe's own straight pipelines, on SimPy; None if none fits."""
    own = [one.plan for one in found.candidates if one.balanced]
    outcomes = [simulate(problem, plan) for plan in [*own, found.rule.candidate.plan] if plan.notation == "straight"]
    return min((one for one in outcomes if one.fits), key=lambda one: one.iteration_seconds, default=None)


def _plan_row(problem: Problem, method: str, outcome: Outcome | None, reference: Outcome | None) -> Row:
    row: Row = {"method": method, "devices": len(problem.cluster.devices), "feasible": outcome is not None}
    if outcome is None:
        return row
    peak = outcome.fullest.peak_bytes
    return row | {
        "schedule": outcome.plan.schedule,
        "stale": not outcome.schedule.flush,
        "notation": outcome.plan.notation,
        "microbatches": len(outcome.plan.microbatches),
        "seconds": outcome.iteration_seconds,
        "samples_per_second": outcome.samples_per_second,
        "peak_bytes": peak,
        "capacity_bytes": outcome.fullest.capacity_bytes,
        "speedup": None if reference is None else reference.iteration_seconds / outcome.iteration_seconds,
        "memory_reduction": None if reference is None else reference.fullest.peak_bytes / peak,
    }


def never_slower(plans: Sequence[Row]) -> list[str]:
    """For each method without stale weights that BaPipe contains: in how many cases both have a plan, in how many BaPipe's takes
    longer, and the range of the ratio of seconds."""
    seconds = {(row["study"], row["workload"], row["cluster"], row["method"]): row.get("seconds") for row in plans}
    lines = []
    for method in ("uniform", "pipedream-flush", "data-parallel"):
        ratios = [
            theirs / ours
            for (study, workload, cluster, one), theirs in seconds.items()
            if one == method and theirs is not None
            and (ours := seconds.get((study, workload, cluster, "bapipe"))) is not None
        ]  # fmt: skip
        if ratios:
            slower = sum(ratio < 1.0 for ratio in ratios)
            lines.append(
                f"BaPipe against {method}: {len(ratios)} cases, slower in {slower}, "
                f"{min(ratios):.4g} to {max(ratios):.4g} times as fast"
            )
    return lines


def _split_row(problem: Problem, found: Exploration, whole: Outcome) -> Row:
    """The best pipeline whose stages may share layers: seconds and bytes against whole layers."""
    shared = [one.plan for one in found.candidates if one.plan.splits]
    parts = min((simulate(problem, plan) for plan in shared), key=lambda one: one.iteration_seconds)
    return {
        "schedule": parts.plan.schedule,
        "split_layers": len(parts.plan.splits),
        "whole_seconds": whole.iteration_seconds,
        "split_seconds": parts.iteration_seconds,
        "whole_bytes_per_sample": whole.bytes_per_sample,
        "split_bytes_per_sample": parts.bytes_per_sample,
    }


# ---- claims ----------------------------------------------------------------------------------------------------------


def claim_rows(quick: bool = False) -> Iterator[Row]:
    """Speedup and memory of BaPipe's plan against data parallelism on 8 V100, over link bandwidth and device memory."""
    bandwidths = (1.25e9, 30e9) if quick else (0.125e9, 0.5e9, 1.25e9, 3.125e9, 12e9, 30e9)
    asked = product(networks(quick), bandwidths, (16.0,) if quick else (16.0, 8.0, 4.0, 2.0))
    words = "{0[0]}, links of {0[1]:.3g} bytes/s, {0[2]:g} GiB".format
    for name, bandwidth, memory in tracked("claims", [*asked], words):
        workload = load_workload(name)
        cluster = limited(load_cluster("pipedream-b").take(2 if quick else 8), bandwidth, memory)
        problem = Problem(workload, cluster, workload.minibatch * len(cluster.devices))
        yield {"workload": name, "bandwidth": bandwidth, "memory_gib": memory} | _claim(problem)


def limited(cluster: Cluster, bandwidth: float, memory_gib: float | None = None) -> Cluster:
    """The same cluster with links of `bandwidth` bytes/s, and with devices of `memory_gib` where it is given."""
    devices = cluster.devices
    if memory_gib is not None:
        devices = tuple(replace(device, memory_bytes=memory_gib * GIB) for device in devices)  # type: ignore[type-var]
    return replace(cluster, devices=devices, links=tuple(replace(link, bandwidth=bandwidth) for link in cluster.links))


def _claim(problem: Problem) -> Row:
    found, reference = _explored(problem), _outcomes(problem, ("data-parallel",)).get("data-parallel")
    devices = problem.cluster.devices
    row: Row = {"machine": f"{len(devices)} {devices[0].name}"}
    row |= {"data_parallel_fits": reference is not None, "bapipe_fits": found is not None}
    if found is None:
        return row
    best = simulate(problem, found.best.plan)
    row |= {"notation": best.plan.notation, "schedule": best.plan.schedule, "origin": found.best.origin}
    if reference is not None:
        leanest, peak = min(found.candidates, key=lambda one: one.score.peak_bytes), reference.fullest.peak_bytes
        row["speedup"] = reference.iteration_seconds / best.iteration_seconds
        row["memory_reduction"] = peak / best.fullest.peak_bytes
        row["most_memory_reduction"] = peak / leanest.score.peak_bytes
        row["leanest_speedup"] = reference.iteration_seconds / leanest.seconds
    return row


def board_rows(quick: bool = False) -> Iterator[Row]:
    """The same on four VCU118 boards, over the multiply-adds a DSP and cycle (by precision) and the links between boards."""
    precisions = BOARD_PRECISIONS[:1] if quick else BOARD_PRECISIONS
    bandwidths = (12.5e9,) if quick else (0.125e9, 1.25e9, 12.5e9, 50e9)
    words = "{0[0]}, {0[1]}, links of {0[2]:.3g} bytes/s".format
    asked = product(networks(quick), precisions, bandwidths)
    for name, precision, bandwidth in tracked("boards", [*asked], words):
        cluster = limited(load_cluster("fpga-vcu118-4").take(2 if quick else 4), bandwidth)
        problem = Problem(load_workload(name), cluster, _fpga_batch(cluster, quick), precision=precision)
        yield {"workload": name, "bandwidth": bandwidth, "precision": precision} | _claim(problem)


BOARD_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
"""0.2, 0.5 and 2 multiply-adds a DSP and cycle, 4, 2 and 1 bytes: a sweep of rates, no claim that training works in int8."""


# ---- depth -----------------------------------------------------------------------------------------------------------


def depth_rows(quick: bool = False) -> Iterator[Row]:
    """Largest L of GNMT-L that fits on V100s of 16 GiB at 64 sequences per device, per method; a multiple of the step."""
    step = 64 if quick else 8
    asked = [*product((2,) if quick else (2, 4, 8), DEPTH_METHODS)]
    for devices, method in tracked("depth", asked, lambda one: f"{one[1]} on {one[0]} V100"):
        planner, request = DEPTH_METHODS[method]
        cluster = load_cluster("pipedream-b").take(devices)
        yield {
            "method": method,
            "stale": planner == "pipedream",
            "devices": devices,
            "layers": step * _deepest(cluster, step, planner, request),
        }


def _deepest(cluster: Cluster, step: int, planner: str, request: Request) -> int:
    """Most times `step` layers for which a planner has a plan, at most DEEPEST in all."""

    def fits(times: int) -> bool:
        problem = Problem(gnmt(times * step), cluster, 64 * len(cluster.devices))
        return bool(_outcomes(problem, (planner,), request))

    low, high = 0, 1
    while high <= DEEPEST // step and fits(high):
        low, high = high, 2 * high
    high = min(high, DEEPEST // step + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


DEEPEST = 1024
"""GNMT layers beyond which the search for the largest is not carried on."""


DEPTH_METHODS = {
    "data-parallel": ("data-parallel", ANY),
    "uniform GPipe": ("uniform", ANY),
    "pipedream": ("pipedream", ANY),
    "bapipe 1F1B-SO": ("bapipe", Request(schedule="1f1b-so", microbatches=64)),
    "bapipe 1F1B": ("bapipe", Request(schedule="1f1b", microbatches=64)),
}
"""Planner and what is asked of it, by name."""


# ---- command ---------------------------------------------------------------------------------------------------------


SECTIONS = ("schedules", "plans", "disagreements", "splits", "claims", "boards", "depth")


def measure(quick: bool) -> dict[str, Any]:
    """Every study's rows by section; `interrupted`, whether an interrupt left out what was to come.

    KeyboardInterrupt where nothing was found before it.
    """
    document: dict[str, Any] = {"quick": quick, "interrupted": False, **{section: [] for section in SECTIONS}}
    try:
        for section, row in _rows(quick):
            document[section].append(row)
    except KeyboardInterrupt:
        if not any(document[section] for section in SECTIONS):
            raise
        document["interrupted"] = True
    return document


def _rows(quick: bool) -> Iterator[tuple[str, Row]]:
    yield from (("schedules", row) for row in schedule_rows(quick))
    yield from plan_rows("gpu", gpu_problems(quick))
    yield from plan_rows("fpga", fpga_problems(quick))
    yield from (("claims", row) for row in claim_rows(quick))
    yield from (("boards", row) for row in board_rows(quick))
    yield from (("depth", row) for row in depth_rows(quick))
