"""Memory retry: a search repeated with less memory where the replay of its plan needs more than there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hardware_profiles import load_cluster
from planners import make_plan
from planners.search.memory_retry import ROUNDS, missing_bytes, shrunk, within_memory
from simulator import Problem, Score
from tests.chains import chain
from tests.planners.conftest import with_memory


def score(seconds: float, peak: float, device: int = 0) -> Score:
    """Of a plan whose fullest device holds 100 bytes."""
    return Score(seconds, peak, 100.0, device)


@pytest.mark.parametrize(
    ("planner", "layers", "devices", "batch", "seed", "share", "most"),
    [
        ("pipedream", 6, 4, 16, 1, 0.99, 7.0),
        ("xpipe", 6, 4, 16, 1, 0.99, 1.1),
        ("pipedream-flush", 6, 4, 16, 2, 0.95, 1.0),
        ("best-equal", 4, 3, 6, 2, 0.99, 3.0),
    ],
)
def test_searches_look_again_in_less_memory(
    planner: str, layers: int, devices: int, batch: int, seed: int, share: float, most: float
) -> None:
    """Of a chain with a little less memory than its plan needs: one that fits, `most` times as long at most, and not proven, as
    another may be faster that needs what was left free."""
    rng = np.random.default_rng(seed)
    flop, sent, weights = rng.uniform(1e9, 5e9, layers), rng.uniform(1e6, 2e7, layers), rng.integers(1e5, 3e6, layers)
    workload = chain(flop.tolist(), output_elements=sent.tolist(), parameters=weights.tolist())
    problem = Problem(workload, load_cluster("pipedream-a").take(devices), batch)
    loose = make_plan(planner, problem).outcome
    tight = make_plan(planner, with_memory(problem, share * max(one.peak_bytes for one in loose.memory)))
    assert tight.outcome.fits
    assert tight.outcome.iteration_seconds <= most * loose.iteration_seconds
    assert not tight.proof


@pytest.mark.parametrize(
    ("peaks", "chosen", "searches"),
    [
        ([90.0], 0, 1),
        ([130.0, 120.0, 100.0, 50.0], 2, 3),
        ([130.0, 110.0, 120.0], 1, 4),
        ([], None, 1),
        ([float("inf"), 50.0], 0, 1),
        ([101.0 + round for round in range(2 * ROUNDS)], 0, ROUNDS),
    ],
)
def test_the_first_plan_that_fits_ends_the_search(peaks: list[float], chosen: int | None, searches: int) -> None:
    """It is found, else the one that misses least; what no memory helps, nothing more found, or too many rounds end it, too."""
    heard: list[list[float]] = []

    def search(misses: Sequence[Score]) -> Any:
        heard.append([one.peak_bytes for one in misses])
        return str(len(misses)) if len(misses) < len(peaks) else None

    evaluate: Any = lambda plan: score(1.0, peaks[int(plan)])  # noqa: E731
    assert within_memory(evaluate, search) == (None if chosen is None else str(chosen))
    assert heard == [peaks[:count] for count in range(searches)]


def test_devices_leave_free_what_their_plans_missed() -> None:
    """Bytes of all plans that were too large, by device; one figure for all devices falls by the share, and 1 % each time."""
    misses = [score(1.0, 125.0, 0), score(1.0, 110.0, 1), score(1.0, 200.0, 0)]
    assert [missing_bytes(misses, devices) for devices in ([0], [1], [0, 1], [2])] == [125.0, 10.0, 135.0, 0.0]
    assert shrunk(1000.0, misses[:2]) == pytest.approx(1000.0 * 0.99 * 0.8 * 0.99 / 1.1)
    assert shrunk(1000.0, []) == 1000.0
