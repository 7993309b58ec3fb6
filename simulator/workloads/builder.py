"""Builder: adds the layers of a network one by one and works out what autograd saves.

The rule for `stashed_elements` and `stashed_bytes`. Autograd keeps, per operator:
- convolution, linear, normalization, attention, recurrent layer, pooling: their inputs
- GELU, SwiGLU and other activations out of place: their inputs; ReLU in place: its output, which is the input
  that the next layer keeps anyhow, so it adds nothing
- dropout: its mask (a byte per element); max pooling: its indices (int64)
- cross-entropy: the log-probabilities (fp32)
- add, concatenate, view, embedding lookup: nothing (token ids are neglected)
A tensor that several layers keep is stored once and counted at the first of them; a view and an in-place
result share the storage of what they were made from. So the sum over the layers of a stage is what the stage
keeps for one sample, its received input INCLUDED when its first layer needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.workloads.layers import Layer, Part, Workload

MASK, INDEX, FP32 = 1.0, 8.0, 4.0
"""Bytes per element of a dropout mask, of the indices of max pooling, and of numbers that stay in fp32."""

KEEP_INPUTS = ("convolution", "linear", "recurrent", "normalization", "pooling", "attention")
"""Kinds of layer whose inputs autograd keeps for the backward; of activations only those out of place."""


class Builder:
    """Builds one network; a tensor is identified by the integer that `source` or `add` returned for it.

    - `source(elements)` names a tensor that no layer makes (an image): it can be kept, it makes no edge
    - `add(...)` appends a layer after its producers and returns its index
    - `block` is the number of the block that layers are added to, 0 for none; `part` is the part, where a layer says none
    - `build(...)` closes the graph
    """

    def __init__(self) -> None:
        self.block = 0
        self.part: Part = ""
        self._layers: list[Layer] = []
        self._edges: list[tuple[int, int]] = []
        self._storage: dict[int, int] = {}
        self._elements: dict[int, float] = {}
        self._kept: set[int] = set()
        self._sources = 0

    def source(self, elements: float) -> int:
        """A tensor of `elements` elements per sample that comes from outside the graph."""
        self._sources += 1
        handle = -self._sources
        self._storage[handle] = handle
        self._elements[handle] = elements
        return handle

    def add(
        self, layer: Layer, inputs: Sequence[int] = (), *, in_place: bool = False, keeps_inputs: bool = False
    ) -> int:
        """Append a layer, which reads the tensors `inputs`, and return its index.

        layer: its `stashed_elements` and `stashed_bytes` are what it keeps beside its inputs
        in_place: the output lives in the storage of the first input (in-place operator or view)
        keeps_inputs: autograd keeps those tensors; kinds of `KEEP_INPUTS` always do
        """
        index = len(self._layers)
        self._storage[index] = self._storage[inputs[0]] if in_place and inputs else index
        self._elements[index] = layer.output_elements
        stashed = layer.stashed_elements
        for tensor in inputs if keeps_inputs or layer.kind in KEEP_INPUTS else ():
            storage = self._storage[tensor]
            if storage not in self._kept:
                self._kept.add(storage)
                stashed += self._elements[tensor]
        loaded = sum(self._elements[tensor] for tensor in inputs if tensor < 0)
        part = layer.part or self.part
        layer = replace(layer, stashed_elements=stashed, loaded_elements=loaded, block=self.block, part=part)
        self._layers.append(layer)
        self._edges.extend((producer, index) for producer in sorted(set(inputs)) if producer >= 0)
        return index

    def output_elements(self, tensor: int) -> float:
        """Elements per sample of a tensor made so far."""
        return self._elements[tensor]

    def build(
        self, name: str, *, sample: str, minibatch: int, bytes_per_element: int | None = None, tokens: int = 0
    ) -> Workload:
        """The finished, checked workload."""
        layers, edges = tuple(self._layers), tuple(sorted(self._edges))
        return Workload(name, layers, edges, sample, minibatch, bytes_per_element, tokens=tokens)
