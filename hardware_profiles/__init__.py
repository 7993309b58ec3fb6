"""Hardware profiles: what the hardware is and how long it takes. Accelerators and clusters are TOML files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardware_profiles.accelerator import PRECISION_BYTES, Accelerator, Phase, Precision, Work
    from hardware_profiles.cluster import Channel, Cluster, Level, Link
    from hardware_profiles.fpga import FieldProgrammableGateArray
    from hardware_profiles.gpu import GraphicsProcessor
    from hardware_profiles.load import (
        ProfileError,
        UnknownProfileError,
        accelerator_names,
        check_file,
        cluster_names,
        load_accelerator,
        load_cluster,
        schema,
    )
    from hardware_profiles.plugins import passed_over, plugged_in, summary_of
    from hardware_profiles.reading import MOST_BYTES, explained, one_line, printable, read_bytes, shown

_HOME = {
    "Accelerator": "accelerator",
    "PRECISION_BYTES": "accelerator",
    "Phase": "accelerator",
    "Precision": "accelerator",
    "Work": "accelerator",
    "Channel": "cluster",
    "Cluster": "cluster",
    "Level": "cluster",
    "Link": "cluster",
    "FieldProgrammableGateArray": "fpga",
    "GraphicsProcessor": "gpu",
    "ProfileError": "load",
    "UnknownProfileError": "load",
    "accelerator_names": "load",
    "check_file": "load",
    "cluster_names": "load",
    "load_accelerator": "load",
    "load_cluster": "load",
    "schema": "load",
    "passed_over": "plugins",
    "plugged_in": "plugins",
    "summary_of": "plugins",
    "MOST_BYTES": "reading",
    "explained": "reading",
    "one_line": "reading",
    "printable": "reading",
    "read_bytes": "reading",
    "shown": "reading",
}

__all__ = [
    "MOST_BYTES",
    "PRECISION_BYTES",
    "Accelerator",
    "Channel",
    "Cluster",
    "FieldProgrammableGateArray",
    "GraphicsProcessor",
    "Level",
    "Link",
    "Phase",
    "Precision",
    "ProfileError",
    "UnknownProfileError",
    "Work",
    "accelerator_names",
    "check_file",
    "cluster_names",
    "explained",
    "load_accelerator",
    "load_cluster",
    "one_line",
    "passed_over",
    "plugged_in",
    "printable",
    "read_bytes",
    "schema",
    "shown",
    "summary_of",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module when it is first asked for: `--help` stays quick."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
