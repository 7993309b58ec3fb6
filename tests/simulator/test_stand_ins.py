"""Stand-ins: a replay in which one replica stands for those that are like it is that of all of them, to the last bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from hardware_profiles import Cluster, load_cluster
from simulator import (
    Evaluations,
    InfeasiblePlanError,
    Outcome,
    Plan,
    PlanCosts,
    Problem,
    ScheduleError,
    Stage,
    evaluation,
    schedule_families,
    simulate,
    simulation,
    stages_from_cuts,
    workload_from_spec,
)
from simulator.costs.stand_ins import StandIns, stand_ins
from simulator.lowering.fill import _looked_at
from tests.hardware_profiles.clusters import tree
from tests.simulator.strategies import UnitDevice
from tests.simulator.test_cost_figures import CASES

FAMILIES = [name for name, one in schedule_families().items() if one.flush and one.placement != "bidirectional"]


@cache
def clusters() -> tuple[Cluster, ...]:
    """Cards of a server or of each device, trees of servers whose uplinks are narrow, and a server without a network."""
    trees = [tree((2, 2e9), (3, 4e8), (2, 1e8)), tree((1, 1e9), (8, 1e8)), tree((4, 2e9), (4, 2e8))]
    made = [replace(one, devices=(UnitDevice(rate=1e12),) * len(one.devices)) for one in trees]
    return (*map(load_cluster, ("dgx-h100:3", "pipedream-a:2", "dgx-a100:1")), *made)


def one_of(seed: int) -> tuple[Problem, Plan] | None:
    """A random plan of some ranks of replicas; None where they do not fit."""
    choose = Random(seed)
    cluster, name = choose.choice(clusters()), choose.choice(FAMILIES)
    family, workload = schedule_families()[name], workload_from_spec(choose.choice(("chain:9", "gpt2")))
    degree = choose.choice((1, 1, 2)) if workload.name == "gpt2" else 1
    ranks, devices = choose.choice((1, 2, 2, 3)), len(cluster.devices)
    replicas = min(choose.choice((2, 3, 4, 6, 8)), devices // (ranks * degree))
    if replicas < 2:
        return None
    width = replicas * degree
    first = choose.choice((0, 0, devices - ranks * width))
    held = [tuple(range(first + rank * width, first + (rank + 1) * width)) for rank in range(ranks)]
    placed = family.device_of_stage(held, 2 if "chunks" in family.options else family.chunks)
    count, samples = choose.choice((2, 4, 6)), replicas * choose.choice((1, 2))
    sizes = [samples] * count if choose.random() < 0.7 else [choose.randint(1, samples + 1) for _ in range(count)]
    if len(placed) > len(workload):
        return None
    problem = Problem(
        workload,
        cluster,
        sum(sizes),
        optimizer=choose.choice(("sgd", "adam")),
        contention=choose.random() < 0.85,
        communication=choose.choice(family.communications or ("overlapped", "overlapped", "send-blocking")),
        sharing=choose.choice(("fair", "fair", "links", "fifo")),
        recompute=choose.choice(("none", "whole")),
    )
    cuts = sorted(choose.sample(range(1, len(workload)), len(placed) - 1))
    stages = stages_from_cuts(cuts, len(workload), placed)
    if degree > 1:
        stages = tuple(Stage(one.layers, one.devices, (degree,) * replicas) for one in stages)
    return problem, Plan("hand", name, stages, tuple(sizes), zero=choose.choice((0, 1, 2, 3)))


def all_replayed(problem: Problem, plan: Plan) -> Outcome:
    """The replay of every replica."""
    with patch.object(simulation, "stand_ins", lambda costs: None):
        return simulate(problem, plan)


def columns(value: object) -> Iterator[NDArray[np.generic]]:
    """The columns of a timeline and of its transfers."""
    for one in (getattr(value, field.name) for field in fields(value)):  # type: ignore[arg-type]
        if isinstance(one, np.ndarray):
            yield one
        elif one is not None:
            yield from columns(one)


def assert_same(one: Outcome, other: Outcome) -> None:
    """Every column of the timeline, and the memory of every device over time, have the same bits."""
    assert one.iteration_seconds == other.iteration_seconds
    for ours, theirs in zip(columns(one.timeline), columns(other.timeline), strict=True):
        assert (ours.dtype, ours.tobytes()) == (theirs.dtype, theirs.tobytes())
    for mine, its in zip(one.memory, other.memory, strict=True):
        assert (mine.device, mine.capacity_bytes, mine.peak_bytes) == (its.device, its.capacity_bytes, its.peak_bytes)
        assert mine.times.tobytes() + mine.bytes.tobytes() == its.times.tobytes() + its.bytes.tobytes()


def assert_as_all(problem: Problem, plan: Plan) -> StandIns | None:
    """Both engines and the evaluator have with stand-ins what SimPy has of all replicas; the stand-ins."""
    outcome, whole = simulate(problem, plan), all_replayed(problem, plan)
    assert_same(outcome, whole)
    assert_same(simulate(problem, plan, engine="compiled"), whole)
    score, peaks = Evaluations(problem)(plan), Evaluations(problem).peak_bytes(plan)
    with patch.object(evaluation, "stand_ins", lambda costs: None):
        assert score == Evaluations(problem)(plan)
    assert score is None or score == whole.score
    assert peaks is None or peaks == {one.device: one.peak_bytes for one in whole.memory}
    return outcome.stand_ins


def assert_all_as_all(seeds: range) -> None:
    """Of plans at random; some share channels, some are unlike, some come first where they are served first."""
    found = Counter[str]()
    for case in filter(None, map(one_of, seeds)):
        try:
            standing = assert_as_all(*case)
        except (InfeasiblePlanError, ScheduleError):
            continue
        kinds = "none" if standing is None else "one" if len(standing.replicas) == 1 else "several"
        found.update([kinds, *["shared"] * (standing is not None and bool(standing.shared))])
    assert set(found) == {"none", "one", "several", "shared"}, found


def test_stand_ins_do_what_all_replicas_do() -> None:
    """Timelines, memory and scores."""
    assert_all_as_all(range(20))


@pytest.mark.slow
def test_stand_ins_do_what_all_replicas_do_in_many_more_plans() -> None:
    """As above, 240 plans."""
    assert_all_as_all(range(20, 260))


def of(cluster: Cluster, held: Sequence[Sequence[int]], samples: int = 12, **changes: object) -> tuple[int, ...] | None:
    """Who stands for each replica of a straight plan, None where all are replayed."""
    problem = Problem(workload_from_spec("chain:4"), cluster, 2 * samples, sharing="fair")
    problem = replace(problem, **{key: value for key, value in changes.items() if hasattr(problem, key)})
    stages = stages_from_cuts(range(1, len(held)), 4, held)
    others = {key: value for key, value in changes.items() if not hasattr(problem, key)}
    found = stand_ins(PlanCosts(problem, replace(Plan("hand", "1f1b", stages, (samples, samples)), **others)))
    return None if found is None else found.of


def test_the_first_of_those_that_are_alike_stands_for_them() -> None:
    """On servers of two behind one uplink each, ranks of four: the first server's two are like each other, not like the others,
    whose uplink is another one; devices with cards of their own are all alike.
    """
    here = replace(tree((2, 4.0), (4, 1.0)), devices=(UnitDevice(),) * 8)
    assert of(here, [(0, 1, 2, 3), (4, 5, 6, 7)]) == (0, 0, 2, 2)
    apart = replace(tree((1, 4.0), (8, 1.0)), devices=(UnitDevice(),) * 8)
    assert of(apart, [(0, 1, 2, 3), (4, 5, 6, 7)]) == (0, 0, 0, 0)


def test_of_what_collectives_keep_busy_the_channels_that_are_looked_at_stay() -> None:
    """With their shares, all of one where none are told; of those that share a route once."""
    none, whole, parts = ((), ()), ((1, 2), ()), ((2, 3, 1), (0.5, 0.25, 0.125))
    found = _looked_at([none, whole, parts, whole], StandIns((0,), frozenset(), frozenset((1, 3))))
    assert found == [none, ((1,), (1.0,)), ((3, 1), (0.25, 0.125)), ((1,), (1.0,))]
    assert found[1] is found[3]


def test_replicas_that_cross_over_are_all_replayed() -> None:
    """A stage whose replicas stand the other way round: the first of one stage does not work with the first of the other."""
    problem, plan = CASES["replicas"]
    first, last = plan.stages
    crossed = replace(plan, stages=(first, replace(last, devices=last.devices[::-1])))
    assert stand_ins(PlanCosts(problem, plan)) is not None
    assert stand_ins(PlanCosts(problem, crossed)) is None


def test_unlike_replicas_are_all_replayed() -> None:
    """A slow device, parts of unlike sizes, ranks with unlike numbers of replicas, and links on which who comes first is served
    first.
    """
    here = replace(tree((1, 4.0), (8, 1.0)), devices=(UnitDevice(),) * 8)
    held = [(0, 1, 2, 3), (4, 5, 6, 7)]
    slow = replace(here, devices=(*here.devices[:5], replace(UnitDevice(), rate=0.5), *here.devices[6:]))
    assert of(slow, held) == (0, 1, 0, 0)
    assert of(here, held, 13) == (0, 0, 0, 3)
    assert of(here, [(0, 1), (2, 3, 4)]) is None
    assert of(here, held, sharing="fifo") is None
    assert of(here, held, sharing="fifo", contention=False) == (0, 0, 0, 0)
    assert of(here, held, schedule="pipedream") is None


def test_noise_reaches_every_replica() -> None:
    """Durations are drawn for each of them, so that each is replayed."""
    here = replace(tree((1, 4.0), (4, 1.0)), devices=(UnitDevice(),) * 4)
    problem = Problem(workload_from_spec("chain:4"), here, 8)
    plan = Plan("hand", "gpipe", stages_from_cuts([2], 4, [(0, 1), (2, 3)]), (4, 4))
    noisy = simulate(problem, plan, noise=0.1, rng=np.random.default_rng(0))
    assert noisy.stand_ins is None
    assert simulate(problem, plan).stand_ins is not None
    both = [noisy.timeline.end[noisy.timeline.replica == replica] for replica in (0, 1)]
    assert not np.isin(*both).all()
