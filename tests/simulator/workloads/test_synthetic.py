"""Synthetic chains."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.workloads.synthetic import chain, measured_chain, random_chain, uniform_chain


def test_a_chain_has_the_given_figures() -> None:
    """Layer i feeds layer i+1; every cut carries one layer's output."""
    workload = chain([1, 2, 3], parameters=[4, 5, 6], output_elements=[7, 8, 9])
    assert workload.edges == ((0, 1), (1, 2))
    assert workload.cut_elements().tolist() == [0, 7, 8, 0]
    assert workload.prefix_flop().tolist() == [0, 1, 3, 6]
    assert workload.prefix_parameters().tolist() == [0, 4, 9, 15]
    assert workload.prefix_stashed().tolist() == [0, 7, 15, 24]


def test_a_measured_chain_has_rows_instead_of_flop() -> None:
    """Seconds of the given samples."""
    workload = measured_chain([0.1, 0.2], [0.3, 0.4], samples=8)
    assert [layer.measured for layer in workload.layers] == [((8, 0.1, 0.3),), ((8, 0.2, 0.4),)]
    assert workload.flop() == 0
    assert workload.bytes_per_element == 4


def test_a_uniform_chain_has_equal_layers() -> None:
    """Only the names differ."""
    workload = uniform_chain(5)
    assert len({(x.flop, x.parameters, x.output_elements) for x in workload.layers}) == 1
    assert len({x.name for x in workload.layers}) == 5


def test_figures_that_are_not_given() -> None:
    """1 GFLOP, a million weights, 100,000 outputs, kept as they are; a spread of 1 changes nothing; one sample a mini-batch."""
    (layer,) = uniform_chain(1).layers
    figures = 1e9, 1_000_000, 1e5, 1e5
    assert (layer.flop, layer.parameters, layer.output_elements, layer.stashed_elements) == figures
    (layer,) = random_chain(1, np.random.default_rng(0), spread=1.0).layers
    assert (layer.flop, layer.parameters, layer.output_elements, layer.stashed_elements) == figures
    (layer,) = chain([2.0]).layers
    assert (layer.parameters, layer.output_elements, layer.stashed_elements) == (0, 0.0, 0.0)
    (layer,) = measured_chain([1.0], [2.0]).layers
    assert (layer.parameters, layer.output_elements, layer.measured) == (0, 0.0, ((1.0, 1.0, 2.0),))
    generator = np.random.default_rng(0)
    made = uniform_chain(1), random_chain(1, generator), chain([2.0]), measured_chain([1.0], [2.0])
    assert [workload.minibatch for workload in made] == [1, 1, 1, 1]
    log_spread = np.log(np.array([x.flop for x in random_chain(400, generator, spread=3.0).layers]) / 1e9) / np.log(3.0)
    assert -1.0 <= log_spread.min() < -0.95
    assert 0.95 < log_spread.max() <= 1.0
    wide = np.log([x.flop / 1e9 for x in random_chain(400, generator).layers]) / np.log(4.0)
    assert -1.0 <= wide.min() < -0.95
    assert 0.95 < wide.max() <= 1.0


def test_a_random_chain_repeats_with_its_seed_and_stays_in_its_spread() -> None:
    """Same generator seed, same bits; factors between 1/4 and 4."""
    one, same, other = (random_chain(50, np.random.default_rng(seed)) for seed in (7, 7, 8))
    assert one == same
    assert one != other
    assert all(0.25e9 <= layer.flop <= 4e9 for layer in one.layers)
    assert all(layer.output_elements == int(layer.output_elements) for layer in one.layers)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: uniform_chain(0), "chain layers must be at least 1, got 0"),
        (lambda: chain([]), "at least one layer is needed, got none"),
        (
            lambda: chain([1, 2], parameters=[1]),
            r"chain parameters must have one figure a layer \(2\), got 1",
        ),
        (
            lambda: measured_chain([1.0], []),
            r"chain backward_seconds must have one figure a layer \(1\), got 0",
        ),
        (lambda: chain([-1]), "flop must be finite and not negative, got -1.0"),
        (lambda: random_chain(3, np.random.default_rng(0), spread=0.5), "spread must be at least 1, got 0.5"),
    ],
)
def test_impossible_chains_are_refused(make: object, rule: str) -> None:
    """One line with rule and value."""
    with pytest.raises(ValueError, match=rule):
        make()  # type: ignore[operator]
