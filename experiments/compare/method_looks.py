"""Method looks: the colour, mark, dashes and hatching by which figures tell planners, schedules and methods of training.

One method has one look in all figures. A family has a colour, of which every further member has a lighter shade with another
mark, other dashes and another hatching, so that a grey print, too, tells them apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.results.figures import MARKS, SERIES, whitened

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "#a8894f": ("data-parallel", "pipeline-data"),
    "#5d6670": ("gpipe", "looped-bfs"),
    "#2b3138": ("1f1b", "eager-1f1b", "1f1b-rr", "seq1f1b"),
    "#4b3c9e": ("interleaved-1f1b", "interleaved-zb"),
    "#d1495b": ("pipedream", "pipedream-flush", "vertical-sync"),
    "#d89614": ("2bw",),
    "#8e5ea2": ("spectrain-v2", "spectrain-v1"),
    "#00798c": ("pipeoptim",),
    "#c0668a": ("pipemare",),
    "#a04000": ("naive",),
    "#1d5fa8": ("xpipe", "xpipe-exact"),
    "#17543a": ("bapipe", "bapipe pipeline", "bapipe 1f1b-so"),
    "#123f66": ("1f1b-as",),
    "#e0a458": ("1f1b-so",),
    "#b04a32": ("1f1b-sno",),
    "#3f8f4f": ("fbp-as", "fbp split"),
    "#707a12": ("zb-h1", "zb-h2"),
    "#2e8b80": ("zb-v", "v-half", "v-min"),
    "#7d4fb8": ("dualpipe", "dualpipev", "chimera", "hanayo"),
    "#b5179e": ("joint", "large", "mixed", "modern"),
    "#6b4a3a": ("greedy", "rule-of-thumb", "scheduler", "brute-force", "largest-load"),
    "#2f6690": ("dgap",),
    "#e07b1f": ("dgap, single chromosome",),
    "#5a8f2a": ("tidgap",),
    "#7a2653": ("tidgap, distinct survivors",),
    "#b9b2dd": ("pymoo ga",),
    "#8a929b": ("greedy-dp", "local-greedy"),
    "#40464d": ("best-equal",),
    "#8c1c3b": ("exact-unequal", "umpipe", "unequal-nested"),
}
"""The methods of each colour: names of planners and schedules, and what studies call a method that has neither."""

SAME = {
    "uniform": "gpipe",
    "synchronous": "1f1b",
    "exact": "exact-unequal",
    "greedy dp": "greedy-dp",
    "best equal size": "best-equal",
    "pipedream, flushed": "pipedream-flush",
    "bapipe, straight pipeline": "bapipe pipeline",
    "bapipe's answer": "bapipe",
    "data parallelism": "data-parallel",
}
"""Other names: a uniform pipeline runs GPipe; what trains without stale weights does so under 1F1B where nothing else is said."""

DASHES, HATCHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1))), ("", "///", "...", "xxx", "\\\\\\")
"""Of the members of a family, in their order; the mark of its first is that of no neighbour."""

LIGHTER = 0.28
"""Share of what is left to white by which each further member of a family is lighter than the one before."""


@dataclass(frozen=True, slots=True)
class MethodLook:
    """How a method is drawn.

    color: `#rrggbb`; mark: of points; dashes: of lines; hatch: of bars
    """

    color: str
    mark: str
    dashes: str | tuple[int, tuple[int, ...]]
    hatch: str

    def bar_of(self, *, fits: bool) -> dict[str, Any]:
        """What `Axes.barh` takes: hollow where the plan does not fit."""
        return self.bar if fits else {"facecolor": "white", "edgecolor": self.color, "linewidth": 1.3}

    @property
    def bar(self) -> dict[str, Any]:
        """What `Axes.bar` and patches of legends take."""
        return {"facecolor": self.color, "hatch": self.hatch, "edgecolor": "white", "linewidth": 0.0}

    @property
    def line(self) -> dict[str, Any]:
        """What `Axes.plot` takes."""
        return {"color": self.color, "marker": self.mark, "linestyle": self.dashes}


def look_of(name: str) -> MethodLook:
    """The look of a method by its name, or by words that begin with it, in letters of any size: `XPipe T=4`, `data parallel`.

    Of a name that is not declared, such as one of another package, its letters choose one: the same in every figure and process.
    """
    return _looks().get(method_of(name)) or _chosen(name)


def method_of(label: str) -> str:
    """The declared method of a label, or the label itself."""
    text = label.lower().rstrip("*")
    for name in sorted([*_looks(), *SAME], key=len, reverse=True):
        for form in {name, name.replace("-", " ")}:
            if text == form or text.startswith(tuple(form + behind for behind in " ,*")):
                return SAME.get(name, name)
    return label


@cache
def _looks() -> dict[str, MethodLook]:
    return {
        name: _member(color, number, place)
        for number, (color, names) in enumerate(FAMILIES.items())
        for place, name in enumerate(names)
    }


def _member(color: str, number: int, place: int) -> MethodLook:
    """The look of a place in a family, of all families the one of this number."""
    mark = MARKS[(number + place) % len(MARKS)]
    return MethodLook(whitened(color, 1.0 - (1.0 - LIGHTER) ** place), mark, DASHES[place], HATCHES[place])


def _chosen(name: str) -> MethodLook:
    color, mark, place, *_ = hashlib.sha256(name.encode()).digest()
    place %= len(DASHES)
    return MethodLook(SERIES[color % len(SERIES)], MARKS[mark % len(MARKS)], DASHES[place], HATCHES[place])
