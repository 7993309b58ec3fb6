"""Division of an FPGA board over the layers of a stage: DSPs, on-chip memory, and what is left for DDR.

Derivation. A stage streams: each layer l has DSPs of its own, all layers work at the same time on consecutive rows of one sample
(batch 1), and the slowest sets the pace. With w_l multiply-adds per sample (and those that it could do while its array is filled
for each output) and n_l DSPs of r multiply-adds per second each, a sample takes max over l of w_l / (n_l r), where the n_l sum to
D. Were one layer faster than another, DSPs moved from it to the slowest would help, so in the best division all finish together:
n_l / D = w_l / sum of w, and a sample takes sum of w / (D r), as on the whole board one layer after the other. Gradients repeat
the forward's multiply-adds layer by layer, so that one division is the best for every phase. DSPs are whole: `divide_dsps` finds
the least T with sum of ceil(w_l / (T r)) <= D, which is exact.

Memory. Weights and their gradient sums stay on the chip where those of the whole stage fit, unless they leave so little that,
layer after layer, more bytes of features would move for a sample than weights; else all layers stream theirs for every sample, as
nothing of a sample waits for the next. Between the layers of a stage features flow on the chip. What a stage
keeps for its backward stays on the chip if one op's fits in what the weights leave, else it goes to DDR and back.

Two ways to run an op, the faster counts: streaming as above, unless the board has one array for all layers (`shared_array`), or
one layer after the other with the whole board and all samples of the op, which reads weights once per op, and moves features that
do not fit. The fill of a stage's layers (some rows) is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hardware_profiles.accelerator import PRECISION_BYTES, ZERO_COST_KINDS, Phase, Precision, Work, passes
from hardware_profiles.array_types import Flags, Floats, Integers
from hardware_profiles.gpu import demand

if TYPE_CHECKING:
    from hardware_profiles.fpga import FieldProgrammableGateArray


CLOSE_ENOUGH = 1e-12
"""Relative width of the interval at which the search for the least time stops."""


TRAINING_COPIES = 2
"""Weights and the sums of their gradients, as in BaPipe's table (2w)."""


@dataclass(frozen=True, eq=False)
class Divisions:
    """How a board is divided over the layers of each of several stages of a network that it might hold; one row per stage.

    works: the layers of the network; held: bool [stages, layers], which of them each stage has
    dsps: int64 [stages, layers], whole DSPs of each layer; 0 for layers without multiply-adds, which logic does, and for all
        where one array runs them in turn
    on_chip: bool [stages], whether the weights and gradient sums of a stage stay on the chip
    free_bytes: float64 [stages], of the chip, for features
    What its layers need is kept by samples and phase.
    """

    board: FieldProgrammableGateArray
    works: Sequence[Work]
    precision: Precision
    held: Flags
    dsps: Integers
    on_chip: Flags
    free_bytes: Floats
    _known: dict[tuple[float, Phase], tuple[Floats, Flags]] = field(default_factory=dict, init=False)
    _weights: dict[Phase, Floats] = field(default_factory=dict, init=False)

    def seconds(self, samples: float, phase: Phase) -> Floats:
        """Seconds of one pass of each stage over `samples` samples: streaming, or layer after layer, whichever is faster."""
        found = np.zeros(len(self.held))
        for part in passes(phase):
            seconds = self.layerwise_seconds(samples, part)
            if not self.board.shared_array:
                seconds = np.minimum(samples * self.sample_seconds(samples, part), seconds)
            found = found + seconds
        return found

    def moved_bytes(self, samples: float, phase: Phase) -> Floats:
        """Bytes over DDR of one pass of each stage over `samples` samples, in the way that `seconds` takes."""
        found = np.zeros(len(self.held))
        for part in passes(phase):
            layerwise = self._sums(self.layerwise_bytes(samples, part))
            streams = samples * self.sample_seconds(samples, part) < self.layerwise_seconds(samples, part)
            streams &= not self.board.shared_array
            found = found + np.where(streams, samples * self.sample_bytes(samples, part), layerwise)
        return found

    def sample_seconds(self, samples: float, phase: Phase) -> Floats:
        """Seconds between two samples of each stage while it streams: the slowest layer on its DSPs, or DDR.

        samples: of the op, whose features are kept together; phase: one of `passes`
        """
        board, (slots, _) = self.board, self._needs(1.0, phase)
        one_dsp = board.macs_per_cycle[self.precision] * board.clock * board.efficiency  # multiply-adds per second
        paces = np.divide(slots / 2.0, self.dsps * one_dsp, out=np.zeros(self.held.shape), where=self.dsps > 0)
        moved = self.sample_bytes(samples, phase)
        slowest: Floats = np.maximum(paces.max(axis=1, initial=0.0), moved / board.reached_bandwidth)
        return slowest

    def sample_bytes(self, samples: float, phase: Phase) -> Floats:
        """Bytes over DDR of a sample of each stage while it streams; arguments as of `sample_seconds`."""
        width = PRECISION_BYTES[self.precision]
        kept = self._kept * width
        # what is kept crosses DDR as the forward writes it and as the weight gradient reads it
        stays = (kept * samples <= self.free_bytes) | (phase == "input_gradient")
        weights = self._sums(self._weight_bytes(phase))
        moved: Floats = np.where(self.on_chip, 0.0, weights) + np.where(stays, 0.0, kept)
        return moved

    def layerwise_seconds(self, samples: float, phase: Phase) -> Floats:
        """Seconds of one of `passes` of each stage, layer after layer on the whole board."""
        return self._sums(self.layer_seconds(samples, phase))

    def layer_seconds(self, samples: float, phase: Phase) -> Floats:
        """Seconds of each layer in one of `passes` on the whole board, float64 [stages, layers]; weights in DDR move once."""
        seconds = np.maximum(
            self.computing_seconds(samples, phase), self.layerwise_bytes(samples, phase) / self.board.reached_bandwidth
        )
        return np.where(self._needs(samples, phase)[1], seconds, 0.0)

    def computing_seconds(self, samples: float, phase: Phase) -> Floats:
        """Seconds of the multiply-adds of each layer in one of `passes` on the whole board, float64 [layers]."""
        board = self.board
        computed = math.ceil(samples / board.batch) * board.batch if board.batch > 1 else samples
        slots, _ = self._needs(computed, phase)
        return slots / board.flop_rate(self.precision)

    def layerwise_bytes(self, samples: float, phase: Phase) -> Floats:
        """Bytes over DDR of each layer in one of `passes`, layer after layer, float64 [stages, layers]: weights, and features
        that do not fit in what the weights leave.
        """
        weights = np.where(self.on_chip[:, None], 0.0, self._weight_bytes(phase))
        features = self._features * samples * PRECISION_BYTES[self.precision]
        return weights + np.where(features <= self.free_bytes[:, None], 0.0, features)

    def _needs(self, samples: float, phase: Phase) -> tuple[Floats, Flags]:
        """FLOP that each layer could do on its DSPs in one of `passes`, and whether it does or moves anything, each [layers]."""
        key = samples, phase
        if key not in self._known:
            needs = [demand(work, samples, phase, PRECISION_BYTES[self.precision]) for work in self.works]
            there = np.array([one.flop != 0.0 or one.traffic != 0.0 for one in needs], dtype=np.bool_)
            slots = [self.board.pass_slots(work, samples, phase, self.precision) for work in self.works]
            self._known[key] = np.array(slots), there
        return self._known[key]

    @cached_property
    def _features(self) -> Floats:
        """`feature_traffic` of each layer, float64 [layers]."""
        return np.array([feature_traffic(work) for work in self.works])

    @cached_property
    def _kept(self) -> Floats:
        """Elements per sample that each stage keeps for its backward, float64 [stages]."""
        return self._sums([0.0 if one.kind in ZERO_COST_KINDS else one.input_elements for one in self.works])

    def _weight_bytes(self, phase: Phase) -> Floats:
        """Bytes of weights in DDR that each layer moves, float64 [layers]."""
        if phase not in self._weights:
            width = PRECISION_BYTES[self.precision]
            moved = [weight_traffic(work, phase) * width for work in self.works]
            self._weights[phase] = np.array(moved, dtype=np.float64)
        return self._weights[phase]

    def _sums(self, of_layers: ArrayLike) -> Floats:
        """Sums over the layers of each stage, first layer first."""
        held = np.where(self.held, of_layers, 0.0)
        return held.cumsum(axis=1)[:, -1] if held.shape[1] else np.zeros(len(held))


def divide(
    board: FieldProgrammableGateArray,
    works: Sequence[Work],
    precision: Precision,
    held: Flags | None = None,
    *,
    copies: int | None = None,
) -> Divisions:
    """The division of `board` over the layers of each stage; ValueError if layers outnumber its DSPs.

    held: bool [stages, layers of `works`]; default: one stage of all; copies: as of `divided`
    """
    held = np.ones((1, len(works)), dtype=np.bool_) if held is None else held
    work = np.array([0.0 if one.kind in ZERO_COST_KINDS else board.slots(one) / 2.0 for one in works])
    room, width = board.on_chip_bytes * board.share, PRECISION_BYTES[precision]
    sizes = np.array([one.parameters * width for one in works], dtype=np.float64)
    features = np.array([feature_traffic(one) * width for one in works], dtype=np.float64)

    def sums(of_layers: Floats) -> Floats:
        found: Floats = np.where(held, of_layers, 0.0).cumsum(axis=1)[:, -1] if works else np.zeros(len(held))
        return found

    weights = (TRAINING_COPIES if copies is None else copies) * sums(sizes)
    beside = sums(np.where(features > (room - weights)[:, None], features, 0.0))
    on_chip = (weights <= room) & (beside <= sums(sizes + np.where(features > room, features, 0.0)))
    whole = math.floor(board.dsps * board.share)
    dsps = np.zeros(held.shape, dtype=np.int64)
    for stage, layers in enumerate(() if board.shared_array else held):
        dsps[stage, layers] = divide_dsps(tuple(work[layers].tolist()), whole)
    return Divisions(board, works, precision, held, dsps, on_chip, room - np.where(on_chip, weights, 0.0))


@lru_cache(maxsize=2**10)
def of_stage(board: FieldProgrammableGateArray, works: tuple[Work, ...], precision: Precision) -> Divisions:
    """`divide` over the layers of one stage; kept for its other passes."""
    return divide(board, works, precision)


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
        if not low < middle < high:
            break  # of numbers too small for CLOSE_ENOUGH
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


def feature_traffic(work: Work) -> float:
    """Elements per sample that a layer moves for features where these do not stay on the chip.

    A layer in place moves what it reads beside the tensor that it changes. An activation that keeps its input (SiLU, GELU) is a
    function of it, written, and the product of both, read again.
    """
    if work.kind in ZERO_COST_KINDS or work.kind == "dropout":
        return 0.0
    if work.in_place:
        return max(0.0, work.input_elements - work.output_elements)
    products = 3.0 * work.output_elements if work.kind == "activation" else 0.0
    return work.input_elements + work.output_elements + products
