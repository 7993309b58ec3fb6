"""Antichain states: counts, cuts and order."""

from __future__ import annotations

import functools
import itertools
import operator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import AntichainStates, Layer, Workload, antichain_states, down_sets, read_profile


def layer(name: str, kind: str = "linear", parameters: int = 1) -> Layer:
    return Layer(name, kind, 1.0 if kind == "linear" else 0.0, parameters, 1.0, 1.0)


def workload(count: int, edges: list[tuple[int, int]], kinds: dict[int, str] | None = None) -> Workload:
    kinds = kinds or {}
    layers = [layer(f"layer{i}", kinds.get(i, "linear"), 0 if i in kinds else 1) for i in range(count)]
    return Workload("test", tuple(layers), tuple(sorted(edges)))


DIAMOND = workload(4, [(0, 1), (0, 2), (1, 3), (2, 3)])


@st.composite
def graphs(draw: st.DrawFn) -> Workload:
    """Connected graphs with one source, up to 7 layers."""
    count = draw(st.integers(1, 7))
    edges = set()
    for consumer in range(1, count):
        producers = draw(st.sets(st.integers(0, consumer - 1), min_size=1, max_size=3))
        edges |= {(producer, consumer) for producer in producers}
    return workload(count, list(edges))


def test_totals_add_from_the_first_layer_to_the_last() -> None:
    """To the last bit, of a chain and of branches: sums of another order differ, and those of `sum` from Python 3.12 on."""
    values = np.random.default_rng(2).uniform(0.0, 1.0, 9) * 10.0 ** np.arange(9)
    straight = [(layer, layer + 1) for layer in range(8)]
    for edges in (straight, [(0, 1), (1, 2), (0, 3), (2, 4), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8)]):
        states = antichain_states(workload(9, edges))
        added = [functools.reduce(operator.add, values[members].tolist()) for members in states.members]
        assert states.totals(values).tolist() == added


def totals_of(states: AntichainStates, rows: Any) -> dict[tuple[int, ...], float]:
    """Sums over `rows` of each state of the diamond, whose layers put out 1, 10, 100 and 1,000 elements."""
    totals = states.totals(np.array([1.0, 10.0, 100.0, 1000.0]), rows)
    return {tuple(np.flatnonzero(members)): total for members, total in zip(states.members, totals, strict=True)}


def test_totals_are_of_the_rows_that_are_given() -> None:
    """One array after another that is none of the states' own."""
    states = antichain_states(workload(4, [(0, 1), (0, 2), (1, 3), (2, 3)]))
    values = np.array([1.0, 10.0, 100.0, 1000.0])
    for layer in (0, 3):
        rows = np.zeros_like(states.members)
        rows[:, layer] = True
        assert states.totals(values, rows).tolist() == [values[layer]] * len(rows)


def test_cut_counts_each_producer_once() -> None:
    """Behind {0} only layer 0's output crosses, once, though two layers read it; behind {0, 1} both 0's and 1's."""
    states = antichain_states(DIAMOND)
    assert totals_of(states, states.frontier) == {(0,): 1, (0, 1): 11, (0, 2): 101, (0, 1, 2): 110, (0, 1, 2, 3): 0}


def test_augmented_antichain_keeps_the_fork() -> None:
    """PipeDream's own measure also charges the fork, 0, behind {0, 1, 2}, and the output of the whole network."""
    states = antichain_states(DIAMOND)
    sent = totals_of(states, states.augmented)
    assert sent == {(0,): 1, (0, 1): 11, (0, 2): 101, (0, 1, 2): 111, (0, 1, 2, 3): 1000}


def test_stage_layers_are_the_difference_of_two_states() -> None:
    """The stage from the first state to the last one is all layers but the first state's."""
    states = antichain_states(DIAMOND)
    assert states.stage_layers(0, 1) == (0,)
    assert states.stage_layers(1, 5) == (1, 2, 3)


def test_inputs_add_no_state_unless_asked() -> None:
    """An input is in every state; kept, it is a first layer like any other."""
    chain = workload(3, [(0, 1), (1, 2)], {0: "input"})
    assert antichain_states(chain).members.tolist() == [[True, True, False], [True, True, True]]
    assert len(antichain_states(chain, drop_inputs=False)) == 3


def test_unread_item_goes_where_its_producer_goes() -> None:
    """A reshape that nothing reads does not double the states; one that is read does."""
    graph = workload(4, [(0, 1), (0, 2), (2, 3)], {1: "reshape"})
    states = antichain_states(graph)
    assert len(states) == 3
    assert states.members[:, 1].all()


def test_second_source_joins_with_its_first_reader() -> None:
    """Layer 2 has no producer; it enters when layer 3, which reads it, does."""
    states = antichain_states(workload(4, [(0, 1), (1, 3), (2, 3)]))
    assert [tuple(np.flatnonzero(row)) for row in states.members] == [(0,), (0, 1), (0, 1, 2, 3)]


def modules(branches: tuple[int, ...], depth: int, count: int) -> Workload:
    """`count` modules in a row, each of a fork, branches of `depth` layers, and a join that is the next one's fork."""
    edges, fork = [], 0
    for branch_count in branches[:count]:
        join = fork + branch_count * depth + 1
        for branch in range(branch_count):
            path = [fork, *range(fork + branch * depth + 1, fork + (branch + 1) * depth + 1), join]
            edges += list(itertools.pairwise(path))
        fork = join
    return workload(fork + 1, edges)


def test_too_many_states_are_coarsened_block_by_block() -> None:
    """Modules of 2, 3, 2 branches of 3 layers: 16, 64 and 16 ways; of at most 80 the middle one is cut between whole branches.

    Whole branches: the 2^3 - 1 sets of them and all with the join; all other cuts, behind one or two layers of a branch, go.
    A coarsened graph is to have a quarter of 80: the other two blocks, too, are cut between their two branches.
    """
    graph = modules((2, 3, 2), 3, 3)
    whole = antichain_states(graph)
    assert (len(whole), whole.lost) == (1 + 16 + 64 + 16, "")
    coarse = antichain_states(graph, limit=80)
    assert len(coarse) == 1 + 4 + 8 + 4
    assert coarse.lost == (
        "the graph has more than 80 ways to be cut: of its 3 blocks between layers that all data pass, "
        "3 only between whole chains of layers may be cut; other cuts were not tried"
    )
    exact = {row.tobytes() for row in whole.members}
    assert all(row.tobytes() in exact for row in coarse.members)
    for state in range(len(coarse)):
        inside = coarse.predecessors[coarse.offsets[state] : coarse.offsets[state + 1]]
        contained = [
            other
            for other in range(len(coarse))
            if other != state and not (coarse.members[other] & ~coarse.members[state]).any()
        ]
        assert inside.tolist() == contained


def test_where_chains_are_too_many_the_layer_order_remains() -> None:
    """12 branches of two layers make 3^12 states between fork and join: branch after branch in their order remains."""
    graph = modules((12,), 2, 1)
    coarse = antichain_states(graph, limit=1000)
    assert coarse.members.sum(axis=1).tolist() == [*range(1, 26, 2), 26]
    assert "1 only between whole chains in layer order may be cut" in coarse.lost


def test_a_last_block_that_no_layer_joins_is_coarsened_like_others() -> None:
    """The same branches without the join: the whole network is the last state, not the only one behind the fork."""
    joined = modules((12,), 2, 1)
    coarse = antichain_states(workload(25, [edge for edge in joined.edges if edge[1] != 25]), limit=1000)
    assert coarse.members.sum(axis=1).tolist() == [*range(1, 26, 2)]
    assert "of its 1 blocks" in coarse.lost


def test_the_last_layer_is_a_state_though_it_does_no_work() -> None:
    """A final reshape is the network's output: only an item of a result that is read elsewhere goes where its producer goes."""
    kinds = {2: "reshape"}
    assert len(antichain_states(workload(3, [(0, 1), (1, 2)], kinds))) == 3
    assert len(antichain_states(workload(4, [(0, 1), (1, 2), (1, 3)], kinds))) == 3


def test_only_inputs_are_refused() -> None:
    """A workload of inputs alone has nothing to partition."""
    with pytest.raises(ValueError, match="a workload needs a layer that is not an input, got 1 inputs"):
        antichain_states(workload(1, [], {0: "input"}))


@settings(deadline=None, max_examples=30)
@given(graphs())
def test_states_are_all_down_sets(graph: Workload) -> None:
    """Against enumeration: every non-empty set of layers closed under producers, each once, smaller ones first."""
    count = len(graph.layers)
    expected = {
        frozenset(chosen)
        for size in range(1, count + 1)
        for chosen in combinations(range(count), size)
        if all(producer in chosen for producer, consumer in graph.edges if consumer in chosen)
    }
    states = antichain_states(graph)
    found = [frozenset(np.flatnonzero(row).tolist()) for row in states.members]
    assert len(found) == len(set(found))
    assert set(found) == expected
    for outer, layers in enumerate(found):
        inside = [inner for inner, others in enumerate(found) if others < layers]
        assert states.predecessors[states.offsets[outer] : states.offsets[outer + 1]].tolist() == inside
        assert all(inner < outer for inner in inside)
        assert all(states.contains(outer, inner) == (inner in inside) for inner in range(len(found)))


@settings(deadline=None, max_examples=30)
@given(graphs())
def test_cut_of_a_prefix_agrees_with_the_workload(graph: Workload) -> None:
    """Where a state is a prefix of the layer order, its cut is the workload's own."""
    states = antichain_states(graph)
    crossing = states.totals(np.array([layer.output_elements for layer in graph.layers]), states.frontier)
    for row, total in zip(states.members, crossing, strict=True):
        size = int(row.sum())
        if row[:size].all():
            assert total == graph.cut_elements()[size]


@pytest.mark.parametrize(
    ("profile", "count"), [("vgg16", 40), ("alexnet", 22), ("gnmt", 99), ("gnmt_large", 1495), ("resnet50", 240)]
)
def test_profiles_have_the_recorded_counts(shared_data: Path, profile: str, count: int) -> None:
    """The official optimizer's number of states, for each bundled profile."""
    measured = read_profile(shared_data / "pipedream_profiles" / f"{profile}.txt")
    states = antichain_states(measured, drop_inputs=False)
    assert len(states) == count
    assert states.members[-1].all()


def test_down_sets_of_nodes_in_any_numbering() -> None:
    """From no node to all, a set behind all inside it; sources apart from each other come in any order; a circle is refused."""
    sets, lost = down_sets(4, [(3, 1), (1, 0), (3, 2)])
    assert not lost
    assert not sets[0].any()
    assert sets[-1].all()
    found = {frozenset(np.flatnonzero(row).tolist()) for row in sets}
    assert found == {frozenset(one) for one in ((), (3,), (3, 1), (3, 2), (3, 1, 2), (3, 1, 0), (0, 1, 2, 3))}
    later = [(one, other) for one, other in combinations(range(7), 2) if not (sets[other] & ~sets[one]).any()]
    assert not later
    assert len(down_sets(3, [])[0]) == 8
    with pytest.raises(ValueError, match=r"nodes must not stand before themselves, these do: \[0, 1, 0\]"):
        down_sets(2, [(0, 1), (1, 0)])
