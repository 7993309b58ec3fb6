"""Result: the plan that a search found, how good it is known to be, and what the search took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from hardware_profiles import brief, counted, percent
from planners.search.notes import Note
from simulator import FoundReplay, Score, TextTable

if TYPE_CHECKING:
    from planners.search.evaluator import Progress
    from simulator import Engine, Outcome, Plan, Problem, Schedule

Kind = TypeVar("Kind", bound=Note)


@dataclass(frozen=True, slots=True)
class Proof:
    """What is proven about a plan; false (as a bool) if nothing is.

    space: the plans among which none is faster, in words; empty where nothing is proven
    engine: what replayed all of them, or reached the lower bound on them
    reason: why nothing is proven; empty with a proof
    """

    space: str = ""
    engine: Engine = "simpy"
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.space)

    def __str__(self) -> str:
        return f"proven the fastest of {self.space}" if self else f"not proven: {self.reason}"


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The best known plan that fits and makes one decision otherwise than the answer.

    decision: its name, as "micro-batches"; chosen, other: what the answer has, and what this plan has, in words
    seconds: of its iteration; peak_bytes: of its fullest device, None where it was not replayed
    notation: the plan in short; empty where there is only a lower bound
    problem, plan: to replay it; None where there is no plan
    """

    decision: str
    chosen: str
    other: str
    seconds: float
    peak_bytes: float | None = None
    notation: str = ""
    problem: Problem | None = field(default=None, repr=False, compare=False)
    plan: Plan | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Result(FoundReplay):
    """The plan that a search found, with its replay, lower bound and proof.

    outcome: the plan's replay on the reference engine, with the problem's own options
    proof: of the plan being the fastest of a space of plans, or why there is none
    evaluations: plans replayed; planning_seconds: CPU seconds of the search in this process, compilation included
    interrupted: whether the search stopped early (interrupt or budget), with the best plan so far
    history: the improvements on the way
    replayed: all plans that were replayed, with links contended as the problem says, and their scores
    told: runner-ups that the planner knows itself
    notes: what the planner says of its search and its plan; `noted` finds those of a kind
    judged: what the search compared the plan by: its seconds, or those as which the request's judge counts it
    """

    outcome: Outcome
    proof: Proof
    evaluations: int
    planning_seconds: float
    interrupted: bool = False
    history: tuple[Progress, ...] = ()
    replayed: Mapping[Plan, Score] = field(default_factory=dict)
    told: tuple[RunnerUp, ...] = ()
    notes: tuple[Note, ...] = ()
    judged: float = math.nan

    @property
    def plan(self) -> Plan:
        """The plan that was found."""
        return self.outcome.plan

    @property
    def problem(self) -> Problem:
        """The problem that was planned for."""
        return self.outcome.problem

    @property
    def iteration_seconds(self) -> float:
        """Seconds of an iteration of the plan, on the reference engine."""
        return self.outcome.iteration_seconds

    @property
    def error_low(self) -> float:
        """Lower end, in seconds, of the interval in which 90 % of measured runs like this one would lie."""
        return self.outcome.error_low

    @property
    def error_high(self) -> float:
        """Upper end, in seconds, of the interval in which 90 % of measured runs like this one would lie."""
        return self.outcome.error_high

    @property
    def schedule(self) -> Schedule:
        """The ops of the plan."""
        return self.outcome.schedule

    @property
    def shown(self) -> Outcome:
        """The replay on the reference engine, which reports show."""
        return self.outcome

    @property
    def bound(self) -> float:
        """Lower bound on the seconds of an iteration of any plan of the problem, flushed or not as this one is."""
        return self.outcome.lower_bound.seconds if self.outcome.lower_bound else math.nan

    @property
    def gap(self) -> float:
        """Distance of the plan's seconds above the bound, as a share of the bound; infinite over a bound of 0."""
        return self.outcome.gap

    @property
    def details(self) -> dict[str, object]:
        """The figures of all notes by name, for files (programs ask for a kind of note)."""
        return {name: value for note in self.notes for name, value in note.figures.items()}

    def noted(self, kind: type[Kind]) -> Kind | None:
        """The last note of a kind; None where the planner left none."""
        return next((note for note in reversed(self.notes) if isinstance(note, kind)), None)

    def __repr__(self) -> str:
        seconds, known = self.outcome.iteration_seconds, "proven" if self.proof else "not proven"
        return brief(self, f"{self.outcome.title}: {seconds:.6g} s per iteration, gap {percent(self.gap)}, {known}")

    def tables(self) -> tuple[TextTable, ...]:
        """Tables of the plan's stages, and of the parts of each device's peak memory."""
        return self.outcome.tables()

    def remarks(self) -> tuple[str, ...]:
        """Lines for a report: the plan, its seconds beside the bound, what is proven, what the search took, notes."""
        gap = " (the gap above is to the lower bound on any plan)" if self.proof else ""
        return (
            self.outcome.words,
            self.outcome.speed + self.outcome.beside_bound,
            *self.outcome.beyond_bound(),
            self.outcome.errors,
            f"planned in {self.planning_seconds:.2f} CPU s with {counted(self.evaluations, 'evaluation')}; {self.proof}{gap}",
            *(note.text for note in self.notes if note.text),
            *self.outcome.doubts(),
        )

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        return {
            **self.outcome.record(),
            "planning_seconds": self.planning_seconds,
            "evaluations": self.evaluations,
            "interrupted": self.interrupted,
            "optimal_among": self.proof.space,
        }
