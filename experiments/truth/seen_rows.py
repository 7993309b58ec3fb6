"""Seen rows: the measured rows that were at hand while constants and rules were chosen, told from rows held out.

Of tables of iterations and of blocks each such row is known by a digest of what was run and measured, so that a file that holds
others beside them, or only others, is judged in two parts. Of vTrain's runs on one server, whose rows follow exactly from those
of their cell (hidden size, tensor degree, micro-batch), the cell is known. Tables of kernels and collectives, of which a random
half was fitted whose draw was not kept, are seen whole; a table of no name below not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import pandas as pd

CELL = ("hidden", "heads", "seq", "tp", "micro_batch")
RUN = (
    *CELL,
    "layers",
    "pp",
    "dp",
    "cp",
    "ep",
    "interleave",
    "global_batch",
    "layers_per_stage",
    "recompute",
    "measured_s",
)


class SeenRows(NamedTuple):
    """What rows of a table are known by: columns, and the digests of those that were seen."""

    columns: tuple[str, ...]
    digests: frozenset[str]


def known(columns: tuple[str, ...], digests: str) -> SeenRows:
    """Digests of eight hexadecimal digits, one after the other."""
    text = "".join(digests.split())
    return SeenRows(columns, frozenset(text[at : at + 8] for at in range(0, len(text), 8)))


WHOLE = ("a100_gemm", "vtrain_allreduce_nvlink", "simumax_ops")
"""Tables of kernels and collectives that were seen whole, by what their names begin with."""

SEEN_ROWS: Mapping[str, SeenRows] = {
    "sailor_validation": known(
        RUN,
        """
        0f804381177ae71e18cbc98129072a552a3b40e631c6b7d03e2c1480492d3abf4ce7a29751b9b2e86f73cfec7e850954848c0dc68944dc4e
        b0d06b26c06b4eb6e5d24fbfe647502d
        """,
    ),
    "simumax_b200": known(
        RUN,
        """
        1265dc7e256d6114469e7af4563343ac5a40cbde5fe56e1d6a85aa3e6d2bb5db786a3c787a0f3bb5836ef3a59be7d5469e57424cad62d4e4
        b264490ab43fe19ac536f57ccbad2954f908d91c
        """,
    ),
    "vtrain_multi": known(
        RUN,
        """
        0163fabb030b6fc70484282e048fd7a9142dc585177a5a2e1adfd51b1c0ccfc71cd975251d5b21ea30cdecd6345cd8393738ba5d3efb17de
        3fd65b504678c4a646bd846e5a42b95768885f8c6b341e0987e5c2cb883686e98973e6e28ed6d21792d35b5f9a098f1d9be3abc39ef5cbac
        9f2a55daa0b938eea3f3db99a8abe403a90919c3a950351baa56b111b296f31eb5598cbbbf41d065c69263f8c7c70f0dc9811db0cb830391
        cf28b373cfe06df0d35a5713d90999cdd9fc442ae30cab86e54c0c44e7e67feceb9b9120ec4b6f38ece732e6ecff0f71ee1999ecee938171
        """,
    ),
    "vtrain_single": known(
        CELL,
        """
        0576cb771fe01e303457471d4b029dd954447c9e5aab2d0f5e3305a362226b7b71a4be6d7454d655a37189a0a825f8eaaf5715f2b17eab13
        bdc362acbf13afd9fe19b23b
        """,
    ),
}
"""Of the other tables, by what their names begin with."""


def digest(values: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    """Eight hexadecimal digits of a row's values, numbers to six digits."""
    said = (
        f"{value:.6g}" if isinstance(value, int | float) else str(value) for value in map(values.__getitem__, columns)
    )
    return blake2b("|".join(said).encode(), digest_size=4).hexdigest()


def was_seen(table: str, points: pd.DataFrame) -> list[bool]:
    """Of each line of a table's predictions, whether its row was at hand when constants and rules were chosen."""
    if table.startswith(WHOLE):
        return [True] * len(points)
    begun = max((name for name in SEEN_ROWS if table.startswith(name)), key=len, default=None)
    if begun is None:
        return [False] * len(points)
    columns, digests = SEEN_ROWS[begun]
    if not set(columns) <= set(points.columns):
        return [False] * len(points)
    lines = zip(*(points[column].tolist() for column in columns), strict=True)
    return [digest(dict(zip(columns, line, strict=True)), columns) in digests for line in lines]
