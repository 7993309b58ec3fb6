"""Tests of `pipeplan profile`: a small model on the CPU; skipped where PyTorch is absent."""

from __future__ import annotations

import importlib.util
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from experiments.cli import main
from simulator import load_measured_profile
from simulator.workloads.measured_profile import read_measured_profile
from tests.experiments.commands import refused
from tests.records import Recorded, lines

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
        (["mlp", "--device", "tpu"], "--device 'tpu' is unknown (did you mean cpu?); choices: cpu, cuda"),
    ],
)
def test_usage_errors_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line that says what is wrong."""
    assert said in refused(capsys, ["profile", *words])


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without PyTorch: one line, exit code 2."""
    monkeypatch.setattr("experiments.terminal.argument_types.find_spec", lambda name: None)
    assert main(["profile", "mlp"]) == 2
    assert "measuring a model needs PyTorch, which is not installed; install pipeplan[torch]" in capsys.readouterr().err


# ---- without PyTorch -------------------------------------------------------------------------------------------------


TOKENS = "tokens --input 7 --vocabulary 50 --sizes 4,2,4 --warm-up 0 --repeats 1 --seed 0"


def document_of(spread: float) -> dict[str, Any]:
    """A profile of four layers at two sizes whose spread is as given."""
    timings = [
        [{"samples": n, "forward_seconds": 1e-3 * n * k, "backward_seconds": 2e-3 * n * k} for n in (2, 4)]
        for k in (1, 2, 3, 4)
    ]
    for k, rows in enumerate(timings, 1):
        for row in rows:
            row.update(forward_spread=0.3 / k**2, backward_spread=0.4 / k**2)
    layers = [
        {"name": f"layer{k}", "kind": "linear", "parameters": 1000 * k, "flop": 2e6 * k, "output_elements": 8}
        | {"stashed_elements": 4, "timings": rows}
        for k, rows in enumerate(timings, 1)
    ]
    measurement = {
        "model": "four",
        "device": "cpu",
        "device_name": "a machine",
        "torch": "2.4",
        "input_shape": [3, 8, 8],
    }
    measurement |= {"warm_up": 1, "repeats": 5, "spread": spread, "steady": spread <= 0.2}
    measurement["whole"] = [{"samples": n, "forward_seconds": 9e-3 * n, "backward_seconds": 0.019 * n} for n in (2, 4)]
    head = {"format": "pipeplan-profile-1", "name": "four", "sample": "image", "minibatch": 4, "bytes_per_element": 4}
    return {**head, "measurement": measurement, "layers": layers, "edges": [[0, 1], [1, 2], [2, 3]]}


def test_what_is_asked_of_the_profiler_and_said_of_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: Recorded
) -> None:
    """A stand-in for the profiler: the settings that reach it, from options and by default; the table, the document, and the
    doubt about a spread above a fifth."""
    asked: list[Any] = []
    spread = 0.1

    def profile_model(module: str, name: str, label: str, settings: SimpleNamespace, progress: Any) -> Any:
        asked.append({"module": module, "name": name, "label": label, **vars(settings)})
        (tmp_path / "made.json").write_text(json.dumps(document_of(spread)), encoding="utf-8")
        return load_measured_profile(str(tmp_path / "made.json"))

    profiler = SimpleNamespace(
        ProfileSettings=SimpleNamespace, check_device=lambda device: asked.append(device), profile_model=profile_model
    )
    shape = (3, 8, 8)

    def find_model(spec: str, seed: int) -> SimpleNamespace:
        return SimpleNamespace(module=f"{spec} {seed}", name="four", input_shape=shape)

    models = SimpleNamespace(find_model=find_model)
    monkeypatch.setattr("experiments.terminal.argument_types.find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "experiments.profiling.layer_profiler", profiler)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "experiments.profiling.profiled_models", models)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    said = {}
    for words in ("mlp", "mlp --out here.json --json", TOKENS):
        assert main(["profile", *words.split()]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        said[words] = json.loads(out) if "--json" in words else lines(out)
    assert json.loads((tmp_path / "here.json").read_text()) == said["mlp --out here.json --json"]
    assert (tmp_path / "out" / "profiles" / "four.json").exists()
    spread = 0.25
    assert main(["profile", "mlp"]) == 0
    said["doubt"] = lines(capsys.readouterr().err)
    recorded(asked=asked, said=said)
    shape = None  # type: ignore[assignment]
    line = refused(capsys, ["profile", "theirs"])
    assert line == "pipeplan profile: --input: the shape of one sample of 'theirs' is needed, as 3,224,224\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--sizes", "0,1"],
            "--sizes: '0,1' is not a comma list of whole numbers: '0' must be a whole number of at least 1",
        ),
        (["--sizes", ""], "option --sizes needs a value, got ''"),
        (["--warm-up", "-1"], "--warm-up: '-1' must be a whole number of at least 0"),
        (["--seed", "-1"], "--seed: '-1' must be a whole number of at least 0"),
        (["--device", "tpu"], "--device 'tpu' is unknown (did you mean cpu?); choices: cpu, cuda"),
    ],
)
def test_wrong_numbers_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, whether PyTorch is there or not."""
    assert said in refused(capsys, ["profile", "mlp", *words])


def test_models_are_built_as_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """The layers of the bundled models, written down by a stand-in for `torch.nn`; names, seeds and shapes of what is found."""

    class Module:
        """What was asked for, in words."""

        def __init__(self, *given: Any, **named: Any) -> None:
            self.given = [*given, *(f"{name}={value}" for name, value in named.items())]

        def words(self) -> str:
            parts = [one.words() if isinstance(one, Module) else str(one) for one in self.given]
            return f"{type(self).__name__}({', '.join(parts)})"

    seeds: list[int] = []
    kinds = ("Sequential", "Linear", "ReLU", "Conv2d", "MaxPool2d", "Flatten")
    nn = ModuleType("torch.nn")
    vars(nn).update({"Module": Module} | {kind: type(kind, (Module,), {}) for kind in kinds})
    torch = ModuleType("torch")
    vars(torch).update(nn=nn, random=SimpleNamespace(fork_rng=nullcontext), manual_seed=seeds.append)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn", nn)
    monkeypatch.delitem(sys.modules, "experiments.profiling.profiled_models", raising=False)
    import experiments.profiling.profiled_models as models

    try:
        found = {}
        for spec, seed in (("mlp", 3), ("cnn", 5)):
            model = models.find_model(spec, seed)
            found[spec] = {"name": model.name, "layers": model.module.words(), "shape": model.input_shape}
        nets = ModuleType("nets_for_a_test")
        vars(nets).update(
            Net=lambda: nn.Linear(1, 2), made=nn.ReLU(), number=7, word=lambda: "no model", needs=lambda a: a
        )
        monkeypatch.setitem(sys.modules, "nets_for_a_test", nets)
        for name in ("Net", "made"):
            model = models.find_model(f"nets_for_a_test:{name}", 1)
            found[name] = {"name": model.name, "layers": model.module.words(), "shape": model.input_shape}
        (tmp_path / "net_of_this_folder.py").write_text("from torch import nn\n\ndef Net():\n    return nn.ReLU()\n")
        monkeypatch.chdir(tmp_path)
        for _ in range(2):
            assert models.find_model("net_of_this_folder:Net", 1).module.words() == "ReLU()"
        assert sys.path.count(str(tmp_path)) == 1
        refused = {}
        for spec in ("nets_for_a_test:number", "nets_for_a_test:word", "nets_for_a_test:absent", "no_such_module:Net"):
            with pytest.raises(models.UsageError) as error:
                models.find_model(spec, 1)
            refused[spec] = str(error.value)
        with pytest.raises(
            models.UsageError, match="model 'nets_for_a_test:needs': must be callable without arguments:"
        ):
            models.find_model("nets_for_a_test:needs", 1)
    finally:
        sys.modules.pop("experiments.profiling.profiled_models")
        sys.modules.pop("net_of_this_folder", None)
    recorded(found=found, refused=refused, seeds=seeds)
