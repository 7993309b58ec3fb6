"""Errors: a file that describes a network but cannot be read."""


class WorkloadFileError(ValueError):
    """A workload's file is missing, malformed or out of range; the message is one line and names the file."""
