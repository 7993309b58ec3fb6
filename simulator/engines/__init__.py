"""Engines: what replays a program, and the timeline that comes out; the reference on SimPy, and its compiled twins."""
