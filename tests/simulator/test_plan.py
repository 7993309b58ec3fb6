"""Tests of `simulator.plans.plan`: problems and plans that can and cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import load_accelerator, load_cluster
from simulator import (
    CATEGORIES,
    Evaluations,
    InfeasiblePlanError,
    Layer,
    OpKind,
    Plan,
    PlanCosts,
    Problem,
    Schedule,
    ScheduleError,
    Stage,
    Workload,
    build_program,
    build_schedule,
    check_plan,
    equal_microbatches,
    recompute_phrases,
    simulate,
    to_text,
)
from simulator.plans.plan import stages_from_cuts
from tests.chains import chain
from tests.simulator.strategies import chain_cluster, star_cluster


def problem(**changes: Any) -> Problem:
    """Four layers, four devices in a row, 8 samples."""
    return replace(Problem(chain([1.0] * 4, parameters=[10] * 4), chain_cluster(4), batch=8), **changes)


def plan(stages: tuple[Stage, ...], **changes: Any) -> Plan:
    """1F1B of 4 micro-batches of 2 samples."""
    return replace(Plan("hand", "1f1b", stages, (2, 2, 2, 2)), **changes)


TWO = (Stage((0, 1), (0,)), Stage((2, 3), (1,)))


def test_a_good_plan_passes() -> None:
    """Every layer once, data flow down, devices exist, sizes sum to the batch; replicas and several stages per device too."""
    check_plan(problem(), plan(TWO))
    check_plan(problem(), plan((Stage((0, 1, 2), (0, 1, 3)), Stage((3,), (2,)))))
    looped = tuple(Stage((layer,), (layer % 2,)) for layer in range(4))
    check_plan(problem(), plan(looped, schedule="interleaved-1f1b"))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((Stage((0, 1, 2, 3), (0,)), Stage((), (1,))), "stage 1 of plan 'hand' holds no layer"),
        ((Stage((0, 1), (0,)), Stage((1, 2, 3), (1,))), "stage 1 of plan 'hand' holds layer 1, which stage 0 holds"),
        ((Stage((0, 1, 2, 3, 4), (0,)),), "holds layer 4, which does not exist"),
        ((Stage((0, 1), (0,)), Stage((3,), (1,))), r"no stage of plan 'hand' holds layer 2 \(layer3\)"),
        (
            (Stage((0, 2), (0,)), Stage((1, 3), (1,))),
            "plan 'hand' puts layer 1 in stage 1, behind its consumer 2 in stage 0",
        ),
        ((Stage((0, 1), ()), Stage((2, 3), (1,))), r"stage 0 of plan 'hand' needs devices of its own, got \(\)"),
        ((Stage((0, 1), (0, 0)), Stage((2, 3), (1,))), r"needs devices of its own, got \(0, 0\)"),
        (
            (Stage((0, 1), (0,)), Stage((2, 3), (4,))),
            r"stage 1 of plan 'hand' uses devices 4, the cluster has 0 to 3",
        ),
        ((), "no stage of plan 'hand' holds layer 0"),
    ],
)
def test_impossible_stages_are_refused(stages: tuple[Stage, ...], message: str) -> None:
    """Each rule is stated with the numbers, in one line."""
    with pytest.raises(InfeasiblePlanError, match=message) as caught:
        check_plan(problem(), plan(stages))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sizes", [(), (2, 2, 2), (8, 0), (9, -1)])
def test_sizes_that_do_not_make_the_batch_are_refused(sizes: tuple[int, ...]) -> None:
    """At least 1 sample each, and the batch together."""
    with pytest.raises(InfeasiblePlanError, match="must be at least 1 sample and sum to 8"):
        check_plan(problem(), plan(TWO, microbatches=sizes))


@pytest.mark.parametrize(
    ("stages", "changes", "message"),
    [
        # a list for each replica is needed: replicas must not be left idle without a word
        ((Stage((0, 1, 2, 3), (0, 1)),), {"replication": "round-robin"}, "round-robin"),
        # 1F1B-RR deals whole micro-batches
        (
            (Stage((0, 1, 2, 3), (0, 1)),),
            {"schedule": "1f1b-rr"},
            (
                "schedule '1f1b-rr' has 2 lists of ops of stage 0, which plan 'hand' puts on 2 devices, "
                "replication split"
            ),
        ),
        # device 1 would run the lists of both stages at the same time
        (
            (Stage((0, 1), (0, 1)), Stage((2, 3), (1, 2))),
            {},
            "device 1 of plan 'hand' holds stages that schedule '1f1b'",
        ),
        ((Stage((0, 1), (0,)), Stage((2, 3), (0,))), {}, "device 0"),
        # interleaved 1F1B on 2 devices deals stages 0 and 2 to one, 1 and 3 to the other
        (tuple(Stage((n,), (n // 2,)) for n in range(4)), {"schedule": "interleaved-1f1b"}, "device"),
        *(
            (
                TWO,
                {"schedule": name, "options": ((option, 2),), "microbatches": (4, 4)},
                f"^plan 'hand' cannot give schedule '{name}' option {option} = 2; it can: {own}$",
            )
            for name, option, own in (
                ("gpipe", "slices", "none"),
                ("2bw", "microbatches_per_minibatch", "none"),
                ("seq1f1b", "x", "slices"),
            )
        ),
        (TWO, {"schedule": "zigzag"}, "schedule 'zigzag' is unknown; choices: 1f1b"),
        (
            TWO,
            {"schedule": "seq1f1b", "options": (("slices", 2**23 + 1),), "microbatches": (4, 4)},
            "^option slices of plan 'hand' times its 2 micro-batches must be at most 16,777,216, got 8388609$",
        ),
    ],
)
def test_schedules_that_devices_and_replicas_do_not_fit_are_refused(
    stages: tuple[Stage, ...], changes: dict[str, Any], message: str
) -> None:
    """The device or stage, and the rule."""
    with pytest.raises(ValueError, match=message):
        build_program(problem(), plan(stages, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch of a Problem must be a whole number of at least 1 and at most 16,777,216, got 0"),
        ({"precision": "fp64"}, r"precision 'fp64' is unknown \(did you mean fp16\?\); choices: fp32"),
        ({"optimizer": "luck"}, "optimizer 'luck' is unknown; choices: sgd, momentum, adam"),
        ({"communication": "telepathy"}, "communication 'telepathy' is unknown; choices: overlapped"),
    ],
)
def test_problems_are_checked(changes: dict[str, Any], message: str) -> None:
    """Values and choices in one line."""
    with pytest.raises(ValueError, match=message):
        problem(**changes)


@pytest.mark.parametrize(
    ("precision", "optimizer", "element", "optimizer_bytes"),
    [
        ("fp32", "sgd", 4, 0),
        ("fp32", "momentum", 4, 4),
        ("fp32", "adam", 4, 8),
        ("fp16", "sgd", 2, 4),
        ("bf16", "adam", 2, 12),
    ],
)
def test_bytes_of_a_parameter(precision: Any, optimizer: str, element: int, optimizer_bytes: int) -> None:
    """fp32 states, and a master copy where weights are narrower: fp16 with Adam takes 2 + 2 + 12."""
    one = problem(precision=precision, optimizer=optimizer)
    assert (one.element_bytes, one.optimizer_bytes) == (element, optimizer_bytes)


def test_a_precision_is_one_that_all_devices_have() -> None:
    """A V100 has no bf16: one line with its name and what the cluster's devices have; a measured network has its own."""
    cluster = load_cluster("pipedream-b")
    with pytest.raises(ValueError, match=r"'bf16': v100-sxm2 has no rate .* of pipedream-b have: fp32, fp16$"):
        Problem(chain([1.0]), cluster, 8, precision="bf16")
    assert Problem(chain([1.0]), cluster, 8, precision="fp16").element_bytes == 2
    unlike = replace(star_cluster(2), devices=tuple(map(load_accelerator, ("v100-sxm2", "tpu-v5p"))))
    with pytest.raises(
        ValueError, match=r"'fp32': tpu-v5p has no rate for it; what all devices of star have: nothing in common$"
    ):
        Problem(chain([1.0]), unlike, 8)
    measured = Workload("w", (Layer("one", "linear", measured=((1, 1.0, 1.0),)),), (), bytes_per_element=4)
    assert Problem(measured, cluster, 8, precision="bf16").element_bytes == 4


def test_notation_is_the_papers() -> None:
    """15-1, 16 for data parallelism, straight for a stage a device."""

    def of(*counts: int) -> str:
        return plan(tuple(Stage((s,), tuple(range(n))) for s, n in enumerate(counts))).notation

    assert of(15, 1) == "15-1"
    assert of(16) == "16"
    assert of(1, 1, 1) == "straight"
    assert of(1) == "1"


@settings(max_examples=30)
@given(st.integers(1, 500), st.integers(1, 500))
def test_equal_microbatches(batch: int, count: int) -> None:
    """They sum to the batch, differ by at most one sample, the larger ones first; more than samples is refused."""
    if count > batch:
        with pytest.raises(ValueError, match=f"must be from 1 to the batch of {batch} samples, got {count}"):
            equal_microbatches(batch, count)
        return
    sizes = equal_microbatches(batch, count)
    assert (len(sizes), sum(sizes)) == (count, batch)
    assert sizes[0] - sizes[-1] <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


def test_stages_of_a_plan() -> None:
    """Contiguous layers between the cuts, with the devices given; stages per device, replicas, devices in use."""
    stages = Stage((0,), (0,)), Stage((1, 2), (1, 2)), Stage((3, 4), (3,))
    assert stages_from_cuts([1, 3], 5, [[0], [1, 2], [3]]) == stages
    looped = plan(tuple(Stage((layer,), (3 - layer % 2,)) for layer in range(4)))
    assert (looped.chunks, looped.replicas, looped.devices) == (2, (1, 1, 1, 1), (2, 3))


# ---- orders and recomputation of a plan's own ------------------------------------------------------------------------


KEEPING = chain([1.0] * 4, parameters=[10] * 4, output_elements=[8.0] * 4)
"""Four layers of 8 outputs."""


def lines_of(schedule: Schedule) -> tuple[str, ...]:
    """A schedule as an order of a plan."""
    return tuple(to_text(schedule).splitlines())


def test_stages_of_branches_send_what_leaves_them() -> None:
    """The first and a branch, then the other branch and what joins both: two outputs of 8 elements; sizes in words rise."""
    edges = ((0, 1), (0, 2), (1, 3), (2, 3))
    here = problem(workload=replace(KEEPING, edges=edges), batch=15)
    made = plan((Stage((0, 2), (0,)), Stage((1, 3), (1,))), microbatches=(8, 7))
    assert PlanCosts(here, made).boundary_bytes == (2 * 8 * here.element_bytes,)
    assert made.microbatch_words == "2 micro-batches of 7 or 8 samples"


def test_an_order_is_replayed_as_the_family_that_made_it() -> None:
    """The ops themselves, or as a pattern; seconds, memory and bytes of the family, on the reference and in evaluations."""
    here = problem(workload=KEEPING)
    for name in ("gpipe", "1f1b"):
        family = plan(TWO, schedule=name)
        order = replace(family, schedule="own", order=lines_of(build_schedule(name, 2, len(family.microbatches))))
        expected, found = simulate(here, family), simulate(here, order)
        assert found.iteration_seconds == expected.iteration_seconds
        assert [one.peak_bytes for one in found.memory] == [one.peak_bytes for one in expected.memory]
        assert found.bytes_per_sample == expected.bytes_per_sample
        evaluation = Evaluations(here)(order)
        assert evaluation is not None
        assert evaluation.iteration_seconds == expected.iteration_seconds


def test_an_order_that_no_family_makes_is_a_plan() -> None:
    """Two forwards ahead instead of all four: half of the activations."""
    here, sizes = problem(workload=KEEPING, batch=4), (1,) * 4
    peaks = []
    for order in (("(0F0)*4 (0B0)*4", "(1F0)*4 (1B0)*4"), ("0F0 0F1 (0B0 0F2)*2 0B2 0B3", "(1F0 1B0)*4")):
        outcome = simulate(here, plan(TWO, order=order, microbatches=sizes, schedule="own"))
        peaks.append(outcome.memory[0].peak_parts["activations"])
    assert peaks[0] > 0.0
    assert peaks[1] == peaks[0] / 2


@pytest.mark.parametrize(
    ("order", "error", "message"),
    [
        (("0F0 0B0",), ScheduleError, "stage 1 has no op on any device"),
        (
            ("0F0 0B0", "1F0 1B0", "2F0 2B0"),
            ScheduleError,
            "device 2, position 0: op 2F0 is no op of a schedule of 2 stages",
        ),
        (("0F0 0B0", "1F0 1F0 1B0"), ScheduleError, "device 1, position 1: op 1F0 is doubled"),
        (
            ("0F0 0B0", "1F0 1B0 0F1"),
            ScheduleError,
            "device 1, position 2: op 0F1 is one too many, stage 0 has 1 micro-batches",
        ),
        (
            ("0F0 0B0 0U0", "1F0 1B0 1U0"),
            InfeasiblePlanError,
            (
                "device 0, position 2: the order of plan 'hand' is of one mini-batch, which its update ends: "
                "it has no updates of its own"
            ),
        ),
        (("0F0 0X0", "1F0"), ScheduleError, "row 1, column 2"),
        (("0F0 0B0", "1B0 1F0"), ScheduleError, r"device 1, position 0: op 1B0 waits for 1F0 \(device 1, position 1\)"),
    ],
)
def test_orders_that_cannot_be_replayed_are_refused(
    order: tuple[str, ...], error: type[Exception], message: str
) -> None:
    """The rule and what was found."""
    with pytest.raises(error, match=message):
        simulate(problem(), plan(TWO, order=order, microbatches=(problem().batch,), schedule="own"))


def test_each_stage_recomputes_as_the_plan_says() -> None:
    """The first stage alone: its backward takes a forward more, and it keeps nothing; the second as before."""
    here, own = problem(workload=KEEPING), plan(TWO, recompute=(True, False))
    stored, outcome = simulate(here, plan(TWO)), simulate(here, own)
    forward, *backward = (
        [one.timeline.end[row] - one.timeline.start[row] for row in np.flatnonzero(one.timeline.kind == kind)]
        for one, kind in ((stored, OpKind.FORWARD), (stored, OpKind.BACKWARD), (outcome, OpKind.BACKWARD))
    )
    halves = len(forward) // 2
    assert backward[1][:halves] == pytest.approx(np.add(backward[0], forward)[:halves].tolist())
    assert backward[1][halves:] == pytest.approx(backward[0][halves:])
    assert outcome.memory[0].bytes[:, CATEGORIES.index("activations")].max() == 0.0
    assert outcome.memory[1].bytes[:, CATEGORIES.index("activations")].max() > 0.0
    found = Evaluations(here)(own)
    assert found is not None
    assert (found.iteration_seconds, found.peak_bytes) == (outcome.iteration_seconds, outcome.fullest.peak_bytes)
    with pytest.raises(InfeasiblePlanError, match=r"^plan 'hand' says of 1 stages whether they recompute, and has 2$"):
        simulate(here, plan(TWO, recompute=(True,)))


def test_a_batch_of_numpy_is_a_whole_number() -> None:
    """It shows itself, and is the same problem."""
    own = Problem(chain([1.0, 1.0]), chain_cluster(1), 1)
    counted = Problem(own.workload, own.cluster, np.int64(1))  # type: ignore[arg-type]
    assert (repr(counted), type(counted.batch)) == (repr(own), int)


def test_a_problem_shows_every_option_that_is_not_the_default() -> None:
    """The precision and the optimizer always, the others by name and value, switches by name alone; none that is the default."""
    own = Problem(chain([1.0, 1.0]), chain_cluster(1), 1)
    changes = {
        "recompute": "whole",
        "contention": False,
        "overlap": 0.5,
        "sequence_parallel": True,
        "gradient_bytes": 4,
    }
    words = ["recompute whole", "no contention", "overlap 0.5", "sequence parallel", "gradient bytes 4"]
    assert repr(own).endswith(f", {own.precision}, {own.optimizer})")
    for (name, value), word in zip(changes.items(), words, strict=True):
        assert repr(replace(own, **{name: value})) == f"{repr(own)[:-1]}, {word})"  # type: ignore[arg-type]


def test_what_stages_recompute_is_told_with_the_blocks() -> None:
    """The policy, and of how many blocks of the stage where not of all."""
    workload = chain([1.0] * 6)
    blocks = tuple(replace(one, block=1 + number // 2) for number, one in enumerate(workload.layers))
    asked = problem(workload=replace(workload, layers=blocks))
    stages = tuple(Stage(layers, (device,)) for device, layers in enumerate(((0, 1, 2, 3), (4,), (5,))))
    told = Plan("hand", "1f1b", stages, (1,), recompute=("blocks", "between-products", "none"))
    assert recompute_phrases(asked, told) == ("blocks", "between-products", "none")
    assert recompute_phrases(asked, replace(told, recomputed_blocks=(1, 1, 0))) == (
        "1 of 2 blocks",
        "between-products of 1 of 1 blocks",
        "none",
    )


@pytest.mark.parametrize(("options", "slices"), [((), 1), ((("slices", 4),), 4), ((("slices", "thin"),), 1)])
def test_slices_are_those_that_the_schedule_counts(options: tuple[tuple[str, Any], ...], slices: int) -> None:
    """One of each sequence where nothing is said, or a schedule of another package means something else by the word."""
    assert Plan("hand", "mine", (Stage((0,), (0,)),), (1,), options=options).slices == slices
