"""Report: what a plan is worth, where its seconds and bytes go, and what limits it."""
