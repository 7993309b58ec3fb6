"""Accelerator files: what the TOML file of an accelerator may say, and the device that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import msgspec

from hardware_profiles.accelerator import PRECISION_BYTES, Power, within_full
from hardware_profiles.chips import CHIPS, Chip
from hardware_profiles.file_tables import (
    GIGA,
    MICRO,
    FileTable,
    MemoryGib,
    MemoryRate,
    Name,
    Share,
    Text,
    rates_of,
)
from hardware_profiles.fpga import FieldProgrammableGateArray
from hardware_profiles.gpu import (
    DEFAULT_EFFICIENCIES,
    GraphicsProcessor,
    KindEfficiency,
)
from hardware_profiles.ranges import within
from hardware_profiles.words import GIB

RATE = "10^12 FLOP/s"
VectorRate = Annotated[float, within((0.5, 1000), (1e-3, 1e5), RATE)]
MatrixRate = Annotated[float, within((1, 50_000), (1e-3, 1e6), RATE)]
OverheadMicroseconds = Annotated[float, within((0, 10_000), (0, 1e7), "microseconds")]
Exponent = Annotated[float, within((0, 2), (0, 10), "power of the window's overlap")]
Multiple = Annotated[float, within((1, 100), (1, 1e4), "times the bytes")]
WeightPasses = Annotated[float, within((0, 8), (0, 100), "times the weights' bytes")]
Watts = Annotated[float, within((0.1, 5000), (0, 1e6), "W")]
PartWatts = Annotated[float, within((0, 5000), (0, 1e6), "W")]
MacsPerCycle = Annotated[float, within((0.01, 16), (1e-6, 1e4), "multiply-adds per DSP and cycle")]


class PowerTable(FileTable, frozen=True, kw_only=True):
    """`[power]` of an accelerator: W while nothing is computed, and at full load: of a GPU while it computes, of a board with all
    its DSP blocks at work in every cycle. Of what full load adds, where it is known: what its arithmetic draws at work, its
    memory at its full bandwidth, its links while they carry something.
    """

    idle_w: Watts
    full_w: Watts
    compute_w: PartWatts | None = None
    memory_w: PartWatts | None = None
    link_w: PartWatts | None = None

    def build(self) -> Power:
        """The same in W; ValueError naming the key where full is below idle, or below idle and parts."""
        if self.full_w < self.idle_w:
            raise ValueError(f"$.power.full_w = {self.full_w:g}: must be at least idle_w, {self.idle_w:g}")
        power = Power(self.idle_w, self.full_w, self.compute_w, self.memory_w, self.link_w)
        if not within_full(power):
            parts = self.idle_w + sum(power.known.values())
            raise ValueError(
                f"$.power.full_w = {self.full_w:g}: must be at least idle_w and the parts together, {parts:g}"
            )
        return power


class LimitedPowerTable(PowerTable, frozen=True, kw_only=True):
    """`[power]` of a GPU: also what it may draw at most, where that is less than full load (`nvidia-smi --power-limit`)."""

    limit_w: Watts | None = None

    def build(self) -> Power:
        """The same in W, within the limit; ValueError naming the key where that is not above idle, or above full load."""
        power = super().build()
        if self.limit_w is None:
            return power
        if not power.idle < self.limit_w <= power.full:
            rule = f"above idle_w, {power.idle:g}, and at most full_w, {power.full:g}"
            raise ValueError(f"$.power.limit_w = {self.limit_w:g}: must be {rule}")
        return power.limited(self.limit_w)

    @property
    def clock(self) -> float:
        """Share of its clock at full power that the limit leaves."""
        return 1.0 if self.limit_w is None else super().build().clock(self.limit_w)


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


def default_reserve_gib(memory_gib: float) -> float:
    """GiB of a GPU that no plan may fill where its file says nothing: a sixteenth, at most 1.

    The context of CUDA takes 0.3 to 1.0 GiB (PyTorch issues 28394 and 107667, on Titan V and later cards). Communication buffers
    and what fragments are ASSUMED to fit in the rest.
    """
    return min(1.0, memory_gib / 16.0)


FIRST_WITH_FP8 = "hopper"
"""The first generation of GPUs that computes in fp8."""


class GraphicsProcessorFile(FileTable, frozen=True, kw_only=True, tag_field="kind", tag="gpu"):
    """A GPU's file. `reserve_gib` of its memory is not for plans: driver, communication buffers, fragmentation.

    `host_bandwidth_gb_per_s` is what its link to the host carries each way, for activations that are offloaded.
    `overlap_slowdown`: how much longer it computes, as a part of its seconds, while its transfers or collectives are under way.
    `like`: the GPU whose efficiencies and overheads it has, but for those that the file itself gives; hooks are not inherited.
    `measured`: it is like no other: what it does not give is as gpu.py has it.
    `generation`: name of its architecture, by which constants of stacks are told; where it says none that of `like`, or the
    first one with fp8 of a chip that has it and is `like` one without.
    `chip`: its kind, whose shares it has where it is like no other; that of `like`, or as its name says, where it says none.
    """

    name: Name
    memory_gib: MemoryGib
    memory_bandwidth_gb_per_s: MemoryRate
    reserve_gib: Annotated[float, within((0, 16), (0, 1e4), "GiB")] | None = None
    host_bandwidth_gb_per_s: MemoryRate | None = None
    overlap_slowdown: Annotated[float, within((0.01, 0.6), (0, 10), "part of the seconds of computation")] = 0.0
    compute: ComputeTable
    overhead: OverheadTable = OverheadTable()
    profiler: ProfilerTable = ProfilerTable()
    efficiency: EfficiencyTables = EfficiencyTables()  # type: ignore[valid-type]
    like: Text | None = None
    generation: Name | None = None
    chip: Chip | None = None
    measured: bool = False
    power: LimitedPowerTable | None = None
    description: str = ""

    def build(self, like: GraphicsProcessor | None = None) -> GraphicsProcessor:
        """The device, with what the file does not say of efficiencies and overheads as in `like`, or as gpu.py has it.

        Raises ValueError naming the key where the tables contradict the model.
        """
        rates = rates_of(self.compute, "compute", "tflops_fp32", 1e12)
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
            overlap_slowdown=self.overlap_slowdown,
            peak_flops=rates,
            forward_hook=self.profiler.forward_us * MICRO,
            gradient_hook=self.profiler.gradient_us * MICRO,
            load_seconds_per_byte=1.0 / (load * GIGA) if (load := self.profiler.load_gb_per_s) else 0.0,
            efficiencies=self._over(base.efficiencies),
            efficiencies_in={precision: self._over(of) for precision, of in base.efficiencies_in.items()},
            chip=self.chip or base.chip,
            word=self._word(self.chip or base.chip),
            generation=self.generation or (self._generation(base, rates) if self.like else ""),
            power=None if self.power is None else self.power.build(),
            clock=1.0 if self.power is None else self.power.clock,
            **given,
        )

    def _word(self, chip: str) -> str:
        """What figures call one such device."""
        return "GPU"

    @staticmethod
    def _generation(like: GraphicsProcessor, rates: Mapping[str, float]) -> str:
        """By torchtitan's runs: of 11 on H100 whose file is `like` an A100 Hopper's constants are 6 % off, Ampere's 23 %."""
        newer = "fp8" in rates and "fp8" not in like.peak_flops
        return FIRST_WITH_FP8 if newer and like.generation else like.generation

    def _over(self, shares: Mapping[str, KindEfficiency]) -> dict[str, KindEfficiency]:
        """Shares by kind of layer, with what the file's own tables say instead."""
        return {
            kind: one if (table := getattr(self.efficiency, kind)) is None else table.over(one)
            for kind, one in shares.items()
        }


class ChipFile(GraphicsProcessorFile, frozen=True, kw_only=True, tag="accelerator"):
    """The file of a chip with matrix engines and fast memory that is no GPU (a TPU); keys and physics are those of a GPU."""

    def _word(self, chip: str) -> str:
        return CHIPS[chip].word


DspBlocks = Annotated[int, within((50, 30_000), (1, 10**7), "DSP blocks")]
Engines = Annotated[int, within((1, 10_000), (1, 10**7), "vector processors")]
EngineMacs = Annotated[float, within((1, 4096), (1e-3, 1e7), "multiply-adds per vector processor and cycle")]
Luts = Annotated[float, within((1000, 1e7), (1, 1e10), "look-up tables")]
LutsPerMac = Annotated[float, within((1, 10_000), (1e-3, 1e7), "look-up tables per multiply-add")]

DSP_EFFICIENCY, REDUCTION_HALF, MEMORY_EFFICIENCY = 0.8, 96.0, 0.6
"""Where a file says nothing: the share of DSP cycles that work in long sums, the multiply-adds of an output at which half of them
do, and the share of the bandwidth of DDR and of high-bandwidth memory that is reached.

Fitted to nine rows of int8 inference (Vitis-AI 1.4 tables: ResNet-50, VGG-16, VGG-19, MobileNet v1 on ZCU102, ZCU104, U280 and
U50LV), whose seconds they meet within 5 % in the median and 18 % at worst; of boards left out of a fit, 9 and 17 %.
"""


class DspTable(FileTable, frozen=True, kw_only=True):
    """`[dsp]` of an FPGA: DSP blocks, those in use (all), multiply-adds per DSP block and cycle by precision (at least one), how
    many of the cycles do work in long sums, and the multiply-adds of an output at which half as many do. `shared`: one array of
    all of them runs the layers of a stage in turn. `depthwise`: multiply-adds of depthwise convolutions over those of the array,
    where an engine of its own does them, and element-wise layers and pools beside. `per_sample`: those that work on one sample,
    the others on others of a batch (all). `port_bytes`: those of a cycle through the ports of each to the memory beside the chip.
    """

    count: DspBlocks
    used: DspBlocks | None = None
    clock_mhz: Annotated[float, within((25, 1500), (1e-3, 1e5), "10^6 cycles/s")]
    shared: bool = False
    efficiency: Share = DSP_EFFICIENCY
    reduction_half: Annotated[float, within((0, 4096), (0, 1e7), "multiply-adds of an output")] = REDUCTION_HALF
    depthwise: Annotated[float, within((1e-3, 1), (1e-6, 1), "share of the array's multiply-adds")] | None = None
    per_sample: DspBlocks | None = None
    port_bytes: Annotated[float, within((1e-3, 64), (1e-9, 1e6), "bytes per cycle and DSP block")] | None = None
    macs_per_cycle_fp32: MacsPerCycle | None = None
    macs_per_cycle_fp16: MacsPerCycle | None = None
    macs_per_cycle_bf16: MacsPerCycle | None = None
    macs_per_cycle_int8: MacsPerCycle | None = None
    macs_per_cycle_int4: MacsPerCycle | None = None
    macs_per_cycle_int3: MacsPerCycle | None = None
    macs_per_cycle_int2: MacsPerCycle | None = None
    macs_per_cycle_int1: MacsPerCycle | None = None


class EngineTable(DspTable, frozen=True, kw_only=True):
    """`[engines]` of an FPGA, in place of `[dsp]`: an array of vector processors, with the keys of DSP blocks."""

    count: Engines
    used: Engines | None = None
    per_sample: Engines | None = None
    macs_per_cycle_fp32: EngineMacs | None = None
    macs_per_cycle_fp16: EngineMacs | None = None
    macs_per_cycle_bf16: EngineMacs | None = None
    macs_per_cycle_int8: EngineMacs | None = None
    macs_per_cycle_int4: EngineMacs | None = None
    macs_per_cycle_int3: EngineMacs | None = None
    macs_per_cycle_int2: EngineMacs | None = None
    macs_per_cycle_int1: EngineMacs | None = None


class LogicTable(FileTable, frozen=True, kw_only=True):
    """`[logic]` of an FPGA: look-up tables that multiply beside the DSP blocks, at the same clock, and how many a multiply-add
    takes by precision; a precision left out multiplies in DSP blocks alone, one that DSP blocks do not have in these alone.

    FINN's model of its matrix unit, fitted to builds (`lut_estimation`; Blott et al. 2018, FINN-R), comes to
    1.1 b (2 ceil(b / 6) + 1) look-up tables for b bits of a weight and a feature together: 123 of int8, 44 of int4, 20 of
    int3, 13 of int2, 6.6 of int1.
    """

    luts: Luts
    luts_per_mac_fp32: LutsPerMac | None = None
    luts_per_mac_fp16: LutsPerMac | None = None
    luts_per_mac_bf16: LutsPerMac | None = None
    luts_per_mac_int8: LutsPerMac | None = None
    luts_per_mac_int4: LutsPerMac | None = None
    luts_per_mac_int3: LutsPerMac | None = None
    luts_per_mac_int2: LutsPerMac | None = None
    luts_per_mac_int1: LutsPerMac | None = None

    @property
    def macs(self) -> dict[str, float]:
        """Multiply-adds per cycle by precision."""
        return {
            precision: self.luts / each for precision, each in rates_of(self, "logic", "luts_per_mac_int4", 1.0).items()
        }


Mbit = Annotated[float, within((1, 4000), (1e-3, 1e7), "10^6 bits")]


class OnChipTable(FileTable, frozen=True, kw_only=True):
    """`[on_chip]` of an FPGA: block RAM and UltraRAM, apart or together, and the share of it that holds weights and features."""

    memory_mbit: Mbit | None = None
    bram_mbit: Mbit | None = None
    uram_mbit: Mbit | None = None
    usable: Share = 1.0

    @property
    def usable_bytes(self) -> float:
        """Bytes for weights and features. ValueError naming the keys where the memory is not said once."""
        parts = [one for one in (self.bram_mbit, self.uram_mbit) if one is not None]
        if (self.memory_mbit is None) == (not parts):
            raise ValueError("$.on_chip: says memory_mbit, or bram_mbit and uram_mbit, of which it has one or both")
        return (sum(parts) if self.memory_mbit is None else self.memory_mbit) * self.usable * 1e6 / 8.0


class DdrTable(FileTable, frozen=True, kw_only=True):
    """`[ddr]` of an FPGA: DRAM beside the logic, and the share of its bandwidth that is reached."""

    memory_gib: MemoryGib
    bandwidth_gb_per_s: MemoryRate
    efficiency: Share = MEMORY_EFFICIENCY


class HighBandwidthTable(FileTable, frozen=True, kw_only=True):
    """`[hbm]` of an FPGA, in place of `[ddr]`: its channels, the bandwidth of each, and the share of it that is reached."""

    memory_gib: MemoryGib
    channels: Annotated[int, within((1, 64), (1, 10**4), "channels")]
    channel_gb_per_s: MemoryRate
    efficiency: Share = MEMORY_EFFICIENCY

    @property
    def bandwidth_gb_per_s(self) -> float:
        """Of all channels together, 10^9 bytes/s."""
        return self.channels * self.channel_gb_per_s


LINE_CODES = {"aurora": 64 / 66, "ethernet": 64 / 66, "pcie": 128 / 130}
"""Share of a serial link's bits that its code leaves: Aurora 64B/66B (AMD PG074), Ethernet of 10 Gb/s and more (IEEE 802.3,
64B/66B), PCI Express from its third generation on (128b/130b).
"""


class TransceiverTable(FileTable, frozen=True, kw_only=True):
    """`[transceivers]` of an FPGA: serial links of the board, and the share of their bits that its code leaves for bytes, which
    `kind` tells where it is left out.
    """

    kind: Literal["aurora", "ethernet", "pcie"] = "aurora"
    lanes: Annotated[int, within((1, 256), (1, 10**5), "serial links")]
    gbps: Annotated[float, within((0.5, 500), (1e-3, 1e5), "10^9 bits/s")]
    encoding: Share | None = None

    @property
    def bandwidth(self) -> float:
        """Bytes per second of all lanes."""
        share = LINE_CODES[self.kind] if self.encoding is None else self.encoding
        return self.lanes * self.gbps * share * GIGA / 8.0


class FpgaFile(FileTable, frozen=True, kw_only=True, tag_field="kind", tag="fpga"):
    """An FPGA's file."""

    name: Name
    dsp: DspTable | None = None
    engines: EngineTable | None = None
    logic: LogicTable | None = None
    on_chip: OnChipTable
    ddr: DdrTable | None = None
    hbm: HighBandwidthTable | None = None
    transceivers: TransceiverTable
    power: PowerTable | None = None
    description: str = ""

    def build(self) -> FieldProgrammableGateArray:
        """The device; ValueError naming the key where a table is incomplete."""
        memory = self.hbm or self.ddr
        if memory is None or (self.hbm and self.ddr):
            raise ValueError("$.ddr: a board has one of [ddr] and [hbm]")
        table, array = ("dsp", self.dsp) if self.engines is None else ("engines", self.engines)
        if array is None or (self.engines and self.dsp):
            raise ValueError("$.dsp: a board has one of [dsp] and [engines]")
        dsps = array.count if array.used is None else array.used
        if dsps > array.count:
            raise ValueError(f"$.{table}.used = {dsps}: must be at most count, {array.count}")
        if array.per_sample and array.per_sample > dsps:
            raise ValueError(f"$.{table}.per_sample = {array.per_sample}: must be at most those in use, {dsps}")
        rates = rates_of(array, table, "macs_per_cycle_int8", 1.0)
        beside = {precision: rate / dsps for precision, rate in self.logic.macs.items()} if self.logic else {}
        if beside:
            known = [one for one in PRECISION_BYTES if one in rates or one in beside]
            rates = {precision: rates.get(precision, 0.0) + beside.get(precision, 0.0) for precision in known}
        return FieldProgrammableGateArray(
            name=self.name,
            dsps=dsps,
            clock=array.clock_mhz * 1e6,
            macs_per_cycle=rates,
            logic=beside,
            efficiency=array.efficiency,
            reduction_half=array.reduction_half,
            depthwise=array.depthwise or 0.0,
            sample_dsps=array.per_sample or 0,
            shared_array=array.shared,
            port_bytes=array.port_bytes or 0.0,
            on_chip_bytes=self.on_chip.usable_bytes,
            ddr_bytes=memory.memory_gib * GIB,
            ddr_bandwidth=memory.bandwidth_gb_per_s * GIGA,
            memory_efficiency=memory.efficiency,
            transceiver_bandwidth=self.transceivers.bandwidth,
            power=None if self.power is None else self.power.build(),
        )


AcceleratorFile = GraphicsProcessorFile | ChipFile | FpgaFile
