"""Public names, each in its module; loaded when they are first used."""

from .bound import lower_bound as lower_bound
from .coupled import exact_coupled as exact_coupled
from .evaluators import EVALUATORS as EVALUATORS, PopulationEvaluator as PopulationEvaluator
from .exact import exact_sizes as exact_sizes
from .genetic import Genetic as Genetic, dgap as dgap, tidgap as tidgap
from .greedy import (
    best_equal as best_equal,
    equal_plan as equal_plan,
    greedy_dp as greedy_dp,
    local_greedy as local_greedy,
)
from .instances import FAMILIES as FAMILIES, random_problem as random_problem
from .nested import NestedPlan as NestedPlan, search_partition as search_partition
from .problem import (
    RECOMPUTATION as RECOMPUTATION,
    InfeasibleSizes as InfeasibleSizes,
    UnequalProblem as UnequalProblem,
    powers_of_two as powers_of_two,
    problem_from_callables as problem_from_callables,
)
from .result import SearchStopped as SearchStopped, UnequalPlan as UnequalPlan
from .tables import (
    blocks as blocks,
    candidate_sizes as candidate_sizes,
    limited_problem as limited_problem,
    memory_limits as memory_limits,
    unequal_plan as unequal_plan,
)
