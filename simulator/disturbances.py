"""Disturbances: replays of a program under noise, and what slow devices make of a program.

Noise is a log-normal factor of mean 1 on every duration: one for each task and each transfer, drawn anew in every replay. A
straggler is a device all of whose computing takes a fixed factor as long. Neither changes the order of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hardware_profiles import MOST_AMOUNT, MOST_COUNT, check_real, check_whole
from simulator.engines.timeline import Timeline
from simulator.lowering.program import Program, noisy_program
from simulator.options.disturbance_limits import MOST_FACTOR, MOST_REPLAYS, check_noise
from simulator.plan_replay import Engine, queues, replay_compiled, replay_on
from simulator.results.noisy_seconds import NoisySeconds
from simulator.results.time_split import ComputingShares

Groups = Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Draws:
    """Replays with noise that are asked for.

    noise, rng: as of `NoisyProgram.factors`; replays: 1 to MOST_REPLAYS; engine: of the first; contention: as it takes it
    seconds_of: a timeline (without its transfers); by default its makespan
    """

    noise: float
    rng: np.random.Generator
    replays: int
    engine: Engine
    contention: bool = False
    seconds_of: Callable[[Timeline], float] | None = None


def drawn(program: Program, draws: Draws) -> tuple[Program, Timeline, NoisySeconds]:
    """The first replay's program and timeline, and the seconds of all."""
    from simulator.engines import noisy_replays

    noisy, contention = noisy_program(program), draws.contention
    first = noisy.program(noisy.factors(draws.noise, draws.rng, 1)[0])
    timeline = replay_on(first, draws.engine, contention=contention)
    contention = contention and draws.engine != "recurrence"
    whole = draws.seconds_of or (lambda timeline: timeline.makespan_seconds)
    quiet = whole(replay_compiled(program, contention=contention))
    if draws.seconds_of is None and not queues(program, contention=contention):
        replay: noisy_replays.Replays = noisy_replays.makespans(noisy)
    else:
        replay = noisy_replays.one_by_one(noisy, whole, contention=contention)
    found = [np.array([whole(timeline)])]
    for rows in noisy_replays.portions(noisy, draws.replays - 1):
        found.append(replay(noisy.factors(draws.noise, draws.rng, rows)))
    return first, timeline, NoisySeconds(draws.noise, quiet, np.concatenate(found))


def check_disturbances(devices: int, *, noise: float, replays: int, stragglers: Mapping[int, float]) -> None:
    """Raise ValueError for noise or replays out of range, a straggler that is none of so many devices, or a factor below 1."""
    check_real("noise", noise, -MOST_AMOUNT)
    check_noise(noise)
    check_whole("replays", replays, 1, MOST_REPLAYS)
    for device, factor in stragglers.items():
        check_whole("a straggler", device, -MOST_COUNT)
        if not 0 <= device < devices:
            raise ValueError(f"straggler {device} is unknown: there are devices 0 to {devices - 1}")
        check_real(f"straggler {device}: factor", factor, 1.0, MOST_FACTOR)


def slowed(program: Program, stragglers: Mapping[int, float], shares: ComputingShares, groups: Groups) -> Program:
    """The program where all that stragglers compute takes their factor as long.

    groups: devices that run the tasks of each device of the program, in step: the slowest has the others wait
    What they wait for inside an op, and what they send, takes as long as before.
    """
    factor = {lead: max(stragglers.get(one, 1.0) for one in members) for lead, members in groups.items()}
    device = program.lane_device[program.lane_of_task()]
    of_task = np.array([factor.get(one, 1.0) for one in device.tolist()])
    longer = of_task * shares.computing + (1.0 - shares.computing)
    seconds = np.maximum(program.seconds, program.seconds * shares.working * longer)
    least = None if program.least_seconds is None else np.maximum(program.least_seconds, seconds)
    return replace(program, seconds=seconds, least_seconds=least)
