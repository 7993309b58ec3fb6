"""Hugging Face configuration: a model's `config.json` of GPT-2, Llama or BERT shape, read as a workload."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import field

from hardware_profiles import explained, shown
from simulator.workloads.language_models import Bert, Gpt, Llama
from simulator.workloads.layers import Workload
from simulator.workloads.network_files import LARGEST_SIZE, WorkloadFileError, read_json
from simulator.workloads.transformer import MOST_BLOCKS, Heads, Transformer

BERT_HEADS: dict[str, Heads] = {"BertModel": "pooler", "BertForMaskedLM": "masked", "BertForPreTraining": "pretraining"}
"""What follows the encoder, by the first of the `architectures` of a BERT configuration."""

_Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_SIZE)]
_Blocks = Annotated[int, msgspec.Meta(ge=1, le=MOST_BLOCKS)]
_Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Gpt2(msgspec.Struct, kw_only=True, frozen=True):
    layers: _Blocks = field(name="n_layer")
    hidden: _Count = field(name="n_embd")
    heads: _Count = field(name="n_head")
    positions: _Count = field(name="n_positions")
    vocabulary: _Count = field(name="vocab_size")
    intermediate: _Count | None = field(name="n_inner", default=None)
    tied: bool = field(name="tie_word_embeddings", default=True)
    resid_pdrop: _Probability = 0.1
    embd_pdrop: _Probability = 0.1
    attn_pdrop: _Probability = 0.1


class _Llama(msgspec.Struct, kw_only=True, frozen=True):
    layers: _Blocks = field(name="num_hidden_layers")
    hidden: _Count = field(name="hidden_size")
    heads: _Count = field(name="num_attention_heads")
    intermediate: _Count = field(name="intermediate_size")
    vocabulary: _Count = field(name="vocab_size")
    longest: _Count | None = field(name="max_position_embeddings", default=None)
    key_value_heads: _Count | None = field(name="num_key_value_heads", default=None)
    head_size: _Count | None = field(name="head_dim", default=None)
    tied: bool = field(name="tie_word_embeddings", default=False)
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: _Probability = 0.0


class _Bert(msgspec.Struct, kw_only=True, frozen=True):
    layers: _Blocks = field(name="num_hidden_layers")
    hidden: _Count = field(name="hidden_size")
    heads: _Count = field(name="num_attention_heads")
    intermediate: _Count = field(name="intermediate_size")
    positions: _Count = field(name="max_position_embeddings")
    vocabulary: _Count = field(name="vocab_size")
    token_types: _Count | None = field(name="type_vocab_size", default=None)
    architectures: list[str] | None = None
    hidden_dropout_prob: _Probability = 0.1
    attention_probs_dropout_prob: _Probability = 0.1


CONFIGURATIONS: dict[str, tuple[type[_Gpt2 | _Llama | _Bert], type[Transformer]]] = {
    "gpt2": (_Gpt2, Gpt),
    "llama": (_Llama, Llama),
    "bert": (_Bert, Bert),
}
"""What the file says, under the names of `Transformer`, and the family; by `model_type`. Keys not named are passed over."""


def _sizes(config: _Gpt2 | _Llama | _Bert, sequence: int | None) -> dict[str, Any]:
    """The arguments of the family that a configuration gives; ValueError where its sizes do not fit together."""
    said = {name: value for name, value in msgspec.structs.asdict(config).items() if value is not None}
    key = dict(zip(config.__struct_fields__, config.__struct_encode_fields__, strict=True))
    for size, divisor in (("hidden", "" if "head_size" in said else "heads"), ("heads", "key_value_heads")):
        if divisor in said and said[size] % said[divisor]:
            raise ValueError(f"$.{key[size]} = {said[size]}: must be a multiple of {key[divisor]} ({said[divisor]})")
    tokens = said.get("positions", said.get("longest")) if sequence is None else sequence
    if tokens is None:
        raise ValueError("$.max_position_embeddings: is missing, and so is a sequence length in its place")
    sizes = {one.name: said[one.name] for one in fields(Transformer) if one.name in said}
    sizes |= {"sequence": tokens, "dropout": any(value > 0 for name, value in said.items() if "drop" in name)}
    if isinstance(config, _Bert):
        first = (config.architectures or ["BertModel"])[0]
        if first not in BERT_HEADS:
            raise ValueError(f"$.architectures[0] = {shown(first)}: must be one of {', '.join(BERT_HEADS)}")
        sizes["after"] = BERT_HEADS[first]
    return sizes


def read_config(path: str | Path, sequence: int | None = None) -> Workload:
    """Read a Hugging Face `config.json` as an analytic workload, named after its folder.

    sequence: tokens of a sample (None: the model's longest, `n_positions` or `max_position_embeddings`)

    Sizes must be in the file, but for a Llama's longest sequence where one is given; what Hugging Face defaults
    (`tie_word_embeddings`, biases, dropouts, `n_inner`, `num_key_value_heads`, `head_dim`, `type_vocab_size`,
    `architectures`) defaults as there. One dropout above 0 turns all of them on.

    Raises WorkloadFileError (one line) for a file that is missing, a directory, not JSON, of another model
    type, or whose sizes are missing, not whole numbers, or do not fit together.
    """
    path = Path(path)
    document = read_json(path)
    if not isinstance(document, dict):
        raise WorkloadFileError(f"{path}: must be a JSON object, got a {type(document).__name__}")
    model_type = document.get("model_type", "(absent)")
    if not isinstance(model_type, str) or model_type not in CONFIGURATIONS:
        raise WorkloadFileError(
            f"{path}: $.model_type = {shown(model_type)}: must be one of {', '.join(CONFIGURATIONS)}"
        )
    kind, family = CONFIGURATIONS[model_type]
    # The folder's name where the file is just called config.json, else the file's.
    name = path.absolute().parent.name or path.stem if path.stem == "config" else path.stem
    try:
        return family(**_sizes(msgspec.convert(document, kind), sequence), name=name).workload()
    except msgspec.ValidationError as error:
        raise WorkloadFileError(f"{path}: {explained(str(error), document, kind)}") from error
    except ValueError as error:  # sizes that do not fit together: the family says which
        raise WorkloadFileError(f"{path}: {error}") from error
