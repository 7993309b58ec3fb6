"""PipeDream's partitioner: how it grows."""
