"""Quick replays: no plan takes less in its replay; alone on its links, a plan takes as long."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hardware_profiles import Constant, Stack, load_cluster
from planners import Evaluator
from planners.partitioning.partition_costs import uniform_cuts
from planners.search.quick_replay import QuickReplays
from planners.testing import line
from simulator import Gpt, Plan, Problem, Stage, equal_microbatches, load_workload, schedule_families, stages_from_cuts
from simulator.options.training_options import Communication
from simulator.workloads.synthetic import uniform_chain
from tests.chains import chain

FAMILIES = (
    *("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1", "1f1b-so", "zb-v"),
    *("dualpipev", "dualpipe", "chimera", "seq1f1b"),
)
CLUSTERS = ("pipedream-a:2", "pipedream-b:1", "dapple-b:4", "dapple-c:6")


def _random(choose: random.Random, batch: int = 24) -> tuple[Problem, Plan]:
    """A problem of a chain with weights and outputs of any size, and a plan of stages with equal or one replica."""
    layers = choose.randint(2, 12)
    network = chain(
        [choose.choice([1e9, 1e10, 5e10]) for _ in range(layers)],
        parameters=[choose.choice([0, 10**4, 10**7]) for _ in range(layers)],
        output_elements=[choose.choice([1e2, 1e5, 2e6]) for _ in range(layers)],
    )
    name = choose.choice(FAMILIES)
    if name == "seq1f1b":
        network = Gpt(choose.randint(1, 3), 64, 4, 128, 1000, tied=False).workload()
        layers = len(network)
    problem = Problem(
        network,
        load_cluster(choose.choice(CLUSTERS)),
        batch,
        optimizer=choose.choice(["sgd", "adam"]),
        recompute="none" if name == "seq1f1b" else choose.choice(["none", "none", "whole"]),
        gradient_reduction=choose.choice(["buckets", "whole"]),
        contention=choose.random() < 0.7,
        communication=choose.choice(["overlapped", "overlapped", "send-blocking"]),
        sharing=choose.choice(["fair", "fifo"]),
        stack=Stack(name="any", stragglers=Constant(choose.choice([0.0, 0.5]))),
        overlap=choose.choice([1.0, 0.7]),
    )
    family, devices = schedule_families()[name], len(problem.cluster.devices)
    chunks = 2 if "chunks" in family.options or family.chunks > 1 else 1
    ranks = choose.randint(1, max(1, min(layers // chunks, devices)))
    if layers < chunks:
        return _random(choose, batch)
    if family.placement == "bidirectional":
        return problem, _opposite(choose, problem, name)
    replicas = choose.randint(1, devices // ranks)
    groups = [tuple(range(rank * replicas, (rank + 1) * replicas)) for rank in range(ranks)]
    cuts = sorted(choose.sample(range(1, layers), ranks * chunks - 1))
    count = choose.randint(1, batch // replicas)
    stages = stages_from_cuts(cuts, layers, family.device_of_stage(groups, chunks))
    zero = choose.choice([0, 0, 1, 2, 3]) if replicas > 1 else 0
    plan = Plan("test", name, stages, equal_microbatches(batch, count), zero=zero)  # type: ignore[arg-type]
    return problem, replace(plan, options=(("slices", choose.choice([1, 2, 4])),)) if name == "seq1f1b" else plan


def _opposite(choose: random.Random, problem: Problem, name: str) -> Plan:
    """Two pipelines in opposite directions, over an even number of devices."""
    layers, devices = len(problem.workload), len(problem.cluster.devices)
    ranks = 2 * choose.randint(1, min(layers, devices) // 2)
    held = [(rank, ranks - 1 - rank) for rank in range(ranks)]
    stages = stages_from_cuts(sorted(choose.sample(range(1, layers), ranks - 1)), layers, held)
    sizes = equal_microbatches(problem.batch, choose.randint(2, problem.batch))  # one for each direction
    return Plan("test", name, stages, sizes, "round-robin")


def _check(seed: int) -> None:
    problem, plan = _random(random.Random(seed))
    evaluate = Evaluator(problem)
    replayed = evaluate(plan).iteration_seconds
    quick, least = ((replays := QuickReplays(problem, evaluate.layer_costs))(plan), replays.fill_and_work(plan))
    assert 0.0 < quick <= replayed, (seed, plan)
    assert least <= quick * (1.0 + 1e-9), (seed, plan)
    assert bool(least) == (plan.replication == "split" and plan.slices == 1), (seed, plan)
    lone = max(plan.replicas) == 1 and problem.communication == "overlapped" and not problem.contention
    if lone and schedule_families()[plan.schedule].placement == "straight":
        assert quick == pytest.approx(replayed, rel=1e-9), (seed, plan)


def test_no_replay_is_faster() -> None:
    """Over families, replicas, sizes, ZeRO, recomputation and links; where nothing is shared both are equal."""
    for seed in range(20):
        _check(seed)


@pytest.mark.parametrize("communication", ["free", "streaming"])
def test_no_replay_is_faster_where_nothing_is_sent_behind_an_op(communication: Communication) -> None:
    """Transfers that are free, or over as their op ends, delay nothing behind it."""
    known = 0
    for seed in range(30):
        problem, plan = _random(random.Random(seed))
        problem = replace(problem, communication=communication)
        if plan.schedule in ("dualpipe", "dualpipev") and communication == "streaming":
            continue  # pairs that overlap stream nothing
        evaluate = Evaluator(problem)
        quick = QuickReplays(problem, evaluate.layer_costs)(plan)
        assert quick <= evaluate(plan).iteration_seconds, (seed, plan)
        known += quick > 0.0
    assert known > 20


@pytest.mark.parametrize("speeds", [(0.5, 1.0), (1.0, 0.5)])
@pytest.mark.parametrize("batch", range(1, 5))
def test_the_last_replica_has_most_samples(speeds: tuple[float, float], batch: int) -> None:
    """Of unlike devices, whichever is the slow one: where the batch does not divide the first one has a sample less."""
    problem = Problem(uniform_chain(4), line(speeds=speeds), batch)
    plan = Plan("test", "1f1b", (Stage((0, 1, 2, 3), (0, 1)),), (batch,))
    evaluate = Evaluator(problem)
    replays = QuickReplays(problem, evaluate.layer_costs)
    assert replays.fill_and_work(plan) <= replays(plan) <= evaluate(plan).iteration_seconds


@pytest.mark.slow
def test_no_replay_is_faster_of_many() -> None:
    """The same, of 600."""
    for seed in range(20, 620):
        _check(seed)


@pytest.mark.parametrize("slices", [2, 4])
def test_slices_take_their_own_seconds(slices: int) -> None:
    """The first attends to least, and each is a kernel of its own: a stage in front of another waits for the last one."""
    problem = Problem(Gpt(4, 512, 8, tied=False).workload(), load_cluster("dgx-a100:1"), 2, contention=False)
    layers = len(problem.workload)
    plan = Plan(
        "test", "seq1f1b", stages_from_cuts([layers // 2], layers, [(0,), (1,)]), (1, 1), options=(("slices", slices),)
    )
    evaluate = Evaluator(problem)
    assert QuickReplays(problem, evaluate.layer_costs)(plan) == pytest.approx(
        evaluate(plan).iteration_seconds, rel=1e-9
    )


@pytest.mark.parametrize("updated", range(4))
def test_the_later_of_two_pipelines_ends_a_stage(updated: int) -> None:
    """Where links take no time and one stage has weights, two pipelines that meet take as long as replayed, whichever of the two
    has the more work: its gradients are reduced behind the last backward of both.
    """
    network = chain(
        [1e9, 5e9, 2e9, 1e10], parameters=[10**6 * (stage == updated) for stage in range(4)], output_elements=[1e-3] * 4
    )
    cluster = load_cluster("pipedream-b:1").take(4)
    cluster = replace(cluster, links=tuple(replace(one, latency=0.0) for one in cluster.links))
    stages = stages_from_cuts([1, 2, 3], 4, [(rank, 3 - rank) for rank in range(4)])
    for sizes in ((1, 3), (3, 1), (1, 3, 1, 2, 4, 1)):
        problem = Problem(network, cluster, sum(sizes), contention=False)
        plan, evaluate = Plan("test", "chimera", stages, sizes, "round-robin"), Evaluator(problem)
        quick = QuickReplays(problem, evaluate.layer_costs)(plan)
        assert quick == pytest.approx(evaluate(plan).iteration_seconds, rel=1e-6)


def test_without_an_order_a_device_waits_for_those_before_it_and_works() -> None:
    """Four equal stages, five micro-batches of one: the last waits for three forwards, and three full backwards follow; where
    weight gradients are put off none need follow, and two stages of a device begin with its first.
    """
    problem = Problem(uniform_chain(4), load_cluster("pipedream-b:1"), 5)
    quick = QuickReplays(problem, costs := Evaluator(problem).layer_costs)
    forward, back, *parts = (
        float(costs.seconds(0, 1, phase)[0]) for phase in ("forward", "backward", "input_gradient", "weight_gradient")
    )
    apart, around = (stages_from_cuts([1, 2, 3], 4, [(one,) for one in lies]) for lies in ((0, 1, 2, 3), (0, 1, 1, 0)))
    seconds = [
        quick.fill_and_work(Plan("test", name, stages, (1,) * 5))
        for name, stages in (("1f1b", apart), ("zb-h1", apart), ("zb-v", around))
    ]
    assert sum(parts) == pytest.approx(back)
    assert seconds == pytest.approx([8 * (forward + back), 8 * forward + 5 * back, 11 * forward + 10 * back], rel=1e-6)


def test_what_it_does_not_know_takes_no_time() -> None:
    """An order of the plan's own, streams without a flush, lanes that share a device: 0, which rules nothing out."""
    problem = Problem(uniform_chain(4), load_cluster("pipedream-b:1"), 8)
    stages = stages_from_cuts(uniform_cuts(4, 2), 4, [(0,), (1,)])
    plan = Plan("test", "1f1b", stages, (4, 4))
    quick = QuickReplays(problem, Evaluator(problem).layer_costs)
    assert quick(plan) > 0.0
    assert quick(replace(plan, schedule="1f1b-rr", replication="round-robin")) == 0.0
    assert quick(replace(plan, schedule="pipedream")) == 0.0
    assert quick(replace(plan, replication="round-robin")) == 0.0
    assert quick(replace(plan, schedule="chimera")) == 0.0
    assert quick(replace(plan, forward_sizes=((4, 4), (8,)), backward_sizes=((4, 4), (8,)))) == 0.0
    assert quick(replace(plan, order=("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"))) == 0.0
    assert quick(replace(plan, schedule="mine", order=("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"))) == 0.0


def test_a_card_that_many_transfers_pass_sets_the_pace() -> None:
    """Stages on two servers in turn: each way three transfers of 4 MB per sample leave a server, where links are shared."""
    problem = Problem(chain([1e6] * 4, output_elements=[1e6] * 4), load_cluster("pipedream-a:2"), 16)
    plan = Plan("test", "1f1b", stages_from_cuts([1, 2, 3], 4, [(0,), (4,), (1,), (5,)]), (1,) * 16)
    shared, calm = (
        QuickReplays(one, Evaluator(one).layer_costs)(plan) for one in (problem, replace(problem, contention=False))
    )
    busy = 3 * 4e6 * 16 / problem.cluster.point_to_point(0, 4)[1]
    assert calm < busy <= shared * (1.0 + 1e-9)
    assert shared <= Evaluator(problem)(plan).iteration_seconds


def test_a_network_of_many_layers() -> None:
    """BERT-large on eight devices: within half a percent where only neighbours share links."""
    problem = Problem(load_workload("bert-large"), load_cluster("dgx-a100:1"), 64, precision="fp16", optimizer="adam")
    cuts = uniform_cuts(len(problem.workload), 8)
    plan = Plan("test", "1f1b", stages_from_cuts(cuts, len(problem.workload), [(n,) for n in range(8)]), (4,) * 16)
    evaluate = Evaluator(problem)
    quick = QuickReplays(problem, evaluate.layer_costs)(plan)
    assert quick == pytest.approx(evaluate(plan).iteration_seconds, rel=5e-3)
