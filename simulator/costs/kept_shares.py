"""Kept shares: which part of what a block puts out a recompute policy keeps, and so does not run again."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hardware_profiles import PRODUCTS, Flags, Floats, Precision
from simulator.options.training_options import Recompute
from simulator.workloads.layers import Workload


def products_of(workload: Workload) -> Flags:
    """Which layers are products of weights, bool [layers]."""
    return np.array([layer.kind in PRODUCTS and layer.has_weight_gradient for layer in workload.layers])


def kept_shares(workload: Workload, precision: Precision, recompute: Recompute) -> Floats:
    """Share of each layer's output that a policy keeps where it runs the layer's block again, float64 [layers].

    Of every second product, as torchtitan counts them in each block (`distributed/activation_checkpoint.py`, b5bcd76c): it keeps
    attention, and the first product, the third, and so on. Those of 8 bits, which are no `mm`, are all kept; those of experts,
    which are grouped, and their router are not, and do not count.
    """
    kept = np.zeros(len(workload.layers))
    if recompute == "between-products":
        kept[products_of(workload)] = 1.0
    elif recompute == "every-second-product":
        kept[[layer.kind == "attention" for layer in workload.layers]] = 1.0
        parts, counts = _parts_of_products(workload), Counter[int]()
        for number, shares in parts.items():
            for share in shares:
                counts[block := workload.layers[number].block] += 1
                kept[number] += share * (precision == "fp8" or counts[block] % 2)
    return kept


def _parts_of_products(workload: Workload) -> dict[int, tuple[float, ...]]:
    """Of each layer of weights but experts and their routers the parts of its output that are a product each: queries, keys and
    values; a gate and what it multiplies.
    """
    layers, readers = workload.layers, dict[int, list[int]]()
    for producer, consumer in workload.edges:
        readers.setdefault(producer, []).append(consumer)
    found = dict[int, tuple[float, ...]]()
    for number in np.flatnonzero(products_of(workload)).tolist():
        layer, near = layers[number], readers.get(number, [])
        if layer.experts or any(layers[far].experts for one in near for far in readers.get(one, [])):
            continue
        half = layer.key_values / layer.output_elements / 2.0
        acted = [layers[one].output_elements for one in near if layers[one].kind == "activation"]
        gated = any(2.0 * elements == layer.output_elements for elements in acted)
        found[number] = (1.0 - 2.0 * half, half, half) if half else (0.5, 0.5) if gated else (1.0,)
    return found
