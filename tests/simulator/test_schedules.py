"""Tests of `simulator.schedules`: orders against golden staircases, closed forms and peaks in flight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator import (
    SCHEDULES,
    VERSION_METHODS,
    Op,
    OpKind,
    OpSeconds,
    Schedule,
    ScheduleFamily,
    Timeline,
    build_schedule,
    from_text,
    given_costs,
    lower,
    to_text,
)
from simulator.engines import recurrence
from simulator.engines import reference as simpy_engine
from simulator.schedules.schedule import check_size
from simulator.testing import check_schedule_family
from tests.records import assert_text

GOLDEN = Path(__file__).parent / "golden" / "schedules"
ENGINES = {"simpy": simpy_engine.replay, "recurrence": recurrence.replay}


def makespan(schedule: Schedule, forward: Any, backward: Any, transfer: float = 0.0, **options: Any) -> float:
    """Makespan on the recurrence."""
    costs = given_costs(schedule.stages, OpSeconds(forward, backward, transfer=transfer), devices=schedule)
    return recurrence.replay(lower(schedule, costs, **options)).makespan_seconds


# ---- golden staircases -----------------------------------------------------------------------------------------------


def staircase(schedule: Schedule) -> str:
    """One line a device, one column a second, F = B = 1 s: digits are forwards, letters the backwards of the same micro-batches.

    Where backwards are split, letters are the input gradients, capitals the weight gradients, a second each. Where a device holds
    several stages, a cell is the op's text and micro-batches keep their numbers; `&` is before the second op of an overlapped
    pair.
    """
    weight = 1.0 if (schedule.kind == OpKind.WEIGHT_GRADIENT).any() else 0.0
    costs = given_costs(schedule.stages, OpSeconds(1.0, 1.0, weight=weight), devices=schedule)
    timeline = recurrence.replay(lower(schedule, costs))
    looped = any(len(np.unique([op.stage for op in ops])) > 1 for ops in schedule.lists())
    width = 5 if looped else 1
    seconds = round(timeline.makespan_seconds)
    lines = [["." + " " * (width - 1)] * seconds for _ in range(schedule.ranks)]
    second = timeline.second_of_pair()
    for row in np.flatnonzero(timeline.compute()):
        op = Op(int(timeline.stage[row]), OpKind(int(timeline.kind[row])), int(timeline.microbatch[row]))
        letters = {OpKind.FORWARD: "0123456789", OpKind.WEIGHT_GRADIENT: "ABCDEFGHIJ"}.get(op.kind, "abcdefghij")
        cell = ("&" if second[row] else "") + str(op) if looped else letters[op.microbatch]
        lines[timeline.lane[row]][round(float(timeline.start[row])) + int(second[row])] = cell.ljust(width)
    return "\n".join("".join(line).rstrip() for line in lines) + "\n"


def golden_name(name: str, stages: int, microbatches: int, options: dict[str, Any]) -> str:
    """As in `1f1b-p4-m8.txt`: p devices, m micro-batches, c chunks, g micro-batches a group, k slices, r replicas of each stage,
    t micro-batches an update."""
    devices = stages // options.get("chunks", SCHEDULES[name].chunks)
    text = f"{name}-p{devices}-m{microbatches}"
    if "chunks" in options:
        text += f"-c{options['chunks']}"
    if "microbatch_group_size" in options:
        text += f"-g{options['microbatch_group_size']}"
    if "slices" in options:
        text += f"-k{options['slices']}"
    if "replicas" in options:
        text += "-r" + "".join(map(str, options["replicas"]))
    if "microbatches_per_minibatch" in options:
        text += f"-t{options['microbatches_per_minibatch']}"
    return text + ".txt"


STAIRCASES: list[tuple[str, int, int, dict[str, Any]]] = [
    ("gpipe", 4, 4, {}),
    ("gpipe", 4, 2, {}),
    ("gpipe", 1, 3, {}),
    ("1f1b", 4, 8, {}),
    ("1f1b", 4, 4, {}),
    ("1f1b", 4, 2, {}),
    ("1f1b", 3, 5, {}),
    ("1f1b", 1, 3, {}),
    ("eager-1f1b", 4, 8, {}),
    ("eager-1f1b", 4, 3, {}),
    ("eager-1f1b", 3, 4, {}),
    ("interleaved-1f1b", 4, 4, {"chunks": 2}),
    ("interleaved-1f1b", 8, 8, {"chunks": 2}),
    ("interleaved-1f1b", 8, 6, {"chunks": 2}),
    ("interleaved-1f1b", 8, 2, {"chunks": 2}),
    ("interleaved-1f1b", 6, 4, {"chunks": 3}),
    ("interleaved-1f1b", 4, 5, {"chunks": 2, "microbatch_group_size": 3}),
    ("interleaved-zb", 8, 8, {"chunks": 2}),
    ("interleaved-zb", 4, 3, {"chunks": 2}),
    ("looped-bfs", 4, 4, {"chunks": 2}),
    ("hanayo", 4, 2, {"chunks": 2}),
    ("hanayo", 8, 3, {"chunks": 4}),
    ("hanayo", 2, 2, {"chunks": 2}),
    ("seq1f1b", 2, 2, {"slices": 2}),
    ("seq1f1b", 4, 2, {"slices": 3}),
    ("seq1f1b", 3, 1, {"slices": 2}),
    ("looped-bfs", 6, 2, {"chunks": 2}),
    ("chimera", 4, 4, {}),
    ("chimera", 6, 8, {}),
    ("chimera", 3, 4, {}),
    ("chimera", 1, 3, {}),
    ("zb-h1", 4, 6, {}),
    ("zb-h1", 4, 2, {}),
    ("zb-h1", 1, 3, {}),
    ("zb-h2", 4, 9, {}),
    ("zb-h2", 4, 2, {}),
    ("zb-v", 4, 4, {}),
    ("zb-v", 8, 8, {}),
    ("zb-v", 8, 2, {}),
    ("zb-v", 2, 2, {}),
    ("v-half", 8, 8, {}),
    ("v-half", 6, 2, {}),
    ("v-half", 2, 2, {}),
    ("v-min", 8, 8, {}),
    ("v-min", 6, 2, {}),
    ("v-min", 2, 2, {}),
    ("dualpipe", 4, 8, {}),
    ("dualpipe", 4, 3, {}),
    ("dualpipe", 2, 1, {}),
    ("dualpipev", 4, 4, {}),
    ("dualpipev", 8, 3, {}),
    ("dualpipev", 2, 3, {}),
    ("pipedream", 4, 8, {}),
    ("pipedream", 4, 2, {}),
    ("1f1b-as", 4, 4, {}),
    ("1f1b-sno", 4, 4, {}),
    ("1f1b-so", 4, 8, {}),
    ("1f1b-rr", 2, 8, {"replicas": (2, 1)}),
    ("1f1b-rr", 2, 6, {"replicas": (1, 2)}),
    ("1f1b-rr", 3, 5, {"replicas": (2, 1, 1)}),
    *[(name, 4, 8, {"microbatches_per_minibatch": 2}) for name in VERSION_METHODS],
    ("xpipe", 4, 3, {"microbatches_per_minibatch": 2}),
]
STAIRCASES += [
    (name, 4 * family.chunks, 8, {})
    for name, family in SCHEDULES.items()
    if name not in {one for one, *_ in STAIRCASES} and "lanes" not in family.options
]
"""Shapes of the golden files; a family of one op at a time that names none has one of four devices."""


@pytest.mark.parametrize(("name", "stages", "microbatches", "options"), STAIRCASES)
def test_golden_staircase(name: str, stages: int, microbatches: int, options: dict[str, Any]) -> None:
    """The order, drawn with F = B = 1 s and free transfers, is the staircase of the golden file."""
    drawn = staircase(build_schedule(name, stages, microbatches, **options))
    assert_text(GOLDEN / golden_name(name, stages, microbatches, options), drawn)


def test_every_golden_file_has_its_test() -> None:
    """No golden file lies about unread."""
    assert {path.name for path in GOLDEN.iterdir()} <= {golden_name(*case) for case in STAIRCASES}


# ---- closed forms ----------------------------------------------------------------------------------------------------

SHAPES = [(1, 1), (1, 5), (2, 1), (3, 2), (4, 8), (5, 7)]
TIMES = [(1.0, 2.0), (2.0, 1.0)]


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize(("f", "b"), TIMES)
@pytest.mark.parametrize("c", [0.0, 0.5, 3.0])
def test_gpipe_closed_form(p: int, m: int, f: float, b: float, c: float) -> None:
    """(m + p - 1)(F + B) + 2(p - 1)c, fewer micro-batches than stages included."""
    expected = (m + p - 1) * (f + b) + 2 * (p - 1) * c
    assert makespan(build_schedule("gpipe", p, m), f, b, c) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize(("f", "b"), TIMES)
def test_1f1b_takes_as_long_as_gpipe_where_transfers_are_free(p: int, m: int, f: float, b: float) -> None:
    """(m + p - 1)(F + B) at c = 0, fewer micro-batches than stages included; the eager form alike."""
    expected = (m + p - 1) * (f + b)
    assert makespan(build_schedule("1f1b", p, m), f, b) == pytest.approx(expected, rel=1e-12)
    assert makespan(build_schedule("eager-1f1b", p, m), f, b) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("p", "m"), [(2, 8), (3, 6), (4, 4), (8, 64)])
@pytest.mark.parametrize("c", [0.1, 0.5, 1.0])
def test_1f1b_with_transfers_where_stages_divide_microbatches(engine: str, p: int, m: int, c: float) -> None:
    """(m + p - 1)(F + B) + 2c((p - 1)m/p + (p - 2)) where p divides m; F = 1, B = 2. 8, 64 and 0.1: the reference's 225.4 s."""
    expected = 3 * (m + p - 1) + 2 * c * ((p - 1) * m / p + (p - 2))
    program = lower(build_schedule("1f1b", p, m), given_costs(p, OpSeconds(1.0, 2.0, transfer=c)))
    assert ENGINES[engine](program).makespan_seconds == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("communication", "expected"), [("send-blocking", [226.9, 38.7]), ("both-blocking", [240.8, 44.4])]
)
def test_blocking_transfers(engine: str, communication: Any, expected: list[float]) -> None:
    """1F1B, F = 1, B = 2, where the sender's device, or both devices, are busy for a transfer: 8 stages, 64 micro-batches and
    0.1 s; 4 stages, 8 micro-batches and 0.3 s (BaPipe's 1F1B-SNO: 38.7)."""
    for (p, m, c), seconds in zip(((8, 64, 0.1), (4, 8, 0.3)), expected, strict=True):
        costs = given_costs(p, OpSeconds(1.0, 2.0, transfer=c))
        program = lower(build_schedule("1f1b", p, m), costs, communication=communication)
        assert ENGINES[engine](program).makespan_seconds == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 9), (4, 3), (4, 8)])
@pytest.mark.parametrize("c", [0.1, 0.5])
def test_eager_1f1b_hides_transfers_up_to_half_a_forward(p: int, m: int, c: float) -> None:
    """(m + p - 1)(F + B) + 2(p - 1)c while c <= F/2; p = 4, m = 8, c = 0.3 is BaPipe's 1F1B-SO of 34.8 s."""
    expected = 3 * (m + p - 1) + 2 * (p - 1) * c
    assert makespan(build_schedule("eager-1f1b", p, m), 1.0, 2.0, c) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (3, 2, 6), (4, 3, 8), (16, 4, 128)])
def test_interleaved_1f1b_closed_form(p: int, v: int, m: int) -> None:
    """m·v·(F + B) + (p - 1)(F + B) where p divides m: 1581 for 16, 4, 128."""
    schedule = build_schedule("interleaved-1f1b", p * v, m, chunks=v)
    assert makespan(schedule, 1.0, 2.0) == pytest.approx(3 * (m * v + p - 1), rel=1e-12)


# ---- peaks in flight, warm-ups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_peak_in_flight(p: int, m: int) -> None:
    """Stage s holds at most min(p - s, m) micro-batches in 1F1B, min(2(p - s) - 1, m) in its eager form, m in GPipe."""

    def peak(name: str) -> list[int]:
        program = lower(build_schedule(name, p, m), given_costs(p, OpSeconds(1.0, 2.0, transfer=0.25)))
        return [int(count) for count in recurrence.replay(program).peak_in_flight()]

    assert peak("1f1b") == [min(p - s, m) for s in range(p)]
    assert peak("eager-1f1b") == [min(2 * (p - s) - 1, m) for s in range(p)]
    assert peak("gpipe") == [m] * p


# ---- every family ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_family_keeps_its_contract(name: str) -> None:
    """Orders of many shapes, on every engine, and read from their texts."""
    if name == "1f1b-rr":
        assert check_schedule_family(name, [(3, 4), (3, 6), (3, 7)], replicas=(1, 2, 1)) == 3
    else:
        assert check_schedule_family(name) >= 9
    if "chunks" in SCHEDULES[name].options:
        several = 2 * SCHEDULES[name].chunks
        assert check_schedule_family(name, [(2 * several, 3), (several, 2)], chunks=several) == 2


def forgets(stages: int, microbatches: int) -> Schedule:
    """1F1B without its last backward."""
    return from_text(to_text(build_schedule("1f1b", stages, microbatches)).rsplit(" ", 1)[0])


def waits_for_itself(stages: int, microbatches: int) -> Schedule:
    """Every device begins with the backward."""
    return from_text("\n".join(f"{stage}B0 {stage}F0" for stage in range(stages)))


def at_random(stages: int, microbatches: int) -> Schedule:
    """GPipe and 1F1B in turn."""
    calls.append(stages)
    return build_schedule("gpipe" if len(calls) % 2 else "1f1b", stages, microbatches)


calls: list[int] = []


def for_none(stages: int, microbatches: int) -> Schedule:
    """Of no size."""
    raise ValueError("other sizes\nare asked for" if stages == 8 else "other sizes are asked for")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (forgets, "1B0|0B0"),
        (waits_for_itself, "deadlock|wait"),
        (at_random, "it gives two orders"),
        (for_none, "more than one line"),
        (ScheduleFamily(SCHEDULES["pipedream"].build, "x"), "do not flush"),
    ],
)
def test_a_schedule_without_what_it_owes_is_named(made: Any, said: str) -> None:
    """An order that is not complete, or cannot run, or is another one each time, does not pass."""
    with pytest.raises((AssertionError, ValueError), match=said):
        check_schedule_family(made)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("zigzag", 2, 2), {}, "schedule 'zigzag' is unknown; choices: 1f1b"),
        (("1f1b", 0, 2), {}, "stages must be at least 1, got 0"),
        (("1f1b", 2, 0), {}, "micro-batches must be at least 1, got 0"),
        (("1f1b", 2, 2), {"chunks": 2}, "schedule '1f1b' does not take chunks; it takes no options"),
        (
            ("interleaved-1f1b", 5, 2),
            {"chunks": 2},
            r"interleaved-1f1b needs stages divisible by chunks \(stages per device\), got 5 stages and 2 chunks",
        ),
        (("interleaved-1f1b", 4, 2), {"chunks": 0}, "must be at least 1, got 0"),
        (("1f1b-rr", 2, 2), {"replicas": (1,)}, r"one replica count of at least 1 for each of 2 stages, got \[1\]"),
        (("1f1b-rr", 2, 2), {"replicas": (1, 0)}, r"got \[1, 0\]"),
    ],
)
def test_impossible_schedules_are_refused(arguments: Any, options: dict[str, Any], message: str) -> None:
    """Unknown names and options and counts that do not fit are refused in one line with the value and the rule."""
    with pytest.raises(ValueError, match=message) as caught:
        build_schedule(*arguments, **options)
    assert "\n" not in str(caught.value)


# ---- the reference cases ---------------------------------------------------------------------------------------------


TORCH = {"LoopedBFS": "looped-bfs", "ZBVZeroBubble": "zb-v", "InterleavedZeroBubble": "interleaved-zb"}


def replay_case(case: dict[str, Any], engine: str) -> Timeline:
    """One entry of schedule_cases.json on one engine."""
    name = TORCH.get(case["schedule"], case["schedule"])
    chunks = case.get("chunks_per_device", 1)
    options = {"chunks": chunks} if "chunks" in SCHEDULES[name].options else {}
    stages = case["devices"] * chunks
    schedule = build_schedule(name, stages, case["microbatches"], **options)
    if "sizes" in case:
        costs = given_costs(
            stages,
            OpSeconds(case["F_per_sample"], case["B_per_sample"], transfer=case["p2p_per_sample"]),
            per_sample=True,
        )
        return ENGINES[engine](lower(schedule, costs, forward_sizes=case["sizes"]))
    costs = given_costs(stages, OpSeconds(case["F"], case["B"], weight=case["W"] or 0.0, transfer=case["p2p"]))
    return ENGINES[engine](lower(schedule, costs))


@pytest.mark.parametrize("engine", ENGINES)
def test_reference_cases(shared_data: Path, engine: str) -> None:
    """Every entry of schedule_cases.json whose family is here: makespan within 1e-9, bubbles, ops and peaks as printed."""
    known = 0
    for case in json.loads((shared_data / "schedule_cases.json").read_text(encoding="utf-8")):
        if case["schedule"] not in (*SCHEDULES, *TORCH):
            continue
        known += 1
        if engine == "simpy" and case["devices"] * case["microbatches"] > 300:
            continue  # the large ones on the recurrence alone
        timeline = replay_case(case, engine)
        bubble = timeline.bubble()
        assert timeline.makespan_seconds == pytest.approx(case["expected_makespan"], rel=1e-9), case["name"]
        assert bubble.idle_over_makespan == pytest.approx(case["expected_bubble"], abs=6e-7), case["name"]
        if "ops" in case:
            assert timeline.ops == case["ops"], case["name"]
            ideal = timeline.busy_seconds().max()
            longest = ideal / (1 - bubble.longest_stage)
            assert longest == pytest.approx(case["expected_longest_stage"], rel=1e-9), case["name"]
        if "expected_peak_inflight_samples" in case:
            peaks = timeline.peak_in_flight(unit="samples").tolist()
            assert peaks == case["expected_peak_inflight_samples"], case["name"]
    assert known >= 70


@pytest.mark.parametrize("error", [AttributeError, OSError, ValueError])
def test_memory_that_the_system_does_not_say_has_no_end(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The number of ops alone is then checked."""

    def silent(name: str) -> int:
        raise error(name)

    monkeypatch.setattr("os.sysconf", silent)
    check_size(4096, 8192)
    with pytest.raises(ValueError, match="at most 67,108,864 ops"):
        check_size(4096, 8193)


def test_sizes_of_schedules_are_checked_before_any_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """67,108,864 ops are the most, a forward and a backward of each stage and micro-batch, and 150 bytes of memory an op."""
    memory = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**40}
    monkeypatch.setattr("os.sysconf", lambda name: memory[name])
    check_size(4096, 8192)
    with pytest.raises(ValueError, match=r"at most 67,108,864 ops: .* of 4096 stages and 8193 micro-batches are more"):
        check_size(4096, 8193)
    memory = {"SC_PAGE_SIZE": 300, "SC_PHYS_PAGES": 2}
    check_size(1, 2)
    memory = {"SC_PAGE_SIZE": 599, "SC_PHYS_PAGES": 1}
    with pytest.raises(
        ValueError,
        match=(
            r"a forward and a backward of 1 stages and 2 micro-batches need about 5.59e-07 GiB of memory, "
            r"this machine has 5.58e-07 GiB"
        ),
    ):
        check_size(1, 2)
