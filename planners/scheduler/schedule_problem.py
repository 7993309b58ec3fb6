"""Schedule problem: stages whose ops are to be ordered, in numbers: seconds, transfers, bytes and a limit per device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from hardware_profiles import brief
from simulator import Chains, check_size

Numbers = float | Sequence[float]
"""One number for all stages, boundaries or devices, or a number for each."""

MOST_STAGES = (2**15 - 1) // 3
"""Stages of all chains, at most: three kinds of ops of each are told apart by 16 bits."""

MOST_OPS = 2**23
"""Forwards and backwards, at most."""

MOST_STEPS = 2**26
"""Forwards and backwards times the stages of a device, at most: list scheduling looks at each of these stages at every op."""

MOST_SUM = 1e300
"""Sum of all seconds, and of all bytes, at most, so that nothing overflows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduleProblem:
    """Stages on devices, micro-batches of one size, and what each op takes and holds; one number stands for all.

    chains: device of every stage, as `chains_of` gives it; micro-batches are shared out over the chains as evenly as can be, the
        first chain taking the first of them
    microbatches: in all
    forward, input_gradient, weight_gradient: seconds of each stage; a stage whose weight gradient takes none runs one full
        backward, which takes the seconds of the input gradient
    transfer: seconds one way over each boundary between stages; none within a device
    freed_at_input_gradient, freed_at_weight_gradient: bytes of a micro-batch that a stage keeps from the start of its forward to
        the end of each of the two (of the full backward)
    limit: bytes that each device has for them; infinite for none
    Raises ValueError for counts that do not go together, for numbers that are negative or not finite, for what is too large to be
    searched, and for a limit that not even one micro-batch keeps.
    """

    chains: Chains
    microbatches: int
    forward: Numbers
    input_gradient: Numbers
    weight_gradient: Numbers = 0.0
    transfer: Numbers = 0.0
    freed_at_input_gradient: Numbers = 1.0
    freed_at_weight_gradient: Numbers = 0.0
    limit: Numbers = math.inf

    def __post_init__(self) -> None:
        """Spread single numbers and check everything."""
        if len({len(chain) for chain in self.chains}) != 1 or not self.chains[0]:
            raise ValueError("a schedule problem has at least one chain of at least one stage, all of one length")
        if sorted({device for chain in self.chains for device in chain}) != list(range(self.devices)):
            raise ValueError(f"devices are numbered from 0 and each has a stage, got {self.chains}")
        if self.microbatches < 1:
            raise ValueError(f"micro-batches must be at least 1, got {self.microbatches}")
        self._check_size()
        counts = {"transfer": (self.stages - 1, "boundaries"), "limit": (self.devices, "devices")}
        for name in (field.name for field in fields(self)[2:]):
            count, what = counts.get(name, (self.stages, "stages"))
            object.__setattr__(self, name, _spread(name.replace("_", " "), getattr(self, name), count, what))
        self._check_sums()
        self._check_limits()

    def __repr__(self) -> str:
        return brief(
            self, f"{self.stages} stages on {self.devices} devices, {self.microbatches} micro-batches, {self.chains}"
        )

    @property
    def stages(self) -> int:
        """Number of stages of a chain."""
        return len(self.chains[0])

    @property
    def devices(self) -> int:
        """Number of devices of all chains."""
        return 1 + max(device for chain in self.chains for device in chain)

    def each(self, name: str) -> tuple[float, ...]:
        """The numbers of the field of this name: one for each stage, boundary or device."""
        values: tuple[float, ...] = getattr(self, name)
        return values

    def _check_size(self) -> None:
        """ValueError for more stages or ops than a search takes, before anything of that size is made."""
        stages = self.stages * len(self.chains)
        if stages > MOST_STAGES:
            raise ValueError(f"a search takes at most {MOST_STAGES:,} stages, got {stages}")
        check_size(self.stages, self.microbatches, most=MOST_OPS)
        stages = max(Counter(device for chain in self.chains for device in chain).values())
        if 2 * self.stages * self.microbatches * stages > MOST_STEPS:
            raise ValueError(
                f"{stages} stages on one device and {self.microbatches} micro-batches are too many to be searched: ops times "
                f"stages of a device are at most {MOST_STEPS:,}"
            )

    def _check_sums(self) -> None:
        """ValueError for seconds or bytes whose sum over all micro-batches may overflow."""
        kept = (*self.each("freed_at_input_gradient"), *self.each("freed_at_weight_gradient"))
        ops = (*self.each("forward"), *self.each("input_gradient"), *self.each("weight_gradient"))
        sums = {
            "seconds of all ops and transfers": sum((*ops, *self.each("transfer"), *self.each("transfer"))),
            "bytes of all micro-batches": sum(kept),
        }
        for what, one in sums.items():
            if not one * self.microbatches <= MOST_SUM:
                raise ValueError(f"{what} must sum to at most {MOST_SUM:g}, got {one * self.microbatches:.6g}")

    def _check_limits(self) -> None:
        """ValueError for a limit below the least; where all devices have one limit, for the device that needs most."""
        limits, needed = self.each("limit"), self.least_limits()
        short = [device for device, (limit, least) in enumerate(zip(limits, needed, strict=True)) if limit < least]
        if short:
            device = max(short, key=needed.__getitem__) if len(set(limits)) == 1 else short[0]
            raise ValueError(
                f"device {device} has {limits[device]:.12g} for what its micro-batches keep, one of them keeps "
                f"{needed[device]:.12g}: the least limit that would do is {needed[device]:.12g}"
            )

    def counts(self) -> tuple[int, ...]:
        """Number of micro-batches of each chain."""
        each, more = divmod(self.microbatches, len(self.chains))
        return tuple(each + (chain < more) for chain in range(len(self.chains)))

    def least_limits(self) -> tuple[float, ...]:
        """Bytes that each device needs for one micro-batch at a time; with less there is no order."""
        halves = self.each("freed_at_input_gradient"), self.each("freed_at_weight_gradient")
        return self.held_by_one([first + second for first, second in zip(*halves, strict=True)])

    def held_by_one(self, kept: Sequence[float]) -> tuple[float, ...]:
        """Most that each device holds of one micro-batch at a time; kept: what each stage keeps of it"""
        least = [0.0] * self.devices
        for chain, count in zip(self.chains, self.counts(), strict=True):
            held: dict[int, list[float]] = {}
            for stage, device in enumerate(chain if count else ()):
                held.setdefault(device, []).append(kept[stage])
            for device, several in held.items():
                least[device] = max(least[device], math.fsum(several))
        return tuple(least)


def _spread(name: str, value: Numbers, count: int, what: str) -> tuple[float, ...]:
    """The number for each of `count`; ValueError for a wrong number of them, or one that is negative or not finite (limits may be
    infinite).
    """
    single = isinstance(value, (int, float))
    values = (float(value),) * count if isinstance(value, (int, float)) else tuple(float(one) for one in value)
    if len(values) == 1 and not single:
        values *= count
    if len(values) != count:
        raise ValueError(f"{name} needs one number or one for each of {count} {what}, got {len(values)} numbers")
    for position, one in enumerate(values):
        if math.isnan(one) or one < 0 or (math.isinf(one) and name != "limit"):
            finite = "a number" if name == "limit" else "a finite number"
            raise ValueError(f"{name} {position} must be {finite} of at least 0, got {one}")
    return values
