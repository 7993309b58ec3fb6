"""Asynchronous staircase: one order of T micro-batches per mini-batch without flush, for every method of weight versions.

4 stages, T = 2, B = F; digits are forwards, letters the backwards of the same micro-batches, `|` an update (no time):

    stage 0: 0123...a4b|5c6d|7e.f|.g.h|
    stage 1:  012..a3b|4c5d|6e7f|.g.h|
    stage 2:   01.a2b|3c4d|5e6f|7g.h|
    stage 3:    0a1b|2c3d|4e5f|6g7h|

Stage k of N forwards micro-batches 0..N-1-k, then strictly alternates backward and forward; the backward of each T-th
micro-batch is followed by the stage's update (XPipe, arXiv 1911.04610; T = 1 is PipeDream's order). Methods differ in
the weights that an op uses, in the copies held (`simulator.memory.versions`), and here in the ops that predict weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags
from simulator.schedules.flushed import alternation
from simulator.schedules.ops import OpKind, computes
from simulator.schedules.schedule import Columns, Schedule, check_size, from_columns

Predicts = Literal["never", "bellwether", "always"]
"""Micro-batches with a weight prediction before them: none, the first of a mini-batch (XPipe's bellwether), or every one."""


@dataclass(frozen=True, slots=True)
class VersionMethod:
    """The additions of a method to the staircase.

    summary: one line for `pipeplan list`
    before_forward, before_backward: where PREDICT ops stand
    on_last_stage: the last stage, which has no delay, predicts too
    covers_stages: the method is made for T of at least the number of stages, which is then T's default; otherwise that is 1
    """

    summary: str
    before_forward: Predicts = "never"
    before_backward: Predicts = "never"
    on_last_stage: bool = True
    covers_stages: bool = False


VERSION_METHODS: dict[str, VersionMethod] = {
    "naive": VersionMethod("asynchronous micro-batches on whatever weights are present, nothing stashed"),
    "2bw": VersionMethod(
        "PipeDream-2BW: two buffered weight versions, an update every T micro-batches", covers_stages=True
    ),
    "spectrain-v1": VersionMethod("SpecTrain, weights predicted for every forward and backward", "always", "always"),
    "spectrain-v2": VersionMethod(
        "SpecTrain, weights predicted for the forward and kept for its backward", "always", on_last_stage=False
    ),
    "xpipe": VersionMethod(
        "XPipe: asynchronous micro-batches, the first of a mini-batch predicts weights", "bellwether", "bellwether"
    ),
    "pipeoptim": VersionMethod("PipeOptim: weights predicted for every forward", "always"),
    "pipemare": VersionMethod(
        "PipeMare: stale forwards, every backward on corrected weights", before_backward="always", on_last_stage=False
    ),
}
"""Method -> what it adds to the staircase; the names are those of `PREDICTION_RULES` and `COPY_RULES`."""

METHOD_SCHEDULES: dict[str, str] = {
    "synchronous": "1f1b",
    "pipedream": "naive",
    "vertical-sync": "naive",
    "xpipe-exact": "xpipe",
    **{name: name for name in VERSION_METHODS},
}
"""Method of training -> schedule family that it runs on, for any T (PipeDream's own family is the staircase at T = 1)."""


def staircase(name: str, stages: int, microbatches: int, microbatches_per_minibatch: int | None = None) -> Schedule:
    """The staircase of method `name`; an incomplete last mini-batch makes no update. ValueError for T below 1.

    The order exists for any T; 2BW with T below N is not refused here, but holds more than its two versions.
    """
    method = VERSION_METHODS[name]
    default = stages if method.covers_stages else 1
    per_minibatch = default if microbatches_per_minibatch is None else microbatches_per_minibatch
    if per_minibatch < 1:
        raise ValueError(f"micro-batches per mini-batch must be at least 1, got {per_minibatch}")
    columns = [_stage(method, k, stages, microbatches, per_minibatch) for k in range(stages)]
    return from_columns(name, stages, microbatches, columns, flush=False)


def _stage(method: VersionMethod, k: int, stages: int, microbatches: int, per_minibatch: int) -> Columns:
    kind, number = alternation(microbatches, stages - 1 - k)
    forward, bellwether = kind == OpKind.FORWARD, number % per_minibatch == 0
    predicts = np.zeros(len(kind), dtype=bool)
    if method.on_last_stage or k < stages - 1:
        for direction, which in ((forward, method.before_forward), (~forward, method.before_backward)):
            predicts |= direction & {"never": False, "bellwether": bellwether, "always": True}[which]
    updates = ~forward & (number % per_minibatch == per_minibatch - 1)
    before, after = np.flatnonzero(predicts), np.flatnonzero(updates)
    # np.insert puts an update of the op before a position ahead of the prediction of the op at it: in this order
    positions = np.concatenate([after + 1, before])
    kinds = np.concatenate([np.full(len(after), OpKind.UPDATE), np.full(len(before), OpKind.PREDICT)])
    numbers = np.concatenate([number[after] // per_minibatch, number[before]])
    return (
        np.full(len(kind) + len(positions), k, dtype=np.int32),
        np.insert(kind, positions, kinds.astype(kind.dtype)),
        np.insert(number, positions, numbers.astype(number.dtype)),
    )


def repeated_minibatches(schedule: Schedule, times: int) -> Schedule:
    """A flushed schedule run for `times` mini-batches, each stage's update after its last op of each.

    Raises ValueError for a schedule that does not flush, or whose forwards and backwards, or micro-batches of one stage, stand in
    different lists.
    """
    several = schedule.lanes is not None or schedule.credit is not None or bool((schedule.replicas() > 1).any())
    if several or not schedule.flush:
        raise ValueError(
            f"mini-batches of schedule {schedule.name!r} cannot be repeated: it is no flushed order of whole stages"
        )
    check_size(schedule.stages, schedule.microbatches * times)
    columns: list[Columns] = []
    overlapped: list[Flags] = []
    for rank in range(schedule.ranks):
        rows = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
        held = np.unique(schedule.stage[rows][computes(schedule.kind[rows])])  # none of a link to a host
        one = np.concatenate([schedule.kind[rows], np.full(len(held), OpKind.UPDATE, dtype=np.int8)])
        minibatch = np.repeat(np.arange(times, dtype=np.int32), len(one))
        kind = np.tile(one, times)
        number = np.tile(np.concatenate([schedule.microbatch[rows], np.zeros(len(held), dtype=np.int32)]), times)
        number += minibatch * np.where(kind == OpKind.UPDATE, 1, schedule.microbatches).astype(np.int32)
        columns.append((np.tile(np.concatenate([schedule.stage[rows], held]), times), kind, number))
        if schedule.overlapped is not None:
            pairs = np.concatenate([schedule.overlapped[rows], np.zeros(len(held), dtype=np.bool_)])
            overlapped.append(np.tile(pairs, times))
    repeated = from_columns(
        schedule.name,
        schedule.stages,
        schedule.microbatches * times,
        columns,
        flush=False,
        device=None if schedule.device is None else schedule.device.tolist(),
    )
    return replace(repeated, overlapped=np.concatenate(overlapped)) if overlapped else repeated


def microbatches_per_minibatch(schedule: Schedule) -> int:
    """Micro-batches per update of a schedule, T: those before the first update of its first stage.

    All of them where the schedule is flushed or its lists hold no update; 1 where replicas take mini-batches in turn.
    """
    if schedule.flush:
        return schedule.microbatches
    if (schedule.replicas() > 1).any():
        return 1
    rank = int(schedule.rank_of_row()[np.argmax(schedule.stage == 0)])
    rows = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    kinds: NDArray[np.int8] = schedule.kind[rows][schedule.stage[rows] == 0]
    updates = np.flatnonzero(kinds == OpKind.UPDATE)
    if len(updates) == 0:
        return schedule.microbatches
    gradients = np.isin(kinds[: updates[0]], (OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT))
    return max(1, int(np.count_nonzero(gradients)))


BUILDERS = {name: partial(staircase, name) for name in VERSION_METHODS}
"""Schedule family -> (stages, microbatches, microbatches_per_minibatch) -> Schedule."""
