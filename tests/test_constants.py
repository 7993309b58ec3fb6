"""Constants that matter, beside their source: what a slip of the pen would move in every answer."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest

from hardware_profiles import PRECISION_BYTES, load_accelerator, load_cluster
from simulator import OPTIMIZER_STATES, load_workload
from simulator.costs import plan_costs
from simulator.workloads.layers import SCORE_MOVES
from tests.records import REWRITE, assert_recorded

ROOT = Path(__file__).parents[1]
TORCH = r"^(import|from) torch\b"
NAMED = r"^([A-Z_][A-Z_\d]*(?:, [A-Z_][A-Z_\d]*)*)(?:: .*)? = "
"""Names in capitals to which a module assigns."""


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


class NoConstant(TypeError):
    """What is not made of numbers alone, or holds nothing yet, as what is remembered."""


def said(value: Any) -> Any:
    """Numbers, and lists and tables of them by their names; words change with what there is to tell, and are told elsewhere."""
    if isinstance(value, Mapping) and value:
        return {str(key): said(one) for key, one in value.items()}
    if isinstance(value, list | tuple) and value:
        return [said(one) for one in value]
    if isinstance(value, int | float):
        return value
    raise NoConstant


def constants(module: ModuleType) -> Iterator[tuple[str, str]]:
    """What a module names in capitals: numbers, and of what is made of several their checksum."""
    for names in re.findall(NAMED, inspect.getsource(module), re.M):
        for name in names.split(", "):
            with suppress(NoConstant):
                value = said(getattr(module, name, ""))
                if isinstance(value, list | dict):
                    yield name, f"~{crc32(json.dumps(value).encode())}"
                else:
                    yield name, f"{value:.9g}"


@pytest.mark.parametrize("package", ["hardware_profiles", "simulator", "planners", "experiments"])
def test_constants_are_those_recorded(package: str) -> None:
    """By room; new ones are recorded when it is written anew. What needs PyTorch is left to where it is installed."""
    record = Path(__file__).parent / "golden" / "constants" / f"{package}.json"
    known = {} if os.environ.get(REWRITE) else json.loads(record.read_text(encoding="utf-8"))["record"]
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if (
            "benchmarks" in name
            or name.endswith("__main__")
            or re.search(TORCH, path.read_text(encoding="utf-8"), re.M)
        ):
            continue
        room = path.parent.relative_to(ROOT).as_posix()
        names = {f"{path.stem}.{one}": value for one, value in constants(import_module(name.removesuffix(".__init__")))}
        told = {one.split()[0] for one in known.get(room, ())} if known else names
        found.setdefault(room, []).extend(f"{one} {value}" for one, value in names.items() if one in told)
    assert_recorded(record, "Constants of each module.", {room: every for room, every in found.items() if every})
