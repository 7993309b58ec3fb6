"""Prediction errors: the narrowest class that fits, the widest near it where none does, and files that cannot be read."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from hardware_profiles import (
    GENERIC,
    ErrorClass,
    ProfileError,
    Stack,
    accelerator_kind,
    errors_text,
    load_accelerator,
    load_stack,
    prediction_error,
    stack_names,
)
from hardware_profiles.chips import CHIPS
from hardware_profiles.load import read_errors, shipped_errors
from hardware_profiles.prediction_errors import ENOUGH, PredictionError, least_interval

A100, H100, TPU, BOARD = map(load_accelerator, ("a100-80", "h100", "tpu-v5p", "vcu118"))


def errors(low: float, high: float, **more: Any) -> ErrorClass:
    """A class of seconds on Ampere, of pipelines."""
    said: dict[str, Any] = {"figure": "seconds", "accelerators": ("ampere",), "plans": ("pipeline",), "rows": 30} | more
    return ErrorClass(median=(low * high) ** 0.5, low=low, high=high, **said)


def of(*classes: ErrorClass) -> Stack:
    """A stack whose own file has these classes."""
    return Stack(name="mine", errors=classes)


def test_kinds_of_accelerators() -> None:
    """For seconds GPUs by generation; other chips, and all for bytes, by kind of chip; boards together."""
    every = A100, H100, TPU, BOARD
    assert [accelerator_kind(one, "seconds") for one in every] == ["ampere", "hopper", "systolic", "boards"]
    assert [accelerator_kind(one, "memory") for one in every] == ["tensor-core", "tensor-core", "systolic", "boards"]


def test_the_narrowest_class_that_fits_counts() -> None:
    """That of the plan's kind before that of all plans of the accelerator, in whatever order they stand."""
    wide, narrow = errors(0.5, 2.0, plans=("data", "pipeline")), errors(0.9, 1.1)
    for stack in of(wide, narrow), of(narrow, wide):
        assert prediction_error("seconds", stack, [A100], "pipeline")[1:4] == (0.9, 1.1, 30)
        assert prediction_error("seconds", stack, [A100], "data")[1:4] == (0.5, 2.0, 30)


@pytest.mark.parametrize("stack", [Stack(name="mine"), of(errors(0.99, 1.01)), GENERIC])
def test_where_no_class_is_near_the_widest_is_stated(stack: Stack) -> None:
    """As wide as every class of the figure, with no row like it: no run of the stack, or of another one on these devices."""
    found = prediction_error("seconds", stack, [BOARD], "other")
    every = [one for classes in shipped_errors().values() for one in classes if one.figure == "seconds"]
    assert (found.low, found.high) == (min(one.low for one in every), max(one.high for one in every))
    assert (found.rows, found.like) == (0, "no measured run is like it")
    assert found.words.startswith("the widest of all, as no run of")


@pytest.mark.parametrize(("accelerator", "plan"), [(H100, "pipeline"), (A100, "fp8")])
def test_near_classes_are_those_of_the_stack_and_of_frameworks_on_the_devices(accelerator: Any, plan: Any) -> None:
    """Another accelerator, another kind of plan: never narrower than either, and `generic`, which no framework is, is none."""
    found = prediction_error("seconds", of(errors(0.99, 1.01)), [accelerator], plan)
    kind = accelerator_kind(accelerator, "seconds")
    beside = [
        one
        for name, classes in shipped_errors().items()
        for one in classes
        if name != GENERIC.name and one.figure == "seconds" and kind in one.accelerators
    ]
    assert (found.low, found.high) == (
        min(0.99, *(one.low for one in beside)),
        max(1.01, *(one.high for one in beside)),
    )
    assert found.rows == 0
    assert f"mine elsewhere and of other stacks on {kind}, as no run of mine on {kind}" in found.words


def test_memory_has_classes_of_its_own() -> None:
    """A class of seconds says nothing of bytes."""
    stack = of(errors(0.9, 1.1), errors(0.97, 1.02, figure="memory", accelerators=("tensor-core",), rows=5))
    found = prediction_error("memory", stack, [A100], "pipeline")
    assert (found.low, found.high, found.like) == (0.97, 1.02, "all of 5 runs like it")
    assert found.of(100.0) == (97.0, 102.0)


def test_of_several_kinds_of_accelerators_the_widest_counts() -> None:
    """Both ends, wherever they come from."""
    stack = of(errors(0.8, 1.1), errors(0.9, 1.3, accelerators=("hopper",), rows=20))
    found = prediction_error("seconds", stack, [A100, H100], "pipeline")
    assert (found.low, found.high, found.rows, found.like) == (0.8, 1.3, 20, "90 % of 20 runs like it")


def test_a_chip_known_by_its_kind_alone_has_at_least_its_spread() -> None:
    """Normal errors of a mean of 10 % are below 20.6 % in nine of ten cases."""
    chip, stack = replace(A100, spread=0.1), of(errors(0.99, 1.01))  # type: ignore[type-var]
    found = prediction_error("seconds", stack, [chip], "pipeline")
    assert (found.low, found.high) == pytest.approx((1 / 1.2062, 1.2062), rel=1e-4)


def test_normal_errors_and_order_statistics_give_the_same_nine_tenths() -> None:
    """Half of the interval of normal errors is 1.645 deviations, whose mean absolute error is the root of 2 / pi of one; of n
    rows the ends hold (n - 1) / (n + 1) of further ones in the mean, nine tenths from 19 on.
    """
    half = NormalDist().inv_cdf(0.95) / math.sqrt(2.0 / math.pi)
    spread = CHIPS["vector"].spread
    device = replace(load_accelerator("a100-80"), spread=spread)  # type: ignore[type-var]
    low, high = least_interval(device)
    assert high == pytest.approx(1.0 + half * spread, rel=1e-3)
    assert low == pytest.approx(1.0 / high)
    assert least_interval(load_accelerator("a100-80")) == (1.0, 1.0)
    assert next(n for n in range(2, 99) if (n - 1) / (n + 1) >= 0.9) == ENOUGH
    few, enough = (PredictionError(1.0, 0.9, 1.2, rows, "") for rows in (ENOUGH - 1, ENOUGH))
    assert (few.like, enough.like) == ("all of 18 runs like it", "90 % of 19 runs like it")
    assert enough.of(10.0) == (9.0, 12.0)


def test_shipped_classes_are_of_shipped_stacks() -> None:
    """Each by a name that is known."""
    assert set(shipped_errors()) <= set(stack_names())
    assert all(one.rows and one.tables and one.how for classes in shipped_errors().values() for one in classes)


def test_errors_are_written_as_they_are_read(tmp_path: Path) -> None:
    """To a thousandth, in the form of the shipped file."""
    classes = {"mine": (errors(0.9004, 1.0996, tables=("a", "b"), how="by hand"),)}
    path = tmp_path / "errors.toml"
    path.write_text(errors_text(classes), encoding="utf-8")
    assert read_errors(path) == {"mine": (replace(classes["mine"][0], low=0.9, median=0.995, high=1.1),)}
    assert "expected" not in path.read_text(encoding="utf-8")
    bare = errors_text({"mine": (errors(0.9, 1.1),)})
    assert [word for word in ("tables", "how", "rows") if word in bare.partition("[[stacks")[2]] == ["rows"]


@pytest.mark.parametrize("said", [(0.0, 1.0), (1.2, 1.1), (-0.5, 0.5)])
def test_classes_rise_from_above_nothing(said: tuple[float, float]) -> None:
    """Measured seconds are never 0 of those predicted, and a low end is below the high one."""
    with pytest.raises(ValueError, match="must rise from above 0"):
        replace(errors(0.9, 1.2), low=said[0], median=1.05, high=said[1])


HEAD = 'kind = "stack"\nname = "bad"\n[[errors]]\nfigure = "seconds"\naccelerators = ["ampere"]\nplans = ["data"]'

BAD = [
    ('kind = "errors"\n[[stacks.a]]\nfigure = "hours"', "hours"),
    ('kind = "stack"\nname = "a"\n[[errors]]\nfigure = "seconds"\naccelerators = []', "$.errors[0].accelerators"),
    ("median = 1.0\nlow = 1.1\nhigh = 1.2", "rise"),
    ("median = 1.0\nlow = 0.0\nhigh = 1.2", "$.errors[0].low"),
    ("median = 1.0\nlow = 0.9\nhigh = 1e9", "$.errors[0].high"),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_a_bad_file_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    """With its place and the rule."""
    path = tmp_path / "bad.toml"
    if not text.startswith("kind"):
        text = f"{HEAD}\nrows = 3\n{text}"
    path.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        (read_errors if "errors" in text[:20] else load_stack)(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stacks_own_classes_come_before_the_shipped_ones() -> None:
    """Whatever its name is."""
    mine = replace(GENERIC, errors=(errors(0.98, 1.02),))
    assert prediction_error("seconds", mine, [A100], "pipeline").high == 1.02
    assert prediction_error("seconds", GENERIC, [A100], "pipeline").high > 1.02
