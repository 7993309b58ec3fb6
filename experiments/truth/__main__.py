"""Truth: the cost model and the engine beside published measurements, or a user's own.

Reads every CSV file of a folder whose columns it knows (`--columns` prints them), predicts every row, and prints errors by table:
predicted / measured - 1, those of rows that were at hand while constants were chosen beside those of rows held out. Files of
other columns are named and passed over.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.studies.input_sets import lacking
from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.argument_types import refuse
from experiments.terminal.output import InputError, UsageError, say
from experiments.terminal.report_tables import ReportTable, figure, words
from experiments.truth.errors import PARTS, apart, errors, summary
from experiments.truth.measured_tables import (
    KINDS,
    AllReduce,
    MatrixProduct,
    MeasuredRun,
    MeasuredTable,
    TransformerCell,
    documented,
    needed,
    read_tables,
)
from experiments.truth.predictions import predicted
from experiments.truth.seen_rows import was_seen
from hardware_profiles import GENERIC, PROFILES, RANGES, counted, errors_text, load_cluster, load_stack, user_roots
from simulator import write_atomically

PEERS: Mapping[str, str] = {
    "vtrain_multi": "time: vTrain 14.7 %, Calculon 15.3 %; regret: Calculon 1.27 %",
    "vtrain_single": "time: vTrain 39 %; regret: Calculon 10.2 %",
    "sailor_validation": "time: Sailor 10 %; memory: Sailor up to 81 %",
    "simumax_b200": "time: SimuMax 5.6 %; memory: SimuMax 0.46 % (own rows)",
    "seqpar": "time: Calculon 3.65 % (own rows)",
}
"""Published or measured errors of public simulators on the same tables (vTrain, Calculon, Sailor and SimuMax, each run as its
authors publish it), by what the names of tables begin with; the longest that does."""

SEEN: Mapping[str, str] = {
    "sailor_validation": "none; rates of links and reserves are its authors' own, of other measurements",
    "a100_gemm": "half, at random: products",
    "vtrain_allreduce_nvlink": "half, of an A100 at random, of a V100 every second: latency and rate of collectives",
    "vtrain_multi": "half, at random: launches of layers, element-wise kernels, the network's rate",
    "vtrain_single": "its cells (table vtrain_single_cells)",
    "vtrain_single_cells": "all: launches of layers, element-wise kernels, the framework's seconds of a pass",
    "simumax_b200": "the nine of dense models: element-wise kernels",
    "mosaic": "all but fp8: the stack fsdp1-eager",
    "bigscience": "all: the stack megatron-deepspeed",
    "dgxc_h100_llama": "all: the stack megatron-core",
    "dgxc_h100_gpt175b": "all: the stack megatron-core",
    "megatron_bridge_models": "the dense ones: the stack megatron-core",
    "maxtext": "growth over slices: the stack maxtext",
    "simumax_ops_a100_pcie": "half of the products, at random; attention",
    "simumax_ops_b200": "half of the products, at random; attention",
}
"""Rows that constants were chosen on, and which, by what the names of tables begin with; none of any other. No constant belongs
to a network or to a table."""

BY: Mapping[type, tuple[str, ...]] = {
    MeasuredRun: ("stack", "tp", "hidden", "recompute", "cluster"),
    TransformerCell: ("tp", "hidden"),
    MatrixProduct: ("op", "tp"),
    AllReduce: ("operation", "gpu", "gpus", "size"),
}
"""Columns by which errors are told apart."""

QUESTION: Mapping[type, tuple[str, ...]] = {
    MeasuredRun: ("hidden", "layers", "seq", "global_batch", "devices", "cluster")
}
"""Rows that agree in these answer one question: which plan is the fastest?"""


@contextmanager
def profiles_beside(folder: Path | None) -> Iterator[None]:
    """Names of machines, accelerators and stacks whose files stand in a folder beside the tables are known, too."""
    there = sorted(one.parent for one in folder.glob("*/clusters")) if folder is not None and folder.is_dir() else []
    own = os.environ.get(PROFILES)
    if there:
        os.environ[PROFILES] = os.pathsep.join(map(str, [*user_roots(), *there]))
    try:
        yield
    finally:
        os.environ.pop(PROFILES, None)
        if own is not None:
            os.environ[PROFILES] = own


def run(options: argparse.Namespace) -> Findings:
    """Predict every known table of the folder; exit code 4 for a file that cannot be read."""
    with profiles_beside(options.tables):
        return _run(options)


def _run(options: argparse.Namespace) -> Findings:
    if options.columns:
        kinds = [
            {
                "about": documented(kind),
                "needed": needed(kind),
                "further": [name for name in kind.__struct_fields__ if name not in needed(kind)],
            }
            for kind in KINDS
        ]
        return Findings({"kinds": kinds}, print_columns)
    file = options.out if str(options.out).endswith(".toml") else None
    if options.errors_out is not None:
        refuse(options, ("out", "fit"), "does not go with --errors-out, which writes classes of errors alone")
    if options.fit is not None:
        return _fit(options, file)
    refuse(options, ("hold", "seed", "constants", "stack"), "goes with --fit")
    if file is not None:
        raise UsageError(f"--out {file}: a stack is written with --fit; without it name a folder")
    if options.tables is None:
        raise lacking("--tables", "measured-tables")
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
    if options.errors_out is not None:
        return _classes(tables, machines, options.errors_out)
    found: dict[str, Any] = {}
    points, runs = {}, list[dict[str, Any]]()
    for table in tables:
        frame, left_out = predicted(table, machines.get(table.name))
        kind = table.kind
        if len(frame):
            if kind is MeasuredRun:
                frame["devices"] = frame["tp"] * frame["pp"] * frame["dp"] * frame["cp"]
                lines = frame.assign(table=table.name, seen=was_seen(table.name, frame)).to_dict("records")
                runs += [{str(name): value for name, value in line.items()} for line in lines]
            points[table.name] = frame[["what", "measured", "predicted"]]
            found[table.name] = summary(frame, BY.get(kind, ()), QUESTION.get(kind, ()))
            found[table.name]["apart"] = apart(frame, was_seen(table.name, frame))
        else:
            found[table.name] = {"rows": 0, "apart": {}}
        found[table.name]["left_out"] = left_out
        found[table.name] |= {"peers": named(PEERS, table.name), "seen": named(SEEN, table.name) or "none"}
    document = {
        "tables": found,
        "stacks": by_stack(runs),
        "constants": [row for name in dict.fromkeys(one["stack"] for one in runs) for row in constants_of(name)],
        "skipped": list(skipped),
        "skipped_because": skipped,
    }

    def drawn(document: Mapping[str, Any]) -> Made:
        from experiments.truth.truth_plots import draw

        yield "truth", draw(points)

    return Findings(document, print_document, drawn)


def _fit(options: argparse.Namespace, file: Path | None) -> Findings:
    """Fit a stack to part of a table and judge it on the rest."""
    from experiments.truth.fitting import FitRequest, fitted, print_fit, table_to_fit

    if options.out is not None and file is None:
        raise UsageError(f"--out {options.out}: --fit writes a stack: the name must end in .toml")
    table = table_to_fit(options.fit, options.tables, dict(options.rename))
    names = tuple(options.constants.split(",")) if options.constants else tuple(RANGES)
    asked = FitRequest(options.stack, names, 0.5 if options.hold is None else options.hold, options.seed)
    return Findings(fitted(table, dict(options.machine).get(table.name), asked, file), print_fit)


def _classes(tables: Sequence[MeasuredTable], machines: Mapping[str, str], file: Path) -> Findings:
    """The classes of errors of rows that no constant saw, written to a file."""
    from experiments.truth.error_classes import error_classes, judged_rows

    classes = error_classes(judged_rows(tables, machines))
    if not classes:
        raise InputError("--errors-out: no row of an iteration can be judged by constants that did not see it")
    write_atomically(file, errors_text(classes))
    rows = [{"stack": name, **asdict(one)} for name, some in classes.items() for one in some]
    return Findings({"classes": rows, "file": str(file)}, print_classes)


def by_stack(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Errors of iterations by what ran them, and by table; of rows that were at hand while constants were chosen, and others.

    runs: lines of predictions with `stack`, `table` and `seen`
    """
    rows = []
    for key in ("stack",), ("stack", "table"):
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for one in runs:
            groups.setdefault((*(str(one[name]) for name in key), one["what"]), []).append(one)
        for (stack, *where, what), lines in groups.items():
            parts = {
                "": lines,
                "seen ": [one for one in lines if one["seen"]],
                "held out ": [one for one in lines if not one["seen"]],
            }
            told: dict[str, Any] = {"stack": stack, "table": where[0] if where else "all", "what": what}
            for part, some in parts.items():
                figures = errors([one["measured"] for one in some], [one["predicted"] for one in some]) if some else {}
                told |= {f"{part}{name}": figures.get(name) for name in ("rows", "mape", "signed")}
            rows.append(told)
    return sorted(rows, key=lambda row: (row["stack"], row["what"], row["table"] != "all", row["table"]))


def constants_of(name: str) -> list[dict[str, Any]]:
    """The constants of a stack that change anything, by generation of accelerators, with what they rest on."""
    neutral, rows = GENERIC.constants(), []
    for constant, own in load_stack(name).constants().items():
        for generation, one in (("", own), *own.generations):
            if one.source or one.value != neutral[constant].value:
                told: dict[str, Any] = {
                    "stack": name,
                    "constant": constant,
                    "generation": generation,
                    "value": one.value,
                }
                rows.append(told | {"source": one.source, "fitted": list(one.fitted), "judged": list(one.judged)})
    return rows


def named(words: Mapping[str, str], table: str) -> str | None:
    """What the longest beginning of a table's name has."""
    return max(((len(word), said) for word, said in words.items() if table.startswith(word)), default=(0, None))[1]


def print_columns(document: Mapping[str, Any]) -> None:
    """What rows may be, and their columns."""
    for kind in document["kinds"]:
        for line in kind["about"].splitlines():
            say(line)
        say(f"needed: {', '.join(kind['needed'])}; further: {', '.join(kind['further'])}")
        say("")


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
        "public simulators": "{peers}",
    },
)


def _apart(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for every figure of every table: errors of rows seen, and of rows held out."""
    return [
        {"table": name, "what": what}
        | {f"{part} {key}": value for part, errors in parts.items() for key, value in (errors or {}).items()}
        for name, table in document["tables"].items()
        for what, parts in table["apart"].items()
    ]


APART = ReportTable(
    "Rows seen while constants and rules were chosen, and rows held out: errors, per cent",
    _apart,
    {"table": "{table}", "figure": "{what}"}
    | {
        f"{words} {part.replace('_', ' ')}": figure(f"{part} {key}", form, scale)
        for part in PARTS
        for words, key, form, scale in (
            ("rows", "rows", "d", 1),
            ("mean,", "mape", ".1f", 100),
            ("median,", "median", ".1f", 100),
            ("worst,", "worst", ".1f", 100),
            ("signed,", "signed", "+.1f", 100),
        )
    },
)

SEEN_TABLE = ReportTable(
    "Rows that constants were fitted to",
    lambda document: [{"table": name, "seen": table["seen"]} for name, table in document["tables"].items()],
    {"table": "{table}", "rows, and for what": "{seen}"},
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


STACKS_TABLE = ReportTable(
    "Iterations by stack: errors, per cent",
    "stacks",
    {"stack": "{stack}", "table": "{table}", "figure": "{what}"}
    | {
        f"{part}{words}": figure(f"{part}{key}", form, scale)
        for part in ("", "seen ", "held out ")
        for words, key, form, scale in (
            ("rows", "rows", "d", 1),
            ("mean", "mape", ".1f", 100),
            ("signed", "signed", "+.1f", 100),
        )
    },
)

CONSTANTS_TABLE = ReportTable(
    "Constants of stacks, and what they rest on",
    lambda document: [
        {**one, "fitted": ", ".join(one["fitted"]), "judged": "; ".join(one["judged"])} for one in document["constants"]
    ],
    {
        "stack": "{stack}",
        "constant": "{constant}",
        "generation": "{generation}",
        "value": figure("value", ".4g"),
        "fitted on": "{fitted}",
        "judged by": "{judged}",
    },
)


CLASSES = ReportTable(
    "Measured / predicted of rows that no constant saw, by class",
    "classes",
    {
        "stack": "{stack}",
        "figure": "{figure}",
        "accelerators": words("accelerators", ", "),
        "plans": words("plans", ", "),
        "rows": figure("rows", "d"),
        "median": figure("median", ".3f"),
        "from": figure("low", ".3f"),
        "to": figure("high", ".3f"),
        "why": "{how}",
    },
)


def print_classes(document: Mapping[str, Any]) -> None:
    """The classes, and where they are written."""
    CLASSES.print(document)
    say(f"written to {document['file']}")


def print_document(document: Mapping[str, Any]) -> None:
    """The errors by table and by column, and what was left out."""
    TABLE.print(document)
    APART.print(document)
    SPLIT.print(document)
    SEEN_TABLE.print(document)
    if document["stacks"]:
        STACKS_TABLE.print(document)
    if document["constants"]:
        CONSTANTS_TABLE.print(document)
    for name, table in document["tables"].items():
        for reason, count in table["left_out"].items():
            say(f"{name}: {counted(count, 'row')} not predicted: {reason}")
    for name, reason in document["skipped_because"].items():
        say(f"passed over: {name}: {reason}")


if __name__ == "__main__":
    sys.exit(run_study("truth"))
