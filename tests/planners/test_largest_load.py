"""Largest load: placements of small graphs against every placement there is, and by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from math import inf

import numpy as np
import pytest

from planners import DeviceClass, Output, PlacementProblem, least_largest_load
from planners.partitioning.largest_load import PlacedParts


def problem_of(
    edges: list[tuple[int, int]], seconds: list[float], sent: list[float], *others: DeviceClass, rule: str = "sum"
) -> PlacementProblem:
    """Units on two accelerators and others; what unit i sends to all that stand behind it takes sent[i]."""
    units = len(seconds)
    outputs = [Output(unit, tuple(b for a, b in edges if a == unit), sent[unit]) for unit in range(units)]
    classes = (DeviceClass(2, np.array(seconds)), *others)
    none = np.zeros(units)
    return PlacementProblem(tuple(edges), tuple(one for one in outputs if one.readers), classes, none, none, rule)


def load_of(problem: PlacementProblem, units: set[int], kind: int, flights: int) -> float:
    """What a device of a class has to do for a part, infinite if it cannot hold it."""
    device = problem.classes[kind]
    computed = sum(float(device.seconds[unit]) for unit in units)
    received = sum(o.seconds for o in problem.outputs if o.unit not in units and units & set(o.readers))
    sent = sum(o.seconds for o in problem.outputs if o.unit in units and set(o.readers) - units)
    kept = sum(float(problem.held_bytes[unit] + flights * problem.flight_bytes[unit]) for unit in units)
    if kept > device.memory_bytes:
        return inf
    if not device.pays_transfers:
        return computed
    return computed + received + sent if problem.rule == "sum" else max(computed, received, sent)


def brute_force(problem: PlacementProblem) -> float:
    """The least largest load of all orders of the devices and all ways to deal units out along them."""
    devices = [kind for kind, one in enumerate(problem.classes) for _ in range(one.count)]
    least = inf
    for order in set(permutations(devices)):
        for places in product(range(len(order)), repeat=problem.units):
            if any(places[a] > places[b] for a, b in problem.edges):
                continue
            used = sorted(set(places))
            parts = [{unit for unit in range(problem.units) if places[unit] == place} for place in used]
            loads = (
                load_of(problem, part, order[place], len(parts) - number)
                for number, (place, part) in enumerate(zip(used, parts, strict=True))
            )
            least = min(least, max(loads))
    return least


def check(problem: PlacementProblem, found: PlacedParts) -> None:
    """The parts hold every unit once, in the order of the data, on devices that there are, and have the load that is told."""
    place = {unit: number for number, part in enumerate(found.parts) for unit in part.units}
    assert sorted(place) == list(range(problem.units)) == sorted(u for part in found.parts for u in part.units)
    assert all(place[a] <= place[b] for a, b in problem.edges)
    for kind, device in enumerate(problem.classes):
        assert sum(part.device_class == kind for part in found.parts) <= device.count
    loads = [
        load_of(problem, set(part.units), part.device_class, len(found.parts) - number)
        for number, part in enumerate(found.parts)
    ]
    assert max(loads) == pytest.approx(found.largest_load, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_a_placement_is_the_best_of_all(seed: int) -> None:
    """Branching graphs in any numbering, two classes, both rules, bytes in flight: as brute force finds, and proven."""
    rng = np.random.default_rng(seed)
    units = 4 if seed % 2 else 5
    number = rng.permutation(units)
    edges = [(int(number[a]), int(number[b])) for a in range(units) for b in range(a + 1, units) if rng.random() < 0.45]
    seconds = [float(s) for s in rng.integers(0, 9, units)]
    host = DeviceClass(1, np.array([3.0 * s for s in seconds]), pays_transfers=False)
    problem = problem_of(edges, seconds, [float(s) for s in rng.integers(0, 4, units)], host)
    for rule in ("sum", "max"):
        for memory in (inf, 9.0):
            limited = tuple(replace(one, memory_bytes=memory) for one in problem.classes)
            held, flight = rng.integers(0, 4, units).astype(float), rng.integers(0, 2, units).astype(float)
            asked = replace(problem, rule=rule, classes=limited, held_bytes=held, flight_bytes=flight)
            found = least_largest_load(asked)
            expected = brute_force(asked)
            assert (inf if found is None else found.largest_load) == pytest.approx(expected)
            if found is not None:
                check(asked, found)
                assert found.proven
                assert not found.lost


def test_rules_by_hand() -> None:
    """Two units of 4 and 3 with 2 between them: 6 and 5 where transfers add up, 4 where the device does all at once."""
    problem = problem_of([(0, 1)], [4.0, 3.0], [2.0, 0.0])
    added, largest = (least_largest_load(replace(problem, rule=rule)) for rule in ("sum", "max"))
    assert added is not None
    assert largest is not None
    assert (added.largest_load, largest.largest_load) == (6.0, 4.0)


@pytest.mark.parametrize(("rule", "load"), [("sum", 12.0), ("max", 5.0)])
def test_what_comes_in_goes_beside_what_goes_out(rule: str, load: float) -> None:
    """Three units of 4 in a row, 5 s between them: the middle one receives 5 and sends 5; added up, one is best."""
    third = DeviceClass(1, np.array([4.0] * 3))
    found = least_largest_load(problem_of([(0, 1), (1, 2)], [4.0] * 3, [5.0, 5.0, 0.0], third, rule=rule))
    assert found is not None
    assert found.largest_load == load


def test_an_output_is_sent_once_to_a_device() -> None:
    """Two readers on one device: the sender and the receiver pay for the output once each."""
    problem = problem_of([(0, 1), (0, 2)], [5.0, 2.0, 2.0], [1.0, 0.0, 0.0])
    found = least_largest_load(problem)
    assert found is not None
    assert found.largest_load == 6.0


def test_a_host_core_pays_for_no_transfer() -> None:
    """Slow as it is, a core of the host takes what would make an accelerator the slowest."""
    seconds, sent = [4.0, 1.0, 4.0], [1.0, 1.0, 0.0]
    alone = least_largest_load(problem_of([(0, 1), (1, 2)], seconds, sent))
    core = DeviceClass(1, np.array([40.0, 5.0, 40.0]), pays_transfers=False)
    helped = least_largest_load(problem_of([(0, 1), (1, 2)], seconds, sent, core))
    assert alone is not None
    assert helped is not None
    assert (alone.largest_load, helped.largest_load) == (6.0, 5.0)
    assert [part.device_class for part in helped.parts] == [0, 1, 0]


def test_a_unit_stays_where_it_can_run() -> None:
    """Infinite seconds keep a unit off a class; where no class is left there is no placement."""
    core = DeviceClass(1, np.array([9.0, 9.0]), pays_transfers=False)
    found = least_largest_load(problem_of([(0, 1)], [inf, 1.0], [0.0, 0.0], core))
    assert found is not None
    assert [part.device_class for part in found.parts] == [1, 0]
    assert least_largest_load(problem_of([(0, 1)], [inf, 1.0], [0.0, 0.0])) is None


def test_too_many_down_sets_are_not_called_proven() -> None:
    """Of a wide graph a part of the cuts is searched: a placement, a bound below it, and words for what was left out."""
    wide = [(0, middle) for middle in range(1, 8)] + [(middle, 8) for middle in range(1, 8)]
    seconds = [1.0, 3.0, 5.0, 4.0, 2.0, 6.0, 1.0, 4.0, 1.0]
    problem = problem_of(wide, seconds, [0.5] * 8 + [0.0])
    exact, part = least_largest_load(problem), least_largest_load(problem, set_limit=20)
    assert exact is not None
    assert part is not None
    check(problem, part)
    assert exact.proven
    assert not part.proven
    assert "other cuts were not tried" in part.lost
    assert part.lower_bound <= exact.largest_load <= part.largest_load


def test_units_without_work_take_no_time() -> None:
    """The gap above a bound of no seconds is none, or infinite."""
    idle = np.zeros(2)
    found = least_largest_load(PlacementProblem(((0, 1),), (), (DeviceClass(2, idle),), idle, idle))
    assert found is not None
    assert (found.largest_load, found.gap, found.proven) == (0.0, 0.0, True)
    assert replace(found, largest_load=1.0).gap == np.inf


def test_bad_problems_are_refused() -> None:
    """A rule that nobody knows, arrays of other lengths, negative seconds, a class without devices, a circle."""
    problem = problem_of([(0, 1)], [1.0, 1.0], [0.0, 0.0])
    with pytest.raises(ValueError, match="rule of the load must be one of sum, max, got 'mean'"):
        replace(problem, rule="mean")
    with pytest.raises(ValueError, match="one for each of the same 1 or more units"):
        replace(problem, held_bytes=np.zeros(3))
    for seconds in (-1.0, np.nan):
        with pytest.raises(ValueError, match="seconds of units must be numbers >= 0"):
            DeviceClass(1, np.array([0.0, seconds]))
    none = np.zeros(0)
    with pytest.raises(ValueError, match=r"one for each of the same 1 or more units, got shapes {\(0,\)}"):
        PlacementProblem((), (), (DeviceClass(1, none),), none, none)
    with pytest.raises(ValueError, match="at most 20,000 choices by class, got 30,003"):
        replace(problem, classes=(*problem.classes, DeviceClass(10_000, np.ones(2))))
    with pytest.raises(ValueError, match="at least 1 of them, got 0"):
        DeviceClass(0, np.array([1.0]))
    with pytest.raises(ValueError, match=r"nodes must not stand before themselves, these do: \[0, 1, 0\]"):
        least_largest_load(replace(problem, edges=((0, 1), (1, 0))))
