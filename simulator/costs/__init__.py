"""Costs: seconds, bytes and memory of layers, stages and plans; or numbers that were given."""
