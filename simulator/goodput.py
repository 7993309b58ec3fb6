"""Goodput: the part of days for which a training run that fails, saves and restarts gets on; and how often it had best save."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardware_profiles import Floats, Integers, brief, check_real, check_whole, percent
from simulator.engines.failing import SPENT, Failing
from simulator.options.disturbance_limits import LEAST_SECONDS, MOST_DAYS, MOST_RUNS, MOST_SECONDS
from simulator.results.text_tables import Explained, TextTable

DAY = 86_400.0

MOST_FAILURES = 20_000_000
"""Expected failures of all runs together, those of the intervals that are tried, too: about ten minutes."""

TRIED = np.exp2(np.arange(-8, 9) / 4.0)
"""Intervals that are tried, as parts of Young's."""

QUANTILES = {"p5": 0.05, "p50": 0.5, "p95": 0.95}


def young(checkpoint_seconds: float, mean_seconds: float) -> float:
    """Seconds of training between checkpoints by Young's first-order formula: sqrt(2 C M).

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (9), 1974.
    mean_seconds: M, between failures of the job
    """
    return math.sqrt(2.0 * checkpoint_seconds * mean_seconds)


def daly(checkpoint_seconds: float, mean_seconds: float) -> float:
    """Seconds of training between checkpoints by Daly's higher-order formula, at least 0.

    With x = C / 2 M below 1: sqrt(2 C M) (1 + sqrt(x) / 3 + x / 9) - C, else M. J. T. Daly, "A higher order estimate of the
    optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (3), 2006, equation 37.
    """
    part = checkpoint_seconds / (2.0 * mean_seconds)
    if part >= 1.0:
        return mean_seconds
    return young(checkpoint_seconds, mean_seconds) * (1.0 + math.sqrt(part) / 3.0 + part / 9.0) - checkpoint_seconds


@dataclass(frozen=True, slots=True)
class Interval:
    """Training between checkpoints: by what rule, seconds, and the mean part of the time that then is training."""

    rule: str
    seconds: float
    training: float


@dataclass(frozen=True, slots=True, eq=False)
class Goodput(Explained):
    """What runs of a job spend their time on.

    days: of each run; intervals: that were looked at, the one that the runs have first
    shares: float64 [runs, len(SPENT)], parts of the time, which sum to 1; failures: int64 [runs]
    iteration_seconds: without failures, or 0 where it is not known
    """

    failing: Failing
    days: float
    intervals: tuple[Interval, ...]
    shares: Floats
    failures: Integers
    iteration_seconds: float = 0.0

    def __repr__(self) -> str:
        return brief(self, f"{len(self.shares)} runs of {self.days:g} days, {percent(self.mean, '.2f')} training")

    @property
    def mean(self) -> float:
        """Mean part of the time that is training."""
        return float(self.shares[:, 0].mean())

    def quantile(self, share: float) -> float:
        """The part of the time that is training at most, in this share of the runs."""
        return float(np.quantile(self.shares[:, 0], share))

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units; shares as parts of 1."""
        return {
            "days": self.days,
            "runs": len(self.shares),
            "servers": self.failing.servers,
            "mean_seconds_between_failures": self.failing.mean_seconds_of_job,
            "checkpoint_seconds": self.failing.checkpoint_seconds,
            "restart_seconds": self.failing.restart_seconds,
            "iteration_seconds": self.iteration_seconds or None,
            "failures": float(self.failures.mean()),
            "goodput": self.mean,
            **{f"goodput_{name}": self.quantile(share) for name, share in QUANTILES.items()},
            "shares": dict(zip(SPENT, self.shares.mean(axis=0).tolist(), strict=True)),
            "checkpoint_every_seconds": self.intervals[0].seconds,
            "intervals": [
                {"rule": one.rule, "seconds": one.seconds, "goodput": one.training} for one in self.intervals
            ],
        }

    def tables(self) -> tuple[TextTable, ...]:
        """What the time is spent on, and the intervals between checkpoints."""
        rows = [
            (
                name,
                percent(own.mean(), ".2f"),
                *(percent(np.quantile(own, share), ".2f") for share in QUANTILES.values()),
            )
            for name, own in zip(SPENT, self.shares.T, strict=True)
            if own.any()
        ]
        counts = self.failures
        rows.append(
            ("failures", f"{counts.mean():.4g}", *(f"{np.quantile(counts, one):.4g}" for one in QUANTILES.values()))
        )
        spent = TextTable(
            f"{len(self.shares)} runs of {self.days:g} days on {self.failing.servers:,} servers: parts of the time",
            ("spent on", "mean", *QUANTILES),
            tuple(rows),
        )
        known = self.iteration_seconds > 0.0
        intervals = tuple(
            (
                one.rule,
                f"{one.seconds:,.0f}",
                *([f"{one.seconds / self.iteration_seconds:,.0f}"] if known else []),
                percent(one.training, ".2f"),
            )
            for one in self.intervals
        )
        columns = ("by", "seconds", *(["iterations"] if known else []), "training")
        return spent, TextTable("Training between checkpoints, and the mean part that is training", columns, intervals)

    def remarks(self) -> tuple[str, ...]:
        """How often the job fails, and what an iteration takes, failures in it."""
        failing = self.failing
        lines = [
            f"a failure every {failing.mean_seconds_of_job / 3600.0:.4g} h in the mean; a checkpoint takes "
            f"{failing.checkpoint_seconds:.4g} s, a restart {failing.restart_seconds:.4g} s"
        ]
        if self.iteration_seconds and self.mean:
            seconds = self.iteration_seconds
            lines.append(
                f"with failures, an iteration of {seconds:.4g} s takes {seconds / self.mean:.4g} s in the mean"
            )
        return tuple(lines)


def goodput(
    failing: Failing,
    days: float = 30.0,
    *,
    runs: int = 100,
    every: float | None = None,
    seed: int = 0,
    iteration_seconds: float = 0.0,
    progress: Callable[[int, str], None] = lambda done, text: None,
) -> Goodput:
    """Run a job for days, many times, and tell what the time is spent on.

    every: seconds of training between checkpoints; None: the best of some around Young's, which have the same failures
    iteration_seconds: checkpoints are between iterations, after whole ones; 0: at any time
    Raises ValueError for numbers out of range, or more than MOST_FAILURES expected failures.
    """
    check_real("days", days, 1e-3, MOST_DAYS)
    check_whole("runs", runs, 1, MOST_RUNS)
    seconds, mean, pause = days * DAY, failing.mean_seconds_of_job, failing.checkpoint_seconds
    rules = {"Young": young(pause, mean), "Daly": daly(pause, mean)}
    if every is None:
        tried = {f"found {part}": part * rules["Young"] for part in TRIED.tolist()}
    else:
        check_real("seconds between checkpoints", every, LEAST_SECONDS, MOST_SECONDS)
        tried = {"asked": every}
    expected = seconds / mean * runs * (len(tried) + len(rules))
    if expected > MOST_FAILURES:
        raise ValueError(
            f"{runs:,} runs of {days:g} days, for {len(tried) + len(rules)} intervals, have {expected:.3g} failures, at most "
            f"{MOST_FAILURES:,}: ask for fewer runs or days, or for one interval"
        )
    from simulator.engines.failures import days_of

    known: dict[float, list[tuple[Floats, int]]] = {}

    def of(interval: float) -> Interval:
        whole = _whole(interval, iteration_seconds)
        if whole not in known:
            progress(len(known), f"saving every {whole:.4g} s")
            known[whole] = [days_of(failing, whole, seconds, (seed, number)) for number in range(runs)]
        return Interval("", whole, float(np.mean([spent[0] for spent, _ in known[whole]])) / seconds)

    best = max(map(of, tried.values()), key=lambda one: one.training)
    found = [Interval("asked" if every is not None else "best found", best.seconds, best.training)]
    for rule, interval in rules.items():
        one = of(interval)
        found.append(Interval(rule, one.seconds, one.training))
    spent = known[best.seconds]
    shares, failures = np.array([one for one, _ in spent]) / seconds, np.array([count for _, count in spent])
    return Goodput(failing, days, tuple(found), shares, failures, iteration_seconds)


def _whole(interval: float, iteration: float) -> float:
    """Whole iterations nearest to an interval, at least one; the interval, of at least a millisecond, where none is known."""
    return max(1, round(interval / iteration)) * iteration if iteration else max(interval, LEAST_SECONDS)
