"""FPGA: digital signal processing blocks at a clock, memory on the chip, and DDR or high-bandwidth memory beside it.

    forward = max( MACs * (1 + reduction_half / r) / (DSPs * MACs per DSP and cycle * clock * efficiency),
                   bytes moved / (bandwidth * share of it that is reached) )

r is the reduction length of the layer: multiply-adds of one output element (9 of a depthwise 3x3 convolution). An array of DSPs
is filled and emptied for each output, so that short sums reach less of it. The larger of the two counts, as the next weights are
loaded while these are used. It is the layer model of BaPipe (arXiv 2012.12544) as reconstructed in the reference notes, whose
efficiency was one number: a backward pass is twice the MACs of the forward, the error and the weight gradient one each, on the
array that was laid out for the forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from hardware_profiles.accelerator import (
    PRECISION_BYTES,
    Amount,
    Phase,
    Positive,
    Power,
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
    from hardware_profiles.array_types import Flags
    from hardware_profiles.fpga_division import Divisions


@dataclass(frozen=True, slots=True)
class FieldProgrammableGateArray:
    """An FPGA board; satisfies `Accelerator`.

    dsps: DSP blocks in use; clock: Hz; macs_per_cycle: multiply-adds per DSP and cycle, by precision (below 1 where one
        multiply-add takes several DSPs; with what the logic beside adds); efficiency: share of those cycles that do useful work
        in long sums; reduction_half: multiply-adds of an output element at which half of that is reached
    logic: of macs_per_cycle what look-up tables do
    depthwise: multiply-adds of depthwise convolutions over those of the whole array, where an engine of its own does them, and
        with each of these takes an element that sums and products of layers or pools read; 0: the array does the former, and
        the others take no cycles
    sample_dsps: DSPs that work on one sample, the others on others of a batch, which share the weights that are read; 0: all
    shared_array: one array of all DSPs runs the layers of a stage in turn; else they may be divided among these, too
    on_chip_bytes: block RAM and UltraRAM for weights and features; ddr_bytes: memory beside the chip; ddr_bandwidth: its bytes/s;
        port_bytes: those that a cycle brings through the ports of each DSP, 0 for no limit; memory_efficiency: share of the
        lesser that is reached
    transceiver_bandwidth: bytes/s of all transceivers together, one direction
    share: part of the DSPs, of the on-chip memory and of the DDR bandwidth that this device stands for, 1
        for a whole board
    power: at full load all DSPs work in every cycle; None where it is not known
    streams, sublinear: every layer of a stage has DSPs of its own; weights move once per call, the rest once per sample

    Weights stay on the chip if those of the whole stage fit there; if they do not, all stream from DDR. A layer that is asked for
    alone counts as one of a network that does not fit. Features stay if they fit in what the weights leave. Raises ValueError for
    figures that are not positive.
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
    reduction_half: Amount = 0.0
    logic: Mapping[str, float] = field(default_factory=dict, hash=False)
    depthwise: Annotated[float, Bounds(ge=0, le=1)] = 0.0
    sample_dsps: Annotated[int, Bounds(ge=0)] = 0
    shared_array: bool = False
    port_bytes: Amount = 0.0
    memory_efficiency: ShareOfPeak = 1.0
    power: Power | None = None
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
    def reached_bandwidth(self) -> float:
        """Bytes/s of the memory beside the chip that this share reaches."""
        return self.offered_bandwidth * self.memory_efficiency * self.share

    @property
    def offered_bandwidth(self) -> float:
        """Bytes/s of the memory beside the chip, or of the ports of all DSPs in use where these are less."""
        return min(self.ddr_bandwidth, self.dsps * self.clock * self.port_bytes or self.ddr_bandwidth)

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that its DSPs have a rate for."""
        return tuple(self.macs_per_cycle)

    def flop_rate(self, precision: Precision) -> float:
        """FLOP/s that the DSPs of this share reach in endless sums: the bound that no layer can beat."""
        rate = self.macs_per_cycle[precision]
        return 2.0 * self.dsps * self.share * rate * self.clock * self.efficiency

    @property
    def peak_flops(self) -> dict[str, float]:
        """FLOP/s by precision of this share with all DSPs at work in every cycle."""
        cycles = 2.0 * self.dsps * self.share * self.clock
        return {precision: cycles * rate for precision, rate in self.macs_per_cycle.items()}

    def working_seconds(self, flop: float, precision: Precision) -> float:
        """Seconds at full load in which so many FLOP are done, however long they take in fact."""
        return flop / self.peak_flops[precision]

    @property
    def batch(self) -> int:
        """Samples at a time that its DSPs are divided over; fewer leave some of these idle."""
        return max(1, self.dsps // self.sample_dsps) if self.sample_dsps else 1

    def runs_depthwise(self, work: Work) -> bool:
        """Whether a layer is for the engine of depthwise convolutions: each output channel sums over one input channel."""
        return self.depthwise > 0.0 and work.kind == "convolution" and work.channels == (1, 1)

    def slots(self, work: Work) -> float:
        """FLOP per sample that a layer's forward could do on its DSPs in the cycles that it takes there: its own, and those in
        which the array is filled for each output element, or the engine of depthwise convolutions is at work, which also sums,
        multiplies and pools what it reads (AMD PG338, PG389).
        """
        if self.runs_depthwise(work):
            return work.flop * self.efficiency / self.depthwise
        if work.flop:
            return work.flop + 2.0 * self.reduction_half * work.output_elements
        beside = self.depthwise > 0.0 and work.kind in ("elementwise", "pooling")
        return 2.0 * work.input_elements * self.efficiency / self.depthwise if beside else 0.0

    def pass_slots(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """`slots` of one of `passes` over some samples; as many for the gradient of the input of what has no FLOP."""
        if work.flop:
            return demand(work, samples, phase, PRECISION_BYTES[precision]).flop * self.slots(work) / work.flop
        return 0.0 if phase == "weight_gradient" else samples * self.slots(work)

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
        from hardware_profiles.fpga_division import of_stage  # which loads numpy

        for work in works:
            check_request(self.name, work, samples, phase, precision, self.macs_per_cycle)
        return float(of_stage(self, tuple(works), precision).seconds(samples, phase)[0])

    def divided(
        self, works: Sequence[Work], held: Flags, precision: Precision, *, copies: int | None = None
    ) -> Divisions:
        """How the board is divided over the layers of each of several stages, for code that asks for many.

        held: bool [stages, layers], which of `works` each stage has; copies: of weights on the chip, default
            those of training, weights and the sums of their gradients
        """
        from hardware_profiles.fpga_division import divide  # which loads numpy

        return divide(self, works, precision, held, copies=copies)

    def multiply_seconds(self, work: Work, phase: Phase, precision: Precision) -> float:
        """Seconds per sample of one layer's multiply-adds on all DSPs of this share."""
        rate = self.flop_rate(precision)
        return sum(self.pass_slots(work, 1, part, precision) / rate for part in passes(phase))

    def ddr_traffic(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """Bytes that one pass of a layer alone moves over DDR: its weights, and features that do not fit on the chip."""
        width = PRECISION_BYTES[precision]
        total = demand(work, samples, phase, width).traffic
        if work.kind == "embedding" and phase == "forward":
            return total  # a gather moves the rows that it uses, not the table
        weights = min(work.parameters * width, total)
        # Features stream: those of one sample are resident at a time, however many samples a call has.
        resident = (work.input_elements + work.output_elements) * width
        return weights if resident <= self.on_chip_bytes * self.share else total

    def _pass_seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        slots = self.pass_slots(work, samples, phase, precision)
        traffic = self.ddr_traffic(work, samples, phase, precision)
        return max(slots / self.flop_rate(precision), traffic / self.reached_bandwidth)
