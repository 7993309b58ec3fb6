"""Replayed sizes: where links share channels, the fastest sizes of the replay, not of the recurrence."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hardware_profiles import Cluster, Link
from planners import Request, Result, make_plan
from planners.search.evaluator import Evaluator
from planners.testing import line
from planners.unequal import UnequalTables, tables_of, unequal_plan, unequal_problem
from planners.unequal import replayed_sizes as module
from planners.unequal.replayed_sizes import SizeBounds
from planners.unequal.tables import WITHOUT_LINKS, loosest_problem
from simulator import OpKind, Problem, evaluation, simulate
from tests.chains import random_chain

CLOSE = 1.0 - 1e-9
"""Relative; the grid of durations and the order of sums."""


def shared(seed: int, devices: int, batch: int) -> Problem:
    """A chain on devices that share a bus, cables for both directions, or the one cable between two servers, stages in turns."""
    rng = np.random.default_rng(seed)
    layers = devices + int(rng.integers(0, 3))
    workload = random_chain(layers, rng, flop=2e9, parameters=int(rng.choice([0, 1_000_000])))
    gpus = line(speeds=tuple(rng.choice([0.5, 1.0, 2.0], devices)))
    slow, latency = float(10 ** rng.uniform(7, 9)), float(rng.choice([0.0, 1e-5, 1e-3]))
    switches: tuple[str, ...] = ("switch",)
    if seed % 3 == 0:
        links = tuple(Link(node, "switch", slow, latency, duplex="half", shared="bus") for node in gpus.nodes)
    elif seed % 3 == 1:
        links = tuple(
            Link(node, "switch", slow * float(rng.choice([0.5, 1, 2])), latency, duplex="half") for node in gpus.nodes
        )
    else:
        switches = ("a", "b")
        links = tuple(Link(node, switches[place % 2], 1e10, latency) for place, node in enumerate(gpus.nodes))
        duplex = rng.choice(["half", "full"])
        links += (Link("a", "b", slow, latency, duplex=str(duplex)),)  # type: ignore[arg-type]
    held = tuple(
        replace(one, call_overhead=float(10 ** rng.uniform(-4, -2)), pass_overhead=float(10 ** rng.uniform(-4, -2)))  # type: ignore[type-var]
        for one in gpus.devices
    )
    cluster = Cluster("shared", held, gpus.nodes, switches, gpus.servers, links)
    return Problem(workload, cluster, batch, recompute=bool(rng.integers(2)))


@functools.cache
def on_a_bus(seed: int) -> Result:
    """What is found for three recomputing stages of four samples."""
    return make_plan("exact-unequal", replace(shared(seed, 3, 4), recompute=True), Request(stages=3))


@functools.cache
def by_the_recurrence(seed: int) -> Result:
    """What a search finds that replays nothing with contention."""
    return make_plan("exact-unequal", on_a_bus(seed).problem, Request(stages=3, engine="recurrence"))


def vectors(problem: Problem, stages: int) -> list[tuple[int, ...]]:
    """Every vector of sizes."""
    return list(itertools.product(range(1, problem.batch + 1), repeat=stages))


def partition(found: Result) -> tuple[UnequalTables, tuple[int, ...]]:
    """Tables and cuts of a plan's partition."""
    stages = found.plan.stages
    tables = tables_of(found.problem, [stage.devices[0] for stage in stages])
    return tables, tuple(stage.layers[0] for stage in stages[1:])


def replays(found: Result, pairs: Iterator[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[float]:
    """Seconds of sizes of a plan's partition that fit."""
    (tables, cuts), evaluate = partition(found), Evaluator(found.problem)
    scores = (evaluate(unequal_plan("all", tables, cuts, *pair)) for pair in pairs)
    return [score.iteration_seconds for score in scores if score.fits]


@pytest.mark.parametrize("seed", [24, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (6, 45, 48))])
def test_no_sizes_of_one_pass_are_faster(seed: int) -> None:
    """Stages that recompute always: the passes of a flush add up, so the best of each makes the best of both."""
    found = on_a_bus(seed)
    problem = found.problem
    forward, backward = (tuple(found.details[f"stage_{way}_samples"]) for way in ("forward", "backward"))  # type: ignore[arg-type]
    every = vectors(problem, 3)
    best = min(replays(found, itertools.chain(((one, backward) for one in every), ((forward, one) for one in every))))
    assert found.outcome.iteration_seconds * CLOSE <= best
    assert found.details["proven_optimal"]
    assert float(found.details["sizes_lower_bound_seconds"]) * CLOSE <= best  # type: ignore[arg-type]


def test_changes_are_followed_while_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a size of 1, a step at a time, to 5, which is faster than both beside it; what cannot be faster is not looked at."""
    known: dict[Any, float] = {}

    class Replays:
        bounds = SimpleNamespace(unequal=None)

        def __init__(self) -> None:
            self.known = known

        def __call__(self, pair: Any) -> float:
            return known.setdefault(pair, 1.0 + abs(pair[0][0] - 5))

    monkeypatch.setattr(module, "_changed", lambda unequal, pair: [((pair[0][0] + step,),) for step in (-1, 1)])
    monkeypatch.setattr(
        module, "_bounds", lambda bounds, near: np.array([9.0 if one[0][0] < 1 else 0.0 for one in near])
    )
    module._descend(Replays(), ((1,),))  # type: ignore[arg-type]
    assert sorted(size for ((size,),) in known) == [1, 2, 3, 4, 5, 6]


def test_the_work_is_so_many_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ops for three plans the third is replayed, the fourth is not; what is known costs nothing."""
    monkeypatch.setattr(module, "OPS", 3 * module.LEAST_OPS)
    bounds = SimpleNamespace(unequal=SimpleNamespace(samples=8))
    score = SimpleNamespace(fits=True, iteration_seconds=1.0)
    replays = module._SizeReplays("hand", bounds, lambda plan: score)  # type: ignore[arg-type]
    monkeypatch.setattr(module._SizeReplays, "plan", lambda self, pair: pair)
    assert [replays(((size,), (size,))) for size in (1, 2, 2, 4)] == [1.0] * 4
    with pytest.raises(module._WorkDone):
        replays(((8,), (8,)))


def test_changes_are_those_of_one_stage_or_of_a_whole_pass() -> None:
    """One stage has a size near its own, or that of a stage beside it; or both sizes of a stage become one that is near either; a
    pass goes a size up or down as a whole, or becomes the other."""
    sizes, stages, beside = (1, 2, 3, 4, 6, 8), 3, {1: {1, 2}, 2: {1, 2, 3, 4}, 4: {2, 3, 4, 6, 8}, 8: {4, 6, 8}}
    forward, backward = (2, 8, 4), (4, 1, 1)
    up_and_down = {2: (1, 3), 8: (6, 8), 4: (3, 6), 1: (1, 2)}

    def moved(vector: tuple[int, ...]) -> set[tuple[int, ...]]:
        """A pass with another size of one stage, or one up or down as a whole."""
        found = {tuple(up_and_down[size][step] for size in vector) for step in (0, 1)}
        for stage, size in enumerate(vector):
            near = beside[size] | {*vector[max(0, stage - 1) : stage + 2]}
            found |= {(*vector[:stage], other, *vector[stage + 1 :]) for other in near - {size}}
        return found

    expected = {(one, backward) for one in moved(forward)} | {(forward, one) for one in moved(backward)}
    expected |= {(forward, forward), (backward, backward)}
    for stage in range(stages):
        for size in beside[forward[stage]] | beside[backward[stage]]:
            both = [(*vector[:stage], size, *vector[stage + 1 :]) for vector in (forward, backward)]
            expected.add((both[0], both[1]))
    unequal = SimpleNamespace(candidates=sizes, stages=stages)
    assert set(module._changed(unequal, (forward, backward))) == expected  # type: ignore[arg-type]


def test_the_proof_says_what_was_replayed() -> None:
    """A partition whose links share a bus: the recurrence leaves sizes open, replays of these decide."""
    found = on_a_bus(24)
    assert found.outcome.iteration_seconds > float(found.details["makespan_seconds"]) * 1.001  # type: ignore[arg-type]
    assert found.proof.space == (
        "unequal micro-batch sizes of this partition on these devices: gpipe, a size for each stage and pass out of all from 1 "
        "to 4 samples (the last micro-batch takes what is left), replayed with contention; all of them that bounds leave open "
        "were replayed by the compiled event loop or recurrence"
    )


@pytest.mark.parametrize(
    ("where", "limit"), [(module, "OPS"), (module, "VECTORS"), (module, "PAIRS"), (evaluation, "MOST_TASKS")]
)
def test_what_is_too_much_to_replay_leaves_no_proof(
    monkeypatch: pytest.MonkeyPatch, where: ModuleType, limit: str
) -> None:
    """No replay, no list of sizes, no pair of them, or passes that cannot be told apart: a plan from the recurrence's to the
    best one, and no interrupt. Without a replay it is the recurrence's."""
    best = on_a_bus(24)
    asked = Request(stages=3)
    plain = by_the_recurrence(24)
    monkeypatch.setattr(where, limit, 0)
    found = make_plan("exact-unequal", best.problem, asked)
    assert best.details["proven_optimal"]
    assert not found.details["proven_optimal"]
    assert not found.interrupted
    assert best.iteration_seconds <= found.iteration_seconds <= plain.iteration_seconds
    assert limit != "OPS" or found.plan == plain.plan != best.plan


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_no_sizes_are_faster_on_shared_links(seed: int) -> None:
    """Every pair of vectors, replayed; stored and recomputed activations."""
    stages, batch = (3, 3) if seed % 2 else (2, 6)
    problem = shared(seed, stages, batch)
    found = make_plan("exact-unequal", problem, Request(stages=stages))
    every = vectors(problem, stages)
    best = min(replays(found, itertools.product(every, every)))
    assert found.outcome.iteration_seconds * CLOSE <= best
    assert found.details["proven_optimal"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_more_stages_are_searched_to_their_best_too(seed: int) -> None:
    """Four stages and six samples, beyond what is enumerated: no sizes of one pass alone are faster, of 200 drawn for each."""
    problem = replace(shared(seed, 4, 6), recompute=bool(seed % 2))
    found = make_plan("exact-unequal", problem, Request(stages=4))
    forward, backward = (tuple(found.details[f"stage_{way}_samples"]) for way in ("forward", "backward"))  # type: ignore[arg-type]
    rng = np.random.default_rng(seed)
    drawn = [tuple(one) for one in rng.integers(1, problem.batch + 1, (200, 4)).tolist()]
    pairs = itertools.chain(((one, backward) for one in drawn), ((forward, one) for one in drawn))
    assert found.outcome.iteration_seconds * CLOSE <= min(replays(found, pairs))


@pytest.mark.parametrize(
    ("seed", "communication"),
    [(0, "overlapped"), *((1, one) for one in ("overlapped", "send-blocking", *WITHOUT_LINKS))],
)
def test_no_replay_is_below_its_bound(seed: int, communication: str) -> None:
    """Sizes at random: what channels carry, and what comes before and behind it, takes no longer than the replay."""
    problem = replace(shared(seed, 4, 5), communication=communication, contention=bool(seed))
    tables = tables_of(problem, range(4))
    bounds = SizeBounds(tables, loosest_problem(tables, unequal_problem(tables, (1, 2, 3), range(1, 6))), (1, 2, 3))
    rng = np.random.default_rng(seed)
    forward, backward = rng.integers(1, 6, (2, 6, 4))
    again = ((forward != backward) & bounds.unequal.coupled).astype(np.int64)
    least = bounds.forward(forward) + bounds.backward(backward, again) + bounds.update
    for low, *pair in zip(least.tolist(), forward.tolist(), backward.tolist(), strict=True):
        seconds = simulate(problem, unequal_plan("any", tables, (1, 2, 3), *pair)).iteration_seconds
        assert 0.0 < low * CLOSE <= seconds


@pytest.mark.parametrize("communication", WITHOUT_LINKS)
def test_transfers_that_take_no_time_leave_no_false_proof(communication: str) -> None:
    """The bound is one of the replay, in which links neither queue nor delay."""
    problem = replace(shared(3, 2, 2), communication=communication)
    found = make_plan("exact-unequal", problem, Request(stages=2))
    every = vectors(problem, 2)
    best = min(replays(found, itertools.product(every, every)))
    assert float(found.details["sizes_lower_bound_seconds"]) * CLOSE <= best  # type: ignore[arg-type]
    assert found.outcome.iteration_seconds * CLOSE <= best


@pytest.mark.parametrize("contention", [False, True])
def test_the_turn_is_the_end_of_the_last_forward(contention: bool) -> None:
    """Event loop and recurrence tell it as the reference does."""
    problem = replace(shared(0, 3, 5), contention=contention)
    tables, evaluate = tables_of(problem, range(3)), Evaluator(problem)
    plan = unequal_plan("any", tables, (1, 2), (1, 2, 3), (2, 2, 4))
    evaluate(plan)
    timeline = simulate(problem, plan).timeline
    assert evaluate.forward_seconds(plan) == timeline.end[timeline.kind == OpKind.FORWARD].max()
