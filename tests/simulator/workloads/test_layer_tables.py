"""Networks layer by layer: work, weights, outputs and what autograd keeps, each worked out by hand from the published shapes.

Those of convolutional networks add up to the published figures, below, and each is recorded by weight in test_catalog.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from simulator.workloads import gnmt
from simulator.workloads.catalog import load_workload
from simulator.workloads.language_models import Bert, Gpt, Llama, Opt
from simulator.workloads.layers import Layer, Workload
from simulator.workloads.sequence_slices import keys_and_values
from simulator.workloads.transformer import Experts, LatentAttention
from tests.chains import kept_bytes


class Row(NamedTuple):
    """A layer: name, multiply-adds, own weights, elements out, elements kept, and the layers that it reads."""

    name: str
    multiply_adds: float
    weights: int
    out: float
    kept: float
    reads: str


def rows(workload: Workload) -> list[Row]:
    names = [layer.name for layer in workload.layers]
    reads = [
        " ".join(names[producer] for producer, consumer in workload.edges if consumer == i) for i in range(len(names))
    ]
    width = 2 if workload.tokens else 4
    return [
        Row(one.name, one.flop / 2, one.parameters, one.output_elements, kept_bytes([one], width) / width, read)
        for one, read in zip(workload.layers, reads, strict=True)
    ]


def chain(*layers: tuple[str, float, int, float, float], reads: str = "") -> list[Row]:
    """Rows of layers that each read the one before."""
    found = []
    for layer in layers:
        found.append(Row(*layer, reads))
        reads = layer[0]
    return found


# ---- recurrent networks ---------------------------------------------------------------------------------------------


def test_gnmt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wu et al. 2016 with 3 + 3 layers, hidden 3, 7 words, 5 source and 2 target tokens.

    A step of an LSTM: 4·3·(inputs + 3) multiply-adds; it keeps four gates, cell and output (6·3). Attention: projections of
    2 queries and 5 keys by 3x3, score and context of 10 pairs by 3; it keeps 3 + 1 elements a pair.
    """
    encoder = [
        Row("encoder.embedding", 0, 21, 15, 0, ""),
        Row("encoder.lstm1", 10 * 12 * 6, 2 * 12 * 8, 30, 15 + 10 * 18, "encoder.embedding"),
        Row("encoder.dropout2", 0, 0, 30, 7.5, "encoder.lstm1"),
        Row("encoder.lstm2", 5 * 12 * 9, 12 * 11, 15, 30 + 5 * 18, "encoder.dropout2"),
        Row("encoder.dropout3", 0, 0, 15, 3.75, "encoder.lstm2"),
        Row("encoder.lstm3", 5 * 12 * 6, 12 * 8, 15, 15 + 5 * 18, "encoder.dropout3"),
        Row("encoder.add3", 0, 0, 15, 0, "encoder.lstm2 encoder.lstm3"),
    ]
    attention = 2 * 12 * 6 + 9 * (2 + 5) + 2 * 3 * 10
    decoder = [
        Row("decoder.embedding", 0, 21, 6, 0, ""),
        Row(
            "decoder.attention1",
            attention,
            12 * 8 + 2 * 9 + 3,
            12,
            (6 + 15) + 2 * 18 + 10 * 4,
            "encoder.add3 decoder.embedding",
        ),
        Row("decoder.output1", 0, 0, 6, 0, "decoder.attention1"),
        Row("decoder.context", 0, 0, 6, 0, "decoder.attention1"),
        Row("decoder.dropout2", 0, 0, 6, 1.5, "decoder.output1"),
        Row("decoder.concat2", 0, 0, 12, 0, "decoder.context decoder.dropout2"),
        Row("decoder.lstm2", 2 * 12 * 9, 12 * 11, 6, 12 + 2 * 18, "decoder.concat2"),
        Row("decoder.dropout3", 0, 0, 6, 1.5, "decoder.lstm2"),
        Row("decoder.concat3", 0, 0, 12, 0, "decoder.context decoder.dropout3"),
        Row("decoder.lstm3", 2 * 12 * 9, 12 * 11, 6, 12 + 2 * 18, "decoder.concat3"),
        Row("decoder.add3", 0, 0, 6, 0, "decoder.lstm2 decoder.lstm3"),
        Row("classifier", 2 * 3 * 7, 3 * 7 + 7, 14, 6, "decoder.add3"),
        Row("loss", 0, 0, 1, 14, "classifier"),
    ]
    monkeypatch.setattr(gnmt, "HIDDEN", 3)
    monkeypatch.setattr(gnmt, "VOCABULARY", 7)
    workload = gnmt.gnmt(6, source_tokens=5, target_tokens=2)
    assert rows(workload) == encoder + decoder
    steps = [layer.sequential_steps for layer in workload.layers if layer.kind == "recurrent"]
    assert steps == [10, 5, 5, 2, 2, 2]  # both directions of the first layer in turn


@pytest.mark.parametrize("layers", [2, 7])
def test_odd_or_few_layers_of_gnmt_are_refused(layers: int) -> None:
    """Half of the layers encode."""
    with pytest.raises(ValueError, match=f"GNMT layers must be even and at least 4 .*, got {layers}"):
        gnmt.gnmt(layers)


# ---- transformers ---------------------------------------------------------------------------------------------------


def block(
    first: str, attention: list[tuple[float, int, float, float]], mlp: list[tuple[float, int, float, float]]
) -> list[Row]:
    """Block 1 with normalization first, behind layer `first`, without its residual sums' sources."""
    names = ("norm1", "qkv", "attention", "projection"), ("norm2", "mlp_up", "activation", "mlp_down")
    out = attention[-1][2]
    found = []
    for half, (labels, layers) in enumerate(zip(names, (attention, mlp), strict=True), 1):
        labelled = [(f"block1.{label}", *layer) for label, layer in zip(labels, layers, strict=True)]
        found += chain(*labelled, reads=first)
        found.append(Row(f"block1.add{half}", 0, 0, out, 0, f"{first} {labelled[-1][0]}"))
        first = f"block1.add{half}"
    return found


def test_gpt() -> None:
    """Radford et al. 2019: hidden 6, 2 heads of 3, 5 tokens of 8 positions, 11 words, MLP of 7; masks are half an element."""
    expected = [
        Row("embedding", 0, (11 + 8) * 6, 30, 15, ""),
        *block(
            "embedding",
            [(0, 12, 30, 30), (540, 6 * 18 + 18, 90, 30), (300, 0, 30, 90 + 2.5 * 50), (180, 36 + 6, 30, 30 + 15)],
            [(0, 12, 30, 30), (210, 42 + 7, 35, 30), (0, 0, 35, 35), (210, 42 + 6, 30, 35 + 15)],
        ),
        *chain(("final_norm", 0, 12, 30, 30), ("head", 330, 0, 55, 30), ("loss", 0, 0, 1, 110), reads="block1.add2"),
    ]
    workload = Gpt(1, 6, 2, 5, 11, positions=8, intermediate=7).workload()
    assert rows(workload) == expected
    assert [(one.layers, one.parameters) for one in workload.tied_weights()] == [((0, 12), 66)]


def test_embeddings_of_rotary_positions_have_no_dropout() -> None:
    """A mask of a byte for each of 5 tokens' 6 features, where positions are learned."""
    learned, rotary = (Gpt(1, 6, 2, 5, 11, rotary=one).workload().layers[0] for one in (False, True))
    assert (learned.stashed_bytes, rotary.stashed_bytes) == (30, 0)


def test_only_what_keeps_nothing_is_done_in_the_place_of_its_input() -> None:
    """Activations and sums without a mask or a copy, and normalizations behind a convolution."""
    layers = (
        Layer("convolution", "convolution", 1.0, 1, 4.0, 4.0),
        Layer("behind", "normalization", 0.0, 1, 4.0, 4.0),
        Layer("plain", "activation", 0.0, 0, 4.0),
        Layer("masked", "activation", 0.0, 0, 4.0, stashed_bytes=4.0),
        Layer("copied", "elementwise", 0.0, 0, 4.0, 4.0),
        Layer("later", "normalization", 0.0, 1, 4.0, 4.0),
    )
    works = Workload("chain", layers, tuple((one, one + 1) for one in range(5))).works()
    assert [work.in_place for work in works] == [False, True, True, False, False, False]


def test_llama() -> None:
    """Touvron et al. 2023: hidden 6, 4 query, 2 key-value heads of 3, 5 tokens, 11 words, SwiGLU of 2·7, no biases, no masks;
    fused attention keeps two elements of each of its 4·5 queries.
    """
    assert rows(Llama(1, 6, 4, 5, 11, intermediate=7, key_value_heads=2, head_size=3).workload()) == [
        Row("embedding", 0, 66, 30, 0, ""),
        *block(
            "embedding",
            [(0, 6, 30, 30), (720, 144, 120, 30), (600, 0, 60, 120 + 40), (360, 72, 30, 60)],
            [(0, 6, 30, 30), (420, 84, 70, 30), (0, 0, 35, 70), (210, 42, 30, 35)],
        ),
        *chain(("final_norm", 0, 6, 30, 30), ("head", 330, 66, 55, 30), ("loss", 0, 0, 1, 110), reads="block1.add2"),
    ]


def test_qwen() -> None:
    """Yang et al. 2025: the queries and keys of each head are normalized with weights of one head's size, values pass by.

    Attention reads and keeps each of its 60 + 30 + 30 elements once, and parts of a context gather the last 60 alone.
    """
    workload = Llama(1, 6, 4, 5, 11, intermediate=7, key_value_heads=2, head_size=3, head_norm=True).workload()
    assert rows(workload)[2:7] == [
        Row("block1.qkv", 720, 144, 120, 30, "block1.norm1"),
        Row("block1.query_key", 0, 0, 90, 0, "block1.qkv"),
        Row("block1.value", 0, 0, 30, 0, "block1.qkv"),
        Row("block1.head_norm", 0, 6, 90, 90, "block1.query_key"),
        Row("block1.attention", 600, 0, 60, 120 + 40, "block1.value block1.head_norm"),
    ]
    assert keys_and_values(*[(work.input_elements, work.output_elements) for work in workload.works()][6]) == 60


def test_latent_attention() -> None:
    """DeepSeek-V2, section 2.1: queries through a rank of 4, keys and values through one of 3; 2 heads of 2 plain, 1 rotary and 5
    value features. Attention keeps a copy of the rotary feature of the keys for each head.
    """
    latent = LatentAttention(query_rank=4, key_value_rank=3, plain=2, rotary=1, value=5)
    workload = Llama(1, 6, 2, 5, 11, intermediate=7, latent=latent).workload()
    assert rows(workload)[2:10] == [
        Row("block1.query_down", 5 * 6 * 4, 24, 20, 30, "block1.norm1"),
        Row("block1.query_norm", 0, 4, 20, 20, "block1.query_down"),
        Row("block1.query_up", 5 * 4 * 6, 24, 30, 20, "block1.query_norm"),
        Row("block1.key_value_down", 5 * 6 * 4, 24, 20, 0, "block1.norm1"),
        Row("block1.key_value_norm", 0, 3, 15, 20, "block1.key_value_down"),
        Row("block1.key_value_up", 5 * 3 * 14, 42, 70, 15, "block1.key_value_norm"),
        Row("block1.attention", 25 * 2 * (3 + 5), 0, 50, 30 + 70 + 20 + 10, "block1.query_up block1.key_value_up"),
        Row("block1.projection", 5 * 10 * 6, 60, 30, 50, "block1.attention"),
    ]


def test_experts() -> None:
    """Two blocks of 4 routed experts of 3, 2 of them a token, beside a shared one of 7 with a gate; the first block is dense.

    A token is copied for each of its experts; weights are those of all of them, work that of two.
    """
    experts = Experts(4, 2, 3, shared=7, shared_gate=True, dense=(0,))
    workload = Llama(2, 6, 2, 5, 11, intermediate=8, experts=experts).workload()
    found = rows(workload)
    assert [one.name for one in found[7:11]] == [f"block1.{x}" for x in ("mlp_up", "activation", "mlp_down", "add2")]
    assert found[16:29] == [
        Row("block2.norm2", 0, 6, 30, 30, "block2.add1"),
        Row("block2.router", 5 * 6 * 4, 24, 20, 30, "block2.norm2"),
        Row("block2.dispatch", 0, 0, 60, 0, "block2.norm2 block2.router"),
        Row("block2.experts.mlp_up", 10 * 6 * 6, 4 * 36, 60, 60, "block2.dispatch"),
        Row("block2.experts.activation", 0, 0, 30, 60, "block2.experts.mlp_up"),
        Row("block2.experts.mlp_down", 10 * 3 * 6, 4 * 18, 60, 30, "block2.experts.activation"),
        Row("block2.combine", 0, 0, 30, 60 + 20, "block2.router block2.experts.mlp_down"),
        Row("block2.shared.mlp_up", 5 * 6 * 14, 84, 70, 0, "block2.norm2"),
        Row("block2.shared.activation", 0, 0, 35, 70, "block2.shared.mlp_up"),
        Row("block2.shared.mlp_down", 5 * 7 * 6, 42, 30, 35, "block2.shared.activation"),
        Row("block2.shared.gate", 5 * 6, 6, 5, 0, "block2.norm2"),
        Row("block2.shared.weighted", 0, 0, 30, 30 + 5, "block2.shared.mlp_down block2.shared.gate"),
        Row("block2.add2", 0, 0, 30, 0, "block2.add1 block2.combine block2.shared.weighted"),
    ]
    divided = [layer.name for layer in workload.layers if layer.experts]
    assert divided == [f"block2.experts.{part}" for part in ("mlp_up", "activation", "mlp_down")]


def test_opt() -> None:
    """OPT-350M's shape: rows of 4 features with projections to 6 and back, ReLU whose input is not kept, no last norm."""
    found = rows(Opt(1, 6, 2, 5, 11, word_features=4, norm_first=False).workload())
    assert found[:3] == chain(
        ("embedding", 0, 11 * 4 + (5 + 2) * 6, 20, 10), ("word_in", 120, 24, 30, 20), ("block1.qkv", 540, 126, 90, 30)
    )
    assert [(one.name, one.kept) for one in found if one.name.endswith("activation")] == [("block1.activation", 0)]
    assert found[-3:] == chain(
        ("word_out", 120, 24, 20, 30), ("head", 220, 0, 55, 20), ("loss", 0, 0, 1, 110), reads="block1.norm2"
    )


def test_bert() -> None:
    """Devlin et al. 2019: normalization behind each half, both heads; the encoder's output is kept once for the two."""
    assert rows(Bert(1, 6, 2, 5, 11, positions=8, intermediate=7).workload()) == [
        Row("embedding", 0, (11 + 8 + 2) * 6, 30, 15, ""),
        *chain(
            ("embedding_norm", 0, 12, 30, 30),
            ("block1.qkv", 540, 126, 90, 30),
            ("block1.attention", 300, 0, 30, 215),
            ("block1.projection", 180, 42, 30, 45),
            reads="embedding",
        ),
        Row("block1.add1", 0, 0, 30, 0, "embedding_norm block1.projection"),
        *chain(
            ("block1.norm1", 0, 12, 30, 30),
            ("block1.mlp_up", 210, 49, 35, 30),
            ("block1.activation", 0, 0, 35, 35),
            ("block1.mlp_down", 210, 48, 30, 50),
            reads="block1.add1",
        ),
        Row("block1.add2", 0, 0, 30, 0, "block1.norm1 block1.mlp_down"),
        *chain(
            ("block1.norm2", 0, 12, 30, 30),
            ("masked.transform", 180, 42, 30, 30),
            ("masked.activation", 0, 0, 30, 30),
            ("masked.norm", 0, 12, 30, 30),
            ("masked.head", 330, 11, 55, 30),
            reads="block1.add2",
        ),
        *chain(
            ("pooler", 36, 42, 6, 0),
            ("pooler.activation", 0, 0, 6, 6),
            ("next_sentence.head", 12, 14, 2, 6),
            reads="block1.norm2",
        ),
        Row("loss", 0, 0, 1, 2 * (55 + 2), "masked.head next_sentence.head"),
    ]


# ---- published sizes ------------------------------------------------------------------------------------------------


PARAMETERS = {
    # torchvision's models, weights and biases; PipeDream's profiles of GNMT
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "alexnet": 61_100_840,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "mobilenet-v2": 3_504_872,
    "efficientnet-b0": 5_288_548,
    # Keras' trainable weights, which the paper rounds to 4.2 million
    "mobilenet-v1": 4_231_976,
    "gnmt8": 193_765_952,
    "gnmt16": 277_717_568,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_published(name: str) -> None:
    """To the weight."""
    assert load_workload(name).parameters() == PARAMETERS[name]


def test_multiply_adds_are_the_published() -> None:
    """4.09, 0.714, 15.47 and 0.30 GMAC an image (torchvision), 0.569 of MobileNet v1 (Howard et al., table 4)."""
    names = "resnet50", "alexnet", "vgg16", "mobilenet-v2", "mobilenet-v1"
    found = [load_workload(name).flop() / 2e9 for name in names]
    assert found == pytest.approx([4.09, 0.714, 15.47, 0.30, 0.569], abs=0.005)


def test_minibatches_are_pipedreams() -> None:
    """SOSP'19, section 5.1: 64 a device for VGG-16 and GNMT, 128 for ResNet-50, 256 for AlexNet."""
    names = "vgg16", "gnmt8", "gnmt16", "resnet50", "alexnet"
    assert [load_workload(name).minibatch for name in names] == [64, 64, 64, 128, 256]
