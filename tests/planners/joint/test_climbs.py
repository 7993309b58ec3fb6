"""Tests of `planners.joint.climbs` and `niches`: estimates against replays, where climbs lead, what is begun with."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from hardware_profiles import load_cluster, load_stack
from planners import Request
from planners.joint.climbs import Climbs
from planners.joint.neighbourhood import Neighbourhood
from planners.joint.niches import Niches
from planners.joint.pipeline import Pipeline
from planners.search.quick_replay import QuickReplays, order_of
from planners.testing import line
from simulator import SLACK, LayerCosts, Problem, Zero, load_workload, simulate
from simulator.evaluation import Evaluations
from tests.chains import chain

NONE = ("none", 0)
SERVERS = (tuple(range(4)), tuple(range(4, 8)))
FAMILIES = {"1f1b": 1, "zb-h2": 1, "zb-v": 2, "interleaved-1f1b": 3}


class Searched:
    """A problem with what a search of it asks."""

    def __init__(self, workload: str, cluster: str, batch: int, *, contention: bool = True) -> None:
        self.problem = Problem(
            load_workload(workload), load_cluster(cluster), batch, contention=contention, optimizer="momentum"
        )
        self.layers = LayerCosts(self.problem)
        self.quick = QuickReplays(self.problem, self.layers)
        self.climbs = Climbs(self.problem, self.layers, self.quick)
        self.moves = Neighbourhood(self.problem, Request(), self.layers)
        self.evaluate = Evaluations(self.problem, self.layers)

    def seconds(self, one: Pipeline) -> float:
        """As a climb estimates a pipeline."""
        found = self.climbs.seconds(one, np.array([one.cuts], dtype=np.int64))
        assert found is not None
        return float(found[0])

    def replayed(self, one: Pipeline) -> float:
        score = self.evaluate(one.plan(self.problem, ""))
        assert score is not None
        return score.iteration_seconds


@pytest.mark.parametrize("name", FAMILIES)
def test_of_lone_devices_on_links_of_their_own_the_estimate_is_the_quick_replay(name: str) -> None:
    """Nothing is reduced, and no transfer meets another; but for the update, whose seconds are as if they were in proportion."""
    searched, chunks = Searched("vgg16", "dapple-c:4", 24, contention=False), FAMILIES[name]
    ranks = tuple((device,) for device in range(4))
    empty = Pipeline(name, (), (), 8, (NONE,) * 4 * chunks)
    for one in searched.moves.laid(empty, ranks, chunks):
        for other in (one, *islice(searched.moves.cuts(one), 6)):
            quick = searched.quick(other.plan(searched.problem, ""))
            assert searched.seconds(other) * (1.0 - SLACK) == pytest.approx(quick, rel=3e-3)


def test_estimates_are_near_replays() -> None:
    """Of replicas on servers that share one card, in unequal numbers too, within a tenth but for one in ten."""
    searched, choose, errors = Searched("bert-large", "dapple-b:8", 32), random.Random(5), []
    for _ in range(24):
        name, chunks = choose.choice([*FAMILIES.items()])
        sizes = choose.choice([(2, 2), (4, 4), (2, 2, 2), (1, 1, 1, 1), *([(5, 3), (1, 2, 3)] if chunks == 1 else [])])
        ends = np.cumsum(sizes).tolist()
        ranks = tuple(tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True))
        empty = Pipeline(name, (), (), choose.choice([1, 2, 4]) * len(ranks), (NONE,) * len(ranks) * chunks)
        for one in searched.moves.laid(empty, ranks, chunks):
            errors.append(searched.seconds(one) / searched.replayed(one) - 1.0)
    assert np.quantile(np.abs(errors), 0.9) < 0.1, sorted(errors)


def test_a_climb_ends_where_no_move_of_cuts_is_faster() -> None:
    """And is what a replay prefers to where it began, as on few devices estimates hardly err."""
    searched = Searched("vgg16", "dapple-b:4", 32)
    empty = Pipeline("1f1b", (), (), 4, (NONE,) * 3)
    (one,) = searched.moves.laid(empty, ((0, 1), (2,), (3,)), 1)
    found = searched.climbs.climbed(replace(one, cuts=(1, 2)))
    assert found is not None
    seconds, there = found
    assert seconds == searched.seconds(there)
    assert all(searched.seconds(other) >= seconds for other in searched.moves.cuts(there))
    assert searched.replayed(there) < searched.replayed(replace(one, cuts=(1, 2)))
    assert simulate(searched.problem, there.plan(searched.problem, "")).iteration_seconds == searched.replayed(there)


def test_what_estimates_do_not_know_is_not_climbed() -> None:
    """Two directions, a number of blocks that run again, and counts that no placement has."""
    searched = Searched("bert-large", "dapple-b:4", 16)
    both = Pipeline("chimera", ((0,), (1,)), (101,), 4, (NONE,) * 2)
    again = replace(both, schedule="1f1b", recompute=(("blocks", 2), NONE))
    assert [searched.climbs.climbed(one) for one in (both, again)] == [None, None]
    known = replace(again, recompute=(("blocks", 0), NONE))
    assert searched.climbs.climbed(known) is not None
    assert searched.climbs.climbed(replace(known, schedule="zb-v")) is None


@pytest.mark.parametrize("zero", [2, 3])
def test_what_replicas_exchange_in_every_pass_is_estimated(zero: Zero) -> None:
    """Gathers of weights and scatters of gradients that the stack never hides: within a hundredth of the replay, without them
    not.
    """
    asked = Problem(load_workload("gpt2"), load_cluster("pipedream-b:1"), 8, stack=load_stack("fsdp2-eager"))
    layers = LayerCosts(asked)
    climbs = Climbs(asked, layers, QuickReplays(asked, layers))
    for name, chunks in (("1f1b", 1), ("zb-v", 2)):
        empty = Pipeline(name, (), (), 4, (NONE,) * 2 * chunks, zero=zero)
        for one in Neighbourhood(asked, Request(), layers).laid(empty, SERVERS, chunks):
            found = climbs.seconds(one, np.array([one.cuts], dtype=np.int64))
            hidden = climbs.seconds(replace(one, zero=1), np.array([one.cuts], dtype=np.int64))
            assert found is not None
            assert hidden is not None
            replayed = simulate(asked, one.plan(asked, "")).iteration_seconds
            assert abs(float(found[0]) / replayed - 1.0) < 0.01 < abs(float(hidden[0]) / replayed - 1.0)


def test_a_climb_ends_in_no_worse_cuts_wherever_it_begins() -> None:
    """GNMT-16, whose layers are unlike: from even cuts single moves led to 23 % more seconds."""
    searched = Searched("gnmt16", "dapple-c:8", 256)
    ranks = tuple((device,) for device in range(8))
    (one,) = searched.moves.laid(Pipeline("zb-h2", (), (), 16, (NONE,) * 8), ranks, 1)
    begun, found = searched.climbs.begun(one), searched.climbs.climbed(one)
    other = searched.climbs.climbed(replace(one, cuts=(4, 13, 22, 29, 37, 45, 53)))
    assert begun is not None
    assert found is not None
    assert begun[0] == searched.seconds(begun[1]) <= searched.seconds(one)
    assert found == other


def test_a_single_cut_is_begun_with_everywhere() -> None:
    """No other cut has fewer estimated seconds than where a climb leads."""
    searched = Searched("vgg16", "dapple-b:4", 32)
    (one,) = searched.moves.laid(Pipeline("zb-h1", (), (), 2, (NONE,) * 2), ((0, 1), (2, 3)), 1)
    found, layers = searched.climbs.climbed(one), len(searched.problem.workload)
    every = searched.climbs.seconds(one, np.arange(1, layers)[:, None])
    assert found is not None
    assert every is not None
    assert found[0] == every.min()


def test_many_places_are_thinned_to_those_that_least_crosses() -> None:
    """ResNet-101: 64 parts of its seconds, in each one place, and both ends."""
    searched = Searched("resnet101", "dapple-b:4", 32)
    places, layers = searched.climbs._first_places, len(searched.problem.workload)
    assert (places[0], places[-1]) == (0, layers)
    assert 32 < len(places) <= 66
    assert (np.diff(places) > 0).all()
    crossing = searched.layers.cut_bytes
    assert crossing[places[1:-1]].mean() < crossing[1:-1].mean()


def test_every_niche_is_begun_with_once_and_climbed_to_no_more_seconds() -> None:
    """Of each placement, stages a rank, ranks and replicas one pipeline; of uneven stages also one of other replicas."""
    searched = Searched("vgg16", "dapple-b:4", 32)
    niches = Niches(searched.moves, searched.climbs, "none")
    begun = [*niches.begun(1e9)]
    names = [niche for _, niche, _ in begun]
    assert len(set(names)) == len(names)
    assert {(one.ranks, one.replicas) for one in names} == {(2, 1), (2, 2), (3, 1), (4, 1)}
    assert {one.placement for one in names} == {"straight", "interleaved", "v", "wave"}
    straight = next(one for _, niche, one in begun if niche[:3] == ("straight", 1, 2))
    (seconds, even), (less, uneven) = niches.fastest(straight)
    assert less < seconds <= searched.seconds(straight)
    assert len(set(even.replicas)) == 1 < len(set(uneven.replicas))
    assert not [*niches.begun(0.0)]


def test_groups_of_unlike_devices_are_not_climbed() -> None:
    """Nor are unlike numbers of groups: who waits for whom is not known."""
    searched = Searched("bert-large", "dapple-b:8", 16)
    two = Pipeline("1f1b", ((0, 1, 2, 3), (4, 5, 6, 7)), (101,), 4, (NONE,) * 2, group=2)
    assert searched.climbs.climbed(two) is not None
    assert searched.climbs.climbed(replace(two, ranks=((0, 1, 2, 3), (4, 5)))) is None
    mixed = replace(searched.problem, cluster=line(speeds=(1.0, 1.0, 1.0, 0.5)))
    layers = LayerCosts(mixed)
    climbs = Climbs(mixed, layers, QuickReplays(mixed, layers))
    assert climbs.climbed(replace(two, ranks=((0, 1), (2, 3)))) is None


def test_replicas_without_weights_reduce_nothing() -> None:
    """Their stage is estimated as it is replayed; the other one has all the weights."""
    network = chain([2e10] * 4, parameters=[0, 0, 10**6, 10**6], output_elements=[1e4] * 4)
    asked = Problem(network, load_cluster("dapple-b:4"), 16, contention=False)
    layers = LayerCosts(asked)
    quick = QuickReplays(asked, layers)
    one = Pipeline("1f1b", ((0, 1), (2, 3)), (2,), 4, (NONE,) * 2)
    with np.errstate(all="raise"):
        found = Climbs(asked, layers, quick).seconds(one, np.array([one.cuts], dtype=np.int64))
    assert found is not None
    assert float(found[0]) == pytest.approx(quick(one.plan(asked, "")), rel=1e-2)


@pytest.mark.parametrize("name", ["gpipe", "zb-h1"])
def test_a_climb_under_an_order_is_that_of_the_family_which_has_it(name: str) -> None:
    """The cuts to which it leads, and their seconds."""
    searched = Searched("vgg16", "dapple-c:4", 24)
    empty = Pipeline("1f1b", (), (), 6, (NONE,) * 4)
    (one, *_) = searched.moves.laid(empty, tuple((device,) for device in range(4)), 1)
    own, other = (searched.climbs.climbed(each) for each in (one, replace(one, schedule=name)))
    there = searched.climbs.climbed(one, order_of(name, 4, 6, 1, ()))
    assert None not in (own, other, there)
    assert there == (other[0], replace(other[1], schedule="1f1b"))
    assert there != own
