"""The reader of Hugging Face config.json files; the configurations are written here from published sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.workloads.gpt import gpt2
from simulator.workloads.huggingface import ConfigFormatError, read_config

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
LLAMA2 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
LLAMA3 = LLAMA2 | {
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}


def written(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (GPT2, 124_439_808),
        (LLAMA2, 6_738_415_616),
        (LLAMA3, 8_030_261_248),
        (BERT, 335_141_888),
        (BERT | {"architectures": ["BertForPreTraining"]}, 336_226_108),
        (GPT2 | {"tie_word_embeddings": False}, 124_439_808 + 50257 * 768),
        (LLAMA2 | {"tie_word_embeddings": True}, 6_738_415_616 - 32000 * 4096),
        (LLAMA2 | {"attention_bias": True}, 6_738_415_616 + 32 * 4 * 4096),
        (LLAMA2 | {"mlp_bias": True}, 6_738_415_616 + 32 * (2 * 11008 + 4096)),
        (LLAMA2 | {"head_dim": 64}, 6_738_415_616 - 32 * 4 * 4096 * 2048),
        (GPT2 | {"n_inner": 768, "n_layer": 12}, 124_439_808 - 12 * (6 * 768 * 768 + 3 * 768)),
    ],
)
def test_parameters_of_published_models(config: dict[str, object], parameters: int, tmp_path: Path) -> None:
    """Llama 2 7B, Llama 3 8B, GPT-2 and BERT-large as published, and what each option changes."""
    assert read_config(written(tmp_path, config)).parameters() == parameters


def test_gpt2_from_a_configuration_is_the_built_in_one(tmp_path: Path) -> None:
    """The same layers, so 583.2966144 GFLOP for 2 sequences of 1024 tokens."""
    workload = read_config(written(tmp_path, GPT2))
    assert workload.layers == gpt2().layers
    assert 2 * workload.flop() == 583_296_614_400
    assert workload.name == tmp_path.name


def test_the_sequence_can_be_shorter_than_the_longest(tmp_path: Path) -> None:
    """512 tokens: the learned positions stay."""
    assert read_config(written(tmp_path, GPT2), sequence=512).layers == gpt2(512).layers


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"model_type": "t5"}, "model_type must be one of gpt2, llama, bert, got 't5'"),
        ({"model_type": None}, "model_type must be one of gpt2, llama, bert, got None"),
        ({"n_layer": 0}, "n_layer must be a whole number from 1 to 10000, got 0"),
        ({"n_layer": "12"}, "n_layer must be a whole number from 1 to 10000, got '12'"),
        ({"n_embd": True}, "n_embd must be a whole number from 1 to 10000000, got True"),
        ({"n_embd": 770}, r"n_embd must be a multiple of n_head \(12\), got 770"),
        ({"resid_pdrop": 2}, "resid_pdrop must be a probability from 0 to 1, got 2"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
        (
            BERT | {"architectures": ["BertForTea"]},
            "architectures must name one of BertModel, .*'BertForTea'",
        ),
        (BERT | {"architectures": 3}, "architectures must name one of BertModel, .*got 3"),
        (BERT | {"architectures": [[]]}, r"architectures must name one of BertModel, .*got \[\[\]\]"),
        (
            LLAMA2 | {"num_key_value_heads": 5},
            r"num_attention_heads must be a multiple of num_key_value_heads \(5\), got 32",
        ),
    ],
)
def test_a_bad_value_names_file_key_value_and_rule(change: dict[str, object], rule: str, tmp_path: Path) -> None:
    """One line."""
    path = written(tmp_path, GPT2 | change)
    with pytest.raises(ConfigFormatError, match=f"^{path}: {rule}") as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


def test_a_missing_size_is_named(tmp_path: Path) -> None:
    """Sizes have no silent default."""
    path = written(tmp_path, {key: value for key, value in GPT2.items() if key != "n_head"})
    with pytest.raises(ConfigFormatError, match="n_head must be a whole number from 1 to 10000000, it is missing"):
        read_config(path)


def test_a_sequence_beyond_the_learned_positions_is_refused(tmp_path: Path) -> None:
    """GPT-2 has 1,024 positions."""
    with pytest.raises(ConfigFormatError, match=r"at most its learned positions \(1024\), got 2000"):
        read_config(written(tmp_path, GPT2), sequence=2000)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", ":1: not JSON: Expecting value"),
        (b'{\n"model_type": \n}', ":3: not JSON: Expecting value"),
        (b"[" * 100_000, ": not usable JSON"),
        (b"1" * 5000, ": not usable JSON"),
        (b"[]", ": must be a JSON object, got a list"),
        (b"\xff\xfe\x00", ": not a text file"),
    ],
)
def test_what_is_not_a_configuration_is_refused(content: bytes, rule: str, tmp_path: Path) -> None:
    """Empty, cut short, another JSON value, binary."""
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigFormatError, match=f"^{path}{rule}"):
        read_config(path)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    """The system's reason is given."""
    with pytest.raises(ConfigFormatError, match=r"none\.json: cannot be read: No such file"):
        read_config(tmp_path / "none.json")
    with pytest.raises(ConfigFormatError, match="cannot be read: Is a directory"):
        read_config(tmp_path)
