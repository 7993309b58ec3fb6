"""Rules of every target: what it can run is written, what it cannot is refused with all lacks; searches and reports ask it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import pipeplan as pp
from experiments.targets.names import TARGETS
from hardware_profiles import GENERIC, Runs, load_stack
from simulator import Plan, PlanFile, Problem, simulate, stages_from_cuts
from tests.experiments.commands import ended, refused


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
        "--batch",
        "8",
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
    ("words", "said"),
    [
        ("plan --launchable megatrom --workload gpt2", "'megatrom' is unknown (did you mean megatron?)"),
        ("plan --launchable megatron --workload vgg16", "no networks but transformers (vgg16)"),
        (
            "compare --launchable megatron --workload chain:4 --cluster fpga-vcu118-4",
            "no such devices as vcu118 (FPGA)",
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
        ("export --workload gpt2 --format torch-csv", "--to torch-csv"),
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
    with pytest.raises(ValueError, match="runs no plan that mine does: zero: 0, 1 here, 2, 3 there"):
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
