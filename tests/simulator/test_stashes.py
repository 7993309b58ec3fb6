"""What stages keep and make again, against the formulas of Korthikanti et al. 2022 and a walk over parts one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from hardware_profiles import load_cluster
from simulator import (
    BY_BLOCK,
    CATEGORIES,
    ENGINES,
    Evaluations,
    Experts,
    InfeasiblePlanError,
    LayerCosts,
    Parallelism,
    Plan,
    PlanCosts,
    Problem,
    Recompute,
    Stage,
    gradient_in_work,
    simulate,
    stage_stash,
)
from simulator.costs.stashes import _losses, kept_by_part, kept_bytes, largest_parts
from simulator.workloads.language_models import Gpt, Llama
from simulator.workloads.layers import Layer, Workload
from tests.chains import chain
from tests.simulator.strategies import chain_cluster

SEQUENCE, HIDDEN, HEADS, BLOCKS = 64, 96, 12, 3


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("degree", [1, 4])
def test_full_recomputation_keeps_what_korthikanti_counts(degree: int, sequence_parallel: bool) -> None:
    """2·s·h bytes a block, divided with sequence parallelism alone, and the activations of one block; attention its scores."""
    workload = Gpt(BLOCKS, HIDDEN, HEADS, SEQUENCE, 100).workload()
    problem = Problem(workload, chain_cluster(4), 1, precision="fp16", sequence_parallel=sequence_parallel)
    costs = LayerCosts(problem).at(Parallelism(degree))
    inside = [number for number, layer in enumerate(workload.layers) if layer.block]
    tokens, scores = degree if sequence_parallel else 1, 5 * HEADS * SEQUENCE**2 // degree
    block = SEQUENCE * HIDDEN * 10 // tokens + SEQUENCE * HIDDEN * 24 // degree + scores
    received = 2 * SEQUENCE * HIDDEN // tokens
    kept, made, *_ = stage_stash(costs, inside, "blocks")
    assert (kept, made) == (BLOCKS * received, block)
    kept, made, *_ = stage_stash(costs, inside, "attention")
    assert (kept, made) == (BLOCKS * (block - scores), scores)
    kept, made, *_ = stage_stash(costs, inside, "whole", received)
    assert (kept, made) == (received, BLOCKS * block)
    kept, made, *_ = stage_stash(costs, inside, "between-products")
    products = SEQUENCE * HIDDEN * 14 // degree + SEQUENCE * HIDDEN * 2 // tokens  # no MLP down
    read = SEQUENCE * HIDDEN * 14 // degree  # by scores and activation
    assert (kept, made) == (BLOCKS * (received + products), block - read)
    again = costs.runs_again("between-products")
    assert not any(again[n] for n in inside if workload.layers[n].parameters and workload.layers[n].kind == "linear")
    assert all(again[n] for n in inside if workload.layers[n].kind in ("attention", "normalization", "activation"))
    every = range(len(workload))
    outside = costs.stashed_bytes.sum() - costs.stashed_bytes[inside].sum()
    loss = 4 * 100 * SEQUENCE // degree  # gone before a block is made again, but where all are made first
    assert stage_stash(costs, every, "blocks")[:2] == (BLOCKS * received + outside, block - loss)
    assert stage_stash(costs, every, "blocks", at_once=True).made == BLOCKS * block
    assert stage_stash(costs, every, "whole", received).made == BLOCKS * block + outside


@pytest.mark.parametrize(
    ("options", "shares", "columns"),
    [
        ({}, {"qkv": 0.2, "projection": 1.0, "mlp_up": 0.5, "mlp_down": 0.0}, 128 + 256),
        ({"precision": "fp8"}, {"qkv": 0.0, "projection": 0.0, "mlp_up": 0.0, "mlp_down": 0.0}, 160 + 96 + 512),
        (
            {"experts": 4},
            {"qkv": 0.2, "projection": 1.0, "router": 1.0, "experts.mlp_up": 1.0, "shared.mlp_up": 0.5},
            None,
        ),
    ],
)
def test_every_second_product_of_a_block_is_kept(
    options: dict[str, Any], shares: dict[str, float], columns: int | None
) -> None:
    """torchtitan counts queries (96 columns), keys, values (32 each), the projection, gate, up (256 each), down, no experts: it
    keeps every second one, all of 8 bits, and attention with the logarithm of each row's sum.

    What nothing needs afterwards is not kept, as the output of the last product.
    """
    experts = Experts(options["experts"], 2, 64, shared=128) if "experts" in options else None
    model = Llama(2, HIDDEN, HEADS, SEQUENCE, 100, key_value_heads=4, intermediate=256, experts=experts)
    precision = options.get("precision", "bf16")
    problem = Problem(model.workload(), load_cluster("dgx-h100:1"), 1, precision=precision)
    costs, layers = LayerCosts(problem), problem.workload.layers
    block = {layer.name.partition(".")[2]: number for number, layer in enumerate(layers) if layer.block == 1}
    again = costs.runs_again("every-second-product")
    assert {name: again[block[name]] for name in shares} == pytest.approx(shares)
    assert (again[block["attention"]], again[block["norm1"]], again[0]) == (0.0, 1.0, 0.0)
    one = np.array([block["qkv"], block["projection"]])
    seconds = costs.seconds(0, 1, "forward")[one] @ again[one]
    assert costs.stage_seconds(0, one, 1, "forward", again="every-second-product") == pytest.approx(seconds)
    if columns is not None:
        kept = stage_stash(costs, list(block.values()), "every-second-product").kept
        assert kept == SEQUENCE * (2 * (HIDDEN + HIDDEN + columns) + 4 * HEADS)


def network(rng: np.random.Generator) -> Workload:
    """Up to nine layers with edges at random, some in blocks of some layers, whose tensors are of whole bytes."""
    count = int(rng.integers(2, 10))
    runs = np.cumsum(rng.random(count) < 0.5)
    blocks = runs * (rng.random(count + 1) < 0.7)[runs]
    layers = [
        Layer(
            f"layer{n}",
            ("linear", "attention")[int(rng.integers(2))],
            1e6,
            int(rng.integers(2)) * 10,
            float(rng.integers(1, 9)),
            float(rng.integers(1, 30)),
            block=int(number),
        )
        for n, number in enumerate(blocks)
    ]
    layers[0] = replace(layers[0], kind="attention")
    edges = [(n - 1, n) for n in range(1, count)]
    edges += [(int(rng.integers(n - 1)), n) for n in range(2, count) if rng.random() < 0.4]
    return Workload("random", tuple(layers), tuple(sorted(set(edges))))


def test_what_losses_keep_is_of_the_layers_that_a_stage_has() -> None:
    """Of a loss in front of the range nothing."""
    kinds = ["linear", "loss", "linear", "loss"]
    layers = [Layer(kind + str(n), kind, 1e6, 0, 1.0, 2.0 + n) for n, kind in enumerate(kinds)]  # type: ignore[arg-type]
    edges = ((0, 1), (0, 2), (2, 3))
    costs = LayerCosts(Problem(Workload("two losses", tuple(layers), edges), chain_cluster(1), 1))
    kept = costs.loss_bytes
    assert (kept > 0).tolist() == [kind == "loss" for kind in kinds]
    for begin, end in combinations(range(5), 2):
        assert _losses(costs, "none")[begin, end] == kept[begin:end].sum()
        # what a loss keeps is there before a part is made again
        assert largest_parts(costs, "blocks")[begin, end] == stage_stash(costs, range(begin, end), "blocks").made


def walked(costs: LayerCosts, held: range, word: Recompute, op: str) -> tuple[float, float, float]:
    """Bytes before a backward (B) or an input gradient (I), the most while it runs its parts, last to first, and behind it."""
    layers, edges = costs.problem.workload.layers, costs.problem.workload.edges
    parts: dict[int, list[int]] = {}
    before, left = 0.0, 0.0
    for n in held:
        number = {"blocks": layers[n].block, "attention": (layers[n].kind == "attention") * (n + 1)}[word]
        if number:
            parts.setdefault(number, []).append(n)
        else:
            before, left = before + costs.stashed_bytes[n], left + costs.weight_stashed_bytes[n]
    for part in parts.values():
        if word == "blocks":
            read = {producer for producer, consumer in edges if consumer in part and producer not in part}
            before += sum(4.0 * layers[producer].output_elements for producer in read)
        else:
            before += costs.stashed_bytes[part[0]] - costs.made_bytes(word)[part[0]]
            left += costs.weight_stashed_bytes[part[0]]
    most = now = before
    for _, part in sorted(parts.items(), reverse=True):
        now += costs.made_bytes(word)[part].sum()
        most = max(most, now)
        now -= costs.made_bytes(word)[part].sum()
        if op == "I" and word == "blocks":
            now += costs.weight_stashed_bytes[part].sum()
    return before, most, left + now - before if op == "I" else 0.0


@pytest.mark.parametrize("seed", range(15))
def test_a_backward_holds_one_part_and_an_input_gradient_leaves_what_weights_need(seed: int) -> None:
    """As a walk over the parts has it; before, within and behind the op, whatever layers a stage has."""
    rng = np.random.default_rng(seed)
    costs = LayerCosts(Problem(network(rng), chain_cluster(1), 1))
    begin, end = sorted(rng.choice(len(costs.problem.workload) + 1, 2, replace=False).tolist())
    for word in ("attention", "blocks"):
        stash = stage_stash(costs, range(begin, end), word)
        for op, made, behind in (
            ("B", stash.made, 0.0),
            ("I", stash.made_for_input, stash.kept_longer + stash.made_longer),
        ):
            assert walked(costs, range(begin, end), word, op) == (stash.kept, stash.kept + made, behind)
        at_once = stage_stash(costs, range(begin, end), word, at_once=True)
        assert at_once.made == at_once.made_for_input == costs.made_bytes(word)[begin:end].sum()
        assert largest_parts(costs, word)[begin, end] == stash.made
        parts = kept_by_part(costs, range(begin, end), word)
        assert [np.ceil(sum(one.values())) for one in parts] == [stash.kept, stash.kept_longer]
        assert kept_bytes(costs, word)[begin:end].sum() <= stash.kept
    whole = stage_stash(costs, range(len(costs.problem.workload)), "blocks")
    assert kept_bytes(costs, "blocks").sum() == whole.kept


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("policy", BY_BLOCK)
def test_blocks_that_run_again_and_those_that_do_not_stash_as_two_stages_would(policy: Recompute, seed: int) -> None:
    """The first blocks as a stage that recomputes all, the others as one that keeps all; by part, too."""
    rng = np.random.default_rng(seed)
    costs = LayerCosts(Problem(network(rng), chain_cluster(1), 1))
    begin, end = sorted(rng.choice(len(costs.problem.workload) + 1, 2, replace=False).tolist())
    blocks = costs.parts(policy)[begin:end]
    numbers = np.unique(blocks[blocks > 0])
    for count in range(1, len(numbers) + 1):
        cut = end if count == len(numbers) else begin + int(np.flatnonzero(blocks == numbers[count])[0])
        some = stage_stash(costs, range(begin, end), policy, 0.0, count)
        first, others = stage_stash(costs, range(begin, cut), policy), stage_stash(costs, range(cut, end), "none")
        assert some.kept == pytest.approx(first.kept + others.kept, abs=1)
        assert (some.made, some.made_for_input, some.made_longer) == first[1:3] + first[4:]
        assert some.kept_longer == pytest.approx(first.kept_longer + others.kept_longer, abs=1)
        parts = [
            kept_by_part(costs, range(*ends), word) for ends, word in (((begin, cut), policy), ((cut, end), "none"))
        ]
        kept = kept_by_part(costs, range(begin, end), policy, 0.0, count)
        for found, expected in zip(kept, zip(*parts, strict=True), strict=True):
            assert found == pytest.approx({name: sum(one[name] for one in expected) for name in found})
    assert stage_stash(costs, range(begin, end), policy, 0.0, len(numbers)) == stage_stash(
        costs, range(begin, end), policy
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_every_block_that_runs_again_costs_a_forward_and_saves_what_it_keeps(engine: Any) -> None:
    """Three equal blocks on a device: seconds rise and memory falls by the same step each; three are all."""
    problem, _ = gpt_on_devices(1, contention=engine != "recurrence")
    stages = (Stage(tuple(range(len(problem.workload))), (0,)),)
    plan = Plan("hand", "gpipe", stages, (1,) * 4, recompute=("blocks",))

    def replayed(plan: Plan) -> tuple[float, float]:
        outcome = simulate(problem, plan, engine=engine)
        return outcome.iteration_seconds, outcome.memory[0].activations_by_part.get("attention scores", 0.0)

    none, all_of_them = replayed(replace(plan, recompute=("none",))), replayed(plan)
    some = [replayed(replace(plan, recomputed_blocks=(count,))) for count in (1, 2, 3)]
    assert some[2] == all_of_them
    for place, sign in ((0, 1), (1, -1)):
        steps = np.diff([one[place] for one in (none, *some)])
        assert steps == pytest.approx([steps[0]] * 3)
        assert sign * steps[0] > 0


@pytest.mark.parametrize(
    ("recompute", "blocks", "told"),
    [
        (("blocks",), (1, 1), "says of 2 stages how many blocks they recompute, and has 1"),
        (
            ("whole",),
            (1,),
            "recomputes 1 blocks of stage 0, whose recompute is whole; choices: between-products, every-second-product, blocks",
        ),
        ((), (1,), "recomputes 1 blocks of stage 0, whose recompute is none"),
        (("blocks",), (4,), "recomputes 4 blocks of stage 0, which has 3"),
    ],
)
def test_a_stage_recomputes_blocks_that_it_has(recompute: Any, blocks: tuple[int, ...], told: str) -> None:
    """One line names the stage, the number and the rule."""
    problem, _ = gpt_on_devices(1)
    stages = (Stage(tuple(range(len(problem.workload))), (0,)),)
    plan = Plan("hand", "gpipe", stages, (4,), recompute=recompute, recomputed_blocks=blocks)
    with pytest.raises(InfeasiblePlanError, match=f"^plan 'hand' {told}"):
        simulate(problem, plan)


def gpt_on_devices(devices: int, **options: Any) -> tuple[Problem, int]:
    """Three blocks in half precision, and how many layers stand in front of the third."""
    workload = Gpt(BLOCKS, HIDDEN, HEADS, SEQUENCE, 100).workload()
    cut = 1 + max(number for number, layer in enumerate(workload.layers) if layer.block == 2)
    cluster = replace(chain_cluster(devices), tensor_groups="cluster")
    return Problem(workload, cluster, 4, precision="fp16", **options), cut


@pytest.mark.parametrize("degree, divided", [(1, False), (2, False), (4, True)])
@pytest.mark.parametrize("engine", ENGINES)
def test_activations_of_a_peak_are_those_of_korthikanti_by_part(engine: Any, degree: int, divided: bool) -> None:
    """Bytes of sections 4.1 and 4.2: of attention 11·s·b·h and of its scores 5·a·s²·b, of the MLP 19 and of norms 4·s·b·h; t
    devices divide the scores, and 8 and 16 of the others, with sequence parallelism all. Blocks that run again keep inputs."""
    problem, cut = gpt_on_devices(2 * degree, contention=engine != "recurrence", sequence_parallel=divided)
    places = [tuple(range(stage * degree, (stage + 1) * degree)) for stage in range(2)]
    degrees = (degree,) * (degree > 1)
    ends = (0, cut), (cut, len(problem.workload))
    stages = tuple(Stage(tuple(range(*end)), place, degrees) for end, place in zip(ends, places, strict=True))
    plan = Plan("hand", "1f1b", stages, (1,) * 4)
    memory = simulate(problem, plan, engine=engine).memory[0]
    assert sum(memory.activations_by_part.values()) == pytest.approx(memory.peak_parts["activations"])
    held = 2 * 2  # blocks, and micro-batches in flight
    tokens, scores = held * SEQUENCE * HIDDEN, held * 5 * HEADS * SEQUENCE**2
    whole = 1 / degree if divided else 1
    assert memory.activations_by_part == pytest.approx(
        {
            "embedding": 2 * SEQUENCE * HIDDEN * whole,
            "norms": 4 * tokens * whole,
            "attention": (3 * whole + 8 / degree) * tokens,
            "attention scores": scores / degree,
            "MLP": (3 * whole + 16 / degree) * tokens,
        }
    )
    again = simulate(replace(problem, recompute="blocks"), plan, engine=engine).memory[0].activations_by_part
    assert again == pytest.approx(
        {"recomputation inputs": 2 * tokens * whole, "embedding": 2 * SEQUENCE * HIDDEN * whole}
    )
    attention = simulate(replace(problem, recompute="attention"), plan, engine=engine).memory[0].activations_by_part
    assert attention == pytest.approx(
        {name: size for name, size in memory.activations_by_part.items() if "scores" not in name}
    )


def test_activations_behind_input_gradients_belong_to_what_weight_gradients_need() -> None:
    """Of a block's bytes its attention keeps 4·s·b·h (what projections read), the MLP 10 and norms all 4; no scores and masks."""
    problem, _ = gpt_on_devices(1)
    stages = (Stage(tuple(range(len(problem.workload))), (0,)),)
    order = "0F0 0I0 0F1 0I1 0F2 0I2 0F3 0I3 0W0 0W1 0W2 0W3"
    outcome = simulate(problem, Plan("hand", "", stages, (1,) * 4, order=(order,)))
    found = outcome.memory[0].activations_by_part
    assert sum(found.values()) == pytest.approx(outcome.memory[0].peak_parts["activations"])
    tokens, scores = BLOCKS * SEQUENCE * HIDDEN, BLOCKS * 5 * HEADS * SEQUENCE**2
    # three micro-batches wait for their weight gradients when the fourth has all
    expected = {"attention": (3 * 4 + 11) * tokens, "attention scores": scores, "MLP": (3 * 10 + 19) * tokens}
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_attention_without_a_layer_before_it_keeps_its_input() -> None:
    """No layer makes it, so nothing of its stash is made again; its weight gradient needs no more than there is."""
    first, *others = chain([1.0] * 3, parameters=[5] * 3, output_elements=[4.0] * 3).layers
    workload = Workload("w", (replace(first, kind="attention"), *others), ((0, 1), (1, 2)))
    problem = Problem(workload, chain_cluster(3), 6, communication="send-blocking")
    stages = tuple(Stage((layer,), (layer,)) for layer in range(3))
    plan = Plan("hand", "zb-h1", stages, (3, 3), recompute=("attention", "none", "none"))
    assert stage_stash(LayerCosts(problem), [0], "attention") == (16.0, 0.0, 0.0, 16.0, 0.0)
    assert Evaluations(problem).peak_bytes(plan) == {
        one.device: one.peak_bytes for one in simulate(problem, plan).memory
    }


@pytest.mark.parametrize("degree", [1, 2])
def test_wide_gradients_have_one_of_each_shape_beside_them(degree: int) -> None:
    """12·h² elements of two bytes, whatever the blocks, and the output head's where a stage has it, beyond what its loss of a
    sample kept; none of added-up gradients of the elements' own width."""
    workload = Gpt(BLOCKS, HIDDEN, HEADS, SEQUENCE, 100).workload()
    wide = Problem(workload, chain_cluster(2), 1, precision="fp16", gradient_bytes=4)
    costs = LayerCosts(wide).at(Parallelism(degree))
    inside = [number for number, layer in enumerate(workload.layers) if layer.block]
    biases, loss = HIDDEN * (3 + 4 + degree * 2), 4 * 100 * SEQUENCE
    assert gradient_in_work(costs, inside) == 2 * (12 * HIDDEN**2 + biases) / degree
    assert (
        gradient_in_work(costs, range(len(workload))) == (2 * (12 * HIDDEN**2 + biases + 100 * HIDDEN) - loss) / degree
    )
    again = gradient_in_work(costs, range(len(workload)), "blocks")  # a block takes more than the loss kept
    assert again == 2 * (12 * HIDDEN**2 + biases + 100 * HIDDEN) / degree
    own = LayerCosts(replace(wide, gradient_bytes=2)).at(Parallelism(degree))
    assert gradient_in_work(own, inside) == 0.0


def test_stages_of_a_device_share_the_gradients_in_work() -> None:
    """Two stages per device: the larger one's, on every engine and by the evaluator."""
    workload = Gpt(BLOCKS, HIDDEN, HEADS, SEQUENCE, 100).workload()
    problem = Problem(workload, chain_cluster(2), 4, precision="fp16", gradient_bytes=4)
    ends = [
        0,
        *(1 + max(n for n, layer in enumerate(workload.layers) if layer.block == b) for b in (1, 2)),
        len(workload),
    ]
    cuts = [*ends[:3], ends[3] - 2, ends[3]]
    stages = tuple(Stage(tuple(range(*cuts[n : n + 2])), (n % 2,)) for n in range(4))
    plan = Plan("hand", "interleaved-1f1b", stages, (1,) * 4)
    costs = PlanCosts(problem, plan)
    found = [simulate(problem, plan, engine=engine) for engine in ("simpy", "compiled")]
    for outcome in found:
        for device, memory in enumerate(outcome.memory):
            expected = max(costs.gradient_in_work(stage, 0) for stage in (device, device + 2))
            assert memory.peak_parts["workspace"] == expected > 0.0
    assert Evaluations(problem).peak_bytes(plan) == {one.device: one.peak_bytes for one in found[0].memory}


@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_run_again_on_the_engines(engine: Any) -> None:
    """Two blocks of two layers of 1 s, 40 bytes each, behind a layer of none that keeps 12: backwards of 10 + 4 s; at most
    12 + 2 · 8 kept and 80 made again."""
    plain = chain([1.0] * 5, output_elements=[2.0] * 5, stashed_elements=[3.0, 10.0, 10.0, 10.0, 10.0])
    layers = tuple(replace(layer, block=number) for layer, number in zip(plain.layers, (0, 1, 1, 2, 2), strict=True))
    problem = Problem(replace(plain, layers=layers), chain_cluster(1), 1, recompute="blocks")
    costs = PlanCosts(problem, Plan("hand", "gpipe", (Stage(tuple(range(5)), (0,)),), (1,)))
    assert costs.stash(0) == (28.0, 80.0, 80.0, 0.0, 0.0)
    outcome = simulate(problem, costs.plan, engine=engine)
    assert outcome.iteration_seconds == 5.0 + 10.0 + 4.0
    (memory,) = outcome.memory
    assert memory.peak_parts["activations"] == 28.0
    assert memory.peak_parts["workspace"] == 80.0


@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_run_again_for_input_gradients_or_in_ops_of_their_own(engine: Any) -> None:
    """As above, with weights: each of the four layers needs its input of 8 bytes until the weight gradient, the first one all of
    its 12. An input gradient has 80, then 16 of the second block and 80 of the first; an op of its own makes 160."""
    plain = chain([1.0] * 5, output_elements=[2.0] * 5, stashed_elements=[3.0, 10.0, 10.0, 10.0, 10.0])
    numbers = (0, 1, 1, 2, 2)
    layers = tuple(replace(one, block=block, parameters=1) for one, block in zip(plain.layers, numbers, strict=True))
    problem = Problem(replace(plain, layers=layers), chain_cluster(1), 1, recompute="blocks")
    held: dict[str, Any] = {}
    for order in ("0F0 0I0 0W0", "0F0 0A0 0I0 0W0"):
        plan = Plan("hand", "own", (Stage(tuple(range(5)), (0,)),), (1,), order=(order,))
        outcome = simulate(problem, plan, engine=engine)
        steps = outcome.memory[0].bytes[:, [CATEGORIES.index(name) for name in ("activations", "workspace")]]
        held[order] = list(dict(zip(outcome.memory[0].times.tolist(), steps.tolist(), strict=True)).values())
    assert held["0F0 0I0 0W0"] == [[28.0, 0.0], [28.0, 96.0], [12.0, 32.0], [0.0, 0.0]]
    assert held["0F0 0A0 0I0 0W0"] == [[28.0, 0.0], [28.0, 160.0], [12.0, 32.0], [0.0, 0.0]]


@pytest.mark.parametrize(("blocks", "got"), [((1, 0, 1), "2: block 1 after 1"), ((2, 1, 1), "1: block 1 after 2")])
def test_layers_of_a_block_stand_together(blocks: tuple[int, ...], got: str) -> None:
    """Blocks have rising numbers."""
    layers = tuple(Layer(f"layer{n}", "linear", block=block) for n, block in enumerate(blocks))
    number, got = got.split(": ")
    rule = "layers of a block stand together, blocks by rising numbers"
    with pytest.raises(ValueError, match=f"^workload 'hand': layer 'layer{number}': {rule}, got {got}$"):
        Workload("hand", layers, ())


def test_a_weight_gradient_keeps_what_it_needs_of_a_part_that_makes_nothing_again() -> None:
    """A layer that reads a product of its block, whose output is kept: from its input gradient on its input waits, as known of
    any other stage; replays and evaluations count it alike.
    """
    product, reader, last = chain([1.0] * 3, parameters=[5, 5, 5], output_elements=[64.0, 8.0, 8.0]).layers
    layers = replace(product, block=1), replace(reader, kind="attention", block=1, stashed_elements=64.0), last
    problem = Problem(Workload("w", layers, ((0, 1), (1, 2))), chain_cluster(3), 4, recompute="between-products")
    plan = Plan("hand", "zb-h1", tuple(Stage((layer,), (layer,)) for layer in range(3)), (1,) * 4)
    stash = PlanCosts(problem, plan).stash(1)
    assert (stash.made, stash.made_longer) == (0.0, 64 * 4.0)
    outcome = simulate(problem, plan)
    assert Evaluations(problem).peak_bytes(plan) == {one.device: one.peak_bytes for one in outcome.memory}
    held = outcome.memory[1].bytes[:, CATEGORIES.index("activations")]
    kept = simulate(replace(problem, recompute="none"), plan).memory[1].bytes[:, CATEGORIES.index("activations")]
    assert held.max() >= kept.max()
