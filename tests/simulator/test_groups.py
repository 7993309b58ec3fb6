"""Replicas that are tensor-parallel groups, and replicas that divide what ZeRO divides: rules, closed forms, engines."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import (
    Evaluations,
    InfeasiblePlanError,
    Layer,
    OpKind,
    Outcome,
    Plan,
    PlanCosts,
    Problem,
    Stage,
    Workload,
    check_plan,
    divisors,
    load_workload,
    simulate,
)
from simulator.plans.plan import Zero, flushes
from simulator.results.gantt_plots import gantt_rows
from simulator.workloads.language_models import Gpt
from simulator.workloads.layers import Split
from tests.simulator.strategies import UnitDevice, bits, plans, star_cluster

# ---- engines ---------------------------------------------------------------------------------------------------------


def divided(workload: Workload, splits: Sequence[Split], heavy: int) -> Workload:
    """A network whose layers a group divides as `splits` say, in blocks of two, of so many times the weights."""
    layers = [
        replace(
            one, split=split, parameters=heavy * one.parameters, undivided=one.parameters // 3, block=1 + number // 2
        )
        for number, (one, split) in enumerate(zip(workload.layers, splits, strict=True))
    ]
    return replace(workload, layers=tuple(layers))


@st.composite
def grouped_plans(draw: st.DrawFn) -> tuple[Problem, list[Plan]]:
    """Plans whose devices are replaced by groups, of equal or unlike sizes and kinds, which divide tokens, experts, and what ZeRO
    divides, where they may.
    """
    problem, several = draw(plans(2))
    rng = random.Random(draw(st.integers(0, 10**6)))
    first = len(problem.cluster.devices)
    most = draw(st.sampled_from((1, 2, 3)))
    context = draw(st.sampled_from((1, 1, 2, 3))) if several[0].slices == 1 else 1
    degrees = [most] * first if draw(st.booleans()) else [rng.randint(1, 3) for _ in range(first)]
    degrees = [degree * context for degree in degrees]
    begins = np.cumsum([0, *degrees]).tolist()
    accelerators = problem.cluster.devices
    devices = tuple(
        rng.choice(accelerators) if rng.random() < 0.2 else accelerators[one]
        for one in range(first)
        for _ in range(degrees[one])
    )
    cluster = star_cluster(begins[-1], bandwidth=draw(st.sampled_from((1e3, 1e5, 1e9))))
    cluster = replace(cluster, devices=devices, tensor_groups="cluster")
    heavy = draw(st.sampled_from((1, 2**25)))  # a layer of so many more weights is a unit of its own
    workload = divided(problem.workload, rng.choices(get_args(Split), k=len(problem.workload)), heavy)
    kinds = [one.kind for one in workload.layers[:-1]] + ["attention"]
    layers = [
        replace(one, kind=kind, causal_tokens=12 * (kind == "attention"), experts=12 * rng.randint(0, 1))
        for one, kind in zip(workload.layers, kinds, strict=True)
    ]
    workload = replace(workload, layers=(replace(layers[0], split="tokens", experts=12), *layers[1:]))
    problem = replace(problem, workload=workload, cluster=cluster, sequence_parallel=draw(st.booleans()))

    def stage(held: Stage) -> Stage:
        groups = [range(begins[device], begins[device + 1]) for device in held.devices]
        return Stage(held.layers, tuple(one for group in groups for one in group), tuple(map(len, groups)))

    most_zero = 0 if not flushes(several[0]) else 1 if several[0].replication != "split" else 3
    zero: Zero = draw(st.sampled_from(get_args(Zero)[: most_zero + 1]))
    divided_plans = [replace(one, stages=tuple(map(stage, one.stages)), zero=zero, context=context) for one in several]
    groups = math.gcd(*(context * count for one in divided_plans for count in one.replicas))
    expert = rng.choice(divisors(math.gcd(12, groups))) if several[0].replication == "split" else 1
    parts = [one for one in divisors(groups) if one > 1 and one % expert == 0 and zero]
    return problem, [replace(one, expert=expert, shard=rng.choice([0, *parts])) for one in divided_plans]


@settings(max_examples=12)
@given(grouped_plans())
def test_engines_and_evaluations_of_grouped_plans_agree(case: tuple[Problem, list[Plan]]) -> None:
    """SimPy, the compiled engines and, where replicas of a stage are alike, the evaluations have the same seconds and peaks."""
    problem, several = case
    evaluate = Evaluations(problem)
    for plan in (*several, several[0]):
        outcome, compiled = (simulate(problem, plan, engine=engine) for engine in ("simpy", "compiled"))
        assert bits(outcome.timeline.start, compiled.timeline.start)
        assert bits(outcome.timeline.end, compiled.timeline.end)
        found, fullest = evaluate(plan), outcome.fullest
        if found is None:
            assert any(len(set(one.degrees)) > 1 for one in plan.stages)
            continue
        assert (found.iteration_seconds, found.device) == (outcome.iteration_seconds, fullest.device)
        assert (found.peak_bytes, found.capacity_bytes) == (fullest.peak_bytes, fullest.capacity_bytes)
        assert evaluate.peak_bytes(plan) == {one.device: one.peak_bytes for one in outcome.memory}


# ---- closed forms ----------------------------------------------------------------------------------------------------

SPLITS: tuple[Split, ...] = ("columns", "rows", "columns", "rows")
CHAIN = Workload(
    "chain",
    tuple(Layer(f"layer{i}", "linear", 8.0, 1000, 4.0, 4.0, split=split) for i, split in enumerate(SPLITS)),
    ((0, 1), (1, 2), (2, 3)),
)
CLUSTER = replace(star_cluster(4, bandwidth=4.0), tensor_groups="cluster")
PAIRS = Plan("hand", "gpipe", (Stage((0, 1), (0, 1), (2,)), Stage((2, 3), (2, 3), (2,))), (2,))


def seconds_of(outcome: Outcome, kind: OpKind) -> list[float]:
    """What the ops of a kind take, by stage."""
    timeline = outcome.timeline
    rows = np.flatnonzero(timeline.kind == kind)
    order = rows[np.argsort(timeline.stage[rows])]
    return [float(seconds) for seconds in timeline.end[order] - timeline.start[order]]


def test_two_stages_of_two_devices_by_hand() -> None:
    """2 samples of 4 layers of 8 FLOP, 1 FLOP/s, 4 elements of 4 bytes between layers, links of 4 bytes/s.

    A product is 8 s forward on each of two devices. An all-reduce of 2·16 bytes between two is 8 s, a gather half of it. Stage 0
    reduces its output; backward it gathers the gradient that it receives, and has no input to reduce. Stage 1 gathers what it
    receives, reduces its output; backward its input's gradient. Between them each device sends its half: 4 s over own links.
    """
    outcome = simulate(Problem(CHAIN, CLUSTER, 2), PAIRS)
    assert seconds_of(outcome, OpKind.FORWARD) == [16.0 + 8.0, 16.0 + 8.0 + 4.0]
    assert seconds_of(outcome, OpKind.BACKWARD) == [32.0 + 4.0, 32.0 + 8.0]
    assert outcome.iteration_seconds == 24.0 + 4.0 + 28.0 + 40.0 + 4.0 + 36.0


def test_sequence_parallel_groups_scatter_and_gather_and_have_nothing_to_gather_at_boundaries() -> None:
    """As above: rows scatter forward and gather backward, columns the other way round, 4 s each; layer 0 has no input."""
    outcome = simulate(Problem(CHAIN, CLUSTER, 2, sequence_parallel=True), PAIRS)
    assert seconds_of(outcome, OpKind.FORWARD) == [16.0 + 4.0, 16.0 + 8.0]
    assert seconds_of(outcome, OpKind.BACKWARD) == [32.0 + 4.0, 32.0 + 8.0]
    assert outcome.iteration_seconds == 20.0 + 4.0 + 24.0 + 40.0 + 4.0 + 36.0


def test_sequence_parallel_groups_scatter_and_gather_at_rates_of_their_own() -> None:
    """At half of the rate 8 s each in place of 4; groups that all-reduce only gather what they receive in parts at it."""
    cluster = replace(CLUSTER, links=tuple(replace(link, gather=0.5) for link in CLUSTER.links))
    outcome = simulate(Problem(CHAIN, cluster, 2, sequence_parallel=True), PAIRS)
    assert seconds_of(outcome, OpKind.FORWARD) == [16.0 + 8.0, 16.0 + 16.0]
    assert seconds_of(simulate(Problem(CHAIN, cluster, 2), PAIRS), OpKind.FORWARD) == [24.0, 32.0]


def test_bytes_of_a_group_are_counted() -> None:
    """A sample: 16 bytes each way over the boundary; 2(t-1) times 16 in three all-reduces; (t-1) times 16 in two gathers."""
    assert simulate(Problem(CHAIN, CLUSTER, 2), PAIRS).bytes_per_sample == 32.0 + 3 * 2 * 16.0 + 2 * 16.0


def test_all_devices_of_a_group_hold_the_same_share() -> None:
    """Half of the weights, gradients and momentum; the input of rows is divided, that of columns whole."""
    outcome = simulate(Problem(CHAIN, CLUSTER, 2), PAIRS)
    assert [one.device for one in outcome.memory] == [0, 1, 2, 3]
    for one in outcome.memory:
        assert one.bytes[0].tolist() == [4000.0, 0.0, 4000.0, 4000.0, 0.0, 0.0, 0.0]
    costs = PlanCosts(Problem(CHAIN, CLUSTER, 2), PAIRS)
    assert costs.stash(1).kept == 16.0 + 16.0 / 2
    divided = PlanCosts(Problem(CHAIN, CLUSTER, 2, sequence_parallel=True), PAIRS)
    assert divided.stash(1).kept == 16.0 / 2 + 16.0 / 2


def test_a_group_is_as_slow_as_its_slowest_device() -> None:
    """One device of half the speed doubles the products, not the collectives."""
    slow = UnitDevice(rate=0.5, name="slow")
    cluster = replace(CLUSTER, devices=(CLUSTER.devices[0], slow, *CLUSTER.devices[2:]))
    outcome = simulate(Problem(CHAIN, cluster, 2), PAIRS)
    assert seconds_of(outcome, OpKind.FORWARD) == [32.0 + 8.0, 28.0]


def test_each_device_reduces_gradients_with_its_peers() -> None:
    """Two replicas of two devices: two rings of two at once, each over half of the weights; a lone network card carries both."""
    plan = Plan("hand", "gpipe", (Stage((0, 1, 2, 3), (0, 1, 2, 3), (2, 2)),), (2,))
    (bucket,) = PlanCosts(Problem(CHAIN, CLUSTER, 2), plan).buckets(0)
    assert bucket.seconds == 4 * 4000.0 / 2 / 4.0
    cards = tuple(replace(link, shared=f"card{number // 2}") for number, link in enumerate(CLUSTER.links))
    (shared,) = PlanCosts(Problem(CHAIN, replace(CLUSTER, links=cards), 2), plan).buckets(0)
    assert shared.seconds == 2 * bucket.seconds


def test_groups_of_unlike_sizes_pass_a_boundary_in_the_parts_of_the_smaller() -> None:
    """From one device to two, which gather: the sender's link carries all 32 bytes, in 8 s; then 4 s to gather."""
    stages = Stage((0, 1), (0,)), Stage((2, 3), (2, 3), (2,))
    costs = PlanCosts(Problem(CHAIN, CLUSTER, 2), replace(PAIRS, stages=stages))
    for ends in (((0, 0), (1, 0)), ((1, 0), (0, 0))):
        moved = costs.transfer(*ends, 2)
        assert (moved.seconds, moved.size_bytes) == (8.0, 32.0)
        assert sorted(moved.loads) == [0.5, 1.0]  # half of them over the link of each of the two
    assert (costs.group(0, 0).gathers, costs.group(1, 0).gathers) == ((False, False), (True, False))


# ---- ZeRO ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zero", "seconds", "held"),
    [
        (0, 10.0 + 20.0 + 40.0, [4000.0, 0.0, 4000.0, 8000.0, 0.0, 0.0, 0.0]),
        (1, 10.0 + 20.0 + 20.0 + 20.0, [4000.0, 0.0, 4000.0, 4000.0, 0.0, 0.0, 0.0]),
        (2, 10.0 + 20.0 + 20.0 + 20.0, [4000.0, 0.0, 2000.0, 4000.0, 0.0, 0.0, 4000.0]),
        (3, 20.0 + 10.0 + 20.0 + 20.0, [2000.0, 0.0, 2000.0, 4000.0, 0.0, 0.0, 8000.0]),
    ],
)
def test_what_replicas_divide_by_zero(zero: Zero, seconds: float, held: list[float]) -> None:
    """1,000 weights on two replicas, fp32 and Adam; forward 10 s, backward 20 s, all-reduce 40 s, a scatter or a gather 20 s.

    1 and 2: scatter behind the backward, gather behind the update; from 2 on whole gradients are a buffer. 3: gather before the
    forward, whose weights stay for the backward and are a buffer, too; nothing behind the update.
    """
    workload = Workload("one", (Layer("a", "linear", 5.0, 1000, 1.0, 0.0),), ())
    problem = Problem(workload, star_cluster(2, bandwidth=100.0), 4, optimizer="adam")
    outcome = simulate(problem, Plan("hand", "gpipe", (Stage((0,), (0, 1)),), (4,), zero=zero))
    assert outcome.iteration_seconds == seconds
    for one in outcome.memory:
        assert one.bytes[0].tolist() == held


@pytest.mark.parametrize(
    ("zero", "seconds", "held"),
    [
        (1, 20.0 + 10.0 + 20.0 + 20.0 + 20.0, [4000.0, 0.0, 4000.0, 4000.0, 0.0, 0.0, 0.0]),
        (2, 20.0 + 10.0 + 20.0 + 20.0 + 20.0, [4000.0, 0.0, 2000.0, 4000.0, 0.0, 0.0, 4000.0]),
        (3, 20.0 + 10.0 + 20.0 + 20.0 + 20.0, [2000.0, 0.0, 2000.0, 4000.0, 0.0, 0.0, 8000.0]),
    ],
)
def test_what_a_part_of_the_replicas_divides(zero: Zero, seconds: float, held: list[float]) -> None:
    """As `test_what_replicas_divide_by_zero`, on two pairs of replicas that are copies of each other: behind a scatter of 20 s
    in each pair, what a device has of it, half, is all-reduced with the other pair's in 20 s.
    """
    workload = Workload("one", (Layer("a", "linear", 5.0, 1000, 1.0, 0.0),), ())
    problem = Problem(workload, star_cluster(4, bandwidth=100.0), 8, optimizer="adam")
    plan = Plan("hand", "gpipe", (Stage((0,), (0, 1, 2, 3)),), (8,), zero=zero, shard=2)
    outcome = simulate(problem, plan)
    assert plan.notation == "4 s2"
    assert outcome.iteration_seconds == seconds
    for one in outcome.memory:
        assert one.bytes[0].tolist() == held
    scattered = 4 * (2000.0 + 2000.0)  # each device sends half of 4,000 bytes, and as much in the all-reduce of a half
    assert PlanCosts(problem, plan).scattered_bytes(0) == scattered
    assert PlanCosts(problem, plan).gathered_bytes(0) == 4 * 2000.0
    assert PlanCosts(problem, replace(plan, shard=0)).scattered_bytes(0) == 3 * 4000.0
    assert simulate(problem, replace(plan, shard=4)).iteration_seconds == (
        simulate(problem, replace(plan, shard=0)).iteration_seconds
    )


def test_experts_are_divided_inside_what_zero_divides() -> None:
    """Of four replicas that hold half of 1,000 weights of experts each, ZeRO over two divides nothing of them: each pair holds
    all, and the all-reduce with the other pair takes 2 · 1/2 · 2,000 bytes at 100 bytes/s.
    """
    workload = Workload("one", (Layer("a", "linear", 0.0, 1000, 1.0, 0.0, experts=2, split="tokens"),), ())
    problem = Problem(workload, star_cluster(4, bandwidth=100.0), 4)
    plan = Plan("hand", "gpipe", (Stage((0,), (0, 1, 2, 3)),), (4,), zero=2, expert=2, shard=2)
    (unit,) = PlanCosts(problem, plan).collectives(0).units
    assert unit.scatter == 20.0
    assert (unit.gather, unit.gather_bytes, unit.scatter_bytes) == (None, 1000 / 2 * 4, 1000 / 2 * 4)
    assert simulate(problem, plan).memory[0].bytes[0][2] == 2000.0


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("degrees", [(1, 2), (2, 1)])
def test_replicas_of_unlike_sizes_scatter_and_gather_the_parts_of_the_largest(
    zero: Zero, degrees: tuple[int, int]
) -> None:
    """Each of two devices with half of 1,000 weights meets the one that has them all, whose link both share: 20 s a way,
    whichever replica is the first.
    """
    workload = Workload("one", (Layer("a", "linear", 0.0, 1000, 1.0, 0.0, split="columns"),), ())
    stage = Stage((0,), (0, 1, 2), degrees)
    costs = PlanCosts(
        Problem(workload, star_cluster(3, bandwidth=100.0), 2), Plan("hand", "gpipe", (stage,), (2,), zero=zero)
    )
    found = costs.collectives(0)
    gathers = [found.update_gather.seconds] if found.update_gather else [unit.gather for unit in found.units]
    scatters = [one.scatter for one in found.units] or [one.seconds for one in found.buckets]
    assert (gathers, scatters) == ([20.0], [20.0])


def test_gradients_can_be_wider_than_weights() -> None:
    """fp16 weights of 2 bytes, gradients of 4 in memory and in all-reduces."""
    plan = Plan("hand", "gpipe", (Stage((0, 1, 2, 3), (0, 1)),), (2,))
    narrow = Problem(CHAIN, CLUSTER, 2, precision="fp16", optimizer="adam")
    wide = replace(narrow, gradient_bytes=4)
    assert (narrow.state_bytes, wide.state_bytes) == (16.0, 18.0)
    (own,), (twice,) = (PlanCosts(problem, plan).buckets(0) for problem in (narrow, wide))
    assert twice.seconds == 2 * own.seconds
    held = simulate(wide, plan).memory[0].bytes[0]
    assert held[:4].tolist() == [8000.0, 0.0, 16000.0, 48000.0]


# ---- what is refused, and files --------------------------------------------------------------------------------------

GPT = Problem(Gpt(2, 64, 8, 16, 100).workload(), CLUSTER, 4)


def gpt_plan(*stages: tuple[tuple[int, ...], tuple[int, ...]], **changes: object) -> Plan:
    """GPT's layers cut evenly over stages of these devices and degrees."""
    cuts = np.linspace(0, len(GPT.workload), len(stages) + 1).astype(int).tolist()
    held = [Stage(tuple(range(*cuts[i : i + 2])), *stage) for i, stage in enumerate(stages)]
    return replace(Plan("hand", "gpipe", tuple(held), (2, 2)), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "problem", "words"),
    [
        (
            gpt_plan(((0, 1, 2), (3,))),
            GPT,
            (
                "stage 0 of plan 'hand' has groups of 3, which does not divide the 8 key-value heads of "
                "layer 'block1.qkv'; choices: 1, 2, 4, 8"
            ),
        ),
        (
            gpt_plan(((0, 1, 2), (3,))),
            replace(GPT, workload=Gpt(2, 96, 12, 16, 100, key_value_heads=4).workload()),
            "does not divide the 4 key-value heads of layer 'block1.qkv'; choices: 1, 2, 4, 12$",
        ),
        (gpt_plan(((0, 1, 2), (2,))), GPT, "has replicas of 2 devices, 3 devices in all"),
        (
            gpt_plan(((0, 1), (2,)), ((1, 2), (2,))),
            GPT,
            (
                r"stage 1 of plan 'hand' has device 1 in group \(1, 2\), another stage in group \(0, 1\): "
                r"groups are the same or share no device"
            ),
        ),
        (
            gpt_plan(((0, 1), (2,))),
            replace(GPT, cluster=star_cluster(4)),
            (
                r"stage 0 of plan 'hand' has group \(0, 1\) on several servers, and cluster 'star' says "
                r"tensor_groups = 'server'; its servers have 1 devices"
            ),
        ),
        (
            gpt_plan(((0, 1), ()), schedule="pipedream", zero=1),
            GPT,
            "plan 'hand' divides states by zero 1, and schedule 'pipedream' updates without a flush; choices: 0",
        ),
        (
            gpt_plan(((0, 1), ()), replication="round-robin", zero=2),
            GPT,
            "zero 2 of plan 'hand' needs replicas that split every micro-batch, these take turns; choices: 0, 1",
        ),
        (gpt_plan(((0, 1), ()), shard=2), GPT, "shard 2 .* ZeRO divides, and zero is 0; choices: 0"),
        (
            gpt_plan(((0, 1), ()), ((2,), ()), zero=1, shard=3),
            GPT,
            (
                r"shard 3 of plan 'hand' must divide the groups \(replicas × context\) of every stage that "
                r"has several, and be a multiple of expert 1; choices: 0, 2"
            ),
        ),
        (
            gpt_plan(((0, 1), ()), zero=1, shard=1),
            GPT,
            (
                r"shard 1 of plan 'hand' must divide the groups \(replicas × context\) of every stage that "
                r"has several, and be a multiple of expert 1; choices: 0, 2"
            ),
        ),
    ],
)
def test_plans_that_no_group_can_run_are_refused(plan: Plan, problem: Problem, words: str) -> None:
    """One line that names the stage, the rule and the choices."""
    with pytest.raises(InfeasiblePlanError, match=words):
        check_plan(problem, plan)


def test_a_network_that_no_group_divides_is_refused() -> None:
    """Its layers do not say how."""
    image = Problem(load_workload("alexnet"), CLUSTER, 4)
    plan = Plan("hand", "gpipe", (Stage(tuple(range(len(image.workload))), (0, 1), (2,)),), (4,))
    with pytest.raises(
        InfeasiblePlanError,
        match="plan 'hand' has groups of devices, and no layer of workload 'alexnet' says how a group divides it",
    ):
        check_plan(image, plan)


def test_notation_tells_replicas_and_degrees() -> None:
    """`2t2`: two replicas of two devices; unlike groups one by one; groups of one device are none."""
    assert gpt_plan(((0, 1, 2, 3), (2, 2))).notation == "2t2"
    assert gpt_plan(((0,), ()), ((1, 2, 3), (2, 1))).notation == "1-t2+t1"
    assert gpt_plan(((0, 1), (1, 1))) == gpt_plan(((0, 1), ()))
    with pytest.raises(ValueError, match="zero 4 is unknown; choices: 0, 1, 2, 3"):
        gpt_plan(((0, 1), ()), zero=4)


def test_figures_and_tables_name_all_devices_of_a_group() -> None:
    """A row of the chart stands for a group; the table says how many devices each has; memory is told of every device."""
    outcome = simulate(Problem(CHAIN, CLUSTER, 2), PAIRS)
    rows = gantt_rows(outcome.timeline, groups=PAIRS.groups)
    assert [row.label for row in rows] == ["stage 0 (GPUs 0–1)", "stage 1 (GPUs 2–3)"]
    assert [row[2] for row in outcome.tables()[0].rows] == ["0-1 by 2", "2-3 by 2"]
