"""What-if question: what the face asks of a plan under other values; what answers is loaded when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardware_profiles import check_kind

if TYPE_CHECKING:
    from experiments.report.what_ifs import WhatIf
    from simulator import Plan, Problem, Settings


def what_if(
    problem: Problem,
    plan: Plan,
    settings: Settings,
    *,
    planner: str | None = None,
    anew: bool = True,
    seed: int = 0,
    budget: int | None = None,
    **wanted: Any,
) -> WhatIf:
    """A plan under other values of its problem, machine or stack: replayed as it is, and planned anew.

    settings: values by path (`{"network.bandwidth_gbps": 200, "servers": "*2"}`), or `PATH=VALUE` texts; the paths are those of
        `hardware_profiles.addresses`, and begin with a key of `simulator.settings.ROOTS`, or leave it out
    planner: that plans anew; by default the plan's own, if it has a name here, else `joint`; anew: whether to
    seed, budget, wanted: of the search, as for `plan`
    Raises `hardware_profiles.SettingError` for a path that names no value, and a value that cannot be there.
    """
    from experiments.report.what_ifs import what_ifs
    from simulator import Plan, Problem

    check_kind("problem", problem, Problem)
    check_kind("plan", plan, Plan)
    return what_ifs(problem, plan, settings, planner=planner, anew=anew, seed=seed, budget=budget, wanted=wanted)
