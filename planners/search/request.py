"""Request: what a user fixes of a plan and of the search for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hardware_profiles import (
    LEAST_WATTS,
    MOST_WATTS,
    OptionValue,
    check_fields,
    check_real,
    option_text,
    read_options,
    unchosen,
)
from planners.search.plan_judge import Objective
from planners.search.search_options import FIELDS, PLANNER_OPTIONS, SearchOptions
from simulator import Engine, Recompute, schedule_families


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(SearchOptions):
    """Options that the user fixes; None leaves the choice to the planner. Fields of `SearchOptions` come first.

    engine: what scores the plans of the search; `compiled` gives what the reference gives, `recurrence` knows no contention
    recompute: recompute policy of all stages, for planners that would choose it
    options: by name, those of the planner, as its entry of the registry declares them, and of the schedule's family; values, or
    texts as of the command line
    objective: what makes a plan the better one; power: most W that the devices in use may draw, on average
    runner_ups: whether a planner that can search for plans that decide otherwise takes the time, beside those that it replays
    anyway
    Raises ValueError for unknown names and counts below 1.
    """

    engine: Engine = "compiled"
    recompute: Recompute | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    objective: Objective = "time"
    power: float | None = None
    runner_ups: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.power is not None:
            check_real("power", self.power, LEAST_WATTS, MOST_WATTS)
        for name, value in self.options.items():
            option_text(name, value)  # ValueError for what is no value of an option
        if self.schedule is not None and self.schedule not in (families := schedule_families()):
            raise ValueError(unchosen("schedule", self.schedule, sorted(families)))

    def asked(self, name: str) -> Any:
        """The value of one of PLANNER_OPTIONS, read as declared; None where the request leaves it open.

        Raises ValueError for a value that the option cannot have.
        """
        return PLANNER_OPTIONS[name].read(self.options[name]) if name in self.options else None

    def fixed(self, name: str) -> Any:
        """The value of an option as it was given; None where the request leaves it open."""
        return getattr(self, name) if name in FIELDS else self.options.get(name)

    def fixing(self, name: str, value: Any) -> Request:
        """The request with one more option fixed; with None as the value, left open."""
        if name in FIELDS:
            return replace(self, **{name: value})
        rest = {option: given for option, given in self.options.items() if option != name}
        return replace(self, options=rest if value is None else {**rest, name: value})

    def counts_are(self, microbatches: int, stages: int, chunks: int) -> bool:
        """Whether these numbers of micro-batches, stages, and stages per device are what the request names, where it names
        them.
        """
        return (
            self.microbatches in (None, microbatches)
            and self.stages in (None, stages)
            and self.chunks in (None, chunks)
        )

    @property
    def family_options(self) -> tuple[tuple[str, OptionValue], ...]:
        """Options of the schedule's family, in the form of `Plan.options`; ValueError for a value that an option cannot have."""
        declared = {} if self.schedule is None else schedule_families()[self.schedule].declared
        own = {name: value for name, value in self.options.items() if name in declared}
        found = read_options(declared, own, f"schedule {self.schedule!r}") if own else {}
        return tuple({**found, **({} if self.slices is None else {"slices": self.slices})}.items())
