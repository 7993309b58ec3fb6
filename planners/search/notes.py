"""Note: one thing that a planner says of its search or of its plan, a sentence and figures; its class is its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from hardware_profiles import shown
from simulator import Problem


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for people; a kind of note is a frozen dataclass of this class, whose further fields are figures for programs.

    text: a whole sentence; empty where the figures alone are told
    Figures are what JSON has a form for. Raises TypeError, which names the figure, for others.
    """

    text: str

    def __post_init__(self) -> None:
        for name, value in self.figures.items():
            if not _is_plain(value):
                raise TypeError(
                    f"{type(self).__name__}: {name} must be a number, a text, or a list or a table of these, "
                    f"not {shown(value)}"
                )

    @property
    def figures(self) -> dict[str, object]:
        """The fields of its kind by name, in their order."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "text"}


@dataclass(frozen=True, slots=True)
class CutsLeftOut(Note):
    """Cuts of a network of branches that a partition did not consider, since there are too many: which, in words."""

    cuts_left_out: str

    @classmethod
    def of(cls, lost: str) -> CutsLeftOut:
        """The note of what a partition leaves out."""
        return cls(f"partition: {lost}", lost)


def _is_plain(value: object) -> bool:
    """Whether JSON has a form for a value: numbers of numpy, too."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list | tuple | set | frozenset | range):
        return all(map(_is_plain, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufU"
    return value is None or isinstance(value, bool | int | float | str)


HALVES_ASSUMED = Note(
    "half of each measured backward counts as the gradient of the weights: the profile has both as one time"
)
"""Of a plan whose backwards are divided, on measured layers."""


def halves_are_known(problem: Problem) -> bool:
    """Whether input and weight gradients have seconds of their own; a profile has only whole backwards."""
    return not problem.workload.measured
