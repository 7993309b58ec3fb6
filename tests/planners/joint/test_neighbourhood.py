"""Moves of pipelines, and seeds: what they lead to, and that they keep to what is asked for and to what the stack runs."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import islice
from math import inf
from typing import Any

import numpy as np
import pytest

from hardware_profiles import Runs, Stack, load_cluster, load_stack
from planners import Evaluator, Request
from planners.joint.climbs import Climbs
from planners.joint.neighbourhood import DIVIDING, FAMILIES, LOOPED, Neighbourhood
from planners.joint.niches import Niches
from planners.joint.pipeline import Pipeline
from planners.search.quick_replay import QuickReplays
from simulator import (
    Experts,
    Gpt,
    LayerCosts,
    OpKind,
    Problem,
    build_schedule,
    plan_lacks,
    schedule_families,
)
from tests.planners.conftest import PROBLEMS, with_memory
from tests.planners.joint.problems import NONE, blocks, problem, some
from tests.records import Recorded, weights

SERVERS = (tuple(range(8)), tuple(range(8, 16)))


BESIDE = {
    "experts and two stages a rank": (
        blocks("generic", "bf16", Experts(4, 2, 128)),
        Pipeline(
            "interleaved-1f1b",
            SERVERS,
            (16, 30, 44),
            8,
            (("whole", 0), NONE, NONE, ("blocks", 1)),
            (("chunks", 2),),
            group=2,
            zero=1,
            expert=2,
        ),
    ),
    "what DeepSpeed runs": (
        blocks("megatron-deepspeed", "fp16"),
        Pipeline("1f1b", SERVERS, (22,), 8, (("whole", 0), NONE), group=4, zero=1),
    ),
    "unequal replicas": (
        problem("chain:6", "dapple-b:4", 12),
        Pipeline("1f1b", ((0, 1), (2,)), (3,), 4, (NONE, NONE)),
    ),
    "groups": (
        problem("gpt2", "dgx-a100:1", 16, precision="bf16", optimizer="adam"),
        Pipeline("1f1b", ((0, 1, 2, 3), (4, 5, 6, 7)), (62,), 4, (NONE, ("attention", 0)), group=2, zero=1),
    ),
    "eight cuts of a chain": (
        problem("chain:24", "dgx-a100:1", 16),
        Pipeline(
            "interleaved-1f1b", ((0,), (1,), (2,)), (2, 5, 7, 10, 13, 15, 18, 21), 6, (NONE,) * 9, (("chunks", 3),)
        ),
    ),
    "eight cuts of blocks": (
        problem("gpt2", "dgx-a100:1", 16),
        Pipeline("zb-h1", tuple((rank,) for rank in range(8)), (9, 22, 35, 48, 61, 74, 87), 4, (NONE,) * 8),
    ),
}
"""Pipelines of few devices."""


def test_seeds_have_the_stages_that_are_asked_for() -> None:
    """Of one a rank and of two, on four devices."""
    asked = PROBLEMS["two-servers"]
    for stages, chunks in ((2, 1), (4, 1), (4, 2)):
        moves = Neighbourhood(asked, Request(stages=stages, chunks=chunks), LayerCosts(asked))
        found = {(one.stages, one.chunks, len(one.ranks)) for one in moves.seeds()}
        assert found == {(stages, chunks, stages // chunks)}


@pytest.mark.parametrize("alone", [True, False])
def test_replicas_of_the_whole_network_may_have_several_stages_to_begin_with(alone: bool) -> None:
    """One number of them, with each ZeRO stage and what of the replicas these are divided over; none where the stack runs no
    stages one by one on devices that hold the whole network, or where another number is asked for.
    """
    asked = problem(
        "gpt2", "pipedream-b:2", 16, optimizer="adam", stack=Stack(name="plain", runs=Runs(looped_alone=alone))
    )
    moves = Neighbourhood(asked, Request(), LayerCosts(asked))
    one = Pipeline("1f1b", (tuple(range(16)),), (), 2, (NONE,), zero=2)
    found = [*moves.looped(one)]
    divided = [(0, 0), *((zero, shard) for zero in (1, 2, 3) for shard in (0, 8))]
    assert sorted((other.zero, other.shard) for other in found) == (divided if alone else [])
    assert all((other.chunks, other.ranks, other.microbatches) == (LOOPED, one.ranks, 2) for other in found)
    assert not [*Neighbourhood(asked, Request(chunks=2), LayerCosts(asked)).looped(one)]


def test_a_stack_without_interleaving_has_one_stage_a_rank() -> None:
    """Families with one keep theirs, others have none."""
    asked = replace(PROBLEMS["two-servers"], stack=Stack(name="plain", runs=Runs(interleaved=False)))
    moves = Neighbourhood(asked, Request(), LayerCosts(asked))
    assert [moves.chunks(name) for name in ("1f1b", "gpipe", "zb-v", "interleaved-1f1b")] == [(1,), (1,), (), ()]


@pytest.mark.parametrize("name", BESIDE)
def test_moves_lead_to_these_pipelines(name: str, recorded: Recorded) -> None:
    """By decision, what each pipeline beside one has otherwise, in the order in which they are tried, the first of those that
    change two decisions; all are pipelines of the problem, and none is it itself. Of all but the first the weights.
    """
    asked, one = BESIDE[name]
    moves = Neighbourhood(asked, Request(), LayerCosts(asked))
    near = {
        decision: [*islice(move(one), 24 if " and " in decision else None)]
        for decision, move in moves.decisions.items()
    }
    others = {
        decision: [
            "; ".join(f"{key} {now}" for key, now in asdict(each).items() if now != asdict(one)[key]) for each in found
        ]
        for decision, found in near.items()
    }
    assert all(map(all, others.values()))
    recorded(**(others if name == next(iter(BESIDE)) else weights(others)))


@pytest.mark.parametrize(
    "request_",
    [
        Request(schedule="zb-h1", microbatches=8),
        Request(stages=4, options={"zero": (1,), "tensor": (1, 2)}),
        Request(chunks=2, recompute="whole"),
        Request(options={"context": (2,)}),
    ],
)
def test_moves_keep_to_what_is_asked_for(request_: Request) -> None:
    """What a request fixes no move of the search changes."""
    asked = problem("gpt2-medium", "dgx-a100:2", precision="bf16", optimizer="adam")
    for one in some(asked, request_, seed=5, steps=30):
        assert request_.schedule in (None, one.schedule)
        assert request_.microbatches in (None, one.microbatches)
        assert request_.stages in (None, one.stages)
        assert request_.chunks in (None, one.chunks)
        assert request_.recompute is None or set(one.recompute) == {(request_.recompute, 0)}
        for option, value in (("zero", one.zero), ("tensor", one.tensor), ("context", one.context)):
            assert value in (request_.asked(option) or (value,))


def test_seeds_left_out_are_slow_or_do_not_fit() -> None:
    """Of one rank, with groups that divide tensors, contexts and experts: busy as long as was asked, or replays do not fit."""
    blocks = Gpt(4, 256, 8, vocabulary=512, sequence=64, experts=Experts(8, 2, 512)).workload()
    asked = with_memory(Problem(blocks, load_cluster("dgx-a100").take(8), 24, optimizer="adam"), 1.2e8)
    evaluate = Evaluator(asked)
    moves, quick = Neighbourhood(asked, Request(), evaluate.layer_costs), QuickReplays(asked, evaluate.layer_costs)
    every = {one: one.plan(asked, "joint") for one in moves.seeds(most=1)}
    below = float(np.median([quick.fill_and_work(plan) for plan in every.values()]))
    kept, left = {*moves.seeds(most=1, below=below)}, [0, 0]
    for one in every.keys() - kept:
        fast = quick.fill_and_work(every[one]) < below
        left[fast] += 1
        assert not (fast and evaluate(every[one]).fits)
    assert min(len(kept), *left) > 20


def test_seeds_of_one_rank_have_whole_servers_and_whole_samples_per_replica() -> None:
    """Four servers of four devices, a batch of 60: replicas on 16, 8 and 4 devices and on one, of 1, 2, 4, ... samples each."""
    moves = Neighbourhood(asked := problem("vgg16", "pipedream-a", 60), Request(), LayerCosts(asked))
    counts: dict[int, set[int]] = {}
    for one in moves.seeds(most=1):
        counts.setdefault(len(one.ranks[0]), set()).add(one.microbatches)
    assert counts == {16: {1, 2, 4}, 8: {1, 2, 4, 8}, 4: {1, 2, 4, 8, 15}, 1: {1, 2, 4, 8, 15, 30, 60}}
    assert {len(one.ranks) for one in moves.seeds(least=2)} == set(range(2, 17))


def test_families_flush() -> None:
    """What is searched is known, and which of it divides backwards."""
    for name in FAMILIES:
        family = schedule_families()[name]
        chunks = {"chunks": 2} if "chunks" in family.options else {}
        schedule = build_schedule(name, 8 if family.chunks > 1 or chunks else 4, 8, **chunks)
        assert (OpKind.WEIGHT_GRADIENT in schedule.kind) == (name in DIVIDING)
        assert family.flush
        assert not family.lanes


def test_a_stage_inside_a_block_is_divided_in_its_middle() -> None:
    """Of three layers between two cuts of one block the first goes to one of two replicas; where stages end with blocks alone the
    replicas stay together."""
    asked = blocks("generic", "bf16")
    begin = next(number for number, layer in enumerate(asked.workload.layers) if layer.block == 2)
    one = Pipeline("1f1b", ((0,), (1, 2), (3,)), (begin, begin + 3), 4, (NONE, ("whole", 0), NONE))
    found = []
    for runs in (Runs(), Runs(cut_blocks=False)):
        other = replace(asked, stack=Stack(name="any", runs=runs))
        moves = Neighbourhood(other, Request(), LayerCosts(other))
        found.append({each for each in moves.replicas(one) if len(each.ranks) > 3})
    parted = replace(
        one,
        ranks=((0,), (1,), (2,), (3,)),
        cuts=(begin, begin + 1, begin + 3),
        recompute=(NONE, ("whole", 0), ("whole", 0), NONE),
    )
    assert parted in found[0]
    assert found[1] == set()


def test_an_end_of_the_layers_goes_to_a_device_of_its_own() -> None:
    """The first place's layers, an embedding, or the last one's, from a replica of that end, if it has several."""
    asked = problem("gnmt8", "pipedream-b", 64)
    moves, layers = Neighbourhood(asked, Request(), LayerCosts(asked)), len(asked.workload)
    one = Pipeline("1f1b", ((0, 1, 2),), (), 1, (NONE,))
    first = replace(one, ranks=((0,), (1, 2)), cuts=(1,), recompute=(NONE, NONE))
    last = replace(one, ranks=((0, 1), (2,)), cuts=(layers - 1,), recompute=(NONE, NONE))
    assert {first, last} <= set(moves.replicas(one))
    for ends in (replace(first, ranks=((0,), (1,))), replace(last, cuts=(1,))):
        assert not any(each.cuts == (1, layers - 1) for each in moves.replicas(ends))
    both = replace(first, ranks=((0,), (1,), (2,)), cuts=(1, layers - 1), recompute=(NONE,) * 3)
    assert both in set(moves.replicas(first))


def test_smaller_micro_batches_also_run_fewer_blocks_again() -> None:
    """Where some run again, half of them and three quarters."""
    asked = problem("gpt2", "pipedream-a", 64)
    one = Pipeline("1f1b", ((0, 1, 2, 3),), (), 4, (("blocks", 8),))
    found: dict[int, set[int]] = {}
    for each in Neighbourhood(asked, Request(), LayerCosts(asked)).counts_with_fewer_blocks(one):
        found.setdefault(each.microbatches, set()).add(each.recompute[0][1])
    assert min(found) > 4
    assert found[8] == {7, 6, 4}


def test_moves_keep_to_what_the_stack_runs() -> None:
    """No pipeline; no looped one on one rank; no cut inside a block; the same recomputation of all stages."""
    asked = problem("gpt2", "pipedream-a:4", 16)

    def moves(**runs: Any) -> Neighbourhood:
        own = replace(asked, stack=Stack(name="less", runs=Runs(**runs)))
        return Neighbourhood(own, Request(), LayerCosts(own))

    alone = moves(pipeline=False)
    (one, *others) = alone.seeds()
    assert {len(each.ranks) for each in (one, *others, *alone.degrees(one))} == {1}
    assert {len(each.ranks) for each in moves().degrees(one)} == {1, 2}
    chunks = [{each.chunks for each in moves(looped_alone=looped).schedules(one)} for looped in (True, False)]
    assert (max(chunks[0]) > 1, chunks[1]) == (True, {1})
    many = tuple((rank,) for rank in range(16))
    cuts = [moves(cut_blocks=cut).balanced(many, 1, 1, "1f1b") for cut in (True, False)]
    assert (len(cuts[0] or ()), cuts[1]) == (15, None)
    words = (("none", 0),) * 2
    two = replace(one, schedule="1f1b", ranks=((0,), (1,)), cuts=(50,), recompute=words, group=1)
    for unlike, several in ((True, {1, 2}), (False, {2})):
        more = moves(unlike_recompute=unlike).with_more_recomputation(two, 0)
        assert {sum(policy != "none" for policy, _ in each.recompute) for each in more} == several


@pytest.mark.parametrize("stack", ["fsdp1-eager", "fsdp2-compiled", "megatron-core", "megatron-deepspeed"])
def test_a_stack_refuses_nothing_that_is_allowed(stack: str) -> None:
    """On random walks and in niches; of batches that not every number of micro-batches divides."""
    asked = replace(problem("gpt2", "pipedream-a:2", 24, precision="fp16"), stack=load_stack(stack))
    costs = LayerCosts(asked)
    moves = Neighbourhood(asked, Request(), costs)
    begun = [one for _, _, one in Niches(moves, Climbs(asked, costs, QuickReplays(asked, costs)), "none").begun(inf)]
    walked = list(some(asked, Request(), seed=4, steps=60))
    assert bool(begun) == asked.stack.runs.pipeline
    for one in (*begun, *walked):
        assert moves.allows(one)
        assert not list(plan_lacks(asked.stack.runs, asked, one.plan(asked, "joint")))


def test_pipelines_that_are_not_asked_for_are_not_allowed() -> None:
    """Two directions need several ranks of a device each; recomputation is what is asked for, of all blocks."""
    asked = problem("gpt2", "dgx-a100:1", 16)
    moves, kept = (
        Neighbourhood(asked, request, LayerCosts(asked)) for request in (Request(), Request(recompute="blocks"))
    )
    both = Pipeline("chimera", ((0,), (1,)), (50,), 4, (("none", 0),) * 2)
    assert moves.allows(both)
    assert not moves.allows(replace(both, ranks=((0,),), cuts=(), recompute=(("none", 0),)))
    assert not moves.allows(replace(both, ranks=((0, 1), (2,))))
    one = replace(both, schedule="1f1b")
    for again, free, fixed in (("none", True, False), ("blocks", True, True)):
        assert moves.allows(replace(one, recompute=((again, 0),) * 2)) == free
        assert kept.allows(replace(one, recompute=((again, 0),) * 2)) == fixed
    counted = replace(one, recompute=(("blocks", 2),) * 2)
    assert (moves.allows(counted), kept.allows(counted)) == (True, False)
    bare = replace(one, cuts=(1,), recompute=(("blocks", 0),) * 2)  # the embedding alone has no block
    assert not [*moves._counted(bare, (0,), (lambda now, held: now + 1,))]
    assert [*moves._counted(bare, (1,), (lambda now, held: 3,))] == [
        replace(bare, recompute=(("blocks", 0), ("blocks", 3)))
    ]
