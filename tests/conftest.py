"""Shared fixtures: where the reference data lie, if they are here at all."""

from __future__ import annotations

from pathlib import Path

import pytest


def _find_shared_data() -> Path | None:
    for parent in Path(__file__).resolve().parents:
        candidate = parent / "shared" / "data"
        if candidate.is_dir():
            return candidate
    return None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of reference profiles and expected results; the test is skipped where it is absent."""
    found = _find_shared_data()
    if found is None:
        pytest.skip("shared/data is not beside this checkout: reference profiles and results are absent")
    return found
