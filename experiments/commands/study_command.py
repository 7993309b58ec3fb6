"""`pipeplan study`: the studies by name, and one of them."""

from __future__ import annotations

import argparse

from experiments.terminal.output import print_json, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan study`."""
    parser.add_argument("--json", action="store_true", help="print one JSON document: the list, or the study's")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the study to run; without one they are listed")
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, metavar="...", help="options of the study: see pipeplan study NAME --help"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run one study, or list them all."""
    from dataclasses import asdict

    from experiments.studies.catalogue import studies
    from experiments.studies.study_harness import run_study

    if arguments.name is not None:
        words = [*["--json"] * arguments.json, *arguments.options]
        return run_study(arguments.name, words, f"pipeplan study {arguments.name}")
    found = sorted(studies().items())
    if arguments.json:
        print_json({"studies": [{"name": name, **asdict(study)} for name, study in found]})
        return 0
    print_table(
        "Studies",
        ("name", "minutes", "with\n--quick", "question", "figures"),
        [
            (
                name,
                f"{study.minutes:g}",
                "" if study.quick_minutes is None else f"{study.quick_minutes:g}",
                study.question,
                ", ".join(study.figures),
            )
            for name, study in found
        ],
    )
    return 0
