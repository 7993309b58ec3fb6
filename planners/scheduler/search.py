"""Search for an order of ops: schedule families, list scheduling under many settings, then annealing, each in a share of the
work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import MOST_SEED, Integers, brief, check_real, check_whole, percent, unchosen
from planners.scheduler.alternation import Alternation, alternate, alternations
from planners.scheduler.annealing import Walk, anneal, cost_of
from planners.scheduler.blocks import BuildingBlock, blocks_of, paused_blocks, replay_block, warm_ups
from planners.scheduler.bound import (
    OBJECTIVES,
    Objective,
    bound_below,
    longest_below,
    lower_bound,
    spare_seconds,
    ways_of,
)
from planners.scheduler.instance import Codes, ScheduleInstance, codes_of, instance_of, peaks_of, schedule_of
from planners.scheduler.list_scheduling import TIGHT, ListSetting, list_schedule, settings_of
from planners.scheduler.order_replay import Form, Trace, replay, trace_of
from planners.scheduler.patterns import one_at_a_time, pattern_names, pattern_of
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.sequencing import moved_keys, random_keys, sequence
from planners.scheduler.steady import (
    Rounds,
    anneal_rounds,
    period_of,
    plain_rounds,
    rounds_again,
    rounds_of,
    rounds_of_order,
    stream_of,
    with_twins,
    without_delay,
    without_twins,
)
from simulator import Schedule, gap_above

OPS_PER_SECOND = 110_000_000
"""Ops replayed per nominal second of search, whatever a machine takes for them: the unit of work."""

LONGEST_WALK = OPS_PER_SECOND // 2
"""Ops replayed by one walk, at most: interrupts are heard between walks."""

LIST_SCHEDULING, ALTERNATION = 10, 4
"""Work of list scheduling, and of alternation, per op that they place."""

UNCACHED = 2**16
"""Ops of an order above which its replay waits for memory: each op then counts as four."""

EXACT = 1e-9
"""Relative tolerance of rounding between a bound and an order that attains it."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundSchedule:
    """An order of ops and how good it is known to be.

    cost: seconds of the objective; for `steady` those of a micro-batch where the order repeats
    makespan: seconds of the whole order; bound: lower bound on the cost of any order
    peaks: most bytes that each device keeps for its micro-batches
    evaluations: orders made or replayed
    """

    problem: ScheduleProblem
    schedule: Schedule
    objective: Objective
    cost: float
    makespan: float
    bound: float
    peaks: tuple[float, ...]
    evaluations: int

    def __repr__(self) -> str:
        known = "proven" if self.proven else f"gap {percent(self.gap, '.2f')}"
        return brief(self, f"{self.problem!r}: makespan {self.makespan:.6g} s, {known}")

    @property
    def gap(self) -> float:
        """Distance of the cost above the bound, as a share of the bound; 0 where the order is proven."""
        return 0.0 if self.proven else gap_above(self.cost, self.bound)

    @property
    def proven(self) -> bool:
        """Whether it is proven that no order within the limits costs less (but for rounding)."""
        return self.cost <= self.bound * (1.0 + EXACT)


Improved = Callable[[int, float], object]
"""Callback at every better order: (orders made or replayed so far, seconds of the objective)."""


class _Arm(NamedTuple):
    """A way to anneal: whether replays place the weight gradients (`fill`), their tolerance, and the first temperature in mean
    seconds of an op (`heat`).
    """

    fill: bool
    tolerance: float
    heat: float


ARMS = (
    _Arm(True, 0.5, 0.5),
    _Arm(False, 0.0, 0.25),
    _Arm(True, 0.0, 1.0),
    _Arm(False, 0.0, 1.0),
    _Arm(True, 0.25, 0.5),
    _Arm(False, 0.0, 0.5),
    _Arm(True, 0.5, 2.0),
    _Arm(False, 0.0, 0.1),
    _Arm(False, 0.0, 0.03),
)
"""Ways to anneal, none of which is best everywhere: long streams want the coldest, V placements the hottest that fill."""

LONG = 1000
"""Ops above which the coldest arms come first: a hot walk of a long stream undoes more than it can mend."""

NEAR = 1.04
"""Cost per cost of the best order up to which an order of a long stream is annealed."""

SPARK = 1e-300
"""Least promise of an untried arm: more than that of an arm that gained nothing."""

EDGES, FEW_EDGES = 7, 3
"""Of 8 moves on the critical path, how many go to an edge of a stretch: as a rule, and in orders of more than MANY ops."""

MANY = 2000
"""Ops above which a stretch is many micro-batches long, and its edges too far off to be the only places worth trying."""

COOLS_TO = 0.06
"""Last temperature of an annealing, per its first."""

STEPS, GROWTH = 2000, 2.5
"""STEPS: replays of the first walks; GROWTH: factor by which those of every further round are longer."""

ISLANDS = 2
"""Orders of each origin that are annealed apart at first; every round drops the worst of all, down to as many."""

ROUND_WORK = 30
"""Work of finding the pace of a round, per op of the round."""

SEVERAL, MOST_SEVERAL = (2, 3, 4), 8
"""Micro-batches of each chain in a round that are tried beside one: SEVERAL, and those of the stream itself if no more than
MOST_SEVERAL.
"""

PAUSED = 120
"""Blocks with random pauses, at most, that are tried where a device has several stages."""

PAUSED_WORK = 20_000
"""Work of making one such block."""

FRESH = 4
"""Orders of random keys of which the best is annealed."""

KEYS_WORK = 15_000
"""Work of drawing keys."""

TRIAL = 3
"""Micro-batches per device of the short stream on which settings are tried for a long one."""

PATTERN = "pattern"
"""Origin of the orders of schedule families."""

BESIDE = 24
"""Work of a long stream per op that is left for other things than constructions: families, and the answer."""

Maker = ListSetting | Alternation | BuildingBlock
"""What makes an order: a setting of list scheduling or of alternation, or a building block."""


@dataclass(slots=True)
class _Search:
    """State of one search, its only mutable object.

    work: still to be done, in ops replayed; origins: the best orders of each origin so far, with their costs, best first
    trace: of the last replay; random: state of the random numbers
    """

    instance: ScheduleInstance
    longest_stage: bool
    bound: float
    work: int
    trace: Trace
    random: NDArray[np.uint64]
    progress: Improved
    evaluations: int = 0
    origins: dict[str, list[tuple[float, Codes]]] = field(default_factory=dict)

    @property
    def ops(self) -> int:
        """Work of a replay of an order."""
        return len(self.trace.order) * (4 if len(self.trace.order) > UNCACHED else 1)

    @property
    def best(self) -> tuple[float, Codes] | None:
        """The cost and the codes of the best order so far; None while there is none."""
        return min((kept[0] for kept in self.origins.values()), key=_cost, default=None)

    def over(self) -> bool:
        """Whether the best order reaches the bound, or no work is left."""
        best = self.best
        return self.work <= 0 or (best is not None and best[0] <= self.bound * (1.0 + EXACT))

    def keep(self, origin: str, cost: float, order: Codes) -> None:
        """Remember an order if it is among the best of its origin and differs from them in cost."""
        kept = self.origins.get(origin, [])
        if cost == math.inf or any(cost == other for other, _ in kept):
            return
        if len(kept) < ISLANDS or cost < kept[-1][0]:
            best = self.best
            self.origins[origin] = sorted([*kept, (cost, order.copy())], key=_cost)[:ISLANDS]
            if best is None or cost < best[0]:
                self.progress(self.evaluations, cost)

    def try_order(self, origin: str, codes: Codes) -> float:
        """Replay a whole order, remember it, and return its cost."""
        self.work -= self.ops
        self.evaluations += 1
        cost = self.replayed(codes)
        self.keep(origin, cost, codes)
        return cost

    def replayed(self, codes: Codes) -> float:
        """Replay a whole order into the trace and return its cost."""
        makespan = replay(self.instance, codes, self.instance.offsets, False, 0.0, self.trace, False)
        return float(cost_of(makespan, self.longest_stage, self.trace))

    def try_pattern(self, pattern: Schedule | None, problem: ScheduleProblem) -> float:
        """Try the order of a schedule and return its cost; infinite if it is none of the problem, or does not fit."""
        codes = None if pattern is None else codes_of(self.instance, pattern, problem)
        return math.inf if codes is None else self.try_order(PATTERN, codes)

    def price(self, maker: Maker) -> int:
        """Work of making an order."""
        if isinstance(maker, BuildingBlock):
            return 2 * self.ops
        return len(self.trace.order) * (LIST_SCHEDULING if isinstance(maker, ListSetting) else ALTERNATION)

    def make(self, maker: Maker) -> float:
        """Make an order, which comes into the trace, and return its cost."""
        self.work -= self.price(maker)
        self.evaluations += 1
        if isinstance(maker, BuildingBlock):
            return float(cost_of(replay_block(self.instance, maker, self.trace), self.longest_stage, self.trace))
        if isinstance(maker, ListSetting):
            makespan = list_schedule(self.instance, maker, self.trace)
            again = int(self.instance.first.sum()) > 1  # ops that waited for another device's memory need not
        else:
            makespan, again = alternate(self.instance, maker, self.trace), True
        if makespan < math.inf and again:
            return self.replayed(self.trace.order.copy())
        return float(cost_of(makespan, self.longest_stage, self.trace))

    def on(self, short: ScheduleProblem, work: int) -> _Search:
        """The same search on a shorter stream, with work of its own."""
        instance = instance_of(short)
        return replace(
            self, instance=instance, trace=trace_of(instance), work=work, origins={}, progress=lambda number, cost: None
        )

    def promise(self, cost: float, whole: _Search) -> float:
        """Estimated cost of the whole stream, from the cost of the order just made of the short stream and that one's pace."""
        return cost + int(whole.instance.passes[0] - self.instance.passes[0]) * self.pace()

    def pace(self) -> float:
        """Seconds per micro-batch of the first chain in the later half of the stream just made."""
        deepest = int(np.argmax(self.instance.last))
        most = len(self.trace.ends) // (2 * len(self.instance.device))
        passes = int(self.instance.passes[deepest])
        ends = self.trace.ends[deepest * most : deepest * most + passes]
        return float(ends[-1] - ends[passes // 2]) / max(1, passes - 1 - passes // 2)


def _cost(order: tuple[float, Codes]) -> float:
    """The cost of an order with its cost."""
    return order[0]


def without_weights(instance: ScheduleInstance, codes: Codes) -> tuple[Codes, Integers]:
    """The forwards and input gradients of an order, and their offsets by device."""
    rest = codes < 2 * len(instance.device)
    offsets = np.concatenate([[0], np.cumsum(rest)])[instance.offsets]
    return codes[rest], offsets


def search_schedule(
    problem: ScheduleProblem,
    *,
    seconds: float = 1.0,
    objective: Objective = "makespan",
    seed: int = 0,
    patterns: Sequence[Schedule] = (),
    progress: Improved = lambda evaluations, cost: None,
) -> FoundSchedule:
    """The best order found within the work of `seconds` nominal seconds (see OPS_PER_SECOND): the same on every machine.

    patterns: orders to begin from beside the families of the problem's placement; the answer is never worse than one of them that
    fits, nor than one of the families (not of `steady`, see the module of that name)
    progress: called at every better order
    Raises ValueError for seconds or a seed that are negative, SearchInterrupted with what has been found for a KeyboardInterrupt.
    """
    if objective not in OBJECTIVES:
        raise ValueError(unchosen("objective", objective, OBJECTIVES))
    check_real("seconds", seconds)
    check_whole("seed", seed, 0, MOST_SEED)
    if objective == "steady" and problem.microbatches < len(problem.chains):
        raise ValueError(f"objective 'steady' needs a micro-batch of each of {len(problem.chains)} chains, got 1")
    search = _begun(problem, seconds, objective, seed, progress)
    try:
        if objective == "steady":
            _search_rounds(search, problem)
        else:
            _run(search, problem, patterns)
    except KeyboardInterrupt:
        if search.best is None:
            raise
        raise SearchInterrupted(_found(search, problem, objective)) from None
    return _found(search, problem, objective)


def search_orders(problem: ScheduleProblem, *, seconds: float) -> list[Schedule]:
    """The shortest orders of each origin that is no schedule family, the shortest first, so that unlike orders are among them."""
    search = _begun(problem, seconds, windows=False)
    _run(search, problem, ())
    kept = itertools.chain(*(orders for origin, orders in search.origins.items() if origin != PATTERN))
    return [schedule_of(search.instance, codes, problem, "search") for _, codes in sorted(kept, key=_cost)]


def _begun(
    problem: ScheduleProblem,
    seconds: float,
    objective: Objective = "makespan",
    seed: int = 0,
    progress: Improved = lambda evaluations, cost: None,
    *,
    windows: bool = True,
) -> _Search:
    """A search without an order yet; windows: as of `lower_bound`."""
    instance = instance_of(problem)
    return _Search(
        instance,
        objective == "longest-stage",
        lower_bound(instance, objective, windows=windows),
        int(min(seconds, 1e9) * OPS_PER_SECOND),
        trace_of(instance),
        np.array([seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D & (2**64 - 1)], dtype=np.uint64),
        progress,
    )


class SearchInterrupted(KeyboardInterrupt):
    """Raised by a search that was interrupted; `found` is the best so far."""

    def __init__(self, found: FoundSchedule) -> None:
        super().__init__("a search for an order was interrupted")
        self.found = found


def _found(search: _Search, problem: ScheduleProblem, objective: Objective) -> FoundSchedule:
    """The best order of a search, with its bound."""
    assert search.best is not None  # what runs one micro-batch at a time fits
    instance, (cost, codes) = search.instance, search.best
    makespan = float(replay(instance, codes, instance.offsets, False, 0.0, search.trace, False))
    schedule = schedule_of(instance, codes, problem, "search")
    peaks = peaks_of(instance, codes, problem)
    below = {"makespan": bound_below, "longest-stage": longest_below}.get(objective)
    bound = below(instance, search.bound, cost) if below else search.bound
    return FoundSchedule(problem, schedule, objective, cost, makespan, bound, peaks, search.evaluations)


@dataclass(slots=True)
class _Repeated:
    """Rounds of `count` micro-batches of each chain.

    instance: the problem with as many twins of each chain; rounds, period: the best rounds so far and their seconds
    """

    count: int
    instance: ScheduleInstance
    rounds: Rounds
    period: float

    def step(self) -> int:
        """Work of a step of annealing."""
        return ROUND_WORK * len(self.rounds.codes)


def _search_rounds(search: _Search, problem: ScheduleProblem) -> None:
    """Anneal rounds that all devices repeat, of one micro-batch of each chain, then of several, in turns."""
    chains, random = len(problem.chains), np.random.default_rng(int(search.random[0] % 2**32))
    single = _single_rounds(search, chains)
    _keep_rounds(search, single, chains)
    several: list[_Repeated] = [single]
    for turn in itertools.count():
        if search.over() or search.work < single.step():
            return
        beside = max(1, sum(one.count for one in several[1:]))  # half of the work is for one micro-batch of each chain
        for one in several:
            _anneal_turn(
                search, one, problem, random, turn, STEPS * 2 ** (turn // 2) * (beside if one.count == 1 else 1)
            )
            _keep_rounds(search, one, chains)
        if turn == 0:
            several += _several(search, problem, single)


def _single_rounds(search: _Search, chains: int) -> _Repeated:
    """The best rounds of one micro-batch of each chain: of building blocks, or one micro-batch at a time."""
    instance, least = search.instance, search.bound * chains
    blocks = [*blocks_of(instance)]
    paused = min(PAUSED, search.work // 8 // (PAUSED_WORK + search.ops)) if search.work and not search.over() else 0
    blocks += paused_blocks(instance, paused, int(search.random[0] % 2**32))
    search.work -= paused * PAUSED_WORK
    islands = [plain_rounds(instance), *(rounds_of(instance, block) for block in blocks)]
    search.evaluations += len(islands)
    periods = [float(period_of(instance, rounds, least)) for rounds in islands]
    best = min(range(len(islands)), key=periods.__getitem__)
    return _Repeated(1, instance, islands[best], periods[best])


def _several(search: _Search, problem: ScheduleProblem, single: _Repeated) -> list[_Repeated]:
    """Rounds of several micro-batches, as far as there is work for them, begun as repetitions of the round of one."""
    found, each = [], problem.microbatches // len(problem.chains)
    for count in sorted({*SEVERAL, min(each, MOST_SEVERAL)} - {1}):
        enough = search.work // 4 >= STEPS * single.step() * count
        if enough and 3 * count * len(search.instance.device) < 2**15:
            rounds = rounds_again(search.instance, single.rounds, count)
            found.append(_Repeated(count, with_twins(search.instance, count), rounds, single.period * count))
    return found


def _anneal_turn(
    search: _Search, repeated: _Repeated, problem: ScheduleProblem, random: np.random.Generator, turn: int, most: int
) -> None:
    """Walk from the best rounds of a count, and from fresh ones: those of an order searched for so many micro-batches."""
    chains = len(problem.chains)
    least, hot = search.bound * chains * repeated.count, float(repeated.instance.seconds.mean())
    starts = [repeated.rounds]
    if search.work > STEPS * repeated.step():
        starts.append(_fresh_rounds(search, repeated, problem, random))
    for rounds in starts:
        rounds = Rounds(rounds.codes.copy(), rounds.offsets, rounds.delays.copy())
        steps = min(most, search.work // repeated.step(), LONGEST_WALK // repeated.step())
        if steps < 1 or search.over():
            return
        period, taken = anneal_rounds(repeated.instance, rounds, steps, hot / 2 ** (turn % 4), least, search.random)
        search.work -= max(1, taken) * repeated.step()
        search.evaluations += taken
        if period < repeated.period:
            repeated.rounds, repeated.period = rounds, float(period)


def _fresh_rounds(
    search: _Search, repeated: _Repeated, problem: ScheduleProblem, random: np.random.Generator
) -> Rounds:
    """The rounds of an order of `repeated.count` micro-batches per chain: the shortest of a short search, or one of random
    keys.
    """
    short = replace(problem, microbatches=repeated.count * len(problem.chains))
    trial = search.on(short, STEPS * repeated.step() // 4)
    trial.longest_stage, trial.bound = False, lower_bound(trial.instance)
    if random.integers(2):
        codes = np.empty_like(trial.trace.order)
        sequence(trial.instance, random_keys(trial.instance, random), codes)
        search.work -= KEYS_WORK + trial.ops * len(trial.instance.device)
    else:
        before = trial.work
        _run(trial, short, ())
        search.work -= before - trial.work
        assert trial.best is not None  # one micro-batch at a time fits
        codes = trial.best[1]
    return rounds_of_order(trial.instance, codes, trial.instance.offsets, repeated.count)


def _keep_rounds(search: _Search, repeated: _Repeated, chains: int) -> None:
    """Remember the order that rounds make of the stream: the shorter one of the rounds as they are and without delays that may
    go.
    """
    every = (repeated.rounds, without_delay(repeated.instance, repeated.rounds, repeated.period))
    streams = [
        without_twins(stream_of(repeated.instance, rounds), len(search.instance.device), repeated.count)
        for rounds in every
    ]
    codes = min(streams, key=search.replayed)
    if search.replayed(codes) < math.inf:
        search.keep("rounds", repeated.period / (chains * repeated.count), codes)


def _run(search: _Search, problem: ScheduleProblem, patterns: Sequence[Schedule]) -> None:
    """Try all that the search has, in turn: constructions, families, then annealing."""
    _constructions(search, problem)
    families = (pattern_of(problem, name) for name in _families(search, problem))
    for pattern in itertools.chain(patterns, families):
        if search.best is not None and search.best[0] <= search.bound:
            break
        search.try_pattern(pattern, problem)
    if search.best is None or (
        not search.over() and len(problem.chains) > 1
    ):  # chains that share little memory take turns
        search.try_order("one at a time", one_at_a_time(search.instance))
    _annealing(search, problem)


def _families(search: _Search, problem: ScheduleProblem) -> Iterator[str]:
    """Names of families to begin from, without those that do not fit even a short stream: none holds less in a longer one."""
    short = replace(problem, microbatches=min(problem.microbatches, _short(problem)))
    trial = search.on(short, 0)
    for name in pattern_names(problem):
        if trial.try_pattern(pattern_of(short, name), short) < math.inf:
            yield name


def _constructions(search: _Search, problem: ScheduleProblem) -> None:
    """Make orders by blocks and list schedules; of a long stream those that promise most on a short one."""
    one_each = len(search.instance.device) == problem.devices
    paused = 0 if one_each else min(PAUSED, search.work // 8 // (PAUSED_WORK + 2 * search.ops))
    settings = settings_of(search.instance, problem.stages)
    makers: Iterable[Maker] = itertools.chain(
        itertools.islice(settings, len(TIGHT)),
        alternations(spare_seconds(search.instance, search.longest_stage, search.bound)) if one_each else (),
        warm_ups(search.instance, problem.stages) if one_each else (),
        blocks_of(search.instance),
        settings,
        paused_blocks(search.instance, paused, int(search.random[0] % 2**32)),
    )
    search.work -= paused * PAUSED_WORK
    share = search.work // 2
    rest = share if share > STEPS // 2 * search.ops else 0  # too little for annealing is better spent here
    makers = (
        list(makers) if problem.microbatches > _short(problem) else makers
    )  # else each is made only when its turn comes
    if isinstance(makers, list) and sum(search.price(one) for one in makers) > share:
        rest += BESIDE * len(search.trace.order)
        _make(search, settings_of(search.instance, problem.stages, long=True), rest)
        if search.over() or search.work - rest < share // 2 + search.price(makers[0]):
            return
        makers = _ranked(search, makers, replace(problem, microbatches=_short(problem)), share // 2)
    _make(search, makers, rest)


def _make(search: _Search, makers: Iterable[Maker], rest: int) -> None:
    """Make and keep the orders of makers in turn, while more work than `rest` is left."""
    for maker in makers:
        if search.over() or search.work < rest + search.price(maker):
            return
        cost = search.make(maker)
        search.keep(type(maker).__name__, cost, search.trace.order)


def _short(problem: ScheduleProblem) -> int:
    """Number of micro-batches of the short stream of a problem."""
    return TRIAL * problem.devices * len(problem.chains)


def _ranked(search: _Search, makers: Sequence[Maker], short: ScheduleProblem, share: int) -> list[Maker]:
    """Makers by the estimated cost of their orders in the whole stream, from their orders of a short one; best first."""
    trial = search.on(short, share)
    promise = []
    for number, maker in enumerate(makers):
        if trial.work <= 0:
            break
        promise.append((trial.promise(trial.make(maker), search), number))
    search.work -= share - trial.work
    search.evaluations = trial.evaluations
    return [makers[number] for cost, number in sorted(promise) if cost < math.inf]


@dataclass(slots=True)
class _Island:
    """An order that is annealed apart from others.

    gains: of each arm, what it lately gained per replay, in seconds; None before it is tried; used: walks of each arm
    """

    cost: float
    codes: Codes
    gains: list[float | None] = field(default_factory=lambda: [None] * len(ARMS))
    used: list[int] = field(default_factory=lambda: [0] * len(ARMS))

    def promise(self, untried: float) -> tuple[float, int, int]:
        """What the most promising arm may gain, minus the number of its walks, and its index.

        untried: share of the best arm's gain that an arm not yet tried promises; before any is tried, an arm promises more than
        anything
        """
        most = max((gain for gain in self.gains if gain is not None), default=math.inf)
        promises = (untried * max(most, SPARK) if gain is None else gain for gain in self.gains)
        promise, used, arm = max(zip(promises, (-one for one in self.used), range(0, -len(ARMS), -1), strict=True))
        return promise, used, -arm

    def learn(self, arm: int, cost: float, taken: int) -> None:
        """Record what a walk of `taken` replays with an arm gained."""
        self.gains[arm] = max(0.0, self.cost - cost) / max(1, taken) + (self.gains[arm] or 0.0) / 4
        self.used[arm] += 1


class _Annealer:
    """What all walks of a search share: work space and settings."""

    def __init__(self, search: _Search) -> None:
        instance = search.instance
        ways = ways_of(instance)
        self.search, self.trial, self.whole = search, trace_of(instance), np.empty_like(search.trace.order)
        after = np.concatenate([ways.round - instance.seconds[0] + ways.tail, ways.tail])
        self.after = after * (not search.longest_stage)
        self.unit = float(instance.seconds.mean())
        self.edges = FEW_EDGES if search.ops > MANY else EDGES

    def can_go_on(self) -> bool:
        """Whether there is enough work for a walk, and something to gain."""
        return self.unit > 0 and self.search.work >= STEPS // 10 * self.search.ops and not self.search.over()

    def walk(self, island: _Island, number: int, arm: _Arm, steps: int) -> None:
        """Anneal an island's order with an arm, as far as there is work; number: index of the arm"""
        search, instance = self.search, self.search.instance
        limit = min(steps, search.work // search.ops, 1 + LONGEST_WALK // search.ops)
        if search.over() or limit < 1:
            return
        codes, offsets = island.codes.copy(), instance.offsets
        if arm.fill:
            codes, offsets = without_weights(instance, codes)
        hot, target = arm.heat * self.unit, search.bound * (1.0 + EXACT)
        form = Form(arm.fill, arm.tolerance, True, search.longest_stage, self.after)
        walk = Walk(form, self.edges, limit, hot, COOLS_TO * hot, target)
        cost, taken, work = anneal(
            instance, codes, offsets, walk, search.random, (search.trace, self.trial), self.whole
        )
        search.work -= work
        search.evaluations += taken
        island.learn(number, cost, taken)
        if cost < island.cost:
            island.cost, island.codes = cost, self.whole.copy()
            search.keep("annealing", cost, self.whole)


def _annealing(search: _Search, problem: ScheduleProblem) -> None:
    """Walk from the best orders: of a long stream, whose walks are dear, with the arms that gain most, else with every arm."""
    annealer = _Annealer(search)
    if search.ops > LONG:
        _anneal_long(annealer)
    else:
        _anneal_short(annealer, problem)


def _anneal_long(annealer: _Annealer) -> None:
    """Walk with the island and the arm that promise most, coldest arms first; in time without the worst islands."""
    search = annealer.search
    arms = sorted(ARMS, key=lambda arm: (arm.fill, arm.heat))
    orders = sorted(itertools.chain(*search.origins.values()), key=_cost)
    islands = [_Island(*order) for order in orders if order[0] <= NEAR * orders[0][0]]
    steps = float(STEPS)
    while annealer.can_go_on():
        for _ in range(len(arms) * len(islands)):
            island = max(islands, key=lambda one: one.promise(0.5))
            number = island.promise(0.5)[-1]
            annealer.walk(island, number, arms[number], int(steps))
        islands = sorted(islands, key=lambda one: one.cost)[: max(ISLANDS, len(islands) - 1)]
        steps *= GROWTH


def _anneal_short(annealer: _Annealer, problem: ScheduleProblem) -> None:
    """Walk with every arm from the best order of each origin, ever longer from the best; beside them, from fresh orders.

    What a walk cannot leave, a fresh order need not have: from the second round on half of the walks begin anew.
    """
    search = annealer.search
    islands = [_Island(*order) for order in sorted((kept[0] for kept in search.origins.values()), key=_cost)]
    random = np.random.default_rng(int(search.random[0] % 2**32))
    steps = float(STEPS)
    while annealer.can_go_on():
        for number, arm in enumerate(ARMS):
            for island in islands:
                annealer.walk(island, number, arm, int(steps))
        islands = sorted(islands, key=lambda one: one.cost)[:ISLANDS]
        spent = search.work
        budget = len(ARMS) * len(islands) * steps * search.ops
        turn = 0
        while annealer.can_go_on() and spent - search.work < budget:
            turn += 1
            source = islands[turn % len(islands)]
            order = _fresh(search, random, source.codes if turn % 3 else None)
            if order is None:
                continue
            island = _Island(*order)
            for number in random.permutation(len(ARMS))[:3]:
                annealer.walk(island, int(number), ARMS[number], STEPS // 2)
            if island.cost < islands[-1].cost:
                islands = sorted([*islands, island], key=lambda one: one.cost)[:ISLANDS]
        steps *= GROWTH


def _fresh(search: _Search, random: np.random.Generator, source: Codes | None) -> tuple[float, Codes] | None:
    """The best of a few orders of random keys, or of keys near those of `source`, with its cost; None where none runs."""
    instance, best = search.instance, (math.inf, np.empty_like(search.trace.order))
    order = np.empty_like(search.trace.order)
    for _ in range(FRESH):
        if source is not None:
            search.replayed(source)
            keys = moved_keys(instance, source, search.trace, random)
        else:
            keys = random_keys(instance, random)
        search.work -= KEYS_WORK + search.ops * len(instance.device)
        search.evaluations += 1
        if sequence(instance, keys, order) and (cost := search.replayed(order)) < best[0]:
            best = cost, order.copy()
    return best if best[0] < math.inf else None
