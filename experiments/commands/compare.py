"""`pipeplan compare`: every applicable planner on one problem, in a table and in pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.compare.problem_options import add_problem_arguments, add_search_arguments, read_problem, read_request

if TYPE_CHECKING:
    from experiments.compare.comparison import Comparison


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
    from experiments.compare.comparison import compare_planners
    from experiments.terminal.exits import INFEASIBLE, INTERRUPTED, OK
    from experiments.terminal.output import output_folder, print_explained, print_json, progress, say

    problem, request = read_problem(arguments), read_request(arguments)
    names = tuple(arguments.planner)
    folder = output_folder(arguments.out)
    with progress("planning") as report:
        comparison = compare_planners(problem, request, names=names, seed=arguments.seed, report=report)
    _raise_if_nobody_can_plan(comparison)
    document = _document(comparison)
    written = _write(folder, comparison, document, figures=not arguments.no_figures)
    if arguments.json:
        print_json({**document, "files": [str(path) for path in written]})
    else:
        print_explained(comparison)
        say(f"{len(written)} files in {folder}")
    if comparison.interrupted:
        return INTERRUPTED
    return OK if any(record["feasible"] for record in document["plans"]) else INFEASIBLE


def _raise_if_nobody_can_plan(comparison: Comparison) -> None:
    """Where no planner has a plan, and none because of memory: the first error, or in short why none applies."""
    from experiments.terminal.output import UsageError

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


def _write(folder: Path, comparison: Comparison, document: dict[str, Any], *, figures: bool) -> list[Path]:
    from experiments.terminal.output import progress, to_json
    from simulator import save, write_atomically

    written = [folder / "comparison.csv", folder / "comparison.json"]
    write_atomically(written[0], comparison.frame.to_csv(index=False))
    write_atomically(written[1], to_json(document) + "\n")
    results = {one.planner: one.result for one in comparison.plans if one.result is not None}
    if not figures or not results:
        return written
    written.extend(save(comparison.plot(), folder / "comparison"))
    with progress("drawing") as report:
        for number, (name, result) in enumerate(results.items()):
            report(number, name)
            written.extend(save(result.plot_gantt(), folder / f"{name}-gantt"))
            written.extend(save(result.plot_memory(), folder / f"{name}-memory"))
    return written
