"""Unequal tables: a problem's layer costs as the duration tables and memory of an unequal problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planners.unequal import MemoryModel, UnequalProblem, powers_of_two
from simulator import LayerCosts, Plan, Problem, stages_from_cuts

Floats = NDArray[np.float64]

CANDIDATES = ("all", "powers-of-two")
"""Which sizes a search may choose: every one from 1 to the batch, or powers of two and the batch."""

MOST_FOR_ALL = 64
"""Largest batch in samples for which every size is a candidate unless the user says otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class UnequalTables:
    """Costs of a chain of layers at every number of samples, as prefix sums over the layers.

    problem: whose costs these are; devices: of each stage of a pipeline, in order
    forward, backward: float64 [kinds of accelerator, batch + 1, layers + 1], seconds
    kind: kind of accelerator of each device
    state_bytes: float64 [layers + 1], own weights, gradients and optimizer (see `held_bytes`)
    stash_bytes: float64 [layers + 1], a sample
    crossing_bytes: float64 [layers + 1], a sample, across the cut before each layer
    links: seconds of 0..batch samples by (link, cut), float64 [2, batch + 1], forward and backward; filled as they are asked for
    """

    problem: Problem
    devices: tuple[int, ...]
    forward: Floats
    backward: Floats
    kind: tuple[int, ...]
    state_bytes: Floats
    stash_bytes: Floats
    crossing_bytes: Floats
    links: dict[tuple[int, int], Floats] = field(default_factory=dict, repr=False)

    def link_seconds(self, link: int, cut: int) -> Floats:
        """Seconds between stages `link` and `link + 1` where the cut between them stands before layer `cut`, [2, batch + 1]."""
        if (link, cut) not in self.links:
            near, far = self.devices[link], self.devices[link + 1]
            seconds = np.zeros((2, self.problem.batch + 1))
            for size in range(1, self.problem.batch + 1):
                amount = float(self.crossing_bytes[cut] * size)
                seconds[0, size] = self.problem.cluster.transfer_seconds(near, far, amount)
                seconds[1, size] = self.problem.cluster.transfer_seconds(far, near, amount)
            self.links[link, cut] = seconds
        return self.links[link, cut]

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.state_bytes) - 1

    def held_bytes(self, begin: int, end: int) -> float:
        """Bytes of weights, gradients and optimizer of a stage of layers begin..end - 1, copies of tied weights included."""
        problem = self.problem
        copies = sum(
            tied.parameters
            for tied in problem.workload.tied_weights()
            if tied.layers[0] < begin and any(begin <= layer < end for layer in tied.layers)
        )
        each = 2.0 * problem.element_bytes + problem.optimizer_bytes
        return float(self.state_bytes[end] - self.state_bytes[begin]) + copies * each

    def stage_seconds(self, samples: int) -> Floats:
        """Forward + backward seconds of each layer on each stage's device, float64 [stages, layers]."""
        both = np.diff(self.forward[:, samples] + self.backward[:, samples], axis=1)
        again = np.diff(self.forward[:, samples], axis=1) if self.problem.recompute else 0.0
        seconds: Floats = (both + again)[list(self.kind)]
        return seconds


def tables_of(problem: Problem, devices: Sequence[int], costs: LayerCosts | None = None) -> UnequalTables:
    """The tables of a problem for a pipeline over `devices`, one a stage.

    costs: of the same problem, to share tables that are already filled
    """
    layer_costs = costs or LayerCosts(problem)
    kinds = [layer_costs.kind_of_device(device) for device in devices]
    distinct = sorted(set(kinds))
    example = [devices[kinds.index(kind)] for kind in distinct]
    layers, batch = len(problem.workload), problem.batch
    tables = np.zeros((2, len(distinct), batch + 1, layers + 1))
    for number, device in enumerate(example):
        for size in range(1, batch + 1):
            np.cumsum(layer_costs.seconds(device, size, "forward"), out=tables[0, number, size, 1:])
            np.cumsum(layer_costs.seconds(device, size, "backward"), out=tables[1, number, size, 1:])
    state = layer_costs.parameters * (2.0 * problem.element_bytes + problem.optimizer_bytes)
    cuts = [layer_costs.crossing_bytes(set(range(cut))) for cut in range(layers + 1)]
    return UnequalTables(
        problem=problem,
        devices=tuple(devices),
        forward=tables[0],
        backward=tables[1],
        kind=tuple(distinct.index(kind) for kind in kinds),
        state_bytes=np.concatenate([[0.0], np.cumsum(state)]),
        stash_bytes=np.concatenate([[0.0], np.cumsum(layer_costs.stashed_bytes)]),
        crossing_bytes=np.array(cuts),
    )


def candidate_sizes(batch: int, candidates: str | None = None) -> tuple[int, ...]:
    """The sizes to choose from: one of `CANDIDATES`; None for all of a batch up to MOST_FOR_ALL, else powers of two."""
    if candidates not in (None, *CANDIDATES):
        raise ValueError(f"candidates {candidates!r} are unknown; choices: {', '.join(CANDIDATES)}")
    if candidates == "all" or (candidates is None and batch <= MOST_FOR_ALL):
        return tuple(range(1, batch + 1))
    return powers_of_two(batch)


def unequal_problem(
    tables: UnequalTables,
    cuts: Sequence[int],
    candidates: Sequence[int],
    *,
    link_block: str = "sender",
    recomputation: str | None = None,
) -> UnequalProblem:
    """The unequal problem of one partition, without memory limits.

    cuts: layers before each boundary between stages, as in `simulator.stages_from_cuts`
    recomputation: None for "always" where the problem recomputes, else "where-differs": what a forward block has stored
        cannot be cut again
    Links are processes at their idle rate: no contention. The optimizer's update is not part of it.
    """
    problem, stages = tables.problem, len(cuts) + 1
    bounds = np.array([0, *cuts, tables.layers])
    kind = list(tables.kind[:stages])
    batch = problem.batch

    def per_stage(prefix: Floats) -> Floats:
        values: Floats = prefix[kind, :, bounds[1:]] - prefix[kind, :, bounds[:-1]]
        return values

    inputs = tables.crossing_bytes[bounds[:-1]]
    links = np.zeros((2, stages - 1, batch + 1))
    for link, cut in enumerate(cuts):
        links[:, link] = tables.link_seconds(link, int(cut))
    return UnequalProblem(
        samples=batch,
        forward=per_stage(tables.forward),
        backward=per_stage(tables.backward),
        forward_link=links[0],
        backward_link=links[1],
        candidates=tuple(candidates),
        link_block=link_block,
        recomputation=recomputation or ("always" if problem.recompute else "where-differs"),
        memory=MemoryModel(
            state_bytes=tuple(tables.held_bytes(begin, end) for begin, end in pairwise(bounds.tolist())),
            input_bytes=tuple(inputs.tolist()),
            activation_bytes=tuple(np.diff(tables.stash_bytes[bounds]).tolist()),
            forward_workspace_bytes=(0.0,) * stages,
            backward_workspace_bytes=(0.0,) * stages,
        ),
    )


def unequal_plan(
    planner: str,
    tables: UnequalTables,
    cuts: Sequence[int],
    forward_sizes: Sequence[int],
    backward_sizes: Sequence[int],
) -> Plan:
    """A GPipe plan whose stages have these sizes; equal ones give the plain plan."""
    batch, layers = tables.problem.batch, tables.layers
    stages = stages_from_cuts(cuts, layers, [(device,) for device in tables.devices[: len(cuts) + 1]])
    forward, backward = (tuple(blocks(batch, size) for size in sizes) for sizes in (forward_sizes, backward_sizes))
    if len({*forward, *backward}) == 1:
        return Plan(planner, "gpipe", stages, forward[0])
    return Plan(planner, "gpipe", stages, forward[0], forward_sizes=forward, backward_sizes=backward)


def blocks(batch: int, size: int) -> tuple[int, ...]:
    """Micro-batches of `size` samples; the last one holds what is left."""
    return (size,) * (batch // size) + ((batch % size,) if batch % size else ())
