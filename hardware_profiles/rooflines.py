"""Rooflines: accelerators of which one thing costs nothing, to tell what bounds a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hardware_profiles.accelerator import Accelerator
from hardware_profiles.fpga import FieldProgrammableGateArray
from hardware_profiles.gpu import GraphicsProcessor, KindEfficiency

FREE = 1e6
"""Times a rate that costs nothing."""


def freed(device: Accelerator) -> dict[str, Accelerator]:
    """The accelerator with free FLOP, memory `bandwidth`, and `launch`: what a kernel, its steps and its start take beside its
    work. Empty for one whose physics are not known here.
    """
    if isinstance(device, FieldProgrammableGateArray):
        return {
            "FLOP": replace(device, macs_per_cycle=_free(device.macs_per_cycle)),
            "bandwidth": replace(device, ddr_bandwidth=FREE * device.ddr_bandwidth),
        }
    if not isinstance(device, GraphicsProcessor):
        return {}
    started = replace(
        device,
        efficiencies=_started(device.efficiencies),
        efficiencies_in={name: _started(shares) for name, shares in device.efficiencies_in.items()},
    )
    return {
        "FLOP": replace(device, peak_flops=_free(device.peak_flops)),
        "bandwidth": replace(device, memory_bandwidth=FREE * device.memory_bandwidth),
        "launch": replace(started, call_overhead=0.0, step_overhead=0.0, launch_overhead=0.0, pass_overhead=0.0),
    }


def _free(rates: Mapping[str, float]) -> dict[str, float]:
    return {precision: FREE * rate for precision, rate in rates.items()}


def _started(shares: Mapping[str, KindEfficiency]) -> dict[str, KindEfficiency]:
    """Shares by kind of layer, of kernels that reach them at once."""
    return {kind: replace(one, saturation_seconds=0.0) for kind, one in shares.items()}
