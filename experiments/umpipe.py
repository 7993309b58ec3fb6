"""UMPIPE: what unequal micro-batches gain, over which baselines, and how the searches for them compare.

`python -m experiments.umpipe [--out DIR] [--json] [--quick]`. GPT with 14 blocks and VGG-16 on two modelled servers, with 4 and 8
stages, mini-batches of 32 and 64, activations stored or recomputed; "simulation networks" are random tables of four stated
families (`planners.unequal.instances`). Every UMPIPE figure is the exact method's proven optimum on a balanced partition; the
baselines are in `experiments.umpipe_baselines`. With --out: tables as CSV, figures as PNG and SVG.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.output import output_folder, progress
from experiments.umpipe_baselines import Reading, readings
from experiments.umpipe_fronts import MemoryPoint, memory_fronts
from experiments.umpipe_searches import Instance, exact, search_all
from experiments.umpipe_tables import show
from hardware_profiles import load_cluster
from planners import Request, balanced_problem, make_plan, tables_of
from planners.unequal import (
    FAMILIES,
    InfeasibleSizes,
    UnequalPlan,
    UnequalProblem,
    best_equal,
    powers_of_two,
    random_problem,
)
from simulator import Problem, load_workload

PUBLISHED = {
    ("gpt-14", "gpipe"): 0.1389,
    ("gpt-14", "pipedream"): 0.1109,
    ("vgg16", "gpipe"): 0.1711,
    ("vgg16", "pipedream"): 0.0796,
    ("simulation", "gpipe"): 1.70,
    ("simulation", "pipedream"): 1.00,
}
"""Gains in training speed of the abstract; of the simulation networks "at least"."""

NETWORKS = ("gpt-14", "vgg16")
CLUSTERS = ("pipedream-b", "dgx-a100")
STAGES, BATCHES, COUNTS = (4, 8), (32, 64), (4, 8, 16, 32)
QUICK_GENERATIONS = 20
NEAR = 0.015
"""A reading within this of a published gain (1.5 percentage points) is said to reproduce it."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One setting: its problem, UMPIPE's optimum, the tuned GPipe's plan, and every baseline's reading."""

    network: str
    setting: str
    problem: UnequalProblem
    plan: UnequalPlan
    gpipe_problem: UnequalProblem
    gpipe: UnequalPlan
    readings: tuple[Reading, ...]

    def gain(self, name: str) -> float:
        """Gain over one reading."""
        return next(one.gain for one in self.readings if one.name == name)


def network_cases(networks: Sequence[str], clusters: Sequence[str], batches: Sequence[int]) -> list[Case]:
    """The cases of networks whose layers are modelled; settings that do not fit into memory are left out."""
    cases = []
    for name in networks:
        workload = load_workload(name)
        for cluster_name in clusters:
            cluster = load_cluster(cluster_name)
            for stages in STAGES:
                for batch in batches:
                    for recompute in (True, False):
                        problem = Problem(workload, cluster, batch, recompute=recompute)
                        kept = "recomputed" if recompute else "stored"
                        setting = f"{cluster_name}, K={stages}, B={batch}, {kept}"
                        try:
                            cases.append(network_case(name, setting, problem, stages))
                        except InfeasibleSizes:
                            continue
    return cases


def network_case(network: str, setting: str, problem: Problem, stages: int) -> Case:
    """UMPIPE and its baselines on one problem; InfeasibleSizes where it does not fit."""
    tables = tables_of(problem, tuple(range(stages)))
    return case(network, setting, balanced_problem(tables)[1], balanced_problem(tables, equal=True)[1])


def case(network: str, setting: str, problem: UnequalProblem, tuned: UnequalProblem) -> Case:
    """One case; `tuned` is the problem on the partition that GPipe chose for itself."""
    plan = exact(problem)
    found = readings(problem, tuned, COUNTS, plan.makespan_seconds)
    return Case(network, setting, problem, plan, tuned, best_equal(tuned), found)


def simulation_cases(instances: int) -> list[Case]:
    """Random tables of every family, 8 stages and 64 samples, candidates powers of two and all sizes."""
    cases = []
    for family in FAMILIES:
        for words, candidates in (("powers of two", powers_of_two(64)), ("all sizes", tuple(range(1, 65)))):
            for seed in range(instances):
                problem = random_problem(np.random.default_rng(seed), family, 8, 64, candidates)
                cases.append(case("simulation", f"{family}, K=8, B=64, {words}", problem, problem))
    return cases


def mean_gains(cases: Sequence[Case]) -> dict[tuple[str, str], dict[str, float]]:
    """(network, setting) -> reading -> gain; of several instances of one setting, the gain over the mean of ratios."""
    grouped: dict[tuple[str, str], list[Case]] = {}
    for one in cases:
        grouped.setdefault((one.network, one.setting), []).append(one)
    return {
        key: {
            reading.name: float(np.mean([case.gain(reading.name) for case in group])) for reading in group[0].readings
        }
        for key, group in grouped.items()
    }


def reproductions(gains: dict[tuple[str, str], dict[str, float]]) -> list[dict[str, Any]]:
    """For each published figure: the reading that comes nearest, those within NEAR, and the range of the tuned baseline."""
    rows = []
    for (network, system), published in PUBLISHED.items():
        every = [
            (gain, name, setting)
            for (one, setting), found in gains.items()
            if one == network
            for name, gain in found.items()
            if name.split(" ")[0] == system
        ]
        if not every:
            continue
        nearest = min(every, key=lambda one: abs(one[0] - published))
        tuned = [
            gain for gain, name, _ in every if name == ("gpipe tuned" if system == "gpipe" else "pipedream flush tuned")
        ]
        steady = [gain for gain, name, _ in every if name == "pipedream tuned"]
        near = sorted({name for gain, name, _ in every if abs(gain - published) <= NEAR * max(1.0, 10 * published)})
        rows.append(
            {
                "network": network,
                "system": system,
                "published": published,
                "nearest_gain": nearest[0],
                "nearest_reading": nearest[1],
                "nearest_setting": nearest[2],
                "readings_within": near,
                "tuned_gains": [min(tuned), max(tuned)],
                "steady_gains": [min(steady), max(steady)] if steady else None,
            }
        )
    return rows


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the command prints and draws."""

    cases: list[Case]
    instances: list[Instance]
    fronts: dict[str, tuple[list[MemoryPoint], list[MemoryPoint]]]
    shown: Case
    nested: list[dict[str, Any]]


def measure(quick: bool) -> Report:
    """Run everything; `quick` takes fewer settings, instances and generations."""
    generations = QUICK_GENERATIONS if quick else 100
    with progress("UMPIPE") as report:
        report(0, "gains on networks")
        clusters, batches = (CLUSTERS[1:], BATCHES[1:]) if quick else (CLUSTERS, BATCHES)
        cases = network_cases(NETWORKS, clusters, batches)
        report(0, "gains on simulation networks")
        cases += simulation_cases(1 if quick else 20)
        shown = next(one for one in cases if one.network == "vgg16" and "dgx-a100, K=8, B=64, recomp" in one.setting)
        rng = np.random.default_rng(0)
        chosen = {
            f"VGG-16 ({shown.setting})": shown.problem,
            "roofline tables (K=8, B=64, all sizes)": random_problem(rng, "roofline", 8, 64, tuple(range(1, 65))),
        }
        if not quick:
            chosen["log-uniform tables (K=8, B=64, all sizes)"] = random_problem(
                rng, "log-uniform", 8, 64, tuple(range(1, 65))
            )
            chosen["roofline tables (K=32, B=512, powers of two)"] = random_problem(
                rng, "roofline", 32, 512, powers_of_two(512)
            )
        instances = []
        for name, problem in chosen.items():
            report(0, f"searches on {name}")
            # the plain recurrence takes minutes at K=32: there 30 generations
            instances.append(
                search_all(name, problem, generations=min(generations, 30 if problem.stages > 16 else 100))
            )
        report(0, "Pareto fronts")
        fronts = {}
        for name in NETWORKS:
            whole = Problem(load_workload(name), load_cluster("pipedream-b"), 64, recompute=True)
            one = network_case(name, f"{name} (pipedream-b, K=4, B=64, recomputed)", whole, 4)
            fronts[one.setting] = memory_fronts(one.problem)
        report(0, "partition and sizes together")
        nested = [nested_search(stages) for stages in ((8,) if quick else (4, 8))]
    return Report(cases, instances, fronts, shown, nested)


def nested_search(stages: int) -> dict[str, Any]:
    """VGG-16 with a balanced partition and exact sizes, beside partitions searched together with the sizes."""
    problem = Problem(load_workload("vgg16"), load_cluster("dgx-a100"), 64, recompute=True)
    found = {}
    for name in ("best-equal", "exact-unequal", "unequal-nested"):
        planned = make_plan(name, problem, Request(stages=stages, candidates="powers-of-two"))
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
    gains = mean_gains(report.cases)
    return {
        "gains": [
            {"network": network, "setting": setting, "gains": found} for (network, setting), found in gains.items()
        ],
        "published": reproductions(gains),
        "proven_optimal": all(one.plan.proven_optimal for one in report.cases),
        "searches": [
            {
                "instance": one.name,
                "optimum_seconds": one.optimum,
                "tidgap_acceleration_over_dgap": one.acceleration,
                "compiled_acceleration_over_dgap": one.compiled_acceleration,
                "searches": [
                    {
                        "search": found.search,
                        "makespan_seconds": found.plan.makespan_seconds,
                        "above_exact": found.above_exact,
                        "evaluations": found.plan.evaluations,
                        "seconds": found.plan.seconds,
                        "cpu_seconds": found.cpu_seconds,
                    }
                    for found in one.found
                ],
            }
            for one in report.instances
        ],
        "pareto": [
            {"setting": setting, "sizes": sizes, **asdict(point)}
            for setting, fronts in report.fronts.items()
            for sizes, points in zip(("unequal", "equal"), fronts, strict=True)
            for point in points
        ],
        "nested": report.nested,
        "gantt": {
            "setting": report.shown.setting,
            "unequal": [report.shown.plan.forward_sizes, report.shown.plan.backward_sizes],
            "unequal_seconds": report.shown.plan.makespan_seconds,
            "gpipe": report.shown.gpipe.forward_sizes,
            "gpipe_seconds": report.shown.gpipe.makespan_seconds,
        },
    }


def write(report: Report, folder: Path) -> list[Path]:
    """Tables as CSV and figures; returns the paths."""
    import pandas as pd

    from experiments import umpipe_plots as plots
    from simulator import save, write_atomically

    found = document(report)
    rows = [{"network": one["network"], "setting": one["setting"], **one["gains"]} for one in found["gains"]]
    searches = [{"instance": one["instance"], **row} for one in found["searches"] for row in one["searches"]]
    written = []
    for name, table in (("gains", rows), ("searches", searches), ("pareto", found["pareto"])):
        path = folder / f"umpipe_{name}.csv"
        write_atomically(path, pd.DataFrame(table).to_csv(index=False))
        written.append(path)
    for name, figure in (
        ("gains", plots.gains_figure(mean_gains(report.cases), PUBLISHED)),
        ("convergence", plots.convergence_figure(report.instances)),
        ("pareto", plots.pareto_figure(report.fronts)),
        ("gantt", plots.gantt_figure(report.shown)),
    ):
        written += save(figure, folder / f"umpipe_{name}")
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.umpipe", description=__doc__)
    parser.add_argument("--out", metavar="DIR", help="folder for tables and figures")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="one server, B=64, fewer instances and generations")
    options = parser.parse_args(arguments)
    report = measure(options.quick)
    if options.json:
        print(json.dumps(document(report)))
    else:
        show(document(report))
    if options.out:
        for path in write(report, output_folder(options.out)):
            print(path, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
