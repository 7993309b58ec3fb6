"""What a member of a tensor-parallel group does and keeps, against the formulas of Korthikanti et al. 2022."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest

from hardware_profiles import load_cluster
from simulator import LayerCosts, Problem
from simulator.workloads.catalog import load_workload
from simulator.workloads.language_models import Gpt, Llama
from simulator.workloads.layers import Layer, Workload
from simulator.workloads.shares import Parallelism, Share, share_of, unlike_layers

SEQUENCE, HIDDEN, HEADS = 64, 96, 12


def block_shares(workload: Workload, degree: int, *, sequence_parallel: bool = False) -> dict[str, Share]:
    """Shares of the layers of the second block, by name without the block's."""
    return {
        layer.name.split(".")[1]: share_of(layer, work, degree, sequence_parallel=sequence_parallel)
        for layer, work in zip(workload.layers, workload.works(), strict=True)
        if layer.name.startswith("block2.")
    }


def test_columns_whose_output_nobody_tells_are_divided() -> None:
    """A layer's output is 0 elements where a file says none."""
    layer = Layer("one", "linear", 4.0, 8, split="columns")
    share = share_of(layer, Workload("one", (layer,), ()).works()[0], 2)
    assert (share.work.flop, share.parameters, share.output) == (2.0, 4.0, 0.0)


@pytest.mark.parametrize("degree", [1, 2, 4, 12])
def test_a_block_keeps_what_korthikanti_counts_of_a_member(degree: int) -> None:
    """s·h·(10 + 24/t + 5·a·s/(h·t)) bytes at 16 bits (equation 2); with sequence parallelism s·h/t·(34 + 5·a·s/h) (equation 4);
    selective recomputation makes the last term again, what attention keeps beside its input."""
    workload = Gpt(2, HIDDEN, HEADS, SEQUENCE, 100).workload()
    scores = 5 * HEADS * SEQUENCE**2 // degree
    plain, divided = (block_shares(workload, degree, sequence_parallel=one) for one in (False, True))
    assert (
        math.fsum(2 * one.stashed + one.stashed_bytes for one in plain.values())
        == SEQUENCE * HIDDEN * (10 + 24 // degree) + scores
    )
    assert (
        math.fsum(2 * one.stashed + one.stashed_bytes for one in divided.values())
        == SEQUENCE * HIDDEN * 34 // degree + scores
    )
    for shares in (plain, divided):
        attention = shares["attention"]
        assert 2 * (attention.stashed - attention.work.input_elements) + attention.stashed_bytes == scores


def test_what_full_recomputation_keeps_is_divided_with_sequence_parallelism_alone() -> None:
    """A block's input of 2·s·h bytes is whole on every member, or 2·s·h/t (section 5)."""
    workload = Gpt(2, HIDDEN, HEADS, SEQUENCE, 100).workload()
    plain, divided = (block_shares(workload, 4, sequence_parallel=one) for one in (False, True))
    assert plain["add2"].output == SEQUENCE * HIDDEN
    assert divided["add2"].output == SEQUENCE * HIDDEN / 4


def test_weights_are_divided_but_for_norms_and_biases_behind_rows() -> None:
    """12·h² + 13·h of a block: (12·h² + 7·h)/t and 6·h whole; the embedding's positions whole."""
    workload = Gpt(2, HIDDEN, HEADS, SEQUENCE, 100).workload()
    weights = math.fsum(one.parameters for one in block_shares(workload, 4).values())
    assert weights == (12 * HIDDEN**2 + 7 * HIDDEN) // 4 + 6 * HIDDEN
    works = workload.works()
    embedding = share_of(workload.layers[0], works[0], 4)
    assert embedding.parameters == 100 * HIDDEN / 4 + SEQUENCE * HIDDEN
    head = share_of(workload.layers[-2], works[-2], 4)
    assert (head.parameters, head.tied_parameters) == (0, 100 * HIDDEN / 4)


def test_members_of_a_group_do_all_flop_of_the_network_together() -> None:
    """No product is done twice, but by BERT's pooler and next-sentence head, which no group divides."""
    for workload in (Llama(2, 64, 8, intermediate=160, key_value_heads=4).workload(), load_workload("bert-base")):
        pairs = list(zip(workload.layers, workload.works(), strict=True))
        whole = sum(one.flop for one, _ in pairs if not one.split)
        divided = math.fsum(share_of(*pair, 4, sequence_parallel=True).work.flop for pair in pairs)
        assert math.isclose(4 * divided, workload.flop() + 3 * whole, rel_tol=1e-12)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_block_reduces_two_tensors_each_way(sequence_parallel: bool) -> None:
    """2 all-reduces of s·h elements forward and 2 backward; with sequence parallelism 4 halves each way (section 4.2.2)."""
    shares = block_shares(Gpt(2, HIDDEN, HEADS, SEQUENCE, 100).workload(), 2, sequence_parallel=sequence_parallel)
    reducing = [one for one in shares.values() if one.forward or one.backward]
    assert [one.reduced for one in reducing] == [SEQUENCE * HIDDEN] * 4
    assert sum(one.forward for one in reducing) == sum(one.backward for one in reducing) == 2


@pytest.mark.parametrize("name", ["resnet50", "gnmt8", "gpt2", "mixtral-8x7b"])
def test_a_group_of_one_has_the_layer_itself(name: str) -> None:
    """Figures of degree 1 are those of the layer, with all that an accelerator asks for, and nothing is reduced."""
    workload = load_workload(name)
    for layer, work in zip(workload.layers, workload.works(), strict=True):
        for sequence_parallel in (False, True):
            share = share_of(layer, work, 1, sequence_parallel=sequence_parallel)
            kept = layer.stashed_elements, layer.stashed_bytes
            own = layer.parameters, layer.tied_parameters, *kept, work.input_elements, layer.output_elements
            assert share == (work, *own, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", ["resnet50", "bert-base", "mixtral-8x7b"])
def test_like_layers_share_what_each_would_have_alone(name: str) -> None:
    """Layer by layer, though blocks repeat; figures by layer, too."""
    workload = load_workload(name)
    costs = LayerCosts(Problem(workload, load_cluster("dgx-a100"), 8, sequence_parallel=True)).at(Parallelism(2))
    alone = [share_of(*one, 2, sequence_parallel=True) for one in zip(workload.layers, workload.works(), strict=True)]
    assert list(costs.shares) == alone
    assert costs.parameters.tolist() == [one.parameters for one in alone]
    assert len(unlike_layers(workload)[0]) < len(workload) / 2


def test_layers_that_differ_in_anything_are_unlike() -> None:
    """In anything but their names, their blocks, and which layer owns a tied weight of theirs."""
    layer = Layer("layer", "linear", 8.0, 8, 8.0, 8.0, split="columns", heads=2, query_heads=4, key_values=4.0)
    changes = {"flop": 9.0, "parameters": 9, "output_elements": 9.0, "stashed_elements": 9.0, "stashed_bytes": 1.0}
    changes |= {"sequential_steps": 2, "measured": ((1.0, 1.0, 1.0),), "scratch_elements": 1.0, "loaded_elements": 1.0}
    changes |= {"channels": (1, 1), "fused_pairs": 0.5, "split": "rows", "undivided": 1, "heads": 4, "query_heads": 6}
    changes |= {"key_values": 5.0, "causal_tokens": 1, "experts": 1, "part": "MLP", "head_size": 1, "kind": "embedding"}
    changes |= {"tied_parameters": 1, "name": "other", "block": 1, "tied_to": "first"}
    assert changes.keys() == {*Layer.__dataclass_fields__}
    ends = replace(layer, name="first"), replace(layer, name="last")

    def network(key: str) -> Workload:
        changed = {"tied_to": "first"} if key == "tied_parameters" else {}
        changed |= {"tied_parameters": 1} if key == "tied_to" else {}
        return Workload("one", (ends[0], replace(layer, **{key: changes[key]}, **changed), ends[1]), ())

    networks = {key: network(key) for key in changes}
    assert {key for key, one in networks.items() if len(unlike_layers(one)[0]) == 1} == {"name", "block"}
    same = {frozenset(pair) for pair in combinations(networks, 2) if networks[pair[0]] == networks[pair[1]]}
    assert same == {frozenset(("tied_to", "tied_parameters"))}


@pytest.mark.parametrize("norm", [False, True])
def test_a_larger_group_than_key_value_heads_has_one_of_them_on_each_member(norm: bool) -> None:
    """A member of 8 that shares 2 key-value heads has its 2 of 16 query heads, and one key and one value head: products,
    weights and what is kept are those of a member of 2 for keys and values, of 8 for all else."""
    model = Llama(2, 64, 16, SEQUENCE, 100, intermediate=160, key_value_heads=2, head_norm=norm)
    size, shares = 64 // 16, block_shares(model.workload(), 8)
    features = (2 + 1 + 1) * size
    assert shares["qkv"].parameters == 64 * features
    assert shares["qkv"].work.flop == 2 * 64 * SEQUENCE * features
    assert shares["qkv"].output == SEQUENCE * features
    assert shares["attention"].work.input_elements == shares["attention"].input == SEQUENCE * features
    assert shares["attention"].stashed == shares["attention"].input
    assert shares["attention"].output == SEQUENCE * 2 * size
    if norm:
        assert shares["head_norm"].output == shares["head_norm"].stashed == SEQUENCE * 3 * size
        assert shares["value"].output == SEQUENCE * size
    assert shares["projection"] == block_shares(replace(model, key_value_heads=16).workload(), 8)["projection"]


def test_an_unknown_split_and_more_undivided_weights_than_there_are_are_refused() -> None:
    """One line with the choices; the part is a part."""
    with pytest.raises(ValueError, match=r"split must be one of '', 'columns', 'rows'.*got 'diagonal'"):
        Workload("w", (Layer("a", "linear", split="diagonal"),), ())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="undivided is a part of its 3 parameters, got 4"):
        Workload("w", (Layer("a", "linear", parameters=3, undivided=4),), ())
