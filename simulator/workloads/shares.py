"""Shares: the part of a layer that one member of a tensor-parallel group computes and keeps.

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

Where a group has more devices than a layer has key-value heads, each device has one of them whole, with its weights, as others
have: keys and values are divided by the heads and all else by t. (The sum of these weights' gradients over the devices that
have the same head takes no time here.)
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from hardware_profiles import Integers, Work
from simulator.workloads.layers import Layer, Split, Workload

KEPT_NETWORKS = 64
"""Networks whose unlike layers are kept, the ones that were asked about last."""

_OVER: dict[Split, tuple[str, str]] = {
    "": ("whole", "whole"),
    "columns": ("tokens", "features"),
    "rows": ("features", "tokens"),
    "heads": ("features", "features"),
    "features": ("features", "features"),
    "tokens": ("tokens", "tokens"),
    "vocabulary": ("tokens", "tokens"),
}
"""Split of a layer -> the dimensions over which its input and its output are divided."""

_DIVIDED_WEIGHTS = ("columns", "rows", "vocabulary")

_SUMMED = ("rows", "vocabulary")
"""Splits in which each member makes a whole output, a term of the sum."""


class Parallelism(NamedTuple):
    """Degrees of tensor, context and expert parallelism: devices that divide layers, tokens of a sample, and routed experts."""

    tensor: int = 1
    context: int = 1
    expert: int = 1


class Share(NamedTuple):
    """A member's share of a layer; elements are per sample.

    work: what it computes
    parameters, tied_parameters: weight elements, as of a `Layer`
    stashed, stashed_bytes: elements, and bytes beside them, that it keeps from forward to backward
    input, output: elements of these that it keeps; all of them where every member has the whole tensor
    reduced: elements of the tensor that the group reduces or gathers
    forward, backward: all-reduces of that tensor in a forward, and in an input gradient: 0, 1, or a half
    """

    work: Work
    parameters: float
    tied_parameters: float
    stashed: float
    stashed_bytes: float
    input: float
    output: float
    reduced: float
    forward: float
    backward: float


def divides_heads(layer: Layer, degree: int) -> bool:
    """Whether a group divides heads evenly: equally many query heads per device, and whole key-value heads or a copy of one."""
    return layer.heads % degree == 0 or (degree % layer.heads == 0 == max(layer.heads, layer.query_heads) % degree)


_READ = attrgetter(*({one.name for one in fields(Layer)} - {"name", "tied_to", "block"}))
"""What decides a layer's share and seconds."""


@lru_cache(maxsize=KEPT_NETWORKS)
def unlike_layers(workload: Workload) -> tuple[tuple[tuple[Layer, Work], ...], Integers]:
    """The layers of a network that differ in what decides shares and seconds, the first of each kind with its work; and the
    place of every layer's kind among them, int64 [layers], which may not be written.
    """
    found: dict[tuple[Any, ...], int] = {}
    works = workload.works()
    place = [
        found.setdefault((_READ(layer), work), len(found)) for layer, work in zip(workload.layers, works, strict=True)
    ]
    places = np.array(place, dtype=np.int64)
    places.setflags(write=False)
    firsts = np.unique(places, return_index=True)[1].tolist()
    return tuple((workload.layers[one], works[one]) for one in firsts), places


def share_of(layer: Layer, work: Work, degree: int, *, expert: int = 1, sequence_parallel: bool = False) -> Share:
    """A member's share of a layer in a group of `degree` devices; expert: among how many of these its experts are divided.

    work: of the whole layer. Elements that it stashes are of its inputs, where these are divided in another way than its output
    """
    divisor = {"whole": 1, "tokens": degree if sequence_parallel else 1, "features": degree}
    over_input, over_output = _OVER[layer.split]
    before, after = divisor[over_input], divisor[over_output]
    summed, columns, weighted = (layer.split in some for some in (_SUMMED, ("columns",), _DIVIDED_WEIGHTS))
    inside = after if over_input == over_output else degree
    more = layer.key_values * (1 / min(degree, layer.heads) - 1 / degree) if layer.key_values else 0.0
    made = 0.0 if layer.split == "heads" else more  # attention makes features of queries
    read = 0.0 if columns else more
    projected = more / layer.output_elements if columns and more else 0.0
    whole = layer.undivided if weighted else layer.parameters
    divided = layer.parameters - whole
    parameters = (whole + divided / degree + divided * projected) / (expert if layer.experts else 1)
    tied = layer.tied_parameters / (degree if weighted else 1)
    reduces = degree > 1 and (summed or columns)
    half = 0.5 if sequence_parallel else 0.0
    return Share(
        work=replace(
            work,
            flop=work.flop / inside + work.flop * projected,
            input_elements=work.input_elements / (1 if columns else before) + read,
            output_elements=work.output_elements / (1 if summed else after) + made,
            parameters=parameters + tied,
            scratch_elements=work.scratch_elements / inside,
        ),
        parameters=parameters,
        tied_parameters=tied,
        stashed=layer.stashed_elements / before + (read if layer.stashed_elements else 0.0),
        stashed_bytes=layer.stashed_bytes / after,
        input=work.input_elements / before + read,
        output=layer.output_elements / after + made,
        reduced=(work.output_elements if summed else work.input_elements) if reduces else 0.0,
        forward=(half or float(summed)) if reduces else 0.0,
        backward=(half or float(columns)) if reduces else 0.0,
    )
