"""Layers: a workload is a directed acyclic graph of them, and cuts of that graph carry tensors.

Conventions of every workload here
- FLOP count matrix products and convolutions only, two a multiply-add, no bias, no element-wise work
  (what torch's `FlopCounterMode` counts). Layers without a product have 0 FLOP and cost memory traffic alone.
- `stashed_elements` is what autograd saves for the backward pass: rule in `simulator.workloads.builder`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from typing import Annotated, Literal, get_args

import msgspec
import numpy as np

from hardware_profiles import (
    LAYER_KINDS,
    MOST_COUNT,
    Bounds,
    Floats,
    Work,
    blaming,
    brief,
    check_numbers,
    check_real,
    check_whole,
)

MOST_PARAMETERS = 2**63 - 1
"""Most weight elements: prefix sums of them are int64."""

Count = Annotated[int, Bounds(ge=0, le=MOST_PARAMETERS)]
Amount = Annotated[float, Bounds(ge=0)]

Attention = Literal["fused", "unfused", "eager"]
"""How a transformer computes attention: "unfused" writes the scores to memory and keeps them for the backward pass, with scale,
mask and softmax in one kernel (Megatron-LM's, of 16-bit numbers); "eager" has a kernel for each of them; "fused" (FlashAttention,
Dao et al. 2022) makes the scores again from one number per query."""

SCORE_MOVES: Mapping[Attention, float] = {"fused": 0.0, "unfused": 2.0, "eager": 6.0}
"""Elements that a forward moves per score beside its products' operands, without dropout: softmax reads and writes; of eager
attention the first product writes, mask and softmax each read and write, and the second product reads."""

Split = Literal["", "columns", "rows", "heads", "features", "tokens", "vocabulary"]
"""How a tensor-parallel group divides a layer: see `simulator.workloads.shares`."""

Part = Literal["", "embedding", "norms", "attention", "MLP", "experts", "output head"]
"""Part of a transformer that a layer belongs to, for reports of activations (Korthikanti et al. 2022, sections 4.1 and 4.3)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One operator of a network; every figure is for ONE sample unless it says otherwise.

    name: unique in its workload
    kind: one of LAYER_KINDS
    flop: forward FLOP per sample (a multiply-add counts 2)
    parameters: weight elements of its own (once, not per sample)
    output_elements: elements of the output tensor per sample
    stashed_elements: elements per sample that stay in memory from forward to backward; stashed_bytes: bytes that do beside them,
        in any precision: masks, indices, numbers that stay in fp32
    sequential_steps: dependent kernel calls per pass (time steps), 1 otherwise
    scratch_elements: elements per sample that a forward moves between kernels of its own (scores of attention that is not fused)
    loaded_elements: elements per sample of its inputs that no layer makes (images)
    channels: of a convolution those that a group of it reads, and those that it makes; 0 where it is not known
    fused_pairs: of attention in one kernel the share of all pairs of a query and a key (`flop` counts all) that it computes: half
        under a causal mask; 0: in several kernels
    measured: rows (samples, forward seconds, backward seconds) of a profile, by rising samples; empty if analytic
    tied_to: name of an earlier layer whose weight this one uses too (an output head that multiplies with the
        embedding's matrix), "" for none; tied_parameters: elements of that weight
    split: how a tensor-parallel group divides it, "" for not at all
    undivided: of its own weight elements, those that every member of such a group keeps (a bias after `rows`)
    heads: key-value heads of attention, and of a projection to them; 0 for other layers
    query_heads: query heads of these layers, a multiple of `heads`; 0: as many
    key_values: elements per sample of keys and values among those that it makes, or that attention reads
    head_size: of attention the elements of a head's values; 0 where it is not known, and for other layers
    causal_tokens: tokens of a sample, of attention where each token attends to those before it alone; 0 for other layers
    experts: routed experts that its weights belong to, evenly; 0 for layers that all tokens go through
    block: number, from 1, of the block of like layers that it stands in, which recomputation may make again from what the block
        reads; 0 for none
    part: of a transformer, which it belongs to; "" for layers of other networks, which their kinds tell apart
    """

    name: str
    kind: str
    flop: Amount = 0.0
    parameters: Count = 0
    output_elements: Amount = 0.0
    stashed_elements: Amount = 0.0
    sequential_steps: Annotated[int, Bounds(ge=1, le=MOST_PARAMETERS)] = 1
    measured: tuple[tuple[float, float, float], ...] = ()
    tied_to: str = ""
    tied_parameters: Count = 0
    scratch_elements: Amount = 0.0
    loaded_elements: Amount = 0.0
    channels: tuple[int, int] = (0, 0)
    fused_pairs: Amount = 0.0
    split: Split = ""
    undivided: Count = 0
    heads: Count = 0
    query_heads: Count = 0
    key_values: Amount = 0.0
    causal_tokens: Count = 0
    experts: Count = 0
    block: Count = 0
    stashed_bytes: Amount = 0.0
    part: Part = ""
    head_size: Count = 0

    def __repr__(self) -> str:
        measured = f", measured at {len(self.measured)} sizes" if self.measured else ""
        return brief(self, f"{self.name}: {self.kind}, {self.flop:.4g} FLOP, {self.weights:,} weights{measured}")

    @property
    def weights(self) -> int:
        """Weight elements that a pass reads: the layer's own and the tied one's."""
        return self.parameters + self.tied_parameters

    @property
    def has_weight_gradient(self) -> bool:
        """Whether its backward makes a gradient of weights, its own or tied ones."""
        return self.weights > 0


@dataclass(frozen=True, slots=True)
class TiedWeight:
    """One weight that several layers use: each makes a gradient, and one update takes their sum.

    layers: indices, rising; the first owns the weight (its `parameters` count it). parameters: elements

    A device that holds some of these layers holds the weight once. Devices of different stages hold copies, which
    stay equal if their gradients are summed before each update.
    """

    layers: tuple[int, ...]
    parameters: float


class WorkloadSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a workload comes from: what `workload_from_spec` or `read_any_profile` takes.

    name: a registered name, chain:LAYERS, or a file; with the tokens of a sample and the form of attention, if they are not the
        workload's own
    profile: file of a measured profile; with the samples of its mini-batch, if it does not tell them
    """

    name: str | None = None
    profile: str | None = None
    sequence: Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNT)] | None = None
    attention: Attention | None = None
    profiled_minibatch: Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNT)] | None = None

    def __post_init__(self) -> None:
        if (self.name is None) == (self.profile is None):
            raise ValueError("give one of name and profile")
        for option in ("sequence", "attention"):
            if self.profile is not None and getattr(self, option) is not None:
                raise ValueError(f"{option} goes with name; a profile has its own")
        if self.name is not None and self.profiled_minibatch is not None:
            raise ValueError("profiled_minibatch goes with profile")


@dataclass(frozen=True, slots=True)
class Workload:
    """A network as layers in topological order and the tensors that flow between them.

    name: identifier, as in `vgg16`
    layers: in a deterministic topological order; a stage of a plan is a contiguous range of them
    edges: (producer, consumer) indices into `layers`, producer < consumer, none twice
    sample: what one sample is ("image", "sequence")
    minibatch: default mini-batch of one device, in samples
    bytes_per_element: bytes of one element of a measured profile (4 for fp32); None for an analytic workload,
        whose precision is the problem's choice
    measured_on: what the profile calls the device that it was measured on; "" where it does not say
    tokens: of a sample; 0 where it is no sequence of them, or that is not known
    source: what gives it again; None for one that was made in Python, or changed there

    Raises ValueError (one line) if a rule is broken.
    """

    name: str
    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int], ...]
    sample: str = "sample"
    minibatch: int = 1
    bytes_per_element: int | None = None
    measured_on: str = ""
    tokens: int = 0
    source: WorkloadSource | None = field(init=False, default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {len(self)} layers, {self.parameters():,} parameters")

    def __post_init__(self) -> None:
        _check_workload(self)

    def __hash__(self) -> int:
        """Of what tells most networks apart: a hash of every layer would take longer than what is kept by it saves."""
        return hash((self.name, len(self.layers), self.layers[0], self.layers[-1], self.minibatch, self.tokens))

    def __len__(self) -> int:
        return len(self.layers)

    def parameters(self) -> int:
        """Weight elements of the whole network; tied weights count once."""
        return sum(layer.parameters for layer in self.layers)

    def tied_weights(self) -> tuple[TiedWeight, ...]:
        """Weights that several layers use, in the order of their owners."""
        number = {layer.name: index for index, layer in enumerate(self.layers)}
        users: dict[int, list[int]] = {}
        for index, layer in enumerate(self.layers):
            if layer.tied_to:
                users.setdefault(number[layer.tied_to], []).append(index)
        return tuple(
            TiedWeight((owner, *users[owner]), self.layers[users[owner][0]].tied_parameters) for owner in sorted(users)
        )

    def flop(self) -> float:
        """Forward FLOP of one sample (a multiply-add counts 2)."""
        return math.fsum(layer.flop for layer in self.layers)

    @property
    def takes_time(self) -> bool:
        """Whether any layer has no measurement, or measured seconds above 0."""
        return any(not layer.measured or any(f or b for _, f, b in layer.measured) for layer in self.layers)

    @property
    def measured(self) -> bool:
        """Whether seconds of any of its layers are measured."""
        return any(layer.measured for layer in self.layers)

    @property
    def is_transformer(self) -> bool:
        """Whether it has transformer blocks, and no measured seconds, which are of one framework and machine."""
        return any(layer.block for layer in self.layers) and not self.measured

    def input_elements(self) -> Floats:
        """Elements per sample that each layer reads, the outputs of its producers summed: shape (layers,), float64."""
        incoming: list[list[float]] = [[] for _ in self.layers]
        for producer, consumer in self.edges:
            incoming[consumer].append(self.layers[producer].output_elements)
        return np.array([math.fsum(each) for each in incoming], dtype=np.float64)

    def described(self) -> Workload:
        """The network with only the sizes of its layers, without measurements, for any precision."""
        layers = tuple(replace(layer, measured=()) for layer in self.layers)
        return replace(self, layers=layers, bytes_per_element=None, measured_on="")

    def works(self) -> tuple[Work, ...]:
        """The work of each layer for one sample, as accelerators time it."""
        convolutions = {index for index, layer in enumerate(self.layers) if layer.kind == "convolution"}
        behind = {consumer for producer, consumer in self.edges if producer in convolutions}
        in_place = {
            index
            for index, layer in enumerate(self.layers)
            if (layer.kind == "normalization" and index in behind)
            or (layer.kind in {"activation", "elementwise"} and not (layer.stashed_elements or layer.stashed_bytes))
        }
        return tuple(
            Work(
                layer.kind,
                layer.flop,
                float(read),
                layer.output_elements,
                layer.weights,
                layer.sequential_steps,
                layer.scratch_elements,
                layer.loaded_elements,
                layer.channels,
                layer.fused_pairs,
                layer.experts if layer.kind == "linear" else 0,
                layer.head_size,
                in_place=index in in_place,
            )
            for index, (layer, read) in enumerate(zip(self.layers, self.input_elements(), strict=True))
        )

    def blocks_of(self, layers: Iterable[int]) -> set[int]:
        """The blocks that some layers belong to."""
        return {self.layers[layer].block for layer in layers} - {0}

    def cut_elements(self, outputs: Floats | None = None) -> Floats:
        """Elements per sample that cross each cut: entry i is between layers[:i] and layers[i:].

        outputs: what counts of each layer's output, (layers,); by default all of it
        Shape (layers + 1,). A producer counts once if any consumer lies beyond the cut, whatever their
        number; it crosses every cut up to its last consumer. Entries 0 and -1 are 0. Time O(layers + edges).
        Sums are exact before their last rounding: no residue of a running difference where nothing crosses.
        """
        last_consumer = [0] * len(self.layers)
        for producer, consumer in self.edges:
            last_consumer[producer] = max(last_consumer[producer], consumer)
        change = [Fraction(0)] * (len(self.layers) + 1)
        counted = [layer.output_elements for layer in self.layers] if outputs is None else outputs.tolist()
        for producer, last in enumerate(last_consumer):
            if last > producer:
                elements = Fraction(counted[producer])
                change[producer + 1] += elements
                change[last + 1] -= elements
        return np.array([float(total) for total in accumulate(change)], dtype=np.float64)


def _check_workload(workload: Workload) -> None:
    """Raise ValueError, in one line, for the first violated rule of a workload."""
    where = f"workload {workload.name!r}"
    if not workload.name:
        raise ValueError("workload: name must not be empty")
    if not workload.layers:
        raise ValueError(f"{where}: at least one layer is needed, got none")
    check_whole(f"{where}: minibatch", workload.minibatch, 1, MOST_PARAMETERS)
    check_whole(f"{where}: tokens", workload.tokens, 0, MOST_PARAMETERS)
    if workload.bytes_per_element is not None:
        check_whole(f"{where}: bytes_per_element", workload.bytes_per_element, 1, MOST_PARAMETERS)
    name, times = Counter(layer.name for layer in workload.layers).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{where}: layer names must be unique, got {name!r} {times} times")
    for layer in workload.layers:
        with blaming(ValueError, f"{where}: layer {layer.name!r}"):
            _check_layer(layer)
    if workload.parameters() > MOST_PARAMETERS:
        raise ValueError(f"{where}: parameters must be at most 2^63 - 1, got {workload.parameters()}")
    _check_tied(where, workload)
    _check_blocks(where, workload)
    _check_edges(where, workload)


def _check_tied(where: str, workload: Workload) -> None:
    before: dict[str, Layer] = {}
    elements: dict[str, int] = {}
    for layer in workload.layers:
        if layer.tied_to:
            owner = before.get(layer.tied_to)
            what = f"{where}: layer {layer.name!r}"
            if owner is None:
                raise ValueError(
                    f"{what}: tied_to must name an earlier layer that owns the weight, got {layer.tied_to!r}"
                )
            most = elements.setdefault(owner.name, layer.tied_parameters)
            if not 0 < layer.tied_parameters <= owner.parameters or layer.tied_parameters != most:
                raise ValueError(
                    f"{what}: tied_parameters must be from 1 to the {owner.parameters} of {owner.name!r} and the same "
                    f"in all layers tied to it, got {layer.tied_parameters}"
                )
        before[layer.name] = layer


def _check_blocks(where: str, workload: Workload) -> None:
    before, last = 0, 0
    for layer in workload.layers:
        if layer.block and layer.block != before and layer.block <= last:
            raise ValueError(
                f"{where}: layer {layer.name!r}: layers of a block stand together, blocks by rising numbers, got block "
                f"{layer.block} after {last}"
            )
        before, last = layer.block, max(last, layer.block)


_WORDS = {"split": get_args(Split), "part": get_args(Part)}


def _check_layer(layer: Layer) -> None:
    """Raise ValueError, without the layer's name, for the first violated rule of a layer."""
    if not layer.name:
        raise ValueError("name must not be empty")
    if layer.kind not in LAYER_KINDS:
        raise ValueError(f"kind must be one of {', '.join(LAYER_KINDS)}, got {layer.kind!r}")
    check_numbers("", layer)
    for word, choices in _WORDS.items():
        if (given := getattr(layer, word)) not in choices:
            raise ValueError(f"{word} must be one of {', '.join(map(repr, choices))}, got {given!r}")
    if layer.undivided > layer.parameters:
        raise ValueError(f"undivided is a part of its {layer.parameters} parameters, got {layer.undivided}")
    if layer.query_heads and (not layer.heads or layer.query_heads % layer.heads):
        raise ValueError(f"query_heads must be a multiple of heads, {layer.heads}, got {layer.query_heads}")
    if layer.tied_parameters and not layer.tied_to:
        raise ValueError(f"tied_parameters go with tied_to, got {layer.tied_parameters} without")
    for channels in layer.channels:
        check_whole("channels", channels, 0, MOST_PARAMETERS)
    before = 0.0
    for row in layer.measured:
        if len(row) != 3:
            raise ValueError(f"a measured row is (samples, forward s, backward s), got {row!r}")
        samples, forward, backward = row
        check_real("measured samples", samples)
        check_real("measured forward seconds", forward)
        check_real("measured backward seconds", backward)
        if samples <= before:
            raise ValueError(f"measured samples must be positive and rise, got {samples:g} after {before:g}")
        before = samples


def _check_edges(where: str, workload: Workload) -> None:
    count = len(workload.layers)
    seen: set[tuple[int, int]] = set()
    for edge in workload.edges:
        producer, consumer = edge
        if not (0 <= producer < count and 0 <= consumer < count):
            raise ValueError(f"{where}: edge indices must be from 0 to {count - 1}, got {edge}")
        if producer >= consumer:
            raise ValueError(
                f"{where}: layers must be in topological order (producer before consumer), got edge {edge}"
            )
        if edge in seen:
            raise ValueError(f"{where}: edges must be unique, got {edge} twice")
        seen.add(edge)
