"""Rules of `--plan TARGET:…`: what a target is given is read back as the plan that it says, on the problem of the options."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeplan as pp
from experiments.cli import COMMANDS, parser_of
from experiments.commands import calibrate_command
from experiments.targets.megatron import layout_blocks, layout_string
from experiments.targets.torchtitan import TORCHTITAN
from simulator import Plan, PlanFile, Problem, stages_from_cuts
from tests.experiments.commands import ended, instead, refused, small_gpt

LAYOUT = "megatron:Et*6|t*6L"

GPT2 = ("--workload", "gpt2", "--cluster", "dgx-a100:1", "--batch", "16")


def imported(capsys: pytest.CaptureFixture[str], folder: Path, plan: str, *words: str) -> tuple[Problem, Plan]:
    """The plan file that `export` writes of an imported plan."""
    path = folder / "found.json"
    code, _, err = ended(
        capsys, ("export", "--plan", plan, *instead(GPT2, *words), "--format", "plan", "--out", str(path))
    )
    assert (code, err) == (0, "")
    return PlanFile.read_plan(path)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("Et*5|t*6L", [5, 6]),
        ("Ettt|(tt|)*2,t|L", [3, 2, 2, 1, 0]),
        ("E|t*2|(t|t)*2L", [0, 2, 1, 2, 1]),
        ("EtL", [1]),
    ],
)
def test_layouts_repeat_and_end_stages(text: str, blocks: list[int]) -> None:
    """Commas say nothing; an end of a stage may be repeated, too."""
    assert layout_blocks(text) == blocks


def test_a_layout_is_a_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two stages per device, tensor groups of two, replicas for what is left; it says the same layout again."""
    problem, plan = imported(
        capsys,
        tmp_path,
        "megatron:Et*2|t*3|t*4|t*3L",
        *["--chunks", "2", "--tensor", "2", "--zero", "1", "--microbatches", "4"],
    )
    assert layout_string(problem, plan) == "Et*2|t*3|t*4|t*3L"
    assert (plan.schedule, plan.zero, plan.microbatches) == ("interleaved-1f1b", 1, (4,) * 4)
    assert [(stage.devices, stage.degrees) for stage in plan.stages[:2]] == [
        ((0, 1, 2, 3), (2, 2)),
        ((4, 5, 6, 7), (2, 2)),
    ]
    assert plan.stages[2].devices == plan.stages[0].devices
    _, plan = imported(capsys, tmp_path, "megatron:Et*12|L")
    head = [number for number, layer in enumerate(problem.workload.layers) if layer.part == "output head"]
    assert plan.stages[1].layers == tuple(head)
    _, plan = imported(capsys, tmp_path, LAYOUT, "--context", "2")
    assert (plan.context, plan.stages[0].degrees) == (2, (2, 2))
    routed = ("--workload", "mixtral-8x7b", "--cluster", "dgx-a100:1", "--batch", "8", "--expert", "2")
    _, plan = imported(capsys, tmp_path, "megatron:Et*16|t*16L", *routed)
    assert (plan.expert, plan.context, len(plan.stages[0].leads)) == (2, 1, 4)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("megatron:Et*5|t*8L", "--plan megatron: the stages have 13 blocks, gpt2 has 12"),
        (
            "megatron:Et*5|x|t*7L",
            "layout 'Et*5|x|t*7L': 'x' is none of E (embedding), t (block), L (loss), | (next stage)",
        ),
        ("megatron:t*12", "layout 't*12' must begin with E, end with L, and have one of each"),
        ("megatron:Et*12", "layout 'Et*12' must begin with E, end with L, and have one of each"),
        ("megatron:Et*6|Et*6L", "layout 'Et*6|Et*6L' must begin with E, end with L, and have one of each"),
        ("megatron:", "layout '' must begin with E"),
        (
            "megatron:E(t)*999999(t)*999999L",
            "--plan megatron: layout 'E(t)*999999(t)*999999L' has more than 65,536 layers",
        ),
        ("megatron:Et*0|t*12L", "layout 'Et*0|t*12L': t*0 repeats nothing; a count is at least 1"),
        ("megatron:Et*6|(t|)*00t*6L", "layout 'Et*6|(t|)*00t*6L': (t|)*00 repeats nothing; a count is at least 1"),
        ("megatron:Et*6||t*6L", "--plan megatron: stage 1 would hold no layer; every stage holds one"),
        (
            "megatron:E" + "|".join("t" * 12) + "L",
            "--plan megatron: 12 ranks × 1 pipelines × groups of 1 take 12 GPUs, dgx-a100 has 8",
        ),
        ("megatron:Et*4|t*4|t*4L --chunks 2", "layout of 3 stages, 2 per device: it must be a multiple"),
        ("megatron:Et*6|t*6L --tensor 2,4", "--plan megatron: tensor 2, 4: an imported plan has one value"),
        ("megatron:Et*6|t*6L --microbatches 3", "do not divide a batch of 16 evenly"),
        ("megatron:Et*12L --microbatches 8", "8 micro-batches of 8 pipelines do not divide a batch of 16 evenly"),
        ("megatron:Et*12L --batch 4", "1 micro-batches of 8 pipelines do not divide a batch of 4 evenly"),
        (
            "megaton:Et*6|t*6L",
            (
                "--plan 'megaton:Et*6|t*6L': target 'megaton' is unknown (did you mean megatron?); choices: "
                "megatron, torchtitan, or the path of a plan file"
            ),
        ),
        ("Et*6|t*6L", "--plan 'Et*6|t*6L': a form of megatron has its name before it: --plan 'megatron:Et*6|t*6L'"),
        ("job.toml", "a form of torchtitan has its name before it: --plan 'torchtitan:job.toml'"),
        (
            "deepspeed:ds.json",
            (
                "--plan 'deepspeed:ds.json': target 'deepspeed' is unknown; choices: megatron, torchtitan, "
                "or the path of a plan file"
            ),
        ),
        ("megatron:Et*6|t*6L --planner large", "--planner is for a search"),
        ("megatron:Et*6|t*6L --placement v", "--placement is for a search"),
    ],
)
def test_layouts_of_no_plan(capsys: pytest.CaptureFixture[str], plan: str, said: str) -> None:
    """One line, exit code 2."""
    path, *words = plan.split()
    assert said in refused(capsys, ("export", "--to", "megatron", *instead(GPT2, *words), "--plan", path))


def test_what_is_no_target_is_the_name_of_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one with a colon, and with the name of a target, where the file is there."""
    monkeypatch.chdir(tmp_path)
    problem, plan = imported(capsys, tmp_path, LAYOUT)
    for name in ("C:plan.json", "megatro:plan.json", "deepspeed:plan.json"):
        PlanFile(problem, plan).write(name)
        assert ended(capsys, ("check", "--plan", name))[0] == 0
    assert "D:plan.json: No such file or directory" in refused(capsys, ("check", "--plan", "D:plan.json"), 4)


def test_a_form_may_be_what_check_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    """As a file, without --plan: what is said is the same."""
    asked = [ended(capsys, ("check", *words, *GPT2)) for words in ((LAYOUT,), ("--plan", LAYOUT))]
    assert asked[0] == asked[1]
    assert asked[0][0] == 0


FAILURES = "--mtbf 100 --checkpoint-gb-per-s 2 --restart-seconds 10 --days 1 --runs 2"

QUESTIONS = {
    "explain": "--json",
    "whatif": "--set cluster.network.bandwidth_gbps=*2 --keep --json",
    "sensitivity": "--over accelerator.tflops_bf16 --json",
    "simulate": "--engine compiled --json",
    "check": "",
    "export": "--format text",
    "compare": "--planner rule-of-thumb --no-figures --out {out} --json",
    "view": "--out {out}/page.html --json",
    "goodput": f"{FAILURES} --json",
    "calibrate": "--measured 0.12 --out {out}/stack.toml --json",
    "sweep": "--over cluster.servers.inside.latency_us=1 --jobs 1 --json",
}
"""Words of every command that takes a plan."""


def test_every_command_that_takes_a_plan_is_asked() -> None:
    """None has a reader of its own."""
    _, parsers = parser_of(COMMANDS)
    assert {name for name, one in parsers.items() if "--plan" in one._option_string_actions} == {*QUESTIONS}


def test_questions_take_every_form(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And say what they say of the same plan from a file: `compare` and `explain` of both forms, the others of one in turn."""
    monkeypatch.setattr(calibrate_command, "_changed", lambda run: [])  # of which torchtitan's form has others
    file, job = tmp_path / "found.json", tmp_path / "job.toml"
    layout, degrees = "megatron:Et|tL", ["--tensor", "2", "--microbatches", "2"]
    own_options = [
        "--workload",
        small_gpt(tmp_path),
        "--batch",
        "4",
        "--stack",
        "generic",
    ]  # which predicts all of them
    options = instead(GPT2, *own_options)
    problem, plan = imported(capsys, tmp_path, layout, *own_options, *degrees)
    job.write_text(str(TORCHTITAN.written("torchtitan", problem, replace(plan, zero=0)).files[""]))
    forms = [[str(file)], [layout, *options, *degrees], [f"torchtitan:{job}", *options]]
    names = rf"{re.escape(layout)}|(torchtitan:)?{job}|{file}|megatron|torchtitan|{file.name}"
    recompute = (
        r',\s+"recompute": \[[^]]+\]|(?s:"others".*)'  # that it is none, torchtitan says, which leaves no other plan
    )
    own = rf'{names}|"planning_seconds": \S+|{recompute}'
    for number, (name, words) in enumerate(QUESTIONS.items()):
        asked = [name, *words.format(out=tmp_path / "out").split()]
        beside = [degrees, [], degrees] if name == "compare" else [[]] * 3  # its planners hear them, too
        pairs = [*zip(forms, beside, strict=True)]
        if name not in ("compare", "explain"):
            del pairs[1 + number % 2]
        told = [ended(capsys, (*asked, "--plan", *form, *more)) for form, more in pairs]
        assert [code for code, *_ in told] == [0] * len(pairs), told
        assert len({re.sub(own, "", out) for _, out, _ in told}) == 1, name


@pytest.mark.parametrize("stack", ["fsdp2-eager", "fsdp2-compiled"])
def test_a_job_is_predicted_as_it_was_planned(capsys: pytest.CaptureFixture[str], tmp_path: Path, stack: str) -> None:
    """What torchtitan is told of a plan says which stack predicts it, and comes back as the same problem and plan."""
    problem, plan = imported(capsys, tmp_path, LAYOUT, "--zero", "1")
    assert problem.stack.name == "megatron-core"
    asked = pp.Problem("gpt2", "dgx-a100:1", 16, stack=stack)
    job = tmp_path / "job.toml"
    job.write_text(str(TORCHTITAN.written("torchtitan", asked, replace(plan, zero=3)).files[""]))
    assert ("[compile]" in job.read_text()) == (stack == "fsdp2-compiled")
    again, _ = imported(capsys, tmp_path, f"torchtitan:{job}")
    assert again == asked


def test_stacks_that_do_not_run_an_imported_plan_predict_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Under a schedule that Megatron-Core has not, a layout is predicted as before; a key of another kind is told."""
    assert imported(capsys, tmp_path, LAYOUT, "--schedule", "gpipe")[0].stack.name == "generic"
    assert imported(capsys, tmp_path, LAYOUT, "--stack", "megatron-deepspeed")[0].stack.name == "megatron-deepspeed"
    job = tmp_path / "job.toml"
    job.write_text('[compile]\nenable = "yes"\n[activation_checkpoint]\nmode = "none"\n')
    told = ended(capsys, ("explain", "--plan", f"torchtitan:{job}", *GPT2))
    assert (told[0], "compile.enable = 'yes'; choices: true, false" in told[2]) == (4, True)


def test_a_sweep_reads_a_layout_at_every_point(capsys: pytest.CaptureFixture[str]) -> None:
    """Under the options of the point, as simulate does; a point whose options it has no room for says so, and others go on."""
    words = ["--plan", LAYOUT, "--workload", "gpt2", "--cluster", "dgx-a100:1", "--stack", "generic"]
    asked = ["sweep", *words, "--over", "batch=16", "--over", "tensor=1,2,8", "--jobs", "1", "--json"]
    rows = json.loads(ended(capsys, asked)[1])["rows"]
    for row in rows[:2]:
        point = ["simulate", *words, "--batch", "16", "--tensor", str(row["tensor"]), "--engine", "compiled", "--json"]
        assert row["iteration_seconds"] == json.loads(ended(capsys, point)[1])["iteration_seconds"]
    assert (rows[2]["status"], rows[0]["layout"] != rows[1]["layout"]) == ("refused", True)
    assert "--plan megatron: 2 ranks × 1 pipelines × groups of 8 take 16 GPUs, dgx-a100 has 8" in rows[2]["reason"]
    said = refused(capsys, ["sweep", *words, "--tensor", "2", "--over", "tensor=1,2"])
    assert "tensor is swept, and given as (2,): say one of both" in said


NUMBERS = "--stages 2 --microbatches 2 --forward 1 --backward 1"
"""Of a schedule."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("explain --plan mine.json --batch 3", "--batch describes a plan of a target's form; --plan mine.json has its"),
        ("whatif --plan mine.json --set batch=3 --cluster dgx-a100:1", "--cluster describes a plan of a target's form"),
        ("sensitivity --plan megatron:EtL --workload gpt2 --stack generic,fsdp1-eager", "that is there runs under one"),
        ("check gpt2.toml --tensor 2", "--tensor goes with --plan megatron:… or torchtitan:…"),
        (f"simulate --schedule gpipe {NUMBERS} --zero 1", "--zero goes with --plan megatron"),
        (
            "view --plan mine.json --batch 3 --out {out}.html",
            "--batch describes a plan of a target's form; --plan mine",
        ),
        (
            "view --plan megatron:EtL --out {out}.html",
            "--plan megatron:EtL: --workload: is missing: the form of a target",
        ),
        (
            "view --plan megatron:EtL --plan megatron:EtL --workload gpt2 --out {out}.html",
            "megatron:EtL is given twice",
        ),
        (
            f"goodput --servers 3 --batch 3 {FAILURES.replace('gb-per-s', 'seconds')}",
            "--batch goes with --plan megatron",
        ),
        (f"goodput --plan megatron:EtL --workload gpt2 --devices 3 {FAILURES}", "--devices goes with --servers"),
        (
            "calibrate --plan mine.json --measured 1 --batch 3 --out {out}.toml",
            "--batch describes a plan of a target's",
        ),
        (
            "calibrate --plan mine.json --measured 1 --precision bf16 --out {out}.toml",
            "--precision goes with --kernels",
        ),
        ("calibrate --kernels --batch 3 --out {out}.toml", "--batch does not go with --kernels"),
        (
            "sweep --plan megatron:Et*12L --workload gpt2 --planner large --over batch=1",
            "--planner does not go with --plan",
        ),
        ("sweep --plan megatron:Et*6|t*7L --workload gpt2 --over batch=64", "the stages have 13 blocks, gpt2 has 12"),
        ("simulate --plan megatron:Et*6|t*6L --stages 2", "--stages is of a schedule; --plan megatron:Et*6|t*6L says"),
    ],
)
def test_options_of_no_layout(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, said: str) -> None:
    """One line, exit code 2."""
    assert said in refused(capsys, tuple(words.format(out=tmp_path / "written").split()))
    assert not list(tmp_path.iterdir())


def gpt2_plan(back: bool = False, **changes: Any) -> tuple[Problem, Plan]:
    """GPT-2 in four stages on two ranks of two devices, round or in a V."""
    problem = pp.Problem("gpt2", "dgx-a100:1", 16, precision="bf16", optimizer="adam")
    blocks = [layer.block for layer in problem.workload.layers]
    places = [(0, 1, 2, 3), (4, 5, 6, 7)]
    places = places + places[::-1] if back else places * 2
    stages = stages_from_cuts([blocks.index(block) for block in (3, 6, 10)], len(blocks), places)
    plan = Plan("torchtitan", "interleaved-1f1b", stages, (4,) * 4, recompute=("none",) * 4, zero=3)
    return problem, replace(plan, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"zero": 2, "shard": 2, "recompute": ("blocks",) * 4},
        {"zero": 0, "schedule": "looped-bfs"},
        {"back": True, "schedule": "zb-v"},
    ],
)
def test_what_torchtitan_is_given_is_the_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Written and read back: the same plan."""
    problem, plan = gpt2_plan(**changes)
    job = tmp_path / "job.toml"
    for end, text in TORCHTITAN.written("torchtitan", problem, plan, str(job)).files.items():
        job.with_name(job.name + end).write_text(str(text))
    _, found = imported(capsys, tmp_path, f"torchtitan:{job}")
    assert found == plan


@pytest.mark.parametrize(("cut", "zero"), [((3,), 2), ((), 3)])
def test_a_default_of_resharding_is_torchtitans(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cut: tuple[int, ...], zero: int
) -> None:
    """Weights are gathered once per micro-batch and pass without a pipeline, and kept with one."""
    problem = pp.Problem("gpt2", "dgx-a100:1", 16, precision="bf16", optimizer="adam")
    blocks = [layer.block for layer in problem.workload.layers]
    places = [(0, 1, 2, 3), (4, 5, 6, 7)] if cut else [tuple(range(8))]
    stages = stages_from_cuts([blocks.index(block) for block in cut], len(blocks), places)
    plan = Plan("torchtitan", "1f1b", stages, (8,) * 2, recompute=("none",) * len(stages), zero=zero)
    text = str(TORCHTITAN.written("torchtitan", problem, plan, "job.toml").files[""])
    job = tmp_path / "job.toml"
    job.write_text(re.sub(r'(fsdp_reshard_after_forward = )"\w+"', r'\1"default"', text))
    assert '"default"' in job.read_text()
    assert imported(capsys, tmp_path, f"torchtitan:{job}")[1].zero == zero


def test_a_csv_of_torchtitan_is_the_plans_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Beside the TOML, wherever that was moved."""
    problem, plan = gpt2_plan(back=True, schedule="v-half")
    for end, text in TORCHTITAN.written("torchtitan", problem, plan, "elsewhere/job.toml").files.items():
        (tmp_path / f"job.toml{end}").write_text(str(text))
    _, found = imported(capsys, tmp_path, f"torchtitan:{tmp_path / 'job.toml'}")
    assert (found.schedule, len(found.order)) == ("hand", 2)
    assert found.stages == plan.stages


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        (
            "global_batch_size = 16",
            "global_batch_size = 32",
            "training.global_batch_size = 32: the problem has 16 (--batch)",
        ),
        ("seq_len = 1024", "seq_len = 2048", "training.seq_len = 2048: the problem has 1024 (--sequence)"),
        ("seq_len = 1024", "seq_len = 1024.0", "training.seq_len = 1024.0: the problem has 1024 (--sequence)"),
        (
            'mixed_precision_param = "bfloat16"',
            'mixed_precision_param = "float32"',
            "training.mixed_precision_param = 'float32': the problem has bfloat16 (--precision)",
        ),
        (
            "local_batch_size = 4",
            "local_batch_size = 2",
            (
                "training.local_batch_size = 2 in 4 pipelines is not the batch of 16: each would flush "
                "several times in an iteration"
            ),
        ),
        (
            "microbatch_size = 1",
            "microbatch_size = 3",
            "training.local_batch_size = 4 must be a multiple of parallelism.pipeline_parallel_microbatch_size, 3",
        ),
        ('"layers.3", ', "", "must have layers.0 to layers.11, in order"),
        ('"Interleaved1F1B"', '"Looped"', "parallelism.pipeline_parallel_schedule = 'Looped'; choices: GPipe"),
        ('mode = "none"', 'mode = "selective"', "activation_checkpoint.selective_ac_option = '2'; choices: op"),
        (
            "tensor_parallel_degree = 1",
            "tensor_parallel_degree = true",
            "tensor_parallel_degree must be a whole number of at least 1, got True",
        ),
        (
            "tensor_parallel_degree = 1",
            f"tensor_parallel_degree = 1{'0' * 22}",
            "tensor_parallel_degree must be a whole number of at most 32,768, got 10000",
        ),
        ('mode = "none"', "mode = [1]", "activation_checkpoint.mode = '[1]'; choices: none, selective, full"),
        ('"Interleaved1F1B"', '["1F1B"]', "parallelism.pipeline_parallel_schedule = "),
        (
            '"Interleaved1F1B"',
            '"Interleaved1F1B"\npipeline_parallel_schedule_csv = 5',
            "parallelism.pipeline_parallel_schedule_csv = '5' must be the path of a file",
        ),
        (
            '"Interleaved1F1B"',
            '"Interleaved1F1B"\npipeline_parallel_schedule_csv = "a\\u0000b"',
            "parallelism.pipeline_parallel_schedule_csv = 'a\\x00b' must be the path of a file",
        ),
        *(
            (
                "module_fqns_per_model_part = [",
                f"module_fqns_per_model_part = {parts}\nothers = [",
                "parallelism.module_fqns_per_model_part must be a list of lists of module names",
            )
            for parts in ('"layers.0"', '["layers.0"]')
        ),
        ("[training]", "[training", "Expected ']'"),
    ],
)
def test_jobs_of_no_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path, was: str, becomes: str, said: str) -> None:
    """One line with the file and the key, exit code 4."""
    job = tmp_path / "job.toml"
    text = str(TORCHTITAN.written("torchtitan", *gpt2_plan()).files[""])
    assert was in text
    job.write_text(text.replace(was, becomes))
    line = refused(capsys, ("export", "--format", "plan", *GPT2, "--plan", f"torchtitan:{job}"), 4)
    assert said in line
    assert str(job) in line


def test_what_a_job_refers_to_is_never_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A job of somebody else's may name any file as its order of ops."""
    job, secret = tmp_path / "job.toml", tmp_path / "secret"
    secret.write_text("root:*:20228")
    text = str(TORCHTITAN.written("torchtitan", *gpt2_plan()).files[""])
    job.write_text(text.replace("[parallelism]", f'[parallelism]\npipeline_parallel_schedule_csv = "{secret}"'))
    line = refused(capsys, ("export", "--format", "plan", *GPT2, "--plan", f"torchtitan:{job}"), 4)
    assert "pipeline_parallel_schedule_csv" in line
    assert "20228" not in line


def test_a_job_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 4, whatever else is asked."""
    assert "names no file" in refused(capsys, ("export", "--format", "plan", *GPT2, "--plan", "torchtitan:"), 4)
    assert "no.toml" in refused(capsys, ("export", "--format", "plan", *GPT2, "--plan", "torchtitan:no.toml"), 4)
    words = ("export", "--format", "plan", *GPT2, "--plan", "torchtitan:no.toml", "--tensor", "2")
    assert "no.toml" in refused(capsys, words, 4)
