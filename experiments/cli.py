"""Command line: `pipeplan COMMAND`. Parsers only; a command's module is imported when it is called."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from io import StringIO, TextIOWrapper
from typing import Any, NoReturn

COMMANDS: dict[str, str] = {
    "compare": "plan with every applicable planner, replay each plan, and print and draw the comparison",
    "plan": "search one plan and print it",
    "simulate": "replay one schedule on numbers, or a plan from its file",
    "train": "train a real network under the weight versions of a method's timeline",
    "profile": "measure a PyTorch model layer by layer and write a profile that planners read",
    "export": "write a plan for other tools: Chrome trace, torch CSV, text",
    "list": "list workloads, accelerators, clusters, schedules and planners",
    "study": "list the experiments, or run one",
    "check": "check a profile file, or print the JSON Schema of one",
}
"""Subcommands and their one-line help; each lives in `experiments.commands.<name>`."""

MOST_CHARACTERS = 270
"""Of a complaint, so that the line stays below 300 with the command's name."""

OK, FAILURE, USAGE, INFEASIBLE, BAD_FILE, INTERRUPTED = 0, 1, 2, 3, 4, 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(USAGE, f"{self.prog}: {short(message, MOST_CHARACTERS - 60)} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `pipeplan`; returns the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    known = words[:1] if words and words[0] in COMMANDS else []
    return guarded(" ".join(["pipeplan", *known]), lambda: _run(words))


def _run(words: list[str]) -> int:
    parser = Parser(
        prog="pipeplan",
        description="Simulate and plan pipeline-parallel DNN training on GPU and FPGA clusters.",
        epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 no plan fits, 4 bad input file, 130 interrupted.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    named = words[0] if words and words[0] in COMMANDS else None
    for name, text in COMMANDS.items():
        description = text[0].upper() + text[1:] + "."
        subparser = commands.add_parser(name, help=text, description=description)
        if name == named:
            import_module(f"experiments.commands.{name}").add_arguments(subparser)
    parsed = parser.parse_args(words)
    if parsed.version:
        from importlib.metadata import version

        print(f"pipeplan {version('pipeplan')}")
        return OK
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    code: int | None = import_module(f"experiments.commands.{parsed.command}").run(parsed)
    return code or OK


def guarded(name: str, action: Callable[[], int]) -> int:
    """Run a command; every foreseen error becomes one line on stderr and its exit code.

    A character that the terminal's encoding lacks is printed as `?`.
    """
    if sys.stderr is None:  # closed: what is said there goes nowhere, and not to stdout
        sys.stderr = StringIO()
    if sys.stdout is None:
        return _end(name, "standard output is closed", FAILURE)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _warner(name)
            code = action()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _end(name, "interrupted", INTERRUPTED)
    except OSError as error:
        lost = _abandon_output()
        if isinstance(error, BrokenPipeError):
            return FAILURE
        where = error.filename or ("standard output" if lost else None)
        return _end(name, f"{where}: {error.strerror}" if where else str(error), FAILURE)
    except MemoryError:
        return _end(name, "not enough memory for a problem of this size", FAILURE)
    except ValueError as error:
        return _end(name, str(error), _exit_code(error))
    return code


def _warner(name: str) -> Callable[..., None]:
    """What prints a doubt (a UserWarning) as one line on stderr, each text once, and leaves other warnings as they are."""
    others, said = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        text = str(message)
        if category is not UserWarning:
            others(message, category, *where, **more)
        elif text not in said:
            said.add(text)
            print(f"{name}: warning: {short(text)}", file=sys.stderr)

    return show


def _abandon_output() -> bool:
    """Whether stdout cannot be written; what it holds then goes nowhere, as the interpreter would complain again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _end(name: str, complaint: str, code: int) -> int:
    """Print the one line and return the code."""
    print(f"{name}: {short(complaint)}", file=sys.stderr)
    return code


def short(text: str, most: int = MOST_CHARACTERS) -> str:
    """One printable line: white space as single spaces, controls as escapes, the middle left out of what is too long."""
    from hardware_profiles import one_line, printable

    line = printable(one_line(text))
    tail = most // 3
    return line if len(line) <= most else f"{line[: most - tail - 3]} … {line[-tail:]}"


def _exit_code(error: ValueError) -> int:
    from experiments.output import InputError
    from hardware_profiles import ProfileError, UnknownProfileError
    from planners import PlannerFailedError
    from simulator import InfeasiblePlanError, PlanFileError, WorkloadFileError

    if isinstance(error, InfeasiblePlanError):
        return INFEASIBLE
    if isinstance(error, PlannerFailedError):
        return FAILURE
    if isinstance(error, UnknownProfileError):
        return USAGE
    if isinstance(error, (InputError, PlanFileError, ProfileError, WorkloadFileError)):
        return BAD_FILE
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
