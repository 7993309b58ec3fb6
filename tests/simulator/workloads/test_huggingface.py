"""The reader of Hugging Face config.json files; the configurations are written here from published sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.workloads.catalog import load_workload
from simulator.workloads.huggingface import read_config
from simulator.workloads.network_files import WorkloadFileError

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
    assert workload.layers == load_workload("gpt2").layers
    assert 2 * workload.flop() == 583_296_614_400
    assert workload.name == tmp_path.name


def test_the_sequence_can_be_shorter_than_the_longest(tmp_path: Path) -> None:
    """512 tokens: the learned positions stay."""
    assert read_config(written(tmp_path, GPT2), sequence=512).layers == load_workload("gpt2", 512).layers


def test_rotary_positions_need_no_longest_sequence(tmp_path: Path) -> None:
    """Llama learns no positions: a sequence that is given needs no `max_position_embeddings`, and without both none is known."""
    path = written(tmp_path, {key: value for key, value in LLAMA2.items() if key != "max_position_embeddings"})
    assert read_config(path, sequence=4096).layers == load_workload("llama2-7b").layers
    with pytest.raises(
        WorkloadFileError, match=r"\$\.max_position_embeddings: is missing, and so is a sequence length"
    ):
        read_config(path)


def test_the_first_architecture_is_the_model(tmp_path: Path) -> None:
    """Others may stand behind it, known or not."""
    path = written(tmp_path, BERT | {"architectures": ["BertForPreTraining", "BertForTea"]})
    assert read_config(path).parameters() == 336_226_108


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"model_type": "t5"}, r"\$\.model_type = \'t5\': must be one of gpt2, llama, bert"),
        ({"model_type": None}, r"\$\.model_type = None: must be one of gpt2, llama, bert"),
        ({"n_layer": 0}, r"\$\.n_layer = 0: expected `int` >= 1"),
        ({"n_layer": "12"}, r"\$\.n_layer = \'12\': expected `int`, got `str`"),
        ({"n_embd": True}, r"\$\.n_embd = True: expected `int`, got `bool`"),
        ({"n_embd": 770}, r"\$\.n_embd = 770: must be a multiple of n_head \(12\)"),
        ({"resid_pdrop": 2}, r"\$\.resid_pdrop = 2: expected `float` <= 1"),
        ({"tie_word_embeddings": 1}, r"\$\.tie_word_embeddings = 1: expected `bool`, got `int`"),
        (
            BERT | {"architectures": ["BertForTea"]},
            r"\$\.architectures\[0\] = \'BertForTea\': must be one of .*BertModel",
        ),
        (BERT | {"architectures": 3}, r"\$\.architectures = 3: expected `array . null`, got `int`"),
        (BERT | {"architectures": [[]]}, r"\$\.architectures\[0\] = \[\]: expected `str`"),
        (
            LLAMA2 | {"num_key_value_heads": 5},
            r"\$\.num_attention_heads = 32: must be a multiple of num_key_value_heads \(5\)",
        ),
    ],
)
def test_a_bad_value_names_file_key_value_and_rule(change: dict[str, object], rule: str, tmp_path: Path) -> None:
    """One line."""
    path = written(tmp_path, GPT2 | change)
    with pytest.raises(WorkloadFileError, match=f"^{path}: {rule}") as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


def test_a_missing_size_is_named(tmp_path: Path) -> None:
    """Sizes have no silent default."""
    path = written(tmp_path, {key: value for key, value in GPT2.items() if key != "n_head"})
    with pytest.raises(WorkloadFileError, match=r"\$\.n_head: is missing; keys of this table: n_layer, n_embd, n_head"):
        read_config(path)


def test_a_sequence_beyond_the_learned_positions_is_refused(tmp_path: Path) -> None:
    """GPT-2 has 1,024 positions."""
    with pytest.raises(WorkloadFileError, match=r"at most its learned positions \(1024\), got 2000"):
        read_config(written(tmp_path, GPT2), sequence=2000)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", ":1: not JSON: Expecting value"),
        (b'{\n"model_type": \n}', ":3: not JSON: Expecting value"),
        (b"[" * 100_000, ":1: not usable JSON"),
        (b"1" * 5000, ":1: not usable JSON"),
        (b"[]", ": must be a JSON object, got a list"),
        (b"\xff\xfe\x00", ":1: not a text file"),
    ],
)
def test_what_is_not_a_configuration_is_refused(content: bytes, rule: str, tmp_path: Path) -> None:
    """Empty, cut short, another JSON value, binary."""
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(WorkloadFileError, match=f"^{path}{rule}"):
        read_config(path)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    """The system's reason is given."""
    with pytest.raises(WorkloadFileError, match=r"none\.json: cannot be read: No such file"):
        read_config(tmp_path / "none.json")
    with pytest.raises(WorkloadFileError, match="cannot be read: Is a directory"):
        read_config(tmp_path)
