"""Devices that divide the tokens of samples, and those that divide experts: seconds and bytes by hand, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardware_profiles import Phase, Work, load_cluster, reduce_seconds
from simulator import (
    InfeasiblePlanError,
    Layer,
    LayerCosts,
    OpKind,
    Outcome,
    Parallelism,
    Plan,
    PlanCosts,
    PlanFile,
    Problem,
    Stage,
    StagePlaces,
    Workload,
    check_plan,
    load_workload,
    simulate,
)
from simulator.plans.plan import Zero
from tests.simulator.strategies import star_cluster

PHASES: tuple[Phase, ...] = ("forward", "input_gradient")

CLUSTER = replace(star_cluster(4, bandwidth=4.0), tensor_groups="cluster")

ATTENTION = Workload(
    "attention",
    (
        Layer("qkv", "linear", 8.0, 1000, 24.0, 8.0, split="columns"),
        Layer("attention", "attention", 16.0, 0, 8.0, 24.0, split="heads", heads=2, causal_tokens=8),
        Layer("out", "linear", 8.0, 1000, 8.0, 8.0, split="rows"),
    ),
    ((0, 1), (1, 2)),
)
EXPERTS = Workload(
    "experts",
    (
        Layer("dispatch", "elementwise", 8.0, 100, 16.0, 0.0, split="tokens"),
        Layer("up", "linear", 8.0, 4000, 32.0, 16.0, split="columns", experts=4),
        Layer("down", "linear", 8.0, 4000, 16.0, 32.0, split="rows", experts=4),
        Layer("combine", "elementwise", 8.0, 0, 8.0, 16.0, split="tokens"),
    ),
    ((0, 1), (1, 2), (2, 3)),
)


def stage(workload: Workload, devices: int, degree: int = 1) -> Stage:
    """All layers on the first devices, in replicas of so many."""
    return Stage(tuple(range(len(workload))), tuple(range(devices)), (degree,) * (devices // degree))


def plan(workload: Workload, devices: int, degree: int = 1, **changes: object) -> Plan:
    """One stage on the first devices, for two samples at once."""
    return replace(Plan("hand", "gpipe", (stage(workload, devices, degree),), (2,)), **changes)  # type: ignore[arg-type]


def seconds_of(outcome: Outcome, kind: OpKind) -> float:
    """What the ops of a kind take, one after the other, on the first replica."""
    timeline = outcome.timeline
    rows = (timeline.kind == kind) & (timeline.replica == 0)
    return float((timeline.end[rows] - timeline.start[rows]).sum())


# ---- exchanges -------------------------------------------------------------------------------------------------------


def test_an_exchange_sends_each_other_device_an_equal_part() -> None:
    """Of 64 bytes each of four devices sends three parts of 16 at 4 bytes/s; a card that two share carries both."""
    assert reduce_seconds(CLUSTER.collectives.alltoall_rates(range(4)), 64.0) == 3 * 16.0 / 4.0
    assert CLUSTER.collectives.alltoall_rates((2,)) == ()
    cards = tuple(replace(link, shared=f"card{number // 2}") for number, link in enumerate(CLUSTER.links))
    shared = replace(CLUSTER, links=cards)
    assert reduce_seconds(shared.collectives.alltoall_rates((0, 2)), 64.0) == 32.0 / 4.0
    assert reduce_seconds(shared.collectives.alltoall_rates((0, 2), (1, 3)), 64.0) == 2 * 32.0 / 4.0


# ---- context ---------------------------------------------------------------------------------------------------------


def test_context_divides_tokens_and_gathers_keys_and_values() -> None:
    """2 samples of 32 FLOP on two devices: 32 s forward, 64 s backward. Of 24 elements that attention reads 16 are keys and
    values: 16 s to gather 2 · 16 · 4 bytes before either pass, and as much to scatter their gradients. All weights: 2000 s.
    """
    outcome = simulate(Problem(ATTENTION, CLUSTER, 2), plan(ATTENTION, 2, 2, context=2))
    assert seconds_of(outcome, OpKind.FORWARD) == 32.0 + 16.0
    assert seconds_of(outcome, OpKind.BACKWARD) == 64.0 + 32.0
    assert seconds_of(outcome, OpKind.REDUCE) == 2000 * 4 / 4.0
    again = simulate(Problem(ATTENTION, CLUSTER, 2, recompute="attention"), plan(ATTENTION, 2, 2, context=2))
    assert seconds_of(again, OpKind.BACKWARD) == 96.0 + 16.0 + 16.0


def test_context_divides_what_is_kept_and_no_weights() -> None:
    """Half of the 40 elements of each sample; the weights, gradients and momentum of both layers."""
    problem = Problem(ATTENTION, CLUSTER, 2)
    outcome = simulate(problem, plan(ATTENTION, 2, 2, context=2))
    assert PlanCosts(problem, outcome.plan).stash(0).kept == 4 * 40.0 / 2
    assert outcome.memory[1].bytes[0][:4].tolist() == [8000.0, 0.0, 8000.0, 8000.0]


def test_tensor_parallel_groups_gather_their_own_heads() -> None:
    """Two groups of two for the parts of the context: a device's heads have half of the keys and values, and of the products."""
    alone, both = (
        simulate(Problem(ATTENTION, CLUSTER, 2), plan(ATTENTION, degree, degree, context=2)) for degree in (2, 4)
    )
    reduced = 2 * 4.0 * 4 / 4.0  # the sum that `out` makes: 4 elements of each of two samples
    assert seconds_of(both, OpKind.FORWARD) == seconds_of(alone, OpKind.FORWARD) / 2 + reduced
    assert both.plan.notation == "1t2c2"


def test_zero_divides_among_replicas_and_parts_of_the_context() -> None:
    """Two replicas of two parts: a quarter of the momentum on each device."""
    found = simulate(Problem(ATTENTION, CLUSTER, 2), plan(ATTENTION, 4, 2, context=2, zero=1))
    assert {one.bytes[0][3] for one in found.memory} == {8000.0 / 4}


def test_a_boundary_is_sent_in_parts() -> None:
    """Each of four devices sends a quarter of 8 elements of two samples; the two of a tensor-parallel group gather their half."""
    cluster = replace(star_cluster(8, bandwidth=4.0), tensor_groups="cluster")
    stages = (
        Stage((0, 1, 2), tuple(range(4)), (4,)),
        Stage((3, 4, 5), tuple(range(4, 8)), (4,)),
    )
    twice = replace(
        ATTENTION,
        layers=tuple(replace(one, name=f"{one.name}{i}") for i in range(2) for one in ATTENTION.layers),
        edges=tuple((i, i + 1) for i in range(5)),
    )
    costs = PlanCosts(Problem(twice, cluster, 2), Plan("hand", "gpipe", stages, (2,), context=2))
    assert costs.transfer((0, 0), (1, 0), 2).seconds == 2 * 8 * 4 / 4 / 4.0
    first, second = (costs.seconds(OpKind.FORWARD, one, 0, np.array([2]))[0] for one in range(2))
    assert second - first == 2 * 8 / 2 * 4 / 2 / 4.0


# ---- experts ---------------------------------------------------------------------------------------------------------


def test_experts_are_divided_and_tokens_exchanged() -> None:
    """A sample of 32 FLOP on each of two replicas: 32 s forward. What enters experts and what leaves them, 64 bytes each, is
    exchanged: 8 s each in either pass. The 100 weights that are no expert's are reduced, the others, all different, are not.
    """
    outcome = simulate(Problem(EXPERTS, CLUSTER, 2), plan(EXPERTS, 2, expert=2))
    assert seconds_of(outcome, OpKind.FORWARD) == 32.0 + 2 * 8.0
    assert seconds_of(outcome, OpKind.BACKWARD) == 64.0 + 2 * 8.0
    assert seconds_of(outcome, OpKind.REDUCE) == 100 * 4 / 4.0
    assert outcome.memory[0].bytes[0][:4].tolist() == [4 * 4100.0, 0.0, 4 * 4100.0, 4 * 4100.0]
    assert outcome.plan.notation == "2 e2"


def test_gathers_and_exchanges_have_figures_of_their_own() -> None:
    """At half of an all-reduce's rate keys and values take 32 s to gather, each of two exchanges 16 s."""
    cluster = replace(CLUSTER, links=tuple(replace(link, gather=0.5) for link in CLUSTER.links))
    outcome = simulate(Problem(ATTENTION, cluster, 2), plan(ATTENTION, 2, 2, context=2))
    assert seconds_of(outcome, OpKind.FORWARD) == 32.0 + 32.0
    assert seconds_of(simulate(Problem(EXPERTS, cluster, 2), plan(EXPERTS, 2, expert=2)), OpKind.FORWARD) == 32.0 + 32.0


def test_replicas_that_divide_states_scatter_at_the_rate_of_gathers() -> None:
    """At half of an all-reduce's rate a scatter of 8100 weights between two takes as long as an all-reduce."""
    cluster = replace(CLUSTER, links=tuple(replace(link, gather=0.5) for link in CLUSTER.links))
    for zero in (0, 1):
        costs = PlanCosts(Problem(EXPERTS, cluster, 2), plan(EXPERTS, 2, zero=zero))
        (bucket,) = costs.buckets(0)
        assert bucket.seconds == 8100.0
        gather = costs.collectives(0).update_gather
        assert (gather.seconds if gather else 0.0) == 8100.0 * zero


def test_replicas_of_the_same_experts_reduce_their_gradients() -> None:
    """Of four replicas the first and the third hold the same experts: 4000 weights in a ring of two, 100 in one of four."""
    costs = PlanCosts(Problem(EXPERTS, CLUSTER, 4), plan(EXPERTS, 4, expert=2, microbatches=(4,)))
    (bucket,) = costs.buckets(0)
    assert bucket.seconds == 1.5 * 100 * 4 / 4.0 + 4000 * 4 / 4.0


@pytest.mark.parametrize(("devices", "context", "expert"), [(4, 1, 2), (8, 2, 4)])
def test_every_device_has_a_place_in_one_ring_of_its_experts(devices: int, context: int, expert: int) -> None:
    """As many rings as parts of the experts, for each part of the context; devices of a ring hold the same weights of experts."""
    problem = Problem(EXPERTS, replace(star_cluster(devices), tensor_groups="cluster"), devices)
    places = StagePlaces(stage(EXPERTS, devices, context), problem, context, expert)
    assert sorted(device for ring in places.expert_rings for device in ring) == list(range(devices))
    assert {len(ring) for ring in places.expert_rings} == {devices // expert}


@pytest.mark.parametrize(("zero", "category", "elements"), [(1, 3, 8100 / 4), (2, 2, 8100 / 4), (3, 0, 8100 / 4)])
def test_zero_divides_all_experts_among_all_replicas(zero: Zero, category: int, elements: float) -> None:
    """8100 weights in all: whatever part of the experts a replica has, a quarter of them where they are divided."""
    for expert in (1, 2, 4):
        found = simulate(Problem(EXPERTS, CLUSTER, 4), plan(EXPERTS, 4, expert=expert, microbatches=(4,), zero=zero))
        assert {one.bytes[0][category] for one in found.memory} == {4 * elements}


def test_bytes_of_exchanges_and_gathers_are_counted() -> None:
    """A sample: half of 64 bytes in four exchanges and 800 bytes of gradients for two; 64 bytes of keys and values, gathered
    twice and scattered once, and 8000 bytes of gradients.
    """
    experts = simulate(Problem(EXPERTS, CLUSTER, 2), plan(EXPERTS, 2, expert=2))
    assert experts.bytes_per_sample == 4 * 32.0 + 2 * 400.0 / 2
    context = simulate(Problem(ATTENTION, CLUSTER, 2), plan(ATTENTION, 2, 2, context=2))
    assert context.bytes_per_sample == 3 * 64.0 + 2 * 8000.0 / 2


def test_shares_of_a_published_network() -> None:
    """DeepSeek-V2, its experts on eight: an eighth of their weights, all of the others; the work of a token is the same."""
    problem = Problem(load_workload("deepseek-v2", sequence=4096), CLUSTER, 8)
    whole, part = LayerCosts(problem), LayerCosts(problem).at(Parallelism(expert=8))
    experts = whole.expert_parameters.sum()
    assert experts == 59 * 160 * 3 * 5120 * 1536
    assert part.parameters.sum() == whole.parameters.sum() - experts * 7 / 8
    assert sum(work.flop for work in part.works) == sum(work.flop for work in whole.works)


# ---- what is refused, and files --------------------------------------------------------------------------------------


def test_a_stage_without_experts_may_have_fewer_devices_than_they_are_divided_among() -> None:
    """Two replicas in front of four that have an expert each: they reduce what they hold as if nobody had experts."""
    problem = Problem(EXPERTS, replace(star_cluster(6, bandwidth=4.0), tensor_groups="cluster"), 8)
    stages = Stage((0,), (0, 1)), Stage((1, 2, 3), (2, 3, 4, 5))
    plans = [Plan("hand", "1f1b", stages, (4, 4), zero=1, expert=expert) for expert in (1, 4)]
    alone, divided = (PlanCosts(problem, one) for one in plans)
    assert divided.collectives(0) == alone.collectives(0)
    assert divided.collectives(1) != alone.collectives(1)
    assert simulate(problem, plans[1]).iteration_seconds > 0


@pytest.mark.parametrize(
    ("workload", "wrong", "words"),
    [
        (
            ATTENTION,
            plan(ATTENTION, 2, context=2),
            (
                "context 2 of plan 'hand' needs replicas of as many devices, or a multiple of them; stage 0 "
                "has one each; choices: 1"
            ),
        ),
        (
            ATTENTION,
            plan(ATTENTION, 2, context=2, stages=(Stage((0, 1), (0, 1), (2,)), Stage((2,), (2,)))),
            (
                "context 2 of plan 'hand' needs replicas of as many devices, or a multiple of them; stage 1 "
                "has one each; choices: 1"
            ),
        ),
        (ATTENTION, plan(ATTENTION, 2, context=0), "^context 0 of plan 'hand' must be at least 1$"),
        *(
            (
                ATTENTION,
                plan(ATTENTION, 2, stages=(Stage((0, 1, 2), (0, 1), degrees),)),
                f"^stage 0 of plan 'hand' has replicas of {', '.join(map(str, degrees))} devices, 2 devices in all$",
            )
            for degrees in ((3,), (0, 2), (2, 1), (1, 1, 1))
        ),
        (
            ATTENTION,
            plan(ATTENTION, 3, 3, context=2),
            "stage 0 of plan 'hand' has groups of 3 devices, which context 2 does not divide; choices: 1, 3",
        ),
        *(
            (
                replace(ATTENTION, layers=tuple(replace(one, causal_tokens=tokens) for one in ATTENTION.layers)),
                plan(ATTENTION, 2, 2, context=2),
                f"workload 'attention' has samples of {tokens} tokens, which twice 2 does not divide; choices: {choices}$",
            )
            for tokens, choices in ((6, "1, 3"), (9, "1"))
        ),
        (
            ATTENTION,
            plan(ATTENTION, 2, 2, context=0),
            "stage 0 of plan 'hand' has groups of 2 devices, which context 0 does not divide; choices: 1, 2",
        ),
        (
            ATTENTION,
            plan(ATTENTION, 2, 2, context=2, schedule="seq1f1b", options=(("slices", 2),)),
            "^context 2 of plan 'hand' divides samples that schedule 'seq1f1b' cuts into slices; choices: 1$",
        ),
        (
            EXPERTS,
            plan(EXPERTS, 2, 2, context=2),
            "context 2 of plan 'hand': workload 'experts' has no context parallelism: it has no causal attention",
        ),
        (
            ATTENTION,
            plan(ATTENTION, 2, expert=2),
            "expert 2 of plan 'hand': workload 'attention' has no layers of routed experts; choices: 1",
        ),
        (
            EXPERTS,
            plan(EXPERTS, 3, expert=3),
            "expert 3 of plan 'hand': workload 'experts' has experts that this does not divide; choices: 1, 2, 4",
        ),
        (
            EXPERTS,
            plan(EXPERTS, 2, expert=4),
            (
                r"expert 4 of plan 'hand' does not divide the 2 groups \(replicas × context\) of stage 0; "
                r"choices: 1, 2"
            ),
        ),
        (
            EXPERTS,
            plan(EXPERTS, 2, expert=2, replication="round-robin"),
            "expert 2 of plan 'hand' needs replicas that split every micro-batch, these take turns; choices: 1",
        ),
    ],
)
def test_plans_that_cannot_divide_tokens_or_experts_are_refused(workload: Workload, wrong: Plan, words: str) -> None:
    """One line that names the stage, the rule and the choices."""
    with pytest.raises(InfeasiblePlanError, match=words) as caught:
        check_plan(Problem(workload, CLUSTER, 2), wrong)
    assert "\n" not in str(caught.value)


def test_a_context_may_span_servers_where_its_tensor_parallel_groups_may_not() -> None:
    """Each part of the context is a group of its own."""
    problem = Problem(ATTENTION, star_cluster(4, bandwidth=4.0), 2)
    check_plan(problem, plan(ATTENTION, 2, 2, context=2))
    with pytest.raises(
        InfeasiblePlanError,
        match=(
            r"stage 0 of plan 'hand' has group \(0, 1\) on several servers, and cluster 'star' says "
            r"tensor_groups = 'server'; its servers have 1 devices"
        ),
    ):
        check_plan(problem, plan(ATTENTION, 4, 4, context=2))


def test_a_file_says_context_and_experts() -> None:
    """What is written is read again, with groups and ZeRO; a plan without says nothing of them."""
    problem = Problem(load_workload("mixtral-8x7b", sequence=4096), load_cluster("dgx-a100:1"), 4, gradient_bytes=4)
    file = PlanFile(problem, plan(problem.workload, 8, 2, context=2, expert=8, microbatches=(4,), zero=1))
    text = file.to_json()
    assert PlanFile.from_json(text) == file
    assert text.count('"context": 2') == text.count('"expert": 8') == text.count('"degrees": [2, 2, 2, 2]') == 1
    assert '"context"' not in PlanFile(problem, plan(problem.workload, 8, microbatches=(4,))).to_json()


def test_a_device_with_several_experts_puts_exchanged_tokens_into_their_order() -> None:
    """What goes in is read and written once more in each direction, and what comes out is put back; none where each has one."""
    layers = tuple(replace(layer, output_elements=2.0**20 * layer.output_elements) for layer in EXPERTS.layers)
    problem = Problem(replace(EXPERTS, layers=layers), load_cluster("dgx-a100:1").take(4), 2, precision="fp16")

    device = problem.cluster.devices[0]
    sort = device.seconds(Work("elementwise", 0.0, 2.0**24, 2.0**24, 0), 2, "forward", "fp16")

    def beside(expert: int, phase: Phase) -> list[float]:
        costs = LayerCosts(problem).at(Parallelism(expert=expert))
        own = [device.seconds(work, 2, phase, "fp16") for work in costs.works]
        return (costs.kernel_seconds(0, 2, phase) - own).tolist()

    for phase in PHASES:
        assert beside(2, phase) == pytest.approx([0.0, sort, sort, 0.0], abs=1e-15)
    assert beside(2, "weight_gradient") == beside(4, "forward") == beside(1, "forward") == [0.0] * 4
