"""Compiled code: what the numba kernels share."""
