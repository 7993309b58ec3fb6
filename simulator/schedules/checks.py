"""Checks of a schedule before it runs: every op once, on one device, and no deadlock."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.schedules.ops import BACKWARD_KINDS, HOST_KINDS, Op, OpKind
from simulator.schedules.schedule import Schedule, ScheduleError


def check_schedule(schedule: Schedule) -> None:
    """Raise ScheduleError naming the device, position and op of the first fault found.

    Rules: each stage runs the forward of every micro-batch once, and either its full backward or its input gradient and its
    weight gradient once; all on one device; in an order in which every op's inputs come and no credit is overdrawn. Overlapped
    pairs are a forward and a backward, and begin when both have their inputs. Forwards run again once before their backwards, of
    a stage all or none; what is offloaded is loaded back before it is needed.
    """
    schedule.check_pairs()
    devices = schedule.device_of_rank().tolist()
    where = _positions([schedule.ops(rank) for rank in range(schedule.ranks)], devices)
    _check_complete(schedule, where)
    _check_order(schedule, devices, where)


Place = tuple[int, int]
"""Device and position in the list of one of its ranks."""


def _positions(lists: list[tuple[Op, ...]], devices: list[int]) -> dict[Op, Place]:
    where: dict[Op, Place] = {}
    for device, ops in zip(devices, lists, strict=True):
        for position, op in enumerate(ops):
            if op.kind is OpKind.UPDATE or op.kind is OpKind.PREDICT:
                continue
            if op in where:
                first_device, first_position = where[op]
                raise ScheduleError(
                    f"device {device}, position {position}: op {op} is doubled, "
                    f"it stands at device {first_device}, position {first_position} already"
                )
            where[op] = (device, position)
    return where


def _check_complete(schedule: Schedule, where: dict[Op, Place]) -> None:
    holders: dict[int, set[int]] = defaultdict(set)
    for op, (held_by, _) in where.items():
        holders[op.stage].add(held_by)
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
                raise ScheduleError(f"device {device}: op {forward} is missing{_stray(forward, where)}")
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
            again, away, back = (Op(stage, kind, microbatch) for kind in (OpKind.RECOMPUTE, *HOST_KINDS))
            if (away in where and back not in where) or (back in where and away not in where):
                lost = back if away in where else away
                raise ScheduleError(f"device {device}: op {lost} is missing: what is offloaded is loaded back")
            if (again in where) != (Op(stage, OpKind.RECOMPUTE, 0) in where):
                raise ScheduleError(
                    f"device {device}: stage {stage} runs forwards again in ops of their own, all or none; "
                    f"op {again if again not in where else Op(stage, OpKind.RECOMPUTE, 0)} is missing"
                )
            for op in (full, split_input, split_weight, again, away, back):
                if op in where and where[op][0] != where[forward][0]:
                    raise ScheduleError(
                        f"device {where[op][0]}, position {where[op][1]}: op {op} runs where its forward did not "
                        f"({forward} is on device {where[forward][0]})"
                    )


def _stray(missing: Op, where: dict[Op, Place]) -> str:
    """Where else the micro-batch of a missing op stands, if it does so once: then that one op is likelier to be wrong."""
    others = [(op, place) for op, place in where.items() if op.microbatch == missing.microbatch]
    if len(others) != 1:
        return ""
    ((op, (device, position)),) = others
    return f"; micro-batch {missing.microbatch} stands nowhere but in {op} (device {device}, position {position})"


@dataclass(frozen=True, slots=True)
class _Rules:
    """What an op waits for."""

    schedule: Schedule
    where: dict[Op, Place]

    def needs(self, op: Op) -> Iterator[Op]:
        """The ops that must end before this one starts."""
        if op.kind is OpKind.FORWARD:
            if op.stage:
                yield Op(op.stage - 1, OpKind.FORWARD, op.microbatch)
            credit = self.schedule.credit
            if credit is not None and op.microbatch >= credit[op.stage]:
                yield self._end(op.stage, op.microbatch - int(credit[op.stage]))
        elif op.kind in (OpKind.RECOMPUTE, OpKind.OFFLOAD):
            yield Op(op.stage, OpKind.FORWARD, op.microbatch)
        elif op.kind is OpKind.RELOAD:
            yield Op(op.stage, OpKind.OFFLOAD, op.microbatch)
        elif op.kind is OpKind.WEIGHT_GRADIENT:
            yield Op(op.stage, OpKind.INPUT_GRADIENT, op.microbatch)
        elif op.kind in (OpKind.BACKWARD, OpKind.INPUT_GRADIENT):
            yield Op(op.stage, OpKind.FORWARD, op.microbatch)
            if op.stage < self.schedule.stages - 1:
                full = Op(op.stage + 1, OpKind.BACKWARD, op.microbatch)
                yield full if full in self.where else Op(op.stage + 1, OpKind.INPUT_GRADIENT, op.microbatch)
        if op.kind in (*BACKWARD_KINDS, OpKind.RECOMPUTE):
            before = (OpKind.RELOAD,) if op.kind is OpKind.RECOMPUTE else (OpKind.RELOAD, OpKind.RECOMPUTE)
            yield from (one for kind in before if (one := Op(op.stage, kind, op.microbatch)) in self.where)

    def _end(self, stage: int, microbatch: int) -> Op:
        """The op that frees a micro-batch."""
        full = Op(stage, OpKind.BACKWARD, microbatch)
        return full if full in self.where else Op(stage, OpKind.WEIGHT_GRADIENT, microbatch)


def _check_order(schedule: Schedule, devices: list[int], where: dict[Op, Place]) -> None:
    """Run the lists without time; what cannot run is a deadlock."""
    rules = _Rules(schedule, where)
    lists = [schedule.words(rank) for rank in range(schedule.ranks)]
    position = [0] * len(lists)
    done: set[Op] = set()
    waiting: dict[Op, list[int]] = defaultdict(list)
    ready = deque(range(len(lists)))
    while ready:
        rank = ready.popleft()
        while position[rank] < len(lists[rank]):
            ops = lists[rank][position[rank]]
            missing = next((need for op in ops for need in rules.needs(op) if need not in done), None)
            if missing is not None:
                waiting[missing].append(rank)
                break
            done.update(ops)
            position[rank] += 1
            for op in ops:
                ready.extend(waiting.pop(op, ()))
    stuck = [rank for rank, words in enumerate(lists) if position[rank] < len(words)]
    if stuck:
        heads = [lists[rank][position[rank]] for rank in stuck]
        raise ScheduleError(_deadlock(rules, heads, done))


def _deadlock(rules: _Rules, heads: list[tuple[Op, ...]], done: set[Op]) -> str:
    """One line for the first lists that are stuck: device, position and op at the head of each."""
    parts = []
    for ops in heads[:3]:
        op, need = next((op, need) for op in ops for need in rules.needs(op) if need not in done)
        device, position = rules.where[op]
        need_device, need_position = rules.where[need]
        parts.append(
            f"device {device}, position {position}: op {op} waits for {need} "
            f"(device {need_device}, position {need_position})"
        )
    more = f"; and {len(heads) - 3} devices more" if len(heads) > 3 else ""
    return "deadlock: " + "; ".join(parts) + more
