"""Memory of the stages of an unequal pipeline with a flush: state, stashed samples, workspaces, receive queues."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planners.unequal.chain import Floats


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Bytes of every stage: `state_bytes` once, all others a sample. Five tuples of length K.

    `state_bytes` weights, gradients and optimizer state; `input_bytes` the stage's input, which is also the size of
    what the stage before sends; `activation_bytes` all that the backward pass reads; the workspaces are live only
    while a block runs.
    """

    state_bytes: tuple[float, ...]
    input_bytes: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    forward_workspace_bytes: tuple[float, ...]
    backward_workspace_bytes: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = {
            len(values)
            for values in (
                self.state_bytes,
                self.input_bytes,
                self.activation_bytes,
                self.forward_workspace_bytes,
                self.backward_workspace_bytes,
            )
        }
        if len(lengths) != 1:
            raise ValueError(
                f"a memory model has five tuples of one length, a value a stage, not lengths {sorted(lengths)}"
            )

    @property
    def stages(self) -> int:
        """Number of stages K."""
        return len(self.state_bytes)

    def stash_bytes(self, recomputes: Floats) -> Floats:
        """Bytes kept for a sample from its forward to its backward pass, per stage; `recomputes` is 1.0 where true."""
        kept_input = np.asarray(self.input_bytes)
        return np.where(recomputes > 0, kept_input, np.asarray(self.activation_bytes))

    def backward_block_bytes(self, recomputes: Floats) -> Floats:
        """Bytes a sample of a running backward block, per stage: recomputed activations live only that long."""
        workspace = np.asarray(self.backward_workspace_bytes)
        return np.where(recomputes > 0, workspace + np.asarray(self.activation_bytes), workspace)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """Bytes per stage, arrays of length K.

    `static_bytes` = state + B stash + max(f forward block, g backward block), what the sizes alone decide;
    `queue_bytes` the most that waits in the receive queue (inputs in the forward pass, gradients in the backward
    pass) while a block runs; `peak_bytes` the most at any one moment, queues included.
    """

    static_bytes: Floats
    queue_bytes: Floats
    peak_bytes: Floats
