"""Splits of chains, found by runs of cuts, against those of all cuts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planners.pipedream import dynamic_program
from planners.pipedream.dynamic_program import (
    BARRIER,
    RING,
    LevelCosts,
    RowSlices,
    RowTables,
    VersionMemory,
    solve_row,
)
from planners.pipedream.partitioner import totals_of
from tests.planners.test_pipedream import chain


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_run_of_cuts_holds_the_first_of_the_fastest_splits(data: st.DataObject) -> None:
    """Of chains of equal blocks, where splits tie, tables are to the last bit those of a level whose slices are given."""
    whole = st.integers(0, 9)
    block = data.draw(st.lists(st.tuples(whole, whole, whole), min_size=1, max_size=4))
    seconds, parameters, outputs = zip(*(block * data.draw(st.integers(2, 6))), strict=True)
    table = chain(list(map(float, seconds)), list(parameters), list(map(float, outputs)))
    states, workers = len(table), data.draw(st.integers(1, 4))
    before = np.concatenate([[0.0], table.seconds[:-1]])
    slices = table.seconds[None, :] - before[:, None]
    form, straight, tested = (
        data.draw(st.sampled_from([RING, BARRIER])),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )
    memory = VersionMemory(
        float(data.draw(st.integers(5, 300))),
        tested,
        data.draw(st.integers(0, 2)),
        1,
        1.0,
        1.0,
        data.draw(st.booleans()),
    )
    rate, context = data.draw(st.sampled_from([0.5, 5.0])), np.zeros((workers + 1, workers + 1), dtype=np.int32)
    none = np.zeros(states + 1, dtype=np.int64)
    found = []
    for inner, begins in ((np.empty((0, 0)), (0,)), (slices, (0, states // 2))):  # at once, or one part after the other
        rows = np.arange(states, dtype=np.int32)[None]
        level = LevelCosts(workers, 1, straight, True, rate, rate, inner, context, rows, np.inf, none, none)
        row = RowTables(*np.empty((2, states, workers + 1)), *np.zeros((2, states, workers + 1), dtype=np.int32))
        for begin, stop in pairwise((*begins, states)):
            solve_row(form, RowSlices(0, begin, stop), totals_of(table, form), level, memory, row)
        found.append([column[:, 1:] for column in row])
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)


def test_a_state_is_inside_what_lists_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of the next state begins with what the first one lacks."""
    monkeypatch.setattr(dynamic_program, "_position", dynamic_program._position.py_func)  # type: ignore[attr-defined]
    is_inside = dynamic_program._is_inside.py_func  # type: ignore[attr-defined]
    inside, begins = np.array([2, 5, 7, 8]), np.array([0, 2, 4])
    found = [[is_inside(inside, begins, state, outer) for state in (2, 5, 7, 8, 9)] for outer in (0, 1)]
    assert found == [[True, True, False, False, False], [False, False, True, True, False]]
