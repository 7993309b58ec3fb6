"""Lowering: schedule × costs -> program; every wait, transfer and all-reduce is decided here, once for all engines.

In order: ops are copied to the replicas that share a micro-batch, each with its samples (`coverage`); an op waits for every op
that delivers a sample that it covers (`waits`); blocking transfers become tasks of the compute lanes, the gradients of replicated
stages are all-reduced bucket by bucket on a lane of their own, and a flushed mini-batch ends in one update per stage
(`structure`). Seconds, bytes and devices come last (`fill`): plans of one structure are lowered once.
"""
