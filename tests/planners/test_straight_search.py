"""The search of straight pipelines: the numbers of micro-batches beside the best one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planners.partitioning import straight_search
from planners.partitioning.straight_search import StraightShape


@pytest.mark.parametrize(
    ("batch", "counts"), [(24, (2, 6, 24)), (24, (1, 24)), (24, (6,)), (100, (4, 10, 20, 50)), (7, (1, 2, 7))]
)
def test_numbers_beside_are_the_least_of_each_largest_micro_batch(batch: int, counts: tuple[int, ...]) -> None:
    """Between its neighbours of the same shape those numbers come of which one less would make the largest micro-batch larger."""
    shape = StraightShape("1f1b", (0, 1), 1)
    known = [replace(shape, microbatches=one) for one in counts]
    others = [StraightShape("gpipe", (0, 1), one) for one in range(1, batch + 1)]
    others += [StraightShape("1f1b", (0, 1, 2), one) for one in range(1, batch + 1)]
    for place, own in enumerate(known):
        found = {one.microbatches for one in straight_search._beside(batch, own, [*others, *known])}
        fewest, most = counts[max(0, place - 1)], counts[min(len(counts) - 1, place + 1)]
        largest = [-(-batch // count) for count in range(1, batch + 1)]
        assert found == {count for count in range(fewest + 1, most) if largest[count - 1] < largest[count - 2]}
