"""Collective fit: what measured collectives tell of the links of one server, and the file of a cluster that has them.

Seconds of a collective of S bytes among n devices = latency + passes (n - 1) / n S / rate, with two constants of each operation;
fitted on half of the measurements and judged on the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean
from typing import NamedTuple

from experiments.calibration.kernel_files import short
from experiments.calibration.kernel_fit import least
from experiments.profiling.measured_kernels import COLLECTIVES, Collective, CollectiveName, Measurements
from hardware_profiles import Operation, one_line, percent, toml_text

OPERATIONS: Mapping[CollectiveName, Operation] = {
    "all-reduce": Operation.ALL_REDUCE,
    "all-gather": Operation.ALL_GATHER,
    "reduce-scatter": Operation.REDUCE_SCATTER,
}

SHARES: Mapping[CollectiveName, str] = {
    "all-reduce": "collective_efficiency",
    "all-gather": "gather_efficiency",
    "reduce-scatter": "scatter_efficiency",
}
"""Keys of a link's shares."""

LATENCY, RATE = (1e-7, 1.0), (1e5, 1e13)
"""Least and most: seconds, bytes/s."""


class CollectiveFit(NamedTuple):
    """Constants of an operation: latency, seconds; rate, bytes/s.

    fitted, held: measurements; error_fitted, error_held: their mean absolute relative errors, None where there are none
    """

    operation: CollectiveName
    latency: float
    rate: float
    fitted: int
    held: int
    error_fitted: float | None
    error_held: float | None


def fit_collectives(rows: Sequence[Collective], seed: int = 0) -> tuple[CollectiveFit, ...]:
    """The constants of each operation that was measured."""
    return tuple(
        _fitted(name, own, seed) for name in COLLECTIVES if (own := [row for row in rows if row.operation == name])
    )


def _fitted(name: CollectiveName, rows: Sequence[Collective], seed: int) -> CollectiveFit:
    places = set(Random(seed).sample(range(len(rows)), len(rows) // 2))
    held = [row for place, row in enumerate(rows) if place in places]
    fitted = [row for place, row in enumerate(rows) if place not in places]

    def error(told: Mapping[str, float], judged: Sequence[Collective]) -> float:
        return fmean(abs(_seconds(told, row) / row.seconds - 1.0) for row in judged)

    large = max(fitted, key=lambda row: row.bytes)
    begin = {
        "latency": (min(row.seconds for row in fitted), *LATENCY),
        "rate": (_moved(large) / large.seconds, *RATE),
    }
    told = least(lambda values: error(values, fitted), begin)
    return CollectiveFit(
        name,
        told["latency"],
        told["rate"],
        len(fitted),
        len(held),
        error(told, fitted),
        error(told, held) if held else None,
    )


def _moved(row: Collective) -> float:
    """Bytes that each device sends."""
    return OPERATIONS[row.operation].passes * (row.devices - 1) / row.devices * row.bytes


def _seconds(told: Mapping[str, float], row: Collective) -> float:
    return told["latency"] + _moved(row) / told["rate"]


def cluster_text(name: str, accelerator: str, found: Measurements, fits: Sequence[CollectiveFit]) -> str:
    """The file of a server of these devices; the rate of a link is the best of all operations.

    accelerator: name or path
    """
    devices = max(row.devices for row in found.collectives)
    by_name = {one.operation: one for one in fits}
    bandwidth = max(one.rate for one in fits)
    lines = [
        ("topology", "switch", "any pair at full rate; what is behind it was not measured"),
        (
            "bandwidth_gb_per_s",
            short(bandwidth / 1e9),
            "the best rate of a collective; between two devices nobody measured it",
        ),
    ]
    lines += [(SHARES[one.operation], short(one.rate / bandwidth), _source(found, one)) for one in fits]
    if (one := by_name.get("all-reduce")) is not None:
        lines.append(("collective_latency_us", short(one.latency * 1e6), _source(found, one)))
    others = [one for one in fits if one.operation != "all-reduce"]
    if others:  # of a gather and a scatter together
        latency = sum(one.latency for one in others) * 2 / len(others)
        lines.append(("gather_latency_us", short(latency * 1e6), _source(found, others[0])))
    words = f"{devices} of {found.device}, as their collectives were measured on {found.date}"
    head = toml_text({"name": name, "description": one_line(words)}).strip()
    server = toml_text({"count": 1, "accelerator": accelerator, "devices": devices}).strip()
    inside = "\n".join(f"{toml_text({key: value}).strip()}  # {why}" for key, value, why in lines)
    return f"{head}\n\n[[servers]]\n{server}\n\n[servers.inside]\n{inside}\n"


def _source(found: Measurements, one: CollectiveFit) -> str:
    assert one.error_fitted is not None, "what is written was fitted"
    held = "" if one.error_held is None else f", {one.held} others {percent(one.error_held)}"
    words = f"{found.software}, {found.date}; fitted to {one.fitted} {one.operation}s: {percent(one.error_fitted)} off{held}"
    return one_line(words)
