"""Tests of `pipeplan profile`: a small model on the CPU; skipped where PyTorch is absent."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from simulator import read_measured_profile

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed (extra pipeplan[torch])")

RESIDUAL = """
import torch
from torch import nn

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.act = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.ones(16))
    def forward(self, x):
        shortcut = self.first(x)
        return self.act(self.second(shortcut * self.scale) + shortcut)
"""


def profiled(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "profile.json"
    assert main(["profile", *arguments, "--warm-up", "1", "--repeats", "3", "--out", str(path)]) == 0
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


@needs_torch
def test_a_sequential_is_a_chain_with_its_sizes(tmp_path: Path) -> None:
    """Every layer in order with its weights, outputs, FLOP and a timing a size; the small mlp has 2.37 million weights."""
    document = profiled(tmp_path, "mlp", "--sizes", "2,4")
    layers = document["layers"]
    assert [layer["kind"] for layer in layers] == ["linear", "activation"] * 3 + ["linear"]
    assert document["edges"] == [[i, i + 1] for i in range(6)]
    assert layers[0]["parameters"] == 256 * 1024 + 1024
    assert sum(layer["parameters"] for layer in layers) == 257 * 1024 + 2 * 1025 * 1024 + 1025 * 10
    assert layers[0]["flop"] == 2 * 256 * 1024
    assert layers[0]["output_elements"] == 1024
    assert layers[0]["stashed_elements"] == 256  # its input
    assert [one["samples"] for one in layers[0]["timings"]] == [2, 4]
    assert all(one["backward_seconds"] > 0 for layer in layers for one in layer["timings"])
    assert document["measurement"]["steady"] == (document["measurement"]["spread"] <= 0.2)


@needs_torch
def test_edges_follow_the_data_through_what_is_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sum and a product between modules are seen through: the shortcut is an edge; a loose weight goes to the first layer."""
    (tmp_path / "residual_net.py").write_text(RESIDUAL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    document = profiled(tmp_path, "residual_net:Residual", "--input", "16", "--sizes", "4")
    assert [layer["name"] for layer in document["layers"]] == ["first_Linear", "second_Linear", "act_ReLU"]
    assert document["edges"] == [[0, 1], [0, 2], [1, 2]]
    assert [layer["parameters"] for layer in document["layers"]] == [272 + 16, 272, 0]
    assert main(["profile", "residual_net:Residual", "--input", "5", "--out", str(tmp_path / "x.json")]) == 2
    assert "the model fails on an input of 1x5: RuntimeError" in capsys.readouterr().err


TIED = """
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 8)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 32)
        self.head.weight = self.table.weight
    def forward(self, x):
        return self.head(self.inner(self.inner(self.table(x))))
"""


@needs_torch
def test_a_weight_that_layers_share_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head has its bias, and the table's weights tied; a module that runs twice owns its weights at its first run."""
    (tmp_path / "tied_net.py").write_text(TIED, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    layers = profiled(tmp_path, "tied_net:Tied", "--input", "4", "--vocabulary", "32", "--sizes", "2")["layers"]
    assert [(layer["parameters"], layer["tied_to"], layer["tied_parameters"]) for layer in layers] == [
        (256, "", 0),
        (72, "", 0),
        (0, "inner_Linear", 72),
        (32, "table_Embedding", 256),
    ]
    workload = read_measured_profile(tmp_path / "profile.json")
    assert workload.parameters() == 256 + 72 + 32
    assert [weight.layers for weight in workload.tied_weights()] == [(0, 3), (1, 2)]


@needs_torch
def test_every_command_reads_the_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What profile writes, plan plans."""
    profiled(tmp_path, "mlp", "--sizes", "4")
    capsys.readouterr()
    words = [
        "--profile",
        str(tmp_path / "profile.json"),
        "--cluster",
        "pipedream-c",
        "--planner",
        "data-parallel",
        "--json",
    ]
    assert main(["plan", *words]) == 0
    assert json.loads(capsys.readouterr().out)["feasible"]
    assert main(["check", str(tmp_path / "profile.json")]) == 0
    assert "ok: measured profile of 7 layers" in capsys.readouterr().out


@needs_torch
@pytest.mark.parametrize(
    "words, said",
    [
        (["nothing-here"], "model 'nothing-here' is unknown"),
        (["no_such_module_here:x"], "module 'no_such_module_here' cannot be imported"),
        (["json:dumps"], "must be callable without arguments"),
        (["json:nothing"], "has no attribute 'nothing'"),
        (["mlp", "--sizes", "0,1"], "--sizes must be whole numbers of at least 1"),
        (["mlp", "--device", "tpu"], "--device 'tpu' is unknown; choices: cpu, cuda"),
    ],
)
def test_usage_errors_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line that says what is wrong."""
    assert main(["profile", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without PyTorch: one line, exit code 2."""
    from experiments.commands import profile

    monkeypatch.setattr(profile, "find_spec", lambda name: None)
    assert main(["profile", "mlp"]) == 2
    assert "install pipeplan[torch]" in capsys.readouterr().err
