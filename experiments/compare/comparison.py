"""Comparison: several planners on one problem, each plan replayed on the reference engine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import planners
import simulator
from experiments.compare.efficiency import efficiency
from experiments.terminal.report_tables import STALE, Cell, ReportTable, Row, figure, share
from hardware_profiles import GENERIC, GIB, Stack, brief, counted, gibibytes, percent
from planners import told_apart
from simulator import BoundTerm, Explained, InfeasiblePlanError, NoisySeconds, Plan, Problem, TextTable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from planners import PlanJudge, Request, Result

ROBUST = 0.95
"""Share of the iterations by whose longest a plan is judged under noise."""

REFERENCE = "data-parallel"
"""Speedups are over this planner's plan."""

Status = Literal["fits", "does-not-fit", "no-plan-fits", "not-applicable", "failed", "interrupted"]
"""How a planner ended: with a plan that fits, with one that does not in the reference replay, without one because none fits,
because it does not apply, or by an error; `interrupted`: stopped before it had a plan, or not asked any more."""


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of each plan: how it is found, and which table shows it.

    of: what an answer's result says; None for what stands in `Result.record`, and for what the row or the comparison sets
    table: "speed" or "use"; "stacks" beside "speed" where rows are for several stacks, "energy" beside "use" where it is known;
        "" for no table, JSON and pandas alone
    """

    of: Callable[[Result], Any] | None = None
    table: Literal["", "speed", "stacks", "use", "energy"] = ""
    heading: str = ""
    cell: Cell = ""


def _rate(record: Row) -> str:
    rate = record["samples_per_second"]
    return f"{rate:,.0f}" if rate >= 1e4 else f"{rate:,.4g}"


def _memory(record: Row) -> str:
    peak, capacity = record["peak_memory_bytes"] / GIB, record["capacity_bytes"] / GIB
    return f"{peak:.2f} of {capacity:.4g}" + ("" if record["feasible"] else " (!)")


def _energy(name: Literal["joules_per_sample", "watts"]) -> Callable[[Result], Any]:
    """A figure of an answer's energy; None where it is not known."""
    return lambda found: found.outcome.energy and getattr(found.outcome.energy, name)


COLUMNS: dict[str, Column] = {
    "planner": Column(),
    "stack": Column(None, "stacks", "stack", "{stack}"),
    "status": Column(),
    "layout": Column(),
    "schedule": Column(
        lambda found: found.plan.schedule,
        "speed",
        "schedule",
        lambda record: record["schedule"] + (STALE if record["asynchronous"] else ""),
    ),
    "asynchronous": Column(),
    "notation": Column(lambda found: found.plan.notation, "speed", "plan", "{notation}"),
    "stages": Column(lambda found: len(found.plan.stages)),
    "devices": Column(lambda found: len(found.plan.devices)),
    "microbatches": Column(lambda found: len(found.plan.microbatches), "speed", "micro-\nbatches", "{microbatches}"),
    "iteration_seconds": Column(None, "speed", "iteration,\nseconds", "{iteration_seconds:.4g}"),
    "error_low": Column(None, "speed", "error", "{error_low:.3g} to {error_high:.3g}"),
    "error_high": Column(),
    "error_runs": Column(),
    "error_of": Column(),
    "told_apart": Column(),
    "samples_per_second": Column(None, "speed", "samples/s", _rate),
    "speedup_over_data_parallel": Column(
        None, "speed", "speedup\nover DP", figure("speedup_over_data_parallel", ".2f")
    ),
    "mfu": Column(lambda found: efficiency(found.outcome).record()["mfu"], "use", "MFU", share("mfu")),
    "joules_per_sample": Column(
        _energy("joules_per_sample"), "energy", "J per\nsample", figure("joules_per_sample", ".3g")
    ),
    "watts": Column(_energy("watts"), "energy", "mean\nW", figure("watts", ",.4g")),
    "bubble_idle_over_makespan": Column(
        lambda found: found.timeline.bubble().idle_over_makespan,
        "use",
        "idle /\nmakespan",
        "{bubble_idle_over_makespan:.3f}",
    ),
    "bubble_over_ideal": Column(
        lambda found: found.timeline.bubble().over_ideal, "use", "idle over\nideal", "{bubble_over_ideal:.3f}"
    ),
    "bubble_longest_stage": Column(
        lambda found: found.timeline.bubble().longest_stage, "use", "idle, longest\nstage", "{bubble_longest_stage:.3f}"
    ),
    "peak_memory_bytes": Column(None, "use", "peak memory,\nGiB", _memory),
    "memory_error_low": Column(),
    "memory_error_high": Column(),
    "capacity_bytes": Column(),
    "fullest_device": Column(lambda found: found.outcome.fullest.device, "use", "fullest\ndevice", "{fullest_device}"),
    "bytes_per_sample": Column(
        lambda found: found.outcome.bytes_per_sample,
        "use",
        "MB moved\nper sample",
        figure("bytes_per_sample", ".3g", 1e-6),
    ),
    "lower_bound_seconds": Column(None, "speed", "lower\nbound, s", "{lower_bound_seconds:.4g}"),
    "lower_bound_term": Column(),
    "gap": Column(None, "speed", "gap", share("gap")),
    "planning_seconds": Column(None, "speed", "planning,\nCPU s", "{planning_seconds:.2f}"),
    "evaluations": Column(),
    "optimal_among": Column(),
    "interrupted": Column(),
    "feasible": Column(),
    "reason": Column(),
}
"""Columns of a record, and of the tables, in their order. `lower_bound_seconds` holds for any plan of the problem under the
`stack` of any row, flushed or `asynchronous` (stale weights; steady state) as this one is, `lower_bound_term` says by what, and
`gap` is the part by which the plan is above it; `optimal_among` are the plans among which it is proven the fastest. `told_apart`:
of plans that fit, whether the model tells them from the fastest."""


DECIDES = {"peak_memory_bytes": "joules_per_sample", "speedup_over_data_parallel": "samples_per_second"}
"""Columns that stand before others in tables, which a narrow terminal cuts from the right: what a plan is chosen by."""


def _table(title: str, *tables: str) -> ReportTable:
    """A table of the plans with the columns that name one of the tables."""
    names = list(COLUMNS)
    for name, other in DECIDES.items():
        names.remove(name)
        names.insert(names.index(other), name)
    columns = {COLUMNS[name].heading: COLUMNS[name].cell for name in names if COLUMNS[name].table in tables}
    planner = {"planner": lambda record: record["planner"] + (" (interrupted)" if record["interrupted"] else "")}
    return ReportTable(title, "plans", {**planner, **columns})


QUESTION = "{workload} ({source}) on {cluster}, {devices}, {samples} per iteration{judged}"

SPEED = _table(QUESTION, "speed")

STACKS = _table(QUESTION, "stacks", "speed")
"""The same where rows are for several stacks."""

USE = _table("Efficiency, idle time (the bubble, by its three names), memory and traffic", "use")

ENERGY = _table("Efficiency, energy, idle time (the bubble, by its three names), memory and traffic", "use", "energy")


_STRETCHED = [f"{name}_seconds" for name in ("quiet", "mean", *simulator.QUANTILES)]

NOISY = ReportTable(
    "{disturbed}: seconds of an iteration",
    "plans",
    {
        "planner": "{planner}",
        "without\nnoise": "{quiet_seconds:.4g}",
        **{name: f"{{{name}_seconds:.4g}}" for name in ("mean", *simulator.QUANTILES)},
        "p95 over\nthe best": share("p95_over_best", "+.1f"),
    },
)
"""Plans under noise and stragglers."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What rows are sorted by under an objective.

    best: what the first of them is; heading, cell: of the column that tells it
    counts: seconds of an iteration, joules of a sample -> what the best has least of; degree: how often seconds are a factor
    """

    best: str
    heading: str
    cell: Callable[[Row], str]
    counts: Callable[[float, float], float]
    degree: int = 1


RANKINGS: dict[str, Ranking] = {
    "time": Ranking("fastest", "mean\nW", figure("watts", ",.4g"), lambda seconds, joules: seconds),
    "energy": Ranking(
        "fewest joules", "J per\nsample", figure("joules_per_sample", ".3g"), lambda seconds, joules: joules
    ),
    "edp": Ranking(
        "least joules × seconds",
        "J per sample\n× seconds",
        lambda row: f"{row['joules_per_sample'] * row['iteration_seconds']:.3g}",
        lambda seconds, joules: seconds * joules,
        degree=2,
    ),
}
"""By objective; of "time", the column where power is capped."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One planner's answer: what it found, or None and why.

    reason: why there is no plan, or why it does not fit, or what to know of one that does, one line
    error: what was raised, if anything was
    """

    planner: str
    status: Status
    result: Result | None = None
    reason: str = ""
    error: ValueError | None = None

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt cut the search short: its plan, if it has one, is the best so far."""
        return self.status == "interrupted" or (self.result is not None and self.result.interrupted)

    @property
    def seconds(self) -> float:
        """Of an iteration; infinite without a plan."""
        return math.inf if self.result is None else self.result.iteration_seconds

    def record(self, reference_seconds: float | None) -> dict[str, Any]:
        """COLUMNS of this planner; None where there is no plan.

        reference_seconds: of data parallelism's iteration, if it is known
        """
        record: dict[str, Any] = dict.fromkeys(COLUMNS)
        record.update(planner=self.planner, status=self.status, feasible=False, reason=self.reason)
        if (found := self.result) is not None:
            record.update(
                found.record(),
                speedup_over_data_parallel=reference_seconds and reference_seconds / found.iteration_seconds,
                **{key: one.of(found) for key, one in COLUMNS.items() if one.of is not None},
            )
        return record | {"interrupted": self.interrupted}


TOLD = ("batch", "precision", "optimizer", "recompute", "communication", "contention")
"""Fields of the problem that the document tells."""


@dataclass(frozen=True, eq=False)
class Comparison(Explained):
    """Every planner's answer, and data parallelism's seconds for reference.

    reference_seconds: of data parallelism's iteration by the name of the stack; under a stack without any that of its own answer
    cut_short: whether an interrupt ended what comes behind the planners: the search of the reference, or the figures
    noisy: seconds of each planner's plan under noise and stragglers; disturbed: these in words; both empty where nobody asked
    judge: of plans, where they are not judged by their seconds alone
    """

    problem: Problem
    plans: tuple[Answer, ...]
    reference_seconds: Mapping[str, float | None]
    cut_short: bool = False
    noisy: Mapping[str, NoisySeconds] = field(default_factory=dict)
    disturbed: str = ""
    judge: PlanJudge | None = None

    def __repr__(self) -> str:
        ended = ", ".join(f"{one.planner} {one.status.replace('-', ' ')}" for one in self.plans)
        return brief(self, f"{self.problem.title}: {ended}")

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt cut it short; the planners behind it were not asked."""
        return self.cut_short or any(one.interrupted for one in self.plans)

    def records(self) -> list[dict[str, Any]]:
        """One flat record per planner: the table's columns, in base units."""
        return [dict(record) for record in self._records]

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        """`records`, of which the table, the files and the document are made."""
        records = [one.record(self._reference_of(one)) for one in self.plans]
        bounds = self._least_bounds()
        for record in records:
            if record["lower_bound_seconds"] is not None:
                bound = bounds[record["asynchronous"]]
                gap = bound.gap(record["iteration_seconds"])
                record.update(lower_bound_seconds=bound.seconds, lower_bound_term=bound.name, gap=gap)
        if (best := self.best) is not None:
            near = {one.planner for one in self.not_told_apart()}
            for record in records:
                if record["feasible"] and record["planner"] != best.planner:
                    record["told_apart"] = record["planner"] not in near
        for record in records if self.noisy else ():
            found = self.noisy.get(record["planner"])
            record.update(
                dict.fromkeys(_STRETCHED) if found is None else {one: found.record()[one] for one in _STRETCHED}
            )
        return records

    def _reference_of(self, answer: Answer) -> float | None:
        """Seconds of data parallelism under the stack of an answer; None where it is not known."""
        return None if answer.result is None else self.reference_seconds.get(answer.result.problem.stack.name)

    @property
    def title(self) -> str:
        """The problem, and what plans are judged by."""
        return f"{self.problem.title}{self._judged_words()}"

    def _judged_words(self) -> str:
        return "" if self.judge is None else f": {self.judge.words}"

    @property
    def ranking(self) -> Ranking:
        """What rows are sorted by."""
        return RANKINGS["time" if self.judge is None else self.judge.objective]

    def measure(self, one: Answer) -> float:
        """What the best answer has least of: seconds, joules per sample, or both multiplied; infinite without a plan."""
        energy = None if one.result is None else one.result.outcome.energy
        return self.ranking.counts(one.seconds, math.inf if energy is None else energy.joules_per_sample)

    @property
    def fastest(self) -> Answer | None:
        """The fastest answer that fits, the first of equals; None where none does."""
        return min(self._fitting(), key=lambda one: one.seconds, default=None)

    @property
    def best(self) -> Answer | None:
        """As `fastest`, by what plans are judged by."""
        return min(self._fitting(), key=self.measure, default=None)

    def _fitting(self) -> list[Answer]:
        return [one for one in self.plans if one.result is not None and one.result.fits]

    def not_told_apart(self) -> tuple[Answer, ...]:
        """Answers with another plan that fits, which the model does not tell apart from the best; good before bad."""
        best, root = self.best, 1.0 / self.ranking.degree
        if best is None or best.result is None:
            return ()
        mine, near = best.result.outcome, []
        for one in self.plans:
            if one.result is None or not one.result.fits or one is best:
                continue
            other = one.result.outcome
            same = replace(other.plan, planner="") == replace(mine.plan, planner="") and other.problem == mine.problem
            mean, others = (self.measure(each) ** root for each in (best, one))
            if not same and not told_apart(mean, mine.error, others, other.error):
                near.append(one)
        return tuple(sorted(near, key=self.measure))

    def _least_bounds(self) -> dict[bool, BoundTerm]:
        """For plans that flush (False) and others the least of the bounds under the stacks of the rows, on any number of
        devices."""
        found: dict[bool, BoundTerm] = {}
        for one in self.plans:
            if one.result is not None and one.result.outcome.lower_bound is not None:
                flush, whole = one.result.outcome.schedule.flush, replace(self.problem, stack=one.result.problem.stack)
                bound = simulator.lower_bound(whole).of(flush=flush)
                found[not flush] = min(found.get(not flush, bound), bound, key=lambda term: term.seconds)
        return found

    def planned(self) -> list[dict[str, Any]]:
        """The records of planners that have a plan, in the order of the planners."""
        return [record for record in self.records() if record["schedule"] is not None]

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units; beside each record the plan, as its file says it, or null."""
        problem, judge, best = self.problem, self.judge, self.best
        found = [one.result for one in self.plans]
        plans = [one and json.loads(simulator.PlanFile(one.problem, one.plan).to_json()) for one in found]
        return {
            "workload": problem.workload.name,
            "measured": problem.workload.bytes_per_element is not None,
            "cluster": problem.cluster.name,
            "devices": len(problem.cluster.devices),
            **{name: getattr(problem, name) for name in TOLD},
            "engine": "simpy",
            "objective": judge.objective if judge else "time",
            "power": judge.power if judge and judge.power < math.inf else None,
            "best": best and best.planner,
            "interrupted": self.interrupted,
            "plans": [record | {"plan": plan} for record, plan in zip(self.records(), plans, strict=True)],
        }

    @property
    def frame(self) -> pd.DataFrame:
        """The records as a pandas DataFrame, one row per planner."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def tables(self) -> tuple[TextTable, ...]:
        """Speed; idle time, memory and traffic; plans that fit first, fast before slow, or as they are judged."""
        problem, cluster, records = self.problem, self.problem.cluster, self.planned()
        counts = {one.planner: self.measure(one) for one in self.plans}
        measured = problem.workload.bytes_per_element is not None
        document: dict[str, Any] = {
            "workload": problem.workload.name,
            "source": "measured profile" if measured else f"analytic, {problem.precision}",
            "cluster": cluster.name,
            "devices": problem.cluster.counted_devices,
            "samples": counted(problem.batch, problem.workload.sample),
            "judged": self._judged_words(),
            "plans": sorted(records, key=lambda record: (not record["feasible"], counts[record["planner"]])),
        }
        stacks = {record["stack"] for record in records} | {problem.stack.name}
        use = ENERGY if any(row["watts"] is not None for row in document["plans"]) else USE
        speed = STACKS if len(stacks) > 1 else SPEED
        if self.judge is not None:
            name, *others = speed.columns.items()
            speed = replace(speed, columns=dict([name, (self.ranking.heading, self.ranking.cell), *others]))
        tables = speed.text(document), use.text(document)
        return (*tables, self._noisy_table(document["plans"])) if self.noisy else tables

    def _noisy_table(self, records: Sequence[Mapping[str, Any]]) -> TextTable:
        """Plans that fit first, those first that are fastest in 95 of 100 iterations."""
        least = min(one.quantile(ROBUST) for one in self.noisy.values())
        rows = [
            {**one, "p95_over_best": one["p95_seconds"] / least - 1.0}
            for one in records
            if one["planner"] in self.noisy
        ]
        rows.sort(key=lambda one: (not one["feasible"], one["p95_seconds"]))
        return NOISY.text({"disturbed": self.disturbed, "plans": rows})

    def _robust(self) -> list[str]:
        """Which plan that fits is the fastest in 95 of 100 iterations, in a line."""
        fitting = {
            one.planner: self.noisy[one.planner]
            for one in self.plans
            if one.planner in self.noisy and one.result and one.result.fits
        }
        if not fitting or self.fastest is None:
            return []
        robust = min(fitting, key=lambda name: fitting[name].quantile(ROBUST))
        fastest = self.fastest.planner
        if fitting[robust].quantile(ROBUST) == fitting[fastest].quantile(ROBUST):
            return [f"{self.disturbed}: {fastest} is the fastest still, at p95"]
        gain = 1.0 - fitting[robust].quantile(ROBUST) / fitting[fastest].quantile(ROBUST)
        return [f"{self.disturbed}: at p95 {robust} is faster than {fastest}, by {percent(gain)}"]

    def remarks(self) -> tuple[str, ...]:
        """Plans in a line each, marks, proofs, interrupts, and why planners have no plan."""
        records = self.records()
        lines = [f"{record['planner']}: {record['layout']}" for record in records if record["layout"]]
        if any(record["asynchronous"] for record in records):
            lines.append(
                f"{STALE} asynchronous: gradients of stale weights, seconds of the steady state without fill and drain"
            )
        bounds = {
            record["asynchronous"]: f"{record['lower_bound_seconds']:.4g} s ({record['lower_bound_term']})"
            for record in records
            if record["lower_bound_seconds"] is not None
        }
        if len(set(bounds.values())) > 1:
            lines.append(f"lower bound: {bounds[False]} of plans that flush, {bounds[True]} of those on stale weights")
        for one in self.plans:
            if one.result is not None and one.result.proof:
                lines.append(f"{one.planner}: {one.result.proof}; its gap is to the lower bound on any plan")
            if one.result is not None and one.interrupted:
                lines.append(f"{one.planner}: interrupted: this is the best plan so far")
            if one.reason:
                lines.append(f"{one.planner}: {one.status.replace('-', ' ')}: {one.reason}")
        lines += [*self._without_framework(), *self._near(), *self._robust()]
        return (*lines, *["interrupted: the comparison is not complete"] * self.interrupted)

    def _without_framework(self) -> list[str]:
        """Which plans are for no framework, where others are, in a line."""
        stack_of = {one.planner: one.result.problem.stack for one in self.plans if one.result is not None}
        alone = [planner for planner, stack in stack_of.items() if stack == GENERIC]
        if not alone or len(alone) == len(stack_of):
            return []
        words = (
            "what a framework takes beside computing and communicating is not in their seconds, and speedups are over"
        )
        return [f"{', '.join(alone)}: under {GENERIC.name}: {words} data parallelism under each row's own stack"]

    def _near(self) -> list[str]:
        """What is not told apart from the best, and what would tell."""
        best, near = self.best, self.not_told_apart()
        if best is None or best.result is None or not near or near[0].result is None:
            return []
        least = self.measure(best)
        names = ", ".join(f"{one.planner} ({percent(self.measure(one) / least - 1.0, '+.1f')})" for one in near)
        apart = planners.difference(best.result.outcome, near[0].result.outcome)
        told = planners.measurement(apart)
        return [f"not told apart by the model from {best.planner}: {names}; of the first, {told}"]

    def plot(self) -> Figure:
        """Draw the plans as bars: samples per second, and peak memory against capacity."""
        from experiments.compare.comparison_plots import comparison_figure

        early = " (interrupted: not every planner was asked to the end)" if self.interrupted else ""
        return comparison_figure(self.planned(), f"{self.title}{early}", None if self.judge is None else self.ranking)


def compare_planners(
    problem: Problem,
    request: Request,
    *,
    names: Sequence[str | Callable[..., Any]],
    plans: Mapping[str, Plan] | None,
    seed: int,
    stacks: Sequence[Stack],
    report: Callable[[int, str], None] = lambda done, text: None,
) -> Comparison:
    """Plan with each planner and replay each plan on SimPy; whatever ends one planner is the reason in its row.

    names: planners to ask, or themselves; none for those that are compared by default (what does not apply is listed with its
        reason)
    plans: given plans, a row each under these names, before the planners
    stacks: to search under, as in `planners.plan_over_stacks`; given plans are of the problem's own
    report: called with the planners done and the one at work
    An interrupt ends the search that runs, which keeps its best plan so far; the planners behind it are not asked.
    Raises ValueError for an unknown planner, or a given plan of a planner's name; KeyboardInterrupt if there is no plan yet.
    """
    judge = planners.PlanJudge.of(problem, request)
    asked = _named(names) or {
        name: name for name, entry in planners.planner_entries().items() if entry.is_default(problem)
    }
    for name in asked:
        if name in (plans or {}):
            raise ValueError(
                f"a given plan is called {name!r}, as the planner that is asked, too: give it another name"
            )
    questions = {name: replaying(problem, plan, judge) for name, plan in (plans or {}).items()}
    questions |= {name: planning(problem, request, planner, seed, stacks) for name, planner in asked.items()}
    answers: list[Answer] = []
    for number, (name, question) in enumerate(questions.items()):
        if answers and answers[-1].interrupted:
            answers.append(Answer(name, "interrupted", reason="not asked: an interrupt ended the comparison"))
            continue
        report(number, name)
        answers.append(ask(name, question))
    stopped = any(one.interrupted for one in answers)
    if stopped and all(one.result is None for one in answers):
        raise KeyboardInterrupt
    references = dict[str, float | None]()
    try:
        for stack, answer in _references(problem, request, answers, seed, stacks, search=not stopped):
            references[stack] = None if answer.result is None else answer.seconds
            stopped |= answer.interrupted
    except KeyboardInterrupt:  # the answers are found
        stopped = True
    return Comparison(problem, tuple(answers), references, cut_short=stopped, judge=judge)


def under_disturbances(
    comparison: Comparison,
    *,
    noise: float = 0.0,
    replays: int = 1,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 0,
    report: Callable[[int, str], None] = lambda done, text: None,
) -> Comparison:
    """The comparison with the seconds of every plan under noise and stragglers, as `simulator.simulate` takes them."""
    found = {}
    for number, one in enumerate(comparison.plans):
        if one.result is None:
            continue
        report(number, one.planner)
        outcome = simulator.simulate(
            one.result.problem,
            one.result.plan,
            engine="compiled",
            noise=noise,
            rng=np.random.default_rng(seed),
            replays=replays,
            stragglers=stragglers,
            bounded=False,
        )
        alone = simulator.NoisySeconds(0.0, outcome.iteration_seconds, np.array([outcome.iteration_seconds]))
        found[one.planner] = outcome.noisy or alone
    words = [f"noise {noise:g} ({replays:,} replays)"] if noise else []
    words += [f"device {device} {factor:g} times as slow" for device, factor in (stragglers or {}).items()]
    return replace(comparison, noisy=found, disturbed=f"under {' and '.join(words)}")


Question = Callable[[], "Result"]
"""What has a plan for an answer."""


def planning(
    problem: Problem,
    request: Request,
    planner: str | Callable[..., Any],
    seed: int = 0,
    stacks: Sequence[Stack] = (),
) -> Question:
    """What a planner finds, under the best of the stacks."""
    return lambda: planners.plan_by(planner, problem, stacks, request, seed=seed)


def _named(asked: Sequence[str | Callable[..., Any]]) -> dict[str, str | Callable[..., Any]]:
    """Planners by their names, numbered where another has the name; ValueError for one that is not known."""
    found: dict[str, str | Callable[..., Any]] = {}
    words = {one for one in asked if isinstance(one, str)}
    for one in asked:
        name = start = planners.named_planner(one)[0]
        number = 1
        while not isinstance(one, str) and (name in words or name in found) and found.get(name) is not one:
            number += 1
            name = f"{start}-{number}"
        found[name] = one
    return found


def replaying(problem: Problem, plan: Plan, judge: PlanJudge | None = None) -> Question:
    """What has a given plan for an answer, unless the judge does not allow it."""
    rng = np.random.default_rng(0)
    return lambda: planners.run_planner(lambda *given: plan, problem, planners.Evaluator(problem, judge=judge), rng)


def ask(name: str, question: Question) -> Answer:
    """The answer to one question; whatever ends it is its reason."""
    try:
        result = question()
    except KeyboardInterrupt:
        return Answer(name, "interrupted", reason="interrupted before it had a plan that fits")
    except planners.InapplicablePlannerError as error:
        return Answer(name, "not-applicable", reason=error.reason, error=error)
    except InfeasiblePlanError as error:
        return Answer(name, "no-plan-fits", reason=str(error), error=error)
    except ValueError as error:
        return Answer(name, "failed", reason=str(error), error=error)
    if result.outcome.fits:
        left_out = result.noted(planners.CutsLeftOut)
        known = (result.outcome.warning, left_out.cuts_left_out if left_out else "")
        return Answer(name, "fits", result, "; ".join(filter(None, known)))
    fullest = result.outcome.fullest
    reason = (
        f"needs {gibibytes(fullest.peak_bytes)} on device {fullest.device}, "
        f"which holds {gibibytes(fullest.capacity_bytes)}"
    )
    return Answer(name, "does-not-fit", result, reason)


def _references(
    problem: Problem, request: Request, plans: Sequence[Answer], seed: int, stacks: Sequence[Stack], *, search: bool
) -> Iterator[tuple[str, Answer]]:
    """By the stacks of the answers what data parallelism answers there, with its own schedule, or under the best of all stacks
    where that one runs none; nothing where it is not known and may not be sought.
    """
    own = planners.Request(engine=request.engine)
    known = next((one for one in plans if one.planner == REFERENCE), None)
    judged = request.objective != "time" or request.power is not None
    if search and (known is None or judged or (known.result is None and request.schedule is not None)):
        known = ask(REFERENCE, planning(problem, own, REFERENCE, seed, stacks))
    if known is None:
        return
    stacks_of = {one.result.problem.stack.name: one.result.problem.stack for one in plans if one.result is not None}
    found = {name: replace(problem, stack=stack) for name, stack in stacks_of.items()}
    for name, asked in found.items():
        if known.result is not None and known.result.problem.stack.name == name:
            yield name, known
        elif search:
            alone = ask(REFERENCE, planning(asked, own, REFERENCE, seed))
            yield name, known if alone.result is None else alone
