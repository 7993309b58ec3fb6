"""Sweep page: the rows of a sweep as one HTML file: seconds along an axis, a heat map, throughput against memory, and a table.

All four show one selection: a row that is chosen in one of them stands out in the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import product
from typing import Any

import numpy as np

from experiments.sweep.axes import Axis
from experiments.sweep.sweep_plots import MOST_CELLS, MOST_LINES, MOST_TICKS, RING, line_look, rises_by_factors
from experiments.sweep.swept import COLUMNS, MOST_ROWS, Swept, place_words
from experiments.terminal.report_tables import Row, written_cell
from experiments.view.page_frame import COMPONENTS, framed
from hardware_profiles import GIB, counted, legible
from simulator.results.figures import FAINT, GREY, INK, capacities_in_view, figures, series_look

MOST_POINTS_SHOWN = 20_000
"""Points that a page of 20 MB has room for."""

USE = (
    "Point at a mark to read its plan. A click on it, or on a row of the table, shows the point in all figures; one in a legend "
    "hides a line, or shows it again; one on a heading of the table sorts it."
)

NUMBERS = {
    "iteration,\nseconds": "iteration_seconds",
    "samples/s": "samples_per_second",
    "peak memory,\nGiB": "peak_memory_bytes",
    "gap": "gap",
}
"""By what columns of COLUMNS are sorted, other than their words."""

LETTER, MARGIN, WIDE = 7, 24, 380
"""Pixels of a letter, beside the words of a column, and of a column at most."""

LOOKS = {"sizing_mode": "stretch_width", "min_border_left": 90, "min_border_right": 20}
TOOLS = "pan,box_zoom,wheel_zoom,reset,tap"
DASHES = {"-": "solid", "--": "dashed", "-.": "dashdot", ":": "dotted", (0, (6, 1, 1, 1)): "6 1 1 1"}
MARKS = {
    "o": "circle",
    "s": "square",
    "^": "triangle",
    "D": "diamond",
    "v": "inverted_triangle",
    "P": "plus",
    "X": "star",
}
"""Bokeh's words for matplotlib's."""


class TooManyPointsError(ValueError):
    """A page that would be too large."""


def sweep_html(swept: Swept) -> str:
    """The page of a sweep. TooManyPointsError for one of more than MOST_POINTS_SHOWN."""
    if len(swept.rows) > MOST_POINTS_SHOWN:
        raise TooManyPointsError(
            f"the page would have {len(swept.rows):,} points, and has room for {MOST_POINTS_SHOWN:,}: sweep fewer values"
        )
    remarks = [*swept.refusals()[:MOST_ROWS], *swept.interruption()]
    told = "".join(f"<li>{escape(legible(line, 300))}</li>" for line in remarks)
    above = f'<p class="hint">{USE}</p><ul>{told}</ul>'
    return framed(layout(swept), title=f"sweep: {swept.title}", above=above, components=(*COMPONENTS, "bokeh-tables"))


def layout(swept: Swept) -> Any:
    """The Bokeh models of a page: the figures for which there are plans and axes enough, and the table, of one source of rows."""
    from bokeh.layouts import column
    from bokeh.models import ColumnDataSource

    rows = ColumnDataSource(columns_of(swept), name="rows")
    children = []
    if swept.planned:
        children = [_lines(swept, rows), *_heat_map(swept, rows), _pareto(swept, rows)]
    return column([*children, _table(swept, rows)], sizing_mode="stretch_width")


def columns_of(swept: Swept) -> dict[str, Any]:
    """What is said of every row by column: `place_N` and `value_N` of the Nth axis in words and as a number, or the number of the
    word; `cell_N` of the Nth of COLUMNS, `number_N` by which it is sorted, infinity without a plan; `where`, all that is varied.
    """
    found: dict[str, Any] = {"where": [place_words(swept.varied, row) for row in swept.rows]}
    for number, axis in enumerate(swept.axes):
        found[f"place_{number}"] = [_word(row[axis.name]) for row in swept.rows]
        found[f"value_{number}"] = np.array([_place(axis, row) for row in swept.rows], dtype=np.float64)
    for number, (heading, cell) in enumerate(COLUMNS.items()):
        found[f"cell_{number}"] = [legible(written_cell(cell, row), 200) for row in swept.rows]
        if heading in NUMBERS:
            found[f"number_{number}"] = np.array([_number(row.get(NUMBERS[heading])) for row in swept.rows])
    found["seconds"] = np.array(
        [_number(row["iteration_seconds"]) if row["feasible"] else math.inf for row in swept.rows]
    )
    found["memory"] = np.array([_number(row["peak_memory_bytes"]) / GIB for row in swept.rows])
    found["throughput"] = np.array([_number(row["samples_per_second"]) for row in swept.rows])
    after = {id(row): words for _, row, words in swept.changes()}
    found["change"] = [legible(after.get(id(row), "as before"), 200) for row in swept.rows]
    return found


def _number(value: float | None) -> float:
    return math.inf if value is None or not math.isfinite(value) else float(value)


def _word(value: object) -> str:
    return legible(str(value), 40)


def _place(axis: Axis, row: Row) -> float:
    return float(row[axis.name]) if axis.numeric else float(axis.values.index(row[axis.name]))


def _indices(swept: Swept, rows: Iterable[Row]) -> list[int]:
    numbers = {id(row): number for number, row in enumerate(swept.rows)}
    return [numbers[id(row)] for row in rows]


def _view(swept: Swept, rows: Iterable[Row]) -> Any:
    """These rows of the source."""
    from bokeh.models import CDSView, IndexFilter

    return CDSView(filter=IndexFilter(indices=_indices(swept, rows)))


def _figure(name: str, title: str, **options: Any) -> Any:
    from bokeh.plotting import figure

    plot = figure(name=name, title=title, tools=TOOLS, toolbar_location="above", **LOOKS, **options)
    plot.toolbar.logo = None
    plot.outline_line_color = None
    plot.title.text_color = INK
    return plot


def _hover(swept: Swept, renderers: Sequence[Any], *more: tuple[str, str]) -> Any:
    """What is told of the mark at the pointer: where, its figures, and the plan in a line."""
    from bokeh.models import HoverTool

    told = [(_heading(name), f"@cell_{number}") for number, name in enumerate(COLUMNS)]
    return HoverTool(renderers=[*renderers], tooltips=[("", "@where"), *told, *more], visible=False)


def _heading(name: str) -> str:
    return name.replace("\n", " ")


def _axis_of_numbers(axis: Any, words: str, ticks: Mapping[float, str] | None = None) -> None:
    """An axis with plain numbers, or with these words at these places."""
    from bokeh.models import CustomJSTickFormatter, FixedTicker, PlainText

    axis.axis_label = PlainText(text=words)
    if ticks is not None:
        axis.ticker = FixedTicker(ticks=list(ticks))
        axis.major_label_overrides = {place: PlainText(text=text) for place, text in ticks.items()}
        return
    axis.formatter = CustomJSTickFormatter(code='return tick.toLocaleString("en-US", {maximumSignificantDigits: 3})')


# ---- lines -----------------------------------------------------------------------------------------------------------


def _lines(swept: Swept, rows: Any) -> Any:
    """Seconds of an iteration along the longest axis, a line for each point of the others; a ring where the plan changes."""
    from bokeh.core.properties import value
    from bokeh.models import ColumnDataSource, Legend, LegendItem

    along = swept.along
    lines = [own for own in swept.lines().values() if any(row["feasible"] for row in own)]
    left = f" ({MOST_LINES} of {len(lines)} lines)" if len(lines) > MOST_LINES else ""
    scale = "log" if rises_by_factors(along) else "linear"
    changed = {id(after) for _, after, _ in swept.changes()}
    plot = _figure(
        "lines",
        f"Seconds per iteration{left}{RING * bool(changed)}",
        height=420,
        x_axis_type=scale,
        y_axis_type="log",
    )
    column, items, points = f"value_{swept.axes.index(along)}", [], []
    for number, own in enumerate(lines[:MOST_LINES]):
        fitting = [row for row in own if row["feasible"]]
        look = line_look(swept, number, own[0])
        color = look["color"]
        data = {"x": [_place(along, row) for row in fitting], "y": [row["iteration_seconds"] for row in fitting]}
        line = plot.line("x", "y", source=ColumnDataSource(data), line_color=color, line_width=1.6)
        line.glyph.line_dash = DASHES[look["linestyle"]]
        mark = {"marker": MARKS[look["marker"]], "size": 8, "color": color, "nonselection_alpha": 0.3}
        point = plot.scatter(column, "seconds", source=rows, view=_view(swept, fitting), **mark)
        rings = _view(swept, (row for row in fitting if id(row) in changed))
        ring = plot.scatter(
            *(column, "seconds"),
            source=rows,
            view=rings,
            size=16,
            line_color=color,
            fill_color=None,
            line_width=1.6,
            name=f"rings {number}",
        )
        words = place_words(swept.others, own[0])
        items.append(LegendItem(label=value(legible(words, 60) or "seconds"), renderers=[line, point]))
        line.js_link("visible", ring, "visible")
        line.name, point.name = f"line {number}", f"points {number}"
        points.append(point)
    plot.add_layout(Legend(items=items, click_policy="hide", border_line_color=None, name="legend"), "right")
    plot.add_tools(_hover(swept, points, ("decided otherwise", "@change")))
    ticks = {_place(along, {along.name: one}): _word(one) for one in along.values}
    _axis_of_numbers(plot.xaxis[0], along.name, ticks if len(ticks) <= MOST_TICKS or not along.numeric else None)
    if not along.numeric:
        plot.xaxis.major_label_orientation = 0.4
    _axis_of_numbers(plot.yaxis[0], "seconds per iteration")
    return plot


# ---- a heat map ------------------------------------------------------------------------------------------------------


def _heat_map(swept: Swept, rows: Any) -> list[Any]:
    """Seconds of an iteration over the two axes of most values, of the point of the others that is chosen; nothing where there is
    one axis alone.
    """
    from bokeh.models import ColorBar, CustomJS, FactorRange, LogColorMapper, PlainText, Select
    from bokeh.palettes import Viridis256

    if len(swept.varied) < 2:
        return []
    rows_of, columns = plane = swept.plane
    known = [row["iteration_seconds"] for row in swept.planned]
    low, high = (min(known), max(known)) if max(known) > min(known) else (min(known) / 2, 2 * max(known))
    mapper = LogColorMapper(palette=Viridis256, low=low, high=high, high_color=GREY)
    x, y = (f"place_{swept.axes.index(one)}" for one in (columns, rows_of))
    plot = _figure(
        "heat map",
        "Seconds per iteration; grey: no plan fits",
        x_range=FactorRange(*map(_word, columns.values)),
        y_range=FactorRange(*map(_word, rows_of.values)),
        height=140 + 44 * min(len(rows_of.values), 16),
    )
    plot.grid.grid_line_color = None
    for axis, one in ((plot.xaxis, columns), (plot.yaxis, rows_of)):
        axis.axis_label = PlainText(text=one.name)
    plot.xaxis.major_label_orientation = "horizontal" if columns.numeric else 0.4
    others = [one for one in swept.varied if one not in plane]
    by_place: dict[tuple[Any, ...], list[Row]] = {place: [] for place in product(*(one.values for one in others))}
    for row in swept.rows:
        by_place[tuple(row[one.name] for one in others)].append(row)
    groups = [_indices(swept, own) for own in by_place.values()]
    view = _view(swept, next(iter(by_place.values())))
    color = {"field": "seconds", "transform": mapper}
    cells = plot.rect(
        *(x, y),
        width=1,
        height=1,
        source=rows,
        view=view,
        fill_color=color,
        line_color="white",
        nonselection_fill_alpha=0.55,
        name="cells",
    )
    if len(rows_of.values) * len(columns.values) <= MOST_CELLS:
        middle = math.sqrt(low * high)
        seconds = rows.data["seconds"]
        rows.data["in cell"] = ["" if math.isinf(one) else figures(one) for one in seconds]
        rows.data["on cell"] = ["white" if one < middle else INK for one in seconds]
        words = {"text_align": "center", "text_baseline": "middle", "text_font_size": "12px"}
        plot.text(
            x, y, text="in cell", text_color="on cell", source=rows, view=view, nonselection_text_alpha=1.0, **words
        )
    bar = ColorBar(color_mapper=mapper, title="seconds", name="color bar")
    plot.add_layout(bar, "right")
    plot.add_tools(_hover(swept, [cells]))
    if len(groups) == 1:
        return [plot]
    options = [(f"{number}", place_words(others, own[0])) for number, own in enumerate(by_place.values()) if own]
    select = Select(options=options, value="0", width=460, name="panel", title="heat map of")
    code = "filter.indices = groups[Number(cb_obj.value)]"
    select.js_on_change("value", CustomJS(args={"filter": view.filter, "groups": groups}, code=code))
    return [select, plot]


# ---- throughput against memory ---------------------------------------------------------------------------------------


def _pareto(swept: Swept, rows: Any) -> Any:
    """Samples per second against peak memory: all plans that fit, and a line through those that none beats for each number of
    devices in use."""
    from bokeh.core.properties import value
    from bokeh.models import ColumnDataSource, Legend, LegendItem, Span

    capacities, beyond = capacities_in_view(
        swept.capacities_gib, max(row["peak_memory_bytes"] / GIB for row in swept.planned)
    )
    words = "; dotted: capacity" * bool(capacities) + f"; {beyond}" * bool(beyond)
    title = f"Lines: plans that none beats in throughput, memory and devices{words}"
    plot = _figure("pareto", title, height=420, x_axis_type="log", y_axis_type="log")
    for one in capacities:
        plot.add_layout(Span(dimension="height", location=one, line_color=FAINT, line_dash="dotted", name="capacity"))
    faint = {"size": 6, "color": FAINT, "nonselection_alpha": 0.3}
    every = plot.scatter("memory", "throughput", source=rows, view=_view(swept, swept.planned), name="plans", **faint)
    items = [LegendItem(label=value("plans that fit"), renderers=[every])]
    front = sorted(swept.front(), key=lambda row: row["peak_memory_bytes"])
    for number, count in enumerate(sorted({row["plan_devices"] for row in front})):
        own, look = [row for row in front if row["plan_devices"] == count], series_look(number)
        data = {
            "x": [row["peak_memory_bytes"] / GIB for row in own],
            "y": [row["samples_per_second"] for row in own],
        }
        step = plot.step(
            "x", "y", mode="after", source=ColumnDataSource(data), line_color=look["color"], line_width=1.6
        )
        step.glyph.line_dash = DASHES[look["linestyle"]]
        mark = {"marker": MARKS[look["marker"]], "size": 10, "color": look["color"], "nonselection_alpha": 0.3}
        points = plot.scatter(
            "memory", "throughput", source=rows, view=_view(swept, own), name=f"front {number}", **mark
        )
        items.append(LegendItem(label=value(counted(count, "device")), renderers=[step, points]))
    plot.add_layout(Legend(items=items, click_policy="hide", border_line_color=None), "right")
    plot.add_tools(_hover(swept, [every]))
    _axis_of_numbers(plot.xaxis[0], "peak memory of the fullest device, GiB")
    _axis_of_numbers(plot.yaxis[0], "samples per second")
    return plot


# ---- the table -------------------------------------------------------------------------------------------------------


def _table(swept: Swept, rows: Any) -> Any:
    """All rows; a click on a heading sorts them, numbers as numbers."""
    from bokeh.models import DataTable, HTMLTemplateFormatter, TableColumn

    def column(heading: str, field: str, words: str) -> Any:
        longest = max(map(len, [heading, *rows.data[words]]))
        wide = min(WIDE, MARGIN + LETTER * longest)
        written = HTMLTemplateFormatter(template=f"<%- {words} %>")
        return TableColumn(field=field, title=escape(heading), formatter=written, width=wide)

    named = [
        column(_word(axis.name), f"value_{n}" if axis.numeric else f"place_{n}", f"place_{n}")
        for n, axis in enumerate(swept.axes)
    ]
    told = [
        column(_heading(name), f"number_{n}" if name in NUMBERS else f"cell_{n}", f"cell_{n}")
        for n, name in enumerate(COLUMNS)
    ]
    height = 30 + 26 * min(len(swept.rows), 20)
    return DataTable(
        source=rows,
        columns=[*named, *told],
        sizing_mode="stretch_width",
        height=height,
        row_height=26,
        index_position=None,
        reorderable=False,  # which needs jQuery UI
        name="table",
    )
