"""A small data set made by hand, so that the replay is tested without scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.training import DataSet
from tests.timelines import hand as hand


@pytest.fixture(scope="session")
def blobs() -> DataSet:
    """Three noisy clusters on a line, 5 features: 96 samples for training, 24 for test."""
    draw = np.random.default_rng(11)
    labels = draw.integers(0, 3, 120)
    x = draw.normal(size=(120, 5)) + 2.0 * labels[:, None]
    return DataSet("blobs", 3, x[:96], labels[:96], x[96:], labels[96:])
