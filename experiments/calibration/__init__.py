"""Calibration: constants of a stack, an accelerator and links from a user's own measurements."""
