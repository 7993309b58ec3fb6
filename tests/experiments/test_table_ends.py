"""Measured tables: no row implies work without end, whatever its numbers; each is one line with its file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cli import main

ROW = {
    "hidden": "8",
    "heads": "2",
    "layers": "4",
    "seq": "16",
    "micro_batch": "1",
    "global_batch": "4",
    "measured_s": "1",
}


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        *[("interleave", cell) for cell in (str(2**31), "7")],
        *[("layers", cell) for cell in (str(10**9), "9" * 400, "1_000", "\u0663", "nan")],
        *[("measured_s", cell) for cell in ("inf", "nan", "1e400", "0")],
        *[("layers_per_stage", cell) for cell in ("100000;1", "6;0", "3;4", "3;3;0")],
        *[(column, str(10**9)) for column in ("tp", "pp", "dp", "cp", "dense_blocks", "nodes", "vocab")],
    ],
)
def test_a_row_beyond_its_ends_is_one_line(
    column: str, cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 4 before anything is built."""
    row = {**ROW, "pp": "2", column: cell}
    path = tmp_path / "runs.csv"
    path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n", encoding="utf-8")
    assert main(["study", "truth", "--tables", str(tmp_path)]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "runs.csv: line 2" in said.err
    assert column in said.err
    path.write_text(f"{path.read_text().splitlines()[0]},{column}\n", encoding="utf-8")
    assert main(["study", "truth", "--tables", str(tmp_path)]) == 4
    assert f"column {column} stands twice" in capsys.readouterr().err
