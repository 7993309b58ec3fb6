"""Rules of `export --to megatron`: arguments and layout say the plan, by a parser of the tests' own and by Megatron-LM's."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeplan as pp
from experiments.targets.megatron import MEGATRON, layout_string, megatron_flags
from experiments.targets.target import NotLaunchableError
from simulator import Plan, Problem, Stage, stages_from_cuts

PARTS = {"E": "embedding", "t": "decoder", "L": "loss"}


@cache
def gpt2_problem() -> Problem:
    """Of its plans here."""
    return pp.Problem("gpt2", "dgx-a100:4", 16, precision="bf16", sequence_parallel=True, gradient_bytes=4)


def gpt2_plan(cuts: tuple[int, ...], *, chunks: int = 1, replicas: int = 2, **changes: Any) -> tuple[Problem, Plan]:
    """GPT-2, twelve blocks, cut behind so many of them, on stages of some replicas of groups of two."""
    problem = gpt2_problem()
    blocks = [layer.block for layer in problem.workload.layers]
    ends = [blocks.index(cut + 1) if cut < 12 else 121 for cut in cuts]
    ranks, wide = (len(cuts) + 1) // chunks, 2 * replicas
    places = [tuple(range(wide * rank, wide * (rank + 1))) for rank in range(ranks)] * chunks
    stages = stages_from_cuts(ends, len(blocks), places)
    grouped = tuple(replace(stage, degrees=(2,) * replicas) for stage in stages)
    name = "interleaved-1f1b" if chunks > 1 else "1f1b"
    return problem, replace(Plan("hand", name, grouped, (4,) * 4), **changes)


ENDS = "--micro-batch-size 2 --global-batch-size 16 --sequence-parallel"
BESIDE = "--overlap-grad-reduce"
WIDE = "--bf16 --accumulate-allreduce-grads-in-fp32"
AGAIN = "--recompute-granularity full --recompute-method"
FSDP = "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy"


@pytest.mark.parametrize(
    ("cuts", "changes", "flags"),
    [
        ((6,), {}, f"--pipeline-model-parallel-size 2 {ENDS} {BESIDE} {WIDE}"),
        (
            (2, 6, 10),
            {"recompute": ("attention",) * 4},
            f"--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et*2|t*4|t*4|t*2L {ENDS} "
            f"{BESIDE} --recompute-granularity selective {WIDE}",
        ),
        (
            (3, 6, 9),
            {"chunks": 2, "zero": 1, "recompute": ("blocks",) * 4},
            f"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3 {ENDS} --use-distributed-optimizer "
            f"{BESIDE} {AGAIN} uniform --recompute-num-layers 1 {WIDE}",
        ),
        (
            (2, 5, 9),
            {"chunks": 2, "options": (("microbatch_group_size", 4),)},
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*2|t*3|t*4|t*3L "
            f"--microbatch-group-size-per-virtual-pipeline-stage 4 {ENDS} {BESIDE} {WIDE}",
        ),
        (
            (2, 4, 6, 8, 10),
            {"chunks": 2, "microbatches": (2,) * 8},
            "--pipeline-model-parallel-size 3 --num-layers-per-virtual-pipeline-stage 2 "
            "--microbatch-group-size-per-virtual-pipeline-stage 4 --micro-batch-size 1 --global-batch-size 16 "
            f"--sequence-parallel {BESIDE} {WIDE}",
        ),
        (
            (6,),
            {"recompute": ("blocks",) * 2, "recomputed_blocks": (4, 4)},
            f"--pipeline-model-parallel-size 2 {ENDS} {BESIDE} {AGAIN} block --recompute-num-layers 4 {WIDE}",
        ),
        ((), {"zero": 2}, f"{ENDS} {FSDP} optim_grads {WIDE}"),
        ((), {"zero": 3}, f"{ENDS} {FSDP} optim_grads_params {WIDE}"),
        (
            (),
            {"zero": 3, "shard": 2, "replicas": 4},
            f"--micro-batch-size 1 --global-batch-size 16 --sequence-parallel --num-distributed-optimizer-instances 2 {FSDP} "
            f"optim_grads_params {WIDE}",
        ),
    ],
)
def test_plans_as_arguments(cuts: tuple[int, ...], changes: dict[str, Any], flags: str) -> None:
    """Even stages need no layout; micro-batches are those of a replica; ZeRO 2 and 3 are Megatron-FSDP's."""
    problem, plan = gpt2_plan(cuts, **changes)
    assert MEGATRON.lacks(problem, plan) == ()
    assert " ".join(megatron_flags(problem, plan)) == f"--tensor-model-parallel-size 2 {flags}"


def test_gradients_reduced_in_buckets_alone_overlap() -> None:
    """Whole reductions, and a weight that has one copy, ask for no overlap of them."""
    problem, plan = gpt2_plan((6,))
    whole = replace(problem, gradient_reduction="whole")
    assert "--overlap-grad-reduce" in megatron_flags(problem, plan)
    assert "--overlap-grad-reduce" not in megatron_flags(whole, plan)
    assert "--overlap-grad-reduce" not in megatron_flags(*gpt2_plan((6,), replicas=1))


@pytest.mark.parametrize(
    ("cuts", "changes", "why"),
    [
        ((6,), {"schedule": "gpipe"}, ["schedule gpipe (choices: 1f1b, interleaved-1f1b)"]),
        ((6,), {"zero": 2}, ["ZeRO 2 in a pipeline (Megatron-FSDP has one stage; pipelines run ZeRO 0 or 1)"]),
        ((6,), {"recompute": ("none", "blocks")}, ["stages that recompute unlike (blocks, none)"]),
        ((6,), {"recompute": ("whole", "whole")}, ["recompute whole (choices: none, attention, blocks)"]),
        (
            (6,),
            {"recompute": ("blocks", "blocks"), "recomputed_blocks": (1, 2)},
            ["stages that recompute unlike numbers of blocks (1, 2)"],
        ),
        (
            (6,),
            {"microbatches": (5, 5, 6), "replication": "round-robin"},
            [
                "micro-batches of unlike sizes (5, 6)",
                "replicas that take whole micro-batches in turn",
                "micro-batches of 5 samples on 2 replicas",
            ],
        ),
        (
            (3, 6, 9),
            {"chunks": 2, "microbatches": (16,)},
            ["several stages per device with fewer micro-batches (1) than ranks (2)"],
        ),
        ((6,), {"schedule": "interleaved-1f1b"}, ["schedule interleaved-1f1b with one stage per device"]),
        (
            (6,),
            {"order": ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"), "microbatches": (8, 8), "zero": 3},
            [
                "order of ops (choices: 1f1b, interleaved-1f1b)",
                "ZeRO 3 in a pipeline (Megatron-FSDP has one stage; pipelines run ZeRO 0 or 1)",
            ],
        ),
    ],
)
def test_all_that_it_lacks(cuts: tuple[int, ...], changes: dict[str, Any], why: list[str]) -> None:
    """Every lack is told, in one line."""
    problem, plan = gpt2_plan(cuts, **changes)
    assert list(MEGATRON.lacks(problem, plan)) == why
    with pytest.raises(NotLaunchableError, match=re.escape("it has no " + "; no ".join(why)) + "$"):
        MEGATRON.written("megatron", problem, plan)


def test_experts_in_groups_divide_tokens() -> None:
    """Beside tensor-parallel groups Megatron-LM runs experts with sequence parallelism alone."""
    said = "experts beside tensor-parallel groups without --sequence-parallel"
    for divided, degree, lacks in ((False, 2, (said,)), (True, 2, ()), (False, 1, ())):
        problem = pp.Problem("mixtral-8x7b", "dgx-a100:1", 8, precision="bf16", sequence_parallel=divided)
        stage = Stage(tuple(range(len(problem.workload))), tuple(range(8)), (degree,) * (8 // degree))
        assert MEGATRON.lacks(problem, Plan("hand", "1f1b", (stage,), (8,))) == lacks


def test_stages_end_between_blocks() -> None:
    """Inside a block, inside the output head, and the embedding's layers apart: each is told."""
    problem = pp.Problem("bert-base", "dgx-a100:1", 16, devices=2)
    count = len(problem.workload.layers)
    lacks = [
        MEGATRON.lacks(problem, Plan("hand", "1f1b", stages_from_cuts([cut], count, [(0,), (1,)]), (8, 8)))
        for cut in (1, 20, count - 1)
    ]
    assert [one.split(" (")[0] for some in lacks for one in some] == [
        "embeddings in several stages",
        "stages that end inside blocks",
        "output heads in several stages",
    ]


def read_layout(text: str) -> list[list[str]]:
    """A layout string by Megatron-LM's rules: commas say nothing, `(…)*n` and `x*n` repeat, `|` ends a stage."""

    def again(found: re.Match[str]) -> str:
        return found[1] * int(found[2])

    flat = re.sub(r"(.)\*(\d+)", again, re.sub(r"\(([^)]*)\)\*(\d+)", again, text.replace(",", "")))
    return [[PARTS[letter] for letter in stage] for stage in flat.split("|")]


def expected(counts: list[int]) -> list[list[str]]:
    stages = [["decoder"] * count for count in counts]
    return [["embedding", *stages[0]], *stages[1:-1], [*stages[-1], "loss"]]


def cut_plan(counts: list[int], chunks: int) -> tuple[Problem, Plan]:
    """GPT-2 in stages of so many blocks, `chunks` of them on every rank."""
    cuts = tuple(sum(counts[:stage]) for stage in range(1, len(counts)))
    return gpt2_plan(cuts, chunks=chunks, replicas=1)


COUNTS = st.lists(st.integers(1, 4), min_size=2, max_size=8).filter(lambda some: sum(some) <= 12 and len(some) % 2 == 0)


@settings(max_examples=40)
@given(COUNTS, st.booleans())
def test_a_layout_says_the_blocks_of_each_stage(counts: list[int], looped: bool) -> None:
    """In the order of the data, which is virtual stage by virtual stage; entry v × ranks + r is the one of rank r."""
    counts = [*counts[:-1], counts[-1] + 12 - sum(counts)]
    problem, plan = cut_plan(counts, 2 if looped else 1)
    assert read_layout(layout_string(problem, plan)) == expected(counts)


def test_ends_may_stand_alone() -> None:
    """A stage of the embedding alone, one of the output head alone."""
    problem, plan = gpt2_plan((6, 12))
    assert layout_string(problem, plan) == "Et*6|t*6|L"
    layers = len(problem.workload.layers)
    alone = replace(plan, stages=stages_from_cuts([1, 122], layers, [(0,), (1,), (2,)]))
    assert layout_string(problem, alone) == "E|t*12|L"


def test_megatron_reads_the_layout() -> None:
    """Its own class finds the layers of each rank and virtual stage, and the total that the network has."""
    layouts = pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout",
        reason="megatron-core is not installed: layouts are read by a parser of ours",
    )
    for counts, chunks in (([5, 7], 1), ([2, 3, 4, 3], 2), ([1, 2, 1, 3, 2, 3], 1)):
        problem, plan = cut_plan(counts, chunks)
        ranks = len(counts) // chunks
        found = layouts.PipelineParallelLayerLayout(layout_string(problem, plan), ranks)
        found.validate_layer_layout(12, 0)
        names = [[layer.name for layer in found.layout[rank][turn]] for turn in range(chunks) for rank in range(ranks)]
        assert names == expected(counts)


def test_ranks_are_told_where_they_are_not_the_devices() -> None:
    """Ranks go along the tensor-parallel group, then replicas, then stages; another order of devices is a note."""
    problem, plan = gpt2_plan((6,))
    assert MEGATRON.written("megatron", problem, plan).notes == ("launch 8 processes",)
    turned = replace(
        plan,
        stages=tuple(
            reversed(
                [
                    replace(one, layers=other.layers)
                    for one, other in zip(plan.stages, reversed(plan.stages), strict=True)
                ]
            )
        ),
    )
    assert MEGATRON.written("megatron", problem, turned).notes == (
        "launch 8 processes; ranks in their order on devices 4-7, 0-3",
    )
