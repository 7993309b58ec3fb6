"""Compiled kernels of PipeDream's dynamic program: one row of a level's table, or all rows of it.

Symbols of the paper (SOSP 2019, section 3.1): A(i..j, m) is the seconds of the slowest stage of the best
pipeline over states i..j with m components of the level below; T(k+1..j, m') is one stage over m' replicas.

Why it is fast. A split after state k with m' replicas in the last stage costs at least T's compute part,
inner / m', and at least the least A(i..k, m'') over m'' <= m - m'. The first bound falls with m' and the second one
rises, so only a short run of m' can beat the best value known, and for most k it is empty; its beginning is found by
bisection where the all-reduce is slow. The first value known is that of the split that was best
one state before. What is skipped could not have been an improvement, so value and plan are those of the plain
recurrence, to the last bit.

Along a chain, at the lowest level, the last stage only gets faster as it begins later, and what is before it slower: for each
m and m' the cuts worth a look are a run, which begins near that of the state before (`_splits_of_a_chain`). Of equally fast
splits the first cut is taken, then the fewest replicas, whichever way they are found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Floats
from planners.estimate.memory import in_flight_bytes
from simulator import kernel

Integers = NDArray[np.int64] | NDArray[np.int32]

RING = 0
SCRIPT = 1
BARRIER = 2


class StateTotals(NamedTuple):
    """Figures of every state, summed over its layers.

    seconds, parameter_bytes, stash_bytes: (states,); output_bytes: (states,), of the cut behind each state
    copy_bytes: see `StateTable`; predecessors, offsets: see `AntichainStates`
    """

    seconds: Floats
    output_bytes: Floats
    parameter_bytes: Floats
    copy_bytes: Floats
    stash_bytes: Floats
    predecessors: Integers
    offsets: Integers


class LevelCosts(NamedTuple):
    """One level of the cluster, with the seconds of slices on the level below.

    workers: components that it joins; below: those that the level below joins, 1 on the lowest
    straight: no stage has a second replica; transfers: activations take time between stages
    inner: (rows, states), seconds of a slice i..j on one component of this level, by j; row i is without a limit of memory, which
    only takes plans away; (0, 0) at the lowest level, where it is the difference of `StateTotals.seconds`
    context: (workers + 1, workers + 1), index of how much is downstream of a last stage with m' of m workers, at [m, m']
    row: (contexts, states), the row of `inner` of slices that begin at i in a context
    most: seconds of the whole network's pipeline above which slices need not be told apart; infinite where all are needed
    before, behind: `fewest_workers` within it, int64 [states + 1] each
    """

    workers: int
    below: int
    straight: bool
    transfers: bool
    bandwidth: float
    collective_bandwidth: float
    inner: Floats
    context: Integers
    row: Integers
    most: float
    before: Integers
    behind: Integers


class VersionMemory(NamedTuple):
    """The memory that a stage must fit into.

    capacity: bytes; tested: whether at this level
    outer_numerator / outer_denominator: components downstream of this one, per replica of the stage it is in
    fixed: copies of the weights beside their versions; replicated: further ones of a stage with replicas
    recompute: a stage keeps its input alone and runs forward again
    """

    capacity: float
    tested: bool
    outer_numerator: int
    outer_denominator: int
    fixed: float
    replicated: float
    recompute: bool


class RowTables(NamedTuple):
    """A(i..j, m) of all slices with one first state i, (states, workers + 1) each.

    floor: running minimum of `best` over m
    split, last: int32; last state before the last stage (-1: one stage), and its replicas
    """

    best: Floats
    floor: Floats
    split: NDArray[np.int32]
    last: NDArray[np.int32]


# Bounds are compared with this slack, so that a rounding error in a bound never hides a candidate.
_SLACK = 1.0 - 1e-12

# Seconds: the least number whose inverse is one, too.
_LEAST = 1e-300


@kernel(error_model="numpy", borrows=True)
def held_copies(copy_bytes: Floats, start: int, last: int) -> float:
    """Bytes of shared weights that the stage of states [start, last] holds beside its own; see `StateTable.copy_bytes`."""
    return float(copy_bytes[start, last]) if copy_bytes.size > 0 else 0.0


@kernel(error_model="numpy", borrows=True)
def synchronization_seconds(form: int, parameter_bytes: float, bandwidth: float, replicas: int) -> float:
    """Seconds of the gradient all-reduce of one stage, before the division by `replicas`."""
    if form == SCRIPT:
        return (4.0 * (replicas - 1) * parameter_bytes) / (bandwidth * replicas)
    return 2.0 * (replicas - 1) / replicas * (parameter_bytes / bandwidth)


@kernel(error_model="numpy", borrows=True)
def stage_seconds(form: int, inner_seconds: float, synchronization: float, replicas: int) -> float:
    """Seconds per mini-batch of one stage over `replicas`: the script and a barrier add the all-reduce, the paper hides it."""
    if form in (SCRIPT, BARRIER):
        return (inner_seconds + synchronization) / replicas
    return max(inner_seconds, synchronization) / replicas


@kernel(inner=True, error_model="numpy", borrows=True)
def _split_seconds(
    form: int, rest_seconds: float, last_seconds: float, entry_seconds: float, exit_seconds: float, replicas: int
) -> float:
    """Slowest of the rest of the pipeline, its last stage, and the transfers charged to that stage."""
    slowest = max(rest_seconds, last_seconds)
    if form == SCRIPT:
        return max(slowest, entry_seconds / replicas, exit_seconds / replicas)
    return max(slowest, entry_seconds)


class StageCopies(NamedTuple):
    """Copies that a stage keeps on m' of m workers, which it and all stages before it take together; each [m, m'].

    flights: mini-batches in flight; weights: copies of its weights
    """

    flights: Floats
    weights: Floats


@kernel(inner=True, error_model="numpy")
def copies_of(form: int, workers: int, held: VersionMemory) -> StageCopies:
    """Copies that the stages of one component of a level keep; empty if memory is not tested there."""
    if not held.tested:
        return StageCopies(np.empty((0, 0)), np.empty((0, 0)))
    numerator, denominator = held.outer_numerator, held.outer_denominator
    flights = np.zeros((workers + 1, workers + 1))
    weights = np.zeros((workers + 1, workers + 1))
    for total in range(1, workers + 1):
        for replicas in range(1, total + 1):
            downstream = (workers - total) * denominator + numerator * workers
            if form == SCRIPT:
                versions = -((total - workers) // replicas)
                flights[total, replicas], weights[total, replicas] = versions, versions
            else:
                # Downstream workers per replica, rounded up, are the warm-up forwards; one more version is in use.
                versions = 1 - ((-downstream) // (replicas * denominator))
                flights[total, replicas] = versions
                alone = replicas == workers and numerator == 0  # one stage: plain data parallelism
                more = 0.0 if replicas == 1 or alone else held.replicated
                weights[total, replicas] = versions + held.fixed + more
    return StageCopies(flights, weights)


@kernel(inner=True, error_model="numpy", borrows=True)
def stage_bytes(
    held: VersionMemory, copies: StageCopies, total: int, replicas: int, stash: float, parameters: float, entry: float
) -> float:
    """Bytes on a device of a stage; 0 if memory is not tested (hot loops test this themselves).

    stash, entry: bytes per mini-batch; parameters: bytes of its weights
    """
    if not held.tested:
        return 0.0
    kept = in_flight_bytes(held.recompute, copies.flights[total, replicas], stash, entry)
    return float(kept + copies.weights[total, replicas] * parameters)


@kernel(inner=True, error_model="numpy", borrows=True)
def _position(predecessors: Integers, offsets: Integers, inner: int, outer: int) -> int:
    """Index of the first state from `inner` on in the rising list of states inside `outer`."""
    low, high = offsets[outer], offsets[outer + 1]
    while low < high:
        middle = (low + high) // 2
        if predecessors[middle] < inner:
            low = middle + 1
        else:
            high = middle
    return int(low)


@kernel(inner=True, error_model="numpy", borrows=True)
def _is_inside(predecessors: Integers, offsets: Integers, inner: int, outer: int) -> bool:
    position = _position(predecessors, offsets, inner, outer)
    return bool(position < offsets[outer + 1] and predecessors[position] == inner)


@kernel(inner=True, error_model="numpy", borrows=True)
def _next_replicas(
    form: int, inner_seconds: float, parameters: float, bandwidth: float, replicas: int, most: int, value: float
) -> int:
    """The next count after `replicas` at which a stage is faster than `value`, most + 1 if there is none.

    From 2 replicas on a stage gets faster with each more, so bisection finds it.
    """
    low, high = replicas + 1, most + 1
    if replicas < 2:
        return low
    while low < high:
        middle = (low + high) // 2
        synchronization = synchronization_seconds(form, parameters, bandwidth, middle)
        if stage_seconds(form, inner_seconds, synchronization, middle) * _SLACK < value:
            high = middle
        else:
            low = middle + 1
    return low


@kernel(inner=True, error_model="numpy", borrows=True)
def _fewest_replicas(form: int, compute: float, parameters: float, bandwidth: float, most: int, value: float) -> int:
    """The fewest replicas, at most `most`, with which a stage is no slower than `value`, but for rounding; most + 1: none."""
    above = np.nextafter(value, np.inf)
    for replicas in range(max(1, int(compute * _SLACK / above)), most + 1):
        synchronization = synchronization_seconds(form, parameters, bandwidth, replicas)
        if stage_seconds(form, compute, synchronization, replicas) * _SLACK < above:
            return replicas
        if replicas > 1:
            return _next_replicas(form, compute, parameters, bandwidth, replicas, most, above)
    return most + 1


@kernel(error_model="numpy")
def fewest_workers(form: int, network: StateTotals, level: LevelCosts) -> tuple[Integers, Integers]:
    """Lower bounds on the workers of any pipeline of a level within `LevelCosts.most` seconds, each int64 [states + 1].

    The first: for the states before each one; the second: for those from each one on; workers + 1: more than there are. Memory is
    left out, and that every worker has a place.
    """
    workers, most, states = level.workers, level.most, len(network.seconds)
    replicas, lowest = 1 if level.straight else workers, level.inner.shape[1] == 0
    before, behind = np.full(states + 1, workers + 1), np.full(states + 1, workers + 1)
    before[0], behind[states] = 0, 0
    needed = np.full((states, states), workers + 1, dtype=np.int32)  # of the stage of states [first, last]
    for last in range(states):
        for position in range(network.offsets[last] - 1, network.offsets[last + 1]):
            first, compute, parameters = 0, network.seconds[last], network.parameter_bytes[last]
            if position >= network.offsets[last]:
                cut = network.predecessors[position]
                if level.transfers and 2.0 * network.output_bytes[cut] / level.bandwidth * _SLACK > most:
                    continue
                first = cut + 1
                compute, parameters = compute - network.seconds[cut], parameters - network.parameter_bytes[cut]
            if not lowest:
                compute = level.inner[first, last]
            least = _fewest_replicas(form, compute, parameters, level.collective_bandwidth, replicas, most)
            if least <= replicas:
                needed[first, last] = least
                before[last + 1] = min(before[last + 1], before[first] + least)
    for first in range(states - 1, -1, -1):
        for last in range(first, states):
            behind[first] = min(behind[first], needed[first, last] + behind[last + 1])
    return before, behind


class _Row(NamedTuple):
    """What splits of one slice of a chain are judged by: the slice's first state, costs of its level, memory, and tables."""

    start: int
    form: int
    network: StateTotals
    level: LevelCosts
    held: VersionMemory
    copies: StageCopies
    sending: Floats
    row: RowTables


@kernel(inner=True, error_model="numpy", borrows=True)
def _last_stage(of: _Row, state: int, total: int, replicas: int, cut: int, value: float) -> float:
    """Seconds of a last stage behind state `cut`; infinite where it is slower than `value`, or too large even if nothing enters
    it.
    """
    network, held = of.network, of.held
    parameters = network.parameter_bytes[state] - network.parameter_bytes[cut]
    if held.tested:
        held_parameters = parameters + held_copies(network.copy_bytes, cut + 1, state)
        stash = network.stash_bytes[state] - network.stash_bytes[cut]
        if stage_bytes(held, of.copies, total, replicas, stash, held_parameters, 0.0) > held.capacity:
            return float(np.inf)
    synchronization = synchronization_seconds(of.form, parameters, of.level.collective_bandwidth, replicas)
    seconds = stage_seconds(of.form, network.seconds[state] - network.seconds[cut], synchronization, replicas)
    return float(seconds) if seconds <= value else float(np.inf)


@kernel(inner=True, error_model="numpy", borrows=True)
def _splits_of_a_chain(of: _Row, state: int, fewest: int, most: int, limit: Floats, begins: Integers) -> None:
    """Write into the tables the splits of the slice up to `state` that are faster than `limit`, float64 [workers + 1].

    fewest, most: numbers of workers to try
    begins: int64 [workers + 1, workers + 1]; cuts of [m, m'] to begin with, and then those at which the last stage is fast enough
    """
    network, held, (best, floor, split, last) = of.network, of.held, of.row
    workers = of.level.workers
    for total in range(fewest, most + 1):
        value = limit[total]
        for replicas in range(1, min(1 if of.level.straight else workers, total - 1) + 1):
            if floor[of.start, total - replicas] > value:
                continue
            cut = begins[total, replicas]
            while cut > of.start and _last_stage(of, state, total, replicas, cut - 1, value) < np.inf:
                cut -= 1
            while cut < state and _last_stage(of, state, total, replicas, cut, value) == np.inf:
                cut += 1
            begins[total, replicas] = cut
            while cut < state:
                rest = floor[cut, total - replicas]
                tied = value == best[state, total] and cut < split[state, total]
                if rest > value or (rest == value and not tied):
                    break  # of later cuts it is as slow
                rest = best[cut, total - replicas]
                seconds = max(rest, _last_stage(of, state, total, replicas, cut, value), of.sending[cut])
                if seconds < value or (seconds == value and tied):
                    fits = True
                    if held.tested and held.recompute:
                        parameters = network.parameter_bytes[state] - network.parameter_bytes[cut]
                        held_parameters = parameters + held_copies(network.copy_bytes, cut + 1, state)
                        stash, entry = network.stash_bytes[state] - network.stash_bytes[cut], network.output_bytes[cut]
                        needed = stage_bytes(held, of.copies, total, replicas, stash, held_parameters, entry)
                        fits = needed <= held.capacity
                    if fits:
                        value = seconds
                        best[state, total], split[state, total], last[state, total] = seconds, cut, replicas
                cut += 1


class RowSlices(NamedTuple):
    """Slices of states that begin at `start` and end before `stop`; those that end before `begin` are known already."""

    start: int
    begin: int
    stop: int


@kernel(error_model="numpy")
def solve_row(
    form: int, slices: RowSlices, network: StateTotals, level: LevelCosts, held: VersionMemory, row: RowTables
) -> None:
    """Fill `row` with A(start..j, m) for every j in [begin, stop) and m in 1..workers; it has those before `begin` already.

    Values above `LevelCosts.most`, and those that no pipeline over [start, stop) has within it, may be missing.
    """
    start, begin, stop = slices
    seconds, output_bytes, parameter_bytes, copy_bytes, stash_bytes, predecessors, offsets = network
    workers, below, straight, transfers, bandwidth, collective_bandwidth, inner, context, row_of = level[:9]
    most_seconds, before, behind = level[9:]
    best, floor, split, last = row
    states = seconds.shape[0]
    lowest = inner.shape[1] == 0
    most_replicas = 1 if straight else workers
    base_seconds = seconds[start - 1] if start > 0 else 0.0
    base_parameters = parameter_bytes[start - 1] if start > 0 else 0.0
    base_stash = stash_bytes[start - 1] if start > 0 else 0.0
    copies = copies_of(form, workers, held)
    fewest = StageCopies(copies.flights, copies.weights - held.replicated)
    sending = 2.0 * output_bytes / bandwidth if transfers else np.zeros(states)

    # Where a stage may end: states that hold state start-1. The official script also takes states that do not, a
    # slip that is kept: on branching graphs its figures cannot be reproduced without.
    allowed = np.zeros(states, dtype=np.bool_)
    for state in range(start, stop):
        if form == SCRIPT or start == 0:
            allowed[state] = True
        else:
            allowed[state] = _is_inside(predecessors, offsets, start - 1, state)

    chain = lowest and form != SCRIPT
    for state in range(states):
        chain = chain and offsets[state + 1] - offsets[state] == state
    of = _Row(start, form, network, level, held, copies, sending, row)
    begins = np.full((workers + 1, workers + 1), start)

    for state in range(begin, stop):
        best[state, :] = np.inf
        floor[state, :] = np.inf
        split[state, :] = -1
        last[state, :] = 0
        if not allowed[state]:
            continue

        # The whole slice as one stage.
        parameters = parameter_bytes[state] - base_parameters
        held_parameters = parameters + held_copies(copy_bytes, start, state)
        stash = stash_bytes[state] - base_stash
        for total in range(1, most_replicas + 1):
            entry = output_bytes[start - 1] if start > 0 else 0.0
            if stage_bytes(held, copies, total, total, stash, held_parameters, entry) > held.capacity:
                continue
            whole = seconds[state] - base_seconds if lowest else inner[row_of[context[total, total], start], state]
            synchronization = synchronization_seconds(form, parameters, collective_bandwidth, total)
            if form == SCRIPT:
                synchronization /= below
            best[state, total] = stage_seconds(form, whole, synchronization, total)
            last[state, total] = total

        # A shorter pipeline over start..cut, then a last stage over the rest.
        exit_seconds = 0.0
        if form == SCRIPT and state < states - 1:
            exit_seconds = sending[state]

        # Workers with which neither what is before nor what is behind the state takes more than `most_seconds`.
        least_total, most_total = max(2, before[state + 1]), workers - behind[state + 1]

        # The split that was best for the state before is good here too: nothing slower needs a look.
        limit = np.minimum(best[state], most_seconds)
        for total in range(least_total, most_total + 1) if state > start else range(0):
            cut, replicas = split[state - 1, total], last[state - 1, total]
            if cut < 0 or not _is_inside(predecessors, offsets, cut, state):
                continue
            parameters = parameter_bytes[state] - parameter_bytes[cut]
            held_parameters = parameters + held_copies(copy_bytes, cut + 1, state)
            stash = stash_bytes[state] - stash_bytes[cut]
            if stage_bytes(held, copies, total, replicas, stash, held_parameters, output_bytes[cut]) > held.capacity:
                continue
            tail = seconds[state] - seconds[cut] if lowest else inner[row_of[context[total, replicas], cut + 1], state]
            synchronization = synchronization_seconds(form, parameters, collective_bandwidth, replicas)
            entry_seconds = sending[cut]
            candidate = _split_seconds(
                form,
                best[cut, total - replicas],
                stage_seconds(form, tail, synchronization, replicas),
                entry_seconds,
                exit_seconds,
                replicas,
            )
            limit[total] = min(limit[total], np.nextafter(candidate, np.inf))

        windowed = chain and state - start > 2 * workers  # else there are fewer cuts than counts of replicas
        if windowed:
            _splits_of_a_chain(of, state, least_total, most_total, limit, begins)
        inverse = 1.0 / np.maximum(limit, _LEAST)  # of a limit next to 0 it is finite: no bound of 0 becomes 0 / 0
        longest = 0.0  # last stage that is worth a look for some count of workers
        for total in range(least_total, most_total + 1):
            longest = max(longest, limit[total] * (total - 1))
        first = offsets[state + 1] if windowed else _position(predecessors, offsets, start, state)
        for position in range(first, offsets[state + 1]):
            cut = predecessors[position]
            if not allowed[cut]:
                continue
            shortest = seconds[state] - seconds[cut] if lowest else inner[cut + 1, state]
            entry_seconds = sending[cut]
            bound = max(shortest, exit_seconds)
            if form == SCRIPT:
                bound = max(bound, entry_seconds)
            bound *= _SLACK
            if bound >= longest:
                continue
            parameters = parameter_bytes[state] - parameter_bytes[cut]
            held_parameters = parameters + held_copies(copy_bytes, cut + 1, state)
            stash = stash_bytes[state] - stash_bytes[cut]
            best_cut, floor_cut = best[cut], floor[cut]
            for total in range(least_total, most_total + 1):
                value = limit[total]
                if floor_cut[total - 1] >= value or bound >= value * (total - 1):
                    continue
                if form != SCRIPT and entry_seconds >= value:
                    continue
                replicas = int(bound * inverse[total]) + 1  # fewer cannot do the compute part in time
                most = min(most_replicas, total - 1)
                if held.tested:
                    least = stage_bytes(held, fewest, total, most, stash, parameters, output_bytes[cut])
                    if least > held.capacity:
                        continue  # fewer replicas keep more versions
                while replicas <= most and floor_cut[total - replicas] < value:
                    synchronization = synchronization_seconds(form, parameters, collective_bandwidth, replicas)
                    last_seconds = stage_seconds(form, shortest, synchronization, replicas)
                    if last_seconds * _SLACK >= value:
                        replicas = _next_replicas(
                            form, shortest, parameters, collective_bandwidth, replicas, most, value
                        )
                        continue
                    if best_cut[total - replicas] < value and (
                        not held.tested
                        or stage_bytes(held, copies, total, replicas, stash, held_parameters, output_bytes[cut])
                        <= held.capacity
                    ):
                        if not lowest and row_of[context[total, replicas], cut + 1] > cut + 1:
                            tail = inner[row_of[context[total, replicas], cut + 1], state]
                            last_seconds = stage_seconds(form, tail, synchronization, replicas)
                        candidate = _split_seconds(
                            form, best_cut[total - replicas], last_seconds, entry_seconds, exit_seconds, replicas
                        )
                        if candidate < value:
                            value = candidate
                            limit[total] = value
                            inverse[total] = 1.0 / max(value, _LEAST)
                            best[state, total] = value
                            split[state, total] = cut
                            last[state, total] = replicas
                    replicas += 1
        running = np.inf
        for total in range(1, workers + 1):
            running = min(running, best[state, total])
            floor[state, total] = running


@kernel(error_model="numpy")
def solve_all_rows(form: int, network: StateTotals, level: LevelCosts, held: VersionMemory) -> Floats:
    """A(i..j, workers) for every i and j, (states, states); infinite where there is no such slice or none fits.

    Only one row's table is alive at a time: memory is states^2 numbers, not states^2 times workers.
    """
    states, workers = len(network.seconds), level.workers
    result = np.full((states, states), np.inf)
    row = RowTables(
        np.empty((states, workers + 1)),
        np.empty((states, workers + 1)),
        np.empty((states, workers + 1), dtype=np.int32),
        np.empty((states, workers + 1), dtype=np.int32),
    )
    for start in range(states):
        solve_row(form, RowSlices(start, start, states), network, level, held, row)
        for stop in range(start, states):  # one by one: a slice takes seconds more to compile
            result[start, stop] = row.best[stop, workers]
    return result


@kernel(error_model="numpy")
def furthest_states(form: int, devices: int, network: StateTotals, held: VersionMemory) -> Integers:
    """Upper bound on the last state that the stages of the first m of all devices reach within memory, int64 [devices + 1]; -1:
    none.

    Only for chains, whose stages' weights and stashes only grow with their states. What enters a stage, copies of shared weights
    and further copies of stages with replicas are left out, and so are levels: they only take plans away.
    """
    copies = copies_of(form, devices, held)
    states, furthest = len(network.seconds), np.full(devices + 1, -1)
    for total in range(1, devices + 1):
        furthest[total] = furthest[total - 1]
        for replicas in range(1, total + 1):
            cut, low, high = furthest[total - replicas], furthest[total], states
            parameters = network.parameter_bytes[cut] if cut >= 0 else 0.0
            stash = network.stash_bytes[cut] if cut >= 0 else 0.0
            flights, weights = copies.flights[total, replicas], copies.weights[total, replicas] - held.replicated
            while high - low > 1:
                middle = (low + high) // 2
                kept = in_flight_bytes(held.recompute, flights, network.stash_bytes[middle] - stash, 0.0)
                if kept + weights * (network.parameter_bytes[middle] - parameters) <= held.capacity:
                    low = middle
                else:
                    high = middle
            furthest[total] = low
    return furthest
