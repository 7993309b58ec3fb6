"""Disturbances: the ends of what replays are disturbed by."""

MOST_NOISE = 2
"""Below it noise stays: the standard deviation of the logarithm of a factor."""

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
