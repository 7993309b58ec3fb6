"""Problem options: the arguments that describe a problem, shared by the commands that plan."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from experiments.terminal.argument_types import OWN_OPTION, Option, add_options, count, natural, number, own_options
from experiments.terminal.output import UsageError
from hardware_profiles import shown

if TYPE_CHECKING:
    from planners import Request
    from simulator import Problem, Workload

DEFAULT_WORKLOAD = "vgg16"
DEFAULT_CLUSTER = "pipedream-b"

NO_PLANS: Mapping[str, Problem] = MappingProxyType({})

CHOICES = (
    "precision",
    "optimizer",
    "communication",
    "weight_versions",
    "replica_updates",
    "recompute",
    "overlap",
    "gradient_bytes",
    "gradient_reduction",
)
"""Options that are fields of a problem by the same name, with the problem's own defaults."""


PROFILED_MINIBATCH: dict[str, Option] = {
    "--profiled-minibatch N": (
        "samples of the mini-batch that a graph.txt was profiled with (default: worked out from its tensors)",
        count,
    )
}
"""What a PipeDream profile does not always tell."""

SOURCE: dict[str, Option] = {
    "--workload NAME": f"workload name, config.json, or chain:N (default {DEFAULT_WORKLOAD}; see pipeplan list workloads)",
    "--profile FILE": "measured profile: PipeDream graph.txt, or JSON of pipeplan profile",
}
"""Where the workload comes from: one of them."""

PROBLEM: dict[str, Option] = {
    "--problem FILE": "problem, or plan with its problem, from a file (pipeplan export --format problem)",
    "--cluster NAME": f"cluster name, name:SERVERS, or TOML file (default {DEFAULT_CLUSTER})",
    "--devices N": ("use the first N devices of the cluster only", count),
    "--batch N": ("samples of an iteration (default: the workload's mini-batch × devices)", count),
    "--sequence N": ("tokens of a sample, for workloads that have them", count),
    "--attention FORM": "fused (FlashAttention), unfused (scores in memory) or eager (a kernel a step); default: as trained",
    **PROFILED_MINIBATCH,
    "--precision NAME": "fp32 (default), tf32, fp16, bf16, fp8, int8",
    "--optimizer NAME": "sgd, momentum (default) or adam",
    "--recompute [WHAT=whole]": "what stages run forward again before backward: none, attention, blocks (each from its own "
    "input, one at a time) or whole (the option alone; all at once: a stage then keeps its input only); default none, or what "
    "large, mixed, modern and scheduler choose",
    "--communication MODE": "overlapped (default), send-blocking or both-blocking",
    "--weight-versions RULE": "of PipeDream's asynchronous schedules: stashing (default) or vertical-sync",
    "--replica-updates RULE": (
        "when replicas that take mini-batches in turn update: overlapped (default; after the next backward, while the gradients "
        "of the round are all-reduced) or barrier (at once, all of a round together)"
    ),
    "--overlap SHARE": (
        "seconds of a forward and a backward that overlap, of those one after the other (default 1)",
        number,
    ),
    "--sequence-parallel": "tensor-parallel groups divide what lies between their products, too (by tokens)",
    "--gradient-bytes N": ("of an accumulated gradient: 2 or 4 (default: those of a weight)", count),
    "--gradient-reduction WHEN": "of replicas: buckets (default; while the last backward goes on) or whole (after it)",
    "--no-contention": "transfers do not queue on shared links",
}

SEARCH: dict[str, Option] = {
    "--schedule NAME": "schedule of every plan (default: each planner's own)",
    "--microbatches M": ("micro-batches of an iteration (default: searched; pipedream as many as devices)", count),
    "--stages K": ("stages of the pipeline (default: searched)", count),
    "--chunks V": (
        "stages a device (default: the schedule's; searched by those that pipeplan list planners says)",
        count,
    ),
    "--slices K": ("slices of the sequences of a micro-batch (--schedule seq1f1b; uniform, greedy)", count),
    "--candidates SIZES": "sizes that unequal micro-batches may have: all (default up to 64 samples) or powers-of-two",
    "--placement NAME": "how stages go round the devices (modern, scheduler): straight, interleaved, v, wave (default: searched)",
    "--seconds T": "seconds of search for an order of ops (modern, scheduler; default 0.5); the same work on every machine",
    "--tensor DEGREES": "devices of a tensor-parallel group, or several to choose from: 1,2,4,8 (default: pipeline-data 1, not "
    "searched; large all that divide the heads)",
    "--context DEGREES": "parts of the tokens of every sample, each on devices of its own, or several to choose from (large; "
    "default all that divide them)",
    "--expert DEGREES": "parts of the routed experts, each on devices of its own, or several to choose from (large; default all "
    "that divide them)",
    "--zero Z": "what replicas divide: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too (default: pipeline-data 0, "
    "not searched; "
    "large several to choose from: 0,1,2,3)",
    "--load RULE": "of a device: max (the largest of computing, receiving and sending) or sum of them (largest-load; default "
    "whichever is faster)",
    "--host KIND": "kind of device in whose memory tensors are, so that it pays for no transfer (largest-load)",
    **OWN_OPTION,
    "--seed SEED": ("seed of random searches (default 0)", natural, 0),
}
"""What the planners may choose, and the seed."""

PLANNER_OPTIONS = ("candidates", "context", "expert", "host", "load", "placement", "seconds", "tensor", "zero")
"""Those that some planners alone take, as the registry lists them."""


def add_question(parser: argparse.ArgumentParser) -> None:
    """The options of a problem and of a search for plans of it; None (or False) is what was not given."""
    group = parser.add_argument_group("problem")
    add_options(group.add_mutually_exclusive_group(), SOURCE)
    add_options(group, PROBLEM)
    add_options(parser.add_argument_group("search"), SEARCH)


def read_problem(arguments: argparse.Namespace, plans: Mapping[str, Problem] = NO_PLANS) -> Problem:
    """The problem that files have, or else the options describe.

    plans: the problem of every file of --plan, by its path
    UsageError for files that have different problems, and for an option that says something else than a file; raises what the
    parts of a problem raise, one line each.
    """
    from simulator import PlanFile

    files = {f"--plan {path}": problem for path, problem in plans.items()}
    if arguments.problem is not None:
        files = {f"--problem {arguments.problem}": PlanFile.read(arguments.problem).problem, **files}
    if not files:
        return _described(arguments)
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
    return problem


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
        contention=not arguments.no_contention,
        sequence_parallel=arguments.sequence_parallel,
        **{name: value for name in CHOICES if (value := getattr(arguments, name)) is not None},
    )


def _given(text: str | None, default: str) -> str:
    """What was given, the empty name too."""
    return default if text is None else text


def read_request(arguments: argparse.Namespace) -> Request:
    """What the user fixes of every plan."""
    from planners import Request

    return Request(
        schedule=arguments.schedule,
        microbatches=arguments.microbatches,
        stages=arguments.stages,
        chunks=arguments.chunks,
        slices=arguments.slices,
        recompute=arguments.recompute,
        options={name: value for name in PLANNER_OPTIONS if (value := getattr(arguments, name)) is not None}
        | own_options(arguments),
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
        "batch": problem.batch,
        "no_contention": not problem.contention,
        "sequence_parallel": problem.sequence_parallel,
        **{name: getattr(problem, name) for name in CHOICES},
    }


def refuse_contradictions(arguments: argparse.Namespace, file: str, own: Mapping[str, object]) -> None:
    """UsageError for an option that says something else than a file.

    file: the option and the path; own: what the file says, by option
    """
    for name, says in own.items():
        value = getattr(arguments, name)
        if value not in (None, False) and says not in (value, str(Path(str(value)).resolve())):
            said = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            raise UsageError(f"{said} contradicts {file}, which says {says}")
