"""`pipeplan study`: the studies by name, and one of them."""

from __future__ import annotations

import argparse

from experiments.terminal.output import print_json
from experiments.terminal.report_tables import ReportTable, Row, figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan study`."""
    parser.add_argument("--json", action="store_true", help="print one JSON document: the list, or the study's")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the study to run; without one they are listed")
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, metavar="...", help="options of the study: see pipeplan study NAME --help"
    )


def _figures(row: Row) -> str:
    """The figures of a study; behind each that --quick does not draw, that it does not."""
    return ", ".join(name + " (not with --quick)" * (name in row["not_quick"]) for name in row["figures"])


TABLE = ReportTable(
    "Studies",
    "studies",
    {
        "name": "{name}",
        "minutes": "{minutes:g}",
        "with\n--quick": figure("quick_minutes", "g"),
        "question": "{question}",
        "figures": _figures,
    },
)


TOLD = ("module", "question", "minutes", "quick_minutes", "figures", "not_quick")
"""Fields of a study that the list tells."""


def run(arguments: argparse.Namespace) -> int:
    """Run one study, or list them all."""
    from experiments.studies.catalogue import studies
    from experiments.studies.study_harness import run_study

    if arguments.name is not None:
        given = [*["--json"] * arguments.json, *arguments.options]
        return run_study(arguments.name, given, f"pipeplan study {arguments.name}")
    found = {
        "studies": [
            {"name": name, **{key: getattr(study, key) for key in TOLD}} for name, study in sorted(studies().items())
        ]
    }
    (print_json if arguments.json else TABLE.print)(found)
    return 0
