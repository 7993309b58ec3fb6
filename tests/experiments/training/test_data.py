"""Data sets that scikit-learn ships."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from experiments.training import DATA_SETS


@pytest.mark.parametrize(
    ("name", "train", "test", "features", "classes"),
    [("digits", 1437, 360, (8, 8, 1), 10), ("breast-cancer", 455, 114, (30,), 2), ("wine", 142, 36, (13,), 3)],
)
def test_sizes(name: str, train: int, test: int, features: tuple[int, ...], classes: int) -> None:
    """A fifth, rounded up, is for test; every class is in both parts; the split repeats."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (extra `learn`)")
    data = DATA_SETS[name]()
    assert (len(data.train_x), len(data.test_x), data.features, data.classes) == (train, test, features, classes)
    assert set(data.train_labels) == set(data.test_labels) == set(range(classes))
    assert np.isfinite(data.train_x).all()
    assert np.array_equal(DATA_SETS[name]().test_x, data.test_x)


def test_missing_scikit_learn_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra: ValueError that names the package and the command."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'pipeplan\[learn\]'") as error:
        DATA_SETS["digits"]()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["breast-cancer", "wine"])
def test_tables_are_standardised_by_their_training_part(name: str) -> None:
    """Each feature has mean 0 and deviation 1 in training; the test part is moved by as much, not by its own."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (extra `learn`)")
    data = DATA_SETS[name]()
    assert data.train_x.mean(axis=0) == pytest.approx(0.0, abs=1e-9)
    assert data.train_x.std(axis=0) == pytest.approx(1.0)
    assert np.abs(data.test_x.mean(axis=0)).max() > 0.01
    assert np.abs(data.test_x.std(axis=0) - 1.0).max() < 1.0
