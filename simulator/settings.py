"""Settings: a problem and a plan with values changed by the dotted paths of `hardware_profiles.addresses`.

The first key says whose value it is, and each is applied to what those before it have made:

    problem       the problem: batch, precision, workload and its sequence, cluster and its devices, stack by name
    cluster       the file of its cluster: servers, network, spine; of a graph devices, links
    accelerator   the files of the cluster's accelerators: all of them, or accelerator[NAME]
    stack         the file of its stack; a constant that the file does not say is the one that changes nothing
    plan          the plan
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from hardware_profiles import (
    MACHINE_FORMS,
    Address,
    Change,
    Cluster,
    FileError,
    MachineTables,
    Setting,
    SettingError,
    StackFile,
    addresses_of,
    explained,
    find_address,
    is_real,
    load_stack,
    machine_tables,
    set_in,
    settings_of,
    stack_of_table,
    tables_with_accelerators,
    values_in,
    whole_stack_table,
)
from simulator.plan_files import SOURCES, PlanTable, ProblemTable, decisions, plan_of
from simulator.plans.plan import Plan, Problem

Settings = Mapping[str, object] | Iterable[str | Setting]
"""`PATH=VALUE` texts, or values by path."""

ROOTS = ("problem", "cluster", "accelerator", "stack", "plan")
"""The first keys, in the order in which settings are applied."""

MOST_BLAMED = 3
"""Settings that a message names at most."""

MACHINE = ("cluster", "accelerator")
"""Those that files of the cluster say."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A problem and a plan after settings, and what these have changed.

    plan: None where none was given
    """

    problem: Problem
    plan: Plan | None
    changes: tuple[Change, ...]


def values_of(problem: Problem, plan: Plan | None = None) -> dict[str, Any]:
    """Every value of a problem, its machine and stack, and of a plan, by its path; None where the files say none.

    Of a cluster that was made in Python there are no files.
    """
    machine = _machine(problem)
    tables: dict[str, Any] = {}
    for root in ROOTS:
        if not (root == "plan" and plan is None) and not (root in MACHINE and machine is None):
            tables |= _tables(root, problem, machine, plan)
    return values_in(tables, [one for one in addresses_of(_forms(machine, plan)) if one.keys[0] in tables])


def known_addresses(problem: Problem, plan: Plan | None) -> tuple[Address, ...]:
    """Every address that settings of a problem, and of a plan, may name."""
    return addresses_of(_forms(_machine(problem), plan))


def numbers_of(problem: Problem, plan: Plan | None = None, paths: Iterable[str] | None = None) -> dict[str, float]:
    """Numbers above 0 that may be any in a range, by path: those that paths name, or all that the files of the machine say.

    SettingError for a path that names no such number.
    """
    machine = _machine(problem)
    if paths is None and machine is None:
        raise SettingError(
            f"cluster {problem.cluster.name!r} was made in Python: it has no file whose numbers could change"
        )
    known = addresses_of(_forms(machine, plan))
    if paths is not None:
        return {path: _number(problem, plan, path, find_address(path, known).address) for path in paths}
    found = {}
    for path, value in values_of(problem, plan).items():
        address = find_address(path, known).address
        if address.keys[0] in MACHINE and is_real(address) and _is_above_0(value):
            found[path] = float(value)
    return found


def _number(problem: Problem, plan: Plan | None, path: str, address: Address) -> float:
    """The number that a path names, of several the first; SettingError where that is none above 0."""
    before: Any = change_settings(problem, [f"{path}=*1"], plan).changes[0].before if is_real(address) else None
    if not _is_above_0(before):
        raise SettingError(f"{path}: is no number above 0 that a file says")
    return float(before)


def _is_above_0(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def change_settings(problem: Problem, settings: Settings, plan: Plan | None = None) -> Changed:
    """A problem and a plan with other values.

    SettingError, one line, for a path that names no value or several, and a value that cannot be; ValueError for a problem that
    its own rules refuse. Whether the plan runs on the problem is not asked.
    """
    wanted, changes = settings_of(settings), list[Change]()
    machine, devices = _machine(problem), _devices(problem)
    for root in ROOTS:
        known = addresses_of(_forms(machine, plan))
        places = [(find_address(one.path, known), one) for one in wanted]
        mine = [(place, setting) for place, setting in places if place.address.keys[0] == root]
        if mine and root in MACHINE and machine is None:
            raise SettingError(
                f"{mine[0][1]}: cluster {problem.cluster.name!r} was made in Python: it has no file to change"
            )
        if not mine:
            continue
        tables = _tables(root, problem, machine, plan)
        for place, setting in mine:
            changes += set_in(tables, place, setting)
        with _blamed_on([setting for _, setting in mine]):
            if root == "problem":
                problem = _problem_of(problem, tables[root])
                machine, devices = _machine(problem), _devices(problem)
            elif machine is not None and root in MACHINE:
                machine = (
                    machine if root == "accelerator" else tables_with_accelerators(machine.source, machine.cluster)
                )
                problem = replace(problem, cluster=_in_use(machine, devices))
            elif root == "stack":
                name = _stack_name(problem)
                problem = replace(problem, stack=stack_of_table(name, tables[root]))
            else:
                plan = plan_of(_converted(tables[root], PlanTable))
    return Changed(problem, plan, tuple(changes))


def adapted_plan(before: Problem, plan: Plan, found: Changed) -> tuple[Plan, str]:
    """The changed plan with as many micro-batches of their size as another batch has, or else as many of another size; and what
    that is in words. Micro-batches that settings say, that differ, or whose order is the plan's own, are left.
    """
    problem, changed = found.problem, found.plan or plan
    old, sizes = len(plan.microbatches), set(plan.microbatches)
    own = plan.microbatches != changed.microbatches or plan.order or plan.forward_sizes
    if own or before.batch == problem.batch or len(sizes) > 1:
        return changed, ""
    size = sizes.pop()
    if problem.batch % size == 0:
        count = problem.batch // size
    elif problem.batch % old == 0:
        count, size = old, problem.batch // old
    else:
        return changed, ""
    words = f"{old} micro-batches of {plan.microbatches[0]} -> {count} of {size}, for a batch of {problem.batch}"
    return replace(changed, microbatches=(size,) * count), words


def _forms(machine: MachineTables | None, plan: Plan | None) -> dict[str, Sequence[type]]:
    """The declared tables below each of ROOTS."""
    machines = MACHINE_FORMS if machine is None else machine.forms
    plans: dict[str, Sequence[type]] = {} if plan is None else {"plan": (PlanTable,)}
    return {"problem": (ProblemTable,), **machines, "stack": (StackFile,), **plans}


def _machine(problem: Problem) -> MachineTables | None:
    """The tables of the problem's cluster, if a file says it."""
    source = problem.cluster.source
    return None if source is None else machine_tables(source.name)


def _devices(problem: Problem) -> int | None:
    """The devices that the problem uses, if it says so."""
    source = problem.cluster.source
    return None if source is None else source.devices


def _in_use(machine: MachineTables, devices: int | None) -> Cluster:
    """The cluster of the tables, with so many devices in use, or all."""
    cluster = machine.build()
    return cluster if devices is None else cluster.take(devices)


def _tables(root: str, problem: Problem, machine: MachineTables | None, plan: Plan | None) -> dict[str, Any]:
    """What the files say below a first key, as plain values that may be changed."""
    if root == "problem":
        return {root: _problem_table(problem)}
    if root == "stack":
        return {root: whole_stack_table(_stack_name(problem))}
    if root == "plan":
        assert plan is not None, "its paths are not known without it"
        return {root: decisions(plan)}
    assert machine is not None
    return {"cluster": machine.cluster, "accelerator": machine.accelerators}


def _problem_table(problem: Problem) -> dict[str, Any]:
    """The problem as a document says it; of what was made in Python the name."""
    found = {name: getattr(problem, name) for name in ProblemTable.__struct_fields__}
    for name, _, _ in SOURCES:
        value = found[name]
        found[name] = {"name": value.name} if value.source is None else msgspec.to_builtins(value.source)
    return found | {"stack": problem.stack.source or problem.stack.name}


def _problem_of(problem: Problem, table: dict[str, Any]) -> Problem:
    """The problem with what a document says in another way."""
    before = _problem_table(problem)
    given = msgspec.structs.asdict(_converted(table, ProblemTable))
    other = {name: given[name] for name in given if table[name] != before[name]}
    for name, kind, make in SOURCES:
        if name in other:
            other[name] = make(kind(other[name]) if isinstance(other[name], str) else other[name])
    if "stack" in other:
        other["stack"] = load_stack(other["stack"])
    return replace(problem, **other)


def _stack_name(problem: Problem) -> str:
    """The name or file of the problem's stack."""
    return problem.stack.source or problem.stack.name


def _converted(table: dict[str, Any], into: Any) -> Any:
    """A table as its declaration has it; SettingError for a value that it refuses."""
    try:
        return msgspec.convert(table, into)
    except msgspec.ValidationError as error:
        raise SettingError(explained(str(error), table, into)[0]) from None


@contextmanager
def _blamed_on(settings: Sequence[Setting]) -> Iterator[None]:
    """What files and problems refuse is the settings' fault: their words, without the file that was right."""
    try:
        yield
    except ValueError as error:
        told = re.sub(r"^\S+\.toml: ", "", str(error)) if isinstance(error, FileError) else str(error)
        blamed = (
            f"{settings[0]} and {len(settings) - 1} more"
            if len(settings) > MOST_BLAMED
            else ", ".join(map(str, settings))
        )
        raise SettingError(f"{blamed}: {told}") from None
