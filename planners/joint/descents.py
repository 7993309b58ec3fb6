"""Descents: from a plan to the best of its neighbours, decision by decision, until none is faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf

import numpy as np

from planners.joint.neighbourhood import Neighbourhood
from planners.joint.pipeline import Pipeline, pipeline_of
from planners.joint.search_state import CANNOT_RUN, NEAR_BEST, Key, KnownPipeline, Look, SearchState, ops_replayed

STARTS = 32
"""Unlike plans from which the search descends."""

BRIEFLY = ("schedule", "ZeRO")
"""Decisions that are made of all these first; the rest follows from the fastest on."""

OF_A_FORM = 2
"""Of these, plans of the same form; and seeds of each schedule family, the quickest of SEEDS."""

SEEDS = 32
"""Seeds of a schedule family that are looked at."""

UNTRIED = 6
"""Forms of these that no earlier round came to, at most, from which a further one begins."""

PROMISING = 2.0
"""How far above the fastest plan to begin with another may be for a descent from it."""

CUTS, LOOKED_AT = "layers of stages", 24
"""The decision whose neighbours are looked at that estimates choose, so many of them."""

UNCLIMBED = CUTS, "recomputation", "ZeRO"
"""Decisions whose neighbours are not climbed from."""

PATIENCE = 12
"""Neighbours that are replayed without a better one before the rest of a decision's are given up."""

NEAR = 1.03
"""How far a neighbour may be above the plan, by its quick replay if that errs as the plan's own does, to be replayed."""


class Descents:
    """The descents of one search."""

    def __init__(self, state: SearchState) -> None:
        self.state = state
        self.passed, self.tried = set[tuple[Pipeline, int]](), set[object]()

    def starts(self) -> list[Pipeline]:
        """The fastest pipelines of unlike shapes that were replayed, those that fit first."""
        found: dict[tuple[object, object], Pipeline] = {}
        replayed = self.state.replayed()
        keys = {plan: score.key for plan, score in replayed.items()}
        missing, seconds = min(keys.values(), default=(inf, inf))
        for plan in sorted(keys, key=lambda one: keys[one]):
            one = pipeline_of(self.state.problem, plan)
            if one is not None and (missing or keys[plan] <= (0.0, seconds * PROMISING)):
                found.setdefault((form(one), one.cuts), one)
        alike, starts = Counter[object](), list[Pipeline]()
        for (like, _), one in found.items():
            alike[like] += 1
            if alike[like] <= OF_A_FORM:
                starts.append(one)
        return starts[:STARTS]

    def of_families(self) -> list[Pipeline]:
        """Of each schedule family, which free descents may leave too soon: the fastest pipeline that was replayed, if near the
        best, and its quickest seeds.
        """
        found: dict[str, Pipeline] = {}
        state = self.state
        replayed, most = state.replayed(), state.least[1] * NEAR_BEST
        for plan in sorted(replayed, key=lambda one: replayed[one].key):
            if not replayed[plan].fits or replayed[plan].iteration_seconds > most:
                break
            if (one := pipeline_of(state.problem, plan)) is not None:
                found.setdefault(one.schedule, one)
        sown, near = list[Pipeline](), (0.0, state.least[1] * PROMISING)
        for name in state.moves.families if state.few else ():
            request = replace(state.request, schedule=name)
            seeds = islice(Neighbourhood(state.problem, request, state.evaluate.layer_costs).seeds(), SEEDS)
            looks = (each for one in seeds for each in state.waiting(one, near))
            sown += [one for _, _, one, _, _ in islice(state.rising(looks), OF_A_FORM)]
        return list(dict.fromkeys([*found.values(), *sown]))

    def briefly_descended(self) -> list[tuple[Key, Pipeline, Collection[str]]]:
        """Where brief descents from unlike pipelines lead, and the decisions to descend in from there: all of them, but from one
        that leads where another did from where it began, without the schedule, which led away.
        """
        found, ends = list[tuple[Key, Pipeline, Collection[str]]](), set[Pipeline]()
        for start in self.starts():
            self.state.done_at_best = self.state.done  # none of them ends early
            if self.state.goes_on:
                self.tried.add(form(start))
            key, one = self.descend_from(start, BRIEFLY)
            if one != start and one in ends:
                known = self.state.known(start)
                found.append(((inf, inf) if known is None else known.key, start, self.state.moves.within_a_family))
            else:
                found.append((key, one, self.state.moves.decisions))
            ends.add(one)
        return found

    def descend_from_untried(self, end: float) -> None:
        """Descend, until so much work is done, from forms that wait behind faster ones in every round: each takes as much."""
        starts = [one for one in self.starts() if form(one) not in self.tried][:UNTRIED]
        for left, one in zip(range(len(starts), 0, -1), starts, strict=True):
            self.state.until(self.state.done + (end - self.state.done) / left)
            self.tried.add(form(one))
            self.descend_from(one, self.state.moves.decisions)

    def descend_from(self, one: Pipeline, decisions: Collection[str]) -> tuple[Key, Pipeline]:
        """Go to the best neighbour, decision by decision, until none is faster, a descent was there, or the work is done; where
        that was, and its key.
        """
        now = self.state.known(one)
        moved = now is not None
        while moved and self.state.goes_on:
            moved = False
            for name in decisions:
                while self.state.goes_on:
                    assert now is not None
                    found = self.best(self._near(name, one), now, climbing=self.state.few and name not in UNCLIMBED)
                    if found is None:
                        break
                    (one, now), moved = found, True
                    if (one, len(decisions)) in self.passed:
                        return now.key, one
                    self.passed.add((one, len(decisions)))
        return ((inf, inf) if now is None else now.key), one

    def _near(self, name: str, one: Pipeline) -> Iterable[Pipeline]:
        """The neighbours that a decision makes of a pipeline; of many partitions the fastest, and where they lead."""
        near = list(self.state.moves.decisions[name](one))
        if name != CUTS or len(near) <= LOOKED_AT:
            return near
        seconds = self.state.climbs.seconds(one, np.array([other.cuts for other in near], dtype=np.int64))
        if seconds is None:
            return near
        climbed = self.state.climbs.climbed(one)
        fastest = [near[place] for place in np.argsort(seconds, kind="stable")[:LOOKED_AT]]
        return fastest if climbed is None else dict.fromkeys((climbed[1], *fastest))

    def best(
        self, among: Iterable[Pipeline], now: KnownPipeline, *, climbing: bool
    ) -> tuple[Pipeline, KnownPipeline] | None:
        """The fastest of some pipelines, if it is faster than the one that is known `now`; climbing: those that are replayed, and
        differ in more than cuts, also with the cuts where these lead.

        They are replayed by rising quick replay, as far as one that errs as that of `now` does promises less seconds, and until
        PATIENCE of them were no better, of orders for their own seconds and of others each, as the quick replays of these err
        unlike: all while memory is missing, of which quick replays tell nothing. One that is faster but does not fit is replayed
        again with more recomputation.
        """
        state = self.state
        found, idle, best, error = None, Counter[bool](), now, now.error
        waiting = [one for each in among if state.goes_on for one in state.waiting(each, best.key)]
        heapify(waiting)
        climbed = set[Pipeline]()
        more = set[Pipeline]()  # with more recomputation: what one that does not fit leads to may lead back to it
        while waiting and state.goes_on:
            quick, _, one, plan, _ = look = heappop(waiting)
            if not best.key[0] and quick * error >= best.key[1] * NEAR:
                break
            if state.put_back(look, waiting):
                continue
            timed = plan.options != one.options
            if not best.key[0] and idle[timed] >= PATIENCE:
                continue
            if climbing and (alike := replace(one, cuts=())) not in climbed:
                climbed.add(alike)
                for each in self._climbed(one, best.key):
                    heappush(waiting, each)
            made = state.evaluate.evaluations
            try:
                score = state.evaluate(plan)
            except CANNOT_RUN:
                continue
            made = state.evaluate.evaluations - made  # none where an earlier round replayed it
            idle[timed] += made
            state.done += ops_replayed(one) * made
            if score.key < state.least:
                state.least, state.done_at_best = score.key, state.done
            if score.key < best.key:
                found, best = one, KnownPipeline(score.key, quick)
                idle.clear()
            elif not score.fits and (best.key[0] or score.iteration_seconds < best.key[1]):
                others = dict.fromkeys(state.moves.with_more_again(one, score.device))
                for again in [look for each in others if each not in more for look in state.waiting(each, best.key)]:
                    heappush(waiting, again)
                more.update(others)
        return None if found is None else (found, best)

    def _climbed(self, one: Pipeline, best: Key) -> Iterator[Look]:
        """Where moves of cuts lead from a pipeline, if they lead anywhere, and it may be faster there."""
        began = self.state.climbs.work
        there = self.state.climbs.climbed(one)
        self.state.done += self.state.climbs.work - began
        if there is not None and there[1] != one:
            yield from self.state.waiting(there[1], best)


def form(one: Pipeline) -> object:
    """What descents hardly change: replicas of each rank, degrees, and whether ranks have several stages."""
    return one.replicas, one.group, one.context, one.chunks > 1
