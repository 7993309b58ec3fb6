"""Rules of the planners with orders of their own: layouts are as the simulator has them, the best of them is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from hardware_profiles import load_cluster
from planners import Evaluator, Request, make_plan, planner_entry, search_schedule
from planners.modern.layouts import Layout, LayoutCosts
from planners.modern.order_search import (
    AN_ORDER,
    FEW,
    FINALISTS,
    LARGEST,
    LISTS,
    WORK,
    OrderSearch,
    _Layouts,
    searched,
    searched_together,
)
from planners.scheduler.search import FoundSchedule, SearchInterrupted
from planners.search.candidates import counts_by_size, straight_plan
from planners.testing import line
from simulator import InfeasiblePlanError, LayerCosts, Problem, Score, check_schedule, simulate, to_text
from simulator.memory.device_memory import CATEGORIES
from simulator.workloads.synthetic import uniform_chain
from tests.chains import chain, random_chain
from tests.planners.conftest import with_memory
from tests.planners.reasons import applicable_planners

UNLIKE = Problem(
    random_chain(9, np.random.default_rng(3), flop=2e9, parameters=2_000_000),
    line(speeds=(1.0, 0.7)),
    12,
    contention=False,
)
"""Nine layers on two unlike devices."""

BLOCKS = replace(
    UNLIKE,
    workload=replace(
        UNLIKE.workload,
        layers=tuple(
            replace(layer, block=block)
            for layer, block in zip(UNLIKE.workload.layers, (0, 1, 1, 1, 2, 2, 2, 3, 3), strict=True)
        ),
    ),
)
"""The same, all but the first layer in blocks."""


@pytest.mark.parametrize(
    "layout",
    [
        Layout("straight", (0, 1), (4,), 6, ("none",) * 2),
        Layout("straight", (1, 0), (3,), 4, ("whole", "none")),
        Layout("v", (0, 1), (2, 4, 7), 6, ("none",) * 4),
        Layout("v", (0, 1), (2, 4, 7), 5, ("none", "whole") * 2),
        Layout("interleaved", (0, 1), (1, 5, 6), 12, ("none", "none", "whole", "none")),
        Layout("straight", (0, 1), (4,), 6, ("blocks", "blocks")),
        Layout("v", (0, 1), (2, 4, 7), 6, ("blocks", "none", "whole", "blocks")),
    ],
)
def test_the_search_sees_what_the_simulator_runs(layout: Layout) -> None:
    """On idle links the order ends when the search says, and devices hold what it counts beside buffers, up to its largest batch.

    Five micro-batches of twelve samples are unlike: the search takes all as the largest, so that it is never below the replay.
    """
    costs = LayoutCosts(LayerCosts(BLOCKS))
    problem = costs.schedule_problem(layout)
    found = search_schedule(problem, seconds=0.002)
    check_schedule(found.schedule)
    plan = costs.plan("modern", layout, found.schedule)
    outcome = simulate(BLOCKS, plan)
    rows = outcome.timeline.compute()
    alike = BLOCKS.batch % layout.microbatches == 0
    last = float(outcome.timeline.end[rows].max())
    assert last == pytest.approx(found.makespan, rel=1e-12) if alike else last <= found.makespan
    for memory in outcome.memory:
        place = layout.devices.index(memory.device)
        parts = dict(zip(CATEGORIES, memory.bytes.T, strict=True))
        held = parts["activations"] + parts["workspace"]
        limit, room = problem.each("limit")[place], found.peaks[place]
        fixed = memory.capacity_bytes - limit  # weights and the like, and the second forward of a stage that recomputes
        again = max((parts["workspace"].max(),)) if set(layout.recompute) != {"none"} else 0.0
        always = sum(parts[name][0] for name in CATEGORIES if name not in ("activations", "workspace", "buffers"))
        assert fixed == pytest.approx(always + again, abs=64)
        assert held.max() <= room + again + 64
        if alike and set(layout.recompute) == {"none"}:
            assert held.max() == pytest.approx(room, abs=64)


def test_no_partition_of_a_small_network_is_faster() -> None:
    """Every cut, number of micro-batches and placement of four unlike layers on two devices, each with its best order."""
    workload = random_chain(4, np.random.default_rng(5), flop=2e9, parameters=2_000_000)
    problem = Problem(workload, line(), 4, contention=False)
    evaluate = Evaluator(problem)
    costs = LayoutCosts(evaluate.layer_costs)
    best = np.inf
    for placement, stages in (("straight", 2), ("v", 4), ("interleaved", 4)):
        for cuts in combinations(range(1, 4), stages - 1):
            for count in (1, 2, 4):
                layout = Layout(placement, (0, 1), cuts, count, ("none",) * stages)  # type: ignore[arg-type]
                found = search_schedule(costs.schedule_problem(layout), seconds=0.005)
                best = min(best, evaluate(costs.plan("each", layout, found.schedule)).iteration_seconds)
    result = make_plan("modern", problem, Request(options={"seconds": "0.005"}))
    assert result.outcome.iteration_seconds <= best * (1 + 1e-12)


def test_recomputation_is_chosen_where_memory_asks_for_it() -> None:
    """Devices that cannot hold what a forward keeps: a plan that recomputes fits, and is the answer; with room none does."""
    network = chain([2e9] * 4, parameters=[10**6] * 4, output_elements=[10_000] * 4, stashed_elements=[400_000] * 4)
    roomy = Problem(network, line(), 4)
    kept = LayerCosts(roomy).stashed_bytes.sum()
    state = LayerCosts(roomy).parameters.sum() * roomy.state_bytes
    tight = replace(roomy, cluster=line(memory_gib=(state * 0.5 + kept * 0.45) / 2**30))
    few = Request(options={"seconds": "0.001"})
    assert set(make_plan("modern", roomy, few).plan.recompute) == {"none"}
    found = make_plan("modern", tight, few)
    assert "whole" in found.plan.recompute
    assert found.outcome.fits


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request(schedule="1f1b"), "it makes an order of its own, not '1f1b'"),
        (
            Request(options={"placement": "z"}),
            "option placement must be one of straight, interleaved, v, wave, got 'z'",
        ),
        (
            Request(options={"seconds": "0"}),
            "option seconds must be a number, more than 0 and at most 1,000,000, got '0'",
        ),
        (
            Request(options={"seconds": "soon"}),
            "option seconds must be a number, more than 0 and at most 1,000,000, got 'soon'",
        ),
        (
            Request(chunks=2, options={"placement": "straight"}),
            "placement 'straight' has as many stages as devices, got 4 stages on 2 devices",
        ),
        (
            Request(chunks=3, options={"placement": "wave"}),
            "placement 'wave' has an even number of stages per device, got 6 stages on 2 devices",
        ),
        (
            Request(chunks=3, options={"placement": "v"}),
            "placement 'v' has two stages per device, got 6 stages on 2 devices",
        ),
        (Request(stages=3, chunks=2), "3 stages cannot be 2 per GPU"),
    ],
)
def test_what_it_cannot_plan_is_said(request_: Request, reason: str) -> None:
    """One line, with the value and the choices."""
    assert applicable_planners(UNLIKE, request_)["modern"] == reason


def test_more_ops_than_a_search_replays_are_refused() -> None:
    """Before anything of that size is made; where micro-batches are not requested, so many are not tried."""
    problem = Problem(uniform_chain(4), line(speeds=(1.0,) * 2), 2**24)
    with pytest.raises(ValueError, match="a schedule has at most 4,194,304 ops: a forward and a backward of 2 stages"):
        make_plan("scheduler", problem, Request(microbatches=2**24))


def test_what_is_compared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many micro-batches a batch can have, layouts are compared until the work is done; the best of them is planned. An
    order of what stands beside them has less work.
    """
    problem = Problem(uniform_chain(4), line(speeds=(1.0,) * 2), 2**10)
    few = Request(options={"seconds": "0.001"})
    monkeypatch.setattr("planners.modern.order_search.WORK", 2**17)
    whole, spent = _Layouts.best_of, list[float]()
    monkeypatch.setattr(
        _Layouts, "best_of", lambda self, of, each, best: spent.append(each) or whole(self, of, each, best)
    )
    result = make_plan("modern", problem, few)
    assert 0.0 < spent[1] < spent[0]
    assert result.outcome.fits
    assert len(result.plan.microbatches) <= 2**17 // LARGEST // (3 * LISTS)
    parts = len([*planner_entry("modern").restrictions(problem)])
    assert result.evaluations <= 2**17 // AN_ORDER + 1 + FINALISTS + parts * (2 * FEW + 1)


def test_where_the_work_ends_the_layouts_of_few_micro_batches_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out has as many micro-batches as anything that was compared, or more; it ranks behind."""
    monkeypatch.setattr("planners.modern.order_search.WORK", 2**19)
    monkeypatch.setattr("planners.modern.order_search.CLIMBS", ())
    layouts = _Layouts(OrderSearch(), UNLIKE, Evaluator(UNLIKE), np.random.default_rng(0))
    ranked = layouts.ranked()
    seconds = [layouts.value(one)[1] for one in ranked]
    assert seconds == sorted(seconds)
    known, left_out = (
        [one.microbatches for one in ranked if (layouts.value(one)[1] < np.inf) == compared]
        for compared in (True, False)
    )
    assert max(known) <= min(left_out)


def test_what_is_found_for_one_decision_is_so_among_all() -> None:
    """Asked for a value that is tried, the layouts of all values are explored; not of one that is not, of two, or without
    climbs."""
    tried = Request(microbatches=4)
    assert OrderSearch(tried).explored_request(UNLIKE) == Request()
    assert OrderSearch(Request(recompute="whole")).explored_request(UNLIKE) == Request()
    for asked in (Request(stages=3), Request(microbatches=4, recompute="whole"), Request()):
        assert OrderSearch(asked).explored_request(UNLIKE) == asked
    assert OrderSearch(tried, climbs=False).explored_request(UNLIKE) == tried


def test_an_order_that_is_interrupted_is_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its search had found by then is replayed, and is the answer, marked."""
    kept, found = _Layouts.order, list[FoundSchedule]()

    def order(self: _Layouts, layout: Layout, seconds: float, spare: Sequence[float] = ()) -> FoundSchedule:
        result = kept(self, layout, seconds, spare)
        if seconds != 0.001:
            return result
        found.append(result)
        raise SearchInterrupted(result)

    monkeypatch.setattr(_Layouts, "order", order)
    few = random_chain(4, np.random.default_rng(3), flop=2e9, parameters=2_000_000)
    answer = make_plan("modern", replace(UNLIKE, workload=few, batch=4), Request(options={"seconds": 0.001}))
    assert answer.interrupted
    assert len(found) == len(answer.replayed) == 1
    assert "\n".join(answer.plan.order) == to_text(found[0].schedule).rstrip("\n")


def test_a_layout_without_room_for_what_its_replay_needs_has_no_further_order() -> None:
    """In the least memory for one micro-batch no order leaves room for buffers: the plan that lacks it is what there is."""
    layout = Layout("straight", (0, 1), (4,), 6, ("none",) * 2)
    low, high = 0.0, 2.0**34
    while high - low > 1.0:
        middle = (low + high) / 2.0
        if LayoutCosts(LayerCosts(with_memory(UNLIKE, middle))).missing_bytes(layout):
            low = middle
        else:
            high = middle
    tight = with_memory(UNLIKE, high)
    layouts = _Layouts(OrderSearch(), tight, Evaluator(tight), np.random.default_rng(0))
    plan = layouts.plan(layout, 0.001)
    assert plan is not None
    assert not layouts.evaluate(plan).fits
    assert layouts.evaluate.evaluations == 1


def test_a_budget_is_kept_to() -> None:
    """Layouts and replays count: the last evaluation replays the best layout that the others have found."""
    found = make_plan("modern", UNLIKE, Request(options={"seconds": "0.001"}), budget=7)
    assert (found.evaluations, found.interrupted) == (7, True)
    with pytest.raises(
        InfeasiblePlanError, match="the budget of 0 evaluations ended before a plan that fits was found"
    ):
        make_plan("modern", UNLIKE, Request(options={"seconds": "0.001"}), budget=1)


def test_boards_stream_their_layers() -> None:
    """A backward of a board has no two halves."""
    problem = Problem(uniform_chain(6), load_cluster("fpga-vcu118-4"), 8)
    assert "stream" in (applicable_planners(problem)["modern"] or "")


def test_requests_fix_the_placement_and_the_stages() -> None:
    """Stages, stages per device and placement are those asked for; `scheduler` goes straight where nothing is said."""
    few = {"seconds": "0.002"}
    problem = Problem(uniform_chain(12), line(speeds=(1.0,) * 4), 4)
    plan = make_plan("scheduler", problem, Request(options=few)).plan
    assert [stage.devices for stage in plan.stages] == [(0,), (1,), (2,), (3,)]
    twice = 2 * len(problem.cluster.devices)
    assert len(make_plan("scheduler", problem, Request(stages=twice, options=few)).plan.stages) == twice
    plan = make_plan("scheduler", problem, Request(stages=6, options={**few, "placement": "v"})).plan
    assert [stage.devices for stage in plan.stages] == [(0,), (1,), (2,), (2,), (1,), (0,)]
    for options in ({"placement": "interleaved"}, {}):
        plan = make_plan("scheduler", problem, Request(chunks=3, options={**few, **options})).plan
        assert [stage.devices[0] for stage in plan.stages] == [0, 1, 2, 3] * 3
    plan = make_plan("scheduler", problem, Request(stages=8, options={**few, "placement": "wave"})).plan
    assert [stage.devices[0] for stage in plan.stages] == [0, 1, 1, 0] * 2
    assert make_plan("scheduler", problem, Request(microbatches=2, options=few)).plan.microbatches == (2, 2)


@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_shape_is_estimated_as_equal_stages_take(count: int) -> None:
    """Two alike devices, eight alike layers, nothing sent: what 1F1B takes, but for latencies."""
    problem = Problem(chain([2e9] * 8, output_elements=[0.0] * 8, parameters=[0] * 8), line(speeds=(1.0, 1.0)), 12)
    layouts = _Layouts(OrderSearch(), problem, Evaluator(problem), np.random.default_rng(0))
    outcome = simulate(problem, straight_plan("hand", problem, "1f1b", (4,), (0, 1), count))
    estimate = layouts._estimate(Layout("straight", (0, 1), (4,), count, ("none",) * 2))
    assert estimate == pytest.approx(outcome.iteration_seconds, rel=3e-3)


def test_a_climb_moves_cuts_and_keeps_every_layer() -> None:
    """Random moves shift cuts in order and flip recomputation of one stage, and never leave a stage without a layer."""
    search = OrderSearch()
    layouts = _Layouts(search, UNLIKE, Evaluator(UNLIKE), np.random.default_rng(0))
    layout = Layout("v", (0, 1), (2, 4, 7), 6, ("none",) * 4)
    moved = [one for _ in range(200) if (one := layouts._moved(layout)) is not None]
    assert len(set(moved)) > 15
    for one in moved:
        assert all(np.diff([0, *one.cuts, 9]) > 0)
        assert sum(a != b for a, b in zip(one.recompute, layout.recompute, strict=True)) <= 1
        assert (one.cuts == layout.cuts) != (one.recompute == layout.recompute)
    assert any(sum(a != b for a, b in zip(one.cuts, layout.cuts, strict=True)) > 1 for one in moved)


def test_what_is_tried_is_what_layers_and_work_permit() -> None:
    """One layer is one stage of a device, straight; of more stages fewer micro-batches are tried, by the work of their order."""
    alone = searched_together(Problem(uniform_chain(1), line(speeds=(1.0, 1.0)), 4), Request())
    assert (alone["stages"], alone["chunks"], alone["placement"]) == ((1,), (1,), ("straight",))
    problem = Problem(uniform_chain(12), line(speeds=(1.0,) * 4), 2**14)
    for request, stages in (
        (Request(), 4),
        (Request(stages=2), 2),
        (Request(options={"placement": "v"}), 8),
        (Request(chunks=3), 12),
    ):
        most = WORK // LARGEST // (LISTS * 3 * stages)
        assert max(searched(problem, request)["microbatches"]) == max(
            count for count in counts_by_size(problem) if count <= most
        )


def test_what_a_bound_rules_out_has_room_and_is_slower() -> None:
    """Beside a plan that does not fit any layout may be better."""
    problem = Problem(uniform_chain(4), line(speeds=(1.0, 1.0)), 4)
    layouts = _Layouts(OrderSearch(), problem, Evaluator(problem), np.random.default_rng(0))
    layout = Layout("straight", (0, 1), (2,), 2, ("none",) * 2)
    least = layouts.costs.least_seconds(layout)
    for seconds, peak_bytes, beats in ((2.0, 1.0, True), (0.5, 1.0, False), (0.5, 3.0, True)):
        assert layouts.may_beat(layout, Score(seconds * least, peak_bytes, 2.0, 0)) == beats


@pytest.mark.parametrize(("batch", "proven"), [(4, True), (5, False)])
def test_an_order_is_proven_where_micro_batches_are_alike(batch: int, proven: bool) -> None:
    """Of two and two samples, not of three and two: an order is sought for one size of all."""
    problem = Problem(uniform_chain(4), line(speeds=(1.0, 1.0)), batch)
    found = make_plan("scheduler", problem, Request(microbatches=2, options={"seconds": "0.01"}))
    assert found.details["order_proven"] == proven
    bound = float(found.details["order_lower_bound_seconds"])  # type: ignore[arg-type]
    assert bound <= float(found.details["order_seconds"]) * (1.0 + 1e-9)  # type: ignore[arg-type]
