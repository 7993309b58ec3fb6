"""Tests of `simulator.schedules.ops`: the text of one op."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import COMPUTE_KINDS, LETTERS, Op, OpKind


def test_text_of_an_op() -> None:
    """Stage, letter, micro-batch: `2F0` is stage 2, forward, micro-batch 0."""
    assert str(Op(2, OpKind.FORWARD, 0)) == "2F0"
    assert Op.parse("2F0") == Op(2, OpKind.FORWARD, 0)
    assert Op.parse(" 10W12 ") == Op(10, OpKind.WEIGHT_GRADIENT, 12)


def test_letters_and_numbers_of_kinds_are_fixed() -> None:
    """Files and columns hold the numbers, so they never change; every kind has one letter of its own."""
    assert [kind.name for kind in OpKind] == [
        "FORWARD",
        "BACKWARD",
        "INPUT_GRADIENT",
        "WEIGHT_GRADIENT",
        "UPDATE",
        "PREDICT",
        "REDUCE",
        "SEND",
        "RECEIVE",
        "RECOMPUTE",
        "OFFLOAD",
        "RELOAD",
        "SCATTER",
        "GATHER",
    ]
    assert [int(kind) for kind in OpKind] == list(range(14))
    assert len(set(LETTERS)) == len(OpKind)
    assert "".join(LETTERS[kind] for kind in COMPUTE_KINDS) == "FBIW"


@settings(max_examples=30)
@given(
    st.integers(0, 5000),
    st.sampled_from([kind for kind in OpKind if LETTERS[kind] in "FBIWAUPOL"]),
    st.integers(0, 9999),
)
def test_parse_reads_what_str_writes(stage: int, kind: OpKind, microbatch: int) -> None:
    """Every op of a schedule survives its text."""
    op = Op(stage, kind, microbatch)
    assert Op.parse(str(op)) == op


@pytest.mark.parametrize("text", ["", "F", "F0", "2F", "2X0", "2F-1", "-2F0", "2 F 0", "2f0", "2F0 3F0", "2R0", "2S0"])
def test_parse_refuses_anything_else(text: str) -> None:
    """What is no op is refused in one line that shows it and the form expected."""
    with pytest.raises(
        ValueError, match="is not STAGE, one letter of F B I W A U P O L, MICRO-BATCH, as in 2F0"
    ) as caught:
        Op.parse(text)
    assert "\n" not in str(caught.value)
