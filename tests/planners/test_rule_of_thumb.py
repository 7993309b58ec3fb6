"""Rule of thumb: the first layout that fits of those that engineers write down by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hardware_profiles import Runs, Stack, load_cluster
from planners import Request, make_plan
from planners.search.candidates import asked_policies
from planners.straight.rule_of_thumb import HandMadeLayout
from simulator import InfeasiblePlanError, Problem, recompute_words, workload_from_spec
from simulator.workloads.language_models import Gpt
from tests.simulator.strategies import star_cluster


def problem(workload: str, cluster: str, batch: int) -> Problem:
    """A transformer in bf16 with Adam."""
    network = workload_from_spec(workload, None)
    return Problem(network, load_cluster(cluster), batch, precision="bf16", optimizer="adam")


def test_what_fits_on_one_device_is_divided_by_data_alone() -> None:
    """GPT-2 of 1.5 billion parameters on eight A100: eight replicas, optimizer states divided, micro-batches of four samples."""
    plan = make_plan("rule-of-thumb", problem("gpt2-xl", "dgx-a100:1", 64)).plan
    assert (plan.notation, plan.zero, len(plan.microbatches)) == ("8", 1, 2)


def test_a_larger_network_is_divided_inside_a_server_first() -> None:
    """Of 70 billion parameters no group below eight GPUs holds its part; then the pipeline goes across servers."""
    alone = make_plan("rule-of-thumb", problem("llama2-70b", "dgx-h100:8", 16)).plan
    assert alone.notation == "8t8"
    larger = make_plan("rule-of-thumb", problem("gpt3-175b", "dgx-h100:8", 16)).plan
    assert {stage.degrees for stage in larger.stages} == {(8,) * larger.replicas[0]}
    assert len(larger.stages) > 1
    assert (
        max(map(len, (stage.layers for stage in larger.stages))) - min(map(len, (s.layers for s in larger.stages)))
        <= 12
    )


def test_what_is_asked_for_is_kept() -> None:
    """Stages, micro-batches, ZeRO and recomputation."""
    asked = Request(schedule="gpipe", stages=2, microbatches=16, recompute="whole", options={"zero": (0,)})
    plan = make_plan("rule-of-thumb", problem("gpt2-xl", "dgx-a100:1", 64), asked).plan
    assert (len(plan.stages), len(plan.microbatches), plan.zero, set(plan.recompute)) == (2, 16, 0, {"whole"})
    assert plan.schedule == "gpipe"


def test_groups_that_are_asked_for_are_kept() -> None:
    """Groups of three, which the rule itself never takes."""
    asked = Request(options={"tensor": (3,)})
    plan = make_plan("rule-of-thumb", problem("gpt2", "dgx-a100:1", 16), asked).plan
    assert {degree for stage in plan.stages for degree in stage.degrees} == {3}


def test_a_batch_below_the_replicas_is_one_micro_batch() -> None:
    """Four images on eight GPUs."""
    few = Problem(workload_from_spec("vgg16", None), load_cluster("pipedream-b:1"), 4)
    assert make_plan("rule-of-thumb", few).plan.microbatches == (4,)


def test_stages_that_the_rule_does_not_try_are_refused() -> None:
    """Three of twelve blocks on two servers: one line with what it tries."""
    said = (
        "planner 'rule-of-thumb' finds no layout of 3 stages: it tries one stage, and 2, 4, 8, ... stages of a block or more, "
        "each on groups of as many GPUs as tensor parallelism may have"
    )
    with pytest.raises(InfeasiblePlanError, match=f"^{re.escape(said)}$"):
        make_plan("rule-of-thumb", problem("gpt2", "dgx-a100:2", 8), Request(stages=3))


@pytest.mark.parametrize(
    ("cluster", "shapes"),
    [
        ("dapple-b:16", [(1, 1), (1, 2), (1, 4), (1, 8), (1, 16)]),
        ("dgx-a100:2", [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)]),
    ],
)
def test_layouts_come_in_the_order_of_the_rule(cluster: str, shapes: list[tuple[int, int]]) -> None:
    """Servers of one device, and of eight: degree of groups and number of stages; of each micro-batches of 4, 2 and 1 samples,
    and blocks as even as whole ones can be; all without recomputation, then with the least and with more of it."""
    asked = replace(problem("gpt2-medium", "dgx-a100:1", 64), cluster=load_cluster(cluster), precision="fp16")
    found = [
        (
            plan.recompute[0],
            max(plan.stages[0].degrees, default=1),
            len(plan.stages),
            64 // len(plan.microbatches) // plan.replicas[0],
        )
        for plan in HandMadeLayout().layouts(asked)
    ]
    words = list(dict.fromkeys(word for word, *_ in found))
    assert words[0] == "none"
    assert set(words) == set(asked_policies(asked, Request()))
    assert found == [(word, *shape, samples) for word in words for shape in shapes for samples in (4, 2, 1)]
    for plan in HandMadeLayout().layouts(asked):
        blocks = [len({asked.workload.layers[one].block for one in stage.layers} - {0}) for stage in plan.stages]
        assert max(blocks) - min(blocks) <= 1
        assert len(plan.devices) == len(asked.cluster.devices)


def test_layers_of_a_network_without_blocks_are_dealt_out_evenly() -> None:
    """On four servers of one device: the whole share of the batch in a micro-batch, then half of it, down to one sample."""
    asked = Problem(workload_from_spec("chain:10", None), load_cluster("dapple-b:4"), 24)
    found = [(len(plan.stages), len(plan.microbatches)) for plan in HandMadeLayout().layouts(asked)]
    assert found[: len(found) // len(recompute_words(asked.workload))] == [
        *((1, count) for count in (1, 2, 6)),
        *((2, count) for count in (1, 2, 4, 12)),
        *((4, count) for count in (1, 2, 4, 8, 24)),
    ]
    lengths = {tuple(len(stage.layers) for stage in plan.stages) for plan in HandMadeLayout().layouts(asked)}
    assert lengths == {(10,), (5, 5), (2, 3, 3, 2)}


@pytest.mark.parametrize(
    ("blocks", "servers", "shapes"),
    [
        (4, ((0, 1), (2, 3), (4, 5), (6, 7)), [(1, 1), (2, 1), (2, 2), (2, 4)]),
        (3, ((0, 1), (2, 3), (4, 5), (6, 7)), [(1, 1), (2, 1), (2, 2)]),  # four stages of three blocks
        (4, ((0, 1, 2), (3, 4, 5), (6, 7, 8)), [(1, 1), (2, 1), (2, 2)]),  # nine devices, in three servers
    ],
)
def test_layouts_that_blocks_or_servers_do_not_hold_are_left_out(
    blocks: int, servers: tuple[tuple[int, ...], ...], shapes: list[tuple[int, int]]
) -> None:
    """Of two heads, groups of two; stages, as many as are powers of two, each of a block and of a group inside a server. A stack
    without pipelines has one stage.
    """
    cluster = replace(star_cluster(sum(map(len, servers))), servers=servers)
    asked = Problem(Gpt(blocks, 8, 2, 4, 10).workload(), cluster, 8)
    alone = replace(asked, stack=Stack(name="alone", runs=Runs(pipeline=False)))
    for one, expected in ((asked, shapes), (alone, [(1, 1), (2, 1)])):
        plans = HandMadeLayout().layouts(one)
        found = dict.fromkeys((max(plan.stages[0].degrees, default=1), len(plan.stages)) for plan in plans)
        assert list(found) == expected
