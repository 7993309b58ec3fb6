"""Runs: questions in batches, answered by processes of this machine (joblib) or the workers of a scheduler (dask.distributed)."""

from __future__ import annotations

import logging
import signal
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import islice
from math import ceil
from multiprocessing import resource_tracker
from typing import Any, NamedTuple

from joblib import Parallel, cpu_count, delayed

from experiments.sweep.contents import Contents
from experiments.sweep.study import Question
from experiments.terminal.output import UsageError

BATCH_SECONDS = 0.5
"""Of work in a batch at least: what a scheduler takes for one is a hundredth of it."""

ANSWER_SECONDS = 10
"""In which a scheduler must answer."""

Asked = tuple[str, Question]
Told = list[tuple[str, dict[str, Any]]]
"""Answers by their keys."""


class Batches:
    """Questions in batches of BATCH_SECONDS, as far as the mean of those that are answered tells, one alone at first.

    Lifetime: made of all questions, asked for batch after batch; told what each took.
    workers: that the last questions are divided among
    """

    def __init__(self, questions: Iterable[Asked]) -> None:
        self._waiting = deque(questions)
        self._seconds, self._answered = 0.0, 0
        self.workers = 1

    def took(self, seconds: float, count: int) -> None:
        """So many were answered in so many seconds."""
        self._seconds += seconds
        self._answered += count

    def __len__(self) -> int:
        """Questions that wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[list[Asked]]:
        while self._waiting:
            wanted = ceil(BATCH_SECONDS * self._answered / self._seconds) if self._seconds else 1
            count = max(1, min(wanted, len(self._waiting) // self.workers))
            yield [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]


class Answered(NamedTuple):
    """The answers of a batch, the seconds that they took, and whether an interrupt ended it before the last."""

    told: Told
    seconds: float
    interrupted: bool


Run = Callable[[Batches], Iterator[Answered]]
"""What answers batches, in whatever order."""


def answered(batch: Sequence[Asked]) -> Answered:
    """The answers of a batch, in the process that is asked; one that an interrupt cuts short is left out.

    Raises UsageError where other files, or another version, stand behind the words there.
    """
    began, contents, told = time.perf_counter(), Contents(), list[tuple[str, dict[str, Any]]]()
    with suppress(KeyboardInterrupt):
        for key, question in batch:
            if question.key(contents) != key:
                raise UsageError(
                    f"{socket.gethostname()} has another version of pipeplan, or other files behind the names of a question"
                )
            record = question.answer()
            if record.pop("interrupted"):
                break
            told.append((key, record))
    return Answered(told, time.perf_counter() - began, len(told) < len(batch))


def answer_all(questions: Mapping[str, Question], run: Run, keep: Callable[[Told], None]) -> None:
    """Have every question answered, and each answer kept when it comes; those that a worker lost as it died are asked again.

    ChildProcessError where workers die of what is left.
    """
    waiting = dict(questions)
    while waiting:
        before, batches = len(waiting), Batches(waiting.items())
        try:
            for part in run(batches):
                batches.took(part.seconds, len(part.told))
                keep(part.told)
                for key, _ in part.told:
                    del waiting[key]
                if part.interrupted:
                    raise KeyboardInterrupt
        except BrokenExecutor:
            if len(waiting) == before:
                raise ChildProcessError(
                    f"workers died of {len(waiting)} of {len(questions)} questions, which have no answer: too little memory?"
                ) from None


def on_this_machine(jobs: int | None) -> Run:
    """Processes of this machine: so many, or as many as this process may use cores; one is this process itself."""

    def run(batches: Batches) -> Iterator[Answered]:
        batches.workers = min(cpu_count() if jobs is None else jobs, len(batches))
        workers = Parallel(n_jobs=batches.workers, batch_size=1, return_as="generator_unordered")
        parts = workers(delayed(answered)(one) for one in batches)
        try:
            yield from parts
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of what an interrupt leaves
                parts.close()

    return run


def check_dask() -> None:
    """UsageError where dask.distributed is not installed."""
    if find_spec("distributed") is None:
        raise UsageError("sweeps on a scheduler need dask.distributed, which is not installed; install pipeplan[dask]")


@contextmanager
def on_scheduler(address: str) -> Iterator[Run]:
    """The workers of a scheduler; ConnectionError, in one line, for one that does not answer, or goes away."""
    check_dask()
    from distributed import Client, KilledWorker, as_completed

    with _quiet():
        try:
            client = Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ConnectionError(f"scheduler {address}: does not answer: {error}") from None
        if not client.nthreads():
            client.close()
            raise ConnectionError(f"scheduler {address}: has no workers")

        def run(batches: Batches) -> Iterator[Answered]:
            batches.workers = max(1, sum(client.nthreads().values()))
            waiting = iter(batches)

            def submitted(count: int) -> list[Any]:
                return [client.submit(answered, one, pure=False) for one in islice(waiting, count)]

            done = as_completed(submitted(2 * batches.workers), loop=client.loop)
            try:
                for future in done:
                    yield future.result()
                    done.update(submitted(1))
            except KilledWorker as error:
                raise BrokenExecutor(str(error)) from None
            except (CancelledError, OSError):
                if client.status == "running":  # it is the question's
                    raise
                raise ConnectionError(f"scheduler {address}: is gone; what was answered is kept") from None

        try:
            yield run
        finally:
            client.close(timeout=1)


@contextmanager
def _quiet() -> Iterator[None]:
    """The loggers of dask.distributed say nothing of an end, which is told in one line here."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]
    named = list(map(logging.getLogger, names))
    before = {one: one.level for one in named}
    for one in named:
        one.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for one, level in before.items():
            one.setLevel(level)


@contextmanager
def on_local_cluster(workers: int) -> Iterator[Run]:
    """A scheduler and so many workers of one core each, on this machine, for the time of a run."""
    check_dask()
    from distributed import LocalCluster

    quiet = {"silence_logs": logging.CRITICAL, "dashboard_address": None}
    with _no_interrupts():
        cluster = LocalCluster(n_workers=workers, threads_per_worker=1, **quiet)
    with cluster, on_scheduler(cluster.scheduler_address) as run:
        yield run


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """SIGINT waits, and never reaches processes that are started inside: a terminal sends it to them, too."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # as it lets signals through again when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
