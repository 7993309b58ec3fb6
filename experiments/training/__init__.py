"""Training: methods of pipeline training on many seeds, their clocks, throughput and tests."""
