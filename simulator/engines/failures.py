"""Failures: days of a training run whose servers fail, are replaced and repaired, as SimPy processes.

    failures        a server fails, and the job loses what it has done since its last checkpoint
    repair          a server that failed comes back, as a spare or in the place that is empty
    job             restarts, trains with a checkpoint after every so many seconds, or waits for a server

Failures of each server come as a Poisson process, so that what has been decides nothing (those of servers that do not run are
thinned out). A restart that fails begins anew. Where a server is missing and no spare is there, the job goes on with one fewer,
if there is a plan for that, else it waits; when the server comes back, it saves, which counts to the restart, and restarts.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy

from hardware_profiles import Floats
from simulator.engines.failing import SPENT, Failing

_TRAINING, _CHECKPOINTS, _LOST, _RESTARTS, _WAITING, _SLOWER = range(len(SPENT))

Steps = Generator[simpy.Event, Any, None]


def days_of(failing: Failing, every: float, seconds: float, seed: Sequence[int]) -> tuple[Floats, int]:
    """What one run spends its seconds on, float64 [len(SPENT)], which sum to them, and its failures.

    every: seconds of training between checkpoints
    """
    run = _Job(failing, every, np.random.default_rng(seed))
    run.environment.run(until=seconds)
    run.leave(None)
    return run.spent, run.failures


class _Job:
    """One run: its servers, and what the job does since when."""

    def __init__(self, failing: Failing, every: float, rng: np.random.Generator) -> None:
        self.failing, self.every, self.rng = failing, every, rng
        self.environment = simpy.Environment()
        self.spent = np.zeros(len(SPENT))
        self.failures, self.missing = 0, 0
        self.spares = failing.spares
        self.doing, self.since = _TRAINING, 0.0
        self.job = self.environment.process(self._train())
        self.environment.process(self._fail())

    @property
    def running(self) -> int:
        """Servers that run the job."""
        able = self.missing == 0 or (self.missing == 1 and self.failing.slower is not None)
        return self.failing.servers - self.missing if able else 0

    def _fail(self) -> Steps:
        servers = self.failing.servers
        while True:
            yield self.environment.timeout(self.rng.exponential(self.failing.mean_seconds_of_job))
            if self.rng.random() * servers >= self.running:
                continue
            self.failures += 1
            self.leave("failure")
            if self.spares is not None:
                self.missing, self.spares = (self.missing, self.spares - 1) if self.spares else (self.missing + 1, 0)
                self.environment.process(self._repair())
            self.job.interrupt(0.0)

    def _repair(self) -> Steps:
        yield self.environment.timeout(self.failing.repair_seconds)
        assert self.spares is not None
        if not self.missing:
            self.spares += 1
            return
        trains = self.doing == _TRAINING
        self.leave("return")
        self.missing -= 1
        self.job.interrupt(self.failing.checkpoint_seconds * trains)

    def _train(self) -> Steps:
        first, saving = True, 0.0
        while True:
            try:
                if not self.running:
                    self.doing, self.since = _WAITING, self.environment.now
                    yield self.environment.event()
                if not first:
                    self.doing, self.since = _RESTARTS, self.environment.now
                    yield self.environment.timeout(self.failing.restart_seconds + saving)
                    self.leave(None)
                self.doing, self.since = _TRAINING, self.environment.now
                yield self.environment.event()
            except simpy.Interrupt as interrupt:
                first, saving = False, float(interrupt.cause or 0.0)

    def leave(self, cause: str | None) -> None:
        """Account for what the job has done since it began with it, up to now.

        cause: "failure", which loses what no checkpoint has; "return" of a server, before which all is saved; None: time is up
        """
        now = self.environment.now
        passed, self.since = now - self.since, now
        if self.doing != _TRAINING:
            self.spent[self.doing] += passed
            return
        pause = self.failing.checkpoint_seconds
        whole = passed // (self.every + pause)
        rest = passed - whole * (self.every + pause)
        kept, saved = whole * self.every, whole * pause
        if cause == "failure":
            self.spent[_LOST] += rest
        else:
            kept, saved = kept + min(rest, self.every), saved + max(0.0, rest - self.every)
        slower = (self.failing.slower or 1.0) if self.missing else 1.0
        self.spent[_TRAINING] += kept / slower
        self.spent[_SLOWER] += kept - kept / slower
        self.spent[_CHECKPOINTS] += saved
