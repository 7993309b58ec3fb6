"""Tests of `planners.scheduler.search`: orders that run, keep to their limits, and are as good as is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from experiments.schedule_search.optima import read_optima
from experiments.schedule_search.problems import PUBLISHED, ProfiledRow, uneven
from planners.scheduler.bound import Objective, lower_bound
from planners.scheduler.instance import codes_of, instance_of, peaks_of
from planners.scheduler.order_replay import replay, trace_of
from planners.scheduler.patterns import pattern_names, pattern_of
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.search import search_schedule
from simulator import (
    OpSeconds,
    Placement,
    build_schedule,
    chains_of,
    from_text,
    from_torch_csv,
    replay_schedule,
    to_text,
    to_torch_csv,
)
from tests.planners.scheduler.schedule_cases import (
    held_at_most,
    replayed,
    schedule_problems,
)


@given(schedule_problems())
@settings(max_examples=40)
def test_orders_run_as_they_say(problem: ScheduleProblem) -> None:
    """Every order passes the checks, takes what it says on both engines to the bit, and holds what it says, within limits."""
    found = search_schedule(problem, seconds=0.0005)
    timeline = replayed(problem, found.schedule)
    assert timeline.makespan_seconds == found.makespan >= found.bound
    assert held_at_most(problem, timeline) == list(found.peaks)


@given(schedule_problems())
@settings(max_examples=40)
def test_longest_stage(problem: ScheduleProblem) -> None:
    """The longest time of a device from its first start to its last end is what that objective compares, at least its bound."""
    found = search_schedule(problem, seconds=0.0005, objective="longest-stage")
    timeline = replayed(problem, found.schedule)
    spans = [
        timeline.end[timeline.device == one].max() - timeline.start[timeline.device == one].min()
        for one in timeline.devices()
    ]
    assert found.cost == pytest.approx(max(spans), rel=1e-12)
    assert found.cost >= found.bound
    assert found.bound <= search_schedule(problem, seconds=0.0).makespan


@given(schedule_problems(most_devices=3, most_microbatches=5))
@settings(max_examples=25)
def test_text_of_torch(problem: ScheduleProblem) -> None:
    """An order goes out as torch's CSV (two chains, which torch cannot run, as text) and comes back the same, ops and codes."""
    found = search_schedule(problem, seconds=0.0)
    one_chain = len(problem.chains) == 1
    back = from_torch_csv(to_torch_csv(found.schedule)) if one_chain else from_text(to_text(found.schedule))
    assert list(back.lists()) == list(found.schedule.lists())
    instance = instance_of(problem)
    codes, again = codes_of(instance, found.schedule, problem), codes_of(instance, back, problem)
    assert codes is not None
    assert again is not None
    assert codes.tobytes() == again.tobytes()


def test_same_answer_every_time() -> None:
    """Work is counted, not timed: the same inputs and seed give the same order, another seed may not."""
    problem = ScheduleProblem(
        chains=chains_of("v", 8, 4),
        microbatches=6,
        forward=[5, 7, 3, 4, 6, 5, 8, 2],
        input_gradient=6,
        weight_gradient=4,
        limit=9,
    )
    one, same = (search_schedule(problem, seconds=0.02, seed=3) for _ in range(2))
    assert one.schedule.stage.tobytes() == same.schedule.stage.tobytes()
    assert one.schedule.kind.tobytes() == same.schedule.kind.tobytes()
    assert (one.makespan, one.evaluations) == (same.makespan, same.evaluations)


def test_never_worse_than_a_pattern() -> None:
    """An order given to begin from is the least that comes out; one that breaks a limit, or is of other stages, is left."""
    numbers = {"forward": 1.0, "input_gradient": 2.0, "microbatches": 6}
    problem = ScheduleProblem(chains=chains_of("straight", 3, 3), limit=[3, 2, 1], **numbers)
    pattern = build_schedule("1f1b", 3, 6)
    found = search_schedule(problem, seconds=0.0, patterns=[pattern, build_schedule("1f1b", 3, 7)])
    assert found.makespan == 24.0
    tight = ScheduleProblem(chains=chains_of("straight", 3, 3), limit=[2, 2, 1], **numbers)
    assert search_schedule(tight, seconds=0.0, patterns=[pattern]).makespan == 6 * 9.0


PLACED = {"straight": 4, "interleaved": 8, "v": 8, "wave": 16, "bidirectional": 4}
"""Stages on 4 devices."""


@pytest.mark.parametrize("limit", [4, 8])
@pytest.mark.parametrize("placement", PLACED)
def test_long_stream_is_not_worse_than_a_family(placement: Placement, limit: float) -> None:
    """However little work there is, every family that fits is tried in full."""
    stages = PLACED[placement]
    problem = ScheduleProblem(
        chains=chains_of(placement, stages, 4),
        microbatches=40,
        forward=[9 + stage % 3 for stage in range(stages)],
        input_gradient=10,
        weight_gradient=6,
        transfer=1,
        freed_at_weight_gradient=1,
        limit=2 * limit * stages / 4,
    )
    instance = instance_of(problem)
    families = [pattern_of(problem, name) for name in pattern_names(problem)]
    orders = [codes_of(instance, one, problem) for one in families if one is not None]
    seconds = [
        replay(instance, codes, instance.offsets, False, 0.0, trace_of(instance), False)
        for codes in orders
        if codes is not None
    ]
    assert min(seconds) < np.inf
    assert search_schedule(problem, seconds=0.0).makespan <= min(seconds)


@pytest.mark.parametrize("placement", PLACED)
def test_family_holds_no_less_in_a_longer_stream(placement: Placement) -> None:
    """On no device: one that does not fit a short stream need not be tried on a long one."""
    stages = PLACED[placement]
    held: dict[str, object] = {}
    for microbatches in (24, 28, 36, 72):
        problem = ScheduleProblem(
            chains=chains_of(placement, stages, 4),
            microbatches=microbatches,
            forward=1,
            input_gradient=1,
            weight_gradient=1,
            freed_at_input_gradient=[1 + stage % 3 for stage in range(stages)],
            freed_at_weight_gradient=2,
        )
        for name in pattern_names(problem):
            pattern = pattern_of(problem, name)
            assert pattern is not None
            instance = instance_of(problem)
            codes = codes_of(instance, pattern, problem)
            assert codes is not None
            peaks = np.array(peaks_of(instance, codes, problem))
            assert (peaks >= held.get(name, 0)).all()
            held[name] = peaks
    assert held


@pytest.mark.parametrize(("spread", "part", "gap"), [(0.3, 0.5, 0.12), (0.1, 1.5, 1e-4), (0.3, 1.25, 0.005)])
def test_long_streams(spread: float, part: float, gap: float) -> None:
    """A tenth of a second's work on 64 uneven stages and 1,024 micro-batches comes near the bound."""
    problem = replace(PUBLISHED[0], devices=64, microbatches=1024).problem(part * 64)
    assert search_schedule(uneven(problem, spread, 0), seconds=0.1).gap <= gap


def test_full_backwards_are_both_gradients() -> None:
    """A pattern with full backwards, in a problem that splits them, runs both gradients in their place."""
    problem = ScheduleProblem(
        chains=chains_of("straight", 2, 2), microbatches=2, forward=1.0, input_gradient=1.0, weight_gradient=1.0
    )
    pattern = build_schedule("1f1b", 2, 2)
    assert replay_schedule(pattern, OpSeconds(forward=1.0, backward=1.0, weight=1.0)).timeline.makespan_seconds == 9.0
    instance = instance_of(problem)
    codes = codes_of(instance, pattern, problem)
    assert codes is not None
    makespan = replay(instance, codes, instance.offsets, False, 0.0, trace_of(instance), False)
    assert makespan == 8.0  # 0B0 no longer waits for 1W0


def test_optima_of_the_reference(shared_data: Path) -> None:
    """Most best known makespans are met at once; none is beaten where it is proven; bounds are at least the reference's."""
    met = []
    path = shared_data / "schedule_optima.json"
    bounds = {case["name"]: case["lower_bound"] for case in json.loads(path.read_text(encoding="utf-8"))["cases"]}
    for case, problem in read_optima(str(path)):
        found = search_schedule(problem, seconds=0.05)
        assert replayed(problem, found.schedule).makespan_seconds == found.makespan
        assert bounds[case.name] <= found.bound, case.name
        assert not case.proven or found.bound <= case.best_makespan <= found.makespan, case.name
        assert found.makespan <= case.best_makespan * 1.03, case.name
        met.append(found.makespan <= case.best_makespan)
    assert sum(met) >= 0.75 * len(met)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_optimum_of_the_reference(shared_data: Path, seed: int) -> None:
    """Every best known makespan is met in a second's work, whatever the seed."""
    for case, problem in read_optima(str(shared_data / "schedule_optima.json")):
        assert search_schedule(problem, seed=seed).makespan <= case.best_makespan, case.name


def test_published_rows(shared_data: Path) -> None:
    """At limits of p and 2p micro-batches an order of published stages attains the bound."""
    for row in json.loads((shared_data / "zero_bubble_rows.json").read_text(encoding="utf-8"))[:4]:
        for times in (1, 2):
            problem = ScheduleProblem(
                chains=chains_of("straight", row["p"], row["p"]),
                microbatches=row["m"],
                forward=row["F"],
                input_gradient=row["B"],
                weight_gradient=row["W"],
                transfer=row["p2p"],
                freed_at_input_gradient=-row["mem_B"],
                freed_at_weight_gradient=-row["mem_W"],
                limit=times * row["p"] * row["mem_F"],
            )
            found = search_schedule(problem, seconds=0.05)
            assert found.proven
            assert found.makespan == found.bound == lower_bound(instance_of(problem))


@pytest.mark.parametrize(
    ("devices", "microbatches", "forward", "transfer", "limit", "seconds"),
    [
        (3, 6, [1, 1, 2], 1, 2, 36),  # pairs: 9 from forward to forward twice, then 18 for both to pass the last device
        (4, 6, 1, 0, 2, 26),
        (2, 6, [1, 2], 1, 2, 24),
    ],
)
def test_last_round(
    devices: int, microbatches: int, forward: float | list[float], transfer: float, limit: float, seconds: float
) -> None:
    """Micro-batches that memory lets in together pass every device one after the other, which the bound counts."""
    problem = ScheduleProblem(
        chains=chains_of("straight", devices, devices),
        microbatches=microbatches,
        forward=forward,
        input_gradient=1.0,
        transfer=transfer,
        limit=limit,
    )
    found = search_schedule(problem, seconds=0.01)
    assert found.makespan == found.bound == seconds


@pytest.mark.parametrize(
    ("forward", "weight_gradient", "transfer", "kept", "seconds"),
    [(2, 1, 2, 1, 45), (2, 3, 1, 2, 41), (1, 3, 2, 2, 31)],
)
def test_memory_fills_and_empties(
    forward: float, weight_gradient: float, transfer: float, kept: float, seconds: float
) -> None:
    """Memory for one micro-batch of either chain at a time is not kept while the first comes and the last one's W is run."""
    problem = ScheduleProblem(
        chains=chains_of("bidirectional", 2, 2),
        microbatches=5,
        forward=forward,
        input_gradient=forward,
        weight_gradient=weight_gradient,
        transfer=transfer,
        freed_at_input_gradient=kept,
        limit=kept,
    )
    found = search_schedule(problem, seconds=0.01)
    assert found.makespan == found.bound == seconds


def test_bad_arguments() -> None:
    """Negative seconds and seeds are refused."""
    problem = ScheduleProblem(chains=chains_of("straight", 2, 2), microbatches=2, forward=1.0, input_gradient=1.0)
    for wrong in ({"seconds": -1.0}, {"seconds": np.nan}, {"seed": -1}):
        with pytest.raises(ValueError, match=r"not negative|at least 0"):
            search_schedule(problem, **wrong)


KNOWN = (
    (
        "makespan",
        73.0,
        {"placement": ("bidirectional", 2, 2), "microbatches": 3, "limit": [4, 3]},
        {"forward": 7, "input_gradient": 5, "weight_gradient": 9},
    ),
    (
        "longest-stage",
        68.0,
        {"placement": ("bidirectional", 2, 2), "microbatches": 3, "limit": [4, 3]},
        {"forward": 7, "input_gradient": 5, "weight_gradient": 9},
    ),
    (
        "makespan",
        188.0,
        {"placement": ("v", 6, 3), "microbatches": 3, "limit": [7, 8, 8], "transfer": [1, 9, 8, 1, 9]},
        {"forward": [9, 9, 8, 10, 9, 8], "input_gradient": [4, 2, 3, 3, 2, 4]},
    ),
)
"""Least seconds by an exact solver, where what no exchange of single ops leads to is best."""


@pytest.mark.parametrize(("objective", "least", "layout", "seconds"), KNOWN)
def test_a_walk_that_stalls_begins_anew(
    objective: Objective, least: float, layout: dict[str, Any], seconds: dict[str, Any]
) -> None:
    """Whole micro-batches change places on all devices at once, whatever the seed."""
    placement, stages, devices = layout["placement"]
    problem = ScheduleProblem(
        chains=chains_of(placement, stages, devices),
        microbatches=layout["microbatches"],
        transfer=layout.get("transfer", 0),
        freed_at_weight_gradient=1,
        limit=layout["limit"],
        **seconds,
    )
    for seed in range(3):
        found = search_schedule(problem, seconds=0.3, objective=objective, seed=seed)
        assert found.cost == least
        replayed(problem, found.schedule)


def test_longest_stage_of_a_published_row() -> None:
    """On 32 devices with twice the memory of 1F1B: what stages must idle before their first input gradient, and no more.

    A stage that is n from the last waits 612 n us there beside its forwards, but for whole forwards. 9,180 is that of n = 15: the
    next one runs a forward more, for which all stages before it wait.
    """
    found = search_schedule(PUBLISHED[-1].problem(64), seconds=0.05, objective="longest-stage")
    assert found.cost == found.bound == 128 * (10408 + 10204 + 7703) + 15 * 612


def test_longest_stages_near_published_rows() -> None:
    """One and a half times and twice the memory of 1F1B: nearly all of 20 rows of near times attain the bound at once."""
    random = np.random.default_rng(5)
    proven = []
    for _ in range(20):
        devices = int(random.integers(4, 25))
        times = [int(one) for one in random.integers([9000, 9000, 6000], 11001)]
        row = ProfiledRow(devices, 3 * devices, *times, int(random.choice([0, 100, 400, 800])), 454656, 196608)
        limit = float(random.choice([1.5, 2.0])) * devices
        proven.append(search_schedule(row.problem(limit), seconds=0.02, objective="longest-stage").proven)
    assert sum(proven) >= 18


def test_first_input_gradient_of_several_stages() -> None:
    """Three stages, 4 s a pass, transfers of 1 s: the middle one waits 2 s, or runs a fourth forward and makes others wait."""
    problem = ScheduleProblem(
        chains=chains_of("straight", 3, 3),
        microbatches=12,
        forward=4,
        input_gradient=4,
        weight_gradient=3,
        transfer=1,
        freed_at_input_gradient=0.5,
        freed_at_weight_gradient=0.5,
        limit=6,
    )
    found = search_schedule(problem, seconds=0.05, objective="longest-stage")
    assert found.cost == found.bound == 12 * 11 + 2


def test_all_micro_batches_pass_every_device() -> None:
    """However much memory there is: 3 forwards and input gradients of 2 s on the last stage, there and back, then 1 s."""
    problem = ScheduleProblem(
        chains=chains_of("straight", 4, 4), microbatches=3, forward=2, input_gradient=2, weight_gradient=1
    )
    found = search_schedule(problem, seconds=0.05, objective="longest-stage")
    assert found.cost == found.bound == 3 * 2 + 3 * 4 + 3 * 2 + 1


def test_turns_of_a_device_that_is_passed_twice() -> None:
    """Two devices down and up again, every op 1 s, transfers 2 s: with room for one micro-batch at both of its stages, no more.

    9 s after a micro-batch has begun, its input gradient at the later stage is over, and no other begins before. The second
    device runs its other input gradient, too, before the next comes to the later stage: 10 s each, and 16 s for the fourth.
    """
    problem = ScheduleProblem(
        chains=chains_of("v", 4, 2), microbatches=4, forward=1, input_gradient=1, transfer=2, limit=2
    )
    found = search_schedule(problem, seconds=0.01)
    assert found.makespan == found.bound == 3 * 10 + 16
    assert found.makespan >= found.bound


@pytest.mark.parametrize(
    (
        "placement",
        "microbatches",
        "forward",
        "input_gradient",
        "weight_gradient",
        "transfer",
        "freed",
        "limit",
        "seconds",
    ),
    [
        ("straight", 5, (1, 1), (1, 1), (3, 3), 0, (1, 2), (4, 3), 35),
        ("straight", 5, (4, 4, 7), (3, 5, 5), (5, 6, 8), (1, 2), (1, 2), (4, 10, 12), 195),
        ("v", 5, (6,) * 4, (7,) * 4, (10,) * 4, 9, (1, 2), (6, 7), 406),
        ("interleaved", 5, (8,) * 4, (10,) * 4, (10,) * 4, 0, (2, 2), (9, 9), 378),
        ("bidirectional", 4, (4, 1, 8), (3, 4, 1), (4, 2, 5), (5, 7), (1, 1), (10, 3, 5), 133),
    ],
)
def test_what_does_not_fit_beside_another_waits_for_weight_gradients(
    placement: Placement,
    microbatches: int,
    forward: tuple[int, ...],
    input_gradient: tuple[int, ...],
    weight_gradient: tuple[int, ...],
    transfer: int | tuple[int, ...],
    freed: tuple[int, int],
    limit: tuple[int, ...],
    seconds: float,
) -> None:
    """The bound meets the optimum (of CP-SAT) where memory is no multiple of what a micro-batch keeps.

    In the first a device keeps 3 of 4 units, 2 of them up to the weight gradient: a micro-batch takes 4 s and these 3 s there.
    """
    at_input, at_weight = freed
    problem = ScheduleProblem(
        chains=chains_of(placement, len(forward), len(limit)),
        microbatches=microbatches,
        forward=forward,
        input_gradient=input_gradient,
        weight_gradient=weight_gradient,
        transfer=transfer,
        freed_at_input_gradient=at_input,
        freed_at_weight_gradient=at_weight,
        limit=limit,
    )
    found = search_schedule(problem, seconds=0.05)
    assert found.makespan == found.bound == seconds
