"""Options of functions: every way to declare one, what it then takes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import pytest

from hardware_profiles.option_declarations import Bounds, declared_options, read_options


def function(
    given: object,
    needed,  # type: ignore[no-untyped-def]
    width: Annotated[int, Bounds(ge=1, le=4)] = 2,
    share: Annotated[float | None, Bounds(gt=0.0, lt=1.0)] = None,
    how: Literal["slow", "fast"] = "slow",
    degree: Annotated[Literal[1, 2, 4], Bounds(le=2)] = 1,
    steps: Annotated[tuple[int, ...], Bounds(ge=1)] = (1,),
    words: list[Literal["a", "b"]] | None = None,
    ratio=0.5,
    levels=(1, 2),
    mixed=(1, 0.5),
    rest=(None,),
    flag=False,
    loose: object = 2,
    made=len,
) -> None:
    """Takes much.

    needed: whatever it is. Of any kind
    width: of a slice; of more than one
    """


DECLARED = declared_options(function, 1)


@pytest.mark.parametrize(
    ("name", "rule", "taken", "refused"),
    [
        ("needed", "a number or a text", {"x": "x", "2": 2, "0.5": 0.5}, [None, {}]),
        ("width", "a whole number of at least 1 and at most 4", {"1": 1, "+4": 4}, ["0", "5", "1.5", "x", True]),
        ("share", "a number, more than 0 and less than 1", {"0.5": 0.5, ".25": 0.25}, ["0", "1", "nan", "half"]),
        ("how", "one of slow, fast", {"fast": "fast", " slow ": "slow"}, ["well", 1]),
        ("degree", "one of 1, 2, 4, at most 2", {"2": 2}, ["3", "4"]),
        ("steps", "a list of which each is a whole number of at least 1", {"1,3": (1, 3), "2": (2,)}, ["0", "1,", "x"]),
        ("words", "a list of which each is one of a, b", {"a,b": ("a", "b")}, ["a,c", "1"]),
        ("ratio", "a number", {"2": 2.0, "1e-3": 1e-3}, ["x", "1e9999", True]),
        ("levels", "a list of which each is a whole number", {"3,1": (3, 1)}, ["x", "1.5"]),
        ("mixed", "a list of which each is a number or a text", {"1,0.5": (1, 0.5)}, [[None]]),
        ("rest", "a list of which each is a number or a text", {"x,1": ("x", 1)}, [[None]]),
        (
            "flag",
            "true or false",
            {"true": True, "Yes": True, "on": True, "False": False, "no": False, "off": False},
            ["maybe", 1, 0.0],
        ),
        *((name, "a number or a text", {"x": "x", "2": 2}, [None, {}]) for name in ("loose", "made")),
    ],
)
def test_what_a_parameter_says_of_its_option(
    name: str, rule: str, taken: dict[str, Any], refused: list[object]
) -> None:
    """Type, range, choices and whether it is a list, by an annotation or else by the default value."""
    option = DECLARED[name]
    assert option.rule == rule
    for text, value in taken.items():
        found = option.read(text)
        assert (found, type(found)) == (value, type(value))
        assert option.read(value) == value
    for wrong in refused:
        with pytest.raises(ValueError, match=f"^option {name} must be {rule}, got "):
            option.read(wrong)


def test_options_are_what_stands_behind_the_given_parameters() -> None:
    """Help is what stands behind the name, only what has no default is needed, and missing or unknown names are told."""
    assert list(DECLARED)[:3] == ["needed", "width", "share"]
    assert "given" not in DECLARED
    assert [name for name, one in DECLARED.items() if one.needed] == ["needed"]
    assert {name: one.help for name, one in DECLARED.items() if one.help} == {
        "needed": "whatever it is. Of any kind",
        "width": "of a slice; of more than one",
    }
    assert (
        DECLARED["width"].words
        == "of a slice; of more than one (a whole number of at least 1 and at most 4; default 2)"
    )
    assert read_options(DECLARED, {"needed": "1", "width": 3}, "it") == {"needed": 1, "width": 3}
    with pytest.raises(
        ValueError, match=r"^it needs option needed: whatever it is\. Of any kind \(a number or a text\)$"
    ):
        read_options(DECLARED, {"width": 3}, "it")
    with pytest.raises(ValueError, match=r"^it has no option 'widht'"):
        read_options(DECLARED, {"needed": 1, "widht": 3}, "it")
    with pytest.raises(ValueError, match=r"^it takes no options$"):
        read_options({}, {"width": 3}, "it")


class Factory:
    """Takes a width."""

    def __init__(self, width: Annotated[int, Bounds(ge=1)] = 2) -> None:
        self.width = width


class Made:
    """Takes a width when it is called."""

    def __call__(self, width: Annotated[int, Bounds(ge=1)] = 2) -> None:
        """Takes it."""


def unresolved(width: Nowhere = 2) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Takes a width of a kind that cannot be found."""


@pytest.mark.parametrize(
    ("taker", "rules"),
    [
        (Factory, {"width": "a whole number of at least 1"}),
        (Made(), {"width": "a whole number of at least 1"}),
        (partial(Made().__call__), {"width": "a whole number of at least 1"}),
        (unresolved, {"width": "a whole number"}),
        (dict, {}),
    ],
)
def test_whatever_can_be_called_declares_its_options(taker: Callable[..., object], rules: dict[str, str]) -> None:
    """By what its annotations say, as far as they lead anywhere; what has no signature declares none."""
    assert {name: one.rule for name, one in declared_options(taker, 0).items()} == rules
