"""Catalogue of studies: the experiments by name, each with its question, its figures and how long it takes."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from experiments.studies.input_sets import INPUT_SETS
from experiments.terminal.argument_types import (
    LONGEST,
    MOST_JOBS,
    CountUpTo,
    NumberUpTo,
    Option,
    count,
    named_count,
    named_text,
    natural,
    written_file,
)
from hardware_profiles import plugged_in, unchosen

ENTRY_POINT_GROUP = "pipeplan.studies"


@dataclass(frozen=True, slots=True)
class Study:
    """An experiment that `pipeplan study` runs.

    module: has `run(arguments)`, which returns its Findings, or an exit code where it has printed and written by itself; imported
        when the study runs. Of a package its `__main__` has it
    minutes: of all of it on two cores; quick_minutes: with --quick, None where it takes no such option
    figures: names of the pictures that --out draws, documents beside them; without any there is no --out
    not_quick: those of them that it does not draw with --quick
    stack: --out may name a stack, FILE.toml, in place of a folder, which the study writes itself
    quick: what is left with --quick; seeds: how many --seeds trains where nothing is said; without them there is no such option
    options: its own, as `add_options` takes them
    inputs: the sets of public inputs (`pipeplan data`) that its options name, by option; the study is refused without them
    optional_inputs: those that it does, or in part does, without
    """

    module: str
    question: str
    minutes: float
    quick_minutes: float | None = None
    figures: tuple[str, ...] = ()
    not_quick: tuple[str, ...] = ()
    stack: bool = False
    quick: str = ""
    seeds: int = 0
    options: Mapping[str, Option] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    optional_inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def epilog(self) -> str:
        """What the help says of time, and of inputs."""
        quick = "" if self.quick_minutes is None else f", {self.quick_minutes:g} with --quick"
        needs = "".join(f" Needs {option}: see pipeplan data {name}." for option, name in self.inputs.items())
        return (
            f"Takes about {self.minutes:g} minutes on two cores{quick}.{needs} It does not resume: an interrupt (exit code "
            "130) ends it, and the next run begins anew."
        )


BUNDLED_PROFILES = "shared/data/pipedream_profiles"

PROFILES: dict[str, Option] = {
    "--profiles DIR": (f"folder of graph.txt files, or a checkout (default: {BUNDLED_PROFILES})", Path),
    "--profiled-minibatch NAME=N": (
        "samples of the mini-batch that NAME.txt was profiled with (default: worked out from its tensors); may be repeated",
        named_count,
        [],
    ),
}

JOBS: dict[str, Option] = {"--jobs J": ("processes (default: the cores)", CountUpTo(MOST_JOBS))}

MEASURED_SECONDS = NumberUpTo(LONGEST, least=1e-6)
"""Seconds of a measurement."""

STUDIES: dict[str, Study] = {
    "schedule-cases": Study(
        "experiments.schedule_cases",
        "Do both engines give the times that an independent replay found?",
        0.1,
        options={"--cases FILE": ("JSON list of cases", str)},
        inputs={"--cases": "schedule-cases"},
    ),
    "schedule-search": Study(
        "experiments.schedule_search",
        "How near its optimum does the searching scheduler come, how fast, and how far ahead of the known families?",
        2,
        0.1,
        quick="published stage times alone",
        options={
            "--cases FILE": "JSON of small problems with their best makespan, in place of the study's own",
            "--seconds T": ("seconds of search for a case (default 1)", NumberUpTo(LONGEST)),
        },
        optional_inputs={"--cases": "schedule-optima"},
    ),
    "modern-schedules": Study(
        "experiments.modern_schedules",
        "Which schedule is fastest at which memory, how far from the bound, and how far ahead is a searched order?",
        1.4,
        0.1,
        figures=("modern_schedules",),
        quick="one set of uneven stages, three limits, short searches",
    ),
    "network-rules": Study(
        "experiments.network_rules",
        "Do free, first-come and fair links rank plans alike, and what does a choice under one rule lose under another?",
        1,
        0.1,
        figures=("network_rules",),
        quick="eight questions, twelve plans each",
    ),
    "replay-speed": Study(
        "experiments.benchmarks.replay_speed",
        "How fast are the engines, and how do they grow?",
        0.4,
        figures=("growth",),
        options={
            "--growth": "measure growth up to 4,096 devices × 8,192 micro-batches, for --out (default out/replay_speed)",
            "--largest P M": ("stop the growth there", count, (4096, 8192)),
            "--one P M": (SUPPRESS, count),
        },
    ),
    "evaluator-speed": Study(
        "experiments.benchmarks.evaluator_speed",
        "How many plans per second does a search evaluate, and how far from the limit?",
        0.3,
        options={"--seconds SECONDS": ("CPU seconds for each figure", MEASURED_SECONDS, 1.0)},
    ),
    "sweep-growth": Study(
        "experiments.benchmarks.sweep_growth",
        "How many more points a second does a sweep answer with two workers?",
        0.9,
        options={
            "--workers N": ("workers that are compared with one (default %(default)s)", CountUpTo(MOST_JOBS), 2),
            "--points N": ("points of a sweep (default %(default)s)", CountUpTo(1000), 8),
            "--rounds N": (
                "rounds of each number, of which the fastest counts (default %(default)s)",
                CountUpTo(1000),
                2,
            ),
        },
    ),
    "benchmark-commits": Study(
        "experiments.benchmarks.benchmark_commits",
        "Which of two commits is faster, by how much, and how sure is it?",
        10,
        2,
        quick="one round, without the engines: shows the form",
        options={
            "old OLD": ("commit whose CPU seconds are divided", str),
            "new NEW": ("commit by whose CPU seconds they are divided", str),
            "--repository DIR": ("folder of the git checkout (default: the current one)", Path, Path()),
            "--rounds N": ("rounds that alternate between the commits (default %(default)s)", CountUpTo(1000), 5),
        },
    ),
    "cost-model": Study(
        "experiments.cost_model",
        "How well does the GPU model predict measured V100 profiles?",
        0.5,
        figures=("cost_model",),
        options=PROFILES,
        optional_inputs={"--profiles": "pipedream-profiles"},
    ),
    "truth": Study(
        "experiments.truth",
        "How far are predicted iterations, memory, kernels and collectives from published measurements?",
        0.5,
        figures=("truth",),
        stack=True,
        options={
            "--tables DIR": ("folder of measured tables (CSV)", Path),
            "--columns": "print what tables may hold, and their columns",
            "--machine TABLE=CLUSTER": (
                "cluster of a table's rows, in place of what they say; may be repeated",
                named_text,
                [],
            ),
            "--rename COLUMN=NAME": ("what a column of other tables is called here; may be repeated", named_text, []),
            "--errors-out FILE": (
                "predict every row by constants that did not see it (minutes: fits of what is left), and write the classes of "
                "errors that these make: the file hardware_profiles/errors.toml",
                written_file,
            ),
            "--fit TABLE": "fit a stack on part of a table (its name in --tables, or a CSV file), judge it on the rest",
            "--hold SHARE": ("share of its plans that are held out (default 0.5)", NumberUpTo(1.0)),
            "--seed SEED": ("seed of what is held out (default 0)", natural, 0),
            "--constants NAME,…": "constants that may move (default: all that the rows tell)",
            "--stack NAME": "stack that the fit begins from: name or TOML file (default: that of most rows)",
        },
        optional_inputs={"--tables": "measured-tables"},
    ),
    "fpga-truth": Study(
        "experiments.fpga_truth",
        "How far are predicted images per second and joules of FPGA boards from published measurements?",
        0.1,
        figures=("fpga_truth",),
        options={"--tables DIR": ("folder of measured tables (CSV)", Path)},
        inputs={"--tables": "measured-tables"},
    ),
    "published-layouts": Study(
        "experiments.published_layouts",
        "What do large published runs take by the model, and what would the joint planner choose in their place?",
        5,
        0.5,
        figures=("published_layouts",),
        quick="the layouts as they ran, without plans of our own",
    ),
    "sailor": Study(
        "experiments.sailor",
        "How much faster are pipelines on several kinds of GPU than those of Sailor's planner, under its own judge?",
        0.7,
        options={"--inputs DIR": ("checkout of eth-easl/sailor", Path)},
        inputs={"--inputs": "sailor"},
    ),
    "pipedream-optimizer": Study(
        "experiments.pipedream_optimizer",
        "Does the partitioner find what PipeDream's script finds, and how much faster?",
        0.1,
        options={
            "--runs FILE": ("recorded runs, a JSON object a line", Path),
            "--profiles DIR": (
                "folder of the graph.txt profiles, NAME.txt, or a checkout of msr-fiddle/pipedream",
                Path,
            ),
        },
        inputs={"--runs": "pipedream-optimizer-runs", "--profiles": "pipedream-profiles"},
    ),
    "dnn-partitioning": Study(
        "experiments.dnn_partitioning",
        "Is the largest load on published graphs the least, and what do its rules and a host core as a device change?",
        0.9,
        options={
            "--inputs DIR": ("checkout of msr-fiddle/dnn-partitioning, or a folder of such graphs", Path),
        },
        inputs={"--inputs": "dnn-partitioning"},
    ),
    "piper": Study(
        "experiments.piper",
        "Are pipelines of layers with variants the best on Piper's public inputs, and how soon are they found?",
        0.3,
        options={
            "--inputs DIR": ("checkout of msr-fiddle/piper, or a folder of such networks", Path),
        },
        inputs={"--inputs": "piper"},
    ),
    "pipedream-tables": Study(
        "experiments.pipedream_tables",
        "What of PipeDream's two result tables can be reproduced?",
        0.5,
        figures=("pipedream_tables",),
        options=PROFILES,
        optional_inputs={"--profiles": "pipedream-profiles"},
    ),
    "pipedream-growth": Study(
        "experiments.benchmarks.pipedream_growth",
        "How does the partitioner grow with states, workers and levels?",
        0.3,
        0.1,
        figures=("pipedream_growth",),
        quick="only the small searches of each study",
    ),
    "bapipe-explore": Study(
        "experiments.bapipe_explore",
        "Does BaPipe's explorer beat data parallelism, GPipe and PipeDream, where, and by how much?",
        7,
        0.2,
        ("schedules", "gpu-speedup", "gpu-memory", "fpga-speedup", "fpga-memory", "claims", "boards", "depth"),
        not_quick=("boards",),
        quick="VGG-16 alone, on two V100 and on a chain of three boards",
    ),
    "unequal-cases": Study(
        "experiments.unequal_cases",
        "Do all forms of the UMPIPE model agree, and is the exact method exact?",
        0.9,
        options={
            "--count COUNT": ("instances on which the evaluators are compared", natural, 2000),
            "--small SMALL": ("small instances on which exact meets exhaustive search", natural, 100),
            "--seed SEED": ("seed of the instances (default 0)", natural, 0),
        },
    ),
    "unequal-speed": Study(
        "experiments.benchmarks.unequal_speed",
        "How fast is each evaluator of unequal sizes, and how far from the limit?",
        0.4,
        options={
            "--seconds SECONDS": ("seconds for each evaluator and shape", MEASURED_SECONDS, 0.5),
            "--seed SEED": ("seed of the instances (default 0)", natural, 0),
            "--family FAMILY": ("family of duration tables", str, "roofline"),
        },
    ),
    "umpipe": Study(
        "experiments.umpipe",
        "What do unequal micro-batches gain, over which baseline, by which search?",
        11,
        1,
        figures=("umpipe_gains", "umpipe_convergence", "umpipe_pareto", "umpipe_gantt"),
        quick="one cluster, B=48, fewer instances and generations",
    ),
    "xpipe": Study(
        "experiments.xpipe",
        "Which claims of XPipe hold: throughput, memory, accuracy?",
        10,
        0.3,
        figures=("xpipe_throughput", "xpipe_accuracy", "xpipe_difference"),
        quick="3 seeds, 2 epochs, one setting: shows the form, proves nothing",
        seeds=20,
        options={
            "--headline": "train under adam 0.002 alone: the order of methods, in a quarter of the time",
            **JOBS,
        },
    ),
    "time-to-accuracy": Study(
        "experiments.time_to_accuracy",
        "Which method reaches an accuracy first, in simulated seconds?",
        1.5,
        0.2,
        figures=("time_to_accuracy", "time_to_target"),
        quick="2 seeds, 2 epochs: shows the form, proves nothing",
        seeds=10,
        options={
            "--target A": ("test accuracy to reach (default 0.95)", NumberUpTo(1.0), 0.95),
            "--workload NAME": ("whose seconds (default %(default)s)", str, "bert-large"),
            "--cluster NAME": ("on which machine (default %(default)s)", str, "dapple-b"),
            **JOBS,
        },
    ),
}


def studies() -> dict[str, Study]:
    """The studies of this package and those of installed plug-ins (entry-point group `pipeplan.studies`)."""
    return {**plugged_in(ENTRY_POINT_GROUP, as_study, frozenset(STUDIES)), **STUDIES}


def as_study(made: object) -> Study:
    """A plug-in's study; TypeError for anything else, and for inputs that are not declared here."""
    if not isinstance(made, Study):
        raise TypeError(f"must be a Study, not {type(made).__name__}")
    for name in (*made.inputs.values(), *made.optional_inputs.values()):
        if name not in INPUT_SETS:
            raise TypeError(unchosen("inputs", name, INPUT_SETS))
    return made
