"""`pipeplan sweep`: what axes mean, that every question is answered once, and what its report tells."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import shutil
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeplan as pp
import simulator
from experiments.cli import main
from experiments.compare.comparison import Answer
from experiments.sweep import asking, runs, study
from experiments.sweep.axes import MOST_POINTS, check_grid, read_axis, read_over
from experiments.sweep.contents import Contents
from experiments.sweep.runs import Answered, Batches, answer_all, answered
from experiments.sweep.store import Store
from experiments.sweep.study import FIGURES, Question, make_study, read_option, read_options
from experiments.sweep.sweep_plots import figures_of
from experiments.sweep.swept import Swept
from experiments.terminal.output import UsageError
from hardware_profiles import UnknownProfileError, load_cluster, load_stack, profile_text
from simulator import UndercutBoundError, change_settings
from tests.experiments.commands import ended, no_picture, processes_asked_for, refused
from tests.hardware_profiles.test_load import Entry

PLANNED = ("--microbatches", "4", "--schedule", "gpipe", "--stack", "generic")
SMALL = ("--workload", "chain:4", "--cluster", "pipedream-a", "--planner", "uniform", "--jobs", "1", *PLANNED)
GRID = ("--over", "devices=1:3:+1", "--over", "batch=8:16:x2")


def document(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    """The JSON document of a sweep."""
    assert main(("sweep", *words, "--json")) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# ---- axes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("64:1024:x2", (64, 128, 256, 512, 1024)),
        ("8:30:+8", (8, 16, 24)),
        ("1:1000:x10", (1, 10, 100, 1000)),
        ("0.1:0.5:+0.1", (0.1, 0.2, 0.3, 0.4, 0.5)),
        ("4, 8,16", (4, 8, 16)),
        ("dgx:{1,2},tpu:{1:4:x2}", ("dgx:1", "dgx:2", "tpu:1", "tpu:2", "tpu:4")),
        ("+10%,*2,-8,true,1f1b", ("+10%", "*2", -8, True, "1f1b")),
        ([1, "a", [4, 4, 8]], (1, "a", "4,4,8")),
        (np.array([8, 16]), (8, 16)),
        (3, (3,)),
    ],
)
def test_values_of_an_axis(text: object, values: tuple[object, ...]) -> None:
    """Ranges hold their ends where steps reach them, braces stand for each of what is in them."""
    assert read_axis("x", text).values == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "'x' must be NAME=VALUES, as in batch=64:1024:x2"),
        ("=3", "'=3' must be NAME=VALUES, as in batch=64:1024:x2"),
        ("x=", "x: has no values"),
        ("x=4,,8", "x=4,,8: a value is empty"),
        ("x=4,4", "x: '4' stands twice"),
        ("x=8:4:+1", "x=8:4:+1: 8:4:+1 ends below where it begins"),
        (
            "x=1:4:+0",
            "x=1:4:+0: 1:4:+0 does not rise: steps are +N with N above 0, or xN with N above 1 from a start above 0",
        ),
        (
            "x=1:4:x1",
            "x=1:4:x1: 1:4:x1 does not rise: steps are +N with N above 0, or xN with N above 1 from a start above 0",
        ),
        (
            "x=0:4:x2",
            "x=0:4:x2: 0:4:x2 does not rise: steps are +N with N above 0, or xN with N above 1 from a start above 0",
        ),
        ("x=a:4:+1", "x=a:4:+1: 'a' is not a number"),
        ("x=a{1,{2}}", r"x=a\{1,\{2\}\}: braces stand in pairs, and not in each other"),
        ("x=1:1000000000:+1", "x: has more than 100,000 values, the most points of a sweep"),
    ],
)
def test_axes_that_are_none(text: str, said: str) -> None:
    """One line."""
    with pytest.raises(UsageError, match=said.replace("+", r"\+").replace("(", r"\(")) as caught:
        read_over(text)
    assert "\n" not in str(caught.value)


def test_a_grid_is_counted_before_it_is_made() -> None:
    """Up to MOST_POINTS; no axis twice, and one at least."""
    thousand = [read_axis(name, "1:1000:+1") for name in "abc"]
    assert check_grid(thousand[:1]) == 1000
    with pytest.raises(
        UsageError, match=f"1,000 a × 1,000 b × 1,000 c are 1,000,000,000 points; a sweep has at most {MOST_POINTS:,}"
    ):
        check_grid(thousand)
    with pytest.raises(UsageError, match="a is swept twice"):
        check_grid([thousand[0], thousand[0]])
    with pytest.raises(UsageError, match="needs --over"):
        check_grid([])


# ---- questions -------------------------------------------------------------------------------------------------------


def keys(options: dict[str, Any], *over: str) -> list[str]:
    """The digests of a study's questions."""
    made, contents = make_study(read_options(options), list(map(read_over, over))), Contents()
    return [question.key(contents) for _, question in made.points()]


def test_a_question_is_its_words_and_what_stands_behind_them(tmp_path: Path) -> None:
    """Another value is another one, and so is another file under the same name; the same one is the same in another study."""
    cluster = tmp_path / "mine.toml"
    text = profile_text("pipedream-a", "cluster")
    cluster.write_text(text, encoding="utf-8")
    said = {"workload": "chain:4", "cluster": str(cluster), "planner": "uniform"}
    before = keys(said, "batch=8,16", "network.bandwidth_gbps=5,/2")
    assert len(set(before)) == 4
    assert keys(said | {"batch": 16}, "network.bandwidth_gbps=5,20")[0] == before[2]
    cluster.write_text(text.replace("latency_us = ", "latency_us = 1"), encoding="utf-8")
    assert not set(keys(said, "batch=8,16", "network.bandwidth_gbps=5,/2")) & set(before)


def test_what_packages_bring_as_objects_stands_for_itself(monkeypatch: pytest.MonkeyPatch, no_plugins: None) -> None:
    """Clusters and stacks without a file are known by their names; what nobody brings is an error."""
    offers = {
        "pipeplan.clusters": [Entry("mine", load_cluster("pipedream-a"), "c")],
        "pipeplan.stacks": [Entry("own", replace(load_stack("generic"), name="own"), "s")],
    }
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: offers.get(group, ()))
    contents = Contents()
    for kind, name, stands in (("cluster", "mine", "pipedream-a"), ("stack", "own", [["own", "own"]])):
        assert contents.of(kind, name) == hashlib.sha256(json.dumps(stands).encode()).hexdigest()
        with pytest.raises(UnknownProfileError, match=f"{kind} 'nobodys' is not known"):
            contents.of(kind, "nobodys")


def test_flags_have_two_values() -> None:
    """As words of an axis; other words are none."""
    assert [read_option("no_contention", value) for value in ("true", "false")] == [True, False]
    with pytest.raises(UsageError, match="no_contention: must be true or false, got 'yes'"):
        read_option("no_contention", "yes")


def test_an_option_of_a_planner_is_given_or_swept(tmp_path: Path) -> None:
    """One that has no words of its own: the question is the same, and another than without it; a plan has none."""
    said = {"workload": "chain:4", "cluster": "pipedream-a", "planner": "greedy-dp"}
    given = keys(said | {"option": {"candidates": "all"}}, "batch=8,16")
    assert given == keys(said, "batch=8,16", "option.candidates=all")
    assert given == keys(said | {"option.candidates": "all"}, "batch=8,16")
    assert not set(given) & set(keys(said, "batch=8,16"))
    problem = pp.Problem("chain:4", "pipedream-a", 8, devices=2)
    file = {"problem": str(tmp_path / "problem.json")}
    pp.PlanFile(problem).write(file["problem"])
    assert len(set(keys(file | {"option.candidates": "all"}, "batch=8,16"))) == 2
    pp.PlanFile(problem, pp.plan(problem, "uniform").plan).write(tmp_path / "plan.json")
    with pytest.raises(UsageError, match=r"--option\.candidates does not go with --plan"):
        keys({"plan": str(tmp_path / "plan.json"), "option.candidates": "all"}, "batch=8,16")


def test_a_changed_plugin_is_not_answered_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of its package, or another text of its module, as while it is written; one that is gone is another, too."""
    said = {"workload": "chain:4", "cluster": "pipedream-a", "planner": "uniform"}

    def install(version: str, text: str) -> list[str]:
        (tmp_path / "their_planners.py").write_text(text, encoding="utf-8")
        about = tmp_path / f"theirs-{version}.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: theirs\nVersion: {version}\n", encoding="utf-8")
        (about / "entry_points.txt").write_text("[pipeplan.planners]\ntheirs = their_planners:plan\n", encoding="utf-8")
        found = keys(said, "batch=8,16")
        shutil.rmtree(about)
        return found

    before = keys(said, "batch=8,16")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = install("1.0", "def plan(): ...\n")
    assert install("1.0", "def plan(): ...\n") == first
    others = [before, first, install("1.1", "def plan(): ...\n"), install("1.1", "def plan(): return 1\n")]
    assert len({key for one in others for key in one}) == 8


@pytest.mark.parametrize(("jobs", "processes"), [(None, 2), (1, 1), (2, 2), (8, 3)])
def test_a_sweep_has_the_processes_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, jobs: int | None, processes: int
) -> None:
    """Or as many as there are cores, here two, and never more than questions."""
    asked = processes_asked_for(monkeypatch, runs)
    monkeypatch.setattr(runs, "answered", lambda batch: runs.Answered([(batch[0][0], {})], 1.0, False))
    batches = runs.Batches((name, Question({}, ())) for name in "abc")
    assert [part.told[0][0] for part in runs.on_this_machine(jobs)(batches)] == ["a", "b", "c"]
    assert asked == [processes]


def test_rows_are_the_answers_of_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Under options, paths and a planner by name; a point that cannot be says why, and others go on."""
    over = ("--over", "network.bandwidth_gbps=1,40", "--over", "planner=uniform,greedy", "--over", "devices=2,999")
    rows = document(capsys, *SMALL[:4], *SMALL[6:], "--batch", "16", *over)["rows"]
    assert [(row["network.bandwidth_gbps"], row["planner"], row["devices"]) for row in rows[:3]] == [
        *((1, "uniform", 2), (1, "uniform", 999), (1, "greedy", 2))
    ]
    for row in rows:
        if row["devices"] == 999:
            assert (row["status"], row["iteration_seconds"]) == ("refused", None)
            assert row["reason"] == "devices 999: cluster pipedream-a has 16 devices"
            continue
        problem = pp.Problem("chain:4", "pipedream-a", 16, devices=2)
        settings = [f"network.bandwidth_gbps={row['network.bandwidth_gbps']}"]
        answer = pp.plan(change_settings(problem, settings).problem, row["planner"], microbatches=4, schedule="gpipe")
        assert row["iteration_seconds"] == answer.iteration_seconds
        assert (row["status"], row["layout"], row["gap"]) == ("fits", answer.outcome.words, answer.outcome.gap)


def test_rows_are_the_answers_by_an_objective(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of plan; tables then tell joules."""
    words = (
        "--workload",
        "chain:4",
        "--cluster",
        "dgx-a100:1",
        "--devices",
        "2",
        "--batch",
        "8",
        "--planner",
        "data-parallel",
    )
    asked = ("sweep", *words, "--over", "objective=time,energy", "--jobs", "1")
    code, out, _ = ended(capsys, asked)
    assert (code, "J per" in out) == (0, True)
    for row in json.loads(ended(capsys, (*asked, "--json"))[1])["rows"]:
        answer = pp.plan(pp.Problem("chain:4", "dgx-a100:1", 8, devices=2), "data-parallel", objective=row["objective"])
        assert answer.outcome.energy is not None
        assert row["joules_per_sample"] == answer.outcome.energy.joules_per_sample


def test_a_plan_is_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """At every point of its paths, as `whatif --keep` does; what cannot be swept of it is refused."""
    result = pp.plan(pp.Problem("chain:4", "pipedream-a", 8, devices=2), "uniform", microbatches=4)
    path = tmp_path / "plan.json"
    pp.PlanFile(result.problem, result.plan).write(path)
    rows = document(capsys, "--plan", str(path), "--over", "accelerator.compute.tflops_fp32=*1,*2", "--jobs", "1")[
        "rows"
    ]
    twice = pp.what_if(result.problem, result.plan, ["accelerator.compute.tflops_fp32=*2"], anew=False).kept.outcome
    assert [row["iteration_seconds"] for row in rows] == [result.iteration_seconds, twice and twice.iteration_seconds]
    twice = pp.what_if(result.problem, result.plan, ["batch=16"], anew=False).kept.outcome
    (row,) = document(capsys, "--plan", str(path), "--over", "batch=16", "--jobs", "1")["rows"]
    assert twice is not None
    assert (row["iteration_seconds"], row["decisions"]["micro-batches"]) == (twice.iteration_seconds, "8")
    words = ("sweep", "--plan", str(path), "--planner", "greedy", "--over", "batch=8,16")
    assert "--planner does not go with --plan, which is replayed as it is" in refused(capsys, words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--over", "btch=8"), "'btch' names no value; near it: problem.batch"),
        (("--over", ".batch=8"), "'.batch' is no path, as a.b or a[member].b; near it: problem.batch"),
        (("--over", "option.=8"), "option.: one name stands behind option. (see pipeplan list planners)"),
        (("--over", "option.x.=8"), "option.x.: one name stands behind option."),
        (("--over", "batch=8", "--over", "problem.batch=8"), "problem.batch and batch are the same value"),
        (("--batch", "8", "--over", "batch=8"), "batch is swept, and given as 8"),
        (("--over", "profile=graph.txt"), "workload and profile"),
        (("--over", "batch=8,x"), "batch: 'x' must be a whole number"),
        (("--over", "planner=gredy"), "did you mean greedy?"),
        (("--over", "objective=watts"), "objective 'watts' is unknown; choices: time, energy, edp"),
        (("--objective", "watts", "--over", "batch=8"), "objective 'watts' is unknown; choices: time, energy, edp"),
        (("--over", "cluster=pipedream-a:1", "cluster=pipedream-a:2"), "quote what has braces"),
        (("--over", "batch=8", "--scheduler", "tcp://127.0.0.1:1"), "does not answer"),
        (("report",), "report needs STORE"),
        (("report", "store.db", "--over", "batch=8"), "--over is for a sweep, not for its report"),
    ],
)
def test_questions_that_are_none(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, and nothing is asked."""
    if "--scheduler" in words:
        pytest.importorskip("distributed", reason="needs dask.distributed")
        monkeypatch.setattr(runs, "ANSWER_SECONDS", 0.2)
    given = words if words[0] == "report" else ("--workload", "chain:4", *words)
    assert said in refused(capsys, ("sweep", *given), 1 if "--scheduler" in words else 2)


def test_a_study_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Says what options and --over say; what is wrong with it names it, with exit code 4."""
    file = tmp_path / "study.toml"
    text = 'workload = "chain:4"\ncluster = "pipedream-a"\nplanner = "uniform"\nmicrobatches = 4\n'
    text += 'schedule = "gpipe"\nstack = "generic"\n'
    text += '[over]\ndevices = "1:3:+1"\nbatch = [8, 16]\n'
    file.write_text(text, encoding="utf-8")
    assert document(capsys, str(file), "--jobs", "1") == document(capsys, *SMALL, *GRID)
    file.write_text(f"memory-reserve = 0.5\nseed = 3\n{text}", encoding="utf-8")
    (tmp_path / "a=b.toml").write_text(text, encoding="utf-8")  # a file, though it looks like an axis
    said = ("--memory-reserve", "0", "--jobs", "1")
    whole, part, again = (
        document(capsys, *words) for words in ((str(tmp_path / "a=b.toml"), *said), (str(file),), (str(file), *said))
    )
    capacities = [one["rows"][0]["capacity_bytes"] for one in (whole, part, again)]
    assert capacities == [capacities[0], pytest.approx(capacities[0] / 2), capacities[0]]
    for wrong, said in (
        ("bacth = 3\n" + text, "did you mean batch?"),
        (text + "zero = []\n", "zero: has no values"),
        ("over = 3", "must be a table"),
    ):
        file.write_text(wrong, encoding="utf-8")
        assert said in refused(capsys, ("sweep", str(file)), 4)
    assert "no such file" in refused(capsys, ("sweep", str(tmp_path / "none.toml")), 4)
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    told = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=0.0, parameter_size=0.0"
    good.write_text(f"node1 -- One -- {told}\n", encoding="utf-8")
    bad.write_text("nonsense\n", encoding="utf-8")
    words = ("sweep", "--profiled-minibatch", "1", "--planner", "uniform", "--over", f"profile={bad},{good}")
    code, out, err = ended(capsys, (*words, "--over", "network.bandwidth_gbps=5"))
    assert (code, out, f"pipeplan sweep: {bad}:1: a node is" in err) == (4, "", True)
    lost = tmp_path / "none.txt"
    assert f"{lost}: there is no such profile" in refused(capsys, ("sweep", "--over", f"profile={lost}"), 4)


# ---- stores ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the questions that are answered, as they are."""
    found: list[str] = []

    def noting(batch: Sequence[tuple[str, Question]]) -> Answered:
        found.extend(key for key, _ in batch)
        return answered(batch)

    monkeypatch.setattr(runs, "answered", noting)
    return found


def test_a_store_answers_what_it_knows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted sweep keeps what is done and says so; the same one goes on, an extended one asks what is new alone."""
    store = str(tmp_path / "folder" / "store.db")
    whole = document(capsys, *SMALL, *GRID)
    asked.clear()
    noting = runs.answered

    def interrupting(batch: Sequence[tuple[str, Question]]) -> Answered:
        if len(asked) >= 2:
            raise KeyboardInterrupt
        return noting(batch)

    monkeypatch.setattr(runs, "BATCH_SECONDS", 0.0)
    monkeypatch.setattr(runs, "answered", interrupting)
    part = document(capsys, *SMALL, *GRID, "--out", store, code=130)
    assert (part["interrupted"], part["missing"], len(asked)) == (True, 4, 2)
    assert part["rows"][:2] == whole["rows"][:2]
    assert {row["status"] for row in part["rows"][2:]} == {"not-asked"}
    monkeypatch.setattr(runs, "answered", noting)
    assert document(capsys, *SMALL, *GRID, "--out", store) == whole
    assert len(asked) == len(set(asked)) == 6
    more = document(capsys, *SMALL, "--over", "batch=8:32:x2", "--over", "devices=2:3:+1", "--out", store)
    assert len(asked) == len(set(asked)) == 8
    assert len(more["rows"]) == 6
    assert document(capsys, *SMALL, *GRID, "--out", store) == whole
    assert len(asked) == 8
    assert document(capsys, "report", store) == whole


def test_what_fails_halfway_leaves_nothing_in_a_store(tmp_path: Path) -> None:
    """The points before the failure are undone, and the store goes on."""

    def points() -> Iterator[tuple[dict[str, Any], str]]:
        yield {"batch": 8}, "one"
        raise KeyboardInterrupt

    with Store(tmp_path / "store.db") as store:
        with pytest.raises(KeyboardInterrupt):
            store.begin(points())
        assert store.rows() == []
        store.begin([({"batch": 8}, "one")])
        assert len(store.rows()) == 1


def test_files_that_are_no_store(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Or of another version, or written by another process: one line, and the file is as it was."""
    store, other, text = (tmp_path / name for name in ("store.db", "other.db", "text.db"))
    words = ("sweep", *SMALL, "--batch", "8", "--over", "devices=1,2", "--out")
    assert main([*words, str(store)]) == 0
    capsys.readouterr()
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE theirs (a)")
    text.write_text("a text\n" * 200, encoding="utf-8")
    for path in (other, text):
        content = path.read_bytes()
        assert "is no store of pipeplan sweep" in refused(capsys, (*words, str(path)), 4)
        assert "is no store of pipeplan sweep" in refused(capsys, ("sweep", "report", str(path)), 4)
        assert path.read_bytes() == content
    none, theirs = tmp_path / "none.sqlite", tmp_path / "theirs.sqlite"
    for path, statement in ((none, "PRAGMA user_version = 1"), (theirs, "PRAGMA application_id = 7")):
        with sqlite3.connect(path) as database:  # of no table
            database.execute(statement)
        database.close()
        content = path.read_bytes()
        assert "is no store of pipeplan sweep" in refused(capsys, ("sweep", "report", str(path)), 4)
        assert path.read_bytes() == content
    assert "is no store of pipeplan sweep" in refused(capsys, (*words, str(theirs)), 4)
    assert theirs.read_bytes() == content
    assert "there is no such store" in refused(capsys, ("sweep", "report", str(tmp_path / "none.db")), 4)
    with Store(tmp_path / "empty.db"):
        pass
    line = refused(capsys, ("sweep", "report", str(tmp_path / "empty.db")))
    assert line == f"pipeplan sweep: {tmp_path / 'empty.db'}: no sweep was asked yet\n"
    with sqlite3.connect(store, isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert "another process is writing it; wait, or name another store" in refused(capsys, (*words, str(store)))
        database.execute("ROLLBACK")
        database.execute("UPDATE about SET value = '0.1.0' WHERE name = 'version'")
    assert "is a store of pipeplan 0.1.0, this is 0.2.0, whose answers may be others; name another file" in refused(
        capsys, (*words, str(store)), 4
    )
    with sqlite3.connect(store, isolation_level=None) as database:
        database.execute("UPDATE about SET value = '9' WHERE name = 'format'")
    database.close()
    assert "is a store of form 9, this pipeplan has form 1; name another file" in refused(
        capsys, (*words, str(store)), 4
    )


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    """What SQLite says of it."""
    with pytest.raises(OSError, match=f"^{tmp_path}: unable to open database file$"):
        Store(tmp_path)


def test_without_dask_there_is_no_scheduler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what to install, before anything is asked."""
    monkeypatch.setattr(runs, "find_spec", lambda name: None)
    words = ("sweep", "--workload", "chain:4", "--over", "batch=8")
    for more in (("--scheduler", "far:1"), ("--local-cluster", "2")):
        said = "sweeps on a scheduler need dask.distributed, which is not installed; install pipeplan[dask]"
        assert said in refused(capsys, (*words, *more))


def test_who_answers_is_who_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that is there, or one that is started with so many workers."""

    def stand_in(name: str) -> Any:
        @contextmanager
        def begun(asked: object) -> Iterator[Any]:
            yield (name, asked)

        return begun

    for name in ("on_scheduler", "on_local_cluster"):
        monkeypatch.setattr(asking, name, stand_in(name))
    with asking.running(scheduler="far:1") as one, asking.running(local_cluster=3) as other:
        assert (one, other) == (("on_scheduler", "far:1"), ("on_local_cluster", 3))


def test_interrupts_wait_while_workers_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGINT is held back inside, and let through as before behind it; where signals cannot be, nothing is done."""
    with runs._no_interrupts():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.delattr(signal, "pthread_sigmask")
    with runs._no_interrupts():
        pass


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A scheduler and a worker, both threads of this process."""
    distributed = pytest.importorskip("distributed", reason="needs dask.distributed")
    quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, **quiet) as made:
        yield made


def test_a_scheduler_has_its_workers_answer(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question once, and what ends one ends the sweep; a scheduler without workers, and one that goes, is named."""
    address, questions = cluster.scheduler_address, dict.fromkeys("abcde", Question({}))
    monkeypatch.setattr(runs, "answered", lambda batch: Answered([(key, {}) for key, _ in batch], 1.0, False))
    with asking.running(scheduler=address) as run:
        told = [key for part in run(Batches(questions.items())) for key, _ in part.told]
    assert sorted(told) == list("abcde")

    def lost(batch: object) -> Answered:
        raise FileNotFoundError("a file")

    with asking.running(scheduler=address) as run, monkeypatch.context() as patched:
        patched.setattr(runs, "answered", lost)
        with pytest.raises(FileNotFoundError, match="a file"):
            answer_all(questions, run, lambda told: None)
    with asking.running(scheduler=address) as run:
        parts = run(Batches(questions.items()))
        next(parts)
        cluster.scale(0)
        cluster.sync(cluster._correct_state)
        empty = pytest.raises(ConnectionError, match=f"scheduler {address}: has no workers")
        with empty, asking.running(scheduler=address):
            pass
        cluster.close()
        with pytest.raises(ConnectionError, match=f"scheduler {address}: is gone; what was answered is kept"):
            list(parts)


def test_a_dead_scheduler_leaves_no_store(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One line, and nothing where the answers would have been."""

    def dead(address: str) -> Any:
        raise ConnectionError(f"scheduler {address}: does not answer")

    monkeypatch.setattr(asking, "on_scheduler", dead)
    words = ("sweep", "--workload", "vgg16", "--batch", "8", "--over", "devices=1,2", "--scheduler", "far:1")
    assert "scheduler far:1: does not answer" in refused(capsys, (*words, "--out", str(tmp_path / "store.db")), 1)
    with pytest.raises(ConnectionError, match="does not answer"):
        pp.sweep({"devices": "1,2"}, store=tmp_path / "store.db", scheduler="far:1", workload="vgg16", batch=8)
    assert list(tmp_path.iterdir()) == []


def test_questions_of_a_worker_that_dies_are_asked_again() -> None:
    """Until a pass answers none: then those are at fault, and what was answered is kept."""
    kept: list[str] = []
    deaths = iter([2, 4, 0])

    def dying(batches: Batches) -> Any:
        left = next(deaths)
        for batch in batches:
            if not left:
                raise runs.BrokenExecutor
            left -= 1
            yield Answered([(key, {}) for key, _ in batch], 10.0, False)

    questions = {name: Question({}) for name in "abcdefgh"}
    with pytest.raises(ChildProcessError, match="workers died of 2 of 8 questions"):
        answer_all(questions, dying, lambda told: kept.extend(key for key, _ in told))
    assert kept == list("abcdef")


def test_batches_are_as_long_as_they_should_be() -> None:
    """One question until a time is known, then as many as half a second holds, and the last ones divided among workers."""
    batches = Batches((str(number), Question({})) for number in range(100))
    batches.workers = 4
    turns = iter(batches)
    assert len(next(turns)) == 1
    batches.took(0.02, 1)
    assert len(next(turns)) == 24  # of 99, 25 last half a second, and 24 a quarter of all
    batches.took(2.4, 24)
    assert len(next(turns)) == 6
    assert sum(map(len, turns)) == 100 - 1 - 24 - 6


def test_an_answer_that_was_cut_short_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best plan so far of an interrupted search is not kept; a replay below its bound costs its own point alone."""
    question = Question({"workload": "chain:4", "cluster": "pipedream-a", "planner": "uniform"})
    asked = [(question.key(Contents()), question)] * 2
    monkeypatch.setattr(study, "ask", lambda name, question: Answer(name, "interrupted"))
    assert answered(asked)[::2] == ([], True)

    def undercut(name: str, question: object) -> Answer:
        raise UndercutBoundError("below its bound")

    monkeypatch.setattr(study, "ask", undercut)
    kept: list[str] = []
    parts = [Answered([("a", {})], 1.0, True), Answered([("b", {})], 1.0, False)]
    with pytest.raises(KeyboardInterrupt):
        answer_all(dict.fromkeys("ab", question), lambda batches: parts, lambda told: kept.extend(dict(told)))
    assert kept == ["a"]
    told, _, interrupted = answered(asked)
    assert [(record["status"], record["reason"]) for _, record in told] == [("failed", "below its bound")] * 2
    assert not interrupted


def test_other_files_at_a_worker_are_noticed() -> None:
    """A question that is another one there is not answered."""
    with pytest.raises(
        UsageError, match="vm has another version of pipeplan, or other files behind the names of a question"
    ):
        answered([("0" * 64, Question({"planner": "uniform"}))])


# ---- reports ---------------------------------------------------------------------------------------------------------


def row(batch: int, seconds: float | None, memory: float = 1.0, devices: int = 1, **decisions: str) -> Any:
    """A point of a sweep of batches, and its answer."""
    record = dict.fromkeys(FIGURES) | {"status": "refused", "reason": "=no", "feasible": False, "decisions": {}}
    if seconds is not None:
        found = {"status": "fits", "feasible": True, "samples_per_second": batch / seconds, "decisions": decisions}
        record |= {**found, "iteration_seconds": seconds, "peak_memory_bytes": memory, "plan_devices": devices}
    return {"batch": batch}, record


def test_a_report_tells_where_plans_change_and_what_none_beats() -> None:
    """More micro-batches alone are no other plan; a beaten plan is one that is no better in anything."""
    one = {"stages": "1", "micro-batches": "1", "samples of a micro-batch": "8"}
    points = [
        row(8, 1.0, 4.0, **one),
        row(16, 2.0, 5.0, **one | {"micro-batches": "2"}),
        row(24, None),
        row(64, 4.0, 5.0, 2, **one | {"stages": "2"}),
        row(32, 4.0, 4.0, 2, **one | {"micro-batches": "4"}),
    ]
    swept = Swept.of(points)
    assert [(before["batch"], after["batch"], words) for before, after, words in swept.changes()] == [
        (32, 64, "stages: 1 -> 2")
    ]
    assert [found["batch"] for found in swept.front()] == [64, 8]
    fewer = row(16, 2.0, 5.0, **one | {"micro-batches": "4", "samples of a micro-batch": "4"})
    ((_, _, words),) = Swept.of([points[0], fewer]).changes()  # of which not both follow from the batch
    assert words == "micro-batches: 1 -> 4; samples of a micro-batch: 8 -> 4"
    assert swept.csv().splitlines()[3].startswith("24,refused,False,")
    assert ",'=no" in swept.csv()


def test_a_report_tells_how_many_points_it_leaves_out() -> None:
    """Of more than 60."""
    swept = [Swept.of(row(batch, 1.0) for batch in range(1, last + 1)) for last in (60, 1061)]
    assert [one.remarks() for one in swept] == [
        (),
        ("1,001 more points: in --json, or the CSV of pipeplan sweep report STORE --out DIR",),
    ]


def test_figures_of_words_and_of_nothing() -> None:
    """Words stand along the axis in their order; without a plan nothing is drawn."""
    records = [row(8, seconds)[1] | {"capacity_bytes": 2.0} for seconds in (2.0, 1.0)]
    swept = Swept.of(({"schedule": name}, record) for name, record in zip(("gpipe", "1f1b"), records, strict=True))
    (axes,) = figures_of(swept)["lines"].axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["gpipe", "1f1b"]
    assert axes.get_xticks().tolist() == [0, 1]
    assert figures_of(Swept.of([row(8, None)])) == {}


def test_a_report_writes_tables_and_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a folder that it owns, of a store that a sweep tells of but with --quiet."""
    store, folder = str(tmp_path / "store.db"), tmp_path / "report"
    monkeypatch.setattr("experiments.terminal.output.EVERY", -1.0)  # a line at every answer
    monkeypatch.setattr(simulator, "save", no_picture)
    sweep = ("sweep", *SMALL, "--over", "devices=1,2", "--over", "batch=8,16", "--out", store)
    assert main(sweep) == 0
    assert "sweeping 0 of 4" in (said := capsys.readouterr().err)
    assert f"4 questions answered, kept in {store}" in said
    assert main((*sweep, "--quiet")) == 0
    assert capsys.readouterr().err == ""
    code, out, _ = ended(capsys, ("sweep", "report", store, "--out", str(folder)))
    assert (code, "Where the plan changes along devices" in out) == (0, True)
    names = {path.name for path in folder.iterdir()}
    assert names >= {"sweep.csv", "lines.svg", "heat_map.png", "pareto.svg"}
    assert len((folder / "sweep.csv").read_text(encoding="utf-8").splitlines()) == 5
    with Store(tmp_path / "part.db") as part:
        part.begin([({"batch": 8}, "one")])
    code, out, _ = ended(capsys, ("sweep", "report", str(tmp_path / "part.db")))
    assert (code, "1 of 1 points have no answer" in out) == (0, True)  # which is no interrupt of the report


def test_the_face_asks_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`pp.sweep` takes values by name, and gives a table."""
    over = {"devices": range(1, 4), "batch": "8:16:x2"}
    options = {
        "workload": "chain:4",
        "cluster": "pipedream-a",
        "planner": "uniform",
        "microbatches": 4,
        "schedule": "gpipe",
        "stack": "generic",
    }
    frame = pp.sweep(over, jobs=1, store=tmp_path / "store.db", **options)
    rows = document(capsys, *SMALL, *GRID, "--out", str(tmp_path / "store.db"))["rows"]
    assert list(frame["iteration_seconds"]) == [one["iteration_seconds"] for one in rows]
    with pytest.raises(ValueError, match="a sweep has no option 'bacth'"):
        pp.sweep(over, bacth=3)
