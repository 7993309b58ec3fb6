"""`pipeplan compare`: every applicable planner on one problem, in a table and in pictures."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import simulator
from experiments.compare.disturbance_options import DISTURBANCES, disturbances
from experiments.compare.problem_options import (
    ENERGY,
    LAUNCHABLE,
    PLANS,
    add_question,
    defaults_told,
    plan_names,
    read_plans,
    read_request,
    read_stacks,
)
from experiments.terminal.argument_types import Listed, add_options, written_folder
from experiments.terminal.exits import INFEASIBLE, OK
from experiments.terminal.output import (
    UsageError,
    print_explained,
    print_json,
    progress,
    say,
    to_csv,
    to_json,
)
from experiments.terminal.run_folder import RunFolder
from experiments.terminal.stops import INTERRUPTED, finishing, stoppable
from experiments.view.page_option import HTML, check_bokeh, write_page
from hardware_profiles import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.compare.comparison import Comparison
    from planners import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan compare`."""
    add_question(parser)
    add_options(
        parser,
        {
            "--planner NAME,…": ("ask these planners only; may be repeated", Listed(str), []),
            **PLANS,
            "--out DIR": (
                "folder for tables, plan files and figures (default %(default)s)",
                written_folder,
                "out/compare",
            ),
            **DISTURBANCES,
            **LAUNCHABLE,
            **ENERGY,
            "--timelines": "draw the timeline and the memory of every plan, too",
            "--no-figures": "draw nothing",
            **HTML,
            "--json": "print one JSON document",
        },
    )


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, write."""
    from experiments.compare.comparison import compare_planners

    if arguments.timelines and arguments.no_figures:
        raise UsageError("--timelines draws figures of every plan, and --no-figures none: ask for one of them")
    check_bokeh(arguments.html)
    disturbed = disturbances(arguments)
    problem, plans = _given(arguments)
    simulator.check_disturbances(len(problem.cluster.devices), **disturbed)
    request, names = read_request(arguments), tuple(arguments.planner)
    folder = RunFolder(arguments.out, "compare")
    for option, path in (("--problem", arguments.problem), *(("--plan", one) for one in arguments.plan)):
        folder.refuse_reading(option, path or "")
    with finishing() as stopped:
        with stoppable(), progress("planning") as report:
            comparison = compare_planners(
                problem,
                request,
                names=names,
                plans=plans,
                seed=arguments.seed,
                stacks=read_stacks(arguments, problem, arguments.launchable),
                report=report,
            )
        _raise_if_nobody_can_plan(comparison)
        try:
            with nullcontext() if comparison.interrupted else stoppable():
                comparison = _disturbed(comparison, arguments, disturbed)
                written = _write(folder, comparison, figures=not arguments.no_figures, timelines=arguments.timelines)
                written += _page(arguments.html, comparison)
        except KeyboardInterrupt:  # it is told whole, without the figures
            comparison = replace(comparison, cut_short=True)
            written = _write(folder, comparison, figures=False, timelines=False)
        if stopped() and not comparison.interrupted:
            comparison = replace(comparison, cut_short=True)
        return _tell(arguments, comparison, folder, written)


def _disturbed(comparison: Comparison, arguments: argparse.Namespace, asked: dict[str, Any]) -> Comparison:
    """The comparison under noise and stragglers, where these are asked for and no interrupt has ended it."""
    from experiments.compare.comparison import under_disturbances

    if comparison.interrupted or not (asked["noise"] or asked["stragglers"]):
        return comparison
    with progress("replaying") as report:
        return under_disturbances(comparison, **asked, seed=arguments.seed, report=report)


def _tell(arguments: argparse.Namespace, comparison: Comparison, folder: RunFolder, written: list[Path]) -> int:
    """Print; returns the exit code."""
    document = comparison.record()
    if arguments.json:
        print_json({**document, "files": [str(path) for path in written]})
    else:
        print_explained(comparison)
        if usual := defaults_told(arguments, comparison.problem):
            say(usual)
        say(f"{counted(len(written), 'file')} in {folder.path}{_left_out(arguments, comparison)}")
    if comparison.interrupted:
        return INTERRUPTED
    return OK if any(record["feasible"] for record in document["plans"]) else INFEASIBLE


def _left_out(arguments: argparse.Namespace, comparison: Comparison) -> str:
    """What figures could be, but are not, drawn."""
    if arguments.no_figures:
        return ""
    if not arguments.timelines:
        return " (--timelines draws every plan)"
    return " (no timelines are drawn after an interrupt)" if comparison.interrupted else ""


def _given(arguments: argparse.Namespace) -> tuple[simulator.Problem, dict[str, simulator.Plan]]:
    """The problem of the options or the files, and the plans by the names of their files."""
    problem, plans = read_plans(arguments, arguments.plan, arguments.launchable)
    return problem, dict(zip(plan_names(list(plans)), plans.values(), strict=True))


def _raise_if_nobody_can_plan(comparison: Comparison) -> None:
    """Where no planner has a plan, and none because of memory: the first error, or in short why none applies."""
    plans = comparison.plans
    if any(one.status in ("fits", "does-not-fit", "no-plan-fits") for one in plans):
        return
    failed = next((one.error for one in plans if one.status == "failed" and one.error is not None), None)
    if failed is not None:
        raise failed
    reasons = list(dict.fromkeys(one.reason for one in plans))
    more = f"; and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
    raise UsageError(f"no planner of {len(plans)} applies: {reasons[0]}{more}")


def _plan_file(result: Result) -> str:
    return simulator.PlanFile(result.problem, result.plan).to_json()


def _write(folder: RunFolder, comparison: Comparison, *, figures: bool, timelines: bool) -> list[Path]:
    written = [folder.manifest]

    def text(name: str, content: str) -> None:
        written.extend(folder.write([name], lambda: simulator.write_atomically(folder.path / name, content)))

    def figure(stem: str, drawn: Figure) -> None:
        names = [f"{stem}.png", f"{stem}.svg"]
        written.extend(folder.write(names, lambda: simulator.save(drawn, folder.path / stem)))

    folder.clear()
    records = comparison.records()
    text("comparison.csv", to_csv(records, list(records[0])))
    text("comparison.json", to_json(comparison.record()) + "\n")
    results = {one.planner: one.result for one in comparison.plans if one.result is not None}
    stems = file_stems(results)
    for name, result in results.items():
        text(f"{stems[name]}-plan.json", _plan_file(result))
    if not figures or not results:
        return written
    figure("comparison", comparison.plot())
    if comparison.interrupted or not timelines:  # an interrupt ends what takes long, and two figures of every plan do
        return written
    with progress("drawing") as report:
        for number, (name, result) in enumerate(results.items()):
            report(number, name)
            figure(f"{stems[name]}-gantt", result.plot_gantt())
            figure(f"{stems[name]}-memory", result.plot_memory())
    return written


def _page(path: Path | None, comparison: Comparison) -> list[Path]:
    """Write the page of all plans, if it is asked for and the comparison is complete."""
    replays = {one.planner: one.result.outcome for one in comparison.plans if one.result is not None}
    if path is None or not replays or comparison.interrupted:
        return []
    write_page(path, replays, title=comparison.title)
    return [path]


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """What the files of each name begin with: the name, cut and without odd characters, numbered where two would be one."""
    stems: dict[str, str] = {}
    for name in names:
        stem = start = re.sub(r"[^\w.-]+", "-", name)[:100]
        taken = {one.lower() for one in stems.values()}
        number = 1
        while stem.lower() in taken:
            number += 1
            stem = f"{start}-{number}"
        stems[name] = stem
    return stems
