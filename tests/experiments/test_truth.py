"""Study truth: tables read by their columns, errors by hand, and the plan that a measured row ran."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd
import pytest

import hardware_profiles
from experiments.cli import main
from experiments.studies.study_harness import run_study
from experiments.terminal.output import InputError
from experiments.truth.__main__ import (
    APART,
    SEEN_TABLE,
    SPLIT,
    STACKS_TABLE,
    TABLE,
    by_stack,
    constants_of,
    named,
    print_document,
    profiles_beside,
)
from experiments.truth.errors import PARTS, apart, errors, kendall, ranked, regret, summary
from experiments.truth.measured_tables import (
    AllReduce,
    MatrixProduct,
    MeasuredRun,
    kind_of,
    read_tables,
)
from experiments.truth.predictions import (
    predicted,
    training_problem,
)
from experiments.truth.seen_rows import SEEN_ROWS, was_seen
from hardware_profiles import PROFILES, Stack, changed_stack, errors_of, load_stack
from simulator import Evaluations
from tests.experiments.commands import refused
from tests.experiments.measured_rows import RUN, measured, table
from tests.records import Recorded, lines


def test_errors_by_hand() -> None:
    """Predicted / measured - 1: +10 %, -20 %, -5 % have a mean of 35/3 %, a median of 10 % and a signed mean of -5 %."""
    found = errors([10.0, 10.0, 10.0], [11.0, 8.0, 9.5])
    expected = {"rows": 3, "mape": 0.35 / 3, "median": 0.1, "worst": 0.2, "signed": -0.05}
    assert found == pytest.approx(expected)


def test_rank_agreement_and_regret_by_hand() -> None:
    """Of three pairs one is turned: (2 - 1) / 3; a tie counts in neither; the plan ranked first takes half as long again."""
    assert kendall([1.0, 2.0, 3.0], [2.0, 1.0, 3.0]) == pytest.approx(1 / 3)
    assert kendall([1.0, 2.0, 3.0], [1.0, 1.0, 3.0]) == pytest.approx(2 / (3 * 2) ** 0.5)
    assert kendall([1.0, 2.0], [5.0, 5.0]) is None
    assert regret([2.0, 3.0, 4.0], [2.5, 2.0, 9.0]) == pytest.approx(0.5)


def test_ranks_are_means_over_questions_of_several_plans() -> None:
    """Question 1: 1/3 and regret 0.5; question 2 predicts all alike, so it has a regret of 0.25, no agreement; 3 has one plan."""
    rows = [(1, 2.0, 3.0), (1, 3.0, 2.0), (1, 4.0, 9.0), (2, 5.0, 1.0), (2, 4.0, 1.0), (3, 1.0, 7.0)]
    found = ranked(pd.DataFrame(rows, columns=["question", "measured", "predicted"]), ("question",))
    assert found == pytest.approx({"questions": 2, "kendall": 1 / 3, "regret": 0.375, "worst_regret": 0.5})
    alone = ranked(pd.DataFrame(rows[3:5], columns=["question", "measured", "predicted"]), ("question",))
    assert (alone["questions"], alone["kendall"], alone["regret"]) == (1, None, 0.25)
    none = ranked(pd.DataFrame(rows[5:], columns=["question", "measured", "predicted"]), ("question",))
    assert none == {"questions": 0, "kendall": None, "regret": None, "worst_regret": None}


def test_a_summary_tells_figures_apart() -> None:
    """Forward and backward have errors of their own: those that cancel in a total are seen; ranks are the first's."""
    rows = [("forward", 1.0, 2.0, 1), ("backward", 2.0, 1.0, 1), ("forward", 1.0, 1.0, 2), ("backward", 2.0, 2.0, 2)]
    points = pd.DataFrame(rows, columns=["what", "measured", "predicted", "tp"])
    assert summary(points, (), ("what",))["questions"] == 1
    found = summary(points, ("tp",), ())
    assert "questions" not in found
    assert (found["figure"], found["mape"], found["backward"]["signed"]) == ("forward", 0.5, -0.25)
    assert found["by"]["tp"]["1"]["mape"] == 1.0


def test_rows_seen_and_held_out_stand_apart() -> None:
    """Two seen rows are 10 % off, the one held out 50 %; of a figure whose rows were all seen nothing is held out."""
    rows = [("seconds", 1.0, 1.1), ("seconds", 1.0, 0.9), ("seconds", 2.0, 3.0), ("memory", 4.0, 5.0)]
    found = apart(pd.DataFrame(rows, columns=["what", "measured", "predicted"]), [True, True, False, True])
    seconds, memory = found["seconds"], found["memory"]
    assert seconds["seen"] is not None
    assert seconds["held_out"] is not None
    assert (seconds["seen"]["mape"], seconds["held_out"]["mape"]) == (pytest.approx(0.1), pytest.approx(0.5))
    assert (seconds["seen"]["rows"], seconds["held_out"]["rows"], memory["held_out"]) == (2, 1, None)


def test_given_rows_are_seen_and_others_held_out(shared_data: Path) -> None:
    """Every given row of a table of iterations or cells is known; with another time, plan or table's name it is held out."""
    tables, _ = read_tables(shared_data / "measured", {})
    for one in tables:
        if not one.name.startswith(tuple(SEEN_ROWS)):
            continue
        lines = pd.DataFrame(
            [{name: getattr(row, name) for name in row.__struct_fields__} for row in one.rows.values()]
        )
        assert all(was_seen(one.name, lines))
        assert all(was_seen(f"{one.name}_more", lines))
        assert not any(was_seen("mine", lines))
        assert not any(was_seen(one.name, lines.assign(micro_batch=lines["micro_batch"] + 1000)))
        if "measured_s" in SEEN_ROWS[max((n for n in SEEN_ROWS if one.name.startswith(n)), key=len)].columns:
            assert not any(was_seen(one.name, lines.assign(measured_s=lines["measured_s"] * 1.01)))


def test_kernels_are_seen_whole() -> None:
    """Half of them were fitted, by a draw that was not kept."""
    assert was_seen("a100_gemm", pd.DataFrame({"m": [1, 2]})) == [True, True]


def test_rows_without_what_seen_ones_are_known_by_were_not_seen() -> None:
    """A table that begins like one of those, and has other columns."""
    assert was_seen("maxtext_more", pd.DataFrame({"m": [1, 2]})) == [False, False]


def test_a_table_is_known_by_its_columns() -> None:
    """The kind follows from the columns, in any order and beside others; no kind where one is missing."""
    assert kind_of(["source", "k", "n", "m", "backward_us", "forward_us"]) is MatrixProduct
    assert kind_of(["gpus", "bytes", "out_of_place_us"]) is AllReduce
    assert kind_of(RUN.split(",")) is MeasuredRun
    assert kind_of(["gpus", "bytes"]) is None


def test_tables_of_a_folder(tmp_path: Path) -> None:
    """Columns are renamed, empty cells say nothing, files of other columns are named."""
    table(tmp_path, "mine.csv", RUN.replace("measured_s", "time"), "64,4,2,32,1,1,1,1,2,0.5,,dgx-a100")
    table(tmp_path, "other.csv", "a,b", "1,2")
    tables, skipped = read_tables(tmp_path, {"time": "measured_s"})
    assert [one.name for one in tables] == ["mine"]
    assert skipped.keys() == {"other.csv"}
    assert "none of the columns" in skipped["other.csv"]
    _, skipped = read_tables(table(tmp_path, "other.csv", "gpus,bytes", "8,2"), {})
    assert "lacks out_of_place_us of the nearest kind: A collective" in skipped["other.csv"]
    _, skipped = read_tables(table(tmp_path, "other.csv", "gpus,bytes,hidden,heads,layers", "8,2,1,1,1"), {})
    assert "lacks out_of_place_us of the nearest kind" in skipped["other.csv"]  # a third, and half of an iteration's
    _, skipped = read_tables(table(tmp_path, "other.csv", RUN), {})
    assert skipped["other.csv"] == "has no rows"
    row = tables[0].rows[2]
    assert isinstance(row, MeasuredRun)
    assert (row.measured_s, row.recompute) == (0.5, "none")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("64,4,2,32,0,1,1,1,2,0.5,,", "line 2: $.tp = '0'"),
        ("64,4,2,32,1,1,1,1,2,fast,,", "line 2: $.measured_s"),
        ("64,4,2,32,1,1,1,1,2,0.5,some,", "attention, full, minimal, none, selective, selective op"),
        ("64,4,2", "line 2 has 3 cells, and there are 12 columns"),
        ('64,4,2,32,1,1,1,1,2,0.5,"full,', "cannot be read as a CSV file: unexpected end of data"),
        (
            "65,4,2,32,1,1,1,1,2,0.5,,dgx-a100",
            "hidden must be a multiple of heads, 4, where there is no head_size; got 65",
        ),
    ],
)
def test_bad_cells_are_one_line(tmp_path: Path, line: str, said: str) -> None:
    """A bad cell is blamed on its file, line and column, with the rule."""
    with pytest.raises(InputError) as caught:
        read_tables(table(tmp_path, "mine.csv", RUN, line), {})
    assert said in str(caught.value)
    assert "mine.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_machines_and_stacks_stand_beside_their_table(tmp_path: Path) -> None:
    """Relative paths are from the table's folder, whatever the working folder is."""
    (tmp_path / "mine.toml").write_text(
        'kind = "stack"\nname = "mine"\n[overheads.block_pass_us]\nvalue = 1000\nsource = "here"\n'
    )
    lines = [f"64,4,2,32,1,1,1,1,2,0.5,,dgx-a100,{stack}" for stack in ("generic", "mine.toml")]
    tables, _ = read_tables(table(tmp_path, "runs.csv", f"{RUN},stack", *lines), {})
    frame, left_out = predicted(tables[0], None)
    assert not left_out
    generic, mine = frame["predicted"]
    assert mine > generic + 4e-3
    (tmp_path / "bad.toml").write_text('name = "bad"\nsize = 3\n')
    tables, _ = read_tables(table(tmp_path, "runs.csv", RUN, lines[0].replace("dgx-a100,generic", "./bad.toml")), {})
    with pytest.raises(InputError, match=r"runs.csv: line 2: .*bad.toml"):
        predicted(tables[0], None)


def test_rows_of_a_machine_that_is_not_known_are_passed_over_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says which machine, how many rows, and how it would be found; the other rows, and tables, are predicted."""
    known, lost = "64,4,2,32,1,1,1,1,2,0.5,,dgx-a100", "64,4,2,32,1,1,1,1,2,0.5,,nowhere"
    table(tmp_path, "mine.csv", RUN, lost, known, lost)
    table(tmp_path, "products.csv", "m,n,k,forward_us,backward_us,accelerator", "4096,4096,4096,500,1000,lost-chip")
    assert main(["study", "truth", "--tables", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    asked = "is not known here: a TOML file of it in the folder PIPEPLAN_PROFILES, or in one beside the table, would be found"
    assert f"mine: 2 rows not predicted: cluster 'nowhere' {asked}" in printed
    assert f"products: 1 row not predicted: accelerator 'lost-chip' {asked}" in printed


def test_machines_are_found_in_a_folder_beside_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, whatever the folder's, and beside those of the user, which go first; no longer than the study runs."""
    text = (Path(hardware_profiles.__file__).parent / "clusters" / "dgx-a100.toml").read_text(encoding="utf-8")
    for folder, name in (("own", "mine-a100"), ("tables/machines", "theirs-a100")):
        path = tmp_path / folder / "clusters" / f"{name}.toml"
        path.parent.mkdir(parents=True)
        path.write_text(text.replace('name = "dgx-a100"', f'name = "{name}"'), encoding="utf-8")
    monkeypatch.setenv("PIPEPLAN_PROFILES", str(tmp_path / "own"))
    rows = [f"64,4,2,32,1,1,1,1,2,0.5,,{machine}" for machine in ("mine-a100", "theirs-a100")]
    table(tmp_path / "tables", "mine.csv", RUN, *rows)
    assert main(["study", "truth", "--tables", str(tmp_path / "tables"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"]["mine"]["rows"] == 2
    assert os.environ["PIPEPLAN_PROFILES"] == str(tmp_path / "own")


def test_the_study_ends_with_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: Recorded
) -> None:
    """Errors by table, files passed over, and figures apart; a machine of an unknown table is a usage error."""
    table(tmp_path, "runs.csv", RUN, "64,4,2,32,1,1,1,1,2,0.01,,dgx-a100", "64,4,2,32,1,2,1,1,2,0.01,full,dgx-a100")
    table(tmp_path, "products.csv", "m,n,k,forward_us,backward_us", "4096,4096,4096,500,1000")
    table(tmp_path, "notes.csv", "a", "1")
    table(tmp_path, "lost.csv", RUN, "64,4,2,32,1,1,1,1,2,0.01,,nowhere")
    assert run_study("truth", ["--tables", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["tables"]) == {"runs", "products", "lost"}
    assert (document["tables"]["lost"]["rows"], list(document["tables"]["lost"]["left_out"].values())) == (0, [1])
    assert document["skipped"] == ["notes.csv"]
    assert document["tables"]["runs"]["rows"] == 2
    assert document["tables"]["runs"]["seen"] == "none"
    seconds = document["tables"]["runs"]["apart"]["seconds"]
    assert (seconds["seen"], seconds["held_out"]["mape"]) == (None, document["tables"]["runs"]["mape"])
    assert "--columns" in document["skipped_because"]["notes.csv"]
    assert "mape" in document["tables"]["products"]["backward"]
    print_document(document)
    recorded(printed=lines(capsys.readouterr().out))
    assert main(["study", "truth", "--tables", str(tmp_path), "--machine", "runs=nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["study", "truth", "--tables", str(tmp_path), "--machine", "gone=dgx-a100"]) == 2
    assert f"--machine: table 'gone' is not in {tmp_path}; choices: lost, products, runs" in capsys.readouterr().err
    assert main(["study", "truth"]) == 2
    assert "pipeplan data measured-tables" in capsys.readouterr().err
    assert main(["study", "truth", "--columns", "--json"]) == 0
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    assert main(["study", "truth", "--columns"]) == 0
    told = [[*kind["about"].splitlines(), f"needed: {', '.join(kind['needed'])}; further: "] for kind in kinds]
    printed = capsys.readouterr().out
    assert all(line in printed for kind in told for line in kind)
    assert all(kind["about"] and kind["needed"] for kind in kinds)
    assert "sequence_parallel" in kinds[0]["further"]


def test_plans_of_as_many_devices_answer_one_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contexts are of devices of their own: two replicas stand beside two contexts of one, and not beside one device."""
    rows = {"two": ("1,1,2,1", "1,1,1,2"), "unlike": ("1,1,1,1", "1,1,1,2"), "groups": ("2,1,1,1", "1,2,1,1")}
    for name, degrees in rows.items():
        given = (f"64,4,2,32,{each},1,2,0.01,,dgx-a100" for each in degrees)
        table(tmp_path, f"{name}.csv", RUN.replace("tp,pp,dp,", "tp,pp,dp,cp,"), *given)
    assert run_study("truth", ["--tables", str(tmp_path), "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert {name: (one["rows"], one["questions"]) for name, one in tables.items()} == {
        "two": (2, 1),
        "unlike": (2, 0),
        "groups": (2, 1),
    }


def test_tables_of_errors_are_in_per_cent() -> None:
    """A mean error of 1/8, a median of 1/16, a worst of 1/2 and a signed mean of -1/4, of 40 rows, wherever they stand."""
    found = {"rows": 40, "mape": 0.125, "median": 0.0625, "worst": 0.5, "signed": -0.25}
    whole = {
        **found,
        "figure": "seconds",
        "by": {"tp": {"8": found}},
        "apart": {"seconds": dict.fromkeys(PARTS, found)},
    }
    parts = {f"{part}{key}": value for part in ("", "seen ", "held out ") for key, value in found.items()}
    document = {
        "tables": {"mine": whole | {"peers": None, "kendall": 0.5, "regret": 0.125}},
        "stacks": [{"stack": "generic", "table": "mine", "what": "seconds", **parts}],
    }
    rows = [row for one in (TABLE, APART, SPLIT, STACKS_TABLE) for row in one.text(document).rows]
    assert rows == [
        ("mine", "seconds", "40", "12.5", "6.2", "50.0", "-25.0", "0.50", "12.5", ""),
        ("mine", "seconds", *("40", "12.5", "6.2", "50.0", "-25.0") * 2),
        ("mine", "tp", "8", "40", "12.5", "50.0", "-25.0"),
        ("generic", "mine", "seconds", *("40", "12.5", "-25.0") * 3),
    ]


def test_the_longest_name_that_a_table_begins_with_tells_of_it() -> None:
    """Nothing of a table that begins with none."""
    words = {"vtrain": "one", "vtrain_single": "two", "vtrain_single_cells": "three", "a": "four"}
    tables = "vtrain_multi", "vtrain_single_node", "vtrain_single_cells", "mine"
    assert [named(words, name) for name in tables] == ["one", "two", "three", None]


def test_errors_by_stack_by_hand() -> None:
    """Of two rows of a table and one of another, 10 and 30 % above and 20 % below: of all, and of each, seen and held out."""
    figures = [("a", 1.1, True), ("a", 1.3, False), ("b", 0.8, False)]
    runs = [
        {"stack": "s", "table": table, "what": "seconds", "measured": 1.0, "predicted": predicted, "seen": seen}
        for table, predicted, seen in figures
    ]
    other = {"stack": "r", "table": "a", "what": "memory", "measured": 2.0, "predicted": 1.0, "seen": True}
    found = by_stack([*runs, other])
    assert [(row["stack"], row["what"], row["table"]) for row in found] == [
        *(("r", "memory", "all"), ("r", "memory", "a")),
        *(("s", "seconds", "all"), ("s", "seconds", "a"), ("s", "seconds", "b")),
    ]
    every, own = found[2], found[3]
    assert (every["rows"], every["mape"], every["signed"]) == (3, pytest.approx(0.2), pytest.approx(0.2 / 3))
    assert (every["seen rows"], every["held out rows"], every["held out signed"]) == (1, 2, pytest.approx(0.05))
    assert (own["rows"], own["seen mape"], own["held out mape"]) == (2, pytest.approx(0.1), pytest.approx(0.3))
    assert (found[0]["held out rows"], found[4]["seen rows"]) == (None, None)


def test_constants_that_change_nothing_are_not_told() -> None:
    """`generic` has no other; of a framework each has a source, on every generation of accelerators that has its own."""
    assert constants_of("generic") == []
    stack = load_stack("megatron-core")
    told = {(row["constant"], row["generation"]): row for row in constants_of("megatron-core")}
    for name, constant in stack.constants().items():
        for generation, one in (("", constant), *constant.generations):
            row = told.pop((name, generation), None)
            assert (row is None) == (not one.source and one.value == load_stack("generic").constants()[name].value)
            if row is not None:
                assert (row["value"], row["fitted"], row["source"]) == (one.value, list(one.fitted), one.source)
    assert not told


def test_a_document_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Every table of errors, with its rows, what was not predicted, and files that were passed over; no stacks without rows."""
    found = {"rows": 1, "mape": 0.5, "median": 0.5, "worst": 0.5, "signed": 0.5}
    table = {**found, "figure": "seconds", "by": {"tp": {"8": found}}, "memory": found, "peers": "Calculon 9 %"}
    table |= {"kendall": 0.25, "regret": 0.125, "apart": {"seconds": {"seen": None, "held_out": found}}, "seen": "half"}
    document = {
        "tables": {"mine": {**table, "left_out": {"it is odd": 3}}},
        "stacks": [],
        "constants": [],
        "skipped_because": {"notes.csv": "is no table"},
    }
    print_document(document)
    without = capsys.readouterr().out
    titles = [TABLE, APART, SPLIT, SEEN_TABLE]
    assert [title.text(document).title in without for title in titles] == [True] * 4
    assert "Iterations by stack" not in without
    assert "Constants of stacks" not in without
    printed = " ".join(without.split())
    assert "mine seconds 1 50.0 50.0 50.0 +50.0 0.25 12.5 Calculon 9 %" in printed
    assert "mine: 3 rows not predicted: it is odd" in printed
    assert "passed over: notes.csv: is no table" in printed
    parts = {f"{part}{name}": found[name] for part in ("", "seen ", "held out ") for name in ("rows", "mape", "signed")}
    constant = {"stack": "s", "constant": "products", "generation": "ampere", "value": 1.25}
    print_document(
        {
            **document,
            "stacks": [{"stack": "s", "table": "all", "what": "seconds", **parts}],
            "constants": [{**constant, "fitted": ["a", "b"], "judged": ["c", "d"]}],
        }
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert "Iterations by stack" in printed
    assert "s products ampere 1.25 a, b c; d" in printed


def test_a_folder_without_tables_is_a_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line says which columns would do."""
    assert main(["study", "truth", "--tables", str(table(tmp_path, "notes.csv", "a", "1"))]) == 4
    assert "out_of_place_us" in capsys.readouterr().err


NAMED = "model,layers,seq,tp,pp,dp,micro_batch,global_batch,measured_s,machine,source"


def test_sizes_of_a_network_that_a_row_names(tmp_path: Path) -> None:
    """What a row leaves out is that of the published network that its `model` begins with; its own columns go before; a network
    that nobody knows is left out by name, and the other rows are predicted."""
    lines = (
        "nemotron4-15b,2,64,1,1,1,1,2,0.5,dgx-h100,NVIDIA/dgxc-benchmarking",
        "gpt-oss-120b-mine,4,256,1,1,1,1,2,0.5,dgx-h100,NVIDIA-NeMo/Megatron-Bridge",
        "a-secret-15b,2,64,1,1,1,1,2,0.5,dgx-h100,",
    )
    tables, _ = read_tables(table(tmp_path, "named.csv", NAMED, *lines), {})
    rows = {line: row for line, row in tables[0].rows.items() if isinstance(row, MeasuredRun)}
    assert sorted(rows) == [2, 3]
    assert (rows[2].hidden, rows[2].heads, rows[2].kv_heads, rows[2].layers, rows[2].gated) == (6144, 48, 8, 2, False)
    assert (rows[3].hidden, rows[3].head_size, rows[3].window, rows[3].window_every) == (2880, 64, 128, 2)
    assert [rows[line].vocab for line in (2, 3)] == [256_000, 201_088]
    frame, left_out = predicted(tables[0], None)
    assert len(frame) == 2
    assert list(left_out.values()) == [1]
    assert "hidden, heads are not said, nor known of 'a-secret-15b'" in next(iter(left_out))
    problem, gated = (training_problem(msgspec.structs.replace(rows[2], gated=one))[0] for one in (False, True))
    assert gated.workload.flop() > problem.workload.flop()
    attention = {layer.scratch_elements for layer in problem.workload.layers if layer.kind == "attention"}
    assert attention == {0}  # NeMo's is fused
    assert problem.stack.name == "megatron-core"
    experts = training_problem(rows[3])[0].workload
    assert {layer.experts for layer in experts.layers} == {0, 128}
    flop = {layer.flop for layer in experts.layers if layer.kind == "attention"}
    assert len(flop) == 2  # every second block has a window


def test_columns_of_other_tables_and_memory_alone(tmp_path: Path) -> None:
    """Megatron-LM's words are known; a row of memory needs no seconds; one that measured nothing is a bad row."""
    sizes = "case,hidden,heads,kv_heads,layers,seq,micro_batch,global_batch"
    columns = f"{sizes},vpp,ffn,swiglu,sp,distributed_optimizer,measured_gib"
    lines = "gpt3_mcore,64,4,4,4,32,1,8,1,256,False,False,True,1.5", "llama,64,4,4,4,32,1,8,1,256,True,False,False,1.5"
    tables, _ = read_tables(table(tmp_path, "ci.csv", f"{columns},machine", *(f"{one},dgx-h100" for one in lines)), {})
    frame, left_out = predicted(tables[0], None)
    assert not left_out
    assert frame["what"].tolist() == ["memory"] * 2
    assert frame["measured"].tolist() == [1.5 * 2**30] * 2
    gpt, llama = (training_problem(row) for row in tables[0].rows.values() if isinstance(row, MeasuredRun))
    assert [plan.zero for _, plan in (gpt, llama)] == [1, 0]
    assert {len(problem.workload.layers) for problem, _ in (gpt, llama)} == {len(gpt[0].workload.layers)}
    assert gpt[0].workload.parameters() != llama[0].workload.parameters()
    table(tmp_path, "ci.csv", f"{columns},measured_s", "gpt,64,4,4,4,32,1,8,1,256,,,,,")
    with pytest.raises(InputError, match="one of measured_s, measured_alloc_gib"):
        read_tables(tmp_path, {})


@pytest.mark.parametrize(("kind", "line"), [(MatrixProduct, "8,8,8,1,1"), (AllReduce, "8,8,1")])
def test_sizes_are_whole_numbers_above_none(kind: type, line: str, tmp_path: Path) -> None:
    """The least and the greatest of a column are taken, what is beyond them is not."""
    names = {MatrixProduct: "m,n,k,forward_us,backward_us", AllReduce: "gpus,bytes,out_of_place_us"}[kind]
    for column in range(line.count(",") + 1):
        for value, good in (("0", False), ("-1", False), ("2", True), ("1" + "0" * 19, False)):
            cells = line.split(",")
            cells[column] = value
            table(tmp_path, "t.csv", names, ",".join(cells))
            if good:
                assert len(read_tables(tmp_path, {})[0][0].rows) == 1
            else:
                with pytest.raises(InputError, match=f"line 2: .*{names.split(',')[column]}"):
                    read_tables(tmp_path, {})


@pytest.mark.parametrize(
    ("line", "good"),
    [
        *(("2,1,0.5", True), ("1,1,0.5", False), ("2,1000000000000000,1e18", True)),
        *(("2,1000000000000001,1", False), ("2,1,1.1e18", False), ("2,1,1e-9", True)),
    ],
)
def test_collectives_of_two_devices_and_of_a_petabyte_are_the_ends(line: str, good: bool, tmp_path: Path) -> None:
    """One device has nothing to sum."""
    table(tmp_path, "t.csv", "gpus,bytes,out_of_place_us", line)
    if good:
        assert read_tables(tmp_path, {})[0]
    else:
        with pytest.raises(InputError, match="line 2"):
            read_tables(tmp_path, {})


@pytest.mark.parametrize(
    ("most", "beyond", "said"),
    [
        ({"dp": 4096, "tp": 2, "pp": 4}, {"dp": 4096, "tp": 2, "pp": 4, "cp": 2}, "32,768 devices at most, got 65,536"),
        ({"pp": 3, "interleave": 2}, {"pp": 7}, "must be at most the layers, the embedding and the head, 6; got 7"),
        (
            {"head_size": 8, "heads": 5},
            {"heads": 5},
            "hidden must be a multiple of heads, 5, where there is no head_size; got 64",
        ),
        ({"pp": 2, "layers_per_stage": "1;5"}, {"pp": 2, "layers_per_stage": "0;6"}, "of at least 1 layer"),
        ({"pp": 3, "layers_per_stage": "2;2;2"}, {"pp": 2, "layers_per_stage": "2;2;2"}, "must be 2 parts"),
        (
            {"pp": 2, "layers_per_stage": "3;3"},
            {"pp": 2, "layers_per_stage": "3;2"},
            (
                r"layers_per_stage must be 2 parts of at least 1 layer, sum 6 \(embedding and head too\); got "
                r"2, sum 5"
            ),
        ),
        ({"experts": 0, "dense_blocks": 0, "shared_intermediate": 0, "experts_per_token": 0}, {}, ""),
        ({"measured_s": 0.5}, {"measured_s": None}, "one of measured_s"),
    ],
)
def test_a_run_is_taken_to_the_ends_of_what_can_be(
    most: dict[str, object], beyond: dict[str, object], said: str
) -> None:
    """As many devices as a cluster may have, as many stages as layers, the embedding and the head; no more."""
    measured(**most)
    if said:
        with pytest.raises(ValueError, match=said):
            measured(**beyond)


@pytest.mark.parametrize(
    "cell",
    [
        *("hidden=0", "heads=0", "layers=0", "seq=0", "micro_batch=0", "global_batch=0", "measured_s=0", "tp=0"),
        *("pp=0", "dp=0", "cp=0", "ep=0", "interleave=0", "vocab=0", "kv_heads=0", "head_size=0", "intermediate=0"),
        *("window=0", "window_every=0", "experts=-1", "experts_per_token=-1", "expert_intermediate=0"),
        *("shared_intermediate=-1", "dense_blocks=-1", "nodes=0", "gpus_per_node=0", "measured_max_gib=0"),
    ],
)
def test_a_run_has_at_least_one_of_everything(cell: str, tmp_path: Path) -> None:
    """One is taken, none is not, but of experts and what belongs to them."""
    name, _, value = cell.partition("=")
    cells = {"hidden": "1", "heads": "1", "layers": "1", "seq": "1", "micro_batch": "1", "global_batch": "1"}
    for said, good in (("1" if value == "0" else "0", True), (value, False)):
        row = cells | {"measured_s": "1"} | {name: said}
        table(tmp_path, "t.csv", ",".join(row), ",".join(row.values()))
        if good:
            assert len(read_tables(tmp_path, {})[0][0].rows) == 1
        else:
            with pytest.raises(InputError, match=name):
                read_tables(tmp_path, {})


FIT = "hidden,heads,layers,seq,dp,tp,micro_batch,global_batch,measured_s,machine,precision,recompute,zero,stack,pp"


def measured_by(folder: Path, stack: str, truth: Stack) -> tuple[Path, list[float]]:
    """A table of runs whose seconds are those of a true stack, two rows that nobody can predict, and the seconds."""
    lines, seconds = [], []
    for hidden, layers, micro in [(1024, 2, 2), (1024, 3, 4), (2048, 2, 2), (2048, 3, 4), (512, 4, 4), (512, 6, 8)]:
        sizes = f"{hidden},8,{layers},512,2,1,{micro},{8 * micro}"
        run = measured(
            hidden=hidden,
            heads=8,
            layers=layers,
            seq=512,
            dp=2,
            micro_batch=micro,
            zero=1,
            global_batch=8 * micro,
            precision="bf16",
            machine="dgx-a100:1",
        )
        problem, plan = training_problem(run)
        score = Evaluations(replace(problem, stack=truth))(plan)
        assert score is not None
        seconds.append(score.iteration_seconds)
        lines.append(f"{sizes},{score.iteration_seconds!r},dgx-a100:1,bf16,none,1,{stack},1")
    lines += [lines[0].replace("dgx-a100:1", "nowhere"), lines[0].replace(",512,2,1,", ",512,2,3,")]
    return table(folder, "mine.csv", FIT, *lines) / "mine.csv", seconds


def test_a_stack_is_fitted_on_part_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the plans are fitted, the others judge; rows that no plan can say are left out; the written stack plans."""
    truth = changed_stack(load_stack("generic"), {"elementwise": 1.5, "products": 1.2}, ("ampere",))
    path, seconds = measured_by(tmp_path, "generic", truth)
    out = tmp_path / "stack.toml"
    words = [
        "study",
        "truth",
        "--fit",
        str(path),
        "--hold",
        "0.34",
        "--seed",
        "1",
        "--constants",
        "products,elementwise",
    ]
    assert main([*words, "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(document["left_out"].values()) == 2
    parts = {(row["part"], row["when"]): row for row in document["parts"]}
    assert [parts[part, "after"]["rows"] for part in ("fitted", "held out")] == [4, 2]
    for part in ("fitted", "held out"):
        assert parts[part, "after"]["mape"] < 0.02 < parts[part, "before"]["mape"]
    assert sorted(row["measured"] for row in document["rows"]) == pytest.approx(sorted(seconds))
    found = load_stack(out).elementwise
    assert dict(found.generations)["ampere"].value == pytest.approx(1.5, rel=0.15)
    assert "mean error" in dict(found.generations)["ampere"].judged[0]
    assert main([*words, "--out", str(out)]) == 0  # over the old one
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 row left out: cluster 'nowhere' is not known" in printed
    assert "elementwise 1 1.5" in printed
    assert "by the rows" in printed
    assert "no: kept" not in printed


@pytest.mark.parametrize(("times", "hold", "widened"), [(1, "0.34", True), (5, "0.67", False)])
def test_a_fitted_stack_states_the_errors_of_the_rows_held_out(
    tmp_path: Path, times: int, hold: str, widened: bool
) -> None:
    """Of seconds from the rows that judged it, with the errors that were there before where they are few; memory's stay."""
    base = load_stack("megatron-core")
    path, _ = measured_by(tmp_path, "megatron-core", base)
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *rows[:6] * times]) + "\n")  # runs of one plan stand on one side
    out = tmp_path / "fitted.toml"
    words = ["--hold", hold, "--constants", "products", "--out", str(out)]
    assert main(["study", "truth", "--fit", str(path), *words]) == 0
    fitted = load_stack(out)
    (seconds,) = [one for one in errors_of(fitted) if one.figure == "seconds"]
    assert (seconds.rows, seconds.tables, seconds.how) == (
        2 if widened else 20,
        ("mine",),
        "they were held out of the fit",
    )
    assert seconds.accelerators == ("ampere",)
    assert seconds.median == pytest.approx(1.0, abs=0.01)
    assert (seconds.low > 0.98 and seconds.high < 1.02) is not widened
    assert [one for one in errors_of(fitted) if one.figure == "memory"] == [
        one for one in errors_of(base) if one.figure == "memory"
    ]


def test_the_same_seed_holds_out_the_same_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of one plan stand on one side; a seed draws the sides; nothing held out is said."""
    path, _ = measured_by(tmp_path, "generic", load_stack("generic"))
    path.write_text(path.read_text() + path.read_text().splitlines()[1].replace(",dgx-a100:1,", "1,dgx-a100:1,") + "\n")
    sides = []
    for seed in ("1", "1", "2"):
        words = ["study", "truth", "--fit", str(path), "--seed", seed, "--constants", "products", "--json"]
        assert main(words) == 0
        sides.append({row["row"]: row["part"] for row in json.loads(capsys.readouterr().out)["rows"]})
    assert sides[0] == sides[1]
    assert len({tuple(sorted(one.items())) for one in sides}) > 1
    assert all(one["mine:2"] == one["mine:10"] for one in sides)
    assert main(["study", "truth", "--fit", str(path), "--hold", "0", "--constants", "products"]) == 0
    assert "nothing judges the constants" in capsys.readouterr().out
    few = ["--hold", "0.8", "--constants", "products,elementwise,block_pass"]
    assert main(["study", "truth", "--fit", str(path), *few]) == 0
    printed = capsys.readouterr().out
    assert re.search("(1 row|2 rows) for 3 constants: what they cannot tell apart priors decide", printed)
    assert "nothing judges the constants" not in printed


def test_bad_fits_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table that is not there, or of another kind; names that nobody knows; all rows held out; options that need --fit."""
    path, _ = measured_by(tmp_path, "generic", load_stack("generic"))
    given = ["study", "truth", "--fit", str(path)]
    assert "lost.csv: there is no such table" in refused(capsys, ["study", "truth", "--fit", "lost.csv"], 4)
    assert "--fit: table 'lost' is unknown" in refused(
        capsys, ["study", "truth", "--tables", str(tmp_path), "--fit", "lost"]
    )
    assert "is unknown" in refused(
        capsys, ["study", "truth", "--tables", str(tmp_path), "--fit", "9" * 400]
    )  # no name of a file
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    line = refused(capsys, ["study", "truth", "--tables", str(tmp_path), "--fit", "notes"], 4)
    assert f"{tmp_path / 'notes.csv'}: has none of the columns" in line
    (tmp_path / "gib.csv").write_text(
        "hidden,heads,layers,seq,micro_batch,global_batch,measured_gib,machine\n64,4,2,32,1,8,1.5,dgx-a100\n"
    )
    line = refused(capsys, ["study", "truth", "--fit", str(tmp_path / "gib.csv")], 4)
    assert f"{tmp_path / 'gib.csv'}: no row is left to fit: 0 rows, --hold 0.5" in line
    assert "--constants: constant 'speed' is unknown" in refused(capsys, [*given, "--constants", "speed"])
    assert f"{path}: no row is left to fit: 6 rows, --hold 1" in refused(capsys, [*given, "--hold", "1"], 4)
    out = str(tmp_path / "out")
    assert f"--out {out}: --fit writes a stack: the name must end in .toml" in refused(capsys, [*given, "--out", out])
    assert "--hold goes with --fit" in refused(capsys, ["study", "truth", "--tables", str(tmp_path), "--hold", "0.5"])
    toml = ["study", "truth", "--tables", str(tmp_path), "--out", f"{out}.toml"]
    assert f"--out {out}.toml: a stack is written with --fit; without it name a folder" in refused(capsys, toml)
    (tmp_path / "sums.csv").write_text("gpus,bytes,out_of_place_us\n8,1024,30\n")
    assert "sums.csv: --fit takes a table of iterations, this one has rows of another kind" in refused(
        capsys, ["study", "truth", "--fit", str(tmp_path / "sums.csv")], 4
    )


def test_tables_of_every_kind(tmp_path: Path, recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    """What is predicted of runs of two stacks, of blocks, products, sums and kernels, and every line that is printed of it."""
    table(
        tmp_path,
        "runs.csv",
        f"{RUN},framework,measured_alloc_gib,vocab,interleave,sequence_parallel,zero",
        "1024,16,4,256,1,1,1,2,4,0.05,,dgx-a100,Megatron-LM,6,8000,1,False,0",
        "1024,16,8,256,2,2,2,1,8,0.04,full,dgx-a100,Megatron-LM,4,8000,2,True,1",
        "1024,16,8,256,2,2,2,1,8,0.05,selective,dgx-a100,Megatron-LM,5,8000,1,True,1",
        "1024,16,8,256,4,1,2,2,8,0.03,full,dgx-h100,MaxText,3,8000,1,False,3",
        "1008,16,8,256,3,1,2,2,12,0.03,full,dgx-h100,MaxText,3,8000,1,False,3",
    )
    cells = "hidden,heads,seq,micro_batch,layer_forward_recompute_backward_ms,head_and_microbatch_ms,tp,vocab,machine"
    table(tmp_path, "cells.csv", cells, "2048,16,1024,2,9,3,1,8000,dgx-a100", "2048,16,1024,2,5,2,2,8000,dgx-a100")
    table(tmp_path, "products.csv", "m,n,k,forward_us,backward_us", "4096,4096,4096,500,1000", "8192,1024,64,20,60")
    sums = "operation,gpu,gpus,bytes,out_of_place_us"
    table(tmp_path, "sums.csv", sums, "all-reduce,A100,8,1048576,60", "all-gather,A100,8,67108864,400")
    kernels = "op,tflops,efficiency,m,n,k,accumulate,accelerator"
    table(tmp_path, "kernels.csv", kernels, "matmul,312,0.5,4096,4096,4096,False,a100-pcie")
    assert run_study("truth", ["--tables", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    print_document(document | {"constants": []})
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    recorded(tables=document["tables"], stacks=document["stacks"], printed=printed)


DOCUMENTED = {
    "vTrain, several servers, iteration": "vtrain_multi",
    "Llama 3.1, 16 to 2,048 H100 (`megatron-core`)": "dgxc_h100_llama",
    "GPT-3 175B, 128 to 2,048 H100 (`megatron-core`)": "dgxc_h100_gpt175b",
    "the same networks in fp8: no constant saw them": "dgxc_h100_fp8",
    "Nemotron 4 dense; Grok-1 and GPT-OSS: experts": "megatron_bridge_models",
    "MPT, A100 40 GB (`fsdp1-eager`)": "mosaic_a100_40",
    "MPT, A100 80 GB": "mosaic_a100_80",
    "MPT, H100": "mosaic_h100",
    "MPT, 64 to 512 H100": "mosaic_h100_large",
    "MPT in fp8: no constant saw them": "mosaic_h100_fp8",
    "BLOOM's trials, A100 (`megatron-deepspeed`)": "bigscience_a100",
    "the same, mended rows": "bigscience_a100_mended",
    "MaxText on TPU v6e": "tpu_recipes_v6e",
    "A64FX in fp32 (shares of vector chips)": "fugaku_a64fx",
}
"""Rows of the table of errors that one figure of one published table makes."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("label", DOCUMENTED)
def test_documented_errors_are_those_of_today(label: str, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, and mean, median, worst and signed error of seconds, as experiments/README.md says them."""
    monkeypatch.setenv("PIPEPLAN_PROFILES", str(shared_data / "measured" / "hardware"))
    (table,), _ = read_tables(shared_data / "measured", {}, only=f"{DOCUMENTED[label]}.csv")
    frame, _ = predicted(table, None)
    rows = frame[frame["what"] == "seconds"]
    off = 100 * (rows["predicted"] / rows["measured"] - 1.0)
    figures = off.abs().mean(), off.abs().median(), off.abs().max(), off.mean()
    text = (Path(__file__).resolve().parents[2] / "experiments" / "README.md").read_text(encoding="utf-8")
    (line,) = (one for one in text.splitlines() if one.startswith(f"| {label} |"))
    told = [cell.strip().removesuffix(" %").replace("−", "-") for cell in line.split("|")[2:7]]
    assert told[0] == str(len(rows))
    for said, figure in zip(told[1:], figures, strict=True):
        assert float(said) == pytest.approx(figure, abs=0.06 if "." in said else 0.6), (label, said, figure)


def test_machines_beside_the_tables_are_known_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know has no folder of his own, and one that he names stays."""
    own, beside = tmp_path / "own", tmp_path / "tables" / "hardware"
    (beside / "clusters").mkdir(parents=True)

    def nowhere(path: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(nowhere))
    monkeypatch.delenv(PROFILES, raising=False)
    with profiles_beside(beside.parent):
        assert os.environ[PROFILES] == str(beside)
    assert PROFILES not in os.environ
    monkeypatch.setenv(PROFILES, str(own))
    with profiles_beside(beside.parent):
        assert os.environ[PROFILES] == os.pathsep.join(map(str, (own, beside)))
    assert os.environ[PROFILES] == str(own)
