"""Recorded runs of PipeDream's optimizer planned again; growth of the partitioner."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import pipedream_optimizer
from experiments.benchmarks import partitioner_growth, timing
from experiments.benchmarks.partitioner_growth import (
    growth_exponent,
    growth_exponents,
    inception_like,
    measure,
    random_chain,
)
from experiments.benchmarks.pipedream_growth import print_document
from experiments.pipedream_optimizer import RecordedLevel, RecordedRun, RecordedStage, read_runs
from experiments.studies.study_harness import run_study
from planners import HierarchicalPartition, LevelStage, measured_table, network_levels, plan_seconds
from simulator import Layer, Workload, antichain_states
from tests.experiments.commands import refused
from tests.records import Recorded, lines, ticking

# Two layers of 4 and 2 s and no weights; the tensor between them is 5 bytes.
PROFILE = """\
node1 -- Linear(in_features=1, out_features=1, bias=True) -- \
forward_compute_time=1000.000, backward_compute_time=3000.000, activation_size=8.000, parameter_size=0.000
node2 -- Linear(in_features=1, out_features=1, bias=True) -- \
forward_compute_time=1000.000, backward_compute_time=1000.000, activation_size=8.000, parameter_size=0.000
\tnode1 -- node2
"""
ROW: dict[str, object] = {
    "profile": "two",
    "states": 2,
    "workers_per_level": [2],
    "bandwidth_bytes_per_s": [16.0],
    "activation_ratio": 1,
    "straight": True,
    "memory_constraint_bytes": None,
    "slowest_stage_seconds": 4.0,
    "dp_speedup_over_one": 2.0,
    "levels_top_first": [
        {
            "level": 1,
            "stages": [
                {"states": [0, 1], "compute_seconds": 4.0, "workers": 1},
                {"states": [1, 2], "compute_seconds": 2.0, "workers": 1},
            ],
        }
    ],
    "script_wall_seconds": 1.0,
}


def run(folder: Path, rows: list[dict[str, object]], *options: str) -> int:
    (folder / "two.txt").write_text(PROFILE)
    (folder / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_study("pipedream-optimizer", ["--runs", str(folder / "runs.jsonl"), "--profiles", str(folder), *options])


def test_a_right_row_is_matched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4 s and 2 s on 2 workers, straight: 4 s; exit 0, and the plan is equal."""
    assert run(tmp_path, [ROW], "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["matched"], result["failed"]) == (1, 0)
    assert result["rows"][0]["plan"] == "equal"
    assert result["rows"][0]["speedup_over_script"] > 0


@pytest.mark.parametrize(
    "change",
    [
        {"slowest_stage_seconds": 4.0 * (1 + 2e-6)},
        {"states": 3},
        {"levels_top_first": [{"level": 1, "stages": [{"states": [0, 2], "compute_seconds": 6.0, "workers": 1}]}]},
        {"memory_constraint_bytes": 1.0},
    ],
)
def test_a_wrong_row_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object]) -> None:
    """Other seconds, states, a slower plan or one that no device can hold: the row fails, and exit is 1."""
    assert run(tmp_path, [ROW, ROW | change], "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["matched"], result["failed"]) == (1, 1)


DIAMOND = Workload(
    "diamond",
    tuple(
        Layer(name, "linear", 0.0, weights, size, size, 1, ((1, seconds / 4, seconds * 3 / 4),))
        for name, seconds, size, weights in (
            ("a", 1.0, 1.0, 500),
            ("b", 2.0, 2.0, 9),
            ("c", 4.0, 3.0, 3),
            ("d", 8.0, 1.0, 7),
        )
    ),
    ((0, 1), (0, 2), (1, 3), (2, 3)),
    minibatch=1,
    bytes_per_element=4,
)
"""Five states: a, ab, ac, abc, abcd; a program may as well number ac before ab."""

STATES = measured_table(DIAMOND)
CUTS: dict[str, tuple[tuple[int, ...], list[list[tuple[int, int, int]]]]] = {
    "three stages": ((3,), [[(0, 2, 1), (2, 4, 1), (4, 5, 1)]]),
    "replicas": ((3,), [[(0, 2, 2), (2, 5, 1)]]),
    "two levels": ((2, 2), [[(0, 1, 1), (1, 2, 1), (2, 4, 1), (4, 5, 1)], [(0, 2, 1), (2, 5, 1)]]),
    "replicas of a pipeline": ((2, 2), [[(0, 2, 1), (2, 5, 1)], [(0, 5, 2)]]),
}
"""Workers a level, lowest first, and stages [start, stop) with their workers, cut behind ab."""


@pytest.mark.parametrize("transfers", [False, True], ids=["hidden", "visible"])
@pytest.mark.parametrize("name", CUTS)
def test_a_plan_is_known_under_any_numbering(name: str, transfers: bool) -> None:
    """The plan itself; as good a plan; the same plan where ab and ac change their numbers; and none of these if it is slower by
    more than a millionth, or its seconds are off by more than their rounding."""
    workers, levels = CUTS[name]
    bandwidths = (16.0, 4.0)[: len(workers)]
    own = [[LevelStage(*stage) for stage in level] for level in levels]
    cost = plan_seconds(
        STATES, own, network_levels(workers, bandwidths), variant="script", activation_transfers=transfers
    )

    def verdict(exchanged: bool, goal: float, off: float = 0.0, alike: bool = False) -> str:
        number = {-1: 0, 0: 1, 1: 3 if exchanged else 2, 2: 2 if exchanged else 3, 3: 4, 4: 5}
        seconds = pipedream_optimizer._seconds
        recorded = tuple(
            RecordedLevel(
                tuple(
                    RecordedStage((number[a - 1], number[b - 1]), seconds(STATES, a - 1, b - 1) + off, count)
                    for a, b, count in level
                )
            )
            for level in reversed(levels)
        )
        known = RecordedRun(
            "diamond", 5, workers, bandwidths, False, cost, 1.0, recorded, 1.0, 1.0 if transfers else None
        )
        found = HierarchicalPartition.__new__(HierarchicalPartition)
        object.__setattr__(found, "levels", tuple(map(tuple, own)) if alike else ())
        object.__setattr__(found, "slowest_stage_seconds", goal)
        return pipedream_optimizer._compare(known, STATES, found)

    assert verdict(False, cost, alike=True) == "equal"
    assert verdict(False, cost) == "equally good"
    assert verdict(True, cost) == "renumbered"
    assert verdict(True, cost * (1 - 5e-7)) == "renumbered"
    for exchanged in (False, True):
        assert verdict(exchanged, cost * (1 - 2e-6)) == "worse"
        assert verdict(exchanged, cost, off=4.9e-5) in ("equally good", "renumbered")
        assert verdict(exchanged, cost, off=5.1e-5) == "worse"
        assert verdict(exchanged, cost, off=-5.1e-5) == "worse"


def test_tolerance_is_a_millionth(tmp_path: Path) -> None:
    """Seconds off by half a millionth still match."""
    assert run(tmp_path, [ROW | {"slowest_stage_seconds": 4.0 * (1 + 5e-7)}]) == 0


def test_no_row_waits_for_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small search has run when the clock of the first row begins."""
    began: list[str] = []
    tick, search = ticking(1e-3), pipedream_optimizer.partition

    def clock() -> float:
        began.append("clock")
        return float(tick())

    def searched(*given: Any, **options: Any) -> Any:
        began.append("search")
        return search(*given, **options)

    monkeypatch.setattr(pipedream_optimizer, "time", SimpleNamespace(perf_counter=clock, process_time=clock))
    monkeypatch.setattr(pipedream_optimizer, "partition", searched)
    assert run(tmp_path, [ROW]) == 0
    assert began[:2] == ["search", "clock"]
    assert began.count("search") == 2


def test_document_and_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    """A row that is right, one with a millionth too much, one without a plan, one whose tensors are eight times as large
    and one whose tensors take no time: JSON, and the table without it.

    Spans of the wall clock are 1, 2, 3, … ms in turn, those of the processor's clock ten times as long.
    """
    rows = [ROW, ROW | {"slowest_stage_seconds": 4.0 * (1 + 5e-7)}, ROW | {"memory_constraint_bytes": 1.0}]
    rows += [ROW | {"activation_ratio": 0.125}, ROW | {"activation_ratio": None}]
    monkeypatch.setenv("COLUMNS", "250")
    found = []
    for words in (["--json"], []):
        clock = SimpleNamespace(perf_counter=ticking(1e-3), process_time=ticking(1e-2))
        monkeypatch.setattr(pipedream_optimizer, "time", clock)
        assert run(tmp_path, rows, *words) == 1
        found.append(capsys.readouterr().out)
    document = json.loads(found[0])
    for row in document["rows"][:2]:
        expected = row["script_wall_seconds"] / (row["planning_seconds"] + row["table_seconds"])
        assert row["speedup_over_script"] == pytest.approx(expected)
    recorded(printed=lines(found[1]))


RECORD = "must be a recorded run as a JSON object"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ": "),
        ("not json\n", f":1: {RECORD}: :1: not JSON"),
        ("[1]\n", f":1: {RECORD}: Expected `object`, got `array`"),
        ("\n\n{}\n", ":3: "),
        (json.dumps(ROW | {"straight": "no"}) + "\n", ":1"),
        (
            json.dumps(ROW) + "\n" + json.dumps(ROW | {"levels_top_first": []}),
            f":2: {RECORD}: levels_top_first must have 1 levels, got 0",
        ),
        (json.dumps(ROW | {"slowest_stage_seconds": 0.0}), ":1"),
        (json.dumps(ROW | {"dp_speedup_over_one": 0}), ":1"),
    ],
)
def test_bad_files_are_one_line_and_exit_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    """Empty, no JSON, other JSON, missing keys, wrong types, no seconds; the line is named."""
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    words = ["study", "pipedream-optimizer", "--runs", str(path), "--profiles", str(tmp_path)]
    assert refused(capsys, words, 4).startswith(f"pipeplan study pipedream-optimizer: {path}{line}")


def test_missing_files_and_folders_are_exit_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No runs, a folder as runs, no profile."""
    (tmp_path / "runs.jsonl").write_text(json.dumps(ROW))
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9")
    for name, said in (
        ("absent", "absent: must be a readable text file: No such file or directory"),
        ("", f"{tmp_path.name}: must be a readable text file: Is a directory"),
        ("latin.jsonl", "latin.jsonl: must be a readable text file: 'utf-8' codec can't decode byte 0xe9"),
        ("runs.jsonl", ""),
    ):
        words = ["study", "pipedream-optimizer", "--runs", str(tmp_path / name), "--profiles", str(tmp_path)]
        assert said in refused(capsys, words, 4)


def test_every_recorded_run_is_matched(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All 55 recorded runs of the official optimizer, on five profiles."""
    runs = shared_data / "pipedream_optimizer_runs.jsonl"
    assert len(read_runs(runs)) == 55
    words = ["--runs", str(runs), "--profiles", str(shared_data / "pipedream_profiles"), "--json"]
    assert run_study("pipedream-optimizer", words) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["matched"], result["failed"]) == (55, 0)
    assert max(abs(row["relative_error"]) for row in result["rows"]) < 1e-12
    assert max(abs(row["data_parallel_relative_error"]) for row in result["rows"]) < 1e-12


def test_synthetic_networks(recorded: Recorded) -> None:
    """Layers and edges of the chain and of the branching graph, drawn from seeds."""
    recorded(
        **{
            network.name: {
                "layers": [
                    [layer.parameters, layer.output_elements, layer.stashed_elements, *layer.measured[0]]
                    for layer in network.layers
                ],
                "edges": [list(edge) for edge in network.edges],
            }
            for network in (random_chain(3), random_chain(3, seed=1), inception_like(), inception_like(2, seed=1))
        }
    )


def test_inception_like_graph_has_branches() -> None:
    """With a layer a convolution its states are the sum over modules: far more than layers, far fewer than with three."""
    graph = inception_like()
    states = antichain_states(graph)
    assert len(states) == 1205
    assert len(graph.layers) == 118
    assert len(antichain_states(random_chain(30))) == 30


@pytest.mark.slow
def test_growth_is_measured_and_drawn(
    tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every study has rows of both forms, and the figure is written as PNG and SVG; what the full studies ask.

    Spans of the clock are 1, 2, 3, … ms in turn, so that the first of three repeats is the least; memory is 2,048 KiB.
    """
    memory = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: SimpleNamespace(ru_maxrss=2048))
    monkeypatch.setitem(sys.modules, "resource", memory)
    monkeypatch.setattr(timing, "time", SimpleNamespace(process_time=ticking(1e-3)))
    rows = measure(quick=True)
    studies = {"states, flat", "states, two levels", "workers, flat", "levels", "graph"}
    assert {(row["study"], row["variant"]) for row in rows} == {(s, v) for s in studies for v in ("paper", "script")}
    asked = []
    monkeypatch.setattr(
        partitioner_growth, "_row", lambda study, workload, *more: asked.append([study, workload.name, *more])
    )
    measure()
    monkeypatch.setattr("experiments.benchmarks.pipedream_growth.measure", lambda quick: rows)
    monkeypatch.setenv("COLUMNS", "120")
    assert run_study("pipedream-growth", ["--out", str(tmp_path)]) == 0
    recorded(asked=asked, printed=lines(capsys.readouterr().out))
    assert run_study("pipedream-growth", ["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["growth_exponents"].keys() == {
        f"{study}, {variant}" for study in sorted(studies)[2:] for variant in ("paper", "script")
    }
    assert (tmp_path / "pipedream_growth.png").stat().st_size > 10_000
    assert (tmp_path / "pipedream_growth.svg").stat().st_size > 10_000


def test_a_search_is_a_row() -> None:
    """Of four layers on two levels of two workers; many like levels are a power."""
    row = partitioner_growth._row("levels", random_chain(4), (2, 2), "paper")
    told = {name: row[name] for name in ("study", "states", "shape", "workers", "levels", "variant")}
    assert told == {"study": "levels", "states": 4, "shape": "2×2", "workers": 4, "levels": 2, "variant": "paper"}
    shapes = {"16": (16,), "4×4×4": (4, 4, 4), "2^6": (2,) * 6, "2×2×2×4": (2, 2, 2, 4)}
    assert [partitioner_growth.shape(workers) for workers in shapes.values()] == [*shapes]


def test_growth_is_told_by_study_and_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds to the powers 1 to 6 of states, the last two of square roots of workers, each by its own rows."""
    kinds = [
        (study, form)
        for study in ("states, flat", "states, two levels", "workers, flat")
        for form in ("paper", "script")
    ]
    rows = [
        dict(zip(("study", "variant"), kind, strict=True))
        | {"states": 10 * size, "workers": 3 * size**2, "shape": "16", "search_cpu_seconds": 1.0 * size**power}
        | {"table_cpu_seconds": 0.25, "peak_memory_bytes": 3 * 2**20}
        for power, kind in enumerate(kinds, 1)
        for size in (1, 2)
    ]
    found = growth_exponents(rows)
    powers = (1.0, 2.0, 3.0, 4.0, 2.5, 3.0)
    assert found == pytest.approx({", ".join(kind): power for kind, power in zip(kinds, powers, strict=True)})
    print_document({"rows": rows, "growth_exponents": found})
    printed = lines(capsys.readouterr().out)
    assert printed[-1] == "workers, flat, script: CPU seconds grow as the power 3.0 at the largest sizes"
    assert any(one.split() == ["states,", "flat", "20", "16", "paper", "0.2500", "2.0000", "3"] for one in printed)


def test_growth_exponent_is_the_slope() -> None:
    """Twice the states, eight times the seconds: power 3."""
    rows = [{"states": 10, "search_cpu_seconds": 1.0}, {"states": 20, "search_cpu_seconds": 8.0}]
    assert growth_exponent(rows, "states") == pytest.approx(3)
