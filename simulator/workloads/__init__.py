"""Workloads: networks by name, from a configuration file, from a measured profile, and synthetic."""

from __future__ import annotations

from simulator.workloads.errors import WorkloadFileError
from simulator.workloads.gnmt import gnmt
from simulator.workloads.huggingface import ConfigFormatError, read_config
from simulator.workloads.measured_profile import (
    PROFILE_FORMAT,
    STEADY_SPREAD,
    MeasuredProfile,
    MeasuredProfileError,
    checked_profile,
    is_measured_profile,
    load_measured_profile,
    read_measured_profile,
)
from simulator.workloads.pipedream_profile import ProfileFormatError, read_profile
from simulator.workloads.registry import WORKLOADS, load_workload, workload_from_spec, workload_names

__all__ = [
    "PROFILE_FORMAT",
    "STEADY_SPREAD",
    "WORKLOADS",
    "ConfigFormatError",
    "MeasuredProfile",
    "MeasuredProfileError",
    "ProfileFormatError",
    "WorkloadFileError",
    "checked_profile",
    "gnmt",
    "is_measured_profile",
    "load_measured_profile",
    "load_workload",
    "read_config",
    "read_measured_profile",
    "read_profile",
    "workload_from_spec",
    "workload_names",
]
