"""`pipeplan simulate`: replay one schedule from numbers, or a plan from its file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import planners
import simulator
from experiments.compare.disturbance_options import DISTURBANCES, disturbances
from experiments.compare.problem_options import FORMS, IMPORTED, WITH_A_FORM, add_imported, imported_from, read_plan
from experiments.report.report_options import REPORT, explained, read_price
from experiments.targets.names import TARGETS
from experiments.targets.target import NotLaunchableError
from experiments.terminal.argument_types import (
    LONGEST,
    OWN_OPTION,
    Listed,
    NumberUpTo,
    Option,
    add_options,
    check_choice,
    count,
    counts,
    inches,
    names_of,
    natural,
    numbers,
    own_options,
    refuse,
    written_figure,
    written_file,
)
from experiments.terminal.exits import INFEASIBLE, OK
from experiments.terminal.output import UsageError, blamed_on, print_explained, print_json, progress, tell
from experiments.terminal.stops import INTERRUPTED
from experiments.view.page_option import HTML, check_bokeh, window, write_page
from hardware_profiles import blaming

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.compare.schedule_comparison import ScheduleComparison


OWN = ("cluster", "profile", "schedule", "microbatches", "chunks", "communication", "replica_updates")
"""Options of an imported plan that a schedule, or a plan of a file, has, too."""


def written_schedule(text: str) -> Path:
    """A file that the command writes, whose name says what it is to hold."""
    if not text.endswith((".csv", ".txt", ".json")):
        raise argparse.ArgumentTypeError(
            f"{text}: the name must end in .csv (torch), .txt (lines of ops) or .json (trace)"
        )
    return written_file(text)


_OPTIONS = (
    "microbatches_per_minibatch",
    "chunks",
    "microbatch_group_size",
    "slices",
    "replicas",
    "replica_updates",
    "lanes",
)
"""Arguments that are options of a schedule family."""

_COUNTS = ("stages", "microbatches", "minibatches", *_OPTIONS)
"""Arguments that make a schedule of its family."""

_OF_SEVERAL = ("chunks", "microbatch_group_size")
"""Options of families that several schedules take, each those that it has."""

_OF_ONE = (
    *[name for name in _COUNTS if name not in ("stages", "microbatches", *_OF_SEVERAL)],
    *("option", "placement", "seconds", "objective", "slice_seconds", "out", "explain"),
)
"""Arguments that one schedule has alone."""

_SEARCHED = ("chunks", "placement", "seconds", "objective")
"""Arguments of a search for a schedule."""

_NOT_SEARCHED = (
    *[name for name in _OPTIONS if name != "chunks"],
    "option",
    *(
        "minibatches",
        "update",
        "predict",
        "overlapped",
        "slice_seconds",
        "sizes",
        "communication",
        *names_of(DISTURBANCES),
    ),
)
"""Arguments of a replay that a search has no use for."""

SOURCES: dict[str, Option] = {
    "--schedule NAME,…": (
        "schedule family (see pipeplan list schedules), or search: the best order found; several are compared on the same "
        "devices, whose numbers their stages divide",
        Listed(str),
        [],
    ),
    "--schedule-csv FILE": "schedule file: torch CSV, or text lines of ops",
    "--plan FILE": FORMS,
}
"""What is replayed: one of them."""

REPLAY: dict[str, Option] = {
    "--cluster NAME": "of --plan: another name, name:SERVERS, or TOML file",
    "--stages P": ("stages of the pipeline (all chunks counted)", count),
    "--microbatches M": ("micro-batches", count),
    "--microbatches-per-minibatch T": (
        "micro-batches per update (asynchronous schedules; default 1, 2bw: the stages)",
        count,
    ),
    "--minibatches M": ("mini-batches, in place of --microbatches", count),
    "--chunks V": ("stages per device (interleaved-1f1b, interleaved-zb, looped-bfs, hanayo; default 2)", count),
    "--microbatch-group-size G": (
        "micro-batches that pass a chunk before the next has its turn (interleaved-1f1b, interleaved-zb; default: the fewest)",
        count,
    ),
    "--slices K": ("slices of the sequences of a micro-batch (seq1f1b); numbers are then a slice's", count),
    "--slice-seconds R,…": (
        "seconds of each slice of a sequence, times those of its ops (default: slices alike)",
        numbers,
    ),
    "--replicas R,…": ("replicas of each stage (1f1b-rr)", counts),
    "--replica-updates RULE": "when replicas update: overlapped (default) or barrier (1f1b-rr)",
    **OWN_OPTION,
    "--lanes HOW": "how forwards and backwards divide a device: shared (processor sharing, default) or split (fbp-as)",
    "--forward F": ("seconds of a forward: one number, or one per stage", numbers),
    "--backward B": ("seconds of a full backward; of the input gradient if --weight is given", numbers),
    "--weight W": ("seconds of a weight gradient (default 0)", numbers),
    "--profile FILE": "in place of these, --stages and --microbatches: a trace of torch.profiler, or a folder of one per rank",
    "--update U": ("seconds of an update (default 0)", numbers),
    "--predict P": ("seconds of a weight prediction (default 0)", numbers),
    "--transfer C": ("one-way transfer seconds (default 0): one number, or one per boundary between stages", numbers),
    "--overlapped X": ("seconds of an overlapped forward and backward (default: one after the other)", numbers),
    "--offload S": ("seconds of what a forward keeps to the host, and as many back (default 0)", numbers),
    "--stash A": ("memory that a forward keeps, in any unit: one number, or one per stage", numbers),
    "--stash-weight AW": ("the part of it that a weight gradient needs (default half)", numbers),
    "--memory L": ("limit of a device, in the unit of --stash: one number, or one per device", numbers),
    "--placement NAME": "placement of the stages in a search: straight (default), interleaved, v, wave or "
    "bidirectional",
    "--seconds T": ("seconds of search (default 1); the same work on every machine", NumberUpTo(LONGEST)),
    "--objective NAME": "what the search minimizes: makespan (default), longest-stage (from a device's first op to its last), "
    "or steady (seconds per micro-batch of a round of ops that repeats without end)",
    "--sizes S,…": ("samples of each micro-batch; all numbers are then seconds per sample", counts),
    "--communication MODE": "overlapped, send-blocking, both-blocking, streaming or free (default: the "
    "schedule's own, else overlapped)",
    "--engine ENGINE": ("simpy (default), compiled or recurrence", str, "simpy"),
    **DISTURBANCES,
    "--seed SEED": ("seed of the noise, and of a search (default 0)", natural, 0),
    "--out FILE": (
        "write FILE.csv: the schedule for torch, FILE.txt: one line of ops per device, or FILE.json: the trace for Perfetto "
        "(ui.perfetto.dev) and chrome://tracing; may be repeated",
        written_schedule,
        [],
    ),
    "--gantt FILE": (
        "draw the timeline to FILE.pdf, FILE.svg or FILE.png (FILE without an ending: png and svg), memory of a plan or --stash "
        "to FILE-memory",
        written_figure,
    ),
    **HTML,
    "--window BEGIN:END": ("seconds of the timeline to draw (default: all)", window),
    "--size WIDTHxHEIGHT": ("inches of the figure of the timeline (default: 12, and as high as its rows need)", inches),
    "--explain": "tell why devices are idle, the critical path, and what would gain most were it 10 %% faster",
    **REPORT,
    "--json": "print one JSON document",
}
"""The numbers of a schedule, the engine, and what is written."""

TOPICS = {
    "schedule": (
        *(
            "--microbatches-per-minibatch",
            "--minibatches",
            "--chunks",
            "--microbatch-group-size",
            "--slices",
            "--replicas",
        ),
        *("--replica-updates", "--option", "--lanes", "--sizes", "--communication"),
    ),
    "ops": (
        *("--slice-seconds", "--weight", "--update", "--predict", "--transfer", "--overlapped", "--offload", "--stash"),
        *("--stash-weight", "--memory"),
    ),
    "search": ("--placement", "--seconds", "--objective"),
    "noise": ("--noise", "--replays", "--straggler"),
    "files": ("--out", "--gantt", "--html", "--window", "--size"),
    "report": ("--explain", *(words.split(" ")[0] for words in REPORT)),
}
"""Options that are told by topic: of a family of schedules, seconds and memory of ops, of a search for an order, of noise and
stragglers, files that are written, and what is told beside the figures."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan simulate`."""
    add_options(parser.add_mutually_exclusive_group(required=True), SOURCES)
    for title, names in TOPICS.items():
        own = {words: option for words, option in REPLAY.items() if words.split(" ")[0] in names}
        add_options(parser.add_argument_group(title), own)
    told = {name for names in TOPICS.values() for name in names}
    add_options(parser, {words: option for words, option in REPLAY.items() if words.split(" ")[0] not in told})
    add_imported(parser, OWN)


def run(arguments: argparse.Namespace) -> int:
    """Replay and print; exit code 3 if a device holds more than --memory."""
    check_choice("--engine", arguments.engine, simulator.ENGINES)
    check_bokeh(arguments.html)
    if arguments.gantt is None:
        refuse(arguments, ("size", *["window"] * (arguments.html is None)), "goes with --gantt")
    if arguments.plan is None:
        refuse(arguments, ("cluster", *names_of(REPORT)), "goes with --plan")
        described = [name for name in names_of(IMPORTED) if name not in OWN]
        refuse(arguments, described, WITH_A_FORM)
    _take_profile(arguments)
    if len(arguments.schedule) > 1:
        return _compare(arguments)
    arguments.schedule = next(iter(arguments.schedule), None)
    _check_undisturbed(arguments)
    replayed = _of_numbers(arguments) if arguments.plan is None else _of_plan(arguments)
    _check_split(arguments, [replayed.schedule])
    told: list[simulator.Explained] = [replayed]
    result = replayed.record()
    if isinstance(replayed, simulator.Outcome):
        result["memory"] = simulator.peak_rows(replayed.memory)
        price = read_price(arguments, replayed.problem)
        if arguments.report:
            told = [report := explained(replayed, price)]
            result["report"] = report.record()
    one = replayed.replayed if isinstance(replayed, planners.SearchedSchedule) else replayed
    if arguments.explain:
        told.append(explanation := simulator.explain(one))
        result["explanation"] = explanation.record()
    interrupted = bool(result.get("interrupted"))
    _write(replayed, one, arguments, interrupted=interrupted)
    if arguments.json:
        print_json(result)
    else:
        for value in told:
            print_explained(value)
    if interrupted:
        return INTERRUPTED
    return OK if arguments.memory is None or replayed.fits else INFEASIBLE


def _check_undisturbed(arguments: argparse.Namespace) -> None:
    """UsageError for noise or stragglers beside what is told without them, and for a report of links that are free."""
    of_plan = arguments.plan is not None
    for asked, option in (
        (arguments.report, "--report, which replays what would be free without it"),
        (arguments.explain and of_plan, "--explain of a plan, whose gains are replayed without it"),
        (arguments.html and of_plan, "--html of a plan, whose waits are told without it"),
    ):
        if asked:
            refuse(arguments, names_of(DISTURBANCES), f"does not go with {option}")
    if arguments.report and arguments.engine == "recurrence":
        raise UsageError("--engine recurrence, which knows no contention, does not go with --report")


def _write(
    replayed: simulator.Outcome | simulator.ScheduleReplay | planners.SearchedSchedule,
    shown: simulator.Outcome | simulator.ScheduleReplay,
    arguments: argparse.Namespace,
    *,
    interrupted: bool,
) -> None:
    """Write the files, all but the schedule only where no interrupt has ended the search. shown: the replay itself."""
    figures = [] if interrupted else _figures(replayed, arguments)
    contents = [_content(path, replayed, arguments) for path in arguments.out]
    for path, content in zip(arguments.out, contents, strict=True):
        simulator.write_atomically(path, content)
    if arguments.gantt and interrupted:
        print("pipeplan simulate: no figure is drawn after an interrupt", file=sys.stderr)
    for figure, path in figures:
        simulator.save(figure, path)
    if arguments.html and not interrupted:
        name = Path(arguments.plan).name if arguments.plan is not None else replayed.schedule.name
        write_page(arguments.html, {name: shown}, title=name, window=arguments.window)


def _take_profile(arguments: argparse.Namespace) -> None:
    """Take the numbers of --profile for those that it stands for; a backward that was never split may be, by --weight."""
    if arguments.profile is None:
        return
    file = f"--profile {arguments.profile}"
    refuse(arguments, ("forward", "backward", "sizes"), f"does not go with {file}, which has seconds of micro-batches")
    found = simulator.read_stage_times(arguments.profile)
    if found.weight:
        refuse(arguments, ("weight",), f"does not go with {file}, whose backwards are split")
    said = [name for name in ("stages", "microbatches") if getattr(arguments, name) is not None]
    said += ["microbatches"] * (arguments.minibatches is not None)
    for name, value in found.numbers.items():
        if name not in (("stages", "microbatches") if arguments.schedule_csv else said):
            setattr(arguments, name, value)
    if arguments.weight is not None and not found.weight:
        arguments.backward = _without(found.backward, arguments.weight, file)


def _without(backward: Sequence[float], weight: Sequence[float], file: str) -> list[float]:
    """Backwards without the part of them that --weight says, one number or one per stage; UsageError where that is more."""
    halves = list(weight) * (len(backward) if len(weight) == 1 else 1)
    if len(halves) != len(backward) or any(half > whole for half, whole in zip(halves, backward, strict=True)):
        raise UsageError(
            f"--weight must be one number, or one per stage, and at most the seconds of a backward in {file}: {_listed(backward)}"
        )
    return [whole - half for half, whole in zip(halves, backward, strict=True)]


def _listed(seconds: Iterable[float]) -> str:
    return ", ".join(f"{one:.4g}" for one in seconds)


def _check_split(arguments: argparse.Namespace, schedules: Iterable[simulator.Schedule]) -> None:
    """UsageError for a schedule that splits backwards, where --profile has them whole."""
    for schedule in schedules if arguments.profile is not None and arguments.weight is None else ():
        if (schedule.kind == simulator.OpKind.WEIGHT_GRADIENT).any():
            raise UsageError(
                f"schedule {schedule.name!r} splits backwards, which --profile {arguments.profile} has whole: --weight says how "
                "many seconds of them make gradients of weights"
            )


def _figures(
    replayed: simulator.Outcome | simulator.ScheduleReplay | planners.SearchedSchedule, arguments: argparse.Namespace
) -> list[tuple[Figure, Path]]:
    """What --gantt draws, and the names that it is written to."""
    path = arguments.gantt
    if path is None:
        return []
    found = [(_timeline(replayed, arguments), path)]
    if arguments.plan is not None or arguments.stash is not None:
        found.append((replayed.plot_memory(), path.with_stem(f"{path.stem}-memory")))
    return found


def _timeline(
    replayed: simulator.Outcome | simulator.ScheduleReplay | planners.SearchedSchedule | ScheduleComparison,
    arguments: argparse.Namespace,
) -> Figure:
    """The figure of timelines in --window and of --size; UsageError where they show nothing."""
    from simulator.results.gantt_plots import clipped_window

    shown = arguments.window
    with blaming(UsageError, arguments.gantt):
        if shown is not None:
            shown = clipped_window(shown, replayed.makespan_seconds, "the timeline")
        return replayed.plot(window=shown, size=arguments.size)


def _compare(arguments: argparse.Namespace) -> int:
    """Replay several schedules and print them in one table; exit code 3 if none stays within --memory."""
    from experiments.compare.questions import SEARCH
    from experiments.compare.schedule_comparison import compare_schedules

    if len(set(arguments.schedule)) < len(arguments.schedule):
        raise UsageError("--schedule names families, each once, where several are compared")
    refuse(arguments, _OF_ONE, "is of one schedule, not of several that are compared")
    if arguments.stages is None or arguments.microbatches is None:
        raise UsageError("several schedules need --stages, one per device, and --microbatches")
    numbers = _numbers(arguments)
    numbers |= {"engine": arguments.engine, "seed": arguments.seed}
    if SEARCH in arguments.schedule:
        refuse(
            arguments,
            [name for name in _NOT_SEARCHED if name not in _OF_SEVERAL],
            "is not of a schedule that is searched for",
        )
    else:
        numbers |= disturbances(arguments)
    options = _given(arguments, _OF_SEVERAL)
    with progress("replaying"):
        found = compare_schedules(arguments.schedule, arguments.stages, arguments.microbatches, options, **numbers)
    _check_split(arguments, [one.schedule for one in found.replays.values()])
    if arguments.gantt:
        simulator.save(_timeline(found, arguments), arguments.gantt)
    if arguments.html:
        write_page(arguments.html, found.replays, title="schedules", window=arguments.window)
    tell(found, as_json=arguments.json)
    if found.searched is not None and found.searched.interrupted:
        return INTERRUPTED
    return OK if found.fits else INFEASIBLE


def _numbers(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds and memory of ops, sizes and communication, as far as they are given."""
    if arguments.forward is None or arguments.backward is None:
        raise UsageError("a schedule needs --forward and --backward, seconds of its ops, or --profile")
    memory = _given(arguments, simulator.OpMemory.__slots__)
    if memory and arguments.stash is None:
        raise UsageError("--memory and --stash-weight need --stash, what a forward keeps")
    return memory | _given(arguments, (*simulator.OpSeconds.__slots__, "sizes", "communication"))


def _of_numbers(arguments: argparse.Namespace) -> simulator.ScheduleReplay | planners.SearchedSchedule:
    from experiments.compare.questions import SEARCH, simulate

    numbers = _numbers(arguments)
    settings = {"engine": arguments.engine, "seed": arguments.seed}
    if arguments.schedule == SEARCH:
        refuse(arguments, _NOT_SEARCHED, "is not of a schedule that is searched for")
        if arguments.stages is None or arguments.microbatches is None:
            raise UsageError("--schedule search needs --stages and --microbatches")
        numbers |= _given(arguments, ("stages", "microbatches", *_SEARCHED))
        with progress("searching an order") as report:
            numbers["progress"] = lambda evaluations, cost: report(evaluations, f"best {cost:.4g} s")
            return simulate(SEARCH, **settings, **numbers)
    refuse(arguments, [name for name in _SEARCHED if name != "chunks"], "goes with --schedule search")
    schedule, counts = _schedule(arguments)
    with progress("replaying"):
        return simulate(schedule, **settings, **disturbances(arguments), **counts, **numbers)


def _given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The values of the arguments that were given."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def _of_plan(arguments: argparse.Namespace) -> simulator.Outcome:
    from experiments.compare.questions import simulate

    of_a_schedule = [*_COUNTS, *_SEARCHED, "option", "profile", "sizes", "communication"]
    of_a_schedule += [*simulator.OpSeconds.__slots__, *simulator.OpMemory.__slots__]
    left_out = {*names_of(IMPORTED)} - {"profile"} if imported_from(arguments.plan) else ()
    refused = [name for name in of_a_schedule if name not in left_out]
    refuse(arguments, refused, f"is of a schedule; --plan {arguments.plan} says its own")
    problem, plan = read_plan(arguments, OWN)
    with progress("replaying"):
        return simulate(problem, plan, engine=arguments.engine, seed=arguments.seed, **disturbances(arguments))


def _schedule(arguments: argparse.Namespace) -> tuple[simulator.Schedule | str, dict[str, Any]]:
    """The schedule of the file, or the name of its family, with its counts and options."""
    if arguments.schedule_csv:
        refuse(arguments, ("option",), "comes from the file with --schedule-csv")
        if given := [f"--{name.replace('_', '-')}" for name in _given(arguments, _COUNTS)]:
            raise UsageError(
                f"{', '.join(given)}: counts come from the file with --schedule-csv, a row of ops for each device: leave "
                f"{'it' if len(given) == 1 else 'them'} out"
            )
        with blamed_on(arguments.schedule_csv):
            return simulator.read_schedule(arguments.schedule_csv), {}
    if arguments.stages is None or (arguments.microbatches is None and arguments.minibatches is None):
        raise UsageError("--schedule needs --stages and --microbatches, or --minibatches in their place")
    return arguments.schedule, _given(arguments, _COUNTS) | own_options(arguments)


def _content(
    path: Path,
    replayed: simulator.ScheduleReplay | planners.SearchedSchedule | simulator.Outcome,
    arguments: argparse.Namespace,
) -> str:
    """What the file is to hold, by its name's ending; UsageError for a schedule that torch cannot run."""
    schedule = replayed.schedule
    if path.suffix == ".json":
        return json.dumps(simulator.chrome_trace(replayed.timeline, name=schedule.name, device_word="device")) + "\n"
    if path.suffix == ".txt":
        return simulator.to_text(schedule)
    try:
        if isinstance(replayed, simulator.Outcome):
            return _torch_csv(replayed)
        if len(set(arguments.sizes or ())) > 1:
            raise simulator.ScheduleError("torch's micro-batches have one size, --sizes gives several")
        return simulator.to_torch_csv(schedule)
    except (simulator.ScheduleError, NotLaunchableError) as error:
        raise UsageError(f"--out {path}: {error}; a name in .txt takes it") from None


def _torch_csv(outcome: simulator.Outcome) -> str:
    """The plan's ops for torch, with a line on stderr where replicas decide how torch is launched."""
    written = TARGETS["torch-csv"].written("torch-csv", outcome.problem, outcome.plan)
    for note in written.notes:
        print(f"pipeplan simulate: {note}", file=sys.stderr)
    return str(written.files[""])
