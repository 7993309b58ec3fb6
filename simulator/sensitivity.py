"""Sensitivity: seconds of a plan against each of its machine's numbers, and what its layers are bound by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hardware_profiles import check_kind, percent
from simulator.plans.plan import Plan, Problem
from simulator.results.layer_bounds import LayerBounds, layer_bounds
from simulator.results.text_tables import Explained, TextTable
from simulator.settings import MACHINE, change_settings, numbers_of
from simulator.simulation import Outcome, simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTORS = (0.5, 0.75, 1.5, 2.0)
"""Times each number."""

SHOWN = (0.5, 1.5, 2.0)
"""Those of them that a table has room for."""

STEP = 0.01
"""Relative; of the derivative."""

LEAST_SLOPE = 0.005
"""A sentence tells no smaller one."""

FELT = 1e-6
"""Relative; a number that changes the seconds by less at the ends of FACTORS is not felt."""


@dataclass(frozen=True, slots=True)
class Felt:
    """A number of the machine, and seconds of an iteration where it is another.

    path: that sets it; value: in the units of its file
    seconds: by factor of FACTORS; None where its file does not allow that value; fits: whether the plan then fits
    slope: relative change of the seconds over that of the number, at its value; None where it cannot change to both sides
    """

    path: str
    value: float
    seconds: tuple[float | None, ...]
    fits: tuple[bool | None, ...]
    slope: float | None

    def swing(self) -> float:
        """Seconds between the shortest and the longest iteration."""
        known = [one for one in self.seconds if one is not None]
        return max(known) - min(known) if known else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity(Explained):
    """The seconds of a plan against the numbers that they depend on, those of the largest swing first.

    unfelt: paths of numbers that they do not depend on; bounds: what layers are bound by
    """

    outcome: Outcome
    numbers: tuple[Felt, ...]
    unfelt: tuple[str, ...]
    bounds: LayerBounds

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units; numbers in those of their files."""
        return {
            "title": self.outcome.title,
            "iteration_seconds": self.outcome.iteration_seconds,
            "factors": list(FACTORS),
            "numbers": [
                {
                    "path": one.path,
                    "value": one.value,
                    "iteration_seconds": list(one.seconds),
                    "fits": list(one.fits),
                    "slope": one.slope,
                }
                for one in self.numbers
            ],
            "unfelt": list(self.unfelt),
            "layers": self.bounds.record(),
        }

    def tables(self) -> tuple[TextTable, ...]:
        """The numbers, and the roofline of layers."""
        whole = self.outcome.iteration_seconds

        def cell(seconds: float | None, fits: bool | None) -> str:
            if seconds is None:
                return "-"
            return percent(seconds / whole - 1.0, "+.1f").removesuffix(" %") + "!" * (not fits)

        shown = [number for number, factor in enumerate(FACTORS) if factor in SHOWN]
        rows = tuple(
            (
                _shorter(one.path),
                f"{one.value:.6g}",
                *(cell(one.seconds[number], one.fits[number]) for number in shown),
                "-" if one.slope is None else f"{one.slope:+.2f}",
            )
            for one in self.numbers
        )
        columns = ("number", "value", *(f"×{factor:g}" for factor in SHOWN), "slope")
        title = f"{self.outcome.title}: change of {whole:.4g} s in %, where a number is times"
        return TextTable(title, columns, rows), *self.bounds.tables()

    def remarks(self) -> tuple[str, ...]:
        """How to read the table, what is felt most, and what not at all."""
        lines = [
            "slope: % of the seconds per % of the number"
            + "; -: its file does not allow that value" * self.cut
            + "; !: the plan does not fit" * any(fits is False for one in self.numbers for fits in one.fits)
        ]
        steep = [one for one in self.numbers if one.slope is not None and abs(one.slope) >= LEAST_SLOPE]
        if steep:
            most = max(steep, key=lambda one: abs(one.slope or 0.0))
            lines.append(f"felt most: {most.path}; 1 % more of it changes the seconds by {most.slope:+.2f} %")
        lines += [f"not felt: {', '.join(self.unfelt)}"] * bool(self.unfelt)
        return (*lines, *self.bounds.remarks(), *filter(None, [self.outcome.excess]))

    @property
    def cut(self) -> bool:
        """Whether a number has values that its file does not allow."""
        return any(None in one.seconds for one in self.numbers)

    def plot(self) -> Figure:
        """Draw the tornado chart: seconds from half of each number to twice as much, or as far as its file allows."""
        from simulator.results.tornado_plots import tornado

        whole, below = self.outcome.iteration_seconds, sum(factor < 1.0 for factor in FACTORS)

        def furthest(seconds: tuple[float | None, ...]) -> float:
            known = [one for one in seconds if one is not None]
            return max(known, key=lambda one: abs(one - whole), default=whole)

        bars = [(one.path, furthest(one.seconds[:below]), furthest(one.seconds[below:])) for one in self.numbers]
        return tornado(self.outcome.title, whole, bars, cut=self.cut)


def sensitivity(
    problem: Problem,
    plan: Plan,
    paths: Iterable[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Sensitivity:
    """The seconds of a plan against numbers, each times FACTORS, all else as it is.

    paths: of the numbers, as settings have them; by default every one that the files of the cluster and of its accelerators say
    progress: called with how many of how many numbers are done, and the next path
    Raises SettingError for a path that names no number.
    """
    check_kind("problem", problem, Problem)
    check_kind("plan", plan, Plan)
    if paths is not None:
        check_kind("paths", paths, Iterable)
        paths = (paths,) if isinstance(paths, str) else tuple(paths)
        for path in paths:
            check_kind("a path", path, str)
    outcome = simulate(problem, plan, engine="compiled")
    values = numbers_of(problem, plan, paths)
    found, unfelt = list[Felt](), list[str]()
    for done, (path, value) in enumerate(values.items()):
        if progress is not None:
            progress(done, len(values), path)
        one = _felt(_ChangedReplays(problem, plan, path), value, outcome)
        if one is None:
            unfelt.append(path)
        else:
            found.append(one)
    found.sort(key=lambda one: (-one.swing(), one.path))
    return Sensitivity(outcome, tuple(found), tuple(unfelt), layer_bounds(problem, plan))


def _shorter(path: str) -> str:
    """A path without the first key, where that is the whole name of a file: what is left says it, too."""
    first, _, rest = path.partition(".")
    return rest if first in MACHINE else path


@dataclass(frozen=True, slots=True)
class _ChangedReplays:
    """Replays of a plan where the number of a path is times a factor."""

    problem: Problem
    plan: Plan
    path: str

    def __call__(self, factor: float) -> Outcome | None:
        """The replay; None where the number's file, or the problem, does not allow that."""
        try:
            changed = change_settings(self.problem, [f"{self.path}=*{factor!r}"], self.plan)
            plan = changed.plan or self.plan
            return simulate(changed.problem, plan, engine="compiled", bounded=False)
        except ValueError:
            return None


def _felt(times: _ChangedReplays, value: float, outcome: Outcome) -> Felt | None:
    """The seconds against one number; None where they, and whether the plan fits, do not depend on it."""
    whole = outcome.iteration_seconds
    ends = [one for one in map(times, (FACTORS[0], FACTORS[-1])) if one is not None]
    sides = [times(1.0 - STEP), times(1.0 + STEP)] if not ends or _moves(ends, outcome) else [times(1.0 - STEP)]
    if not _moves([*ends, *filter(None, sides)], outcome):
        return None
    answers = [times(factor) for factor in FACTORS]
    less, more = (None if one is None else one.iteration_seconds for one in (*sides, None)[:2])
    slope = None
    if whole and less is not None:
        slope = (whole - less) / whole / STEP if more is None else (more - less) / whole / (2.0 * STEP)
    return Felt(
        times.path,
        value,
        tuple(None if one is None else one.iteration_seconds for one in answers),
        tuple(None if one is None else one.fits for one in answers),
        slope,
    )


def _moves(several: Iterable[Outcome], outcome: Outcome) -> bool:
    """Whether some replay differs from one in its seconds, or in whether it fits."""
    whole = outcome.iteration_seconds
    return any(abs(one.iteration_seconds - whole) > FELT * whole or one.fits != outcome.fits for one in several)
