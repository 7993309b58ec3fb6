"""Workloads: networks by name, from a configuration file, from a measured profile, and synthetic."""
