"""Rules of what goes to other tools: the CSV is what torch can run or is refused; `simulate --out` writes three forms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import planners
import simulator
from hardware_profiles import load_cluster
from planners import make_plan
from simulator import Plan, PlanFile, Problem, from_text, from_torch_csv, stages_from_cuts, to_text, workload_from_spec
from tests.experiments.commands import ended, refused

PROBLEM = ("--workload", "chain:6", "--cluster", "pipedream-arxiv-b", "--devices", "2")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `pipeplan words…`."""
    return ended(capsys, words)


@pytest.mark.parametrize(
    ("planner", "schedule", "batch", "said"),
    [
        (
            "pipedream",
            "1f1b-rr",
            8,
            (
                "stack 'generic' launched by torch-csv does not run plan 'pipedream': it has no updates "
                "without a flush (schedule 1f1b-rr)"
            ),
        ),
        (
            "uniform",
            "pipedream",
            8,
            (
                "stack 'generic' launched by torch-csv does not run plan 'uniform': it has no updates "
                "without a flush (schedule pipedream)"
            ),
        ),
        (
            "uniform",
            "fbp-as",
            8,
            (
                "stack 'generic' launched by torch-csv does not run plan 'uniform': it has no two lists of "
                "ops at once on a device (schedule fbp-as)"
            ),
        ),
        (
            "uniform",
            "gpipe",
            7,
            (
                "stack 'generic' launched by torch-csv does not run plan 'uniform': it has no micro-batches "
                "of unlike sizes (3, 4)"
            ),
        ),
        (
            "data-parallel",
            "gpipe",
            6,
            (
                "stack 'generic' launched by torch-csv does not run plan 'data-parallel': it has no "
                "micro-batches of 3 samples on 2 replicas"
            ),
        ),
    ],
)
def test_plans_that_torch_cannot_run_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, planner: str, schedule: str, batch: int, said: str
) -> None:
    """Asynchronous plans, two lanes and indivisible batches: exit code 2, one line that says why, no file; text takes them."""
    asked = f"--batch {batch} --microbatches 2 --planner {planner} --schedule {schedule}"
    words = ("export", *PROBLEM, *asked.split())
    path = tmp_path / "schedule"
    assert said in refused(capsys, (*words, "--to", "torch-csv", "--out", str(path)))
    assert not path.exists()
    assert run(capsys, *words, "--format", "text")[0] == 0


def test_unequal_replicas_are_refused_and_equal_ones_say_how_torch_is_launched(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """2-1 has no form in torch. 2-2 is two pipelines of two ranks with half of each micro-batch: a line on stderr says it."""
    plan = {
        "format": "pipeplan-plan-2",
        "problem": {"workload": "chain:4", "cluster": {"name": "pipedream-b", "devices": 4}, "batch": 16},
        "plan": {"planner": "hand", "schedule": "gpipe", "replication": "split", "microbatches": [8, 8]},
    }
    path = tmp_path / "plan.json"
    for second, code in (([2], 2), ([2, 3], 0)):
        stages = [{"layers": [0, 1], "devices": [0, 1]}, {"layers": [2, 3], "devices": second}]
        path.write_text(json.dumps({**plan, "plan": {**plan["plan"], "stages": stages}}))  # type: ignore[dict-item]
        got, out, err = run(capsys, "export", "--plan", str(path), "--to", "torch-csv")
        assert (got, err.count("\n")) == (code, 1)
        if code:
            assert (out, "stages on unlike numbers of devices (2-1)" in err) == ("", True)
        else:
            assert out == "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"
            assert "launch 2 × 2 processes" in err
            assert "4 samples per micro-batch" in err


def test_execution_traces_are_a_file_a_rank(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--format chakra`: FILE.RANK.et, and FILE.groups.json where gradients are reduced; a stream is told."""
    monkeypatch.chdir(tmp_path)
    words = ("export", *PROBLEM, "--batch", "8", "--microbatches", "4", "--format", "chakra")
    assert "it needs --out FILE" in refused(capsys, words)
    assert run(capsys, *words, "--planner", "uniform", "--schedule", "1f1b", "--out", "run") == (
        0,
        "chakra written to run.0.et, run.1.et\n",
        "",
    )
    assert run(capsys, *words, "--planner", "data-parallel", "--out", "both")[1].endswith("both.groups.json\n")
    assert json.loads(Path("both.groups.json").read_text()) == {"1": [0, 1]}
    code, _, err = run(capsys, *words, "--planner", "uniform", "--schedule", "pipedream", "--out", "stream")
    assert (code, err) == (
        0,
        "pipeplan export: a plan that never flushes: traces of a stream of 40 micro-batches\n",
    )
    assert "no lists of ops that share a device" in refused(
        capsys, (*words, "--planner", "uniform", "--schedule", "fbp-as", "--out", "shared")
    )
    assert not list(tmp_path.glob("shared*"))
    problem = Problem(workload_from_spec("chain:6"), load_cluster("pipedream-arxiv-b"), 8)
    PlanFile(problem, Plan("hand", "1f1b", stages_from_cuts((3,), 6, ((1,), (3,))), (4, 4))).write("apart.json")
    code, _, err = run(capsys, "export", "--plan", "apart.json", "--format", "chakra", "--out", "apart")
    assert (code, err) == (0, "pipeplan export: ranks in their order on devices 1, 3\n")


ENDINGS = "the name must end in .csv (torch), .txt (lines of ops) or .json (trace)"
SIMULATE = ("simulate", "--stages", "2", "--microbatches", "3", "--forward", "1", "--backward", "2")


def test_simulate_writes_the_schedule_and_its_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By the names' endings: torch's CSV and lines of ops, which both read back, and a trace with the same makespan."""
    csv, text, trace = (tmp_path / f"schedule.{ending}" for ending in ("csv", "txt", "json"))
    outputs = [word for path in (csv, text, trace) for word in ("--out", str(path))]
    code, out, err = run(capsys, *SIMULATE, "--schedule", "1f1b", *outputs, "--json")
    assert (code, err) == (0, "")
    assert to_text(from_torch_csv(csv.read_text())) == text.read_text() == to_text(from_text(text.read_text()))
    written = json.loads(trace.read_text())
    assert written["otherData"]["makespan_seconds"] == json.loads(out)["makespan_seconds"]
    assert {event["name"] for event in written["traceEvents"] if event["ph"] == "X"} >= {"0F0", "1B2"}


@pytest.mark.parametrize(
    ("name", "options", "written"),
    [
        ("chart", "", ["chart.png", "chart.svg"]),
        ("chart.pdf", "--stash 1 --window 1:99 --size 6x4", ["chart-memory.pdf", "chart.pdf"]),
    ],
)
def test_simulate_draws_the_timeline(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: str,
    written: list[str],
) -> None:
    """--gantt FILE is that file, and two pictures where FILE has no ending; of the part and the size that are asked for."""
    drawn: list[Figure] = []
    save = simulator.save
    monkeypatch.setattr(simulator, "save", lambda figure, path: (drawn.append(figure), save(figure, path)))
    words = (*SIMULATE, "--schedule", "gpipe", "--gantt", str(tmp_path / name), *options.split())
    assert run(capsys, *words)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == written
    assert drawn[0].axes[0].get_xlim() == ((1.0, 12.0) if options else (0.0, 12.0))
    assert not options or drawn[0].get_size_inches().tolist() == [6.0, 4.0]
    assert not options or (tmp_path / name).read_bytes().startswith(b"%PDF")


def test_sizes_that_are_equal_are_for_torch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Seconds per sample with one size everywhere: the CSV is written."""
    path = tmp_path / "ops.csv"
    assert run(capsys, *SIMULATE, "--schedule", "gpipe", "--sizes", "2,2,2", "--out", str(path))[0] == 0
    assert path.read_text() == "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--schedule", "pipedream", "--out", "a.txt", "--out", "a.csv"),
            (
                "schedule 'pipedream' never flushes; torch's pipelines run one update after all micro-batches, "
                "which is another algorithm"
            ),
        ),
        (
            ("--schedule", "gpipe", "--sizes", "1,2,1", "--out", "a.csv"),
            "--out a.csv: torch's micro-batches have one size, --sizes gives several; a name in .txt takes it",
        ),
        (("--schedule", "gpipe", "--out", "a.json", "--out", "a.pdf"), f"a.pdf: {ENDINGS}"),
        (("--schedule", "gpipe", "--out", "."), f".: {ENDINGS}"),
        (("--schedule", "gpipe", "--out", "there.csv"), "there.csv: is a folder; name a file"),
        (("--schedule", "gpipe", "--out", "file/child.csv"), "is a file, not a folder"),
        (("--schedule", "gpipe", "--gantt", "file/child"), "--gantt"),
        (("--schedule", "gpipe", "--size", "6x4"), "--size goes with --gantt"),
        (("--schedule", "gpipe", "--window", "1:2"), "--window goes with --gantt"),
        (
            ("--schedule", "gpipe", "--gantt", "a", "--window", "13:14", "--out", "b.txt"),
            "a: window 13:14 shows nothing of the timeline, which takes 12 s",
        ),
        (("--schedule", "gpipe", "--gantt", "a", "--size", "2x1", "--out", "b.txt"), "no room for its rows: at least"),
    ],
)
def test_simulate_writes_all_files_or_none(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    """A name without a form, a place that takes no file, a schedule that torch cannot run: exit code 2 and no file at all."""
    monkeypatch.chdir(tmp_path)
    Path("there.csv").mkdir()
    Path("file").touch()
    assert said in refused(capsys, (*SIMULATE, *words))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there.csv"]


def test_an_interrupted_search_is_exported_as_such(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best plan so far is written; a line on stderr says what it is, and the exit code is 130."""
    found = make_plan("uniform", Problem(workload_from_spec("chain:6"), load_cluster("pipedream-arxiv-b").take(2), 8))
    monkeypatch.setattr(planners, "plan_over_stacks", lambda *asked, **named: replace(found, interrupted=True))
    code, out, err = run(capsys, "export", *PROBLEM, "--batch", "8", "--format", "text")
    assert (code, err) == (130, "pipeplan export: interrupted: this is of the best plan so far\n")
    assert out.startswith("0F0")
