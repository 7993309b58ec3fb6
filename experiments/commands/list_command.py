"""`pipeplan list`: what can be named on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from experiments.terminal.output import UsageError, print_json, print_table

TOPICS = ("workloads", "accelerators", "clusters", "schedules", "planners")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan list`."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=f"one of {', '.join(TOPICS)}; default all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print the names of one topic, or of all."""
    if arguments.topic is not None and arguments.topic not in TOPICS:
        raise UsageError(f"topic {arguments.topic!r} is unknown; choices: {', '.join(TOPICS)}")
    topics = TOPICS if arguments.topic is None else (arguments.topic,)
    found = {topic: _rows(topic) for topic in topics}
    if arguments.json:
        print_json(
            {topic: [dict(zip(columns, row, strict=True)) for row in rows] for topic, (columns, rows) in found.items()}
        )
        return 0
    for topic, (columns, rows) in found.items():
        print_table(topic.capitalize(), columns, rows)
    return 0


Row = tuple[str, ...]


def _rows(topic: str) -> tuple[Row, list[Row]]:
    """Columns and rows of a topic."""
    if topic == "workloads":
        from simulator import workload_names

        columns: Row = ("name", "parameters", "forward GFLOP a sample", "layers", "mini-batch a device")
        return columns, _each(topic, workload_names(), _workload)
    if topic == "accelerators":
        from hardware_profiles import accelerator_names

        return ("name", "memory, GiB"), _each(topic, accelerator_names(), _accelerator)
    if topic == "clusters":
        from hardware_profiles import cluster_names

        return ("name", "servers", "devices", "accelerators"), _each(topic, cluster_names(), _cluster)
    if topic == "schedules":
        from simulator import schedule_families

        return ("name", "flushes", "options", "summary"), [
            (name, "yes" if family.flush else "no", ", ".join(family.options), family.summary)
            for name, family in sorted(schedule_families().items())
        ]
    from planners import planner_entries

    return ("name", "summary"), [(name, entry.summary) for name, entry in sorted(planner_entries().items())]


def _each(topic: str, names: Iterable[str], row: Callable[[str], Row]) -> list[Row]:
    """A row for every name that can be loaded; a user's broken file or package is said and passed over."""
    from hardware_profiles import passed_over

    rows = []
    for name in names:
        try:
            rows.append(row(name))
        except Exception as error:  # what packages outside raise cannot be known
            passed_over(f"{topic.removesuffix('s')} {name}", str(error))
    return rows


def _workload(name: str) -> Row:
    from simulator import load_workload

    workload = load_workload(name)
    size = (f"{workload.parameters():,}", f"{workload.flop() / 1e9:.4g}", str(len(workload)))
    return (name, *size, f"{workload.minibatch} × {workload.sample}")


def _accelerator(name: str) -> Row:
    from hardware_profiles import load_accelerator

    return name, f"{load_accelerator(name).memory_bytes / 2**30:.4g}"


def _cluster(name: str) -> Row:
    from hardware_profiles import load_cluster

    cluster = load_cluster(name)
    kinds = ", ".join(sorted({device.name for device in cluster.devices}))
    return name, str(len(cluster.servers)), str(len(cluster.devices)), kinds
