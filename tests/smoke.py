"""Smoke test of an installed package: run by the environment's Python, in an empty folder outside any checkout.

It uses nothing but what is installed: every bundled file loads, the commands of a first visit end well, types reach a checker.
It is no test of pytest's, which would find the checkout.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TYPED = """
from planners import Result, make_plan
from simulator import Problem


def iteration_seconds(problem: Problem) -> float:
    found: Result = make_plan("greedy", problem)
    return found.outcome.iteration_seconds


reveal_type(iteration_seconds)
"""


def run(*words: str, quiet: bool = False) -> str:
    """What a command prints; stops unless it ends well, and, where `quiet`, says nothing on stderr."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode or (quiet and done.stderr):
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def kept_code() -> set[str]:
    """The names of the pieces of compiled code beside the installed modules."""
    return {path.name for path in Path(sys.prefix).rglob("*.nbc")}


def main() -> None:
    """Where the package lies, every bundled file, the commands of a first visit, the code that they compile, the types."""
    here = Path.cwd()
    if any(here.iterdir()):
        sys.exit(f"{here}: must be an empty folder")
    installed = run(sys.executable, "-c", "import pipeplan; print(pipeplan.__file__)").strip()
    if not Path(installed).is_relative_to(sys.prefix):
        sys.exit(f"pipeplan is {installed}, not installed in {sys.prefix}")
    brought = kept_code()
    print(f"{run('pipeplan', '--version').strip()}, {len(brought)} pieces of compiled code")
    listed = json.loads(run("pipeplan", "list", "--json", quiet=True))
    counts = {topic: len(rows) for topic, rows in listed.items()}
    print(counts)
    if min(counts.values()) == 0:
        sys.exit("a topic of `pipeplan list` is empty")
    small = ("--workload", "vgg16", "--cluster", "pipedream-a:1", "--batch", "64")
    run("pipeplan", "plan", *small, "--planner", "pipedream", "--out", "plan.json")
    run("pipeplan", "check", "plan.json")
    replayed = json.loads(run("pipeplan", "simulate", "--plan", "plan.json", "--json"))
    print(f"VGG-16 on four V100: {replayed['iteration_seconds']:.4f} s")
    run("pipeplan", "export", "--plan", "plan.json", "--format", "chrome-trace", "--out", "trace.json")
    run("pipeplan", "compare", *small, "--planner", "greedy", "--planner", "data-parallel", "--out", "compared")
    if not list(Path("compared").glob("*.png")):
        sys.exit("`pipeplan compare` drew nothing")
    run("pipeplan", "plan", *small)
    if compiled := kept_code() - brought:
        sys.exit(
            f"compiled at a first command, which experiments.compile_kernels should: {', '.join(sorted(compiled))}"
        )
    run("pipeplan", "study")
    Path("typed.py").write_text(TYPED, encoding="utf-8")
    if "-> float" not in run(sys.executable, "-m", "mypy", "--strict", "typed.py"):
        sys.exit("types of the installed package do not reach a checker")


if __name__ == "__main__":
    main()
