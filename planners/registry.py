"""Registry: the planners by name, and `make_plan`, which runs one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from math import inf
from typing import Any

import numpy as np

from hardware_profiles import (
    ENDED,
    MOST_SEED,
    DeclaredOption,
    PluginError,
    aside,
    check_kind,
    check_whole,
    complaint_of,
    counted,
    declared_options,
    one_line,
    passed_over,
    plugged_in,
    read_options,
    summary_of,
    unchosen,
    unknown,
)
from planners.search.candidates import (
    one_a_device,
    searched_counts,
    straight_shape,
)
from planners.search.evaluator import (
    BudgetSpent,
    Evaluator,
    InapplicablePlannerError,
    Planner,
    PlannerFailedError,
    Progress,
)
from planners.search.obedience import disobeyed
from planners.search.plan_judge import PlanJudge, PowerExceededError
from planners.search.request import Request
from planners.search.result import Proof, Result
from planners.search.search_options import ALWAYS, FIELDS, PACED, PLANNER_OPTIONS, RECOMPUTE, takes
from simulator import (
    InfeasiblePlanError,
    Outcome,
    Plan,
    Problem,
    Score,
    UndercutBoundError,
    check_recompute,
    flushes,
    schedule_families,
    simulate,
    slice_of,
)

ENTRY_POINT_GROUP = "pipeplan.planners"

SAME = 1.0 + 1e-6
"""Seconds per second of the best plan that was replayed, as both are judged, up to which the planner's own plan is the answer."""

MOST_LAYERS = 10_240
"""Layers of a network, at most: tables of layers by layers then take four gigabytes. A thousand blocks of GPT-2 have fewer."""


Values = Callable[[Problem, Request], Iterable[Any]]
"""(problem, rest of the request) -> values of a decision that a search tries, in the form of a request."""


@dataclass(frozen=True, slots=True)
class PlannerEntry:
    """A planner that the command line knows.

    build: Request -> planner
    summary: one line for `pipeplan list`
    applicable: (problem, request) -> why the planner cannot plan that, as a sentence, or None if it can
    options: what may be asked of it beside ALWAYS and PACED, by name: fields of a request, and options of its own
    searches: decisions that it searches where a request leaves them open, with the values that it tries: a request for one of
    these restricts its search, and should not answer better. Every other option that it takes sets what it does not search.
    by_default: whether it is compared with others where no planners are named, or (problem) -> whether it is
    asynchronous: whether its plans may update with stale weights where no schedule is asked for
    """

    build: Callable[[Request], Planner]
    summary: str
    applicable: Callable[[Problem, Request], str | None]
    options: Mapping[str, DeclaredOption] = field(default_factory=dict)
    searches: Mapping[str, Values] = field(default_factory=dict)
    by_default: bool | Callable[[Problem], bool] = True
    asynchronous: bool = False

    def __post_init__(self) -> None:
        for name, one in self.options.items():
            check_kind(f"option {name!r} of a planner", one, DeclaredOption)

    def is_default(self, problem: Problem) -> bool:
        """Whether the planner is compared with others where no planners are named."""
        try:
            return bool(self.by_default(problem)) if callable(self.by_default) else bool(self.by_default)
        except ENDED:
            raise
        except BaseException as error:  # of another package
            passed_over(f"planner {self.summary!r}", complaint_of(error))
            return False

    @property
    def sets(self) -> tuple[str, ...]:
        """Options that the planner takes but does not search: setting one may give a faster plan than its default."""
        return tuple(name for name in (*ALWAYS, *self.options) if name not in self.searches)

    def restrictions(self, problem: Problem, request: Request | None = None) -> Iterator[Request]:
        """Requests with one more of the searched decisions fixed, each once, including those that the planner refuses."""
        given = request or Request()
        for name, values in self.searches.items():
            if given.fixed(name) is None:
                yield from (given.fixing(name, value) for value in dict.fromkeys(values(problem, given)))

    def read(self, request: Request) -> Request:
        """The request with the planner's own options converted to their declared types; ValueError for an invalid value."""
        known = {**PACED, **self.options}
        own = {name: known[name].read(value) for name, value in request.options.items() if name in known}
        return replace(request, options={**request.options, **own})

    def seconds(self, request: Request) -> float:
        """Nominal seconds after which the evaluator ends the search: infinite where the planner paces itself, or none are asked
        for.
        """
        return inf if "seconds" in self.options else float(request.asked("seconds") or inf)

    def planner(self, request: Request) -> Planner:
        """The planner for a request; ValueError as of `read`."""
        return self.build(self.read(request))

    def admits(self, problem: Problem, request: Request, plan: Plan) -> bool:
        """Whether a plan that the search looked at may be its answer: it keeps to the request, and is flushed where the planner's
        plans are.
        """
        stale = self.asynchronous if request.schedule is None else not schedule_families()[request.schedule].flush
        return (stale or flushes(plan)) and disobeyed(problem, request, plan) is None

    def reason(self, problem: Problem, request: Request) -> str | None:
        """Why the planner cannot plan a problem and request, as a sentence; None where it can.

        It lacks an option that is asked for, the problem is none of those that are planned, or `applicable` says why.
        """
        if not problem.trains:
            return (
                f"it plans training, and precision {problem.precision!r} is of forward passes alone: plan --inference"
            )
        if (layers := len(problem.workload.layers)) > MOST_LAYERS:
            return (
                f"networks of at most {MOST_LAYERS:,} layers are planned, and {problem.workload.name!r} has {layers:,}"
            )
        families = schedule_families()
        of_schedule = (
            () if request.schedule is None or "slices" not in self.options else families[request.schedule].options
        )
        asked = [name for name in FIELDS if name not in (*ALWAYS, RECOMPUTE) and getattr(request, name) is not None]
        for name in (*asked, *request.options):
            if name not in (*PACED, *self.options, *of_schedule):
                others = [other for other, one in planner_entries().items() if name in one.options]
                if others:
                    return f"it has no option {name!r}; planners that have it: {', '.join(others)}"
                known = sorted({*PACED, *self.options, *of_schedule})
                return unknown(f"option {name!r} is unknown", name, known)
        for name, one in self.options.items():
            if one.needed and name not in request.options:
                return f"it needs option {name}: {one.words}"
        try:
            request = self.read(request)
        except ValueError as error:
            return str(error)
        if (unlike := self._unlike_recomputation(problem, request)) is not None:
            return unlike
        if (unlike := self._unlike_stack(problem, request)) is not None:
            return unlike
        if (opposite := self._unlike_directions(problem, request)) is not None:
            return opposite
        if request.microbatches is not None and request.microbatches > problem.batch:
            return f"{request.microbatches} micro-batches are more than the batch of {problem.batch} samples"
        if request.slices is not None:
            if request.schedule is None or "slices" not in schedule_families()[request.schedule].options:
                return f"slices of sequences are of a schedule that has them, not {request.schedule!r}"
            try:
                slice_of(problem.workload, 0, request.slices)
            except ValueError as error:
                return str(error)
        return self.applicable(problem, request)

    def _unlike_directions(self, problem: Problem, request: Request) -> str | None:
        """Why the planner has no pipelines in opposite directions, if the request asks for these; None where it may."""
        if request.schedule is None or schedule_families()[request.schedule].placement != "bidirectional":
            return None
        tried = {name: one.searches.get("schedule") for name, one in planner_entries().items()}
        choosers = [name for name, of in tried.items() if of is not None and request.schedule in of(problem, Request())]
        if any(self is planner_entries()[name] for name in choosers):
            return None
        return (
            f"it puts a pipeline in one direction, not in two as {request.schedule!r}; planners that do: "
            f"{', '.join(choosers)}"
        )

    def _unlike_stack(self, problem: Problem, request: Request) -> str | None:
        """Why the problem's stack runs none of the planner's plans, or not the schedule asked for; None where it may."""
        stack, runs = problem.stack, problem.stack.runs
        if "zero" not in self.options and 0 not in runs.zero and len(problem.cluster.devices) > 1:
            return f"its replicas divide nothing, and {stack.title} runs ZeRO {', '.join(map(str, runs.zero))} alone"
        if request.schedule is not None and runs.schedules and request.schedule not in runs.schedules:
            return f"{stack.title} runs {', '.join(runs.schedules)}, not {request.schedule!r}"
        again = request.recompute or problem.recompute
        chosen = request.recompute is None and problem.recompute == "none"
        if runs.recompute and again not in runs.recompute and not chosen:
            return f"{stack.title} runs recompute {', '.join(runs.recompute)}, not {again!r}"
        return None

    def _unlike_recomputation(self, problem: Problem, request: Request) -> str | None:
        """Why the planner's stages cannot recompute as asked for; None where they can, or nothing is asked for."""
        if request.recompute is None:
            return None
        if RECOMPUTE not in self.options and request.recompute != problem.recompute:
            free = Request(recompute=request.recompute)
            choosers = {name: one for name, one in planner_entries().items() if RECOMPUTE in one.options}
            others = [name for name, one in choosers.items() if one.reason(problem, free) is None]
            return (
                f"its stages run again what the problem says ({problem.recompute}), not {request.recompute!r}; planners that "
                f"choose it: {', '.join(others) or 'none'}"
            )
        try:
            check_recompute(problem.workload, request.recompute)
        except ValueError as error:
            return str(error)
        return None


@dataclass(frozen=True, slots=True)
class _Later:
    """A function or class of a room of `planners`, loaded when it is first called, so that one planner's search loads no other's
    code.
    """

    module: str
    name: str

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the function, and return what it returns."""
        return getattr(import_module(f"planners.{self.module}"), self.name)(*given, **named)


def _later_searches(module: str, *names: str, function: str = "searched") -> dict[str, Values]:
    """By name of a decision, its `Values`, as a function (problem, request) -> values by name of that module says them."""
    searched = _Later(module, function)

    def of(name: str) -> Values:
        return lambda problem, request: searched(problem, request)[name]

    return {name: of(name) for name in names}


_not_for_bapipe = _Later("bapipe.explorer", "inapplicable")
_no_tree = _Later("pipedream.planner", "inapplicable")
_not_for_unequal = _Later("unequal.planners", "inapplicable")
_not_for_equal = _Later("unequal.planners", "inapplicable_to_equal")
_brute_force = _Later("straight.brute_force", "BruteForce")
_order_search = _Later("modern.order_search", "OrderSearch")


def _for_data_parallel(problem: Problem, request: Request) -> str | None:
    """Why data parallelism cannot run the schedule asked for; None where it can."""
    if request.schedule is not None and not schedule_families()[request.schedule].flush:
        return f"data parallelism updates synchronously; schedule {request.schedule!r} never flushes"
    if request.schedule is not None and schedule_families()[request.schedule].chunks > 1:
        return f"data parallelism has one stage; schedule {request.schedule!r} has several per {problem.device_word}"
    return None


def _for_pipedream(problem: Problem, request: Request) -> str | None:
    """Why PipeDream cannot plan a problem and request; None where it can."""
    if request.schedule not in (None, "1f1b-rr"):
        return f"PipeDream runs 1f1b-rr, not {request.schedule!r}; pipedream-flush runs its partition synchronously"
    reason: str | None = _no_tree(problem)
    return reason


def _for_pipedream_flush(problem: Problem, request: Request) -> str | None:
    """Why flushed PipeDream cannot plan a problem and request; None where it can."""
    family = schedule_families()[request.schedule or "1f1b"]
    if not family.flush or family.placement != "straight":
        stages = f"one stage per {problem.device_word}"
        return f"PipeDream's partition has {stages} and is flushed here; schedule {request.schedule!r} is not that"
    reason: str | None = _no_tree(problem)
    return reason


def _for_bapipe(problem: Problem, request: Request) -> str | None:
    return _not_for_bapipe(problem, request) or straight_shape(problem, request)


def _for_brute_force(problem: Problem, request: Request) -> str | None:
    return straight_shape(problem, request) or _brute_force(request).inapplicable(problem)


def _these(*values: Any) -> Values:
    """Values of a decision that are the same for every problem."""
    return lambda problem, request: values


def _counts(problem: Problem, request: Request) -> Iterable[int]:
    return searched_counts(problem)


def _one_a_device(problem: Problem, request: Request) -> Iterable[int]:
    return one_a_device(problem)


def _candidates(problem: Problem, request: Request) -> Iterable[str]:
    return ("all", "powers-of-two") if problem.batch <= 64 else ("powers-of-two",)


DIVISIONS = ("tensor", "context", "expert", "zero")
"""Options for dividing a large model among devices."""

STRAIGHT = {"schedule": _these("gpipe", "1f1b"), "stages": _one_a_device, "microbatches": _counts}
"""Decisions of searches of straight pipelines."""

UNEQUAL_SEARCHES: dict[str, Values] = {"candidates": _candidates, "stages": _one_a_device}


_UNEQUAL = {
    "exact-unequal": "UMPIPE's unequal micro-batch sizes: a proven optimum for the balanced partition",
    "tidgap": "unequal sizes by UMPIPE's TiDGAP: genetic, a chromosome for each pass, from greedy-dp",
    "dgap": "unequal sizes by UMPIPE's DGAP: the same, from random and equal sizes",
    "greedy-dp": "unequal sizes by UMPIPE's global-greedy dynamic programme",
    "local-greedy": "unequal sizes, every stage alone",
}


def _unequal(name: str, summary: str) -> PlannerEntry:
    """The entry of a planner of unequal micro-batches."""
    sizes = _Later("unequal.planners", "unequal_sizes")
    return PlannerEntry(
        lambda request: sizes(request, name),
        summary,
        _not_for_unequal,
        takes("stages", "candidates", "granularity"),
        UNEQUAL_SEARCHES,
        by_default=False,
    )


def _joint(request: Request) -> Planner:
    """The joint search, with the planners whose plans it begins with (PARTS)."""
    search: Planner = _Later("joint.joint_search", "JointSearch")(request, tuple(map(_part, PARTS)))
    return search


PARTS = "data-parallel", "large", "mixed", "pipedream-flush", "bapipe"
"""Planners whose plans the joint search begins with, as far as they apply: PipeDream's partition for networks that neither
`large` nor `mixed` plans, BaPipe's for those whose layers stream on boards.
"""


def _part(name: str) -> Callable[[Problem, Request], Planner | None]:
    """(problem, request) -> the planner of that name, or None where the joint search does not begin with it."""

    def made(problem: Problem, request: Request) -> Planner | None:
        entry, streams = PLANNERS[name], any(device.streams for device in problem.cluster.devices)
        own = {option: value for option, value in request.options.items() if option != "seconds"}
        request = replace(request, options=own, runner_ups=False)
        if entry.reason(problem, request) is not None or (name == "bapipe") > streams:
            return None
        if name == "mixed" and not _Later("mixed.pipeline_search", "has_kinds")(problem):
            return None
        if name == "pipedream-flush" and any(
            PLANNERS[one].reason(problem, request) is None for one in ("large", "mixed")
        ):
            return None
        return entry.planner(request)

    return made


PLANNERS: dict[str, PlannerEntry] = {
    "joint": PlannerEntry(
        _joint,
        "every decision of a flushed pipeline searched together: from the plans of other planners, by replays of neighbours",
        _Later("joint.joint_search", "inapplicable"),
        takes("stages", "chunks", RECOMPUTE, *DIVISIONS, "seconds"),
        searches=_later_searches("joint.joint_search", *ALWAYS, "stages", "chunks", RECOMPUTE, *DIVISIONS),
    ),
    "rule-of-thumb": PlannerEntry(
        _Later("straight.rule_of_thumb", "HandMadeLayout"),
        "as engineers do by hand: tensor parallel inside a server, pipeline across, data parallel for the rest, ZeRO 1",
        _Later("straight.rule_of_thumb", "inapplicable"),
        takes("stages", RECOMPUTE, "tensor", "zero"),
    ),
    "data-parallel": PlannerEntry(
        _Later("straight.baselines", "DataParallel"),
        "the whole network on every device, the batch divided over them",
        _for_data_parallel,
        searches={name: STRAIGHT[name] for name in ALWAYS},
    ),
    "uniform": PlannerEntry(
        _Later("straight.baselines", "UniformLayers"),
        "equal numbers of layers per device (GPipe)",
        straight_shape,
        takes("stages", "chunks", "slices"),
        searches=STRAIGHT,
        by_default=False,
    ),
    "greedy": PlannerEntry(
        _Later("straight.baselines", "GreedyBalance"),
        "one stage per device, balanced by the seconds of stages and transfers; GPipe or 1F1B",
        straight_shape,
        takes("stages", "chunks", "slices"),
        searches=STRAIGHT,
        by_default=False,
    ),
    "pipeline-data": PlannerEntry(
        _Later("straight.grid", "PipelineDataGrid"),
        "pipeline × data grid: stages x replicas x micro-batches x stages per device (Megatron-LM)",
        _Later("straight.grid", "inapplicable"),
        {**takes("stages", "chunks", "tensor", "zero"), "zero": replace(PLANNER_OPTIONS["zero"], several=False)},
        searches=_later_searches("straight.grid", *ALWAYS, "stages", "chunks"),
        by_default=False,
    ),
    "pipedream": PlannerEntry(
        _Later("pipedream.planner", "PipeDream"),
        "PipeDream's partition with replicated stages, asynchronous 1F1B-RR",
        _for_pipedream,
        asynchronous=True,
    ),
    "pipedream-flush": PlannerEntry(
        _Later("pipedream.planner", "PipeDreamFlush"),
        "PipeDream's partition, run synchronously (1F1B with flush)",
        _for_pipedream_flush,
        searches={"microbatches": _counts},
    ),
    "bapipe": PlannerEntry(
        _Later("bapipe.explorer", "BaPipe"),
        "BaPipe's explorer: schedule x balanced partition x micro-batches, judged by simulation",
        _for_bapipe,
        takes("stages"),
        searches={**STRAIGHT, "schedule": _Later("bapipe.explorer", "schedules")},
    ),
    "xpipe": PlannerEntry(
        _Later("xpipe.stream_planner", "XPipeStream"),
        "XPipe's stream of micro-batches on predicted weights: stages, cuts and micro-batches by its steady state",
        _Later("xpipe.stream_planner", "inapplicable"),
        takes("stages"),
        searches={"microbatches": _counts, "stages": _one_a_device},
        asynchronous=True,
    ),
    "brute-force": PlannerEntry(
        _brute_force,
        "every straight pipeline of a small problem: a proven optimum",
        _for_brute_force,
        takes("stages", "chunks"),
        searches=_later_searches("straight.brute_force", *ALWAYS, "stages", "chunks"),
        by_default=False,
    ),
    "largest-load": PlannerEntry(
        _Later("straight.graph_pipeline", "GraphPipeline"),
        "one stage per device, cut anywhere in a branching network: the most loaded device has least to do",
        _Later("straight.graph_pipeline", "inapplicable"),
        takes("load", "host"),
        searches={"microbatches": _counts, "load": _these("max", "sum")},
        by_default=False,
    ),
    "large": PlannerEntry(
        _Later("large.shape_search", "LargeModels"),
        "tensor × pipeline × data × context × expert × micro-batch × ZeRO × stages per device × recomputation, uneven blocks",
        _Later("large.shape_search", "inapplicable"),
        takes("stages", "chunks", RECOMPUTE, *DIVISIONS),
        searches=_later_searches("large.shape_search", *ALWAYS, "stages", "chunks", RECOMPUTE, *DIVISIONS),
        by_default=False,
    ),
    "mixed": PlannerEntry(
        _Later("mixed.pipeline_search", "MixedPipelines"),
        "several kinds of device: stages whose replicas are any share of each kind, in groups of a degree a kind",
        _Later("mixed.pipeline_search", "inapplicable"),
        takes(RECOMPUTE, "tensor", "zero"),
        searches=_later_searches("mixed.pipeline_search", "microbatches", RECOMPUTE, "tensor", "zero"),
        by_default=False,
    ),
    "modern": PlannerEntry(
        _order_search,
        "stages, placement, order of the ops, micro-batches and recomputation searched together",
        _Later("modern.order_search", "inapplicable"),
        takes("stages", "chunks", RECOMPUTE, "placement", "seconds"),
        _later_searches(
            "modern.order_search",
            "microbatches",
            "stages",
            "chunks",
            RECOMPUTE,
            "placement",
            function="searched_together",
        ),
        by_default=False,
    ),
    "scheduler": PlannerEntry(
        lambda request: _order_search(request, "scheduler", climbs=False),
        "the order of the ops searched for stages balanced by seconds",
        _Later("modern.order_search", "inapplicable"),
        takes("stages", "chunks", RECOMPUTE, "placement", "seconds"),
        _later_searches("modern.order_search", "microbatches"),
        by_default=False,
    ),
    "umpipe": PlannerEntry(
        _Later("unequal.grouped", "GroupedSizes"),
        "UMPIPE's unequal micro-batches in groups of samples, on the balanced partition of the fastest numbers of stages",
        _Later("unequal.grouped", "inapplicable"),
        takes("stages", RECOMPUTE, "granularity"),
    ),
    **{name: _unequal(name, summary) for name, summary in _UNEQUAL.items()},
    "best-equal": PlannerEntry(
        _Later("unequal.tuned_equal", "TunedEqual"),
        "a tuned GPipe: stages, balanced partition and equal micro-batches searched",
        _not_for_equal,
        takes("stages", "candidates", "granularity"),
        UNEQUAL_SEARCHES,
        by_default=False,
    ),
    "unequal-nested": _unequal("unequal-nested", "partition and unequal micro-batch sizes searched together"),
}


def planner_entries() -> dict[str, PlannerEntry]:
    """The planners of this package and those of installed plug-ins (entry-point group `pipeplan.planners`)."""
    return {**plugged_in(ENTRY_POINT_GROUP, as_entry, frozenset(PLANNERS)), **PLANNERS}


def as_entry(made: object) -> PlannerEntry:
    """The entry of a planner that is given itself: an entry; a function `(problem, evaluate, rng) -> Plan`; or a class of
    planners made of a Request. The latter two apply to any problem.

    Further parameters, of the function or of the class, are its options. TypeError for anything else.
    """
    if isinstance(made, PlannerEntry):
        return made
    if not callable(made):
        raise TypeError(
            f"must be a function (problem, evaluate, rng) -> Plan, or a PlannerEntry, not {type(made).__name__}"
        )
    declared = declared_options(made, 1 if isinstance(made, type) else 3)
    applicable = _for_any if isinstance(made, type) else _unheard
    return PlannerEntry(partial(_made, made, declared), summary_of(made), applicable, declared, asynchronous=True)


def _for_any(problem: Problem, request: Request) -> str | None:
    return None


def _unheard(problem: Problem, request: Request) -> str | None:
    """Why a planner that is a function cannot take what is asked for: it is not told of it. None where nothing is."""
    asked = [name for name in ALWAYS if getattr(request, name) is not None]
    return f"it is a function, which hears no {asked[0]}; a class of planners is made of the request" if asked else None


def _made(made: Callable[..., Any], declared: Mapping[str, DeclaredOption], request: Request) -> Planner:
    """The planner that a function or a class makes for a request; options of the request's schedule are not given to it."""
    own = {name: value for name, value in request.options.items() if name in declared}
    options = read_options(declared, own, "the planner")
    if isinstance(made, type):
        return made(request, **options)  # type: ignore[no-any-return]
    return partial(made, **options) if options else made


def named_planner(asked: str | Callable[..., Any] | PlannerEntry) -> tuple[str, PlannerEntry]:
    """The name and the entry of a planner: given by its name, or as of `as_entry`; ValueError in one line for anything else."""
    if isinstance(asked, str):
        return asked, planner_entry(asked)
    try:
        entry = as_entry(asked)
    except TypeError as error:
        raise ValueError(f"a planner is a name, or {str(error).removeprefix('must be ')}") from None
    made = entry.build if isinstance(asked, PlannerEntry) else asked
    made = made.func if isinstance(made, partial) else made
    return str(getattr(made, "__name__", type(made).__name__)), entry


def planner_entry(name: str) -> PlannerEntry:
    """The entry of the planner of this name; ValueError with the choices if there is none."""
    entries = planner_entries()
    if name not in entries:
        raise ValueError(unchosen("planner", name, sorted(entries)))
    return entries[name]


def make_plan(
    planner: str | Callable[..., Any] | PlannerEntry,
    problem: Problem,
    request: Request | None = None,
    *,
    seed: int = 0,
    budget: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    beat: float = inf,
) -> Result:
    """Plan a problem: run one planner's search and return its result.

    planner: its name, or a planner itself, as of `as_entry`
    budget: evaluations after which the best plan so far is the answer; None for no limit
    progress: called at every improvement
    beat: seconds of an iteration of another answer, as the request judges plans; NotFasterError is raised for a plan that is not
    below
    Raises ValueError for an unknown planner, InapplicablePlannerError for one that cannot plan this problem, InfeasiblePlanError
    if it finds no plan, other ValueErrors for bad input, and PlannerFailedError for whatever else stops it: planners come from
    other packages, too.
    UndercutBoundError is a fault of this program's, as of `simulator.simulate`.
    """
    asked = request or Request()
    check_whole("seed", seed, 0, MOST_SEED)
    name, entry = named_planner(planner)
    try:
        reason = entry.reason(problem, asked)
        if reason is not None:
            raise InapplicablePlannerError(name, reason)
        evaluate = Evaluator(
            problem,
            engine=asked.engine,
            budget=budget,
            seconds=entry.seconds(asked),
            beat=beat,
            judge=PlanJudge.of(problem, asked),
            admits=partial(entry.admits, problem, entry.read(asked)),
            progress=progress,
        )
        with nullcontext() if entry in PLANNERS.values() else aside():
            return run_planner(entry.planner(asked), problem, evaluate, np.random.default_rng(seed))
    except (InapplicablePlannerError, NotFasterError, PlannerFailedError, PluginError, UndercutBoundError, *ENDED):
        raise
    except InfeasiblePlanError as error:
        if entry in PLANNERS.values() or repr(name) in str(error):
            raise
        raise type(error)(f"planner {name!r}: {error}") from None
    except ValueError as error:
        if entry in PLANNERS.values():
            raise
        raise PlannerFailedError(f"planner {name!r}: {one_line(str(error))}") from error
    except BaseException as error:
        text = f"{type(error).__name__}: {one_line(str(error))}"
        raise PlannerFailedError(f"planner {name!r} failed: {text}") from error


MOST_TOLD = 6
"""Planners, at most, that a message about one that does not apply names."""


def others_told(problem: Problem, request: Request, planner: str) -> str:
    """The end of a message about a planner that does not apply: other planners that take the same question; "" where none
    does.
    """
    entries = planner_entries().items()
    others = [name for name, one in entries if name != planner and one.reason(problem, request) is None]
    more = len(others) - MOST_TOLD
    told = ", ".join(others[:MOST_TOLD]) + f" and {more} more" * (more > 0)
    return f"; planners that take it: {told}" if others else ""


class NotFasterError(Exception):
    """Error of a search whose plan is not below the seconds that it was to beat.

    plan, score: what it found; evaluations, planning_seconds: what the search took
    """

    def __init__(self, plan: Plan, score: Score, evaluations: int, planning_seconds: float) -> None:
        super().__init__(f"the plan takes {score.iteration_seconds:.4g} s")
        self.plan, self.score = plan, score
        self.evaluations, self.planning_seconds = evaluations, planning_seconds


def run_planner(planner: Planner, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Result:
    """Run a search to its end, its budget, or an interrupt, and replay its plan on the reference engine.

    NotFasterError for a plan whose score is known and not below what it is to beat: it is not replayed again.
    Raises what the planner raises, and InfeasiblePlanError for a plan that cannot run; KeyboardInterrupt or InfeasiblePlanError
    if it stops before any plan that fits.
    """
    began = time.process_time()
    interrupted, ended = False, ""
    try:
        plan = planner(problem, evaluate, rng)
    except (KeyboardInterrupt, BudgetSpent) as stop:
        interrupted = isinstance(stop, KeyboardInterrupt) or evaluate.budget is not None or evaluate.seconds == inf
        if evaluate.best is None:
            if isinstance(stop, KeyboardInterrupt):
                raise
            spent = "the budget" if interrupted else f"{evaluate.seconds:g} nominal seconds"
            raise InfeasiblePlanError(
                f"{spent} of {counted(evaluate.evaluations, 'evaluation')} ended before a plan that fits was found"
            ) from None
        plan, ended = evaluate.best, "interrupted" if interrupted else "its nominal seconds are used up"
    except InfeasiblePlanError:
        if evaluate.refusal is not None:
            raise evaluate.refusal from None
        raise
    planning_seconds = time.process_time() - began
    if not isinstance(plan, Plan):
        raise TypeError(f"a planner must return a Plan, not {type(plan).__name__}")
    plan = _best_judged(plan, evaluate)
    unnamed = replace(plan, planner="")
    score = None if ended else evaluate.replayed.get(unnamed)
    if score is not None and evaluate.beat <= score.iteration_seconds < inf:
        raise NotFasterError(plan, evaluate.outcomes[unnamed], evaluate.evaluations, planning_seconds)
    try:
        outcome = simulate(problem, plan, layer_costs=evaluate.layer_costs)
    except KeyboardInterrupt:  # the plan is found: what it does is replayed once more
        interrupted, ended = True, "interrupted"
        outcome = simulate(problem, plan, layer_costs=evaluate.layer_costs)
    return Result(
        outcome=outcome,
        proof=_proof(evaluate, ended),
        evaluations=evaluate.evaluations,
        planning_seconds=planning_seconds,
        judged=_judged(outcome, evaluate),
        interrupted=interrupted,
        history=tuple(evaluate.history),
        replayed={one: score for one, score in evaluate.outcomes.items() if evaluate.admits(one)},
        told=tuple(evaluate.runner_ups),
        notes=tuple(evaluate.notes),
    )


def _best_judged(plan: Plan, evaluate: Evaluator) -> Plan:
    """The planner's plan; or the best that it replayed, where a judge finds that clearly better."""
    if evaluate.judge is None or evaluate.best is None:
        return plan
    with suppress(BudgetSpent):
        missing, seconds = evaluate(evaluate.best).key
        if evaluate(plan).key <= (missing, seconds * SAME):
            return plan
    return replace(evaluate.best, planner=plan.planner)


def _judged(outcome: Outcome, evaluate: Evaluator) -> float:
    """Seconds as which an answer counts; PowerExceededError where it draws more power than allowed."""
    judge = evaluate.judge
    if judge is None:
        return outcome.iteration_seconds
    assert outcome.energy is not None  # as the power of every device is known
    if outcome.fits and not judge.allows(outcome.energy):
        raise PowerExceededError(judge.power, min(evaluate.least_watts, outcome.energy.watts))
    return judge.judged(outcome.energy)


def _proof(evaluate: Evaluator, ended: str) -> Proof:
    """The proof that the planner declared, or why there is none; ended: what cut the search short, empty if nothing did"""
    if ended:
        return Proof(reason=f"{ended}, this is the best so far")
    if evaluate.judge is not None:
        return Proof(reason="what is proven of seconds is not proven of energy")
    if not evaluate.optimal_among:
        return Proof(reason="the planner has not ruled out the plans that it did not try")
    return Proof(evaluate.optimal_among)
