"""Files: what an accelerator's or a cluster's TOML file may say, and the object that it describes.

Units are suffixes of the keys: `_gib` 2**30 bytes, `_gb_per_s` 10**9 bytes/s, `_gbps` 10**9 bits/s, `_us`
microseconds, `_mhz` 10**6 cycles/s, `_mbit` 10**6 bits, `tflops_` 10**12 FLOP/s (a multiply-add counts 2).
An efficiency is a share, 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import msgspec

from hardware_profiles.accelerator import Accelerator
from hardware_profiles.cluster import AllReduce, Cluster, Duplex, Link
from hardware_profiles.fpga import FieldProgrammableGateArray
from hardware_profiles.gpu import (
    DEFAULT_CALL_OVERHEAD,
    DEFAULT_EFFICIENCIES,
    DEFAULT_STEP_OVERHEAD,
    GraphicsProcessor,
    KindEfficiency,
)

GIB = 2**30
MOST_DEVICES = 65_536
"""Devices of a cluster at most: a slip of the pen in a count should not eat the memory."""

GIGA = 1e9
MICRO = 1e-6

# The upper end only keeps the conversion to base units finite.
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=1e15)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(min_length=1, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class Table(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A TOML table that refuses keys it does not know."""


# ----------------------------------------------------------------------------------------------- accelerators


class ComputeTable(Table, frozen=True, kw_only=True):
    """`[compute]` of a GPU: dense peak rates of the data sheet, at least one."""

    tflops_fp32: Positive | None = None
    tflops_tf32: Positive | None = None
    tflops_fp16: Positive | None = None
    tflops_bf16: Positive | None = None
    tflops_fp8: Positive | None = None
    tops_int8: Positive | None = None

    def rates(self) -> dict[str, float]:
        """FLOP/s by precision, of those given."""
        given = {
            "fp32": self.tflops_fp32,
            "tf32": self.tflops_tf32,
            "fp16": self.tflops_fp16,
            "bf16": self.tflops_bf16,
            "fp8": self.tflops_fp8,
            "int8": self.tops_int8,
        }
        return {precision: rate * 1e12 for precision, rate in given.items() if rate is not None}


class OverheadTable(Table, frozen=True, kw_only=True):
    """`[overhead]` of a GPU: fixed costs of a pass over a layer, and of each sequential step in it."""

    call_us: NotNegative = DEFAULT_CALL_OVERHEAD / MICRO
    step_us: NotNegative = DEFAULT_STEP_OVERHEAD / MICRO


class EfficiencyTable(Table, frozen=True, kw_only=True):
    """`[efficiency.KIND]` of a GPU: shares of the peaks that a kind of layer reaches; a key left out keeps
    its default.
    """

    forward: Share | None = None
    backward: Share | None = None
    matrix: Share | None = None
    memory: Share | None = None
    saturation_us: NotNegative | None = None
    window_exponent: NotNegative | None = None
    transform_traffic: Annotated[float, msgspec.Meta(ge=1.0)] | None = None

    def over(self, default: KindEfficiency) -> KindEfficiency:
        """The default with what this table says instead."""
        given = {
            name: value
            for name in ("forward", "backward", "matrix", "memory", "window_exponent", "transform_traffic")
            if (value := getattr(self, name)) is not None
        }
        if self.saturation_us is not None:
            given["saturation_seconds"] = self.saturation_us * MICRO
        return replace(default, **given)


class EfficiencyTables(Table, frozen=True, kw_only=True):
    """`[efficiency]` of a GPU: one table a kind of layer."""

    convolution: EfficiencyTable | None = None
    linear: EfficiencyTable | None = None
    attention: EfficiencyTable | None = None
    recurrent: EfficiencyTable | None = None
    embedding: EfficiencyTable | None = None
    normalization: EfficiencyTable | None = None
    activation: EfficiencyTable | None = None
    pooling: EfficiencyTable | None = None
    dropout: EfficiencyTable | None = None
    elementwise: EfficiencyTable | None = None
    loss: EfficiencyTable | None = None

    def kinds(self) -> dict[str, KindEfficiency]:
        """The kinds given, each over its default."""
        return {
            kind: table.over(default)
            for kind, default in DEFAULT_EFFICIENCIES.items()
            if (table := getattr(self, kind)) is not None
        }


class GraphicsProcessorFile(Table, frozen=True, kw_only=True, tag_field="kind", tag="gpu"):
    """A GPU's file."""

    name: Name
    memory_gib: Positive
    memory_bandwidth_gb_per_s: Positive
    compute: ComputeTable
    overhead: OverheadTable = OverheadTable()
    efficiency: EfficiencyTables = EfficiencyTables()
    description: str = ""

    def build(self) -> GraphicsProcessor:
        """The device; ValueError naming the key where the tables contradict the model."""
        rates = self.compute.rates()
        if not rates:
            raise ValueError("$.compute: needs at least one rate, such as tflops_fp32")
        return GraphicsProcessor(
            name=self.name,
            memory_bytes=self.memory_gib * GIB,
            memory_bandwidth=self.memory_bandwidth_gb_per_s * GIGA,
            peak_flops=rates,
            call_overhead=self.overhead.call_us * MICRO,
            step_overhead=self.overhead.step_us * MICRO,
            efficiencies=self.efficiency.kinds(),
        )


class DspTable(Table, frozen=True, kw_only=True):
    """`[dsp]` of an FPGA: multiply-adds a DSP block and cycle by precision (at least one), and how many
    cycles do work.
    """

    count: Count
    clock_mhz: Positive
    efficiency: Share
    macs_per_cycle_fp32: Positive | None = None
    macs_per_cycle_fp16: Positive | None = None
    macs_per_cycle_bf16: Positive | None = None
    macs_per_cycle_int8: Positive | None = None

    def rates(self) -> dict[str, float]:
        """Multiply-adds a DSP and cycle, by precision, of those given."""
        given = {p: getattr(self, f"macs_per_cycle_{p}") for p in ("fp32", "fp16", "bf16", "int8")}
        return {precision: rate for precision, rate in given.items() if rate is not None}


class OnChipTable(Table, frozen=True, kw_only=True):
    """`[on_chip]` of an FPGA: block RAM and UltraRAM together."""

    memory_mbit: Positive


class DdrTable(Table, frozen=True, kw_only=True):
    """`[ddr]` of an FPGA: memory beside the logic (DDR or high-bandwidth memory)."""

    memory_gib: Positive
    bandwidth_gb_per_s: Positive


class TransceiverTable(Table, frozen=True, kw_only=True):
    """`[transceivers]` of an FPGA: serial links of the board."""

    lanes: Count
    gbps: Positive


class FpgaFile(Table, frozen=True, kw_only=True, tag_field="kind", tag="fpga"):
    """An FPGA's file."""

    name: Name
    dsp: DspTable
    on_chip: OnChipTable
    ddr: DdrTable
    transceivers: TransceiverTable
    description: str = ""

    def build(self) -> FieldProgrammableGateArray:
        """The device; ValueError naming the key where a table is incomplete."""
        rates = self.dsp.rates()
        if not rates:
            raise ValueError("$.dsp: needs at least one rate, such as macs_per_cycle_int8")
        return FieldProgrammableGateArray(
            name=self.name,
            dsps=self.dsp.count,
            clock=self.dsp.clock_mhz * 1e6,
            macs_per_cycle=rates,
            efficiency=self.dsp.efficiency,
            on_chip_bytes=self.on_chip.memory_mbit * 1e6 / 8.0,
            ddr_bytes=self.ddr.memory_gib * GIB,
            ddr_bandwidth=self.ddr.bandwidth_gb_per_s * GIGA,
            transceiver_bandwidth=self.transceivers.lanes * self.transceivers.gbps * GIGA / 8.0,
        )


AcceleratorFile = GraphicsProcessorFile | FpgaFile

# --------------------------------------------------------------------------------------------------- clusters


class Medium(Table, frozen=True, kw_only=True):
    """What every link says: exactly one of the two bandwidths, of one direction."""

    bandwidth_gbps: Positive | None = None
    bandwidth_gb_per_s: Positive | None = None
    latency_us: NotNegative = 0.0
    duplex: Duplex = "full"
    point_to_point_efficiency: Share = 1.0
    collective_efficiency: Share = 1.0

    def link(self, where: str, first: str, second: str, shared: str | None = None) -> Link:
        """A link of this medium; `where` is the table's path, for the error."""
        if (self.bandwidth_gbps is None) == (self.bandwidth_gb_per_s is None):
            raise ValueError(
                f"{where}: give exactly one of bandwidth_gbps (10^9 bits/s) and bandwidth_gb_per_s (bytes)"
            )
        if self.bandwidth_gbps is not None:
            bandwidth = self.bandwidth_gbps * GIGA / 8.0
        else:
            assert self.bandwidth_gb_per_s is not None
            bandwidth = self.bandwidth_gb_per_s * GIGA
        return Link(
            first,
            second,
            bandwidth,
            self.latency_us * MICRO,
            self.duplex,
            self.point_to_point_efficiency,
            self.collective_efficiency,
            shared,
        )


class InsideTable(Medium, frozen=True, kw_only=True):
    """`[servers.inside]`: how the devices of one server are joined.

    switch: each by its own link to a switch; shared-bus: all on one medium; full: a link a pair; ring;
        chain: a line
    carries_network: traffic of the network crosses the switch or the bus as well
    """

    topology: Literal["switch", "shared-bus", "full", "ring", "chain"]
    carries_network: bool = False


class NetworkTable(Medium, frozen=True, kw_only=True):
    """`[network]`: one switch that joins the servers, each by one card, or by one a device."""

    attach: Literal["server", "device"] = "server"


class ServersTable(Table, frozen=True, kw_only=True):
    """One `[[servers]]`: `count` equal servers of `devices` equal accelerators, or of the `accelerators` listed."""

    count: Count = 1
    devices: Count | None = None
    accelerator: Text | None = None
    accelerators: Annotated[list[Text], msgspec.Meta(min_length=1)] | None = None
    inside: InsideTable | None = None

    def names(self, where: str) -> list[str]:
        """Accelerators of one server by name."""
        if (self.accelerator is None) == (self.accelerators is None):
            raise ValueError(f"{where}: give exactly one of accelerator (a name) and accelerators (a list of names)")
        if self.accelerators is not None:
            if self.devices is not None:
                raise ValueError(f"{where}.devices: goes with accelerator; the list accelerators has a length already")
            return self.accelerators
        assert self.accelerator is not None
        return [self.accelerator] * (self.devices or 1)


class CompactFile(Table, frozen=True, kw_only=True):
    """A cluster as servers and a network."""

    name: Name
    servers: Annotated[list[ServersTable], msgspec.Meta(min_length=1)]
    network: NetworkTable | None = None
    allreduce: AllReduce = "fastest"
    description: str = ""


class DeviceTable(Table, frozen=True, kw_only=True):
    """One `[[devices]]` of an explicit graph; devices with the same `server` stand in one."""

    name: Name
    accelerator: Text
    server: Name | None = None


class SwitchTable(Table, frozen=True, kw_only=True):
    """One `[[switches]]` of an explicit graph."""

    name: Name


class LinkTable(Medium, frozen=True, kw_only=True):
    """One `[[links]]` of an explicit graph; links with the same `shared` label are one medium."""

    between: Annotated[list[Name], msgspec.Meta(min_length=2, max_length=2)]
    shared: Name | None = None


class GraphFile(Table, frozen=True, kw_only=True):
    """A cluster as an explicit graph."""

    name: Name
    devices: Annotated[list[DeviceTable], msgspec.Meta(min_length=1)]
    links: list[LinkTable] = []
    switches: list[SwitchTable] = []
    allreduce: AllReduce = "fastest"
    description: str = ""


FindAccelerator = Callable[[str, str], Accelerator]
"""(name or path, path of the key that says it) -> accelerator; ValueError if there is none."""


def build_graph(file: GraphFile, find: FindAccelerator) -> Cluster:
    """The cluster of an explicit graph."""
    servers: dict[str, list[int]] = {}
    for index, device in enumerate(file.devices):
        # A device that names no server stands alone; a space cannot occur in a name, so this label is free.
        servers.setdefault(device.server or f" {device.name}", []).append(index)
    return Cluster(
        name=file.name,
        devices=tuple(find(d.accelerator, f"$.devices[{i}].accelerator") for i, d in enumerate(file.devices)),
        nodes=tuple(device.name for device in file.devices),
        switches=tuple(switch.name for switch in file.switches),
        servers=tuple(tuple(members) for members in servers.values()),
        links=tuple(
            link.link(f"$.links[{index}]", link.between[0], link.between[1], link.shared)
            for index, link in enumerate(file.links)
        ),
        allreduce=file.allreduce,
    )


def build_compact(file: CompactFile, find: FindAccelerator, count: int | None = None) -> Cluster:
    """The cluster of servers and a network; `count` replaces the number of servers where there is one `[[servers]]`."""
    if count is not None and len(file.servers) != 1:
        raise ValueError(f"$.servers: name:count needs one [[servers]] table; this file has {len(file.servers)}")
    devices: list[Accelerator] = []
    nodes: list[str] = []
    switches: list[str] = []
    servers: list[tuple[int, ...]] = []
    links: list[Link] = []
    for position, table in enumerate(file.servers):
        where = f"$.servers[{position}]"
        names = table.names(where)
        key = "accelerator" if table.accelerators is None else "accelerators"
        found = [find(name, f"{where}.{key}") for name in names]
        copies = table.count if count is None else count
        if len(devices) + copies * len(names) > MOST_DEVICES:
            raise ValueError(
                f"{where}.count: a cluster has at most {MOST_DEVICES} devices: {copies} servers of {len(names)}"
            )
        for _ in range(copies):
            server = f"server{len(servers)}"
            members = [f"{server}.device{index}" for index in range(len(names))]
            servers.append(tuple(range(len(devices), len(devices) + len(names))))
            devices.extend(found)
            nodes.extend(members)
            hub = _join_inside(table.inside, f"{where}.inside", server, members, switches, links)
            if file.network is not None:
                _join_network(file.network, server, [hub] if hub else members, links)
    if file.network is not None:
        switches.append("network")
    elif len(servers) > 1:
        raise ValueError(f"$.network: {len(servers)} servers need a [network] to join them")
    return Cluster(
        file.name, tuple(devices), tuple(nodes), tuple(switches), tuple(servers), tuple(links), file.allreduce
    )


def _join_inside(
    inside: InsideTable | None,
    where: str,
    server: str,
    members: list[str],
    switches: list[str],
    links: list[Link],
) -> str | None:
    """Add the links of one server; the switch through which its network traffic goes, if it does."""
    if inside is None:
        if len(members) > 1:
            raise ValueError(f"{where}: {len(members)} devices in a server need [servers.inside] to join them")
        return None
    hubbed = inside.topology in ("switch", "shared-bus")
    if inside.carries_network and not hubbed:
        raise ValueError(f"{where}.carries_network: goes with topology switch or shared-bus: {inside.topology}")
    if hubbed:
        hub = f"{server}.{'switch' if inside.topology == 'switch' else 'bus'}"
        switches.append(hub)
        shared = hub if inside.topology == "shared-bus" else None
        links.extend(inside.link(where, member, hub, shared) for member in members)
        return hub if inside.carries_network else None
    size = len(members)
    if inside.topology == "full":
        pairs = [(first, second) for first in range(size) for second in range(first + 1, size)]
    else:
        pairs = [(first, first + 1) for first in range(size - 1)]
        if inside.topology == "ring" and size > 2:
            pairs.append((size - 1, 0))
    links.extend(inside.link(where, members[first], members[second]) for first, second in pairs)
    return None


def _join_network(network: NetworkTable, server: str, ends: list[str], links: list[Link]) -> None:
    # Every device of a server reaches the network by the server's one card: one medium, as many links as
    # ends.
    shared = f"{server}.network" if network.attach == "server" else None
    links.extend(network.link("$.network", end, "network", shared) for end in ends)
