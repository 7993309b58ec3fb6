"""DualPipe and DualPipeV: forwards that overlap backwards, so that the transfers and exchanges of one hide behind the other.

DeepSeek-AI 2024 ("DeepSeek-V3", arXiv 2412.19437) and its cut in half, in the letters of `simulator.schedules.v_shaped`. The
order of device d of p, with n micro-batches of each of its two stages, where {..}k is k times:

    {F}2(p-1-d) {Ff}(d+1) {iwf}(p-1-d) {(Fb)(fB)}(n-2p+d+1) {b(fB)}(p-1-d) {bB}(d+1) {WI}(p-1-d) {W}(d+1)

From the middle of {bB} on backwards are split, and W is the earliest weight gradient that is left, of either stage.
"""

from __future__ import annotations

import numpy as np

from simulator.schedules.schedule import Schedule
from simulator.schedules.v_shaped import from_letters, of_letters, read_letters, v_devices


def dualpipe_v(stages: int, microbatches: int) -> Schedule:
    """DualPipeV: device d of p holds stages d and 2p-1-d, as torch's ScheduleDualPipeV orders them.

    Chunks of equal seconds, F = I >= W, m >= 2p, F&B = F+B those of an overlapped pair: 2m(F+B) + (p-1)(F&B + B - 3W). A
    device holds at most 2p+1 micro-batches of a stage.
    """
    devices = v_devices("dualpipev", stages)
    orders = [_letters(device, devices, microbatches) for device in range(devices)]
    return from_letters("dualpipev", stages, microbatches, orders)


def dualpipe(stages: int, microbatches: int) -> Schedule:
    """DualPipe: two pipelines in opposite directions, the first half of the micro-batches down, the others up.

    Device d and its mirror image p-1-d run one order, each with the micro-batches of its own direction as the first.
    Stages of equal seconds, F = I >= W, an even m >= 2p, F&B = F+B those of an overlapped pair: m(F+B) + (p/2-1)(F&B + B - 3W).
    A device holds at most p+1 micro-batches of a stage.
    """
    if stages % 2:
        raise ValueError(f"dualpipe mirrors its pipeline, so it needs an even number of stages, got {stages} stages")
    half = stages // 2
    down = (microbatches + 1) // 2
    read = read_letters([_letters(min(device, stages - 1 - device), half, down) for device in range(stages)])
    upwards = read.up ^ (read.device >= half)  # which ops are of the pipeline up
    real = read.microbatch < np.where(upwards, microbatches - down, down)
    stage = np.where(upwards, stages - 1 - read.device, read.device)
    number = read.microbatch + np.where(upwards, down, 0)
    return of_letters("dualpipe", stages, microbatches, read._replace(stage=stage, microbatch=number), real)


def _letters(device: int, devices: int, microbatches: int) -> str:
    """The order of one device for `microbatches` of each of its two stages, or for the 2p that it is made for."""
    left, count = devices - 1 - device, max(2 * devices, microbatches)
    pairs = "(Fb)(fB)" * (count - 2 * devices + device + 1)
    if not left:
        pairs = pairs.replace("(Fb)", "Fb", 1)  # at the turning point nothing is there to overlap yet
    drain = "bB" * (device + 1)
    split = ("iI" * (device + 1))[device + 1 :]
    weights = (split + "I" * left).translate(str.maketrans("iI", "wW"))
    return (
        "F" * (2 * left)
        + "Ff" * (device + 1)
        + "iwf" * left
        + pairs
        + "b(fB)" * left
        + drain[: device + 1]
        + split
        + "".join(weight + "I" for weight in weights[:left])
        + weights[left:]
    )
