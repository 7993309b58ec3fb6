"""PipeDream's result tables, simulated."""
