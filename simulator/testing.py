"""Contracts of a schedule and of a workload; the tests of a plug-in call `check_schedule_family` and `check_network`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hardware_profiles import LAYER_KINDS, about
from simulator.costs.given import OpSeconds, given_costs
from simulator.engines import event_loop, recurrence, reference
from simulator.lowering.lower import check_schedule, lower
from simulator.schedules import ScheduleFamily, as_family, schedule_families
from simulator.schedules.schedule import Schedule
from simulator.schedules.text import from_text, to_text
from simulator.workloads.layers import Workload

SHAPES = ((1, 1), (1, 3), (2, 1), (2, 2), (2, 5), (3, 4), (4, 2), (4, 8), (6, 3), (6, 6), (8, 4), (8, 8))
"""Stages and micro-batches, with fewer micro-batches than stages and counts that do not divide."""


def check_schedule_family(
    asked: str | Callable[..., Schedule] | ScheduleFamily,
    shapes: Iterable[tuple[int, int]] = SHAPES,
    **options: Any,
) -> int:
    """Assert what a schedule owes for any stages and micro-batches, and how many of them it takes.

    shapes: stages and micro-batches; those that the family refuses, in one line of a ValueError, are passed over
    options: the family's own
    Raises AssertionError for what it does not keep, ValueError for an order that is not complete or deadlocks, with a note of
    the shape.
    """
    family = schedule_families()[asked] if isinstance(asked, str) else as_family(asked)
    assert family.summary, "it has no summary: the first line of its docstring"
    assert "\n" not in family.summary, "its summary is one line"
    taken = 0
    for stages, microbatches in shapes:
        with about(f"{stages} stages, {microbatches} micro-batches"):
            try:
                schedule = family.build(stages, microbatches, **options)
            except ValueError as refused:
                assert "\n" not in str(refused), f"more than one line: {refused}"
                continue
            check_order(schedule)
            assert to_text(schedule) == to_text(family.build(stages, microbatches, **options)), "it gives two orders"
            assert family.by_example or schedule.flush is family.flush, "its orders do not flush as the family says"
            taken += 1
    assert taken, "it refuses every shape"
    return taken


def check_order(schedule: Schedule) -> None:
    """Assert that an order is complete, runs, takes as long on all engines that replay it, and is the order of its own text."""
    check_schedule(schedule)
    program = lower(schedule, given_costs(schedule.stages, OpSeconds(1.0, 2.0, transfer=0.25), devices=schedule))
    seconds = {engine(program).makespan_seconds for engine in (reference.replay, event_loop.replay)}
    if (program.lane_sharing < 0).all():
        seconds.add(recurrence.replay(program).makespan_seconds)
    assert len(seconds) == 1, f"the engines disagree: {seconds}"
    read = from_text(to_text(schedule), schedule.name)
    assert to_text(read) == to_text(schedule), "its text is read as another order"


def check_network(workload: Workload) -> None:
    """Assert what a workload owes: a connected graph with one end, the loss; kinds of layers that devices can time; work, weights
    and something to send between any two stages.
    """
    starts = {start for start, _ in workload.edges}
    ends = [number for number in range(len(workload)) if number not in starts]
    assert [workload.layers[number].kind for number in ends] == ["loss"], "its one end is the loss"
    assert _connected(workload), "its graph has parts that are not connected"
    kinds = {layer.kind for layer in workload.layers}
    assert kinds <= set(LAYER_KINDS) - {"input"}, f"unknown kinds of layers: {kinds - set(LAYER_KINDS)}"
    assert min(workload.parameters(), workload.flop()) > 0, "it has no weights, or nothing to compute"
    assert (workload.cut_elements()[1:-1] > 0).all(), "a cut sends nothing"


def _connected(workload: Workload) -> bool:
    beside: dict[int, set[int]] = {number: set() for number in range(len(workload))}
    for start, end in workload.edges:
        beside[start].add(end)
        beside[end].add(start)
    seen, waiting = {0}, [0]
    while waiting:
        new = beside[waiting.pop()] - seen
        seen |= new
        waiting += new
    return len(seen) == len(workload)
