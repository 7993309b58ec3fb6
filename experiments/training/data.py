"""Data set: real samples that scikit-learn ships inside its package (extra `learn`); nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.training.optimizers import Array

SPLIT_SEED = 20260101
"""Seed of the division into training and test samples, the same for every method and training seed."""


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Training and test samples: `*_x` (samples, *features) float64, `*_labels` (samples,) integers."""

    name: str
    classes: int
    train_x: Array
    train_labels: NDArray[np.int64]
    test_x: Array
    test_labels: NDArray[np.int64]

    @property
    def features(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return self.train_x.shape[1:]


def digits() -> DataSet:
    """Handwritten digits, 8 x 8 grey images of 10 classes, scaled to -1..1: 1437 for training, 360 for test.

    Source: UCI "Optical recognition of handwritten digits" (1998), its test part, as bundled by scikit-learn.
    """
    bunch = _bundled("load_digits")
    images = np.asarray(bunch.images, np.float64)[:, :, :, None] / 8.0 - 1.0
    return _split("digits", images, np.asarray(bunch.target))


def breast_cancer() -> DataSet:
    """Breast cancer Wisconsin (diagnostic), 30 features, 2 classes: 455 for training, 114 for test.

    Features are standardised by the training samples. Source: UCI (1995), as bundled by scikit-learn.
    """
    return _table("breast-cancer", "load_breast_cancer")


def wine() -> DataSet:
    """Wine recognition, 13 features, 3 classes: 142 for training, 36 for test; standardised. Source: UCI (1991)."""
    return _table("wine", "load_wine")


DATA_SETS: dict[str, Callable[[], DataSet]] = {"digits": digits, "breast-cancer": breast_cancer, "wine": wine}
"""Name -> loader; each raises ValueError in one line where scikit-learn is not installed."""


def _bundled(loader: str) -> Any:
    try:
        datasets = import_module("sklearn.datasets")
    except ModuleNotFoundError as missing:
        raise ValueError(
            "the training data sets come with scikit-learn, which is not installed: pip install 'pipeplan[learn]'"
        ) from missing
    return getattr(datasets, loader)()


def _split(name: str, x: Array, labels: NDArray[Any]) -> DataSet:
    """A shuffled fifth (rounded up) for test, the rest for training."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    test = -(-len(x) // 5)
    labels = labels.astype(np.int64)
    return DataSet(
        name, int(labels.max()) + 1, x[order[test:]], labels[order[test:]], x[order[:test]], labels[order[:test]]
    )


def _table(name: str, loader: str) -> DataSet:
    """A table of features, standardised by the training samples."""
    bunch = _bundled(loader)
    data = _split(name, np.asarray(bunch.data), np.asarray(bunch.target))
    mean, deviation = data.train_x.mean(axis=0), data.train_x.std(axis=0)
    train, test = ((x - mean) / deviation for x in (data.train_x, data.test_x))
    return replace(data, train_x=train, test_x=test)
