"""Training grid: methods and settings, each trained on many seeds, in parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from joblib import Parallel, cpu_count, delayed

from experiments.training.clocks import Clock, MethodCase, MethodOrder, given_clock
from experiments.training.data import DataSet
from experiments.training.networks import NETWORKS
from experiments.training.optimizers import OPTIMIZERS
from experiments.training.prediction import PREDICTION_RULES, PredictionRule
from experiments.training.replay import train
from experiments.training.run import Training, TrainingRun, TrainingSettings, minibatches_per_epoch
from simulator import OpSeconds

GROUP = 5
"""Seeds trained side by side: more of them leave the caches, fewer pay more calls."""


@dataclass(frozen=True, slots=True)
class TrainingSetting:
    """What is trained, the same for every case of a comparison.

    unit_inputs: inputs of -1 to 1 are moved to 0 to 1 first
    """

    optimizer: str = "adam"
    learning_rate: float = 0.002
    stages: int = 8
    batch: int = 32
    epochs: int = 10
    unit_inputs: bool = False

    @property
    def label(self) -> str:
        """As in `adam 0.002`."""
        return f"{self.optimizer} {self.learning_rate:g}"

    def order(self, case: MethodCase, clock: Clock, minibatches: int) -> MethodOrder:
        """The order of ops of a case; its warm-up leaves a mini-batch at least."""
        shorter = replace(case, warmup=min(case.warmup, minibatches - 1))
        return shorter.order(clock, self.stages, minibatches)


@dataclass(frozen=True, slots=True, eq=False)
class CaseResult:
    """The runs of one case under one setting, by rising seed, and the weight copies of each stage."""

    case: MethodCase
    setting: TrainingSetting
    copies: tuple[int, ...]
    runs: tuple[TrainingRun, ...] = field(repr=False)

    def each(self, measure: str) -> list[Any]:
        """A figure of every seed's run, by its name there."""
        return [getattr(run, measure) for run in self.runs]

    def record(self) -> dict[str, object]:
        """A flat record: means, spreads (standard deviation over seeds), counts."""
        losses, accuracies = self.each("train_loss"), self.each("test_accuracy")
        return {
            "label": self.case.label,
            "method": self.case.method,
            "stale": self.case.stale,
            "microbatches_per_minibatch": self.case.per_minibatch,
            "stages": self.setting.stages,
            "optimizer": self.setting.optimizer,
            "learning_rate": self.setting.learning_rate,
            "seeds": len(self.runs),
            "train_losses": losses,
            "test_accuracies": accuracies,
            **_spread("train_loss", losses),
            **_spread("test_accuracy", accuracies),
            "diverged": sum(self.each("diverged")),
            "prediction_error_ratio": float(np.mean(self.each("prediction_error_ratio"))),
            "weight_copies": max(self.copies),
            "weight_copies_per_stage": list(self.copies),
        }


def deviation(values: Sequence[float]) -> float:
    """Standard deviation over seeds; 0 of a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_mean": float(np.mean(values)),
        f"{name}_median": float(np.median(values)),
        f"{name}_deviation": deviation(values),
    }


def rule_with(method: str, **settings: Any) -> PredictionRule:
    """The method's rule with other settings, by name of the field."""
    return replace(PREDICTION_RULES[method], **settings)


UNIT_CLOCK = given_clock(OpSeconds(1.0, 2.0))
"""Equal stages, a mini-batch 1 s forward and 2 s backward: for runs whose seconds nobody reads."""


def train_grid(
    grid: Sequence[tuple[MethodCase, TrainingSetting]],
    data: DataSet,
    seeds: Sequence[int],
    *,
    evaluate_every: int | None = None,
    jobs: int | None,
    report: Callable[[int, str], None] = lambda done, text: None,
) -> list[CaseResult]:
    """Train every case of the grid on the seeds; results in the grid's order, the same for any number of processes.

    An interrupt (KeyboardInterrupt) ends the training: the results then have the first seeds, as many as every case has
    finished; where that is none, it is raised.
    jobs: processes, None for as many as this process may use cores
    report: called with the parts done and the label of the last one
    """
    groups = [seeds[first : first + GROUP] for first in range(0, len(seeds), GROUP)]
    # A group of seeds for every case before the next group: what an interrupt leaves is still a comparison.
    tasks = [(case, setting, group) for group in groups for case, setting in grid]
    workers = min(cpu_count() if jobs is None else jobs, len(tasks))
    parts = Parallel(n_jobs=workers, return_as="generator")(
        delayed(_train)(case, setting, data, group, evaluate_every) for case, setting, group in tasks
    )
    done: list[tuple[tuple[int, ...], list[TrainingRun]]] = []
    try:
        for part, (case, setting, group) in zip(parts, tasks, strict=True):
            done.append(part)
            report(
                len(done), f"{len(done)}/{len(tasks)} {case.label}, {setting.label}, seeds {group[0]} to {group[-1]}"
            )
    except KeyboardInterrupt:
        if len(done) < len(grid):
            raise
    whole = len(done) // len(grid) * len(grid)
    return [
        CaseResult(
            case, setting, done[number][0], tuple(run for _, runs in done[number : whole : len(grid)] for run in runs)
        )
        for number, (case, setting) in enumerate(grid)
    ]


def _train(
    case: MethodCase,
    setting: TrainingSetting,
    data: DataSet,
    seeds: Sequence[int],
    evaluate_every: int | None,
) -> tuple[tuple[int, ...], list[TrainingRun]]:
    minibatches = setting.epochs * minibatches_per_epoch(data, setting.batch)
    if setting.unit_inputs:
        data = replace(data, train_x=(data.train_x + 1.0) / 2.0, test_x=(data.test_x + 1.0) / 2.0)
    found = setting.order(case, UNIT_CLOCK, minibatches)
    network = NETWORKS["mlp"](setting.stages, data.features, data.classes)
    settings = TrainingSettings(batch=setting.batch, learning_rate=setting.learning_rate, evaluate_every=evaluate_every)
    optimizer = OPTIMIZERS[setting.optimizer]()
    training = Training(found.order, case.method, network, data, optimizer, settings, case.rule)
    return found.copies, train(training, seeds)
