"""Questions: what the face `pipeplan` asks, and the commands with it: a problem by names, a replay, a plan, a comparison."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from types import NoneType
from typing import TYPE_CHECKING, Any, overload

import numpy as np

import hardware_profiles
import planners
import simulator
from experiments.compare.comparison import Comparison, compare_planners

if TYPE_CHECKING:
    from hardware_profiles import Cluster, Stack
    from planners import Progress, Result, SearchedSchedule
    from simulator import Attention, Engine, Outcome, Plan, Problem, Schedule, ScheduleReplay, Workload

TOPICS: dict[str, Callable[[], Sequence[str]]] = {
    "workloads": lambda: simulator.workload_names(),
    "accelerators": lambda: hardware_profiles.accelerator_names(),
    "clusters": lambda: hardware_profiles.cluster_names(),
    "stacks": lambda: hardware_profiles.stack_names(),
    "schedules": lambda: sorted(simulator.schedule_families()),
    "planners": lambda: sorted(planners.planner_entries()),
}
"""What has names, and what lists them."""

SEARCH = "search"
"""In place of the name of a schedule's family: the order of its ops is searched for."""


def names(topic: str) -> tuple[str, ...]:
    """The names that are known of a topic, plug-ins included; ValueError for another topic than those of TOPICS."""
    if not isinstance(topic, str) or topic not in TOPICS:
        raise ValueError(hardware_profiles.unchosen("topic", topic, TOPICS))
    return tuple(TOPICS[topic]())


NARROW: Sequence[hardware_profiles.Precision] = ("bf16", "fp16")
"""Precisions in which transformers are trained, the usual one first."""


def usual_training(workload: Workload, cluster: Cluster, stack: Stack) -> dict[str, Any]:
    """How a network is trained where nobody says, as far as it differs from the defaults of a problem.

    One with transformer blocks: with Adam, in the first of NARROW in which all devices compute, with sequence parallelism where
    the stack has it. Others, measured ones: nothing.
    """
    if not workload.is_transformer:
        return {}
    narrow = [one for one in NARROW if one in cluster.precisions]
    usual = {"optimizer": "adam", "sequence_parallel": stack.runs.sequence_parallel}
    return usual | ({"precision": narrow[0]} if narrow else {})


def make_problem(
    workload: Workload | str,
    cluster: Cluster | str,
    batch: int | None = None,
    *,
    devices: int | None = None,
    sequence: int | None = None,
    attention: Attention | None = None,
    stack: Stack | str = hardware_profiles.GENERIC,
    **training: Any,
) -> Problem:
    """A problem; what is given by name is looked up.

    workload: or its name, config.json, or chain:N; cluster: or its name, name:SERVERS, or TOML file
    batch: samples of an iteration; default the workload's mini-batch on every device
    devices: use the first of the cluster only; sequence: tokens of a sample; attention: its form
    stack: what runs the plans; or its name, or TOML file
    training: the other fields of `simulator.Problem` (precision, optimizer, recompute, communication, contention, …); what is not
        given is as `usual_training` says, else as a problem's own default
    Warns of options without an effect. Raises ValueError for unknown names, more devices than there are, options out of range.
    """
    hardware_profiles.check_known("a problem has no", training, (one.name for one in fields(simulator.Problem)))
    if isinstance(workload, str):
        workload = simulator.workload_from_spec(workload, sequence, attention)
    else:
        hardware_profiles.check_kind("workload", workload, simulator.Workload, str)
        for option, value in (("sequence", sequence), ("attention", attention)):
            if value is not None:
                raise ValueError(f"{option} {value} is for a workload given by name; {workload.name!r} has its own")
    if isinstance(cluster, str):
        cluster = hardware_profiles.load_cluster(cluster)
    hardware_profiles.check_kind("cluster", cluster, hardware_profiles.Cluster, str)
    if devices is not None:
        hardware_profiles.check_whole("devices", devices, 1)
        if devices > len(cluster.devices):
            raise ValueError(f"devices {devices}: cluster {cluster.name} has {len(cluster.devices)} devices")
        cluster = cluster.take(devices)
    if isinstance(stack, str):
        stack = hardware_profiles.load_stack(stack)
    samples = workload.minibatch * len(cluster.devices) if batch is None else batch
    problem = simulator.Problem(
        workload, cluster, samples, stack, **usual_training(workload, cluster, stack) | training
    )
    for line in problem.doubts():
        warnings.warn(line, stacklevel=2)
    return problem


@overload
def simulate(
    what: Problem,
    plan: Plan,
    *,
    engine: Engine = "simpy",
    noise: float = 0.0,
    seed: int = 0,
    replays: int = 1,
    stragglers: Mapping[int, float] | None = None,
) -> Outcome: ...


@overload
def simulate(
    what: str | Schedule,
    plan: None = None,
    *,
    engine: Engine = "simpy",
    noise: float = 0.0,
    seed: int = 0,
    replays: int = 1,
    stragglers: Mapping[int, float] | None = None,
    **numbers: Any,
) -> ScheduleReplay | SearchedSchedule: ...


def simulate(
    what: Problem | Schedule | str,
    plan: Plan | None = None,
    *,
    engine: Engine = "simpy",
    noise: float = 0.0,
    seed: int = 0,
    replays: int = 1,
    stragglers: Mapping[int, float] | None = None,
    **numbers: Any,
) -> Outcome | ScheduleReplay | SearchedSchedule:
    """Replay a plan of a problem; or a schedule, by the name of its family or as data, on numbers; `search` searches for one.

    numbers: of a schedule: seconds and memory of ops (the fields of `simulator.OpSeconds` and `OpMemory`), sizes, communication
        (`simulator.replay_schedule`); of one by name its stages, microbatches or minibatches, and its options; of one that is
        searched for what `planners.search_on_numbers` takes
    noise: standard deviation of the logarithm of a factor on every duration, drawn with `seed`; replays: with it, of all of which
        `noisy` of the result has the seconds
    stragglers: factor of at least 1 on all that a device computes, by device
    """
    hardware_profiles.check_whole("seed", seed, 0, hardware_profiles.MOST_SEED)
    hardware_profiles.check_kind("stragglers", stragglers, Mapping, NoneType)
    disturbed: dict[str, Any] = {"noise": noise, "replays": replays, "stragglers": stragglers}
    if isinstance(what, simulator.Problem):
        if plan is None or numbers:
            raise ValueError("a problem is simulated with a plan of it, and without numbers of its own")
        hardware_profiles.check_kind("plan", plan, simulator.Plan)
        rng = np.random.default_rng(seed)
        return simulator.simulate(what, plan, engine=engine, rng=rng, **disturbed)
    hardware_profiles.check_kind("what is simulated", what, str, simulator.Schedule, simulator.Problem)
    if plan is not None:
        raise ValueError("a plan is simulated with its problem: simulate(problem, plan)")
    if numbers.get("forward") is None or numbers.get("backward") is None:
        raise ValueError("a schedule needs forward and backward, seconds of its ops")
    if isinstance(what, str) and numbers.get("stages") is None:
        raise ValueError(f"schedule {what!r} needs stages, and microbatches or minibatches")
    seconds, memory = (
        {name: numbers.pop(name) for name in kind.__slots__ if name in numbers}
        for kind in (simulator.OpSeconds, simulator.OpMemory)
    )
    if memory and memory.get("stash") is None:
        raise ValueError("memory and stash_weight need stash, what a forward keeps")
    if what == SEARCH and numbers.get("microbatches") is None:
        raise ValueError(f"schedule {what!r} needs stages and microbatches")
    if what == SEARCH:
        if noise or stragglers:
            raise ValueError("a schedule that is searched for takes no noise and no stragglers: replay what is found")
        kept = simulator.OpMemory(**memory) if memory else None
        return planners.search_on_numbers(
            ops=simulator.OpSeconds(**seconds), memory=kept, seed=seed, engine=engine, **numbers
        )
    settings = {name: numbers.pop(name) for name in ("sizes", "communication") if name in numbers}
    if isinstance(what, str):
        simulator.check_slices(what, numbers.get("slices"), simulator.OpSeconds(**seconds))
        what = simulator.named_schedule(what, engine=engine, **numbers)
    elif numbers:
        raise ValueError(f"a schedule that is data says its own {', '.join(sorted(numbers))}")
    replayed = simulator.replay_schedule(
        what, simulator.OpSeconds(**seconds), engine=engine, seed=seed, **disturbed, **settings
    )
    return replayed.holding(simulator.OpMemory(**memory)) if memory else replayed


def plan(
    problem: Problem,
    planner: str | Callable[..., Any] = "joint",
    *,
    seed: int = 0,
    budget: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    stacks: Sequence[Stack | str] = (),
    **wanted: Any,
) -> Result:
    """Search one plan.

    planner: its name, or a function `(problem, evaluate, rng) -> Plan`
    stacks: to search under in place of the problem's own, or their names or files; the answer is of the fastest
    budget: evaluations (plans replayed, and what a planner ranks before) after which the best plan so far is the answer
    progress: called at every improvement
    wanted: fields of `planners.Request`: what the plan must have (schedule, microbatches, stages, chunks, slices, options), and
        what makes it the better one (objective, power)
    Raises as `planners.plan_by` does.
    """
    request = _request(problem, wanted)
    return planners.plan_by(planner, problem, _stacks(stacks), request, seed=seed, budget=budget, progress=progress)


def _stacks(given: Sequence[Stack | str]) -> tuple[Stack, ...]:
    """Stacks, some by their names or files; one name alone stands for itself."""
    hardware_profiles.check_kind("stacks", given, Iterable)
    several = (given,) if isinstance(given, str) else given
    return tuple(hardware_profiles.load_stack(one) if isinstance(one, str) else one for one in several)


def _request(problem: Problem, wanted: Mapping[str, Any]) -> planners.Request:
    """What is wanted of a plan; ValueError for what is no problem, and for what no request has."""
    hardware_profiles.check_kind("problem", problem, simulator.Problem)
    hardware_profiles.check_known("a request has no", wanted, (one.name for one in fields(planners.Request)))
    return planners.Request(**wanted)


def compare(
    problem: Problem,
    names: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = (),
    *,
    plans: Mapping[str, Plan] | None = None,
    seed: int = 0,
    stacks: Sequence[Stack | str] = (),
    **wanted: Any,
) -> Comparison:
    """Ask several planners; by default every one that is compared.

    names: of planners, or planners themselves, as in `plan`
    plans: given plans to compare with them, under these names; stacks, wanted: as for `plan`
    Raises ValueError for an unknown planner.
    """
    if not callable(names):
        hardware_profiles.check_kind("planners", names, Iterable)
    asked = (names,) if isinstance(names, str) or callable(names) else tuple(names)
    hardware_profiles.check_kind("plans", plans, Mapping, NoneType)
    request = _request(problem, wanted)
    for name, one in (plans or {}).items():
        hardware_profiles.check_kind(f"plan {name!r}", one, simulator.Plan)
    return compare_planners(problem, request, names=asked, plans=plans, seed=seed, stacks=_stacks(stacks))
