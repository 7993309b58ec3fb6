"""Transformer: language models that are stacks of equal blocks, between an embedding and heads.

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

from dataclasses import dataclass, replace
from typing import Literal

from simulator.workloads.builder import Builder
from simulator.workloads.layers import Layer, Split, Workload

MOST_BLOCKS = 10_000
"""Blocks of a model at most, in which a hundred thousand layers are."""

MASK = 0.5
"""16-bit elements that one byte of a dropout mask takes."""

FP32 = 2.0
"""16-bit elements that one fp32 number takes: losses stay in fp32."""

Heads = Literal["language", "pooler", "masked", "pretraining"]
"""What follows the blocks: a language model's head; or BERT's pooler alone (`BertModel`), masked-language head alone
(`BertForMaskedLM`), or pooler, masked-language and next-sentence heads (`BertForPreTraining`)."""


@dataclass(frozen=True, slots=True)
class Transformer:
    """Sizes of a language model; as they stand here a GPT's.

    layers: blocks; hidden: features of a token; heads: query heads; sequence: tokens of a sample
    vocabulary, positions, token_types: rows of the embedding (positions 0: `sequence`; none where they are rotary)
    intermediate: width of the MLP (0: 4·hidden)
    key_value_heads: fewer than heads for grouped queries (0: `heads`); head_size: features of a head (0: hidden / heads)
    after: see `Heads`. The masked-language head predicts every token
    tied: the head shares the embedding's matrix, which then counts ONCE, in the embedding; a pipeline that
        has both in different stages keeps a second copy on the last (see `simulator.workloads.layers.TiedWeight`)
    rotary: positions are rotary, not learned; then the embedding has no dropout either
    gated: SwiGLU MLP (two up projections); attention_bias, mlp_bias: those projections have biases
    norm_bias: normalization has a shift (LayerNorm, else RMSNorm)
    dropout: hidden and attention dropout are applied
    norm_first: normalization before each half and at the end, else after each residual sum and the embedding
    name: of the workload ("": the family's and the number of blocks)

    Sizes are taken as they are, but for the sequence, which a user chooses: ValueError if there is none such.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int = 1024
    vocabulary: int = 50257
    positions: int = 0
    token_types: int = 0
    intermediate: int = 0
    key_value_heads: int = 0
    head_size: int = 0
    after: Heads = "language"
    tied: bool = True
    rotary: bool = False
    gated: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    dropout: bool = True
    norm_first: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        family = type(self).__name__
        for field, usual in (
            ("positions", 0 if self.rotary else self.sequence),
            ("intermediate", 4 * self.hidden),
            ("key_value_heads", self.heads),
            ("head_size", self.hidden // self.heads),
            ("name", f"{family.lower()}-{self.layers}"),
        ):
            object.__setattr__(self, field, getattr(self, field) or usual)
        if self.sequence < 1:
            raise ValueError(f"{family} sequence must be at least 1, got {self.sequence}")
        if not self.rotary and self.positions < self.sequence:
            raise ValueError(
                f"{family} sequence must be at most its learned positions ({self.positions}), got {self.sequence}"
            )

    def workload(self) -> Workload:
        """The network; a sample is one sequence."""
        return _Network(self).build()


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The weights of a projection: features that go in, and that come out; with a bias or not.

    tied: the matrix is the embedding's, which counts its parameters; a bias counts here
    split: as of a `Layer`
    """

    rows: int
    columns: int
    bias: bool
    tied: bool = False
    split: Split = ""


class _Network:
    """One model while it is built: the builder, and the sizes that all operators share."""

    def __init__(self, model: Transformer) -> None:
        self.builder, self.model = Builder(), model

    def build(self) -> Workload:
        model, tokens_hidden = self.model, self.model.sequence * self.model.hidden
        x = self.builder.add(
            Layer(
                "embedding",
                "embedding",
                output_elements=tokens_hidden,
                parameters=(model.vocabulary + model.positions + model.token_types) * model.hidden,
                stashed_elements=MASK * tokens_hidden if model.dropout and not model.rotary else 0.0,
                split="vocabulary",
                undivided=(model.positions + model.token_types) * model.hidden,
            )
        )
        x = x if model.norm_first else self.norm("embedding_norm", x)
        for number in range(1, model.layers + 1):
            x = self.block(f"block{number}", x)
        logits = self.heads(self.norm("final_norm", x) if model.norm_first else x)
        kept = FP32 * sum(self.builder.output_elements(each) for each in logits)  # log-probabilities
        loss = Layer("loss", "loss", output_elements=1, stashed_elements=kept, split="features")
        self.builder.add(loss, logits)
        return self.builder.build(model.name, sample="sequence", minibatch=1)

    def block(self, name: str, x: int) -> int:
        first = self.model.norm_first
        for number, half in ((1, self.attention), (2, self.mlp)):
            y = half(name, self.norm(f"{name}.norm{number}", x) if first else x)
            output = self.builder.output_elements(x)
            y = self.builder.add(
                Layer(f"{name}.add{number}", "elementwise", output_elements=output, split="tokens"), [y, x]
            )
            x = y if first else self.norm(f"{name}.norm{number}", y)
        return x

    def norm(self, name: str, x: int) -> int:
        """LayerNorm, or RMSNorm if the model has no norm_bias."""
        hidden = self.model.hidden
        weights = hidden * (2 if self.model.norm_bias else 1)
        output = self.builder.output_elements(x)
        layer = Layer(name, "normalization", output_elements=output, parameters=weights, split="tokens")
        return self.builder.add(layer, [x])

    def projection(self, name: str, x: int, matrix: _Matrix, *, tokens: int = 0, dropout: bool = False) -> int:
        """A linear map of each of `tokens` tokens (0: all), then dropout if asked."""
        output = (tokens or self.model.sequence) * matrix.columns
        weights, bias = matrix.rows * matrix.columns, matrix.columns if matrix.bias else 0
        layer = Layer(
            name,
            "linear",
            output_elements=output,
            flop=2.0 * matrix.rows * output,
            parameters=(0 if matrix.tied else weights) + bias,
            tied_to="embedding" if matrix.tied else "",
            tied_parameters=weights if matrix.tied else 0,
            stashed_elements=MASK * output if dropout else 0.0,
            split=matrix.split,
            undivided=bias if matrix.split == "rows" else 0,
        )
        return self.builder.add(layer, [x])

    def activation(self, name: str, x: int, output: float, split: Split = "") -> int:
        """GELU, tanh or (from two halves) SwiGLU, out of place."""
        return self.builder.add(Layer(name, "activation", output_elements=output, split=split), [x], keeps_inputs=True)

    def attention(self, name: str, x: int) -> int:
        model = self.model
        query_width = model.heads * model.head_size
        fused_width = query_width + 2 * model.key_value_heads * model.head_size
        # softmax output; with dropout also the mask and what dropout puts out
        kept = model.heads * model.sequence**2 * (2 + MASK if model.dropout else 1)
        matrix = _Matrix(model.hidden, fused_width, model.attention_bias, split="columns")
        y = self.projection(f"{name}.qkv", x, matrix)
        layer = Layer(
            f"{name}.attention",
            "attention",
            output_elements=model.sequence * query_width,
            flop=4.0 * model.sequence**2 * query_width,
            stashed_elements=kept,
            split="heads",
            heads=model.key_value_heads,
            causal_tokens=model.sequence if model.after == "language" else 0,
        )
        y = self.builder.add(layer, [y])
        matrix = _Matrix(query_width, model.hidden, model.attention_bias, split="rows")
        return self.projection(f"{name}.projection", y, matrix, dropout=model.dropout)

    def mlp(self, name: str, x: int) -> int:
        model = self.model
        up = _Matrix(model.hidden, model.intermediate * (2 if model.gated else 1), model.mlp_bias, split="columns")
        y = self.projection(f"{name}.mlp_up", x, up)
        y = self.activation(f"{name}.activation", y, model.sequence * model.intermediate, "features")
        down = _Matrix(model.intermediate, model.hidden, model.mlp_bias, split="rows")
        return self.projection(f"{name}.mlp_down", y, down, dropout=model.dropout)

    def heads(self, x: int) -> list[int]:
        """What the loss reads."""
        model = self.model
        words = _Matrix(
            model.hidden, model.vocabulary, bias=model.after != "language", tied=model.tied, split="columns"
        )
        if model.after == "language":
            return [self.projection("head", x, words)]
        logits, square = [], _Matrix(model.hidden, model.hidden, bias=True)
        if model.after != "pooler":
            y = self.projection("masked.transform", x, replace(square, split="tokens"))
            y = self.activation("masked.activation", y, model.sequence * model.hidden, "tokens")
            y = self.norm("masked.norm", y)
            logits.append(self.projection("masked.head", y, words))
        if model.after != "masked":
            y = self.projection("pooler", x, square, tokens=1)
            y = self.activation("pooler.activation", y, model.hidden)
            logits.append(y)
        if model.after == "pretraining":
            logits[-1] = self.projection("next_sentence.head", y, _Matrix(model.hidden, 2, bias=True), tokens=1)
        return logits
