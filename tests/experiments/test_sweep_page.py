"""Pages of sweeps: what is said of every row, which figures there are, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.sweep import sweep_page
from experiments.sweep.study import FIGURES
from experiments.sweep.sweep_page import columns_of, layout, sweep_html
from experiments.sweep.swept import Swept
from experiments.view.page_frame import document
from tests.drawings import models
from tests.experiments.commands import refused
from tests.records import Recorded

pytest.importorskip("bokeh", reason="Bokeh is not installed")

GIB = 2**30
NAME = "<script>alert(1)</script>"


def points(*names: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Batches of 8, 32, 64 on one device and on two, under schedules of these names, of which each takes a tenth less: a second
    for 16 samples on a device. From 64 samples on there are two stages; the last point is refused.
    """
    found = []
    for place, schedule in enumerate(names):
        for devices in (1, 2):
            for batch in (8, 32, 64):
                seconds = batch / 16 / devices * 0.9**place
                plan = {"status": "fits", "feasible": True, "decisions": {"stages": "1" if batch < 64 else "2"}}
                plan |= {"iteration_seconds": seconds, "samples_per_second": batch / seconds, "plan_devices": devices}
                plan |= {
                    "peak_memory_bytes": batch / devices * GIB,
                    "capacity_bytes": 80 * GIB,
                    "layout": f"pp{devices}",
                }
                swept = {"schedule": schedule, "devices": devices, "batch": batch}
                found.append((swept, dict.fromkeys(FIGURES) | {"stack": "generic"} | plan))
    none = {"status": "refused", "feasible": False, "reason": f"no {NAME}", "decisions": {}}
    return [*found[:-1], (found[-1][0], dict.fromkeys(FIGURES) | none)]


def named(swept: Swept) -> dict[str, Any]:
    """The models of a page that have names."""
    return {one.name: one for one in layout(swept).references() if one.name}


def test_every_row_is_told_once() -> None:
    """In words and as numbers by which it is drawn and sorted; without a plan infinity, which a heat map draws grey."""
    swept = Swept.of(points("gpipe", "1f1b"))
    told = columns_of(swept)
    assert told["where"][1] == "schedule=gpipe, devices=1, batch=32"
    assert told["value_2"].tolist()[:4] == [8, 32, 64, 8]
    assert told["value_0"].tolist() == [0.0] * 6 + [1.0] * 6
    assert told["seconds"].tolist()[:3] == [0.5, 2.0, 4.0]
    assert (told["seconds"][-1], told["throughput"][-1], told["cell_0"][-1]) == (math.inf, math.inf, "")
    assert (told["cell_0"][2], told["cell_3"][2]) == ("4", "64.00 of 80")
    assert [told["change"][place] for place in (1, 2)] == ["as before", "stages: 1 -> 2"]


def test_figures_show_parts_of_one_source() -> None:
    """A line for each point of the other axes, with rings where the plan changes; a panel of the heat map; fronts by devices."""
    models = named(Swept.of(points("gpipe", "1f1b")))
    rows = models["rows"]
    drawn = ("points ", "rings ", "front ", "cells", "plans")
    shown = {name: one.view.filter.indices for name, one in models.items() if name.startswith(drawn)}
    assert [shown[f"points {line}"] for line in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    assert [shown[f"rings {line}"] for line in range(4)] == [[2], [5], [8], []]
    assert shown["cells"] == [0, 1, 2, 3, 4, 5]
    assert (shown["front 0"], shown["front 1"]) == ([6], [9])
    assert {id(models[name].data_source) for name in shown} == {id(rows)}
    assert models["capacity"].location == 80.0
    assert [one.title for one in models["table"].columns][:4] == ["schedule", "devices", "batch", "iteration, seconds"]


def test_words_along_an_axis_are_turned() -> None:
    """So that long ones do not meet; numbers lie."""
    records = [record for _, record in points("gpipe")[:2]]
    turned = [
        named(Swept.of(({name: value}, one) for value, one in zip(values, records, strict=True)))["lines"].xaxis[0]
        for name, values in (("schedule", ("gpipe", "1f1b")), ("batch", (8, 32)))
    ]
    assert [axis.major_label_orientation for axis in turned] == [0.4, "horizontal"]


def test_figures_that_are_not() -> None:
    """One axis has no heat map, no plan no figure; names are words, and the same sweep is the same page."""
    one = Swept.of([({"batch": swept["batch"]}, record) for swept, record in points("gpipe")[:3]])
    assert {"lines", "pareto", "table"} < {*named(one)}
    assert "heat map" not in named(one)
    none = Swept.of(points("gpipe")[-1:])
    assert {*named(none)} == {"rows", "table"}
    hostile = [({NAME: swept["devices"], **swept}, record) for swept, record in points(NAME, "1f1b")]
    page = sweep_html(Swept.of(hostile))
    assert NAME not in page
    assert "refused: no &lt;script&gt;" in page
    assert "<" not in named(Swept.of(hostile))["table"].columns[0].title  # which SlickGrid takes for HTML
    assert sweep_html(Swept.of(hostile)) == page


def test_figures_keep_their_looks(recorded: Recorded) -> None:
    """Three figures and the table of two schedules, and of more lines than are drawn."""
    many = Swept.of(points(*(f"s{number}" for number in range(8))))
    recorded(
        **{
            f"{len(one.rows)} points": models(document(layout(one)))
            for one in (Swept.of(points("gpipe", "1f1b")), many)
        }
    )


def test_commands_write_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a sweep, and of its store; of too many points none is written."""
    store, asked, reported = tmp_path / "store.db", tmp_path / "asked.html", tmp_path / "reported.html"
    words = ("--workload", "chain:4", "--cluster", "pipedream-a", "--planner", "uniform", "--jobs", "1")
    over = ("--over", "devices=1,2", "--over", "batch=8,16")
    assert main(("sweep", *words, "--microbatches", "4", *over, "--out", str(store), "--html", str(asked))) == 0
    assert main(("sweep", "report", str(store), "--html", str(reported))) == 0
    capsys.readouterr()
    assert "<h1>sweep: 2 devices × 2 batch: 4 points</h1>" in asked.read_text(encoding="utf-8")
    assert asked.read_bytes() == reported.read_bytes()
    asked.unlink()
    monkeypatch.setattr(sweep_page, "MOST_POINTS_SHOWN", 3)
    line = refused(capsys, ("sweep", "report", str(store), "--html", str(asked)))
    assert "the page would have 4 points, and has room for 3: sweep fewer values" in line
    assert "must end in .html" in refused(capsys, ("sweep", "report", str(store), "--html", "page.png"))
    assert not asked.exists()
