"""Settings of simulator, hardware profiles and planners: limits, tolerances, sizes and defaults, as records."""

from __future__ import annotations

import pytest

from tests.records import Recorded
from tests.settings import constants, defaults, modules

MODULES = modules("hardware_profiles") | modules("simulator") | modules("planners")


@pytest.mark.parametrize("module", MODULES)
def test_module(module: str, recorded: Recorded) -> None:
    """What the module fixes by name, and what its functions and values take where nothing is given."""
    fixed, taken = constants(module, MODULES[module]), defaults(module, MODULES[module])
    if fixed or taken:
        recorded(constants=fixed, defaults=taken)
