"""Taken collectives: which algorithm and protocol the devices of a plan run together, of all that their cluster has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hardware_profiles import Operation
from simulator.costs.plan_costs import PlanCosts


@dataclass(frozen=True, slots=True)
class TakenCollective:
    """A collective of some stages, and the quickest way to run it.

    what: "tensor groups" (of activations), "gradients" or "weights" (of replicas)
    way: algorithm and protocol; devices, servers: of one group; size_bytes: the largest tensor of the stages, whole
    seconds: of that one, beside like groups that run theirs at the same time
    """

    what: str
    operation: str
    way: str
    devices: int
    servers: int
    size_bytes: float
    seconds: float
    stages: tuple[int, ...]


_Asked = tuple[str, Operation, Sequence[Sequence[int]], float]


def taken_collectives(costs: PlanCosts) -> tuple[TakenCollective, ...]:
    """The collectives of a plan: of tensor-parallel groups, of gradients and of divided weights, stage by stage; stages whose
    collectives are alike stand together.
    """
    found: dict[tuple[str, str, str, int, int, float, float], list[int]] = {}
    for stage in range(len(costs.plan.stages)):
        for what, operation, groups, size in _asked(costs, stage):
            taken = costs.problem.cluster.collectives.taken(operation, size, *groups) if size else None
            if taken is None:
                continue
            first, cluster = groups[0], costs.problem.cluster
            stack, device = costs.problem.stack, cluster.devices[groups[0][0]]
            times = (stack.tensor_collectives if what == "tensor groups" else stack.replica_collectives).on(device)
            servers = len({cluster.server_of(one) for one in first})
            name = operation.name.lower().replace("_", "-")
            key = what, name, taken.name, len(first), servers, size, times * taken.seconds(size)
            found.setdefault(key, []).append(stage)
    return tuple(TakenCollective(*key, tuple(stages)) for key, stages in found.items())


def _asked(costs: PlanCosts, stage: int) -> Iterator[_Asked]:
    """Collectives of a stage: what of, which one, the groups that run it at once, and bytes of its largest tensor."""
    places, plan, problem = costs.places(stage), costs.plan, costs.problem
    together = (
        (Operation.REDUCE_SCATTER, Operation.ALL_GATHER) if problem.sequence_parallel else (Operation.ALL_REDUCE,)
    )
    if len(places.parts[0]) > 1:
        for operation in together:
            yield "tensor groups", operation, places.first_tensor_groups, costs.group_bytes(stage)
    if len(places.parts) == 1:
        return
    gathered, scattered, _ = costs.unit_elements(stage)
    buckets = max((dense for _, dense, _ in costs.bucket_bytes(stage)), default=0.0)
    gradients = buckets if plan.zero < 2 else float(scattered.max()) * problem.accumulated_bytes
    yield "gradients", Operation.of_gradients(plan.zero > 0), places.shard_rings, gradients
    if places.shard < len(places.parts):
        yield "gradients", Operation.ALL_REDUCE, places.copy_rings, gradients / places.shard
    if plan.zero:
        weights = float(gathered.max()) if plan.zero == 3 else costs.dense_elements(stage)
        yield "weights", Operation.ALL_GATHER, places.shard_rings, weights * problem.element_bytes
