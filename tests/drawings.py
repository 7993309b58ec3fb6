"""Drawings: a figure as a readable record: what its code sets, and nothing that fonts or versions of matplotlib decide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection, LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator

from tests.records import plain


def drawing(figure: Figure) -> dict[str, Any]:
    """The figure by its panels; marks of one look stand together, with the places of all of them."""
    layout = figure.get_layout_engine()
    words = [text for text in (*figure.texts, figure._suptitle, figure._supxlabel, figure._supylabel) if text]  # type: ignore[attr-defined]
    return {
        "inches": figure.get_size_inches().tolist(),
        "layout": None if layout is None else type(layout).__name__,
        "texts": _texts(dict.fromkeys(words)),
        "legends": [_legend(one) for one in figure.legends],
        "panels": [_panel(axes) for axes in figure.axes if axes.get_visible()],
    }


def _panel(axes: Axes) -> dict[str, Any]:
    found: dict[str, Any] = {
        "titles": _texts(axes._left_title if side == "left" else axes.title for side in ("left", "center")),  # type: ignore[attr-defined]
        "title points above": _title_points(axes),
        "place": _place(axes),
        "x": _axis(axes.xaxis),
        "y": _axis(axes.yaxis),
        "spines": {side: to_hex(spine.get_edgecolor()) for side, spine in axes.spines.items() if spine.get_visible()},
        "below": axes.get_axisbelow(),
        "lines": _together((_line_look(line), _points(line)) for line in axes.lines),
        "patches": _together((_patch_look(patch), _box(patch)) for patch in axes.patches),
        "collections": _together((_collection_look(one), _segments(one)) for one in axes.collections),
        "images": [
            [
                np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan).tolist(),
                image.get_cmap().name,
                *image.get_clim(),
            ]
            for image in axes.images
        ],
        "texts": _texts(axes.texts),
        "legend": None if axes.get_legend() is None else _legend(axes.get_legend()),  # type: ignore[arg-type]
    }
    return {name: value for name, value in found.items() if value not in (None, [], {})}


def _title_points(axes: Axes) -> float | None:
    """Points between panel and title, where they are not the usual ones."""
    pixels = float(axes.titleOffsetTrans.get_matrix()[1, 2])  # type: ignore[attr-defined]
    points = float(f"{pixels * 72.0 / axes.figure.dpi:.6g}")
    return None if points == mpl.rcParams["axes.titlepad"] else points


def _place(axes: Axes) -> Any:
    """Row, column and shares of a panel of a grid that is laid out; the place on the page of one that its code put there."""
    cell = axes.get_subplotspec()
    if cell is None or axes.get_figure(root=True).get_layout_engine() is None:  # type: ignore[union-attr]
        return _rounded(axes.get_position().bounds)
    grid = cell.get_gridspec()
    return [*cell.get_geometry(), grid.get_width_ratios(), grid.get_height_ratios()]


def _axis(axis: Axis) -> dict[str, Any]:
    locator = axis.get_major_locator()
    ticks: Any = type(locator).__name__
    if isinstance(locator, FixedLocator):
        ticks = [_rounded(locator()), axis.get_major_formatter().format_ticks(list(locator()))]
    transform = axis.get_transform()
    look = {
        name: one
        for name, one in axis.get_tick_params().items()
        if name in ("labelsize", "labelcolor", "length", "gridOn", "grid_color", "grid_alpha", "grid_linewidth", "left")
        or name.startswith("label")
    }
    sizes = {f"{text.get_fontsize():g}" for text in axis.get_ticklabels()}
    return {
        "label": [axis.get_label().get_text(), axis.get_label().get_fontsize(), to_hex(axis.get_label().get_color())],
        "scale": [
            axis.get_scale(),
            *(getattr(transform, name) for name in ("base", "linthresh") if hasattr(transform, name)),
        ],
        "from, to": _rounded(axis.get_view_interval()),
        "ticks": ticks,
        "tick points": sorted(sizes),
        **plain(look),
    }


def _together(marks: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Look -> the places of all marks of that look, in the order in which they were drawn."""
    found: dict[str, list[Any]] = {}
    for look, places in marks:
        found.setdefault(look, []).append(places)
    return {look: plain(places) for look, places in found.items()}


def _look(*parts: Any) -> str:
    return ", ".join(str(part) for part in parts if part is not None)


def _line_look(line: Line2D) -> str:
    label = str(line.get_label())
    return _look(
        None if label.startswith("_") else repr(label),
        to_hex(line.get_color(), keep_alpha=True),
        _dashes(line),
        f"width {line.get_linewidth():g}",
        None
        if line.get_marker() in ("None", None, "")
        else f"mark {line.get_marker()} {line.get_markersize():g} {line.get_markeredgewidth():g}",
        None if line.get_alpha() is None else f"alpha {line.get_alpha():g}",
        None if line.get_drawstyle() == "default" else line.get_drawstyle(),
        f"z {line.get_zorder():g}",
        None if line.get_clip_on() else "beyond the panel",
    )


def _dashes(line: Line2D) -> str:
    offset, pattern = line._unscaled_dash_pattern  # type: ignore[attr-defined]
    return f"dashes {offset:g} {_rounded(pattern)}" if pattern else str(line.get_linestyle())


def _patch_look(patch: Patch) -> str:
    label = str(patch.get_label())
    return _look(
        None if label.startswith("_") else repr(label),
        to_hex(patch.get_facecolor(), keep_alpha=True) if patch.get_fill() else "hollow",
        f"edge {to_hex(patch.get_edgecolor(), keep_alpha=True)} {patch.get_linewidth():g}",
        None if patch.get_hatch() is None else f"hatch {patch.get_hatch()} {patch._hatch_linewidth:g}",  # type: ignore[attr-defined]
        f"z {patch.get_zorder():g}",
    )


def _collection_look(one: Collection) -> str:
    colours = [to_hex(colour, keep_alpha=True) for colour in (*one.get_facecolor(), *one.get_edgecolor())]
    width = f"width {_rounded(one.get_linewidth())}"
    image = "image" if one.get_rasterized() else None
    snapped = None if one.get_snap() is None else f"snap {one.get_snap()}"
    return _look(type(one).__name__, *dict.fromkeys(colours), width, f"z {one.get_zorder():g}", image, snapped)


def _points(line: Line2D) -> Any:
    return plain([_rounded(line.get_xdata()), _rounded(line.get_ydata())])


def _box(patch: Patch) -> Any:
    if isinstance(patch, Rectangle):
        return _rounded([*patch.get_xy(), patch.get_width(), patch.get_height()])
    return _rounded(np.asarray(patch.get_path().vertices).ravel())


def _segments(one: Collection) -> Any:
    paths = one.get_segments() if isinstance(one, LineCollection) else [path.vertices for path in one.get_paths()]
    return [_rounded(np.asarray(path).ravel()) for path in paths]


def _texts(texts: Iterable[Text]) -> dict[str, Any]:
    return _together((_text_look(text), _words(text)) for text in texts if text.get_text() and text.get_visible())


def _text_look(text: Text) -> str:
    return _look(
        to_hex(text.get_color()),
        f"{text.get_fontsize():g} points",
        text.get_horizontalalignment(),
        text.get_verticalalignment(),
        None if text.get_fontweight() == "normal" else text.get_fontweight(),
        f"turned {text.get_rotation():g}" if text.get_rotation() else None,
        None if text.get_linespacing() == Text().get_linespacing() else f"lines {text.get_linespacing()}",
        None if text.get_zorder() == 3 else f"z {text.get_zorder():g}",
    )


def _words(text: Text) -> list[Any]:
    """Words, place, and of a note how far it stands from the place."""
    if isinstance(text, Annotation):
        return [text.get_text(), *_rounded(text.xy), *_rounded(text.xyann)]
    return [text.get_text(), *_rounded(text.get_position())]


def _legend(legend: Legend) -> dict[str, Any]:
    looks = (
        _line_look(one)
        if isinstance(one, Line2D)
        else _patch_look(one)
        if isinstance(one, Patch)
        else type(one).__name__
        for one in legend.legend_handles
    )
    texts, anchor = legend.get_texts(), legend._bbox_to_anchor  # type: ignore[attr-defined]
    return {
        "title": legend.get_title().get_text(),
        "entries": [[text.get_text(), look] for text, look in zip(texts, looks, strict=True)],
        "points": texts[0].get_fontsize() if texts else None,
        "columns": legend._ncols,  # type: ignore[attr-defined]
        "frame": legend.get_frame_on(),
        "handle": [legend.handlelength, legend.columnspacing],
        **{
            name: getattr(legend, name)
            for name in ("handleheight", "handletextpad", "borderpad", "borderaxespad")
            if getattr(legend, name) != mpl.rcParams[f"legend.{name}"]  # type: ignore[index]
        },
        "place": [legend._loc, None if anchor is None else _rounded(anchor._bbox.bounds)],  # type: ignore[attr-defined]
    }


def _rounded(values: Any) -> Any:
    """Six significant digits."""
    return [float(f"{value:.6g}") for value in np.asarray(values, dtype=float).ravel().tolist()]
