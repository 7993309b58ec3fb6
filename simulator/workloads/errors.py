"""Errors: a file that describes a network but cannot be read."""

LARGEST_SIZE = 10_000_000
"""Of a layer (features, channels, tokens) in a file. No published size comes near; a slip of the pen would fill the memory."""


class WorkloadFileError(ValueError):
    """A workload's file is missing, malformed or out of range; the message is one line and names the file."""
