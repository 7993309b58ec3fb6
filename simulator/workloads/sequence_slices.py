"""Slices of sequences: what a layer does for a part of the tokens of every sample (Sun et al. 2024, "Seq1F1B", arXiv 2406.03488).

The k slices of a sequence have equally many tokens, and so as much of all that is done token by token. Attention is causal: the
tokens of slice i, from 0, attend to their own and to those of the slices before it, and have (2i + 1) / k² of the scores. Whole
sequences are counted with all of their scores, also those that a causal mask hides; so are slices, in the same proportion:
the slices of a sequence do together what it does, no more and no less.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.workloads.layers import Layer, Workload

BY_TOKEN = ("input", "linear", "embedding", "normalization", "activation", "dropout", "elementwise", "reshape", "loss")
"""Kinds of layer that mix no tokens."""


def slice_of(workload: Workload, number: int, slices: int) -> Workload:
    """Slice `number` of `slices` of every sample, as a workload whose samples these are.

    ValueError, in one line, for a network whose samples have no such slices: they are no sequences of causal attention, of fewer
    tokens, or it is not known what a part of them takes.
    """
    _check_slices(workload, slices)
    read = workload.input_elements().tolist()
    layers = [_layer(layer, one, number, slices) for layer, one in zip(workload.layers, read, strict=True)]
    return replace(workload, layers=tuple(layers))


def _check_slices(workload: Workload, slices: int) -> None:
    where = f"workload {workload.name!r} has no slices"
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
    if slices > min(causal):
        raise ValueError(f"{where} of less than a token: at most {min(causal)}, got {slices}")


def _layer(layer: Layer, read: float, number: int, slices: int) -> Layer:
    """What a layer does for a slice; read: elements a sample of its inputs, which are what it keeps first.

    Of attention the inputs that are no queries, which are as many as its outputs, are read again of the slices before.
    """
    scores = (2 * number + 1) / slices**2 if layer.causal_tokens else 1 / slices
    kept = min(layer.stashed_elements, read)
    again = max(read - layer.output_elements, 0.0) * number / slices if layer.causal_tokens else 0.0
    return replace(
        layer,
        flop=layer.flop * scores,
        output_elements=layer.output_elements / slices,
        stashed_elements=kept / slices + (layer.stashed_elements - kept) * scores,
        scratch_elements=layer.scratch_elements * scores + again,
    )
