"""BERT: a bidirectional encoder with masked-language and next-sentence heads.

Devlin et al. 2019; parameter counts as in Hugging Face's `BertModel` and its heads.
"""

from __future__ import annotations

from typing import Literal

from simulator.workloads import transformer as op
from simulator.workloads.builder import Builder
from simulator.workloads.layers import Workload

Heads = Literal["pooler", "masked", "pretraining"]
"""What follows the encoder: the pooler alone (`BertModel`), the masked-language head alone
(`BertForMaskedLM`), or pooler, masked-language and next-sentence heads (`BertForPreTraining`)."""


def bert(
    layers: int,
    hidden: int,
    heads: int,
    sequence: int = 512,
    vocabulary: int = 30522,
    *,
    name: str | None = None,
    positions: int = 512,
    token_types: int = 2,
    intermediate: int | None = None,
    after: Heads = "pretraining",
    dropout: bool = True,
    flash: bool = False,
    minibatch: int = 1,
) -> Workload:
    """A BERT with normalization after each half; a sample is one sequence of `sequence` tokens.

    positions, token_types: learned embeddings beside the vocabulary's
    intermediate: MLP width (None: 4·hidden)
    after: see `Heads`. The masked-language head predicts every token; its matrix is the embedding's, counted
        once, in the embedding.

    Raises ValueError.
    """
    if not 1 <= layers <= op.MOST_BLOCKS or vocabulary < 1 or token_types < 0:
        raise ValueError(
            f"BERT layers must be from 1 to {op.MOST_BLOCKS}, vocabulary at least 1 and token_types at least 0, "
            f"got {layers}, {vocabulary} and {token_types}"
        )
    if positions < sequence:
        raise ValueError(f"BERT sequence must be at most its learned positions ({positions}), got {sequence}")
    shape = op.Shape(
        hidden=hidden,
        heads=heads,
        key_value_heads=heads,
        head_size=op.head_size(hidden, heads),
        intermediate=4 * hidden if intermediate is None else intermediate,
        sequence=sequence,
        dropout=dropout,
        flash=flash,
        norm_first=False,
    )
    builder = Builder()
    x = builder.add(
        "embedding",
        "embedding",
        [],
        output=shape.tokens_hidden,
        parameters=(vocabulary + positions + token_types) * hidden,
        keeps_extra=op.MASK * shape.tokens_hidden if dropout else 0.0,
    )
    x = op.norm(builder, "embedding_norm", x, shape)
    for number in range(1, layers + 1):
        x = op.block(builder, f"block{number}", x, shape)
    _heads(builder, x, shape, vocabulary, after)
    return builder.build(name or f"bert-{layers}", sample="sequence", minibatch=minibatch)


def _heads(builder: Builder, x: int, shape: op.Shape, vocabulary: int, after: Heads) -> None:
    hidden, tokens = shape.hidden, shape.sequence
    logits = []
    if after != "pooler":
        y = op.projection(builder, "masked.transform", x, hidden, hidden, tokens, bias=True)
        y = op.activation(builder, "masked.activation", y, shape.tokens_hidden)
        y = op.norm(builder, "masked.norm", y, shape)
        y = op.projection(builder, "masked.head", y, hidden, vocabulary, tokens, bias=True, tied_to="embedding")
        logits.append(y)
    if after != "masked":
        y = op.projection(builder, "pooler", x, hidden, hidden, 1, bias=True)
        y = op.activation(builder, "pooler.activation", y, hidden)
        if after == "pretraining":
            logits.append(op.projection(builder, "next_sentence.head", y, hidden, 2, 1, bias=True))
        else:
            logits.append(y)
    op.cross_entropy(builder, "loss", logits)


def bert_base(sequence: int = 512) -> Workload:
    """BERT-base with pre-training heads: 110,106,428 parameters (109,482,240 without, with the pooler)."""
    return bert(12, 768, 12, sequence, name="bert-base")


def bert_large(sequence: int = 512) -> Workload:
    """BERT-large with pre-training heads: 336,226,108 parameters (335,141,888 without, with the pooler)."""
    return bert(24, 1024, 16, sequence, name="bert-large")
