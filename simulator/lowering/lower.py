"""Lower: the wiring from schedule and costs to a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from simulator.costs import Costs
from simulator.lowering.coverage import (
    check_covered,
    check_same_samples,
    copy_to_replicas,
    durations,
    sample_bounds,
    split_durations,
)
from simulator.lowering.tasks import assemble
from simulator.lowering.waits import add_credit, data_waits, sending_seconds, without_transfers
from simulator.program import Program
from simulator.schedule import Schedule

Communication = Literal["overlapped", "send-blocking", "both-blocking", "streaming", "free"]
COMMUNICATIONS: tuple[str, ...] = get_args(Communication)


def lower(
    schedule: Schedule,
    costs: Costs,
    *,
    forward_sizes: Sequence[int] | Sequence[Sequence[int]] | None = None,
    backward_sizes: Sequence[int] | Sequence[Sequence[int]] | None = None,
    split_replicas: Sequence[int] | None = None,
    communication: Communication = "overlapped",
    updates: bool = False,
) -> Program:
    """Lower a schedule to a program.

    forward_sizes, backward_sizes: samples of each micro-batch, one list for all stages or one list a stage; default 1 each,
        backward as forward
    split_replicas: devices that share each micro-batch of a stage, one count a stage; default 1
    communication: `overlapped`: transfers run beside computation; `send-blocking`: the sender's device is busy for the transfer
        right after the op, the receiver waits for the arrival; `both-blocking`: the receiver's device is then busy as long before
        its op; `streaming`: an op sends its result while it computes and takes at least as long as that (a link of its own, one
        transfer at a time; on lanes that share a device the rest of the device is the other lane's), nothing is left to send
        after it; `free`: transfers take no time at all
    updates: a flushed schedule ends in an update op per stage (asynchronous schedules bring their own)
    Raises ValueError for sizes that do not fit the schedule, ScheduleError for an order that contradicts its data.
    """
    if communication not in COMMUNICATIONS:
        raise ValueError(f"communication {communication!r} is unknown; choices: {', '.join(COMMUNICATIONS)}")
    forward = sample_bounds("forward sizes", forward_sizes, schedule)
    backward = forward if backward_sizes is None else sample_bounds("backward sizes", backward_sizes, schedule)
    check_same_samples(forward, backward)
    replicas = np.ones(schedule.stages, dtype=np.int64) if split_replicas is None else np.asarray(split_replicas)
    ops = copy_to_replicas(schedule, replicas, forward, backward)
    check_covered(ops, forward)
    waits = data_waits(ops, schedule.stages, costs)
    seconds, least = durations(ops, costs), None
    if schedule.lanes == "split":
        seconds = split_durations(ops, seconds, costs)
    if communication == "streaming":
        least = np.maximum(seconds, sending_seconds(waits, len(seconds)))
        if schedule.lanes != "shared":
            seconds, least = least, None
    if communication in ("streaming", "free"):
        waits = without_transfers(waits)
    if schedule.credit is not None:
        waits = add_credit(waits, ops, schedule.credit)
    blocking = {"send-blocking": "send", "both-blocking": "both"}.get(communication)
    return assemble(schedule, ops, waits, seconds, costs, least=least, blocking=blocking, updates=updates)
