"""Op: one operation of one stage on one micro-batch, and its kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, shown


class OpKind(IntEnum):
    """Kind of an operation; the letters are those of `torch.distributed.pipelining`."""

    FORWARD = 0
    BACKWARD = 1
    """Full backward: input gradient and weight gradient together."""
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3
    UPDATE = 4
    """Optimizer step; its micro-batch number is the number of the mini-batch."""
    PREDICT = 5
    """Weight prediction; reads weights and optimizer moments, writes a copy."""
    REDUCE = 6
    """Gradient all-reduce among the replicas of a stage."""
    SEND = 7
    """A transfer that occupies the sender's compute lane."""
    RECEIVE = 8
    """A transfer that occupies the receiver's compute lane."""
    RECOMPUTE = 9
    """Recomputation: the forward again, before the backward of a stage that has not kept its activations."""
    OFFLOAD = 10
    """Activations of a forward move to the host, on a lane of their own."""
    RELOAD = 11
    """Activations move back to the device, before their backward."""
    SCATTER = 12
    """Reduce-scatter of gradients among the replicas of a stage (ZeRO 1 to 3)."""
    GATHER = 13
    """All-gather of weights among the replicas of a stage (ZeRO 1 to 3)."""


LETTERS = "FBIWUPRSVAOLTG"
"""Letter of each kind, by its number: those of torch, and A for the forward again, O for offload, L for load back, T for
reduce-scatter, G for all-gather."""

COMPUTE_KINDS = (OpKind.FORWARD, OpKind.BACKWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT)
"""The kinds that torch calls compute: F B I W."""


def computes(kind: NDArray[np.integer]) -> Flags:
    """Mask of the kinds that compute on a micro-batch: those of torch, and recomputation."""
    return np.asarray((kind <= OpKind.WEIGHT_GRADIENT) | (kind == OpKind.RECOMPUTE))


def among(kind: NDArray[np.integer], kinds: tuple[OpKind, ...]) -> Flags:
    """Mask of the rows of a column that are of some kinds."""
    return np.asarray(_table(kinds)[kind])


@cache
def _table(kinds: tuple[OpKind, ...]) -> Flags:
    return np.array([one in kinds for one in OpKind])


HOST_KINDS = (OpKind.OFFLOAD, OpKind.RELOAD)
"""Kinds with lists of their own: they occupy the link to the host, not the device."""

BETWEEN_KINDS = (OpKind.UPDATE, OpKind.PREDICT)
"""Kinds of ops between those of micro-batches; they cover no samples."""

BACKWARD_KINDS = (OpKind.BACKWARD, OpKind.INPUT_GRADIENT)
"""Kinds that the previous stage waits for, and that a forward may overlap."""

COLLECTIVE_KINDS = (OpKind.REDUCE, OpKind.SCATTER, OpKind.GATHER)
"""Collectives of the replicas of a stage, on lanes of their own."""

_PATTERN = re.compile(r"([0-9]{1,9})([FBIWAUPOL])([0-9]{1,9})")


@dataclass(frozen=True, slots=True, order=True)
class Op:
    """One op as a person reads it: `2F0` is stage 2, forward, micro-batch 0."""

    stage: int
    kind: OpKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{LETTERS[self.kind]}{self.microbatch}"

    @staticmethod
    def parse(text: str) -> Op:
        """Read `2F0`; ValueError for anything else."""
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"op {shown(text.strip())} is not STAGE, one letter of F B I W A U P O L, MICRO-BATCH, as in 2F0 "
                "(numbers below a thousand million)"
            )
        stage, letter, microbatch = match.groups()
        return Op(int(stage), OpKind(LETTERS.index(letter)), int(microbatch))
