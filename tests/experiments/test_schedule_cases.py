"""Rules of the schedule cases: every recorded replay is met, a wrong one is found, unknown classes are counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments.schedule_cases import check_case, relative_error
from experiments.studies.study_harness import run_study
from tests.records import Recorded, lines

CASE = {"schedule": "1f1b", "devices": 4, "microbatches": 8, "F": 1.0, "B": 2.0, "W": None, "p2p": 0.0, "ops": 64}


def test_a_right_case_matches() -> None:
    """(8+4-1)·3 = 33 s, idle (4-1)/(8+4-1) of it."""
    row = check_case({**CASE, "expected_makespan": 33.0, "expected_bubble": round(3 / 11, 6)}, "here")
    assert (row["verdict"], row["simpy"], row["recurrence"]) == ("matched", 33.0, 33.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"expected_makespan": 33.1},
        {"expected_makespan": 33.0, "ops": 63},
        {"expected_makespan": 33.0, "expected_bubble": 0.3},
    ],
)
def test_a_wrong_case_fails(wrong: dict[str, float]) -> None:
    """A wrong makespan, count of ops or bubble is a failure, with the figure found."""
    row = check_case({**CASE, **wrong}, "here")
    assert row["verdict"] == "failed"
    assert row["why"]


def test_an_error_against_nothing_is_absolute() -> None:
    """A bubble of 0 is expected of one device: 0.25 is 0.25 off, 3 is half of 2 above 2, 1 is 3 from -2."""
    assert (relative_error(0.25, 0.0), relative_error(3.0, 2.0), relative_error(1.0, -2.0)) == (0.25, 0.5, 1.5)


def test_document_and_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: Recorded
) -> None:
    """Right cases of every form (torch's names, chunks, weight gradients, transfers, unequal micro-batches), one in which all is
    wrong, one a little off, one unknown; exit code 1."""
    unequal = {"schedule": "gpipe", "kind": "unequal", "devices": 2, "microbatches": 2, "sizes": [1, 3]}
    cases = [
        {
            **CASE,
            "name": "right",
            "expected_makespan": 33.0,
            "expected_bubble": round(3 / 11, 6),
            "expected_longest_stage": 33.0,
        }
        | {"expected_peak_inflight_samples": [4, 3, 2, 1]},
        {**CASE, "schedule": "Interleaved1F1B", "chunks_per_device": 2, "devices": 2, "microbatches": 4, "p2p": 0.25}
        | {"expected_makespan": 28.5},
        {**CASE, "schedule": "GPipe", "W": 1.0, "expected_makespan": 44.0},
        {**unequal, "F_per_sample": 1.0, "B_per_sample": 2.0, "p2p_per_sample": 0.5, "expected_makespan": 22.0},
        {**CASE, "expected_makespan": 34.0, "expected_bubble": 0.3, "expected_longest_stage": 32.0, "ops": 63}
        | {"expected_peak_inflight_samples": [4, 3, 2, 2]},
        {**CASE, "expected_makespan": 33.0 * (1 + 2e-9), "expected_bubble": 3 / 11 + 5e-7},
        {**CASE, "schedule": "NoSuchSchedule", "expected_makespan": 1.0},
        {**CASE, "expected_makespan": 33.0 * (1 + 5e-10), "expected_bubble": 3 / 11 + 5e-7},
    ]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["x", "--cases", "cases.json", "--json"])
    assert run_study("schedule-cases") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["matched"], found["failed"], found["unknown"]) == (3, 4, 1)
    monkeypatch.setattr(sys, "argv", ["x", "--cases", "cases.json"])
    assert run_study("schedule-cases") == 1
    recorded(printed=lines(capsys.readouterr().out))


def test_a_class_without_a_family_is_unknown() -> None:
    """Schedules that are not here are counted, not failed."""
    assert check_case({**CASE, "schedule": "NoSuchSchedule", "expected_makespan": 1.0}, "here")["verdict"] == "unknown"


@pytest.mark.slow
def test_the_bundled_file(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 failed, relative error at most 1e-9, on both engines."""
    monkeypatch.setattr(sys, "argv", ["x", "--cases", str(shared_data / "schedule_cases.json"), "--json"])
    assert run_study("schedule-cases") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["failed"] == 0
    assert document["matched"] >= 64
    assert document["worst_relative_error"] <= 1e-9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: not JSON"),
        ("[1", "1: not JSON"),
        ("{}", " "),
        ("[]", " "),
        (
            '[{"schedule": "1f1b"}]',
            " case 0: $.expected_makespan: is missing; keys of this table: schedule, expected_make",
        ),
        ('[{"schedule": "1f1b", "expected_makespan": 1}]', " case 0: has no 'devices', which a case of '1f1b' needs"),
        (
            '[{"schedule": "1f1b", "expected_makespan": 1, "devices": 2, "microbatches": 2, "F": [1, 2, 3], "B": 1, "p2p": 0}]',
            " case 0: forward needs one number or one for each of 2 stages, got 3 numbers",
        ),
    ],
)
def test_a_bad_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    """Exit code 4 and one line that names the file."""
    path = tmp_path / "cases.json"
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["x", "--cases", str(path)])
    assert run_study("schedule-cases") == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{path}:{said}" in err
