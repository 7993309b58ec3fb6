"""Descents: from a pipeline to the best of its neighbours, decision by decision, until none is faster."""

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
"""Pipelines from which brief descents begin, at most."""

BRIEFLY = ("schedule", "ZeRO")
"""Decisions of brief descents; full descents, in all decisions, follow from where these end, the fastest first."""

OF_A_FORM = 2
"""Pipelines of one form among the starts, at most; and seeds of each schedule family that are descended from."""

SEEDS = 32
"""Seeds of a schedule family that are looked at, of which the quickest are descended from."""

UNTRIED = 6
"""Descents of a further round, at most, from forms with which no earlier round began."""

PROMISING = 2.0
"""Seconds per second of the fastest plan up to which a pipeline is descended from."""

CUTS, LOOKED_AT = "layers of stages", 24
"""CUTS: the decision of whose neighbours only those are looked at that estimates find fastest; LOOKED_AT: how many."""

UNCLIMBED = CUTS, "recomputation", "ZeRO"
"""Decisions whose neighbours are replayed with their own cuts alone, not also where moves of cuts lead."""

PATIENCE = 12
"""Replays of neighbours in a row without a better one after which a decision is given up."""

NEAR = 1.03
"""Seconds per second of the best plan up to which a neighbour is replayed, if its quick replay errs as that of the current
one.
"""


class Descents:
    """The descents of one search.

    passed: pipelines that descents went through, each with the number of decisions of the descent; tried: forms begun with
    """

    def __init__(self, state: SearchState) -> None:
        self.state = state
        self.passed, self.tried = set[tuple[Pipeline, int]](), set[object]()

    def starts(self) -> list[Pipeline]:
        """The fastest replayed pipelines of unlike forms and cuts, those that fit first: OF_A_FORM of a form, STARTS in all, at
        most.
        """
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
        """Pipelines from which each schedule family is descended by itself: its fastest replayed one, if near the best, and on
        few devices its quickest seeds.
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
        """Descend in the decisions of BRIEFLY from all starts; of each the key, the pipeline, and the decisions of the full
        descent to follow.

        These are all decisions from where a brief descent ended. A start whose descent ended where another one did is descended
        from again, in all decisions but the schedule.
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
        """Descend from forms that no earlier round began with, each with an equal part of the work up to `end` in all."""
        starts = [one for one in self.starts() if form(one) not in self.tried][:UNTRIED]
        for left, one in zip(range(len(starts), 0, -1), starts, strict=True):
            self.state.until(self.state.done + (end - self.state.done) / left)
            self.tried.add(form(one))
            self.descend_from(one, self.state.moves.decisions)

    def descend_from(self, pipeline: Pipeline, decisions: Collection[str]) -> tuple[Key, Pipeline]:
        """Descend from a pipeline in these decisions; the key and the pipeline at the end.

        It ends where no neighbour is better, where an earlier descent in as many decisions passed, or where the work is done.
        """
        now = self.state.known(pipeline)
        moved = now is not None
        while moved and self.state.goes_on:
            moved = False
            for name in decisions:
                while self.state.goes_on:
                    assert now is not None
                    found = self.best(
                        self._near(name, pipeline), now, climbing=self.state.few and name not in UNCLIMBED
                    )
                    if found is None:
                        break
                    (pipeline, now), moved = found, True
                    if (pipeline, len(decisions)) in self.passed:
                        return now.key, pipeline
                    self.passed.add((pipeline, len(decisions)))
        return ((inf, inf) if now is None else now.key), pipeline

    def _near(self, name: str, pipeline: Pipeline) -> Iterable[Pipeline]:
        """Neighbours of a pipeline in one decision; of many partitions those that estimates find fastest, and where a climb of
        cuts ends.
        """
        near = list(self.state.moves.decisions[name](pipeline))
        if name != CUTS or len(near) <= LOOKED_AT:
            return near
        seconds = self.state.climbs.seconds(pipeline, np.array([other.cuts for other in near], dtype=np.int64))
        if seconds is None:
            return near
        climbed = self.state.climbs.climbed(pipeline)
        fastest = [near[place] for place in np.argsort(seconds, kind="stable")[:LOOKED_AT]]
        return fastest if climbed is None else dict.fromkeys((climbed[1], *fastest))

    def best(
        self, among: Iterable[Pipeline], now: KnownPipeline, *, climbing: bool
    ) -> tuple[Pipeline, KnownPipeline] | None:
        """The best of some pipelines with its figures, if it is better than `now`, the figures of the current one; else None.

        They are replayed in rising order of their quick replays, until these, times the error of the current pipeline's, promise
        no less seconds, or until PATIENCE replays in a row were no better (counted apart for plans whose order is timed, as quick
        replays of these err otherwise). While memory is missing all are replayed, as quick replays tell nothing of it. A pipeline
        that is faster but does not fit is followed by itself with more recomputation.
        climbing: whether each is also replayed with the cuts at which a climb ends
        """
        state = self.state
        found, idle, best, error = None, Counter[bool](), now, now.error
        waiting = [one for each in among if state.goes_on for one in state.waiting(each, best.key)]
        heapify(waiting)
        climbed = set[Pipeline]()
        more = set[Pipeline]()  # with more recomputation: what one that does not fit leads to may lead back to it
        while waiting and state.goes_on:
            quick, _, pipeline, plan, _ = look = heappop(waiting)
            if not best.key[0] and quick * error >= best.key[1] * NEAR:
                break
            if state.put_back(look, waiting):
                continue
            timed = plan.options != pipeline.options
            if not best.key[0] and idle[timed] >= PATIENCE:
                continue
            if climbing and (alike := replace(pipeline, cuts=())) not in climbed:
                climbed.add(alike)
                for each in self._climbed(pipeline, best.key):
                    heappush(waiting, each)
            made = state.evaluate.evaluations
            try:
                score = state.evaluate(plan)
            except CANNOT_RUN:
                continue
            made = state.evaluate.evaluations - made  # none where an earlier round replayed it
            idle[timed] += made
            state.done += ops_replayed(pipeline) * made
            if score.key < state.least:
                state.least, state.done_at_best = score.key, state.done
            if score.key < best.key:
                found, best = pipeline, KnownPipeline(score.key, quick)
                idle.clear()
            elif not score.fits and (best.key[0] or score.iteration_seconds < best.key[1]):
                others = dict.fromkeys(state.moves.with_more_recomputation(pipeline, score.device))
                for again in [look for each in others if each not in more for look in state.waiting(each, best.key)]:
                    heappush(waiting, again)
                more.update(others)
        return None if found is None else (found, best)

    def _climbed(self, pipeline: Pipeline, best: Key) -> Iterator[Look]:
        """Looks at the pipeline at which a climb of cuts ends, if the climb moved any and it may be better than the key
        `best`.
        """
        began = self.state.climbs.work
        there = self.state.climbs.climbed(pipeline)
        self.state.done += self.state.climbs.work - began
        if there is not None and there[1] != pipeline:
            yield from self.state.waiting(there[1], best)


def form(pipeline: Pipeline) -> object:
    """The form of a pipeline, which descents hardly change: replicas of each rank, degrees, and whether ranks have several
    stages.
    """
    return pipeline.replicas, pipeline.group, pipeline.context, pipeline.chunks > 1
