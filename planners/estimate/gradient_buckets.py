"""Gradient buckets of many stages at once: how many there are, and what of their reduction the last backward does not hide.

`PlanCosts.buckets` cuts the buckets of one plan layer by layer; here all buckets of a stage are equally large.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator import BUCKET_BYTES, MOST_BUCKETS, Problem

Floats = NDArray[np.float64]


def bucket_counts(gradient_bytes: Floats, problem: Problem) -> Floats:
    """Buckets of stages whose weights have so many bytes of gradients; one where the problem reduces them whole."""
    if problem.gradient_reduction == "whole":
        return np.ones_like(gradient_bytes)
    return np.clip(gradient_bytes // BUCKET_BYTES, 1.0, MOST_BUCKETS)


def exposed_seconds(reduced: Floats, backward: Floats, buckets: Floats, last: Floats | None = None) -> Floats:
    """Seconds of reductions that follow the last backward: the last bucket, and what its backward is too short to hide.

    reduced: seconds of all buckets of a stage; backward: of its last backward, under all but the last bucket
    last: seconds of the last bucket, where it is not as large as the others
    """
    alone = reduced / buckets if last is None else last
    return np.maximum(alone, reduced - backward * (1.0 - 1.0 / buckets))
