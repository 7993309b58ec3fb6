"""Rounds of a joint search: each divides its work between descents, searches for orders, and cuts inside layers on boards."""

from __future__ import annotations

from math import inf

from planners.joint.descents import Descents
from planners.joint.orders import JointOrders
from planners.joint.search_state import FIRST_ROUND, MOST_GAINED, Key, SearchState
from planners.joint.sowing import Sowing
from planners.joint.told import complexity
from planners.partitioning.fraction_search import FractionSearch
from planners.search.replay_work import WORK_PER_SECOND, work_of
from simulator import Plan, cuts_of

DRY = 0.5
"""Part of the work of a round: where one ends with less done, pipelines are sown that were left out on many devices."""

GAINED, LEFT = 0.005, 0.2
"""Parts of the seconds of the best plan that a round gains, and that the problem's bound leaves, at least, for a round more."""

NEAR_BOUND = 0.05
"""Part of the best plan's seconds that the problem's bound leaves, at least, for a further round, where none are asked for."""

OF_BEGINNING = 0.3
"""Part of the work of a round that brief descents may take."""

OF_UNTRIED = 0.4
"""Part of the work of descents for forms that no earlier round came to."""

OF_ORDERS = 0.26
"""Part of the work that is left to searches for orders, where there are any."""

SHARED, OF_SHARED = 3, 0.15
"""Plans on boards, the fastest of unlike schedules and devices, whose cuts are moved into layers; the part of the work for it."""

LEAST_ABOVE = 0.4
"""Part of what these take above the problem's bound that descents leave: where it beats no other answer there are none either."""

SAME = 1.0 + 1e-6
"""How far above the fastest a plan may be that is taken because it is simpler, or needs less memory."""


class JointRounds:
    """The rounds of one search, over what was sown."""

    def __init__(self, state: SearchState, sowing: Sowing) -> None:
        self.state, self.sowing = state, sowing
        self.descents, self.orders = Descents(state), JointOrders(state)

    def descend(self) -> Plan:
        """The best flushed plan of all descents, and of those replayed before.

        More work than that of FIRST_ROUND is for further rounds, each of which ends at twice the work of the one before: where
        the work ends with a round, it answers no worse than where it ended with an earlier one.
        """
        state = self.state
        state.least = min((score.key for score in state.replayed().values()), default=state.least)
        more = unasked = state.request.asked("seconds") is None
        sown = state.few or state.least[0] > 0.0
        whole, begun, end = state.most, 0.0, min(state.most, FIRST_ROUND * WORK_PER_SECOND)
        while self.may_beat():
            before = state.least
            self.run(begun, end)
            if state.done < begun + DRY * (end - begun) and not sown:
                self.sowing.sow_pipelines(state.least, end, looked_at=(begun + end) / 2.0)
                sown, begun = True, state.done
                continue
            if end == whole and more and self.is_worth_a_round(before):
                whole, more = 2.0 * whole, False
            if end >= whole or (unasked and not state.leaves(NEAR_BOUND)):
                break
            begun, end = state.done, min(whole, 2.0 * end)
        state.most = whole
        replayed = state.replayed()
        missing, seconds = min(score.key for score in replayed.values())
        best = [plan for plan, score in replayed.items() if score.key <= (missing, seconds * SAME)]
        return min(best, key=lambda plan: (complexity(plan), replayed[plan].peak_bytes, replayed[plan].key))

    def may_beat(self) -> bool:
        """Whether descents may lead from what is known to less than the other answer that is to be beaten."""
        (missing, seconds), beat = self.state.least, self.state.evaluate.beat
        if missing or beat == inf:
            return True
        if self.state.evaluate.judge is not None:
            return seconds * MOST_GAINED < beat
        return max(seconds * MOST_GAINED, (1.0 - LEAST_ABOVE) * self.state.bound() + LEAST_ABOVE * seconds) < beat

    def is_worth_a_round(self, before: Key) -> bool:
        """Whether the last round was better than what was there before by GAINED, and more than LEFT may be gained still."""
        if not before[0] and self.state.least[1] > before[1] * (1.0 - GAINED):
            return False
        return self.state.leaves(LEFT)

    def run(self, begun: float, end: float) -> None:
        """Descend until so much work is done, of which this round began at `begun`; then search orders, on boards fractions."""
        state = self.state
        last, work = end, (end - begun) * (1.0 - OF_SHARED * state.boards)
        end = begun + work
        descents = begun + (1.0 - OF_ORDERS * self._orders_are_open) * work
        if begun:
            self.descents.descend_from_untried(state.done + OF_UNTRIED * (descents - state.done))
            work = end - state.done
        state.until(state.done + OF_BEGINNING * work)
        started = self.descents.briefly_descended()
        state.until(descents)
        for _, one, decisions in sorted(started, key=lambda each: each[0]):
            self.descents.descend_from(one, decisions)
        starts = [] if state.done >= descents else self.descents.of_families()
        for left, one in zip(range(len(starts), 0, -1), starts, strict=True):
            state.until(state.done + (descents - state.done) / left)
            self.descents.descend_from(one, state.moves.within_a_family)
        state.most = min(end, state.done + OF_ORDERS * work)
        if self._orders_are_open:
            self.orders.order_fastest()
        state.most = last
        if state.boards:
            self.share_layers()

    def share_layers(self) -> None:
        """Replay the fastest plans with cuts inside layers, which are moved while replays get better."""
        state = self.state
        search, unlike = FractionSearch(state.evaluate, state.request), dict[object, Plan]()
        replayed = state.replayed()
        for plan in sorted(replayed, key=lambda one: replayed[one].key):
            if len(plan.stages) > 1 and cuts_of(plan) is not None and len(unlike) < SHARED:
                unlike.setdefault((plan.schedule, *(stage.devices for stage in plan.stages)), plan)
        for plan in unlike.values():
            moves, moved = search.climbed(plan), True
            while moved and not state.ended:
                made = state.evaluate.evaluations
                moved = next(moves, None) is not None
                state.done += work_of(plan) * (state.evaluate.evaluations - made)

    @property
    def _orders_are_open(self) -> bool:
        """Whether a plan may have an order of its own."""
        return self.state.request.schedule is None and not self.state.problem.stack.runs.schedules
