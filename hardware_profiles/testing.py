"""Contract of an accelerator: what seconds and memory of a device owe; the tests of a plug-in call `check_accelerator`."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from hardware_profiles.accelerator import LAYER_KINDS, Accelerator, Phase, Precision, Work, optional_members, streaming
from hardware_profiles.plugins import about

PHASES: tuple[Phase, ...] = ("forward", "backward", "input_gradient", "weight_gradient")
SAMPLES = (1.0, 2.0, 3.0, 8.0, 64.0)


def works() -> dict[str, Work]:
    """A layer of each kind for one sample, by kind: a megabyte in, out and of weights."""
    return {
        kind: Work(kind, 2e9, 250_000.0, 250_000.0, 250_000, channels=(64, 64) if kind == "convolution" else (0, 0))
        for kind in LAYER_KINDS
    }


def check_accelerator(device: Accelerator) -> None:
    """Assert what a device owes: a name, memory, seconds of every layer, and the laws that it says it keeps.

    It is asked in the precisions that it says it has (`OptionalMembers`; without them in all), of which it may refuse some, in
    one line. Raises AssertionError, with a note of the layer, for what is not kept.
    """
    assert isinstance(device, Accelerator), "it lacks a member: name, memory_bytes, streams, sublinear, seconds"
    assert device.name, "it has no name"
    assert device.memory_bytes > 0, "it holds nothing"
    listed = optional_members(device).precisions
    taken = [precision for precision in listed if _takes(device, precision)]  # type: ignore[arg-type]
    assert taken, f"it refuses every precision of {', '.join(listed)}"
    for precision in taken:
        for kind, work in works().items():
            for phase in PHASES:
                with about(f"accelerator {device.name!r}, {phase} of {kind} in {precision}"):
                    check_pass(device, work, phase, precision)  # type: ignore[arg-type]


def check_pass(device: Accelerator, work: Work, phase: Phase, precision: Precision) -> None:
    """Assert that seconds are numbers, the same each time, and where the device is `sublinear`, lines and curves that flatten."""
    seconds = [device.seconds(work, samples, phase, precision) for samples in SAMPLES]
    assert all(math.isfinite(one) and one >= 0.0 for one in seconds), "seconds must be finite and at least 0"
    assert seconds == [device.seconds(work, samples, phase, precision) for samples in SAMPLES], "seconds differ"
    if streaming(device):
        stage = device.stage_seconds([work, work], 1.0, phase, precision)
        assert math.isfinite(stage), "seconds of a stage must be finite"
        assert stage >= 0.0, "seconds of a stage must be at least 0"
    if not device.sublinear:
        return
    assert seconds == sorted(seconds), "sublinear: more samples take no less"
    each = [one / samples for one, samples in zip(seconds, SAMPLES, strict=True)]
    assert all(more <= one * (1.0 + 1e-9) for one, more in pairwise(each)), "sublinear: seconds per sample never rise"
    if streaming(device):
        return  # halves that fit on its chip may take less; bounds count its multiply-adds alone
    half = replace(
        work,
        flop=work.flop / 2,
        input_elements=work.input_elements / 2,
        output_elements=work.output_elements / 2,
        parameters=work.parameters // 2,
    )
    part = device.seconds(half, 1.0, phase, precision)
    assert part <= seconds[0] * (1.0 + 1e-9) <= 2 * part * (1.0 + 1e-9) ** 2, "sublinear: two halves take no less"
    if work.kind != "convolution":  # whose efficiency depends on its shape
        both = device.seconds(replace(half, parameters=work.parameters), 2.0, phase, precision)
        assert both >= seconds[0] * (1.0 - 1e-9), "sublinear: a half of each of two samples takes as long as one"


def _takes(device: Accelerator, precision: Precision) -> bool:
    try:
        device.seconds(works()["linear"], 1.0, "forward", precision)
    except ValueError as refused:
        assert "\n" not in str(refused), f"more than one line: {refused}"
        return False
    return True
