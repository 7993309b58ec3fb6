"""Search on numbers: an order of ops for given seconds and memory of stages, in place of a workload and a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from hardware_profiles import brief, check_known, percent, unchosen
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.search import FoundSchedule, SearchInterrupted, search_schedule
from simulator import (
    ENGINES,
    LEAST_CHUNKS,
    USUAL_CHUNKS,
    Engine,
    FoundReplay,
    OpMemory,
    OpSeconds,
    Schedule,
    ScheduleReplay,
    TextTable,
    chains_of,
    check_counts,
    replay_schedule,
)

OBJECTIVES_IN_WORDS = {
    "makespan": "makespan",
    "longest-stage": "longest stage",
    "steady": "steady period of a micro-batch",
}
"""Objective -> what a search makes least, in words."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchedSchedule(FoundReplay):
    """A schedule that was searched for, with its replay and how good it is known to be.

    interrupted: whether the search was stopped, so that this is the best so far
    """

    replayed: ScheduleReplay
    found: FoundSchedule
    interrupted: bool = False

    def __repr__(self) -> str:
        return brief(self, f"{self.replayed!r}, {self.known}")

    @property
    def schedule(self) -> Schedule:
        """The schedule that was found."""
        return self.replayed.schedule

    @property
    def shown(self) -> ScheduleReplay:
        """The replay, which reports show; its `fits` says whether the schedule keeps to the memory that was asked for."""
        return self.replayed

    @property
    def known(self) -> str:
        """What is proven of the schedule, as a sentence."""
        what = OBJECTIVES_IN_WORDS[self.found.objective]
        if self.interrupted:
            return (
                f"interrupted, this is the best so far: at most {percent(self.found.gap, '.3g')} above the best {what}"
            )
        if self.found.proven:
            return f"proven optimal: no order within the memory has a shorter {what}"
        return f"at most {percent(self.found.gap, '.3g')} above the best {what}"

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        found = self.found
        return {
            **self.replayed.record(),
            "objective": found.objective,
            "objective_seconds": found.cost,
            "lower_bound_seconds": found.bound,
            "gap": found.gap,
            "proven": found.proven,
            "evaluations": found.evaluations,
            "interrupted": self.interrupted,
        }

    def tables(self) -> tuple[TextTable, ...]:
        """Tables of the figures of the replay and of the search."""
        found, (replayed, *others) = self.found, self.replayed.tables()
        rows = (
            *replayed.rows,
            *(
                []
                if found.objective == "makespan"
                else [(f"{OBJECTIVES_IN_WORDS[found.objective]}, s", f"{found.cost:.6g}")]
            ),
            ("lower bound of that, s", f"{found.bound:.6g}"),
            ("gap", percent(found.gap, ".3g")),
            ("orders tried", f"{found.evaluations:,}"),
        )
        return (TextTable(replayed.title, replayed.columns, rows), *others)

    def remarks(self) -> tuple[str, ...]:
        """Lines for a report: those of the replay, and what is proven."""
        return (*self.replayed.remarks(), self.known)


def search_on_numbers(
    stages: int,
    microbatches: int,
    ops: OpSeconds,
    memory: OpMemory | None = None,
    *,
    placement: str = "straight",
    chunks: int | None = None,
    engine: Engine = "simpy",
    **search: Any,
) -> SearchedSchedule:
    """The fastest order of ops found within the memory of every device, with its replay.

    stages: of the pipeline, all chunks counted; chunks: stages per device
    placement: order in which stages visit the devices, one of PLACEMENTS
    engine: of the replay of what was found; search: what `search_schedule` takes (seconds, objective, seed, progress)
    Raises ValueError for numbers that no order can be made of, ops that are not searched, and a limit that not even one
    micro-batch keeps.
    """
    if engine not in ENGINES:
        raise ValueError(unchosen("engine", engine, ENGINES))
    for name in ("update", "predict", "overlapped", "slice_seconds"):
        if np.any(getattr(ops, name) or 0.0):
            raise ValueError(f"{name.replace('_', '-')} is not of a schedule that is searched for")
    check_known(
        "a search has no", search, (name for name in signature(search_schedule).parameters if name != "problem")
    )
    check_counts(stages=stages, microbatches=microbatches, chunks=chunks)
    devices = _devices(placement, stages, chunks)
    chains = chains_of(placement, stages, devices)  # refuses what is too large, before anything of that size is made
    kept: Sequence[tuple[float, float]] = [(1.0, 0.5)] * stages if memory is None else memory.of_stages(stages)
    problem = ScheduleProblem(
        chains=chains,
        microbatches=microbatches,
        forward=ops.forward,
        input_gradient=ops.backward,
        weight_gradient=ops.weight,
        transfer=ops.transfer,
        freed_at_input_gradient=[whole - part for whole, part in kept],
        freed_at_weight_gradient=[part for _, part in kept],
        limit=float("inf") if memory is None else memory.memory,
    )
    try:
        found, interrupted = search_schedule(problem, **search), False
    except SearchInterrupted as stopped:
        found, interrupted = stopped.found, True
    replayed = replay_schedule(found.schedule, ops, engine=engine)
    return SearchedSchedule(replayed if memory is None else replayed.holding(memory), found, interrupted)


def _devices(placement: str, stages: int, chunks: int | None) -> int:
    """Number of devices of a placement: with `chunks` stages per device, else with the usual number, or the least where that does
    not divide the stages.
    """
    if chunks is not None and (chunks < 1 or stages % chunks):
        raise ValueError(f"a placement needs stages divisible by chunks (stages per device), got {stages} and {chunks}")
    usual, least = USUAL_CHUNKS.get(placement, 1), LEAST_CHUNKS.get(placement, 1)
    return max(1, stages // (chunks or (least if stages % usual else usual)))
