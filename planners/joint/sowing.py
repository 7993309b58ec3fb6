"""Sowing: plans from which a joint search begins.

Plans of the planners that search a part of the decisions; replicas of the whole network; the fastest pipelines of the niches
that estimates find most promising; and the quickest seeds of several ranks, where there is nothing better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import takewhile
from math import inf

import numpy as np

from planners.joint.niches import Niches
from planners.joint.pipeline import Pipeline, pipeline_of
from planners.joint.search_state import FIRST_ROUND, MOST_GAINED, Key, SearchState, ops_replayed
from planners.search.evaluator import Planner
from planners.search.replay_work import WORK_PER_SECOND
from planners.search.request import Request
from simulator import InfeasiblePlanError, Plan, Problem, Recompute

SOWN, OF_SEEDS = 32, 0.15
"""Seeds that are replayed, at most, and the part of the work that they may take."""

OF_OTHERS = 8
"""Plans of other schedules, the fastest, whose stages are replayed under the one that is asked for."""

NICHED_ON = 32
"""Devices up to which niches are climbed."""

NICHES, BEGUN_BELOW, CLIMBED_BELOW = 24, 2.0, 1.2
"""Niches that are climbed, at most, and how far above the fastest plan their estimates may be to begin with and to climb."""

OF_NICHES = 1.8
"""Work that climbs of niches may take, per work of the first round, which it comes beside."""

Part = Callable[[Problem, Request], Planner | None]
"""(problem, request) -> a planner whose plans are begun with; None where it plans none of what is asked for."""


class Sowing:
    """What one search begins with."""

    def __init__(self, state: SearchState, parts: tuple[Part, ...]) -> None:
        self.state, self.parts = state, parts
        self.climbs_niches = len(state.problem.cluster.devices) <= NICHED_ON and not state.boards

    def begin(self, rng: np.random.Generator) -> InfeasiblePlanError | None:
        """Replay the plans to begin with; why the last of the parts that found none did not."""
        refusal = self._of_parts(self.state.request, rng)
        if not self.state.few and not self.state.replayed():
            self._of_other_schedules(rng)
            if self.state.replayed():
                return refusal  # far nearer than any seed
        self.sow()
        return refusal

    def _of_parts(self, request: Request, rng: np.random.Generator) -> InfeasiblePlanError | None:
        """Let the other planners replay their plans; why the last of them that found none did not."""
        refusal = None
        for part in self.parts:
            planner = part(self.state.problem, request)
            try:
                if planner is not None:
                    planner(self.state.problem, self.state.evaluate, rng)
            except InfeasiblePlanError as error:
                refusal = error
            finally:
                self.state.evaluate.withdraw()
        return refusal

    def _of_other_schedules(self, rng: np.random.Generator) -> None:
        """Replay pipelines under the schedule that is asked for which the other planners find under those that they plan."""
        self._of_parts(replace(self.state.request, schedule=None), rng)
        others = self.state.evaluate.replayed
        for plan in sorted(others, key=lambda one: others[one].key)[:OF_OTHERS]:
            if (one := pipeline_of(self.state.problem, plan)) is not None:
                for other in filter(self.state.moves.allows, self.state.moves.schedules(one)):
                    self.state.known(other)
                    self.state.done += ops_replayed(other)

    def sow(self) -> None:
        """Replay seeds: those of one rank that may be the fastest, and lead below what is to be beaten; of several ranks the
        quickest of each and its group, on many devices only where nothing fits yet.
        """
        state = self.state
        most = state.done + OF_SEEDS * min(state.most, FIRST_ROUND * WORK_PER_SECOND)
        least = min((score.key for score in state.replayed().values()), default=(inf, inf))
        least = least if least[0] else (0.0, min(least[1], state.evaluate.beat / MOST_GAINED))
        alone = state.moves.seeds(most=1, below=None if least[0] else least[1])
        least = self._replay_rising(alone, least, most)
        if state.problem.stack.runs.looped_alone:
            least = self._sow_looped(least, most)
        if self.climbs_niches:
            self._sow_niches(least)
        if least[0] or (state.few and state.boards):
            self.sow_pipelines(least, most)

    def _sow_looped(self, least: Key, most: float) -> Key:
        """Replay again, with several stages each, the replicas of the whole network that were replayed: gradients of later stages
        are then reduced behind backwards of earlier ones. As `_replay_rising`.
        """
        replayed, alone = self.state.replayed(), dict[object, Pipeline]()
        for plan in sorted(replayed, key=lambda one: replayed[one].key):
            one = pipeline_of(self.state.problem, plan)
            if one is not None and one.stages == 1 and one.copies > 1:
                alone.setdefault((one.ranks, one.microbatches, one.group, one.context), one)
        looped = (each for one in alone.values() for each in self.state.moves.looped(one))
        return self._replay_rising(looped, least, most)

    def _replay_rising(self, seeds: Iterable[Pipeline], least: Key, most: float) -> Key:
        """Replay by rising quick replay what may undercut the least key, until so much work is done; the least key after that."""
        for quick, _, seed, plan, _ in self.state.rising(
            each for one in seeds for each in self.state.waiting(one, least)
        ):
            if (not least[0] and quick >= least[1]) or self.state.done + ops_replayed(seed) > most:
                break
            least = min(least, self.state.key_of(seed, plan))
        return least

    def _sow_niches(self, least: Key) -> None:
        """Replay the fastest pipelines of the most promising niches, by what estimates of their placement err at least; those
        that do not fit with more recomputation.
        """
        state = self.state
        words = sorted(state.moves.words, key=state.moves.again_seconds)
        niches, errors = Niches(state.moves, state.climbs, words[0]), dict[str, float]()
        waiting = list(niches.begun(inf if least[0] else least[1] * BEGUN_BELOW))
        most = OF_NICHES * min(state.most, FIRST_ROUND * WORK_PER_SECOND)
        for _ in range(min(NICHES, len(waiting))):
            if state.climbs.work > most:
                break
            waiting.sort(key=lambda each: each[0] * errors.get(each[1].placement, 1.0))
            seconds, niche, one = waiting.pop(0)
            if not least[0] and seconds * errors.get(niche.placement, 1.0) > least[1] * CLIMBED_BELOW:
                break
            for seconds, there in niches.fastest(one):
                known = state.known(there)
                if known is None:
                    continue
                errors[niche.placement] = min(errors.get(niche.placement, inf), max(1.0, known.key[1] / seconds))
                least = min(least, known.key)
                if known.key[0] and (least[0] or known.key[1] < least[1] * CLIMBED_BELOW):
                    least = min(least, self._with_more_again(there, words[1:]))

    def _with_more_again(self, one: Pipeline, words: Iterable[Recompute]) -> Key:
        """The key of the first of some policies with which a pipeline fits, climbed with it; else of the last."""
        known = None
        for word in words:
            other = replace(one, recompute=((word, 0),) * one.stages)
            there = self.state.climbs.climbed(other)
            known = self.state.known(other if there is None else there[1]) or known
            if known is not None and not known.key[0]:
                break
        return (inf, inf) if known is None else known.key

    def sow_pipelines(self, least: Key, most: float, *, looked_at: float = inf) -> None:
        """Replay the quickest seeds of each several ranks and groups, until so much work is done, and look at no more of them."""
        seeds = takewhile(lambda _: self.state.done < looked_at, self.state.moves.seeds(least=2))
        quickest = dict[tuple[object, ...], tuple[Pipeline, Plan]]()
        looks = (each for one in seeds for each in self.state.waiting(one, (0.0, inf)))
        for _, _, seed, plan, _ in self.state.rising(looks):
            quickest.setdefault((seed.ranks, seed.group), (seed, plan))
            if len(quickest) == SOWN:
                break
        for seed, plan in quickest.values():
            if self.state.done + ops_replayed(seed) > most and not least[0]:
                break
            least = min(least, self.state.key_of(seed, plan))
