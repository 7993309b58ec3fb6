"""Stashes: what the layers of a stage keep from forward to backward, and what recomputation makes of it again.

Layers that run forward again do so part by part, from the last to the first, and each part's gradients follow at once: a backward
holds one part at a time (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 5).
A part is an attention layer, a block (all of it, or what lies between its products), or all of the stage. An input gradient
leaves of each part what its weight gradient needs. What the stage's loss keeps is gone before the first part is made, but where
the parts have an op of their own: of a part only what it takes beyond that counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hardware_profiles import LAYER_KINDS, Floats, Integers
from simulator.costs.layer_costs import LayerCosts
from simulator.options.training_options import BY_BLOCK, Recompute


class StageStash(NamedTuple):
    """Activation memory of one sample on a stage, in whole bytes (or in a unit of its own).

    kept: from the start of its forward
    made, made_for_input: most of what is made again that is there at once while its backward, or its input gradient, runs, beyond
        what its loss keeps
    kept_longer, made_longer: parts of what is kept, and made again, that its weight gradient needs
    """

    kept: float
    made: float
    made_for_input: float
    kept_longer: float
    made_longer: float


def stage_stash(
    costs: LayerCosts,
    layers: Sequence[int],
    recompute: Recompute,
    received: float = 0.0,
    blocks: int = 0,
    *,
    at_once: bool = False,
) -> StageStash:
    """The stash of a stage with some layers under a recompute policy.

    received: bytes of the stage's input, which is all that it keeps where all of it runs again
    blocks: how many of its first blocks run again; 0 for all of them
    at_once: the parts run again in an op of their own, and wait together for their gradients
    """
    held = np.array(layers, dtype=np.int64)
    number = costs.parts_again(recompute, layers, blocks)
    again = costs.made_bytes(recompute)[held] * (number > 0)
    longer = costs.weight_stashed_bytes[held]
    inside = (number > 0) & (recompute != "attention")  # what attention makes again no weight gradient needs
    parts = np.flatnonzero(np.bincount(number[number > 0]))
    made, left = (
        np.ceil(np.bincount(number, weights=one, minlength=1)[parts]) for one in (again, np.where(inside, longer, 0.0))
    )
    if recompute == "whole":
        kept = received
    else:
        kept = float((costs.stashed_bytes[held] - again).sum())
        if recompute in BY_BLOCK:
            own = np.zeros(len(costs.works), dtype=np.int64)
            own[held] = number
            kept += float(read_from_outside(costs, own).sum())
        if recompute in BY_BLOCK:
            kept += float((costs.products_bytes(recompute)[held] * (number > 0)).sum())
    total, gone = float(made.sum()), float(np.floor(costs.loss_bytes[held[number == 0]].sum()))
    most = total if at_once else max(0.0, float(made.max(initial=0.0)) - gone)
    behind = np.cumsum(left[::-1])[::-1] - left
    for_input = total if at_once else max(0.0, float((made + behind).max(initial=0.0)) - gone)
    return StageStash(float(np.ceil(kept)), most, for_input, float(np.ceil(longer[~inside].sum())), float(left.sum()))


def read_from_outside(costs: LayerCosts, part: Integers) -> Floats:
    """Bytes per sample of the tensors that each layer is the first in its part to read from outside of the part, float64
    [layers].

    part: of each layer, int64 [layers]; 0 for layers of none
    """
    edges = np.array(costs.problem.workload.edges, dtype=np.int64).reshape(-1, 2)
    producer, consumer = edges[np.argsort(edges[:, 1], kind="stable")].T
    across = (part[consumer] > 0) & (part[producer] != part[consumer])
    producer, consumer = producer[across], consumer[across]
    _, first = np.unique(producer * (1 + part.max(initial=0)) + part[consumer], return_index=True)
    sizes = costs.output_bytes[producer[first]]
    return np.bincount(consumer[first], weights=sizes, minlength=len(part)).astype(np.float64)


def gradient_in_work(costs: LayerCosts, layers: Sequence[int], recompute: Recompute = "none", blocks: int = 0) -> float:
    """Whole bytes of temporary weight gradients that a stage holds beside the accumulated ones, and of the stack's workspace.

    recompute, blocks: as in `stage_stash`

    No gradients where they add up in numbers as wide as their own: a product adds its gradient to what is there. Where they add
    up in wider ones, as in Megatron-LM's `main_grad`, Transformer Engine (from 2.3 on, `get_dummy_wgrad`) keeps a tensor of each
    shape of a product's weights to stand for the gradient that its layer returns; of a layer of experts one expert's.
    What the stage's loss keeps of a sample is gone before the first of them is there: only what they and what is made again take
    beyond it counts.
    """
    wider = costs.problem.accumulated_bytes > costs.problem.element_bytes
    shapes = {shape for number in layers if (shape := _product_in_work(costs, number))} if wider else set()
    problem, held = costs.problem, np.array(layers, dtype=np.int64)
    number = costs.parts_again(recompute, held, blocks)
    made = np.bincount(number, weights=costs.made_bytes(recompute)[held])[1:].max(initial=0.0)
    gone = max(0.0, costs.loss_bytes[held[number == 0]].sum() - made)
    gradients = max(0.0, sum(elements for elements, *_ in shapes) * problem.element_bytes - gone)
    return float(np.ceil(gradients + problem.workspace_bytes))


@lru_cache(maxsize=1)
def gradients_in_work(costs: LayerCosts, recompute: Recompute) -> Floats:
    """`gradient_in_work` of stages of layers i to j - 1, float64 [layers + 1, layers + 1]."""
    shapes = [_product_in_work(costs, number) for number in range(len(costs.works))]
    sizes = np.zeros((len(shapes) + 1, len(shapes) + 1))
    last = dict[tuple[float, float, float], int]()
    for number, shape in enumerate(shapes):
        if shape is not None:  # it counts once in a stage: for the first layer that has it
            sizes[last.get(shape, -1) + 1 : number + 1, number + 1] = shape[0]
            last[shape] = number
    gone = np.maximum(_losses(costs, recompute) - _parts_made(costs, recompute), 0.0)
    gradients = np.cumsum(sizes, axis=1) * costs.problem.element_bytes - gone
    return np.asarray(np.ceil(np.maximum(gradients, 0.0) + costs.problem.workspace_bytes))


def _product_in_work(costs: LayerCosts, number: int) -> tuple[float, float, float] | None:
    """Elements, inputs and outputs of the product of a layer whose gradient has a tensor of its own until it is added up."""
    problem, work = costs.problem, costs.works[number]
    if problem.accumulated_bytes <= problem.element_bytes or work.kind != "linear":
        return None
    held = max(1, problem.workload.layers[number].experts // costs.member.parallel.expert)
    return work.parameters / held, work.input_elements, work.output_elements


class KeptByPart(NamedTuple):
    """A sample's stashed activations on a stage, bytes by part of `ACTIVATION_PARTS`: of `StageStash.kept`, before that is
    rounded up to a whole byte, and of `kept_longer`.
    """

    kept: Mapping[str, float]
    longer: Mapping[str, float]


INPUTS, SCORES = "recomputation inputs", "attention scores"

ACTIVATION_PARTS = tuple(
    dict.fromkeys((INPUTS, "embedding", "norms", "attention", SCORES, "MLP", "experts", "output head", *LAYER_KINDS))
)
"""What activations are told by, in the order in which they are shown. Of layers that run again what they start from; of a
transformer its parts, as Korthikanti et al. 2022 count them (section 4.1), what is kept of the scores of attention apart from
the rest of it; of other networks the kinds of their layers."""


def kept_by_part(
    costs: LayerCosts, layers: Sequence[int], recompute: Recompute, received: float = 0.0, blocks: int = 0
) -> KeptByPart:
    """The stash of a stage by part of the layers; arguments as in `stage_stash`."""
    if recompute == "whole":
        return KeptByPart({INPUTS: received}, {})
    number = np.zeros(len(costs.works), dtype=np.int64)
    number[list(layers)] = costs.parts_again(recompute, layers, blocks)
    again, scores = costs.made_bytes(recompute) * (number > 0), costs.made_bytes("attention")
    left = np.maximum(scores - again, 0.0)
    inside = (number > 0) & (recompute != "attention")
    longer = np.where(inside, 0.0, costs.weight_stashed_bytes)
    beside = costs.products_bytes(recompute) * (number > 0)
    kept = dict.fromkeys(ACTIVATION_PARTS, 0.0)
    kept_longer = kept.copy()
    for one in layers:
        layer = costs.problem.workload.layers[one]
        part = layer.part or layer.kind
        kept[part] += float(costs.stashed_bytes[one] - again[one] - left[one] + beside[one])
        kept[SCORES] += float(left[one])
        kept_longer[part] += float(longer[one])
    if recompute in BY_BLOCK:
        kept[INPUTS] += float(read_from_outside(costs, number).sum())
    return KeptByPart(kept, kept_longer)


def kept_bytes(costs: LayerCosts, recompute: Recompute) -> Floats:
    """Bytes per sample that each layer adds to its stage's stash, float64 [layers], beside `entering_bytes`."""
    kept = costs.stashed_bytes - costs.made_bytes(recompute)
    kept = kept + costs.products_bytes(recompute)
    return kept + read_from_outside(costs, costs.parts(recompute)) if recompute in BY_BLOCK else kept


@lru_cache(maxsize=1)
def entering_bytes(costs: LayerCosts, recompute: Recompute) -> Floats:
    """Bytes per sample that a stage of layers i to j - 1 keeps of what it receives, float64 [layers + 1, layers + 1]: its input
    where all of it runs again; where it begins within a block that does, what it reads of the block's other layers.
    """
    part = costs.parts(recompute)
    entering = np.zeros((len(part) + 1, len(part) + 1))
    if recompute == "whole":
        return entering + costs.cut_bytes[:, None]
    before = dict[tuple[int, int], int]()  # the last reader in a part of each layer's output, or the layer
    for producer, consumer in sorted(costs.problem.workload.edges) if recompute in BY_BLOCK else ():
        if own := int(part[consumer]):
            inside = producer if part[producer] == own else consumer  # whose first reader `kept_bytes` counts, else
            first = before.get((producer, own), inside) + 1
            entering[first : consumer + 1, consumer + 1 :] += costs.output_bytes[producer]
            before[producer, own] = consumer
    return entering


def largest_parts(costs: LayerCosts, recompute: Recompute) -> Floats:
    """Bytes per sample of the largest part that a stage of layers i to j - 1 recomputes at once, beyond what its loss keeps,
    float64 [layers + 1, layers + 1].
    """
    return np.maximum(_parts_made(costs, recompute) - _losses(costs, recompute), 0.0)


def _losses(costs: LayerCosts, recompute: Recompute) -> Floats:
    """Bytes per sample that losses of layers i to j - 1 keep which do not run again, float64 [layers + 1, layers + 1]."""
    before = np.append(0.0, np.cumsum(np.where(costs.parts(recompute) == 0, costs.loss_bytes, 0.0)))
    return np.asarray(before - before[:, None])


@lru_cache(maxsize=1)
def _parts_made(costs: LayerCosts, recompute: Recompute) -> Floats:
    """Bytes per sample of the largest part that layers i to j - 1 make again, float64 [layers + 1, layers + 1]."""
    number, made = costs.parts(recompute), costs.made_bytes(recompute)
    layers = len(number)
    found = np.zeros((layers + 1, layers + 1))
    if not made.any():
        return found
    current = np.zeros(layers + 1)  # of the part of the layer before j, by i
    for layer in range(layers):
        if not layer or number[layer] != number[layer - 1]:
            current[:] = 0.0
        current[: layer + 1] += made[layer]
        found[: layer + 1, layer + 1] = np.maximum(found[: layer + 1, layer], current[: layer + 1])
    return found
