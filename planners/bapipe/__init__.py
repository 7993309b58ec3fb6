"""BaPipe: its explorer of schedules and balanced partitions."""
