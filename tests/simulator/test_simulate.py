"""Tests of `simulator.simulate`: a problem and a plan to a timeline, its memory, and the seconds of an iteration."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planners import make_plan
from simulator import (
    SCHEDULES,
    LayerCosts,
    OpSeconds,
    Plan,
    Problem,
    Stage,
    build_schedule,
    replay_schedule,
    simulate,
)
from simulator.costs.plan_costs import PlanCosts
from simulator.lowering.structure import Structure
from simulator.plan_replay import plan_structure
from tests.chains import chain
from tests.simulator.strategies import chain_cluster, star_cluster


def straight(n: int) -> tuple[Stage, ...]:
    """Layer s on device s."""
    return tuple(Stage((s,), (s,)) for s in range(n))


def problem(flop: list[float], batch: int, **changes: Any) -> Problem:
    """Layers of `flop` seconds per sample forward, twice that backward; no weights, nothing to send."""
    return replace(Problem(chain(flop), chain_cluster(len(flop)), batch), **changes)


def sending() -> Problem:
    """Two layers with 4 elements (16 bytes) between them, of 1 s a sample, on a link of a byte/s."""
    return Problem(chain([1.0, 1.0], output_elements=[4.0, 1.0]), chain_cluster(2), 8)


@pytest.mark.parametrize("schedule", ["gpipe", "pipedream"])
def test_links_carry_an_iteration_s_bytes(schedule: str) -> None:
    """16 bytes of each of 8 samples there and back, of a flushed mini-batch and of a stream."""
    (link,) = simulate(sending(), Plan("hand", schedule, straight(2), (2,) * 4)).link_loads().record()
    assert (link["bytes_forth"], link["bytes_back"]) == pytest.approx((128.0, 128.0))


def test_stragglers_are_beside_a_replay_on_the_same_engine() -> None:
    """Without contention on `recurrence`, with it on the others."""
    found: list[float] = []
    for engine in ("recurrence", "compiled", "simpy"):
        plan = Plan("hand", "gpipe", straight(2), (1,) * 8)
        told = simulate(sending(), plan, engine=engine, stragglers={0: 2.0}).stragglers  # type: ignore[arg-type]
        assert told is not None
        found.append(told.without)
        assert told.without == simulate(sending(), plan, engine=engine).iteration_seconds  # type: ignore[arg-type]
    assert found[0] < found[1] == found[2]


# ---- flushed ---------------------------------------------------------------------------------------------------------


def test_a_flushed_iteration_is_its_makespan() -> None:
    """1F1B, 4 stages, 8 micro-batches of 1 sample, F = 1, B = 2: 33 s, 8/33 samples per second."""
    outcome = simulate(problem([1.0] * 4, 8), Plan("hand", "1f1b", straight(4), (1,) * 8))
    assert outcome.iteration_seconds == outcome.timeline.makespan_seconds == 33.0
    assert outcome.samples_per_second == 8 / 33
    assert outcome.stream == 8


def test_bytes_per_sample() -> None:
    """Boundaries once down and once up; gradients 2(R - 1) times their bytes a mini-batch; nothing within a device."""
    workload = chain([1.0] * 3, parameters=[0, 0, 50], output_elements=[4.0, 2.0, 1.0])
    one = Problem(workload, star_cluster(3), 10)
    plan = Plan("hand", "gpipe", (Stage((0,), (0,)), Stage((1, 2), (1, 2))), (10,))
    assert simulate(one, plan).bytes_per_sample == pytest.approx(2 * 16 + 2 * 200 / 10)
    looped = tuple(Stage((s,), (0,)) for s in range(3))
    assert simulate(one, replace(plan, schedule="looped-bfs", stages=looped)).bytes_per_sample == 0.0


# ---- asynchronous ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "count"), [(1, 4), (2, 1), (6, 4)])
def test_steady_state_of_a_balanced_chain_is_a_stages_round_trip(n: int, count: int) -> None:
    """Asynchronous 1F1B has no bubble: F + B = 3 s a mini-batch, fill and drain not counted."""
    outcome = simulate(problem([1.0] * n, count), Plan("hand", "pipedream", straight(n), (1,) * count))
    assert outcome.iteration_seconds == pytest.approx(3.0 * count, rel=1e-12)


# ---- engines and noise -----------------------------------------------------------------------------------------------


def test_noise_is_seeded_and_wants_its_generator() -> None:
    """The same seed gives the same iteration; without a generator noise is refused."""
    one, plan = problem([1.0] * 2, 4), Plan("hand", "1f1b", straight(2), (1,) * 4)
    first, again, other = (
        simulate(one, plan, noise=0.1, rng=np.random.default_rng(seed)).iteration_seconds for seed in (3, 3, 4)
    )
    assert first == again != other
    with pytest.raises(ValueError, match="noise needs a random generator"):
        simulate(one, plan, noise=0.1)


def test_unknown_engine() -> None:
    """The choices are told."""
    with pytest.raises(ValueError, match="engine 'steam' is unknown; choices: simpy, compiled, recurrence"):
        simulate(problem([1.0], 1), Plan("hand", "gpipe", straight(1), (1,)), engine="steam")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^engine 'steam' is unknown; choices: simpy, compiled, recurrence$"):
        replay_schedule(build_schedule("gpipe", 1, 1), OpSeconds(1.0, 1.0), engine="steam")  # type: ignore[arg-type]


def test_a_plan_of_no_seconds_has_a_summary() -> None:
    """Nothing to compute, nothing to send: 0 s an iteration, infinitely many samples per second, no gap to the bound."""
    result = make_plan("uniform", problem([0.0, 0.0], 2))
    assert (result.outcome.iteration_seconds, result.outcome.samples_per_second, result.gap) == (0.0, math.inf, 0.0)
    assert "0 s" in result.summary()


def test_plans_share_a_structure_where_layers_and_devices_alone_differ() -> None:
    """Other cuts, devices or costs, the same structure; another schedule, size, replica or gradient: another."""
    asked = problem([1.0] * 6, 8)
    costs = LayerCosts(asked)
    plan = Plan("hand", "1f1b", (Stage((0, 1), (0,)), Stage((2, 3, 4, 5), (1,))), (2,) * 4)

    def structure(costs: LayerCosts, **changes: Any) -> Structure:
        return plan_structure(PlanCosts(asked, replace(plan, **changes), costs))[1]

    same = structure(costs)
    assert structure(costs, planner="other", stages=(Stage((0, 1, 2), (3,)), Stage((3, 4, 5), (2,)))) is same
    for changes in (
        {"schedule": "gpipe"},
        {"microbatches": (1,) * 8},
        {"microbatches": (3, 1, 2, 2)},
        {"stages": (Stage((0, 1), (0,)), Stage((2, 3, 4, 5), (1, 2)))},
    ):
        assert structure(costs, **changes) is not same
    assert structure(LayerCosts(problem([2.0] * 6, 8))) is same


def test_schedules_of_one_name_share_no_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that takes another's place makes its own."""
    asked = problem([1.0] * 4, 8)
    plan = Plan("hand", "1f1b", (Stage((0, 1), (0,)), Stage((2, 3), (1,))), (2,) * 4)
    assert simulate(asked, plan).schedule.name == "1f1b"
    monkeypatch.setitem(SCHEDULES, "1f1b", SCHEDULES["gpipe"])
    assert simulate(asked, plan).schedule.name == "gpipe"
