"""Keys of what plans share have every field but those that say that they decide nothing of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pytest

from simulator import Plan, Problem, Stage
from simulator.plans.keys import COSTS, LAYERS, NOTHING, ORDER, PARTS, Kept, key_of


@dataclass(frozen=True)
class Wish:
    """A plan with a field that says nothing of what it decides."""

    name: str = field(metadata=NOTHING)
    order: str = field(metadata=ORDER)
    zero: int = field(metadata=COSTS)
    fresh: int = 0


def test_a_field_that_says_nothing_is_in_every_key() -> None:
    """Others are left out where what they decide is."""
    wish = Wish("hand", "1f1b", 3, 7)
    assert key_of(Wish)(wish) == ("hand", "1f1b", 3, 7)
    assert key_of(Wish, NOTHING)(wish) == ("1f1b", 3, 7)
    assert key_of(Wish, NOTHING, ORDER)(wish) == (3, 7)
    assert key_of(Wish, NOTHING, ORDER, COSTS)(wish) == (7,)


def test_what_fields_decide() -> None:
    """What is left out of keys, field by field: all others are in each of them."""
    said = {one.name: one.metadata for kind in (Problem, Plan, Stage) for one in fields(kind) if one.metadata}
    assert {name for name, what in said.items() if what == NOTHING} == {"planner"}
    assert {name for name, what in said.items() if what == LAYERS} == {"workload", "cluster", "layers"}
    assert {name for name, what in said.items() if what == PARTS} == {"stages"}
    assert {name for name, what in said.items() if what == COSTS} == {
        "devices",
        "degrees",
        "recompute",
        "zero",
        "context",
        "expert",
    }
    assert {name for name, what in said.items() if what == ORDER} == {
        "schedule",
        "microbatches",
        "forward_sizes",
        "backward_sizes",
        "order",
        "options",
    }


def test_the_ones_used_last_are_kept() -> None:
    """Lists of numbers, of at most six together; one of seven is not kept, and gives up no other."""
    kept: Kept[str, list[int]] = Kept()
    assert kept.keep("two", [1] * 2, 6) == kept.keep("three", [1] * 3, 6) == []
    assert kept.used("two") == [1, 1]
    assert kept.used("none") is None
    assert kept.keep("one more", [1] * 2, 6) == ["three"]
    assert kept.keep("seven", [1] * 7, 6) == []
    assert list(kept) == ["two", "one more"]
    assert kept.size == 4


@pytest.mark.parametrize("kind", [Plan, Problem, Stage])
def test_a_key_of_everything_is_the_value(kind: type) -> None:
    """Every field is read, in its order."""
    names = [one.name for one in fields(kind)]
    value = type("Named", (), {name: name for name in names})()
    assert key_of(kind)(value) == tuple(names)
