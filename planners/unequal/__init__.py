"""Unequal micro-batches: every stage has its own forward and backward block size (UMPIPE, TPDS 36(2), 2025).

The names below load their modules, and with them numba, when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planners.unequal.bound import lower_bound as lower_bound
    from planners.unequal.chain import LINK_BLOCKS as LINK_BLOCKS
    from planners.unequal.coupled import exact_coupled as exact_coupled
    from planners.unequal.evaluators import EVALUATORS as EVALUATORS
    from planners.unequal.evaluators import PopulationEvaluator as PopulationEvaluator
    from planners.unequal.exact import exact_sizes as exact_sizes
    from planners.unequal.genetic import Genetic as Genetic
    from planners.unequal.genetic import dgap as dgap
    from planners.unequal.genetic import tidgap as tidgap
    from planners.unequal.greedy import best_equal as best_equal
    from planners.unequal.greedy import equal_plan as equal_plan
    from planners.unequal.greedy import greedy_dp as greedy_dp
    from planners.unequal.greedy import local_greedy as local_greedy
    from planners.unequal.instances import FAMILIES as FAMILIES
    from planners.unequal.instances import random_problem as random_problem
    from planners.unequal.memory import MemoryModel as MemoryModel
    from planners.unequal.memory import MemoryUse as MemoryUse
    from planners.unequal.nested import NestedPlan as NestedPlan
    from planners.unequal.nested import search_partition as search_partition
    from planners.unequal.orders import flush_order as flush_order
    from planners.unequal.orders import one_forward_one_backward_order as one_forward_one_backward_order
    from planners.unequal.orders import replay as replay
    from planners.unequal.pareto import ParetoPoint as ParetoPoint
    from planners.unequal.pareto import pareto_front as pareto_front
    from planners.unequal.problem import RECOMPUTATION as RECOMPUTATION
    from planners.unequal.problem import InfeasibleSizes as InfeasibleSizes
    from planners.unequal.problem import UnequalProblem as UnequalProblem
    from planners.unequal.problem import powers_of_two as powers_of_two
    from planners.unequal.problem import problem_from_callables as problem_from_callables
    from planners.unequal.programs import program_of as program_of
    from planners.unequal.recurrence import memory_use as memory_use
    from planners.unequal.result import SearchStopped as SearchStopped
    from planners.unequal.result import UnequalPlan as UnequalPlan

_HOME = {
    "EVALUATORS": "evaluators",
    "FAMILIES": "instances",
    "Genetic": "genetic",
    "InfeasibleSizes": "problem",
    "LINK_BLOCKS": "chain",
    "MemoryModel": "memory",
    "MemoryUse": "memory",
    "NestedPlan": "nested",
    "ParetoPoint": "pareto",
    "PopulationEvaluator": "evaluators",
    "RECOMPUTATION": "problem",
    "SearchStopped": "result",
    "UnequalPlan": "result",
    "UnequalProblem": "problem",
    "best_equal": "greedy",
    "equal_plan": "greedy",
    "dgap": "genetic",
    "exact_coupled": "coupled",
    "exact_sizes": "exact",
    "flush_order": "orders",
    "greedy_dp": "greedy",
    "local_greedy": "greedy",
    "lower_bound": "bound",
    "memory_use": "recurrence",
    "one_forward_one_backward_order": "orders",
    "pareto_front": "pareto",
    "powers_of_two": "problem",
    "problem_from_callables": "problem",
    "program_of": "programs",
    "random_problem": "instances",
    "replay": "orders",
    "search_partition": "nested",
    "tidgap": "genetic",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
