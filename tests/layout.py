"""Layout: whether a reader can read a figure: nothing clipped, nothing on top of something else, axes named, legends clear."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import NullFormatter
from matplotlib.transforms import Bbox

MOST_LINES = 7
"""Curves of a panel that can be told apart."""

LEAST_LIGHTNESS = 5.0
"""CIE L* between two entries of a legend that differ in colour alone, so that a grey print tells them apart."""

NUMBER = re.compile(r"[-−+]?[\d.,]+(e[-+]?\d+)?")

SMALLEST = 5.4
"""Points of the smallest text."""


def assert_readable(figure: Figure) -> None:
    """Draw the figure and fail with everything that hinders reading."""
    found = faults(figure)
    assert not found, "\n".join(found)


def faults(figure: Figure) -> list[str]:
    """What hinders reading, a line each."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    texts = [(text, _box(text, renderer)) for text in _drawn_texts(figure)]
    texts = [(text, box) for text, box in texts if box is not None]
    return [
        *_outside(figure, texts),
        *_overlapping(texts),
        *_crossed(figure, texts),
        *_small(texts),
        *(fault for axes in figure.axes if axes.get_visible() for fault in _of_axes(axes, renderer)),
        *(fault for legend in _legends(figure) for fault in _alike(legend)),
    ]


def _drawn_texts(figure: Figure) -> Iterator[Text]:
    """Every text that is drawn: visible, not empty, and of ticks only those inside the view."""
    ticks = {text for axes in figure.axes for text in _tick_texts(axes, drawn=False)}
    hidden = {text for axes in figure.axes if not axes.get_visible() for text in axes.findobj(Text)}
    for text in figure.findobj(Text):
        if text in ticks or text in hidden or not isinstance(text, Text):
            continue
        if text.get_visible() and text.get_text().strip():
            yield text
    for axes in figure.axes:
        if axes.get_visible() and axes.axison:
            yield from (text for text in _tick_texts(axes, drawn=True) if text.get_text().strip())


def _tick_texts(axes: Axes, *, drawn: bool) -> Iterator[Text]:
    for axis in (axes.xaxis, axes.yaxis):
        scale = axis.get_transform().transform
        low, high = sorted(scale(axis.get_view_interval()).tolist())
        room = 1e-6 * (high - low)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            for text in (tick.label1, tick.label2):
                with np.errstate(divide="ignore", invalid="ignore"):
                    place = float(scale(np.array([tick.get_loc()]))[0])
                inside = low - room <= place <= high + room and tick.get_visible() and axis.get_visible()
                if not drawn or (inside and text.get_visible()):
                    yield text


def _box(text: Text, renderer: Any) -> Bbox | None:
    """Pixels that a text takes; None where it is clipped away."""
    box = Text.get_window_extent(text, renderer)
    clip = text.get_clip_box() if text.get_clip_on() else None
    if clip is not None and not box.overlaps(clip):
        return None
    return box


def _words(text: Text) -> str:
    return repr(text.get_text()[:50])


def _outside(figure: Figure, texts: list[tuple[Text, Bbox]]) -> Iterator[str]:
    for text, box in texts:
        page: Bbox = figure.bbox
        if text.get_clip_on() and text.get_clip_box() is not None:
            page = text.get_clip_box()  # type: ignore[assignment]
        if box.x0 < page.x0 - 1 or box.y0 < page.y0 - 1 or box.x1 > page.x1 + 1 or box.y1 > page.y1 + 1:
            yield f"{_words(text)} leaves the figure: {box.extents.round().tolist()} in {page.extents.round().tolist()}"


def _overlapping(texts: list[tuple[Text, Bbox]]) -> Iterator[str]:
    """Pairs of texts that share ink; a text's box has air above and below."""
    if not texts:
        return
    boxes = np.array([box.extents for _, box in texts])
    air = 0.14 * np.minimum(boxes[:, 3] - boxes[:, 1], 14.0)
    x0, y0, x1, y1 = boxes[:, 0] + 0.5, boxes[:, 1] + air, boxes[:, 2] - 0.5, boxes[:, 3] - air
    wide = np.minimum(x1[:, None], x1) - np.maximum(x0[:, None], x0)
    tall = np.minimum(y1[:, None], y1) - np.maximum(y0[:, None], y0)
    for one, other in np.argwhere(np.triu((wide > 0) & (tall > 0), 1)).tolist():
        yield f"{_words(texts[one][0])} and {_words(texts[other][0])} overlap"


def _crossed(figure: Figure, texts: list[tuple[Text, Bbox]]) -> Iterator[str]:
    """Texts of a panel that one of its lines runs through."""
    for axes in figure.axes:
        own = set(axes.texts)
        for text, box in texts:
            inner = Bbox.from_extents(box.x0 + 1, box.y0 + 0.2 * box.height, box.x1 - 1, box.y1 - 0.2 * box.height)
            if text in own and _line_in(axes, inner):
                yield f"a line runs through {_words(text)}"


def _line_in(axes: Axes, box: Bbox) -> bool:
    """Whether a line of a panel is seen inside a box of pixels."""
    seen = Bbox.intersection(box, axes.bbox)
    for artist in (*axes.lines, *(one for one in axes.collections if isinstance(one, LineCollection))):
        place = seen if artist.get_clip_on() else box
        if not artist.get_visible() or not axes.get_visible() or place is None:
            continue
        if isinstance(artist, Line2D) and artist.get_linestyle() in ("None", "", " "):
            continue
        paths = [artist.get_path()] if isinstance(artist, Line2D) else artist.get_paths()
        shown = (artist.get_transform().transform_path(path) for path in paths if len(path.vertices))
        if any(path.intersects_bbox(place, filled=False) for path in shown):
            return True
    return False


def _small(texts: list[tuple[Text, Bbox]]) -> Iterator[str]:
    for text, _ in texts:
        if text.get_fontsize() < SMALLEST:
            yield f"{_words(text)} has {text.get_fontsize():.1f} points"


def _of_axes(axes: Axes, renderer: Any) -> Iterator[str]:
    name = repr(axes.get_title() or axes.get_title(loc="left"))
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    for axis, label, shared in (
        (axes.xaxis, axes.get_xlabel(), figure.get_supxlabel()),
        (axes.yaxis, axes.get_ylabel(), figure.get_supylabel()),
    ):
        if axes.axison and _numeric(axis) and not label and not shared:
            yield f"the {axis.axis_name} axis of panel {name} has numbers and no label"
    curves = [
        line for line in axes.lines if len(line.get_xdata()) > 2 and line.get_linestyle() not in ("None", "", " ")
    ]
    if len(curves) > MOST_LINES:
        yield f"panel {name} has {len(curves)} curves, {MOST_LINES} can be told apart"
    legend = axes.get_legend()
    if legend is not None:
        box = legend.get_window_extent(renderer)
        if _line_in(axes, box):
            yield f"the legend of panel {name} lies on a line"
        bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        if any(Bbox.intersection(bar.get_window_extent(renderer), box) is not None for bar in bars):
            yield f"the legend of panel {name} lies on a bar"


def _numeric(axis: Axis) -> bool:
    """Whether an axis shows numbers of a scale, not names that explain themselves."""
    if isinstance(axis.get_major_formatter(), NullFormatter) or not axis.get_visible():
        return False
    words = [text.get_text() for text in axis.get_ticklabels() if text.get_visible() and text.get_text()]
    return any(NUMBER.fullmatch(word) for word in words)


def _legends(figure: Figure) -> Iterator[Legend]:
    yield from figure.legends
    yield from (legend for axes in figure.axes if (legend := axes.get_legend()) is not None)


def _alike(legend: Legend) -> Iterator[str]:
    """Entries of a legend that a grey print shows the same."""
    entries = [
        (_look(handle), text.get_text())
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True)
        if handle is not None
    ]
    for (one, first), (other, second) in combinations(entries, 2):
        if one[1:] == other[1:] and abs(one[0] - other[0]) < LEAST_LIGHTNESS:
            yield f"legend entries {first!r} ({one[0]:.0f}) and {second!r} ({other[0]:.0f}) look the same in grey"


def _look(handle: Any) -> tuple[Any, ...]:
    """Lightness, and all else that tells a handle from another."""
    if isinstance(handle, Line2D):
        line = handle.get_linestyle() not in ("None", "") and handle.get_linewidth() > 0
        style = (handle._dash_pattern, handle.get_linewidth()) if line else None  # type: ignore[attr-defined]
        return (lightness(handle.get_color()), "line", str(style), str(handle.get_marker()))
    if isinstance(handle, Patch):
        return (lightness(handle.get_facecolor()), "patch", str(handle.get_hatch()), "")
    return (0.0, type(handle).__name__, id(handle), "")


def lightness(color: Any) -> float:
    """CIE L* of a colour, 0 (black) to 100 (white), on a white page."""
    red, green, blue, alpha = to_rgba(color)
    linear = [
        (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
        for part in (alpha * one + 1.0 - alpha for one in (red, green, blue))
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116.0 * luminance ** (1 / 3) - 16.0 if luminance > 216 / 24389 else luminance * 24389 / 27
