"""Unequal tables: a problem's layer costs as the duration tables of an unequal problem, and the bytes of its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import pairwise

import numpy as np

from hardware_profiles import Floats, Phase
from planners.estimate.memory import FlushedBytes
from planners.partitioning.partition_costs import straight_costs
from planners.unequal.problem import InfeasibleSizes, UnequalProblem, powers_of_two
from simulator import LayerCosts, Plan, Problem, Recompute, stages_from_cuts

CANDIDATES = ("all", "powers-of-two")
"""Choices of candidate sizes: every one from 1 to the batch, or powers of two and the batch."""

PASSES: tuple[tuple[Phase, Recompute | None], ...] = (("forward", None), ("backward", None), ("forward", "whole"))
"""Rows of the seconds of a stage: each a phase and, for what a backward runs again, the recompute policy."""

WITHOUT_LINKS = ("streaming", "free")
"""Communications that keep no link busy: an op lasts as long as its sending, or transfers are free."""

MOST_LAYERS = 256
"""Layers, at most, of a network whose ranges are all bounded."""

MOST_FOR_ALL = 64
"""Samples of a batch, at most, for which every size is a candidate unless the user says otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class UnequalTables:
    """Costs of a chain of layers for every number of samples of a block and any cuts into stages.

    problem: whose costs these are; devices: of each stage of a pipeline, in order
    only: sizes whose seconds are needed, other sizes have 0; () for all
    stages: seconds of 0..batch samples by (kind of accelerator, first layer, end layer), float64 [3, batch + 1], rows as of
    PASSES; filled when first needed
    """

    problem: Problem
    devices: tuple[int, ...]
    costs: LayerCosts
    only: tuple[int, ...] = ()
    stages: dict[tuple[int, int, int], Floats] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> int:
        """Number of layers of the network."""
        return len(self.problem.workload)

    def stage_seconds(self, stage: int, first: int, end: int) -> Floats:
        """Seconds of layers `first` to `end` - 1 as one stage, as a replay has them, float64 [3, batch + 1], rows as of
        PASSES.
        """
        device = self.devices[stage]
        key = self.costs.kind_of_device(device), first, end
        if key not in self.stages:
            held = np.arange(first, end, dtype=np.int64)
            seconds = np.zeros((3, self.problem.batch + 1))
            for row, (phase, again) in zip(seconds, PASSES, strict=True):
                for size in self.only or range(1, self.problem.batch + 1):
                    row[size] = self.costs.stage_seconds(device, held, size, phase, again=again)
            self.stages[key] = seconds
        return self.stages[key]

    def ranges(self, cuts: Sequence[int]) -> list[tuple[int, int]]:
        """First layer and end layer of each stage."""
        return list(pairwise([0, *map(int, cuts), self.layers]))

    def stage_bytes(self, first: int, end: int) -> FlushedBytes:
        """Bytes of layers `first` to `end` - 1 as one stage."""
        return FlushedBytes.of(self.costs, first, end)

    def link_seconds(self, link: int, cut: int) -> tuple[Floats, float]:
        """Seconds for which 0..batch samples keep a link busy, down and up, float64 [2, batch + 1], and both ways' latencies
        together.

        link: between stages `link` and `link + 1`, cut before layer `cut`. Latencies delay a transfer and let the next one go.
        """
        near, far = self.devices[link], self.devices[link + 1]
        amounts = self.costs.cut_bytes[cut] * np.arange(self.problem.batch + 1)
        ways = [self.problem.cluster.point_to_point(*ends) for ends in ((near, far), (far, near))]
        return np.array([amounts / bandwidth for _, bandwidth in ways]), sum(latency for latency, _ in ways)


def tables_of(
    problem: Problem, devices: Sequence[int], costs: LayerCosts | None = None, sizes: Sequence[int] = ()
) -> UnequalTables:
    """The tables of a problem for a pipeline over `devices`, one per stage.

    costs: of the same problem, to share tables that are already filled; sizes: of blocks, if no others are needed but the smaller
    last ones behind these; () for all
    """
    layer_costs = (costs or LayerCosts(problem)).across(devices)
    only = {*sizes, *(problem.batch % size for size in sizes)} - {0}
    return UnequalTables(problem, tuple(devices), layer_costs, tuple(sorted(only)))


def memory_limits(tables: UnequalTables) -> list[float]:
    """Bytes that each stage may allocate on its device, by stage."""
    return [tables.problem.room_bytes(device) for device in tables.devices]


def candidate_sizes(batch: int, candidates: str | None = None, granularity: int = 1) -> tuple[int, ...]:
    """The sizes to choose from, ascending: of one of `CANDIDATES`; None for all of a batch up to MOST_FOR_ALL groups, else powers
    of two.

    granularity: samples of a group, of which all sizes but the whole batch are multiples
    ValueError for other words than CANDIDATES.
    """
    if candidates not in (None, *CANDIDATES):
        raise ValueError(f"candidates {candidates!r} are unknown; choices: {', '.join(CANDIDATES)}")
    groups = max(1, batch // granularity)
    every = candidates == "all" or (candidates is None and -(-batch // granularity) <= MOST_FOR_ALL)
    chosen = range(1, groups + 1) if every else powers_of_two(groups)
    return tuple(sorted({min(batch, count * granularity) for count in chosen} | {batch}))


def unequal_problem(
    tables: UnequalTables,
    cuts: Sequence[int],
    candidates: Sequence[int],
    backward_caps: tuple[int, ...] | None = None,
) -> UnequalProblem:
    """The unequal problem of one partition, a relaxation of the replay.

    cuts: layers before each boundary between stages, as of `simulator.stages_from_cuts`
    Where the problem does not recompute, a stage whose two sizes differ does: what a forward block has stored cannot be cut
    again.

    A link is a process that is busy for the bytes of a block, at the rate of its route's slowest channel: where links contend, no
    replay is faster. What every choice of sizes takes besides are `fixed_seconds`: the latencies of all links, each passed once,
    and the update of the first stage, whose backward pass is the last to end. So makespan + fixed seconds are those of the replay
    where no two links share a channel, no other stage's update and no sum of tied gradients ends later, and sends do not block;
    elsewhere the replay takes longer. On unlimited links, which are never busy, it may take less: `unlimited_links` bounds that.
    """
    problem, ranges = tables.problem, tables.ranges(cuts)
    seconds = np.array([tables.stage_seconds(stage, *ends) for stage, ends in enumerate(ranges)])
    links = [tables.link_seconds(link, end) for link, (_, end) in enumerate(ranges[:-1])]
    busy = np.array([row for row, _ in links]).reshape(len(links), 2, problem.batch + 1)
    update = tables.costs.update_seconds(tables.devices[0], tables.costs.weight_elements(range(*ranges[0])))
    return UnequalProblem(
        samples=problem.batch,
        forward=seconds[:, 0],
        backward=seconds[:, 1],
        again=seconds[:, 2],
        forward_link=busy[:, 0],
        backward_link=busy[:, 1],
        candidates=tuple(candidates),
        backward_caps=backward_caps,
        recomputation="always" if problem.recompute == "whole" else "where-differs",
        fixed_seconds=sum(latency for _, latency in links) + update,
    )


def limited_problem(
    tables: UnequalTables, cuts: Sequence[int], candidates: Sequence[int], limits: Sequence[float]
) -> UnequalProblem:
    """The unequal problem of a partition with backward caps under which every stage stays within its limit in bytes.

    The caps are exact where the problem recomputes. Else a stage that recomputes where its sizes differ must hold the stash of
    the whole batch, and its backward size is capped as if it recomputed: safe, and for equal sizes stricter than it need be.
    Raises InfeasibleSizes where a stage does not fit.
    """
    batch, caps = tables.problem.batch, []
    for stage, (ends, limit) in enumerate(zip(tables.ranges(cuts), limits, strict=True)):
        held = tables.stage_bytes(*ends)
        sizes = [size for size in candidates if held.recomputed(batch, size) <= limit]
        if not (sizes if tables.problem.recompute == "whole" else held.stored(batch) <= limit):
            raise InfeasibleSizes(f"stage {stage} does not fit into {limit:.0f} bytes with any candidate size")
        caps.append(max(sizes, default=batch))
    return unequal_problem(tables, cuts, candidates, tuple(caps))


def unlimited_links(unequal: UnequalProblem) -> UnequalProblem:
    """A relaxation of the problem for unlimited links, which are never busy and delay any block as little as one sample."""
    ways = unequal.forward_link, unequal.backward_link
    return _without_links(unequal, float(sum(table[:, 1].sum() for table in ways)))


def _without_links(unequal: UnequalProblem, more: float) -> UnequalProblem:
    """The problem with links that take no time, and `more` fixed seconds."""
    ways = {name: np.zeros_like(getattr(unequal, name)) for name in ("forward_link", "backward_link")}
    return replace(unequal, fixed_seconds=unequal.fixed_seconds + more, **ways)


def least_seconds(tables: UnequalTables, sizes: Sequence[int]) -> float:
    """Lower bound on the seconds of any partition with any of these sizes: of the busiest stage, where that is least.

    0 for boards whose layers stream, and for long networks, of which ranges of layers are too many.
    """
    layers, costs, batch = tables.layers, tables.costs, tables.problem.batch
    if layers > MOST_LAYERS or any(costs.streams(device) for device in tables.devices):
        return 0.0
    of_size = partial(straight_costs, costs, tables.devices)

    def in_blocks(size: int) -> Floats:
        whole, rest = divmod(batch, size)
        return whole * of_size(size).stage_seconds + (of_size(rest).stage_seconds if rest else 0.0)

    passes = reduce(np.minimum, map(in_blocks, sizes))
    loads = np.where(np.triu(np.ones((layers + 1, layers + 1)), 1) > 0, passes.sum(axis=0), np.inf)
    least = np.full(layers + 1, np.inf)
    least[0] = 0.0
    for kind in of_size(batch).kind:
        least = np.maximum(least[:, None], loads[kind]).min(axis=0)
    return float(least[-1])


def crowded_links(tables: UnequalTables, unequal: UnequalProblem) -> UnequalProblem:
    """The problem with links slowed down as if all links of a channel used it at once; its sizes are where a search may begin."""
    routes = [set(tables.problem.cluster.route(*ends)) for ends in pairwise(tables.devices)]
    sharing = [[max((sum(channel in one for one in routes) for channel in route), default=1)] for route in routes]
    slower = np.array(sharing, dtype=np.float64).reshape(len(routes), 1)
    return replace(
        unequal, forward_link=unequal.forward_link * slower, backward_link=unequal.backward_link * slower, quantum=0.0
    )


def loosest_problem(tables: UnequalTables, unequal: UnequalProblem) -> UnequalProblem:
    """A relaxation of the problem's replay: the problem itself where links contend, without queues where they do not, and without
    links where transfers take no time.
    """
    if tables.problem.communication in WITHOUT_LINKS:
        ends = [(near, far) for one in pairwise(tables.devices) for near, far in (one, one[::-1])]
        return _without_links(unequal, -sum(tables.problem.cluster.point_to_point(*one)[0] for one in ends))
    return unequal if tables.problem.contention else unlimited_links(unequal)


def unequal_plan(
    planner: str,
    tables: UnequalTables,
    cuts: Sequence[int],
    forward_sizes: Sequence[int],
    backward_sizes: Sequence[int],
) -> Plan:
    """A GPipe plan whose stages have these forward and backward sizes; with one size throughout, a plan with plain
    micro-batches.
    """
    batch, layers = tables.problem.batch, tables.layers
    stages = stages_from_cuts(cuts, layers, [(device,) for device in tables.devices[: len(cuts) + 1]])
    forward, backward = (tuple(blocks(batch, size) for size in sizes) for sizes in (forward_sizes, backward_sizes))
    if len({*forward, *backward}) == 1:
        return Plan(planner, "gpipe", stages, forward[0])
    return Plan(planner, "gpipe", stages, forward[0], forward_sizes=forward, backward_sizes=backward)


def blocks(batch: int, size: int) -> tuple[int, ...]:
    """Samples of each micro-batch: `size`, and in the last one what is left of the batch."""
    return (size,) * (batch // size) + ((batch % size,) if batch % size else ())
