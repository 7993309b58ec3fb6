"""Public names, each in its module; loaded when they are first used."""

from .partitioning.equal_partition import (
    equal_partition as equal_partition,
)
from .partitioning.fastest_cuts import (
    fastest_cuts as fastest_cuts,
)
from .partitioning.largest_load import (
    LOAD_RULES as LOAD_RULES,
    DeviceClass as DeviceClass,
    Output as Output,
    PlacementProblem as PlacementProblem,
    least_largest_load as least_largest_load,
)
from .partitioning.minimax_cuts import (
    minimax_cuts as minimax_cuts,
)
from .partitioning.partition_costs import (
    PartitionCosts as PartitionCosts,
    straight_costs as straight_costs,
)
from .bapipe.explorer import (
    BaPipe as BaPipe,
    Exploration as Exploration,
    RuleOfThumb as RuleOfThumb,
    explore as explore,
    formula_seconds as formula_seconds,
)
from .straight.brute_force import BruteForce as BruteForce
from .pipedream.partitioner import (
    MemoryLimit as MemoryLimit,
    HierarchicalPartition as HierarchicalPartition,
    InfeasiblePartition as InfeasiblePartition,
    LevelStage as LevelStage,
    network_levels as network_levels,
    notation as notation,
    partition as partition,
    plan_seconds as plan_seconds,
    stage_cost as stage_cost,
)
from .pipedream.state_table import (
    StateTable as StateTable,
    measured_table as measured_table,
    state_table as state_table,
)
from .scheduler.on_numbers import SearchedSchedule as SearchedSchedule, search_on_numbers as search_on_numbers
from .registry import (
    PLANNERS as PLANNERS,
    PlannerEntry as PlannerEntry,
    NotFasterError as NotFasterError,
    make_plan as make_plan,
    planner_entries as planner_entries,
    named_planner as named_planner,
    planner_entry as planner_entry,
    run_planner as run_planner,
)
from .forward_pipeline import (
    ForwardPipeline as ForwardPipeline,
    ForwardStage as ForwardStage,
    forward_pipeline as forward_pipeline,
)
from .least_energy import DeviceChoice as DeviceChoice, plan_by as plan_by
from .search.plan_judge import (
    OBJECTIVES as OBJECTIVES,
    PlanJudge as PlanJudge,
    PowerExceededError as PowerExceededError,
)
from .stack_choice import (
    StackChoice as StackChoice,
    plan_over_stacks as plan_over_stacks,
    stacks_that_run as stacks_that_run,
)
from .nearby import replayed_beside as replayed_beside, search_nearby as search_nearby
from .modern.order_search import OrderBound as OrderBound
from .search.notes import CutsLeftOut as CutsLeftOut, Note as Note
from .search.search_options import ASKED as ASKED, PLANNER_OPTIONS as PLANNER_OPTIONS
from .search.request import Request as Request
from .search.result import Proof as Proof, Result as Result, RunnerUp as RunnerUp
from .search.runner_ups import DECISIONS as DECISIONS, runner_ups as runner_ups
from .search.told_apart import (
    difference as difference,
    error_of_runner_up as error_of_runner_up,
    is_told_apart as is_told_apart,
    measurement as measurement,
    nearest_rival as nearest_rival,
    told_apart as told_apart,
)
from .search.evaluator import (
    BudgetSpent as BudgetSpent,
    Evaluator as Evaluator,
    InapplicablePlannerError as InapplicablePlannerError,
    Planner as Planner,
    PlannerFailedError as PlannerFailedError,
    Progress as Progress,
)
from .scheduler.schedule_problem import ScheduleProblem as ScheduleProblem
from .scheduler.search import FoundSchedule as FoundSchedule, search_schedule as search_schedule
