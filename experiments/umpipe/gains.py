"""Gains of unequal micro-batches: every setting, the published figures beside them, and the report that is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.terminal.output import progress
from experiments.umpipe.memory_fronts import memory_fronts
from experiments.umpipe.search_comparison import COMPILED_FORM, MATRIX_FORM, Instance, exact, search_all
from experiments.umpipe.system_baselines import Partitions, gains_over
from experiments.unequal_sizes.random_tables import FAMILIES, random_problem
from hardware_profiles import load_cluster
from planners import Request, make_plan
from planners.unequal import (
    FoundSizes,
    InfeasibleSizes,
    UnequalProblem,
    balanced_problem,
    one_size,
    powers_of_two,
    tables_of,
)
from simulator import Problem, load_workload

Row = dict[str, Any]

PUBLISHED = {
    ("gpt-14", "gpipe"): 0.1389,
    ("gpt-14", "pipedream"): 0.1109,
    ("vgg16", "gpipe"): 0.1711,
    ("vgg16", "pipedream"): 0.0796,
    ("simulation", "gpipe"): 1.70,
    ("simulation", "pipedream"): 1.00,
}
"""Gains in training speed of the abstract; of the simulation networks "at least"."""

PRIMARY = {"gpipe": "gpipe tuned", "pipedream": "pipedream tuned"}
"""The reading of each baseline that is compared with the published figures: the system as published, at its best."""

NETWORKS = ("gpt-14", "vgg16")
CLUSTERS = (
    "dapple-a",
    "dapple-b",
    "dapple-c",
    "dgx-a100",
    "dgx-h100",
    "pipedream-a",
    "pipedream-b",
    "pipedream-arxiv-a",
    "pipedream-arxiv-b",
)
QUICK_CLUSTER = "dgx-a100"
STAGES, BATCHES, COUNTS = (4, 8), (32, 64), (4, 8, 16, 32)
QUICK_GENERATIONS = 20
NEAR = 0.015
"""A gain within this of a published one (1.5 percentage points; of gains above 10 %, 15 % of them) agrees with it."""

RANDOM_TARGETS = np.arange(0.0, 0.3, 1e-4)
"""Gains that a paper might have published: how many of them does a list of readings match?"""


@dataclass(frozen=True, slots=True, eq=False)
class GainCase:
    """One setting: its problem, UMPIPE's optimum, the tuned GPipe's problem and plan, and gains by reading of the baselines."""

    network: str
    setting: str
    problem: UnequalProblem
    plan: FoundSizes
    gpipe_problem: UnequalProblem
    gpipe: FoundSizes
    gains: Mapping[str, float]


def network_cases(networks: Sequence[str], clusters: Sequence[str], batches: Sequence[int]) -> list[GainCase]:
    """The cases of networks whose layers are modelled; settings that do not fit into memory are left out."""
    cases = []
    for name, cluster, stages, batch, recompute in product(networks, clusters, STAGES, batches, (True, False)):
        problem = Problem(load_workload(name), load_cluster(cluster), batch, recompute="whole" if recompute else "none")
        setting = f"{cluster}, K={stages}, B={batch}, {'recomputed' if recompute else 'stored'}"
        with suppress(InfeasibleSizes):
            cases.append(network_case(name, setting, problem, stages))
    return cases


def network_case(network: str, setting: str, problem: Problem, stages: int) -> GainCase:
    """UMPIPE and its baselines on one problem; InfeasibleSizes where it does not fit."""
    tables = tables_of(problem, tuple(range(stages)))
    return case(network, setting, Partitions(balanced_problem(tables)[1], tables))


def case(network: str, setting: str, partitions: Partitions) -> GainCase:
    """One case; KeyboardInterrupt where its search was interrupted: half a search is no figure."""
    problem = partitions.problem
    plan = exact(problem)
    gains = gains_over(partitions, COUNTS, plan.makespan_seconds + problem.fixed_seconds)
    gpipe, size = partitions.gpipe(problem.candidates)
    return GainCase(network, setting, problem, plan, gpipe, one_size(gpipe, size), gains)


def simulation_cases(instances: int) -> list[GainCase]:
    """Random tables of every family, 8 stages and 64 samples, candidates powers of two and all sizes."""
    cases = []
    candidates = {"powers of two": powers_of_two(64), "all sizes": tuple(range(1, 65))}
    for family, (words, sizes), seed in product(FAMILIES, candidates.items(), range(instances)):
        problem = random_problem(np.random.default_rng(seed), family, 8, 64, sizes)
        cases.append(case("simulation", f"{family}, K=8, B=64, {words}", Partitions(problem)))
    return cases


def mean_gains(cases: Sequence[GainCase]) -> list[Row]:
    """A row a setting: gains by reading; of several instances of one setting, the gain over the mean of ratios."""
    grouped: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for one in cases:
        grouped.setdefault((one.network, one.setting), []).append(one.gains)
    return [
        {"network": network, "setting": setting}
        | {"gains": {name: float(np.mean([gains[name] for gains in group])) for name in group[0]}}
        for (network, setting), group in grouped.items()
    ]


def gains_by_reading(rows: Sequence[Mapping[str, Any]], network: str) -> dict[str, list[float]]:
    """Reading -> gains over all settings of a network, of rows of `mean_gains`."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["network"] == network:
            for name, gain in row["gains"].items():
                found.setdefault(name, []).append(gain)
    return found


def tolerance(published: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """How near a gain must come to a published one to agree with it."""
    return NEAR * np.maximum(1.0, 10.0 * np.asarray(published))


def reproductions(gains: Sequence[Row]) -> list[Row]:
    """For each published figure: the one reading that is compared with it, over all settings; the others apart.

    gains: rows of `mean_gains`
    The others are many: of targets drawn at random they match the share `others_match_random_targets` within the same tolerance.
    """
    rows = []
    for (network, system), published in PUBLISHED.items():
        found = gains_by_reading(gains, network)
        every = {name: values for name, values in found.items() if name.split(" ")[0] == system}
        if PRIMARY[system] not in every:
            continue
        primary = np.array(every.pop(PRIMARY[system]))
        others = np.array([gain for values in every.values() for gain in values])
        mean = float(primary.mean())
        agrees = mean >= published if network == "simulation" else abs(mean - published) <= tolerance(published)
        far = np.abs(others[None, :] - RANDOM_TARGETS[:, None]).min(axis=1, initial=np.inf)
        rows.append(
            {
                "network": network,
                "system": system,
                "published": published,
                "reading": PRIMARY[system],
                "settings": len(primary),
                "mean": mean,
                "standard_deviation": float(primary.std(ddof=1)) if len(primary) > 1 else 0.0,
                "least": float(primary.min()),
                "most": float(primary.max()),
                "agrees": bool(agrees),
                "settings_that_agree": int((np.abs(primary - published) <= tolerance(published)).sum()),
                "others": {name: [min(values), float(np.mean(values)), max(values)] for name, values in every.items()},
                "others_within": int((np.abs(others - published) <= tolerance(published)).sum()),
                "others_count": len(others),
                "others_match_random_targets": float((far <= tolerance(RANDOM_TARGETS)).mean()),
            }
        )
    return rows


@dataclass(slots=True)
class Report:
    """Everything that the command prints and draws, filled section by section."""

    cases: list[GainCase] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    fronts: list[Row] = field(default_factory=list)
    nested: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False

    @property
    def shown(self) -> GainCase | None:
        """The case whose plans are drawn: of VGG-16 with recomputation the one with the largest gain over a tuned GPipe."""
        chosen = [one for one in self.cases if one.network == "vgg16" and "K=8, B=64, recomp" in one.setting]
        return max(chosen, key=lambda one: one.gains[PRIMARY["gpipe"]], default=None)


def measure(quick: bool) -> Report:
    """Run everything; `quick` takes fewer settings, instances and generations. An interrupt ends with what is complete."""
    found = Report()
    with progress("UMPIPE") as report:
        try:
            _measure(found, quick, lambda words: report(0, words))
        except KeyboardInterrupt:
            found.interrupted = True
    return found


def _measure(found: Report, quick: bool, say: Callable[[str], None]) -> None:
    clusters, batches = ((QUICK_CLUSTER,), BATCHES[1:]) if quick else (CLUSTERS, BATCHES)
    for name in NETWORKS:
        for cluster in clusters:
            say(f"gains of {name} on {cluster}")
            found.cases += network_cases((name,), (cluster,), batches)
    say("gains on simulation networks")
    found.cases += simulation_cases(1 if quick else 20)
    for name, problem, generations in _search_instances(found.shown, quick):
        say(f"searches on {name}")
        found.instances.append(search_all(name, problem, generations=generations))
    say("Pareto fronts")
    for name in NETWORKS:
        whole = Problem(load_workload(name), load_cluster("pipedream-b"), 64, recompute="whole")
        tables = tables_of(whole, range(4))
        setting = f"{name} (pipedream-b, K=4, B=64, recomputed)"
        found.fronts += [{"setting": setting, **row} for row in memory_fronts(tables, balanced_problem(tables)[0])]
    say("partition and sizes together")
    for stages in (8,) if quick else (4, 8):
        found.nested.append(nested_search(stages))


def _search_instances(shown: GainCase | None, quick: bool) -> Iterator[tuple[str, UnequalProblem, int]]:
    """Name, problem and generations of the instances on which all searches run."""
    generations = QUICK_GENERATIONS if quick else 100
    if shown is not None:
        yield f"VGG-16 ({shown.setting})", shown.problem, generations
    rng, every = np.random.default_rng(0), tuple(range(1, 65))
    yield "roofline tables (K=8, B=64, all sizes)", random_problem(rng, "roofline", 8, 64, every), generations
    if not quick:
        yield "log-uniform tables (K=8, B=64, all sizes)", random_problem(rng, "log-uniform", 8, 64, every), generations
        # the plain recurrence takes minutes at K=32: there 30 generations
        large = random_problem(rng, "roofline", 32, 512, powers_of_two(512))
        yield "roofline tables (K=32, B=512, powers of two)", large, 30


def nested_search(stages: int) -> dict[str, Any]:
    """VGG-16 with a balanced partition and exact sizes, beside partitions searched together with the sizes."""
    problem = Problem(load_workload("vgg16"), load_cluster("dgx-a100"), 64, recompute="whole")
    found = {}
    for name in ("best-equal", "exact-unequal", "unequal-nested"):
        planned = make_plan(name, problem, Request(stages=stages, options={"candidates": "powers-of-two"}))
        if planned.interrupted:
            raise KeyboardInterrupt
        found[name] = {
            "makespan_seconds": planned.details["makespan_seconds"],
            "first_layers": [stage.layers[0] for stage in planned.plan.stages],
            "forward_sizes": planned.details["stage_forward_samples"],
            "backward_sizes": planned.details["stage_backward_samples"],
            "partitions": planned.details["evaluations"] if name == "unequal-nested" else None,
            "proven_optimal": planned.details["proven_optimal"],
            "planning_seconds": planned.planning_seconds,
        }
    return {"setting": f"vgg16, dgx-a100, K={stages}, B=64, recomputed, powers of two", **found}


def document(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    gains, shown = mean_gains(report.cases), report.shown
    return {
        "interrupted": report.interrupted,
        "gains": gains,
        "published": reproductions(gains),
        "proven_optimal": all(one.plan.proven_optimal for one in report.cases),
        "searches": [
            {
                "instance": one.name,
                "optimum_seconds": one.optimum,
                "tidgap_acceleration_over_dgap": one.acceleration(MATRIX_FORM),
                "compiled_acceleration_over_dgap": one.acceleration(COMPILED_FORM),
                "searches": [
                    {
                        "search": search,
                        "makespan_seconds": plan.makespan_seconds,
                        "above_exact": one.above(search),
                        "evaluations": plan.evaluations,
                        "seconds": plan.seconds,
                        "cpu_seconds": one.cpu_seconds[search],
                    }
                    for search, plan in one.plans.items()
                ],
            }
            for one in report.instances
        ],
        "pareto": report.fronts,
        "nested": report.nested,
        "gantt": None
        if shown is None
        else {
            "setting": shown.setting,
            "unequal": [shown.plan.forward_sizes, shown.plan.backward_sizes],
            "unequal_seconds": shown.plan.makespan_seconds + shown.problem.fixed_seconds,
            "gpipe": shown.gpipe.forward_sizes,
            "gpipe_seconds": shown.gpipe.makespan_seconds + shown.gpipe_problem.fixed_seconds,
        },
    }
