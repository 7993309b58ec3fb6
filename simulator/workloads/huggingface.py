"""Hugging Face configuration: a model's `config.json` of GPT-2, Llama or BERT shape, read as a workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from hardware_profiles import explained, shown
from simulator.workloads.language_models import Bert, Gpt, Llama
from simulator.workloads.layers import Workload
from simulator.workloads.network_files import LARGEST_SIZE, WorkloadFileError, read_json
from simulator.workloads.transformer import MOST_BLOCKS, Heads, Transformer

BERT_HEADS: dict[str, Heads] = {
    "BertModel": "pooler",
    "BertForMaskedLM": "masked",
    "BertForPreTraining": "pretraining",
}
"""What follows the encoder, by the first of the `architectures` of a BERT configuration."""

_Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_SIZE)]
_Blocks = Annotated[int, msgspec.Meta(ge=1, le=MOST_BLOCKS)]
_Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Gpt2(msgspec.Struct, kw_only=True, frozen=True):
    n_layer: _Blocks
    n_embd: _Count
    n_head: _Count
    n_positions: _Count
    vocab_size: _Count
    n_inner: _Count | None = None
    tie_word_embeddings: bool = True
    resid_pdrop: _Probability = 0.1
    embd_pdrop: _Probability = 0.1
    attn_pdrop: _Probability = 0.1

    def model(self, name: str, sequence: int | None, flash: bool) -> Transformer:
        _check_multiple(self, "n_embd", "n_head")
        return Gpt(
            self.n_layer,
            self.n_embd,
            self.n_head,
            self.n_positions if sequence is None else sequence,
            self.vocab_size,
            self.n_positions,
            intermediate=self.n_inner or 0,
            tied=self.tie_word_embeddings,
            dropout=max(self.resid_pdrop, self.embd_pdrop, self.attn_pdrop) > 0,
            flash=flash,
            name=name,
        )


class _Llama(msgspec.Struct, kw_only=True, frozen=True):
    num_hidden_layers: _Blocks
    hidden_size: _Count
    num_attention_heads: _Count
    intermediate_size: _Count
    vocab_size: _Count
    max_position_embeddings: _Count | None = None
    num_key_value_heads: _Count | None = None
    head_dim: _Count | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: _Probability = 0.0

    def model(self, name: str, sequence: int | None, flash: bool) -> Transformer:
        if self.head_dim is None:
            _check_multiple(self, "hidden_size", "num_attention_heads")
        if self.num_key_value_heads is not None:
            _check_multiple(self, "num_attention_heads", "num_key_value_heads")
        tokens = self.max_position_embeddings if sequence is None else sequence
        if tokens is None:
            raise ValueError("$.max_position_embeddings: is missing, and so is a sequence length in its place")
        return Llama(
            self.num_hidden_layers,
            self.hidden_size,
            self.num_attention_heads,
            tokens,
            self.vocab_size,
            intermediate=self.intermediate_size,
            key_value_heads=self.num_key_value_heads or 0,
            head_size=self.head_dim or 0,
            tied=self.tie_word_embeddings,
            attention_bias=self.attention_bias,
            mlp_bias=self.mlp_bias,
            dropout=self.attention_dropout > 0,
            flash=flash,
            name=name,
        )


class _Bert(msgspec.Struct, kw_only=True, frozen=True):
    num_hidden_layers: _Blocks
    hidden_size: _Count
    num_attention_heads: _Count
    intermediate_size: _Count
    max_position_embeddings: _Count
    vocab_size: _Count
    type_vocab_size: _Count | None = None
    architectures: list[str] | None = None
    hidden_dropout_prob: _Probability = 0.1
    attention_probs_dropout_prob: _Probability = 0.1

    def model(self, name: str, sequence: int | None, flash: bool) -> Transformer:
        _check_multiple(self, "hidden_size", "num_attention_heads")
        first = (self.architectures or ["BertModel"])[0]
        if first not in BERT_HEADS:
            raise ValueError(f"$.architectures[0] = {shown(first)}: must be one of {', '.join(BERT_HEADS)}")
        return Bert(
            self.num_hidden_layers,
            self.hidden_size,
            self.num_attention_heads,
            self.max_position_embeddings if sequence is None else sequence,
            self.vocab_size,
            self.max_position_embeddings,
            self.type_vocab_size or 2,
            self.intermediate_size,
            after=BERT_HEADS[first],
            dropout=max(self.hidden_dropout_prob, self.attention_probs_dropout_prob) > 0,
            flash=flash,
            name=name,
        )


CONFIGURATIONS: dict[str, type[_Gpt2 | _Llama | _Bert]] = {"gpt2": _Gpt2, "llama": _Llama, "bert": _Bert}
"""What the file says, by `model_type`; keys that are not named are passed over."""


def _check_multiple(config: msgspec.Struct, key: str, divisor: str) -> None:
    value, by = getattr(config, key), getattr(config, divisor)
    if value % by:
        raise ValueError(f"$.{key} = {value}: must be a multiple of {divisor} ({by})")


def read_config(path: str | Path, sequence: int | None = None, *, flash: bool = False) -> Workload:
    """Read a Hugging Face `config.json` as an analytic workload, named after its folder.

    sequence: tokens of a sample (None: the model's longest, `n_positions` or `max_position_embeddings`)
    flash: attention keeps no sequence×sequence tensor

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
    kind = CONFIGURATIONS[model_type]
    # The folder's name where the file is just called config.json, else the file's.
    name = path.absolute().parent.name or path.stem if path.stem == "config" else path.stem
    try:
        return msgspec.convert(document, kind).model(name, sequence, flash).workload()
    except msgspec.ValidationError as error:
        raise WorkloadFileError(f"{path}: {explained(str(error), document, kind)}") from error
    except ValueError as error:  # sizes that do not fit together: the family says which
        raise WorkloadFileError(f"{path}: {error}") from error
