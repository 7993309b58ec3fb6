"""Tight sizes: no unequal planner says that nothing fits where a plan of its own space does."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, fields, replace
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from planners import Evaluator, Request, make_plan
from planners.testing import line
from planners.unequal import UnequalTables, replayed_sizes, tables_of, tight_sizes
from planners.unequal import planners as unequal_planners
from planners.unequal.problem import near_sizes
from planners.unequal.tables import blocks, memory_limits, unequal_plan, unequal_problem
from planners.unequal.tight_sizes import NothingFits, TightSizes
from simulator import Evaluations, InfeasiblePlanError, LayerCosts, Plan, Problem, simulate
from tests.chains import chain
from tests.planners.conftest import with_memory
from tests.records import Recorded

NAMES = ("exact-unequal", "unequal-nested", "tidgap", "dgap", "greedy-dp", "local-greedy", "best-equal")


def generated(seed: int, stages: int, batch: int, *, layers: int = 0, slow: float = 1.0) -> Problem:
    """Layers of unlike weights, activations and boundaries, behind links slow enough for queues.

    layers: default one more than stages; slow: by how much slower the links are
    """
    rng = np.random.default_rng(seed)
    layers = layers or stages + 1
    network = chain(
        rng.uniform(1e9, 1e10, layers).tolist(),
        parameters=rng.integers(10**5, 10**6, layers).tolist(),
        output_elements=rng.uniform(1e5, 5e6, layers).tolist(),
        stashed_elements=rng.uniform(1e5, 1e7, layers).tolist(),
    )
    cluster = line(speeds=(1.0,) * stages)
    links = tuple(replace(link, bandwidth=float(10 ** rng.uniform(8.5, 10)) / slow) for link in cluster.links)
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


@functools.cache
def least_bytes(problem: Problem, *, equal: bool) -> float:
    """What the fullest device of the plan of the space that needs least holds, by its replay."""
    evaluate = Evaluator(problem)
    return min(evaluate(plan).peak_bytes for plan in space(problem, equal=equal))


def check(problem: Problem, names: Sequence[str]) -> None:
    """At the least memory of their space all planners plan; a byte below it none does."""
    asked = Request(stages=len(problem.cluster.devices))  # fewer may need less
    for name in names:
        least = least_bytes(problem, equal=name == "best-equal")
        assert make_plan(name, with_memory(problem, least), asked).outcome.fits
        with pytest.raises(InfeasiblePlanError, match="no sizes fit"):
            make_plan(name, with_memory(problem, least - 1.0), asked)


SMALL = ((1, 2, 3), (2, 3, 2))
"""Seed, stages and batch of spaces in which every plan is replayed."""


@pytest.mark.parametrize(("seed", "stages", "batch"), [pytest.param(*SMALL[0], marks=pytest.mark.slow), SMALL[1]])
def test_the_least_memory_of_the_space_is_enough(seed: int, stages: int, batch: int) -> None:
    """Activations stored, so that sizes that differ recompute and save memory, and recomputed."""
    check(generated(seed, stages, batch), ("exact-unequal", "unequal-nested", "best-equal"))


@pytest.mark.parametrize("limit", ["PLANS", "PARTITIONS"])
@pytest.mark.parametrize(("seed", "stages", "batch"), [pytest.param(*SMALL[0], marks=pytest.mark.slow), SMALL[1]])
def test_it_is_enough_where_plans_or_partitions_are_too_many_to_list(
    monkeypatch: pytest.MonkeyPatch, limit: str, seed: int, stages: int, batch: int
) -> None:
    """With no plan, or no partition, few enough to be listed, each is still replayed or ruled out."""
    monkeypatch.setattr(tight_sizes, limit, 0)
    check(generated(seed, stages, batch), ("tidgap", "best-equal"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_least_memory_of_many_spaces_is_enough(seed: int) -> None:
    """Two stages with 4 samples, three with 3."""
    check(generated(seed, *((2, 4) if seed % 3 else (3, 3))), NAMES)


def unlike(seed: int) -> Problem:
    """Two to four unlike devices, links of one or two ways, slow or fast, and as many layers or up to three more."""
    rng = np.random.default_rng(seed)
    stages = int(rng.integers(2, 5))
    batch = int(rng.integers(3, (13, 6, 4)[stages - 2]))
    problem = generated(seed, stages, batch, layers=stages + int(rng.integers(0, 4)))
    cluster = problem.cluster
    devices = tuple(
        replace(
            one, memory_bytes=float(rng.uniform(0.7, 1.5)), peak_flops={"fp32": float(rng.choice([5e12, 1e13, 2e13]))}
        )  # type: ignore[type-var]
        for one in cluster.devices
    )
    speed = 10 ** rng.uniform(-0.5, 0.5)
    duplex: Literal["full", "half"] = "half" if rng.random() < 0.3 else "full"
    links = tuple(replace(link, bandwidth=link.bandwidth * speed, duplex=duplex) for link in cluster.links)
    return replace(
        problem,
        cluster=replace(cluster, devices=devices, links=links),
        contention=bool(rng.integers(2)),
        recompute=bool(rng.integers(2)),
    )


def least_part(problem: Problem, sizes: Sequence[int]) -> float:
    """The least that the fullest device of any plan fills, by parts of `memory_bytes`.

    The passes of a flush are apart: each forward vector is replayed once, and each backward one once for whatever recomputes.
    """
    stages = len(problem.cluster.devices)
    tables, evaluations = tables_of(problem, range(stages)), Evaluations(problem)
    held = np.array(memory_limits(tables))
    vectors = np.array(list(itertools.product(sizes, repeat=stages)))
    differ = vectors[:, None] != vectors[None]
    kinds = (
        np.ones((1, stages), dtype=bool)
        if problem.recompute != "none"
        else np.array(list(itertools.product([False, True], repeat=stages)))
    )
    number = (
        np.zeros(differ.shape[:2], dtype=int)
        if problem.recompute != "none"
        else differ @ (1 << np.arange(stages)[::-1])
    )
    least = np.inf
    for cuts in itertools.combinations(range(1, len(problem.workload)), stages - 1):
        parts = np.empty((2, len(kinds), len(vectors)))
        for column, vector in enumerate(vectors.tolist()):
            plain = unequal_plan("space", tables, cuts, vector, vector)
            same = tuple(blocks(problem.batch, size) for size in vector)
            for row, again in enumerate(kinds.tolist()):
                plan = replace(plain, forward_sizes=same, backward_sizes=same, recompute=tuple(again))
                peaks = evaluations.pass_peak_bytes(plan)
                assert peaks is not None
                parts[:, row, column] = (peaks / held).max(axis=1)
        columns = np.arange(len(vectors))
        least = min(least, float(np.maximum(parts[0][number, columns[:, None]], parts[1][number, columns]).min()))
    return least


def scaled(problem: Problem, part: float) -> Problem:
    """The same problem on devices with so large a part of their memory."""
    devices = tuple(replace(one, memory_bytes=one.memory_bytes * part) for one in problem.cluster.devices)  # type: ignore[type-var]
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 100, 9))
def test_only_the_best_plan_of_a_large_space_fits(seed: int) -> None:
    """Up to a hundred and fifty thousand plans: in the memory of the best one all planners plan, with a little less none does."""
    problem = unlike(seed)
    part, asked = least_part(problem, range(1, problem.batch + 1)), Request(stages=len(problem.cluster.devices))
    for name in ("exact-unequal", "unequal-nested", "greedy-dp"):
        assert make_plan(name, scaled(problem, part * (1 + 1e-12)), asked).outcome.fits
        with pytest.raises(InfeasiblePlanError, match="no sizes fit"):
            make_plan(name, scaled(problem, part * (1 - 1e-7)), asked)  # bytes are rounded block by block


def test_sizes_that_differ_are_found_where_plans_are_too_many_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the memory of forward blocks of 2 samples and backward ones of 1, all recomputed; less than storing needs."""
    monkeypatch.setattr(tight_sizes, "PLANS", 0)
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


@functools.cache
def too_tight() -> Problem:
    """A byte less than the least memory, which takes four replays to see."""
    problem = generated(6, 2, 3, slow=4.0)
    return with_memory(problem, least_bytes(problem, equal=False) - 1.0)


def test_a_search_that_left_plans_out_says_what_makes_it_look_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ops for two plans two are replayed; a budget of more evaluations goes on, as far as the proof where it can."""
    tight = too_tight()
    whole = Request(stages=len(tight.cluster.devices))
    monkeypatch.setattr(tight_sizes, "OPS", 2 * tight_sizes.LEAST_OPS)
    with pytest.raises(InfeasiblePlanError, match="none of 2 plans tried fits, others may") as raised:
        make_plan("tidgap", tight, whole)
    message = str(raised.value)
    made = int(re.search(r"a budget above ([\d,]+) tries more", message)[1].replace(",", ""))  # type: ignore[index]
    assert len(message) < 300
    with pytest.raises(InfeasiblePlanError, match=f"the budget of {made + 1} evaluations ended"):
        make_plan("tidgap", tight, whole, budget=made + 1)
    with pytest.raises(InfeasiblePlanError, match="no sizes fit"):
        make_plan("tidgap", tight, whole, budget=made + 1000)


def test_partitions_without_a_plan_count_in_the_budget_that_a_refusal_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is replayed, the ops of two plans are used up by partitions alone: a budget above the one named looks at all."""
    monkeypatch.setattr(tight_sizes, "OPS", 2 * tight_sizes.LEAST_OPS)
    monkeypatch.setattr(tight_sizes, "_partitions", lambda tables, costs: [])
    monkeypatch.setattr(tight_sizes, "_space", lambda tables, cuts, sizes: None)
    monkeypatch.setattr(tight_sizes, "cuts_within", lambda costs: iter([(1,), (2,), (3,)]))
    with pytest.raises(InfeasiblePlanError, match="none of 0 plans tried fits, others may") as raised:
        make_plan("best-equal", too_tight())
    named = int(re.search(r"a budget above ([\d,]+) tries more", str(raised.value))[1].replace(",", ""))  # type: ignore[index]
    with pytest.raises(InfeasiblePlanError, match="no sizes fit"):
        make_plan("best-equal", too_tight(), budget=named + 1)


def test_plans_that_fit_are_kept_where_the_work_ends() -> None:
    """Of two partitions the roomier's first plan fits, and the other's is one too many; where none fits the end is told."""
    spaces: Any = [SimpleNamespace(room=room, equal=(), plans=[f"plan {room}"]) for room in (1.0, 2.0)]

    def fits(plan: str) -> bool:
        if plan == "plan 1.0":
            raise tight_sizes._LimitReached
        return well

    replays: Any = SimpleNamespace(fits=fits, left=lambda space: iter(space.plans))
    well = True
    assert tight_sizes._starts(replays, spaces) == ["plan 2.0"]
    well = False
    with pytest.raises(tight_sizes._LimitReached):
        tight_sizes._starts(replays, spaces)


def test_partitions_are_looked_at_again_until_enough_plans_fit() -> None:
    """One whose plan that fits comes behind those of a first round has a second; of many as many are kept as begin a search."""

    def starts(*plans: list[str]) -> list[Any]:
        spaces: Any = [SimpleNamespace(room=-number, equal=(), plans=own) for number, own in enumerate(plans)]
        replays: Any = SimpleNamespace(fits=lambda plan: plan[:4] == "good", left=lambda space: iter(space.plans))
        return list(tight_sizes._starts(replays, spaces))

    late = ["bad"] * (tight_sizes.ROUND + 1)
    assert starts([*late, "good"], ["bad"]) == ["good"]
    assert starts(late, ["bad"]) == []
    every = [[f"good {number}"] for number in range(tight_sizes.STARTS + 1)]
    assert starts(*every) == [one for (one,) in every[:-1]]


@pytest.mark.parametrize(("most", "some"), [(10, False), (9, True)])
def test_of_very_many_partitions_the_fastest_and_the_roomiest_come_first(
    most: int, some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six layers in three stages have ten partitions: with as many as may be listed all are, in their order."""
    monkeypatch.setattr(tight_sizes, "PARTITIONS", most)
    tables = tables_of(generated(2, 3, 6, layers=6), range(3))
    costs = tight_sizes._loosest(tables)
    every, found = list(itertools.combinations(range(1, 6), 2)), tight_sizes._partitions(tables, costs)
    assert set(found) < set(every) if some else found == every
    assert found[-1] == tight_sizes._roomiest(tables, costs) or not some


def test_partitions_that_are_looked_at_in_vain_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no partition holds its tensors on the way, and none is replayed, a search of very many still ends."""
    monkeypatch.setattr(tight_sizes, "PARTITIONS", 0)
    monkeypatch.setattr(tight_sizes, "OPS", 0)
    monkeypatch.setattr(tight_sizes, "_space", lambda *arguments: None)
    with pytest.raises(InfeasiblePlanError, match="none of 0 plans tried fits, others may"):
        make_plan("tidgap", too_tight())


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


def test_sizes_are_sought_again_with_as_much_less_as_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that needs a byte in a thousand more than there is: the fullest device gets so much less, and 1 % of it."""
    free = generated(0, 2, 4)
    unlimited = make_plan("exact-unequal", free, Request(stages=2))
    replayed = unlimited.outcome
    capacity = 0.999 * replayed.fullest.peak_bytes
    seen: list[tuple[float, ...]] = []
    search = unequal_planners.start_partition

    def recorded(tables: UnequalTables, candidates: Any, limits: list[float], *more: Any, **options: Any) -> Any:
        seen.append(tuple(limits))
        return search(tables, candidates, limits, *more, **options)

    monkeypatch.setattr(unequal_planners, "start_partition", recorded)
    again = make_plan("exact-unequal", with_memory(free, capacity), Request(stages=2))
    fuller = [device.peak_bytes for device in replayed.memory]
    missing = [1.01 * (peak - capacity) if peak == max(fuller) else 0.0 for peak in fuller]
    assert seen[0] == (capacity, capacity)
    assert seen[1] == pytest.approx(tuple(capacity - one for one in missing), rel=1e-12)
    # the bound holds for as much memory as there is, and not only for less; replays of what fits may raise it
    assert again.details["sizes_lower_bound_seconds"] >= unlimited.details["sizes_lower_bound_seconds"]
    assert again.details["sizes_lower_bound_seconds"] <= again.outcome.iteration_seconds * (1 + 1e-9)
    assert again.details["makespan_seconds"] > unlimited.details["makespan_seconds"]  # type: ignore[operator]


def test_the_answer_is_what_the_last_search_found() -> None:
    """With a twentieth less than the fastest sizes need, what the first and the second find does not fit, the third's does."""
    free, asked = generated(0, 2, 4, layers=4), Request(stages=2)
    fastest = make_plan("tidgap", free, asked)
    found = make_plan("tidgap", with_memory(free, 0.95 * fastest.outcome.fullest.peak_bytes), asked)
    assert found.outcome.fits
    assert found.details["makespan_seconds"] > fastest.details["makespan_seconds"]  # type: ignore[operator]


def test_neighbours_change_one_stage_by_a_step_or_a_factor_of_two() -> None:
    """Of sizes 1, 2, 3, 4, 6, 8 a step from 4 is 3 or 6, twice is 8, half is 2; only what the stage may choose."""
    sizes = (1, 2, 3, 4, 6, 8)
    problem = unequal_problem(tables_of(generated(1, 3, 8), range(3)), (1, 2), sizes)
    every = tuple((size, True) for size in sizes)
    few = tuple((size, True) for size in (1, 3, 4))
    space = tight_sizes._Space((1, 2), problem, (every, few, every), (every, every, few), 0.0)
    found = [one.pairs for one in tight_sizes._neighbours(space, sizes, space.with_sizes([(4, 4)] * 3))]
    near, fewer = (2, 3, 4, 6, 8), (3, 4)
    expected = [
        (*((4, 4),) * stage, pair, *((4, 4),) * (2 - stage))
        for stage, ways in enumerate([(near, near), (fewer, near), (near, fewer)])
        for pair in itertools.product(*ways)
    ]
    assert sorted(found) == sorted(expected)
    assert [near_sizes(sizes, size) for size in (1, 8, 2)] == [{1, 2}, {4, 6, 8}, {1, 2, 3, 4}]


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
    refusal = unequal_planners._does_not_fit(name, tables, NothingFits(True, 0), 0)
    assert f"stage {least.argmax()} of an even partition needs at least {least.max() / 2**30:.4g} GiB" in refusal


@pytest.mark.parametrize("seed", [0, 1])
def test_what_the_stages_may_choose_leaves_out_only_what_does_not_fit(seed: int) -> None:
    """In the memory of the median plan: all plans that fit are there, each once, and some that do not fit are not."""
    problem, sizes = generated(seed, 2, 3, slow=4.0), (1, 2, 3)
    evaluate, tables = Evaluator(problem), tables_of(problem, range(2))
    pairs = list(itertools.product(itertools.product(sizes, sizes), repeat=2))
    peaks = [evaluate(unequal_plan("any", tables, (1,), *zip(*one, strict=True))).peak_bytes for one in pairs]
    memory = float(np.median(peaks))
    space = tight_sizes._space(tables_of(with_memory(problem, memory), range(2)), (1,), sizes)
    assert space is not None
    left = [one.pairs for one in space.every]
    assert {one for one, peak in zip(pairs, peaks, strict=True) if peak <= memory} <= {*left}
    assert len(left) == len({*left}) == space.plans < len(pairs)


def test_replays_rule_out_only_what_does_not_fit() -> None:
    """In memory that few plans fit in: whatever was replayed before, none of them is ruled out, and some others are."""
    problem, sizes = generated(3, 2, 3, slow=4.0), (1, 2, 3)
    tables, evaluate = tables_of(problem, range(2)), Evaluator(problem)
    pairs = itertools.product(itertools.product(sizes, sizes), repeat=2)
    plans = [unequal_plan("any", tables, (1,), *zip(*one, strict=True)) for one in pairs]
    memory = float(np.percentile([evaluate(plan).peak_bytes for plan in plans], 15))
    limited = with_memory(problem, memory)
    replays = tight_sizes._Replays("any", tables_of(limited, range(2)), Evaluator(limited))
    space = tight_sizes._space(replays.tables, (1,), sizes)
    assert space is not None
    every = [*space.every]
    for number in np.random.default_rng(3).permutation(len(every)).tolist():
        replays.fits(every[number])
    ruled_out = [
        one for one in every if any(replays.rules_out(side, one.cuts, path) for side, path in enumerate(one.paths))
    ]
    assert ruled_out
    assert min(evaluate(replays.plan(one)).peak_bytes for one in ruled_out) > memory
    assert replays.tried < len(every)


@pytest.mark.parametrize("duplex", ["full", "half"])
@pytest.mark.parametrize("contention", [False, True])
def test_sizes_of_other_stages_change_nothing(duplex: Literal["full", "half"], contention: bool) -> None:
    """What a stage holds in a pass is decided by so many of the first (last) stages: up to it, where no channel is shared."""
    stages, rng, changed = 4, np.random.default_rng(1), 0
    problem = replace(generated(3, stages, 8, slow=4.0), contention=contention)
    links = tuple(replace(link, duplex=duplex) for link in problem.cluster.links)
    problem = replace(problem, cluster=replace(problem.cluster, links=links))
    tables, evaluations = tables_of(problem, range(stages)), Evaluations(problem)
    depths = tight_sizes._depths(tables)
    apart = duplex == "full" or not contention
    assert depths == ([1, 2, 3, 4],) * 2 if apart else ([3, 3, 3, 4],) * 2

    def peaks(forward: Any, backward: Any) -> Any:
        return evaluations.pass_peak_bytes(unequal_plan("any", tables, (1, 2, 4), forward, backward))

    for _ in range(6):
        sizes, other = rng.integers(1, 9, (2, 2, stages))
        held = peaks(*sizes)
        for place in range(stages):
            first, last = (depths[side][place] for side in (0, 1))
            forward = np.concatenate([sizes[0, :first], other[0, first:]])
            backward = np.concatenate([other[1, : stages - last], sizes[1, stages - last :]])
            again = peaks(forward, backward)
            assert again[0, place] == held[0, place]
            assert again[1, stages - 1 - place] == held[1, stages - 1 - place]
            changed += (again != held).any()
    assert changed


def test_only_changes_that_fit_and_are_faster_are_taken() -> None:
    """In the memory of coarse sizes: what is found is faster, no change of a stage that fits is, and one that does not fit is."""
    problem, sizes = generated(4, 2, 6), range(1, 7)
    coarse = unequal_plan("coarse", tables_of(problem, range(2)), (1,), (4, 4), (3, 3))
    tight = with_memory(problem, Evaluator(problem)(coarse).peak_bytes)
    tables, evaluate = tables_of(tight, range(2)), Evaluator(tight)
    replays, space = tight_sizes._Replays("test", tables, evaluate), tight_sizes._space(tables, (1,), sizes)
    assert space is not None
    start = space.with_sizes([(4, 3)] * 2)
    found = tight_sizes._quicker(replays, space, start, sizes)
    scores = [evaluate(replays.plan(one)) for one in tight_sizes._neighbours(space, sizes, found)]
    seconds = min(score.iteration_seconds for score in scores), replays.seconds(found), replays.seconds(start)
    assert sorted({*seconds}) == list(seconds)
    assert min(score.iteration_seconds for score in scores if score.fits) == seconds[1]
    assert evaluate(replays.plan(found)).fits


def test_plans_are_judged_with_the_contention_of_the_problem() -> None:
    """A search on unlimited links leaves out what does not fit in a replay with contention."""
    problem = generated(6, 2, 3, slow=4.0)
    least = least_bytes(problem, equal=False)
    request = Request(stages=2, engine="recurrence")
    assert make_plan("tidgap", with_memory(problem, least), request).outcome.fits
    with pytest.raises(InfeasiblePlanError, match="no sizes fit"):
        make_plan("tidgap", with_memory(problem, least - 1.0), request)


def test_paths_leave_out_what_is_ruled_out_when_its_turn_comes() -> None:
    """Of three choices of 1 or 2: 2, 2, 1 is ruled out from the beginning, and 1, 2 once it has begun; depth first."""
    choices = [((1, False), (2, False))] * 3
    ruled_out, found = set[tuple[int, ...]]({(2, 2, 1)}), list[tuple[int, ...]]()

    def sizes(path: Iterable[tuple[int, bool]]) -> tuple[int, ...]:
        return tuple(size for size, _ in path)

    for path in tight_sizes._paths(choices, lambda begin: sizes(begin) in ruled_out):
        found.append(sizes(path))
        if found[-1] == (1, 2, 1):
            ruled_out.add((1, 2))
    assert found == [(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (2, 1, 2), (2, 2, 2)]


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


@pytest.mark.parametrize("equal", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("limit", ["PLANS", "PARTITIONS"])
def test_sizes_in_less_and_less_memory(
    limit: str, equal: bool, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found, or how many plans were tried where none fits, where plans or partitions are too many to list."""
    monkeypatch.setattr(tight_sizes, limit, 0)
    values: dict[str, Any] = {}
    for seed, stages, batch in ((0, 2, 4), (4, 3, 3), (3, 2, 6)):
        problem = generated(seed, stages, batch, layers=stages + 2)
        for memory_bytes in np.geomspace(7e7, 1.5e8, 5).tolist():
            asked = with_memory(problem, memory_bytes)
            tables = tables_of(asked, range(stages))
            found = tight_sizes.tight_sizes("test", tables, Evaluator(asked), range(1, batch + 1), equal=equal)
            values[f"{seed}, {memory_bytes:.4g}"] = (
                [found.cuts, found.pairs] if isinstance(found, TightSizes) else [*astuple(found)]
            )
    recorded(**values)


def test_sizes_by_replays(recorded: Recorded) -> None:
    """Of the balanced partition: bounds of random sizes, and the fastest sizes that replays find, how many they are, and whether
    all were looked at."""
    values: dict[str, Any] = {}
    for seed, stages, batch in ((0, 3, 6), (1, 2, 8), (2, 4, 5)):
        problem = generated(seed, stages, batch, layers=stages + 2, slow=3.0)
        tables = tables_of(problem, range(stages))
        cuts = tuple(range(1, stages))
        unequal = unequal_problem(tables, cuts, range(1, batch + 1))
        bounds = replayed_sizes.SizeBounds(tables, unequal, cuts)
        forward, backward, again = np.random.default_rng(seed).integers(1, batch + 1, (3, 6, stages))
        found = replayed_sizes.replayed_sizes("test", tables, cuts, unequal, (), Evaluator(problem))
        assert found is not None
        values[str(seed)] = [
            bounds.forward(forward),
            bounds.backward(backward, again % 2),
            bounds.update,
            *(getattr(found, one.name) for one in fields(found) if one.name != "score"),
        ]
    recorded(**values)
