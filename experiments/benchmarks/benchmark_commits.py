"""Benchmark of two commits: how many times the CPU seconds of the new one the old one takes, measured in one run.

Each commit is checked out into a temporary worktree. Its own command line runs there with this interpreter: two benchmarks whose
rates are read from their documents, and two plans, whose process is timed. Rounds alternate which commit goes first. A ratio
belongs to a round; what is told is the median of the rounds, with the least and the most.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from experiments.benchmarks.timing import children_seconds
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.output import UsageError, tracked
from experiments.terminal.report_tables import ReportTable
from hardware_profiles import shown

STUDIES: dict[str, tuple[str, ...]] = {
    "evaluator-speed": ("study", "evaluator-speed", "--json", "--seconds"),
    "replay-speed": ("study", "replay-speed", "--json"),
}
"""Benchmarks that tell rates; the first takes the CPU seconds of each of its figures."""

PLANS: dict[str, tuple[str, ...]] = {
    "plan vgg16": ("plan", "--json", "--workload", "vgg16", "--cluster", "pipedream-b", "--batch", "1024"),
    "plan gpt2-xl": (
        *("plan", "--json", "--workload", "gpt2-xl", "--cluster", "dgx-a100:1", "--batch", "64"),
        *("--precision", "fp16", "--optimizer", "adam"),
    ),
}
"""Plans by the planner that `pipeplan plan` takes where none is named."""

PACKAGES = ("experiments", "planners", "simulator", "hardware_profiles")

SECONDS, QUICK_SECONDS = "0.5", "0.05"
"""CPU seconds of each figure of evaluator-speed."""

Seconds = dict[tuple[str, str], float]
"""CPU seconds of a round by benchmark and figure: of one evaluation or op, or of one plan."""


def run(arguments: argparse.Namespace) -> Findings:
    """Check out both commits and measure them in turn."""
    repository = checkout_of(arguments.repository)
    hashes = [commit_of(repository, name) for name in (arguments.old, arguments.new)]
    commands = commands_of(quick=arguments.quick)
    with worktrees(repository, hashes) as trees:
        for tree in trees:
            for name in PLANS:
                run_in(tree, commands[name])  # compiles what the plan needs
        turns = range(1 if arguments.quick else arguments.rounds)
        rounds = [measured_round(trees, commands, turn) for turn in tracked("measuring", turns, str)]
    named = zip(("old", "new"), (arguments.old, arguments.new), hashes, strict=True)
    head = {which: {"name": name, "commit": commit} for which, name, commit in named}
    return Findings({**head, "rounds": len(rounds), **compared(rounds)}, print_document)


def commands_of(*, quick: bool) -> dict[str, tuple[str, ...]]:
    """Words of `pipeplan` by benchmark; quick: without the engines, whose largest replays take most of the time."""
    first, *others = STUDIES.items()
    timed = {first[0]: (*first[1], QUICK_SECONDS if quick else SECONDS)}
    return {**timed, **({} if quick else dict(others)), **PLANS}


def checkout_of(folder: Path) -> Path:
    """The top folder of the git checkout that a folder is in; UsageError for any other folder."""
    done = git(folder, "rev-parse", "--show-toplevel") if os.path.isdir(folder) else None
    if done is None or done.returncode:
        raise UsageError(f"--repository: {shown(str(folder))} must be a folder of a git checkout")
    return Path(done.stdout.rstrip("\n"))


def commit_of(repository: Path, name: str) -> str:
    """The hash of a commit; UsageError for a name that is none."""
    done = git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if done.returncode:
        raise UsageError(f"commit {shown(name)} does not exist in {repository}")
    return done.stdout.strip()


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Git in a folder, whatever repository the environment names; UsageError where it is not installed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, env=environment)
    except FileNotFoundError:
        raise UsageError("git must be installed to check out commits") from None


@contextmanager
def worktrees(repository: Path, hashes: Sequence[str]) -> Iterator[list[Path]]:
    """A temporary worktree of each commit; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="pipeplan-commits-") as folder:
        trees = [Path(folder) / which for which in ("old", "new")]
        try:
            for tree, commit in zip(trees, hashes, strict=True):
                check_out(repository, tree, commit)
            yield trees
        finally:
            for tree in trees:
                git(repository, "worktree", "remove", "--force", str(tree))


def check_out(repository: Path, tree: Path, commit: str) -> None:
    """Make a worktree of a commit; UsageError where git cannot, and where it lacks a package, which Python would then take from
    where pipeplan is installed."""
    done = git(repository, "worktree", "add", "--detach", str(tree), commit)
    if done.returncode:
        raise UsageError(f"commit {commit} cannot be checked out: {last_line(done.stderr)}")
    missing = [name for name in PACKAGES if not (tree / name / "__init__.py").is_file()]
    if missing:
        raise UsageError(f"commit {commit} is not one of pipeplan: it has no package {', '.join(missing)}")


def measured_round(trees: Sequence[Path], commands: Mapping[str, Sequence[str]], turn: int) -> list[Seconds]:
    """Every benchmark in the old and the new worktree; in odd turns the new one goes first."""
    found: list[Seconds] = [{}, {}]
    for name, command in commands.items():
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            document, seconds = run_in(trees[which], command)
            figures = {"whole process": seconds} if name in PLANS else seconds_of_rates(document)
            found[which].update({(name, figure): value for figure, value in figures.items()})
    return found


def run_in(tree: Path, words: Sequence[str]) -> tuple[dict[str, Any], float]:
    """The JSON document of a `pipeplan` command in a worktree, and the CPU seconds of its process; UsageError where it fails."""
    before = children_seconds()
    command = [sys.executable, "-m", "experiments.cli", *words]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree, env=environment)
    seconds = children_seconds() - before
    said = f"{' '.join(words)}: in the {tree.name} commit"
    if done.returncode:
        raise UsageError(f"{said} it ended with exit code {done.returncode}: {last_line(done.stderr)}")
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise UsageError(f"{said} it must print one JSON object")
    return document, seconds


def last_line(text: str) -> str:
    """What a program said last."""
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def seconds_of_rates(document: Mapping[str, Any]) -> dict[str, float]:
    """CPU seconds per evaluation or op, of every rate of a document and of its rows, which say their shape."""
    rows = [("", document)]
    rows += [(" {devices}x{microbatches}".format_map(row), row) for row in document.get("rows", ()) if "devices" in row]
    return {
        f"{name}{shape}": 1.0 / rate
        for shape, row in rows
        for name, rate in row.items()
        if "per_second" in name and isinstance(rate, int | float) and rate > 0
    }


def compared(rounds: Sequence[Sequence[Seconds]]) -> dict[str, Any]:
    """Ratios of the figures that both commits have in every round, and of each benchmark the geometric mean of its figures."""
    everywhere = [set(one) for pair in rounds for one in pair]
    common, every = set.intersection(*everywhere), set.union(*everywhere)
    figures = [key for key in rounds[0][0] if key in common]
    ratios = {key: [old[key] / new[key] for old, new in rounds] for key in figures}
    benchmarks = {name: [ratios[key] for key in figures if key[0] == name] for name, _ in figures}
    return {
        "benchmarks": [
            {
                "benchmark": name,
                "figures": len(held),
                **spread([geometric_mean(one) for one in zip(*held, strict=True)]),
            }
            for name, held in benchmarks.items()
        ],
        "rows": [
            {
                "benchmark": key[0],
                "figure": key[1],
                "old_cpu_seconds": median(old[key] for old, _ in rounds),
                "new_cpu_seconds": median(new[key] for _, new in rounds),
                **spread(ratios[key]),
            }
            for key in figures
        ],
        "in_one_commit_alone": [" ".join(key) for key in sorted(every - common)],
    }


def spread(ratios: Sequence[float]) -> dict[str, float]:
    """The median ratio of CPU seconds, old over new, with the least and the most."""
    return {"ratio": median(ratios), "least_ratio": min(ratios), "most_ratio": max(ratios)}


RATIO = {"old / new": "{ratio:.3f}", "least": "{least_ratio:.3f}", "most": "{most_ratio:.3f}"}
TABLES = (
    ReportTable(
        "CPU seconds of {old[name]} over those of {new[name]}: above 1 the new commit is faster (rounds: {rounds})",
        "benchmarks",
        {"benchmark": "{benchmark}", **RATIO, "figures": "{figures}"},
    ),
    ReportTable(
        "By figure: CPU seconds of one evaluation, op or plan",
        "rows",
        {
            "benchmark": "{benchmark}",
            "figure": "{figure}",
            **RATIO,
            "old s": "{old_cpu_seconds:.4g}",
            "new s": "{new_cpu_seconds:.4g}",
        },
    ),
)


def print_document(document: Mapping[str, Any]) -> None:
    """A row per benchmark, then a row per figure."""
    for table in TABLES:
        table.print(document)
    for name in document["in_one_commit_alone"]:
        print(f"measured in one commit alone: {name}")


if __name__ == "__main__":
    sys.exit(run_study("benchmark-commits"))
