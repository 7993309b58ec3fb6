"""UMPIPE tables: the experiment's document for a person to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.terminal.output import print_table


def show(found: Mapping[str, Any]) -> None:
    """Print the document of the experiment."""
    if found["interrupted"]:
        print("INTERRUPTED: the tables below are not complete\n")
    names = (
        "gpipe tuned",
        "gpipe M=8",
        "gpipe M=16",
        "pipedream flush tuned",
        "pipedream flush M=8",
        "pipedream tuned",
    )
    print_table(
        "Gain of UMPIPE (proven optimum) in speed, %",
        ("network", "setting", *names),
        [
            (one["network"], one["setting"], *(f"{100 * one['gains'][name]:.1f}" for name in names))
            for one in found["gains"]
        ],
    )
    print_table(
        "Published gains beside the one reading that is compared with them, over all settings, %",
        (
            "network",
            "over",
            "published",
            "reading",
            "mean ± deviation",
            "range",
            "settings",
            "agrees",
            "settings that agree",
        ),
        [
            (
                row["network"],
                row["system"],
                f"{100 * row['published']:.2f}" + (" or more" if row["network"] == "simulation" else ""),
                row["reading"],
                f"{100 * row['mean']:.1f} ± {100 * row['standard_deviation']:.1f}",
                f"{100 * row['least']:.1f} … {100 * row['most']:.1f}",
                str(row["settings"]),
                "yes" if row["agrees"] else "no",
                str(row["settings_that_agree"]),
            )
            for row in found["published"]
        ],
    )
    print_table(
        "The other readings, %: not compared, as so many match something",
        ("network", "over", "reading", "least", "mean", "most"),
        [
            (row["network"], row["system"], name, *(f"{100 * value:.1f}" for value in values))
            for row in found["published"]
            for name, values in row["others"].items()
        ],
    )
    for row in found["published"]:
        print(
            f"{row['network']} over {row['system']}: {row['others_within']} of {row['others_count']} other readings come within "
            f"the tolerance of {100 * row['published']:.2f} %; of random targets from 0 to 30 % they match "
            f"{100 * row['others_match_random_targets']:.0f} %"
        )
    for one in found["searches"]:
        print_table(
            f"{one['instance']}: TiDGAP is {one['tidgap_acceleration_over_dgap']:.1f} × as fast as DGAP, compiled "
            f"{one['compiled_acceleration_over_dgap']:.0f} ×",
            ("search", "ms", "above exact, %", "evaluations", "CPU s"),
            [
                (
                    row["search"],
                    f"{1e3 * row['makespan_seconds']:.4f}",
                    f"{100 * row['above_exact']:.2f}",
                    f"{row['evaluations']}",
                    f"{row['cpu_seconds']:.3f}",
                )
                for row in one["searches"]
            ],
        )
    for setting in dict.fromkeys(point["setting"] for point in found["pareto"]):
        print_table(
            f"Makespan against memory of the fullest stage, {setting}",
            ("ms", "static MiB", "peak MiB with queues", "forward", "backward"),
            [
                (
                    f"{1e3 * point['seconds']:.2f}",
                    f"{point['static_bytes'] / 2**20:.0f}",
                    f"{point['peak_bytes'] / 2**20:.0f}",
                    " ".join(map(str, point["forward_sizes"])),
                    " ".join(map(str, point["backward_sizes"])),
                )
                for point in found["pareto"]
                if (point["setting"], point["sizes"]) == (setting, "unequal")
            ],
        )
    for nested in found["nested"]:
        print_table(
            f"Partition and sizes together: {nested['setting']}",
            ("planner", "ms", "first layers", "forward", "backward", "CPU s"),
            [
                (
                    name,
                    f"{1e3 * one['makespan_seconds']:.3f}" + (" (proven)" if one["proven_optimal"] else ""),
                    " ".join(map(str, one["first_layers"])),
                    " ".join(map(str, one["forward_sizes"])),
                    " ".join(map(str, one["backward_sizes"])),
                    f"{one['planning_seconds']:.2f}",
                )
                for name, one in nested.items()
                if name != "setting"
            ],
        )
