"""Asking: the points of a study that a store has no answer to, and the rows of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from experiments.sweep.contents import Contents
from experiments.sweep.runs import Run, Told, answer_all, on_local_cluster, on_scheduler, on_this_machine
from experiments.sweep.store import Store
from experiments.sweep.study import Question, SweptStudy
from experiments.sweep.swept import Swept
from experiments.terminal.stops import stoppable


@contextmanager
def running(jobs: int | None = None, scheduler: str | None = None, local_cluster: int | None = None) -> Iterator[Run]:
    """What answers questions: processes of this machine, the workers of a scheduler, or those of one that is started for it."""
    if scheduler is not None:
        with on_scheduler(scheduler) as run:
            yield run
    elif local_cluster is not None:
        with on_local_cluster(local_cluster) as run:
            yield run
    else:
        yield on_this_machine(jobs)


@dataclass(frozen=True, slots=True)
class AnsweredSweep:
    """Rows of a sweep: of its questions, which points may share, so many were answered now, so many were known."""

    swept: Swept
    answered: int
    known: int


def ask_all(
    study: SweptStudy, store: Store, run: Run, report: Callable[[int, int], None] = lambda done, total: None
) -> AnsweredSweep:
    """Have every question answered that the store has no answer to; an interrupt ends it with those that are there.

    report: called with how many of how many are answered
    Raises what reading the study's files does, before any work; ConnectionError and ChildProcessError where those who answer are
    gone. The store then has what was answered.
    """
    contents, questions, points = Contents(), dict[str, Question](), []
    with stoppable():
        for swept, question in study.points():
            key = question.key(contents)
            questions.setdefault(key, question)
            points.append((swept, key))
    unknown = store.begin(points)
    waiting = {key: question for key, question in questions.items() if key in unknown}
    done = 0
    try:
        with stoppable() as stopped:

            def keep(told: Told) -> None:
                nonlocal done
                store.keep(told)
                done += len(told)
                report(done, len(waiting))
                if stopped():
                    raise KeyboardInterrupt

            report(0, len(waiting))
            answer_all(waiting, run, keep)
    except KeyboardInterrupt:  # rows without an answer say so
        pass
    return AnsweredSweep(Swept.of(store.rows()), done, len(questions) - len(waiting))
