"""Partitioning: searches for cuts of a network that planners share, balanced in seconds or within memory."""
