"""Problem options: the arguments that describe a problem, shared by the commands that plan."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from experiments.targets.launching import launchable
from experiments.targets.names import TARGETS
from experiments.terminal.argument_types import (
    OWN_OPTION,
    NumberUpTo,
    Option,
    add_options,
    check_choice,
    count,
    declared,
    destination,
    names_of,
    natural,
    own_options,
    refuse,
)
from experiments.terminal.output import UsageError
from hardware_profiles import (
    LEAST_WATTS,
    MOST_WATTS,
    DeclaredOption,
    FileError,
    Stack,
    blaming,
    counted,
    declared_options,
    nearest,
    shown,
    unchosen,
)
from planners import ASKED, PLANNER_OPTIONS
from simulator import Plan, Problem, TrainingOptions, Workload

if TYPE_CHECKING:
    from planners import Request

DEFAULT_WORKLOAD = "vgg16"
DEFAULT_CLUSTER = "pipedream-b"
DEFAULT_STACK = "generic"
DEFAULT_PLANNER = "joint"

NO_PLANS: Mapping[str, Problem] = MappingProxyType({})

TRAINING = declared_options(TrainingOptions, 0)
"""Options that are fields of a problem, with the problem's own defaults."""

OF_TRANSFORMERS = {
    "precision": "bf16 (or else fp16) where all devices have it",
    "optimizer": "adam",
    "sequence_parallel": "on, where the stack has it",
}
"""What `usual_training` says of them, in words, by option."""

PROFILED_MINIBATCH: dict[str, Option] = {
    "--profiled-minibatch N": (
        "samples of the mini-batch that a graph.txt was profiled with (default: worked out from its tensors)",
        count,
    )
}
"""What a PipeDream profile does not always tell."""

SOURCE: dict[str, Option] = {
    "--workload NAME": f"workload name, config.json, or chain:N (default {DEFAULT_WORKLOAD}; see pipeplan list workloads)",
    "--profile FILE": "measured profile: PipeDream graph.txt, JSON of pipeplan profile, or a trace of torch.profiler of a "
    "pipelined run (a folder: one of each rank)",
}
"""Where the workload comes from: one of them."""


def _of_transformers(one: DeclaredOption, words: str | None) -> DeclaredOption:
    """An option whose help tells what it is for transformers, in words, where they differ."""
    if words is None:
        return one
    if one.kind is bool:
        return replace(one, help=f"{one.help} (for transformers {words})")
    return replace(one, default=f"{one.default}, for transformers {words}")


PROBLEM: dict[str, Option] = {
    "--problem FILE": "problem, or plan with its problem, from a file (pipeplan export --format problem)",
    "--cluster NAME": f"cluster name, name:SERVERS, or TOML file (default {DEFAULT_CLUSTER})",
    "--stack NAME,…": "what runs the plans: name or TOML file, or several to choose from (default: for transformers all that run "
    f"on these devices, else {DEFAULT_STACK}; see pipeplan list stacks)",
    "--devices N": ("use the first N devices of the cluster only", count),
    "--batch N": ("samples per iteration (default: the workload's mini-batch × devices)", count),
    "--sequence N": ("tokens per sample, for workloads that have them", count),
    "--attention FORM": "fused (FlashAttention), unfused (scores in memory) or eager (one kernel per step); default: as trained",
    **PROFILED_MINIBATCH,
    "--recompute [WHAT=whole]": f"{TRAINING['recompute'].help}; the option alone is whole",
    **dict(
        declared(_of_transformers(one, OF_TRANSFORMERS.get(name)))
        for name, one in TRAINING.items()
        if name != "recompute"
    ),
    "--no-sequence-parallel": "tensor-parallel groups keep all tokens between their products",
}

SEARCH: dict[str, Option] = {
    **dict(map(declared, (*ASKED.values(), *PLANNER_OPTIONS.values()))),
    **OWN_OPTION,
    "--seed SEED": ("seed of random searches (default 0)", natural, 0),
}
"""What the planners may choose, and the seed."""


ENERGY: dict[str, Option] = {
    "--objective NAME": (
        "what makes a plan the better one: time, energy, edp (joules times seconds); devices that a plan leaves idle draw "
        "nothing (default time)"
    ),
    "--power W": ("power that the devices in use may draw together, in the mean", NumberUpTo(MOST_WATTS, LEAST_WATTS)),
}
"""What plans are judged by."""

LAUNCHABLE: dict[str, Option] = {
    "--launchable TARGET": f"search plans that this can launch, and none else: {', '.join(TARGETS)} (see pipeplan export --to)",
}
"""What is to launch the plans."""


IMPORTED: dict[str, Option] = {
    **SOURCE,
    **PROBLEM,
    **{
        words: option
        for words, option in SEARCH.items()
        if any(target.read and names_of([words])[0] in target.takes for target in TARGETS.values())
    },
}
"""What describes a plan that a target's own form says: its problem, and what the form leaves out."""

FORMS = "plan file of pipeplan plan --out; or megatron:LAYOUT, torchtitan:FILE.toml, of a problem by options"
"""What --plan takes, wherever it stands, in words."""

PLAN: dict[str, Option] = {"--plan FILE": (FORMS, str, ...)}
"""One plan, for commands that ask about it."""

PLANS: dict[str, Option] = {"--plan FILE": (f"{FORMS}; may be repeated", str, [])}
"""Several plans, or none."""


WITH_A_FORM = "goes with --plan megatron:… or torchtitan:…"
"""Of an option that describes a plan of a target's form, where there is none."""


def add_imported(parser: argparse.ArgumentParser, own: Collection[str] = ()) -> None:
    """The options of IMPORTED, but for those that a command has itself, by name."""
    options = {words: option for words, option in IMPORTED.items() if names_of([words])[0] not in own}
    add_options(parser.add_argument_group("imported plan"), options)


def add_question(parser: argparse.ArgumentParser) -> None:
    """The options of a problem and of a search for plans of it; None (or False) is what was not given."""
    group = parser.add_argument_group("problem")
    add_options(group.add_mutually_exclusive_group(), SOURCE)
    add_options(group, PROBLEM)
    add_options(parser.add_argument_group("search"), SEARCH)


def read_problem(
    arguments: argparse.Namespace, plans: Mapping[str, Problem] = NO_PLANS, launcher: str | None = None
) -> Problem:
    """The problem that files have, or else the options describe.

    plans: the problem of every file of --plan, by its path
    launcher: the target that is to launch every plan; its stack then runs nothing else
    UsageError for files that have different problems, and for an option that says something else than a file; raises what the
    parts of a problem raise, one line each.
    """
    from simulator import PlanFile

    files = {f"--plan {path}": problem for path, problem in plans.items()}
    if arguments.problem is not None:
        files = {f"--problem {arguments.problem}": PlanFile.read(arguments.problem).problem, **files}
    if not files:
        problem = _launched(_described(arguments), launcher)
        if arguments.sequence_parallel and not problem.sequence_parallel:
            raise UsageError(f"--sequence-parallel: {launcher} has none")
        return problem
    (first, problem), *others = files.items()
    refuse_contradictions(arguments, first, options_of(problem))
    for file, other in others:
        for field in fields(problem):
            said, wanted = (getattr(one, field.name) for one in (other, problem))
            if said != wanted:
                raise UsageError(
                    f"{file}: $.problem.{field.name} is {shown(said)}, in {first} it is {shown(wanted)}: "
                    "the files of a command have one problem"
                )
    return _launched(problem, launcher)


def _launched(problem: Problem, launcher: str | None) -> Problem:
    """The problem whose plans a target can launch; UsageError for an unknown target, and for one that runs no plan of it."""
    if launcher is None:
        return problem
    check_choice("--launchable", launcher, TARGETS)
    with blaming(UsageError):
        return launchable(problem, launcher)


def read_stacks(arguments: argparse.Namespace, problem: Problem, launcher: str | None) -> tuple[Stack, ...]:
    """The stacks to search under: those that are asked for, or all that run plans of a problem whose options say none; none where
    the problem's own is meant.

    launcher: the target that is to launch every plan: by default, under those stacks that predict its seconds
    Raises ProfileError for a stack that cannot be read, ValueError for one that the problem or the launcher does not go with.
    """
    from hardware_profiles import load_stack
    from planners import stacks_that_run

    if arguments.stack is None:
        described = arguments.problem is None and not getattr(arguments, "plan", None)
        found = stacks_that_run(problem) if described else ()
        return found if launcher is None else tuple(_launched_stacks(found, launcher))
    names = arguments.stack.split(",")
    asked = (replace(problem, stack=load_stack(name)) for name in dict.fromkeys(names)) if names[1:] else ()
    return tuple(_launched(one, launcher).stack for one in asked)


def _launched_stacks(stacks: Iterable[Stack], launcher: str) -> Iterator[Stack]:
    """Stacks that predict the seconds of a target, each for plans that it can launch; those without such plans are left out."""
    target = TARGETS[launcher]
    for stack in stacks:
        if not target.stacks or stack.name in target.stacks:
            with suppress(ValueError):
                yield stack.launched_by(launcher, target.runs)


def read_plans(
    arguments: argparse.Namespace, paths: Sequence[str], launcher: str | None = None
) -> tuple[Problem, dict[str, Plan]]:
    """The problem, and the plan of each path of --plan: a file with its own problem, or `TARGET:…`, what a target is given, which
    then is of the problem that options describe: where they name no stack, under the one that predicts the target's seconds, if
    that runs the plan. UsageError for a form that cannot be read, and as `read_problem`.
    """
    from planners import stacks_that_run

    problem, plans = _read_plans(arguments, paths, launcher)
    if arguments.stack is None and arguments.problem is None:
        run = {stack.name for stack in stacks_that_run(problem)}
        for name in _predicting(paths):
            if name in run:
                with suppress(ValueError, UsageError):
                    return _read_plans(argparse.Namespace(**{**vars(arguments), "stack": name}), paths, launcher)
    return problem, plans


def _predicting(paths: Sequence[str]) -> list[str]:
    """Names of the stacks that predict the seconds of what every path of --plan says; none for files, which have their own."""
    forms = [(imported_from(path), path.partition(":")[2]) for path in paths]
    named = [TARGETS[target].stacks_of(text) if target is not None else () for target, text in forms]
    return [name for name in named[0] if all(name in others for others in named)] if named else []


def _read_plans(
    arguments: argparse.Namespace, paths: Sequence[str], launcher: str | None
) -> tuple[Problem, dict[str, Plan]]:
    from simulator import PlanFile, check_plan

    files = {path: PlanFile.read_plan(path) for path in paths if imported_from(path) is None}
    if len(files) < len(paths) and not files and not (arguments.workload or arguments.profile or arguments.problem):
        raise UsageError(f"--plan {paths[0]}: --workload: is missing: the form of a target has no network of its own")
    problem = read_problem(arguments, {path: one for path, (one, _) in files.items()}, launcher)
    plans = {path: plan for path, (_, plan) in files.items()}
    for path in paths:
        if (name := imported_from(path)) is not None and (read := TARGETS[name].read) is not None:
            try:
                plans[path] = read(path.partition(":")[2], problem, read_request(arguments))
                check_plan(problem, plans[path])
            except FileError:
                raise
            except (ValueError, OSError) as error:
                raise UsageError(f"--plan {name}: {error}") from None
    return problem, {path: plans[path] for path in paths}


def read_plan(arguments: argparse.Namespace, own: Collection[str] = ()) -> tuple[Problem, Plan]:
    """The problem and the plan of --plan, as `read_own_plans`; of a file on --cluster where that is among `own`."""
    ((problem, plan),) = read_own_plans(arguments, [arguments.plan], own)
    if "cluster" in own and arguments.cluster is not None and imported_from(arguments.plan) is None:
        problem = on_another(problem, plan, arguments.cluster, f"--plan {arguments.plan}")
    return problem, plan


def read_own_plans(
    arguments: argparse.Namespace, paths: Sequence[str], own: Collection[str] = ()
) -> list[tuple[Problem, Plan]]:
    """The problem and the plan of each path: a file has its own, `TARGET:…` is of the problem that options of IMPORTED describe.

    own: names of those that the command has for something else, too
    UsageError for such an option where no plan is of a target's form, and as `read_plans`.
    """
    from simulator import PlanFile

    if not any(map(imported_from, paths)):
        has = f"describes a plan of a target's form; --plan {paths[0]} has its problem" if paths else WITH_A_FORM
        refuse(arguments, [name for name in names_of(IMPORTED) if name not in own], has)
    return [
        PlanFile.read_plan(path) if imported_from(path) is None else imported_plan(vars(arguments), path)
        for path in paths
    ]


def imported_plan(options: Mapping[str, Any], path: str) -> tuple[Problem, Plan]:
    """The problem that options of IMPORTED describe, by name, and the plan of it that a target's own form says; UsageError as
    `read_plans`."""
    said = {name: value for name in names_of(IMPORTED) if (value := options.get(name)) not in (None, [])}
    if "," in said.get("stack", ""):
        raise UsageError(f"--stack {said['stack']}: a plan that is there runs under one")
    usual = dict.fromkeys(names_of({**IMPORTED, **SEARCH}))
    problem, plans = read_plans(argparse.Namespace(**{**usual, **said, "option": [], "plan": path}), [path])
    return problem, plans[path]


def plan_names(paths: Sequence[str]) -> list[str]:
    """What plans are called: by their files, or the target whose form they have; by the whole path where two are alike."""
    names = [imported_from(path) or os.path.basename(path) for path in paths]
    return names if len(set(names)) == len(names) else list(paths)


def on_another(problem: Problem, plan: Plan, cluster: str, file: str) -> Problem:
    """The problem of a plan on another cluster, by name or file; UsageError where that has fewer devices than the plan uses.

    file: what messages call the plan
    """
    from hardware_profiles import load_cluster

    found = load_cluster(cluster)
    last, count = max(plan.devices), len(found.devices)
    if last >= count:
        raise UsageError(f"--cluster {cluster} has devices 0 to {count - 1}, {file} uses device {last}")
    return replace(problem, cluster=found)


def imported_from(path: str) -> str | None:
    """The target whose own form a word of --plan has: `megatron:Et*5|t*7L`; None for a file's name.

    UsageError for such a form without the name, and for another target's name before the colon, or a misspelt one, unless there
    is such a file.
    """
    name, colon, _ = path.partition(":")
    known = [one for one, target in TARGETS.items() if target.read is not None]
    for one in () if colon else known:
        if re.fullmatch(TARGETS[one].form, path) and (path.endswith(".toml") or not os.path.exists(path)):
            raise UsageError(f"--plan {shown(path)}: a form of {one} has its name before it: --plan '{one}:{path}'")
    if not colon or name in known:
        return name if colon else None
    if not os.path.exists(path) and (name in TARGETS or nearest(name, known)):
        raise UsageError(f"--plan {shown(path)}: {unchosen('target', name, known)}, or the path of a plan file")
    return None


def _described(arguments: argparse.Namespace) -> Problem:
    from experiments.compare.questions import make_problem
    from simulator import read_any_profile

    workload: Workload | str = _given(arguments.workload, DEFAULT_WORKLOAD)
    if arguments.profile is not None:
        for option in ("sequence", "attention"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option} cannot change a measured profile")
        workload = read_any_profile(arguments.profile, arguments.profiled_minibatch)
    elif arguments.profiled_minibatch is not None:
        raise UsageError("--profiled-minibatch goes with --profile")
    return make_problem(
        workload,
        _given(arguments.cluster, DEFAULT_CLUSTER),
        arguments.batch,
        devices=arguments.devices,
        sequence=arguments.sequence,
        attention=arguments.attention,
        stack=_given(arguments.stack, DEFAULT_STACK).split(",")[0],
        **_said(arguments, TRAINING),
        **_whole_sequences(arguments),
    )


def defaults_told(arguments: argparse.Namespace, problem: Problem, plan: Plan | None = None) -> str:
    """What nobody asked for of a problem that options describe, and whose seconds it does not have, in words; "" where a file has
    it or all was asked for.

    plan: that was found: with tensor-parallel groups, which could divide more
    """
    if arguments.problem is not None or getattr(arguments, "plan", None):
        return ""
    measured = problem.workload.measured
    own = {
        "batch": counted(problem.batch, problem.workload.sample),
        "sequence": counted(problem.workload.tokens, "token") if problem.workload.tokens and not measured else "",
        "precision": "" if measured else problem.precision,
        "optimizer": problem.optimizer,
        "sequence-parallel": "sequence parallelism" if plan and _divides_tokens(problem, plan) else "",
    }
    taken = {name: words for name, words in own.items() if words and not getattr(arguments, name.replace("-", "_"))}
    said = [f"by default: {', '.join(taken.values())} ({', '.join(f'--{name}' for name in taken)})"] if taken else []
    if measured and not any(layer.weights or layer.output_elements for layer in problem.workload.layers):
        said.append(
            "the profile tells seconds alone, no bytes and no weights: transfers take their latency, reductions nothing, and "
            "memory is not judged"
        )
    return "; ".join([*said, *_not_its_own(arguments, problem)])


def _not_its_own(arguments: argparse.Namespace, problem: Problem) -> Iterator[str]:
    """Why the seconds are not those of the target that is to launch plans, in words, where no stack of its runs the problem."""
    from hardware_profiles import load_stack

    names = TARGETS[arguments.launchable].stacks if arguments.launchable and arguments.stack is None else ()
    reasons = list[str]()
    for name in names:
        try:
            problem.under(load_stack(name))
        except ValueError as error:
            reasons.append(str(error))
    if names and len(reasons) == len(names):
        yield f"seconds are those of {problem.stack.name}, not of {arguments.launchable}'s own stack: {reasons[0]}"


def _whole_sequences(arguments: argparse.Namespace) -> dict[str, bool]:
    """What --no-sequence-parallel says of a problem; UsageError beside the option that says the opposite."""
    if not arguments.no_sequence_parallel:
        return {}
    if arguments.sequence_parallel:
        raise UsageError("--no-sequence-parallel says the opposite of --sequence-parallel")
    return {"sequence_parallel": False}


def _divides_tokens(problem: Problem, plan: Plan) -> bool:
    """Whether members of its tensor-parallel groups divide the tokens between their products."""
    groups = any(degree > plan.context for stage in plan.stages for degree in stage.degrees)
    return groups and problem.sequence_parallel


def _said(arguments: argparse.Namespace, options: Mapping[str, DeclaredOption]) -> dict[str, Any]:
    """The values of declared options that are given, by name."""
    found = {}
    for name, one in options.items():
        value = getattr(arguments, destination(one))
        if value is not None and value is not False:
            found[name] = not one.default if one.kind is bool else value
    return found


def _given(text: str | None, default: str) -> str:
    """What was given, the empty name too."""
    return default if text is None else text


def read_request(arguments: argparse.Namespace) -> Request:
    """What the user fixes of every plan, and judges them by."""
    from planners import OBJECTIVES, Request

    objective: Any = getattr(arguments, "objective", None) or "time"
    check_choice("--objective", objective, OBJECTIVES)
    return Request(
        objective=objective,
        power=getattr(arguments, "power", None),
        **_said(arguments, ASKED),
        recompute=arguments.recompute,
        options=_said(arguments, PLANNER_OPTIONS) | own_options(arguments),
        runner_ups=getattr(arguments, "report", False),
    )


def options_of(problem: Problem) -> dict[str, object]:
    """The options that describe a problem, by name, with what it says of each; of one made in Python without its sources."""
    workload, cluster = problem.workload.source, problem.cluster.source
    return {
        "workload": workload and workload.name,
        "profile": workload and workload.profile,
        "profiled_minibatch": workload and workload.profiled_minibatch,
        "sequence": workload and workload.sequence,
        "attention": workload and workload.attention,
        "cluster": cluster and cluster.name,
        "devices": len(problem.cluster.devices),
        "stack": problem.stack.source or problem.stack.name,
        "batch": problem.batch,
        **{
            destination(one): value != one.default if one.kind is bool else value
            for name, one in TRAINING.items()
            for value in [getattr(problem, name)]
        },
        "no_sequence_parallel": not problem.sequence_parallel,
    }


def refuse_contradictions(arguments: argparse.Namespace, file: str, own: Mapping[str, object]) -> None:
    """UsageError for an option that says something else than a file.

    file: the option and the path; own: what the file says, by option
    """
    for name, says in own.items():
        value = getattr(arguments, name)
        if value is not None and value is not False and says not in (value, os.path.realpath(str(value))):
            said = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            raise UsageError(f"{said} contradicts {file}, which says {says}")
