"""Profiling: a PyTorch model measured layer by layer."""
