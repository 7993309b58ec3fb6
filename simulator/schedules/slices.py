"""Slices of sequences: an op is a part of a micro-batch's tokens (Sun et al. 2024, "Seq1F1B", arXiv 2406.03488).

Under causal attention the forward of a slice needs the slices before it on its stage, its backward those behind it. An order of
slices that keeps to that needs no rule beside those of micro-batches: slice i of micro-batch j of k slices is number j·k + i. 2
stages, 2 micro-batches of 2 slices, B = F; digits are forwards, letters the backwards of the same slices:

    stage 0: 012.b3a.dc
    stage 1:  01b2a3dc
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np

from hardware_profiles import Bounds
from simulator.schedules.flushed import alternation
from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import Columns, Schedule, check_size, from_columns


def seq1f1b(stages: int, microbatches: int, slices: Annotated[int, Bounds(ge=1)] = 1) -> Schedule:
    """Seq1F1B: stage s of p runs p-s + k-2 forwards of slices, then alternates; backwards take a micro-batch's last slice first.

    slices: of each micro-batch's sequence, k; the schedule's micro-batches are these slices
    Equal slices, transfers free: (mk + p-1)(F+B) for F and B of a slice; stage s holds at most p-s + k-1 slices.
    """
    if slices < 1:
        raise ValueError(f"slices of a sequence must be at least 1, got {slices}")
    count = microbatches * slices
    check_size(stages, count)
    latest_first = np.arange(count).reshape(microbatches, slices)[:, ::-1].ravel()

    def columns(stage: int) -> Columns:
        kind, position = alternation(count, stages - stage + slices - 2)
        number = np.where(kind == OpKind.FORWARD, position, latest_first[position])
        return np.full(len(kind), stage), kind, number

    return replace(from_columns("seq1f1b", stages, count, [columns(stage) for stage in range(stages)]), slices=slices)
