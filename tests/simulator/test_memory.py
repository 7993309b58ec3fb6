"""Tests of `simulator.memory`: bytes over time on small plans, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import (
    CATEGORIES,
    Communication,
    Engine,
    InfeasiblePlanError,
    LayerCosts,
    OpKind,
    Outcome,
    Plan,
    PlanCosts,
    Problem,
    Stage,
    Workload,
    from_text,
    lower,
    simulate,
)
from simulator.engines.recurrence import replay
from simulator.engines.timeline import Timeline
from simulator.memory.changes import parts_of, whole_part
from simulator.memory.over_time import memory_over_time
from simulator.workloads.transformer import Transformer
from tests.chains import chain, measured_chain
from tests.simulator.strategies import chain_cluster

STRAIGHT = (Stage((0,), (0,)), Stage((1,), (1,)))


def problem(**changes: Any) -> Problem:
    """Two layers of 1 s per sample (B = 2 s): 10 and 20 weights, 16 bytes between them (1 s), stashes of 12 and 20 bytes."""
    workload = chain([1.0, 1.0], parameters=[10, 20], output_elements=[4.0, 2.0], stashed_elements=[3.0, 5.0])
    return replace(Problem(workload, chain_cluster(2, bandwidth=16.0), batch=2), **changes)


def run(
    stages: tuple[Stage, ...] = STRAIGHT, schedule: str = "gpipe", engine: Engine = "simpy", **changes: Any
) -> Outcome:
    """Two micro-batches of one sample."""
    return simulate(problem(**changes), Plan("hand", schedule, stages, (1, 1)), engine=engine)


def parts(outcome: Outcome, device: int) -> dict[str, float]:
    """What the peak consists of, without what is not there."""
    return {name: size for name, size in outcome.memory[device].peak_parts.items() if size}


def at(outcome: Outcome, device: int, time: float) -> dict[str, float]:
    """Bytes held just after a moment."""
    memory = outcome.memory[device]
    row = memory.bytes[np.searchsorted(memory.times, time, side="right") - 1]
    return {name: size for name, size in zip(CATEGORIES, row.tolist(), strict=True) if size}


@pytest.mark.parametrize("engine", ["simpy", "recurrence"])
def test_peak_of_a_two_stage_pipeline(engine: Engine) -> None:
    """Device 0 peaks at 1-3 with 2 stashes and a tensor that it sends, device 1 at 3-6 with 2 stashes.

    Stage 1 runs F 2-3 3-4, B 4-6 6-8; gradients travel 6-7 and 8-9; stage 0 runs B 7-9 9-11.
    """
    outcome = run(engine=engine)
    assert outcome.timeline.makespan_seconds == 11.0
    buffers = [0, 16, 16, 0, 0, 0, 16, 0, 16, 0, 0]  # of activations and gradients on their way, at both ends
    assert [[at(outcome, device, t + 0.5).get("buffers", 0) for t in range(11)] for device in (0, 1)] == [buffers] * 2
    stashes = [at(outcome, 0, t + 0.5).get("activations", 0) for t in range(12)]
    assert stashes == [12, *[24] * 8, 12, 12, 0]
    assert parts(outcome, 0) == {"weights": 40, "gradients": 40, "optimizer": 40, "activations": 24, "buffers": 16}
    assert parts(outcome, 1) == {"weights": 80, "gradients": 80, "optimizer": 80, "activations": 40}
    assert [device.peak_bytes for device in outcome.memory] == [160.0, 280.0]


def test_a_tensor_that_waits_keeps_its_buffer() -> None:
    """The activation of micro-batch 1 leaves at 2 and arrives at 3: GPipe uses it at once, 1F1B after the B of 3-5, at 5.

    The gradient of that B travels at 5-6.
    """
    waiting = run(schedule="1f1b")
    assert [at(waiting, 1, t + 0.5).get("buffers", 0) for t in range(6)] == [0, 16, 16, 16, 16, 16]


@pytest.mark.parametrize(
    ("communication", "gradients"), [("overlapped", [3, 4, 2, 0]), ("send-blocking", [3, 1, 2, 0])]
)
def test_a_tensor_that_several_ops_use_leaves_its_buffer_sample_by_sample(
    communication: Communication, gradients: list[int]
) -> None:
    """Eight samples arrive at once for ops of 3 and 5; gradients of 5 and 3 for ops of 2, whose last three samples come at the
    second op where the device computes while it sends, else at the third: what waits is what has left and is not yet begun.
    """
    plan = Plan("hand", "gpipe", STRAIGHT, (8,), forward_sizes=((8,), (3, 5)), backward_sizes=((2,) * 4, (5, 3)))
    outcome = simulate(problem(batch=8, communication=communication), plan)
    timeline = outcome.timeline
    for stage, kind, waiting in (1, OpKind.FORWARD, [5, 0]), (0, OpKind.BACKWARD, gradients):
        starts = timeline.start[(timeline.stage == stage) & (timeline.kind == kind)].tolist()
        assert [at(outcome, stage, start).get("buffers", 0.0) for start in starts] == [16.0 * one for one in waiting]


def test_recomputation_keeps_the_input_only() -> None:
    """The first stage keeps no stash (its input is the data), the second 16 bytes per sample; backward makes the stash again.

    B takes 3 s: stage 1 runs B 4-7 7-10, stage 0 8-11 11-14.
    """
    outcome = run(recompute=True)
    assert outcome.timeline.makespan_seconds == 14.0
    assert at(outcome, 1, 3.5)["activations"] == 32
    assert [at(outcome, 1, t + 0.5).get("workspace", 0) for t in (3, 4, 6, 7, 9, 10)] == [0, 20, 20, 20, 20, 0]
    assert parts(outcome, 0) == {"weights": 40, "gradients": 40, "optimizer": 40, "workspace": 12, "buffers": 16}
    assert [device.peak_bytes for device in outcome.memory] == [120.0 + 28.0, 240.0 + 52.0]


def test_an_input_gradient_frees_what_the_weight_gradient_does_not_need() -> None:
    """Stage 1 keeps 20 bytes per sample, of which the weight gradient needs its input, 16; stage 0 its 12, the network's input.

    Two samples: stage 1 runs F 4-6, I 6-8, W 8-10; stage 0 F 0-2, I 10-12, W 12-14.
    """
    own = Plan("hand", "split", STRAIGHT, (2,), order=("0F0 0I0 0W0", "1F0 1I0 1W0"))
    outcome = simulate(problem(batch=2), own)
    held = [[at(outcome, device, t + 0.5).get("activations", 0) for t in range(14)] for device in (0, 1)]
    assert held == [[24] * 14, [0] * 4 + [40, 40, 40, 40, 32, 32, 0, 0, 0, 0]]


def kept_for_weights(workload: Workload) -> dict[str, float]:
    """Elements that each layer's weight gradient needs, of those that have any."""
    costs = LayerCosts(Problem(workload, chain_cluster(1), 1, precision="fp16"))
    pairs = zip(workload.layers, (costs.weight_stashed_bytes / 2).tolist(), strict=True)
    return {layer.name: elements for layer, elements in pairs if elements}


def test_weight_gradients_need_the_inputs_of_layers_with_weights() -> None:
    """A block of 16 tokens and 8 features keeps six inputs of 8 or 32 features a token for them, of 2 norms and 4 projections;
    softmax, masks and GELU's input go with the input gradient, and an embedding's lookup keeps nothing."""
    needed = kept_for_weights(Transformer(1, 8, 2, sequence=16, vocabulary=10).workload())
    sizes = {name.removeprefix("block1."): size / 16 for name, size in needed.items()}
    assert sizes == {
        "norm1": 8, "qkv": 8, "projection": 8, "norm2": 8, "mlp_up": 8, "mlp_down": 32, "final_norm": 8, "head": 8
    }  # fmt: skip


def test_a_layer_measured_with_its_full_backward_is_split_by_its_kind() -> None:
    """Inputs are told by the graph: 16 of 20 bytes; the first layer's is its whole stash; without weights there is none."""
    network = measured_chain([1.0] * 3, [2.0] * 3, parameters=[5, 5, 0], output_elements=[4.0, 5.0, 6.0])
    costs = LayerCosts(Problem(network, chain_cluster(1), 1))
    assert costs.stashed_bytes.tolist() == [16.0, 20.0, 24.0]
    assert costs.weight_stashed_bytes.tolist() == [16.0, 16.0, 0.0]


def test_attention_alone_that_recomputes_keeps_its_input() -> None:
    """Stage 1 stashes 20 bytes per sample, 16 of them its input: 4 come back with its backward, which takes 1 s more a sample.

    Two samples a micro-batch: F 4-6, B 6-12.
    """
    network = chain([1.0, 1.0], parameters=[10, 0], output_elements=[4.0, 2.0], stashed_elements=[3.0, 5.0])
    first, second = network.layers
    attention = replace(network, layers=(first, replace(second, kind="attention")))
    for whole, own in (("attention", ()), ("none", ("none", "attention"))):
        here = problem(workload=attention, recompute=whole)
        outcome = simulate(here, Plan("hand", "gpipe", STRAIGHT, (2,), recompute=own))
        names = ("activations", "workspace")
        held = [[at(outcome, 1, t + 0.5).get(name, 0) for t in (3, 4, 5, 6, 11, 12)] for name in names]
        assert held == [[0, 32, 32, 32, 32, 0], [0, 0, 0, 8, 8, 0]]
        assert at(outcome, 0, 0.5)["activations"] == 24


def test_what_recomputes_is_said_in_words() -> None:
    """A switch is short for none or whole; there is no attention in these chains; other words are named."""
    assert (problem(recompute=True).recompute, problem(recompute=False).recompute) == ("whole", "none")
    with pytest.raises(
        ValueError, match="recompute 'attention': workload 'chain' has no attention layers; choices: none"
    ):
        problem(recompute="attention")
    with pytest.raises(ValueError, match="recompute 'blocks': workload 'chain' has no blocks; choices: none, whole"):
        problem(recompute="blocks")
    with pytest.raises(ValueError, match="recompute 'half' is unknown; choices: none, attention, between-products"):
        problem(recompute="half")
    with pytest.raises(
        InfeasiblePlanError, match="plan 'hand': recompute 'attention': workload 'chain' has no attention"
    ):
        simulate(problem(), Plan("hand", "gpipe", STRAIGHT, (2,), recompute=("none", "attention")))


def test_memory_of_replicas_is_that_of_their_samples() -> None:
    """2 samples split over 2 replicas of both layers: each stashes 32 bytes and holds all weights."""
    outcome = simulate(problem(), Plan("hand", "gpipe", (Stage((0, 1), (0, 1)),), (2,)))
    for device in (0, 1):
        assert parts(outcome, device) == {"weights": 120, "gradients": 120, "optimizer": 120, "activations": 32}


@pytest.mark.parametrize("text", ["0F0 0F1 0B0 0B1", "0F0 0F1 0I0 0I1 0W0 0W1"])
def test_parts_of_a_reduced_backward_free_the_stash_once(text: str) -> None:
    """Replicas reduce their last gradients in 3 buckets; the stash is freed once, whether backward is whole or split."""
    layers = 3
    workload = chain([1.0] * layers, parameters=[7_000_000] * layers, stashed_elements=[4.0] * layers)
    one = Problem(workload, chain_cluster(2), 4)
    plan = Plan("hand", "gpipe", (Stage(tuple(range(layers)), (0, 1)),), (2, 2))
    costs = PlanCosts(one, plan)
    assert len(costs.buckets(0)) == 3
    timeline = replay(lower(from_text(text), costs, forward_sizes=[2, 2], split_replicas=[2]))
    activations = CATEGORIES.index("activations")
    for device in memory_over_time(costs, timeline):
        assert device.bytes[:, activations].max() == 2 * 3 * 16.0
        assert device.bytes[:, activations].min() == 0.0
        assert device.bytes[-1, activations] == 0.0


def test_a_plan_that_does_not_fit_is_reported_not_raised() -> None:
    """Peaks of 160 and 280 bytes on devices of 200: the outcome says which does not fit and by how much."""
    outcome = run(cluster=chain_cluster(2, bandwidth=16.0, memory_bytes=200.0))
    assert not outcome.fits
    assert [device.fits for device in outcome.memory] == [True, False]
    assert outcome.fullest.device == 1
    assert (outcome.fullest.peak_bytes, outcome.fullest.capacity_bytes) == (280.0, 200.0)
    assert run().fits


def test_parts_of_a_reduced_backward_make_the_workspace_once() -> None:
    """A recomputing backward in 3 parts holds the whole stash from the first part on; each part's end frees its share."""
    workload = chain([1.0] * 3, parameters=[7_000_000] * 3, stashed_elements=[4.0] * 3)
    one = Problem(workload, chain_cluster(2), 2, recompute=True)
    costs = PlanCosts(one, Plan("hand", "gpipe", (Stage((0, 1, 2), (0, 1)),), (2,)))
    timeline = replay(lower(from_text("0F0 0B0"), costs, forward_sizes=[2], split_replicas=[2]))
    workspace = CATEGORIES.index("workspace")
    for device in memory_over_time(costs, timeline):
        begins = np.searchsorted(device.times, timeline.start[1], side="right") - 1
        assert device.bytes[begins, workspace] == device.bytes[:, workspace].max() == 3 * 16.0
        assert device.bytes[-1, workspace] == 0.0


def test_a_stage_of_no_seconds_holds_its_stash() -> None:
    """GPipe with two micro-batches on one device of no seconds: both stashes of 12 + 20 bytes are held at the moment 0."""
    workload = chain([0.0, 0.0], output_elements=[4.0, 2.0], stashed_elements=[3.0, 5.0])
    outcome = simulate(Problem(workload, chain_cluster(1), 2), Plan("hand", "gpipe", (Stage((0, 1), (0,)),), (1, 1)))
    assert outcome.timeline.makespan_seconds == 0.0
    assert parts(outcome, 0) == {"activations": 64}


def test_a_tensor_that_takes_no_time_is_held_at_its_moment() -> None:
    """Free transfers of 16 bytes: never less than nothing on either side, and each holds one at some moment."""
    outcome = run(schedule="1f1b-as", communication="free")
    buffers = CATEGORIES.index("buffers")
    for device in outcome.memory:
        assert device.bytes[:, buffers].min() == 0.0
        assert device.bytes[:, buffers].max() >= 16.0


FAMILIES = ("gpipe", "1f1b", "eager-1f1b", "pipedream", "xpipe", "1f1b-as", "fbp-as", "1f1b-sno", "1f1b-so")


@st.composite
def replayed_plans(draw: st.DrawFn) -> tuple[PlanCosts, Outcome]:
    """A plan of any family with layers, tensors and transfers of some time or of none, replicated or not."""
    count = draw(st.integers(1, 4))
    figures = {
        name: [draw(st.sampled_from(values)) for _ in range(count)]
        for name, values in (
            ("flop", (0.0, 0.0, 1.0, 2.0)),
            ("parameters", (0, 10, 7_000_000)),
            ("output_elements", (0.0, 4.0)),
            ("stashed_elements", (0.0, 3.0)),
        )
    }
    family = draw(st.sampled_from(FAMILIES))
    replicas = [draw(st.integers(1, 2)) if family in FAMILIES[:3] else 1 for _ in range(count)]
    first = [sum(replicas[:s]) for s in range(count)]
    one = Problem(
        chain(figures.pop("flop"), **figures),
        chain_cluster(sum(replicas), bandwidth=draw(st.sampled_from((1e6, 8.0))), duplex="half"),
        batch=6,
        recompute=draw(st.booleans()),
        communication=draw(st.sampled_from(("overlapped", "free", "streaming", "both-blocking"))),
        contention=draw(st.booleans()),
    )
    stages = tuple(Stage((s,), tuple(range(first[s], first[s] + replicas[s]))) for s in range(count))
    plan = Plan("hand", family, stages, draw(st.sampled_from(((2, 2, 2), (1,) * 6, (3, 1, 2), (6,)))))
    return PlanCosts(one, plan), simulate(one, plan, engine="compiled")


def untimed_peak(costs: PlanCosts, timeline: Timeline, stage: int, replica: int) -> float:
    """Most bytes of stashes and workspace when a stage's ops are walked in order, whatever their times."""
    stash = float(costs.layers.stashed_bytes[list(costs.plan.stages[stage].layers)].sum())
    recompute = costs.recomputes(stage)
    kept = (costs.boundary_bytes[stage - 1] if stage else 0.0) if recompute else stash
    held, most, before = 0.0, 0.0, None
    for row in np.flatnonzero((timeline.stage == stage) & (timeline.replica == replica) & timeline.compute()).tolist():
        samples, op = int(timeline.samples[row]), (int(timeline.kind[row]), int(timeline.microbatch[row]))
        if op[0] == OpKind.FORWARD:
            held += samples * kept
            most = max(most, held)
        elif op != before:  # the parts of a backward stand one after the other
            most = max(most, held + samples * stash * recompute)
            held -= samples * kept
        before = op
    return most


@settings(max_examples=30, deadline=None)
@given(replayed_plans())
def test_memory_is_never_negative_and_at_least_what_the_order_needs(replayed: tuple[PlanCosts, Outcome]) -> None:
    """No category is ever below 0, nothing is left at the end, and a device with one list of ops peaks at least as it must."""
    costs, outcome = replayed
    temporary = [CATEGORIES.index(name) for name in ("activations", "workspace", "buffers")]
    for device in outcome.memory:
        assert (device.bytes >= 0.0).all()
        assert (device.bytes[-1, temporary] == 0.0).all()
        assert (np.diff(device.times) >= 0.0).all()
    if costs.plan.schedule != "fbp-as":
        of_device = {device.device: device for device in outcome.memory}
        for number, stage in enumerate(costs.plan.stages):
            for replica, device in enumerate(stage.devices):
                held = of_device[device].bytes[:, temporary[:2]].sum(axis=1).max()
                assert held >= untimed_peak(costs, outcome.timeline, number, replica) * (1 - 1e-12)


def test_parts_of_a_group_are_numbered_and_share_whole_bytes() -> None:
    """Group 7 has three chosen rows, group 2 one: 10 bytes in three parts are 3, 3 and 4, and 11 in one are 11."""
    part, parts = parts_of(np.array([7, 2, 7, 7, 7]), np.array([True, True, False, True, True]))
    assert (part.tolist(), parts.tolist()) == ([0, 0, 0, 1, 2], [3, 1, 1, 3, 3])
    amount = np.array([10.0, 11.0, 0.0, 10.0, 10.0])
    assert whole_part(amount, part, part + 1, parts).tolist() == [3.0, 11.0, 0.0, 3.0, 4.0]


def test_replicas_in_turn_hold_a_gradient_for_each_round_that_waits() -> None:
    """Two replicas run every second mini-batch; the sum of a round ends after the next backward pass, so that two gradients live.

    Backward passes come in three parts, one for each bucket of the sum: they are of one gradient.
    """
    layers = 3
    workload = chain([1.0] * layers, parameters=[7_000_000] * layers)
    one = Problem(workload, chain_cluster(2), 8)
    stages = (Stage(tuple(range(layers)), (0, 1)),)
    outcome = simulate(one, Plan("hand", "1f1b-rr", stages, (1,) * 8, "round-robin"))
    assert len(PlanCosts(one, outcome.plan).buckets(0)) == 3
    own = outcome.timeline.replica == 0
    ops = [
        (OpKind(kind).name, one)
        for kind, one in zip(outcome.timeline.kind[own], outcome.timeline.microbatch[own], strict=True)
    ]
    assert ops[:9] == [("FORWARD", 0), *[("BACKWARD", 0)] * 3, ("FORWARD", 2), *[("BACKWARD", 2)] * 3, ("UPDATE", 0)]
    assert parts(outcome, 0)["gradients"] == 2 * 4 * 7_000_000 * layers
