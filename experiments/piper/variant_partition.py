"""Variant partition: the pipeline of layers with variants whose slowest stage is fastest (see `variant_problem`).

Piper's dynamic program fills a table of down-sets x devices x micro-batches in flight with seconds. Here it is turned round: for
a limit on the seconds of a stage it asks for the fewest devices,

    fewest[D, s] of all layers outside down-set D, on stages whose replicas add up to s
        = min over larger E, degree t, replicas d of fewest[E, s - d] + t d,
          where variants of the layers E - D fit at ceil(s / d) micro-batches in flight and are within the limit,

and the limit is halved in on. Stages that waste more devices than there are to waste are never looked at: with W(D) the
least device-seconds of a sample of D's layers, t d + fewest[E] + W(D) / limit may not exceed the devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.piper.cheapest_variants import NO, YES, Variants, cheapest_variants, fits_within
from experiments.piper.variant_problem import VariantProblem, VariantStage, plan_seconds_per_sample
from hardware_profiles import Flags, Floats, Integers
from simulator import down_sets, gap_above, kernel

SET_LIMIT = 2_000
"""Down-sets from which on only a part of them is searched."""

FIRST_LIMITS = (1.05, 1.2, 1.5, 2.0, 4.0, 16.0)
"""Times the bound of even work: limits that are tried first."""

PRECISION = 1e-11
"""Relative width of the interval around the least limit at which it counts as found: sums of bytes and seconds are rounded."""


_BARELY = 1.0 - 1e-9
"""By which bounds are below what they are compared with, so that rounding hides no stage."""

_NEVER = 1e300
"""Work and bytes of a layer at a degree that it does not have."""


@dataclass(frozen=True, slots=True)
class VariantPlan:
    """Stages from input to output, and seconds per sample of the slowest.

    lower_bound: seconds that no plan is below; lost: what was not searched, empty if nothing
    """

    stages: tuple[VariantStage, ...]
    seconds_per_sample: float
    lower_bound: float
    lost: str = ""

    @property
    def gap(self) -> float:
        """By which share the plan may be above the best one; infinite above a bound of no seconds."""
        return gap_above(self.seconds_per_sample, self.lower_bound)

    @property
    def proven(self) -> bool:
        """Whether no plan is faster, but for rounding."""
        return self.gap <= 2.0 * PRECISION


def fastest_variant_plan(problem: VariantProblem, set_limit: int = SET_LIMIT) -> VariantPlan | None:
    """The plan whose slowest stage is fastest; None if none fits into memory.

    set_limit: down-sets from which on only a part of them is searched
    Raises ValueError if edges go in a circle.
    """
    sets, lost = down_sets(len(problem.layers), list(problem.edges), set_limit)
    search = _VariantSearch(problem, sets)
    stages = next(filter(None, (search.stages(limit)[0] for limit in search.first_limits())), None)
    if stages is None:
        return None
    best = plan_seconds_per_sample(problem, stages)
    low = bound = search.even_seconds
    while best - low > PRECISION * best:
        limit = (low + best) / 2
        found, settled = search.stages(limit)
        seconds = np.inf if found is None else plan_seconds_per_sample(problem, found)
        if found is not None and seconds < best:
            stages, best = found, seconds
            continue
        low = limit
        if found is None and (settled or search.nothing_within(limit)):
            bound = limit
    return VariantPlan(stages, best, min(best, search.even_seconds if lost else bound), lost)


class _Figures(NamedTuple):
    """A problem as the kernels read it.

    degrees: int64 [degrees]; counts: int64 [degrees, layers], variants of a layer, 0 where it has none at that degree
    seconds, weights, flight, held: float64 [degrees, layers, variants]; sent, received: float64 [degrees, edges, variants], bytes
        of an edge that leaves or enters a stage, there and back; edges: int64 [edges, 2]
    members: bool [sets, layers]; outer, offsets: the sets that hold set i are outer[offsets[i]:offsets[i + 1]]
    work: float64 [sets], least device-seconds of a sample; least_work, least_bytes: float64 [degrees, sets], at one degree, and
        least bytes with one micro-batch in flight; widths: replicas that a stage may have, rising
    """

    degrees: Integers
    counts: Integers
    seconds: Floats
    weights: Floats
    flight: Floats
    held: Floats
    sent: Floats
    received: Floats
    edges: Integers
    members: Flags
    outer: Integers
    offsets: Integers
    work: Floats
    least_work: Floats
    least_bytes: Floats
    widths: Integers
    devices: int
    memory: float
    bandwidth: float
    microbatches: int


def _figures(problem: VariantProblem, sets: Flags) -> _Figures:
    most = max(len(variants) for layer in problem.layers for variants in layer.values())
    degrees, edges = problem.degrees, list(problem.edges)
    shape = (len(degrees), len(problem.layers), most)
    counts = np.zeros(shape[:2], dtype=np.int64)
    seconds, weights, flight, held = (np.zeros(shape) for _ in range(4))
    sent, received = (np.zeros((len(degrees), len(edges), most)) for _ in range(2))
    for row, degree in enumerate(degrees):
        for number, layer in enumerate(problem.layers):
            variants = layer.get(degree, ())
            counts[row, number] = len(variants)
            for column, one in enumerate(variants):
                place = row, number, column
                seconds[place], weights[place] = one.seconds, one.weight_bytes
                flight[place], held[place] = one.flight_bytes, one.held_bytes
        for number, (before, behind) in enumerate(edges):
            own = problem.edges[before, behind]
            for column, one in enumerate(problem.layers[before].get(degree, ())):
                sent[row, number, column] = 2.0 * (own + one.sent_bytes.get(behind, 0.0))
            for column, one in enumerate(problem.layers[behind].get(degree, ())):
                received[row, number, column] = 2.0 * (own + one.received_bytes.get(before, 0.0))
    least = [
        min(degree * one.seconds for degree, variants in layer.items() for one in variants) for layer in problem.layers
    ]
    there = np.arange(most) < counts[:, :, None]
    least_work = np.where(there, seconds * np.array(degrees)[:, None, None], _NEVER).min(axis=2)
    least_bytes = np.where(there, flight + held, _NEVER).min(axis=2)
    holding = [np.flatnonzero(~(sets[row] & ~sets).any(axis=1)) for row in range(len(sets))]
    holding = [rows[rows != row] for row, rows in enumerate(holding)]
    return _Figures(
        degrees=np.array(degrees, dtype=np.int64),
        counts=counts,
        seconds=seconds,
        weights=weights,
        flight=flight,
        held=held,
        sent=sent,
        received=received,
        edges=np.array(edges, dtype=np.int64).reshape(len(edges), 2),
        members=sets,
        outer=np.concatenate(holding).astype(np.int64),
        offsets=np.concatenate([[0], np.cumsum([len(rows) for rows in holding])]),
        work=np.asarray(sets @ np.array(least), dtype=np.float64),
        least_work=np.ascontiguousarray(least_work @ sets.T),
        least_bytes=np.ascontiguousarray(least_bytes @ sets.T),
        widths=np.array(problem.widths, dtype=np.int64),
        devices=problem.devices,
        memory=float(problem.memory_bytes),
        bandwidth=float(problem.bandwidth),
        microbatches=problem.microbatches,
    )


class _Stage(NamedTuple):
    """The layers of a stage at one degree: float64 [layers, variants] each but for layers and counts, int64 [layers].

    seconds: of a sample on one replica, with the bytes that cross the stage's ends; reduced: of a sample's share of the weights
    """

    layers: Integers
    counts: Integers
    seconds: Floats
    reduced: Floats
    flight: Floats
    held: Floats


@kernel(error_model="numpy")
def _stage(figures: _Figures, row: int, outer: int, inner: int) -> _Stage:
    """The layers of set `outer` that `inner` lacks, at a degree; none if one of them has no variant there."""
    _, every, most = figures.seconds.shape
    place = np.full(every, -1)
    size = 0
    for layer in range(every):
        if figures.members[outer, layer] and not figures.members[inner, layer]:
            if figures.counts[row, layer] == 0:
                size = 0
                break
            place[layer] = size
            size += 1
    layers, counts = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    seconds, reduced = np.zeros((size, most)), np.zeros((size, most))
    flight, held = np.zeros((size, most)), np.zeros((size, most))
    if size == 0:
        return _Stage(layers, counts, seconds, reduced, flight, held)
    for layer in range(every):
        here = place[layer]
        if here >= 0:
            layers[here], counts[here] = layer, figures.counts[row, layer]
            for one in range(counts[here]):
                seconds[here, one] = figures.seconds[row, layer, one]
                reduced[here, one] = 4.0 * figures.weights[row, layer, one] / figures.microbatches / figures.bandwidth
                flight[here, one], held[here, one] = figures.flight[row, layer, one], figures.held[row, layer, one]
    for edge in range(len(figures.edges)):
        before, behind = place[figures.edges[edge, 0]], place[figures.edges[edge, 1]]
        for one in range(most):
            if before >= 0 and behind < 0:
                seconds[before, one] += figures.sent[row, edge, one] / figures.bandwidth
            elif behind >= 0 and before < 0:
                seconds[behind, one] += figures.received[row, edge, one] / figures.bandwidth
    return _Stage(layers, counts, seconds, reduced, flight, held)


@kernel(error_model="numpy")
def _variants(stage: _Stage, replicas: int, flights: int) -> Variants:
    """What a stage's variants cost and keep on each of its replicas."""
    layers, most = stage.seconds.shape
    costs, kept = np.empty((layers, most)), np.empty((layers, most))
    for layer in range(layers):
        for one in range(most):
            costs[layer, one] = (stage.seconds[layer, one] + (replicas - 1) * stage.reduced[layer, one]) / replicas
            kept[layer, one] = flights * stage.flight[layer, one] + stage.held[layer, one]
    return Variants(costs, kept, stage.counts)


@kernel(inner=True, error_model="numpy")
def _least_sum(values: Floats, counts: Integers) -> float:
    total = 0.0
    for layer in range(len(counts)):
        least = np.inf
        for one in range(counts[layer]):
            least = min(least, values[layer, one])
        total += least
    return total


@kernel(inner=True, error_model="numpy")
def _most_flights(
    stage: _Stage, replicas: int, most: int, limit: float, memory: float, hopeful: bool
) -> tuple[int, bool]:
    """Most micro-batches in flight, up to `most`, with which a stage is within limit and memory, 0 if none; whether that is sure.

    hopeful: what is not known counts as within
    """
    low, high, settled = 0, most + 1, True
    asked = most  # most stages fit at all
    while high - low > 1:
        answer = fits_within(_variants(stage, replicas, asked), limit, memory)
        if answer != YES and answer != NO:
            settled = False
        if answer == YES or (hopeful and answer != NO):
            low = asked
        else:
            high = asked
        asked = (low + high) // 2
    return low, settled


@kernel(error_model="numpy")
def _fewest_devices(
    figures: _Figures, limit: float, hopeful: bool
) -> tuple[Integers, NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], bool]:
    """Fewest devices outside each set with stages within `limit`, by the sum of their replicas, and how the first stage arises.

    Returns int64 and int32 [sets, sum + 1]: devices, more than there are where there is no way; the larger set; the row of the
    degree; the replicas. And whether every question of a knapsack was settled.
    """
    sets = len(figures.work)
    most = figures.widths[-1]
    if figures.devices < figures.microbatches:
        most = figures.devices
    none = figures.devices + 1
    fewest = np.full((sets, most + 1), none)
    larger = np.full((sets, most + 1), -1, dtype=np.int32)
    degree_row = np.full((sets, most + 1), -1, dtype=np.int32)
    width = np.full((sets, most + 1), -1, dtype=np.int32)
    least = np.full(sets, none)
    fewest[sets - 1, 0] = 0
    least[sets - 1] = 0
    all_settled = True
    for inner in range(sets - 2, -1, -1):
        left = figures.devices - figures.work[inner] / limit * _BARELY
        for position in range(figures.offsets[inner], figures.offsets[inner + 1]):
            outer = figures.outer[position]
            if least[outer] >= left:
                continue
            for row in range(len(figures.degrees)):
                degree = figures.degrees[row]
                work = figures.least_work[row, outer] - figures.least_work[row, inner]
                kept = figures.least_bytes[row, outer] - figures.least_bytes[row, inner]
                if work / limit * _BARELY > left - least[outer] or kept * _BARELY > figures.memory:
                    continue
                stage = _stage(figures, row, outer, inner)
                if len(stage.layers) == 0:
                    continue
                seconds = _least_sum(stage.seconds, stage.counts)
                reduced = _least_sum(stage.reduced, stage.counts)
                for replicas in figures.widths:
                    taken = degree * replicas
                    if least[outer] + taken > left:
                        break
                    if (seconds + (replicas - 1) * reduced) / replicas > limit:
                        continue
                    every = -(-most // replicas)
                    flights, settled = _most_flights(stage, replicas, every, limit, figures.memory, hopeful)
                    all_settled &= settled
                    for total in range(replicas, min(most, flights * replicas) + 1):
                        devices = fewest[outer, total - replicas] + taken
                        if devices < fewest[inner, total]:
                            fewest[inner, total] = devices
                            larger[inner, total] = outer
                            degree_row[inner, total] = row
                            width[inner, total] = replicas
                    if flights == every:
                        break  # more replicas of it hold no more in flight, and take more devices
        for total in range(most + 1):
            least[inner] = min(least[inner], fewest[inner, total])
    return fewest, larger, degree_row, width, all_settled


class _VariantSearch:
    """Plans of one problem between some down-sets."""

    def __init__(self, problem: VariantProblem, sets: Flags) -> None:
        self._problem = problem
        self._figures = _figures(problem, sets)

    @property
    def even_seconds(self) -> float:
        """Seconds of a sample if all devices shared the least work evenly."""
        return float(self._figures.work[-1]) / self._problem.devices

    def first_limits(self) -> list[float]:
        """Rising limits, the last of them none."""
        return [*(factor * self.even_seconds for factor in FIRST_LIMITS if self.even_seconds > 0), np.inf]

    def nothing_within(self, limit: float) -> bool:
        """Whether no plan is within a limit, even if all that is not known were."""
        fewest, *_ = _fewest_devices(self._figures, limit, True)
        return bool(fewest[0].min() > self._problem.devices)

    def stages(self, limit: float) -> tuple[tuple[VariantStage, ...] | None, bool]:
        """Stages within a limit on fewest devices, None if there are none, and whether that is certain."""
        fewest, larger, rows, widths, settled = _fewest_devices(self._figures, limit, False)
        total = int(np.argmin(fewest[0]))
        if fewest[0, total] > self._problem.devices:
            return None, settled
        stages, inner = [], 0
        while inner < len(larger) - 1:
            outer, row, replicas = (int(table[inner, total]) for table in (larger, rows, widths))
            stage = _stage(self._figures, row, outer, inner)
            chosen = cheapest_variants(_variants(stage, replicas, -(-total // replicas)), self._figures.memory)
            stages.append(self._named(stage, int(self._figures.degrees[row]), replicas, chosen or []))
            inner, total = outer, total - replicas
        return tuple(stages), settled

    def _named(self, stage: _Stage, degree: int, replicas: int, chosen: list[int]) -> VariantStage:
        layers = tuple(int(layer) for layer in stage.layers)
        variants = {
            layer: self._problem.layers[layer][degree][number].name
            for layer, number in zip(layers, chosen, strict=True)
        }
        return VariantStage(layers, degree, replicas, variants)
