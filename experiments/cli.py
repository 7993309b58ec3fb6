"""Command line: `pipeplan COMMAND`. Parsers only; a command's module is imported when it is called."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

COMMANDS: dict[str, str] = {
    "compare": "plan with every applicable planner, replay each plan, and print and draw the comparison",
    "plan": "search one plan and print it",
    "simulate": "replay one schedule from numbers, or from a schedule file",
    "train": "train a real network under the weight versions of a method's timeline",
    "profile": "measure a PyTorch model layer by layer and write a profile that planners read",
    "export": "write a plan for other tools: Chrome trace, torch CSV, text",
    "list": "list workloads, accelerators, clusters, schedules and planners",
    "check": "check a profile file, or print the JSON Schema of one",
}
"""Subcommands and their one-line help; each lives in `experiments.commands.<name>`."""

OK, FAILURE, USAGE, INFEASIBLE, BAD_FILE, INTERRUPTED = 0, 1, 2, 3, 4, 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `pipeplan`; returns the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
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
    command = import_module(f"experiments.commands.{parsed.command}")
    return guarded(f"pipeplan {parsed.command}", lambda: command.run(parsed))


def guarded(name: str, action: object) -> int:
    """Run a command; every foreseen error becomes one line on stderr and its exit code."""
    assert callable(action)
    try:
        code = action()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except ValueError as error:
        text = " ".join(str(error).split())
        print(f"{name}: {text}", file=sys.stderr)
        return _exit_code(error)
    return int(code or OK)


def _exit_code(error: ValueError) -> int:
    from experiments.output import InputError
    from hardware_profiles import ProfileError, UnknownProfileError
    from planners import PlannerFailedError
    from simulator import InfeasiblePlanError, WorkloadFileError

    if isinstance(error, InfeasiblePlanError):
        return INFEASIBLE
    if isinstance(error, PlannerFailedError):
        return FAILURE
    if isinstance(error, UnknownProfileError):
        return USAGE
    if isinstance(error, (InputError, ProfileError, WorkloadFileError)):
        return BAD_FILE
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
