"""Plan report: memory by stage and part, time by part, efficiency and cost, runner-ups, and what limits a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments.compare.efficiency import Efficiency, Price, efficiency
from experiments.report.limits import Limit, limit_rows, limit_sentence, limits
from experiments.targets.names import TARGETS
from hardware_profiles import GIB, counted, optional_members, percent
from planners import Result, RunnerUp, error_of_runner_up, is_told_apart, replayed_beside, runner_ups
from simulator import (
    ACTIVATIONS,
    CATEGORIES,
    TIME_PARTS,
    Explained,
    Outcome,
    Plan,
    PlanCosts,
    Score,
    TakenCollective,
    TextTable,
    TimeSplit,
    activations_by_part,
    ranges,
    recompute_phrases,
    taken_collectives,
)

HIDDEN = ("transfers", "gradient sync")
"""Parts of time that can be hidden behind computing, as columns of `TimeSplit.hidden`."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanReport(Explained):
    """What a plan is worth.

    answer: the result of a search, or a plan's replay alone
    split: of the seconds of an iteration; efficiency: of what the devices could do; limits: what could be free, best first
    runner_ups: by decision, as far as the search knows them
    """

    answer: Result | Outcome
    split: TimeSplit
    efficiency: Efficiency
    limits: tuple[Limit, ...]
    runner_ups: tuple[RunnerUp, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The plan's replay."""
        return self.answer.outcome if isinstance(self.answer, Result) else self.answer

    def tables(self) -> tuple[TextTable, ...]:
        """Stages, memory by stage, its activations by part, time by part, collectives, what could be free, and runner-ups."""
        found = [self.outcome.tables()[0], *self._memory_tables(), self._time_table()]
        found += self._collective_tables()
        found += [self._limit_table()] * bool(self.limits) + [self._runner_up_table()] * bool(self.runner_ups)
        return tuple(found)

    def remarks(self) -> tuple[str, ...]:
        """What the answer says of itself, efficiency and cost, and what limits the plan."""
        return (
            *self.answer.remarks(),
            *self._worth(),
            *self._beside(),
            *self._launch(),
            f"{self.limit[0].upper()}{self.limit[1:]}.",
        )

    @property
    def limit(self) -> str:
        """One sentence that says what limits the plan."""
        utilisation = self.efficiency.share_of_peak(self.efficiency.model_flop)
        return limit_sentence(self.outcome, self.split, self.limits, utilisation)

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        return {
            "memory": self.memory_rows(),
            "time": {
                "mean": dict(zip(TIME_PARTS, self.split.mean.tolist(), strict=True)),
                "mean_hidden": dict(zip(HIDDEN, self.split.mean_hidden.tolist(), strict=True)),
                "devices": self.time_rows(),
            },
            "collectives": [asdict(one) for one in self.collectives],
            "efficiency": self.efficiency.record(),
            "limits": limit_rows(self.outcome, self.limits),
            "limit": self.limit,
            "launch": self.launch(),
            "runner_ups": [
                {
                    "decision": one.decision,
                    "chosen": one.chosen,
                    "instead": one.other,
                    "iteration_seconds": one.seconds,
                    **dict(zip(("error_low", "error_high"), self._error(one), strict=True)),
                    "loses": self._loss(one),
                    "told_apart": is_told_apart(self.outcome, one),
                    "peak_memory_bytes": one.peak_bytes,
                    "notation": one.notation,
                }
                for one in self.runner_ups
            ],
        }

    # ------------------------------------------------------------------------------------------------ memory

    @property
    def _devices(self) -> str:
        """What heads a column of devices."""
        return f"{self.outcome.problem.device_word}s"

    def memory_rows(self) -> list[dict[str, Any]]:
        """A row for each set of stages that devices hold: these, what they run again, the devices, and what the peak of the
        fullest of them consists of, and its activations by what they belong to.
        """
        plan, memory = self.outcome.plan, {one.device: one for one in self.outcome.memory}
        again = recompute_phrases(self.outcome.problem, plan)
        held: dict[int, tuple[int, ...]] = {}
        for number, stage in enumerate(plan.stages):
            for device in stage.devices:
                held[device] = (*held.get(device, ()), number)
        alike: dict[tuple[int, ...], list[int]] = {}
        for device, stages in held.items():
            alike.setdefault(stages, []).append(device)
        rows = []
        for stages, devices in sorted(alike.items()):
            fullest = max((memory[device] for device in devices), key=lambda one: one.peak_bytes / one.capacity_bytes)
            rows.append(
                {
                    "stages": list(stages),
                    "recompute": list(dict.fromkeys(again[stage] for stage in stages)),
                    "devices": sorted(devices),
                    **fullest.peak_parts,
                    "activations_by_part": dict(fullest.activations_by_part),
                    "peak_bytes": fullest.peak_bytes,
                    "capacity_bytes": fullest.capacity_bytes,
                    "reserve_bytes": fullest.reserve_bytes,
                }
            )
        return rows

    def _memory_tables(self) -> tuple[TextTable, ...]:
        rows = self.memory_rows()
        used = [name for name in CATEGORIES if any(row[name] for row in rows)]
        again = any(row["recompute"] != ["none"] for row in rows)
        cells = [
            (
                ranges(row["stages"]),
                *[", ".join(row["recompute"])] * again,
                *(f"{row[name] / GIB:,.2f}" for name in (*used, "peak_bytes")),
                f"{(row['capacity_bytes'] - row['peak_bytes']) / GIB:,.2f}",
                ranges(row["devices"]),
            )
            for row in rows
        ]
        columns = "stages", *["recompute"] * again, *used, "together", "free", self._devices
        table = TextTable("Memory at the peak, GiB", columns, tuple(cells))
        if not (parts := activations_by_part(rows)):
            return (table,)
        sizes = zip(*parts.values(), strict=True)
        kept = [
            (ranges(row["stages"]), *(f"{one / GIB:,.2f}" for one in own)) for row, own in zip(rows, sizes, strict=True)
        ]
        return table, TextTable(ACTIVATIONS, ("stages", *parts), tuple(kept))

    # -------------------------------------------------------------------------------------------------- time

    def time_rows(self) -> list[dict[str, Any]]:
        """A row for each device or group: its first device, how many it has, seconds by part, and those that are hidden."""
        split = self.split
        return [
            {
                "device": int(device),
                "members": int(split.members[row]),
                **dict(zip(TIME_PARTS, split.seconds[row].tolist(), strict=True)),
                "hidden": dict(zip(HIDDEN, split.hidden[row].tolist(), strict=True)),
            }
            for row, device in enumerate(split.devices.tolist())
        ]

    def _time_table(self) -> TextTable:
        split, whole = self.split, self.outcome.iteration_seconds
        mean, hidden = split.mean, dict(zip(HIDDEN, split.mean_hidden.tolist(), strict=True))
        rows = [
            (
                name,
                f"{mean[number]:.4g}",
                percent(mean[number] / whole if whole else 0.0),
                f"{split.seconds[:, number].min():.4g}",
                f"{split.seconds[:, number].max():.4g}",
                f"{hidden[name]:.4g}" if name in hidden else "",
            )
            for number, name in enumerate(TIME_PARTS)
            if split.seconds[:, number].any() or hidden.get(name)
        ]
        rows.append(("iteration", f"{whole:.4g}", percent(1.0), "", "", ""))
        devices = int(split.members.sum())
        title = f"Seconds per iteration, mean of {counted(devices, self.outcome.problem.device_word)}"
        return TextTable(title, ("part", "mean", "share", "least", "most", "hidden"), tuple(rows))

    # -------------------------------------------------------------------------------------------- collectives

    @property
    def collectives(self) -> tuple[TakenCollective, ...]:
        """What groups and replicas run together, and which algorithm and protocol each takes."""
        return taken_collectives(PlanCosts(self.outcome.problem, self.outcome.plan))

    def _collective_tables(self) -> list[TextTable]:
        rows = [
            (
                one.what,
                one.operation,
                str(one.devices),
                str(one.servers),
                f"{one.size_bytes / 2**20:.4g}",
                one.way,
                f"{one.seconds * 1e3:.4g}",
                ranges(one.stages),
            )
            for one in self.collectives
        ]
        headings = ("of", "collective", self._devices, "servers", "MiB", "algorithm", "ms", "stages")
        return [TextTable("Collectives of the largest tensors", headings, tuple(rows))] * bool(rows)

    # ----------------------------------------------------------------------------------- efficiency and cost

    def _worth(self) -> tuple[str, ...]:
        """MFU and its rule, tokens per second and device, hours and cost, energy where it is known."""
        found, word = self.efficiency, self.outcome.problem.device_word
        idle = found.devices - int(self.split.members.sum())
        used = f" of all {found.devices}, {idle} of them unused" if idle else ""
        rate = f"{_number(found.units_per_device)} {found.unit}/s per {word}{used}"
        hours = f"10^{math.log10(found.amount):.0f} {found.unit} take {_number(found.device_hours)} {word}-hours"
        cost = (
            f" and cost {_number(found.cost)} {found.currency}"
            if found.cost is not None
            else " (--price, or price_per_device_hour in the cluster's file, tells what they cost)"
        )
        drawn = () if found.energy is None else (found.energy.words,)
        return (self._utilisation(), f"{rate}; {hours}{cost}", *drawn)

    def _utilisation(self) -> str:
        found, problem = self.efficiency, self.outcome.problem
        mfu, hfu = found.share_of_peak(found.model_flop), found.share_of_peak(found.hardware_flop)
        if mfu is None or hfu is None:
            if not found.model_flop:
                why = f"workload {problem.workload.name!r} tells seconds of its layers, and no FLOP"
            else:
                silent = [
                    one.name
                    for one in problem.cluster.devices
                    if problem.precision not in optional_members(one).peak_flops
                ]
                why = f"{silent[0]} states no peak FLOP/s at {problem.precision}"
            return f"no MFU: {why}"
        others = [f"HFU {percent(hfu)} with recomputation"] if found.hardware_flop > found.model_flop else []
        causal = found.causal_flop if found.causal_flop < found.model_flop else 0.0
        rules = {"with the causal half of the scores alone": causal, "by the 6 N rule": found.parameter_flop}
        for words, flop in rules.items():
            share = found.share_of_peak(flop)
            others += [] if share is None else [f"{percent(share)} {words}"]
        scores = (
            ", scores of attention whole" if any(one.kind == "attention" for one in problem.workload.layers) else ""
        )
        whose = counted(found.devices, problem.device_word)
        rule = f"3 × forward FLOP{scores}, of the {problem.precision} peak of {whose}"
        if mfu > 1.0 and any(one.kind == "convolution" for one in problem.workload.layers):
            others.append("more than the peak, as fast convolutions (Winograd) need fewer FLOP than are counted")
        return "; ".join([f"MFU {percent(mfu)} ({rule})", *others])

    # -------------------------------------------------------------------------------------------- alternatives

    def _limit_table(self) -> TextTable:
        whole = self.outcome.iteration_seconds
        rows = tuple(
            (one.name, f"{one.seconds:.4g}", percent(one.seconds / whole - 1.0, "+.1f"), one.how.rstrip(","))
            for one in self.limits
        )
        return TextTable("If it were free", ("what", "seconds", "change", "how"), rows)

    def _loss(self, one: RunnerUp) -> float:
        whole = self.outcome.iteration_seconds
        return one.seconds / whole - 1.0 if whole else math.nan

    def _error(self, one: RunnerUp) -> tuple[float, float]:
        return error_of_runner_up(self.outcome, one).of(one.seconds)

    def _runner_up_table(self) -> TextTable:
        rows = tuple(
            (
                one.decision,
                one.chosen,
                one.other,
                percent(self._loss(one), "+.2f"),
                "yes" if is_told_apart(self.outcome, one) else "no",
                "" if one.peak_bytes is None else f"{one.peak_bytes / GIB:.2f}",
                one.notation,
            )
            for one in self.runner_ups
        )
        columns = "decision", "chosen", "instead", "loses", "told apart", "peak, GiB", "plan"
        return TextTable("Runner-ups: the best known plan that makes another choice", columns, rows)

    # ---------------------------------------------------------------------------------------------------- launch

    def launch(self) -> dict[str, dict[str, Any]]:
        """Of every target all that it lacks for the plan, and, where this is nothing, what it is told (null: files)."""
        problem, plan = self.outcome.problem, self.outcome.plan
        found = {}
        for name, target in TARGETS.items():
            lacks = target.lacks(problem, plan)
            words = None if lacks or target.words is None else target.words(problem, plan)
            found[name] = {"lacks": list(lacks), "words": words}
        return found

    def _launch(self) -> tuple[str, ...]:
        """How the plan is run for real: by each target, with the words that it is told, or what it lacks."""
        written = "pipeplan export --plan FILE --to"
        return tuple(
            f"run by {name}: {one['words'] or f'{written} {name}'}"
            if not one["lacks"]
            else f"not run by {name}: it has no {'; no '.join(one['lacks'])}"
            for name, one in self.launch().items()
        )

    def _beside(self) -> tuple[str, ...]:
        """Runner-ups whose replay is faster than the plan's (searches compare closed forms, too), or that there are none."""
        if not self.runner_ups:
            return ("no runner-ups: no plan is known that fits and makes another choice",)
        faster = [one for one in self.runner_ups if one.peak_bytes is not None and self._loss(one) < 0.0]
        words = ", ".join(f"{one.decision} {one.other} ({percent(self._loss(one), '+.2f')})" for one in faster)
        return (f"faster by replay than this plan: {words}",) if faster else ()


def _number(value: float) -> str:
    """Four digits, or a whole number with thousands apart."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def plan_report(answer: Result | Outcome, price: Price | None) -> PlanReport:
    """The report of an answer; arguments and errors as in `experiments.report.report_questions.report`."""
    outcome = answer.outcome if isinstance(answer, Result) else answer
    worth, split = efficiency(outcome, price), outcome.time_split()
    replayed: Mapping[Plan, Score] = answer.replayed if isinstance(answer, Result) else {}
    known = {one.decision for one in runner_ups(answer)}
    others = runner_ups(answer, replayed_beside(outcome.problem, outcome.plan, known))
    return PlanReport(answer, split, worth, limits(outcome, split, replayed), others)
