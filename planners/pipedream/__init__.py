"""PipeDream: its partitioner, flushed and asynchronous."""
