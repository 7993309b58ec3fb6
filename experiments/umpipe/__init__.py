"""UMPIPE: what unequal micro-batches gain."""
