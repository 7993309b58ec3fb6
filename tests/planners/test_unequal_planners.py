"""Unequal planners: sizes for every stage on real problems, as plans that replay."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments.cli import main
from experiments.unequal_sizes.table_costs import program_of
from hardware_profiles import load_cluster
from planners import Request, Result, make_plan, run_planner
from planners.search.evaluator import BudgetSpent, Evaluator
from planners.unequal import (
    Compiled,
    FoundSizes,
    InfeasibleSizes,
    UnequalProblem,
    balanced_problem,
    exact_sizes,
    limited_problem,
    tables_of,
    unequal_plan,
    unequal_problem,
)
from planners.unequal.found_sizes import Report
from planners.unequal.planners import MOST_DURATIONS, SEARCHES, UnequalSizes, _bound
from planners.unequal.profiles import lower_bound
from planners.unequal.tables import blocks, candidate_sizes
from simulator import Problem, check_plan, load_workload, simulate
from simulator.engines import reference as engine
from simulator.workloads.synthetic import uniform_chain
from tests.chains import chain
from tests.planners.reasons import applicable_planners

NAMES = ("exact-unequal", "tidgap", "greedy-dp", "local-greedy", "best-equal")
BATCH = 8
"""Samples of the searched problems."""

KEYS = (
    "stage_forward_samples",
    "stage_backward_samples",
    "makespan_seconds",
    "sizes_lower_bound_seconds",
    "sizes_gap",
    "proven_optimal",
    "evaluations",
)


@pytest.fixture(scope="module")
def vgg() -> dict[bool, Problem]:
    """VGG-16 with 32 samples on four of eight V100s, activations stored (False) or recomputed (True)."""
    cluster = load_cluster("pipedream-b")
    return {again: Problem(load_workload("vgg16"), cluster, 32, recompute=again) for again in (False, True)}


@pytest.fixture(scope="module")
def found(vgg: dict[bool, Problem]) -> dict[tuple[bool, str], Result]:
    """Every search's answer for 4 stages."""
    request = Request(stages=4)
    return {
        (again, name): make_plan(name, replace(problem, batch=BATCH), request)
        for again, problem in vgg.items()
        for name in NAMES
    }


@pytest.mark.parametrize("again", [False, True])
def test_the_order_of_the_searches(found: dict[tuple[bool, str], Result], again: bool) -> None:
    """exact <= TiDGAP (seeded) <= greedy DP; exact and TiDGAP never slower than the best equal size; exact proves it."""
    seconds = {name: found[again, name].details["makespan_seconds"] for name in NAMES}
    assert seconds["exact-unequal"] <= seconds["tidgap"] <= seconds["greedy-dp"]  # type: ignore[operator]
    assert seconds["tidgap"] <= seconds["best-equal"]  # type: ignore[operator]
    assert seconds["exact-unequal"] <= seconds["local-greedy"]  # type: ignore[operator]
    proof = found[again, "exact-unequal"]
    assert proof.details["proven_optimal"]
    assert proof.details["sizes_lower_bound_seconds"] == proof.details["makespan_seconds"]
    assert "unequal micro-batch sizes" in proof.proof.space


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_plan_is_that_of_the_sizes(
    found: dict[tuple[bool, str], Result], vgg: dict[bool, Problem], again: bool, name: str
) -> None:
    """Stage k's micro-batches are f_k and g_k samples; the replay takes the model's makespan and the last update, no less."""
    problem, planned = replace(vgg[again], batch=BATCH), found[again, name]
    plan, details = planned.plan, planned.details
    check_plan(problem, plan)
    assert [stage.devices for stage in plan.stages] == [(0,), (1,), (2,), (3,)]
    for key, sizes in (
        ("stage_forward_samples", plan.forward_sizes),
        ("stage_backward_samples", plan.backward_sizes),
    ):
        held = sizes or (plan.microbatches,) * 4
        assert list(held) == [blocks(BATCH, size) for size in details[key]]  # type: ignore[attr-defined]
    seconds = float(details["makespan_seconds"])  # type: ignore[arg-type]
    calm = simulate(replace(problem, contention=False), plan, engine="recurrence")
    # links that run beside each other there are processes here, which take one block after the other
    assert calm.iteration_seconds <= seconds + 1e-3
    assert calm.iteration_seconds == pytest.approx(seconds, rel=0.02)
    assert calm.fits


def test_the_sizes_replay_to_the_makespan(vgg: dict[bool, Problem]) -> None:
    """The model's program on SimPy ends at the makespan that the exact method reports, to the last bit."""
    for problem in vgg.values():
        unequal = balanced_problem(tables_of(problem, (0, 1, 2, 3)))[1]
        plan = exact_sizes(unequal)
        timeline = engine.replay(program_of(unequal, plan.forward_sizes, plan.backward_sizes), contention=True)
        assert timeline.makespan_seconds == plan.makespan_seconds >= lower_bound(unequal)


def test_tables_are_those_of_the_layers(vgg: dict[bool, Problem]) -> None:
    """A stage's entry is the sum of its layers; a link's is the transfer less its latency; memory adds up to the network's."""
    problem = vgg[True]
    tables = tables_of(problem, (0, 1, 2))
    unequal = unequal_problem(tables, [10, 20], (1, 2))
    costs = Evaluator(problem).layer_costs
    for size in (1, 7, 32):
        assert unequal.forward[1, size] == pytest.approx(costs.seconds(1, size, "forward")[10:20].sum(), rel=1e-9)
        assert unequal.backward[2, size] == pytest.approx(costs.seconds(2, size, "backward")[20:].sum(), rel=1e-9)
        moved = size * costs.crossing_bytes(set(range(10)))
        latency, _ = problem.cluster.point_to_point(0, 1)
        transfer = problem.cluster.transfer_seconds(0, 1, moved)
        assert unequal.forward_link[0, size] == pytest.approx(transfer - latency, rel=1e-9)
    latencies = [problem.cluster.point_to_point(*ends)[0] for ends in ((0, 1), (1, 0), (1, 2), (2, 1))]
    update = costs.update_seconds(0, costs.parameters[:10].sum())
    assert unequal.fixed_seconds == pytest.approx(sum(latencies) + update)
    held = [tables.stage_bytes(*ends) for ends in tables.ranges([10, 20])]
    weights = costs.parameters.sum() * (2 * problem.element_bytes + problem.optimizer_bytes)
    assert sum(one.always for one in held) == pytest.approx(weights)
    assert sum(one.stash for one in held) == pytest.approx(costs.stashed_bytes.sum())
    assert (unequal.recomputation, unequal.forward[:, 0].tolist()) == ("always", [0.0] * 3)


def test_every_size_up_to_64_samples() -> None:
    """Candidates: all sizes of a batch up to 64, powers of two (and the batch) above, or as asked."""
    assert candidate_sizes(64) == tuple(range(1, 65))
    assert candidate_sizes(96) == (1, 2, 4, 8, 16, 32, 64, 96)
    assert candidate_sizes(96, "all") == tuple(range(1, 97))
    assert candidate_sizes(8, "powers-of-two") == (1, 2, 4, 8)
    with pytest.raises(ValueError, match="choices: all, powers-of-two"):
        candidate_sizes(8, "primes")


def test_partition_and_sizes_together_are_never_worse() -> None:
    """The nested search starts from the balanced partitions, so it ends no later than the exact sizes on one of them."""
    problem = Problem(uniform_chain(7), load_cluster("pipedream-a").take(3), 8, recompute=True)
    for candidates in (None, "powers-of-two"):
        request = Request(options={} if candidates is None else {"candidates": candidates})
        nested, balanced = (make_plan(name, problem, request) for name in ("unequal-nested", "exact-unequal"))
        assert float(nested.details["makespan_seconds"]) <= float(balanced.details["makespan_seconds"])  # type: ignore[arg-type]
    assert nested.details["proven_optimal"]  # among powers of two all 15 partitions were seen


@pytest.mark.parametrize("best", [1, 2, 3])
def test_the_number_of_stages_is_the_fastest(best: int) -> None:
    """Where it is not asked for: one where every output is large, two where one is small, three where all are."""
    sent = {1: [1e8] * 6, 2: [1e8, 1e8, 1.0, 1e8, 1e8, 1e8], 3: [1.0] * 6}[best]
    problem = Problem(chain([1e11] * 6, output_elements=sent), load_cluster("dapple-c").take(3), 6, recompute=True)
    for name in ("tidgap", "unequal-nested"):
        found = make_plan(name, problem)
        asked = {stages: make_plan(name, problem, Request(stages=stages)) for stages in (1, 2, 3)}
        seconds = {stages: one.outcome.iteration_seconds for stages, one in asked.items()}
        assert len(found.plan.stages) == min(seconds, key=seconds.__getitem__) == best
        assert found.outcome.iteration_seconds == seconds[best]


def test_more_stages_than_devices_are_refused(vgg: dict[bool, Problem]) -> None:
    """Of sixteen."""
    assert "17 stages are more than" in str(applicable_planners(vgg[False], Request(stages=17))["tidgap"])


@pytest.mark.parametrize("again", [False, True])
def test_memory_of_a_stage_is_that_of_the_replay(vgg: dict[bool, Problem], again: bool) -> None:
    """State, stash and what a block makes again are the bytes of the replay, which adds boundary tensors on their way."""
    tables, cuts = tables_of(vgg[again], (0, 1, 2, 3)), (10, 20, 31)
    sizes = (4, 16, 8, 1), (2, 16, 32, 8)
    outcome = simulate(vgg[again], unequal_plan("test", tables, cuts, *sizes))
    for ends, forward, backward, memory in zip(tables.ranges(cuts), *sizes, outcome.memory, strict=True):
        held = tables.stage_bytes(*ends)
        expected = held.recomputed(32, backward) if again or forward != backward else held.stored(32)
        assert (memory.bytes.sum(axis=1) - memory.bytes[:, -1]).max() == expected


def test_a_memory_limit_becomes_caps(vgg: dict[bool, Problem]) -> None:
    """The largest backward size that fits; where no forward pass is run again by default the whole batch's stash must."""
    candidates, cuts = (1, 2, 4, 8, 16, 32), (10, 20, 31)
    for again, problem in vgg.items():
        tables = tables_of(problem, (0, 1, 2, 3))
        held = [tables.stage_bytes(*ends) for ends in tables.ranges(cuts)]
        whole = [max(one.stored(32), one.recomputed(32, 32)) for one in held]
        assert limited_problem(tables, cuts, candidates, whole).backward_caps == (32,) * 4
        tight = [held[0].recomputed(32, 8), *whole[1:]]
        if again:
            assert limited_problem(tables, cuts, candidates, tight).backward_caps == (8, 32, 32, 32)
            tight[0] -= 1.0
            assert limited_problem(tables, cuts, candidates, tight).backward_caps == (4, 32, 32, 32)
        least = held[0].recomputed(32, 1) if again else held[0].stored(32)
        limited_problem(tables, cuts, candidates, [least, *whole[1:]])
        with pytest.raises(InfeasibleSizes, match="stage 0 does not fit into"):
            limited_problem(tables, cuts, candidates, [least - 1.0, *whole[1:]])


def test_the_command_prints_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """What the search says of its own model stands under `details`; bound and gap beside the plan mean what they always mean."""
    arguments = ["plan", "--workload", "alexnet", "--stages", "3", "--batch", "8", "--planner", "exact-unequal"]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    details = document["details"]
    assert set(KEYS) <= set(details)
    assert len(details["stage_forward_samples"]) == len(details["stage_backward_samples"]) == 3
    assert 0 < details["sizes_lower_bound_seconds"] <= details["makespan_seconds"]
    assert document["lower_bound_seconds"] <= document["iteration_seconds"]
    assert document["gap"] == document["iteration_seconds"] / document["lower_bound_seconds"] - 1
    assert not {*KEYS, "proven_optimal"} & {*document} - {"evaluations"}
    assert all(isinstance(sizes, list) for sizes in document["forward_sizes"])
    assert main(arguments) == 0
    assert "sizes of each stage: forward [" in capsys.readouterr().out


def test_a_bound_within_caps_is_none_for_what_they_cut_off(vgg: dict[bool, Problem]) -> None:
    """A cap of one stage is enough for that: the bound is then that of the problem without caps, which needs no search."""
    problem = vgg[False]
    tables = tables_of(problem, (0, 1, 2))
    free = unequal_problem(tables, [10, 20], (1, 2, 32))
    plan = FoundSizes((1,) * 3, (1,) * 3, 100.0, 100.0, 1, 0.0)
    bounds = {caps: _bound(tables, replace(free, backward_caps=caps), plan) for caps in (None, (32,) * 3, (32, 32, 1))}
    known = 100.0 + free.fixed_seconds
    assert bounds == {None: known, (32,) * 3: known, (32, 32, 1): lower_bound(free) + free.fixed_seconds}
    assert lower_bound(free) < 100.0
    fixed = replace(free, recomputation="always", backward_caps=(32, 32, 1))
    assert _bound(tables, fixed, plan) == known  # these caps are those of memory
    alone = replace(tables, problem=replace(problem, contention=False))
    assert _bound(alone, free, plan) <= lower_bound(free) + free.fixed_seconds


def test_a_batch_too_large_for_the_tables_is_refused_before_they_are_built(vgg: dict[bool, Problem]) -> None:
    """Batch times layers has a limit, which the reason states; the largest batch within it is taken."""
    problem = vgg[True]
    most = MOST_DURATIONS // len(problem.workload)
    applicable = applicable_planners(replace(problem, batch=most))
    refused = applicable_planners(replace(problem, batch=most + 1))
    for name in (*SEARCHES, "unequal-nested"):
        assert applicable[name] is None
        reason = refused[name]
        assert reason is not None
        assert f"{(most + 1) * len(problem.workload):,}, the limit is {MOST_DURATIONS:,}" in reason
        assert len(reason) < 250


@pytest.mark.parametrize("spent", [False, True])
def test_an_interrupt_ends_with_the_best_so_far(vgg: dict[bool, Problem], spent: bool) -> None:
    """A search that was interrupted and hands back its best: the outcome says so, and the plan is there. One whose nominal
    seconds are used up was not interrupted.
    """

    def interrupted(problem: UnequalProblem, rng: np.random.Generator, progress: Report) -> FoundSizes:
        if spent:
            with pytest.raises(BudgetSpent):
                progress(10**9, 1.0)
        sizes = (16,) * problem.stages
        seconds = float(Compiled(problem)([sizes], [sizes])[0])
        return FoundSizes(sizes, sizes, seconds, 0.0, 1, 0.0, interrupted=True)

    planner = UnequalSizes(Request(stages=4), "tidgap", interrupted)
    outcome = run_planner(planner, vgg[True], Evaluator(vgg[True], seconds=1.0), np.random.default_rng(0))
    assert outcome.interrupted != spent
    assert outcome.proof.reason.startswith("its nominal seconds are used up" if spent else "interrupted")
    assert outcome.outcome.fits
