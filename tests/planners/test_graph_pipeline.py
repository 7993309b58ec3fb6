"""Planner largest-load: stages that are branches, devices of several kinds, and its options."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_profiles import load_cluster
from planners import CutsLeftOut, InapplicablePlannerError, Request, make_plan
from planners.straight import graph_pipeline
from planners.testing import line
from simulator import Layer, Problem, Workload


def branching(seconds: tuple[float, ...], edges: tuple[tuple[int, int], ...], output: int = 1_000) -> Workload:
    """Measured layers without weights; forward takes a third of the seconds of a sample."""
    layers = tuple(
        Layer(
            f"layer{n}", "linear", 1.0, 1, float(output), 1.0, 1, ((1, s / 3, 2 * s / 3), (64, 64 * s / 3, 128 * s / 3))
        )
        for n, s in enumerate(seconds)
    )
    return Workload("branching", layers, edges, minibatch=1, bytes_per_element=4)


def test_a_stage_may_be_a_branch() -> None:
    """Layers 1 and 3 are a branch beside 2: two devices take 4 ms each; of cuts in layer order the best leaves one with 5."""
    seconds = (1e-3, 2e-3, 3e-3, 2e-3, 0.0)
    workload = branching(seconds, ((0, 1), (0, 2), (1, 3), (2, 4), (3, 4)))
    found = make_plan("largest-load", Problem(workload, line(), 8), Request(schedule="gpipe", microbatches=8))
    assert found.plan.schedule == "gpipe"
    assert [sum(seconds[layer] for layer in stage.layers) for stage in found.plan.stages] == pytest.approx([4e-3, 4e-3])
    assert {stage.layers[:2] for stage in found.plan.stages} == {(0, 2), (1, 3)}


def test_devices_of_several_kinds_take_what_suits_them() -> None:
    """The slow device of three gets the least work, wherever it stands in the cluster."""
    problem = Problem(branching((4.0, 1.0, 4.0), ((0, 1), (1, 2))), line(speeds=(0.25, 1.0, 1.0)), 8)
    modelled = replace(
        problem.workload,
        layers=tuple(
            replace(layer, measured=(), flop=1e9 * s)
            for layer, s in zip(problem.workload.layers, (4, 1, 4), strict=True)
        ),
        bytes_per_element=None,
    )
    found = make_plan("largest-load", replace(problem, workload=modelled), Request(microbatches=8))
    assert [(stage.layers, stage.devices[0] == 0) for stage in found.plan.stages] == [
        ((0,), False),
        ((1,), True),
        ((2,), False),
    ]


def test_load_and_host_are_options() -> None:
    """A heavy output between all layers: added to the load it keeps them together, overlapped or free it does not."""
    problem = Problem(branching((1e-3, 1e-3), ((0, 1),), output=2_000_000), line(), 8)

    def stages(**options: str) -> int:
        return len(make_plan("largest-load", problem, Request(microbatches=8, options=options)).plan.stages)

    kind = problem.cluster.devices[0].name
    assert (stages(load="sum"), stages(load="max"), stages(load="sum", host=kind)) == (1, 2, 2)
    assert stages() == stages(load="max")


def test_what_it_does_not_know_is_refused() -> None:
    """Another rule, another kind of device, a schedule with several stages per device: one line with the choices."""
    problem = Problem(branching((1.0, 1.0), ((0, 1),)), line(), 8)
    with pytest.raises(ValueError, match="load must be one of max, sum, got 'mean'"):
        make_plan("largest-load", problem, Request(options={"load": "mean"}))
    with pytest.raises(ValueError, match="host must be a kind of GPU of the cluster, got 'cpu'; choices: gpu-1"):
        make_plan("largest-load", problem, Request(options={"host": "cpu"}))
    with pytest.raises(InapplicablePlannerError, match="one stage per GPU"):
        make_plan("largest-load", problem, Request(schedule="interleaved-1f1b"))
    with pytest.raises(InapplicablePlannerError, match="links between its devices differ"):
        make_plan("largest-load", replace(problem, cluster=load_cluster("pipedream-a").take(8)))


@pytest.mark.parametrize("limit", [20, 4_000])
def test_cuts_that_were_not_tried_are_told(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Of seven branches side by side, which have 2^7 sets that a cut may leave behind, more than the limit of the search."""
    monkeypatch.setattr(graph_pipeline, "SET_LIMIT", limit)
    edges = (*((0, middle) for middle in range(1, 8)), *((middle, 8) for middle in range(1, 8)))
    problem = Problem(branching((1e-3, *(n * 1e-3 for n in range(1, 8)), 1e-3), edges), line(), 8)
    told = make_plan("largest-load", problem, Request(microbatches=8)).noted(CutsLeftOut)
    assert (told is None) == (limit > 2**7)
    assert told is None or "other cuts were not tried" in told.cuts_left_out
