"""PipeDream optimizer: does the search find what the official program found, and how much sooner?

Re-plans every row of a file of recorded runs in the script's form. A row is matched if the slowest stage's seconds agree within
1e-6 and the plan is equal, or equally good: the recorded plan, costed by this package's own functions, is as fast as the plan
found.

The official program numbers the states of a branching graph in an order that depends on Python's hash seed, so a
recorded "states 13 to 70" may be other states here. Each recorded stage also has its compute seconds, to four
decimals. A recorded plan whose numbers do not fit is looked for under any numbering ("renumbered"): nested states with
the recorded compute seconds and workers, whose slowest stage is as fast as the plan found.

The speedup compares the recorded wall-clock of the whole program with reading the profile, forming its states and
the search, once compiled.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
import numpy as np

from experiments.studies.input_sets import PIPEDREAM_PROFILES
from experiments.studies.public_inputs import Amount, PositiveAmount
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.output import InputError, blamed_on
from experiments.terminal.report_tables import ReportTable, figure, words
from hardware_profiles import MOST_DEVICES, FileError, Level, json_value, read_bytes, referred, shown
from planners import (
    HierarchicalPartition,
    InfeasiblePartition,
    LevelStage,
    MemoryLimit,
    StateTable,
    measured_table,
    network_levels,
    partition,
    plan_seconds,
    stage_cost,
)
from simulator import Layer, Workload, read_profile

TOLERANCE = 1e-6
_ROUNDING = 0.5e-4 * (1 + 1e-6)  # of the recorded compute seconds


Index = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Workers = Annotated[int, msgspec.Meta(ge=1, le=MOST_DEVICES)]


class RecordedStage(msgspec.Struct, frozen=True):
    """A stage as the official program printed it: states [start, stop), compute seconds rounded to 1e-4, workers."""

    states: tuple[Index, Index]
    compute_seconds: Amount
    workers: Workers

    @property
    def start(self) -> int:
        """Its first state."""
        return self.states[0]

    @property
    def stop(self) -> int:
        """The state behind its last one."""
        return self.states[1]


class RecordedLevel(msgspec.Struct, frozen=True):
    """The stages of one level."""

    stages: tuple[RecordedStage, ...]


class RecordedRun(msgspec.Struct, frozen=True):
    """One run of the official program, a line of the file: its inputs, and what it found."""

    profile: str
    states: Index
    workers_per_level: tuple[Workers, ...]
    bandwidths: tuple[PositiveAmount, ...] = msgspec.field(name="bandwidth_bytes_per_s")
    straight: bool
    slowest_stage_seconds: PositiveAmount
    dp_speedup_over_one: PositiveAmount
    levels_top_first: tuple[RecordedLevel, ...]
    script_wall_seconds: Amount
    activation_ratio: Amount | None = None
    memory_bytes: Amount | None = msgspec.field(name="memory_constraint_bytes", default=None)

    def __post_init__(self) -> None:
        if len(self.levels_top_first) != len(self.workers_per_level):
            raise ValueError(
                f"levels_top_first must have {len(self.workers_per_level)} levels, got {len(self.levels_top_first)}"
            )

    @property
    def levels(self) -> tuple[tuple[RecordedStage, ...], ...]:
        """Stages by level, lowest first."""
        return tuple(level.stages for level in reversed(self.levels_top_first))

    @property
    def cluster_levels(self) -> tuple[Level, ...]:
        """Levels of the cluster, lowest first."""
        return network_levels(self.workers_per_level, self.bandwidths)


def read_runs(path: Path) -> list[RecordedRun]:
    """The runs of a file of JSON lines. Raises ValueError (`file:line: ...`) if it cannot be read as such."""
    try:
        lines = read_bytes(path).decode().splitlines()
    except OSError as error:
        raise ValueError(f"{path}: must be a readable text file: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be a readable text file: {error}") from error
    runs = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                said = json_value(line, "", FileError)
                runs.append(msgspec.convert(said, RecordedRun))
            except (FileError, msgspec.ValidationError) as error:
                raise ValueError(f"{path}:{number}: must be a recorded run as a JSON object: {error}") from error
    if not runs:
        raise ValueError(f"{path}: must hold at least one recorded run, got none")
    return runs


def replan(run: RecordedRun, table: StateTable, table_seconds: float) -> dict[str, object]:
    """One run planned again and compared: a flat record, ready for JSON.

    table_seconds: what reading the profile and forming its states took
    """
    record: dict[str, object] = {
        "profile": run.profile,
        "states": len(table),
        "workers_per_level": list(run.workers_per_level),
        "bandwidth_bytes_per_s": list(run.bandwidths),
        "activation_ratio": run.activation_ratio,
        "straight": run.straight,
        "memory_constraint_bytes": run.memory_bytes,
        "recorded_slowest_stage_seconds": run.slowest_stage_seconds,
        "script_wall_seconds": run.script_wall_seconds,
        "table_seconds": table_seconds,
    }
    if run.activation_ratio is not None and run.activation_ratio != 1:
        table = replace(table, augmented_output_bytes=table.augmented_output_bytes / run.activation_ratio)
    began_wall, began_cpu = time.perf_counter(), time.process_time()
    try:
        found = partition(
            table,
            run.cluster_levels,
            variant="script",
            straight=run.straight,
            memory=MemoryLimit(inf if run.memory_bytes is None else run.memory_bytes),
            activation_transfers=run.activation_ratio is not None,
        )
    except InfeasiblePartition as infeasible:
        return record | {"plan": f"none: {infeasible}", "matched": False}
    wall, cpu = time.perf_counter() - began_wall, time.process_time() - began_cpu
    error = found.slowest_stage_seconds / run.slowest_stage_seconds - 1
    plan = _compare(run, table, found)
    return record | {
        "slowest_stage_seconds": found.slowest_stage_seconds,
        "relative_error": error,
        "data_parallel_relative_error": found.data_parallel_speedup_over_one / run.dp_speedup_over_one - 1,
        "plan": plan,
        "matched": len(table) == run.states and abs(error) <= TOLERANCE and plan != "worse",
        "planning_seconds": wall,
        "planning_cpu_seconds": cpu,
        "speedup_over_script": run.script_wall_seconds / (wall + table_seconds),
    }


def _compare(run: RecordedRun, table: StateTable, found: HierarchicalPartition) -> str:
    """How the recorded plan relates to the one found: equal, equally good, renumbered (equally good), or worse."""
    recorded = [[LevelStage(stage.start, stage.stop, stage.workers) for stage in level] for level in run.levels]
    if recorded == [list(level) for level in found.levels]:
        return "equal"
    goal = found.slowest_stage_seconds * (1 + TOLERANCE)
    if _numbered_alike(run, table):
        cost = plan_seconds(
            table,
            recorded,
            run.cluster_levels,
            variant="script",
            activation_transfers=run.activation_ratio is not None,
        )
        if cost <= goal:
            return "equally good"
    if any(end == len(table) - 1 for end in _Relabelling(run, table, goal).ends(len(run.levels) - 1, 0, None)):
        return "renumbered"
    return "worse"


def _numbered_alike(run: RecordedRun, table: StateTable) -> bool:
    return all(
        stage.stop <= len(table)
        and (stage.start == 0 or table.states.contains(stage.stop - 1, stage.start - 1))
        and abs(_seconds(table, stage.start - 1, stage.stop - 1) - stage.compute_seconds) <= _ROUNDING
        for level in run.levels
        for stage in level
    )


def _seconds(table: StateTable, before: int, end: int) -> float:
    return float(table.seconds[end] - (table.seconds[before] if before >= 0 else 0.0))


@dataclass(frozen=True, slots=True)
class _Relabelling:
    """Search for a recorded plan under any numbering of the states."""

    run: RecordedRun
    table: StateTable
    goal: float

    def ends(self, level: int, first: int, holder: RecordedStage | None, before: int = -1) -> dict[int, float]:
        """States where the pipeline of `level` inside `holder` can end, and its least slowest stage, at most `goal`.

        first: position, among the level's stages, of the pipeline's first stage
        before: the state it starts behind, -1 for none
        """
        reached = {before: 0.0}
        for position, stage in self._inside(level, first, holder):
            following: dict[int, float] = {}
            for start, slowest in reached.items():
                for end, inner in self._slices(level, stage, start):
                    cost = stage_cost(
                        self.table,
                        LevelStage(start + 1, end + 1, stage.workers),
                        inner,
                        self.run.cluster_levels[: level + 1],
                        first=position == first,
                        variant="script",
                        activation_transfers=self.run.activation_ratio is not None,
                    )
                    cost = max(cost, slowest)
                    # A component's time is shared by its replicas on the levels above.
                    if cost < following.get(end, np.inf) and (holder is not None or cost <= self.goal):
                        following[end] = cost
            reached = following
        return reached

    def _inside(self, level: int, first: int, holder: RecordedStage | None) -> Iterator[tuple[int, RecordedStage]]:
        for position, stage in enumerate(self.run.levels[level]):
            if position >= first and (holder is None or holder.start <= stage.start < holder.stop):
                yield position, stage

    def _slices(self, level: int, stage: RecordedStage, before: int) -> list[tuple[int, float]]:
        """Where a recorded stage that starts behind state `before` can end, and its seconds on one component."""
        if level > 0:
            lower = self.run.levels[level - 1]
            first = next(p for p, inner in enumerate(lower) if stage.start <= inner.start < stage.stop)
            return list(self.ends(level - 1, first, stage, before).items())
        seconds = self.table.seconds - (self.table.seconds[before] if before >= 0 else 0.0)
        near = np.flatnonzero(np.abs(seconds - stage.compute_seconds) <= _ROUNDING)
        states = self.table.states
        return [(int(end), float(seconds[end])) for end in near if before < 0 or states.contains(int(end), before)]


def replan_all(runs: Sequence[RecordedRun], profiles: Path) -> dict[str, object]:
    """Every run planned again: counts, rows and the speedups over the official program's recorded wall-clock.

    Raises ValueError if a profile is missing or malformed.
    """
    _compile()
    tables = {}
    for name in sorted({run.profile for run in runs}):
        began = time.perf_counter()
        # Seconds and bytes of the profiled mini-batch are all that a partition needs, however many samples it has.
        with referred(f"--runs: profile {shown(name)}", InputError):
            table = measured_table(read_profile(PIPEDREAM_PROFILES.path(profiles, name), profiled_minibatch=1))
        tables[name] = table, time.perf_counter() - began
    rows = [replan(run, *tables[run.profile]) for run in runs]
    speedups = [float(str(row.get("speedup_over_script", 0.0))) for row in rows]
    matched = sum(bool(row["matched"]) for row in rows)
    return {
        "matched": matched,
        "failed": len(rows) - matched,
        "speedup_over_script": {"least": min(speedups), "median": median(speedups), "greatest": max(speedups)},
        "script_wall_seconds": sum(run.script_wall_seconds for run in runs),
        "planning_seconds": sum(float(str(row.get("planning_seconds", 0.0))) for row in rows),
        "rows": rows,
    }


def _compile() -> None:
    """One tiny search, so that no row's seconds contain the compiler's."""
    layers = tuple(Layer(f"layer{i}", "linear", 1.0, 1, 1.0, 1.0, 1, ((1, 1.0, 1.0),)) for i in range(2))
    table = measured_table(Workload("two layers", layers, ((0, 1),), minibatch=1, bytes_per_element=4))
    partition(table, network_levels((2, 2), (1.0, 1.0)), variant="script", memory=MemoryLimit(1e9))


TABLE = ReportTable(
    "PipeDream's optimizer: recorded runs planned again",
    "rows",
    {
        "profile": "{profile}",
        "workers": words("workers_per_level", "×"),
        "slowest ms": figure("slowest_stage_seconds", ".3f", 1e3),
        "error": figure("relative_error", ".0e"),
        "plan": lambda row: row["plan"].replace("equally", "as") if row["matched"] else f"{row['plan']} (failed)",
        "search ms": figure("planning_seconds", ".1f", 1e3),
        "script s": "{script_wall_seconds:.2f}",
        "speedup": figure("speedup_over_script", ",.0f"),
    },
)


def print_document(document: Mapping[str, Any]) -> None:
    """A row per run, and how many are matched."""
    TABLE.print(document)
    print(f"matched {document['matched']}, failed {document['failed']}")


def run(options: argparse.Namespace) -> Findings:
    """Plan again what was recorded; exit code 1 if any run is missed, 4 for a bad input file."""
    with blamed_on(""):  # the complaints name their file
        document = replan_all(read_runs(options.runs), options.profiles)
    return Findings(document, print_document, failed=bool(document["failed"]))


if __name__ == "__main__":
    sys.exit(run_study("pipedream-optimizer"))
