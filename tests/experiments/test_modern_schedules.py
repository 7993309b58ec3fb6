"""Rules of the study of modern schedules: points that one can work out by hand, equal work in every placement, its document."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.modern_schedules.__main__ import print_document
from experiments.modern_schedules.memory_point_plots import (
    FRONTS,
    LOOKS,
    OFFSETS,
    PANEL,
    Frame,
    labels,
    look_of,
    named,
    stairs,
)
from experiments.modern_schedules.memory_points import (
    FULL,
    PLACES,
    QUICK,
    Effort,
    busiest,
    family_points,
    over_seeds,
    placed,
)
from experiments.schedule_search.families import comparable_families
from experiments.schedule_search.problems import ProfiledRow
from experiments.studies.study_harness import run_study
from tests.planners.scheduler.schedule_cases import TWO_DEVICES
from tests.records import Recorded, lines


def test_points_by_hand() -> None:
    """GPipe and 1F1B take (m+p-1)(F+B) and hold m and p; ZB-H1 m(F+I+W) + (p-1)(F+I-W) in p; slices (mk+p-1)(F+B)/k in (p+k-1)/k.

    GPipe's last backward gives nothing back before all forwards are done; two slices a sequence, each half a unit.
    """
    found = {point.name: (point.peak, point.makespan) for point in family_points(TWO_DEVICES)}
    assert set(found) == set(comparable_families())
    by_hand = {"gpipe": (4, 5 * 3), "1f1b": (2, 5 * 3), "zb-h1": (2, 4 * 3 + 1), "seq1f1b": (3 / 2, 9 * 3 / 2)}
    assert {name: found[name] for name in by_hand} == by_hand


def test_a_device_has_the_same_work_in_every_placement() -> None:
    """Stages of 3 and 9 s: 4 x 9 s on the second device, however its part is cut; two directions give both half of each."""
    uneven = replace(TWO_DEVICES, forward=(1, 3), input_gradient=(1, 3), weight_gradient=(1, 3))
    work = {name: busiest(placed(uneven, name)) for name in PLACES}
    assert work == {"straight": 36, "interleaved": 36, "v": 36, "bidirectional": 24}
    assert placed(uneven, "v").each("forward") == (0.5, 1.5, 1.5, 0.5)
    assert placed(uneven, "interleaved").each("forward") == (0.5, 1.5, 0.5, 1.5)
    assert placed(uneven, "v").least_limits() == (1, 1)


def test_the_mean_and_range_of_seeds() -> None:
    """Rows of the same keys become one; others stay apart."""
    rows = [
        {"family": name, "seed": seed, "above_busiest": above, "gap": above / 2}
        for name, seed, above in (("b", 0, 0.1), ("b", 1, 0.3), ("a", 0, 0.5))
    ]
    one, two = over_seeds(rows, "family")
    assert one == {"family": "a", "above_busiest": 0.5, "gap": 0.25, "least": 0.5, "most": 0.5}
    assert two == {"family": "b", "above_busiest": pytest.approx(0.2), "gap": 0.1, "least": 0.1, "most": 0.3}


def test_the_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: Recorded) -> None:
    """Bounds lie below all; a search keeps to its limit, is not slower at a higher one, nor than a family in its memory."""
    monkeypatch.setattr("experiments.modern_schedules.memory_points.ROW", ProfiledRow(2, 4, 1, 1, 1, 0, 2, 1))
    monkeypatch.setattr("experiments.modern_schedules.__main__.QUICK", Effort(range(1), (1, 2), 0.002))
    assert run_study("modern-schedules", ["--quick", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["families_left_out"] == ["1f1b-as", "fbp-as", "1f1b-sno"]
    families, searched = document["families"], document["searched"]
    assert len(families) == 2 * len(comparable_families())
    for row in (*families, *searched):
        assert row["lower_bound_seconds"] <= row["makespan_seconds"] * (1 + 1e-12)
        assert row["gap"] == pytest.approx(row["makespan_seconds"] / row["lower_bound_seconds"] - 1)
    busiest = [row["busiest_device_seconds"] for row in families if row["stages"] == "even"]
    assert busiest == pytest.approx([12e-6] * len(busiest))
    for row in families:
        assert row["faster"] >= 0 or row["family"] == "seq1f1b"
        assert_above_its_bound(row, searched)
    assert {look_of(row) for row in families} == {*LOOKS}
    for place in PLACES:
        for stages in ("even", "uneven"):
            front = [row for row in searched if (row["placement"], row["stages"]) == (place, stages)]
            assert all(row["peak_microbatches"] <= row["limit_microbatches"] for row in front)
            limits, seconds = zip(*((row["limit_microbatches"], row["makespan_seconds"]) for row in front), strict=True)
            assert limits == tuple(sorted(limits))
            assert seconds == tuple(sorted(seconds, reverse=True))
    print_document(document)
    printed = lines(capsys.readouterr().out)
    recorded(printed=printed)
    written = [line.split() for line in printed]
    assert ["even", "1f1b", "straight", "2.00", "0.0", "25.0"] in [line[:6] for line in written]
    assert ["even", "zb-h1", "straight", "2.00", "0.0", "8.3", "0.0", "0.0", "0.0"] in written


def assert_above_its_bound(row: dict[str, Any], searched: list[dict[str, Any]]) -> None:
    """Of the lines and marks in the figure that have the look of a family's point, the bound is not above the point."""
    assert row["above_busiest"] >= row["bound_above_busiest"] - 1e-12
    if look_of(row) not in FRONTS:
        return  # its bound is a mark of its own
    same = [one for one in searched if all(one[key] == row[key] for key in ("placement", "stages", "seed"))]
    beside = [y for x, y in stairs(same) if x <= row["peak_microbatches"]]
    assert 100 * row["above_busiest"] >= min(beside, default=0.0) - 1e-9


def test_the_bound_between_two_limits_is_that_of_the_greater() -> None:
    """A device that may hold 2 may hold less; what holds between 1 and 4 is a bound for 4."""
    rows = [{"limit_microbatches": x, "bound_above_busiest": y} for x, y in ((1.0, 0.9), (2.0, 0.5), (4.0, 0.5))]
    assert stairs(rows) == [(1, 90), (1, 50), (2, 50), (2, 50), (4, 50)]


def test_quick_is_small() -> None:
    """The work of all searches: draws, limits and seconds of each."""
    quick, full = (len(one.limits) * one.seconds * (1 + len(one.seeds)) for one in (QUICK, FULL))
    assert 50 * quick < full
    assert set(QUICK.limits) < set(FULL.limits)
    assert FULL.limits[-1] == 2 * 8


def test_axes_end_at_what_is_drawn() -> None:
    """With room around it; what is below one per cent leaves the panel."""
    frame = Frame.around([(4.0, 50.0), (24.0, 0.0), (8.0, 20.0)])
    np.testing.assert_allclose(frame, [(3.2, 14.0), (33.6, 70.0)])
    np.testing.assert_allclose(frame.along([frame.most, (1.0, 0.0)])[:2], [PANEL, (0.0, 0.0)])


def test_names_stand_clear() -> None:
    """Families at one point share a name; a name goes beside its marker, and elsewhere where a line or another name is."""
    rows = [{"family": name, "peak_microbatches": 4.0, "above_busiest": 0.2} for name in ("a", "b")]
    names = named(rows)
    assert names == {(4.0, 20.0): "a, b"}
    frame = Frame((0.9, 1.0), (32.0, 800.0))
    assert [*labels(names, [], frame)] == [((4.0, 20.0), "a, b", OFFSETS[0])]
    _, _, (across, _) = next(labels(names, [[(4.0, 20.0), (30.0, 20.0)]], frame))
    assert across < 0
    _, _, (across, _) = next(labels({(frame.most[0] * 0.99, 20.0): "at the right edge"}, [], frame))
    assert across < 0
    first, second = labels({(4.0, 20.0): "one", (4.1, 20.0): "two"}, [[*frame]], frame)
    assert first[2] != second[2]
