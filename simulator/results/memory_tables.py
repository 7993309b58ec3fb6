"""Memory tables: peak memory of each device by category, as rows and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hardware_profiles import GIB
from simulator.costs.stashes import ACTIVATION_PARTS
from simulator.memory.device_memory import CATEGORIES, DeviceMemory
from simulator.plans.plan import ranges
from simulator.results.text_tables import TextTable


def peak_rows(memories: Sequence[DeviceMemory]) -> list[dict[str, Any]]:
    """One row per device, by id: device, peak_bytes, capacity_bytes, share (of the capacity), reserve_bytes, reserved_bytes
    and driver_bytes at the peak, the peak by category, and its activations by part of the layers (activations_by_part).
    """
    return [
        {
            "device": memory.device,
            "peak_bytes": memory.peak_bytes,
            "capacity_bytes": memory.capacity_bytes,
            "share": memory.peak_bytes / memory.capacity_bytes,
            "reserve_bytes": memory.reserve_bytes,
            "reserved_bytes": memory.reserved_bytes,
            "driver_bytes": memory.driver_bytes,
            **memory.peak_parts,
            "activations_by_part": dict(memory.activations_by_part),
        }
        for memory in sorted(memories, key=lambda memory: memory.device)
    ]


def peak_tables(memories: Sequence[DeviceMemory], device_word: str = "device") -> tuple[TextTable, ...]:
    """Peak memory of each device by category, in GiB, and its activations by part; equal devices share one row."""
    found = peak_rows(memories)
    used = [name for name in CATEGORIES if any(row[name] for row in found)]
    totals = {
        "allocated": "peak_bytes",
        "room": "capacity_bytes",
        "reserved": "reserved_bytes",
        "driver's": "driver_bytes",
    }
    whole = {name: [row[key] for row in found] for name, key in ({name: name for name in used} | totals).items()}
    tables = [_alike("Memory at the peak, GiB", found, whole, device_word)]
    if parts := activations_by_part(found):
        tables.append(_alike(ACTIVATIONS, found, parts, device_word))
    return tuple(tables)


ACTIVATIONS = "Activations at the peak by part, GiB"


def activations_by_part(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Bytes of each activation part that occurs in any row, one number per row; in the order of the parts."""
    found = [row["activations_by_part"] for row in rows]
    return {
        part: [one.get(part, 0.0) for one in found] for part in ACTIVATION_PARTS if any(part in one for one in found)
    }


def _alike(
    title: str, found: Sequence[Mapping[str, Any]], columns: Mapping[str, Sequence[float]], device_word: str
) -> TextTable:
    """A table in GiB of the devices of `peak_rows`, from bytes by heading; devices with equal cells share one row."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for row, *amounts in zip(found, *columns.values(), strict=True):
        alike.setdefault(tuple(f"{one / GIB:,.2f}" for one in amounts), []).append(row["device"])
    rows = tuple((ranges(devices), *cells) for cells, devices in alike.items())
    return TextTable(title, (f"{device_word}s", *columns), rows)
