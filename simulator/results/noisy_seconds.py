"""Noisy seconds: what an iteration takes in replays with noise, and who is slow, as records and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardware_profiles import Floats, brief, percent
from simulator.options.disturbance_limits import QUANTILES
from simulator.results.text_tables import Explained, TextTable


@dataclass(frozen=True, slots=True, eq=False)
class NoisySeconds(Explained):
    """Seconds of an iteration in replays with noise.

    noise: standard deviation of the logarithm of the factor on every duration
    quiet: seconds without noise; seconds: float64 [replays]
    """

    noise: float
    quiet: float
    seconds: Floats

    def __repr__(self) -> str:
        return brief(self, f"{len(self.seconds)} replays, median {self.quantile(0.5):.6g} s")

    def quantile(self, share: float) -> float:
        """The seconds that this share of the replays takes at most, between replays by line."""
        return float(np.quantile(self.seconds, share))

    def record(self) -> dict[str, Any]:
        """The figures by name, in seconds."""
        return {
            "noise": self.noise,
            "replays": len(self.seconds),
            "quiet_seconds": self.quiet,
            "mean_seconds": float(self.seconds.mean()),
            **{f"{name}_seconds": self.quantile(share) for name, share in QUANTILES.items()},
        }

    def tables(self) -> tuple[TextTable, ...]:
        """The mean and the quantiles, in seconds and as a part of the seconds without noise."""
        found = self.record()
        names = ("mean", *QUANTILES)
        seconds = [found[f"{name}_seconds"] for name in names]
        rows = [("seconds", *(f"{one:.4g}" for one in seconds))]
        if self.quiet:
            rows.append(("without noise", *(percent(one / self.quiet - 1.0, "+.2f") for one in seconds)))
        title = f"{len(self.seconds):,} replays with noise {self.noise:g}; without, {self.quiet:.4g} s"
        return (TextTable(title, ("iteration", *names), tuple(rows)),)

    def remarks(self) -> tuple[str, ...]:
        """None: the table says it."""
        return ()


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Devices that take longer for all that they compute: their factors, and the seconds of an iteration without them."""

    factors: Mapping[int, float]
    without: float

    def __str__(self) -> str:
        slow = ", ".join(f"device {device} takes {factor:g} times as long" for device, factor in self.factors.items())
        return f"{slow} to compute; without, an iteration takes {self.without:.4g} s"

    def record(self) -> dict[str, Any]:
        """The figures by name."""
        slow = [{"device": device, "factor": factor} for device, factor in self.factors.items()]
        return {"devices": slow, "without_seconds": self.without}


def disturbed_record(stragglers: Stragglers | None, noisy: NoisySeconds | None) -> dict[str, Any]:
    """Stragglers and seconds under noise by name, where there are any."""
    found = {"stragglers": stragglers, "noisy": noisy}
    return {name: one.record() for name, one in found.items() if one is not None}
