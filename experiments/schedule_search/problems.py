"""Problems of the study: published stage times under limits of memory, long streams on uneven stages, two stages per device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planners import ScheduleProblem
from simulator import chains_of


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """A problem, in which group of the table it stands, and the work that its search gets.

    limit: in micro-batches of the whole model part of a device
    """

    group: str
    name: str
    limit: float
    seconds: float
    problem: ScheduleProblem


@dataclass(frozen=True, slots=True)
class ProfiledRow:
    """Stage times of the zero-bubble paper (arXiv 2401.10241, table of profiled times; all rows: its code, sail-sg), in us."""

    devices: int
    microbatches: int
    forward: float
    input_gradient: float
    weight_gradient: float
    transfer: float
    kept: float
    kept_longer: float

    def problem(self, limit: float) -> ScheduleProblem:
        """A straight pipeline; limit: in micro-batches of a device."""
        return ScheduleProblem(
            chains=chains_of("straight", self.devices, self.devices),
            microbatches=self.microbatches,
            forward=self.forward,
            input_gradient=self.input_gradient,
            weight_gradient=self.weight_gradient,
            transfer=self.transfer,
            freed_at_input_gradient=self.kept - self.kept_longer,
            freed_at_weight_gradient=self.kept_longer,
            limit=limit * self.kept,
        )


PUBLISHED = (
    ProfiledRow(8, 24, 18522, 18086, 9337, 601, 201216, 73728),
    ProfiledRow(8, 32, 18513, 18086, 9331, 626, 201216, 73728),
    ProfiledRow(8, 64, 18546, 18097, 9321, 762, 201216, 73728),
    ProfiledRow(8, 24, 29718, 29444, 19927, 527, 303104, 131072),
    ProfiledRow(8, 32, 29802, 29428, 19530, 577, 303104, 131072),
    ProfiledRow(8, 64, 29935, 29621, 19388, 535, 303104, 131072),
    ProfiledRow(16, 48, 11347, 11248, 8132, 377, 378880, 163840),
    ProfiledRow(16, 64, 11307, 11254, 8101, 379, 378880, 163840),
    ProfiledRow(16, 128, 11325, 11308, 8109, 378, 378880, 163840),
    ProfiledRow(32, 96, 10419, 10207, 7715, 408, 454656, 196608),
    ProfiledRow(32, 128, 10408, 10204, 7703, 408, 454656, 196608),
    ProfiledRow(32, 256, 10402, 10248, 7698, 460, 454656, 196608),
)

SPREADS = {"even": 0.0, "uneven 10 %": 0.1, "uneven 30 %": 0.3}
"""Stages: each one's seconds times a factor of its own, drawn evenly from 1 - spread to 1 + spread."""

SEEDS = range(3)

LIMITS = (0.5, 1.0, 1.25, 1.5, 2.0)
"""Limits of long streams, in parts of the number of devices."""

LONG = (64, 1024)
"""Devices and micro-batches of long streams."""

SHORT_SEARCH, LONG_SEARCH = 0.1, 1.0
"""Seconds of search."""

TWO_A_DEVICE = replace(PUBLISHED[0], forward=14407, input_gradient=14380, weight_gradient=9676, transfer=1610)
"""Stage times of V-shaped placements (arXiv 2405.15362)."""


def questions(quick: bool = False) -> Iterator[SearchQuestion]:
    """All of them; `quick`: the published rows alone."""
    for row in PUBLISHED:
        for limit in (row.devices, 2 * row.devices):
            name = f"{row.devices} devices, {row.microbatches} micro-batches, forward {row.forward:,} us"
            yield SearchQuestion("published stage times", name, limit, SHORT_SEARCH, row.problem(limit))
    if quick:
        return
    devices, microbatches = LONG
    base = replace(PUBLISHED[0], devices=devices, microbatches=microbatches)
    for name, spread in SPREADS.items():
        for seed in SEEDS if spread else SEEDS[:1]:
            for part in LIMITS:
                for seconds in (SHORT_SEARCH, LONG_SEARCH):
                    problem = uneven(base.problem(part * devices), spread, seed)
                    title = name if not spread else f"{name}, seed {seed}"
                    yield SearchQuestion("64 devices, 1,024 micro-batches", title, part * devices, seconds, problem)
    for devices, microbatches in ((8, 24), (16, 48)):
        for name, limit in (("ZB-V", devices), ("V-Half", (devices + 2) // 2), ("V-Min", (devices + 4) // 3)):
            yield SearchQuestion(
                "two stages per device, V",
                f"{devices} devices, memory of {name}",
                limit,
                LONG_SEARCH,
                _v(devices, microbatches, limit),
            )


def uneven(problem: ScheduleProblem, spread: float, seed: int) -> ScheduleProblem:
    """Each stage's seconds times a factor of its own, drawn evenly from 1 - spread to 1 + spread; it keeps what it kept."""
    factor = np.random.default_rng(seed).uniform(1.0 - spread, 1.0 + spread, problem.stages)
    names = ("forward", "input_gradient", "weight_gradient")
    return replace(problem, **{name: np.round(problem.each(name) * factor).tolist() for name in names})


def _v(devices: int, microbatches: int, limit: float) -> ScheduleProblem:
    """Stages of half a device each, that go down the devices and back up; memory in stages of a micro-batch."""
    row = TWO_A_DEVICE
    return ScheduleProblem(
        chains=chains_of("v", 2 * devices, devices),
        microbatches=microbatches,
        forward=row.forward,
        input_gradient=row.input_gradient,
        weight_gradient=row.weight_gradient,
        transfer=row.transfer,
        freed_at_input_gradient=0.5,
        freed_at_weight_gradient=0.5,
        limit=2 * limit,
    )
