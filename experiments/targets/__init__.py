"""Targets: what launches a plan for real, a file each: which plans it can run, and what it takes."""
