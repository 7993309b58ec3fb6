"""Gradient buckets in closed form, beside those that plans are cut into layer by layer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import load_cluster
from planners.estimate.replica_traffic import bucket_counts, exposed_seconds, reduced_seconds, update_seconds
from simulator import BUCKET_BYTES, MOST_BUCKETS, Problem, cut_buckets, load_workload


def problem(reduction: str) -> Problem:
    """Any, whose gradients are reduced so."""
    return Problem(load_workload("alexnet"), load_cluster("pipedream-a"), 64, gradient_reduction=reduction)  # type: ignore[arg-type]


@given(st.lists(st.floats(1e4, 1e9), min_size=1, max_size=60))
@settings(max_examples=30)
def test_no_fewer_buckets_than_layers_are_cut_into(layers: list[float]) -> None:
    """But for what is left in front: layers are never cut, so that buckets are rather larger."""
    sizes = np.array(layers)
    shares, nothing = np.full(len(sizes), 1.0 / len(sizes)), np.zeros(len(sizes))
    (count,) = bucket_counts(np.array([sizes.sum()]), problem("buckets"))
    assert 1.0 <= count <= MOST_BUCKETS
    assert len(cut_buckets(sizes, nothing, shares)) <= count + 1
    assert bucket_counts(np.array([sizes.sum()]), problem("whole")).tolist() == [1.0]
    assert len(cut_buckets(sizes, nothing, shares, whole=True)) == 1


@pytest.mark.parametrize(("layers", "buckets"), [(1, 1), (2, 2), (31, 31), (40, 32)])
def test_layers_of_a_bucket_each_are_its_buckets(layers: int, buckets: int) -> None:
    """At most MOST_BUCKETS of them."""
    assert bucket_counts(np.array([layers * BUCKET_BYTES]), problem("buckets")).tolist() == [buckets]


def test_what_a_backward_does_not_hide_of_a_reduction() -> None:
    """Four buckets of 2 s: under a backward of 8 s all but the last hide; of one of 4 s 3 s are under it; a single one is behind.

    backward 4 s, buckets ready at 1, 2, 3, 4 s:  |1..3|3..5|5..7|7..9|: 5 s after its end
    """
    reduced, buckets = np.array([8.0, 8.0, 8.0]), np.array([4.0, 4.0, 1.0])
    assert exposed_seconds(reduced, np.array([8.0, 4.0, 4.0]), buckets, reduced / buckets).tolist() == [2.0, 5.0, 8.0]
    assert exposed_seconds(reduced, np.array([8.0, 8.0, 8.0]), buckets, np.array([3.0, 3.0, 8.0])).tolist() == [
        3.0,
        3.0,
        8.0,
    ]


def test_the_last_bucket_is_no_more_than_all_of_them() -> None:
    """Under a long backward it alone is behind it: of layers in front that are all of a stage, or more where tied weights are
    reduced apart, that is the whole reduction.
    """

    def moved(operation: object, dense: np.ndarray, experts: np.ndarray, width: float) -> np.ndarray:
        return np.asarray(1e-9 * (dense + experts) * width)

    elements, long = np.array([1e8]), np.array([1e9])
    whole = 1e-9 * elements * problem("buckets").accumulated_bytes
    found = [
        reduced_seconds(problem("buckets"), moved, elements, 0.0 * elements, front, long, 0)  # type: ignore[arg-type]
        for front in (0.0 * elements, elements / 2, elements, 2.0 * elements)
    ]
    shares = [
        1.0 / bucket_counts(elements * problem("buckets").accumulated_bytes, problem("buckets"))[0],
        0.5,
        1.0,
        1.0,
    ]
    assert [one[0] for one in found] == pytest.approx([whole[0] * share for share in shares])


def test_a_stage_without_weights_has_no_update() -> None:
    """Others take at least a call of the optimizer: 20 us, of which 10 and 1 us a million elements are for one."""
    assert update_seconds(np.array([0.0, 1e6, 4e7]), 20e-6, 10e-6, 1e-12).tolist() == pytest.approx([0.0, 20e-6, 50e-6])
