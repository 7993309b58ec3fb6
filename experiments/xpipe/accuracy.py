"""Accuracy: what is trained for XPipe's claims, and what the trainings show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.training.clocks import MethodCase
from experiments.training.data import DATA_SETS
from experiments.training.method_comparison import (
    compared,
    directions,
    order_of,
    paired_difference,
    replicated,
    seed_blocks,
)
from experiments.training.seed_grid import CaseResult, TrainingSetting, rule_with, train_grid

SYNCHRONOUS = MethodCase("synchronous", "synchronous", 4)
HEADLINE = TrainingSetting("adam", 0.002)
SETTINGS = (
    TrainingSetting("adam", 0.0005),
    TrainingSetting("adam", 0.001),
    HEADLINE,
    TrainingSetting("adam", 0.004),
    TrainingSetting("sgd", 0.1),
    TrainingSetting("sgd", 0.3),
)
"""`sgd` averages its gradients (momentum .9): 0.1 is PyTorch's 0.01."""

CASES = (
    SYNCHRONOUS,
    MethodCase("XPipe T=4", "xpipe", 4),
    MethodCase("naive T=4", "naive", 4),
    MethodCase("2BW T=8", "2bw", 8),
    MethodCase("XPipe T=1", "xpipe", 1),
    MethodCase("PipeOptim T=1", "pipeoptim", 1),
    MethodCase("SpecTrain v2 T=1", "spectrain-v2", 1),
    MethodCase("PipeDream T=1", "pipedream", 1),
    MethodCase("naive T=1", "naive", 1),
)
MORE_CASES = (
    MethodCase("XPipe T=2", "xpipe", 2),
    MethodCase("XPipe T=8", "xpipe", 8),
    MethodCase("XPipe exact s T=4", "xpipe-exact", 4),
    MethodCase("PipeOptim T=4", "pipeoptim", 4),
    MethodCase("SpecTrain v1 T=1", "spectrain-v1", 1),
    MethodCase("PipeMare T=1", "pipemare", 1),
)
"""At the headline setting only."""

ORDER = ("synchronous", "XPipe T=4", "naive T=4", "XPipe T=1", "PipeOptim T=1", "naive T=1")
"""Expected to rise in train loss at the headline setting."""

PREDICTING = ("xpipe", "xpipe-exact", "spectrain-v1", "spectrain-v2", "pipeoptim")
"""Methods whose forwards use predicted weights."""

SPECTRAIN_TABLE = {
    "VGG on CIFAR-10": {"synchronous": 91.10, "naive T=1": 88.31, "PipeDream T=1": 88.91, "SpecTrain v2 T=1": 89.38},
    "Transformer on IMDb": {
        "synchronous": 81.12,
        "naive T=1": 77.26,
        "PipeDream T=1": 78.11,
        "SpecTrain v2 T=1": 78.79,
    },
}
"""Test accuracy, %, on 4 GPUs: SpecTrain's published table, from public notes; its data-parallel run is synchronous."""

PRINTED_PAIRS = (
    ("synchronous", "SpecTrain v2 T=1"),
    ("SpecTrain v2 T=1", "PipeDream T=1"),
    ("PipeDream T=1", "naive T=1"),
    ("SpecTrain v2 T=1", "naive T=1"),
    ("synchronous", "naive T=1"),
)
"""Better and worse method in both of its columns."""


def grid_parts(quick: bool, headline_only: bool, epochs: int) -> dict[str, list[tuple[MethodCase, TrainingSetting]]]:
    """What is trained, by the section of the document that it is for."""
    settings = [replace(one, epochs=epochs) for one in ((HEADLINE,) if quick or headline_only else SETTINGS)]
    headline = replace(HEADLINE, epochs=epochs)
    four_stages = [replace(setting, epochs=epochs, stages=4) for setting in (TrainingSetting("sgd", 0.1), HEADLINE)]
    return {
        "accuracy": [
            (case, setting)
            for setting in settings
            for case in (*CASES, *(MORE_CASES if setting.label == HEADLINE.label else ()))
        ],
        "published": [
            (case, setting)
            for setting in four_stages
            if not headline_only
            for case in CASES
            if case.label in SPECTRAIN_TABLE["VGG on CIFAR-10"]
        ],
        "readings": [] if headline_only else [(case, headline) for case in sensitivity_cases()],
        "inputs_0_to_1": [(case, replace(headline, unit_inputs=True)) for case in CASES if case.label in ORDER],
    }


def train_parts(
    parts: dict[str, list[tuple[MethodCase, TrainingSetting]]],
    seeds: Sequence[int],
    jobs: int | None,
    report: Callable[[int, str], None],
) -> dict[str, list[CaseResult]]:
    """Train all parts as one grid, so that an interrupt leaves every part with the same seeds."""
    whole = [pair for part in parts.values() for pair in part]
    results = iter(train_grid(whole, DATA_SETS["digits"](), seeds, jobs=jobs, report=report))
    return {name: list(itertools.islice(results, len(part))) for name, part in parts.items()}


def judged(trained: dict[str, list[CaseResult]]) -> dict[str, Any]:
    """The sections of the document on accuracy: records, orders, readings, directions, claims."""
    accuracy, shifted = trained["accuracy"], trained["inputs_0_to_1"]
    headline = [one for one in accuracy if one.setting.label == HEADLINE.label]
    eight = [one for one in accuracy if one.setting.label in ("adam 0.001", HEADLINE.label, "sgd 0.1")]
    blocks = seed_blocks(accuracy[0].each("seed"))
    orders = {
        name: {block: order_of(results, ORDER, chosen) for block, chosen in blocks.items()}
        for name, results in (("headline_order", headline), ("inputs_0_to_1", shifted))
    }
    records = compared(accuracy)
    return {
        "accuracy": records,
        "orders": orders,
        "replication": {name: replicated(order) for name, order in orders.items()},
        "prediction_error": prediction_errors(headline),
        "inputs_0_to_1_records": compared(shifted),
        "readings": [result.record() for result in trained["readings"]],
        "spectrain_directions": directions([*trained["published"], *eight], SPECTRAIN_TABLE, PRINTED_PAIRS),
    }


def prediction_errors(results: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """Error ratio of every method that predicts: mean over the seeds, its spread, 95 % interval, and p of the ratio 1."""
    rows = []
    for result in results:
        ratios = result.each("prediction_error_ratio")
        if result.case.method not in PREDICTING or not np.isfinite(ratios).any():
            continue
        test = paired_difference([1.0] * len(ratios), ratios)
        rows.append(
            {
                "label": result.case.label,
                "stale": result.case.stale,
                "ratio": 1.0 + test.mean,
                "low": 1.0 + test.low,
                "high": 1.0 + test.high,
                "least": float(np.nanmin(ratios)),
                "most": float(np.nanmax(ratios)),
                "p": test.p,
                "seeds": test.pairs,
            }
        )
    return rows


def sensitivity_cases() -> list[MethodCase]:
    """XPipe T = 4 with every choice that the paper's text leaves open."""
    return [
        MethodCase("XPipe T=4, halves up, floor (default)", "xpipe", 4),
        MethodCase("XPipe T=4, halves to even", "xpipe", 4, rule_with("xpipe", forward_rounding="half-even")),
        MethodCase("XPipe T=4, forward floored", "xpipe", 4, rule_with("xpipe", forward_rounding="floor")),
        MethodCase("XPipe T=4, backward rounded", "xpipe", 4, rule_with("xpipe", backward_rounding="round")),
        MethodCase("XPipe T=4, literal bias correction", "xpipe", 4, rule_with("xpipe", correction="literal")),
        MethodCase("XPipe T=4, synchronous-equivalent s", "xpipe-exact", 4),
        MethodCase("naive T=4", "naive", 4),
    ]
