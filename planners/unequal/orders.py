"""Orders of the blocks on every stage for unequal sizes: with a flush, and one forward one backward with credits.

An order is, per stage, a list of (kind, index): ("F", 3) is forward block 3 of that stage, samples 3 f_k .. 4 f_k.

    K=2, B=4, f = (2, 1), g = (1, 2), credits (4, 2):
    stage 0:  F0 F1 | B0 B1 B2 B3
    stage 1:  F0 F1 | B0 F2 F3 B1

The orders are those of `simulator.schedules.unequal`, with the blocks of the links; `replay` is a plain-Python oracle of
the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planners.unequal.chain import Integers
from planners.unequal.problem import UnequalProblem
from simulator import credited_orders, flush_orders, least_safe_credits, safe_credits

Operation = tuple[str, int]
Order = list[Operation]


class Deadlock(RuntimeError):
    """The operations left all wait for one another."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What running an order took: end times in seconds of every forward and backward block, per stage."""

    forward_ends: tuple[tuple[float, ...], ...]
    backward_ends: tuple[tuple[float, ...], ...]
    makespan_seconds: float
    outstanding: tuple[int, ...]
    """The most samples forwarded but not yet backwarded, per stage."""


def flush_order(problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int]) -> list[Order]:
    """All forward blocks of a stage, then all its backward blocks (GPipe)."""
    forward, backward, _, _ = _bounds(problem, forward_sizes, backward_sizes)
    return flush_orders(forward, backward)


def one_forward_one_backward_order(
    problem: UnequalProblem,
    forward_sizes: Sequence[int],
    backward_sizes: Sequence[int],
    credits: Sequence[int] | None = None,
) -> list[Order]:
    """The order of every stage under credits, which cannot deadlock (the proof is in `simulator.schedules.unequal`).

    `credits` default to `default_credits`. Raises ValueError for credits below the least that are safe.
    """
    forward, backward, ahead_links, back_links = _bounds(problem, forward_sizes, backward_sizes)
    chosen = list(credits) if credits is not None else default_credits(problem, forward_sizes, backward_sizes)
    return credited_orders(forward, backward, chosen, ahead_links, back_links)


def default_credits(
    problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int], ahead: int = 1
) -> list[int]:
    """`ahead` larger blocks more than the least at every stage but the last: for equal sizes b, (K - k) b samples.

    That is classic 1F1B: stage k starts with K - k forward micro-batches. More `ahead` hides links, and costs memory.
    """
    forward, backward, ahead_links, back_links = _bounds(problem, forward_sizes, backward_sizes)
    return safe_credits(forward, backward, ahead, ahead_links, back_links)


def least_credits(
    problem: UnequalProblem,
    forward_sizes: Sequence[int],
    backward_sizes: Sequence[int],
    credits: Sequence[int] | None = None,
) -> list[int]:
    """The least credit of every stage that is safe, given those of the stages after it.

    `credits` are what the later stages have; None: their least.
    """
    forward, backward, ahead_links, back_links = _bounds(problem, forward_sizes, backward_sizes)
    return least_safe_credits(forward, backward, credits, ahead_links, back_links)


def replay(
    problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int], orders: Sequence[Order]
) -> Replay:
    """Run an order: every stage in its order, links first in first out and apart in both directions.

    Raises `Deadlock` where operations remain that wait for one another.
    """
    return _Run(problem, forward_sizes, backward_sizes).play(orders)


def _bounds(
    problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int]
) -> tuple[list[Integers], list[Integers], list[Integers], list[Integers]]:
    """Block bounds of the stages forward and backward, and of the links behind each stage, forward and backward."""
    problem.check_sizes("forward_sizes", forward_sizes)
    problem.check_sizes("backward_sizes", backward_sizes)
    ahead = [_edges(problem.samples, size) for size in problem.forward_chain.blocks(forward_sizes)]
    back = [_edges(problem.samples, size) for size in problem.backward_chain.blocks(backward_sizes)][::-1]
    return ahead[::2], back[::2], ahead[1::2], back[1::2]


def _edges(samples: int, size: int) -> Integers:
    return np.append(np.arange(0, samples, size, dtype=np.int64), samples)


class _Lane:
    """Blocks of one stage and pass, or of one link and direction: sizes, durations, ends so far."""

    def __init__(self, samples: int, size: int, table: Sequence[float], source: _Lane | None) -> None:
        self.samples, self.size, self.table, self.source = samples, size, table, source
        self.count = -(-samples // size)
        self.ends: list[float] = []

    def arrival(self) -> float | None:
        """When all that the next block covers has been delivered; None where that is not known yet."""
        if self.source is None:
            return 0.0
        last = min((len(self.ends) + 1) * self.size, self.samples)
        holder = -(-last // self.source.size) - 1
        return self.source.ends[holder] if holder < len(self.source.ends) else None

    def run(self, start: float) -> float:
        """Run the next block at `start`; returns its end."""
        begun = len(self.ends) * self.size
        self.ends.append(start + self.table[min(begun + self.size, self.samples) - begun])
        return self.ends[-1]


class _Run:
    """One replay: lanes of the two chains in stage order; the last stage's backward waits for its own forward."""

    def __init__(self, problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int]) -> None:
        self.samples, self.stages = problem.samples, problem.stages
        differs = problem.differs(forward_sizes, backward_sizes) if problem.coupled else None
        lanes: list[_Lane] = []
        for chain, sizes, flags in (
            (problem.forward_chain, forward_sizes, None),
            (problem.backward_chain, backward_sizes, differs),
        ):
            for block, row in zip(chain.blocks(sizes), chain.rows(flags), strict=True):
                source = lanes[-1] if lanes else None
                lanes.append(_Lane(self.samples, block, chain.durations[row].tolist(), source))
        middle = len(lanes) // 2
        self.forward, self.backward = lanes[:middle:2], lanes[middle::2][::-1]
        self.links = lanes[1:middle:2] + lanes[middle + 1 :: 2]

    def play(self, orders: Sequence[Order]) -> Replay:
        heads, free = [0] * self.stages, [0.0] * self.stages
        most = [0] * self.stages
        moved = True
        while moved:
            moved = False
            for stage, order in enumerate(orders):
                while heads[stage] < len(order):
                    lane = (self.forward if order[heads[stage]][0] == "F" else self.backward)[stage]
                    arrival = lane.arrival()
                    if arrival is None:
                        break
                    free[stage] = lane.run(max(free[stage], arrival))
                    heads[stage] += 1
                    most[stage] = max(most[stage], self._outstanding(stage))
                    moved = True
            for link in self.links:
                while len(link.ends) < link.count and (ready := link.arrival()) is not None:
                    link.run(max(link.ends[-1] if link.ends else 0.0, ready))
                    moved = True
        if any(head < len(order) for head, order in zip(heads, orders, strict=True)):
            waiting = [order[head] for head, order in zip(heads, orders, strict=True) if head < len(order)]
            raise Deadlock(f"operations that wait for one another: {waiting}")
        return Replay(
            forward_ends=tuple(tuple(lane.ends) for lane in self.forward),
            backward_ends=tuple(tuple(lane.ends) for lane in self.backward),
            makespan_seconds=max(free),
            outstanding=tuple(most),
        )

    def _outstanding(self, stage: int) -> int:
        done = (min(len(lane.ends) * lane.size, self.samples) for lane in (self.forward[stage], self.backward[stage]))
        ahead, back = done
        return ahead - back
