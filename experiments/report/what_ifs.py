"""What if: a plan under other values of its problem, machine or stack, replayed as it is and planned anew, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.compare.efficiency import efficiency
from experiments.compare.problem_options import DEFAULT_PLANNER
from experiments.report.limits import limit_sentence, limits
from hardware_profiles import GIB, Change, percent
from planners import DECISIONS, Request, Result, make_plan, planner_entries
from simulator import (
    Explained,
    Outcome,
    Plan,
    Problem,
    Score,
    Settings,
    TextTable,
    adapted_plan,
    change_settings,
    decisions,
    simulate,
)

BEFORE, KEPT, ANEW = "as it was", "the same plan", "planned anew"
"""The three answers, in words."""


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """A plan's replay, or why there is none; limit: what limits it, in a sentence."""

    answer: Outcome | Result | None
    refused: str = ""
    limit: str = ""

    @property
    def outcome(self) -> Outcome | None:
        """The replay."""
        return self.answer.outcome if isinstance(self.answer, Result) else self.answer

    def record(self) -> dict[str, Any]:
        """The figures by name."""
        if self.outcome is None:
            return {"refused": self.refused}
        return {**self.outcome.record(), "plan": decisions(self.outcome.plan), "limit": self.limit}


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf(Explained):
    """Answers to a change.

    changes: of values; before: the plan without them; kept: the same plan with them
    anew: a plan that was searched for with them; None where none was
    adapted: what of the same plan had to change, in words
    planner: that searched
    """

    changes: tuple[Change, ...]
    before: WhatIfAnswer
    kept: WhatIfAnswer
    anew: WhatIfAnswer | None
    adapted: str = ""
    planner: str = ""

    @property
    def answers(self) -> dict[str, WhatIfAnswer]:
        """The answers by their words."""
        return {BEFORE: self.before, KEPT: self.kept, **({} if self.anew is None else {ANEW: self.anew})}

    @property
    def feasible(self) -> bool:
        """Whether a plan with the changes runs and fits."""
        found = [one.outcome for one in (self.kept, self.anew) if one is not None]
        return any(one is not None and one.fits for one in found)

    @property
    def _new(self) -> Outcome | None:
        """The replay of the new plan, if there is one."""
        return None if self.anew is None else self.anew.outcome

    def otherwise(self) -> list[dict[str, str]]:
        """Decisions in which the new plan differs from the same one: the decision, and both values."""
        new, old = self._new, self.kept.outcome or self.before.outcome
        if new is None or old is None:
            return []
        pairs = [(name, *(str(of(one.problem, one.plan)) for one in (old, new))) for name, of in DECISIONS.items()]
        return [{"decision": name, "same": same, "anew": anew} for name, same, anew in pairs if same != anew]

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        return {
            "changes": [{"path": one.address, "before": one.before, "after": one.after} for one in self.changes],
            "adapted": self.adapted,
            "before": self.before.record(),
            "same_plan": self.kept.record(),
            "planned_anew": None if self.anew is None else {"planner": self.planner, **self.anew.record()},
            "decisions": self.otherwise(),
        }

    def tables(self) -> tuple[TextTable, ...]:
        """What changes, the answers side by side, and the decisions that a new plan makes otherwise."""
        changes = tuple((one.address, *one.words) for one in self.changes)
        found = [TextTable("Changes", ("value", "before", "after"), changes), self._side_by_side()]
        rows = tuple((one["decision"], one["same"], one["anew"]) for one in self.otherwise())
        return (*found, *[TextTable("Decided otherwise", ("decision", KEPT, ANEW), rows)] * bool(rows))

    def _side_by_side(self) -> TextTable:
        whole = self.before.outcome
        seconds, word = (whole.iteration_seconds, whole.problem.device_word) if whole else (0.0, "device")
        measures: dict[str, Callable[[Outcome], str]] = {
            "seconds per iteration": lambda one: f"{one.iteration_seconds:.4g}",
            "change": lambda one: (
                percent(one.iteration_seconds / seconds - 1, "+.1f") if one is not whole and seconds else ""
            ),
            "samples per second": lambda one: f"{one.samples_per_second:,.4g}",
            "gap to the lower bound": lambda one: percent(one.gap),
            f"fullest {word}, GiB": lambda one: f"{one.fullest.peak_bytes / GIB:.4g}",
            "of, GiB": lambda one: f"{one.fullest.capacity_bytes / GIB:.4g}",
            "fits": lambda one: "yes" if one.fits else "no",
        }
        rows = tuple(
            (name, *("-" if one.outcome is None else told(one.outcome) for one in self.answers.values()))
            for name, told in measures.items()
        )
        title = whole.problem.title if whole else ""
        return TextTable(title, ("", *self.answers), rows)

    def remarks(self) -> tuple[str, ...]:
        """Each plan in a line and what limits it, what cannot run, and what is gained by another plan."""
        lines = []
        for words, one in self.answers.items():
            name = f"{words} (planner {self.planner})" if words == ANEW else words
            told = f"cannot be: {one.refused}" if one.outcome is None else f"{one.outcome.words}; {one.limit}"
            lines.append(f"{name}: {told}")
        lines += [f"of {KEPT} changed: {self.adapted}"] * bool(self.adapted)
        return (*lines, *self._gained())

    def _gained(self) -> tuple[str, ...]:
        kept, anew = self.kept.outcome, self._new
        if kept is None or anew is None or not kept.iteration_seconds:
            return ()
        gained = 1.0 - anew.iteration_seconds / kept.iteration_seconds
        if kept.fits and gained <= 0.0:
            return ("keep the plan: the search found none that is faster",)
        if not kept.fits:
            return (f"{KEPT} does not fit; {ANEW} an iteration takes {percent(-gained, '+.1f')} of its seconds",)
        return (f"{ANEW} an iteration takes {percent(gained)} less than with {KEPT}",)


def what_ifs(
    problem: Problem,
    plan: Plan,
    settings: Settings,
    *,
    planner: str | None,
    anew: bool,
    seed: int,
    budget: int | None,
    wanted: Mapping[str, Any] | None,
) -> WhatIf:
    """The answers to a change; arguments and errors as in `experiments.report.report_questions.what_if`."""
    found = change_settings(problem, settings, plan)
    kept, adapted = adapted_plan(problem, plan, found)
    name = planner or (plan.planner if plan.planner in planner_entries() else DEFAULT_PLANNER)
    request = Request(**(wanted or {}))
    return WhatIf(
        found.changes,
        _answer(lambda: simulate(problem, plan, engine="compiled")),
        _answer(lambda: simulate(found.problem, kept, engine="compiled")),
        _answer(lambda: make_plan(name, found.problem, request, seed=seed, budget=budget)) if anew else None,
        adapted,
        name,
    )


def _answer(ask: Callable[[], Outcome | Result]) -> WhatIfAnswer:
    """The answer, or the words of the ValueError that says why there is none."""
    try:
        answer = ask()
    except ValueError as error:
        return WhatIfAnswer(None, refused=str(error))
    outcome = answer.outcome if isinstance(answer, Result) else answer
    replayed: Mapping[Plan, Score] = answer.replayed if isinstance(answer, Result) else {}
    split, worth = outcome.time_split(), efficiency(outcome, None)
    return WhatIfAnswer(
        answer,
        limit=limit_sentence(outcome, split, limits(outcome, split, replayed), worth.share_of_peak(worth.model_flop)),
    )
