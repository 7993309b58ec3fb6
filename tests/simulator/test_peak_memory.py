"""The compiled pass over a replay's times finds the peaks that memory over time has, to the last byte."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Plan, Problem, build_program, equal_microbatches, schedule_families, stages_from_cuts
from simulator.memory import memory_over_time
from simulator.peak_memory import byte_sizes, fullest, memory_events, peaks
from simulator.simulation import replay_compiled
from simulator.workloads.synthetic import random_chain
from tests.simulator.strategies import chain_cluster, star_cluster

SYNCHRONOUS = sorted(name for name, family in schedule_families().items() if family.flush)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """A synchronous plan: any family, replicas that split, chunks, recomputation, any communication, odd sizes."""
    name = draw(st.sampled_from(SYNCHRONOUS))
    family = schedule_families()[name]
    chunks = draw(st.integers(1, 2)) if "chunks" in family.options else 1
    ranks = draw(st.integers(1, 3))
    shares = [1 if family.lanes or chunks > 1 else draw(st.integers(1, 3)) for _ in range(ranks)]
    stages, layers = ranks * chunks, ranks * chunks + draw(st.integers(0, 3))
    begins = np.concatenate([[0], np.cumsum(shares)]).tolist()
    held = [tuple(range(begins[rank], begins[rank + 1])) for rank in range(ranks)] * chunks
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    cuts = sorted(rng.choice(np.arange(1, layers), stages - 1, replace=False).tolist())
    count = draw(st.integers(1, 5))
    batch = draw(st.integers(max(count, 3 * count), 4 * count + 3))
    cluster = draw(st.sampled_from((chain_cluster, star_cluster)))(
        begins[-1], bandwidth=draw(st.sampled_from((1e3, 1e5, 1e9)))
    )
    problem = Problem(
        random_chain(layers, rng, flop=1.0, parameters=1000),
        cluster,
        batch,
        recompute=draw(st.booleans()),
        communication=draw(
            st.sampled_from(
                family.communications or ("overlapped", "send-blocking", "both-blocking", "streaming", "free")
            )
        ),
        contention=draw(st.booleans()),
    )
    return problem, Plan("hand", name, stages_from_cuts(cuts, layers, held), equal_microbatches(batch, count))


@settings(max_examples=150)
@given(plans())
def test_peaks_are_those_of_memory_over_time(case: tuple[Problem, Plan]) -> None:
    """Every device, to the last byte; and the fullest of them is found without a look at all."""
    problem, plan = case
    costs, _, program = build_program(problem, plan)
    timeline = replay_compiled(program, contention=problem.contention)
    memory = memory_over_time(costs, timeline)
    stages = len(costs.plan.stages)
    events = memory_events(program, np.array([costs.recomputes(stage) for stage in range(stages)]))
    times = np.concatenate([timeline.start, timeline.end, [0.0], timeline.transfers.end])
    sizes = byte_sizes(costs, program.transfer_bytes)
    static = np.array([device.bytes[0, :4].sum() for device in memory])
    found = peaks(events, times, sizes, static)
    assert found.tolist() == [device.peak_bytes for device in memory]
    if (timeline.end > timeline.start).all():
        capacity = np.random.default_rng(problem.batch).choice((1e6, 2e6, 3e6), len(static))
        device, peak = fullest(events, times, sizes, static, capacity)
        assert (device, peak) == (int(np.argmax(found / capacity)), float((found)[np.argmax(found / capacity)]))
