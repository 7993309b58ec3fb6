"""UMPIPE baselines: the readings of GPipe and PipeDream that the paper's percentages may refer to, on one model.

All are straight pipelines whose links are busy for the bytes that they send and delay by their latency. Each reading has the
partition that is fastest for it, transfers included (of 1F1B the best of `FRONT` candidates a size):

    gpipe tuned            the fastest equal size: all partitions with all sizes, where these are few enough to try
    gpipe M=…              M equal micro-batches (the last one takes what is left)
    pipedream flush tuned  1F1B with a flush a mini-batch, the fastest equal size
    pipedream flush M=…    the same at M micro-batches
    pipedream tuned        1F1B without flush at its steady state (the busiest stage or link), the fastest equal size
    pipedream M=…          the same at M micro-batches

UMPIPE, GPipe and the flushed readings count the latencies and the first stage's update; at the steady state neither binds.
GPipe's plans fit in memory; PipeDream's activations and weight versions are not held against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.unequal_sizes.table_costs import program_of
from planners import equal_partition, fastest_cuts, straight_costs
from planners.unequal import Compiled, InfeasibleSizes, UnequalProblem, UnequalTables, best_equal, unequal_problem
from simulator.engines import event_loop

FRONT = 4
"""Partitions that are replayed of those that the partition search finds for 1F1B at one size."""

SLACK = 0.02
"""Share by which these may be slower in its estimate."""

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
        found = equal_partition(self.tables.costs, self.tables.devices, sizes)
        if found is None:
            raise InfeasibleSizes("no partition fits with one size for all")
        return unequal_problem(self.tables, found[1], self.problem.candidates), found[2]

    def alternating(self, size: int) -> list[UnequalProblem]:
        """Partitions that are fast for 1F1B with a flush and without, at one size."""
        if self.tables is None:
            return [self.problem]
        costs = straight_costs(self.tables.costs, self.tables.devices, size, alternating=True)
        count = -(-self.problem.samples // size)
        fronts = (fastest_cuts(costs, number, slack=SLACK)[:FRONT] for number in (count, ENDLESS))
        cuts = dict.fromkeys(cuts for front in fronts for _, cuts in front)
        return [unequal_problem(self.tables, one, self.problem.candidates) for one in cuts]


def gains_over(partitions: Partitions, counts: Sequence[int], umpipe_seconds: float) -> dict[str, float]:
    """Reading -> what UMPIPE gains over it on one problem: 0.1 is 10 % more speed.

    counts: fixed numbers of micro-batches; umpipe_seconds: UMPIPE's, fixed seconds included
    """
    samples = partitions.problem.samples
    sizes = sorted({-(-samples // count) for count in range(1, samples + 1)})
    fixed = {count: -(-samples // count) for count in counts if count <= samples}

    def gpipe(sizes: Sequence[int]) -> float:
        return gpipe_seconds(*partitions.gpipe(sizes))

    seconds = {"gpipe tuned": gpipe(partitions.problem.candidates)}
    seconds |= {f"gpipe M={count}": gpipe([size]) for count, size in fixed.items()}
    cut = {size: partitions.alternating(size) for size in sizes}
    for name, seconds_of in (("pipedream flush", flush_seconds), ("pipedream", steady_seconds)):
        least = {size: min(seconds_of(one, size) for one in problems) for size, problems in cut.items()}
        seconds[f"{name} tuned"] = min(least.values())
        seconds |= {f"{name} M={count}": least[size] for count, size in fixed.items()}
    return {name: found / umpipe_seconds - 1.0 for name, found in seconds.items()}


def gpipe_seconds(problem: UnequalProblem, size: int) -> float:
    """All forwards, then all backwards, one size everywhere; latencies and update included."""
    sizes = [[size] * problem.stages]
    return float(Compiled(problem)(sizes, sizes)[0]) + problem.fixed_seconds


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

    again = problem.forward if problem.recomputation == "always" else 0.0 * problem.forward
    stages = busy(problem.forward + problem.backward + again)
    links = [float(busy(table).max(initial=0.0)) for table in (problem.forward_link, problem.backward_link)]
    return max(float(stages.max()), *links)
