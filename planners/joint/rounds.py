"""Rounds of a joint search: each divides its work between descents, searches for orders of ops, and cuts inside layers on
boards.
"""

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
"""Share of a round's work: a round on many devices that ends with less of it done goes on from further seeds."""

GAINED, LEFT = 0.005, 0.2
"""GAINED: share of the best plan's seconds that the last round must have gained for one more round; LEFT: share that the
problem's lower bound must leave to gain.
"""

NEAR_BOUND = 0.05
"""Share of the best plan's seconds that the problem's lower bound must leave to gain for a further round, where no seconds are
asked for.
"""

OF_BEGINNING = 0.3
"""Share of a round's work that brief descents may take."""

OF_UNTRIED = 0.4
"""Share of the work of descents that those from forms which no earlier round began with may take."""

OF_ORDERS = 0.26
"""Share of a round's work for searches for orders of ops, where these are open."""

SHARED, OF_SHARED = 3, 0.15
"""SHARED: plans on boards whose cuts are moved into layers, at most; OF_SHARED: share of a round's work for these moves."""

LEAST_ABOVE = 0.4
"""Share of the distance between the best plan and the problem's lower bound that descents never gain: where the rest beats no
other answer no descent is run.
"""

SAME = 1.0 + 1e-6
"""Seconds per second of the fastest plan up to which a simpler plan, or one of less memory, is answered instead."""


class JointRounds:
    """The rounds of one search, run on what its sowing found."""

    def __init__(self, state: SearchState, sowing: Sowing) -> None:
        self.state, self.sowing = state, sowing
        self.descents, self.orders = Descents(state), JointOrders(state)

    def descend(self) -> Plan:
        """Run all rounds and return the best flushed plan that was replayed, whether it fits or not.

        The first round takes the work of FIRST_ROUND, each further one ends at twice the work of the one before: a search that
        may take more work, and ends with a round, answers no worse than one that ended with an earlier round.
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
        """Whether descents may still come below `Evaluator.beat`, the seconds of the other answer that is to be beaten."""
        (missing, seconds), beat = self.state.least, self.state.evaluate.beat
        if missing or beat == inf:
            return True
        if self.state.evaluate.judge is not None:
            return seconds * MOST_GAINED < beat
        return max(seconds * MOST_GAINED, (1.0 - LEAST_ABOVE) * self.state.bound() + LEAST_ABOVE * seconds) < beat

    def is_worth_a_round(self, before: Key) -> bool:
        """Whether the last round gained more than GAINED over the key before it, and the problem's bound leaves more than LEFT to
        gain.
        """
        if not before[0] and self.state.least[1] > before[1] * (1.0 - GAINED):
            return False
        return self.state.leaves(LEFT)

    def run(self, begun: float, end: float) -> None:
        """Run one round: descents, then searches for orders of ops, then on boards cuts inside layers.

        begun, end: work that is done in all when the round begins, and at which it ends
        """
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
        """Replay the fastest plans of unlike schedules and devices with cuts moved into layers, while each move is faster."""
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
        """Whether a plan may have an order of ops of its own: no schedule is asked for, and the stack runs any."""
        return self.state.request.schedule is None and not self.state.problem.stack.runs.schedules
