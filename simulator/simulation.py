"""Simulate: replay a plan on its problem; the wiring from schedule and program to engine, timeline and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from hardware_profiles import GIB, PredictionError, brief, gibibytes, of_another_package, percent, shown, unchosen
from simulator.costs.layer_costs import LayerCosts
from simulator.costs.lower_bound import BoundTerm, lower_bound
from simulator.costs.plan_costs import PlanCosts
from simulator.costs.stand_ins import StandIns, stand_ins
from simulator.disturbances import Draws, check_disturbances, drawn, slowed
from simulator.engines.timeline import Timeline
from simulator.link_loads import LinkLoads, collective_traffic, link_loads
from simulator.lowering.fill import fill
from simulator.lowering.program import Program
from simulator.memory.device_memory import DeviceMemory
from simulator.memory.over_time import memory_over_time
from simulator.plan_energy import Energy, energy, power_is_known
from simulator.plan_replay import (
    ENGINES,
    Engine,
    build_program,
    grown,
    plan_structure,
    replay_on,
    steady_of,
    stream_sizes,
)
from simulator.plans.plan import Plan, Problem, check_plan, ranges
from simulator.plans.plan_words import plan_words
from simulator.results.error_bars import error_of
from simulator.results.memory_tables import peak_tables
from simulator.results.noisy_seconds import NoisySeconds, Stragglers, disturbed_record
from simulator.results.replayed import Pair, Replayed
from simulator.results.score import Score
from simulator.results.steady_state import SteadyState
from simulator.results.text_tables import TextTable
from simulator.results.time_split import TIME_PARTS, TimeSplit, computing_shares, time_split
from simulator.results.whole_timeline import whole_timeline
from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE_GAP = 0.5
"""Gap above the lower bound from which a plan is told with what the bound does not count."""


@dataclass(frozen=True, eq=False)
class Outcome(Replayed):
    """Result of replaying a plan on its problem: seconds, memory and timeline.

    iteration_seconds: for `problem.batch` samples: the makespan of a flushed mini-batch, or the steady-state time of an
        asynchronous stream, apart from fill and drain
    replay: timeline of the flushed mini-batch, or of the whole stream with its fill and drain; stand_ins: replicas that it is of,
        if not of all
    stream: micro-batches in the timeline
    steady: of an asynchronous stream, how its steady state was read; None where the mini-batch is flushed
    lower_bound: what no plan of the problem can beat that flushes, or does not, as this one; None where durations are noisy, or
        nobody asked for it
    stragglers: who computes slowly, if anyone; noisy: seconds in replays with noise, of which the timeline is the first
    """

    problem: Problem
    plan: Plan
    schedule: Schedule
    replay: Timeline
    memory: tuple[DeviceMemory, ...]
    iteration_seconds: float
    stream: int
    steady: SteadyState | None = None
    lower_bound: BoundTerm | None = None
    stand_ins: StandIns | None = None
    stragglers: Stragglers | None = None
    noisy: NoisySeconds | None = None

    @cached_property
    def timeline(self) -> Timeline:
        """Start, end and place of every task, of all replicas."""
        return self.replay if self.stand_ins is None else whole_timeline(self.replay, self.plan, self.stand_ins)

    @property
    def makespan_seconds(self) -> float:
        """Seconds from the start to the end of the timeline."""
        return self.replay.makespan_seconds

    @property
    def samples_per_second(self) -> float:
        """Throughput; infinite where nothing takes time."""
        return self.problem.batch / self.iteration_seconds if self.iteration_seconds else math.inf

    @property
    def gap(self) -> float:
        """Relative distance above the lower bound; infinite above a bound of 0 seconds, NaN without a bound."""
        return math.nan if self.lower_bound is None else self.lower_bound.gap(self.iteration_seconds)

    @property
    def error(self) -> PredictionError:
        """How far `iteration_seconds` may be off, by measured runs that are like this one."""
        return error_of(self.problem, self.plan, "seconds")

    @property
    def memory_error(self) -> PredictionError:
        """How far the bytes of the fullest device may be off."""
        return error_of(self.problem, self.plan, "memory")

    @property
    def error_low(self) -> float:
        """The seconds from which 90 % of runs like this one take, up to `error_high`."""
        return self.error.of(self.iteration_seconds)[0]

    @property
    def error_high(self) -> float:
        """The seconds up to which 90 % of runs like this one take, from `error_low`."""
        return self.error.of(self.iteration_seconds)[1]

    @property
    def fill_seconds(self) -> float:
        """Seconds from the start until the last stage begins its first op (the pipeline is filled)."""
        timeline = self.replay
        rows = (timeline.stage == len(self.plan.stages) - 1) & timeline.compute()
        return float(timeline.start[rows].min())

    @property
    def drain_seconds(self) -> float:
        """Seconds from the end of the input stage's last forward to the end of the replay (the pipeline drains)."""
        timeline = self.replay
        rows = (timeline.stage == 0) & (timeline.kind == OpKind.FORWARD)
        return timeline.makespan_seconds - float(timeline.end[rows].max())

    @property
    def warning(self) -> str:
        """One line if the seconds are not those of a steady state, else empty."""
        if self.steady is None or self.steady.reached:
            return ""
        return (
            f"the stream of {self.stream} micro-batches shows no steady state: the rates of its halves differ by "
            f"{percent(self.steady.drift, '.2g')}; its seconds are their mean"
        )

    @property
    def fullest(self) -> DeviceMemory:
        """The device whose peak memory is the largest part of its capacity."""
        return max(self.memory, key=lambda device: device.peak_bytes / device.capacity_bytes)

    @property
    def score(self) -> Score:
        """The numbers that a search compares."""
        fullest = self.fullest
        return Score(self.iteration_seconds, fullest.peak_bytes, fullest.capacity_bytes, fullest.device)

    @property
    def bytes_per_sample(self) -> float:
        """Bytes that cross links per sample: boundary tensors, and gradients in ring all-reduces (2(R-1)·size per round)."""
        return moved_bytes_per_sample(self.problem, self.plan, self.schedule)

    def __repr__(self) -> str:
        fits = "fits" if self.fits else "does not fit"
        return brief(self, f"{self.title}: {self.iteration_seconds:.6g} s per iteration, {fits}")

    @property
    def title(self) -> str:
        """Problem and plan, as a heading names them."""
        plan = self.plan
        return f"{self.problem.title}: {plan.planner}, {plan.schedule}, {plan.notation}"

    @property
    def words(self) -> str:
        """The plan in a line."""
        return plan_words(self.problem, self.plan)

    @property
    def speed(self) -> str:
        """Micro-batches, seconds with their error, and throughput, as a sentence says them."""
        error = f"{self.error_low:.3g} to {self.error_high:.3g}: {self.error.like}"
        return (
            f"{self.plan.microbatch_words}; {self.iteration_seconds:.4g} s per iteration ({error}), "
            f"{self.samples_per_second:,.4g} samples/s"
        )

    @property
    def errors(self) -> str:
        """What the error of the seconds is that of, and the bytes of the fullest device with theirs, as a sentence."""
        peak, error, word = self.fullest.peak_bytes, self.memory_error, self.problem.device_word
        low, high = (f"{one / GIB:.3g}" for one in error.of(peak))
        return (
            f"class of errors: {self.error.words}; fullest {word} {gibibytes(peak)} ({low} to {high}: {error.like}) "
            f"of {self.fullest.capacity_bytes / GIB:.4g}"
        )

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        fullest, error = self.fullest, self.error
        low, high = self.memory_error.of(fullest.peak_bytes)
        return {
            "stack": self.problem.stack.name,
            "layout": self.words,
            "asynchronous": not self.schedule.flush,
            "iteration_seconds": self.iteration_seconds,
            "error_low": self.error_low,
            "error_high": self.error_high,
            "error_runs": error.rows,
            "error_of": error.words,
            "samples_per_second": self.samples_per_second,
            "feasible": self.fits,
            "peak_memory_bytes": fullest.peak_bytes,
            "memory_error_low": low,
            "memory_error_high": high,
            "capacity_bytes": fullest.capacity_bytes,
            "lower_bound_seconds": self.lower_bound and self.lower_bound.seconds,
            "lower_bound_term": self.lower_bound and self.lower_bound.name,
            "gap": self.gap,
            **disturbed_record(self.stragglers, self.noisy),
        }

    def tables(self) -> tuple[TextTable, ...]:
        """Tables of what each stage holds, and of the peak memory of each device."""
        peaks = {memory.device: memory for memory in self.memory}
        costs = PlanCosts(self.problem, self.plan)
        rows = []
        for number, stage in enumerate(self.plan.stages):
            first, last = (self.problem.workload.layers[layer].name for layer in (stage.layers[0], stage.layers[-1]))
            groups = tuple(dict.fromkeys(stage.degrees))
            fullest = max((peaks[device] for device in stage.devices), key=lambda memory: memory.peak_bytes)
            rows.append(
                (
                    str(number),
                    f"{len(stage.layers)}: {first} … {last}",
                    ranges(stage.devices) + (f" by {' and '.join(map(str, groups))}" if groups else ""),
                    f"{costs.held_elements(number) / 1e6:,.2f}",
                    f"{fullest.peak_bytes / GIB:.2f} of {fullest.capacity_bytes / GIB:.4g}",
                )
            )
        word = self.problem.device_word
        columns = ("stage", "layers", f"{word}s", f"M parameters\nper {word}", "peak memory, GiB")
        noisy = () if self.noisy is None else self.noisy.tables()
        return TextTable(self.title, columns, tuple(rows)), *peak_tables(self.memory, word), *noisy

    def remarks(self) -> tuple[str, ...]:
        """The plan in a line, seconds beside the lower bound, fill and drain of a stream, and warnings."""
        return (self.words, self.speed + self.beside_bound, *self.beyond_bound(), self.errors, *self.doubts())

    @property
    def beside_bound(self) -> str:
        """The lower bound and the gap to it, as the end of a sentence; empty without a bound."""
        bound = self.lower_bound
        return f"; lower bound {bound.seconds:.4g} s ({bound.name}), gap {percent(self.gap)}" if bound else ""

    def beyond_bound(self) -> tuple[str, ...]:
        """Where the gap is wide: what the bound counts, and what the seconds of a device go to, in a line."""
        if self.lower_bound is None or not WIDE_GAP < self.gap < math.inf:
            return ()
        mean = self.time_split().mean
        shares = sorted(zip(TIME_PARTS, (mean / mean.sum()).tolist(), strict=True), key=lambda one: -one[1])
        spent = ", ".join(f"{name} {percent(share, '.0f')}" for name, share in shares if share >= 0.01)
        return (f"the bound counts {self.lower_bound.counts}; the seconds of a device in use are {spent}",)

    def doubts(self) -> tuple[str, ...]:
        """Caveats about the seconds and the memory, one line each."""
        found = [str(self.stragglers)] if self.stragglers else []
        if not self.schedule.flush:
            found.append(
                f"asynchronous, on stale weights: steady state, apart from {self.fill_seconds:.4g} s of fill "
                f"and {self.drain_seconds:.4g} s of drain"
            )
        return (*found, *filter(None, [self.warning]), *filter(None, [self._memory_doubt]))

    @property
    def excess(self) -> str:
        """That the plan does not fit, and on which device, or "" where it does."""
        fullest, word = self.fullest, self.problem.device_word
        held = f"{fullest.peak_bytes / GIB:.4g} of {gibibytes(fullest.capacity_bytes)}"
        return "" if self.fits else f"the plan does not fit: {word} {fullest.device} would hold {held}"

    @property
    def _memory_doubt(self) -> str:
        """That the plan does not fit, or may not, as of runs like it 90 % have up to more than there is."""
        fullest, error = self.fullest, self.memory_error
        used, most = (one / fullest.capacity_bytes for one in (fullest.peak_bytes, error.of(fullest.peak_bytes)[1]))
        if not self.fits:
            return self.excess
        if most <= 1.0 or not error.rows:
            return ""
        return (
            f"memory within the model's error of the limit: {percent(used, '.0f')} full, {percent(most, '.0f')} at the upper end "
            "of that error (--memory-reserve keeps more free)"
        )

    def time_split(self) -> TimeSplit:
        """How each device spends the seconds of an iteration; for a stream, of its steady state."""
        steady = self.steady
        costs, _, program = build_program(self.problem, self.plan, stream=self.stream)
        if steady is None:
            return time_split(costs, program, self.timeline, (0.0, self.timeline.makespan_seconds))
        found = time_split(costs, program, self.timeline, (steady.begin, steady.end))
        watched = steady.end - steady.begin
        return found.scaled(self.iteration_seconds / watched) if watched else found

    def link_loads(self) -> LinkLoads:
        """The bytes on every link per iteration, and the part of the iteration that each is busy."""
        costs, schedule, program = build_program(self.problem, self.plan, stream=self.stream)
        iterations = 1.0 if schedule.flush else self.stream / len(self.plan.microbatches)
        return link_loads(costs, schedule, program, iterations, self.iteration_seconds)

    @cached_property
    def energy(self) -> Energy | None:
        """Energy of an iteration, as `simulator.plan_energy` counts it; None where the power of a device in use is unknown."""
        if not power_is_known(self.problem, self.plan):
            return None
        return energy(PlanCosts(self.problem, self.plan), self.iteration_seconds)

    def plot_gantt(self, ax: Axes | None = None, *, window: Pair | None = None, size: Pair | None = None) -> Figure:
        """Draw the timeline as a Gantt chart; arguments as of every replay."""
        from simulator.results.gantt_plots import gantt, readable_window

        if window is None and not self.schedule.flush:
            window = readable_window(self.timeline)
        word, groups = self.problem.device_word, self.plan.groups
        axes = gantt(self.timeline, ax, title=self.title, window=window, device_word=word, groups=groups, size=size)
        return cast("Figure", axes.get_figure())

    def plot_memory(self) -> Figure:
        """Draw the memory of the devices over time, and their peaks."""
        from simulator.results.memory_plots import memory_figure

        return memory_figure(self.memory, title=self.title, device_word=self.problem.device_word)


def simulate(
    problem: Problem,
    plan: Plan,
    *,
    engine: Engine = "simpy",
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
    replays: int = 1,
    stragglers: Mapping[int, float] | None = None,
    layer_costs: LayerCosts | None = None,
    bounded: bool = True,
) -> Outcome:
    """Replay a plan on its problem.

    engine: see `Engine`; contention as the problem says, but on `recurrence`
    noise: standard deviation of the logarithm of a factor on every duration; needs `rng`
    replays: with noise; all have their seconds told (`Outcome.noisy`), the first its timeline
    stragglers: factor of at least 1 on all that a device computes, by device
    bounded: whether to find the lower bound, which takes longer than the replay of a small plan
    An asynchronous stream is made twice as long until it shows its steady state, or would have more than MOST_STREAM
    micro-batches (`Outcome.steady` then says how far from steady it is); a noisy one has no other length.
    Raises InfeasiblePlanError or ScheduleError for a plan that cannot run. A plan that runs but does not fit is returned with
    `fits` False. Raises UndercutBoundError for a replay below its bound, of which a right program has none.
    """
    if engine not in ENGINES:
        raise ValueError(unchosen("engine", engine, ENGINES))
    check_plan(problem, plan)
    costs, slow = PlanCosts(problem, plan, layer_costs), dict(stragglers or {})
    whole = layer_costs if plan.splits else costs.layers  # of layers that the plan may split
    told = None
    check_disturbances(len(problem.cluster.devices), noise=noise, replays=replays, stragglers=slow)
    if slow:
        alone: Engine = "recurrence" if engine == "recurrence" else "compiled"
        without = simulate(problem, plan, engine=alone, layer_costs=whole, bounded=False)
        told = Stragglers(slow, without.iteration_seconds)
    standing = None if noise or slow else stand_ins(costs)
    runs, noisy = _PlanReplays(costs, engine, slow, standing), None
    if noise:
        if rng is None:
            raise ValueError("noise needs a random generator")
        (schedule, timeline, steady), noisy = runs.noisy(noise, rng, replays)
    else:
        schedule, timeline, steady = grown(plan, runs.calm)
    outcome = Outcome(
        problem=problem,
        plan=plan,
        schedule=schedule,
        replay=timeline,
        memory=memory_over_time(costs, timeline, standing),
        iteration_seconds=timeline.makespan_seconds if steady is None else steady.seconds_per_sample * problem.batch,
        stream=schedule.microbatches,
        steady=steady,
        lower_bound=None if noise or not bounded else lower_bound(problem, whole).of(flush=schedule.flush),
        stand_ins=standing,
        stragglers=told,
        noisy=noisy,
    )
    _check_bound(outcome)
    return outcome


class _PlanReplay(NamedTuple):
    """A replay of a plan; steady: of a stream."""

    schedule: Schedule
    timeline: Timeline
    steady: SteadyState | None


class _PlanReplays(NamedTuple):
    """How a plan is replayed; slow: factor of the seconds that a device computes; standing: components for all like them."""

    costs: PlanCosts
    engine: Engine
    slow: Mapping[int, float]
    standing: StandIns | None

    def _filled(self, stream: int) -> tuple[Schedule, Program]:
        schedule, structure = plan_structure(self.costs, stream, self.standing)
        program = fill(structure, self.costs, self.standing)
        if not self.slow:
            return schedule, program
        return schedule, slowed(program, self.slow, computing_shares(self.costs, program), self.costs.plan.groups)

    def _steady(self, timeline: Timeline, schedule: Schedule) -> SteadyState | None:
        return None if schedule.flush else steady_of(self.costs.plan, timeline, schedule.microbatches)

    def calm(self, stream: int) -> tuple[_PlanReplay, SteadyState | None]:
        """A replay of so many micro-batches (0: of the plan's own), and how steady it is."""
        schedule, program = self._filled(stream)
        timeline = replay_on(program, self.engine, contention=self.costs.problem.contention)
        steady = self._steady(timeline, schedule)
        return _PlanReplay(schedule, timeline, steady), steady

    def noisy(self, noise: float, rng: np.random.Generator, replays: int) -> tuple[_PlanReplay, NoisySeconds | None]:
        """The first of some replays with noise, and the seconds of all."""
        schedule, program = self._filled(0)
        plan, count, problem = self.costs.plan, schedule.microbatches, self.costs.problem

        def seconds_of(timeline: Timeline) -> float:
            return steady_of(plan, timeline, count).seconds_per_sample * problem.batch

        read = None if schedule.flush else seconds_of
        _, timeline, seconds = drawn(program, Draws(noise, rng, replays, self.engine, problem.contention, read))
        return _PlanReplay(schedule, timeline, self._steady(timeline, schedule)), seconds


class UndercutBoundError(RuntimeError):
    """A replay that is faster than the lower bound of its problem: a fault of this program, not of the plan.

    outcome: the replay
    """

    outcome: Outcome | None = None


def _check_bound(outcome: Outcome) -> None:
    """Raise UndercutBoundError if a replay is faster than its lower bound (for a stream, by more than the uncertainty of its
    seconds).
    """
    bound, plan, steady = outcome.lower_bound, outcome.plan, outcome.steady
    unknown = 0.0 if steady is None else steady.uncertainty
    if bound is None or outcome.iteration_seconds >= bound.seconds * (1.0 - unknown):
        return
    others = [shown(one.name) for one in outcome.problem.cluster.kinds[0] if of_another_package(one)]
    told = f"; or accelerator {', '.join(others)}, a plug-in, fails hardware_profiles.testing.check_accelerator"
    error = UndercutBoundError(
        f"internal error: plan {plan.planner!r} ({plan.schedule}, {plan.notation}) takes {outcome.iteration_seconds:.9g} s per "
        f"iteration, below the least that any plan can take by its {bound.name}, {bound.seconds:.9g} s; please report this "
        f"with the plan and its problem{told if others else ''}"
    )
    error.outcome = outcome
    raise error


def moved_bytes_per_sample(problem: Problem, plan: Plan, schedule: Schedule) -> float:
    """Bytes on links per sample: activations and gradients at every boundary between devices, collectives inside tensor-parallel
    groups, and the all-reduces, or scatters and gathers, of replicas.
    """
    costs = PlanCosts(problem, plan)
    total = 0.0
    for stage, size in enumerate(costs.boundary_bytes):
        total += 2.0 * size * _crossing(plan, schedule, stage)
    return total + sum(one.sent for one in collective_traffic(costs, schedule))


def _crossing(plan: Plan, schedule: Schedule, stage: int) -> float:
    """Share of the samples that change device between a stage and the next."""
    here, there = (plan.stages[one].leads for one in (stage, stage + 1))
    if not set(here) & set(there):
        return 1.0
    if plan.replication == "split":
        return 0.0
    device, forward = schedule.device_of_rank()[schedule.rank_of_row()], schedule.kind == OpKind.FORWARD
    ran = np.empty((2, schedule.microbatches), dtype=np.int64)
    for row, one in enumerate((stage, stage + 1)):
        rows = forward & (schedule.stage == one)
        ran[row, schedule.microbatch[rows]] = device[rows]
    sizes = np.array(stream_sizes(plan, schedule.microbatches))
    return float(sizes[ran[0] != ran[1]].sum() / sizes.sum())
