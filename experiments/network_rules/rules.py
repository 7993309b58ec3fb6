"""Network rules: the seconds of the same plans on links that are free, first come, first served, or shared fairly.

Plans are drawn at random, the same for every rule: how many stages of contiguous layers, cut near equal work, each on as many
devices, which are in order in half of the plans and shuffled in the others; micro-batches and schedule, too.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, Literal

import numpy as np

from experiments.terminal.output import tracked
from experiments.truth.errors import kendall, regret
from hardware_profiles import Floats, Precision, load_cluster
from simulator import (
    InfeasiblePlanError,
    Plan,
    Problem,
    divisors,
    equal_microbatches,
    load_workload,
    simulate,
    stages_from_cuts,
)

Rule = Literal["free", "fifo", "fair"]
RULES: tuple[Rule, ...] = ("free", "fifo", "fair")
"""Links that nothing queues on; first come, first served; max-min fair between pairs of devices."""

SCHEDULES = "gpipe", "1f1b"

MOST_MICROBATCHES = 32

QUESTIONS: tuple[tuple[str, str, int, int], ...] = (
    ("gnmt8", "pipedream-a", 16, 512),
    ("vgg16", "pipedream-a", 8, 256),
    ("resnet50", "pipedream-b", 16, 512),
    ("gnmt16", "pipedream-c", 4, 128),
    ("bert-large", "dapple-b", 8, 64),
    ("vgg19", "dapple-a", 16, 256),
    ("gpt2-medium", "dgx-1-v100", 8, 32),
    ("gpt2-large", "dgx-a100:2", 16, 64),
    ("resnet50", "fpga-vcu118-4", 4, 64),
    ("gpt2-medium", "tpu-v5p", 16, 64),
)
"""Workload, cluster, its first devices, and samples per iteration."""


@dataclass(frozen=True, slots=True)
class RuleEffort:
    """How many questions are asked, and how many plans are drawn for each."""

    questions: int
    plans: int


FULL = RuleEffort(len(QUESTIONS), 60)
QUICK = RuleEffort(8, 12)

SEED = 20261129


def problem_of(workload: str, cluster: str, devices: int, batch: int) -> Problem:
    """A question without a rule, in fp32, or bf16 where its devices have no fp32."""
    here = load_cluster(cluster).take(devices)
    precision: Precision = "fp32" if "fp32" in here.precisions else "bf16"
    return Problem(load_workload(workload), here, batch, precision=precision)


def under(problem: Problem, rule: Rule) -> Problem:
    """The problem with links of a rule."""
    return replace(problem, contention=False) if rule == "free" else replace(problem, contention=True, sharing=rule)


def drawn_plans(problem: Problem, count: int, rng: np.random.Generator) -> list[Plan]:
    """So many different plans at random."""
    found: dict[Plan, None] = {}
    while len(found) < count:
        found[_drawn(problem, rng)] = None
    return list(found)


def _drawn(problem: Problem, rng: np.random.Generator) -> Plan:
    devices, layers = len(problem.cluster.devices), len(problem.workload)
    stages = int(rng.choice([one for one in divisors(devices) if one <= layers]))
    order = rng.permutation(devices) if rng.random() < 0.5 else np.arange(devices)
    held = np.sort(order.reshape(stages, -1), axis=1).tolist()
    microbatches = [one for one in divisors(problem.batch * stages // devices) if one <= MOST_MICROBATCHES]
    return Plan(
        "drawn",
        str(rng.choice(SCHEDULES)),
        stages_from_cuts(_cuts(problem, rng.uniform(0.6, 1.4, stages)), layers, held),
        equal_microbatches(problem.batch, int(rng.choice(microbatches))),
    )


def _cuts(problem: Problem, shares: Floats) -> list[int]:
    """Where stages end that have these shares of the work, or nearly, and a layer at least."""
    work = np.cumsum([layer.flop for layer in problem.workload.layers])
    wanted = np.searchsorted(work, work[-1] * shares.cumsum()[:-1] / shares.sum()).tolist()
    cuts, last = list[int](), 0
    for place, cut in enumerate(wanted):
        last = min(max(cut, last + 1), len(work) - (len(shares) - 1 - place))
        cuts.append(last)
    return cuts


def measure(effort: RuleEffort) -> dict[str, Any]:
    """A row per question and pair of rules: how alike they rank the plans, and what the choice under the first loses under the
    second; and the seconds of every plan.
    """
    rows: list[dict[str, Any]] = []
    questions = []
    for question in tracked("replaying", QUESTIONS[: effort.questions], lambda one: f"{one[0]} on {one[1]}"):
        problem = problem_of(*question)
        name = f"{question[0]}, {question[1].partition(':')[0]} × {question[2]}"
        seconds = seconds_of(problem, drawn_plans(problem, effort.plans, np.random.default_rng(SEED)))
        questions.append({"question": name, "plans": len(seconds["free"]), "seconds": seconds})
        for one, other in permutations(RULES, 2):
            pair = {"question": name, "chosen_under": one, "judged_under": other}
            rows.append(pair | compared(seconds[one], seconds[other]))
    return {"plans": effort.plans, "rows": rows, "questions": questions}


def seconds_of(problem: Problem, plans: list[Plan]) -> dict[str, list[float]]:
    """Seconds per iteration of every plan that can run, by rule."""
    problems = [under(problem, rule) for rule in RULES]
    found: dict[str, list[float]] = {rule: [] for rule in RULES}
    for plan in plans:
        with suppress(InfeasiblePlanError):
            replays = [simulate(one, plan, engine="compiled", bounded=False) for one in problems]
            for rule, replay in zip(RULES, replays, strict=True):
                found[rule].append(replay.iteration_seconds)
    return found


def compared(first: list[float], second: list[float]) -> dict[str, float | None]:
    """Kendall's rank agreement of two rules' seconds, the median by which the second is longer, and what the plan that is the
    fastest under the first loses under the second.
    """
    longer = np.median(np.array(second) / np.array(first))
    return {
        "kendall": kendall(first, second),
        "longer": float(longer) - 1.0,
        "regret": regret(second, first),
    }
