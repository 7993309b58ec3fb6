"""Study harness: how a study is run, and how what it found is written, printed and ended with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.studies.catalogue import BUNDLED_PROFILES, STUDIES, Study, studies
from experiments.studies.input_sets import lacking
from experiments.terminal.argument_types import MOST_SEEDS, add_options, check_written, written_file, written_folder
from experiments.terminal.command_parser import Parser
from experiments.terminal.exits import FAILURE, OK, guarded
from experiments.terminal.output import UsageError, print_json
from experiments.terminal.run_folder import RunFolder
from experiments.terminal.stops import INTERRUPTED
from hardware_profiles import PluginError, answering_for, unchosen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    def end(self, folder: RunFolder | None, as_json: bool, name: str = "") -> int:
        """Write, print, and return the exit code; name: of the study."""
        interrupted = bool(self.document.get("interrupted"))
        if folder is None and self.folder is not None:
            folder = RunFolder(self.folder, f"study {name}")
        if folder is not None:
            self._write(folder, interrupted)
        if as_json:
            print_json(self.document)
        else:
            if interrupted:
                print("INTERRUPTED: the tables below are not complete\n")
            self.show(self.document)
        return INTERRUPTED if interrupted else FAILURE if self.failed else OK

    def _write(self, folder: RunFolder, interrupted: bool) -> None:
        """Write everything that is made, its path on stderr; figures of what is not complete say so."""
        folder.clear()
        for name, made in self.make(self.document):
            if interrupted and not isinstance(made, str):
                mark_interrupted(made)
            names = [name] if isinstance(made, str) else [f"{name}.png", f"{name}.svg"]
            for path in folder.write(names, partial(_put, made, folder.path / name)):
                print(path, file=sys.stderr)


def _put(made: str | Figure, path: Path) -> None:
    """Write a text, or a figure under the name with endings."""
    from simulator import save, write_atomically

    if isinstance(made, str):
        write_atomically(path, made)
    else:
        save(made, path)


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
        raise ValueError(unchosen("study", name, sorted(known)))
    study = known[name]
    parser = Parser(prog=prog or f"python -m {study.module}", description=study.question, epilog=study.epilog)
    add_study_options(parser, study)
    arguments, unread = parser.parse_known_args(words)
    parser.refuse_unread(unread)

    def run() -> int:
        check_written(arguments)
        for option, inputs in study.inputs.items():
            if getattr(arguments, option.removeprefix("--")) is None:
                raise lacking(option, inputs)
        own = study.stack and str(arguments.out).endswith(".toml")
        folder = RunFolder(arguments.out, f"study {name}") if study.figures and arguments.out and not own else None
        with nullcontext() if name in STUDIES else answering_for(f"study {name!r}"):
            place = find_spec(study.module)
            package = place is not None and place.submodule_search_locations is not None
            module = import_module(f"{study.module}.__main__" if package else study.module)
            found: Findings | int = module.run(arguments)
        if not isinstance(found, Findings | int):
            raise PluginError(f"study {name!r}: run must return Findings or an exit code, not {type(found).__name__}")
        return found.end(folder, arguments.json, name) if isinstance(found, Findings) else found

    return guarded(parser.prog, run, own=words is None)


def add_study_options(parser: Parser, study: Study) -> None:
    """The options that studies share, and the study's own."""
    add_options(parser, {"--json": "print one JSON document"})
    if study.figures:
        add_options(
            parser,
            {"--out DIR": ("write figures and documents to DIR", folder_or_stack if study.stack else written_folder)},
        )
    if study.quick:
        add_options(parser, {"--quick": study.quick})
    if study.seeds:
        said = f"train seeds A to B-1; K: 0 to K-1 (default {study.seeds})"
        add_options(parser, {"--seeds A:B": (said, seed_range, range(study.seeds))})
    add_options(parser, study.options)


def folder_or_stack(text: str) -> Path:
    """The folder that a study writes to, or the stack's file, FILE.toml."""
    return written_file(text) if text.endswith(".toml") else written_folder(text)


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


def profiles_of(arguments: argparse.Namespace, known: Sequence[str]) -> tuple[Path, dict[str, int]]:
    """The folder of PROFILES, by default the one beside this checkout or above it, and the samples of some of its profiles.

    UsageError where there is no folder, and for a profile that is not known.
    """
    samples = dict(arguments.profiled_minibatch)
    for name in samples:
        if name not in known:
            choices = ", ".join(known)
            raise UsageError(f"--profiled-minibatch: profile {name!r} is unknown; choices: {choices}")
    if arguments.profiles is not None:
        return arguments.profiles, samples
    for parent in Path(__file__).resolve().parents:
        if (parent / BUNDLED_PROFILES).is_dir():
            return parent / BUNDLED_PROFILES, samples
    raise lacking("--profiles", "pipedream-profiles")
