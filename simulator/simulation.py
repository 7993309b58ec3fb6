"""Simulate: the wiring of problem and plan to schedule, program, engine, timeline and memory."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args
from weakref import WeakKeyDictionary

import numpy as np

from hardware_profiles import brief, unchosen
from simulator.costs.layer_costs import LayerCosts
from simulator.costs.lower_bound import BoundTerm, lower_bound
from simulator.costs.plan_costs import PlanCosts
from simulator.engines.timeline import Timeline
from simulator.lowering.coverage import CoveredSchedule, covered
from simulator.lowering.fill import fill
from simulator.lowering.lower import structure_of
from simulator.lowering.program import Program
from simulator.lowering.structure import Structure
from simulator.lowering.unit_lanes import GATHERING, SCATTERING
from simulator.memory.device_memory import DeviceMemory
from simulator.memory.over_time import memory_over_time
from simulator.plans.plan import InfeasiblePlanError, Plan, Problem, check_plan, family_of, flushes, ranges
from simulator.results.memory_tables import peak_tables
from simulator.results.replayed import Replayed
from simulator.results.steady_state import LEAST_WATCHED, MOST_PERIOD, SteadyState, steady_state
from simulator.results.text_tables import TextTable
from simulator.results.time_split import TimeSplit, time_split
from simulator.schedules import blamed_on, build_schedule
from simulator.schedules.ops import COMPUTE_KINDS, HOST_KINDS, LETTERS, OpKind, among
from simulator.schedules.schedule import Schedule
from simulator.schedules.text import from_text
from simulator.schedules.unequal import unequal_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Engine = Literal["simpy", "compiled", "recurrence"]
"""`simpy`: the reference. `compiled`: the same to the last bit, by the recurrence where no channel is contended and no lanes
share a device, else by the event loop. `recurrence`: as compiled, but every link is unlimited, whatever the problem says."""

ENGINES: tuple[str, ...] = get_args(Engine)

MOST_STREAM = 4096
"""Most micro-batches of a stream that does not become steady; one that a plan's turns need is as long as they need."""

KEPT, KEPT_TASKS = 4, 200_000
"""Structures that are kept for one `LayerCosts`, and tasks of one that is."""

_lowered: WeakKeyDictionary[LayerCosts, OrderedDict[Hashable, tuple[CoveredSchedule, Structure]]] = WeakKeyDictionary()
"""Schedules and structures of plans, the latest last, for as long as their `LayerCosts` lives."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(Replayed):
    """A plan replayed on its problem.

    iteration_seconds: for `problem.batch` samples: the makespan of a flushed mini-batch, or the steady-state time of an
        asynchronous stream, apart from fill and drain
    timeline: of the flushed mini-batch, or of the whole stream with its fill and drain
    stream: micro-batches in the timeline
    steady: of an asynchronous stream, how its steady state was read; None where the mini-batch is flushed
    lower_bound: what no plan of the problem can beat that flushes, or does not, as this one; None where durations are noisy
    """

    problem: Problem
    plan: Plan
    schedule: Schedule
    timeline: Timeline
    memory: tuple[DeviceMemory, ...]
    iteration_seconds: float
    stream: int
    steady: SteadyState | None = None
    lower_bound: BoundTerm | None = None

    @property
    def samples_per_second(self) -> float:
        """Throughput; infinite where nothing takes time."""
        return self.problem.batch / self.iteration_seconds if self.iteration_seconds else math.inf

    @property
    def gap(self) -> float:
        """How far the plan is above the bound, as a part of it; infinite above a bound of no seconds, NaN without a bound."""
        if self.lower_bound is None:
            return math.nan
        seconds = self.lower_bound.seconds
        if self.iteration_seconds == seconds:
            return 0.0
        return self.iteration_seconds / seconds - 1.0 if seconds else math.inf

    @property
    def fill_seconds(self) -> float:
        """From the start until the last stage has something to do: the pipeline is filled."""
        timeline = self.timeline
        rows = (timeline.stage == len(self.plan.stages) - 1) & timeline.compute()
        return float(timeline.start[rows].min())

    @property
    def drain_seconds(self) -> float:
        """From the end of the input stage's last forward, when nothing new comes in, to the end of everything."""
        timeline = self.timeline
        rows = (timeline.stage == 0) & (timeline.kind == OpKind.FORWARD)
        return timeline.makespan_seconds - float(timeline.end[rows].max())

    @property
    def warning(self) -> str:
        """One line if the seconds are not those of a steady state; empty if they are."""
        if self.steady is None or self.steady.reached:
            return ""
        return (
            f"the stream of {self.stream} micro-batches shows no steady state: the rates of its halves differ by "
            f"{100 * self.steady.drift:.2g} %; its seconds are their mean"
        )

    @property
    def fits(self) -> bool:
        """Whether every device holds its peak."""
        return all(device.fits for device in self.memory)

    @property
    def fullest(self) -> DeviceMemory:
        """The device whose peak is the largest part of its capacity."""
        return max(self.memory, key=lambda device: device.peak_bytes / device.capacity_bytes)

    @property
    def bytes_per_sample(self) -> float:
        """Bytes that cross links a sample: boundary tensors, and gradients in ring all-reduces (2(R-1)·size a round)."""
        return moved_bytes_per_sample(self.problem, self.plan, self.schedule)

    def __repr__(self) -> str:
        fits = "fits" if self.fits else "does not fit"
        return brief(self, f"{self.title}: {self.iteration_seconds:.6g} s an iteration, {fits}")

    @property
    def title(self) -> str:
        """Problem and plan, as a heading names them."""
        plan = self.plan
        return f"{self.problem.title}: {plan.planner}, {plan.schedule}, {plan.notation}"

    @property
    def speed(self) -> str:
        """Micro-batches, seconds and throughput, as a sentence says them."""
        return (
            f"{self.plan.microbatch_words}; {self.iteration_seconds:.4g} s an iteration, "
            f"{self.samples_per_second:,.4g} samples/s"
        )

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        fullest = self.fullest
        return {
            "asynchronous": not self.schedule.flush,
            "iteration_seconds": self.iteration_seconds,
            "samples_per_second": self.samples_per_second,
            "feasible": self.fits,
            "peak_memory_bytes": fullest.peak_bytes,
            "capacity_bytes": fullest.capacity_bytes,
            "lower_bound_seconds": self.lower_bound and self.lower_bound.seconds,
            "lower_bound_term": self.lower_bound and self.lower_bound.name,
            "gap": self.gap,
        }

    def tables(self) -> tuple[TextTable, ...]:
        """What each stage holds, and what the peak of each device consists of."""
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
                    f"{fullest.peak_bytes / 2**30:.2f} of {fullest.capacity_bytes / 2**30:.4g}",
                )
            )
        columns = ("stage", "layers", "devices", "M parameters\na device", "peak memory, GiB")
        return TextTable(self.title, columns, tuple(rows)), *peak_tables(self.memory)

    def remarks(self) -> tuple[str, ...]:
        """Seconds beside the bound; fill and drain of a stream; what is wrong."""
        return (self.speed + self.beside_bound, *self.doubts())

    @property
    def beside_bound(self) -> str:
        """The bound and the gap to it, to follow a sentence; empty without a bound."""
        bound = self.lower_bound
        return f"; lower bound {bound.seconds:.4g} s ({bound.name}), gap {100 * self.gap:.1f} %" if bound else ""

    def doubts(self) -> tuple[str, ...]:
        """What else to know of the seconds and the memory, a line each."""
        found = []
        if not self.schedule.flush:
            found.append(
                f"asynchronous, on stale weights: steady state, apart from {self.fill_seconds:.4g} s of fill "
                f"and {self.drain_seconds:.4g} s of drain"
            )
        return (*found, *filter(None, [self.warning]), *["the plan does not fit"] * (not self.fits))

    def time_split(self) -> TimeSplit:
        """Where the seconds of the iteration go on each device; of a stream those of its steady state."""
        steady = self.steady
        costs, _, program = build_program(self.problem, self.plan, stream=self.stream)
        if steady is None:
            return time_split(costs, program, self.timeline, (0.0, self.timeline.makespan_seconds))
        found = time_split(costs, program, self.timeline, (steady.begin, steady.end))
        watched = steady.end - steady.begin
        return found.scaled(self.iteration_seconds / watched) if watched else found

    def plot_gantt(self, ax: Axes | None = None) -> Figure:
        """Draw the timeline; of a stream without a flush a cut from the middle that can be read.

        ax: where to draw; by default a figure of its own
        """
        from simulator.results.gantt_plots import gantt, readable_window

        window = None if self.schedule.flush else readable_window(self.timeline)
        word = self.problem.device_word
        axes = gantt(self.timeline, ax, title=self.title, window=window, device_word=word, groups=self.plan.groups)
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
    layer_costs: LayerCosts | None = None,
) -> Outcome:
    """Replay a plan.

    engine: see `Engine`; contention as the problem says, but on `recurrence`
    noise: standard deviation of the logarithm of a factor on every duration; needs `rng`
    An asynchronous stream is made twice as long until it shows its steady state, or would have more than MOST_STREAM
    micro-batches (`Outcome.steady` then says how far from steady it is); a noisy one has no other length.
    Raises InfeasiblePlanError or ScheduleError for a plan that cannot run. A plan that runs but does not fit is returned with
    `fits` False. Raises UndercutBoundError for a replay below its bound, of which a right program has none.
    """
    if engine not in ENGINES:
        raise ValueError(unchosen("engine", engine, ENGINES))
    stream = 0
    while True:
        costs, schedule, program = build_program(problem, plan, layer_costs, stream)
        if noise:
            if rng is None:
                raise ValueError("noise needs a random generator")
            program = program.with_noise(noise, rng)
        timeline = replay_on(program, engine, contention=problem.contention)
        stream = schedule.microbatches
        samples = np.array(stream_sizes(plan, stream), dtype=np.int64)
        steady = None if schedule.flush else steady_state(timeline, samples, turns(plan))
        if steady is None or steady.reached or noise or 2 * stream > MOST_STREAM:
            break
        stream *= 2
    outcome = Outcome(
        problem=problem,
        plan=plan,
        schedule=schedule,
        timeline=timeline,
        memory=memory_over_time(costs, timeline),
        iteration_seconds=timeline.makespan_seconds if steady is None else steady.seconds_per_sample * problem.batch,
        stream=stream,
        steady=steady,
        lower_bound=None if noise else lower_bound(problem, costs.layers).of(flush=schedule.flush),
    )
    _check_bound(outcome)
    return outcome


class UndercutBoundError(RuntimeError):
    """A replay below what no plan of its problem can beat: a fault of this program, not of the plan.

    outcome: the replay
    """

    outcome: Outcome | None = None


def _check_bound(outcome: Outcome) -> None:
    """Raise UndercutBoundError for a replay below its bound: of a stream, by more than its seconds are known to."""
    bound, plan, steady = outcome.lower_bound, outcome.plan, outcome.steady
    unknown = 0.0 if steady is None else steady.uncertainty
    if bound is None or outcome.iteration_seconds >= bound.seconds * (1.0 - unknown):
        return
    error = UndercutBoundError(
        f"internal error: plan {plan.planner!r} ({plan.schedule}, {plan.notation}) takes {outcome.iteration_seconds:.9g} s an "
        f"iteration, below the least that any plan can take by its {bound.name}, {bound.seconds:.9g} s; please report this "
        "with the plan and its problem"
    )
    error.outcome = outcome
    raise error


def replay_on(program: Program, engine: Engine, *, contention: bool = False) -> Timeline:
    """Replay a program on an engine; on `recurrence` no channel is contended."""
    if engine == "simpy":
        from simulator.engines import reference as simpy_engine

        return simpy_engine.replay(program, contention=contention)
    return replay_compiled(program, contention=contention and engine == "compiled")


def replay_compiled(program: Program, *, contention: bool = False) -> Timeline:
    """Replay a program on the quickest engine that gives SimPy's timeline to the last bit."""
    queues = contention and (any(program.transfer_route) or any(program.lane_route))
    if queues or (program.lane_sharing >= 0).any():
        from simulator.engines import event_loop

        return event_loop.replay(program, contention=contention)
    from simulator.engines import recurrence

    return recurrence.replay(program)


def build_program(
    problem: Problem, plan: Plan, layer_costs: LayerCosts | None = None, stream: int = 0
) -> tuple[PlanCosts, Schedule, Program]:
    """Schedule and program of a plan, and its costs.

    stream: micro-batches of an asynchronous plan; by default `stream_length` of it
    """
    costs = PlanCosts(problem, plan, layer_costs)
    schedule, structure = plan_structure(costs, stream)
    return costs, schedule, fill(structure, costs)


def plan_structure(costs: PlanCosts, stream: int = 0) -> tuple[Schedule, Structure]:
    """Schedule of a plan, and its structure; arguments and errors as of `build_program`.

    Plans that differ in layers and devices alone share both, which are kept for the next plans with the same `LayerCosts`.
    """
    problem, plan = costs.problem, costs.plan
    check_plan(problem, plan)
    family = family_of(plan)
    count = len(plan.microbatches) if flushes(plan) else stream or stream_length(plan)
    options = _family_options(problem, plan)
    sizes = np.repeat(stream_sizes(plan, count), plan.slices)  # of a slice as many samples as of whole sequences
    forward, backward = plan.forward_sizes or tuple(sizes.tolist()), plan.backward_sizes or None
    replicas = plan.replicas if plan.replication == "split" else None
    communication = problem.communication if family is None else family.communication(problem.communication)
    forms = tuple(costs.collectives(stage).form for stage in range(len(plan.stages)))
    ties = tuple(one.stages for one in costs.tied_reductions)
    named = plan.schedule, plan.order, count, bool(plan.forward_sizes), tuple(options.items())
    key = named, forward, backward, replicas, communication, forms, ties
    kept = _lowered.setdefault(costs.layers, OrderedDict())
    known = kept.pop(key, None)
    with _blamed_on_family(plan):
        complete = known[0] if known else covered(_schedule_of(plan, count, options), forward, backward)
    schedule = complete.schedule
    _check_placement(plan, schedule)
    if plan.slices > 1:
        _check_slices(costs)
    for stage in np.unique(schedule.stage[schedule.kind == OpKind.RECOMPUTE]).tolist():
        if not costs.recomputes(stage):
            raise InfeasiblePlanError(
                f"the order of plan {plan.planner!r} runs forwards of stage {stage} again, whose recompute says none"
            )
    lowering: dict[str, Any] = {"split_replicas": replicas, "communication": communication, "updates": True}
    with _blamed_on_family(plan):
        structure = known[1] if known else structure_of(complete, costs, **lowering)
    if len(structure) <= KEPT_TASKS:
        kept[key] = complete, structure
    if len(kept) > KEPT:
        kept.popitem(last=False)
    return schedule, structure


@contextmanager
def _blamed_on_family(plan: Plan) -> Iterator[None]:
    """A ScheduleError inside names the family of a plan's schedule, unless the plan brings the order itself."""
    with nullcontext() if plan.order else blamed_on(plan.schedule):
        yield


def _schedule_of(plan: Plan, count: int, options: Mapping[str, object]) -> Schedule:
    """The order of a plan's ops, of `count` micro-batches."""
    if plan.order:
        return _order_of(plan)
    if plan.forward_sizes:
        return unequal_schedule(plan.schedule, plan.forward_sizes, plan.backward_sizes or plan.forward_sizes)
    return build_schedule(plan.schedule, len(plan.stages), count, **options)


def _check_slices(costs: PlanCosts) -> None:
    """Raise InfeasiblePlanError for a plan whose sequences cannot be cut into its slices."""
    plan = costs.plan
    try:
        costs.of_slice(0)
    except ValueError as error:
        raise InfeasiblePlanError(f"plan {plan.planner!r} cannot slice sequences: {error}") from None
    for stage, held in enumerate(plan.stages):
        if costs.recomputation(stage) in ("blocks", "whole"):
            raise InfeasiblePlanError(
                f"plan {plan.planner!r} slices sequences: stage {stage} cannot run all of itself, or blocks, again, as later "
                "slices read what earlier ones keep"
            )
        if any(map(costs.layers.streams, held.devices)):
            raise InfeasiblePlanError(
                f"plan {plan.planner!r} slices sequences: layers of stage {stage} stream on a board"
            )


def _family_options(problem: Problem, plan: Plan) -> dict[str, object]:
    """Options of the family of a plan's schedule: those that follow from plan and problem, and the plan's own."""
    family = family_of(plan)
    taken = () if family is None else family.options
    follow = {
        "chunks": plan.chunks,
        "replicas": plan.replicas,
        "replica_updates": problem.replica_updates,
        "microbatches_per_minibatch": len(plan.microbatches),
    }
    for name, value in plan.options:
        if family is None or name in follow or name not in taken or plan.forward_sizes:
            own = ", ".join(one for one in taken if one not in follow and not plan.forward_sizes)
            raise InfeasiblePlanError(
                f"plan {plan.planner!r} cannot give schedule {plan.schedule!r} option {name} = {value!r}; it can: {own or 'none'}"
            )
        try:
            family.declared[name].read(value)
        except ValueError as error:
            raise InfeasiblePlanError(f"plan {plan.planner!r}: schedule {plan.schedule!r}: {error}") from None
    return {**{name: value for name, value in follow.items() if name in taken}, **dict(plan.options)}


def _order_of(plan: Plan) -> Schedule:
    """The ops that a plan brings itself: of one mini-batch, which its update ends."""
    text = "\n".join(plan.order)
    rare = [kind for kind in (OpKind.RECOMPUTE, *HOST_KINDS) if re.search(f"[0-9]{LETTERS[kind]}[0-9]", text)]
    kinds = (*COMPUTE_KINDS, OpKind.PREDICT, *rare)
    schedule = from_text(text, plan.schedule, len(kinds) * len(plan.stages) * len(plan.microbatches))
    updates = np.flatnonzero(schedule.kind == OpKind.UPDATE)
    if len(updates):
        device, position = schedule.place(int(updates[0]))
        raise InfeasiblePlanError(
            f"device {device}, position {position}: the order of plan {plan.planner!r} is of one mini-batch, which its update "
            "ends: it has no updates of its own"
        )
    return replace(schedule, stages=len(plan.stages), microbatches=len(plan.microbatches) * plan.slices)


def stream_sizes(plan: Plan, count: int) -> tuple[int, ...]:
    """Samples of each of `count` micro-batches."""
    return tuple(plan.microbatches[i % len(plan.microbatches)] for i in range(count))


def _check_placement(plan: Plan, schedule: Schedule) -> None:
    """Raise InfeasiblePlanError unless each list of ops has the devices of its own that the plan puts its stages on.

    One device where it is one of the replicas of each of its stages that take whole micro-batches; else all replicas, which split
    every micro-batch.
    """
    placed: dict[
        int, tuple[int, tuple[int, ...]]
    ] = {}  # of each device of the schedule: a stage, and where the plan puts it
    owner: dict[int, int] = {}
    in_turn = plan.replication == "round-robin"
    for stage, holders in enumerate(schedule.holders()):
        devices = plan.stages[stage].leads
        if len(holders) != (len(devices) if in_turn else 1):
            raise InfeasiblePlanError(
                f"schedule {plan.schedule!r} has {_lists(len(holders))} of stage {stage}, which plan {plan.planner!r} puts on "
                f"{len(devices)} devices, replication {plan.replication}"
            )
        for replica, device in enumerate(holders):
            used = devices[replica : replica + 1] if in_turn else devices
            first, known = placed.setdefault(device, (stage, used))
            if used != known:
                raise InfeasiblePlanError(
                    f"schedule {plan.schedule!r} runs stages {[first, stage]} on one device, the plan puts stage {stage} on "
                    f"device {used[0]} and stage {first} on device {known[0]}"
                )
            for one in used:
                if owner.setdefault(one, device) != device:
                    raise InfeasiblePlanError(
                        f"device {one} of plan {plan.planner!r} holds stages that schedule {plan.schedule!r} runs on several "
                        "devices"
                    )


def _lists(count: int) -> str:
    return "one list of ops" if count == 1 else f"{count} lists of ops"


def stream_length(plan: Plan) -> int:
    """Micro-batches of the stream that is to show an asynchronous plan's steady state: fill, two periods to measure, drain.

    The period is that of `turns`, as far as it is watched; the stream is a multiple of it.
    """
    period = min(turns(plan), MOST_PERIOD)
    lanes = len(plan.groups)
    return period * (2 * -(-max(2 * lanes, 4) // period) + 2 * -(-max(LEAST_WATCHED, lanes) // period))


def _updates_by_minibatch(plan: Plan) -> bool:
    """Whether an asynchronous plan updates once an iteration, after all of its micro-batches, and not after each of them."""
    family = family_of(plan)
    return family is not None and "microbatches_per_minibatch" in family.options


def turns(plan: Plan) -> int:
    """Micro-batches after which the turns of replicas, of micro-batch sizes and of updates all begin anew."""
    if _updates_by_minibatch(plan):
        return len(plan.microbatches)
    sizes = len(plan.microbatches) if len(set(plan.microbatches)) > 1 else 1
    rounds = math.lcm(*plan.replicas) if plan.replication == "round-robin" else 1
    return math.lcm(sizes, rounds)


def moved_bytes_per_sample(problem: Problem, plan: Plan, schedule: Schedule) -> float:
    """Bytes on links a sample: activations and gradients at every boundary between devices, what tensor-parallel groups move
    inside, and what replicas all-reduce, or scatter and gather.

    Where replicas divide weights, every pass is taken to gather all of its stage's.
    """
    costs = PlanCosts(problem, plan)
    total = 0.0
    for stage, size in enumerate(costs.boundary_bytes):
        total += 2.0 * size * _crossing(plan, schedule, stage)
    total += sum(costs.inside_bytes(stage) for stage in range(len(plan.stages)))

    def a_sample(size: float, replicas: Sequence[int]) -> float:
        """Of bytes that stages of these numbers of replicas send once they all have a gradient."""
        samples = (
            problem.batch
            if flushes(plan) or _updates_by_minibatch(plan)
            else problem.batch
            / len(plan.microbatches)
            * (math.lcm(*replicas) if plan.replication == "round-robin" else 1)
        )
        return size / samples

    for number, held in enumerate(plan.stages):
        ops = schedule.kind[schedule.stage == number]
        scatters = np.count_nonzero(among(ops, SCATTERING)) if plan.zero >= 2 else 1
        gathers = np.count_nonzero(among(ops, GATHERING)) if plan.zero == 3 else 1
        scattered = costs.scattered_bytes(number)
        gathered = costs.gathered_bytes(number) if plan.zero else scattered
        total += a_sample(scattered * scatters + gathered * gathers, (len(held.leads),))
    for weight, stages in costs.shared_weights:
        size = 2.0 * (len(costs.groups_of(stages)) - 1) * weight.parameters * problem.accumulated_bytes
        total += a_sample(size, [len(plan.stages[stage].leads) for stage in stages])
    return total


def _crossing(plan: Plan, schedule: Schedule, stage: int) -> float:
    """Part of the samples that go to another device from a stage to the next."""
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
