"""Experiments: questions asked of the simulator and the planners, and the command line."""
