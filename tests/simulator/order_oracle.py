"""Order oracle: whether the lists of a schedule are complete and run, told sample by sample; and lists with a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from simulator import Op, OpKind, Schedule
from simulator.schedules.schedule import columns_of, from_columns
from tests.simulator.strategies import A, B, F, I, U, W

O, L, P = OpKind.OFFLOAD, OpKind.RELOAD, OpKind.PREDICT  # noqa: E741

Sizes = Sequence[Sequence[int]]
"""Samples of the micro-batches of each stage."""

Words = list[list[tuple[Op, ...]]]


@dataclass
class _Stage:
    """Samples of one stage that each of these has covered, and how often; where forwards and others ran."""

    times: dict[str, Counter[int]] = field(default_factory=lambda: {one: Counter() for one in "FIWAOL"})
    devices: dict[int, set[int]] = field(default_factory=dict)


def runs(schedule: Schedule, forward: Sizes | None = None, backward: Sizes | None = None) -> bool:
    """Whether every stage runs every sample forward once and backward once, on one device, in an order that comes to its end."""
    forward = [[1] * schedule.microbatches] * schedule.stages if forward is None else forward
    return _Oracle(schedule, forward, forward if backward is None else backward).runs()


class _Oracle:
    def __init__(self, schedule: Schedule, forward: Sizes, backward: Sizes) -> None:
        self.schedule, self.forward, self.backward = schedule, forward, backward
        self.lists = [schedule.words(rank) for rank in range(schedule.ranks)]
        self.stages = [_Stage() for _ in range(schedule.stages)]

    def samples(self, op: Op) -> range:
        """The samples that an op covers; KeyError where it has the number of no micro-batch."""
        sizes = (self.forward if op.kind in (F, O, L) else self.backward)[op.stage]
        if op.microbatch >= len(sizes):
            raise KeyError(op)
        first = sum(sizes[: op.microbatch])
        return range(first, first + sizes[op.microbatch])

    def runs(self) -> bool:
        try:
            return self.complete() and self.comes_to_its_end()
        except KeyError:
            return False

    def complete(self) -> bool:
        updates: Counter[tuple[int, Op]] = Counter()
        homes: list[set[int]] = [set() for _ in self.stages]
        between = []
        for device, words in zip(self.schedule.device_of_rank().tolist(), self.lists, strict=True):
            kinds = {op.kind in (O, L) for word in words for op in word}
            if len(kinds) > 1:
                return False
            for word in words:
                if len(word) > 1 and (word[0].kind is not F or word[1].kind not in (B, I)):
                    return False
                for op in word:
                    if op.kind in (U, P):
                        between.append((device, op.stage))
                        updates[device, op] += op.kind is U
                        continue
                    homes[op.stage].add(device)
                    stage = self.stages[op.stage]
                    for sample in self.samples(op):
                        for letter in {B: "IW", A: "A", F: "F", I: "I", W: "W", O: "O", L: "L"}[op.kind]:
                            stage.times[letter][sample] += 1
                        stage.devices.setdefault(sample, set()).add(device)
        if any(device not in homes[stage] for device, stage in between) or max(updates.values(), default=0) > 1:
            return False
        updating = {(device, op.stage) for (device, op), count in updates.items() if count}
        if updating and any((device, stage) not in updating for stage, some in enumerate(homes) for device in some):
            return False
        return all(map(self.stage_is_complete, range(len(self.stages))))

    def stage_is_complete(self, number: int) -> bool:
        stage, samples = self.stages[number], range(sum(self.forward[number]))
        once, again = (
            {letter: [stage.times[letter][one] for one in samples] for letter in some} for some in ("FIW", "AOL")
        )
        if any(count != 1 for counts in once.values() for count in counts):
            return False
        if (
            again["O"] != again["L"]
            or max(again["O"]) > 1
            or again["A"] not in ([0] * len(samples), [1] * len(samples))
        ):
            return False
        credit = self.schedule.credit
        if credit is not None and len(self.forward[number]) != len(self.backward[number]):
            return False
        return all(len(devices) == 1 for devices in stage.devices.values())

    def comes_to_its_end(self) -> bool:
        done: list[dict[str, set[int]]] = [{letter: set() for letter in "FIWAOL"} for _ in self.stages]
        ended: set[Op] = set()
        at = [0] * len(self.lists)

        def ready(op: Op) -> bool:
            if op.kind in (U, P):
                return True
            here, own = done[op.stage], set(self.samples(op))
            away = {one for one in own if self.stages[op.stage].times["O"][one]}
            if op.kind is F:
                return (not op.stage or own <= done[op.stage - 1]["F"]) and self.has_credit(op, ended)
            if op.kind is W:
                return own <= here["I"]
            if op.kind is O:
                return own <= here["F"]
            if op.kind is L:
                return own <= here["O"]
            if not (own <= here["F"] and away <= here["L"]):
                return False
            if op.kind is A:
                return True
            again = own if any(self.stages[op.stage].times["A"].values()) else set()
            return again <= here["A"] and (op.stage == len(self.stages) - 1 or own <= done[op.stage + 1]["I"])

        moved = True
        while moved:
            moved = False
            for rank, words in enumerate(self.lists):
                while at[rank] < len(words) and all(map(ready, words[at[rank]])):
                    for op in words[at[rank]]:
                        ended.add(op)
                        for letter in {B: "IW", U: "", P: ""}.get(op.kind, "FBIWUPRSVAOL"[op.kind]):
                            done[op.stage][letter] |= set(self.samples(op))
                    at[rank] += 1
                    moved = True
        return all(place == len(words) for place, words in zip(at, self.lists, strict=True))

    def has_credit(self, op: Op, ended: set[Op]) -> bool:
        credit = self.schedule.credit
        before = op.microbatch - (op.microbatch + 1 if credit is None else int(credit[op.stage]))
        return before < 0 or any(Op(op.stage, kind, before) in ended for kind in (B, W))


def with_words(schedule: Schedule, words: Words) -> Schedule:
    """The schedule with other lists of ops and pairs."""
    ranks = [columns_of([op for word in some for op in word]) for some in words]
    paired = [len(word) == 2 and not place for some in words for word in some for place in range(len(word))]
    made = from_columns(schedule.name, schedule.stages, schedule.microbatches, ranks)
    kept = {name: getattr(schedule, name) for name in ("flush", "device", "lanes", "credit", "slices")}
    return replace(made, **kept, overlapped=np.array(paired) if any(paired) else None)


def with_a_fault(schedule: Schedule, rng: Random) -> Schedule:
    """The schedule with something changed: an op dropped, doubled, of another kind, stage or micro-batch, in another list or
    place, two that changed places, or a pair apart. It may still run."""
    words: Words = [list(schedule.words(rank)) for rank in range(schedule.ranks)]
    some = rng.choice([one for one in words if one])
    place = rng.randrange(len(some))
    word = some[place]
    op = rng.choice(word)
    other = {
        "kind": replace(op, kind=rng.choice((F, B, I, W, A, O, L))),
        "stage": replace(op, stage=rng.randrange(schedule.stages)),
        "number": replace(op, microbatch=rng.randrange(schedule.microbatches + 1)),
    }
    there = rng.choice(words)
    change = rng.choice(("drop", "double", "kind", "stage", "number", "move", "swap", "swap", "apart", "add"))
    if change in other:
        some[place] = tuple(other[change] if one is op else one for one in word)
    elif change in ("drop", "apart", "move"):
        some[place : place + 1] = [(one,) for one in word if one is not op]
        if change != "drop":
            target = some if change == "apart" else there
            target.insert(rng.randint(0, len(target)), (op,))
    elif change == "swap":
        beside = rng.randrange(len(some))
        some[place], some[beside] = some[beside], some[place]
    else:
        there.insert(rng.randint(0, len(there)), (op if change == "double" else other["kind"],))
    return with_words(schedule, words)
