"""Command line: `pipeplan COMMAND`. Parsers only; a command's module is imported when it is called."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from importlib import import_module

from experiments.terminal.command_parser import Parser
from experiments.terminal.exits import OK, USAGE, guarded

SHELLS = ("bash", "zsh", "tcsh", "fish")
"""Those whose completion is printed."""

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
    "data": "list the public inputs that studies read, and check a folder of them",
    "calibrate": "fit the constants of a stack to measured iterations",
    "check": "check a profile file or a bundled one by name, or print the JSON Schema of one",
    "show": "print the file of an accelerator, a cluster or a stack by name, to be copied",
}
"""Subcommands and their one-line help; each lives in `experiments.commands.<name>_command`."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "compare": (
        "--workload llama2-7b --cluster dgx-a100:4 --batch 256 --out out/compare",
        "--workload vgg16 --cluster pipedream-b --planner joint --planner pipedream",
    ),
    "plan": (
        "--workload llama2-7b --cluster dgx-h100:4 --batch 256 --report --out plan.json",
        "--workload gpt2 --cluster dgx-a100 --batch 64 --tensor 1,2 --zero 1 --launchable megatron",
    ),
    "simulate": (
        "--schedule 1f1b --stages 4 --microbatches 8 --forward 1 --backward 2 --gantt timeline",
        "--plan plan.json --cluster dgx-h100:2",
    ),
    "whatif": ("--plan plan.json --set network.bandwidth_gbps=200 --set accelerator.tflops_bf16=+10%",),
    "explain": ("--plan plan.json",),
    "sensitivity": ("--plan plan.json --out tornado.png",),
    "goodput": (
        "--plan plan.json --mtbf 50000 --per device --checkpoint-seconds 10 --restart-seconds 600 --spares 2 --replan greedy",
    ),
    "view": ("--plan plan.json --plan other.json --out report.html",),
    "sweep": (
        "--workload gpt2 --over 'cluster=dgx-a100:{1,2,4}' --over batch=64:1024:x2 --out gpt2.db",
        "study.toml --out study.db",
        "report study.db --out figures",
    ),
    "train": ("--method 2bw --stages 4",),
    "profile": ("package.module:make_model --input 3,224,224 --out profile.json",),
    "export": ("--plan plan.json --to megatron", "--plan plan.json --format chrome-trace --out trace.json"),
    "list": ("planners", "clusters --json"),
    "study": ("", "published-layouts --out out/layouts"),
    "data": ("", "sailor --from sailor-checkout"),
    "calibrate": ("--plan plan.json --measured 12.4 --out my-stack.toml",),
    "check": ("mine.toml", "dgx-h100"),
    "show": ("dgx-h100 > mine.toml",),
}
"""Words behind a subcommand that its help shows."""

FILES = ("FILE", "STORE", "STUDY", "DIR", "FOLDER")
"""Metavars whose values are paths."""


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
    parser, commands = parser_of(words[:1])
    _check_command(parser, words)
    parsed, unread = parser.parse_known_args(words)
    (commands[words[0]] if words and words[0] in COMMANDS else parser).refuse_unread(unread)
    if parsed.version:
        from importlib.metadata import version

        print(f"pipeplan {version('pipeplan')}")
        return OK
    if parsed.completion is not None:
        print(_completion(parsed.completion))
        return OK
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    import_module("experiments.terminal.argument_types").check_written(parsed)
    with import_module("experiments.terminal.output").quiet() if parsed.quiet else nullcontext():
        code: int | None = import_module(f"experiments.commands.{parsed.command}_command").run(parsed)
    return code or OK


def parser_of(named: Collection[str]) -> tuple[Parser, dict[str, Parser]]:
    """The parser of the program, and those of its commands, of which the named ones have their arguments."""
    parser = Parser(
        prog="pipeplan",
        description="Simulate and plan pipeline-parallel DNN training on GPU and FPGA clusters.",
        epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 no plan fits, 4 bad input file, 130 interrupted (SIGINT, SIGTERM), "
        "141 the output's reader has gone.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument(
        "--completion", metavar="SHELL", help=f"print what completes commands and options: {', '.join(SHELLS)}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, text in COMMANDS.items():
        description = text[0].upper() + text[1:] + "."
        subparser = commands.add_parser(name, help=text, description=description, examples=EXAMPLES[name])
        if name in named:
            import_module(f"experiments.commands.{name}_command").add_arguments(subparser)
            subparser.add_argument("--quiet", action="store_true", help="say nothing of progress on stderr")
    return parser, dict(commands.choices)


def _completion(shell: str) -> str:
    """The script of shtab that completes commands, options and files in a shell."""
    import shtab

    from experiments.terminal.argument_types import check_choice

    check_choice("--completion", shell, SHELLS)
    parser, commands = parser_of(COMMANDS)
    for action in (action for command in commands.values() for action in command._actions):
        if action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _check_command(parser: Parser, words: list[str]) -> None:
    """End with a line about a first word that is no command; an option of the program goes alone."""
    first = words[0] if words else "--help"
    if not first.startswith("-") and first not in COMMANDS:
        from hardware_profiles import unchosen

        parser.error(unchosen("command", first, COMMANDS))
    if first.startswith("-") and first not in ("-h", "--help", "--version", "--completion"):
        parser.error(f"a command stands before its options, got {first} first; choices: {', '.join(COMMANDS)}")


if __name__ == "__main__":
    sys.exit(main())
