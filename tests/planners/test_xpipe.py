"""XPipe's planner: the closed form of its steady state against replays, its cuts and plans against all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice, pairwise, product
from math import inf

import numpy as np
import pytest

from hardware_profiles import load_cluster, load_stack
from planners import Evaluator, Request, make_plan
from planners.estimate.memory import RangeBytes
from planners.partitioning.partition_costs import every_cuts
from planners.search.candidates import straight_plan
from planners.testing import line
from planners.xpipe.staircase import PRECISION, Staircase, fastest_staircase, staircase_seconds
from planners.xpipe.stream_planner import StaircaseSearch
from simulator import InfeasiblePlanError, Problem, Workload, equal_microbatches, simulate, workload_from_spec
from simulator.plan_replay import stream_micro_batches
from tests.chains import chain
from tests.planners.conftest import with_memory
from tests.simulator.strategies import star_cluster

GNMT = workload_from_spec("gnmt8")


def problem(workload: Workload = GNMT, batch: int = 8, *, contention: bool = True) -> Problem:
    """On four servers of DAPPLE B, behind a link each."""
    return Problem(workload, load_cluster("dapple-b:4"), batch, contention=contention, optimizer="adam")


@pytest.mark.parametrize("contention", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_closed_form_is_what_a_replay_attains_or_less(seed: int, contention: bool) -> None:
    """Equal micro-batches without updates meet it where no links are shared; whatever there is, no replay is faster. Its stages
    have the samples in flight and the bytes of weights, copies and states of the replay's."""
    rng = np.random.default_rng(seed)
    count, stages, updates = int(rng.integers(1, 6)), int(rng.integers(1, 5)), seed % 2 > 0
    bare = chain(rng.uniform(1e9, 1e10, 9).tolist(), output_elements=rng.uniform(1e5, 1e7, 9).tolist())
    batch = count * int(rng.integers(1, 5)) + updates * int(rng.integers(count))
    one = problem(GNMT if updates else bare, batch, contention=contention)
    search = StaircaseSearch("xpipe", Request(), one, Evaluator(one))
    cuts = sorted(rng.choice(np.arange(1, len(one.workload)), stages - 1, replace=False).tolist())
    devices = tuple(range(stages))
    costs, sizes = search.staircase(search.row(devices), count), equal_microbatches(batch, count)
    assert costs.in_flight.tolist() == [sum(islice(cycle(sizes), stages - stage)) for stage in range(stages)]
    seconds = count * staircase_seconds(costs, cuts)
    outcome = simulate(one, straight_plan("xpipe", one, "xpipe", cuts, devices, count))
    replayed, states = outcome.iteration_seconds, np.diff(costs.held.states[[0, *cuts, len(one.workload)]])
    assert states.tolist() == [
        sum(device.peak_parts[name] for name in ("weights", "weight versions", "gradients", "optimizer"))
        for device in outcome.memory
    ]
    assert seconds <= replayed * (1.0 + 1e-9)
    assert search._shared(devices, cuts) <= replayed * (1.0 + 1e-9)
    if not updates:
        assert contention or seconds == pytest.approx(replayed, rel=1e-9)


def test_as_many_ops_as_may_be_replayed_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight micro-batches on two devices where the limit is what their stream has; fewer where it is one op less."""
    one, ops = problem(), 2 * 2 * stream_micro_batches(8, 2)
    for most, searched in ((ops, True), (ops - 1, False)):
        monkeypatch.setattr("planners.xpipe.stream_planner.MOST_OPS", most)
        shapes = [*StaircaseSearch("xpipe", Request(), one, Evaluator(one))._shapes()]
        assert (8 in {shape.microbatches for shape in shapes if len(shape.row.devices) == 2}) == searched


def staircase(seed: int, stages: int, layers: int) -> Staircase:
    """Seconds and bytes by chance."""
    rng = np.random.default_rng(seed)

    def before(*shape: int) -> np.ndarray:
        rows = rng.random((*shape, layers))
        return np.concatenate([np.zeros((*shape, 1)), rows.cumsum(axis=-1)], axis=-1)

    nothing = np.zeros((layers + 1, layers + 1))
    return Staircase(
        before=before(2),
        beside=0.1 * rng.random(2),
        updates=0.1 * before(2),
        predictions=0.1 * before(2),
        kind=rng.integers(2, size=stages),
        lasting=rng.random((stages - 1, layers + 1)),
        busy=rng.random((stages - 1, layers + 1)),
        held=RangeBytes(
            before(), before(), rng.random((layers + 1, layers + 1)), nothing, nothing, np.arange(layers + 1)
        ),
        room=rng.random(stages) * 3.0 * layers,
        in_flight=np.arange(stages, 0, -1.0),
        samples=1.0,
        waiting=0.5 * rng.random(layers + 1),
    )


def has_room(costs: Staircase, cuts: list[int]) -> bool:
    """Whether each stage is within its device."""
    bounds = [0, *cuts, costs.before.shape[1] - 1]
    for stage, (begin, end) in enumerate(pairwise(bounds)):
        kept = costs.held.kept[end] - costs.held.kept[begin] + costs.held.entering[begin, end]
        needed = costs.held.states[end] - costs.held.states[begin] + costs.in_flight[stage] * kept
        if needed + costs.waiting[begin] + costs.waiting[end] > costs.room[stage]:
            return False
    return True


@pytest.mark.parametrize("seed", range(12))
def test_the_fastest_cuts_are_found(seed: int) -> None:
    """Against all cuts that have room; where none is faster than what is known, none."""
    stages = seed % 4 + 1
    costs = staircase(seed, stages, 7)
    every = [cuts for cuts in every_cuts(7, stages).tolist() if has_room(costs, cuts)]
    best = min((staircase_seconds(costs, cuts) for cuts in every), default=inf)
    found = fastest_staircase(costs, 0.0, inf)
    assert (found is None) == (best == inf)
    if found is not None:
        assert best * (1.0 - 1e-8) <= found[0] <= best * (1.0 + 2 * PRECISION)
        assert has_room(costs, list(found[1]))
        assert fastest_staircase(costs, 0.0, best) is None


@pytest.mark.parametrize("memory", [0.9, *(pytest.param(part, marks=pytest.mark.slow) for part in (1.0, 0.85))])
def test_no_plan_of_its_space_is_faster(memory: float) -> None:
    """All numbers of stages and micro-batches, and all cuts of five unlike layers on three devices, replayed."""
    layers = chain([3e9, 1e9, 5e9, 2e9, 2e9], parameters=[10**6] * 5, output_elements=[4e5, 1e5, 2e5, 1e5, 1e3])
    one = Problem(layers, line(speeds=(1.0, 1.0, 1.0)), 4, contention=False)
    most = make_plan("xpipe", one).outcome.fullest.peak_bytes
    one = with_memory(one, most * memory)
    best = inf
    for stages, count in product(range(1, 4), range(1, 5)):
        for cuts in every_cuts(5, stages).tolist():
            outcome = simulate(one, straight_plan("mine", one, "xpipe", cuts, range(stages), count))
            best = min(best, outcome.iteration_seconds if outcome.fits else inf)
    assert make_plan("xpipe", one).iteration_seconds <= best * (1.0 + 1e-3)


def test_replays_slower_than_the_closed_form_do_not_end_the_search() -> None:
    """On one link for all transfers two micro-batches are 1.4 % faster than one, which is the faster by the closed form."""
    crowded = Problem(workload_from_spec("vgg16"), load_cluster("dapple-c:3"), 24, gradient_reduction="whole")
    every, two = (make_plan("xpipe", crowded, request) for request in (Request(), Request(microbatches=2)))
    assert every.outcome.iteration_seconds == two.outcome.iteration_seconds


def test_what_stages_send_over_one_channel_counts_together() -> None:
    """Around a switch of 1,000 bytes/s the middle one of three devices sends 4 samples' 20 bytes back and 30 on: 0.2 s."""
    one = Problem(chain([1.0] * 3, output_elements=[5.0, 7.5, 1.0]), star_cluster(3, bandwidth=1e3), 4)
    search = StaircaseSearch("xpipe", Request(), one, Evaluator(one))
    assert search._shared((0, 1, 2), (1, 2)) == pytest.approx(4 * (20 + 30) / 1e3)
    assert search._shared((0,), ()) == 0.0
    free = replace(one, contention=False)
    assert StaircaseSearch("xpipe", Request(), free, Evaluator(free))._shared((0, 1, 2), (1, 2)) == 0.0


def test_asked_for_stages_it_is_no_faster_where_links_are_shared() -> None:
    """Three stages are faster than the four plans that are the fastest in closed form, all of five stages or more."""
    layers, cluster = workload_from_spec("chain:9"), load_cluster("sailor-mit-4").take(8)
    one = Problem(layers, cluster, 16, gradient_reduction="whole", memory_reserve=0.5)
    every, *parts = (make_plan("xpipe", one, Request(stages=count)).iteration_seconds for count in (None, 2, 3, 5))
    assert every <= min(parts) * (1.0 + 1e-9)


def test_it_says_what_it_does_not_plan() -> None:
    """Another schedule, stacks without its own, of one stage, too, and memory that holds nothing, in one line each."""
    with pytest.raises(ValueError, match="XPipe runs its own order, xpipe, not '1f1b'"):
        make_plan("xpipe", problem(), Request(schedule="1f1b"))
    for request in (Request(), Request(stages=1)):
        with pytest.raises(ValueError, match=r"stack 'megatron-core' runs 1f1b, interleaved-1f1b, not 'xpipe'$"):
            make_plan("xpipe", replace(problem(), stack=load_stack("megatron-core")), request)
    with pytest.raises(
        InfeasiblePlanError,
        match=(
            r"planner 'xpipe' finds no partition of 27 layers over 4 GPUs within 0.009313 GiB per GPU, 3 "
            r"copies of the weights included; use more GPUs, recomputation or a smaller batch"
        ),
    ):
        make_plan("xpipe", with_memory(problem(), 1e7))


def test_it_tells_when_weights_are_updated() -> None:
    """Once in as many micro-batches as the plan has."""
    found = make_plan("xpipe", problem(), Request(microbatches=4))
    assert any("every 4 micro-batches" in one.text for one in found.notes)
    assert found.plan.schedule == "xpipe"


def test_stages_that_are_asked_for_are_kept() -> None:
    """One, two or three on three devices."""
    layers = chain([3e9, 1e9, 5e9, 2e9, 2e9], parameters=[10**6] * 5, output_elements=[4e5] * 5)
    one = Problem(layers, line(speeds=(1.0, 1.0, 1.0)), 4)
    found = [make_plan("xpipe", one, Request(stages=count)).plan for count in (1, 2, 3)]
    assert [len(plan.stages) for plan in found] == [1, 2, 3]
