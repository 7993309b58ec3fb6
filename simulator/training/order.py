"""Training order: what a timeline says about numerics: which op comes next, and when each update was done."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.ops import COMPUTE_KINDS, OpKind
from simulator.versions import Integers, TimelineColumns, event_order


@dataclass(frozen=True, slots=True, eq=False)
class TrainingOrder:
    """Ops of a whole training run in one sequence that respects every stage's order and every dependency.

    stages N, microbatches_per_minibatch T, minibatches M
    stage, kind, microbatch: one entry an op (F, B, I, W, and U with its mini-batch), all of equal length
    update_seconds: (M,) when the last stage to do so had finished update m
    makespan: seconds at which the last op ended
    """

    stages: int
    microbatches_per_minibatch: int
    minibatches: int
    stage: Integers
    kind: Integers
    microbatch: Integers
    update_seconds: NDArray[np.float64]
    makespan: float


def training_order(timeline: TimelineColumns, microbatches_per_minibatch: int) -> TrainingOrder:
    """Read the order of a replayed timeline: per stage by time (see `event_order`), then sequenced across stages.

    Works for any timeline of unreplicated stages in which every micro-batch passes every stage forward and
    backward and every stage updates once a mini-batch.
    ValueError: replicas, a missing or doubled op, updates out of order, or an order that cannot run.
    """
    if microbatches_per_minibatch < 1:
        raise ValueError(f"micro-batches a mini-batch must be at least 1, got {microbatches_per_minibatch}")
    if np.asarray(timeline.stage).size == 0:
        raise ValueError("training needs a timeline with at least one op, got none")
    if np.asarray(timeline.replica).any():
        raise ValueError(
            "training replays one replica of each stage; a replicated stage trains as its unreplicated plan does"
        )
    rows = event_order(timeline)
    kinds = np.asarray(timeline.kind).astype(np.int64)
    rows = rows[np.isin(kinds[rows], (*COMPUTE_KINDS, OpKind.UPDATE))]
    stage = np.asarray(timeline.stage).astype(np.int64)[rows]
    kind, microbatch = kinds[rows], np.asarray(timeline.microbatch).astype(np.int64)[rows]
    end = np.asarray(timeline.end, np.float64)

    stages = int(stage.max()) + 1
    total = int(microbatch[kind == OpKind.FORWARD].max(initial=-1)) + 1
    minibatches, ragged = divmod(total, microbatches_per_minibatch)
    if ragged or total == 0:
        raise ValueError(
            f"training needs whole mini-batches of {microbatches_per_minibatch} micro-batches, got {total} micro-batches"
        )
    _check_complete(stages, total, minibatches, stage, kind, microbatch)
    update = kind == OpKind.UPDATE
    seconds = np.zeros(minibatches)
    np.maximum.at(seconds, microbatch[update], end[rows[update]])
    sequence = _runnable(stages, microbatches_per_minibatch, stage, kind, microbatch)
    return TrainingOrder(
        stages,
        microbatches_per_minibatch,
        minibatches,
        stage[sequence],
        kind[sequence],
        microbatch[sequence],
        seconds,
        float(end.max()),
    )


def _check_complete(
    stages: int, total: int, minibatches: int, stage: Integers, kind: Integers, microbatch: Integers
) -> None:
    """Every stage: each micro-batch once forward and once backward (whole or split), each update once, in order."""
    for k in range(stages):
        mine = stage == k
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
        if not np.array_equal(updates, np.arange(minibatches)):
            raise ValueError(
                f"stage {k} must update once after each of {minibatches} mini-batches, in order, got updates "
                f"{', '.join(map(str, updates[:8].tolist())) or 'none'}"
            )


def _runnable(
    stages: int, per_minibatch: int, stage: Integers, kind: Integers, microbatch: Integers
) -> NDArray[np.int64]:
    """Topological order of the ops, each as early in the given (time) order as its dependencies allow.

    Dependencies: the op before on the same stage; the forward of the stage before; the input gradient of the stage
    behind (the own forward on the last stage). Equal times of ops without duration may need the reordering.
    """
    lists = [np.flatnonzero(stage == k).tolist() for k in range(stages)]
    position = [0] * stages
    forward_done: set[tuple[int, int]] = set()
    backward_done: set[tuple[int, int]] = set()
    weights_done = [0] * stages
    kinds, microbatches = kind.tolist(), microbatch.tolist()
    waiting: dict[tuple[str, int, int], int] = {}
    ready: list[tuple[int, int]] = []

    def offer(k: int) -> None:
        """Queue stage k's next op, or note the op that it waits for."""
        if position[k] == len(lists[k]):
            return
        row = lists[k][position[k]]
        i = microbatches[row]
        if kinds[row] == OpKind.FORWARD and k > 0 and (k - 1, i) not in forward_done:
            waiting["F", k - 1, i] = k
        elif (
            kinds[row] in (OpKind.BACKWARD, OpKind.INPUT_GRADIENT)
            and k < stages - 1
            and (k + 1, i) not in backward_done
        ):
            waiting["B", k + 1, i] = k
        elif kinds[row] in (OpKind.BACKWARD, OpKind.INPUT_GRADIENT) and (k, i) not in forward_done:
            raise ValueError(f"stage {k} runs the backward of micro-batch {i} before its forward")
        elif kinds[row] == OpKind.WEIGHT_GRADIENT and (k, i) not in backward_done:
            raise ValueError(f"stage {k} runs the weight gradient of micro-batch {i} before its input gradient")
        elif kinds[row] == OpKind.UPDATE and weights_done[k] != (i + 1) * per_minibatch:
            raise ValueError(
                f"stage {k} makes update {i} after the gradients of {weights_done[k]} micro-batches, not "
                f"{(i + 1) * per_minibatch}"
            )
        else:
            heapq.heappush(ready, (row, k))

    for k in range(stages):
        offer(k)
    sequence: list[int] = []
    while ready:
        row, k = heapq.heappop(ready)
        i = microbatches[row]
        sequence.append(row)
        position[k] += 1
        woken = None
        if kinds[row] == OpKind.FORWARD:
            forward_done.add((k, i))
            woken = waiting.pop(("F", k, i), None)
        elif kinds[row] in (OpKind.BACKWARD, OpKind.INPUT_GRADIENT):
            backward_done.add((k, i))
            woken = waiting.pop(("B", k, i), None)
        if kinds[row] in (OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT):
            weights_done[k] += 1
        offer(k)
        if woken is not None:
            offer(woken)
    if len(sequence) < len(kinds):
        (what, k, i), blocked = min(waiting.items(), key=lambda item: item[1])
        raise ValueError(f"the order cannot run: stage {blocked} waits for {what} of micro-batch {i} on stage {k}")
    return np.array(sequence, np.int64)


def joined(first: TrainingOrder, second: TrainingOrder) -> TrainingOrder:
    """`second` begun when `first` has drained, mini-batches numbered on: a synchronous warm-up, then a pipeline.

    ValueError: a different number of stages or of micro-batches a mini-batch.
    """
    one = (first.stages, first.microbatches_per_minibatch)
    other = (second.stages, second.microbatches_per_minibatch)
    if one != other:
        raise ValueError(f"joined orders must have the same stages and micro-batches, got {one} and {other}")
    later = np.where(
        second.kind == OpKind.UPDATE, first.minibatches, first.minibatches * first.microbatches_per_minibatch
    )
    return TrainingOrder(
        first.stages,
        first.microbatches_per_minibatch,
        first.minibatches + second.minibatches,
        np.concatenate([first.stage, second.stage]),
        np.concatenate([first.kind, second.kind]),
        np.concatenate([first.microbatch, second.microbatch + later]),
        np.concatenate([first.update_seconds, first.makespan + second.update_seconds]),
        first.makespan + second.makespan,
    )


def repeated(order: TrainingOrder, times: int) -> TrainingOrder:
    """`order` run `times` over, each begun when the one before has drained: a synchronous run from one iteration.

    ValueError: times < 1.
    """
    if times < 1:
        raise ValueError(f"an order is repeated at least once, got {times}")
    run = np.repeat(np.arange(times), order.kind.size)
    kind = np.tile(order.kind, times)
    stride = np.where(kind == OpKind.UPDATE, order.minibatches, order.minibatches * order.microbatches_per_minibatch)
    starts = np.repeat(np.arange(times) * order.makespan, order.minibatches)
    return TrainingOrder(
        order.stages,
        order.microbatches_per_minibatch,
        order.minibatches * times,
        np.tile(order.stage, times),
        kind,
        np.tile(order.microbatch, times) + run * stride,
        np.tile(order.update_seconds, times) + starts,
        order.makespan * times,
    )
