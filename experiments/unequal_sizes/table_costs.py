"""Table costs: the tables of an unequal problem as costs that the simulator lowers: stages as devices, links as channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles import Channel, Floats, Integers
from planners.unequal import UnequalProblem, blocks
from simulator import Costs, OpKind, Program, Transfer, lower, unequal_schedule


@dataclass(frozen=True, slots=True, eq=False)
class TableCosts(Costs):
    """What lowering asks, answered by the tables of a problem; a link and direction is a channel that a block keeps busy.

    again: 1.0 for every stage that runs its forward pass again, else 0.0
    """

    problem: UnequalProblem
    again: Floats

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Down and up between each pair of stages; at 1 byte/s, so that bytes are seconds."""
        links = 2 * (self.problem.stages - 1)
        return tuple(Channel(f"link {number}", 1.0, 0.0, (1.0, 1.0, 1.0)) for number in range(links))

    def device(self, stage: int, replica: int) -> int:
        """A stage's own."""
        return stage

    def seconds(self, kind: OpKind, stage: int, replica: int, samples: Integers) -> Floats:
        """A row of the tables."""
        forward, backward = self.problem.forward[stage], self.problem.backward[stage]
        again = np.asarray(self.problem.again)[stage]
        row = forward if kind == OpKind.FORWARD else backward + self.again[stage] * again
        return np.asarray(row[samples])

    def transfer(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> Transfer:
        """A block on the link between two neighbours."""
        link, up = min(source[0], target[0]), source[0] > target[0]
        table = self.problem.backward_link if up else self.problem.forward_link
        seconds = float(table[link, samples])
        return Transfer(seconds, seconds, (2 * link + up,))


def program_of(
    problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int], schedule: str = "gpipe"
) -> Program:
    """One mini-batch as a program; on contended channels, with a flush, it ends at the makespan of the problem."""
    forward, backward = (
        [blocks(problem.samples, int(size)) for size in sizes] for sizes in (forward_sizes, backward_sizes)
    )
    differs = np.not_equal(forward_sizes, backward_sizes) & problem.coupled
    costs = TableCosts(problem, (differs | (problem.recomputation == "always")).astype(np.float64))
    return lower(unequal_schedule(schedule, forward, backward), costs, forward_sizes=forward, backward_sizes=backward)
