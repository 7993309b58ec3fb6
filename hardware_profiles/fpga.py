"""FPGA: digital signal processing blocks at a clock, memory on the chip, and DDR beside it.

    forward = max( MACs / (DSPs * MACs per DSP and cycle * clock * efficiency), bytes moved / DDR bandwidth )

The second term counts what does not stay on the chip. It is the layer model of BaPipe (arXiv 2012.12544) as
reconstructed in the reference notes: a backward pass is twice the MACs of the forward, the error and the
weight gradient one each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from hardware_profiles.accelerator import (
    PRECISION_BYTES,
    Phase,
    Positive,
    Precision,
    ShareOfPeak,
    Work,
    check_figures,
    check_request,
    checked_rates,
    passes,
)
from hardware_profiles.gpu import demand
from hardware_profiles.option_declarations import Bounds
from hardware_profiles.words import brief

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hardware_profiles.fpga_division import Divisions


@dataclass(frozen=True, slots=True)
class FieldProgrammableGateArray:
    """An FPGA board; satisfies `Accelerator`.

    dsps: DSP blocks; clock: Hz; macs_per_cycle: multiply-adds per DSP and cycle, by precision (below 1 where
    one multiply-add takes several DSPs); efficiency: share of those cycles that do useful work
    on_chip_bytes: block RAM and UltraRAM; ddr_bytes: memory beside the chip; ddr_bandwidth: bytes/s
    transceiver_bandwidth: bytes/s of all transceivers together, one direction
    share: part of the DSPs, of the on-chip memory and of the DDR bandwidth that this device stands for, 1
        for a whole board
    streams, sublinear: every layer of a stage has DSPs of its own; weights move once per call, the rest once per sample

    A layer's weights stay on the chip if they fit there; if they do not, they stream from DDR each call. Its features
    stay if they fit in what the weights leave. Raises ValueError for figures that are not positive.
    """

    name: str
    dsps: Annotated[int, Bounds(gt=0)]
    clock: Positive
    macs_per_cycle: Mapping[str, float] = field(hash=False)
    efficiency: ShareOfPeak
    on_chip_bytes: Positive
    ddr_bytes: Positive
    ddr_bandwidth: Positive
    transceiver_bandwidth: Positive
    share: ShareOfPeak = 1.0
    word: str = field(default="FPGA", init=False)
    streams: bool = field(default=True, init=False)
    sublinear: bool = field(default=True, init=False)

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {self.dsps} DSPs at {self.clock / 1e6:.4g} MHz, share {self.share:.4g}")

    def __post_init__(self) -> None:
        check_figures(self.name, self)
        object.__setattr__(self, "macs_per_cycle", checked_rates(self.name, "macs_per_cycle", self.macs_per_cycle))

    @property
    def memory_bytes(self) -> float:
        """DDR bytes of this share of the board: what a plan may fill."""
        return self.ddr_bytes * self.share

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that its DSPs have a rate for."""
        return tuple(self.macs_per_cycle)

    def flop_rate(self, precision: Precision) -> float:
        """FLOP/s that the DSPs of this share reach: the bound that no layer can beat."""
        rate = self.macs_per_cycle[precision]
        return 2.0 * self.dsps * self.share * rate * self.clock * self.efficiency

    def seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """Seconds of one pass of one layer over `samples` samples; a backward is the sum of its two gradients.

        Never falls as samples rise. Zero where nothing is computed or moved (views, a layer that stays on the chip and
        has no FLOP). Raises ValueError for samples not above 0, and kinds, phases and precisions that are not known.
        """
        check_request(self.name, work, samples, phase, precision, self.macs_per_cycle)
        return sum(self._pass_seconds(work, samples, part, precision) for part in passes(phase))

    def stage_seconds(self, works: Sequence[Work], samples: float, phase: Phase, precision: Precision) -> float:
        """Seconds of one pass of a stage of layers over `samples` samples, its DSPs divided over the layers.

        Rules: see `hardware_profiles.fpga_division`. Never below the DSP and DDR bounds of any of its layers.
        """
        from hardware_profiles.fpga_division import divide  # which loads numpy

        for work in works:
            check_request(self.name, work, samples, phase, precision, self.macs_per_cycle)
        return float(divide(self, works, precision).seconds(samples, phase)[0])

    def divided(self, works: Sequence[Work], held: NDArray[np.bool_], precision: Precision) -> Divisions:
        """How the board is divided over the layers of each of several stages, for code that asks for many.

        held: bool [stages, layers], which of `works` each stage has
        """
        from hardware_profiles.fpga_division import divide  # which loads numpy

        return divide(self, works, precision, held)

    def multiply_seconds(self, work: Work, phase: Phase, precision: Precision) -> float:
        """Seconds per sample of one layer's multiply-adds on all DSPs of this share."""
        rate, width = self.flop_rate(precision), PRECISION_BYTES[precision]
        return sum(demand(work, 1, part, width).flop / rate for part in passes(phase))

    def ddr_traffic(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """Bytes that one pass moves over DDR: weights that do not fit on the chip, features that do not fit
        beside them.
        """
        width = PRECISION_BYTES[precision]
        total = demand(work, samples, phase, width).traffic
        on_chip = self.on_chip_bytes * self.share
        weights = work.parameters * width
        weights_stay = weights <= on_chip
        if work.kind == "embedding" and phase == "forward":
            # A gather moves the rows that it uses, not the table.
            return 0.0 if weights_stay else total
        moved_weights = min(weights, total)
        moved_features = total - moved_weights
        # Features stream: those of one sample are resident at a time, however many samples a call has.
        resident = (work.input_elements + work.output_elements) * width
        features_stay = resident <= (on_chip - weights if weights_stay else on_chip)
        return (0.0 if weights_stay else moved_weights) + (0.0 if features_stay else moved_features)

    def _pass_seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        flop = demand(work, samples, phase, PRECISION_BYTES[precision]).flop
        traffic = self.ddr_traffic(work, samples, phase, precision)
        return max(flop / self.flop_rate(precision), traffic / (self.ddr_bandwidth * self.share))
