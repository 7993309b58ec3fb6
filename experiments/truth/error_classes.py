"""Error classes: measured rows predicted by constants that did not see them, and the intervals of error that these make.

A row is judged by the constants as they are where none of its stack names its table as `fitted`, and else by those that a fit to
the stack's other tables gives. Rows that constants of accelerators or clusters saw, which no fit here leaves out, are not judged;
an interval is no narrower than such rows are. Under the stack `generic`, no framework in particular, the rows of all frameworks
are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from experiments.calibration.fit import Observation, fit, generations_of
from experiments.terminal.output import tracked
from experiments.truth.measured_tables import MeasuredRun, MeasuredTable
from experiments.truth.predictions import measured_bytes, stack_of, that_ran, training_problem
from hardware_profiles import (
    ENOUGH,
    GENERIC,
    MEMORY_RANGES,
    RANGES,
    Constant,
    ErrorClass,
    Figure,
    PlanKind,
    Stack,
    accelerator_kind,
    changed_stack,
    load_stack,
    optional_members,
)
from simulator import Evaluations, Plan, Problem, check_plan, plan_kind

SEEN_BY_DEVICES: Mapping[str, tuple[PlanKind, ...]] = {
    "vtrain": ("pipeline", "data"),
    "simumax_b200": ("pipeline", "data"),
}
"""Kinds of plans whose seconds constants of accelerators and clusters were fitted to, by what the names of tables begin with; of
plans without contexts."""

AS_THEY_ARE, LEFT_OUT = "no constant saw them", "their table was left out of the fit"
HELD_OUT = "they were held out of the fit"
BY_CHIP = "shares of their kind of chip saw them"
BY_DEVICES = "constants of accelerators or clusters saw them"


ROUNDS = 50
"""Of weighted squares that become absolute errors."""


class RanPlan(NamedTuple):
    """A row, and what ran."""

    row: MeasuredRun
    problem: Problem
    plan: Plan


class Judged(NamedTuple):
    """A row's figure by constants that did not see it. ratio: measured / predicted; how: why they did not, or BY_DEVICES"""

    figure: Figure
    stack: str
    accelerator: str
    plan: PlanKind
    table: str
    ratio: float
    how: str


def judged_rows(tables: Iterable[MeasuredTable], machines: Mapping[str, str]) -> list[Judged]:
    """Every figure of iterations that constants which did not see it can predict."""
    ran = {one.name: ran_plans(one, machines.get(one.name)) for one in tables if one.kind is MeasuredRun}
    found: list[Judged] = []
    for table, rows in tracked("judging", list(ran.items()), lambda item: item[0]):
        for name in dict.fromkeys(stack_of(one.row) for one in rows):
            own = [one for one in rows if stack_of(one.row) == name]
            found += _judged(table, own, *unseen_stack(load_stack(name), table, ran))
            if name != GENERIC.name:
                found += _judged(table, own, GENERIC, ())
    return found


def ran_plans(table: MeasuredTable, machine: str | None = None) -> list[RanPlan]:
    """What ran in each row of a table that a plan can be made of; the others are left out.

    machine: in place of what the rows say
    """
    found = []
    for row in table.rows.values():
        try:
            assert isinstance(row, MeasuredRun)
            problem, plan = training_problem(row, machine)
            check_plan(problem, plan)
        except ValueError:  # counted, with its reason, where the table's errors are
            continue
        found.append(RanPlan(row, problem, plan))
    return found


def _judged(table: str, ran: Sequence[RanPlan], stack: Stack, seen: Collection[str]) -> Iterator[Judged]:
    """The figures of rows. seen: constants that were fitted to them, and are not any more"""
    how = {
        figure: LEFT_OUT if set(names) & set(seen) else AS_THEY_ARE
        for figure, names in (("seconds", RANGES), ("memory", MEMORY_RANGES))
    }
    for row, given, plan in ran:
        problem = replace(given, stack=that_ran(row, stack))
        evaluate = Evaluations(problem)
        score = evaluate(plan)
        if score is None:
            continue
        devices = [problem.cluster.devices[device] for stage in plan.stages for device in stage.devices]
        kind = plan_kind(problem, plan)
        figures: dict[Figure, tuple[float, float]] = {}
        if row.measured_s is not None:
            figures["seconds"] = row.measured_s, score.iteration_seconds
        if (memory := measured_bytes(row, problem, plan, evaluate, score)) is not None:
            figures["memory"] = memory
        whys = dict(how)
        if _device_constants_saw(table, row, kind):
            whys["seconds"] = BY_DEVICES
        elif any(optional_members(one).spread for one in devices):
            whys["seconds"] = BY_CHIP
        for figure, (measured, predicted) in figures.items():
            ran_on = accelerator_of(problem, plan, figure)
            yield Judged(figure, stack.name, ran_on, kind, table, measured / predicted, whys[figure])


def accelerator_of(problem: Problem, plan: Plan, figure: Figure) -> str:
    """The kind of accelerator under which the errors of a plan are classed: that of most of its devices."""
    devices = [problem.cluster.devices[device] for stage in plan.stages for device in stage.devices]
    return accelerator_kind(max(dict.fromkeys(devices), key=devices.count), figure)


def _device_constants_saw(table: str, row: MeasuredRun, kind: PlanKind) -> bool:
    seen = next((kinds for name, kinds in SEEN_BY_DEVICES.items() if table.startswith(name)), ())
    return kind in seen and row.cp == 1


# ------------------------------------------------------------------------------------------------- left out


def unseen_stack(stack: Stack, table: str, ran: Mapping[str, Sequence[RanPlan]]) -> tuple[Stack, Collection[str]]:
    """The stack with the constants that its other tables tell in place of those that saw a table; and the names of these.

    ran: of every table that there is. First tables of other generations of accelerators are fitted to, then those of the table's
    own, each fit beginning where the one before ended, and the first where no row tells anything.
    """
    own = _generations(ran[table])
    seen = {name: one for name, one in stack.constants().items() if any(_saw(_on(one, of), table) for of in own)}
    if not seen:
        return stack, ()
    others = {
        name: _generations(ran[name])
        for name in ran
        if name != table and any(_saw(_on(one, of), name) for one in seen.values() for of in _generations(ran[name]))
    }
    everywhere = sorted({of for generations in (own, *others.values()) for of in generations})
    neutral = {name: (GENERIC.constants()[name] if _saw(one, table) else one).value for name, one in seen.items()}
    base = stack
    for of in everywhere:  # where a constant is another one, which did not see the table, it stays
        base = changed_stack(
            base, {name: neutral[name] for name, one in seen.items() if _saw(_on(one, of), table)}, (of,)
        )
    for near in (False, True):
        fitted_to = {name: of for name, of in others.items() if bool(of & own) == near}
        there = [(other, of) for other, generations in fitted_to.items() for of in generations]
        names = [
            name
            for name, one in seen.items()
            if any(_saw(_on(one, of), other) and (near or _saw(_on(one, of), table)) for other, of in there)
        ]
        seconds = [name for name in names if name in RANGES]
        rows = [one for name in fitted_to for one in ran[name] if stack_of(one.row) == stack.name]
        timed = [Observation("", one.problem, one.plan, one.row.measured_s) for one in rows if one.row.measured_s]
        if seconds and timed:
            constants = fit(base, timed, seconds).constants
            base = changed_stack(
                base, {one.name: one.after for one in constants}, everywhere if not near else sorted(own)
            )
        if {"reserved", "context"} & set(names):
            base = changed_stack(base, _fitted_memory(base, rows), sorted(own))
    return base, seen.keys()


def _fitted_memory(stack: Stack, rows: Sequence[RanPlan]) -> dict[str, float]:
    """What a caching allocator holds and a driver counts beside, by least absolute relative errors of drivers' figures; nothing
    where no row tells one.
    """
    told = [one for one in rows if one.row.measured_peak_bytes]
    scores = [Evaluations(replace(one.problem, stack=that_ran(one.row, stack)))(one.plan) for one in told]
    pairs = [(score.peak_bytes, one.row.measured_peak_bytes) for score, one in zip(scores, told, strict=True) if score]
    if not pairs:
        return {}
    allocated, measured = np.array(pairs, dtype=np.float64).T
    parts, weights = np.stack([allocated, np.ones_like(allocated)], axis=1) / measured[:, None], np.ones(len(measured))
    for _ in range(ROUNDS):  # squares, of which each weighs less the further off it was
        found = np.linalg.lstsq(parts * weights[:, None], weights)[0]
        weights = 1.0 / np.sqrt(np.maximum(np.abs(parts @ found - 1.0), 1e-3))
    reserved, context = found.tolist()
    return {"reserved": max(1.0, reserved), "context": max(0.0, context)}


def _generations(ran: Sequence[RanPlan]) -> set[str]:
    return {name for one in ran for name in generations_of(one.problem, one.plan)}


def _on(constant: Constant, generation: str) -> Constant:
    return dict(constant.generations).get(generation, constant)


def _saw(constant: Constant, table: str) -> bool:
    """Whether a constant was fitted on a table, or on rows of it, as `table (dense)` says."""
    return any(one.split(" ")[0] == table for one in constant.fitted)


# -------------------------------------------------------------------------------------------------- classes


def error_classes(rows: Sequence[Judged]) -> dict[str, list[ErrorClass]]:
    """The classes that rows make, by stack: on a kind of accelerator of all plans, and of each kind that has another interval.

    One of fewer than ENOUGH rows is as wide as these and the next wider class, whose rows are those of the stack, or all; each is
    as wide as rows like its own which constants of devices saw.
    """
    found: dict[str, list[ErrorClass]] = {}
    seen, rows = [one for one in rows if one.how == BY_DEVICES], [one for one in rows if one.how != BY_DEVICES]
    keys = sorted({(one.stack, one.figure != "seconds", one.figure, one.accelerator) for one in rows})
    for stack, _, figure, accelerator in keys:
        of_figure = [one for one in rows if one.figure == figure]
        of_stack = [one for one in of_figure if one.stack == stack]
        own = [one for one in of_stack if one.accelerator == accelerator]
        kinds = sorted({one.plan for one in own})
        parts = [[one for one in own if one.plan == kind] for kind in kinds] if len(kinds) > 1 else []
        whole = _class([of_figure, of_stack, own], seen)
        of_kinds = [_class([of_figure, of_stack, own, part], seen) for part in parts]
        told = [one for one in of_kinds if (one.low, one.high) != (whole.low, whole.high)]
        found.setdefault(stack, []).extend([whole, *told])
    return found


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median of measured / predicted, and the ends between which 90 % of further rows are in the mean, as far as these are
    enough to tell: of n rows by size those in the places p (n + 1).
    """
    low, median, high = np.quantile(ratios, [0.05, 0.5, 0.95], method="weibull").tolist()
    return median, low, high


def _class(wider: Sequence[Sequence[Judged]], seen: Sequence[Judged]) -> ErrorClass:
    """The class of the last of several lists of rows, each part of the one before, no narrower than seen rows of the class."""
    rows = wider[-1]
    median, low, high = interval([one.ratio for one in rows])
    for few, more in zip(wider[:0:-1], wider[-2::-1], strict=True):
        if len(few) >= ENOUGH:
            break
        _, least, most = interval([one.ratio for one in more])
        low, high = min(low, least), max(high, most)
    classes = {one[:4] for one in rows}
    if like := [one.ratio for one in seen if one[:4] in classes]:
        _, least, most = interval(like)
        low, high = min(low, least), max(high, most)

    def each(name: str) -> tuple[Any, ...]:
        return tuple(sorted({getattr(one, name) for one in rows}))

    return ErrorClass(
        figure=rows[0].figure,
        accelerators=each("accelerator"),
        plans=each("plan"),
        median=median,
        low=low,
        high=high,
        rows=len(rows),
        tables=each("table"),
        how="; ".join(each("how")),
    )
