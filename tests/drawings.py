"""Drawings: figures as short records of what a reader notices, words, axes, and marks with their places; pages by models."""

from __future__ import annotations

import gzip
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection, LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator

from tests.records import plain, weight


def drawing(figure: Figure) -> dict[str, Any]:
    """The figure by its panels; margins are left to the check that it can be read."""
    words = [text for text in (*figure.texts, figure._suptitle, figure._supxlabel, figure._supylabel) if text]  # type: ignore[attr-defined]
    return _said(
        inches=figure.get_size_inches().tolist(),
        texts=_texts(dict.fromkeys(words)),
        looks=[*dict.fromkeys(map(_text_look, dict.fromkeys(words)))],
        legends=[_legend(one) for one in figure.legends],
        panels=[_panel(axes) for axes in figure.axes if axes.get_visible()],
    )


def _panel(axes: Axes) -> dict[str, Any]:
    """What it says and where it stands; the weight of all that is only a look, of marks, words, axes, legend and frame."""
    legend = axes.get_legend()
    axis_looks = [_axis_look(one) for one in (axes.xaxis, axes.yaxis) if axes.axison]
    frame = [
        f"{name}, {to_hex(one.get_edgecolor())}"
        for name, one in axes.spines.items()
        if axes.axison and one.get_visible()
    ]
    return _said(
        titles=_texts((axes._left_title, axes.title)),  # type: ignore[attr-defined]
        x=_axis(axes.xaxis) if axes.axison else None,
        y=_axis(axes.yaxis) if axes.axison else None,
        lines=_together((_line_look(line), (line.get_xdata(), line.get_ydata())) for line in axes.lines),
        patches=_together((_patch_look(patch), _box(patch)) for patch in axes.patches),
        collections=_together((_collection_look(one), _paths(one)) for one in axes.collections),
        images=[
            [image.get_cmap().name, to_hex(image.get_cmap().get_bad()), *image.get_clim(), _digits(image.get_array())]
            for image in axes.images
        ],
        texts=_texts(axes.texts),
        legend=None if legend is None else _legend(legend),
        look=weight([axis_looks, frame, _layers(axes)]),
    )


def _layers(axes: Axes) -> list[str]:
    """How marks and words are drawn, each look once, from behind to the front."""
    drawn = [*axes.lines, *axes.patches, *axes.collections, *axes.texts, axes.title, axes._left_title]  # type: ignore[attr-defined]
    looks = (_stroke(one) for one in sorted(drawn, key=lambda one: one.get_zorder()) if one.get_visible())
    return list(dict.fromkeys(look for look in looks if look))


def _stroke(one: Artist) -> str:
    """Widths, edges and sizes of a mark; nothing of an empty text."""
    if isinstance(one, Text):
        return _text_look(one) if one.get_text() else ""
    see = one.get_alpha() is not None and f"alpha {one.get_alpha():g}"
    cut = None if one.get_clip_on() else "beyond the axes"
    if isinstance(one, Line2D):
        edge = f"marks {one.get_markersize():g}, edged {one.get_markeredgewidth():g}"
        edge += f" {to_hex(one.get_markeredgecolor())}"
        mark = one.get_marker() not in ("None", "", None) and edge
        return _look("line", _line_style(one) != "None" and f"width {one.get_linewidth():g}", mark, see, cut)
    if isinstance(one, Patch):
        seen = one.get_linewidth() and one.get_edgecolor()[3]  # type: ignore[index]
        edge = seen and f"edged {one.get_linewidth():g} {to_hex(one.get_edgecolor())}"
        return _look("patch", edge, see, cut)
    assert isinstance(one, Collection)
    widths = " ".join(dict.fromkeys(f"{width:g}" for width in np.atleast_1d(one.get_linewidth())))
    sizes = isinstance(one, PathCollection) and "sizes " + " ".join(
        f"{size:g}" for size in dict.fromkeys(one.get_sizes())
    )
    return _look(type(one).__name__, f"width {widths}", sizes, see, cut)


def _text_look(text: Text) -> str:
    """Size, colour and place of words, and the line that leads to what a note is about."""
    arrow = text.arrow_patch if isinstance(text, Annotation) else None
    leader = arrow and f"leader {arrow.get_linewidth():g} {to_hex(arrow.get_edgecolor())}"
    turned, weight = text.get_rotation(), str(text.get_fontweight())
    return _look(
        f"text {text.get_fontsize():.4g}",
        to_hex(text.get_color()),
        weight.replace("normal", ""),
        f"{text.get_horizontalalignment()} {text.get_verticalalignment()}",
        turned and f"turned {turned:g}",
        leader,
    )


def _said(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [], {}, "")}


def _axis(axis: Axis) -> dict[str, Any]:
    """Label, scale unless it is linear, ends, and ticks where the code sets them."""
    locator = axis.get_major_locator()
    fixed = locator if isinstance(locator, FixedLocator) else None
    return _said(
        label=axis.get_label().get_text(),
        scale=axis.get_scale().replace("linear", ""),
        ends=_digits(axis.get_view_interval()),
        ticks=fixed and _digits(fixed()),
        names=fixed and list(dict.fromkeys(axis.get_major_formatter().format_ticks(list(fixed())))),
    )


def _axis_look(axis: Axis) -> str:
    return _look(axis.get_label().get_text() and f"label {axis.get_label().get_fontsize():g}", *_tick_look(axis))


def _tick_look(axis: Axis) -> Iterator[str]:
    """Length of ticks, size and colour of their names, and lines of a grid, where they are drawn."""
    for tick in axis.get_major_ticks()[:1]:
        mark, name, line = tick.tick1line, tick.label1, tick.gridline
        if mark.get_visible() and mark.get_markersize():
            yield f"ticks {mark.get_markersize():g} {to_hex(mark.get_color())}"
        if name.get_visible():
            yield f"names {name.get_fontsize():g} {to_hex(name.get_color())}"
        if line.get_visible():
            yield f"grid {line.get_linewidth():g} {to_hex(line.get_color())} {line.get_alpha() or 1.0:g}"


def _together(marks: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Look -> the places of all marks of that look, one behind the other in the order in which they were drawn."""
    found: dict[str, list[float]] = {}
    for look, places in marks:
        found.setdefault(look, []).extend(_digits(places))
    return {look: plain(places) for look, places in found.items()}


def _line_look(line: Line2D) -> str:
    mark = None if line.get_marker() in ("None", "", None) else f"mark {line.get_marker()}"
    width = f"width {line.get_linewidth():g}"
    return _look(_name(line), to_hex(line.get_color(), keep_alpha=True), _line_style(line), width, mark)


def _line_style(line: Line2D) -> str:
    """The style's sign, or the lengths of dashes and gaps where it is one without a sign."""
    sign, lengths = str(line.get_linestyle()), line._unscaled_dash_pattern[1]  # type: ignore[attr-defined]
    named = Line2D([], [], linestyle=sign)._unscaled_dash_pattern[1]  # type: ignore[attr-defined]
    return sign if lengths == named else f"dashes {' '.join(f'{one:g}' for one in lengths)}"


def _patch_look(patch: Patch) -> str:
    colour = to_hex(patch.get_facecolor(), keep_alpha=True) if patch.get_fill() else "hollow"
    return _look(_name(patch), colour, patch.get_hatch() and f"hatch {patch.get_hatch()}")


def _collection_look(one: Collection) -> str:
    colours = [to_hex(colour, keep_alpha=True) for colour in (*one.get_facecolor(), *one.get_edgecolor())]
    return _look(type(one).__name__, *dict.fromkeys(colours), "image" if one.get_rasterized() else None)


def _name(mark: Line2D | Patch) -> str | None:
    """The label of a mark that has one of its own."""
    label = str(mark.get_label())
    return None if label.startswith("_") else repr(label)


def _look(*parts: Any) -> str:
    return ", ".join(part for part in parts if part)


def _box(patch: Patch) -> Any:
    if isinstance(patch, Rectangle):
        return [*patch.get_xy(), patch.get_width(), patch.get_height()]
    return patch.get_path().vertices


def _paths(one: Collection) -> Any:
    paths = one.get_segments() if isinstance(one, LineCollection) else [path.vertices for path in one.get_paths()]
    return np.concatenate([np.ravel(path) for path in paths]) if paths else []


def _texts(texts: Iterable[Text]) -> dict[str, Any]:
    """Words -> where they stand: of a note its point and how far it stands from there; of words that stand often, all places."""
    found: dict[str, list[float]] = {}
    for text in texts:
        if text.get_text() and text.get_visible():
            place = (text.xy, text.xyann) if isinstance(text, Annotation) else text.get_position()
            found.setdefault(text.get_text(), []).extend(_digits(place))
    return {words: plain(places) for words, places in found.items()}


def _legend(legend: Legend) -> dict[str, Any]:
    looks = (
        _line_look(one)
        if isinstance(one, Line2D)
        else _patch_look(one)
        if isinstance(one, Patch)
        else type(one).__name__
        for one in legend.legend_handles
    )
    sizes = {f"{text.get_fontsize():g}" for text in legend.get_texts()}
    look = _look(f"words {' '.join(sorted(sizes))}", legend.get_frame_on() and "framed", f"{legend.handlelength:g}")
    return _said(
        title=legend.get_title().get_text(),
        columns=legend._ncols,  # type: ignore[attr-defined]
        entries=[text.get_text() for text in legend.get_texts()],
        look=weight([*looks, look]),
    )


def _digits(values: Any) -> list[float]:
    """Six significant digits."""
    flat = np.ma.filled(np.ma.asarray(values, dtype=float), np.nan).ravel()
    return [float(f"{value:.6g}") for value in flat.tolist()]


def models(page: dict[str, Any]) -> dict[str, Any]:
    """What Bokeh is given (`page_frame.document`) by kinds of models: of each the weight of all that is set, by name.

    Models are told from each other by their numbers within their kind; scripts are left to the browser's tests.
    """
    found: dict[str, list[Any]] = {}
    names: dict[str, str] = {}

    def set_of(value: Any) -> Any:
        if isinstance(value, list):
            return [set_of(one) for one in value]
        if not isinstance(value, dict):
            return (
                str(value) if isinstance(value, float) and value > 1e9 else value
            )  # beside which others weigh nothing
        if value.get("type") == "ndarray":
            return np.frombuffer(gzip.decompress(b64decode(value["array"]["data"])), value["dtype"]).tolist()
        if value.get("type") != "object":
            return names.get(value.get("id", "")) or [[key, set_of(one)] for key, one in value.items()]
        own, said = found.setdefault(value["name"], []), list[Any]()
        name = names[value["id"]] = f"{value['name']} {len(own)}"
        own.append(said)
        said += ([key, set_of(one)] for key, one in value.get("attributes", {}).items() if key != "code")
        return name

    set_of(page["doc"]["roots"])
    return {kind: weight(own) for kind, own in sorted(found.items()) if any(own)}
