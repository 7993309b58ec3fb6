"""Small problems that every planner and bound is tried on."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hardware_profiles import GraphicsProcessor, load_cluster
from planners import PLANNERS, InapplicablePlannerError, Request, Result, make_plan, testing
from planners.testing import line
from simulator import InfeasiblePlanError, Plan, Problem
from simulator.workloads.synthetic import uniform_chain
from tests.chains import measured_chain, random_chain
from tests.planners.reasons import applicable_planners


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


def with_memory(problem: Problem, memory_bytes: float) -> Problem:
    """The same problem on devices that hold so much."""
    devices = tuple(replace(one, memory_bytes=memory_bytes) for one in problem.cluster.devices)  # type: ignore[type-var]
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def with_slower_links(problem: Problem, factor: float) -> Problem:
    """The same problem behind links of a part of their bandwidth."""
    links = tuple(replace(link, bandwidth=link.bandwidth / factor) for link in problem.cluster.links)
    return replace(problem, cluster=replace(problem.cluster, links=links))


def seconds_of(name: str, problem: Problem, request: Request | None = None) -> float:
    """Of a planner's answer; infinite where it has none, or the request is not for it."""
    try:
        return make_plan(name, problem, request).outcome.iteration_seconds
    except (InapplicablePlannerError, InfeasiblePlanError):
        return float("inf")


def problems() -> dict[str, Problem]:
    """Problems that even brute force solves in half a second, by name; the first for planners of large models."""
    chain = random_chain(4, np.random.default_rng(1), flop=2e9, parameters=3_000_000)
    return {
        "transformer": testing.small_problems()["transformer"],
        "two-servers": Problem(chain, load_cluster("pipedream-a").take(8), 4),
        "mixed-devices": Problem(chain, line(speeds=(1.0, 0.5, 2.0)), 6),
        "measured": Problem(
            measured_chain(
                [3e-3, 1e-3, 2e-3, 5e-3],
                [6e-3, 2e-3, 4e-3, 1e-2],
                samples=4.0,
                parameters=[10**6] * 4,
                output_elements=[1e5] * 4,
            ),
            line(),
            6,
            recompute=True,
        ),
    }


PROBLEMS = problems()

LITTLE = {"modern": "0.0005", "scheduler": "0.0005", "joint": "1.35"}
"""Nominal seconds of work that planners which take them are asked for."""

REQUESTS = {name: Request(options={"seconds": LITTLE[name]} if name in LITTLE else {}) for name in PLANNERS}
"""What each planner is asked: all that it can do, with little work for an order of ops where it searches for one."""


@functools.cache
def searched(name: str, problem_name: str) -> Result | str:
    """The first search of a planner on one of the small problems, or why it does not apply; tests of a process share it."""
    reason = applicable_planners(PROBLEMS[problem_name])[name]
    return make_plan(name, PROBLEMS[problem_name], REQUESTS[name]) if reason is None else reason


def shape(plan: Plan) -> list[Any]:
    """Schedule, layers before each stage, devices of each, micro-batches."""
    return [
        plan.schedule,
        [stage.layers[0] for stage in plan.stages],
        [list(stage.devices) for stage in plan.stages],
        len(plan.microbatches),
    ]


def sums(values: NDArray[Any]) -> list[float]:
    """How many are finite, their sum, and their sum weighted by places."""
    finite = values.ravel()[np.isfinite(values).ravel()].astype(float)
    return [len(finite), float(finite.sum()), float(finite @ np.arange(1, len(finite) + 1))]


@pytest.fixture(scope="session")
def small_problems() -> dict[str, Problem]:
    """The small problems by name."""
    return {**testing.small_problems(), **PROBLEMS, "two-devices": Problem(uniform_chain(6), line(), 8)}
