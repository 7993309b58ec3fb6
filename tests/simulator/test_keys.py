"""Keys of what plans share have every field but those that say that they decide nothing of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from hardware_profiles import load_cluster
from simulator import Problem, load_workload, workload_from_spec
from simulator.plans.keys import COSTS, NOTHING, ORDER, Kept, kept_with_its_first, key_of
from tests.simulator.strategies import UnitDevice


@dataclass(frozen=True)
class Wish:
    """A plan with a field that says nothing of what it decides."""

    name: str = field(metadata=NOTHING)
    order: str = field(metadata=ORDER)
    zero: int = field(metadata=COSTS)
    fresh: int = 0


def test_a_field_that_says_nothing_is_in_every_key() -> None:
    """Others are left out where what they decide is."""
    wish = Wish("hand", "1f1b", 3, 7)
    assert key_of(Wish)(wish) == ("hand", "1f1b", 3, 7)
    assert key_of(Wish, NOTHING)(wish) == ("1f1b", 3, 7)
    assert key_of(Wish, NOTHING, ORDER)(wish) == (3, 7)
    assert key_of(Wish, NOTHING, ORDER, COSTS)(wish) == (7,)


def test_the_ones_used_last_are_kept() -> None:
    """Lists of numbers, of at most six together; one of seven is not kept, and gives up no other."""
    kept: Kept[str, list[int]] = Kept()
    assert kept.keep("two", [1] * 2, 6) == kept.keep("three", [1] * 3, 6) == []
    assert kept.used("two") == [1, 1]
    assert kept.used("none") is None
    assert (kept.keep("two", [2] * 2, 6), kept.used("two"), kept.size) == ([], [1, 1], 5)  # another was quicker
    assert kept.keep("one more", [1] * 2, 6) == ["three"]
    assert kept.keep("seven", [1] * 7, 6) == []
    assert list(kept) == ["two", "one more"]
    assert kept.size == 4


def test_problems_that_look_alike_have_answers_of_their_own() -> None:
    """Networks that differ in a layer in the middle, clusters in their servers alone; equal ones made anew share theirs."""
    network, cluster = load_workload("gpt2"), load_cluster("pipedream-a:2")
    layers = list(network.layers)
    layers[30] = replace(layers[30], flop=layers[30].flop + 1)
    servers = replace(cluster, servers=(cluster.servers[0] + cluster.servers[1],))
    problems = [Problem(network, cluster, 8), Problem(replace(network, layers=tuple(layers)), cluster, 8)]
    problems.append(Problem(network, servers, 8))
    assert len(set(map(hash, problems))) == 1, "what is to be told apart"
    asked: list[Problem] = []
    find = kept_with_its_first(lambda problem: asked.append(problem) or len(asked))
    assert [find(one) for one in problems] == [1, 2, 3]
    assert [find(replace(one)) for one in problems] == [1, 2, 3]


def test_a_problem_on_an_accelerator_that_may_change_is_asked_anew() -> None:
    """One without a hash has none as part of a cluster either."""

    class Changing(UnitDevice):
        def __hash__(self) -> int:
            raise TypeError("it may change")

    cluster = replace(load_cluster("dgx-a100:1"), devices=(Changing(),) * 8)
    with pytest.raises(TypeError):
        hash(cluster)
    asked: list[Problem] = []
    find = kept_with_its_first(lambda problem: asked.append(problem) or len(asked))
    problem = Problem(workload_from_spec("chain:2"), cluster, 8)
    assert [find(problem), find(problem)] == [1, 2]
