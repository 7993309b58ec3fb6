"""Space: what a search of mixed pipelines chooses from, and what its choices take.

A mixed pipeline has stages of contiguous layers, each with the same number of replicas. A replica is a group of devices of one
kind; replicas of a stage that are of one kind have one degree, and any share of them may be of each kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple, Protocol

import numpy as np

from hardware_profiles import Flags, Floats, Integers

MOST_POWER = 2
"""Exponent of the largest power of two by which prices of more than two kinds differ."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A choice for a replica of a stage: `degree` devices of a kind.

    policy: number of the recompute policy, the same for all replicas of a stage
    """

    kind: int
    degree: int
    policy: int = 0


class StageVariants(NamedTuple):
    """Seconds and memory of stages of layers i to j - 1 with each variant, at one size of micro-batches, [variants, layers + 1,
    layers + 1].

    seconds: of a micro-batch, forward and backward; infinite where a variant cannot be used
    deepest: micro-batches in flight with which the stage fits at most; 0 where it does not fit at all
    forward, backward: seconds in which a boundary's tensor, or its gradient, passes the cut before each layer, of a replica in
        front of it and one behind it, whatever their policies, [layers + 1, variants, variants]; 0 before the first and behind
        the last layer
    """

    seconds: Floats
    deepest: Integers
    forward: Floats
    backward: Floats


@dataclass(frozen=True, slots=True)
class MixedPipeline:
    """A pipeline of the space.

    samples: of a micro-batch of a replica; replicas: of each stage
    ends: layers before the end of each stage; counts: replicas of each variant, of each stage
    """

    samples: int
    replicas: int
    ends: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def ranges(self) -> tuple[range, ...]:
        """The layers of each stage."""
        return tuple(range(*pair) for pair in pairwise((0, *self.ends)))

    def held(self, stage: int) -> tuple[int, ...]:
        """The variant of each replica of a stage, rising."""
        return tuple(number for number, count in enumerate(self.counts[stage]) for _ in range(count))


class Space(Protocol):
    """The pipelines of one question.

    variants: what replicas may be; devices: of each kind; layers: that are cut into stages; sizes: of micro-batches, in samples
    waiting: share of its transfers for which a stage computes nothing
    queued: share of the shorter one of two reductions of a stage that comes behind the longer one, and not beside it
    """

    @property
    def variants(self) -> tuple[Variant, ...]: ...

    @property
    def devices(self) -> tuple[int, ...]: ...

    @property
    def layers(self) -> int: ...

    @property
    def sizes(self) -> tuple[int, ...]: ...

    @property
    def waiting(self) -> float: ...

    @property
    def queued(self) -> float: ...

    def replicas(self, samples: int) -> Sequence[int]:
        """Numbers of replicas that a stage may have."""

    def rounds(self, samples: int, replicas: int) -> int:
        """Micro-batches that each replica runs in an iteration."""

    def stages(self, samples: int) -> StageVariants:
        """Figures of stages, with memory as of the number of replicas with which they take the least."""

    def deepest(self, samples: int, replicas: int) -> Integers:
        """The `deepest` of `StageVariants`, with so many replicas."""

    def update(self, samples: int, replicas: int) -> Floats:
        """Seconds of an optimizer step of stages, with so many replicas, [variants, layers + 1, layers + 1]."""

    def synchronization(self, samples: int, replicas: int, sets: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """Least seconds in which gradients of stages of layers i to j - 1 are reduced in the end, and by which each micro-batch
        takes longer meanwhile, [sets, layers + 1, layers + 1] both, where replicas are of all variants of a set.
        """

    def shared(self, replicas: int, sets: Sequence[Sequence[int]]) -> Floats:
        """Seconds in which the first of several stages, whose replicas are of all variants of a set, and the last one, of another
        set, reduce the gradients of weights that both hold, [sets, sets]; infinite where there are no such stages.
        """

    def transfer_weights(self, stages: int) -> tuple[float, float]:
        """How often the first stage's forward transfer, and the last one's backward transfer, count in a pipeline of so many."""

    def in_flight(self, samples: int, replicas: int, ahead: int) -> int:
        """Micro-batches that a stage with `ahead` stages from itself to the last has in flight."""

    def seconds(self, pipeline: MixedPipeline) -> float:
        """Seconds of an iteration; infinite where its groups cannot be placed."""


def variant_sets(variants: Sequence[Variant], usable: Flags) -> tuple[tuple[int, ...], ...]:
    """Sets of variants that the replicas of a stage may mix: one recompute policy, and at most one variant per kind of device."""
    found: dict[tuple[int, ...], None] = {}
    for policy in sorted({one.policy for one in variants}):
        own = [number for number, one in enumerate(variants) if one.policy == policy and usable[number]]
        kinds = sorted({variants[number].kind for number in own})
        choices = [(None, *(number for number in own if variants[number].kind == kind)) for kind in kinds]
        for chosen in product(*choices):
            if members := tuple(number for number in chosen if number is not None):
                found[members] = None
    return tuple(found)


def price_ratios(variants: Sequence[Variant], kinds: int) -> Floats:
    """Prices of devices under which a stage's least need tells whether shares of replicas can be filled, [prices, kinds].

    Shares exist where under no prices the stages need more than there is, each with its cheapest variant (duality). Prices at
    which two variants of a stage cost alike suffice: of two kinds these are ratios of degrees, or of one kind alone; of more
    kinds ratios of all pairs, and powers of two around equal prices of all: what passes these may still not be possible.
    """
    degrees = [sorted({one.degree for one in variants if one.kind == kind}) for kind in range(kinds)]
    rows = {tuple(float(kind == one) for kind in range(kinds)) for one in range(kinds)}
    for first in range(kinds):
        for second in range(first + 1, kinds):
            for one, two in product(degrees[first], degrees[second]):
                rows.add(tuple({first: 1.0, second: one / two}.get(kind, 0.0) for kind in range(kinds)))
    if kinds > 2:
        for powers in product(range(-MOST_POWER, MOST_POWER + 1), repeat=kinds - 1):
            if max(0, *powers) - min(0, *powers) <= MOST_POWER:
                rows.add((1.0, *(2.0**power for power in powers)))
    return np.array(sorted(rows))
