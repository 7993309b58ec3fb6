"""Target: what launches a plan for real, as one declaration: which plans it can run, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import simulator
from hardware_profiles import Runs, Stack, optional_members

if TYPE_CHECKING:
    from planners import Request
    from simulator import Plan, Problem


class NotLaunchableError(ValueError):
    """A plan that a target cannot run; the message says, in one line, all that the target lacks."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a target takes.

    files: contents by what is put behind the name of the file that is asked for; the first, "", is that file itself
    notes: what a launch needs beside them, a line each
    """

    files: Mapping[str, str | bytes]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What launches plans.

    summary: what is written for it, in one line
    runs: the plans that it can run, as a stack says it; `further` rules judge what no list says
    problem_rules: problem -> what all of its plans need and is not there, as "networks but transformers"
    write: (problem, plan, name of the file, **options) -> what it takes; called with plans that it can run
    stacks: names of the stacks that predict its seconds; predicts: (text of the target's own form) -> those of them that predict
        what it says, the best first; by default all
    options: names of options of `pipeplan export` that it takes
    read: (text, problem, request) -> the plan that the target's own form says; takes: fields and options of the request that it
        hears; form: regular expression of texts that are such a form, by which one without the target's name is known
    words: (problem, plan) -> what a report says of a plan that it can run; by default that it can be written
    """

    summary: str
    runs: Runs
    problem_rules: Callable[[Problem], Iterator[str]] | None = None
    write: Callable[..., Written]
    stacks: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    read: Callable[[str, Problem, Request], Plan] | None = None
    predicts: Callable[[str], tuple[str, ...]] | None = None
    takes: tuple[str, ...] = ()
    form: str = ""
    words: Callable[[Problem, Plan], str] | None = None

    def stacks_of(self, text: str) -> tuple[str, ...]:
        """Names of the stacks that predict the seconds of what the target's own form says."""
        return self.predicts(text) if self.predicts else self.stacks

    def lacks(self, problem: Problem, plan: Plan) -> tuple[str, ...]:
        """All that a plan needs and the target has not, each a noun phrase behind "no"; empty for a plan that it can run."""
        return (*self.problem_lacks(problem), *simulator.plan_lacks(self.runs, problem, plan))

    def problem_lacks(self, problem: Problem) -> tuple[str, ...]:
        """All that every plan of a problem needs and the target has not."""
        others = self.problem_rules(problem) if self.problem_rules else ()
        return (*self._device_lacks(problem), *others, *simulator.problem_lacks(self.runs, problem))

    def _device_lacks(self, problem: Problem) -> Iterator[str]:
        for device in problem.cluster.kinds[0]:
            if not Stack(name="any", runs=self.runs).runs_on([device]):
                word = optional_members(device).word
                yield f"such devices as {device.name}" + f" ({word})" * (word != "device")

    def check(self, name: str, problem: Problem, plan: Plan) -> None:
        """NotLaunchableError, with all that the target of that name lacks, for a plan that it cannot run."""
        if lacks := self.lacks(problem, plan):
            raise NotLaunchableError(
                f"{name} cannot run plan {plan.planner!r} ({plan.notation}): it has no {'; no '.join(lacks)}"
            )

    def written(self, name: str, problem: Problem, plan: Plan, file: str = "", **options: Any) -> Written:
        """What the target of that name takes; NotLaunchableError as in `check`.

        file: name of the file that is written, by which files name each other; "" where there is none
        """
        self.check(name, problem, plan)
        return self.write(problem, plan, file, **options)
