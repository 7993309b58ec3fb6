"""Timelines made by hand for the tests of weight versions and of the numerical replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.schedules.ops import OpKind

F, B, U = OpKind.FORWARD, OpKind.BACKWARD, OpKind.UPDATE
OpLists = list[list[tuple[OpKind, int]]]


@dataclass(frozen=True)
class HandTimeline:
    """The columns of a timeline that versions are counted from."""

    stage: NDArray[Any]
    replica: NDArray[Any]
    kind: NDArray[Any]
    microbatch: NDArray[Any]
    start: NDArray[Any]
    end: NDArray[Any]


def columns(rows: list[tuple[int, int, int, float, float]]) -> HandTimeline:
    """Timeline of (stage, kind, micro-batch, start, end) rows."""
    stage, kind, microbatch, start, end = (np.array(column) for column in zip(*rows, strict=True))
    return HandTimeline(stage, np.zeros_like(stage), kind, microbatch, start, end)


def replayed(lists: OpLists, seconds: Callable[[], float] = lambda: 1.0, update_seconds: float = 0.0) -> HandTimeline:
    """Run each stage's list in order, every op as early as its inputs allow."""
    last = len(lists) - 1
    position, free = [0] * len(lists), [0.0] * len(lists)
    forward: dict[tuple[int, int], float] = {}
    backward: dict[tuple[int, int], float] = {}
    rows: list[tuple[int, int, int, float, float]] = []
    while len(rows) < sum(map(len, lists)):
        before = len(rows)
        for k, ops in enumerate(lists):
            while position[k] < len(ops):
                kind, i = ops[position[k]]
                if kind == F:
                    needed = 0.0 if k == 0 else forward.get((k - 1, i))
                elif kind == B:
                    needed = forward.get((k, i)) if k == last else backward.get((k + 1, i))
                else:
                    needed = 0.0
                if needed is None:
                    break
                start = max(needed, free[k])
                free[k] = start + (update_seconds if kind == U else seconds())
                if kind != U:
                    (forward if kind == F else backward)[k, i] = free[k]
                rows.append((k, int(kind), i, start, free[k]))
                position[k] += 1
        assert len(rows) > before, "the lists deadlock"
    return columns(rows)


def staircase(stages: int, per_minibatch: int, minibatches: int) -> OpLists:
    """XPipe's staircase: stage k forwards 1..N-k, then strictly B, F, B, F, ...; an update after every T-th backward."""
    total = per_minibatch * minibatches
    lists: OpLists = []
    for k in range(stages):
        warm = min(stages - k, total)
        ops = [(F, i) for i in range(warm)]
        for i in range(total):
            ops.append((B, i))
            if (i + 1) % per_minibatch == 0:
                ops.append((U, i // per_minibatch))
            if i + warm < total:
                ops.append((F, i + warm))
        lists.append(ops)
    return lists


def flushed(stages: int, per_minibatch: int, minibatches: int, fill_drain: bool = False) -> OpLists:
    """1F1B with a flush after every mini-batch, or GPipe (`fill_drain`)."""
    lists: OpLists = []
    for k in range(stages):
        ops: list[tuple[OpKind, int]] = []
        warm = per_minibatch if fill_drain else min(stages - k, per_minibatch)
        for minibatch in range(minibatches):
            first = minibatch * per_minibatch
            ops += [(F, first + i) for i in range(warm)]
            for i in range(per_minibatch):
                ops.append((B, first + i))
                if i + warm < per_minibatch:
                    ops.append((F, first + i + warm))
            ops.append((U, minibatch))
        lists.append(ops)
    return lists


class Hand:
    """The functions above, as one fixture."""

    columns = staticmethod(columns)
    replayed = staticmethod(replayed)
    staircase = staticmethod(staircase)
    flushed = staticmethod(flushed)


@pytest.fixture(scope="session")
def hand() -> type[Hand]:
    """Hand-made op lists and their replay."""
    return Hand
