"""Benchmarks: how fast the engines, evaluators and planners are, in CPU seconds, and in which commit they are faster."""
