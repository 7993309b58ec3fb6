"""Random tables: families of duration tables, all drawn from a generator that is passed in.

The families of the "simulation networks" (the paper does not say which it used): `affine` overhead + slope b;
`roofline` overhead + max(FLOP over saturating throughput, weight bytes over bandwidth); `uniform` every entry of the
table independent in [0.1, 1) times a scale; `log-uniform` every entry independent over two decades.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hardware_profiles import Floats
from planners.unequal import UnequalProblem


def affine_table(rng: np.random.Generator, rows: int, samples: int) -> Floats:
    """Overhead 10..100 us and 5..50 us per sample; shape (rows, samples + 1)."""
    sizes = np.arange(samples + 1)
    table = rng.uniform(10e-6, 100e-6, (rows, 1)) + rng.uniform(5e-6, 50e-6, (rows, 1)) * sizes
    return _no_samples_no_time(table)


def roofline_table(rng: np.random.Generator, rows: int, samples: int) -> Floats:
    """Launch overhead + the larger of arithmetic at an efficiency b / (b + half) and a fixed time to read weights."""
    sizes = np.arange(samples + 1)
    arithmetic = rng.uniform(5e-6, 50e-6, (rows, 1)) * (sizes + rng.uniform(0.0, 8.0, (rows, 1)))
    weights = rng.uniform(0.0, 600e-6, (rows, 1)) * (rng.random((rows, 1)) < 0.4)
    return _no_samples_no_time(rng.uniform(5e-6, 40e-6, (rows, 1)) + np.maximum(arithmetic, weights))


def uniform_table(rng: np.random.Generator, rows: int, samples: int) -> Floats:
    """Entries independent and uniform in 0.1..1 ms, whatever the size."""
    return _no_samples_no_time(rng.uniform(0.1e-3, 1e-3, (rows, samples + 1)))


def log_uniform_table(rng: np.random.Generator, rows: int, samples: int) -> Floats:
    """Entries independent, logarithms uniform over two decades, 10 us .. 1 ms, whatever the size."""
    return _no_samples_no_time(10.0 ** rng.uniform(-5.0, -3.0, (rows, samples + 1)))


FAMILIES: dict[str, Callable[[np.random.Generator, int, int], Floats]] = {
    "affine": affine_table,
    "roofline": roofline_table,
    "uniform": uniform_table,
    "log-uniform": log_uniform_table,
}
"""Name -> (rng, rows, samples) -> table of shape (rows, samples + 1), seconds."""


def random_problem(
    rng: np.random.Generator,
    family: str,
    stages: int,
    samples: int,
    candidates: tuple[int, ...],
    recomputation: str = "none",
    link_share: float = 0.5,
) -> UnequalProblem:
    """An instance of a family; links take `link_share` of a stage's time, the backward pass about twice the forward's.

    Raises ValueError as `UnequalProblem`.
    """
    table = FAMILIES[family]
    return UnequalProblem(
        samples=samples,
        forward=table(rng, stages, samples),
        backward=2.0 * table(rng, stages, samples),
        forward_link=link_share * table(rng, stages - 1, samples),
        backward_link=link_share * table(rng, stages - 1, samples),
        candidates=candidates,
        recomputation=recomputation,
    )


def _no_samples_no_time(table: Floats) -> Floats:
    table[:, 0] = 0.0
    return table
