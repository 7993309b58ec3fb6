"""Stacks: what runs a plan changes the seconds of its ops, at one place, and refuses what it cannot run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pipeplan
from hardware_profiles import GENERIC, Constant, Runs, Stack, load_cluster, load_stack
from simulator import (
    Evaluations,
    InfeasiblePlanError,
    LayerCosts,
    OpKind,
    Parallelism,
    Plan,
    PlanCosts,
    PlanFile,
    PlanFileError,
    Problem,
    Stage,
    simulate,
    stages_from_cuts,
)
from simulator.plans.lacks import plan_lacks
from simulator.workloads.language_models import Gpt, Llama

NETWORK = Llama(
    4, 1024, 8, sequence=512, vocabulary=4096, intermediate=2816, key_value_heads=4, name="llama"
).workload()


def problem_on(stack: Stack = GENERIC, **options: Any) -> Problem:
    """A small Llama on four A100."""
    return Problem(NETWORK, load_cluster("dgx-a100:1").take(4), 8, stack, precision="bf16", optimizer="adam", **options)


def divided(
    zero: Any = 0, *, degree: int = 1, stages: int = 1, among: Sequence[int] = range(4), **decided: Any
) -> Plan:
    """Blocks over stages in a row, each on as many replicas, groups of `degree`, as there are devices for among four."""
    blocks = [layer.block for layer in NETWORK.layers]
    cuts = [0, *(blocks.index(4 * one // stages + 1) for one in range(1, stages)), len(blocks)]
    each = 4 // stages
    held = [tuple(among[stage * each : (stage + 1) * each]) for stage in range(stages)]
    degrees = (degree,) * (each // degree) if degree > 1 else ()
    found = tuple(Stage(tuple(range(cuts[i], cuts[i + 1])), held[i], degrees) for i in range(stages))
    return Plan("hand", "1f1b", found, **{"microbatches": (4, 4), "zero": zero, **decided})


def cut_at(layer: int, *held: Sequence[int]) -> Plan:
    """Two stages, in turn on the devices of each where these are the same."""
    layers = range(len(NETWORK.layers))
    stages = tuple(Stage(tuple(own), tuple(on)) for own, on in zip((layers[:layer], layers[layer:]), held, strict=True))
    return Plan("hand", "1f1b" if held[0] != held[1] else "interleaved-1f1b", stages, (4, 4))


def any_stack(choose: random.Random) -> Stack:
    """A stack that runs everything, of random constants."""

    def of(low: float, high: float) -> Constant:
        return Constant(choose.uniform(low, high))

    return Stack(
        name="any",
        products=of(0.5, 3.0),
        attention=of(0.5, 3.0),
        odd_heads=of(0.0, 3.0),
        elementwise=of(0.2, 2.0),
        tensor_collectives=of(0.3, 3.0),
        replica_collectives=of(0.3, 3.0),
        block_pass=of(0.0, 3e-3),
        exposed=of(0.0, 1.0),
        stragglers=of(0.0, 0.3),
        logits=of(0.5, 3.0),
        workspace=of(0.0, 1e9),
        reserved=of(1.0, 1.5),
        context=of(0.0, 4e9),
        gradient_bytes=choose.choice([0, 2, 4]),
    )


def test_seconds_of_layers_are_times_those_of_the_device() -> None:
    """Products, attention and the rest each times their own; every block takes as much more, a gradient alone half of it."""
    stack = Stack(
        name="one",
        products=Constant(2.0),
        attention=Constant(3.0),
        elementwise=Constant(0.5),
        block_pass=Constant(1e-3),
    )
    kinds = {"linear": 2.0, "attention": 3.0}
    times = np.array([kinds.get(layer.kind, 0.5) for layer in NETWORK.layers])
    block = np.array([layer.block for layer in NETWORK.layers])
    of_device, found = LayerCosts(problem_on()), LayerCosts(problem_on(stack))
    for phase, passes in (("forward", 1.0), ("backward", 1.0), ("input_gradient", 0.5), ("weight_gradient", 0.5)):
        kernels = times * of_device.kernel_seconds(0, 2, phase)  # type: ignore[arg-type]
        assert found.kernel_seconds(0, 2, phase) == pytest.approx(kernels)  # type: ignore[arg-type]
        waits = replace(problem_on(stack), stack=replace(stack, block_pass=Constant(0.0)))
        beside = found.seconds(0, 2, phase) - LayerCosts(waits).seconds(0, 2, phase)  # type: ignore[arg-type]
        assert [beside[block == one].sum() for one in range(5)] == pytest.approx([0.0, *[passes * 1e-3] * 4])


def test_collectives_are_times_those_of_the_cluster() -> None:
    """Inside groups, and among replicas, each its own; what is exposed of units is added to the passes under which they move."""
    stack = Stack(
        name="one", tensor_collectives=Constant(3.0), replica_collectives=Constant(2.0), exposed=Constant(0.25)
    )
    groups, replicas = divided(degree=2), divided(3)
    plain, slow = (PlanCosts(problem_on(one), groups).parts(OpKind.FORWARD, 0, 0, 2) for one in (GENERIC, stack))
    assert (slow.computing, slow.tensor) == pytest.approx((plain.computing, 3.0 * plain.tensor))
    costs, generic = PlanCosts(problem_on(stack), replicas), PlanCosts(problem_on(), replicas)
    gathers, scatters = (
        sum(getattr(one, name) for one in costs.collectives(0).units) for name in ("gather", "scatter")
    )
    assert gathers == pytest.approx(2.0 * sum(one.gather or 0.0 for one in generic.collectives(0).units))
    samples = np.array([2])
    for kind, moved in ((OpKind.FORWARD, gathers), (OpKind.BACKWARD, gathers + scatters)):
        own = generic.seconds(kind, 0, 0, samples)[0]
        assert costs.seconds(kind, 0, 0, samples)[0] == pytest.approx(own + 0.25 * moved)
        assert sum(costs.parts(kind, 0, 0, 2)) == pytest.approx(costs.seconds(kind, 0, 0, samples)[0])


def test_stragglers_are_of_the_servers_that_a_plan_is_on() -> None:
    """Not of those that there are; evaluations in one cache agree with simulations, and more servers never take less."""
    stack = Stack(name="one", stragglers=Constant(0.5), block_pass=Constant(1e-3))
    problem = replace(problem_on(stack), cluster=load_cluster("dgx-a100:4"))
    plain = replace(problem, stack=replace(stack, stragglers=Constant(0.0)))
    layers, evaluate = tuple(range(len(NETWORK))), Evaluations(problem)
    seconds = []
    for devices, times in (((0, 1, 2, 3), 1.0), ((0, 1, 8, 9), 1.5), ((0, 8, 16, 24), 2.0)):
        plan = Plan("hand", "1f1b", (Stage(layers, devices),), (4, 4))
        own = PlanCosts(problem, plan).layers.kernel_seconds(0, 2, "forward")
        assert own == pytest.approx(times * LayerCosts(plain).kernel_seconds(0, 2, "forward"))
        seconds.append(simulate(problem, plan).iteration_seconds)
        evaluation = evaluate(plan)
        assert evaluation is not None
        assert evaluation.iteration_seconds == seconds[-1]
    assert seconds == sorted(seconds)
    update = [PlanCosts(one, plan).seconds(OpKind.UPDATE, 0, 0, np.array([2]))[0] for one in (plain, problem)]
    assert update[0] == update[1]


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_under_any_stack_is_one_and_above_the_bound(seed: int) -> None:
    """Random constants, divisions and ZeRO: engines agree to the bit, and `simulate` itself refuses what undercuts the bound."""
    choose = random.Random(seed)
    problem = problem_on(any_stack(choose), recompute=choose.choice(["none", "blocks", "attention"]))
    problem = replace(problem, cluster=load_cluster("dgx-a100:2"))
    stages = choose.choice([1, 2, 4])
    degree = choose.choice([one for one in (1, 2) if stages * one <= 4])
    among = choose.choice([(0, 1, 2, 3), (0, 1, 8, 9)])
    plan = divided(choose.choice([0, 1, 2, 3]), degree=degree, stages=stages, among=among)
    outcome = simulate(problem, plan)
    evaluation = Evaluations(problem)(plan)
    assert evaluation is not None
    assert evaluation.iteration_seconds == outcome.iteration_seconds
    assert (evaluation.peak_bytes, evaluation.capacity_bytes) == (
        outcome.fullest.peak_bytes,
        outcome.fullest.capacity_bytes,
    )
    assert outcome.record()["stack"] == "any"
    assert outcome.time_split()


def test_a_loss_keeps_its_logits_and_a_device_the_workspace() -> None:
    """Half of the 4 bytes per logit again, of the one sample of the micro-batch in flight; a workspace once per device."""
    plan, stack = divided(microbatches=(4, 4)), Stack(name="one", logits=Constant(1.5), workspace=Constant(2.0**30))
    own, more = (simulate(problem_on(one), plan).memory for one in (GENERIC, stack))
    assert {b.peak_bytes - a.peak_bytes for a, b in zip(own, more, strict=True)} == {2.0**30 + 2 * 512 * 4096}


def test_what_fits_is_judged_on_what_is_reserved() -> None:
    """By replays, evaluations and planners alike: what may be allocated is the device less its context, over the factor."""
    plan = divided(stages=2)
    peak = simulate(problem_on(), plan).fullest.peak_bytes
    device = replace(problem_on().cluster.devices[0], memory_bytes=1.75 * peak, reserve_bytes=0.25 * peak)  # type: ignore[type-var]
    for share, fits in ((0.99, True), (1.01, False)):
        stack = Stack(name="one", reserved=Constant(1.5), context=Constant(2.0 * peak - 1.5 * peak / share))
        problem = problem_on(stack)
        problem = replace(problem, cluster=replace(problem.cluster, devices=(device,) * 4))
        outcome, score = simulate(problem, plan), Evaluations(problem)(plan)
        assert score is not None
        assert (outcome.fits, score.fits) == (fits, fits)
        assert {one.reserved_bytes for one in outcome.memory} == {1.5 * one.peak_bytes for one in outcome.memory}
        assert (outcome.fullest.driver_bytes <= 2.0 * peak) == fits
        assert problem.rooms == (problem.room_bytes(0),) * 4 == (outcome.fullest.capacity_bytes,) * 4


def test_a_stack_that_leaves_no_room_is_refused() -> None:
    """In one line, as soon as there is a problem."""
    with pytest.raises(ValueError, match="stack 'one' takes all the memory of a100-80"):
        problem_on(Stack(name="one", workspace=Constant(64 * 2.0**30), reserved=Constant(4.0)))


def in_fp8(stack: Stack = GENERIC, **options: Any) -> Problem:
    """The same network in fp8 on four H100."""
    cluster = load_cluster("dgx-h100:1").take(4)
    return Problem(NETWORK, cluster, 8, stack, precision="fp8", optimizer="adam", **options)


def test_fp8_is_a_recipe_of_products() -> None:
    """Products of blocks take the seconds of fp8, with their casts; all else, bytes too, is as in bf16."""
    narrow, plain = in_fp8(), replace(in_fp8(), precision="bf16")
    twice = in_fp8(replace(GENERIC, casts=Constant(2.0)))
    free, cast, double, wide = (LayerCosts(one) for one in (in_fp8(no_casts()), narrow, twice, plain))
    h100, sizes = narrow.cluster.devices[0], NETWORK.input_elements()
    for phase in ("forward", "input_gradient", "weight_gradient", "backward"):
        rest = wide.kernel_seconds(0, 2, phase)  # type: ignore[arg-type]
        own = free.kernel_seconds(0, 2, phase)  # type: ignore[arg-type]
        casts = cast.kernel_seconds(0, 2, phase) - own  # type: ignore[arg-type]
        assert double.kernel_seconds(0, 2, phase) - own == pytest.approx(2.0 * casts)  # type: ignore[arg-type]
        for number, (layer, work) in enumerate(zip(NETWORK.layers, wide.works, strict=True)):
            if layer.kind != "linear" or layer.name == "head":
                assert (own[number], casts[number]) == (rest[number], 0.0)
                continue
            assert own[number] == h100.seconds(work, 2, phase, "fp8") < rest[number]  # type: ignore[arg-type]
            elements = sizes[number] if phase == "forward" else layer.output_elements * (phase != "weight_gradient")
            moved = 4.0 * 2 * elements / (h100.memory_bandwidth * h100.efficiencies["elementwise"].memory)  # type: ignore[attr-defined]
            launched = max(moved, h100.step_overhead) + h100.call_overhead  # type: ignore[attr-defined]
            assert casts[number] == pytest.approx(launched * (elements > 0))
    assert (narrow.element_bytes, narrow.state_bytes) == (plain.element_bytes, plain.state_bytes)
    assert cast.stashed_bytes.tolist() == wide.stashed_bytes.tolist()
    assert cast.launch_seconds(0, "forward").tolist() == wide.launch_seconds(0, "forward").tolist()


def no_casts() -> Stack:
    """The generic stack, whose casts take no time."""
    return replace(GENERIC, name="free", casts=Constant(0.0))


def test_operands_are_gathered_as_they_are_cast() -> None:
    """Three quarters of all bytes where tokens are divided: gathers are a byte wide, as many scatters two; else all of them."""
    for divided_tokens, share in ((True, 0.75), (False, 1.0)):
        sent = []
        for precision in ("fp8", "bf16"):
            problem = replace(in_fp8(sequence_parallel=divided_tokens), precision=precision)
            costs = LayerCosts(problem).at(Parallelism(4))
            blocks = np.array([one for one, layer in enumerate(NETWORK.layers) if layer.block])
            sent.append(costs.sent_bytes(blocks, "forward") + costs.sent_bytes(blocks, "backward"))
        assert sent[0] == pytest.approx(share * sent[1])


def test_what_is_gathered_is_half_as_wide_by_layer() -> None:
    """The input of a product that is split by columns, in a forward; the gradient of the output of one by rows, in a backward."""
    narrow, wide = (
        LayerCosts(replace(in_fp8(sequence_parallel=True), precision=one)).at(Parallelism(4))  # type: ignore[arg-type]
        for one in ("fp8", "bf16")
    )
    split = [one for one, layer in enumerate(NETWORK.layers) if layer.block and layer.kind == "linear"]
    assert {NETWORK.layers[one].split for one in split} == {"columns", "rows"}
    for one in split:
        alone, by_columns = np.array([one]), NETWORK.layers[one].split == "columns"
        for phase, gathers in (("forward", by_columns), ("backward", not by_columns)):
            moved, whole = (costs.sent_bytes(alone, phase) for costs in (narrow, wide))  # type: ignore[arg-type]
            assert moved == pytest.approx((0.5 if gathers else 1.0) * whole)


def test_fp8_needs_devices_that_have_it_and_bf16() -> None:
    """One line each: a device without it, one without what everything else is in, and a stack that is older."""
    with pytest.raises(ValueError, match="'fp8': a100-80 has no rate for it; what all devices of dgx-a100 have: "):
        replace(problem_on(), precision="fp8")
    cluster = load_cluster("dgx-h100:1").take(2)
    alone = replace(cluster.devices[0], name="alone", peak_flops={"fp8": 1e15})  # type: ignore[type-var]
    with pytest.raises(
        ValueError, match=r"'fp8': alone has no rate for bf16 beside it; what all devices of .* have: fp8$"
    ):
        Problem(NETWORK, replace(cluster, devices=(alone, alone)), 8, precision="fp8")
    with pytest.raises(ValueError, match=r"'megatron-deepspeed' has no precision fp8 \(choices: fp32, fp16, bf16\)"):
        in_fp8(load_stack("megatron-deepspeed"))


@pytest.mark.parametrize("seed", range(3))
def test_a_replay_in_fp8_is_above_the_bound(seed: int) -> None:
    """Under random constants and divisions: engines agree to the bit, and no plan undercuts the bound."""
    choose = random.Random(seed)
    stack = replace(any_stack(choose), casts=Constant(choose.uniform(0.0, 3.0)))
    problem = in_fp8(stack, sequence_parallel=choose.random() < 0.5)
    plan = divided(choose.choice([0, 1, 3]), degree=choose.choice([1, 2]), stages=choose.choice([1, 2]))
    evaluation = Evaluations(problem)(plan)
    assert evaluation is not None
    assert evaluation.iteration_seconds == simulate(problem, plan).iteration_seconds


def test_gradients_have_the_bytes_of_the_stack() -> None:
    """Of 16-bit weights where the problem says nothing; never where it does."""
    wide = replace(GENERIC, name="wide", gradient_bytes=4)
    assert (problem_on(wide).accumulated_bytes, problem_on().accumulated_bytes) == (4, 2)
    assert problem_on(wide, gradient_bytes=2).accumulated_bytes == 2


@pytest.mark.parametrize(
    ("runs", "plan", "words"),
    [
        (Runs(zero=(0, 1)), divided(3), r"ZeRO 3 \(choices: 0, 1\)"),
        (Runs(schedules=("gpipe",)), divided(stages=2), r"schedule 1f1b \(choices: gpipe\)"),
        (Runs(recompute=("blocks",)), divided(), r"recompute none \(choices: blocks\)"),
        (Runs(tensor=False), divided(degree=2), "tensor-parallel groups"),
        (Runs(pipeline=False), divided(stages=2), "pipelines of several stages"),
        (Runs(unequal=False), divided(microbatches=(5, 3)), r"micro-batches of unlike sizes \(3, 5\)"),
        (Runs(context=False), divided(degree=2, context=2), "context parallelism"),
        (Runs(cut_blocks=False), cut_at(9, range(2), range(2, 4)), "stages that end inside blocks"),
        (
            Runs(looped_alone=False),
            cut_at(20, range(4), range(4)),
            "several stages on devices that hold the whole network",
        ),
        (
            Runs(looped_once=False),
            replace(divided(stages=2), schedule="interleaved-1f1b"),
            "schedule interleaved-1f1b with one stage per device",
        ),
    ],
)
def test_a_stack_refuses_a_plan_that_it_cannot_run(runs: Runs, plan: Plan, words: str) -> None:
    """One line with the stack, the plan, what it has not, and the choices; another stack runs it."""
    stack = replace(GENERIC, name="narrow", runs=runs)
    with pytest.raises(InfeasiblePlanError, match=f"stack 'narrow' does not run plan 'hand': it has no .*{words}$"):
        simulate(problem_on(stack), plan)
    assert simulate(problem_on(), plan).iteration_seconds > 0


@pytest.mark.parametrize(
    ("runs", "options", "words"),
    [
        (Runs(precisions=("fp8",)), {}, r"stack 'narrow' has no precision bf16 \(choices: fp8\)"),
        (Runs(recompute=("some",)), {}, "stack 'narrow': no recompute policy is 'some'"),
    ],
)
def test_a_stack_refuses_a_problem_that_it_cannot_run(runs: Runs, options: dict[str, Any], words: str) -> None:
    """One line."""
    with pytest.raises(ValueError, match=words):
        problem_on(replace(GENERIC, name="narrow", runs=runs), **options)


def test_frameworks_divide_networks_between_blocks() -> None:
    """Between two blocks, and before and behind all of them, each runs a plan that it does not run otherwise."""
    blocks = [layer.block for layer in NETWORK.layers]
    for name in ("megatron-core", "megatron-deepspeed", "fsdp2-compiled", "fsdp2-eager"):
        stack = load_stack(name)
        for layer in range(1, len(blocks)):
            plan = replace(cut_at(layer, range(2), range(2, 4)), zero=stack.runs.zero[-1], recompute=("none", "none"))
            lacks = [*plan_lacks(stack.runs, problem_on(), plan)]
            assert lacks == ["stages that end inside blocks"] * (blocks[layer] == blocks[layer - 1] > 0), (name, layer)


def test_a_plan_file_names_its_stack() -> None:
    """By its name, the generic one too; a stack made in Python has no name that can be loaded."""
    asked = pipeplan.Problem("gpt2", "dgx-a100:1", batch=8, precision="bf16", stack="megatron-core")
    text = PlanFile(asked).to_json()
    assert '"stack": "megatron-core"' in text
    assert PlanFile.from_json(text).problem == asked
    assert asked.title.endswith(", megatron-core")
    assert asked.stack == load_stack("megatron-core")
    with pytest.raises(PlanFileError, match=r"\$\.problem\.stack: stack 'nobody' is not known"):
        PlanFile.from_json(text.replace("megatron-core", "nobody"))
    with pytest.raises(ValueError, match="stack 'any' was made in Python"):
        PlanFile(replace(asked, stack=any_stack(random.Random(0)))).to_json()


def test_memory_within_its_error_of_the_limit_is_told() -> None:
    """Runs like it have up to 1.072 of what is predicted: full to 97 % a plan may not fit; a reserve of 5 % refuses it."""
    error = {"stack": load_stack("megatron-core"), "precision": "bf16", "optimizer": "adam"}
    cluster = load_cluster("dgx-h100:1").take(1)
    problem = Problem(Gpt(2, 64, 4, 64, vocabulary=100).workload(), cluster, 4, **error)  # type: ignore[arg-type]
    plan = Plan("hand", "1f1b", stages_from_cuts((), len(problem.workload), [(0,)]), (4,))
    (device,) = cluster.devices
    reserved = problem.stack.reserved_bytes(device, simulate(problem, plan).memory[0].peak_bytes)

    def told(share: float, reserve: float = 0.0) -> tuple[str, ...]:
        room = replace(device, memory_bytes=reserved / share)  # type: ignore[type-var]
        held = replace(problem, cluster=replace(cluster, devices=(room,)), memory_reserve=reserve)
        return simulate(held, plan).doubts()

    assert told(0.9) == ()
    (doubt,) = told(0.97)
    assert doubt == (
        "memory within the model's error of the limit: 97 % full, 104 % at the upper end of that error (--memory-reserve keeps "
        "more free)"
    )
    (refused,) = told(0.97, 0.05)
    assert refused.startswith("the plan does not fit: GPU 0 would hold ")
    assert told(0.97, 0.02) != (refused,)
