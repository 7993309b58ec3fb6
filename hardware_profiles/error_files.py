"""Error files: the classes of prediction errors that a TOML file may state."""

from __future__ import annotations

from typing import Annotated

import msgspec

from hardware_profiles.file_tables import FileTable, Name, Text
from hardware_profiles.prediction_errors import ErrorClass, Figure, PlanKind

Ratio = Annotated[float, msgspec.Meta(ge=0.01, le=100)]


class ErrorTable(FileTable, frozen=True, kw_only=True):
    """A class of errors: measured / predicted of a figure, on kinds of accelerators, of kinds of plans."""

    figure: Figure
    accelerators: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]
    plans: Annotated[tuple[PlanKind, ...], msgspec.Meta(min_length=1)]
    median: Ratio
    low: Ratio
    high: Ratio
    rows: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    tables: tuple[Text, ...] = ()
    how: str = ""
    expected: bool = False

    def build(self) -> ErrorClass:
        """The class. Raises ValueError as it does."""
        return ErrorClass(**msgspec.structs.asdict(self))


class ErrorsFile(FileTable, frozen=True, kw_only=True, tag_field="kind", tag="errors"):
    """The classes of stacks by name."""

    stacks: dict[Name, tuple[ErrorTable, ...]]

    def build(self) -> dict[str, tuple[ErrorClass, ...]]:
        """The classes. Raises ValueError as they do."""
        return {name: tuple(one.build() for one in classes) for name, classes in self.stacks.items()}
