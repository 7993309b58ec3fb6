"""Bounds: no shorter than they were for problems of every placement; an exact solver judges them in the oracle's tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planners.scheduler.bound import Objective, lower_bound, spare_seconds
from planners.scheduler.instance import instance_of
from planners.scheduler.schedule_problem import ScheduleProblem
from simulator import chains_of
from tests.planners.scheduler.schedule_cases import PLACEMENTS
from tests.records import Recorded


def drawn(placement: str, number: int) -> ScheduleProblem:
    """A problem of whole seconds, uneven stages, some without weight gradients, whose memory lets a few micro-batches in."""
    draw = np.random.default_rng([PLACEMENTS.index(placement), number])
    devices = int(draw.integers(2, 5))
    stages = devices * {"v": 2, "wave": 2, "interleaved": int(draw.integers(1, 4))}.get(placement, 1)
    given: dict[str, Any] = {
        "chains": chains_of(placement, stages, devices),
        "microbatches": int(draw.integers(2, 12)),
        "forward": draw.integers(1, 10, stages).tolist(),
        "input_gradient": draw.integers(1, 10, stages).tolist(),
        "weight_gradient": (draw.integers(0, 10, stages) * int(draw.integers(0, 4) > 0)).tolist(),
        "transfer": (draw.integers(0, 4, stages - 1) * int(draw.integers(0, 5))).tolist(),
        "freed_at_input_gradient": draw.integers(0, 4, stages).tolist(),
        "freed_at_weight_gradient": (draw.integers(0, 4, stages) * int(draw.integers(0, 3) > 0)).tolist(),
    }
    least = ScheduleProblem(**given).least_limits()
    room = draw.integers(0, 14, devices) * int(draw.integers(0, 3))
    return ScheduleProblem(**given, limit=[low + more for low, more in zip(least, room.tolist(), strict=True)])


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_bounds_are_as_tight_as_they_were(placement: str, recorded: Recorded) -> None:
    """Bounds of drawn problems: seconds of the whole, of the longest stage, and of a micro-batch of a stream without end; what
    stages of straight pipelines may idle by 1.1 times them. A weaker bound is seen."""
    found: dict[str, list[float]] = {}
    tighter = list[float]()
    for number in range(40):
        instance = instance_of(drawn(placement, number))
        objectives: tuple[Objective, ...] = ("makespan", "longest-stage", "steady")
        for objective in objectives:
            bound = lower_bound(instance, objective)
            found.setdefault(objective, []).append(bound)
            if placement == "straight" and objective != "steady":
                idle = spare_seconds(instance, objective == "longest-stage", 1.1 * bound)
                found.setdefault(f"idle, {objective}", []).append(float(idle.sum()))
        assert found["longest-stage"][-1] <= found["makespan"][-1]
        assert found["longest-stage"][-1] % 1 == found["makespan"][-1] % 1 == 0  # as every op takes
        assert found["steady"][-1] >= max(np.bincount(instance.device, weights=instance.seconds.sum(axis=0))) / int(
            instance.first.sum()
        ) * (1 - 1e-12)
        tighter.append(found["makespan"][-1] - lower_bound(instance, windows=False))
    assert min(tighter) == 0 < max(tighter)  # windows of ops only raise a bound, and not always
    recorded(**{name: np.reshape(values, (-1, 10)) for name, values in found.items()})


def test_two_chains_are_compared_on_hundreds_of_devices() -> None:
    """Each turns once: 724 forwards and 723 transfers twice, 1 s from turn to turn, and the way back."""
    problem = ScheduleProblem(
        chains=chains_of("bidirectional", 724, 724), microbatches=2, forward=6, input_gradient=1, transfer=3, limit=1
    )
    assert lower_bound(instance_of(problem)) == 2 * (724 * 6 + 723 * 3 + 1) + 723 * (3 + 1)
