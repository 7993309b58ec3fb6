"""Pass timing: how a layer's forward and backward are timed, and what is said of many of them; knows no framework.

A pass is a function that starts work on a device; `synchronize` returns when the work is done. The clock stands while inputs are
made ready, and runs until the device is done.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

Inputs = TypeVar("Inputs")
Result = TypeVar("Result")
Made = TypeVar("Made")

KINDS = {
    "convolution": ("Conv",),
    "linear": ("Linear", "Bilinear"),
    "attention": ("MultiheadAttention",),
    "recurrent": ("LSTM", "GRU", "RNN"),
    "embedding": ("Embedding",),
    "normalization": ("Norm",),
    "pooling": ("Pool",),
    "dropout": ("Dropout",),
    "loss": ("Loss",),
    "reshape": ("Flatten", "Unflatten", "Identity", "Shuffle"),
    "activation": ("ReLU", "ELU", "SiLU", "Sigmoid", "Tanh", "Softmax", "Hardswish", "Mish"),
}
"""Parts of a class's name that tell the kind of a layer; the first match counts."""


@dataclass(frozen=True, slots=True)
class TimedPass(Generic[Inputs, Result]):
    """One layer (or a whole model) as what is timed.

    ready: makes the inputs of one run; forward: runs on them; backward: of a result, the function that makes the gradients, or
    None where there are none to make
    """

    ready: Callable[[], Inputs]
    forward: Callable[[Inputs], Result]
    backward: Callable[[Result], Callable[[], object] | None]


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Seconds of every run that counted, forward and backward."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]

    def row(self, samples: int) -> dict[str, float]:
        """Medians and relative spreads, as a profile's file has them."""
        spreads = {"forward_spread": relative_spread(self.forward), "backward_spread": relative_spread(self.backward)}
        return {**self.medians(samples), **spreads}

    def medians(self, samples: int) -> dict[str, float]:
        """Medians alone."""
        return {
            "samples": samples,
            "forward_seconds": statistics.median(self.forward),
            "backward_seconds": statistics.median(self.backward),
        }


def time_pass(
    timed: TimedPass[Inputs, Result],
    *,
    warm_up: int,
    repeats: int,
    synchronize: Callable[[], None],
    clock: Callable[[], float],
) -> PassSeconds:
    """Run `warm_up` times without a look at the clock's result, then `repeats` times that count."""
    forwards, backwards = [], []
    for repeat in range(warm_up + repeats):
        inputs = timed.ready()
        result, forward = _timed(partial(timed.forward, inputs), synchronize, clock)
        gradients = timed.backward(result)
        backward = 0.0 if gradients is None else _timed(gradients, synchronize, clock)[1]
        if repeat >= warm_up:
            forwards.append(forward)
            backwards.append(backward)
    return PassSeconds(tuple(forwards), tuple(backwards))


def _timed(
    action: Callable[[], Made], synchronize: Callable[[], None], clock: Callable[[], float]
) -> tuple[Made, float]:
    """What an action makes, and its seconds on an idle device until that is done."""
    synchronize()
    began = clock()
    made = action()
    synchronize()
    return made, clock() - began


def relative_spread(values: Sequence[float]) -> float:
    """Interquartile range over the median; 0 for a single value or a median of 0."""
    middle = statistics.median(values)
    if len(values) < 2 or middle == 0:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def run_spread(timings: Sequence[Sequence[Mapping[str, float]]]) -> float:
    """Largest, over sizes and directions, of the layers' summed interquartile ranges over their summed medians.

    timings: rows of `PassSeconds.row`, by layer and size
    """
    worst = 0.0
    for column in zip(*timings, strict=True):
        for direction in ("forward", "backward"):
            total = math.fsum(one[f"{direction}_seconds"] for one in column)
            ranges = math.fsum(one[f"{direction}_seconds"] * one[f"{direction}_spread"] for one in column)
            worst = max(worst, ranges / total if total > 0 else 0.0)
    return worst


def kind_of(name: str, has_weights: bool) -> str:
    """Kind of layer by its class's name; else `linear` if it has weights, `elementwise` if not."""
    other = "linear" if has_weights else "elementwise"
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), other)


@dataclass(slots=True)
class LayerWeights:
    """Weight elements of one call: its own, and those of a weight that an earlier call, `tied_to`, owns (None: none)."""

    own: int
    tied_to: int | None = None
    tied: int = 0


def divided_weights(calls: Sequence[Mapping[Hashable, int]]) -> list[LayerWeights]:
    """Who owns which weight: the first call that uses it; a later one is tied to the owner of most of what it shares.

    calls: elements of each weight that a call uses, by the weight's identity, in the order in which the calls run
    All calls that are tied to one owner share one weight of the file's form, as large as the largest of them needs.
    """
    owner: dict[Hashable, int] = {}
    found = []
    for number, used in enumerate(calls):
        shared: dict[int, int] = {}
        for weight, elements in used.items():
            if weight in owner:
                shared[owner[weight]] = shared.get(owner[weight], 0) + elements
        own = sum(elements for weight, elements in used.items() if weight not in owner)
        owner.update((weight, number) for weight in used if weight not in owner)
        most = max(shared, key=lambda one: (shared[one], -one), default=None)
        found.append(LayerWeights(own, most, 0 if most is None else shared[most]))
    largest: dict[int, int] = {}
    for one in found:
        if one.tied_to is not None:
            largest[one.tied_to] = max(largest.get(one.tied_to, 0), one.tied)
    for one in found:
        if one.tied_to is not None:
            one.tied = largest[one.tied_to]
    return found
