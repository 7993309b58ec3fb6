"""Cluster space: seconds and memory of mixed pipelines of like blocks on the kinds of device of a cluster.

Stages hold whole blocks; the first and the last of them the layers before and behind the run, too. Seconds and bytes of a stage
are those of planner `large`; groups of one kind fill a server side by side. The closed form

    iteration = (M - 1) * max(T + half of its transfers) + sum of T and transfers + update + gradients that are not hidden

with those of weights that the first stage and the last one share, which they reduce together in the end, is what finalists are
replayed for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf

import numpy as np

from hardware_profiles import Floats, Integers, Operation, Rates, reduce_seconds
from planners.estimate.like_blocks import LikeBlocks
from planners.estimate.memory import one_stage_in_flight, state_bytes, two_largest, unit_bytes
from planners.estimate.pipeline_seconds import pipelined
from planners.estimate.replica_traffic import (
    StageWeights,
    beside_traffic,
    gathered_seconds,
    reduced_seconds,
    scattered_seconds,
    unit_seconds,
    update_seconds,
)
from planners.estimate.stage_costs import FIRST, LAST, MIDDLE, ONLY, Line, Pass, StageCosts
from planners.mixed.label_kernels import both_reduced
from planners.mixed.space import MixedPipeline, StageVariants, Variant
from planners.search.remembered import remembered
from simulator import (
    LayerCosts,
    Parallelism,
    Plan,
    Problem,
    Recompute,
    Stage,
    StagePlaces,
    Zero,
    divisors,
    peers_of,
)

MOST_SAMPLES = 64
"""Samples, at most, of a micro-batch per replica."""

Groups = tuple[tuple[int, ...], ...]
"""Groups of devices."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What plans may be made of: degrees of groups, recompute policies, a ZeRO stage, and a number of micro-batches (None: any).

    fewest_replicas: of stages
    buffers: whether stages keep room for a tensor that they send while they are fullest; without it no plan that fits is missed
    """

    degrees: tuple[int, ...]
    policies: tuple[Recompute, ...]
    zero: Zero
    microbatches: int | None = None
    fewest_replicas: int = 1
    buffers: bool = True


class ClusterSpace:
    """The mixed pipelines of a problem on its cluster; a `planners.mixed.space.Space`."""

    waiting = 0.5  # of two transfers a round, one there and one back, a stage waits for one

    def __init__(
        self, problem: Problem, blocks: LikeBlocks, choices: Choices, spare_bytes: Mapping[int, float]
    ) -> None:
        """spare_bytes: bytes that plans leave free on each device of a kind, by the kind's number"""
        self.problem, self.blocks, self.choices, self.spare_bytes = problem, blocks, choices, spare_bytes
        costs = LayerCosts(problem)
        self.kind_of = [costs.kind_of_device(device) for device in range(len(problem.cluster.devices))]
        self.first = [self.kind_of.index(kind) for kind in range(costs.accelerator_kinds)]
        self.devices = tuple(self.kind_of.count(kind) for kind in range(costs.accelerator_kinds))
        self.layers = blocks.count
        begin, end = np.indices((self.layers + 1, self.layers + 1))
        at_end = end == self.layers
        self._blocks = end - begin
        self._place = np.where(begin == 0, np.where(at_end, ONLY, FIRST), np.where(at_end, LAST, MIDDLE))
        self.costs = [StageCosts(problem, blocks, choices.policies, device) for device in self.first]
        self.groups: dict[tuple[int, int], Groups] = {
            (kind, degree): groups
            for kind in range(len(self.devices))
            for degree in choices.degrees
            if (groups := self._groups(kind, degree))
        }
        self.variants = tuple(
            Variant(kind, degree, policy) for kind, degree in self.groups for policy in range(len(choices.policies))
        )
        self._places = {key: self._in_first_server(groups) for key, groups in self.groups.items()}

    def _groups(self, kind: int, degree: int) -> Groups:
        """All groups of `degree` devices of a kind, server by server."""
        held = ([one for one in server if self.kind_of[one] == kind] for server in self.problem.cluster.servers)
        return tuple(tuple(own[at : at + degree]) for own in held for at in range(0, len(own) - degree + 1, degree))

    def _in_first_server(self, groups: Groups) -> StagePlaces:
        """Places of a stage whose replicas are those of these groups that share the first one's server."""
        cluster = self.problem.cluster
        near = [one for one in groups if cluster.server_of(one[0]) == cluster.server_of(groups[0][0])]
        return self._stage_places(near)

    def _stage_places(self, groups: Sequence[tuple[int, ...]]) -> StagePlaces:
        """Places of a stage whose replicas are these groups."""
        devices = tuple(device for group in groups for device in group)
        return StagePlaces(Stage((), devices, tuple(map(len, groups))), self.problem, 1, 1)

    # ---- shapes ----

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of a micro-batch of a replica, rising: divisors of the batch for which some number of replicas is possible."""
        return tuple(one for one in divisors(self.problem.batch) if one <= MOST_SAMPLES and len(self.replicas(one)))

    def replicas(self, samples: int) -> Sequence[int]:
        """Numbers of replicas, rising, that divide the batch into whole micro-batches of so many samples each."""
        rest, count = self.problem.batch // samples, self.choices.microbatches
        fewest, most = self.choices.fewest_replicas, len(self.problem.cluster.devices)
        found = (one for one in divisors(rest) if fewest <= one <= most)
        return [one for one in found if count is None or rest // one == count]

    @property
    def counts(self) -> list[int]:
        """Numbers of micro-batches that the space has, rising."""
        return sorted({self.rounds(samples, one) for samples in self.sizes for one in self.replicas(samples)})

    def rounds(self, samples: int, replicas: int) -> int:
        """Number of micro-batches of an iteration."""
        return self.problem.batch // (samples * replicas)

    def transfer_weights(self, stages: int) -> tuple[float, float]:
        """(1, 1): transfers of the ends count once."""
        return 1.0, 1.0

    def in_flight(self, samples: int, replicas: int, ahead: int) -> int:
        """Number of micro-batches in flight on a stage of 1F1B."""
        return int(one_stage_in_flight(ahead, self.rounds(samples, replicas)))

    # ---- stages ----

    @remembered
    def stages(self, samples: int) -> StageVariants:
        """Seconds and memory of stages, with memory for the most replicas, or for one replica, which divides nothing and needs no
        room for units.
        """
        replicas = self.replicas(samples)
        deepest = np.maximum(*(self.deepest(samples, count) for count in (min(replicas), max(replicas))))
        seconds = [sum(self._passes(number, samples)) for number in range(len(self.variants))]
        forward = np.zeros((self.layers + 1, len(self.variants), len(self.variants)))
        for one, front in enumerate(self.variants):
            for two, behind in enumerate(self.variants):
                forward[1:-1, one, two] = self._transfer_seconds(front, behind, samples)
        of_stages = np.where(self._blocks > 0, np.array(seconds), np.inf)
        return StageVariants(of_stages, deepest, forward, forward)

    @remembered
    def _passes(self, number: int, samples: int) -> tuple[Floats, Floats, Floats]:
        """Seconds of a forward, of a backward, and of what that runs again, of a variant, [layers + 1, layers + 1] each."""
        variant = self.variants[number]
        costs, parallel = self.costs[variant.kind], Parallelism(variant.degree)
        rates = self._places[variant.kind, variant.degree].rates(0)
        asked: list[Pass] = ["forward", "backward", self.choices.policies[variant.policy]]
        forward, backward, again = (self._table(costs.seconds(parallel, rates, samples, one)) for one in asked)
        gather = costs.gather_seconds(parallel, rates, samples)
        begin, end = np.indices(again.shape)
        forward, backward = forward + gather * (begin > 0), backward + gather * (end < self.layers)
        return forward, backward, again

    def update(self, samples: int, replicas: int) -> Floats:
        """Seconds of the optimizer step of all weights, or of a replica's share under ZeRO, [variants, layers + 1, layers +
        1].
        """
        return self._update(replicas if self.choices.zero else 1)

    @remembered
    def _update(self, shares: int) -> Floats:
        """Seconds of the optimizer step of one of `shares` equal shares of the weights, [variants, layers + 1, layers + 1]."""
        lines = [self.costs[one.kind].update_line(Parallelism(one.degree)) for one in self.variants]
        elements = [self._elements(one) / shares for one in self.variants]
        return np.array([update_seconds(own, *line) for own, line in zip(elements, lines, strict=True)])

    def _table(self, line: Line) -> Floats:
        """The figure of a line for stages of blocks i to j - 1, [layers + 1, layers + 1]; 0 where a stage has no block."""
        return np.where(self._blocks > 0, line.own[self._place] + line.block * self._blocks, 0.0)

    def _line(self, variant: Variant) -> Line:
        """Weight elements on a device of a variant, as a line in the stage's blocks."""
        return self.costs[variant.kind].elements(Parallelism(variant.degree))[0]

    def _elements(self, variant: Variant) -> Floats:
        """Weight elements on a device of a variant, [layers + 1, layers + 1]."""
        return self._table(self._line(variant))

    def _units(self, variant: Variant) -> Floats:
        """Units of stages of a variant, as of `StageCosts.units`, [layers + 1, layers + 1, 5]."""
        of_place = self.costs[variant.kind].units(Parallelism(variant.degree), self.layers)
        return np.asarray(of_place[self._place, np.maximum(self._blocks, 0)])

    @remembered
    def deepest(self, samples: int, replicas: int) -> Integers:
        """Most micro-batches in flight with which each stage fits, [variants, layers + 1, layers + 1]; 0 where it does not fit at
        all.
        """
        found, problem = [], self.problem
        for variant in self.variants:
            costs, parallel = self.costs[variant.kind], Parallelism(variant.degree)
            kept, made = (self._table(one) for one in costs.stashes(parallel)[variant.policy])
            elements, zero = self._elements(variant), self.choices.zero
            always = state_bytes(problem, zero, elements, elements, replicas)
            begin, end = np.indices(kept.shape)
            beside = costs.boundary_bytes(parallel) * (end - begin < self.layers) * self.choices.buffers
            always = always + (made + beside) * samples
            if zero < 2 or replicas == 1:
                always = always + self._table(costs.gradients_in_work(parallel)[variant.policy])
            else:
                always = always + float(np.ceil(problem.workspace_bytes))
                always = always + two_largest(self._units(variant)[..., 3:]) * unit_bytes(problem, zero)
            memory = problem.room_bytes(self.first[variant.kind])
            room = memory - self.spare_bytes.get(variant.kind, 0.0) - always
            deepest = np.floor(np.maximum(room, 0.0) / np.maximum(kept * samples, 1.0))
            found.append(
                np.where((begin < end) & (room >= 0.0), np.minimum(deepest, problem.batch), 0).astype(np.int64)
            )
        return np.array(found)

    # ---- transfers ----

    def _transfer_seconds(self, front: Variant, behind: Variant, samples: int) -> float:
        """Seconds of a boundary tensor between blocks from one variant to another, where all groups of a server send at once."""
        latency, bandwidth = self._flow((front.kind, front.degree), (behind.kind, behind.degree))
        size = float(self.costs[front.kind].costs.cut_bytes[self.blocks.before + self.blocks.size]) * samples
        return latency + size / bandwidth

    @remembered
    def _flow(self, front: tuple[int, int], behind: tuple[int, int]) -> tuple[float, float]:
        """Latency in seconds, and bytes per second, of a transfer from groups of one (kind, degree) to those of another.

        They send to another server, or inside the only one; where kinds are in racks of their own, all of a rack send to another
        one.
        """
        degree, cluster = max(front[1], behind[1]), self.problem.cluster
        sending, receiving = self.groups[front], self.groups[behind]
        depth = cluster.topology.parted((sending[0][0], receiving[0][0]))
        one, two = (self._way(groups, depth) for groups in (sending, receiving))
        several = self.problem.contention
        if front[0] == behind[0]:
            two = two[1:] or two
        senders, receivers = one[0], two[0]
        if set(senders) & set(receivers):
            receivers = senders[1:] + senders[:1]
        pairs = [
            (sender[at % len(sender)], receiver[at % len(receiver)])
            for sender, receiver in zip(senders, receivers, strict=False)
            for at in range(degree)
        ][: None if several else degree]
        flow = cluster.flow([pair for pair in pairs if pair[0] != pair[1]] or pairs[:1], 1 / degree)
        return flow.latency, flow.bandwidth

    def _way(self, groups: Groups, depth: int) -> list[Groups]:
        """Groups by the component of the cluster, `depth` levels deep, that they are in."""
        found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for group in groups:
            found.setdefault(self.problem.cluster.topology.places[group[0]][:depth], []).append(group)
        return [tuple(one) for one in found.values()]

    # ---- gradients ----

    def synchronization(self, samples: int, replicas: int, sets: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """Seconds of replicas' traffic that stages wait for, both [sets, layers + 1, layers + 1]: after the last backward, and
        per micro-batch.
        """
        exposed, longer = np.zeros((2, len(sets), self.layers + 1, self.layers + 1))
        if replicas > 1:
            for place, members in enumerate(sets):
                exposed[place], longer[place] = self._synchronized(samples, replicas, members)
        return np.where(self._blocks > 0, exposed, 0.0), np.where(self._blocks > 0, longer, 0.0)

    def _tied_elements(self, degree: int) -> float:
        """Weight elements on a device of a group of the first stage that the last stage holds as well, where that is another
        stage.
        """
        return self.costs[0].tied_elements(Parallelism(degree))

    def shared(self, replicas: int, sets: Sequence[Sequence[int]]) -> Floats:
        """Seconds in which the first and the last stage all-reduce tied weights (an embedding that the loss uses, too), [sets,
        sets]: the most of any two variants of the sets.
        """
        if not self._tied_elements(1):
            return np.zeros((len(sets), len(sets)))
        found = self._tied_seconds(replicas)
        for _ in range(2):
            found = np.array([found[list(members)].max(axis=0) for members in sets]).T
        return np.ascontiguousarray(found)

    @property
    def queued(self) -> float:
        """1 where messages queue, as the same cards carry both reductions; else 0."""
        return float(self.problem.contention)

    @remembered
    def _tied_seconds(self, replicas: int) -> Floats:
        """Seconds of `shared` by variants of the first stage and of the last one, [variants, variants]."""
        of_groups = {(one, other): self._tied_of(one, other, replicas) for one, other in product(self.groups, repeat=2)}
        held = [(one.kind, one.degree) for one in self.variants]
        return np.array([[of_groups[one, other] for other in held] for one in held])

    def _tied_of(self, front: tuple[int, int], behind: tuple[int, int], replicas: int) -> float:
        """Seconds of the all-reduce of tied weights over as many replicas on either side as can be, one at least; inf where there
        is no room for both.

        front, behind: (kind, degree) of the first and the last stage
        """
        for count in (replicas, 1):
            first = self.groups[front][:count]
            used = {device for group in first for device in group}
            last = [group for group in self.groups[behind] if not used.intersection(group)][:replicas]
            if last:
                rings = peers_of([*first, *last])
                size = self._tied_elements(len(rings)) * self.problem.accumulated_bytes
                return reduce_seconds(self.problem.cluster.collectives.rates(Operation.ALL_REDUCE, *rings), size)
        return inf

    def _synchronized(self, samples: int, replicas: int, members: Sequence[int]) -> tuple[Floats, Floats | float]:
        """`synchronization` for one set of variants, [layers + 1, layers + 1] both."""
        problem, zero = self.problem, self.choices.zero
        forward, backward, again = (
            np.max(one, axis=0) for one in zip(*(self._passes(number, samples) for number in members), strict=True)
        )
        # the variant with most of a layer on a device has most to move
        widest = min((self.variants[number] for number in members), key=lambda one: one.degree)
        kinds, tied = (
            tuple((self.variants[one].kind, self.variants[one].degree) for one in members),
            np.zeros_like(forward),
        )
        tied[0, :-1] = tied[1:, -1] = self._tied_elements(widest.degree)
        elements, experts, longer = self._elements(widest), np.zeros(1), np.zeros(1)

        def moved(operation: Operation | Integers, elements: Floats, experts: Floats, size: float, /) -> Floats:
            rates = self._peer_rates(kinds, replicas, Operation(int(operation)))
            return np.asarray(np.min([latency + elements * size * one for latency, one in rates], axis=0))

        if zero < 2:
            front = np.maximum(self._table(replace(self._line(widest), block=0.0)) - tied, 0.0)
            figures = np.maximum(elements - tied, 0.0), experts, front, backward
            exposed = reduced_seconds(problem, moved, *figures, Operation.of_gradients(zero > 0))
        else:
            units, backward = self._units(widest), backward + again
            traffic = unit_seconds(problem, moved, StageWeights(elements, experts, units))
            longer = sum(beside_traffic(forward, backward, *traffic, units[..., 0], zero)) - (forward + backward)
            exposed = scattered_seconds(problem, moved, units, zero, tied)
        if zero in (1, 2):
            exposed = exposed + gathered_seconds(problem, moved, elements, experts)
        return exposed, longer

    @remembered
    def _peer_rates(self, kinds: tuple[tuple[int, int], ...], replicas: int, operation: Operation) -> Rates:
        """Rates of a collective among replicas of several (kind, degree), equally many of each as far as possible."""
        share = -(-replicas // len(kinds))
        groups = [group for key in kinds for group in self.groups[key][:share]][:replicas]
        if len(groups) == 1:
            return ((0.0, 0.0),)
        return self._stage_places(groups).peer_rates(operation)[0]

    # ---- whole pipelines ----

    def seconds(self, pipeline: MixedPipeline) -> float:
        """Seconds of an iteration of a pipeline by the closed form; infinite where servers have no room for its groups."""
        if self._placed(pipeline) is None:
            return np.inf
        table, ranges = self.stages(pipeline.samples), list(pairwise((0, *pipeline.ends)))
        held = [pipeline.held(stage) for stage in range(len(ranges))]
        of_updates, own, update, reduced = self.update(pipeline.samples, pipeline.replicas), [], [], []
        for used, (begin, end) in zip(held, ranges, strict=True):
            members = sorted(set(used))
            exposed, longer = self.synchronization(pipeline.samples, pipeline.replicas, [members])
            own.append(float(table.seconds[members, begin, end].max() + longer[0, begin, end]))
            update.append(float(of_updates[members, begin, end].max()))
            reduced.append(float(exposed[0, begin, end]))
        if len(held) > 1:
            ends = [sorted(set(held[0])), sorted(set(held[-1]))]
            reduced[0] = float(both_reduced(reduced[0], self.shared(pipeline.replicas, ends)[0, 1], self.queued))
        crossing = [
            max(float(table.forward[1, one, two]) for one, two in zip(front, behind, strict=True))
            for front, behind in pairwise(held)
        ]
        ways = [one + two for one, two in zip([0.0, *crossing], [*crossing, 0.0], strict=True)]
        slowest = max(one + self.waiting * way for one, way in zip(own, ways, strict=True))
        rounds = self.rounds(pipeline.samples, pipeline.replicas)
        return pipelined(sum(own) + sum(ways), slowest, rounds) + max(update) + max(reduced)

    def _placed(self, pipeline: MixedPipeline) -> dict[tuple[int, int], tuple[int, ...]] | None:
        """Devices by (stage, replica), large groups first, those of a stage beside each other; None where servers have no
        room.
        """
        free = [list(server) for server in self.problem.cluster.servers]
        placed: dict[tuple[int, int], tuple[int, ...]] = {}
        wanted = [
            (-self.variants[number].degree, stage, replica, self.variants[number])
            for stage in range(len(pipeline.ends))
            for replica, number in enumerate(pipeline.held(stage))
        ]
        for _, stage, replica, variant in sorted(wanted, key=lambda one: one[:3]):
            for server in free:
                own = [device for device in server if self.kind_of[device] == variant.kind][: variant.degree]
                if len(own) == variant.degree:
                    placed[stage, replica] = tuple(own)
                    server[:] = [device for device in server if device not in own]
                    break
            else:
                return None
        return placed

    def plan(self, name: str, pipeline: MixedPipeline) -> Plan:
        """The plan of a pipeline whose groups can be placed. name: of the planner"""
        placed, stages, policies = self._placed(pipeline), [], []
        assert placed is not None  # its seconds are finite
        for stage, (begin, end) in enumerate(pairwise((0, *pipeline.ends))):
            groups = [placed[stage, replica] for replica in range(pipeline.replicas)]
            devices = tuple(device for group in groups for device in group)
            stages.append(Stage(self.blocks.range(begin, end), devices, tuple(map(len, groups))))
            policies.append(self.choices.policies[self.variants[pipeline.held(stage)[0]].policy])
        size, rounds = pipeline.samples * pipeline.replicas, self.rounds(pipeline.samples, pipeline.replicas)
        zero = self.choices.zero
        return Plan(name, "1f1b", tuple(stages), (size,) * rounds, recompute=tuple(policies), zero=zero)
