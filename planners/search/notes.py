"""Note: one thing that a planner says of its search or of its plan, a sentence and figures; its class is its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from hardware_profiles import shown
from simulator import Problem


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for people. A kind of note is a frozen dataclass derived from this one, whose further fields are figures for
    programs.

    text: a whole sentence; empty where there are figures alone
    Raises TypeError, which names the figure, for a figure that JSON has no form for.
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
        """The figures by name, in the order of the fields."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "text"}


@dataclass(frozen=True, slots=True)
class CutsLeftOut(Note):
    """Note of cuts of a branching network that a partition did not consider, as there are too many: which, in words."""

    cuts_left_out: str

    @classmethod
    def of(cls, lost: str) -> CutsLeftOut:
        """The note; lost: the cuts that were left out, in words"""
        return cls(f"partition: {lost}", lost)


def _is_plain(value: object) -> bool:
    """Whether JSON has a form for a value; numbers and arrays of numpy count."""
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
"""Note of a plan with divided backwards on measured layers."""


def halves_are_known(problem: Problem) -> bool:
    """Whether input and weight gradients have seconds of their own; measured layers have whole backwards only."""
    return not problem.workload.measured
