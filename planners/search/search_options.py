"""Options: what a user may ask of a plan, declared once. It loads nothing heavy, so that the command line prints its help at
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from hardware_profiles import Bounds, DeclaredOption, declared_options
from simulator import TrainingOptions

Count = Annotated[int, Bounds(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Options that a user may fix of every plan; None leaves the choice to the planner.

    schedule: name of a schedule family; by default each planner's own
    microbatches: micro-batches per iteration; by default searched (pipedream: as many as devices)
    stages: stages of the pipeline; by default searched
    chunks: stages per device; by default the schedule's, or searched
    slices: slices of the sequences of a micro-batch, of a schedule that has them (seq1f1b)
    """

    schedule: str | None = None
    microbatches: Count | None = None
    stages: Count | None = None
    chunks: Count | None = None
    slices: Count | None = None


ASKED: Mapping[str, DeclaredOption] = declared_options(SearchOptions, 0)
"""The options that are fields of every request."""

ALWAYS = ("schedule", "microbatches")
"""Options that every planner takes or refuses with a reason; a planner's entry lists the others that it takes."""

RECOMPUTE = "recompute"
"""Option of planners that choose recompute policies; plans of the others have the problem's."""

FIELDS = (*ASKED, RECOMPUTE)
"""Options of plans that are fields of a request; all others are planner options."""


def _degrees(name: str, words: str) -> DeclaredOption:
    return DeclaredOption(name, int, Bounds(ge=1), several=True, help=words)


PLANNER_OPTIONS: Mapping[str, DeclaredOption] = {
    one.name: one
    for one in (
        DeclaredOption(
            "candidates",
            str,
            choices=("all", "powers-of-two"),
            help="candidate sizes of unequal micro-batches; by default all up to 64 samples",
        ),
        DeclaredOption(
            "granularity",
            int,
            Bounds(ge=1),
            help="samples of which candidate sizes of unequal micro-batches are multiples; by default 1, of planner umpipe the "
            "fewest of which a batch has at most 256",
        ),
        DeclaredOption(
            "placement",
            str,
            choices=("straight", "interleaved", "v", "wave"),
            help="order in which stages visit the devices; by default searched (scheduler: the first that stages allow)",
        ),
        DeclaredOption(
            "seconds",
            float,
            Bounds(gt=0, le=1_000_000),
            help="effort of the search, in nominal seconds (the same work of replays on every machine); by default 0.5 for an "
            "order of ops, 20 for planner joint, without end for others",
        ),
        _degrees("tensor", "devices per tensor-parallel group, or several to choose from"),
        _degrees("context", "parts of the tokens of every sample, each on its own devices"),
        _degrees("expert", "parts of the routed experts, each on its own devices"),
        DeclaredOption(
            "zero",
            int,
            choices=(0, 1, 2, 3),
            several=True,
            help="ZeRO stages to choose from: replicas divide 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too",
        ),
        DeclaredOption(
            "load",
            str,
            choices=("max", "sum"),
            help="load of a device: the largest of computing, receiving and sending, or their sum; by default the faster",
        ),
        DeclaredOption("host", str, help="kind of device in whose memory tensors stay: it pays for no transfers"),
    )
}
"""Options that only some planners take; what is not asked for is searched, or as the planner's documentation says."""

DECLARED: Mapping[str, DeclaredOption] = {
    **ASKED,
    RECOMPUTE: declared_options(TrainingOptions, 0)[RECOMPUTE],
    **PLANNER_OPTIONS,
}
"""All options that a planner's entry may list, by name."""


def takes(*names: str) -> dict[str, DeclaredOption]:
    """The declarations of the options of these names."""
    return {name: DECLARED[name] for name in names}


PACED = takes("seconds")
"""Options of every planner: one that does not list it is ended by its evaluator, with the best plan so far."""
