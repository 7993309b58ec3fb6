"""Transformer: language models that are stacks of blocks, between an embedding and heads.

Ten layers per block: normalization, query-key-value projection, attention (scores, softmax, dropout, context),
output projection, residual sum; normalization, MLP up, activation, MLP down, residual sum. Dropout after a
projection is part of that projection. Latent attention projects in more steps; where heads are normalized, queries and keys
are one view of their projection, values another; experts stand in the MLP's place.

Kept for the backward pass, with dropout, per block of sequence s, hidden h and heads a: 16·s·h + 2·a·s² elements
and 2·s·h + a·s² bytes of masks, which is the 34·s·b·h + 5·a·s²·b bytes of 16-bit numbers of Korthikanti et al. 2022
("Reducing Activation Recomputation in Large Transformer Models", section 4.1, equation 1). Fused attention keeps 4·a·s
bytes in place of what grows with s²: an fp32 log-sum-exp of the scores of every query.
FLOP: full s×s attention, also for causal models (what dense matrix products do and torch's counter counts):
4·s²·h per block beside 2·s per projection weight; of experts those that a token goes through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, get_args

from hardware_profiles import Bounds, check_numbers, check_whole, shown
from simulator.workloads.builder import FP32, MASK, Builder
from simulator.workloads.layers import SCORE_MOVES, Attention, Layer, Part, Split, Workload
from simulator.workloads.network_files import LARGEST_SIZE

EXPERT_BIAS = 28.0 / 3.0
"""Elements that adding a bias to an expert's output moves beside the output itself, read and written, for each of its elements:
64 bytes in forward and backward together, in fp32. Counted in Megatron-Core's `TEGroupedMLP._apply_bias`: forward the weighted
bias (4 written), the sum (2 and 4 read, 4 written), joined (8), cast (6); backward two casts (12), and for bias and weight each a
product (8) and its sum (4). The backward moves twice what the forward does."""

MOST_BLOCKS = 10_000
"""Most blocks of a model: a hundred thousand layers."""

MOST_SHARED = 10_000 * LARGEST_SIZE
"""Most features of all shared experts together."""

Size = Annotated[int, Bounds(ge=1, le=LARGEST_SIZE)]
OptionalSize = Annotated[int, Bounds(ge=0, le=LARGEST_SIZE)]
"""A size that may be 0: none, or a value that follows from other sizes."""

Heads = Literal["language", "pooler", "masked", "pretraining"]
"""What follows the blocks: a language model's head; or BERT's pooler alone (`BertModel`), masked-language head alone
(`BertForMaskedLM`), or pooler, masked-language and next-sentence heads (`BertForPreTraining`)."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Sizes of multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1), in features.

    query_rank, key_value_rank: of the latent vectors from which queries, and keys and values, are projected up (query_rank 0:
        queries straight from the hidden state)
    plain, rotary: of a query and key head, without and with its position (the rotary ones of a key are the same for all heads)
    value: of a value head
    """

    query_rank: OptionalSize
    key_value_rank: Size
    plain: Size
    rotary: Size
    value: Size

    def __post_init__(self) -> None:
        check_numbers("latent attention: ", self)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the place of a block's MLP (Shazeer et al. 2017; shared experts: Dai et al. 2024, "DeepSeekMoE").

    count: routed experts; active: of them those that a token goes through; intermediate: width of each
    shared: width of the experts, taken as one, that every token goes through (0: none); shared_gate: their output is weighted
    bias: the router has one
    dense: blocks, counted from 0, that have the model's plain MLP

    Tokens are spread evenly: no expert is full, none is dropped. ValueError for more active experts than there are.
    """

    count: Annotated[int, Bounds(ge=1, le=MOST_SHARED)]
    active: int
    intermediate: Annotated[int, Bounds(ge=1, le=MOST_SHARED)]
    shared: Annotated[int, Bounds(ge=0, le=MOST_SHARED)] = 0
    shared_gate: bool = False
    bias: bool = False
    dense: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_numbers("experts: ", self)
        if not 1 <= self.active <= self.count:
            raise ValueError(f"experts of a token must be from 1 to all {self.count}, got {shown(self.active)}")
        check_whole("experts: active", self.active, 1, MOST_SHARED)


@dataclass(frozen=True, slots=True)
class Transformer:
    """Sizes of a language model; as they stand here a GPT's.

    layers: blocks; hidden: features of a token; heads: query heads; sequence: tokens of a sample
    vocabulary, positions, other_rows: rows of the embedding (positions 0: `sequence`; none where they are rotary; others are
        token types, padding)
    word_features: of a row of the vocabulary's matrix, with projections to and from `hidden` where they differ (0: hidden)
    intermediate: width of the MLP (0: 4·hidden)
    key_value_heads: fewer than heads for grouped queries (0: `heads`); head_size: features of a head (0: hidden / heads)
    after: see `Heads`. The masked-language head predicts every token
    tied: the head shares the embedding's matrix, which then counts ONCE, in the embedding; a pipeline that
        has both in different stages keeps a second copy on the last (see `simulator.workloads.layers.TiedWeight`)
    rotary: positions are rotary, not learned; then the embedding has no dropout either
    gated: SwiGLU MLP (two up projections); clamped: of which each is bounded first, and both are put together again
    relu: ReLU, whose backward needs no more than what it puts out
    attention_bias, output_bias, mlp_bias: the projections before attention, after it, and of the MLP have biases
    norm_bias: normalization has a shift (LayerNorm, else RMSNorm); head_norm: each head's queries and keys are normalized
    dropout, attention_dropout: of hidden states and of scores
    norm_first: normalization before each half and at the end, else after each residual sum
    embedding_norm: the embedding is normalized
    attention: see `Attention`; window: keys that a query attends to (0: all); only fused attention skips the others
    whole: blocks, counted from 0, whose queries attend to all keys in spite of a window
    further: tokens beyond the next one that are predicted from each, one by one, each by a block of its own (DeepSeek-AI 2024,
        "DeepSeek-V3 Technical Report", section 2.2)
    latent, experts: in place of plain projections before attention, and of MLPs
    name: of the workload ("": the family's and the number of blocks)

    Sizes are taken as they are, but for what a user chooses: ValueError for a sequence or an attention that there is not, and
    for heads that key-value heads do not divide.
    """

    layers: Annotated[int, Bounds(ge=1, le=MOST_BLOCKS)]
    hidden: Size
    heads: Size
    sequence: Size = 1024
    vocabulary: Size = 50257
    positions: OptionalSize = 0
    other_rows: OptionalSize = 0
    word_features: OptionalSize = 0
    intermediate: OptionalSize = 0
    key_value_heads: OptionalSize = 0
    head_size: OptionalSize = 0
    after: Heads = "language"
    tied: bool = True
    rotary: bool = False
    gated: bool = False
    clamped: bool = False
    relu: bool = False
    attention_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    head_norm: bool = False
    dropout: bool = True
    attention_dropout: bool = True
    norm_first: bool = True
    embedding_norm: bool = False
    attention: Attention = "unfused"
    window: OptionalSize = 0
    whole: tuple[int, ...] = ()
    further: Annotated[int, Bounds(ge=0, le=MOST_BLOCKS)] = 0
    latent: LatentAttention | None = None
    experts: Experts | None = None
    name: str = ""

    def __post_init__(self) -> None:
        family = type(self).__name__
        if not 1 <= self.sequence <= LARGEST_SIZE:
            raise ValueError(f"{family} sequence must be from 1 to {LARGEST_SIZE}, got {shown(self.sequence)}")
        check_numbers(f"{family} ", self)
        if self.layers + self.further > MOST_BLOCKS:
            raise ValueError(
                f"{family} blocks must be at most {MOST_BLOCKS:,}, got {self.layers} layers and {self.further} of further tokens"
            )
        for block in (*self.whole, *(self.experts.dense if self.experts else ())):
            check_whole(f"{family} block", block, 0, MOST_BLOCKS)
        for field, usual in (
            ("positions", 0 if self.rotary else self.sequence),
            ("word_features", self.hidden),
            ("intermediate", 4 * self.hidden),
            ("key_value_heads", self.heads),
            ("head_size", self.hidden // self.heads),
            ("name", f"{family.lower()}-{self.layers}"),
        ):
            object.__setattr__(self, field, getattr(self, field) or usual)
        if not self.rotary and self.positions < self.sequence:
            raise ValueError(
                f"{family} sequence must be at most its learned positions ({self.positions}), got {self.sequence}"
            )
        if self.attention not in get_args(Attention):
            raise ValueError(f"attention must be one of {', '.join(get_args(Attention))}, got {self.attention!r}")
        if self.further and (self.after != "language" or self.word_features != self.hidden):
            own = f"{self.after!r} after words of {self.word_features} features"
            raise ValueError(
                f"{family} predicts further tokens with a language model's head on its words alone, got {own}"
            )
        if self.heads % self.key_value_heads:
            raise ValueError(f"heads must be a multiple of key-value heads ({self.key_value_heads}), got {self.heads}")

    def workload(self) -> Workload:
        """The network; a sample is one sequence."""
        return _Network(self).build()


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The weights of a projection: features that go in, and that come out; with a bias or not.

    tied: name of the layer whose matrix it is, and which counts its parameters; a bias counts here
    split: as of a `Layer`; experts: matrices of these sizes, one of them for each token
    key_values: of the features that come out those of keys and values
    """

    rows: int
    columns: int
    bias: bool
    tied: str = ""
    split: Split = ""
    experts: int = 0
    key_values: int = 0


class _Network:
    """One model while it is built: the builder, and the sizes that all operators share."""

    def __init__(self, model: Transformer) -> None:
        self.builder, self.model = Builder(), model

    def build(self) -> Workload:
        model = self.model
        x = self.embedding()
        for number in range(1, model.layers + 1):
            self.builder.block = number
            x = self.block(number, x)
        self.builder.block, self.builder.part = 0, "output head"
        logits = self.heads(self.norm("final_norm", x) if model.norm_first else x)
        for number in range(1, model.further + 1):
            x = self.further(number, x)
            words = _Matrix(model.hidden, model.vocabulary, bias=False, tied=self.words, split="columns")
            logits.append(self.projection(f"further{number}.head", self.norm(f"further{number}.final_norm", x), words))
        kept = FP32 * sum(self.builder.output_elements(each) for each in logits)  # log-probabilities
        loss = Layer("loss", "loss", output_elements=1, stashed_bytes=kept, split="features")
        self.builder.add(loss, logits)
        return self.builder.build(model.name, sample="sequence", minibatch=1, tokens=model.sequence)

    def embedding(self) -> int:
        model = self.model
        self.builder.part = "embedding"
        output, others = model.sequence * model.word_features, (model.positions + model.other_rows) * model.hidden
        layer = Layer(
            "embedding",
            "embedding",
            output_elements=output,
            parameters=model.vocabulary * model.word_features + others,
            stashed_bytes=MASK * output if model.dropout and not model.rotary else 0.0,
            split="vocabulary",
            undivided=others,
        )
        x = self.builder.add(layer)
        if model.word_features != model.hidden:
            x = self.projection("word_in", x, _Matrix(model.word_features, model.hidden, bias=False, split="tokens"))
        return self.norm("embedding_norm", x) if model.embedding_norm else x

    def block(self, number: int, x: int) -> int:
        name, first, experts = f"block{number}", self.model.norm_first, self.model.experts
        halves: list[tuple[Part, Callable[[str, int], list[int]]]] = [("attention", self.attention), ("MLP", self.mlp)]
        if experts is not None and number - 1 not in experts.dense:
            halves[1] = "experts", partial(self.mixture, experts)
        for part, (whole, half) in enumerate(halves, 1):
            self.builder.part = whole
            *beside, y = half(name, self.norm(f"{name}.norm{part}", x) if first else x)
            output = self.builder.output_elements(x)
            layer = Layer(f"{name}.add{part}", "elementwise", output_elements=output, split="tokens")
            y = self.builder.add(layer, [y, *beside, x])
            x = y if first else self.norm(f"{name}.norm{part}", y)
        return x

    @property
    def words(self) -> str:
        """The layer with the matrix of the head."""
        return "embedding" if self.model.tied else "head"

    def further(self, number: int, x: int) -> int:
        """The features that predict a token further ahead, made of those of the token before it and of its embedding."""
        model, name = self.model, f"further{number}"
        output = model.sequence * model.hidden
        layer = Layer(
            f"{name}.embedding",
            "embedding",
            output_elements=output,
            tied_to="embedding",
            tied_parameters=model.vocabulary * model.hidden,
            split="vocabulary",
        )
        parts = [self.norm(f"{name}.norm{part}", one) for part, one in ((1, x), (2, self.builder.add(layer)))]
        weights = 2 * model.hidden**2
        joined = Layer(f"{name}.projection", "linear", 2.0 * weights * model.sequence, weights, output, split="tokens")
        x = self.builder.add(joined, parts)
        self.builder.block = model.layers + number
        x = self.block(model.layers + number, x)
        self.builder.block, self.builder.part = 0, "output head"
        return x

    def norm(self, name: str, x: int) -> int:
        """LayerNorm, or RMSNorm if the model has no norm_bias, of each token."""
        output = self.builder.output_elements(x)
        weights = int(output) // self.model.sequence * (2 if self.model.norm_bias else 1)
        layer = Layer(name, "normalization", output_elements=output, parameters=weights, split="tokens", part="norms")
        return self.builder.add(layer, [x])

    def projection(self, name: str, x: int, matrix: _Matrix, *, tokens: int = 0, dropout: bool = False) -> int:
        """A linear map of each of `tokens` tokens (0: all), then dropout if asked."""
        output = (tokens or self.model.sequence) * matrix.columns
        weights, bias = (columns := matrix.columns * (matrix.experts or 1)) * matrix.rows, columns if matrix.bias else 0
        layer = Layer(
            name,
            "linear",
            output_elements=output,
            flop=2.0 * matrix.rows * output,
            parameters=(0 if matrix.tied else weights) + bias,
            tied_to=matrix.tied,
            tied_parameters=weights if matrix.tied else 0,
            stashed_bytes=MASK * output if dropout else 0.0,
            split=matrix.split,
            undivided=bias if matrix.split == "rows" else 0,
            experts=matrix.experts,
            **self.grouped((tokens or self.model.sequence) * matrix.key_values),
        )
        return self.builder.add(layer, [x])

    def grouped(self, key_values: float) -> dict[str, Any]:
        """Fields of a `Layer` about heads, if it holds keys and values of grouped-query attention."""
        if not key_values:
            return {}
        return {"heads": self.model.key_value_heads, "query_heads": self.model.heads, "key_values": key_values}

    def activation(self, name: str, x: int, output: float, split: Split = "", experts: int = 0) -> int:
        """GELU, tanh, ReLU or (from two halves) SwiGLU, out of place; the next layer keeps what a ReLU puts out."""
        layer = Layer(name, "activation", output_elements=output, split=split, experts=experts)
        return self.builder.add(layer, [x], keeps_inputs=not self.model.relu)

    def attention(self, name: str, x: int) -> list[int]:
        """Projections, attention, and the projection of its output."""
        model, latent = self.model, self.model.latent
        if latent is None:
            inputs, key, value = self.projected(name, x), model.head_size, model.head_size
        else:
            inputs, key, value = self.projected_up(name, x, latent), latent.plain + latent.rotary, latent.value
        queries = model.heads * model.sequence
        fused, attended = model.attention == "fused", model.sequence
        dropped = model.attention_dropout and not fused
        if fused:
            window = 0 if self.builder.block - 1 in model.whole else model.window
            attended = min(window or attended, attended)
            scores, beside = 0, FP32 * queries
        else:
            # softmax output; with dropout also the mask and what dropout puts out
            scores, beside = queries * attended * (1 + dropped), MASK * queries * attended * dropped
        layer = Layer(
            f"{name}.attention",
            "attention",
            output_elements=queries * value,
            flop=2.0 * queries * attended * (key + value),
            # every head has its copy of the key's rotary features
            stashed_elements=scores + (queries * latent.rotary if latent else 0),
            stashed_bytes=beside,
            # dropout reads and writes, too, and writes its mask, half of a 16-bit element each
            scratch_elements=queries * attended * (SCORE_MOVES[model.attention] + 2.5 * dropped),
            fused_pairs=(1.0 - attended / (2.0 * model.sequence) * (model.after == "language")) if fused else 0.0,
            split="heads",
            heads=model.heads if latent else model.key_value_heads,
            query_heads=model.heads,
            key_values=0 if latent else 2 * model.key_value_heads * model.head_size * model.sequence,
            head_size=value,
            causal_tokens=model.sequence if model.after == "language" else 0,
        )
        y = self.builder.add(layer, inputs)
        matrix = _Matrix(model.heads * value, model.hidden, model.output_bias, split="rows")
        return [self.projection(f"{name}.projection", y, matrix, dropout=model.dropout)]

    def projected(self, name: str, x: int) -> list[int]:
        """Queries, keys and values of one projection; where heads are normalized, queries and keys once more."""
        model = self.model
        queries_and_keys = (model.heads + model.key_value_heads) * model.head_size
        values = model.key_value_heads * model.head_size
        matrix = _Matrix(
            model.hidden, queries_and_keys + values, model.attention_bias, split="columns", key_values=2 * values
        )
        y = self.projection(f"{name}.qkv", x, matrix)
        if not model.head_norm:
            return [y]

        kept = self.grouped(model.sequence * values)

        def part(word: str, width: int) -> int:
            """A view of some features, which is kept without the others."""
            output = model.sequence * width
            return self.builder.add(
                Layer(f"{name}.{word}", "reshape", output_elements=output, split="features", **kept), [y]
            )

        whole, value = part("query_key", queries_and_keys), part("value", values)
        layer = Layer(
            f"{name}.head_norm",
            "normalization",
            output_elements=model.sequence * queries_and_keys,
            parameters=2 * model.head_size,
            split="features",
            **kept,
        )
        return [self.builder.add(layer, [whole]), value]

    def projected_up(self, name: str, x: int, latent: LatentAttention) -> list[int]:
        """Queries, and keys and values, of latent attention."""
        model, query = self.model, latent.plain + latent.rotary

        def two(part: str, rank: int, beside: int, columns: int) -> int:
            down = _Matrix(model.hidden, rank + beside, bias=False, split="tokens")
            y = self.projection(f"{name}.{part}_down", x, down)
            layer = Layer(
                f"{name}.{part}_norm",
                "normalization",
                output_elements=model.sequence * rank,
                parameters=rank,
                split="tokens",
            )
            up = _Matrix(rank, columns, bias=False, split="columns")
            return self.projection(f"{name}.{part}_up", self.builder.add(layer, [y]), up)

        if latent.query_rank:
            queries = two("query", latent.query_rank, 0, model.heads * query)
        else:
            straight = _Matrix(model.hidden, model.heads * query, bias=False, split="columns")
            queries = self.projection(f"{name}.query", x, straight)
        columns = model.heads * (latent.plain + latent.value)
        return [queries, two("key_value", latent.key_value_rank, latent.rotary, columns)]

    def mlp(self, name: str, x: int) -> list[int]:
        return [self.perceptron(name, x, self.model.intermediate)]

    def perceptron(self, name: str, x: int, width: int, experts: Experts | None = None) -> int:
        """Up, activation, down; of each token once, or in the experts that it goes through."""
        model = self.model
        count, tokens = (experts.count, experts.active * model.sequence) if experts else (0, model.sequence)
        columns = width * (2 if model.gated else 1)
        up = _Matrix(model.hidden, columns, model.mlp_bias, split="columns", experts=count)
        y = self.projection(f"{name}.mlp_up", x, up, tokens=tokens)
        if model.clamped:
            y = self.activation(f"{name}.clamp", y, tokens * columns, "features", count)
            layer = Layer(
                f"{name}.join", "elementwise", output_elements=tokens * columns, split="features", experts=count
            )
            y = self.builder.add(layer, [y])
        y = self.activation(f"{name}.activation", y, tokens * width, "features", count)
        down = _Matrix(width, model.hidden, model.mlp_bias, split="rows", experts=count)
        y = self.projection(f"{name}.mlp_down", y, down, tokens=tokens, dropout=model.dropout)
        return self.expert_bias(f"{name}.bias", y, count) if count and model.mlp_bias else y

    def expert_bias(self, name: str, x: int, experts: int) -> int:
        """The bias of each token's expert, weighted as the expert is, added behind the grouped products, which cannot add it."""
        output = self.builder.output_elements(x)
        scratch = EXPERT_BIAS * output
        layer = Layer(
            name, "elementwise", output_elements=output, scratch_elements=scratch, split="tokens", experts=experts
        )
        return self.builder.add(layer, [x])

    def mixture(self, experts: Experts, name: str, x: int) -> list[int]:
        """Router, a copy of each token for every expert that it goes through, these, their weighted sum; shared experts."""
        model = self.model
        router = _Matrix(model.hidden, experts.count, experts.bias, split="tokens")
        shares = self.projection(f"{name}.router", x, router)
        copies = model.sequence * experts.active * model.hidden
        layer = Layer(f"{name}.dispatch", "elementwise", output_elements=copies, split="tokens")
        y = self.builder.add(layer, [x, shares])
        y = self.perceptron(f"{name}.experts", y, experts.intermediate, experts)
        output = model.sequence * model.hidden
        layer = Layer(f"{name}.combine", "elementwise", output_elements=output, split="tokens")
        y = self.builder.add(layer, [y, shares], keeps_inputs=True)
        if not experts.shared:
            return [y]
        shared = self.perceptron(f"{name}.shared", x, experts.shared)
        if experts.shared_gate:
            gate = self.projection(f"{name}.shared.gate", x, _Matrix(model.hidden, 1, bias=False, split="tokens"))
            layer = Layer(f"{name}.shared.weighted", "elementwise", output_elements=output, split="tokens")
            shared = self.builder.add(layer, [shared, gate], keeps_inputs=True)
        return [y, shared]

    def heads(self, x: int) -> list[int]:
        """The tensors that the loss reads."""
        model = self.model
        if model.word_features != model.hidden:
            x = self.projection("word_out", x, _Matrix(model.hidden, model.word_features, bias=False, split="tokens"))
        bias = model.after != "language"
        tied = "embedding" if model.tied else ""
        words = _Matrix(model.word_features, model.vocabulary, bias, tied=tied, split="columns")
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
