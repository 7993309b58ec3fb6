"""Space: the pipelines that a search of mixed clusters chooses from, and what their parts take.

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
"""Exponent of the largest power of two by which prices of more than two kinds of device differ."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A choice for a replica of a stage: `degree` devices of a kind.

    policy: index of the recompute policy, the same for all replicas of a stage
    """

    kind: int
    degree: int
    policy: int = 0


class StageVariants(NamedTuple):
    """Seconds and memory of stages of layers i to j - 1 with each variant, at one size of micro-batches, [variants, layers + 1,
    layers + 1].

    seconds: of a micro-batch, forward and backward; infinite where a variant cannot be used
    deepest: most micro-batches in flight with which the stage fits; 0 where it does not fit at all
    forward, backward: [layers + 1, variants, variants]; seconds in which a boundary's tensor, or its gradient, passes the cut
    before each layer, from a replica of the first variant in front of it to one of the second behind it, whatever their policies;
    0 before the first and behind the last layer
    """

    seconds: Floats
    deepest: Integers
    forward: Floats
    backward: Floats


@dataclass(frozen=True, slots=True)
class MixedPipeline:
    """A pipeline of the space.

    samples: of a micro-batch of a replica; replicas: of each stage
    ends: layers before the end of each stage; counts: by stage, the number of replicas of each variant
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
        """The variant of each replica of a stage, as rising indices."""
        return tuple(number for number, count in enumerate(self.counts[stage]) for _ in range(count))


class Space(Protocol):
    """The pipelines of one problem that a search chooses from.

    variants: of replicas; devices: number of each kind; layers: number that stages are cut from; sizes: of micro-batches, in
    samples
    waiting: share of its transfers for which a stage computes nothing
    queued: share of the shorter one of two reductions of a stage that runs behind the longer one, not beside it
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
        """Numbers of replicas that every stage may have, with micro-batches of so many samples."""

    def rounds(self, samples: int, replicas: int) -> int:
        """Number of micro-batches that each replica runs in an iteration."""

    def stages(self, samples: int) -> StageVariants:
        """Seconds and memory of stages, with memory for the number of replicas with which stages take least."""

    def deepest(self, samples: int, replicas: int) -> Integers:
        """`StageVariants.deepest` for so many replicas."""

    def update(self, samples: int, replicas: int) -> Floats:
        """Seconds of the optimizer step of stages with so many replicas, [variants, layers + 1, layers + 1]."""

    def synchronization(self, samples: int, replicas: int, sets: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """Lower bounds on two costs of replicas, both [sets, layers + 1, layers + 1]: seconds after the last backward until
        gradients are reduced, and seconds by which traffic among replicas lengthens each micro-batch.

        sets: of variants, such that replicas of the stage are of all variants of a set
        """

    def shared(self, replicas: int, sets: Sequence[Sequence[int]]) -> Floats:
        """Seconds in which the first stage, of one set of variants, and the last, of another, reduce gradients of weights that
        both hold, [sets, sets]; infinite where there are no such stages.
        """

    def transfer_weights(self, stages: int) -> tuple[float, float]:
        """Factors on the first stage's forward transfer, and on the last one's backward transfer, in a pipeline of so many
        stages.
        """

    def in_flight(self, samples: int, replicas: int, ahead: int) -> int:
        """Number of micro-batches in flight on a stage; ahead: stages from this one to the last, itself included"""

    def seconds(self, pipeline: MixedPipeline) -> float:
        """Seconds of an iteration of a pipeline; infinite where its groups cannot be placed on the servers."""


def variant_sets(variants: Sequence[Variant], usable: Flags) -> tuple[tuple[int, ...], ...]:
    """Sets of variants that the replicas of a stage may mix: of one recompute policy, with at most one variant per kind of
    device.

    usable: whether each variant may be used, bool [variants]
    """
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
    """Prices of a device of each kind under which the least cost of all stages tells whether there are devices enough, [prices,
    kinds].

    Shares of replicas that can be filled exist if under no prices the stages, each with its cheapest variant, cost more than all
    devices (duality). Prices at which two variants of a stage cost alike suffice: of two kinds these are ratios of degrees, or of
    one kind alone; of more kinds ratios of all pairs, and powers of two around equal prices: there what passes these tests may
    still be impossible.
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
