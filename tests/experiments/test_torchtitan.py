"""Rules of `export --to torchtitan`: the TOML says the plan's degrees, parts and schedule; torch knows the schedule's name."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

import pipeplan as pp
from experiments.targets.target import Written
from experiments.targets.torchtitan import SCHEDULES, TORCHTITAN
from simulator import Plan, Problem, Stage, from_torch_csv, stages_from_cuts


def llama_plan(
    cuts: tuple[int, ...], *, chunks: int = 1, replicas: int = 2, group: int = 1, back: bool = False, **changes: Any
) -> tuple[Problem, Plan]:
    """GPT-2, twelve blocks, cut behind so many of them, on stages of some replicas; `back`: in a V."""
    problem = pp.Problem("gpt2", "dgx-a100:4", 16, precision="bf16", sequence_parallel=group > 1)
    blocks = [layer.block for layer in problem.workload.layers]
    ends = [blocks.index(cut + 1) for cut in cuts]
    ranks, wide = (len(cuts) + 1) // chunks, group * replicas
    places = [tuple(range(wide * rank, wide * (rank + 1))) for rank in range(ranks)]
    places = places + places[::-1] if back else places * chunks
    stages = stages_from_cuts(ends, len(blocks), places, group)
    return problem, replace(Plan("hand", "interleaved-1f1b" if chunks > 1 else "1f1b", stages, (4,) * 4), **changes)


def written(problem: Problem, plan: Plan) -> tuple[dict[str, Any], Written]:
    """The settings, read back, and what was written."""
    found = TORCHTITAN.written("torchtitan", problem, plan, "job.toml")
    return tomllib.loads(str(found.files[""])), found


def test_a_pipeline_of_two_replicas() -> None:
    """The batch of a replica is its micro-batches; parts hold blocks from 0, the ends their own modules."""
    read, found = written(*llama_plan((5,), zero=3, recompute=("blocks",) * 2))
    assert list(found.files) == [""]
    assert read["training"] == {
        "local_batch_size": 8,
        "global_batch_size": 16,
        "seq_len": 1024,
        "mixed_precision_param": "bfloat16",
    }
    assert read["activation_checkpoint"] == {"mode": "full"}
    other, _ = written(*llama_plan((5,), zero=3, recompute=("every-second-product",) * 2))
    assert other["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}
    parallelism = read["parallelism"]
    parts = parallelism.pop("module_fqns_per_model_part")
    assert parts == [
        ["tok_embeddings", *(f"layers.{block}" for block in range(5))],
        [*(f"layers.{block}" for block in range(5, 12)), "norm", "lm_head"],
    ]
    assert parallelism == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 2,
        "tensor_parallel_degree": 1,
        "context_parallel_degree": 1,
        "expert_parallel_degree": 1,
        "pipeline_parallel_degree": 2,
        "fsdp_reshard_after_forward": "always",
        "pipeline_parallel_microbatch_size": 2,
        "pipeline_parallel_schedule": "1F1B",
    }


@pytest.mark.parametrize(
    ("changes", "degrees"),
    [
        ({}, (4, 1, 1)),
        ({"zero": 2}, (1, 4, 1)),
        ({"zero": 3, "shard": 2}, (2, 2, 1)),
        ({"zero": 3, "group": 2, "context": 2}, (1, 4, 2)),
        ({"zero": 3, "group": 2, "context": 2, "shard": 4}, (2, 2, 2)),
    ],
)
def test_degrees_of_data(changes: dict[str, Any], degrees: tuple[int, int, int]) -> None:
    """Replicas that hold copies, those that divide weights, contexts, which divide them, too; one stage has no schedule."""
    read, _ = written(*llama_plan((), replicas=4, **changes))
    parallelism = read["parallelism"]
    names = "data_parallel_replicate_degree", "data_parallel_shard_degree", "context_parallel_degree"
    assert tuple(parallelism[name] for name in names) == degrees
    assert read["training"]["local_batch_size"] == 1
    assert "pipeline_parallel_schedule" not in parallelism


@pytest.mark.parametrize(
    ("changes", "name", "csv"),
    [
        ({"chunks": 2}, "Interleaved1F1B", False),
        ({"chunks": 2, "microbatches": (2,) * 8, "cuts": (2, 4, 6, 8, 10)}, "Interleaved1F1B", False),
        ({"chunks": 2, "microbatches": (4, 4, 4, 2, 2), "zero": 2}, None, False),
        ({"chunks": 2, "options": (("microbatch_group_size", 4),)}, "Interleaved1F1B", True),
        ({"chunks": 2, "options": (("chunks", 2),)}, "Interleaved1F1B", False),
        ({"chunks": 2, "microbatches": (1,) * 16, "cuts": (2, 4, 6, 8, 10), "replicas": 1}, "Interleaved1F1B", True),
        ({"chunks": 2, "schedule": "zb-v", "back": True}, "ZBVZeroBubble", False),
        ({"chunks": 2, "schedule": "v-half", "back": True}, "ZBVZeroBubble", True),
        ({"chunks": 2, "schedule": "dualpipev", "back": True, "microbatches": (8, 8)}, "ZBVZeroBubble", True),
        ({"schedule": "zb-h1", "chunks": 1}, "Interleaved1F1B", True),
    ],
)
def test_schedules_by_name_or_as_ops(changes: dict[str, Any], name: str | None, csv: bool) -> None:
    """A CSV holds what torch does not build by name; the name beside it says where stages are."""
    problem, plan = llama_plan(**{"cuts": (3, 6, 9), **changes})
    if name is None:
        assert TORCHTITAN.lacks(problem, plan) == ("micro-batches of unlike sizes (2, 4)",)
        return
    read, found = written(problem, plan)
    parallelism = read["parallelism"]
    assert parallelism["pipeline_parallel_schedule"] == name
    assert (parallelism.get("pipeline_parallel_schedule_csv"), ".csv" in found.files) == (
        ("job.toml.csv", True) if csv else (None, False)
    )
    if csv:
        assert from_torch_csv(str(found.files[".csv"])).stages == len(parallelism["module_fqns_per_model_part"])


SIDE_BY_SIDE = tuple(
    replace(stage, devices=(number // 2,)) for number, stage in enumerate(llama_plan((3, 6, 9))[1].stages)
)
"""Two neighbouring stages on each of two devices."""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"zero": 1}, "ZeRO 1 (choices: 0, 2, 3)"),
        ({"recompute": ("attention",) * 4}, "recompute attention (choices: none, every-second-product, blocks)"),
        ({"recompute": ("blocks",) * 4, "recomputed_blocks": (1,) * 4}, "recomputation of some blocks of a stage"),
        ({"group": 2, "context": 2}, "context parallelism with ZeRO 0"),
        (
            {"group": 4, "context": 4, "zero": 3, "shard": 2, "replicas": 1},
            "ZeRO among 2 of groups that are 4 for each context",
        ),
        ({"stages": SIDE_BY_SIDE}, "(placement of its own)"),
    ],
)
def test_what_it_lacks(changes: dict[str, Any], why: str) -> None:
    """Told as a noun phrase."""
    problem, plan = llama_plan((3, 6, 9), **changes)
    assert any(why in one for one in TORCHTITAN.lacks(problem, plan))


def test_experts_of_replicas_are_of_divided_weights() -> None:
    """With ZeRO 0 there is nothing that FSDP divides among them."""
    problem = pp.Problem("mixtral-8x7b", "dgx-a100:1", 8, precision="bf16")
    stage = Stage(tuple(range(len(problem.workload))), tuple(range(8)))
    plan = Plan("hand", "1f1b", (stage,), (8,), expert=2)
    said = "expert parallelism over replicas with ZeRO 0 (choices: 2, 3)"
    assert [said in TORCHTITAN.lacks(problem, replace(plan, zero=zero)) for zero in (0, 2, 3)] == [True, False, False]


def test_only_adam() -> None:
    """The optimizer is a lack of the problem."""
    problem, plan = llama_plan((6,))
    assert TORCHTITAN.lacks(replace(problem, optimizer="momentum"), plan) == ("optimizer momentum (choices: adam)",)


def test_torch_knows_the_names() -> None:
    """Every schedule's name, and a class of several stages per rank for the placements."""
    schedules = pytest.importorskip(
        "torch.distributed.pipelining.schedules", reason="torch is not installed: its orders are not at hand"
    )
    for name in SCHEDULES.values():
        assert schedules.get_schedule_class(name)


def test_torchtitan_takes_the_settings() -> None:
    """Its own configuration has every field of `[training]` and `[parallelism]`, and takes the values."""
    configs = pytest.importorskip(
        "torchtitan.config.configs", reason="torchtitan is not installed: its settings are those of its sources"
    )
    for changes in (
        {},
        {"zero": 2, "chunks": 2},
        {"zero": 3, "group": 2, "chunks": 2, "schedule": "v-half", "back": True},
    ):
        read, _ = written(*llama_plan((3, 6, 9), **changes))  # type: ignore[arg-type]
        assert configs.ParallelismConfig(**read["parallelism"]).pipeline_parallel_degree > 1
        assert configs.TrainingConfig(**read["training"]).global_batch_size == 16
