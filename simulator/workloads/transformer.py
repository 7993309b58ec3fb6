"""Transformer: the blocks that GPT, Llama and BERT are stacks of.

Ten layers a block: normalization, query-key-value projection, attention (scores, softmax, dropout, context),
output projection, residual sum; normalization, MLP up, activation, MLP down, residual sum. Dropout after a
projection is part of that projection.

Kept for the backward pass, in elements of 2 bytes and with dropout, per block of sequence s, hidden h and
heads a: 17·s·h + 2.5·a·s², which is the 34·s·b·h + 5·a·s²·b bytes of Korthikanti et al. 2022 ("Reducing
Activation Recomputation in Large Transformer Models", section 4.1, equation 1).
FLOP: full s×s attention, also for causal models (what dense matrix products do and torch's counter counts):
4·s²·h a block beside 2·s a projection weight.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from simulator.workloads.builder import Builder

MOST_BLOCKS = 10_000
"""Blocks of a model at most, in which a hundred thousand layers are."""

MASK = 0.5
"""16-bit elements that one byte of a dropout mask takes."""

FP32 = 2.0
"""16-bit elements that one fp32 number takes: losses and softmax statistics stay in fp32."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a transformer stack.

    hidden: features of a token; heads: query heads; key_value_heads: fewer than heads for grouped queries
    head_size: features of a head; intermediate: width of the MLP; sequence: tokens of a sample
    gated: SwiGLU MLP (two up projections); attention_bias, mlp_bias: those projections have biases
    norm_bias: normalization has a shift (LayerNorm, else RMSNorm)
    dropout: hidden and attention dropout are applied; flash: attention keeps no s×s tensor (FlashAttention)
    norm_first: normalization before each half (GPT, Llama), else after its residual sum (BERT)

    Raises ValueError.
    """

    hidden: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate: int
    sequence: int
    gated: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    dropout: bool = True
    flash: bool = False
    norm_first: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool) and value < 1:
                raise ValueError(f"transformer {field.name} must be at least 1, got {value}")
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"transformer heads must be a multiple of key_value_heads ({self.key_value_heads}), got {self.heads}"
            )

    @property
    def tokens_hidden(self) -> int:
        """Elements of one hidden tensor a sample."""
        return self.sequence * self.hidden


def head_size(hidden: int, heads: int) -> int:
    """Features of a head that splits `hidden` evenly. Raises ValueError if it does not."""
    if heads < 1 or hidden < 1 or hidden % heads:
        raise ValueError(f"transformer hidden must be a positive multiple of heads ({heads}), got {hidden}")
    return hidden // heads


def block(builder: Builder, name: str, x: int, shape: Shape) -> int:
    """One block on tensor `x`; returns its output tensor."""
    y = norm(builder, f"{name}.norm1", x, shape) if shape.norm_first else x
    y = _attention(builder, name, y, shape)
    x = _residual(builder, f"{name}.add1", y, x, shape)
    if not shape.norm_first:
        x = norm(builder, f"{name}.norm1", x, shape)
    y = norm(builder, f"{name}.norm2", x, shape) if shape.norm_first else x
    y = _mlp(builder, name, y, shape)
    x = _residual(builder, f"{name}.add2", y, x, shape)
    return x if shape.norm_first else norm(builder, f"{name}.norm2", x, shape)


def norm(builder: Builder, name: str, x: int, shape: Shape, tokens: int | None = None) -> int:
    """LayerNorm, or RMSNorm if the shape has no norm_bias, over `tokens` tokens (None: all)."""
    return builder.add(
        name,
        "normalization",
        [x],
        output=(shape.sequence if tokens is None else tokens) * shape.hidden,
        parameters=shape.hidden * (2 if shape.norm_bias else 1),
        keeps_inputs=True,
    )


def projection(
    builder: Builder,
    name: str,
    x: int,
    features_in: int,
    features_out: int,
    tokens: int,
    *,
    bias: bool,
    matrices: int = 1,
    dropout: bool = False,
    tied_to: str = "",
) -> int:
    """`matrices` linear maps side by side on each of `tokens` tokens, then dropout if asked.

    tied_to: the layer (the embedding) whose matrix this is, which counts its parameters; a bias counts here
    """
    width = matrices * features_out
    weights = features_in * width
    return builder.add(
        name,
        "linear",
        [x],
        output=tokens * width,
        flop=2.0 * tokens * features_in * width,
        parameters=(0 if tied_to else weights) + (width if bias else 0),
        tied_to=tied_to,
        tied_parameters=weights if tied_to else 0,
        keeps_inputs=True,
        keeps_extra=MASK * tokens * width if dropout else 0.0,
    )


def activation(builder: Builder, name: str, x: int, output: int) -> int:
    """GELU, tanh or (from two halves) SwiGLU, out of place."""
    return builder.add(name, "activation", [x], output=output, keeps_inputs=True)


def cross_entropy(builder: Builder, name: str, logits: list[int]) -> int:
    """Loss over all logits; it keeps their log-probabilities in fp32."""
    kept = FP32 * sum(builder.output_elements(each) for each in logits)
    return builder.add(name, "loss", logits, output=1, keeps_extra=kept)


def _attention(builder: Builder, name: str, x: int, shape: Shape) -> int:
    query_width = shape.heads * shape.head_size
    fused_width = query_width + 2 * shape.key_value_heads * shape.head_size
    scores = shape.heads * shape.sequence**2
    if shape.flash:
        kept = FP32 * shape.heads * shape.sequence  # log-sum-exp of each row; the output is the projection's
    else:
        # softmax output; with dropout also the mask and what dropout puts out
        kept = scores * (2 + MASK if shape.dropout else 1)
    y = projection(builder, f"{name}.qkv", x, shape.hidden, fused_width, shape.sequence, bias=shape.attention_bias)
    y = builder.add(
        f"{name}.attention",
        "attention",
        [y],
        output=shape.sequence * query_width,
        flop=4.0 * shape.sequence**2 * query_width,
        keeps_inputs=True,
        keeps_extra=kept,
    )
    return projection(
        builder,
        f"{name}.projection",
        y,
        query_width,
        shape.hidden,
        shape.sequence,
        bias=shape.attention_bias,
        dropout=shape.dropout,
    )


def _mlp(builder: Builder, name: str, x: int, shape: Shape) -> int:
    tokens, width = shape.sequence, shape.intermediate
    y = projection(
        builder,
        f"{name}.mlp_up",
        x,
        shape.hidden,
        width,
        tokens,
        bias=shape.mlp_bias,
        matrices=2 if shape.gated else 1,
    )
    y = activation(builder, f"{name}.activation", y, tokens * width)
    return projection(
        builder,
        f"{name}.mlp_down",
        y,
        width,
        shape.hidden,
        tokens,
        bias=shape.mlp_bias,
        dropout=shape.dropout,
    )


def _residual(builder: Builder, name: str, x: int, residual: int, shape: Shape) -> int:
    return builder.add(name, "elementwise", [x, residual], output=shape.tokens_hidden)
