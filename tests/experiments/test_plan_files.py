"""Rules of plan files: what `plan` writes is read back; everything else is one line that names the file and the key."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from experiments.compare.problem_options import PROBLEM, SOURCE, options_of
from experiments.compare.questions import make_problem
from experiments.terminal.argument_types import names_of
from hardware_profiles import GENERIC
from simulator import Evaluations, Plan, PlanFile, PlanFileError, Problem, Stage, read_any_profile, simulate
from simulator.plan_files import PlanTable, ProblemTable, StageTable
from tests.experiments.commands import ended, refused
from tests.fuzzing import GRAPH, PROFILED

DOCUMENT: dict[str, Any] = {
    "format": "pipeplan-plan-2",
    "problem": {
        "workload": "chain:4",
        "cluster": {"name": "pipedream-arxiv-b", "devices": 2},
        "batch": 8,
        "precision": "fp32",
        "optimizer": "momentum",
        "recompute": False,
        "communication": "overlapped",
        "contention": True,
        "weight_versions": "stashing",
        "replica_updates": "overlapped",
    },
    "plan": {
        "planner": "hand",
        "schedule": "gpipe",
        "replication": "split",
        "microbatches": [4, 4],
        "stages": [{"layers": [0, 1], "devices": [0]}, {"layers": [2, 3], "devices": [1]}],
        "forward_sizes": [],
        "backward_sizes": [],
    },
}


def changed(path: str, value: object) -> str:
    """The document with one value replaced; the path is written `plan.stages.0.layers`."""
    document = copy.deepcopy(DOCUMENT)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    target: Any = document
    for step in steps:
        target = target[step]
    target[last] = value
    return json.dumps(document)


def without(path: str) -> str:
    """The document without one key."""
    document = copy.deepcopy(DOCUMENT)
    section, key = path.split(".")
    del document[section][key]
    return json.dumps(document)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `pipeplan words…`."""
    return ended(capsys, words)


CASES = [
    *[("plan.replication", value) for value in ("Split", [], None, 3)],
    *[
        ("plan.microbatches", value)
        for value in ([4.9, 4.2], ["4", "4"], [True], [float("inf")], [], [0, 8], [4], None, [2**63])
    ],
    *[("plan.order", value) for value in ("0F0 0B0", [5], ["0F0 0X0"], ["(0F0 0B0)*999999999"], ["0F0 0B0"])],
    *[("plan.options", value) for value in ({"lanes": "split"}, {"chunks": 2}, {"x": None}, [], 5)],
    *[("plan.recompute", value) for value in (True, ["no"], [True], [1, 0])],
    *[("problem.contention", value) for value in ("false", 0, None)],
    *[("problem.recompute", value) for value in ("no", 1)],
    *[("problem.batch", value) for value in ("8", [8], 0, -8, 8.0, 10**30, 9)],
    *[("problem.cluster.devices", value) for value in ("4", 4.0, 0, 99)],
    *[("problem.cluster.name", value) for value in (5, None, "", "no-such")],
    *[("problem.cluster", value) for value in ({}, [], {"devices": 2}, {"name": "pipedream-a", "count": 2})],
    *[("problem.cluster", value) for value in (5, None, "", "no-such", "/dev/null", "a\u0000b", "x\u001b[31m")],
    *[("problem.workload", value) for value in (5, "no-such", "chain:9", "chain:999999999999", "/")],
    *[("problem.workload", {"profile": value}) for value in (5, None, "graph.txt", "graph.json", "/")],
    *[("problem.workload", value) for value in ({}, [], {"name": "chain:4", "profile": "graph.txt"}, {"sequence": 8})],
    *[("problem.workload", {"name": "gpt2", "sequence": value}) for value in ("8", 0, 8.5, 2**40)],
    ("problem.workload", {"name": "chain:4", "sequence": 4}),
    *[("problem.workload", {"name": "gpt2", "attention": value}) for value in ("flash", 1)],
    *[("problem.workload", {key: "chain:4", "attention": "fused"}) for key in ("name", "profile")],
    ("problem.workload", {"name": "chain:4", "profiled_minibatch": 4}),
    ("problem.workload", {"profile": "graph.json", "profiled_minibatch": 4}),
    *[("problem.precision", value) for value in ("fp7", 32)],
    *[("problem.optimizer", value) for value in ("magic", [])],
    *[("problem.communication", value) for value in ("pigeon", {})],
    ("problem.weight_versions", "none"),
    ("problem.replica_updates", "whenever"),
    *[
        (f"problem.{key}", "x")
        for key in ("out", "devices", "no_contention", "format", "command", "planner", "seed", "x" * 1000, "\u001b[31m")
    ],
    *[(f"plan.{key}", 1) for key in ("out", "seconds", "notation")],
    *[("plan.schedule", value) for value in ("no-such", 1)],
    *[("plan.planner", value) for value in (1, None)],
    *[("plan.stages", value) for value in ([], {}, 3, [[0], [1]], [{"layers": [0, 1, 2, 3]}])],
    *[("plan.stages.0.layers", value) for value in ([0], [0, 1, 2], [0, -1], [0, 10**10], ["0", 1], [[0]], 0)],
    *[("plan.stages.0.devices", value) for value in ([1], [], [7], [0, 0], None)],
    *[("plan.forward_sizes", value) for value in ([[4, 4]], [[4, 4], [4, 3]], [4, 4], "x")],
    ("plan.backward_sizes", [[4, 4], [4, 4]]),
    *[("format", value) for value in ("pipeplan-plan-1", 1, None)],
    ("plan", None),
    ("extra", 1),
]


@pytest.mark.parametrize(("path", "value"), CASES, ids=lambda one: repr(one)[:30])
def test_a_wrong_value_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, path: str, value: object
) -> None:
    """Wrong kinds, ranges, names and keys: exit code 4, one short line that names file and section; nothing is written."""
    file = tmp_path / "plan.json"
    file.write_text(changed(path, value), encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    err = refused(capsys, ("export", "--format", "text", "--out", str(tmp_path / "ops"), "--plan", str(file)), 4)
    assert "plan.json: $." in err or "1: not JSON: Infinity is no number" in err
    assert err.rstrip("\n").isprintable()
    assert len(err) <= 300 + len(str(tmp_path))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{}", "$.format: is missing"),
        ("null", "a table"),
        ("[1", "plan.json:1: not JSON"),
        ("[1]", "a table"),
        ('{"format": "pipeplan-plan-2", "problem": {', "not JSON"),
        (without("problem.batch"), "$.problem.batch: is missing"),
        (without("plan.stages"), "$.plan.stages: is missing"),
        ("[" * 100_000, "1: not usable JSON: lists or tables are nested too deeply"),
        (
            '{"format": "pipeplan-plan-2", "plan": ' + "[" * 100_000,
            "1: not usable JSON: lists or tables are nested too deeply",
        ),
        (
            '{"format": "pipeplan-plan-2", "problem": {"cluster": ' + '{"a":' * 100_000,
            "1: not usable JSON: lists or tables are nested too deeply",
        ),
        ('{"format": "pipeplan-plan-2", "problem": {"cluster": {"a": 1}}}', "$.problem.cluster.a = 1: unknown key"),
        (
            changed("problem.batch", 8).replace("8", "9" * 5000, 1),
            "1: not usable JSON: a whole number has too many digits",
        ),
        (changed("problem.batch", 8).replace("8", "9" * 400, 1), "$.problem.batch = 9999"),
        (changed("problem.batch", 8).replace("8", "NaN", 1), "1: not JSON: NaN is no number"),
        (changed("problem.overlap", 1.0).replace("1.0", "1e999", 1), "$.problem.overlap = inf"),
        (changed("problem.batch", 8) + " " * (16 * 2**20), "is larger than 16 MiB, the most that is read"),
        (json.dumps(DOCUMENT).replace('"batch"', '"batch": 4, "batch"'), "1: key 'batch' stands twice in a table"),
        (
            json.dumps(DOCUMENT).replace('"layers"', '"layers": [], "layers"', 1),
            "1: key 'layers' stands twice in a table",
        ),
        (
            changed("plan.order", ["0F0 " * 21, "1B0"]),
            "$.plan.order: row 1, column 21: a schedule has at most 20 ops, this one has more",
        ),
        (
            changed("plan.order", ["0F0"] * 21),
            "$.plan.order: row 21, column 1: a schedule has at most 20 ops, this one has more",
        ),
        (changed("plan.order", ["(0F0 0B0)*11"]), "column 1: a schedule has at most 20 ops, this one has more"),
    ],
    ids=lambda one: one[:20],
)
def test_what_is_no_plan_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    """Absent keys, other documents, broken and endless JSON: exit code 4 and one short line."""
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    err = refused(capsys, ("export", "--format", "text", "--plan", str(path)), 4)
    assert said in err
    assert len(err) <= 300 + len(str(tmp_path))


def test_a_plan_file_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The document above is right: its ops, what `check` says of it, and optional keys left out."""
    path = tmp_path / "plan.json"
    for text in (json.dumps(DOCUMENT), without("problem.contention"), without("problem.precision")):
        path.write_text(text, encoding="utf-8")
        code, out, err = run(capsys, "export", "--format", "text", "--plan", str(path))
        assert (code, out, err) == (0, "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n", "")
    code, out, err = run(capsys, "check", str(path))
    assert (code, err) == (0, "")
    assert "ok: plan of hand for chain-4 on pipedream-arxiv-b" in out
    assert "gpipe, straight, 2 stages, 2 micro-batches" in out
    assert run(capsys, "check", "--plan", str(path)) == (0, out, "")


def test_a_plan_of_its_own_order_is_written_and_read_again(tmp_path: Path) -> None:
    """The order, also as a pattern, and what each stage keeps; a plan without them has neither key."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(DOCUMENT))
    given = PlanFile.read(path)
    assert not {"order", "recompute"} & set(json.loads(given.to_json())["plan"])
    own = replace(given.plan, order=("(0F0)*2 (0B0)*2", "1F0 1B0 1F1 1B1"), recompute=(True, False))
    PlanFile(given.problem, own).write(path)
    assert PlanFile.read(path) == PlanFile(given.problem, own)
    assert simulate(given.problem, own).iteration_seconds > simulate(given.problem, given.plan).iteration_seconds


def test_a_plan_gives_its_schedule_options() -> None:
    """Lanes that divide a device in fixed shares are another timeline than shared ones; they are written, and read again."""
    document = copy.deepcopy(DOCUMENT)
    document["plan"] |= {"schedule": "fbp-as", "options": {"lanes": "split"}}
    split = PlanFile.from_json(json.dumps(document))
    shared, usual = (replace(split.plan, options=options) for options in ((("lanes", "shared"),), ()))
    assert PlanFile.from_json(split.to_json()) == split
    seconds = [simulate(split.problem, one).iteration_seconds for one in (split.plan, shared, usual)]
    assert seconds[0] > seconds[1] == seconds[2]
    evaluate = Evaluations(split.problem)
    assert [evaluate(one).iteration_seconds for one in (split.plan, shared, usual)] == seconds  # type: ignore[union-attr]


@pytest.mark.parametrize(("table", "value"), [(ProblemTable, Problem), (PlanTable, Plan), (StageTable, Stage)])
def test_the_keys_are_the_fields(table: type[msgspec.Struct], value: Any) -> None:
    """A document has every field of problem, plan and stage by its name; what it leaves out has the field's own default."""
    keys = {one.name: one.default for one in msgspec.structs.fields(table)}
    own = {one.name: one.default for one in dataclasses.fields(value)}
    assert set(keys) == set(own)
    for name, default in keys.items():
        assert default in (GENERIC.name if own[name] == GENERIC else own[name], msgspec.NODEFAULT)


@pytest.mark.parametrize(
    ("workload", "cluster", "more"),
    [
        ("vgg16", "pipedream-b", {}),
        ("chain:0012", "dgx-a100:2", {"devices": 3}),
        ("gpt2", "own.toml", {"sequence": 128, "attention": "fused"}),
        ("config.json", "own.toml:3", {}),
        ("graph.txt", "own.toml:3", {"devices": 2}),
        ("graph", "pipedream-c", {"profiled_minibatch": 2}),
        ("profile.json", "pipedream-c", {"profiled_minibatch": None}),
    ],
)
@pytest.mark.filterwarnings("ignore:workload .* was measured", "ignore:precision fp16 is ignored")
def test_a_document_is_the_same_when_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: str, cluster: str, more: dict[str, Any]
) -> None:
    """Whatever workload and cluster come from: problem, plan and text are the same to the bit, and from any folder."""
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 8, "vocab_size": 9}
    servers = '[[servers]]\ncount = 2\naccelerator = "h100"\n[network]\nbandwidth_gbps = 10\nlatency_us = 5\n'
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(config))
    Path("profile.json").write_text(json.dumps(PROFILED))
    Path("graph.txt").write_bytes(GRAPH)
    Path("graph").write_bytes(GRAPH)
    Path("own.toml").write_text(f'name = "own"\n{servers}')
    read = read_any_profile(workload, more.pop("profiled_minibatch")) if "profiled_minibatch" in more else workload
    problem = make_problem(read, cluster, 4, precision="fp16", optimizer="adam", contention=False, **more)
    stage = Stage(tuple(range(len(problem.workload))), (0,))
    given = [PlanFile(problem, Plan("hand", "1f1b", (stage,), (3, 1), recompute=(True,))), PlanFile(problem)]
    texts = [one.to_json() for one in given]
    monkeypatch.chdir("/")
    again = [PlanFile.from_json(text) for text in texts]
    assert again == given
    assert [one.to_json() for one in again] == texts
    assert [sorted(json.loads(text)) for text in texts] == [["format", "plan", "problem"], ["format", "problem"]]


ASKED = (
    "--workload", "chain:4", "--cluster", "pipedream-arxiv-b", "--devices", "2", "--batch", "8", "--optimizer", "adam"
)  # fmt: skip


@pytest.fixture
def problem_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> str:
    """A problem alone, written from its options."""
    path = str(tmp_path / "problem.json")
    said = f"problem written to {path}\n"
    assert run(capsys, "export", "--format", "problem", *ASKED, "--out", path) == (0, said, "")
    return path


def test_a_problem_alone_is_planned_and_compared_from_its_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem_file: str
) -> None:
    """The same plan as of the options; a plan's file is a problem's, too, and beside another it must have the same problem."""
    plan = str(tmp_path / "plan.json")
    planned = []
    for words in (ASKED, ("--problem", problem_file), ("--problem", problem_file, "--batch", "8"), ("--problem", plan)):
        out = plan if plan not in words else str(tmp_path / "again.json")
        code, _, err = run(capsys, "plan", "--planner", "uniform", *words, "--out", out)
        assert (code, err) == (0, "")
        planned.append(Path(out).read_text())
    assert len(set(planned)) == 1
    problem = Path(problem_file).read_text()
    assert run(capsys, "export", "--format", "problem", "--plan", plan) == (0, problem, "")
    assert run(capsys, "check", problem_file)[1].endswith(
        ": ok: problem of chain-4 on pipedream-arxiv-b: 8 samples per iteration, 2 GPUs\n"
    )
    comparison = ("compare", "--planner", "uniform", "--no-figures", "--json", "--out", str(tmp_path), "--problem")
    code, out, _ = run(capsys, *comparison, problem_file, "--plan", plan)
    assert (code, [row["planner"] for row in json.loads(out)["plans"]]) == (0, ["plan.json", "uniform"])
    Path(problem_file).write_text(problem.replace("adam", "sgd"))
    monkeypatch.chdir(tmp_path)
    err = refused(capsys, (*comparison, "problem.json", "--plan", "plan.json"))
    assert "--plan plan.json: $.problem.optimizer is 'adam', in --problem problem.json it is 'sgd'" in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("plan", "--batch", "16", "--problem"), 2, "--batch 16 contradicts --problem "),
        (("compare", "--recompute", "--problem"), 2, "--recompute whole contradicts --problem "),
        (
            ("plan", "--workers", "2", "--bandwidths", "1e9", "--profile", "x.txt", "--problem"),
            2,
            "--problem does not go",
        ),
        (("export", "--format", "problem", "--planner", "uniform", "--problem"), 2, "--planner is for a search"),
        (("export", "--format", "text", "--plan"), 4, "problem.json: $.plan: is missing"),
        (("simulate", "--plan"), 4, "problem.json: $.plan: is missing"),
        (("compare", "--plan"), 4, "problem.json: $.plan: is missing"),
        (("check", "--plan"), 4, "problem.json: $.plan: is missing"),
    ],
)
def test_what_does_not_go_with_a_problem_alone_is_one_line(
    capsys: pytest.CaptureFixture[str], problem_file: str, words: tuple[str, ...], code: int, said: str
) -> None:
    """Options that say something else, options of a search that is not made, and a plan that is not there."""
    assert said in refused(capsys, (*words, problem_file), code)


def test_what_was_made_in_python_has_no_document() -> None:
    """A file names a workload and a cluster: what was changed after loading is refused, and is not taken for what was loaded."""
    problem = make_problem("chain:4", "pipedream-a", 8, devices=2)
    plan = Plan("hand", "gpipe", (Stage((0, 1, 2, 3), (0,)),), (8,))
    cluster = problem.cluster
    for changed_problem, named in (
        (
            replace(problem, workload=replace(problem.workload, minibatch=3)),
            "workload 'chain-4' was made or changed in Python",
        ),
        (replace(problem, cluster=replace(cluster, allreduce="flat-ring")), f"cluster {cluster.name!r} was made"),
    ):
        with pytest.raises(ValueError, match=named):
            PlanFile(changed_problem, plan).to_json()


def test_a_plan_file_says_every_option_of_a_problem() -> None:
    """Every option that describes a problem is compared with the file."""
    described = {*names_of(SOURCE), *names_of(PROBLEM)} - {"problem"}
    assert set(options_of(make_problem("chain:4", "pipedream-a"))) == described


def test_options_of_a_problem_are_those_that_it_was_asked_for_with() -> None:
    """Words that were given, whatever became of them; of what was made in Python nothing is known but its numbers."""
    asked = {"sequence": 128, "attention": "eager", "devices": 4, "batch": 16, "precision": "fp16", "optimizer": "adam"}
    problem = make_problem("gpt2", "pipedream-a", **asked)  # type: ignore[arg-type]
    told = options_of(problem)
    assert {name: told[name] for name in asked} == asked
    assert (told["workload"], told["cluster"], told["profile"]) == ("gpt2", "pipedream-a", None)
    made = options_of(
        replace(problem, workload=replace(problem.workload, minibatch=3), cluster=replace(problem.cluster, name="own"))
    )
    unknown = {name for name in told if told[name] is not None and made[name] is None}
    assert unknown == {"workload", "cluster", "sequence", "attention"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cluster", "pipedream-b"), "--cluster pipedream-b contradicts --plan"),
        (("--batch", "16"), "says 8"),
        (("--recompute",), "--recompute whole contradicts"),
        (("--recompute", "attention"), "--recompute attention contradicts"),
        (("--no-contention",), "--no-contention contradicts"),
        (("--attention", "fused"), "--attention fused contradicts"),
        (("--profile", "graph.txt"), "--profile graph.txt contradicts"),
        (("--planner", "uniform"), "says hand"),
        (("--schedule", "1f1b"), "says gpipe"),
        (("--microbatches", "4"), "says 2"),
        (("--stages", "4"), "says 2"),
        (("--seed", "1"), "--seed is for a search"),
        (("--candidates", "all"), "--candidates is for a search"),
    ],
)
def test_options_that_contradict_the_plan_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """A plan has its problem and its decisions: an option that says something else ends with exit code 2 and one line."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    assert said in refused(capsys, ("export", "--format", "text", "--plan", str(path), *words))


@pytest.mark.parametrize("reserve", [0.0, 0.25])
def test_a_number_of_zero_is_said_too(capsys: pytest.CaptureFixture[str], tmp_path: Path, reserve: float) -> None:
    """Where the file says another, it is refused like any."""
    path = tmp_path / "plan.json"
    problem = DOCUMENT["problem"] | {"memory_reserve": reserve}
    path.write_text(json.dumps({**DOCUMENT, "problem": problem}), encoding="utf-8")
    words = ("export", "--format", "text", "--plan", str(path), "--memory-reserve", "0")
    code, _, err = ended(capsys, words)
    assert (code, err.partition(" contradicts ")[0]) == (
        (2, "pipeplan export: --memory-reserve 0.0") if reserve else (0, "")
    )


def test_options_that_say_the_same_as_the_plan_are_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What the plan says too is no contradiction."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    words = "--cluster pipedream-arxiv-b --batch 8 --microbatches 2 --planner hand --seed 0"
    code, out, _ = run(capsys, "export", "--format", "text", "--plan", str(path), *words.split())
    assert (code, out) == (0, "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n")


def test_a_file_that_an_option_names_from_here_is_the_one_that_the_plan_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are compared as absolute ones, with their count of servers."""
    monkeypatch.chdir(tmp_path)
    servers = '[[servers]]\ncount = 2\naccelerator = "h100"\n[network]\nbandwidth_gbps = 10\nlatency_us = 5\n'
    Path("own.toml").write_text(f'name = "own"\n{servers}')
    Path("plan.json").write_text(changed("problem.cluster", "own.toml:2"))
    for cluster, expected in (("own.toml:2", 0), (str(tmp_path / "own.toml:2"), 0), ("own.toml", 2)):
        code, _, err = run(capsys, "export", "--format", "text", "--plan", "plan.json", "--cluster", cluster)
        assert (code, err.count("\n")) == (expected, expected // 2)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("problem.optimizer", "magic", "$.problem.optimizer = 'magic': must be one of adam, momentum, sgd"),
        (
            "problem.weight_versions",
            "none",
            "$.problem.weight_versions = 'none': must be one of stashing, vertical-sync",
        ),
        ("problem.replica_updates", "late", "$.problem.replica_updates = 'late': must be one of barrier, overlapped"),
        ("problem.batch", 2**30, "$.problem.batch = 1073741824: expected `int` <= 16777216"),
        ("problem.workload", "no-such", "$.problem.workload: workload 'no-such' is not known; choose from "),
        ("problem.workload", 5, "$.problem.workload = 5: expected a text or a table, got `int`"),
        ("problem.cluster", "no-such", "$.problem.cluster: cluster 'no-such' is not known; choose from "),
        ("plan.microbatches", [4, 5], "$.plan: micro-batches of plan 'hand' must be at least 1 sample and sum to 8"),
        (
            "format",
            "pipeplan-plan-1",
            "$.format = 'pipeplan-plan-1': must be one of pipeplan-plan-2 (pipeplan plan --out",
        ),
    ],
)
def test_a_fault_names_file_key_value_rule_and_choices(path: str, value: object, said: str) -> None:
    """At the key that is wrong, of either section."""
    with pytest.raises(PlanFileError) as caught:
        PlanFile.from_json(changed(path, value), "own.json")
    assert str(caught.value).startswith(f"own.json: {said}")


@pytest.mark.parametrize("text", [without("problem.batch"), json.dumps({**DOCUMENT, "format": "mine"})])
def test_a_file_with_a_plan_is_checked_as_one(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    """Whatever it says of its format, or whether it says one: not as a network's configuration."""
    file = tmp_path / "p.json"
    for one in (text, json.dumps({key: value for key, value in json.loads(text).items() if key != "format"})):
        file.write_text(one, encoding="utf-8")
        assert run(capsys, "check", str(file)) == run(capsys, "check", "--plan", str(file))
        assert run(capsys, "check", str(file))[0] == 4


def test_names_of_planners_are_shown_in_short(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of a hundred thousand characters the ends."""
    file = tmp_path / "p.json"
    file.write_text(changed("plan.planner", "a" * 100_000), encoding="utf-8")
    code, out, _ = run(capsys, "check", str(file))
    assert code == 0
    assert f"plan of {'a' * 30}…{'a' * 29} for chain-4" in out


def test_a_schema_describes_what_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON Schema that `check` prints has the keys of both sections, and refuses others."""
    code, out, _ = run(capsys, "check", "--schema", "plan")
    tables = json.loads(out)["$defs"]
    assert code == 0
    assert set(tables["ProblemTable"]["properties"]) == {one.name for one in dataclasses.fields(Problem)}
    assert set(tables["PlanByHand"]["properties"]) == {one.name for one in dataclasses.fields(Plan)}
    assert not tables["PlanByHand"]["additionalProperties"]


BY_HAND = {
    "format": "pipeplan-plan-2",
    "problem": {"workload": "gpt2", "cluster": {"name": "dgx-a100", "devices": 4}, "batch": 16},
    "plan": {
        "microbatches": [8, 8],
        "order": "# two stages\n(0F0)*2 0B0 0B1\n\n((1F0 1B0)*1)*2  # and back\n",
        "stages": [{"blocks": "1-5", "devices": "0-1"}, {"blocks": [6, 7, 8, 9, 10, 11, 12], "devices": "3, 2"}],
    },
}
"""As people write it: ranges, blocks, an order as one text, nothing that follows from it."""


def test_people_may_write_less() -> None:
    """The embedding is of the first block, the head of the last; the planner and the order are called `hand`."""
    found = PlanFile.from_json(json.dumps(BY_HAND))
    assert found.plan is not None
    first, last = found.plan.stages
    blocks = [layer.block for layer in found.problem.workload.layers]
    assert (first.layers, last.layers) == (tuple(range(blocks.index(6))), tuple(range(blocks.index(6), len(blocks))))
    assert (first.devices, last.devices) == ((0, 1), (3, 2))
    assert (found.plan.planner, found.plan.schedule, found.plan.replication) == ("hand", "hand", "split")
    assert found.plan.order == ("(0F0)*2 0B0 0B1", "((1F0 1B0)*1)*2  # and back")
    again = PlanFile.from_json(found.to_json())
    assert again == found
    as_layers = copy.deepcopy(BY_HAND)
    as_layers["plan"]["stages"] = [  # type: ignore[index]
        {"layers": f"0-{blocks.index(6) - 1}", "devices": "0-1"},
        {"layers": f"{blocks.index(6)}, {blocks.index(6) + 1}-{len(blocks) - 1}", "devices": "3,2"},
    ]
    assert PlanFile.from_json(json.dumps(as_layers)) == found


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("plan.stages.0.layers", "0-4", "$.plan.stages[0].layers: '0-4' must go up, from 0 to 3 at most"),
        ("plan.stages.0.layers", "1-0", "'1-0' must go up"),
        ("plan.stages.0.layers", "0-999999999", "must go up, from 0 to 3 at most"),
        ("plan.stages.0.layers", "0..3", "'0..3' must be whole numbers and ranges of them, as in '0-14, 16'"),
        ("plan.stages.0.layers", "", "must be whole numbers and ranges"),
        ("plan.stages.0.layers", "0-1-2", "must be whole numbers and ranges"),
        ("plan.stages.0.layers", "0-1000000000", "must be whole numbers and ranges"),
        ("plan.stages.0.layers", "٣", "must be whole numbers and ranges"),
        ("plan.stages.0.layers", ", ".join(["0-3"] * 9), "must go up, from 0 to 3 at most"),
        ("plan.stages.0.devices", "0-7", "$.plan.stages[0].devices: '0-7' must go up, from 0 to 1 at most"),
        ("plan.stages.0.blocks", "1", "$.plan.stages[0]: has layers or blocks, both given"),
        ("plan.stages.0", {"devices": [0]}, "$.plan.stages[0]: has layers or blocks, neither given"),
        ("plan.stages.0", {"devices": [0], "blocks": "1"}, "workload 'chain-4' has no blocks; choices: layers"),
        ("plan.order", "0F0 (0B0", "$.plan.order: row 1, column 2: '(0B0' is no pattern"),
    ],
)
def test_what_people_write_wrong_is_one_line(path: str, value: object, said: str) -> None:
    """The place, the value and the rule."""
    with pytest.raises(PlanFileError) as raised:
        PlanFile.from_json(changed(path, value))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_plan_needs_a_schedule_or_an_order() -> None:
    """Without an order there is no default."""
    with pytest.raises(
        PlanFileError,
        match=(
            r"plan: \$.plan.schedule: is missing: a family \(pipeplan list schedules\), or beside it an "
            r"order of ops"
        ),
    ):
        PlanFile.from_json(without("plan.schedule"))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "plan.stages.0.device",
            "$.plan.stages[0].device = 1: unknown key (did you mean devices?); choose from layers, devices",
        ),
        ("plan.seconds", "choose from planner, schedule, replication, microbatches, stages"),
        ("problem.precission", "(did you mean precision?); choose from workload, cluster, batch"),
        ("plan.replication", "$.plan.replication = 1: expected `str`, got `int`"),
        ("problem.precision", "$.problem.precision = 1: expected `str`, got `int`"),
    ],
)
def test_an_unknown_key_names_those_of_its_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, path: str, said: str
) -> None:
    """At any depth: path, value, the closest key, and the keys that the table has."""
    file = tmp_path / "p.json"
    file.write_text(changed(path, 1), encoding="utf-8")
    assert run(capsys, "check", str(file))[0] == 4
    with pytest.raises(PlanFileError) as caught:
        PlanFile.read(file)
    assert said in str(caught.value)


ORDER = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1I1 1W1"]


def with_order(path: Path, order: Sequence[str]) -> Path:
    """A file of the document with an order."""
    document = copy.deepcopy(DOCUMENT)
    del document["plan"]["forward_sizes"], document["plan"]["backward_sizes"]
    document["plan"].update(order=order, schedule="mine")
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "wrong", "said"),
    [
        (1, "1F0 1F1 1I1 1W1", "device 1: op 1B0 is missing (or 1I0 with 1W0)"),
        (1, "1F0 1B0 1F1 1I1", "device 1: op 1W1 is missing"),
        (0, "0F0 0F1 0B0", "device 0: op 0B1 is missing (or 0I1 with 0W1)"),
        (
            0,
            "0F0 0F0 0F1 0B0 0B1",
            "device 0, position 1: op 0F0 is doubled, it stands at device 0, position 0 already",
        ),
        (0, "0F0 0F1 0B0 0B1 0W1", "device 0, position 4: op 0W1 repeats the full backward 0B1"),
        (0, "0F0 0F1 0F2 0B0 0B1", "device 0, position 2: op 0F2 is one too many, stage 0 has 2 micro-batches"),
        (
            0,
            "0F0 0F1 0B0 0B1 1F1",
            "device 1, position 2: op 1F1 is doubled, it stands at device 0, position 4 already",
        ),
        (0, "0F0 0B1 0F1 0B0", "deadlock: device 0, position 1: op 0B1 waits for 0F1 (device 0, position 2); device 1"),
        (0, "0F0 0B9x", "row 1, column 2: op '0B9x' is not STAGE"),
    ],
)
def test_an_order_at_fault_is_named_by_file_key_and_op(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: int, wrong: str, said: str
) -> None:
    """Exit code 4, and the file, the key, the device, its position, the op."""
    path = with_order(tmp_path / "plan.json", [wrong if number == line else one for number, one in enumerate(ORDER)])
    assert f"{path}: $.plan.order: {said}" in refused(capsys, ("check", str(path)), 4)


@pytest.mark.parametrize(
    "words", ["check", "check --plan", "simulate --plan", "compare --plan", "export --format text --plan"]
)
def test_whatever_reads_an_order_at_fault_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str
) -> None:
    """And gives no figure; of the whole order there is an answer."""
    path = str(with_order(tmp_path / "plan.json", ORDER))
    if not words.startswith("compare"):  # which draws for seconds
        assert run(capsys, *words.split(), path)[0] == 0
    with_order(Path(path), [ORDER[0], ORDER[1].removesuffix(" 1W1")])
    code, out, err = run(capsys, *words.split(), path)
    assert (code, out) == (4, "")
    assert err.endswith(f": {path}: $.plan.order: device 1: op 1W1 is missing\n")


def test_a_plan_that_is_checked_is_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Seconds beyond what can be summed are found by no rule of the file."""
    path = with_order(tmp_path / "plan.json", ORDER)
    with patch("simulator.lowering.program.MOST_SECONDS", 0.0):
        code, out, err = run(capsys, "check", str(path))
    assert (code, out) == (4, "")
    assert f"{path}: $.plan: the durations of" in err
