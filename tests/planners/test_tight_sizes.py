"""Tight sizes: no unequal planner says that nothing fits where a plan of its own space does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planners import Evaluator, make_plan
from planners.search.evaluator import Score
from planners.unequal import UnequalTables, tables_of, tight_sizes
from planners.unequal import planners as unequal_planners
from planners.unequal.tables import unequal_plan, unequal_problem
from planners.unequal.tight_sizes import NothingFits, TightSizes
from simulator import InfeasiblePlanError, LayerCosts, Plan, Problem, simulate
from tests.chains import chain
from tests.planners.conftest import line

NAMES = ("exact-unequal", "unequal-nested", "tidgap", "dgap", "greedy-dp", "local-greedy", "best-equal")


def generated(seed: int, stages: int, batch: int) -> Problem:
    """One layer more than stages, of unlike weights, activations and boundaries, behind links slow enough for queues."""
    rng = np.random.default_rng(seed)
    layers = stages + 1
    network = chain(
        rng.uniform(1e9, 1e10, layers).tolist(),
        parameters=rng.integers(10**5, 10**6, layers).tolist(),
        output_elements=rng.uniform(1e5, 5e6, layers).tolist(),
        stashed_elements=rng.uniform(1e5, 1e7, layers).tolist(),
    )
    cluster = line(speeds=(1.0,) * stages)
    links = tuple(replace(link, bandwidth=float(10 ** rng.uniform(8.5, 10))) for link in cluster.links)
    return Problem(network, replace(cluster, links=links), batch, recompute=bool(seed % 2))


def space(problem: Problem, *, equal: bool) -> Iterator[Plan]:
    """Every partition with every size of every stage and pass, or with one size for all."""
    stages, layers = len(problem.cluster.devices), len(problem.workload)
    tables = tables_of(problem, range(stages))
    vectors = list(itertools.product(range(1, problem.batch + 1), repeat=stages))
    pairs = [(one, one) for one in vectors if len({*one}) == 1] if equal else itertools.product(vectors, vectors)
    for (forward, backward), cuts in itertools.product(
        list(pairs), itertools.combinations(range(1, layers), stages - 1)
    ):
        yield unequal_plan("space", tables, cuts, forward, backward)


def with_memory(problem: Problem, memory_bytes: float) -> Problem:
    """The same problem on devices that hold so much."""
    devices = problem.cluster.devices
    held = tuple(replace(one, memory_bytes=memory_bytes) for one in devices)  # type: ignore[type-var]
    return replace(problem, cluster=replace(problem.cluster, devices=held))


def least_bytes(problem: Problem, *, equal: bool) -> float:
    """What the fullest device of the plan of the space that needs least holds, by its replay."""
    costs = LayerCosts(problem)
    replays = (simulate(problem, plan, engine="compiled", layer_costs=costs) for plan in space(problem, equal=equal))
    return min(one.fullest.peak_bytes for one in replays)


def check(problem: Problem) -> None:
    """At the least memory of their space all planners plan; a byte below it none does."""
    for equal in (False, True):
        least = least_bytes(problem, equal=equal)
        for name in NAMES:
            if equal is not (name == "best-equal"):
                continue
            found = make_plan(name, with_memory(problem, least))
            assert found.outcome.fits
            with pytest.raises(InfeasiblePlanError, match="no sizes fit"):
                make_plan(name, with_memory(problem, least - 1.0))


@pytest.mark.parametrize(("seed", "stages", "batch"), [(0, 2, 3), (1, 2, 3), (2, 3, 2)])
def test_the_least_memory_of_the_space_is_enough(seed: int, stages: int, batch: int) -> None:
    """Activations stored, so that sizes that differ recompute and save memory, and recomputed."""
    check(generated(seed, stages, batch))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_least_memory_of_many_spaces_is_enough(seed: int) -> None:
    """Two stages with 4 samples, three with 3."""
    check(generated(seed, *((2, 4) if seed % 3 else (3, 3))))


@pytest.mark.parametrize("partitions", [3_000, 1])
def test_sizes_that_differ_are_found_where_they_are_too_many_to_try(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Twice the memory of forward blocks of 2 samples and backward ones of 1, all recomputed; less than storing needs."""
    monkeypatch.setattr(tight_sizes, "PARTITIONS", partitions)
    monkeypatch.setattr(tight_sizes, "REPLAYS", 600)
    problem = generated(0, 2, 8)
    tables, costs = tables_of(problem, (0, 1)), LayerCosts(problem)
    needs = [
        simulate(problem, unequal_plan("known", tables, (cut,), (2, 2), (1, 1)), layer_costs=costs).fullest.peak_bytes
        for cut in (1, 2)
    ]
    tight = with_memory(problem, 2 * min(needs))
    with pytest.raises(InfeasiblePlanError):
        make_plan("best-equal", tight)
    found = make_plan("tidgap", tight)
    known = unequal_plan("known", tables, (1 + int(np.argmin(needs)),), (2, 2), (1, 1))
    seconds = [simulate(tight, plan).iteration_seconds for plan in (found.plan, known)]
    assert found.outcome.fits
    assert seconds[0] < seconds[1]
    assert not found.proof.space


@pytest.mark.parametrize(
    ("name", "limits", "words"),
    [
        ("tidgap", {}, "no sizes fit"),
        ("tidgap", {"PARTITIONS": 1}, "plans tried fits, others may"),
        ("tidgap", {"REPLAYS": 2, "EQUAL": 1}, "plans tried fits, others may"),
        ("best-equal", {"REPLAYS": 10}, "no sizes fit"),
        ("best-equal", {"REPLAYS": 1}, "none of 1 plans tried fits, others may"),
    ],
)
def test_a_search_that_left_plans_out_does_not_say_that_none_fits(
    monkeypatch: pytest.MonkeyPatch, name: str, limits: dict[str, int], words: str
) -> None:
    """A byte less than the least memory: no sizes fit where all plans are tried, else none of those that were."""
    problem = generated(8, 3, 2)
    tight = with_memory(problem, least_bytes(problem, equal=name == "best-equal") - 1.0)
    for limit, value in limits.items():
        monkeypatch.setattr(tight_sizes, limit, value)
    with pytest.raises(InfeasiblePlanError, match=words):
        make_plan(name, tight)


def test_with_little_memory_no_unequal_plan_is_slower_than_the_equal_one() -> None:
    """One size for all, where it fits, is among the plans that are replayed."""
    problem = generated(2, 3, 6)
    peak = make_plan("best-equal", problem).outcome.fullest.peak_bytes
    tight = with_memory(problem, peak)
    seconds = [make_plan(name, tight).outcome.iteration_seconds for name in ("tidgap", "best-equal")]
    assert seconds[0] <= seconds[1] * (1 + 1e-12)


@pytest.mark.parametrize("equal", [False, True])
def test_of_all_plans_the_fastest_that_fits_is_taken(equal: bool) -> None:
    """Half as much memory again as the least: several plans fit, and the model's order is that of their replays."""
    problem = generated(1, 2, 3)
    tight = with_memory(problem, 1.5 * least_bytes(problem, equal=equal))
    found = tight_sizes.tight_sizes("test", tables_of(tight, (0, 1)), Evaluator(tight), (1, 2, 3), equal=equal)
    assert isinstance(found, TightSizes)
    replays = [simulate(tight, plan, engine="compiled") for plan in space(tight, equal=equal)]
    fitting = [one.iteration_seconds for one in replays if one.fits]
    plan = unequal_plan("test", tables_of(tight, (0, 1)), found.cuts, found.forward, found.backward)
    assert len({*fitting}) > 1
    assert simulate(tight, plan).iteration_seconds == pytest.approx(min(fitting), rel=1e-9)


@pytest.mark.parametrize("seed", [0, 2])
def test_sizes_are_sought_again_with_as_much_less_as_is_missing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that needs a byte in a thousand more than there is: the fullest device gets so much less, and 1 % of it."""
    free = generated(seed, 2, 4)
    unlimited = make_plan("exact-unequal", free)
    replayed = unlimited.outcome
    capacity = 0.999 * replayed.fullest.peak_bytes
    seen: list[tuple[float, ...]] = []
    search = unequal_planners.start_partition

    def recorded(tables: UnequalTables, candidates: Any, limits: list[float], *more: Any, **options: Any) -> Any:
        seen.append(tuple(limits))
        return search(tables, candidates, limits, *more, **options)

    monkeypatch.setattr(unequal_planners, "start_partition", recorded)
    again = make_plan("exact-unequal", with_memory(free, capacity))
    fuller = [device.peak_bytes for device in replayed.memory]
    missing = [1.01 * (peak - capacity) if peak == max(fuller) else 0.0 for peak in fuller]
    assert seen[0] == (capacity, capacity)
    assert seen[1] == pytest.approx(tuple(capacity - one for one in missing), rel=1e-12)
    # the bound holds for as much memory as there is, and not only for less
    assert again.details["sizes_lower_bound_seconds"] == unlimited.details["sizes_lower_bound_seconds"]
    assert again.details["makespan_seconds"] > unlimited.details["makespan_seconds"]  # type: ignore[operator]


@pytest.mark.parametrize(("fullest", "stages"), [(0, {0, 1}), (1, {0, 1, 2}), (2, {1, 2})])
def test_neighbours_change_the_fullest_stage_or_one_beside_it(fullest: int, stages: set[int]) -> None:
    """Of sizes 1, 2, 3, 4, 6, 8 a step from 4 is 3 or 6, twice is 8, half is 2; only pairs that the stage may have."""
    sizes = [1, 2, 3, 4, 6, 8]
    every = tuple(itertools.product(sizes, sizes))
    allowed = (every, tuple(pair for pair in every if sum(pair) < 10), every)
    problem = unequal_problem(tables_of(generated(0, 3, 8), range(3)), (1, 2), tuple(sizes))
    space = tight_sizes._Space((1, 2), problem, allowed, 0.0)
    found = tight_sizes._neighbours(space, sizes, ((4, 4),) * 3, fullest)
    expected = {
        (*((4, 4),) * stage, pair, *((4, 4),) * (2 - stage))
        for stage in stages
        for pair in itertools.product((2, 3, 4, 6, 8), repeat=2)
        if pair in allowed[stage]
    }
    assert set(found) == expected
    assert [tight_sizes._near(sizes, size) for size in (1, 8, 2)] == [[1, 2], [4, 6, 8], [1, 2, 3, 4]]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["best-equal", "exact-unequal"])
def test_a_refusal_names_the_least_that_the_fullest_stage_needs(name: str, recompute: bool) -> None:
    """State and all activations, or all inputs and one sample's activations, as chosen; sizes that differ recompute."""
    problem = replace(generated(0, 2, 8), recompute=recompute)
    tables = tables_of(problem, range(2))
    held = (tables.stage_bytes(*ends) for ends in tables.ranges((1,)))
    state, activations, inputs = (np.array(column) for column in zip(*held, strict=True))
    stored, recomputed = state + 8 * activations, state + 8 * inputs + activations
    assert (stored != recomputed).all()
    chosen = recomputed if recompute else stored
    least = chosen if name == "best-equal" else np.minimum(recomputed, chosen)
    refusal = unequal_planners._does_not_fit(name, tables, NothingFits(True, 0))
    assert f"stage {least.argmax()} of an even partition needs at least {least.max() / 2**30:.4g} GiB" in refusal


def test_room_is_the_share_that_the_fullest_stage_spares() -> None:
    """With twice the memory the fullest stage fills half of the share; no room is left where it just fits."""
    problem = generated(0, 2, 4)
    rooms = []
    for memory_bytes in (1e9, 2e9):
        space = tight_sizes._space(tables_of(with_memory(problem, memory_bytes), range(2)), (1,), (1, 2))
        assert space is not None
        rooms.append(space.room)
    filled = 1.0 - rooms[0]
    assert 0.0 < filled < 1.0
    assert 1.0 - rooms[1] == pytest.approx(filled / 2)
    tight = tight_sizes._space(tables_of(with_memory(problem, 1e9 * filled * (1 + 1e-9)), range(2)), (1,), (1, 2))
    assert tight is not None
    assert tight.room == pytest.approx(0.0, abs=1e-8)
    assert (
        tight_sizes._space(tables_of(with_memory(problem, 1e9 * filled * (1 - 1e-9)), range(2)), (1,), (1, 2)) is None
    )


def test_sizes_are_changed_from_the_best_start_on() -> None:
    """With replays for the starts alone the best of them is the answer; with more, none that is a step away is better."""
    sizes = [1, 2, 3, 4]
    every = tuple(itertools.product(sizes, sizes))
    tables = tables_of(generated(0, 2, 4), range(2))
    space = tight_sizes._Space((1,), unequal_problem(tables, (1,), tuple(sizes)), (every, every), 0.0)
    tried: list[tuple[tuple[int, int], ...]] = []

    def score(one: TightSizes) -> Score:
        """Seconds are the distance from 3 forward and 1 backward on both stages, the second of which is the fullest."""
        tried.append(one.pairs)
        return Score(sum(abs(f - 3) + abs(g - 1) for f, g in one.pairs), 1.0, 1.0, 1)

    starts = [((size, size),) * 2 for size in (4, 2, 1)]  # 8, 4 and 4 away
    assert tight_sizes._descend(space, starts, tables, sizes, score, 3).pairs == ((2, 2), (2, 2))
    assert tried == starts
    assert tight_sizes._descend(space, starts, tables, sizes, score, 2).pairs == ((2, 2), (2, 2))
    assert tight_sizes._descend(space, starts, tables, sizes, score, 1).pairs == ((4, 4), (4, 4))
    tried.clear()
    assert tight_sizes._descend(space, starts, tables, sizes, score, 100).pairs == ((3, 1), (3, 1))
    assert len({*tried}) == len(tried) <= 100


def test_tight_sizes_fit_in_the_search_and_on_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan must fit in both replays, with and without contention: where either always wants more there is none."""
    monkeypatch.setattr(tight_sizes, "REPLAYS", 60)
    monkeypatch.setattr(tight_sizes, "EQUAL", 30)
    problem = generated(0, 2, 3)
    tables = tables_of(problem, (0, 1))

    class Quick(Evaluator):
        def __call__(self, plan: Plan) -> Score:
            return replace(super().__call__(plan), peak_bytes=float("inf"))

    class Reference(Evaluator):
        def on_reference(self, plan: Plan) -> Score:
            return replace(super().on_reference(plan), peak_bytes=float("inf"))

    found = [
        tight_sizes.tight_sizes("test", tables, kind(problem), (1, 2, 3)) for kind in (Evaluator, Quick, Reference)
    ]
    assert [type(one) for one in found] == [TightSizes, NothingFits, NothingFits]
