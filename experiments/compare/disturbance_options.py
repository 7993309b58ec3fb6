"""Disturbance options: noise and stragglers on the command line, for every command that replays."""

from __future__ import annotations

import argparse
from typing import Any

import simulator
from experiments.terminal.argument_types import CountUpTo, Listed, Option, number, refuse
from experiments.terminal.output import UsageError
from hardware_profiles import MOST_COUNT, real_number, shown, whole_number

USUAL_REPLAYS = 1000


def straggler(text: str) -> tuple[int, float]:
    """`DEVICE:FACTOR`: the number of a device, and a factor of at least 1."""
    device, _, factor = text.partition(":")
    try:
        return whole_number(device, 0, MOST_COUNT), real_number(factor, 1.0, simulator.MOST_FACTOR)
    except ValueError:
        rule = f"must be DEVICE:FACTOR, the number of a device and a factor of 1 to {simulator.MOST_FACTOR:,.0f}"
        raise argparse.ArgumentTypeError(f"{shown(text)} {rule}") from None


DISTURBANCES: dict[str, Option] = {
    "--noise NOISE": (
        "spread of noise: a log-normal factor of mean 1 on every op and transfer, NOISE the standard deviation of its logarithm "
        "(0 to below 2; default 0); quantiles of the iteration are told",
        number,
    ),
    "--replays N": (
        f"replays with --noise (default {USUAL_REPLAYS:,}; the first is the timeline)",
        CountUpTo(simulator.MOST_REPLAYS),
    ),
    "--straggler DEVICE:FACTOR,…": (
        "devices that take FACTOR times as long (1 or more) for all that they compute; may be repeated",
        Listed(straggler),
        [],
    ),
}
"""What a replay is disturbed by; the seed is the command's."""


def disturbances(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `simulate` takes of them; UsageError for replays without noise, and a device that is named twice."""
    slow = dict(arguments.straggler)
    if len(slow) < len(arguments.straggler):
        raise UsageError("--straggler names a device twice")
    noise = arguments.noise or 0.0
    if not noise:
        refuse(arguments, ("replays",), "goes with --noise above 0")
    return {"noise": noise, "replays": arguments.replays or USUAL_REPLAYS, "stragglers": slow}
