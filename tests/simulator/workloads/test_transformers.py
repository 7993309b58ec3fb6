"""Transformers against published figures and formulas."""

from __future__ import annotations

import pytest

from simulator.workloads.catalog import load_workload
from simulator.workloads.language_models import Bert, Gpt, Llama
from simulator.workloads.layers import Workload
from tests.chains import stashed_elements


def block_sum(workload: Workload, block: int, field: str) -> float:
    return sum(getattr(x, field) for x in workload.layers if x.name.startswith(f"block{block}."))


@pytest.mark.parametrize(
    ("workload", "parameters"),
    [
        (load_workload("gpt2"), 124_439_808),
        (load_workload("gpt2-medium"), 354_823_168),
        (load_workload("gpt2-large"), 774_030_080),
        (load_workload("gpt2-xl"), 1_557_611_200),
        (load_workload("gpt-14"), 124_439_808 + 2 * (12 * 768**2 + 13 * 768)),
        (load_workload("bert-large"), 336_226_108),
        (Bert(24, 1024, 16, after="pooler").workload(), 335_141_888),
        (load_workload("bert-base"), 110_106_428),
        (Bert(12, 768, 12, after="pooler").workload(), 109_482_240),
        (Bert(12, 768, 12, after="masked").workload(), 109_514_298),
        (Llama(32, 4096, 32, intermediate=11008).workload(), 6_738_415_616),
        (Llama(80, 8192, 64, intermediate=28672, key_value_heads=8).workload(), 68_976_648_192),
    ],
    ids=lambda value: value.name if isinstance(value, Workload) else "",
)
def test_parameters_are_hugging_faces(workload: Workload, parameters: int) -> None:
    """Tied weights once; BERT with pre-training heads, with the pooler alone, with the masked head alone."""
    assert workload.parameters() == parameters


def test_gpt3_has_175_billion_parameters() -> None:
    """96 blocks of 12·h²+13·h, embeddings of 50257 tokens and 2048 positions, final norm."""
    hidden = 12288
    total = 96 * (12 * hidden**2 + 13 * hidden) + (50257 + 2048) * hidden + 2 * hidden
    assert load_workload("gpt3-175b").parameters() == total == 174_604_259_328


def test_gpt2_forward_at_batch_2_is_torchs_count() -> None:
    """583.2966144 GFLOP: projections 2·12·12·h²·T, full attention 12·4·s²·h·2, head 2·h·50257·T."""
    hidden, sequence, tokens = 768, 1024, 2048
    projections = 12 * 2 * 12 * hidden**2 * tokens
    attention = 12 * 4 * sequence**2 * hidden * 2
    head = 2 * hidden * 50257 * tokens
    assert projections + attention + head == 583_296_614_400
    assert 2 * load_workload("gpt2").flop() == 583_296_614_400


@pytest.mark.parametrize(
    "workload",
    [load_workload("gpt2"), load_workload("gpt2-xl", 512), load_workload("bert-large")],
    ids=lambda workload: workload.name,
)
def test_a_block_keeps_what_korthikanti_counts(workload: Workload) -> None:
    """34·s·b·h + 5·a·s²·b bytes a block at 16 bits (2022, equation 1), in every block, for GPT and BERT."""
    sequence, hidden, heads = {
        "gpt2": (1024, 768, 12),
        "gpt2-xl": (512, 1600, 25),
        "bert-large": (512, 1024, 16),
    }[workload.name]
    kept = 34 * sequence * hidden + 5 * heads * sequence**2
    assert 2 * block_sum(workload, 1, "stashed_elements") == kept
    assert 2 * block_sum(workload, 7, "stashed_elements") == kept


def test_around_the_blocks_gpt_keeps_mask_norm_head_and_fp32_logits() -> None:
    """s·h (embedding mask), 2·s·h (final norm), 2·s·h (head) and 4·s·v bytes (Korthikanti section 4.3)."""
    workload = Gpt(1, 8, 2, 16, 100).workload()
    outside = stashed_elements(workload) - block_sum(workload, 1, "stashed_elements")
    assert 2 * outside == 5 * 16 * 8 + 4 * 16 * 100


def test_without_dropout_the_masks_go() -> None:
    """32·s·h + 2·a·s² bytes: two hidden masks, the attention mask and its second copy are gone."""
    workload = Gpt(1, 8, 2, 16, 100, dropout=False).workload()
    assert 2 * block_sum(workload, 1, "stashed_elements") == 32 * 16 * 8 + 2 * 2 * 16**2


def test_between_blocks_one_hidden_tensor_crosses() -> None:
    """The cheapest cuts of a GPT are s·h; inside the MLP it is 4·s·h and the residual s·h."""
    workload = Gpt(3, 8, 2, 16, 100).workload()
    names = [layer.name for layer in workload.layers]
    cuts = workload.cut_elements()
    assert cuts[names.index("block2.norm1")] == 16 * 8
    assert cuts[names.index("block2.mlp_down")] == 5 * 16 * 8


def test_an_untied_head_has_its_own_matrix() -> None:
    """Vocabulary × hidden more parameters, the same work."""
    tied, untied = Gpt(2, 8, 2, 16, 100).workload(), Gpt(2, 8, 2, 16, 100, tied=False).workload()
    assert untied.parameters() - tied.parameters() == 800
    assert untied.flop() == tied.flop()


def test_grouped_queries_shrink_keys_and_values_only() -> None:
    """8 heads of 2 on hidden 16: 2 key-value heads instead of 8 save 2·6·2·16 weights; attention is equal."""
    full, grouped = (
        Llama(1, 16, 8, 4, 10, intermediate=32).workload(),
        Llama(1, 16, 8, 4, 10, intermediate=32, key_value_heads=2).workload(),
    )
    assert full.parameters() - grouped.parameters() == 2 * 6 * 2 * 16
    attention = [next(x for x in w.layers if x.kind == "attention") for w in (full, grouped)]
    assert attention[0].flop == attention[1].flop == 4 * 4**2 * 16


@pytest.mark.parametrize(
    ("name", "sequence", "rule"),
    [
        ("gpt2", 0, "Gpt sequence must be at least 1, got 0"),
        ("gpt2", 2048, r"Gpt sequence must be at most its learned positions \(1024\), got 2048"),
        ("bert-large", 1024, r"Bert sequence must be at most its learned positions \(512\), got 1024"),
    ],
)
def test_impossible_sequences_are_refused(name: str, sequence: int, rule: str) -> None:
    """One line with rule and value."""
    with pytest.raises(ValueError, match=rule):
        load_workload(name, sequence)


def test_the_smallest_sizes_are_possible() -> None:
    """One head of one feature, one block, one token, a vocabulary of one."""
    block = 2 + (3 + 3) + (1 + 1) + 2 + (4 + 4) + (4 + 1)
    assert Gpt(1, 1, 1, 1, 1).workload().parameters() == (1 + 1) + block + 2
    assert Llama(1, 1, 1, 1, 1, intermediate=1).workload().layers[-1].kind == "loss"
