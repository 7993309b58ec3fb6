"""Seconds of a pipeline in closed form beside replays."""

from __future__ import annotations

import random

import pytest

import pipeplan as pp
from planners.estimate.pipeline_seconds import pipelined


def replayed(schedule: str, **figures: object) -> float:
    """Seconds of the replay of a schedule on numbers."""
    return float(pp.simulate(schedule, **figures).record()["makespan_seconds"])  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(12))
def test_forwards_before_backwards_take_what_the_closed_form_says(seed: int) -> None:
    """GPipe on random numbers: a pipeline of forwards, then one of backwards; 1F1B of stages that are alike."""
    choose = random.Random(seed)
    stages, microbatches = choose.randint(1, 6), choose.randint(1, 9)
    passes = [[float(choose.randint(1, 9)) for _ in range(stages)] for _ in range(2)]
    both = [sum(one) for one in zip(*passes, strict=True)]
    told = sum(pipelined(sum(one), max(one), microbatches) for one in passes)
    figures = {"stages": stages, "microbatches": microbatches, "forward": passes[0], "backward": passes[1]}
    assert replayed("gpipe", **figures) == told
    if len(set(both)) == 1:
        assert replayed("1f1b", **figures) == pipelined(sum(both), both[0], microbatches)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_chunks_fill_a_pipeline_in_their_part_of_the_time(chunks: int) -> None:
    """Interleaved 1F1B of four ranks with equal stages, six seconds per rank: 4 * 6 seconds in one chunk, a third in three."""
    schedule, options = ("interleaved-1f1b", {"chunks": chunks}) if chunks > 1 else ("1f1b", {})
    each = 6.0 / chunks / 2.0
    found = replayed(schedule, stages=4 * chunks, microbatches=8, forward=each, backward=each, **options)
    assert found == pytest.approx(pipelined(24.0, 6.0, 8, chunks))
