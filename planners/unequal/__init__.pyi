"""Public names, each in its module; loaded when they are first used."""

from .chain import Chain as Chain
from .compiled import (
    Compiled as Compiled,
    PopulationEvaluator as PopulationEvaluator,
    differing_stages as differing_stages,
    evaluate_rows as evaluate_rows,
    population as population,
)
from .exact import exact_sizes as exact_sizes
from .genetic import Genetic as Genetic, Population as Population
from .greedy import (
    best_equal as best_equal,
    evaluated_sizes as evaluated_sizes,
    one_size as one_size,
    greedy_dp as greedy_dp,
    local_greedy as local_greedy,
)
from .nested import search_partition as search_partition
from .planners import balanced_problem as balanced_problem
from .problem import (
    RECOMPUTATION as RECOMPUTATION,
    InfeasibleSizes as InfeasibleSizes,
    UnequalProblem as UnequalProblem,
    powers_of_two as powers_of_two,
)
from .profiles import tails as tails
from .found_sizes import Cuts as Cuts, FoundSizes as FoundSizes, Sized as Sized
from .tables import (
    CANDIDATES as CANDIDATES,
    UnequalTables as UnequalTables,
    blocks as blocks,
    candidate_sizes as candidate_sizes,
    limited_problem as limited_problem,
    memory_limits as memory_limits,
    tables_of as tables_of,
    unequal_plan as unequal_plan,
    unequal_problem as unequal_problem,
)
