"""Fixtures of the simulator's tests."""

from tests.timelines import hand as hand
