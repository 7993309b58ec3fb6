"""Study piper: variant files by hand, folders, and the published optima where the published inputs are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.cli import main
from experiments.piper.__main__ import SETTINGS
from experiments.piper.variant_files import VariantFile
from experiments.piper.variant_partition import _VariantSearch, down_sets, fastest_variant_plan
from experiments.studies.public_inputs import read_inputs
from experiments.terminal.output import InputError
from tests.records import Recorded, lines

INPUTS = Path(os.environ.get("PIPEPLAN_PUBLIC_INPUTS", "")) / "piper"


def variant(name: str, seconds: float, **more: Any) -> dict[str, Any]:
    """A variant of a file without transfers of its own."""
    sizes = {"parameterSize": 1.0, "memoryUsageA": 1.0, "memoryUsageB": 1.0, "syncTimeFw": {}, "syncTimeBw": {}}
    return {"id": name, "timePerSample": seconds} | sizes | more


def network(**more: Any) -> dict[str, Any]:
    """Node 7 feeds node 3, which stands before it in the file."""
    nodes = [
        {"id": 3, "TMPCs": {"1": [variant("vanilla", 4.0, syncTimeFw={"7": 1.0})]}},
        {"id": 7, "TMPCs": {"1": [variant("vanilla", 6.0, syncTimeBw={"3": 2.0})], "2": [variant("vanilla", 3.0)]}},
    ]
    edges = [{"sourceId": 7, "destId": 3, "communicationCost": 4.0}]
    machine = {"maxDevices": 2, "maxMemoryPerDevice": 9.0, "bandwidth": 10.0, "mbsInBatch": 3}
    return {**machine, "nodes": nodes, "edges": edges, **more}


def write(folder: Path, name: str, document: Any) -> None:
    """A JSON file of a folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def test_nodes_in_any_numbering(tmp_path: Path) -> None:
    """Layers are numbered by the file's order; the first stage computes 6 and sends 4 + 2 bytes there and back at rate 10."""
    write(tmp_path, "one.json", network())
    files, skipped = read_inputs(tmp_path, VariantFile)
    assert not skipped
    problem = files["one"].problem(2, 9.0, 10.0, 3)
    assert dict(problem.edges) == {(1, 0): 4.0}
    assert problem.degrees == (1, 2)
    plan = fastest_variant_plan(problem)
    assert plan is not None
    assert [stage.layers for stage in plan.stages] == [(1,), (0,)]
    assert plan.seconds_per_sample == pytest.approx(6.0 + 2 * (4 + 2) / 10)


def test_what_no_plan_can_be_within(tmp_path: Path) -> None:
    """Half of the least work of both devices, whatever is not known; without a limit there is a plan."""
    write(tmp_path, "one.json", network())
    problem = read_inputs(tmp_path, VariantFile)[0]["one"].problem(2, 9.0, 10.0, 3)
    search = _VariantSearch(problem, down_sets(len(problem.layers), list(problem.edges), 100)[0])
    assert search.nothing_within(search.even_seconds / 2)
    assert not search.nothing_within(np.inf)


def test_files_of_another_form_are_named(tmp_path: Path) -> None:
    """Folders inside are read, but for hidden ones; what has not the fields of a network is passed over."""
    write(tmp_path, "inputs/one.json", network())
    write(tmp_path, "other.json", {"nodes": [], "edges": []})
    write(tmp_path, ".git/hidden.json", network())
    (tmp_path / "notes.txt").write_text("none")
    files, skipped = read_inputs(tmp_path, VariantFile)
    assert [*files] == ["inputs/one"]
    assert skipped == ["notes.txt", "other.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"maxDevices": 0}, ">= 1"),
        ({"maxDevices": 10**9}, "<= 10000"),
        ({"nodes": []}, "length >= 1"),
        ({"nodes": [{"id": 1, "TMPCs": {"1": []}}], "edges": []}, "node 1 must have a variant"),
        (
            {"nodes": [{"id": 1, "TMPCs": {"1": [variant("a", 1), variant("a", 2)]}}], "edges": []},
            "variants of node 1 at degree 1 must have different ids",
        ),
        ({"nodes": 2 * [{"id": 1, "TMPCs": {"1": [variant("a", 1)]}}], "edges": []}, "nodes must have different ids"),
        ({"edges": 2 * [{"sourceId": 7, "destId": 3, "communicationCost": 1}]}, "different pairs of nodes"),
        ({"edges": [{"sourceId": 7, "destId": 9, "communicationCost": 1}]}, "edge 7 -> 9 must be between nodes"),
        ({"nodes": [{"id": 1, "TMPCs": {"1": [variant("a", -1)]}}], "edges": []}, ">= 0"),
    ],
)
def test_bad_networks_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """One line that names the file and the rule."""
    write(tmp_path, "one.json", network() | change)
    with pytest.raises(InputError, match=rf"one\.json: .*{words}"):
        read_inputs(tmp_path, VariantFile)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: Recorded) -> None:
    """One row a network, with its stages by the file's numbers; 4 for a folder without any, a circle, or none at all."""
    write(tmp_path, "one.json", network())
    assert main(["study", "piper", "--inputs", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["seconds_per_sample"] == pytest.approx(7.2)
    assert row["proven"]
    assert row["published"] is None
    assert row["stages"] == [
        {"tensor_parallel": 1, "data_parallel": 1, "variants": {"7": "vanilla"}},
        {"tensor_parallel": 1, "data_parallel": 1, "variants": {"3": "vanilla"}},
    ]
    assert main(["study", "piper", "--inputs", str(tmp_path)]) == 0
    printed = lines(capsys.readouterr().out, r"\b\d+\.\d{3}\b")
    recorded(printed=printed, published=[f"{key}: {told}" for key, told in SETTINGS.items()])
    (tmp_path / "empty").mkdir()
    assert main(["study", "piper", "--inputs", str(tmp_path / "empty")]) == 4
    assert main(["study", "piper", "--inputs", str(tmp_path / "none")]) == 4
    (tmp_path / "empty" / "deep.json").write_text("[" * 100_000)
    assert main(["study", "piper", "--inputs", str(tmp_path / "empty")]) == 4
    assert "deep.json:1: not usable JSON" in capsys.readouterr().err
    (tmp_path / "empty" / "deep.json").unlink()
    back = {"sourceId": 3, "destId": 7, "communicationCost": 1.0}
    write(tmp_path, "one.json", network(edges=[*network()["edges"], back]))
    assert main(["study", "piper", "--inputs", str(tmp_path)]) == 4
    assert "nodes must not stand before themselves, these do: [0, 1, 0]" in capsys.readouterr().err


@pytest.mark.skipif(not INPUTS.is_dir(), reason="no checkout piper in the folder PIPEPLAN_PUBLIC_INPUTS")
@pytest.mark.slow
def test_published_optima(capsys: pytest.CaptureFixture[str]) -> None:
    """All 11 optima of BERT-32 are met to the printed digit, and proven."""
    assert main(["study", "piper", "--inputs", str(INPUTS), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["matched"], document["failed"]) == (11, 0)
    assert all(row["proven"] for row in document["rows"] if row["published"])
