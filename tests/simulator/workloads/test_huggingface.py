"""The reader of Hugging Face config.json files; the configurations are written here from published sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simulator.workloads.catalog import load_workload
from simulator.workloads.huggingface import read_config
from simulator.workloads.network_files import WorkloadFileError
from tests.chains import kept_bytes

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
MISTRAL = LLAMA3 | {"model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}
MIXTRAL = MISTRAL | {
    "model_type": "mixtral",
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
}
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "sliding_window": 131072,
    "use_sliding_window": False,
}
QWEN2_EXPERTS = QWEN2 | {
    "model_type": "qwen2_moe",
    "vocab_size": 151936,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
}
QWEN3 = QWEN2 | {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "attention_bias": False,
}
QWEN3_EXPERTS = QWEN3 | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
}
DEEPSEEK_LITE = DEEPSEEK | {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "vocab_size": 102400,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
OPT = {
    "model_type": "opt",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "ffn_dim": 4096,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 512,
    "do_layer_norm_before": False,
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
        (BERT, 335_141_888),
        (BERT | {"architectures": ["BertForPreTraining", "BertForTea"]}, 336_226_108),  # the first is the model
        (GPT2 | {"tie_word_embeddings": False}, 124_439_808 + 50257 * 768),
        (LLAMA2 | {"tie_word_embeddings": True}, 6_738_415_616 - 32000 * 4096),
        (LLAMA2 | {"attention_bias": True}, 6_738_415_616 + 32 * 4 * 4096),
        (LLAMA2 | {"mlp_bias": True}, 6_738_415_616 + 32 * (2 * 11008 + 4096)),
        (LLAMA2 | {"head_dim": 64}, 6_738_415_616 - 32 * 4 * 4096 * 2048),
        (GPT2 | {"n_inner": 768, "n_layer": 12}, 124_439_808 - 12 * (6 * 768 * 768 + 3 * 768)),
        (QWEN2_EXPERTS, 57_408_658_944),
        (QWEN3 | {"attention_bias": True}, 8_190_735_360 + 36 * (6144 + 4096)),
        (QWEN3_EXPERTS | {"mlp_only_layers": [0]}, 30_532_122_624 - 2048 * 128 - 3 * 2048 * (128 * 768 - 6144)),
        (
            QWEN3_EXPERTS | {"decoder_sparse_step": 48},
            30_532_122_624 - 47 * (2048 * 128 + 3 * 2048 * (128 * 768 - 6144)),
        ),
        (DEEPSEEK_LITE, 15_706_484_224),
        (DEEPSEEK_LITE | {"n_shared_experts": None}, 15_706_484_224 - 26 * 3 * 2048 * 2 * 1408),
        (DEEPSEEK_LITE | {"moe_layer_freq": 27}, 15_706_484_224 - 26 * (2048 * 64 + 3 * 2048 * (66 * 1408 - 10944))),
    ],
)
def test_parameters_of_published_models(config: dict[str, object], parameters: int, tmp_path: Path) -> None:
    """Those of the published checkpoints, and what each option changes."""
    assert read_config(written(tmp_path, config), 512).parameters() == parameters


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (OPT, "opt-350m"),
        (LLAMA3, "llama3-8b"),
        (MISTRAL, "mistral-7b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN2, "qwen2-7b"),
        (QWEN3, "qwen3-8b"),
        (QWEN3_EXPERTS, "qwen3-30b-a3b"),
        (DEEPSEEK, "deepseek-v3"),
    ],
)
def test_the_configuration_of_a_model_is_the_built_in_one(config: dict[str, object], name: str, tmp_path: Path) -> None:
    """The same layers, to the element."""
    assert read_config(written(tmp_path, config), 512).layers == load_workload(name, 512).layers


def test_attention_is_the_familys_or_the_one_asked_for(tmp_path: Path) -> None:
    """Llama fused, GPT-2 unfused."""
    for config, name, other in ((LLAMA2, "llama2-7b", "unfused"), (GPT2, "gpt2", "fused")):
        path = written(tmp_path, config)
        assert read_config(path).layers == load_workload(name).layers
        assert read_config(path, attention=other).layers == load_workload(name, attention=other).layers  # type: ignore[arg-type]
        assert read_config(path, attention=other).layers != read_config(path).layers  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "hidden", "scores", "outputs", "squares"),
    [
        (GPT2, ("resid_pdrop", "embd_pdrop"), "attn_pdrop", 1024 * 768 * (2 * 12 + 1), 12 * 1024**2 * 12),
        (OPT, ("dropout",), "attention_dropout", 2048 * (1024 * 2 * 24 + 512), 16 * 2048**2 * 24),
        (BERT, ("hidden_dropout_prob",), "attention_probs_dropout_prob", 512 * 1024 * (2 * 24 + 1), 16 * 512**2 * 24),
    ],
)
def test_dropout_of_scores_is_not_that_of_hidden_states(
    config: dict[str, object], hidden: tuple[str, ...], scores: str, outputs: int, squares: int, tmp_path: Path
) -> None:
    """Each alone leaves its masks: a byte of an output; of a score that, and two of what dropout puts out."""

    def kept(*dropped: str) -> float:
        shares = dict.fromkeys((*hidden, scores), 0.0) | dict.fromkeys(dropped, 0.1)
        return kept_bytes(read_config(written(tmp_path, config | shares)).layers, 2)

    assert [kept(one) - kept() for one in hidden] == [outputs] * len(hidden)
    assert kept(scores) - kept() == 3 * squares


def test_a_longest_sequence_that_is_not_meant_asks_for_one(tmp_path: Path) -> None:
    """8,192 tokens are trained on, 131,072 are what a context was stretched to: one line that asks, none where it is given."""
    assert read_config(written(tmp_path, LLAMA3)).layers == load_workload("llama3-8b").layers
    path = written(tmp_path, LLAMA3 | {"max_position_embeddings": 131072})
    rule = r"\$\.max_position_embeddings = 131072: is more than .* \(8192 tokens at most\); give the tokens of a sample"
    with pytest.raises(WorkloadFileError, match=f"^{path}: {rule}"):
        read_config(path)
    assert read_config(path, sequence=131072).layers[0].output_elements == 131072 * 4096


def test_the_sequence_can_be_shorter_than_the_longest(tmp_path: Path) -> None:
    """512 tokens: the learned positions stay. Of 1,024 tokens 2 sequences take 583.2966144 GFLOP forward, as torch counts."""
    path = written(tmp_path, GPT2)
    assert read_config(path, sequence=512).layers == load_workload("gpt2", 512).layers
    assert 2 * read_config(path).flop() == 583_296_614_400
    assert read_config(path).name == tmp_path.name
    with pytest.raises(WorkloadFileError, match=r"at most its learned positions \(1024\), got 2000"):
        read_config(path, sequence=2000)


def test_rotary_positions_need_no_longest_sequence(tmp_path: Path) -> None:
    """Llama learns no positions: a sequence that is given needs no `max_position_embeddings`, and without both none is known."""
    path = written(tmp_path, {key: value for key, value in LLAMA2.items() if key != "max_position_embeddings"})
    assert read_config(path, sequence=4096).layers == load_workload("llama2-7b").layers
    with pytest.raises(
        WorkloadFileError, match=r"\$\.max_position_embeddings: is missing, and so is a sequence length"
    ):
        read_config(path)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"n_layer": 0}, r"\$\.n_layer = 0: expected `int` >= 1"),
        ({"n_embd": True}, r"\$\.n_embd = True: expected `int`, got `bool`"),
        ({"n_embd": 770}, r"\$\.n_embd = 770: must be a multiple of n_head \(12\)"),
        ({"resid_pdrop": 2}, r"\$\.resid_pdrop = 2: expected `float` <= 1"),
        (
            BERT | {"architectures": ["BertForTea"]},
            r"\$\.architectures\[0\] = \'BertForTea\': must be one of .*BertModel",
        ),
        (BERT | {"architectures": 3}, r"\$\.architectures = 3: expected `array . null`, got `int`"),
        (
            LLAMA2 | {"num_key_value_heads": 5},
            r"\$\.num_attention_heads = 32: must be a multiple of num_key_value_heads",
        ),
        (MIXTRAL | {"num_experts_per_tok": 9}, "experts of a token must be from 1 to all 8, got 9"),
        (
            QWEN2 | {"use_sliding_window": True, "layer_types": ["full_attention"]},
            r"\$\.layer_types: has 1 kinds, and there are 28 num_hidden_layers",
        ),
        (QWEN3_EXPERTS | {"mlp_only_layers": ["0"]}, r"\$\.mlp_only_layers\[0\] = \'0\': expected `int`"),
        (
            QWEN3_EXPERTS | {"mlp_only_layers": [47, 48]},
            r"\$\.mlp_only_layers\[1\] = 48: blocks are counted from 0, and there are 48 num_hidden_layers$",
        ),
    ],
)
def test_a_bad_value_names_file_key_value_and_rule(change: dict[str, object], rule: str, tmp_path: Path) -> None:
    """One line."""
    path = written(tmp_path, GPT2 | change)
    with pytest.raises(WorkloadFileError, match=f"^{path}: {rule}") as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "model_type", "nearest"),
    [
        (GPT2, "t5", "gpt2"),
        (GPT2, None, "gpt2"),
        (LLAMA3, "lama", "llama"),
        (MISTRAL, "starcoder2", "mistral"),
        (MIXTRAL, "grok", "mixtral"),
        (QWEN3, "qwen4", "qwen2"),
        (QWEN3_EXPERTS, "qwen4_moe", "qwen3_moe"),
        (DEEPSEEK, "kimi_k2", "deepseek_v2"),
    ],
)
def test_an_unknown_architecture_is_told_the_nearest(
    config: dict[str, object], model_type: object, nearest: str, tmp_path: Path
) -> None:
    """By its keys and its name: one line, with the choices."""
    path = written(tmp_path, config | {"model_type": model_type})
    rule = rf"\$\.model_type = {re.escape(repr(model_type))}: is not known, nearest is {nearest}; choose from gpt2, opt, bert, "
    with pytest.raises(WorkloadFileError, match=f"^{path}: {rule}"):
        read_config(path)


def test_a_missing_size_is_named(tmp_path: Path) -> None:
    """Sizes have no silent default."""
    path = written(tmp_path, {key: value for key, value in GPT2.items() if key != "n_head"})
    with pytest.raises(WorkloadFileError, match=r"\$\.n_head: is missing; keys of this table: n_layer, n_embd, n_head"):
        read_config(path)
    path = written(tmp_path, {key: value for key, value in DEEPSEEK.items() if key != "kv_lora_rank"})
    with pytest.raises(WorkloadFileError, match=r"\$\.kv_lora_rank: is missing; keys of this table: .* q_lora_rank"):
        read_config(path, 4096)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        *((config, "num_key_value_heads") for config in (MISTRAL, MIXTRAL, QWEN2, QWEN2_EXPERTS, QWEN3, QWEN3_EXPERTS)),
        (MISTRAL, "sliding_window"),
        (QWEN2_EXPERTS, "shared_expert_intermediate_size"),
        (QWEN3, "head_dim"),
        *((config, key) for config in (DEEPSEEK, DEEPSEEK_LITE) for key in ("q_lora_rank", "n_shared_experts")),
        *((config, "first_k_dense_replace") for config in (DEEPSEEK, DEEPSEEK_LITE)),
    ],
)
def test_what_defaults_to_one_models_number_is_asked_for(config: dict[str, object], key: str, tmp_path: Path) -> None:
    """A Mistral without `num_key_value_heads` has 8 of them in Hugging Face's library: neither that nor 32 is guessed."""
    path = written(tmp_path, {name: value for name, value in config.items() if name != key})
    with pytest.raises(WorkloadFileError, match=rf"\$\.{key}: is missing"):
        read_config(path, 4096)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", ":1: not JSON: Expecting value"),
        (b'{\n"model_type": \n}', ":3: not JSON: Expecting value"),
        (b"[" * 100_000, ":1: not usable JSON"),
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


@pytest.mark.parametrize(
    ("said", "windowed"),
    [
        ({"use_sliding_window": False}, []),
        ({"use_sliding_window": True, "sliding_window": None}, []),
        ({"use_sliding_window": True, "max_window_layers": 26}, [27, 28]),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention", *["full_attention"] * 27]}, [1]),
    ],
)
def test_windows_of_some_blocks(said: dict[str, object], windowed: list[int], tmp_path: Path) -> None:
    """Qwen's blocks from `max_window_layers` on, or those that are said to, attend to the last keys alone."""
    path = written(tmp_path, QWEN2 | {"sliding_window": 1024} | said)
    attention = [layer for layer in read_config(path, 4096).layers if layer.kind == "attention"]
    whole = max(layer.flop for layer in attention)
    assert [layer.block for layer in attention if layer.flop < whole] == windowed
    assert {layer.flop for layer in attention if layer.flop < whole} <= {whole / 4}


def test_further_tokens_are_predicted(tmp_path: Path) -> None:
    """DeepSeek-V3 trains a block more, a projection of 2h x h and three norms; embedding and head are those of the network."""
    small = {"num_hidden_layers": 5, "n_routed_experts": 16}
    first, more = (
        read_config(written(tmp_path, DEEPSEEK | small | {"num_nextn_predict_layers": further}), 4096)
        for further in (0, 1)
    )
    block = sum(layer.parameters for layer in first.layers if layer.block == 5)
    assert more.parameters() - first.parameters() == block + 2 * 7168**2 + 3 * 7168
    assert [(one.parameters, len(one.layers)) for one in more.tied_weights()] == [(129280 * 7168, 2)] * 2
    tied = read_config(
        written(tmp_path, DEEPSEEK | small | {"num_nextn_predict_layers": 1, "tie_word_embeddings": True}), 4096
    )
    (matrix,) = tied.tied_weights()  # of the embedding, whose head is no layer of weights of its own
    assert [tied.layers[layer].name for layer in matrix.layers] == [
        "embedding", "head", "further1.embedding", "further1.head"
    ]  # fmt: skip
    last = [layer.flop for layer in more.layers if layer.name in ("head", "further1.head")]
    assert last[0] == last[1] > 0
    losses = [workload.layers[-1].stashed_bytes for workload in (first, more)]
    assert losses[1] == 2 * losses[0]
    for workload, blocks in ((first, 5), (more, 6)):
        whole = [layer for layer in workload.layers if layer.block == 0]
        assert {layer.block for layer in workload.layers} == set(range(blocks + 1))
        assert sum(layer.part == "output head" for layer in whole) == sum(
            layer.part == "output head" for layer in workload.layers
        )
