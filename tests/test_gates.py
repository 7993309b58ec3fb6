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
    """Bash, or Python, reads every gate to its end."""
    if script.suffix == ".py":
        compile(script.read_text(encoding="utf-8"), script.name, "exec")
    else:
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_skips_that_no_line_lists_are_named() -> None:
    """A reason, with its file and line, once; a line is a regular expression; remarks and empty lines match nothing."""
    skips = [("a.py", 3, "Skipped: torch is away"), ("b.py", 5, "Skipped: 7 days"), ("c.py", 9, "Skipped: 7 days")]
    assert unknown_skips("# torch\n\n^torch is", skips) == ["c.py:9: 7 days"]
    assert unknown_skips(r"^\d days$" + "\ntorch", skips) == []


def test_a_run_with_an_unknown_skip_fails(tmp_path: Path) -> None:
    """One test passes and one is skipped: the list decides."""
    (tmp_path / "conftest.py").write_text(
        (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (tmp_path / "test_two.py").write_text(
        "import pytest\n\n\ndef test_one():\n    pass\n\n\ndef test_two():\n    pytest.skip('no reason')\n",
        encoding="utf-8",
    )
    for listed in ("no reason", "another reason"):
        (tmp_path / listed).write_text(listed, encoding="utf-8")
    twice = (
        "import pytest\n"
        "run = lambda listed: pytest.main(['-q', '-p', 'no:cacheprovider', '--known-skips', listed])\n"
        "print([int(run(listed)) for listed in ('no reason', 'another reason')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", twice], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    first, second = done.stdout.split("a skip that another reason does not list: ")
    assert second.endswith("[0, 1]\n"), done.stdout + done.stderr
    assert "does not list" not in first


def environment() -> dict[str, str]:
    """This process's, with the checkout on the path."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}
