"""Strategies: generated schedules, costs and plans, and hand-made costs, devices and clusters for the simulator's tests."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from hardware_profiles import Channel, Cluster, Link, load_accelerator
from simulator import (
    REPLICA_UPDATES,
    SCHEDULES,
    Bucket,
    LayerSplit,
    Op,
    OpKind,
    OpSeconds,
    Plan,
    Problem,
    Program,
    Schedule,
    Timeline,
    Transfer,
    Workload,
    build_schedule,
    equal_microbatches,
    from_text,
    lower,
    replay_schedule,
    splittable_layers,
    stages_from_cuts,
    to_text,
)
from simulator.costs.given import StageCollectives, TiedReduction
from simulator.options.training_options import BY_BLOCK, COMMUNICATIONS, Recompute, WeightVersions
from simulator.schedules.ops import HOST_KINDS
from simulator.schedules.schedule import columns_of, from_ranks
from simulator.schedules.unequal import UNEQUAL_SCHEDULES
from tests.chains import random_chain

A, F, B, I, W, U = (  # noqa: E741
    OpKind.RECOMPUTE,
    OpKind.FORWARD,
    OpKind.BACKWARD,
    OpKind.INPUT_GRADIENT,
    OpKind.WEIGHT_GRADIENT,
    OpKind.UPDATE,
)

FLUSHED = ("gpipe", "1f1b", "eager-1f1b")
LOOPED = ("interleaved-1f1b", "looped-bfs")
FAMILIES = (*FLUSHED, *LOOPED, "pipedream", "1f1b-rr", "random")


def timeline_of(schedule: Schedule, *seconds: Any, engine: Any = "recurrence", **named: Any) -> Timeline:
    """The timeline of ops that take what `OpSeconds` says of these numbers."""
    return replay_schedule(schedule, OpSeconds(*seconds, **named), engine=engine).timeline


# ---- hand-made costs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HandCosts:
    """Costs from tables: seconds per sample of each kind and stage, one transfer and one bucket list for all.

    routes: channels by (source device, target device); none: a link of its own
    stride: device of replica r of stage s is s + r · stride
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...] = ()
    update: float = 0.0
    transfer_seconds: float = 0.0
    transfer_bytes: float = 0.0
    routes: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    channels: tuple[Channel, ...] = ()
    stage_buckets: dict[int, tuple[Bucket, ...]] = field(default_factory=dict)
    ties: tuple[TiedReduction, ...] = ()
    device_of_stage: tuple[int, ...] = ()
    stride: int = 100
    slowdown: float = 0.0

    def device(self, stage: int, replica: int) -> int:
        return (self.device_of_stage[stage] if self.device_of_stage else stage) + replica * self.stride

    def seconds(self, kind: OpKind, stage: int, replica: int, samples: NDArray[np.int64]) -> NDArray[np.float64]:
        if kind is U:
            return np.full(len(samples), self.update)
        weight = self.weight[stage] if self.weight else self.backward[stage] / 2
        if kind in HOST_KINDS:
            return 0.5 * self.forward[stage] * samples
        one = {
            A: self.forward[stage],
            F: self.forward[stage],
            B: self.backward[stage],
            W: weight,
            I: self.backward[stage] - weight,
        }[kind]
        return one * samples

    def group(self, stage: int, replica: int) -> Hashable:
        return None

    def transfer(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> Transfer:
        size = self.transfer_bytes * samples
        route = self.routes.get((self.device(*source), self.device(*target)), ())
        seconds = self.transfer_seconds * samples
        if route:
            seconds = sum(self.channels[c].latency for c in route)
            seconds += size / min(self.channels[c].bandwidth for c in route)
        return Transfer(seconds, size, route)

    def recomputes(self, stage: int) -> bool:
        return False

    def overlapped_seconds(self, stage: int, samples: int, apart: float) -> float:
        return 0.75 * apart

    def overlap_slowdown(self, device: int) -> float:
        return self.slowdown

    def collectives(self, stage: int) -> StageCollectives:
        return StageCollectives(self.stage_buckets.get(stage, ()))

    @property
    def tied_reductions(self) -> tuple[TiedReduction, ...]:
        return self.ties


# ---- hand-made hardware ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnitDevice:
    """An accelerator of hand-made figures: flop / rate seconds per sample forward, as much per gradient; updates are free."""

    memory_bytes: float = 1e12
    rate: float = 1.0
    name: str = "unit"
    streams: bool = False
    sublinear: bool = True
    host_bandwidth: float = 1e5
    launch_overhead: float = 0.0
    pass_overhead: float = 0.0

    def seconds(self, work: Any, samples: float, phase: str, precision: str) -> float:
        return float(work.flop * samples * (2.0 if phase == "backward" else 1.0) / self.rate)


def chain_cluster(
    devices: int, *, bandwidth: float = 1.0, latency: float = 0.0, memory_bytes: float = 1e12, duplex: Any = "full"
) -> Cluster:
    """Devices 0..n-1 in a row, each linked to the next."""
    nodes = tuple(f"d{i}" for i in range(devices))
    return Cluster(
        name="row",
        devices=(UnitDevice(memory_bytes),) * devices,
        nodes=nodes,
        switches=(),
        servers=tuple((i,) for i in range(devices)),
        links=tuple(Link(nodes[i], nodes[i + 1], bandwidth, latency, duplex) for i in range(devices - 1)),
    )


def star_cluster(devices: int, *, bandwidth: float = 1.0, memory_bytes: float = 1e12) -> Cluster:
    """Devices around one switch: every pair is two hops apart."""
    nodes = tuple(f"d{i}" for i in range(devices))
    return Cluster(
        name="star",
        devices=(UnitDevice(memory_bytes),) * devices,
        nodes=nodes,
        switches=("switch",),
        servers=tuple((i,) for i in range(devices)),
        links=tuple(Link(node, "switch", bandwidth) for node in nodes),
    )


def channel(bandwidth: float, latency: float = 0.0) -> Channel:
    """One channel."""
    return Channel("wire", bandwidth, latency, (bandwidth,) * 3)


def bits(program_start: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether two arrays of float64 are the same to the last bit."""
    return program_start.shape == other.shape and bool((program_start.view(np.int64) == other.view(np.int64)).all())


# ---- generated schedules ---------------------------------------------------------------------------------------------


Words = list[list[tuple[Op, ...]]]
"""Lists of ops, the two of an overlapped pair together."""


def from_lists(name: str, lists: Sequence[Sequence[Op]]) -> Schedule:
    """A schedule of one list of ops a rank."""
    return from_ranks(name, [columns_of(ops) for ops in lists])


def from_words(name: str, lists: Words) -> Schedule:
    """A schedule of one list of ops and pairs a rank; a list of offloads and reloads is beside its device."""
    cells = [[f"({word[0]};{word[1]})OVERLAP_F_B" if word[1:] else str(word[0]) for word in words] for words in lists]
    return from_text("\n".join(map(" ".join, cells)), name)


@st.composite
def op_lists(draw: st.DrawFn, *, offloads: bool = True) -> Words:
    """Lists in a random order that runs, of one stage or several a device, with overlapped pairs or without."""
    stages = draw(st.integers(1, 4))
    microbatches = draw(st.integers(1, 5))
    devices = draw(st.integers(1, stages))
    device = [[draw(st.integers(0, devices - 1))] * microbatches for _ in range(stages)]
    return draw(running_orders(device, offloads=offloads))


@st.composite
def running_orders(
    draw: st.DrawFn, device: Sequence[Sequence[int]], *, makes_again: Sequence[bool] = (), offloads: bool = True
) -> Words:
    """Lists of devices 0, 1, …, and of the links to their hosts, of a random order that runs, without those that are empty.

    device: of each stage and micro-batch; makes_again: stages that may run forwards again in ops of their own (default: any)
    offloads: stashes may go to the host
    """
    able = makes_again or [True] * len(device)
    options = _Options(
        split=[draw(st.booleans()) for _ in device],
        again=[one and draw(st.booleans()) for one in able],
        overlaps=draw(st.booleans()),
        offloads=offloads and draw(st.booleans()),
    )
    return [words for words in running_order(device, options, draw(st.randoms(use_true_random=False))) if words]


@dataclass(frozen=True)
class _Options:
    """What a random order has: of each stage, whether its backward is two ops, and whether its forwards run again; forwards that
    overlap backwards of their device which could begin at the same moment; stashes that go to the host and come back."""

    split: Sequence[bool]
    again: Sequence[bool]
    overlaps: bool
    offloads: bool


def running_order(device: Sequence[Sequence[int]], options: _Options, rng: Random) -> Words:
    """Lists of devices 0, 1, …, then of the links to their hosts: a random linear extension of the data dependencies.

    device: of each stage and micro-batch
    """
    stages, microbatches, split = len(device), len(device[0]), options.split
    done: set[Op] = set()
    todo = {Op(s, F, m) for s in range(stages) for m in range(microbatches)}
    for s in range(stages):
        kinds = (*((I, W) if split[s] else (B,)), *((A,) if options.again[s] else ()))
        todo |= {Op(s, kind, m) for kind in kinds for m in range(microbatches)}
    away = {(op.stage, op.microbatch) for op in todo if op.kind is F and options.offloads and rng.random() < 0.5}
    todo |= {Op(s, kind, m) for s, m in away for kind in HOST_KINDS}

    def gradient(stage: int, microbatch: int) -> Op:
        return Op(stage, I if split[stage] else B, microbatch)

    def ready(op: Op) -> bool:
        s, m = op.stage, op.microbatch
        if op.kind is F:
            return s == 0 or Op(s - 1, F, m) in done
        if op.kind is W:
            return Op(s, I, m) in done
        if op.kind is OpKind.RELOAD:
            return Op(s, OpKind.OFFLOAD, m) in done
        here = Op(s, F, m) in done and ((s, m) not in away or op.kind in HOST_KINDS or Op(s, OpKind.RELOAD, m) in done)
        if op.kind not in (B, I):
            return here
        ahead = s == stages - 1 or gradient(s + 1, m) in done
        return here and ahead and (not options.again[s] or Op(s, A, m) in done)

    devices = 1 + max(map(max, device))
    lists: Words = [[] for _ in range(2 * devices)]
    while todo:
        able = sorted(op for op in todo if ready(op))
        op = rng.choice(able)
        here = device[op.stage][op.microbatch]
        beside = [one for one in able if one.kind in (B, I) and device[one.stage][one.microbatch] == here]
        word = (op, rng.choice(beside)) if options.overlaps and op.kind is F and beside else (op,)
        todo.difference_update(word)
        done.update(word)
        lists[here + devices * (op.kind in HOST_KINDS)].append(word)
    return lists


@st.composite
def schedules(
    draw: st.DrawFn,
    *,
    least: int = 1,
    most_devices: int = 4,
    most_microbatches: int = 7,
    families: tuple[str, ...] = FAMILIES,
) -> Schedule:
    """A schedule of any of the families on at least `least` devices, with as many micro-batches, or a random order that runs."""
    family = draw(st.sampled_from(families))
    devices = draw(st.integers(least, most_devices))
    microbatches = draw(st.integers(least, most_microbatches))
    if family == "random":
        return from_words("random", draw(op_lists()))
    if family in LOOPED:
        chunks = draw(st.integers(1, 3))
        return build_schedule(family, devices * chunks, microbatches, chunks=chunks)
    if family == "1f1b-rr":
        replicas = tuple(draw(st.integers(1, min(3, microbatches))) for _ in range(devices))
        return build_schedule(family, devices, microbatches, replicas=replicas)
    return build_schedule(family, devices, microbatches)


_seconds = st.one_of(st.just(0.0), st.just(1.0), st.floats(1e-3, 10.0))


def composition(draw: st.DrawFn, total: int, parts: int) -> list[int]:
    """Sizes of at least 1 that sum to a total."""
    cuts = sorted(draw(st.sets(st.integers(1, total - 1), min_size=parts - 1, max_size=parts - 1))) if parts > 1 else []
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, total], strict=True)]


def lower_unchecked(*given: Any, **options: Any) -> Program:
    """As `lower`, but a schedule that is not complete, and a program whose lanes wait for each other, too: for what takes any."""
    with patch("simulator.lowering.lower._check_runs"), patch("simulator.lowering.coverage.check_complete"):
        return lower(*given, **options)


@st.composite
def programs(draw: st.DrawFn, *, contended: bool = False) -> Program:
    """A lowered plan: schedule × stage times × unequal sizes × replicas × communication × updates; it may deadlock.

    contended: at least two devices; transfers and all-reduces have routes of one to three of a few channels, lanes may share a
        device, and devices may compute more slowly while they communicate
    """
    schedule = draw(schedules(least=2, families=(*FAMILIES, "fbp-as")) if contended else schedules())
    stages, count = schedule.stages, schedule.microbatches
    devices = [int(schedule.stage[schedule.offsets[r]]) for r in range(schedule.ranks)]
    round_robin = schedule.name == "1f1b-rr"
    replicas = [1] * stages
    if not round_robin and schedule.lanes is None and draw(st.booleans()):
        for rank in range(schedule.ranks):
            if schedule.kind[schedule.offsets[rank]] in HOST_KINDS:
                continue
            shared = draw(st.integers(1, 3))
            for stage in np.unique(schedule.stage[schedule.offsets[rank] : schedule.offsets[rank + 1]]):
                replicas[int(stage)] = shared
    sizes: Any = None
    backward_sizes: Any = None
    form = draw(st.sampled_from(("equal", "unequal", "by stage")))
    if form != "equal":
        sizes = [draw(st.integers(1, 4)) for _ in range(count)]
        if form == "by stage":
            total = sum(sizes)
            sizes = [composition(draw, total, count) for _ in range(stages)]
            backward_sizes = [composition(draw, total, count) for _ in range(stages)] if draw(st.booleans()) else None
    shares = draw(st.sampled_from(((1.0,), (0.5, 0.5), (0.2, 0.3, 0.5))))
    channels = tuple(draw(_channels) for _ in range(draw(st.integers(1, 4)))) if contended else ()
    route = st.lists(st.integers(0, len(channels) - 1), min_size=len(channels) > 0, max_size=3, unique=True).map(tuple)
    held = [(s, 100 * r) for s in range(stages) for r in range(max(replicas[s], 3 if round_robin else 1))]
    device_of_stage = tuple(_device_of(schedule, devices, s) for s in range(stages))
    used = sorted({device_of_stage[s] + r for s, r in held})
    costs = HandCosts(
        forward=tuple(draw(_seconds) for _ in range(stages)),
        backward=tuple(draw(_seconds) for _ in range(stages)),
        update=draw(_seconds),
        transfer_seconds=draw(_seconds),
        transfer_bytes=draw(st.sampled_from((1.0, 3.0, 0.37, 0.0))) if contended else 0.0,
        routes={(a, b): draw(route) for a in used for b in used if a != b and draw(st.integers(0, 7))}
        if contended
        else {},
        channels=channels,
        stage_buckets={
            s: tuple(Bucket(share, draw(_seconds), *taken) for share in shares)
            for s in range(stages)
            if replicas[s] > 1 or round_robin
            for taken in [draw(_taken(route)) if contended else ()]
        },
        device_of_stage=device_of_stage,
        slowdown=draw(st.sampled_from((0.0, 0.0, 0.25, 1.0))) if contended else 0.0,
    )
    return lower_unchecked(
        schedule,
        costs,
        forward_sizes=sizes,
        backward_sizes=backward_sizes,
        split_replicas=None if round_robin else replicas,
        communication=draw(
            st.sampled_from(
                ("overlapped", "free")
                if schedule.overlapped is not None
                else ("overlapped", "send-blocking", "both-blocking", *(("streaming",) if contended else ()))
            )
        ),
        updates=draw(st.booleans()),
    )


_channels = st.builds(channel, st.sampled_from((0.5, 1.0, 2.0, 3.0, 7.0)), st.sampled_from((0.0, 0.0, 0.25, 1.0)))


@st.composite
def _taken(draw: st.DrawFn, route: st.SearchStrategy[tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Channels of an all-reduce, and its share of each (or of all, where none are given)."""
    channels = draw(route)
    shares = tuple(draw(st.sampled_from((0.0, 0.25, 0.3, 1.0))) for _ in channels)
    return channels, draw(st.sampled_from((shares, ())))


def _device_of(schedule: Schedule, heads: Sequence[int], stage: int) -> int:
    rank = int(schedule.rank_of_row()[np.flatnonzero(schedule.stage == stage)[0]])
    return int(heads[rank])


# ---- generated plans -------------------------------------------------------------------------------------------------

SYNCHRONOUS = (*sorted(name for name, family in SCHEDULES.items() if family.flush), "own order")
ASYNCHRONOUS = tuple(sorted(name for name, family in SCHEDULES.items() if not family.flush))


@st.composite
def plans(draw: st.DrawFn, count: int, names: Sequence[str] = SYNCHRONOUS) -> tuple[Problem, list[Plan]]:
    """A problem, and `count` plans of one structure for it, with one of the schedules.

    Any family, replicas that split, pipelines in opposite directions, orders that put micro-batches anywhere, stages that share
    devices, recomputation, any communication, micro-batches of odd sizes, of each stage and pass its own; like or unlike devices,
    or boards on which layers stream; weights that layers share.
    """
    name = draw(st.sampled_from(names))
    family = SCHEDULES.get(name, SCHEDULES["gpipe"])
    chunks = draw(st.integers(1, 2)) * family.chunks if "chunks" in family.options else family.chunks
    ranks = draw(st.integers(1, 3))
    alone = bool(family.lanes) or (chunks > 1 and draw(st.booleans()))
    shares = [1 if alone else draw(st.integers(1, 3)) for _ in range(ranks)]
    if chunks > 1:
        shares = shares[:1] * ranks
    begins = np.concatenate([[0], np.cumsum(shares)]).tolist()
    groups = [tuple(range(begins[rank], begins[rank + 1])) for rank in range(ranks)]
    held = list(groups if family.placement == "bidirectional" else family.device_of_stage(groups, chunks))
    many = draw(st.integers(1, 5))
    own: dict[str, Any] = {}
    overlaps, offloads, makes_again = False, False, list[bool]()
    if family.placement == "bidirectional":
        many, half, own["replication"] = max(many, 2), draw(st.integers(1, 2)), "round-robin"
        held = [(stage, 2 * half - 1 - stage) for stage in range(2 * half)]
        begins = [2 * half]
    elif "replicas" in family.options:
        own["replication"] = "round-robin"
    elif name == "own order":
        begins = [draw(st.integers(1, 4))]
        device = [[draw(st.integers(0, begins[0] - 1)) for _ in range(many)] for _ in range(draw(st.integers(1, 4)))]
        held = [tuple(dict.fromkeys(row)) for row in device]
        makes_again = [draw(st.booleans()) for _ in held]
        ordered = from_words("own", draw(running_orders(device, makes_again=makes_again)))
        overlaps, offloads = ordered.overlapped is not None, ordered.device is not None
        own.update(replication="round-robin", order=tuple(to_text(ordered).splitlines()))
    stages = len(held)
    layers = stages + draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    batch = draw(st.integers(3 * many, 4 * many + 3))
    workload = random_chain(layers, rng, flop=1.0, parameters=1000)
    if draw(st.booleans()):  # ops that take no time at all
        idle = rng.random(layers) < 0.6
        pairs = zip(workload.layers, idle.tolist(), strict=True)
        workload = replace(workload, layers=tuple(replace(one, flop=0.0) if none else one for one, none in pairs))
    words: tuple[Any, ...] = ("none", "whole")
    if draw(st.booleans()):
        kinds = [draw(st.sampled_from(("linear", "attention"))) for _ in range(layers - 1)]
        stashing = zip(workload.layers, ["attention", *kinds], strict=True)
        runs = np.cumsum(rng.random(layers) < 0.4)
        blocks = runs * (rng.random(layers + 1) < 0.8)[runs]
        blocks[-1] = layers  # one at least
        kept = [
            replace(one, kind=kind, stashed_elements=1.5 * one.stashed_elements, block=number)
            for (one, kind), number in zip(stashing, blocks.tolist(), strict=True)
        ]
        workload, words = replace(workload, layers=tuple(kept)), get_args(Recompute)
    if any(makes_again) or draw(st.booleans()):
        choices = [words[1:] if stage < len(makes_again) and makes_again[stage] else words for stage in range(stages)]
        own["recompute"] = tuple(draw(st.sampled_from(some)) for some in choices)
    if layers > 1 and draw(st.booleans()):
        first, *middle, last = workload.layers
        last = replace(last, tied_to=first.name, tied_parameters=first.parameters)
        workload = replace(workload, layers=(first, *middle, last))
    problem = Problem(
        workload,
        draw(_plan_clusters(begins[-1], boards=not offloads)),
        batch,
        recompute=draw(st.sampled_from(words)),
        communication=draw(
            st.sampled_from(("overlapped", "free") if overlaps else family.communications or COMMUNICATIONS)
        ),
        overlap=draw(st.sampled_from((1.0, 0.6))),
        contention=draw(st.booleans()),
        weight_versions=draw(st.sampled_from(get_args(WeightVersions))),
        replica_updates=draw(st.sampled_from(REPLICA_UPDATES)),
    )
    sizes = tuple(composition(draw, batch, many)) if draw(st.booleans()) else equal_microbatches(batch, many)
    if name in UNEQUAL_SCHEDULES and max(shares) == 1 and draw(st.booleans()):
        own["forward_sizes"] = tuple(tuple(composition(draw, batch, many)) for _ in range(stages))
        if draw(st.booleans()):
            own["backward_sizes"] = tuple(tuple(composition(draw, batch, many)) for _ in range(stages))
    cuts = [sorted(rng.choice(np.arange(1, layers), stages - 1, replace=False).tolist()) for _ in range(count)]
    plans = [Plan("hand", name, stages_from_cuts(one, layers, held), sizes, **own) for one in cuts]
    return problem, [some_blocks(workload, plan, draw(st.integers(0, 2))) for plan in plans]


def split_between_stages(workload: Workload, plan: Plan, rng: Random) -> Plan:
    """A plan in which some neighbouring stages share the last layer of the one or the first layer of the other."""
    may, shared = splittable_layers(workload), dict[int, int]()  # the layer that stages share, by the first of them
    for number, (before, stage) in enumerate(pairwise(plan.stages)):
        ends = before.layers[-1], stage.layers[0]
        layer = rng.choice(ends)
        if may[layer] and ends[1] == ends[0] + 1 and layer not in shared.values() and rng.random() < 0.7:
            shared[number] = layer
    stages = [
        replace(
            stage,
            layers=tuple(sorted({*stage.layers, *(shared[one] for one in (number - 1, number) if one in shared)})),
        )
        for number, stage in enumerate(plan.stages)
    ]
    splits = [LayerSplit(layer, rng.choice((0.125, 0.3, 0.5, 0.9))) for layer in shared.values()]
    return replace(plan, stages=tuple(stages), splits=tuple(splits))


def some_blocks(workload: Workload, plan: Plan, most: int) -> Plan:
    """A plan whose stages that recompute by blocks do so for as many of their first ones, or for all that they have."""
    held = [len({workload.layers[layer].block for layer in stage.layers} - {0}) for stage in plan.stages]
    blocks = (min(most, own) * (policy in BY_BLOCK) for own, policy in zip(held, plan.recompute, strict=False))
    return replace(plan, recomputed_blocks=tuple(blocks))


@st.composite
def _plan_clusters(draw: st.DrawFn, devices: int, *, boards: bool) -> Cluster:
    """Like or unlike devices in a row or around a switch, or boards."""
    kind = draw(st.sampled_from(("row", "star", "unlike", *(("boards",) if boards else ()))))
    bandwidth = draw(st.sampled_from((1e3, 1e5, 1e9)))
    cluster = (chain_cluster if kind == "row" else star_cluster)(devices, bandwidth=bandwidth)
    if kind == "unlike":
        rates = [draw(st.sampled_from((0.5, 1.0, 3.0))) for _ in range(devices)]
        return replace(cluster, devices=tuple(UnitDevice(1e6 * rate, rate, f"unit-{rate}") for rate in rates))
    if kind == "boards":
        return replace(cluster, devices=(load_accelerator("vcu118"),) * devices)
    return cluster
