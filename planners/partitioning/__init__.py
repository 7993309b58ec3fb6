"""Partitioning: the search for cuts that planners share, balanced in seconds or within memory."""
