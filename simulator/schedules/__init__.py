"""Schedules: one family a file; `SCHEDULES` names them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, TypeVar

from hardware_profiles import plugged_in, summary_of
from simulator.schedules.asynchronous import one_forward_one_backward_round_robin, pipedream
from simulator.schedules.bapipe import (
    blocking_one_forward_one_backward,
    forward_and_backward_parallel,
    overlapped_one_forward_one_backward,
    streamed_one_forward_one_backward,
)
from simulator.schedules.bidirectional import chimera
from simulator.schedules.building_blocks import v_half, v_min
from simulator.schedules.dual_pipe import dualpipe, dualpipe_v
from simulator.schedules.flushed import eager_one_forward_one_backward, gpipe, one_forward_one_backward
from simulator.schedules.looped import (
    interleaved_one_forward_one_backward,
    interleaved_zero_bubble,
    looped_breadth_first,
)
from simulator.schedules.placements import LEAST_CHUNKS, Chains, Placement, chains_of
from simulator.schedules.schedule import Schedule, ScheduleError, check_size
from simulator.schedules.slices import seq1f1b
from simulator.schedules.v_shaped import zb_v
from simulator.schedules.waves import hanayo
from simulator.schedules.weight_versions import BUILDERS, VERSION_METHODS
from simulator.schedules.zero_bubble import zb_h1, zb_h2

if TYPE_CHECKING:
    from simulator.schedules.communications import Communication

ENTRY_POINT_GROUP = "pipeplan.schedules"

Device = TypeVar("Device")


@dataclass(frozen=True, slots=True)
class ScheduleFamily:
    """A family of schedules.

    build: (stages, microbatches, **options) -> Schedule
    summary: one line for `pipeplan list`
    options: names of the keyword options that `build` takes: `chunks` (stages a device), `microbatch_group_size` (micro-batches
        that pass a chunk before the next has its turn), `slices` (of the sequences of a micro-batch), `replicas` (devices of each
        stage), `replica_updates` (one of REPLICA_UPDATES), `lanes` (how the lanes of a device divide it),
        `microbatches_per_minibatch` (micro-batches an update)
    flush: every mini-batch ends with a flush and one update
    communications: the modes of `simulator.lowering.lower` that the family is defined for; () for every one. Costs given as
        numbers take the first by default, a plan the problem's own mode if it is among them and else the last
    lanes: several lanes a device, which they may share
    copies: the rule of weight copies, of `simulator.results.versions.COPY_RULES`; `problem` for the problem's `weight_versions`,
        none for as many as forwards in flight have used
    placement: how its stages go round the devices
    """

    build: Callable[..., Schedule]
    summary: str
    options: tuple[str, ...] = ()
    flush: bool = True
    communications: tuple[Communication, ...] = ()
    lanes: bool = False
    copies: str | None = None
    placement: Placement = "straight"

    @property
    def chunks(self) -> int:
        """Stages a device at least: as many, unless the option `chunks` says."""
        return LEAST_CHUNKS[self.placement]

    def communication(self, wanted: Communication) -> Communication:
        """The mode of a plan of this family on a problem whose mode is `wanted`."""
        return wanted if not self.communications or wanted in self.communications else self.communications[-1]

    def device_of_stage(self, devices: Sequence[Device], chunks: int) -> tuple[Device, ...]:
        """The device of each of `chunks` stages a device, in one direction; `devices` are ids, or replicas that go together.

        ValueError for stages a device that the placement cannot have.
        """
        return tuple(devices[place] for place in chains_of(self.placement, chunks * len(devices), len(devices))[0])

    def lies_on(self, chains: Chains) -> bool:
        """Whether its stages lie so; with one stage a device, a family made for several is another then, by another name."""
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
        "1F1B with several stages a device (Megatron-LM)",
        ("chunks", "microbatch_group_size"),
        placement="interleaved",
    ),
    "interleaved-zb": ScheduleFamily(
        interleaved_zero_bubble,
        "several stages a device, weight gradients put off into the bubbles (torch)",
        ("chunks", "microbatch_group_size"),
        placement="interleaved",
    ),
    "looped-bfs": ScheduleFamily(
        looped_breadth_first,
        "several stages a device, breadth first (looped BFS)",
        ("chunks",),
        placement="interleaved",
    ),
    "seq1f1b": ScheduleFamily(seq1f1b, "1F1B of slices of the sequences of a micro-batch (Seq1F1B)", ("slices",)),
    "hanayo": ScheduleFamily(
        hanayo,
        "stages back and forth over the devices, two a device in each wave (Hanayo)",
        ("chunks",),
        placement="wave",
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
        "two stages a device in a V, forwards of one overlap backwards of the other (DualPipeV)",
        communications=("overlapped",),
        placement="v",
    ),
    "zb-h1": ScheduleFamily(zb_h1, "1F1B in its memory, weight gradients put off into the bubbles (ZB-H1)"),
    "zb-h2": ScheduleFamily(zb_h2, "about twice the warm-up, weight gradients put off: no bubbles (ZB-H2)"),
    "zb-v": ScheduleFamily(
        zb_v, "two stages a device in a V, weight gradients put off: no bubbles (ZB-V)", placement="v"
    ),
    "v-half": ScheduleFamily(
        v_half, "two stages a device in a V, about half of ZB-V's activations (V-Half)", placement="v"
    ),
    "v-min": ScheduleFamily(
        v_min, "two stages a device in a V, about a third of ZB-V's activations (V-Min)", placement="v"
    ),
    "pipedream": ScheduleFamily(
        pipedream, "1F1B without flush, an update after every backward", flush=False, copies="problem"
    ),
    "1f1b-rr": ScheduleFamily(
        one_forward_one_backward_round_robin,
        "PipeDream with replicated stages: mini-batches go round robin over the replicas",
        ("replicas", "replica_updates"),
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
        ("lanes",),
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
        name: ScheduleFamily(BUILDERS[name], method.summary, ("microbatches_per_minibatch",), flush=False, copies=name)
        for name, method in VERSION_METHODS.items()
    },
}


def schedule_families() -> dict[str, ScheduleFamily]:
    """The families of this package and those of installed plug-ins (entry-point group `pipeplan.schedules`)."""
    return {**plugged_in(ENTRY_POINT_GROUP, as_family), **SCHEDULES}


def as_family(made: object) -> ScheduleFamily:
    """A family, or a function `(stages, microbatches, **options) -> Schedule` as one; TypeError for anything else.

    The function's further arguments are its options, the first line of its docstring its summary; a schedule of one stage and
    one micro-batch shows whether it flushes.
    """
    if isinstance(made, ScheduleFamily):
        return made
    if not callable(made):
        raise TypeError(
            f"must be a function (stages, microbatches) -> Schedule, or a ScheduleFamily, not {type(made).__name__}"
        )
    options = tuple(signature(made).parameters)[2:]
    smallest = made(1, 1)
    if not isinstance(smallest, Schedule):
        raise TypeError(f"must return a Schedule, not {type(smallest).__name__}")
    return ScheduleFamily(made, summary_of(made), options, smallest.flush)


def build_schedule(name: str, stages: int, microbatches: int, **options: object) -> Schedule:
    """Build the schedule called `name`; ValueError for an unknown name, option, or count below 1, or for more than MOST_OPS.

    Raises ScheduleError where a family makes a schedule of other counts.
    """
    families = schedule_families()
    if name not in families:
        raise ValueError(f"schedule {name!r} is unknown; choices: {', '.join(sorted(families))}")
    if stages < 1:
        raise ValueError(f"stages must be at least 1, got {stages}")
    if microbatches < 1:
        raise ValueError(f"micro-batches must be at least 1, got {microbatches}")
    check_size(stages, microbatches)
    family = families[name]
    unknown = set(options) - set(family.options)
    if unknown:
        takes = ", ".join(family.options) if family.options else "no options"
        raise ValueError(f"schedule {name!r} does not take {', '.join(sorted(unknown))}; it takes {takes}")
    schedule = family.build(stages, microbatches, **options)
    made = schedule.stages, schedule.microbatches
    if made != (stages, microbatches * schedule.slices):
        raise ScheduleError(
            f"schedule {name!r} was asked for {stages} stages and {microbatches} micro-batches, and has {made[0]} and {made[1]}"
        )
    return schedule
