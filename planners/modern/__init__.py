"""Modern: partition, placement, order of the ops, micro-batches and recomputation searched together."""
