"""Synthetic chains."""

from __future__ import annotations

import pytest

from simulator.workloads.synthetic import uniform_chain


def test_a_uniform_chain_has_equal_layers() -> None:
    """Layer i feeds layer i+1; only the names differ."""
    workload = uniform_chain(5)
    assert workload.edges == ((0, 1), (1, 2), (2, 3), (3, 4))
    assert len({(x.flop, x.parameters, x.output_elements) for x in workload.layers}) == 1
    assert len({x.name for x in workload.layers}) == 5


def test_figures_that_are_not_given() -> None:
    """1 GFLOP, a million weights, 100,000 outputs, kept as they are; one sample a mini-batch."""
    workload = uniform_chain(1)
    (layer,) = workload.layers
    figures = 1e9, 1_000_000, 1e5, 1e5
    assert (layer.flop, layer.parameters, layer.output_elements, layer.stashed_elements) == figures
    assert workload.minibatch == 1


def test_a_chain_of_no_layers_is_refused() -> None:
    """One line with the rule."""
    with pytest.raises(ValueError, match="at least one layer is needed, got none"):
        uniform_chain(0)
