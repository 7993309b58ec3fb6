"""Timed V: the order of a V-shaped family made for seconds: weight gradients where devices would wait, others as in the family.

Zero-bubble's published generators place a weight gradient where it fills a pause of these seconds, or where memory asks for it
(Qi et al. 2024, arXiv 2401.10241 and 2405.15362). Here passes of the pipeline keep the order of unit seconds, and a few rules
for weight gradients are tried; the fastest of them and the family's own order is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from hardware_profiles import Bounds, Integers

OpSecondsOption = Annotated[tuple[float, ...], Bounds(ge=0)]
"""Option: seconds of a forward, an input gradient and a weight gradient of a stage, and of a transfer; () for the family's."""

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Rules that are tried: a weight gradient runs in a pause at least as long as this share of it."""

_LETTERS = "FfiIwW"
"""Letters by their numbers in compiled code (`simulator.schedules.letter_kernels`)."""

_CODES = np.frombuffer(_LETTERS.encode("ascii"), dtype=np.uint8)
_PLACES = np.zeros(128, dtype=np.int64)
_PLACES[_CODES] = range(len(_LETTERS))

_WITHOUT_WEIGHTS = str.maketrans("", "", "wW")


def timed(name: str, devices: Sequence[str], seconds: Sequence[float]) -> list[str]:
    """The letters of each device (of `simulator.schedules.v_shaped`) for these seconds, in no more memory than those given.

    ValueError unless the seconds are four.
    """
    if len(seconds) != 4:
        raise ValueError(
            f"{name} is made for op_seconds of a forward, an input gradient, a weight gradient and a transfer, got {len(seconds)}"
        )
    given, passes = _read(devices), _read([letters.translate(_WITHOUT_WEIGHTS) for letters in devices])
    limit = max(map(_peak, devices))
    tried = [_run(passes, seconds, limit, share) for share in SHARES]
    return min([_run(given, seconds, limit, None), *tried], key=lambda one: one[0])[1]


def _peak(letters: str) -> int:
    """Most micro-batches that a device holds at once, summed over its stages."""
    held = most = 0
    for letter in letters:
        held += (letter in "fF") - (letter in "wW")
        most = max(most, held)
    return most


def _read(devices: Sequence[str]) -> tuple[Integers, Integers]:
    """The numbers of all letters, int64 [letters], device by device, and where each device begins, int64 [devices + 1]."""
    codes = np.frombuffer("".join(devices).encode("ascii"), dtype=np.uint8)
    return _PLACES[codes], np.cumsum([0, *map(len, devices)], dtype=np.int64)


def _run(
    passes: tuple[Integers, Integers], seconds: Sequence[float], limit: int, share: float | None
) -> tuple[float, list[str]]:
    """The makespan and the letters of each device, where every device runs its passes in order; infinite where they cannot end.

    share: a weight gradient that is due runs before a pass that is this part of it away, or a forward that finds no memory;
        None where weight gradients stand among the passes
    """
    from simulator.schedules.letter_kernels import run_passes

    makespan, ran, lengths = run_passes(
        *passes, np.array(seconds, dtype=np.float64), limit, -1.0 if share is None else share
    )
    codes = zip(_CODES[ran], lengths.tolist(), strict=True)
    return makespan, [row[:length].tobytes().decode("ascii") for row, length in codes]
