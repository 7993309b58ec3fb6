"""Keys of what plans share have every field but those that say that they decide nothing of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.plans.keys import COSTS, NOTHING, ORDER, Kept, key_of


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


def test_the_ones_used_last_are_kept() -> None:
    """Lists of numbers, of at most six together; one of seven is not kept, and gives up no other."""
    kept: Kept[str, list[int]] = Kept()
    assert kept.keep("two", [1] * 2, 6) == kept.keep("three", [1] * 3, 6) == []
    assert kept.used("two") == [1, 1]
    assert kept.used("none") is None
    assert (kept.keep("two", [2] * 2, 6), kept.used("two"), kept.size) == ([], [1, 1], 5)  # another was quicker
    assert kept.keep("one more", [1] * 2, 6) == ["three"]
    assert kept.keep("seven", [1] * 7, 6) == []
    assert list(kept) == ["two", "one more"]
    assert kept.size == 4
