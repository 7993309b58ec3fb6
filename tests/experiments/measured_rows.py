"""Measured rows for tests: tables of a folder, and a run as its columns say it."""

from __future__ import annotations

from pathlib import Path

from experiments.truth.measured_tables import (
    MeasuredRun,
)

RUN = "hidden,heads,layers,seq,tp,pp,dp,micro_batch,global_batch,measured_s,recompute,machine"


def table(folder: Path, name: str, *lines: str) -> Path:
    """A CSV file of a folder."""
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def measured(**said: object) -> MeasuredRun:
    """A small run of four blocks."""
    sizes = {"hidden": 64, "heads": 4, "layers": 4, "seq": 32, "micro_batch": 1, "global_batch": 8, "measured_s": 1.0}
    return MeasuredRun(**(sizes | {"machine": "dgx-a100"} | said))  # type: ignore[arg-type]
