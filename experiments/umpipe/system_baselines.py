"""UMPIPE baselines: the readings of GPipe and PipeDream that the paper's percentages may refer to, on one model.

All are straight pipelines whose links are busy for the bytes that they send and delay by their latency. Each reading has the
partition that is fastest for it, transfers included (of 1F1B the best of `FRONT` candidates per size):

    gpipe tuned            the fastest equal size: all partitions with all sizes, where these are few enough to try
    gpipe M=…              M equal micro-batches (the last one takes what is left); M=4K: four per stage
    pipedream flush tuned  1F1B with a flush per mini-batch, the fastest equal size
    pipedream flush M=…    the same at M micro-batches
    pipedream tuned        1F1B without flush at its steady state (the busiest stage or link), the fastest equal size
    pipedream M=…          the same at M micro-batches

UMPIPE, GPipe and the flushed readings count the latencies and the first stage's update; at the steady state neither binds.
GPipe's plans fit in memory; PipeDream's activations and weight versions are not held against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from experiments.unequal_sizes.table_costs import program_of
from planners import equal_partition, fastest_cuts, straight_costs
from planners.unequal import (
    Cuts,
    InfeasibleSizes,
    UnequalProblem,
    UnequalTables,
    best_equal,
    one_size,
    unequal_problem,
)
from simulator.engines import event_loop

FRONT = 4
"""Partitions that are replayed of those that the partition search finds for 1F1B at one size."""

SLACK = 0.02
"""Share by which these may be slower in its estimate."""

COUNTS, FOUR_K = (4, 8, 16, 32), "4K"
"""Fixed numbers of micro-batches; and four per stage, from which on GPipe's paper (arXiv 1811.06965) finds bubbles negligible."""

ENDLESS = 10**9
"""Micro-batches of a stream in whose time only the slowest stage or link counts."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """Where a baseline may cut: anywhere in the layers of `tables`, or, without them, nowhere but as in `problem`."""

    problem: UnequalProblem
    tables: UnequalTables | None = None

    def gpipe(self, sizes: Sequence[int]) -> tuple[UnequalProblem, int]:
        """The fastest partition and size of GPipe; InfeasibleSizes where none fits."""
        if self.tables is None:
            only = best_equal(replace(self.problem, candidates=tuple(sizes)))
            return self.problem, only.forward_sizes[0]
        cuts, size = tuned_gpipe(self.tables, sizes)
        return unequal_problem(self.tables, cuts, self.problem.candidates), size

    def alternating(self, size: int) -> list[UnequalProblem]:
        """Partitions that are fast for 1F1B with a flush and without, at one size."""
        if self.tables is None:
            return [self.problem]
        costs = straight_costs(self.tables.costs, self.tables.devices, size, alternating=True)
        count = -(-self.problem.samples // size)
        fronts = (fastest_cuts(costs, number, slack=SLACK)[:FRONT] for number in (count, ENDLESS))
        cuts = dict.fromkeys(cuts for front in fronts for _, cuts in front)
        return [unequal_problem(self.tables, one, self.problem.candidates) for one in cuts]


def tuned_gpipe(tables: UnequalTables, sizes: Sequence[int]) -> tuple[Cuts, int]:
    """Cuts and size of the fastest GPipe with one of the sizes; InfeasibleSizes where none fits."""
    found = equal_partition(tables.costs, tables.devices, sizes)
    if found is None:
        raise InfeasibleSizes("no partition fits with one size for all")
    return found[1], found[2]


def baseline_seconds(partitions: Partitions, sizes: Sequence[int]) -> dict[str, float]:
    """Seconds of every reading of the baselines on one problem, by name; a fixed number of micro-batches where it fits.

    sizes: those that a tuned baseline chooses from; a fixed number of micro-batches has the size that it asks for
    Raises InfeasibleSizes where no size of GPipe fits.
    """
    samples = partitions.problem.samples
    counts = {str(count): count for count in COUNTS} | {FOUR_K: 4 * partitions.problem.stages}
    fixed = {name: -(-samples // count) for name, count in counts.items() if count <= samples}
    least_of_count = {-(-samples // size): size for size in sorted(sizes, reverse=True)}.values()
    seconds = {"gpipe tuned": gpipe_seconds(*partitions.gpipe(sizes))}
    for name, size in fixed.items():
        with suppress(InfeasibleSizes):
            seconds[f"gpipe M={name}"] = gpipe_seconds(*partitions.gpipe([size]))
    cut = {size: partitions.alternating(size) for size in dict.fromkeys((*least_of_count, *fixed.values()))}
    for system, seconds_of in (("pipedream flush", flush_seconds), ("pipedream", steady_seconds)):
        least = {size: min(seconds_of(one, size) for one in problems) for size, problems in cut.items()}
        seconds[f"{system} tuned"] = min(least[size] for size in least_of_count)
        seconds |= {f"{system} M={name}": least[size] for name, size in fixed.items()}
    return seconds


def gpipe_seconds(problem: UnequalProblem, size: int) -> float:
    """All forwards, then all backwards, one size everywhere; latencies and update included."""
    return one_size(problem, size).makespan_seconds + problem.fixed_seconds


def flush_seconds(problem: UnequalProblem, size: int) -> float:
    """1F1B with a flush, one size everywhere; the order of classic 1F1B, links beside the stages; with the fixed seconds.

    Latencies count once each, as for UMPIPE: 1F1B, which waits for some again and again, takes no less.
    """
    sizes = [size] * problem.stages
    program = program_of(problem, sizes, sizes, "1f1b")
    return event_loop.replay(program, contention=True).makespan_seconds + problem.fixed_seconds


def steady_seconds(problem: UnequalProblem, size: int) -> float:
    """1F1B without flush, one size everywhere: seconds for which the busiest stage, or link direction, works on a mini-batch.

    With enough micro-batches in flight a pipeline without flush runs at the rate of its slowest process.
    """
    whole, rest = divmod(problem.samples, size)

    def busy(table: np.ndarray) -> np.ndarray:
        return np.asarray(whole * table[:, size] + (table[:, rest] if rest else 0.0))

    again = np.asarray(problem.again) if problem.recomputation == "always" else 0.0 * problem.forward
    stages = busy(problem.forward + problem.backward + again)
    links = [float(busy(table).max(initial=0.0)) for table in (problem.forward_link, problem.backward_link)]
    return max(float(stages.max()), *links)
