"""Division of an FPGA board over the layers of a stage: DSPs, on-chip memory, and what is left for DDR.

Derivation. A stage streams: each layer l has DSPs of its own, all layers work at the same time on consecutive rows of one sample
(batch 1), and the slowest sets the pace. With w_l multiply-adds a sample and n_l DSPs of r multiply-adds a second each, a sample
takes max over l of w_l / (n_l r), where the n_l sum to D. Were one layer faster than another, DSPs moved from it to the slowest
would help, so in the best division all finish together: n_l / D = w_l / sum of w, and a sample takes sum of w / (D r), as on the
whole board one layer after the other. Gradients repeat the forward's multiply-adds layer by layer, so that one division is
the best for every phase. DSPs are whole: `divide_dsps` finds the least T with sum of ceil(w_l / (T r)) <= D, which is exact.

Memory. Weights and their gradient sums stay on the chip where they fit, the layers that would move most bytes over DDR for the
room that they take first (all alike a byte, so: the larger ones first, as many as fit); the others stream their weights for every
sample, as nothing of a sample waits for the next. Between the layers of a stage features flow on the chip. What a stage keeps
for its backward stays on the chip if one op's fits in what the weights leave, else it goes to DDR and back.

Two ways to run an op, the faster counts: streaming as above, or one layer after the other with the whole board and all samples of
the op, which reads weights once an op, and moves features that do not fit. The fill of a stage's layers (some rows) is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hardware_profiles.accelerator import PRECISION_BYTES, ZERO_COST_KINDS, Phase, Precision, Work, passes
from hardware_profiles.gpu import demand

if TYPE_CHECKING:
    from hardware_profiles.fpga import FieldProgrammableGateArray

TRAINING_COPIES = 2
"""Weights and the sums of their gradients, as in BaPipe's table (2w)."""


CLOSE_ENOUGH = 1e-12
"""Relative width of the interval at which the search for the least time stops."""


@dataclass(frozen=True, slots=True)
class Division:
    """How a board is divided over the layers `works` of a stage.

    dsps: whole DSPs of each layer; 0 for layers without multiply-adds, which logic does
    weights_on_chip: whether weights and gradient sums of each layer stay on the chip
    free_bytes: of the chip, for features
    """

    board: FieldProgrammableGateArray
    works: Sequence[Work]
    precision: Precision
    dsps: tuple[int, ...]
    weights_on_chip: tuple[bool, ...]
    free_bytes: float

    def seconds(self, samples: float, phase: Phase) -> float:
        """Seconds of one pass over `samples` samples: streaming, or layer after layer, whichever is faster."""
        return sum(
            min(samples * self.sample_seconds(samples, part), self.layerwise_seconds(samples, part))
            for part in passes(phase)
        )

    def sample_seconds(self, samples: float, phase: Phase) -> float:
        """Seconds between two samples of a streaming stage: the slowest layer on its DSPs, or DDR.

        samples: of the op, whose features are kept together; phase: one of `passes`
        """
        board, width = self.board, PRECISION_BYTES[self.precision]
        one_dsp = board.macs_per_cycle[self.precision] * board.clock * board.efficiency  # multiply-adds a second
        slowest = 0.0
        for work, dsps in zip(self.works, self.dsps, strict=True):
            flop = demand(work, 1.0, phase, width).flop
            if flop > 0.0:
                slowest = max(slowest, flop / 2.0 / (dsps * one_dsp))
        kept = sum(one.input_elements for one in self.works if one.kind not in ZERO_COST_KINDS) * width
        if phase == "input_gradient" or kept * samples <= self.free_bytes:
            kept = 0.0  # what is kept crosses DDR as the forward writes it and as the weight gradient reads it
        weights = sum(
            weight_traffic(work, phase) * width
            for work, stays in zip(self.works, self.weights_on_chip, strict=True)
            if not stays
        )
        return max(slowest, (weights + kept) / (board.ddr_bandwidth * board.share))

    def layerwise_seconds(self, samples: float, phase: Phase) -> float:
        """Seconds of one of `passes`, layer after layer on the whole board; weights in DDR move once an op."""
        board, width = self.board, PRECISION_BYTES[self.precision]
        total = 0.0
        for work, stays in zip(self.works, self.weights_on_chip, strict=True):
            needs = demand(work, samples, phase, width)
            if needs.flop == 0.0 and needs.traffic == 0.0:
                continue
            weights = 0.0 if stays else weight_traffic(work, phase) * width
            features = (work.input_elements + work.output_elements) * samples * width
            moved = weights + (0.0 if features <= self.free_bytes else features)
            total += max(needs.flop / board.flop_rate(self.precision), moved / (board.ddr_bandwidth * board.share))
        return total


def divide(board: FieldProgrammableGateArray, works: Sequence[Work], precision: Precision) -> Division:
    """The division of `board` over the layers `works` of one stage; ValueError if layers outnumber its DSPs."""
    work = [0.0 if one.kind in ZERO_COST_KINDS else one.flop / 2.0 for one in works]
    room = board.on_chip_bytes * board.share
    width = PRECISION_BYTES[precision]
    stays = [True] * len(works)
    for position in sorted(range(len(works)), key=lambda p: (-works[p].parameters, p)):
        size = TRAINING_COPIES * works[position].parameters * width
        stays[position] = size <= room
        room -= size if stays[position] else 0.0
    dsps = divide_dsps(tuple(work), math.floor(board.dsps * board.share))
    return Division(board, works, precision, dsps, tuple(stays), room)


@lru_cache(maxsize=2**16)
def divide_dsps(work: tuple[float, ...], dsps: int) -> tuple[int, ...]:
    """Whole DSPs of each layer so that the slowest, max of work / DSPs, is as fast as can be; layers without work get none.

    work: of each layer, at least 0. Answers are kept, as a stage is divided alike for every phase and number of samples.
    Raises ValueError if layers with work outnumber the DSPs.
    """
    busy = [one for one in work if one > 0.0]
    if not busy:
        return (0,) * len(work)
    if len(busy) > dsps:
        raise ValueError(f"{len(busy)} layers with multiply-adds need as many DSPs, got {dsps}")
    total = math.fsum(busy)
    low, high = total / dsps, max(busy)  # seconds at one multiply-add a second and DSP
    while high - low > CLOSE_ENOUGH * high:
        middle = (low + high) / 2.0
        if sum(math.ceil(one / middle) for one in busy) <= dsps:
            high = middle
        else:
            low = middle
    return tuple(max(1, math.ceil(one / high)) if one > 0.0 else 0 for one in work)


def weight_traffic(work: Work, phase: Phase) -> float:
    """Elements that a layer whose weights lie in DDR moves for them in one pass: read, or gradient sums read and written."""
    if work.kind in ZERO_COST_KINDS or (work.kind == "embedding" and phase == "input_gradient"):
        return 0.0
    if work.kind == "embedding" and phase == "forward":
        return min(work.parameters, work.output_elements)  # a gather moves the rows that it uses
    return work.parameters * (2.0 if phase == "weight_gradient" else 1.0)
