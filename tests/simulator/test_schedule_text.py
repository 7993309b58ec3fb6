"""Tests of `simulator.schedules.text`: text lines and the CSV of torch, both ways."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from simulator import (
    COMPUTE_KINDS,
    SCHEDULES,
    Schedule,
    ScheduleError,
    build_schedule,
    from_text,
    from_torch_csv,
    read_schedule,
    to_text,
    to_torch_csv,
)
from tests.simulator.strategies import schedules


def assert_same(read: Schedule, written: Schedule) -> None:
    """Same ops and pairs on the same ranks, same counts, same replica numbers, same kind of end."""
    assert to_text(read) == to_text(written)
    assert (read.stages, read.microbatches) == (written.stages, written.microbatches)
    assert read.holders() == written.holders()
    assert read.flush is written.flush


def test_text_is_one_line_a_device_and_csv_one_row_a_rank() -> None:
    """Ops apart by spaces, device 0 first; cells as torch prints its actions."""
    schedule = build_schedule("1f1b", 2, 2)
    assert to_text(schedule) == "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n"
    assert to_torch_csv(schedule) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "pipedream",
            {},
            (
                "schedule 'pipedream' never flushes; torch's pipelines run one update after all micro-batches, "
                "which is another algorithm"
            ),
        ),
        (
            "xpipe",
            {},
            (
                "schedule 'xpipe' never flushes; torch's pipelines run one update after all micro-batches, "
                "which is another algorithm"
            ),
        ),
        (
            "1f1b-rr",
            {"replicas": (2, 1)},
            (
                "schedule '1f1b-rr' never flushes; torch's pipelines run one update after all micro-batches, "
                "which is another algorithm"
            ),
        ),
        ("fbp-as", {}, "schedule 'fbp-as' runs two lists of ops at once on a device; torch runs one per rank"),
    ],
)
def test_what_torch_cannot_run_is_no_csv(name: str, options: dict[str, object], said: str) -> None:
    """Updates amid the stream and two lanes a device would be dropped or doubled: refused, saying why."""
    with pytest.raises(ScheduleError, match=said):
        to_torch_csv(build_schedule(name, 2, 4, **options))


def test_replicas_in_turn_are_no_csv() -> None:
    """Two ranks of one stage with other micro-batches each, and no updates: torch knows no such replicas."""
    with pytest.raises(
        ScheduleError,
        match="schedule 'text' gives whole micro-batches to replicas in turn; torch's replicas all run every one",
    ):
        to_torch_csv(from_text("0F0 0B0\n0F1 0B1\n1F0 1B0 1F1 1B1\n"))


@settings(max_examples=30, deadline=None)
@given(schedule=schedules())
def test_text_round_trip(schedule: Schedule) -> None:
    """Reading what was written gives the same schedule, updates included."""
    assert_same(from_text(to_text(schedule), schedule.name), schedule)


@settings(max_examples=30, deadline=None)
@given(schedule=schedules())
def test_csv_round_trip(schedule: Schedule) -> None:
    """Reading what was written gives the same compute ops, of every schedule that torch can run."""
    runs = (schedule.replicas() == 1).all() and np.isin(schedule.kind, COMPUTE_KINDS).all()
    assume(schedule.flush and runs)
    read = from_torch_csv(to_torch_csv(schedule))
    compute = [tuple(op for op in ops if op.kind in COMPUTE_KINDS) for ops in schedule.lists()]
    assert list(read.lists()) == compute
    assert read.holders() == schedule.holders()


def test_full_csv_of_torch() -> None:
    """Transfers and sharding actions are passed over, blank cells are idle time, quoted cells and spaces are read."""
    text = (
        '0UNSHARD,0F0,0SEND_F0,,"0F1",0SEND_F1, 0RECV_B0 ,0B0,0RECV_B1,0WAIT_SEND_F0,0B1,0WAIT_REDUCE_GRAD,0RESHARD\n'
        ",1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1I1,1SEND_B1,1W1,,\n"
    )
    assert to_text(from_torch_csv(text)) == "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1I1 1W1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,zero,0B0\n", "row 1, column 2: op 'zero' is not STAGE"),
        ("0F0,0B0\n1F0,1G0\n", "row 2, column 2: op '1G0' is not STAGE"),
        ("0F0,(0F1;0X0)OVERLAP_F_B\n", "row 1, column 2: op '0X0' is not STAGE"),
        ("0F0,(0F1;0B0)OVERLAP\n", "row 1, column 2: '\\(0F1;0B0\\)OVERLAP' is no pattern"),
        ("0F0,99999999999F0\n", "row 1, column 2: op '99999999999F0' is not STAGE"),
        ("0F99999999999,0B0\n", "row 1, column 1: op '0F99999999999' is not STAGE"),
        (f"0F0,{'7' * 5000}B0\n", "row 1, column 2: op '7777"),
        (f"0F0,{'x' * 200_000}\n", "is not CSV: field larger than"),
        (f"0F0,{'x' * 100_000}\n", "row 1, column 2: op 'xxxx"),
        ("٣F0,0B0\n", "row 1, column 1: op '٣F0' is not STAGE"),
        ("0SEND_F0,0RECV_B0\n", "a schedule needs at least one op, got none"),
    ],
)
def test_faults_of_a_csv_are_placed(text: str, message: str) -> None:
    """Row and column of the first cell that is no op, in one line."""
    with pytest.raises(ScheduleError, match=message) as caught:
        from_torch_csv(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


PAIRS = "0F0 (0F1;0B0)OVERLAP_F_B 0F2 (0F3;0I1)OVERLAP_F_B 0B2 0W1 0B3\n"


def test_overlapped_pairs_are_read_and_written() -> None:
    """As torch writes them, the forward first; transfers in a pair are passed over, and what is left alone is no pair."""
    schedule = from_text(PAIRS)
    assert schedule.overlapped is not None
    assert np.flatnonzero(schedule.overlapped).tolist() == [1, 4]
    assert to_text(schedule) == to_text(from_torch_csv(to_torch_csv(schedule))) == PAIRS
    turned = from_torch_csv("0F0,(0B0;0F1)OVERLAP_F_B\n(1F0;1RECV_F1)OVERLAP_F_B,()OVERLAP_F_B\n")
    assert to_text(turned) == "0F0 (0F1;0B0)OVERLAP_F_B\n1F0\n"


def test_patterns_hold_pairs() -> None:
    """Micro-batches of both ops are one higher each time."""
    assert to_text(from_text("0F0 ((0F1;0B0)OVERLAP_F_B)*2 0B2")) == (
        "0F0 (0F1;0B0)OVERLAP_F_B (0F2;0B1)OVERLAP_F_B 0B2\n"
    )


@pytest.mark.parametrize(
    "cell", ["(0F0;1F0)OVERLAP_F_B", "(0F0;0W1)OVERLAP_F_B", "(0F0;0B1;0B2)OVERLAP_F_B", "(0B0;0B1)OVERLAP_F_B"]
)
def test_a_pair_is_a_forward_and_a_backward(cell: str) -> None:
    """Anything else is named."""
    with pytest.raises(
        ScheduleError,
        match=re.escape(
            f"row 1, column 1: a pair is a forward and a backward, as in (0F4;1B2)OVERLAP_F_B, got {cell!r}"
        ),
    ):
        from_text(cell)


def test_files_are_read_by_their_form(tmp_path: Path) -> None:
    """Commas make a CSV, spaces make text; the schedule takes the file's name."""
    schedule = build_schedule("1f1b", 2, 3)
    for name, text in (("own.csv", to_torch_csv(schedule)), ("own.txt", to_text(schedule))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        read = read_schedule(tmp_path / name)
        assert read.name == "own"
        assert_same(read, schedule)


def test_files_that_are_no_schedule_are_refused(tmp_path: Path) -> None:
    """Absent, a directory, empty, not text, nonsense: one line that begins with the path."""
    (tmp_path / "empty.csv").write_text(" \n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00,")
    (tmp_path / "nonsense.csv").write_text("0F0,what\n")
    faults = {
        "absent.csv": "No such file",
        ".": "Is a directory",
        "empty.csv": "the file is empty",
        "binary.csv": "is not a text file",
        "nonsense.csv": "row 1, column 2: op 'what'",
    }
    for name, message in faults.items():
        with pytest.raises(ScheduleError, match=message) as caught:
            read_schedule(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))
        assert "\n" not in str(caught.value)


# ---- against torch ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def visualizer() -> Any:
    """Torch's list of its own schedules' actions; the test is skipped where torch is absent."""
    return pytest.importorskip(
        "torch.distributed.pipelining._schedule_visualizer", reason="torch is not installed: its orders are not at hand"
    )


def csv_of_torch(visualizer: Any, name: str, devices: int, microbatches: int, chunks: int, **options: bool) -> str:
    """The CSV that torch writes of one of its schedules."""
    actions = visualizer.get_schedule_ops(name, devices, microbatches, chunks, **options)
    return "".join(",".join("" if one is None else str(one) for one in ops) + "\n" for ops in actions)


@pytest.mark.parametrize(
    ("torch_name", "name", "devices", "microbatches", "chunks"),
    [
        ("GPipe", "gpipe", 4, 8, 1),
        ("GPipe", "gpipe", 4, 2, 1),
        ("Interleaved1F1B", "interleaved-1f1b", 4, 8, 2),
        ("Interleaved1F1B", "interleaved-1f1b", 2, 6, 3),
        ("Interleaved1F1B", "interleaved-1f1b", 4, 10, 2),
        ("LoopedBFS", "looped-bfs", 4, 8, 2),
        ("InterleavedZeroBubble", "interleaved-zb", 4, 8, 2),
        ("InterleavedZeroBubble", "interleaved-zb", 3, 8, 3),
        ("ZBVZeroBubble", "zb-v", 4, 8, 2),
        ("ZBVZeroBubble", "zb-v", 4, 3, 2),
        ("DualPipeV", "dualpipev", 4, 10, 2),
        ("DualPipeV", "dualpipev", 2, 4, 2),
    ],
)
def test_orders_are_those_of_torch(
    visualizer: Any, torch_name: str, name: str, devices: int, microbatches: int, chunks: int
) -> None:
    """Op for op the order that torch lists for the same sizes, read from its CSV, with transfers too where torch lists them."""
    options = {"chunks": chunks} if "chunks" in SCHEDULES[name].options else {}
    ours = build_schedule(name, devices * chunks, microbatches, **options)
    for with_comms in (False, True) if chunks > 1 else (False,):
        text = csv_of_torch(visualizer, torch_name, devices, microbatches, chunks, with_comms=with_comms)
        assert ("SEND" in text) is with_comms
        assert_same(from_torch_csv(text), ours)


@pytest.mark.parametrize(("devices", "microbatches"), [(4, 8), (3, 5), (2, 2)])
def test_order_of_1f1b_is_that_of_torch(visualizer: Any, devices: int, microbatches: int) -> None:
    """Op for op, but for the last rank: torch 2.13 lists one forward too late there, up to a micro-batch that does not exist."""
    theirs = visualizer.get_schedule_ops("1F1B", devices, microbatches)
    compute = [[str(one) for one in ops if one is not None and "REDUCE" not in str(one)] for ops in theirs]
    ours = [[str(op) for op in ops] for ops in build_schedule("1f1b", devices, microbatches).lists()]
    assert ours[:-1] == compute[:-1]
    last = devices - 1
    assert ours[-1] == [f"{last}{kind}{number}" for number in range(microbatches) for kind in "FB"]


def test_torch_reads_every_cell(visualizer: Any) -> None:
    """Each cell of our CSV is an action of torch, and torch prints it alike."""
    for cell in to_torch_csv(build_schedule("interleaved-1f1b", 6, 4, chunks=3)).replace("\n", ",").split(","):
        if cell:
            assert str(visualizer._Action.from_str(cell)) == cell


# ---- repeated patterns -----------------------------------------------------------------------------------------------


def test_a_pattern_is_repeated_with_higher_micro_batches() -> None:
    """1F1B of two stages and five micro-batches: warm-up, three times the pattern and more, drain."""
    written = "0F0 (0F1 0B0)*4 0B4\n(1F0 1B0)*5\n"
    assert to_text(from_text(written)) == to_text(build_schedule("1f1b", 2, 5))
    assert to_text(from_text("(0F0 0F1 0B1 0B0)*2+2")) == "0F0 0F1 0B1 0B0 0F2 0F3 0B3 0B2\n"
    assert to_text(from_text("(0F0)*1 (0B0)*1+7")) == "0F0 0B0\n"


def test_a_pattern_of_many_ops_takes_no_longer_than_its_columns() -> None:
    """A hundred thousand repetitions in one short line."""
    schedule = from_text("(0F0 0B0)*100000")
    assert len(schedule) == 200_000
    assert (schedule.microbatches, int(schedule.microbatch[-1])) == (100_000, 99_999)
    assert schedule.flush


def test_patterns_hold_patterns_and_lines_comments(tmp_path: Path) -> None:
    """The outer one moves what the inner one has made; a comment may hold commas, a file may begin with one."""
    assert to_text(from_text("((0F0 0F1)*2+2 0B0)*2+4 # on, and on\n")) == "0F0 0F1 0F2 0F3 0B0 0F4 0F5 0F6 0F7 0B4\n"
    assert to_text(from_text("((0F1;0B0)OVERLAP_F_B)*2")) == "(0F1;0B0)OVERLAP_F_B (0F2;0B1)OVERLAP_F_B\n"
    path = tmp_path / "order.txt"
    path.write_text("# first, the forwards\n0F0 0B0\n\n# then nothing\n")
    assert to_text(read_schedule(path)) == "0F0 0B0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(((((((((0F0)*2)*2)*2)*2)*2)*2)*2)*2)*2", "patterns lie in each other 8 deep at most, got '(0F0)*2'"),
        ("((0F0)*1000)*2000", "a schedule has at most 1,048,576 ops"),
        ("0F0 (0F1 0X0)*3", "row 1, column 2: op '0X0' is not"),
        ("(0F0 0B0)*999999999", "row 1, column 1: a schedule has at most 1,048,576 ops"),
        ("0F0 ()*999999999", "row 1, column 2: a repeated pattern holds at least one op, got '()*999999999'"),
        ("(0F0)*2+99999999", "row 1, column 1: a repeated micro-batch has a number below 67,108,864, got 99,999,999"),
        ("(0F0 0B0)*0", "at least one op, got none"),
        ("(0F0 0B0)*x", "row 1, column 1: '(0F0 0B0)*x' is no pattern"),
        ("(0F0 0B0", "row 1, column 1: '(0F0' is no pattern"),
    ],
)
def test_patterns_that_say_nothing_are_refused(text: str, message: str) -> None:
    """One line: row, column, rule, value."""
    with pytest.raises(ScheduleError) as raised:
        from_text(text)
    assert message in str(raised.value)
