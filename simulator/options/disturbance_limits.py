"""Disturbance limits: the ends of what replays, and days of training, are disturbed by."""

MOST_NOISE = 2
"""Below it noise stays: the standard deviation of the logarithm of a factor."""

LEAST_SECONDS, MOST_SECONDS = 1e-3, 1e12
"""Of a checkpoint; and of what a job on servers that fail does, or waits for."""

MOST_DAYS, MOST_RUNS = 3650.0, 10_000
"""Of such a job."""

MOST_REPLAYS = 100_000
"""Replays with noise at most."""

MOST_FACTOR = 1e6
"""Of a straggler, at most."""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
"""The quantiles that are told, by name."""


def check_noise(noise: float) -> None:
    """Raise ValueError unless noise is at least 0 and below MOST_NOISE."""
    if not 0 <= noise < MOST_NOISE:
        raise ValueError(
            f"noise must be at least 0 and below {MOST_NOISE} (standard deviation of the logarithm), got {noise}"
        )
