"""Hugging Face configuration: a model's `config.json` of GPT-2, Llama or BERT shape, read as a workload."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hardware_profiles import read_bytes, shown
from simulator.workloads.bert import Heads, bert
from simulator.workloads.errors import LARGEST_SIZE, WorkloadFileError
from simulator.workloads.gpt import gpt
from simulator.workloads.layers import Workload
from simulator.workloads.llama import llama
from simulator.workloads.transformer import MOST_BLOCKS

BERT_HEADS: dict[str, Heads] = {
    "BertModel": "pooler",
    "BertForMaskedLM": "masked",
    "BertForPreTraining": "pretraining",
}
"""What follows the encoder, by the `architectures` entry of a BERT configuration."""


class ConfigFormatError(WorkloadFileError):
    """A config.json that cannot be used; the message is one line: file, key, value, rule."""


def read_config(path: str | Path, sequence: int | None = None, *, flash: bool = False) -> Workload:
    """Read a Hugging Face `config.json` as an analytic workload, named after its folder.

    sequence: tokens of a sample (None: the model's longest, `n_positions` or `max_position_embeddings`)
    flash: attention keeps no sequence×sequence tensor

    Sizes must be in the file; what Hugging Face defaults (`tie_word_embeddings`, biases, dropouts,
    `n_inner`, `num_key_value_heads`, `head_dim`, `type_vocab_size`, `architectures`) defaults as there. One
    dropout above 0 turns all of them on.

    Raises ConfigFormatError (one line) for a file that is missing, a directory, not JSON, of another model
    type, or whose sizes are missing, not whole numbers, or do not fit together.
    """
    config = _Config(Path(path))
    model_type = config.values.get("model_type")
    if not isinstance(model_type, str) or model_type not in READERS:
        raise config.error("model_type", f"must be one of {', '.join(READERS)}")
    try:
        return READERS[model_type](config, sequence, flash)
    except WorkloadFileError:
        raise
    except ValueError as error:  # sizes that do not fit together: the family says which
        raise ConfigFormatError(f"{config.path}: {error}") from error


class _Config:
    """The values of one file, fetched by key with their rule checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            values = json.loads(read_bytes(path))
        except OSError as error:
            raise ConfigFormatError(f"{path}: cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise ConfigFormatError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from error
        except json.JSONDecodeError as error:
            raise ConfigFormatError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, endless nesting
            raise ConfigFormatError(f"{path}: not usable JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigFormatError(f"{path}: must be a JSON object, got a {type(values).__name__}")
        self.values: dict[str, Any] = values

    @property
    def name(self) -> str:
        """The folder's name where the file is just called config.json, else the file's."""
        stem = self.path.stem
        return self.path.absolute().parent.name or stem if stem == "config" else stem

    def error(self, key: str, rule: str) -> ConfigFormatError:
        """The error for `key`: file, key, value, rule."""
        got = f"got {shown(self.values[key])}" if key in self.values else "it is missing"
        return ConfigFormatError(f"{self.path}: {key} {rule}, {got}")

    def count(self, key: str, default: int | None = None, most: int = LARGEST_SIZE) -> int:
        """A whole number from 1 to `most`; `default` if absent or null (None: the key is required)."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.error(key, f"must be a whole number from 1 to {most}")
        return value

    def multiple(self, key: str, divisor_key: str) -> None:
        """Check that one count is a multiple of another."""
        if self.count(key) % self.count(divisor_key):
            raise self.error(key, f"must be a multiple of {divisor_key} ({self.count(divisor_key)})")

    def flag(self, key: str, default: bool) -> bool:
        """true or false; `default` if absent."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def any_dropout(self, keys: tuple[str, ...], default: float) -> bool:
        """Whether one of these probabilities is above 0; each is `default` if absent."""
        on = False
        for key in keys:
            value = self.values.get(key, default)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise self.error(key, "must be a probability from 0 to 1")
            on = on or value > 0
        return on


def _gpt2(config: _Config, sequence: int | None, flash: bool) -> Workload:
    hidden, positions = config.count("n_embd"), config.count("n_positions")
    config.multiple("n_embd", "n_head")
    return gpt(
        config.count("n_layer", most=MOST_BLOCKS),
        hidden,
        config.count("n_head"),
        positions if sequence is None else sequence,
        config.count("vocab_size"),
        name=config.name,
        positions=positions,
        intermediate=config.count("n_inner", 4 * hidden),
        tied=config.flag("tie_word_embeddings", True),
        dropout=config.any_dropout(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1),
        flash=flash,
    )


def _llama(config: _Config, sequence: int | None, flash: bool) -> Workload:
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    head_size = None
    if config.values.get("head_dim") is not None:
        head_size = config.count("head_dim")
    else:
        config.multiple("hidden_size", "num_attention_heads")
    if config.values.get("num_key_value_heads") is not None:
        config.multiple("num_attention_heads", "num_key_value_heads")
    return llama(
        config.count("num_hidden_layers", most=MOST_BLOCKS),
        hidden,
        heads,
        config.count("intermediate_size"),
        config.count("max_position_embeddings") if sequence is None else sequence,
        config.count("vocab_size"),
        name=config.name,
        key_value_heads=config.count("num_key_value_heads", heads),
        head_size=head_size,
        tied=config.flag("tie_word_embeddings", False),
        attention_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        dropout=config.any_dropout(("attention_dropout",), 0.0),
        flash=flash,
    )


def _bert(config: _Config, sequence: int | None, flash: bool) -> Workload:
    hidden, positions = config.count("hidden_size"), config.count("max_position_embeddings")
    config.multiple("hidden_size", "num_attention_heads")
    architectures = config.values.get("architectures") or ["BertModel"]
    if not isinstance(architectures, list) or str(architectures[0]) not in BERT_HEADS:
        raise config.error("architectures", f"must name one of {', '.join(BERT_HEADS)}")
    return bert(
        config.count("num_hidden_layers", most=MOST_BLOCKS),
        hidden,
        config.count("num_attention_heads"),
        positions if sequence is None else sequence,
        config.count("vocab_size"),
        name=config.name,
        positions=positions,
        token_types=config.count("type_vocab_size", 2),
        intermediate=config.count("intermediate_size"),
        after=BERT_HEADS[architectures[0]],
        dropout=config.any_dropout(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.1),
        flash=flash,
    )


READERS: dict[str, Callable[[_Config, int | None, bool], Workload]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "bert": _bert,
}
"""Reader of each `model_type`."""
