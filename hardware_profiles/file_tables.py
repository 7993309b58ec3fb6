"""Tables of TOML files: the types of their values, and what every table refuses.

Units are suffixes of the keys: `_gib` 2**30 bytes, `_gb_per_s` 10**9 bytes/s, `_gbps` 10**9 bits/s, `_us`
microseconds, `_mhz` 10**6 cycles/s, `_mbit` 10**6 bits, `tflops_` 10**12 FLOP/s (a multiply-add counts 2).
An efficiency is a share, 0 to 1. Every number has two ranges (`hardware_profiles.ranges`): outside of what is possible it is an
error, outside of what is usual a doubt, as after a slip of the unit.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from hardware_profiles.accelerator import PRECISION_BYTES
from hardware_profiles.ranges import within

GIGA = 1e9
MICRO = 1e-6

MemoryGib = Annotated[float, within((0.25, 1024), (1e-3, 2**20), "GiB")]
MemoryRate = Annotated[float, within((1, 30_000), (1e-3, 1e6), "10^9 bytes/s")]
Share = Annotated[float, within((0.01, 1), (1e-9, 1), "share of the peak")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class FileTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A TOML table that refuses keys it does not know."""


def rates_of(table: FileTable, name: str, example: str, unit: float) -> dict[str, float]:
    """Rates by precision of the keys that a table gives (`tflops_fp32`), times their unit; ValueError for none."""
    words = {key.rpartition("_")[2]: key for key in table.__struct_fields__}
    given = {precision: getattr(table, words[precision]) for precision in PRECISION_BYTES if precision in words}
    rates = {precision: rate * unit for precision, rate in given.items() if rate is not None}
    if not rates:
        raise ValueError(f"$.{name}: needs at least one rate, such as {example}")
    return rates
