"""Orders of the blocks on every stage for unequal sizes: with a flush, and one forward one backward with credits.

An order is, per stage, a list of (kind, index): ("F", 3) is forward block 3 of that stage, samples 3 f_k .. 4 f_k.

    K=2, B=4, f = (2, 1), g = (1, 2), credits (4, 2):
    stage 0:  F0 F1 | B0 B1 B2 B3
    stage 1:  F0 F1 | B0 F2 F3 B1

Credits. Stage k runs its next forward block if afterwards the samples it has forwarded but not yet backwarded are at
most credit_k, else its next backward block. So a stage never stashes more than credit_k samples, whatever the sizes.

Why it cannot deadlock. Let N_k(i) be the samples that stage k has forwarded before its backward block i in that order,
and Q = min((i + 1) g_k, B) the samples covered once it is done. Block i waits for a backward link block, which waits
for backward block i' of stage k+1, the one that holds the last sample of that link block; before i', stage k+1 forwards
N_{k+1}(i') samples, which reach it in forward link blocks up to sample U. Call U the need of block i (Q on the last
stage), and require N_k(i) >= need of i for every i and k: `least_credits` are the smallest credits for which it holds,
found from the last stage to the first.
Suppose that the operations that can still run are exhausted but some remain. A forward block at the head of its stage
waits for the stage before, whose head then is an unfinished block too; stage 0 never waits, so some stage has a backward
block at its head that cannot run. Take the last such stage k, and its block i. On the last stage it needs only samples
that N(i) >= Q covers, so k is not the last, and backward block i' of stage k+1 is not done. The head of stage k+1 is i'
or something before it in its order. It is not a backward block: by the choice of k that one could run. So it is a
forward block among the first N_{k+1}(i') samples; but stage k is past the forward blocks of N_k(i) >= U samples, so the
links have delivered all that it covers and it can run. Contradiction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planners.unequal.problem import UnequalProblem

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
    forward, backward = _stage_sizes(problem, forward_sizes, backward_sizes)
    return [
        [("F", j) for j in range(-(-problem.samples // f))] + [("B", j) for j in range(-(-problem.samples // g))]
        for f, g in zip(forward, backward, strict=True)
    ]


def one_forward_one_backward_order(
    problem: UnequalProblem,
    forward_sizes: Sequence[int],
    backward_sizes: Sequence[int],
    credits: Sequence[int] | None = None,
) -> list[Order]:
    """The order of every stage under credits (see above), which cannot deadlock.

    `credits` default to `default_credits`. Raises ValueError for credits below the least that are safe.
    """
    forward, backward = _stage_sizes(problem, forward_sizes, backward_sizes)
    chosen = list(credits) if credits is not None else default_credits(problem, forward_sizes, backward_sizes)
    if len(chosen) != problem.stages:
        raise ValueError(f"credits must be {problem.stages} numbers of samples, one a stage, not {chosen}")
    least = least_credits(problem, forward_sizes, backward_sizes, chosen)
    if any(credit < limit for credit, limit in zip(chosen, least, strict=True)):
        raise ValueError(f"credits {chosen} can deadlock: with these sizes they must be at least {least}")
    orders = []
    for stage in range(problem.stages):
        order: Order = []
        begun = 0
        for i in range(-(-problem.samples // backward[stage])):
            stop = _forwarded(problem.samples, forward[stage], i * backward[stage] + chosen[stage])
            order += [("F", j) for j in range(begun, -(-stop // forward[stage]))]
            begun = max(begun, -(-stop // forward[stage]))
            order.append(("B", i))
        orders.append(order)
    return orders


def default_credits(
    problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int], ahead: int = 1
) -> list[int]:
    """`ahead` larger blocks more than the least at every stage but the last: for equal sizes b, (K - k) b samples.

    That is classic 1F1B: stage k starts with K - k forward micro-batches. More `ahead` hides links, and costs memory.
    """
    return _credits(problem, forward_sizes, backward_sizes, None, ahead)


def least_credits(
    problem: UnequalProblem,
    forward_sizes: Sequence[int],
    backward_sizes: Sequence[int],
    credits: Sequence[int] | None = None,
) -> list[int]:
    """The least credit of every stage that is safe, given those of the stages after it.

    `credits` are what the later stages have; None: their least.
    """
    return _credits(problem, forward_sizes, backward_sizes, credits, 0)


def replay(
    problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int], orders: Sequence[Order]
) -> Replay:
    """Run an order: every stage in its order, links first in first out and apart in both directions.

    Raises `Deadlock` where operations remain that wait for one another.
    """
    return _Run(problem, forward_sizes, backward_sizes).play(orders)


def _credits(
    problem: UnequalProblem,
    forward_sizes: Sequence[int],
    backward_sizes: Sequence[int],
    given: Sequence[int] | None,
    ahead: int,
) -> list[int]:
    samples, stages = problem.samples, problem.stages
    forward, backward = _stage_sizes(problem, forward_sizes, backward_sizes)
    forward_links = problem.forward_chain.blocks(forward_sizes)[1::2]
    backward_links = problem.backward_chain.blocks(backward_sizes)[1::2][::-1]
    least = [0] * stages
    later = 0
    for stage in range(stages - 1, -1, -1):
        f, g = forward[stage], backward[stage]
        for i in range(-(-samples // g)):
            need = min((i + 1) * g, samples)
            if stage + 1 < stages:
                sent = _up(need, backward_links[stage], samples)
                after = -(-sent // backward[stage + 1]) - 1
                reached = _forwarded(samples, forward[stage + 1], after * backward[stage + 1] + later)
                need = max(need, _up(reached, forward_links[stage], samples))
            least[stage] = max(least[stage], _up(need, f, samples) - i * g)
        if given is not None:
            later = given[stage]
        elif stage + 1 < stages and ahead:
            later = least[stage] = min(samples, least[stage] + ahead * max(f, g))
        else:
            later = least[stage]
    return least


def _forwarded(samples: int, size: int, limit: int) -> int:
    """Samples in the forward blocks that end at or before sample `limit`; the last block ends at B."""
    return samples if limit >= samples else limit // size * size


def _up(count: int, size: int, samples: int) -> int:
    """The end of the block that holds sample `count`."""
    return min(-(-count // size) * size, samples)


def _stage_sizes(
    problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int]
) -> tuple[list[int], list[int]]:
    problem.check_sizes("forward_sizes", forward_sizes)
    problem.check_sizes("backward_sizes", backward_sizes)
    step = 2 if problem.link_block == "own" else 1
    return [int(f) for f in forward_sizes[::step]], [int(g) for g in backward_sizes[::step]]


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
