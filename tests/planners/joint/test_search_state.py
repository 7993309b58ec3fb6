"""State of a joint search: looks by rising quick replay, and where the work ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from hardware_profiles import Constant, Stack
from planners import Evaluator, Request
from planners.joint.pipeline import Pipeline
from planners.joint.search_state import SearchState
from planners.search.replay_work import WORK_PER_SECOND
from tests.planners.conftest import PROBLEMS
from tests.planners.joint.problems import problem


def test_what_is_looked_at_is_replayed_quickly_where_it_may_be_the_next() -> None:
    """The first of those below a limit are those of quick replays of all; a bound spares some of the rest."""
    asked = PROBLEMS["mixed-devices"]
    first, every = (SearchState(asked, Request(), Evaluator(asked)) for _ in range(2))
    limit = 0.0, 0.035
    least = [each for one in first.moves.seeds() for each in first.waiting(one, limit)]
    quick = sorted((every.quick(plan), number) for _, number, _, plan, _ in least)
    known = [(seconds, number) for seconds, number, *_ in islice(first.rising(least), 5)]
    assert known == quick[:5]
    assert 5 <= len(first.quick_replayed) < len(least) // 2
    rest = [(seconds, number) for seconds, number, *_ in first.rising(least)]
    assert rest == [one for one in quick if one[0] < limit[1]]
    assert len(rest) < len(least)


def test_a_search_ends_some_time_after_its_last_better_answer() -> None:
    """As long after it as it took to find, or three nominal seconds; and where the work that is asked for is done."""
    asked = PROBLEMS["two-servers"]
    search = SearchState(asked, Request(), Evaluator(asked))
    for found, last in ((0.0, 3.0), (1.0, 4.0), (5.0, 10.0), (18.0, 20.0)):
        search.done_at_best = found * WORK_PER_SECOND
        ends = []
        for search.done in ((last - 0.1) * WORK_PER_SECOND, (last + 0.1) * WORK_PER_SECOND):
            ends.append(not search.goes_on)
        assert ends == [False, True]


def test_what_replicas_divide_rules_no_other_out() -> None:
    """Where gathers are exposed ZeRO 3 keeps devices busy for longer: what is known of it first is no bound on ZeRO 0."""
    asked = replace(
        problem("gpt2-medium", "dgx-a100:1", precision="bf16"), stack=Stack(name="any", exposed=Constant(0.5))
    )
    search = SearchState(asked, Request(), Evaluator(asked))
    whole = Pipeline("1f1b", (tuple(range(8)),), (), 1, (("none", 0),), zero=3)
    for one in (whole, replace(whole, zero=0)):
        next(search.waiting(one, (0.0, float("inf"))))
    divided, kept = (search.quick.fill_and_work(replace(whole, zero=zero).plan(asked, "joint")) for zero in (3, 0))
    assert list(search.least_work.values()) == [kept]
    assert kept < divided
