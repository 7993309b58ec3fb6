"""`pipeplan sweep`: a question at every point of a grid, its answers in a store; `sweep report`: tables and figures of one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import simulator
from experiments.compare.problem_options import ENERGY, FORMS, LAUNCHABLE, add_question
from experiments.terminal.argument_types import MOST_JOBS, CountUpTo, Option, add_options, names_of, refuse
from experiments.terminal.exits import INFEASIBLE, OK
from experiments.terminal.output import UsageError, blamed_on, named_by, output_file, progress, tell
from experiments.terminal.run_folder import RunFolder
from experiments.terminal.stops import INTERRUPTED, finishing
from experiments.view.page_option import check_bokeh, drawing_page, html_option
from hardware_profiles import counted, toml_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.sweep.study import SweptStudy
    from experiments.sweep.swept import Swept

REPORT = "report"
"""The word in place of a study's file before a store."""

WORKING: dict[str, Option] = {
    "--jobs N": ("processes on this machine (default: as many as there are cores)", CountUpTo(MOST_JOBS)),
    "--scheduler ADDRESS": "have the workers of this scheduler of dask.distributed answer, as tcp://10.0.0.1:8786",
    "--local-cluster N": ("start a scheduler with N workers on this machine for it", CountUpTo(MOST_JOBS)),
}
"""Who answers: one of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan sweep`."""
    parser.add_argument(
        "study", nargs="?", metavar="STUDY", help=f"TOML file of options and [over]; or {REPORT}, before a store"
    )
    parser.add_argument("store", nargs="?", metavar="STORE", help=f"behind {REPORT}: the store to tell about")
    add_options(
        parser,
        {
            "--over NAME=VALUES": (
                "an option of pipeplan plan without its dashes, or a path of pipeplan whatif, and its values: a list 4,8,16, "
                "a range 64:1024:x2 or 8:264:+8, or both in braces, dgx-h100:{1,2,4}; may be repeated: every point of the grid",
                str,
                [],
            ),
            "--out PATH": f"store of the answers, gone on with where it is there; of {REPORT} the folder for tables and figures",
            **html_option("lines, a heat map, throughput against memory, and the table of all points"),
            "--json": "print one JSON document",
            "--planner NAME": "planner (default joint)",
            "--plan FILE": f"replayed at every point, in place of planning: {FORMS}",
            **LAUNCHABLE,
            **ENERGY,
        },
    )
    add_options(parser.add_argument_group("who answers").add_mutually_exclusive_group(), WORKING)
    add_question(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask, or report; exit code 3 where no point has a plan that fits."""
    check_bokeh(arguments.html)
    if arguments.study == REPORT:
        return _report(arguments)
    for word in (arguments.study, arguments.store):
        if word is not None and "=" in word and not Path(word).exists():
            raise UsageError(
                f"{word} is no study file; quote what has braces, which a shell expands: --over 'NAME=A:{{1,2}}'"
            )
    if arguments.store is not None:
        raise UsageError(f"{arguments.store}: a store stands behind {REPORT}; a sweep has one study file")
    return _sweep(arguments)


# ------------------------------------------------------------------------------------------------------------ asking


def _sweep(arguments: argparse.Namespace) -> int:
    from experiments.sweep.asking import ask_all, running
    from experiments.sweep.store import IN_MEMORY, Store

    study = _study(arguments)
    path = IN_MEMORY if arguments.out is None else output_file(arguments.out)
    with (
        finishing(),
        running(arguments.jobs, arguments.scheduler, arguments.local_cluster) as work,
        Store(path) as store,
        progress("sweeping") as show,
        named_by(arguments.study),
    ):
        asked = ask_all(study, store, work, _telling(show))
    if not arguments.quiet:
        kept = "" if arguments.out is None else f", kept in {arguments.out}"
        beside = f"; {asked.known:,} were there" if asked.known else ""
        print(f"pipeplan sweep: {counted(asked.answered, 'question')} answered{kept}{beside}", file=sys.stderr)
    return _told(arguments, asked.swept)


def _telling(show: Callable[[int, str], None]) -> Callable[[int, int], None]:
    """What tells how many are answered, and when the others may be."""
    began = time.monotonic()

    def report(done: int, total: int) -> None:
        spent = time.monotonic() - began
        left = f", {timedelta(seconds=round((total - done) * spent / done))} left" if done else ""
        show(done, f"{done:,} of {total:,}{left}")

    return report


def _told(arguments: argparse.Namespace, swept: Swept) -> int:
    if arguments.html is not None:
        _write_page(arguments.html, swept)
    tell(swept, as_json=arguments.json)
    if swept.missing:
        return INTERRUPTED
    return OK if swept.planned else INFEASIBLE


def _write_page(path: Path, swept: Swept) -> None:
    from experiments.sweep.sweep_page import sweep_html

    with drawing_page(path):
        simulator.write_atomically(path, sweep_html(swept))


def _study(arguments: argparse.Namespace) -> SweptStudy:
    """The study of a file, and of what is said beside it, which goes before what the file says."""
    from experiments.sweep.axes import read_axis, read_over
    from experiments.sweep.study import DESCRIBING, GIVEN, PLANNING, make_study, read_options

    options: dict[str, Any] = {}
    axes = []
    if arguments.study is not None:
        table = toml_table(Path(arguments.study))
        with blamed_on(arguments.study):
            over = table.pop("over", {})
            if not isinstance(over, dict):
                raise UsageError("over must be a table: the values of each name")
            options = read_options(table)
            axes = [read_axis(name, values) for name, values in over.items()]
    names = [*GIVEN, *names_of({**DESCRIBING, **PLANNING})]
    said = {name: getattr(arguments, name) for name in names}
    unsaid = {**dict.fromkeys(names), "seed": 0}
    given = {name: value for name, value in said.items() if value is not False and value != unsaid[name]}
    own = {f"option.{name}": value for name, value in arguments.option}
    with named_by(arguments.study):
        return make_study(options | given | own, [*axes, *map(read_over, arguments.over)])


# --------------------------------------------------------------------------------------------------------- reporting


def _report(arguments: argparse.Namespace) -> int:
    from experiments.sweep.store import Store
    from experiments.sweep.study import DESCRIBING, PLANNING
    from experiments.sweep.swept import Swept

    if arguments.store is None:
        raise UsageError(f"{REPORT} needs STORE, what pipeplan sweep --out has written")
    asking = {**DESCRIBING, **PLANNING, **WORKING, **dict.fromkeys(("--over", "--problem", "--plan", "--option"), "")}
    refuse(arguments, names_of(asking), f"is for a sweep, not for its {REPORT}")
    folder = None if arguments.out is None else RunFolder(arguments.out, "pipeplan sweep report")
    with Store(arguments.store, reading=True) as store:
        swept = Swept.of(store.rows())
    if not swept.rows:
        raise UsageError(f"{arguments.store}: no sweep was asked yet")
    if folder is not None:
        _write(folder, swept)
    code = _told(arguments, swept)
    return OK if code == INTERRUPTED else code


def _write(folder: RunFolder, swept: Swept) -> None:
    from experiments.sweep.sweep_plots import figures_of

    def figure(stem: str, drawn: Figure) -> None:
        folder.write([f"{stem}.png", f"{stem}.svg"], lambda: simulator.save(drawn, folder.path / stem))

    folder.clear()
    folder.write(["sweep.csv"], lambda: simulator.write_atomically(folder.path / "sweep.csv", swept.csv()))
    for stem, drawn in figures_of(swept).items():
        figure(stem, drawn)
