"""Rules of `export --to deepspeed`: documented keys, a batch that adds up, and a module whose stages are the plan's."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pipeplan as pp
from experiments.targets.deepspeed import DEEPSPEED
from simulator import Plan, Problem, Stage, stages_from_cuts

DOCUMENTED = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "optimizer",
    "bf16",
    "fp16",
    "zero_optimization",
    "data_types",
}
"""Keys of DeepSpeed's configuration (deepspeed.ai, "DeepSpeed Configuration JSON") that a plan may need."""


def plan_of(problem: Problem, cuts: list[int], replicas: int = 2, **changes: Any) -> tuple[Problem, Plan]:
    """Stages cut before these layers, each on so many devices, in four micro-batches."""
    places = [tuple(range(replicas * rank, replicas * (rank + 1))) for rank in range(len(cuts) + 1)]
    stages = stages_from_cuts(cuts, len(problem.workload), places)
    return problem, replace(Plan("hand", "1f1b", stages, (4,) * 4), **changes)


def gpt2_plan(blocks: list[int], **changes: Any) -> tuple[Problem, Plan]:
    """GPT-2 cut behind so many blocks."""
    problem = pp.Problem("gpt2", "dgx-a100:2", 16, precision="bf16", gradient_bytes=4, attention="unfused")
    numbers = [layer.block for layer in problem.workload.layers]
    return plan_of(problem, [numbers.index(block + 1) for block in blocks], **changes)


def written(problem: Problem, plan: Plan) -> tuple[dict[str, Any], str]:
    """The configuration, read back, and the module's text."""
    files = DEEPSPEED.written("deepspeed", problem, plan, "run.json").files
    return json.loads(files[""]), str(files.get(".py", ""))


def test_the_configuration_says_the_plan() -> None:
    """By documented keys alone; the batch is micro-batch × steps × replicas, as DeepSpeed asks."""
    found, _ = written(*gpt2_plan([3, 7], zero=1))
    assert set(found) <= DOCUMENTED
    assert found == {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "Adam"},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    assert written(*gpt2_plan([], zero=3))[1] == ""  # one stage needs no module


def test_what_hooks_of_zero_reduce_beside_the_backward() -> None:
    """A key asks for it where one stage has ZeRO; elsewhere a line tells that plans with buckets are predicted too soon."""
    problem, plan = gpt2_plan([], zero=1)
    whole = replace(problem, gradient_reduction="whole")
    assert written(problem, plan)[0]["zero_optimization"] == {"stage": 1, "overlap_comm": True}
    assert written(whole, plan)[0]["zero_optimization"] == {"stage": 1}
    later = [
        any("--gradient-reduction whole" in note for note in DEEPSPEED.written("deepspeed", asked, other).notes)
        for asked, other in [(problem, plan), gpt2_plan([6], zero=1), gpt2_plan([]), (whole, gpt2_plan([])[1])]
    ]
    assert later == [False, True, True, False]


class FakePipelineModule:
    """What DeepSpeed's class does in its constructor as far as stages go."""

    def __init__(self, layers: list[Any], topology: Any, **options: Any) -> None:
        self._layer_specs, self._topo, self.options, self.global_rank = layers, topology, options, topology.rank
        self._partition_layers(method="parameters")

    def _partition_layers(self, method: str) -> None:
        raise NotImplementedError

    def _set_bounds(self, start: int, stop: int) -> None:
        self.bounds = start, stop


def loaded(text: str, rank: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the module, as the process of a rank gets it; DeepSpeed stood in for."""

    def topology(num_pp: int, num_mp: int, num_dp: int) -> Any:
        return SimpleNamespace(
            rank=rank,
            get_coord=lambda one: SimpleNamespace(pipe=one // (num_mp * num_dp)),
            size=num_pp * num_mp * num_dp,
        )

    pipe, places = ModuleType("deepspeed.pipe"), ModuleType("deepspeed.runtime.pipe.topology")
    pipe.PipelineModule = FakePipelineModule  # type: ignore[attr-defined]
    places.PipeModelDataParallelTopology = topology  # type: ignore[attr-defined]
    for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.pipe"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, pipe.__name__, pipe)
    monkeypatch.setitem(sys.modules, places.__name__, places)
    names: dict[str, Any] = {}
    exec(compile(text, "run.json.py", "exec"), names)
    return names["PlannedPipeline"]


def test_stages_are_those_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 blocks as 5/6/7/6 the parts are 0, 6, 12, 19, 26: the embedding is with the first, the head with the last."""
    problem = pp.Problem("gpt2-medium", "dgx-a100:2", 16, precision="bf16", attention="unfused")
    numbers = [layer.block for layer in problem.workload.layers]
    plan = plan_of(problem, [numbers.index(block + 1) for block in (5, 11, 18)], recompute=("blocks",) * 4)
    _, text = written(*plan)
    found = [loaded(text, rank, monkeypatch)(["layer"] * 26) for rank in range(8)]
    assert [one.bounds for one in found[::2]] == [(0, 6), (6, 12), (12, 19), (19, 26)]
    assert [one.bounds for one in found[::2]] == [one.bounds for one in found[1::2]]
    assert found[0].options == {"activation_checkpoint_interval": 1}
    with pytest.raises(ValueError, match="the plan is of 26 layers, got 25"):
        loaded(text, 0, monkeypatch)(["layer"] * 25)


def test_other_networks_are_cut_by_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain's entries are its layers; one whose layers branch is no sequence."""
    problem, plan = plan_of(pp.Problem("vgg16", "dgx-a100:1", 16), [10, 25])
    assert loaded(written(problem, plan)[1], 2, monkeypatch)(["layer"] * len(problem.workload)).bounds == (10, 25)
    branching = plan_of(pp.Problem("resnet50", "dgx-a100:1", 16), [10])
    assert DEEPSPEED.lacks(*branching) == ("networks that branch (resnet50)",)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"zero": 2}, "ZeRO 2 in a pipeline (choices: 0, 1)"),
        ({"schedule": "gpipe"}, "schedule gpipe (choices: 1f1b)"),
        ({"recompute": ("blocks", "none")}, "stages that recompute unlike (blocks, none)"),
        ({"recompute": ("blocks",) * 2, "recomputed_blocks": (1, 1)}, "recomputation of some blocks of a stage"),
    ],
)
def test_what_it_lacks(changes: dict[str, Any], why: str) -> None:
    """Told as a noun phrase; alone."""
    (lack,) = DEEPSPEED.lacks(*gpt2_plan([6], **changes))
    assert lack.startswith(why)


def test_stages_end_between_entries() -> None:
    """Inside a block and between the last norm and the head."""
    problem, _ = gpt2_plan([6])
    count = len(problem.workload)
    lacks = [DEEPSPEED.lacks(*plan_of(problem, [cut])) for cut in (20, count - 2)]
    assert lacks == [("stages that end inside a block, the embedding or the output head",)] * 2


def test_one_stage_has_no_module() -> None:
    """Its recomputation is told, as no key says it; tensor-parallel groups are of a module, which runs ZeRO 0 and 1 alone."""
    asked: dict[str, Any] = {"precision": "bf16", "attention": "unfused", "sequence_parallel": False}
    problem = pp.Problem("gpt2-medium", "dgx-a100:1", 16, **asked)
    layers = tuple(range(len(problem.workload)))
    alone = Plan("hand", "1f1b", (Stage(layers, tuple(range(8))),), (8, 8), zero=3, recompute=("blocks",))
    given = DEEPSPEED.written("deepspeed", problem, alone)
    assert list(given.files) == [""]
    assert "recompute every block in the model" in " ".join(given.notes)
    assert len(DEEPSPEED.written("deepspeed", problem, replace(alone, recompute=("none",))).notes) == 1
    groups = replace(alone, stages=(replace(alone.stages[0], degrees=(2,) * 4),))
    assert DEEPSPEED.lacks(problem, replace(groups, zero=1)) == ()
    assert list(DEEPSPEED.written("deepspeed", problem, replace(groups, zero=1)).files) == ["", ".py"]
    (lack,) = DEEPSPEED.lacks(problem, groups)
    assert lack.startswith("ZeRO 3 beside tensor-parallel groups")


RUN = """
import json, os, sys, torch
import deepspeed, deepspeed.comm.comm, deepspeed.comm.torch
from deepspeed.pipe import LayerSpec
from deepspeed.runtime.config import DeepSpeedConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

deepspeed.comm.torch.build_shm_op = lambda: None  # compiles for minutes, and is for messages alone
names = {}
exec(compile(open(sys.argv[1] + ".py").read(), sys.argv[1] + ".py", "exec"), names)
found = []
for rank in range(8):
    os.environ["LOCAL_RANK"] = str(rank)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
    deepspeed.init_distributed(dist_init_required=False)
    module = names["PlannedPipeline"]([LayerSpec(torch.nn.Linear, 2, 2) for _ in range(26)])
    read = DeepSpeedConfig(sys.argv[1], mpu=module.mpu())
    config = read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps
    built = [int(name) for name, _ in module.named_children() if name.isdigit()]
    found.append([module.stage_id, built, module.activation_checkpoint_interval, *config, read.zero_optimization_stage])
    torch.distributed.destroy_process_group()
    deepspeed.comm.comm.cdb = None
open(sys.argv[2], "w").write(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="deepspeed is not installed: its partition is a stand-in of ours"
)
def test_deepspeed_cuts_as_the_plan_says(tmp_path: Path) -> None:
    """Its own class builds in each of eight processes the layers of its stage; its configuration adds up."""
    problem = pp.Problem("gpt2-medium", "dgx-a100:2", 16, precision="bf16", attention="unfused")
    numbers = [layer.block for layer in problem.workload.layers]
    cuts = [numbers.index(block + 1) for block in (5, 11, 18)]
    files = DEEPSPEED.written("deepspeed", *plan_of(problem, cuts, recompute=("blocks",) * 4, zero=1), "run.json").files
    for end, content in files.items():
        (tmp_path / f"run.json{end}").write_text(str(content))
    (tmp_path / "run.py").write_text(RUN)
    words = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "run.json"), str(tmp_path / "found.json")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr
    parts = [0, 6, 12, 19, 26]
    assert json.loads((tmp_path / "found.json").read_text()) == [
        [stage, list(range(parts[stage], parts[stage + 1])), 1, 16, 2, 4, 1] for stage in range(4) for _ in range(2)
    ]
