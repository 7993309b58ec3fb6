"""Tables of experiments/README.md for tests: the figures that stand there, to be compared with what studies find."""

from __future__ import annotations

import re
from itertools import dropwhile, takewhile
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "experiments" / "README.md"


def readme_table(begins: str) -> dict[str, list[list[float]]]:
    """Of the table whose heading begins so: the numbers of each cell behind a row's first, by the words of that."""
    lines = README.read_text(encoding="utf-8").replace("−", "-").splitlines()
    found = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith(begins), lines))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found][2:]
    return {
        name: [[float(one) for one in re.findall(r"[-+]?\d+\.?\d*", cell)] for cell in cells] for name, *cells in rows
    }
