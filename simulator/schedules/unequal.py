"""Unequal schedules: orders of ops where every stage has micro-batches of its own, forward and backward.

    K=2, 4 samples, forward sizes (2 2 | 1 1 1 1), backward sizes (1 1 1 1 | 2 2), credits (4, 2):
    stage 0:  F0 F1 | B0 B1 B2 B3
    stage 1:  F0 F1 | B0 F2 F3 B1

Credits. Stage k runs its next forward micro-batch if afterwards the samples it has forwarded but not yet backwarded are at
most credit_k, else its next backward micro-batch. So a stage never holds more than credit_k samples, whatever the sizes.

Why it cannot deadlock. Let N_k(i) be the samples that stage k has forwarded before its backward micro-batch i in that order,
and Q the samples covered once it is done. Backward i waits for a backward link block, which waits for backward i' of stage
k+1, the one that holds the last sample of that link block; before i', stage k+1 forwards N_{k+1}(i') samples, which reach it
in forward link blocks up to sample U. Call U the need of backward i (Q on the last stage), and require N_k(i) >= need of i for
every i and k: `least_safe_credits` are the smallest credits for which it holds, found from the last stage to the first.
Suppose that the ops that can still run are exhausted but some remain. A forward at the head of its stage waits for the stage
before, whose head then is unfinished too; stage 0 never waits, so some stage has a backward at its head that cannot run. Take
the last such stage k, and its backward i. On the last stage it needs only samples that N(i) >= Q covers, so k is not the last,
and backward i' of stage k+1 is not done. The head of stage k+1 is i' or something before it in its order. It is not a
backward: by the choice of k that one could run. So it is a forward among the first N_{k+1}(i') samples; but stage k is past the
forwards of N_k(i) >= U samples, so the links have delivered all that it covers and it can run. Contradiction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.ops import LETTERS, OpKind
from simulator.schedules.schedule import Columns, Schedule, from_columns

Bounds = NDArray[np.int64]
"""int64 [micro-batches + 1]: first sample of each micro-batch, rising, and the end."""

Order = list[tuple[str, int]]
"""Letter (F or B) and number of each op of one stage, in order."""

UNEQUAL_SCHEDULES = ("gpipe", "1f1b")
"""The families that have an unequal form."""


def unequal_schedule(
    name: str, forward_sizes: Sequence[Sequence[int]], backward_sizes: Sequence[Sequence[int]]
) -> Schedule:
    """The schedule `gpipe` or `1f1b` (with `safe_credits`) for micro-batch sizes in samples, one list a stage.

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


def flush_orders(forward: Sequence[Bounds], backward: Sequence[Bounds]) -> list[Order]:
    """All forwards of a stage, then all its backwards (GPipe)."""
    letters = LETTERS[OpKind.FORWARD], LETTERS[OpKind.BACKWARD]
    return [
        [(letter, j) for letter, bounds in zip(letters, pair, strict=True) for j in range(len(bounds) - 1)]
        for pair in zip(forward, backward, strict=True)
    ]


def credited_orders(
    forward: Sequence[Bounds],
    backward: Sequence[Bounds],
    credits: Sequence[int],
    forward_links: Sequence[Bounds] | None = None,
    backward_links: Sequence[Bounds] | None = None,
) -> list[Order]:
    """The order of every stage under credits in samples (see above), which cannot deadlock.

    forward_links, backward_links: block bounds of the link between stages k and k+1, by k; default the sender's
    Raises ValueError for credits below the least that are safe.
    """
    if len(credits) != len(forward):
        raise ValueError(f"credits must be {len(forward)} numbers of samples, one a stage, not {list(credits)}")
    least = least_safe_credits(forward, backward, credits, forward_links, backward_links)
    if any(credit < limit for credit, limit in zip(credits, least, strict=True)):
        raise ValueError(f"credits {list(credits)} can deadlock: with these sizes they must be at least {least}")
    orders = []
    for ahead, back, credit in zip(forward, backward, credits, strict=True):
        order: Order = []
        begun = 0
        for i in range(len(back) - 1):
            stop = max(begun, _within(ahead, int(back[i]) + int(credit)))
            order += [("F", j) for j in range(begun, stop)]
            order.append(("B", i))
            begun = stop
        orders.append(order)
    return orders


def safe_credits(
    forward: Sequence[Bounds],
    backward: Sequence[Bounds],
    ahead: int = 1,
    forward_links: Sequence[Bounds] | None = None,
    backward_links: Sequence[Bounds] | None = None,
) -> list[int]:
    """`ahead` larger micro-batches more than the least at every stage but the last: for equal sizes b, (K - k) b samples.

    That is classic 1F1B: stage k starts with K - k forwards. More `ahead` hides links, and costs memory.
    """
    return _credits(forward, backward, None, ahead, forward_links, backward_links)


def least_safe_credits(
    forward: Sequence[Bounds],
    backward: Sequence[Bounds],
    credits: Sequence[int] | None = None,
    forward_links: Sequence[Bounds] | None = None,
    backward_links: Sequence[Bounds] | None = None,
) -> list[int]:
    """The least credit of every stage that is safe, given those of the stages after it (`credits`; None: their least)."""
    return _credits(forward, backward, credits, 0, forward_links, backward_links)


def _credits(
    forward: Sequence[Bounds],
    backward: Sequence[Bounds],
    given: Sequence[int] | None,
    ahead: int,
    forward_links: Sequence[Bounds] | None,
    backward_links: Sequence[Bounds] | None,
) -> list[int]:
    stages, samples = len(forward), int(forward[0][-1])
    down = forward[:-1] if forward_links is None else forward_links
    up = backward[1:] if backward_links is None else backward_links
    least = [0] * stages
    later = 0
    for stage in range(stages - 1, -1, -1):
        for begin, end in zip(backward[stage][:-1].tolist(), backward[stage][1:].tolist(), strict=True):
            need = end
            if stage + 1 < stages:
                sent = _up(up[stage], end)
                after = int(np.searchsorted(backward[stage + 1], sent)) - 1
                ahead_of = forward[stage + 1]
                reached = int(ahead_of[_within(ahead_of, int(backward[stage + 1][after]) + later)])
                need = max(need, _up(down[stage], reached))
            least[stage] = max(least[stage], _up(forward[stage], need) - begin)
        if given is not None:
            later = int(given[stage])
        elif stage + 1 < stages and ahead:
            largest = max(int(np.diff(forward[stage]).max()), int(np.diff(backward[stage]).max()))
            later = least[stage] = min(samples, least[stage] + ahead * largest)
        else:
            later = least[stage]
    return least


def _within(bounds: Bounds, limit: int) -> int:
    """Micro-batches that end at or before sample `limit`."""
    return int(np.searchsorted(bounds, limit, side="right")) - 1


def _up(bounds: Bounds, count: int) -> int:
    """The end of the micro-batch that holds sample `count` (counted from 1)."""
    return int(bounds[np.searchsorted(bounds, count)])
