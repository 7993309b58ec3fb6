"""Sweeps on a real cluster of processes: nothing is lost or asked twice when a worker is killed and the client interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeplan as pp
from experiments.sweep.store import Store
from experiments.sweep.swept import Swept

distributed = pytest.importorskip("distributed", reason="needs dask.distributed, of the extra [dask]")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interruptible")]

SMALL = {"workload": "chain:4", "cluster": "pipedream-a", "planner": "uniform", "microbatches": 4, "schedule": "gpipe"}
OVER = {"batch": "8:257:+1", "devices": "1:4:+1"}
POINTS = 1000


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A scheduler and two workers, each a process."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as made:
        yield made


def client(address: str, store: Path, over: dict[str, str] = OVER) -> subprocess.Popen[str]:
    """`pipeplan sweep` on a scheduler, in a process of its own."""
    said = [f"--{name}={value}" for name, value in SMALL.items()]
    swept = [word for name, value in over.items() for word in ("--over", f"{name}={value}")]
    words = [sys.executable, "-m", "experiments.cli", "sweep", *said, *swept]
    words += ["--scheduler", address, "--out", str(store), "--json"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def grown(store: Path, size: int, process: subprocess.Popen[str]) -> None:
    """Wait until a store has so many bytes."""
    while not store.exists() or store.stat().st_size < size:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def answered(told: str) -> int:
    """How many questions a client says that were answered."""
    found = re.search(r"([\d,]+) questions? answered, kept in", told)
    assert found is not None, told
    return int(found[1].replace(",", ""))


def test_a_thousand_questions_are_answered_once(cluster: Any, tmp_path: Path) -> None:
    """With a worker killed by SIGKILL, and the client interrupted and asked again; to the bit what one process answers."""
    store = tmp_path / "store.db"
    first = client(cluster.scheduler_address, store)
    grown(store, 500_000, first)
    nanny = next(iter(cluster.workers.values()))
    victim = nanny.pid
    os.kill(victim, signal.SIGKILL)
    grown(store, 800_000, first)  # half of it: on a busy machine all is answered before another worker is in its place
    first.send_signal(signal.SIGINT)
    out, err = first.communicate()
    assert first.returncode == 130, err
    while nanny.pid == victim:
        time.sleep(0.05)
    part = json.loads(out)
    done = answered(err)
    assert 0 < done < POINTS
    assert (part["interrupted"], part["missing"]) == (True, POINTS - done)
    second = client(cluster.scheduler_address, store)
    out, err = second.communicate()
    assert second.returncode == 0, err
    assert (answered(err), f"{done} were there" in err) == (POINTS - done, True)
    with Store(store, reading=True) as kept:
        swept = Swept.of(kept.rows())
    frame = pp.sweep(OVER, jobs=1, **SMALL)
    assert len(frame) == POINTS
    assert swept.frame.equals(frame)


def test_a_killed_client_leaves_a_whole_store(cluster: Any, tmp_path: Path) -> None:
    """Which the next one goes on with; a scheduler that goes away ends a sweep with one line, and what was answered is kept."""
    store, over = tmp_path / "store.db", {"batch": "8:107:+1", "devices": "1:2:+1"}
    first = client(cluster.scheduler_address, store, over)
    grown(store, 120_000, first)
    first.kill()
    first.communicate()
    with Store(store, reading=True) as kept:
        done = sum(record is not None for _, record in kept.rows())
    assert 0 < done < 200
    second = client(cluster.scheduler_address, store, over)
    grown(store, store.stat().st_size + 40_000, second)
    cluster.close()
    out, err = second.communicate()
    assert (second.returncode, out, err.count("\n")) == (1, "", 1), err
    assert "is gone; what was answered is kept" in err
    with Store(store, reading=True) as kept:
        assert done < sum(record is not None for _, record in kept.rows()) < 200


def test_two_workers_answer_what_one_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the bit; how much sooner is printed, on as many cores as the machine then has to spare."""
    took, rows = [], []
    for workers in (1, 2):
        with distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as made:
            for name, over in (("few", {"batch": "8:47:+1"}), ("all", {"batch": "48:547:+1"})):
                began = time.perf_counter()
                asked = client(made.scheduler_address, tmp_path / f"{name}{workers}", over)
                out, err = asked.communicate()
                assert asked.returncode == 0, err
                took.append(time.perf_counter() - began)
            rows.append(json.loads(out)["rows"])
    assert rows[0] == rows[1]
    assert len(rows[0]) == 500
    one, two = took[1] - took[0], took[3] - took[2]  # without what a client and 40 questions take
    with capsys.disabled():
        print(f"\n460 questions: one worker {one:.1f} s, two {two:.1f} s, {one / two:.2f} times as fast")
