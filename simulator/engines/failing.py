"""Failing: a training job on servers that fail, and what its time is spent on."""

from __future__ import annotations

from dataclasses import dataclass

from hardware_profiles import MOST_COUNT, check_real, check_whole
from simulator.options.disturbance_limits import LEAST_SECONDS, MOST_FACTOR, MOST_SECONDS

SPENT = ("training", "checkpoints", "lost work", "restarts", "waiting", "slower plan")
"""What seconds are spent on. Slower plan: what a plan for one server fewer takes beyond that for all; training is the rest of its
time that is kept."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A job on servers that fail.

    servers: that it runs on; mean_seconds: between failures of one of them
    checkpoint_seconds: for which a checkpoint stops training; restart_seconds: from a failure until training goes on
    spares: servers that stand by; None: as many as it takes; repair_seconds: until a server that failed is there again
    slower: seconds of an iteration with a server fewer over those with all, at least 1; None: the job waits for it
    """

    servers: int
    mean_seconds: float
    checkpoint_seconds: float
    restart_seconds: float
    spares: int | None = None
    repair_seconds: float = 86_400.0
    slower: float | None = None

    def __post_init__(self) -> None:
        check_whole("servers", self.servers, 1, MOST_COUNT)
        check_real("seconds between failures", self.mean_seconds, 1.0, MOST_SECONDS)
        check_real("seconds of a checkpoint", self.checkpoint_seconds, LEAST_SECONDS, MOST_SECONDS)
        check_real("seconds of a restart", self.restart_seconds, 0.0, MOST_SECONDS)
        check_real("seconds of a repair", self.repair_seconds, 0.0, MOST_SECONDS)
        if self.spares is not None:
            check_whole("spares", self.spares, 0, MOST_COUNT)
        if self.slower is not None:
            check_real("an iteration with a server fewer over one with all", self.slower, 1.0, MOST_FACTOR)
            if self.servers == 1:
                raise ValueError("the job is on one server, and on none fewer is one: it waits")

    @property
    def mean_seconds_of_job(self) -> float:
        """Mean seconds between failures of any of its servers."""
        return self.mean_seconds / self.servers
