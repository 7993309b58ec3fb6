"""Small problems that every planner and bound is tried on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hardware_profiles import Cluster, GraphicsProcessor, Link, load_cluster
from planners import PLANNERS, Request, Result, applicable_planners, make_plan
from simulator import Plan, Problem
from simulator.workloads.synthetic import uniform_chain
from tests.chains import measured_chain, random_chain


def line(memory_gib: float = 16.0, speeds: tuple[float, ...] = (1.0, 1.0)) -> Cluster:
    """GPUs of 10 TFLOP/s times their speed behind one switch, 10 GB/s each."""
    devices = tuple(
        GraphicsProcessor(f"gpu-{speed:g}", memory_gib * 2**30, 500e9 * speed, {"fp32": 10e12 * speed})
        for speed in speeds
    )
    nodes = tuple(f"gpu{number}" for number in range(len(devices)))
    return Cluster(
        "line",
        devices,
        nodes,
        ("switch",),
        (tuple(range(len(devices))),),
        tuple(Link(node, "switch", 10e9, 5e-6) for node in nodes),
    )


def slower(problem: Problem, factor: float) -> Problem:
    """The problem where everything takes `factor` times as long, launches, transfers, latencies and measured layers alike."""
    fixed = (
        "call_overhead",
        "step_overhead",
        "launch_overhead",
        "pass_overhead",
        "forward_hook",
        "gradient_hook",
        "load_seconds_per_byte",
    )
    devices = tuple(
        replace(
            device,
            memory_bandwidth=device.memory_bandwidth / factor,
            peak_flops={precision: rate / factor for precision, rate in device.peak_flops.items()},
            efficiencies={
                kind: replace(one, saturation_seconds=one.saturation_seconds * factor)
                for kind, one in device.efficiencies.items()
            },
            **{name: getattr(device, name) * factor for name in fixed},
        )
        for device in problem.cluster.devices
        if isinstance(device, GraphicsProcessor)
    )
    links = tuple(
        replace(
            link,
            bandwidth=link.bandwidth / factor,
            latency=link.latency * factor,
            collective_latency=link.collective_latency * factor,
            gather_latency=link.gather_latency * factor,
        )
        for link in problem.cluster.links
    )
    layers = tuple(
        replace(
            layer,
            measured=tuple((samples, forward * factor, back * factor) for samples, forward, back in layer.measured),
        )
        for layer in problem.workload.layers
    )
    return replace(
        problem,
        cluster=replace(problem.cluster, devices=devices, links=links),
        workload=replace(problem.workload, layers=layers),
    )


def problems() -> dict[str, Problem]:
    """Problems that even brute force solves in a second, by name."""
    chain = random_chain(5, np.random.default_rng(1), flop=2e9, parameters=3_000_000)
    return {
        "one-device": Problem(uniform_chain(4), line(speeds=(1.0,)), 8),
        "one-layer": Problem(uniform_chain(1), line(), 8),
        "two-devices": Problem(uniform_chain(6), line(), 8),
        "fewer-layers-than-devices": Problem(uniform_chain(3), line(speeds=(1.0,) * 4), 8),
        "batch-below-devices": Problem(uniform_chain(5), line(speeds=(1.0,) * 4), 3),
        "random-chain": Problem(chain, load_cluster("pipedream-a").take(4), 6),
        "two-servers": Problem(chain, load_cluster("pipedream-a").take(8), 4),
        "recompute": Problem(chain, load_cluster("pipedream-b").take(3), 8, recompute=True),
        "mixed-devices": Problem(chain, line(speeds=(1.0, 0.5, 2.0)), 8),
        "measured": Problem(
            measured_chain(
                [3e-3, 1e-3, 2e-3, 5e-3],
                [6e-3, 2e-3, 4e-3, 1e-2],
                samples=4.0,
                parameters=[10**6] * 4,
                output_elements=[1e5] * 4,
            ),
            line(),
            16,
        ),
    }


PROBLEMS = problems()

REQUESTS = {
    name: Request(options={"seconds": "0.005"} if "seconds" in entry.options else {})
    for name, entry in PLANNERS.items()
}
"""What each planner is asked: all that it can do, with little work for an order of ops where it searches for one."""


@pytest.fixture(scope="module", params=list(PROBLEMS))
def problem(request: pytest.FixtureRequest) -> Problem:
    """Each of the small problems in turn: all tests of a module that take it run on one before the next, in one worker mostly."""
    return PROBLEMS[request.param]


@functools.cache
def _searched(name: str, problem_name: str) -> Result | str:
    reason = applicable_planners(PROBLEMS[problem_name])[name]
    return make_plan(name, PROBLEMS[problem_name], REQUESTS[name]) if reason is None else reason


def searched(name: str, problem: Problem) -> Result | str:
    """The first search of a planner on one of the small problems, or why it does not apply; tests share it."""
    return _searched(name, next(key for key, value in PROBLEMS.items() if value is problem))


def shape(plan: Plan) -> list[Any]:
    """Schedule, layers before each stage, devices of each, micro-batches."""
    return [
        plan.schedule,
        [stage.layers[0] for stage in plan.stages],
        [list(stage.devices) for stage in plan.stages],
        len(plan.microbatches),
    ]


@pytest.fixture
def plan_of() -> Callable[[str, Problem], Result]:
    """(planner, problem) -> what it found; skips where the planner does not apply."""

    def find(name: str, problem: Problem) -> Result:
        found = searched(name, problem)
        if isinstance(found, str):
            pytest.skip(found)
        return found

    return find


@pytest.fixture(scope="session")
def small_problems() -> dict[str, Problem]:
    """The small problems by name."""
    return PROBLEMS
