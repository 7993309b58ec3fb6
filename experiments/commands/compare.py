"""`pipeplan compare`: every applicable planner on one problem, in a table and in pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from experiments.problem_options import add_problem_arguments, add_search_arguments, read_problem, read_request

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.comparison import Comparison
    from simulator import Outcome, Problem

SPEED = (
    "planner",
    "schedule",
    "plan",
    "micro-\nbatches",
    "iteration,\nseconds",
    "samples/s",
    "speedup\nover DP",
    "lower\nbound, s",
    "gap",
    "planning,\nCPU s",
)
USE = (
    "planner",
    "idle /\nmakespan",
    "idle over\nideal",
    "idle, longest\nstage",
    "peak memory,\nGiB",
    "fullest\ndevice",
    "MB moved\na sample",
)

STALE = "*"
"""Behind the schedule of a plan that trains on stale weights; a line under the table says so."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan compare`."""
    add_problem_arguments(parser)
    add_search_arguments(parser)
    parser.add_argument(
        "--planner", action="append", default=[], metavar="NAME", help="ask this planner only; may be repeated"
    )
    parser.add_argument(
        "--out", default="out/compare", metavar="DIR", help="folder for tables and figures (default %(default)s)"
    )
    parser.add_argument("--no-figures", action="store_true", help="write the tables only")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, write."""
    from experiments.cli import INFEASIBLE, INTERRUPTED, OK
    from experiments.comparison import compare
    from experiments.output import output_folder, print_json, progress

    problem, request = read_problem(arguments), read_request(arguments)
    names = tuple(arguments.planner)
    folder = output_folder(arguments.out)
    with progress("planning") as report:
        comparison = compare(problem, request, names=names, seed=arguments.seed, report=report)
    _raise_if_nobody_can_plan(comparison)
    document = _document(comparison)
    written = _write(folder, comparison, document, figures=not arguments.no_figures)
    if arguments.json:
        print_json({**document, "files": [str(path) for path in written]})
    else:
        _print(comparison, folder, len(written))
    if comparison.interrupted:
        return INTERRUPTED
    return OK if any(record["feasible"] for record in document["plans"]) else INFEASIBLE


def _raise_if_nobody_can_plan(comparison: Comparison) -> None:
    """Where no planner has a plan, and none because of memory: the first error, or in short why none applies."""
    from experiments.output import UsageError

    plans = comparison.plans
    if any(one.status in ("fits", "does-not-fit", "no-plan-fits") for one in plans):
        return
    failed = next((one.error for one in plans if one.status == "failed" and one.error is not None), None)
    if failed is not None:
        raise failed
    reasons = list(dict.fromkeys(one.reason for one in plans))
    more = f"; and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
    raise UsageError(f"no planner of {len(plans)} applies: {reasons[0]}{more}")


def _document(comparison: Comparison) -> dict[str, Any]:
    problem = comparison.problem
    return {
        "workload": problem.workload.name,
        "measured": problem.workload.bytes_per_element is not None,
        "cluster": problem.cluster.name,
        "devices": len(problem.cluster.devices),
        "batch": problem.batch,
        "precision": problem.precision,
        "optimizer": problem.optimizer,
        "recompute": problem.recompute,
        "communication": problem.communication,
        "contention": problem.contention,
        "engine": "simpy",
        "interrupted": comparison.interrupted,
        "plans": comparison.records(),
    }


def _print(comparison: Comparison, folder: Path, files: int) -> None:
    from experiments.output import print_table, say

    problem = comparison.problem
    source = "measured profile" if problem.workload.bytes_per_element is not None else f"analytic, {problem.precision}"
    records = comparison.records()
    planned = [record for record in records if record["schedule"] is not None]
    planned.sort(key=lambda record: (not record["feasible"], record["iteration_seconds"]))
    print_table(
        f"{problem.workload.name} ({source}) on {problem.cluster.name}, {len(problem.cluster.devices)} devices, "
        f"{problem.batch} {problem.workload.sample}s an iteration",
        SPEED,
        [_speed(record) for record in planned],
    )
    print_table(
        "Idle time (the bubble, by its three names), memory and traffic", USE, [_use(record) for record in planned]
    )
    if any(record["asynchronous"] for record in planned):
        print(f"{STALE} asynchronous: gradients of stale weights, seconds of the steady state without fill and drain")
    for record in records:
        if record["optimal_among"]:
            print(
                f"{record['planner']}: proven the fastest of {record['optimal_among']}; "
                "its gap is to the lower bound on any plan"
            )
        if record["interrupted"] and record["schedule"] is not None:
            print(f"{record['planner']}: interrupted: this is the best plan so far")
        if record["reason"]:
            say(f"{record['planner']}: {record['status'].replace('-', ' ')}: {record['reason']}")
    if comparison.interrupted:
        print("interrupted: the comparison is not complete")
    say(f"{files} files in {folder}")


def _speed(record: dict[str, Any]) -> tuple[str, ...]:
    speedup, rate = record["speedup_over_data_parallel"], record["samples_per_second"]
    return (
        record["planner"] + (" (interrupted)" if record["interrupted"] else ""),
        record["schedule"] + (STALE if record["asynchronous"] else ""),
        record["notation"],
        str(record["microbatches"]),
        f"{record['iteration_seconds']:.4g}",
        f"{rate:,.0f}" if rate >= 1e4 else f"{rate:,.4g}",
        "" if speedup is None else f"{speedup:.2f}",
        f"{record['lower_bound_seconds']:.4g}",
        f"{100 * record['gap']:.1f} %",
        f"{record['planning_seconds']:.2f}",
    )


def _use(record: dict[str, Any]) -> tuple[str, ...]:
    peak, capacity = record["peak_memory_bytes"] / 2**30, record["capacity_bytes"] / 2**30
    return (
        record["planner"],
        f"{record['bubble_idle_over_makespan']:.3f}",
        f"{record['bubble_over_ideal']:.3f}",
        f"{record['bubble_longest_stage']:.3f}",
        f"{peak:.2f} of {capacity:.4g}" + ("" if record["feasible"] else " (!)"),
        str(record["fullest_device"]),
        f"{record['bytes_per_sample'] / 1e6:.3g}",
    )


def _write(folder: Path, comparison: Comparison, document: dict[str, Any], *, figures: bool) -> list[Path]:
    import pandas as pd

    from experiments.output import progress, to_json
    from simulator import write_atomically

    written = [folder / "comparison.csv", folder / "comparison.json"]
    write_atomically(written[0], pd.DataFrame(document["plans"]).to_csv(index=False))
    write_atomically(written[1], to_json(document) + "\n")
    if not figures:
        return written
    from experiments.plots import comparison_figure
    from simulator import save

    planned = [
        {**record, "bubble": record["bubble_idle_over_makespan"]}
        for record in document["plans"]
        if record["schedule"] is not None
    ]
    if planned:
        title = f"{document['workload']} on {document['cluster']}, {document['devices']} devices"
        title += " (interrupted: not every planner was asked to the end)" if comparison.interrupted else ""
        written.extend(save(comparison_figure(planned, title=title), folder / "comparison"))
    with progress("drawing") as report:
        for number, one in enumerate(comparison.plans):
            report(number, one.planner)
            if one.outcome is not None:
                written.extend(draw_plan(folder, one.planner, one.outcome))
    return written


def draw_plan(folder: Path, name: str, outcome: Outcome) -> list[Path]:
    """Gantt and memory figure of one plan, PNG and SVG."""
    from simulator import gantt, memory_figure, readable_window, save

    plan, problem = outcome.plan, outcome.problem
    title = f"{problem.workload.name} on {problem.cluster.name}: {name}, {plan.schedule}, {plan.notation}"
    window = None if outcome.schedule.flush else readable_window(outcome.timeline)
    chart = gantt(outcome.timeline, title=title, window=window, device_word=device_word(problem))
    return [
        *save(cast("Figure", chart.get_figure()), folder / f"{name}-gantt"),
        *save(memory_figure(outcome.memory, title=title, device_word=device_word(problem)), folder / f"{name}-memory"),
    ]


def device_word(problem: Problem) -> str:
    """What the figures call a device."""
    from hardware_profiles import FieldProgrammableGateArray

    boards = {isinstance(device, FieldProgrammableGateArray) for device in problem.cluster.devices}
    return "device" if len(boards) > 1 else "FPGA" if boards.pop() else "GPU"
