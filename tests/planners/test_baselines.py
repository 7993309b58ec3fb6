"""Baselines: figures one can work out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from hardware_profiles import load_cluster
from planners import Evaluator, Request, make_plan
from planners.partitioning.partition_costs import straight_costs, uniform_cuts
from planners.partitioning.tight_memory import tight_plan
from planners.search.candidates import device_choices, devices_in_order, microbatch_counts, straight_plan
from planners.straight.baselines import DataParallel, GreedyBalance, _rows, promising_cuts
from planners.testing import line
from simulator import InfeasiblePlanError, LayerCosts, Plan, Problem, Score, load_workload, simulate
from simulator.workloads.language_models import Gpt
from simulator.workloads.synthetic import uniform_chain
from tests.chains import chain, random_chain
from tests.planners.conftest import seconds_of, with_memory
from tests.planners.reasons import applicable_planners


@pytest.mark.parametrize(
    ("layers", "stages", "cuts"), [(6, 2, [3]), (7, 3, [3, 5]), (4, 4, [1, 2, 3]), (5, 1, []), (8, 3, [3, 6])]
)
def test_uniform_cuts_differ_by_one_layer_at_most(layers: int, stages: int, cuts: list[int]) -> None:
    """7 layers on 3 stages: 3, 2, 2."""
    assert uniform_cuts(layers, stages) == cuts


def test_greedy_gives_a_faster_device_more_layers(small_problems: dict[str, Problem]) -> None:
    """Six equal layers on devices of speed 1 and 1/2 that hardly communicate: 4 and 2 layers take as long."""
    mixed = small_problems["mixed-devices"]
    problem = replace(mixed, workload=chain([2e11] * 6), cluster=mixed.cluster.take(2))
    assert [len(stage.layers) for stage in make_plan("greedy", problem).plan.stages] == [4, 2]


def test_greedy_takes_the_fastest_of_what_fits_tightly(small_problems: dict[str, Problem]) -> None:
    """Memory comes first, then seconds: of the tight plans of GPipe and 1F1B, on each choice of devices, the fastest."""
    problem = small_problems["mixed-devices"]
    request = Request(microbatches=4)
    evaluate, planner = Evaluator(problem), GreedyBalance(request)
    choices = device_choices(problem, evaluate.layer_costs)
    plans = [
        tight_plan(planner.name, evaluate, schedule, devices, (4,))
        for schedule, devices in product(("gpipe", "1f1b"), choices)
    ]
    seconds = sorted({evaluate(plan).iteration_seconds for plan in plans if plan is not None})
    assert len(seconds) > 1
    found = planner._tight(problem, evaluate)
    assert found is not None
    assert evaluate(found).iteration_seconds == seconds[0]


def _straight_seconds(problem: Problem) -> float:
    """The least seconds of all that greedy may answer: GPipe and 1F1B, every partition and number of micro-batches."""
    evaluate, layers, order = Evaluator(problem), len(problem.workload), devices_in_order(problem)
    stages = min(layers, len(order))
    return min(
        evaluate(straight_plan("space", problem, schedule, cuts, order[:stages], count)).iteration_seconds
        for schedule in ("gpipe", "1f1b")
        for count in microbatch_counts(problem, Request(), stages)
        for cuts in combinations(range(1, layers), stages - 1)
    )


CLUSTERS = ("dapple-a", "dapple-b", "dapple-c", "pipedream-a", "pipedream-b")


@pytest.mark.parametrize("seed", [0, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 3))])
def test_greedy_is_the_fastest_of_its_space_where_that_is_small(seed: int) -> None:
    """Layers and boundaries that differ a hundredfold, on two to four devices of each cluster: no straight pipeline is faster."""
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, 5))
    layers = int(rng.integers(devices, 8))
    network = chain(
        (10 ** rng.uniform(9.5, 11.5, layers)).tolist(),
        parameters=rng.integers(10**4, 10**7, layers).tolist(),
        output_elements=(10 ** rng.uniform(3.0, 6.5, layers)).tolist(),
    )
    cluster = load_cluster(CLUSTERS[seed % len(CLUSTERS)]).take(devices)
    problem = Problem(network, cluster, int(rng.integers(2, 13)), recompute=bool(rng.integers(2)))
    assert seconds_of("greedy", problem) == _straight_seconds(problem)


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4, 5))])
def test_uniform_finds_the_fastest_of_all_its_plans(seed: int) -> None:
    """Uneven layers on devices that differ in speed: GPipe and 1F1B on each choice of devices, every count of micro-batches."""
    rng = np.random.default_rng(seed)
    network = random_chain(int(rng.integers(3, 9)), rng)
    problem = Problem(network, line(speeds=(1.0, 1.0, 0.5, 0.25)[: 2 + seed % 3]), int(rng.integers(2, 13)))
    evaluate, layers = Evaluator(problem), len(network)
    plans = [
        straight_plan("uniform", problem, schedule, uniform_cuts(layers, stages), devices[:stages], count)
        for schedule, devices in product(("gpipe", "1f1b"), device_choices(problem, evaluate.layer_costs))
        for stages in range(1, min(layers, len(devices)) + 1)
        for count in microbatch_counts(problem, Request(), stages)
    ]
    scores = [evaluate(plan) for plan in plans]
    assert seconds_of("uniform", problem) <= min(score.iteration_seconds for score in scores if score.fits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "workload", "batch"),
    [
        *product(
            (*CLUSTERS, "fpga-mixed-4", "fpga-vcu118-4"),
            ("alexnet", "vgg16", "resnet50", "bert-base", "gpt2"),
            (7, 32, 64, 256),
        )
    ][::3],
)
def test_greedy_is_never_slower_than_uniform_anywhere(name: str, workload: str, batch: int) -> None:
    """More networks, batches and clusters, boards that stream among them; where uniform has a plan greedy has one.

    Every third of them: of each pair of network and cluster one batch or two.
    """
    whole = load_cluster(name)
    problem = Problem(load_workload(workload), whole.take(min(8, len(whole.devices))), batch)
    assert seconds_of("greedy", problem) <= seconds_of("uniform", problem)


def test_data_parallel_uses_every_device_and_the_whole_batch(small_problems: dict[str, Problem]) -> None:
    """One stage, all devices, one micro-batch where it fits."""
    plan = make_plan("data-parallel", small_problems["fewer-layers-than-devices"]).plan
    assert plan.notation == "4"
    assert plan.microbatches == (4,)
    assert plan.schedule == "gpipe"


def test_data_parallel_accumulates_gradients_where_memory_is_short(small_problems: dict[str, Problem]) -> None:
    """4 samples per device of 100 MB activations do not fit 350 MB; 1F1B on one stage holds one micro-batch: 2 samples do."""
    problem = small_problems["two-devices"]
    heavy = replace(with_memory(problem, 350e6), workload=chain([1e9] * 4, output_elements=[6.25e6] * 4))
    plan = make_plan("data-parallel", heavy).plan
    assert plan.schedule == "1f1b"
    assert plan.microbatches == (4, 4)


def test_fewer_layers_than_devices_uses_as_many_stages_as_layers(small_problems: dict[str, Problem]) -> None:
    """Three layers on four devices: three stages."""
    for name in ("uniform", "greedy"):
        assert len(make_plan(name, small_problems["fewer-layers-than-devices"]).plan.stages) == 3


def test_slices_that_are_asked_for_are_planned() -> None:
    """Plans say so, and are no faster than the bound; planners and networks that have none refuse in one line."""
    problem = Problem(Gpt(2, 32, 4, 64, vocabulary=100).workload(), load_cluster("dgx-a100:1"), 8)
    asked = Request(schedule="seq1f1b", slices=4, microbatches=2, stages=4)
    for name in ("uniform", "greedy"):
        result = make_plan(name, problem, asked)
        assert (result.plan.options, result.outcome.schedule.microbatches) == ((("slices", 4),), 8)
        assert result.bound <= result.outcome.iteration_seconds
    said = {
        "pipeline-data": (problem, asked, "it has no option 'slices'"),
        "greedy": (
            problem,
            replace(asked, schedule="1f1b"),
            "slices of sequences are of a schedule that has them, not '1f1b'",
        ),
        "uniform": (replace(problem, workload=load_workload("vgg16")), asked, "workload 'vgg16' has no slices"),
    }
    for name, (what, request, reason) in said.items():
        assert (applicable_planners(what, request)[name] or "").startswith(reason)


def test_looped_schedules_get_two_stages_a_device(small_problems: dict[str, Problem]) -> None:
    """Six layers, two devices: four stages on devices 0 1 0 1; a single layer stays one stage."""
    for schedule in ("interleaved-1f1b", "looped-bfs"):
        plan = make_plan("uniform", small_problems["two-devices"], Request(schedule=schedule)).plan
        assert [stage.devices for stage in plan.stages] == [(0,), (1,), (0,), (1,)]
        assert len(make_plan("uniform", small_problems["one-layer"], Request(schedule=schedule)).plan.stages) == 1


def test_greedy_is_no_slower_than_uniform_on_unequal_devices(small_problems: dict[str, Problem]) -> None:
    """Devices of speed 1, 1/2 and 2 and hardly any communication: balance beats equal numbers of layers."""
    problem = replace(small_problems["mixed-devices"], workload=chain([2e11] * 9))
    scores = {name: make_plan(name, problem).history[-1].iteration_seconds for name in ("uniform", "greedy")}
    assert scores["greedy"] < scores["uniform"]


@pytest.mark.parametrize("boards", [False, True])
def test_greedy_weighs_transfers_on_unlike_devices(boards: bool) -> None:
    """Eleven layers, unlike devices behind slow links, small tensors at cuts 2, 6 and 9 only: the fastest partition of all.

    On boards whose layers stream as on GPUs.
    """
    slow = load_cluster("fpga-mixed-4") if boards else line(speeds=(1.0, 0.5, 2.0))
    flop = 1e9 if boards else 1e11
    small, large = (1e2, 3e7) if boards else (1e4, 2e8)
    cluster = replace(slow, links=tuple(replace(link, bandwidth=1e9) for link in slow.links))
    network = chain([flop] * 11, output_elements=[small if cut in (2, 6, 9) else large for cut in range(1, 12)])
    problem = Problem(network, cluster, 8)
    found = make_plan("greedy", problem, Request(schedule="1f1b", microbatches=8, stages=3)).plan
    replays = [
        simulate(problem, straight_plan("all", problem, "1f1b", cuts, (0, 1, 2), 8), engine="compiled")
        for cuts in combinations(range(1, 11), 2)
    ]
    best = min(one.iteration_seconds for one in replays)
    assert simulate(problem, found).iteration_seconds <= best * 1.01


def test_planner_turns_to_1f1b_where_gpipe_does_not_fit(small_problems: dict[str, Problem]) -> None:
    """GPipe keeps the batch, 1F1B at most as many micro-batches as stages: 16 samples of 100 MB, 450 MB per device."""
    problem = small_problems["two-devices"]
    network = chain([1e9] * 4, output_elements=[1e6] * 4, stashed_elements=[12.5e6] * 4)
    heavy = replace(with_memory(problem, 450e6), batch=16, workload=network)
    assert make_plan("uniform", heavy).plan.schedule == "1f1b"
    assert make_plan("greedy", heavy).plan.schedule == "1f1b"


def test_greedy_weighs_schedules_by_seconds() -> None:
    """Neither schedule is the faster one for every batch: both are answers, though both fit."""
    cluster = load_cluster("dapple-c").take(4)
    chosen = {make_plan("greedy", Problem(load_workload("vgg16"), cluster, batch)).plan.schedule for batch in (16, 64)}
    assert chosen == {"gpipe", "1f1b"}


@pytest.mark.parametrize(
    ("batch", "counts"), [(2, [1]), (3, [1]), (13, [1, 2, 3, 5]), (20, [1, 2, 3, 4, 7]), (24, [1, 2, 3, 4, 8])]
)
def test_data_parallel_accumulates_up_to_a_sample_a_device(
    batch: int, counts: list[int], small_problems: dict[str, Problem]
) -> None:
    """On three devices: of each number of samples that a device may have of a micro-batch, the fewest micro-batches."""
    assert list(DataParallel()._counts(replace(small_problems["two-devices"], batch=batch), 3)) == counts


@pytest.mark.parametrize("devices", [(0, 1, 2), (0, 1, 0, 1)])
def test_few_partitions_are_all_promising_and_of_many_two(devices: tuple[int, ...]) -> None:
    """With as many partitions as are few all are replayed; of more the even one and the one with the least closed form.

    A device with two stages is busy with both in every round.
    """
    for layers in (5, 10, 11):
        network = random_chain(layers, np.random.default_rng(layers), flop=2e9)
        costs = LayerCosts(Problem(network, line(speeds=(1.0, 0.5, 2.0)), 8))
        every = list(combinations(range(1, layers), len(devices) - 1))
        found = promising_cuts(costs, devices, 4)
        if len(every) <= 36:
            assert found == every
        else:
            tables, rounds = straight_costs(costs, devices, 2, alternating=True), 4 * len(devices) // len(set(devices))
            best = min(every, key=lambda cuts: tables.seconds(cuts, rounds))
            assert found == [tuple(uniform_cuts(layers, len(devices))), best]
    assert any(comb(layers - 1, 2) == 36 for layers in (5, 10, 11))


@pytest.mark.parametrize(
    ("schedule", "stages", "expected"),
    [
        ("gpipe", None, {(0, 1, 2, 3), (0, 1, 2), (0, 1), (0,), (1, 2, 3), (1, 2), (1, 3), (1,), (2,)}),
        ("gpipe", 3, {(0, 1, 2), (1, 2, 3)}),
        ("gpipe", 1, {(0,), (1,), (2,)}),
        ("looped-bfs", 4, {(0, 1, 0, 1), (1, 3, 1, 3), (1, 2, 1, 2)}),
        ("looped-bfs", 6, {(0, 1, 2, 0, 1, 2), (1, 2, 3, 1, 2, 3)}),
    ],
)
def test_choices_of_devices_hold_the_stages_that_are_asked_for(
    schedule: str, stages: int | None, expected: set[tuple[int, ...]]
) -> None:
    """Of four devices of three speeds, the fastest second and fourth: the first of each choice, and fewer of them."""
    problem = Problem(uniform_chain(9), line(speeds=(1.0, 4.0, 2.0, 4.0)), 8)
    request = Request(stages=stages, schedule=schedule)
    found = [devices for _, devices in _rows(problem, request, Evaluator(problem))]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_greedy_turns_to_memory_where_nothing_fits(
    small_problems: dict[str, Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Balanced plans that do not fit give way to a tight one; where there is none the closest is named."""
    problem = small_problems["two-devices"]

    class Fits(Evaluator):
        def __call__(self, plan: Plan) -> Score:
            return Score(1.0, 1.0 if len(plan.microbatches) == 3 else 2.0 * 2**30, 2.0**30, 0)

    tight = straight_plan("test", problem, "gpipe", (3,), (0, 1), 3)
    monkeypatch.setattr(GreedyBalance, "_tight", lambda self, problem, evaluate: tight)
    assert GreedyBalance(Request(microbatches=4))(problem, Fits(problem), np.random.default_rng(0)) == tight
    monkeypatch.setattr(GreedyBalance, "_tight", lambda self, problem, evaluate: None)
    with pytest.raises(InfeasiblePlanError, match="closest needs 2 GiB on GPU 0, which holds 1 GiB"):
        GreedyBalance(Request(microbatches=4))(problem, Fits(problem), np.random.default_rng(0))
