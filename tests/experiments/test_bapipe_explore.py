"""Tests of `experiments.bapipe_explore`: the rows behind the figures, the claims' sweep, and the figures themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import bapipe_explore
from experiments.bapipe_explore_plots import draw_all
from hardware_profiles import load_cluster
from simulator import Problem, load_workload


@pytest.fixture(scope="module")
def quick() -> dict[str, list[bapipe_explore.Row]]:
    """The quick studies, run once."""
    return bapipe_explore.run(quick=True)


def test_every_schedule_row_is_simulated_as_its_formula_says() -> None:
    """Formula and simulation agree, 1F1B-SO while SR <= (F+B)/2; so do the micro-batches kept at every stage."""
    for row in bapipe_explore.schedule_rows():
        if row["schedule"] != "1F1B-SO" or row["transfer_seconds"] <= 1.5:
            assert row["simulated_seconds"] == pytest.approx(row["formula_seconds"], rel=1e-12)
        assert row["kept_simulated"] == row["kept_by_formula"]


def test_forwards_beside_backwards_win_where_links_are_slow() -> None:
    """Streaming over links slower than a/F: FBP-AS is faster than 1F1B-AS, and never slower where they keep up."""
    rows = {(row["schedule"], row["transfer_seconds"]): row for row in bapipe_explore.schedule_rows(quick=True)}
    assert rows["FBP-AS", 1.0]["streamed_seconds"] == rows["1F1B-AS", 1.0]["streamed_seconds"] == 33.0
    assert rows["FBP-AS", 1.5]["streamed_seconds"] < rows["1F1B-AS", 1.5]["streamed_seconds"]


def test_plans_are_compared_with_data_parallelism(quick: dict[str, list[bapipe_explore.Row]]) -> None:
    """BaPipe's answer is never slower than the others that flush; speedup and memory are over data parallelism's plan."""
    plans = quick["plans"]
    for cluster in {row["cluster"] for row in plans}:
        seconds = {row["method"]: row["seconds"] for row in plans if row["cluster"] == cluster and row["feasible"]}
        for method in ("data-parallel", "uniform", "pipedream-flush", "bapipe pipeline"):
            assert seconds["bapipe"] <= seconds.get(method, float("inf"))
    reference = next(row for row in plans if row["method"] == "data-parallel")
    assert reference["speedup"] == reference["memory_reduction"] == 1.0


def test_splitting_layers_is_reported_with_its_price(quick: dict[str, list[bapipe_explore.Row]]) -> None:
    """Unequal boards: boundary layers are split, and the bytes that this costs are beside the seconds that it saves."""
    row = next(row for row in quick["splits"] if "U280" in row["cluster"])
    assert row["split_layers"] >= 1
    assert row["split_bytes_per_sample"] != row["whole_bytes_per_sample"]


def test_claims_shrink_with_bandwidth(quick: dict[str, list[bapipe_explore.Row]]) -> None:
    """Slow links leave data parallelism behind, fast ones do not; BaPipe is never slower than it."""
    slow, fast = sorted(quick["claims"], key=lambda row: float(row["bandwidth"]))
    assert slow["speedup"] >= fast["speedup"] >= 1.0 - 1e-12


def test_depth_grows_where_weights_are_divided(quick: dict[str, list[bapipe_explore.Row]]) -> None:
    """A pipeline of two devices holds a deeper GNMT than data parallelism, which keeps it all on each."""
    layers = {row["method"]: row["layers"] for row in quick["depth"]}
    assert layers["bapipe 1F1B"] > layers["data-parallel"] > 0


def test_limits_are_put_on_every_device_and_link() -> None:
    """A limited cluster keeps its shape."""
    cluster = bapipe_explore.limited(load_cluster("pipedream-b").take(4), 1e9, 2.0)
    assert {link.bandwidth for link in cluster.links} == {1e9}
    assert {device.memory_bytes for device in cluster.devices} == {2.0 * 2**30}


def test_boards_of_different_kinds_form_a_chain() -> None:
    """Three boards have two links, and a problem on them can be stated."""
    cluster = bapipe_explore.board_chain(["vcu118", "vcu129", "u280"])
    assert (len(cluster.devices), len(cluster.links)) == (3, 2)
    assert Problem(load_workload("vgg16"), cluster, 3).cluster.name == "vcu118-vcu129-u280"


def test_figures_are_drawn(quick: dict[str, list[bapipe_explore.Row]], tmp_path: Path) -> None:
    """Every figure is written as PNG and SVG."""
    written = draw_all(quick, tmp_path)
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()}
    assert {"schedules.png", "gpu-speedup.png", "fpga-memory.svg", "claims.png", "boards.png", "depth.png"} <= {
        path.name for path in written
    }


def test_json_is_one_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the studies by name and nothing else."""
    monkeypatch.setattr(bapipe_explore, "run", lambda quick: {"schedules": bapipe_explore.schedule_rows(quick)})
    assert bapipe_explore.main(["--quick", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"schedules"}
