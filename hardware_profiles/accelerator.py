"""Accelerator: one device that computes, and the work that it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeGuard,
    get_args,
    runtime_checkable,
)

from hardware_profiles.numbers import MOST_AMOUNT, check_real
from hardware_profiles.option_declarations import Bounds, declared_bounds
from hardware_profiles.plugins import PluginError, answering_for, aside
from hardware_profiles.words import blaming, shown

Phase = Literal["forward", "backward", "input_gradient", "weight_gradient"]
"""`backward` is the full backward pass: input gradient plus weight gradient."""

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4", "int3", "int2", "int1"]

PRECISION_BYTES: dict[str, float] = {
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "int8": 1,
    "int4": 0.5,
    "int3": 0.375,
    "int2": 0.25,
    "int1": 0.125,
}
"""Bytes of one stored element at each precision (tf32 is stored as fp32; elements of less than a byte share one)."""

FOR_INFERENCE = frozenset({"int4", "int3", "int2", "int1"})
"""Precisions of forward passes alone: gradients of so few bits train nothing."""

RECIPES: Mapping[Precision, Precision] = MappingProxyType({"fp8": "bf16"})
"""Mixed-precision recipes: the precision of products with weights -> that of everything else: weights, gradients, activations,
the other layers and the output head (Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; NVIDIA's Transformer Engine)."""


LAYER_KINDS = (
    "input",
    "convolution",
    "linear",
    "attention",
    "recurrent",
    "embedding",
    "normalization",
    "activation",
    "pooling",
    "dropout",
    "elementwise",
    "reshape",
    "loss",
)
"""Kinds of layer. An accelerator can time each of them."""

ZERO_COST_KINDS = frozenset({"input", "reshape"})
"""Kinds of layer that launch no kernel: inputs arrive by themselves, and a view changes only the description of a shape."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one layer for ONE sample of the forward pass, as an accelerator times it.

    kind: kind of layer, one of LAYER_KINDS
    flop: forward FLOP per sample (a multiply-add counts 2)
    input_elements, output_elements: tensor elements read and written per sample
    parameters: weight elements, read once per call whatever the number of samples
    sequential_steps: dependent kernel calls per pass (time steps of a recurrent layer), 1 otherwise
    scratch_elements: elements that the pass moves to and from memory between its own kernels per sample, beside input and output
        (the scores of attention without a fused kernel); none of it is hidden behind the products
    loaded_elements: elements per sample that no layer makes (images), from the host; they need no gradient
    channels: of a convolution those that a group of it reads, and those that it makes; 0 where it is not known
    fused_pairs: of attention in one kernel the share of all pairs of a query and a key (`flop` counts all) that it computes: half
        under a causal mask; 0: in several kernels
    experts: of a product with matrices of their own for parts of the samples, how many matrices; 0 for other layers
    head_size: of attention the elements of a head; 0 where it is not known, and for other layers
    in_place: what makes its input can do it as it writes: an element-wise layer that keeps nothing, a normalization behind a
        convolution
    """

    kind: str
    flop: float
    input_elements: float
    output_elements: float
    parameters: float
    sequential_steps: int = 1
    scratch_elements: float = 0.0
    loaded_elements: float = 0.0
    channels: tuple[int, int] = (0, 0)
    fused_pairs: float = 0.0
    experts: int = 0
    head_size: int = 0
    in_place: bool = False


BACKWARD_LAUNCHES = 1.5
"""Launches of a backward for one of a forward: it has twice the products, and as many element-wise kernels."""


@runtime_checkable
class Accelerator(Protocol):
    """One device: its memory and the seconds of a layer on it. `OptionalMembers` lists what it may have beyond these."""

    @property
    def name(self) -> str:
        """Identifier, as in `v100-sxm2`."""

    @property
    def memory_bytes(self) -> float:
        """Device memory in bytes."""

    @property
    def streams(self) -> bool:
        """Whether it is a `StreamingAccelerator`: all layers of a stage work at the same time, and send while they compute."""

    @property
    def sublinear(self) -> bool:
        """Whether seconds never fall as samples or work rise, seconds per sample never rise, a part of the FLOP and elements of
        each sample takes as long as as much of the samples, and parts of a layer take together no less than as many equal ones,
        and, where they have together all of its FLOP, elements and weights, no less than it. Lower bounds rely on it.
        """

    def seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """Seconds of one pass of one layer over `samples` samples."""


LEAST_VOLTAGE = 0.87
"""Share of the voltage at full power below which none falls.

FITTED to 117 points of clock and power of forwards and backwards of GPT-3 175B and BLOOM on an A100-SXM4 of 400 W (Perseus, SOSP
2024: ml-energy/zeus 38cb3f90, sosp24_data/emulation/stage_profile), whose seconds it meets within 2 %. Of devices that it did not
see: an RTX 3090 within 2 % (noonghunna/club-3090#104), an RTX PRO 6000 10 and 7 % too fast (1a1a11a/gpu_power), an A40
14 % too fast, a V100 5 to 9 % too slow (ml-energy/zeus). The clock of a memory does not fall (ashalliants/ninfer-3090#72).
"""


class Power(NamedTuple):
    """Electric power of one device, W: while nothing is computed, and at full load.

    compute, memory, link: of what full load adds, what its arithmetic draws at work, its memory at its full bandwidth, and its
        links while they carry something; None where it is not known
    """

    idle: float
    full: float
    compute: float | None = None
    memory: float | None = None
    link: float | None = None

    @property
    def known(self) -> dict[str, float]:
        """W of the parts of what full load adds, by name, those that are known."""
        named = {"compute": self.compute, "memory": self.memory, "link": self.link}
        return {name: watts for name, watts in named.items() if watts is not None}

    def limited(self, limit: float) -> Power:
        """The same held to a limit, W above idle: at full load it draws that, of which its parts have their shares."""
        share = (limit - self.idle) / (self.full - self.idle)
        parts = (None if part is None else part * share for part in self[2:])
        return Power(self.idle, limit, *parts)

    def clock(self, limit: float) -> float:
        """Clock of work at full load under a limit, W above idle, as a share of that at full power.

        Beside idle a chip draws clock x voltage^2; its voltage falls with the clock, to LEAST_VOLTAGE of that at full power.
        """
        share = (limit - self.idle) / (self.full - self.idle)
        return float(min(share ** (1 / 3), share / LEAST_VOLTAGE**2))

    def joules(self, seconds: float, working: float, memory: float = 0.0, link: float = 0.0) -> dict[str, float]:
        """Energy by part over so many seconds, of which so many are at full load: that of no known part goes with the work.

        memory: seconds in which what the memory moves is moved at its full bandwidth; link: for which links carry something
        """
        known, busy = self.known, {"compute": working, "memory": memory, "link": link}
        other = (self.full - self.idle - sum(known.values())) * working
        return {
            "idle": self.idle * seconds,
            **{name: watts * busy[name] for name, watts in known.items()},
            "other": other,
        }


class OptionalMembers(NamedTuple):
    """Optional members of an accelerator beyond those of `Accelerator`, with their defaults.

    word: what figures call one such device
    precisions: those that it has a rate for
    peak_flops: FLOP/s of the data sheet by precision, of which efficiencies are told; none where it is not known
    reserve_bytes: memory beside `memory_bytes` that no plan may fill
    host_bandwidth: bytes/s to the host, and as many back at the same time; 0 where it is not known
    generation: name of its architecture, such as "ampere", by which constants of stacks are told
    chip: kind of chip, one of `hardware_profiles.chips.CHIPS`, by which stacks say what they run on; empty where it is not known
    spread: mean error of its seconds, as a part of them, where its kind alone tells the shares that layers reach; else 0
    launch_overhead: seconds that the host needs before it can send the next layer's forward, not part of `seconds`
    pass_overhead: seconds that a framework takes for the forward of a stage, and as much for its backward, not part of `seconds`
    power: its `Power`; None where it is not known
    overlap_slowdown: how much longer it computes, as a part of its seconds, while a transfer or a collective of it is under way
    """

    word: str = "device"
    precisions: Sequence[str] = tuple(PRECISION_BYTES)
    peak_flops: Mapping[str, float] = MappingProxyType({})
    reserve_bytes: float = 0.0
    host_bandwidth: float = 0.0
    launch_overhead: float = 0.0
    pass_overhead: float = 0.0
    generation: str = ""
    chip: str = ""
    spread: float = 0.0
    power: Power | None = None
    overlap_slowdown: float = 0.0


def optional_members(accelerator: Accelerator) -> OptionalMembers:
    """The optional members of an accelerator; defaults for those that it lacks."""
    return OptionalMembers._make(getattr(accelerator, *one) for one in OptionalMembers._field_defaults.items())


def optional_member(accelerator: Accelerator, name: str) -> Any:
    """One of the optional members of an accelerator; its default where it lacks it."""
    return getattr(accelerator, name, OptionalMembers._field_defaults[name])


class StreamingAccelerator(Accelerator, Protocol):
    """An accelerator on which all layers of a stage work at the same time, so that a stage does not take the sum of its layers.

    It may also have `divided`, as `FieldProgrammableGateArray` has, which times many stages at once for searches.
    """

    def stage_seconds(self, works: Sequence[Work], samples: float, phase: Phase, precision: Precision) -> float:
        """Seconds of one pass of a stage of layers over `samples` samples."""

    def multiply_seconds(self, work: Work, phase: Phase, precision: Precision) -> float:
        """Seconds per sample of one layer's multiply-adds on the whole device: a lower bound under any division of the device."""


def streaming(accelerator: Accelerator) -> TypeGuard[StreamingAccelerator]:
    """Whether an accelerator is a `StreamingAccelerator`, as a type guard."""
    return accelerator.streams


PHASES: tuple[str, ...] = get_args(Phase)
"""The names of the phases, in the order of `Phase`."""


def passes(phase: Phase) -> tuple[Phase, ...]:
    """The passes of a phase: a backward consists of its two gradients."""
    return ("input_gradient", "weight_gradient") if phase == "backward" else (phase,)


def of_another_package(accelerator: Accelerator) -> bool:
    """Whether an accelerator is a plug-in: what it tells is checked."""
    return not type(accelerator).__module__.startswith("hardware_profiles.")


_MEMBERS = ("name", "memory_bytes", "streams", "sublinear", "seconds")

_OF_STREAMS = ("stage_seconds", "multiply_seconds")
"""Members of one that streams, beside those."""

FULL_ROUNDING = 1e-9
"""Relative; by which parts may exceed what full load adds, as sums of decimal figures do."""


def within_full(power: Power) -> bool:
    """Whether the known parts draw no more than full load adds."""
    return sum(power.known.values()) <= (power.full - power.idle) * (1.0 + FULL_ROUNDING)


_AMOUNTS = ("reserve_bytes", "host_bandwidth", "launch_overhead", "pass_overhead", "spread", "overlap_slowdown")
"""Optional members that are amounts."""


def check_members(accelerator: Accelerator) -> None:
    """PluginError, which names it, for an accelerator of another package whose members are not what they should be."""
    if not of_another_package(accelerator):
        return
    what = f"accelerator {shown(getattr(accelerator, 'name', type(accelerator).__name__))}, a plug-in"
    owed = (*_MEMBERS, *_OF_STREAMS) if getattr(accelerator, "streams", False) else _MEMBERS
    lacking = [one for one in owed if not hasattr(accelerator, one)]
    if lacking:
        raise PluginError(f"{what}, lacks {', '.join(lacking)}")
    for member, kind, words in (("name", str, "a text"), ("streams", bool, "a bool"), ("sublinear", bool, "a bool")):
        value = getattr(accelerator, member)
        if not isinstance(value, kind):
            raise PluginError(f"{what}: {member} must be {words}, got {shown(value)}")
    with blaming(PluginError):
        check_real(f"{what}: memory_bytes", accelerator.memory_bytes, 1.0)
        for amount in _AMOUNTS:
            check_real(f"{what}: {amount}", optional_member(accelerator, amount))
    power = optional_member(accelerator, "power")
    if power is not None and not (isinstance(power, Power) and 0 <= power.idle <= power.full <= MOST_AMOUNT):
        raise PluginError(f"{what}: power must be None or a Power, whose full is at least its idle, got {shown(power)}")
    if power is not None and not (min(power.known.values(), default=0) >= 0 and within_full(power)):
        raise PluginError(
            f"{what}: parts of a Power must be amounts within what full load adds to idle, got {shown(power)}"
        )


def answered_seconds(accelerator: Accelerator, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
    """Seconds of the work as the accelerator tells them; PluginError, which names it, for an accelerator of another package that
    fails or returns anything but seconds."""
    if not of_another_package(accelerator):
        return accelerator.seconds(work, samples, phase, precision)
    what = f"accelerator {accelerator.name!r}"
    with answering_for(what), aside():
        seconds = accelerator.seconds(work, samples, phase, precision)
    with blaming(PluginError):
        check_real(f"{what}, a plug-in: seconds", seconds)
    return seconds


def check_request(name: str, work: Work, samples: float, phase: str, precision: str, precisions: Iterable[str]) -> None:
    """Raise ValueError, in one line, unless a device of that name, which knows these precisions, can time this request."""
    if not samples > 0.0:
        raise ValueError(f"{name}: samples must be above 0: {samples}")
    if phase not in PHASES:
        raise ValueError(f"{name}: unknown phase {phase!r}; choose from {', '.join(PHASES)}")
    known = tuple(precisions)
    if precision not in known:
        raise ValueError(f"{name}: the profile gives no rate for precision {precision!r}; it has {', '.join(known)}")
    if work.kind not in LAYER_KINDS:
        raise ValueError(f"{name}: unknown kind of layer {work.kind!r}; choose from {', '.join(LAYER_KINDS)}")
    if work.sequential_steps < 1:
        raise ValueError(f"{name}: sequential_steps must be at least 1: {work.sequential_steps}")


Positive = Annotated[float, Bounds(gt=0)]
Amount = Annotated[float, Bounds(ge=0)]
ShareOfPeak = Annotated[float, Bounds(gt=0, le=1)]
"""Types of the fields of devices and links whose ranges `check_figures` checks."""


def check_figures(where: str, device: object) -> None:
    """Raise ValueError, in one line, for the first field of a device or link outside its declared range; NaN is outside."""
    for name, (_, bounds) in declared_bounds(device).items():
        if (value := getattr(device, name)) not in bounds:
            raise ValueError(f"{where}: {name} is {str(bounds).replace('more than', 'above')}: {shown(value)}")
        check_real(f"{where}: {name}", value)


def checked_rates(where: str, name: str, rates: Mapping[str, float]) -> dict[str, float]:
    """Rates by precision; ValueError, in one line, for an empty table, an unknown precision, or a rate that is not above 0."""
    if not rates:
        raise ValueError(f"{where}: {name} needs at least one precision, of {', '.join(PRECISION_BYTES)}")
    for precision, rate in rates.items():
        if precision not in PRECISION_BYTES or not 0.0 < rate <= MOST_AMOUNT:
            raise ValueError(
                f"{where}: {name} maps a precision ({', '.join(PRECISION_BYTES)}) to a rate above 0: {precision} = {rate}"
            )
    return dict(rates)
