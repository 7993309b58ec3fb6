"""Rule of thumb: the first layout that fits of those that engineers write down by hand."""

from __future__ import annotations

from hardware_profiles import load_cluster
from planners import Request, make_plan
from simulator import Problem, workload_from_spec


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
    alone = make_plan("rule-of-thumb", problem("llama2-70b", "dgx-h100:8", 128)).plan
    assert alone.notation == "8t8"
    larger = make_plan("rule-of-thumb", problem("gpt3-175b", "dgx-h100:8", 128)).plan
    assert {stage.degrees for stage in larger.stages} == {(8,) * larger.replicas[0]}
    assert len(larger.stages) > 1
    assert (
        max(map(len, (stage.layers for stage in larger.stages))) - min(map(len, (s.layers for s in larger.stages)))
        <= 12
    )


def test_what_is_asked_for_is_kept() -> None:
    """Stages, micro-batches, ZeRO and recomputation."""
    asked = Request(stages=2, microbatches=16, recompute="whole", options={"zero": (0,)})
    plan = make_plan("rule-of-thumb", problem("gpt2-xl", "dgx-a100:1", 64), asked).plan
    assert (len(plan.stages), len(plan.microbatches), plan.zero, set(plan.recompute)) == (2, 16, 0, {"whole"})


def test_groups_that_are_asked_for_are_kept() -> None:
    """Groups of three, which the rule itself never takes."""
    asked = Request(options={"tensor": (3,)})
    plan = make_plan("rule-of-thumb", problem("gpt2", "dgx-a100:1", 16), asked).plan
    assert {degree for stage in plan.stages for degree in stage.degrees} == {3}


def test_a_batch_below_the_replicas_is_one_micro_batch() -> None:
    """Four images on eight GPUs."""
    few = Problem(workload_from_spec("vgg16", None), load_cluster("pipedream-b:1"), 4)
    assert make_plan("rule-of-thumb", few).plan.microbatches == (4,)
