"""Rules of `pipeplan simulate`: how many micro-batches a stream has, what its numbers mean, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeplan as pp
import simulator
from experiments.cli import main
from experiments.compare import schedule_comparison
from planners import SearchedSchedule
from simulator import CATEGORIES, Plan, PlanFile, Problem, simulate
from tests.experiments.commands import instead, no_picture, refused

SECONDS = ("--forward", "1", "--backward", "2")


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON document of a replay with forwards of 1 s and backwards of 2 s."""
    assert main(("simulate", *words, *SECONDS, "--json")) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(
    ("words", "microbatches", "updates"),
    [
        ("gpipe --microbatches 6", 6, 0),
        ("gpipe --microbatches 6 --microbatches-per-minibatch 6", 6, 0),
        ("gpipe --microbatches 6 --microbatches-per-minibatch 2", 6, 6),
        ("gpipe --minibatches 3 --microbatches-per-minibatch 2", 6, 6),
        ("gpipe --minibatches 1 --microbatches-per-minibatch 2", 2, 0),
        ("pipedream --microbatches 5", 5, 10),
        ("pipedream --minibatches 5", 5, 10),
        ("pipedream --minibatches 5 --microbatches-per-minibatch 1", 5, 10),
        ("xpipe --microbatches 6 --microbatches-per-minibatch 3", 6, 4),
        ("xpipe --minibatches 3", 3, 6),
        ("xpipe --minibatches 3 --microbatches-per-minibatch 4", 12, 6),
        ("2bw --minibatches 3", 6, 6),
        ("2bw --minibatches 3 --microbatches-per-minibatch 2", 6, 6),
        ("2bw --minibatches 3 --microbatches-per-minibatch 3", 9, 6),
    ],
)
def test_a_stream_has_its_micro_batches_and_updates(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, microbatches: int, updates: int
) -> None:
    """M micro-batches; or mini-batches times T: 1, or the stages for 2BW. Each of two stages updates once a mini-batch."""
    name, *rest = words.split()
    path = tmp_path / "ops.txt"
    document = simulated(capsys, "--schedule", name, "--stages", "2", *rest, "--out", str(path))
    assert document["microbatches"] == microbatches
    assert document["ops"] == 4 * microbatches
    assert path.read_text().count("U") == updates


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gpipe --minibatches 3", "schedule 'gpipe' needs micro-batches per mini-batch (T) with mini-batches"),
        ("gpipe --minibatches 3 --microbatches 6", "in place of micro-batches"),
        ("gpipe --microbatches 6 --microbatches-per-minibatch 4", "6 micro-batches are no multiple of T=4"),
        ("gpipe --microbatches 6 --microbatches-per-minibatch 12", "6 micro-batches are no multiple of T=12"),
        (
            "pipedream --microbatches 6 --microbatches-per-minibatch 2",
            "schedule 'pipedream' updates after every micro-batch: T is 1, got 2",
        ),
        (
            "2bw --minibatches 3 --microbatches-per-minibatch 1",
            "schedule '2bw' needs at least as many micro-batches per mini-batch as stages, got T=1, N=2",
        ),
        ("1f1b-rr --microbatches 6", "schedule '1f1b-rr' needs replicas, one count per stage"),
        (
            "1f1b-sno --microbatches 6 --communication overlapped",
            "communication 'overlapped' contradicts schedule '1f1b-sno'; choices: send-blocking",
        ),
        ("gpipe", "--schedule needs --stages and --microbatches"),
    ],
)
def test_streams_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    """Exit code 2 and one line."""
    name, *rest = words.split()
    assert said in refused(capsys, ("simulate", "--schedule", name, "--stages", "2", *rest, *SECONDS))


@pytest.mark.parametrize("engine", ["compiled", "recurrence"])
def test_lanes_that_share_a_device_run_on_every_engine(capsys: pytest.CaptureFixture[str], engine: str) -> None:
    """A schedule with two lanes a device has the reference's makespan on the compiled engines, contention or not."""
    words = ("simulate", "--schedule", "fbp-as", "--stages", "2", "--microbatches", "4", *SECONDS, "--json")
    found = []
    for one in ("simpy", engine):
        assert main((*words, "--engine", one)) == 0
        found.append(json.loads(capsys.readouterr().out)["makespan_seconds"])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "option", ["--stages", "--microbatches", "--minibatches", "--microbatches-per-minibatch", "--chunks"]
)
def test_a_file_says_its_own_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str) -> None:
    """Counts beside --schedule-csv are refused."""
    path = tmp_path / "schedule.csv"
    path.write_text("0F0,0B0\n")
    said = "counts come from the file with --schedule-csv, a row of ops for each device: leave"
    given = ("simulate", "--schedule-csv", str(path), *SECONDS, option, "1")
    assert f"{option}: {said} it out" in refused(capsys, given)
    assert f"{option}, --slices: {said} them out" in refused(capsys, (*given, "--slices", "2"))


SEARCH = ("simulate", "--schedule", "search", "--stages", "4", "--microbatches", "8", *SECONDS)


def test_an_interrupted_search_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The best order so far is printed as one document that says so, and not drawn; exit code 130, also beside others."""

    @contextmanager
    def interrupted(*words: str) -> Iterator[Any]:
        def stop(done: int, text: str = "") -> None:
            raise KeyboardInterrupt

        yield stop

    monkeypatch.setattr("experiments.commands.simulate_command.progress", interrupted)
    assert main((*SEARCH, "--seconds", "1e9", "--json")) == 130
    assert json.loads(capsys.readouterr().out)["interrupted"]
    files = ("--gantt", str(tmp_path / "order"), "--out", str(tmp_path / "order.csv"))
    assert main((*SEARCH, "--seconds", "1e9", *files)) == 130
    assert capsys.readouterr().err == "pipeplan simulate: no figure is drawn after an interrupt\n"
    assert [path.name for path in tmp_path.iterdir()] == ["order.csv"]
    asking = schedule_comparison.simulate

    def cut_short(name: str, **numbers: Any) -> Any:
        found = asking(name, **numbers)
        return replace(found, interrupted=True) if isinstance(found, SearchedSchedule) else found

    monkeypatch.setattr(schedule_comparison, "simulate", cut_short)
    assert main((*SEARCH[:2], "search,1f1b", *SEARCH[3:])) == 130


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--slice-seconds 1,2", "--slice-seconds is not of a schedule that is searched for"),
        ("--placement interleaved --chunks 3", "divisible by chunks (stages per device), got 4 and 3"),
        ("--stages 1000000000", "a placement has at most 1,048,576 stages"),
        ("--microbatches 1000000000", "a schedule has at most 8,388,608 ops"),
        ("--stash 1,2,3,4 --memory 0.5", "device 3 has 0.5 for what its micro-batches keep, one of them keeps 4"),
    ],
)
def test_searches_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    """Exit code 2 and one line, before anything of that size is made."""
    assert said in refused(capsys, instead(SEARCH, *words.split()))


@pytest.mark.parametrize(
    ("slices", "seconds", "said"),
    [
        ((), "1,2,3", "seconds of 3 slices, schedule 'seq1f1b' has 1 per sequence"),
        (("--slices", "4"), "1,2", "seconds of 2 slices, schedule 'seq1f1b' has 4 per sequence"),
        (("--slices", "2"), "1e308,1e308", "must be numbers from 0 to 1e+300"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_slices_have_seconds_each(
    capsys: pytest.CaptureFixture[str], slices: tuple[str, ...], seconds: str, said: str
) -> None:
    """As many seconds as a sequence has slices, in one line."""
    words = ("--schedule", "seq1f1b", "--stages", "2", "--microbatches", "6", *slices, "--slice-seconds", seconds)
    assert main(("simulate", *words, *SECONDS)) == 2
    assert said in capsys.readouterr().err


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A straight plan of four layers on two devices."""
    path = str(tmp_path / "plan.json")
    words = "--workload chain:4 --cluster pipedream-arxiv-b --devices 2 --batch 8 --planner uniform --microbatches 4"
    assert main(("plan", *words.split(), "--out", path)) == 0
    capsys.readouterr()
    return path


def test_a_plan_is_replayed_from_its_file(
    plan_file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds that the search gave, and memory by device and part; its ops, for torch and as lines, its trace and figures."""
    monkeypatch.setattr(simulator, "save", no_picture)
    assert main(("check", plan_file)) == 0
    capsys.readouterr()
    files = [str(tmp_path / name) for name in ("ops.csv", "ops.txt", "trace.json")]
    outs = [word for name in files for word in ("--out", name)]
    assert main(("simulate", "--plan", plan_file, "--json", *outs, "--gantt", str(tmp_path / "gantt"))) == 0
    document = json.loads(capsys.readouterr().out)
    expected = simulate(*plan_and_problem(plan_file))
    rows = document.pop("memory")
    assert document == expected.record()
    assert [row["device"] for row in rows] == list(expected.plan.devices)
    assert max(row["peak_bytes"] for row in rows) == document["peak_memory_bytes"]
    assert all(sum(row[name] for name in CATEGORIES) == row["peak_bytes"] for row in rows)
    assert document["feasible"]
    assert Path(files[1]).read_text().startswith("0F0 ")
    assert Path(files[0]).read_text().startswith("0F0,")
    assert json.loads(Path(files[2]).read_text())["otherData"]["name"] == expected.schedule.name
    assert {"gantt.png", "gantt-memory.png"} <= {path.name for path in tmp_path.iterdir()}
    assert main(("simulate", "--plan", plan_file)) == 0
    said = capsys.readouterr().out
    assert "per iteration" in said
    assert "Memory at the peak, GiB" in said


def plan_and_problem(path: str) -> tuple[Problem, Plan]:
    """What a plan file says."""
    found = PlanFile.read(path)
    return found.problem, found.plan


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--forward 1", "--forward is of a schedule; --plan"),
        ("--microbatches 4", "--microbatches is of a schedule; --plan"),
        ("--placement v", "--placement is of a schedule; --plan"),
        ("--seconds 1", "--seconds is of a schedule; --plan"),
        ("--objective steady", "--objective is of a schedule; --plan"),
        ("--engine no-such", "--engine 'no-such' is unknown"),
    ],
)
def test_a_plan_says_its_own_seconds(
    plan_file: str, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    """Exit 2, one line: the option and the file."""
    assert main(("simulate", "--plan", plan_file, *words.split())) == 2
    assert message in capsys.readouterr().err


def test_a_schedule_needs_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Forward and backward; the others are 0."""
    assert main(("simulate", "--schedule", "gpipe", "--stages", "2", "--microbatches", "2", "--forward", "1")) == 2
    assert "needs --forward and --backward" in capsys.readouterr().err


def test_a_plan_that_torch_cannot_run_has_no_csv(
    plan_file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Micro-batches of two sizes: the option, the rule and what takes it; no file."""
    document = json.loads(Path(plan_file).read_text())
    document["plan"]["microbatches"] = [3, 1, 2, 2]
    Path(plan_file).write_text(json.dumps(document))
    path = tmp_path / "ops.csv"
    assert main(("simulate", "--plan", plan_file, "--out", str(path))) == 2
    err = capsys.readouterr().err
    assert (
        "torch-csv cannot run plan 'uniform' (straight): it has no micro-batches of unlike sizes (1, "
        "2, 3); a name in .txt takes it"
    ) in err
    assert "a name in .txt takes it" in err
    assert not path.exists()


def test_how_replicas_are_launched_is_no_result(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One document on stdout, beside the file of ops; a line on stderr."""
    problem = pp.Problem("chain:4", "pipedream-a", 4, devices=2)
    pp.PlanFile(problem, pp.plan(problem, "data-parallel", microbatches=2).plan).write(tmp_path / "plan.json")
    assert main(("simulate", "--plan", str(tmp_path / "plan.json"), "--json", "--out", str(tmp_path / "ops.csv"))) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["feasible"]
    assert err.startswith("pipeplan simulate: ")
    assert err.count("\n") == 1


def trace_of(path: Path, **milliseconds: float) -> None:
    """A trace of torch.profiler of two stages and one micro-batch; ops by letter take so long, on the second stage twice."""
    ops = [(stage, letter, wide * (1 + stage)) for stage in range(2) for letter, wide in milliseconds.items()]
    events = [
        {"ph": "X", "name": f"PP:{stage}{letter}0", "cat": "user_annotation", "ts": 0.0, "dur": 1e3 * wide}
        for stage, letter, wide in ops
    ]
    path.write_text(json.dumps({"traceEvents": events}))


def test_seconds_come_from_a_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--profile: as with the numbers that `check` tells; a backward that is whole is split by --weight alone."""
    monkeypatch.chdir(tmp_path)
    trace_of(Path("whole.json"), F=1.0, B=3.0)
    trace_of(Path("split.json"), F=1.0, I=1.5, W=0.5)
    asked = ("simulate", "--schedule", "zb-h1", "--microbatches", "4", "--json")
    documents = []
    for words in (
        ("--profile", "split.json"),
        ("--stages", "2", "--forward", "0.001,0.002", "--backward", "0.0015,0.003", "--weight", "0.0005,0.001"),
        ("--profile", "whole.json", "--weight", "0.0012,0.002"),
        ("--stages", "2", "--forward", "0.001,0.002", "--backward", "0.0018,0.004", "--weight", "0.0012,0.002"),
    ):
        assert main((*asked, *words)) == 0
        documents.append(json.loads(capsys.readouterr().out)["makespan_seconds"])
    assert documents[::2] == pytest.approx(documents[1::2])
    Path("two.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")  # the trace has one micro-batch
    stream = ("simulate", "--schedule", "pipedream", "--minibatches", "4", "--json", "--profile", "whole.json")
    assert main(stream) == 0
    assert json.loads(capsys.readouterr().out)["makespan_seconds"] == pytest.approx(0.036)  # 1 + 4 × (2 + 6) + 3 ms
    assert main(("simulate", "--schedule-csv", "two.csv", "--profile", "whole.json", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["makespan_seconds"] == pytest.approx(0.020)  # 1 + 2 + 2 + 6 + 6 + 3 ms
    assert main(("check", "split.json")) == 0
    assert "--backward 0.0015,0.003 --weight 0.0005,0.001" in capsys.readouterr().out
    for words, said in {
        ("--profile", "whole.json"): (
            "schedule 'zb-h1' splits backwards, which --profile whole.json has whole: --weight says how "
            "many seconds of them make gradients of weights"
        ),
        (
            "--profile",
            "whole.json",
            "--weight",
            "4",
        ): "at most the seconds of a backward in --profile whole.json: 0.003, 0.006",
        ("--profile", "split.json", "--weight", "0"): "whose backwards are split",
        ("--profile", "split.json", "--forward", "1"): "which has seconds of micro-batches",
    }.items():
        assert said in refused(capsys, (*asked, *words))
