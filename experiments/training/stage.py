"""Stage in training: its place, its weights and optimizer, what is in flight, and the copies that a prediction rule keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.training.networks import Block, Saved
from experiments.training.optimizers import Array, Direction, Optimizer, OptimizerState


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stage stands: stage k (0-based) of `stages` N, with `microbatches` T per mini-batch."""

    stage: int
    stages: int
    microbatches: int

    def mean_delay(self) -> float:
        """Mean updates between a forward and its backward on XPipe's staircase: (N-1-k)/T."""
        return (self.stages - 1 - self.stage) / self.microbatches


def predicted_weights(weights: Array, direction: Array, steps: float, learning_rate: float) -> Array:
    """Weights after `steps` further steps along `direction`: W - s * lr * direction."""
    step = direction * (steps * learning_rate)
    np.subtract(weights, step, out=step)
    return step


@dataclass(slots=True)
class TrainedStage:
    """One stage in training (all seeds at once), or one of its replicas that take turns.

    It lives through: forward (weights chosen by the rule, activations saved), backward (input gradient by the
    rule's weights, gradient added up), update after the last backward of a mini-batch.

    weights: present now; version: updates applied so far
    entry_versions: by micro-batch, the version that the input stage had at its forward
    buffers: copies that the rule keeps on this stage, by name; copies: the most weights held at once
    used: by micro-batch in flight, the weights of its forward, where the rule stashes them; held: older versions by number
    """

    position: Position
    block: Block
    optimizer: Optimizer
    weights: Array
    state: OptimizerState
    gradient: Array
    entry_versions: dict[int, int]
    replicas: int = 1
    learning_rate: float = 0.0
    version: int = 0
    buffers: dict[str, Array] = field(default_factory=dict)
    used: dict[int, Array] = field(default_factory=dict)
    saved: dict[int, Saved] = field(default_factory=dict)
    held: dict[int, Array] = field(default_factory=dict)
    awaiting: dict[int, dict[tuple[int, int], list[Any]]] = field(default_factory=dict)
    copies: int = 1

    def missing_updates(self, microbatch: int) -> int:
        """Updates between the present weights and the synchronous version of a micro-batch."""
        return microbatch // self.position.microbatches - self.version

    def weights_of(self, version: int) -> Array:
        """Weights of the present version, or of an older one that is still held."""
        if version == self.version:
            return self.weights
        if version not in self.held:
            raise ValueError(
                f"stage {self.position.stage} needs version {version} but holds {sorted(self.held)} and "
                f"{self.version}: vertical sync needs an order whose input stage updates last"
            )
        return self.held[version]

    def predict(self, steps: float, direction: Direction) -> Array:
        """The present weights `steps` further along the optimizer's direction (the very same array at 0 steps)."""
        if steps == 0 or self.version == 0:  # no moments before the first update
            return self.weights
        return predicted_weights(
            self.weights, self.optimizer.direction(self.state, direction), steps, self.learning_rate
        )

    def count_copies(self) -> None:
        """Count what is held now: distinct versions, and each of the rule's buffers that is not the present weights."""
        versions = {id(self.weights)}
        versions.update(map(id, self.used.values()))
        versions.update(map(id, self.held.values()))
        buffers = sum(buffer is not self.weights for buffer in self.buffers.values())
        self.copies = max(self.copies, len(versions) + buffers)
