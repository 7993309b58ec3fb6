"""Flows: what a program moves over links that share it fairly, and which channels each flow loads."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hardware_profiles import Flags, Floats, Integers
from simulator.lowering.program import Program


class FlowColumns(NamedTuple):
    """Channels that the flows of a program load. A carrier is a transfer class, or (behind these) the all-reduces of a lane.

    offsets: int64 [carriers + 1]; the channels that a carrier loads
    channel, share: of each of these the number among all that are loaded, and the part that a flow alone on its route takes of
        it; one that several flows load for which the carrier stands is there as often
    several: bool [carriers]; whether there is such a channel
    slowness: float64 [carriers]; seconds in which a pair of devices moves a byte then
    latency: float64 [carriers]; seconds from when the last byte has left the route until it is there
    slot: int64 [carriers]; carriers of one slot move one after the other: those between a pair of devices, and of a lane
    member_offsets, members: int64; of each channel the slots that may load it, rising
    first_come: bool [channels]; the channel serves those first who came first
    """

    offsets: Integers
    channel: Integers
    share: Floats
    several: Flags
    slowness: Floats
    latency: Floats
    slot: Integers
    member_offsets: Integers
    members: Integers
    first_come: Flags

    @property
    def slots(self) -> int:
        """Number of slots."""
        return int(self.slot.max(initial=-1)) + 1


_NONE = np.zeros(0, dtype=np.int64)

NO_FLOWS = FlowColumns(
    np.zeros(1, dtype=np.int64),
    _NONE,
    np.zeros(0),
    np.zeros(0, dtype=np.bool_),
    np.zeros(0),
    np.zeros(0),
    _NONE,
    np.zeros(1, dtype=np.int64),
    _NONE,
    np.zeros(0, dtype=np.bool_),
)
"""The columns of a program without fair channels."""


def shares_fairly(program: Program) -> bool:
    """Whether any channel of a program is shared fairly."""
    return any(channel.sharing == "fair" for channel in program.channels)


def flow_columns(program: Program) -> FlowColumns:
    """The columns of a program's flows.

    A transfer loads every channel of its route at once. An all-reduce keeps each busy for its share of the seconds; the bytes
    that it moves over the channel with the fewest are those of one pair, and where it moves more, more pairs do.
    """
    classes = len(program.transfer_route)
    slower = np.ones(classes) if program.transfer_slowdown is None else program.transfer_slowdown
    uses: list[list[tuple[int, float]]] = []
    slowness, latency = [], []
    for number, (route, factor) in enumerate(zip(program.transfer_route, slower.tolist(), strict=True)):
        rates = program.hop_bandwidths(number)
        slowest = min(rates, default=1.0)
        copies = program.transfer_copies[number] if program.transfer_copies else (1,) * len(route)
        passed = zip(route, rates, copies, strict=True)
        uses.append([(channel, slowest / rate) for channel, rate, count in passed for _ in range(count)])
        slowness.append(1.0 / slowest * factor)
        latency.append(sum(program.channels[channel].latency for channel in route) * factor)
    for lane in range(program.lanes):
        loaded = list(zip(*program.lane_uses(lane), strict=True))
        rates = [program.channels[channel].bandwidth * share for channel, share in loaded]
        uses.append(loaded)
        slowness.append(1.0 / min(rates, default=1.0))
        latency.append(0.0)
    pairs = int(program.transfer_pair.max(initial=-1)) + 1
    slot = np.concatenate([program.transfer_pair, pairs + np.arange(program.lanes)]).astype(np.int64)
    loaded_ones = sorted({channel for one in uses for channel, _ in one})
    number_of = {channel: number for number, channel in enumerate(loaded_ones)}
    uses = [[(number_of[channel], share) for channel, share in one] for one in uses]
    return FlowColumns(
        offsets=np.cumsum([0, *map(len, uses)]),
        channel=np.array([channel for one in uses for channel, _ in one], dtype=np.int64),
        share=np.array([share for one in uses for _, share in one], dtype=np.float64),
        several=np.array([len({channel for channel, _ in one}) < len(one) for one in uses], dtype=np.bool_),
        slowness=np.array(slowness),
        latency=np.array(latency, dtype=np.float64),
        slot=slot,
        **_members(slot, uses, len(loaded_ones)),
        first_come=np.array([program.channels[one].sharing == "fifo" for one in loaded_ones], dtype=np.bool_),
    )


def _members(slot: Integers, uses: list[list[tuple[int, float]]], channels: int) -> dict[str, Integers]:
    """`members` of each channel, and where they begin."""
    several: list[set[int]] = [set() for _ in range(channels)]
    for number, loaded in zip(slot.tolist(), uses, strict=True):
        for channel, _ in loaded:
            several[channel].add(number)
    ordered = [number for one in several for number in sorted(one)]
    return {
        "member_offsets": np.cumsum([0, *map(len, several)]),
        "members": np.array(ordered, dtype=np.int64),
    }


def uses_of(columns: FlowColumns) -> list[tuple[tuple[int, float], ...]]:
    """For each carrier the channels that it loads, with its share of each."""
    pairs = list(zip(columns.channel.tolist(), columns.share.tolist(), strict=True))
    return [tuple(pairs[begin:end]) for begin, end in pairwise(columns.offsets.tolist())]
