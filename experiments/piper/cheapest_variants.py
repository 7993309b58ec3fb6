"""Cheapest variants: one of each layer of a stage, so that together they fit in memory and cost least.

A multiple-choice knapsack. Going from each layer's cheapest variant to smaller ones, best ratio of cost to memory first, tells
most cases: with the last step whole it is a choice, with as much of it as is needed a bound (the relaxation to a linear program).
What lies between is settled by all choices of which none is cheaper and smaller at once, layer by layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from simulator import kernel

NO, YES, UNKNOWN = 0, 1, -1

MOST_CHOICES = 4_096
"""Choices kept side by side; where there are more, a question stays open."""

_ROUNDING = 1e-12


class Variants(NamedTuple):
    """The variants of a stage's layers: costs and bytes are float64 [layers, variants], counts int64 [layers]."""

    costs: Floats
    bytes: Floats
    counts: Integers


@kernel(error_model="numpy")
def fits_within(variants: Variants, limit: float, memory: float) -> int:
    """Whether a choice of at most `memory` bytes costs at most `limit`: YES, NO, or UNKNOWN after MOST_CHOICES."""
    costs, sizes, counts = variants
    layers, most = costs.shape
    cost, needed, least = 0.0, 0.0, 0.0
    ratios = np.empty(layers * (most - 1))
    more = np.empty(layers * (most - 1))
    less = np.empty(layers * (most - 1))
    steps = 0
    for layer in range(layers):
        chosen = 0
        for one in range(1, counts[layer]):
            if costs[layer, one] < costs[layer, chosen] or (
                costs[layer, one] == costs[layer, chosen] and sizes[layer, one] < sizes[layer, chosen]
            ):
                chosen = one
        cost += costs[layer, chosen]
        needed += sizes[layer, chosen]
        while True:  # along the lower hull of cost over bytes
            following, best = -1, np.inf
            for one in range(counts[layer]):
                saved = sizes[layer, chosen] - sizes[layer, one]
                if saved > 0:
                    ratio = (costs[layer, one] - costs[layer, chosen]) / saved
                    if ratio < best or (ratio == best and sizes[layer, one] < sizes[layer, following]):
                        following, best = one, ratio
            if following < 0:
                break
            ratios[steps] = best
            more[steps] = costs[layer, following] - costs[layer, chosen]
            less[steps] = sizes[layer, chosen] - sizes[layer, following]
            steps += 1
            chosen = following
        least += sizes[layer, chosen]
    if cost > limit or least > memory:
        return NO
    if needed <= memory:
        return YES
    bound = cost
    while needed > memory:
        step = 0
        for one in range(1, steps):
            if ratios[one] < ratios[step]:
                step = one
        bound = cost + more[step] * min(1.0, (needed - memory) / less[step])
        if bound > limit * (1.0 + _ROUNDING):
            return NO
        cost += more[step]
        needed -= less[step]
        ratios[step] = np.inf
    if cost <= limit:
        return YES
    count, thinned, _, _ = _choices(variants, limit, memory)
    return YES if count > 0 else UNKNOWN if thinned else NO


@kernel(error_model="numpy")
def _choices(variants: Variants, limit: float, memory: float) -> tuple[int, bool, Integers, Integers]:
    """Choices that can be within limit and memory and that no other one beats in both, the cheapest first.

    Returns how many there are; whether some were left out, as there were more than MOST_CHOICES side by side; and of each layer,
    int64 [layers, choices] both, which choice of the layers before it each one continues, and with which variant.
    """
    costs, sizes, counts = variants
    layers, most = costs.shape
    behind_cost, behind_bytes = np.zeros(layers + 1), np.zeros(layers + 1)
    for layer in range(layers - 1, -1, -1):
        least_cost, least_bytes = np.inf, np.inf
        for one in range(counts[layer]):
            least_cost = min(least_cost, costs[layer, one])
            least_bytes = min(least_bytes, sizes[layer, one])
        behind_cost[layer] = behind_cost[layer + 1] + least_cost
        behind_bytes[layer] = behind_bytes[layer + 1] + least_bytes
    before = np.empty((layers, MOST_CHOICES), dtype=np.int64)
    taken = np.empty((layers, MOST_CHOICES), dtype=np.int64)
    now_cost, now_bytes = np.zeros(MOST_CHOICES), np.zeros(MOST_CHOICES)
    new_cost, new_bytes = np.empty(MOST_CHOICES * most), np.empty(MOST_CHOICES * most)
    new_before = np.empty(MOST_CHOICES * most, dtype=np.int64)
    new_taken = np.empty(MOST_CHOICES * most, dtype=np.int64)
    following = np.empty(most, dtype=np.int64)
    count, thinned = 1, False
    for layer in range(layers):
        most_cost = limit * (1.0 + _ROUNDING) - behind_cost[layer + 1]
        most_bytes = memory - behind_bytes[layer + 1]
        following[:] = 0
        made = 0
        while (
            True
        ):  # what each variant adds to the choices so far is sorted as these are: the cheapest of the next of each
            cost, variant = np.inf, -1
            for one in range(counts[layer]):
                if following[one] < count and now_cost[following[one]] + costs[layer, one] < cost:
                    cost, variant = now_cost[following[one]] + costs[layer, one], one
            if variant < 0 or cost > most_cost:
                break
            choice = following[variant]
            following[variant] += 1
            size = now_bytes[choice] + sizes[layer, variant]
            if size <= most_bytes and (made == 0 or size < new_bytes[made - 1]):
                new_cost[made], new_bytes[made] = cost, size
                new_before[made], new_taken[made] = choice, variant
                made += 1
        if made == 0:
            return 0, thinned, before, taken
        every = 1
        while (made - 1) // every + 2 > MOST_CHOICES:
            every, thinned = every * 2, True
        count = 0
        for number in range(made):
            if (
                number % every == 0 or number == made - 1
            ):  # the smallest one always stays: it leads to a choice that fits
                now_cost[count], now_bytes[count] = new_cost[number], new_bytes[number]
                before[layer, count], taken[layer, count] = new_before[number], new_taken[number]
                count += 1
    return count, thinned, before, taken


def cheapest_variants(variants: Variants, memory: float) -> list[int] | None:
    """Each layer's variant in the cheapest choice of at most `memory` bytes; None if none fits.

    Of more than MOST_CHOICES side by side some are left out, and the choice may not be the cheapest.
    """
    count, _, before, taken = _choices(variants, np.inf, memory)
    if count == 0:
        return None
    chosen, choice = [], 0
    for layer in range(len(taken) - 1, -1, -1):
        chosen.append(int(taken[layer, choice]))
        choice = int(before[layer, choice])
    return chosen[::-1]
