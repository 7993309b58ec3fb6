"""Text forms of a schedule: one line per device, and the CSV of `torch.distributed.pipelining`.

A line is its ops, apart by spaces; what stands behind a # is a comment. `(0F3 0B0)*5` is five times these ops, each time with
micro-batches one higher: 0F3 0B0 0F4 0B1 and so on; `(0F4 0F5 0B0 0B1)*3+2` with micro-batches two higher: warm-up, a pattern,
drain. Patterns may hold patterns. `(0F4;1B2)OVERLAP_F_B` is torch's pair of a forward and a backward that begin and end together.
A line of offloads and reloads alone, `0O0 0L0`, is a lane beside the device that runs its first forward.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from hardware_profiles import read_bytes, shown
from simulator.schedules.ops import BACKWARD_KINDS, COMPUTE_KINDS, HOST_KINDS, Op, OpKind
from simulator.schedules.schedule import MOST_OPS, Columns, Schedule, ScheduleError, columns_of, from_ranks

MOST_WRITTEN_OPS = 2**20
"""Ops of a text at most, however few words say them: 512 stages and 1,000 micro-batches, read and checked in seconds."""

_COMMUNICATION = re.compile(r"[0-9]+(?:WAIT_)?(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*")
_REPEATED = re.compile(r"\((.*)\)\*([0-9]{1,9})(?:\+([0-9]{1,9}))?")
_COMMENT = re.compile(r"#.*")
_BREAK = re.compile(r"[()]|\s+")

DEEPEST = 8
"""Patterns inside each other at most."""

_OVERLAPPED = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


def to_text(schedule: Schedule) -> str:
    """One line per device, ops apart by spaces, as in `0F0 0F1 0B0 0B1`."""
    return "\n".join(" ".join(map(_word, schedule.words(rank))) for rank in range(schedule.ranks)) + "\n"


def _word(ops: tuple[Op, ...]) -> str:
    """An op, or an overlapped pair, as text."""
    return str(ops[0]) if len(ops) == 1 else f"({';'.join(map(str, ops))})OVERLAP_F_B"


def from_text(text: str, name: str = "text", most: int = MOST_WRITTEN_OPS) -> Schedule:
    """Read what `to_text` writes, and repeated patterns, of `most` ops; ScheduleError names the line and the op."""
    lines = [_words(line) for line in uncommented(text).splitlines()]
    return _parse([line for line in lines if line], name, most)


def uncommented(text: str) -> str:
    """A schedule's text without its comments, which begin with #."""
    return _COMMENT.sub("", text)


def _words(line: str) -> list[str]:
    """The words of a line: apart by spaces outside parentheses."""
    if "(" not in line:
        return line.split()
    words, depth, begin = [], 0, 0
    for found in _BREAK.finditer(line):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if found[0].isspace() and depth <= 0:
            words.append(line[begin : found.start()])
            begin = found.end()
    return line.split() if depth else [word for word in (*words, line[begin:].rstrip()) if word]


def to_torch_csv(schedule: Schedule) -> str:
    """Compute-only CSV that `torch.distributed.pipelining` loads: one row per rank; the update is the optimizer's.

    ScheduleError for what torch has no way to run: updates amid the stream, several lanes per device, replicas that take turns.
    """
    if not schedule.flush:
        raise ScheduleError(
            f"schedule {schedule.name!r} never flushes; torch's pipelines run one update after all micro-batches, "
            "which is another algorithm"
        )
    if len(set(schedule.device_of_rank().tolist())) < schedule.ranks:
        raise ScheduleError(
            f"schedule {schedule.name!r} runs two lists of ops at once on a device; torch runs one per rank"
        )
    if (schedule.kind == OpKind.RECOMPUTE).any():
        raise ScheduleError(
            f"schedule {schedule.name!r} runs forwards again in ops of their own; torch does so within backwards"
        )
    if (schedule.replicas() > 1).any():
        raise ScheduleError(
            f"schedule {schedule.name!r} gives whole micro-batches to replicas in turn; torch's replicas all run every one"
        )
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    for rank in range(schedule.ranks):
        writer.writerow([_word(ops) for ops in schedule.words(rank) if ops[0].kind in COMPUTE_KINDS])
    return target.getvalue()


def from_torch_csv(text: str, name: str = "csv") -> Schedule:
    """Read a compute-only or a full CSV of torch; blank cells are idle.

    Transfers and sharding actions are passed over: the simulator adds transfers itself, from the plan.
    """
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error as error:  # a cell beyond the csv module's limit
        raise ScheduleError(f"is not CSV: {error}") from None
    return _parse(rows, name)


def is_schedule_text(path: str | Path) -> bool:
    """Whether a file's first word is an op, alone, in parentheses or with a comma behind it; false for what cannot be read."""
    try:
        text = read_bytes(Path(path))
    except OSError:
        return False
    return re.match(rb"(?:\s*#[^\n]*\n)*[\s(]*[0-9]+[A-Z][0-9]+[\s,;)]", text + b"\n") is not None


Piece = tuple[Columns, list[bool]]
"""Some ops of a rank, and which of them overlap the one behind."""


def _parse(rows: list[list[str]], name: str, most: int = MOST_WRITTEN_OPS) -> Schedule:
    ranks: list[Columns] = []
    overlapped: list[bool] = []
    count, most = 0, min(most, MOST_WRITTEN_OPS)
    for row_number, row in enumerate(rows, 1):
        pieces: list[Piece] = []
        ops: list[Op] = []
        paired: list[bool] = []
        for column, cell in enumerate(row, 1):
            try:
                room = most - count
                repeated = _REPEATED.fullmatch(cell)
                if repeated is None:
                    found = _ops_of(cell)
                    ops += found
                    paired += _paired([found])
                    count += len(found)
                else:
                    pieces += [(columns_of(ops), paired), _pattern(repeated, room, most, DEEPEST)]
                    count += len(pieces[-1][1])
                    ops, paired = [], []
                if count > most:
                    raise _too_many(most)
            except ValueError as error:
                raise ScheduleError(f"row {row_number}, column {column}: {error}") from None
        pieces.append((columns_of(ops), paired))
        stage, kind, microbatch = (np.concatenate([piece[number] for piece, _ in pieces]) for number in range(3))
        if len(stage):
            ranks.append((stage, kind, microbatch))
        overlapped += [one for _, several in pieces for one in several]
    flush = not any((kind == OpKind.UPDATE).any() for _, kind, _ in ranks)
    schedule = from_ranks(name, ranks, flush=flush)
    schedule = replace(schedule, overlapped=np.array(overlapped)) if any(overlapped) else schedule
    return _with_hosts(schedule) if np.isin(schedule.kind, HOST_KINDS).any() else schedule


def _too_many(most: int) -> ValueError:
    return ValueError(f"a schedule has at most {most:,} ops, this one has more")


def _pattern(repeated: re.Match[str], room: int, most: int, deepest: int) -> Piece:
    """A repeated pattern, whose words may be patterns; ValueError for more than `room` ops, of `most` in all, or too deep."""
    if not deepest:
        raise ValueError(f"patterns lie in each other {DEEPEST} deep at most, got {shown(repeated[0])}")
    inside: list[Piece] = []
    for word in _words(repeated[1]):
        again = _REPEATED.fullmatch(word)
        found = [] if again else _ops_of(word)
        inside.append(_pattern(again, room, most, deepest - 1) if again else (columns_of(found), _paired([found])))
    held, times = sum(len(paired) for _, paired in inside), int(repeated[2])
    if not held:
        raise ValueError(f"a repeated pattern holds at least one op, got {shown(repeated[0])}")
    if held * times > room:
        raise _too_many(most)
    stage, kind, microbatch = (np.concatenate([piece[number] for piece, _ in inside]) for number in range(3))
    overlapped = [one for _, several in inside for one in several]
    return _repeat((stage, kind, microbatch), times, int(repeated[3] or 1)), overlapped * times


def _with_hosts(schedule: Schedule) -> Schedule:
    """The schedule whose lists of offloads and reloads alone are lanes of the devices whose forwards they follow.

    ScheduleError for a list that no device's forwards precede.
    """
    rank = schedule.rank_of_row()
    hosts = np.setdiff1d(rank, rank[~np.isin(schedule.kind, HOST_KINDS)])
    device = np.cumsum(~np.isin(np.arange(schedule.ranks), hosts)) - 1
    for one in hosts.tolist():
        first = int(schedule.offsets[one])
        stage, microbatch = schedule.stage[first], schedule.microbatch[first]
        same = (schedule.stage == stage) & (schedule.microbatch == microbatch)
        forward = np.flatnonzero(same & (schedule.kind == OpKind.FORWARD))
        if not len(forward):
            raise ScheduleError(
                f"row {one + 1}: no device runs {stage}F{microbatch}, which {schedule.ops(one)[0]} follows"
            )
        device[one] = device[rank[forward[0]]]
    return replace(schedule, device=device.astype(np.int32))


def _paired(words: list[list[Op]]) -> list[bool]:
    """For each op of some words, whether it is the first of a pair."""
    return [len(ops) == 2 and place == 0 for ops in words for place in range(len(ops))]


def _repeat(pattern: Columns, times: int, step: int) -> Columns:
    """A pattern several times, with micro-batches `step` higher each time."""
    last = int(pattern[2].max(initial=0)) + (times - 1) * step
    if last >= MOST_OPS:
        raise ValueError(f"a repeated micro-batch has a number below {MOST_OPS:,}, got {last:,}")
    stage, kind, microbatch = (np.tile(column, times) for column in pattern)
    later = np.repeat(np.arange(times, dtype=np.int64) * step, len(pattern[0]))
    return stage, kind, microbatch + later.astype(np.int32)


def _ops_of(cell: str) -> list[Op]:
    """The ops of one cell: one, those of a pair, the forward first, or none where it is blank or moves data only."""
    pair = _OVERLAPPED.fullmatch(cell)
    if pair is None and cell.startswith("("):
        raise ValueError(
            f"{shown(cell)} is no pattern, which ends in how often it comes, as in (0F0 1F0)*2, and no pair, as in "
            "(0F4;1B2)OVERLAP_F_B"
        )
    parts = [part for part in (pair[1].split(";") if pair else (cell,)) if part and not _COMMUNICATION.fullmatch(part)]
    ops = sorted(map(Op.parse, parts), key=lambda op: op.kind)
    if len(ops) > 1 and (len(ops) > 2 or ops[0].kind is not OpKind.FORWARD or ops[1].kind not in BACKWARD_KINDS):
        raise ValueError(f"a pair is a forward and a backward, as in (0F4;1B2)OVERLAP_F_B, got {shown(cell)}")
    return ops
