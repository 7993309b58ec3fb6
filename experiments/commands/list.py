"""`pipeplan list`: what can be named on the command line."""

from __future__ import annotations

import argparse

TOPICS = ("workloads", "accelerators", "clusters", "schedules", "planners")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan list`."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=f"one of {', '.join(TOPICS)}; default all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print the names of one topic, or of all."""
    from experiments.output import UsageError, print_json, print_table

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


def _rows(topic: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows: list[tuple[str, ...]] = []
    if topic == "workloads":
        from simulator.workloads import load_workload, workload_names

        for name in workload_names():
            workload = load_workload(name)
            size = (f"{workload.parameters():,}", f"{workload.flop() / 1e9:.4g}", str(len(workload)))
            rows.append((name, *size, f"{workload.minibatch} × {workload.sample}"))
        return ("name", "parameters", "forward GFLOP a sample", "layers", "mini-batch a device"), rows
    if topic == "accelerators":
        from hardware_profiles import accelerator_names, load_accelerator

        return ("name", "memory, GiB"), [
            (name, f"{load_accelerator(name).memory_bytes / 2**30:.4g}") for name in accelerator_names()
        ]
    if topic == "clusters":
        from hardware_profiles import cluster_names, load_cluster

        for name in cluster_names():
            cluster = load_cluster(name)
            kinds = ", ".join(sorted({device.name for device in cluster.devices}))
            rows.append((name, str(len(cluster.servers)), str(len(cluster.devices)), kinds))
        return ("name", "servers", "devices", "accelerators"), rows
    if topic == "schedules":
        from simulator import schedule_families

        return ("name", "flushes", "options", "summary"), [
            (name, "yes" if family.flush else "no", ", ".join(family.options), family.summary)
            for name, family in sorted(schedule_families().items())
        ]
    from planners import planner_entries

    return ("name", "summary"), [(name, entry.summary) for name, entry in sorted(planner_entries().items())]
