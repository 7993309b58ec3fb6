"""Rank groups: the devices of a shape's ranks, the links between them, and rates of their collectives.

Groups of a tensor-parallel degree are neighbours; a rank has as many of them, in their order, as there are copies of its weights.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import pairwise, takewhile
from math import gcd

from hardware_profiles import Flow, Operation, Rates
from planners.large.shapes import Shape
from planners.search.candidates import device_groups
from planners.search.remembered import remembered
from simulator import GroupRates, Parallelism, Problem, Stage, StagePlaces


class RankGroups:
    """Groups, links and rates of the shapes of one problem; tables are filled when first needed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._rates: dict[tuple[Parallelism, int], GroupRates] = {}
        self._peers: dict[tuple[int, int, int, Operation], tuple[Rates, Rates]] = {}
        self._queueing: dict[tuple[int, int], bool] = {}
        self._links: dict[tuple[int, int, int, int, int], Flow] = {}
        self._ends: dict[tuple[int, int, int], Rates] = {}
        self._unlike: dict[tuple[int, int, int], dict[int, int]] = {}

    @remembered
    def groups(self, degree: int) -> tuple[tuple[int, ...], ...]:
        """Tensor-parallel groups of `degree` devices, neighbours in a server beside each other."""
        return device_groups(self.problem, degree)

    def rates(self, shape: Shape, *, alone: bool = False) -> GroupRates:
        """Rates of the collectives inside a replica, while the other replicas of its stage in its servers run theirs.

        alone: beside no other replicas but those that divide its experts
        """
        step = shape.expert // gcd(shape.expert, shape.context)
        near = 1 if alone else max(self._in_server, shape.expert * shape.tensor) // (shape.tensor * shape.context)
        replicas = min(shape.data, step * max(1, near // step))
        key = shape.parallel, replicas
        if key not in self._rates:
            self._rates[key] = self._places(shape, replicas).rates(0)
        return self._rates[key]

    def _places(self, shape: Shape, replicas: int) -> StagePlaces:
        """Places of `replicas` replicas of the first rank's stages."""
        parts = self.groups(shape.tensor)[: replicas * shape.context]
        degrees = (shape.tensor * shape.context,) * replicas
        stage = Stage((), tuple(device for part in parts for device in part), degrees)
        return StagePlaces(stage, self.problem, shape.context, shape.expert)

    @cached_property
    def _in_server(self) -> int:
        """Devices of the largest server."""
        return max(map(len, self.problem.cluster.servers))

    def peers(self, shape: Shape, operation: Operation) -> tuple[Rates, Rates]:
        """Rates of a collective among the devices that hold the same weights, and among those that hold the same experts."""
        key = shape.tensor, shape.copies, shape.expert, operation
        if key not in self._peers:
            self._peers[key] = self._places(shape, shape.data).peer_rates(operation)
        return self._peers[key]

    def ends(self, shape: Shape) -> Rates:
        """Rates of an all-reduce over all devices of the first and the last rank that hold the same weights."""
        key = shape.tensor, shape.copies, shape.pipeline
        if key not in self._ends:
            groups = self.groups(shape.tensor)
            held = groups[: shape.copies] + groups[(shape.pipeline - 1) * shape.copies : shape.pipeline * shape.copies]
            rings = list(zip(*held, strict=True))
            self._ends[key] = self.problem.cluster.collectives.rates(Operation.ALL_REDUCE, *rings)
        return self._ends[key]

    def transfers_queue(self, shape: Shape) -> bool:
        """Whether what the first rank sends takes turns on a link with the reductions of its gradients."""
        if not self.problem.contention or shape.pipeline == 1 or shape.copies == 1:
            return False
        key = shape.tensor, shape.copies
        if key not in self._queueing:
            rings = self._places(shape, shape.data).rings
            self._queueing[key] = self.problem.cluster.collectives.allreduces_meet(self.link(shape).route, *rings)
        return self._queueing[key]

    @cached_property
    def fair(self) -> bool:
        """Whether messages share any link fairly, rather than one after the other."""
        return any(one.sharing == "fair" for one in self.problem.channels)

    def link(self, shape: Shape, rank: int = 0, *, alone: bool = False) -> Flow:
        """Latency and bandwidth from a rank to the next, or from the last to the first, while all its replicas in the first one's
        server (or rack that they leave) send at once.

        alone: while only the first replica sends, as it comes to be on links that are not fair
        """
        alone = not self.problem.contention or (alone and not self.fair)
        several = shape.context if alone else shape.copies
        key = shape.tensor, shape.copies, several, rank, (rank + 1) % shape.pipeline
        if key not in self._links:
            self._links[key] = self._link(shape, rank, several)
        return self._links[key]

    def _link(self, shape: Shape, rank: int, several: int) -> Flow:
        """The flow of `link`; several: groups of the rank that may send at once"""
        copies, cluster = shape.copies, self.problem.cluster
        ranks = rank, (rank + 1) % shape.pipeline
        senders, receivers = (self.groups(shape.tensor)[one * copies : (one + 1) * copies] for one in ranks)
        places, depth = cluster.topology.places, cluster.topology.parted((senders[0][0], receivers[0][0]))
        home = places[senders[0][0]][:depth]
        near = takewhile(lambda group: places[group[0]][:depth] == home, senders[:several])
        return cluster.flow([pair for both in zip(near, receivers, strict=False) for pair in zip(*both, strict=True)])

    def unlike_links(self, shape: Shape) -> dict[int, int]:
        """By the first rank of each kind of link to the next rank, the number of links of that kind; kinds differ in what both
        ends share: a server, a rack and so on.
        """
        key = shape.tensor, shape.copies, shape.pipeline
        if key not in self._unlike:
            groups, topology = self.groups(shape.tensor), self.problem.cluster.topology
            firsts = [groups[rank * shape.copies][0] for rank in range(shape.pipeline)]
            kinds = [topology.together(both) for both in pairwise(firsts)]
            self._unlike[key] = {kinds.index(kind): count for kind, count in Counter(kinds).items()}
        return self._unlike[key]

    def parts(self, shape: Shape, rank: int) -> int:
        """Number of servers, or racks and so on, that a pipeline spans, on the level that the transfer from a rank to the next
        crosses.
        """
        groups, topology = self.groups(shape.tensor), self.problem.cluster.topology
        firsts = [groups[one * shape.copies][0] for one in range(shape.pipeline)]
        depth = topology.parted((firsts[rank], firsts[rank + 1]))
        return len({topology.places[first][:depth] for first in firsts})
