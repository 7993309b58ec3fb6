"""Straight pipelines: baselines, brute force, and the pipeline × data grid."""
