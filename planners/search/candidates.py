"""Candidates: the choices of devices, degrees, numbers of micro-batches and schedules that searches try, and the plans they
make.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import combinations, pairwise
from math import inf, isqrt
from typing import Any, get_args

from hardware_profiles import OptionValue, counted, unchosen
from planners.search.evaluator import Evaluator
from planners.search.quick_replay import QuickReplays
from planners.search.request import Request
from simulator import (
    VERSION_METHODS,
    InfeasiblePlanError,
    LayerCosts,
    Plan,
    Problem,
    Recompute,
    Stage,
    Workload,
    Zero,
    check_size,
    context_degrees,
    equal_microbatches,
    expert_degrees,
    group_degrees,
    number_lacks,
    recompute_words,
    schedule_families,
    stages_from_cuts,
)

CHUNKS = 2
"""Stages per device of a looped or interleaved schedule where nothing else is asked for and the network has layers enough."""

FEW_SAMPLES = 32
"""Samples of a batch up to which every number of micro-batches is tried."""

ROUNDING = 1e-10
"""Relative difference in seconds below which two plans count as equally fast."""

FEW_DEVICES, SEVERAL_DEVICES = 5, 8
"""FEW_DEVICES: devices up to which a pipeline may go through any subset; SEVERAL_DEVICES: through any run of neighbours."""

MOST_OPS = 2**22
"""Forwards and backwards, at most, of a plan that a search tries: it replays many, and its last ones on SimPy."""


def devices_in_order(problem: Problem) -> tuple[int, ...]:
    """All device ids, server by server, so that neighbouring stages share a server where they can."""
    return tuple(device for server in problem.cluster.servers for device in server)


def device_groups(problem: Problem, degree: int) -> tuple[tuple[int, ...], ...]:
    """Groups of `degree` neighbouring devices; inside servers where the cluster says so, or where every server has at least so
    many.
    """
    cluster = problem.cluster
    inside = cluster.tensor_groups == "server" or degree <= min(map(len, cluster.servers))
    places = cluster.servers if inside else (devices_in_order(problem),)
    return tuple(place[at : at + degree] for place in places for at in range(0, len(place) - degree + 1, degree))


GROUPS = {
    "tensor": (
        "tensor-parallel groups",
        "heads share them evenly, inside one server unless tensor_groups says otherwise",
    ),
    "context": ("groups for a context", "twice as many divide the tokens of a sample"),
    "expert": ("groups that divide experts", "they divide the routed experts of each layer"),
}
"""Option of a degree -> what has so many devices, and the rule for their number, in words for messages."""


def ranks_of(groups: Sequence[tuple[int, ...]], ranks: int, copies: int) -> tuple[tuple[int, ...], ...]:
    """Devices of each of `ranks` ranks, each of `copies` neighbouring groups."""
    held = (groups[rank * copies : (rank + 1) * copies] for rank in range(ranks))
    return tuple(tuple(device for group in own for device in group) for own in held)


def cut_places(workload: Workload) -> tuple[int, ...]:
    """Layers before each place where a network is cut first: between its blocks, or between any two layers if it has none."""
    layers = workload.layers
    blocks = any(layer.block for layer in layers)
    return tuple(n for n in range(1, len(layers)) if not blocks or layers[n].block != layers[n - 1].block)


def asked_degrees(
    problem: Problem, request: Request, default: tuple[int, ...] | None = None, option: str = "tensor"
) -> tuple[int, ...]:
    """Degrees (numbers of devices) of an option of GROUPS to choose from, rising: those asked for, else `default`, else all
    possible ones.

    option: the name of the degree. What is possible is what network, cluster and stack permit.
    ValueError for a degree that is not possible.
    """
    permitted = {
        "tensor": group_degrees(problem),
        "context": context_degrees(problem.workload),
        "expert": expert_degrees(problem.workload),
    }[option]
    if not getattr(problem.stack.runs, option):
        permitted = (1,)
    asked = request.asked(option)
    if asked is None:
        return permitted if default is None else default
    degrees = tuple(sorted(set(asked)))
    if wrong := sorted(set(degrees).difference(permitted)):
        groups, rule = GROUPS[option]
        raise ValueError(
            f"{groups} of {problem.workload.name} on {problem.cluster.name} cannot have "
            f"{counted(wrong[0], problem.device_word)}: {rule}; choices: {', '.join(map(str, permitted))}"
        )
    return degrees


def asked_zeros(problem: Problem, request: Request, default: tuple[Zero, ...] = get_args(Zero)) -> tuple[Zero, ...]:
    """ZeRO stages to choose from: those asked for, else those of `default` that the problem's stack runs, or all that it runs if
    it runs none of these.

    ValueError for one that the stack does not run.
    """
    runs = problem.stack.runs.zero
    asked: tuple[Zero, ...] | None = request.asked("zero")
    if asked is None:
        return tuple(one for one in default if one in runs) or tuple(one for one in get_args(Zero) if one in runs)
    if wrong := sorted(set(asked).difference(runs)):
        raise ValueError(unchosen(f"ZeRO stage of {problem.stack.title}", str(wrong[0]), list(map(str, runs))))
    return tuple(sorted(set(asked)))


def asked_policies(problem: Problem, request: Request) -> tuple[Recompute, ...]:
    """Recompute policies to choose from: the one asked for, else the problem's, or if that is "none" all that its stack runs."""
    if request.recompute is not None:
        return (request.recompute,)
    runs = problem.stack.runs.recompute
    policies = recompute_words(problem.workload) if problem.recompute == "none" else (problem.recompute,)
    if not runs and len(policies) > 1:  # one framework's, and never far from its neighbours
        policies = tuple(policy for policy in policies if policy != "every-second-product")
    return tuple(policy for policy in policies if not runs or policy in runs)


def device_choices(problem: Problem, costs: LayerCosts) -> tuple[tuple[int, ...], ...]:
    """Sets of devices that a plan may be confined to, each in the cluster's order; the first has all devices.

    Where accelerators differ a pipeline or a ring goes at the pace of the slowest: leaving slow ones idle may be faster. The
    choices are then also the fastest kind alone, the two fastest kinds, ..., and every kind alone. Fast is what takes least
    seconds for one device's share of the batch through the whole network.
    """
    order = devices_in_order(problem)
    kinds = sorted({costs.kind_of_device(device): device for device in reversed(order)}.items())
    share = max(1, problem.batch // len(order))
    seconds = {kind: float(costs.round_trip_seconds(device, share).sum()) for kind, device in kinds}
    fastest = sorted(seconds, key=lambda kind: (seconds[kind], kind))
    wanted = [set(fastest[: count + 1]) for count in range(len(fastest))] + [{kind} for kind in fastest]
    chosen = [tuple(device for device in order if costs.kind_of_device(device) in kinds) for kinds in wanted]
    return tuple(dict.fromkeys((order, *chosen)))


def device_rows(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Rows of devices that a straight pipeline may go through, in the cluster's order and against it, most devices first.

    Of up to FEW_DEVICES devices any subset, of up to SEVERAL_DEVICES any run of neighbours, of more none.
    """
    order = devices_in_order(problem)
    most = len(problem.workload)
    for count in range(min(len(order), most) if len(order) <= SEVERAL_DEVICES else 0, 0, -1):
        neighbours = (order[first : first + count] for first in range(len(order) - count + 1))
        for row in combinations(order, count) if len(order) <= FEW_DEVICES else neighbours:
            yield row
            yield row[::-1]


def unlike_rows(problem: Problem, costs: LayerCosts, rows: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Rows of devices without those on which every pipeline runs as on an earlier row: equal accelerators, and equal routes
    between them.
    """
    cluster = problem.cluster

    @cache
    def likeness(row: tuple[int, ...]) -> Hashable:
        numbers: dict[int, int] = {}  # of channels, as the row meets them
        ways = tuple(
            (
                cluster.point_to_point(*ends),
                tuple(numbers.setdefault(one, len(numbers)) for one in cluster.route(*ends)),
            )
            for pair in pairwise(row)
            for ends in (pair, pair[::-1])
        )
        channels = tuple((cluster.channels[one].bandwidth, cluster.channels[one].latency) for one in numbers)
        return tuple(map(costs.kind_of_device, row)), ways, channels

    told = dict[int, list[tuple[int, ...]]]()  # by their number of devices
    for row in rows:
        before = told.setdefault(len(row), [])
        if not before or likeness(row) not in map(likeness, before):
            before.append(row)
            yield row


def stages_per_device(problem: Problem, request: Request, schedule: str) -> int:
    """Stages per device of a schedule: its own number, the one asked for, or CHUNKS where it is looped and the network has layers
    enough.
    """
    family = schedule_families()[schedule]
    if "chunks" not in family.options:
        return family.chunks
    if request.chunks is not None:
        return request.chunks
    return CHUNKS if len(problem.workload) >= CHUNKS and (request.stages or CHUNKS) % CHUNKS == 0 else 1


def stage_devices(
    problem: Problem, schedule: str, request: Request | None = None, devices: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The device of each stage of a straight pipeline: as many stages as are asked for, else as devices and layers permit.

    devices: to choose from, in this order; default all. A schedule with several stages per device goes round its devices, or back
    and forth, that many times; a network with fewer layers than that uses fewer devices.
    """
    asked = request or Request()
    order = devices_in_order(problem) if devices is None else tuple(devices)
    chunks = stages_per_device(problem, asked, schedule)
    most = (asked.stages or len(problem.workload)) // chunks
    return schedule_families()[schedule].device_of_stage(order[: max(1, most)], chunks)


def straight_shape(problem: Problem, request: Request) -> str | None:
    """Why no pipeline can have the stages and stages per device that are asked for, as a sentence; None if one can."""
    family = schedule_families()[request.schedule or "1f1b"]
    stages, chunks, layers = request.stages, request.chunks or family.chunks, len(problem.workload)
    word = problem.device_word
    if chunks != family.chunks and request.schedule is not None and "chunks" not in family.options:
        own = "one stage" if family.chunks == 1 else f"{family.chunks} stages"
        return f"schedule {request.schedule!r} has {own} per {word}, not {chunks}"
    if chunks > layers:
        return f"{chunks} stages per {word} are more than the {layers} layers"
    if stages is None:
        return None
    if stages % chunks:
        return f"{stages} stages cannot be {chunks} per {word}"
    if stages > layers:
        return f"{stages} stages are more than the {layers} layers"
    held = stages // stages_per_device(problem, request, request.schedule) if request.schedule else stages // chunks
    if held > len(problem.cluster.devices):
        return f"{stages} stages, {stages // held} per {word}, are more than {problem.cluster.counted_devices} hold"
    return None


def straight_plan(
    planner: str,
    problem: Problem,
    schedule: str,
    cuts: Sequence[int],
    devices: Sequence[int],
    microbatches: int,
    options: tuple[tuple[str, OptionValue], ...] = (),
) -> Plan:
    """The plan of a pipeline of contiguous layers with one device per stage.

    cuts: layers before each boundary, as of `simulator.stages_from_cuts`; devices: of each stage; options: as of a `Plan`
    """
    stages = stages_from_cuts(cuts, len(problem.workload), [(device,) for device in devices])
    plan = single_or_pipeline(planner, schedule, stages, equal_microbatches(problem.batch, microbatches))
    return replace(plan, options=options) if options else plan


def single_or_pipeline(planner: str, schedule: str, stages: tuple[Stage, ...], microbatches: tuple[int, ...]) -> Plan:
    """A plan whose replicas take whole micro-batches in turn where its schedule family has an option for replicas, else split
    each.
    """
    round_robin = "replicas" in schedule_families()[schedule].options
    return Plan(planner, schedule, stages, microbatches, "round-robin" if round_robin else "split")


def least_microbatches(schedule: str | None, stages: int) -> int:
    """Fewest micro-batches that a schedule runs: one per stage where its weight versions cover all stages (2BW), else 1."""
    method = VERSION_METHODS.get(schedule or "")
    return stages if method is not None and method.covers_stages else 1


def microbatch_counts(problem: Problem, request: Request, devices: int) -> tuple[int, ...]:
    """Numbers of micro-batches to try, rising: the one asked for, else `searched_counts` and powers of two times `devices`.

    A schedule made for at least as many micro-batches as stages (2BW) gets no fewer than `devices`.
    Raises ValueError if more micro-batches are requested than the batch has samples, InfeasiblePlanError if fewer than such a
    schedule needs, or if the batch has fewer samples.
    """
    batch = problem.batch
    least = least_microbatches(request.schedule, min(devices, len(problem.workload)))
    if least > min(batch, request.microbatches or batch):
        raise InfeasiblePlanError(
            f"schedule {request.schedule!r} needs at least {least} micro-batches, one per stage, "
            f"got {request.microbatches or batch}"
        )
    if request.microbatches is not None:
        if request.microbatches > batch:
            raise ValueError(
                f"micro-batches must be at most the batch of {batch} samples, got {request.microbatches} micro-batches"
            )
        check_size(devices, request.microbatches * (request.slices or 1), most=MOST_OPS)
        return (request.microbatches,)
    powers = {2**power for power in range(batch.bit_length())}
    counts = {*searched_counts(problem), *(power * devices for power in powers if power * devices <= batch)}
    most = MOST_OPS // (2 * devices * (request.slices or 1))
    return tuple(sorted(count for count in counts if least <= count <= max(most, least)))


def searched_counts(problem: Problem) -> tuple[int, ...]:
    """Numbers of micro-batches that every search tries, rising, apart from the limit MOST_OPS.

    They are all of a batch of FEW_SAMPLES at most; of a larger one powers of two, and for each size of the largest micro-batch
    the fewest that have it.
    """
    batch = problem.batch
    if batch <= FEW_SAMPLES:
        return tuple(range(1, batch + 1))
    root = isqrt(batch) + 1
    fewest = {-(-batch // size) for size in range(1, root + 1)} | {
        count for count in range(1, root + 1) if -(-batch // -(-batch // count)) == count
    }
    return tuple(sorted(fewest | {2**power for power in range(batch.bit_length())}))


def runs_shape(problem: Problem, schedule: str, stages: int, chunks: int, microbatches: int) -> bool:
    """Whether the problem's stack runs a schedule of so many stages, stages per device and micro-batches, as equal as whole
    samples permit.
    """
    runs = problem.stack.runs
    if not runs.unequal and problem.batch % microbatches:
        return False
    if stages > 1 and runs.schedules and schedule not in runs.schedules:
        return False
    return not any(number_lacks(runs, schedule, stages, chunks, microbatches))


def counts_by_size(problem: Problem) -> set[int]:
    """Numbers of micro-batches whose largest has 1, 2, 3, 4, 6, 8, 12, ... samples: the fewest for each."""
    sizes = {base << power for base in (1, 3) for power in range(problem.batch.bit_length())}
    return {-(-problem.batch // size) for size in sizes if size <= problem.batch}


def one_a_device(problem: Problem) -> range:
    """Numbers of stages of pipelines with one stage per device, from 1."""
    return range(1, min(len(problem.cluster.devices), len(problem.workload)) + 1)


def straight_decisions(
    problem: Problem, request: Request, schedules: Iterable[str], counts: Iterable[int], chunks: tuple[int, ...]
) -> dict[str, Iterable[Any]]:
    """Values that a search of straight pipelines tries, by the name of the decision, for decisions that the request leaves open.

    counts: of micro-batches; chunks: stages per device
    """
    held = chunks if request.chunks is None else (request.chunks,)
    stages = sorted({ranks * each for ranks in one_a_device(problem) for each in held})
    return {"schedule": schedules, "microbatches": counts, "stages": stages, "chunks": chunks}


def closest_to_fit(
    plans: Iterable[Plan],
    evaluate: Evaluator,
    *,
    retried: Callable[[Plan], Plan] = lambda plan: plan,
    surely_fits: Callable[[Plan], bool] = lambda plan: True,
    excess: Callable[[LayerCosts, Plan], float] = lambda costs, plan: 0.0,
) -> Plan:
    """The fastest of some plans that fits, else the one that exceeds memory least; the first of equals but for ROUNDING.

    plans: at least one. Replays begin with the plan whose quick replay, which is never slower, is fastest, and end where no quick
    replay is faster than the best that fits. The last one, where none fits, needs no quick replay. Plans that surely exceed
    memory come last, and only where none fits, as long as they may exceed it least.
    excess: lower bound on the share by which a plan exceeds memory, 0 where it may fit
    retried: gives the plan to replay in place of one that may not fit
    surely_fits: whether a plan fits for sure, so that no other takes its place and a slow bound rules it out
    """
    every = list(plans)
    quick = QuickReplays(evaluate.problem, evaluate.layer_costs)
    waiting = [
        (excess(evaluate.layer_costs, plan), quick.fill_and_work(plan), number, False)
        for number, plan in enumerate(every)
    ]
    heapify(waiting)
    replayed, best, nearest = dict[int, tuple[tuple[float, float], Plan]](), inf, inf
    while waiting:
        beyond, least, number, known = heappop(waiting)
        if beyond > (nearest if best == inf else 0.0):
            break
        if least > best * (1.0 + ROUNDING) and surely_fits(every[number]):
            continue
        if not (known or beyond) and (waiting or best < inf):
            heappush(waiting, (beyond, max(least, quick(every[number])), number, True))
            continue
        plan = retried(every[number])
        score = evaluate(plan)
        replayed[number] = score.key, plan
        best, nearest = min(best, score.iteration_seconds) if score.fits else best, min(nearest, score.key[0])
    (key, chosen), *others = (replayed[number] for number in sorted(replayed))
    for other, plan in others:
        if other < (key[0], key[1] * (1.0 - ROUNDING)):
            key, chosen = other, plan
    return chosen
