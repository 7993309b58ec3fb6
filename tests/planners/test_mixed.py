"""Planner mixed: its closed form beside replays, plans that use every kind, proofs that none fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardware_profiles import GraphicsProcessor, load_cluster
from planners import Evaluator, Request, make_plan, planner_entry
from planners.estimate.like_blocks import like_blocks
from planners.mixed import pipeline_search, whole_counts
from planners.mixed.cluster_space import Choices, ClusterSpace
from planners.mixed.label_search import FoundPipelines, search
from planners.mixed.pipeline_search import MixedPipelines, has_kinds
from planners.mixed.space import MixedPipeline, Variant
from planners.search.candidates import asked_policies
from simulator import InfeasiblePlanError, Problem, Zero, group_degrees, load_workload, simulate, workload_from_spec
from simulator.workloads.language_models import Gpt, Llama
from simulator.workloads.synthetic import uniform_chain

CLUSTER = """
name = "two-kinds"

[[servers]]
count = 1
accelerator = "a100-40"
devices = 2

[servers.inside]
topology = "switch"
bandwidth_gb_per_s = 200
latency_us = 5

[[servers]]
count = 2
accelerator = "v100-sxm2"
devices = 2

[servers.inside]
topology = "switch"
bandwidth_gb_per_s = 100
latency_us = 5

[network]
bandwidth_gbps = 100
latency_us = 10
"""


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    """A Llama of four wide blocks on two A100 and four V100."""
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    network = Llama(4, 2048, 16, sequence=1024, vocabulary=8192, intermediate=5632, name="llama").workload()
    return Problem(network, load_cluster(path), 16, precision="fp16", optimizer="adam")


def with_memory(problem: Problem, gib: float) -> Problem:
    """The problem on devices of that much memory."""
    devices = problem.cluster.devices
    assert all(isinstance(device, GraphicsProcessor) for device in devices)
    made = tuple(replace(device, memory_bytes=gib * 2**30) for device in devices)  # type: ignore[type-var]
    return replace(problem, cluster=replace(problem.cluster, devices=made))


def space(problem: Problem, zero: Zero = 0) -> ClusterSpace:
    """All of a problem's pipelines."""
    blocks = like_blocks(problem.workload)
    assert blocks is not None
    choices = Choices(group_degrees(problem), asked_policies(problem, Request()), zero)
    return ClusterSpace(problem, blocks, choices, {})


@pytest.mark.parametrize(("gib", "zero"), [(3.0, 0), (30.0, 1), (2.5, 3)])
def test_the_closed_form_is_near_replays(problem: Problem, gib: float, zero: Zero) -> None:
    """Of the best pipelines each fits as the space says, and takes what it says but for a twentieth."""
    problem = with_memory(problem, gib)
    evaluate, pipelines = Evaluator(problem), space(problem, zero)
    found = search(pipelines, 3e4, 4)
    for seconds, pipeline in found.pipelines[:4]:
        score = evaluate(pipelines.plan("mixed", pipeline))
        assert score.iteration_seconds == pytest.approx(seconds, rel=0.05)
        assert score.fits


def test_reductions_hide_behind_the_backward_but_for_the_last_bucket(problem: Problem) -> None:
    """Of two replicas of all layers: whole they would take a fifth more."""
    pipelines = space(replace(problem, batch=4))
    alone = pipelines.variants.index(Variant(0, 1))
    counts = tuple(2 * (number == alone) for number in range(len(pipelines.variants)))
    pair = MixedPipeline(2, 2, (4,), (counts,))
    outcome = simulate(pipelines.problem, pipelines.plan("mixed", pair))
    assert pipelines.seconds(pair) == pytest.approx(outcome.iteration_seconds, rel=0.01)


@pytest.mark.parametrize("zero", [0, 2])
def test_memory_without_buffers_is_no_more_than_replays_need(problem: Problem, zero: Zero) -> None:
    """Of a pipeline on both kinds no stage is refused where its devices have what its replay needs: none that fits is missed."""
    pipelines = space(problem, zero)
    chosen = [pipelines.variants.index(one) for one in (Variant(0, 1), Variant(1, 2))]
    counts = [tuple(2 * (number == one) for number in range(len(pipelines.variants))) for one in chosen]
    found = MixedPipeline(2, 2, (3, 4), tuple(counts))
    outcome = simulate(problem, pipelines.plan("mixed", found))
    for stage, (kind, variant) in enumerate(zip((0, 1), chosen, strict=True)):
        held = [one for one in outcome.memory if pipelines.kind_of[one.device] == kind]
        spare = min(one.capacity_bytes - one.peak_bytes for one in held)
        choices = replace(pipelines.choices, buffers=False)
        bare = ClusterSpace(problem, pipelines.blocks, choices, {kind: spare * (1.0 - 1e-9)})
        assert bare.deepest(2, 2)[variant, (0, 3)[stage], (3, 4)[stage]] >= 2 - stage


def test_every_kind_is_used(problem: Problem) -> None:
    """Where two A100 alone hold no plan, V100 take a part of it; how good that is known to be is said."""
    problem = with_memory(problem, 2.5)
    found = make_plan("mixed", problem, Request(microbatches=4))
    assert {problem.cluster.devices[one].name for one in found.plan.devices} == {"a100-40", "v100-sxm2"}
    assert 0.0 <= float(str(found.details["closed_form_gap"])) < 0.2
    assert "no plan that the planner chooses from takes less" in found.summary()


def test_a_proof_that_none_fits(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """States alone are more than all memory, or a block is more than any device holds: proven, with the numbers, where searches
    of pipelines that keep no room for what they send end without a bound."""
    few = Request(microbatches=4, options={"zero": "3"})
    with pytest.raises(InfeasiblePlanError, match=r"proves that no mixed pipeline fits: .* GiB"):
        make_plan("mixed", with_memory(problem, 0.5), few)

    def unsure(space: ClusterSpace, *asked: Any, **options: Any) -> FoundPipelines:
        found = search(space, *asked, **options)
        return found if space.choices.buffers else replace(found, bound=1.0)

    monkeypatch.setattr(pipeline_search, "search", unsure)
    with pytest.raises(InfeasiblePlanError, match=r"finds no mixed pipeline that fits: .* GiB"):
        make_plan("mixed", with_memory(problem, 0.5), few)


def test_groups_that_no_server_has_room_for(tmp_path: Path, problem: Problem) -> None:
    """Two servers of three devices hold two pairs, not three: no pipeline of more is found, or counts as the best."""
    path = tmp_path / "threes.toml"
    path.write_text(CLUSTER.replace("devices = 2", "devices = 3").replace("count = 1", "count = 2"))
    problem = replace(problem, cluster=load_cluster(path), batch=96)
    pairs = ClusterSpace(problem, space(problem).blocks, Choices((2,), ("none",), 0), {})
    assert pairs.sizes == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # and not all 96 in one
    found = search(pairs, 3e4, 4)
    assert max(counts for _, pipeline in found.pipelines for counts in np.sum(pipeline.counts, axis=0)) == 2
    assert found.bound < found.pipelines[0][0]


def test_one_kind_of_device(problem: Problem) -> None:
    """On devices of one kind, too, it finds a plan that fits; joint asks it for like blocks on several kinds alone."""
    alone = replace(problem, cluster=load_cluster("dgx-a100:1").take(2))
    assert make_plan("mixed", alone, Request(microbatches=4)).outcome.fits
    blockless = replace(problem, workload=uniform_chain(4))
    assert [has_kinds(one) for one in (problem, alone, blockless)] == [True, False, False]


def test_the_best_of_each_number_of_micro_batches_are_replayed() -> None:
    """In closed form the best four have eight micro-batches; one of four takes less."""
    asked = Problem(
        workload_from_spec("opt-350m", 512),
        load_cluster("sailor-mit-4").take(3),
        8,
        optimizer="sgd",
        communication="send-blocking",
        sequence_parallel=True,
        gradient_reduction="whole",
        memory_reserve=0.8,
    )
    every, four, eight = (make_plan("mixed", asked, Request(microbatches=count)) for count in (None, 4, 8))
    assert every.iteration_seconds == four.iteration_seconds < eight.iteration_seconds
    assert len(every.plan.microbatches) == 4


def test_the_best_of_each_zero_stage_are_replayed() -> None:
    """The best of ZeRO 3 takes 2 % less than those of the others, of which four take less in closed form."""
    asked = Problem(
        load_workload("bert-base"),
        load_cluster("sailor-gcp-24").take(9),
        6,
        optimizer="sgd",
        recompute="whole",
        memory_reserve=0.5,
    )
    every, *parts = (
        make_plan("mixed", asked, Request(microbatches=2, options={"zero": stages} if stages else {}))
        for stages in (None, (0,), (1,), (2,), (3,))
    )
    assert every.plan.zero == 3
    assert every.iteration_seconds <= min(part.iteration_seconds for part in parts) * (1.0 + 1e-9)
    assert every.iteration_seconds < 0.99 * min(part.iteration_seconds for part in parts[:3])


def test_the_ends_of_a_pipeline_reduce_what_both_hold() -> None:
    """GPT-2's embedding is its last layer's weight, too: two stages on slow links take its reduction longer than one says, and in
    closed form what their replay takes; where links do not queue it hides under that of the stage's own."""
    slow = Problem(load_workload("gpt2"), load_cluster("sailor-mit-2").take(4), 8, precision="fp16", optimizer="adam")
    for one in (slow, replace(slow, contention=False)):
        pipelines = space(one)
        alone = tuple(int(variant == Variant(0, 1)) for variant in pipelines.variants)
        for replicas in (1, 2):
            counts = tuple(replicas * count for count in alone)
            found = MixedPipeline(8 // replicas, replicas, (6, 12), (counts, counts))
            outcome = simulate(one, pipelines.plan("mixed", found))
            assert pipelines.seconds(found) == pytest.approx(outcome.iteration_seconds, rel=0.03), (one, replicas)
            assert pipelines.shared(replicas, [[alone.index(1)]])[0, 0] > 0.15 * outcome.iteration_seconds


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_tables_of_stages_leave_out_none_that_fits(zero: Zero) -> None:
    """With some number of replicas, one among them, which under ZeRO 2 keeps no room for what is gathered: a proof that none fits
    is one."""
    small = Gpt(3, 64, 4, vocabulary=512, sequence=32).workload()
    pipelines = space(with_memory(Problem(small, load_cluster("pipedream-a:1").take(2), 4), 0.00103), zero)
    for samples in pipelines.sizes:
        deepest = np.array([pipelines.deepest(samples, replicas) for replicas in pipelines.replicas(samples)])
        assert (pipelines.stages(samples).deepest >= deepest).all()


def test_zero_divides_an_update_by_the_replicas_of_the_pipeline(problem: Problem) -> None:
    """Not by the most that stages may have: of one replica the whole is updated, whatever the ZeRO stage."""
    whole, divided = space(problem, 0), space(problem, 1)
    assert np.array_equal(divided.update(1, 1), whole.update(1, 1))
    assert np.allclose((divided.update(1, 4) - divided.update(1, 2)), (divided.update(1, 2) - divided.update(1, 1)) / 2)
    assert (divided.update(1, 2) < divided.update(1, 1)).any()
    one = tuple(int(variant == Variant(0, 1)) for variant in whole.variants)
    alone = MixedPipeline(2, 1, (whole.layers,), (one,))
    assert divided.seconds(alone) == whole.seconds(alone)


def test_an_interrupt_keeps_the_best_so_far(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best pipeline known at an interrupt is replayed, and the interrupt goes on."""
    evaluate, kept = Evaluator(problem), ClusterSpace.seconds
    calls = iter(range(100))

    def interrupted(self: ClusterSpace, pipeline: MixedPipeline) -> float:
        if evaluate.evaluations == 0 and next(calls) > 20:
            raise KeyboardInterrupt
        return kept(self, pipeline)

    monkeypatch.setattr(ClusterSpace, "seconds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        MixedPipelines()(problem, evaluate, np.random.default_rng(0))
    assert evaluate.best is not None
    assert evaluate.evaluations == 1


def test_more_is_left_free_where_replays_need_more(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays on devices of half the memory that the space is told of: a second search finds what fits there, and nothing is
    proven. One search alone finds none, which is told with the numbers of the closest."""
    network = Llama(2, 2048, 16, sequence=1024, vocabulary=8192, intermediate=5632, name="llama").workload()
    problem = replace(problem, workload=network, batch=4)
    planner = MixedPipelines(Request(microbatches=4, options={"zero": (0,)}))
    roomy = planner(problem, Evaluator(problem), np.random.default_rng(0))
    peak = simulate(problem, roomy).fullest.peak_bytes / 2**30
    told, tight = with_memory(problem, peak), Evaluator(with_memory(problem, peak / 2))
    assert not tight(roomy).fits
    plan = planner(told, tight, np.random.default_rng(0))
    assert tight(plan).fits
    assert not tight.optimal_among
    monkeypatch.setattr(pipeline_search, "ROUNDS", 1)
    with pytest.raises(InfeasiblePlanError, match="planner 'mixed' finds no plan that fits: the closest needs"):
        planner(told, Evaluator(tight.problem), np.random.default_rng(0))


def test_shares_that_are_too_many_to_try_leave_the_bound(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a step of the search for shares no pipeline is found; the bound is no higher than what is found with them."""
    pipelines = space(with_memory(problem, 3.0))
    found = search(pipelines, 3e4, 4)
    monkeypatch.setattr(whole_counts, "MOST_STEPS", 0)
    none = search(pipelines, 3e4, 4)
    assert found.pipelines
    assert not none.pipelines
    assert 0.0 < none.bound <= found.pipelines[0][0] * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"zero": "4"}, "each is one of 0, 1, 2, 3"),
        ({"tensor": "3"}, "cannot have 3 GPUs"),
        ({"tensor": "x"}, "a whole number of at least 1"),
    ],
)
def test_options_that_are_none(problem: Problem, options: dict[str, str], says: str) -> None:
    """One line with the choices."""
    assert says in str(planner_entry("mixed").reason(problem, Request(options=options)))


def test_who_it_does_not_plan_for(problem: Problem) -> None:
    """Other schedules, networks without like blocks, micro-batches that do not divide the batch."""
    entry = planner_entry("mixed")
    assert "plans 1f1b" in str(entry.reason(problem, Request(schedule="gpipe")))
    assert "no blocks" in str(entry.reason(replace(problem, workload=load_workload("vgg16")), Request()))
    assert "no micro-batches of a batch of 16" in str(entry.reason(problem, Request(microbatches=5)))


@pytest.mark.slow
def test_llama_2_on_24_gpus() -> None:
    """Llama-2-7B on 8 A100 of 40 GB and 16 V100 of 16 GB: replicas divide gradients, too, within an eighth of the bound."""
    found = make_plan(
        "mixed",
        Problem(load_workload("llama2-7b"), load_cluster("sailor-gcp-24"), 128, precision="fp16", optimizer="adam"),
    )
    assert found.plan.zero == 2
    assert float(str(found.details["closed_form_gap"])) < 0.125
