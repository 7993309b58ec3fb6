"""The registry of workloads: a contract over every entry, names, plug-ins and what a user may write."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from simulator.testing import check_network
from simulator.workloads import catalog
from simulator.workloads.catalog import (
    FAMILIES,
    WORKLOADS,
    load_workload,
    workload_families,
    workload_from_spec,
    workload_names,
    workload_of,
)
from simulator.workloads.image_networks import vgg16
from simulator.workloads.layers import Layer, Workload, WorkloadSource
from tests.chains import kept_bytes
from tests.records import Recorded


def weighted(values: npt.NDArray[np.float64]) -> list[float]:
    """Each column's sum weighted by places from 1 on."""
    return (np.arange(1, len(values) + 1) @ values).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_entry_keeps_the_contract(name: str) -> None:
    """A sound network, named as registered, that keeps something for its backward."""
    workload = load_workload(name)
    check_network(workload)
    assert workload.name == name
    assert kept_bytes(workload.layers, 4) > 0
    assert workload.bytes_per_element is None


def test_sums_of_every_entry(recorded: Recorded) -> None:
    """Mini-batch and tokens; then of every figure of the layers, and of producers and consumers of the edges, the sum weighted by
    places."""
    figures = [one.name for one in fields(Layer) if isinstance(one.default, int | float)]
    found = []
    for name in WORKLOADS:
        workload = load_workload(name)
        layers = np.array([[getattr(layer, figure) for figure in figures] for layer in workload.layers], dtype=float)
        sums = dict(zip(figures, weighted(layers), strict=True))
        producers, consumers = weighted(np.array(workload.edges, dtype=float))
        ends = {"producers": producers, "consumers": consumers}
        found.append({"name": name, "minibatch": workload.minibatch, "tokens": workload.tokens, **ends, **sums})
    recorded(workloads=found)


def test_a_network_without_what_it_owes_is_named() -> None:
    """Two parts, no loss, no weights, an unknown kind, a cut that sends nothing."""
    whole = load_workload("alexnet")
    layers, edges = whole.layers, whole.edges
    nothing = tuple(replace(one, parameters=0) for one in layers)
    silent = tuple(replace(one, output_elements=0.0) for one in layers)
    for changed, said in (
        (replace(whole, edges=edges[:-1]), "its one end is the loss"),
        (replace(whole, edges=(*edges[:3], *edges[4:])), "its one end is the loss"),
        (replace(whole, layers=nothing), "no weights"),
        (replace(whole, layers=silent), "a cut sends nothing"),
    ):
        with pytest.raises(AssertionError, match=said):
            check_network(changed)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_a_network_is_the_same_every_time(family: dict[str, Callable[..., Workload]]) -> None:
    """One of each family, made anew."""
    name, make = next(iter(family.items()))
    assert inspect.unwrap(make)() == load_workload(name)


def test_an_unknown_name_lists_the_choices_and_the_closest() -> None:
    """One line."""
    with pytest.raises(
        ValueError, match=r"^workload 'resnet5' is not known \(did you mean resnet50\?\); choose from alexnet, "
    ):
        load_workload("resnet5")
    with pytest.raises(ValueError, match=r"workload 'zzz' is not known; choose from .*vgg19; or give the path"):
        load_workload("zzz")


def test_an_installed_package_adds_a_workload(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_plugins: None
) -> None:
    """An entry point of group pipeplan.workloads is a name and a function; one that cannot be imported is passed over."""
    entry = metadata.EntryPoint("mine", "simulator.workloads.image_networks:vgg19", catalog.ENTRY_POINTS)
    wrong = metadata.EntryPoint("wrong", "builtins:dict", catalog.ENTRY_POINTS)
    absent = metadata.EntryPoint("absent", "no_such_package:f", catalog.ENTRY_POINTS)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry, wrong, absent])
    assert "mine" in workload_names()
    assert load_workload("mine").parameters() == 143_667_240
    with pytest.raises(ValueError, match=r"workload .wrong. must be a function that returns a Workload, got \{\}"):
        load_workload("wrong")
    with pytest.raises(ValueError, match="workload 'absent' is not known"):
        load_workload("absent")
    said = "passing over plug-in absent = no_such_package:f of pipeplan.workloads: ModuleNotFoundError: No module named"
    assert capsys.readouterr().err.count(said) == 1


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of a small language model."""
    path = tmp_path / "config.json"
    sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 10}
    path.write_text(json.dumps({"model_type": "gpt2"} | sizes))
    return path


def test_a_spec_is_a_name_a_chain_or_a_configuration(config: Path) -> None:
    """vgg16, chain:3, and a config.json; sequence goes where there are sequences."""
    assert workload_from_spec("vgg16") == vgg16()
    assert len(workload_from_spec("chain:3")) == 3
    assert isinstance(workload_from_spec(str(config)), Workload)
    half = workload_from_spec(str(config), sequence=8)
    assert half.layers[0].output_elements == 8 * 8
    assert workload_from_spec("gpt2", sequence=8).layers[0].output_elements == 8 * 768
    assert [workload_from_spec(*spec).tokens for spec in (("gpt2", 8), ("vgg16",))] == [8, 0]


def test_a_profile_describes_a_network(tmp_path: Path) -> None:
    """described:graph.txt is the profile's network at any precision, from anywhere; without the prefix it is as measured."""
    path = tmp_path / "graph.txt"
    path.write_text(
        "node1 -- Linear(in_features=8, out_features=4, bias=True) -- forward_compute_time=1.5, backward_compute_time=0.5, "
        "activation_size=32.0, parameter_size=144.0\n"
    )
    found = workload_from_spec(f"described:{path}")
    assert (found.minibatch, found.layers[0].flop, found.layers[0].measured) == (2, 64.0, ())
    assert found.source == WorkloadSource(f"described:{path}")
    assert workload_of(found.source) == found
    assert workload_from_spec(str(path)).layers[0].measured == ((2, 1.5e-3, 0.5e-3),)
    with pytest.raises(ValueError, match="no sequence length to set, got 8"):
        workload_from_spec(f"described:{path}", sequence=8)


def test_attention_is_chosen_where_there_is_one(config: Path) -> None:
    """By name, from a configuration, and by what a plan file says; a network without it, or another form, is one line."""
    for spec in ("gpt2", str(config)):
        usual, fused = workload_from_spec(spec), workload_from_spec(spec, attention="fused")
        assert kept_bytes(fused.layers, 2) < kept_bytes(usual.layers, 2)
        assert fused.source == WorkloadSource(spec, attention="fused")
        assert workload_of(fused.source) == fused
    for spec, form, rule in (
        ("vgg16", "fused", "workload 'vgg16' has no attention to set, got fused"),
        ("chain:3", "fused", "workload 'chain:3' has no attention to set, got fused"),
        ("gpt2", "flash", "attention must be one of fused, unfused, eager, got 'flash'"),
        (str(config), "flash", f"{config}: attention must be one of fused, unfused, eager, got 'flash'"),
    ):
        with pytest.raises(ValueError, match=f"^{rule}$"):
            workload_from_spec(spec, attention=form)  # type: ignore[arg-type]


def test_every_name_is_in_one_family(monkeypatch: pytest.MonkeyPatch, no_plugins: None) -> None:
    """Families hold the names of the registry, each once; what packages bring is one more."""
    entries = [
        metadata.EntryPoint(name, "simulator.workloads.image_networks:vgg19", catalog.ENTRY_POINTS)
        for name in ("z", "a", "vgg16")
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)
    *built_in, plugged = workload_families().items()
    assert sorted(name for _, names in built_in for name in names) == sorted(WORKLOADS)
    assert plugged == ("installed packages", ("a", "z"))


@pytest.mark.parametrize(
    ("spec", "sequence", "rule"),
    [
        ("vgg16", 8, "workload 'vgg16' has no sequence length to set, got 8"),
        ("chain:3", 8, "workload 'chain:3' has no sequence length to set, got 8"),
        ("chain:", None, "a chain is written chain:LAYERS with 1 to 100000 layers, got 'chain:'"),
        ("chain:0", None, "got 'chain:0'"),
        ("chain:99999999999999999999", None, "with 1 to 100000 layers"),
        ("gpt2", 0, "sequence must be a whole number of at least 1, got 0"),
        (
            "none.json",
            None,
            (
                "none.json: cannot be read: No such file or directory; a workload's file is the config.json "
                "of a Hugging Face model or PipeDream's graph.txt; the JSON of pipeplan profile goes with "
                "--profile"
            ),
        ),
        (
            "./none",
            None,
            (
                "none: cannot be read: No such file or directory; a workload's file is the config.json of a "
                "Hugging Face model or PipeDream's graph.txt; the JSON of pipeplan profile goes with "
                "--profile"
            ),
        ),
        ("none.txt", 8, "has no sequence length to set"),
        ("", None, "workload '' is not known"),
    ],
)
def test_a_bad_spec_is_one_line(spec: str, sequence: int | None, rule: str) -> None:
    """Rule, value and choices."""
    with pytest.raises(ValueError, match=rule) as caught:
        workload_from_spec(spec, sequence)
    assert "\n" not in str(caught.value)
