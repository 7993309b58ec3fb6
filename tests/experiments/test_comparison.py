"""Comparison: one planner's end is one row; interrupts, marks and exit codes, the same in `compare` and `plan`."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from experiments.commands.compare_command import file_stems
from experiments.compare.comparison import COLUMNS, USE, under_disturbances
from experiments.compare.comparison_plots import comparison_bars
from experiments.compare.questions import compare, make_problem
from hardware_profiles import GraphicsProcessor, load_cluster, load_stack
from planners import PLANNERS, Evaluator, InfeasiblePartition, Planner, PlannerEntry, Request
from planners.straight.baselines import UniformLayers
from simulator import (
    InfeasiblePlanError,
    NoisySeconds,
    Plan,
    PlanFile,
    Problem,
    ScheduleError,
    simulate,
    stages_from_cuts,
)
from tests.chains import chain
from tests.experiments.commands import ended, no_picture, refused, small_gpt

SMALL = ("--workload", "chain:4", "--cluster", "pipedream-a", "--devices", "2", "--batch", "8")


def _raising(error: BaseException, after: int = 0) -> Planner:
    """A planner that replays `after` plans and then raises."""

    def planner(problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        uniform = UniformLayers(Request(microbatches=2), "broken")
        for _ in range(after):
            uniform(problem, evaluate, rng)
        raise error

    return planner


def _entry(planner: Planner, reason: str | None = None) -> PlannerEntry:
    return PlannerEntry(lambda request: planner, "for a test", lambda problem, request: reason)


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return ended(capsys, words)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InfeasiblePlanError("no room for it"), "no-plan-fits", "no room for it"),
        (InfeasiblePartition("no room in any part"), "no-plan-fits", "no room in any part"),
        (ScheduleError("op 2F0 never runs"), "failed", "op 2F0 never runs"),
        (ValueError("a graph of 20,000 states\nraise the limit"), "failed", "a graph of 20,000 states"),
        (TypeError("unsupported operand"), "failed", "planner 'broken' failed: TypeError: unsupported operand"),
        (KeyError("lost"), "failed", "planner 'broken' failed: KeyError: 'lost'"),
        (MemoryError(), "failed", "planner 'broken' failed: MemoryError"),
    ],
)
def test_a_planner_that_raises_is_a_row_with_its_reason(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: str,
    said: str,
) -> None:
    """Whatever a planner raises stands in its row, in one line; the planner behind it is asked all the same."""
    monkeypatch.setitem(PLANNERS, "broken", _entry(_raising(error)))
    words = ("--planner", "broken", "--planner", "uniform", "--no-figures", "--out", str(tmp_path))
    code, out, _ = _run(capsys, "compare", *SMALL, *words, "--json")
    broken, uniform = json.loads(out)["plans"]
    assert code == 0
    assert broken["status"] == status
    assert said in broken["reason"]
    assert not broken["feasible"]
    assert uniform["status"] == "fits"
    code, out, _ = _run(capsys, "compare", *SMALL, *words)
    assert f"broken: {status.replace('-', ' ')}: {said}" in out


def test_without_noise_a_straggler_alone_disturbs() -> None:
    """One replay, the same whatever the seed: as long as the plan takes on the slower device."""
    comparison = compare(make_problem("chain:4", "pipedream-a", 8, devices=2), ["uniform"])
    ((name, result),) = ((one.planner, one.result) for one in comparison.plans)
    assert result is not None
    slow, again = (under_disturbances(comparison, stragglers={0: 2.0}, seed=seed) for seed in (0, 1))
    assert slow.disturbed == again.disturbed == "under device 0 2 times as slow"
    seconds = simulate(result.problem, result.plan, stragglers={0: 2.0}, bounded=False).iteration_seconds
    assert slow.noisy[name].seconds.tolist() == again.noisy[name].seconds.tolist() == [seconds]
    assert seconds > result.iteration_seconds


def test_which_plan_is_the_fastest_under_noise_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 95 of 100 iterations: the fastest still, also where another is as fast, or else by how much another one is; a planner
    without a plan is passed over."""
    monkeypatch.setitem(PLANNERS, "broken", _entry(_raising(ValueError("no"))))
    found = compare(make_problem("chain:4", "pipedream-a", 8, devices=2), ["broken", "uniform", "data-parallel"])
    disturbed = under_disturbances(found, noise=0.1, replays=5)
    assert set(disturbed.noisy) == {"uniform", "data-parallel"}
    assert found.fastest is not None
    fastest = found.fastest.planner
    (other,) = set(disturbed.noisy) - {fastest}
    for seconds, said in (
        (2.0, f"{fastest} is the fastest still, at p95"),
        (1.0, f"{fastest} is the fastest still, at p95"),
        (0.8, f"at p95 {other} is faster than {fastest}, by 20.0 %"),
    ):
        noisy = {
            name: NoisySeconds(0.1, 1.0, np.full(5, {fastest: 1.0, other: seconds}[name])) for name in (other, fastest)
        }
        lines = [line for line in replace(disturbed, noisy=noisy).remarks() if line.startswith("under noise")]
        assert lines == [f"under noise 0.1 (5 replays): {said}"]


def test_a_planner_whose_question_raises_is_a_row_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`applicable` and `build` of a plug-in may be broken as well as its search."""

    def broken(*given: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setitem(PLANNERS, "asks", PlannerEntry(lambda request: UniformLayers(request), "", broken))
    monkeypatch.setitem(PLANNERS, "builds", PlannerEntry(broken, "", lambda problem, request: None))  # type: ignore[arg-type]
    words = ("--planner", "asks", "--planner", "builds", "--planner", "uniform", "--no-figures")
    code, out, _ = _run(capsys, "compare", *SMALL, *words, "--out", str(tmp_path), "--json")
    assert code == 0
    assert [one["status"] for one in json.loads(out)["plans"]] == ["failed", "failed", "fits"]


@pytest.mark.parametrize(
    ("planner", "reason", "code"),
    [
        (_raising(ValueError("bad input")), None, 2),
        (_raising(TypeError("a bug")), None, 1),
        (_raising(InfeasiblePlanError("too large")), None, 3),
        (
            _raising(ValueError("unused")),
            (
                "no planner of 1 applies: its plans fit into no memory of this kind; planners that take it: "
                "joint, rule-of-thumb, data-parallel, uniform, greedy, pipeline-data and 16 more"
            ),
            2,
        ),
        (_raising(KeyboardInterrupt()), None, 130),
        (_raising(KeyboardInterrupt(), after=1), None, 130),
        (UniformLayers(Request(), "broken"), None, 0),
    ],
    ids=["input", "bug", "infeasible", "inapplicable", "stopped at once", "stopped", "planned"],
)
def test_plan_and_compare_agree_on_the_exit_code(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    planner: Planner,
    reason: str | None,
    code: int,
) -> None:
    """The kind of the error decides, not its words; at most one line goes to stderr."""
    monkeypatch.setitem(PLANNERS, "broken", _entry(planner, reason))
    for command, *more in (("plan",), ("compare", "--no-figures", "--out", str(tmp_path))):
        found, _, err = _run(capsys, command, *SMALL, "--planner", "broken", *more)
        assert found == code
        assert err.count("\n") <= 1


def test_an_interrupt_is_marked_everywhere_and_ends_the_comparison(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Best plan so far, marked in table, CSV, JSON and figure; the planners behind it are not asked; exit code 130."""
    monkeypatch.setitem(PLANNERS, "stopped", _entry(_raising(KeyboardInterrupt(), after=1)))
    asked: list[str] = []

    def never(problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        asked.append("again")
        raise AssertionError

    monkeypatch.setitem(PLANNERS, "behind", _entry(never))
    words = ("--planner", "uniform", "--planner", "stopped", "--planner", "behind", "--out", str(tmp_path))
    code, out, _ = _run(capsys, "compare", *SMALL, *words, "--timelines", "--json")
    document = json.loads(out)
    assert code == 130
    assert document["interrupted"]
    assert [one["interrupted"] for one in document["plans"]] == [False, True, True]
    assert [one["status"] for one in document["plans"]] == ["fits", "fits", "interrupted"]
    assert not asked
    with (tmp_path / "comparison.csv").open(encoding="utf-8") as lines:
        assert [row["interrupted"] for row in csv.DictReader(lines)] == ["False", "True", "True"]
    assert "stopped (interrupted)" in (tmp_path / "comparison.svg").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*gantt*"))
    monkeypatch.setattr(simulator, "save", no_picture)
    code, out, _ = _run(capsys, "compare", *SMALL, *words, "--timelines")
    assert code == 130
    assert "stopped (interrupted)" in out
    assert "behind: interrupted: not asked" in out
    assert "no timelines are drawn after an interrupt" in out
    code, out, _ = _run(capsys, "plan", *SMALL, "--planner", "stopped", "--json")
    assert code == 130
    assert json.loads(out)["interrupted"]


def test_asynchronous_plans_and_proofs_are_marked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A pipeline without flush trains on stale weights, brute force proves its own best: CSV and JSON say so."""
    words = ("compare", *SMALL, "--schedule", "pipedream", "--planner", "brute-force", "--planner", "uniform")
    code, out, _ = _run(capsys, *words, "--no-figures", "--out", str(tmp_path), "--json")
    assert code == 0
    proven, plain = json.loads(out)["plans"]
    assert proven["asynchronous"]
    assert plain["asynchronous"]
    assert proven["optimal_among"]
    assert not plain["optimal_among"]
    with (tmp_path / "comparison.csv").open(encoding="utf-8") as lines:
        assert [row["asynchronous"] for row in csv.DictReader(lines)] == ["True", "True"]
    _, out, _ = _run(capsys, *(words[:-6]), "--planner", "uniform", "--no-figures", "--out", str(tmp_path), "--json")
    assert not json.loads(out)["plans"][0]["asynchronous"]


def test_rows_have_one_bound_unless_weights_are_stale() -> None:
    """Of one sample latency binds plans that flush, work those that do not: two figures in all, and a line that says which;
    stale weights have a mark and a line that explains it."""
    found = compare(make_problem("chain:4", "dapple-a:2", 1), ["uniform", "greedy", "data-parallel", "pipedream"])
    bounds = {(row["asynchronous"], row["lower_bound_seconds"], row["lower_bound_term"]) for row in found.planned()}
    assert [(stale, term) for stale, _, term in sorted(bounds)] == [(False, "work and latency"), (True, "work")]
    stale = {f"{row['schedule']}*" for row in found.planned() if row["asynchronous"]}
    assert stale <= {row[1] for row in found.tables()[0].rows}
    assert any(line.startswith("* asynchronous: gradients of stale weights") for line in found.remarks())
    (line,) = (line for line in found.remarks() if line.startswith("lower bound: "))
    assert re.fullmatch(
        r"lower bound: \S+ s \(work and latency\) of plans that flush, \S+ s \(work\) of those on stale weights", line
    )
    flushed = compare(make_problem("chain:4", "dapple-a:2", 1), ["uniform"])
    assert not [line for line in flushed.remarks() if line.startswith("lower bound: ")]


def test_memory_cells_are_gibibytes_of_what_plans_may_fill(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """3 GiB of 16 GiB; where it does not fit a mark; the capacity leaves out what the accelerator keeps in reserve."""
    record = dict.fromkeys(COLUMNS, 1.0) | {"peak_memory_bytes": 3 * 2**30, "capacity_bytes": 16 * 2**30}
    rows = [record | {"planner": "a", "feasible": fits} for fits in (True, False)]
    assert [row[2] for row in USE.text({"plans": rows}).rows] == ["3.00 of 16", "3.00 of 16 (!)"]
    cluster = load_cluster("pipedream-a")
    device = cluster.devices[0]
    assert isinstance(device, GraphicsProcessor)
    assert device.reserve_bytes > 0
    words = (*SMALL, "--planner", "uniform", "--no-figures", "--out", str(tmp_path), "--json")
    _, out, _ = _run(capsys, "compare", *words)
    capacity = json.loads(out)["plans"][0]["capacity_bytes"]
    assert capacity == device.memory_bytes == 16 * 2**30 - device.reserve_bytes


def test_bars_of_stale_and_of_interrupted_plans_say_so() -> None:
    """The label of a bar."""
    row = {
        "planner": "a",
        "schedule": "1f1b-rr",
        "notation": "2-1",
        "samples_per_second": 2.0,
        "speedup_over_data_parallel": None,
        "error_low": 1.5,
        "error_high": 2.5,
        "peak_memory_bytes": 1.0,
        "memory_error_low": 0.9,
        "memory_error_high": 1.1,
        "capacity_bytes": 2.0,
        "lower_bound_seconds": 1.0,
        "iteration_seconds": 2.0,
        "bubble_idle_over_makespan": None,
        "feasible": True,
        "asynchronous": True,
        "interrupted": True,
    }
    assert comparison_bars([row])[0].label == "a (interrupted)\n2-1 · 1f1b-rr · stale weights"
    assert comparison_bars([{**row, "asynchronous": False, "interrupted": False}])[0].label == "a\n2-1 · 1f1b-rr"


@pytest.fixture
def two_plans(tmp_path: Path) -> tuple[str, str]:
    """Files of one problem: two stages, and the whole network on one device."""
    problem = make_problem("chain:4", "pipedream-a", 8, devices=2)
    paths = tmp_path / "two.json", tmp_path / "one.json"
    for path, stages in zip(
        paths, (stages_from_cuts((2,), 4, ((0,), (1,))), stages_from_cuts((), 4, ((0,),))), strict=True
    ):
        PlanFile(problem, Plan("hand", "gpipe", stages, (4, 4))).write(path)
    return str(paths[0]), str(paths[1])


def test_given_plans_are_rows_beside_the_planners(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, two_plans: tuple[str, str]
) -> None:
    """Table, CSV and JSON have each plan of a file by the file's name, with the seconds of its replay, ranked with the rest."""
    files = [word for path in two_plans for word in ("--plan", path)]
    words = ("compare", *files, "--planner", "uniform", "--no-figures", "--out", str(tmp_path))
    code, out, err = _run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    rows = {row["planner"]: row for row in json.loads(out)["plans"]}
    assert list(rows) == ["two.json", "one.json", "uniform"]
    for name, path in zip(rows, two_plans, strict=False):
        found = PlanFile.read(path)
        assert rows[name]["iteration_seconds"] == simulate(found.problem, found.plan).iteration_seconds
        assert rows[name]["status"] == "fits"
    with (tmp_path / "comparison.csv").open(encoding="utf-8") as file:
        assert [row["planner"] for row in csv.DictReader(file)] == list(rows)
    _, out, _ = _run(capsys, *words)
    ranked = sorted(rows, key=lambda name: rows[name]["iteration_seconds"])
    assert [line.split()[0] for line in out.splitlines() if line.split()[:1] and line.split()[0] in rows][:3] == ranked


def test_a_given_plan_that_does_not_fit_is_a_row_with_what_it_needs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Weights, gradients and momentum of all of GPT-2 XL in fp32 are more than 16 GiB; exit code 3, as nothing fits."""
    problem = make_problem("gpt2-xl", "pipedream-a", 2, devices=2)
    stages = stages_from_cuts((1,), len(problem.workload), ((1,), (0,)))
    PlanFile(problem, Plan("hand", "gpipe", stages, (2,))).write(tmp_path / "large.json")
    words = ("compare", "--plan", str(tmp_path / "large.json"), "--planner", "uniform", "--no-figures", "--json")
    code, out, _ = _run(capsys, *words, "--out", str(tmp_path))
    row, _ = json.loads(out)["plans"]
    assert (code, row["status"], row["feasible"]) == (3, "does-not-fit", False)
    peak, most = (f"{row[name] / 2**30:.4g} GiB" for name in ("peak_memory_bytes", "capacity_bytes"))
    assert row["reason"] == f"needs {peak} on device 0, which holds {most}"


def test_plans_of_different_problems_are_not_compared(
    capsys: pytest.CaptureFixture[str], two_plans: tuple[str, str]
) -> None:
    """One line names the key that differs, or the option that the file contradicts: exit code 2, before any search."""
    first, second = two_plans
    document = json.loads(Path(second).read_text())
    for words, key, value, said in (
        (("--plan", second), "optimizer", "adam", "$.problem.optimizer is 'adam', in "),
        (
            ("--plan", second),
            "cluster",
            {"name": "pipedream-b", "devices": 2},
            "$.problem.cluster is Cluster(pipedream-b",
        ),
        (("--batch", "16"), "optimizer", "adam", "--batch 16 contradicts --plan"),
        (("--cluster", "pipedream-b"), "optimizer", "adam", "says pipedream-a"),
        (("--no-contention",), "optimizer", "adam", "--no-contention contradicts"),
    ):
        Path(second).write_text(json.dumps({**document, "problem": {**document["problem"], key: value}}))
        assert said in refused(capsys, ("compare", "--plan", first, *words))


def test_a_comparison_without_a_plan_draws_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of reasons are written, no figure and no page; where none applies, one line has the first reason and their number."""
    monkeypatch.setitem(PLANNERS, "broken", _entry(_raising(InfeasiblePlanError("too large"))))
    page, out = tmp_path / "page.html", tmp_path / "out"
    words = ("compare", *SMALL, "--planner", "broken", "--out", str(out), "--html", str(page), "--timelines")
    code, said, _ = _run(capsys, *words)
    assert (code, "broken: no plan fits: too large" in said, page.exists()) == (3, True, False)
    assert {one.name for one in out.iterdir() if not one.name.startswith(".")} >= {"comparison.csv", "comparison.json"}
    assert not [one for one in out.iterdir() if one.suffix in (".svg", ".png") or one.stem.endswith("-plan")]
    for name in ("one", "two", "three"):
        monkeypatch.setitem(PLANNERS, name, _entry(_raising(ValueError("unused")), f"it is no {name[:1]}"))
    line = refused(capsys, ("compare", *SMALL, "--planner", "one,two,three", "--no-figures", "--out", str(out)))
    assert re.search(r"no planner of 3 applies: .*it is no o.*; and 1 more reasons\n$", line)


@pytest.mark.parametrize("words", [("--planner", "magic"), ("--planner", "uniform", "--schedule", "magic")])
def test_a_comparison_that_is_refused_leaves_no_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The folder is made when there is something to write."""
    code, out, _ = _run(capsys, "compare", "--workload", "chain:2", *words, "--out", str(tmp_path / "new" / "folder"))
    assert (code, out) == (2, "")
    assert not list(tmp_path.iterdir())


def test_figures_of_every_plan_have_files_of_their_own() -> None:
    """Names that differ in odd characters, in case or behind a hundred others stay apart; others stay as they are."""
    names = ["a b.json", "a+b.json", "A-B.json", "plans/x.json", "x" * 240, "x" * 241, "uniform"]
    stems = file_stems(names)
    assert list(stems) == names
    assert stems["uniform"] == "uniform"
    assert stems["plans/x.json"] == "plans-x.json"
    assert len({stem.lower() for stem in stems.values()}) == len(names)
    assert [stems["x" * length] for length in (240, 241)] == ["x" * 100, "x" * 100 + "-2"]
    assert all(re.fullmatch(r"[\w.-]{1,120}", stem) for stem in stems.values())


def test_a_given_plan_has_a_name_of_its_own(two_plans: tuple[str, str]) -> None:
    """A row is one plan: a given plan may not be called as a planner that is asked."""
    found = PlanFile.read(two_plans[0])
    rows = compare(found.problem, "uniform", plans={"mine": found.plan}).frame
    assert list(rows["planner"]) == ["mine", "uniform"]
    with pytest.raises(ValueError, match="a given plan is called 'uniform'"):
        compare(found.problem, "uniform", plans={"uniform": found.plan})


def test_speedups_are_over_data_parallelism_under_the_same_stack(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A row under `generic` beside one under a framework has data parallelism under `generic` for its reference, and is told."""
    words = ("--workload", small_gpt(tmp_path), "--cluster", "dgx-a100:1", "--batch", "8", "--planner", "xpipe")
    words = (*words, "--no-figures", "--out", str(tmp_path / "out"))
    _, out, _ = _run(capsys, "compare", *words, "--planner", "data-parallel", "--json")
    stale, replicated = json.loads(out)["plans"]
    assert (stale["stack"], replicated["stack"]) == ("generic", "megatron-core")
    assert replicated["speedup_over_data_parallel"] == 1.0
    _, out, _ = _run(capsys, "compare", *words, "--planner", "data-parallel", "--json", "--stack", "generic")
    alone = next(one for one in json.loads(out)["plans"] if one["planner"] == "data-parallel")
    speedup = alone["iteration_seconds"] / stale["iteration_seconds"]
    assert stale["speedup_over_data_parallel"] == pytest.approx(speedup)
    assert replicated["iteration_seconds"] > 1.05 * alone["iteration_seconds"]
    _, out, _ = _run(capsys, "compare", *words, "--planner", "data-parallel")
    assert "xpipe: under generic: what a framework takes" in out
    _, out, _ = _run(capsys, "compare", *words)
    assert "what a framework takes" not in out


def test_speedups_without_data_parallelism_among_the_rows() -> None:
    """It is asked for with its own schedule where the one that is wanted is not its; where it does not fit they are left open."""
    problem = make_problem("chain:4", "pipedream-a", 8, devices=2)
    rows = compare(problem, ["data-parallel", "uniform"], schedule="1f1b", stages=2).records()
    alone = compare(problem, "data-parallel").records()[0]
    assert (rows[0]["status"], rows[1]["schedule"]) == ("not-applicable", "1f1b")
    speedup = alone["iteration_seconds"] / rows[1]["iteration_seconds"]
    assert rows[1]["speedup_over_data_parallel"] == pytest.approx(speedup)
    devices = tuple(replace(one, memory_bytes=12e9) for one in problem.cluster.devices)
    heavy = chain([1e9] * 4, parameters=[300_000_000] * 4)  # 3.6 GB of weights, gradients and momentum each
    small = Problem(heavy, replace(problem.cluster, devices=devices), 8)
    replicated, cut = compare(small, ["data-parallel", "uniform"]).records()
    assert (replicated["status"], cut["status"]) == ("no-plan-fits", "fits")
    assert cut["speedup_over_data_parallel"] is None


def test_a_faster_plan_that_does_not_fit_is_no_answer() -> None:
    """Beside a slower one that fits: it is neither the best nor the fastest under noise, nor what the model cannot tell apart."""
    problem = make_problem("chain:4", "pipedream-a", 8, devices=2)
    held = Plan("hand", "gpipe", stages_from_cuts((2,), 4, ((0,), (1,))), (4, 4), recompute=("none",) * 2)
    plans = {"held": held, "again": replace(held, recompute=("whole",) * 2)}
    large, small = (simulate(problem, plan) for plan in plans.values())
    assert large.iteration_seconds < small.iteration_seconds
    room = (large.fullest.peak_bytes + small.fullest.peak_bytes) / 2
    devices = tuple(replace(one, memory_bytes=room) for one in problem.cluster.devices)
    less = replace(problem, cluster=replace(problem.cluster, devices=devices))
    found = compare(less, [_raising(ValueError("no"))], plans=plans)
    assert [row["feasible"] for row in found.records()] == [False, True, False]
    assert (found.best, found.fastest, found.not_told_apart()) == (found.plans[1], found.plans[1], ())
    noisy = {name: NoisySeconds(0.1, 1.0, np.full(5, seconds)) for name, seconds in (("held", 0.5), ("again", 1.0))}
    told = replace(found, noisy=noisy, disturbed="under noise")
    assert "under noise: again is the fastest still, at p95" in told.remarks()


def test_a_planner_that_is_given_twice_is_one_row() -> None:
    """Two of one name are two rows."""
    problem = make_problem("chain:4", "pipedream-a", 8, devices=2)
    first, second = (_raising(ValueError(word)) for word in "ab")
    rows = compare(problem, ["uniform", first, first, second]).records()
    name = rows[1]["planner"]
    assert [row["planner"] for row in rows] == ["uniform", name, f"{name}-2"]
    assert [row["reason"] for row in rows[1:]] == ["planner 'planner': a", "planner 'planner': b"]


def test_one_stack_stands_for_itself() -> None:
    """By its name, or as it is; of several the answer is the fastest."""
    problem = make_problem("gpt2", "dgx-a100:1", 16)
    core = load_stack("megatron-core")
    given: list[Any] = ["megatron-core", [core], ["generic", core]]
    rows = [compare(problem, "data-parallel", stacks=stacks).records()[0] for stacks in given]
    assert [row["stack"] for row in rows] == ["megatron-core", "megatron-core", "generic"]
    assert rows[0]["iteration_seconds"] == rows[1]["iteration_seconds"] > rows[2]["iteration_seconds"]


def test_stacks_that_are_named_are_those_that_are_searched(capsys: pytest.CaptureFixture[str]) -> None:
    """A comma list at the command line: the answer is under the fastest of them, each alone under itself."""
    words = [
        "plan",
        "--workload",
        "gpt2",
        "--cluster",
        "dgx-a100:1",
        "--batch",
        "16",
        "--planner",
        "data-parallel",
        "--json",
    ]
    found = {}
    for stacks in ("generic", "megatron-core", "megatron-core,generic", "megatron-core,megatron-core"):
        code, out, _ = _run(capsys, *words, "--stack", stacks)
        assert code == 0
        found[stacks] = json.loads(out)["iteration_seconds"]
    alone = found["generic"], found["megatron-core"]
    assert alone[0] < alone[1]
    assert list(found.values())[2:] == list(alone)


def test_an_interrupted_comparison_has_no_speedup_over_another_stack(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What data parallelism takes under the stack of a row is not known then: its speedup is left open, not told over another."""
    monkeypatch.setitem(PLANNERS, "stopped", _entry(_raising(KeyboardInterrupt())))
    words = ("--workload", small_gpt(tmp_path), "--cluster", "dgx-a100:1", "--batch", "16", "--no-figures", "--json")
    words = (*words, "--out", str(tmp_path / "out"))
    code, out, _ = _run(capsys, "compare", *words, "--planner", "xpipe,data-parallel,stopped")
    stale, replicated, _ = json.loads(out)["plans"]
    assert code == 130
    assert (stale["stack"], stale["speedup_over_data_parallel"]) == ("generic", None)
    assert (replicated["stack"], replicated["speedup_over_data_parallel"]) == ("megatron-core", 1.0)


# --------------------------------------------------------------------------------------------------------- by energy

OF_ENERGY = ("--workload", "chain:4", "--cluster", "dgx-a100:1", "--devices", "2", "--batch", "8", "--no-figures")


def test_rows_stand_in_the_order_of_the_objective() -> None:
    """The first one has least of what the comparison tells."""
    problem = make_problem("chain:4", "dgx-a100:1", 8, devices=2)
    found = compare(problem, ["data-parallel", "uniform", "pipedream"], objective="edp")
    measured = {one.planner: found.measure(one) for one in found.plans if one.result is not None}
    energies = {one.planner: one.result.outcome.energy for one in found.plans if one.result is not None}
    assert measured == {name: one.joules_per_sample * one.seconds for name, one in energies.items() if one is not None}
    assert len(measured) == 3
    assert found.best is not None
    assert found.measure(found.best) == min(measured.values())
    shown = [row[0] for row in found.tables()[0].rows]
    assert [measured[name] for name in shown] == sorted(measured.values())
    assert f"{measured[shown[0]]:.3g}" == found.tables()[0].rows[0][1]


def test_a_comparison_tells_its_objective(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In the title, the document and the figure; a plan that draws more power than it may is no answer."""
    two = tmp_path / "two.json"
    problem = make_problem("chain:4", "dgx-a100:1", 8, devices=2)
    PlanFile(problem, Plan("hand", "1f1b", stages_from_cuts([2], 4, [(0,), (1,)]), (4, 4))).write(two)
    asked = ("compare", *OF_ENERGY, "--planner", "data-parallel", "--plan", str(two), "--out", str(tmp_path / "out"))
    _, out, _ = _run(capsys, *asked, "--objective", "energy")
    assert out.splitlines()[0].endswith("8 samples per iteration: the fewest joules")
    code, out, _ = _run(capsys, *asked, "--power", "500", "--json")
    document = json.loads(out)
    told = {name: document[name] for name in ("objective", "power", "best")}
    assert (code, told) == (0, {"objective": "time", "power": 500.0, "best": "data-parallel"})
    (over, within) = document["plans"]
    assert re.fullmatch(
        r"power 500 W: of the plans that were found the one that draws least draws [\d.]+ W", over["reason"]
    )
    assert (over["status"], within["devices"]) == ("no-plan-fits", 1)
    assert "--objective 'watts' is unknown; choices: time" in refused(capsys, (*asked, "--objective", "watts"))
    of_v100 = ("compare", *SMALL, "--objective", "energy")
    assert "the power of v100-pcie is not known: give idle_w and full_w in [power]" in refused(capsys, of_v100)


def test_bars_are_sorted_by_what_they_are_judged_by() -> None:
    """The first in blue has the fewest joules, which it tells."""
    found = compare(make_problem("chain:4", "dgx-a100:1", 8, devices=2), ["data-parallel"], objective="energy")
    row = found.planned()[0]
    rows = [{**row, "planner": name, "joules_per_sample": joules} for name, joules in [("b", 2.0), ("a", 1.0)]]
    bars = comparison_bars(rows, found.ranking)
    assert [(one.label[0], one.note.split(" · ")[-1]) for one in bars] == [
        ("a", "1 J per sample"),
        ("b", "2 J per sample"),
    ]
    assert "fewest joules that fits" in [one.get_text() for one in found.plot().legends[0].get_texts()]
