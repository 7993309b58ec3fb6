"""Racks: what crosses a spine shares the uplinks of racks, in rates of groups, and on the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hardware_profiles import Cluster, reduce_seconds
from simulator import Layer, OpKind, Plan, Problem, Stage, Workload, simulate
from simulator.costs.plan_costs import StagePlaces
from simulator.plan_replay import build_program
from tests.hardware_profiles.clusters import tree
from tests.simulator.strategies import UnitDevice

TWO = Workload("two", tuple(Layer(f"layer{at}", "linear", 1.0, 1000, 1.0, 1.0) for at in (0, 1)), ((0, 1),))


def test_groups_share_the_uplinks_of_their_racks() -> None:
    """Pairs of devices of two racks, on servers of their own: both cross an uplink of 1 byte/s; those in a rack share nothing."""
    cluster = tree((2, 8), (2, 4), (2, 1))
    problem = Problem(TWO, replace(cluster, devices=(UnitDevice(),) * len(cluster.devices)), 1)

    def seconds(*pairs: tuple[int, int]) -> float:
        stage = Stage((), tuple(device for pair in pairs for device in pair), (2,) * len(pairs))
        return reduce_seconds(StagePlaces(stage, problem, 2, 1).rates(0).context, 1.0)

    assert seconds((0, 4)) == 1.0
    assert seconds((0, 4), (2, 6)) == 2.0
    assert seconds((0, 2), (4, 6)) == seconds((0, 2)) == 0.25
    assert seconds((0, 4), (2, 3)) == 1.0


def bytes_by_level(cluster: Cluster, devices: Sequence[int], widths: Sequence[int], size: float) -> Counter[int]:
    """Bytes that each channel carries while devices all-reduce level by level; widths: parts of each level, innermost first."""
    found, held = Counter[int](), 1
    for width in widths:
        for first in range(len(devices)):
            if first // held % width == 0:
                ring = [devices[first + held * part] for part in range(width)]
                for one, other in zip(ring, [*ring[1:], ring[0]], strict=True):
                    for channel in cluster.route(one, other):
                        found[channel] += 2 * (width - 1) / width * size / held  # type: ignore[assignment]
        held *= width
    return found


@pytest.mark.parametrize("levels", [((2, 8.0), (2, 4.0), (2, 0.5)), ((2, 9.0), (3, 3.0), (2, 0.5), (2, 0.05))])
def test_the_engine_carries_the_bytes_of_all_levels(levels: tuple[tuple[int, float], ...]) -> None:
    """Two stages on the first and second devices of all servers: channels are busy for the bytes told by hand, and where links
    are contended the all-reduces together take at least what the busiest channel needs, which alone they do not.
    """
    cluster = tree(*levels)
    count = len(cluster.devices)
    cluster = replace(cluster, devices=(UnitDevice(1e12),) * count)
    stages = tuple(Stage((at,), tuple(range(at, count, 2))) for at in (0, 1))
    plan, spans = Plan("hand", "gpipe", stages, (count // 2,)), []
    for contention in (True, False):
        problem = Problem(TWO, cluster, count // 2, contention=contention, optimizer="sgd")
        outcome = simulate(problem, plan)
        reductions = outcome.timeline.kind == OpKind.REDUCE
        spans.append(outcome.timeline.end[reductions].max() - outcome.timeline.start[reductions].min())
    _, _, program = build_program(problem, plan)
    carried, told = Counter[int](), Counter[int]()
    for lane, route in enumerate(program.lane_route):
        rows = range(program.lane_offsets[lane], program.lane_offsets[lane + 1])
        for channel, share in zip(route, program.lane_occupancy[lane], strict=True):
            seconds = sum(program.seconds[row] for row in rows)
            carried[channel] += share * seconds * cluster.channels[channel].bandwidth
    for stage in stages:
        told.update(bytes_by_level(cluster, stage.devices, [width for width, _ in levels[1:]], 4000.0))
    assert carried == pytest.approx(told)
    busiest = max(size / cluster.channels[channel].bandwidth for channel, size in told.items())
    assert spans[0] >= busiest * (1 - 1e-9)
    assert spans[1] < busiest
