"""Tests of the options that searches declare: each is taken, and says what the rest of the house has."""

from __future__ import annotations

import re
from pathlib import Path

from hardware_profiles import declared_options
from planners import Request
from planners.registry import PLANNERS
from planners.search.search_options import ASKED, DECLARED, PLANNER_OPTIONS
from simulator import PLACEMENTS, TrainingOptions


def test_every_option_is_taken_by_a_planner() -> None:
    """And no planner takes one that is not declared; every one has a line of help."""
    taken = {name for entry in PLANNERS.values() for name in entry.options}
    assert taken | {"schedule", "microbatches"} == set(DECLARED)
    assert all(one.help for one in DECLARED.values())
    assert not set(ASKED) & set(PLANNER_OPTIONS)


def test_choices_are_those_of_the_simulator() -> None:
    """Placements in one direction."""
    assert set(PLANNER_OPTIONS["placement"].choices) == set(PLACEMENTS) - {"bidirectional"}


def test_the_documentation_names_every_field_of_a_problem() -> None:
    """In the table of problem files, with its default."""
    text = (Path(__file__).parents[2] / "docs/reference/files.md").read_text(encoding="utf-8")
    for name, one in declared_options(TrainingOptions, 0).items():
        row = next(
            (line for line in text.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]), None
        )
        assert row is not None, name
        default = (
            str(one.default).lower()
            if isinstance(one.default, bool)
            else f"{one.default:g}"
            if isinstance(one.default, float)
            else str(one.default)
        )
        assert re.search(rf"`{re.escape(default)}`", row), (name, default)


def test_options_of_a_family_are_those_that_it_declares() -> None:
    """Slices among them; what a planner alone knows is none, and a text is read."""
    options = {"seconds": 1.0, "chunks": "3"}
    asked = (None, None), ("seq1f1b", 4), ("interleaved-1f1b", None)
    found = [Request(schedule=name, slices=slices, options=options).family_options for name, slices in asked]
    assert found == [(), (("slices", 4),), (("chunks", 3),)]
