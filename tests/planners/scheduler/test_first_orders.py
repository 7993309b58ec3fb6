"""Orders that a search begins with, as records: one that is missing is rarely the best."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from planners.scheduler.alternation import alternate, alternations
from planners.scheduler.blocks import BuildingBlock, blocks_of, paused_blocks, warm_ups
from planners.scheduler.bound import lower_bound, spare_seconds
from planners.scheduler.instance import instance_of
from planners.scheduler.list_scheduling import list_schedule, settings_of
from planners.scheduler.order_replay import trace_of
from planners.scheduler.patterns import one_at_a_time, pattern_names
from planners.scheduler.steady import plain_rounds, rounds_of
from tests.planners.conftest import sums
from tests.planners.scheduler.schedule_cases import PLACEMENTS
from tests.planners.scheduler.test_bounds import drawn
from tests.records import Recorded, weights


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_first_orders_are_those_that_they_were(placement: str, recorded: Recorded) -> None:
    """Of drawn problems the weights of: periods, tolerances and starts of building blocks, makespans of alternations and of list
    schedules by their settings, rounds of a stream; and names of patterns."""
    found: list[dict[str, object]] = []
    for number in range(10):
        problem = drawn(placement, number)
        instance = instance_of(problem)

        def said(blocks: Iterator[BuildingBlock]) -> list[object]:
            return [[block.period, block.tolerance, *sums(block.starts)[1:]] for block in blocks]

        blocks = [*blocks_of(instance)]
        settings = [*settings_of(instance, problem.stages), *settings_of(instance, problem.stages, long=True)]
        trace = trace_of(instance)
        ways = (
            alternations(spare_seconds(instance, False, 1.2 * lower_bound(instance))) if placement == "straight" else ()
        )
        rounds = [plain_rounds(instance), *(rounds_of(instance, one) for one in blocks[:2])]
        figures = {
            "blocks": said(iter(blocks)),
            "warm-ups": said(warm_ups(instance, problem.stages)),
            "paused": said(islice(paused_blocks(instance, 3, seed=number), 6)),
            "alternations": [alternate(instance, way, trace) for way in ways],
            "lists": [list_schedule(instance, setting, trace) for setting in settings],
            "rounds": [sums(np.asarray(part)) for one in rounds for part in one],
            "one at a time": sums(np.asarray(one_at_a_time(instance))),
        }
        found.append(weights(figures) | {"patterns": pattern_names(problem)})
    recorded(problems=found)
