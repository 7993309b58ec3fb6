"""Planners: search for a good plan of a problem.

Names are loaded from their modules when they are first asked for, so that `pipeplan --help` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planners.balanced_partition import (
        PartitionCosts,
        coarse_points,
        equal_partition,
        fastest_cuts,
        filled_cuts,
        furthest_ends,
        ideal_stage_seconds,
        minimax_cuts,
        straight_costs,
    )
    from planners.bapipe import BaPipe, Candidate, Exploration, RuleOfThumb, explore, formula_seconds
    from planners.baselines import DataParallel, GreedyBalance, UniformLayers, uniform_cuts
    from planners.bounds import iteration_lower_bound, lower_bound_seconds
    from planners.brute_force import BruteForce
    from planners.grid import PipelineDataGrid
    from planners.intra_layer import LayerCut, fractional_cuts, split_workload, streamed_fractions
    from planners.pipedream import (
        HierarchicalPartition,
        InfeasiblePartition,
        LevelStage,
        PlannedStage,
        notation,
        partition,
        plan_seconds,
        stage_cost,
    )
    from planners.pipedream_planner import PipeDream, PipeDreamFlush
    from planners.pipedream_table import StateTable, measured_seconds, measured_table, state_table
    from planners.registry import PLANNERS, PlannerEntry, applicable_planners, make_plan, planner_entries, planner_entry
    from planners.search import (
        BudgetSpent,
        Evaluator,
        InapplicablePlannerError,
        PlannedOutcome,
        Planner,
        PlannerFailedError,
        Progress,
        Request,
        Score,
        run_planner,
    )
    from planners.unequal_planners import UnequalNested, UnequalSizes, balanced_problem
    from planners.unequal_tables import UnequalTables, tables_of, unequal_problem

_HOME = {
    "LayerCut": "intra_layer",
    "PartitionCosts": "balanced_partition",
    "equal_partition": "balanced_partition",
    "fastest_cuts": "balanced_partition",
    "furthest_ends": "balanced_partition",
    "straight_costs": "balanced_partition",
    "coarse_points": "balanced_partition",
    "filled_cuts": "balanced_partition",
    "fractional_cuts": "intra_layer",
    "ideal_stage_seconds": "balanced_partition",
    "minimax_cuts": "balanced_partition",
    "split_workload": "intra_layer",
    "streamed_fractions": "intra_layer",
    "BaPipe": "bapipe",
    "Candidate": "bapipe",
    "Exploration": "bapipe",
    "RuleOfThumb": "bapipe",
    "explore": "bapipe",
    "formula_seconds": "bapipe",
    "DataParallel": "baselines",
    "GreedyBalance": "baselines",
    "UniformLayers": "baselines",
    "uniform_cuts": "baselines",
    "iteration_lower_bound": "bounds",
    "lower_bound_seconds": "bounds",
    "BruteForce": "brute_force",
    "HierarchicalPartition": "pipedream",
    "InfeasiblePartition": "pipedream",
    "LevelStage": "pipedream",
    "PlannedStage": "pipedream",
    "notation": "pipedream",
    "plan_seconds": "pipedream",
    "stage_cost": "pipedream",
    "partition": "pipedream",
    "PipelineDataGrid": "grid",
    "PipeDream": "pipedream_planner",
    "PipeDreamFlush": "pipedream_planner",
    "StateTable": "pipedream_table",
    "measured_seconds": "pipedream_table",
    "measured_table": "pipedream_table",
    "state_table": "pipedream_table",
    "PLANNERS": "registry",
    "PlannerEntry": "registry",
    "applicable_planners": "registry",
    "make_plan": "registry",
    "planner_entries": "registry",
    "planner_entry": "registry",
    "BudgetSpent": "search",
    "Evaluator": "search",
    "InapplicablePlannerError": "search",
    "PlannerFailedError": "search",
    "PlannedOutcome": "search",
    "Planner": "search",
    "Progress": "search",
    "Request": "search",
    "Score": "search",
    "run_planner": "search",
    "UnequalNested": "unequal_planners",
    "UnequalSizes": "unequal_planners",
    "balanced_problem": "unequal_planners",
    "UnequalTables": "unequal_tables",
    "unequal_problem": "unequal_tables",
    "tables_of": "unequal_tables",
}

__all__ = [
    "PLANNERS",
    "BaPipe",
    "BruteForce",
    "BudgetSpent",
    "Candidate",
    "DataParallel",
    "Evaluator",
    "Exploration",
    "GreedyBalance",
    "HierarchicalPartition",
    "InapplicablePlannerError",
    "InfeasiblePartition",
    "LayerCut",
    "LevelStage",
    "PartitionCosts",
    "PipeDream",
    "PipeDreamFlush",
    "PipelineDataGrid",
    "PlannedOutcome",
    "PlannedStage",
    "Planner",
    "PlannerEntry",
    "PlannerFailedError",
    "Progress",
    "Request",
    "RuleOfThumb",
    "Score",
    "StateTable",
    "UnequalNested",
    "UnequalSizes",
    "UnequalTables",
    "UniformLayers",
    "applicable_planners",
    "balanced_problem",
    "coarse_points",
    "equal_partition",
    "explore",
    "fastest_cuts",
    "filled_cuts",
    "formula_seconds",
    "fractional_cuts",
    "furthest_ends",
    "ideal_stage_seconds",
    "iteration_lower_bound",
    "lower_bound_seconds",
    "make_plan",
    "measured_seconds",
    "measured_table",
    "minimax_cuts",
    "notation",
    "partition",
    "plan_seconds",
    "planner_entries",
    "planner_entry",
    "run_planner",
    "split_workload",
    "stage_cost",
    "state_table",
    "straight_costs",
    "streamed_fractions",
    "tables_of",
    "unequal_problem",
    "uniform_cuts",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
