"""Simulator: workloads, schedules, engines and timelines.

The modules `engine` (SimPy), `recurrence` and `event_loop` (both compiled) replay programs; each has a `replay` of its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.antichains import AntichainStates, antichain_states
    from simulator.chain_program import ChainProcess, chain_process, lower_chain
    from simulator.costs import Bucket, Costs, GivenCosts, Transfer, given_costs
    from simulator.figures import save
    from simulator.files import write_atomically
    from simulator.gantt_plots import gantt, readable_window
    from simulator.kernels import kernel
    from simulator.layer_costs import LayerCosts, measured_layer_seconds
    from simulator.layers import LAYER_KINDS, Layer, Workload
    from simulator.lowering import COMMUNICATIONS, Communication, lower
    from simulator.memory import CATEGORIES, DeviceMemory, memory_over_time
    from simulator.memory_plots import memory_figure
    from simulator.ops import COMPUTE_KINDS, LETTERS, Op, OpKind
    from simulator.plan import (
        OPTIMIZER_STATES,
        InfeasiblePlanError,
        Plan,
        Problem,
        Replication,
        Stage,
        check_plan,
        equal_microbatches,
        stages_from_cuts,
    )
    from simulator.plan_costs import BUCKET_BYTES, MOST_BUCKETS, PlanCosts
    from simulator.prediction import PREDICTION_RULES, PredictionRule
    from simulator.program import DeadlockError, LaneKind, Program
    from simulator.schedule import Schedule, ScheduleError, check_size
    from simulator.schedule_checks import check_schedule
    from simulator.schedule_text import from_text, from_torch_csv, read_schedule, to_text, to_torch_csv
    from simulator.schedules import (
        METHOD_SCHEDULES,
        REPLICA_UPDATES,
        SCHEDULES,
        VERSION_METHODS,
        ScheduleFamily,
        build_schedule,
        microbatches_per_minibatch,
        repeated_minibatches,
        schedule_families,
    )
    from simulator.schedules.unequal import (
        UNEQUAL_SCHEDULES,
        credited_orders,
        flush_orders,
        least_safe_credits,
        safe_credits,
        unequal_schedule,
    )
    from simulator.simulation import ENGINES, Engine, Outcome, build_program, replay_compiled, simulate
    from simulator.timeline import Bubble, Timeline, Transfers
    from simulator.traces import chrome_trace, write_chrome_trace
    from simulator.versions import COPY_RULES, VersionTable, version_table
    from simulator.workloads import (
        WORKLOADS,
        ConfigFormatError,
        ProfileFormatError,
        WorkloadFileError,
        load_workload,
        read_config,
        read_profile,
        workload_from_spec,
        workload_names,
    )

_HOME = {
    "AntichainStates": "antichains",
    "antichain_states": "antichains",
    "ChainProcess": "chain_program",
    "chain_process": "chain_program",
    "lower_chain": "chain_program",
    "COMPUTE_KINDS": "ops",
    "LETTERS": "ops",
    "Op": "ops",
    "OpKind": "ops",
    "LAYER_KINDS": "layers",
    "Layer": "layers",
    "Workload": "layers",
    "WORKLOADS": "workloads",
    "ConfigFormatError": "workloads",
    "ProfileFormatError": "workloads",
    "WorkloadFileError": "workloads",
    "load_workload": "workloads",
    "read_config": "workloads",
    "read_profile": "workloads",
    "workload_from_spec": "workloads",
    "workload_names": "workloads",
    "Schedule": "schedule",
    "ScheduleError": "schedule",
    "check_schedule": "schedule_checks",
    "check_size": "schedule",
    "from_text": "schedule_text",
    "from_torch_csv": "schedule_text",
    "read_schedule": "schedule_text",
    "to_text": "schedule_text",
    "to_torch_csv": "schedule_text",
    "METHOD_SCHEDULES": "schedules",
    "REPLICA_UPDATES": "schedules",
    "SCHEDULES": "schedules",
    "VERSION_METHODS": "schedules",
    "microbatches_per_minibatch": "schedules",
    "repeated_minibatches": "schedules",
    "PREDICTION_RULES": "prediction",
    "PredictionRule": "prediction",
    "COPY_RULES": "versions",
    "ScheduleFamily": "schedules",
    "build_schedule": "schedules",
    "UNEQUAL_SCHEDULES": "schedules.unequal",
    "credited_orders": "schedules.unequal",
    "flush_orders": "schedules.unequal",
    "least_safe_credits": "schedules.unequal",
    "safe_credits": "schedules.unequal",
    "unequal_schedule": "schedules.unequal",
    "schedule_families": "schedules",
    "Bucket": "costs",
    "Costs": "costs",
    "GivenCosts": "costs",
    "Transfer": "costs",
    "given_costs": "costs",
    "COMMUNICATIONS": "lowering",
    "Communication": "lowering",
    "lower": "lowering",
    "DeadlockError": "program",
    "LaneKind": "program",
    "Program": "program",
    "Bubble": "timeline",
    "Timeline": "timeline",
    "Transfers": "timeline",
    "OPTIMIZER_STATES": "plan",
    "InfeasiblePlanError": "plan",
    "Plan": "plan",
    "Problem": "plan",
    "Replication": "plan",
    "Stage": "plan",
    "check_plan": "plan",
    "equal_microbatches": "plan",
    "stages_from_cuts": "plan",
    "kernel": "kernels",
    "LayerCosts": "layer_costs",
    "measured_layer_seconds": "layer_costs",
    "BUCKET_BYTES": "plan_costs",
    "MOST_BUCKETS": "plan_costs",
    "PlanCosts": "plan_costs",
    "CATEGORIES": "memory",
    "DeviceMemory": "memory",
    "memory_over_time": "memory",
    "ENGINES": "simulation",
    "Engine": "simulation",
    "Outcome": "simulation",
    "build_program": "simulation",
    "replay_compiled": "simulation",
    "simulate": "simulation",
    "write_atomically": "files",
    "save": "figures",
    "gantt": "gantt_plots",
    "readable_window": "gantt_plots",
    "memory_figure": "memory_plots",
    "chrome_trace": "traces",
    "write_chrome_trace": "traces",
    "VersionTable": "versions",
    "version_table": "versions",
}

__all__ = [
    "BUCKET_BYTES",
    "CATEGORIES",
    "COMMUNICATIONS",
    "COMPUTE_KINDS",
    "COPY_RULES",
    "ENGINES",
    "LAYER_KINDS",
    "LETTERS",
    "METHOD_SCHEDULES",
    "MOST_BUCKETS",
    "OPTIMIZER_STATES",
    "PREDICTION_RULES",
    "REPLICA_UPDATES",
    "SCHEDULES",
    "UNEQUAL_SCHEDULES",
    "VERSION_METHODS",
    "WORKLOADS",
    "AntichainStates",
    "Bubble",
    "Bucket",
    "ChainProcess",
    "Communication",
    "ConfigFormatError",
    "Costs",
    "DeadlockError",
    "DeviceMemory",
    "Engine",
    "GivenCosts",
    "InfeasiblePlanError",
    "LaneKind",
    "Layer",
    "LayerCosts",
    "Op",
    "OpKind",
    "Outcome",
    "Plan",
    "PlanCosts",
    "PredictionRule",
    "Problem",
    "ProfileFormatError",
    "Program",
    "Replication",
    "Schedule",
    "ScheduleError",
    "ScheduleFamily",
    "Stage",
    "Timeline",
    "Transfer",
    "Transfers",
    "VersionTable",
    "Workload",
    "WorkloadFileError",
    "antichain_states",
    "build_program",
    "build_schedule",
    "chain_process",
    "check_plan",
    "check_schedule",
    "check_size",
    "chrome_trace",
    "credited_orders",
    "equal_microbatches",
    "flush_orders",
    "from_text",
    "from_torch_csv",
    "gantt",
    "given_costs",
    "kernel",
    "least_safe_credits",
    "load_workload",
    "lower",
    "lower_chain",
    "measured_layer_seconds",
    "memory_figure",
    "memory_over_time",
    "microbatches_per_minibatch",
    "read_config",
    "read_profile",
    "read_schedule",
    "readable_window",
    "repeated_minibatches",
    "replay_compiled",
    "safe_credits",
    "save",
    "schedule_families",
    "simulate",
    "stages_from_cuts",
    "to_text",
    "to_torch_csv",
    "unequal_schedule",
    "version_table",
    "workload_from_spec",
    "workload_names",
    "write_atomically",
    "write_chrome_trace",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module when it is first asked for: `--help` stays quick."""
    if name in ("engine", "event_loop", "recurrence"):
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
