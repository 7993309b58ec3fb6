"""Error classes: rows by constants that did not see them, and the intervals of 90 % that they make."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from experiments.cli import main
from experiments.truth import error_classes as module
from experiments.truth.error_classes import (
    AS_THEY_ARE,
    BY_CHIP,
    BY_DEVICES,
    LEFT_OUT,
    Judged,
    error_classes,
    interval,
    judged_rows,
    ran_plans,
    unseen_stack,
)
from experiments.truth.measured_tables import MeasuredRun, MeasuredTable, read_tables
from experiments.truth.predictions import training_problem
from hardware_profiles import GENERIC, Constant, Stack, changed_stack, load_stack
from hardware_profiles.load import read_errors, shipped_errors
from simulator import Evaluations

COLUMNS = "hidden,heads,layers,seq,dp,micro_batch,global_batch,measured_s,machine,stack"


def judged(ratios: list[float], accelerator: str = "ampere", plan: str = "data", table: str = "t") -> list[Judged]:
    """Rows of one class."""
    return [Judged("seconds", "s", accelerator, plan, table, one, "by hand") for one in ratios]  # type: ignore[arg-type]


def test_an_interval_holds_nine_of_ten_further_rows() -> None:
    """Of 19 rows the least and the greatest, of 39 the second ones; the median stands in the middle."""
    assert interval([float(one) for one in range(1, 20)]) == pytest.approx((10.0, 1.0, 19.0))
    assert interval([float(one) for one in range(1, 40)]) == pytest.approx((20.0, 2.0, 38.0))


def test_a_plan_that_no_replay_covers_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the other rows are."""
    rows = {layers: run_on("dgx-a100", layers=layers, measured_s=1.0) for layers in (2, 4)}
    table = MeasuredTable("mine", Path(), rows)
    every = judged_rows([table], {})
    replayed = len(training_problem(rows[2])[0].workload)
    monkeypatch.setattr(
        module,
        "Evaluations",
        lambda problem: Evaluations(problem) if len(problem.workload) == replayed else lambda plan: None,
    )
    assert judged_rows([table], {}) == every[:1] != every


def test_classes_of_few_rows_are_as_wide_as_the_next_wider_one() -> None:
    """20 rows within 10 % on an accelerator, 2 within 2 % of another kind of plan, and 3 on another one, one of them 40 % off."""
    many = judged([0.9 + 0.01 * one for one in range(20)])
    few, other = judged([0.99, 1.01], plan="fp8"), judged([1.0, 1.1, 1.4], accelerator="hopper")
    found = {(one.accelerators, one.plans): one for one in error_classes([*many, *few, *other])["s"]}
    whole = found.pop((("ampere",), ("data", "fp8")))
    assert (whole.rows, whole.median) == (22, pytest.approx(0.995))
    assert set(found) == {(("ampere",), ("data",)), (("hopper",), ("data",))}  # of fp8 the whole tells as much
    alone = found[("hopper",), ("data",)]
    assert alone.rows == 3
    assert alone.low < 0.92
    assert alone.high == 1.4


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tables that a stack whose products take 1.3 times as long measured; a shipped one, fitted on both, says 1.5."""
    true = Stack(name="s", products=Constant(1.3))
    known = replace(true, products=Constant(1.5, fitted=("a", "b (all)")))
    monkeypatch.setattr(module, "load_stack", lambda name: known if name == "s" else load_stack(name))
    for name, hidden in (("a", 2048), ("b", 4096)):
        lines = [f"{hidden},16,{layers},1024,2,4,16,1.0,dgx-a100,generic" for layers in (2, 3, 4)]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join([COLUMNS, *lines]) + "\n")
        (table,), _ = read_tables(tmp_path, {}, only=path.name)
        for number, row in enumerate(table.rows.values()):
            problem, plan = training_problem(row)  # type: ignore[arg-type]
            score = Evaluations(replace(problem, stack=true))(plan)
            assert score is not None
            lines[number] = lines[number].replace("1.0,", f"{score.iteration_seconds:.9g},").replace("generic", "s")
        path.write_text("\n".join([COLUMNS, *lines]) + "\n")
    return tmp_path


def test_a_table_is_judged_by_constants_of_the_others(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitted to the other table the constant is near the true one, whatever the shipped one is; the rows are then met. Under
    `generic` they are as much slower as they are.
    """
    monkeypatch.setattr(module, "stack_of", lambda row: "s")
    monkeypatch.setattr("experiments.truth.predictions.stack_of", lambda row: "generic")
    read, _ = read_tables(tables, {})
    ran = {one.name: ran_plans(one) for one in read}
    stack, seen = unseen_stack(module.load_stack("s"), "a", ran)
    assert set(seen) == {"products"}
    assert stack.products.on(ran["a"][0].problem.cluster.devices[0]) == pytest.approx(1.3, rel=0.02)
    rows = judged_rows(read, {})
    assert {one.how for one in rows} == {LEFT_OUT, AS_THEY_ARE}
    assert {one.how for one in rows if one.stack == "s"} == {LEFT_OUT}
    assert all(one.ratio == pytest.approx(1.0, rel=0.02) for one in rows if one.stack == "s")
    assert all(1.1 < one.ratio < 1.3 for one in rows if one.stack == "generic")


def run_on(machine: str, **said: object) -> MeasuredRun:
    """A run on two devices."""
    sizes = {"hidden": 2048, "heads": 16, "layers": 2, "seq": 1024, "micro_batch": 4, "global_batch": 8, "dp": 2}
    return MeasuredRun(**(sizes | {"machine": machine, "stack": "generic"} | said))  # type: ignore[arg-type]


def as_measured(name: str, machine: str, truth: Stack, **said: object) -> MeasuredTable:
    """Two runs whose seconds are those of a stack."""
    rows = {}
    for layers in (2, 4):
        run = run_on(machine, layers=layers, measured_s=1.0, **said)
        problem, plan = training_problem(run)
        score = Evaluations(replace(problem, stack=truth))(plan)
        assert score is not None
        rows[layers] = run_on(machine, layers=layers, measured_s=score.iteration_seconds, **said)
    return MeasuredTable(name, Path(f"{name}.csv"), rows)


def test_runs_that_no_plan_is_are_left_out() -> None:
    """Groups that do not divide the heads, and more devices than there are: the runs beside them are still judged, each once."""
    sizes = {"tp": 3}, {}, {"dp": 16, "global_batch": 64}, {"layers": 4}
    rows = {number: run_on("dgx-a100:1", measured_s=1.0, **one) for number, one in enumerate(sizes)}
    assert [one.row for one in ran_plans(MeasuredTable("t", Path("t.csv"), rows))] == [rows[1], rows[3]]


def test_the_tables_of_other_accelerators_are_fitted_first() -> None:
    """Their constants hold wherever no table tells another, those of the table's own accelerators there."""
    truth = changed_stack(Stack(name="s"), {"products": 1.2}, ("ampere",))
    truth = changed_stack(truth, {"products": 1.4}, ("hopper",))
    machines = {"a": "dgx-a100", "b": "dgx-a100", "c": "dgx-h100"}
    ran = {name: ran_plans(as_measured(name, machine, truth)) for name, machine in machines.items()}
    on = {name: ran[name][0].problem.cluster.devices[0] for name in ("a", "c")}
    known = Stack(name="generic", products=Constant(1.5, fitted=("a", "b", "c")))

    def left(*tables: str, stack: Stack = known) -> dict[str, float]:
        found, _ = unseen_stack(stack, "a", {name: ran[name] for name in tables})
        return {name: found.products.on(device) for name, device in on.items()}

    assert left("a", "b", "c") == pytest.approx({"a": 1.2, "c": 1.4}, rel=0.05)
    assert left("a", "c") == pytest.approx({"a": 1.4, "c": 1.4}, rel=0.05)
    assert left("a")["a"] == GENERIC.products.value  # nothing tells it
    apart = replace(
        known, products=Constant(1.5, fitted=("a",), generations=(("hopper", Constant(1.7, fitted=("c",))),))
    )
    assert left("a", "c", stack=apart) == {"a": GENERIC.products.value, "c": 1.7}  # c tells of another constant
    assert unseen_stack(known, "d", {**ran, "d": ran["a"]}) == (known, ())


def peak_bytes(layers: int) -> float:
    """What the fullest device of a run holds by its replay."""
    problem, plan = training_problem(run_on("dgx-a100", layers=layers, measured_s=1.0))
    score = Evaluations(problem)(plan)
    assert score is not None
    return score.peak_bytes


def memory_told_by(
    *runs: MeasuredRun, seen: tuple[str, ...], names: tuple[str, ...] = ("context", "reserved")
) -> tuple[float, float]:
    """Bytes reserved over those of tensors, and bytes beside, for table a, where table b has these runs.

    names: constants of a stack that were fitted to the tables of `seen`
    """
    both = (run_on("dgx-a100", measured_peak_bytes=1.2 * peak_bytes(2)),), runs
    ran = {
        name: ran_plans(MeasuredTable(name, Path(f"{name}.csv"), dict(enumerate(own))))
        for name, own in zip("ab", both, strict=True)
    }
    shipped = {"reserved": Constant(1.5, fitted=seen), "context": Constant(1e8, fitted=seen)}
    found, left_out = unseen_stack(replace(GENERIC, **{name: shipped[name] for name in names}), "a", ran)
    assert sorted(left_out) == sorted(names)
    device = ran["a"][0].problem.cluster.devices[0]
    return found.reserved.on(device), found.context.on(device)


def held(layers: int, times: float, more: float = 0.0) -> MeasuredRun:
    """A run whose driver counted so many times its tensors, and bytes beside."""
    return run_on("dgx-a100", layers=layers, measured_peak_bytes=times * peak_bytes(layers) + more)


def test_memory_that_saw_a_table_is_what_the_others_tell() -> None:
    """Reserved 1.2 times the tensors, and 600 MB beside: a row that is far off changes nothing; neither is less than none.

    Where no row of another table tells them, or tells a peak, they are those of no framework in particular.
    """
    runs = [held(layers, 1.2, 6e8) for layers in (2, 4, 8, 12)]
    assert memory_told_by(*runs, held(6, 2.0), seen=("a", "b")) == pytest.approx((1.2, 6e8), rel=0.05)
    for name in ("reserved", "context"):
        assert memory_told_by(*runs, seen=("a", "b"), names=(name,)) == pytest.approx((1.2, 6e8), rel=0.05)
    reserved, context = memory_told_by(held(2, 0.9), held(4, 0.9), seen=("a", "b"))
    assert (reserved, context) == (1.0, pytest.approx(0.0, abs=1e6))
    generic = GENERIC.reserved.value, GENERIC.context.value
    timed = run_on("dgx-a100", measured_s=1.0)
    assert memory_told_by(*runs, seen=("a",)) == memory_told_by(timed, seen=("a", "b")) == generic


def test_what_constants_of_devices_saw_widens_a_class_and_makes_none() -> None:
    """Of rows like its own: those of another kind of plan, and where no other row is, say nothing."""
    rows = judged([0.95 + 0.005 * one for one in range(20)])
    seen = [one._replace(how=BY_DEVICES) for one in judged([0.9, 1.3]) + judged([5.0], plan="fp8")]
    (told,) = error_classes([*rows, *seen])["s"]
    (alone,) = error_classes(rows)["s"]
    assert (told.low, told.high) == (0.9, 1.3)
    assert replace(told, low=alone.low, high=alone.high) == alone
    assert error_classes(seen) == {}


def test_figures_that_constants_of_devices_saw_are_told_apart() -> None:
    """Of SimuMax's tables the seconds of plans without contexts; their bytes, and those of other tables, are judged."""
    rows = {1: run_on("dgx-a100", measured_s=1.0, measured_alloc_gib=2.0), 2: run_on("dgx-a100", cp=2, measured_s=1.0)}
    found = {
        name: [(one.figure, one.plan, one.accelerator) for one in judged_rows([MeasuredTable(name, Path(), rows)], {})]
        for name in ("simumax_b200_more", "mine")
    }
    seconds, memory, context = ("seconds", "data", "ampere"), ("memory", "data"), ("seconds", "data", "ampere")
    assert [one[: len(memory)] if one[0] == "memory" else one for one in found["mine"]] == [seconds, memory, context]
    assert found["simumax_b200_more"] == found["mine"]
    assert [one.how for one in judged_rows([MeasuredTable("simumax_b200_more", Path(), rows)], {})] == [
        BY_DEVICES,
        AS_THEY_ARE,
        AS_THEY_ARE,
    ]
    one, two, three = judged_rows([MeasuredTable("mine", Path(), rows)], {})
    problem, plan = training_problem(rows[1])
    score = Evaluations(problem)(plan)
    assert score is not None
    assert (one.ratio, two.ratio) == (1.0 / score.iteration_seconds, 2.0 * 2**30 / score.peak_bytes)
    assert {two.how, three.how} == {AS_THEY_ARE}
    chips = {1: run_on("tpu-v5p", measured_s=1.0, measured_alloc_gib=2.0, precision="bf16")}
    assert [one.how for one in judged_rows([MeasuredTable("mine", Path(), chips)], {})] == [BY_CHIP, AS_THEY_ARE]


def test_classes_stand_by_figure_and_tell_their_rows() -> None:
    """Seconds before bytes; a class of enough rows is its own, one of few rows of a small stack as wide as all stacks' rows."""
    seconds = judged([1.0 + 0.01 * one for one in range(-9, 10)], table="u")
    memory = [one._replace(figure="memory") for one in [*seconds, *judged([1.05], table="t")]]
    alone = [one._replace(stack="alone", how="other") for one in judged([1.02, 1.04])]
    found = error_classes([*alone, *memory, *seconds])
    assert [(stack, one.figure, one.rows) for stack, some in found.items() for one in some] == [
        ("alone", "seconds", 2),
        ("s", "seconds", 19),
        ("s", "memory", 20),
    ]
    assert (found["s"][0].low, found["s"][0].high) == pytest.approx((0.91, 1.09))
    assert (found["s"][1].tables, found["s"][1].how) == (("t", "u"), "by hand")
    (few,) = found["alone"]
    assert (few.median, few.low, few.high) == pytest.approx(
        (1.03, *interval([one.ratio for one in [*seconds, *alone]])[1:])
    )


def test_the_classes_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the form of the shipped file; other results are not made beside it."""
    rows = [f"512,8,{layers},512,2,1,4,0.1,dgx-a100," for layers in (2, 3)]
    (tmp_path / "mine.csv").write_text("\n".join([COLUMNS, *rows]) + "\n")
    words = ["study", "truth", "--tables", str(tmp_path), "--errors-out", str(tmp_path / "e.toml")]
    assert main([*words, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["classes"]
    (found,) = read_errors(tmp_path / "e.toml")["generic"]
    assert (told["rows"], told["plans"], found.rows, found.tables) == (2, ["data"], 2, ("mine",))
    assert found.median == pytest.approx(told["median"], abs=1e-3)
    assert main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"generic seconds ampere data 2 {told['median']:.3f} {told['low']:.3f} {told['high']:.3f}" in printed
    assert printed.endswith(f"written to {tmp_path / 'e.toml'}")
    assert main([*words, "--fit", "mine"]) == 2
    assert "does not go with --errors-out" in capsys.readouterr().err
    (tmp_path / "mine.csv").write_text("gpus,bytes,out_of_place_us\n8,1024,30\n")
    assert main(words) == 4
    said = "--errors-out: no row of an iteration can be judged by constants that did not see it"
    assert capsys.readouterr().err.endswith(f"{said}\n")


def test_the_shipped_classes_are_those_of_the_rows(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the table of each stack's memory that is quickest to predict; `pytest -m slow` compares all classes whole."""
    monkeypatch.setenv("PIPEPLAN_PROFILES", str(shared_data / "measured" / "hardware"))
    tables, _ = read_tables(shared_data / "measured", {}, only="megatron_ci_memory.csv")
    ratios = [one.ratio for one in judged_rows(tables, {}) if one.stack == "megatron-core"]
    classes = [one for one in shipped_errors()["megatron-core"] if one.figure == "memory"]
    shipped = max(classes, key=lambda one: len(one.plans))
    assert "megatron_ci_memory" in shipped.tables
    assert shipped.rows > len(ratios) > 5
    assert sum(shipped.low <= one <= shipped.high for one in ratios) >= 0.7 * len(ratios)
    assert min(ratios) < shipped.median < max(ratios)


@pytest.mark.slow
def test_the_shipped_file_is_what_the_study_writes(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the tables at hand and those that the study has, in one folder; to a hundredth: fits of what is left end where their
    steps are short.
    """
    tables, path = tmp_path / "tables", tmp_path / "errors.toml"
    for folder in (shared_data / "measured", Path(module.__file__).parent / "published_runs"):
        copytree(folder, tables, dirs_exist_ok=True)
    monkeypatch.setenv("PIPEPLAN_PROFILES", str(tables / "hardware"))
    assert main(["study", "truth", "--tables", str(tables), "--errors-out", str(path)]) == 0
    written, shipped = read_errors(path), shipped_errors()
    assert written.keys() == shipped.keys()
    for name, classes in written.items():
        for one, other in zip(classes, shipped[name], strict=True):
            assert (one.accelerators, one.plans, one.rows, one.tables) == (
                other.accelerators,
                other.plans,
                other.rows,
                other.tables,
            )
            assert (one.low, one.median, one.high) == pytest.approx((other.low, other.median, other.high), abs=0.01)
