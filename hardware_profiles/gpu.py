"""GPU: a roofline whose compute roof rises with the work of a call.

    seconds = call_overhead + hook
            + max( steps * (step_overhead + flop / (peak * efficiency)), bytes / (bandwidth * share) )
            + (scratch + moved weights) / (bandwidth * share)

    efficiency = ceiling * flop / (flop + half_work)

Fp32 convolutions whose windows overlap take the quicker of this and a fast algorithm (Winograd, FFT; Lavin and
Gray, CVPR 2016): a ceiling times (overlap ** window_exponent), for transform_traffic times the bytes. It is
what tells 3x3 from 1x1 convolutions, and few channels from many.

`flop` is that of one sequential step (one kernel call), `bytes` those of the whole pass. `half_work`, the FLOP at which
a call reaches half of its ceiling, is written as seconds at the peak rate, so that a faster device needs more work to
fill. A roofline (Williams, Waterman, Patterson, CACM 2009) whose compute roof saturates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, NamedTuple

from hardware_profiles.accelerator import (
    PRECISION_BYTES,
    ZERO_COST_KINDS,
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
from hardware_profiles.option_declarations import Bounds
from hardware_profiles.words import brief, gibibytes

VECTOR_PRECISION = "fp32"
"""The precision of the plain vector units; all others run on matrix engines, whose ceilings are lower and
whose convolutions are direct (no Winograd or FFT)."""

DEFAULT_CALL_OVERHEAD = 20e-6
"""Seconds that a layer costs whatever it computes: framework dispatch and kernel launch. Assumed (order of magnitude)."""

DEFAULT_STEP_OVERHEAD = 5e-6
"""Seconds per dependent kernel call: launch alone. Assumed (order of magnitude of a CUDA launch)."""


@dataclass(frozen=True, slots=True)
class KindEfficiency:
    """How well one kind of layer uses a GPU.

    forward, backward: ceiling of the share of peak fp32 FLOP/s, in the forward pass and in each gradient
    matrix, matrix_backward: the same ceilings on matrix engines (all other precisions); 0: backward as forward
    memory: share of peak memory bandwidth; several reads of one tensor (batch statistics) lower it
    saturation_seconds: a call with this much work, in seconds at the peak rate, reaches half its ceiling
    window_exponent, transform_traffic: a fast fp32 convolution needs (window overlap) ** window_exponent times
        fewer multiplications, so that its rate, counted in direct FLOP, may exceed the peak, and moves
        transform_traffic times the bytes of a direct one; exponent 0: there is no fast algorithm
    tile: channels, and weights of an output, below which a convolution fills its tiles in part; 0: it always fills them
    accumulated: how often a weight gradient moves the bytes of its weights beside its product: it is added to what is there
    accumulated_experts: the same of the weights of experts, whose sums are no product's last step; 0: as `accumulated`
    """

    forward: ShareOfPeak
    backward: ShareOfPeak
    matrix: ShareOfPeak
    memory: ShareOfPeak
    saturation_seconds: Amount = 0.0
    window_exponent: Amount = 0.0
    transform_traffic: Annotated[float, Bounds(ge=1)] = 1.0
    matrix_backward: Annotated[float, Bounds(ge=0, le=1)] = 0.0
    tile: Amount = 0.0
    accumulated: Amount = 0.0
    accumulated_experts: Amount = 0.0

    def __post_init__(self) -> None:
        check_figures("efficiency", self)

    def ceiling(self, phase: Phase, vector: bool) -> float:
        """Share of the peak in a pass, not `backward`, on vector units or on matrix engines."""
        if phase == "forward":
            return self.forward if vector else self.matrix
        return self.backward if vector else self.matrix_backward or self.matrix

    def moved_weights(self, phase: Phase, of_experts: bool) -> float:
        """How often a product moves the bytes of its weights beside itself in a pass, not `backward`.

        An expert has too few samples for its products to hide that its weights are read.
        """
        if phase == "weight_gradient":
            return self.accumulated_experts if of_experts and self.accumulated_experts else self.accumulated
        return float(of_experts)


FUSED_ATTENTION = "fused_attention"
"""Attention whose scores never leave the chip; its products have shares of their own; its backward makes the scores again, which
its share pays for."""


# FITTED: the fp32 ceilings, `memory`, `saturation_seconds`, `window_exponent` and `transform_traffic` of
# convolution, linear, recurrent, normalization and the streaming kinds. A coarse grid, the same constants for
# all networks, was searched for totals within 15 % of the five PipeDream profiles of a V100, then for the
# least time in wrong layers (`python -m experiments.cost_model` shows the fit and where it fails). AlexNet
# pulls: some 20 of its 85 ms are the first call of its first convolution, which no model of layers explains;
# the other networks come out 8-11 % high for its sake. Other GPUs inherit the constants: an extrapolation.
# ASSUMED: `matrix`, attention and embedding, which no profile at hand measures.
_STREAMING = KindEfficiency(forward=1.0, backward=1.0, matrix=1.0, memory=0.70)

DEFAULT_EFFICIENCIES: Mapping[str, KindEfficiency] = MappingProxyType(
    {
        "convolution": KindEfficiency(
            0.58, 0.58, 0.45, 0.75, saturation_seconds=40e-6, window_exponent=0.4, transform_traffic=9.0
        ),
        "linear": KindEfficiency(0.50, 0.50, 0.60, 0.80, saturation_seconds=40e-6),
        "attention": KindEfficiency(0.50, 0.50, 0.45, 0.80, saturation_seconds=40e-6),
        FUSED_ATTENTION: KindEfficiency(0.25, 0.25, 0.225, 0.80, saturation_seconds=20e-6),
        "recurrent": KindEfficiency(0.60, 0.60, 0.35, 0.80, saturation_seconds=2e-6),
        "embedding": _STREAMING,
        # Batch statistics read the tensor twice: a pass over input and output reaches less of the bandwidth.
        "normalization": KindEfficiency(1.0, 1.0, 1.0, memory=0.55),
        "activation": _STREAMING,
        "pooling": _STREAMING,
        "dropout": _STREAMING,
        "elementwise": _STREAMING,
        "loss": _STREAMING,
    }
)
"""Defaults by kind of layer, for what a GPU's TOML file does not say."""


DIRECT = 0.125
"""Share of a convolution's ceiling that a kernel with a thread for each output reaches, whatever its channels: beside each
multiply-add it loads an operand and computes where that lies, some eight instructions in all. Counted."""


LOSS_TRAFFIC: Mapping[str, float] = MappingProxyType({"forward": 38.0, "input_gradient": 22.0, "weight_gradient": 0.0})
"""Bytes per logit that a cross-entropy moves, in fp32 at any precision and one kernel per step: forward a cast (6), maximum (4),
subtraction (8), exponential (8), sum (4) and division (8); backward a subtraction (8), scaling (8) and a cast (6). Counted; 60
together lie between what A100 clusters show at the head alone (99) and what iterations tell (44)."""


class Demand(NamedTuple):
    """Demand of one pass on the hardware, all of its steps together: FLOP, bytes of memory traffic beside the products, and bytes
    moved between them (scratch).
    """

    flop: float
    traffic: float
    scratch: float = 0.0


def demand(work: Work, samples: float, phase: Phase, bytes_per_element: float) -> Demand:
    """FLOP and memory traffic of one pass, not `backward`: the one place that says what a gradient costs.

    - forward: the layer's FLOP; reads its input (a normalization twice: its mean comes first) and its parameters, writes
      its output
    - input gradient: the same FLOP (twice for a product of activations, which has two operands); reads the output's
      gradient and the parameters, writes the input's gradient, and reads the stashed input if there are no parameters
    - weight gradient: the same FLOP where there are parameters, else nothing; reads the input and the
      output's gradient, writes the parameters' gradient
    - a layer that reads only what no layer makes has no input gradient
    - embeddings: a gather of the rows used; no input gradient; a weight gradient as wide as the table
    - a loss moves LOSS_TRAFFIC for each logit that it reads
    - attention in one kernel: FLOP of the pairs of queries and keys that it computes, half of all where a causal mask hides half
    - what a layer moves between its own kernels it moves once in the forward, twice in the whole backward

    Parameters are read once per call, whatever the samples.
    """
    inputs = (work.input_elements + work.loaded_elements) * samples
    outputs = work.output_elements * samples
    flop, scratch = work.flop * samples * (work.fused_pairs or 1.0), work.scratch_elements * samples
    parametric = work.parameters > 0
    if work.kind in ZERO_COST_KINDS or (phase == "input_gradient" and work.loaded_elements and not work.input_elements):
        return Demand(0.0, 0.0)
    if work.kind == "loss":
        return Demand(flop, inputs * LOSS_TRAFFIC[phase])
    if work.kind == "embedding":
        if phase == "forward":
            elements = inputs + 2.0 * outputs
        elif phase == "weight_gradient":
            elements = inputs + outputs + work.parameters
        else:
            return Demand(0.0, 0.0)
    elif phase == "forward":
        elements = inputs * (2.0 if work.kind == "normalization" else 1.0) + outputs + work.parameters
    elif phase == "input_gradient":
        if not parametric:
            flop *= 2.0 if work.kind == "attention" else 1.0
            scratch *= 2.0
            # A sum passes its gradient on without its inputs; every other kind reads them (or a mask) again.
            inputs *= 1.0 if work.kind == "elementwise" else 2.0
        elements = inputs + outputs + work.parameters
    elif parametric:
        elements = inputs + outputs + work.parameters
    else:
        return Demand(0.0, 0.0)
    return Demand(flop, elements * bytes_per_element, scratch * bytes_per_element)


def window_overlap(work: Work) -> float:
    """Windows that cover one input element of a convolution: (kernel / stride) squared; 1 for any other kind.

    With h output positions, parameters = k*k*c*d and FLOP = 2*h*k*k*c*d, so that h = FLOP / (2*parameters); inputs =
    s*s*h*c and outputs = h*d, so that parameters * h*h / (inputs * outputs) = k*k / (s*s). Never below 1.
    """
    read = work.input_elements + work.loaded_elements
    if work.kind != "convolution" or not (work.parameters > 0 and read > 0 and work.output_elements > 0):
        return 1.0
    positions = work.flop / (2.0 * work.parameters)
    return max(1.0, work.parameters * positions * positions / (read * work.output_elements))


def tile_use(work: Work, phase: Phase, tile: float) -> float:
    """Share of square tiles of a side `tile` that a convolution fills, 0 to 1; 1 where its channels are not known.

    As a product it has terms (weights of an output) to add up and columns (channels made by a group): three channels of an
    image, a group of four, or one channel alone leave most of a tile empty. The input gradient swaps the channels.
    """
    read, made = work.channels
    if not (tile and read and made and work.output_elements):
        return 1.0
    terms = work.flop / (2.0 * work.output_elements)
    if phase == "input_gradient":
        terms, made = terms * made / read, read
    return min(1.0, terms / tile, made / tile)


@dataclass(frozen=True, slots=True)
class GraphicsProcessor:
    """A GPU, or another chip with matrix engines and fast memory; satisfies `Accelerator`, and has all `OptionalMembers`.

    peak_flops: dense, no sparsity
    memory_bytes: what a plan may fill, the reserve not counted; memory_bandwidth: bytes/s
    call_overhead, step_overhead: seconds per pass, and seconds per sequential step
    forward_hook, gradient_hook: seconds that the hooks of a profiler around every layer add to its forward, and to each gradient
    load_seconds_per_byte: what a forward takes for each byte that no layer made, where it waits for the host to copy it
    launch_overhead: half as much again for a backward; a host that is ahead of its device costs nothing
    pass_overhead: the framework fetches the micro-batch, waits for messages, scales and reports the loss
    overlap_slowdown: kernels of the communication library take some of its units and of its memory's bandwidth
    efficiencies: by kind of layer; a kind left out takes the default's
    efficiencies_in: the same in precisions that have others
    chip: its kind, one of CHIPS; spread: mean error of seconds by shares that the kind alone tells, 0 of shares of its own
    reserve_bytes: what driver, communication buffers and fragmentation take
    generation: name of its architecture, such as "ampere"
    power: at full load it computes; None where it is not known
    streams, sublinear: layers run one after the other; a call is a line in its samples, above its overhead

    Raises ValueError for figures that are not positive and precisions that the device does not list.
    """

    name: str
    memory_bytes: Positive
    memory_bandwidth: Positive
    peak_flops: Mapping[str, float] = field(hash=False)
    call_overhead: Amount = DEFAULT_CALL_OVERHEAD
    step_overhead: Amount = DEFAULT_STEP_OVERHEAD
    efficiencies: Mapping[str, KindEfficiency] = field(default_factory=dict, hash=False)
    efficiencies_in: Mapping[str, Mapping[str, KindEfficiency]] = field(default_factory=dict, hash=False)
    reserve_bytes: Amount = 0.0
    host_bandwidth: Amount = 0.0
    launch_overhead: Amount = 0.0
    pass_overhead: Amount = 0.0
    forward_hook: Amount = 0.0
    gradient_hook: Amount = 0.0
    load_seconds_per_byte: Amount = 0.0
    generation: str = ""
    chip: str = "tensor-core"
    spread: Amount = 0.0
    power: Power | None = None
    clock: Annotated[float, Bounds(gt=0, le=1)] = 1.0
    overlap_slowdown: Amount = 0.0
    word: str = field(default="GPU", compare=False)
    streams: bool = field(default=False, init=False)
    sublinear: bool = field(default=True, init=False)

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {gibibytes(self.memory_bytes)}")

    def __post_init__(self) -> None:
        check_figures(self.name, self)
        peaks = checked_rates(self.name, "peak_flops", self.peak_flops)
        unknown = sorted(set(self.efficiencies).union(*self.efficiencies_in.values()) - set(DEFAULT_EFFICIENCIES))
        if unknown:
            raise ValueError(
                f"{self.name}: unknown kind of layer {unknown[0]!r}; choose from {', '.join(DEFAULT_EFFICIENCIES)}"
            )
        # A half-filled table would make a layer fail in the middle of a run: defaults complete it here.
        object.__setattr__(self, "peak_flops", peaks)
        object.__setattr__(self, "efficiencies", {**DEFAULT_EFFICIENCIES, **self.efficiencies})
        own = {precision: {**DEFAULT_EFFICIENCIES, **of} for precision, of in self.efficiencies_in.items()}
        object.__setattr__(self, "efficiencies_in", own)

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that it has a rate for."""
        return tuple(self.peak_flops)

    def seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """Seconds of one pass of one layer over `samples` samples; a backward is the sum of its two gradients.

        Never falls as samples rise. Zero where nothing is launched (inputs, views, a gradient that does not exist).
        Raises ValueError for samples that are not above 0, and kinds, phases and precisions that are not known.
        """
        check_request(self.name, work, samples, phase, precision, self.peak_flops)
        return sum(self._pass_seconds(work, samples, part, precision) for part in passes(phase))

    def _pass_seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        needed = demand(work, samples, phase, PRECISION_BYTES[precision])
        if needed.flop == 0.0 and needed.traffic == 0.0:
            return 0.0
        shares = self.efficiencies_in.get(precision, self.efficiencies)
        efficiency = shares[FUSED_ATTENTION if work.fused_pairs else work.kind]
        ceiling = efficiency.ceiling(phase, vector=precision == VECTOR_PRECISION)
        used = tile_use(work, phase, efficiency.tile)
        peak = self.peak_flops[precision] * self.clock
        busy = self._roofline(work, needed, efficiency, ceiling * used, peak)
        if used < DIRECT:  # a kernel without tiles has the same start
            direct = replace(efficiency, saturation_seconds=DIRECT * efficiency.saturation_seconds)
            busy = min(busy, self._roofline(work, needed, direct, ceiling * DIRECT, peak))
        if precision == VECTOR_PRECISION and efficiency.window_exponent > 0.0:
            gain = window_overlap(work) ** efficiency.window_exponent
            if gain > 1.0:
                transformed = needed._replace(traffic=needed.traffic * efficiency.transform_traffic)
                busy = min(busy, self._roofline(work, transformed, efficiency, ceiling * used * gain, peak))
        moved = efficiency.moved_weights(phase, work.experts > 0) * work.parameters * PRECISION_BYTES[precision]
        busy += moved / (self.memory_bandwidth * efficiency.memory)
        if phase != "forward":
            return self.call_overhead + self.gradient_hook + busy
        loading = work.loaded_elements * samples * PRECISION_BYTES[precision] * self.load_seconds_per_byte
        return self.call_overhead + self.forward_hook + loading + busy

    def _roofline(self, work: Work, needed: Demand, efficiency: KindEfficiency, ceiling: float, peak: float) -> float:
        """Seconds under both roofs, without the overhead of the call."""
        compute = work.sequential_steps * self.step_overhead
        if needed.flop > 0.0:
            step_flop = needed.flop / work.sequential_steps
            reached = ceiling * step_flop / (step_flop + efficiency.saturation_seconds * peak)
            compute += needed.flop / (peak * reached)
        rate = self.memory_bandwidth * efficiency.memory
        return max(compute, needed.traffic / rate) + needed.scratch / rate
