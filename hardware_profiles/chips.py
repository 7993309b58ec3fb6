"""Chips: kinds of accelerators, and the shares of their peaks that layers reach on one of which nothing but its peaks is known.

A kind's rates of products and of memory rise with the peaks, between measured devices and beyond them, and what a call takes
beside never does: more of anything is never slower. A spread, the mean error of a chip that they did not see, stands with them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log
from types import MappingProxyType
from typing import Literal

from hardware_profiles.accelerator import PRECISION_BYTES
from hardware_profiles.gpu import FUSED_ATTENTION, VECTOR_PRECISION, GraphicsProcessor, KindEfficiency

Chip = Literal["tensor-core", "systolic", "vector", "array"]


@dataclass(frozen=True, slots=True)
class ChipKind:
    """A kind of chip.

    summary: what it is, with examples
    spread: mean error of predicted seconds of chips whose runs no share saw, as a part of what was measured
    shares: of the peak that `products` reach, of the bandwidth (`memory`), and of the peak in kinds of layer that have another
        one; None: between those of measured devices
    hosted: whether a host launches each kernel, as of those devices, and programs are not compiled whole
    source: where the shares come from
    word: what figures call one such device that is no GPU
    """

    summary: str
    spread: float
    shares: Mapping[str, float] | None
    hosted: bool
    source: str
    word: str


CHIPS: Mapping[str, ChipKind] = MappingProxyType(
    {
        "tensor-core": ChipKind(
            "many processors, each with matrix units, to which a host sends kernels: GPUs",
            0.25,
            None,
            True,
            "kernels of V100, A100, B200; spread: products of H100 and GB200 reach 0.76 and 0.65 where these say 0.61 and 0.49",
            "NPU",
        ),
        "systolic": ChipKind(
            "few large systolic arrays, programs compiled whole: TPUs",
            0.09,
            {"products": 0.84, "fused_attention": 0.35, "attention": 0.42, "memory": 0.75},
            False,
            "least mean error of 20 runs on TPU v4, v5p and v6e, one slice; each chip left out in turn: 5.0, 10.2, 11.8 %",
            "TPU",
        ),
        "array": ChipKind(
            "a matrix engine beside vector cores, programs compiled whole: Trainium, Gaudi",
            0.20,
            {"products": 0.58, "fused_attention": 0.35, "attention": 0.28, "memory": 0.57},
            False,
            "products: least mean error of 20 runs on Trainium; memory and attention assumed",
            "NPU",
        ),
        "vector": ChipKind(
            "vector units alone: A64FX and other processors",
            0.25,
            {"products": 0.15, "fused_attention": 0.075, "attention": 0.15, "memory": 0.57},
            False,
            "products: least mean error of eight runs on A64FX in fp32, 26 %; memory assumed",
            "processor",
        ),
    }
)
"""Every kind of chip; the first one is the default."""

NAMED: Mapping[str, Chip] = MappingProxyType(
    {"tpu": "systolic", "trn": "array", "trainium": "array", "inferentia": "array", "gaudi": "array", "a64fx": "vector"}
)
"""Prefix of a chip's name -> its kind."""

ACCUMULATED_EXPERTS = 4.0
"""How often gradients of experts move the bytes of their weights, added up in fp32: 8 bytes read and written for 2. Counted."""


def chip_of(device: GraphicsProcessor) -> Chip:
    """The kind of a chip whose file names none: by its name, else `vector` if it has only vector units, else `tensor-core`."""
    named = (chip for word, chip in NAMED.items() if device.name.lower().startswith(word))
    return next(named, "vector" if device.precisions == (VECTOR_PRECISION,) else "tensor-core")


def inherited(device: GraphicsProcessor, chip: Chip, measured: Sequence[GraphicsProcessor]) -> GraphicsProcessor:
    """A device with the shares and overheads of a kind of chip.

    device: its peaks and its bandwidth; measured: devices of tensor cores with shares of their own, by rising peaks
    """
    kind, middle = CHIPS[chip], measured[len(measured) // 2]
    shares = {
        precision: {name: _share(name, kind, measured, device, precision) for name in middle.efficiencies}
        for precision in device.peak_flops
    }
    return replace(
        middle,
        efficiencies=next(iter(shares.values())),
        efficiencies_in=shares,
        launch_overhead=middle.launch_overhead if kind.hosted else 0.0,
        pass_overhead=middle.pass_overhead if kind.hosted else 0.0,
        chip=chip,
        spread=kind.spread,
        generation="",
    )


def _share(
    name: str, kind: ChipKind, measured: Sequence[GraphicsProcessor], device: GraphicsProcessor, precision: str
) -> KindEfficiency:
    """Shares that a kind of layer reaches on a device in a precision."""
    own = replace(measured[len(measured) // 2].efficiencies[name], accumulated_experts=ACCUMULATED_EXPERTS)
    if kind.shares is None:
        return _between_measured(name, own, measured, device, precision)
    reached = kind.shares.get(name) or kind.shares["products" if own.matrix < 1.0 else "memory"]
    if own.matrix == 1.0:  # nothing is multiplied
        return replace(own, memory=reached)
    backward = reached * _backward_over_forward(own) if name == FUSED_ATTENTION else reached
    vector = min(1.0, reached)
    return replace(
        own, forward=vector, backward=vector, matrix=vector, matrix_backward=backward, memory=kind.shares["memory"]
    )


def _between_measured(
    name: str, own: KindEfficiency, measured: Sequence[GraphicsProcessor], device: GraphicsProcessor, precision: str
) -> KindEfficiency:
    """Shares interpolated between those of measured devices; the overhead of a call never rises with the peak."""
    bandwidths = [one.memory_bandwidth for one in measured]
    shares = [one.efficiencies[name] for one in measured]
    own = replace(own, memory=_between(bandwidths, [one.memory for one in shares], device.memory_bandwidth))
    if precision == VECTOR_PRECISION:
        return own
    peaks = [max(one.peak_flops.get(word, 0.0) for word in ("fp16", "bf16")) for one in measured]
    peak = device.peak_flops[precision] * PRECISION_BYTES[precision] / 2.0  # of products in 16 bits
    matrix = _between(peaks, [one.matrix for one in shares], peak)
    begin = list(accumulate((one.saturation_seconds / one.matrix for one in shares), min))
    saturation = matrix * _between(peaks, begin, peak) if begin[-1] else 0.0
    backward = min(1.0, matrix * _backward_over_forward(own))
    return replace(own, matrix=matrix, matrix_backward=backward, saturation_seconds=saturation)


def _backward_over_forward(share: KindEfficiency) -> float:
    return (share.matrix_backward or share.matrix) / share.matrix


def _between(knots: Sequence[float], values: Sequence[float], at: float) -> float:
    """Interpolate between two knots, linearly in logarithms; beyond the outermost knots their own value."""
    above = bisect_right(knots, at)
    if not 0 < above < len(knots):
        return values[min(above, len(knots) - 1)]
    part = log(at / knots[above - 1]) / log(knots[above] / knots[above - 1])
    return float(values[above - 1] * (values[above] / values[above - 1]) ** part)
