"""Stacks that are written: what is read again, with other constants on some generations."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles import (
    MEMORY_RANGES,
    RANGES,
    Constant,
    ProfileError,
    changed_stack,
    changed_stack_text,
    load_stack,
    stack_names,
)
from hardware_profiles.stack_writing import PLACES, toml_text

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
TABLES = st.recursive(
    st.dictionaries(TEXTS, st.one_of(SCALARS, st.lists(SCALARS, max_size=3)), max_size=3),
    lambda inner: st.dictionaries(TEXTS, st.one_of(SCALARS, inner), max_size=3),
    max_leaves=8,
)


@given(TABLES)
def test_what_is_written_is_read_again(table: dict[str, object]) -> None:
    """Any table of strings, numbers, lists and tables; empty ones too."""
    assert tomllib.loads(toml_text(table)) == table


def test_every_constant_has_a_place() -> None:
    """In the sections of a stack's file."""
    assert set(PLACES) == {*RANGES, *MEMORY_RANGES}


@pytest.mark.parametrize("name", stack_names())
@pytest.mark.parametrize("generations", [("hopper",), ("", "ampere")], ids=str)
def test_a_changed_stack_is_the_one_that_is_read(name: str, generations: tuple[str, ...], tmp_path: Path) -> None:
    """Its file says the same plans and constants, but for the changed ones, which name what they rest on and nothing older."""
    stack, path = load_stack(name), tmp_path / "mine.toml"
    values = {"products": 1.25, "block_pass": 5e-4, "exposed": 0.5}
    told = {one: Constant(value, "here", ("mine",)) for one, value in values.items()}
    path.write_text(changed_stack_text(name, "mine", told, generations, "of mine"))
    read = load_stack(path)
    assert (read.name, read.description, read.runs, read.gradient_bytes) == (
        "mine",
        "of mine",
        stack.runs,
        stack.gradient_bytes,
    )
    meant = changed_stack(stack, values, generations)
    for one, constant in read.constants().items():
        own = dict(constant.generations)
        for generation in {*own, *generations}:
            known = dict(meant.constants()[one].generations).get(generation, meant.constants()[one])
            found = own.get(generation, constant)
            assert found.value == pytest.approx(known.value)
            if one in values and generation in generations:
                assert (found.source, found.fitted, found.judged) == ("here", ("mine",), ())


def test_what_cannot_be_read_is_not_changed(tmp_path: Path) -> None:
    """One line for a stack's file with a key that is unknown."""
    path = tmp_path / "bad.toml"
    path.write_text('kind = "stack"\nname = "bad"\n[factors.speed]\nvalue = 2\nsource = "hope"\n')
    with pytest.raises(ProfileError, match="speed"):
        changed_stack_text(str(path), "mine", {}, ("",))
