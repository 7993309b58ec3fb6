"""Placements: the order in which the stages of a pipeline visit the devices."""

from __future__ import annotations

from typing import Literal, get_args

from hardware_profiles import unchosen

Placement = Literal["straight", "interleaved", "v", "wave", "bidirectional"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

LEAST_CHUNKS: dict[str, int] = {"straight": 1, "interleaved": 1, "v": 2, "wave": 2, "bidirectional": 1}
"""Stages per device; of interleaved placements and waves the least, and any multiple of it is possible."""

USUAL_CHUNKS: dict[str, int] = {**LEAST_CHUNKS, "interleaved": 2, "wave": 4}
"""Default stages per device: a wave of two is a V."""

MOST_STAGES = 2**20
"""Stages of a placement at most: more than the layers of any network."""

Chains = tuple[tuple[int, ...], ...]
"""Device of every stage, for each chain of stages that micro-batches pass."""


def chains_of(placement: str, stages: int, devices: int) -> Chains:
    """The chains of `stages` stages on `devices` devices.

    straight: stage s on device s
    interleaved: stage s on device s mod D (Megatron-LM)
    v: two stages per device, down the devices and back up (ZB-V)
    wave: an even number of stages per device, down and up in turns (Hanayo)
    bidirectional: every device holds stage s of one chain and stage D - 1 - s of another, each for half of the micro-batches
        (Chimera)
    Raises ValueError for an unknown name and for counts that the placement cannot have.
    """
    if placement not in PLACEMENTS:
        raise ValueError(unchosen("placement", placement, PLACEMENTS))
    if stages < 1 or devices < 1:
        raise ValueError(f"a placement has at least 1 stage and 1 device, got {stages} stages and {devices} devices")
    if stages > MOST_STAGES:
        raise ValueError(f"a placement has at most {MOST_STAGES:,} stages, got {stages}")
    rule, fits = {
        "straight": ("as many stages as devices", stages == devices),
        "interleaved": ("a whole number of stages per device", stages % devices == 0),
        "v": ("two stages per device", stages == 2 * devices),
        "wave": ("an even number of stages per device", stages % (2 * devices) == 0),
        "bidirectional": ("as many stages as devices, at least 2", stages == devices > 1),
    }[placement]
    if not fits:
        raise ValueError(f"placement {placement!r} has {rule}, got {stages} stages on {devices} devices")
    down = tuple(range(devices))
    if placement == "bidirectional":
        return down, down[::-1]
    back = down[::-1] if placement in ("v", "wave") else down
    turns = stages // devices
    return ((down + back) * (turns // 2) + down * (turns % 2),)
