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
from planners.scheduler import search as search_module
from planners.scheduler.bound import Objective, longest_below, lower_bound
from planners.scheduler.instance import codes_of, instance_of, peaks_of
from planners.scheduler.order_replay import replay, trace_of
from planners.scheduler.patterns import one_at_a_time, pattern_names, pattern_of
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.search import search_schedule
from planners.scheduler.steady import anneal_rounds, plain_rounds
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
from simulator.schedules import building_blocks
from tests.planners.conftest import sums
from tests.planners.scheduler.schedule_cases import (
    PLACEMENTS,
    held_at_most,
    replayed,
    schedule_problems,
)
from tests.planners.scheduler.test_bounds import drawn
from tests.records import Recorded


def placed(placement: Placement, stages: int, devices: int, microbatches: int, **numbers: Any) -> ScheduleProblem:
    """A problem by the name of its placement."""
    return ScheduleProblem(chains=chains_of(placement, stages, devices), microbatches=microbatches, **numbers)


def opposite(passes: float, weight_gradient: float, transfer: float, kept: float) -> ScheduleProblem:
    """Five micro-batches on two devices in both directions, with memory for one of either."""
    numbers = {"forward": passes, "input_gradient": passes, "weight_gradient": weight_gradient, "transfer": transfer}
    return placed("bidirectional", 2, 2, 5, **numbers, freed_at_input_gradient=kept, limit=kept)


def unfitting(*layout: Any) -> ScheduleProblem:
    """Of placement, stages, devices, micro-batches, seconds of F, I and W, transfers, what I and W free, and limits."""
    *where, seconds, transfer, freed, limit = layout
    numbers = dict(zip(("forward", "input_gradient", "weight_gradient"), seconds, strict=True))
    kept = dict(zip(("freed_at_input_gradient", "freed_at_weight_gradient"), freed, strict=True))
    return placed(*where, **numbers, **kept, transfer=transfer, limit=limit)


@given(schedule_problems())
@settings(max_examples=25)
def test_orders_run_as_they_say(problem: ScheduleProblem) -> None:
    """Every order passes the checks, takes what it says on both engines to the bit, and holds what it says, within limits."""
    found = search_schedule(problem, seconds=0.0005)
    timeline = replayed(problem, found.schedule)
    assert timeline.makespan_seconds == found.makespan >= found.bound
    assert held_at_most(problem, timeline) == list(found.peaks)


@given(schedule_problems())
@settings(max_examples=12)
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


def test_orders_are_as_good_as_before(recorded: Recorded) -> None:
    """Makespans over their bounds after so much work, which falls as more is permitted: of uneven stages, and of Vs."""
    uneven_row = uneven(replace(PUBLISHED[0], microbatches=12).problem(9), 0.3, 1)
    numbers = {"forward": 14, "input_gradient": 13, "weight_gradient": 9, "transfer": 3}
    halves = {"freed_at_input_gradient": 0.5, "freed_at_weight_gradient": 0.5}
    found = {}
    for name, problem in {
        "uneven": uneven_row,
        "slow transfers": replace(uneven_row, transfer=9000),
        "V": placed("v", 8, 4, 8, **numbers, **halves, limit=6),
        "two directions": placed("bidirectional", 4, 4, 8, **numbers, **halves, limit=5),
    }.items():
        answers = [search_schedule(problem, seconds=seconds) for seconds in (0.002, 0.02)]
        found[name] = [one.makespan / one.bound for one in answers]
    assert all(more <= less for less, more in found.values())
    recorded(**found)


@pytest.mark.slow
def test_searches_look_as_far_as_before(recorded: Recorded) -> None:
    """Seconds over their bounds, and how many orders were tried, by objective and work: of short streams and of long ones."""
    row = uneven(PUBLISHED[0].problem(9), 0.3, 1)
    numbers = {"forward": 14, "input_gradient": 13, "weight_gradient": 9, "transfer": 3}
    halves = {"freed_at_input_gradient": 0.5, "freed_at_weight_gradient": 0.5}
    found: dict[str, list[float]] = {}
    for name, problem, work in (
        ("short", replace(row, microbatches=10), 0.003),
        ("long", replace(row, microbatches=40), 0.03),
        ("short V", placed("v", 8, 4, 8, **numbers, **halves, limit=5), 0.003),
        ("long V", placed("v", 8, 4, 40, **numbers, **halves, limit=5), 0.03),
        ("two directions", placed("bidirectional", 4, 4, 8, **numbers, **halves, limit=5), 0.003),
    ):
        objectives: tuple[Objective, ...] = ("makespan", "longest-stage", "steady")
        for objective in objectives:
            one = search_schedule(problem, seconds=work, objective=objective)
            found[f"{name}, {objective}"] = [one.cost / one.bound, one.makespan / one.bound, one.evaluations]
    numbers = {"forward": (3, 5, 4), "input_gradient": (4, 3, 5), "weight_gradient": (2, 1, 3)}
    streams = placed("straight", 3, 3, 12, **numbers, **halves, transfer=(2, 3), limit=2)
    one = search_schedule(streams, seconds=0.5, objective="steady")  # enough for rounds of eight micro-batches
    found["rounds of several"] = [one.cost / one.bound, one.makespan / one.bound, one.evaluations]
    recorded(**found)


def seen(search: search_module._Search) -> list[object]:
    """What a search leaves: work, orders made, random state, and by origin the costs and sums of its orders."""
    kept = {name: [[cost, *sums(codes)[1:]] for cost, codes in orders] for name, orders in search.origins.items()}
    return [search.work, search.evaluations, int(search.random[0] % 2**32), kept]


WORKED = {
    "straight": ("straight", 6, 9, 0.02),
    "straight with transfers": ("straight", 3, 9, 0.05),
    "long": ("straight", 3, 60, 0.02),
    "longer": ("straight", 5, 150, 0.1),
    "interleaved": ("interleaved", 5, 6, 0.02),
    "long interleaved": ("interleaved", 2, 48, 0.05),
    "v": ("v", 9, 12, 0.03),
    "long v": ("v", 11, 60, 0.1),
    "wave": ("wave", 2, 8, 0.02),
    "bidirectional": ("bidirectional", 10, 10, 0.02),
    "long bidirectional": ("bidirectional", 7, 60, 0.02),
}
"""Placement and number of a drawn problem, its micro-batches, nominal seconds of search."""


@pytest.mark.parametrize("name", WORKED)
def test_searches_leave_the_work_that_they_left(name: str, recorded: Recorded) -> None:
    """Work that is left, the next random number, and all orders that are kept, of both searches that no bound ends."""
    placement, number, microbatches, seconds = WORKED[name]
    problem = replace(drawn(placement, number), microbatches=microbatches)
    whole, steady = (search_module._begun(problem, seconds, of) for of in ("makespan", "steady"))
    whole.bound = steady.bound = 0.0
    search_module._run(whole, problem, ())
    search_module._search_rounds(steady, problem)
    recorded(whole=seen(whole), steady=seen(steady))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_walks_go_where_they_went(placement: str, recorded: Recorded) -> None:
    """Of an order with every arm: what the island learns, its order, work, the next random number; fresh orders near it."""
    found: dict[str, object] = {}
    for number, longest in ((0, False), (1, True)):
        problem = drawn(placement, number)
        search = search_module._begun(problem, 1.0, "longest-stage" if longest else "makespan")
        search.bound = 0.0
        annealer = search_module._Annealer(search)
        codes = one_at_a_time(search.instance)
        for arm, how in enumerate(search_module.ARMS):
            island = search_module._Island(search.replayed(codes), codes)
            annealer.walk(island, arm, how, 150)
            annealer.walk(island, arm, how, 150)
            found[f"{number}, {arm}"] = [island.cost, island.gains[arm], *sums(island.codes)[1:], *seen(search)[:3]]
        random = np.random.default_rng(number)
        near = [search_module._fresh(search, random, source) for source in (None, island.codes)]
        found[f"{number}, fresh"] = [one and [one[0], *sums(one[1])[1:]] for one in near]
        rounds = plain_rounds(search.instance)
        found[f"{number}, rounds"] = [
            [*anneal_rounds(search.instance, rounds, 200, hot, 0.0, search.random), *map(sums, rounds)]
            for hot in (1, 5)
        ]
    recorded(**found)


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


@pytest.mark.parametrize("placement", PLACED)
def test_long_stream_is_not_worse_than_a_family(placement: Placement) -> None:
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
        limit=2 * stages,
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


def test_orders_of_other_counts_are_no_patterns() -> None:
    """Of fewer stages or micro-batches: nothing is begun from them. A family that is not built for as many devices is none."""
    seconds = {"forward": 1, "input_gradient": 1, "weight_gradient": 1}
    problem = placed("straight", 4, 4, 8, **seconds)
    alone = search_schedule(problem, seconds=0.0)
    others = [build_schedule("1f1b", *counts) for counts in ((2, 8), (4, 7))]
    found = search_schedule(problem, seconds=0.0, patterns=others)
    assert (found.evaluations, found.makespan) == (alone.evaluations, alone.makespan)
    assert repr(alone).endswith("makespan 27 s, proven)")
    assert repr(replace(alone, cost=1.5 * alone.bound)).endswith("makespan 27 s, gap 50.00 %)")
    back_and_forth, round_again = placed("v", 4, 2, 4, **seconds), build_schedule("interleaved-1f1b", 4, 4, chunks=2)
    assert codes_of(instance_of(back_and_forth), round_again, back_and_forth) is None
    again = placed("interleaved", 4, 2, 4, **seconds)
    assert codes_of(instance_of(again), round_again, again) is not None
    devices = building_blocks.MOST_DEVICES + 1
    assert pattern_of(placed("v", 2 * devices, devices, 2, **seconds), "v-min") is None


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


ATTAINED: dict[str, tuple[float, ScheduleProblem]] = {
    # what memory lets in together passes every device one after the other: 9 s from forward to forward twice, then 18 s
    "pairs of micro-batches": (
        36,
        placed("straight", 3, 3, 6, forward=[1, 1, 2], input_gradient=1, transfer=1, limit=2),
    ),
    "pairs on four devices": (26, placed("straight", 4, 4, 6, forward=1, input_gradient=1, limit=2)),
    "pairs with a slow stage": (24, placed("straight", 2, 2, 6, forward=[1, 2], input_gradient=1, transfer=1, limit=2)),
    # memory for one micro-batch of either chain is not kept while the first comes and the last one's W is run
    "two chains": (45, opposite(2, 1, 2, 1)),
    "two chains with long weight gradients": (41, opposite(2, 3, 1, 2)),
    "two chains with short forwards": (31, opposite(1, 3, 2, 2)),
    # 9 s behind a forward, its input gradient at the later stage is over; the device runs its other one before the next comes
    "a device that is passed twice": (
        3 * 10 + 16,
        placed("v", 4, 2, 4, forward=1, input_gradient=1, transfer=2, limit=2),
    ),
    # a device keeps 3 of 4 units, 2 of them up to the weight gradient: a micro-batch takes 4 s and these 3 s there
    "memory that is no multiple": (35, unfitting("straight", 2, 2, 5, (1, 1, 3), 0, (1, 2), [4, 3])),
    # at its second stage a micro-batch keeps two of three units: one round of 4 s there after the other, 2 s before, 2 s after
    "a device that keeps one micro-batch at its second stage": (
        2 + 5 * 4 + 2,
        placed("interleaved", 4, 2, 5, forward=1, input_gradient=1, limit=3),
    ),
    # one micro-batch at a time has not turned: 24 s of forwards, 9 of transfers and 1 s from turn to turn, then 12 s back
    "two chains that take turns": (
        6 * (4 * 6 + 3 * 3 + 1) + 3 * (3 + 1),
        placed("bidirectional", 4, 4, 6, forward=6, input_gradient=1, transfer=3, limit=1),
    ),
    # rounds of 4 s at the third stage, 2 s before and after; for the third micro-batch the first device has room 1 s too late, as
    # the 2 s of its last stage come before what frees memory
    "a device that has room too late": (
        2 + 3 * 4 + 1 + 2,
        placed("v", 4, 2, 3, forward=1, input_gradient=1, limit=3),
    ),
    # 9 s of work on each device, and none of them can run all of it without a gap
    "two chains that leave a gap": (
        10,
        placed("bidirectional", 2, 2, 3, forward=1, input_gradient=2, limit=2),
    ),
    # memory is in use for 22.5 s at least, and seconds are whole
    "two chains that share memory": (
        24,
        placed("bidirectional", 3, 3, 6, forward=1, input_gradient=1, transfer=1, limit=2),
    ),
    # the optimum of CP-SAT
    "memory that is no multiple, three stages": (
        195,
        unfitting("straight", 3, 3, 5, ([4, 4, 7], [3, 5, 5], [5, 6, 8]), [1, 2], (1, 2), [4, 10, 12]),
    ),
    "memory that is no multiple, v": (406, unfitting("v", 4, 2, 5, (6, 7, 10), 9, (1, 2), [6, 7])),
    "memory that is no multiple, looped": (378, unfitting("interleaved", 4, 2, 5, (8, 10, 10), 0, (2, 2), [9, 9])),
    "memory that is no multiple, two chains": (
        133,
        unfitting("bidirectional", 3, 3, 4, ([4, 1, 8], [3, 4, 1], [4, 2, 5]), [5, 7], (1, 1), [10, 3, 5]),
    ),
}
"""Least makespans that bounds meet."""


@pytest.mark.parametrize("name", ATTAINED)
def test_an_order_attains_the_bound(name: str) -> None:
    """Of makespans: what was found takes no longer than what was proven, which one can work out or an exact solver finds."""
    seconds, problem = ATTAINED[name]
    found = search_schedule(problem, seconds=0.03)
    assert found.makespan == found.bound == seconds


def test_seconds_that_are_no_whole_numbers_are_proven_too() -> None:
    """A bound comes near the end of an order, which then is told to have none before it."""
    _, problem = ATTAINED["a device that has room too late"]
    problem = replace(problem, forward=1.1, input_gradient=1.1)
    found = search_schedule(problem, seconds=0.03)
    assert lower_bound(instance_of(problem)) < found.makespan * (1 - 1e-6)
    assert found.makespan == pytest.approx(17 * 1.1)
    assert found.proven


TWO_WAYS: dict[str, Any] = {"forward": 1, "freed_at_input_gradient": 1, "freed_at_weight_gradient": 1, "limit": 3}
LONGEST: dict[str, tuple[float, ScheduleProblem]] = {
    # 4 s a pass, transfers of 1 s: the middle stage waits 2 s, or runs a fourth forward and makes others wait
    "the first input gradient": (
        12 * 11 + 2,
        placed(
            *("straight", 3, 3, 12),
            forward=4,
            input_gradient=4,
            weight_gradient=3,
            transfer=1,
            limit=6,
            freed_at_input_gradient=0.5,
            freed_at_weight_gradient=0.5,
        ),
    ),
    # however much memory there is: 3 forwards and input gradients of 2 s on the last stage, there and back, then 1 s
    "all micro-batches": (
        3 * 2 + 3 * 4 + 3 * 2 + 1,
        placed("straight", 4, 4, 3, forward=2, input_gradient=2, weight_gradient=1),
    ),
    # four forwards and two input gradients one after the other, then all that is left of the first device's two stages
    "a device with two stages": (
        4 * 3 + 2 * 1 + 3 + 1 + 3,
        placed("interleaved", 4, 2, 1, forward=3, input_gradient=1, weight_gradient=3),
    ),
    # 9,180 us are those of the stage that is 15 from the last, which waits 612 us for each beside its forwards
    "a published row, twice the memory of 1F1B": (
        128 * (10408 + 10204 + 7703) + 15 * 612,
        PUBLISHED[-2].problem(64),
    ),
    # the optima of CP-SAT: what each of a device's two stages waits for takes longer than the work of any device
    "three units, where a micro-batch takes two": (
        25,
        placed("v", 6, 3, 3, forward=1, input_gradient=1, limit=3),
    ),
    "a wave, three units": (17, placed("wave", 4, 2, 3, forward=1, input_gradient=1, limit=3)),
    "laps, three units": (18, placed("interleaved", 4, 2, 2, forward=1, input_gradient=2, limit=3)),
    # any one device may be done in less, wherever the other one begins: in two directions no device is the first
    "two directions": (8, placed("bidirectional", 2, 2, 2, **TWO_WAYS, input_gradient=1, weight_gradient=1)),
    "two directions, longer backwards": (
        13,
        placed("bidirectional", 2, 2, 2, **TWO_WAYS, input_gradient=2, weight_gradient=2),
    ),
}
"""Least longest stages that bounds meet."""


@pytest.mark.parametrize("name", LONGEST)
def test_an_order_attains_the_bound_of_its_longest_stage(name: str) -> None:
    """What stages must idle before their first input gradient, and no more."""
    seconds, problem = LONGEST[name]
    found = search_schedule(problem, seconds=0.05, objective="longest-stage")
    assert found.cost == found.bound == seconds


def test_longest_stages_that_are_no_whole_numbers_are_proven_too() -> None:
    """The same at 1.1 times the seconds; of an order that is longer the bound is no larger than what is proven of the shorter."""
    seconds, problem = LONGEST["laps, three units"]
    found = search_schedule(replace(problem, forward=1.1, input_gradient=2.2), seconds=0.05, objective="longest-stage")
    assert found.cost == pytest.approx(1.1 * seconds)
    assert found.proven
    instance = instance_of(problem)
    known = lower_bound(instance, "longest-stage")
    assert [longest_below(instance, known, known + more) for more in (0.0, 3.0, 30.0)] == [15.0, 18.0, 18.0]


def test_when_a_device_begins_is_known_to_the_second() -> None:
    """Of 68 s, the least that there is, 67 are shown, of seconds that are no whole numbers nearly as much."""
    instance = instance_of(CROSSED)
    assert longest_below(instance, lower_bound(instance, "longest-stage"), 68.0) == 67.0
    scaled = [1.1 * CROSSED.each(name)[0] for name in ("forward", "input_gradient", "weight_gradient")]
    other = instance_of(
        replace(CROSSED, **dict(zip(("forward", "input_gradient", "weight_gradient"), scaled, strict=True)))
    )
    assert 1.1 * 66.0 < longest_below(other, lower_bound(other, "longest-stage"), 1.1 * 68.0) < 1.1 * 68.0


def test_bad_arguments() -> None:
    """Negative seconds and seeds are refused."""
    problem = ScheduleProblem(chains=chains_of("straight", 2, 2), microbatches=2, forward=1.0, input_gradient=1.0)
    for wrong in ({"seconds": -1.0}, {"seconds": np.nan}, {"seed": -1}):
        with pytest.raises(ValueError, match=r"not negative|at least 0"):
            search_schedule(problem, **wrong)


CROSSED = placed(
    *("bidirectional", 2, 2, 3),
    forward=7,
    input_gradient=5,
    weight_gradient=9,
    freed_at_weight_gradient=1,
    limit=[4, 3],
)
WINDING = placed(
    *("v", 6, 3, 3),
    forward=[9, 9, 8, 10, 9, 8],
    input_gradient=[4, 2, 3, 3, 2, 4],
    transfer=[1, 9, 8, 1, 9],
    freed_at_weight_gradient=1,
    limit=[7, 8, 8],
)


@pytest.mark.parametrize(
    ("problem", "objective", "least"),
    [(CROSSED, "makespan", 73.0), (CROSSED, "longest-stage", 68.0), (WINDING, "makespan", 188.0)],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_walk_that_stalls_begins_anew(
    problem: ScheduleProblem, objective: Objective, least: float, seed: int
) -> None:
    """Whole micro-batches change places on all devices at once: an exact solver's optimum, which no exchange of ops finds."""
    found = search_schedule(problem, seconds=0.3, objective=objective, seed=seed)
    assert found.cost == least
    replayed(problem, found.schedule)


AUTHORS = (
    (1310405, 1152599),
    (1678164, 1475535),
    (3154286, 2949221),
    (2187537, 1903596),
    (2814376, 2525780),
    (5348572, 5057708),
    (1714461, 1484721),
    (2202008, 1972943),
    (4175516, 3946061),
    (3171569, 2731004),
    (4075091, 3634724),
    (7715640, 7270432),
)
"""Longest stages of zero-bubble's heuristic on the published rows at the memory of 1F1B and twice of it, in us: the least of its
eight variants, from its authors' code (sail-sg/zero-bubble-pipeline-parallelism, ed85b11c, `Graph.manual_order`)."""


@pytest.mark.parametrize(("row", "authors"), [*zip(PUBLISHED, AUTHORS, strict=True)])
def test_published_rows_are_proven_and_no_slower_than_their_authors_orders(
    row: ProfiledRow, authors: tuple[int, int]
) -> None:
    """Memory of 1F1B, at which the authors' orders are as short, and twice of it, at which they are up to 0.4 % longer."""
    for times, theirs in zip((1, 2), authors, strict=True):
        found = search_schedule(row.problem(times * row.devices), seconds=0.05, objective="longest-stage")
        assert found.proven
        assert found.cost <= theirs


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
