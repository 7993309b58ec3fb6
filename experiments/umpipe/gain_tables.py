"""UMPIPE tables: the study's document for a person to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.terminal.report_tables import STALE, STALE_WORDS, Cell, ReportTable, Row, figure, words

SHOWN = ("gpipe tuned", "gpipe M=4K", "pipedream flush tuned", "pipedream tuned")
"""Baselines that the table of readings has room for."""

HEADINGS = {
    "gpipe tuned": "GPipe, tuned",
    "gpipe M=4K": "GPipe, M = 4K",
    "pipedream flush tuned": "1F1B with flush, tuned",
    "pipedream tuned": f"PipeDream{STALE}, tuned",
}

SIZES: dict[str, Cell] = {"forward": words("forward_sizes"), "backward": words("backward_sizes")}


def named(baseline: str) -> str:
    """A baseline's name, marked where it runs without a flush."""
    return baseline + STALE * (baseline.startswith("pipedream ") and not baseline.startswith("pipedream flush"))


def _spread(name: str) -> Callable[[Row], str]:
    def write(row: Row) -> str:
        over = row["over"].get(name)
        return "" if over is None else f"{100 * over['mean']:.1f} ± {100 * over['standard_deviation']:.1f}"

    return write


READINGS = ReportTable(
    "Gain of unequal sizes in speed, %, mean ± deviation over the settings that fit of {tried} each, by reading",
    lambda document: [row for row in document["readings"] if row["network"] != "simulation"],
    {
        "network": "{network}",
        "partition": "{partition}",
        "sizes": "{sizes}",
        "re-cut": "{recut}",
        **{HEADINGS[name]: _spread(name) for name in SHOWN},
        "settings": "{settings}",
        "proven": "{proven}",
        "as published over GPipe, tuned": lambda row: str(row["over"][SHOWN[0]]["near"]),
    },
)

SIMULATION = ReportTable(
    "Simulation networks: gain in speed, %, by family",
    lambda document: [row for row in document["gains"] if row["network"] == "simulation"],
    {
        "family": "{setting}",
        "sizes": "{sizes}",
        **{
            HEADINGS[name]: lambda row, name=name: f"{100 * row['gains'][name]:.1f}"  # type: ignore[misc]
            for name in SHOWN
        },
    },
)


AGREEING = ReportTable(
    "Readings of the real networks whose mean comes within the tolerance of a published gain, %",
    lambda document: [
        {**one, "network": row["network"], "published": row["published"], "over": named(one["baseline"])}
        for row in document["published"]
        if row["network"] != "simulation"
        for one in sorted(row["agreeing"], key=lambda one: abs(one["mean"] - row["published"]))
    ],
    {
        "network": "{network}",
        "published": figure("published", ".2f", 100),
        "mean": figure("mean", ".1f", 100),
        "over": "{over}",
        "partition": "{partition}",
        "sizes": "{sizes}",
        "re-cut": "{recut}",
    },
)

PUBLISHED = ReportTable(
    "Published gains, and of how many readings the mean comes within the tolerance",
    "published",
    {
        "network": "{network}",
        "over": "{system}",
        "published, %": lambda row: (
            f"{100 * row['published']:.2f}" + (" or more" if row["network"] == "simulation" else "")
        ),
        "readings": "{readings}",
        "within": lambda row: f"{len(row['agreeing'])}",
        "random targets, 0 to 30 %, that they match, %": figure("match_random_targets", ".0f", 100),
    },
)

ALIKE = ReportTable(
    "Both sides searched alike: spread of the gain over each baseline, %",
    lambda document: [
        {**row, **over, "name": named(name)}
        for row in document["readings"]
        if (row["partition"], row["sizes"]) == ("joint", "all")
        for name, over in row["over"].items()
    ],
    {
        "network": "{network}",
        "re-cut": "{recut}",
        "over": "{name}",
        **{part: figure(part, ".1f", 100) for part in ("least", "mean", "most")},
        "settings": "{settings}",
    },
)

SEARCHES = ReportTable(
    "{instance}: TiDGAP is {tidgap_acceleration_over_dgap:.1f} × as fast as DGAP, compiled "
    "{compiled_acceleration_over_dgap:.0f} ×",
    "searches",
    {
        "search": "{search}",
        "ms": figure("makespan_seconds", ".4f", 1e3),
        "above exact, %": figure("above_exact", ".2f", 100),
        "evaluations": "{evaluations}",
        "CPU s": "{cpu_seconds:.3f}",
    },
)

FRONT = ReportTable(
    "Makespan against memory of the fullest stage, {setting}",
    "points",
    {
        "ms": figure("seconds", ".2f", 1e3),
        "static MiB": figure("static_bytes", ".0f", 2.0**-20),
        "peak MiB with queues": figure("peak_bytes", ".0f", 2.0**-20),
        **SIZES,
    },
)


def print_document(found: Mapping[str, Any]) -> None:
    """Print the document of the study."""
    for table in (READINGS, PUBLISHED, AGREEING, ALIKE, SIMULATION):
        table.print(found)
    print(STALE_WORDS)
    for one in found["searches"]:
        SEARCHES.print(one)
    unequal = [point for point in found["pareto"] if point["sizes"] == "unequal"]
    for setting in dict.fromkeys(point["setting"] for point in unequal):
        FRONT.print({"setting": setting, "points": [point for point in unequal if point["setting"] == setting]})
