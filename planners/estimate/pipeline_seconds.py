"""Pipeline seconds: how long some micro-batches take through a pipeline, in closed form."""

from __future__ import annotations

from typing import TypeVar

from hardware_profiles import Floats, Integers

Seconds = TypeVar("Seconds", float, Floats)


def rounds_and_fill(microbatches: Seconds, chunks: int | Integers = 1) -> tuple[Seconds, float]:
    """The two factors of the closed form `pipelined`: m - 1/v, on the slowest part's seconds, and 1/v, on those of all parts in
    turn.
    """
    return microbatches - 1 / chunks, 1 / chunks  # type: ignore[return-value]


def pipelined(
    through: Seconds,
    slowest: Seconds,
    microbatches: float | Integers | Floats,
    chunks: int | Integers = 1,
) -> Seconds:
    """Seconds in which m micro-batches pass a pipeline: the first goes through all of it, each other one follows behind the part
    that is the slowest.

    through: of one micro-batch in all stages and on all ways between them; slowest: in the part that has most to do, all chunks
        of a device together
    With v chunks per device the pipeline fills and drains v times as fast (Narayanan et al. 2021, section 2.2):

        (m - 1/v) * slowest + through / v

    Exact for parts in a row with equal micro-batches, forwards before backwards; a bound or an estimate elsewhere.
    """
    rounds, fill = rounds_and_fill(microbatches, chunks)  # type: ignore[type-var]
    return rounds * slowest + fill * through  # type: ignore[return-value]
