"""Gains of unequal micro-batches: every setting, the published figures beside them, and the report that is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np

from experiments.terminal.output import progress
from experiments.umpipe.memory_fronts import memory_fronts
from experiments.umpipe.readings import JOINT, OWN_PARTITION, SIZES, ReadingChoices, optima, problem_of, recuts
from experiments.umpipe.search_comparison import COMPILED_FORM, MATRIX_FORM, Instance, exact, search_all
from experiments.umpipe.system_baselines import Partitions, baseline_seconds, tuned_gpipe
from experiments.unequal_sizes.random_tables import FAMILIES, random_problem
from hardware_profiles import Floats, load_cluster
from planners.unequal import (
    Cuts,
    FoundSizes,
    InfeasibleSizes,
    UnequalProblem,
    balanced_problem,
    candidate_sizes,
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

ALIKE = {"gpipe": "gpipe tuned", "pipedream": "pipedream tuned"}
"""Each baseline at its best: searched as unequal sizes are, PipeDream without flush, as published."""

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
STAGES, BATCHES = (4, 8), (48, 96)
FIRST_SEED = 100
"""Seeds of the simulation networks count from it."""

QUICK_GENERATIONS = 20
SHOWN, SHOWN_SETTING = ReadingChoices(JOINT, "all", "all recompute"), "K=8, B=48"
"""The reading whose plans are drawn, and words of its setting."""

NEAR = 0.015
"""A gain within this of a published one (1.5 percentage points; of gains above 10 %, 15 % of them) agrees with it."""

RANDOM_TARGETS = np.arange(0.0, 0.3, 1e-4)
"""Gains that a paper might have published: how many of them does a list of readings match?"""


@dataclass(frozen=True, slots=True, eq=False)
class GainCase:
    """One reading of one setting: UMPIPE's optimum and its problem, GPipe's problem and plan, gains over the baselines.

    proven: nothing that the reading lets unequal sizes choose is faster
    """

    network: str
    setting: str
    choices: ReadingChoices
    problem: UnequalProblem
    plan: FoundSizes
    proven: bool
    gpipe_problem: UnequalProblem
    gpipe: FoundSizes
    gains: Mapping[str, float]


def network_cases(network: str, cluster: str, batches: Sequence[int]) -> list[GainCase]:
    """The cases of a network on a cluster; settings that do not fit into memory are left out."""
    cases = []
    for stages, batch, recompute in product(STAGES, batches, (True, False)):
        problem = Problem(
            load_workload(network), load_cluster(cluster), batch, recompute="whole" if recompute else "none"
        )
        setting = f"{cluster}, K={stages}, B={batch}, {'recomputed' if recompute else 'stored'}"
        with suppress(InfeasibleSizes):
            cases += setting_cases(network, setting, problem, stages)
    return cases


def setting_cases(network: str, setting: str, problem: Problem, stages: int) -> list[GainCase]:
    """Every reading of one problem; InfeasibleSizes where no partition fits with one size for all."""
    tables = tables_of(problem, tuple(range(stages)))
    sizes = {rule: candidate_sizes(problem.batch, word) for rule, word in SIZES.items()}
    tuned = {rule: tuned_gpipe(tables, of_rule)[0] for rule, of_rule in sizes.items()}
    own = Partitions(balanced_problem(tables)[1], tables)
    known: dict[tuple[Cuts | None, str], tuple[UnequalProblem, int, dict[str, float]]] = {}

    def baselines(cuts: Cuts | None, rule: str) -> tuple[UnequalProblem, int, dict[str, float]]:
        """GPipe's problem and size and the seconds of all baselines, on one partition or each on its own best."""
        if (cuts, rule) not in known:
            there = own if cuts is None else Partitions(problem_of(tables, cuts, sizes[rule], recuts(tables)[-1]))
            known[cuts, rule] = (*there.gpipe(sizes[rule]), baseline_seconds(there, sizes[rule]))
        return known[cuts, rule]

    cases = []
    for choices, sized in optima(tables, tuned):
        alike = None if choices.partition in OWN_PARTITION else sized.cuts
        gpipe, size, seconds = baselines(alike, choices.sizes)
        fastest = min(sized.seconds, seconds[ALIKE["gpipe"]])  # equal sizes are sizes, too
        proven = sized.sizes.proven_optimal and (sized.whole or choices.partition != JOINT)
        gains = {name: found / fastest - 1.0 for name, found in seconds.items()}
        parts = sized.unequal, sized.sizes, proven, gpipe, one_size(gpipe, size)
        cases.append(GainCase(network, setting, choices, *parts, gains))
    return cases


def simulation_case(setting: str, sizes: str, problem: UnequalProblem) -> GainCase:
    """Random tables: no partition to choose, nothing stored to cut; KeyboardInterrupt where the search was interrupted."""
    plan, partitions = exact(problem), Partitions(problem)
    seconds, (gpipe, size) = baseline_seconds(partitions, problem.candidates), partitions.gpipe(problem.candidates)
    gains = {name: found / (plan.makespan_seconds + problem.fixed_seconds) - 1.0 for name, found in seconds.items()}
    choices = ReadingChoices("given", sizes, "nothing stored")
    return GainCase(
        "simulation", setting, choices, problem, plan, plan.proven_optimal, gpipe, one_size(gpipe, size), gains
    )


def simulation_cases(instances: int) -> list[GainCase]:
    """Random tables of every family, 8 stages and 64 samples, candidates powers of two and all sizes."""
    cases = []
    candidates = {"powers of two": powers_of_two(64), "all": tuple(range(1, 65))}
    for family, (words, sizes), seed in product(FAMILIES, candidates.items(), range(instances)):
        problem = random_problem(np.random.default_rng(FIRST_SEED + seed), family, 8, 64, sizes)
        cases.append(simulation_case(f"{family}, K=8, B=64", words, problem))
    return cases


def mean_gains(cases: Sequence[GainCase]) -> list[Row]:
    """A row per setting and reading: gains by baseline; of several instances of one setting, the gain over the mean of ratios."""
    grouped: dict[tuple[str, str, ReadingChoices], list[GainCase]] = {}
    for one in cases:
        grouped.setdefault((one.network, one.setting, one.choices), []).append(one)
    return [
        {"network": network, "setting": setting, **asdict(choices), "proven": all(one.proven for one in group)}
        | {"gains": {name: float(np.mean([one.gains[name] for one in group])) for name in group[0].gains}}
        for (network, setting, choices), group in grouped.items()
    ]


def gains_by_baseline(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Baseline -> gains over it in rows of `mean_gains`."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, gain in row["gains"].items():
            found.setdefault(name, []).append(gain)
    return found


def tolerance(published: float | Floats) -> Floats:
    """How near a gain must come to a published one to agree with it."""
    return NEAR * np.maximum(1.0, 10.0 * np.asarray(published))


def spread(gains: Sequence[float]) -> Row:
    """Mean, standard deviation, least and most of gains over settings, and how many there are."""
    values = np.array(gains)
    return {
        "settings": len(values),
        "mean": float(values.mean()),
        "standard_deviation": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "least": float(values.min()),
        "most": float(values.max()),
    }


def near(network: str, baseline: str, gains: Sequence[float]) -> Row:
    """In how many settings the gain comes within the tolerance of the published one."""
    published = PUBLISHED[network, baseline.split(" ")[0]]
    return {"near": int((np.abs(np.array(gains) - published) <= tolerance(published)).sum())}


def readings(gains: Sequence[Row]) -> list[Row]:
    """A row per network and reading: the spread of the gain over each baseline, settings that fit, and how many are proven.

    gains: rows of `mean_gains`
    """
    grouped: dict[tuple[str, ReadingChoices], list[Row]] = {}
    for row in gains:
        choices = ReadingChoices(row["partition"], row["sizes"], row["recut"])
        grouped.setdefault((row["network"], choices), []).append(row)
    return [
        {"network": network, **asdict(choices), "settings": len(rows), "proven": sum(row["proven"] for row in rows)}
        | {
            "over": {
                name: spread(values) | near(network, name, values) for name, values in gains_by_baseline(rows).items()
            }
        }
        for (network, choices), rows in grouped.items()
    ]


def reproductions(found: Sequence[Row]) -> list[Row]:
    """For each published figure: the readings whose mean comes within its tolerance, and how many readings there are.

    found: rows of `readings`
    Readings are many: of targets drawn at random their means match the share `match_random_targets` within the same tolerance.
    """
    rows = []
    for (network, system), published in PUBLISHED.items():
        means = [
            ({key: row[key] for key in ("partition", "sizes", "recut")} | {"baseline": name}, over["mean"])
            for row in found
            if row["network"] == network
            for name, over in row["over"].items()
            if name.split(" ")[0] == system
        ]
        if not means:
            continue
        values = np.array([mean for _, mean in means])
        near = values >= published if network == "simulation" else np.abs(values - published) <= tolerance(published)
        far = np.abs(values[None, :] - RANDOM_TARGETS[:, None]).min(axis=1)
        rows.append(
            {
                "network": network,
                "system": system,
                "published": published,
                "readings": len(means),
                "agreeing": [
                    {**choices, "mean": mean} for (choices, mean), is_near in zip(means, near, strict=True) if is_near
                ],
                "match_random_targets": float((far <= tolerance(RANDOM_TARGETS)).mean()),
            }
        )
    return rows


@dataclass(slots=True)
class Report:
    """Everything that the command prints and draws, filled section by section.

    tried: settings of a network, with activations stored and with them recomputed each
    """

    tried: int = 0
    cases: list[GainCase] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    fronts: list[Row] = field(default_factory=list)
    interrupted: bool = False

    @property
    def shown(self) -> GainCase | None:
        """The case whose plans are drawn: both sides searched alike, VGG-16 with recomputation, the largest gain over GPipe."""
        shown = [one for one in self.cases if one.choices == SHOWN and one.network == "vgg16"]
        alike = [one for one in shown if SHOWN_SETTING in one.setting]
        return max(alike, key=lambda one: one.gains[ALIKE["gpipe"]], default=None)


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
    clusters, batches = ((QUICK_CLUSTER,), BATCHES[:1]) if quick else (CLUSTERS, BATCHES)
    found.tried = len(clusters) * len(STAGES) * len(batches)
    for name in NETWORKS:
        for cluster in clusters:
            say(f"gains of {name} on {cluster}")
            found.cases += network_cases(name, cluster, batches)
    say("gains on simulation networks")
    found.cases += simulation_cases(1 if quick else 20)
    for name, problem, generations in search_instances(found.shown, quick):
        say(f"searches on {name}")
        found.instances.append(search_all(name, problem, generations=generations))
    say("Pareto fronts")
    for name in NETWORKS:
        whole = Problem(load_workload(name), load_cluster("pipedream-b"), 64, recompute="whole")
        tables = tables_of(whole, range(4))
        setting = f"{name} (pipedream-b, K=4, B=64, recomputed)"
        found.fronts += [{"setting": setting, **row} for row in memory_fronts(tables, balanced_problem(tables)[0])]


def search_instances(shown: GainCase | None, quick: bool) -> Iterator[tuple[str, UnequalProblem, int]]:
    """Name, problem and generations of the instances on which all searches run; shown: a case of gains that is one of them."""
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


def document(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    gains, shown = mean_gains(report.cases), report.shown
    found = readings(gains)
    return {
        "interrupted": report.interrupted,
        "tried": report.tried,
        "gains": gains,
        "readings": found,
        "published": reproductions(found),
        "sizes_proven_optimal": all(one.plan.proven_optimal for one in report.cases),
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
