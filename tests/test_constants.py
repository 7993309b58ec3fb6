"""Constants that matter, beside their source: what a slip of the pen would move in every answer."""

from __future__ import annotations

import pytest

from hardware_profiles import PRECISION_BYTES, load_accelerator, load_cluster
from simulator import OPTIMIZER_STATES, load_workload
from simulator.costs import plan_costs
from simulator.workloads.layers import SCORE_MOVES


@pytest.mark.parametrize(
    ("name", "precision", "tflops", "gb_per_s"),
    [
        ("v100-sxm2", "fp32", 15.7, 900),  # NVIDIA V100 data sheet
        ("v100-sxm2", "fp16", 125, 900),
        ("a100-80", "bf16", 312, 2039),  # NVIDIA A100 data sheet, dense
        ("a100-80", "tf32", 156, 2039),
        ("h100", "bf16", 989.5, 3350),  # NVIDIA H100 SXM data sheet: 1,979 with sparsity
        ("mi300x", "bf16", 1307.4, 5300),  # AMD Instinct MI300X data sheet
        ("tpu-v5p", "bf16", 459, 2765),  # Google Cloud TPU v5p
    ],
)
def test_peaks_of_data_sheets(name: str, precision: str, tflops: float, gb_per_s: float) -> None:
    """Dense FLOP/s (a multiply-add counts 2), and bytes/s of the memory."""
    device = load_accelerator(name)
    assert device.peak_flops[precision] == pytest.approx(tflops * 1e12)  # type: ignore[attr-defined]
    assert device.memory_bandwidth == pytest.approx(gb_per_s * 1e9)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "inside", "network"),
    [
        ("dgx-a100", 300e9, 25e9),  # NVLink 3 each way; 200 Gb/s a card: NVIDIA DGX A100
        ("dgx-h100", 450e9, 50e9),  # NVLink 4 each way; 400 Gb/s a card: NVIDIA DGX H100
        ("pipedream-b", 30e9, 25e9 / 8),  # PipeDream (SOSP'19), experimental setup
        ("pipedream-a", 12e9, 10e9 / 8),
    ],
)
def test_links_of_clusters(name: str, inside: float, network: float) -> None:
    """Bytes/s of one direction between two devices of a server, and of its cards."""
    rates = {link.bandwidth for link in load_cluster(name).links}
    assert sorted(rates) == pytest.approx([network, inside])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vgg16", 138_357_544), ("resnet50", 25_557_032), ("gpt2", 124_439_808), ("llama2-7b", 6_738_415_616)],
)
def test_published_parameters(name: str, parameters: int) -> None:
    """Weights of torchvision's and Hugging Face's networks."""
    layers = load_workload(name).layers
    assert sum(layer.parameters for layer in layers) == parameters


def test_bytes_of_elements_and_states() -> None:
    """IEEE 754 and its short kin; momentum keeps one number a weight, Adam two (Kingma and Ba 2015)."""
    assert (PRECISION_BYTES["fp32"], PRECISION_BYTES["bf16"], PRECISION_BYTES["fp16"], PRECISION_BYTES["fp8"]) == (
        4,
        2,
        2,
        1,
    )
    assert OPTIMIZER_STATES == {"sgd": 0, "momentum": 1, "adam": 2}


def test_buckets_of_gradients() -> None:
    """`bucket_cap_mb` of PyTorch's DistributedDataParallel."""
    assert plan_costs.BUCKET_BYTES == 25 * 2**20


def test_scores_of_attention() -> None:
    """FlashAttention writes none (Dao et al. 2022); scores in memory are written and read once a pass."""
    assert SCORE_MOVES["fused"] == 0.0
    assert SCORE_MOVES["unfused"] == 2.0
