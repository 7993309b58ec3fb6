"""Layer splits: parts by hand, plans whose neighbouring stages share a layer, their files, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_profiles import Runs, Stack, load_cluster
from simulator import (
    Evaluations,
    InfeasiblePlanError,
    Layer,
    LayerCosts,
    LayerSplit,
    Plan,
    PlanCosts,
    PlanFile,
    PlanFileError,
    PlanNotRunError,
    Problem,
    Stage,
    Workload,
    check_plan,
    load_workload,
    lower_bound,
    plan_lacks,
    plan_words,
    simulate,
    split_workload,
    splittable_layers,
    stages_from_cuts,
)
from tests.chains import chain, measured_chain
from tests.simulator.strategies import UnitDevice, chain_cluster

THREE = chain([4.0, 4.0, 4.0], parameters=[10, 40, 20], output_elements=[100.0, 80.0, 60.0])
HALF = (LayerSplit(1, 0.5),)
SHARED = (Stage((0, 1), (0,)), Stage((1, 2), (1,)))


def plan_of(count: int = 1, schedule: str = "1f1b", **changes: object) -> Plan:
    """The middle layer in both of two stages, half in each, micro-batches of one sample."""
    return replace(Plan("hand", schedule, SHARED, (1,) * count, splits=HALF), **changes)  # type: ignore[arg-type]


# ---- parts -----------------------------------------------------------------------------------------------------------


def test_a_cut_inside_a_layer_carries_its_input_and_the_first_part() -> None:
    """A quarter of the middle layer's 80 outputs and all of its 100 inputs cross: 120 elements; each part keeps the input."""
    workload = split_workload(THREE, [LayerSplit(1, 0.25)])
    assert [layer.name for layer in workload.layers] == ["layer1", "layer2#1", "layer2#2", "layer3"]
    assert [layer.flop for layer in workload.layers] == [4.0, 1.0, 3.0, 4.0]
    assert [layer.parameters for layer in workload.layers] == [10, 10, 30, 20]
    assert [layer.output_elements for layer in workload.layers] == [100.0, 20.0, 60.0, 60.0]
    assert [layer.stashed_elements for layer in workload.layers] == [100.0, 80.0, 100.0, 60.0]
    assert workload.edges == ((0, 1), (0, 2), (1, 3), (2, 3))
    assert workload.cut_elements().tolist() == [0.0, 100.0, 120.0, 80.0, 0.0]
    assert [work.input_elements for work in workload.works()] == [0.0, 100.0, 100.0, 80.0]


def test_parts_of_measured_layers_share_their_seconds_and_whole_weights() -> None:
    """Of 3 + 6 s a third and two thirds, of seven weights two and five: none is lost."""
    layer = replace(measured_chain([3.0], [6.0], parameters=[7]).layers[0], output_elements=9.0)
    split = split_workload(Workload("one", (layer,), ()), [LayerSplit(0, 1.0 / 3.0)])
    assert [one.measured for one in split.layers] == [
        ((1.0, pytest.approx(1.0), pytest.approx(2.0)),),
        ((1.0, pytest.approx(2.0), pytest.approx(4.0)),),
    ]
    assert [one.parameters for one in split.layers] == [2, 5]
    assert sum(one.output_elements for one in split.layers) == pytest.approx(9.0)


def test_products_with_weights_of_their_own_can_be_split() -> None:
    """No pooling, nothing without weights, of attention heads or of experts, and no weight that layers share."""
    plain = Layer("plain", "linear", 1.0, 8, 1.0)
    owner = replace(plain, name="owner")
    layers = (
        plain,
        replace(plain, name="convolution", kind="convolution"),
        replace(plain, name="pool", kind="pooling"),
        replace(plain, name="bare", parameters=0),
        replace(plain, name="heads", heads=2),
        replace(plain, name="experts", experts=2),
        owner,
        replace(plain, name="tied", tied_to="owner", tied_parameters=8),
    )
    workload = Workload("kinds", layers, ())
    assert splittable_layers(workload) == [True, True, *[False] * 6]
    for number, why in enumerate(
        ("pooling", "one without weights", "of attention heads", "of routed experts", "tied"), 2
    ):
        with pytest.raises(
            ValueError,
            match=rf"layer {number + (why == 'tied')} .* split: layers of kind convolution and linear can, .* this is {why}$",
        ):
            split_workload(workload, [LayerSplit(number + (why == "tied"), 0.5)])


def test_parts_on_a_board_take_what_divides_evenly() -> None:
    """A sum of an output keeps its length, so that a board bound by its DSPs takes half for half of the channels."""
    problem = Problem(load_workload("vgg16"), load_cluster("fpga-vcu118-4"), 8)
    parts = replace(problem, workload=split_workload(problem.workload, [LayerSplit(14, 0.5)]))
    board, (whole, half) = problem.cluster.devices[0], (LayerCosts(one).works[14] for one in (problem, parts))
    seconds = [board.stage_seconds([one], 8, "forward", "fp32") for one in (whole, half)]  # type: ignore[attr-defined]
    assert seconds[1] == pytest.approx(seconds[0] / 2.0)


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_layer_shared_by_two_stages_by_hand() -> None:
    """Of 12 FLOP each device has 6: forwards of 6 s, backwards of 12 s. 100 inputs and 40 outputs are 560 bytes, 1 s each way:
    6 + 1 + 6 + 12 + 1 + 12 = 38 s. Stages hold 10 + 20 and 20 + 20 weights.
    """
    problem = Problem(THREE, chain_cluster(2, bandwidth=560.0), 1)
    for engine in ("simpy", "compiled", "recurrence"):
        assert simulate(problem, plan_of(), engine=engine).iteration_seconds == 38.0  # type: ignore[arg-type]
    outcome = simulate(problem, plan_of())
    found = Evaluations(problem)(plan_of())
    assert found is not None
    assert (found.iteration_seconds, found.peak_bytes) == (38.0, outcome.fullest.peak_bytes)
    assert outcome.bytes_per_sample == 2 * 560.0
    assert PlanCosts(problem, plan_of()).boundary_bytes == (560.0,)
    for memory, weights, stash in zip(outcome.memory, (30, 40), (180.0, 160.0), strict=True):
        parts = memory.peak_parts
        assert [parts[name] for name in ("weights", "gradients", "optimizer")] == [4.0 * weights] * 3
        assert parts["activations"] == 4.0 * stash
    whole = replace(plan_of(), stages=stages_from_cuts((2,), 3, [(0,), (1,)]), splits=())
    assert simulate(problem, whole).iteration_seconds == pytest.approx(8 + 4 + 24 + 2 * 320 / 560)


def test_parts_keep_the_weight_versions_of_their_stage() -> None:
    """PipeDream's first of two stages keeps a second version of its 30 weights; under two-version updates both stages do."""
    problem = Problem(THREE, chain_cluster(2, bandwidth=1e9), 4)
    for schedule, versions in (("pipedream", (30, 0)), ("2bw", (30, 40))):
        outcome = simulate(problem, plan_of(4, schedule))
        assert [one.peak_parts["weight versions"] for one in outcome.memory] == [4.0 * one for one in versions]
        assert outcome.iteration_seconds == pytest.approx(4 * 18.0)


def test_three_stages_may_share_a_layer() -> None:
    """Of 12 FLOP a third on each of three devices, in a layer that stands in all of them; what makes the split is in words."""
    workload = chain([12.0], parameters=[30], output_elements=[30.0])
    stages = tuple(Stage((0,), (device,)) for device in range(3))
    cuts = LayerSplit(0, 1.0 / 3.0), LayerSplit(0, 2.0 / 3.0)
    problem = Problem(workload, chain_cluster(3, bandwidth=1e12), 6)
    plan = Plan("hand", "1f1b", stages, (1,) * 6, splits=cuts)
    assert simulate(problem, plan).iteration_seconds == pytest.approx((6 + 2) * 12.0)
    assert "splits layer1 at 0.3333 and 0.6667" in plan_words(problem, plan)


def test_the_bound_is_that_of_the_whole_layers() -> None:
    """It belongs to the problem, and holds for layers in parts."""
    problem = Problem(THREE, chain_cluster(2, bandwidth=1e12), 64)
    outcome = simulate(problem, plan_of(64))
    assert outcome.lower_bound == lower_bound(problem).of(flush=True)
    assert outcome.lower_bound.seconds == pytest.approx(64 * 18.0, rel=1e-6)
    assert 64 * 18.0 < outcome.iteration_seconds < 66 * 18.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"splits": ()}, "stage 1 of plan 'hand' holds layer 1, which stage 0 holds"),
        (
            {"splits": (LayerSplit(0, 0.5),)},
            "plan 'hand' splits layer 0 into 2 parts, which stands in stages 0: it must stand in 2 neighbouring ones",
        ),
        (
            {"stages": (Stage((0,), (0,)), Stage((2,), (1,)))},
            "plan 'hand' splits layer 1 into 2 parts, which stands in stages none: it must stand in 2 neighbouring ones",
        ),
        (
            {"splits": (*HALF, LayerSplit(1, 0.75))},
            (
                "plan 'hand' splits layer 1 into 3 parts, which stands in stages 0-1: it must stand in 3 "
                "neighbouring ones"
            ),
        ),
        (
            {"splits": (*HALF, LayerSplit(1, 0.5))},
            "plan 'hand': splits must be by rising layer and fraction, got layer 1 at 0.5 after layer 1 at 0.5",
        ),
        ({"splits": (LayerSplit(7, 0.5),)}, "plan 'hand': split of layer 7: the workload has layers 0 to 2"),
        (
            {"splits": (LayerSplit(1, 0.001),)},
            r"layer .layer2. has 40 weights: a part of it between fractions \(0.0, 0.001, 1.0\) has none",
        ),
    ],
)
def test_splits_that_no_plan_has(changes: dict[str, object], message: str) -> None:
    """One line that names the layer and the rule."""
    problem = Problem(THREE, chain_cluster(2), 1)
    for check in (check_plan, simulate, lambda *case: Evaluations(problem)(case[1])):
        if changes.get("splits", HALF):  # else the evaluator has no such stages
            with pytest.raises(InfeasiblePlanError, match=message):
                check(problem, plan_of(**changes))
    with pytest.raises(InfeasiblePlanError, match=message):
        check_plan(problem, plan_of(**changes))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, float("nan")])
def test_a_fraction_is_inside_of_the_layer(fraction: float) -> None:
    """Neither end is a cut inside."""
    with pytest.raises(ValueError, match="fraction"):
        LayerSplit(1, fraction)


def test_only_the_generic_stack_runs_shared_layers() -> None:
    """Frameworks have stages of whole layers; what parts take on an accelerator that is not sublinear is not known."""
    problem = Problem(THREE, chain_cluster(2), 1)
    assert "layers that stages share by output channels" in plan_lacks(Runs(zero=(0,)), problem, plan_of())
    named = replace(problem, stack=Stack(name="named", runs=Runs(zero=(0,))))
    for check in (check_plan, simulate, lambda *case: Evaluations(named)(case[1])):
        with pytest.raises(PlanNotRunError, match="it has no layers that stages share by output channels"):
            check(named, plan_of())
    odd = replace(problem.cluster, devices=(UnitDevice(sublinear=False),) * 2)  # type: ignore[arg-type]
    with pytest.raises(
        InfeasiblePlanError,
        match="plan 'hand' splits layers, and accelerator unit is not sublinear: what parts take is not known",
    ):
        check_plan(replace(problem, cluster=odd), plan_of())


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_plan_file_says_what_is_split() -> None:
    """It is read as it was written; a person may write ranges; what cannot be is told with its place."""
    problem = Problem(load_workload("vgg16"), load_cluster("fpga-vcu118-4").take(2), 8)
    stages = Stage(tuple(range(15)), (0,)), Stage(tuple(range(14, 40)), (1,))
    plan = Plan("hand", "1f1b-as", stages, (1,) * 8, splits=(LayerSplit(14, 0.25),))
    text = PlanFile(problem, plan).to_json()
    assert PlanFile.from_json(text) == PlanFile(problem, plan)
    assert '"layer": 14,\n        "fraction": 0.25' in text
    assert (
        "splits"
        not in PlanFile(problem, replace(plan, stages=stages_from_cuts((15,), 40, [(0,), (1,)]), splits=())).to_json()
    )
    with pytest.raises(
        PlanFileError, match=r"^plan: \$\.plan\.splits\[0\]\.fraction = 1\.25: expected `float` < 1\.0$"
    ):
        PlanFile.from_json(text.replace("0.25", "1.25"))
    with pytest.raises(
        PlanFileError, match=r"^plan: \$\.plan: .* layer 16 \(pool3\) cannot be split: .* this is pooling$"
    ):
        PlanFile.from_json(text.replace('"layer": 14', '"layer": 16'))
