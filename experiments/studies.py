"""Studies: the experiments by name, each with its question, its figures and how long it takes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.terminal.exits import FAILURE, INTERRUPTED, OK, Parser, guarded
from experiments.terminal.output import output_folder, print_json
from hardware_profiles import plugged_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTRY_POINT_GROUP = "pipeplan.studies"

MOST_SEEDS = 10_000
"""Runs that a study is asked for at most."""


@dataclass(frozen=True, slots=True)
class Study:
    """An experiment that `pipeplan study` runs.

    module: has `add_arguments(parser)` and `run(arguments)`, which returns its Findings, or an exit code where it has printed
        and written by itself; imported when the study runs
    minutes: of all of it on two cores; quick_minutes: with --quick, None where it takes no such option
    figures: names of the pictures that --out draws
    """

    module: str
    question: str
    minutes: float
    quick_minutes: float | None = None
    figures: tuple[str, ...] = ()

    @property
    def epilog(self) -> str:
        """What the help says of time."""
        quick = "" if self.quick_minutes is None else f", {self.quick_minutes:g} with --quick"
        return (
            f"Takes about {self.minutes:g} minutes on two cores{quick}. It does not resume: an interrupt (exit code 130) ends "
            "it, and the next run begins anew."
        )


STUDIES: dict[str, Study] = {
    "schedule-cases": Study(
        "experiments.schedule_cases", "Do both engines give the times that an independent replay found?", 0.1
    ),
    "replay-speed": Study(
        "experiments.replay_speed.__main__",
        "How fast are the engines, and how do they grow?",
        0.4,
        figures=("growth",),
    ),
    "evaluator-speed": Study(
        "experiments.evaluator_speed",
        "How many plans a second does a search evaluate, and how far from the limit?",
        0.3,
    ),
    "cost-model": Study(
        "experiments.cost_model.__main__",
        "How well does the GPU model predict measured V100 profiles?",
        0.1,
        figures=("cost_model",),
    ),
    "pipedream-optimizer": Study(
        "experiments.pipedream_optimizer",
        "Does the partitioner find what PipeDream's script finds, and how much faster?",
        0.1,
    ),
    "pipedream-tables": Study(
        "experiments.pipedream_tables.__main__",
        "What of PipeDream's two result tables can be reproduced?",
        0.3,
        figures=("pipedream_tables",),
    ),
    "pipedream-growth": Study(
        "experiments.pipedream_growth.__main__",
        "How does the partitioner grow with states, workers and levels?",
        0.3,
        0.1,
        figures=("pipedream_growth",),
    ),
    "bapipe-explore": Study(
        "experiments.bapipe_explore.__main__",
        "Does BaPipe's explorer beat data parallelism, GPipe and PipeDream, where, and by how much?",
        7,
        0.2,
        ("schedules", "gpu-speedup", "gpu-memory", "fpga-speedup", "fpga-memory", "claims", "boards", "depth"),
    ),
    "unequal-cases": Study(
        "experiments.unequal_cases", "Do all forms of the UMPIPE model agree, and is the exact method exact?", 0.5
    ),
    "unequal-speed": Study(
        "experiments.unequal_speed", "How fast is each evaluator of unequal sizes, and how far from the limit?", 0.4
    ),
    "umpipe": Study(
        "experiments.umpipe.__main__",
        "What do unequal micro-batches gain, over which baseline, by which search?",
        3.5,
        0.2,
        figures=("umpipe_gains", "umpipe_convergence", "umpipe_pareto", "umpipe_gantt"),
    ),
    "xpipe": Study(
        "experiments.xpipe.__main__",
        "Which claims of XPipe hold: throughput, memory, accuracy?",
        10,
        0.3,
        figures=("xpipe_throughput", "xpipe_accuracy", "xpipe_difference"),
    ),
    "time-to-accuracy": Study(
        "experiments.time_to_accuracy.__main__",
        "Which method reaches an accuracy first, in simulated seconds?",
        1.5,
        0.2,
        figures=("time_to_accuracy", "time_to_target"),
    ),
}


def studies() -> dict[str, Study]:
    """The studies of this package and those of installed plug-ins (entry-point group `pipeplan.studies`)."""
    return {**plugged_in(ENTRY_POINT_GROUP, as_study), **STUDIES}


def as_study(made: object) -> Study:
    """A plug-in's study; TypeError for anything else."""
    if not isinstance(made, Study):
        raise TypeError(f"must be a Study, not {type(made).__name__}")
    return made


Made = Iterable[tuple[str, "str | Figure"]]
"""What goes to the folder of --out, by name: texts, and figures (names without an ending)."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a study found, to be written, printed and ended with.

    document: what --json prints, and what `show` prints for a person; where it says `interrupted`, it is not complete
    make: what goes to the folder of --out
    folder: to write to without --out; failed: exit code 1
    """

    document: Mapping[str, Any]
    show: Callable[[Any], None]
    make: Callable[[Any], Made] = lambda document: ()
    folder: Path | None = None
    failed: bool = False

    def end(self, folder: Path | None, as_json: bool) -> int:
        """Write, print, and return the exit code."""
        interrupted = bool(self.document.get("interrupted"))
        if folder or self.folder:
            self._write(folder or self.folder or Path(), interrupted)
        if as_json:
            print_json(self.document)
        else:
            if interrupted:
                print("INTERRUPTED: the tables below are not complete\n")
            self.show(self.document)
        return INTERRUPTED if interrupted else FAILURE if self.failed else OK

    def _write(self, folder: Path, interrupted: bool) -> None:
        """Write everything that is made, its path on stderr; figures of what is not complete say so."""
        from simulator import save, write_atomically

        for name, made in self.make(self.document):
            path = folder / name
            if isinstance(made, str):
                write_atomically(path, made)
                print(path, file=sys.stderr)
                continue
            if interrupted:
                mark_interrupted(made)
            for picture in save(made, path):
                print(picture, file=sys.stderr)


def mark_interrupted(figure: Figure) -> None:
    """Say above a figure that not all of it was measured."""
    figure.suptitle(f"{figure.get_suptitle()}\nINTERRUPTED: not complete".strip(), fontsize=10)


def run_study(name: str, words: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run a study with the options in `words`, default those of the command line; returns the exit code.

    prog: what the help calls the program; default the study's module
    Raises ValueError for an unknown study.
    """
    known = studies()
    if name not in known:
        raise ValueError(f"study {name!r} is unknown; choices: {', '.join(sorted(known))}")
    study = known[name]
    module = import_module(study.module)
    parser = Parser(
        prog=prog or f"python -m {study.module.removesuffix('.__main__')}",
        description=study.question,
        epilog=study.epilog,
    )
    module.add_arguments(parser)
    arguments = parser.parse_args(words)

    def run() -> int:
        out = getattr(arguments, "out", None)
        folder = output_folder(out) if out else None
        found: Findings | int = module.run(arguments)
        return found.end(folder, arguments.json) if isinstance(found, Findings) else int(found)

    return guarded(parser.prog, run)


def add_shared(parser: argparse.ArgumentParser, *, out: str = "", quick: str = "", seeds: int = 0) -> None:
    """The options that studies share: --json, and those that are asked for.

    out: what --out writes; quick: what is left of the study with --quick; seeds: how many --seeds trains where nothing is said
    """
    if out:
        parser.add_argument("--out", metavar="DIR", help=f"write {out} to DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    if seeds:
        parser.add_argument(
            "--seeds",
            type=seed_range,
            default=range(seeds),
            metavar="A:B",
            help=f"train seeds A to B-1; K: 0 to K-1 (default {seeds})",
        )


def seed_range(text: str) -> range:
    """`K`: the seeds 0 to K-1; `A:B`: A to B-1. argparse.ArgumentTypeError for anything else."""
    first, colon, last = text.rpartition(":")
    parts = (first, last) if colon else (last,)
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} must be K, the seeds 0 to K-1, or A:B, the seeds A to B-1, below {10**9:,}"
        )
    seeds = range(int(first or 0), int(last))
    if not 1 <= len(seeds) <= MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"{text!r} must hold 1 to {MOST_SEEDS:,} seeds, got {len(seeds):,}")
    return seeds
