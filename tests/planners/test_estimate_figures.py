"""Figures of estimates: seconds and bytes of stages in closed form, of every pass, policy and division of small networks."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any, get_args

import numpy as np
import pytest

from hardware_profiles import Constant, Operation, Stack, load_cluster
from planners.estimate.like_blocks import like_blocks
from planners.estimate.memory import (
    FlushedBytes,
    furthest_ends,
    in_flight,
    layer_bytes,
    least_in_flight,
    state_bytes,
    unit_bytes,
    warm_up,
)
from planners.estimate.replica_traffic import (
    StageWeights,
    beside_traffic,
    gathered_seconds,
    reduced_seconds,
    scattered_seconds,
    unit_seconds,
)
from planners.estimate.stage_costs import StageCosts
from simulator import Experts, Gpt, GroupRates, LayerCosts, Llama, Parallelism, Problem, Recompute, Zero, least_group
from tests.records import Recorded, weight, weights

STACK = Stack(
    name="mine",
    products=Constant(1.1),
    attention=Constant(1.3),
    elementwise=Constant(1.2),
    block_pass=Constant(1e-4),
    exposed=Constant(0.4),
)
GPT = Gpt(6, 1024, 16, sequence=256, vocabulary=8000).workload()
MIXTURE = Llama(
    5, 512, 8, key_value_heads=4, sequence=128, vocabulary=500, experts=Experts(4, 2, 768, dense=(0,))
).workload()
RATES = GroupRates(tensor=((1e-5, 1e-10),), context=((2e-5, 2e-10),), expert=((3e-5, 3e-10),), gather=((4e-5, 4e-10),))
HOPPER = load_cluster("dgx-h100:1")
LATE = replace(HOPPER, devices=tuple(replace(one, launch_overhead=2e-5) for one in HOPPER.devices))  # type: ignore[type-var]
PROBLEMS = {
    "GPT": Problem(GPT, load_cluster("dgx-a100:1"), 16, STACK, precision="bf16", optimizer="adam", gradient_bytes=4),
    "GPT whose host is late": Problem(GPT, LATE, 16, STACK, precision="bf16", gradient_reduction="whole"),
    "experts": Problem(MIXTURE, load_cluster("dgx-a100:1"), 16, STACK, precision="fp16", optimizer="momentum"),
    "one layer a block": Problem(Gpt(3, 64, 4, 32, 100).workload(), load_cluster("fpga-vcu118-4"), 8, precision="fp16"),
}


def lines(several: Any) -> list[Any]:
    """Lines as (own, block)."""
    return [[one.own.tolist(), one.block] for one in several]


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("degrees", [(1, 1, 1), (2, 2, 1), (1, 1, 2)], ids=["whole", "tensor, context", "experts"])
def test_stages_of_like_blocks(name: str, degrees: tuple[int, int, int], recorded: Recorded) -> None:
    """Lines in the blocks of a stage, by its place: microseconds of passes and of what is run again, bytes, elements, units.
    (All but two by weight.)"""
    problem = PROBLEMS[name]
    tensor, context, expert = degrees
    if expert > 1 and not any(layer.experts for layer in problem.workload.layers):
        expert, context = 1, 4
    parallel = Parallelism(tensor=tensor, context=context, expert=expert)
    rates = GroupRates(
        *(rate if degree > 1 else () for rate, degree in zip(RATES, (tensor, context, expert, tensor), strict=True))
    )
    blocks = like_blocks(problem.workload)
    assert blocks is not None
    policies = get_args(Recompute)
    costs = StageCosts(problem, blocks, policies)
    passes: dict[str, Any] = {
        what: lines([costs.seconds(parallel, rates, samples, what) for samples in (1, 3)])
        for what in ("forward", "backward", *policies)
    }
    found = dict[str, Any](
        blocks=astuple(blocks),
        us={what: [[1e6 * np.array(own), 1e6 * block] for own, block in both] for what, both in passes.items()},
        gather_us=1e6 * costs.gather_seconds(parallel, rates, 3) if tensor > 1 else None,
        boundary_bytes=[costs.boundary_bytes(parallel), costs.sent_bytes(parallel)],
        elements=lines(costs.elements(parallel)),
        update_us=[1e6 * one for one in costs.update_line(parallel)],
        tied_elements=costs.tied_elements(parallel),
        units=[weight(column) for column in costs.units(parallel, 30)[:, [0, 1, 2, 3, 30]].T],
        most_in_unit=costs.most_in_unit(parallel),
        buckets=costs.bucket_shares(parallel, rates, 2, 5),
        gradients_in_work=lines(costs.gradients_in_work(parallel)),
        stashes={policy: lines(pair) for policy, pair in zip(policies, costs.stashes(parallel), strict=True)},
    )
    whole = (name, degrees) in (
        ("GPT", (2, 2, 1)),
        ("experts", (1, 1, 2)),
    )
    recorded(**(found if whole else weights(found)))


@pytest.mark.parametrize("name", PROBLEMS)
def test_bytes_of_stages_of_layers(name: str, recorded: Recorded) -> None:
    """Of weights and states by ZeRO stage, of layers, of stages under a flush, and how far a stage reaches in little memory."""
    problem = PROBLEMS[name]
    costs, zeros = LayerCosts(problem), np.array(get_args(Zero))
    held = np.array([1e6, 3e6, 5e6, 7e6])
    middle = len(problem.workload) // 2
    flushed = [FlushedBytes.of(costs, first, end) for first, end in ((0, middle), (middle, len(problem.workload)))]
    sizes = np.array([1, 2, 3, 8])
    spare = [problem.room_bytes(0) - share * float(layer_bytes(costs, 8).sum()) for share in (0.5, 0.3, 0.9)]
    recorded(
        states=state_bytes(problem, zeros, held, held / 2, 4),
        units=unit_bytes(problem, zeros),
        layers=layer_bytes(costs, 3),
        flushed=[
            [
                one,
                one.stored(3),
                one.recomputed(3, 2),
                *(one.at_the_turn(8, sizes, 1e5, again=again) for again in (False, True)),
            ]
            for one in flushed
        ],
        ends=furthest_ends(costs, (0, 1, 2), 2, (6, 4, 2), spare),
    )


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(4, 1, 6), (4, 1, 2), (4, 2, 8), (3, 3, 6), (2, 4, 2)])
def test_micro_batches_in_flight(ranks: int, chunks: int, microbatches: int, recorded: Recorded) -> None:
    """By rank: forwards before the first backward, lines of micro-batches in flight, and these by stage when it is fullest. (Two
    by weight.)"""
    rank, group = np.arange(ranks), least_group(microbatches, ranks)
    found = {
        "warm_up": warm_up(rank, ranks, chunks, microbatches, group),
        "least": least_in_flight(rank, ranks, chunks, microbatches, group),
        "all": in_flight(ranks, chunks, microbatches),
    }
    recorded(**(weights(found) if ranks < 4 else found))


@pytest.mark.parametrize("name", ["GPT", "GPT whose host is late"])
def test_what_replicas_share(name: str, recorded: Recorded) -> None:
    """Microseconds of collectives of three stages after the last backward, and beside the passes, by ZeRO stage."""
    problem = PROBLEMS[name]

    def moved(operation: Any, elements: Any, experts: Any, size: float) -> Any:
        """A rate per byte, another one of experts, and a latency per operation."""
        share = {Operation.ALL_REDUCE: 2.0, Operation.REDUCE_SCATTER: 1.0, Operation.ALL_GATHER: 1.5}[operation]
        return share * (1e-5 + size * (1e-11 * elements + 3e-11 * experts))

    elements, experts = np.array([3e7, 2e8, 1e6]), np.array([0.0, 1e8, 5e5])
    units = np.array([[2.0, 1e7, 0.0, 1e7, 2e7], [5.0, 3e7, 2e7, 4e7, 5e7], [1.0, 1e6, 5e5, 0.0, 1e6]])
    front, backward = np.array([2e7, 0.0, 0.0]), np.array([1e-3, 4e-4, 1e-2])
    forward = backward / 2
    both = unit_seconds(problem, moved, StageWeights(elements, experts, units))
    recorded(
        reduced={
            operation.name: 1e6 * reduced_seconds(problem, moved, elements, experts, front, backward, operation)
            for operation in (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER)
        },
        scattered={zero: 1e6 * scattered_seconds(problem, moved, units, zero, 1e5) for zero in (2, 3)},
        gathered=1e6 * gathered_seconds(problem, moved, elements, experts),
        units=[1e6 * one for one in both],
        beside={
            zero: [1e6 * one for one in beside_traffic(forward, backward, *both, units[:, 0], zero, 0.4)]
            for zero in (2, 3)
        },
    )
