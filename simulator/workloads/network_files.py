"""Network files: what all files that describe a network share: their error, their limits, and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hardware_profiles import read_bytes

LARGEST_SIZE = 10_000_000
"""Of a layer (features, channels, tokens) in a file. No published size comes near; a slip of the pen would fill the memory."""


class WorkloadFileError(ValueError):
    """A workload's file is missing, malformed or out of range; the message is one line: file, place in it, value and rule."""


def read_text(path: Path) -> str:
    """The file's text. WorkloadFileError."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise WorkloadFileError(f"{path}:1: not a text file (byte {error.start} is not UTF-8)") from error
    except OSError as error:
        raise WorkloadFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_json(path: Path) -> Any:
    """The file's JSON value. WorkloadFileError, with the line of what is no JSON."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise WorkloadFileError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, endless nesting
        raise WorkloadFileError(f"{path}:1: not usable JSON: {error}") from error
