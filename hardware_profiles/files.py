"""Files: what an accelerator's or a cluster's TOML file may say, and the object that it describes.

Units are suffixes of the keys: `_gib` 2**30 bytes, `_gb_per_s` 10**9 bytes/s, `_gbps` 10**9 bits/s, `_us`
microseconds, `_mhz` 10**6 cycles/s, `_mbit` 10**6 bits, `tflops_` 10**12 FLOP/s (a multiply-add counts 2).
An efficiency is a share, 0 to 1. Every number has two ranges (`hardware_profiles.ranges`): outside of what is possible it is an
error, outside of what is usual a doubt, as after a slip of the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Annotated, ClassVar, Literal

import msgspec

from hardware_profiles.accelerator import PRECISION_BYTES, Accelerator
from hardware_profiles.chips import Chip
from hardware_profiles.cluster import Cluster, TensorGroups
from hardware_profiles.collectives import AllReduce
from hardware_profiles.fabrics import FabricName
from hardware_profiles.fpga import FieldProgrammableGateArray
from hardware_profiles.gpu import (
    DEFAULT_EFFICIENCIES,
    GraphicsProcessor,
    KindEfficiency,
)
from hardware_profiles.links import Duplex, Link, Sharing
from hardware_profiles.numbers import MOST_DEVICES
from hardware_profiles.ranges import within

GIB = 2**30
MOST_LINKS = 65_536
"""Links of a cluster at most: a full topology of n devices has n (n - 1) / 2."""

GIGA = 1e9
MICRO = 1e-6

RATE = "10^12 FLOP/s"
MemoryGib = Annotated[float, within((0.25, 1024), (1e-3, 2**20), "GiB")]
MemoryRate = Annotated[float, within((1, 30_000), (1e-3, 1e6), "10^9 bytes/s")]
VectorRate = Annotated[float, within((0.5, 1000), (1e-3, 1e5), RATE)]
MatrixRate = Annotated[float, within((1, 50_000), (1e-3, 1e6), RATE)]
OverheadMicroseconds = Annotated[float, within((0, 10_000), (0, 1e7), "microseconds")]
Exponent = Annotated[float, within((0, 2), (0, 10), "power of the window's overlap")]
Multiple = Annotated[float, within((1, 100), (1, 1e4), "times the bytes")]
WeightPasses = Annotated[float, within((0, 8), (0, 100), "times the weights' bytes")]
MacsPerCycle = Annotated[float, within((0.01, 16), (1e-6, 1e4), "multiply-adds per DSP and cycle")]
Share = Annotated[float, within((0.01, 1), (1e-9, 1), "share of the peak")]
NetworkGigabits = Annotated[float, within((0.1, 10_000), (1e-6, 1e7), "10^9 bits/s")]
LinkRate = Annotated[float, within((0.01, 5000), (1e-7, 1e6), "10^9 bytes/s")]
LatencyMicroseconds = Annotated[float, within((0.01, 10_000), (0, 1e7), "microseconds")]
DeviceCount = Annotated[int, within((1, 1024), (1, MOST_DEVICES), "devices of a server")]
Price = Annotated[float, within((0.01, 1000), (0, 1e6), "per device and hour, in the file's currency")]
Currency = Annotated[str, msgspec.Meta(min_length=1, max_length=20)]
ServerCount = Annotated[int, within((1, 20_000), (1, MOST_DEVICES), "servers")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class FileTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A TOML table that refuses keys it does not know."""


# ----------------------------------------------------------------------------------------------- accelerators


class ComputeTable(FileTable, frozen=True, kw_only=True):
    """`[compute]` of a GPU: dense peak rates of the data sheet, at least one."""

    tflops_fp32: VectorRate | None = None
    tflops_tf32: MatrixRate | None = None
    tflops_fp16: MatrixRate | None = None
    tflops_bf16: MatrixRate | None = None
    tflops_fp8: MatrixRate | None = None
    tops_int8: MatrixRate | None = None


class OverheadTable(FileTable, frozen=True, kw_only=True):
    """`[overhead]` of a GPU: fixed costs of a pass over a layer, of each sequential step in it, of its launch by the host, and of
    a stage's forward, or backward, beside its layers.
    """

    call_us: OverheadMicroseconds | None = None
    step_us: OverheadMicroseconds | None = None
    launch_us: OverheadMicroseconds | None = None
    pass_us: OverheadMicroseconds | None = None


class ProfilerTable(FileTable, frozen=True, kw_only=True):
    """`[profiler]` of a GPU: what the hooks of a profiler around every layer add to a forward, and to each gradient; and the rate
    at which the host copies images inside the first layer's forward, where they do not come before it.
    """

    forward_us: OverheadMicroseconds = 0.0
    gradient_us: OverheadMicroseconds = 0.0
    load_gb_per_s: MemoryRate | None = None


class EfficiencyTable(FileTable, frozen=True, kw_only=True):
    """`[efficiency.KIND]` of a GPU: shares of the peaks that a kind of layer reaches; a key left out keeps its default."""

    forward: Share | None = None
    backward: Share | None = None
    matrix: Share | None = None
    matrix_backward: Share | None = None
    memory: Share | None = None
    saturation_us: OverheadMicroseconds | None = None
    window_exponent: Exponent | None = None
    transform_traffic: Multiple | None = None
    tile: Annotated[float, within((0, 512), (0, 1e4), "channels")] | None = None
    accumulated: WeightPasses | None = None
    accumulated_experts: WeightPasses | None = None

    def over(self, default: KindEfficiency) -> KindEfficiency:
        """The default with what this table says instead."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if "saturation_us" in given:
            given["saturation_seconds"] = given.pop("saturation_us") * MICRO
        if "matrix" in given:
            given.setdefault("matrix_backward", 0.0)
        return replace(default, **given)


EfficiencyTables = msgspec.defstruct(
    "EfficiencyTables",
    [(kind, EfficiencyTable | None, None) for kind in DEFAULT_EFFICIENCIES],
    bases=(FileTable,),
    namespace={"__doc__": "`[efficiency]` of a GPU: one table per kind of layer."},
    frozen=True,
    kw_only=True,
)


def _rates(table: FileTable, name: str, example: str, unit: float) -> dict[str, float]:
    """Rates by precision of the keys that a table gives (`tflops_fp32`), times their unit; ValueError for none."""
    words = {key.rpartition("_")[2]: key for key in table.__struct_fields__}
    given = {precision: getattr(table, words[precision]) for precision in PRECISION_BYTES if precision in words}
    rates = {precision: rate * unit for precision, rate in given.items() if rate is not None}
    if not rates:
        raise ValueError(f"$.{name}: needs at least one rate, such as {example}")
    return rates


def default_reserve_gib(memory_gib: float) -> float:
    """GiB of a GPU that no plan may fill where its file says nothing: a sixteenth, at most 1.

    The context of CUDA takes 0.3 to 1.0 GiB (PyTorch issues 28394 and 107667, on Titan V and later cards). Communication buffers
    and what fragments are ASSUMED to fit in the rest.
    """
    return min(1.0, memory_gib / 16.0)


class GraphicsProcessorFile(FileTable, frozen=True, kw_only=True, tag_field="kind", tag="gpu"):
    """A GPU's file. `reserve_gib` of its memory is not for plans: driver, communication buffers, fragmentation.

    `host_bandwidth_gb_per_s` is what its link to the host carries each way, for activations that are offloaded.
    `like`: the GPU whose efficiencies and overheads it has, but for those that the file itself gives; hooks are not inherited.
    `measured`: it is like no other: what it does not give is as gpu.py has it.
    `generation`: name of its architecture, by which constants of stacks are told; that of `like` where it says none.
    `chip`: its kind, whose shares it has where it is like no other; that of `like`, or as its name says, where it says none.
    """

    word: ClassVar[str] = "GPU"
    name: Name
    memory_gib: MemoryGib
    memory_bandwidth_gb_per_s: MemoryRate
    reserve_gib: Annotated[float, within((0, 16), (0, 1e4), "GiB")] | None = None
    host_bandwidth_gb_per_s: MemoryRate | None = None
    compute: ComputeTable
    overhead: OverheadTable = OverheadTable()
    profiler: ProfilerTable = ProfilerTable()
    efficiency: EfficiencyTables = EfficiencyTables()  # type: ignore[valid-type]
    like: Text | None = None
    generation: Name | None = None
    chip: Chip | None = None
    measured: bool = False
    description: str = ""

    def build(self, like: GraphicsProcessor | None = None) -> GraphicsProcessor:
        """The device, with what the file does not say of efficiencies and overheads as in `like`, or as gpu.py has it.

        Raises ValueError naming the key where the tables contradict the model.
        """
        rates = _rates(self.compute, "compute", "tflops_fp32", 1e12)
        reserve = default_reserve_gib(self.memory_gib) if self.reserve_gib is None else self.reserve_gib
        if reserve >= self.memory_gib:
            raise ValueError(f"$.reserve_gib = {reserve:g}: must be below memory_gib, {self.memory_gib:g}")
        given = {
            f"{name}_overhead": microseconds * MICRO
            for name in ("call", "step", "launch", "pass")
            if (microseconds := getattr(self.overhead, f"{name}_us")) is not None
        }
        base = like or GraphicsProcessor(self.name, 1.0, 1.0, rates)
        return replace(
            base,
            name=self.name,
            memory_bytes=(self.memory_gib - reserve) * GIB,
            reserve_bytes=reserve * GIB,
            memory_bandwidth=self.memory_bandwidth_gb_per_s * GIGA,
            host_bandwidth=(self.host_bandwidth_gb_per_s or 0.0) * GIGA,
            peak_flops=rates,
            forward_hook=self.profiler.forward_us * MICRO,
            gradient_hook=self.profiler.gradient_us * MICRO,
            load_seconds_per_byte=1.0 / (load * GIGA) if (load := self.profiler.load_gb_per_s) else 0.0,
            efficiencies=self._over(base.efficiencies),
            efficiencies_in={precision: self._over(of) for precision, of in base.efficiencies_in.items()},
            chip=self.chip or base.chip,
            word=self.word,
            generation=self.generation or (base.generation if self.like else ""),
            **given,
        )

    def _over(self, shares: Mapping[str, KindEfficiency]) -> dict[str, KindEfficiency]:
        """Shares by kind of layer, with what the file's own tables say instead."""
        return {
            kind: one if (table := getattr(self.efficiency, kind)) is None else table.over(one)
            for kind, one in shares.items()
        }


class ChipFile(GraphicsProcessorFile, frozen=True, kw_only=True, tag="accelerator"):
    """The file of a chip with matrix engines and fast memory that is no GPU (a TPU); keys and physics are those of a GPU."""

    word: ClassVar[str] = "device"


class DspTable(FileTable, frozen=True, kw_only=True):
    """`[dsp]` of an FPGA: multiply-adds per DSP block and cycle by precision (at least one), and how many cycles do work."""

    count: Annotated[int, within((50, 30_000), (1, 10**7), "DSP blocks")]
    clock_mhz: Annotated[float, within((25, 1500), (1e-3, 1e5), "10^6 cycles/s")]
    efficiency: Share
    macs_per_cycle_fp32: MacsPerCycle | None = None
    macs_per_cycle_fp16: MacsPerCycle | None = None
    macs_per_cycle_bf16: MacsPerCycle | None = None
    macs_per_cycle_int8: MacsPerCycle | None = None


class OnChipTable(FileTable, frozen=True, kw_only=True):
    """`[on_chip]` of an FPGA: block RAM and UltraRAM together."""

    memory_mbit: Annotated[float, within((1, 4000), (1e-3, 1e7), "10^6 bits")]


class DdrTable(FileTable, frozen=True, kw_only=True):
    """`[ddr]` of an FPGA: memory beside the logic (DDR or high-bandwidth memory)."""

    memory_gib: MemoryGib
    bandwidth_gb_per_s: MemoryRate


class TransceiverTable(FileTable, frozen=True, kw_only=True):
    """`[transceivers]` of an FPGA: serial links of the board."""

    lanes: Annotated[int, within((1, 256), (1, 10**5), "serial links")]
    gbps: Annotated[float, within((0.5, 500), (1e-3, 1e5), "10^9 bits/s")]


class FpgaFile(FileTable, frozen=True, kw_only=True, tag_field="kind", tag="fpga"):
    """An FPGA's file."""

    name: Name
    dsp: DspTable
    on_chip: OnChipTable
    ddr: DdrTable
    transceivers: TransceiverTable
    description: str = ""

    def build(self) -> FieldProgrammableGateArray:
        """The device; ValueError naming the key where a table is incomplete."""
        rates = _rates(self.dsp, "dsp", "macs_per_cycle_int8", 1.0)
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


AcceleratorFile = GraphicsProcessorFile | ChipFile | FpgaFile

# --------------------------------------------------------------------------------------------------- clusters


class Medium(FileTable, frozen=True, kw_only=True):
    """Keys of every link: exactly one of the two bandwidths, of one direction."""

    bandwidth_gbps: NetworkGigabits | None = None
    bandwidth_gb_per_s: LinkRate | None = None
    latency_us: LatencyMicroseconds = 0.0
    duplex: Duplex = "full"
    point_to_point_efficiency: Share = 1.0
    collective_efficiency: Share = 1.0
    collective_latency_us: LatencyMicroseconds = 0.0
    gather_efficiency: Share | None = None
    gather_latency_us: LatencyMicroseconds = 0.0
    sharing: Sharing | None = None
    scatter_efficiency: Share | None = None
    in_switch_efficiency: Share | None = None
    fabric: FabricName | None = None

    def link(self, where: str, first: str, second: str, shared: str | None = None) -> Link:
        """A link of this medium; `where` is the table's path, for the error."""
        rates = (self.bandwidth_gbps, GIGA / 8.0), (self.bandwidth_gb_per_s, GIGA)
        given = [rate * unit for rate, unit in rates if rate is not None]
        if len(given) != 1:
            raise ValueError(
                f"{where}: give exactly one of bandwidth_gbps (10^9 bits/s) and bandwidth_gb_per_s (bytes)"
            )
        reached = self.point_to_point_efficiency, self.collective_efficiency
        together = self.collective_latency_us * MICRO, self.gather_efficiency or 0.0, self.gather_latency_us * MICRO
        others = self.scatter_efficiency or 0.0, self.in_switch_efficiency or 0.0
        own = first, second, given[0], self.latency_us * MICRO, self.duplex
        return Link(*own, *reached, shared, *together, self.sharing, self.fabric, *others)


class InsideTable(Medium, frozen=True, kw_only=True):
    """`[servers.inside]`: how the devices of one server are joined.

    switch: each by its own link to a switch; shared-bus: all on one medium; full: a link per pair; ring; chain: a line
    carries_network: traffic of the network crosses the switch or the bus as well
    """

    topology: Literal["switch", "shared-bus", "full", "ring", "chain"]
    carries_network: bool = False


class NetworkTable(Medium, frozen=True, kw_only=True):
    """`[network]`: one switch that joins the servers, each by one card, or by one per device."""

    attach: Literal["server", "device"] = "server"


class SpineTable(FileTable, frozen=True, kw_only=True):
    """`[spine]`: a third level. The network's switch is one of several leaves, each of so many servers, that a spine joins.

    leaf: a switch a `rack` of servers, or one for each `rail` of them: for the first devices of all servers, the second, ...
    oversubscription: bandwidth of a leaf's cards together over that of its uplink, which has the network's efficiencies
    """

    servers: ServerCount
    leaf: Literal["rack", "rail"] = "rack"
    oversubscription: Annotated[float, within((1, 16), (1, 1e4), "times the bandwidth of an uplink")] = 1.0
    latency_us: LatencyMicroseconds = 0.0


class ServersTable(FileTable, frozen=True, kw_only=True):
    """One `[[servers]]`: `count` equal servers of `devices` equal accelerators, or of the `accelerators` listed.

    network_bandwidth_gbps: of their cards, where it is not that of `[network]`
    price_per_device_hour: of their devices, where it is not the file's
    """

    count: ServerCount = 1
    devices: DeviceCount | None = None
    accelerator: Text | None = None
    accelerators: Annotated[list[Text], msgspec.Meta(min_length=1)] | None = None
    inside: InsideTable | None = None
    network_bandwidth_gbps: NetworkGigabits | None = None
    price_per_device_hour: Price | None = None

    def network(self, where: str, network: NetworkTable | None) -> NetworkTable | None:
        """`[network]`, with the bandwidth of these servers' cards where they have one of their own."""
        if self.network_bandwidth_gbps is None:
            return network
        if network is None:
            raise ValueError(f"{where}.network_bandwidth_gbps: goes with a [network]; there is none")
        own = self.network_bandwidth_gbps
        return msgspec.structs.replace(network, bandwidth_gbps=own, bandwidth_gb_per_s=None)

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


class ClusterTable(FileTable, frozen=True, kw_only=True):
    """Keys of the whole machine in a cluster's file of either form.

    price_per_device_hour: in `currency`, of every device that has no price of its own
    """

    name: Name
    allreduce: AllReduce = "fastest"
    tensor_groups: TensorGroups = "server"
    sharing: Sharing = "fair"
    price_per_device_hour: Price | None = None
    currency: Currency = "USD"
    description: str = ""

    def prices(self, own: Sequence[float | None]) -> tuple[float, ...]:
        """The price of every device, from its own price or None; empty if no device has one. ValueError if only some have one."""
        found = [self.price_per_device_hour if one is None else one for one in own]
        known = tuple(one for one in found if one is not None)
        if known and len(known) < len(found):
            raise ValueError(
                f"$.price_per_device_hour: {len(found) - len(known)} of {len(found)} devices have no price of their own; "
                "give one for all of them"
            )
        return known


class CompactFile(ClusterTable, frozen=True, kw_only=True):
    """A cluster as servers and a network."""

    servers: Annotated[list[ServersTable], msgspec.Meta(min_length=1)]
    network: NetworkTable | None = None
    spine: SpineTable | None = None


class DeviceTable(FileTable, frozen=True, kw_only=True):
    """One `[[devices]]` of an explicit graph; devices with the same `server` stand in one."""

    name: Name
    accelerator: Text
    server: Name | None = None
    price_per_device_hour: Price | None = None


class SwitchTable(FileTable, frozen=True, kw_only=True):
    """One `[[switches]]` of an explicit graph."""

    name: Name


class LinkTable(Medium, frozen=True, kw_only=True):
    """One `[[links]]` of an explicit graph; links with the same `shared` label are one medium."""

    between: Annotated[list[Name], msgspec.Meta(min_length=2, max_length=2)]
    shared: Name | None = None


class GraphFile(ClusterTable, frozen=True, kw_only=True):
    """A cluster as an explicit graph."""

    devices: Annotated[list[DeviceTable], msgspec.Meta(min_length=1)]
    links: list[LinkTable] = []
    switches: list[SwitchTable] = []


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
        tensor_groups=file.tensor_groups,
        prices=file.prices([device.price_per_device_hour for device in file.devices]),
        currency=file.currency,
        sharing=file.sharing,
    )


def build_compact(file: CompactFile, find: FindAccelerator, count: int | None = None) -> Cluster:
    """The cluster of servers and a network; `count` replaces the number of servers where there is one `[[servers]]`."""
    if count is not None and len(file.servers) != 1:
        raise ValueError(f"$.servers: name:count needs one [[servers]] table; this file has {len(file.servers)}")
    _check_size(file, count)
    devices: list[Accelerator] = []
    prices: list[float | None] = []
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
        network = table.network(where, file.network)
        for _ in range(copies):
            server = f"server{len(servers)}"
            members = [f"{server}.device{index}" for index in range(len(names))]
            servers.append(tuple(range(len(devices), len(devices) + len(names))))
            devices.extend(found)
            prices.extend([table.price_per_device_hour] * len(found))
            nodes.extend(members)
            hub = _join_inside(table.inside, f"{where}.inside", server, members, switches, links)
            if network is not None:
                ends = [hub] if hub else members
                _join_network(
                    network, server, list(zip(ends, _leaves(file, len(servers) - 1, ends), strict=True)), links
                )
    if file.spine is not None and file.network is None:
        raise ValueError("$.spine: joins the leaves of a [network]; there is none")
    if file.network is not None:
        switches.extend(_join_leaves(file, links))
    elif len(servers) > 1:
        raise ValueError(f"$.network: {len(servers)} servers need a [network] to join them")
    places = tuple(devices), tuple(nodes), tuple(switches), tuple(servers), tuple(links)
    return Cluster(
        file.name,
        *places,
        allreduce=file.allreduce,
        tensor_groups=file.tensor_groups,
        prices=file.prices(prices),
        currency=file.currency,
        sharing=file.sharing,
    )


def _check_size(file: CompactFile, count: int | None) -> None:
    """Raise ValueError before anything is built if the cluster would have too many devices or links."""
    devices = links = 0
    for position, table in enumerate(file.servers):
        copies = table.count if count is None else count
        members = len(table.accelerators) if table.accelerators is not None else table.devices or 1
        full = table.inside is not None and table.inside.topology == "full"
        devices += copies * members
        links += copies * (members * (members - 1) // 2 if full else 2 * members)
        where = f"$.servers[{position}]: {copies} servers of {members} devices"
        if devices > MOST_DEVICES:
            raise ValueError(f"{where}: a cluster has at most {MOST_DEVICES} devices, this one {devices}")
        if links > MOST_LINKS:
            raise ValueError(f"{where}: a cluster has at most {MOST_LINKS} links, this one up to {links}")


def _join_inside(
    inside: InsideTable | None, where: str, server: str, members: list[str], switches: list[str], links: list[Link]
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
    pairs = list(combinations(members, 2) if inside.topology == "full" else pairwise(members))
    if inside.topology == "ring" and len(members) > 2:
        pairs.append((members[-1], members[0]))
    links.extend(inside.link(where, *pair) for pair in pairs)
    return None


def _join_network(network: NetworkTable, server: str, ends: list[tuple[str, str]], links: list[Link]) -> None:
    """Add the links of one server to the network; ends: nodes of the server, and the switch to which each of them leads."""
    # Every device of a server reaches the network by the server's one card: one medium, as many links as ends.
    shared = f"{server}.network" if network.attach == "server" else None
    links.extend(network.link("$.network", end, switch, shared) for end, switch in ends)


def _leaves(file: CompactFile, server: int, ends: list[str]) -> list[str]:
    """The switch of the network that each end of a server leads to: one for all, or its leaf."""
    if file.spine is None:
        return ["network"] * len(ends)
    rack = f"rack{server // file.spine.servers}"
    if file.spine.leaf == "rack":
        return [rack] * len(ends)
    if file.network is None or file.network.attach != "device":
        raise ValueError('$.spine.leaf = "rail": goes with a card a device ($.network.attach = "device")')
    return [f"{rack}.rail{index}" for index in range(len(ends))]


def _join_leaves(file: CompactFile, links: list[Link]) -> list[str]:
    """Add the uplinks of all leaves; the switches of the network."""
    if file.network is None or file.spine is None:
        return ["network"]
    cards: dict[str, dict[str, float]] = {}
    for link in links:
        if link.second.startswith("rack"):
            cards.setdefault(link.second, {})[link.shared or link.first] = link.bandwidth
    for leaf, those in cards.items():
        uplink = file.network.link("$.network", leaf, "spine")
        bandwidth = sum(those.values()) / file.spine.oversubscription
        links.append(replace(uplink, bandwidth=bandwidth, latency=file.spine.latency_us * MICRO))
    return [*cards, "spine"]
