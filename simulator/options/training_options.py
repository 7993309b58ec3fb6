"""Training options: how a network is trained, each with its type, its range and its help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from hardware_profiles import Bounds, Precision

OptimizerName = Literal["sgd", "momentum", "adam"]

Recompute = Literal["none", "attention", "between-products", "every-second-product", "blocks", "whole"]
"""What a stage runs forward again before its backward: nothing; its attention layers, which keep their input alone (selective
recomputation, Korthikanti et al. 2022); of each block what lies between its products of weights, whose outputs are kept (JAX's
`dots_with_no_batch_dims_saveable`, MaxText's `minimal`); of each block all but attention and every second of these products
(torchtitan's `selective`, option `op`); each block from its own input (full recomputation in the paper and in Megatron), one at a
time; or all of it at once: it keeps its input alone (Huang et al. 2019, "GPipe")."""

BY_BLOCK: tuple[Recompute, ...] = ("between-products", "every-second-product", "blocks")
"""Policies that run a block again, or parts of it, from its own input, one block at a time."""

Communication = Literal["overlapped", "send-blocking", "both-blocking", "streaming", "free"]
COMMUNICATIONS: tuple[str, ...] = get_args(Communication)
"""The ways in which transfers and computation share a device; `simulator.lowering.lower` says what each does."""

WeightVersions = Literal["stashing", "vertical-sync"]
"""What PipeDream's asynchronous schedules keep of old weights: a stage's backward uses the weights of its own forward, or
every stage uses those that the input stage had for the minibatch."""

ReplicaUpdates = Literal["overlapped", "barrier"]
REPLICA_UPDATES: tuple[str, ...] = get_args(ReplicaUpdates)
"""When replicas that take mini-batches in turn apply the update of their round, the mini-batches that they all-reduce together.

`overlapped`: a replica runs its next forward and backward while the round is all-reduced, and updates after that backward;
`barrier`: a replica updates right after its own backward, and so waits there for every replica of its round.
"""

GradientBytes = Literal[0, 2, 4]
GradientReduction = Literal["buckets", "whole"]

LinkSharing = Literal["links", "fair", "fifo"]
"""How messages that meet on a link share it: as each link of the cluster says, or all of them so (`Sharing` of the profiles)."""

DEFAULT_PRECISION: Precision = "fp32"
DEFAULT_OPTIMIZER: OptimizerName = "momentum"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How a network is trained.

    A field is an option: this class says its type, choices, range and default, the line below its help. The command line, problem
    and plan files, their JSON Schema and the messages about wrong values are made from it.

    precision: of weights, activations and gradients; a measured workload has its own
    optimizer: what updates the weights; sets the memory of its states and the bytes that an update moves
    recompute: what stages run forward again before backward: none, attention, between-products (of each block all but its
        products), every-second-product (all but attention and every second of these), blocks (each from its own input, one at a
        time) or whole (all at once: a stage then keeps its input only); planners that choose it do so where this is none
    communication: how transfers and computation share a device
    contention: transfers queue on the links that they share
    sharing: how transfers and reductions that meet on a link share it: as each of the cluster's links says, in equal parts for
        each pair of devices (fair), or first come, first served (fifo)
    weight_versions: versions of weights that PipeDream's asynchronous schedules keep
    replica_updates: when replicas that take mini-batches in turn update: overlapped (after the next backward, while the gradients
        of the round are all-reduced) or barrier (at once, all of a round together)
    overlap: seconds of a forward and a backward that overlap, as a share of those that they take one after the other
    sequence_parallel: tensor-parallel groups also divide the layers between their products, by tokens
    gradient_bytes: bytes per element of accumulated and reduced gradients; 0 for those of a weight
    gradient_reduction: replicas reduce in buckets while the last backward goes on (PyTorch DDP), or whole stages after it
        (Megatron-LM's default)
    memory_reserve: share of what plans may allocate on every device that they leave free
    """

    precision: Precision = DEFAULT_PRECISION
    optimizer: OptimizerName = DEFAULT_OPTIMIZER
    recompute: Recompute = "none"
    communication: Communication = "overlapped"
    contention: bool = True
    sharing: LinkSharing = "links"
    weight_versions: WeightVersions = "stashing"
    replica_updates: ReplicaUpdates = "overlapped"
    overlap: Annotated[float, Bounds(gt=0.0, le=1.0)] = 1.0
    sequence_parallel: bool = False
    gradient_bytes: GradientBytes = 0
    gradient_reduction: GradientReduction = "buckets"
    memory_reserve: Annotated[float, Bounds(ge=0.0, lt=1.0)] = 0.0
