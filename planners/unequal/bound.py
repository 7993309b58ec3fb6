"""Lower bounds on the makespan of an unequal problem, valid for every size vector."""

from __future__ import annotations

from planners.unequal.problem import UnequalProblem
from planners.unequal.profiles import tails


def forward_bound(problem: UnequalProblem) -> float:
    """Seconds that no choice of forward sizes can undercut (see `profiles.tails`)."""
    return float(tails(problem.forward_chain)[0, 1])


def backward_bound(problem: UnequalProblem) -> float:
    """Seconds that no choice of backward sizes can undercut; where recomputation depends on sizes, without any."""
    return float(tails(problem.backward_chain)[0, 1])


def lower_bound(problem: UnequalProblem) -> float:
    """Seconds that no size vectors can undercut.

    At least the textbook bound max over stages of (fastest fill + least total time of the stage + fastest drain): the
    chosen size of a stage may differ from sample to sample in the bound, but fill, work and drain add up all the same.
    """
    return forward_bound(problem) + backward_bound(problem)
