"""Board roofs: what binds each layer of a network on an FPGA board, and what twice each of its figures gains.

A forward pass of some samples, layer after layer on the whole board. A layer is bound by its DSP blocks where its multiply-adds,
with the cycles in which the array is filled, take longer than the bytes that it moves (by its look-up tables where these do most
of them); else by the bandwidth of the memory beside the chip where weights are most of these bytes, and by the chip's own memory
where features are, which stay where they fit. Before a cut its output leaves over all transceivers: where that takes longer than
the layer, it is bound by the link.

A board alone has nothing to send, so that twice its link gains nothing. What it gains stands beside: the same network over a line
of two such boards, cut where their slowest part (a board, or the link between them) takes least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import numpy as np

from experiments.terminal.report_tables import ReportTable, figure
from hardware_profiles import PRECISION_BYTES, Divisions, FieldProgrammableGateArray, Precision, brief, cluster_of_one
from simulator import Explained, LayerCosts, Problem, TextTable, Workload

ROOFS = ("DSP", "LUT", "bandwidth", "on-chip memory", "link")
"""What a layer may be bound by."""

DOUBLED: Mapping[str, str] = {
    "DSP blocks": "dsps",
    "clock": "clock",
    "reduction_half, halved": "reduction_half",
    "on-chip memory": "on_chip_bytes",
    "bandwidth": "ddr_bandwidth",
    "link": "transceiver_bandwidth",
}
"""Figures of a board in words -> its fields."""


@dataclass(frozen=True, slots=True)
class RoofedLayer:
    """A layer: seconds of its multiply-adds, of weights and features that move, of its pass, and of sending its output.

    arithmetic: which of ROOFS does most of its multiply-adds
    """

    layer: str
    kind: str
    arithmetic: str
    computing: float
    weights: float
    features: float
    seconds: float
    sending: float

    @property
    def roof(self) -> str:
        """What binds it, one of ROOFS."""
        if self.computing >= self.weights + self.features:
            return self.arithmetic
        return ROOFS[2] if self.weights >= self.features else ROOFS[3]

    @property
    def roof_before_cut(self) -> str:
        """What binds it where its output leaves the board, one of ROOFS."""
        return ROOFS[4] if self.sending > self.seconds else self.roof


@dataclass(frozen=True, slots=True)
class BoardLine:
    """A network over a line of two boards, cut where the slowest part of the line takes least.

    after: the last layer of the first board
    boards, sending: seconds of each board's pass, and of the link between them
    """

    after: str
    boards: tuple[float, float]
    sending: float

    @property
    def seconds(self) -> float:
        """Of the slowest part, after which the next pass follows."""
        return max(*self.boards, self.sending)

    @property
    def slowest(self) -> str:
        """The slowest part in words."""
        if self.sending > max(self.boards):
            return ROOFS[4]
        return "first board" if self.boards[0] >= self.boards[1] else "second board"


@dataclass(frozen=True, slots=True, eq=False)
class BoardRoofs(Explained):
    """What binds the layers of a forward pass, and what twice each figure of the board gains.

    layers: those that take time; seconds: of the pass of `samples` samples
    line: over two such boards, None for a network of one layer
    gains: by figure of the board the share of the seconds that twice of it saves
    line_gains: the same of the line's, empty without one
    """

    board: FieldProgrammableGateArray
    workload: Workload
    precision: Precision
    samples: int
    layers: tuple[RoofedLayer, ...]
    seconds: float
    line: BoardLine | None
    gains: Mapping[str, float]
    line_gains: Mapping[str, float]

    def __repr__(self) -> str:
        return brief(self, self.words)

    @property
    def words(self) -> str:
        """Samples per second, and what gains most, in a line."""
        return self._told(self.seconds, self.gains)

    def _told(self, seconds: float, gains: Mapping[str, float]) -> str:
        best = max(gains, key=lambda name: gains[name])
        rate = f"{self.samples / seconds if seconds else inf:,.4g} {self.workload.sample}s/s"
        return f"{rate}; twice the {best.partition(',')[0]} saves most" if gains[best] > 0 else rate

    def tables(self) -> tuple[TextTable, ...]:
        """Layers by roof and kind, those that take longest, and gains."""
        document = {
            "title": f"{self.workload.name} forward on {self.board.name}, {self.precision}",
            **self.record(),
            "by_roof": self._by_roof(),
            "longest": sorted(self.record()["layers"], key=lambda row: -row["seconds"])[:LONGEST],
            "gained": [
                {"figure": name, "saves": saves, "line_saves": self.line_gains.get(name)}
                for name, saves in self.gains.items()
            ],
        }
        return tuple(table.text(document) for table in (BY_ROOF, LAYERS, GAINS))

    def _by_roof(self) -> list[dict[str, Any]]:
        whole, rows = sum(one.seconds for one in self.layers), dict[tuple[str, str], list[RoofedLayer]]()
        for one in self.layers:
            rows.setdefault((one.roof, one.kind), []).append(one)
        found: list[dict[str, Any]] = [
            {
                "roof": roof,
                "kind": kind,
                "layers": len(own),
                "sent": sum(one.roof_before_cut == ROOFS[4] for one in own),
                "seconds": sum(one.seconds for one in own),
            }
            for (roof, kind), own in rows.items()
        ]
        found.sort(key=lambda row: -row["seconds"])
        return [{**row, "share": row["seconds"] / whole} for row in found]

    def remarks(self) -> tuple[str, ...]:
        """Samples per second of a board and of a line of two, and what gains most."""
        if self.line is None:
            return (self.words,)
        told = self._told(self.line.seconds, self.line_gains)
        return (self.words, f"a line of two, cut after {self.line.after}, waits for its {self.line.slowest}: {told}")

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        return {
            "board": self.board.name,
            "workload": self.workload.name,
            "precision": self.precision,
            "samples": self.samples,
            "seconds": self.seconds,
            "layers": [
                {**asdict(one), "roof": one.roof, "roof_before_cut": one.roof_before_cut} for one in self.layers
            ],
            "gains": dict(self.gains),
            "line": self.line
            and {
                **asdict(self.line),
                "seconds": self.line.seconds,
                "slowest": self.line.slowest,
                "gains": dict(self.line_gains),
            },
        }


LONGEST = 8
"""Layers that are told one by one."""

BY_ROOF = ReportTable(
    "{title}: what layers are bound by",
    "by_roof",
    {
        "bound by": "{roof}",
        "layers": "{kind}",
        "number": "{layers}",
        "ms": figure("seconds", ".4g", 1e3),
        "share, %": figure("share", ".1f", 100),
        "by the link\nbefore a cut": "{sent}",
    },
)

LAYERS = ReportTable(
    "The longest layers in ms, and sending their output",
    "longest",
    {
        "layer": "{layer}",
        "bound by": "{roof}",
        "all": figure("seconds", ".3g", 1e3),
        "DSP": figure("computing", ".3g", 1e3),
        "weights": figure("weights", ".3g", 1e3),
        "features": figure("features", ".3g", 1e3),
        "link": figure("sending", ".3g", 1e3),
    },
)

GAINS = ReportTable(
    "Twice a figure of the board",
    "gained",
    {
        "figure": "{figure}",
        "saves of the seconds, %": figure("saves", ".1f", 100),
        "in a line of two, %": figure("line_saves", ".1f", 100),
    },
)


def board_problem(board: FieldProgrammableGateArray, workload: Workload, samples: int, precision: Precision) -> Problem:
    """The problem of some samples of a network on one board; ValueError for a precision that it has no rate for."""
    return Problem(workload, cluster_of_one(board), samples, precision=precision)


def board_roofs(problem: Problem) -> BoardRoofs:
    """The roofs of a network on the first device of a problem, a board, for a forward pass of its batch.

    Raises ValueError for a network whose layers were measured: nothing tells what binds them.
    """
    board, workload, samples = problem.cluster.devices[0], problem.workload, problem.batch
    assert isinstance(board, FieldProgrammableGateArray)
    costs, precision = LayerCosts(problem), problem.precision
    if not costs.streams(0):
        raise ValueError(f"{workload.name}: its layers were measured, and no FLOP of them are known")
    works, width = costs.works, PRECISION_BYTES[precision]
    arithmetic = ROOFS[2 * board.logic.get(precision, 0.0) > board.macs_per_cycle[precision]]

    def division(of: FieldProgrammableGateArray) -> Divisions:
        return of.divided(works, np.ones((1, len(works)), dtype=np.bool_), precision, copies=1)

    own, found = division(board), list[RoofedLayer]()
    moved = own.layerwise_bytes(samples, "forward")[0] / board.reached_bandwidth
    every, computed = own.layer_seconds(samples, "forward")[0], own.computing_seconds(samples, "forward")
    for layer, work, *times in zip(
        workload.layers, works, every.tolist(), moved.tolist(), computed.tolist(), strict=True
    ):
        seconds, bytes_seconds, computing = times
        if seconds > 0.0:
            weights = 0.0 if own.on_chip[0] else min(work.parameters * width / board.reached_bandwidth, bytes_seconds)
            sending = work.output_elements * samples * width / board.transceiver_bandwidth
            features = bytes_seconds - weights
            found.append(
                RoofedLayer(layer.name, layer.kind, arithmetic, computing, weights, features, seconds, sending)
            )
    whole = float(own.seconds(samples, "forward")[0])
    doubled = dict(_doubled(board, precision))
    gains = {
        name: 1.0 - float(division(other).seconds(samples, "forward")[0]) / whole if whole else 0.0
        for name, other in doubled.items()
    }
    line = line_of_two(board, problem) if len(works) > 1 else None
    line_gains = {
        name: 1.0 - line_of_two(other, problem).seconds / line.seconds if line.seconds else 0.0
        for name, other in doubled.items()
        if line is not None
    }
    return BoardRoofs(board, workload, precision, samples, tuple(found), whole, line, gains, line_gains)


def line_of_two(board: FieldProgrammableGateArray, problem: Problem) -> BoardLine:
    """The forward pass of a problem's batch over two boards and the link of all transceivers between them, best cut.

    A network of two layers at least.
    """
    costs, samples = LayerCosts(problem), problem.batch
    number = len(costs.works)
    first = np.tri(number - 1, number, dtype=np.bool_)  # row i: layers 0 to i
    held = np.concatenate([first, ~first])
    passes = board.divided(costs.works, held, problem.precision, copies=1).seconds(samples, "forward")
    before, behind = passes.reshape(2, number - 1)
    sending = costs.cut_bytes[1:-1] * samples / board.transceiver_bandwidth
    best = int(np.argmin(np.maximum(np.maximum(before, behind), sending)))
    boards = (float(before[best]), float(behind[best]))
    return BoardLine(problem.workload.layers[best].name, boards, float(sending[best]))


def _doubled(
    board: FieldProgrammableGateArray, precision: Precision
) -> Iterator[tuple[str, FieldProgrammableGateArray]]:
    """The board with twice each of its figures; DSP blocks and look-up tables multiply side by side."""
    rate, logic = board.macs_per_cycle[precision], board.logic.get(precision, 0.0)
    for name, figure_of in DOUBLED.items():
        times = 0.5 if figure_of == "reduction_half" else 2
        other = replace(board, **{figure_of: times * getattr(board, figure_of)})
        if figure_of == "dsps":  # twice as many have half as much of the tables beside each
            other = replace(other, macs_per_cycle={precision: rate - logic / 2})
        yield name, other
    if logic:
        yield "look-up tables", replace(board, macs_per_cycle={precision: rate + logic})
