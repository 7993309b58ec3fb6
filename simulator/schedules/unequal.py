"""Unequal schedules: orders of ops where every stage has micro-batches of its own, forward and backward.

    K=2, 4 samples, forward sizes (2 2 | 1 1 1 1), backward sizes (1 1 1 1 | 2 2), credits (4, 2):
    stage 0:  F0 F1 | B0 B1 B2 B3
    stage 1:  F0 F1 | B0 F2 F3 B1

Credits. Stage k runs its next forward micro-batch if afterwards the samples it has forwarded but not yet backwarded are at
most credit_k, else its next backward micro-batch. So a stage never holds more than credit_k samples, whatever the sizes.

Why it cannot deadlock. Let N_k(i) be the samples that stage k has forwarded before its backward micro-batch i in that order,
and Q the samples covered once it is done. Backward i waits for backward i' of stage k+1, the one that holds its last sample;
before i', stage k+1 forwards N_{k+1}(i') samples, which reach it in forward micro-batches of stage k up to sample U. Call U the
need of backward i (Q on the last stage), and require N_k(i) >= need of i for every i and k: the least credits of `safe_credits`
are the smallest for which it holds, found from the last stage to the first; larger ones only add to N.
Suppose that the ops that can still run are exhausted but some remain. A forward at the head of its stage waits for the stage
before, whose head then is unfinished too; stage 0 never waits, so some stage has a backward at its head that cannot run. Take
the last such stage k, and its backward i. On the last stage it needs only samples that N(i) >= Q covers, so k is not the last,
and backward i' of stage k+1 is not done. The head of stage k+1 is i' or something before it in its order. It is not a
backward: by the choice of k that one could run. So it is a forward among the first N_{k+1}(i') samples; but stage k is past the
forwards of N_k(i) >= U samples, so all that it covers has been delivered and it can run. Contradiction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hardware_profiles import Integers
from simulator.schedules.ops import LETTERS, OpKind
from simulator.schedules.schedule import Columns, Schedule, from_columns

Bounds = Integers
"""int64 [micro-batches + 1]: first sample of each micro-batch, rising, and the end."""

StageOps = list[tuple[str, int]]
"""Letter (F or B) and number of each op of one stage, in order."""

UNEQUAL_SCHEDULES = ("gpipe", "1f1b")
"""The families that have an unequal form."""


def unequal_schedule(
    name: str, forward_sizes: Sequence[Sequence[int]], backward_sizes: Sequence[Sequence[int]]
) -> Schedule:
    """The schedule `gpipe` or `1f1b` (with `safe_credits`) for micro-batch sizes in samples, one list per stage.

    `Schedule.microbatches` is the largest number of them on any stage. Transfers go by the sender's micro-batches, as
    `simulator.lowering.lower` has them. Raises ValueError for another name and sizes that do not sum to one mini-batch.
    """
    if name not in UNEQUAL_SCHEDULES:
        choices = ", ".join(UNEQUAL_SCHEDULES)
        raise ValueError(f"schedule {name!r} has no form for stages of unequal micro-batches; choices: {choices}")
    forward, backward = bounds_of(forward_sizes), bounds_of(backward_sizes)
    if name == "gpipe":
        orders = flush_orders(forward, backward)
    else:
        orders = credited_orders(forward, backward, safe_credits(forward, backward))
    columns: list[Columns] = [
        (
            np.full(len(order), stage, dtype=np.int32),
            np.array([LETTERS.index(letter) for letter, _ in order], dtype=np.int8),
            np.array([number for _, number in order], dtype=np.int32),
        )
        for stage, order in enumerate(orders)
    ]
    return from_columns(name, len(orders), max(len(one) - 1 for one in (*forward, *backward)), columns)


def bounds_of(sizes: Sequence[Sequence[int]]) -> list[Bounds]:
    """Bounds of each stage's micro-batches; ValueError unless all stages cover the same samples in sizes of at least 1."""
    bounds = []
    for stage, one in enumerate(sizes):
        values = np.asarray(one, dtype=np.int64)
        if len(values) == 0 or values.min() < 1:
            raise ValueError(f"sizes of stage {stage} must be at least 1 sample each, got {values.tolist()}")
        bounds.append(np.concatenate([[0], np.cumsum(values)]).astype(np.int64))
        if bounds[-1][-1] != bounds[0][-1]:
            raise ValueError(
                f"sizes of stage {stage} sum to {bounds[-1][-1]} samples, those of stage 0 to {bounds[0][-1]}"
            )
    if not bounds:
        raise ValueError("sizes need at least one stage, got none")
    return bounds


def flush_orders(forward: Sequence[Bounds], backward: Sequence[Bounds]) -> list[StageOps]:
    """All forwards of a stage, then all its backwards (GPipe)."""
    letters = LETTERS[OpKind.FORWARD], LETTERS[OpKind.BACKWARD]
    return [
        [(letter, j) for letter, bounds in zip(letters, pair, strict=True) for j in range(len(bounds) - 1)]
        for pair in zip(forward, backward, strict=True)
    ]


def credited_orders(forward: Sequence[Bounds], backward: Sequence[Bounds], credits: Sequence[int]) -> list[StageOps]:
    """The order of every stage under credits in samples (see above): those of `safe_credits` cannot deadlock."""
    orders = []
    for ahead, back, credit in zip(forward, backward, credits, strict=True):
        order: StageOps = []
        begun = 0
        for i in range(len(back) - 1):
            stop = max(begun, _within(ahead, int(back[i]) + int(credit)))
            order += [("F", j) for j in range(begun, stop)]
            order.append(("B", i))
            begun = stop
        orders.append(order)
    return orders


def safe_credits(forward: Sequence[Bounds], backward: Sequence[Bounds], ahead: int = 1) -> list[int]:
    """`ahead` larger micro-batches more than the least at every stage but the last: for equal sizes b, (K - k) b samples.

    That is classic 1F1B: stage k starts with K - k forwards. More `ahead` hides links, and costs memory.
    """
    stages, samples = len(forward), int(forward[0][-1])
    credits = [0] * stages
    for stage in range(stages - 1, -1, -1):
        for begin, end in zip(backward[stage][:-1].tolist(), backward[stage][1:].tolist(), strict=True):
            need = end
            if stage + 1 < stages:
                after, ahead_of = backward[stage + 1], forward[stage + 1]
                before = int(after[np.searchsorted(after, end) - 1])  # where the micro-batch that holds `end` begins
                need = max(need, int(ahead_of[_within(ahead_of, before + credits[stage + 1])]))
            credits[stage] = max(credits[stage], _up(forward[stage], need) - begin)
        if stage + 1 < stages:
            largest = max(int(np.diff(forward[stage]).max()), int(np.diff(backward[stage]).max()))
            credits[stage] = min(samples, credits[stage] + ahead * largest)
    return credits


def _within(bounds: Bounds, limit: int) -> int:
    """Micro-batches that end at or before sample `limit`."""
    return int(np.searchsorted(bounds, limit, side="right")) - 1


def _up(bounds: Bounds, count: int) -> int:
    """The end of the micro-batch that holds sample `count` (counted from 1)."""
    return int(bounds[np.searchsorted(bounds, count)])
