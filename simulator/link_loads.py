"""Link loads: the bytes that a plan moves over every link in an iteration, and the part of the iteration that each is busy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles import Cluster, Floats, Operation
from simulator.costs.plan_costs import PlanCosts, peers_of
from simulator.engines.timeline import moves_of
from simulator.lowering.program import Program
from simulator.lowering.unit_lanes import GATHERING, SCATTERING
from simulator.plan_replay import updates_by_minibatch
from simulator.plans.plan import flushes
from simulator.results.text_tables import TextTable
from simulator.schedules.ops import among
from simulator.schedules.schedule import Schedule

MOST_ROWS = 24
"""Rows of a table at most, the busiest links first."""


@dataclass(frozen=True, slots=True)
class CollectiveTraffic:
    """What devices send each other in collectives of one kind.

    rings: groups of devices that run them at once; sent: bytes per sample that all of these devices send together
    """

    rings: tuple[tuple[int, ...], ...]
    sent: float


@dataclass(frozen=True, slots=True, eq=False)
class LinkLoads:
    """What a plan moves over links.

    cluster: whose links
    forth, back: float64 [links], bytes per iteration in each direction; of a half-duplex or a shared medium all that it carries
    busy: float64 [links], the part of the iteration that the busier direction needs at the rate of a lone transfer; more than 1
        where links are not contended and more is moved than they could carry
    """

    cluster: Cluster
    forth: Floats
    back: Floats
    busy: Floats

    def busiest(self) -> list[int]:
        """Links that carry anything, the busiest first."""
        order = np.argsort(-self.busy, kind="stable")
        return [one for one in order.tolist() if self.forth[one] + self.back[one] > 0.0]

    def table(self) -> TextTable:
        """The busiest links, those that carry as much in a row, and how many others carry something."""
        links, found = self.cluster.topology.links, dict[tuple[str, ...], list[int]]()
        for one in (carrying := self.busiest()):
            sizes = (f"{size / 1e6:,.4g}" for size in (self.forth[one], self.back[one]))
            figures = f"{links[one].bandwidth / 1e9:.4g}", *sizes, f"{100 * self.busy[one]:.3g}"
            found.setdefault(figures, []).append(one)
        rows = [
            (str(len(alike)), f"{links[alike[0]].first} – {links[alike[0]].second}", *figures)
            for figures, alike in found.items()
        ]
        more = f"; the busiest {MOST_ROWS} kinds" if len(rows) > MOST_ROWS else ""
        title = f"{len(carrying)} of {len(links)} links carry something in an iteration{more}"
        columns = "links", "such as", "GB/s", "MB forth", "MB back", "busy, %"
        return TextTable(title, columns, tuple(rows[:MOST_ROWS]))

    def record(self) -> list[dict[str, str | float]]:
        """The links that carry anything, the busiest first, in base units."""
        links = self.cluster.topology.links
        return [
            {
                "first": links[one].first,
                "second": links[one].second,
                "bandwidth": links[one].bandwidth,
                "bytes_forth": float(self.forth[one]),
                "bytes_back": float(self.back[one]),
                "busy": float(self.busy[one]),
            }
            for one in self.busiest()
        ]


def link_loads(
    costs: PlanCosts, schedule: Schedule, program: Program, iterations: float, iteration_seconds: float
) -> LinkLoads:
    """The loads of a plan's links; program: with all replicas; iterations: how many of them it has."""
    cluster = costs.problem.cluster
    moved = np.zeros(len(cluster.channels))
    for channels, size in _transfers(costs, program):
        for channel in channels:
            moved[channel] += size / iterations
    for traffic in collective_traffic(costs, schedule):
        for channel, size in _collectives(cluster, traffic):
            moved[channel] += size * costs.problem.batch
    rates = np.array([channel.bandwidth for channel in cluster.channels])
    seconds = moved / rates
    topology = cluster.topology
    ways = np.array(
        [(topology.hops[one.first, one.second], topology.hops[one.second, one.first]) for one in topology.links],
        dtype=np.int64,
    ).reshape(-1, 2)
    busy = seconds[ways].max(axis=1) / iteration_seconds if iteration_seconds else np.zeros(len(ways))
    return LinkLoads(cluster, moved[ways[:, 0]], moved[ways[:, 1]], busy)


def _transfers(costs: PlanCosts, program: Program) -> Iterator[tuple[tuple[int, ...], float]]:
    """Channels and bytes of every message between devices of two stages, among which a boundary is divided."""
    moves, cluster = moves_of(program), costs.problem.cluster
    columns = moves.producer, moves.consumer, program.transfer_bytes[moves.transfer]
    for producer, consumer, size in zip(*(one.tolist() for one in columns), strict=True):
        senders, receivers = (
            costs.places(int(program.stage[task])).groups[int(program.replica[task])] for task in (producer, consumer)
        )
        many, few = max(len(senders), len(receivers)), min(len(senders), len(receivers))
        for one in range(many):
            ends = senders[one * len(senders) // many], receivers[one * len(receivers) // many]
            yield cluster.route(*ends), size * few / many


def _collectives(cluster: Cluster, traffic: CollectiveTraffic) -> Iterator[tuple[int, float]]:
    """Channels and bytes per sample of collectives, as those of all-reduces of large tensors in which as much is sent."""
    by_size: dict[int, list[tuple[int, ...]]] = {}
    for ring in traffic.rings:
        by_size.setdefault(len(ring), []).append(ring)
    members = sum(map(len, traffic.rings))
    for count, rings in by_size.items():
        if count < 2:
            continue
        tensor = traffic.sent / members * count / (2.0 * (count - 1))
        rates = cluster.collectives.rates(Operation.ALL_REDUCE, *rings)
        seconds = tensor * min(per_byte for _, per_byte in rates)
        for channel, share in zip(*cluster.collectives.busy(Operation.ALL_REDUCE, *rings), strict=True):
            yield channel, seconds * share * cluster.channels[channel].bandwidth


def collective_traffic(costs: PlanCosts, schedule: Schedule) -> Iterator[CollectiveTraffic]:
    """What the devices of a plan send in collectives: those of each replica, those of like devices of a stage's replicas on
    weights and gradients, and those of tied weights.

    Where replicas divide weights, every pass is taken to gather all of its stage's.
    """
    problem, plan = costs.problem, costs.plan

    def per_sample(size: float, replicas: Sequence[int]) -> float:
        """Bytes per sample of a reduction that stages with these numbers of replicas run once each has a gradient."""
        samples = (
            problem.batch
            if flushes(plan) or updates_by_minibatch(plan)
            else problem.batch
            / len(plan.microbatches)
            * (math.lcm(*replicas) if plan.replication == "round-robin" else 1)
        )
        return size / samples

    for number in range(len(plan.stages)):
        yield CollectiveTraffic(costs.places(number).groups, costs.inside_bytes(number))
    for number, held in enumerate(plan.stages):
        ops = schedule.kind[schedule.stage == number]
        scatters = np.count_nonzero(among(ops, SCATTERING)) if plan.zero >= 2 else 1
        gathers = np.count_nonzero(among(ops, GATHERING)) if plan.zero == 3 else 1
        scattered = costs.scattered_bytes(number)
        gathered = costs.gathered_bytes(number) if plan.zero else scattered
        sent = per_sample(scattered * scatters + gathered * gathers, (len(held.leads),))
        yield CollectiveTraffic(tuple(costs.places(number).rings), sent)
    for weight, stages in costs.shared_weights:
        groups = costs.groups_of(stages)
        size = 2.0 * (len(groups) - 1) * weight.parameters * problem.accumulated_bytes
        sent = per_sample(size, [len(plan.stages[stage].leads) for stage in stages])
        yield CollectiveTraffic(tuple(peers_of(groups)), sent)
