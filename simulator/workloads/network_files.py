"""Network files: the error, the limits and the JSON reader of all files that describe a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hardware_profiles import FileError, json_value, read_bytes

LARGEST_SIZE = 10_000_000
"""Largest size of a layer (features, channels, tokens) in a file, far above published ones: a typing error fills the memory."""

WORKLOAD_FILES = (
    "a workload's file is the config.json of a Hugging Face model or PipeDream's graph.txt; "
    "the JSON of pipeplan profile goes with --profile"
)
"""Files that can be read, for the message about another one."""


class WorkloadFileError(FileError):
    """A workload's file is missing, malformed or out of range; the message is one line: file, place in it, value and rule."""


def read_text(path: Path) -> str:
    """The file's text. WorkloadFileError."""
    return _read(path).decode()


def read_json(path: Path) -> Any:
    """The file's JSON value. WorkloadFileError as in `json_value`."""
    return json_value(_read(path), path, WorkloadFileError)


def _read(path: Path) -> bytes:
    """The bytes of a text. WorkloadFileError."""
    try:
        content = read_bytes(path)
        content.decode()
    except UnicodeDecodeError as error:
        complaint = f"{path}:1: not a text file (byte {error.start} is not UTF-8)"
        raise WorkloadFileError(complaint, complaint) from error
    except OSError as error:
        complaint = f"{path}: cannot be read: {error.strerror or error}"
        raise WorkloadFileError(complaint, complaint) from error
    return content
