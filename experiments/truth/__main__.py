"""Truth: the cost model and the engine beside published measurements, or a user's own.

    python -m experiments.truth --tables DIR [--machine TABLE=CLUSTER] [--rename COLUMN=NAME] [--out DIR] [--json]

Reads every CSV file of a folder whose columns it knows (`experiments.truth.measured_tables` documents them), predicts every row,
and prints errors by table: predicted / measured - 1. Files of other columns are named and passed over.

What the constants saw: shares of the peaks of an A100 are anchored to a random half of its matrix products, latency and rate of
collectives to a random half (A100) or every second row (V100) of the all-reduces; what no kernel tells (launches of layers, the
element-wise share of the bandwidth, the network's rate) to the cells of vTrain's single-node runs and to half of its multi-node
runs; two shares of a B200 to its nine dense runs. No constant belongs to a network or to a table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.output import InputError, UsageError, say
from experiments.terminal.report_tables import ReportTable, figure
from experiments.truth.errors import summary
from experiments.truth.measured_tables import KINDS, AllReduce, MatrixProduct, MeasuredRun, needed, read_tables
from experiments.truth.predictions import predicted
from hardware_profiles import load_cluster

PEERS: Mapping[str, str] = {
    "vtrain_multi": "Calculon 15.3 %, vTrain 14.7 %",
    "vtrain_single": "vTrain 39 % (rows)",
    "sailor_validation": "Sailor 10 % time, up to 81 % memory",
    "simumax_b200": "SimuMax 5.6 % time, 0.46 % memory (own rows)",
}
"""Published or measured errors of public simulators on the same tables (vTrain, Calculon, Sailor and SimuMax, each run as its
authors publish it)."""

BY: Mapping[type, tuple[str, ...]] = {
    MeasuredRun: ("tp", "hidden", "cluster"),
    MatrixProduct: ("op", "tp"),
    AllReduce: ("gpu", "gpus"),
}
"""Columns by which errors are told apart."""

QUESTION: Mapping[type, tuple[str, ...]] = {
    MeasuredRun: ("hidden", "layers", "seq", "global_batch", "devices", "cluster")
}
"""Rows that agree in these answer one question: which plan is the fastest?"""


def run(options: argparse.Namespace) -> Findings:
    """Predict every known table of the folder; exit code 4 for a file that cannot be read."""
    tables, skipped = read_tables(options.tables, dict(options.rename))
    if not tables:
        known = "; ".join(", ".join(needed(kind)) for kind in KINDS)
        raise InputError(f"{options.tables}: holds no table with the columns of one of: {known}")
    machines = dict(options.machine)
    names = [table.name for table in tables]
    if unknown := sorted(set(machines) - set(names)):
        raise UsageError(f"--machine: table {unknown[0]!r} is not in {options.tables}; choices: {', '.join(names)}")
    for name in machines.values():
        load_cluster(name)
    found: dict[str, Any] = {}
    points = {}
    for table in tables:
        frame, left_out = predicted(table, machines.get(table.name))
        kind = table.kind
        if len(frame):
            if kind is MeasuredRun:
                frame["devices"] = frame["tp"] * frame["pp"] * frame["dp"]
            points[table.name] = frame[["what", "measured", "predicted"]]
            found[table.name] = summary(frame, BY.get(kind, ()), QUESTION.get(kind, ()))
        else:
            found[table.name] = {"rows": 0}
        found[table.name] |= {"left_out": left_out, "peers": PEERS.get(table.name)}
    document = {"tables": found, "skipped": list(skipped)}

    def drawn(document: Mapping[str, Any]) -> Made:
        from experiments.truth.truth_plots import draw

        yield "truth", draw(points)

    return Findings(document, print_document, drawn)


def _rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for every figure of every table."""
    rows = []
    for name, table in document["tables"].items():
        figures = {table.get("figure"): table} | {
            key: value for key, value in table.items() if isinstance(value, dict) and "mape" in value
        }
        for number, (what, values) in enumerate(figures.items()):
            first = number == 0
            rows.append({**values, "table": name if first else "", "what": what or "nothing predicted"})
            rows[-1] |= {"kendall": table.get("kendall"), "regret": table.get("regret")} if first else {}
            rows[-1]["peers"] = (table["peers"] or "") if first else ""
    return rows


TABLE = ReportTable(
    "Predicted / measured - 1, per cent",
    _rows,
    {
        "table": "{table}",
        "figure": "{what}",
        "rows": figure("rows", "d"),
        "mean": figure("mape", ".1f", 100),
        "median": figure("median", ".1f", 100),
        "worst": figure("worst", ".1f", 100),
        "signed": figure("signed", "+.1f", 100),
        "rank agreement": figure("kendall", ".2f"),
        "regret": figure("regret", ".1f", 100),
        "peers (mean)": "{peers}",
    },
)

SPLIT = ReportTable(
    "Mean error by column, per cent",
    lambda document: [
        {"table": name, "column": column, "value": value, **figures}
        for name, table in document["tables"].items()
        for column, values in table.get("by", {}).items()
        for value, figures in values.items()
    ],
    {
        "table": "{table}",
        "column": "{column}",
        "value": "{value}",
        "rows": figure("rows", "d"),
        "mean": figure("mape", ".1f", 100),
        "worst": figure("worst", ".1f", 100),
        "signed": figure("signed", "+.1f", 100),
    },
)


def print_document(document: Mapping[str, Any]) -> None:
    """The errors by table and by column, and what was left out."""
    TABLE.print(document)
    SPLIT.print(document)
    for name, table in document["tables"].items():
        for reason, count in table["left_out"].items():
            say(f"{name}: {count} rows are not predicted: {reason}")
    if document["skipped"]:
        say(f"passed over (other columns): {', '.join(document['skipped'])}")


if __name__ == "__main__":
    sys.exit(run_study("truth"))
