"""Schedule comparison: several families on the same devices, numbers and memory, replayed beside each other.

A device has the same part of the model in every family: where it holds several stages, each takes and keeps an equal part of what
the whole takes and keeps. Memory is counted per device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hardware_profiles
import simulator
from experiments.compare.questions import SEARCH, simulate
from hardware_profiles import counted
from simulator import Explained, TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planners import SearchedSchedule
    from simulator import ScheduleReplay

OF_STAGES = ("forward", "backward", "weight", "update", "predict", "overlapped", "offload", "stash", "stash_weight")
"""Numbers of a device's part of the model, which its stages divide."""

ROW_INCHES = 0.3
"""Of a device in the figure."""


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleComparison(Explained):
    """Replays of schedules by the names of their families.

    stages: per device, of each; searched: the search, where it is among them
    """

    replays: Mapping[str, ScheduleReplay]
    stages: Mapping[str, int]
    searched: SearchedSchedule | None = None

    @property
    def fits(self) -> bool:
        """Whether any of them stays within the memory of every device."""
        return any(one.fits for one in self.replays.values())

    @property
    def makespan_seconds(self) -> float:
        """Of the slowest."""
        return max(one.makespan_seconds for one in self.replays.values())

    def ordered(self) -> list[tuple[str, ScheduleReplay]]:
        """Those that fit first, fast before slow."""
        return sorted(self.replays.items(), key=lambda one: (not one[1].fits, one[1].makespan_seconds))

    def record(self) -> dict[str, Any]:
        """The record of every replay, in the order of the table."""
        return {
            "schedules": [
                {**one.record(), "schedule": name, "stages_per_device": self.stages[name]}
                for name, one in self.ordered()
            ]
        }

    def tables(self) -> tuple[TextTable, ...]:
        """One row for each schedule."""
        ordered = self.ordered()
        held, noisy = ordered[0][1].memory, ordered[0][1].noisy
        columns = ["schedule", "stages per\ndevice", "makespan,\nseconds", "idle /\nmakespan"]
        columns += ["peak memory\nof a device", "fits"] if held else []
        columns += [f"{name},\nseconds" for name in simulator.QUANTILES] if noisy else []
        rows = []
        for name, one in ordered:
            row = [name, str(self.stages[name]), f"{one.makespan_seconds:.6g}"]
            row.append(f"{one.timeline.bubble().idle_over_makespan:.4f}")
            row += [f"{max(one.peak_memory):g}", "yes" if one.fits else "no"] if held else []
            if one.noisy is not None:
                row += [f"{one.noisy.quantile(share):.6g}" for share in simulator.QUANTILES.values()]
            rows.append(tuple(row))
        first = ordered[0][1]
        devices = len(first.timeline.devices())
        title = f"{counted(len(rows), 'schedule')} on {counted(devices, 'device')} ({first.engine})"
        return (TextTable(title, tuple(columns), tuple(rows)),)

    def remarks(self) -> tuple[str, ...]:
        """Where devices hold several stages, what these are; how good a search is known to be."""
        cut = [name for name, count in self.stages.items() if count > 1]
        told = f"{', '.join(cut)}: each stage takes and keeps its part of what a device's whole part of the model does"
        return (*[told] * bool(cut), *self._proof())

    def _proof(self) -> tuple[str, ...]:
        return () if self.searched is None else (f"{SEARCH}, of one stage per device: {self.searched.known}",)

    def plot(self, *, window: tuple[float, float] | None = None, size: tuple[float, float] | None = None) -> Figure:
        """Draw the timelines below each other, on one axis of time; a row for each device.

        window: seconds (begin, end) to show; size: width and height in inches
        """
        from simulator.results.figures import panels
        from simulator.results.gantt_plots import gantt

        ordered = self.ordered()
        devices = len(ordered[0][1].timeline.devices())
        window = window or (0.0, self.makespan_seconds)
        size = size or (12.0, (1.3 + ROW_INCHES * devices) * len(ordered))
        figure, axes = panels(*size, len(ordered))
        for (name, one), ax in zip(ordered, axes[:, 0], strict=True):
            fits = "" if one.fits else " (does not fit)"
            gantt(one.timeline, ax, title=f"{name}{fits}", window=window if window[1] else None, device_word="device")
        return figure


def compare_schedules(
    names: Sequence[str], devices: int, microbatches: int, options: Mapping[str, Any], **numbers: Any
) -> ScheduleComparison:
    """Replay families on the same devices; `search` among them is the best order found of one stage per device.

    options: of families, each for those that take it; numbers: as `simulate` takes them, those of ops per device
    Raises ValueError for an unknown family, one without a flush, with lanes of its own or with replicas, and an option that none
    takes; and as `simulate`.
    """
    known = simulator.schedule_families()
    found: dict[str, ScheduleReplay] = {}
    stages: dict[str, int] = {}
    searched: SearchedSchedule | None = None
    for name in names:
        if name == SEARCH:
            answer = simulate(SEARCH, stages=devices, microbatches=microbatches, **numbers)
            assert not isinstance(answer, simulator.ScheduleReplay)
            found[name], stages[name], searched = answer.replayed, 1, answer
            continue
        if name not in known:
            raise ValueError(hardware_profiles.unchosen("schedule", name, (*known, SEARCH)))
        family = known[name]
        if not family.flush or family.lanes or "replicas" in family.options:
            raise ValueError(
                f"schedule {name!r} does not flush one pipeline on one lane per device: it is replayed alone"
            )
        own = {option: value for option, value in options.items() if option in family.options}
        chunks = simulator.USUAL_CHUNKS["interleaved"] if "chunks" in family.options else family.chunks
        stages[name] = count = own.get("chunks", chunks)
        counts = {"stages": devices * count, "microbatches": microbatches, **own}
        replayed = simulate(name, **counts, **divided(numbers, devices, count))
        assert isinstance(replayed, simulator.ScheduleReplay)
        found[name] = replayed
    unused = [one for one in options if not any(one in known[name].options for name in names if name != SEARCH)]
    if unused:
        raise ValueError(f"none of the schedules {', '.join(names)} takes {', '.join(unused)}")
    return ScheduleComparison(found, stages, searched)


def divided(numbers: Mapping[str, Any], devices: int, parts: int) -> dict[str, Any]:
    """The numbers of stages that are each a part of a device's: as many parts, in the order of the model."""
    if parts == 1:
        return dict(numbers)
    transfer = numbers.get("transfer", ())
    if isinstance(transfer, Sequence) and len(transfer) > 1:
        raise ValueError(
            "transfer must be one number where devices hold several stages: there are boundaries in between"
        )
    found = dict(numbers)
    for name in OF_STAGES:
        if name in numbers:
            value = numbers[name]
            several = list(value) if isinstance(value, Sequence) else [value]
            if len(several) not in (1, devices):
                raise ValueError(f"{name} must be one number, or one for each of {devices} devices, got {len(several)}")
            found[name] = [one / parts for one in several for _ in range(parts if len(several) > 1 else 1)]
    return found
