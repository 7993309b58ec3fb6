"""Rules of every target: what it can run is written, what it cannot is refused with all lacks; searches and reports ask it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pipeplan as pp
from experiments.targets.names import TARGETS
from experiments.targets.target import Target
from hardware_profiles import GENERIC, Runs, load_stack
from simulator import Plan, PlanFile, Problem, check_plan, simulate, stages_from_cuts
from tests.chains import chain
from tests.experiments.commands import ended, refused
from tests.records import Recorded


def gpt2(**changes: object) -> tuple[Problem, Plan]:
    """GPT-2 in two stages of six blocks on two devices."""
    problem = pp.Problem("gpt2", "dgx-a100:1", 8, devices=2)
    layers = problem.workload.layers
    cut = next(number for number, layer in enumerate(layers) if layer.block == 7)
    plan = Plan("hand", "1f1b", stages_from_cuts([cut], len(layers), [(0,), (1,)]), (2,) * 4)
    return problem, replace(plan, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_writes_a_usual_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    """Two equal stages under 1F1B; the same content twice, the first of its files the one that is asked for."""
    path = tmp_path / "plan.json"
    PlanFile(*gpt2()).write(path)
    for turn in ("one", "two"):
        (tmp_path / turn).mkdir()
        code, out, _ = ended(
            capsys, ("export", "--plan", str(path), "--to", name, "--out", str(tmp_path / turn / "file"))
        )
        assert (code, out.startswith(f"{name} written to {tmp_path / turn / 'file'}")) == (0, True)
    written = [{one.name: one.read_bytes() for one in (tmp_path / turn).iterdir()} for turn in ("one", "two")]
    assert written[0]["file"]
    assert {end: text.replace(b"/one/", b"/two/") for end, text in written[0].items()} == written[1]


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_refuses_updates_without_a_flush(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    """One line with the target, the plan and every lack, exit code 2, no file."""
    path, out = tmp_path / "plan.json", tmp_path / "out"
    PlanFile(*gpt2(schedule="pipedream", microbatches=(1, 3, 2, 2))).write(path)
    line = refused(capsys, ("export", "--plan", str(path), "--to", name, "--out", str(out)))
    assert line.startswith(f"pipeplan export: --to {name} cannot run plan 'hand' (straight): it has no ")
    assert "micro-batches of unlike sizes (1, 2, 3)" in line
    assert "pipedream" in line
    assert not out.exists()


def test_a_search_obeys_the_target(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`--launchable`: the plan can be written; its file names the stack as ever, and reads back."""
    asked = [
        "plan",
        "--workload",
        "gpt2",
        "--cluster",
        "dgx-a100:1",
        "--devices",
        "2",
        "--batch",
        "4",
        "--planner",
        "large",
        "--launchable",
        "megatron",
        "--out",
    ]
    code, out, _ = ended(capsys, (*asked, str(tmp_path / "plan.json"), "--json"))
    assert (code, json.loads(out)["stack"]) == (0, "megatron-core")
    problem, plan = PlanFile.read_plan(tmp_path / "plan.json")
    assert (problem.stack, TARGETS["megatron"].lacks(problem, plan)) == (load_stack("megatron-core"), ())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            "",
            "generic, not of deepspeed's own stack: stack 'megatron-deepspeed' has no fused attention: llama2-7b needs",
        ),
        ("--attention unfused", "under each stack that runs it: megatron-deepspeed"),
    ],
)
def test_an_answer_tells_whose_seconds_it_has(capsys: pytest.CaptureFixture[str], more: str, told: str) -> None:
    """A target's own stack predicts its seconds, on Hopper too; where that does not run the problem, a line says so."""
    asked = "plan --workload llama2-7b --cluster dgx-h100:1 --batch 8 --planner rule-of-thumb --launchable deepspeed"
    code, out, _ = ended(capsys, (*asked.split(), *more.split()))
    assert (code, told in (said := " ".join(out.split())), "own stack" in said) == (0, True, not more)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan --launchable megatrom --workload gpt2", "'megatrom' is unknown (did you mean megatron?)"),
        (
            "plan --launchable megatron --workload vgg16",
            (
                "megatron cannot run plans of vgg16 on pipedream-b, 16 GPUs, 1024 images: it has no networks "
                "but transformers (vgg16)"
            ),
        ),
        (
            "compare --launchable megatron --workload chain:4 --cluster fpga-vcu118-4",
            (
                "megatron cannot run plans of chain-4 on fpga-vcu118-4, 4 FPGAs, 4 samples: it has no such "
                "devices as vcu118 (FPGA); no networks but transformers (chain-4)"
            ),
        ),
        (
            "plan --launchable megatron --workload gpt2 --cluster dgx-a100:1 --stack maxtext",
            "stack 'maxtext' runs no plan that megatron does: chips: systolic here, tensor-core there",
        ),
        (
            "plan --launchable megatron --workload gpt2 --cluster dgx-a100:1 --planner uniform --schedule gpipe",
            "stack 'generic' launched by megatron runs 1f1b, interleaved-1f1b, not 'gpipe'",
        ),
        ("export --workload gpt2", "--to"),
        ("export --workload gpt2 --to torch-csv --format text", "not allowed with"),
        ("export --workload gpt2 --format torch-csv", "--format torch-csv: it launches plans: --to torch-csv"),
        ("export --workload gpt2 --to megatron --with-sends", "--with-sends is not of --to megatron"),
        ("export --workload gpt2 --format text --with-sends", "--with-sends goes with --to"),
        ("plan --workers 2 --bandwidths 1e9 --profile a.txt --launchable megatron", "--launchable"),
    ],
)
def test_a_wish_that_no_plan_meets(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    """One line before any search."""
    assert said in refused(capsys, words.split())


def test_a_report_says_how_each_target_runs_the_plan() -> None:
    """The words that it is told, or all that it lacks."""
    problem, plan = gpt2()
    told = [pp.report(simulate(problem, replace(plan, zero=zero), engine="compiled")) for zero in (0, 2)]
    (runs,), (lacks,) = ([line for line in one.remarks() if "run by megatron" in line] for one in told)
    assert runs.startswith("run by megatron: --pipeline-model-parallel-size 2 --micro-batch-size 2")
    assert lacks == (
        "not run by megatron: it has no ZeRO 2 in a pipeline (Megatron-FSDP has one stage; pipelines run ZeRO 0 or 1)"
    )
    assert set(told[0].record()["launch"]) == set(TARGETS)


def test_a_stack_is_narrowed_to_what_a_launcher_runs() -> None:
    """Lists in common, both's switches and rules; nothing in common is an error; a file names the stack as before."""
    stack = load_stack("megatron-core")
    narrowed = stack.launched_by("mine", Runs(zero=(1, 2), schedules=("1f1b", "gpipe"), tensor=False))
    assert (narrowed.runs.zero, narrowed.runs.schedules, narrowed.runs.tensor) == ((1,), ("1f1b",), False)
    assert (narrowed.source, narrowed.runs.unequal, narrowed.products) == (stack.source, False, stack.products)
    with pytest.raises(
        ValueError, match="stack 'megatron-core' runs no plan that mine does: zero: 0, 1 here, 2, 3 there"
    ):
        stack.launched_by("mine", Runs(zero=(2, 3)))
    problem = Problem(gpt2()[0].workload, gpt2()[0].cluster, 8, GENERIC.launched_by("mine", Runs(pipeline=False)))
    assert '"stack": "generic"' in PlanFile(problem).to_json()
    with pytest.raises(
        ValueError, match="stack 'generic' launched by mine does not run plan 'hand': it has no pipelines"
    ):
        simulate(problem, gpt2()[1])


def test_a_problem_of_a_target_has_plans_that_it_launches() -> None:
    """From Python: the stack runs nothing else; what the target cannot run is refused, with what it lacks."""
    asked = pp.launchable(pp.Problem("gpt2", "dgx-a100:1", batch=16, stack="megatron-core"), "megatron")
    assert TARGETS["megatron"].lacks(asked, pp.plan(asked, "rule-of-thumb").plan) == ()
    with pytest.raises(ValueError, match=r"megatron cannot run plans of vgg16 .*: it has no networks but transformers"):
        pp.launchable(pp.Problem("vgg16", "dgx-a100:1"), "megatron")
    with pytest.raises(ValueError, match=r"target 'megatrom' is unknown \(did you mean megatron\?\)"):
        pp.launchable(asked, "megatrom")


@cache
def problem_of(**given: Any) -> Problem:
    """As `pipeplan.Problem` has it; what is asked again is answered from memory."""
    return pp.Problem(**given)


def cut_plan(
    cuts: tuple[int, ...] = (6,), *, ranks: int = 2, wide: int = 1, group: int = 1, given: Any = None, **changes: Any
) -> tuple[Problem, Plan]:
    """A transformer cut behind so many blocks (below 0: before so many last layers), on ranks of so many devices, in groups
    of so many; given: of the problem."""
    problem = problem_of(**{"workload": "gpt2", "cluster": "dgx-a100:2", "batch": 16, **(given or {})})
    blocks = [layer.block for layer in problem.workload.layers]
    places = [tuple(range(wide * rank, wide * (rank + 1))) for rank in range(ranks)] * (len(cuts) + 1)
    stages = stages_from_cuts(
        [blocks.index(cut + 1) if cut > 0 else cut % len(blocks) for cut in cuts],
        *(len(blocks), places[: len(cuts) + 1], group),
    )
    return problem, replace(Plan("hand", "1f1b", stages, (4,) * 4), **changes)


LOOPED = {"cuts": (3, 6, 9), "schedule": "interleaved-1f1b"}
BLOCKS = ("blocks", "blocks")
ASKED: dict[str, dict[str, Any]] = {
    "two stages": {},
    "stages of unlike blocks": {"cuts": (5,)},
    "one stage": {"cuts": (), "ranks": 1},
    "an output head in two stages": {"cuts": (-1,)},
    "a block in two stages": {"cuts": (-5,)},
    "norm and head alone": {"cuts": (-3,)},
    "slices of a sequence": {"schedule": "seq1f1b", "options": (("slices", 2),)},
    "gpipe": {"schedule": "gpipe"},
    "zero bubble": {"schedule": "zb-h1"},
    "an order": {"order": ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"), "microbatches": (8, 8)},
    "two stages per device": LOOPED,
    "groups of four": {**LOOPED, "options": (("microbatch_group_size", 4),)},
    "all stages on one device": {**LOOPED, "ranks": 1, "cuts": (6,)},
    "unlike micro-batches": {"microbatches": (5, 5, 6)},
    "unlike recomputation": {"recompute": ("blocks", "none")},
    "recomputed blocks": {"recompute": BLOCKS},
    "some recomputed blocks": {"recompute": BLOCKS, "recomputed_blocks": (1, 1)},
    "recomputed attention": {"recompute": ("attention", "attention")},
    "two replicas": {"wide": 2},
    "two replicas, fp32 gradients": {"wide": 2, "given": {"precision": "bf16", "gradient_bytes": 4}},
    "two replicas in turn": {"wide": 2, "replication": "round-robin"},
    **{f"two replicas, ZeRO {zero}": {"wide": 2, "zero": zero} for zero in (1, 2, 3)},
    **{f"no pipeline, ZeRO {zero}": {"cuts": (), "ranks": 1, "wide": 4, "zero": zero} for zero in (1, 2, 3)},
    "ZeRO 1 among two of four": {"wide": 4, "zero": 1, "shard": 2},
    "ZeRO 3 among two of four": {"cuts": (), "ranks": 1, "wide": 4, "zero": 3, "shard": 2},
    "tensor-parallel groups": {"wide": 2, "group": 2, "given": {"sequence_parallel": False}},
    "tensor-parallel groups, the rest too": {"wide": 2, "group": 2},
    "tensor-parallel groups, ZeRO 2": {
        "cuts": (),
        "ranks": 1,
        "wide": 4,
        "group": 2,
        "zero": 2,
        "given": {"sequence_parallel": False},
    },
    "tensor-parallel groups, no pipeline": {"cuts": (), "ranks": 1, "wide": 2, "group": 2},
    "two contexts": {"wide": 2, "group": 2, "context": 2},
    "two contexts, ZeRO 3": {"wide": 2, "group": 2, "context": 2, "zero": 3},
    "experts": {"cuts": (16,), "wide": 2, "expert": 2, "given": {"workload": "mixtral-8x7b", "precision": "bf16"}},
    "experts beside tensor-parallel groups": {
        "cuts": (16,),
        "wide": 2,
        "group": 2,
        "given": {"workload": "mixtral-8x7b", "precision": "bf16", "sequence_parallel": False},
    },
    **{f"in {one}": {"given": {"precision": one}} for one in ("fp16", "bf16", "tf32")},
    "in fp8": {"given": {"precision": "fp8", "cluster": "dgx-h100:1"}},
    **{f"with {one}": {"given": {"optimizer": one}} for one in ("sgd", "momentum")},
    "boards": {"given": {"cluster": "fpga-vcu129-4", "precision": "fp16"}},
}


def test_what_every_target_lacks_and_writes(recorded: Recorded) -> None:
    """By target and what plans ask for: its lacks, or the files and notes of a launch; of all but the first plan the lines that
    are not those of the first."""
    found = {
        words: {name: told_by(one, *cut_plan(**asked)) for name, one in TARGETS.items()}
        for words, asked in ASKED.items()
    }
    first, *others = found.values()
    known = {name: {line for text in told.values() for line in text} for name, told in first.items()}
    for told in others:
        for name, texts in told.items():
            told[name] = {file: [line for line in text if line not in known[name]] for file, text in texts.items()}
    recorded(**{name: by_sameness({words: told[name] for words, told in found.items()}) for name in TARGETS})


def test_stages_that_launchers_do_not_form() -> None:
    """Replicas of two devices beside one of one, stages there and back, stages of every second layer."""
    problem, plan = cut_plan(wide=3)
    unlike = replace(plan, stages=tuple(replace(one, degrees=(2, 1)) for one in plan.stages))
    said = "replicas of a stage in groups of unlike sizes"
    assert all(said in one.lacks(problem, unlike) for one in TARGETS.values())
    problem, plan = cut_plan((3, 6, 9), schedule="zb-v")
    ends = (replace(plan.stages[2], devices=(1,)), replace(plan.stages[3], devices=(0,)))
    lacks = TARGETS["megatron"].lacks(problem, replace(plan, stages=plan.stages[:2] + ends))
    assert lacks[1:] == ("stages per device but stage s on rank s mod ranks",)
    apart = pp.Problem(replace(chain([1.0] * 4, name="two chains"), edges=((0, 1), (2, 3))), "dgx-a100:1", 16)
    first, second = stages_from_cuts([2], 4, [(0,), (1,)])
    plans = [
        Plan("hand", "1f1b", (replace(first, layers=some), replace(second, layers=others)), (4,) * 4)
        for some, others in (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    ]
    for one in plans:
        check_plan(apart, one)
    assert [TARGETS["deepspeed"].lacks(apart, one) for one in plans] == [
        (),
        ("stages of layers that are no neighbours",),
    ]


def by_sameness(told: dict[str, dict[str, list[str]]]) -> list[dict[str, Any]]:
    """What is told, each once, with the words of all plans that are told it."""
    same: dict[str, dict[str, Any]] = {}
    for words, texts in told.items():
        same.setdefault(str(texts), {"of": [], **{name: text for name, text in texts.items() if text}})["of"].append(
            words
        )
    return list(same.values())


def told_by(target: Target, problem: Problem, plan: Plan) -> Any:
    """What it lacks, or what it writes, by lines."""
    if lacks := target.lacks(problem, plan):
        return {"lacks": lacks}
    found = target.written("name", problem, plan, "file")
    files = {f"file{end}": text for end, text in found.files.items() if isinstance(text, str)}
    return {**{name: text.splitlines() for name, text in files.items()}, "notes": found.notes}
