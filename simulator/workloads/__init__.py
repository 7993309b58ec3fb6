"""Workloads: networks by name, from a configuration file, from a measured profile, and synthetic."""

from __future__ import annotations

from simulator.workloads.errors import WorkloadFileError
from simulator.workloads.huggingface import ConfigFormatError, read_config
from simulator.workloads.pipedream_profile import ProfileFormatError, read_profile
from simulator.workloads.registry import WORKLOADS, load_workload, workload_from_spec, workload_names

__all__ = [
    "WORKLOADS",
    "ConfigFormatError",
    "ProfileFormatError",
    "WorkloadFileError",
    "load_workload",
    "read_config",
    "read_profile",
    "workload_from_spec",
    "workload_names",
]
