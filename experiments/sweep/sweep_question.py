"""Sweep question: what the face asks at every point of a grid; what answers is loaded when it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

from experiments.terminal.argument_types import MOST_JOBS
from hardware_profiles import check_kind, check_whole

if TYPE_CHECKING:
    import pandas as pd


def sweep(
    over: Mapping[str, object],
    *,
    store: str | Path | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    **options: object,
) -> pd.DataFrame:
    """Ask a question at every point of a grid: a row per point, with what is swept by name, and what is found.

    over: values by what is varied, a list or a text (`64:1024:x2`, `dgx-h100:{1,2,4}`): an option of `pipeplan plan`, the
        planner among them, or a path of `what_if`, such as `network.bandwidth_gbps`
    store: file of the answers, which is made, or gone on with: what it has is not asked again; None keeps none
    jobs: processes, default as many as this one may use cores; scheduler: address of one of dask.distributed in their place
    options: of all points, as `pipeplan plan` has them (workload, cluster, batch, planner, …), or `problem` or `plan`, a file
    After an interrupt rows without an answer have the status `not-asked`. Raises ValueError for what cannot be asked, and
    ConnectionError for a scheduler that does not answer.
    """
    from experiments.sweep.asking import ask_all, running
    from experiments.sweep.axes import read_axis
    from experiments.sweep.store import IN_MEMORY, Store
    from experiments.sweep.study import make_study, read_options

    check_kind("what is swept", over, Mapping)
    for name in over:
        check_kind("name of what is swept", name, str)
    check_kind("store", store, str, Path, NoneType)
    check_kind("scheduler", scheduler, str, NoneType)
    if jobs is not None:
        check_whole("jobs", jobs, 1, MOST_JOBS)
    study = make_study(read_options(options), [read_axis(name, values) for name, values in over.items()])
    with running(jobs, scheduler) as run, Store(IN_MEMORY if store is None else store) as opened:
        return ask_all(study, opened, run).swept.frame
