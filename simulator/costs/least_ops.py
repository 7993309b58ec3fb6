"""Least ops: the least that ops of a layer take in every size, however a plan divides the layer; what lower bounds sum.

Parts. A tensor-parallel group of t devices, c parts of the context and k slices each do a part of a layer. What an op of q
samples of such a part takes depends on its FLOP, its elements and its weights alone, and never falls as one of these rises: it
is no less than an op of q / (c k) samples of the layer's share in a group of t. Slices are not alike; for their mean that holds,
too, as seconds are the largest of lines. An op waits for what its group reduces, no less than in the fastest group of t devices
of a server, alone in it. (Nothing is counted of groups over several servers, in servers of more than MOST_TOGETHER devices,
or on links whose likeness is not known.) Of experts that groups divide each device reads its part of the weights for its own
samples, and exchanges them. All stages of a plan have one expert degree; of a range of degrees, the weights are those of the
highest and the exchanges those of the lowest. What takes parts of a layer on a device that is not `sublinear`, or of a
convolution, whose efficiency depends on its channels, is not known: no seconds are counted.

Sizes. The seconds of an accelerator that is `sublinear`, as the GPU and FPGA models are, never fall with the samples of an op,
and those per sample never rise: between two sizes an op takes at least what the smaller takes, and each of its samples at least
what one of the larger does. A measured layer is interpolated: straight pieces, which have both at an end. Of an accelerator that
is not `sublinear` every size is asked, up to MOST_SIZES. Layers of a stage on an FPGA work at the same time, so that only
their multiply-adds count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from hardware_profiles import (
    PRECISION_BYTES,
    Accelerator,
    Cluster,
    Floats,
    Operation,
    Phase,
    Precision,
    Rates,
    Work,
    answered_seconds,
    one_after_the_other,
    reduce_seconds,
    streaming,
)
from simulator.costs.layer_costs import LayerCosts, measured_layer_seconds
from simulator.plans.keys import Kept, kept_with_its_first
from simulator.plans.plan import Problem, expert_degrees
from simulator.workloads.layers import Layer
from simulator.workloads.sequence_slices import slice_of
from simulator.workloads.shares import Parallelism, Share, share_of

MOST_SIZES = 4096
"""Sizes of ops that an accelerator which is not `sublinear` is asked for; of larger batches nothing is known of it."""

MOST_KNOWN = 2**18
"""Seconds that are kept of one cluster, at about 40 bytes each: those of eight networks or batches, used last."""

MOST_TOGETHER = 8
"""Devices of a server up to which all groups of them are looked at, to find the fastest."""

SIZE_STEP, SIZE_STEPS = 1.05, 40
"""Sizes that are looked at, on both sides of the even share of a device: each so many times the one before, and how many."""


class LeastOps(NamedTuple):
    """Ops of one layer on one kind of accelerator, by ranges of sizes: seconds that a sample costs at least, those of all devices
    of a group together, and seconds that an op takes at least; float64 [2, ranges] each.
    """

    forward: Floats
    backward: Floats
    inputs: Floats
    weights: Floats

    def least(self, cost: float, way: float) -> float:
        """Least of `cost` times what a sample costs, forward and back, plus `way` times what its ops take, but those of gradients
        of weights, for which no other op waits.

        One size serves all: where a stage cuts the batch for backwards in another way than for forwards, it runs forwards again.
        """
        both = np.array([cost, way])
        forward, again = both @ self.forward, cost * self.forward[0]
        back = np.minimum(both @ self.backward, both @ self.inputs + cost * self.weights[0])
        return float(min((forward + back).min(), forward.min() + (back + again).min()))


class _Way(NamedTuple):
    """A way to divide a layer: among how many devices, what each of them does, and the sizes that its ops may have.

    reduced: bytes per sample of the tensor that the group reduces; forward, backward: how often in a pass
    exchanged: seconds per sample of exchanges with other experts in a pass
    sizes: some of them, rising, with the ends; dense: all between these, not whole numbers alone
    """

    degree: int
    work: Work
    sizes: Sequence[float]
    dense: bool
    reduced: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    exchanged: float = 0.0


class LeastOpsOf:
    """The least ops of the layers of a problem, under any plan."""

    def __init__(self, problem: Problem, costs: LayerCosts) -> None:
        self.problem, self.costs, cluster = problem, costs, problem.cluster
        self._alone = _known_seconds(cluster)
        self._rates: dict[int, Rates] = {}
        self._known: dict[tuple[int, int, tuple[int, int]], LeastOps] = {}
        self._server = max(map(len, cluster.servers))
        self._most_tensor = self._server if cluster.tensor_groups == "server" else len(cluster.devices)

    @property
    def expert_degrees(self) -> list[tuple[int, int]]:
        """The expert degrees that a plan may have, by ranges: none, up to half of a server's devices, up to all, and beyond."""
        ends = sorted({0, 1, self._server // 2, self._server, len(self.problem.cluster.devices)})
        degrees = expert_degrees(self.problem.workload)
        ranges = [[one for one in degrees if low < one <= high] for low, high in pairwise(ends)]
        return [(one[0], one[-1]) for one in ranges if one]

    @cached_property
    def unlike(self) -> list[tuple[int, int]]:
        """The first of each unlike layers, and how many are like it."""
        layers, moved = self.problem.workload.layers, self._exchanged.tolist()
        alike: dict[Hashable, list[int]] = {}
        for number, look in enumerate(zip(layers, self.costs.works, moved, strict=True)):
            alike.setdefault((replace(look[0], name="", block=0, tied_to=""), *look[1:]), []).append(number)
        return [(numbers[0], len(numbers)) for numbers in alike.values()]

    def of(self, number: int, device: int, experts: tuple[int, int]) -> LeastOps:
        """Those of a layer on a device, under plans whose expert degree is in a range."""
        key = number, device, experts if self.problem.workload.layers[number].experts else (1, 1)
        if key not in self._known:
            self._known[key] = self._of(*key)
        return self._known[key]

    def _of(self, number: int, device: int, experts: tuple[int, int]) -> LeastOps:
        """The same, looked up anew; of a layer whose parts are not known all take no time."""
        problem, accelerator = self.problem, self.problem.cluster.devices[device]
        layer, work = problem.workload.layers[number], self.costs.works[number]
        if layer.measured:
            way = _Way(1, work, sorted({*_ends(layer, problem.batch), *self._sizes(1, 1)}), False)
            return self._ops(
                [way],
                lambda _, phase: np.array([measured_layer_seconds(layer, int(size), phase) for size in way.sizes]),
            )
        if streaming(accelerator):
            smallest = 1.0 / (self._most_tensor * self._parts)
            way = _Way(1, work, (smallest, 1.0), True)
            return self._ops(
                [way],
                lambda _, phase: np.array(way.sizes) * accelerator.multiply_seconds(work, phase, problem.precision),
            )
        if not self._is_known(layer, device, experts[1]):
            return LeastOps(*np.zeros((4, 2, 1)))
        stack, precision = problem.stack, problem.precision_of(layer)
        times = min(map(stack.tensor_collectives.on, problem.cluster.kinds[0]))

        def seconds(way: _Way, phase: Phase) -> Floats:
            own = self._alone.of(device, way.work, way.sizes, phase, precision)
            alone = stack.factor(accelerator, way.work) * own
            if phase == "weight_gradient":
                return alone
            often, rates = times * (way.forward if phase == "forward" else way.backward), self.reductions(way.degree)
            reduced = often * np.array([reduce_seconds(rates, way.reduced * size) for size in way.sizes])
            return np.asarray(alone + reduced + way.exchanged * np.array(way.sizes))

        return self._ops(list(self._ways(number, accelerator.sublinear, experts)), seconds)

    def _ops(self, ways: Sequence[_Way], seconds: Callable[[_Way, Phase], Floats]) -> LeastOps:
        """The ops of a layer that is divided in one of these ways, of which each takes so many seconds in a phase, by size."""

        def of(phase: Phase, times: float) -> Floats:
            return np.hstack([_ranges(way, times * seconds(way, phase)) for way in ways])

        overlap = self.problem.overlap  # a forward and a backward may go on together, a gradient of weights does not
        return LeastOps(
            of("forward", overlap), of("backward", overlap), of("input_gradient", overlap), of("weight_gradient", 1.0)
        )

    def _is_known(self, layer: Layer, device: int, experts: int) -> bool:
        """Whether it is known what parts of a layer take at least, or the layer cannot be divided."""
        accelerator = self.problem.cluster.devices[device]
        if accelerator.sublinear and layer.kind != "convolution":
            return True
        divided = (layer.split and self._most_tensor > 1) or (layer.experts and experts > 1)
        sizes = accelerator.sublinear or self.problem.batch <= MOST_SIZES
        return sizes and not divided and self._parts == 1

    def _ways(self, number: int, sublinear: bool, experts: tuple[int, int]) -> Iterator[_Way]:
        """The ways to divide a layer that take least; of groups of more than MOST_TOGETHER devices one that is none of them, and
        takes less than all.
        """
        problem, layer, work = self.problem, self.problem.workload.layers[number], self.costs.works[number]
        most, parts, (least, largest) = self._most_tensor if layer.split else 1, self._parts, experts

        def share(degree: int) -> Share:
            divided = problem.sequence_parallel
            return share_of(layer, work, degree, expert=largest, sequence_parallel=divided)

        if not sublinear:
            yield _Way(1, work, range(1, problem.batch + 1), False)
        elif most > MOST_TOGETHER:
            lightest = replace(work, parameters=share(most).work.parameters)
            yield _Way(1, lightest, self._sizes(1, most * parts), True)
        else:
            if parts > 1 and share(most).work.parameters == share(1).work.parameters:
                most = 1  # a share of its samples takes no longer than a share of the layer
            for degree in range(1, most + 1):
                own, sizes = share(degree), self._sizes(degree, parts)
                reduced = own.reduced * problem.element_bytes * self._narrowed
                moved = self.exchange_rate(least) * self._exchanged[number] / degree
                yield _Way(degree, own.work, sizes, parts > 1, reduced, own.forward, own.backward, moved)

    def _sizes(self, degree: int, parts: int) -> list[float]:
        """Some sizes of an op of a group, from that of a part of a sample to the batch: more of them near the even share."""
        batch = self.problem.batch
        even = batch * degree / len(self.problem.cluster.devices)
        near = even * SIZE_STEP ** np.arange(-SIZE_STEPS, SIZE_STEPS + 1.0)
        near = np.clip(near if parts > 1 else np.rint(near), 1.0 / parts, batch)
        return sorted({1.0 / parts, *near.tolist(), float(batch)})

    @cached_property
    def _parts(self) -> int:
        """Slices, or parts of the context, that a sample may have."""
        workload = self.problem.workload
        tokens = min((layer.causal_tokens for layer in workload.layers if layer.causal_tokens), default=1)
        try:
            slice_of(workload, 0, tokens)
        except ValueError:
            return 1
        return tokens

    @cached_property
    def _narrowed(self) -> float:
        """What is reduced at least, times its bytes: some of it is gathered as wide as it is multiplied."""
        narrow = PRECISION_BYTES[self.problem.precision] / self.problem.element_bytes
        return min(1.0, narrow) if self.problem.sequence_parallel else 1.0

    def reductions(self, degree: int) -> Rates:
        """Rates of the reductions of the fastest groups of so many devices."""
        if degree not in self._rates:
            self._rates[degree] = tuple(dict.fromkeys(self._rates_of(degree)))
        return self._rates[degree]

    def _rates_of(self, degree: int) -> Iterator[tuple[float, float]]:
        """Rates of groups in one server of each look, as `StagePlaces` has them."""
        if degree == 1 or self.problem.cluster.tensor_groups != "server":
            return
        rates = self.problem.cluster.collectives.rates
        several = (group for server in self._unlike_servers for group in combinations(server, degree))
        for group in {tuple(map(self._links, group)): group for group in several}.values():
            if self.problem.sequence_parallel:
                parts = rates(Operation.REDUCE_SCATTER, group), rates(Operation.ALL_GATHER, group)
                yield from one_after_the_other(*parts)
            else:
                yield from rates(Operation.ALL_REDUCE, group)

    def _links(self, device: int) -> Hashable:
        """Where the links of a device lead, and what they are like: devices with the same may change places."""
        topology, like = self.problem.cluster.topology, self.problem.cluster.collectives.like
        node = topology.nodes[device]
        return tuple(
            [(far, like[topology.hops[node, far]], like[topology.hops[far, node]]) for far in topology.neighbours[node]]
        )

    @cached_property
    def _exchanged(self) -> Floats:
        """Bytes per sample that a device exchanges for each layer where experts are divided, float64 [layers]; those of a group
        send no less together.
        """
        moved = self.costs.at(Parallelism(expert=2)).exchanged_bytes
        return np.asarray(moved.sum(axis=0), dtype=np.float64)

    def exchange_rate(self, degree: int) -> float:
        """Seconds per byte of an exchange among so many devices at least, as `alltoall_rates` has them.

        Each sends every other one its part, over the channels that leave it, and to those of other servers, in a cluster of
        stars, over one of these.
        """
        topology = self.problem.cluster.topology
        devices = [device for server in self._unlike_servers for device in server]
        if degree == 1 or not devices:
            return 0.0

        def rate(channels: Iterable[int]) -> float:
            return sum(topology.channels[one].collective_bandwidths[Operation.ALL_GATHER] for one in channels)

        nodes = [topology.nodes[device] for device in devices]
        leaving = max(rate({topology.hops[node, other] for other in topology.neighbours[node]}) for node in nodes)
        found, outside = (degree - 1) / leaving, degree - self._server
        if outside > 0 and topology.stars:
            first, second = self.problem.cluster.servers[:2]
            far = ((second if device in first else first)[0] for device in devices)
            found = max(
                found, outside / max(rate(topology.route(*pair)[:1]) for pair in zip(devices, far, strict=True))
            )
        return found / degree

    @cached_property
    def _unlike_servers(self) -> list[tuple[int, ...]]:
        """Devices of the first server of each look; none where servers do not tell theirs."""
        cluster = self.problem.cluster
        forms, topology = cluster.collectives.likeness.forms, cluster.topology
        _, places = topology.numbered(topology.depth)
        if not forms:
            return []
        return list({forms[place]: server for place, server in zip(places, cluster.servers, strict=True)}.values())


class _KnownSeconds:
    """Seconds of layers on the devices of one cluster by themselves, which the problems of all stacks ask for."""

    def __init__(self, devices: Sequence[Accelerator]) -> None:
        self._devices = devices
        self._known: Kept[tuple[int, Work, tuple[float, ...], Phase, Precision], Floats] = Kept()

    def of(self, device: int, work: Work, sizes: Sequence[float], phase: Phase, precision: Precision) -> Floats:
        """Of passes of each size, float64 [sizes]."""
        key = device, work, tuple(sizes), phase, precision
        found = self._known.used(key)
        if found is None:
            asked = self._devices[device], work
            found = np.array([answered_seconds(*asked, size, phase, precision) for size in sizes])
            self._known.keep(key, found, MOST_KNOWN)
        return found


@kept_with_its_first
def _known_seconds(cluster: Cluster) -> _KnownSeconds:
    return _KnownSeconds(cluster.devices)


def _ranges(way: _Way, ops: Floats) -> Floats:
    """What a sample costs and what an op takes at least, of ops of each size and of those between two, float64 [2, ranges].

    ops: seconds of an op of each size
    """
    sizes = np.array(way.sizes, dtype=np.float64)
    found = np.array([way.degree * ops / sizes, ops])
    between = np.minimum(found[:, :-1], found[:, 1:])
    return np.hstack([found, between[:, way.dense | (np.diff(sizes) > 1.0)]])


def _ends(layer: Layer, batch: int) -> Iterable[int]:
    """Sizes from 1 to `batch` samples between which a measured layer's seconds are straight pieces: the ends of the range, and
    the whole sizes beside each profiled one.
    """
    sizes = {1, batch}
    for samples, _, _ in layer.measured:
        below = int(samples)
        sizes.update(size for size in (below, below + 1) if 1 <= size <= batch)
    return sizes
