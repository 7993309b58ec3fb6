"""Plan words: a plan in one line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_profiles import load_cluster
from simulator import Plan, Problem, Stage, equal_microbatches, plan_words, stages_from_cuts, workload_from_spec
from simulator.plans.lacks import _recomputes_unlike


def problem(workload: str, cluster: str, batch: int) -> Problem:
    """A network on GPUs."""
    return Problem(workload_from_spec(workload, None), load_cluster(cluster), batch)


def grouped(cuts: tuple[int, ...], layers: int, ranks: list[tuple[int, ...]], group: int) -> tuple[Stage, ...]:
    """Stages on groups of so many devices."""
    return tuple(
        Stage(one.layers, one.devices, (group,) * (len(one.devices) // group))
        for one in stages_from_cuts(cuts, layers, ranks)
    )


def test_a_transformer_as_engineers_write_it() -> None:
    """Degrees, ZeRO, samples of a replica, schedule with its groups, stages that recompute, devices that are left."""
    asked = problem("gpt2-medium", "dgx-a100:2", 64)
    layers = len(asked.workload)
    ends = [number + 1 for number in range(layers - 1) if asked.workload.layers[number].block == 12][-1:]
    ranks = [(0, 1, 2, 3), (4, 5, 6, 7)]
    plan = Plan(
        "mine",
        "interleaved-1f1b",
        grouped(tuple(ends), layers, ranks, 2),
        equal_microbatches(64, 16),
        recompute=("blocks", "none"),
        zero=1,
    )
    assert plan_words(asked, plan) == (
        "pp2 tp2 cp1 dp2 · ZeRO-1 · mb 2 × 16 · interleaved-1f1b · recompute blocks in 1 of 2 stages · 8 of 16 GPUs idle"
    )
    some = replace(plan, recompute=("blocks", "blocks"), recomputed_blocks=(2, 2))
    assert "recompute 2 of 12 blocks ·" in plan_words(asked, some)
    counts = ((), (2, 2), (0, 12), (2, 0), (2, 3))  # 0 stands for all of a stage
    unlike = [_recomputes_unlike(asked, replace(some, recomputed_blocks=one)) for one in counts]
    assert unlike == [False, False, False, True, True]


def test_unlike_replicas_and_sizes() -> None:
    """PipeDream's 15-1 for VGG-16, three micro-batches of 342, 341 and 341 samples."""
    asked = problem("vgg16", "pipedream-b", 1024)
    layers = len(asked.workload)
    plan = Plan(
        "mine", "1f1b", stages_from_cuts((layers - 3,), layers, [tuple(range(15)), (15,)]), equal_microbatches(1024, 3)
    )
    words = f"pp2 dp15-1 · layers {layers - 3}+3 · ZeRO-0 · mb 341-342 × 3 of all replicas · 1f1b · no recomputation"
    assert plan_words(asked, plan) == words


def test_sizes_of_many_stages_are_counted() -> None:
    """Eight are written out, more are not."""
    asked, words = problem("chain:17", "dapple-c:16", 8), {8: "1+1+1+1+1+1+1+10", 9: "1 × 8, 9"}
    for count, sizes in words.items():
        stages = stages_from_cuts(tuple(range(1, count)), 17, [(device,) for device in range(count)])
        assert plan_words(asked, Plan("mine", "gpipe", stages, (2,) * 4)).split(" · ")[1] == f"layers {sizes}"


@pytest.mark.parametrize(
    ("schedule", "options", "words"),
    [
        ("seq1f1b", (("slices", 2), ("depth", 4)), "seq1f1b (slices 2)"),
        ("zb-v", (("op_seconds", "9,9,3,1"),), "zb-v"),
        ("of another package", (("depth", 4),), "of another package"),
    ],
)
def test_options_of_a_family_are_told(schedule: str, options: tuple[tuple[str, int | str], ...], words: str) -> None:
    """Those that it has, unless they are lists."""
    plan = Plan("mine", schedule, stages_from_cuts((2,), 4, [(0,), (1,)]), (2, 2), options=options)
    assert plan_words(problem("chain:4", "dapple-c:2", 4), plan).split(" · ")[2] == words


def test_copies_along_a_context_may_divide_states() -> None:
    """Two GPUs of one replica, each with half of the tokens."""
    asked = problem("gpt2", "dgx-h100:1", 8)
    for context, words in ((1, "pp1 tp2 cp1 dp1"), (2, "pp1 tp1 cp2 dp1 · ZeRO-0")):
        stage = Stage(tuple(range(len(asked.workload))), (0, 1), (2,))
        told = plan_words(asked, Plan("mine", "gpipe", (stage,), (8,), context=context))
        assert told == f"{words} · mb 8 × 1 · no recomputation · 6 of 8 GPUs idle"


@pytest.mark.parametrize(
    ("order", "schedule", "words"),
    [((), "zb-h1", "zb-h1"), (("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"), "search", "searched order of ops")],
)
def test_schedules_by_name_or_searched(order: tuple[str, ...], schedule: str, words: str) -> None:
    """A family by its name; stages of as many layers are not told."""
    asked = problem("chain:4", "dapple-c:2", 4)
    plan = Plan("mine", schedule, stages_from_cuts((2,), 4, [(0,), (1,)]), (2, 2), order=order)
    assert plan_words(asked, plan) == f"pp2 dp1 · mb 2 × 2 · {words} · no recomputation"


def test_micro_batches_of_each_stage() -> None:
    """Stages that cut the batch in ways of their own."""
    asked = problem("chain:4", "dapple-c:2", 4)
    stages = stages_from_cuts((2,), 4, [(0,), (1,)])
    plan = Plan("mine", "gpipe", stages, (4,), forward_sizes=((2, 2), (4,)), backward_sizes=((4,), (2, 2)))
    assert plan_words(asked, plan) == "pp2 dp1 · micro-batches of each stage's own · gpipe · no recomputation"


def test_two_directions_are_no_replicas() -> None:
    """Chimera's stages are on two GPUs, one of each direction."""
    asked = problem("vgg16", "pipedream-b", 64)
    stages = stages_from_cuts((10, 20), len(asked.workload), [(0, 2), (1,), (2, 0)])
    plan = Plan("mine", "chimera", stages, equal_microbatches(64, 8), "round-robin")
    assert plan_words(asked, plan).startswith(
        f"pp3 dp1 · layers 10+10+{len(asked.workload) - 20} · ZeRO-0 · mb 8 × 8 · chimera"
    )


def test_a_network_with_experts_says_how_they_are_divided() -> None:
    """Also where they are not, as the layout of another plan may."""
    asked = problem("mixtral-8x7b", "dgx-h100:1", 8)
    plan = Plan("mine", "gpipe", stages_from_cuts((), len(asked.workload), [tuple(range(8))]), (8,), zero=3)
    for expert in (1, 4):
        assert plan_words(asked, replace(plan, expert=expert)).startswith(f"pp1 tp1 cp1 ep{expert} dp8 · ZeRO-3 · mb 1")


def test_one_stage_has_no_schedule() -> None:
    """Data parallelism."""
    asked = problem("chain:4", "dapple-c:2", 4)
    plan = Plan("mine", "gpipe", stages_from_cuts((), 4, [(0, 1)]), (4,))
    assert plan_words(asked, plan) == "pp1 dp2 · ZeRO-0 · mb 2 × 1 · no recomputation"
