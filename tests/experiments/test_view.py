"""Pages: what they show of replays, by numbers; names are shown as they are; the same replays give the same page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeplan as pp
from experiments.cli import main
from experiments.view import drawn_plan, page_frame
from experiments.view.drawn_plan import BoxLayer, DrawnPlan, drawn_plans
from experiments.view.page import _legends, html_page, layout
from experiments.view.page_frame import document
from experiments.view.plan_table import fact_rows
from simulator import CAUSES, OpKind, Outcome, Plan, PlanFile, ScheduleReplay, Stage, explain, simulate
from simulator.results.gantt_plots import KIND_COLORS
from tests.drawings import models
from tests.experiments.commands import ended, refused
from tests.records import Recorded, weight

pytest.importorskip("bokeh", reason="Bokeh is not installed")

NAME = "a <script>alert(1)</script> $$x$$"


def by_numbers(name: str = "1f1b", **numbers: Any) -> ScheduleReplay:
    """Two stages and four micro-batches; forwards of 1 s, backwards of 2 s, transfers of 0.5 s, a unit of memory each."""
    given = {"stages": 2, "microbatches": 4, "forward": 1, "backward": 2, "transfer": 0.5, "stash": 1}
    found = pp.simulate(name, **(given | numbers))
    assert isinstance(found, ScheduleReplay)
    return found


def of_plan(replicas: int = 2, microbatches: int = 4, schedule: str = "1f1b") -> Outcome:
    """Two stages of four layers with as many replicas each, on V100s."""
    problem = pp.Problem("chain:4", "pipedream-a:2", 32, devices=2 * replicas)
    devices = tuple(range(replicas)), tuple(range(replicas, 2 * replicas))
    stages = Stage((0, 1), devices[0]), Stage((2, 3), devices[1])
    plan = Plan("by-hand", stages=stages, microbatches=(32 // microbatches,) * microbatches, schedule=schedule)
    return simulate(problem, plan, engine="compiled")


def of(layer: BoxLayer, **wanted: object) -> list[tuple[float, float]]:
    """Starts and ends of the boxes with a look of these values."""
    looks = [
        number
        for number, look in enumerate(layer.looks)
        if all(getattr(look, name) == one for name, one in wanted.items())
    ]
    shown = np.isin(layer.look, looks)
    return list(zip(layer.start[shown].tolist(), layer.end[shown].tolist(), strict=True))


def drawn(replayed: Outcome | ScheduleReplay, **options: Any) -> DrawnPlan:
    """What a page shows of one replay."""
    return drawn_plans({"it": replayed}, **options)[0]


def test_every_op_and_transfer_is_a_box() -> None:
    """Of GPipe on two devices: four forwards, a transfer behind each, four backwards; what each waits for is pointed at."""
    found = drawn(by_numbers("gpipe"))
    assert [lane.label for lane in found.lanes] == ["stage 0 · device 0", "stage 1 · device 1", "0 → 1", "1 → 0"]
    assert found.counts() == {"ops": 16, "transfers": 8, "waits": len(found.idle)}
    assert of(found.ops, lane=0, name="F") == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert of(found.ops, lane=1, name="F") == [(1.5, 2.5), (2.5, 3.5), (3.5, 4.5), (4.5, 5.5)]
    assert of(found.links, lane=2) == [(1, 1.5), (2, 2.5), (3, 3.5), (4, 4.5)]
    ops = found.ops
    colors = {look.name: look.color for look in ops.looks}
    assert colors == {"F": KIND_COLORS[OpKind.FORWARD], "B": KIND_COLORS[OpKind.BACKWARD]}
    first = [number for number, look in enumerate(ops.looks) if (look.lane, look.name) == (1, "F")]
    waiting = int(np.flatnonzero(np.isin(ops.look, first))[2])
    awaited = int(ops.numbers["awaited"][waiting])
    assert (ops.looks[ops.look[awaited]].name, ops.looks[ops.look[awaited]].lane) == ("F", 0)
    assert (ops.numbers["microbatch"][awaited], ops.numbers["there"][waiting]) == (2, 3.5)


def test_idle_intervals_and_the_critical_path_are_those_of_explain() -> None:
    """As many seconds by cause; the path goes from the start to the end without a gap but transfers."""
    replayed = by_numbers(stages=3)
    found, told = drawn(replayed), explain(replayed)
    seconds = {cause: sum(end - start for start, end in of(found.idle, name=cause)) for cause in CAUSES}
    assert seconds == pytest.approx(told.totals())
    moments = found.path[:, 0]
    assert (moments[0], moments[-1]) == (0.0, replayed.makespan_seconds)
    assert (np.diff(moments) >= 0).all()
    assert len(moments) == 2 * sum(run.tasks for run in told.path)


def test_alike_replicas_are_one_row() -> None:
    """Four that do the same are one row with `× 4`, whoever stands for them in the replay; its ops are one replica's."""
    found = drawn(of_plan(replicas=4))
    devices = [lane for lane in found.lanes if lane.what == "device"]
    assert [(lane.label, lane.copies) for lane in devices] == [
        ("stage 0 · GPUs 0-3 × 4", 4),
        ("stage 1 · GPUs 4-7 × 4", 4),
    ]
    assert len(of(found.ops, name="F")) == 2 * 4
    assert {lane.label for lane in found.lanes if lane.what == "link"} == {"0 → 1 × 4", "1 → 0 × 4"}
    assert len(found.links) == 2 * 4
    assert {lane.what for lane in found.lanes} == {"device", "link", "collective"}
    assert len(found.memory) == 2


def test_memory_of_each_row_is_the_replays() -> None:
    """Peaks of both devices, and the step that holds where a window begins."""
    replayed = by_numbers()
    found = drawn(replayed)
    assert [float(one.bytes.sum(axis=1).max()) for one in found.memory] == replayed.peak_memory == [2.0, 1.0]
    cut = drawn(replayed, window=(3.0, 4.0)).memory[0]
    assert (cut.times[0], cut.times[-1], cut.bytes[0].sum()) == (3.0, 4.0, 2.0)


def test_a_window_shows_its_part() -> None:
    """Boxes are cut to it; those outside are not there, and nothing points at them."""
    found = drawn(by_numbers("gpipe"), window=(2.0, 4.0))
    assert of(found.ops, lane=0, name="F") == [(2, 3), (3, 4)]
    assert of(found.ops, lane=1, name="F") == [(2, 2.5), (2.5, 3.5), (3.5, 4)]
    assert found.ops.numbers["awaited"].tolist()[-3] == -1
    assert all(2.0 <= start < end <= 4.0 for layer in (found.idle, found.links) for start, end in of(layer))
    with pytest.raises(ValueError, match="window 50:60 shows nothing of it, which takes 16 s"):
        drawn(by_numbers("gpipe"), window=(50.0, 60.0))


def test_decisions_that_differ_are_marked() -> None:
    """Micro-batches and the schedule here; figures are never marked."""
    rows = fact_rows((of_plan(), of_plan(microbatches=2, schedule="gpipe")))
    assert {row.name for row in rows if row.differs} == {"schedule", "micro-batches"}
    assert next(row.values for row in rows if row.name == "schedule") == ("1f1b", "gpipe")
    assert not any(row.differs for row in fact_rows((of_plan(),)))


def test_legends_name_what_is_drawn() -> None:
    """A device alone has no transfers to wait for, and so no causes of idle time."""
    for stages, names in ((2, ["Ops", "Idle", "Memory"]), (1, ["Ops", "Memory"])):
        assert re.findall("<b>([A-Z][a-z]*)</b>", _legends([drawn(by_numbers(stages=stages))])) == names


def test_pages_repeat_and_show_names_as_they_are() -> None:
    """The same bytes after other pages; a name is no markup, and nothing is loaded from elsewhere."""

    def page(name: str) -> str:
        replays = {name: by_numbers()}
        return html_page(drawn_plans(replays), replays, title=name)

    first = page(NAME)
    page("other")
    assert page(NAME) == first
    assert "<script>alert" not in first
    assert "a &lt;script&gt;alert(1)&lt;/script&gt; $$x$$</th>" in first
    assert 'src="' not in first.split("<script")[0] + first.rpartition("</script>")[0].rpartition("<body>")[2]
    assert "default-src 'none'" in first


def test_the_document_has_the_boxes_as_binary_columns() -> None:
    """Bokeh is given each layer once, in the smallest numbers that hold it."""
    told = json.dumps(document(layout(drawn_plans({"it": by_numbers()}))))
    for name in ("ops 0", "links 0", "idle 0", "memory 0", "critical path 0", "choices"):
        assert f'"{name}"' in told
    assert '"uint8"' in told
    assert '"float64"' not in told
    stream = by_numbers("pipedream", microbatches=40)
    both = layout(drawn_plans({"stream": stream, "it": by_numbers()}))
    x_range = both.select_one({"name": "timeline 0"}).x_range
    assert (x_range.end, x_range.bounds[1]) == (
        pytest.approx(1.01 * 17.5, rel=0.1),
        pytest.approx(1.05 * stream.makespan_seconds, rel=0.1),
    )


def test_pages_keep_their_looks(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plans with replicas, links and collectives, and a part of a schedule with its memory: models, table and legends."""
    plans: dict[str, Outcome | ScheduleReplay] = {"a": of_plan(), "b": of_plan(microbatches=2, schedule="gpipe")}
    found: dict[str, Any] = {}
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(page_frame, "document", lambda layout: given.append(document(layout)) or given[-1])
    for title, replays, window in (
        ("plans", plans, None),
        ("schedule", {"it": by_numbers(weight=0.5, stages=3)}, (2.0, 9.0)),
        ("many rows", {"it": by_numbers("gpipe", stages=40, microbatches=1)}, None),
    ):
        shown = drawn_plans(replays, window=window)
        page = html_page(shown, replays, title=title)
        words = page.rpartition("<body>")[2].partition('<div id="drawing"')[0]
        found[title] = {"models": models(given.pop()), "words": weight(words)}
        assert len(words) < 20_000
    recorded(**found)


def test_a_plan_that_does_not_fit_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By every command that shows it, with the device, what it would hold and what it has."""
    outcome, path = of_plan(), tmp_path / "plan.json"
    small = replace(outcome.problem, memory_reserve=0.99999)
    PlanFile(small, outcome.plan).write(path)
    for words in (
        ("view", "--out", str(tmp_path / "page.html")),
        ("explain",),
        ("sensitivity", "--over", "cluster.network.latency_us"),
        ("goodput", "--mtbf", "100", "--restart-seconds", "60", "--days", "2", "--checkpoint-gb-per-s", "2"),
    ):
        code, out, _ = ended(capsys, (*words, "--plan", str(path)))
        assert (code, "the plan does not fit: GPU 0 would hold " in out) == (0, True), words
    PlanFile(outcome.problem, outcome.plan).write(path)
    assert "does not fit" not in ended(capsys, ("explain", "--plan", str(path)))[1]


def test_what_is_too_much_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the count, and what to do; nothing is written."""
    plan, out = tmp_path / "plan.json", tmp_path / "page.html"
    outcome = of_plan()
    PlanFile(outcome.problem, outcome.plan).write(plan)
    words = ("view", "--plan", str(plan), "--out", str(out))
    monkeypatch.setattr(drawn_plan, "MOST_BOXES", 10)
    line = refused(capsys, words)
    assert "transfers and waits, and has room for 10: show a part of the time" in line
    assert "0:0 must be BEGIN:END" in refused(capsys, (*words, "--window", "0:0"))
    assert "must end in .html" in refused(capsys, ("view", "--plan", str(plan), "--out", str(tmp_path / "page.png")))
    assert "needs --plan" in refused(capsys, ("view", "--out", str(out)))
    twin = tmp_path / "twin.json"
    twin.write_bytes(plan.read_bytes())
    assert f"--plan {plan} is given twice" in refused(capsys, (*words, "--plan", str(plan)))
    both = ("view", "--plan", str(twin), "--plan", str(plan), "--plan", str(plan), "--out", str(out))
    assert f"--plan {plan} is given twice" in refused(capsys, both)
    monkeypatch.setattr("experiments.view.page_option.find_spec", lambda name: None)
    assert "a page needs Bokeh, which is not installed; install pipeplan[view]" in refused(capsys, words)
    assert not out.exists()


def test_commands_write_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`view` of two plans, `simulate` of a schedule and of a plan, `compare` of all its plans."""
    plans = [tmp_path / name for name in ("a.json", "b.json")]
    for path, outcome in zip(plans, (of_plan(), of_plan(microbatches=2)), strict=True):
        PlanFile(outcome.problem, outcome.plan).write(path)
    page = tmp_path / "page.html"
    both = [word for path in plans for word in ("--plan", str(path))]
    code, out, _ = ended(capsys, ("view", *both, "--out", str(page), "--json"))
    assert code == 0
    assert [one["plan"] for one in json.loads(out)["plans"]] == ["a.json", "b.json"]
    assert "b.json</th>" in page.read_text()
    schedule = [
        "simulate",
        "--schedule",
        "1f1b",
        "--stages",
        "2",
        "--microbatches",
        "2",
        "--forward",
        "1",
        "--backward",
        "1",
    ]
    assert main([*schedule, "--schedule", "gpipe", "--html", str(tmp_path / "two.html")]) == 0
    assert "<th>1f1b</th><th>gpipe</th>" in (tmp_path / "two.html").read_text()
    assert main(["simulate", "--plan", str(plans[0]), "--html", str(tmp_path / "p.html")]) == 0
    compare = f"compare {' '.join(both[:2])} --planner greedy --no-figures --out {tmp_path / 'out'}".split()
    assert main([*compare, "--html", str(tmp_path / "c.html")]) == 0
    assert "greedy</th>" in (tmp_path / "c.html").read_text()
    capsys.readouterr()
    noisy = ("simulate", "--plan", str(plans[0]), "--noise", "0.1", "--html", str(page))
    assert "--noise does not go with --html of a plan" in refused(capsys, noisy)
