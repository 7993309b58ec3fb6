"""PipeDream tables: the published speedups over data parallelism beside those simulated here.

Goes over SOSP'19 Table 1 and arXiv 1806.03377 Table 1. Each row whose profile is at hand is run three times on the SimPy engine:
data parallelism, the published plan, and the plan that PipeDream's search finds here. One constant is fitted to rows that are
then reported, so that each of these is reported a second time, with the constant that the cluster's other rows alone would give
("left out"). What was chosen, for all rows alike:

- one collective efficiency per cluster (its TOML file): on A and B fitted once to the convolutional rows within the rates that
  the measured speedups need (0.56-0.68 GB/s on cluster A, 1.0-1.45 GB/s on B); on the arXiv paper's B, whose software was another
  one, fitted to data parallelism's own speedup over one machine, of the only row there. The band repeats the row at both ends of
  that range
- all-reduces over one flat ring through all devices, as NCCL's for large tensors (the baseline ran in NVIDIA's container
  pytorch:19.05-py3, says the repository's EXPERIMENTS.md, which holds NCCL 2.4.6), in buckets of 25 MiB behind the backward
- published plans are placed as shipped: the convolutional part on the first replicas, cut behind the last pooling layer (a cut
  that the repository's models/vgg16/gpus=16 shows), a straight pipeline as balanced as the search makes it
- minibatches of the papers' setup, asynchronous 1F1B-RR, momentum

Inception-v3's profile is not bundled: its row is run where --profiles is a checkout of msr-fiddle/pipedream, or has
inception_v3.txt. It is a V100's, and the row ran on Titan X: what can be judged is that data parallelism is the plan.

Not modelled, with the sign of what it would do: PipeDream's own stages all-reduced over Gloo, not NCCL (slower plans); its
optimizer ran a kernel for each step of SGD with weight decay, 12 passes over the weights where one fused kernel makes 5 (slower
AlexNet plan, whose last stage updates 235 MB behind each minibatch); data loading (AlexNet ran on synthetic data); sparse
embedding gradients and GNMT's sentence lengths.

GNMT-16 on cluster A is not reproduced: the profile's slowest stage, the classifier, takes 38 ms a minibatch, links take less, so
the simulated pipeline is as fast on A as on B while data parallelism is 2.2 times slower; the (recalled) published speedup is
lower on A than on B, which needs a pipeline more than twice as slow on A as its computation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from experiments.pipedream_tables.published_rows import ROWS, reproduce
from experiments.studies.study_harness import Findings, Made, profiles_of, run_study
from experiments.terminal.output import to_json
from experiments.terminal.report_tables import STALE, STALE_WORDS, ReportTable, Row, either, share
from hardware_profiles import percent

GROUPS = ("rows that a constant was fitted to", "the same left out of the fit", "rows that none was fitted to")
"""Words for the counts of rows within the tolerance."""


def run(options: argparse.Namespace) -> Findings:
    """Simulate every row that has a profile."""
    known = sorted({row.profile for row in ROWS if row.profile is not None})
    folder, samples = profiles_of(options, known)
    document = reproduce(folder, profiled_minibatches=samples)
    return Findings(document, print_document, drawn)


def drawn(document: dict[str, Any]) -> Made:
    """The figure and the document."""
    from experiments.pipedream_tables.speedup_plots import draw

    yield "pipedream_tables", draw(document["rows"])
    yield "pipedream_tables.json", to_json(document) + "\n"


def _published_saving(record: Row) -> str:
    saved = record["published_communication_saved"]
    return "" if saved is None else "-".join(dict.fromkeys(f"{100 * one:.0f}" for one in saved)) + " %"


def _left_out(record: Row) -> str:
    """The speedup, and its error, with the efficiency that the cluster's other rows fit."""
    if not record["efficiency_fitted_to_it"]:
        return ""
    found = record["left_out"]
    return "no other row" if found is None else f"{found['speedup']:.2f} ({percent(found['relative_error'], '+.0f')})"


SPEEDUPS = ReportTable(
    "Speedup over data parallelism, simulated and published († recalled, not checked)",
    "rows",
    {
        "table": "{table}",
        "model": "{model}",
        "cluster": "{cluster}",
        "published plan": lambda record: record["published_plan"] + STALE * record["stale"],
        "published": lambda record: (
            f"{record['published_speedup']:.2f}" + (" †" if record["published_recalled"] else "")
        ),
        "simulated": "{speedup:.2f}",
        "band": "{speedup_low:.2f} to {speedup_high:.2f}",
        "error": share("relative_error", "+.0f"),
        "fitted to": either("efficiency_fitted_to_it"),
        "left out": _left_out,
        "saved, published": _published_saving,
        "saved": share("communication_saved", ".0f"),
        "search here": lambda record: record["planned"] + STALE * record["planned_stale"],
        "its speedup": "{planned_speedup:.2f}",
        "collective efficiency": "{collective_efficiency:g}",
    },
)

GPIPE = ReportTable(
    f"GNMT-16, one straight partition of 16: throughput below PipeDream's{STALE}",
    "gpipe",
    {
        "cluster": "{cluster}",
        "schedule": "{schedule}",
        "recompute": either("recompute"),
        "micro-batches": "{microbatches}",
        "lower by": share("lower_by", ".0f"),
        "published": lambda record: "" if record["published_lower_by"] is None else "35-71 %",
    },
)


def print_document(document: Mapping[str, Any]) -> None:
    """Both tables, how many rows come within the tolerance, and what could not be run."""
    SPEEDUPS.print(document)
    print(STALE_WORDS)
    counted = "; ".join(
        f"{words} {within} of {of}" for words, (within, of) in zip(GROUPS, document["within"].values(), strict=True)
    )
    print(f"within {percent(document['tolerance'], '.0f')}: {counted}")
    for record in document["missing"]:
        print(
            f"not run: {record['table']} {record['model']} on {record['devices']} devices of {record['cluster']} "
            f"({record['published_plan']}, {record['published_speedup']}): {record['lacking']}"
        )
    GPIPE.print(document)


if __name__ == "__main__":
    sys.exit(run_study("pipedream-tables"))
