"""Weight versions: how many updates every op of a timeline has seen, and how many copies a stage must hold.

Everything is counted from the replayed timeline, nothing from a schedule's formula, so it holds for any schedule.
"Version v" of a stage is its weights after v updates; the synchronous version of a micro-batch of mini-batch m
(0-based) is m, what a run with a flush after every mini-batch would use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hardware_profiles import Floats, Integers
from simulator.engines.timeline import Timeline
from simulator.schedules.ops import COMPUTE_KINDS, OpKind

Kept = Literal["current", "forward", "entry", "minibatch-entry"]


def event_order(timeline: Timeline) -> Integers:
    """Rows in the order in which they take effect: updates by their end, all other ops by their start.

    Ties: an update that ends at t precedes an op that starts at t; ops of no duration keep their row order
    among themselves and precede longer ops that start at t.
    """
    start, end = timeline.start, timeline.end
    update = timeline.kind == OpKind.UPDATE
    lasting = end > start
    rank = np.where(lasting, np.where(update, 0, 2), 1)
    return np.lexsort((rank, np.where(update, end, start)))


@dataclass(frozen=True, slots=True, eq=False)
class VersionTable:
    """Weight versions that every op of a timeline sees; arrays are aligned with the timeline's rows, except `in_turn`.

    microbatches_per_minibatch: T
    stage, replica, kind, microbatch, start, end: the timeline's columns
    seen: updates of the op's stage and replica that had been applied when it started (-1 for ops that use no
        weights: transfers, reductions; for an UPDATE the version it makes)
    synchronous: version that a synchronous run would use: the op's mini-batch, or its round of R mini-batches where
        R replicas of the stage take them in turn (-1 where `seen` is -1)
    forward_seen: for a backward op, what its own forward had seen; `seen` elsewhere
    in_turn: per stage, replicas that take mini-batches in turn (see `replicas_in_turn`)
    """

    microbatches_per_minibatch: int
    stage: Integers
    replica: Integers
    kind: Integers
    microbatch: Integers
    start: Floats
    end: Floats
    seen: Integers
    synchronous: Integers
    forward_seen: Integers
    in_turn: Integers

    @property
    def stages(self) -> int:
        """Number of stages."""
        return int(self.stage.max()) + 1

    def difference(self) -> Integers:
        """Staleness of each op: updates that its weights lack of the synchronous version (0 for ops that use no weights)."""
        return self.synchronous - self.seen

    def forward_difference(self) -> Integers:
        """Per stage: the largest `difference` over its forwards (shape: stages)."""
        return self._largest(self.difference(), (OpKind.FORWARD,))

    def backward_difference(self) -> Integers:
        """Per stage: the largest `difference` of the weights present at its backwards (shape: stages)."""
        return self._largest(self.difference(), (OpKind.BACKWARD, OpKind.INPUT_GRADIENT))

    def _largest(self, values: Integers, kinds: tuple[OpKind, ...]) -> Integers:
        rows = np.isin(self.kind, kinds)
        largest = np.full(self.stages, np.iinfo(np.int64).min)
        np.maximum.at(largest, self.stage[rows], values[rows])
        return np.where(largest == np.iinfo(np.int64).min, 0, largest)


def version_table(timeline: Timeline, microbatches_per_minibatch: int) -> VersionTable:
    """Count the updates that every op of `timeline` has seen.

    ValueError: T < 1, an empty timeline, or a backward whose forward is missing.
    """
    if microbatches_per_minibatch < 1:
        raise ValueError(f"micro-batches per mini-batch must be at least 1, got {microbatches_per_minibatch}")
    if timeline.stage.size == 0:
        raise ValueError("weight versions need a timeline with at least one op, got none")
    stage, replica, kind, microbatch = _columns(timeline)
    update = kind == OpKind.UPDATE
    weighted = update | np.isin(kind, COMPUTE_KINDS)

    group = stage * (int(replica.max()) + 1) + replica
    in_time = event_order(timeline)
    order = in_time[np.argsort(group[in_time], kind="stable")]
    applied = np.cumsum(update[order])
    first_of_group = np.flatnonzero(np.diff(group[order], prepend=-1))
    before_group = applied[first_of_group] - update[order][first_of_group]
    counts = np.diff(np.append(first_of_group, order.size))
    seen = np.empty(stage.size, np.int64)
    seen[order] = applied - np.repeat(before_group, counts)

    in_turn = replicas_in_turn(timeline)
    takers = in_turn[stage]
    minibatch = np.where(update, microbatch // takers + 1, microbatch // (microbatches_per_minibatch * takers))
    return VersionTable(
        microbatches_per_minibatch,
        stage,
        replica,
        kind,
        microbatch,
        timeline.start,
        timeline.end,
        np.where(weighted, seen, -1),
        np.where(weighted, minibatch, -1),
        np.where(weighted, _seen_by_forward(group, kind, microbatch, seen), -1),
        in_turn,
    )


def _columns(timeline: Timeline) -> tuple[Integers, Integers, Integers, Integers]:
    """Stage, replica, kind and micro-batch of every row."""
    stage, replica, kind, microbatch = timeline.stage, timeline.replica, timeline.kind, timeline.microbatch
    return stage.astype(np.int64), replica.astype(np.int64), kind.astype(np.int64), microbatch.astype(np.int64)


def replicas_in_turn(timeline: Timeline) -> Integers:
    """Per stage, the number of replicas that take mini-batches in turn (1 where every replica runs a part of each micro-batch).

    R of them make one update together for R mini-batches.
    """
    stage, replica, kind, microbatch = _columns(timeline)
    stages = int(stage.max()) + 1
    forward = kind == OpKind.FORWARD

    def distinct(column: Integers) -> Integers:
        pairs = np.unique(np.stack([stage[forward], column[forward]]), axis=1)
        return np.bincount(pairs[0], minlength=stages)

    rows = np.bincount(stage[forward], minlength=stages)
    shared = np.maximum(1, rows // np.maximum(1, distinct(microbatch)))  # replicas that run the same micro-batch
    return np.maximum(1, distinct(replica) // shared).astype(np.int64)


def _seen_by_forward(group: Integers, kind: Integers, microbatch: Integers, seen: Integers) -> Integers:
    """`seen` with every backward's entry replaced by that of the forward of the same stage and micro-batch."""
    span = int(microbatch.max()) + 1
    key = group * span + microbatch
    forward = np.flatnonzero(kind == OpKind.FORWARD)
    backward = np.flatnonzero(np.isin(kind, COMPUTE_KINDS) & (kind != OpKind.FORWARD))
    result = seen.copy()
    if backward.size == 0:
        return result
    by_key = forward[np.argsort(key[forward], kind="stable")]
    place = np.searchsorted(key[by_key], key[backward])
    found = by_key[np.minimum(place, by_key.size - 1)] if by_key.size else backward
    missing = np.flatnonzero((kind[found] != OpKind.FORWARD) | (key[found] != key[backward]))
    if missing.size:
        row = backward[missing[0]]
        raise ValueError(f"the backward of micro-batch {microbatch[row]} in row {row} has no forward of its stage")
    result[backward] = seen[found]
    return result


@dataclass(frozen=True, slots=True)
class CopyRule:
    """How many weight copies of a stage a weight-versioning method holds, counted over a replay; call it with a `VersionTable`.

    kept: which version a micro-batch pins from the time it exists until its backward ends:
        `current` none, `forward` the one present at its forward, `entry` the one that the input stage had at its
        forward, `minibatch-entry` the one that the input stage had at the first forward of its mini-batch
    buffers: further copies (predictions, averages) that the stage holds beside them
    predicted_in_flight: every micro-batch in flight holds a prediction of its own
    spares_last_stage: the last stage, which has no delay, holds neither buffers nor predictions
    """

    kept: Kept = "current"
    buffers: int = 0
    predicted_in_flight: bool = False
    spares_last_stage: bool = False

    def __call__(self, table: VersionTable) -> Integers:
        """Peak number of copies per stage, the current weights included (shape: stages; replicas: the largest)."""
        peaks = np.zeros(table.stages, np.int64)
        for (stage, _), copies in self.by_replica(table).items():
            peaks[stage] = max(peaks[stage], copies)
        return peaks

    def by_replica(self, table: VersionTable) -> dict[tuple[int, int], int]:
        """Peak number of copies of each (stage, replica)."""
        pinned = None if self.kept == "current" else _pinned_versions(table, self.kept)
        found = {}
        for stage, replica, rows in _groups(table):
            alive = 1 if pinned is None else _peak_alive_versions(table, rows, pinned)
            if not (self.spares_last_stage and stage == table.stages - 1):
                alive += self.buffers
                alive += _peak_in_flight(table, rows) if self.predicted_in_flight else 0
            found[stage, replica] = alive
        return found


COPY_RULES: dict[str, CopyRule] = {
    "synchronous": CopyRule(),
    "naive": CopyRule(),
    "pipedream": CopyRule(kept="forward"),
    "vertical-sync": CopyRule(kept="entry"),
    "2bw": CopyRule(kept="minibatch-entry"),
    "spectrain-v1": CopyRule(buffers=1),
    "spectrain-v2": CopyRule(predicted_in_flight=True, spares_last_stage=True),
    "xpipe": CopyRule(buffers=2),
    "xpipe-exact": CopyRule(buffers=2),
    "pipeoptim": CopyRule(buffers=1),
    "pipemare": CopyRule(buffers=1, spares_last_stage=True),
}
"""Method -> copies of the weights per stage, under the same names as `PREDICTION_RULES`."""


def _groups(table: VersionTable) -> Iterator[tuple[int, int, Integers]]:
    """Rows of every (stage, replica), in row order."""
    key = table.stage * (int(table.replica.max()) + 1) + table.replica
    order = np.argsort(key, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        yield int(table.stage[rows[0]]), int(table.replica[rows[0]]), rows


def _pinned_versions(table: VersionTable, kept: Kept) -> Integers:
    """The weight version that each forward row uses and its backward reuses, aligned with the rows of the table."""
    if kept == "forward":
        return table.forward_seen
    forward = table.kind == OpKind.FORWARD
    entry_rows = np.flatnonzero(forward & (table.stage == 0))
    entry = np.full(int(table.microbatch.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(entry, table.microbatch[entry_rows], table.seen[entry_rows])
    wanted = table.microbatch
    if kept == "minibatch-entry":
        wanted = wanted // table.microbatches_per_minibatch * table.microbatches_per_minibatch
    pinned = entry[wanted] * table.in_turn[0] // table.in_turn[table.stage]
    return np.where(forward, pinned, -1)


def _events(table: VersionTable, rows: Integers) -> tuple[Integers, Integers, Integers]:
    """Rows of the forwards' starts, the backwards' ends and the updates' ends of one stage, in order of time.

    Returns (rows, positions of releases, positions of updates) over that order.
    """
    kind, microbatch = table.kind[rows], table.microbatch[rows]
    ends = (kind == OpKind.BACKWARD) | (kind == OpKind.INPUT_GRADIENT)
    # The parts of a backward that all-reduce splits into buckets release their micro-batch once, with the last part.
    ends[:-1] &= (kind[1:] != kind[:-1]) | (microbatch[1:] != microbatch[:-1])
    release = rows[ends]
    acquire, update = rows[kind == OpKind.FORWARD], rows[kind == OpKind.UPDATE]
    every = np.concatenate([acquire, release, update])
    starts = np.concatenate([np.ones(acquire.size, bool), np.zeros(release.size + update.size, bool)])
    time = np.where(starts, table.start[every], table.end[every])
    rank = np.where(table.end[every] > table.start[every], np.where(starts, 2, 0), 1)
    order = np.lexsort((every, rank, time))
    events = every[order]
    kinds = table.kind[events]
    releases = np.flatnonzero((kinds == OpKind.BACKWARD) | (kinds == OpKind.INPUT_GRADIENT))
    return events, releases, np.flatnonzero(kinds == OpKind.UPDATE)


def _peak_in_flight(table: VersionTable, rows: Integers) -> int:
    events, releases, updates = _events(table, rows)
    change = np.ones(events.size, np.int64)
    change[releases] = -1
    change[updates] = 0
    return int(np.cumsum(change).max(initial=0))


def _peak_alive_versions(table: VersionTable, rows: Integers, pinned: Integers) -> int:
    """The most weight versions alive at once: each lives until it is replaced and no micro-batch pins it."""
    events, releases, updates = _events(table, rows)
    births = np.concatenate([[0], updates + 1])  # event position p counts as p + 1; version 0 exists before all
    deaths = np.append(births[1:], events.size + 1)
    forward = rows[table.kind[rows] == OpKind.FORWARD]
    version = np.full(int(table.microbatch.max()) + 1, -1)
    version[table.microbatch[forward]] = pinned[forward]
    used = version[table.microbatch[events[releases]]]
    np.maximum.at(deaths, used, releases + 1)
    change = np.zeros(events.size + 2, np.int64)
    np.add.at(change, births, 1)
    np.add.at(change, deaths, -1)
    return int(np.cumsum(change)[:-1].max())
