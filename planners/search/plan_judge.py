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
"""What a search makes least: seconds, joules, or joules times seconds (the energy-delay product)."""

OBJECTIVES: tuple[Objective, ...] = ("time", "energy", "edp")

OF = {"time": "the fewest seconds", "energy": "the fewest joules", "edp": "the least joules times seconds"}
"""Objectives in words."""

OVER = 1e9
"""Factor on the seconds of a plan that draws more power than allowed, beside the factor by which it does."""

OF_FULL = 1e-3
"""Share of its full power that stands for the idle power of a device that draws none."""


@dataclass(frozen=True, slots=True)
class PlanJudge:
    """Turns the energy of a plan into the seconds as which a search counts it.

    objective: of plans of one problem; power: most W that devices in use may draw together, on average; least: w in the module's
    formula, in W; idle: least W that any device of the problem draws while idle
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
        """What the best plan has, in words for messages."""
        return OF[self.objective] + ("" if self.power == inf else f" within {self.power:g} W")

    def check(self) -> None:
        """Raise InfeasiblePlanError where even one idle device draws more than allowed."""
        if self.power < self.idle:
            raise InfeasiblePlanError(
                f"power {self.power:g} W: one device in use draws {self.idle:g} W while it is idle"
            )

    def judged(self, energy: Energy) -> float:
        """The seconds as which a plan of this energy counts."""
        over = OVER * energy.watts / self.power if energy.watts > self.power else 1.0
        return over * self._told(energy.watts, energy.seconds)

    def allows(self, energy: Energy) -> bool:
        """Whether a plan of this energy draws no more power than allowed."""
        return energy.watts <= self.power

    def at_least(self, idle_watts: float, seconds: float) -> float:
        """Lower bound on the seconds as which a plan counts.

        idle_watts: of all its devices together; seconds: lower bound on those of its replay
        """
        return self._told(max(idle_watts, self.least), seconds)

    def _told(self, watts: float, seconds: float) -> float:
        share = watts / self.least
        return seconds * {"time": 1.0, "energy": share, "edp": sqrt(share)}[self.objective]


class PowerExceededError(InfeasiblePlanError):
    """Error where no plan that was found keeps within the power allowed; least: W of the plan that draws least"""

    def __init__(self, power: float, least: float) -> None:
        super().__init__(
            f"power {power:g} W: of the plans that were found the one that draws least draws {least:.4g} W"
        )
        self.least = least
