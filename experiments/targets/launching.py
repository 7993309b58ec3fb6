"""Problems whose plans a target can launch."""

from __future__ import annotations

from experiments.targets.names import TARGETS
from hardware_profiles import check_kind, unchosen
from simulator import Problem


def launchable(problem: Problem, target: str) -> Problem:
    """The problem, whose stack runs no plan but those that a target can launch, without sequence parallelism where it has none.

    target: `megatron`, `torchtitan`, `deepspeed` or `torch-csv`
    ValueError for an unknown target, and for one that runs no plan of the problem, or none under its stack.
    """
    check_kind("problem", problem, Problem)
    if target not in TARGETS:
        raise ValueError(unchosen("target", target, TARGETS))
    if lacks := TARGETS[target].problem_lacks(problem):
        raise ValueError(f"{target} cannot run plans of {problem.title}: it has no {'; no '.join(lacks)}")
    return problem.under(problem.stack.launched_by(target, TARGETS[target].runs))
