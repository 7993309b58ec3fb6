"""Layers with variants: the cost model by hand, choices and pipelines of small networks against all there are."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

from experiments.piper import cheapest_variants as cheapest
from experiments.piper.cheapest_variants import NO, UNKNOWN, YES, Variants, cheapest_variants, fits_within
from experiments.piper.variant_partition import _figures, _stage, fastest_variant_plan
from experiments.piper.variant_problem import (
    LayerVariant,
    VariantProblem,
    VariantStage,
    plan_seconds_per_sample,
    stage_seconds_per_sample,
)

PLAIN = LayerVariant("plain", 8.0, 4.0, 6.0, 2.0)
AGAIN = LayerVariant("again", 10.0, 4.0, 1.0, 3.0)
HAND = VariantProblem(({1: (PLAIN, AGAIN)}, {1: (PLAIN, AGAIN)}), {(0, 1): 5.0}, 4, 20.0, 2.0, 4)


def test_a_stage_by_hand() -> None:
    """Two replicas: 8 / 2 of computing, 2 x 5 / 2 of an edge there and back, 4 x 1 / 2 x 4 / 4 of the weights, at rate 2."""
    stage = VariantStage((0,), 1, 2, {0: "plain"})
    assert stage_seconds_per_sample(HAND, stage) == 4.0 + (5.0 + 2.0) / 2.0


def test_what_a_group_adds_to_an_edge_counts_at_its_end() -> None:
    """A sender's group adds to what leaves, a reader's to what enters; inside a stage nothing is sent."""
    first, last = replace(PLAIN, sent_bytes={1: 1.0}), replace(PLAIN, received_bytes={0: 3.0})
    problem = replace(HAND, layers=({1: (first,)}, {1: (last,)}))
    alone = [stage_seconds_per_sample(problem, VariantStage((n,), 1, 1, {n: "plain"})) for n in (0, 1)]
    both = stage_seconds_per_sample(problem, VariantStage((0, 1), 1, 1, {0: "plain", 1: "plain"}))
    assert (*alone, both) == (8.0 + 2 * (5 + 1) / 2, 8.0 + 2 * (5 + 3) / 2, 16.0)


def test_micro_batches_in_flight_fill_the_memory() -> None:
    """Of two stages the first has 2 in flight: 2 x 6 + 2 bytes plain, which 13 do not hold, and 2 x 1 + 3 with recomputation."""
    tight = replace(HAND, memory_bytes=13.0)
    plain = VariantStage((0,), 1, 1, {0: "plain"}), VariantStage((1,), 1, 1, {1: "plain"})
    with pytest.raises(ValueError, match="stage 0 needs 14 bytes per device, more than 13"):
        plan_seconds_per_sample(tight, plain)
    assert plan_seconds_per_sample(tight, (VariantStage((0,), 1, 1, {0: "again"}), plain[1])) == 15.0


def test_plans_that_break_a_rule_are_refused() -> None:
    """Each layer once, in order, on the devices that there are, by replicas that divide the batch, in variants that it has."""
    first, last = VariantStage((0,), 1, 1, {0: "plain"}), VariantStage((1,), 1, 1, {1: "plain"})
    roomy = replace(HAND, memory_bytes=99.0)
    for stages, words in (
        ((first,), "every layer must be in one stage"),
        ((last, first), "must not stand before one that it needs"),
        ((first, replace(last, replicas=4)), "at most 4 devices, got 5"),
        ((first, replace(last, replicas=3)), "3 replicas must divide 4"),
        (
            (replace(first, replicas=2), replace(last, replicas=3)),
            "5 replicas of all stages are more than the batch's 4",
        ),
        (
            (first, replace(last, variants={1: "other"})),
            r"layer 1 has no variant 'other' at degree 1; it has \['again', 'plain'\]",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            plan_seconds_per_sample(replace(roomy, devices=5) if "batch" in words else roomy, stages)


def drawn(rng: np.random.Generator, layers: int, most: int) -> Variants:
    """A knapsack of whole numbers."""
    shape = layers, most
    counts = rng.integers(1, most + 1, layers)
    return Variants(rng.integers(0, 12, shape).astype(float), rng.integers(0, 12, shape).astype(float), counts)


@pytest.mark.parametrize("seed", range(12))
def test_a_choice_of_variants_is_the_cheapest_of_all(seed: int) -> None:
    """Layers with one to three variants: what fits at which cost, at every limit around it, as all choices say."""
    rng = np.random.default_rng(seed)
    variants = drawn(rng, 4, 3)
    memory = float(rng.integers(8, 30))
    numbers = range(len(variants.counts))
    costs = [
        sum(variants.costs[n, one] for n, one in zip(numbers, chosen, strict=True))
        for chosen in product(*(range(count) for count in variants.counts))
        if sum(variants.bytes[n, one] for n, one in zip(numbers, chosen, strict=True)) <= memory
    ]
    least = min(costs, default=inf)
    found = cheapest_variants(variants, memory)
    assert (found is None) == (least == inf)
    if found is not None:
        assert sum(variants.costs[n, one] for n, one in zip(numbers, found, strict=True)) == least
        assert sum(variants.bytes[n, one] for n, one in zip(numbers, found, strict=True)) <= memory
        assert fits_within(variants, least, memory) == YES
        assert fits_within(variants, least - 0.5, memory) == NO
    assert fits_within(variants, 1e9, memory) == (NO if found is None else YES)


def test_too_many_choices_still_give_one_that_fits() -> None:
    """Of 2^16 choices of which none beats another some are left out: one that fits remains, no cheaper than the relaxation."""
    rng = np.random.default_rng(0)
    saved = rng.random(16)
    variants = Variants(
        np.stack([np.zeros(16), saved * rng.uniform(0.99, 1.01, 16)], axis=1),
        np.stack([saved, np.zeros(16)], axis=1),
        np.full(16, 2),
    )
    found = cheapest_variants(variants, 3.3)
    assert found is not None
    assert sum(variants.bytes[n, one] for n, one in enumerate(found)) <= 3.3
    assert 0.98 * (saved.sum() - 3.3) <= sum(variants.costs[n, one] for n, one in enumerate(found)) < saved.sum()


def test_whether_a_choice_fits_at_any_limit() -> None:
    """Small knapsacks by hundreds: below the least cost NO, from it on YES, whatever the order in which variants stand."""
    rng = np.random.default_rng(12)
    for _ in range(400):
        variants = drawn(rng, 3, 3)
        numbers = range(len(variants.counts))
        every = [
            tuple(sum(table[n, one] for n, one in zip(numbers, chosen, strict=True)) for table in variants[:2])
            for chosen in product(*(range(count) for count in variants.counts))
        ]
        memory = float(rng.integers(0, 30))
        least = min((cost for cost, size in every if size <= memory), default=inf)
        for limit in range(0, 36, 3):
            assert fits_within(variants, float(limit), memory) == (YES if least <= limit else NO)


def test_an_open_question_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2^10 choices at most eight are kept: what is said of a limit is true of all of them, or nothing is said."""
    monkeypatch.setattr(cheapest, "MOST_CHOICES", 8)
    monkeypatch.setattr(cheapest, "_choices", cheapest._choices.py_func)
    rng = np.random.default_rng(3)
    saved = rng.random(10)
    costs = saved * rng.uniform(0.9, 1.1, 10)
    tables = np.stack([np.zeros(10), costs], axis=1), np.stack([saved, np.zeros(10)], axis=1), np.full(10, 2)
    taken = (np.arange(2**10)[:, None] >> np.arange(10)) & 1
    least = (taken @ costs)[(1 - taken) @ saved <= 2.2].min()
    limits = [float(one) for one in least * np.linspace(0.97, 1.03, 61)]
    said = [fits_within.py_func(Variants(*tables), limit, 2.2) for limit in limits]
    assert all(one in (UNKNOWN, YES if limit >= least else NO) for one, limit in zip(said, limits, strict=True))
    assert UNKNOWN in said


def brute_force(problem: VariantProblem) -> float:
    """Seconds per sample of the best of all plans."""
    layers = range(len(problem.layers))
    best = inf
    for places in product(layers, repeat=len(layers)):
        stages = sorted(set(places))
        if stages != list(range(len(stages))) or any(places[a] > places[b] for a, b in problem.edges):
            continue
        parts = [tuple(layer for layer in layers if places[layer] == place) for place in stages]
        shapes = list(product(problem.degrees, problem.widths))
        for chosen in product(shapes, repeat=len(parts)):
            behind, slowest = sum(replicas for _, replicas in chosen), 0.0
            used = sum(degree * replicas for degree, replicas in chosen)
            if used > problem.devices or behind > problem.microbatches:
                continue
            for part, (degree, replicas) in zip(parts, chosen, strict=True):
                slowest = max(slowest, least_stage(problem, part, degree, replicas, -(-behind // replicas)))
                behind -= replicas
            best = min(best, slowest)
    return best


def least_stage(problem: VariantProblem, part: tuple[int, ...], degree: int, replicas: int, flights: int) -> float:
    """Seconds per sample of a stage with the best variants that fit, infinite if none do."""
    least = inf
    for variants in product(*(problem.layers[layer].get(degree, ()) for layer in part)):
        if sum(one.flight_bytes * flights + one.held_bytes for one in variants) <= problem.memory_bytes:
            names = {layer: one.name for layer, one in zip(part, variants, strict=True)}
            least = min(least, stage_seconds_per_sample(problem, VariantStage(part, degree, replicas, names)))
    return least


def network(seed: int) -> VariantProblem:
    """Three layers in any order with up to three variants at degrees 1 and 2, of weights and edges of their own."""
    rng = np.random.default_rng(seed)
    number = rng.permutation(3)
    pairs = [(0, 1), (1, 2), (0, 2)] if seed % 2 else [(0, 1), (0, 2)]
    edges = {(int(number[a]), int(number[b])): float(rng.integers(0, 4)) for a, b in pairs}

    def variants(layer: int, degree: int) -> tuple[LayerVariant, ...]:
        return tuple(
            LayerVariant(
                str(one),
                float(rng.integers(2, 30)) / degree,
                float(rng.integers(0, 5)),
                float(rng.integers(1, 6)),
                float(rng.integers(0, 4)),
                {a: float(rng.integers(0, 3)) for a, b in edges if b == layer},
                {b: float(rng.integers(0, 3)) for a, b in edges if a == layer},
            )
            for one in range(int(rng.integers(1, 4)))
        )

    layers = tuple({degree: variants(layer, degree) for degree in ((1, 2) if layer else (1,))} for layer in range(3))
    return VariantProblem(layers, edges, int(rng.integers(2, 6)), float(rng.integers(8, 25)), 2.0, 4)


@pytest.mark.parametrize("seed", range(10))
def test_a_pipeline_is_the_best_of_all(seed: int) -> None:
    """Networks that branch, tight and roomy memory: as fast as the best of all plans, proven, and judged by the cost model."""
    problem = network(seed)
    expected = brute_force(problem)
    plan = fastest_variant_plan(problem)
    assert (inf if plan is None else plan.seconds_per_sample) == pytest.approx(expected)
    if plan is not None:
        assert plan_seconds_per_sample(problem, plan.stages) == plan.seconds_per_sample
        assert plan.proven
        assert not plan.lost


def test_a_network_without_work_takes_no_time() -> None:
    """Layers of no seconds on one device: nothing is sent, nothing is reduced."""
    idle = LayerVariant("idle", 0.0, 1.0, 1.0, 1.0)
    plan = fastest_variant_plan(VariantProblem(({1: (idle,)}, {1: (idle,)}), {(0, 1): 1.0}, 1, 9.0, 1.0, 1))
    assert plan is not None
    assert (plan.seconds_per_sample, plan.proven) == (0.0, True)
    above = replace(plan, seconds_per_sample=1.0)
    assert (above.gap, above.proven) == (inf, False)


def test_whole_numbers_are_taken_as_seconds() -> None:
    """A network in whole numbers has the tables of the same one in others: no kernel is compiled for it again."""
    layers = ({1: (replace(PLAIN, seconds=8),)}, {1: (replace(PLAIN, seconds=4),)})
    figures = _figures(replace(HAND, layers=layers), np.tri(3, 2, -1, dtype=bool))
    assert figures.work.dtype == np.float64
    assert figures.work.tolist() == [0.0, 8.0, 12.0]


def test_a_stage_at_a_degree_that_one_of_its_layers_lacks_is_none() -> None:
    """Whichever of its layers that is."""
    both, two = {1: (PLAIN,), 2: (PLAIN,)}, {2: (PLAIN,)}
    for layers in ((two, both), (both, two)):
        figures = _figures(replace(HAND, layers=layers), np.tri(3, 2, -1, dtype=bool))
        assert [len(_stage(figures, row, 2, 0).layers) for row in (0, 1)] == [0, 2]


def test_too_many_down_sets_are_not_called_proven() -> None:
    """Of a wide network a part of the cuts is searched: the bound is that of work shared out evenly."""
    layers = tuple({1: (replace(PLAIN, seconds=float(seconds)),)} for seconds in (1, 3, 5, 4, 2, 6, 1, 4, 1))
    edges = {(0, n): 1.0 for n in range(1, 8)} | {(n, 8): 1.0 for n in range(1, 8)}
    problem = VariantProblem(layers, edges, 3, 1e9, 1.0, 1)
    exact, part = fastest_variant_plan(problem), fastest_variant_plan(problem, set_limit=20)
    assert exact is not None
    assert part is not None
    assert exact.proven
    assert not part.proven
    assert part.lower_bound == 9.0 <= exact.seconds_per_sample <= part.seconds_per_sample
    assert "other cuts were not tried" in part.lost
