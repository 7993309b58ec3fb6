"""What stages and cuts of a pipeline cost, and how far a stage may reach: by hand, and entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, get_args

import numpy as np
import pytest

from hardware_profiles import Phase, Runs, Stack, load_cluster
from planners.estimate.memory import furthest_ends, stage_begins
from planners.partitioning import partition_costs
from planners.partitioning.partition_costs import straight_costs
from simulator import BY_BLOCK, Layer, LayerCosts, Problem, Workload
from simulator.options.training_options import Recompute
from tests.simulator.strategies import UnitDevice, chain_cluster


def _costs(
    flop: Sequence[float],
    outputs: Sequence[float],
    *,
    rates: Sequence[float] = (1.0, 0.5),
    duplex: str = "full",
    **more: Any,
) -> LayerCosts:
    """A chain on a row of devices, 8 bytes/s and 0.25 s between neighbours; an element has 4 bytes."""
    layers = tuple(
        Layer(f"layer{n}", ("linear", "attention")[n % 2], work, 0, elements, elements, block=int(n > 0))
        for n, (work, elements) in enumerate(zip(flop, outputs, strict=True))
    )
    cluster = chain_cluster(len(rates), bandwidth=8.0, latency=0.25, duplex=duplex)
    cluster = replace(cluster, devices=tuple(UnitDevice(rate=rate, name=f"unit-{rate}") for rate in rates))
    workload = Workload("hand", layers, tuple(pairwise(range(len(layers)))))
    return LayerCosts(Problem(workload, cluster, 8, **more))


@pytest.mark.parametrize("recompute", get_args(Recompute))
@pytest.mark.parametrize("alternating", [False, True])
def test_stages_take_the_seconds_of_their_layers(alternating: bool, recompute: Recompute) -> None:
    """Layers of 1, 2 and 4 on devices of rates 1 and a half, three samples: forwards once, backwards twice, and all of them, or
    attention (the second layer), or blocks (the last two, without attention where it is kept), once more."""
    flop = [1.0, 2.0, 4.0]
    costs = _costs(flop, [1.0] * 3, rates=(1.0, 0.5, 1.0), recompute=recompute)
    found = straight_costs(costs, (1, 0, 2), 3, alternating=alternating)
    assert len(found.kind) == 3
    assert found.kind[1] == found.kind[2] != found.kind[0]
    for rate, kind in ((0.5, found.kind[0]), (1.0, found.kind[1])):
        for begin, end in product(range(4), range(4)):
            once = sum(flop[begin:end]) * 3 / rate
            blocks = dict.fromkeys(BY_BLOCK, (1, 2))  # without products of weights
            kept = {"every-second-product": (2,)}
            chosen = {"none": (), "attention": (1,), **(blocks | kept), "whole": (0, 1, 2)}[recompute]
            again = sum(flop[layer] for layer in chosen if begin <= layer < end) * 3 / rate
            passes = [once, 2.0 * once + again]
            assert found.stage_seconds[:, kind, begin, end].tolist() == ([sum(passes)] if alternating else passes)


@pytest.mark.parametrize(
    ("contention", "alternating", "duplex", "busy", "beyond"),
    [
        (False, False, "full", [0.0, 0.0], 2.0),
        (False, True, "full", [0.0], 2.0),
        (True, False, "full", [1.0, 1.0], 0.0),
        (True, True, "full", [1.0], 1.0),
        (True, False, "half", [1.0, 1.0], 0.0),
        (True, True, "half", [2.0], 0.0),
    ],
)
def test_links_are_busy_for_their_bytes_where_they_contend(
    contention: bool, alternating: bool, duplex: str, busy: list[float], beyond: float
) -> None:
    """A cut of n elements, three samples: 1.5 n s each way. In turns both ways share a link of one medium, else run at once.

    What does not keep the link busy delays, with the latencies of both ways.
    """
    outputs = [2.0, 5.0, 3.0, 1.0]
    found = straight_costs(
        _costs([1.0] * 4, outputs, rates=(1.0,) * 3, duplex=duplex, contention=contention),
        (0, 1, 2),
        3,
        alternating=alternating,
    )
    for link, cut in product(range(2), range(1, 4)):
        seconds = outputs[cut - 1] * 4 * 3 / 8.0
        assert found.link_seconds[:, link, cut].tolist() == pytest.approx([seconds * part for part in busy])
        assert found.latency_seconds[link, cut] == pytest.approx(2 * 0.25 + seconds * beyond)


def test_deep_networks_are_cut_where_the_work_is_even(monkeypatch: pytest.MonkeyPatch) -> None:
    """With four places: of three layers every cut, of six like ones every second, of unlike ones behind the work's thirds."""
    monkeypatch.setattr(partition_costs, "MOST_PLACES", 4)
    for flop, places in (
        ([1.0] * 3, [0, 1, 2, 3]),
        ([1.0] * 6, [0, 2, 4, 6]),
        ([4.0, 1.0, 1.0, 1.0, 1.0, 1.0], [0, 1, 3, 6]),
        ([9.0, 0.0, 0.0, 0.0], [0, 1, 4]),
    ):
        assert partition_costs._places(_costs(flop, [1.0] * len(flop))) == places


def test_ranges_of_layers_on_a_board_are_divided_one_by_one() -> None:
    """The board's own seconds of every range of layers, and of those of each that run again."""
    layers = tuple(Layer(f"layer{n}", "linear", 1e9 * (n + 1), 10**5, 1e4, 1e4) for n in range(4))
    layers = tuple(replace(layer, block=number // 3) for number, layer in enumerate(layers))  # the last one is a block
    problem = Problem(Workload("hand", layers, tuple(pairwise(range(4)))), load_cluster("fpga-mixed-4"), 8)
    costs = LayerCosts(replace(problem, recompute="blocks"))
    phases: tuple[Phase, ...] = ("forward", "backward")
    for device, phase, again in product((0, 3), phases, (False, True)):
        found = partition_costs._ranges(costs, device, 2, phase, again)
        for begin, end in product(range(5), range(5)):
            held = np.arange(max(begin, 3) if again else begin, end)
            expected = np.inf if end < begin else 0.0
            if len(held):
                expected = costs.stage_seconds(device, held, 2, phase)
            assert found[begin, end] == expected


@pytest.mark.parametrize("recompute", [one for one in get_args(Recompute) if one != "every-second-product"])
@pytest.mark.parametrize("seed", range(6))
def test_a_stage_reaches_as_far_as_its_memory(seed: int, recompute: Recompute) -> None:
    """Weights, gradients and states, the copy of a weight whose owner stands before the stage, and what samples leave behind.

    One that recomputes keeps its input of every sample in flight, and makes the rest of one micro-batch again. Attention makes
    again what it stashes beyond its input, a layer at a time; so do blocks, here of two layers from the second on, whose inputs
    are kept but for a block that begins in the stage before.
    """
    rng = np.random.default_rng(seed)
    count, samples = 6, int(rng.integers(1, 4))
    layers = [
        Layer(
            f"layer{n}",
            ("linear", "attention")[n % 2],
            1.0,
            int(rng.integers(5, 30)),
            float(rng.integers(1, 9)),
            float(rng.integers(1, 9)),
            block=(0, 1, 1, 2, 2, 0)[n],
        )
        for n in range(count)
    ]
    owners = {int(rng.integers(2, 4)): 0, int(rng.integers(4, 6)): 0} if seed % 3 else {5: 2, 4: 1}
    sizes = {0: 4, 1: 3, 2: 5}
    for user, owner in owners.items():
        layers[user] = replace(layers[user], tied_to=f"layer{owner}", tied_parameters=sizes[owner])
    memory = tuple(float(rng.integers(200, 900)) for _ in range(3))
    cluster = replace(chain_cluster(3), devices=tuple(UnitDevice(one) for one in memory))
    workload = Workload("hand", tuple(layers), tuple(pairwise(range(count))))
    problem = Problem(workload, cluster, 8, recompute=recompute)
    costs, held, spare = LayerCosts(problem), (6, 4, 2), (0.0, 50.0, 25.0)
    for free in ((), spare):
        found = furthest_ends(costs, (0, 1, 2), samples, held, free)
        for stage, begin, end in product(range(3), range(count), range(1, count + 1)):
            if end <= begin:
                continue
            own = layers[begin:end]
            weights = sum(one.parameters for one in own)
            weights += sum(
                sizes[owner]
                for owner in set(owners.values())
                if owner < begin and any(owners.get(user) == owner for user in range(begin, end))
            )
            stash = float(costs.stashed_bytes[begin:end].sum())
            kept = held[stage] * stash
            if recompute == "attention":
                made = [
                    4.0 * max(0.0, layers[n].stashed_elements - layers[n - 1].output_elements)
                    for n in range(begin, end)
                    if n % 2
                ]
                kept += samples * max(made, default=0.0) - held[stage] * sum(made)
            elif recompute in BY_BLOCK:  # no product of a block is read in it
                parts = [range(max(first, begin), min(first + 2, end)) for first in (1, 3)]
                made = [float(costs.stashed_bytes[list(part)].sum()) for part in parts]
                inputs = sum(4.0 * layers[part[0] - 1].output_elements for part in parts if part)
                kept += samples * max(made) - held[stage] * (sum(made) - inputs)
            elif recompute == "whole":
                kept = samples * stash + held[stage] * float(costs.cut_bytes[begin])
            need = weights * problem.state_bytes + kept + (free[stage] if free else 0.0)
            assert (end <= found[stage, begin]) == (need <= memory[stage])


def test_stages_begin_outside_of_blocks_where_the_stack_cuts_none() -> None:
    """Of five layers with blocks of two and of three behind a first: before layers 0, 1, 3; others are as they were."""
    blocks = [Layer(f"layer{n}", "linear", 1.0, 0, 1, 1, block=block) for n, block in enumerate((0, 1, 1, 2, 2, 2))]
    workload = Workload("hand", tuple(blocks), tuple(pairwise(range(6))))
    cluster = chain_cluster(2, bandwidth=8.0, latency=0.25, duplex="full")
    cluster = replace(cluster, devices=(UnitDevice(rate=1.0, name="unit"),) * 2)
    anywhere = Problem(workload, cluster, 8)
    between = replace(anywhere, stack=Stack(name="between", runs=Runs(cut_blocks=False)))
    assert stage_begins(anywhere).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert stage_begins(between).tolist() == [0, 1, 3, 6]
    for in_flight in (None, (3, 3)):
        free, kept = (
            straight_costs(LayerCosts(one), (0, 1), 3, alternating=True, in_flight=in_flight)
            for one in (anywhere, between)
        )
        for cut in range(1, 6):
            assert kept.seconds((cut,), 4) == (free.seconds((cut,), 4) if cut in (1, 3) else np.inf)
