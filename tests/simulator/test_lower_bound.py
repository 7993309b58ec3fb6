"""Lower bound: no plan beats it, whatever it decides, and some plans attain it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hardware_profiles import (
    Accelerator,
    Cluster,
    FieldProgrammableGateArray,
    GraphicsProcessor,
    Link,
    Operation,
    Phase,
    Precision,
    Work,
    load_accelerator,
    load_cluster,
    load_stack,
    reduce_seconds,
)
from hardware_profiles.gpu import DEFAULT_EFFICIENCIES, KindEfficiency
from planners import make_plan
from simulator import (
    BoundTerm,
    InfeasiblePlanError,
    Layer,
    LayerCosts,
    Plan,
    Problem,
    Stage,
    UndercutBoundError,
    Workload,
    equal_microbatches,
    load_workload,
    lower_bound,
    simulate,
    simulation,
    slice_of,
    stages_from_cuts,
)
from simulator.costs import least_ops
from simulator.costs.layer_costs import measured_layer_seconds
from simulator.costs.least_ops import LeastOps, LeastOpsOf
from simulator.costs.lower_bound import LowerBound, best_weights
from simulator.costs.plan_costs import StagePlaces
from simulator.plans.plan import tensor_groups
from simulator.results.time_split import TIME_PARTS
from simulator.workloads.layers import Split
from simulator.workloads.sequence_slices import context_part
from simulator.workloads.shares import Share, share_of
from simulator.workloads.synthetic import uniform_chain
from tests.chains import chain, measured_chain, random_chain
from tests.hardware_profiles.clusters import tree
from tests.simulator.strategies import (
    ASYNCHRONOUS,
    UnitDevice,
    chain_cluster,
    plans,
    split_between_stages,
    star_cluster,
)
from tests.simulator.test_groups import grouped_plans


def _switched(devices: tuple[object, ...]) -> Cluster:
    nodes = tuple(f"node{number}" for number in range(len(devices)))
    links = tuple(Link(node, "switch", 5e9, 1e-5) for node in nodes)
    return Cluster("switched", devices, nodes, ("switch",), (tuple(range(len(devices))),), links)  # type: ignore[arg-type]


def _gpu(speed: float = 1.0) -> GraphicsProcessor:
    return GraphicsProcessor(f"gpu-{speed:g}", 2.0**36, 500e9 * speed, {"fp32": 10e12 * speed})


def least(problem: Problem, *, flush: bool = True) -> float:
    """Seconds of the term that binds."""
    return lower_bound(problem).of(flush=flush).seconds


@pytest.mark.parametrize(
    ("precision", "shared", "least"), [("fp8", True, 0.5), ("fp8", False, 1.0), ("bf16", True, 1.0)]
)
def test_what_groups_reduce_narrowly_counts_as_such(precision: Precision, shared: bool, least: float) -> None:
    """Products in 8 bits whose inputs the group gathers move a byte where it scatters two; all others as many of each."""
    cluster = load_cluster("dgx-h100:1")
    problem = Problem(load_workload("gpt2"), cluster, 8, precision=precision, sequence_parallel=shared)
    assert LeastOpsOf(problem, LayerCosts(problem))._narrowed == least


def test_the_least_of_ops_by_hand() -> None:
    """By two sizes forwards take 1 + 1 and 2 + 8 s, backwards 1 + 9 and 0.5 + 0.5. One size for both takes 11 s; the small
    forward, 2 s of the large one again and the large backward take 2 + 2 + 1.
    """
    never = np.full((2, 2), 1e3)
    ops = LeastOps(np.array([[1.0, 2.0], [1.0, 8.0]]), np.array([[1.0, 0.5], [9.0, 0.5]]), never, never)
    assert ops.least(1.0, 1.0) == 5.0
    halves = LeastOps(ops.forward, never, np.array([[1.0, 3.0], [2.0, 0.0]]), np.array([[4.0, 1.0], [9.0, 9.0]]))
    assert halves.least(1.0, 0.5) == 1.5 + 2.0 + 4.0 < 6.0 + 3.0 + 1.0


def test_problems_of_one_cluster_have_the_bounds_that_each_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was asked before of its two kinds of GPU, and with next to nothing kept: networks, batches, precisions, stacks."""
    one = load_cluster("sailor-gcp-24")
    asked = [("bert-base", 24, "fp16", "generic"), ("bert-base", 24, "fp16", "megatron-core")]
    asked += [
        ("bert-base", 24, "fp32", "generic"),
        ("bert-base", 48, "fp16", "generic"),
        ("gpt2", 24, "fp16", "generic"),
    ]

    def bound(cluster: Cluster, network: str, batch: int, precision: Any, stack: str) -> float:
        return least(Problem(load_workload(network), cluster, batch, precision=precision, stack=load_stack(stack)))

    alone = [bound(replace(one, name=f"{number}"), *case) for number, case in enumerate(asked)]
    assert len(set(alone)) == len(alone)
    assert [bound(one, *case) for case in asked] == alone
    monkeypatch.setattr(least_ops, "MOST_KNOWN", 200)
    assert [bound(replace(one, name="little kept"), *case) for case in asked[::2]] == alone[::2]


def test_experts_are_on_no_more_devices_than_there_are() -> None:
    """One device reads the weights of all four experts: with two samples at once it attains the bound."""
    (layer,) = uniform_chain(1).layers
    experts = replace(layer, kind="linear", experts=4, parameters=10**9)
    problem = Problem(replace(uniform_chain(1), layers=(experts,)), _switched((_gpu(),)), 2)
    plan = Plan("hand", "gpipe", stages_from_cuts((), 1, [(0,)]), (2,))
    assert least(problem) == pytest.approx(simulate(problem, plan).iteration_seconds, rel=1e-8)


def test_the_bound_knows_that_ops_may_overlap() -> None:
    """Where a forward and a backward together take half their seconds, so may all of them."""
    problem = Problem(chain([1e9] * 4, parameters=[0] * 4), _switched((_gpu(), _gpu())), 8)
    assert least(replace(problem, overlap=0.5), flush=False) == 0.5 * least(problem, flush=False)


def test_latency_is_that_of_one_sample_through_all_layers() -> None:
    """On GPUs of two speeds: the quick one's forwards and gradients of inputs."""
    problem = Problem(random_chain(5, np.random.default_rng(0)), _switched((_gpu(), *(_gpu(3.0),) * 7)), 1)
    costs = LayerCosts(problem)
    forward, back = (float(costs.seconds(1, 1, phase).sum()) for phase in ("forward", "input_gradient"))
    assert least(problem) == pytest.approx(forward + back)
    assert least(problem, flush=False) < least(problem)


def test_profile_rows_between_sizes_are_used() -> None:
    """Rows of 2 s for 1 sample and 2 s for 4: the least seconds per sample are a half, at 4, though the batch has 6."""
    bare = measured_chain([1.0], [1.0])
    layer = replace(bare.layers[0], measured=((1.0, 1.0, 1.0), (4.0, 1.0, 1.0), (8.0, 4.0, 4.0)))
    problem = Problem(replace(bare, layers=(layer,)), _switched((_gpu(),)), 6)
    assert least(problem, flush=False) == pytest.approx(6 * 0.5)


def best_weighted_sum(seconds: np.ndarray) -> float:
    """The sum over jobs of the least of all kinds, at the weights that are found."""
    return float((seconds.T * best_weights(seconds)).min(axis=1).sum())


def test_devices_that_differ_by_layer_take_what_they_are_good_at() -> None:
    """Each of three devices does one of three jobs in 1 s and the others in 10 s: 1 s is the optimum of the assignment."""
    assert best_weighted_sum(np.full((3, 3), 10.0) - 9.0 * np.eye(3)) == pytest.approx(1.0)


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=20)
def test_weights_of_two_kinds_are_the_best_of_all(jobs: int, seed: int) -> None:
    """The sum is concave and bends where a job changes hands: the largest value of all is at one of these weights."""
    one, two = np.random.default_rng(seed).uniform(0.1, 3.0, (2, jobs))
    bends = two / (one + two)
    best = max(float(np.minimum(y * one, (1.0 - y) * two).sum()) for y in bends)
    assert best_weighted_sum(np.array([one, two])) == pytest.approx(best, rel=1e-9)


def _replayed(problem: Problem, plan: Plan) -> float:
    """Seconds of an iteration; a replay below its bound would raise."""
    outcome = simulate(problem, plan)
    assert outcome.lower_bound == lower_bound(problem).of(flush=outcome.schedule.flush)
    return outcome.iteration_seconds


def test_plans_of_measured_layers_attain_the_bound() -> None:
    """Layers of 3 + 6 seconds for 4 samples, no weights. 16 samples, half on each of two devices that hold all layers: 18 s, the
    work. Half the work on each device in a stream without a flush: 18 s, the work. One sample: 9/4 s, its latency.
    """
    problem = Problem(measured_chain([1.0, 2.0], [2.0, 4.0], samples=4.0), _switched((_gpu(), _gpu())), 16)
    both = Plan("hand", "gpipe", stages_from_cuts((), 2, [(0, 1)]), (16,))
    assert _replayed(problem, both) == pytest.approx(least(problem)) == pytest.approx(18.0)
    board = load_accelerator("vcu118")
    assert least(replace(problem, cluster=_switched((board, board)), recompute=True), flush=False) == pytest.approx(
        18.0
    )
    alone = replace(problem, batch=1)
    one = Plan("hand", "gpipe", stages_from_cuts((), 2, [(0,)]), (1,))
    assert _replayed(alone, one) == pytest.approx(least(alone)) == pytest.approx(9.0 / 4.0)
    even = replace(problem, workload=measured_chain([1.5, 1.5], [3.0, 3.0], samples=4.0))
    stream = Plan("hand", "pipedream", stages_from_cuts((1,), 2, [(0,), (1,)]), (4,) * 4)
    assert _replayed(even, stream) == pytest.approx(least(even, flush=False), rel=1e-5)  # but for the latency of links
    assert least(even, flush=False) == pytest.approx(18.0)


def test_unlike_devices_attain_the_bound() -> None:
    """Devices at 1 and 3 FLOP/s and 12 samples of 1 and of 3 FLOP, three passes each: 36 s, each device its layer."""
    cluster = replace(star_cluster(2, bandwidth=1e9), devices=(UnitDevice(), UnitDevice(rate=3.0)))
    problem = Problem(chain([1.0, 3.0]), cluster, 12)
    stream = Plan("hand", "pipedream", stages_from_cuts((1,), 2, [(0,), (1,)]), (1,) * 12)
    assert _replayed(problem, stream) == pytest.approx(least(problem, flush=False)) == pytest.approx(36.0)


def test_recomputation_of_a_problem_is_no_restriction() -> None:
    """VGG-16 on one V100 where stages run again: the plan that says none is 27 % faster than all that do, and not below."""
    cluster = load_cluster("pipedream-b").take(1)
    problem = Problem(load_workload("vgg16"), cluster, 16, optimizer="sgd", recompute="whole")
    whole = Plan("hand", "gpipe", stages_from_cuts((), len(problem.workload), [(0,)]), (16,))
    kept = _replayed(problem, replace(whole, recompute=("none",)))
    assert least(problem) <= kept < 0.74 * _replayed(problem, whole)
    assert least(problem) == pytest.approx(kept, rel=0.03)


def test_forwards_that_run_again_early_are_free() -> None:
    """Two stages of 1 + 2 s; the first runs its forward again while the second works: 6 s, as without."""
    problem = Problem(measured_chain([1.0, 1.0], [2.0, 2.0]), _switched((_gpu(), _gpu())), 1, recompute="whole")
    order = "0F0 0A0 0B0", "1F0 1A0 1B0"
    plan = Plan("hand", "own", stages_from_cuts((1,), 2, [(0,), (1,)]), (1,), order=order, recompute=("whole", "none"))
    early = replace(plan, order=("0F0 0A0 0B0", "1F0 1B0"))
    assert least(problem) == pytest.approx(6.0)
    assert least(problem) <= _replayed(problem, early) == pytest.approx(6.0, rel=1e-4)
    with pytest.raises(
        InfeasiblePlanError,
        match="the order of plan 'hand' runs forwards of stage 1 again, whose recompute says none",
    ):
        simulate(problem, plan)


@pytest.mark.parametrize("how", ["slices", "context", "tensor"])
def test_parts_of_a_sample_take_less_than_all_of_it_in_a_row(how: str) -> None:
    """Four layers of 12 FLOP each way, a sample, four devices: 96 s in a row without gradients of weights. In 12 slices on four
    stages, and in four parts of its context or of its layers, it takes less, and no less than the work, 36 s.
    """
    layers = [replace(one, split="heads") for one in chain([12.0] * 4, parameters=[1] * 4).layers]
    layers[1] = replace(layers[1], kind="attention", causal_tokens=24)
    cluster = replace(star_cluster(4, bandwidth=1e12), tensor_groups="cluster")
    workload = Workload("tokens", tuple(layers), tuple(pairwise(range(4))))
    problem = Problem(workload, cluster, 1)
    stages = stages_from_cuts((1, 2, 3), 4, [(0,), (1,), (2,), (3,)])
    group = tuple(replace(one, degrees=(4,)) for one in stages_from_cuts((), 4, [(0, 1, 2, 3)]))
    plan = {
        "slices": Plan("hand", "seq1f1b", stages, (1,), options=(("slices", 12),)),
        "context": Plan("hand", "gpipe", group, (1,), context=4),
        "tensor": Plan("hand", "gpipe", group, (1,)),
    }[how]
    assert least(problem) == pytest.approx(36.0)
    assert least(problem) <= _replayed(problem, plan) < 96.0


@pytest.mark.parametrize("devices", [8, 16])
def test_groups_of_many_devices_take_no_less_than_the_work(devices: int) -> None:
    """Four layers of 48 FLOP each way, one sample, a group of all devices, up to MOST_TOGETHER and beyond: 384 s in a row on one
    without gradients of weights, and together the work, 576 s over all of them.
    """
    layers = tuple(replace(one, split="heads") for one in chain([48.0] * 4, parameters=[1] * 4).layers)
    cluster = replace(star_cluster(devices, bandwidth=1e12), tensor_groups="cluster")
    problem = Problem(Workload("wide", layers, tuple(pairwise(range(4)))), cluster, 1)
    (stage,) = stages_from_cuts((), 4, [tuple(range(devices))])
    plan = Plan("hand", "gpipe", (replace(stage, degrees=(devices,)),), (1,))
    assert least(problem) == pytest.approx(576.0 / devices)
    assert _replayed(problem, plan) == pytest.approx(576.0 / devices, rel=1e-3)


@dataclass(frozen=True)
class _Heavy(UnitDevice):
    """A device that takes a second for each weight and for each sample; gradients of weights and updates are free."""

    def seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        return 0.0 if phase == "weight_gradient" or work.kind == "elementwise" else work.parameters + samples


def test_experts_are_read_or_exchanged() -> None:
    """Two experts of 12 weights between two layers, two devices with a sample each. With an expert for each it takes 1 + 13 + 1 s
    each way, and twice 1.5 s to exchange the samples on links at 5 GB/s; with all experts on both 27 s each way.
    """
    layers = list(chain([1.0] * 3, output_elements=[3.75e9] * 3, parameters=[0, 24, 0]).layers)
    layers[1] = replace(layers[1], experts=2)
    cluster = replace(_switched((_gpu(), _gpu())), devices=(_Heavy(),) * 2)
    problem = Problem(Workload("experts", tuple(layers), ((0, 1), (1, 2))), cluster, 2)
    both = Plan("hand", "gpipe", stages_from_cuts((), 3, [(0, 1)]), (2,))
    whole, divided = _replayed(problem, both), _replayed(problem, replace(both, expert=2))
    assert least(problem) == pytest.approx(36.0, rel=1e-3)
    assert divided == pytest.approx(36.0, rel=1e-3)
    slow = replace(problem, cluster=replace(cluster, links=tuple(replace(one, bandwidth=5e8) for one in cluster.links)))
    assert least(slow) == pytest.approx(54.0, rel=1e-3)
    assert whole > 54.0


def test_slices_have_on_the_mean_the_way_of_a_part() -> None:
    """Of 24 tokens each takes a 24th of 12 s of three layers and, on the mean, of the scores; more devices than all of them."""
    layers = chain([12.0] * 4, parameters=[1] * 4).layers
    attention = replace(layers[1], kind="attention", parameters=0, causal_tokens=24)
    workload = Workload("tokens", (layers[0], attention, *layers[2:]), tuple(pairwise(range(4))))
    assert least(Problem(workload, star_cluster(96), 1)) == pytest.approx(2 * 4 * 12 / 24)


@dataclass(frozen=True)
class _Slow(UnitDevice):
    """A device that takes a second for each op, beside one for each sample; gradients of weights are free."""

    def seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        return 0.0 if phase == "weight_gradient" else 1.0 + samples


def test_no_size_of_an_op_has_both_little_work_and_a_short_way() -> None:
    """Two devices, four samples, five layers. As one op on each device they take 3 s a pass, 30 s. Larger ops on one device take
    longer, and more of them on both are more work; work alone is 4 samples of 5/4 s on two devices, the way alone 2 s.
    """
    cluster = replace(_switched((_gpu(), _gpu())), devices=(_Slow(), _Slow()))
    problem = Problem(chain([1.0] * 5, parameters=[0] * 5), cluster, 4)
    both = Plan("hand", "gpipe", stages_from_cuts((), 5, [(0, 1)]), (4,))
    assert least(problem) == pytest.approx(30.0, rel=1e-3)
    assert least(problem, flush=False) == pytest.approx(10 * 2.5)
    assert _replayed(problem, both) == pytest.approx(30.0, rel=1e-3)


def test_a_group_waits_for_what_it_reduces() -> None:
    """A layer of 12 s each way, one sample, two devices: alone 18 s of work for each and a way of 24 s; as a group as much work,
    a way of 12 s, and 3 s for the sum of its output. A quarter of the way and the rest of the work make 19.5 s of both.
    """
    layer = replace(chain([12.0], output_elements=[3.75e9], parameters=[1]).layers[0], split="rows")
    cluster = replace(_switched((_gpu(), _gpu())), devices=(UnitDevice(),) * 2)
    problem = Problem(Workload("one", (layer,), ()), cluster, 1)
    assert least(problem) == pytest.approx(19.5, rel=1e-3)
    assert least(replace(problem, cluster=replace(cluster, tensor_groups="cluster"))) == pytest.approx(18.0, rel=1e-3)
    group = Plan("hand", "gpipe", (replace(stages_from_cuts((), 1, [(0, 1)])[0], degrees=(2,)),), (1,))
    assert _replayed(problem, group) == pytest.approx(21.0, rel=1e-3)


def test_a_bound_is_kept_with_costs_for_its_problem_alone() -> None:
    """Asked again it is the same object; of another problem the bound is that problem's, whatever costs are given with it."""
    problem = Problem(uniform_chain(3), _switched((_gpu(), _gpu(2.0))), 4)
    larger, costs = replace(problem, batch=8), LayerCosts(problem)
    assert lower_bound(problem, costs) is lower_bound(problem, costs)
    assert lower_bound(larger, costs) == lower_bound(larger)
    assert lower_bound(problem, costs) == lower_bound(problem) != lower_bound(larger)


def test_a_replay_below_the_bound_is_an_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the plan and both figures; a planner's answer, too, ends in it. A noisy replay has no bound."""
    problem = Problem(uniform_chain(2), _switched((_gpu(),)), 4)
    plan = Plan("hand", "gpipe", stages_from_cuts((), 2, [(0,)]), (4,))
    noisy = simulate(problem, plan, noise=0.1, rng=np.random.default_rng(0))
    assert noisy.lower_bound is None
    assert (noisy.record()["lower_bound_seconds"], np.isnan(noisy.gap)) == (None, True)
    wrong = LowerBound((BoundTerm("work", 1e6, False),))
    monkeypatch.setattr(simulation, "lower_bound", lambda *given: wrong)
    with pytest.raises(
        UndercutBoundError,
        match=r"^internal error: plan 'hand' .* by its work, 1000000 s; please report this with the plan",
    ) as raised:
        simulate(problem, plan)
    assert raised.value.outcome is not None
    assert raised.value.outcome.plan == plan
    with pytest.raises(UndercutBoundError, match="plan 'uniform'"):
        make_plan("uniform", problem)


def test_a_wide_gap_is_told_with_what_the_bound_does_not_count() -> None:
    """One of two devices computes while the other waits, forward and back; of a stream without a flush work alone counts."""
    problem = Problem(uniform_chain(2), _switched((_gpu(), _gpu())), 4)
    alone = Plan("hand", "gpipe", stages_from_cuts((), 2, [(0,)]), (4,))
    apart = Plan("hand", "gpipe", stages_from_cuts((1,), 2, [(0,), (1,)]), (4,))
    one = simulate(problem, apart)
    split = 100 * one.time_split().mean / one.iteration_seconds
    assert one.gap > simulation.WIDE_GAP
    (line,) = one.beyond_bound()
    assert line.startswith(
        "the bound counts computation and what groups reduce and exchange in it, evenly on all devices, and "
    )
    told = {name: int(share) for name, share in re.findall(r"([a-z][a-z -]+) (\d+) %", line.split(" in use are ")[1])}
    assert told == {name: round(share) for name, share in zip(TIME_PARTS, split, strict=True) if share >= 1}
    assert list(told.values()) == sorted(told.values(), reverse=True)
    assert line in one.remarks()
    stream = simulate(problem, replace(alone, schedule="pipedream"))
    (work,) = stream.beyond_bound()
    assert work.startswith("the bound counts computation alone, evenly on all devices, in ops of the whole batch; ")
    near = simulate(Problem(uniform_chain(2), _switched((_gpu(),)), 4), alone)
    assert (near.gap < simulation.WIDE_GAP, near.beyond_bound()) == (True, ())


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=20)
def test_weighted_sum_never_passes_an_assignment(kinds: int, jobs: int, seed: int) -> None:
    """Whatever whole assignment of jobs to devices: its slowest device takes no less than the bound."""
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(0.0, 3.0, (kinds, jobs)) * rng.integers(0, 2, (kinds, jobs))
    bound = best_weighted_sum(seconds)
    for _ in range(20):
        chosen = rng.integers(0, kinds, jobs)
        slowest = max(seconds[kind, chosen == kind].sum() for kind in range(kinds))
        assert bound <= slowest + 1e-12


@dataclass(frozen=True)
class _Odd:
    """A device whose passes of one number of samples are free of overhead: the least seconds per sample may lie in the middle."""

    quick: int = 3
    name: str = "odd"
    memory_bytes: float = 2.0**36
    streams: bool = False
    sublinear: bool = False

    def seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """A second a sample, and another one unless there are `quick`."""
        if phase == "input_gradient":
            return 0.0
        return samples * (1.0 if samples == self.quick else 2.0)


@pytest.mark.parametrize(("quick", "seconds"), [(1, 14.0), (3, 14.0), (7, 14.0), (8, 28.0)])
def test_other_accelerators_are_asked_for_every_size(quick: int, seconds: float) -> None:
    """One size costs 1 s per sample each way, all others 2 s: 7 samples cost at least 14 s, and 28 if they are too few for it."""
    problem = Problem(chain([1e9], output_elements=[1e5]), _switched((_Odd(quick),)), 7)
    assert least(problem, flush=False) == pytest.approx(seconds)


@pytest.mark.parametrize("seed", [1, 3])
def test_weights_of_three_kinds_are_better_than_any_of_a_grid(seed: int) -> None:
    """Of seconds with which pair after pair does not stop short: no weights in fortieths have a larger sum."""
    seconds = np.random.default_rng(seed).uniform(0.1, 3.0, (3, 4))
    grid = ((one / 40, two / 40, (40 - one - two) / 40) for one in range(41) for two in range(41 - one))
    assert best_weighted_sum(seconds) >= max((seconds.T * weights).min(axis=1).sum() for weights in grid)


# ---- plans that decide anything --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uneven:
    """A device that is not `sublinear`: some sizes are quicker, and a part of a layer takes more or less than its part."""

    exponent: float
    name: str = "uneven"
    memory_bytes: float = 1e12
    streams: bool = False
    sublinear: bool = False
    host_bandwidth: float = 1e5

    def seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """The FLOP to a power, for each sample; every third size is quick."""
        factor = (1.0 if samples % 3 else 0.4) * (2.0 if phase == "backward" else 1.0)
        return float(factor * samples * work.flop**self.exponent)


def test_a_layer_whose_parts_may_take_less_than_it_bounds_nothing() -> None:
    """Seconds that are the square of FLOP: two halves take half of them. Where nothing divides the layer they count."""
    whole = chain([4.0], output_elements=[1.0])
    divided = replace(whole, layers=(replace(whole.layers[0], split="columns"),))
    cluster = replace(star_cluster(2), devices=(Uneven(2.0),) * 2, tensor_groups="cluster")
    assert least(Problem(whole, cluster, 1)) > 30.0
    experts = replace(whole, layers=(replace(whole.layers[0], kind="linear", experts=2, parameters=2),))
    assert least(Problem(divided, cluster, 1)) == least(Problem(experts, cluster, 1)) == 0.0


def _any_device(rng: random.Random, *, board: bool) -> Accelerator:
    """A GPU, a board, or a device that is written by hand."""
    what = rng.choice(("gpu", "gpu", "gpu", "board" if board else "gpu", "hand", "uneven"))
    if what == "gpu":
        return _any_gpu(rng)
    if what == "hand":
        return UnitDevice(rate=10.0 ** rng.uniform(-1, 1))  # type: ignore[return-value]
    if what == "uneven":
        return Uneven(rng.choice((0.5, 1.0, 2.0)))  # type: ignore[return-value]
    return FieldProgrammableGateArray(
        "board",
        rng.choice((64, 1000)),
        clock=10.0 ** rng.uniform(-4, -1),
        macs_per_cycle={"fp32": 0.5, "fp16": 1.0},
        efficiency=rng.uniform(0.3, 1.0),
        on_chip_bytes=10.0 ** rng.uniform(2, 5),
        ddr_bytes=1e12,
        ddr_bandwidth=10.0 ** rng.uniform(3, 7),
        transceiver_bandwidth=1e9,
    )


def _any_gpu(rng: random.Random) -> GraphicsProcessor:
    """Figures of any size, which differ by kind of layer."""
    efficiencies = {
        kind: KindEfficiency(
            *(rng.uniform(0.2, 1.0) for _ in range(4)),
            saturation_seconds=rng.choice((0.0, 0.1, 5.0)),
            window_exponent=rng.choice((0.0, 0.4)),
            tile=rng.choice((0.0, 16.0)),
            accumulated=rng.choice((0.0, 1.0)),
            accumulated_experts=rng.choice((0.0, 2.0)),
        )
        for kind in DEFAULT_EFFICIENCIES
    }
    overheads = ("call_overhead", "step_overhead", "launch_overhead", "pass_overhead", "forward_hook", "gradient_hook")
    beside = {name: rng.choice((0.0, 0.01, 1.0)) for name in overheads}
    memory, rate = 10.0 ** rng.uniform(3, 7), 10.0 ** rng.uniform(-1, 2)
    peaks = {"fp32": rate, "fp16": 2.0 * rate}
    return GraphicsProcessor("gpu", 1e12, memory, peaks, host_bandwidth=1e5, efficiencies=efficiencies, **beside)


BY_TOKEN = ("linear", "embedding", "normalization", "activation", "dropout", "elementwise", "loss", "reshape")


def _any_layer(layer: Layer, rng: random.Random, kinds: Sequence[str], *, measured: bool) -> Layer:
    """The layer with another kind, other figures, or a profile, whose seconds may fall with its samples."""
    changes: dict[str, Any] = {"scratch_elements": rng.choice((0.0, 1e4)), "sequential_steps": rng.choice((1, 3))}
    if layer.kind == "attention":
        changes["fused_pairs"] = rng.choice((0.0, 0.5, 0.75))
    elif not layer.experts:
        changes |= {"kind": rng.choice(kinds), "channels": rng.choice(((0, 0), (3, 64), (1, 1)))}
    if measured:
        sizes = sorted(rng.sample((0.5, 1.0, 2.5, 3.0, 6.0, 11.5, 30.0), rng.randint(1, 3)))
        rows = ((size, rng.choice((0.0, rng.random() * size)), rng.random()) for size in sizes)
        changes["measured"] = tuple(rows)
    return replace(layer, flop=layer.flop * rng.choice((1.0, 10.0)), **changes)


def _in_racks(cluster: Cluster, *_: object) -> Cluster:
    """The devices in two racks whose switches share a slow link."""
    racks = "left", "right"
    links = [Link(node, racks[number % 2], 1e6) for number, node in enumerate(cluster.nodes)]
    return replace(
        cluster, switches=(*racks, "core"), links=(*links, *(Link(rack, "core", 1e4, 0.1) for rack in racks))
    )


def _in_servers(cluster: Cluster, plan: Plan, rng: random.Random) -> Cluster:
    """Neighbours in servers, no tensor-parallel group in two of them, on links of any speed and kind."""
    parts = [part for stage in plan.stages for part in tensor_groups(stage.replicas, plan.context)]
    if any(part != tuple(range(part[0], part[0] + len(part))) for part in parts):
        return cluster
    count, joined = len(cluster.devices), {device for part in parts for device in part[1:]}
    begins = [one for one in range(count) if not one or (one not in joined and rng.random() < 0.5)]
    servers = tuple(tuple(range(*ends)) for ends in pairwise([*begins, count]))
    inside, between = 10.0 ** rng.uniform(2, 9), 10.0 ** rng.uniform(2, 9)
    kind = rng.choice((None, "nvlink-3", "nvlink-4", "pcie"))
    links = [
        Link(cluster.nodes[device], f"inside{number}", inside, 1e-5, fabric=kind, in_switch=0.5)
        for number, server in enumerate(servers)
        for device in server
    ]
    outer = (Link(f"inside{number}", "core", between, 1e-4) for number in range(len(servers)))
    switches = (*(f"inside{number}" for number in range(len(servers))), "core")
    return replace(cluster, servers=servers, switches=switches, links=(*links, *outer), tensor_groups="server")


def _on_anything(problem: Problem, plan: Plan, rng: random.Random) -> Problem:
    """The same question of other layers on other devices."""
    workload, parts = problem.workload, plan.context > 1 or plan.slices > 1
    profiled = rng.random() < 0.3 and not parts
    kinds = BY_TOKEN if parts or rng.random() < 0.5 else (*BY_TOKEN, "convolution", "recurrent", "pooling")
    layers = [_any_layer(layer, rng, kinds, measured=profiled and rng.random() < 0.6) for layer in workload.layers]
    offloads = any("O" in line for line in plan.order)
    made = [_any_device(rng, board=not offloads) for _ in range(rng.choice((1, 2, 4)))]
    devices = tuple(rng.choice(made) for _ in problem.cluster.devices)
    placed = rng.choice((_in_servers, _in_servers, _in_racks, lambda cluster, *_: cluster))
    return replace(
        problem,
        workload=replace(workload, layers=tuple(layers), bytes_per_element=rng.choice((2, 4)) if profiled else None),
        cluster=replace(placed(problem.cluster, plan, rng), devices=devices),
        precision="fp16" if all(hasattr(one, "precisions") for one in devices) and rng.random() < 0.5 else "fp32",
        optimizer=rng.choice(("sgd", "momentum", "adam")),
        gradient_bytes=rng.choice((0, 4)),
        overlap=rng.choice((1.0, 0.5, 0.01)),
    )


@st.composite
def decided_plans(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """A plan of any family or of an order of its own, flushed or not, of replicas that are devices or groups, with anything that
    a plan can decide, on random layers and devices, which neighbouring stages may share.
    """
    problem, (plan, *_) = draw(st.one_of(plans(1), plans(1, ASYNCHRONOUS), grouped_plans(), sliced_plans()))
    rng = random.Random(draw(st.integers(0, 10**9)))
    problem = _on_anything(problem, plan, rng)
    return problem, split_between_stages(problem.workload, plan, rng) if draw(st.booleans()) else plan


@st.composite
def sliced_plans(draw: st.DrawFn) -> tuple[Problem, list[Plan]]:
    """A plan of slices of sequences of 12 tokens, on groups that divide the layers between them."""
    stages, degree, batch = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(2, 6))
    rng = random.Random(draw(st.integers(0, 10**9)))
    several = random_chain(stages + 2, np.random.default_rng(rng.randrange(2**32)), flop=1.0, parameters=1000).layers
    splits = [replace(one, split=rng.choice(get_args(Split))) for one in several]
    attention = replace(splits[1], kind="attention", causal_tokens=12, parameters=0, split=rng.choice(("heads", "")))
    workload = Workload("tokens", (splits[0], attention, *splits[2:]), tuple(pairwise(range(stages + 2))))
    cluster = replace(star_cluster(stages * degree, bandwidth=rng.choice((1e3, 1e9))), tensor_groups="cluster")
    groups = [tuple(range(first, first + degree)) for first in range(0, stages * degree, degree)]
    held = stages_from_cuts(sorted(rng.sample(range(1, stages + 2), stages - 1)), stages + 2, groups)
    one = tuple(replace(stage, degrees=(degree,) if any(splits) else ()) for stage in held)
    problem = Problem(workload, cluster, batch, sequence_parallel=rng.random() < 0.5)
    sizes = equal_microbatches(batch, draw(st.integers(1, batch)))
    return problem, [Plan("hand", "seq1f1b", one, sizes, options=(("slices", draw(st.integers(1, 12))),))]


@settings(max_examples=10)
@given(sliced_plans(), st.integers(0, 10**9))
def test_parts_of_a_layer_take_together_no_less_than_it(case: tuple[Problem, list[Plan]], seed: int) -> None:
    """On GPUs of any figures: slices, parts of the context, and shares of a tensor-parallel group, in every pass."""
    rng, whole = random.Random(seed), case[0].workload
    layers = [_any_layer(layer, rng, BY_TOKEN, measured=False) for layer in whole.layers]
    whole = replace(whole, layers=tuple(layers))
    samples, gpu = rng.randint(1, 9), _any_gpu(rng)

    def seconds(works: Iterable[Work], size: float = samples) -> NDArray[np.float64]:
        phases: tuple[Phase, ...] = ("forward", "input_gradient", "weight_gradient")
        return np.array([[gpu.seconds(work, size, phase, "fp32") for phase in phases] for work in works])

    def of_samples(size: float) -> NDArray[np.float64]:
        """Seconds of so many samples, whole or not, of the layers."""
        return seconds(whole.works(), size) * (1.0 - 1e-12)

    at_least = seconds(whole.works()) * (1.0 - 1e-12)
    for count in (2, 3, 12):
        slices = [slice_of(whole, number, count).works() for number in range(count)]
        assert (sum(map(seconds, slices)) >= at_least).all()
        assert (sum(map(seconds, slices)) >= count * of_samples(samples / count)).all()
    for count in (2, 3, 6):
        part = seconds(context_part(whole, count).works())
        assert (count * part >= at_least).all()
        assert (part >= of_samples(samples / count)).all()
    for count in (2, 3, 7):
        divided = rng.random() < 0.5
        pairs = zip(whole.layers, whole.works(), strict=True)
        shares = [share_of(*pair, count, sequence_parallel=divided).work for pair in pairs]
        assert (count * seconds(shares) >= at_least).all()


@pytest.mark.parametrize("name", ["dgx-h100:4", "dgx-1-v100", "pipedream-a", "sailor-mit-4", "dapple-b:4"])
def test_no_group_reduces_or_exchanges_in_less_than_the_least(name: str) -> None:
    """Groups of any devices of servers, beside others and alone, with contexts and experts."""
    cluster, rng = load_cluster(name), random.Random(name)
    problem = Problem(load_workload("mixtral-8x7b"), cluster, 8, precision="fp16", sequence_parallel=rng.random() < 0.5)
    known = LeastOpsOf(problem, LayerCosts(problem))
    for _ in range(30):
        degree, context = rng.randint(1, max(map(len, cluster.servers))), rng.choice((1, 2))
        shuffled = (rng.sample(server, len(server)) for server in cluster.servers)
        parts = [one[at : at + degree] for one in shuffled for at in range(0, len(one) - degree + 1, degree)]
        if len(parts) < context:
            continue
        replicas = rng.randint(1, len(parts) // context)
        parts = rng.sample(parts, context * replicas)
        stage = Stage((0,), tuple(device for part in parts for device in part), (degree * context,) * replicas)
        expert = rng.choice([one for one in (1, 2, 4, 8) if len(parts) % one == 0])
        rates = StagePlaces(stage, problem, context, expert).rates(0)
        for size in (1.0, 1e4, 1e6, 1e8):
            assert reduce_seconds(known.reductions(degree), size) <= reduce_seconds(rates.tensor, size) * (1.0 + 1e-12)
        assert known.exchange_rate(expert) <= (rates.expert[0][1] if expert > 1 else 0.0) * (1.0 + 1e-12)


@pytest.mark.parametrize("degree", [2, 4, 8, 16])
def test_exchanges_of_devices_that_are_alike_take_the_least(degree: int) -> None:
    """Of eight of a server, whose links they share evenly, and of two servers, between which each has a card of its own."""
    cluster = load_cluster("dgx-h100:2")
    problem = Problem(load_workload("mixtral-8x7b"), cluster, 8, precision="bf16")
    known = LeastOpsOf(problem, LayerCosts(problem)).exchange_rate(degree)
    assert known == pytest.approx(cluster.collectives.alltoall_rates(range(degree))[0][1])


def test_the_least_of_an_exchange_is_that_of_the_fastest_links_that_leave_a_device() -> None:
    """Two servers on unlike switches (8 and 4 bytes/s) and a trunk (1 byte/s): of three devices one is beyond the trunk.

    On a tree only the links of devices are counted, in a row nothing.
    """

    def least(cluster: Cluster) -> list[float]:
        problem = Problem(chain([1.0]), replace(cluster, devices=(UnitDevice(),) * 4), 8)
        known = LeastOpsOf(problem, LayerCosts(problem))
        return [known.exchange_rate(degree) for degree in (1, 2, 3)]

    nodes, speeds = tuple("abcd"), (8.0, 8.0, 4.0, 4.0)
    links = [Link(node, f"s{speed:g}", speed) for node, speed in zip(nodes, speeds, strict=True)]
    links += [Link(node, "trunk", 1.0) for node in nodes]
    switches, servers = ("s8", "s4", "trunk"), ((0, 1), (2, 3))
    stars = Cluster("stars", (UnitDevice(),) * 4, nodes, switches, servers, tuple(links))
    assert least(stars) == [0.0, pytest.approx(1 / (8 + 1) / 2), pytest.approx(1 / 1 / 3)]
    assert least(tree((2, 2.0), (2, 1.0))) == [0.0, pytest.approx(1 / 2 / 2), pytest.approx(2 / 2 / 3)]
    assert least(chain_cluster(4)) == [0.0, 0.0, 0.0]


def _least_of_all(problem: Problem, number: int, cost: float, way: float) -> float:
    """What `LeastOps.least` is of a layer, looked up for every size of its ops, in groups of every degree on devices that are
    alike.
    """
    layer, work, overlap = problem.workload.layers[number], LayerCosts(problem).works[number], problem.overlap
    device, element, seconds = problem.cluster.devices[0], problem.element_bytes, problem.cluster.collectives.seconds
    both = (Operation.REDUCE_SCATTER, Operation.ALL_GATHER) if problem.sequence_parallel else (Operation.ALL_REDUCE,)
    forwards, backs, agains = [], [], []
    for degree in range(1, len(problem.cluster.devices) + 1 if layer.split and not layer.measured else 2):
        share = share_of(layer, work, degree, sequence_parallel=problem.sequence_parallel)
        for size in range(1, problem.batch + 1):

            def took(phase: Phase, often: float, share: Share = share, size: int = size, degree: int = degree) -> float:
                if layer.measured:
                    return measured_layer_seconds(layer, size, phase)
                waits = sum(seconds(one, range(degree), share.reduced * element * size) for one in both)
                return device.seconds(share.work, size, phase, problem.precision) + often * waits

            each = degree * cost / size
            forward, back = overlap * took("forward", share.forward), overlap * took("backward", share.backward)
            inputs, weights = overlap * took("input_gradient", share.backward), took("weight_gradient", 0.0)
            forwards.append((each + way) * forward)
            backs.append(min((each + way) * back, (each + way) * inputs + each * weights))
            agains.append(each * forward)
    return min(
        min(map(sum, zip(forwards, backs, strict=True))), min(forwards) + min(map(sum, zip(backs, agains, strict=True)))
    )


def test_the_least_of_a_layer_is_that_of_all_sizes_and_degrees() -> None:
    """Random layers, profiled or not, that groups may divide or not, and batches of up to 9 samples on up to four GPUs."""
    rng = random.Random(7)
    for _ in range(20):
        layers = random_chain(4, np.random.default_rng(rng.randrange(100)), flop=10.0, parameters=1000).layers
        made = [_any_layer(one, rng, BY_TOKEN, measured=rng.random() < 0.25) for one in layers]
        split = tuple(replace(one, split="" if one.measured else rng.choice(get_args(Split))) for one in made)
        workload = Workload("any", split, tuple(pairwise(range(len(split)))), bytes_per_element=4)
        cluster = replace(_switched((_any_gpu(rng),) * rng.randint(1, 4)), tensor_groups="server")
        problem = Problem(workload, cluster, rng.randint(1, 9), overlap=rng.choice((1.0, 0.5)))
        problem = replace(problem, sequence_parallel=rng.random() < 0.5)
        known = LeastOpsOf(problem, LayerCosts(problem))
        for number, cost, way in product(range(4), (0.0, 1.0, 3.0), (0.0, 1.0)):
            least = known.of(number, 0, (1, 1)).least(cost, way)
            assert least == pytest.approx(_least_of_all(problem, number, cost, way), rel=1e-9), split[number]


def _holds(case: tuple[Problem, Plan]) -> None:
    """A replay below the bound would raise; what a board or a family cannot run has none."""
    with suppress(InfeasiblePlanError):
        outcome = simulate(*case, engine="compiled")
        bound = lower_bound(case[0]).of(flush=outcome.schedule.flush)
        assert outcome.lower_bound == bound
        assert bound.seconds <= outcome.iteration_seconds


@settings(max_examples=20)
@given(decided_plans())
def test_no_plan_whatever_it_decides_beats_the_bound(case: tuple[Problem, Plan]) -> None:
    """Recomputation, ops of their own for it, offload, pairs that overlap, tensor, context and expert degrees, ZeRO, slices,
    sizes by stage and pass, replicas that split or take turns, any order, weights that are shared, stale weights.
    """
    _holds(case)


@pytest.mark.slow
@settings(max_examples=500)
@given(decided_plans())
def test_none_of_hundreds_of_plans_beats_the_bound(case: tuple[Problem, Plan]) -> None:
    """As above, 500 of them."""
    _holds(case)


@dataclass
class _Changing:
    """An accelerator without a hash: each sample takes `pace` seconds in each pass."""

    pace: float = 1e-3
    name = "changing"
    memory_bytes = 2.0**34
    streams = False
    sublinear = True

    def seconds(self, work: Work, samples: int, phase: Phase, precision: Precision) -> float:
        return self.pace * samples


def test_the_bound_of_a_device_that_changes_changes() -> None:
    """It is not kept: a plug-in's accelerator may have no hash."""
    device = _Changing()
    cluster = replace(load_cluster("pipedream-a:1"), devices=(device,) * 4)
    problem = Problem(chain([1.0] * 4), cluster, 8)
    before = lower_bound(problem).of(flush=False).seconds
    assert make_plan("uniform", problem).iteration_seconds >= before > 0.0
    device.pace = 2e-3
    assert lower_bound(problem).of(flush=False).seconds == pytest.approx(2.0 * before)
