"""Board roofs: what binds each layer of a network on an FPGA board, and what twice each of its figures gains.

A forward pass of some samples, layer after layer on the whole board. A layer is bound by its DSP blocks where its multiply-adds,
with the cycles in which the array is filled, take longer than the bytes that it moves (by its look-up tables where these do most
of them); else by the bandwidth of the memory beside
the chip where weights are most of these bytes, and by the chip's own memory where features are, which stay where they fit.
Behind a layer stands the time in which its output leaves over all transceivers: where that is longer, a cut is bound by the link.
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

ROOFS = ("DSP", "LUT", "bandwidth", "on-chip memory")
"""What a layer may be bound by."""

DOUBLED: Mapping[str, str] = {
    "DSP blocks": "dsps",
    "clock": "clock",
    "reduction_half, halved": "reduction_half",
    "on-chip memory": "on_chip_bytes",
    "bandwidth": "ddr_bandwidth",
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


@dataclass(frozen=True, slots=True, eq=False)
class BoardRoofs(Explained):
    """What binds the layers of a forward pass, and what twice each figure of the board gains.

    layers: those that take time; seconds: of the pass of `samples` samples
    gains: by figure of the board the share of the seconds that twice of it saves
    """

    board: FieldProgrammableGateArray
    workload: Workload
    precision: Precision
    samples: int
    layers: tuple[RoofedLayer, ...]
    seconds: float
    gains: Mapping[str, float]

    def __repr__(self) -> str:
        return brief(self, self.words)

    @property
    def words(self) -> str:
        """Samples per second, and what gains most, in a line."""
        best = max(self.gains, key=lambda name: self.gains[name])
        rate = f"{self.samples / self.seconds if self.seconds else inf:,.4g} {self.workload.sample}s/s"
        return f"{rate}; twice the {best.partition(',')[0]} saves most" if self.gains[best] > 0 else rate

    def tables(self) -> tuple[TextTable, ...]:
        """Layers by roof and kind, those that take longest, and gains."""
        document = {
            "title": f"{self.workload.name} forward on {self.board.name}, {self.precision}",
            **self.record(),
            "by_roof": self._by_roof(),
            "longest": sorted(self.record()["layers"], key=lambda row: -row["seconds"])[:LONGEST],
            "gained": [{"figure": name, "saves": saves} for name, saves in self.gains.items()],
        }
        return tuple(table.text(document) for table in (BY_ROOF, LAYERS, GAINS))

    def _by_roof(self) -> list[dict[str, Any]]:
        whole, rows = sum(one.seconds for one in self.layers), dict[tuple[str, str], list[RoofedLayer]]()
        for one in self.layers:
            rows.setdefault((one.roof, one.kind), []).append(one)
        found: list[dict[str, Any]] = [
            {"roof": roof, "kind": kind, "layers": len(own), "seconds": sum(one.seconds for one in own)}
            for (roof, kind), own in rows.items()
        ]
        found.sort(key=lambda row: -row["seconds"])
        return [{**row, "share": row["seconds"] / whole} for row in found]

    def remarks(self) -> tuple[str, ...]:
        """Samples per second, and what gains most."""
        return (self.words,)

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        return {
            "board": self.board.name,
            "workload": self.workload.name,
            "precision": self.precision,
            "samples": self.samples,
            "seconds": self.seconds,
            "layers": [{**asdict(one), "roof": one.roof} for one in self.layers],
            "gains": dict(self.gains),
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
    },
)

LAYERS = ReportTable(
    "The longest layers, and sending their output",
    "longest",
    {
        "layer": "{layer}",
        "bound by": "{roof}",
        "ms": figure("seconds", ".4g", 1e3),
        "DSP,\nms": figure("computing", ".4g", 1e3),
        "weights,\nms": figure("weights", ".4g", 1e3),
        "features,\nms": figure("features", ".4g", 1e3),
        "link,\nms": figure("sending", ".4g", 1e3),
    },
)

GAINS = ReportTable(
    "Twice a figure of the board",
    "gained",
    {"figure": "{figure}", "saves of the seconds, %": figure("saves", ".1f", 100)},
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
    gains = {
        name: 1.0 - float(division(other).seconds(samples, "forward")[0]) / whole if whole else 0.0
        for name, other in _doubled(board, precision)
    }
    return BoardRoofs(board, workload, precision, samples, tuple(found), whole, gains)


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
