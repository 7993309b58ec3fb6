"""Replayed: the members that every result with a timeline shares."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from simulator.results.text_tables import Explained

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.engines.timeline import Timeline
    from simulator.memory.device_memory import DeviceMemory


Pair = tuple[float, float]
"""Begin and end in seconds of a window; width and height in inches of a figure."""


class Replayed(Explained):
    """A replayed schedule or plan: `summary`, `record`, `timeline`, `frame`, `plot_gantt`, `plot_memory`, `fits`."""

    __slots__ = ()

    if TYPE_CHECKING:  # a field of some, whose default value it would be taken for

        @property
        def timeline(self) -> Timeline:
            """Start, end and place of every task."""

        @property
        def memory(self) -> tuple[DeviceMemory, ...]:
            """Memory of each device over time."""

    @property
    def fits(self) -> bool:
        """Whether every device stays within its memory limit."""
        return all(device.fits for device in self.memory)

    @abstractmethod
    def plot_gantt(self, ax: Axes | None = None, *, window: Pair | None = None, size: Pair | None = None) -> Figure:
        """Draw the timeline as a Gantt chart.

        ax: where to draw; by default a figure of its own, of `size`: width and height in inches
        window: seconds (begin, end) to show; by default all, of a stream without a flush a part of its middle
        Raises ValueError for a window that does not rise, and a size without room.
        """

    @abstractmethod
    def plot_memory(self) -> Figure:
        """Draw the memory of the devices over time against their limit."""

    def plot(self, ax: Axes | None = None, *, window: Pair | None = None, size: Pair | None = None) -> Figure:
        """Draw the timeline: `plot_gantt`."""
        return self.plot_gantt(ax, window=window, size=size)

    @property
    def makespan_seconds(self) -> float:
        """Seconds from the start to the end of the timeline."""
        return self.timeline.makespan_seconds

    @property
    def frame(self) -> pd.DataFrame:
        """The timeline as a pandas DataFrame, one row per task."""
        return self.timeline.frame


class FoundReplay(Replayed):
    """What a search found, which shows itself as the replay of it does."""

    __slots__ = ()

    @property
    @abstractmethod
    def shown(self) -> Replayed:
        """The replay."""

    @property
    def timeline(self) -> Timeline:
        """The timeline of the replay."""
        return self.shown.timeline

    @property
    def memory(self) -> tuple[DeviceMemory, ...]:
        """Memory of each device over time, of the replay."""
        return self.shown.memory

    @property
    def fits(self) -> bool:
        """Whether every device stays within its memory limit."""
        return self.shown.fits

    def plot_gantt(self, ax: Axes | None = None, *, window: Pair | None = None, size: Pair | None = None) -> Figure:
        """Draw the timeline; arguments as of every replay."""
        return self.shown.plot_gantt(ax, window=window, size=size)

    def plot_memory(self) -> Figure:
        """Draw the memory of the devices over time against their limit."""
        return self.shown.plot_memory()
