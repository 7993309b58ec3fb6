"""Simulator: workloads, schedules, engines and timelines."""
