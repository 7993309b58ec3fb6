"""Fields of values made in Python: what their annotations say, and one error for everything else."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from hardware_profiles import FieldError, check_fields, check_kind, check_known, path_text
from hardware_profiles.field_types import msgspec_type


@dataclass(frozen=True)
class Part:
    """A part of a whole."""

    count: int


@dataclass(frozen=True)
class Whole:
    """One field of each sort."""

    count: int = 1
    share: float = 0.5
    name: str = ""
    on: bool = False
    word: Literal["a", "b", 2] = "a"
    maybe: int | None = None
    numbers: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    pairs: tuple[tuple[str, bool | int | float | str], ...] = ()
    table: Mapping[str, str] | None = None
    anything: object = None

    def __post_init__(self) -> None:
        check_fields(self)


WRONG: dict[str, tuple[object, ...]] = {
    "count": (None, True, 2.0, "1", 10**13, -(10**13), 10**5000, (1,), np.float64(1.0), np.ones(2)),
    "share": (None, False, "0.5", 1j, [0.5], np.ones(2)),
    "name": (None, 3, b"x", ["x"]),
    "on": (None, 1, 0, "true", []),
    "word": (None, "c", True, 2.0, ["a"], {}, np.ones(2)),
    "maybe": ("1", True, 1.5),
    "numbers": (None, 1, "12", (1, "2"), (1, True), (1.0,), (10**400,), {1, 2}, ((1,),)),
    "parts": (1, (1,), Part(1), ("a", Part(1)), [Part]),
    "pairs": (("a", 1), {"a": 1}, ((1, 1),), (("a", None),), (("a", 1, 2),), ("ab",)),
    "table": (1, "a", (("a", "b"),)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_field_that_does_not_fit_is_named(name: str) -> None:
    """One short line with the field, the value's kind or the choices, and what was given."""
    for value in WRONG[name]:
        with pytest.raises(FieldError, match=f"^{name} ") as caught:
            Whole(**{name: value})  # type: ignore[arg-type]
        said = str(caught.value)
        assert len(said) < 300
        assert "\n" not in said
        assert "Whole must be" in said or "choices: a, b, 2" in said


def test_what_means_the_same_is_taken() -> None:
    """Lists, ranges and numpy's numbers become tuples and Python's numbers; what fits is left as it is, the very object."""
    numbers = (1, 2, 3)
    made = Whole(np.int64(3), 1, "x", np.True_, 2, 4, [1, np.int32(2)], [Part(1)], [("a", 1.5)], {"a": "b"})  # type: ignore[arg-type]
    assert made == Whole(3, 1, "x", True, 2, 4, (1, 2), (Part(1),), (("a", 1.5),), {"a": "b"})
    assert [type(one) for one in (made.count, made.on, made.word, *made.numbers)] == [int, bool, int, int, int]
    assert type(made.share) is int  # a whole number is a number
    assert Whole(numbers=numbers).numbers is numbers
    assert Whole(numbers=range(3)).numbers == (0, 1, 2)  # type: ignore[arg-type]
    assert hash(made.numbers)


def test_names_and_kinds_are_named() -> None:
    """An argument of another kind, a name that nobody knows, a path that is none."""
    with pytest.raises(FieldError, match=r"^plan must be a Part or a text, got 3$"):
        check_kind("plan", 3, Part, str)
    with pytest.raises(
        FieldError, match=r"^a request has no 'stage' \(did you mean stages\?\); choose from seed, stages$"
    ):
        check_known("a request has no", ["seed", "stage"], ["seed", "stages"])
    with pytest.raises(FieldError, match="cluster must be a text or a PathLike, got None"):
        path_text("cluster", None)
    assert path_text("cluster", "a") == "a"


def test_random_values_end_in_that_error_or_fit() -> None:
    """Whatever is given, nothing else is raised."""
    rng = random.Random(0)
    every = [one for values in WRONG.values() for one in values]
    refused = 0
    for _ in range(400):
        try:
            Whole(**{name: rng.choice(every) for name in rng.sample(sorted(WRONG), 3)})
        except FieldError:
            refused += 1
    assert refused > 300


def test_an_alias_of_a_type_statement_is_what_it_names() -> None:
    """As numpy's arrays are from Python 3.12; such an alias is no type that a value could have."""
    alias = SimpleNamespace(__value__=NDArray[np.float64])
    assert isinstance(np.zeros(2), msgspec_type(alias))
    assert not isinstance([0.0, 0.0], msgspec_type(alias))
