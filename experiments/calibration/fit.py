"""Fit: the constants of a stack that measured iterations tell, by least squares with priors.

least  Σ (log(predicted / measured) / NOISE)²  +  Σ ((constant - prior) / spread)²

A factor is fitted by its logarithm, an addition as it is. A constant whose spread the measurements narrow by less than a
twentieth stays where it is: they do not tell it. What other plans are expected to be off by is the spread that is left, carried
through the model's derivatives, and NOISE, which no constant explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from hardware_profiles import RANGES, Flags, Floats, Stack, changed_stack, optional_members, percent
from simulator import Evaluations, Plan, Problem, Score

NOISE = 0.03
"""Relative error that no constant of a stack explains: what like runs differ by among themselves (1.4 to 3.3 % in published
tables), and what the model's form leaves of those that constants were fitted to."""

SPREADS: Mapping[str, float] = {
    "products": 0.15,
    "attention": 0.35,
    "elementwise": 0.7,
    "tensor_collectives": 0.3,
    "replica_collectives": 0.5,
    "odd_heads": 1.0,
    "experts": 0.2,
    "launches": 0.2,
    "block_pass": 1e-3,
    "exposed": 0.15,
    "stragglers": 0.02,
}
"""How far a constant of a run's own stack is expected from that of the shipped one (a standard deviation): of factors, of their
logarithm; of additions, in base units. As far as those of the shipped stacks that rows told lie from one another."""

OTHER_SPREAD = 0.3
"""Of a factor that SPREADS does not name, as no rows told it: of casts, whose factor shipped stacks count."""

TOLD = 0.95
"""A constant moves where measurements narrow its spread to less than this share of it."""

ROUNDS = 6
"""Linearisations at most; the model is nearly linear in its constants, so that two or three do."""


class FitError(ValueError):
    """Measurements that no fit can be made of; one line."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured figure of a plan that ran. what: seconds or memory (bytes); name: of the plan, for messages"""

    name: str
    problem: Problem
    plan: Plan
    measured: float
    what: str = "seconds"


class FittedFigure(NamedTuple):
    """A predicted figure, and how far it is expected to be off: relative standard deviations before and after a fit."""

    name: str
    what: str
    before: float
    after: float
    error_before: float
    error_after: float


@dataclass(frozen=True, slots=True)
class Told:
    """A constant before and after a fit. spread: standard deviations, of a factor relative to it; told: whether it could move"""

    name: str
    before: float
    after: float
    spread_before: float
    spread_after: float
    told: bool


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A fit: the stack with the constants that it found, these, and the observations' figures in their order."""

    stack: Stack
    generations: tuple[str, ...]
    constants: tuple[Told, ...]
    figures: tuple[FittedFigure, ...]
    model: Model
    covariance: Floats

    def predicted(self, observed: Sequence[Observation], *, fitted: bool = True) -> list[float]:
        """The figures of others, with the constants that were found, or with those before."""
        where = self.model.end(self.constants) if fitted else self.model.start
        return [float(one) for one in np.exp(self.model.logarithms(observed, where))] if observed else []

    def expected(self, name: str, problem: Problem, plan: Plan) -> FittedFigure:
        """What an iteration of another plan takes, and how far that is expected to be off."""
        one = Observation(name, problem, plan, 1.0)
        start, end = self.model.start, self.model.end(self.constants)
        here = self.model.logarithms([one], end)
        before, after = math.exp(self.model.logarithms([one], start)[0]), math.exp(here[0])
        slopes = self.model.slopes([one], end, here)
        prior = np.diag(self.model.spreads**2)
        errors = (_error(slopes[0], spread) for spread in (prior, self.covariance))
        return FittedFigure(name, "seconds", before, after, *errors)


def _error(slopes: Floats, covariance: Floats) -> float:
    return float(math.sqrt(slopes @ covariance @ slopes + NOISE**2))


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """What plans take as a function of a stack's constants on some generations of accelerators."""

    stack: Stack
    generations: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def start(self) -> Floats:
        """The stack's own constants, as they are fitted."""
        return np.array([_fitted(name, self._own(name)) for name in self.names])

    @property
    def spreads(self) -> Floats:
        """Of the priors."""
        return np.array([SPREADS.get(name, OTHER_SPREAD) for name in self.names])

    @property
    def ends(self) -> Floats:
        """The least and the most that each constant may be, as they are fitted: [2, constants]."""
        return np.array([[_fitted(name, RANGES[name][end]) for name in self.names] for end in (0, 1)])

    def end(self, constants: Sequence[Told]) -> Floats:
        """Where a fit ended."""
        return np.array([_fitted(one.name, one.after) for one in constants])

    def _own(self, name: str) -> float:
        constant = getattr(self.stack, name)
        known = dict(constant.generations)
        return float(next((known[one].value for one in self.generations if one in known), constant.value))

    def values(self, where: Floats) -> dict[str, float]:
        """Constants by name, within their ranges."""
        return {name: _value(name, float(at)) for name, at in zip(self.names, where, strict=True)}

    def changed(self, where: Floats) -> Stack:
        """The stack with other constants."""
        return changed_stack(self.stack, self.values(where), self.generations)

    def logarithms(self, observed: Sequence[Observation], where: Floats) -> Floats:
        """Of the predicted figures."""
        stack = self.changed(where)
        scores = {
            key: _score(replace(one.problem, stack=stack), one.plan)
            for key, one in {(id(one.problem), id(one.plan)): one for one in observed}.items()
        }
        found: Floats = np.log([_figure(scores[id(one.problem), id(one.plan)], one.what) for one in observed])
        return found

    def slopes(
        self,
        observed: Sequence[Observation],
        where: Floats,
        here: Floats,
        among: Flags | None = None,
    ) -> Floats:
        """Derivatives of the logarithms by the constants, [observations, constants]: differences of a tenth of a spread.

        here: the logarithms; among: constants whose derivatives are wanted (default all), those of others are 0
        """
        columns = []
        for number, step in enumerate(0.1 * self.spreads):
            if among is not None and not among[number]:
                columns.append(np.zeros(len(observed)))
                continue
            there = where.copy()
            there[number] += step
            columns.append((self.logarithms(observed, there) - here) / step)
        return np.stack(columns, axis=1)


def _fitted(name: str, value: float) -> float:
    """A constant as it is fitted: the logarithm of a factor."""
    return math.log(value) if RANGES[name][0] > 0 else value


def _value(name: str, at: float) -> float:
    """The constant that is fitted as `at`, within its range."""
    least, most = RANGES[name]
    return min(max(math.exp(at) if least > 0 else at, least), most)


def _score(problem: Problem, plan: Plan) -> Score:
    score = Evaluations(problem)(plan)
    if score is None:
        raise FitError(f"plan {plan.planner!r} has more micro-batches, or other stages, than the evaluator replays")
    return score


def _figure(score: Score, what: str) -> float:
    return score.iteration_seconds if what == "seconds" else score.peak_bytes


def predicted(one: Observation) -> float:
    """The figure as its problem's stack has it."""
    return _figure(_score(one.problem, one.plan), one.what)


def generations_of(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Of the accelerators that a plan uses; "" of those that tell none."""
    devices = {problem.cluster.devices[device] for stage in plan.stages for device in stage.devices}
    return tuple(sorted({optional_members(one).generation for one in devices}))


def fit(
    stack: Stack,
    observed: Sequence[Observation],
    names: Sequence[str] = tuple(RANGES),
    report: Callable[[int, str], None] = lambda done, text: None,
) -> Fitted:
    """The constants of `names` that measurements tell, on the generations of accelerators that these ran on.

    stack: what the constants begin from, and their prior; report: called with the round and what is being done
    Raises FitError without an observation, ValueError for a stack that does not run a plan.
    """
    if not observed:
        raise FitError("nothing was measured")
    generations = tuple(sorted({name for one in observed for name in generations_of(one.problem, one.plan)}))
    model = Model(stack, generations, tuple(names))
    start, spreads = model.start, model.spreads
    measured = np.log([one.measured for one in observed])
    report(0, "derivatives of constants")
    first = model.logarithms(observed, start)
    slopes = model.slopes(observed, start, first)
    told = np.sqrt(np.diag(_covariance(slopes, spreads))) < TOLD * spreads
    where, here = start, first
    for number in range(ROUNDS):
        report(number + 1, f"{percent(_rms(here - measured))} off")
        if number == 1:  # nearly linear: the first step is the long one
            slopes = np.where(told, model.slopes(observed, where, here, told), slopes)
        step = _step(slopes, measured - here, where - start, spreads, told, model.ends - where)
        where, here, moved = _taken(model, observed, measured, start, spreads, where, here, step)
        if moved < 0.02:
            break
    covariance = _covariance(slopes, np.where(told, spreads, 1e-9))
    covariance += np.diag(np.where(told, 0.0, spreads**2))
    after = np.sqrt(np.diag(covariance))
    own, found = model.values(start), model.values(where)
    constants = tuple(
        Told(name, own[name], found[name], float(spreads[at]), float(after[at]), bool(told[at]))
        for at, name in enumerate(model.names)
    )
    errors = [(_error(row, np.diag(spreads**2)), _error(row, covariance)) for row in slopes]
    figures = tuple(
        FittedFigure(one.name, one.what, math.exp(was), math.exp(now), *error)
        for one, was, now, error in zip(observed, first, here, errors, strict=True)
    )
    return Fitted(model.changed(where), generations, constants, figures, model, covariance)


def _covariance(slopes: Floats, spreads: Floats) -> Floats:
    """Of the constants, once the observations are known."""
    precision = slopes.T @ slopes / NOISE**2 + np.diag(1.0 / spreads**2)
    return np.asarray(np.linalg.inv(precision), dtype=np.float64)


def _rms(off: Floats) -> float:
    return float(np.sqrt(np.mean(off**2)))


def _step(
    slopes: Floats,
    off: Floats,
    moved: Floats,
    spreads: Floats,
    told: Flags,
    room: Floats,
) -> Floats:
    """Gauss and Newton's, of the constants that may move; one that would leave its range stops at its end, and the others make up
    for it.

    room: how far each may move, [2, constants]: downwards (not above 0) and upwards
    """
    step, free = np.zeros(len(spreads)), told.copy()
    while free.any():
        own = slopes[:, free]
        rest = off - slopes[:, ~free] @ step[~free]
        step[free] = _covariance(own, spreads[free]) @ (own.T @ rest / NOISE**2 - moved[free] / spreads[free] ** 2)
        beyond = free & ((step < room[0]) | (step > room[1]))
        if not beyond.any():
            break
        step[beyond] = np.clip(step, *room)[beyond]
        free &= ~beyond
    return step


def _taken(
    model: Model,
    observed: Sequence[Observation],
    measured: Floats,
    start: Floats,
    spreads: Floats,
    where: Floats,
    here: Floats,
    step: Floats,
) -> tuple[Floats, Floats, float]:
    """The step, halved until it is none for the worse: where it leads, the figures there, and its length in spreads."""

    def cost(at: Floats, figures: Floats) -> float:
        return float((((figures - measured) / NOISE) ** 2).sum() + (((at - start) / spreads) ** 2).sum())

    now = cost(where, here)
    for _ in range(5):
        there = np.array([_fitted(name, value) for name, value in model.values(where + step).items()])
        figures = model.logarithms(observed, there)
        if cost(there, figures) <= now:
            return there, figures, float(np.abs((there - where) / spreads).max())
        step = step / 2.0
    return where, here, 0.0


def record(told: Told) -> dict[str, Any]:
    """A constant's line of a document."""
    return {
        "constant": told.name,
        "before": told.before,
        "after": told.after,
        "told": told.told,
        "spread_before": told.spread_before,
        "spread_after": told.spread_after,
    }
