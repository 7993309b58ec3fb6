"""Logs: seconds of an iteration and memory from the lines that Megatron-LM and torchtitan write while they train."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from experiments.terminal.output import InputError
from hardware_profiles import GIB, MOST_COUNT, blaming, read_bytes, shown, whole_number

WARM_UP = 5
"""Steps that are left out where nothing is said: kernels are compiled and chosen, allocators and communicators are made."""

LARGEST = 2**28
"""Bytes of a log that are read at most."""

MOST = 1e15
"""Largest figure of a log."""

COLOURS = re.compile(r"\x1b\[[0-9;]*m")

MEGATRON = (
    re.compile(r"iteration\s+([0-9]+)\s*/\s*[0-9]+ "),
    re.compile(r"elapsed time per iteration \((ms|s)\):\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)"),
)
"""Megatron-LM's and Megatron-DeepSpeed's line of a step, or of all steps since the last line."""

BATCH = re.compile(r"global batch size:\s*([0-9]+)")
MEGATRON_RATE = re.compile(r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs):\s*([0-9.]+)")
MEGATRON_MEMORY = (
    re.compile(r"memory \(MB\)"),
    re.compile(r"\|\s*max allocated:\s*([0-9.]+)"),
    re.compile(r"\|\s*max reserved:\s*([0-9.]+)"),
)
"""What its ranks report once, in units of 2^20 bytes."""

TITAN = (
    re.compile(r"step:\s*([0-9]+)\s+loss:\s*\S"),
    re.compile(r"memory:\s*([0-9.]+)GiB\([0-9.]+%\)\s+(?:tps|wps):\s*([0-9][0-9,.]*)"),
)
"""torchtitan's line of a step, or of all steps since the last line; the memory is the most that its allocator reserved."""

TITAN_RATE = re.compile(r"tflops:\s*([0-9][0-9,.]*)")


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A line of a log. number: of its last step; seconds of one step, or tokens per second and device where it tells these;
    bytes: that the allocator reserved, where it tells them; batch: samples of the step; teraflops: per second and device"""

    number: int
    seconds: float = 0.0
    tokens_per_second: float = 0.0
    reserved: float = 0.0
    batch: int = 0
    teraflops: float = 0.0


@dataclass(frozen=True, slots=True)
class LogFigures:
    """What a log tells of a step, the median of its lines after the warm-up.

    lines: that were taken; allocated, reserved: bytes, None where nothing tells them; teraflops: per second and device, 0 where
    nothing tells them
    """

    seconds: float
    lines: int
    allocated: float | None = None
    reserved: float | None = None
    teraflops: float = 0.0


def read_logs(path: Path, tokens: int, devices: int, batch: int, warm_up: int = WARM_UP) -> LogFigures:
    """What a log, or the logs of a folder, tell of a run's steps.

    tokens: of a sample; devices, batch: of the run's plan, whose steps alone are taken
    Raises InputError for a log without such steps.
    """
    files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    texts = {one: COLOURS.sub("", _text(one)) for one in files}
    runs = {one: list(_steps(one, text)) for one, text in texts.items()}
    if not any(runs.values()):
        raise InputError(
            f"{path}: holds no line of a step of Megatron-LM ('elapsed time per iteration') or torchtitan ('step: … tps:')"
        )
    taken = [step for steps in runs.values() for step in _after(steps, warm_up)]
    count = sum(map(len, runs.values()))
    if not taken:
        raise InputError(
            f"{path}: all lines of steps, {count}, are of the {warm_up} steps of warm-up; --warm-up 0 takes them"
        )
    own = [step for step in taken if step.batch in (0, batch)]
    if not own:
        raise InputError(f"{path}: its steps have {taken[-1].batch} samples, the plan's iteration has {batch}")
    if not tokens and any(step.tokens_per_second for step in own):
        raise InputError(f"{path}: tells tokens per second, and the plan's samples have no tokens")
    seconds = median(step.seconds or batch * tokens / (step.tokens_per_second * devices) for step in own)
    with blaming(InputError, f"{path}: memory (MB)"):
        lines = (line for text in texts.values() for line in text.splitlines())
        pairs = [pair for line in lines if (pair := _found(MEGATRON_MEMORY, line))]
        told = [tuple(2.0**20 * _number(most) for most in pair) for pair in pairs]
    reserved = [most for _, most in told] + [step.reserved for step in own if step.reserved]
    return LogFigures(
        seconds,
        len(own),
        max((most for most, _ in told), default=None),
        max(reserved, default=None),
        median(step.teraflops for step in own),
    )


def _text(path: Path) -> str:
    try:
        return read_bytes(path, LARGEST).decode("utf-8", "replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _steps(path: Path, text: str) -> Iterator[LoggedStep]:
    """The steps of a log's lines. Raises InputError, which names the line, for a figure that is no number."""
    for place, line in enumerate(text.splitlines(), start=1):
        with blaming(InputError, f"{path}: line {place}"):
            if told := _found(MEGATRON, line):
                yield _megatron_step(told, line)
            elif told := _found(TITAN, line):
                yield _titan_step(told, line)


def _found(parts: tuple[re.Pattern[str], ...], line: str) -> list[str]:
    """The groups of patterns that a line has one behind the other, or none. Each looks through the line once: one pattern of all
    would look through the rest of it from every place where the first fits.
    """
    groups: list[str] = []
    end = 0
    for part in parts:
        found = part.search(line, end)
        if found is None:
            return []
        groups += found.groups()
        end = found.end()
    return groups


def _megatron_step(told: list[str], line: str) -> LoggedStep:
    number, unit, time = told
    batch, rate = BATCH.search(line), MEGATRON_RATE.search(line)
    return LoggedStep(
        whole_number(number, 0, MOST_COUNT),
        _number(time) * (1e-3 if unit == "ms" else 1.0),
        batch=whole_number(batch[1], 0, MOST_COUNT) if batch else 0,
        teraflops=_number(rate[1]) if rate else 0.0,
    )


def _titan_step(told: list[str], line: str) -> LoggedStep:
    number, memory, tokens = told
    rate = TITAN_RATE.search(line)
    return LoggedStep(
        whole_number(number, 0, MOST_COUNT),
        tokens_per_second=_number(tokens),
        reserved=GIB * _number(memory),
        teraflops=_number(rate[1]) if rate else 0.0,
    )


def _number(text: str) -> float:
    try:
        number = float(text.replace(",", "").rstrip("."))
    except ValueError:
        number = 0.0
    if not 0.0 < number <= MOST:
        raise ValueError(f"{shown(text)} is not a number above 0" + (f" of at most {MOST:g}" if number else ""))
    return number


def _after(steps: list[LoggedStep], warm_up: int) -> list[LoggedStep]:
    """The steps after the warm-up of each run; another begins where numbers do not rise. A line speaks for all steps since the
    line before it, the first one for as many as the second.
    """
    starts = [place for place, step in enumerate(steps) if not place or step.number <= steps[place - 1].number]
    taken: list[LoggedStep] = []
    for start, end in zip(starts, [*starts[1:], len(steps)], strict=True):
        run = steps[start:end]
        interval = run[1].number - run[0].number if run[1:] else 1
        before = [max(run[0].number - interval, 0), *(step.number for step in run[:-1])]
        taken += [step for step, last in zip(run, before, strict=True) if last >= before[0] + warm_up]
    return taken
