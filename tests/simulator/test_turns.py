"""Tests of `simulator.compiled.turns`: compiled or as it stands, the same order, as far as the lanes come."""

from __future__ import annotations

import sys
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings

from simulator import Program
from simulator.compiled.turns import turns
from tests.simulator.strategies import programs


@settings(max_examples=30, deadline=None)
@given(program=programs())
def test_turns_are_the_same_without_numba(program: Program) -> None:
    """Of programs that run, and of those that deadlock; every task stands behind its lane's task before and all that it needs;
    each lane comes as far as it can.
    """
    columns = program.lane_offsets, program.dependency_offsets, program.dependency
    order, position = turns(*columns)
    with patch.dict(sys.modules):
        sys.modules.pop("numba", None)
        plain = turns(*columns)
    assert (order.tolist(), position.tolist()) == (plain[0].tolist(), plain[1].tolist())
    place = np.full(len(program), -1)
    place[order] = np.arange(len(order))
    needs = program.dependency[np.isin(program.consumers(), order)]
    consumers = program.consumers()[np.isin(program.consumers(), order)]
    assert (place[needs] >= 0).all()
    assert (place[needs] < place[consumers]).all()
    assert int((position - program.lane_offsets[:-1]).sum()) == len(order)
    for task in position[position < program.lane_offsets[1:]].tolist():  # no lane could go on
        needed = program.dependency[program.dependency_offsets[task] : program.dependency_offsets[task + 1]]
        assert (place[needed] < 0).any()


def test_lanes_come_as_far_as_their_waits_let_them() -> None:
    """Random waits of up to 4 lanes, most of which end in a deadlock: those tasks run that can, tried over and over."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        ends = np.concatenate([[0], np.cumsum(rng.integers(0, 4, rng.integers(1, 5)))])
        tasks = int(ends[-1])
        needed = [rng.integers(0, tasks, rng.choice([0, 0, 1, 2])).tolist() for _ in range(tasks)]
        offsets = np.cumsum([0, *map(len, needed)])
        order, position = turns(ends, offsets, np.array([one for waits in needed for one in waits], dtype=np.int32))
        ran, came = set[int](), ends[:-1].tolist()
        for _ in range(tasks):
            for lane, task in enumerate(came):
                if task < ends[lane + 1] and ran.issuperset(needed[task]):
                    ran.add(task)
                    came[lane] += 1
        assert (set(order.tolist()), len(order), position.tolist()) == (ran, len(ran), came)
