"""Replayed: what every answer with a timeline offers, by the same names."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from simulator.results.text_tables import Explained

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulator.engines.timeline import Timeline


class Replayed(Explained):
    """A schedule or a plan that was replayed: `summary`, `record`, `timeline`, `frame`, `plot_gantt`, `plot_memory`, `fits`."""

    __slots__ = ()

    if TYPE_CHECKING:  # a field of some, whose default value it would be taken for

        @property
        def timeline(self) -> Timeline:
            """What happened when."""

    @property
    @abstractmethod
    def fits(self) -> bool:
        """Whether no device ever holds more than its limit."""

    @abstractmethod
    def plot_gantt(self, ax: Axes | None = None) -> Figure:
        """Draw the timeline; ax: where to, by default a figure of its own."""

    @abstractmethod
    def plot_memory(self) -> Figure:
        """Draw what devices hold over time against their limit."""

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the timeline: `plot_gantt`."""
        return self.plot_gantt(ax)

    @property
    def makespan_seconds(self) -> float:
        """From the start to the end of everything in the timeline."""
        return self.timeline.makespan_seconds

    @property
    def frame(self) -> pd.DataFrame:
        """The timeline as a pandas DataFrame, one row a task."""
        return self.timeline.frame
