"""Seed runs: a training replayed for one or many seeds, in one or many processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from joblib import Parallel, delayed

from simulator.training.replay import Replay
from simulator.training.run import Training, TrainingRun, check_work


def train(training: Training, seeds: Sequence[int], jobs: int = 1) -> list[TrainingRun]:
    """Train once for each seed, side by side, the seeds divided over `jobs` processes (joblib).

    The same seed gives the same initial weights and data order for every method. A seed's result depends neither on the
    other seeds nor on the number of processes, to the bit. ValueError: no seeds, a negative one, jobs < 1, more work than
    MOST_TRAINED.
    """
    if not seeds or min(seeds) < 0:
        raise ValueError(f"seeds must be one or more non-negative numbers, got {list(seeds)}")
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    order = training.order
    check_work(order.stages, order.minibatches * order.microbatches_per_minibatch, len(seeds))
    groups = [list(seeds[part::jobs]) for part in range(min(jobs, len(seeds)))]
    if len(groups) == 1:
        return _replayed(training, groups[0])
    parts = Parallel(n_jobs=len(groups))(delayed(_replayed)(training, group) for group in groups)
    by_seed = {run.seed: run for part in parts for run in part}
    return [by_seed[seed] for seed in seeds]


def _replayed(training: Training, seeds: list[int]) -> list[TrainingRun]:
    # a diverging run overflows by design and is reported as diverged
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        replay = Replay(training, seeds)
        replay.play()
        return replay.results(seeds)
