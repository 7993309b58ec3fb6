"""Schedule replay: replay a schedule, by name or from a file, on given seconds instead of a workload and a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hardware_profiles import (
    MOST_COUNT,
    MOST_SEED,
    brief,
    check_kind,
    check_whole,
    read_bytes,
    unchosen,
)
from simulator.costs.given import OpMemory, OpSeconds, given_costs
from simulator.costs.stashes import StageStash
from simulator.disturbances import Draws, check_disturbances, drawn, slowed
from simulator.engines.timeline import Timeline
from simulator.lowering.coverage import covered
from simulator.lowering.fill import fill
from simulator.lowering.lower import check_schedule, structure_of
from simulator.lowering.program import Program
from simulator.memory.device_memory import DeviceMemory
from simulator.memory.over_time import stashes_over_time
from simulator.memory.versions import COPY_RULES, version_table
from simulator.options.training_options import Communication
from simulator.plan_replay import ENGINES, Engine, replay_compiled, replay_on
from simulator.results.noisy_seconds import NoisySeconds, Stragglers, disturbed_record
from simulator.results.replayed import Pair, Replayed
from simulator.results.text_tables import TextTable
from simulator.results.time_split import ComputingShares
from simulator.schedules import SCHEDULES, ScheduleFamily, blamed_on, build_schedule, schedule_families
from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import COUNTED, Schedule, ScheduleError, check_counts, check_size
from simulator.schedules.text import from_text, from_torch_csv, uncommented
from simulator.schedules.weight_versions import VERSION_METHODS, microbatches_per_minibatch, repeated_minibatches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_LISTED = 16
"""Values of devices or stages that a table lists one by one."""


def _listed(values: Sequence[float]) -> str:
    """A value of each device or stage: `4 3 2 1`; of many `64 × 0`, or the first and the last."""
    words = [str(one) if isinstance(one, int) else f"{one:g}" for one in values]
    runs = [(word, len(list(group))) for word, group in groupby(words)]
    if len(words) <= MOST_LISTED:
        return " ".join(words)
    if len(runs) <= MOST_LISTED // 2:
        return ", ".join(f"{count} × {word}" for word, count in runs)
    return f"{' '.join(words[:4])} … {' '.join(words[-4:])}"


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleReplay(Replayed):
    """A schedule and its replay on an engine.

    program: the schedule with its seconds, as the engine replayed it
    memory: of every device, by id, in the unit of the numbers of `holding`; () without them
    stragglers: who computes slowly, if anyone; noisy: seconds in replays with noise, of which the timeline is the first
    """

    schedule: Schedule
    timeline: Timeline
    engine: Engine
    program: Program
    memory: tuple[DeviceMemory, ...] = ()
    stragglers: Stragglers | None = None
    noisy: NoisySeconds | None = None

    def __repr__(self) -> str:
        return brief(self, f"{self.title}: makespan {self.makespan_seconds:.6g} s")

    @property
    def title(self) -> str:
        """The schedule and the engine, as a heading names them."""
        schedule = self.schedule
        return f"{schedule.name}: {schedule.stages} stages, {schedule.microbatches} micro-batches ({self.engine})"

    def holding(self, memory: OpMemory) -> ScheduleReplay:
        """The same replay with the memory that its ops hold; ValueError as in `OpMemory.of_stages`.

        Forwards that run again in ops of their own have kept nothing: these keep it.
        """
        again = set(self.schedule.stage[self.schedule.kind == OpKind.RECOMPUTE].tolist())
        stashes = [
            StageStash(0.0, whole, whole, 0.0, part) if stage in again else StageStash(whole, 0.0, 0.0, part, 0.0)
            for stage, (whole, part) in enumerate(memory.of_stages(self.schedule.stages))
        ]
        limits = memory.limits(len(self.timeline.devices()))
        return replace(self, memory=stashes_over_time(self.timeline, stashes, limits))

    @property
    def peak_memory(self) -> list[float]:
        """Peak memory of each device, by id."""
        return [one.peak_bytes for one in self.memory]

    def weight_versions(self) -> dict[str, list[int]]:
        """Staleness at forward and at backward in updates, and weight copies held, per stage, counted from the timeline.

        Copies follow the schedule's method; asynchronous schedules of no method (PipeDream, files) stash the weights of a
        forward.
        """
        schedule, timeline = self.schedule, self.timeline
        updates = bool((timeline.kind == OpKind.UPDATE).any())
        table = version_table(timeline, microbatches_per_minibatch(schedule))
        stashing = "pipedream" if updates and not schedule.flush else "synchronous"
        rule = COPY_RULES.get(schedule.name, COPY_RULES[stashing])
        return {
            "forward_difference": table.forward_difference().tolist(),
            "backward_difference": table.backward_difference().tolist(),
            "copies": rule(table).tolist(),
        }

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""
        return {
            "schedule": self.schedule.name,
            "stages": self.schedule.stages,
            "devices": len(self.timeline.devices()),
            "microbatches": self.schedule.microbatches,
            "makespan_seconds": self.makespan_seconds,
            "bubble": asdict(self.timeline.bubble()),
            "peak_in_flight": self.timeline.peak_in_flight().tolist(),
            "ops": self.timeline.ops,
            "versions": self.weight_versions(),
            "engine": self.engine,
            **({"peak_memory": self.peak_memory, "fits": self.fits} if self.memory else {}),
            **disturbed_record(self.stragglers, self.noisy),
        }

    def tables(self) -> tuple[TextTable, ...]:
        """The figures as a table, one per row."""
        found = self.record()
        bubble, versions = found["bubble"], found["versions"]
        rows = (
            ("makespan, s", f"{found['makespan_seconds']:.6g}"),
            ("bubble: idle / makespan", f"{bubble['idle_over_makespan']:.4f}"),
            ("bubble: over ideal", f"{bubble['over_ideal']:.4f}"),
            ("bubble: longest stage", f"{bubble['longest_stage']:.4f}"),
            ("micro-batches in flight, by device", _listed(found["peak_in_flight"])),
            *([("peak memory, by device", _listed(self.peak_memory))] if self.memory else []),
            ("ops", str(found["ops"])),
            ("updates missing at forward, by stage", _listed(versions["forward_difference"])),
            ("updates missing at backward, by stage", _listed(versions["backward_difference"])),
            ("weight copies, by stage", _listed(versions["copies"])),
        )
        noisy = () if self.noisy is None else self.noisy.tables()
        return (TextTable(self.title, ("measure", "value"), rows), *noisy)

    def remarks(self) -> tuple[str, ...]:
        """Stragglers; devices that exceed their memory limit, by how much, and when."""
        found = [str(self.stragglers)] if self.stragglers else []
        for one in self.memory:
            if not one.fits:
                most, limit = one.peak_bytes, one.capacity_bytes
                when = one.times[int(one.bytes.sum(axis=1).argmax())]
                found.append(
                    f"device {one.device} holds {most:g} at {when:g} s, {most - limit:g} above its limit of {limit:g}"
                )
        return tuple(found)

    def plot_gantt(self, ax: Axes | None = None, *, window: Pair | None = None, size: Pair | None = None) -> Figure:
        """Draw the timeline as a Gantt chart; arguments as of every replay."""
        from simulator.results.gantt_plots import gantt

        axes = gantt(self.timeline, ax, title=self.schedule.name, window=window, device_word="device", size=size)
        return cast("Figure", axes.get_figure())

    def plot_memory(self) -> Figure:
        """Draw what devices hold over time against their limit, and their peaks; ValueError without `holding`."""
        from simulator.results.memory_plots import memory_figure

        return memory_figure(self.memory, title=self.schedule.name, device_word="device", unit="units")


def named_schedule(
    name: str,
    stages: int,
    microbatches: int | None = None,
    *,
    minibatches: int | None = None,
    engine: Engine = "simpy",
    **options: Any,
) -> Schedule:
    """Build a schedule of a family, as long as micro-batches or mini-batches say.

    minibatches: in place of `microbatches`; a family that flushes is repeated, one flush after the other
    engine: what is to replay it: SimPy takes fewer ops
    options: of the family; `microbatches_per_minibatch` of every one
    Raises ValueError for an unknown name, options that the family does not take, and counts that do not go together.
    """
    check_counts(stages=stages, microbatches=microbatches, minibatches=minibatches)
    check_counts(**{one: options[one] for one in COUNTED if one in options})
    family = schedule_families().get(name)
    if microbatches is None and minibatches is None:
        raise ValueError(f"schedule {name!r} needs its micro-batches, or mini-batches in their place")
    for word, asked in (("micro-batches", microbatches), ("mini-batches", minibatches)):
        if asked is not None and asked < 1:
            raise ValueError(f"{word} must be at least 1, got {asked}")
    if microbatches and minibatches:
        raise ValueError("mini-batches stand in place of micro-batches, got both")
    count, repeats = microbatches or 1, 1
    if family is not None:
        if "replicas" in family.options and not options.get("replicas"):
            raise ValueError(f"schedule {name!r} needs replicas, one count per stage")
        turns = options.get("microbatches_per_minibatch")
        count, repeats = _stream(name, family, stages, microbatches or 0, minibatches or 0, turns)
        if "microbatches_per_minibatch" not in family.options:
            options.pop("microbatches_per_minibatch", None)
    if engine == "simpy":
        from simulator.engines.reference import MOST_TASKS

        check_size(stages, count * repeats, most=MOST_TASKS, where=" on SimPy (other engines take more)")
    schedule = build_schedule(name, stages, count, **options)
    if name not in SCHEDULES:
        with blamed_on(name):
            check_schedule(schedule)
    return schedule if repeats == 1 else repeated_minibatches(schedule, repeats)


def read_schedule(path: str | Path) -> Schedule:
    """Read a schedule file (CSV of torch, or text lines), and see that it is complete and runs; ScheduleError names the file."""
    path = Path(path)
    try:
        text = read_bytes(path).decode()
    except OSError as error:
        raise ScheduleError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ScheduleError(f"{path}: is not a text file (UTF-8)") from None
    if not uncommented(text).strip():
        raise ScheduleError(f"{path}: the file is empty, expected one row of ops for each device")
    try:
        schedule = from_torch_csv(text, path.stem) if "," in uncommented(text) else from_text(text, path.stem)
        check_schedule(schedule)
    except ScheduleError as error:
        raise type(error)(f"{path}: {error}") from None
    return schedule


def check_slices(name: str, slices: int | None, seconds: OpSeconds) -> None:
    """Raise ValueError unless there are as many slice seconds as the schedule cuts each sequence into slices."""
    family, given = schedule_families().get(name), len(seconds.slice_seconds)
    if given and family is not None and "slices" in family.options and given != (slices or 1):
        raise ValueError(f"seconds of {given} slices, schedule {name!r} has {slices or 1} per sequence")


def _stream(
    name: str, family: ScheduleFamily, stages: int, total: int, minibatches: int, asked: int | None
) -> tuple[int, int]:
    """Number of micro-batches to build the schedule for, and how often to repeat it (families that flush).

    total: micro-batches, or 0, and minibatches in their place; asked: micro-batches per mini-batch (T), or None
    """
    if "microbatches_per_minibatch" in family.options:
        covers = name in VERSION_METHODS and VERSION_METHODS[name].covers_stages
        if covers and asked is not None and asked < stages:
            raise ValueError(
                f"schedule {name!r} needs at least as many micro-batches per mini-batch as stages, got T={asked}, N={stages}"
            )
        return total or minibatches * (asked or (stages if covers else 1)), 1
    if not family.flush:
        if asked not in (None, 1):
            raise ValueError(f"schedule {name!r} updates after every micro-batch: T is 1, got {asked}")
        return total or minibatches, 1
    if asked is None and minibatches:
        raise ValueError(f"schedule {name!r} needs micro-batches per mini-batch (T) with mini-batches")
    per_minibatch = asked or total
    repeats, rest = divmod(total, per_minibatch) if total else (minibatches, 0)
    if rest:
        raise ValueError(
            f"schedule {name!r} flushes whole mini-batches: {total} micro-batches are no multiple of T={asked}"
        )
    return per_minibatch, repeats


def replay_schedule(
    schedule: Schedule,
    seconds: OpSeconds,
    *,
    sizes: Sequence[int] | None = None,
    communication: Communication | None = None,
    engine: Engine = "simpy",
    noise: float = 0.0,
    seed: int = 0,
    replays: int = 1,
    stragglers: Mapping[int, float] | None = None,
) -> ScheduleReplay:
    """Replay a schedule on given seconds, with one device per stage and one link per transfer.

    sizes: samples of each micro-batch; all seconds are then a sample's
    communication: default the family's own, else `overlapped`
    noise: standard deviation of the logarithm of a factor on every duration, drawn with `seed`
    replays: with noise; all have their seconds told (`ScheduleReplay.noisy`), the first its timeline
    stragglers: factor of at least 1 on all that a device computes, by device
    Raises ValueError for an unknown engine, a mode that the family is not defined for, a negative seed, and what `given_costs`
    and `lower` refuse.
    """
    if engine not in ENGINES:
        raise ValueError(unchosen("engine", engine, ENGINES))
    check_whole("seed", seed, 0, MOST_SEED)
    check_kind("sizes", sizes, Sequence, np.ndarray, NoneType)
    for size in () if sizes is None else sizes:
        check_whole("samples of a micro-batch", size, -MOST_COUNT)
    mode, slices = _communication(schedule, communication), len(seconds.slice_seconds)
    if slices:
        if mode == "streaming" or schedule.lanes is not None or schedule.overlapped is not None:
            raise ValueError("slices of unlike seconds neither stream, nor overlap, nor share a device")
        if schedule.microbatches % slices:
            raise ValueError(
                f"seconds of {slices} slices need whole sequences, schedule {schedule.name!r} has {schedule.microbatches} slices"
            )
        schedule = replace(schedule, slices=slices)
    complete = covered(schedule, sizes)
    costs = given_costs(schedule.stages, seconds, per_sample=bool(sizes), devices=schedule)
    program = fill(structure_of(complete, costs, communication=mode, updates=seconds.updates), costs)
    told, devices = None, len(np.unique(program.lane_device))
    check_disturbances(devices, noise=noise, replays=replays, stragglers=stragglers or {})
    if stragglers:
        if mode == "streaming" and program.least_seconds is None:
            raise ValueError(
                "stragglers do not go with communication 'streaming', whose ops may wait for what they send"
            )
        told = Stragglers(dict(stragglers), replay_compiled(program).makespan_seconds)
        computing = ComputingShares(np.ones(len(program)), program.computing().astype(np.float64))
        program = slowed(program, stragglers, computing, {device: (device,) for device in stragglers})
    if not noise:
        return ScheduleReplay(schedule, replay_on(program, engine), engine, program, stragglers=told)
    draws = Draws(noise, np.random.default_rng(seed), replays, engine)
    program, timeline, noisy = drawn(program, draws)
    return ScheduleReplay(schedule, timeline, engine, program, stragglers=told, noisy=noisy)


def _communication(schedule: Schedule, asked: Communication | None) -> Communication:
    """The communication mode that is asked for, or the family's own; ValueError where they contradict."""
    family = schedule_families().get(schedule.name)
    own = () if family is None else family.communications
    if asked is None:
        return own[0] if own else "overlapped"
    if own and asked not in own:
        raise ValueError(f"communication {asked!r} contradicts schedule {schedule.name!r}; choices: {', '.join(own)}")
    return asked
