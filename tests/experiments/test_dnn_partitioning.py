"""Study dnn-partitioning: graph files by hand, folders, and the published loads where the published graphs are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import experiments.dnn_partitioning.__main__ as study
from experiments.cli import main
from experiments.dnn_partitioning.__main__ import FOLDER, PUBLISHED
from experiments.dnn_partitioning.graph_files import OperatorGraph
from experiments.studies.public_inputs import read_inputs
from experiments.terminal.output import InputError
from planners import PlacementProblem, least_largest_load
from planners.partitioning.largest_load import PlacedParts
from tests.records import Recorded, lines

INPUTS = Path(os.environ.get("PIPEPLAN_PUBLIC_INPUTS", "")) / "dnn-partitioning" / "throughput-inputs"


def node(number: int, seconds: float, color: int | None = None, backward: bool = False, **more: Any) -> dict[str, Any]:
    """A node of a file, ten times slower on the host."""
    said = {"id": number, "supportedOnFpga": 1, "cpuLatency": 10 * seconds, "fpgaLatency": seconds}
    said |= {"isBackwardNode": backward} | ({} if color is None else {"colorClass": color})
    return {**said, "size": 1.0, **more}


def graph(nodes: list[dict[str, Any]], edges: list[tuple[int, int, float]], **more: Any) -> dict[str, Any]:
    """A file's object, for two accelerators and a core of the host."""
    sent = [{"sourceId": a, "destId": b, "cost": cost} for a, b, cost in edges]
    return {"maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": sent, **more}


def write(folder: Path, name: str, document: Any) -> None:
    """A JSON file of a folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def read(tmp_path: Path, document: Any) -> OperatorGraph:
    """The one graph of a folder."""
    write(tmp_path, "one.json", document)
    return read_inputs(tmp_path, OperatorGraph, FOLDER)[0]["one"]


TRAINING = graph(
    [node(7, 2.0, 1), node(3, 3.0, 2), node(5, 4.0, 2, True), node(4, 5.0, 1, True)],
    [(7, 3, 1.0), (3, 5, 9.0), (5, 4, 0.5)],
)
"""Forward 7 -> 3, backward 5 -> 4, each pair of one colour."""


def test_nodes_without_a_size_hold_nothing(tmp_path: Path) -> None:
    """Beside one that does."""
    bare = {name: value for name, value in node(1, 2.0).items() if name != "size"}
    assert sorted(read(tmp_path, graph([bare, node(2, 3.0)], [(1, 2, 0.0)])).problem("sum", 0).held_bytes) == [0.0, 1.0]


def test_forward_and_backward_of_a_colour_are_one_unit(tmp_path: Path) -> None:
    """Units of 2 + 5 and 3 + 4 seconds, in forward order; what stays inside one is not sent; two devices: 7 + 1 + 0.5."""
    problem = read(tmp_path, TRAINING).problem("sum", 0)
    assert problem.classes[0].seconds.tolist() == [7.0, 7.0]
    assert problem.edges == ((0, 1),)
    assert problem.held_bytes.tolist() == [2.0, 2.0]
    found = least_largest_load(problem)
    assert found is not None
    assert found.largest_load == 8.5


def test_backward_classes_alone_are_ordered_by_their_edges_turned_round(tmp_path: Path) -> None:
    """A backward node without a forward one stands, in the order of the parts, before those that it receives from."""
    nodes = [node(1, 1.0, 1), node(2, 1.0, 2), node(3, 1.0, 2, True), node(4, 1.0, 3, True), node(5, 1.0, 1, True)]
    problem = read(tmp_path, graph(nodes, [(1, 2, 1.0), (3, 4, 1.0), (4, 5, 1.0)])).problem("sum", 0)
    assert problem.edges == ((0, 1), (2, 1), (0, 2))


def test_classes_in_a_circle_are_one_unit(tmp_path: Path) -> None:
    """Colours 1 and 2 each stand before the other: they are placed together."""
    nodes = [node(1, 1.0, 1), node(2, 2.0, 2), node(3, 4.0, 1), node(4, 8.0)]
    problem = read(tmp_path, graph(nodes, [(1, 2, 1.0), (2, 3, 1.0), (3, 4, 1.0)])).problem("sum", 1)
    assert [one.seconds.tolist() for one in problem.classes] == [[7.0, 8.0], [70.0, 80.0]]


def test_a_node_that_accelerators_do_not_support_goes_to_the_host(tmp_path: Path) -> None:
    """`supportedOnFpga` 0: the unit's seconds there are infinite."""
    nodes = [node(1, 1.0, supportedOnFpga=0), node(2, 1.0)]
    found = least_largest_load(read(tmp_path, graph(nodes, [(1, 2, 1.0)])).problem("sum", 1))
    assert found is not None
    assert [part.device_class for part in found.parts] == [1, 0]


def test_folders(tmp_path: Path) -> None:
    """Folders inside are read, files of another form named; of the whole repository the throughput inputs alone."""
    write(tmp_path, "LayerGraphs/a.json", TRAINING)
    write(tmp_path, "human-experts/b.json", {"cpus": [], "fpgas": []})
    assert [*read_inputs(tmp_path, OperatorGraph, FOLDER)[0]] == ["LayerGraphs/a"]
    assert read_inputs(tmp_path, OperatorGraph, FOLDER)[1] == ["human-experts/b.json"]
    write(tmp_path, "throughput-inputs/OperatorGraphs/c.json", TRAINING)
    graphs, skipped = read_inputs(tmp_path, OperatorGraph, FOLDER)
    assert [*graphs] == ["OperatorGraphs/c"]
    assert skipped == ["LayerGraphs/a.json", "human-experts/b.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"maxFPGAs": 0, "maxCPUs": 0}, "there must be a device"),
        ({"nodes": []}, "length >= 1"),
        ({"nodes": [node(1, 1.0), node(1, 1.0)], "edges": []}, "nodes must have different ids"),
        ({"edges": [{"sourceId": 7, "destId": 99, "cost": 1.0}]}, "edge 7 -> 99 must be between nodes of the file"),
        ({"nodes": [node(1, -1.0)], "edges": []}, ">= 0"),
    ],
)
def test_bad_graphs_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """One line that names the file and the rule."""
    with pytest.raises(InputError, match=rf"one\.json: .*{words}"):
        read(tmp_path, TRAINING | change)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: Recorded) -> None:
    """A row for each rule with and without the host's core; 4 for a folder without graphs, or none at all."""
    write(tmp_path, "one.json", TRAINING)
    assert main(["study", "dnn-partitioning", "--inputs", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {(row["host_cores"], row["rule"]): row for row in document["rows"]}
    assert {key: row["largest_load"] for key, row in rows.items()} == {
        (1, "sum"): 8.5,
        (1, "max"): 7.0,
        (0, "sum"): 8.5,
        (0, "max"): 7.0,
    }
    assert all(row["proven"] and row["gap"] == 0.0 and row["published"] is None for row in document["rows"])
    assert main(["study", "dnn-partitioning", "--inputs", str(tmp_path)]) == 0
    printed = lines(capsys.readouterr().out, r"\b\d+\.\d{3}\b")
    recorded(printed=printed, published=[f"{key}: {told}" for key, told in PUBLISHED.items()])
    (tmp_path / "empty").mkdir()
    assert main(["study", "dnn-partitioning", "--inputs", str(tmp_path / "empty")]) == 4
    assert main(["study", "dnn-partitioning", "--inputs", str(tmp_path / "none")]) == 4


def test_an_interrupt_keeps_the_rows_so_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that are done are printed, and marked as not all; exit code 130."""
    write(tmp_path, "one.json", TRAINING)
    calls = iter(range(9))

    def interrupted(problem: PlacementProblem) -> PlacedParts | None:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return least_largest_load(problem)

    monkeypatch.setattr(study, "least_largest_load", interrupted)
    assert main(["study", "dnn-partitioning", "--inputs", str(tmp_path), "--json"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["interrupted"]
    assert len(document["rows"]) == 2  # the first call compiles


@pytest.mark.skipif(not INPUTS.is_dir(), reason="no checkout dnn-partitioning in the folder PIPEPLAN_PUBLIC_INPUTS")
@pytest.mark.slow
def test_published_loads(capsys: pytest.CaptureFixture[str]) -> None:
    """Every load that the published program prints is met to the digit, and proven."""
    assert main(["study", "dnn-partitioning", "--inputs", str(INPUTS), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["matched"], document["failed"]) == (28, 0)
    assert all(row["proven"] for row in document["rows"])
