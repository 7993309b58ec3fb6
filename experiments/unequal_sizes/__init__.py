"""Unequal sizes: what the studies of them share: evaluators, random tables, and the tables as costs of a schedule."""
