"""`pipeplan list`: what can be named on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import hardware_profiles
import planners
import simulator
from experiments.terminal.argument_types import check_choice
from experiments.terminal.output import print_json, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan list`."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=f"one of {', '.join(TOPICS)}; default all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print the names of one topic, or of all."""
    if arguments.topic is not None:
        check_choice("topic", arguments.topic, TOPICS)
    found = {topic: _rows(topic) for topic in (TOPICS if arguments.topic is None else (arguments.topic,))}
    if arguments.json:
        print_json(
            {topic: [dict(zip(TOPICS[topic][0], row, strict=True)) for row in rows] for topic, rows in found.items()}
        )
        return 0
    for topic, rows in found.items():
        print_table(topic.capitalize(), TOPICS[topic][0], rows)
    return 0


Row = tuple[str, ...]


def _rows(topic: str) -> list[Row]:
    """A row for every name that can be loaded; a user's broken file or package is said and passed over."""
    from experiments.compare.questions import names

    rows = []
    for name in names(topic):
        try:
            rows.append((name, *TOPICS[topic][1](name)))
        except Exception as error:  # what packages outside raise cannot be known
            hardware_profiles.passed_over(f"{topic.removesuffix('s')} {name}", str(error))
    return rows


def _workload(name: str) -> Row:
    workload = simulator.load_workload(name)
    size = (f"{workload.parameters():,}", f"{workload.flop() / 1e9:.4g}", str(len(workload)))
    return (*size, f"{workload.minibatch} × {workload.sample}")


def _cluster(name: str) -> Row:
    cluster = hardware_profiles.load_cluster(name)
    kinds = ", ".join(sorted({device.name for device in cluster.devices}))
    return str(len(cluster.servers)), str(len(cluster.devices)), kinds


def _schedule(name: str) -> Row:
    family = simulator.schedule_families()[name]
    return "yes" if family.flush else "no", ", ".join(family.options), family.summary


TOPICS: dict[str, tuple[Row, Callable[[str], Row]]] = {
    "workloads": (("name", "parameters", "forward GFLOP a sample", "layers", "mini-batch a device"), _workload),
    "accelerators": (
        ("name", "memory, GiB"),
        lambda name: (f"{hardware_profiles.load_accelerator(name).memory_bytes / 2**30:.4g}",),
    ),
    "clusters": (("name", "servers", "devices", "accelerators"), _cluster),
    "schedules": (("name", "flushes", "options", "summary"), _schedule),
    "planners": (("name", "summary"), lambda name: (planners.planner_entry(name).summary,)),
}
"""Columns of a topic, and what a name has in those behind the first."""
