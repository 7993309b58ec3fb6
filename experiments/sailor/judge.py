"""Judge: seconds and memory of a plan as Sailor's simulator counts them, and the space of its plans.

Formulas of eth-easl/sailor at commit cf2c8e3 (MIT licence), re-stated from `sailor/Planner/simulations/runtime_simulator.py`
(`get_time_per_pipeline`, `estimate_p2p_pipeline_times`, `estimate_sync_time`, `check_config_fits`) and
`sailor/profiling/profile_utils.py`, with the order of their sums, so that figures agree to the last digit. They are crude: a
stage's update is that of its first layer, gradients are reduced after everything else, a gradient is as large as the output of
the layer behind the cut. Nothing here corrects them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise, product
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from experiments.studies.input_sets import INPUT_SETS
from experiments.studies.public_inputs import Amount, read_json
from experiments.terminal.output import InputError
from hardware_profiles import GIB, Floats, Integers
from planners.mixed import MixedPipeline, StageVariants, Variant

PROFILES, LAYERS, NETWORK = INPUT_SETS["sailor"].files
"""Files of a checkout: seconds by network, GPU, samples, degree and layer; sizes of layers by degree; rates between groups."""

ZONE = "us-central1-a"

MEMORY_GIB = {"V100-16": 16, "A100-40": 40, "GH-96": 96}
"""GPUs whose rates between groups of all sizes and kinds are published."""

ELEMENT_BYTES = 4
STATE_BYTES = 24
"""A parameter: weight, gradient, Adam's two moments, a buffer of the reduction, a copy at the start; 4 bytes each."""

RUNTIME_BYTES = 2e9, 3e9
"""Bytes that a process takes besides, by itself and in a group."""

BUCKET_BYTES = 500_000_000
LARGEST_GROUP = 4


Coefficient = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]


class LayerSize(msgspec.Struct, frozen=True):
    """Numbers of a layer on a device of a group: weights, output and what is kept of a sample."""

    params_floats: Amount
    act_output_floats: Amount
    act_mem_floats: Amount


Seconds = dict[str, dict[str, dict[str, dict[str, tuple[Amount, Amount, Amount]]]]]
"""By GPU, samples, degree and layer: forward, backward, update."""

Sizes = dict[str, dict[str, LayerSize]]
"""By degree and layer."""

Rate = tuple[tuple[Coefficient, Coefficient, Coefficient], Coefficient]
Network = dict[str, dict[str, dict[str, dict[str, dict[str, Rate]]]]]
"""By GPU and degree of a group, and zone, GPU and degree of another: coefficients of the rate between them, its last value."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What Sailor publishes of one network."""

    seconds: Seconds
    sizes: Sizes
    network: Network


def read_inputs(folder: Path, model: str) -> Inputs:
    """The inputs in a checkout of Sailor; InputError for a file that is not there or not what it should be."""
    files = (PROFILES, dict[str, Seconds]), (LAYERS, dict[str, Sizes]), (NETWORK, dict[str, Network])
    try:
        profiles, layers, network = (read_json(folder / name, form) for name, form in files)
    except InputError as error:
        raise InputError(f"{error}; pipeplan data sailor --from DIR tells what a checkout lacks") from None
    try:
        inputs = Inputs(profiles[model], layers[model], network[ZONE])
        numbers = [str(layer) for layer in range(len(inputs.sizes["1"]))]
        groups = [(gpu, degree) for gpu in MEMORY_GIB for degree in {"1": None, **inputs.network[gpu]}]
        tables: list[Mapping[str, object]] = [*inputs.sizes.values()]
        tables += [rows for gpu in MEMORY_GIB for of_size in inputs.seconds[gpu].values() for rows in of_size.values()]
        for table in tables:
            for number in numbers or ["0"]:
                table[number]
        for (gpu, degree), (other, others) in product(groups, repeat=2):
            inputs.network[gpu][degree][ZONE][other][others]
    except KeyError as lacking:
        raise InputError(f"{folder}: of {model!r} in zone {ZONE!r} it has not all inputs: lacks {lacking}") from None
    return inputs


class Judge:
    """Plans of a network on GPUs of several kinds, judged as Sailor does; a `planners.mixed.space.Space`."""

    waiting, queued = 1.0, 1.0

    def __init__(self, inputs: Inputs, gpus: Mapping[str, int], batch: int) -> None:
        """gpus: of each kind of MEMORY_GIB, by Sailor's names"""
        self.inputs, self.kinds, self.batch = inputs, tuple(gpus), batch
        self.devices = tuple(gpus.values())
        self.layers = len(inputs.sizes["1"])
        self.sizes = tuple(sorted({int(samples) for kind in self.kinds for samples in inputs.seconds[kind]}))
        self.variants = tuple(
            Variant(number, int(degree))
            for number, kind in enumerate(self.kinds)
            for degree in sorted(inputs.network[kind], key=int)
            if int(degree) <= LARGEST_GROUP and degree in inputs.sizes and degree in inputs.seconds[kind]
        )
        self._reduce_seconds = cache(self._uncached_reduce_seconds)
        self.stages, self._update = cache(self._uncached_stages), cache(self._uncached_update)
        """(samples): what stages and their updates take; nothing of it depends on the number of replicas."""

    # ---- one plan, number by number ----

    def seconds(self, pipeline: MixedPipeline) -> float:
        """Seconds of an iteration."""
        own, updates = zip(*(self._own_seconds(pipeline, stage) for stage in range(len(pipeline.ends))), strict=True)
        transfers = self._transfer_seconds(pipeline)
        slowest = max(one + two for one, two in zip(own, transfers, strict=True))
        rounds = self.rounds(pipeline.samples, pipeline.replicas)
        pipelined = (rounds - 1) * slowest + sum(transfers) + sum(own) + max(updates)
        return float(pipelined + self._synchronization_seconds(pipeline))

    def fits(self, pipeline: MixedPipeline) -> bool:
        """Whether every GPU holds what it needs."""
        stages = self.stages(pipeline.samples).deepest
        return all(
            stages[number, layers.start, layers.stop] >= len(pipeline.ends) - stage
            for stage, layers in enumerate(pipeline.ranges)
            for number in set(pipeline.held(stage))
        )

    def _own_seconds(self, pipeline: MixedPipeline, stage: int) -> tuple[float, float]:
        """Seconds of a micro-batch on a stage, and of its update: those of the slowest replica."""
        layers, seconds, updates = pipeline.ranges[stage], [], []
        for number in set(pipeline.held(stage)):
            variant = self.variants[number]
            rows = self.inputs.seconds[self.kinds[variant.kind]][str(pipeline.samples)][str(variant.degree)]
            total = 0.0
            for layer in layers:
                forward, backward, _ = rows[str(layer)]
                total += forward + backward
            seconds.append(total)
            updates.append(rows[str(layers.start)][2])
        return max(seconds), max(updates)

    def _transfer_seconds(self, pipeline: MixedPipeline) -> list[float]:
        """Seconds that each stage sends: activations to the next one, gradients back, each as slow as its slowest replica."""
        stages, last = pipeline.ranges, len(pipeline.ends) - 1
        first_weight, last_weight = self.transfer_weights(last + 1)
        found = []
        for stage, layers in enumerate(stages):
            forth = back = 0.0
            if stage < last:
                size = self._output_bytes[layers.stop - 1] * pipeline.samples
                forth = max(self._sent_seconds(size, *pair) for pair in self._pairs(pipeline, stage, stage + 1))
            if stage > 0:
                size = self._output_bytes[layers.start] * pipeline.samples
                back = max(self._sent_seconds(size, *pair) for pair in self._pairs(pipeline, stage, stage - 1))
            if 0 < stage < last:
                found.append(forth + back)
            else:
                found.append(last_weight * back if stage == last else first_weight * forth)
        return found

    def _synchronization_seconds(self, pipeline: MixedPipeline) -> float:
        """Seconds of the all-reduces: of the slowest stage, each as slow as its slowest pair of neighbours."""
        slowest = 0.0
        for stage, layers in enumerate(pipeline.ranges):
            variants = [self.variants[number] for number in pipeline.held(stage)]
            degree = min(LARGEST_GROUP, *(one.degree for one in variants))
            size = sum(self._weight_bytes[layer] / degree for layer in layers)
            for one, two in set(pairwise(one.kind for one in variants)):
                slowest = max(slowest, self._reduce_seconds(size, pipeline.replicas, one, two))
        return slowest

    def _pairs(self, pipeline: MixedPipeline, one: int, two: int) -> set[tuple[int, int]]:
        """Variants of the replicas of two stages that send to each other."""
        return set(zip(pipeline.held(one), pipeline.held(two), strict=True))

    def _sent_seconds(self, size: float, sender: int, receiver: int) -> float:
        one, two = self.variants[sender], self.variants[receiver]
        return float(_seconds(size, self._network(one.kind, one.degree, two.kind, two.degree)))

    def _network(self, kind: int, degree: int, other: int, others: int) -> Sequence[float]:
        """Coefficients of the rate between two groups."""
        return self.inputs.network[self.kinds[kind]][str(degree)][ZONE][self.kinds[other]][str(others)][0]

    def _uncached_reduce_seconds(self, size: float, replicas: int, one: int, two: int) -> float:
        total, rate = 0.0, self._network(one, 1, two, 1)
        while size > 0 and replicas > 1:
            bucket = min(size, BUCKET_BYTES)
            total += 2 * (replicas - 1) * _seconds(bucket / replicas, rate)
            size -= bucket
        return total

    @cached_property
    def _output_bytes(self) -> list[float]:
        return [self.inputs.sizes["1"][str(layer)].act_output_floats * ELEMENT_BYTES for layer in range(self.layers)]

    @cached_property
    def _weight_bytes(self) -> list[float]:
        return [self.inputs.sizes["1"][str(layer)].params_floats * ELEMENT_BYTES for layer in range(self.layers)]

    # ---- the space ----

    def replicas(self, samples: int) -> Sequence[int]:
        """Numbers of replicas, any of them: the last micro-batch of a replica may be cut short."""
        return range(1, sum(self.devices) + 1)

    def rounds(self, samples: int, replicas: int) -> int:
        """Micro-batches that each replica runs in an iteration."""
        return ceil(self.batch / (samples * replicas))

    def transfer_weights(self, stages: int) -> tuple[float, float]:
        """A middle stage sends both ways; the ends count their one way twice, but the first of up to three stages."""
        return 1.0 if stages <= 3 else 2.0, 2.0

    def in_flight(self, samples: int, replicas: int, ahead: int) -> int:
        """Micro-batches in flight: one for each stage from it to the last, however many there are."""
        return ahead

    def _uncached_stages(self, samples: int) -> StageVariants:
        shape, sides = (len(self.variants), *[self.layers + 1] * 2), (self.layers + 1, *[len(self.variants)] * 2)
        seconds = np.full(shape, np.inf)
        deepest = np.zeros(shape, dtype=np.int64)
        forward, backward = np.zeros(sides), np.zeros(sides)
        for number, variant in enumerate(self.variants):
            passes = self._passes(variant, samples)
            if passes is not None:
                for begin in range(self.layers):
                    seconds[number, begin, begin + 1 :] = np.cumsum(passes[begin:, 0] + passes[begin:, 1])
                deepest[number] = self._deepest(variant, samples)
            for other in range(len(self.variants)):
                for cut in range(1, self.layers):
                    outputs = self._output_bytes[cut - 1 : cut + 1]
                    forward[cut, number, other] = self._sent_seconds(outputs[0] * samples, number, other)
                    backward[cut, number, other] = self._sent_seconds(outputs[1] * samples, other, number)
        return StageVariants(seconds, deepest, forward, backward)

    def _passes(self, variant: Variant, samples: int) -> Floats | None:
        """Forward, backward and update of each layer, [layers, 3]; None where none was measured."""
        rows = self.inputs.seconds[self.kinds[variant.kind]].get(str(samples), {}).get(str(variant.degree))
        return None if rows is None else np.array([rows[str(layer)] for layer in range(self.layers)])

    def shared(self, replicas: int, sets: Sequence[Sequence[int]]) -> Floats:
        """None."""
        return np.zeros((len(sets), len(sets)))

    def update(self, samples: int, replicas: int) -> Floats:
        """Seconds of updates, each those of the stage's first layer, whatever the number of replicas."""
        return self._update(samples)

    def _uncached_update(self, samples: int) -> Floats:
        found = np.zeros((len(self.variants), *[self.layers + 1] * 2))
        for number, variant in enumerate(self.variants):
            passes = self._passes(variant, samples)
            if passes is not None:
                found[number, :-1] = passes[:, 2:]
        return found

    def deepest(self, samples: int, replicas: int) -> Integers:
        """Micro-batches in flight as in `stages`, whatever the number of replicas."""
        return self.stages(samples).deepest

    def _deepest(self, variant: Variant, samples: int) -> Integers:
        """Micro-batches in flight with which stages fit, [layers + 1, layers + 1]."""
        rows = self.inputs.sizes[str(variant.degree)]
        layers = [rows[str(layer)] for layer in range(self.layers)]
        held = [(one.params_floats, one.act_mem_floats) for one in layers]
        weights, kept = np.concatenate([[[0, 0]], np.cumsum(held, axis=0)]).T
        state = (weights[None, :] - weights[:, None]) * STATE_BYTES
        stash = (kept[None, :] - kept[:, None]) * samples * ELEMENT_BYTES
        memory = MEMORY_GIB[self.kinds[variant.kind]] * GIB
        found = np.zeros(state.shape, dtype=np.int64)
        for flight in range(1, self.layers + 1):
            fits = state + stash * flight + RUNTIME_BYTES[variant.degree > 1] <= memory
            found[fits & (stash > 0)] = flight
        return found

    def synchronization(self, samples: int, replicas: int, sets: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """Least seconds of each set: replicas of each kind have one of another kind beside them; all are reduced in the end."""
        found, longer = np.zeros((2, len(sets), self.layers + 1, self.layers + 1))
        if replicas == 1:
            return found, longer
        known: dict[tuple[int, int, int], Floats] = {}
        for place, members in enumerate(sets):
            kinds = [self.variants[number].kind for number in members]
            degree = min(LARGEST_GROUP, *(self.variants[number].degree for number in members))
            slowest = np.zeros(found.shape[1:])
            for kind in kinds:
                others = [other for other in kinds if other != kind] or [kind]
                pairs = [pair for other in others for pair in ((kind, other), (other, kind))]
                for pair in pairs:
                    if (*pair, degree) not in known:
                        known[*pair, degree] = self._reduced_ranges(degree, replicas, *pair)
                slowest = np.maximum(slowest, np.min([known[*pair, degree] for pair in pairs], axis=0))
            found[place] = slowest
        return found, longer

    def _reduced_ranges(self, degree: int, replicas: int, one: int, two: int) -> Floats:
        """Seconds in which gradients of layers i to j - 1 are reduced in a ring as fast as one pair, [layers + 1] twice."""
        before = np.concatenate([[0], np.cumsum(self._weight_bytes)]) / degree
        left, rate = np.maximum(before[None, :] - before[:, None], 0.0), self._network(one, 1, two, 1)
        total = np.zeros_like(left)
        while (left > 0).any():
            bucket = np.minimum(left, BUCKET_BYTES)
            seconds = 2 * (replicas - 1) * _seconds(np.where(bucket > 0, bucket, 1.0) / replicas, rate)
            total, left = total + np.where(bucket > 0, seconds, 0.0), left - bucket
        return total


def _seconds(size: Any, rate: Sequence[float]) -> Any:
    """Seconds for some bytes, a number or an array, at a rate in GB/s that is a polynomial of the logarithm of MB."""
    logarithm, gigabytes = np.log2(size / 1e6), 0
    for power, coefficient in zip((2, 1, 0), rate, strict=True):
        gigabytes = gigabytes + coefficient * np.power(logarithm, power)
    return (size / 1e9) / gigabytes
