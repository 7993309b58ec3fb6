"""Plan files: a problem, with or without a plan that answers it, as an editable JSON document.

    {
      "format": "pipeplan-plan-2",
      "problem": {"workload": "vgg16", "cluster": "pipedream-b", "batch": 64},
      "plan": {
        "planner": "hand", "schedule": "1f1b", "replication": "split", "microbatches": [32, 32],
        "stages": [{"layers": [0, 1], "devices": [0]}, …]
      }
    }

The keys are the fields of `Problem`, `Plan` and `Stage`; what a problem leaves out has its default, what a plan leaves out is
empty. People may write `"layers": "0-323"`, `"devices": "0-3, 8"`, `"blocks": "1-6"` in place of layers, an order as one text,
and no schedule beside it (`_by_hand`); what is written here says all of it as lists. A workload and a cluster are named as
loaders take them, or are a table of `WorkloadSource`, `ClusterSource`; a stack is named. A problem alone has no key `plan`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec

from hardware_profiles import (
    GENERIC,
    MOST_AMOUNT,
    Bounds,
    ClusterSource,
    FileError,
    Stack,
    blaming,
    check_fields,
    check_kind,
    explained,
    json_value,
    load_cluster,
    load_stack,
    msgspec_type,
    path_text,
    read_bytes,
    referred,
    shown,
)
from simulator.costs.plan_costs import PlanCosts
from simulator.options.training_options import Recompute
from simulator.plan_replay import plan_structure
from simulator.plans.plan import Index, Plan, Problem, Replication, Stage
from simulator.results.written_files import write_atomically
from simulator.schedules.schedule import ScheduleError
from simulator.schedules.text import uncommented
from simulator.workloads.catalog import workload_of
from simulator.workloads.layer_splits import LayerSplit
from simulator.workloads.layers import WorkloadSource

FORMAT = "pipeplan-plan-2"

Value = msgspec_type(bool | int | Annotated[float, Bounds(ge=-MOST_AMOUNT, le=MOST_AMOUNT)] | str)
"""Of an option of a schedule's family, which says what it may be."""

Source = TypeVar("Source", WorkloadSource, ClusterSource)
Made = TypeVar("Made")


class PlanFileError(FileError):
    """A plan file that cannot be read: one line with file, path of the key, value, rule and choices."""


class Table(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A JSON object that refuses keys it does not know."""


def _table(kind: Any, needed: tuple[str, ...], *, omit_defaults: bool = True, called: str = "", **own: Any) -> Any:
    """The JSON object with the fields of a dataclass, as they are declared there.

    needed: what a document must say, in its order, before the other fields
    called: its name, where it is not the only one; own: of what it says in another way the type and, unless it is needed, the
        default
    """
    hints, named = get_type_hints(kind, include_extras=True), {one.name: one for one in fields(kind)}
    said = {name: (msgspec_type(hints[name]), *[one.default] * (name not in needed)) for name, one in named.items()}
    order = dict.fromkeys((*needed, *named, *own))
    return msgspec.defstruct(
        called or f"{kind.__name__}Table",
        [(name, *(said | own)[name]) for name in order],
        bases=(Table,),
        namespace={"__doc__": f"The fields of `{kind.__name__}`."},
        module=__name__,
        frozen=True,
        kw_only=True,
        omit_defaults=omit_defaults,
    )


ProblemTable = _table(
    Problem,
    ("workload", "cluster", "batch"),
    omit_defaults=False,
    workload=(str | WorkloadSource,),
    cluster=(str | ClusterSource,),
    stack=(str, GENERIC.name),
    recompute=(Recompute | bool, "none"),
)
StageTable = _table(Stage, ("layers", "devices"))
SplitTable = _table(LayerSplit, ("layer", "fraction"))
PlanTable = _table(
    Plan,
    ("planner", "schedule", "replication", "microbatches", "stages"),
    stages=(tuple[StageTable, ...],),  # type: ignore[valid-type]
    recompute=(tuple[Recompute | bool, ...], ()),
    options=(dict[str, Value | tuple[Value, ...]], {}),  # type: ignore[valid-type]
    splits=(tuple[SplitTable, ...], ()),  # type: ignore[valid-type]
)

Numbers = msgspec_type(tuple[Index, ...]) | str
"""Numbers, or ranges of them as a text."""

StageByHand = _table(
    Stage,
    ("layers", "devices"),
    called="StageByHand",
    layers=(Numbers | msgspec.UnsetType, msgspec.UNSET),
    blocks=(Numbers | msgspec.UnsetType, msgspec.UNSET),
    devices=(Numbers,),
)
PlanByHand = _table(
    Plan,
    ("planner", "schedule", "replication", "microbatches", "stages"),
    called="PlanByHand",
    planner=(str | msgspec.UnsetType, msgspec.UNSET),
    schedule=(str | msgspec.UnsetType, msgspec.UNSET),
    replication=(Replication | msgspec.UnsetType, msgspec.UNSET),
    order=(tuple[str, ...] | str, ()),
    stages=(tuple[StageByHand, ...],),  # type: ignore[valid-type]
    recompute=(tuple[Recompute | bool, ...], ()),
    options=(dict[str, Value | tuple[Value, ...]], {}),  # type: ignore[valid-type]
    splits=(tuple[SplitTable, ...], ()),  # type: ignore[valid-type]
)


class Document(Table, frozen=True, kw_only=True):
    """A plan file; without `plan`, of a problem alone."""

    format: Literal["pipeplan-plan-2"]
    problem: ProblemTable  # type: ignore[valid-type]
    plan: PlanByHand | msgspec.UnsetType = msgspec.UNSET  # type: ignore[valid-type]


def _cluster_of(source: ClusterSource) -> Any:
    cluster = load_cluster(source.name)
    return cluster if source.devices is None else cluster.take(source.devices)


SOURCES: tuple[tuple[str, Any, Callable[[Any], Any]], ...] = (
    ("workload", WorkloadSource, workload_of),
    ("cluster", ClusterSource, _cluster_of),
)
"""Keys of a problem that name what is loaded: the key, the table that says which, and what loads it."""


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A problem, and a plan that answers it or None."""

    problem: Problem
    plan: Plan | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def to_json(self) -> str:
        """The JSON document; reading it gives the same problem and plan, and writing those the same text.

        ValueError for a workload, a cluster or a stack that was made in Python: a file can only name it.
        """
        problem = _fields_of(self.problem)
        for name in ("workload", "cluster"):
            problem[name] = _named(name, problem[name])
        problem["stack"] = _stack_name(self.problem.stack)
        plan = msgspec.UNSET if self.plan is None else _plan_table(self.plan)
        document = Document(format="pipeplan-plan-2", problem=ProblemTable(**problem), plan=plan)
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
        return re.sub(r"\[\n[\w\s,]*\]", _on_one_line, text) + "\n"

    def write(self, path: str | PathLike[str]) -> None:
        """Write the document to a file, atomically."""
        write_atomically(Path(path), self.to_json())

    @staticmethod
    def from_json(text: str | bytes, source: str = "plan") -> PlanFile:
        """Read a document and check that its plan, if any, runs on its problem.

        source: what messages call the document
        Raises PlanFileError, and warns of options that have no effect.
        """
        check_kind("text of a plan", text, str, bytes)
        document: Any = _decoded(text, source)
        given = msgspec.structs.asdict(document.problem)
        for name, kind, make in SOURCES:
            said = given[name]
            with referred(f"{source}: $.problem.{name}", PlanFileError):
                given[name] = make(kind(said) if isinstance(said, str) else said)
        with referred(f"{source}: $.problem.stack", PlanFileError):
            given["stack"] = load_stack(given["stack"])
        with blaming(PlanFileError, f"{source}: $.problem"):
            problem = Problem(**given)
        for line in problem.doubts():
            warnings.warn(line, stacklevel=2)
        if document.plan is msgspec.UNSET:
            return PlanFile(problem)
        plan = plan_of(_by_hand(source, problem, document.plan))
        _check_plan(source, problem, plan)
        return PlanFile(problem, plan)

    @staticmethod
    def read(path: str | PathLike[str]) -> PlanFile:
        """Read what `write` wrote, or a person. Raises PlanFileError and warns as `from_json`."""
        path = path_text("plan file", path)
        try:
            content = read_bytes(Path(path))
        except OSError as error:
            raise PlanFileError(f"{path}: {error.strerror or error}") from None
        return PlanFile.from_json(content, str(path))

    @staticmethod
    def read_plan(path: str | PathLike[str]) -> tuple[Problem, Plan]:
        """The problem and the plan of a file. Raises and warns as `read`; PlanFileError for a problem alone, too."""
        found = PlanFile.read(path)
        if found.plan is None:
            raise PlanFileError(f"{path}: $.plan: is missing: the file has a problem alone")
        return found.problem, found.plan


def plan_of(table: Any) -> Plan:
    """The plan of a `PlanTable`."""
    decided = msgspec.structs.asdict(table)
    for name, kind in (("stages", Stage), ("splits", LayerSplit)):
        decided[name] = tuple(kind(**msgspec.structs.asdict(one)) for one in decided[name])
    return Plan(**{**decided, "options": tuple(decided["options"].items())})


HAND = "hand"
"""The planner of a plan that names none, and the schedule of an order that has no name."""


def _by_hand(source: str, problem: Problem, table: Any) -> Any:
    """The `PlanTable` that a document means: ranges as numbers, blocks as layers, an order line by line, names by default.

    Raises PlanFileError.
    """
    said = msgspec.structs.asdict(table)
    if isinstance(said["order"], str):
        said["order"] = tuple(line for line in said["order"].splitlines() if uncommented(line).strip())
    usual = {"planner": HAND, "replication": "split", **({"schedule": HAND} if said["order"] else {})}
    said |= {name: value for name, value in usual.items() if said[name] is msgspec.UNSET}
    if said["schedule"] is msgspec.UNSET:
        raise PlanFileError(
            f"{source}: $.plan.schedule: is missing: a family (pipeplan list schedules), or beside it an order of ops"
        )
    said["stages"] = tuple(
        _stage(f"{source}: $.plan.stages[{number}]", problem, one) for number, one in enumerate(said["stages"])
    )
    return PlanTable(**said)


def _stage(where: str, problem: Problem, table: Any) -> Any:
    """The `StageTable` of layers, or of blocks: what stands behind a block is its own, before the first the first's."""
    said, workload = msgspec.structs.asdict(table), problem.workload
    blocks, layers = said.pop("blocks"), said["layers"]
    if (blocks is msgspec.UNSET) == (layers is msgspec.UNSET):
        raise PlanFileError(f"{where}: has layers or blocks, {'neither' if blocks is msgspec.UNSET else 'both'} given")
    said["devices"] = _numbers(f"{where}.devices", said["devices"], 0, len(problem.cluster.devices) - 1)
    if blocks is msgspec.UNSET:
        said["layers"] = _numbers(f"{where}.layers", layers, 0, len(workload) - 1)
        return StageTable(**said)
    most = max(layer.block for layer in workload.layers)
    if not most:
        raise PlanFileError(f"{where}.blocks: workload {workload.name!r} has no blocks; choices: layers")
    wanted, last, held = set(_numbers(f"{where}.blocks", blocks, 1, most)), 1, list[int]()
    for number, layer in enumerate(workload.layers):
        last = layer.block or last
        held += [number] * (last in wanted)
    return StageTable(**{**said, "layers": tuple(held)})


def _numbers(where: str, said: tuple[int, ...] | str, least: int, most: int) -> tuple[int, ...]:
    """Numbers, or what ranges as `0-14, 16` say."""
    if not isinstance(said, str):
        return said
    found: list[int] = []
    for part in said.split(","):
        ends = [one.strip() for one in part.split("-")]
        if len(ends) > 2 or not all(one.isascii() and one.isdigit() and len(one) < 10 for one in ends):
            raise PlanFileError(f"{where}: {shown(said)} must be whole numbers and ranges of them, as in '0-14, 16'")
        if not least <= int(ends[0]) <= int(ends[-1]) <= most or len(found) > most:
            raise PlanFileError(f"{where}: {shown(part.strip())} must go up, from {least} to {most} at most")
        found += range(int(ends[0]), int(ends[-1]) + 1)
    return tuple(found)


def decisions(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values, as in a document."""
    found: dict[str, Any] = msgspec.to_builtins(_plan_table(plan))
    return found


def plan_schema() -> dict[str, Any]:
    """JSON Schema of a plan file."""
    return msgspec.json.schema(Document)


def is_plan_file(path: str | PathLike[str]) -> bool:
    """Whether a file says that it is a plan file, or has a plan or a problem; False for a file that cannot be read."""
    try:
        return re.search(rb'"pipeplan-plan-|"(plan|problem)"\s*:', read_bytes(Path(path))) is not None
    except OSError:
        return False


def _on_one_line(numbers: re.Match[str]) -> str:
    return "[" + re.sub(r"\s+", " ", numbers[0][1:-1].strip()) + "]"


def _fields_of(value: Problem | Plan | Stage | LayerSplit) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _plan_table(plan: Plan) -> Any:
    stages = tuple(StageTable(**_fields_of(one)) for one in plan.stages)
    splits = tuple(SplitTable(**_fields_of(one)) for one in plan.splits)
    return PlanTable(**{**_fields_of(plan), "stages": stages, "splits": splits, "options": dict(plan.options)})


def _named(what: str, value: Any) -> Any:
    """How a document refers to a workload or cluster: by its name or its source."""
    source = value.source
    if source is None:
        raise ValueError(
            f"{what} {value.name!r} was made or changed in Python: a plan file names one that can be loaded again"
        )
    return source.name if source == type(source)(source.name or "") else source


def _stack_name(stack: Stack) -> str:
    """How a document refers to a stack."""
    if stack.source is None and stack != GENERIC:
        raise ValueError(f"stack {stack.name!r} was made in Python: a plan file names one that can be loaded again")
    return stack.source or GENERIC.name


def _check_plan(source: str, problem: Problem, plan: Plan) -> None:
    """Raise PlanFileError if a plan does not run on its problem, naming the order or the schedule where its ops are at fault."""
    try:
        plan_structure(PlanCosts(problem, plan))
    except ScheduleError as error:
        raise PlanFileError(f"{source}: $.plan.{'order' if plan.order else 'schedule'}: {error}") from None
    except ValueError as error:
        raise PlanFileError(f"{source}: $.plan: {error}") from None


def _decoded(text: str | bytes, source: str) -> Document:
    values = json_value(text, source, PlanFileError)
    try:
        return msgspec.convert(values, Document)
    except msgspec.ValidationError as error:
        hint = " (pipeplan plan --out writes plan files)" if "format" in str(error) else ""
        raise PlanFileError(f"{source}: {explained(str(error), values, Document)[0]}{hint}") from None
