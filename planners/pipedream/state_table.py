"""State tables: a network's figures as PipeDream's partitioner reads them, one row per antichain state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hardware_profiles import Floats
from simulator import AntichainStates, Workload, antichain_states, measured_layer_seconds


@dataclass(frozen=True, slots=True, eq=False)
class StateTable:
    """Figures of a network at one mini-batch for the dynamic programs: one per state, over all its layers.

    A stage's copy of a shared weight counts in its memory. Its all-reduce is between stages, over all their replicas: one more
    replica of a stage hardly changes it, and how often it runs depends on the stage with the fewest rounds. No stage's cost knows
    that: the recurrences charge a shared weight to its owner's replicas alone; the replay, by which plans are compared, has it.

    states: the antichain states, in topological order
    seconds: forward + backward of a mini-batch on one device, (states,)
    parameter_bytes: weights, those that layers share at their owner alone, (states,)
    copy_bytes: what a stage of states [start, last] holds of weights whose owner is in another stage, [start, last];
        (0, 0) where no layers share weights
    stash_bytes: what a mini-batch in flight keeps from forward to backward, (states,)
    activation_bytes: every layer's output, (states,); the official script's measure of memory
    output_bytes: tensors that cross the cut behind the state, each producer once, (states,)
    augmented_output_bytes: outputs of PipeDream's augmented antichain, (states,); sent by the official script
    """

    states: AntichainStates
    seconds: Floats
    parameter_bytes: Floats
    copy_bytes: Floats
    stash_bytes: Floats
    activation_bytes: Floats
    output_bytes: Floats
    augmented_output_bytes: Floats

    def __len__(self) -> int:
        """Number of states."""
        return len(self.seconds)

    @property
    def one_device_seconds(self) -> float:
        """Forward + backward of a mini-batch of the whole network on one device."""
        return float(self.seconds[-1])


def measured_seconds(workload: Workload, minibatch: int | None = None) -> Floats:
    """Forward + backward seconds of each layer for a mini-batch on the profiled device, (layers,).

    At other sizes than the profiled ones: see `simulator.measured_layer_seconds`. Raises ValueError if a layer that is no
    input was not measured.
    """
    samples = _minibatch(workload, minibatch)
    seconds = np.zeros(len(workload.layers))
    for index, layer in enumerate(workload.layers):
        if layer.kind == "input":
            continue
        if not layer.measured:
            raise ValueError(f"layer {layer.name!r} must have measured seconds, it has none; use a cost model")
        both = (measured_layer_seconds(layer, samples, phase) for phase in ("forward", "backward"))
        seconds[index] = sum(both)
    return seconds


def measured_table(workload: Workload, minibatch: int | None = None) -> StateTable:
    """The figures of a measured profile at a mini-batch, over the states that PipeDream's optimizer forms.

    workload: a profile read without its `Input` nodes, as `read_profile` does
    Raises ValueError if a layer was not measured.
    """
    states = antichain_states(workload, drop_inputs=False)
    return state_table(workload, measured_seconds(workload, minibatch), minibatch=minibatch, states=states)


def state_table(
    workload: Workload,
    seconds: Floats,
    *,
    minibatch: int | None = None,
    bytes_per_element: float | None = None,
    states: AntichainStates | None = None,
) -> StateTable:
    """The figures of a workload's states.

    seconds: forward + backward of each layer for one mini-batch on one device, (layers,); those of inputs are
        ignored, as loading data is no work of a stage
    minibatch: samples of a device's mini-batch; the workload's own unless given
    bytes_per_element: the profile's own unless given, else 4
    states: the workload's states, if already known
    Raises ValueError if `seconds` has another shape, or a negative or infinite entry.
    """
    samples = _minibatch(workload, minibatch)
    width = bytes_per_element or workload.bytes_per_element or 4
    layers = workload.layers
    if seconds.shape != (len(layers),) or not np.isfinite(seconds).all() or (seconds < 0).any():
        raise ValueError(f"seconds must be {len(layers)} finite numbers >= 0, one per layer, got shape {seconds.shape}")
    if states is None:
        states = antichain_states(workload)
    works = np.array([layer.kind != "input" for layer in layers])
    outputs = np.array([layer.output_elements for layer in layers]) * (samples * width)
    stashes = np.array([layer.stashed_elements * width + layer.stashed_bytes for layer in layers]) * samples
    parameters = np.array([layer.parameters for layer in layers], dtype=np.float64) * width
    return StateTable(
        states=states,
        seconds=states.totals(np.where(works, seconds, 0.0)),
        parameter_bytes=states.totals(parameters),
        copy_bytes=_copies(workload, states, width),
        stash_bytes=states.totals(stashes),
        activation_bytes=states.totals(np.where(works, outputs, 0.0)),
        output_bytes=states.totals(outputs, states.frontier),
        augmented_output_bytes=states.totals(outputs, states.augmented),
    )


@lru_cache(maxsize=1)
def _copies(workload: Workload, states: AntichainStates, width: int) -> Floats:
    """Bytes of shared weights that the stage of states [start, last] holds without their owner, float64 [states, states] by start
    and last.

    width: bytes per element
    """
    tied = workload.tied_weights()
    if not tied:
        return np.zeros((0, 0))
    count = states.members.shape[0]
    copies = np.zeros((count, count))
    for weight in tied:
        # Layers within the states before each one and, one further, within it.
        using = np.concatenate([[0], states.members[:, list(weight.layers)].sum(axis=1)])
        owning = np.concatenate([[0], states.members[:, weight.layers[0]].astype(np.int64)])
        uses = using[None, 1:] > using[:-1, None]
        owns = owning[None, 1:] > owning[:-1, None]
        copies += weight.parameters * (uses & ~owns)
    return copies * width


def _minibatch(workload: Workload, minibatch: int | None) -> int:
    samples = workload.minibatch if minibatch is None else minibatch
    if samples < 1:
        raise ValueError(f"minibatch must be at least 1 sample, got {samples}")
    return samples
