"""Parser of a command: errors in one line, help in a page with examples, the rest of a long one by topic."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any, NoReturn

from experiments.terminal.exits import MOST_CHARACTERS, USAGE, short

PAGE = 60
"""Lines of help, up to which all of it is printed."""

MEANT: Mapping[str, str] = {
    "--workload": "model network arch architecture llm hf",
    "--network": "model arch architecture workload",
    "--cluster NAME:SERVERS, or --devices": "gpus gpu world accelerators ranks",
    "--cluster NAME:SERVERS": "nodes nnodes hosts hardware topology machine system accelerator",
    "--batch": "global-batch gbs train-batch minibatch mini-batch",
    "--microbatches, their number in an iteration": "micro-batch micro-batches microbatch mbs gradient-accumulation-steps "
    "accumulation-steps",
    "--sequence": "seq seqlen seq-len max-seq max-seq-len context-window max-position-embeddings",
    "--tensor": "tp tensor-parallel",
    "--stages": "pp pipeline pipeline-stages",
    "--stages and --tensor; replicas have the other devices": "dp data replicas replicate ddp",
    "--context": "cp ring-attention",
    "--expert": "ep experts moe",
    "--chunks": "vpp vp virtual-pipeline virtual-stages virtual-chunks layers-per-virtual-pipeline-stage interleave",
    "--zero": "fsdp zero-stage sharding distributed-optimizer use-distributed-optimizer",
    "--recompute": "activation-checkpointing gradient-checkpointing checkpoint-activations recompute-activations "
    "recompute-granularity rematerialization remat",
    "--precision": "dtype bf16 fp16 fp8 fp32 amp mixed-precision data-type",
    "--optimizer": "optim adam sgd",
    "--stack": "framework backend software runtime launcher",
    "--planner": "algorithm solver strategy method search",
    "--schedule": "pipeline-schedule sched",
    "--out": "output output-dir outdir out-dir save o",
    "--seconds": "timeout time-limit budget time",
    "--seed": "random-seed rng",
    "--power": "power-cap power-limit max-power watts",
    "--noise": "jitter sigma variance",
    "--straggler": "slow slowdown stragglers",
}
"""What words that other tools have for options are here, the first of which a command has; their usual parts are left out."""

PARTS = {"num", "number", "n", "of", "model", "parallel", "parallelism", "size", "degree", "length", "name"}
"""Words in names of options that say no more than the others: `tensor-model-parallel-size` is `tensor`."""


def meant(option: str, known: Collection[str]) -> str:
    """What an unknown option is among the known ones, by what other tools call it; "" where nobody does.

    known: options with their dashes
    """
    word = option.lstrip("-").lower().replace("_", "-")
    short = "-".join(part for part in word.split("-") if part not in PARTS)
    if f"--{short}" in known:
        return f"--{short}"
    for words in (word, short):
        for hint, others in MEANT.items():
            if words in others.split() and all(one in known for one in re.findall("--[a-z-]+", hint)):
                return hint
    return ""


def _wrapped(text: str, end: str) -> str:
    """Text in lines of 80 columns that `end` separates; an option is not divided, nor parted from its value."""
    joined = re.sub(r"(--\S+) (?=[^-])", "\\1\u00a0", text)
    return end.join(wrap(joined, 72, break_long_words=False, break_on_hyphens=False)).replace("\u00a0", " ")


class _Help(argparse.Action):
    """`--help`, or `--help TOPIC`: prints and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser._print_message(parser.help_on(values), sys.stdout)
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line; options are written out, as the start of one may be another command's."""

    def __init__(self, examples: Sequence[str] = (), **named: Any) -> None:
        """As argparse's, but for abbreviations.

        examples: words behind the program's name, which its help shows
        """
        super().__init__(**{"allow_abbrev": False, **named, "add_help": False})
        self.examples = tuple(examples)
        words = "show this page and exit; where it names topics, one of them, or all"
        self.add_argument(
            "-h", "--help", action=_Help, nargs="?", metavar="TOPIC", help=words, default=argparse.SUPPRESS
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but an option's value is never empty, as a variable of a shell that is not set makes it, an option that
        takes one value is not given two, and an unknown option is told before what is missing.
        """
        words = sys.argv[1:] if args is None else list(args)
        known = self._option_string_actions
        taking = {name for name, action in known.items() if action.nargs != 0}
        for before, word in pairwise(["", *words]):
            option = before if word == "" else word.removesuffix("=")
            if option in taking and option != word:
                self.error(f"option {option} needs a value, got ''")
        if self._subparsers is None and not any(one.nargs == argparse.REMAINDER for one in self._actions):
            said = words[: words.index("--")] if "--" in words else words
            unknown = [one for one in said if one.startswith("--") and one.partition("=")[0] not in known]
            if not {"-h", "--help"} & {*words}:
                self.refuse_unread(unknown)
                self._refuse_second(said)
        return super().parse_known_args(words, namespace)

    def _refuse_second(self, words: Sequence[str]) -> None:
        """End with an option that is given twice, with unlike values, where it takes one: the first would count for nothing."""
        single = {name for name, action in self._option_string_actions.items() if type(action) is argparse._StoreAction}
        values: dict[str, str] = {}
        for begin, word in enumerate(words):
            option, equals, value = word.partition("=")
            if option in single:
                end = next((at for at, one in enumerate(words) if at > begin and one.startswith("--")), len(words))
                end = end if self._option_string_actions[option].nargs else begin + 2
                said = value if equals else " ".join(words[begin + 1 : end])
                if said != values.setdefault(option, said):
                    self.error(f"option {option} is given twice, as {values[option]} and as {said}: it takes one value")

    def refuse_unread(self, words: Sequence[str]) -> None:
        """End with what is wrong with the first of the words that no argument took, if there is one."""
        from hardware_profiles import nearest, shown

        for word in words[:1]:
            option = word.partition("=")[0]
            if not option.startswith("-") or option in self._option_string_actions:  # behind "--"
                self.error(f"{shown(word)} belongs to no option")
            known = [name for name in self._option_string_actions if name.startswith("--")]
            named = meant(option, known)
            hint = f" (did you mean {named}?)" if named else nearest(option, known)
            self.error(f"option {shown(option)} is unknown{hint}")

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(USAGE, f"{self.prog}: {short(message, MOST_CHARACTERS - 60)} (see {self.prog} --help)\n")

    # ---- help ----

    def topics(self) -> dict[str, argparse._ArgumentGroup]:
        """Groups of options beside the command's own, by the word that names each."""
        beside = [group for group in self._action_groups if group not in (self._positionals, self._optionals)]
        return {re.sub(r"\W+", "-", group.title or "").strip("-"): group for group in beside if group._group_actions}

    def help_on(self, topic: str | None) -> str:
        """Help on the command: all of it, or of one topic; without a topic a page, which names the topics of a longer one."""
        whole = self._whole_help()
        if topic == "all" or (topic is None and whole.count("\n") <= PAGE):
            return whole
        if topic is None:
            return self._page()
        if topic not in self.topics():
            from hardware_profiles import unchosen

            self.error(unchosen("topic of help", topic, (*self.topics(), "all")))
        formatter = self._get_formatter()
        self._add(formatter, self.topics()[topic])
        return formatter.format_help()

    def format_help(self) -> str:
        """The page that `--help` prints."""
        return self.help_on(None)

    def _whole_help(self) -> str:
        formatter = self._begun(self.usage)
        for group in self._action_groups:
            self._add(formatter, group)
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _page(self) -> str:
        """What the command does, examples, its own options, and the names of the others."""
        formatter = self._begun("%(prog)s [OPTION …]")
        for group in (self._positionals, self._optionals):
            self._add(formatter, group)
        for topic, group in self.topics().items():
            names = " ".join(action.option_strings[-1] for action in group._group_actions)
            self._add_lines(formatter, f"{group.title} (see --help {topic})", _wrapped(names, "\n  "))
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _begun(self, usage: str | None) -> argparse.HelpFormatter:
        formatter = self._get_formatter()
        formatter.add_usage(usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        if self.examples:
            lines = (_wrapped(f"{self.prog} {words}", " \\\n      ") for words in self.examples)
            self._add_lines(formatter, "examples", "\n  ".join(lines))
        return formatter

    @staticmethod
    def _add_lines(formatter: argparse.HelpFormatter, title: str, text: str) -> None:
        formatter.start_section(title)
        formatter._add_item(lambda: f"  {text}\n", [])
        formatter.end_section()

    @staticmethod
    def _add(formatter: argparse.HelpFormatter, group: argparse._ArgumentGroup) -> None:
        formatter.start_section(group.title)
        formatter.add_text(group.description)
        formatter.add_arguments(group._group_actions)
        formatter.end_section()

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse's, which passes over what cannot be written."""
        (file or sys.stderr).write(message)
