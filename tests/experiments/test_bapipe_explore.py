"""Tests of `experiments.bapipe_explore`: the rows behind the figures, the claims' sweep, and the figures themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import planners
import simulator
from experiments.bapipe_explore import exploration as bapipe_explore
from experiments.bapipe_explore.__main__ import print_document
from experiments.bapipe_explore.exploration import DEPTH_METHODS
from experiments.bapipe_explore.exploration_plots import figures, plans
from experiments.compare.comparison import Answer
from experiments.studies.catalogue import STUDIES
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.run_folder import MANIFEST, RunFolder
from hardware_profiles import load_cluster
from planners import Request, make_plan
from simulator import Problem, load_workload
from tests.chains import random_chain
from tests.drawings import drawing
from tests.experiments.commands import no_picture
from tests.layout import faults
from tests.records import Recorded, lines, weights

NETWORK = random_chain(4, np.random.default_rng(1), flop=2e9, parameters=8_000_000, output_elements=4e5, minibatch=2)
"""In place of the studies' networks."""


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    """The quick studies, run once, on a small network, two boards of the three, and GNMTs of at most 128 layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bapipe_explore, "load_workload", lambda name: NETWORK)
        patch.setattr(bapipe_explore, "board_chain", lambda names, chain=bapipe_explore.board_chain: chain(names[1:]))
        patch.setattr(bapipe_explore, "QUICK_FPGA_BATCH", 1)
        patch.setattr("planners.bapipe.explorer.GRID", 200)
        patch.setattr(bapipe_explore, "DEEPEST", 128)
        deep = {name: DEPTH_METHODS[name] for name in ("data-parallel", "pipedream", "bapipe 1F1B")}
        patch.setattr(bapipe_explore, "DEPTH_METHODS", deep)
        return bapipe_explore.measure(quick=True)


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_schedule_row_is_simulated_as_its_formula_says(quick: bool) -> None:
    """Formula and simulation agree, 1F1B-SO while SR <= (F+B)/2; so do the micro-batches kept at every stage."""
    for row in bapipe_explore.schedule_rows(quick):
        if row["schedule"] != "1F1B-SO" or row["transfer_seconds"] <= 1.5:
            assert row["simulated_seconds"] == pytest.approx(row["formula_seconds"], rel=1e-12)
        assert row["kept_simulated"] == row["kept_by_formula"]


def test_quick_studies(quick: dict[str, Any], recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    """The tables that `--quick` prints of its document."""
    print_document(quick)
    recorded(sections=list(quick), printed=lines(capsys.readouterr().out))


def test_full_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every combination, in order: devices and boards of the plans; links and memories, links and precisions of the claims."""
    monkeypatch.setattr(bapipe_explore, "load_workload", lambda name: NETWORK)
    monkeypatch.setattr(bapipe_explore, "_claim", lambda problem: {"problem": problem})
    networks, links = bapipe_explore.WORKLOADS, (0.125e9, 0.5e9, 1.25e9, 3.125e9, 12e9, 30e9)
    gpus = [(label, problem.batch) for label, problem in bapipe_explore.gpu_problems(False)]
    assert gpus == [(f"{count} V100", count * NETWORK.minibatch) for count in (2, 4, 8)] * len(networks)
    boards = [(label, len(problem.cluster.devices)) for label, problem in bapipe_explore.fpga_problems(False)]
    chains = [(f"{count} {kind}", count) for kind in ("VCU118", "VCU129") for count in (1, 2, 3, 4)]
    chains += [("2 VCU118 + 2 VCU129", 4), ("2 U280", 2), ("VCU118 + VCU129 + U280", 3)]
    assert boards == chains * len(networks)
    assert {problem.batch / len(problem.cluster.devices) for _, problem in bapipe_explore.fpga_problems(False)} == {32}
    claims = list(bapipe_explore.claim_rows())
    asked = [(row["workload"], row["bandwidth"], row["memory_gib"]) for row in claims]
    assert asked == list(product(networks, links, (16.0, 8.0, 4.0, 2.0)))
    for row in claims:
        cluster = row["problem"].cluster
        assert {link.bandwidth for link in cluster.links} == {row["bandwidth"]}
        assert [device.memory_bytes for device in cluster.devices] == [row["memory_gib"] * 2**30] * 8
    rows = list(bapipe_explore.board_rows())
    asked = [(row["workload"], row["precision"], row["bandwidth"]) for row in rows]
    assert asked == list(product(networks, ("fp32", "fp16", "int8"), (0.125e9, 1.25e9, 12.5e9, 50e9)))
    assert all(row["problem"].precision == row["precision"] for row in rows)
    assert {link.bandwidth for link in rows[-1]["problem"].cluster.links} == {50e9}
    (row,) = bapipe_explore.board_rows(quick=True)
    assert (row["precision"], row["bandwidth"], len(row["problem"].cluster.devices)) == ("fp32", 12.5e9, 2)


def test_the_deepest_network_is_found_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps of eight layers 25 fit on up to four devices: 1, 2, 4, … are tried, then halves; where nothing fits, none."""
    tried: list[int] = []

    def found(problem: Problem, planners: tuple[str], request: Request) -> list[str]:
        tried.append(sum(layer.kind == "recurrent" for layer in problem.workload.layers))
        return ["a plan"] * (planners == ("any",) and problem.batch <= 64 * 4 and tried[-1] <= 201)

    monkeypatch.setattr(bapipe_explore, "DEPTH_METHODS", {name: (name, Request()) for name in ("any", "none")})
    monkeypatch.setattr(bapipe_explore, "_outcomes", found)
    rows = [(row["method"], row["devices"], row["layers"]) for row in bapipe_explore.depth_rows()]
    deepest = {2: 200, 4: 200, 8: 0}
    assert rows == [(name, n, layers * (name == "any")) for n, layers in deepest.items() for name in ("any", "none")]
    assert (min(tried), max(tried), len(tried)) == (8, 256, 24)


def test_forwards_beside_backwards_win_where_links_are_slow() -> None:
    """Streaming over links slower than a/F: FBP-AS is faster than 1F1B-AS, and never slower where they keep up."""
    rows = {(row["schedule"], row["transfer_seconds"]): row for row in bapipe_explore.schedule_rows(quick=True)}
    assert rows["FBP-AS", 1.0]["streamed_seconds"] == rows["1F1B-AS", 1.0]["streamed_seconds"] == 33.0
    assert rows["FBP-AS", 1.5]["streamed_seconds"] < rows["1F1B-AS", 1.5]["streamed_seconds"]


def test_plans_are_compared_with_data_parallelism(quick: dict[str, Any]) -> None:
    """BaPipe's answer is never slower than the others that flush; speedup and memory are over data parallelism's plan."""
    plans = quick["plans"]
    for cluster in {row["cluster"] for row in plans}:
        seconds = {row["method"]: row["seconds"] for row in plans if row["cluster"] == cluster and row["feasible"]}
        for method in ("data-parallel", "uniform", "pipedream-flush", "bapipe pipeline"):
            assert seconds["bapipe"] <= seconds.get(method, float("inf"))
    reference = next(row for row in plans if row["method"] == "data-parallel")
    assert reference["speedup"] == reference["memory_reduction"] == 1.0


def test_splitting_layers_is_reported_with_its_price(quick: dict[str, Any]) -> None:
    """Unequal boards: boundary layers are split, and the bytes that this costs are beside the seconds that it saves."""
    row = next(row for row in quick["splits"] if "U280" in row["cluster"])
    assert row["split_layers"] >= 1
    assert row["split_seconds"] < row["whole_seconds"]
    assert row["split_bytes_per_sample"] != row["whole_bytes_per_sample"]


def test_claims_shrink_with_bandwidth(quick: dict[str, Any]) -> None:
    """Slow links leave data parallelism behind, fast ones do not; BaPipe is never slower than it."""
    slow, fast = sorted(quick["claims"], key=lambda row: float(row["bandwidth"]))
    assert slow["speedup"] >= fast["speedup"] >= 1.0 - 1e-12


def test_depth_grows_where_weights_are_divided(quick: dict[str, Any]) -> None:
    """A pipeline of two devices holds a deeper GNMT than data parallelism, which keeps it all on each."""
    layers = {row["method"]: row["layers"] for row in quick["depth"]}
    assert layers["bapipe 1F1B"] > layers["data-parallel"] > 0


def test_what_fits_nowhere_has_rows_without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cross in the figures; a search that fails is no row but an error."""
    cluster = bapipe_explore.limited(load_cluster("pipedream-b").take(2), 1e9, 0.001)
    problem = Problem(NETWORK, cluster, 8)
    assert bapipe_explore._claim(problem) == {
        "machine": "2 v100-sxm2", "data_parallel_fits": False, "bapipe_fits": False
    }  # fmt: skip
    rows = list(bapipe_explore.plan_rows("gpu", iter([("tiny", problem)])))
    assert [(section, row["method"], row["feasible"]) for section, row in rows] == [
        ("plans", method, False) for method in bapipe_explore.METHODS
    ]
    assert not any("seconds" in row for _, row in rows)
    failed = Answer("uniform", "failed", error=ValueError("no such stages"))
    monkeypatch.setattr(bapipe_explore, "ask", lambda *asked: failed)
    with pytest.raises(ValueError, match="no such stages"):
        next(bapipe_explore.plan_rows("gpu", iter([("tiny", problem)])))


@pytest.mark.parametrize(("clusters", "shape"), [(4, (1, 2)), (5, (2, 1))])
@pytest.mark.parametrize("most", [1.5, 1.7])
def test_speedups_stand_beside_or_above_each_other(clusters: int, shape: tuple[int, int], most: float) -> None:
    """Networks in a row, of more than four clusters in a column; the claim of 3.2 is drawn where plans come within half of it."""
    rows = [
        {"workload": workload, "cluster": f"{count} V100", "method": "bapipe", "speedup": most - 0.1 * count}
        for workload in ("vgg16", "gnmt8")
        for count in range(clusters)
    ]
    figure = plans(rows, "speedup", "times as fast")
    assert figure.axes[0].get_gridspec().get_geometry() == shape
    (legend,) = figure.legends
    assert ("“up to 3.2×”" in [text.get_text() for text in legend.get_texts()]) is (most > 1.6)
    levels = {1.0, 3.2} if most > 1.6 else {1.0}
    for axes in figure.axes:
        assert {line.get_ydata()[0] for line in axes.lines if len(set(line.get_ydata())) == 1} == levels


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


def test_ratios_of_seconds_are_counted(quick: dict[str, Any]) -> None:
    """Cases that both have, those where BaPipe takes longer, and the range; a method without plans has no line."""
    rows = [
        {"study": "gpu", "workload": "w", "cluster": cluster, "method": method, "seconds": seconds}
        for cluster, method, seconds in (
            ("a", "bapipe", 2.0), ("a", "uniform", 3.0), ("b", "bapipe", 2.0), ("b", "uniform", 1.0),
            ("c", "bapipe", 2.0), ("c", "uniform", None), ("d", "uniform", 9.0),
        )
    ]  # fmt: skip
    assert bapipe_explore.never_slower(rows) == [
        "BaPipe against uniform: 2 cases, slower in 1, 0.5 to 1.5 times as fast"
    ]
    assert all("slower in 0" in line for line in bapipe_explore.never_slower(quick["plans"]))


def full() -> dict[str, Any]:
    """Rows of the full studies' shape: three networks, eleven chains, two memories, six bandwidths."""
    chains = [f"{n} {kind}" for kind in ("VCU118", "VCU129") for n in range(1, 5)] + ["2 VCU118 + 2 VCU129", "2 U280"]
    clusters = [("gpu", f"{n} V100") for n in (2, 4, 8)] + [("fpga", chain) for chain in chains]
    plans = [
        {"study": study, "workload": workload, "cluster": cluster, "method": method}
        | ({"speedup": 0.4 + place, "peak_bytes": 2e9 * (place + 1)} if (number + place) % 5 else {})
        for workload in bapipe_explore.WORKLOADS
        for number, (study, cluster) in enumerate(clusters)
        for place, method in enumerate(bapipe_explore.METHODS)
    ]
    gains = {"speedup": 5.2, "memory_reduction": 0.96, "most_memory_reduction": 17.3}
    swept = [
        {"workload": workload, "bandwidth": bandwidth, "memory_gib": memory, "precision": f"p{memory:g}"}
        | {"machine": "4 v100-sxm2", "bapipe_fits": True, "leanest_speedup": 0.0356, **(gains if memory > 4.0 else {})}
        for workload in bapipe_explore.WORKLOADS
        for bandwidth in (0.125e9, 0.5e9, 1.25e9, 3.125e9, 12e9, 30e9)
        for memory in (16.0, 4.0)
    ]
    depth = [
        {"method": method, "devices": n, "layers": 8 * n * (place + 9)}
        for n in (2, 4, 8)
        for place, method in enumerate(DEPTH_METHODS)
    ]
    return {"schedules": bapipe_explore.schedule_rows(), "plans": plans, "claims": swept, "depth": depth}


@pytest.mark.parametrize("shape", ["quick", pytest.param("full", marks=pytest.mark.slow)])
def test_figures_can_be_read(
    shape: str, quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    """Every figure, as small as it gets, and whole with the words of an interrupt: nothing clipped or crossed, axes named,
    legends told apart in grey."""
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(simulator, "save", lambda figure, path: drawn.setdefault(path.name, figure) and ())
    boards = [{**row, "bandwidth": bandwidth} for row in quick["boards"] for bandwidth in (12.5e9, 1e9)]
    found = {**quick, "boards": boards} if shape == "quick" else {**full(), "interrupted": True}
    Findings(found, print, figures).end(RunFolder(tmp_path, "x"), True)
    names = set(STUDIES["bapipe-explore"].figures) - set(STUDIES["bapipe-explore"].not_quick)
    assert set(dict(figures(quick))) == names
    assert set(drawn) == names | ({"boards"} if shape == "quick" else set())
    for name, figure in drawn.items():
        assert not faults(figure), name
        assert ("INTERRUPTED" in figure.get_suptitle()) is (shape == "full")
    if shape == "quick":
        whole = {name: drawing(drawn.pop(name)) for name in ("schedules", "depth")}
        recorded(**whole, **{name: weights(drawing(figure)) for name, figure in drawn.items()})


def test_an_interrupted_run_keeps_its_rows_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An interrupt during the plans: exit code 130, the schedules are written, the document and the tables are marked."""

    def stopped(study: str, problems: object) -> Iterator[tuple[str, bapipe_explore.Row]]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(simulator, "save", no_picture)
    monkeypatch.setattr(bapipe_explore, "plan_rows", stopped)
    assert run_study("bapipe-explore", ["--quick", "--json", "--out", str(tmp_path)]) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["interrupted"] is True
    assert (len(document["schedules"]), document["plans"]) == (20, [])
    assert json.loads((tmp_path / "explore.json").read_text()) == document
    assert {path.name for path in tmp_path.iterdir()} == {"explore.json", "schedules.png", "schedules.svg", MANIFEST}
    Findings(document, print_document).end(None, False)
    assert "INTERRUPTED" in capsys.readouterr().out
    monkeypatch.setattr(bapipe_explore, "schedule_rows", lambda quick: stopped("", ()))
    assert run_study("bapipe-explore", ["--quick"]) == 130
    assert capsys.readouterr().out == ""


def test_a_search_that_was_interrupted_ends_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that returns its best so far is asked again by nobody: its plan is not a row."""
    problem = Problem(load_workload("alexnet"), load_cluster("pipedream-b").take(2), 8)
    found = make_plan("data-parallel", problem)
    monkeypatch.setattr(planners, "plan_by", lambda *given, seed: replace(found, interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        next(bapipe_explore.plan_rows("gpu", iter([("2 V100", problem)])))


def test_a_plan_is_compared_with_a_reference_where_one_fits() -> None:
    """Of seconds and of peaks how many times as good; nothing where no reference fits."""
    problem = Problem(random_chain(4, np.random.default_rng(0)), load_cluster("pipedream-a").take(2), 4)
    own, other = (make_plan(name, problem).outcome for name in ("uniform", "data-parallel"))
    told = bapipe_explore._plan_row(problem, "own", own, other)
    assert told["speedup"] == other.iteration_seconds / own.iteration_seconds
    assert told["memory_reduction"] == other.fullest.peak_bytes / own.fullest.peak_bytes
    alone = bapipe_explore._plan_row(problem, "own", own, None)
    assert (alone["speedup"], alone["memory_reduction"]) == (None, None)
