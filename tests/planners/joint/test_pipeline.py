"""Pipelines are plans, and are read from these."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planners import Evaluator, Request, make_plan
from planners.joint.neighbourhood import Neighbourhood
from planners.joint.pipeline import Again, Pipeline, pipeline_of
from simulator import (
    InfeasiblePlanError,
    LayerCosts,
    Stage,
    check_plan,
    equal_microbatches,
)
from tests.planners.conftest import PROBLEMS
from tests.planners.joint.problems import problem, some


@pytest.mark.parametrize(
    ("workload", "cluster", "options"),
    [
        ("gpt2-medium", "dgx-a100:2", {"precision": "bf16", "optimizer": "adam"}),
        ("mixtral-8x7b", "dgx-h100:4", {"precision": "bf16", "optimizer": "adam"}),
        ("vgg16", "pipedream-a", {}),
        ("bert-large", "sailor-gcp-24", {"precision": "fp16", "optimizer": "adam"}),
    ],
)
def test_a_walk_meets_plans_that_are_those_pipelines(workload: str, cluster: str, options: dict[str, object]) -> None:
    """Every pipeline on a walk of random moves is a plan of the problem, or refused, and read from its plan it is itself."""
    asked, ran = problem(workload, cluster, **options), 0
    for one in some(asked, Request(), seed=3, steps=40):
        plan = one.plan(asked, "joint")
        try:
            check_plan(asked, plan)
        except InfeasiblePlanError:
            continue
        assert pipeline_of(asked, plan) == one
        ran += 1
    assert ran >= 30


@pytest.mark.parametrize(
    ("schedule", "ranks"),
    [("chimera", ((4,), (1,), (2,))), ("dualpipe", ((0,), (1,), (2,), (3,))), ("seq1f1b", ((0, 1), (2, 3)))],
)
def test_opposite_pipelines_and_slices_are_plans(schedule: str, ranks: tuple[tuple[int, ...], ...]) -> None:
    """A stage is on the rank of each direction, the one in the middle of both; what is read from its plan is the same."""
    asked = problem("gpt2", "pipedream-a:2", precision="fp16")
    none: Again = "none", 0
    options = (("slices", 4),) if schedule == "seq1f1b" else ()
    one = Pipeline(schedule, ranks, (20, 50, 80)[: len(ranks) - 1], 8, (none,) * len(ranks), options)
    plan = one.plan(asked, "joint")
    held = [stage.devices for stage in plan.stages]
    assert (
        held
        == {
            "chimera": [(4, 2), (1,), (2, 4)],
            "dualpipe": [(0, 3), (1, 2), (2, 1), (3, 0)],
            "seq1f1b": [(0, 1), (2, 3)],
        }[schedule]
    )
    assert Evaluator(asked)(plan).iteration_seconds > 0.0
    assert pipeline_of(asked, plan) == one
    assert one.copies == 2
    assert Neighbourhood(asked, Request(schedule=schedule), LayerCosts(asked)).allows(one)
    assert pipeline_of(asked, replace(plan, schedule="1f1b", options=())) != one


def test_what_is_no_pipeline_is_told() -> None:
    """Sizes and orders of its own, and stale weights."""
    asked = PROBLEMS["two-servers"]
    plan = make_plan("uniform", asked).plan
    assert pipeline_of(asked, plan) is not None
    unlike = replace(plan, microbatches=(3, 1) if asked.batch == 4 else equal_microbatches(asked.batch, 1))
    assert pipeline_of(asked, unlike) is None
    assert pipeline_of(asked, replace(plan, schedule="pipedream")) is None
    sizes = (plan.microbatches,) * len(plan.stages)
    assert pipeline_of(asked, replace(plan, forward_sizes=sizes, backward_sizes=sizes)) is None
    first, last = Stage((0, 1), (0, 1), (2,)), Stage((2, 3), (2,), (1,))
    assert pipeline_of(asked, replace(plan, stages=(first, last))) is None
    assert pipeline_of(asked, replace(plan, order=("0F0 0B0",), schedule="mine")) is None
    assert pipeline_of(asked, replace(plan, schedule="zb-v")) is None  # which has two stages a rank


@pytest.mark.parametrize(
    ("again", "told"), [((12, 12), (12, 0)), ((1, 11), (1, 11)), ((99, 3), (0, 3)), ((13, 12), ()), ((0, 0), ())]
)
def test_no_more_blocks_run_again_than_a_stage_has(again: tuple[int, int], told: tuple[int, ...]) -> None:
    """Of 13 and 12 blocks, one cut in two: a plan says how many of them only where others do not run again."""
    asked = problem("bert-large", "dapple-b:4", 16)
    one = Pipeline("1f1b", ((0,), (1,)), (len(asked.workload) // 2,), 4, tuple(("blocks", count) for count in again))
    assert one.blocks(asked) == [13, 12]
    assert one.plan(asked, "").recomputed_blocks == told
