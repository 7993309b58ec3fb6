"""How often kernels call each other, as records: what a kernel passes over is no faster, and its answer is the same without that.

Kernels run in plain Python here, on small inputs. Their answers are recorded, too; other tests check those of compiled ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from experiments.unequal_sizes.random_tables import random_problem
from planners import DeviceClass, Evaluator, PartitionCosts, fastest_cuts
from planners.mixed import label_kernels, label_search
from planners.partitioning import fastest_cuts as cuts_search
from planners.partitioning import largest_load, straight_search
from planners.pipedream import dynamic_program, flushed_partition, ordered_devices, partitioner
from planners.pipedream.flushed_partition import FlushedPipeline
from planners.pipedream.ordered_devices import OrderedDevices
from planners.pipedream.partitioner import InfeasiblePartition, MemoryLimit, network_levels
from planners.scheduler import (
    alternation,
    annealing,
    blocks,
    bound,
    heads,
    list_scheduling,
    order_replay,
    sequencing,
    steady,
    turning,
    windows,
)
from planners.scheduler.instance import ScheduleInstance, instance_of
from planners.scheduler.patterns import one_at_a_time
from planners.search import quick_replay
from planners.unequal import compiled, exact, greedy, paired_passes, profiles
from planners.unequal.problem import UnequalProblem
from planners.unequal.sweep import Known, sweep
from tests.planners.conftest import PROBLEMS, sums
from tests.planners.scheduler.test_bounds import drawn
from tests.planners.test_found import table_of
from tests.planners.test_largest_load import problem_of
from tests.planners.test_mixed_search import DrawnSpace
from tests.records import Recorded, weight

Stepped = Callable[..., None]


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> Stepped:
    """Runs cases with the kernels of some modules uncompiled; records what each returns, and how often each kernel was called,
    with the weight of the calls and of the numbers given, by case (or the weight of all kernels)."""
    counts: dict[str, list[list[float]]] = {}

    def counted(name: str, function: Any) -> Any:
        def call(*given: Any) -> Any:
            known = counts[name][-1]
            known[0] += 1
            known[1] += sum(float(one) for one in given if isinstance(one, Real) and np.isfinite(float(one)))
            return function(*given)

        return call

    def run(cases: dict[str, Callable[[], Any]], *modules: ModuleType, whole: bool = True) -> None:
        for module in modules:
            for name, value in [*vars(module).items()]:
                if hasattr(value, "py_func"):
                    counts.setdefault(name, [])
                    monkeypatch.setattr(module, name, counted(name, value.py_func))
        answers = {}
        for name, case in cases.items():
            for known in counts.values():
                known.append([0, 0.0])
            with np.errstate(all="ignore"):
                answers[name] = case()
        called = {name: [sum(count for count, _ in known), weight(known)] for name, known in sorted(counts.items())}
        called = {name: known for name, known in called.items() if known[0]}
        recorded(answers=answers, calls=called if whole else weight(called))

    return run


def test_partitions_of_pipedream(stepped: Stepped) -> None:
    """By form of the cost, levels and memory; under a flush; and over unlike devices."""
    partitioner._load_kernels()  # once in a process

    def partition(seed: int, counts: Any, rates: Any, variant: Any, memory: float) -> float:
        levels, limit = network_levels(counts, rates), MemoryLimit(memory, 2.0, 1.0)
        try:
            return partitioner.partition(table_of(seed), levels, variant=variant, memory=limit).slowest_stage_seconds
        except InfeasiblePartition:
            return np.inf

    def flushed(seed: int, memory: float) -> Any:
        pipeline = FlushedPipeline(5, 4, 8, np.arange(1, 6), memory, 3.0, seed % 2 == 0, 2.0, 1.5)
        found = flushed_partition.flushed_partition(table_of(seed), pipeline)
        return found and [[one.start, one.stop, one.workers] for one in found]

    def ordered(memory: float) -> Any:
        tables, devices = [table_of(1), table_of(2)], OrderedDevices((0, 1, 0, 1), 2.0, 3.0)
        found = ordered_devices.ordered_partition(tables, devices, [MemoryLimit(memory)] * 2)
        return found and [[one.start, one.stop, one.workers] for one in found]

    stepped(
        {
            "two levels": lambda: partition(1, (2, 3), (8.0, 2.0), "paper", np.inf),
            "two levels of the script": lambda: partition(1, (2, 3), (8.0, 2.0), "script", np.inf),
            "barriers and memory": lambda: partition(3, (2, 2), (9.0, 3.0), "barrier", 150.0),
            "a chain": lambda: partition(2, (2,), (1.0,), "paper", np.inf),
            "a chain, barriers and memory": lambda: partition(2, (2,), (1.0,), "barrier", 150.0),
            "one level and memory": lambda: partition(5, (5,), (1.0,), "paper", 120.0),
            "a flush": lambda: flushed(0, 160.0),
            "a flush in little memory": lambda: flushed(5, 100.0),
            "unlike devices": lambda: ordered(np.inf),
            "unlike devices in little memory": lambda: ordered(90.0),
        },
        *(dynamic_program, partitioner, flushed_partition, ordered_devices),
    )


def test_fronts_of_cuts(stepped: Stepped) -> None:
    """Random tables of one and two passes."""

    def fastest(seed: int, microbatches: int) -> Any:
        rng = np.random.default_rng(seed)
        passes, layers, stages = 1 + seed % 2, 8, 3
        before = np.concatenate([np.zeros((passes, 1)), rng.uniform(0.1, 1.0, (passes, layers)).cumsum(axis=1)], axis=1)
        held = np.maximum(before[:, None, None, :] - before[:, None, :, None], 0.0)
        costs = PartitionCosts(
            held * np.array([1.0, 2.5])[:, None, None],
            (0, 1, 0),
            rng.uniform(0.0, 0.5, (passes, stages - 1, layers + 1)),
            rng.uniform(0.0, 0.2, (stages - 1, layers + 1)),
            np.minimum(np.arange(layers + 1) + 5, layers) * np.ones((stages, 1), dtype=np.int64),
        )
        return fastest_cuts(costs, microbatches, slack=0.1)

    stepped(
        {f"{seed}, {count}": lambda one=seed, m=count: fastest(one, m) for seed in (1, 2) for count in (1, 5)},
        cuts_search,
    )


def test_mixed_pipelines(stepped: Stepped) -> None:
    """Of drawn spaces."""

    def found(space: DrawnSpace) -> list[float]:
        answer = label_search.search(space, 500, 2)
        return [answer.pipelines[0][0], answer.bound, answer.work, answer.opened]

    spaces = {"roomy": DrawnSpace(1, (2, 2), 1.0), "tight": DrawnSpace(2, (2, 1), 0.5, memory=7.0)}
    stepped({name: lambda one=space: found(one) for name, space in spaces.items()}, label_kernels, label_search)


def test_largest_loads(stepped: Stepped) -> None:
    """Of a branching graph, by rule and memory."""
    rng = np.random.default_rng(3)
    edges = [(a, b) for a in range(7) for b in range(a + 1, 7) if rng.random() < 0.4]
    seconds, sent = rng.integers(1, 9, 7).astype(float), rng.integers(0, 4, 7).astype(float).tolist()
    host = DeviceClass(1, 3.0 * seconds, pays_transfers=False)
    asked = problem_of(edges, seconds.tolist(), sent, host)
    kept = replace(
        asked, held_bytes=rng.integers(0, 4, 7).astype(float), flight_bytes=rng.integers(0, 2, 7).astype(float)
    )
    tight = replace(kept, classes=tuple(replace(one, memory_bytes=12.0) for one in asked.classes))

    def load(problem: largest_load.PlacementProblem, rule: str) -> Any:
        found = largest_load.least_largest_load(replace(problem, rule=rule))
        return found and [found.largest_load, found.lower_bound, found.down_sets, [part.units for part in found.parts]]

    stepped(
        {
            f"{rule}, {name}": lambda one=one, rule=rule: load(one, rule)
            for rule in ("sum", "max")
            for name, one in (("roomy", asked), ("tight", tight))
        },
        largest_load,
    )


def test_unequal_sizes(stepped: Stepped) -> None:
    """Exact, greedy and equal sizes, of stages that recompute never or always, and where their sizes differ."""

    def problem(recomputation: str) -> UnequalProblem:
        return random_problem(np.random.default_rng(1), "affine", 3, 6, (1, 2, 3, 6), recomputation)

    def sizes(recomputation: str, search: Any) -> Any:
        found = search(problem(recomputation))
        bounds = found.makespan_seconds, found.lower_bound_seconds
        return [found.forward_sizes, found.backward_sizes, *bounds, found.evaluations]

    def paired() -> Any:
        asked = problem("where-differs")
        one = greedy.best_equal(asked)
        known = Known((one.forward_sizes, one.backward_sizes), one.makespan_seconds, one.lower_bound_seconds, 0)
        found = sweep(paired_passes.pair_decisions(asked), profiles.origin(2 * asked.samples + 3, 2), known, 24)
        return [found.sizes, found.seconds, found.bound, found.tried]

    searches = {"greedy": greedy.greedy_dp, "equal": greedy.best_equal, "exact": exact.exact_sizes}
    stepped(
        {
            **{
                f"{name}, {kind}": lambda kind=kind, search=search: sizes(kind, search)
                for name, search in searches.items()
                for kind in ("none", "always")
            },
            "where they differ": paired,
        },
        *(compiled, exact, greedy, paired_passes, profiles),
    )


SCHEDULER = (
    alternation,
    annealing,
    blocks,
    bound,
    heads,
    list_scheduling,
    order_replay,
    sequencing,
    steady,
    turning,
    windows,
)


@pytest.mark.parametrize(("placement", "number"), [("straight", 0), ("v", 6), ("interleaved", 3), ("bidirectional", 5)])
def test_orders_of_ops(placement: str, number: int, stepped: Stepped) -> None:
    """Bounds, first orders, orders of keys, rounds, and short walks, of a drawn problem of four micro-batches."""
    instance: ScheduleInstance = instance_of(replace(drawn(placement, number), microbatches=4))
    trace, trial = (order_replay.trace_of(instance) for _ in range(2))

    def listed() -> list[float]:
        settings = [*list_scheduling.settings_of(instance, len(instance.device))][:4]
        return [list_scheduling.list_schedule(instance, one, trace) for one in settings]

    def sequenced() -> Any:
        keys = sequencing.random_keys(instance, np.random.default_rng(0))
        order = np.empty(int(instance.offsets[-1]), dtype=np.int16)
        return [sequencing.sequence(instance, keys, order), sums(order)]

    def walked(fill: bool) -> Any:
        codes, best = one_at_a_time(instance).copy(), np.empty(int(instance.offsets[-1]), dtype=np.int16)
        offsets = instance.offsets
        if fill:
            rest = codes < 2 * len(instance.device)
            codes, offsets = codes[rest], np.concatenate([[0], np.cumsum(rest)])[offsets]
        form = order_replay.Form(fill, 0.25, True, False, np.zeros(2 * len(instance.device)))
        random = np.array([17], dtype=np.uint64)
        walk = annealing.Walk(form, 6, 25, 3.0, 0.1, 0.0)
        return [*annealing.anneal(instance, codes, offsets, walk, random, (trace, trial), best), sums(best)]

    def repeated() -> Any:
        rounds = steady.plain_rounds(instance)
        return [
            *steady.anneal_rounds(instance, rounds, 12, 2.0, 0.0, np.array([5], dtype=np.uint64)),
            sums(rounds.codes),
        ]

    stepped(
        {
            "bounds": lambda: [bound.lower_bound(instance, one) for one in ("makespan", "longest-stage", "steady")],
            "blocks": lambda: [blocks.replay_block(instance, one, trace) for one in blocks.blocks_of(instance)],
            "lists": listed,
            "alternations": lambda: [
                alternation.alternate(instance, way, trace)
                for way in (alternation.alternations(np.ones(len(instance.device))) if placement == "straight" else ())
            ],
            "keys": sequenced,
            "walk": lambda: walked(False),
            "walk without weight gradients": lambda: walked(True),
            "rounds": repeated,
        },
        *SCHEDULER,
        whole=placement == "straight",
    )


def test_quick_replays(stepped: Stepped) -> None:
    """Of cuts of a shape."""

    def quick(schedule: str) -> Any:
        evaluate = Evaluator(PROBLEMS["two-servers"])
        search = straight_search.CutSearch(evaluate, straight_search.StraightShape(schedule, (0, 1, 4), 2))
        return search.quick(np.array([[1, 2], [1, 3], [2, 3], [3, 2]]))

    stepped({name: lambda one=name: quick(one) for name in ("gpipe", "1f1b", "zb-h1")}, quick_replay, straight_search)
