"""Engine rates: ops per CPU second of the engines and of a plain-Python replay, and how they grow."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.benchmarks.timing import cpu_seconds, peak_bytes
from experiments.terminal.output import UsageError, tracked
from hardware_profiles import Channel
from simulator import OpSeconds, Program, build_schedule, given_costs, lower
from simulator.engines import event_loop
from simulator.engines import reference as engine
from simulator.engines.recurrence import narrow, order_of, replay_values

SHAPES = ((8, 64), (16, 256), (64, 1024))
GROWTH = tuple((8 << power, 16 << power) for power in range(10))
SIMPY_OPS = 5_000_000
"""The event engine is measured up to this many ops; beyond, the recurrence alone."""

TRANSFER_SECONDS = 0.1


def measure(devices: int, microbatches: int, *, replayed_ops: int = 4_000_000) -> dict[str, Any]:
    """Rates of one shape; each is the best of several repeats.

    replayed_ops: in a repeat of the compiled replays, so that one is long enough for the clock
    """
    free, moving = build(devices, microbatches, 0.0), build(devices, microbatches, TRANSFER_SECONDS)
    queueing = on_channels(moving)
    prepared_queueing = event_loop.prepare(queueing, contention=True)
    event_loop.makespan(prepared_queueing)
    replay_free, replay_moving = prepared(free), prepared(moving)
    replay_free()
    ops = len(free)
    loops = max(1, min(4_000, replayed_ops // ops))

    def scratch() -> None:
        prepared(build(devices, microbatches, TRANSFER_SECONDS))()

    def repeated(replay: Callable[[], float]) -> Callable[[], None]:
        def body() -> None:
            for _ in range(loops):
                replay()

        return body

    lists = plain_lists(moving)
    rates = {
        "simpy_without_transfers": ops / cpu_seconds(lambda: engine.replay(free)),
        "simpy_with_transfers": ops / cpu_seconds(lambda: engine.replay(moving)),
        "simpy_contended": ops / cpu_seconds(lambda: engine.replay(queueing, contention=True)),
        "event_loop_contended_prepared": ops / cpu_seconds(lambda: event_loop.makespan(prepared_queueing)),
        "event_loop_contended": ops / cpu_seconds(lambda: event_loop.replay(queueing, contention=True)),
        "recurrence_prepared": ops * loops / cpu_seconds(repeated(replay_free)),
        "recurrence_prepared_with_transfers": ops * loops / cpu_seconds(repeated(replay_moving)),
        "recurrence_from_scratch": ops / cpu_seconds(scratch),
        "plain_python": ops / cpu_seconds(lambda: plain_replay(*lists)),
    }
    assert plain_replay(*lists) == replay_moving() == engine.replay(moving).makespan_seconds
    assert event_loop.makespan(prepared_queueing) == engine.replay(queueing, contention=True).makespan_seconds
    return {
        "devices": devices,
        "microbatches": microbatches,
        "ops": ops,
        **{f"ops_per_second_{name}": rate for name, rate in rates.items()},
        "ratios_over_plain_python": {
            name: rate / rates["plain_python"] for name, rate in rates.items() if name != "plain_python"
        },
    }


def prepared(program: Program) -> Callable[[], float]:
    """A program ready for the recurrence: a replay that takes no argument and gives the makespan in seconds."""
    order = order_of(program)
    value, seconds = narrow(np.arange(len(program))), program.seconds[order.task]
    times = np.empty(2 * len(program) + 1)
    return lambda: float(replay_values(order, value, seconds, program.transfer_seconds, times))


def on_channels(program: Program) -> Program:
    """The program with every transfer class on a channel of its own, on which its transfers take turns."""
    count = len(program.transfer_seconds) - 1
    return replace(
        program,
        transfer_bytes=program.transfer_seconds,
        transfer_route=((), *((number,) for number in range(count))),
        channels=(Channel("link", 1.0, 0.0, (1.0, 1.0, 1.0)),) * count,
    )


def build(devices: int, microbatches: int, transfer: float) -> Program:
    """Schedule and program of one shape."""
    return lower(
        build_schedule("1f1b", devices, microbatches), given_costs(devices, OpSeconds(1.0, 2.0, transfer=transfer))
    )


def plain_lists(program: Program) -> tuple[list[list[tuple[int, float, int, float]]], int]:
    """Per lane: (task, seconds, the task it waits for or -1, lag); and the number of tasks."""
    lanes = []
    for lane in range(program.lanes):
        tasks = []
        for task in range(int(program.lane_offsets[lane]), int(program.lane_offsets[lane + 1])):
            rows = range(int(program.dependency_offsets[task]), int(program.dependency_offsets[task + 1]))
            assert len(rows) <= 1
            need = int(program.dependency[rows[0]]) if rows else -1
            lag = float(program.transfer_seconds[program.transfer[rows[0]]]) if rows else 0.0
            tasks.append((task, float(program.seconds[task]), need, lag))
        lanes.append(tasks)
    return lanes, len(program)


def plain_replay(lanes: list[list[tuple[int, float, int, float]]], count: int) -> float:
    """The order replayed in plain Python: lanes take turns, each runs until it waits."""
    end: list[float | None] = [None] * count
    position = [0] * len(lanes)
    free = [0.0] * len(lanes)
    left = count
    while left:
        for lane, tasks in enumerate(lanes):
            now, at = free[lane], position[lane]
            while at < len(tasks):
                task, seconds, need, lag = tasks[at]
                if need >= 0:
                    ready = end[need]
                    if ready is None:
                        break
                    now = max(now, ready + lag)
                now += seconds
                end[task] = now
                at += 1
            left -= at - position[lane]
            free[lane], position[lane] = now, at
    return max(free)


# ---- growth ---------------------------------------------------------------------------------------------------------


def one_size(devices: int, microbatches: int) -> dict[str, Any]:
    """Seconds and memory of one size, measured in this process alone."""
    prepared(build(2, 2, TRANSFER_SECONDS))()
    base = peak_bytes()
    begin = time.process_time()
    program = build(devices, microbatches, TRANSFER_SECONDS)
    built = time.process_time()
    replay = prepared(program)
    ordered = time.process_time()
    makespan = replay()
    replay_seconds = cpu_seconds(replay)
    peak = peak_bytes()
    row: dict[str, Any] = {
        "devices": devices,
        "microbatches": microbatches,
        "ops": len(program),
        "build_seconds": built - begin,
        "prepare_seconds": ordered - built,
        "replay_seconds": replay_seconds,
        "simpy_seconds": None,
        "peak_bytes": peak,
        "bytes_per_op": (peak - base) / len(program),
        "makespan_seconds": makespan,
    }
    if len(program) <= SIMPY_OPS:
        begin = time.process_time()
        line = engine.replay(program)
        row["simpy_seconds"] = time.process_time() - begin
        assert line.makespan_seconds == makespan
    return row


def growth(largest: tuple[int, int]) -> list[dict[str, Any]]:
    """Every size up to the largest (devices, micro-batches), each measured in a process of its own."""
    devices, microbatches = largest
    sizes = [size for size in GROWTH if size[0] < devices and size[1] < microbatches] + [(devices, microbatches)]
    rows = []
    for p, m in tracked("growing", sizes, lambda size: f"{size[0]} devices × {size[1]} micro-batches"):
        command = [sys.executable, "-m", "experiments.benchmarks.replay_speed", "--one", str(p), str(m)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UsageError(
                f"{p} devices × {m} micro-batches failed with exit code {done.returncode}: {done.stderr[-300:]}"
            )
        rows.append(json.loads(done.stdout))
    return rows
