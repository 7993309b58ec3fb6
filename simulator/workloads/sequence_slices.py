"""Sequence slices: the work of layers for some of the tokens of every sample.

Slices are done one after the other (Sun et al. 2024, "Seq1F1B", arXiv 2406.03488), parts of context parallelism side by side.

The k slices of a sequence have equally many tokens, and so as much of all that is done token by token. Attention is causal: the
tokens of slice i, from 0, attend to their own and to those of the slices before it, as far as a window reaches, and have
(2i + 1) / k² of the scores where there is none. Whole sequences are counted with all of their scores, also those that a causal
mask hides; so are slices, in the same proportion: the slices of a sequence do together what it does, no more and no less. Each of
the c parts of context parallelism has a slice from the front and one from the back, of 2c: 1/c of the scores without a window,
with one as many as the part that has most: the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from math import gcd, isqrt

from simulator.workloads.layers import Layer, Workload

BY_TOKEN = ("input", "linear", "embedding", "normalization", "activation", "dropout", "elementwise", "reshape", "loss")
"""Kinds of layer that treat every token by itself."""


def slice_of(workload: Workload, number: int, slices: int) -> Workload:
    """Slice `number` of `slices` of every sample, as a workload whose samples these are.

    ValueError, in one line, for a network whose samples have no such slices: they are no sequences of causal attention, of fewer
    tokens, or it is not known what a part of them takes.
    """
    _check_parts(workload, slices, "slices")
    return _part(workload, slices, lambda window: _pairs(number, slices, window), number / slices)


@lru_cache(maxsize=64)
def context_part(workload: Workload, degree: int) -> Workload:
    """The part of every sample on each of `degree` devices in context parallelism, as a workload whose samples these are.

    ValueError as in `check_context`.
    """
    check_context(workload, degree)

    @cache
    def most(window: Fraction) -> Fraction:
        upto = _pairs_upto(2 * degree, window)
        pairs = [end - begin for begin, end in pairwise(upto)]
        both = max(front + back for front, back in zip(pairs[:degree], reversed(pairs[degree:]), strict=True))
        return Fraction(both, upto[-1])

    return _part(workload, degree, most, (degree - 1) / degree)


def check_context(workload: Workload, degree: int) -> None:
    """Raise ValueError, in one line, for a network that `slice_of` refuses, or tokens that twice the degree does not divide."""
    _check_parts(workload, degree, "context parallelism")
    tokens = gcd(*(layer.causal_tokens for layer in workload.layers))
    if tokens % (2 * degree):
        raise ValueError(
            f"workload {workload.name!r} has samples of {tokens} tokens, which twice {degree} does not divide; choices: "
            f"{', '.join(map(str, context_degrees(workload)))}"
        )


def context_degrees(workload: Workload) -> tuple[int, ...]:
    """Degrees of context parallelism that a network may have, rising; 1 alone for one without."""
    tokens = gcd(*(layer.causal_tokens for layer in workload.layers))
    try:
        _check_parts(workload, 1, "context parallelism")
    except ValueError:
        return (1,)
    half, odd = divmod(tokens, 2)
    small = [] if odd else [one for one in range(1, isqrt(half) + 1) if half % one == 0]
    return tuple(sorted({*small, *(half // one for one in small)})) or (1,)


def keys_and_values(read: float, output: float) -> float:
    """Elements of keys and values that attention reads; its queries are as many as its outputs."""
    return max(read - output, 0.0)


def _check_parts(workload: Workload, parts: int, what: str) -> None:
    where = f"workload {workload.name!r} has no {what}"
    measured = next((layer for layer in workload.layers if layer.measured), None)
    if measured is not None:
        raise ValueError(f"{where}: of layer {measured.name!r} it is measured what whole samples take")
    causal = [layer.causal_tokens for layer in workload.layers if layer.causal_tokens]
    mixing = [layer for layer in workload.layers if not layer.causal_tokens and layer.kind not in BY_TOKEN]
    if mixing:
        raise ValueError(
            f"{where}: its layer {mixing[0].name!r} ({mixing[0].kind}) is no causal attention, and mixes tokens"
        )
    if not causal:
        raise ValueError(f"{where}: it has no causal attention")
    if parts > min(causal):
        raise ValueError(f"{where} of less than a token: at most {min(causal)}, got {parts}")


def _pairs(number: int, slices: int, window: Fraction) -> Fraction:
    """Share of a sequence's pairs of queries and keys that slice `number` has, where queries attend to a window of its tokens."""
    upto = _pairs_upto(slices, window)
    return Fraction(upto[number + 1] - upto[number], upto[-1])


@lru_cache(maxsize=256)
def _pairs_upto(slices: int, window: Fraction) -> tuple[int, ...]:
    """Pairs of queries and keys of the first 0, 1, ... slices, as whole numbers of one common unit."""
    reach, found = window.numerator * slices, []
    for tokens in range(0, (slices + 1) * window.denominator, window.denominator):
        inside = min(tokens, reach)
        found.append(inside**2 + 2 * (tokens - inside) * reach)
    return tuple(found)


def _part(workload: Workload, parts: int, scores: Callable[[Fraction], Fraction], others: float) -> Workload:
    """One of so many parts; scores: its share of these, by the window; others: share of the keys and values that it reads of
    other parts.

    What a layer keeps are its inputs first, and beside them scores, or where one kernel makes these again numbers of each query.
    """

    def part_of(layer: Layer, read: float) -> Layer:
        # A kernel that computes half of all pairs sees all tokens before each (`Layer.fused_pairs`).
        window = Fraction(2.0 - 2.0 * layer.fused_pairs) if layer.fused_pairs else Fraction(1)
        of_layer = float(scores(window)) if layer.causal_tokens else 1 / parts
        kept = min(layer.stashed_elements, read)
        again = keys_and_values(read, layer.output_elements) * others if layer.causal_tokens else 0.0
        beside = 1 / parts if layer.fused_pairs else of_layer
        return replace(
            layer,
            flop=layer.flop * of_layer,
            output_elements=layer.output_elements / parts,
            stashed_elements=kept / parts + (layer.stashed_elements - kept) * beside,
            stashed_bytes=layer.stashed_bytes * beside,
            scratch_elements=layer.scratch_elements * of_layer + again,
        )

    read = workload.input_elements().tolist()
    return replace(workload, layers=tuple(map(part_of, workload.layers, read)))
