"""Plan files: a plan and the problem that it answers as one JSON document, written and read back."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from experiments.output import InputError, blamed_on, to_json
from experiments.problem_options import read_problem
from hardware_profiles import Precision, explained, read_bytes
from simulator import Communication, Plan, Problem, Replication, Stage, build_program, write_atomically

FORMAT = "pipeplan-plan-1"

Count = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
Index = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class Table(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A JSON object that refuses keys it does not know."""


class ProblemTable(Table, frozen=True, kw_only=True):
    """`problem`: the options of `pipeplan plan` that describe a problem, by their names."""

    cluster: str
    batch: Count
    workload: str | None = None
    profile: str | None = None
    devices: Count | None = None
    sequence: Count | None = None
    profiled_minibatch: Count | None = None
    precision: Precision = "fp32"
    optimizer: str = "momentum"
    recompute: bool = False
    communication: Communication = "overlapped"
    no_contention: bool = False
    weight_versions: str = "stashing"
    replica_updates: str = "overlapped"


class StageTable(Table, frozen=True, kw_only=True):
    """One of `plan.stages`: indices of the workload's layers, and ids of the cluster's devices."""

    layers: tuple[Index, ...]
    devices: tuple[Index, ...]


class PlanTable(Table, frozen=True, kw_only=True):
    """`plan`: a plan's decisions, and its notation for whoever reads the file."""

    planner: str
    schedule: str
    replication: Replication
    microbatches: tuple[Count, ...]
    stages: tuple[StageTable, ...]
    forward_sizes: tuple[tuple[Count, ...], ...] = ()
    backward_sizes: tuple[tuple[Count, ...], ...] = ()
    order: tuple[str, ...] = ()
    recompute: tuple[bool, ...] = ()
    notation: str = ""


class PlanFile(Table, frozen=True, kw_only=True):
    """A plan file."""

    format: Literal["pipeplan-plan-1"]
    problem: ProblemTable
    plan: PlanTable


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a plan file says: the plan, its problem, and the options that describe the problem."""

    plan: Plan
    problem: Problem
    options: dict[str, Any]


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan's decisions as plain JSON values; devices are ids of the cluster, layers indices of the workload."""
    return {
        "planner": plan.planner,
        "schedule": plan.schedule,
        "notation": plan.notation,
        "replication": plan.replication,
        "microbatches": list(plan.microbatches),
        "stages": [{"layers": list(stage.layers), "devices": list(stage.devices)} for stage in plan.stages],
        "forward_sizes": [list(sizes) for sizes in plan.forward_sizes],
        "backward_sizes": [list(sizes) for sizes in plan.backward_sizes],
        **({"order": list(plan.order)} if plan.order else {}),
        **({"recompute": list(plan.recompute)} if plan.recompute else {}),
    }


def write_plan(path: Path, plan: Plan, problem: dict[str, Any]) -> None:
    """Write a plan with the options of its problem."""
    write_atomically(path, to_json({"format": FORMAT, "problem": problem, "plan": plan_document(plan)}) + "\n")


def is_plan_file(path: str) -> bool:
    """Whether a file says that it is one of ours; False for a file that cannot be read."""
    try:
        return b'"pipeplan-plan-' in read_bytes(Path(path))
    except OSError:
        return False


def read_plan(path: str) -> ReadPlan:
    """Read what `write_plan` wrote, and see that the plan runs on its problem; InputError names the file and the key."""
    table = _decoded(path)
    options = msgspec.structs.asdict(table.problem)
    given = table.plan
    plan = Plan(
        planner=given.planner,
        schedule=given.schedule,
        stages=tuple(Stage(stage.layers, stage.devices) for stage in given.stages),
        microbatches=given.microbatches,
        replication=given.replication,
        forward_sizes=given.forward_sizes,
        backward_sizes=given.backward_sizes,
        order=given.order,
        recompute=given.recompute,
    )
    if table.problem.workload is not None and table.problem.profile is not None:
        raise InputError(f"{path}: $.problem: give one of workload and profile, not both")
    with blamed_on(f"{path}: $.problem"):
        problem = read_problem(argparse.Namespace(**options))
    with blamed_on(f"{path}: $.plan"):
        build_program(problem, plan)
    return ReadPlan(plan, problem, options)


def _decoded(path: str) -> PlanFile:
    try:
        content = read_bytes(Path(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    try:
        return msgspec.json.decode(content, type=PlanFile)
    except msgspec.ValidationError as error:
        try:
            document = msgspec.json.decode(content)
        except (
            RecursionError,
            UnicodeDecodeError,
            msgspec.DecodeError,
        ):  # no value to show
            document = None
        hint = " (pipeplan plan --out writes plan files)" if "format" in str(error) else ""
        raise InputError(f"{path}: {explained(str(error), document, PlanFile)}{hint}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not JSON: {error}") from None
