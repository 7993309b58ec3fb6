"""Shared fixtures: where the reference data lie, if they are here at all; and how property tests draw their examples."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from hardware_profiles import plugged_in
from tests.records import Recorded, assert_recorded

# A default run draws the same examples every time, so that it passes or fails for everybody alike. To search for new ones:
# `python -m pytest --hypothesis-profile random`; what that finds becomes an `@example` of its test.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")


def _find_shared_data() -> Path | None:
    for parent in Path(__file__).resolve().parents:
        candidate = parent / "shared" / "data"
        if candidate.is_dir():
            return candidate
    return None


@pytest.fixture
def no_plugins() -> Iterator[None]:
    """Plug-ins are read anew in this test, and again after it."""
    plugged_in.cache_clear()
    yield
    plugged_in.cache_clear()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of reference profiles and expected results; the test is skipped where it is absent."""
    found = _find_shared_data()
    if found is None:
        pytest.skip("shared/data is not beside this checkout: reference profiles and results are absent")
    return found


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Recorded:
    """Compares values by name with the record of the test: `golden/MODULE/TEST.json` beside it; its docstring says what they are.

    Nothing of the module's other tests stands in it, so that one changed figure is one changed record.
    """
    test: pytest.Function = request.node
    name = re.sub(r"[^\w.-]+", "-", test.name.removeprefix("test_")).strip("-")
    path = test.path.parent / "golden" / test.path.stem.removeprefix("test_") / f"{name}.json"
    return lambda **values: assert_recorded(path, inspect.getdoc(test.function) or "", values)
