"""Straight pipelines: baselines, a rule of thumb, brute force, graph cuts, and the pipeline × data grid."""
