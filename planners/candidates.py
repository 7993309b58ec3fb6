"""Candidates: the plans that one partition leads to, by schedule, stages a device and number of micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planners.search import Evaluator, Request
from simulator import (
    VERSION_METHODS,
    InfeasiblePlanError,
    Plan,
    Problem,
    Stage,
    equal_microbatches,
    schedule_families,
    stages_from_cuts,
)

CHUNKS = 2
"""Stages a device of a plan for a looped or interleaved schedule, where the network has layers enough."""

RISES = 3
"""Slower plans in a row after which still more micro-batches are not tried."""


def devices_in_order(problem: Problem) -> tuple[int, ...]:
    """Device ids server by server, so that neighbouring stages share a server where they can."""
    return tuple(device for server in problem.cluster.servers for device in server)


def stage_devices(problem: Problem, schedule: str) -> tuple[int, ...]:
    """The device of each stage of a straight pipeline that uses as many devices as the layers permit.

    A schedule with several stages a device goes round the devices CHUNKS times; a network with fewer layers than that uses fewer
    devices.
    """
    order, layers = devices_in_order(problem), len(problem.workload)
    looped = "chunks" in schedule_families()[schedule].options
    chunks = CHUNKS if looped and layers >= CHUNKS else 1
    return order[: max(1, layers // chunks)] * chunks


def straight_plan(
    planner: str, problem: Problem, schedule: str, cuts: Sequence[int], devices: Sequence[int], microbatches: int
) -> Plan:
    """A pipeline of contiguous layers with one device a stage.

    cuts: layers before each boundary, as in `simulator.stages_from_cuts`; devices: of each stage
    """
    stages = stages_from_cuts(cuts, len(problem.workload), [(device,) for device in devices])
    return single_or_pipeline(planner, schedule, stages, equal_microbatches(problem.batch, microbatches))


def single_or_pipeline(planner: str, schedule: str, stages: tuple[Stage, ...], microbatches: tuple[int, ...]) -> Plan:
    """A plan whose replicas work as its schedule says: round robin where the family asks for replicas, split otherwise."""
    round_robin = "replicas" in schedule_families()[schedule].options
    return Plan(planner, schedule, stages, microbatches, "round-robin" if round_robin else "split")


def least_microbatches(schedule: str | None, stages: int) -> int:
    """Micro-batches that a schedule needs at least: one a stage where its weight versions cover them all (2BW), else 1."""
    method = VERSION_METHODS.get(schedule or "")
    return stages if method is not None and method.covers_stages else 1


def microbatch_counts(problem: Problem, request: Request, devices: int) -> tuple[int, ...]:
    """Numbers of micro-batches worth a replay, rising: the requested one, else powers of two, and these times the devices.

    A schedule made for at least as many micro-batches as stages (2BW) gets no fewer than `devices`.
    Raises ValueError if more micro-batches are requested than the batch has samples, InfeasiblePlanError if fewer than such a
    schedule needs, or if the batch has fewer samples.
    """
    batch = problem.batch
    least = least_microbatches(request.schedule, min(devices, len(problem.workload)))
    if least > min(batch, request.microbatches or batch):
        raise InfeasiblePlanError(
            f"schedule {request.schedule!r} needs at least {least} micro-batches, one a stage, "
            f"got {request.microbatches or batch}"
        )
    if request.microbatches is not None:
        if request.microbatches > batch:
            raise ValueError(
                f"micro-batches must be at most the batch of {batch} samples, got {request.microbatches} micro-batches"
            )
        return (request.microbatches,)
    powers = [2**power for power in range(batch.bit_length()) if 2**power <= batch]
    counts = {*powers, *(power * devices for power in powers if power * devices <= batch), batch}
    return tuple(sorted(count for count in counts if count >= least))


def closest_to_fit(plans: Iterable[Plan], evaluate: Evaluator) -> Plan:
    """The fastest plan that fits, else the one that misses least memory; the first of equals.

    plans: at least one, by rising number of micro-batches. Iteration seconds fall while bubbles shrink and rise once the fixed
    cost of a call outweighs that: after RISES plans that fit, each slower than the one before, the rest is not replayed. Without
    a plan that fits, more micro-batches may still save memory: all are.
    """
    best: tuple[tuple[float, float], Plan] | None = None
    last, rises = float("inf"), 0
    for plan in plans:
        score = evaluate(plan)
        if best is None or score.key < best[0]:
            best = score.key, plan
        if score.fits:
            rises = rises + 1 if score.iteration_seconds > last else 0
            last = score.iteration_seconds
        if rises >= RISES:
            break
    if best is None:
        raise ValueError("a choice needs at least one plan, got none")
    return best[1]
