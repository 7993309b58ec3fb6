"""Label kernels, each against what it says in plain Python: in plain Python too, for which few and small labels are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from planners.mixed import label_kernels, label_search
from planners.mixed.label_kernels import (
    BOUND,
    LAST,
    NEED,
    OWN,
    ROUNDING,
    SLOWEST,
    SYNCHRONIZATION,
    TOTAL,
    UPDATE,
    Asked,
    LeastAhead,
    SetTables,
)

LAYERS, DEPTH = 3, 2


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that call each other do so uncompiled."""
    for name in ("_no_slower", "both_reduced"):
        monkeypatch.setattr(label_kernels, name, getattr(label_kernels, name).py_func)


def stages_of(end: int, behind: int, variants: int) -> Iterator[list[tuple[int, int, int, int]]]:
    """Every row of stages over the first `end` layers: of each its variant, first layer, end, and stages behind it."""
    if end == 0:
        yield []
    for begin, one in product(range(end), range(variants)):
        for rest in stages_of(begin, min(behind + 1, DEPTH), variants):
            yield [(one, begin, end, behind), *rest]


@pytest.mark.parametrize("seed", range(3))
def test_least_figures_in_front_of_a_cut_are_those_of_all_stages(seed: int) -> None:
    """Of every row of stages whose micro-batches in flight fit: least needs with none slower than a level, and least sums."""
    rng = np.random.default_rng(seed)
    variants, prices = 2, 2
    seconds = rng.integers(1, 6, (variants, LAYERS + 1, LAYERS + 1)).astype(float)
    deepest = rng.integers(1, 6, seconds.shape)
    need = rng.integers(1, 9, (variants, prices)).astype(float)
    in_flight, levels = np.array([0, 1, 2, 4]), np.array([2.0, 3.0, 4.0])
    price, worth = np.array([0, 1, 1]), np.array([0.0, 0.5, 2.0])
    needs = label_kernels.least_needs.py_func(seconds, deepest, need, levels, in_flight)
    sums = label_kernels.least_sums.py_func(seconds, deepest, need, price, worth, in_flight)
    for behind, end in product(range(DEPTH + 1), range(LAYERS + 1)):
        rows = [
            row
            for row in stages_of(end, behind, variants)
            if all(deepest[one, first, last] >= in_flight[later + 1] for one, first, last, later in row)
        ]
        for level, most in enumerate(levels):
            quick = [row for row in rows if all(seconds[one, first, last] <= most for one, first, last, _ in row)]
            least = np.min(
                [need[[one for one, *_ in row]].sum(axis=0) for row in quick] or [np.full(2, np.inf)], axis=0
            )
            assert needs[level, :, behind, end].tolist() == least.tolist()
        for number, (of, each) in enumerate(zip(price, worth, strict=True)):
            totals = [sum(seconds[one[:3]] + each * need[one[0], of] for one in row) for row in rows]
            assert sums[number, behind, end] == min(totals, default=np.inf)


def label_of(rng: np.random.Generator, prices: int = 2) -> Any:
    """A label of small whole numbers."""
    return rng.integers(0, 4, NEED + prices).astype(float)


def asked_of(rng: np.random.Generator) -> Asked:
    """Small numbers of everything."""
    weights = rng.integers(1, 4, DEPTH + 2).astype(float)
    return Asked(rng.integers(2, 9, 2).astype(float), 3.0, np.arange(DEPTH + 2), 1.0, weights, 5.0, 0.5, 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_least_seconds_are_at_the_first_level_whose_needs_fit(seed: int) -> None:
    """Rounds of the slowest stage, which is above every level that needs too much, and all that comes beside it once."""
    rng = np.random.default_rng(seed)
    for _ in range(60):
        asked, label, behind = asked_of(rng), label_of(rng), int(rng.integers(1, 5))
        needs = -np.sort(-rng.integers(0, 8, (3, 2, DEPTH + 1, LAYERS + 1)), axis=0).astype(float)
        sums = rng.integers(0, 12, (2, DEPTH + 1, LAYERS + 1)).astype(float)
        levels = np.array([1.0, 2.0, 4.0])
        ahead = LeastAhead(levels, needs, sums, np.array([0, 1]), np.array([0.0, 1.5]))
        beside = label[TOTAL] + label[SYNCHRONIZATION] + label[UPDATE]
        slowest, depth = max(label[SLOWEST], label[OWN]), min(behind, DEPTH)
        for layers, limit in product(range(LAYERS + 1), (12.0, 20.0, np.inf)):
            own, room = label[NEED:], asked.capacity * (1.0 + ROUNDING)
            if layers == 0:
                expected = 3.0 * slowest + beside if (own <= room).all() else np.inf
            else:
                fits = [bool((own + level[:, depth, layers] <= room).all()) for level in needs]
                above = max(slowest, levels[fits.index(True) - 1] if True in fits[1:] and not fits[0] else 0.0)
                worths = zip(ahead.worth, ahead.price, sums[:, depth, layers], strict=True)
                rest = max(0.0, *(total - each * (asked.capacity[of] - own[of]) for each, of, total in worths))
                expected = 3.0 * above + beside + rest if any(fits) else np.inf
                expected = expected if expected < limit else np.inf
            found = label_kernels.least_seconds.py_func(label, behind, layers, ahead, asked, limit)
            assert found == pytest.approx(expected)


SHARED = np.array([[0.0, 1.0, 4.0, np.inf], [3.0, 2.0, 2.0, 2.0]])
"""Seconds of two first stages with four last ones, of which a label has one."""

APART = label_search._apart(SHARED)


def no_slower(one: Any, two: Any, rounds: float) -> bool:
    """Whether, whatever comes in front, the first takes no more seconds, and needs no more."""
    fronts = product(*[(0.0, 9.0)] * 4, (0, 1))

    def whole(label: Any, slowest: float, own: float, reduced: float, update: float, first: int) -> float:
        rest = max(label[SYNCHRONIZATION], reduced + SHARED[first, int(label[LAST])]) + max(label[UPDATE], update)
        return float(rounds * max(label[SLOWEST], label[OWN] + own, slowest) + label[TOTAL] + rest)

    waits = all(whole(one, *front) <= whole(two, *front) for front in fronts)
    return waits and bool((one[NEED:] <= two[NEED:]).all())


@pytest.mark.parametrize("seed", range(3))
def test_labels_are_left_out_for_those_that_are_no_slower(seed: int) -> None:
    """What is left out is slower or needs more, whatever comes in front; a label that is better in all is never kept out."""
    rng = np.random.default_rng(seed)
    below = 0
    for _ in range(600):
        one, two = label_of(rng), label_of(rng)
        rounds = float(rng.integers(0, 3))
        found = label_kernels._no_slower(one, two, rounds, APART)
        assert not found or no_slower(one, two, rounds)
        later = (
            sum(max(0.0, one[of] - two[of]) for of in (SYNCHRONIZATION, UPDATE)) + APART[int(one[LAST]), int(two[LAST])]
        )
        slower = rounds * max(0.0, one[SLOWEST] - two[SLOWEST], one[OWN] - two[OWN])
        fits = bool((one[NEED:] <= two[NEED:]).all())
        assert found == (fits and one[TOTAL] + slower + later <= two[TOTAL])
        below += found
    assert below


@pytest.mark.parametrize("seed", range(3))
def test_a_place_keeps_its_best_labels(seed: int) -> None:
    """Those that no other makes needless; where they are too many, the one with the highest bound goes, and its bound is told."""
    rng = np.random.default_rng(seed)
    width, rounds = 3, 1.0
    for _ in range(30):
        labels, place, count = np.zeros((20, NEED + 2)), np.zeros(width, dtype=np.int64), 0
        kept: list[int] = []
        for number in range(20):
            labels[number] = label_of(rng)
            labels[number, BOUND] = rng.permutation(100)[0] + number / 100
            new = labels[number]
            count, slot, dropped = label_kernels._keep.py_func(labels, place, count, new, rounds, APART)
            if any(label_kernels._no_slower(labels[old], new, rounds, APART) for old in kept):
                expected = kept, np.inf
            else:
                rest = [old for old in kept if not label_kernels._no_slower(new, labels[old], rounds, APART)]
                best = sorted([*rest, number], key=lambda one: labels[one, BOUND])
                left = [labels[one, BOUND] for one in best[width:]]
                expected = best[:width], min(left, default=np.inf)
            if slot >= 0:
                place[slot] = number
            kept = sorted(place[:count].tolist())
            assert (kept, dropped) == (sorted(expected[0]), expected[1])


@pytest.mark.parametrize("seed", range(3))
def test_a_stage_in_front_of_a_label(seed: int) -> None:
    """Seconds and needs of a label with a stage more: what it sends and receives counts in both stages, at the ends by weight."""
    rng = np.random.default_rng(seed)
    sets, cuts = 2, LAYERS + 1

    def drawn(*shape: int) -> Any:
        return rng.integers(1, 9, shape).astype(float)

    tables = SetTables(
        *(drawn(sets, cuts, cuts), *rng.integers(1, 3, (2, sets, cuts, cuts)), drawn(sets, cuts, cuts)),
        *(drawn(sets, cuts, cuts), drawn(cuts, sets, sets), drawn(cuts, sets, sets), drawn(sets, 2), drawn(sets, sets)),
    )
    asked, old, new = asked_of(rng), label_of(rng), np.zeros(NEED + 2)
    for stages, variants, own, (begin, end) in product((0, 1, 2), (0, 1), (0, 1), ((0, 1), (1, 3), (0, 3))):
        old[LAST] = rng.integers(2)
        label_kernels._in_front.py_func(old, (stages, end, variants), (begin, own), tables, asked, new)
        back = tables.backward[end, own, variants] * (5.0 if stages == 1 else 1.0)
        forth = tables.forward[end, own, variants] * (asked.first_weight[stages + 1] if begin == 0 else 1.0)
        seconds = tables.seconds[own, begin, end]
        expected = np.zeros(NEED + 2)
        expected[SLOWEST] = max(old[SLOWEST], old[OWN] + 0.5 * back)
        expected[TOTAL] = old[TOTAL] + seconds + back + forth
        expected[OWN] = seconds + 0.5 * forth
        expected[LAST] = old[LAST] if stages else own
        reduced = tables.synchronization[own, begin, end]
        if stages and begin == 0:  # the first of several, which shares weights with the last one
            pair = reduced, tables.shared[own, int(old[LAST])]
            reduced = max(pair) + 0.5 * min(pair)
        expected[SYNCHRONIZATION] = max(old[SYNCHRONIZATION], reduced)
        expected[UPDATE] = max(old[UPDATE], tables.update[own, begin, end])
        expected[NEED:] = old[NEED:] + tables.need[own]
        assert new.tolist() == expected.tolist()
