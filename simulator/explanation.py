"""Explanation: why the devices of a replay are idle, what its length is made of, and what would shorten it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from hardware_profiles import Flags, Floats, check_kind, counted, percent
from simulator.costs.plan_costs import PlanCosts
from simulator.engines.timeline import Timeline, moves_of
from simulator.lowering.fill import fill
from simulator.lowering.program import LaneKind, Program, name_of
from simulator.plan_replay import plan_structure, replay_on, steady_of
from simulator.plans.plan import ranges
from simulator.results.idle_causes import CAUSES, IdleTime, PathStep, Piece, critical_path, idle_time, is_collective
from simulator.results.text_tables import Explained, TextTable
from simulator.results.time_split import Awaited, awaited_last
from simulator.schedule_replay import ScheduleReplay
from simulator.schedules.ops import LETTERS, OpKind, among
from simulator.simulation import Outcome

FASTER = 1.1
"""Speed of what is made faster, times its own."""

MOST_SHOWN = 12
"""Rows that a table shows at most; records have all."""

CAUSE_WORDS = {
    "fill": "before its first op",
    "op": "for an op of another device",
    "straggler": "for an op that is longer than others",
    "order": "while another op could have run",
    "memory": "while another op had no room",
    "transfer": "for a transfer",
    "reduction": "for gradients or weights of replicas",
    "drain": "behind its last op",
}
"""What a device waits for, by cause."""

_NO_TIME = 5e-5
"""Share of an iteration; a table does not show smaller savings."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Seconds of an iteration if one thing were FASTER: a `stage`, a `device`, a `link` between two stages, `reductions`."""

    kind: str
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PathRun:
    """Tasks of the critical path that follow one another without a gap on one device.

    device; first, last: names of tasks; tasks: their number; seconds: of them
    gap, gap_is: seconds before the first one, and what they are
    """

    device: int
    first: str
    last: str
    tasks: int
    seconds: float
    gap: float
    gap_is: str


@dataclass(frozen=True, slots=True, eq=False)
class Explanation(Explained):
    """Idle time by cause, the critical path, and gains.

    title, device_word: as of the replay; seconds: of an iteration
    members: devices that do the same as each of `idle.devices`, itself among them
    window: of the timeline that the idle time is of: all of it, or the steady part of a stream
    steps: the critical path of the whole timeline
    gains: () where nobody asked for them
    """

    title: str
    device_word: str
    seconds: float
    window: tuple[float, float]
    program: Program
    timeline: Timeline
    idle: IdleTime
    members: tuple[int, ...]
    steps: tuple[PathStep, ...]
    gains: tuple[Gain, ...]

    @property
    def path(self) -> tuple[PathRun, ...]:
        """The critical path, tasks of one lane without a gap together."""
        return tuple(_runs(self.program, self.timeline, self.steps))

    @property
    def awaited(self) -> Awaited:
        """What each task of the timeline waits for last."""
        return awaited_last(self.program, self.timeline)

    @property
    def idle_seconds(self) -> float:
        """Idle seconds of all devices in the window."""
        return float((self.idle.seconds.sum(axis=1) * self.members).sum())

    def totals(self) -> dict[str, float]:
        """Idle seconds of all devices by cause."""
        return dict(
            zip(CAUSES, (self.idle.seconds * np.array(self.members)[:, None]).sum(axis=0).tolist(), strict=True)
        )

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units; every interval."""
        begin, end = self.window
        return {
            "title": self.title,
            "iteration_seconds": self.seconds,
            "window": [begin, end],
            "idle_seconds": self.idle_seconds,
            "causes": self.totals(),
            "devices": [
                {
                    "device": device,
                    "members": members,
                    "busy_seconds": float(busy),
                    "causes": dict(zip(CAUSES, seconds.tolist(), strict=True)),
                    "intervals": [self._interval(piece) for unit in pieces for piece in unit],
                }
                for device, members, busy, seconds, pieces in self._rows()
            ],
            "critical_path": [
                {
                    **{name: getattr(one, name) for name in ("device", "first", "last", "tasks", "seconds")},
                    "gap_seconds": one.gap,
                    "gap": one.gap_is,
                }
                for one in self.path
            ],
            "faster": FASTER,
            "gains": [
                {"kind": one.kind, "what": one.what, "iteration_seconds": one.seconds, "saves": self._saved(one)}
                for one in self.gains
            ],
        }

    def _rows(self) -> Iterator[tuple[int, int, float, Floats, tuple[tuple[Piece, ...], ...]]]:
        idle = self.idle
        yield from zip(idle.devices.tolist(), self.members, idle.busy.tolist(), idle.seconds, idle.pieces, strict=True)

    def _interval(self, piece: Piece) -> dict[str, Any]:
        return {
            "begin": piece.begin,
            "end": piece.end,
            "cause": CAUSES[piece.cause],
            "before": name_of(self.program, piece.op) if piece.op >= 0 else None,
            "waits_for": name_of(self.program, piece.awaited) if piece.awaited >= 0 else None,
        }

    def _saved(self, gain: Gain) -> float:
        return 1.0 - gain.seconds / self.seconds if self.seconds else 0.0

    # ------------------------------------------------------------------------------------------------ tables

    def tables(self) -> tuple[TextTable, ...]:
        """Idle time by device and cause, the longest waits, the critical path, and gains."""
        return tuple(
            one for one in (self._idle_table(), self._wait_table(), self._path_table(), self._gain_table()) if one.rows
        )

    def _idle_table(self) -> TextTable:
        used = [number for number in range(len(CAUSES)) if self.idle.seconds[:, number].any()]
        whole = self.window[1] - self.window[0] or 1.0
        alike: dict[tuple[str, ...], list[int]] = {}
        count: dict[tuple[str, ...], int] = {}
        for device, members, busy, seconds, _ in self._rows():
            shares = (100.0 * one / whole for one in (busy, seconds.sum(), *(seconds[number] for number in used)))
            cells = tuple(f"{share:.1f}" for share in shares)
            alike.setdefault(cells, []).append(device)
            count[cells] = count.get(cells, 0) + members
        rows = [
            (ranges(devices) + f" (x {count[cells]})" * (count[cells] > len(devices)), *cells)
            for cells, devices in alike.items()
        ]
        names = [CAUSES[number] for number in used]
        title = f"{self.title}: % of {whole:.4g} s by {self.device_word}"
        return TextTable(title, (self.device_word, "busy", "idle", *names), tuple(rows))

    def _wait_table(self) -> TextTable:
        """Waits for ops of one kind of one stage, the longest together first."""
        waits: dict[tuple[int, str, str], list[float]] = {}
        for device, _, _, _, pieces in self._rows():
            for piece in (piece for unit in pieces for piece in unit if piece.awaited >= 0):
                task = piece.awaited
                awaited = f"{self.program.stage[task]}{LETTERS[self.program.kind[task]]}"
                waits.setdefault((device, CAUSES[piece.cause], awaited), []).append(piece.end - piece.begin)
        first = sorted(waits.items(), key=lambda one: -sum(one[1]))[:MOST_SHOWN]
        rows = tuple(
            (f"{device}", f"{awaited}*", f"{len(own)}", f"{sum(own):.4g}", f"{cause}: {CAUSE_WORDS[cause]}")
            for (device, cause, awaited), own in first
        )
        more = f", the longest {MOST_SHOWN} of {len(waits)}" if len(waits) > MOST_SHOWN else ""
        return TextTable(f"Waits{more}", (self.device_word, "for", "times", "seconds", "cause"), rows)

    def _path_table(self) -> TextTable:
        shown = self.path
        half = MOST_SHOWN // 2
        rows = [
            (
                one.first if one.tasks == 1 else f"{one.first} … {one.last}",
                str(one.device),
                str(one.tasks),
                f"{one.seconds:.4g}",
                f"{one.gap:.4g} {one.gap_is}" if one.gap else "",
            )
            for one in shown
        ]
        left_out = len(rows) - 2 * half
        if left_out > 1:
            rows[half:-half] = [(f"… {left_out} more", "", "", "", "")]
        title = f"Critical path: {counted(sum(one.tasks for one in self.path), 'task')} in a row, {self._path_words()}"
        return TextTable(title, ("ops", self.device_word, "tasks", "seconds", "seconds before"), tuple(rows))

    def _path_words(self) -> str:
        gaps = sum(one.gap for one in self.path)
        return f"{sum(one.seconds for one in self.path):.4g} s, and {gaps:.4g} s between them"

    def _gain_table(self) -> TextTable:
        gaining = [one for one in self.gains if self._saved(one) > _NO_TIME]
        first = sorted(gaining, key=lambda one: one.seconds)[:MOST_SHOWN]
        rows = tuple((one.what, f"{one.seconds:.4g}", percent(-self._saved(one), "+.2f")) for one in first)
        more = f", the best {MOST_SHOWN} of {len(gaining)}" if len(gaining) > MOST_SHOWN else ""
        return TextTable(f"If it were 10 % faster{more}", ("what", "seconds", "change"), rows)

    def remarks(self) -> tuple[str, ...]:
        """How much of the time devices are idle, the largest causes, and what would gain most, in a sentence each."""
        begin, end = self.window
        whole = (end - begin) * sum(self.members)
        causes = sorted(self.totals().items(), key=lambda one: -one[1])
        told = ", ".join(
            f"{name} {percent(seconds / whole)} ({CAUSE_WORDS[name]})"
            for name, seconds in causes
            if seconds > 0.001 * whole
        )
        share = self.idle_seconds / whole if whole else 0.0
        lines = [f"{self.device_word}s are idle for {percent(share)} of the time" + f": {told}" * bool(told)]
        best = min(self.gains, key=lambda one: one.seconds, default=None)
        if best is not None and self._saved(best) > _NO_TIME:
            lines.append(f"10 % faster, {best.what} would save most: {percent(self._saved(best), '.2f')}")
        elif self.gains:
            lines.append("nothing that is 10 % faster alone would save 0.01 %")
        return tuple(lines)


def explain(
    replayed: Outcome | ScheduleReplay, *, window: tuple[float, float] | None = None, gains: bool = True
) -> Explanation:
    """Why the devices of a replay are idle, its critical path, and what it would take if one thing were faster.

    replayed: a plan's replay without noise, or that of a schedule on numbers
    window: of the timeline, in seconds, that the idle time is of; by default all of it, of a stream without a flush its steady
        part
    gains: whether to replay what would be faster
    Replicas that do the same are one row. Raises ValueError for a noisy replay of a plan.
    """
    check_kind("what is explained", replayed, Outcome, ScheduleReplay)
    if isinstance(replayed, ScheduleReplay):
        timeline, program = replayed.timeline, replayed.program
        window = window or (0.0, timeline.makespan_seconds)

        def whole(program: Program) -> float:
            return replay_on(program, "compiled").makespan_seconds

        idle = idle_time(program, timeline, window, replayed.memory)
        members = (1,) * len(idle.devices)
        facts = replayed.title, "device", replayed.makespan_seconds
    else:
        if replayed.lower_bound is None:
            raise ValueError("a noisy replay is not explained: what would be faster is replayed without noise")
        timeline, program = replayed.replay, _program_of(replayed)
        steady, plan, problem = replayed.steady, replayed.plan, replayed.problem
        window = window or ((0.0, timeline.makespan_seconds) if steady is None else (steady.begin, steady.end))

        def whole(program: Program) -> float:
            found = replay_on(program, "compiled", contention=problem.contention)
            if steady is None:
                return found.makespan_seconds
            return steady_of(plan, found, replayed.stream).seconds_per_sample * problem.batch

        idle = idle_time(program, timeline, window, replayed.memory)
        groups = plan.groups if replayed.stand_ins is None else replayed.stand_ins.groups(plan)
        members = tuple(len(groups[device]) for device in idle.devices.tolist())
        facts = replayed.title, problem.device_word, replayed.iteration_seconds
    faster = _faster(program, timeline, idle, facts[1]) if gains else ()
    found = tuple(Gain(kind, what, whole(one)) for kind, what, one in faster)
    return Explanation(*facts, window, program, timeline, idle, members, critical_path(program, timeline), found)


def _program_of(outcome: Outcome) -> Program:
    """The program of which an outcome has the replay."""
    costs = PlanCosts(outcome.problem, outcome.plan)
    _, structure = plan_structure(costs, outcome.stream, outcome.stand_ins)
    return fill(structure, costs, outcome.stand_ins)


def _runs(program: Program, timeline: Timeline, path: Iterable[PathStep]) -> Iterator[PathRun]:
    """The critical path, tasks of one lane without a gap together."""
    number = 0
    numbered: list[tuple[int, PathStep]] = []
    for step in path:
        if not numbered or step.gap or timeline.lane[step.task] != timeline.lane[numbered[-1][1].task]:
            number += 1
        numbered.append((number, step))
    for _, members in groupby(numbered, key=lambda one: one[0]):
        steps = [step for _, step in members]
        tasks = [step.task for step in steps]
        seconds = float((timeline.end[tasks] - timeline.start[tasks]).sum())
        yield PathRun(
            int(timeline.device[tasks[0]]),
            *(name_of(program, tasks[0]), name_of(program, tasks[-1]), len(tasks), seconds, steps[0].gap),
            "transfer" if steps[0].gap and not is_collective(timeline, tasks[0]) else "",
        )


# ------------------------------------------------------------------------------------------------------------ gains


def _faster(program: Program, timeline: Timeline, idle: IdleTime, word: str) -> Iterator[tuple[str, str, Program]]:
    """Programs in which one thing is faster: its kind, what it is in words, and the program."""
    lane, works = program.lane_of_task(), program.computing()
    moving = among(program.kind, (OpKind.SEND, OpKind.RECEIVE))
    stages = np.unique(program.stage[works]).tolist()
    for stage in stages:
        yield "stage", f"stage {stage}", _with_faster(program, works & (program.stage == stage))
    device = program.lane_device[lane]
    held = [np.unique(program.stage[works & (device == one)]).tolist() for one in idle.devices.tolist()]
    if held != [[stage] for stage in stages]:
        for one in idle.devices.tolist():
            yield "device", f"{word} {one}", _with_faster(program, works & (device == one))
    classes = _classes_by_boundary(program)
    for (first, second), moved in sorted(classes.items()):
        tasks = np.zeros(len(program), dtype=np.bool_)
        if program.sends is not None:
            tasks = np.isin(program.sends, sorted(moved)) & moving
            tasks |= _receives_of(program, tasks)
        yield "link", f"transfers between stages {first} and {second}", _with_faster(program, tasks, moved)
    reducing = (program.lane_kind == LaneKind.COLLECTIVE)[lane] & (program.seconds > 0.0)
    for stage in np.unique(program.stage[reducing]).tolist():
        yield (
            "reductions",
            f"gradient sync of stage {stage}",
            _with_faster(program, reducing & (program.stage == stage)),
        )


def _classes_by_boundary(program: Program) -> dict[tuple[int, int], set[int]]:
    """The transfer classes that take time between two stages, by these, rising."""
    moves = moves_of(program)
    found: dict[tuple[int, int], set[int]] = {}
    pairs = zip(program.stage[moves.producer].tolist(), program.stage[moves.consumer].tolist(), strict=True)
    for (one, other), transfer in zip(pairs, moves.transfer.tolist(), strict=True):
        if program.transfer_seconds[transfer] > 0.0:
            found.setdefault((min(one, other), max(one, other)), set()).add(transfer)
    return found


def _receives_of(program: Program, sends: Flags) -> Flags:
    """The receives behind some sends, which are the same transfers."""
    found = np.zeros(len(program), dtype=np.bool_)
    receives = np.flatnonzero(program.kind == OpKind.RECEIVE)
    found[receives] = sends[program.dependency[program.dependency_offsets[receives]]]
    return found


def _with_faster(program: Program, tasks: Flags, classes: Iterable[int] = ()) -> Program:
    """The program with some tasks and transfer classes FASTER."""
    factor = np.where(tasks, 1.0 / FASTER, 1.0)
    moving = np.ones(len(program.transfer_seconds))
    moving[list(classes)] = 1.0 / FASTER
    slowdown = moving if program.transfer_slowdown is None else moving * program.transfer_slowdown
    return replace(
        program,
        seconds=program.seconds * factor,
        least_seconds=None if program.least_seconds is None else program.least_seconds * factor,
        transfer_seconds=program.transfer_seconds * moving,
        transfer_slowdown=slowdown,
    )
