"""What planners of large models compute before they replay a plan, as records: near replays they are held by other tests.

A closed form that is off by little, or bounds less, leads to the same plan; its figures tell.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from hardware_profiles import load_cluster
from planners import Evaluator, Request
from planners.estimate.stage_costs import FIRST, LAST
from planners.large.shape_search import LargeModels, _ShapeSearch
from planners.large.shapes import Shape
from planners.mixed.label_search import search
from planners.mixed.pipeline_search import _choices, _space
from planners.mixed.space import variant_sets
from planners.modern.order_search import OrderSearch, _Layouts
from planners.testing import line
from simulator import Experts, Llama, Problem, load_workload
from tests.chains import random_chain
from tests.planners.conftest import shape as shape_of
from tests.planners.conftest import sums, with_memory, with_slower_links
from tests.records import Recorded, weight, weights

WITH_EXPERTS = Llama(
    12, 1024, 4, sequence=512, vocabulary=4096, key_value_heads=2, experts=Experts(4, 2, 1408), name="experts"
).workload()

LARGE = {
    "experts": Problem(WITH_EXPERTS, load_cluster("dgx-a100:2"), 32, precision="bf16", optimizer="adam"),
    "tied weights behind slow links": with_slower_links(
        Problem(
            load_workload("gpt2"),
            load_cluster("dgx-a100:1"),
            16,
            precision="fp16",
            optimizer="adam",
            gradient_reduction="whole",
        ),
        20.0,
    ),
    "little memory": with_memory(
        Problem(load_workload("opt-1.3b"), load_cluster("clariden:4"), 24, precision="bf16", optimizer="adam"), 12e9
    ),
    "idle links": Problem(
        load_workload("llama2-7b"),
        load_cluster("dgx-h100:1"),
        8,
        precision="bf16",
        optimizer="adam",
        contention=False,
        sequence_parallel=True,
    ),
}
"""By name; of dense blocks and of experts, with and without ends that share a weight, in one server and in several."""


@pytest.mark.parametrize(
    "name", [name if name.startswith("tied") else pytest.param(name, marks=pytest.mark.slow) for name in LARGE]
)
def test_shapes_of_large_models(name: str, recorded: Recorded) -> None:
    """Bounds of all shapes in the order of the search, and of nine of them by ZeRO stage (of six by weight): seconds,
    blocks and policies of the best division, bytes at least, and what follows the last backward; bytes that all plans
    need; the first candidates, the plan of the first, and shapes that decide otherwise. (All but one by weight.)"""
    found = _ShapeSearch(LargeModels(Request()), LARGE[name], Evaluator(LARGE[name]))
    form, zeros = found.form, np.array(found.form.zeros)
    rising = [*found.order.rising()]
    values: dict[str, Any] = {"bounds": [bound for bound, _ in rising if bound < np.inf]}
    values["shapes"] = [number for _, number in rising]
    values["in memory"] = [*map(sums, found.bounds.least_seconds_in_memory(found.shapes).T)]
    numbers = np.random.default_rng(0).permutation(len(found.shapes))[:9]
    within = found.bounds.least_seconds_in_memory(found.shapes[numbers])
    for place, (number, bounds) in enumerate(zip(numbers.tolist(), within, strict=True)):
        row = found.shapes[number]
        shape, several = Shape(*row.tolist()), np.repeat(row[None], len(zeros), axis=0)
        tables = form._tables(shape, form.blocks.count)
        told = {
            "bounds": bounds,
            "in all": found.bounds.least_seconds_in_all(several, zeros, bounds),
            "divisions": [
                None if one is None else [one.seconds, *dict.fromkeys(zip(one.blocks, one.policies, strict=True))]
                for zero in form.zeros
                for one in [form.division(shape, zero, form.policies)]
            ],
            "bytes": [tables.least_bytes(zero) for zero in form.zeros],
            "tails": [tables.least_tail(zero) for zero in form.zeros],
        }
        values[str(shape)] = told if place < 3 else weight(told)
    needs = np.array([(state, kept, int(zero)) for state, kept, zero, _ in found._least_needs()])
    first, *_ = candidates = [*islice(found.candidates(), 4)]
    plan = found.plan(first)
    values["needs"] = [*map(sums, needs.T)]
    values["candidates"] = [
        [one.seconds, *asdict(one.shape).values(), one.zero, sums(np.array(one.blocks))] for one in candidates
    ]
    values["plan"] = [*shape_of(plan), plan.zero, sorted({*plan.recompute})]
    values["otherwise"] = {name: [*sums(among), zeros] for name, among, zeros in found._otherwise(first)}
    values["opened"] = [
        len(found.opened),
        int(np.isfinite(found._bounds).sum()),
        int(np.isfinite(found._all_bounds).sum()),
    ]
    recorded(**(values if name == "experts" else weights(values)))


@pytest.mark.parametrize(
    "name", [*list(LARGE)[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in list(LARGE)[2:])]
)
def test_tails_of_many_shapes_are_those_of_each_alone(name: str) -> None:
    """To the bit, whatever stands beside it: of a sample of shapes in a row and one by one, at the first and the last rank."""
    found = _ShapeSearch(LargeModels(Request()), LARGE[name], Evaluator(LARGE[name]))
    form, most = found.form, found.form.blocks.count
    chosen = np.random.default_rng(1).permutation(len(found.shapes))[:60]
    rows, zeros = found.shapes[chosen], np.resize(form.zeros, len(chosen))
    for place in (FIRST, LAST):
        together = form.tails.seconds(rows, zeros, most, place)
        for row, zero, seconds in zip(rows, zeros, together, strict=True):
            (alone,) = form.tails.seconds(row[None], np.array([zero]), most, place)
            assert seconds.tolist() == alone.tolist(), (row, zero)


MIXED = Problem(
    Llama(4, 2048, 16, sequence=1024, vocabulary=8192, intermediate=5632, name="llama").workload(),
    load_cluster("sailor-gcp-24"),
    16,
    precision="fp16",
    optimizer="adam",
)
"""Four wide blocks on A100 and V100."""


@pytest.mark.parametrize(("memory_bytes", "zero"), [pytest.param(30e9, "0", marks=pytest.mark.slow), (2.5e9, "3")])
def test_stages_on_unlike_devices(memory_bytes: float, zero: str, recorded: Recorded) -> None:
    """By samples of a micro-batch: seconds, memory, updates and transfers of stages, and reductions of two replicas; then the
    pipelines that the search finds, with their seconds."""
    problem = with_memory(MIXED, memory_bytes)
    space = _space(problem, _choices(problem, Request(options={"zero": (zero,)}))[0])
    values: dict[str, Any] = {"variants": [*map(str, space.variants)], "samples": space.sizes}
    for samples in space.sizes[:2]:
        stages = space.stages(samples)
        sets = variant_sets(space.variants, stages.deepest.any(axis=(1, 2)))
        tails, rounds = space.synchronization(samples, 2, sets)
        parts = stages._asdict() | {"update": space.update(samples, 2), "tails": tails, "rounds": rounds}
        values[f"{samples} samples"] = {name: sums(part) for name, part in parts.items()}
    found = search(space, 3e4, 4).pipelines[:4]
    recorded(**values, found=[[seconds, one.samples, one.replicas, one.ends] for seconds, one in found])


UNLIKE = Problem(
    random_chain(12, np.random.default_rng(3), flop=2e9, parameters=2_000_000), line(speeds=(1.0, 0.7, 1.0)), 12
)
"""Twelve layers on three devices."""


@pytest.mark.parametrize(
    ("memory_bytes", "options"),
    [
        pytest.param(1.5e8, {"recompute": "whole"}, marks=pytest.mark.slow),
        (2e8, {"contention": False, "optimizer": "adam"}),
    ],
)
def test_layouts_of_modern(memory_bytes: float, options: dict[str, Any], recorded: Recorded) -> None:
    """Those that a search begins with: bytes that are missing, seconds of a quick order, and lower bounds; then the best of them
    with those that they climb to, which requests for one decision more have a layout of their own; and the work that is left."""
    problem = with_memory(replace(UNLIKE, **options), memory_bytes)
    planner = OrderSearch()
    found = _Layouts(planner, problem, Evaluator(problem), np.random.default_rng(0))
    begun: dict[tuple[str, int], list[list[float]]] = {}
    for one in found.begin():
        begun.setdefault((one.placement, one.microbatches), []).append([*found.value(one), *found.bound(one)])
    first = {" ".join(map(str, key)): [*map(sums, np.array(rows).T)] for key, rows in begun.items()}
    ranked, parts = found.ranked(), [*planner.parts(problem)]
    best, own = ([[*asdict(one).values()] for one in some] for some in (ranked[:8], found.first_of_parts(parts, None)))
    known = [found.work, found.orders, len(found._values), len(found._bounds)]
    values = [[*one, *found.value(two)] for one, two in zip(best, ranked, strict=False)]
    recorded(begun=first, ranked=values, own=own, known=known)
