"""Command line: `pipeplan COMMAND`. Parsers only; a command's module is imported when it is called."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from importlib import import_module

from experiments.terminal.exits import OK, USAGE, Parser, guarded

COMMANDS: dict[str, str] = {
    "compare": "plan with every applicable planner, replay each plan, and print and draw the comparison",
    "plan": "search one plan and print it",
    "simulate": "replay one schedule on numbers, or a plan from its file",
    "whatif": "replay a plan under other values of its problem, machine or stack, and plan anew",
    "view": "write a page that shows plans: timelines, memory, what ops wait for, decisions",
    "explain": "tell why the devices of a plan are idle, and what would make it faster",
    "sensitivity": "replay a plan against each of its machine's numbers, and tell what its layers are bound by",
    "goodput": "tell what days of training on servers that fail are spent on, and how often to save",
    "sweep": "ask a question at every point of a grid, keep the answers, and report them",
    "train": "train a real network under the weight versions of a method's timeline",
    "profile": "measure a PyTorch model layer by layer and write a profile that planners read",
    "export": "write a plan for other tools: Chrome trace, torch CSV, text",
    "list": "list workloads, accelerators, clusters, stacks, schedules and planners",
    "study": "list the experiments, or run one",
    "calibrate": "fit the constants of a stack to measured iterations",
    "check": "check a profile file or a bundled one by name, or print the JSON Schema of one",
    "show": "print the file of an accelerator, a cluster or a stack by name, to be copied",
}
"""Subcommands and their one-line help; each lives in `experiments.commands.<name>_command`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `pipeplan`; returns the exit code.

    arguments: words of the command; None for those of this process, which then ends with the command
    """
    if arguments is None:
        gc.set_threshold(
            50_000
        )  # imports and replays make many objects that stay, and few cycles: 0.1 s, and no more memory
        atexit.register(gc.freeze)  # no search for cycles in memory that is given back anyway: 0.2 s after a replay
    words = sys.argv[1:] if arguments is None else list(arguments)
    known = words[:1] if words and words[0] in COMMANDS else []
    return guarded(" ".join(["pipeplan", *known]), lambda: _run(words), own=arguments is None)


def _run(words: list[str]) -> int:
    parser = Parser(
        prog="pipeplan",
        description="Simulate and plan pipeline-parallel DNN training on GPU and FPGA clusters.",
        epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 no plan fits, 4 bad input file, 130 interrupted (SIGINT, SIGTERM), "
        "141 the output's reader has gone.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    named = words[0] if words and words[0] in COMMANDS else None
    for name, text in COMMANDS.items():
        description = text[0].upper() + text[1:] + "."
        subparser = commands.add_parser(name, help=text, description=description)
        if name == named:
            import_module(f"experiments.commands.{name}_command").add_arguments(subparser)
    _check_command(parser, words)
    parsed, unread = parser.parse_known_args(words)
    (commands.choices[named] if named else parser).refuse_unread(unread)
    if parsed.version:
        from importlib.metadata import version

        print(f"pipeplan {version('pipeplan')}")
        return OK
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    code: int | None = import_module(f"experiments.commands.{parsed.command}_command").run(parsed)
    return code or OK


def _check_command(parser: Parser, words: list[str]) -> None:
    """End with a line about a first word that is no command; an option of the program goes alone."""
    first = words[0] if words else "--help"
    if not first.startswith("-") and first not in COMMANDS:
        from hardware_profiles import unchosen

        parser.error(unchosen("command", first, COMMANDS))
    if first.startswith("-") and first not in ("-h", "--help", "--version"):
        parser.error(f"a command stands before its options, got {first} first; choices: {', '.join(COMMANDS)}")


if __name__ == "__main__":
    sys.exit(main())
