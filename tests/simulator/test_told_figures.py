"""Figures that a replay tells of itself: seconds, memory, waits, splits and bounds, of every schedule and every option."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardware_profiles import load_cluster
from simulator import (
    Outcome,
    Plan,
    Problem,
    explain,
    layer_bounds,
    schedule_families,
    seconds_without,
    simulate,
    stages_from_cuts,
)
from tests.records import Recorded, weights
from tests.simulator.test_cost_figures import CASES, GPT, STACK


def scheduled(name: str) -> tuple[Problem, Plan]:
    """A family's plan of eight micro-batches on four ranks, half of them behind a network."""
    family = schedule_families()[name]
    chunks = 2 if "chunks" in family.options or family.chunks > 1 else 1
    ranks: list[tuple[int, ...]] = [(2,), (3,), (4,), (5,)]
    if family.placement == "bidirectional":
        ranks, chunks = [(2, 5), (3, 4), (4, 3), (5, 2)], 1
    elif name == "1f1b-rr":
        ranks[0] = (1, 2)
    stages = ranks if chunks == 1 else family.device_of_stage(ranks, chunks)
    ends = np.linspace(0, len(GPT), len(stages) + 1).astype(int)[1:-1].tolist()
    problem = Problem(GPT, load_cluster("pipedream-b:2"), 16, STACK, precision="fp32", optimizer="momentum")
    replication = "round-robin" if len(stages[0]) > 1 else "split"
    return problem, Plan("mine", name, stages_from_cuts(ends, len(GPT), stages), (2,) * 8, replication)


def told(found: Outcome) -> dict[str, Any]:
    """Figures of a replay, in words and as numbers; those of devices one behind another."""
    why, split = explain(found).record(), found.time_split()
    pieces = [piece for device in why["devices"] for piece in device["intervals"]]
    return {
        "remarks": found.remarks(),
        "starts": found.timeline.start,
        "ends": found.timeline.end,
        "times of memory": np.concatenate([one.times for one in found.memory]),
        "bytes": list(np.concatenate([one.bytes for one in found.memory]).T),
        "bytes of parts": [list(one.activations_by_part.values()) for one in found.memory],
        "bytes moved": found.bytes_per_sample,
        "split": [split.devices, split.members, *split.seconds.T, *split.hidden.T],
        "causes": why["causes"],
        "waits": [[one["begin"] for one in pieces], [one["end"] for one in pieces]],
        "first waits": [f"{one['cause']}: {one['before']} for {one['waits_for']}" for one in pieces[:12]],
        "path": [list(one.values()) for one in why["critical_path"]],
        "gains": {one["what"]: one["saves"] for one in why["gains"]},
        "without": seconds_without(found),
    }


def told_of_option(name: str) -> dict[str, Any]:
    """As `told`, with the record, the tables and what the layers wait for."""
    found = simulate(*CASES[name])
    layers = layer_bounds(found.problem, found.plan)
    tables = [[one.columns, *one.rows] for one in (*found.tables(), *layers.tables())]
    return {"record": found.record(), **told(found), "tables": tables, "layers": layers.remarks()}


def test_what_a_schedule_tells(recorded: Recorded) -> None:
    """Of eight micro-batches on four ranks of V100, half of them behind a network, in seconds and bytes."""
    recorded(**told(simulate(*scheduled("interleaved-zb"))))


def test_what_schedules_tell(recorded: Recorded) -> None:
    """Of every family the weights of the same figures."""
    recorded(
        schedules=[{"name": name} | weights(told(simulate(*scheduled(name)))) for name in schedule_families()],
    )


def test_what_an_option_tells(recorded: Recorded) -> None:
    """Of two micro-batches under 1F1B, in seconds and bytes, with the tables and what the layers wait for."""
    recorded(**told_of_option("experts in groups"))


def test_what_options_tell(recorded: Recorded) -> None:
    """Of every option the weights of the same figures."""
    recorded(options=[{"name": name} | weights(told_of_option(name)) for name in CASES])
