"""Ranges: slips of a unit are errors where no device is, and doubts where no usual one is."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from hardware_profiles import (
    ProfileError,
    accelerator_files,
    accelerator_names,
    check_file,
    cluster_files,
    cluster_names,
    load_accelerator,
    load_cluster,
)
from hardware_profiles.ranges import doubts, impossible

SHIPPED = Path(__file__).parents[2] / "hardware_profiles"
GPU = (SHIPPED / "accelerators" / "a100-80.toml").read_text(encoding="utf-8")
BOARD = (SHIPPED / "accelerators" / "vcu118.toml").read_text(encoding="utf-8")
CLUSTER = (SHIPPED / "clusters" / "dgx-a100.toml").read_text(encoding="utf-8")


def with_value(text: str, key: str, value: str) -> str:
    """The file with another value at the first line of that key; one more line where it has none."""
    changed, count = re.subn(rf"^{key} = [0-9.]+", f"{key} = {value}", text, count=1, flags=re.MULTILINE)
    return changed if count else re.sub(r"^name = ", f"{key} = {value}\nname = ", text, count=1, flags=re.MULTILINE)


def test_shipped_files_are_beyond_doubt() -> None:
    """No accelerator and no cluster of this package has an unusual number."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(load_accelerator(name).memory_bytes > 0 for name in accelerator_names())
        assert all(load_cluster(name).devices for name in cluster_names())


@pytest.mark.parametrize(
    ("text", "key", "value", "unit"),
    [
        (GPU, "tflops_bf16", "459e12", "10^12 FLOP/s"),
        (GPU, "tflops_fp32", "19.5e12", "10^12 FLOP/s"),
        (GPU, "tops_int8", "1e-9", "10^12 FLOP/s"),
        (GPU, "memory_gib", "80e9", "GiB"),
        (GPU, "memory_bandwidth_gb_per_s", "2039e9", "10^9 bytes/s"),
        (GPU, "reserve_gib", "1e9", "GiB"),
        (BOARD, "count", "100000000000", "DSP blocks"),
        (BOARD, "clock_mhz", "200e6", "10^6 cycles/s"),
        (BOARD, "efficiency", "80", "share of the peak"),
        (BOARD, "macs_per_cycle_fp16", "1e9", "multiply-adds per DSP and cycle"),
        (BOARD, "memory_mbit", "345.9e6", "10^6 bits"),
        (BOARD, "bandwidth_gb_per_s", "38.4e9", "10^9 bytes/s"),
        (BOARD, "lanes", "1" + "0" * 400, "serial links"),
        (BOARD, "gbps", "32.75e9", "10^9 bits/s"),
        (CLUSTER, "count", "100000000", "servers"),
        (CLUSTER, "devices", "100000000", "devices of a server"),
        (CLUSTER, "bandwidth_gb_per_s", "300e9", "10^9 bytes/s"),
        (CLUSTER, "bandwidth_gbps", "200e9", "10^9 bits/s"),
        (CLUSTER, "latency_us", "5e9", "microseconds"),
        (CLUSTER, "collective_efficiency", "80", "share of the peak"),
    ],
)
def test_a_number_that_no_device_has_is_an_error(tmp_path: Path, text: str, key: str, value: str, unit: str) -> None:
    """One line with the key, the value, the range and the unit."""
    path = tmp_path / "file.toml"
    path.write_text(with_value(text, key, value), encoding="utf-8")
    with pytest.raises(ProfileError, match=rf"\.{key} = .*: must be from .* to .* \({re.escape(unit)}\)") as caught:
        check_file(path)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (GPU, "tflops_fp32", "19500"),
        (GPU, "tflops_fp16", "0.312"),
        (GPU, "memory_gib", "81920"),
        (GPU, "memory_gib", "0.08"),
        (GPU, "memory_bandwidth_gb_per_s", "0.5"),
        (GPU, "reserve_gib", "20"),
        (BOARD, "count", "7"),
        (BOARD, "clock_mhz", "0.2"),
        (BOARD, "macs_per_cycle_int8", "200"),
        (BOARD, "memory_mbit", "43240"),
        (BOARD, "lanes", "1000"),
        (BOARD, "gbps", "0.03275"),
        (BOARD, "efficiency", "0.008"),
        (CLUSTER, "latency_us", "0.000005"),
        (CLUSTER, "latency_us", "50000"),
        (CLUSTER, "bandwidth_gb_per_s", "300000"),
        (CLUSTER, "bandwidth_gbps", "0.02"),
        (CLUSTER, "count", "20001"),
        (CLUSTER, "point_to_point_efficiency", "0.0009"),
    ],
)
def test_a_number_that_is_unusual_is_a_doubt(tmp_path: Path, text: str, key: str, value: str) -> None:
    """The file is read, and a warning gives the key, the value and the usual range."""
    if key == "reserve_gib":
        text = with_value(text, "memory_gib", "80")
    if key == "count" and text is CLUSTER:
        text = with_value(text, "devices", "1")
    path = tmp_path / "file.toml"
    path.write_text(with_value(text, key, value), encoding="utf-8")
    if key == "memory_gib" and float(value) < 1:
        path.write_text(with_value(with_value(text, "reserve_gib", "0"), key, value), encoding="utf-8")
    with pytest.warns(UserWarning, match=rf"\.{key} = {float(value):.6g} is unusual: mostly from .*; check the unit"):
        check_file(path)


def test_no_latency_is_no_doubt(tmp_path: Path) -> None:
    """Zero is a choice, not a slip, where it is possible."""
    path = tmp_path / "file.toml"
    path.write_text(with_value(CLUSTER, "latency_us", "0"), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "16 GPUs" in check_file(path)


@pytest.mark.parametrize(
    ("servers", "devices", "topology", "said"),
    [
        (1, 3000, "full", "$.servers[0]: 1 servers of 3000 devices: a cluster has at most 65536 links"),
        (
            20_000,
            2,
            "ring",
            "$.servers[0]: 20000 servers of 2 devices: a cluster has at most 32768 devices, this one 40000",
        ),
    ],
)
def test_sizes_are_checked_before_anything_is_built(
    tmp_path: Path, servers: int, devices: int, topology: str, said: str
) -> None:
    """Millions of links would take the memory; the message states the limit."""
    path = tmp_path / "cluster.toml"
    path.write_text(
        f'name = "big"\n[[servers]]\ncount = {servers}\naccelerator = "p40"\ndevices = {devices}\n[servers.inside]\n'
        f'topology = "{topology}"\nbandwidth_gb_per_s = 10\n[network]\nbandwidth_gbps = 10\n'
    )
    with pytest.raises(ProfileError, match=re.escape(said)):
        load_cluster(path)


def test_a_reserve_is_no_memory_for_plans(tmp_path: Path) -> None:
    """By the key; without it a sixteenth of the memory, at most 1 GiB; never all of it; boards have none."""
    gib = 2.0**30
    for memory, reserve, left in ((80, "3", 77), (80, None, 79), (8, None, 7.5), (8, "0", 8)):
        text = "\n".join(line for line in GPU.splitlines() if not line.startswith("reserve_gib"))
        text = with_value(text, "memory_gib", str(memory))
        path = tmp_path / "gpu.toml"
        path.write_text(text if reserve is None else with_value(text, "reserve_gib", reserve), encoding="utf-8")
        assert load_accelerator(path).memory_bytes == left * gib
    path.write_text(with_value(with_value(GPU, "memory_gib", "2"), "reserve_gib", "2"), encoding="utf-8")
    with pytest.raises(ProfileError, match=r"\$.reserve_gib = 2: must be below memory_gib, 2"):
        load_accelerator(path)
    assert load_accelerator("vcu118").memory_bytes == 4 * gib


@pytest.mark.parametrize(
    ("name", "usual", "possible"),
    [
        ("MemoryGib", (0.25, 1024), (0.001, 1048576)),
        ("MemoryRate", (1, 30000), (0.001, 1e6)),
        ("VectorRate", (0.5, 1000), (0.001, 1e5)),
        ("MatrixRate", (1, 50000), (0.001, 1e6)),
        ("OverheadMicroseconds", (0, 10000), (0, 1e7)),
        ("Exponent", (0, 2), (0, 10)),
        ("Multiple", (1, 100), (1, 10000)),
        ("MacsPerCycle", (0.01, 16), (1e-6, 10000)),
        ("Share", (0.01, 1), (1e-9, 1)),
        ("NetworkGigabits", (0.1, 10000), (1e-6, 1e7)),
        ("LinkRate", (0.01, 5000), (1e-7, 1e6)),
        ("LatencyMicroseconds", (0.01, 10000), (0, 1e7)),
        ("DeviceCount", (1, 1024), (1, 32768)),
        ("ServerCount", (1, 20000), (1, 32768)),
        ("GraphicsProcessorFile.reserve_gib", (0, 16), (0, 10000)),
        ("DspTable.count", (50, 30000), (1, 10000000)),
        ("DspTable.clock_mhz", (25, 1500), (0.001, 1e5)),
        ("OnChipTable.memory_mbit", (1, 4000), (0.001, 1e7)),
        ("TransceiverTable.lanes", (1, 256), (1, 100000)),
        ("TransceiverTable.gbps", (0.5, 500), (0.001, 1e5)),
    ],
)
def test_the_ends_of_a_range_belong_to_it(name: str, usual: tuple[float, float], possible: tuple[float, float]) -> None:
    """The ends are possible, or usual; the next number beyond is not; zero is never a doubt."""
    kind, _, field = name.partition(".")
    module = accelerator_files if hasattr(accelerator_files, kind) else cluster_files
    found = getattr(module, kind)
    annotation = get_type_hints(found, include_extras=True)[field] if field else found
    table = msgspec.defstruct("table", [("value", annotation)])

    def beyond(ends: tuple[float, float]) -> list[float]:
        return [math.nextafter(ends[0], -math.inf), math.nextafter(ends[1], math.inf)]

    assert [list(impossible(table(value))) for value in possible] == [[], []]
    assert [len(list(impossible(table(value)))) for value in beyond(possible)] == [1, 1]
    assert [list(doubts(table(value))) for value in (*usual, 0.0)] == [[], [], []]
    assert [len(list(doubts(table(value)))) for value in beyond(usual)] == [1, 1]
