"""The asynchronous staircase and its methods: order, weight versions on both engines, predictions, memory, command line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.cli import main
from hardware_profiles import load_cluster
from simulator import (
    COPY_RULES,
    SCHEDULES,
    VERSION_METHODS,
    LayerCosts,
    Op,
    OpKind,
    OpSeconds,
    Plan,
    Problem,
    Stage,
    Timeline,
    build_schedule,
    check_schedule,
    given_costs,
    lower,
    simulate,
    version_table,
)
from simulator.engines import recurrence
from simulator.engines import reference as engine
from simulator.schedules.weight_versions import microbatches_per_minibatch, repeated_minibatches
from simulator.workloads.synthetic import uniform_chain

ENGINES = {"simpy": engine.replay, "recurrence": recurrence.replay}
EVERY = [(1, 1), (1, 4), (2, 1), (2, 4), (3, 2), (4, 3), (4, 4), (5, 1), (5, 8), (8, 3)]
"""Stages, and micro-batches per mini-batch."""
F, B, U, P = OpKind.FORWARD, OpKind.BACKWARD, OpKind.UPDATE, OpKind.PREDICT


def replayed(name: str, n: int, t: int, minibatches: int, on: str = "recurrence", **costs: Any) -> Timeline:
    """A staircase with T micro-batches a mini-batch on an engine."""
    schedule = build_schedule(name, n, t * minibatches, microbatches_per_minibatch=t)
    return ENGINES[on](lower(schedule, given_costs(n, OpSeconds(1.0, 2.0, **costs))))


# ---- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VERSION_METHODS)
def test_one_order_for_every_method(name: str) -> None:
    """Without predictions every method has the order of `naive`, which at T = 1 is that of PipeDream."""

    def computing(family: str, **options: int) -> list[list[Op]]:
        schedule = build_schedule(family, 4, 12, **options)
        check_schedule(schedule)
        return [[op for op in ops if op.kind is not P] for ops in schedule.lists()]

    for t in (1, 3, 4):
        assert computing(name, microbatches_per_minibatch=t) == computing("naive", microbatches_per_minibatch=t)
    assert computing(name, microbatches_per_minibatch=1) == computing("pipedream")


@pytest.mark.parametrize("t", [1, 2, 3])
def test_an_update_follows_each_tth_backward_and_an_incomplete_minibatch_makes_none(t: int) -> None:
    """7 micro-batches: floor(7 / T) updates, each right after the backward that completes its mini-batch."""
    for ops in build_schedule("xpipe", 3, 7, microbatches_per_minibatch=t).lists():
        updates = [(before, op) for before, op in itertools.pairwise(ops) if op.kind is U]
        assert [op.microbatch for _, op in updates] == list(range(7 // t))
        assert all((before.kind, before.microbatch) == (B, op.microbatch * t + t - 1) for before, op in updates)


@pytest.mark.parametrize(
    ("name", "forward", "backward", "last"),
    [
        ("naive", "", "", False),
        ("2bw", "", "", False),
        ("spectrain-v1", "all", "all", True),
        ("spectrain-v2", "all", "", False),
        ("xpipe", "bellwether", "bellwether", True),
        ("pipeoptim", "all", "", True),
        ("pipemare", "", "all", False),
    ],
)
def test_predictions_stand_right_before_the_ops_that_use_them(
    name: str, forward: str, backward: str, last: bool
) -> None:
    """XPipe predicts before the bellwether's forward and backward only; the others before every one, or never."""
    t, wanted = 4, {"": [], "all": list(range(16)), "bellwether": [0, 4, 8, 12]}
    for stage, ops in enumerate(build_schedule(name, 4, 16, microbatches_per_minibatch=t).lists()):
        users = [(op.microbatch, user) for op, user in itertools.pairwise(ops) if op.kind is P]
        assert all(microbatch == user.microbatch for microbatch, user in users)
        for kind, which in ((F, forward), (B, backward)):
            found = [microbatch for microbatch, user in users if user.kind is kind]
            assert found == (wanted[which] if stage < 3 or last else [])


@pytest.mark.parametrize(("name", "updates"), [("2bw", [3, 7]), ("xpipe", list(range(8))), ("naive", list(range(8)))])
def test_the_default_t(name: str, updates: list[int]) -> None:
    """2BW is made for T of at least the number of stages, 4 here: it updates after backwards 3 and 7; others after each."""
    schedule = build_schedule(name, 4, 8)
    for rank in range(4):
        ops = [op for op in schedule.ops(rank) if op.kind in (B, U)]
        assert [before.microbatch for before, op in itertools.pairwise(ops) if op.kind is U] == updates
        assert [op.microbatch for op in ops if op.kind is U] == list(range(len(updates)))


def test_t_below_one_is_refused() -> None:
    """One line with the rule and the value."""
    with pytest.raises(ValueError, match="micro-batches per mini-batch must be at least 1, got 0"):
        build_schedule("xpipe", 2, 4, microbatches_per_minibatch=0)


# ---- versions, N and T in 1..8 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ENGINES)
def test_xpipe_versions(on: str) -> None:
    """floor(max(0, i-N+k)/T) updates before F_i, m-1 before B_i (i, m from 1), 3 copies, whatever things take."""
    for n, t in EVERY:
        timeline = replayed("xpipe", n, t, 6, on, update=0.25, predict=0.125, transfer=0.3)
        table = version_table(timeline, t)
        i, k = table.microbatch + 1, table.stage
        forward, backward = table.kind == F, table.kind == B
        assert np.array_equal(table.seen[forward], (np.maximum(0, i - n + k) // t)[forward])
        assert np.array_equal(table.seen[backward], ((i - 1) // t)[backward])
        assert np.count_nonzero(table.kind == U) == 6 * n
        assert np.count_nonzero(table.kind == P) == 2 * 6 * n
        assert COPY_RULES["xpipe"](table).tolist() == [3] * n
        assert table.forward_difference().tolist() == [-(-(n - 1 - k) // t) for k in range(n)]


@pytest.mark.parametrize("on", ENGINES)
def test_2bw_holds_two_versions_and_straight_pipedream_n_minus_s(on: str) -> None:
    """2BW: 2 for every T >= N > 1, 1 on one stage; PipeDream: n - s."""
    for n, t in EVERY:
        if t >= n:
            table = version_table(replayed("2bw", n, t, 4, on, update=0.25), t)
            assert COPY_RULES["2bw"](table).tolist() == [min(n, 2)] * n
    for n in (1, 2, 5):
        program = lower(build_schedule("pipedream", n, 3 * n), given_costs(n, OpSeconds(1.0, 2.0, update=0.25)))
        table = version_table(ENGINES[on](program), 1)
        assert COPY_RULES["pipedream"](table).tolist() == [n - s for s in range(n)]
        assert COPY_RULES["vertical-sync"](table).tolist() == [n] * n
        assert COPY_RULES["naive"](table).tolist() == [1] * n
        assert COPY_RULES["spectrain-v2"](table).tolist() == [n - s + 1 for s in range(n - 1)] + [1]
        assert table.forward_difference().tolist() == [n - 1 - s for s in range(n)]
        assert table.backward_difference().tolist() == [0] * n


@pytest.mark.parametrize(
    "name",
    [name for name, one in SCHEDULES.items() if one.flush and not one.lanes and one.placement != "bidirectional"],
)
def test_synchronous_schedules_miss_no_update(name: str) -> None:
    """Three flushed mini-batches: no difference at any op, one copy, as long as three times one of them."""
    replay = recurrence.replay if not SCHEDULES[name].lanes else engine.replay
    chunks = 2 if "chunks" in SCHEDULES[name].options else SCHEDULES[name].chunks
    for n, t in ((2, 3), (4, 4), (3, 1)):
        one = build_schedule(name, n * chunks, t)
        costs = given_costs(one.stages, OpSeconds(1.0, 2.0, update=0.5), devices=one)
        stream = repeated_minibatches(one, 3)
        assert microbatches_per_minibatch(stream) == t
        timeline = replay(lower(stream, costs))
        table = version_table(timeline, t)
        assert not table.difference().any()
        assert COPY_RULES["pipedream"](table).tolist() == [1] * one.stages
        if chunks == 1 and SCHEDULES[name].communications == ():
            assert timeline.makespan_seconds == 3 * replay(lower(one, costs, updates=True)).makespan_seconds


def test_what_cannot_be_repeated_is_refused() -> None:
    """Asynchronous orders, forwards in lists of their own, and stages whose micro-batches several devices run."""
    for name in ("xpipe", "fbp-as", "chimera", "dualpipe"):
        with pytest.raises(ValueError, match="cannot be repeated"):
            repeated_minibatches(build_schedule(name, 2, 2), 2)


@pytest.mark.parametrize("name", SCHEDULES)
def test_micro_batches_an_update_are_read_off_the_lists(name: str) -> None:
    """T of the staircases, 1 of PipeDream's, all of a flushed mini-batch, all where there is no update."""
    options: dict[str, Any] = {"replicas": (2, 1)} if "replicas" in SCHEDULES[name].options else {}
    expected = 6 if SCHEDULES[name].flush else 1
    if name in VERSION_METHODS:
        options, expected = {"microbatches_per_minibatch": 3}, 3
    if "chunks" in SCHEDULES[name].options:
        options = {"chunks": SCHEDULES[name].chunks}
    assert microbatches_per_minibatch(build_schedule(name, 2, 6, **options)) == expected
    assert microbatches_per_minibatch(build_schedule("xpipe", 2, 3, microbatches_per_minibatch=4)) == 3


# ---- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ENGINES)
@pytest.mark.parametrize(("n", "t"), [(1, 1), (4, 2), (4, 4)])
def test_throughput_over_gpipe(on: str, n: int, t: int) -> None:
    """Steady seconds of a mini-batch: T(F+B); GPipe's are (T+N-1)(F+B): the ratio is (T+N-1)/T."""
    timeline = replayed("xpipe", n, t, 8, on)
    rows = np.flatnonzero((timeline.kind == U) & (timeline.stage == 0))
    ends = timeline.end[rows]
    gpipe = ENGINES[on](lower(build_schedule("gpipe", n, t), given_costs(n, OpSeconds(1.0, 2.0)))).makespan_seconds
    assert np.diff(ends)[2:] == pytest.approx(3.0 * t)
    assert gpipe / np.diff(ends)[-1] == pytest.approx((t + n - 1) / t)


@pytest.mark.parametrize("on", ENGINES)
def test_predictions_and_updates_take_their_time(on: str) -> None:
    """One stage, T = 2, 3 mini-batches: each 2(F+B) + U + 2P; per-sample costs leave updates and predictions whole."""
    timeline = replayed("xpipe", 1, 2, 3, on, update=0.5, predict=0.25)
    assert timeline.makespan_seconds == 3 * (6.0 + 0.5 + 0.5)
    schedule = build_schedule("xpipe", 1, 6, microbatches_per_minibatch=2)
    costs = given_costs(1, OpSeconds(1.0, 2.0, update=0.5, predict=0.25), per_sample=True)
    assert ENGINES[on](lower(schedule, costs, forward_sizes=[2] * 6)).makespan_seconds == 3 * (12.0 + 1.0)


# ---- plans: seconds, memory, replicas --------------------------------------------------------------------------------


def problem(batch: int = 8, optimizer: str = "adam") -> Problem:
    """8 equal layers of a chain on 4 of DAPPLE B's servers."""
    return Problem(uniform_chain(8), load_cluster("dapple-b:4"), batch, optimizer=optimizer)


def straight(schedule: str, microbatches: tuple[int, ...]) -> Plan:
    """Two layers a stage, one device a stage."""
    return Plan("hand", schedule, tuple(Stage((2 * s, 2 * s + 1), (s,)) for s in range(4)), microbatches)


def test_a_prediction_reads_weights_and_moments_and_writes_a_copy() -> None:
    """Adam: 3 elements read and 1 written a weight, an update 4 and 3; no weights take no time."""
    costs, weights = LayerCosts(problem()), 1e9
    fixed = costs.predict_seconds(0, 1.0)
    ratio = (costs.predict_seconds(0, weights) - fixed) / (costs.update_seconds(0, weights) - fixed)
    assert ratio == pytest.approx(4 / 7, rel=1e-3)
    assert costs.predict_seconds(0, 0.0) == 0.0
    plain = LayerCosts(problem(optimizer="sgd"))
    assert (plain.predict_seconds(0, weights) - fixed) / (costs.predict_seconds(0, weights) - fixed) == pytest.approx(
        1 / 2, rel=1e-3
    )


@pytest.mark.parametrize("on", ENGINES)
def test_a_plan_updates_once_an_iteration(on: Any) -> None:
    """T is the plan's number of micro-batches; the steady iteration beats GPipe's and holds one period of the stream."""
    xpipe = simulate(problem(), straight("xpipe", (2, 2, 2, 2)), engine=on)
    gpipe = simulate(problem(), straight("gpipe", (2, 2, 2, 2)), engine=on)
    assert np.count_nonzero(xpipe.timeline.kind == U) == 4 * xpipe.stream // 4
    assert xpipe.iteration_seconds < gpipe.iteration_seconds
    ends = xpipe.timeline.end[(xpipe.timeline.kind == B) & (xpipe.timeline.stage == 0)]
    middle = xpipe.stream // 2
    assert xpipe.iteration_seconds == pytest.approx(ends[middle + 3] - ends[middle - 1])
    assert xpipe.bytes_per_sample == pytest.approx(gpipe.bytes_per_sample)


@pytest.mark.parametrize(
    ("schedule", "copies"),
    [
        ("naive", [1, 1, 1, 1]),
        ("2bw", [2, 2, 2, 2]),
        ("xpipe", [3, 3, 3, 3]),
        ("pipeoptim", [2, 2, 2, 2]),
        ("pipemare", [2, 2, 2, 1]),
        ("spectrain-v1", [2, 2, 2, 2]),
        ("spectrain-v2", [5, 4, 3, 1]),
    ],
)
def test_memory_holds_every_copy(schedule: str, copies: list[int]) -> None:
    """Copies beside the current weights, by the method's rule; N - k micro-batches in flight on every one."""
    outcome = simulate(problem(), straight(schedule, (2, 2, 2, 2)))
    for stage, device in enumerate(outcome.memory):
        held = device.peak_parts
        assert held["weight versions"] == held["weights"] * (copies[stage] - 1)
        assert held["gradients"] == held["weights"]
        assert held["optimizer"] == 2 * held["weights"]
    assert outcome.timeline.peak_in_flight().tolist() == [4, 3, 2, 1]


@pytest.mark.parametrize("on", ENGINES)
def test_split_replicas_reduce_once_a_minibatch(on: Any) -> None:
    """A stage of 2 replicas that share each micro-batch: one all-reduce an update, copies as without replicas."""
    layers = (Stage((0, 1, 2, 3), (0, 1)), Stage((4, 5, 6, 7), (2, 3)))
    outcome = simulate(problem(), Plan("hand", "spectrain-v2", layers, (4, 4)), engine=on)
    reduces = np.count_nonzero((outcome.timeline.kind == OpKind.REDUCE) & (outcome.timeline.stage == 0))
    updates = np.count_nonzero((outcome.timeline.kind == U) & (outcome.timeline.stage == 0))
    assert reduces == updates / 2
    assert [device.peak_parts["weight versions"] / device.peak_parts["weights"] for device in outcome.memory] == [
        2,
        2,
        0,
        0,
    ]


def test_round_robin_replicas_are_refused() -> None:
    """The staircase has one list a stage: micro-batches cannot go round its replicas."""
    layers = (Stage((0, 1, 2, 3), (0, 1)), Stage((4, 5, 6, 7), (2,)))
    with pytest.raises(
        ValueError,
        match=(
            "schedule 'xpipe' has one list of ops of stage 0, which plan 'hand' puts on 2 devices, "
            "replication round-robin"
        ),
    ):
        simulate(problem(), Plan("hand", "xpipe", layers, (4, 4), "round-robin"))


# ---- command line ----------------------------------------------------------------------------------------------------


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """Exit code, and the JSON document or the one line of the error."""
    code = main(["simulate", "--forward", "1", "--backward", "2", "--json", *words])
    out, err = capsys.readouterr()
    return code, json.loads(out) if code == 0 else err


@pytest.mark.parametrize("on", ENGINES)
def test_simulate_prints_the_versions(capsys: pytest.CaptureFixture[str], on: str) -> None:
    """N = 4, T = 2, 6 mini-batches: ceil((N-1-k)/T) late forward, never backward, 3 copies; (12+3)(F+B) + 6·2·P s."""
    words = ["--schedule", "xpipe", "--stages", "4", "--microbatches-per-minibatch", "2", "--minibatches", "6"]
    code, document = simulated(capsys, *words, "--engine", on)
    assert code == 0
    assert document["versions"] == {
        "forward_difference": [2, 1, 1, 0],
        "backward_difference": [0] * 4,
        "copies": [3] * 4,
    }
    assert (document["microbatches"], document["makespan_seconds"]) == (12, 45.0)
    _, slower = simulated(capsys, *words, "--predict", "0.5")
    assert slower["makespan_seconds"] > 45.0


@pytest.mark.parametrize("words", ["--microbatches 4", "--microbatches-per-minibatch 4 --minibatches 3"])
def test_simulate_prints_zeros_for_flushed_schedules(capsys: pytest.CaptureFixture[str], words: str) -> None:
    """One mini-batch, or three of them."""
    _, document = simulated(capsys, "--schedule", "interleaved-1f1b", "--stages", "4", *words.split())
    assert document["versions"] == {"forward_difference": [0] * 4, "backward_difference": [0] * 4, "copies": [1] * 4}


def test_simulate_prints_the_versions_of_pipedream(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """n - s copies, n - 1 - s late, from the family and from its lists in a file."""
    _, document = simulated(capsys, "--schedule", "pipedream", "--stages", "4", "--minibatches", "9")
    expected = {"forward_difference": [3, 2, 1, 0], "backward_difference": [0] * 4, "copies": [4, 3, 2, 1]}
    assert document["versions"] == expected
    lists = build_schedule("pipedream", 4, 9).lists()
    file = tmp_path / "pipedream.txt"
    file.write_text("\n".join(" ".join(map(str, ops)) for ops in lists) + "\n", encoding="utf-8")
    code, read = simulated(capsys, "--schedule-csv", str(file))
    assert (code, read["versions"]) == (0, expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--schedule 2bw --stages 4 --microbatches-per-minibatch 2 --minibatches 3",
            "schedule '2bw' needs at least as many micro-batches per mini-batch as stages, got T=2, N=4",
        ),
        ("--schedule xpipe --stages 4", "needs --stages and --microbatches, or --minibatches"),
        ("--schedule xpipe --stages 4 --minibatches 2 --microbatches 2", "in place of micro-batches, got both"),
        (
            "--schedule pipedream --stages 4 --microbatches-per-minibatch 2 --minibatches 2",
            "schedule 'pipedream' updates after every micro-batch: T is 1, got 2",
        ),
        (
            "--schedule gpipe --stages 4 --minibatches 2",
            "schedule 'gpipe' needs micro-batches per mini-batch (T) with mini-batches",
        ),
        ("--schedule gpipe --stages 4 --microbatches 7 --microbatches-per-minibatch 2", "no multiple of T=2"),
        ("--schedule xpipe --stages 2 --minibatches 2 --predict -1", "predict of stage 0 must be a finite number"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    """Exit code 2, the rule and the values."""
    code, err = simulated(capsys, *words.split())
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
