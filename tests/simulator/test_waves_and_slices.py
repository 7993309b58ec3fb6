"""Rules of groups of micro-batches, waves over the devices and slices of sequences: closed forms, peaks, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hardware_profiles import load_cluster
from simulator import (
    InfeasiblePlanError,
    OpKind,
    OpSeconds,
    Plan,
    Problem,
    Stage,
    Workload,
    build_schedule,
    check_schedule,
    check_slices,
    from_text,
    replay_schedule,
    simulate,
    stages_from_cuts,
    to_text,
    workload_from_spec,
)
from simulator.costs.plan_costs import PlanCosts
from simulator.memory.device_memory import CATEGORIES
from simulator.workloads.language_models import Gpt, Llama
from simulator.workloads.sequence_slices import context_part, slice_of
from tests.chains import kept_bytes, measured_chain, random_chain
from tests.simulator.strategies import bits, star_cluster, timeline_of

# ---- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "v", "m", "group"), [(4, 2, 16, 8), (4, 3, 12, 6), (2, 2, 6, 3), (4, 2, 13, 9), (3, 3, 13, 5)]
)
def test_groups_of_more_micro_batches_take_as_long_where_transfers_are_free(p: int, v: int, m: int, group: int) -> None:
    """mv(F+B) + (p-1)(F+B), whatever the last group has; device d holds 2(p-1-d) + (v-1)g + 1 micro-batches of chunks."""
    timeline = timeline_of(
        build_schedule("interleaved-1f1b", p * v, m, chunks=v, microbatch_group_size=group), 1.0, 2.0
    )
    assert timeline.makespan_seconds == 3 * (m * v + p - 1)
    assert timeline.peak_in_flight().tolist() == [2 * (p - 1 - d) + (v - 1) * group + 1 for d in range(p)]


def order_of_megatron(p: int, v: int, m: int, group: int) -> list[list[str]] | None:
    """The ops of each rank by the rules of Megatron-Core's `schedules.py` (d98e8a64, August 2026); None where it refuses to run.

    Its table lists the virtual micro-batches group by group; a backward takes the chunks of it in the other order; a rank warms
    up with 2 (p - 1 - rank) + (v - 1) group forwards, at most all.
    """
    if not p <= group <= m or 0 < m % group < p:
        return None
    groups = [range(first, min(first + group, m)) for first in range(0, m, group)]
    table = [(chunk, number) for held in groups for chunk in range(v) for number in held]
    ranks = []
    for rank in range(p):
        forwards = [f"{chunk * p + rank}F{number}" for chunk, number in table]
        backwards = [f"{(v - 1 - chunk) * p + rank}B{number}" for chunk, number in table]
        first = min(2 * (p - 1 - rank) + (v - 1) * group, m * v)
        pairs = zip(forwards[first:], backwards, strict=False)
        ranks.append([*forwards[:first], *(op for pair in pairs for op in pair), *backwards[m * v - first :]])
    return ranks


@pytest.mark.parametrize(("p", "v"), [(2, 2), (3, 2), (4, 3)])
def test_groups_are_those_of_megatron(p: int, v: int) -> None:
    """Op by op, of each count of micro-batches and size of groups; what it refuses is refused, but for larger groups than there
    are micro-batches, which are all of them; by default the least group that it runs."""
    for m in range(p, 3 * p + 2):
        least = None
        for group in range(1, m + 1):
            wanted = order_of_megatron(p, v, m, group)
            if wanted is None:
                with pytest.raises(
                    ValueError, match=f"at least one per device, {p} here, got groups of {group} of {m}"
                ):
                    build_schedule("interleaved-1f1b", p * v, m, chunks=v, microbatch_group_size=group)
                continue
            built = build_schedule("interleaved-1f1b", p * v, m, chunks=v, microbatch_group_size=group)
            assert [list(map(str, ops)) for ops in built.lists()] == wanted
            least = least or wanted
        assert [list(map(str, ops)) for ops in build_schedule("interleaved-1f1b", p * v, m, chunks=v).lists()] == least


def test_a_group_is_no_larger_than_the_stream() -> None:
    """More than there are is all of them; a message names the least group that may be."""
    for name in ("interleaved-1f1b", "interleaved-zb"):
        with pytest.raises(ValueError, match=r"got groups of 5 of 9 micro-batches; the least that may be: 9$"):
            build_schedule(name, 10, 9, chunks=2, microbatch_group_size=5)
        whole, most = (build_schedule(name, 4, 6, chunks=2, microbatch_group_size=size) for size in (6, 100))
        assert to_text(whole) == to_text(most)


# ---- waves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waves", [1, 2])
@pytest.mark.parametrize("p", [1, 4])
def test_hanayo_takes_its_closed_forms(p: int, waves: int) -> None:
    """2(2wm + P-1)F for B = F and any multiple of P; 2wP(F+B) + 2(P-1)B for P micro-batches; P of all stages held at most."""
    for units in (1, 3):
        schedule = build_schedule("hanayo", 2 * waves * p, units * p, chunks=2 * waves)
        timeline = timeline_of(schedule, 1.0, 1.0)
        assert timeline.makespan_seconds == 2 * (2 * waves * units * p + p - 1)
        assert timeline.peak_in_flight().max() == 2 * waves * p
        if units == 1:
            assert timeline_of(schedule, 1.0, 2.0).makespan_seconds == 6 * waves * p + 4 * (p - 1)


def test_stages_of_waves_go_back_and_forth() -> None:
    """Two waves over three devices: the last stage is on device 0 again, as the first."""
    schedule = build_schedule("hanayo", 12, 4, chunks=4)
    assert [holders for (holders,) in schedule.holders()] == [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]


@pytest.mark.parametrize(
    ("stages", "chunks", "message"),
    [
        (8, 3, "even number of chunks, got 3"),
        (8, 0, "even number of chunks, got 0"),
        (6, 4, "got 6 stages and 4 chunks"),
    ],
)
def test_impossible_waves_are_refused(stages: int, chunks: int, message: str) -> None:
    """Two chunks a wave, and as many on every device."""
    with pytest.raises(ValueError, match=message):
        build_schedule("hanayo", stages, 4, chunks=chunks)


# ---- slices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "k", "m"), [(1, 3, 2), (4, 4, 2), (4, 1, 8), (3, 2, 9)])
def test_equal_slices_take_their_closed_form(p: int, k: int, m: int) -> None:
    """(mk + p-1)(F+B), as 1F1B of the slices; stage s holds p-s + k-1 of them, of the mk there are."""
    schedule = build_schedule("seq1f1b", p, m, slices=k)
    check_schedule(schedule)
    for forward, backward in ((1.0, 2.0), (2.0, 1.0)):
        timeline = timeline_of(schedule, forward, backward)
        assert timeline.makespan_seconds == (m * k + p - 1) * (forward + backward)
        assert timeline.peak_in_flight().tolist() == [min(p - s + k - 1, m * k) for s in range(p)]


def test_a_slice_needs_the_slices_before_it_and_its_gradient_those_behind_it() -> None:
    """On every stage forwards of a micro-batch are in the order of its slices, backwards in the reverse order."""
    for ops in build_schedule("seq1f1b", 3, 5, slices=4).lists():
        for number in range(5):
            own = [(op.kind, op.microbatch % 4) for op in ops if op.microbatch // 4 == number]
            assert [one for kind, one in own if kind is OpKind.FORWARD] == [0, 1, 2, 3]
            assert [one for kind, one in own if kind is OpKind.BACKWARD] == [3, 2, 1, 0]


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_later_slices_take_longer_under_causal_attention(engine: Any) -> None:
    """One stage: the sum of all slices. Two: each op as long as its slice, on both engines."""
    shares = (0.5, 1.0, 1.5)
    seconds = OpSeconds(2.0, 4.0, slice_seconds=shares)
    one = replay_schedule(build_schedule("seq1f1b", 1, 2, slices=3), seconds, engine=engine).timeline
    assert one.makespan_seconds == 2 * 3 * (2.0 + 4.0)
    two = replay_schedule(build_schedule("seq1f1b", 2, 2, slices=3), seconds, engine=engine).timeline
    own = np.where(two.kind == OpKind.FORWARD, 2.0, 4.0) * np.array(shares)[two.microbatch % 3]
    assert np.allclose(two.end - two.start, own, rtol=1e-12)
    # slices of 1, 2 and 3 s forward and of 2, 4 and 6 s backward, the last slice's first:
    # F0 F1 F2 B2 F3 B1 F4 B0 F5 B5 B4 B3 on stage 1, whose gradients stage 0 has at 15, 20, 27, 39, 43 and 45
    assert two.start[two.stage == 1].tolist() == [1, 3, 6, 9, 15, 16, 23, 25, 30, 33, 39, 43]
    assert two.makespan_seconds == 51.0


@pytest.mark.parametrize(
    ("slices", "shares", "message"),
    [
        (0, (), "slices of a sequence must be at least 1, got 0"),
        (4, (1.0, 2.0, 3.0), "seconds of 3 slices need whole sequences, schedule 'seq1f1b' has 8 slices"),
        (2, (1.0, -1.0), r"slice seconds must be numbers from 0 to 1e\+300, got \[1.0, -1.0\]"),
    ],
)
def test_impossible_slices_are_refused(slices: int, shares: tuple[float, ...], message: str) -> None:
    """At least one, whole sequences, no negative seconds."""
    with pytest.raises(ValueError, match=message):
        replay_schedule(build_schedule("seq1f1b", 2, 2, slices=slices), OpSeconds(1.0, 2.0, slice_seconds=shares))


def test_slices_of_unlike_seconds_do_not_stream() -> None:
    """A device that sends while it computes is refused."""
    schedule = build_schedule("seq1f1b", 2, 2, slices=2)
    with pytest.raises(ValueError, match="neither stream, nor overlap, nor share a device"):
        replay_schedule(schedule, OpSeconds(1.0, 2.0, slice_seconds=(1.0, 2.0)), communication="streaming")
    overlapping = from_text("0F0 0F1 0B0 0B1\n1F0 (1F1;1B0)OVERLAP_F_B 1B1")
    for other, mode in ((build_schedule("fbp-as", 2, 2), "free"), (overlapping, "overlapped")):
        with pytest.raises(ValueError, match="neither stream, nor overlap, nor share a device"):
            replay_schedule(other, OpSeconds(1.0, 2.0, slice_seconds=(1.0, 2.0)), communication=mode)  # type: ignore[arg-type]


def test_schedules_that_know_no_slices_take_seconds_of_any_number() -> None:
    """A family without the option, and lists of a file; one with it has as many as it is asked for."""
    seconds = OpSeconds(1.0, 2.0, slice_seconds=(1.0, 2.0))
    for name in ("1f1b", "lists"):
        check_slices(name, None, seconds)
    check_slices("seq1f1b", 2, seconds)
    with pytest.raises(ValueError, match=r"^seconds of 2 slices, schedule 'seq1f1b' has 1 per sequence$"):
        check_slices("seq1f1b", None, seconds)


# ---- plans -----------------------------------------------------------------------------------------------------------


def plan_of(name: str, held: Sequence[int], **options: object) -> tuple[Problem, Plan]:
    """A plan of two layers a stage on these devices, with options of its schedule."""
    layers = 2 * len(held)
    problem = Problem(random_chain(layers, np.random.default_rng(1), flop=1.0), star_cluster(max(held) + 1), 8)
    stages = stages_from_cuts(range(2, layers, 2), layers, [(device,) for device in held])
    return problem, Plan("hand", name, stages, (1,) * 8, options=tuple(options.items()))


def test_a_plan_gives_the_size_of_its_groups() -> None:
    """The order is the family's for that size."""
    problem, plan = plan_of("interleaved-1f1b", (0, 1, 0, 1), microbatch_group_size=4)
    ours = build_schedule("interleaved-1f1b", 4, 8, chunks=2, microbatch_group_size=4)
    assert to_text(simulate(problem, plan).schedule) == to_text(ours)


def sliced_plan(slices: int, **changes: Any) -> tuple[Problem, Plan]:
    """Two blocks of a language model on two GPUs, two micro-batches of two sequences of 64 tokens."""
    model = Gpt(2, 32, 4, 64, vocabulary=100)
    problem = Problem(model.workload(), load_cluster("pipedream-b:1"), 4, **changes)
    layers = len(problem.workload)
    stages = stages_from_cuts((layers // 2,), layers, [(0,), (1,)])
    return problem, Plan("hand", "seq1f1b", stages, (2, 2), options=(("slices", slices),))


def test_one_slice_is_the_whole_sequence() -> None:
    """A plan of one slice is 1F1B, to the bit."""
    problem, plan = sliced_plan(1)
    one, whole = simulate(problem, plan), simulate(problem, replace(plan, schedule="1f1b", options=()))
    assert one.iteration_seconds == whole.iteration_seconds
    assert [memory.peak_bytes for memory in one.memory] == [memory.peak_bytes for memory in whole.memory]


@pytest.mark.parametrize(("slices", "recompute"), [(2, "none"), (4, "none"), (3, "attention")])
def test_plans_of_slices_replay_alike(slices: int, recompute: Any) -> None:
    """Both engines to the bit, times and memory; later slices take longer and keep more, transfers are parts of whole ones."""
    problem, plan = sliced_plan(slices, recompute=recompute)
    outcome, twin = (simulate(problem, plan, engine=engine) for engine in ("simpy", "compiled"))
    assert bits(outcome.timeline.start, twin.timeline.start)
    assert bits(outcome.timeline.end, twin.timeline.end)
    assert [memory.peak_bytes for memory in outcome.memory] == [memory.peak_bytes for memory in twin.memory]
    assert all((memory.bytes == np.ceil(memory.bytes)).all() for memory in outcome.memory)
    timeline = outcome.timeline
    if slices == 3:  # of 64 tokens: a part of a tensor is no whole number of bytes, its buffer is
        assert (timeline.transfers.size_bytes % 1 > 0).all()
        assert outcome.memory[0].bytes[:, -1].max() == np.ceil(timeline.transfers.size_bytes).max()
    forwards = (timeline.kind == OpKind.FORWARD) & (timeline.stage == 0)
    seconds = (timeline.end - timeline.start)[forwards & (timeline.microbatch < slices)]
    assert (np.diff(seconds) > 0).all()
    costs = PlanCosts(problem, plan)
    kept = [costs.of_slice(number).stash(0).kept for number in range(slices)]
    assert kept == sorted(kept)
    assert (len(set(kept)) == 1) == (recompute == "attention")
    assert sum(kept) == pytest.approx(costs.stash(0).kept, abs=slices)
    assert {*timeline.transfers.size_bytes.tolist()} == {costs.boundary_bytes[0] * 2 / slices}


def test_memory_of_slices_by_hand() -> None:
    """The last stage holds all slices of a micro-batch and one more at most, from the largest of the first to the first again."""
    problem, plan = sliced_plan(4)
    outcome = simulate(problem, plan)
    costs = PlanCosts(problem, plan)
    kept = [2 * costs.of_slice(number).stash(1).kept for number in range(4)]
    activations = outcome.memory[1].bytes[:, CATEGORIES.index("activations")]
    assert activations.max() == sum(kept)
    assert activations[-1] == 0


def test_slices_do_together_what_whole_sequences_do() -> None:
    """FLOP and kept elements of all slices of a sequence sum to its own; the last slice has most of the scores."""
    workload = Gpt(1, 32, 4, 64, vocabulary=100).workload()
    parts = [slice_of(workload, number, 4) for number in range(4)]
    assert sum(part.flop() for part in parts) == pytest.approx(workload.flop(), rel=1e-12)
    index = next(number for number, layer in enumerate(workload.layers) if layer.kind == "attention")
    shares = [part.layers[index].flop / workload.layers[index].flop for part in parts]
    assert shares == [1 / 16, 3 / 16, 5 / 16, 7 / 16]
    for number, layer in enumerate(workload.layers):
        kept = kept_bytes([part.layers[number] for part in parts], 2)
        assert kept == pytest.approx(kept_bytes([layer], 2))


def test_a_window_evens_slices_and_unevens_parts_of_a_context() -> None:
    """A window of half of the tokens: quarters have 1, 3, 4, 4 twelfths of the pairs, and keep a quarter of what is kept of each
    query; of two parts of a context the one of the middle has 7 twelfths.
    """
    workload = Llama(1, 8, 2, 16, 32, intermediate=16, window=8).workload()
    (place,) = (place for place, layer in enumerate(workload.layers) if layer.kind == "attention")
    whole = workload.layers[place]
    parts = [slice_of(workload, number, 4).layers[place] for number in range(4)]
    assert [one.flop / whole.flop for one in parts] == pytest.approx([1 / 12, 3 / 12, 4 / 12, 4 / 12])
    assert {kept_bytes([one], 2) for one in parts} == {kept_bytes([whole], 2) / 4}
    part = context_part(workload, 2).layers[place]
    assert part.flop / whole.flop == pytest.approx(7 / 12)
    assert kept_bytes([part], 2) == kept_bytes([whole], 2) / 2


@pytest.mark.parametrize(
    ("workload", "slices", "reason"),
    [
        ("vgg16", 2, "its layer '.*' .convolution. is no causal attention, and mixes tokens"),
        ("bert-base", 2, "its layer 'block1.attention' .attention. is no causal attention"),
        ("chain:4", 2, "it has no causal attention"),
        (measured_chain([1.0], [2.0]), 2, "of layer 'layer1' it is measured what whole samples take"),
        ("gpt2", 2048, "has no slices of less than a token: at most 1024, got 2048"),
    ],
)
def test_networks_without_slices_are_refused(workload: str | Workload, slices: int, reason: str) -> None:
    """Images, encoders, networks of no tokens, more slices than tokens: one line."""
    network = workload_from_spec(workload) if isinstance(workload, str) else workload
    problem = Problem(network, star_cluster(1), 2)
    layers = tuple(range(len(problem.workload)))
    plan = Plan("hand", "seq1f1b", (Stage(layers, (0,)),), (2,), options=(("slices", slices),))
    with pytest.raises(InfeasiblePlanError, match=f"^plan 'hand' cannot slice sequences: .*{reason}[^\n]*$"):
        simulate(problem, plan)


def test_stages_of_slices_keep_what_later_slices_read() -> None:
    """Recomputation of all of a stage, or of blocks, is refused, and options that are no number of at least 1."""
    for word in ("blocks", "whole"):
        with pytest.raises(
            InfeasiblePlanError,
            match=(
                "plan 'hand' slices sequences: stage 0 cannot run all of itself, or blocks, again, as later "
                "slices read what earlier ones keep"
            ),
        ):
            simulate(*sliced_plan(2, recompute=word))
    problem, plan = sliced_plan(2)
    for wrong in (0, "two"):
        with pytest.raises(
            InfeasiblePlanError,
            match=f"schedule 'seq1f1b': option slices must be a whole number of at least 1, got {wrong!r}",
        ):
            simulate(problem, replace(plan, options=(("slices", wrong),)))
