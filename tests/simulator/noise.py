"""Noise for tests: a program with one draw of it."""

from __future__ import annotations

import numpy as np

from simulator import Program
from simulator.lowering.program import noisy_program


def with_noise(program: Program, spread: float, rng: np.random.Generator) -> Program:
    """The program with factors of one replay."""
    noisy = noisy_program(program)
    return noisy.program(noisy.factors(spread, rng, 1)[0])
