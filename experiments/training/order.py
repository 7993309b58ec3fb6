"""Training order: what a timeline says about numerics: which op comes next, and when each update was done."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator import COLLECTIVE_KINDS, COMPUTE_KINDS, LETTERS, OpKind, Timeline, event_order, replicas_in_turn

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingOrder:
    """Ops of a whole training run in one sequence that respects every stage's order and every dependency.

    stages N, microbatches_per_minibatch T, minibatches M
    stage, replica, kind, microbatch: one entry per op (F, B, I, W, and U with its mini-batch), all of equal length
    update_seconds: (M,) when the last stage to do so had finished the update with mini-batch m
    makespan: seconds at which the last op ended
    replicas: per stage, those that take mini-batches in turn and update together for as many of them, a round; 1 where
        replicas split every micro-batch, which is the numerics of one
    """

    stages: int
    microbatches_per_minibatch: int
    minibatches: int
    stage: Integers
    replica: Integers
    kind: Integers
    microbatch: Integers
    update_seconds: NDArray[np.float64]
    makespan: float
    replicas: tuple[int, ...]


def training_order(timeline: Timeline, microbatches_per_minibatch: int) -> TrainingOrder:
    """Read the order of a replayed timeline: per stage by time (see `event_order`), then sequenced across stages.

    Works for any timeline in which every micro-batch passes every stage forward and backward and every stage updates
    once per mini-batch; where replicas take mini-batches in turn, the one that ran it does, after all of its round.
    ValueError: a missing or doubled op, updates out of order, or an order that cannot run.
    """
    if microbatches_per_minibatch < 1:
        raise ValueError(f"micro-batches per mini-batch must be at least 1, got {microbatches_per_minibatch}")
    if timeline.stage.size == 0:
        raise ValueError("training needs a timeline with at least one op, got none")
    takers = replicas_in_turn(timeline)
    rows = event_order(timeline)
    kinds = timeline.kind.astype(np.int64)
    rows = rows[np.isin(kinds[rows], (*COMPUTE_KINDS, OpKind.UPDATE))]
    stage, replica = (column.astype(np.int64) for column in (timeline.stage, timeline.replica))
    rows = rows[(replica[rows] == 0) | (takers[stage[rows]] > 1)]  # of replicas that split micro-batches one is enough
    rows = rows[_last_parts(timeline)[rows]]
    stage, replica = stage[rows], replica[rows]
    kind, microbatch = kinds[rows], timeline.microbatch.astype(np.int64)[rows]

    total = int(microbatch[kind == OpKind.FORWARD].max(initial=-1)) + 1
    minibatches, ragged = divmod(total, microbatches_per_minibatch)
    if ragged or total == 0:
        raise ValueError(
            f"training needs whole mini-batches of {microbatches_per_minibatch} micro-batches, got {total} micro-batches"
        )
    if microbatches_per_minibatch > 1 and takers.max() > 1:
        raise ValueError(f"replicas in turn take whole mini-batches, got T={microbatches_per_minibatch}")
    order = TrainingOrder(
        int(stage.max()) + 1,
        microbatches_per_minibatch,
        minibatches,
        *(stage, replica, kind, microbatch),
        np.zeros(minibatches),
        float(timeline.end.max()),
        tuple(takers.tolist()),
    )
    _check_complete(order)
    update = kind == OpKind.UPDATE
    np.maximum.at(order.update_seconds, microbatch[update], timeline.end[rows[update]])
    sequence = _runnable(order)
    columns = {name: getattr(order, name)[sequence] for name in ("stage", "replica", "kind", "microbatch")}
    return replace(order, **columns)


def _last_parts(timeline: Timeline) -> NDArray[np.bool_]:
    """Which rows end an op: the parts into which collectives cut an op stand in a row."""
    columns = (timeline.stage, timeline.replica, timeline.kind, timeline.microbatch)
    same = np.all([np.diff(column) == 0 for column in columns], axis=0)
    reduced = np.isin(timeline.kind, COLLECTIVE_KINDS)
    parts = np.isin(timeline.stage, timeline.stage[reduced])
    return ~(np.append(same, False) & parts)


def _check_complete(order: TrainingOrder) -> None:
    """Every stage: each micro-batch once forward and once backward (whole or split), each update once, in order.

    Replicas in turn update in the order of their rounds.
    """
    kind, microbatch, minibatches = order.kind, order.microbatch, order.minibatches
    total = minibatches * order.microbatches_per_minibatch
    for k, count in enumerate(order.replicas):
        mine = order.stage == k
        whole = microbatch[mine & (kind == OpKind.BACKWARD)]
        split = [microbatch[mine & (kind == half)] for half in (OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT)]
        wanted = np.arange(total)
        for what, found in (
            ("forward", microbatch[mine & (kind == OpKind.FORWARD)]),
            ("input gradient", np.concatenate([whole, split[0]])),
            ("weight gradient", np.concatenate([whole, split[1]])),
        ):
            if not np.array_equal(np.sort(found), wanted):
                raise ValueError(
                    f"stage {k} must have the {what} of each of {total} micro-batches once, got {found.size} of them"
                )
        updates = microbatch[mine & (kind == OpKind.UPDATE)]
        if not np.array_equal(np.sort(updates) if count > 1 else updates, np.arange(minibatches)):
            raise ValueError(
                f"stage {k} must update once after each of {minibatches} mini-batches, in order, got updates "
                f"{', '.join(map(str, updates[:8].tolist())) or 'none'}"
            )


def _runnable(order: TrainingOrder) -> Integers:
    """Topological order of the ops' rows, which are in order of time, each as early as its dependencies allow.

    Dependencies: the op before on the same replica; the forward of the stage before; the input gradient of the stage
    behind (the own forward on the last stage); for an update of replicas in turn the gradients of its round. Equal times
    of ops without duration may need the reordering.
    """
    stage, replica, kind, microbatch = order.stage, order.replica, order.kind, order.microbatch
    takers, per_minibatch = order.replicas, order.microbatches_per_minibatch

    def rows_of(*kinds: OpKind) -> Integers:
        """Row of each stage's op of these kinds for each micro-batch: [stages, micro-batches]."""
        table = np.empty((order.stages, int(microbatch.max()) + 1), np.int64)
        chosen = np.flatnonzero(np.isin(kind, kinds))
        table[stage[chosen], microbatch[chosen]] = chosen
        return table

    forward = rows_of(OpKind.FORWARD)
    backward, weights = (rows_of(OpKind.BACKWARD, k) for k in (OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT))
    for early, late, what in (
        (forward, backward, "the backward of micro-batch {} before its forward"),
        (backward, weights, "the weight gradient of micro-batch {} before its input gradient"),
    ):
        for k, i in np.argwhere(early > late).tolist():
            raise ValueError(f"stage {k} runs {what.format(i)}")
    before: list[list[int]] = [[] for _ in kind]
    for lane in np.unique(np.stack([stage, replica]), axis=1).T:
        for one, following in pairwise(np.flatnonzero((stage == lane[0]) & (replica == lane[1])).tolist()):
            before[following].append(one)
    for early, late in ((forward[:-1], forward[1:]), (backward[1:], backward[:-1])):
        for one, following in zip(early.ravel().tolist(), late.ravel().tolist(), strict=True):
            before[following].append(one)
    ended = np.sort(weights, axis=1)
    for row in np.flatnonzero(kind == OpKind.UPDATE).tolist():
        k, i = int(stage[row]), int(microbatch[row])
        if takers[k] > 1:
            first = i // takers[k] * takers[k]
            before[row] += weights[k, first : first + takers[k]].tolist()
        elif (done := int(np.searchsorted(ended[k], row))) != (i + 1) * per_minibatch:
            raise ValueError(
                f"stage {k} makes update {i} after the gradients of {done} micro-batches, not {(i + 1) * per_minibatch}"
            )
    sorter = TopologicalSorter(dict(enumerate(before)))
    try:
        sorter.prepare()
    except CycleError as error:
        one, row = next((a, b) for a, b in pairwise(error.args[1]) if stage[a] != stage[b])
        raise ValueError(
            f"the order cannot run: stage {stage[row]} waits for {LETTERS[kind[one]]} of micro-batch {microbatch[one]} "
            f"on stage {stage[one]}"
        ) from None
    ready: list[int] = []
    sequence: list[int] = []
    while sorter:
        for row in sorter.get_ready():
            heapq.heappush(ready, row)
        sequence.append(heapq.heappop(ready))
        sorter.done(sequence[-1])
    return np.array(sequence, np.int64)


def joined(first: TrainingOrder, second: TrainingOrder) -> TrainingOrder:
    """`second` begun when `first` has drained, mini-batches numbered on: a synchronous warm-up, then a pipeline.

    ValueError: a different number of stages or of micro-batches per mini-batch.
    """
    one, other = ((order.stages, order.microbatches_per_minibatch) for order in (first, second))
    if one != other:
        raise ValueError(f"joined orders must have the same stages and micro-batches, got {one} and {other}")
    return _one_after_the_other([first, second], first.makespan + second.makespan)


def repeated(order: TrainingOrder, times: int) -> TrainingOrder:
    """`order` run `times` over, each begun when the one before has drained: a synchronous run from one iteration.

    ValueError: times < 1.
    """
    if times < 1:
        raise ValueError(f"an order is repeated at least once, got {times}")
    return _one_after_the_other([order] * times, order.makespan * times)


def _one_after_the_other(orders: Sequence[TrainingOrder], makespan: float) -> TrainingOrder:
    first = orders[0]
    for order in orders:
        if max(order.replicas) > 1:
            raise ValueError(f"an order whose replicas take turns cannot be continued, got replicas {order.replicas}")
    minibatches = np.cumsum([0, *(order.minibatches for order in orders)])
    begins = [number * first.makespan for number in range(len(orders))]  # only the last one may differ from the first
    numbers = [
        order.microbatch + np.where(order.kind == OpKind.UPDATE, 1, first.microbatches_per_minibatch) * done
        for order, done in zip(orders, minibatches, strict=False)
    ]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(order, name) for order in orders]) for name in ("stage", "replica", "kind")
    }
    return replace(
        first,
        minibatches=int(minibatches[-1]),
        **columns,
        microbatch=np.concatenate(numbers),
        update_seconds=np.concatenate([at + order.update_seconds for at, order in zip(begins, orders, strict=True)]),
        makespan=makespan,
    )
