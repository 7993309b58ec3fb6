"""Rules of plug-ins: a package with each kind is used from the command line, and a broken one breaks only itself."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import pipeplan as pp
from experiments import make_problem
from experiments.cli import main
from experiments.studies.catalogue import STUDIES, Study
from hardware_profiles import PluginError, plugged_in
from planners import Evaluator, planner_entries
from simulator import Plan, Problem, Stage, schedule_families

MODULE = '''
from experiments.studies import Study
from simulator import Layer, Stage, Workload, from_text, load_workload

def one_at_a_time(stages, microbatches):
    """Every micro-batch goes all the way before the next one starts."""
    lines = (" ".join(f"{s}F{m} {s}B{m}" for m in range(microbatches)) for s in range(stages))
    return from_text("\\n".join(lines))

def two_devices(problem, evaluate, rng):
    """The first layer on device 0, the others on device 1."""
    from simulator import Plan, equal_microbatches

    layers = len(problem.workload)
    stages = (Stage((0,), (0,)), Stage(tuple(range(1, layers)), (1,)))
    return Plan("two-devices", "one-at-a-time", stages, equal_microbatches(problem.batch, 2))

def five_layers():
    """A chain."""
    from simulator import workload_from_spec
    return workload_from_spec("chain:5")

coin = Study(__name__, "Heads or tails?", 0.1, options={"--heads": "not tails"})

def run(arguments):
    print("heads" if arguments.heads else "tails")
    return 0

class Constant:
    """One millisecond for everything."""
    name = "constant"
    memory_bytes = 2.0**34
    streams = False
    sublinear = True

    def seconds(self, work, samples, phase, precision):
        return 1e-3
'''

CLUSTER = """
name = "pair-of-mine"
[[servers]]
accelerator = "constant"
devices = 2
[servers.inside]
topology = "switch"
bandwidth_gb_per_s = 50
"""

ENTRY_POINTS = """
[pipeplan.schedules]
one-at-a-time = {module}:one_at_a_time
[pipeplan.planners]
two-devices = {module}:two_devices
[pipeplan.workloads]
five-layers = {module}:five_layers
[pipeplan.studies]
coin = {module}:coin
[pipeplan.accelerators]
constant = {module}:Constant
[pipeplan.clusters]
folder = {module}_clusters
"""

BROKEN = {
    "import fails": ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    "name is missing": ("", "AttributeError"),
    "wrong kind": ("one_at_a_time = two_devices = five_layers = coin = Constant = 3", "TypeError"),
    "ends the program": ("raise SystemExit(5)", "SystemExit: 5"),
}


def install(folder: Path, module: str, text: str) -> None:
    """A package as pip leaves it: its module, a folder with a cluster's file, and its entry points."""
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    (folder / f"{module}_clusters").mkdir()
    (folder / f"{module}_clusters" / "__init__.py").touch()
    (folder / f"{module}_clusters" / "pair-of-mine.toml").write_text(CLUSTER, encoding="utf-8")
    information = folder / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text(ENTRY_POINTS.format(module=module), encoding="utf-8")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `pipeplan words…`."""
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_each_kind_of_plug_in_is_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugins: None
) -> None:
    """A schedule and a planner that are functions, a workload, an accelerator's class and a cluster's file, by their names."""
    install(tmp_path, "pipeplan_test_plugins", MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--schedule", "one-at-a-time", "--stages", "2", "--microbatches", "3", "--forward", "1", "--backward", "2")
    code, out, err = run(capsys, "simulate", *words, "--json")
    assert (code, err, json.loads(out)["makespan_seconds"]) == (0, "", 18.0)
    code, out, err = run(
        capsys,
        *(
            "plan",
            "--planner",
            "two-devices",
            "--workload",
            "five-layers",
            "--cluster",
            "pair-of-mine",
            "--batch",
            "8",
            "--json",
        ),
    )
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert (document["schedule"], document["stages"][1]["layers"]) == ("one-at-a-time", [1, 2, 3, 4])
    # both micro-batches one after the other: 5 layers forward and backward at 1 ms, the update at 1 ms a layer, transfers
    assert document["iteration_seconds"] == pytest.approx(0.02, rel=0.3)
    for topic, name, said in (
        ("schedules", "one-at-a-time", "Every micro-batch goes all the way before the next one starts."),
        ("planners", "two-devices", "The first layer on device 0, the others on device 1."),
        ("workloads", "five-layers", ""),
        ("accelerators", "constant", ""),
        ("clusters", "pair-of-mine", ""),
    ):
        _, out, err = run(capsys, "list", topic, "--json")
        (row,) = [row for row in json.loads(out)[topic] if row["name"] == name]
        assert (row.get("summary", ""), err) == (said, "")
    assert run(capsys, "study", "coin", "--heads") == (0, "heads\n", "")


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_plug_in_is_named_and_passed_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugins: None, how: str
) -> None:
    """What does not use it works as without it; a line on stderr says which entry point is left out, and why."""
    text, said = BROKEN[how]
    module = f"pipeplan_broken_{list(BROKEN).index(how)}"
    install(tmp_path, module, text)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--stages", "2", "--microbatches", "3", "--forward", "1", "--backward", "2", "--json")
    code, out, err = run(capsys, "simulate", "--schedule", "gpipe", *words)
    assert (code, json.loads(out)["makespan_seconds"]) == (0, 12.0)
    assert err.count("\n") == 1
    assert f"passing over plug-in one-at-a-time = {module}:one_at_a_time of pipeplan.schedules: {said}" in err
    for topic, own in (
        ("planners", "uniform"),
        ("workloads", "vgg16"),
        ("accelerators", "p40"),
        ("clusters", "dapple-a"),
    ):
        code, out, err = run(capsys, "list", topic, "--json")
        assert code == 0
        assert own in {row["name"] for row in json.loads(out)[topic]}
        assert err.count("\n") == 1
        assert "passing over" in err
    code, out, err = run(capsys, "study", "--json")
    assert (code, err.count("\n")) == (0, 1)
    assert "coin" not in {row["name"] for row in json.loads(out)["studies"]}
    code, out, err = run(capsys, "simulate", "--schedule", "one-at-a-time", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "schedule 'one-at-a-time' is unknown" in err


def test_a_broken_profile_of_the_user_is_passed_over_in_lists(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`list` goes on; the file's own use still ends with exit code 4."""
    monkeypatch.setenv("PIPEPLAN_PROFILES", str(tmp_path))
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "accelerators" / "mine.toml").write_text("kind = 3\n", encoding="utf-8")
    code, out, err = run(capsys, "list", "accelerators", "--json")
    assert (code, err.count("\n")) == (0, 1)
    assert "passing over accelerator mine" in err
    assert "p40" in out


@pytest.mark.parametrize("home", [None, "/nonexistent", "/dev/null"])
def test_a_user_without_a_home_has_no_profiles(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    """No home in the environment nor among the users, or one that is no folder: names of the package are known."""
    monkeypatch.delenv("PIPEPLAN_PROFILES", raising=False)
    if home is None:
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
    else:
        monkeypatch.setenv("HOME", home)
    code, out, err = run(capsys, "list", "clusters", "--json")
    assert (code, err) == (0, "")
    assert "dapple-a" in out


# ---- one kind of fault after the other -------------------------------------------------------------------------------

FAULTY = '''
from simulator import Schedule, build_schedule, from_text, Plan, Stage, ScheduleFamily, workload_from_spec
from dataclasses import dataclass
from planners import Note, PlannerEntry
from typing import Annotated, Literal
from hardware_profiles import Bounds

def wraps(stages, microbatches):
    """1F1B under another name."""
    return build_schedule("1f1b", stages, microbatches)

def wraps_stream(stages, microbatches):
    return build_schedule("pipedream", stages, microbatches)

def vee(stages, microbatches):
    return build_schedule("zb-v", stages, microbatches)

def drops(stages, microbatches, width: Annotated[int, Bounds(ge=1, le=4)] = 1, how: Literal["slow", "fast"] = "slow"):
    """Shows its options.

    width: of it
    """
    return build_schedule("gpipe" if width > 1 else "1f1b", stages, microbatches)

def raises(stages, microbatches): raise KeyError("at call")
def refuses(stages, microbatches): raise ValueError("not today")
def returns_none(stages, microbatches): return None
def returns_text(stages, microbatches): return "0F0 0B0"
def other_stages(stages, microbatches): return build_schedule("1f1b", stages + 1, microbatches)
def incomplete(stages, microbatches):
    lines = (" ".join(f"{s}F{m} {s}I{m}" for m in range(microbatches)) for s in range(stages))
    return from_text("\\n".join(lines))
def twice(stages, microbatches):
    lines = (" ".join(f"{s}F{m} {s}B{m} {s}B{m}" for m in range(microbatches)) for s in range(stages))
    return from_text("\\n".join(lines))
def endless(stages, microbatches): return build_schedule("endless", stages, microbatches)
def leaves(stages, microbatches): raise SystemExit(7)

@dataclass(frozen=True)
class Found(Note):
    makespan_seconds: float
    depth: int
    word: str

def a_plan(problem, evaluate, rng, depth: Annotated[int, Bounds(ge=1)] = 1, word="x"):
    """A planner with options.

    depth: of its search
    """
    layers = len(problem.workload)
    evaluate.note(Found("", 1.0, depth, word))
    return Plan("mine", "gpipe", (Stage(tuple(range(layers)), (0,)),), (problem.batch,))

class Made:
    """Planners of a request."""
    def __init__(self, request, depth: int = 2): self.depth = depth
    def __call__(self, problem, evaluate, rng): return a_plan(problem, evaluate, rng, self.depth)

def p_raises(problem, evaluate, rng): raise KeyError("at call")
def p_value(problem, evaluate, rng): return int("x")
def p_none(problem, evaluate, rng): return None
def p_text(problem, evaluate, rng): return "plan"
def p_stages(problem, evaluate, rng): return Plan("hand", "1f1b", (Stage((0,), (0,)),), (problem.batch,))
def p_schedule(problem, evaluate, rng):
    return Plan("hand", "returns-none", (Stage(tuple(range(len(problem.workload))), (0,)),), (problem.batch,))
def p_endless(problem, evaluate, rng): return p_endless(problem, evaluate, rng)
def p_leaves(problem, evaluate, rng): raise SystemExit(7)
def p_details(problem, evaluate, rng):
    evaluate.note(Found("", object(), 0, ""))
    return a_plan(problem, evaluate, rng)
p_default = PlannerEntry(
    lambda request: a_plan, "breaks where nobody asks", lambda problem, request: None, by_default=lambda problem: 1 / 0
)
p_reason = PlannerEntry(lambda request: a_plan, "cannot say why", lambda problem, request: 1 / 0)

def w_none(): return None
def w_raises(): raise KeyError("at call")
def w_leaves(): raise SystemExit(7)
'''

BROKEN_SCHEDULES = (
    "raises",
    "returns_none",
    "returns_text",
    "other_stages",
    "incomplete",
    "twice",
    "endless",
    "leaves",
)
PLANNERS = (
    "p_raises",
    "p_value",
    "p_none",
    "p_text",
    "p_stages",
    "p_schedule",
    "p_endless",
    "p_leaves",
    "p_details",
    "p_reason",
)
WORKLOADS = ("w_none", "w_raises", "w_leaves")


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugins: None) -> None:
    """An installed package with an entry point for every function of FAULTY."""
    kinds = {
        "schedules": ("wraps", "wraps_stream", "vee", "drops", "refuses", *BROKEN_SCHEDULES),
        "planners": ("a_plan", "Made", "p_default", *PLANNERS),
        "workloads": WORKLOADS,
    }
    module = "pipeplan_faulty"
    (tmp_path / f"{module}.py").write_text(FAULTY, encoding="utf-8")
    information = tmp_path / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    points = "".join(
        f"[pipeplan.{kind}]\n" + "".join(f"{name.replace('_', '-')} = {module}:{name}\n" for name in names)
        for kind, names in kinds.items()
    )
    (information / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, module, raising=False)


NUMBERS = ("--stages", "4", "--microbatches", "4", "--forward", "1", "--backward", "2")
PROBLEM = ("--workload", "chain:6", "--cluster", "pipedream-b", "--devices", "4", "--batch", "8")


def test_a_schedule_that_wraps_another_is_that_schedule(faulty: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Listed without a word, replayed alike, on the placement of its stages, with a flush if that has one."""
    for name, inner in (("wraps", "1f1b"), ("wraps-stream", "pipedream"), ("vee", "zb-v")):
        seconds = []
        for schedule in (name, inner):
            code, out, err = run(capsys, "simulate", "--schedule", schedule, *NUMBERS, "--weight", "1", "--json")
            assert (code, err) == (0, "")
            seconds.append(json.loads(out)["makespan_seconds"])
        assert seconds[0] == seconds[1]
        mine, built_in = schedule_families()[name], schedule_families()[inner]
        assert (mine.flush, mine.placement, mine.chunks) == (built_in.flush, built_in.placement, built_in.chunks)
    code, out, err = run(capsys, "list", "schedules", "--json")
    assert code == 0
    assert {"wraps", "vee"} <= {row["name"] for row in json.loads(out)["schedules"]}
    code, out, err = run(
        capsys, "plan", *PROBLEM, "--planner", "greedy", "--schedule", "vee", "--microbatches", "4", "--json"
    )
    assert (code, err) == (0, "")
    assert len(json.loads(out)["stages"]) in (4, 6)


@pytest.mark.parametrize("name", BROKEN_SCHEDULES)
def test_a_broken_schedule_is_one_line_that_names_it(
    faulty: None, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """On numbers, in a plan, in a comparison, and beside others, which go on."""
    own = name.replace("_", "-")
    for words in (
        ("simulate", "--schedule", own, *NUMBERS, "--weight", "1"),
        ("plan", *PROBLEM, "--planner", "greedy", "--schedule", own),
        ("compare", *PROBLEM, "--planner", "greedy", "--schedule", own, "--no-figures"),
    ):
        code, out, err = run(capsys, *words)
        assert (code, out, err.count("\n")) == (1, "", 1), (words, code, out, err)
        assert f"schedule {own!r}" in err
        assert "plug-in" in err
    code, out, err = run(capsys, "simulate", "--schedule", "gpipe", *NUMBERS, "--json")
    assert (code, err) == (0, "")
    code, out, err = run(capsys, "list", "schedules", "--json")
    assert code == 0
    assert "gpipe" in out


def test_what_a_schedule_refuses_is_said_in_its_name(faulty: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A ValueError is about what was asked for: usage."""
    code, out, err = run(capsys, "simulate", "--schedule", "refuses", *NUMBERS)
    assert (code, out, err) == (2, "", "pipeplan simulate: schedule 'refuses': not today\n")
    code, out, err = run(capsys, "simulate", "--schedule", "vee", *NUMBERS[:1], "3", *NUMBERS[2:])
    assert (code, err.count("\n")) == (2, 1)
    assert "schedule 'vee': zb-v has two stages per device" in err


def test_options_of_plug_ins_are_given_by_name(faulty: None, capsys: pytest.CaptureFixture[str]) -> None:
    """By --option, as the type that the function declares, within its range; on the command line and from Python alike."""
    seconds = {}
    for width in ("1", "2"):
        code, out, err = run(
            capsys,
            "simulate",
            "--schedule",
            "drops",
            *NUMBERS,
            "--option",
            f"width={width}",
            "--option",
            "how=fast",
            "--json",
        )
        assert (code, err) == (0, "")
        seconds[width] = json.loads(out)["peak_in_flight"]
    assert seconds["1"] != seconds["2"]
    for option, said in (
        ("width=5", "option width must be a whole number of at least 1 and at most 4, got '5'"),
        ("width=x", "option width must be a whole number of at least 1 and at most 4, got 'x'"),
        ("how=well", "option how must be one of slow, fast, got 'well'"),
        ("wdth=3", "does not take wdth; it takes width, how"),
    ):
        code, out, err = run(capsys, "simulate", "--schedule", "drops", *NUMBERS, "--option", option)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err
        assert "'drops'" in err
    for planner, least in (("a-plan", 1), ("made", 2)):
        name = {"made": "Made"}.get(planner, planner)
        code, out, err = run(capsys, "plan", *PROBLEM, "--planner", name, "--json")
        assert (code, json.loads(out)["details"]["depth"]) == (0, least)
        code, out, err = run(capsys, "plan", *PROBLEM, "--planner", name, "--option", "depth=3", "--json")
        assert (code, json.loads(out)["details"]["depth"], err) == (0, 3, "")
        code, out, err = run(capsys, "plan", *PROBLEM, "--planner", name, "--option", "dept=3")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "option 'dept' is unknown (did you mean depth?); choose from depth" in err
    code, out, err = run(capsys, "plan", *PROBLEM, "--planner", "a-plan", "--option", "depth=0")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "planner 'a-plan' does not apply: option depth must be a whole number of at least 1, got '0'" in err
    code, out, err = run(capsys, "list", "planners", "--json")
    assert {row["name"]: row["options"] for row in json.loads(out)["planners"]}["a-plan"] == "depth, word"


def test_options_of_a_schedule_reach_plans(faulty: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And their files."""
    file = str(tmp_path / "plan.json")
    code, out, err = run(
        capsys,
        *(
            "plan",
            *PROBLEM,
            "--planner",
            "greedy",
            "--schedule",
            "drops",
            "--option",
            "width=2",
            "--json",
            "--out",
            file,
        ),
    )
    assert (code, err) == (0, "")
    assert json.loads(Path(file).read_text(encoding="utf-8"))["plan"]["options"] == {"width": 2}
    code, out, err = run(capsys, "simulate", "--plan", file, "--json")
    assert (code, err) == (0, "")
    wrong = Path(file).read_text(encoding="utf-8").replace('"width": 2', '"width": 9')
    Path(file).write_text(wrong, encoding="utf-8")
    code, out, err = run(capsys, "simulate", "--plan", file)
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert "option width must be a whole number of at least 1 and at most 4, got 9" in err


@pytest.mark.parametrize("name", PLANNERS)
def test_a_broken_planner_is_one_line_that_names_it(
    faulty: None, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """And a row of a comparison, whose other rows are there."""
    own = name.replace("_", "-")
    code, out, err = run(capsys, "plan", *PROBLEM, "--planner", own)
    assert (out, err.count("\n")) == ("", 1)
    assert code in (1, 3)
    assert f"planner {own!r}" in err or "schedule 'returns-none'" in err
    code, out, err = run(capsys, "compare", *PROBLEM, "--planner", own, "--planner", "greedy", "--no-figures", "--json")
    assert (code, err) == (0, "")
    rows = {row["planner"]: row for row in json.loads(out)["plans"]}
    assert rows["greedy"]["status"] == "fits"
    assert rows[own]["status"] in ("failed", "no-plan-fits")
    assert rows[own]["reason"]


def test_a_planner_that_cannot_say_whether_it_is_asked_is_not(faulty: None) -> None:
    """Nor does it end the question."""
    problem = make_problem("chain:6", "pipedream-b", 8, devices=4)
    assert planner_entries()["p-default"].is_default(problem) is False


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_broken_workload_is_one_line_that_names_it(
    faulty: None, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """And is passed over in lists."""
    own = name.replace("_", "-")
    code, out, err = run(capsys, "plan", "--planner", "greedy", "--workload", own, "--cluster", "pipedream-b")
    assert (out, err.count("\n")) == ("", 1)
    assert code in (1, 2)
    assert f"workload {own!r}" in err
    code, out, err = run(capsys, "list", "workloads", "--json")
    assert code == 0
    assert "vgg16" in out
    assert err.count("\n") == len(WORKLOADS)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('at import')", "study 'mine', a plug-in, failed: KeyError: 'at import'"),
        ("", "study 'mine', a plug-in, failed: AttributeError: module 'pipeplan_study' has no attribute 'run'"),
        ("def run(arguments): return None", "study 'mine': run must return Findings or an exit code, not NoneType"),
        ("def run(arguments): return run(arguments)", "study 'mine', a plug-in, failed: RecursionError"),
        ("def run(arguments): raise SystemExit(7)", "study 'mine', a plug-in, failed: SystemExit: 7"),
    ],
)
def test_a_broken_study_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    """Whatever its module, or what it runs, does."""
    (tmp_path / "pipeplan_study.py").write_text(body, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pipeplan_study", raising=False)
    plugged = {**STUDIES, "mine": Study("pipeplan_study", "Why?", 0.1)}
    monkeypatch.setattr("experiments.studies.study_harness.studies", lambda: plugged)
    code, out, err = run(capsys, "study", "mine")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert said in err


def test_functions_stand_in_place_of_names() -> None:
    """Of a planner, in plans and comparisons; two of one name are numbered."""
    problem = make_problem("chain:6", "pipedream-b", 8, devices=4)

    def whole(problem: Problem, evaluate: Evaluator, rng: np.random.Generator, parts: int = 1) -> Plan:
        layers = tuple(range(len(problem.workload)))
        return Plan("mine", "gpipe", (Stage(layers, (0,)),), (problem.batch // parts,) * parts)

    assert pp.plan(problem, whole).plan.planner == "mine"
    assert len(pp.plan(problem, whole, options={"parts": np.int64(2)}).plan.microbatches) == 2
    other = partial(whole, parts=4)
    found = pp.compare(problem, [whole, "greedy", other])
    assert [one.planner for one in found.plans] == ["whole", "greedy", "whole-2"]
    assert all(one.status == "fits" for one in found.plans)
    assert [one.planner for one in pp.compare(problem, whole).plans] == ["whole"]
    for wrong in (3, None):
        with pytest.raises(ValueError, match="a planner is a name, or a function"):
            pp.plan(problem, wrong)  # type: ignore[arg-type]


AT_FAULT = {
    "B is there twice": ("{s}F{m} {s}B{m} {s}B{m}", "device 0, position 2: op 0B0 is doubled"),
    "W is forgotten": ("{s}F{m} {s}I{m}", "device 0: op 0W0 is missing"),
    "no backward": ("{s}F{m}", r"device 0: op 0B0 is missing \(or 0I0 with 0W0\)"),
    "B before F": ("{s}B{m} {s}F{m}", "deadlock: device 0, position 0: op 0B0 waits for 0F0"),
}


@pytest.mark.parametrize("how", AT_FAULT)
def test_a_plugged_in_schedule_at_fault_is_no_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugins: None, how: str
) -> None:
    """Simulated, planned with by its planner or by another, compared: one line that names the op, from Python, too."""
    words, said = AT_FAULT[how]
    module = "pipeplan_test_fault_" + "".join(filter(str.isalpha, how))
    install(tmp_path, module, MODULE.replace("{s}F{m} {s}B{m}", words))
    monkeypatch.syspath_prepend(str(tmp_path))
    problem = ("--workload", "five-layers", "--cluster", "pair-of-mine", "--batch", "8")
    on_numbers = ("--stages", "2", "--microbatches", "3", "--forward", "1", "--backward", "2")
    for command in (
        ("simulate", "--schedule", "one-at-a-time", *on_numbers),
        ("plan", "--planner", "two-devices", *problem),
        ("plan", "--planner", "uniform", "--schedule", "one-at-a-time", *problem),
        ("compare", "--planner", "uniform", "--schedule", "one-at-a-time", *problem),
    ):
        code, out, err = run(capsys, *command)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert re.search(said, err)
    with pytest.raises(PluginError, match=said):
        pp.simulate("one-at-a-time", stages=2, microbatches=3, forward=1, backward=2)
    here = pp.Problem("five-layers", "pair-of-mine", batch=8)
    with pytest.raises(PluginError, match="schedule 'one-at-a-time', a plug-in, .*" + said):
        pp.plan(here, "two-devices")
    answer, other = pp.compare(here, ["two-devices", "greedy"]).plans
    assert (answer.status, answer.result, other.status) == ("failed", None, "fits")
    assert re.search(said, answer.reason)


# ---- names and accelerators ---------------------------------------------------------------------------------------------

TAKEN = {
    "schedules": "gpipe",
    "planners": "uniform",
    "workloads": "vgg16",
    "studies": "umpipe",
    "accelerators": "p40",
    "clusters": "pipedream-a",
}
"""A name of this package, by what has names."""

ACCELERATORS = """
import math

class Base:
    name = "x"
    memory_bytes = 2.0**34
    streams = False
    sublinear = True

    def seconds(self, work, samples, phase, precision):
        return self.answer()

def of(function):
    return type("Made", (Base,), {"answer": lambda self: function()})

def leave(): raise SystemExit(7)
def fail(): raise KeyError("at call")
def endless(): return endless()

nan, negative, infinite = of(lambda: math.nan), of(lambda: -1.0), of(lambda: math.inf)
text, nothing, switch = of(lambda: "1 ms"), of(lambda: None), of(lambda: True)
leaves, fails, recursive = of(leave), of(fail), of(endless)
good = of(lambda: 1e-3)
"""

ANSWERS = {
    "nan": "seconds must be finite and not negative, got nan",
    "negative": "seconds must be finite and not negative, got -1.0",
    "infinite": "seconds must be finite and not negative, got inf",
    "text": "got '1 ms'",
    "nothing": "got None",
    "switch": "got True",
    "leaves": "SystemExit: 7",
    "fails": "KeyError: 'at call'",
    "recursive": "RecursionError",
}


def installed(folder: Path, name: str, module: str, entries: str) -> None:
    """A package of one module and these entry points."""
    (folder / f"{name}.py").write_text(module, encoding="utf-8")
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text(entries, encoding="utf-8")


@pytest.mark.parametrize("group", TAKEN)
def test_a_plug_in_with_a_name_of_ours_is_refused_by_name(
    group: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_plugins: None,
) -> None:
    """One line that names both; what has the name here stays, and so do the package's other offers."""
    made = ["one_at_a_time", "two_devices", "five_layers", "coin", "Constant", "Constant"][list(TAKEN).index(group)]
    module, name = f"pipeplan_taken_{group}", TAKEN[group]
    before = pp.names(group) if group != "studies" else ()
    capsys.readouterr()
    plugged_in.cache_clear()
    entries = f"[pipeplan.{group}]\n{name} = {module}:{made}\nof-its-own = {module}:{made}\n"
    installed(tmp_path, module, MODULE, entries)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = run(capsys, *(("study",) if group == "studies" else ("list", group)))
    assert code == 0
    assert name in out
    if group != "clusters":  # where an accelerator is none
        assert "of-its-own" in out
    told = [line for line in err.splitlines() if name in line]
    assert len(told) == 1
    assert f"plug-in {name} = {module}:{made} of pipeplan.{group}" in told[0]
    assert f"{name!r} is pipeplan's own" in told[0]
    if before:
        assert set(before) <= set(pp.names(group))


@pytest.mark.parametrize("name", ANSWERS)
def test_a_broken_accelerator_is_one_line_that_names_it(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugins: None
) -> None:
    """Whatever its seconds are: exit code 1, the accelerator, and what it answered."""
    module = f"pipeplan_slow_{name}"
    installed(tmp_path, module, ACCELERATORS, f"[pipeplan.accelerators]\nmine = {module}:{name}\n")
    (tmp_path / "c.toml").write_text(CLUSTER.replace('"constant"', '"mine"'), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    question = ("--workload", "chain:4", "--cluster", str(tmp_path / "c.toml"), "--batch", "8")
    code, out, err = run(capsys, "plan", "--planner", "greedy", *question)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "accelerator 'x'" in err
    assert ANSWERS[name] in err


def test_a_right_accelerator_of_a_package_is_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugins: None
) -> None:
    """The class of the broken ones, with seconds that are some."""
    installed(tmp_path, "pipeplan_good", ACCELERATORS, "[pipeplan.accelerators]\nmine = pipeplan_good:good\n")
    (tmp_path / "c.toml").write_text(CLUSTER.replace('"constant"', '"mine"'), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    problem = make_problem("chain:4", str(tmp_path / "c.toml"), 8)
    assert pp.plan(problem, "greedy").iteration_seconds > 0.0


TALKING = """
from planners import PlannerEntry
from simulator import Plan, Stage, build_schedule, workload_from_spec

print("imported")

class Loud:
    name = "loud"
    memory_bytes = 2.0**34
    streams = False
    sublinear = True

    def seconds(self, work, samples, phase, precision):
        print("seconds")
        return 1e-3

def schedule(stages, microbatches):
    print("schedule")
    return build_schedule("gpipe", stages, microbatches)

def planner(problem, evaluate, rng):
    print("planner")
    return Plan("p", "aloud", (Stage(tuple(range(len(problem.workload))), (0,)),), (problem.batch,))

def workload():
    print("workload")
    return workload_from_spec("chain:3")
"""

TALKING_POINTS = """
[pipeplan.accelerators]
loud = {0}:Loud
[pipeplan.schedules]
aloud = {0}:schedule
[pipeplan.planners]
talks = {0}:planner
[pipeplan.workloads]
said = {0}:workload
"""


def test_what_plug_ins_print_is_no_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugins: None
) -> None:
    """It goes to stderr, from wherever it is printed; stdout is one JSON document."""
    installed(tmp_path, "pipeplan_loud", TALKING, TALKING_POINTS.format("pipeplan_loud"))
    (tmp_path / "c.toml").write_text(CLUSTER.replace('"constant"', '"loud"'), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    question = ("--workload", "said", "--cluster", str(tmp_path / "c.toml"), "--batch", "8", "--json")
    code, out, err = run(capsys, "plan", "--planner", "talks", *question)
    assert code == 0
    assert json.loads(out)["schedule"] == "aloud"
    assert {"imported", "seconds", "schedule", "planner", "workload"} <= set(err.split())
