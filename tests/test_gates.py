"""The gates: their scripts are sound, and a skip that nobody listed fails a run that asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import unknown_skips

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / ".ci").glob("*")) if (ROOT / ".ci").is_dir() else []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_parse(script: Path) -> None:
    """Bash reads every gate to its end."""
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_skips_that_no_line_lists_are_named() -> None:
    """A reason, with its file and line, once; a line is a regular expression; remarks and empty lines match nothing."""
    skips = [("a.py", 3, "Skipped: torch is away"), ("b.py", 5, "Skipped: 7 days"), ("c.py", 9, "Skipped: 7 days")]
    assert unknown_skips("# torch\n\n^torch is", skips) == ["c.py:9: 7 days"]
    assert unknown_skips(r"^\d days$" + "\ntorch", skips) == []


@pytest.mark.parametrize(("listed", "code"), [("no reason", 0), ("another reason", 1)])
def test_a_run_with_an_unknown_skip_fails(tmp_path: Path, listed: str, code: int) -> None:
    """One test passes and one is skipped: the list decides."""
    (tmp_path / "conftest.py").write_text(
        (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (tmp_path / "test_two.py").write_text(
        "import pytest\n\n\ndef test_one():\n    pass\n\n\ndef test_two():\n    pytest.skip('no reason')\n",
        encoding="utf-8",
    )
    (tmp_path / "known.txt").write_text(listed, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--known-skips", "known.txt"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("a skip that known.txt does not list: " in done.stdout) == bool(code)


def environment() -> dict[str, str]:
    """This process's, with the checkout on the path."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}
