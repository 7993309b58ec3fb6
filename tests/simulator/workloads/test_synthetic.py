"""Synthetic chains."""

from __future__ import annotations

import pytest

from simulator.workloads.synthetic import uniform_chain


def test_a_uniform_chain_has_equal_layers() -> None:
    """Layer i feeds layer i+1; each has 1 GFLOP, a million weights and 100,000 outputs, which it keeps."""
    workload = uniform_chain(5)
    assert workload.edges == ((0, 1), (1, 2), (2, 3), (3, 4))
    figures = {(one.flop, one.parameters, one.output_elements, one.stashed_elements) for one in workload.layers}
    assert figures == {(1e9, 1_000_000, 1e5, 1e5)}
    with pytest.raises(ValueError, match="workload 'chain-0': at least one layer is needed, got none"):
        uniform_chain(0)
