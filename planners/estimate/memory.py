"""Memory: bytes per device of stages, in closed form, and what schedules keep in flight. No other module of the planners counts.

A device holds weights, gradients and optimizer states (divided among replicas as the ZeRO stage says), what each micro-batch in
flight leaves behind in its stages, the most that a backward makes again, and the gradients of products before they are added up.
Buffers of transfers are not counted: where they are wanted a caller adds one boundary tensor, else these are bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Floats, Integers
from simulator import (
    LayerCosts,
    OpKind,
    Plan,
    PlanCosts,
    Problem,
    Schedule,
    Score,
    Zero,
    always_there,
    entering_bytes,
    gradient_in_work,
    gradients_in_work,
    kept_bytes,
    kernel,
    largest_parts,
    least_group,
    stage_stash,
)

ROUNDING = 1e-12
"""Relative tolerance: more than the rounding of a sum of the same numbers in another order."""

SAFE = 1e-9
"""Relative slack of bounds in memory that rule plans out."""

_FORWARD = int(OpKind.FORWARD)
_FREEING = int(OpKind.BACKWARD), int(OpKind.WEIGHT_GRADIENT)


# ---- weights, gradients and optimizer states ----


def state_bytes(
    problem: Problem, zero: Zero | Integers, held: Floats, divided: Floats, copies: int | Integers
) -> Floats:
    """Bytes of weights, gradients and optimizer states on each device.

    held: weight elements of a device; divided: those that `copies` replicas divide, as in `PlanCosts.divided_elements`
    """
    alone, halved = (
        np.array([problem.divided_state_bytes(one, of) for one in get_args(Zero)])[zero] for of in (np.inf, 2)
    )
    shared = np.where(np.greater(copies, 1), 2.0 * (halved - alone), problem.state_bytes - alone)
    return np.asarray(held * alone + divided / copies * shared)


def unit_bytes(problem: Problem, zero: Zero | Integers) -> Floats:
    """Bytes per element of a unit that a device holds whole for a while: of gradients (ZeRO 2 and 3), and of weights (3)."""
    return np.asarray(problem.element_bytes * (np.greater_equal(zero, 2) + 1.0 * np.equal(zero, 3)))


def two_largest(units: Floats) -> Floats:
    """Elements of the two largest units of each device, float64 [...]; units: of its stages, float64 [..., units]."""
    return np.asarray(np.partition(units, -2, axis=-1)[..., -2:].sum(axis=-1))


def room_for_stashes(
    costs: LayerCosts, devices: Sequence[int], held: Sequence[Sequence[tuple[int, int]]], made: Floats
) -> Floats:
    """Bytes that each device has left for what its micro-batches keep, float64 [devices].

    held: ranges of layers of each device; made: the most that a backward makes again there, float64 [devices]
    """
    rooms = costs.rooms[list(devices)]
    states = [always_there(costs.problem, costs.range_elements(ranges)).sum() for ranges in held]
    return np.asarray(rooms - (np.array(states) + made))


def layer_bytes(costs: LayerCosts, samples: int) -> Floats:
    """Bytes of each layer's weights, gradients and optimizer states, and of what it keeps of some samples, float64 [layers]."""
    return costs.parameters * costs.member.state_bytes + costs.stashed_bytes * samples


# ---- micro-batches in flight ----


def most_in_flight(schedule: Schedule) -> Integers:
    """Most micro-batches that each stage has in flight at once, on one device, int64 [stages]."""
    return most_held(schedule, np.ones(schedule.stages))[1]


def most_held(schedule: Schedule, each: Floats) -> tuple[Floats, Integers]:
    """Most that the stages of each rank hold at once, float64 [ranks], and `most_in_flight` of each stage.

    each: what one micro-batch in flight holds in each stage, float64 [stages]
    """
    return _walk(schedule.offsets, schedule.stage, schedule.kind, each)


@kernel()
def _walk(offsets: Integers, stage: NDArray[np.int32], kind: NDArray[np.int8], each: Floats) -> tuple[Floats, Integers]:
    """Both figures of `most_held`, from one walk over the ops; most is held when a forward starts."""
    together, most = np.zeros(len(offsets) - 1), np.zeros(len(each), dtype=np.int64)
    own = np.empty(len(each), dtype=np.int64)
    for rank in range(len(together)):
        held, seen, stages = np.zeros(len(each), dtype=np.int64), np.zeros(len(each), dtype=np.bool_), 0
        for row in range(offsets[rank], offsets[rank + 1]):
            here = stage[row]
            if kind[row] == _FORWARD:
                if not seen[here]:
                    seen[here], own[stages] = True, here
                    stages += 1
                held[here] += 1
                most[here] = max(most[here], held[here])
                total = 0.0
                for place in range(stages):
                    total += held[own[place]] * each[own[place]]
                together[rank] = max(together[rank], total)
            elif kind[row] in _FREEING:
                held[here] -= 1
    return together, most


AHEAD = {"1f1b": 1, "1f1b-sno": 1, "eager-1f1b": 2, "1f1b-so": 2}
"""Forwards of a stage's warm-up for each stage behind it, of schedules that then alternate."""


def in_flight_of(
    schedule: str, stages: int, microbatches: int, order: Callable[[], Schedule] | None = None
) -> Integers:
    """`most_in_flight` of the order of a schedule, which need not be made for GPipe and those of AHEAD."""
    if schedule == "gpipe":
        return np.full(stages, microbatches)
    if schedule in AHEAD:
        return np.minimum(1 + np.arange(stages - 1, -1, -1) * AHEAD[schedule], microbatches)
    assert order is not None
    return most_in_flight(order())


def samples_in_flight(in_flight: Integers, batch: int, microbatches: int) -> Integers:
    """Samples of so many micro-batches at most, as `equal_microbatches` divides a batch."""
    size, larger = divmod(batch, microbatches)
    return in_flight * size + np.minimum(in_flight, larger)


def one_stage_in_flight(ahead: Integers | int, microbatches: Integers | int) -> Integers:
    """Micro-batches that a stage of 1F1B has in flight at most, with `ahead` stages from itself to the last."""
    return np.minimum(microbatches, ahead)


def warm_up(
    rank: Integers, ranks: Integers | int, chunks: Integers | int, microbatches: Integers | int, group: Integers | int
) -> Integers:
    """Forwards of a rank of interleaved 1F1B in groups of g before its first backward: 2 (p - 1 - r) + (v - 1) g, at most m v."""
    return np.minimum(2 * (ranks - 1 - rank) + (chunks - 1) * group, microbatches * chunks)


def least_in_flight(
    rank: Integers, ranks: Integers | int, chunks: Integers | int, microbatches: Integers | int, group: Integers | int
) -> tuple[Floats, Floats, Floats]:
    """Micro-batches in flight on a rank when it is fullest, of 1F1B and interleaved 1F1B, as lines in its like blocks, at least.

    (alike, fewest, less): of n blocks it has alike * n where its stages have equally many; alike * n + less where one stage has a
    block less than the others; fewest * n however few one of them has. No stage has more than 2 g micro-batches in flight.
    """
    several = np.greater(chunks, 1)
    ahead = np.minimum(warm_up(rank, ranks, chunks, microbatches, group) + 1, microbatches * chunks)
    alike = np.where(several, ahead / chunks, one_stage_in_flight(ranks - rank, microbatches))
    fewest = np.where(several, np.maximum(ahead - 2 * group, 0) / np.maximum(np.subtract(chunks, 1), 1), alike)
    return alike, fewest, np.where(several, alike - 2 * group, 0.0)


def in_flight(ranks: int, chunks: int, microbatches: int) -> Floats:
    """Micro-batches in flight of each stage of each rank when the rank may be fullest, float64 [ranks, moments, chunks]: of 1F1B,
    and with several chunks of interleaved 1F1B in the smallest groups.

    After the forwards of its warm-up each further one has a backward behind it. With several chunks a group of micro-batches
    passes each of them in turn, backwards in the other order; between the moments at which either begins another chunk what is
    in flight changes evenly.
    """
    rank = np.arange(ranks)
    if chunks == 1:
        return one_stage_in_flight(ranks - rank, microbatches).astype(np.float64)[:, None, None]
    group = least_group(microbatches, ranks)
    whole, rest = divmod(microbatches, group)
    total, lap = microbatches * chunks, group * chunks
    ahead = warm_up(rank, ranks, chunks, microbatches, group)[:, None]
    turns = np.arange(2 * chunks + 1) * group
    ends = np.arange((chunks + 1) * (rest > 0)) * rest + whole * lap  # of the last group, where it is smaller
    forwards = np.concatenate(
        [turns + (chunks - 1) * group + 0 * ahead, ends + 0 * ahead, turns + ahead + 1, ends - lap + ahead + 1], axis=1
    )
    forwards = np.clip(forwards, np.minimum(ahead + 1, total), total)
    backwards = np.maximum(forwards - ahead - 1, 0)

    def passed(number: Integers) -> Integers:
        """How many of the first so many ops are of each chunk, in its turn."""
        size = np.where(number < whole * lap, group, rest)[:, :, None]
        return np.asarray(
            (number // lap * group)[:, :, None]
            + np.clip((number % lap)[:, :, None] - np.arange(chunks) * size, 0, size)
        )

    return (passed(forwards) - passed(backwards)[:, :, ::-1]).astype(np.float64)


@kernel(inner=True, error_model="numpy", borrows=True)
def in_flight_bytes(recompute: bool, flights: float, stash: float, entry: float) -> float:
    """Bytes of mini-batches in flight on a stage: one that recomputes keeps the input of each, and the stash of one."""
    return stash + flights * entry if recompute else flights * stash


# ---- stages of contiguous layers ----


class FlushedBytes(NamedTuple):
    """Whole bytes of a stage under a flush, as a replay counts them, but for tensors on their way.

    always: weights, gradients, optimizer states; stash: per sample, from its forward to its backward pass; inputs: per sample,
    the same where the stage recomputes: it then makes the stash again for the block that runs backward
    """

    always: float
    stash: float
    inputs: float

    @classmethod
    def of(cls, costs: LayerCosts, first: int, end: int) -> FlushedBytes:
        """Bytes of layers `first` to `end` - 1, which store their activations or their input."""
        layers = range(first, end)
        always = float(always_there(costs.problem, costs.weight_elements(layers)).sum())
        always += gradient_in_work(costs, layers)
        return cls(always, stage_stash(costs, layers, "none").kept, float(np.ceil(costs.cut_bytes[first])))

    def stored(self, samples: int) -> float:
        """Most that a stage holds which stores what `samples` samples leave behind."""
        return self.always + samples * self.stash

    def recomputed(self, samples: int, block: int) -> float:
        """Most that a stage holds which recomputes, in backward blocks of so many samples."""
        return self.always + samples * self.inputs + block * self.stash

    def at_the_turn(self, samples: int, sizes: Integers, sent: float, *, again: bool) -> tuple[Floats, Floats]:
        """Bytes of a stage, by its block size, when its last forward ends and when its first backward begins.

        sent: bytes per sample of its outputs; again: it recomputes
        All samples are stashed then. Beside them are the outputs of the last block, which have not arrived; and later all
        gradients that the backward needs, and then what it recomputes.
        """
        kept = self.recomputed(samples, 0) if again else self.stored(samples)
        outputs = np.ceil(sent * ((samples - 1) % sizes + 1))
        return kept + outputs, kept + np.maximum(np.floor(sent * sizes), again * self.stash * sizes)


def most_bytes(costs: PlanCosts, in_flight: Sequence[int]) -> list[float]:
    """Bytes that a device of each stage holds at most, whatever comes first; of a flushed plan with one stage per device, whole
    backwards, and replicas that are devices which divide nothing.

    in_flight: micro-batches of each stage, as `most_in_flight`
    What a micro-batch in flight on a stage sends to the next one is on its way, or waits there, or its gradient is or does: once
    on either. A tensor is a whole number of bytes for each sample, and one byte more for each of its parts.
    """
    plan, most = costs.plan, max(costs.plan.microbatches)
    sent = [
        0.0,
        *(count * (np.ceil(size) + 1.0) for count, size in zip(in_flight, costs.boundary_bytes, strict=False)),
        0.0,
    ]
    found = []
    for stage, (held, count) in enumerate(zip(plan.stages, in_flight, strict=True)):
        stash, samples = costs.stash(stage), -(-most // len(held.replicas))
        always = float(always_there(costs.problem, costs.held_elements(stage)).sum()) + costs.gradient_in_work(stage, 0)
        found.append(always + samples * (count * stash.kept + stash.made + sent[stage] + sent[stage + 1]))
    return found


def stage_begins(problem: Problem) -> Integers:
    """Layers that a stage may begin at, rising, and the number of layers: where its stack does not cut blocks none inside one."""
    blocks = np.array([layer.block for layer in problem.workload.layers])
    inside = (blocks[1:] > 0) & (blocks[1:] == blocks[:-1])
    if problem.stack.runs.cut_blocks:
        inside = np.zeros_like(inside)
    return np.concatenate([[0], 1 + np.flatnonzero(~inside), [len(blocks)]])


class RangeBytes(NamedTuple):
    """What stages of layers i to j - 1 need on a device under the recompute policy of a problem, but for copies of tied weights
    (`copied_bytes`); L layers.

    states, kept: float64 [L + 1]; bytes of weights with their gradients and optimizer states, and bytes per sample that stay from
        forward to backward, beside what a stage receives, of the layers before each one
    entering, made, in_work: float64 [L + 1, L + 1]; per sample what a stage keeps of what it receives, and the most that its
        backward makes again at once; gradients of its products before they are added up
    ends: int64 [L + 1]; the last layer up to each one before which a stage may end
    """

    states: Floats
    kept: Floats
    entering: Floats
    made: Floats
    in_work: Floats
    ends: Integers

    def stashed(self, begin: Integers | int, end: Integers | int) -> Floats:
        """Bytes per sample that each stage keeps from its forward to its backward."""
        return np.asarray(self.kept[end] - self.kept[begin] + self.entering[begin, end])

    def held(self, begin: Integers | int, end: Integers | int, in_flight: Integers | Floats | int) -> Floats:
        """Bytes that each stage keeps between its passes, with so many samples in flight."""
        return np.asarray(self.states[end] - self.states[begin] + self.stashed(begin, end) * in_flight)

    def needed(
        self, begin: Integers | int, end: Integers | int, in_flight: Integers | Floats | int, samples: int
    ) -> Floats:
        """Bytes of each stage in all, with so many samples in flight, in micro-batches of `samples`."""
        beside = self.made[begin, end] * samples + self.in_work[begin, end]
        return np.asarray(self.held(begin, end, in_flight) + beside)


@lru_cache(maxsize=1)
def range_bytes(costs: LayerCosts) -> RangeBytes:
    """The bytes of ranges of a network's layers; kept for the next ones."""
    recompute = costs.problem.recompute
    states, kept = (
        np.append(0.0, np.cumsum(each))
        for each in (costs.parameters * costs.member.state_bytes, kept_bytes(costs, recompute))
    )
    places = stage_begins(costs.problem)
    ends = places[np.searchsorted(places, np.arange(len(states)), side="right") - 1]
    made, in_work = largest_parts(costs, recompute), gradients_in_work(costs, recompute)
    return RangeBytes(states, kept, entering_bytes(costs, recompute), made, in_work, ends)


def copied_bytes(costs: LayerCosts, begin: Integers | int, end: Integers | int) -> Floats:
    """Bytes of each stage's copies of tied weights whose owner stands before it, with their gradients and optimizer states."""
    held = np.zeros(np.shape(begin))
    for user, elements in _copied_weights(costs):
        held = held + np.where(user[begin] < end, elements * costs.member.state_bytes, 0.0)
    return held


def lacks_room(costs: LayerCosts, devices: Sequence[int], samples: int, in_flight: Integers | Floats) -> bool:
    """Whether no cuts whatever have room on these devices, one of each stage; arguments as in `furthest_ends`."""
    room = costs.rooms[list(devices)]
    return not reaches_the_end(range_bytes(costs), room * (1.0 + SAFE), float(samples), np.asarray(in_flight * 1.0))


def may_have_room(costs: LayerCosts, schedule: str, devices: Sequence[int], microbatches: int) -> bool:
    """Whether some cuts of a straight pipeline may have room, a device for each stage: yes where that is not known, as of boards
    that stream, and schedules whose order must be made.
    """
    batch = costs.problem.batch
    if schedule not in ("gpipe", *AHEAD) or _streams(costs):
        return True
    in_flight = samples_in_flight(in_flight_of(schedule, len(devices), microbatches), batch, microbatches)
    return not lacks_room(costs, devices, batch // microbatches, in_flight)


def _streams(costs: LayerCosts) -> bool:
    return any(costs.streams(costs.first_of_kind(kind)) for kind in range(costs.accelerator_kinds))


def given_lack_room(
    costs: LayerCosts, devices: Sequence[int], samples: int, in_flight: Integers | Floats, bounds: Integers
) -> bool:
    """Whether a stage between such bounds, cuts with both ends, has no room on its device; arguments as in `furthest_ends`."""
    room = costs.rooms[list(devices)]
    begin, end = bounds[:-1], bounds[1:]
    needed = range_bytes(costs).needed(begin, end, in_flight, samples) + copied_bytes(costs, begin, end)
    return bool((needed > room * (1.0 + SAFE)).any())


def least_excess(costs: LayerCosts, plan: Plan) -> float:
    """Share by which a plan exceeds the memory of a device at least; 0 where that is not known (see `least_needed`)."""
    needed = least_needed(costs, plan)
    return 0.0 if needed is None else max(0.0, needed.peak_bytes / needed.capacity_bytes - 1.0)


def least_needed(costs: LayerCosts, plan: Plan) -> Score | None:
    """What the fullest device of a plan needs at least, as the score of a plan that takes for ever; None where that is not known:
    but for plans of a flushed schedule whose stages are runs of layers, on devices of equal memory, replicas that divide nothing
    but micro-batches.
    """
    stages, room = plan.stages, float(costs.rooms.min())
    own = plan.order or plan.forward_sizes or plan.backward_sizes or plan.recompute or plan.recomputed_blocks
    divided = plan.zero or plan.slices > 1 or plan.replication != "split" or any(one.degrees for one in stages)
    if own or divided or plan.schedule not in ("gpipe", *AHEAD):
        return None
    first, last = np.array([[one.layers[0], one.layers[-1]] for one in stages]).T
    runs = all(len(one.layers) == end - begin + 1 for one, begin, end in zip(stages, first, last, strict=True))
    if not runs or costs.rooms.max() > room or _streams(costs):
        return None
    count = len(plan.microbatches)
    samples = -(-min(plan.microbatches) // np.array([len(one.replicas) for one in stages]))
    in_flight = in_flight_of(plan.schedule, len(stages), count) * samples
    needed = range_bytes(costs).held(first, last + 1, in_flight)
    fullest = int(needed.argmax())
    return Score(inf, float(needed[fullest]) * (1.0 - SAFE), room, stages[fullest].devices[0])


@kernel(borrows=True)
def reaches_the_end(every: RangeBytes, room: Floats, samples: float, in_flight: Floats) -> bool:
    """Whether stages, as long as they may be, reach the last layer: any stage may begin wherever the one before may at most end.

    A stage that begins earlier ends no later but for what it keeps of its input, makes again and adds up: of earlier layers those
    are looked at from which it would, without these, come further than what is known.
    """
    layers, reached = len(every.states) - 1, 0
    for stage in range(len(room)):
        furthest = reached
        for begin in range(reached, -1, -1):
            held = every.states[begin] + every.kept[begin] * in_flight[stage]
            low, high = furthest, layers + 1
            while high - low > 1:  # as if it kept layers alone
                end = (low + high) // 2
                if every.states[end] + every.kept[end] * in_flight[stage] - held <= room[stage]:
                    low = end
                else:
                    high = end
            if low == furthest:
                break
            low, high = furthest, low + 1
            while high - low > 1:
                end = (low + high) // 2
                needed = every.states[end] + (every.kept[end] + every.entering[begin, end]) * in_flight[stage] - held
                if needed + every.made[begin, end] * samples + every.in_work[begin, end] <= room[stage]:
                    low = end
                else:
                    high = end
            furthest = low
        reached = every.ends[furthest]
    return bool(reached == layers)


def furthest_ends(
    costs: LayerCosts, devices: Sequence[int], samples: int, in_flight: Sequence[int], spare: Sequence[float] = ()
) -> Integers:
    """The furthest end of a stage within its device's memory, by its first layer, int64 [stages, layers + 1].

    in_flight: samples whose activations each stage holds at once; samples: of a micro-batch; spare: bytes that each stage is to
    leave free; () for none
    """
    memory = tuple(costs.rooms[list(devices)].tolist())
    return _furthest_ends(costs, memory, samples, tuple(in_flight), tuple(spare) or (0.0,) * len(memory))


@lru_cache(maxsize=1)
def _furthest_ends(
    costs: LayerCosts,
    memory_bytes: tuple[float, ...],
    samples: int,
    in_flight: tuple[int, ...],
    spare: tuple[float, ...],
) -> Integers:
    """`furthest_ends` by the memory of the devices; kept for the same stages on other devices."""
    every, width, layers = range_bytes(costs), costs.member.state_bytes, len(costs.problem.workload)
    count = np.array(in_flight, dtype=np.float64)[:, None]
    once = every.made * samples + every.in_work
    before = every.states + every.kept * count
    memory, free = np.array([memory_bytes, spare])[:, :, None]
    room = memory * (1.0 + ROUNDING) - free + before
    entering = every.entering, count[:, 0]
    furthest = _last_within(before, room, once, *entering)
    # a stage that holds the user of a tied weight needs room for the copy, or ends before it
    for user, elements in _copied_weights(costs):
        room = room - np.where(user <= layers, elements * width, 0.0)
        furthest = np.where(furthest > user, np.maximum(_last_within(before, room, once, *entering), user), furthest)
    return furthest


@kernel()
def _last_within(
    before: Floats,
    room: Floats,
    once: Floats,
    entering: Floats,
    count: Floats,
) -> Integers:
    """The last layer before which a stage needs no more than its room, int64 [stages, layers + 1], by its first layer.

    before: bytes of the layers before each layer; room: what these may be at the stage's end; both float64 [stages, layers + 1]
    once: bytes that a stage of layers i to j - 1 needs beside; entering: for each of `count` [stages] samples, both float64
        [layers + 1, layers + 1]
    """
    furthest = np.empty(room.shape, dtype=np.int64)
    for stage in range(len(room)):
        for begin in range(room.shape[1]):
            low, high = -1, before.shape[1]
            while high - low > 1:
                middle = (low + high) // 2
                beside = once[begin, middle] + entering[begin, middle] * count[stage]
                if before[stage, middle] + beside <= room[stage, begin]:
                    low = middle
                else:
                    high = middle
            furthest[stage, begin] = low
    return furthest


def _copied_weights(costs: LayerCosts) -> list[tuple[Integers, float]]:
    """For each tied weight, by a stage's first layer: the layer whose stage needs a copy (layers + 1: none), and its elements.

    That is the first user in the stage or behind it, where the owner stands before the stage.
    """
    layers = len(costs.problem.workload)
    starts = np.arange(layers + 1)
    found = []
    for tied in costs.tied_weights:
        users = np.array([*tied.layers, layers + 1])
        user = users[np.searchsorted(users, starts)]
        found.append((np.where(starts > tied.layers[0], user, layers + 1), float(tied.parameters)))
    return found
