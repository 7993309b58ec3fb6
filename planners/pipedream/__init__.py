"""PipeDream: its partitioner, and planners that run its partitions asynchronously or flushed."""
