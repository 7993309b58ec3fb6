"""Shares: what one member of a tensor-parallel group does and keeps of a layer.

A group of t devices divides a layer as `Layer.split` says (Shoeybi et al. 2019, "Megatron-LM"; Korthikanti et al. 2022,
"Reducing Activation Recomputation in Large Transformer Models", sections 4.2 and 4.3):

    split       input -> output        weights      after forward        after backward
    ""          whole -> whole         whole
    columns     tokens -> features     / t                               all-reduce of the input's gradient
    rows        features -> tokens     / t          all-reduce of output
    heads       features -> features
    features    features -> features
    tokens      tokens -> tokens       whole
    vocabulary  tokens -> tokens       / t          all-reduce of output

Tensors over features are divided by t. Those over tokens are whole on every member; with sequence parallelism they are
divided by t, too, and an all-reduce is an all-gather in one pass and a reduce-scatter in the other, each half of it: of
columns before and after, of rows and vocabulary after and before. (The input that columns gather again for their weight
gradient comes while the input gradient is computed, section 4.2.2: it takes no time here.)
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.workloads.layers import Layer, Split

_OVER: dict[Split, tuple[str, str]] = {
    "": ("whole", "whole"),
    "columns": ("tokens", "features"),
    "rows": ("features", "tokens"),
    "heads": ("features", "features"),
    "features": ("features", "features"),
    "tokens": ("tokens", "tokens"),
    "vocabulary": ("tokens", "tokens"),
}
"""What the input, and the output, of a layer are divided over."""

_DIVIDED_WEIGHTS = ("columns", "rows", "vocabulary")

_SUMMED = ("rows", "vocabulary")
"""Each member makes a whole output, which is a part of the sum."""


class Share(NamedTuple):
    """A member's share of a layer.

    flop, read, output, parameters, tied_parameters: what it computes, as of a `Layer`; read: elements of its input
    stashed: elements a sample that it keeps
    whole_output: every member has all of its output
    reduced: elements a sample of the tensor that the group reduces or gathers
    forward, backward: all-reduces of that tensor in a forward, and in an input gradient: 0, 1, or a half
    """

    flop: float
    read: float
    output: float
    parameters: float
    tied_parameters: float
    stashed: float
    whole_output: bool
    reduced: float
    forward: float
    backward: float


def share_of(layer: Layer, read: float, degree: int, *, sequence_parallel: bool = False) -> Share:
    """A member's share of a layer in a group of `degree` devices.

    read: elements a sample of the layer's inputs. Of what it stashes its inputs come first
    """
    divisor = {"whole": 1, "tokens": degree if sequence_parallel else 1, "features": degree}
    over_input, over_output = _OVER[layer.split]
    before, after = divisor[over_input], divisor[over_output]
    summed, columns = layer.split in _SUMMED, layer.split == "columns"
    kept = min(layer.stashed_elements, read)
    several = degree > 1
    half = 0.5 if sequence_parallel else 0.0
    whole = layer.undivided if layer.split in _DIVIDED_WEIGHTS else layer.parameters
    return Share(
        flop=layer.flop / (after if over_input == over_output else degree),
        read=read / (1 if columns else before),
        output=layer.output_elements / (1 if summed else after),
        parameters=whole + (layer.parameters - whole) / degree,
        tied_parameters=layer.tied_parameters / (degree if layer.split in _DIVIDED_WEIGHTS else 1),
        stashed=kept / before + (layer.stashed_elements - kept) / after,
        whole_output=after == 1,
        reduced=(layer.output_elements if summed else read) * (several and (summed or columns)),
        forward=several * (summed or columns) * (half or float(summed)),
        backward=several * (summed or columns) * (half or float(columns)),
    )
