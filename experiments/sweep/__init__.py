"""Sweeps: one question asked at every point of a grid, its answers kept in a store, and reports of them."""
