"""Swept: the rows of a sweep, as tables, figures and CSV: where its plan changes, and which plans none beats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from experiments.sweep.axes import Axis, Value
from experiments.sweep.study import FIGURES, SAMPLES
from experiments.terminal.output import to_csv
from experiments.terminal.report_tables import Cell, ReportTable, Row, figure, share
from hardware_profiles import GIB, brief, counted
from simulator import Explained, TextTable

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 60
"""Rows of a printed table at most; CSV, JSON and pandas have all."""

NOT_ASKED = "not-asked"
"""Status of a point that an interrupt left without an answer."""

UNBEATEN = "samples_per_second", "peak_memory_bytes", "plan_devices"
"""In which plans are compared: the first should be large, the others small."""


@dataclass(frozen=True, slots=True, eq=False)
class Swept(Explained):
    """Rows by the axes of a sweep, the last axis turning first.

    rows: one at least: what is swept by name, then FIGURES
    """

    axes: tuple[Axis, ...]
    rows: tuple[Row, ...]

    @staticmethod
    def of(points: Iterable[tuple[Row, Row | None]]) -> Swept:
        """Of points, each with its answer, or None."""
        values: dict[str, dict[Value, None]] = {}
        rows = []
        for swept, record in points:
            for name, value in swept.items():
                values.setdefault(name, {})[value] = None
            found = dict.fromkeys(FIGURES) | {"status": NOT_ASKED} if record is None else record
            rows.append({**swept, **{name: one for name, one in found.items() if name not in swept}})
        return Swept(tuple(Axis(name, tuple(known)) for name, known in values.items()), tuple(rows))

    def __repr__(self) -> str:
        return brief(self, f"{counted(len(self.rows), 'point')} of {', '.join(one.name for one in self.axes)}")

    @property
    def missing(self) -> int:
        """Points without an answer."""
        return sum(row["status"] == NOT_ASKED for row in self.rows)

    @property
    def planned(self) -> list[Row]:
        """Rows with a plan that fits."""
        return [row for row in self.rows if row["feasible"]]

    @property
    def varied(self) -> tuple[Axis, ...]:
        """Axes of more than one value, or the first of all."""
        return tuple(one for one in self.axes if len(one.values) > 1) or self.axes[:1]

    @property
    def along(self) -> Axis:
        """The axis along which plans are followed: of those of numbers, or else of all, the one with most values."""
        return max(self.varied, key=lambda one: (one.numeric, len(one.values)))

    def lines(self) -> dict[tuple[Value, ...], list[Row]]:
        """Rows in the order of `along`, by the values of the other axes."""
        along, found = self.along, dict[tuple[Value, ...], list[Row]]()
        for row in self.rows:
            found.setdefault(tuple(row[one.name] for one in self.others), []).append(row)
        if along.numeric:
            for rows in found.values():
                rows.sort(key=lambda row: row[along.name])
        return found

    @property
    def others(self) -> tuple[Axis, ...]:
        """The varied axes but `along`."""
        return tuple(one for one in self.varied if one is not self.along)

    @property
    def plane(self) -> tuple[Axis, Axis]:
        """The two axes of most values, the longer one last; ValueError where one alone is varied."""
        rows, columns = sorted(self.varied, key=lambda one: len(one.values))[-2:]
        return rows, columns

    def changes(self) -> list[tuple[Row, Row, str]]:
        """Neighbours on a line whose plans decide otherwise, and what, in words."""
        pairs = (pair for rows in self.lines().values() for pair in pairwise(row for row in rows if row["feasible"]))
        return [(before, row, words) for before, row in pairs if (words := _otherwise(before, row))]

    def front(self) -> list[Row]:
        """Plans that fit and that none beats in throughput, memory and devices, the fastest first."""
        kept = dict[tuple[float, ...], Row]()
        for row in sorted(self.planned, key=_measures):
            mine = _measures(row)
            if not any(all(a <= b for a, b in zip(other, mine, strict=True)) for other in kept):
                kept[mine] = row
        return list(kept.values())

    @property
    def capacities_gib(self) -> list[float]:
        """What the fullest devices of plans that fit may hold, in GiB."""
        return sorted({row["capacity_bytes"] / GIB for row in self.planned if row.get("capacity_bytes")})

    def record(self) -> dict[str, Any]:
        """One document: axes, rows, and how many points have no answer."""
        return {
            "axes": {one.name: one.values for one in self.axes},
            "interrupted": self.missing > 0,
            "missing": self.missing,
            "rows": self.rows,
        }

    @property
    def frame(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows)).drop(columns="decisions")

    def csv(self) -> str:
        """The rows as CSV, of which no cell begins a formula."""
        return to_csv(self.rows, [name for name in self.rows[0] if name != "decisions"])

    def tables(self) -> tuple[TextTable, ...]:
        """The rows, where the plan changes, and what none beats."""
        swept: dict[str, Cell] = {one.name: _named(one.name) for one in self.axes}
        batches = {row["batch"] for row in self.planned}
        own = {"batch": _named("batch")} if len(batches) > 1 and "batch" not in swept else {}
        judged = any(row.get("objective") not in (None, "time") for row in self.rows if row["feasible"])
        energy: dict[str, Cell] = {"J per\nsample": figure("joules_per_sample", ".3g")} if judged else {}
        known: dict[str, Cell] = {**swept, **own, **energy, **COLUMNS}
        rows = ReportTable("{title}", "rows", known)
        unbeaten = ReportTable("Plans that none beats in throughput, memory and devices", "rows", known)
        along, changes = self.along.name, self.changes()
        between: dict[str, Cell] = {
            **{one.name: _named(one.name) for one in self.others},
            along: "{place}",
            "decided otherwise": "{words}",
            "plan from there": "{layout}",
        }
        changed = ReportTable(f"Where the plan changes along {along}", "rows", between)
        told = [{**row, "place": f"{before[along]} -> {row[along]}", "words": words} for before, row, words in changes]
        front = self.front()
        return (
            rows.text({"title": self.title, "rows": self.rows[:MOST_ROWS]}),
            *[changed.text({"rows": told[:MOST_ROWS]})] * bool(told),
            *[unbeaten.text({"rows": front[:MOST_ROWS]})] * (1 < len(front) < len(self.planned)),
        )

    @property
    def title(self) -> str:
        """What is swept, and how many points there are."""
        return f"{' × '.join(f'{len(one.values)} {one.name}' for one in self.axes)}: {counted(len(self.rows), 'point')}"

    def remarks(self) -> tuple[str, ...]:
        """What has no plan, and why; what is not shown."""
        lines = list(self.refusals())
        if len(self.rows) > MOST_ROWS:
            lines.append(
                f"{len(self.rows) - MOST_ROWS:,} more points: in --json, or the CSV of pipeplan sweep report STORE --out DIR"
            )
        return tuple([*lines, *self.interruption()][:MOST_ROWS])

    def refusals(self) -> tuple[str, ...]:
        """What has no plan, and why."""
        reasons: dict[str, list[Row]] = {}
        for row in self.rows:
            if not row["feasible"] and row["status"] != NOT_ASKED:
                reasons.setdefault(f"{row['status'].replace('-', ' ')}: {row['reason']}", []).append(row)
        return tuple(f"{place_words(self.varied, rows[0])}{_more(rows)}: {why}" for why, rows in reasons.items())

    def interruption(self) -> tuple[str, ...]:
        """How many points have no answer, where an interrupt left some."""
        left = f"interrupted: {self.missing:,} of {len(self.rows):,} points have no answer; the same sweep goes on with them"
        return (left,) * bool(self.missing)


COLUMNS: dict[str, Cell] = {
    "iteration,\nseconds": figure("iteration_seconds", ".4g"),
    "error": lambda row: "" if row["error_low"] is None else f"{row['error_low']:.3g} to {row['error_high']:.3g}",
    "samples/s": figure("samples_per_second", ",.4g"),
    "peak memory,\nGiB": lambda row: (
        ""
        if row["peak_memory_bytes"] is None
        else f"{row['peak_memory_bytes'] / GIB:.2f} of {row['capacity_bytes'] / GIB:.4g}"
        + " (!)" * (not row["feasible"])
    ),
    "gap": share("gap"),
    "plan": lambda row: row["layout"] or row["status"].replace("-", " "),
    "stack": lambda row: str(row["stack"] or ""),
}
"""Of a printed row, behind what is swept."""


def place_words(axes: Sequence[Axis], row: Row) -> str:
    """`batch=64, devices=8`: where a row is on axes."""
    return ", ".join(f"{one.name}={row[one.name]}" for one in axes)


def _named(name: str) -> Cell:
    return lambda row: str(row[name])


def _otherwise(before: Row, row: Row) -> str:
    """What the plan of a row decides otherwise than the one before, in words.

    Where the batch is swept, the number of micro-batches or their samples follow from it: they count where both differ.
    """
    mine, others = row["decisions"], before["decisions"]
    differing = [name for name in mine if mine[name] != others.get(name)]
    if not {"micro-batches", SAMPLES} <= {*differing}:
        differing = [name for name in differing if name not in ("micro-batches", SAMPLES)]
    return "; ".join(f"{name}: {others.get(name)} -> {mine[name]}" for name in differing)


def _measures(row: Row) -> tuple[float, ...]:
    """What should be small."""
    first, *others = (row[name] for name in UNBEATEN)
    return (-first, *others)


def _more(rows: Sequence[Row]) -> str:
    return f" and {counted(len(rows) - 1, 'more point')}" if len(rows) > 1 else ""
