"""Tests of schedules compared at equal memory: the same work on every device, one table, one figure."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import simulator
from experiments.cli import main
from experiments.compare.schedule_comparison import compare_schedules, divided

NUMBERS = {"forward": [1.0, 2.0, 1.0, 1.0], "backward": 1.0, "weight": 1.0, "stash": 1.0}
NAMES = ("gpipe", "zb-v", "interleaved-1f1b", "dualpipe")


def test_devices_have_the_same_part_of_the_model_in_every_family() -> None:
    """8 micro-batches of 3 s a device, 4 s on one: 100 s in all, halved or not; gpipe holds all 8, halves no more."""
    found = compare_schedules(NAMES, 4, 8, {}, **NUMBERS, memory=7.0)
    assert found.stages == {"gpipe": 1, "zb-v": 2, "interleaved-1f1b": 2, "dualpipe": 1}
    for name, one in found.replays.items():
        assert len(one.timeline.devices()) == 4, name
        assert one.timeline.busy_seconds().sum() == pytest.approx(8 * 13.0), name
        assert max(one.peak_memory) <= 8.0
    assert max(found.replays["gpipe"].peak_memory) == 8.0
    assert not found.replays["gpipe"].fits
    assert found.ordered()[-1][0] == "gpipe"
    assert [row[0] for row in found.tables()[0].rows] == [name for name, _ in found.ordered()]


def test_options_are_of_those_that_take_them() -> None:
    """GPipe knows no stages per device; of m micro-batches on d devices it takes m + d - 1 times their 3 s, with v stages per
    device an interleaved order m + (d - 1) / v times.
    """
    for options, stages in (({}, 2), ({"chunks": 4}, 4)):
        found = compare_schedules(("gpipe", "interleaved-1f1b"), 4, 8, options, forward=1.0, backward=2.0).replays
        seconds = {name: one.makespan_seconds for name, one in found.items()}
        assert seconds == pytest.approx({"gpipe": 3 * 11.0, "interleaved-1f1b": 3 * (8 + 3 / stages)})


def test_numbers_of_halves_stand_in_the_order_of_the_model() -> None:
    """Stage 0 of two in three parts, then stage 1; one number is divided; transfers and limits are not."""
    found = divided({"forward": [3.0, 6.0], "stash": 1.5, "transfer": [0.5], "memory": 4.0}, 2, 3)
    assert found == {"forward": [1.0] * 3 + [2.0] * 3, "stash": [0.5], "transfer": [0.5], "memory": 4.0}


def test_the_figure_has_a_panel_for_each_and_one_axis_of_time() -> None:
    """A row for each device, not for each stage; all end where the longest ends."""
    found = compare_schedules(("gpipe", "zb-v"), 3, 4, {}, forward=1.0, backward=1.0, weight=1.0)
    figure = found.plot()
    assert isinstance(figure, Figure)
    longest = max(one.makespan_seconds for one in found.replays.values())
    for axes in figure.axes:
        assert len(axes.get_yticks()) == 3
        np.testing.assert_allclose(axes.get_xlim(), (0.0, longest))


def test_schedules_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One table, one document, quantiles under noise; exit code 3 where none fits."""
    monkeypatch.chdir(tmp_path)
    drawn: list[tuple[str, tuple[float, float]]] = []
    monkeypatch.setattr(
        simulator, "save", lambda figure, path: drawn.append((Path(path).name, figure.axes[0].get_xlim()))
    )
    words = "simulate --schedule gpipe --schedule zb-v --stages 2 --microbatches 4 --forward 1 --backward 1 --weight 1 --stash 1"
    assert (
        main(
            [*words.split(), "--memory", "3", "--noise", "0.1", "--replays", "9", "--gantt", "a.svg", "--window", "1:2"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "2 schedules on 2 devices (simpy)" in out
    assert "p95," in out
    assert drawn == [("a.svg", (1.0, 2.0))]
    assert main([*words.split(), "--memory", "1", "--json"]) == 3
    rows = json.loads(capsys.readouterr().out)["schedules"]
    assert [(one["schedule"], one["stages_per_device"], one["fits"]) for one in rows] == [
        ("zb-v", 2, False),
        ("gpipe", 1, False),
    ]


def test_the_best_order_found_is_compared_too(capsys: pytest.CaptureFixture[str]) -> None:
    """In the same memory, as it is found alone, with what is proven of it."""
    numbers = "--stages 3 --microbatches 4 --forward 5 --backward 6 --weight 4 --transfer 1 --stash 2 --memory 6"
    assert main(["simulate", "--schedule", "1f1b,search", *numbers.split(), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["schedules"]
    assert [(one["schedule"], one["stages_per_device"], one["fits"]) for one in rows] == [
        ("search", 1, True),
        ("1f1b", 1, True),
    ]
    assert main(["simulate", "--schedule", "search", *numbers.split(), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert rows[0]["makespan_seconds"] == alone["makespan_seconds"] < rows[1]["makespan_seconds"]
    assert main(["simulate", "--schedule", "1f1b,search", *numbers.split()]) == 0
    assert "search, of one stage per device: proven optimal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--schedule gpipe --schedule gpipe", "--schedule names families, each once"),
        ("--schedule search --schedule search", "--schedule names families, each once"),
        ("--schedule gpipe --schedule search --noise 0.1", "--noise is not of a schedule that is searched for"),
        ("--schedule search --schedule gpipe --chunks 2", "none of the schedules search, gpipe takes chunks"),
        ("--schedule gpipe --schedule pipedream", "'pipedream' does not flush one pipeline"),
        ("--schedule gpipe --schedule nope", "schedule 'nope' is unknown"),
        ("--schedule gpipe --schedule 1f1b --chunks 2", "none of the schedules gpipe, 1f1b takes chunks"),
        ("--schedule gpipe --schedule zb-v --transfer 1,2,3", "transfer must be one number where devices hold several"),
        (
            "--schedule zb-v --schedule gpipe --update 1,2",
            "update must be one number, or one for each of 4 devices, got 2",
        ),
        ("--schedule gpipe --schedule 1f1b --explain", "--explain is of one schedule"),
        ("--schedule gpipe --schedule 1f1b --memory 3", "--memory and --stash-weight need --stash"),
    ],
)
def test_schedules_that_are_not_compared(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    start = "simulate --stages 4 --microbatches 8 --forward 1 --backward 1"
    assert main([*start.split(), *words.split()]) == 2
    assert message in capsys.readouterr().err
