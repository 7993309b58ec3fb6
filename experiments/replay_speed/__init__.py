"""Replay speed: how fast the engines are, and how they grow."""
