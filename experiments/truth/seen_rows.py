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
    "bigscience_a100": known(
        RUN,
        """
        0070a49103a73260073f2ad409fcf0b40a6616d310188578134c2d8a1376c24d1dcea8d429d7f37a2f5c90b6305dbde43312cbc5447ddc41
        45313fb645cd59514cae92cb522a0f5d5319b06b5e721c4f6255638f6bb1eb16739c18c277f4925b7e5aef1e7f28b82881fe9356844c82a3
        8751433287c6b1a58c750ef68f975b3992cfacb79d79df78a447cdddaa02756fb4d84e5fbcdc9bd0bebbdd5dc023069cc1dd81a3c38994db
        c79460accc5e73a8d6f36e0ee177bd4ce2fb26baefa8b637f1786d66f5f49318f7b50069fb59f43afebf8ef6
        """,
    ),
    "dgxc_h100_gpt175b": known(
        RUN,
        """
        233d8e406f9c69cb73cb2f1a77a17d5eeb14e8f9
        """,
    ),
    "dgxc_h100_llama": known(
        RUN,
        """
        0818f9a618b443d33a09ddec465f3325478445765b7205ef80e8bdbc8c19481591abe0c39408c06ea0a328daadd00870af18d9f3b70e2b88
        d3239214e28625cff7e3a0b4
        """,
    ),
    "maxtext": known(
        RUN,
        """
        0393c20e09110cc9173b49ba1ce17682473648304d38c1ca61b1836f80fee48489f0aa9095f660feccbe4050d58b694dd97f471eec6d00b7
        """,
    ),
    "megatron_bridge_models": known(
        RUN,
        """
        103482ec41e385536b0a1300787c96a47c078503930502f396f0e2aba868a0a8adcb4553b4e79cdebf4d837ec0b78f7ac2c43c2fc56aeb29
        c5eec08dd212974bd3dcdc63d812c68ae7548bf1f08c1b8b
        """,
    ),
    "mosaic_a100_40": known(
        RUN,
        """
        0276343106f7b1b5088587fc0b1690832237f8ac2412b7d6262e16f928095dcf2bd0829e3023084932745d3c3ca86d904f1751794f1c985e
        544122365df1b91f5fcd89ee69e3ab0571f6bb157bd9af107e3b436580305f1f80b3f5a781664a9a8c5dd9938fdaaccfa7edf19cb76dd724
        bb3b73e7c1ab22c1c3fe66a0c839588fd0b09e38da6b84d3dad203dceccb15bcf24b29e2f3682b85f513626f
        """,
    ),
    "mosaic_a100_80": known(
        RUN,
        """
        0256cb890fe94c48169c8cd72aca9b872d34d8f63f52286659ff7b315f2eefae6809b9396ac4ff256f795ed4752487ab7538e2a477b51fcf
        7d817309843dc48f8543817b8e174c298e9dd1db90651c2891bb9702923934e694af4fb8a5489bcba7e5d9e7bbfc9dc6bddf57adcfc9b3f6
        e278bd51fe51e489
        """,
    ),
    "mosaic_h100_fp8": known(
        RUN,
        """
        6445def1acadd36ed44c9f4e
        """,
    ),
    "mosaic_h100_large": known(
        RUN,
        """
        16e7078430fed74137cf9718544e95a15da91025786265249b91bcfca2e3a4eddb1ae743
        """,
    ),
    "mosaic_h100": known(
        RUN,
        """
        0b1388d3317ad7c9422d184942f9b8e445401fdb4a4a809c505ea8bd5608d6fc5ec8990b6e0add7c706d6bac79e2005e80de800e84778741
        96d14db598f56527a329d066b1368585b34abe3bbd71a25ac1b460b3c9299eeecbb785d3d0ec0aafd99d2dc8f8616a77
        """,
    ),
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
