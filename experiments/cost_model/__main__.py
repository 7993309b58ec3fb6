"""Cost model: how well the analytic seconds of a V100 match PipeDream's measured profiles.

For each bundled profile, the analytic workload at the profile's mini-batch on accelerator `v100-sxm2` in fp32, beside
the measured seconds: totals (forward + backward of all layers) and shares by group of layers. A group is a layer with
parameters and the layers without that follow it, so that both graphs have the same groups in the same order. Left out
on both sides: Input nodes (they measure data loading), the loss (the profiles have none) and sums (they measure 0).

Other profiles of the folder are compared with the network that their nodes describe: no constant has seen them.

One network of images left out in turn, and the constants of convolutions fitted to the others: `left_out` says how.

Sentences. The profiles of GNMT record the tensor shapes of ONE batch (48 tokens in `gnmt`, 25 in `gnmt_large`), but seconds
that are means over a thousand batches of changing length. The classifier shows that the two do not belong together: its
forward in `gnmt` would run at 17.7 TFLOP/s, beyond the 15.7 of the card, and in `gnmt_large` at 8.5. Both networks
translate the same corpus (WMT16, recalled), so that both are predicted at one mean length, MEAN_TOKENS, which is fitted;
the errors at the recorded lengths are printed beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from experiments.cost_model.left_out import constants_of, left_out, networks_of
from experiments.cost_model.model_errors import ACCELERATOR, CASES, TARGET, compare_all
from experiments.studies.study_harness import Findings, Made, profiles_of, run_study
from experiments.terminal.output import blamed_on, say
from experiments.terminal.report_tables import ReportTable, figure, share
from hardware_profiles import GraphicsProcessor, load_accelerator, percent


def run(options: argparse.Namespace) -> Findings:
    """Compare; exit code 0 if every total is within the target, 1 if not, 4 for a bad input file."""
    folder, samples = profiles_of(options, [case.profile for case in CASES])
    with blamed_on(str(folder)):
        accelerator = cast(GraphicsProcessor, load_accelerator(ACCELERATOR))
        document = compare_all(folder, accelerator, samples)
        rows = left_out(networks_of(folder, accelerator, samples), accelerator)
    document |= {"left_out": rows, "shipped": constants_of(accelerator)}
    return Findings(document, print_document, drawn, failed=not document["within_target"])


def drawn(document: Mapping[str, Any]) -> Made:
    """The figure."""
    from experiments.cost_model.model_error_plots import draw

    yield "cost_model", draw(document["profiles"], ACCELERATOR)


def _worst(row: Mapping[str, Any]) -> str:
    group = next(group for group in row["groups"] if group["name"] == row["worst_group"])
    return f"{group['name']} ({1e3 * group['measured']:.1f} / {1e3 * group['predicted']:.1f})"


def _table(title: str, rows: str) -> ReportTable:
    return ReportTable(
        title,
        rows,
        {
            "profile": "{name}",
            "mini-batch": "{minibatch}",
            "measured F": figure("measured_forward", ".1f", 1e3),
            "model F": figure("predicted_forward", ".1f", 1e3),
            "error F": share("forward_error", "+.1f"),
            "measured B": figure("measured_backward", ".1f", 1e3),
            "model B": figure("predicted_backward", ".1f", 1e3),
            "error B": share("backward_error", "+.1f"),
            "error": lambda row: percent(row["error"], "+.1f") + ("" if abs(row["error"]) <= TARGET else " (over)"),
            "misplaced": share("share_distance", ".0f"),
            "worst group (measured / model ms)": _worst,
        },
    )


TABLE = _table("{accelerator}, fp32: model against measured profiles, ms of a mini-batch", "profiles")
DESCRIBED = _table("Networks that no constant has seen, as the nodes of their profiles describe them", "described")


def _span(error: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: " to ".join(percent(row[f"{end}_{error}"], "+.0f") for end in ("least", "most"))


LEFT_OUT = ReportTable(
    "One network left out, constants of convolutions fitted to the others; of all searches, the least and the most",
    "left_out",
    {
        "left out": "{name}",
        "F with it": share("with_forward_error", "+.0f"),
        "B with it": share("with_backward_error", "+.0f"),
        "F without": share("without_forward_error", "+.0f"),
        "B without": share("without_backward_error", "+.0f"),
        "all searches, F": _span("forward_error"),
        "all searches, B": _span("backward_error"),
    },
)


def constants_table(document: Mapping[str, Any]) -> ReportTable:
    """A row of each constant: as shipped, fitted to all networks, and to all but one."""
    left = document["left_out"]
    columns = ("shipped", "fitted", *(f"without {row['name']}" for row in left))
    fitted = (document["shipped"], left[0]["fitted"], *(row["constants"] for row in left))
    rows = [
        {"name": name} | {column: one[name] for column, one in zip(columns, fitted, strict=True)}
        for name in document["shipped"]
    ]
    cells = {column: figure(column, ".3g") for column in columns}
    return ReportTable("Constants of convolutions", lambda _: rows, {"constant": "{name}", **cells})


def print_document(document: Mapping[str, Any]) -> None:
    """The comparison as a table, and what sentences of the recorded tensors' length would give."""
    TABLE.print(document)
    for row in document["profiles"]:
        if row["recorded_error"] is not None:
            say(
                f"{row['name']}: at {document['mean_tokens']} tokens; at the {row['recorded_tokens']} of the recorded tensors "
                f"the error would be {percent(row['recorded_error'], '+.1f')}"
            )
    if document["left_out"]:
        LEFT_OUT.print(document)
        constants_table(document).print(document)
    if document["described"]:
        DESCRIBED.print(document)
        words = (("error", "totals"), ("forward_error", "forward"), ("backward_error", "backward"))
        means = ((name, document["described_mean_errors"][error]) for error, name in words)
        say(
            "mean and worst error: "
            + "; ".join(f"{name} {percent(one['mean'])}, {percent(one['worst'])}" for name, one in means)
        )
    if document["passed_over"]:
        say(f"no profiles: {', '.join(document['passed_over'])}")


if __name__ == "__main__":
    sys.exit(run_study("cost-model"))
