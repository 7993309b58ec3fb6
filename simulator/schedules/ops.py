"""Op: one operation of one stage on one micro-batch, and its kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from hardware_profiles import shown


class OpKind(IntEnum):
    """What an operation does; the letters are those of `torch.distributed.pipelining`."""

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


LETTERS = "FBIWUPRSV"
"""Letter of each kind, by its number."""

COMPUTE_KINDS = (OpKind.FORWARD, OpKind.BACKWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT)
"""The kinds that torch calls compute: F B I W."""

BACKWARD_KINDS = (OpKind.BACKWARD, OpKind.INPUT_GRADIENT)
"""The kinds that the stage before waits for, and that a forward may overlap."""

_PATTERN = re.compile(r"([0-9]{1,9})([FBIWUP])([0-9]{1,9})")


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
                f"op {shown(text.strip())} is not STAGE, one letter of F B I W U P, MICRO-BATCH, as in 2F0 "
                "(numbers below a thousand million)"
            )
        stage, letter, microbatch = match.groups()
        return Op(int(stage), OpKind(LETTERS.index(letter)), int(microbatch))
