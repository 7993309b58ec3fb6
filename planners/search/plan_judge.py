"""Judge: what makes a plan the better one, and the power it may draw, told as seconds, which are all that searches compare.

A plan that draws P watts over T seconds is judged by J = P T joules over the least idle power w of any device of the problem: as
every plan draws at least w all the time, J / w is never below T, and sqrt(J T / w), for joules times seconds, neither. So what a
search rules out by a lower bound on seconds is not the best by its objective either, and every search of seconds is one of
joules. What draws more than it may counts as OVER times as slow, and by how much more: a search leaves it as soon as it can.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, Literal

from hardware_profiles import optional_members
from simulator import Energy, InfeasiblePlanError, Problem

if TYPE_CHECKING:
    from planners.search.request import Request

Objective = Literal["time", "energy", "edp"]
"""What makes a plan the better one: seconds, joules, or joules times seconds (the energy-delay product)."""

OBJECTIVES: tuple[Objective, ...] = ("time", "energy", "edp")

OF = {"time": "the fewest seconds", "energy": "the fewest joules", "edp": "the least joules times seconds"}
"""Objectives in words."""

OVER = 1e9
"""How many times as slow a plan counts that draws more than it may."""

OF_FULL = 1e-3
"""Of full power, what stands for the idle power of devices that draw none."""


@dataclass(frozen=True, slots=True)
class PlanJudge:
    """An objective of plans of one problem; power: W at most, on average, of the devices in use; least: w, in W; idle: W that
    any device in use draws at least.
    """

    objective: Objective
    power: float
    least: float
    idle: float

    @classmethod
    def of(cls, problem: Problem, request: Request) -> PlanJudge | None:
        """The judge of a request; None where seconds alone decide.

        Raises ValueError where the power of a device is not known.
        """
        if request.objective == "time" and request.power is None:
            return None
        least = idle = inf
        for one in problem.cluster.kinds[0]:
            power = optional_members(one).power
            if power is None:
                raise ValueError(
                    f"objective and power: the power of {one.name} is not known: give idle_w and full_w in [power] of its file"
                )
            least, idle = min(least, max(power.idle, OF_FULL * power.full)), min(idle, power.idle)
        return cls(request.objective, inf if request.power is None else request.power, least or 1.0, idle)

    @property
    def words(self) -> str:
        """What the best plan has, in words."""
        return OF[self.objective] + ("" if self.power == inf else f" within {self.power:g} W")

    def check(self) -> None:
        """Raise InfeasiblePlanError where no device may even be idle."""
        if self.power < self.idle:
            raise InfeasiblePlanError(
                f"power {self.power:g} W: one device in use draws {self.idle:g} W while it is idle"
            )

    def judged(self, energy: Energy) -> float:
        """The seconds as which a plan counts that takes so much energy."""
        over = OVER * energy.watts / self.power if energy.watts > self.power else 1.0
        return over * self._told(energy.watts, energy.seconds)

    def allows(self, energy: Energy) -> bool:
        """Whether no more power is drawn than may be."""
        return energy.watts <= self.power

    def at_least(self, idle_watts: float, seconds: float) -> float:
        """Lower bound on what a plan counts as whose seconds have one, on devices that draw so much idle."""
        return self._told(max(idle_watts, self.least), seconds)

    def _told(self, watts: float, seconds: float) -> float:
        share = watts / self.least
        return seconds * {"time": 1.0, "energy": share, "edp": sqrt(share)}[self.objective]


class PowerExceededError(InfeasiblePlanError):
    """No plan that was found draws as little power as it may; least: W that the one draws that draws least."""

    def __init__(self, power: float, least: float) -> None:
        super().__init__(
            f"power {power:g} W: of the plans that were found the one that draws least draws {least:.4g} W"
        )
        self.least = least
