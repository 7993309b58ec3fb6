"""Memory: bytes per device of stages, in closed form, and numbers of micro-batches in flight. Planners count bytes nowhere else.

A device holds weights, gradients and optimizer states (divided among replicas as the ZeRO stage says), what each micro-batch in
flight leaves behind in its stages, the most that a backward makes again, and the gradients of products before they are added up.
Without the buffers of transfers, which only a replay knows, these are lower bounds; a caller that wants an estimate adds one
boundary tensor.
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
"""Relative tolerance of comparisons: more than the rounding of a sum of the same numbers in another order."""

SAFE = 1e-9
"""Relative slack by which lower bounds in memory are eased before they rule plans out."""

_FORWARD = int(OpKind.FORWARD)
_FREEING = int(OpKind.BACKWARD), int(OpKind.WEIGHT_GRADIENT)


# ---- weights, gradients and optimizer states ----


def state_bytes(
    problem: Problem, zero: Zero | Integers, held: Floats, divided: Floats, copies: int | Integers
) -> Floats:
    """Bytes of weights, gradients and optimizer states on each device, shaped as `held`.

    held: weight elements of each device; divided: how many of these elements `copies` replicas divide, as
    `PlanCosts.divided_elements`
    """
    alone, halved = (
        np.array([problem.divided_state_bytes(one, of) for one in get_args(Zero)])[zero] for of in (np.inf, 2)
    )
    shared = np.where(np.greater(copies, 1), 2.0 * (halved - alone), problem.state_bytes - alone)
    return np.asarray(held * alone + divided / copies * shared)


def unit_bytes(problem: Problem, zero: Zero | Integers) -> Floats:
    """Bytes per element of a unit (weights that ZeRO gathers at once) that a device holds whole: of gradients (ZeRO 2 and 3) and
    weights (3).
    """
    return np.asarray(problem.element_bytes * (np.greater_equal(zero, 2) + 1.0 * np.equal(zero, 3)))


def two_largest(units: Floats) -> Floats:
    """Elements of the two largest units of each device, float64 [...].

    units: elements of each unit, float64 [..., units]
    """
    return np.asarray(np.partition(units, -2, axis=-1)[..., -2:].sum(axis=-1))


def room_for_stashes(
    costs: LayerCosts, devices: Sequence[int], held: Sequence[Sequence[tuple[int, int]]], made: Floats
) -> Floats:
    """Bytes of each device's memory that are left for activations of micro-batches in flight, float64 [devices].

    held: ranges of layers of each device; made: the most bytes that a backward there makes again at once, float64 [devices]
    """
    rooms = costs.rooms[list(devices)]
    states = [always_there(costs.problem, costs.range_elements(ranges)).sum() for ranges in held]
    return np.asarray(rooms - (np.array(states) + made))


def layer_bytes(costs: LayerCosts, samples: int) -> Floats:
    """Bytes of each layer's weights, gradients and optimizer states, and of its activations of some samples, float64 [layers]."""
    return costs.parameters * costs.member.state_bytes + costs.stashed_bytes * samples


# ---- micro-batches in flight ----


def most_in_flight(schedule: Schedule) -> Integers:
    """Most micro-batches that each stage has in flight at once, on one of its devices, int64 [stages]."""
    return most_held(schedule, np.ones(schedule.stages))[1]


def most_held(schedule: Schedule, each: Floats) -> tuple[Floats, Integers]:
    """Most that the stages of each rank hold at once, float64 [ranks], and `most_in_flight` of each stage, int64 [stages].

    each: what one micro-batch in flight holds in each stage, in any unit, float64 [stages]
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
"""Forwards of a stage's warm-up per stage behind it, of schedules that alternate forwards and backwards after the warm-up."""


def in_flight_of(
    schedule: str, stages: int, microbatches: int, order: Callable[[], Schedule] | None = None
) -> Integers:
    """Most micro-batches that each stage of a schedule has in flight at once, int64 [stages].

    order: makes the ops of the schedule; needed only of other schedules than GPipe and those of AHEAD
    """
    if schedule == "gpipe":
        return np.full(stages, microbatches)
    if schedule in AHEAD:
        return np.minimum(1 + np.arange(stages - 1, -1, -1) * AHEAD[schedule], microbatches)
    assert order is not None
    return most_in_flight(order())


def samples_in_flight(in_flight: Integers, batch: int, microbatches: int) -> Integers:
    """Most samples of `in_flight` micro-batches, where `equal_microbatches` divides the batch into `microbatches`; shaped as
    `in_flight`.
    """
    size, larger = divmod(batch, microbatches)
    return in_flight * size + np.minimum(in_flight, larger)


def one_stage_in_flight(ahead: Integers | int, microbatches: Integers | int) -> Integers:
    """Most micro-batches in flight on a stage of 1F1B; ahead: stages from this one to the last, itself included"""
    return np.minimum(microbatches, ahead)


def warm_up(
    rank: Integers, ranks: Integers | int, chunks: Integers | int, microbatches: Integers | int, group: Integers | int
) -> Integers:
    """Forwards of a rank of interleaved 1F1B before its first backward: 2 (p - 1 - r) + (v - 1) g, at most m v.

    p ranks, of which this is r, from 0; v chunks per rank; m micro-batches, in groups of g
    """
    return np.minimum(2 * (ranks - 1 - rank) + (chunks - 1) * group, microbatches * chunks)


def least_in_flight(
    rank: Integers, ranks: Integers | int, chunks: Integers | int, microbatches: Integers | int, group: Integers | int
) -> tuple[Floats, Floats, Floats]:
    """Lower bounds on what a rank of n like blocks has in flight at its fullest, under 1F1B or interleaved 1F1B: factors of lines
    in n.

    The unit is what one block keeps of one micro-batch. (alike, fewest, less): alike * n where all stages of the rank have
    equally many blocks; alike * n + less where one has a block fewer than the others; fewest * n however few blocks one has. No
    stage has more than 2 g micro-batches in flight.
    """
    several = np.greater(chunks, 1)
    ahead = np.minimum(warm_up(rank, ranks, chunks, microbatches, group) + 1, microbatches * chunks)
    alike = np.where(several, ahead / chunks, one_stage_in_flight(ranks - rank, microbatches))
    fewest = np.where(several, np.maximum(ahead - 2 * group, 0) / np.maximum(np.subtract(chunks, 1), 1), alike)
    return alike, fewest, np.where(several, alike - 2 * group, 0.0)


def in_flight(ranks: int, chunks: int, microbatches: int) -> Floats:
    """Micro-batches in flight of each stage of each rank, float64 [ranks, moments, chunks], at moments of which one is the
    fullest.

    The schedule is 1F1B, or with several chunks interleaved 1F1B in the smallest groups. Behind the forwards of its warm-up each
    further forward of a rank has a backward. With several chunks a group of micro-batches passes each of them in turn, backwards
    in the other order; between the moments at which either begins another chunk the numbers in flight change evenly.
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
        """How many of the first `number` ops are of each chunk."""
        size = np.where(number < whole * lap, group, rest)[:, :, None]
        return np.asarray(
            (number // lap * group)[:, :, None]
            + np.clip((number % lap)[:, :, None] - np.arange(chunks) * size, 0, size)
        )

    return (passed(forwards) - passed(backwards)[:, :, ::-1]).astype(np.float64)


@kernel(inner=True, error_model="numpy", borrows=True)
def in_flight_bytes(recompute: bool, flights: float, stash: float, entry: float) -> float:
    """Bytes of activations of mini-batches in flight on a stage; with recomputation the input of each, and the whole stash of
    one.

    flights: mini-batches in flight; stash, entry: bytes of one's stash, and of its input
    """
    return stash + flights * entry if recompute else flights * stash


# ---- stages of contiguous layers ----


class FlushedBytes(NamedTuple):
    """Bytes of a stage under a flush, in whole bytes as a replay counts them, without tensors on their way between stages.

    always: weights, gradients, optimizer states; stash: per sample, from its forward to its backward; inputs: per sample, in
    place of the stash where the stage recomputes (it makes the stash again for the block of samples that runs backward)
    """

    always: float
    stash: float
    inputs: float

    @classmethod
    def of(cls, costs: LayerCosts, first: int, end: int) -> FlushedBytes:
        """Bytes of a stage of layers `first` to `end` - 1."""
        layers = range(first, end)
        always = float(always_there(costs.problem, costs.weight_elements(layers)).sum())
        always += gradient_in_work(costs, layers)
        return cls(always, stage_stash(costs, layers, "none").kept, float(np.ceil(costs.cut_bytes[first])))

    def stored(self, samples: int) -> float:
        """Most bytes of a stage that stores its activations, with so many samples in flight."""
        return self.always + samples * self.stash

    def recomputed(self, samples: int, block: int) -> float:
        """Most bytes of a stage that recomputes, with so many samples in flight, in backwards of `block` samples."""
        return self.always + samples * self.inputs + block * self.stash

    def at_the_turn(self, samples: int, sizes: Integers, sent: float, *, again: bool) -> tuple[Floats, Floats]:
        """Bytes of a stage when its last forward ends, and when its first backward begins, each by block size, float64 [sizes].

        samples: of the mini-batch, all in flight at the turn; sizes: samples per op; sent: bytes per sample of its outputs;
        again: it recomputes
        Beside what is in flight are the outputs of the last block, which have not arrived; later all gradients that the backward
        needs, and then what it recomputes.
        """
        kept = self.recomputed(samples, 0) if again else self.stored(samples)
        outputs = np.ceil(sent * ((samples - 1) % sizes + 1))
        return kept + outputs, kept + np.maximum(np.floor(sent * sizes), again * self.stash * sizes)


def most_bytes(costs: PlanCosts, in_flight: Sequence[int]) -> list[float]:
    """Upper bound on the bytes of a device of each stage: of a flushed plan with one stage per device, full backwards, and
    replicas of one device each that divide no states.

    in_flight: micro-batches of each stage, as `most_in_flight`
    What a micro-batch in flight on a stage sends to the next one is on its way or waits there, or its gradient is or does: it
    counts once on either stage. A tensor is a whole number of bytes per sample, and one byte more for each of its parts.
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
    """Layers at which a stage may begin, rising, then the number of layers, int64; none inside a block where the stack cuts no
    blocks.
    """
    blocks = np.array([layer.block for layer in problem.workload.layers])
    inside = (blocks[1:] > 0) & (blocks[1:] == blocks[:-1])
    if problem.stack.runs.cut_blocks:
        inside = np.zeros_like(inside)
    return np.concatenate([[0], 1 + np.flatnonzero(~inside), [len(blocks)]])


class RangeBytes(NamedTuple):
    """Bytes that a stage of layers i to j - 1 needs on a device under the problem's recompute policy; L layers of the network.

    states, kept: float64 [L + 1]; of the layers before each cut, bytes of weights, gradients and optimizer states, and bytes per
    sample that stay from forward to backward, without the stage's input
    entering, made: float64 [L + 1, L + 1]; bytes per sample that a stage keeps of its input, and that its backward makes again at
    once, at most
    in_work: float64 [L + 1, L + 1]; bytes of gradients of its products before they are added up
    ends: int64 [L + 1]; the last cut up to each one at which a stage may end
    Copies of tied weights come beside (`copied_bytes`).
    """

    states: Floats
    kept: Floats
    entering: Floats
    made: Floats
    in_work: Floats
    ends: Integers

    def stashed(self, begin: Integers | int, end: Integers | int) -> Floats:
        """Bytes per sample that stages of layers `begin` to `end` - 1 keep from forward to backward."""
        return np.asarray(self.kept[end] - self.kept[begin] + self.entering[begin, end])

    def held(self, begin: Integers | int, end: Integers | int, in_flight: Integers | Floats | int) -> Floats:
        """Bytes that stages keep between their passes; in_flight: samples of each"""
        return np.asarray(self.states[end] - self.states[begin] + self.stashed(begin, end) * in_flight)

    def needed(
        self, begin: Integers | int, end: Integers | int, in_flight: Integers | Floats | int, samples: int
    ) -> Floats:
        """Most bytes of stages; in_flight: samples of each; samples: of a micro-batch"""
        beside = self.made[begin, end] * samples + self.in_work[begin, end]
        return np.asarray(self.held(begin, end, in_flight) + beside)


@lru_cache(maxsize=1)
def range_bytes(costs: LayerCosts) -> RangeBytes:
    """The bytes of all ranges of a network's layers; the last network's are kept."""
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
    """Bytes of each stage's copies of tied weights whose owner is an earlier stage, with their gradients and optimizer states."""
    held = np.zeros(np.shape(begin))
    for user, elements in _copied_weights(costs):
        held = held + np.where(user[begin] < end, elements * costs.member.state_bytes, 0.0)
    return held


def lacks_room(costs: LayerCosts, devices: Sequence[int], samples: int, in_flight: Integers | Floats) -> bool:
    """Whether no cuts whatever fit a pipeline into the memory of these devices, one per stage; arguments as of
    `furthest_ends`.
    """
    room = costs.rooms[list(devices)]
    return not reaches_the_end(range_bytes(costs), room * (1.0 + SAFE), float(samples), np.asarray(in_flight * 1.0))


def may_have_room(costs: LayerCosts, schedule: str, devices: Sequence[int], microbatches: int) -> bool:
    """Whether some cuts may fit a straight pipeline of these devices, one per stage, into their memory.

    True also where it is not known: on boards that stream, and for schedules other than GPipe and those of AHEAD.
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
    """Whether some stage between these bounds (cuts and both ends) exceeds its device's memory; other arguments as of
    `furthest_ends`.
    """
    room = costs.rooms[list(devices)]
    begin, end = bounds[:-1], bounds[1:]
    needed = range_bytes(costs).needed(begin, end, in_flight, samples) + copied_bytes(costs, begin, end)
    return bool((needed > room * (1.0 + SAFE)).any())


def least_excess(costs: LayerCosts, plan: Plan) -> float:
    """Share by which a plan exceeds the memory of a device, at least; 0 where it may fit or `least_needed` is not known."""
    needed = least_needed(costs, plan)
    return 0.0 if needed is None else max(0.0, needed.peak_bytes / needed.capacity_bytes - 1.0)


def least_needed(costs: LayerCosts, plan: Plan) -> Score | None:
    """Lower bound on the bytes of a plan's fullest device, as a score of infinite seconds; None where it is not known.

    It is known of plans of GPipe and the schedules of AHEAD with contiguous stages, on devices of equal memory that do not
    stream, without ops, sizes or recompute policies of their own, whose replicas are single devices that divide nothing but
    micro-batches.
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
    """Whether stages that are as long as memory permits reach the network's last layer, each begun anywhere up to the furthest
    end of the one before; as no copies of tied weights are counted, False proves that none do.

    room, in_flight: of each stage, bytes of memory and samples; samples: of a micro-batch
    A stage that begins earlier ends no later, but for what it keeps of its input, makes again and adds up: of earlier layers
    those are tried from which it would, without these, come further than the furthest end so far.
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
    """The furthest end of a stage within its device's memory, by stage and its first layer, int64 [stages, layers + 1].

    devices: of each stage; samples: of a micro-batch; in_flight: samples whose activations each stage holds at once
    spare: bytes that each stage is to leave free; () for none
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
    """`furthest_ends` by the memory of the devices; the last answer is kept for like stages on other devices."""
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
    """For each tied weight: by first layer of a stage, the layer that makes it need a copy (layers + 1: none does), and its
    elements.

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
