"""Planners: search for a good plan of a problem."""
