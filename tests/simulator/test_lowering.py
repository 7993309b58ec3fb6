"""Tests of `simulator.lowering.lower`: who waits for whom, sample ranges, blocking transfers, replicas, updates."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hardware_profiles import Channel, Floats, Integers
from simulator import (
    Bucket,
    Costs,
    DeadlockError,
    OpKind,
    OpSeconds,
    Program,
    Schedule,
    ScheduleError,
    Transfer,
    build_schedule,
    from_text,
    given_costs,
    lower,
)
from simulator.engines import event_loop, recurrence
from simulator.engines import reference as engine
from simulator.engines.recurrence import replay
from simulator.lowering.program import LaneKind
from simulator.lowering.waits import Waits, sendings
from simulator.schedules.ops import Op
from simulator.schedules.schedule import columns_of, from_ranks
from tests.simulator.strategies import HandCosts

F, B = OpKind.FORWARD, OpKind.BACKWARD


def lane(program: Program, number: int) -> list[str]:
    """The tasks of a lane as text."""
    return [program.name_of(t) for t in range(int(program.lane_offsets[number]), int(program.lane_offsets[number + 1]))]


def spans(program: Program, stage: int, kind: OpKind) -> list[tuple[float, float]]:
    """(start, end) of a stage's ops of one kind, by start."""
    timeline = replay(program)
    rows = (timeline.stage == stage) & (timeline.kind == kind)
    return sorted(zip(timeline.start[rows].tolist(), timeline.end[rows].tolist(), strict=True))


class Bare(Costs):
    """A second of a forward and two of a backward on a device of each stage, and nothing else said."""

    channels: tuple[Channel, ...] = ()

    def device(self, stage: int, replica: int) -> int:
        return stage

    def seconds(self, kind: OpKind, stage: int, replica: int, samples: Integers) -> Floats:
        return np.full(len(samples), {F: 1.0, B: 2.0}[kind])

    def transfer(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> Transfer:
        return Transfer(0.0, 0.0)


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        (build_schedule("seq1f1b", 2, 2, slices=2), 15.0),  # four slices and the one before them, of 3 s
        (
            from_text("0F0 0F1 0B0 0B1\n1F0 (1F1;1B0)OVERLAP_F_B 1B1"),
            9.0,
        ),  # 1 s to the last stage, 1 + 3 + 2, and 2 back
    ],
)
def test_costs_that_say_no_more_have_slices_alike_and_ops_that_follow(schedule: Schedule, seconds: float) -> None:
    """A pair takes what its ops take one after the other."""
    assert replay(lower(schedule, Bare())).makespan_seconds == seconds


# ---- samples ---------------------------------------------------------------------------------------------------------


def test_an_op_waits_for_every_op_that_delivers_its_samples() -> None:
    """Stage 0 runs 1 and 3 samples, stage 1 runs 2 and 2, a second each: stage 1 begins when 2 samples are there, at 4."""
    costs = given_costs(2, OpSeconds(1.0, 1.0), per_sample=True)
    program = lower(build_schedule("gpipe", 2, 2), costs, forward_sizes=[[1, 3], [2, 2]])
    assert spans(program, 0, F) == [(0.0, 1.0), (1.0, 4.0)]
    assert spans(program, 1, F) == [(4.0, 6.0), (6.0, 8.0)]
    assert spans(program, 1, B) == [(8.0, 10.0), (10.0, 12.0)]
    assert spans(program, 0, B) == [(10.0, 11.0), (12.0, 15.0)]


def test_stages_may_cut_the_minibatch_into_different_numbers_of_microbatches() -> None:
    """Stage 0 runs 4 samples at once, stage 1 in 2 halves: both halves wait for the whole, both gradients for the way back."""
    schedule = from_text("0F0 0B0\n1F0 1F1 1B0 1B1")
    program = lower(schedule, given_costs(2, OpSeconds(1.0, 1.0), per_sample=True), forward_sizes=[[4], [2, 2]])
    assert spans(program, 1, F) == [(4.0, 6.0), (6.0, 8.0)]
    assert spans(program, 0, B) == [(12.0, 16.0)]


def test_backward_sizes_of_their_own() -> None:
    """Forward 1 + 3, backward 2 + 2: the first backward covers samples of both forwards, so it needs both."""
    costs = given_costs(1, OpSeconds(1.0, 1.0), per_sample=True)
    program = lower(from_text("0F0 0F1 0B0 0B1"), costs, forward_sizes=[1, 3], backward_sizes=[2, 2])
    assert spans(program, 0, F) == [(0.0, 1.0), (1.0, 4.0)]
    assert spans(program, 0, B) == [(4.0, 6.0), (6.0, 8.0)]
    with pytest.raises(ScheduleError, match=r"device 0, position 1: op 0B0 waits for 0F1 \(device 0, position 2\)"):
        lower(from_text("0F0 0B0 0F1 0B1"), costs, forward_sizes=[1, 3], backward_sizes=[2, 2])


def test_one_transfer_carries_all_that_a_device_needs_of_an_op() -> None:
    """Stage 0 gives 4 samples to two ops of stage 1: one transfer of 4 samples' seconds and bytes, for both."""
    costs = HandCosts((0.25, 0.25), (0.25, 0.25), transfer_seconds=0.5, transfer_bytes=10.0)
    schedule = from_text("0F0 0B0\n1F0 1F1 1B0 1B1")
    program = lower(schedule, costs, forward_sizes=[[4], [2, 2]])
    assert spans(program, 1, F) == [(3.0, 3.5), (3.5, 4.0)]
    transfers = replay(program).transfers
    assert sorted(transfers.size_bytes.tolist()) == [20.0, 20.0, 40.0]


# ---- replicas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replay", [engine.replay, recurrence.replay])
def test_sample_numbers_beyond_32_bits(replay: Any) -> None:
    """4 micro-batches of 1,073,741,826 samples at 1 + 2 ns on 2 stages take (4 + 1) · 3 · 1.073741826 s on either engine."""
    size = 1_073_741_826
    costs = given_costs(2, OpSeconds(1e-9, 2e-9), per_sample=True)
    timeline = replay(lower(build_schedule("1f1b", 2, 4), costs, forward_sizes=[size] * 4))
    assert timeline.makespan_seconds == pytest.approx(15 * size * 1e-9, rel=1e-12)
    assert timeline.first_sample.max() == 3 * size
    assert timeline.peak_in_flight(unit="samples").tolist() == [2 * size, size]


@pytest.mark.parametrize("sizes", [[2**52, 1], [2**62] * 4, [2**70, 1]])
def test_more_samples_than_float64_counts_are_refused(sizes: list[int]) -> None:
    """The sum of a mini-batch is at most 2^52 samples."""
    with pytest.raises(
        ValueError, match=r"forward sizes of stage 0 must (sum to at most 2\^52|be whole) samples"
    ) as caught:
        lower(build_schedule("gpipe", 1, len(sizes)), given_costs(1, OpSeconds(1.0, 1.0)), forward_sizes=sizes)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("seconds", [OpSeconds(1e308, 1e308), OpSeconds(1e299, 1e299, transfer=1e300)])
def test_durations_whose_sum_could_overflow_are_refused(seconds: OpSeconds) -> None:
    """All tasks and transfers of a program together take at most 1e300 seconds, said in one line."""
    with pytest.raises(ValueError, match=r"must sum to at most 1e\+300 seconds, got (inf|[1-9.]+e\+30[01])$"):
        lower(build_schedule("gpipe", 2, 4), given_costs(2, seconds))


def test_what_tasks_take_at_least_counts_among_durations() -> None:
    """A task that sends while it computes may take as long as its transfer, which is no duration of its own."""
    program = lower(build_schedule("gpipe", 2, 4), given_costs(2, OpSeconds(1.0, 1.0)))
    with pytest.raises(ValueError, match=r"must sum to at most 1e\+300 seconds, got 1\.[0-9]+e\+301$"):
        replace(program, least_seconds=np.full(len(program), 1e300))


@pytest.mark.parametrize(("count", "size"), [(1, 2), (2, 1), (3, 7), (5, 2)])
def test_replicas_tile_every_microbatch(count: int, size: int) -> None:
    """Whatever the numbers, the replicas' ranges are disjoint, differ by at most one sample and cover all; none takes no time."""
    program = lower(
        build_schedule("1f1b", 1, 3), HandCosts((1.0,), (2.0,)), forward_sizes=[size] * 3, split_replicas=[count]
    )
    for kind in (F, B):
        for microbatch in range(3):
            rows = (program.kind == kind) & (program.microbatch == microbatch)
            covered = [
                sample
                for first, samples in zip(program.first_sample[rows], program.samples[rows], strict=True)
                for sample in range(first, first + samples)
            ]
            assert sorted(covered) == list(range(size * microbatch, size * (microbatch + 1)))
            assert program.samples[rows].max() - program.samples[rows].min() <= 1
    assert (program.seconds[program.samples == 0] == 0.0).all()
    assert program.lane_device.tolist() == [100 * replica for replica in range(count)]


def test_the_most_samples_are_told_apart() -> None:
    """2^52 samples from 60 replicas to 70: as many transfers as pairs that share a sample, each of its own samples."""
    total = 2**52
    costs = HandCosts((1e-15, 1e-15), (1e-15, 1e-15), transfer_bytes=1.0)
    program = lower(build_schedule("gpipe", 2, 1), costs, forward_sizes=[total], split_replicas=[60, 70])
    downwards = program.transfer[(program.kind == F)[program.consumers()] & (program.transfer > 0)]
    bounds = sorted({total * r // 60 for r in range(61)} | {total * r // 70 for r in range(71)})
    assert sorted(program.transfer_bytes[downwards].tolist()) == sorted(float(b - a) for a, b in pairwise(bounds))


def test_a_replica_sends_only_the_samples_that_the_other_side_needs() -> None:
    """6 samples, 2 replicas to 3: each of the 3 takes 2 samples; the middle one takes 1 from either side."""
    costs = HandCosts((1.0, 1.0), (1.0, 1.0), transfer_bytes=1.0, transfer_seconds=0.1)
    program = lower(build_schedule("gpipe", 2, 1), costs, forward_sizes=[6], split_replicas=[2, 3])
    transfers = replay(program).transfers
    down = program.kind[transfers.producer] == F
    moved = zip(
        program.replica[transfers.producer][down].tolist(),
        program.replica[transfers.consumer][down].tolist(),
        transfers.size_bytes[down].tolist(),
        strict=True,
    )
    assert sorted(moved) == [(0, 0, 2.0), (0, 1, 1.0), (1, 1, 1.0), (1, 2, 2.0)]


def test_what_replicas_that_lie_alike_take_is_asked_once() -> None:
    """64 devices that share 4 micro-batches of 64 samples ask for one forward and one backward, and every op takes that long."""
    asked = []

    class Counting(HandCosts):
        def seconds(self, kind: OpKind, stage: int, replica: int, samples: Any) -> Any:
            asked.append((kind, samples.tolist()))
            return super().seconds(kind, stage, replica, samples)

    program = lower(build_schedule("1f1b", 1, 4), Counting((0.5,), (1.0,)), forward_sizes=[64] * 4, split_replicas=[64])
    assert asked == [(F, [1]), (B, [1])]
    assert [set(program.seconds[program.kind == kind].tolist()) for kind in (F, B)] == [{0.5}, {1.0}]


def test_gradients_of_replicas_are_reduced_on_a_lane_of_their_own() -> None:
    """One lane a replicated stage, one task a bucket; backward falls into parts by the buckets' shares."""
    buckets = {0: (Bucket(0.25, 3.0, (0,)), Bucket(0.75, 1.0, (0,)))}
    program = lower(
        build_schedule("gpipe", 2, 1),
        HandCosts((1.0, 1.0), (4.0, 4.0), stage_buckets=buckets),
        forward_sizes=[2],
        split_replicas=[2, 1],
        updates=True,
    )
    assert program.lane_kind.tolist() == [LaneKind.COMPUTE] * 3 + [LaneKind.COLLECTIVE]
    assert program.lane_route == ((), (), (), (0,))
    assert lane(program, 0) == ["0F0", "0B0", "0B0", "0U0"]
    assert lane(program, 3) == ["0R0", "0R0"]
    assert program.seconds[program.kind == B].tolist() == [1.0, 3.0, 1.0, 3.0, 8.0]


# ---- transfers -------------------------------------------------------------------------------------------------------


def test_no_transfer_within_a_device() -> None:
    """Two stages of one device pass tensors on at once."""
    program = lower(build_schedule("looped-bfs", 2, 2, chunks=2), given_costs(2, OpSeconds(1.0, 1.0, transfer=9.0)))
    assert replay(program).makespan_seconds == 8.0
    assert len(replay(program).transfers) == 0


def test_send_blocking_tasks() -> None:
    """Each op whose output moves is followed by its send; the receiver has no task."""
    program = lower(
        build_schedule("1f1b", 2, 2), given_costs(2, OpSeconds(1.0, 2.0, transfer=0.5)), communication="send-blocking"
    )
    assert lane(program, 0) == ["0F0", "0S0", "0F1", "0S1", "0B0", "0B1"]
    assert lane(program, 1) == ["1F0", "1B0", "1S0", "1F1", "1B1", "1S1"]
    assert spans(program, 1, F)[0] == (1.5, 2.5)
    assert (program.seconds[program.kind == OpKind.SEND] == 0.5).all()


def test_both_blocking_tasks() -> None:
    """The receiver's device is then busy as long, right before its op."""
    program = lower(
        build_schedule("1f1b", 2, 2), given_costs(2, OpSeconds(1.0, 2.0, transfer=0.5)), communication="both-blocking"
    )
    assert lane(program, 0) == ["0F0", "0S0", "0F1", "0S1", "0V0", "0B0", "0V1", "0B1"]
    assert lane(program, 1) == ["1V0", "1F0", "1B0", "1S0", "1V1", "1F1", "1B1", "1S1"]
    assert spans(program, 1, F)[0] == (2.0, 3.0)


# ---- updates ---------------------------------------------------------------------------------------------------------


def test_a_flushed_schedule_ends_in_one_update_a_stage() -> None:
    """One update for each stage of a device, at the end; none unless asked for."""
    schedule = build_schedule("interleaved-1f1b", 4, 2, chunks=2)
    costs = given_costs(4, OpSeconds(1.0, 1.0, update=[0.1, 0.2, 0.3, 0.4]), devices=schedule)
    program = lower(schedule, costs, updates=True)
    assert lane(program, 0)[-2:] == ["0U0", "2U0"]
    assert lane(program, 1)[-2:] == ["1U0", "3U0"]
    assert program.seconds[program.kind == OpKind.UPDATE].tolist() == [0.1, 0.3, 0.2, 0.4]
    assert not (lower(schedule, costs).kind == OpKind.UPDATE).any()


def test_an_asynchronous_schedule_brings_its_own_updates() -> None:
    """`updates` adds none to a schedule that has them, built or read from text."""
    schedule = build_schedule("pipedream", 2, 3)
    costs = given_costs(2, OpSeconds(1.0, 1.0, update=0.5))
    for one in (schedule, from_text("0F0 0F1 0B0 0U0 0F2 0B1 0U1 0B2 0U2\n1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2")):
        program = lower(one, costs, updates=True)
        assert np.count_nonzero(program.kind == OpKind.UPDATE) == 6


@pytest.mark.parametrize("split", [{}, {"forward_sizes": [2], "split_replicas": [2]}], ids=["one", "replicas"])
def test_a_list_without_ops_is_a_lane_on_which_nothing_runs(split: Any) -> None:
    """F 1 s, B 2 s a sample; two replicas have one sample each of two."""
    nothing = np.zeros(0, dtype=np.int64)
    schedule = from_ranks("idle", [columns_of((Op(0, F, 0), Op(0, B, 0))), (nothing,) * 3])
    assert schedule.holders() == ((0,),)
    program = lower(schedule, HandCosts((1.0,), (2.0,)), **split)
    for run in (engine.replay, recurrence.replay, event_loop.replay):
        assert run(program).makespan_seconds == 3.0


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"communication": "telepathy"}, "communication 'telepathy' is unknown; choices: overlapped, send-blocking"),
        ({"forward_sizes": [1, 2, 3]}, "forward sizes need 2 micro-batches, got 3"),
        ({"forward_sizes": []}, "forward sizes need 2 micro-batches, got 0"),
        (
            {"forward_sizes": [[0] * 9, [1, 1]]},
            r"forward sizes of stage 0 must be at least 1 sample each, got \[0, 0, 0, 0, 0, 0, 0, 0\], and 1 more$",
        ),
        ({"forward_sizes": [1, 0]}, r"forward sizes of stage 0 must be at least 1 sample each, got \[1, 0\]"),
        ({"forward_sizes": [1, 0.5]}, r"forward sizes of stage 0 must be whole samples, got \[1\.0, 0\.5\]"),
        (
            {"forward_sizes": [2**51, 2**51 + 1]},
            r"forward sizes of stage 0 must sum to at most 2\^52 samples, got 4\.5036e\+15",
        ),
        ({"forward_sizes": [[], [1, 1]]}, r"forward sizes of stage 0 must be at least 1 sample each, got \[\]"),
        ({"forward_sizes": [[1, 1]]}, "forward sizes need one list for each of 2 stages, got 1 lists"),
        ({"forward_sizes": [[1, 1], [1, 2]]}, "every stage must cover the same mini-batch"),
        ({"forward_sizes": [[1, 1], [2]]}, "device 1, position 1: op 1F1 is one too many, stage 1 has 1 micro-batches"),
        (
            {"forward_sizes": [1, 2], "backward_sizes": [2, 2]},
            (
                "backward sizes of stage 0 sum to 4 samples, those of stage 0 forward to 3; every stage must "
                "cover the same mini-batch"
            ),
        ),
        ({"split_replicas": [1]}, r"split replicas need a count of at least 1 for each of 2 stages, got \[1\]"),
        ({"split_replicas": [1, 0]}, r"split replicas need a count of at least 1 for each of 2 stages, got \[1, 0\]"),
        ({"forward_sizes": [[1, 1, 1], [1, 1, 1]]}, "device 0: op 0F2 is missing"),
        ({"forward_sizes": [1.5, 1.5]}, "sizes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    """Each rule is stated with the value, in one line."""
    with pytest.raises(ValueError, match=message) as caught:
        lower(build_schedule("gpipe", 2, 2), given_costs(2, OpSeconds(1.0, 1.0)), **options)
    assert "\n" not in str(caught.value)


def test_updates_that_wait_for_their_own_round_are_a_deadlock() -> None:
    """Replicas that take turns reduce their gradients together: an update before the last of them never comes."""
    costs = HandCosts((1.0,), (1.0,), stage_buckets={0: (Bucket(1.0, 1.0),)})
    second = "0F1 0B1 0U1 0F3 0B3 0U3"
    lower(from_text("0F0 0B0 0U0 0F2 0B2 0U2\n" + second), costs)
    said = r"device 0, position 1: op 0U0 waits for 0R0 .*; device 1, position 2: op 0U1 waits for 0R0"
    with pytest.raises(DeadlockError, match=said):
        lower(from_text("0F0 0U0 0B0 0F2 0B2 0U2\n" + second), costs)


def test_two_kinds_of_replication_are_refused() -> None:
    """Round robin and split exclude each other; stages of one device have one number of replicas."""
    with pytest.raises(ValueError, match="cannot split micro-batches over replicas as well"):
        lower(build_schedule("1f1b-rr", 1, 4, replicas=(2,)), HandCosts((1.0,), (1.0,)), split_replicas=[2])
    with pytest.raises(ValueError, match=r"the stages of device 0 must have one number of replicas, got \[1, 2\]"):
        lower(build_schedule("looped-bfs", 2, 1, chunks=2), HandCosts((1.0,) * 2, (1.0,) * 2), split_replicas=[1, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forward": [1.0, 2.0]}, "forward needs one number or one for each of 3 stages, got 2 numbers"),
        ({"forward": -1.0}, "forward of stage 0 must be a finite number of at least 0, got -1.0"),
        ({"backward": [1.0, float("nan"), 1.0]}, "backward of stage 1 must be a finite number of at least 0, got nan"),
        ({"transfer": float("inf")}, "transfer of boundary 0 must be a finite number of at least 0, got inf"),
    ],
)
def test_given_costs_are_checked(arguments: dict[str, Any], message: str) -> None:
    """Numbers are finite and not negative, one or one a stage."""
    with pytest.raises(ValueError, match=message):
        given_costs(3, OpSeconds(**{"forward": 1.0, "backward": 1.0, **arguments}))


@pytest.mark.parametrize("seed", range(2))
def test_dependencies_of_one_producer_class_and_receiver_are_one_delivery(seed: int) -> None:
    """Random dependencies of 12 tasks on 3 lanes: grouped by producer, class of transfer, and receiving lane where they move."""
    rng = np.random.default_rng(seed)
    program = lower(
        from_text("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n2F0 2F1 2B0 2B1"),
        given_costs(3, OpSeconds(1.0, 1.0, transfer=1.0)),
    )
    counts = rng.integers(0, 6, len(program))
    program = replace(
        program,
        dependency_offsets=np.concatenate([[0], np.cumsum(counts)]),
        dependency=rng.integers(0, len(program), counts.sum(), dtype=np.int32),
        transfer=rng.integers(0, 3, counts.sum(), dtype=np.int32),
        transfer_seconds=np.array([0.0, 1.0, 2.0]),
        transfer_bytes=np.zeros(3),
        transfer_route=((), (), ()),
    )
    receivers = np.repeat(np.arange(len(program)) // 4, counts).tolist()
    moved = zip(program.dependency.tolist(), program.transfer.tolist(), receivers, strict=True)
    wanted: dict[tuple[int, int, int], list[int]] = {}
    for row, (producer, transfer, receiver) in enumerate(moved):
        wanted.setdefault((producer, transfer, receiver if transfer else -1), []).append(row)
    found = program.deliveries()
    keys = sorted(wanted, key=lambda key: (key[0], wanted[key][0]))
    rows = [found.rows[a:b].tolist() for a, b in pairwise(found.row_offsets.tolist())]
    assert rows == [wanted[key] for key in keys]
    assert found.transfer.tolist() == [transfer for _, transfer, _ in keys]
    assert np.diff(found.offsets).tolist() == [sum(key[0] == task for key in keys) for task in range(len(program))]


def test_each_row_sends_each_class_once() -> None:
    """Random waits of 9 rows, some of which move nothing: (producer, class) in order, each pair once however many wait for it."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        producers, classes = rng.integers(0, 9, 30), rng.integers(0, 4, 30).astype(np.int32)
        moves = tuple(((0, 0), (1, 0), samples) for samples in (1, 2, 3))
        rows, sent = sendings(Waits(rng.integers(0, 9, 30), producers, classes, moves))
        pairs = zip(producers.tolist(), classes.tolist(), strict=True)
        assert list(zip(rows.tolist(), sent.tolist(), strict=True)) == sorted({one for one in pairs if one[1]})
