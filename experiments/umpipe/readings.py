"""UMPIPE readings: the choices that a gain hangs on, and the problem, the unequal optimum and the GPipe of each.

A published gain does not say on which partition, out of which sizes, and what it costs to cut stored activations again. Each
combination is a reading, and a baseline beside it makes a figure:

    partition   joint             both sides search partition and sizes together
                planners'         unequal sizes on the partition that the unequal planners take, every baseline on its own best
                tuned GPipe's     all on the partition of the fastest GPipe
                FLOP              all on the partition whose largest stage has the fewest FLOP, whatever crosses the cuts
                FLOP, blocks      the same, with layers that have no weights behind the layer with weights that they follow
    sizes       all from 1 to the mini-batch; powers of two and the mini-batch: for both sides
    re-cut      run again         a stage whose forward and backward sizes differ runs its forward again, as in a replay
                free              what a forward block has stored is cut again at no cost
                all recompute     both sides recompute every stage: nothing stored is cut
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

import numpy as np

from experiments.umpipe.search_comparison import exact
from hardware_profiles import Floats
from planners import minimax_cuts
from planners.unequal import (
    CANDIDATES,
    Chain,
    Cuts,
    InfeasibleSizes,
    Sized,
    UnequalProblem,
    UnequalTables,
    balanced_problem,
    candidate_sizes,
    limited_problem,
    memory_limits,
    search_partition,
    tails,
)

JOINT, PLANNERS = "joint", "planners'"
FIXED = (PLANNERS, "tuned GPipe's", "FLOP", "FLOP, blocks")
OWN_PARTITION = (JOINT, PLANNERS)
"""Rules under which every baseline has the partition that is fastest for it; under the others all share one."""

SIZES = {"all": CANDIDATES[0], "powers of two": CANDIDATES[1]}
STORED, RECOMPUTED = ("run again", "free"), ("all recompute",)
"""Rules of cutting stored activations again, from the dearest; the one of stages that store none."""


@dataclass(frozen=True, slots=True)
class ReadingChoices:
    """What a gain hangs on beside its baseline: a partition, the sizes, and how stored activations are cut again."""

    partition: str
    sizes: str
    recut: str


def recuts(tables: UnequalTables) -> tuple[str, ...]:
    """The rules of re-cutting that a problem may have."""
    return RECOMPUTED if tables.problem.recompute == "whole" else STORED


def problem_of(tables: UnequalTables, cuts: Cuts, sizes: Sequence[int], recut: str) -> UnequalProblem:
    """The unequal problem of a partition under a rule, within memory; InfeasibleSizes where it does not fit.

    Where a re-cut is free, sizes decide nothing of what a stage stores: they have no caps.
    """
    limited = limited_problem(tables, cuts, sizes, memory_limits(tables))
    return replace(limited, recomputation="none", backward_caps=None) if recut == "free" else limited


def balanced_flop(tables: UnequalTables, points: Sequence[int]) -> Cuts:
    """The partition at some of the points whose largest stage has the fewest FLOP; of equals the one with the earliest cuts."""
    totals = [0.0, *accumulate(layer.flop for layer in tables.problem.workload.layers)]
    return tuple(minimax_cuts(points, np.array([totals] * len(tables.devices))))


def fixed_partitions(tables: UnequalTables, tuned: Cuts) -> dict[str, Cuts]:
    """The partitions that one side alone, or neither, chooses, by name. tuned: that of the fastest GPipe"""
    layers = tables.problem.workload.layers
    blocks = [0, *(i for i, layer in enumerate(layers) if i and layer.has_weight_gradient), len(layers)]
    flop = (balanced_flop(tables, points) for points in (range(len(layers) + 1), blocks))
    return dict(zip(FIXED, (balanced_problem(tables)[0], tuned, *flop), strict=True))


def on_partition(tables: UnequalTables, cuts: Cuts, sizes: Sequence[int], recut: str) -> Sized:
    """The optimal sizes of one partition, proven; InfeasibleSizes where it does not fit."""
    problem = problem_of(tables, cuts, sizes, recut)
    return Sized(cuts, problem, exact(problem))


def joint_optima(tables: UnequalTables, starts: Sequence[Cuts]) -> dict[tuple[str, str], Sized]:
    """Partition and sizes searched together, by (sizes, re-cut): `Sized.whole` where it is the best of all partitions.

    starts: partitions to begin from
    The rules go from the strictest to the loosest, each from the partitions of those before: a looser one is never slower.
    """
    bound, batch, layers, stages = partition_bound(tables), tables.problem.batch, tables.layers, len(tables.devices)

    def search(rule: str, recut: str, begin: Sequence[Cuts]) -> Sized:
        sizes = candidate_sizes(batch, SIZES[rule])

        def build(cuts: Cuts) -> UnequalProblem:
            return problem_of(tables, cuts, sizes, recut)

        return search_partition(build, layers, stages, begin, exact, bound)

    found: dict[tuple[str, str], Sized] = {}
    begin = [*starts]
    if len(recuts(tables)) > 1:  # decided together, sizes take long: they begin where a free re-cut leads
        begin.insert(0, search("all", STORED[-1], begin).cuts)
    for recut in recuts(tables):
        for rule in reversed(SIZES):
            found[rule, recut] = search(rule, recut, list(dict.fromkeys(begin)))
            begin.insert(0, found[rule, recut].cuts)
    return found


def partition_bound(tables: UnequalTables) -> Callable[[Cuts], float]:
    """Seconds that no sizes of a partition undercut under any rule: the bound of its problem with all sizes, uncapped, where
    nothing runs again that need not, to parts in 10^13.
    """
    problem, every = tables.problem, range(1, tables.problem.batch + 1)
    again = 1.0 if problem.recompute == "whole" else 0.0

    @cache
    def link(number: int, cut: int) -> tuple[Floats, float]:
        return tables.link_seconds(number, cut)

    @cache
    def update(end: int) -> float:
        return tables.costs.update_seconds(tables.devices[0], tables.costs.weight_elements(range(end)))

    @cache
    def bound(cuts: Cuts) -> float:
        ranges = tables.ranges(cuts)
        stages = np.array([tables.stage_seconds(stage, *ends) for stage, ends in enumerate(ranges)])
        links = [link(number, cut) for number, cut in enumerate(cuts)]
        busy = np.array([*(row for row, _ in links), np.zeros((2, problem.batch + 1))])
        rows = np.vstack([stages[:, 0], busy[:, 0]])
        rows_back = np.vstack([stages[::-1, 1] + again * stages[::-1, 2], busy[-2::-1, 1], busy[-1:, 1]])
        allowed = (tuple(every),) * len(ranges)
        passes = Chain(problem.batch, rows, allowed, False), Chain(problem.batch, rows_back, allowed, True)
        fixed = sum(latency for _, latency in links) + update(ranges[0][1])
        return float(sum(tails(chain)[0, 1] for chain in passes)) + fixed

    return bound


def optima(tables: UnequalTables, tuned: Mapping[str, Cuts]) -> Iterator[tuple[ReadingChoices, Sized]]:
    """The unequal optimum of every reading that fits.

    tuned: the partition of the fastest GPipe, by the name of the sizes
    """
    fixed = {rule: fixed_partitions(tables, cuts) for rule, cuts in tuned.items()}
    joint = joint_optima(tables, list(dict.fromkeys(cuts for named in fixed.values() for cuts in named.values())))
    for recut in recuts(tables):
        for rule in SIZES:
            yield ReadingChoices(JOINT, rule, recut), joint[rule, recut]
            for name, cuts in fixed[rule].items():
                with suppress(InfeasibleSizes):
                    sized = on_partition(tables, cuts, candidate_sizes(tables.problem.batch, SIZES[rule]), recut)
                    yield ReadingChoices(name, rule, recut), sized
