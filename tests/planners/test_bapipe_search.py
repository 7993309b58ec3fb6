"""BaPipe's explorer against an enumeration of its own space: straight pipelines of random networks on random clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from math import inf

import numpy as np
import pytest

from hardware_profiles import Cluster, Link, load_accelerator, load_cluster
from planners import Evaluator, Request, make_plan
from planners.bapipe import explorer
from planners.bapipe.explorer import CONFIRMED, BaPipe, Candidate, _Explorer, schedules, streams
from planners.partitioning.fraction_search import GRAIN, FractionSearch, places_of
from planners.search.candidates import device_rows, microbatch_counts, straight_plan, unlike_rows
from planners.testing import line
from simulator import InfeasiblePlanError, LayerCosts, LayerSplit, Plan, Problem, build_schedule, simulate, to_text
from tests.chains import chain, random_chain
from tests.planners.conftest import with_memory
from tests.simulator.test_lower_bound import Uneven

GPU_CLUSTERS = ("pipedream-a", "pipedream-a:2", "pipedream-b", "dapple-a", "dapple-b", "dapple-c")
BOARDS = ("vcu118", "vcu129", "u280")


def row_of_boards(names: list[str], rates: list[float]) -> Cluster:
    """FPGA boards, each linked to the next at so many bytes per second."""
    nodes = tuple(f"board{number}" for number in range(len(names)))
    links = tuple(Link(*ends, rate, 1e-6) for ends, rate in zip(pairwise(nodes), rates, strict=True))
    boards = tuple(map(load_accelerator, names))
    return Cluster("-".join(names), boards, nodes, (), (tuple(range(len(names))),), links)


def cluster_of(rng: np.random.Generator, kind: str, devices: int) -> Cluster:
    """GPUs, equal boards or unlike boards; links of 10 MB/s to 50 GB/s between boards, often alike."""
    if kind == "gpus":
        whole = load_cluster(str(rng.choice(GPU_CLUSTERS)))
        return whole.take(min(devices, len(whole.devices)))
    names = (
        [str(one) for one in rng.choice(BOARDS, size=devices)]
        if kind == "unlike"
        else [str(rng.choice(BOARDS))] * devices
    )
    rate, alike = float(10.0 ** rng.uniform(7, 10.7)), rng.random(devices - 1) < 0.7
    rates = [rate if same else float(10.0 ** rng.uniform(7, 10.7)) for same in alike.tolist()]
    return row_of_boards(names, rates)


def problem_of(
    seed: int, most_layers: int, most_devices: int, most_samples: int, least_bytes: float | None = None
) -> Problem:
    """A chain of layers of 0.1 to 50 GFLOP and 1 k to 2 M elements; some with recomputation, blocking sends, or little memory.

    least_bytes: what such little memory is; default a part of what the answer of a search with much memory holds
    """
    rng = np.random.default_rng([seed, 20])
    kind = ("unlike", "gpus", "equal")[seed % 3]
    layers, devices = int(rng.integers(4, most_layers + 1)), int(rng.integers(2, most_devices + 1))
    cluster = cluster_of(rng, kind, devices)
    network = chain(
        (10.0 ** rng.uniform(8, 10.7, layers)).tolist(),
        parameters=(10.0 ** rng.uniform(3, 7.3, layers)).astype(int).tolist(),
        output_elements=(10.0 ** rng.uniform(3, 6.3, layers)).tolist(),
    )
    problem = Problem(network, cluster, int(rng.integers(1, most_samples + 1)))
    choice = rng.random()
    if choice < 0.2:
        return replace(problem, recompute="whole")
    if choice < 0.3 and kind == "gpus":
        return replace(problem, communication="send-blocking")
    if choice < 0.5:
        field, share = ("memory_bytes" if kind == "gpus" else "ddr_bytes"), rng.uniform(0.4, 1.0)
        most = least_bytes or make_plan("bapipe", problem).outcome.fullest.peak_bytes * share
        small = tuple(replace(one, **{field: min(getattr(one, field), most)}) for one in cluster.devices)  # type: ignore[type-var]
        return replace(problem, cluster=replace(cluster, devices=small))
    return replace(problem, contention=choice < 0.9)


def straight_plans(problem: Problem, every: int = GRAIN) -> Iterator[Plan]:
    """Every schedule of BaPipe, any devices in the cluster's order or against it, every number of micro-batches, all cuts.

    every: sixteenths of layers between which boards may share one; 16: none, as on GPUs
    """
    order, search = range(len(problem.cluster.devices)), FractionSearch(Evaluator(problem), Request())
    inside = every if streams(problem) else GRAIN
    places = [place for place in places_of(problem.workload)[1:-1] if place % inside == 0]
    uncut = tuple(range(1, len(order)))  # layers of stages that are then cut elsewhere
    for count in range(1, min(len(order), len(problem.workload)) + 1):
        for chosen in combinations(order, count):
            for devices in dict.fromkeys((chosen, chosen[::-1])):
                for schedule in schedules(problem, Request()):
                    for microbatches in microbatch_counts(problem, Request(), count):
                        plan = straight_plan("all", problem, schedule, uncut[: count - 1], devices, microbatches)
                        for cuts in combinations(places, count - 1):
                            yield search.at(plan, cuts)


def missed(problem: Problem, every: int = GRAIN) -> float:
    """How many times the seconds of the best straight pipeline the explorer's answer takes; infinite where it finds none."""
    evaluate = Evaluator(problem)
    fitting = [plan for plan in straight_plans(problem, every) if evaluate(plan).fits]
    if not fitting:
        return 0.0
    best = simulate(problem, min(fitting, key=lambda plan: evaluate(plan).iteration_seconds)).iteration_seconds
    try:
        return make_plan("bapipe", problem).outcome.iteration_seconds / best
    except InfeasiblePlanError:
        return inf


@pytest.mark.parametrize("seed", [2, 4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 5))])
def test_no_straight_pipeline_is_faster(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to three devices, six layers and five samples; few parts of layers are tried beside the whole ones."""
    monkeypatch.setattr(explorer, "GRID", 60)
    assert missed(problem_of(seed, 6, 3, 5)) <= 1.0 + 1e-9


@pytest.mark.parametrize("seed", [0, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 5))])
def test_no_pipeline_that_shares_layers_is_faster(seed: int) -> None:
    """Two boards, like or unlike, up to four layers that are cut at quarters, and five samples."""
    assert missed(problem_of(seed, 4, 2, 5), every=4) <= 1.0 + 1e-9


@pytest.mark.parametrize("seed", [123, 116, 119, 204, 227])
@pytest.mark.slow
def test_no_pipeline_of_three_boards_that_share_layers_is_faster(seed: int) -> None:
    """Like and unlike boards, up to four layers that are cut at halves; in the first and the last one only few cuts fit."""
    assert missed(problem_of(seed, 4, 3, 4), every=8) <= 1.0 + 1e-9


def test_layers_are_shared_where_no_board_has_room_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers on three boards of little memory: no pipeline of whole layers fits, half of the first on two boards does."""
    monkeypatch.setattr(explorer, "GRID", 500)
    problem = problem_of(18, 4, 3, 3, 13_043_510.0)
    evaluate = Evaluator(problem)
    assert not any(evaluate(plan).fits for plan in straight_plans(problem))
    found = make_plan("bapipe", problem, Request(schedule="1f1b-as", microbatches=3))
    assert found.plan.splits == (LayerSplit(0, 0.5),)
    assert found.outcome.fits


@pytest.mark.slow
@pytest.mark.parametrize("seed", [seed for seed in range(30) if seed % 3 != 1])
def test_no_pipeline_that_shares_layers_at_sixteenths_is_faster(seed: int) -> None:
    """Two boards, up to five layers."""
    assert missed(problem_of(seed, 5, 2, 5), every=1) <= 1.0 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [seed for seed in range(330, 450) if seed % 3 != 1])
def test_no_pipeline_that_shares_layers_at_quarters_is_faster(seed: int) -> None:
    """Up to three boards and four layers."""
    assert missed(problem_of(seed, 4, 3, 4), every=4) <= 1.0 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400, 20))
def test_no_straight_pipeline_of_many_is_faster(seed: int) -> None:
    """Up to four devices, eight layers and twelve samples."""
    assert missed(problem_of(seed, 8, 4, 12)) <= 1.0 + 1e-9


@pytest.mark.parametrize(("rates", "row"), [([1e7, 2e9], (1, 2)), ([1e10, 1e8], (0, 1))])
def test_pipelines_go_over_the_faster_link(
    rates: list[float], row: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three equal boards, two layers, as many weights as make data parallelism slow: the two boards with the faster link."""
    monkeypatch.setattr(explorer, "GRID", 60)
    network = chain([1e10, 1e10], parameters=[5 * 10**7] * 2, output_elements=[1e6, 1e6])
    problem = Problem(network, row_of_boards(["vcu118"] * 3, rates), 2)
    plan = make_plan("bapipe", problem).plan
    assert tuple(stage.devices[0] for stage in plan.stages) == row


def test_rows_of_devices_are_those_that_pipelines_tell_apart() -> None:
    """Of three devices any in order or against it; equal boards on equal links as many rows as lengths and gaps; of nine none."""
    network = random_chain(9, np.random.default_rng(0))
    three = Problem(network, line(speeds=(1.0, 2.0, 4.0)), 4)
    rows = list(device_rows(three))
    assert set(rows) == {one for n in (1, 2, 3) for some in combinations(range(3), n) for one in (some, some[::-1])}
    assert set(unlike_rows(three, LayerCosts(three), rows)) == set(rows)
    alike = Problem(network, row_of_boards(["u280"] * 3, [1e9, 1e9]), 4)
    assert list(unlike_rows(alike, LayerCosts(alike), device_rows(alike))) == [(0, 1, 2), (0, 1), (0, 2), (0,)]
    eight, nine = (Problem(network, line(speeds=(1.0,) * count), 4) for count in (8, 9))
    assert {len(row) for row in device_rows(eight)} == set(range(1, 9))
    assert (0, 2) not in device_rows(eight)
    assert not list(device_rows(nine))


def test_a_problem_without_room_is_refused_without_replays() -> None:
    """The closest pipeline needs at least so much, and no less in a replay."""
    network = chain([4e10] * 4, parameters=[10**6] * 4, output_elements=[2e6] * 4)
    problem = with_memory(Problem(network, load_cluster("pipedream-a:1"), 64), 2.5e7)
    evaluate = Evaluator(problem)
    with pytest.raises(InfeasiblePlanError, match="the closest needs at least") as refused:
        BaPipe()(problem, evaluate, np.random.default_rng(0))
    told = re.search(
        r"at least ([\d.]+) GiB on GPU (\d), .* \((\S+), (\d) stages, (\d+) micro-batches\)", str(refused.value)
    )
    assert told is not None
    assert all(len(one.stages) == 1 for one in evaluate.replayed)  # of data parallelism
    needed, device, schedule, stages, count = told.groups()
    cuts = range(1, int(stages))
    plan = straight_plan("bapipe", problem, schedule, cuts, range(int(stages)), int(count))
    evaluate(plan)
    replayed = evaluate.peak_bytes(plan)
    assert 2.5e7 / 2**30 < float(needed) <= 1.001 * (replayed or {})[int(device)] / 2**30


def test_fractions_that_even_boards_out_are_taken_where_they_are_faster() -> None:
    """A cut behind the first of eight equal layers leaves one board idle most of the time; even halves stay."""
    problem = Problem(chain([4e9] * 8, output_elements=[1e3] * 8), row_of_boards(["vcu118"] * 2, [1e9]), 8)
    search = FractionSearch(evaluate := Evaluator(problem), Request())
    cuts = {cut: straight_plan("x", problem, "1f1b-as", (cut,), (0, 1), 8) for cut in (1, 4)}
    evened = {cut: evaluate(search.evened(plan)).iteration_seconds for cut, plan in cuts.items()}
    assert evened[1] < 0.7 * evaluate(cuts[1]).iteration_seconds
    assert max(evened.values()) <= evaluate(cuts[4]).iteration_seconds
    climbed = [evaluate(plan).key for plan in (cuts[1], *search.climbed(cuts[1]))]
    assert len(climbed) > 1
    assert climbed == sorted(climbed, reverse=True)
    assert climbed[-1][1] <= 1.01 * max(evened.values())


def test_grids_of_cuts_have_as_many_plans_as_may_be_replayed() -> None:
    """Of two layers on two boards the best of 31 places to cut, of one place, or none; on GPUs nothing is evened out."""
    problem = Problem(
        chain([6e9, 2e9], parameters=[100] * 2, output_elements=[1e3] * 2), row_of_boards(["vcu118"] * 2, [1e9]), 8
    )
    search = FractionSearch(evaluate := Evaluator(problem), Request())
    plan = straight_plan("x", problem, "1f1b-as", (1,), (0, 1), 8)
    every = [search.at(plan, (place,)) for place in range(1, 32)]
    best = min(every, key=lambda one: evaluate(one).iteration_seconds)
    assert best.splits
    for most, found in ((31, best), (1, plan), (0, plan)):
        assert search.on_grid(plan, most) == found
    gpus = replace(problem, cluster=line())
    whole = straight_plan("x", gpus, "1f1b", (1,), (0, 1), 8)
    assert FractionSearch(Evaluator(gpus), Request()).evened(whole) is whole


def test_moves_of_an_order_keep_its_micro_batches_and_what_cannot_run_is_no_better() -> None:
    """With an order of its own a plan's cuts move alone; what parts of layers take on devices that are not sublinear is not
    known."""
    problem = Problem(chain([4e9] * 4, parameters=[100] * 4, output_elements=[1e3] * 4), line(), 4)
    search = FractionSearch(Evaluator(problem), Request())
    plan = straight_plan("x", problem, "1f1b", (2,), (0, 1), 2)
    ordered = replace(plan, order=tuple(to_text(build_schedule("1f1b", 2, 2)).splitlines()))
    counts = [{len(one.microbatches) for one in search._moved(of)} for of in (plan, ordered)]
    assert counts == [{1, 2, 3}, {2}]
    uneven = replace(problem, cluster=replace(problem.cluster, devices=(Uneven(1.0),) * 2))
    search = FractionSearch(Evaluator(uneven), Request(microbatches=2))
    assert search._key(search.at(plan, (31,))) == (inf, inf)
    assert {one.splits for one in search.climbed(replace(plan, microbatches=(2, 2)))} <= {()}


def test_on_an_engine_without_contention_the_first_are_replayed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest by these replays is the answer, here the last of them; where none fits then, that is told. An engine that knows
    contention needs none."""
    problem, replayed = Problem(chain([4e9] * 4, output_elements=[1e3] * 4), line(), 4), list[Candidate]()

    def confirm(self: _Explorer, one: Candidate) -> Candidate | None:
        replayed.append(one)
        return replace(one, confirmed_seconds=1.0 / len(replayed))

    monkeypatch.setattr(_Explorer, "confirm", confirm)
    found = make_plan("bapipe", problem, Request(engine="recurrence"))
    assert len(replayed) >= CONFIRMED
    assert found.plan == replayed[-1].plan
    replayed.clear()
    make_plan("bapipe", problem)
    assert not replayed
    monkeypatch.setattr(_Explorer, "confirm", lambda self, one: replayed.append(one))
    with pytest.raises(
        InfeasiblePlanError,
        match=r"^planner 'bapipe' finds no plan that fits once transfers queue on shared links: (\d+) that fit on idle ones were "
        r"tried$",
    ) as raised:
        make_plan("bapipe", problem, Request(engine="recurrence"))
    assert f": {len(replayed)} that fit" in str(raised.value)
