"""Accelerator: one device that computes, and the work that it is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeGuard, get_args, runtime_checkable

Phase = Literal["forward", "backward", "input_gradient", "weight_gradient"]
"""`backward` is the full backward pass: input gradient plus weight gradient."""

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8"]

PRECISION_BYTES: dict[str, int] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
"""Bytes of one stored element at each precision (tf32 is stored as fp32)."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one layer asks of an accelerator for ONE sample of the forward pass.

    kind: kind of layer, one of `simulator.workloads.layers.LAYER_KINDS`
    flop: forward FLOP a sample (a multiply-add counts 2)
    input_elements, output_elements: tensor elements read and written a sample
    parameters: weight elements, read once a call whatever the number of samples
    sequential_steps: dependent kernel calls a pass (time steps of a recurrent layer), 1 otherwise
    """

    kind: str
    flop: float
    input_elements: float
    output_elements: float
    parameters: float
    sequential_steps: int = 1


@runtime_checkable
class Accelerator(Protocol):
    """One device: how much it holds and how long it takes."""

    @property
    def name(self) -> str:
        """Identifier, as in `v100-sxm2`."""

    @property
    def memory_bytes(self) -> float:
        """Device memory in bytes."""

    @property
    def streams(self) -> bool:
        """Whether the layers of a stage work at the same time, and send while they compute: a `StreamingAccelerator`."""

    @property
    def sublinear(self) -> bool:
        """Whether seconds never fall as samples rise, and seconds a sample never rise."""

    def seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """Seconds of one pass of one layer over `samples` samples."""


class StreamingAccelerator(Accelerator, Protocol):
    """One whose layers work at the same time, so that a stage is no sum of its layers."""

    def stage_seconds(self, works: Sequence[Work], samples: float, phase: Phase, precision: Precision) -> float:
        """Seconds of one pass of a stage of layers over `samples` samples."""

    def multiply_seconds(self, work: Work, phase: Phase, precision: Precision) -> float:
        """Seconds of one layer's multiply-adds for a sample on the whole device: what no division of it undercuts."""


def streaming(accelerator: Accelerator) -> TypeGuard[StreamingAccelerator]:
    """Whether an accelerator streams, for code that asks it what only those answer."""
    return accelerator.streams


PHASES: tuple[str, ...] = get_args(Phase)
"""The names of the phases, in the order of `Phase`."""


def check_request(
    name: str,
    work: Work,
    samples: float,
    phase: str,
    precision: str,
    kinds: Iterable[str],
    precisions: Iterable[str],
) -> None:
    """Raise ValueError, in one line, unless a device of that name can time this request.

    kinds, precisions: those that the device knows
    """
    if not samples > 0.0:
        raise ValueError(f"{name}: samples must be above 0: {samples}")
    if phase not in PHASES:
        raise ValueError(f"{name}: unknown phase {phase!r}; choose from {', '.join(PHASES)}")
    known_precisions = tuple(precisions)
    if precision not in known_precisions:
        raise ValueError(
            f"{name}: the profile gives no rate for precision {precision!r}; it has {', '.join(known_precisions)}"
        )
    known_kinds = tuple(kinds)
    if work.kind not in known_kinds:
        raise ValueError(f"{name}: unknown kind of layer {work.kind!r}; choose from {', '.join(known_kinds)}")
    if work.sequential_steps < 1:
        raise ValueError(f"{name}: sequential_steps must be at least 1: {work.sequential_steps}")
