"""Tied weights: one weight that several layers use has a gradient in each, a copy a device, and one sum before an update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hardware_profiles import Operation, load_accelerator
from simulator import (
    Layer,
    LayerCosts,
    OpKind,
    Plan,
    PlanCosts,
    Problem,
    Stage,
    Workload,
    simulate,
)
from simulator.lowering.program import LaneKind
from simulator.plan_replay import build_program
from simulator.simulation import moved_bytes_per_sample
from simulator.workloads.catalog import load_workload
from simulator.workloads.language_models import Bert, Gpt
from tests.simulator.strategies import chain_cluster, star_cluster

TABLE = 1000


def tied_chain(layers: int = 4) -> Workload:
    """An embedding of TABLE weights, layers of 10 weights, and a head that multiplies with the embedding's matrix."""
    middle = [Layer(f"middle{i}", "linear", 1.0, 10, 1.0, 1.0) for i in range(layers - 2)]
    first = Layer("table", "embedding", 0.0, TABLE, 1.0, 0.0)
    last = Layer("head", "linear", 1.0, 0, 1.0, 1.0, tied_to="table", tied_parameters=TABLE)
    edges = tuple((i, i + 1) for i in range(layers - 1))
    return Workload("tied", (first, *middle, last), edges)


def untied(workload: Workload) -> Workload:
    """The same network whose head has weights of its own."""
    head = replace(workload.layers[-1], tied_to="", tied_parameters=0, parameters=TABLE)
    return replace(workload, layers=(*workload.layers[:-1], head))


def problem(devices: int = 4, *, layers: int = 4, batch: int = 12, star: bool = False, **options: Any) -> Problem:
    """The chain on devices in a row (1 byte/s) or around a switch; plain SGD unless asked otherwise."""
    cluster = star_cluster(devices) if star else chain_cluster(devices)
    return Problem(tied_chain(layers), cluster, batch, **{"optimizer": "sgd", **options})


def plan_of(*stages: tuple[tuple[int, ...], tuple[int, ...]], schedule: str = "1f1b", **options: Any) -> Plan:
    """A plan of 4 micro-batches of 3 samples."""
    held = tuple(Stage(layers, devices) for layers, devices in stages)
    return Plan("hand", schedule, held, **{"microbatches": (3, 3, 3, 3), **options})


def reduces(program: Any) -> list[tuple[int, float]]:
    """Stage and seconds of every all-reduce task."""
    rows = [row for row in range(len(program)) if program.kind[row] == OpKind.REDUCE]
    return [(int(program.stage[row]), float(program.seconds[row])) for row in rows]


# ---- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workload",
    [load_workload("gpt2"), Bert(2, 64, 2).workload(), Gpt(2, 64, 2, 16, 100).workload()],
    ids=lambda one: str(one.name),
)
def test_a_tied_head_has_the_embeddings_matrix_and_a_weight_gradient(workload: Workload) -> None:
    """It reads vocabulary times hidden weights, counts none of them, and the group is named."""
    (weight,) = workload.tied_weights()
    owner, user = (workload.layers[index] for index in weight.layers)
    assert (owner.name, user.tied_to) == ("embedding", "embedding")
    assert user.has_weight_gradient
    assert (
        user.flop == 2.0 * weight.parameters * (user.output_elements * owner.output_elements / weight.parameters) ** 0.5
    )
    assert user.weights == weight.parameters + user.parameters
    assert not [layer for layer in workload.layers if layer.kind == "activation" and layer.has_weight_gradient]


def test_gpt2s_head_takes_as_long_backward_as_an_untied_one() -> None:
    """Weight and input gradient of 38.6 million weights in fp16 on an A100: the same products as without the tie."""
    device = load_accelerator("a100-80")
    cluster = replace(chain_cluster(1), devices=(device,))
    costs = [
        LayerCosts(Problem(workload, cluster, 1, precision="fp16"))
        for workload in (load_workload("gpt2"), Gpt(12, 768, 12, positions=1024, tied=False).workload())
    ]
    head = next(index for index, layer in enumerate(load_workload("gpt2").layers) if layer.name == "head")
    for phase in ("forward", "backward", "input_gradient", "weight_gradient"):
        seconds = [float(one.seconds(0, 8, phase)[head]) for one in costs]
        assert seconds[0] == seconds[1] > 0.0


def test_a_measured_tied_head_has_half_of_its_backward_for_the_weights() -> None:
    """Not the number of its own parameters decides."""
    chain = tied_chain(2)
    timed = tuple(replace(layer, measured=((1.0, 1.0, 4.0),)) for layer in chain.layers)
    costs = LayerCosts(Problem(replace(chain, layers=timed), chain_cluster(1), 1))
    assert costs.seconds(0, 1, "weight_gradient").tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"tied_to": "nobody"},
            "workload 'tied': layer 'head': tied_to must name an earlier layer that owns the weight, got 'nobody'",
        ),
        (
            {"tied_to": "head"},
            "workload 'tied': layer 'head': tied_to must name an earlier layer that owns the weight, got 'head'",
        ),
        (
            {"tied_parameters": 0},
            (
                "workload 'tied': layer 'head': tied_parameters must be from 1 to the 1000 of 'table' and the "
                "same in all layers tied to it, got 0"
            ),
        ),
        (
            {"tied_parameters": 1001},
            (
                "workload 'tied': layer 'head': tied_parameters must be from 1 to the 1000 of 'table' and the "
                "same in all layers tied to it, got 1001"
            ),
        ),
        (
            {"tied_to": "", "tied_parameters": 5},
            "workload 'tied': layer 'head': tied_parameters go with tied_to, got 5 without",
        ),
        (
            {"tied_parameters": -1},
            "workload 'tied': layer 'head': tied_parameters must be a whole number of at least 0, got -1",
        ),
    ],
)
def test_a_tie_names_an_earlier_owner_that_is_large_enough(changes: dict[str, Any], said: str) -> None:
    """One line with the layer, the rule and the value."""
    workload = tied_chain(3)
    head = replace(workload.layers[-1], **changes)
    with pytest.raises(ValueError, match=said):
        replace(workload, layers=(*workload.layers[:-1], head))


def test_all_layers_that_are_tied_to_one_have_as_much_of_it() -> None:
    """The second of two heads has 999 weights of the table, the first all."""
    workload = tied_chain(3)
    heads = (workload.layers[-1], replace(workload.layers[-1], name="second", tied_parameters=TABLE - 1))
    said = (
        "workload 'tied': layer 'second': tied_parameters must be from 1 to the 1000 of 'table' and the "
        "same in all layers tied to it, got 999"
    )
    with pytest.raises(ValueError, match=said):
        replace(workload, layers=(*workload.layers[:-1], *heads), edges=(*workload.edges, (1, 3)))


# ---- what a plan keeps and moves ---------------------------------------------------------------------------------------


def test_a_device_holds_a_tied_weight_once() -> None:
    """Both layers on one device: one copy; on two: a second one with its gradient and optimizer states on the later stage."""
    together = simulate(problem(optimizer="adam"), plan_of(((0, 1, 2, 3), (0,))))
    assert together.memory[0].bytes[0][:4].tolist() == [4 * 1020, 0, 4 * 1020, 8 * 1020]
    apart = simulate(problem(optimizer="adam"), plan_of(((0, 1), (0,)), ((2, 3), (1,))))
    for device in apart.memory:
        assert device.bytes[0][:4].tolist() == [4 * 1010, 0, 4 * 1010, 8 * 1010]


def test_a_table_behind_its_copy_on_a_device_adds_nothing() -> None:
    """Two tables side by side of which the second is the first's copy: with it the first one's weights are there."""
    costs = LayerCosts(problem())
    assert costs.weight_elements((0, 1)) == costs.weight_elements((0, 1), beside=(2,)) == TABLE + 10
    assert costs.weight_elements((0, 1), beside=(3,)) == 10


def test_devices_of_a_group_reduce_their_part_of_each_of_several_tied_weights() -> None:
    """Halves of 1,000 and of 600 weights of 4 bytes."""
    owners = [Layer(name, "embedding", 0.0, size, 1.0, 0.0) for name, size in (("one", 1000), ("two", 600))]
    heads = [
        Layer(
            f"head {one.name}",
            "linear",
            1.0,
            0,
            1.0,
            1.0,
            split="columns",
            tied_to=one.name,
            tied_parameters=one.parameters,
        )
        for one in owners
    ]
    workload = Workload("two", (*owners, *heads), ((0, 2), (1, 3), (2, 3)))
    cluster = replace(star_cluster(4), tensor_groups="cluster")
    plan = Plan("hand", "1f1b", (Stage((0, 1), (0, 1), (2,)), Stage((2, 3), (2, 3), (2,))), (1,))
    ties = PlanCosts(Problem(workload, cluster, 1), plan).tied_reductions
    assert [one.size_bytes for one in ties] == [4 * 500.0, 4 * 300.0]


def test_stages_of_one_device_share_its_copy() -> None:
    """A looped pipeline of two devices with four stages: the first and the last device hold the matrix, each once."""
    looped = plan_of(((0,), (0,)), ((1,), (1,)), ((2,), (0,)), ((3,), (1,)), schedule="interleaved-1f1b")
    assert [PlanCosts(problem(), looped).held_elements(stage) for stage in range(4)] == [TABLE, 10.0, 10.0, TABLE]
    folded = plan_of(((0,), (0,)), ((1, 2, 3), (0,)), schedule="interleaved-1f1b")
    costs = PlanCosts(problem(), folded)
    assert [costs.held_elements(stage) for stage in range(2)] == [TABLE, 20.0]
    assert not costs.tied_reductions


def test_what_a_stage_gathers_depends_on_the_stages_before_it_on_its_devices() -> None:
    """Of two plans that share layer costs the last stage is the same, but in one its devices hold the matrix already."""
    costs, pairs = LayerCosts(problem()), ((0, 1), (2, 3))
    for first in (pairs[0], pairs[1], pairs[0]):
        plan = plan_of(((0, 1), first), ((2,), pairs[1]), ((3,), pairs[0]), zero=1)
        known, fresh = (PlanCosts(problem(), plan, one).collectives(2) for one in (costs, None))
        assert known == fresh
        assert (fresh.update_gather is None) == (first == pairs[0])


def test_gradients_on_two_stages_are_summed_before_any_update() -> None:
    """Both updates of a flushed mini-batch start when 4000 bytes have gone round the ring of two devices at 1 byte/s."""
    apart = plan_of(((0, 1), (0,)), ((2, 3), (1,)))
    tied = simulate(problem(2), apart, engine="recurrence").timeline
    alone = simulate(replace(problem(2), workload=untied(tied_chain())), apart, engine="recurrence").timeline
    last_gradient = float(tied.end[tied.kind == OpKind.BACKWARD].max())
    assert tied.start[tied.kind == OpKind.UPDATE].tolist() == [last_gradient + 4000.0] * 2
    assert alone.makespan_seconds == last_gradient
    assert tied.makespan_seconds == last_gradient + 4000.0


def test_all_replicas_of_both_stages_take_part_and_no_weight_is_reduced_twice() -> None:
    """2 + 1 devices sum the matrix; the buckets of the first stage carry the 10 other weights only."""
    here = problem(3, star=True)
    costs = PlanCosts(here, plan_of(((0, 1), (0, 1)), ((2, 3), (2,))))
    (tie,) = costs.tied_reductions
    assert tie.stages == (0, 1)
    assert tie.seconds == here.cluster.collectives.seconds(Operation.ALL_REDUCE, (0, 1, 2), 4.0 * TABLE)
    assert tie.route == here.cluster.collectives.busy(Operation.ALL_REDUCE, (0, 1, 2))[0]
    assert [bucket.seconds for bucket in costs.buckets(0)] == [
        here.cluster.collectives.seconds(Operation.ALL_REDUCE, (0, 1), 40.0)
    ]
    _, _, program = build_program(here, costs.plan)
    assert sorted(reduces(program)) == sorted([(0, tie.seconds), (0, costs.buckets(0)[0].seconds)])
    assert program.microbatch[program.kind == OpKind.REDUCE].tolist() == [0, 0]  # a flush is one round


def test_data_parallelism_reduces_a_tied_gradient_once() -> None:
    """One stage on 4 devices: 1020 weights, in its buckets."""
    here = problem(4, star=True)
    costs = PlanCosts(here, plan_of(((0, 1, 2, 3), (0, 1, 2, 3))))
    assert not costs.tied_reductions
    assert [bucket.seconds for bucket in costs.buckets(0)] == [
        here.cluster.collectives.seconds(Operation.ALL_REDUCE, (0, 1, 2, 3), 4.0 * 1020)
    ]
    assert moved_bytes_per_sample(here, costs.plan, build_program(here, costs.plan)[1]) == 2 * 3 * 4 * 1020 / 12


def test_moved_bytes_count_the_sum_over_both_stages() -> None:
    """2 (3-1) 4000 bytes of the matrix and 2 (2-1) 40 of the rest an iteration; 8 bytes per sample at the boundary."""
    plan = plan_of(((0, 1), (0, 1)), ((2, 3), (2,)))
    here = problem(3, star=True)
    assert moved_bytes_per_sample(here, plan, build_program(here, plan)[1]) == 8 + (4 * 4000 + 2 * 40) / 12


@pytest.mark.parametrize(("zero", "gathers"), [(1, 1), (2, 1), (3, 8)])
def test_gathers_bring_the_copies_of_both_stages(zero: Any, gathers: int) -> None:
    """Four scatters of 40 bytes, or one; each gather is of 1,010 weights a stage, its copy of the matrix among them."""
    plan = plan_of(((0, 1), (0, 1)), ((2, 3), (2, 3)), zero=zero)
    here = problem(4, star=True)
    scatters = 1 if zero == 1 else 4
    divided = 2 * (scatters * 40 + gathers * 4040)
    assert moved_bytes_per_sample(here, plan, build_program(here, plan)[1]) == 8 + (6 * 4000 + divided) / 12


def test_replicas_of_a_head_alone_gather_what_they_update() -> None:
    """They reduce its gradient with the embedding's alone; each then updates a half, and 4000 bytes are gathered."""
    plan = plan_of(((0, 1, 2), (0, 1)), ((3,), (2, 3)), zero=1)
    timeline = simulate(problem(4, star=True), plan).timeline
    of_head, gathers = timeline.stage == 1, timeline.kind == OpKind.GATHER
    assert set(timeline.kind[of_head].tolist()) == {OpKind.FORWARD, OpKind.BACKWARD, OpKind.UPDATE, OpKind.GATHER}
    (tie,) = timeline.end[timeline.kind == OpKind.REDUCE].tolist()
    assert timeline.end[of_head & (timeline.kind == OpKind.UPDATE)].tolist() == [tie, tie]
    assert timeline.end[of_head & gathers].tolist() == [tie + 2000.0]
    assert timeline.end[~of_head & gathers].tolist() == [tie + 2040.0]


# ---- schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [(3, 1), (1, 3), (3, 2)])
def test_an_asynchronous_stream_sums_the_gradients_of_every_round(replicas: tuple[int, int]) -> None:
    """Once in as many mini-batches as the stage with more replicas takes for a round; only the first stage's update waits."""
    first, second = replicas
    devices = tuple(range(first)), tuple(range(first, first + second))
    here = problem(first + second, star=True, contention=False)
    plan = plan_of(((0, 1), devices[0]), ((2, 3), devices[1]), schedule="1f1b-rr", replication="round-robin")
    _, schedule, program = build_program(here, plan)
    ties = [lane for lane in range(program.lanes) if program.lane_kind[lane] == LaneKind.COLLECTIVE][-1]
    rounds = int(program.lane_offsets[ties + 1] - program.lane_offsets[ties])
    assert abs(rounds - schedule.microbatches // max(replicas)) <= 1
    if first >= second:  # the first stage's own rounds, from the first on
        assert program.microbatch[program.lane_offsets[ties]] == 0
    timeline = simulate(here, plan, engine="recurrence").timeline
    begin, end = program.lane_offsets[ties], program.lane_offsets[ties + 1]
    updated_first = timeline.start[(timeline.stage == 0) & (timeline.kind == OpKind.UPDATE)]
    assert timeline.end[begin:end].max() <= updated_first.max()
    for number, done in zip(timeline.microbatch[begin:end].tolist(), timeline.end[begin:end].tolist(), strict=True):
        of_round = (timeline.stage == 0) & (timeline.kind == OpKind.UPDATE) & (timeline.microbatch // first == number)
        assert timeline.start[of_round].min() >= done  # the update of the same round waits, not the next one
    assert rounds > 1


def test_the_stream_of_the_last_stage_does_not_wait_for_the_first() -> None:
    """A straight asynchronous pipeline keeps its pace but for the sum itself: 4000 bytes at 4000 bytes/s between updates."""
    fast = replace(problem(3), cluster=chain_cluster(3, bandwidth=4e5), contention=False, batch=12)
    plan = plan_of(((0, 1), (0,)), ((2,), (1,)), ((3,), (2,)), schedule="pipedream")
    tied = simulate(fast, plan, engine="recurrence").iteration_seconds
    alone = simulate(replace(fast, workload=untied(tied_chain())), plan, engine="recurrence").iteration_seconds
    assert alone <= tied <= alone + 4 * 0.03
