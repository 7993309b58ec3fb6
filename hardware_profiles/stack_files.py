"""Stack files: what a stack's TOML file may say, and the stack that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Literal

import msgspec

from hardware_profiles.accelerator import PRECISION_BYTES, Precision
from hardware_profiles.chips import Chip
from hardware_profiles.error_files import ErrorTable
from hardware_profiles.file_tables import MICRO, FileTable, Name, Text
from hardware_profiles.stack import Constant, Gathered, Runs, Stack
from hardware_profiles.words import GIB


class ConstantValue(FileTable, frozen=True, kw_only=True):
    """A constant: its value, where it comes from, measured tables that it was fitted on, and those that judged it."""

    value: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    source: Text
    fitted: tuple[Text, ...] = ()
    judged: tuple[Text, ...] = ()

    def constant(self, scale: float, generations: tuple[tuple[str, Constant], ...] = ()) -> Constant:
        """The constant in base units."""
        return Constant(scale * self.value, self.source, self.fitted, self.judged, generations)


class ConstantTable(ConstantValue, frozen=True, kw_only=True):
    """A constant, and other ones for accelerators of some generations (`generation` in their files)."""

    generations: dict[Name, ConstantValue] = msgspec.field(default_factory=dict)

    def constant(self, scale: float, generations: tuple[tuple[str, Constant], ...] = ()) -> Constant:
        """The constant in base units, with those of its generations."""
        own = tuple((name, one.constant(scale)) for name, one in self.generations.items())
        return super().constant(scale, own + generations)


class FactorsTable(FileTable, frozen=True, kw_only=True):
    """`[factors]` of a stack: times the seconds of accelerator and cluster; `odd_heads` is added to that of attention."""

    products: ConstantTable | None = None
    attention: ConstantTable | None = None
    experts: ConstantTable | None = None
    odd_heads: ConstantTable | None = None
    elementwise: ConstantTable | None = None
    casts: ConstantTable | None = None
    launches: ConstantTable | None = None
    tensor_collectives: ConstantTable | None = None
    replica_collectives: ConstantTable | None = None


class OverheadsTable(FileTable, frozen=True, kw_only=True):
    """`[overheads]` of a stack: seconds of every pass over a block, the share of replicas' traffic that is never hidden, and that
    of layers' seconds which every doubling of servers adds.
    """

    block_pass_us: ConstantTable | None = None
    exposed: ConstantTable | None = None
    stragglers: ConstantTable | None = None


class MemoryTable(FileTable, frozen=True, kw_only=True):
    """`[memory]` of a stack: times the bytes of a loss and those allocated, and what libraries and the driver take beside."""

    logits: ConstantTable | None = None
    workspace_gib: ConstantTable | None = None
    reserved: ConstantTable | None = None
    context_gib: ConstantTable | None = None


UNITS: Mapping[str, float] = {"_us": MICRO, "_gib": GIB}
"""Base units of a constant by the end of its key."""


def constant_unit(key: str) -> tuple[str, float]:
    """The constant that a key of a file gives, and base units of the file's one."""
    end = next((one for one in UNITS if key.endswith(one)), "")
    return key.removesuffix(end), UNITS.get(end, 1.0)


RunsTable = msgspec.defstruct(
    "RunsTable",
    [
        ("chips", tuple[Chip, ...], ()),
        ("schedules", tuple[str, ...], ()),
        ("recompute", tuple[str, ...], ()),
        ("precisions", tuple[Precision, ...], ()),
        ("zero", tuple[Literal[0, 1, 2, 3], ...], (0, 1, 2, 3)),
        *((one.name, bool, True) for one in fields(Runs) if one.default is True),
    ],
    bases=(FileTable,),
    namespace={"__doc__": "`[runs]` of a stack: which plans it can run; what is left out it can."},
    frozen=True,
    kw_only=True,
)


class GradientsTable(FileTable, frozen=True, kw_only=True):
    """`[gradients]` of a stack: the precision in which micro-batches add them up where weights have 16 bits."""

    precision: Literal["fp32", "fp16", "bf16"]


class WeightsTable(FileTable, frozen=True, kw_only=True):
    """`[weights]` of a stack: what replicas that divide them have whole at once; whether 16-bit ones stay beside fp32 ones."""

    gathered: Gathered = "blocks"
    narrow_copy: bool = True


class StackFile(FileTable, frozen=True, kw_only=True, tag_field="kind", tag="stack"):
    """A stack's file."""

    name: Name
    description: str = ""
    runs: RunsTable = RunsTable()  # type: ignore[valid-type]
    factors: FactorsTable = FactorsTable()
    overheads: OverheadsTable = OverheadsTable()
    memory: MemoryTable = MemoryTable()
    gradients: GradientsTable | None = None
    weights: WeightsTable = WeightsTable()
    errors: tuple[ErrorTable, ...] = ()

    def build(self) -> Stack:
        """The stack, whose missing constants change nothing. Raises ValueError as a `Stack`."""
        tables = _tables(self.factors) | _tables(self.overheads) | _tables(self.memory)
        units = {key: constant_unit(key) for key in tables}
        return Stack(
            name=self.name,
            description=self.description,
            runs=Runs(**msgspec.structs.asdict(self.runs)),
            errors=tuple(one.build() for one in self.errors),
            gradient_bytes=0 if self.gradients is None else int(PRECISION_BYTES[self.gradients.precision]),
            gathered=self.weights.gathered,
            narrow_copy=self.weights.narrow_copy,
            **{units[key][0]: table.constant(units[key][1]) for key, table in tables.items()},
        )


def _tables(of: FileTable) -> dict[str, ConstantTable]:
    """The constants that a table gives."""
    return {name: table for name, table in msgspec.structs.asdict(of).items() if table is not None}
