"""Study published-layouts: what was published as seconds, layouts replayed as they ran, and a plan of our own beside them."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import experiments.published_layouts.__main__ as study
from experiments.published_layouts.published_runs import LAYOUTS, PublishedLayout
from experiments.studies.study_harness import run_study
from experiments.truth.measured_tables import MeasuredRun
from experiments.truth.predictions import training_problem
from planners import make_plan
from simulator import InfeasiblePlanError, Plan, Problem, plan_words
from tests.drawings import drawing
from tests.records import Recorded, lines

TINY = PublishedLayout(
    "tiny",
    "nobody",
    {
        "layers": 6,
        "hidden": 1024,
        "heads": 16,
        "seq": 256,
        "vocab": 1000,
        "model": "gpt",
        "machine": "dgx-a100",
        "tp": 2,
        "pp": 2,
        "dp": 1,
        "micro_batch": 1,
        "global_batch": 4,
        "framework": "Megatron-LM",
    },
    mfu=0.5,
    parameters=1e8,
    interleave=(1, 2, 4),
)


def test_seconds_of_a_share_of_the_peak() -> None:
    """PaLM's rule: 6 N + 12 L h s FLOP for each of 4 x 256 tokens on 4 GPUs at half of their peak; or as told."""
    assert TINY.devices == 4
    flop = 4 * 256 * (6 * 1e8 + 12 * 6 * 1024 * 256)
    assert TINY.iteration_seconds == pytest.approx(flop / (4 * 156e12))
    assert replace(TINY, seconds=3.0).iteration_seconds == 3.0
    scores = 4 * 256 * 12 * 6 * 1024 * 256  # of attention alone, where no parameters are told
    untold = PublishedLayout("untold", "nobody", TINY.layout, mfu=0.5)
    assert untold.iteration_seconds == pytest.approx(scores / (4 * 156e12), rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.name)
def test_a_layout_is_that_of_its_name(layout: PublishedLayout) -> None:
    """As many GPUs as its name tells, whole micro-batches, and where the embedding and the head count, as many on each stage."""
    assert f"{layout.devices:,} " in layout.name
    assert layout.source
    assert layout.interleave == tuple(sorted({*layout.interleave}))
    if len(layout.interleave) > 1 and not layout.ends_count:
        assert all(layout.layout["layers"] % (layout.layout["pp"] * one) == 0 for one in layout.interleave)
    for run in layout.runs():
        assert run.measured_s == layout.iteration_seconds
        assert run.global_batch % (run.dp * run.micro_batch) == 0
        if layout.ends_count:
            assert len(set(run.layers_per_stage.split(";"))) == 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.name)
def test_what_is_told_is_what_the_network_computes(layout: PublishedLayout) -> None:
    """The MFU that a source tells, and its parameters, within 1 %; of seconds alone a quarter of the peak, as such runs reach."""
    run = next(iter(layout.runs()))  # on few devices: how many do not matter here
    problem, _ = training_problem(msgspec.structs.replace(run, cp=1, dp=max(1, run.ep // run.tp)))
    peak = layout.devices * problem.cluster.devices[0].peak_flops[problem.precision]
    mfu = 3 * problem.workload.flop() * problem.batch / (layout.iteration_seconds * peak)
    if layout.mfu is not None:
        assert mfu == pytest.approx(layout.mfu, rel=0.01)
        assert layout.parameters == pytest.approx(sum(layer.parameters for layer in problem.workload.layers), rel=0.01)
    elif "1T" in layout.name:  # at 163 TFLOP/s per GPU, forwards that run again among them
        assert 4 / 3 * mfu * peak / layout.devices == pytest.approx(163e12, rel=0.01)
    else:
        assert 0.2 < mfu < 0.31


def test_what_was_not_told_is_the_fastest_that_can_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: Recorded
) -> None:
    """Of one, two and four stages per device; with four some would hold no layer. A plan of our own is of the same problem."""
    monkeypatch.setattr(study, "LAYOUTS", (replace(TINY, note="of no paper"),))
    monkeypatch.setattr(study, "make_plan", lambda name, problem: make_plan("rule-of-thumb", problem))
    found = {run.interleave: training_problem(run) for run in TINY.runs()[:2]}
    seconds = [study.Evaluations(problem)(plan).iteration_seconds for problem, plan in found.values()]  # type: ignore[union-attr]
    assert run_study("published-layouts", ["--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["layouts"]
    assert row["seconds"] == min(seconds)
    assert row["off"] == pytest.approx(row["seconds"] / TINY.iteration_seconds - 1)
    assert row["error_low"] < row["seconds"] < row["error_high"]
    assert row["inside"] == (row["error_low"] <= TINY.iteration_seconds <= row["error_high"])
    best = make_plan("rule-of-thumb", found[1][0])
    assert (row["own_seconds"], row["own_speedup"]) == (
        best.iteration_seconds,
        pytest.approx(row["seconds"] / best.iteration_seconds),
    )
    assert run_study("published-layouts", ["--quick"]) == 0
    recorded(printed=lines(capsys.readouterr().out))
    assert study.draw({"layouts": [row]}).axes[0].get_yticklabels()[0].get_text() == "tiny"


def test_what_has_no_plan_and_what_does_not_fit_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Why the joint planner has no answer, in its place; a mark and what it means."""

    def refused(name: str, problem: Problem) -> None:
        raise InfeasiblePlanError(f"{name}: no room")

    monkeypatch.setattr(study, "LAYOUTS", (TINY,))
    monkeypatch.setattr(study, "make_plan", refused)
    assert run_study("published-layouts", ["--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["layouts"]
    assert row["own"] == "joint: no room"
    assert "own_seconds" not in row
    study.print_document({"layouts": [{**row, "fits": False}]})
    printed = capsys.readouterr().out
    assert printed.endswith("\n  joint: joint: no room\n(!) more than plans may fill of a device, by the model\n")
    study.print_document({"layouts": [{**row, "fits": True}]})
    assert "(!)" not in capsys.readouterr().out


def rows_of(monkeypatch: pytest.MonkeyPatch, *layouts: PublishedLayout) -> list[dict[str, Any]]:
    """What the study says of layouts, without a plan of our own."""
    monkeypatch.setattr(study, "LAYOUTS", layouts)
    rows: list[dict[str, Any]] = study.run(argparse.Namespace(quick=True)).document["layouts"]
    return rows


def test_a_pipeline_in_a_v(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the source says so, the first device has the first and the last stage, and the order is that of the schedule."""
    asked = replace(TINY, layout={**TINY.layout, "framework": ""}, interleave=(2,), schedule="zb-v")
    (run,) = asked.runs()
    problem, plan = training_problem(run)
    first, second = (stage.devices for stage in plan.stages[:2])
    folded = study.in_a_v(plan, "zb-v")
    assert [stage.devices for stage in folded.stages] == [first, second, second, first]
    assert [stage.layers for stage in folded.stages] == [stage.layers for stage in plan.stages]
    (row,) = rows_of(monkeypatch, asked)
    score = study.Evaluations(problem)(folded)
    assert score is not None
    assert (row["layout"], row["seconds"]) == (plan_words(problem, folded), score.iteration_seconds)


def test_a_row_says_whether_what_was_published_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of replays the fastest: as long as was published, and a hundred times as long or as short."""
    alone = rows_of(monkeypatch, *(replace(TINY, interleave=(chunks,)) for chunks in (1, 2)))
    fastest, _ = sorted(row["seconds"] for row in alone)
    for times, inside in ((1.0, True), (100.0, False), (0.01, False)):
        (row,) = rows_of(monkeypatch, replace(TINY, seconds=fastest / times))
        assert (row["seconds"], row["off"], row["inside"]) == (fastest, pytest.approx(times - 1.0), inside)
        assert row["error_low"] < fastest < row["error_high"]


def test_layouts_are_drawn_as_shares_of_what_was_published(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row on top, with the error as a band, and the plan of our own where there is one; of none there is no figure."""
    monkeypatch.setattr(study, "LAYOUTS", ())
    make = study.run(argparse.Namespace(quick=True)).make
    assert not list(make({"layouts": []}))
    row = {"published_seconds": 2.0, "error_low": 1.0, "error_high": 3.0, "seconds": 2.5}
    rows = [row | {"name": "first"}, row | {"name": "second", "published_seconds": 4.0, "own_seconds": 1.5}]
    ((name, figure),) = make({"layouts": rows})
    recorded(name=name, figure=drawing(figure))


def test_an_interrupt_leaves_the_rows_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Marked, with exit code 130."""

    def interrupted(run: MeasuredRun) -> tuple[Problem, Plan]:
        if run.layers == 12:
            raise KeyboardInterrupt
        return training_problem(run)

    monkeypatch.setattr(study, "training_problem", interrupted)
    endless = replace(TINY, layout={**TINY.layout, "layers": 12})
    monkeypatch.setattr(study, "LAYOUTS", (TINY, replace(TINY, name="second"), endless, TINY))
    assert run_study("published-layouts", ["--quick", "--json"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert (document["interrupted"], [row["name"] for row in document["layouts"]]) == (True, ["tiny", "second"])
