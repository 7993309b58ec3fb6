"""Sowing: the plans that a joint search replays before its first descent.

They are plans of the planners that search a part of the decisions; replicas of the whole network; the fastest pipelines of the
niches that estimates find most promising; and, where nothing better is known, seeds of several ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise, takewhile
from math import inf

import numpy as np

from hardware_profiles import Floats, Integers
from planners.joint.niches import Niches
from planners.joint.pipeline import Pipeline, pipeline_of
from planners.joint.search_state import FIRST_ROUND, MOST_GAINED, Key, SearchState, ops_replayed
from planners.partitioning.cut_moves import climbed, moved, relocated
from planners.search.evaluator import Planner
from planners.search.replay_work import WORK_PER_SECOND
from planners.search.request import Request
from simulator import InfeasiblePlanError, Plan, Problem, Recompute

SOWN, OF_SEEDS = 32, 0.15
"""SOWN: seeds that are replayed, at most; OF_SEEDS: share of the first round's work that they may take."""

OF_OTHERS = 8
"""Plans of other schedules, the fastest, whose stages are replayed under the schedule that is asked for."""

NICHED_ON = 32
"""Devices up to which niches are climbed."""

NICHES, BEGUN_BELOW, CLIMBED_BELOW = 24, 2.0, 1.2
"""NICHES: niches that are climbed, at most; BEGUN_BELOW, CLIMBED_BELOW: estimated seconds per second of the fastest plan, at
most, of a niche that is listed and of one that is climbed.
"""

OF_NICHES = 1.8
"""Work that climbs of niches may take beside the first round, per work of that round."""

Part = Callable[[Problem, Request], Planner | None]
"""(problem, request) -> a planner whose plans the search begins with; None where it can plan nothing that is asked for."""


class Sowing:
    """The plans that one search begins with. parts: planners that are asked first"""

    def __init__(self, state: SearchState, parts: tuple[Part, ...]) -> None:
        self.state, self.parts = state, parts
        self.climbs_niches = len(state.problem.cluster.devices) <= NICHED_ON and not state.boards

    def begin(self, rng: np.random.Generator) -> InfeasiblePlanError | None:
        """Replay the plans to begin with; the refusal of the last of the parts that found no plan, None if none refused."""
        refusal = self._of_parts(self.state.request, rng)
        if not self.state.few and not self.state.replayed():
            self._of_other_schedules(rng)
            if self.state.replayed():
                return refusal  # far nearer than any seed
        self.sow()
        return refusal

    def _of_parts(self, request: Request, rng: np.random.Generator) -> InfeasiblePlanError | None:
        """Let the other planners search and replay their plans; the refusal of the last that found no plan, None if none
        refused.
        """
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
        """Plan with the other planners under any schedule, and replay the stages of their fastest plans under the schedule that
        is asked for.
        """
        self._of_parts(replace(self.state.request, schedule=None), rng)
        others = self.state.evaluate.replayed
        for plan in sorted(others, key=lambda one: others[one].key)[:OF_OTHERS]:
            if (one := pipeline_of(self.state.problem, plan)) is not None:
                for other in filter(self.state.moves.allows, self.state.moves.schedules(one)):
                    self.state.known(other)
                    self.state.done += ops_replayed(other)

    def sow(self) -> None:
        """Replay seeds: of one rank those that may be the fastest, with looped stages as well where the stack runs these; then
        the fastest of niches; and seeds of several ranks where nothing fits yet, or on few boards.
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
        """Replay the replicas of the whole network again with LOOPED stages each, and return the least key after that.

        Gradients of the later stages are then reduced while earlier stages run backward. Arguments as of `_replay_rising`.
        """
        replayed, alone = self.state.replayed(), dict[object, Pipeline]()
        for plan in sorted(replayed, key=lambda one: replayed[one].key):
            one = pipeline_of(self.state.problem, plan)
            if one is not None and one.stages == 1 and one.copies > 1:
                alone.setdefault((one.ranks, one.microbatches, one.group, one.context), one)
        looped = (each for one in alone.values() for each in self.state.moves.looped(one))
        least = self._replay_rising(looped, least, most)
        return min(least, self._climb_gathered(least))

    def _climb_gathered(self, least: Key) -> Key:
        """The least key after a climb by replays from the fastest looped stages of one rank under ZeRO 3, if these are near it:
        estimates of cuts leave out the weights that replicas gather. Networks of blocks are left as they are: their blocks are
        gathered one by one wherever the cuts are.
        """
        if any(layer.block for layer in self.state.problem.workload.layers):
            return least
        replayed = self.state.replayed()
        for plan in sorted(replayed, key=lambda one: replayed[one].key):
            if replayed[plan].key > (least[0], least[1] * CLIMBED_BELOW):
                break
            one = pipeline_of(self.state.problem, plan)
            if one is not None and len(one.ranks) == 1 and one.chunks > 1 and one.zero == 3:
                return min(least, self._climbed_by_replays(one))
        return least

    def _climbed_by_replays(self, one: Pipeline) -> Key:
        """The least key that moves of a pipeline's cuts lead to, each to the fastest partition near, by replays of all while
        there is work left.
        """
        state, places, keys = self.state, self.state.climbs.places, dict[tuple[int, ...], Key]()

        def seconds(near: Integers) -> Floats:
            for cuts in map(tuple, near.tolist()):
                other = replace(one, cuts=cuts)
                if cuts not in keys:
                    rising = all(begin < end for begin, end in pairwise(other.bounds(len(state.problem.workload))))
                    runs = rising and not state.ended
                    keys[cuts] = state.key_of(other, other.plan(state.problem, state.name)) if runs else (inf, inf)
            return np.array([inf if keys[cuts][0] else keys[cuts][1] for cuts in map(tuple, near.tolist())])

        def moves(at: Integers) -> Integers:
            return np.vstack([moved(at, places, runs=False), relocated(at, places)])

        climbed(np.array(one.cuts), seconds, moves)
        return min(keys.values())

    def _replay_rising(self, seeds: Iterable[Pipeline], least: Key, most: float) -> Key:
        """Replay seeds in rising order of their quick replays while these are below the least key and less than `most` work is
        done; the least key after that.
        """
        for quick, _, seed, plan, _ in self.state.rising(
            each for one in seeds for each in self.state.waiting(one, least)
        ):
            if (not least[0] and quick >= least[1]) or self.state.done + ops_replayed(seed) > most:
                break
            least = min(least, self.state.key_of(seed, plan))
        return least

    def _sow_niches(self, least: Key) -> None:
        """Climb the most promising niches and replay where the climbs end; what exceeds memory also with more recomputation.

        Niches stand in the order of their estimated seconds, times the least error that estimates of the same placement had so
        far. least: key of the best plan so far
        """
        state = self.state
        policies = sorted(state.moves.policies, key=state.moves.recompute_seconds)
        niches, errors = Niches(state.moves, state.climbs, policies[0]), dict[str, float]()
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
                    least = min(least, self.with_more_recomputation(niches, (there, one), policies[1:]))

    def with_more_recomputation(
        self, niches: Niches, pipelines: tuple[Pipeline, ...], policies: Iterable[Recompute]
    ) -> Key:
        """The least key that climbs of a niche lead to from some of its pipelines under the first of these policies with which
        one of them fits; if none does, under all.
        """
        least = inf, inf
        for policy in policies:
            others = dict.fromkeys(replace(each, recompute=((policy, 0),) * each.stages) for each in pipelines)
            climbed_to = (self.state.known(next(niches.fastest(other))[1]) for other in others)
            least = min(least, *(known.key for known in climbed_to if known is not None), (inf, inf))
            if not least[0]:
                break
        return least

    def sow_pipelines(self, least: Key, most: float, *, looked_at: float = inf) -> None:
        """Replay the quickest seed of each choice of several ranks and degrees, until `most` work is done (or further while
        nothing fits).

        looked_at: work at which no further seed is looked at
        """
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
