"""Plan table: figures and decisions of replays side by side, with the decisions in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hardware_profiles import GIB, gibibytes, percent
from planners import DECISIONS
from simulator import Outcome, ScheduleReplay


class FactRow(NamedTuple):
    """A fact of every replay, "" where it has none; decision: of a planner; differs: whether replays decide otherwise."""

    name: str
    values: tuple[str, ...]
    decision: bool
    differs: bool


def fact_rows(replays: Sequence[Outcome | ScheduleReplay]) -> tuple[FactRow, ...]:
    """Figures first, then decisions."""
    figures, decided = [_figures(one) for one in replays], [_decisions(one) for one in replays]
    found = []
    for decision, facts in ((False, figures), (True, decided)):
        for name in dict.fromkeys(name for own in facts for name in own):
            values = tuple(own.get(name, "") for own in facts)
            found.append(FactRow(name, values, decision, decision and len(set(values)) > 1))
    return tuple(found)


def _figures(replayed: Outcome | ScheduleReplay) -> dict[str, str]:
    if isinstance(replayed, ScheduleReplay):
        return {name: value for name, value, *_ in replayed.tables()[0].rows}
    fullest, word = replayed.fullest, replayed.problem.device_word
    return {
        "problem": replayed.problem.title,
        "plan": replayed.words,
        "seconds per iteration": f"{replayed.iteration_seconds:.4g}",
        "error": f"{replayed.error_low:.3g} to {replayed.error_high:.3g}",
        "samples per second": f"{replayed.samples_per_second:,.4g}",
        "gap to the lower bound": percent(replayed.gap),
        "idle": percent(replayed.replay.bubble().idle_over_makespan),
        "fullest device": f"{word} {fullest.device}: {fullest.peak_bytes / GIB:.4g} of {gibibytes(fullest.capacity_bytes)}",
        "fits": "yes" if replayed.fits else "no",
    }


def _decisions(replayed: Outcome | ScheduleReplay) -> Mapping[str, str]:
    if isinstance(replayed, ScheduleReplay):
        return {}
    return {
        "planner": replayed.plan.planner,
        **{name: str(decide(replayed.problem, replayed.plan)) for name, decide in DECISIONS.items()},
    }
