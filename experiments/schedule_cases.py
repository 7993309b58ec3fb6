"""Schedule cases: replay recorded schedules on both engines and compare with their expected times.

A case file is a JSON list; each entry names a schedule, its devices, micro-batches and seconds, and what an independent
replay found. Entries of torch classes that have no family here are counted as unknown. Exit code 1 if any entry fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from experiments.studies.public_inputs import read_json
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.output import InputError, tracked
from experiments.terminal.report_tables import ReportTable, figure
from hardware_profiles import MOST_AMOUNT, MOST_COUNT, explained
from simulator import SCHEDULES, OpSeconds, Timeline, build_schedule, given_costs, lower
from simulator.engines import recurrence
from simulator.engines import reference as engine

TOLERANCE = 1e-9
"""Relative; figures that the file gives in six decimals are compared to half of the last one."""

TORCH_CLASSES = {
    "LoopedBFS": "looped-bfs",
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved-1f1b",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}


def run(arguments: argparse.Namespace) -> Findings:
    """Replay every case."""
    cases = read_cases(arguments.cases)
    rows = [
        check_case(case, f"{arguments.cases}: case {number}")
        for number, case in enumerate(tracked("replaying", cases, lambda case: str(case.get("name", ""))))
    ]
    verdicts = [row["verdict"] for row in rows]
    document = {
        "matched": verdicts.count("matched"),
        "failed": verdicts.count("failed"),
        "unknown": verdicts.count("unknown"),
        "worst_relative_error": max((row["relative_error"] or 0.0 for row in rows), default=0.0),
        "failures": [row for row in rows if row["verdict"] == "failed"],
    }

    def show(found: Mapping[str, Any]) -> None:
        TABLE.print({"rows": rows})
        print(
            "{matched} matched, {failed} failed, {unknown} unknown; worst relative error "
            "{worst_relative_error:.1e}".format_map(found)
        )

    return Findings(document, show, failed="failed" in verdicts)


TABLE = ReportTable(
    "Schedule cases",
    "rows",
    {
        "case": "{name}",
        "schedule": "{schedule}",
        "expected, s": figure("expected", ".6g"),
        "simpy, s": figure("simpy", ".6g"),
        "recurrence, s": figure("recurrence", ".6g"),
        "verdict": lambda row: row["verdict"] + (f": {row['why']}" if row["why"] else ""),
    },
)


_Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNT)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=MOST_AMOUNT)]


class ReplayCase(msgspec.Struct, frozen=True, kw_only=True):
    """What a case may say that is read; one of unequal micro-batches has numbers per sample."""

    schedule: str
    expected_makespan: _Amount
    name: str = ""
    kind: str = ""
    devices: _Count | None = None
    microbatches: _Count | None = None
    chunks_per_device: _Count | None = None
    F: _Amount | list[_Amount] | None = None
    B: _Amount | list[_Amount] | None = None
    W: _Amount | list[_Amount] | None = None
    p2p: _Amount | None = None
    F_per_sample: _Amount | list[_Amount] | None = None
    B_per_sample: _Amount | list[_Amount] | None = None
    p2p_per_sample: _Amount | None = None
    sizes: list[_Count] | None = None
    ops: _Count | None = None
    expected_bubble: _Amount | None = None
    expected_longest_stage: _Amount | None = None
    expected_peak_inflight_samples: list[_Count] | None = None


def read_cases(path: str) -> list[dict[str, Any]]:
    """The cases of a file; InputError names the file and what is wrong."""
    cases = read_json(Path(path))
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise InputError(f"{path}: expected a list of objects, one a case")
    if not cases:
        raise InputError(f"{path}: the list of cases is empty")
    return cases


def check_case(case: dict[str, Any], where: str) -> dict[str, Any]:
    """Replay one case on both engines; a row with the verdict `matched`, `failed` or `unknown`."""
    try:
        said = msgspec.convert(case, ReplayCase)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {explained(str(error), case, ReplayCase)[0]}") from None
    schedule, expected = said.schedule, said.expected_makespan
    family = TORCH_CLASSES.get(schedule, schedule)
    row: dict[str, Any] = {
        "name": case.get("name", schedule),
        "schedule": schedule,
        "expected": expected,
        "simpy": None,
        "recurrence": None,
        "relative_error": None,
        "why": "",
        "verdict": "unknown",
    }
    if family not in SCHEDULES:
        return row
    try:
        simpy_line, recurrence_line = replay_case(case, family)
    except KeyError as error:
        raise InputError(f"{where}: has no {error}, which a case of {schedule!r} needs") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {error}") from None
    row["simpy"], row["recurrence"] = simpy_line.makespan_seconds, recurrence_line.makespan_seconds
    row["relative_error"] = max(relative_error(row["simpy"], expected), relative_error(row["recurrence"], expected))
    row["why"] = "; ".join(
        difference
        for name, line in (("simpy", simpy_line), ("recurrence", recurrence_line))
        for difference in differences(case, name, line)
    )
    row["verdict"] = "failed" if row["why"] else "matched"
    return row


def replay_case(case: dict[str, Any], family: str) -> tuple[Timeline, Timeline]:
    """Timelines of SimPy and of the recurrence."""
    chunks = int(case.get("chunks_per_device", 1))
    stages = int(case["devices"]) * chunks
    options = {"chunks": chunks} if "chunks" in SCHEDULES[family].options and "chunks_per_device" in case else {}
    schedule = build_schedule(family, stages, int(case["microbatches"]), **options)
    if case["schedule"] in TORCH_CLASSES:
        schedule = replace(schedule, overlapped=None)  # torch performs a pair's ops one after the other
    unequal = case.get("kind") == "unequal"
    suffix = "_per_sample" if unequal else ""
    costs = given_costs(
        stages,
        OpSeconds(
            case["F" + suffix], case["B" + suffix], weight=case.get("W") or 0.0, transfer=float(case["p2p" + suffix])
        ),
        per_sample=unequal,
        devices=schedule,
    )
    program = lower(schedule, costs, forward_sizes=case.get("sizes"))
    return engine.replay(program), recurrence.replay(program)


def differences(case: dict[str, Any], engine: str, line: Timeline) -> list[str]:
    """What differs from the case's expectations, in words."""
    found = []
    if relative_error(line.makespan_seconds, float(case["expected_makespan"])) > TOLERANCE:
        found.append(f"{engine} makespan {line.makespan_seconds!r}")
    bubble = line.bubble().idle_over_makespan
    if "expected_bubble" in case and abs(bubble - case["expected_bubble"]) > 5.1e-7:
        found.append(f"{engine} idle over makespan {bubble:.6f}, expected {case['expected_bubble']}")
    if "expected_longest_stage" in case:
        longest = longest_span(line)
        if relative_error(longest, float(case["expected_longest_stage"])) > TOLERANCE:
            found.append(f"{engine} longest stage {longest!r} s, expected {case['expected_longest_stage']}")
    if "ops" in case and line.ops != case["ops"]:
        found.append(f"{engine} ran {line.ops} ops, expected {case['ops']}")
    if "expected_peak_inflight_samples" in case:
        peak = line.peak_in_flight(unit="samples").tolist()
        if peak != case["expected_peak_inflight_samples"]:
            found.append(f"{engine} samples in flight {peak}, expected {case['expected_peak_inflight_samples']}")
    return found


def longest_span(line: Timeline) -> float:
    """Largest last end - first start over the devices, seconds."""
    rows = line.compute()
    spans = []
    for device in line.devices():
        mine = rows & (line.device == device)
        spans.append(float(line.end[mine].max() - line.start[mine].min()))
    return max(spans)


def relative_error(value: float, expected: float) -> float:
    """|value - expected| / |expected|, absolute where 0 is expected."""
    return abs(value - expected) / (abs(expected) or 1.0)


if __name__ == "__main__":
    sys.exit(run_study("schedule-cases"))
