"""Programs: unequal block sizes as a program of the simulator's engines, links as processes of their own."""

from __future__ import annotations

from collections.abc import Sequence

from planners.unequal.orders import Order
from planners.unequal.problem import UnequalProblem
from simulator import Program, chain_process, lower_chain


def program_of(
    problem: UnequalProblem,
    forward_sizes: Sequence[int],
    backward_sizes: Sequence[int],
    orders: Sequence[Order] | None = None,
    devices: Sequence[int] | None = None,
) -> Program:
    """One mini-batch in the given order, by default with a flush; replayed, it ends at the problem's makespan.

    devices: of each stage, for pictures. Raises ValueError for sizes that are none of the problem's.
    """
    problem.check_sizes("forward_sizes", forward_sizes)
    problem.check_sizes("backward_sizes", backward_sizes)
    differs = problem.differs(forward_sizes, backward_sizes) if problem.coupled else None
    chains = (problem.forward_chain, forward_sizes, None), (problem.backward_chain, backward_sizes, differs)
    forward, backward = (
        [
            chain_process(problem.samples, block, chain.durations[row])
            for block, row in zip(chain.blocks(sizes), chain.rows(flags), strict=True)
        ]
        for chain, sizes, flags in chains
    )
    return lower_chain(forward, backward, orders, devices)
