"""Tests of `planners.scheduler.schedule_problem`: what is refused at the door."""

from __future__ import annotations

import math
from typing import Any

import pytest

from planners.scheduler.instance import memory_units
from planners.scheduler.schedule_problem import ScheduleProblem
from simulator import chains_of


def given(**changes: Any) -> ScheduleProblem:
    """A problem of four even stages, changed."""
    numbers = {"forward": 5, "input_gradient": 6, "weight_gradient": 4, "transfer": 1, "freed_at_weight_gradient": 1}
    return ScheduleProblem(**{"chains": chains_of("straight", 4, 4), "microbatches": 8, **numbers, **changes})


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"forward": -1}, "forward 0 must be a finite number of at least 0, got -1.0"),
        ({"transfer": [0, math.inf, 0]}, "transfer 1 must be a finite number"),
        ({"weight_gradient": [1, 2, 3]}, "weight gradient needs one number or one for each of 4 stages, got 3 numbers"),
        ({"limit": [9, 9]}, "limit needs one number or one for each of 4 devices"),
        ({"limit": math.nan}, "limit 0 must be a number of at least 0"),
        ({"microbatches": 0}, "micro-batches must be at least 1, got 0"),
        ({"limit": [9, 9, 1, 9]}, "device 2 has 1 .* the least limit that would do is 2"),
        (
            {"limit": 0.5, "freed_at_input_gradient": [1, 2, 3, 1]},
            "device 2 has 0.5 .* the least limit that would do is 4",
        ),
        ({"chains": ((0, 1, 3, 4),)}, r"devices are numbered from 0 and each has a stage, got \(\(0, 1, 3, 4\),\)"),
        ({"chains": ((0,) * 5462, (0,) * 5462)}, "a search takes at most 10,922 stages, got 10924"),
        (
            {"microbatches": 10**9},
            "a schedule has at most 8,388,608 ops: a forward and a backward of 4 stages and 1000000000",
        ),
        (
            {"chains": ((0,) * 64,), "microbatches": 65536, "transfer": 0},
            (
                "64 stages on one device and 65536 micro-batches are too many to be searched: ops times "
                "stages of a device are at most 67,108,864"
            ),
        ),
        ({"forward": 1e300}, "seconds of all ops and transfers must sum to at most 1e.300, got 3.2e.301"),
        ({"transfer": 1e299}, "seconds of all ops and transfers must sum to at most 1e.300, got 4.8e.300"),
        ({"forward": 1e308, "input_gradient": 1e308}, "must sum to at most 1e.300, got inf"),
        ({"freed_at_input_gradient": 1e299}, "bytes of all micro-batches must sum to at most 1e.300, got 3.2e.300"),
        ({"chains": ((0, 1), (1,))}, "of one length"),
    ],
)
def test_bad_problems(changes: dict[str, Any], says: str) -> None:
    """What no order can have is refused in one line; a limit too low names the least that would do."""
    with pytest.raises(ValueError, match=says) as refused:
        given(**changes)
    assert "\n" not in str(refused.value)


def test_least_limits() -> None:
    """A device needs what one micro-batch keeps on all its stages of a chain; of two chains, the one that keeps more."""
    v = given(chains=chains_of("v", 4, 2), freed_at_input_gradient=[1, 2, 3, 4])
    assert v.least_limits() == (2 + 5, 3 + 4)
    both = given(chains=chains_of("bidirectional", 4, 4), freed_at_input_gradient=[1, 2, 3, 4])
    assert both.least_limits() == (5, 4, 4, 5)
    one = given(chains=chains_of("bidirectional", 4, 4), microbatches=1, freed_at_input_gradient=[1, 2, 3, 4])
    assert one.least_limits() == (2, 3, 4, 5)


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e9, 1e250])
def test_memory_units_of_any_size(scale: float) -> None:
    """A limit of three micro-batches is one of three micro-batches in whatever unit."""
    first, second, limit = memory_units(
        given(freed_at_input_gradient=scale, freed_at_weight_gradient=2 * scale, limit=9 * scale)
    )
    assert first.min() > 0
    assert (3 * (first + second) == limit).all()


def test_least_limit_in_units() -> None:
    """Who has the least limit that would do has room for one micro-batch in units, too, be there a common unit or none."""
    first, second, limit = memory_units(
        given(freed_at_input_gradient=1 / 3, freed_at_weight_gradient=1 / 7, limit=1 / 3 + 1 / 7)
    )
    assert (first + second <= limit).all()


def test_memory_units() -> None:
    """Decimals become whole numbers exactly; what has no decimal unit is rounded so that the limit holds."""
    first, second, limit = memory_units(given(freed_at_input_gradient=0.1, freed_at_weight_gradient=0.2, limit=0.9))
    assert (3 * (first + second) == limit).all()
    finer = memory_units(given(freed_at_input_gradient=0.5, freed_at_weight_gradient=0.5, limit=1.25))
    assert [one.tolist() for one in finer] == [[50] * 4, [50] * 4, [125] * 4]
    first, second, limit = memory_units(
        given(freed_at_input_gradient=1 / 3, freed_at_weight_gradient=1 / 7, limit=10 / 21 * 3)
    )
    assert (2 * (first + second) <= limit).all()
    assert (3.001 * (first + second) > limit).all()
