"""`pipeplan list`: what can be named on the command line; workloads and clusters by group."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import hardware_profiles
import planners
import simulator
from experiments.terminal.output import print_json, print_table
from hardware_profiles import GIB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan list`."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=f"one of {', '.join(TOPICS)}; default all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print the names of one topic, or of all."""
    found = {topic: rows_of(topic) for topic in (TOPICS if arguments.topic is None else (arguments.topic,))}
    if arguments.json:
        print_json({topic: [_record(topic, *one) for one in rows] for topic, rows in found.items()})
        return 0
    for topic, rows in found.items():
        print_table(topic.capitalize(), tuple(TOPICS[topic][0].values()), _under_headings(rows))
    return 0


Row = tuple[str, ...]


def rows_of(topic: str) -> list[tuple[str, Row]]:
    """The group and a row of every name that can be loaded; a user's broken file or package is said and passed over."""
    from experiments.compare.questions import names

    groups = GROUPS[topic]() if topic in GROUPS else {"": names(topic)}
    rows = []
    for group, members in groups.items():
        for name in members:
            try:
                rows.append((group, (name, *TOPICS[topic][1](name))))
            except Exception as error:  # what packages outside raise cannot be known
                hardware_profiles.passed_over(f"{topic.removesuffix('s')} {name}", str(error))
    return rows


def _record(topic: str, group: str, row: Row) -> dict[str, str]:
    return dict(zip(TOPICS[topic][0], row, strict=True)) | ({"group": group} if group else {})


def _under_headings(rows: Sequence[tuple[str, Row]]) -> list[Row]:
    """The rows, those of a group indented under a row that names it."""
    lines: list[Row] = []
    for group, members in groupby(rows, key=lambda one: one[0]):
        for number, (_, (name, *facts)) in enumerate(members):
            if group and not number:
                lines.append((group, *("" for _ in facts)))
            lines.append((f"  {name}" if group else name, *facts))
    return lines


def _workload(name: str) -> Row:
    workload = simulator.load_workload(name)
    size = (f"{workload.parameters():,}", f"{workload.flop() / 1e9:.4g}", str(len(workload)))
    return (*size, f"{workload.minibatch} × {workload.sample}")


def _cluster(name: str) -> Row:
    cluster = hardware_profiles.load_cluster(name)
    kinds = ", ".join(sorted({device.name for device in cluster.devices}))
    return str(len(cluster.servers)), str(len(cluster.devices)), kinds


def _stack(name: str) -> Row:
    stack = hardware_profiles.load_stack(name)
    return ", ".join(map(str, stack.runs.zero)), stack.description


def _cluster_groups() -> Mapping[str, Sequence[str]]:
    """By what the name begins with, up to a hyphen: the paper or the machine."""
    groups: dict[str, list[str]] = {}
    for name in hardware_profiles.cluster_names():
        groups.setdefault(name.split("-")[0], []).append(name)
    return groups


def _schedule(name: str) -> Row:
    family = simulator.schedule_families()[name]
    return "yes" if family.flush else "no", ", ".join(family.options), family.summary


def _planner(name: str) -> Row:
    entry = planners.planner_entry(name)
    return entry.summary, ", ".join(entry.options), ", ".join(entry.searches)


def _alike(*keys: str) -> dict[str, str]:
    """Columns whose heading is their key."""
    return {key: key for key in keys}


TOPICS: dict[str, tuple[dict[str, str], Callable[[str], Row]]] = {
    "workloads": (
        {
            **_alike("name", "parameters"),
            "forward GFLOP per sample": "forward GFLOP\nper sample",
            "layers": "layers",
            "mini-batch per device": "mini-batch\nper device",
        },
        _workload,
    ),
    "accelerators": (
        _alike("name", "memory, GiB"),
        lambda name: (f"{hardware_profiles.load_accelerator(name).memory_bytes / GIB:.4g}",),
    ),
    "clusters": (_alike("name", "servers", "devices", "accelerators"), _cluster),
    "stacks": (_alike("name", "ZeRO", "description"), _stack),
    "schedules": (_alike("name", "flushes", "options", "summary"), _schedule),
    "planners": (
        {**_alike("name", "summary", "options"), "searches where not asked for": "searches unless\nasked for"},
        _planner,
    ),
}
"""Columns of a topic, keys of the document with their headings, and what a name has in those behind the first."""

GROUPS: dict[str, Callable[[], Mapping[str, Sequence[str]]]] = {
    "workloads": lambda: simulator.workload_families(),
    "clusters": _cluster_groups,
}
"""Topics whose names stand in groups."""
