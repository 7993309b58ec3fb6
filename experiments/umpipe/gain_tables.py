"""UMPIPE tables: the study's document for a person to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.terminal.report_tables import Cell, ReportTable, Row, either, figure, words

SHOWN = (
    "gpipe tuned",
    "gpipe M=8",
    "gpipe M=16",
    "pipedream flush tuned",
    "pipedream flush M=8",
    "pipedream tuned",
)
"""Readings of the baselines that the table of gains has room for."""

SIZES: dict[str, Cell] = {"forward": words("forward_sizes"), "backward": words("backward_sizes")}


def _gain(name: str) -> Callable[[Row], str]:
    return lambda row: f"{100 * row['gains'][name]:.1f}"


GAINS = ReportTable(
    "Gain of UMPIPE (proven optimum) in speed, %",
    "gains",
    {"network": "{network}", "setting": "{setting}", **{name: _gain(name) for name in SHOWN}},
)

PUBLISHED = ReportTable(
    "Published gains beside the one reading that is compared with them, over all settings, %",
    "published",
    {
        "network": "{network}",
        "over": "{system}",
        "published": lambda row: (
            f"{100 * row['published']:.2f}" + (" or more" if row["network"] == "simulation" else "")
        ),
        "reading": "{reading}",
        "mean ± deviation": lambda row: f"{100 * row['mean']:.1f} ± {100 * row['standard_deviation']:.1f}",
        "range": lambda row: f"{100 * row['least']:.1f} … {100 * row['most']:.1f}",
        "settings": "{settings}",
        "agrees": either("agrees"),
        "settings that agree": "{settings_that_agree}",
    },
)

OTHERS = ReportTable(
    "The other readings, %: not compared, as so many match something",
    lambda document: [
        {**row, "name": name, "least": least, "mean": mean, "most": most}
        for row in document["published"]
        for name, (least, mean, most) in row["others"].items()
    ],
    {
        "network": "{network}",
        "over": "{system}",
        "reading": "{name}",
        **{part: figure(part, ".1f", 100) for part in ("least", "mean", "most")},
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

NESTED = ReportTable(
    "Partition and sizes together: {setting}",
    lambda nested: [{"name": name, **one} for name, one in nested.items() if name != "setting"],
    {
        "planner": "{name}",
        "ms": lambda one: f"{1e3 * one['makespan_seconds']:.3f}" + (" (proven)" if one["proven_optimal"] else ""),
        "first layers": words("first_layers"),
        **SIZES,
        "CPU s": "{planning_seconds:.2f}",
    },
)


def print_document(found: Mapping[str, Any]) -> None:
    """Print the document of the study."""
    for table in (GAINS, PUBLISHED, OTHERS):
        table.print(found)
    for row in found["published"]:
        print(
            f"{row['network']} over {row['system']}: {row['others_within']} of {row['others_count']} other readings come within "
            f"the tolerance of {100 * row['published']:.2f} %; of random targets from 0 to 30 % they match "
            f"{100 * row['others_match_random_targets']:.0f} %"
        )
    for one in found["searches"]:
        SEARCHES.print(one)
    unequal = [point for point in found["pareto"] if point["sizes"] == "unequal"]
    for setting in dict.fromkeys(point["setting"] for point in unequal):
        FRONT.print({"setting": setting, "points": [point for point in unequal if point["setting"] == setting]})
    for nested in found["nested"]:
        NESTED.print(nested)
