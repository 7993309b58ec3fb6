"""Antichain states: every way to cut a workload's graph in two without a backward edge.

A state is a down-set of layers: with a layer it holds all that the layer needs. A stage over a graph is the
difference of two nested states, as a stage over a chain is the difference of two prefixes (PipeDream, SOSP 2019,
section 3.1; states are named after the antichain of their last layers). A chain of n layers has n states.

    a -> b -> d        states: {a} {a,b} {a,c} {a,b,c} {a,b,c,d}
     `-> c ->'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.layers import Workload

STATE_LIMIT = 20_000

# Kinds that add no state when nothing reads them and they do no work: indexing and viewing of a tensor.
_IDLE_SINK_KINDS = ("reshape",)


@dataclass(frozen=True, slots=True, eq=False)
class AntichainStates:
    """The states of a workload in a topological order: a state stands after every state that it contains.

    members: bool, (states, layers); row i says which layers state i holds. The last row holds every layer.
    frontier: bool, (states, layers); layers of the state with a consumer outside of it, whose outputs cross the
        cut; a producer counts once, however many consumers it has
    augmented: bool, (states, layers); PipeDream's augmented antichain: the last layers of the state, and every
        layer upstream of one of them that also feeds something else. The frontier on a chain; on branches it also
        holds fork layers that nothing outside needs any more. The official script sends these.
    predecessors, offsets: `predecessors[offsets[i]:offsets[i + 1]]` are the states strictly inside state i
    """

    members: NDArray[np.bool_]
    frontier: NDArray[np.bool_]
    augmented: NDArray[np.bool_]
    predecessors: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of states."""
        return int(self.members.shape[0])

    def contains(self, outer: int, inner: int) -> bool:
        """Whether state `inner` lies strictly inside state `outer`."""
        inside = self.predecessors[self.offsets[outer] : self.offsets[outer + 1]]
        position = int(np.searchsorted(inside, inner))
        return position < len(inside) and int(inside[position]) == inner

    def totals(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of one value a layer over each state's layers, (states,); in layer order, so runs repeat."""
        return _row_sums(self.members, values)

    def crossing(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of one value a layer over each state's frontier, (states,)."""
        return _row_sums(self.frontier, values)

    def augmented_totals(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of one value a layer over each state's augmented antichain, (states,)."""
        return _row_sums(self.augmented, values)

    def stage_layers(self, start: int, stop: int) -> tuple[int, ...]:
        """Layers of the stage of states [start, stop): those of state stop-1 that state start-1 lacks."""
        rows = self.members[stop - 1]
        if start > 0:
            rows = rows & ~self.members[start - 1]
        return tuple(int(layer) for layer in np.flatnonzero(rows))


def antichain_states(workload: Workload, *, drop_inputs: bool = True, limit: int = STATE_LIMIT) -> AntichainStates:
    """Every state of the workload's graph, as PipeDream's optimizer forms them.

    A layer of kind "reshape" without consumers, weights and seconds (an unused item of a recurrent layer's result)
    adds no state: it goes where its producer goes. The first layer that remains is in every state; of several
    the one with most descendants, and another one joins a state as soon as a layer of the state needs it.

    drop_inputs: layers of kind "input" add no states and are in every one, as the first stage loads the data.
        PipeDream's optimizer drops `Input` nodes but keeps GNMT's `hidden`, an input too: False on a profile
        that was read without `Input` nodes gives its states.
    limit: largest number of states; wide graphs have exponentially many.
    Raises ValueError if there are more, or if the workload has no layer but inputs.
    """
    count = len(workload.layers)
    producers: list[list[int]] = [[] for _ in range(count)]
    consumers: list[list[int]] = [[] for _ in range(count)]
    for producer, consumer in workload.edges:
        producers[consumer].append(producer)
        consumers[producer].append(consumer)
    inputs = [index for index, layer in enumerate(workload.layers) if drop_inputs and layer.kind == "input"]
    idle = [index for index in range(count) if _is_idle_sink(workload, index, consumers[index])]
    left_out = set(inputs) | set(idle)
    kept = [index for index in range(count) if index not in left_out]
    if not kept:
        raise ValueError(f"a workload needs a layer that is not an input, got {count} inputs")

    ancestors = _closure(range(count), producers, left_out)
    descendants = _closure(range(count - 1, -1, -1), consumers, left_out)
    roots = [index for index in kept if not any(p not in left_out for p in producers[index])]
    root = max(roots, key=lambda index: (descendants[index].bit_count(), -index))
    masks = _ordered_down_sets(root, ancestors, consumers, left_out, limit)
    masks[-1] = sum(1 << index for index in kept)  # what the root's descendants never need goes last

    members = _unpack(masks, count)
    members[:, inputs] = True
    for index in idle:
        members[:, index] = members[:, producers[index]].all(axis=1)
    members[-1] = True
    frontier = np.zeros_like(members)
    for producer, consumer in workload.edges:
        frontier[:, producer] |= members[:, producer] & ~members[:, consumer]
    augmented = _augmented(members, _unpack(ancestors, count), workload.edges, left_out)
    predecessors, offsets = _inside(members)
    return AntichainStates(members, frontier, augmented, predecessors, offsets)


def _row_sums(rows: NDArray[np.bool_], values: NDArray[np.float64]) -> NDArray[np.float64]:
    # A running sum adds strictly from left to right; a pairwise or BLAS sum may differ between machines.
    terms = np.where(rows, np.asarray(values, dtype=np.float64), 0.0)
    return np.ascontiguousarray(np.cumsum(terms, axis=1)[:, -1])


def _is_idle_sink(workload: Workload, index: int, consumers: Sequence[int]) -> bool:
    layer = workload.layers[index]
    works = layer.has_weight_gradient or layer.flop > 0 or any(f > 0 or b > 0 for _, f, b in layer.measured)
    return not consumers and layer.kind in _IDLE_SINK_KINDS and not works


def _closure(order: Sequence[int] | range, neighbours: list[list[int]], left_out: set[int]) -> list[int]:
    """A bit mask a layer: itself and all that its neighbours reach; `order` visits neighbours first."""
    reach = [0] * len(neighbours)
    for index in order:
        if index in left_out:
            continue
        mask = 1 << index
        for neighbour in neighbours[index]:
            mask |= reach[neighbour]
        reach[index] = mask
    return reach


def _ordered_down_sets(
    root: int,
    ancestors: list[int],
    consumers: list[list[int]],
    left_out: set[int],
    limit: int,
) -> list[int]:
    """All down-sets in reverse postorder of a depth-first walk, the order of PipeDream's topological sort."""
    feeds = [sum(1 << c for c in row if c not in left_out) for row in consumers]
    first = ancestors[root]
    ready = 0  # layers outside of a state that read one inside
    for layer in _bits(first):
        ready |= feeds[layer]
    finished: list[int] = []
    seen = {first}
    stack = [(first, ready & ~first, _bits(ready & ~first))]
    while stack:
        mask, ready, pending = stack[-1]
        if not pending:
            finished.append(mask)
            stack.pop()
            continue
        following = mask | ancestors[pending.pop()]
        if following in seen:
            continue
        seen.add(following)
        if len(seen) > limit:
            raise ValueError(f"a graph may have at most {limit} antichain states, this one has more; raise the limit")
        for layer in _bits(following & ~mask):
            ready |= feeds[layer]
        ready &= ~following
        stack.append((following, ready, _bits(ready)))
    return finished[::-1]


def _bits(mask: int) -> list[int]:
    """Positions of the set bits, rising."""
    positions = []
    while mask:
        lowest = mask & -mask
        positions.append(lowest.bit_length() - 1)
        mask ^= lowest
    return positions


def _augmented(
    members: NDArray[np.bool_], ancestors: NDArray[np.bool_], edges: Sequence[tuple[int, int]], left_out: set[int]
) -> NDArray[np.bool_]:
    """PipeDream's augmented antichain of each state (see `AntichainStates.augmented`), (states, layers)."""
    count = members.shape[1]
    kept_edges = [edge for edge in edges if not left_out & set(edge)]
    last = members.copy()
    last[:, sorted(left_out)] = False
    forks = np.zeros((count, count), dtype=np.bool_)  # row: upstream of a layer, and also feeding something else
    for producer, consumer in kept_edges:
        last[:, producer] &= ~members[:, consumer]
        forks[:, producer] |= ancestors[:, producer] & ~ancestors[:, consumer]
    np.fill_diagonal(forks, True)
    augmented = np.zeros_like(members)
    for layer in range(count):
        augmented[last[:, layer]] |= forks[layer]
    return augmented


def _unpack(masks: list[int], count: int) -> NDArray[np.bool_]:
    width = (count + 7) // 8
    packed = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(masks), width), axis=1, count=count, bitorder="little")
    return bits.astype(np.bool_)


def _inside(members: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """For each state the states strictly inside it, as one array and where each state's part begins."""
    states = members.shape[0]
    packed = np.packbits(members, axis=1)
    padded = np.zeros((states, -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    words = padded.view(np.uint64)
    inside = []
    for state in range(states):
        outside = words[:state, 0] & ~words[state, 0]
        for column in range(1, words.shape[1]):
            outside |= words[:state, column] & ~words[state, column]
        inside.append(np.flatnonzero(outside == 0).astype(np.int32))
    offsets = np.zeros(states + 1, dtype=np.int64)
    np.cumsum([len(part) for part in inside], out=offsets[1:])
    return np.concatenate(inside), offsets
