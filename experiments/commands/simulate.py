"""`pipeplan simulate`: replay one schedule from numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from simulator import Communication, Schedule, ScheduleFamily, Timeline

_OPTIONS = ("microbatches_per_minibatch", "chunks", "replicas", "replica_updates", "lanes")
"""Arguments that are options of a schedule family."""


def numbers(text: str) -> list[float]:
    """One number, or a comma list."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number or a comma list of numbers") from None


def counts(text: str) -> list[int]:
    """A comma list of whole numbers of at least 1."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a comma list of whole numbers") from None
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must hold numbers of at least 1")
    return values


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan simulate`."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--schedule", metavar="NAME", help="schedule family (see pipeplan list schedules)")
    source.add_argument("--schedule-csv", metavar="FILE", help="schedule file: torch CSV, or text lines of ops")
    parser.add_argument("--stages", type=count, metavar="P", help="stages of the pipeline (all chunks counted)")
    parser.add_argument("--microbatches", type=count, metavar="M", help="micro-batches")
    parser.add_argument(
        "--microbatches-per-minibatch",
        type=count,
        metavar="T",
        help="micro-batches an update (asynchronous schedules; default 1, 2bw: the stages)",
    )
    parser.add_argument("--minibatches", type=count, metavar="M", help="mini-batches, in place of --microbatches")
    parser.add_argument(
        "--chunks", type=count, metavar="V", help="stages a device (interleaved-1f1b, looped-bfs; default 2)"
    )
    parser.add_argument("--replicas", type=counts, metavar="R,…", help="replicas of each stage (1f1b-rr)")
    parser.add_argument(
        "--replica-updates", metavar="RULE", help="when replicas update: overlapped (default) or barrier (1f1b-rr)"
    )
    parser.add_argument(
        "--lanes",
        metavar="HOW",
        help="how forwards and backwards divide a device: shared (processor sharing, default) or split (fbp-as)",
    )
    parser.add_argument(
        "--forward", type=numbers, required=True, metavar="F", help="seconds of a forward: one number, or one a stage"
    )
    parser.add_argument(
        "--backward",
        type=numbers,
        required=True,
        metavar="B",
        help="seconds of a full backward; of the input gradient if --weight is given",
    )
    parser.add_argument(
        "--weight", type=numbers, default=[0.0], metavar="W", help="seconds of a weight gradient (default 0)"
    )
    parser.add_argument("--update", type=numbers, default=[0.0], metavar="U", help="seconds of an update (default 0)")
    parser.add_argument(
        "--predict", type=numbers, default=[0.0], metavar="P", help="seconds of a weight prediction (default 0)"
    )
    parser.add_argument("--transfer", type=float, default=0.0, metavar="C", help="one-way transfer seconds (default 0)")
    parser.add_argument(
        "--sizes", type=counts, metavar="S,…", help="samples of each micro-batch; all numbers are then seconds a sample"
    )
    parser.add_argument(
        "--communication",
        metavar="MODE",
        help="overlapped, send-blocking, both-blocking, streaming or free (default: the schedule's own, else overlapped)",
    )
    parser.add_argument("--engine", default="simpy", metavar="ENGINE", help="simpy (default), compiled or recurrence")
    parser.add_argument("--noise", type=float, default=0.0, help="spread of log-normal noise on durations (default 0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise (default 0)")
    parser.add_argument(
        "--out",
        action="append",
        default=[],
        metavar="FILE",
        help="write FILE.csv: the schedule for torch, FILE.txt: one line of ops a device, or FILE.json: the trace for "
        "Perfetto (ui.perfetto.dev) and chrome://tracing; may be repeated",
    )
    parser.add_argument("--gantt", metavar="FILE", help="draw the timeline to FILE.png and FILE.svg")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Replay and print."""
    from experiments.output import UsageError, output_file, print_json, print_table
    from simulator import ENGINES, write_atomically

    if arguments.engine not in ENGINES:
        raise UsageError(f"--engine {arguments.engine!r} is unknown; choices: {', '.join(ENGINES)}")
    if arguments.seed < 0:
        raise UsageError(f"--seed must be at least 0, got {arguments.seed}")
    files = [_output(path) for path in arguments.out]
    if arguments.gantt:
        output_file(_stem(arguments.gantt) + ".png", "--gantt")
    communication = _communication(arguments)
    schedule = _schedule(arguments)
    timeline = _replay(arguments, schedule, communication)
    bubble = timeline.bubble()
    versions = weight_versions(schedule, timeline)
    result = {
        "schedule": schedule.name,
        "stages": schedule.stages,
        "devices": len(timeline.devices()),
        "microbatches": schedule.microbatches,
        "makespan_seconds": timeline.makespan_seconds,
        "bubble": {
            "idle_over_makespan": bubble.idle_over_makespan,
            "over_ideal": bubble.over_ideal,
            "longest_stage": bubble.longest_stage,
        },
        "peak_in_flight": timeline.peak_in_flight().tolist(),
        "ops": timeline.ops,
        "versions": versions,
        "engine": arguments.engine,
    }
    contents = [_content(path, schedule, timeline, arguments.sizes) for path in files]
    for path, content in zip(files, contents, strict=True):
        write_atomically(path, content)
    if arguments.gantt:
        _draw(arguments.gantt, timeline, schedule.name)
    if arguments.json:
        print_json(result)
        return 0
    rows = [
        ("makespan, s", f"{timeline.makespan_seconds:.6g}"),
        ("bubble: idle / makespan", f"{bubble.idle_over_makespan:.4f}"),
        ("bubble: over ideal", f"{bubble.over_ideal:.4f}"),
        ("bubble: longest stage", f"{bubble.longest_stage:.4f}"),
        ("micro-batches in flight, by device", " ".join(map(str, timeline.peak_in_flight().tolist()))),
        ("ops", str(timeline.ops)),
        ("updates missing at forward, by stage", " ".join(map(str, versions["forward_difference"]))),
        ("updates missing at backward, by stage", " ".join(map(str, versions["backward_difference"]))),
        ("weight copies, by stage", " ".join(map(str, versions["copies"]))),
    ]
    title = f"{schedule.name}: {schedule.stages} stages, {schedule.microbatches} micro-batches ({arguments.engine})"
    print_table(title, ("measure", "value"), rows)
    return 0


def _schedule(arguments: argparse.Namespace) -> Schedule:
    from experiments.output import UsageError, blamed_on
    from simulator import (
        build_schedule,
        check_schedule,
        check_size,
        engine,
        read_schedule,
        repeated_minibatches,
        schedule_families,
    )

    if arguments.schedule_csv:
        if any(getattr(arguments, name) for name in ("stages", "microbatches", "minibatches", *_OPTIONS)):
            raise UsageError(
                "--stages, --microbatches, --minibatches, --microbatches-per-minibatch, --chunks, --replicas, --replica-updates "
                "and --lanes come from the file with --schedule-csv"
            )
        with blamed_on(arguments.schedule_csv):
            schedule = read_schedule(arguments.schedule_csv)
            check_schedule(schedule)
        return schedule
    if arguments.stages is None or (arguments.microbatches is None and arguments.minibatches is None):
        raise UsageError("--schedule needs --stages and --microbatches, or --minibatches in their place")
    options = {name: getattr(arguments, name) for name in _OPTIONS if getattr(arguments, name)}
    family = schedule_families().get(arguments.schedule)
    if family is not None and "replicas" in family.options and not arguments.replicas:
        raise UsageError(f"--schedule {arguments.schedule} needs --replicas, one count a stage")
    microbatches, minibatches = arguments.microbatches, 1
    if family is not None:
        microbatches, minibatches = _stream(arguments, family, options)
    if arguments.engine == "simpy":
        check_size(arguments.stages, microbatches * minibatches, most=engine.MOST_TASKS)
    schedule = build_schedule(arguments.schedule, arguments.stages, microbatches, **options)
    return schedule if minibatches == 1 else repeated_minibatches(schedule, minibatches)


def _stream(arguments: argparse.Namespace, family: ScheduleFamily, options: dict[str, Any]) -> tuple[int, int]:
    """Micro-batches to build the schedule for, and how often to repeat it (flushed ones); UsageError for what cannot be.

    Takes T out of `options` where the family has no such option.
    """
    from experiments.output import UsageError
    from simulator import VERSION_METHODS

    name, stages, total = arguments.schedule, arguments.stages, arguments.microbatches
    minibatches: int | None = arguments.minibatches
    asked: int | None = arguments.microbatches_per_minibatch
    if minibatches and total:
        raise UsageError("--minibatches stands in place of --microbatches, got both")
    if "microbatches_per_minibatch" in family.options:
        covers = name in VERSION_METHODS and VERSION_METHODS[name].covers_stages
        if covers and asked is not None and asked < stages:
            raise UsageError(
                f"--schedule {name} needs at least as many micro-batches a mini-batch as stages, got T={asked}, N={stages}"
            )
        return total or (minibatches or 1) * (asked or (stages if covers else 1)), 1
    options.pop("microbatches_per_minibatch", None)
    if not family.flush:
        if asked not in (None, 1):
            raise UsageError(f"--schedule {name} updates after every micro-batch: T is 1, got {asked}")
        return total or (minibatches or 1), 1
    if asked is None and minibatches:
        raise UsageError(f"--schedule {name} needs --microbatches-per-minibatch with --minibatches")
    per_minibatch = asked or total
    repeats, rest = divmod(total, per_minibatch) if total else (minibatches or 1, 0)
    if rest or repeats < 1:
        raise UsageError(
            f"--schedule {name} flushes whole mini-batches: {total} micro-batches are no multiple of T={asked}"
        )
    return per_minibatch, repeats


def weight_versions(schedule: Schedule, timeline: Timeline) -> dict[str, list[int]]:
    """Updates missing at forward and at backward, and weight copies held, per stage, counted from the timeline.

    Copies follow the schedule's method; asynchronous schedules of no method (PipeDream, files) stash the weights of a forward.
    """
    from simulator import COPY_RULES, OpKind, microbatches_per_minibatch, version_table

    updates = bool((timeline.kind == OpKind.UPDATE).any())
    per_minibatch = microbatches_per_minibatch(schedule)
    table = version_table(timeline, per_minibatch)
    stashing = "pipedream" if updates and not schedule.flush else "synchronous"
    rule = COPY_RULES.get(schedule.name, COPY_RULES[stashing])
    return {
        "forward_difference": table.forward_difference().tolist(),
        "backward_difference": table.backward_difference().tolist(),
        "copies": rule(table).tolist(),
    }


def _communication(arguments: argparse.Namespace) -> Communication:
    """The mode asked for, or the schedule's own; UsageError where they contradict."""
    from experiments.output import UsageError
    from simulator import schedule_families

    asked: Communication | None = arguments.communication
    family = None if arguments.schedule is None else schedule_families().get(arguments.schedule)
    own = () if family is None else family.communications
    if asked is None:
        return own[0] if own else "overlapped"
    if own and asked not in own:
        raise UsageError(
            f"--communication {asked!r} contradicts --schedule {arguments.schedule}; choices: {', '.join(own)}"
        )
    return asked


def _replay(arguments: argparse.Namespace, schedule: Schedule, communication: Communication) -> Timeline:
    import numpy as np

    from simulator import given_costs, lower

    costs = given_costs(
        schedule.stages,
        arguments.forward,
        arguments.backward,
        weight=arguments.weight,
        update=arguments.update,
        predict=arguments.predict,
        transfer=arguments.transfer,
        per_sample=bool(arguments.sizes),
        devices=schedule,
    )
    program = lower(
        schedule,
        costs,
        forward_sizes=arguments.sizes,
        communication=communication,
        updates=any(arguments.update),
    )
    if arguments.noise:
        program = program.with_noise(arguments.noise, np.random.default_rng(arguments.seed))
    if arguments.engine == "simpy":
        from simulator import engine

        return engine.replay(program)
    if arguments.engine == "compiled":
        from simulator import replay_compiled

        return replay_compiled(program)
    from simulator import recurrence

    return recurrence.replay(program)


def _draw(path: str, timeline: Timeline, title: str) -> None:
    from simulator import gantt, save

    chart = gantt(timeline, title=title, device_word="device")
    save(cast("Figure", chart.get_figure()), _stem(path))


def _stem(path: str) -> str:
    """The path of a figure without the ending of its form."""
    return path.removesuffix(".png").removesuffix(".svg")


def _output(path: str) -> Path:
    """A file to write to later; UsageError for a name that does not say what it is to hold."""
    from experiments.output import UsageError, output_file

    if not path.endswith((".csv", ".txt", ".json")):
        raise UsageError(f"--out {path}: the name must end in .csv (torch), .txt (lines of ops) or .json (trace)")
    return output_file(path)


def _content(path: Path, schedule: Schedule, timeline: Timeline, sizes: Sequence[int] | None) -> str:
    """What the file is to hold, by its name's ending; UsageError for a schedule that torch cannot run."""
    import json

    from experiments.output import UsageError
    from simulator import ScheduleError, chrome_trace, to_text, to_torch_csv

    if path.suffix == ".json":
        return json.dumps(chrome_trace(timeline, name=schedule.name, device_word="device")) + "\n"
    if path.suffix == ".txt":
        return to_text(schedule)
    try:
        if len(set(sizes or ())) > 1:
            raise ScheduleError("torch's micro-batches have one size, --sizes gives several")
        return to_torch_csv(schedule)
    except ScheduleError as error:
        raise UsageError(f"--out {path}: {error}; a name in .txt takes it") from None
