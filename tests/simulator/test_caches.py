"""Caches: one object that has seen other plans answers as a fresh one does, whichever field of the plan changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest

from hardware_profiles import Constant, Stack
from simulator import (
    Evaluations,
    LayerCosts,
    LayerSplit,
    Plan,
    Problem,
    Schedule,
    Stage,
    Workload,
    build_schedule,
    simulate,
    to_text,
)
from simulator.options.training_options import BY_BLOCK, Recompute
from simulator.plans.keys import Kept
from simulator.plans.plan import Replication, Zero
from tests.simulator.strategies import star_cluster
from tests.simulator.test_context_and_experts import ATTENTION, EXPERTS

DEVICES, BATCH = 6, 12

Random = np.random.Generator


def network(*, tied: bool) -> Workload:
    """Attention and experts in turn, twice, each a block, of up to three gradient buckets a layer.

    tied: the last layer uses the first one's weights, and not its own
    """
    layers = []
    for number, part in enumerate((ATTENTION, EXPERTS) * 2):
        layers += [
            replace(
                one,
                name=f"{one.name}{number}",
                flop=one.flop * (1 + number / 8),
                parameters=one.parameters * 5000,
                block=number,
                stashed_elements=4.0 + place,
            )
            for place, one in enumerate(part.layers)
        ]
    if tied:
        layers[-1] = replace(layers[-1], tied_to=layers[0].name, tied_parameters=layers[0].parameters)
    return Workload("blocks", tuple(layers), tuple(pairwise(range(len(layers)))))


STACK = Stack(
    name="any",
    gradient_bytes=4,
    **{name: Constant(0.25) for name in ("block_pass", "exposed", "stragglers", "workspace")},
)
"""A framework that adds to every pass, and hides no more than three quarters of what replicas gather and scatter."""


def problem(*, tied: bool, bandwidth: float) -> Problem:
    """On six devices around a switch, any of which may form a group, under a framework with constants of its own."""
    cluster = replace(star_cluster(DEVICES, bandwidth=bandwidth), tensor_groups="cluster")
    return Problem(network(tied=tied), cluster, BATCH, stack=STACK)


def spread(rng: Random, layers: int, replicas: int, degree: int, stages: int) -> tuple[Stage, ...]:
    """Contiguous stages, each on as many devices of its own, or all on the same."""
    cuts = [0, *sorted(rng.choice(np.arange(1, layers), stages - 1, replace=False).tolist()), layers]
    order, each = rng.permutation(DEVICES).tolist(), replicas * degree
    first = [stage * each % DEVICES for stage in range(stages)]
    return tuple(
        Stage(tuple(range(begin, end)), tuple(order[one : one + each]), (degree,) * replicas)
        for one, (begin, end) in zip(first, pairwise(cuts), strict=True)
    )


def composition(rng: Random, parts: int) -> tuple[int, ...]:
    """Sizes of so many micro-batches."""
    cuts = [0, *sorted(rng.choice(np.arange(1, BATCH), parts - 1, replace=False).tolist()), BATCH]
    return tuple(end - begin for begin, end in pairwise(cuts))


def sizes_of_each_stage(rng: Random, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Micro-batches of each stage."""
    return tuple(composition(rng, int(rng.integers(1, 5))) for _ in plan.stages)


def of_each_stage(rng: Random, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Micro-batches of each stage, or none."""
    return sizes_of_each_stage(rng, plan) if rng.random() < 0.5 else ()


def recut(rng: Random, plan: Plan) -> tuple[Stage, ...]:
    """Other layers in the same stages."""
    cuts = [0, *sorted(rng.choice(np.arange(1, LAYERS), len(plan.stages) - 1, replace=False).tolist()), LAYERS]
    return tuple(
        replace(stage, layers=tuple(range(*ends))) for stage, ends in zip(plan.stages, pairwise(cuts), strict=True)
    )


def own_order(rng: Random, plan: Plan) -> tuple[str, ...]:
    """The order of a family as the plan's own."""
    name = str(rng.choice(["gpipe", "zb-h1"]))
    made: Schedule = build_schedule(name, len(plan.stages), len(plan.microbatches))
    return tuple(to_text(made).splitlines())


def some_blocks(rng: Random, plan: Plan) -> dict[str, Any]:
    """A policy of blocks for every stage, and how many of its blocks it holds for."""
    layers = network(tied=False).layers
    held = [len({layers[layer].block for layer in stage.layers} - {0}) for stage in plan.stages]
    return {
        "recompute": tuple(str(rng.choice(BY_BLOCK)) for _ in held),
        "recomputed_blocks": tuple(int(rng.integers(0, min(2, one) + 1)) for one in held),
    }


def shared_layer(rng: Random, plan: Plan) -> dict[str, Any]:
    """Two stages that share a layer, or none."""
    first, second = spread(rng, LAYERS, int(rng.integers(1, 3)), 1, 2)
    layer, fraction = int(rng.choice([2, 7, 9])), float(rng.choice([0.25, 0.5, 0.75]))
    shared = (
        replace(first, layers=tuple(range(layer + 1))),
        replace(second, layers=tuple(range(layer, LAYERS))),
    )
    splits = (LayerSplit(layer, fraction),)
    return UNCUT | ({"stages": shared, "splits": splits} if rng.random() < 0.7 else {"stages": (first, second)})


UNCUT: Mapping[str, Any] = {
    "recompute": (),
    "recomputed_blocks": (),
    "forward_sizes": (),
    "backward_sizes": (),
    "order": (),
    "splits": (),
}
"""What is of other stages."""

SCHEDULES_CHANGED = ("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1", "pipedream", "2bw")

LAYERS = len(network(tied=False))

CHANGES: Mapping[str, Callable[[Random, Plan], dict[str, Any]]] = {
    "schedule": lambda rng, plan: {"schedule": str(rng.choice(SCHEDULES_CHANGED)), "options": ()},
    "stages": lambda rng, plan: {
        **UNCUT,
        "stages": spread(rng, LAYERS, int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(1, 4))),
    },
    "splits": shared_layer,
    "microbatches": lambda rng, plan: {"microbatches": composition(rng, int(rng.integers(1, 6))), "order": ()},
    "replication": lambda rng, plan: {
        "replication": next(one for one in get_args(Replication) if one != plan.replication)
    },
    "forward_sizes": lambda rng, plan: {"forward_sizes": of_each_stage(rng, plan), "schedule": "gpipe", "order": ()},
    "backward_sizes": lambda rng, plan: {
        "backward_sizes": sizes_of_each_stage(rng, plan) if plan.forward_sizes else ()
    },
    "order": lambda rng, plan: {"order": own_order(rng, plan), "forward_sizes": (), "backward_sizes": ()},
    "recompute": lambda rng, plan: {
        "recompute": tuple(str(rng.choice(get_args(Recompute))) for _ in plan.stages) if rng.random() < 0.8 else ()
    },
    "recomputed_blocks": lambda rng, plan: some_blocks(rng, plan),
    "options": lambda rng, plan: {
        "forward_sizes": (),
        "backward_sizes": (),
        "schedule": "seq1f1b",
        "options": (("slices", int(rng.integers(1, 3))),),
        "recompute": (),
        "recomputed_blocks": (),
    },
    "zero": lambda rng, plan: {"zero": int(rng.choice(get_args(Zero)))},
    "context": lambda rng, plan: {"context": int(rng.integers(1, 3))},
    "expert": lambda rng, plan: {"expert": int(rng.choice([1, 2, 4]))},
    "shard": lambda rng, plan: {"shard": int(rng.choice([0, 2, 4]))},
    "layers": lambda rng, plan: {"stages": recut(rng, plan), "splits": ()},
    "devices": lambda rng, plan: {
        "stages": tuple(
            replace(
                stage, devices=tuple(np.roll(range(DEVICES), int(rng.integers(DEVICES)))[list(stage.devices)].tolist())
            )
            for stage in plan.stages
        )
    },
    "degrees": lambda rng, plan: {
        "stages": tuple(
            replace(stage, degrees=(len(stage.devices),) if not stage.degrees else ()) for stage in plan.stages
        )
    },
}
"""How each field of a plan and of its stages changes, with what must change beside it."""

SETTLED = {"planner"}
"""Fields that say nothing of what runs."""


def test_every_field_of_a_plan_is_changed() -> None:
    """A new field of Plan or Stage needs a change here, and so is part of the keys that caches have."""
    assert set(CHANGES) == {one.name for kind in (Plan, Stage) for one in fields(kind)} - SETTLED


Answer = tuple[float, dict[int, float]] | str
"""Seconds and the peak of each device in bytes, or the words of a refusal."""


def fresh(asked: Problem) -> LayerCosts:
    """Costs that share nothing that other plans have left."""
    costs = LayerCosts(asked)
    costs.structures = Kept()
    return costs


def replayed(asked: Problem, plan: Plan, costs: LayerCosts) -> Answer:
    """What a replay gives."""
    try:
        found = simulate(asked, plan, engine="compiled", layer_costs=costs)
    except ValueError as error:
        return str(error)
    return found.iteration_seconds, {one.device: one.peak_bytes for one in found.memory}


def evaluated(evaluate: Evaluations, plan: Plan) -> Answer | None:
    """What an evaluation gives; None of a plan that it leaves to a replay."""
    try:
        found, peaks = evaluate(plan), evaluate.peak_bytes(plan)
    except ValueError as error:
        return str(error)
    return None if found is None or peaks is None else (found.iteration_seconds, peaks)


def begun(rng: Random) -> list[Plan]:
    """Plans from which walks begin, that differ in what they share: replicas, groups, chunks, streams, sizes, slices."""
    plan = Plan("hand", "1f1b", spread(rng, LAYERS, 2, 1, 2), composition(rng, 4))
    groups = replace(plan, stages=spread(rng, LAYERS, 1, 2, 2), context=2, expert=2)
    chunks = replace(plan, schedule="interleaved-1f1b", stages=spread(rng, LAYERS, 2, 1, 4))
    straight = replace(plan, schedule="gpipe", stages=spread(rng, LAYERS, 1, 1, 3))
    return [
        plan,
        replace(plan, zero=3),
        groups,
        chunks,
        replace(chunks, recompute=("whole", "none", "attention", "blocks")),
        straight,
        replace(straight, forward_sizes=tuple(composition(rng, 3) for _ in range(3))),
        replace(plan, schedule="1f1b-rr", replication="round-robin"),
        replace(straight, schedule="seq1f1b", options=(("slices", 2),)),
    ]


@pytest.mark.parametrize("seeds", [(8,), pytest.param(range(10, 15), marks=pytest.mark.slow)])
def test_one_object_answers_changed_plans_as_fresh_ones(seeds: Sequence[int]) -> None:
    """One `Evaluations` and one `LayerCosts` for plans of which each changes one field of another, each also cut elsewhere."""
    ran = set()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        bandwidth = float(rng.choice([1e6, 1e9]))
        for tied in (False, True):
            asked = problem(tied=tied, bandwidth=bandwidth)
            kept, costs = Evaluations(asked), LayerCosts(asked)
            begins = begun(rng)[tied::2]
            for plan in begins if seed > 9 else begins[tied::2]:
                for name in ("", "backward_sizes", *rng.permutation(list(CHANGES)).tolist()):
                    changed = replace(plan, **CHANGES[name](rng, plan)) if name else plan
                    for one in (changed, replace(changed, stages=recut(rng, changed)))[rng.integers(2) :]:
                        shown = replayed(asked, one, fresh(asked))
                        assert replayed(asked, one, costs) == shown, one
                        assert evaluated(kept, one) in (shown, None), one
                    if not isinstance(shown, str):
                        ran.add(name)
                        plan = one if rng.random() < 0.3 else plan
    assert ran == {*CHANGES, ""}


def test_blocks_that_a_stage_has_not_are_refused_behind_plans_that_have_them() -> None:
    """A stage has as many blocks as its layers say, which are not part of what plans of the same shape share."""
    evaluate = Evaluations(problem(tied=False, bandwidth=1e9))

    def cut(at: int) -> Plan:
        stages = Stage(tuple(range(at)), (0,)), Stage(tuple(range(at, LAYERS)), (1,))
        again = {"recompute": ("blocks", "blocks"), "recomputed_blocks": (1, 1)}
        return Plan("hand", "1f1b", stages, (6, 6), **again)

    assert evaluated(evaluate, cut(LAYERS - 4)) not in (None, "")
    refused = evaluated(evaluate, cut(1))
    assert isinstance(refused, str)
    assert "recomputes 1 blocks of stage 0, which has 0" in refused


@pytest.mark.parametrize("first", get_args(Zero))
def test_each_zero_stage_is_itself_behind_each_other(first: Zero) -> None:
    """What replicas gather and scatter in the passes of a stage is in the seconds of its ops."""
    asked = problem(tied=False, bandwidth=1e9)
    plan = Plan("hand", "1f1b", spread(np.random.default_rng(0), LAYERS, 3, 1, 2), (6, 6), zero=first)
    for other in get_args(Zero):
        kept = Evaluations(asked)
        for one in (plan, replace(plan, zero=other)):
            assert evaluated(kept, one) == replayed(asked, one, fresh(asked)), other
