"""Prediction errors: how far predicted seconds and bytes are from measured ones, by class.

A class is a stack, kinds of accelerators and kinds of plans; its interval holds 90 % of measured / predicted of rows that no
constant saw. `errors.toml` has the classes of the shipped stacks, as `pipeplan study truth --errors-out` writes them; a stack's
own file may have others. Of what no class fits the interval is the widest of those near it, or of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import Literal, NamedTuple

from hardware_profiles.accelerator import Accelerator, optional_members
from hardware_profiles.chips import CHIPS
from hardware_profiles.words import counted

Figure = Literal["seconds", "memory"]
"""What is predicted: seconds of an iteration, bytes of the fullest device."""

PlanKind = Literal["other", "experts", "fp8", "zero-3", "pipeline", "data"]
"""Kinds of plans, the first that holds: of a network without transformer blocks, or with measured layers; with experts; with
products in fp8; with replicas that divide weights; with several stages; and any other, tensor groups among them.
"""

NO_FRAMEWORK = "generic"
"""The stack whose classes hold runs of every framework."""

PLAN_WORDS: dict[PlanKind, str] = {
    "other": "other networks",
    "experts": "experts",
    "fp8": "fp8",
    "zero-3": "ZeRO 3",
    "pipeline": "pipelines",
    "data": "data parallelism",
}
"""What runs of a kind are said to have."""

ENOUGH = 19
"""Rows of which 90 % can be told: between the least and the greatest of 19 are 90 % of further ones, in the mean."""

OF_DEVIATION = 1.645
"""Half of the interval that holds 90 % of normal errors, over their standard deviation."""

OF_MEAN = OF_DEVIATION * sqrt(pi / 2.0)
"""The same over their mean absolute error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClass:
    """The errors of one figure in a class of predictions.

    accelerators: as `accelerator_kind` names them; plans: the kinds of its rows
    median, low, high: of measured / predicted. From low to high are 90 % of its rows; where they are fewer than ENOUGH, all of
        them, and 90 % of those of the next wider class
    rows: how many; tables: which; how: why no constant saw them
    expected: whether the interval is what a fit to these rows expects of others, which nothing has judged
    """

    figure: Figure
    accelerators: tuple[str, ...]
    plans: tuple[PlanKind, ...]
    median: float
    low: float
    high: float
    rows: int
    tables: tuple[str, ...] = ()
    how: str = ""
    expected: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.low <= self.median <= self.high:
            raise ValueError(
                f"errors of {self.figure} on {', '.join(self.accelerators)}: low, median and high are measured / predicted "
                f"and must rise from above 0, got {self.low:g}, {self.median:g}, {self.high:g}"
            )


class PredictionError(NamedTuple):
    """What a predicted figure may be off by.

    median, low, high: measured / predicted, as of `ErrorClass`; rows: like it, none where no class fits; words: of the class
    expected: as of `ErrorClass`
    """

    median: float
    low: float
    high: float
    rows: int
    words: str
    expected: bool = False

    @property
    def like(self) -> str:
        """What rows the interval holds, as the end of a sentence."""
        if self.expected:
            return f"90 % expected, by {counted(self.rows, 'run')} like it"
        share = "90 %" if self.rows >= ENOUGH else "all"
        return f"{share} of {self.rows:,} runs like it" if self.rows else "no measured run is like it"

    def of(self, figure: float) -> tuple[float, float]:
        """The ends of the interval of a predicted figure."""
        return self.low * figure, self.high * figure


def accelerator_kind(accelerator: Accelerator, figure: Figure) -> str:
    """The kind of accelerator by which errors are classed: `boards` whose layers stream, else the kind of chip; for the seconds
    of GPUs their generation, as of constants of stacks.
    """
    if accelerator.streams:
        return "boards"
    known = optional_members(accelerator)
    if figure == "seconds" and known.chip in ("", next(iter(CHIPS))):
        return known.generation or accelerator.name
    return known.chip or accelerator.name


def least_interval(accelerator: Accelerator) -> tuple[float, float]:
    """What holds 90 % of measured / predicted seconds of an accelerator whose kind of chip alone tells its shares."""
    beside = OF_MEAN * optional_members(accelerator).spread
    return 1.0 / (1.0 + beside), 1.0 + beside


def error_of_class(
    figure: Figure,
    name: str,
    classes: Sequence[ErrorClass],
    others: Mapping[str, Sequence[ErrorClass]],
    accelerators: Iterable[Accelerator],
    plan: PlanKind,
) -> PredictionError:
    """The error of the narrowest class of a stack that fits. Where none does, the widest of the stack's other classes and of
    other frameworks' on these accelerators; where there are not both, the widest of every class.

    name, classes: of the stack; others: of every shipped stack; accelerators: that a plan uses, of which the widest counts
    """
    found = [_of_one(figure, name, classes, others, one, plan) for one in accelerators]
    few = min(found, key=lambda one: one.rows)
    return few._replace(low=min(one.low for one in found), high=max(one.high for one in found))


def _of_one(
    figure: Figure,
    name: str,
    classes: Sequence[ErrorClass],
    others: Mapping[str, Sequence[ErrorClass]],
    accelerator: Accelerator,
    plan: PlanKind,
) -> PredictionError:
    kind = accelerator_kind(accelerator, figure)
    low, high = least_interval(accelerator) if figure == "seconds" else (1.0, 1.0)
    own = [one for one in classes if one.figure == figure]
    fitting = [one for one in own if kind in one.accelerators and plan in one.plans]
    if fitting:
        one = min(fitting, key=lambda one: (len(one.plans), len(one.accelerators)))
        words = f"{name} on {', '.join(one.accelerators)} with {', '.join(PLAN_WORDS[kind] for kind in one.plans)}"
        return PredictionError(one.median, min(low, one.low), max(high, one.high), one.rows, words, one.expected)
    known = {stack: [one for one in some if one.figure == figure] for stack, some in others.items()}
    beside = [one for stack in known.keys() - {name, NO_FRAMEWORK} for one in known[stack] if kind in one.accelerators]
    near = name != NO_FRAMEWORK and bool(own and beside)
    widest = [*own, *beside] if near else [one for some in known.values() for one in some]
    low, high = min(low, *(one.low for one in widest)), max(high, *(one.high for one in widest))
    where = f"{name} elsewhere and of other stacks on {kind}" if near else "all"
    words = f"the widest of {where}, as no run of {name} on {kind} with {PLAN_WORDS[plan]} is known"
    return PredictionError(1.0, low, high, 0, words)
