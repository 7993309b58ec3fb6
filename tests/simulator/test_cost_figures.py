"""Figures of costs: what every option of a problem and of a plan makes of the seconds and bytes of one small network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hardware_profiles import Constant, Stack, load_cluster
from simulator import (
    Evaluations,
    Experts,
    Gpt,
    Llama,
    OpKind,
    Plan,
    PlanCosts,
    Problem,
    Stage,
    lower_bound,
)
from tests.records import Recorded, weight

GPT = Gpt(4, 1024, 16, sequence=256, vocabulary=1000).workload()
MIXTURE = Llama(
    4, 512, 8, key_value_heads=4, sequence=128, vocabulary=500, experts=Experts(4, 2, 768, dense=(0,))
).workload()
STACK = Stack(
    name="mine",
    **{
        name: Constant(value)
        for name, value in (("products", 1.1), ("attention", 1.3), ("elementwise", 1.2), ("casts", 2.0))
    },
    **{
        name: Constant(value)
        for name, value in (
            ("experts", 1.5),
            ("odd_heads", 0.5),
            ("block_pass", 1e-4),
            ("exposed", 0.4),
            ("launches", 1.7),
        )
    },
    **{name: Constant(value) for name, value in (("tensor_collectives", 1.4), ("replica_collectives", 1.6))},
    **{name: Constant(value) for name, value in (("stragglers", 0.05), ("logits", 2.5), ("workspace", 1e6))},
)
KINDS = (
    *(OpKind.FORWARD, OpKind.BACKWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT),
    *(OpKind.RECOMPUTE, OpKind.UPDATE, OpKind.PREDICT),
)


def stages(workload: Any, parts: int, devices: int, degree: int) -> tuple[Stage, ...]:
    """Equal parts of the layers, each on as many devices in a row, in groups of so many."""
    bounds = [len(workload) * part // parts for part in range(parts + 1)]
    degrees = (degree,) * (devices // degree) if degree > 1 else ()
    return tuple(
        Stage(tuple(range(bounds[part], bounds[part + 1])), tuple(range(part * devices, (part + 1) * devices)), degrees)
        for part in range(parts)
    )


def case(
    *layout: int, cluster: str = "dgx-h100:2", workload: Any = GPT, stack: Stack = STACK, **said: Any
) -> tuple[Problem, Plan]:
    """A problem, and a plan of `layout`: parts, devices of each, and degrees of its groups."""
    of_plan = {name: said.pop(name) for name in ("zero", "context", "expert", "shard", "options") if name in said}
    precision = said.pop("precision", "bf16")
    problem = Problem(workload, load_cluster(cluster), 16, stack, precision=precision, optimizer="adam", **said)
    return problem, Plan("mine", "1f1b", stages(workload, *layout), (8, 8), **of_plan)


CASES: dict[str, tuple[Problem, Plan]] = {
    "replicas": case(2, 4, 1),
    "replicas, whole gradients of four bytes": case(2, 4, 1, gradient_reduction="whole", gradient_bytes=4),
    "groups": case(2, 4, 2, recompute="blocks"),
    "groups of tokens, fp8": case(2, 4, 2, sequence_parallel=True, precision="fp8"),
    "contexts": case(2, 8, 4, context=2, zero=1, recompute="attention"),
    "experts": case(2, 4, 1, expert=2, workload=MIXTURE, zero=1),
    "experts in groups": case(1, 16, 2, expert=4, workload=MIXTURE, zero=2, shard=4),
    "zero 2": case(2, 8, 1, zero=2, recompute="between-products"),
    "zero 3": case(1, 16, 1, zero=3, recompute="whole"),
    "zero 3, two copies": case(1, 16, 2, zero=3, shard=4, sequence_parallel=True),
    "V100": case(2, 2, 1, cluster="pipedream-b:1", precision="fp32"),
    "boards": case(4, 1, 1, cluster="fpga-vcu118-4", precision="fp16", stack=Stack(name="plain")),
    "mixed GPUs": case(2, 8, 2, cluster="sailor-mit-4", precision="fp16"),
}


WHOLE = ("contexts", "experts in groups", "V100")


@pytest.mark.parametrize("name", CASES)
def test_what_a_plan_costs(name: str, recorded: Recorded) -> None:
    """Seconds of the ops of each stage by cause, transfers, collectives and their units, elements and bytes of each device, and
    seconds and bytes of the iteration. Parts of an op add up to it, and no bound is above what the plan takes. Of most plans the
    stages are recorded by weight."""
    problem, plan = CASES[name]
    costs, found = PlanCosts(problem, plan), dict[str, Any]()
    for stage in range(len(plan.stages)):
        own: dict[str, Any] = {}
        for kind in KINDS:
            seconds = costs.seconds(kind, stage, 0, np.array([1, 3, 8]))
            own[f"us of a {kind.name.lower()}"] = (1e6 * seconds).tolist()
            if kind in (OpKind.FORWARD, OpKind.BACKWARD):
                parts = costs.parts(kind, stage, 0, 8)
                assert sum(parts) == pytest.approx(seconds[-1])
                own[f"us of a {kind.name.lower()} by cause"] = [1e6 * one for one in parts]
        together = costs.collectives(stage)
        gather = together.update_gather
        own |= {
            "buckets, us": [[one.share, 1e6 * one.seconds, sum(one.occupancy)] for one in together.buckets],
            "units, us": [
                [one.forward, one.backward, 1e6 * (one.gather or 0.0), 1e6 * one.scatter] for one in together.units
            ],
            "gather of updated weights, us": None if gather is None else [1e6 * gather.seconds, sum(gather.occupancy)],
            "stash": list(costs.stash(stage)),
            "stash at once": list(costs.stash(stage, at_once=True)),
            "elements": [costs.held_elements(stage), costs.divided_elements(stage, 0), costs.dense_elements(stage)],
            "bytes of units and gradients": [costs.unit_buffers(stage, 0), costs.gradient_in_work(stage, 0)],
            "bytes sent": [costs.scattered_bytes(stage), costs.gathered_bytes(stage), costs.inside_bytes(stage)],
            "bytes of a group": costs.group_bytes(stage),
        }
        if stage:
            transfer = costs.transfer((stage - 1, 0), (stage, 0), 8)
            own["transfer"] = [1e6 * transfer.seconds, transfer.size_bytes]
        found[f"stage {stage}"] = own if name in WHOLE else weight(own)
    found["shared weights, us"] = [[*one.stages, 1e6 * one.seconds] for one in costs.tied_reductions]
    score = Evaluations(problem)(plan)
    assert score is not None
    bounds = {one.name: one.seconds for one in lower_bound(problem).terms}
    assert max(bounds.values()) <= score.iteration_seconds * (1 + 1e-9)
    found["iteration"] = {
        "us": 1e6 * score.iteration_seconds,
        "bytes": score.peak_bytes,
        "bounds, us": {term: 1e6 * least for term, least in bounds.items()},
    }
    recorded(**found)
