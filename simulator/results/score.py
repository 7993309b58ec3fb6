"""Score: how good a plan is, in the numbers that a search compares."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Score:
    """How good a plan is.

    iteration_seconds: for one batch of the problem (steady state of an asynchronous plan)
    peak_bytes, capacity_bytes: of the device whose peak memory is the largest part of its capacity, the first of equals: `device`
    """

    iteration_seconds: float
    peak_bytes: float
    capacity_bytes: float
    device: int

    @property
    def fits(self) -> bool:
        """Whether every device holds its peak."""
        return self.peak_bytes <= self.capacity_bytes

    @property
    def key(self) -> tuple[float, float]:
        """Smaller is better: first how far memory is exceeded (0 if it fits), then seconds."""
        return max(0.0, self.peak_bytes / self.capacity_bytes - 1.0), self.iteration_seconds
