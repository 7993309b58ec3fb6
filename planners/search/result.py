"""Result: what a search found, how good that is known to be, and what it took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hardware_profiles import brief
from simulator import Explained, TextTable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from planners.search.evaluator import Progress, Score
    from simulator import Engine, Outcome, Plan, Problem


@dataclass(frozen=True, slots=True)
class Proof:
    """What is proven of a plan; false where nothing is.

    space: the plans among which none is faster, in words; empty where nothing is proven
    engine: what replayed them, or attained the bound on all of them
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
    """The best plan known that fits and decides one thing otherwise.

    decision: what is decided, as in "micro-batches"; chosen, other: what the answer, and this plan, have, in words
    seconds: of its iteration; peak_bytes: of its fullest device, None where it was not replayed
    notation: of the plan; empty where there is none but a bound
    """

    decision: str
    chosen: str
    other: str
    seconds: float
    peak_bytes: float | None = None
    notation: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Result(Explained):
    """What a search found.

    outcome: the plan on the reference engine, with the problem's own options
    bound: seconds of an iteration that no plan of the model can beat, flushed or not as this one is
    proof: of the plan being the fastest of a space of plans, or why there is none
    evaluations: plans replayed; seconds: CPU seconds of the search in this process, compilation included
    interrupted: the search stopped early (interrupt or budget) and the plan is the best so far
    history: the improvements on the way
    details: what the planner says about its search, plain values by name
    replayed: the plans that were replayed, links contended as the problem says, and their scores
    told: runner-ups that the planner knows itself
    """

    outcome: Outcome
    bound: float
    proof: Proof
    evaluations: int
    seconds: float
    interrupted: bool = False
    history: tuple[Progress, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)
    replayed: Mapping[Plan, Score] = field(default_factory=dict)
    told: tuple[RunnerUp, ...] = ()

    @property
    def plan(self) -> Plan:
        """The answer."""
        return self.outcome.plan

    @property
    def problem(self) -> Problem:
        """The question."""
        return self.outcome.problem

    @property
    def gap(self) -> float:
        """How far the plan is above the bound, as a part of it; infinite above a bound of no seconds."""
        if self.outcome.iteration_seconds == self.bound:
            return 0.0
        return self.outcome.iteration_seconds / self.bound - 1.0 if self.bound else math.inf

    def __repr__(self) -> str:
        seconds, known = self.outcome.iteration_seconds, "proven" if self.proof else "not proven"
        return brief(self, f"{self.outcome.title}: {seconds:.6g} s an iteration, gap {100 * self.gap:.1f} %, {known}")

    def tables(self) -> tuple[TextTable, ...]:
        """What each stage of the plan holds, and what the peak of each device consists of."""
        return self.outcome.tables()

    def remarks(self) -> tuple[str, ...]:
        """Seconds beside the bound, what is proven, what the search took."""
        gap = " (the gap above is to the lower bound on any plan)" if self.proof else ""
        return (
            f"{self.outcome.speed}; lower bound {self.bound:.4g} s, gap {100 * self.gap:.1f} %",
            f"planned in {self.seconds:.2f} CPU s with {self.evaluations} evaluations; {self.proof}{gap}",
            *([f"partition: {self.details['cuts_left_out']}"] if "cuts_left_out" in self.details else []),
            *(_sizes_remarks(self.details) if "makespan_seconds" in self.details else []),
            *(_order_remarks(self.details) if "order_seconds" in self.details else []),
            *([_closed_form_remark(self.details)] if "closed_form_bound" in self.details else []),
            *self.outcome.doubts(),
        )

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        return {
            **self.outcome.record(),
            "lower_bound_seconds": self.bound,
            "gap": self.gap,
            "planning_seconds": self.seconds,
            "evaluations": self.evaluations,
            "interrupted": self.interrupted,
            "optimal_among": self.proof.space,
        }

    @property
    def frame(self) -> pd.DataFrame:
        """The plan's timeline as a pandas DataFrame, one row a task."""
        return self.outcome.frame

    def plot_gantt(self, ax: Axes | None = None) -> Figure:
        """Draw the plan's timeline."""
        return self.outcome.plot_gantt(ax)

    def plot_memory(self) -> Figure:
        """Draw the memory of the plan's devices."""
        return self.outcome.plot_memory()


def _order_remarks(found: Mapping[str, Any]) -> list[str]:
    """How good the order of the ops is known to be, and what it takes for the halves of a backward."""
    seconds, bound = found["order_seconds"], found["order_lower_bound_seconds"]
    known = "none is shorter" if found["order_proven"] else f"at most {100 * (seconds / bound - 1):.2g} % are left"
    order = (
        f"order of the ops: {seconds:.4g} s before updates, where links share no channel; with these stages and micro-batches no "
        f"order within the memory takes less than {bound:.4g} s: {known}"
    )
    split = (
        "of measured layers half of each backward counts as the gradient of its weights: the profile has them together"
    )
    return [order, *([split] if found["halves_assumed"] else [])]


def _closed_form_remark(found: Mapping[str, Any]) -> str:
    """How good the plan is known to be among those that its planner chooses from."""
    return (
        f"by the closed form {found['closed_form_seconds']:.4g} s, and no plan that the planner chooses from takes less than "
        f"{found['closed_form_bound']:.4g} s by it: at most {100 * found['closed_form_gap']:.2g} % are left"
    )


def _sizes_remarks(found: Mapping[str, Any]) -> tuple[str, str]:
    """The sizes of unequal micro-batches, and how good they are known to be."""
    if found["proven_optimal"]:
        known = "no choice of sizes is faster"
    elif found["sizes_lower_bound_seconds"]:
        known = (
            f"no choice of sizes takes less than {found['sizes_lower_bound_seconds']:.4g} s: at most "
            f"{100 * found['sizes_gap']:.2g} % are left"
        )
    else:
        known = "nothing is proven of the sizes"
    return (
        f"sizes of each stage: forward {found['stage_forward_samples']}, backward {found['stage_backward_samples']}",
        f"{found['makespan_seconds']:.4g} s where links share no channel and the first stage's update ends last; {known}",
    )
