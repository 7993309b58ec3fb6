"""Behaviour: seconds, memory, plans and proofs of a fixed set of problems, to be compared between two commits, to the bit.

    python -m tests.behaviour record before.jsonl               # in one checkout (--count N, --only PART)
    python -m tests.behaviour record after.jsonl                # in another one
    python -m tests.behaviour compare before.jsonl after.jsonl  # exit code 1 where any answer is another

It uses the face alone, so that it runs in any commit whose face has these names. Each line is one case: the case's own seed makes
it, so that a longer set begins with the shorter one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pipeplan as pp

CASES = 360
"""Cases of a set: three in four are planned, one in four is a schedule on numbers."""

SMALL = ("chain:5", "chain:9", "alexnet", "vgg16", "resnet50", "gnmt8", "bert-base", "gpt2")
"""Workloads of all planners."""

LARGE = ("gpt2-xl", "bert-large", "llama2-7b", "llama3-8b", "gpt3-13b", "mixtral-8x7b")
"""Workloads of planners of large models."""

CLUSTERS = ("pipedream-a:1", "pipedream-b:1", "dapple-b:4", "dapple-c:4", "dgx-a100:1", "fpga-vcu118-4", "sailor-mit-2")

LARGE_CLUSTERS = ("dgx-a100:2", "dgx-h100:4", "sailor-gcp-24")

OF_LARGE = ("large", "mixed", "pipeline-data", "modern")
"""Planners that are asked for large models, too."""


def problem_of(choose: random.Random, large: bool) -> pp.Problem:
    """A random problem."""
    cluster = choose.choice(LARGE_CLUSTERS if large else CLUSTERS)
    workload = choose.choice(LARGE if large else SMALL)
    fpga, blocks = cluster.startswith("fpga"), large or workload in ("bert-base", "gpt2")
    return pp.Problem(
        workload,
        cluster,
        batch=choose.choice((64, 128)) if large else choose.choice((4, 8, 12, 16)),
        precision="int8"
        if fpga
        else choose.choice(("bf16", "fp16") if cluster.startswith("dgx") else ("fp32", "fp16")),
        optimizer=choose.choice(("sgd", "momentum", "adam")),
        recompute=choose.choice(("none", "none", "blocks" if blocks else "none", "whole")),
        gradient_reduction=choose.choice(("buckets", "whole")),
        contention=choose.random() < 0.8,
    )


def wanted_of(choose: random.Random) -> dict[str, Any]:
    """What the plan must have."""
    asked: dict[str, Any] = {}
    if choose.random() < 0.25:
        asked["microbatches"] = choose.choice((2, 4))
    if choose.random() < 0.15:
        asked["stages"] = choose.choice((1, 2, 4))
    return asked


def planned(choose: random.Random) -> tuple[str, dict[str, Any]]:
    """The answer of one planner for one problem, and what it was asked; or why there is none."""
    planner = choose.choice(pp.names("planners"))
    large = planner in OF_LARGE and choose.random() < 0.6
    problem, wanted = problem_of(choose, large), wanted_of(choose)
    case = f"{planner}: {problem.workload.name} on {problem.cluster.name}, {problem.batch}, {wanted}"
    try:
        result = pp.plan(problem, planner, budget=3000, **wanted)
    except Exception as error:  # the answer is why
        return case, {"error": f"{type(error).__name__}: {error}"}
    outcome = result.outcome
    return case, {
        "seconds": float(result.iteration_seconds).hex(),
        "bound": None if result.bound is None else float(result.bound).hex(),
        "peaks": [int(one.peak_bytes) for one in outcome.memory],
        "proof": str(result.proof),
        "plan": dataclasses.asdict(result.plan),
    }


def replayed(choose: random.Random) -> tuple[str, dict[str, Any]]:
    """A schedule on numbers."""
    schedule = choose.choice(pp.names("schedules"))
    stages, microbatches = 2 * choose.randint(1, 4), 2 * choose.randint(1, 8)
    numbers: dict[str, Any] = {
        "forward": [choose.randint(1, 9) for _ in range(stages)],
        "backward": [choose.randint(1, 9) for _ in range(stages)],
        "weight": choose.choice((0, 3)),
        "transfer": choose.choice((0, 0.5)),
    }
    case = f"{schedule}: {stages} stages, {microbatches} micro-batches, {numbers}"
    try:
        result = pp.simulate(schedule, stages=stages, microbatches=microbatches, **numbers)
    except Exception as error:  # the answer is why
        return case, {"error": f"{type(error).__name__}: {error}"}
    return case, {"answer": result.record()}


def answers(count: int, only: str | None) -> Iterator[dict[str, Any]]:
    """Each case with its answer."""
    for seed in range(count):
        choose = random.Random(seed)
        case, answer = (replayed if seed % 4 == 3 else planned)(choose)
        if only is None or only in case:
            yield {"seed": seed, "case": case, **answer}


def compare(before: Path, after: Path) -> int:
    """Print the cases whose answers are not the same; 1 if there are any."""
    old, new = (
        {line["seed"]: line for line in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
        for path in (before, after)
    )
    both = sorted(old.keys() & new.keys())
    other = [seed for seed in both if old[seed] != new[seed]]
    for seed in other:
        keys = sorted(key for key in {*old[seed], *new[seed]} if old[seed].get(key) != new[seed].get(key))
        print(f"{seed} {old[seed]['case']}")
        for key in keys:
            print(f"  {key}\n    before {old[seed].get(key)}\n    after  {new[seed].get(key)}")
    print(f"{len(both) - len(other)} of {len(both)} cases the same; {len(old)} before, {len(new)} after")
    return int(bool(other) or old.keys() != new.keys())


def main() -> int:
    """The two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=CASES)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    if arguments.what == "compare":
        return compare(*arguments.files)
    with arguments.files[0].open("w", encoding="utf-8") as out:
        for answer in answers(arguments.count, arguments.only):
            out.write(json.dumps(answer) + "\n")
            out.flush()
            print(answer["seed"], answer["case"][:100], file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
