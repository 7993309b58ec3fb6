"""Plans: what is to be trained on what, and what a planner decides."""
