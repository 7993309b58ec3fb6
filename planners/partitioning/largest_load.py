"""Largest load: parts of a graph on devices of several classes, so that the most loaded device has least to do.

In the steady state a pipeline finishes a mini-batch whenever its most loaded device has done its share of one (Tarnawski et al.,
Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section 3; their program `throughput-dp`, whose
search this one restates). A part is the difference of two nested down-sets, so that data flow forward from part to part. Work
that must stay together, such as a layer's forward and backward, is one unit; an output is sent once in and once out, however
many units read it.

    load of a part = seconds of its units, of outputs that come in, of those that go out:
    all added (`sum`), or the largest of the three (`max`), where a device computes, receives and sends at once

Least[D] of the units outside down-set D, by how many devices of each class they take, is the least over larger down-sets E and
classes of max(least[E] without that device, load of E - D). Exact over all down-sets; of too many over a part of them, which the
answer says, with a bound on what any placement can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers
from simulator import down_sets, gap_above, kernel

LOAD_RULES = ("sum", "max")
"""Rules of a part's load: its seconds of computing, receiving and sending added, or the largest of the three."""

SET_LIMIT = 60_000
"""Down-sets above whose number only a part of them is searched."""


MOST_CHOICES = 20_000
"""Choices, at most, of how many devices of each class a part and those behind it take."""

MOST_ENTRIES = 20_000_000
"""Down-sets times choices, at most: with more choices fewer down-sets are searched."""

LIMITS = (1.02, 1.1)
"""Factors on the lower bound: limits on the largest load under which the search is tried before the limit of a known
placement.
"""


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a unit of work. seconds: at each device that has a reader of it, and once at the sender"""

    unit: int
    readers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class DeviceClass:
    """A class of equal devices.

    count: of devices; seconds: float64 [units], of a mini-batch; infinite where such a device cannot run the unit
    pays_transfers: whether outputs take its time; a core of the host, in whose memory they are, has none to pay
    ValueError for a count below 1 or seconds that are no numbers >= 0.
    """

    count: int
    seconds: Floats
    memory_bytes: float = inf
    pays_transfers: bool = True

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a class of devices must have at least 1 of them, got {self.count}")
        if not (self.seconds >= 0).all():
            raise ValueError("seconds of units must be numbers >= 0")


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Units of work to place, and the devices to place them on.

    edges: (unit, unit that stands behind it); rule: of LOAD_RULES
    held_bytes: float64 [units], kept whatever is in flight; flight_bytes: float64 [units], of each mini-batch in flight, which
    are as many as the part's device and those of the parts behind it, up to most_in_flight
    ValueError for an unknown rule, arrays of unlike shapes, or more choices of devices than MOST_CHOICES.
    """

    edges: tuple[tuple[int, int], ...]
    outputs: tuple[Output, ...]
    classes: tuple[DeviceClass, ...]
    held_bytes: Floats
    flight_bytes: Floats
    rule: str = "sum"
    most_in_flight: float = inf

    def __post_init__(self) -> None:
        if self.rule not in LOAD_RULES:
            raise ValueError(f"rule of the load must be one of {', '.join(LOAD_RULES)}, got {self.rule!r}")
        shapes = {array.shape for array in (self.held_bytes, self.flight_bytes, *(one.seconds for one in self.classes))}
        if shapes != {(self.units,)} or not self.units:
            raise ValueError(f"seconds and bytes must be one for each of the same 1 or more units, got shapes {shapes}")
        if self.choices > MOST_CHOICES:
            raise ValueError(f"devices must have at most {MOST_CHOICES:,} choices by class, got {self.choices:,}")

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.held_bytes)

    @property
    def choices(self) -> int:
        """Number of choices of how many devices of each class are taken."""
        return prod(one.count + 1 for one in self.classes)

    @cached_property
    def weights(self) -> Floats:
        """Weight of a second of each class's devices in bounds, float64 [classes]: all devices together weigh 1.

        With weights w_k >= 0 a largest load T satisfies sum over units of min_k w_k seconds_k <= T sum_k count_k w_k, by the
        duality of linear programs; the faster a class, the more its second is worth.
        """
        whole = [float(one.seconds[np.isfinite(one.seconds)].sum()) for one in self.classes]
        speeds = np.array([1.0 / seconds if seconds > 0 else 1.0 for seconds in whole])
        return speeds / float(speeds @ [one.count for one in self.classes])

    @cached_property
    def weighted(self) -> Floats:
        """Least weighted seconds of each unit on any class of devices, float64 [units]."""
        return np.asarray(np.min([w * one.seconds for w, one in zip(self.weights, self.classes, strict=True)], axis=0))

    @property
    def least_load(self) -> float:
        """Lower bound on the largest load, in seconds: all work divided evenly, or the largest unit alone, each where it is
        fastest.
        """
        quickest = np.min([one.seconds for one in self.classes], axis=0)
        return max(float(self.weighted.sum()), float(quickest.max()))


@dataclass(frozen=True, slots=True)
class DevicePart:
    """The units that one device runs. device_class: index in the problem's classes"""

    device_class: int
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlacedParts:
    """A placement: its parts in the order in which data flow, and seconds of its most loaded device.

    lower_bound: seconds below which no placement's largest load is; down_sets: how many were searched, after idle units joined
    others; lost: what was not searched, in words, empty if nothing
    """

    parts: tuple[DevicePart, ...]
    largest_load: float
    lower_bound: float
    down_sets: int
    lost: str = ""

    @property
    def gap(self) -> float:
        """Upper bound on the share by which the largest load exceeds the least possible one; infinite over a bound of 0."""
        return gap_above(self.largest_load, self.lower_bound)

    @property
    def proven(self) -> bool:
        """Whether no placement has a smaller largest load."""
        return self.lower_bound >= self.largest_load


def least_largest_load(problem: PlacementProblem, set_limit: int = SET_LIMIT) -> PlacedParts | None:
    """The placement with the least largest load; None if none fits into memory.

    set_limit: down-sets above whose number only a part of them is searched
    ValueError if edges go in a circle.
    """
    if np.isinf(problem.weighted).any():
        return None  # no device can run some unit
    merged, held = _idle_units_along(problem)
    sets, lost = down_sets(merged.units, merged.edges, min(set_limit, MOST_ENTRIES // problem.choices))
    sets = sets[np.argsort(_quickest(merged, sets), kind="stable")]
    # The nearer a limit is to the bound, the fewer parts are worth a look; what is below the first one that is met is the least.
    # Cuts along one chain of the sets say which limits are of use.
    chain = _PlacementSearch(merged, sets[_chain(sets)]).parts(inf)
    most = inf if chain is None else chain[0]
    limits = [limit for limit in (factor * merged.least_load for factor in LIMITS) if limit < most]
    search = _PlacementSearch(merged, sets)
    found = next(filter(None, map(search.parts, [*limits, most])), chain)
    if found is None:
        return None
    load, parts = found
    whole = tuple(
        DevicePart(one.device_class, tuple(sorted(u for unit in one.units for u in held[unit]))) for one in parts
    )
    return PlacedParts(whole, load, min(load, problem.least_load) if lost else load, len(sets), lost)


def _idle_units_along(problem: PlacementProblem) -> tuple[PlacementProblem, list[list[int]]]:
    """The problem with units that take no seconds and deal with a single other unit joined to that one; and the old units of each
    new one.

    Wherever the other one is, the idle one takes nothing there and saves its transfers: nothing is lost if it has no bytes, or
    where memory can never bind.
    """
    most = problem.held_bytes + problem.flight_bytes * min(
        sum(one.count for one in problem.classes), problem.most_in_flight
    )
    roomy = float(most.sum()) <= min(one.memory_bytes for one in problem.classes)
    works = np.any([one.seconds != 0.0 for one in problem.classes], axis=0)
    idle = ~works if roomy else ~works & (most == 0.0)
    around: list[set[int]] = [set() for _ in range(problem.units)]
    pairs = [*problem.edges, *((output.unit, reader) for output in problem.outputs for reader in output.readers)]
    for one, other in pairs:
        if one != other:
            around[one].add(other)
            around[other].add(one)
    holder = list(range(problem.units))
    waiting = [int(unit) for unit in np.flatnonzero(idle)]
    while waiting:
        unit = waiting.pop()
        if len(around[unit]) == 1:
            (other,) = around[unit]
            holder[unit] = other
            around[other].discard(unit)
            around[unit].clear()
            waiting += [other] if idle[other] else []
    return _merged(problem, holder)


def _merged(problem: PlacementProblem, holder: Sequence[int]) -> tuple[PlacementProblem, list[list[int]]]:
    """The problem with units joined to their holders (`holder[unit]`, the unit itself if nothing holds it), and the old units of
    each new one.
    """

    def last(unit: int) -> int:
        return unit if holder[unit] == unit else last(holder[unit])

    kept = [unit for unit in range(problem.units) if holder[unit] == unit]
    place = {unit: number for number, unit in enumerate(kept)}
    number = [place[last(unit)] for unit in range(problem.units)]
    edges = dict.fromkeys((number[a], number[b]) for a, b in problem.edges if number[a] != number[b])
    outputs = []
    for output in problem.outputs:
        readers = dict.fromkeys(number[reader] for reader in output.readers if number[reader] != number[output.unit])
        if readers and output.seconds > 0:
            outputs.append(Output(number[output.unit], tuple(readers), output.seconds))

    def summed(values: Floats) -> Floats:
        return np.bincount(number, weights=values, minlength=len(kept)).astype(np.float64)

    classes = tuple(replace(one, seconds=summed(one.seconds)) for one in problem.classes)
    held: list[list[int]] = [[] for _ in kept]
    for unit, new in enumerate(number):
        held[new].append(unit)
    return replace(
        problem,
        edges=tuple(edges),
        outputs=tuple(outputs),
        classes=classes,
        held_bytes=summed(problem.held_bytes),
        flight_bytes=summed(problem.flight_bytes),
    ), held


def _chain(sets: Flags) -> list[int]:
    """Rows of a chain of sets, each inside the next, from the first row on."""
    chain = [0]
    for row in range(1, len(sets)):
        if not (sets[chain[-1]] & ~sets[row]).any():
            chain.append(row)
    return chain


class _Sets(NamedTuple):
    """Down-sets as the kernel reads them, rows in an order in which a set stands behind all inside it.

    members: uint64 [sets, words], a bit per unit; crosses: bool [sets, outputs], whether an output is made or read on both sides
    crossing, offsets: the outputs that cross set i are crossing[offsets[i]:offsets[i + 1]]
    seconds: float64 [classes, sets], of the set's units; barred: int64 [classes, sets], units that the class cannot run
    quickest: float64 [sets], rising: seconds of the units, each on the class that is quickest
    held, in_flight: float64 [sets], bytes; weighted: float64 [sets], see `PlacementProblem.weighted`
    """

    members: NDArray[np.uint64]
    crosses: Flags
    crossing: NDArray[np.int32]
    offsets: Integers
    quickest: Floats
    seconds: Floats
    barred: Integers
    held: Floats
    in_flight: Floats
    weighted: Floats


class _Outputs(NamedTuple):
    """Outputs as the kernel reads them. spans: uint64 [outputs, words], a bit per unit that makes or reads each; makers: the same
    of its maker alone; seconds: float64 [outputs]
    """

    spans: NDArray[np.uint64]
    makers: NDArray[np.uint64]
    seconds: Floats


class _DeviceClasses(NamedTuple):
    """Classes of devices as the kernel reads them.

    before: int64 [classes, choices], the choice of devices with one less of a class, -1 if it has none
    memory, pays: [classes], see `DeviceClass`
    left: float64 [choices], what the devices outside a choice are worth together
    flights: float64 [choices], mini-batches in flight on the first part on it
    added: whether the rule of the load is `sum`
    """

    before: Integers
    memory: Floats
    pays: Flags
    left: Floats
    flights: Floats
    added: bool


def _packed(rows: Flags) -> NDArray[np.uint64]:
    """Rows of bits as uint64 [rows, words]."""
    padded = np.zeros((rows.shape[0], -(-rows.shape[1] // 64) * 64), dtype=np.bool_)
    padded[:, : rows.shape[1]] = rows
    return np.packbits(padded, axis=1).view(np.uint64)


def _outputs(problem: PlacementProblem) -> _Outputs:
    """The outputs of a problem as the kernel reads them."""
    makers = np.zeros((len(problem.outputs), problem.units), dtype=np.bool_)
    spans = np.zeros_like(makers)
    for row, output in enumerate(problem.outputs):
        makers[row, output.unit] = True
        spans[row, [output.unit, *output.readers]] = True
    return _Outputs(_packed(spans), _packed(makers), np.array([output.seconds for output in problem.outputs]))


def _sets(problem: PlacementProblem, sets: Flags) -> _Sets:
    """Down-sets, bool [sets, units], as the kernel reads them."""
    by_unit = np.ascontiguousarray(sets.T)
    crosses = np.zeros((len(sets), len(problem.outputs)), dtype=np.bool_)
    for column, output in enumerate(problem.outputs):
        inside = by_unit[[output.unit, *output.readers]]
        crosses[:, column] = inside.any(axis=0) & ~inside.all(axis=0)
    offsets = np.concatenate([[0], np.cumsum(crosses.sum(axis=1))])
    seconds = [np.where(np.isfinite(one.seconds), one.seconds, 0.0) for one in problem.classes]
    return _Sets(
        members=_packed(sets),
        crosses=crosses,
        crossing=np.nonzero(crosses)[1].astype(np.int32),
        offsets=offsets,
        quickest=_quickest(problem, sets),
        seconds=np.array([sets @ one for one in seconds]),
        barred=np.array([sets @ np.isinf(one.seconds).astype(np.int64) for one in problem.classes]),
        held=sets @ problem.held_bytes,
        in_flight=sets @ problem.flight_bytes,
        weighted=sets @ problem.weighted,
    )


def _quickest(problem: PlacementProblem, sets: Flags) -> Floats:
    """Seconds of each set's units, each on its quickest class, float64 [sets]; a running sum, so that a set never has less than
    one inside it.
    """
    least = np.min([one.seconds for one in problem.classes], axis=0)
    return np.ascontiguousarray(np.cumsum(np.where(sets, least, 0.0), axis=1)[:, -1])


def _devices(problem: PlacementProblem) -> _DeviceClasses:
    """The classes of devices of a problem as the kernel reads them."""
    counts = [one.count for one in problem.classes]
    strides = [prod(count + 1 for count in counts[:number]) for number in range(len(counts))]
    choices = np.array(
        [
            [n // stride % (count + 1) for n in range(strides[-1] * (counts[-1] + 1))]
            for stride, count in zip(strides, counts, strict=True)
        ]
    )
    numbers = np.arange(choices.shape[1])
    return _DeviceClasses(
        before=np.where(choices > 0, numbers - np.array(strides)[:, None], -1),
        memory=np.array([one.memory_bytes for one in problem.classes]),
        pays=np.array([one.pays_transfers for one in problem.classes]),
        left=problem.weights @ (np.array(counts)[:, None] - choices),
        flights=np.minimum(choices.sum(axis=0), problem.most_in_flight).astype(np.float64),
        added=problem.rule == "sum",
    )


_SLACK = 1.0 + 1e-9
"""Factor on limits, so that rounding rules out no placement."""


@kernel(error_model="numpy", borrows=True)
def _transfers(sets: _Sets, outputs: _Outputs, outer: int, inner: int, part: NDArray[np.uint64]) -> tuple[float, float]:
    """Seconds of what comes in and of what goes out of the units of set `outer` that set `inner` lacks; fills `part` with these
    units.
    """
    words = part.shape[0]
    for word in range(words):
        part[word] = sets.members[outer, word] & ~sets.members[inner, word]
    received, sent = 0.0, 0.0
    for side in range(2):
        one, other = (outer, inner) if side == 0 else (inner, outer)
        for position in range(sets.offsets[one], sets.offsets[one + 1]):
            output = sets.crossing[position]
            if side == 1 and sets.crosses[other, output]:
                continue  # it was counted
            within, beyond, made = False, False, False
            for word in range(words):
                span = outputs.spans[output, word]
                within |= span & part[word] != 0
                beyond |= span & ~part[word] != 0
                made |= outputs.makers[output, word] & part[word] != 0
            if within and beyond:
                if made:
                    sent += outputs.seconds[output]
                else:
                    received += outputs.seconds[output]
    return received, sent


@kernel(error_model="numpy")
def _least_loads(
    sets: _Sets, outputs: _Outputs, devices: _DeviceClasses, limit: float
) -> tuple[Floats, NDArray[np.int32], NDArray[np.int32]]:
    """Least largest load of all units outside each set, on each choice of devices, if below `limit`, and the first part that
    reaches it.

    Returns arrays [sets, choices]: the load; the larger set that ends the first part; the class of its device.
    """
    count, words = sets.members.shape
    classes, choices = devices.before.shape
    least = np.full((count, choices), np.inf)
    larger = np.full((count, choices), -1, dtype=np.int32)
    taken = np.full((count, choices), -1, dtype=np.int32)
    alive = np.zeros(count, dtype=np.bool_)
    part = np.zeros(words, dtype=np.uint64)
    seconds = np.zeros(classes)
    best = np.zeros(choices)
    least[count - 1, 0] = 0.0
    alive[count - 1] = True
    for inner in range(count - 2, -1, -1):
        for choice in range(choices):  # what is inside may be too much for the devices that are left
            hopeless = sets.weighted[inner] > limit * _SLACK * devices.left[choice]
            best[choice] = -np.inf if hopeless else limit
        for outer in range(inner + 1, count):
            if sets.quickest[outer] - sets.quickest[inner] >= limit:
                break
            if not alive[outer]:
                continue
            inside = True
            for word in range(words):
                if sets.members[inner, word] & ~sets.members[outer, word] != 0:
                    inside = False
                    break
            if not inside:
                continue
            promising = False
            for one in range(classes):
                seconds[one] = sets.seconds[one, outer] - sets.seconds[one, inner]
                if seconds[one] >= limit or sets.barred[one, outer] > sets.barred[one, inner]:
                    seconds[one] = np.inf
                    continue
                for choice in range(choices):
                    before = devices.before[one, choice]
                    if before >= 0 and seconds[one] < best[choice] and least[outer, before] < best[choice]:
                        promising = True
                        break
            if not promising:
                continue
            received, sent = _transfers(sets, outputs, outer, inner, part)
            held = sets.held[outer] - sets.held[inner]
            in_flight = sets.in_flight[outer] - sets.in_flight[inner]
            for one in range(classes):
                load = seconds[one]
                if devices.pays[one]:
                    load = load + received + sent if devices.added else max(load, received, sent)
                if load >= limit:
                    continue
                for choice in range(choices):
                    before = devices.before[one, choice]
                    if before < 0 or held + devices.flights[choice] * in_flight > devices.memory[one]:
                        continue
                    value = max(least[outer, before], load)
                    if value < best[choice]:
                        best[choice], larger[inner, choice], taken[inner, choice] = value, outer, one
        for choice in range(choices):
            if larger[inner, choice] >= 0:
                least[inner, choice] = best[choice]
                alive[inner] = True
    return least, larger, taken


class _PlacementSearch:
    """Search of the placements whose parts lie between given down-sets of a problem."""

    def __init__(self, problem: PlacementProblem, sets: Flags) -> None:
        self._members = sets
        self._sets, self._outputs, self._devices = _sets(problem, sets), _outputs(problem), _devices(problem)

    def parts(self, limit: float) -> tuple[float, list[DevicePart]] | None:
        """The least largest load below `limit` and the parts that have it; None if no placement stays below."""
        least, larger, classes = _least_loads(self._sets, self._outputs, self._devices, limit)
        choice = int(np.argmin(least[0]))
        load = float(least[0, choice])
        if not load < limit:
            return None
        parts, inner = [], 0
        while inner < len(self._members) - 1:
            outer, taken = int(larger[inner, choice]), int(classes[inner, choice])
            units = np.flatnonzero(self._members[outer] & ~self._members[inner])
            parts.append(DevicePart(taken, tuple(int(unit) for unit in units)))
            inner, choice = outer, int(self._devices.before[taken, choice])
        return load, parts
