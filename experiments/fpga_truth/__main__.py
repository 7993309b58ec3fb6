"""FPGA truth: how far are predicted images per second and joules of boards from published measurements?

Reads every table of a folder with the columns of `BoardInference` (Vitis-AI's tables of int8 inference are such). As many
images as the board's array takes at a time (`batch`) pass its layers, which it runs in turn where its file says so; each takes
the longer of its multiply-adds and of the bytes that it moves, with weights in DDR where those of the network do not fit on the
chip (`hardware_profiles.fpga`). Errors are of seconds.

Beside the error with the board's own constants stands that of a board left out: the share of DSP cycles, `reduction_half` and
the share of the memory's bandwidth fitted to the rows of all other boards, on a grid, by the mean square of logarithms.

Energy is the model's (`simulator.plan_energy`) at the measured images per second, and, apart, at the predicted ones.
A figure of training in fp32 is a check: EF-Train (46.99 GFLOP/s on a ZCU102; 256 multiply-adds per cycle in its source, 100 MHz
recalled), whose abstract names no network: VGG-16 here. That is 92 % of its array's peak, where Vitis-AI's arrays reach 80 % in
endless sums: with their constants, and as an array of channels (its abstract), which is not filled anew for each output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from experiments.report.board_roofs import board_problem
from experiments.studies.input_sets import lacking
from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.output import InputError, tracked
from experiments.terminal.report_tables import ReportTable, figure
from experiments.truth.measured_tables import BoardInference, read_tables
from hardware_profiles import (
    Divisions,
    FieldProgrammableGateArray,
    Floats,
    Precision,
    Work,
    load_accelerator,
    passes,
)
from simulator import LayerCosts, workload_from_spec

EFFICIENCIES = np.round(np.arange(0.55, 1.0, 0.05), 2)
REDUCTION_HALVES = (16.0, 32.0, 64.0, 96.0, 128.0, 192.0)
MEMORY_EFFICIENCIES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Grid of the constants that are fitted where a board is left out."""

EF_TRAIN_FLOPS = 46.99e9
"""FLOP/s of training on a ZCU102 in fp32: EF-Train's abstract."""

ARRAYS: Mapping[str, Mapping[str, float]] = {
    "Vitis-AI's array": {},
    "array of channels": {"efficiency": 1.0, "reduction_half": 0.0},
}
"""Constants of an array for the check of training, by its words."""


def run(options: argparse.Namespace) -> Findings:
    """Predict every row of every table of boards in the folder."""
    if options.tables is None:
        raise lacking("--tables", "measured-tables")
    tables, skipped = read_tables(options.tables, {}, kinds=(BoardInference,))
    predictions, left_out = list[BoardPrediction](), dict[str, str]()
    found = [(f"{table.path.name}: line {number}", row) for table in tables for number, row in table.rows.items()]
    for where, row in tracked("predicting", found, lambda one: one[0]):
        assert isinstance(row, BoardInference)
        try:
            predictions.append(prediction(where, row))
        except ValueError as error:
            left_out[where] = str(error)
    if not predictions:
        raise InputError(
            f"{options.tables}: holds no row of a known board: {next(iter(left_out.values()), 'no such table')}"
        )
    for one, told in zip(predictions, left_out_seconds(predictions), strict=True):
        one.record["left_out_error"] = None if told is None else told / one.measured_seconds - 1.0
    rows = [one.record for one in predictions]
    document = {
        "rows": rows,
        "summary": [summary("error", rows), summary("left_out_error", rows), summary("joules_error", rows)],
        "checks": [training_check(told, **constants) for told, constants in ARRAYS.items()],
        "left_out": left_out,
        "skipped": sorted(skipped),
    }
    return Findings(document, print_document, drawn)


class BoardPrediction(NamedTuple):
    """A row as the model has it: the board, the layers, seconds of an image as measured, and what is told of it."""

    board: FieldProgrammableGateArray
    works: Sequence[Work]
    precision: Precision
    measured_seconds: float
    record: dict[str, Any]


def prediction(where: str, row: BoardInference) -> BoardPrediction:
    """A row's prediction, beside what was measured; ValueError for a board or a network that is not known."""
    board = board_of(row)
    works = layer_works(board, row.network, row.precision)
    division = divided(board, works, row.precision)
    seconds = float(division.seconds(board.batch, "forward")[0]) / board.batch
    measured_seconds = 1.0 / row.measured_images_per_second
    measured = row.measured_joules
    if measured is None and row.measured_watts is not None:
        measured = row.measured_watts * measured_seconds
    joules = joules_per_image(board, works, row.precision, measured_seconds)
    record = {
        "where": where,
        "board": row.board,
        "network": row.network,
        "precision": row.precision,
        "measured_images_per_second": row.measured_images_per_second,
        "images_per_second": 1.0 / seconds,
        "seconds": seconds,
        "error": seconds / measured_seconds - 1.0,
        "measured_joules": measured,
        "joules": joules,
        "joules_at_predicted_rate": joules_per_image(board, works, row.precision, seconds),
        "joules_error": None if measured is None or joules is None else joules / measured - 1.0,
    }
    return BoardPrediction(board, works, row.precision, measured_seconds, record)


def divided(
    board: FieldProgrammableGateArray, works: Sequence[Work], precision: Precision, copies: int = 1
) -> Divisions:
    """The board with all layers; copies: of weights on the chip, 2 in training."""
    return board.divided(works, np.ones((1, len(works)), dtype=np.bool_), precision, copies=copies)


def board_of(row: BoardInference) -> FieldProgrammableGateArray:
    """The board of a row, with the array that the row tells; ValueError for one that is not known, or no board."""
    board = load_accelerator(row.board)
    if not isinstance(board, FieldProgrammableGateArray):
        raise ValueError(f"{row.board} is no FPGA board")
    if row.dsps is not None:
        board = replace(board, dsps=row.dsps)
    if row.clock_mhz is not None:
        board = replace(board, clock=row.clock_mhz * 1e6)
    if row.macs_a_dsp_and_cycle is not None:
        board = replace(board, macs_per_cycle={**board.macs_per_cycle, row.precision: row.macs_a_dsp_and_cycle})
    return board


def layer_works(board: FieldProgrammableGateArray, network: str, precision: Precision) -> tuple[Work, ...]:
    """The work of every layer of a network; ValueError for one that is not known, and a precision without a rate."""
    return LayerCosts(board_problem(board, workload_from_spec(network), 1, precision)).works


def joules_per_image(
    board: FieldProgrammableGateArray, works: Sequence[Work], precision: Precision, seconds: float
) -> float | None:
    """Energy of an image that takes so many seconds; None where the board's power is not known."""
    working = board.working_seconds(sum(work.flop for work in works), precision)
    return None if board.power is None else sum(board.power.joules(seconds, working).values())


def left_out_seconds(predictions: Sequence[BoardPrediction]) -> list[float | None]:
    """Seconds of each row by constants fitted to the rows of all other boards; None where there is no other board."""
    grid = np.array(list(product(EFFICIENCIES, REDUCTION_HALVES, MEMORY_EFFICIENCIES)))
    seconds = np.array([_by_constants(one, grid) for one in predictions])
    errors = np.log(seconds / np.array([[one.measured_seconds] for one in predictions])) ** 2
    boards = np.array([one.record["board"] for one in predictions])
    found: list[float | None] = []
    for number, board in enumerate(boards):
        others = boards != board
        best = errors[others].mean(axis=0).argmin() if others.any() else None
        found.append(None if best is None else float(seconds[number, best]))
    return found


def _by_constants(row: BoardPrediction, grid: Floats) -> Floats:
    """Seconds of an image by each of some constants: rows of EFFICIENCIES, REDUCTION_HALVES and MEMORY_EFFICIENCIES."""
    board, works, precision = row.board, row.works, row.precision
    efficiency, half, reached = grid.T[:, :, None]
    flop = np.array([0.0 if board.runs_depthwise(work) else work.flop for work in works])
    filled = np.array([work.output_elements if alone else 0.0 for work, alone in zip(works, flop, strict=True)])
    beside = np.array(
        [0.0 if alone else board.slots(work) / board.efficiency for work, alone in zip(works, flop, strict=True)]
    )
    moved = divided(board, works, precision).layerwise_bytes(board.batch, "forward")[0] / board.batch
    computing = ((flop + 2.0 * half * filled) / efficiency + beside) / board.peak_flops[precision]
    seconds: Floats = np.maximum(computing, moved / (board.offered_bandwidth * reached)).sum(axis=1)
    return seconds


def training_check(array: str, **constants: Any) -> dict[str, Any]:
    """FLOP/s of training VGG-16 in fp32 on a ZCU102 with 256 multiply-adds per cycle at 100 MHz, beside EF-Train's.

    array: which constants of an array these are, in words
    """
    board = load_accelerator("zcu102")
    assert isinstance(board, FieldProgrammableGateArray)
    board = replace(
        board, dsps=256, clock=100e6, macs_per_cycle={"fp32": 1.0}, depthwise=0.0, port_bytes=0.0, **constants
    )
    works = layer_works(board, "vgg16", "fp32")
    division = divided(board, works, "fp32", copies=2)
    seconds = sum(float(division.layerwise_seconds(1.0, phase)[0]) for phase in ("forward", *passes("backward")))
    rate = 3.0 * sum(work.flop for work in works) / seconds
    return {
        "check": f"EF-Train, ZCU102, fp32, {array}",
        "published_flops": EF_TRAIN_FLOPS,
        "flops": rate,
        "error": rate / EF_TRAIN_FLOPS - 1.0,
    }


def summary(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median, largest and mean of an error of the rows that have it."""
    found = [row[name] for row in rows if row[name] is not None]
    sizes = [abs(one) for one in found]
    return {
        "error": WORDS[name],
        "rows": len(found),
        "median": median(sizes) if sizes else None,
        "largest": max(sizes, default=None),
        "signed": float(np.mean(found)) if found else None,
    }


WORDS = {
    "error": "seconds of an image",
    "left_out_error": "seconds, its board left out of the fit",
    "joules_error": "joules of an image at the measured rate",
}
"""What an error is of."""

PERCENT = 100.0

ROWS = ReportTable(
    "Images per second of forward passes",
    "rows",
    {
        "board": "{board}",
        "network": "{network}",
        "measured": figure("measured_images_per_second", ",.4g"),
        "predicted": figure("images_per_second", ",.4g"),
        "error of\nseconds, %": figure("error", "+.0f", PERCENT),
        "board left\nout, %": figure("left_out_error", "+.0f", PERCENT),
        "J\nmeasured": figure("measured_joules", ".3g"),
        "J\npredicted": figure("joules", ".3g"),
    },
)

SUMMARY = ReportTable(
    "Errors",
    "summary",
    {
        "of": "{error}",
        "rows": "{rows}",
        "median, %": figure("median", ".0f", PERCENT),
        "largest, %": figure("largest", ".0f", PERCENT),
        "mean, %": figure("signed", "+.0f", PERCENT),
    },
)

CHECKS = ReportTable(
    "Training",
    "checks",
    {
        "check": "{check}",
        "GFLOP/s published": figure("published_flops", ".4g", 1e-9),
        "predicted": figure("flops", ".4g", 1e-9),
        "error, %": figure("error", "+.0f", PERCENT),
    },
)


def print_document(document: Mapping[str, Any]) -> None:
    """Print the tables, and what was left out."""
    for table in (ROWS, SUMMARY, CHECKS):
        table.print(document)
    for where, why in document["left_out"].items():
        print(f"left out: {where}: {why}")


def drawn(document: Mapping[str, Any]) -> Made:
    """The figure: predicted against measured images per second."""
    from experiments.fpga_truth.board_plots import draw

    yield "fpga_truth", draw(document["rows"])


if __name__ == "__main__":
    sys.exit(run_study("fpga-truth"))
