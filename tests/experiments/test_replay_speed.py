"""Rules of the replay-speed experiment: what it times gives the same answer, and its rows are complete."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import simulator
from experiments.benchmarks import engine_rates as replay_speed
from experiments.benchmarks import timing
from experiments.benchmarks.engine_rates import build, on_channels, plain_lists, plain_replay
from experiments.studies.study_harness import run_study
from simulator.engines import reference as engine
from tests.records import Recorded, lines, ticking


@pytest.mark.parametrize(
    ("devices", "microbatches", "makespan"), [(4, 8, 33.0 + 0.6 * 2 * (3 * 2 + 2) / 6), (1, 3, 9.0)]
)
def test_the_plain_replay_agrees(devices: int, microbatches: int, makespan: float) -> None:
    """The plain-Python replay is the same replay: (m+p-1)(F+B) + 2c[(p-1)m/p + (p-2)], c = 0.1."""
    program = build(devices, microbatches, 0.1)
    assert plain_replay(*plain_lists(program)) == engine.replay(program).makespan_seconds == pytest.approx(makespan)


def test_document_and_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, recorded: Recorded
) -> None:
    """Rates where what is timed takes 1, 2, 3, … s in turn; growth where each size is a made-up row: documents and tables."""
    seconds = count(1)

    def timed(body: Callable[[], object]) -> float:
        body()
        return float(next(seconds))

    monkeypatch.setattr(replay_speed, "cpu_seconds", timed)
    monkeypatch.setattr(sys, "argv", ["x", "--out", str(tmp_path / "rates")])
    assert run_study("replay-speed") == 2
    assert "--out: rates have no figure; it goes with --growth" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("experiments.benchmarks.replay_speed.SHAPES", ((2, 4), (3, 6)))
    found: dict[str, Any] = {}
    for words in (["--json"], []):
        seconds = count(1)
        monkeypatch.setattr(sys, "argv", ["x", *words])
        assert run_study("replay-speed") == 0
        out = capsys.readouterr().out
        found["rates" if words else "rates printed"] = json.loads(out) if words else lines(out)
    for row in found.pop("rates")["rows"]:
        rates = {name.removeprefix("ops_per_second_"): rate for name, rate in row.items() if "ops_per" in name}
        slow = rates.pop("plain_python")
        assert row["ratios_over_plain_python"] == pytest.approx({name: rate / slow for name, rate in rates.items()})

    def one(command: list[str], **more: object) -> SimpleNamespace:
        devices, microbatches = map(int, command[-2:])
        ops = 2 * devices * microbatches
        row: dict[str, Any] = {
            "devices": devices,
            "microbatches": microbatches,
            "ops": ops,
            "build_seconds": 0.5,
            "prepare_seconds": 0.25,
        }
        row |= {"replay_seconds": ops * 1e-9, "simpy_seconds": None if devices > 16 else 1.5, "peak_bytes": 3 * 2**30}
        return SimpleNamespace(returncode=0, stdout=json.dumps(row | {"bytes_per_op": 143.4}))

    saved: list[str] = []
    monkeypatch.setattr(subprocess, "run", one)
    monkeypatch.setattr(simulator, "save", lambda figure, stem: saved.append(str(stem)) or ())
    monkeypatch.chdir(tmp_path)
    for words in (["--json", "--largest", "65", "128"], ["--largest", "8", "17"]):
        monkeypatch.setattr(sys, "argv", ["x", "--growth", "--out", "here", *words])
        assert run_study("replay-speed") == 0
        out = capsys.readouterr().out
        found["growth" if len(words) > 3 else "growth printed"] = json.loads(out) if len(words) > 3 else lines(out)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["growth.json", "pipeplan-files.json"]
    assert saved == ["here/growth"] * 2
    assert run_study("replay-speed", ["--growth", "--largest", "2", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] == "out/replay_speed"
    assert (tmp_path / "out" / "replay_speed" / "growth.json").is_file()
    monkeypatch.setattr(subprocess, "run", lambda *given, **named: SimpleNamespace(returncode=9, stderr="killed"))
    assert run_study("replay-speed", ["--growth", "--largest", "2", "3"]) == 2
    assert capsys.readouterr().err.endswith(": 2 devices × 3 micro-batches failed with exit code 9: killed\n")
    program = on_channels(build(3, 2, 0.1))
    queues = {
        "bytes": program.transfer_bytes,
        "routes": program.transfer_route,
        "bandwidths": [one.bandwidth for one in program.channels],
    }
    recorded(**found, program={"seconds": program.seconds, "transfers": program.transfer_seconds, **queues})


def test_one_size_is_measured_in_its_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 devices, 3 micro-batches: 12 ops, (3 + 1) 3 s and four transfers of 0.1 s; SimPy up to its limit only.

    Spans of the clock are 1, 2, 3, … s in turn: building, ordering, the least of three replays (of 4, 6 and 8), SimPy. Memory
    is 1,000 KiB first and 3,400 at the end: 200 KiB an op.
    """
    for limit, simpy in ((12, 10.0), (11, None)):
        sizes = iter((1000, 3400))
        memory = SimpleNamespace(
            RUSAGE_SELF=0, getrusage=lambda who, sizes=sizes: SimpleNamespace(ru_maxrss=next(sizes))
        )
        monkeypatch.setitem(sys.modules, "resource", memory)
        monkeypatch.setattr(replay_speed, "SIMPY_OPS", limit)
        clock = SimpleNamespace(process_time=ticking())
        monkeypatch.setattr(replay_speed, "time", clock)
        monkeypatch.setattr(timing, "time", clock)
        monkeypatch.setattr(sys, "argv", ["x", "--one", "2", "3"])
        assert run_study("replay-speed") == 0
        assert json.loads(capsys.readouterr().out) == {
            "devices": 2,
            "microbatches": 3,
            "ops": 12,
            "build_seconds": 1.0,
            "prepare_seconds": 2.0,
            "replay_seconds": 4.0,
            "simpy_seconds": simpy,
            "peak_bytes": 3400 * 1024,
            "bytes_per_op": 200.0 * 1024,
            "makespan_seconds": pytest.approx(12.4),
        }
