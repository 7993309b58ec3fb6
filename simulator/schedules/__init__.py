"""Schedules: one family per file; `SCHEDULES` names them all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from hardware_profiles import (
    ENDED,
    DeclaredOption,
    PluginError,
    answering_for,
    aside,
    declared_options,
    option_names,
    plugged_in,
    read_options,
    shown,
    summary_of,
    unchosen,
)
from simulator.options.training_options import Communication
from simulator.schedules.asynchronous import one_forward_one_backward_round_robin, pipedream
from simulator.schedules.bapipe import (
    blocking_one_forward_one_backward,
    forward_and_backward_parallel,
    overlapped_one_forward_one_backward,
    streamed_one_forward_one_backward,
)
from simulator.schedules.bidirectional import chimera
from simulator.schedules.building_blocks import v_half, v_min
from simulator.schedules.checks import check_complete
from simulator.schedules.dual_pipe import dualpipe, dualpipe_v
from simulator.schedules.flushed import eager_one_forward_one_backward, gpipe, one_forward_one_backward
from simulator.schedules.looped import (
    interleaved_one_forward_one_backward,
    interleaved_zero_bubble,
    looped_breadth_first,
)
from simulator.schedules.placements import LEAST_CHUNKS, PLACEMENTS, Chains, Placement, chains_of
from simulator.schedules.schedule import COUNTED, Schedule, ScheduleError, check_counts, check_size
from simulator.schedules.slices import seq1f1b
from simulator.schedules.v_shaped import zb_v
from simulator.schedules.waves import hanayo
from simulator.schedules.weight_versions import BUILDERS, VERSION_METHODS
from simulator.schedules.zero_bubble import zb_h1, zb_h2

ENTRY_POINT_GROUP = "pipeplan.schedules"

Device = TypeVar("Device")


@dataclass(frozen=True, slots=True)
class ScheduleFamily:
    """A family of schedules.

    build: (stages, microbatches, **options) -> Schedule
    summary: one line for `pipeplan list`
    flush: every mini-batch ends with a flush and one update
    communications: the modes of `simulator.lowering.lower` that the family is defined for; () for every one. Costs given as
        numbers take the first by default, a plan the problem's own mode if it is among them and else the last
    lanes: several lanes per device, which they may share
    copies: the rule of weight copies, of `simulator.memory.versions.COPY_RULES`; `problem` for the problem's `weight_versions`,
        none for as many as forwards in flight have used
    placement: how its stages go round the devices
    by_example: of a bare function: whether it flushes, and its placement, are read off a small schedule that it makes
    options: names of the keyword options that `build` takes; by default all of its parameters behind the first two. Plans give
        `chunks` (stages per device), `replicas` (of each stage), `replica_updates` and `microbatches_per_minibatch` themselves
    """

    build: Callable[..., Schedule]
    summary: str
    flush: bool = True
    communications: tuple[Communication, ...] = ()
    lanes: bool = False
    copies: str | None = None
    placement: Placement = "straight"
    by_example: bool = False
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.build):
            raise TypeError(
                f"build must be a function (stages, microbatches) -> Schedule, not {type(self.build).__name__}"
            )
        if not isinstance(self.options, tuple) or not all(isinstance(one, str) for one in self.options):
            raise TypeError(f"options must be names of keyword options of build, got {shown(self.options)}")
        if self.placement not in PLACEMENTS:
            raise ValueError(unchosen("placement", self.placement, PLACEMENTS))
        if not self.options:
            object.__setattr__(self, "options", option_names(self.build, 2))

    @property
    def declared(self) -> dict[str, DeclaredOption]:
        """Its options by name, as its function declares them."""
        known = declared_options(self.build, 2)
        return {name: known[name] if name in known else DeclaredOption(name) for name in self.options}

    @property
    def chunks(self) -> int:
        """Stages per device: the number of its placement, unless the option `chunks` says another."""
        return LEAST_CHUNKS[self.placement]

    def of_chunks(self, chunks: int) -> dict[str, int]:
        """The option that asks for so many stages per device; none of a family that does not take it."""
        return {"chunks": chunks} if "chunks" in self.options else {}

    def communication(self, wanted: Communication) -> Communication:
        """The communication mode of a plan of this family, for a problem whose mode is `wanted`."""
        return wanted if not self.communications or wanted in self.communications else self.communications[-1]

    def device_of_stage(self, devices: Sequence[Device], chunks: int) -> tuple[Device, ...]:
        """The device of each of `chunks` stages per device, in one direction; `devices` are ids, or replicas that go together.

        ValueError for stages per device that the placement cannot have.
        """
        return tuple(devices[place] for place in chains_of(self.placement, chunks * len(devices), len(devices))[0])

    def lies_on(self, chains: Chains) -> bool:
        """Whether its placement gives these chains; a family of several stages per device never does with one per device."""
        stages, devices = len(chains[0]), len(set(chains[0]))
        if stages == devices and self.placement not in ("straight", "bidirectional"):
            return False
        try:
            return chains_of(self.placement, stages, devices) == chains
        except ValueError:  # counts that its placement cannot have
            return False


SCHEDULES: dict[str, ScheduleFamily] = {
    "gpipe": ScheduleFamily(gpipe, "all forwards, then all backwards (GPipe)"),
    "1f1b": ScheduleFamily(
        one_forward_one_backward, "one forward, one backward, flushed (PipeDream-Flush, Megatron-LM)"
    ),
    "eager-1f1b": ScheduleFamily(
        eager_one_forward_one_backward, "1F1B with about twice the warm-up, hides transfers (1F1B-SO)"
    ),
    "interleaved-1f1b": ScheduleFamily(
        interleaved_one_forward_one_backward,
        "1F1B with several stages per device (Megatron-LM)",
        placement="interleaved",
    ),
    "interleaved-zb": ScheduleFamily(
        interleaved_zero_bubble,
        "several stages per device, weight gradients put off into the bubbles (torch)",
        placement="interleaved",
    ),
    "looped-bfs": ScheduleFamily(
        looped_breadth_first, "several stages per device, breadth first (looped BFS)", placement="interleaved"
    ),
    "seq1f1b": ScheduleFamily(seq1f1b, "1F1B of slices of the sequences of a micro-batch (Seq1F1B)"),
    "hanayo": ScheduleFamily(
        hanayo, "stages back and forth over the devices, two per device in each wave (Hanayo)", placement="wave"
    ),
    "chimera": ScheduleFamily(
        chimera,
        "two pipelines in opposite directions over the same devices, flushed (Chimera)",
        placement="bidirectional",
    ),
    "dualpipe": ScheduleFamily(
        dualpipe,
        "two pipelines in opposite directions, forwards of one overlap backwards of the other (DualPipe)",
        communications=("overlapped",),
        placement="bidirectional",
    ),
    "dualpipev": ScheduleFamily(
        dualpipe_v,
        "two stages per device in a V, forwards of one overlap backwards of the other (DualPipeV)",
        communications=("overlapped",),
        placement="v",
    ),
    "zb-h1": ScheduleFamily(zb_h1, "1F1B in its memory, weight gradients put off into the bubbles (ZB-H1)"),
    "zb-h2": ScheduleFamily(zb_h2, "about twice the warm-up, weight gradients put off: no bubbles (ZB-H2)"),
    "zb-v": ScheduleFamily(
        zb_v, "two stages per device in a V, weight gradients put off: no bubbles (ZB-V)", placement="v"
    ),
    "v-half": ScheduleFamily(
        v_half, "two stages per device in a V, about half of ZB-V's activations (V-Half)", placement="v"
    ),
    "v-min": ScheduleFamily(
        v_min, "two stages per device in a V, about a third of ZB-V's activations (V-Min)", placement="v"
    ),
    "pipedream": ScheduleFamily(
        pipedream, "1F1B without flush, an update after every backward", flush=False, copies="problem"
    ),
    "1f1b-rr": ScheduleFamily(
        one_forward_one_backward_round_robin,
        "PipeDream with replicated stages: mini-batches go round robin over the replicas",
        flush=False,
        copies="problem",
    ),
    "1f1b-as": ScheduleFamily(
        streamed_one_forward_one_backward,
        "1F1B on accelerators that send while they compute (BaPipe)",
        communications=("free", "streaming"),
    ),
    "fbp-as": ScheduleFamily(
        forward_and_backward_parallel,
        "forwards beside backwards on accelerators that send while they compute (BaPipe)",
        communications=("free", "streaming"),
        lanes=True,
    ),
    "1f1b-sno": ScheduleFamily(
        blocking_one_forward_one_backward,
        "1F1B where a transfer blocks its sender (BaPipe)",
        communications=("send-blocking",),
    ),
    "1f1b-so": ScheduleFamily(
        overlapped_one_forward_one_backward,
        "1F1B with about twice the warm-up, transfers overlapped (BaPipe)",
        communications=("overlapped",),
    ),
    **{
        name: ScheduleFamily(BUILDERS[name], method.summary, flush=False, copies=name)
        for name, method in VERSION_METHODS.items()
    },
}


class _Families(Mapping[str, ScheduleFamily]):
    """Families by name; a plug-in's bare function makes its example only when it is asked for by name."""

    def __init__(self, plugged: Mapping[str, ScheduleFamily]) -> None:
        self._plugged = plugged

    def __getitem__(self, name: str) -> ScheduleFamily:
        return SCHEDULES[name] if name in SCHEDULES else _by_example(self._plugged[name])

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._plugged if name not in SCHEDULES)
        yield from SCHEDULES

    def __len__(self) -> int:
        return len({*self._plugged, *SCHEDULES})


def schedule_families() -> Mapping[str, ScheduleFamily]:
    """The families of this package and those of installed plug-ins (entry-point group `pipeplan.schedules`)."""
    return _Families(plugged_in(ENTRY_POINT_GROUP, as_family, frozenset(SCHEDULES)))


def as_family(made: object) -> ScheduleFamily:
    """A family, itself or made of a function `(stages, microbatches, **options) -> Schedule`; TypeError for anything else.

    The first line of the function's docstring is its summary; it is not called before somebody asks for it.
    """
    if isinstance(made, ScheduleFamily):
        return made
    if not callable(made):
        raise TypeError(
            f"must be a function (stages, microbatches) -> Schedule, or a ScheduleFamily, not {type(made).__name__}"
        )
    # families are keys: an object that can change is one by itself
    build = made if isinstance(made, Hashable) else partial(made)
    return ScheduleFamily(build, summary_of(made), by_example=True)


EXAMPLES = ((4, 8), (8, 16), (2, 4), (3, 6), (1, 1))
"""Stages and micro-batches with which a bare function is called, in turn, until it returns a schedule."""

_shown: dict[ScheduleFamily, ScheduleFamily] = {}
"""Properties that were read off the schedules of bare functions."""


def _by_example(family: ScheduleFamily) -> ScheduleFamily:
    """The family, that of a bare function completed by an example; unchanged if it makes none: its use says why."""
    if not family.by_example:
        return family
    if family not in _shown:
        _shown[family] = family  # as which it stands while it makes its example: it may ask for families itself
        _shown[family] = next(filter(None, (_read_off(family, *size) for size in EXAMPLES)), family)
    return _shown[family]


def _read_off(family: ScheduleFamily, stages: int, microbatches: int) -> ScheduleFamily | None:
    """The family with `flush` and `placement` read off one of its schedules; None if it cannot make that schedule."""
    try:
        with aside():
            schedule = family.build(stages, microbatches)
        holders, devices = schedule.holders(), len(set(schedule.device_of_rank().tolist()))
        there = {one: chains_of(one, stages, devices) for one in PLACEMENTS if _can_have(one, stages, devices)}
        lies = [[tuple(sorted({chain[s] for chain in chains})) for s in range(stages)] for chains in there.values()]
        found = [one for one, held in zip(there, lies, strict=True) if held == [tuple(sorted(at)) for at in holders]]
        return replace(family, flush=schedule.flush, placement=found[0] if found else "straight")
    except ENDED:
        raise
    except BaseException:
        return None


def _can_have(placement: Placement, stages: int, devices: int) -> bool:
    try:
        return bool(chains_of(placement, stages, devices))
    except ValueError:
        return False


def build_schedule(name: str, stages: int, microbatches: int, **options: object) -> Schedule:
    """Build the schedule called `name`.

    options: of the family; a text is read as the type that its function declares
    ValueError for an unknown name, option, or count below 1, or for more than MOST_OPS; of a plug-in for whatever it refuses,
    PluginError for whatever else is wrong with what it does.
    """
    families = schedule_families()
    if name not in families:
        raise ValueError(unchosen("schedule", name, sorted(families)))
    check_counts(stages=stages, microbatches=microbatches, **{one: options[one] for one in COUNTED if one in options})
    if stages < 1:
        raise ValueError(f"stages must be at least 1, got {stages}")
    if microbatches < 1:
        raise ValueError(f"micro-batches must be at least 1, got {microbatches}")
    slices = options.get("slices")
    check_size(stages, microbatches * (slices if isinstance(slices, int) and slices > 1 else 1))
    family = families[name]
    unknown = set(options) - set(family.options)
    if unknown:
        takes = ", ".join(family.options) if family.options else "no options"
        raise ValueError(f"schedule {name!r} does not take {', '.join(sorted(unknown))}; it takes {takes}")
    if name not in SCHEDULES:
        return _plugged_in_schedule(name, family, stages, microbatches, options)
    given = {key: _typed(family, key, value) for key, value in options.items()}
    return family.build(stages, microbatches, **given)


def _typed(family: ScheduleFamily, option: str, value: object) -> object:
    """The value of an option of a shipped family, converted from text to its declared type where that is another."""
    declared = family.declared[option]
    return value if not isinstance(value, str) or declared.kind is str else declared.read(value)


def _plugged_in_schedule(
    name: str, family: ScheduleFamily, stages: int, microbatches: int, options: Mapping[str, object]
) -> Schedule:
    """The schedule that a plug-in makes, checked to be complete, of the counts asked for, and to flush or not as its family does;
    lowering finds deadlocks.
    """
    given = read_options(family.declared, options, f"schedule {name!r}")
    with answering_for(f"schedule {name!r}"), aside():
        schedule = family.build(stages, microbatches, **given)
    if not isinstance(schedule, Schedule):
        raise PluginError(f"schedule {name!r}, a plug-in, must make a Schedule, not {type(schedule).__name__}")
    made = schedule.stages, schedule.microbatches
    if made != (stages, microbatches * schedule.slices):
        asked = f"was asked for {stages} stages and {microbatches} micro-batches"
        raise PluginError(f"schedule {name!r}, a plug-in, {asked}, and has {made[0]} and {made[1]}")
    if schedule.flush is not family.flush:
        says = "flushes, and its order does not" if family.flush else "does not flush, and its order does"
        raise PluginError(f"schedule {name!r}, a plug-in, says that it {says}")
    with blamed_on(name):
        check_complete(schedule)
    return schedule


@contextmanager
def blamed_on(name: str) -> Iterator[None]:
    """Name the schedule in a ScheduleError that is raised inside; that of a plug-in becomes a PluginError."""
    try:
        yield
    except ScheduleError as error:
        if name in SCHEDULES:
            raise type(error)(f"schedule {name!r}: {error}") from None
        raise PluginError(f"schedule {name!r}, a plug-in, made an order that cannot run: {error}") from None
