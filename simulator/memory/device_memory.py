"""Device memory: bytes on one device over a replay, by category."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hardware_profiles import GIB, Floats, brief, gibibytes

CATEGORIES = ("weights", "weight versions", "gradients", "optimizer", "activations", "workspace", "buffers")
"""What memory holds. Weight versions: copies beside the current weights; workspace: activations that a recomputing backward makes
again, gradients of weights before they are added up, and what a stack's libraries allocate; buffers: boundary tensors that are
being sent or wait to be used."""


@dataclass(frozen=True, eq=False)
class DeviceMemory:
    """Memory of one device over a replay, bytes by category.

    device: id; capacity_bytes: what a plan may allocate (`Problem.room_bytes`); reserve_bytes: of the accelerator
    reserved_bytes, driver_bytes: at the peak what the caching allocator holds, and what the driver shows; 0: not known
    times: float64 [steps], seconds, rising; the bytes hold from each time to the next
    bytes: float64 [steps, len(CATEGORIES)]
    activations_by_part: bytes of activations at the (first) peak by part of the layers, in the order of `ACTIVATION_PARTS`
    """

    device: int
    capacity_bytes: float
    times: Floats
    bytes: Floats
    reserve_bytes: float = 0.0
    reserved_bytes: float = 0.0
    driver_bytes: float = 0.0
    activations_by_part: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return brief(
            self, f"device {self.device}: peak {self.peak_bytes / GIB:.4g} of {gibibytes(self.capacity_bytes)}"
        )

    @cached_property
    def peak_bytes(self) -> float:
        """Peak of the allocated memory in bytes."""
        return float(self.bytes.sum(axis=1).max())

    @property
    def peak_parts(self) -> dict[str, float]:
        """Bytes by category at the (first) peak."""
        at = int(self.bytes.sum(axis=1).argmax())
        return dict(zip(CATEGORIES, self.bytes[at].tolist(), strict=True))

    @property
    def fits(self) -> bool:
        """Whether what is allocated at the peak, reserved by the stack's rule, is on the device beside its context."""
        return self.peak_bytes <= self.capacity_bytes
