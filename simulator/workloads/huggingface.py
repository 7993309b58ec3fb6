"""Hugging Face configuration: a model's `config.json`, read as a workload.

One table per architecture says which keys are read, under the names of `Transformer`, and what follows from several of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import field

from hardware_profiles import explained, shown
from simulator.workloads.language_models import Bert, Gpt, Llama, Opt
from simulator.workloads.layers import Attention, Workload
from simulator.workloads.network_files import LARGEST_SIZE, WORKLOAD_FILES, WorkloadFileError, read_json
from simulator.workloads.transformer import MOST_BLOCKS, Experts, Heads, LatentAttention, Transformer

BERT_HEADS: dict[str, Heads] = {"BertModel": "pooler", "BertForMaskedLM": "masked", "BertForPreTraining": "pretraining"}
"""What follows the encoder, by the first of the `architectures` of a BERT configuration."""

LONGEST_MEANT = 8192
"""Tokens of a longest sequence up to which it is taken for the one that the model is trained on: beyond it (Llama 3.1 131,072,
DeepSeek-V3 163,840) it is what a context was stretched to after nearly all of the training."""

_Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_SIZE)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SIZE)]
_Blocks = Annotated[int, msgspec.Meta(ge=1, le=MOST_BLOCKS)]
_Further = Annotated[int, msgspec.Meta(ge=0, le=MOST_BLOCKS)]
_Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Config(msgspec.Struct, kw_only=True, frozen=True):
    """Keys of every architecture."""

    layers: _Blocks = field(name="num_hidden_layers")
    hidden: _Count = field(name="hidden_size")
    heads: _Count = field(name="num_attention_heads")
    vocabulary: _Count = field(name="vocab_size")

    def derived(self) -> dict[str, Any]:
        """Arguments of `Transformer` that follow from several keys; ValueError if the keys contradict each other."""
        return {}


class _Gpt2(_Config, kw_only=True, frozen=True):
    layers: _Blocks = field(name="n_layer")
    hidden: _Count = field(name="n_embd")
    heads: _Count = field(name="n_head")
    positions: _Count = field(name="n_positions")
    intermediate: _Count | None = field(name="n_inner", default=None)
    tied: bool = field(name="tie_word_embeddings", default=True)
    resid_pdrop: _Probability = 0.1
    embd_pdrop: _Probability = 0.1
    attn_pdrop: _Probability = 0.1

    def derived(self) -> dict[str, Any]:
        return {"dropout": self.resid_pdrop + self.embd_pdrop > 0, "attention_dropout": self.attn_pdrop > 0}


class _Opt(_Config, kw_only=True, frozen=True):
    intermediate: _Count = field(name="ffn_dim")
    positions: _Count = field(name="max_position_embeddings")
    word_features: _Count | None = field(name="word_embed_proj_dim", default=None)
    norm_first: bool = field(name="do_layer_norm_before", default=True)
    tied: bool = field(name="tie_word_embeddings", default=True)
    activation_function: str = "relu"
    hidden_dropout: _Probability = field(name="dropout", default=0.1)
    score_dropout: _Probability = field(name="attention_dropout", default=0.0)

    def derived(self) -> dict[str, Any]:
        return {
            "relu": self.activation_function == "relu",
            "dropout": self.hidden_dropout > 0,
            "attention_dropout": self.score_dropout > 0,
        }


class _Bert(_Config, kw_only=True, frozen=True):
    intermediate: _Count = field(name="intermediate_size")
    positions: _Count = field(name="max_position_embeddings")
    other_rows: _Count | None = field(name="type_vocab_size", default=None)
    architectures: list[str] | None = None
    hidden_dropout_prob: _Probability = 0.1
    attention_probs_dropout_prob: _Probability = 0.1

    def derived(self) -> dict[str, Any]:
        first = (self.architectures or ["BertModel"])[0]
        if first not in BERT_HEADS:
            raise ValueError(f"$.architectures[0] = {shown(first)}: must be one of {', '.join(BERT_HEADS)}")
        return {
            "after": BERT_HEADS[first],
            "dropout": self.hidden_dropout_prob > 0,
            "attention_dropout": self.attention_probs_dropout_prob > 0,
        }


class _Llama(_Config, kw_only=True, frozen=True):
    """Keys of Llama, which Mistral, Qwen and DeepSeek share."""

    intermediate: _Count = field(name="intermediate_size")
    longest: _Count | None = field(name="max_position_embeddings", default=None)
    key_value_heads: _Count | None = field(name="num_key_value_heads", default=None)
    head_size: _Count | None = field(name="head_dim", default=None)
    tied: bool = field(name="tie_word_embeddings", default=False)
    attention_bias: bool = False
    mlp_bias: bool = False
    score_dropout: _Probability = field(name="attention_dropout", default=0.0)

    def derived(self) -> dict[str, Any]:
        return {"attention_dropout": self.score_dropout > 0, "output_bias": self.attention_bias}


class _Grouped(_Llama, kw_only=True, frozen=True):
    """Architectures whose default number of key-value heads is that of one published size: a file must give it, or null."""

    key_value_heads: _Count | None = field(name="num_key_value_heads")


class _Mixtral(_Grouped, kw_only=True, frozen=True):
    window: _Count | None = field(name="sliding_window", default=None)
    count: _Count = field(name="num_local_experts")
    active: _Count = field(name="num_experts_per_tok")

    def derived(self) -> dict[str, Any]:
        return super().derived() | {"experts": Experts(self.count, self.active, self.intermediate)}


class _Mistral(_Grouped, kw_only=True, frozen=True):
    window: _Count | None = field(name="sliding_window")


class _Qwen(_Grouped, kw_only=True, frozen=True):
    """The first `max_window_layers` blocks have no window; newer files say it of each."""

    use_sliding_window: bool = False
    sliding_window: _Count | None = None
    max_window_layers: _Natural = 28
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None

    def derived(self) -> dict[str, Any]:
        sizes = super().derived()
        if not self.use_sliding_window or not self.sliding_window:
            return sizes
        if self.layer_types is None:
            return sizes | {
                "window": self.sliding_window,
                "whole": tuple(range(min(self.max_window_layers, self.layers))),
            }
        if len(self.layer_types) != self.layers:
            raise ValueError(
                f"$.layer_types: has {len(self.layer_types)} kinds, and there are {self.layers} num_hidden_layers"
            )
        whole = tuple(block for block, kind in enumerate(self.layer_types) if kind == "full_attention")
        return sizes | {"window": self.sliding_window, "whole": whole}


class _Qwen3(_Qwen, kw_only=True, frozen=True):
    head_size: _Count = field(name="head_dim")


class _QwenExperts(_Qwen, kw_only=True, frozen=True):
    count: _Count = field(name="num_experts")
    active: _Count = field(name="num_experts_per_tok")
    width: _Count = field(name="moe_intermediate_size")
    shared: _Natural = 0
    decoder_sparse_step: _Count = 1
    mlp_only_layers: list[_Natural] = []

    def derived(self) -> dict[str, Any]:
        for place, block in enumerate(self.mlp_only_layers):
            if block >= self.layers:
                raise ValueError(
                    f"$.mlp_only_layers[{place}] = {block}: blocks are counted from 0, and there are {self.layers} "
                    "num_hidden_layers"
                )
        step, plain = self.decoder_sparse_step, set(self.mlp_only_layers)
        dense = tuple(block for block in range(self.layers) if block in plain or (block + 1) % step)
        experts = Experts(self.count, self.active, self.width, self.shared, shared_gate=self.shared > 0, dense=dense)
        return super().derived() | {"experts": experts}


class _Qwen2Experts(_QwenExperts, kw_only=True, frozen=True):
    shared: _Natural = field(name="shared_expert_intermediate_size")


class _DeepSeek2(_Llama, kw_only=True, frozen=True):
    query_rank: _Count | None = field(name="q_lora_rank")
    key_value_rank: _Count = field(name="kv_lora_rank")
    plain: _Count = field(name="qk_nope_head_dim")
    rotary: _Count = field(name="qk_rope_head_dim")
    value: _Count = field(name="v_head_dim")
    count: _Count = field(name="n_routed_experts")
    active: _Count = field(name="num_experts_per_tok")
    width: _Count = field(name="moe_intermediate_size")
    n_shared_experts: _Natural | None
    first_k_dense_replace: _Natural
    moe_layer_freq: _Count = 1

    def derived(self) -> dict[str, Any]:
        first, frequency = self.first_k_dense_replace, self.moe_layer_freq
        experts = Experts(
            self.count,
            self.active,
            self.width,
            shared=(self.n_shared_experts or 0) * self.width,
            dense=tuple(block for block in range(self.layers) if block < first or block % frequency),
        )
        latent = LatentAttention(self.query_rank or 0, self.key_value_rank, self.plain, self.rotary, self.value)
        return super().derived() | {"experts": experts, "latent": latent}


class _DeepSeek3(_DeepSeek2, kw_only=True, frozen=True):
    further: _Further = field(name="num_nextn_predict_layers", default=0)

    def derived(self) -> dict[str, Any]:
        sizes = super().derived()
        return sizes | {
            "experts": replace(sizes["experts"], bias=True)
        }  # balances the experts without a loss of its own


_QWEN2 = {"attention_bias": True, "output_bias": False}

CONFIGURATIONS: dict[str, tuple[type[_Config], type[Transformer], Mapping[str, Any]]] = {
    "gpt2": (_Gpt2, Gpt, {}),
    "opt": (_Opt, Opt, {}),
    "bert": (_Bert, Bert, {}),
    "llama": (_Llama, Llama, {}),
    "mistral": (_Mistral, Llama, {}),
    "mixtral": (_Mixtral, Llama, {}),
    "qwen2": (_Qwen, Llama, _QWEN2),
    "qwen2_moe": (_Qwen2Experts, Llama, _QWEN2),
    "qwen3": (_Qwen3, Llama, {"head_norm": True}),
    "qwen3_moe": (_QwenExperts, Llama, {"head_norm": True}),
    "deepseek_v2": (_DeepSeek2, Llama, {}),
    "deepseek_v3": (_DeepSeek3, Llama, {}),
}
"""By `model_type`: the table of keys that are read (others are passed over), the family, and what no key says."""


def _sizes(config: _Config, sequence: int | None) -> dict[str, Any]:
    """The arguments of the family that a configuration gives; ValueError where its sizes do not fit together."""
    said = {name: value for name, value in msgspec.structs.asdict(config).items() if value is not None}
    key = dict(zip(config.__struct_fields__, config.__struct_encode_fields__, strict=True))
    of_heads = "" if {"head_size", "key_value_rank"} & set(said) else "heads"
    for size, divisor in (("hidden", of_heads), ("heads", "key_value_heads")):
        if divisor in said and said[size] % said[divisor]:
            raise ValueError(f"$.{key[size]} = {said[size]}: must be a multiple of {key[divisor]} ({said[divisor]})")
    sizes = {one.name: said[one.name] for one in fields(Transformer) if one.name in said} | config.derived()
    longest = "positions" if "positions" in key else "longest"
    tokens = said.get(longest) if sequence is None else sequence
    if tokens is None:
        raise ValueError(f"$.{key[longest]}: is missing, and so is a sequence length in its place")
    if sequence is None and tokens > LONGEST_MEANT:
        raise ValueError(
            f"$.{key[longest]} = {tokens}: is more than a model is usually trained on ({LONGEST_MEANT} tokens at most); "
            "give the tokens of a sample (--sequence)"
        )
    return sizes | {"sequence": tokens}


def read_config(path: str | Path, sequence: int | None = None, attention: Attention | None = None) -> Workload:
    """Read a Hugging Face `config.json` as an analytic workload, named after its folder.

    sequence: tokens of a sample (None: the model's longest, `n_positions` or `max_position_embeddings`, if that is at most
        LONGEST_MEANT)
    attention: None: as the family was trained (see `simulator.workloads.language_models`)

    Sizes must be in the file, but for the longest sequence of a model with rotary positions where one is given, and so must what
    Hugging Face defaults to a number of one model (the 8 `num_key_value_heads` of Mistral 7B); what it defaults otherwise
    (`tie_word_embeddings`, biases, dropouts, `n_inner`, `num_key_value_heads` of a Llama, …) defaults as there.

    Raises WorkloadFileError (one line) for a file that is missing, a directory, not JSON, of an architecture that is not
    known (with the nearest), or whose sizes are missing, not whole numbers, or do not fit together.
    """
    path = Path(path)
    try:
        document = read_json(path)
        if not isinstance(document, dict):
            complaint = f"{path}: must be a JSON object, got a {type(document).__name__}"
            raise WorkloadFileError(complaint, complaint)
        if "model_type" not in document:
            complaint = f"{path}: $.model_type: is missing"
            raise WorkloadFileError(complaint, complaint)
    except WorkloadFileError as error:
        raise WorkloadFileError(f"{error}; {WORKLOAD_FILES}", f"{error.untold}; {WORKLOAD_FILES}") from error
    model_type = document["model_type"]
    if not isinstance(model_type, str) or model_type not in CONFIGURATIONS:
        raise WorkloadFileError(
            f"{path}: $.model_type = {shown(model_type)}: is not known, nearest is {_nearest(str(model_type)[:60], document)}; "
            f"choose from {', '.join(CONFIGURATIONS)}",
            f"{path}: $.model_type: must be one of {', '.join(CONFIGURATIONS)}",
        )
    kind, family, fixed = CONFIGURATIONS[model_type]
    # The folder's name where the file is just called config.json, else the file's.
    name = path.absolute().parent.name or path.stem if path.stem == "config" else path.stem
    try:
        sizes = {**_sizes(msgspec.convert(document, kind), sequence), **fixed, "name": name}
        return family(**sizes if attention is None else {**sizes, "attention": attention}).workload()
    except msgspec.ValidationError as error:
        raise WorkloadFileError(*(f"{path}: {told}" for told in explained(str(error), document, kind))) from error
    except ValueError as error:  # sizes that do not fit together: the family says which
        untold = f"{path}: its sizes do not fit together, or not with the sequence and the attention asked for"
        raise WorkloadFileError(f"{path}: {error}", untold) from error


def _nearest(model_type: str, document: Mapping[str, Any]) -> str:
    """The architecture that reads most of a configuration's keys and misses none of its own; a name that is alike counts two."""

    def likeness(name: str) -> float:
        keys = msgspec.structs.fields(CONFIGURATIONS[name][0])
        read = sum(key.encode_name in document for key in keys)
        missed = sum(key.required and key.encode_name not in document for key in keys)
        return read - missed + 2 * SequenceMatcher(None, model_type, name).ratio()

    return max(CONFIGURATIONS, key=likeness)
