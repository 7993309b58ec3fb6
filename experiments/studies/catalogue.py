"""Catalogue of studies: the experiments by name, each with its question, its figures and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from hardware_profiles import plugged_in

ENTRY_POINT_GROUP = "pipeplan.studies"


@dataclass(frozen=True, slots=True)
class Study:
    """An experiment that `pipeplan study` runs.

    module: has `add_arguments(parser)` and `run(arguments)`, which returns its Findings, or an exit code where it has printed
        and written by itself; imported when the study runs. Of a package its `__main__` has them
    minutes: of all of it on two cores; quick_minutes: with --quick, None where it takes no such option
    figures: names of the pictures that --out draws
    """

    module: str
    question: str
    minutes: float
    quick_minutes: float | None = None
    figures: tuple[str, ...] = ()

    @property
    def epilog(self) -> str:
        """What the help says of time."""
        quick = "" if self.quick_minutes is None else f", {self.quick_minutes:g} with --quick"
        return (
            f"Takes about {self.minutes:g} minutes on two cores{quick}. It does not resume: an interrupt (exit code 130) ends "
            "it, and the next run begins anew."
        )


STUDIES: dict[str, Study] = {
    "schedule-cases": Study(
        "experiments.schedule_cases", "Do both engines give the times that an independent replay found?", 0.1
    ),
    "replay-speed": Study(
        "experiments.replay_speed", "How fast are the engines, and how do they grow?", 0.4, figures=("growth",)
    ),
    "evaluator-speed": Study(
        "experiments.evaluator_speed",
        "How many plans a second does a search evaluate, and how far from the limit?",
        0.3,
    ),
    "cost-model": Study(
        "experiments.cost_model",
        "How well does the GPU model predict measured V100 profiles?",
        0.1,
        figures=("cost_model",),
    ),
    "pipedream-optimizer": Study(
        "experiments.pipedream_optimizer",
        "Does the partitioner find what PipeDream's script finds, and how much faster?",
        0.1,
    ),
    "pipedream-tables": Study(
        "experiments.pipedream_tables",
        "What of PipeDream's two result tables can be reproduced?",
        0.3,
        figures=("pipedream_tables",),
    ),
    "pipedream-growth": Study(
        "experiments.pipedream_growth",
        "How does the partitioner grow with states, workers and levels?",
        0.3,
        0.1,
        figures=("pipedream_growth",),
    ),
    "bapipe-explore": Study(
        "experiments.bapipe_explore",
        "Does BaPipe's explorer beat data parallelism, GPipe and PipeDream, where, and by how much?",
        7,
        0.2,
        ("schedules", "gpu-speedup", "gpu-memory", "fpga-speedup", "fpga-memory", "claims", "boards", "depth"),
    ),
    "unequal-cases": Study(
        "experiments.unequal_cases", "Do all forms of the UMPIPE model agree, and is the exact method exact?", 0.9
    ),
    "unequal-speed": Study(
        "experiments.unequal_speed", "How fast is each evaluator of unequal sizes, and how far from the limit?", 0.4
    ),
    "umpipe": Study(
        "experiments.umpipe",
        "What do unequal micro-batches gain, over which baseline, by which search?",
        3.5,
        0.2,
        figures=("umpipe_gains", "umpipe_convergence", "umpipe_pareto", "umpipe_gantt"),
    ),
    "xpipe": Study(
        "experiments.xpipe",
        "Which claims of XPipe hold: throughput, memory, accuracy?",
        10,
        0.3,
        figures=("xpipe_throughput", "xpipe_accuracy", "xpipe_difference"),
    ),
    "time-to-accuracy": Study(
        "experiments.time_to_accuracy",
        "Which method reaches an accuracy first, in simulated seconds?",
        1.5,
        0.2,
        figures=("time_to_accuracy", "time_to_target"),
    ),
}


def studies() -> dict[str, Study]:
    """The studies of this package and those of installed plug-ins (entry-point group `pipeplan.studies`)."""
    return {**plugged_in(ENTRY_POINT_GROUP, as_study), **STUDIES}


def as_study(made: object) -> Study:
    """A plug-in's study; TypeError for anything else."""
    if not isinstance(made, Study):
        raise TypeError(f"must be a Study, not {type(made).__name__}")
    return made
