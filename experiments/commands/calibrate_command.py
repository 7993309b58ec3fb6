"""`pipeplan calibrate`: a stack's constants from a user's own measured iterations, or an accelerator's from its kernels."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import simulator
from experiments.commands.calibrate_kernels import KERNELS, KERNELS_ALONE
from experiments.commands.calibrate_kernels import run as run_kernels
from experiments.compare.problem_options import FORMS, IMPORTED, add_imported, imported_from, read_own_plans
from experiments.terminal.argument_types import Option, add_options, names_of, natural, number, refuse, written_toml
from experiments.terminal.output import InputError, UsageError, print_json, progress, say
from experiments.terminal.report_tables import ReportTable, figure, share
from hardware_profiles import (
    GIB,
    Constant,
    ErrorClass,
    Stack,
    accelerator_kind,
    changed_stack_text,
    counted,
    errors_of,
    load_stack,
    percent,
    shown,
)

if TYPE_CHECKING:
    from experiments.calibration.fit import Fitted, FittedFigure, Observation

UNITS = 300.0
"""Times a predicted figure, or a part of it, beyond which a measured one is of another unit."""

SHARE_90 = 1.645
"""Standard deviations within which nine tenths of errors are; half of them are within SHARE_50."""
SHARE_50 = 0.674


def measured(text: str) -> float | Path:
    """Seconds, or a log (a folder of logs)."""
    if os.path.exists(text):  # a name may be too long to be one
        return Path(text)
    try:
        return number(text)
    except argparse.ArgumentTypeError:
        if any(letter.isdigit() for letter in text[:1].lstrip("+-.")):
            raise
        raise argparse.ArgumentTypeError(f"{shown(text)} is neither a number nor a log that is there") from None


ITERATIONS: dict[str, Option] = {
    "--plan FILE": (f"that ran: {FORMS}; may be repeated", str, []),
    "--measured SECONDS": (
        "seconds of its iteration, or a log (a folder of logs) of Megatron-LM or torchtitan; one for each --plan",
        measured,
        [],
    ),
    "--memory GIB": ("GiB that tensors came to on its fullest device; one for each --plan, or none", number, []),
    "--logs DIR": ("folder of plans, NAME.json, each with its log, NAME.log", Path),
    "--stack NAME": "stack to begin from: name or TOML file (default: that of the plans)",
    "--other FILE": ("plan whose expected error is told, too; may be repeated", str, []),
    "--warm-up N": (
        "steps of a log that are left out at its begin, or runs of a kernel before its first that counts (default 5)",
        natural,
        5,
    ),
}
"""Arguments of a fit to measured iterations."""

OWN = ("stack", "precision")
"""Options of an imported plan that say something of a fit, or of kernels, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan calibrate`."""
    add_options(parser.add_argument_group("measured iterations"), ITERATIONS)
    add_options(parser.add_argument_group("measured kernels"), KERNELS)
    add_options(
        parser,
        {
            "--out FILE": ("stack, or accelerator, to write, TOML", written_toml),
            "--json": "print one JSON document",
        },
    )
    add_imported(parser, OWN)


def run(arguments: argparse.Namespace) -> int:
    """Fit, write, print."""
    if arguments.out is None:
        raise UsageError("--out FILE.toml: is missing: the file to write")
    if arguments.kernels is not None:
        described = [name for name in names_of(IMPORTED) if name not in OWN]
        refuse(arguments, ("plan", "measured", "memory", "logs", "other", *described), "does not go with --kernels")
        return run_kernels(arguments)
    of_form = OWN if any(map(imported_from, (*arguments.plan, *arguments.other))) else ()
    refuse(arguments, [name for name in KERNELS_ALONE if name not in of_form], "goes with --kernels")
    return _fit(arguments)


@dataclass(frozen=True, slots=True)
class Run:
    """A plan that ran: its file, seconds, bytes (None where nobody measured them), and where they come from."""

    path: str
    problem: simulator.Problem
    plan: simulator.Plan
    seconds: float
    memory: float | None
    told: Mapping[str, Any]


def _fit(arguments: argparse.Namespace) -> int:
    from experiments.calibration.fit import fit

    read = read_own_plans(arguments, [*arguments.plan, *arguments.other], OWN)
    count = len(arguments.plan)
    given = _of_folder(arguments) if arguments.logs is not None else _of_words(arguments, read[:count])
    stacks = {problem.stack.source or problem.stack.name: problem.stack for _, problem, _, _ in given}
    if arguments.stack is None and len(stacks) > 1:
        raise UsageError(f"--stack: is missing: the plans have several, {', '.join(stacks)}")
    base = arguments.stack or next(iter(stacks))
    stack = load_stack(base)
    memories: Sequence[float | None] = arguments.memory or [None] * len(given)
    if len(memories) != len(given):
        raise UsageError(
            f"--memory must be given once for each of {len(given)} plans, or not at all; got {len(memories)}"
        )
    runs = [
        _run(path, replace(problem, stack=stack), plan, said, memory, arguments.warm_up)
        for (path, problem, plan, said), memory in zip(given, memories, strict=True)
    ]
    observed = [one for run in runs for one in _observations(run)]
    _refuse_units(observed)
    with progress("fitting") as report:
        found = fit(stack, observed, report=report)
    others = _others(found, runs, dict(zip(arguments.other, read[count:], strict=True)))
    name = arguments.out.stem
    simulator.write_atomically(arguments.out, _text(base, name, found, runs, _errors(stack, found, runs, others)))
    document = _document(base, arguments.out, found, runs, observed, others)
    (print_json if arguments.json else print_document)(document)
    return 0


Given = tuple[str, simulator.Problem, simulator.Plan, float | Path]
"""A plan's path, its problem, itself, and its seconds or its log."""


def _of_words(arguments: argparse.Namespace, read: Sequence[tuple[simulator.Problem, simulator.Plan]]) -> list[Given]:
    plans, found = arguments.plan, arguments.measured
    if not plans:
        raise UsageError("--plan FILE: is missing: a plan that ran, and --measured its seconds; or --logs")
    if len(plans) != len(found):
        raise UsageError(f"--measured must be given once for each --plan, {len(plans)}; got {len(found)}")
    return [(path, *one, said) for path, one, said in zip(plans, read, found, strict=True)]


def _of_folder(arguments: argparse.Namespace) -> list[Given]:
    """The plans of --logs, each with the log of its name."""
    refuse(arguments, ("plan", "measured"), "does not go with --logs, whose folder has both")
    folder = arguments.logs
    if not folder.is_dir():
        raise InputError(f"{folder}: is not a folder of plans and their logs")
    pairs = [(plan, plan.with_suffix(".log")) for plan in sorted(folder.glob("*.json"))]
    if lost := next((log for _, log in pairs if not log.exists()), None):
        raise InputError(f"{lost}: is missing: the log of the plan beside it")
    if not pairs:
        raise InputError(f"{folder}: holds no plan: NAME.json with its log, NAME.log, is looked for")
    return [(str(path), *simulator.PlanFile.read_plan(path), log) for path, log in pairs]


def _run(
    path: str, problem: simulator.Problem, plan: simulator.Plan, said: float | Path, memory: float | None, warm_up: int
) -> Run:
    """What was measured of a plan. Raises UsageError for what is no measurement."""
    if memory is not None and not memory > 0:
        raise UsageError(f"--memory must be above 0 GiB, got {memory:g}")
    tensors = None if memory is None else memory * GIB
    if isinstance(said, Path):
        from experiments.calibration.logs import read_logs

        found = read_logs(said, problem.workload.tokens, len(plan.devices), problem.batch, warm_up)
        told = {
            "log": str(said),
            "lines": found.lines,
            "reserved_bytes": found.reserved,
            "tflops": found.teraflops or None,
        }
        return Run(path, problem, plan, found.seconds, tensors or found.allocated, told)
    if not said > 0:
        raise UsageError(f"--measured must be above 0 seconds, got {shown(said)}")
    return Run(path, problem, plan, said, tensors, {})


def _observations(run: Run) -> list[Observation]:
    """The figures of a run that are fitted."""
    from experiments.calibration.fit import Observation

    seconds = Observation(run.path, run.problem, run.plan, run.seconds)
    return [seconds] if run.memory is None else [seconds, replace(seconds, measured=run.memory, what="memory")]


def _refuse_units(observed: Sequence[Observation]) -> None:
    """Raise UsageError for a measured figure that is of another unit."""
    from experiments.calibration.fit import predicted

    for one in observed:
        before = predicted(one)
        times = one.measured / before
        if not 1.0 / UNITS < times < UNITS:
            option, unit, scale = ("--measured", "seconds", 1.0) if one.what == "seconds" else ("--memory", "GiB", GIB)
            raise UsageError(
                f"{option} {one.measured / scale:.6g}: {one.name} is predicted to take {before / scale:.4g} {unit}, "
                f"{max(times, 1.0 / times):,.0f} times {'less' if times > 1 else 'more'}; is it in {unit}?"
            )


# ------------------------------------------------------------------------------------------------ other plans


def _others(
    found: Fitted, runs: Sequence[Run], given: Mapping[str, tuple[simulator.Problem, simulator.Plan]]
) -> list[dict[str, Any]]:
    """Plans that were not measured, and how far they are expected to be off: given ones, and the measured ones changed in one
    thing.
    """
    stack = runs[0].problem.stack
    asked = [(path, "", replace(problem, stack=stack), plan) for path, (problem, plan) in given.items()]
    changed = [(run.path, words, problem, plan) for run in runs[:3] for words, problem, plan in _changed(run)]
    rows = []
    for path, words, problem, plan in [*asked, *changed]:
        try:
            one = found.expected(path, problem, plan)
        except ValueError:
            if words:
                continue
            raise
        rows.append({"plan": path, "change": words, **_figures(one)})
    return rows


def _changed(run: Run) -> list[tuple[str, simulator.Problem, simulator.Plan]]:
    """The plan of a run with other micro-batches, recomputation or sequence of stages, as far as these say a plan."""
    problem, plan = run.problem, run.plan
    found = []
    sizes = set(plan.microbatches)
    if len(sizes) == 1 and not plan.forward_sizes:
        (size,) = sizes
        groups = max(plan.replicas)
        for other in (2 * size, size // 2):
            if other % groups == 0 and other > 0 and problem.batch % other == 0:
                words = f"micro-batches of {other} samples, not {size}"
                found.append((words, problem, replace(plan, microbatches=(other,) * (problem.batch // other))))
    if not plan.recompute:
        known = simulator.recompute_words(problem.workload)
        found += [
            (f"recompute {word}", replace(problem, recompute=word), plan)
            for word in known
            if word not in (problem.recompute, "whole")
        ]
    found.append(
        (
            f"{2 * problem.batch} samples",
            replace(problem, batch=2 * problem.batch),
            replace(plan, microbatches=2 * plan.microbatches),
        )
    )
    return found


def _figures(one: FittedFigure) -> dict[str, Any]:
    """A prediction's line of a document."""
    return {
        "what": one.what,
        "before": one.before,
        "after": one.after,
        "error_median_before": SHARE_50 * one.error_before,
        "error_90_before": SHARE_90 * one.error_before,
        "error_median": SHARE_50 * one.error_after,
        "error_90": SHARE_90 * one.error_after,
    }


# ---------------------------------------------------------------------------------------- what is written and told


def _errors(stack: Stack, found: Fitted, runs: Sequence[Run], others: Sequence[Mapping[str, Any]]) -> list[ErrorClass]:
    """The class of errors of plans like the measured ones: the widest that is expected of any; and those of the base's memory."""
    figures = [_figures(one) for one in found.figures if one.what == "seconds"]
    off = max(row["error_90"] for row in (*figures, *others))
    devices = {run.problem.cluster.devices[one] for run in runs for stage in run.plan.stages for one in stage.devices}
    seconds = ErrorClass(
        figure="seconds",
        accelerators=tuple(sorted({accelerator_kind(one, "seconds") for one in devices})),
        plans=tuple(sorted({simulator.plan_kind(run.problem, run.plan) for run in runs})),
        median=1.0,
        low=1.0 / (1.0 + off),
        high=1.0 + off,
        rows=len(runs),
        tables=tuple(Path(run.path).name for run in runs),
        how="the spread that a fit to them leaves",
        expected=True,
    )
    return [seconds, *(one for one in errors_of(stack) if one.figure == "memory")]


def _text(base: str, name: str, found: Fitted, runs: Sequence[Run], errors: Sequence[ErrorClass]) -> str:
    """The file of the calibrated stack."""
    plans = ", ".join(Path(run.path).name for run in runs)
    source = f"pipeplan calibrate, from {base}: {counted(len(runs), 'measured iteration')}"
    constants = {
        one.name: Constant(one.after, source, tuple(Path(run.path).name for run in runs))
        for one in found.constants
        if one.told
    }
    return changed_stack_text(base, name, constants, found.generations, f"{base}, calibrated by {plans}", errors)


def _document(
    base: str, out: Path, found: Fitted, runs: Sequence[Run], observed: Sequence[Observation], others: Sequence[Any]
) -> dict[str, Any]:
    from experiments.calibration.fit import record

    pairs = list(zip(found.figures, observed, strict=True))
    moved = [one.name for one in found.constants if one.told]
    notes = []
    if len(observed) < len(found.constants):
        words = f"{counted(len(observed), 'measured figure')} for {len(found.constants)} constants"
        notes.append(f"{words}: {len(moved)} moved; what is not told apart the spreads of the shipped stacks decide")
    if not moved:
        notes.append("no constant moved: the measurements tell none of them more closely than it was known")
    return {
        "stack": base,
        "out": str(out),
        "generations": list(found.generations),
        "constants": [record(one) for one in found.constants],
        "measured": [
            {"plan": one.name, "measured": own.measured, **_figures(one), **dict(_told_of(runs, one.name))}
            for one, own in pairs
        ],
        "residual": {
            words: sum(abs(getattr(one, words) / own.measured - 1.0) for one, own in pairs) / len(pairs)
            for words in ("before", "after")
        },
        "others": list(others),
        "notes": notes,
    }


def _told_of(runs: Sequence[Run], path: str) -> Mapping[str, Any]:
    return next(run.told for run in runs if run.path == path)


CONSTANTS = ReportTable(
    "Constants of {stack}, and where {out} has them",
    lambda document: [row for row in document["constants"] if row["told"]],
    {
        "constant": "{constant}",
        "before": figure("before", ".4g"),
        "after": figure("after", ".4g"),
        "spread before": figure("spread_before", ".2g"),
        "spread after": figure("spread_after", ".2g"),
    },
)

MEASURED = ReportTable(
    "Measured, and predicted before and after",
    lambda document: [
        {**row, **{f"{word} off": row[word] / row["measured"] - 1.0 for word in ("before", "after")}, **_in_units(row)}
        for row in document["measured"]
    ],
    {
        "plan": "{plan}",
        "figure": "{what}",
        "measured": figure("in units", ".4g"),
        "before": share("before off", "+.1f"),
        "after": share("after off", "+.1f"),
    },
)

OTHERS = ReportTable(
    "Other plans: how far their seconds are expected to be off, half and nine tenths of them",
    "others",
    {
        "plan": "{plan}",
        "change": "{change}",
        "seconds": figure("after", ".4g"),
        "before, half": share("error_median_before"),
        "nine tenths": share("error_90_before"),
        "now, half": share("error_median"),
        "now, nine tenths": share("error_90"),
    },
)


def _in_units(row: Mapping[str, Any]) -> dict[str, Any]:
    """The measured figure in the unit that it is given in."""
    return {"in units": row["measured"] / (1.0 if row["what"] == "seconds" else GIB)}


def print_document(document: Mapping[str, Any]) -> None:
    """The constants, the fit and what it is worth."""
    CONSTANTS.print(document)
    MEASURED.print(document)
    OTHERS.print(document)
    residual = document["residual"]
    say(f"mean error of what was measured: {percent(residual['before'])} before, {percent(residual['after'])} after")
    for line in document["notes"]:
        say(line)
    say(f"{document['out']} (--stack {document['out']})")
