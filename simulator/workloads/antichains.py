"""Antichain states: every way to cut a workload's graph in two without a backward edge.

A state is a down-set of layers: with a layer it holds all that the layer needs. A stage over a graph is the
difference of two nested states, as a stage over a chain is the difference of two prefixes (PipeDream, SOSP 2019,
section 3.1; states are named after the antichain of their last layers). A chain of n layers has n states.

    a -> b -> d        states: {a} {a,b} {a,c} {a,b,c} {a,b,c,d}
     `-> c ->'

Wide graphs have exponentially many. Where there are more than a limit the graph falls apart at the layers that all others
stand before or behind (`d` above), and the blocks between them are coarsened, those with most states first: their branches
are cut between whole chains of layers only; where that is too much, in the order of the layers. Any set of down-sets that
ends with the whole network is one to search over; what is lost is said in words.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers
from simulator.workloads.layers import Workload

STATE_LIMIT = 2_000
"""A graph with more states is coarsened."""

COARSER = 4
"""Factor by which coarsening reduces the states, where it can: a search over two levels takes time cubic in them."""


@dataclass(frozen=True, eq=False)
class AntichainStates:
    """The states of a workload in a topological order: a state stands after every state that it contains.

    members: bool, (states, layers); row i says which layers state i holds. The last row holds every layer.
    frontier: bool, (states, layers); layers of the state with a consumer outside of it, whose outputs cross the
        cut; a producer counts once, however many consumers it has
    augmented: bool, (states, layers); PipeDream's augmented antichain: the last layers of the state, and every
        layer upstream of one of them that also feeds something else. The frontier on a chain; on branches it also
        holds fork layers that nothing outside needs any more. The official script sends these.
    predecessors, offsets: `predecessors[offsets[i]:offsets[i + 1]]` are the states strictly inside state i
    lost: which states were left out, in words; empty where these are all
    """

    members: Flags
    frontier: Flags
    augmented: Flags
    predecessors: NDArray[np.int32]
    offsets: Integers
    lost: str = ""

    def __len__(self) -> int:
        """Number of states."""
        return int(self.members.shape[0])

    def contains(self, outer: int, inner: int) -> bool:
        """Whether state `inner` lies strictly inside state `outer`."""
        inside = self.predecessors[self.offsets[outer] : self.offsets[outer + 1]]
        position = int(np.searchsorted(inside, inner))
        return position < len(inside) and int(inside[position]) == inner

    def totals(self, values: Floats, rows: Flags | None = None) -> Floats:
        """Sum of one value per layer over each state's `members`, `frontier` or `augmented` (None: members), (states,)."""
        # It is added strictly from left to right; a pairwise or BLAS sum may differ between machines.
        if rows is None and self._first_layers is not None:
            return np.append(0.0, np.cumsum(values, dtype=np.float64))[self._first_layers]
        state, layer = self._pairs(self.members if rows is None else rows)
        terms = np.asarray(values, dtype=np.float64)[layer]
        return np.bincount(state, weights=terms, minlength=len(self.members)).astype(np.float64, copy=False)

    def _pairs(self, rows: Flags) -> Integers:
        """States and the layers that `rows` says of them, int64 [2, pairs]; those of this object's own rows are kept."""
        own = next(
            (place for place, one in enumerate((self.members, self.frontier, self.augmented)) if one is rows), -1
        )
        if own not in self._known_pairs or own < 0:
            self._known_pairs[own] = np.array(np.nonzero(rows), dtype=np.int64)
        return self._known_pairs[own]

    @cached_property
    def _known_pairs(self) -> dict[int, Integers]:
        return {}

    @cached_property
    def _first_layers(self) -> Integers | None:
        """How many of the first layers each state holds, int64 [states], where none holds any other; else None."""
        held = self.members.sum(axis=1)
        last = self.members.shape[1] - 1 - self.members[:, ::-1].argmax(axis=1)
        return held if (last == held - 1).all() else None

    def stage_layers(self, start: int, stop: int) -> tuple[int, ...]:
        """Layers of the stage of states [start, stop): those of state stop-1 that state start-1 lacks."""
        rows = self.members[stop - 1]
        if start > 0:
            rows = rows & ~self.members[start - 1]
        return tuple(int(layer) for layer in np.flatnonzero(rows))


def antichain_states(workload: Workload, *, drop_inputs: bool = True, limit: int = STATE_LIMIT) -> AntichainStates:
    """The states of the workload's graph as PipeDream's optimizer forms them: all of them, or a part if more than `limit`.

    A layer of kind "reshape" without consumers, weights and seconds whose producer feeds another layer (an unused item of
    a recurrent layer's result) adds no state: it goes where its producer goes. The network's last layer adds one. The
    first layer that remains is in every state; of several the one with most descendants, and another one joins a state
    as soon as a layer of the state needs it.

    drop_inputs: layers of kind "input" add no states and are in every one, as the first stage loads the data.
        PipeDream's optimizer drops `Input` nodes but keeps GNMT's `hidden`, an input too: False on a profile
        that was read without `Input` nodes gives its states.
    limit: number of states from which on wide graphs are coarsened, to a quarter of it where that can be
    Raises ValueError if the workload has no layer but inputs.
    """
    count = len(workload.layers)
    producers: list[list[int]] = [[] for _ in range(count)]
    consumers: list[list[int]] = [[] for _ in range(count)]
    for producer, consumer in workload.edges:
        producers[consumer].append(producer)
        consumers[producer].append(consumer)
    inputs = [index for index, layer in enumerate(workload.layers) if drop_inputs and layer.kind == "input"]
    idle = [index for index in range(count) if _is_idle_sink(workload, index, producers[index], consumers)]
    left_out = set(inputs) | set(idle)
    kept = [index for index in range(count) if index not in left_out]
    if not kept:
        raise ValueError(f"a workload needs a layer that is not an input, got {count} inputs")

    ancestors = _closure(range(count), producers, left_out)
    descendants = _closure(range(count - 1, -1, -1), consumers, left_out)
    roots = [index for index in kept if not any(p not in left_out for p in producers[index])]
    root = max(roots, key=lambda index: (descendants[index].bit_count(), -index))
    feeds = [sum(1 << c for c in row if c not in left_out) for row in consumers]
    graph = _Order(kept, producers, feeds, ancestors, descendants)
    masks, lost = _all_or_coarse(graph, root, limit)
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
    return AntichainStates(members, frontier, augmented, predecessors, offsets, lost)


def down_sets(count: int, edges: Sequence[tuple[int, int]], limit: int = STATE_LIMIT) -> tuple[Flags, str]:
    """Down-sets: sets of nodes that contain all predecessors of their nodes, bool (sets, nodes); and in words what was left out.

    edges: (before, behind), of an acyclic graph of nodes 0 to count - 1 in any numbering
    A set stands after all that it contains: the first holds no node, the last holds all. Of more than `limit` sets a part, as for
    `antichain_states`. Raises ValueError for a circle.
    """
    producers: list[list[int]] = [[] for _ in range(count)]
    consumers: list[list[int]] = [[] for _ in range(count)]
    for before, behind in dict.fromkeys(edges):
        producers[behind].append(before)
        consumers[before].append(behind)
    try:
        order = list(TopologicalSorter(dict(enumerate(producers))).static_order())
    except CycleError as circle:
        raise ValueError(f"nodes must not stand before themselves, these do: {circle.args[1]}") from None
    # A node before all others stands for the set without nodes.
    root = count
    consumers.append([node for node in range(count) if not producers[node]])
    for node in consumers[root]:
        producers[node].append(root)
    producers.append([])
    order.insert(0, root)
    feeds = [sum(1 << node for node in row) for row in consumers]
    ancestors, descendants = _closure(order, producers, set()), _closure(order[::-1], consumers, set())
    masks, lost = _all_or_coarse(_Order(order, producers, feeds, ancestors, descendants), root, limit)
    return np.ascontiguousarray(_unpack(masks, count + 1)[:, :count]), lost


@dataclass(frozen=True, slots=True)
class _Order:
    """Predecessors and successors of layers as bit masks, but for `producers`; `kept`: the layers in topological order."""

    kept: list[int]
    producers: list[list[int]]
    feeds: list[int]
    ancestors: list[int]
    descendants: list[int]


def _all_or_coarse(graph: _Order, root: int, limit: int) -> tuple[list[int], str]:
    """The down-sets that contain what the root needs, or a part if more than `limit`; and in words what that leaves out."""
    found = _ordered_down_sets(graph.ancestors[root], -1, graph.ancestors, graph.feeds, limit)
    if found is not None:
        return found, ""
    return _coarse_down_sets(graph, _blocks(graph, root), limit)


def _is_idle_sink(workload: Workload, index: int, producers: list[int], consumers: list[list[int]]) -> bool:
    """Whether a layer does no work and has no reader, while another part of its producer's result has one."""
    layer = workload.layers[index]
    works = layer.has_weight_gradient or layer.flop > 0 or any(f > 0 or b > 0 for _, f, b in layer.measured)
    unused = not consumers[index] and bool(producers) and all(len(consumers[one]) > 1 for one in producers)
    return unused and layer.kind == "reshape" and not works


def _closure(order: Sequence[int] | range, neighbours: list[list[int]], left_out: set[int]) -> list[int]:
    """A bit mask per layer: itself and all that its neighbours reach; `order` visits neighbours first."""
    reach = [0] * len(neighbours)
    for index in order:
        if index in left_out:
            continue
        mask = 1 << index
        for neighbour in neighbours[index]:
            mask |= reach[neighbour]
        reach[index] = mask
    return reach


def _ordered_down_sets(first: int, within: int, closure: list[int], feeds: list[int], limit: int) -> list[int] | None:
    """All down-sets from `first` to those inside `within`, in reverse postorder of a depth-first walk; None if more than `limit`.

    That is the order of PipeDream's topological sort.
    closure: what a state must also hold if it holds a layer; feeds: who reads a layer
    """
    ready = 0  # layers outside of a state that read one inside
    for layer in _bits(first):
        ready |= feeds[layer]
    ready &= within & ~first
    finished: list[int] = []
    seen = {first}
    stack = [(first, ready, _bits(ready))]
    while stack:
        mask, ready, pending = stack[-1]
        if not pending:
            finished.append(mask)
            stack.pop()
            continue
        following = mask | closure[pending.pop()]
        if following in seen:
            continue
        seen.add(following)
        if len(seen) > limit:
            return None
        for layer in _bits(following & ~mask):
            ready |= feeds[layer]
        ready &= within & ~following
        stack.append((following, ready, _bits(ready)))
    return finished[::-1]


def _blocks(graph: _Order, root: int) -> list[tuple[int, int]]:
    """Blocks of the graph between layers that are ordered with all others, as pairs of down-sets: before and after the block."""
    kept, ancestors, descendants = graph.kept, graph.ancestors, graph.descendants
    ends = [ancestors[root]]
    for layer in kept:
        joint = ancestors[layer].bit_count() + descendants[layer].bit_count() == len(kept) + 1
        if joint and ends[-1] & ~ancestors[layer] == 0 and ancestors[layer] != ends[-1]:
            ends.append(ancestors[layer])
    whole = sum(1 << index for index in kept)
    if ends[-1] != whole:
        ends.append(whole)
    return list(itertools.pairwise(ends)) or [(whole, whole)]


def _coarse_down_sets(graph: _Order, blocks: list[tuple[int, int]], limit: int) -> tuple[list[int], str]:
    """Down-sets block by block, and what is left out: while there are too many, the block with most takes a coarser form.

    Forms: all of a block; those of whole chains of layers; those of whole chains in layer order.
    """
    kept, ancestors, feeds = graph.kept, graph.ancestors, graph.feeds
    chains = _chain_closure(graph)
    options: list[list[tuple[str, list[int]]]] = []  # of each block, finest first
    for first, end in blocks:
        whole = _ordered_down_sets(first, end, ancestors, feeds, limit)
        by_chain = _ordered_down_sets(first, end, chains, feeds, limit)
        options.append([("between whole chains in layer order", _in_layer_order(first, end, kept, chains))])
        if by_chain is not None:
            options[-1].insert(0, ("between whole chains of layers", by_chain))
        if whole is not None:
            options[-1].insert(0, ("", whole))

    while sum(len(one[0][1]) for one in options) > limit / COARSER:
        coarser = [one for one in options if len(one) > 1]
        if not coarser:
            break
        max(coarser, key=lambda one: len(one[0][1])).pop(0)
    states = [blocks[0][0]]
    for one in options:
        states += [mask for mask in one[0][1] if mask != states[-1]]
    return states, _what_is_lost([one[0][0] for one in options], limit)


def _what_is_lost(cuts: list[str], limit: int) -> str:
    parts = [f"{cuts.count(how)} only {how}" for how in dict.fromkeys(cuts) if how]
    return (
        f"the graph has more than {limit:,} ways to be cut: of its {len(cuts)} blocks between layers that all data pass, "
        f"{' and '.join(parts)} may be cut; other cuts were not tried"
    )


def _in_layer_order(first: int, end: int, kept: list[int], closure: list[int]) -> list[int]:
    """The down-sets from `first` to `end` that come of adding what each layer in turn asks for, if that adds something."""
    states = [first]
    for layer in kept:
        if (end & ~states[-1]) >> layer & 1:
            states.append(states[-1] | closure[layer])
    return states


def _chain_closure(graph: _Order) -> list[int]:
    """`ancestors` of the last layer of each layer's chain: layers that each feed one other, which reads nothing else."""
    kept, ancestors, producers, feeds = graph.kept, graph.ancestors, graph.producers, graph.feeds
    last = list(range(len(ancestors)))
    for layer in reversed(kept):
        readers = _bits(feeds[layer])
        if len(readers) == 1 and sum(feeds[one] >> readers[0] & 1 for one in producers[readers[0]]) == 1:
            last[layer] = last[readers[0]]
    return [ancestors[one] for one in last]


def _bits(mask: int) -> list[int]:
    """Positions of the set bits, rising."""
    positions = []
    while mask:
        lowest = mask & -mask
        positions.append(lowest.bit_length() - 1)
        mask ^= lowest
    return positions


def _augmented(members: Flags, ancestors: Flags, edges: Sequence[tuple[int, int]], left_out: set[int]) -> Flags:
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


def _unpack(masks: list[int], count: int) -> Flags:
    width = (count + 7) // 8
    packed = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(masks), width), axis=1, count=count, bitorder="little")
    return bits.astype(np.bool_)


def _inside(members: Flags) -> tuple[NDArray[np.int32], Integers]:
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
