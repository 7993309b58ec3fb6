"""Checks of a schedule before it runs: every op once, on one device, and no deadlock."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from simulator.ops import Op, OpKind
from simulator.schedule import Schedule, ScheduleError


def check_schedule(schedule: Schedule) -> None:
    """Raise ScheduleError naming the device, position and op of the first fault found.

    Rules: each stage runs the forward of every micro-batch once, and either its full backward or its input gradient and its
    weight gradient once; all on one rank; in an order in which every op's inputs come.
    """
    lists = [schedule.ops(rank) for rank in range(schedule.ranks)]
    where = _positions(lists)
    _check_complete(schedule, where)
    _check_order(schedule, lists, where)


Place = tuple[int, int]
"""Rank and position in its list."""


def _positions(lists: list[tuple[Op, ...]]) -> dict[Op, Place]:
    where: dict[Op, Place] = {}
    for rank, ops in enumerate(lists):
        for position, op in enumerate(ops):
            if op.kind is OpKind.UPDATE or op.kind is OpKind.PREDICT:
                continue
            if op in where:
                first_rank, first_position = where[op]
                raise ScheduleError(
                    f"device {rank}, position {position}: op {op} is doubled, "
                    f"it stands at device {first_rank}, position {first_position} already"
                )
            where[op] = (rank, position)
    return where


def _check_complete(schedule: Schedule, where: dict[Op, Place]) -> None:
    holders: dict[int, set[int]] = defaultdict(set)
    for op, (rank, _) in where.items():
        holders[op.stage].add(rank)
    for stage in range(schedule.stages):
        if stage not in holders:
            raise ScheduleError(
                f"stage {stage} has no op on any device, but stages are numbered to {schedule.stages - 1}"
            )
        for microbatch in range(schedule.microbatches):
            forward = Op(stage, OpKind.FORWARD, microbatch)
            full, split_input, split_weight = (
                Op(stage, kind, microbatch) for kind in (OpKind.BACKWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT)
            )
            device = min(holders[stage])
            if forward not in where:
                raise ScheduleError(f"device {device}: op {forward} is missing")
            if full in where and (split_input in where or split_weight in where):
                double = split_input if split_input in where else split_weight
                raise ScheduleError(
                    f"device {where[double][0]}, position {where[double][1]}: op {double} repeats the full backward {full}"
                )
            if full not in where and split_input not in where and split_weight not in where:
                raise ScheduleError(f"device {device}: op {full} is missing (or {split_input} with {split_weight})")
            if full not in where and (split_input not in where or split_weight not in where):
                lost = split_input if split_input not in where else split_weight
                raise ScheduleError(f"device {device}: op {lost} is missing")
            for op in (full, split_input, split_weight):
                if op in where and where[op][0] != where[forward][0]:
                    raise ScheduleError(
                        f"device {where[op][0]}, position {where[op][1]}: op {op} runs where its forward did not "
                        f"({forward} is on device {where[forward][0]})"
                    )


def _needs(op: Op, last_stage: int, where: dict[Op, Place]) -> Iterator[Op]:
    """The ops that must end before this one starts."""
    if op.kind is OpKind.FORWARD:
        if op.stage:
            yield Op(op.stage - 1, OpKind.FORWARD, op.microbatch)
    elif op.kind is OpKind.WEIGHT_GRADIENT:
        yield Op(op.stage, OpKind.INPUT_GRADIENT, op.microbatch)
    elif op.kind in (OpKind.BACKWARD, OpKind.INPUT_GRADIENT):
        yield Op(op.stage, OpKind.FORWARD, op.microbatch)
        if op.stage < last_stage:
            full = Op(op.stage + 1, OpKind.BACKWARD, op.microbatch)
            yield full if full in where else Op(op.stage + 1, OpKind.INPUT_GRADIENT, op.microbatch)


def _check_order(schedule: Schedule, lists: list[tuple[Op, ...]], where: dict[Op, Place]) -> None:
    """Run the lists without time; what cannot run is a deadlock."""
    position = [0] * len(lists)
    done: set[Op] = set()
    waiting: dict[Op, list[int]] = defaultdict(list)
    ready = deque(range(len(lists)))
    while ready:
        rank = ready.popleft()
        while position[rank] < len(lists[rank]):
            op = lists[rank][position[rank]]
            missing = next((need for need in _needs(op, schedule.stages - 1, where) if need not in done), None)
            if missing is not None:
                waiting[missing].append(rank)
                break
            done.add(op)
            position[rank] += 1
            ready.extend(waiting.pop(op, ()))
    stuck = [rank for rank, ops in enumerate(lists) if position[rank] < len(ops)]
    if stuck:
        raise ScheduleError(_deadlock(lists, position, stuck, schedule.stages - 1, where, done))


def _deadlock(
    lists: list[tuple[Op, ...]],
    position: list[int],
    stuck: list[int],
    last_stage: int,
    where: dict[Op, Place],
    done: set[Op],
) -> str:
    parts = []
    for rank in stuck[:3]:
        op = lists[rank][position[rank]]
        need = next(need for need in _needs(op, last_stage, where) if need not in done)
        need_rank, need_position = where[need]
        parts.append(
            f"device {rank}, position {position[rank]}: op {op} waits for {need} "
            f"(device {need_rank}, position {need_position})"
        )
    more = f"; and {len(stuck) - 3} devices more" if len(stuck) > 3 else ""
    return "deadlock: " + "; ".join(parts) + more
