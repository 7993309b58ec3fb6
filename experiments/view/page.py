"""Page: drawn plans as one HTML file with all that a browser needs in it; Bokeh draws, scripts beside this file choose what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from experiments.view.drawn_plan import CAUSE_COLORS, BoxLayer, DrawnPlan, MemoryTrack, used_kinds
from experiments.view.page_frame import framed, script
from experiments.view.plan_table import FactRow, fact_rows
from hardware_profiles import legible
from simulator import CATEGORIES, CAUSE_WORDS, CAUSES, LETTERS, OpKind, Outcome, ScheduleReplay
from simulator.results.figures import ALARM, IDLE, INK, byte_unit, figures, time_unit
from simulator.results.memory_plots import CATEGORY_COLORS

PATH_COLOR = ALARM
LABEL_PIXELS = 230
"""Width of the labels of lanes."""

ROW_PIXELS, LEAST_ROW_PIXELS, HIGH = 26.0, 8.0, 1400.0
"""Of a device's lane, and at least, where all would be higher than a screen or two."""

MEMORY_PIXELS = 190
MUCH_LONGER = 5.0
"""Times the shortest timeline, from which one does not decide what a page opens on."""

USE = "Drag to pan; zoom with Ctrl and the wheel, or with the box of the toolbar; point at a box to read it."

CHOICES = ("critical path", "idle causes")
"""What is drawn when it is asked for."""


def html_page(
    plans: Sequence[DrawnPlan], replays: Mapping[str, Outcome | ScheduleReplay], *, title: str = "pipeplan"
) -> str:
    """The page of replays, by name, and what `drawn_plans` says of them; the same text of the same replays."""
    rows = fact_rows(tuple(replays.values()))
    hint = USE + " Decisions in which plans differ are marked ≠." * any(row.differs for row in rows)
    above = f'{table_html(tuple(replays), rows)}{_legends(plans)}<p class="hint">{hint}</p>'
    return framed(layout(plans), title=title, above=above)


def table_html(names: Sequence[str], rows: Sequence[FactRow]) -> str:
    """Figures and decisions, a column for each plan; rows of decisions that differ are marked."""
    head = "".join(f"<th>{escape(legible(name))}</th>" for name in names)
    lines, before = [], True
    for row in rows:
        classes = " ".join(["decisions"] * (row.decision and not before) + ["differs"] * row.differs)
        cells = "".join(f"<td>{escape(legible(value, 300))}</td>" for value in row.values)
        lines.append(f'<tr class="{classes}"><th>{escape(row.name)}</th>{cells}</tr>')
        before = row.decision
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _legends(plans: Sequence[DrawnPlan]) -> str:
    causes = {look.name for plan in plans for look in plan.idle.looks}
    told = {f"{name}: {CAUSE_WORDS[name]}": CAUSE_COLORS[name] for name in CAUSES if name in causes}
    parts = {part: CATEGORY_COLORS[part] for part in _parts([one for plan in plans for one in plan.memory])}
    lines = {"Ops": {**used_kinds(plans), "critical path": PATH_COLOR}, "Idle": told, "Memory": parts}
    chips = {
        name: "".join(f'<span><i style="background:{color}"></i>{escape(word)}</span>' for word, color in one.items())
        for name, one in lines.items()
    }
    return "".join(
        f'<div class="legend"><span><b>{name}</b></span>{text}</div>' for name, text in chips.items() if text
    )


# ---- what Bokeh draws ---------------------------------------------------------------------------------------------


def layout(plans: Sequence[DrawnPlan]) -> Any:
    """The Bokeh models of a page: choices, then a heading, a timeline and its memory for each plan, on one axis of time.

    Where some are MUCH_LONGER than the shortest it opens on the others.
    """
    from bokeh.layouts import column
    from bokeh.models import CheckboxGroup, CustomJS, Div, Range1d

    longest = max(plan.window[1] for plan in plans)
    unit, factor = time_unit(longest - min(plan.window[0] for plan in plans))
    begin = min(plan.window[0] for plan in plans) * factor
    end = max(longest * factor, begin + 1e-9)
    room = (end - begin) * 0.01
    ends = sorted(plan.window[1] * factor for plan in plans)
    opened = max(one for one in ends if one - begin <= MUCH_LONGER * (ends[0] - begin))
    opened = max(opened, begin + 1e-9)
    x_range = Range1d(
        start=begin - room, end=opened + (opened - begin) * 0.01, bounds=(begin - 5 * room, end + 5 * room)
    )
    choices = CheckboxGroup(labels=list(CHOICES), active=[], inline=True, name="choices")
    children: list[Any] = [choices]
    layers: list[dict[str, Any]] = []
    asked: list[list[Any]] = [[] for _ in CHOICES]
    for number, plan in enumerate(plans):
        name, title = escape(legible(plan.name, 100)), escape(legible(plan.title, 200))
        heading = f"<b>{name}</b>: {title}, {figures(plan.makespan * factor)} {unit}"
        children.append(Div(text=heading, disable_math=True, margin=(14, 5, 0, 5)))
        timeline, own, path, idle = _timeline(plan, number, x_range, unit, factor)
        children.append(timeline)
        layers += own
        asked[0].append(path)
        asked[1].append(idle)
        if plan.memory:
            children += _memory(plan, number, x_range, unit, factor)
    levels = CustomJS(args={"layers": layers, "x_range": x_range}, code=script("levels"))
    x_range.js_on_change("start", levels)
    x_range.js_on_change("end", levels)
    for layer in layers:
        layer["plot"].js_on_change("inner_width", levels)
    code = "asked.forEach((own, number) => own.forEach((one) => { one.visible = cb_obj.active.includes(number) }))"
    choices.js_on_change("active", CustomJS(args={"asked": asked}, code=code))
    return column(children, sizing_mode="stretch_width")


def _figure(x_range: Any, y_range: Any, height: int, name: str, **options: Any) -> Any:
    """A plot whose frame stands below those of the others."""
    from bokeh.models import PanTool, ResetTool, WheelZoomTool
    from bokeh.plotting import figure

    wheel = WheelZoomTool(dimensions="width", modifiers="ctrl")
    pan = PanTool(dimensions="width")
    plot = figure(
        x_range=x_range,
        y_range=y_range,
        height=height,
        sizing_mode="stretch_width",
        tools=[pan, wheel, "xbox_zoom", "xzoom_in", "xzoom_out", ResetTool()],
        active_drag=pan,
        active_scroll=wheel,
        min_border_left=LABEL_PIXELS,
        min_border_right=20,
        name=name,
        **options,
    )
    plot.toolbar.logo = None
    plot.outline_line_color = None
    plot.grid.grid_line_color = None
    plot.xaxis.minor_tick_line_color = None
    plot.axis.axis_line_color = None
    return plot


def _timeline(plan: DrawnPlan, number: int, x_range: Any, unit: str, factor: float) -> tuple[Any, list[Any], Any, Any]:
    """The plot of a timeline, its layers for `levels.js`, and what shows when it is asked for: path and causes."""
    from bokeh.models import ColumnDataSource, FixedTicker, PlainText, Range1d

    pixels = max(LEAST_ROW_PIXELS, min(ROW_PIXELS, HIGH / plan.height))
    height = int(pixels * plan.height) + 62
    y_range = Range1d(start=plan.height, end=0.0)
    plot = _figure(x_range, y_range, height, f"timeline {number}", toolbar_location="above")
    plot.xaxis.axis_label = f"time ({unit})"
    middles = {(lane.top + lane.bottom) / 2: legible(lane.label, 44) for lane in plan.lanes}
    plot.yaxis.ticker = FixedTicker(ticks=list(middles))
    plot.yaxis.major_label_overrides = {place: PlainText(text=label) for place, label in middles.items()}
    plot.yaxis.major_tick_line_color = None
    plot.yaxis.major_label_text_font_size = f"{min(11, int(pixels * 0.42) + 1)}px"
    begin, end = (one * factor for one in plan.window)
    edge = [0.07 * (lane.bottom - lane.top) for lane in plan.lanes]
    plot.quad(
        left=begin,
        right=end,
        top=[lane.top + one for lane, one in zip(plan.lanes, edge, strict=True)],
        bottom=[lane.bottom - one for lane, one in zip(plan.lanes, edge, strict=True)],
        color=IDLE,
        line_color=None,
        level="underlay",
    )
    drawn, told = {}, {}
    for sort, layer in (("idle", plan.idle), ("links", plan.links), ("ops", plan.ops)):
        full = ColumnDataSource(_columns(layer, factor), name=f"{sort} {number}")
        told[sort] = {"full": full, "looks": _looks(plan, layer), "lanes": [lane.label for lane in plan.lanes]}
        drawn[sort] = _boxes(plot, f"{sort} {number}")
    texts = ColumnDataSource({"x": [], "y": [], "text": [], "color": []})
    plot.text(
        *("x", "y"),
        text="text",
        text_color="color",
        source=texts,
        text_align="center",
        text_baseline="middle",
        text_font_size=f"{min(11, int(pixels * 0.45))}px",
    )
    for sort, renderer in drawn.items():
        plot.add_tools(_hover(renderer, sort, told, unit))
    path = plot.line(
        plan.path[:, 0].astype(np.float32) * np.float32(factor),
        plan.path[:, 1].astype(np.float32),
        line_color=PATH_COLOR,
        line_width=2.5,
        line_join="round",
        visible=False,
        name=f"critical path {number}",
    )
    drawn["idle"].visible = False
    background = [int(IDLE[place : place + 2], 16) for place in (1, 3, 5)]
    layers = [
        {
            "full": told[sort]["full"],
            "looks": told[sort]["looks"],
            "shown": renderer.data_source,
            "texts": texts if sort == "ops" else None,
            "plot": plot,
            "row_pixels": pixels,
            "background": background,
        }
        for sort, renderer in drawn.items()
    ]
    return plot, layers, path, drawn["idle"]


def _columns(layer: BoxLayer, factor: float) -> dict[str, Any]:
    """Columns of a layer in the smallest numbers that hold them, times in the unit of the axis."""
    times = {"start": layer.start, "end": layer.end, **{k: v for k, v in layer.numbers.items() if v.dtype.kind == "f"}}
    whole = {"look": layer.look, **{k: v for k, v in layer.numbers.items() if v.dtype.kind != "f"}}
    found = {name: (column * factor).astype(np.float32) for name, column in times.items()}
    return found | {name: _small(column) for name, column in whole.items()}


def _small(column: Any) -> Any:
    for kind in (np.uint8, np.uint16, np.int32):
        if not len(column) or (column.min() >= np.iinfo(kind).min and column.max() <= np.iinfo(kind).max):
            return column.astype(kind)
    raise ValueError(f"a page counts to {np.iinfo(np.int32).max}, got {column.max()}")


def _looks(plan: DrawnPlan, layer: BoxLayer) -> dict[str, list[Any]]:
    """Looks as columns; where each lies, from the top."""
    places = []
    for look in layer.looks:
        lane = plan.lanes[look.lane]
        tall = (lane.bottom - lane.top) / look.tracks
        places.append((lane.top + look.track * tall, lane.top + (look.track + 1) * tall))
    numbered = {LETTERS[kind] for kind in OpKind if kind <= OpKind.WEIGHT_GRADIENT or kind == OpKind.RECOMPUTE}
    return {
        "lane_number": [look.lane for look in layer.looks],
        "lane": [f"{look.lane} {look.track} {look.tracks}" for look in layer.looks],
        "top": [top for top, _ in places],
        "bottom": [bottom for _, bottom in places],
        "rgb": [[int(look.color[place : place + 2], 16) for place in (1, 3, 5)] for look in layer.looks],
        "numbered": [look.name in numbered for look in layer.looks],
        **{
            name: [getattr(look, name) for look in layer.looks]
            for name in ("stage", "name", "words", "samples", "bytes")
        },
    }


def _boxes(plot: Any, name: str) -> Any:
    from bokeh.models import ColumnDataSource

    source = ColumnDataSource({one: [] for one in ("left", "right", "top", "bottom", "color", "box")})
    return plot.quad(
        *("left", "right", "top", "bottom"), fill_color="color", line_color=None, source=source, name=f"shown {name}"
    )


def _hover(renderer: Any, sort: str, told: Mapping[str, Any], unit: str) -> Any:
    from bokeh.models import CustomJSHover, HoverTool

    text = CustomJSHover(args={"layers": told, "sort": sort, "unit": unit}, code=script("hover"))
    lines = '<div style="white-space: pre-line; font-size: 12px">@box{custom}</div>'
    return HoverTool(renderers=[renderer], tooltips=lines, formatters={"@box": text}, visible=False)


# ---- memory -------------------------------------------------------------------------------------------------------


def _parts(tracks: Iterable[MemoryTrack]) -> list[str]:
    held = [one.bytes.max(axis=0) for one in tracks]
    return [name for place, name in enumerate(CATEGORIES) if any(one[place] > 0 for one in held)]


def _memory(plan: DrawnPlan, number: int, x_range: Any, unit: str, factor: float) -> list[Any]:
    """The memory of a plan: which device, and its bytes by part over time."""
    from bokeh.models import ColumnDataSource, CustomJS, HoverTool, Range1d, Select, Span

    tracks, parts = plan.memory, _parts(plan.memory)
    peaks = [float(one.bytes.sum(axis=1).max()) for one in tracks]
    word, size = (plan.unit, 1.0) if plan.unit else byte_unit(max(peaks))
    columns = {part: np.concatenate([one.bytes[:, CATEGORIES.index(part)] for one in tracks]) for part in parts}
    full = ColumnDataSource(
        {
            "time": (np.concatenate([one.times for one in tracks]) * factor).astype(np.float32),
            **{part: (column * size).astype(np.float32) for part, column in columns.items()},
        },
        name=f"memory {number}",
    )
    limits = [one.capacity * size for one in tracks]
    tops = [
        max(1.12 * limit if limit <= 3.0 * peak * size else 0.0, 1.12 * peak * size, 1e-9)
        for limit, peak in zip(limits, peaks, strict=True)
    ]
    options = [
        (f"{place}", f"memory of {legible(one.label, 60)}: peak {figures(peak * size)} {word}{_of(limit, word)}")
        for place, (one, peak, limit) in enumerate(zip(tracks, peaks, limits, strict=True))
    ]
    fullest = max(range(len(tracks)), key=lambda place: peaks[place] / tracks[place].capacity)
    select = Select(options=options, value=f"{fullest}", width=LABEL_PIXELS * 2 + 60, name=f"device {number}")
    y_range = Range1d(start=0.0, end=tops[fullest])
    plot = _figure(x_range, y_range, MEMORY_PIXELS, f"memory of {number}", toolbar_location=None)
    plot.yaxis.axis_label = f"memory ({word})"
    nothing = [0.0, 0.0]  # of empty steps BokehJS makes no end
    shown = ColumnDataSource(dict.fromkeys(("time", "total", *parts), nothing))
    for place, part in enumerate(parts):
        for edge in ("from", "to"):
            shown.add(nothing, f"{edge} {place}")
        plot.varea_step(
            "time", f"from {place}", f"to {place}", step_mode="after", color=CATEGORY_COLORS[part], source=shown
        )
    total = plot.step("time", "total", mode="after", line_color=INK, line_width=0.8, source=shown)
    words = [
        ("total", f"@total{{0.000}} {word}"),
        *((part, f"@{{{part}}}{{0.000}} {word}") for part in reversed(parts)),
    ]
    plot.add_tools(HoverTool(renderers=[total], tooltips=words, mode="vline", line_policy="prev", visible=False))
    limit = Span(dimension="width", line_color=ALARM, line_width=1.6)
    plot.add_layout(limit)
    offsets = np.cumsum([0, *(len(one.times) for one in tracks)]).tolist()
    finite = [one if np.isfinite(one) else 1e30 for one in limits]
    choose = CustomJS(
        args={
            "full": full,
            "shown": shown,
            "select": select,
            "offsets": offsets,
            "parts": parts,
            "y_range": y_range,
            "tops": tops,
            "limits": finite,
            "limit": limit,
        },
        code=script("memory"),
    )
    select.js_on_change("value", choose)
    plot.js_on_change("inner_width", choose)
    return [select, plot]


def _of(limit: float, word: str) -> str:
    return f" of {figures(limit)} {word}" if np.isfinite(limit) else ""
