"""Errors: how far predictions are from measurements, and whether they put plans in the measured order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

Figures = dict[str, Any]


def errors(measured: Sequence[float], predicted: Sequence[float]) -> Figures:
    """Relative errors, predicted / measured - 1, as fractions.

    rows: how many; mape, median, worst: mean, median and greatest absolute error; signed: mean error with its sign
    """
    off = np.asarray(predicted, dtype=np.float64) / np.asarray(measured, dtype=np.float64) - 1.0
    return {
        "rows": len(off),
        "mape": float(np.abs(off).mean()),
        "median": float(np.median(np.abs(off))),
        "worst": float(np.abs(off).max()),
        "signed": float(off.mean()),
    }


def kendall(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank agreement of two lists of numbers, from -1 to 1 (Kendall's tau-b, which counts ties); None where one is constant."""
    one, two = (np.sign(np.subtract.outer(list_, list_)) for list_ in (np.asarray(first), np.asarray(second)))
    scale = float(np.sqrt((one**2).sum() * (two**2).sum()))
    return float((one * two).sum()) / scale if scale else None


def regret(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """How much longer the plan takes that is predicted to be the fastest, than the one that is: a fraction."""
    chosen = int(np.argmin(np.asarray(predicted)))
    return float(measured[chosen] / min(measured) - 1.0)


def ranked(points: pd.DataFrame, question: Sequence[str]) -> Figures:
    """Rank agreement and regret, means over the questions (rows that agree in the columns `question`) of two plans and more."""
    agreements, regrets = [], []
    for _, rows in points.groupby(list(question), sort=True):
        if len(rows) > 1:
            agreement = kendall(rows["measured"].tolist(), rows["predicted"].tolist())
            agreements += [] if agreement is None else [agreement]
            regrets.append(regret(rows["measured"].tolist(), rows["predicted"].tolist()))
    if not regrets:
        return {"questions": 0, "kendall": None, "regret": None, "worst_regret": None}
    return {
        "questions": len(regrets),
        "kendall": float(np.mean(agreements)) if agreements else None,
        "regret": float(np.mean(regrets)),
        "worst_regret": float(np.max(regrets)),
    }


def summary(points: pd.DataFrame, by: Sequence[str], question: Sequence[str]) -> Figures:
    """What a table's document says.

    points: columns `what` (seconds, forward, backward, memory), measured, predicted, and those of `by` and `question`

    The first `what` is the table's own figure; each further one stands under its name.
    """
    kinds = list(dict.fromkeys(points["what"]))
    own = points[points["what"] == kinds[0]]
    document: Figures = {"figure": kinds[0], **_errors_of(own)}
    document["by"] = {
        column: {str(value): _errors_of(rows) for value, rows in own.groupby(column, sort=True)}
        for column in by
        if own[column].nunique() > 1
    }
    document |= ranked(own, question) if question else {}
    for kind in kinds[1:]:
        document[kind] = _errors_of(points[points["what"] == kind])
    return document


PARTS = ("seen", "held_out")


def apart(points: pd.DataFrame, seen: Sequence[bool]) -> dict[str, dict[str, Figures | None]]:
    """By figure, the errors of rows seen and of rows held out; None where a part has no row.

    points: as for `summary`; seen: of each of its lines
    """
    parts = dict(zip(PARTS, (np.asarray(seen, dtype=bool), ~np.asarray(seen, dtype=bool)), strict=True))
    return {
        what: {part: _errors_of(points[chosen & of]) if (chosen & of).any() else None for part, chosen in parts.items()}
        for what, of in ((what, (points["what"] == what).to_numpy()) for what in dict.fromkeys(points["what"]))
    }


def _errors_of(points: pd.DataFrame) -> Figures:
    return errors(points["measured"].tolist(), points["predicted"].tolist())
