"""Argument types: what words of a command line must be."""

from __future__ import annotations

import argparse


def numbers(text: str) -> list[float]:
    """One number, or a comma list."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number or a comma list of numbers") from None


def counts(text: str) -> list[int]:
    """A comma list of whole numbers of at least 1."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a comma list of whole numbers") from None
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must hold numbers of at least 1")
    return values


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)
