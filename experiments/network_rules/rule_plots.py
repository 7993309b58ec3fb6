"""Rule plots: rank agreement of two rules' seconds, and what the choice under one loses under another, a row per question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from simulator.results.figures import SERIES, panels, titled, unframed

PAIRS = {
    ("fifo", "fair"): ("first come, judged by fair", SERIES[0], "o"),
    ("fair", "fifo"): ("fair, judged by first come", SERIES[2], "s"),
    ("free", "fair"): ("free, judged by fair", SERIES[1], "D"),
    ("free", "fifo"): ("free, judged by first come", SERIES[4], "^"),
}
"""Chosen and judged under: words, colour and marker."""

AGREEMENTS = {
    ("fifo", "fair"): ("first come and fair", SERIES[0], "o"),
    ("free", "fair"): ("free and fair", SERIES[1], "D"),
    ("free", "fifo"): ("free and first come", SERIES[4], "^"),
}


def draw(document: Mapping[str, Any]) -> Figure:
    """Left the agreement, from -1 to 1, right the loss in per cent."""
    questions = list(dict.fromkeys(row["question"] for row in document["rows"]))
    figure, ((left, right),) = panels(11, 2.4 + 0.38 * len(questions), 1, 2, sharey=True)
    for axes, looks, key, scale in ((left, AGREEMENTS, "kendall", 1.0), (right, PAIRS, "regret", 100.0)):
        for number, (pair, (words, color, marker)) in enumerate(looks.items()):
            rows = [row for row in document["rows"] if (row["chosen_under"], row["judged_under"]) == pair]
            known = [row for row in rows if row[key] is not None]
            lift = 0.16 * (number - (len(looks) - 1) / 2)
            places = [questions.index(row["question"]) + lift for row in known]
            values = [scale * row[key] for row in known]
            look = {"color": color, "marker": marker, "linestyle": "", "markersize": 6, "label": words}
            axes.plot(values, places, **look)
            axes.hlines(places, 1.0 if key == "kendall" else 0.0, values, color=color, linewidth=1, alpha=0.5)
        unframed(axes, "x", 0.7)
    left.set_yticks(range(len(questions)), questions)
    left.invert_yaxis()
    titled(left, "Do two rules rank the plans alike?", xlabel="Kendall's rank agreement (1: the same order)")
    titled(right, "What does a choice under one rule lose under another?", xlabel="longer than the fastest plan, %")
    left.set_xlim(min(0.0, left.get_xlim()[0]), 1.03)
    for axes in (left, right):  # below, where no row can be
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "borderaxespad": 4.5}
        axes.legend(**below, ncols=2, fontsize=8.5, frameon=False)
    figure.suptitle(f"{document['plans']} plans a question, drawn at random, the same for every rule", fontsize=10)
    return figure
