"""Rules of plug-ins: a package with each kind is used from the command line, and a broken one breaks only itself."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoints, distributions
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import pipeplan as pp
from experiments import make_problem
from experiments.cli import main
from experiments.commands.list_command import TOPICS
from experiments.compare.questions import names
from experiments.studies.catalogue import STUDIES, Study
from hardware_profiles import Accelerator, PluginError, answering_for, installed, load_cluster, plugged_in
from planners import Evaluator, planner_entries
from simulator import Plan, Problem, Stage, UndercutBoundError, schedule_families

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
    "raises no Exception": ("class Gone(BaseException): ...\nraise Gone('away')", "Gone: away"),
}


def install(folder: Path, module: str, text: str, entry_points: str) -> None:
    """A package as pip leaves it: its module, its entry points, and where they name a folder of clusters that folder."""
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    information = folder / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text(entry_points.format(module=module), encoding="utf-8")
    if "{module}_clusters" in entry_points:
        clusters = folder / f"{module}_clusters"
        clusters.mkdir()
        (clusters / "__init__.py").touch()
        (clusters / "pair-of-mine.toml").write_text(CLUSTER, encoding="utf-8")


ROWS: dict[tuple[str, str], tuple[str, ...]] = {}
"""Of lists, by topic and name."""

OWN = {topic: frozenset(names(topic)) for topic in ("workloads", "clusters")}


@pytest.fixture(autouse=True)
def _own_rows_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists tell the workloads and clusters of this package from memory."""

    def remembered(topic: str, row: Callable[[str], tuple[str, ...]]) -> Callable[[str], tuple[str, ...]]:
        def told(name: str) -> tuple[str, ...]:
            if name not in OWN[topic]:
                return row(name)
            if (topic, name) not in ROWS:
                ROWS[topic, name] = row(name)
            return ROWS[topic, name]

        return told

    for topic in OWN:
        columns, row = TOPICS[topic]
        monkeypatch.setitem(TOPICS, topic, (columns, remembered(topic, row)))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugins: None) -> Path:
    """A folder in which packages are found; plug-ins are read anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `pipeplan words…`."""
    code = main(words.split())
    out, err = capsys.readouterr()
    return code, out, err


def listed(capsys: pytest.CaptureFixture[str], topic: str) -> tuple[dict[str, dict[str, str]], str]:
    """The rows of a list by name, and stderr."""
    code, out, err = run(capsys, f"list {topic} --json")
    assert code == 0
    return {row["name"]: row for row in json.loads(out)[topic]}, err


def refused(capsys: pytest.CaptureFixture[str], words: str, code: int = 1) -> str:
    """The one line of a command that ends with this exit code and prints nothing."""
    found, out, err = run(capsys, words)
    assert (found, out, err.count("\n")) == (code, "", 1), (words, found, out, err)
    return err


NUMBERS = "--stages 2 --microbatches 3 --forward 1 --backward 2"
MINE = "--workload five-layers --cluster pair-of-mine --batch 8"


def test_each_kind_of_plug_in_is_used(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    """A schedule and a planner that are functions, a workload, an accelerator's class and a cluster's file, by their names."""
    install(site, "pipeplan_test_plugins", MODULE, ENTRY_POINTS)
    code, out, err = run(capsys, f"simulate --schedule one-at-a-time {NUMBERS} --json")
    assert (code, err, json.loads(out)["makespan_seconds"]) == (0, "", 18.0)
    code, out, err = run(capsys, f"plan --planner two-devices {MINE} --json")
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
        rows, err = listed(capsys, topic)
        assert (rows[name].get("summary", ""), err) == (said, "")
    assert run(capsys, "study coin --heads") == (0, "heads\n", "")


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_plug_in_is_named_and_passed_over(capsys: pytest.CaptureFixture[str], site: Path, how: str) -> None:
    """What does not use it works as without it; a line on stderr says which entry point is left out, and why."""
    text, said = BROKEN[how]
    module = f"pipeplan_broken_{list(BROKEN).index(how)}"
    install(site, module, text, ENTRY_POINTS)
    code, out, err = run(capsys, f"simulate --schedule gpipe {NUMBERS} --json")
    assert (code, json.loads(out)["makespan_seconds"], err.count("\n")) == (0, 12.0, 1)
    assert f"passing over plug-in one-at-a-time = {module}:one_at_a_time of pipeplan.schedules: {said}" in err
    others = ("workloads", "vgg16"), ("accelerators", "p40"), ("clusters", "dapple-a")
    for topic, own in (("planners", "uniform"), *(others if how in ("import fails", "wrong kind") else ())):
        rows, err = listed(capsys, topic)
        assert own in rows
        assert (err.count("\n"), "passing over" in err) == (1, True)
    code, out, err = run(capsys, "study --json")
    assert (code, err.count("\n")) == (0, 1)
    assert "coin" not in {row["name"] for row in json.loads(out)["studies"]}
    err = refused(capsys, f"simulate --schedule one-at-a-time {NUMBERS}", 2)
    assert "schedule 'one-at-a-time' is unknown" in err


def test_a_broken_profile_of_the_user_is_passed_over_in_lists(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`list` goes on; the file's own use still ends with exit code 4."""
    monkeypatch.setenv("PIPEPLAN_PROFILES", str(tmp_path))
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "accelerators" / "mine.toml").write_text("kind = 3\n", encoding="utf-8")
    rows, err = listed(capsys, "accelerators")
    assert "passing over accelerator mine" in err
    assert (err.count("\n"), "p40" in rows) == (1, True)


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
    rows, err = listed(capsys, "clusters")
    assert ("dapple-a" in rows, err) == (True, "")


# ---- one kind of fault after the other -------------------------------------------------------------------------------

FAULTY = '''
from simulator import Schedule, build_schedule, from_text, Plan, Stage, ScheduleFamily, workload_from_spec
from dataclasses import dataclass
from planners import Note, PlannerEntry
from typing import Annotated, Literal
from hardware_profiles import Bounds

class Gone(BaseException):
    """Of its own, and no Exception."""

def wraps(stages, microbatches):
    """1F1B under another name."""
    return build_schedule("1f1b", stages, microbatches)

def wraps_stream(stages, microbatches):
    return build_schedule("pipedream", stages, microbatches)

@dataclass
class Vee:  # has no hash
    inner: str

    def __call__(self, stages, microbatches):
        return build_schedule(self.inner, stages, microbatches)

vee = Vee("zb-v")
def waves(stages, microbatches): return build_schedule("hanayo", stages, microbatches)
whole = ScheduleFamily(waves, "says all by itself: its stages might be a V, too", placement="wave")

def drops(stages, microbatches, width: Annotated[int, Bounds(ge=1, le=4)] = 1, how: Literal["slow", "fast"] = "slow"):
    """Shows its options.

    width: of it
    """
    return build_schedule("gpipe" if width > 1 else "1f1b", stages, microbatches)

def streams(stages, microbatches):
    return build_schedule("pipedream", stages, microbatches)
says_that_it_flushes = ScheduleFamily(streams, "a stream whose family says nothing of it")
says_that_it_streams = ScheduleFamily(wraps, "a flush whose family says that it has none", flush=False)

def raises(stages, microbatches): raise KeyError("at call")
def refuses(stages, microbatches): raise ValueError("not today")
def shrinks(stages, microbatches):
    if microbatches < 2: raise ValueError("nothing is left")
    return build_schedule("shrinks", stages, microbatches - 1)
def returns_none(stages, microbatches): return None
def returns_text(stages, microbatches): return "0F0 0B0"
def other_stages(stages, microbatches): return build_schedule("1f1b", stages + 1, microbatches)
def endless(stages, microbatches): return build_schedule("endless", stages, microbatches)
def leaves(stages, microbatches): raise SystemExit(7)
def goes(stages, microbatches): raise Gone("at call")

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
def p_goes(problem, evaluate, rng): raise Gone("at call")
def p_details(problem, evaluate, rng):
    evaluate.note(Found("", object(), 0, ""))
    return a_plan(problem, evaluate, rng)
p_default = PlannerEntry(
    lambda request: a_plan, "breaks where nobody asks", lambda problem, request: None, by_default=lambda problem: 1 / 0
)
def gone(problem): raise Gone("at call")
p_default_goes = PlannerEntry(
    lambda request: a_plan, "goes where nobody asks", lambda problem, request: None, by_default=gone
)
p_reason = PlannerEntry(lambda request: a_plan, "cannot say why", lambda problem, request: 1 / 0)

def w_none(): return None
def w_raises(): raise KeyError("at call")
def w_leaves(): raise SystemExit(7)
def w_goes(): raise Gone("at call")
'''

BROKEN_SCHEDULES = (
    "raises", "returns_none", "returns_text", "other_stages", "endless", "leaves", "goes",
    "says_that_it_flushes", "says_that_it_streams",
)  # fmt: skip
BROKEN_PLANNERS = (
    "p_raises", "p_value", "p_none", "p_text", "p_stages", "p_schedule", "p_endless", "p_leaves", "p_goes",
    "p_details", "p_reason",
)  # fmt: skip
WORKLOADS = ("w_none", "w_raises", "w_leaves", "w_goes")


@pytest.fixture
def faulty(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with an entry point for every function of FAULTY."""
    kinds = {
        "schedules": ("wraps", "wraps_stream", "whole", "vee", "drops", "refuses", "shrinks", *BROKEN_SCHEDULES),
        "planners": ("a_plan", "Made", "p_default", "p_default_goes", *BROKEN_PLANNERS),
        "workloads": WORKLOADS,
    }
    points = "".join(
        f"[pipeplan.{kind}]\n" + "".join(f"{name.replace('_', '-')} = {{module}}:{name}\n" for name in names)
        for kind, names in kinds.items()
    )
    install(site, "pipeplan_faulty", FAULTY, points)
    monkeypatch.delitem(sys.modules, "pipeplan_faulty", raising=False)

    def entry_points(**asked: str) -> EntryPoints:
        """Those of this folder, without a look into all other packages."""
        return EntryPoints(one for found in distributions(path=[str(site)]) for one in found.entry_points).select(
            **asked
        )

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)


FOUR = "--stages 4 --microbatches 4 --forward 1 --backward 2"
PROBLEM = "--workload chain:6 --cluster pipedream-b --devices 4 --batch 8"


def test_a_schedule_that_wraps_another_is_that_schedule(faulty: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Listed without a word, replayed alike, on the placement of its stages, with a flush if that has one."""
    for name, inner in (("wraps", "1f1b"), ("wraps-stream", "pipedream"), ("whole", "hanayo"), ("vee", "zb-v")):
        seconds = []
        for schedule in (name, inner):
            code, out, err = run(capsys, f"simulate --schedule {schedule} {FOUR} --weight 1 --json")
            assert (code, err) == (0, "")
            seconds.append(json.loads(out)["makespan_seconds"])
        assert seconds[0] == seconds[1]
        mine, built_in = schedule_families()[name], schedule_families()[inner]
        assert (mine.flush, mine.placement, mine.chunks) == (built_in.flush, built_in.placement, built_in.chunks)
    assert {"wraps", "vee"} <= set(listed(capsys, "schedules")[0])
    code, out, err = run(capsys, f"plan {PROBLEM} --planner greedy --schedule vee --microbatches 4 --json")
    assert (code, err) == (0, "")
    assert len(json.loads(out)["stages"]) in (4, 6)


@pytest.mark.parametrize("name", BROKEN_SCHEDULES)
def test_a_broken_schedule_is_one_line_that_names_it(
    faulty: None, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """On numbers, in a plan, and in a comparison."""
    own = name.replace("_", "-")
    asked = f"{PROBLEM} --planner uniform --microbatches 2 --schedule {own}"
    for words in (f"simulate --schedule {own} {FOUR} --weight 1", f"plan {asked}", f"compare {asked} --no-figures"):
        err = refused(capsys, words)
        assert f"schedule {own!r}" in err
        assert "plug-in" in err


INTERRUPTED = """
from planners import PlannerEntry

def schedule(stages, microbatches): raise KeyboardInterrupt
def planner(problem, evaluate, rng): raise KeyboardInterrupt
def asked(problem): raise KeyboardInterrupt
entry = PlannerEntry(lambda request: planner, "is interrupted", lambda problem, request: None, by_default=asked)
"""


def test_an_interrupt_is_no_failure_of_a_plug_in(site: Path) -> None:
    """It reaches whoever asked: of a schedule or its example, a planner's plan, whether it is one by default, and its module."""
    points = "[pipeplan.schedules]\nmine = {module}:schedule\n[pipeplan.planners]\nown = {module}:entry\n"
    install(site, "pipeplan_interrupted", INTERRUPTED, points)
    problem = make_problem("chain:6", "pipedream-b", 8, devices=4)
    with pytest.raises(KeyboardInterrupt):
        schedule_families()["mine"]
    with pytest.raises(KeyboardInterrupt), answering_for("schedule 'mine'"):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        pp.plan(problem, "own")
    with pytest.raises(KeyboardInterrupt):
        planner_entries()["own"].is_default(problem)
    plugged_in.cache_clear()
    (site / "pipeplan_interrupted.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    sys.modules.pop("pipeplan_interrupted")
    with pytest.raises(KeyboardInterrupt):
        planner_entries()


def test_other_schedules_go_on_beside_broken_ones(faulty: None, capsys: pytest.CaptureFixture[str]) -> None:
    """They are replayed and listed."""
    assert run(capsys, f"simulate --schedule gpipe {FOUR} --json")[::2] == (0, "")
    assert "gpipe" in listed(capsys, "schedules")[0]


def test_what_a_schedule_refuses_is_said_in_its_name(faulty: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A ValueError is about what was asked for: usage."""
    assert refused(capsys, f"simulate --schedule refuses {FOUR}", 2) == (
        "pipeplan simulate: schedule 'refuses': not today\n"
    )
    assert refused(capsys, f"simulate --schedule shrinks {FOUR}", 2) == (
        "pipeplan simulate: schedule 'shrinks': nothing is left\n"
    )
    odd = FOUR.replace("--stages 4 --microbatches 4", "--stages 3 --microbatches 4")
    assert "schedule 'vee': zb-v has two stages per device" in refused(capsys, f"simulate --schedule vee {odd}", 2)


def test_options_of_plug_ins_are_given_by_name(faulty: None, capsys: pytest.CaptureFixture[str]) -> None:
    """By --option, as the type that the function declares, within its range; on the command line and from Python alike."""
    peaks = []
    for width in ("1", "2"):
        words = f"simulate --schedule drops {FOUR} --option width={width} --option how=fast --json"
        code, out, err = run(capsys, words)
        assert (code, err) == (0, "")
        peaks.append(json.loads(out)["peak_in_flight"])
    assert peaks[0] != peaks[1]
    for option, said in (
        ("width=5", "option width must be a whole number of at least 1 and at most 4, got '5'"),
        ("width=x", "option width must be a whole number of at least 1 and at most 4, got 'x'"),
        ("how=well", "option how must be one of slow, fast, got 'well'"),
        ("wdth=3", "does not take wdth; it takes width, how"),
    ):
        err = refused(capsys, f"simulate --schedule drops {FOUR} --option {option}", 2)
        assert said in err
        assert "'drops'" in err
    for planner, least in (("a-plan", 1), ("Made", 2)):
        asked = f"plan {PROBLEM} --planner {planner}"
        for words, depth in ((f"{asked} --json", least), (f"{asked} --option depth=3 --json", 3)):
            code, out, err = run(capsys, words)
            assert (code, json.loads(out)["details"]["depth"], err) == (0, depth, "")
        err = refused(capsys, f"{asked} --option dept=3", 2)
        assert "option 'dept' is unknown (did you mean depth?); choose from depth" in err
    err = refused(capsys, f"plan {PROBLEM} --planner a-plan --option depth=0", 2)
    assert "planner 'a-plan' does not apply: option depth must be a whole number of at least 1, got '0'" in err
    assert listed(capsys, "planners")[0]["a-plan"]["options"] == "depth, word"


def test_options_of_a_schedule_reach_plans(faulty: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And their files."""
    file = tmp_path / "plan.json"
    words = f"plan {PROBLEM} --planner uniform --microbatches 2 --schedule drops --option width=2 --json --out {file}"
    assert run(capsys, words)[::2] == (0, "")
    text = file.read_text(encoding="utf-8")
    assert json.loads(text)["plan"]["options"] == {"width": 2}
    assert run(capsys, f"simulate --plan {file} --json")[::2] == (0, "")
    file.write_text(text.replace('"width": 2', '"width": 9'), encoding="utf-8")
    err = refused(capsys, f"simulate --plan {file}", 4)
    assert "option width must be a whole number of at least 1 and at most 4, got 9" in err


@pytest.mark.parametrize("name", BROKEN_PLANNERS)
def test_a_broken_planner_is_one_line_that_names_it(
    faulty: None, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Exit code 1, or 3 where its plan fits nowhere."""
    own = name.replace("_", "-")
    code, out, err = run(capsys, f"plan {PROBLEM} --planner {own}")
    assert (out, err.count("\n")) == ("", 1)
    assert code in (1, 3)
    assert f"planner {own!r}" in err or "schedule 'returns-none', a plug-in, must make a Schedule, not NoneType" in err


def test_broken_planners_are_rows_of_a_comparison(faulty: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its reason; a planner that is not broken has its plan beside them."""
    names = [name.replace("_", "-") for name in BROKEN_PLANNERS]
    asked = " ".join(f"--planner {name}" for name in (*names, "greedy"))
    code, out, err = run(capsys, f"compare {PROBLEM} {asked} --no-figures --json")
    assert (code, err) == (0, "")
    rows = {row["planner"]: row for row in json.loads(out)["plans"]}
    assert rows.pop("greedy")["status"] == "fits"
    assert list(rows) == names
    assert all(row["status"] in ("failed", "no-plan-fits") and row["reason"] for row in rows.values())


def test_a_planner_that_cannot_say_whether_it_is_asked_is_not(faulty: None) -> None:
    """Nor does it end the question."""
    problem = make_problem("chain:6", "pipedream-b", 8, devices=4)
    for name in ("p-default", "p-default-goes"):
        assert planner_entries()[name].is_default(problem) is False


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_broken_workload_is_one_line_that_names_it(
    faulty: None, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """And is passed over in lists."""
    own = name.replace("_", "-")
    code, out, err = run(capsys, f"plan --planner greedy --workload {own} --cluster pipedream-b")
    assert (out, err.count("\n")) == ("", 1)
    assert code in (1, 2)
    assert f"workload {own!r}" in err
    rows, err = listed(capsys, "workloads")
    assert ("vgg16" in rows, err.count("\n")) == (True, len(WORKLOADS))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('at import')", "study 'mine', a plug-in, failed: KeyError: 'at import'"),
        ("", "study 'mine', a plug-in, failed: AttributeError: module 'pipeplan_study' has no attribute 'run'"),
        ("def run(arguments): return None", "study 'mine': run must return Findings or an exit code, not NoneType"),
        ("def run(arguments): return run(arguments)", "study 'mine', a plug-in, failed: RecursionError"),
        ("def run(arguments): raise SystemExit(7)", "study 'mine', a plug-in, failed: SystemExit: 7"),
        (
            "class Gone(BaseException): ...\ndef run(arguments): raise Gone('away')",
            "study 'mine', a plug-in, failed: Gone: away",
        ),
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
    assert said in refused(capsys, "study mine")


def test_functions_stand_in_place_of_names() -> None:
    """Of a planner, in plans and comparisons; two of one name are numbered, a planner of the registry keeps its own."""
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
    whole.__name__ = "uniform"
    assert [one.planner for one in pp.compare(problem, [whole, "uniform"]).plans] == ["uniform-2", "uniform"]
    for wrong in (3, None):
        with pytest.raises(ValueError, match="a planner is a name, or a function"):
            pp.plan(problem, wrong)  # type: ignore[arg-type]


AT_FAULT = {
    "B is there twice": ("{s}F{m} {s}B{m} {s}B{m}", "device 0, position 2: op 0B0 is doubled"),
    "W is forgotten": ("{s}F{m} {s}I{m}", "device 0: op 0W0 is missing"),
    "no backward": ("{s}F{m}", r"device 0: op 0B0 is missing \(or 0I0 with 0W0\)"),
    "B before F": ("{s}B{m} {s}F{m}", "deadlock: device 0, position 0: op 0B0 waits for 0F0"),
    "U on one stage": (
        "{s}F{m} {s}B{m} {'0U%d' % m * (not s)}",
        r"device 1: stage 1 has no update, .*op 0U0 on device 0",
    ),
}


@pytest.mark.parametrize("how", AT_FAULT)
def test_a_plugged_in_schedule_at_fault_is_no_figure(capsys: pytest.CaptureFixture[str], site: Path, how: str) -> None:
    """Simulated, planned with by its planner or by another, compared: one line that names the op, from Python, too."""
    words, said = AT_FAULT[how]
    module = "pipeplan_test_fault_" + "".join(filter(str.isalpha, how))
    install(site, module, MODULE.replace("{s}F{m} {s}B{m}", words), ENTRY_POINTS)
    for command in (
        f"simulate --schedule one-at-a-time {NUMBERS}",
        f"plan --planner two-devices {MINE}",
        f"plan --planner uniform --microbatches 2 --schedule one-at-a-time {MINE}",
        f"compare --planner uniform --microbatches 2 --schedule one-at-a-time {MINE}",
    ):
        assert re.search(said, refused(capsys, command))
    with pytest.raises(PluginError, match=said):
        pp.simulate("one-at-a-time", stages=2, microbatches=3, forward=1, backward=2)
    here = pp.Problem("five-layers", "pair-of-mine", batch=8)
    with pytest.raises(PluginError, match="schedule 'one-at-a-time', a plug-in, .*" + said):
        pp.plan(here, "two-devices")
    answer, other = pp.compare(here, ["two-devices", "greedy"]).plans
    assert (answer.status, answer.result, other.status) == ("failed", None, "fits")
    assert re.search(said, answer.reason)


@pytest.mark.parametrize(
    ("every", "code", "said"), [(2, 0, ""), (3, 1, "device 0: stage 0 has 13 updates in 20 iterations")]
)
def test_a_stream_updates_once_an_iteration(
    capsys: pytest.CaptureFixture[str], site: Path, every: int, code: int, said: str
) -> None:
    """Of two micro-batches; one that does so after three would take less than any plan's work, and is named."""
    words = f"{{s}}F{{m}} {{s}}B{{m}} {{'%dU%d' % (s, m) * (m % {every} == {every - 1})}}"
    install(site, f"pipeplan_test_updates_{every}", MODULE.replace("{s}F{m} {s}B{m}", words), ENTRY_POINTS)
    found, _, err = run(capsys, f"plan --planner two-devices {MINE}")
    assert (found, said in err) == (code, True)


# ---- names and accelerators ---------------------------------------------------------------------------------------------

TAKEN = {
    "schedules": ("gpipe", "one_at_a_time"),
    "planners": ("uniform", "two_devices"),
    "workloads": ("vgg16", "five_layers"),
    "studies": ("umpipe", "coin"),
    "accelerators": ("p40", "Constant"),
    "clusters": ("pipedream-a", "Constant"),
}
"""A name of this package by what has names, and what a plug-in would call so."""

ACCELERATORS = """
import math
from hardware_profiles import Power

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

def told(**members):
    return type("Told", (good,), members)

no_memory, full, endless_memory = told(memory_bytes=math.nan), told(memory_bytes=-1.0), told(memory_bytes=math.inf)
streaming, streams, law = told(streams=True), told(streams="no"), told(sublinear=1)
host, slow = told(host_bandwidth=math.inf), told(pass_overhead=-1.0)
falling, parts = told(power=Power(40.0, 30.0)), told(power=Power(10.0, 30.0, compute=20.1))
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
    "no_memory": "memory_bytes must be finite and at least 1, got nan",
    "full": "memory_bytes must be finite and at least 1, got -1.0",
    "endless_memory": "memory_bytes must be finite and at least 1, got inf",
    "streaming": "lacks stage_seconds, multiply_seconds",
    "streams": "lacks stage_seconds",
    "law": "sublinear must be a bool, got 1",
    "host": "host_bandwidth must be finite and not negative, got inf",
    "slow": "pass_overhead must be finite and not negative, got -1.0",
    "falling": "power must be None or a Power, whose full is at least its idle, got Power(idle=40.0, full=30.0",
    "parts": "parts of a Power must be amounts within what full load adds to idle, got Power(idle=10.0, full=30.0",
}


@pytest.mark.parametrize("group", TAKEN)
def test_a_plug_in_with_a_name_of_ours_is_refused_by_name(
    group: str, capsys: pytest.CaptureFixture[str], site: Path
) -> None:
    """One line that names both; what has the name here stays, and so do the package's other offers."""
    (name, made), module = TAKEN[group], f"pipeplan_taken_{group}"
    before = pp.names(group) if group != "studies" else ()
    capsys.readouterr()
    plugged_in.cache_clear()
    entries = f"[pipeplan.{group}]\n{name} = {{module}}:{made}\nof-its-own = {{module}}:{made}\n"
    install(site, module, MODULE, entries)
    code, out, err = run(capsys, "study" if group == "studies" else f"list {group}")
    assert code == 0
    assert name in out
    assert "of-its-own" in out or group == "clusters"  # where an accelerator is none
    (told,) = (line for line in err.splitlines() if name in line)
    assert f"plug-in {name} = {module}:{made} of pipeplan.{group}" in told
    assert f"{name!r} is pipeplan's own" in told
    assert not before or set(before) <= set(pp.names(group))


def cluster_of(site: Path, accelerator: str) -> Path:
    """The file of two devices of that name."""
    path = site / "c.toml"
    path.write_text(CLUSTER.replace('"constant"', f'"{accelerator}"'), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ANSWERS)
def test_a_broken_accelerator_is_one_line_that_names_it(
    name: str, capsys: pytest.CaptureFixture[str], site: Path
) -> None:
    """Whatever its seconds are: exit code 1, the accelerator, and what it answered."""
    install(site, f"pipeplan_slow_{name}", ACCELERATORS, f"[pipeplan.accelerators]\nmine = {{module}}:{name}\n")
    asked = f"--workload chain:4 --cluster {cluster_of(site, 'mine')} --batch 8"
    err = refused(capsys, f"plan --planner uniform --microbatches 2 {asked}")
    assert "accelerator 'x'" in err
    assert ANSWERS[name] in err


def test_an_accelerator_that_breaks_its_laws_is_named_where_a_bound_is_undercut() -> None:
    """Its seconds differ each time that it is asked."""
    asked = itertools.count(1.0)
    members = {"memory_bytes": 2.0**34, "streams": False, "sublinear": True, "seconds": lambda *given: next(asked)}
    odd = cast(Accelerator, SimpleNamespace(name="odd", **members))
    cluster = replace(load_cluster("pipedream-a:1"), devices=(odd,) * 4)
    with pytest.raises(UndercutBoundError, match=r"or accelerator 'odd', a plug-in, fails .*check_accelerator"):
        pp.plan(pp.Problem("chain:4", cluster, batch=64), "uniform")


def test_a_right_accelerator_of_a_package_is_used(site: Path) -> None:
    """The class of the broken ones, with seconds that are some."""
    install(site, "pipeplan_good", ACCELERATORS, "[pipeplan.accelerators]\nmine = {module}:good\n")
    problem = make_problem("chain:4", str(cluster_of(site, "mine")), 8)
    assert pp.plan(problem, "uniform", microbatches=2).iteration_seconds > 0.0


def test_installed_plug_ins_are_told_by_what_their_modules_hold(site: Path) -> None:
    """The digest of the file that an entry point names, and none of a module that is nowhere, cannot be looked for or is a
    folder.
    """
    points = "".join(
        f"{name} = {place}:made\n"
        for name, place in (
            ("a", "{module}"),
            ("b", "pipeplan_nowhere"),
            ("c", "{module}.inner"),
            ("d", "pipeplan_folder"),
            ("e", "pipeplan_raises.inner"),
        )
    )
    install(
        site, "pipeplan_told", "made = 1\n", f"[pipeplan.planners]\n{points}[other.planners]\na = {{module}}:made\n"
    )
    (site / "pipeplan_folder").mkdir()
    (site / "pipeplan_raises").mkdir()
    (site / "pipeplan_raises" / "__init__.py").write_text("raise SystemExit(7)\n", encoding="utf-8")
    found = [one for one in installed() if one.distribution == "pipeplan_told"]
    assert [(one.group, one.name, one.version, one.contents) for one in found] == [
        ("pipeplan.planners", name, "1.0", contents)
        for name, contents in zip("abcde", (hashlib.sha256(b"made = 1\n").hexdigest(), "", "", "", ""), strict=True)
    ]


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
loud = {module}:Loud
[pipeplan.schedules]
aloud = {module}:schedule
[pipeplan.planners]
talks = {module}:planner
[pipeplan.workloads]
said = {module}:workload
"""


def test_what_plug_ins_print_is_no_answer(capsys: pytest.CaptureFixture[str], site: Path) -> None:
    """It goes to stderr, from wherever it is printed; stdout is one JSON document."""
    install(site, "pipeplan_loud", TALKING, TALKING_POINTS)
    words = f"plan --planner talks --workload said --cluster {cluster_of(site, 'loud')} --batch 8 --json"
    code, out, err = run(capsys, words)
    assert code == 0
    assert json.loads(out)["schedule"] == "aloud"
    assert {"imported", "seconds", "schedule", "planner", "workload"} <= set(err.split())
