"""Llama: causal language models with RMSNorm, rotary positions, SwiGLU and grouped-query attention.

Touvron et al. 2023 ("Llama 2"), table 1 and section 2.2.
"""

from __future__ import annotations

from simulator.workloads import transformer as op
from simulator.workloads.builder import Builder
from simulator.workloads.layers import Workload


def llama(
    layers: int,
    hidden: int,
    heads: int,
    intermediate: int,
    sequence: int = 4096,
    vocabulary: int = 32000,
    *,
    name: str | None = None,
    key_value_heads: int | None = None,
    head_size: int | None = None,
    tied: bool = False,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    dropout: bool = False,
    flash: bool = False,
    minibatch: int = 1,
) -> Workload:
    """A Llama; a sample is one sequence of `sequence` tokens.

    key_value_heads: heads of keys and values, a divisor of `heads` (None: `heads`)
    head_size: features of a head (None: hidden / heads); intermediate: width of each half of the SwiGLU MLP
    tied: the head shares the embedding's matrix, which then counts once, in the embedding

    Raises ValueError.
    """
    if not 1 <= layers <= op.MOST_BLOCKS or vocabulary < 1:
        raise ValueError(
            f"Llama layers must be from 1 to {op.MOST_BLOCKS} and vocabulary at least 1, got {layers} and {vocabulary}"
        )
    shape = op.Shape(
        hidden=hidden,
        heads=heads,
        key_value_heads=heads if key_value_heads is None else key_value_heads,
        head_size=op.head_size(hidden, heads) if head_size is None else head_size,
        intermediate=intermediate,
        sequence=sequence,
        gated=True,
        attention_bias=attention_bias,
        mlp_bias=mlp_bias,
        norm_bias=False,
        dropout=dropout,
        flash=flash,
    )
    builder = Builder()
    x = builder.add("embedding", "embedding", [], output=shape.tokens_hidden, parameters=vocabulary * hidden)
    for number in range(1, layers + 1):
        x = op.block(builder, f"block{number}", x, shape)
    x = op.norm(builder, "final_norm", x, shape)
    x = op.projection(builder, "head", x, hidden, vocabulary, sequence, bias=False, tied_to="embedding" if tied else "")
    op.cross_entropy(builder, "loss", [x])
    return builder.build(name or f"llama-{layers}", sample="sequence", minibatch=minibatch)


def llama2_7b(sequence: int = 4096) -> Workload:
    """Llama 2 7B: 6,738,415,616 parameters."""
    return llama(32, 4096, 32, 11008, sequence, name="llama2-7b")
