"""XPipe (arXiv 1911.04610): straight pipelines whose stream of micro-batches never flushes, on predicted weights."""
