"""Reasons for tests: why planners cannot plan a problem."""

from __future__ import annotations

from planners import Request, planner_entries
from simulator import Problem


def applicable_planners(problem: Problem, request: Request | None = None) -> dict[str, str | None]:
    """Every planner's name, and why it cannot plan the problem, or None if it can."""
    return {name: entry.reason(problem, request or Request()) for name, entry in planner_entries().items()}
