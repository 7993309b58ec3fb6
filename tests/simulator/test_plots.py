"""Rules of figures: the numbers that are drawn, and the files that are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.text import Text

from hardware_profiles import legible
from simulator.costs.given import ALONE, Bucket, GivenCosts, OpMemory, OpSeconds, StageCollectives, given_costs
from simulator.costs.stashes import ACTIVATION_PARTS
from simulator.engines import recurrence
from simulator.engines import reference as engine
from simulator.engines.timeline import Timeline
from simulator.lowering.lower import lower
from simulator.memory.device_memory import CATEGORIES, DeviceMemory
from simulator.results import gantt_plots
from simulator.results.figures import (
    SMALL_TITLE,
    TITLE,
    byte_unit,
    captioned,
    figures,
    fitting,
    grouped_bars,
    logarithmic,
    logarithmic_axes,
    panels,
    save,
    time_unit,
    title_points,
    whitened,
)
from simulator.results.gantt_plots import (
    KIND_COLORS,
    MOST_NUMBERED,
    gantt,
    gantt_rows,
    joined,
    readable_window,
    shared_time,
    visible_widths,
)
from simulator.results.memory_plots import (
    CATEGORY_COLORS,
    capacity_in_view,
    drawn_parts,
    memory_figure,
    memory_steps,
    part_colors,
    peak_bars,
    shown_devices,
)
from simulator.results.memory_tables import peak_rows, peak_tables
from simulator.schedule_replay import replay_schedule
from simulator.schedules import build_schedule, schedule_families
from simulator.schedules.ops import OpKind
from simulator.schedules.text import from_text
from tests.drawings import drawing
from tests.layout import LEAST_LIGHTNESS, assert_readable, lightness
from tests.records import Recorded, weights


def replayed(name: str, stages: int, microbatches: int, *, transfer: float = 0.0, **options: Any) -> Timeline:
    schedule = build_schedule(name, stages, microbatches, **options)
    return recurrence.replay(
        lower(schedule, given_costs(stages, OpSeconds(1.0, 2.0, transfer=transfer), devices=schedule))
    )


class Reduced(GivenCosts):
    """Given costs whose stage 0 all-reduces in two buckets; replica r of stage s is device 10·s + r."""

    def device(self, stage: int, replica: int) -> int:
        return 10 * stage + replica

    def collectives(self, stage: int) -> StageCollectives:
        return StageCollectives((Bucket(0.25, 1.0), Bucket(0.75, 1.0))) if stage == 0 else ALONE


def replicated(replicas: int) -> Timeline:
    """Two stages, stage 0 on `replicas` devices that split one micro-batch, with all-reduce and updates."""
    numbers = (1.0, 1.0)
    costs = Reduced(numbers, (2.0, 2.0), numbers, numbers, (0.5, 0.5))
    program = lower(
        build_schedule("gpipe", 2, 1), costs, forward_sizes=[replicas], split_replicas=[replicas, 1], updates=True
    )
    return recurrence.replay(program)


def memory(device: int, peak: float, capacity: float, steps: int = 4) -> DeviceMemory:
    held = np.zeros((steps, len(CATEGORIES)))
    held[:, 0] = peak / 4
    held[steps // 2, CATEGORIES.index("activations")] = peak * 3 / 4
    return DeviceMemory(device, capacity, np.linspace(0.0, 2.0, steps), held)


def drawn_texts(timeline: Timeline, **options: Any) -> list[str]:
    return [text.get_text() for text in gantt(timeline, **options).texts if text.get_text().isdigit()]


OPPOSITE = """0F0 0F1 3F2 3B2 3F3 3B3 0B0 0B1
1F0 1F1 2F2 2F3 2B2 1B0 2B3 1B1
1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3
0F2 3F0 0F3 3B0 3F1 3B1 0B2 0B3"""
"""Chimera: micro-batches 0 and 1 go down the devices, 2 and 3 up."""


def opposite(**given: Any) -> Timeline:
    schedule = from_text(OPPOSITE)
    return recurrence.replay(lower(schedule, given_costs(4, OpSeconds(1.0, 2.0, **given), devices=schedule)))


def seven_kinds() -> Timeline:
    """Two stages per device, whole and halved backwards, updates: seven entries of a legend."""
    schedule = from_text("0F0 2F0 2I0 0B0 2W0\n1F0 3F0 3B0 1B0")
    return recurrence.replay(
        lower(schedule, given_costs(4, OpSeconds(1.0, 2.0, weight=0.5, update=0.5), devices=schedule), updates=True)
    )


def test_buckets_too_narrow_to_be_seen_are_joined() -> None:
    """Gaps below the least and a narrow box beside them: one block; wide boxes, gaps and other kinds stay apart."""
    row = replace(
        gantt_rows(replayed("gpipe", 1, 3))[0],
        kind=np.array([6, 6, 6, 6, 6, 0], np.int8),
        microbatch=np.zeros(6, np.int32),
        start=np.array([0.0, 1.5, 8.0, 8.2, 10.0, 20.0]),
        end=np.array([1.0, 2.0, 8.1, 8.3, 20.0, 20.1]),
    )
    row = replace(row, chunk=np.zeros(6, np.int32))
    together = joined(row, 1.0)
    assert together.start.tolist() == [0.0, 8.0, 10.0, 20.0]
    assert together.end.tolist() == [2.0, 8.3, 20.0, 20.1]
    wide = replace(row, start=np.arange(6.0), end=np.arange(1.0, 7.0))
    assert joined(wide, 0.5).start.tolist() == wide.start.tolist()


def test_a_window_of_everything_is_no_cut() -> None:
    """Two timelines on one axis: the shorter is whole, its makespan is called that; a real cut says so."""
    timeline = replayed("1f1b", 2, 2)
    assert gantt(timeline, window=(0.0, 20.0)).get_xlabel() == "time (s)"
    assert "a cut of 4 s" in gantt(timeline, window=(0.0, 4.0)).get_xlabel()


def test_equal_replicas_share_a_row_where_there_are_many() -> None:
    """Above the most rows, replicas that do the same at the same time become one row; none of their lanes is lost."""
    timeline = replicated(50)
    rows = gantt_rows(timeline)
    assert [row.label for row in rows] == [
        "stage 0 · 50 equal replicas (GPUs 0–49)",
        "stage 0 all-reduce",
        "stage 1 (GPU 10)",
    ]
    assert sorted(lane for row in rows for lane in row.lanes) == list(range(len(timeline.lane_kind)))
    assert len(gantt_rows(timeline, most_rows=60)) == 52


def test_rows_of_many_stages_and_groups_have_short_names() -> None:
    """Of many stages the first two and the last; devices of shared rows up to the last member of the last group."""
    label = gantt_rows(replayed("interleaved-1f1b", 10, 10, chunks=5))[0].label
    assert label == "stages 0, 2, … 8 (GPU 0)"
    groups = {device: (device, device + 60) for device in range(60)}
    assert gantt_rows(replicated(50), groups=groups)[0].label == "stage 0 · 50 equal replicas (GPUs 0–109)"


def test_long_titles_are_smaller_before_they_lose_their_middle() -> None:
    """A title that fits is as large as ever, a longer one fills the room, one that would be too small is cut."""
    assert fitting("short", 400.0) == ("short", TITLE)
    name, size = fitting("x" * 60, 400.0)
    assert (name, SMALL_TITLE < size < TITLE) == ("x" * 60, True)
    assert title_points(name, size) == pytest.approx(400.0)
    cut, least = fitting("x" * 200, 400.0)
    assert ("…" in cut, least) == (True, SMALL_TITLE)
    assert title_points(cut, least) <= 405.0


def test_a_window_cuts_boxes_at_its_ends() -> None:
    """Boxes that cross an end of the window are cut there, others are left out."""
    row = gantt_rows(replayed("gpipe", 1, 2))[0]

    def shown(begin: float, end: float) -> list[tuple[float, float]]:
        cut = row.within(begin, end)
        return list(zip(cut.start.tolist(), cut.end.tolist(), strict=True))

    assert shown(0.5, 3.0) == [(0.5, 1.0), (1.0, 2.0), (2.0, 3.0)]
    assert shown(1.0, 2.0) == [(1.0, 2.0)]  # what ends or begins at an end is not in it


@pytest.mark.parametrize("name", ["pipedream", "zb-h1"])
def test_readable_window_only_for_long_streams(name: str) -> None:
    """A short timeline needs no cut; a long one is cut in the middle, with as many boxes as asked for in the fullest row."""
    assert readable_window(replayed(name, 2, 20)) is None
    timeline = replayed(name, 2, 100)
    window = readable_window(timeline, boxes=20)
    assert window is not None
    begin, end = window
    assert 0 < begin < timeline.makespan_seconds / 2 < end < timeline.makespan_seconds
    counts = [int((row.within(begin, end).kind <= OpKind.WEIGHT_GRADIENT).sum()) for row in gantt_rows(timeline)]
    assert 18 <= max(counts) <= 22
    assert readable_window(timeline, boxes=2) is not None
    with pytest.raises(ValueError, match=r"^a cut needs at least 2 boxes per row, got 1$"):
        readable_window(timeline, boxes=1)


def test_boxes_carry_numbers_where_they_can_be_read() -> None:
    """Every op of a small timeline has its number; a row with more than the most numbered boxes has none."""
    assert sorted(drawn_texts(replayed("1f1b", 2, 3))) == sorted("000011112222")
    assert drawn_texts(replayed("1f1b", 1, MOST_NUMBERED)) == []


def test_a_kind_is_numbered_where_half_of_the_rows_have_room() -> None:
    """Forwards of three stages, wide or narrow: numbers with two wide ones, none with one."""

    def forwards(*seconds: float) -> int:
        schedule = build_schedule("gpipe", 3, 2)
        timeline = recurrence.replay(lower(schedule, given_costs(3, OpSeconds(list(seconds), 1e-9))))
        return len(drawn_texts(timeline))

    assert forwards(10.0, 10.0, 1e-3) == 4
    assert forwards(10.0, 1e-3, 1e-3) == 0


def test_narrow_boxes_stay_visible_and_out_of_the_next() -> None:
    """Boxes are widened to what can be seen, but not into the next box, and by a twentieth of the row at most."""
    row = gantt_rows(replayed("gpipe", 1, 2))[0]  # boxes of 1, 1, 2, 2 seconds that follow each other
    assert visible_widths(row, 10.0).tolist() == [1.0, 1.0, 2.0, 2.0]
    sparse = replace(row, start=np.array([0.0, 10.0, 20.0, 99.0]), end=np.array([0.1, 10.1, 20.1, 100.0]))
    assert visible_widths(sparse, 0.5).tolist() == pytest.approx([0.5, 0.5, 0.5, 1.0])
    assert visible_widths(sparse, 9.0).tolist() == pytest.approx([1.25, 1.25, 1.25, 1.25])


def test_a_chart_of_very_many_boxes_is_an_image_in_a_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many boxes as the limit are lines of an SVG, one more is not; the row behind them stays lines."""
    monkeypatch.setattr(gantt_plots, "_CUT_SVG_BOXES", 4)
    schedule = build_schedule("gpipe", 1, 2)
    for updates in (False, True):
        timeline = recurrence.replay(lower(schedule, given_costs(1, OpSeconds(1.0, 2.0, update=1.0)), updates=updates))
        behind, *boxes = gantt(timeline).collections
        assert not behind.get_rasterized()
        assert {bool(one.get_rasterized()) for one in boxes} == {updates}


def test_boxes_too_narrow_to_be_told_apart_are_shares_of_the_time() -> None:
    """A third of a row of 1F1B is forwards from turn to turn; of the fill, all; wider boxes stay boxes, and no time is lost."""
    row = gantt_rows(replayed("1f1b", 8, 512))[0]
    kept, (run,) = shared_time(row, 2.0)
    assert run.looks == ((OpKind.FORWARD, 0), (OpKind.BACKWARD, 0))
    steady = int(np.argmax(np.diff(run.edges)))
    assert run.shares[:, steady] == pytest.approx((1 / 3, 2 / 3), abs=0.01)
    assert np.diff(run.edges)[steady] > 0.95 * (run.edges[-1] - run.edges[0])
    assert np.all(np.abs(np.diff(run.shares)).max(axis=0) > 0.03)
    spent = float((run.shares * np.diff(run.edges)).sum() + (kept.end - kept.start).sum())
    assert spent == pytest.approx(3 * 512)
    unchanged, none = shared_time(row, 0.5)
    assert (len(unchanged), none) == (len(row), ())
    looped = gantt_rows(replayed("interleaved-1f1b", 16, 512, chunks=2, transfer=0.05))[0]
    flat = max(
        shared_time(looped, 3.6)[1], key=lambda one: one.edges[-1] - one.edges[0]
    )  # rounds of 16 forwards and backwards
    assert np.diff(flat.edges).max() > 0.9 * (flat.edges[-1] - flat.edges[0])


def test_narrow_boxes_are_drawn_above_each_other() -> None:
    """One stage with boxes of a fifth of a point: forwards in the lower third of the row, backwards above them."""
    axes = gantt(replayed("1f1b", 1, 4000))
    assert axes.get_xlabel() == "time (h; narrow ops as shares of the time)"
    low, high, third = 0.06, 0.94, 0.94 - 0.88 / 3
    drawn = [(to_hex(one.get_facecolor()[0]), one.get_paths()[0].get_extents()) for one in axes.collections]
    for (color, box), kind, ends in zip(
        drawn[1:], (OpKind.FORWARD, OpKind.BACKWARD), ((third, high), (low, third)), strict=True
    ):
        assert color == to_hex(KIND_COLORS[kind])
        assert (box.y0, box.y1) == pytest.approx(ends, abs=1e-3)
        assert (box.x0, box.x1) == axes.get_xlim()


def test_a_chart_beside_another_panel_keeps_to_its_own_width() -> None:
    """A long title does not begin over its neighbour; alone on a page it may begin above the names of its rows."""
    timeline, title = replayed("1f1b", 2, 4), "a plan whose title is much longer than its panel is wide, " * 2
    begins = []
    for columns in (1, 2):
        panel = panels(9.0, 2.5, columns=columns)[1]
        assert gantt(timeline, panel[0][-1], title=title) is panel[0][-1]
        (heading,) = (one for one in panel[0][-1].texts if one.get_fontweight() == "bold")
        begins.append(heading.xyann[0])
    assert begins[0] < -20.0
    assert begins[1] > -1.0


def test_a_whitened_color_is_a_part_of_the_way_to_white() -> None:
    """A quarter of 252, 204 and 152."""
    assert whitened("#033367", 0.25) == "#42668d"


def test_a_lane_without_tasks_has_no_row() -> None:
    """A device to which a schedule gives no op."""
    schedule = replace(
        from_text("0F0 0B0\n1F0 1B0"), offsets=np.array([0, 2, 2, 4]), device=np.array([0, 5, 1], dtype=np.int32)
    )
    timeline = recurrence.replay(lower(schedule, given_costs(2, OpSeconds(1.0, 2.0), devices=schedule)))
    assert len(timeline.lane_kind) == 3
    assert [row.label for row in gantt_rows(timeline)] == ["stage 0 (GPU 0)", "stage 1 (GPU 1)"]


def test_bars_stand_in_groups_and_crosses_where_there_are_none() -> None:
    """Two series over two places, in groups of 0.8: one bar each, a cross with its word for None, nothing for no number."""
    _, ((axes,),) = panels(4.0, 3.0)
    series = {"first": (1.0, None), "second": (float("nan"), 3.0)}
    bars = grouped_bars(axes, series, {name: {} for name in series}, scale=2.0, absent="no plan")
    assert {
        name: [(one.get_x(), one.get_width(), one.get_height()) for one in those] for name, those in bars.items()
    } == {"first": [pytest.approx((-0.4, 0.4, 2.0))], "second": [pytest.approx((1.0, 0.4, 6.0))]}
    assert [(line.get_xdata()[0], line.get_ydata()[0], line.get_marker()) for line in axes.lines] == [
        (pytest.approx(0.8), 0, "x")
    ]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("no plan", (pytest.approx(0.8), 0))]


def test_gantt_draws_into_given_axes_and_refuses_an_empty_window() -> None:
    """Given axes are used; a window that does not rise is a ValueError."""
    timeline = replayed("1f1b", 2, 2, transfer=0.5)
    ax = Figure(figsize=(6, 2)).add_axes((0.2, 0.2, 0.7, 0.5))
    assert gantt(timeline, ax, title="two stages") is ax
    assert ax.get_xlim() == (0.0, timeline.makespan_seconds)
    assert ax.get_ylim() == (2.0, 0.0)
    assert ax.get_xlabel() == "time (s)"
    with pytest.raises(ValueError, match=r"a window must rise from at least 0 seconds, got 2.0 to 2.0"):
        gantt(timeline, window=(2.0, 2.0))


@pytest.mark.parametrize(
    ("seconds", "unit", "factor"),
    [
        (0.0, "s", 1.0),
        (5e-8, "ns", 1e9),
        (2e-5, "µs", 1e6),
        (0.25, "ms", 1e3),
        (1.0, "s", 1.0),
        (10800.0, "h", 1 / 3600),
    ],
)
def test_time_units(seconds: float, unit: str, factor: float) -> None:
    """The unit is the largest that keeps the figure at 1 or more; hours from three on."""
    name, per_second = time_unit(seconds)
    assert name == unit
    assert per_second == pytest.approx(factor)


def test_byte_units_and_figures() -> None:
    """Bytes in binary units; numbers with three digits and thousands apart."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    for power, unit in enumerate(units):
        assert byte_unit(2.0 ** (10 * power)) == (unit, 2.0 ** (-10 * power))
        assert byte_unit(2.0 ** (10 * power) - 0.25)[0] == units[max(0, power - 1)]
    assert [figures(value) for value in (0, 16.0, 2416.4, 33.44, 0.01234)] == ["0", "16", "2,416", "33.4", "0.0123"]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.0, 10.0, [1, 1.5, 2, 3, 5, 7, 10]),
        (0.2, 19.0, [0.2, 0.5, 1, 2, 5, 10]),
        (3.0, 4000.0, [10, 100, 1000]),
    ],
)
def test_logarithmic_axes_have_plain_numbers(low: float, high: float, ticks: list[float]) -> None:
    """Of one decade seven, of two three a decade, of more one; without exponents."""
    axes = Figure().subplots()
    axes.plot([1, 2], [low, high])
    axes.set_yscale("log")
    logarithmic(axes.yaxis)
    within = [tick for tick in axes.yaxis.get_major_locator()() if low * 0.999 <= tick <= high * 1.001]
    assert within == pytest.approx(ticks)
    assert axes.yaxis.get_major_formatter().format_ticks(within) == [figures(tick) for tick in ticks]


def test_data_out_of_view_takes_no_labels() -> None:
    """What reaches beyond the limits of an axis, such as a band, does not thin its numbers out."""
    axes = Figure().subplots()
    axes.plot([1, 2], [0.01, 4000.0])
    axes.set(yscale="log", ylim=(0.2, 19.0))
    logarithmic(axes.yaxis)
    assert [tick for tick in axes.yaxis.get_major_locator()() if 0.2 <= tick <= 19.0] == pytest.approx(
        [0.2, 0.5, 1, 2, 5, 10]
    )


def test_the_last_step_of_a_moment_is_drawn() -> None:
    """Of one moment the last step stays."""
    held = np.zeros((3, len(CATEGORIES)))
    held[:, 4] = (1.0, 0.0, 7.0)
    times, kept = memory_steps(DeviceMemory(0, 10.0, np.array([0.0, 1.0, 1.0]), held))
    assert times.tolist() == [0.0, 1.0]
    assert kept[:, 4].tolist() == [1.0, 7.0]


def test_thinned_steps_end_where_the_last_op_ends() -> None:
    """10,000 spikes until 0.9 of the time, then nothing: each part shows its fullest step, and the last tenth none."""
    held = np.zeros((20_002, len(CATEGORIES)))
    held[:-2:2, 5] = np.arange(1, 10_001)
    long = DeviceMemory(0, 1e5, np.append(np.linspace(0.0, 0.9, 20_001), 1.0), held)
    times, kept = memory_steps(long, most=100)
    assert times.tolist() == np.linspace(0.0, 1.0, 101).tolist()
    assert kept[91:, 5].tolist() == [0.0] * 10
    assert (np.diff(kept[:90, 5]) > 0).all()
    assert kept[89, 5] == 10_000.0


def test_a_part_of_the_time_shows_what_was_held_as_it_began() -> None:
    """Held from 0 to 0.55 of the time: the first 6 of 10 parts are full, though only the first has a change to more."""
    held = np.zeros((13, len(CATEGORIES)))
    held[:2, 4] = 5.0
    times = np.array([0.0, 0.001, 0.55, *np.linspace(0.6, 1.0, 10)])
    assert memory_steps(DeviceMemory(0, 9.0, times, held), most=10)[1][:, 4].tolist() == [5.0] * 6 + [0.0] * 5


def test_a_peak_that_lasts_no_time_is_shown() -> None:
    """Taken and freed at one moment, the peak is as wide as a part of the time: the area touches its line."""
    held = np.zeros((4, len(CATEGORIES)))
    held[:, 4] = (1.0, 9.0, 2.0, 0.0)
    times, kept = memory_steps(DeviceMemory(0, 10.0, np.array([0.0, 0.5, 0.5, 1.0]), held), most=10)
    assert kept[:, 4].tolist() == [1.0] * 5 + [9.0] + [2.0] * 4 + [0.0]
    assert times[5] == 0.5


def test_steps_of_no_time_show_the_peak() -> None:
    """All at one moment, 0: the peak is among the steps and the last one is the end; without a peak before it, it is alone."""
    held = np.zeros((3, len(CATEGORIES)))
    held[:, 4] = (1.0, 9.0, 2.0)
    times, kept = memory_steps(DeviceMemory(0, 10.0, np.zeros(3), held), most=10)
    assert (times == 0.0).all()
    assert (kept[:, 4].max(), kept[-1, 4]) == (9.0, 2.0)
    assert memory_steps(DeviceMemory(0, 10.0, np.zeros(1), held[2:]))[1][:, 4].tolist() == [2.0]


@pytest.mark.parametrize("count", [3, 2000])
def test_the_area_of_a_memory_figure_reaches_its_peak_line(count: int) -> None:
    """The highest point of the stacked areas is the dashed line's height, with few ops and with many."""
    times = np.linspace(0.0, 1.0, 2 * count + 1)
    held = np.zeros((2 * count + 1, len(CATEGORIES)))
    held[:, 4] = np.abs(np.sin(np.arange(2 * count + 1))) * 1e9
    held[count, 5] = 3e9
    ax = memory_figure([DeviceMemory(0, 5e9, times, held)]).axes[0]
    top = max(path.vertices[:, 1].max() for area in ax.collections for path in area.get_paths())
    assert top == pytest.approx(ax.lines[0].get_ydata()[0])


def test_peak_rows_name_every_device_and_its_parts() -> None:
    """One row a device by id; the parts of a peak sum to it; what is not known of a reserve, an allocator or a driver is 0."""
    rows = peak_rows([memory(3, 80.0, 100.0), memory(1, 40.0, 100.0)])
    assert [(row["device"], row["peak_bytes"], row["share"]) for row in rows] == [(1, 40.0, 0.4), (3, 80.0, 0.8)]
    assert all(sum(row[name] for name in CATEGORIES) == row["peak_bytes"] for row in rows)
    assert all(not row[f"{name}_bytes"] for row in rows for name in ("reserve", "reserved", "driver"))


def test_devices_that_hold_the_same_share_a_row_of_the_table() -> None:
    """In GiB, without parts that no device has; beside them what plans may allocate, and what allocator and driver tell."""
    gib = 2.0**30
    held = [
        replace(memory(device, peak * gib, 8 * gib), reserved_bytes=5 * gib, driver_bytes=6 * gib)
        for device, peak in enumerate((4, 2, 4))
    ]
    (table,) = peak_tables(held)
    assert table.columns[0] == "devices"
    assert table.columns[-4:] == ("allocated", "room", "reserved", "driver's")
    assert [(row[0], *row[-4:]) for row in table.rows] == [
        ("0, 2", "4.00", "8.00", "5.00", "6.00"),
        ("1", "2.00", "8.00", "5.00", "6.00"),
    ]
    assert all(sum(map(float, row[1:-4])) == float(row[-4]) for row in table.rows)
    assert set(table.columns[1:-4]) < set(CATEGORIES)


def test_the_reserve_is_drawn_behind_the_capacity() -> None:
    """Where the capacity is in view; as wide as it is."""
    gib = 2.0**30
    plain = memory(0, 6 * gib, 8 * gib)
    device = replace(plain, reserve_bytes=gib)
    drawn = [[bar.get_bbox() for bar in memory_figure([one]).axes[-1].patches] for one in (device, plain)]  # type: ignore[attr-defined]
    assert [[box.x0, box.width] for box in drawn[0] if box.x0 >= 8.0] == [pytest.approx([8.0, 1.0])]
    assert not [box for box in drawn[1] if box.x0 >= 8.0]


def test_panels_show_all_of_few_devices_and_the_extremes_of_many() -> None:
    """Up to four devices each have a panel; of more, the fullest and the emptiest; of equal ones, one."""
    assert [one.device for one in shown_devices([memory(d, 10.0, 100.0) for d in (2, 0, 1)])] == [0, 1, 2]
    many = [memory(d, 10.0 + (d == 4) * 50 - (d == 2) * 5, 100.0) for d in range(6)]
    assert [one.device for one in shown_devices(many)] == [4, 2]
    assert [one.device for one in shown_devices([memory(d, 10.0, 100.0) for d in range(6)])] == [0]


def test_capacity_line_only_where_it_does_not_flatten() -> None:
    """A capacity of at most three times the peak is drawn as a line, a larger one is written out."""
    assert capacity_in_view([memory(0, 40.0, 120.0)])
    assert not capacity_in_view([memory(0, 40.0, 121.0)])
    for peak, words in ((40.0, "red line: capacity 100 bytes"), (30.0, "capacity 100 bytes, far beyond the axis")):
        figure = memory_figure([memory(0, peak, 100.0)])
        assert words in figure.axes[-1].get_title(loc="left")
    with pytest.raises(ValueError, match="at least one device"):
        memory_figure([])


def test_a_device_that_does_not_fit_is_named() -> None:
    """A peak above the capacity is said in words, not by colour alone."""
    figure = memory_figure([memory(7, 120.0, 100.0)])
    assert figure.axes[0].get_title(loc="left") == "GPU 7: peak 120 bytes, 120 % of 100 bytes: does not fit"


def test_files_are_whole_and_the_same_every_time(tmp_path: Path) -> None:
    """The files of one timeline have the same bytes twice, and nothing else is left in the folder."""
    for stem in ("a", "b"):
        for name in (stem, f"{stem}.pdf"):
            save(gantt(replayed("gpipe", 1, 1), title="twice").figure, tmp_path / name)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{a}.{kind}" for a in "ab" for kind in ("pdf", "png", "svg")
    ]
    for kind in ("pdf", "png", "svg"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "a.svg").read_text(encoding="utf-8")


# ---- layout ----------------------------------------------------------------------------------------------------------

LONG = "a-network-with-a-name-that-nobody-would-give-it-" * 6
HOSTILE = "x[/red] $\\bad{$ \x1b[31m ^_ \u202e"
"""Markup of terminals and of formulas, control characters, a mark that turns a line around."""


@pytest.mark.parametrize("name", ["fbp-as", "xpipe"])
def test_gantt_charts_of_families_can_be_read(name: str, recorded: Recorded) -> None:
    """Four stages, eight micro-batches, transfers, updates and predictions: nothing clipped, crossed or alike."""
    family = schedule_families()[name]
    schedule = build_schedule(name, 4, 8)
    communication = family.communications[0] if family.communications else "overlapped"
    costs = given_costs(4, OpSeconds(1.0, 2.0, transfer=0.2, update=0.4, predict=0.3), devices=schedule)
    program = lower(schedule, costs, communication=communication, updates=True)
    figure = gantt(engine.replay(program), title=name).figure
    assert_readable(figure)  # type: ignore[arg-type]
    recorded(figure=drawing(figure))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "timeline",
    [
        pytest.param(lambda: opposite(transfer=0.1), id="opposite directions"),
        pytest.param(lambda: seven_kinds(), id="a long legend"),
        pytest.param(lambda: replicated(60), id="rows shared"),
        pytest.param(lambda: replayed("gpipe", 1, 1), id="one box"),
        pytest.param(lambda: replayed("gpipe", 24, 12, transfer=0.1), id="many rows and boxes"),
        pytest.param(lambda: replayed("interleaved-1f1b", 16, 2, chunks=8), id="eight stages per device"),
    ],
)
def test_gantt_charts_can_be_read(timeline: Callable[[], Timeline], recorded: Recorded) -> None:
    """Few and many rows, with a title far too long; more boxes than have room for numbers."""
    figure = gantt(timeline(), title=LONG, device_word="board").figure
    assert_readable(figure)  # type: ignore[arg-type]
    recorded(figure=weights(drawing(figure)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("timeline", "size"),
    [
        pytest.param(lambda: replayed("1f1b", 4, 8), (3.3, 2.0), id="a column of a paper"),
        pytest.param(lambda: seven_kinds(), (3.3, 3.0), id="many names"),
        pytest.param(lambda: replayed("interleaved-1f1b", 16, 2, chunks=8), (3.3, 2.2), id="eight stages per device"),
    ],
)
def test_narrow_gantt_charts_can_be_read(timeline: Callable[[], Timeline], size: tuple[float, float]) -> None:
    """In one column of a paper: of the size that is asked for, every word in it and legible, rows with half of the width."""
    figure = gantt(timeline(), title=LONG, device_word="board", size=size).figure
    assert_readable(figure)  # type: ignore[arg-type]
    assert tuple(figure.get_size_inches()) == size
    assert figure.axes[0].get_position().width > 0.45
    assert min(text.get_fontsize() for text in figure.axes[0].get_yticklabels()) >= 6.0


def test_a_gantt_chart_of_replicas(recorded: Recorded) -> None:
    """Two replicas with their all-reduce and updates: places, colours, words and legend of a whole chart."""
    figure = gantt(replicated(2), title=LONG, device_word="board").figure
    assert_readable(figure)  # type: ignore[arg-type]
    recorded(figure=drawing(figure))  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "inches"), [(1, 0.5), (10, 3.4), (24, 8.0)])
def test_charts_grow_with_their_rows(rows: int, inches: float) -> None:
    """0.34 inches a row, at least half an inch and at most 8 inches together."""
    ax = gantt(replayed("gpipe", rows, 1))
    assert ax.get_position().height * ax.figure.get_figheight() == pytest.approx(inches)  # type: ignore[union-attr]


@pytest.mark.parametrize(("microbatches", "edge"), [(84, "none"), (83, "white")])
def test_boxes_wider_than_three_points_have_an_edge(microbatches: int, edge: str) -> None:
    """Boxes of a second on 504 points: 168 of them have three points each, 166 have more."""
    ax = Figure(figsize=(10.0, 2.0)).add_axes((0.2, 0.2, 0.7, 0.5))
    gantt(recurrence.replay(lower(build_schedule("gpipe", 1, microbatches), given_costs(1, OpSeconds(1.0, 1.0)))), ax)
    _, *boxes = ax.collections
    assert [one.get_edgecolor().tolist() for one in boxes] == [to_rgba_array(edge).tolist()] * 2
    assert [one.get_snap() for one in boxes] == [edge == "white"] * 2


@pytest.mark.parametrize(
    ("points", "name", "number", "every"), [(20.0, 9.0, 8.0, 1), (9.6, 7.2, 5.76, 1), (8.0, 6.5, None, 2)]
)
def test_low_rows_have_small_names_and_numbers(points: float, name: float, number: float | None, every: int) -> None:
    """Rows of such points: names of 3/4 of it from 6.5 to 9, numbers of 0.6 from 5.5 to 8; too low, every second has a name."""
    ax = Figure(figsize=(10.0, 10.0)).add_axes((0.2, 0.2, 0.7, 4 * points / 720))
    gantt(replayed("gpipe", 4, 1), ax)
    assert [text.get_text() for text in ax.get_yticklabels()] == [f"stage {n} (GPU {n})" for n in range(0, 4, every)]
    assert [text.get_fontsize() for text in ax.get_yticklabels()] == [pytest.approx(name)] * (4 // every)
    sizes = [text.get_fontsize() for text in ax.texts if text.get_text().isdigit()]
    assert sizes == ([] if number is None else [pytest.approx(number)] * 8)


def test_a_cut_can_be_read(recorded: Recorded) -> None:
    """The middle of a stream of 100 micro-batches: its words say that it is a cut, boxes and transfers end at its ends."""
    timeline = replayed("pipedream", 2, 100, transfer=0.4)
    figure = gantt(timeline, window=readable_window(timeline, boxes=6)).figure
    assert_readable(figure)  # type: ignore[arg-type]
    recorded(figure=drawing(figure))  # type: ignore[arg-type]


MODERN = """0F0 0F1 0F2 0F3 0F4 0A0 0I0 0W0 0A1 0B1 0A2 0B2 0A3 0B3 0A4 0B4
1F0 1F1 (1F2;1B0)OVERLAP_F_B (1F3;1B1)OVERLAP_F_B 1F4 1I2 1B3 1W2 1B4
1O0 1L0 1O1 1L1 1O3 1L3
"""


def test_pairs_forwards_again_and_offloads_are_told_apart(recorded: Recorded) -> None:
    """Halves of a pair fill one box's place, offloads have a thin row, and the legend names them all."""
    seconds = OpSeconds(1, 1.5, weight=1, transfer=0.1, overlapped=3, offload=0.6)
    timeline = replay_schedule(from_text(MODERN), seconds).timeline
    rows = gantt_rows(timeline, device_word="device")
    assert [(row.label, row.thin) for row in rows] == [
        ("stage 0 (device 0)", False), ("stage 1 (device 1)", False), ("stage 1 host link", True)
    ]  # fmt: skip
    assert rows[1].half.tolist() == [0, 0, -1, 1, -1, 1, 0, 0, 0, 0, 0]
    figure = gantt(timeline, title=LONG, device_word="device").figure
    assert_readable(figure)  # type: ignore[arg-type]
    (legend,) = (one for ax in figure.axes if (one := ax.get_legend()))
    names = {text.get_text() for text in legend.get_texts()}
    assert {"forward", "input gradient", "weight gradient", "forward again", "offload", "reload"} <= names
    assert "halves: overlapped pair" in names
    low = Figure(figsize=(10.0, 10.0)).add_axes((0.2, 0.2, 0.7, 3 * 9.6 / 720))
    gantt(timeline, low)
    sizes = {text.get_fontsize() for text in low.texts if text.get_text().isdigit()}
    assert min(sizes) == pytest.approx(
        max(sizes) * 0.35 / 0.6
    )  # shares of a row that numbers of halves and of boxes take
    recorded(figure=weights(drawing(figure)))


@pytest.mark.parametrize("limit", [np.inf, 3.5])
def test_memory_of_numbers_is_drawn_in_their_unit(limit: float) -> None:
    """Without a limit no line; with one it stands in every panel where it is in view."""
    replayed_here = replay_schedule(build_schedule("1f1b", 3, 4), OpSeconds(1, 2)).holding(OpMemory(1.5, memory=limit))
    figure = replayed_here.plot_memory()
    assert_readable(figure)
    shown = [line for ax in figure.axes[:3] for line in ax.get_lines() if list(line.get_ydata()) == [limit, limit]]
    assert len(shown) == (3 if limit < 10 else 0)
    assert "memory (units)" in {ax.get_ylabel() for ax in figure.axes}


def test_colours_of_kinds_and_categories_differ_in_grey() -> None:
    """Every two kinds of op, and every two categories of memory, differ in lightness."""
    for colors in (KIND_COLORS, CATEGORY_COLORS):
        shades = sorted(lightness(color) for color in colors.values())
        assert min(high - low for low, high in pairwise(shades)) >= LEAST_LIGHTNESS


def with_parts(device: int, peak: float, capacity: float, parts: Sequence[str] = ACTIVATION_PARTS) -> DeviceMemory:
    """A device whose activations belong to some parts evenly."""
    held = memory(device, peak, capacity)
    size = held.peak_parts["activations"] / len(parts)
    return replace(held, activations_by_part=dict.fromkeys(parts, size))


def test_activations_of_a_bar_are_their_parts() -> None:
    """Side by side in the order of the parts, dark before light, in place of the whole."""
    parts = ACTIVATION_PARTS[2:6]
    figure = memory_figure([with_parts(0, 64 * 2.0**30, 80e9, parts), with_parts(1, 32 * 2.0**30, 80e9, parts[1:2])])
    shades = list(part_colors(parts).values())
    bars = {to_hex(bar.get_facecolor()): bar for bar in figure.axes[-1].patches if bar.get_y() < 0.0}  # type: ignore[attr-defined]
    assert CATEGORY_COLORS["activations"] not in bars
    found = [(bars[shade].get_x(), bars[shade].get_width()) for shade in shades]
    assert all(end == pytest.approx(start) for (x, width), (start, _) in pairwise(found) for end in [x + width])
    row = peak_rows([with_parts(0, 64 * 2.0**30, 80e9, parts)])[0]
    assert sum(width for _, width in found) == pytest.approx(row["activations"] / 2**30)
    assert [lightness(one) for one in shades] == sorted(lightness(one) for one in shades)
    words = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert words[-5:] == ["activations at the peak:", *parts]


def test_parts_too_small_to_be_seen_are_drawn_together() -> None:
    """And so are all but the eight largest; no byte is left out."""
    row = peak_rows([memory(0, 4000.0, 1e4)])[0]
    sizes = {"norms": 19.0, "attention": 20.0, "MLP": 2960.0, "experts": 1.0}
    assert drawn_parts([{**row, "activations_by_part": sizes}]) == {
        "attention": [20.0],
        "MLP": [2960.0],
        "others": [20.0],
    }
    many = {part: 100.0 + place for place, part in enumerate(ACTIVATION_PARTS[:10])}
    found = drawn_parts([{**row, "activations_by_part": many}])
    assert list(found) == [*ACTIVATION_PARTS[2:10], "others"]
    assert found["others"] == [201.0]
    assert drawn_parts([row]) == {}


def test_many_devices_that_hold_the_same_share_a_bar() -> None:
    """Of up to 24 devices each has a bar; of more those whose peaks are the same, with the numbers of all of them."""
    rows = peak_rows([memory(d, (40.0, 80.0)[d // 32], 100.0) for d in range(64)])
    assert [(label, row["peak_bytes"]) for label, row in peak_bars(rows)] == [("0-31", 40.0), ("32-63", 80.0)]
    assert [label for label, _ in peak_bars(rows[:24])] == [str(number) for number in range(24)]


@pytest.mark.parametrize(
    "memories",
    [
        pytest.param([memory(0, 99.9e9, 100e9), memory(1, 130e9, 100e9)], id="beyond the capacity"),
        pytest.param([memory(d, 1e9 + 7e7 * d, 16e9) for d in range(24)], id="24 devices, far capacity"),
        pytest.param(
            [with_parts(d, 1e6 * (d + 1), 2e6 * (d + 1)) for d in range(30)],
            id="30 devices, own capacities, all parts",
        ),
        pytest.param([memory(d, 10.0 ** (3 * d), 1e12) for d in range(4)], id="own scales"),
        pytest.param([memory(0, 0.5, 100.0)], id="less than a byte"),
        pytest.param([DeviceMemory(0, 9.0, np.zeros(1), np.zeros((1, len(CATEGORIES))))], id="nothing for no time"),
    ],
)
def test_memory_figures_can_be_read(memories: list[DeviceMemory], recorded: Recorded) -> None:
    """Values stand beside the panel, where no line can run through them; every axis is named."""
    figure = memory_figure(memories, title=LONG)
    assert_readable(figure)
    recorded(figure=weights(drawing(figure)))


@pytest.mark.parametrize(("count", "told"), [(24, 24), (25, 0)])
def test_few_bars_have_numbers_beside_them(count: int, told: int) -> None:
    """One for each of up to 24 bars; beyond, they would run into each other."""
    figure = memory_figure([memory(d, 1e9 + 7e7 * d, 1.5e9 + 8e7 * d) for d in range(count)])
    assert len([text for text in figure.axes[-1].texts if text.get_text()]) == told


def test_a_memory_figure_close_to_the_capacity(recorded: Recorded) -> None:
    """Area, lines, bar, words and legend of a whole figure."""
    figure = memory_figure([memory(0, 95.0, 100.0)], title=LONG)
    assert_readable(figure)
    recorded(figure=drawing(figure))


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """A formula that does not parse, an escape, a mark that reverses text: drawn as characters, in every text of a figure."""
    assert legible("a\x1b[31mb\u202e c\n d") == r"a\x1b[31mb\u202e c d"
    assert legible("x" * 80, 20) == "x" * 10 + "…" + "x" * 9
    for title in (r"$\bad{$", "[/red]\x1b[31m\x00"):
        for figure in (
            gantt(replayed("gpipe", 1, 1), title=title, device_word=title).figure,
            memory_figure([memory(0, 40.0, 100.0)], title=title, device_word=title),
        ):
            figure.draw_without_rendering()  # type: ignore[union-attr]
            assert all(text.get_text().isprintable() for text in figure.findobj(Text))
    page = Figure()
    gantt(replayed("1f1b", 1, 2), page.subplots(), title=r"x$\frac{$", device_word="$_{$")
    page.draw_without_rendering()
    save(gantt(replayed("1f1b", 1, 1), title=HOSTILE, device_word=HOSTILE).figure, tmp_path / "gantt")  # type: ignore[arg-type]
    assert "\x1b" not in (tmp_path / "gantt.svg").read_text(encoding="utf-8")


def test_captions_stand_below_in_lines_of_the_figures_width() -> None:
    """At most 11 characters of 10 points an inch; a longer axis of numbers of many decades names every other one."""
    figure, _ = panels(4.0, 1.0)
    captioned(figure, "word " * 40)
    assert max(map(len, figure.get_supxlabel().split("\n"))) == 44  # whole words and the spaces between them
    figure, ((axes,),) = panels(4.0, 3.0)
    axes.plot([250.0, 7e7], [1.0, 2.0])
    logarithmic_axes(axes, "x")
    figure.draw_without_rendering()
    inside = [one for one in axes.get_xticks() if 250.0 <= one <= 7e7]
    assert inside == [1e4, 1e6]
