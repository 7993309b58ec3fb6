"""Network rules: do free, first-come and fair links rank plans alike, and what does a choice under one lose under another?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from experiments.network_rules.rules import FULL, QUICK, measure
from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.report_tables import ReportTable, Row, figure


def run(options: argparse.Namespace) -> Findings:
    """Replay the same plans under every rule."""
    return Findings(measure(QUICK if options.quick else FULL), TABLE.print, drawn)


def drawn(document: dict[str, Any]) -> Made:
    """The figure."""
    from experiments.network_rules.rule_plots import draw

    yield "network_rules", draw(document)


def _by_question(document: Row) -> Iterator[Row]:
    """A row per question: of each pair of rules the agreement, of each direction the regret."""
    for question, rows in groupby(document["rows"], lambda row: row["question"]):
        found: dict[str, Any] = {"question": question}
        for row in rows:
            pair = f"{row['chosen_under']}_{row['judged_under']}"
            found |= {f"{name}_{pair}": row[name] for name in ("kendall", "longer", "regret")}
        yield found


TABLE = ReportTable(
    "{plans} plans a question: rank agreement (Kendall), and what the fastest under one rule loses under another, %",
    _by_question,
    {
        "question": "{question}",
        "fifo ~ fair": figure("kendall_fifo_fair", ".2f", missing="-"),
        "free ~ fair": figure("kendall_free_fair", ".2f", missing="-"),
        "free ~ fifo": figure("kendall_free_fifo", ".2f", missing="-"),
        "fair longer\nthan free, %": figure("longer_free_fair", ".1f", 100),
        "fifo, judged\nby fair": figure("regret_fifo_fair", ".1f", 100),
        "fair, judged\nby fifo": figure("regret_fair_fifo", ".1f", 100),
        "free, judged\nby fair": figure("regret_free_fair", ".1f", 100),
        "free, judged\nby fifo": figure("regret_free_fifo", ".1f", 100),
    },
)


if __name__ == "__main__":
    sys.exit(run_study("network-rules"))
