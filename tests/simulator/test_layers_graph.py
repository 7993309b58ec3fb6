"""The layer graph: its checks, its cuts and its prefix sums."""

from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import LAYER_KINDS
from simulator.workloads.layers import Layer, Workload


def layer(name: str, output: float = 1.0, **figures: object) -> Layer:
    plain = Layer(name, "linear", flop=0.0, parameters=0, output_elements=output, stashed_elements=0.0)
    return replace(plain, **figures)


def diamond() -> Workload:
    """a feeds b and c, which both feed d; a also feeds d."""
    layers = (
        layer("a", 10, flop=1.0, parameters=5, stashed_elements=2.0),
        layer("b", 20, flop=2.0, parameters=6, stashed_elements=3.0),
        layer("c", 40, flop=4.0, parameters=7, stashed_elements=4.0),
        layer("d", 80, flop=8.0, parameters=8, stashed_elements=5.0),
    )
    return Workload("diamond", layers, ((0, 1), (0, 2), (0, 3), (1, 3), (2, 3)))


def test_a_producer_with_three_consumers_crosses_a_cut_once() -> None:
    """After a: 10. After b: a and b, 30. After c: a, b and c, 70. Nothing crosses the outer cuts."""
    assert diamond().cut_elements().tolist() == [0, 10, 30, 70, 0]


def test_a_graph_adds_up_and_is_a_value() -> None:
    """Sums over the layers; d reads a, b and c, 70 elements; it cannot be changed, and can be a key."""
    workload = diamond()
    assert (workload.parameters(), workload.flop(), len(workload)) == (26, 15.0, 4)
    assert workload.input_elements().tolist() == [0, 10, 10, 70]
    assert hash(workload) == hash(diamond())
    with pytest.raises(FrozenInstanceError):
        workload.minibatch = 2  # type: ignore[misc]


@st.composite
def graphs(draw: st.DrawFn) -> Workload:
    """DAGs of up to 12 layers with any figures, whole or not."""
    count = draw(st.integers(1, 12))
    amounts = st.one_of(st.integers(0, 1000), st.floats(0, 1e6, allow_nan=False))
    outputs = draw(st.lists(amounts, min_size=count, max_size=count))
    pairs = [(p, c) for p in range(count) for c in range(p + 1, count)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return Workload("random", tuple(layer(f"l{i}", x) for i, x in enumerate(outputs)), tuple(edges))


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_cuts_equal_brute_force_on_any_graph(workload: Workload) -> None:
    """Cut i carries every producer before it that has a consumer at or after it, to the last bit."""
    count = len(workload)
    expected = [
        math.fsum(
            workload.layers[p].output_elements for p in range(i) if any(q == p and c >= i for q, c in workload.edges)
        )
        for i in range(count + 1)
    ]
    assert workload.cut_elements().tolist() == expected


BROKEN_LAYERS = [
    ({"kind": "convolutional"}, f"kind must be one of {', '.join(LAYER_KINDS)}, got 'convolutional'"),
    ({"flop": -1.0}, "flop must be finite and not negative, got -1.0"),
    ({"flop": math.nan}, "flop must be finite and not negative, got nan"),
    ({"flop": "7"}, "flop must be finite and not negative, got '7'"),
    ({"flop": 10**400}, "flop must be finite and not negative, got 1000"),
    ({"output_elements": math.inf}, "output_elements must be finite and not negative, got inf"),
    ({"stashed_elements": -2.0}, "stashed_elements must be finite and not negative, got -2.0"),
    ({"parameters": -3}, "parameters must be a whole number of at least 0, got -3"),
    ({"parameters": 1.5}, "parameters must be a whole number of at least 0, got 1.5"),
    ({"sequential_steps": 0}, "sequential_steps must be a whole number of at least 1, got 0"),
    ({"measured": ((1.0, -1.0, 0.0),)}, "measured forward seconds must be finite and not negative, got -1.0"),
    (
        {"measured": ((2.0, 1.0, 1.0), (2.0, 1.0, 1.0))},
        "measured samples must be positive and rise, got 2 after 2",
    ),
    ({"measured": ((0.0, 1.0, 1.0),)}, "measured samples must be positive and rise, got 0 after 0"),
    ({"split": "rings"}, "split must be one of '', 'columns', 'rows'"),
    ({"undivided": 9, "parameters": 8}, "undivided is a part of its 8 parameters, got 9"),
    ({"query_heads": 3, "heads": 2}, "query_heads must be a multiple of heads, 2, got 3"),
    ({"query_heads": 3}, "query_heads must be a multiple of heads, 0, got 3"),
    ({"tied_parameters": 3}, "tied_parameters go with tied_to, got 3 without"),
    ({"channels": (1, -1)}, "channels must be a whole number of at least 0, got -1"),
    ({"channels": (1.5, 1)}, "channels must be a whole number of at least 0, got 1.5"),
    ({"measured": ((1.0, 1.0),)}, "a measured row is (samples, forward s, backward s), got (1.0, 1.0)"),
]


@pytest.mark.parametrize(("figures", "rule"), BROKEN_LAYERS)
def test_a_layer_out_of_range_is_refused_with_its_name_rule_and_value(figures: dict[str, object], rule: str) -> None:
    """The message is one line that names workload, layer, rule and value."""
    with pytest.raises(ValueError, match=re.escape(f"workload 'w': layer 'x': {rule}")) as caught:
        Workload("w", (layer("x", **figures),), ())
    assert "\n" not in str(caught.value)


BROKEN_GRAPHS = [
    ({"layers": ()}, "workload 'w': at least one layer is needed, got none"),
    ({"layers": (layer("a"), layer("a"))}, "workload 'w': layer names must be unique, got 'a' 2 times"),
    ({"layers": (layer(""),)}, "workload 'w': layer '': name must not be empty"),
    (
        {"layers": (layer("a", parameters=2**62), layer("b", parameters=2**62))},
        "workload 'w': parameters must be at most 2^63 - 1, got 9223372036854775808",
    ),
    ({"edges": ((0, 2),)}, "workload 'w': edge indices must be from 0 to 1, got (0, 2)"),
    ({"edges": ((-1, 1),)}, "workload 'w': edge indices must be from 0 to 1, got (-1, 1)"),
    (
        {"edges": ((1, 0),)},
        "workload 'w': layers must be in topological order (producer before consumer), got edge (1, 0)",
    ),
    (
        {"edges": ((1, 1),)},
        "workload 'w': layers must be in topological order (producer before consumer), got edge (1, 1)",
    ),
    ({"edges": ((0, 1), (0, 1))}, "workload 'w': edges must be unique, got (0, 1) twice"),
    ({"minibatch": 0}, "minibatch must be a whole number of at least 1, got 0"),
    ({"minibatch": True}, "minibatch must be a whole number of at least 1, got True"),
    ({"bytes_per_element": 0}, "bytes_per_element must be a whole number of at least 1, got 0"),
    ({"name": ""}, "workload: name must not be empty"),
]


@pytest.mark.parametrize(("change", "rule"), BROKEN_GRAPHS)
def test_a_broken_graph_is_refused_with_its_rule_and_value(change: dict[str, object], rule: str) -> None:
    """Duplicate names, edges out of range, backwards or twice, and counts below 1 are errors."""
    sound = Workload("w", (layer("a"), layer("b")), ((0, 1),))
    figures = {"edges": ()} if "layers" in change else {}
    with pytest.raises(ValueError, match=re.escape(rule)):
        replace(sound, **{**figures, **change})
