"""Study: a question, what of it is varied, and the question of every point, which knows itself by its content."""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from itertools import islice, product
from pathlib import Path
from typing import Any

import planners
import simulator
from experiments.compare.comparison import Answer, ask, planning, replaying
from experiments.compare.problem_options import (
    DEFAULT_CLUSTER,
    DEFAULT_PLANNER,
    DEFAULT_WORKLOAD,
    ENERGY,
    IMPORTED,
    LAUNCHABLE,
    PROBLEM,
    SEARCH,
    SOURCE,
    imported_from,
    imported_plan,
    options_of,
    read_problem,
    read_request,
    read_stacks,
)
from experiments.sweep.axes import Axis, Value, check_grid
from experiments.sweep.contents import Contents
from experiments.terminal.argument_types import Option, check_choice, names_of
from experiments.terminal.output import UsageError, plain
from hardware_profiles import (
    FileError,
    Setting,
    Stack,
    blaming,
    find_address,
    option_text,
    referring,
    shown,
    told_of,
    unknown,
)
from simulator import Plan, Problem

PLANNING: dict[str, Option] = {
    **{words: option for words, option in SEARCH.items() if not words.startswith("--option ")},
    **LAUNCHABLE,
    **ENERGY,
    "--planner NAME": f"planner (default {DEFAULT_PLANNER})",
}
"""Options of a search for a plan, each of which a sweep may vary; those of other packages by `option.NAME`."""

DESCRIBING: dict[str, Option] = {
    **SOURCE,
    **{words: option for words, option in PROBLEM.items() if not words.startswith("--problem ")},
}
"""Options that describe a problem, each of which a sweep may vary."""

GIVEN = "problem", "plan"
"""Files in place of a problem that options describe: a plan is replayed as it is. A form of a target's that is no file is a plan
of the problem that options describe at each point.
"""

OWN = "option."
"""Before the name of an option that has no words of its own on the command line."""

SOURCES = {"workload": DEFAULT_WORKLOAD, "profile": None, "cluster": DEFAULT_CLUSTER, "stack": None}
"""What names the content of a question that is not in its words, with what it is by default."""

SAMPLES = "samples of a micro-batch"
"""A decision; it or the number of micro-batches follows from the batch."""

MOST_TRIED = 100
"""Points of which one at least must be a problem, whose files say which paths there are."""

SPEED = ("status", "feasible", "iteration_seconds", "error_low", "error_high", "samples_per_second", "mfu")
USE = ("batch", "plan_devices", "peak_memory_bytes", "memory_error_low", "memory_error_high", "capacity_bytes")
JOULES = ("objective", "joules_per_sample", "watts")
BOUND = ("lower_bound_seconds", "lower_bound_term", "gap", "optimal_among")
PLAN = ("stack", "schedule", "layout", "notation", "reason", "decisions")

FIGURES = (*SPEED, *USE, *JOULES, *BOUND, *PLAN)
"""What a row tells of its plan, by the names of a comparison: what is the same on every machine, whoever asks."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked at one point.

    options: of the command line by name, as it has them once read
    settings: of the problem that these describe, or of the document
    document: a problem, or a plan with its problem, in place of options: what messages call it, and its text
    sources: kinds and names of what stands in files
    """

    options: Mapping[str, Any]
    settings: tuple[Setting, ...] = ()
    document: tuple[str, str] | None = None
    sources: tuple[tuple[str, str | None], ...] = ()

    def key(self, contents: Contents) -> str:
        """A digest of all that the answer depends on: the words, what stands behind them, the version of this program, and the
        plug-ins that are installed."""
        said = {
            "pipeplan": version("pipeplan"),
            "plugins": contents.of("plugins", None),
            "options": dict(self.options),
            "settings": list(map(str, self.settings)),
            "document": self.document and contents.of("document", self.document[1]),
            "sources": [(kind, name, contents.of(kind, name)) for kind, name in self.sources],
        }
        return hashlib.sha256(json.dumps(plain(said), sort_keys=True).encode()).hexdigest()

    @property
    def arguments(self) -> argparse.Namespace:
        """The options as commands have them."""
        own = [(name.removeprefix(OWN), text) for name, text in self.options.items() if name.startswith(OWN)]
        usual = dict.fromkeys(names_of({**DESCRIBING, **PLANNING}))
        return argparse.Namespace(**{**usual, "seed": 0, **self.options, "option": own, "problem": None})

    def read(self) -> tuple[Problem, Plan | None]:
        """The problem, and the plan where the document has one. ValueError for what is none."""
        plan: Plan | None = None
        given: dict[str, Problem] = {}
        if self.document is not None:
            source, text = self.document
            file = simulator.PlanFile.from_json(text, source)
            plan, given = file.plan, {source: file.problem}
        if "plan" in self.options:
            problem, plan = imported_plan(self.options, self.options["plan"])
        else:
            problem = read_problem(self.arguments, given, self.options.get("launchable"))
        if self.settings:
            changed = simulator.change_settings(problem, self.settings, plan)
            if plan is not None:
                plan, _ = simulator.adapted_plan(problem, plan, changed)
            problem = changed.problem
        return problem, plan

    def answer(self) -> dict[str, Any]:
        """FIGURES of the plan that is found, or of the one that is given; or why there is none: `refused` where the point is no
        problem. A store goes from hand to hand, and names files: of their content nothing is told.
        """
        with warnings.catch_warnings(record=True) as doubts, referring():
            warnings.simplefilter("always", UserWarning)
            found = self._answer()
        record = found.record(None)
        record["plan_devices"] = record["devices"]  # a sweep may vary the devices that there are
        record["objective"] = self.options.get("objective", "time")
        record["batch"] = found.result and found.result.problem.batch
        record["decisions"] = _decisions(found)
        told = [*dict.fromkeys(str(one.message) for one in doubts), record["reason"]]
        refused = {"status": "refused"} if found.planner == "" else {}
        kept: dict[str, Any] = plain(
            {name: record[name] for name in FIGURES} | {"reason": "; ".join(filter(None, told))} | refused
        )
        return kept | {"interrupted": found.interrupted}

    def _answer(self) -> Answer:
        """As of a comparison; without a planner's name where there is no problem to plan."""
        try:
            problem, plan = self.read()
            if plan is not None:
                simulator.check_plan(problem, plan)
                return ask(plan.planner, replaying(problem, plan))
            arguments = self.arguments
            stacks = () if self.document is not None else self._stacks(arguments, problem)
            request = read_request(arguments)
        except ValueError as error:
            return Answer("", "failed", reason=told_of(error), error=error)
        planner = self.options.get("planner", DEFAULT_PLANNER)
        try:
            return ask(planner, planning(problem, request, planner, arguments.seed, stacks))
        except (
            simulator.UndercutBoundError
        ) as error:  # a fault of this program, which costs one point and not the others
            return Answer(planner, "failed", reason=str(error))

    def _stacks(self, arguments: argparse.Namespace, problem: Problem) -> Sequence[Stack]:
        return read_stacks(arguments, problem, self.options.get("launchable"))


def _decisions(found: Answer) -> dict[str, str]:
    """What a plan decides, in words; nothing without one."""
    if found.result is None:
        return {}
    problem, plan = found.result.problem, found.result.plan
    own = {name: str(of(problem, plan)) for name, of in planners.DECISIONS.items()}
    sizes = " or ".join(map(str, sorted(set(plan.microbatches))))
    return {**own, SAMPLES: sizes, "stack": problem.stack.name}


@cache
def _readers() -> dict[str, Callable[[str], object]]:
    """What reads the value of each option from its text."""
    found: dict[str, Callable[[str], object]] = {}
    for words, option in {**DESCRIBING, **PLANNING}.items():
        name, flag = names_of([words])[0], " " not in words
        found[name] = _switched if flag else option[1] if isinstance(option, tuple) else str
    return found


def _switched(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {shown(text)}")
    return text == "true"


def read_option(name: str, value: object) -> object:
    """The value of an option as the command line has it; UsageError for what it refuses."""
    text = option_text(name, value)
    if name.startswith(OWN):
        if not name.removeprefix(OWN).isidentifier():
            raise UsageError(f"{name}: one name stands behind {OWN} (see pipeplan list planners)")
        return text
    with blaming(UsageError, name, of=argparse.ArgumentTypeError):
        found = _readers()[name](text)
    _check_name(name, found)
    return found


def _check_name(name: str, value: object) -> None:
    """UsageError for an unknown planner or objective."""
    if name in ("planner", "objective"):
        check_choice(name, value, planners.planner_entries() if name == "planner" else planners.OBJECTIVES)


def option_name(name: str) -> str:
    """An option's name as Python has it."""
    return name if name.startswith(OWN) else name.replace("-", "_")


def read_options(given: Mapping[str, object]) -> dict[str, Any]:
    """Options by their names, from values; UsageError for one that a sweep does not have."""
    found: dict[str, Any] = {}
    for written, value in given.items():
        name = option_name(written)
        if name == "option" and isinstance(value, Mapping):
            found |= {f"{OWN}{own}": read_option(f"{OWN}{own}", one) for own, one in value.items()}
        elif name in GIVEN:
            found[name] = str(value)
        elif name in _readers() or name.startswith(OWN):
            found[name] = read_option(name, value)
        else:
            raise UsageError(unknown(f"a sweep has no option {written!r}", name, [*GIVEN, *_readers()]))
    return found


@dataclass(frozen=True, slots=True)
class Varied:
    """An axis, and what its values are: those of an option, or of a path (`hardware_profiles.addresses`).

    option: its name, None for a path; values: as read; kind: of SOURCES whose names they are
    """

    axis: Axis
    option: str | None
    values: tuple[Any, ...]
    kind: str = ""

    def at(self, place: int) -> tuple[dict[str, Any], list[Setting]]:
        """The option, or the setting, of one of its values."""
        value = self.values[place]
        return ({}, [value]) if self.option is None else ({self.option: value}, [])


@dataclass(frozen=True, slots=True)
class SweptStudy:
    """options: what all points have, by name; document, as of a Question; base: names of its sources"""

    options: Mapping[str, Any]
    varied: tuple[Varied, ...]
    document: tuple[str, str] | None = None
    base: Mapping[str, str | None] = field(default_factory=dict)

    def points(self) -> Iterator[tuple[dict[str, Value], Question]]:
        """What is swept at each point by name, and its question; the last axis turns first."""
        for places in product(*(range(len(one.values)) for one in self.varied)):
            options, settings, sources = dict(self.options), list[Setting](), dict(self.base)
            for one, place in zip(self.varied, places, strict=True):
                said, set_to = one.at(place)
                options |= said
                settings += set_to
                if one.kind:
                    sources[one.kind] = str(one.axis.values[place])
            swept = {one.axis.name: one.axis.values[place] for one, place in zip(self.varied, places, strict=True)}
            yield swept, Question(options, tuple(settings), self.document, tuple(sources.items()))


def make_study(options: Mapping[str, Any], axes: Sequence[Axis]) -> SweptStudy:
    """A study, whose options, paths and names are known.

    options: of all points, as read, with `problem` or `plan` for a file
    UsageError and other ValueErrors, in one line, for what is none; whether a point's problem can be is not asked.
    """
    check_grid(axes)
    document, base = _document(options)
    form = document is None and "plan" in options
    read = names_of(IMPORTED) if imported_from(options.get("plan") or "") else ()
    said = {name: value for name, value in options.items() if name not in GIVEN and (form or name not in read)}
    mine = [] if "plan" in options else names_of({**({} if document else DESCRIBING), **PLANNING})
    mine = [*read] if form else mine
    for name, value in said.items():
        _check_name(name, value)
        if name not in mine and not (mine and not form and name.startswith(OWN)):
            which = "plan" if "plan" in options else "problem"
            rule = "is replayed as it is" if which == "plan" else "says its own"
            raise UsageError(
                f"--{name.replace('_', '-')} does not go with --{which}, which {rule}; a path may be swept"
            )
    varied = tuple(_varied(one, mine) for one in axes)
    for one in varied:
        if one.option in said:
            raise UsageError(f"{one.axis.name} is swept, and given as {shown(said[one.option])}: say one of both")
    if {"workload", "profile"} <= {*said, *(one.option for one in varied)}:
        raise UsageError("workload and profile: a profile is a workload; give, or sweep, one of both")
    base = base or {kind: said.get(kind, usual) for kind, usual in SOURCES.items()}
    whole = {**said, "plan": options["plan"]} if form else said
    return _with_addresses(SweptStudy(whole, varied, document, base))


def _document(options: Mapping[str, Any]) -> tuple[tuple[str, str] | None, dict[str, str | None]]:
    """The document that is given, and the names of its sources; none for a target's form that is no file."""
    files = [name for name in GIVEN if options.get(name) is not None]
    if len(files) > 1:
        raise UsageError("--problem and --plan: a plan's file has its problem; give one of both")
    path = options[files[0]] if files else ""
    if not files or (imported_from(path) and not Path(path.partition(":")[2]).is_file()):
        return None, {}
    try:
        if files[0] == "problem":
            file = simulator.PlanFile(simulator.PlanFile.read(path).problem)
        elif imported_from(path):
            file = simulator.PlanFile(*imported_plan(options, path))
        else:
            file = simulator.PlanFile(*simulator.PlanFile.read_plan(path))
    except FileError as error:
        raise type(error)(str(error), f"{files[0]} {path} cannot be used; pipeplan check says why") from None
    named = options_of(file.problem)
    return (str(path), file.to_json()), {kind: str(named[kind]) if named[kind] else None for kind in SOURCES}


def _varied(axis: Axis, options: Iterable[str]) -> Varied:
    """An axis of an option, if there is one of its name, else of a path."""
    name = option_name(axis.name)
    if name in options or (name.startswith(OWN) and options):
        return Varied(axis, name, tuple(read_option(name, one) for one in axis.values), name if name in SOURCES else "")
    return Varied(axis, None, tuple(Setting(axis.name, option_text(axis.name, one)) for one in axis.values))


def _with_addresses(study: SweptStudy) -> SweptStudy:
    """The study with what its paths name. SettingError for a path that names nothing, UsageError for two that name the same, and
    what stands in the way of every one of the first points.
    """
    if all(one.option is not None for one in study.varied) and "plan" not in study.options:
        return study
    known, refusal = None, None
    for _, question in islice(study.points(), MOST_TRIED):
        try:
            problem, plan = Question(question.options, (), question.document).read()
            known = simulator.known_addresses(problem, plan)
            break
        except FileError:
            raise
        except ValueError as error:
            refusal = refusal or error
    if known is None:
        assert refusal is not None, "there is a point at least"
        raise refusal
    found, named = [], dict[str, str]()
    for one in study.varied:
        place = None if one.option is not None else find_address(one.axis.name, known)
        address = f"problem.{one.option}" if place is None else ".".join(_steps(place.address.keys, place.chosen))
        if address in named:
            raise UsageError(f"{one.axis.name} and {named[address]} are the same value: an axis has one list of values")
        named[address] = one.axis.name
        keys = ("", "") if place is None else place.address.keys
        kind = keys[1] if keys[0] == "problem" and keys[1] in SOURCES and keys[2:] in ((), ("name",)) else one.kind
        found.append(Varied(one.axis, one.option, one.values, kind))
    return SweptStudy(study.options, tuple(found), study.document, study.base)


def _steps(keys: Sequence[str], chosen: Sequence[str | None]) -> Iterator[str]:
    for key, member in zip(keys, chosen, strict=True):
        yield key if member is None else f"{key}[{member}]"
