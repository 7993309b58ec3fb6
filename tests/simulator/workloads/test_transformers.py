"""Transformers against published figures and formulas."""

from __future__ import annotations

from typing import Any

import pytest

from hardware_profiles import passes
from hardware_profiles.gpu import demand
from simulator.workloads.catalog import load_workload
from simulator.workloads.language_models import LANGUAGE_MODELS, Bert, Gpt, Llama
from simulator.workloads.layers import Attention, Layer
from simulator.workloads.transformer import Experts, Transformer
from tests.chains import kept_bytes


def test_one_head_of_bert_alone() -> None:
    """With the masked-language head, without the pooler: 109,514,298 weights as Hugging Face counts them."""
    assert Bert(12, 768, 12, after="masked").workload().parameters() == 109_514_298


MODELS = {model.name: model for family in LANGUAGE_MODELS.values() for model in family}

PARAMETERS = {
    # Number of the weights in the published checkpoints (Hugging Face, safetensors.total), tied ones once.
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "opt-66b": 65_719_701_504,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,  # without the next-next-token block, which makes 685 billion of it
    # A block more than 12: 12·h² + 13·h.
    "gpt-14": 124_439_808 + 2 * (12 * 768**2 + 13 * 768),
}

IN_BILLIONS = {
    # Brown et al. 2020, table 2.1, whose second digit is rounded either way
    **{
        f"gpt3-{name}": (float(name[:-1]) * (1 if name[-1] == "b" else 1e-3), 0.05) for name in ("125m", "350m", "760m")
    },
    **{f"gpt3-{name}b": (float(name), 0.025) for name in ("1.3", "2.7", "6.7", "13", "175")},
    # Zhang et al. 2022, table 1
    "opt-175b": (175, 0.005),
    # Narayanan et al. 2021, table 1: exact to the digits that it prints
    "megatron-1.7b": (1.7, 0.05 / 1.7),
    "megatron-3.6b": (3.6, 0.05 / 3.6),
    "megatron-7.5b": (7.5, 0.05 / 7.5),
    "megatron-18b": (18.4, 0.05 / 18.4),
    "megatron-39b": (39.1, 0.05 / 39.1),
    "megatron-76b": (76.1, 0.05 / 76.1),
    "megatron-145b": (145.6, 0.05 / 145.6),
    "megatron-310b": (310.1, 0.05 / 310.1),
    "megatron-530b": (529.6, 0.05 / 529.6),
    "megatron-1t": (1008.0, 0.05 / 1008),
    # Parmar et al. 2024, table 1, 3.2 of them of the embeddings and 12.5 of the rest; NVIDIA 2024: 9.4 and 331.6
    "nemotron4-15b": (15.7, 0.1 / 15.7),
    "nemotron4-340b": (341.0, 0.1 / 341),
    "grok1": (314, 0.006),  # xai-org/grok-1, README
    # openai/gpt-oss-20b and -120b, their checkpoints: with attention sinks, one of a head
    "gpt-oss-20b": (20.914757184, 1e-7),
    "gpt-oss-120b": (116.829156672, 1e-7),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_published(name: str) -> None:
    """To the weight where a checkpoint is published, else to the digits of the paper's table."""
    parameters = load_workload(name).parameters()
    if name in PARAMETERS:
        assert parameters == PARAMETERS[name]
    else:
        billions, tolerance = IN_BILLIONS[name]
        assert parameters == pytest.approx(billions * 1e9, rel=tolerance)


@pytest.mark.parametrize("name", ["gpt3-6.7b", "megatron-145b", "megatron-1t", "opt-30b"])
def test_flop_are_narayanans(name: str) -> None:
    """Forward 24·s·l·h²·(1 + s/6h + V/12lh) a sample: a quarter of 2021, section 5.1, whose head runs three times, not four."""
    model = MODELS[name]
    s, blocks, h, v = model.sequence, model.layers, model.hidden, model.vocabulary
    flop = 24 * s * blocks * h**2 * (1 + s / (6 * h) + v / (12 * blocks * h))
    assert load_workload(name).flop() == pytest.approx(flop)


@pytest.mark.parametrize(
    ("name", "active", "keys", "features"),
    [
        ("llama3-70b", 70_553_706_496, 8192, 2 * 128),
        ("qwen3-32b", 32_762_123_264, 4096, 2 * 128),
        ("mistral-7b", 7_241_732_096, 4096, 2 * 128),  # of 8,192 tokens
        ("mixtral-8x7b", 12_879_925_248, 8192, 2 * 128),
        ("qwen3-235b-a22b", 22_190_763_520, 4096, 2 * 128),
        ("deepseek-v3", 37_552_297_472, 4096, 192 + 128),
    ],
)
def test_flop_are_twice_the_active_parameters_and_attention(name: str, active: int, keys: int, features: int) -> None:
    """Forward 2·tokens·(parameters that a token meets, but for the embedding and normalization) and 2·tokens·keys of each head.

    active: with the embedding, and top-k of the experts
    """
    model = MODELS[name]
    norms = (2 * model.layers + 1) * model.hidden
    norms += model.layers * 2 * model.head_size * model.head_norm
    if model.latent:
        norms += model.layers * (model.latent.query_rank + model.latent.key_value_rank)
    if model.experts and model.experts.bias:
        norms += (model.layers - len(model.experts.dense)) * model.experts.count
    weights = 2.0 * model.sequence * (active - model.vocabulary * model.hidden - norms)
    attention = 2.0 * model.sequence * keys * features * model.heads * model.layers
    assert load_workload(name).flop() == weights + attention


@pytest.mark.parametrize(
    ("name", "sequence", "hidden", "heads"), [("gpt2-xl", 512, 1600, 25), ("bert-large", 512, 1024, 16)]
)
def test_a_block_keeps_what_korthikanti_counts(name: str, sequence: int, hidden: int, heads: int) -> None:
    """34·s·b·h + 5·a·s²·b bytes a block at 16 bits (2022, equation 1), in every block, for GPT and BERT; at 32 bits masks are as
    wide as before, all else is twice as wide.
    """
    for block in (1, 7):
        layers = [layer for layer in load_workload(name, sequence).layers if layer.block == block]
        assert kept_bytes(layers, 2) == 34 * sequence * hidden + 5 * heads * sequence**2
        assert kept_bytes(layers, 4) == 66 * sequence * hidden + 9 * heads * sequence**2


def attention_of(model: Transformer) -> Layer:
    return next(layer for layer in model.workload().layers if layer.kind == "attention")


def test_unfused_attention_moves_its_scores() -> None:
    """9 bytes a score with dropout: softmax reads and writes it, so does dropout, which writes a mask too; without 4 bytes."""
    scores = 2 * 16**2
    assert 2 * attention_of(Gpt(1, 8, 2, 16, 100)).scratch_elements == 9 * scores
    assert 2 * attention_of(Gpt(1, 8, 2, 16, 100, attention_dropout=False)).scratch_elements == 4 * scores
    pairs = [attention_of(kind(1, 8, 2, 16, 100, attention="fused")).fused_pairs for kind in (Gpt, Bert)]
    assert pairs == [0.5, 1.0]
    assert attention_of(Gpt(1, 8, 2, 16, 100)).fused_pairs == 0.0
    eager = attention_of(Gpt(1, 8, 2, 16, 100, attention="eager"))
    assert 2 * eager.scratch_elements == (12 + 5) * scores
    assert kept_bytes([eager], 2) == kept_bytes([attention_of(Gpt(1, 8, 2, 16, 100))], 2)


@pytest.mark.parametrize("kind", [Gpt, Llama])
def test_fused_attention_neither_keeps_nor_moves_scores(kind: type[Transformer]) -> None:
    """It keeps queries, keys and values and an fp32 log-sum-exp a query, moves nothing, and does the same work."""
    fused, unfused = (attention_of(kind(1, 8, 2, 16, 100, attention=form)) for form in ("fused", "unfused"))  # type: ignore[arg-type]
    assert kept_bytes([fused], 2) == 2 * 3 * 16 * 8 + 4 * 2 * 16
    assert (fused.scratch_elements, fused.flop) == (0, unfused.flop)
    assert kept_bytes([unfused], 2) > kept_bytes([fused], 2)
    assert unfused.scratch_elements > 0


@pytest.mark.parametrize(("form", "keys"), [("fused", 4), ("unfused", 16)])
def test_a_window_saves_work_where_attention_is_fused(form: Attention, keys: int) -> None:
    """A query attends to 4 of 16 keys; products of whole matrices make all scores. A window beyond the sequence is none."""
    assert attention_of(Llama(1, 8, 2, 16, 100, window=4, attention=form)).flop == 4 * 16 * keys * 8
    assert attention_of(Llama(1, 8, 2, 16, 100, window=99, attention=form)).flop == 4 * 16 * 16 * 8


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"attention": "flash"}, "attention must be one of fused, unfused, eager, got 'flash'"),
        ({"key_value_heads": 3}, r"heads must be a multiple of key-value heads \(3\), got 2"),
        *(
            (
                {"further": 1} | given,
                "Llama predicts further tokens with a language model's head on its words alone, got " + got,
            )
            for given, got in (
                ({"after": "pooler"}, "'pooler' after words of 8 features"),
                ({"word_features": 4}, "'language' after words of 4 features"),
            )
        ),
    ],
)
def test_what_a_network_cannot_be_is_refused(given: dict[str, Any], rule: str) -> None:
    """One line with rule, value and choices."""
    with pytest.raises(ValueError, match=f"^{rule}$"):
        Llama(1, 8, 2, **given)


def test_a_token_goes_through_some_experts_at_most_all() -> None:
    """None, or more than there are, are refused."""
    for active in (0, 5):
        with pytest.raises(ValueError, match=f"^experts of a token must be from 1 to all 4, got {active}$"):
            Experts(4, active, 8)
    for wrong in ({"intermediate": 0}, {"shared": -1}, {"count": 2**40, "active": 1}):
        with pytest.raises(ValueError, match=f"^experts: {next(iter(wrong))} "):
            Experts(**{"count": 4, "active": 2, "intermediate": 8, **wrong})  # type: ignore[arg-type]


def test_what_experts_with_biases_move() -> None:
    """A bias is added behind the products in 64 bytes an element, forward and backward; clamping 6 features of two halves, and
    joining them, reads and writes each twice forward, and backward clamps read two and write one, and the join one of each.
    """
    experts = Experts(4, 2, 3, bias=True)
    with_bias, without = (
        Llama(1, 8, 2, 16, 100, experts=experts, mlp_bias=one, clamped=one).workload() for one in (True, False)
    )
    found = {
        layer.name.rpartition(".")[2]: sum(sum(demand(work, 1, phase, 2)) for phase in ("forward", *passes("backward")))
        for layer, work in zip(with_bias.layers, with_bias.works(), strict=True)
    }
    tokens = 2 * 16
    assert (found["bias"], found["clamp"] + found["join"]) == (64 * tokens * 8, 2 * (2 + 2 + 3 + 2) * tokens * 6)
    assert {layer.name for layer in without.layers} == {
        layer.name for layer in with_bias.layers if not layer.name.endswith((".bias", ".clamp", ".join"))
    }
    biases = 4 * (6 + 8)  # every expert has its own
    assert with_bias.parameters() == without.parameters() + biases


def test_without_dropout_the_masks_go() -> None:
    """32·s·h + 2·a·s² bytes: two hidden masks, the attention mask and its second copy are gone."""
    workload = Gpt(1, 8, 2, 16, 100, dropout=False, attention_dropout=False).workload()
    assert kept_bytes([layer for layer in workload.layers if layer.block], 2) == 32 * 16 * 8 + 2 * 2 * 16**2


@pytest.mark.parametrize(
    ("name", "sequence", "rule"),
    [
        ("gpt2", 0, "Gpt sequence must be from 1 to 10000000, got 0"),
        ("llama2-7b", 10**11, "Llama sequence must be from 1 to 10000000, got 100000000000"),
        ("gpt2", 2048, r"Gpt sequence must be at most its learned positions \(1024\), got 2048"),
        ("bert-large", 1024, r"Bert sequence must be at most its learned positions \(512\), got 1024"),
    ],
)
def test_impossible_sequences_are_refused(name: str, sequence: int, rule: str) -> None:
    """One line with rule and value."""
    with pytest.raises(ValueError, match=rule):
        load_workload(name, sequence)
