"""Costs: what lowering asks (the seconds of each op, transfer and all-reduce of a plan), and costs given as numbers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple, Protocol

import numpy as np

from hardware_profiles import MOST_AMOUNT, Channel, Floats, Integers, brief, check_real, shown
from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import Schedule

Route = tuple[int, ...]
"""Channels that a transfer passes, in order; empty for a link of its own."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One point-to-point transfer: seconds when the links are idle, bytes, and the channels that it passes.

    loads: how many times its bytes pass each channel, because transfers of a group's other devices do, too; () is once
    """

    seconds: float
    size_bytes: float
    route: Route = ()
    loads: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Bucket:
    """Part of a stage's gradients that is all-reduced at once, or all of its updated weights that are gathered.

    share: part of the stage's backward seconds that ends when this bucket's gradients are there; shares of a stage sum to 1
    seconds: of the all-reduce among the stage's replicas
    route: channels that it occupies; occupancy: share of its seconds for which each is busy with it; () is all of them
    size_bytes: on each device, of all gradients, or of all weights
    """

    share: float
    seconds: float
    route: Route = ()
    occupancy: tuple[float, ...] = ()
    size_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Unit:
    """Layers of a stage whose weights its replicas gather at once before they use them, and whose gradients they scatter at once
    behind every backward, where these are divided among them (ZeRO 2 and 3).

    forward, backward: part of the seconds of the stage's ops that its layers take; those of a stage sum to 1 each
    gather: seconds of the all-gather, None where every replica has all weights; scatter: of the reduce-scatter
    route, occupancy: as of a `Bucket`
    gather_bytes, scatter_bytes: of all its weights, and of all its gradients
    """

    forward: float
    backward: float
    gather: float | None
    scatter: float
    route: Route = ()
    occupancy: tuple[float, ...] = ()
    gather_bytes: float = 0.0
    scatter_bytes: float = 0.0


class CollectiveForm(NamedTuple):
    """How many collectives of each kind the replicas of a stage run: what the structure of a program depends on.

    scatters: the buckets are reduce-scattered; gathers: the weights of units are gathered; updates: updated weights are
    """

    buckets: int = 0
    scatters: bool = False
    units: int = 0
    gathers: bool = False
    updates: bool = False

    def __bool__(self) -> bool:
        return bool(self.buckets or self.units or self.updates)


@dataclass(frozen=True, slots=True)
class StageCollectives:
    """The collectives that the replicas of a stage run together; empty for a single replica.

    buckets: of gradients that are reduced once, in the order in which backward frees them; all-reduced, or where replicas
        divide the optimizer's states reduce-scattered
    units: in the order of the forward; a stage has either buckets or units
    update_gather: all-gather of the weights where each replica updates a part of them (ZeRO 1 and 2)
    form: how many there are
    """

    buckets: tuple[Bucket, ...] = ()
    units: tuple[Unit, ...] = ()
    update_gather: Bucket | None = None
    form: CollectiveForm = field(init=False)

    def __post_init__(self) -> None:
        updates, gathers = self.update_gather is not None, any(one.gather is not None for one in self.units)
        form = CollectiveForm(len(self.buckets), bool(self.buckets) and updates, len(self.units), gathers, updates)
        object.__setattr__(self, "form", form)

    @property
    def busy(self) -> tuple[Route, tuple[float, ...]]:
        """Route and occupancy of each collective; they are the same for all."""
        one = next(one for one in (*self.buckets, *self.units, self.update_gather) if one is not None)
        return one.route, one.occupancy


ALONE = StageCollectives()
"""Of a stage of one replica."""


@dataclass(frozen=True, slots=True)
class TiedReduction:
    """All-reduce of the gradient of one weight that several stages use, over all their replicas.

    stages: rising, at least two
    seconds, route, occupancy, size_bytes: as of a `Bucket`
    """

    stages: tuple[int, ...]
    seconds: float
    route: Route = ()
    occupancy: tuple[float, ...] = ()
    size_bytes: float = 0.0


class Costs(Protocol):
    """What lowering asks about a plan: durations of its ops, transfers and collectives.

    Costs that inherit have what stands here: replicas of a stage alike that reduce nothing, slices alike, nothing that runs
    again, no ops that overlap.
    """

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Physical channels that routes refer to."""

    def device(self, stage: int, replica: int) -> int:
        """Device of one replica of a stage."""

    def seconds(self, kind: OpKind, stage: int, replica: int, samples: Integers) -> Floats:
        """Duration of ops of `kind` over each number of samples, float64 [len(samples)]."""

    def group(self, stage: int, replica: int) -> Hashable:
        """Key of a replica: replicas of a stage with equal keys take equal seconds (symmetrically placed replicas share
        durations).
        """
        return None

    def of_slice(self, number: int) -> Costs:
        """The costs of ops on one slice of the sequences."""
        return self

    def recomputes(self, stage: int) -> bool:
        """Whether the backward of a stage recomputes its forward inside itself, not in ops of their own."""
        return False

    def overlapped_seconds(self, stage: int, samples: int, apart: float) -> float:
        """Seconds of a forward and a backward that overlap; `apart` is what they take one after the other."""
        return apart

    def overlap_slowdown(self, device: int) -> float:
        """How much longer a device computes, as a part of its seconds, while it communicates."""
        return 0.0

    def transfer(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> Transfer:
        """Transfer of `samples` samples between two (stage, replica): activations downwards, gradients upwards."""

    def collectives(self, stage: int) -> StageCollectives:
        """The collectives that the replicas of a stage run together."""
        return ALONE

    @property
    def tied_reductions(self) -> tuple[TiedReduction, ...]:
        """All-reduces of weights that are shared by stages on several devices, apart from the buckets."""
        return ()


Numbers = float | Sequence[float]


@dataclass(frozen=True, slots=True)
class GivenCosts(Costs):
    """Costs given as numbers: one number per op, or one number per sample.

    forward, backward, input_gradient, weight_gradient, update: seconds per stage, length `stages`
    predict: seconds of a weight prediction per stage, or () for none
    overlapped: seconds of an overlapped pair by the stage of its forward, or () for its ops one after the other
    offload: seconds to the host, and as many back, per stage, or () for none
    slice_seconds: of each slice of a sequence, times those of forwards and gradients; () for slices alike
    transfer_seconds: one way over each boundary between stages on different devices
    devices: device of each replica of each stage
    in_turn: the replicas of a stage take mini-batches in turn and update together
    per_sample: the numbers of forwards and gradients are per sample of the op, else per op whatever it covers
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    input_gradient: tuple[float, ...]
    weight_gradient: tuple[float, ...]
    update: tuple[float, ...]
    transfer_seconds: tuple[float, ...] = (0.0,)
    per_sample: bool = False
    devices: tuple[tuple[int, ...], ...] = ()
    predict: tuple[float, ...] = ()
    in_turn: bool = False
    overlapped: tuple[float, ...] = ()
    offload: tuple[float, ...] = ()
    slice_seconds: tuple[float, ...] = ()

    channels: tuple[Channel, ...] = ()

    def __repr__(self) -> str:
        return brief(self, f"{len(self.forward)} stages, {'a sample' if self.per_sample else 'an op'}")

    def device(self, stage: int, replica: int) -> int:
        """The device of a replica: `devices[stage][replica]`."""
        return self.devices[stage][replica]

    def seconds(self, kind: OpKind, stage: int, replica: int, samples: Integers) -> Floats:
        """The given number, times the samples if numbers are per sample."""
        numbers = {
            OpKind.FORWARD: self.forward,
            OpKind.BACKWARD: self.backward,
            OpKind.INPUT_GRADIENT: self.input_gradient,
            OpKind.WEIGHT_GRADIENT: self.weight_gradient,
            OpKind.RECOMPUTE: self.forward,
            OpKind.OFFLOAD: self.offload or (0.0,) * len(self.update),
            OpKind.RELOAD: self.offload or (0.0,) * len(self.update),
            OpKind.UPDATE: self.update,
            OpKind.PREDICT: self.predict or (0.0,) * len(self.update),
        }
        value = numbers[kind][stage]
        if self.per_sample and kind not in (OpKind.UPDATE, OpKind.PREDICT):
            return value * samples.astype(np.float64)
        return np.full(len(samples), value, dtype=np.float64)

    def of_slice(self, number: int) -> GivenCosts:
        """The costs with the seconds of forwards and gradients multiplied by the factor of the slice."""
        if not self.slice_seconds:
            return self
        factor = self.slice_seconds[number]
        kinds = self.forward, self.backward, self.input_gradient, self.weight_gradient
        forward, backward, input_gradient, weight_gradient = (tuple(factor * one for one in kind) for kind in kinds)
        return replace(
            self,
            forward=forward,
            backward=backward,
            input_gradient=input_gradient,
            weight_gradient=weight_gradient,
        )

    def overlapped_seconds(self, stage: int, samples: int, apart: float) -> float:
        """The given number for the forward's stage; without one, the sum of both."""
        if not self.overlapped:
            return apart
        return self.overlapped[stage] * samples if self.per_sample else self.overlapped[stage]

    def transfer(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> Transfer:
        """The given transfer seconds, on a link that no other transfer uses."""
        seconds = self.transfer_seconds[min(source[0], target[0])]
        return Transfer(seconds * samples if self.per_sample else seconds, 0.0)

    def collectives(self, stage: int) -> StageCollectives:
        """A bucket of zero seconds where replicas take turns, so that their update waits for the gradients of all; else none."""
        return StageCollectives((Bucket(1.0, 0.0),) if self.in_turn and len(self.devices[stage]) > 1 else ())


@dataclass(frozen=True, slots=True)
class OpSeconds:
    """Seconds of each kind of op: one number, or one per stage (for transfers, one per boundary between stages).

    backward: of the full backward; of the input gradient where `weight`, the weight gradient's, is not 0: the full backward then
        takes `backward + weight`
    transfer: one way between neighbouring stages on different devices
    slice_seconds: of each of the k slices of a sequence, times these: the ops of micro-batch j take slice_seconds[j mod k] times
        as long; () for slices alike
    overlapped: of a forward and a backward that overlap, by the forward's stage; None: as one after the other
    offload: of what a forward keeps to the host, and as many back
    """

    forward: Numbers
    backward: Numbers
    _: KW_ONLY
    weight: Numbers = 0.0
    update: Numbers = 0.0
    predict: Numbers = 0.0
    transfer: Numbers = 0.0
    slice_seconds: Sequence[float] = ()
    overlapped: Numbers | None = None
    offload: Numbers = 0.0

    @property
    def updates(self) -> bool:
        """Whether an update takes any time."""
        return bool(np.any(self.update))

    def of_stages(self, name: str, stages: int) -> tuple[float, ...]:
        """The seconds of one kind, per stage (of transfers, per boundary); raises ValueError as `per_stage`."""
        if name == "transfer":
            return per_stage(name, self.transfer, max(1, stages - 1), "boundary", "boundaries")
        return per_stage(name, getattr(self, name), stages)


@dataclass(frozen=True, slots=True)
class OpMemory:
    """Memory that ops hold, in any unit: one number, or one per stage.

    stash: what a forward keeps, from its start to the end of its backward
    stash_weight: the part of it that the weight gradient needs, which the end of the input gradient leaves; default half
    memory: limit of a device, or one per device
    """

    stash: Numbers
    _: KW_ONLY
    stash_weight: Numbers | None = None
    memory: Numbers = math.inf

    def of_stages(self, stages: int) -> list[tuple[float, float]]:
        """The stash of each stage and the part that its weight gradient needs; ValueError if that part exceeds the stash, or as
        `per_stage`.
        """
        kept = per_stage("stash", self.stash, stages)
        half = [one / 2 for one in kept]
        longer = per_stage("stash-weight", half if self.stash_weight is None else self.stash_weight, stages)
        for stage, (whole, part) in enumerate(zip(kept, longer, strict=True)):
            check_real(f"stash of stage {stage}", whole)
            if part > whole:
                raise ValueError(
                    f"stash-weight of stage {stage} is a part of its stash and at most {whole:g}, got {part:g}"
                )
        return list(zip(kept, longer, strict=True))

    def limits(self, devices: int) -> tuple[float, ...]:
        """The memory limit of each device; raises ValueError as `per_stage`."""
        return per_stage("memory", self.memory, devices, "device", "devices", finite=False)


def per_stage(
    name: str, value: Numbers, stages: int, one: str = "stage", several: str = "stages", *, finite: bool = True
) -> tuple[float, ...]:
    """Expand one number, or one per stage, to one per stage; ValueError for a wrong count or a negative or non-finite number.

    one, several: words for what there are so many of; finite: false where infinity is a number, too
    """
    if isinstance(value, str | bytes | bool | None) or not isinstance(value, Real | Iterable):
        raise ValueError(f"{name} must be a number, or one for each of {stages} {several}, got {shown(value)}")
    each: tuple[Any, ...] = (value,) if isinstance(value, Real) else tuple(value)
    if wrong := [number for number in each if not isinstance(number, Real)]:
        raise ValueError(f"{name} of one {one} must be a number, got {shown(wrong[0])}")
    values = tuple(map(_number, each))
    if len(values) == 1:
        values *= stages
    if len(values) != stages:
        raise ValueError(f"{name} needs one number or one for each of {stages} {several}, got {len(values)} numbers")
    for position, number in enumerate(values):
        if not (number >= 0 and (math.isfinite(number) or not finite)):
            kind = "a finite number" if finite else "a number"
            raise ValueError(f"{name} of {one} {position} must be {kind} of at least 0, got {number}")
    return values


def _number(value: float) -> float:
    """The number as a float; a whole number too large for a float is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def given_costs(
    stages: int, seconds: OpSeconds, *, per_sample: bool = False, devices: Schedule | None = None
) -> GivenCosts:
    """Make costs from one number, or one per stage, for each kind of op.

    devices: schedule whose devices these are; default stage s on device s
    Raises ValueError for a wrong number of values, or one that is negative or not finite.
    """
    factor = tuple(map(_number, seconds.slice_seconds))
    if not all(0 <= one <= MOST_AMOUNT for one in factor):
        raise ValueError(f"slice seconds must be numbers from 0 to {MOST_AMOUNT:g}, got {list(factor)}")
    input_gradient, weight_gradient = (seconds.of_stages(name, stages) for name in ("backward", "weight"))
    return GivenCosts(
        forward=seconds.of_stages("forward", stages),
        backward=tuple(i + w for i, w in zip(input_gradient, weight_gradient, strict=True)),
        input_gradient=input_gradient,
        weight_gradient=weight_gradient,
        update=seconds.of_stages("update", stages),
        transfer_seconds=seconds.of_stages("transfer", stages),
        per_sample=per_sample,
        devices=devices.holders() if devices is not None else tuple((stage,) for stage in range(stages)),
        predict=seconds.of_stages("predict", stages),
        in_turn=devices is not None and not devices.flush,
        overlapped=() if seconds.overlapped is None else seconds.of_stages("overlapped", stages),
        offload=seconds.of_stages("offload", stages),
        slice_seconds=factor,
    )
