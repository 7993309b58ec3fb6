"""Load: profiles by name and by path, and one clear line for every mistake."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hardware_profiles import (
    Cluster,
    FieldProgrammableGateArray,
    GraphicsProcessor,
    Operation,
    ProfileError,
    Work,
    accelerator_names,
    check_file,
    cluster_names,
    load_accelerator,
    load_cluster,
    load_stack,
    machine_tables,
    optional_members,
    profile_text,
    schema,
)
from hardware_profiles.collectives import _kept
from hardware_profiles.load import stack_table
from hardware_profiles.testing import check_accelerator
from tests.records import Recorded

SHIPPED = Path(sys.modules["hardware_profiles"].__path__[0])

KINDS = [*schema("accelerator")["discriminator"]["mapping"]]
"""Kinds of accelerators that files describe."""

MINIMAL = """
kind = "gpu"
name = "mine"
memory_gib = 24
memory_bandwidth_gb_per_s = 1008
like = "a100-80"
[compute]
tflops_fp32 = 82.6
tflops_fp16 = 165.2
"""

PAIR = """
name = "pair"
[[servers]]
count = 2
accelerator = "v100-sxm2"
[network]
bandwidth_gbps = 8
latency_us = 10
"""

GRAPH = """
name = "triangle"
[[devices]]
name = "a"
accelerator = "vcu118"
[[devices]]
name = "b"
accelerator = "vcu118"
server = "rack"
[[devices]]
name = "c"
accelerator = "vcu129"
server = "rack"
[[switches]]
name = "hub"
[[links]]
between = ["a", "hub"]
bandwidth_gb_per_s = 1
[[links]]
between = ["b", "hub"]
bandwidth_gb_per_s = 1
duplex = "half"
[[links]]
between = ["b", "c"]
bandwidth_gb_per_s = 2
"""

WORK = Work("linear", 2e9, 1e3, 1e3, 1e6)


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user folder: no profile of whoever runs the tests gets in."""
    folder = tmp_path / "profiles"
    for kind in ("accelerators", "clusters"):
        (folder / kind).mkdir(parents=True)
    monkeypatch.setenv("PIPEPLAN_PROFILES", str(folder))
    return folder


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    """A file with that text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------- shipped


def test_ships_the_promised_profiles() -> None:
    """All accelerators and clusters that the README promises are there."""
    accelerators = (
        "titan-x p40 p100 v100-pcie v100-sxm2 rtx-2080-ti a100-40 a100-80 a100-pcie h100 h200 b200 gh200 mi300x "
        "tpu-v5p titan-rtx rtx-3090 vcu118 vcu129 u280"
    )
    clusters = (
        "pipedream-a pipedream-b pipedream-c pipedream-arxiv-a pipedream-arxiv-b dapple-a dapple-b dapple-c "
        "dgx-a100 dgx-h100 dgx-b200 gh200 fpga-vcu118-4 fpga-vcu129-4 fpga-mixed-4"
    )
    assert set(accelerators.split()) <= set(accelerator_names())
    assert set(clusters.split()) <= set(cluster_names())


@pytest.mark.parametrize("name", accelerator_names())
def test_every_shipped_accelerator_keeps_the_contract(name: str) -> None:
    """Each is called as its file is, and takes time at each precision that it lists."""
    device = load_accelerator(name)
    check_accelerator(device)
    assert device.name == name
    for precision in optional_members(device).precisions:
        assert device.seconds(WORK, 1, "forward", precision) > 0  # type: ignore[arg-type]


COUNTS = itertools.count()


@dataclass
class Odd:
    """A device whose seconds are a function of samples."""

    seconds_of: Callable[[float], float]
    name: str = "odd"
    memory_bytes: float = 1.0
    streams: bool = False
    sublinear: bool = True

    def seconds(self, work: Work, samples: float, phase: str, precision: str) -> float:
        """Seconds of a pass."""
        return self.seconds_of(samples) if work.flop > 1e9 else 1.0


@dataclass
class Refusing(Odd):
    """A device that refuses all precisions but these."""

    takes: tuple[str, ...] = ()
    words: str = "no such numbers"

    def seconds(self, work: Work, samples: float, phase: str, precision: str) -> float:
        """Seconds of a pass."""
        if precision not in self.takes:
            raise ValueError(self.words)
        return super().seconds(work, samples, phase, precision)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (Odd(lambda samples: -1.0), "finite and at least 0"),
        (Odd(lambda samples: float("inf")), "finite and at least 0"),
        (Odd(lambda samples: next(COUNTS)), "seconds differ"),
        (Odd(lambda samples: 1.0 / samples), "more samples take no less"),
        (Odd(lambda samples: samples**1.001), "per sample never rise"),
        (Odd(lambda samples: 3.0), "two halves take no less"),
        (Odd(lambda samples: 1.5), "a half of each of two samples takes as long as one"),
        (Odd(lambda samples: 1.0, name=""), "no name"),
        (Odd(lambda samples: 1.0, memory_bytes=0.0), "holds nothing"),
        (Refusing(lambda samples: 1.0), "it refuses every precision of fp32, tf32, fp16, bf16, fp8, "),
        (Refusing(lambda samples: -1.0, takes=("fp32",)), "finite and at least 0"),
        (Refusing(lambda samples: 1.0, takes=("fp32",), words="not\nthese"), "more than one line: not\nthese"),
        (object(), "lacks a member"),
    ],
)
def test_an_accelerator_without_what_it_owes_is_named(device: Any, said: str) -> None:
    """Seconds that are none, that fall, that rise per sample, or that a part of the work escapes."""
    with pytest.raises(AssertionError, match=said):
        check_accelerator(device)


def test_an_accelerator_that_is_not_sublinear_may_be_odd() -> None:
    """Seconds that rise as the square of the samples, which a bound may not rely on."""
    check_accelerator(Odd(lambda samples: samples**2, sublinear=False))


def test_convolutions_of_half_the_work_may_take_less() -> None:
    """Of a device that takes longer for a convolution than for its halves, as efficiency follows the shape."""

    class Shaped(Odd):
        def seconds(self, work: Work, samples: float, phase: str, precision: str) -> float:
            return super().seconds(work, samples, phase, precision) if work.kind == "convolution" else 1.0

    check_accelerator(Shaped(lambda samples: 1.5))


def test_an_accelerator_may_refuse_precisions() -> None:
    """Of those that it does not list; in the one that it takes it is asked."""
    check_accelerator(Refusing(lambda samples: samples, takes=("fp16",)))


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*/*.toml")), ids=lambda path: path.stem)
def test_every_number_of_a_shipped_file_states_its_source(path: Path) -> None:
    """A file opens with its grammar, and each line with a number has a comment, or the source of a stack's constant below it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# Grammar")
    for line, behind in pairwise([*lines, ""]):
        value = line.partition("=")[2].strip()
        if not line.startswith("#") and not behind.startswith('source = "') and value[:1].isdigit():
            assert "#" in value, line


def test_data_sheet_figures_arrive_in_base_units() -> None:
    """V100 SXM2: 16 GiB, of which 1 is no plan's, 900 GB/s, 15.7 TFLOP/s; VCU118: 345.9 Mb are 43.24 MB."""
    device = load_accelerator("v100-sxm2")
    assert isinstance(device, GraphicsProcessor)
    assert (device.memory_bytes, device.reserve_bytes) == (15 * 2**30, 2**30)
    assert device.memory_bandwidth == 900e9
    assert device.peak_flops["fp32"] == pytest.approx(15.7e12)
    board = load_accelerator("vcu118")
    assert isinstance(board, FieldProgrammableGateArray)
    assert board.on_chip_bytes == pytest.approx(345.9e6 / 8)
    assert board.dsps == 6840


def test_name_and_count(tmp_path: Path) -> None:
    """`name:count` overrides the number of servers, of a path as well; zeros in front change nothing."""
    for name, servers in (("dgx-a100", 2), ("dgx-a100:1", 1), ("dgx-a100:4", 4), (f"dgx-a100:{'0' * 5000}3", 3)):
        assert [len(server) for server in load_cluster(name).servers] == [8] * servers
    assert len(load_cluster(f"{written(tmp_path, PAIR)}:5").servers) == 5


# ------------------------------------------------------------------------------------------------- user's own


def test_minimal_accelerator_by_path(tmp_path: Path) -> None:
    """Six figures of a data sheet are a working accelerator."""
    device = load_accelerator(written(tmp_path, MINIMAL))
    assert device.name == "mine"
    assert device.seconds(WORK, 64, "backward", "fp16") > 0


def test_user_folder_comes_before_shipped_files(user_folder: Path) -> None:
    """A user's profile is known by its file's name, and replaces a shipped one of that name."""
    written(user_folder / "accelerators", MINIMAL)
    written(user_folder / "accelerators", MINIMAL.replace("mine", "p40"), "p40.toml")
    written(user_folder / "clusters", PAIR.replace("v100-sxm2", "mine"), "pair.toml")
    assert load_accelerator("mine").memory_bytes == load_accelerator("p40").memory_bytes == 23 * 2**30
    assert {device.name for device in load_cluster("pair").devices} == {"mine"}
    assert "mine" in accelerator_names()
    assert "pair" in cluster_names()


def test_efficiencies_of_a_kind_can_be_overridden(tmp_path: Path) -> None:
    """A key given replaces the default, a key left out keeps it."""
    text = MINIMAL + "[efficiency.linear]\nforward = 0.25\nsaturation_us = 3\n[overhead]\ncall_us = 7\n"
    device = load_accelerator(written(tmp_path, text))
    plain = load_accelerator(written(tmp_path, MINIMAL, "plain.toml"))
    assert isinstance(device, GraphicsProcessor)
    assert isinstance(plain, GraphicsProcessor)
    assert device.efficiencies["linear"].forward == 0.25
    assert device.efficiencies["linear"].saturation_seconds == pytest.approx(3e-6)
    assert device.efficiencies["linear"].backward == plain.efficiencies["linear"].backward
    assert device.call_overhead == pytest.approx(7e-6)


def test_a_file_that_says_nothing_has_the_shares_of_its_kind_of_chip(tmp_path: Path) -> None:
    """Those of GPUs, and a line says so; none where the file says its kind itself."""
    text = MINIMAL.replace('like = "a100-80"\n', "")
    with pytest.warns(UserWarning, match="has the shares of tensor-core chips, some 25 % off") as told:
        device = load_accelerator(written(tmp_path, text))
    assert len(told) == 1
    assert optional_members(device).spread == 0.25
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = load_accelerator(written(tmp_path, 'chip = "tensor-core"\n' + text))
    assert said == device
    with pytest.raises(ProfileError, match=r"\$\.chip = 'cpu': must be one of array, systolic, tensor-core, vector"):
        load_accelerator(written(tmp_path, 'chip = "cpu"\n' + text))


def test_a_file_names_the_gpu_that_it_is_like(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Its efficiencies and overheads, through several files and from a path beside it, but for what the file itself says."""
    kind = "[efficiency.attention]\nmatrix = 0.3\n[overhead]\ncall_us = 4\n"
    written(tmp_path, MINIMAL + kind, "first.toml")
    path = written(tmp_path, MINIMAL.replace("a100-80", "./first.toml"), "second.toml")
    device, model = load_accelerator(path), load_accelerator("a100-80")
    assert isinstance(device, GraphicsProcessor)
    assert isinstance(model, GraphicsProcessor)
    assert device.efficiencies["attention"].matrix == 0.3
    assert device.efficiencies["linear"] == model.efficiencies["linear"]
    assert device.call_overhead == pytest.approx(4e-6)
    assert "efficiencies of ./first.toml" in check_file(path)
    assert not recwarn.list


def test_a_likeness_leads_to_a_measured_gpu(tmp_path: Path) -> None:
    """Not back to itself, not to an FPGA, not to nothing."""
    for like, words in (
        ("./mine.toml", r"mine.toml: \$\.like: leads back to itself$"),
        ("vcu118", r"\$.like = 'vcu118': must be a GPU with efficiencies, such as v100-sxm2, a100-80, b200"),
        (
            "a100",
            r"\$.like = 'a100': accelerator 'a100' is not known \(did you mean a100-40\?\); choose from "
            rf"a100-40, a100-80, .*{', '.join(sorted(accelerator_names())[-3:])}; or give the path of a .toml file",
        ),
    ):
        with pytest.raises(ProfileError, match=words) as caught:
            load_accelerator(written(tmp_path, MINIMAL.replace("a100-80", like)))
        assert "\n" not in str(caught.value)


def test_a_chip_that_is_no_gpu_has_the_same_keys(tmp_path: Path) -> None:
    """kind = "accelerator": the same six numbers give the same seconds."""
    alike = [MINIMAL.replace('"gpu"', kind) for kind in ('"gpu"', '"accelerator"')]
    chips = [load_accelerator(written(tmp_path, text)) for text in alike]
    assert chips[0] == chips[1]
    assert "accelerator mine: 23 GiB" in check_file(tmp_path / "mine.toml")


def test_cluster_refers_to_an_accelerator_beside_it(tmp_path: Path) -> None:
    """A path in a cluster's file is relative to that file."""
    (tmp_path / "parts").mkdir()
    written(tmp_path / "parts", MINIMAL)
    cluster = load_cluster(written(tmp_path, PAIR.replace("v100-sxm2", "parts/mine.toml"), "pair.toml"))
    assert cluster.devices[1].name == "mine"
    assert cluster.transfer_seconds(0, 1, 1e9) == pytest.approx(1.0 + 20e-6)


def test_explicit_graph(tmp_path: Path) -> None:
    """Devices, switches and links as written; servers by label; one channel for a half-duplex link."""
    cluster = load_cluster(written(tmp_path, GRAPH))
    assert [device.name for device in cluster.devices] == ["vcu118", "vcu118", "vcu129"]
    assert cluster.servers == ((0,), (1, 2))
    assert len(cluster.channels) == 5
    assert len(cluster.route(0, 2)) == 3


def test_servers_have_cards_of_their_own(tmp_path: Path) -> None:
    """Two servers with the cards of the network, 8 Gbit/s, and one with its own, 2: a quarter from and to that one.

    A rack's uplink carries what its servers' cards do together.
    """
    server = '[[servers]]\ncount = {0}\naccelerator = "p40"\n{1}\n'
    text = 'name = "own"\n' + server.format(2, "") + server.format(1, "network_bandwidth_gbps = 2")
    cluster = load_cluster(written(tmp_path, text + "[network]\nbandwidth_gb_per_s = 1\n"))
    reached = [cluster.point_to_point(*pair)[1] for pair in ((0, 1), (0, 2), (2, 0))]
    assert reached == pytest.approx([1e9, 0.25e9, 0.25e9])
    cabled = load_cluster(written(tmp_path, text + "[network]\nbandwidth_gb_per_s = 1\ntopology = 'full'\n"))
    both = [cabled.point_to_point(*pair)[1] for pair in ((0, 1), (1, 0), (0, 2), (2, 1))]
    assert both == pytest.approx([1e9, 1e9, 0.25e9, 0.25e9])
    racks = load_cluster(written(tmp_path, text + "[network]\nbandwidth_gb_per_s = 1\n[spine]\nservers = 3\n"))
    assert [link.bandwidth for link in racks.links if link.second == "spine"] == pytest.approx([2.25e9])
    lone = 'name = "own"\n' + server.format(1, "network_bandwidth_gbps = 2")
    with pytest.raises(ProfileError, match=r"servers\[0\].network_bandwidth_gbps: goes with a \[network\]"):
        load_cluster(written(tmp_path, lone))


def test_devices_have_the_price_of_their_servers_or_of_the_file(tmp_path: Path) -> None:
    """An hour of the first server's devices costs 0.9, of the others 2; devices out of use cost nothing; no price is none."""
    server = '[[servers]]\naccelerator = "p40"\ndevices = 2\n{0}\n[servers.inside]\ntopology = "switch"\nbandwidth_gbps = 8\n'
    servers = server.format("price_per_device_hour = 0.9") + server.format("") + "[network]\nbandwidth_gbps = 8\n"
    cluster = load_cluster(written(tmp_path, 'name = "own"\nprice_per_device_hour = 2\ncurrency = "EUR"\n' + servers))
    assert (cluster.prices, cluster.currency) == ((0.9, 0.9, 2.0, 2.0), "EUR")
    assert cluster.take(3).prices == (0.9, 0.9, 2.0)
    assert load_cluster("pipedream-b").prices == ()
    with pytest.raises(ProfileError, match=r"price_per_device_hour: 2 of 4 devices have no price of their own"):
        load_cluster(written(tmp_path, 'name = "own"\n' + servers))
    priced = GRAPH.replace("[[devices]]", "[[devices]]\nprice_per_device_hour = 1.5")
    assert load_cluster(written(tmp_path, priced)).prices == (1.5, 1.5, 1.5)
    with pytest.raises(ProfileError, match=r"price_per_device_hour"):
        load_cluster(written(tmp_path, priced.replace("1.5", "-1")))


def test_both_forms_of_a_cluster_choose_the_rings(tmp_path: Path) -> None:
    """Two servers of two devices on a slow network: the flat ring alone is slower than the better of both."""
    server = '[[devices]]\nname = "{0}"\naccelerator = "p40"\nserver = "{1}"\n'
    link = '[[links]]\nbetween = ["{0}", "{1}"]\nbandwidth_gb_per_s = {2}\n'
    devices = "".join(server.format(f"d{index}", f"s{index // 2}") for index in range(4))
    links = link.format("d0", "d1", 10) + link.format("d2", "d3", 10)
    links += "".join(link.format(f"d{index}", "network", 1) for index in range(4))
    graph = 'name = "four"\n' + devices + '[[switches]]\nname = "network"\n' + links
    compact = (
        'name = "four"\n[[servers]]\ncount = 2\naccelerator = "p40"\ndevices = 2\n[servers.inside]\ntopology = "full"\n'
        'bandwidth_gb_per_s = 10\n[network]\nattach = "device"\nbandwidth_gb_per_s = 1\n'
    )
    for text in (graph, compact):
        fastest, flat = (
            load_cluster(written(tmp_path, f'allreduce = "{rings}"\n{text}')) for rings in ("fastest", "flat-ring")
        )
        assert (fastest.allreduce, flat.allreduce) == ("fastest", "flat-ring")
        assert flat.collectives.seconds(Operation.ALL_REDUCE, range(4), 1e9) == pytest.approx(2 * 3 / 4)
        assert fastest.collectives.seconds(Operation.ALL_REDUCE, range(4), 1e9) == pytest.approx(0.1 + 0.5)


@pytest.mark.parametrize(
    ("topology", "channels", "hops"),
    [("switch", 8, 2), ("shared-bus", 2, 2), ("full", 12, 1), ("ring", 8, 2), ("chain", 6, 2)],
)
def test_topologies_of_a_server(tmp_path: Path, topology: str, channels: int, hops: int) -> None:
    """Four devices, full duplex: channels in all, and channels from device 0 to device 2."""
    text = (
        'name = "box"\n[[servers]]\naccelerator = "p40"\ndevices = 4\n[servers.inside]\n'
        f'topology = "{topology}"\nbandwidth_gb_per_s = 1\n'
    )
    cluster = load_cluster(written(tmp_path, text))
    assert len(cluster.channels) == channels
    assert len(cluster.route(0, 2)) == hops


class Entry:
    """A stand-in for an installed entry point."""

    def __init__(self, name: str, value: object, group: str) -> None:
        self.name, self.value, self.group = name, "package:thing", group
        self._object = value

    def load(self) -> object:
        """What the package offers."""
        return self._object


def test_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_plugins: None
) -> None:
    """A package outside offers a folder of files, a path as text, or a finished object."""
    folder = tmp_path / "package"
    folder.mkdir()
    written(folder, MINIMAL)
    device = load_accelerator("p40")
    offers = {
        "pipeplan.accelerators": [Entry("folder", folder, "a"), Entry("ready", device, "a")],
        "pipeplan.clusters": [
            Entry("text", str(written(tmp_path, PAIR, "pair.toml")), "c"),
            *(
                Entry(name, made, "c")
                for name, made in (
                    ("bad", 3),
                    ("swapped", device),
                    ("both", load_cluster("dapple-b")),
                    ("gone", "/nowhere"),
                )
            ),
        ],
        "pipeplan.stacks": [Entry("own", replace(load_stack("generic"), name="own"), "s")],
    }
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: offers[group])
    assert load_accelerator("mine").name == "mine"
    assert load_accelerator("ready") is device
    assert isinstance(load_cluster("pair"), Cluster)
    assert {"mine", "ready", "a100-40"} <= set(accelerator_names())
    with pytest.raises(ProfileError, match="'nowhere' is not known"):
        load_cluster("nowhere")
    said = "plug-in bad = package:thing of pipeplan.clusters: TypeError: must be an accelerator, a cluster, a stack, a folder"
    told = capsys.readouterr().err
    assert told.count(said) == 1
    assert (
        "plug-in gone = package:thing of pipeplan.clusters: ValueError: there is no file or folder /nowhere\n" in told
    )
    for ask, line in (
        (lambda: load_cluster("both:2"), "both:2: cluster 'both' is an object of an entry point and does not scale"),
        (lambda: load_cluster("swapped"), "swapped: the entry point offers an accelerator, where a cluster is wanted"),
        (lambda: stack_table("own"), "stack 'own' is an object of an entry point: it has no file"),
        (
            lambda: machine_tables("both"),
            "cluster 'both' is an object of an entry point: it has no file whose values could change",
        ),
        (lambda: profile_text("ready"), "ready is an object of an entry point: it has no file"),
        (
            lambda: machine_tables(written(tmp_path, PAIR.replace("v100-sxm2", "ready"), "of-ready.toml")),
            f"{tmp_path / 'of-ready.toml'}: $.servers[0].accelerator = 'ready': is an object of an entry "
            "point: it has no file to change",
        ),
    ):
        with pytest.raises(ProfileError, match=f"^{re.escape(line)}$"):
            ask()


# ------------------------------------------------------------------------------------------------- mistakes


def complaint(path: str | Path) -> str:
    """The one line that check_file has to say."""
    with pytest.raises(ProfileError) as caught:
        check_file(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tflops_fp32 = 82.6", 'tflops_fp32 = "fast"', ["$.compute.tflops_fp32 = 'fast'", "expected `float"]),
        (
            "tflops_fp32 = 82.6",
            "tflops_fp32 = -1",
            ["$.compute.tflops_fp32 = -1", "must be from 0.001 to 100000 (10^12 FLOP/s)"],
        ),
        ("tflops_fp32 = 82.6", "tflops_fp32 = inf", ["$.compute.tflops_fp32 = inf: must be a finite number", "finite"]),
        ("memory_gib = 24", "memory_gib = 1" + "0" * 400, ["$.memory_gib = 1000", "..."]),
        ("tflops_fp32 = 82.6", "tflops_fp32 = true", ["$.compute.tflops_fp32 = True", "expected `float"]),
        ("tflops_fp16", "tflop_fp16", ["$.compute.tflop_fp16 = 165.2", "did you mean tflops_fp16?", "tflops_bf16"]),
        ("memory_gib = 24", "", ["$.memory_gib: is missing", "memory_bandwidth_gb_per_s"]),
        ('kind = "gpu"', 'kind = "tpu"', ["$.kind = 'tpu'", f"$.kind = 'tpu': must be one of {', '.join(KINDS)}"]),
        ('name = "mine"', 'name = "my card"', ["$.name = 'my card'"]),
        ("tflops_fp32 = 82.6\ntflops_fp16 = 165.2", "", ["$.compute: needs at least one rate"]),
        ("[compute]", "[efficiency.magic]\n[compute]", ["$.efficiency.magic", "choose from convolution"]),
        ("[compute]", "[efficiency.linear]\nmemory = 2\n[compute]", ["$.efficiency.linear.memory = 2", "to 1 (share"]),
        ("memory_gib = 24", "memory_gib = = 24", ["not valid TOML", "line 4"]),
    ],
)
def test_one_line_says_what_is_wrong_with_an_accelerator(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    """File, path of the key, value, rule, choices."""
    assert old in MINIMAL
    text = complaint(written(tmp_path, MINIMAL.replace(old, new)))
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"v100-sxm2"', '"v100-smx2"', ["$.servers[0].accelerator = 'v100-smx2'", "did you mean v100-sxm2?"]),
        ('"v100-sxm2"', '"gone/mine.toml"', ["$.servers[0].accelerator", "there is no such file"]),
        ("count = 2", "count = 0", ["$.servers[0].count = 0", "must be from 1 to 32768"]),
        ("count = 2", "count = 1000000000", ["$.servers[0].count = 1000000000", "must be from 1 to 32768"]),
        ("count = 2", "count = 1.5", ["$.servers[0].count = 1.5", "expected `int`"]),
        ("count = 2", "counts = 2", ["$.servers[0].counts = 2", "did you mean count?"]),
        ("count = 2", "devices = 2", ["$.servers[0].inside", "2 devices in a server need"]),
        ('accelerator = "v100-sxm2"', "", ["$.servers[0]: give exactly one of accelerator (a name)"]),
        (
            'accelerator = "v100-sxm2"',
            'accelerators = ["v100-sxm2"]\ndevices = 1',
            ["$.servers[0].devices: goes with accelerator; the list"],
        ),
        ("bandwidth_gbps = 8", "", ["$.network", "exactly one of bandwidth_gbps"]),
        ("bandwidth_gbps = 8", "bandwidth_gbps = -8", ["$.network.bandwidth_gbps = -8", "must be from"]),
        ("latency_us = 10", 'duplex = "simplex"', ["$.network.duplex = 'simplex'"]),
        ("[network]\nbandwidth_gbps = 8\nlatency_us = 10", "", ["$.network", "2 servers need a [network]"]),
    ],
)
def test_one_line_says_what_is_wrong_with_a_cluster(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    """Unknown accelerators, bad numbers, missing tables: file, path, value, rule, choices."""
    assert old in PAIR
    text = complaint(written(tmp_path, PAIR.replace(old, new)))
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            '["b", "c"]',
            '["b", "d"]',
            [
                "ends at 'd'",
                "triangle: link b - d ends at 'd', which is no device or switch; choose from a, b, c, hub",
            ],
        ),
        ('["b", "c"]', '["b"]', ["$.links[2].between"]),
        ('["b", "hub"]', '["c", "b"]', ["triangle: b and c are linked twice; give one faster link"]),
        ('name = "c"', 'name = "a"', ["triangle: devices and switches have names of their own; 'a' is repeated"]),
        (
            '[[links]]\nbetween = ["b", "c"]\nbandwidth_gb_per_s = 2\n',
            "",
            ["triangle: device 2 (c) is not connected to device 0 (a); add a link"],
        ),
    ],
)
def test_one_line_says_what_is_wrong_with_a_graph(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    """Dangling links, doubled links and names, unconnected devices."""
    assert old in GRAPH
    text = complaint(written(tmp_path, GRAPH.replace(old, new)))
    for word in words:
        assert word in text, text


def test_files_that_are_no_profiles(tmp_path: Path) -> None:
    """Missing, directory, empty, comments only, not UTF-8, neither kind: one line each."""
    assert "no such file" in complaint(tmp_path / "gone.toml")
    assert "is a directory" in complaint(tmp_path)
    assert "is empty" in complaint(written(tmp_path, ""))
    assert "is empty" in complaint(written(tmp_path, "# nothing\n"))
    kinds = " or ".join(f'"{kind}"' for kind in KINDS)
    assert (
        f'$: an accelerator says kind = {kinds}, a stack kind = "stack", a '
        "cluster has [[servers]] or [[devices]]; this file has only colour"
    ) in complaint(written(tmp_path, "colour = 1\n"))
    path = tmp_path / "latin.toml"
    path.write_bytes(b'name = "caf\xe9"\n')
    assert "byte 11 (0xe9)" in complaint(path)


def test_unknown_names_list_the_choices() -> None:
    """The closest name and all of them."""
    with pytest.raises(ProfileError, match=r"'a100' is not known \(did you mean a100-\d0\?\); choose from a100-40"):
        load_accelerator("a100")
    with pytest.raises(ProfileError, match=r"'pipedream' is not known.*choose from clariden, dapple-a"):
        load_cluster("pipedream")


@pytest.mark.parametrize("count", ["0", "000", "-1", "many", "", "²", "1.5", "32769", "1000000000", "9" * 5000])
def test_counts_are_whole_numbers_from_one(count: str) -> None:
    """What stands after the colon is a number of servers, as many as a cluster may have devices."""
    with pytest.raises(ProfileError, match="whole number from 1 to 32768") as told:
        load_cluster(f"dgx-a100:{count}")
    assert str(told.value).startswith(f"'dgx-a100:{count}"[:20])
    assert told.value.untold == "cluster: after the colon stands the number of servers, a whole number from 1 to 32768"


WIDE = 'name = "w"\n[[servers]]\naccelerator = "p40"\ndevices = {devices}\ninside = {{topology = "full", bandwidth_gbps = 8}}\n'


@pytest.mark.parametrize(
    ("text", "count", "said"),
    [
        (None, 32768, "$.servers[0]: 32768 servers of 8 devices: a cluster has at most 32768 devices, this one 262144"),
        (
            WIDE.format(devices=363),
            1,
            "$.servers[0]: 1 servers of 363 devices: a cluster has at most 65536 links, this one up to 65703",
        ),
        (f"{PAIR}topology = 'full'\n", 363, "$.network: a cluster has at most 65536 links, this one up to 66429"),
        (
            f"{PAIR}[[servers]]\naccelerator = 'p40'\n",
            2,
            "$.servers: name:count needs one [[servers]] table; this file has 2",
        ),
    ],
)
def test_a_cluster_is_counted_before_it_is_built(text: str | None, count: int, said: str, tmp_path: Path) -> None:
    """Of n(n - 1)/2 cables between 363 ends 65,703; two more a server that stands alone."""
    named = "dgx-a100" if text is None else str(written(tmp_path, text))
    with pytest.raises(ProfileError, match=f"{re.escape(said)}$") as told:
        load_cluster(f"{named}:{count}")
    assert told.value.untold.startswith(f"cluster: with {count} servers it cannot be built") is (count > 1)


def test_wrong_kind_of_file(tmp_path: Path) -> None:
    """An accelerator is no cluster, a cluster no accelerator, an explicit graph does not scale."""
    with pytest.raises(ProfileError, match=r"\$.kind: is an accelerator, where a cluster is wanted"):
        load_cluster(written(tmp_path, MINIMAL))
    with pytest.raises(ProfileError, match="where an accelerator is wanted"):
        load_accelerator(written(tmp_path, PAIR))
    with pytest.raises(ProfileError, match=r"\$: is a cluster, where an accelerator is wanted$"):
        load_accelerator(written(tmp_path, GRAPH))
    with pytest.raises(
        ProfileError, match=r"\$.devices: an explicit graph does not scale; name:count needs \[\[servers\]\]"
    ):
        load_cluster(f"{written(tmp_path, GRAPH)}:2")


def test_check_file_sums_up(tmp_path: Path) -> None:
    """One line that names kind, name and size."""
    assert "gpu mine: 23 GiB of memory for plans, 1 GiB in reserve" in check_file(written(tmp_path, MINIMAL))
    assert "cluster pair: 2 GPUs (v100-sxm2) in 2 servers, 4 channels" in check_file(written(tmp_path, PAIR))


def bounded(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """What a schema's keys may be, and what they are where a file does not say, by path."""
    words = (
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minItems",
        "maxItems",
        "maxLength",
        "default",
    )
    if isinstance(value, dict):
        found = {word: value[word] for word in words if isinstance(value.get(word), int | float | str)}
        yield from ((path, found),) if found else ()
        for key, one in value.items():
            yield from bounded(one, path if key in ("$defs", "properties", "anyOf", "items") else f"{path}.{key}")
    elif isinstance(value, list):
        for one in value:
            yield from bounded(one, path)


@pytest.mark.parametrize("kind", ["accelerator", "cluster", "stack"])
def test_bounds_of_files(kind: Any, recorded: Recorded) -> None:
    """By key: the least and the most that it may be, how long, and its default."""
    found: dict[str, list[Any]] = {}
    for path, bounds in bounded(schema(kind)):
        found.setdefault(path, []).append(bounds)
    recorded(**found)


def test_schema_is_json_schema() -> None:
    """Schemas are JSON, name their keys, and bound their numbers; another kind is an error."""
    accelerator, cluster = json.dumps(schema("accelerator")), json.dumps(schema("cluster"))
    assert "tflops_fp16" in accelerator
    assert '"minimum": 0.001, "maximum": 1000000.0' in accelerator
    assert "servers" in cluster
    assert "links" in cluster
    with pytest.raises(ValueError, match="one of accelerator, cluster, stack: 'workload'"):
        schema("workload")  # type: ignore[arg-type]


def test_heavy_libraries_stay_out() -> None:
    """Reading every profile loads neither networkx nor numpy."""
    code = (
        "import sys, hardware_profiles as h; [h.load_cluster(n) for n in h.cluster_names()]; "
        "print([m for m in ('networkx', 'numpy', 'pandas', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------------------------------------- three levels

RACKS = """
name = "racks"
[[servers]]
count = 6
accelerator = "v100-sxm2"
devices = 2
[servers.inside]
topology = "switch"
bandwidth_gb_per_s = 100
[network]
attach = "device"
bandwidth_gb_per_s = 1
latency_us = 1
[spine]
servers = 4
oversubscription = 4
latency_us = 10
"""


def test_racks_hang_on_a_spine(tmp_path: Path) -> None:
    """4 servers of 2 cards of 1 GB/s behind an uplink of 2 GB/s, the last two servers behind one of half of that."""
    cluster = load_cluster(written(tmp_path, RACKS))
    assert cluster.switches[-3:] == ("rack0", "rack1", "spine")
    assert [cluster.channels[channel].bandwidth for channel in cluster.route(0, 8)] == [1e9, 2e9, 1e9, 1e9]
    assert cluster.point_to_point(0, 2) == (pytest.approx(2e-6), 1e9)
    assert cluster.point_to_point(0, 8)[0] == pytest.approx(22e-6)
    # Four pairs cross to the smaller rack at once: its uplink of 1 GB/s carries all of them.
    assert cluster.flow([(0, 8), (1, 9), (2, 10), (3, 11)]).bandwidth == pytest.approx(0.25e9)
    assert cluster.flow([(0, 2), (1, 3)]).bandwidth == pytest.approx(1e9)


def test_rails_hang_on_a_spine(tmp_path: Path) -> None:
    """A switch for the first devices of 4 servers and one for the second: from rail to rail over the spine or a neighbour."""
    cluster = load_cluster(written(tmp_path, RACKS.replace("servers = 4\n", 'servers = 4\nleaf = "rail"\n')))
    assert cluster.switches[-5:] == ("rack0.rail0", "rack0.rail1", "rack1.rail0", "rack1.rail1", "spine")
    assert cluster.point_to_point(0, 6) == (pytest.approx(2e-6), 1e9)
    assert cluster.point_to_point(0, 8) == (pytest.approx(22e-6), 0.5e9)
    assert len(cluster.route(0, 7)) == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("servers = 4\n", 'servers = 4\nleaf = "rail"\n'),
        ('attach = "device"', 'attach = "server"'),
        (RACKS[RACKS.index("[spine]") :], ""),
        ('topology = "switch"', 'topology = "full"'),
        ('topology = "switch"', 'topology = "ring"'),
        ('topology = "switch"', 'topology = "switch"\ncarries_network = true'),
        ('topology = "switch"', 'topology = "torus"\nsides = [2, 2]'),
        ('topology = "switch"', 'topology = "tree"\nsides = [2, 2]'),
        ('attach = "device"', "cards = 2"),
        ("[spine]", "[core]\nservers = 8\noversubscription = 2\n[spine]"),
        ("[network]", '[[servers]]\ncount = 9\naccelerator = "v100-sxm2"\ndevices = 4\n[servers.inside]\ntopology = "switch"\n'
         "bandwidth_gb_per_s = 9\n[network]"),
    ],
)  # fmt: skip
def test_like_servers_stand_for_each_other_in_all_reduces(tmp_path: Path, old: str, new: str) -> None:
    """Rings over all servers or some, whole or in part, one or several at once: rates are those with every channel looked at."""
    text = RACKS.replace("count = 6", "count = 19").replace("devices = 2", "devices = 4").replace(old, new, 1)
    cluster = load_cluster(written(tmp_path, text))
    rng, count = random.Random(0), len(cluster.devices)
    looked_at = 0
    for _ in range(40):
        first, degree = rng.randrange(count // 2), rng.choice((1, 2, 4))
        groups = range(first, rng.randrange(first + 8, count + 1) - degree, degree * rng.choice((1, 1, 2)))
        rings = [tuple(group + place for group in groups) for place in range(degree)]
        told = cluster.collectives.rates(Operation.ALL_REDUCE, *rings)
        whole, few = (
            _kept(cluster.collectives.ways(Operation.ALL_REDUCE, rings, one) if len(rings[0]) > 1 else [])
            for one in (True, False)
        )
        assert told == tuple((plan.latency, plan.seconds_per_byte) for plan in whole)
        most = min(whole, key=lambda plan: plan.seconds_per_byte, default=None)
        occupied = most.occupancy if most else {}
        assert dict(zip(*cluster.collectives.busy(Operation.ALL_REDUCE, *rings), strict=True)) == occupied
        looked_at += len(whole[0].occupancy) - len(few[0].occupancy) if whole else 0
    assert looked_at > 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("oversubscription = 4", "oversubscription = 0.5", "must be from 1"),
        ("servers = 4", 'servers = 4\nleaf = "rail"', "goes with a card a device"),
        ("servers = 4", 'servers = 4\nleaf = "row"', "must be one of rack, rail"),
    ],
)
def test_a_spine_that_cannot_be_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    """In one line, with the key and the choices."""
    text = RACKS.replace('attach = "device"', 'attach = "server"').replace(old, new)
    with pytest.raises(ProfileError, match=words) as caught:
        load_cluster(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_spine_needs_a_network(tmp_path: Path) -> None:
    """It joins leaves of one."""
    text = RACKS[: RACKS.index("[network]")].replace("count = 6", "count = 1") + RACKS[RACKS.index("[spine]") :]
    with pytest.raises(ProfileError, match=r"\$\.spine: joins the leaves"):
        load_cluster(written(tmp_path, text))


def test_a_colon_in_a_folder_s_name_is_no_number_of_servers(tmp_path: Path) -> None:
    """What stands behind the last colon of a path is one only at its end."""
    folder = tmp_path / "of:2"
    folder.mkdir()
    path = written(folder, profile_text("dgx-a100"))
    assert load_cluster(path).servers == load_cluster("dgx-a100").servers
    assert len(load_cluster(f"{path}:3").servers) == 3
