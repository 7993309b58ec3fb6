"""Tests of PipeDream's runtime: 1F1B-RR with replicas, warm-up, weight versions, all-reduce, drain and steady state."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest

from hardware_profiles import Cluster, Operation, Phase, Precision, Work
from hardware_profiles.links import Link
from simulator import (
    SCHEDULES,
    Layer,
    OpKind,
    OpSeconds,
    Plan,
    Problem,
    ScheduleFamily,
    Stage,
    Workload,
    build_program,
    build_schedule,
    given_costs,
    lower,
    simulate,
    version_table,
)
from simulator.engines import recurrence
from simulator.engines import reference as simpy_engine

FAST = 1e15  # bytes per second: transfers and all-reduces take no time worth naming
WEIGHTS = 1_000_000


@dataclass(frozen=True)
class Box:
    """A device without cost: every layer is measured, updates are free."""

    name: str = "box"
    memory_bytes: float = 1e12
    streams: bool = False
    sublinear: bool = True

    def seconds(self, work: Work, samples: int, phase: Phase, precision: Precision = "fp32") -> float:
        """Nothing takes time."""
        return 0.0


def star(devices: int, bandwidth: float = FAST, collective: float = 1.0) -> Cluster:
    nodes = tuple(f"d{i}" for i in range(devices))
    links = tuple(Link(node, "network", bandwidth, collective=collective) for node in nodes)
    return Cluster("star", (Box(),) * devices, nodes, ("network",), tuple((i,) for i in range(devices)), links)  # type: ignore[arg-type]


def chain(*forwards: float, weights: int = WEIGHTS) -> Workload:
    """One layer a number: forward seconds of one sample, backward twice as long."""
    layers = tuple(
        Layer(f"layer{i}", "linear", 0.0, weights, 1.0, 1.0, 1, ((1.0, forward, 2.0 * forward),))
        for i, forward in enumerate(forwards)
    )
    edges = tuple((i, i + 1) for i in range(len(layers) - 1))
    return Workload("chain", layers, edges, bytes_per_element=4)


def plan_of(*replicas: int, minibatches: int | None = None) -> Plan:
    bounds = [sum(replicas[:i]) for i in range(len(replicas) + 1)]
    stages = tuple(Stage((i,), tuple(range(bounds[i], bounds[i + 1]))) for i in range(len(replicas)))
    return Plan("test", "1f1b-rr", stages, (1,) * (minibatches or sum(replicas)), "round-robin")


def problem_of(plan: Plan, *forwards: float, **options: object) -> Problem:
    devices = sum(plan.replicas)
    bandwidth = options.pop("bandwidth", FAST)
    assert isinstance(bandwidth, float)
    return Problem(chain(*forwards), star(devices, bandwidth), sum(plan.microbatches), optimizer="sgd", **options)  # type: ignore[arg-type]


def test_straight_pipeline_of_four_takes_57_units() -> None:
    """4 balanced stages, 16 minibatches, B = 2F: 3 + 16 · 3 + 6 = 57, on both engines."""
    program = lower(build_schedule("pipedream", 4, 16), given_costs(4, OpSeconds(1.0, 2.0)))
    assert recurrence.replay(program).makespan_seconds == simpy_engine.replay(program).makespan_seconds == 57.0


@pytest.mark.parametrize("rule, copies", [("stashing", [4, 3, 2, 1]), ("vertical-sync", [4, 4, 4, 4])])
def test_weight_copies_of_a_straight_pipeline(rule: str, copies: list[int]) -> None:
    """Stage s of n stashes n - s versions; vertical sync needs the input stage's n everywhere."""
    plan = plan_of(1, 1, 1, 1)
    outcome = simulate(problem_of(plan, 1.0, 1.0, 1.0, 1.0, weight_versions=rule), plan)
    held = [1 + memory.peak_parts["weight versions"] / (4 * WEIGHTS) for memory in outcome.memory]
    assert held == copies


def test_a_family_without_a_flush_and_without_a_rule_stashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a package may add: n - s versions at stage s, whatever PipeDream's rule is."""
    family = ScheduleFamily(lambda stages, count: build_schedule("pipedream", stages, count), "mine", flush=False)
    monkeypatch.setitem(SCHEDULES, "mine", family)
    plan = dataclasses.replace(plan_of(1, 1, 1, 1), schedule="mine", replication="split")
    outcome = simulate(problem_of(plan, 1.0, 1.0, 1.0, 1.0, weight_versions="vertical-sync"), plan)
    assert [memory.peak_parts["weight versions"] / (4 * WEIGHTS) for memory in outcome.memory] == [3, 2, 1, 0]


def test_rules_are_checked_at_the_door() -> None:
    """An unknown rule names the choices."""
    with pytest.raises(ValueError, match="replica_updates 'none' is unknown; choices: overlapped, barrier"):
        problem_of(plan_of(1, 1), 1.0, 1.0, replica_updates="none")
    with pytest.raises(ValueError, match="replica_updates 'none' is unknown; choices: overlapped, barrier"):
        build_schedule("1f1b-rr", 2, 4, replicas=(2, 1), replica_updates="none")
    with pytest.raises(ValueError, match="weight_versions 'none' is unknown; choices: stashing, vertical-sync"):
        problem_of(plan_of(1, 1), 1.0, 1.0, weight_versions="none")


@pytest.mark.parametrize("replicas", [(1, 2), (2, 1, 1), (3, 2), (9, 5, 1, 1)])
def test_warm_up_is_the_runtime_rule(replicas: tuple[int, ...]) -> None:
    """A rank of stage s warms up with floor((ranks - 1 - ranks before) / R_s) forwards, then strictly alternates to the end."""
    schedule = build_schedule("1f1b-rr", len(replicas), 20 * sum(replicas), replicas=replicas)
    for rank in range(schedule.ranks):
        rows = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
        stage = int(schedule.stage[rows][0])
        kinds = [kind for kind in schedule.kind[rows].tolist() if kind != OpKind.UPDATE]
        warm_up = (sum(replicas) - 1 - sum(replicas[:stage])) // replicas[stage]
        forwards = kinds.count(OpKind.FORWARD)
        expected = [OpKind.FORWARD] * warm_up
        expected += [OpKind.FORWARD, OpKind.BACKWARD] * (forwards - warm_up) + [OpKind.BACKWARD] * warm_up
        assert kinds == expected
        assert set(schedule.replicas().tolist()) == set(replicas)
        assert set(schedule.microbatch[rows].tolist()) == set(
            range(schedule.holders()[stage].index(rank), 20 * sum(replicas), replicas[stage])
        )


@pytest.mark.parametrize(
    "replicas, forwards", [((1, 1, 1), (1.0, 2.0, 1.5)), ((2, 1, 1), (8.0, 0.1, 0.1)), ((15, 1), (15.0, 0.9))]
)
def test_steady_state_is_the_slowest_stage(replicas: tuple[int, ...], forwards: tuple[float, ...]) -> None:
    """On fast links a minibatch takes the largest (forward + backward) / replicas, within 3 %, whatever fill and drain take."""
    plan = plan_of(*replicas)
    problem = problem_of(plan, *forwards)
    slowest = max(3.0 * forward / count for forward, count in zip(forwards, replicas, strict=True))
    assert simulate(problem, plan).iteration_seconds == pytest.approx(slowest * len(plan.microbatches), rel=0.03)


@pytest.mark.parametrize(
    "replicas, overlapped, barrier",
    [((4, 2, 2), 1.0, 1.5), ((9, 5, 1, 1), 14 / 13, 2.0222), ((3, 1), 1.0, 1.0)],
)
def test_overlapped_replicas_reach_the_steady_state(
    replicas: tuple[int, ...], overlapped: float, barrier: float
) -> None:
    """Balanced stages on fast links, seconds a mini-batch over those of the paper's steady state, which 2-1-1 and 4-2-2 reach.

    Overlapped updates cost nothing: replicas without weights take as long. What 9-5-1-1 lacks is the runtime's warm-up: two
    mini-batches in flight a replica of stage 0, where the order of stage 1 needs (1 + 1) 5 of them behind 9, rounded up.
    """
    plan = plan_of(*replicas)
    problem = problem_of(plan, *map(float, replicas))
    free = dataclasses.replace(problem, workload=chain(*map(float, replicas), weights=0))
    ideal = 3.0 * len(plan.microbatches)
    assert simulate(problem, plan).iteration_seconds == pytest.approx(ideal * overlapped, rel=1e-4)
    assert simulate(free, plan).iteration_seconds == pytest.approx(ideal * overlapped, rel=1e-4)
    together = dataclasses.replace(problem, replica_updates="barrier")
    assert simulate(together, plan).iteration_seconds == pytest.approx(ideal * barrier, rel=1e-4)


@pytest.mark.parametrize("share", [0.5, 1.5])
def test_an_overlapped_all_reduce_costs_what_it_takes_beyond_compute(share: float) -> None:
    """3-1 of 3 units each: a round takes the longer of 9 units of compute and the all-reduce; with a barrier their sum."""
    plan = plan_of(3, 1)
    bandwidth = 4.0 * WEIGHTS * (4 / 3) / (9.0 * share)  # a ring of 3 moves 4/3 of the weights in `share` rounds
    problem = problem_of(plan, 3.0, 1.0, bandwidth=bandwidth, communication="free", contention=False)
    rounds = len(plan.microbatches) / 3
    assert simulate(problem, plan).iteration_seconds == pytest.approx(9.0 * max(1.0, share) * rounds)
    together = dataclasses.replace(problem, replica_updates="barrier")
    assert simulate(together, plan).iteration_seconds == pytest.approx(9.0 * (1.0 + share) * rounds)


@pytest.mark.parametrize("rule, behind, held", [("overlapped", 1, 2), ("barrier", 0, 1)])
@pytest.mark.parametrize("replicas", [(4, 2, 2), (3, 1)])
def test_forwards_see_the_updates_of_their_rule(replicas: tuple[int, ...], rule: str, behind: int, held: int) -> None:
    """A forward misses the updates of its warm-up, and one more where its replica did not wait for the last round.

    Either way a replica keeps warm-up + 1 versions; without the wait a second gradient, which is still being all-reduced.
    """
    plan = plan_of(*replicas)
    outcome = simulate(problem_of(plan, *map(float, replicas), replica_updates=rule), plan)
    table = version_table(outcome.timeline, 1)
    for stage, count in enumerate(replicas):
        warm_up = (sum(replicas) - 1 - sum(replicas[:stage])) // count
        late = behind if count > 1 else 0
        assert table.forward_difference()[stage] == warm_up + late
        memory = outcome.memory[plan.stages[stage].devices[0]].peak_parts
        assert memory["weight versions"] == 4 * WEIGHTS * warm_up
        assert memory["gradients"] == 4 * WEIGHTS * (held if count > 1 else 1)


def test_fill_and_drain_are_told_apart_from_the_steady_state() -> None:
    """4 stages of F = 1, B = 2: full after 3 units; n minibatches take 3 n + 9 in all, the steady state 3 each."""
    plan = plan_of(1, 1, 1, 1)
    outcome = simulate(problem_of(plan, 1.0, 1.0, 1.0, 1.0), plan)
    assert outcome.fill_seconds == pytest.approx(3.0)
    assert outcome.iteration_seconds == pytest.approx(3.0 * 4)
    assert outcome.timeline.makespan_seconds == pytest.approx(3.0 * outcome.stream + 9.0)
    # After its last forward the input stage runs the backwards of the 4 minibatches in flight, a round of F and B apart.
    assert outcome.drain_seconds == pytest.approx(2.0 + 3 * 3.0)


def test_an_all_reduce_leaves_what_it_does_not_use_of_a_link() -> None:
    """At a collective efficiency of 1/2 a ring keeps its links busy for half of its seconds; other transfers have the rest."""
    devices = (0, 1, 2)
    cluster = star(3, 1e9, collective=0.5)
    assert cluster.collectives.seconds(Operation.ALL_REDUCE, devices, 3e9) == pytest.approx(8.0)
    assert cluster.collectives.busy(Operation.ALL_REDUCE, devices)[1] == pytest.approx((0.5,) * 6)
    plan = Plan("test", "1f1b-rr", (Stage((0,), devices), Stage((1,), (3,))), (1,) * 4, "round-robin")
    problem = Problem(chain(1.0, 0.1), star(4, 1e9, collective=0.5), 4)
    _, _, program = build_program(problem, plan)
    assert program.lane_occupancy[-1] == pytest.approx((0.5,) * 6)


@pytest.mark.parametrize("rule, seconds", [("overlapped", 258.0), ("barrier", 366.0)])
def test_given_numbers_know_the_rounds(rule: str, seconds: float) -> None:
    """Without the seconds of an all-reduce an update still waits for the gradients of all replicas of its round."""
    replicas = (4, 2, 2)
    schedule = build_schedule("1f1b-rr", 3, 80, replicas=replicas, replica_updates=rule)
    costs = given_costs(3, OpSeconds([4.0, 2.0, 2.0], [8.0, 4.0, 4.0]), devices=schedule)
    program = lower(schedule, costs, updates=True)
    timeline = recurrence.replay(program)
    assert timeline.makespan_seconds == seconds == simpy_engine.replay(program).makespan_seconds
    update, backward = timeline.kind == OpKind.UPDATE, timeline.kind == OpKind.BACKWARD
    for stage, count in enumerate(replicas):
        ended = np.zeros(80 // count)
        mine = backward & (timeline.stage == stage)
        np.maximum.at(ended, timeline.microbatch[mine] // count, timeline.end[mine])
        mine = update & (timeline.stage == stage)
        assert (timeline.start[mine] >= ended[timeline.microbatch[mine] // count]).all()


@pytest.mark.parametrize("replicas", [(2, 0), (0, 2), (-1, 1), (1,), (1, 1, 1)])
def test_every_stage_has_a_replica(replicas: tuple[int, ...]) -> None:
    """One at least, of two stages."""
    with pytest.raises(ValueError, match="needs one replica count of at least 1 for each of 2 stages"):
        build_schedule("1f1b-rr", 2, 4, replicas=replicas)
