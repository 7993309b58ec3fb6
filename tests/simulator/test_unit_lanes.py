"""Lanes on which replicas gather weights and scatter gradients, where ZeRO divides them: closed forms by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hardware_profiles import GENERIC, Stack
from simulator import Layer, OpKind, Outcome, Plan, PlanCosts, Problem, Stage, Workload, simulate
from simulator.results.gantt_plots import gantt_rows
from simulator.results.traces import TRACKS, chrome_trace
from tests.simulator.strategies import star_cluster

F, B, S, G = OpKind.FORWARD, OpKind.BACKWARD, OpKind.SCATTER, OpKind.GATHER

PARAMETERS = 2**23
"""Of a layer: at 2^25 bytes/s two replicas gather or scatter its 2^25 bytes in half a second."""


def network(layers: int, output: float = 0.0) -> Workload:
    """Layers of 1 s per sample forward and 2 s backward."""
    every = tuple(Layer(f"layer{one}", "linear", 1.0, PARAMETERS, output, 0.0) for one in range(layers))
    return Workload("chain", every, tuple((one, one + 1) for one in range(layers - 1)))


def times(outcome: Outcome, kind: OpKind, stage: int) -> list[tuple[float, float]]:
    """When the tasks of a kind of a stage begin and end, of the first replica, or of all together."""
    line = outcome.timeline
    rows = np.flatnonzero((line.kind == kind) & (line.stage == stage) & (line.replica == 0))
    return sorted(zip(line.start[rows].tolist(), line.end[rows].tolist(), strict=True))


def one_stage(bandwidth: float, zero: Any) -> Outcome:
    """Three layers on two replicas, 2 samples each: 2 s forward and 4 s backward a layer."""
    plan = Plan("hand", "gpipe", (Stage((0, 1, 2), (0, 1)),), (4,), zero=zero)
    return simulate(Problem(network(3), star_cluster(2, bandwidth=bandwidth), 4), plan)


def test_units_are_gathered_and_scattered_beside_the_computation() -> None:
    """0.5 s each: all but the first gather and the last scatter are hidden. Unit 2 comes when unit 0 is let go, stays for the
    backward, and unit 0 comes again behind the scatter of unit 2.
    """
    outcome = one_stage(2.0**25, 3)
    assert times(outcome, F, 0) == [(0.5, 2.5), (2.5, 4.5), (4.5, 6.5)]
    assert times(outcome, B, 0) == [(6.5, 10.5), (10.5, 14.5), (14.5, 18.5)]
    assert times(outcome, G, 0) == [(0.0, 0.5), (0.5, 1.0), (2.5, 3.0), (4.5, 5.0), (11.0, 11.5)]
    assert times(outcome, S, 0) == [(10.5, 11.0), (14.5, 15.0), (18.5, 19.0)]
    assert outcome.iteration_seconds == 0.5 + 6.0 + 12.0 + 0.5


def test_computation_waits_for_units_on_slow_links() -> None:
    """8 s each, one after the other: units wait for their gathers, which wait for scatters before them."""
    outcome = one_stage(2.0**21, 3)
    assert times(outcome, F, 0) == [(8.0, 10.0), (16.0, 18.0), (24.0, 26.0)]
    assert times(outcome, G, 0) == [(0.0, 8.0), (8.0, 16.0), (16.0, 24.0), (24.0, 32.0), (40.0, 48.0)]
    assert times(outcome, B, 0) == [(26.0, 30.0), (32.0, 36.0), (48.0, 52.0)]
    assert times(outcome, S, 0) == [(32.0, 40.0), (48.0, 56.0), (56.0, 64.0)]


def test_gradients_of_two_units_are_whole_at_most() -> None:
    """ZeRO 2, 8 s a scatter: the third backward waits for the first scatter; a gather of all weights follows the update."""
    outcome = one_stage(2.0**21, 2)
    assert times(outcome, B, 0) == [(6.0, 10.0), (10.0, 14.0), (18.0, 22.0)]
    assert times(outcome, S, 0) == [(10.0, 18.0), (18.0, 26.0), (26.0, 34.0)]
    assert times(outcome, G, 0) == [(34.0, 58.0)]


@pytest.mark.parametrize(("zero", "seconds", "queued"), [(1, 13.0, 13.0), (2, 13.0, 14.0), (3, 13.0, 14.0)])
def test_two_stages_of_two_replicas(zero: Any, seconds: float, queued: float) -> None:
    """A layer each, 2 micro-batches of a sample a replica, 1F1B: 9 s; a gather or a scatter 2 s.

    ZeRO 1 and 2 end in a scatter and a gather, ZeRO 3 begins with a gather (a device has one unit, which stays) and ends in a
    scatter; that of the first micro-batch, from 6 s on at stage 0, is beside the second. First come, first served, the second
    gradient of stage 1, there after 7 s, waits a second for the card on which it runs; on fair links it does not.
    """
    stages = Stage((0,), (0, 1)), Stage((1,), (2, 3))
    problem = Problem(network(2), star_cluster(4, bandwidth=2.0**23), 4)
    plan = Plan("hand", "1f1b", stages, (2, 2), zero=zero)
    assert simulate(replace(problem, sharing="fifo"), plan).iteration_seconds == queued
    assert simulate(problem, plan).iteration_seconds == seconds
    outcome = simulate(replace(problem, contention=False), plan)
    assert outcome.iteration_seconds == seconds
    late = 2.0 * (zero == 3)
    assert times(outcome, B, 0) == [(4.0 + late, 6.0 + late), (7.0 + late, 9.0 + late)]
    scatters = [(6.0 + late, 8.0 + late), (9.0 + late, 11.0 + late)]
    assert times(outcome, S, 0) == scatters[zero == 1 :]
    assert times(outcome, G, 0) == ([(0.0, 2.0)] if zero == 3 else [(11.0, 13.0)])


@pytest.mark.parametrize(("zero", "passes"), [(0, 2.0), (1, 1.0 + 0.5), (2, 2.0 + 0.5), (3, 2.0 + 4 * 0.5)])
def test_bytes_of_scatters_and_gathers_are_counted(zero: Any, passes: float) -> None:
    """Two replicas, 2 micro-batches, gradients of 4 bytes, weights of 2: an all-reduce sends all gradients twice, a scatter once,
    a gather half of that; ZeRO 1 has one of each, 2 a scatter a micro-batch, 3 a gather a pass, too.
    """
    problem = Problem(network(1), star_cluster(2, bandwidth=1.0), 4, precision="fp16", gradient_bytes=4)
    outcome = simulate(problem, Plan("hand", "gpipe", (Stage((0,), (0, 1)),), (2, 2), zero=zero))
    assert outcome.bytes_per_sample == passes * 4 * PARAMETERS / 4


def test_interleaved_stages_of_a_device_share_a_lane() -> None:
    """Two stages per device: at most two units of both are whole; the chart has one row for their collectives."""
    stages = tuple(Stage((one,), (2 * (one % 2), 2 * (one % 2) + 1)) for one in range(4))
    problem = Problem(network(4), star_cluster(4, bandwidth=2.0**25), 4)
    plan = Plan("hand", "interleaved-1f1b", stages, (2, 2), zero=3)
    outcome = simulate(problem, plan)
    labels = [row.label for row in gantt_rows(outcome.timeline) if row.thin]
    assert labels == ["stages 0, 2 scatter and gather", "stages 1, 3 scatter and gather"]
    events = chrome_trace(outcome.timeline)["traceEvents"]
    ours = {event["cat"]: (event["pid"], event["tid"]) for event in events if event["ph"] == "X" and event["pid"] == 0}
    assert ours["reduce-scatter"] == ours["all-gather"] == (0, TRACKS["collective"])
    costs, size = PlanCosts(problem, plan), (4 + 4) * PARAMETERS
    assert [costs.unit_buffers(stage, 0) for stage in range(4)] == [2 * size, 2 * size, 0.0, 0.0]
    assert {one.bytes[0][-1] for one in outcome.memory} == {2 * size}


@pytest.mark.parametrize("zero", [2, 3])
def test_overlapped_pairs_are_not_cut_and_units_come_and_go_around_them(zero: Any) -> None:
    """Of stages of two units: a pair takes 2 + 4 s as a whole, behind gathers of both units of its stages, before the scatters of
    both of its backward."""
    places = [(one, one + 1) for one in (0, 2, 2, 0)]
    stages = tuple(Stage((2 * one, 2 * one + 1), place) for one, place in enumerate(places))
    problem = Problem(network(8), star_cluster(4, bandwidth=2.0**25), 12)
    outcome = simulate(problem, Plan("hand", "dualpipev", stages, (2,) * 6, zero=zero))
    line, of = outcome.timeline, list(zip(outcome.timeline.stage, outcome.timeline.microbatch, strict=True))
    (second,) = np.nonzero(line.second_of_pair() & (line.replica == 0))
    assert len(second)
    for row in (*second, *line.together[second]):  # type: ignore[index]
        begin, end = line.start[row], line.end[row]
        assert end - begin == 2.0 + 4.0
        assert zero == 2 or sum(come <= begin for _, come in times(outcome, G, int(line.stage[row]))) >= 2
        if line.kind[row] == F:
            continue
        scatters = np.flatnonzero((line.kind == S) & (line.device == line.device[row]))
        assert sum(of[one] == of[row] and line.start[one] >= end for one in scatters) == 2
        # it makes the gradients of two units, and no more are whole: all before it have been scattered
        whole = (
            np.isin(line.kind, (B, OpKind.WEIGHT_GRADIENT)) & (line.device == line.device[row]) & (line.end <= begin)
        )
        before = {of[one] for one in np.flatnonzero(whole)}
        assert all(line.end[one] <= begin for one in scatters if of[one] in before)


def test_blocks_are_units() -> None:
    """Layers of a block stand in one unit, however large; small ones outside join the unit before them."""
    sizes, blocks = (9, 9, 9, 9, 9, 1, 1), (0, 1, 1, 2, 2, 0, 0)
    layers = tuple(
        Layer(f"layer{one}", "linear", 1.0, 10**6 * size, 0.0, 0.0, block=block)
        for one, (size, block) in enumerate(zip(sizes, blocks, strict=True))
    )
    workload = Workload("blocks", layers, tuple((one, one + 1) for one in range(6)))
    problem = Problem(workload, star_cluster(2, bandwidth=1.0), 2)
    costs = PlanCosts(problem, Plan("hand", "gpipe", (Stage(tuple(range(7)), (0, 1)),), (2,), zero=2))
    assert costs.unit_layers == (((0,), (1, 2), (3, 4, 5, 6)),)
    assert [one.gather for one in costs.collectives(0).units] == [None] * 3
    assert [one.backward for one in costs.collectives(0).units] == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    plan, product = replace(costs.plan, zero=3), Stack(name="any", gathered="products")
    whole = [
        PlanCosts(replace(problem, precision="bf16", stack=one), plan).unit_buffers(0, 0) for one in (GENERIC, product)
    ]
    assert whole == [2 * 2 * 10**6 * (27 + 20), 2 * 2 * 10**6 * (9 + 9)]  # weights and gradients, of units or of layers


@pytest.mark.parametrize(
    ("precision", "narrow_copy", "gradient", "held"),
    [
        ("bf16", True, 4, 18),
        ("bf16", False, 4, 16),
        ("bf16", False, 2, 16),
        ("bf16", True, 2, 16),
        ("fp32", False, 4, 16),
    ],
)
def test_without_a_narrow_copy_weights_are_there_once(
    precision: Any, narrow_copy: bool, gradient: Any, held: int
) -> None:
    """Bytes per weight with Adam: 2 of 16 bits beside 4 of the master weight, or 4 in all, as which gradients are wide then,
    however wide they are reduced.
    """
    stack, links = Stack(name="any", narrow_copy=narrow_copy), star_cluster(1, bandwidth=1.0)
    options = {"precision": precision, "optimizer": "adam", "gradient_bytes": gradient}
    problem = Problem(network(1), links, 1, stack, **options)  # type: ignore[arg-type]
    outcome = simulate(problem, Plan("hand", "gpipe", (Stage((0,), (0,)),), (1,)))
    parts = outcome.fullest.peak_parts
    assert problem.state_bytes == held == (parts["weights"] + parts["gradients"] + parts["optimizer"]) / PARAMETERS
    assert problem.accumulated_bytes == gradient
    # replicas that have them whole in 16 bits divide fp32 ones beside them
    whole = 4 + 4 + 8 / 4 if precision == "fp32" else 2 + (gradient if narrow_copy else 4) + 12 / 4
    assert problem.divided_state_bytes(1, 4) == whole
    stages = (Stage((0,), (0, 1, 2, 3)),)
    four = Problem(network(1), star_cluster(4, bandwidth=1.0), 4, stack, **options)  # type: ignore[arg-type]
    parts = simulate(four, Plan("hand", "gpipe", stages, (4,), zero=1)).fullest.peak_parts
    divided = (parts["weights"] + parts["gradients"] + parts["optimizer"]) / PARAMETERS
    assert divided == whole


@pytest.mark.parametrize(("zero", "copies"), [(1, 0), (2, 1), (3, 2)])
def test_whole_units_are_as_wide_as_elements(zero: Any, copies: int) -> None:
    """Two of them, gradients and weights of 2 bytes, though shards of gradients add up in 4."""
    stages = tuple(Stage((one,), (2 * (one % 2), 2 * (one % 2) + 1)) for one in range(4))
    problem = Problem(network(4), star_cluster(4, bandwidth=1.0), 4, precision="fp16", gradient_bytes=4)
    plan = Plan("hand", "interleaved-1f1b", stages, (2, 2), zero=zero)
    assert PlanCosts(problem, plan).unit_buffers(0, 0) == 2 * copies * 2 * PARAMETERS
