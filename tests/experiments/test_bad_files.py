"""Bad input files: each ends the command with exit code 4 and one short line that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli import main
from simulator.workloads.network_files import WORKLOAD_FILES
from tests.experiments.commands import refused

GPU = 'kind = "gpu"\nname = "g"\nmemory_gib = 16\nmemory_bandwidth_gb_per_s = 900\n[compute]\ntflops_fp32 = 15\n'
BOARD = Path(__file__).parents[2].joinpath("hardware_profiles", "accelerators", "vcu118.toml").read_text("utf-8")
CLUSTER = (
    'name = "c"\n[[servers]]\ncount = 2\naccelerator = "v100-sxm2"\ndevices = 2\n[servers.inside]\ntopology = "switch"\n'
    "bandwidth_gb_per_s = 10\n[network]\nbandwidth_gbps = 10\n"
)

CONFIG = '{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 1, "n_positions": 8, "vocab_size": 8}'
LINEAR = "Linear(in_features=10, out_features=10, bias=True)"
HUGE = "1" + "0" * 400


def node(description: str, forward: str = "1", size: str = "400", parameters: str = "0") -> str:
    """One node of a PipeDream profile."""
    return (
        f"node1 -- {description} -- forward_compute_time={forward}, backward_compute_time={forward}, "
        f"activation_size={size}, parameter_size={parameters}\n"
    )


BAD = {
    "no groups": ("txt", node("Conv2d(10, 10, kernel_size=(3, 3), groups=0)"), "sizes of an operator must be from 1"),
    "no output features": (
        "txt",
        node("Linear(in_features=10, out_features=0)"),
        "must be from 1 to 10000000, got '0'",
    ),
    "LSTM without features": (
        "txt",
        node("LSTM(1024, 0)", size="[400; 10; 10]"),
        "must be from 1 to 10000000, got '0'",
    ),
    "400 digits": (
        "txt",
        node(f"Linear(in_features={HUGE}, out_features=10)"),
        "must be from 1 to 10000000, got '1000",
    ),
    "5000 digits": ("txt", node(f"Conv2d(1{'0' * 5000}, 2, kernel_size=(3, 3))"), "must be from 1 to 10000000"),
    "endless seconds": (
        "txt",
        node(LINEAR, "1.7e308"),
        "1: forward_compute_time must be from 0 to 1e+15, got '1.7e308'",
    ),
    "endless bytes": ("txt", node(LINEAR, size="1e308"), "1: activation_size must be from 0 to 1e+15, got '1e308'"),
    "endless weights": (
        "txt",
        node(LINEAR, parameters="1e308"),
        "1: parameter_size must be from 0 to 1e+15, got '1e308'",
    ),
    "no time": ("txt", node(LINEAR, "0"), "no layer takes any time"),
    "deep lists": ("toml", "a = " + "[" * 1500, "nested too deeply"),
    "deep tables": ("toml", ".".join("a" * 1_000_000) + " = 1\n", "nested too deeply"),
    "deep tables of quoted names": ("toml", "[" + " . ".join(['"\\""', "''"] * 500_000) + "]\n", "nested too deeply"),
    "a long name": ("toml", GPU.replace('"g"', f'"{"g" * 256}"'), "$.name = 'ggg"),
    "a long cluster name": ("toml", CLUSTER.replace('"c"', f'"{"c" * 256}"'), "$.name = 'ccc"),
    "a long accelerator name": ("toml", CLUSTER.replace("v100-sxm2", "v" * 256), "$.servers[0].accelerator = "),
    "a long accelerator path": (
        "toml",
        CLUSTER.replace("v100-sxm2", "v" * 300 + ".toml"),
        "$.servers[0].accelerator = ",
    ),
    "lanes of 400 digits": (
        "toml",
        BOARD.replace("lanes = 8", f"lanes = {HUGE}"),
        (
            "$.transceivers.lanes = 100000000000000000000000000000000000000000000000000000000000...: "
            "must be from 1 to 100000 (serial links); check the unit"
        ),
    ),
    "an integer of 5000 digits": ("toml", GPU.replace("= 16", "= 1" + "0" * 5000), "has too many digits"),
    "an accelerator without end": (
        "toml",
        CLUSTER.replace("v100-sxm2", "/dev/zero"),
        (
            "$.servers[0].accelerator = '/dev/zero': /dev/zero: cannot be read: is no regular file, but "
            "a pipe, a socket or a device; write its content to a file"
        ),
    ),
    "a hundred million devices": (
        "toml",
        CLUSTER.replace("devices = 2", "devices = 100000000"),
        "$.servers[0].devices = 100000000: must be from 1 to 32768 (devices of a server); check the unit",
    ),
    "three thousand in a full graph": (
        "toml",
        CLUSTER.replace("devices = 2", "devices = 3000").replace('"switch"', '"full"'),
        "$.servers[0]: 2 servers of 3000 devices: a cluster has at most 65536 links, this one up to 8997000",
    ),
    "ten million blocks": ("json", CONFIG.replace('"n_layer": 2', '"n_layer": 10000000'), "expected `int` <= 10000"),
    "blocks of 400 digits": ("json", CONFIG.replace('"n_layer": 2', f'"n_layer": {HUGE}'), "expected `int` <= 10000"),
    "blocks of 5000 digits": ("json", CONFIG.replace(": 2", ": 1" + "0" * 5000), "not usable JSON"),
    "a large configuration": ("json", CONFIG + " " * 17_000_000, "is larger than"),
    "a large profile": ("txt", node(LINEAR) + "\n" * 17_000_000, "is larger than"),
    "a large table": ("toml", GPU + "\n" * 17_000_000, "is larger than"),
}
"""Suffix, text, and what the message says."""


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_line_and_exit_code_4(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check`, and where the file says what to plan also `plan`, name the file and the rule and print nothing else."""
    suffix, text, said = BAD[name]
    path = tmp_path / f"bad.{suffix}"
    path.write_text(text, encoding="utf-8")
    option = {"txt": "--profile", "json": "--workload", "toml": "--cluster"}[suffix]
    plan = ["plan", option, str(path), "--planner", "uniform"]
    for words in (["check", str(path)], *([] if "kind =" in text else [plan])):
        err = refused(capsys, words, 4)
        assert len(err) <= 300 + len(str(path))
        assert str(path) in err
        assert said in err


@pytest.mark.parametrize(
    "words",
    [
        ["--workload", "chain:0000000010000000"],
        ["--workload", "chain:" + "9" * 5000],
        ["--workload", "chain:0"],
        ["--cluster", "a" * 300],
        ["--workload", "described:"],
        *[
            ["--cluster", f"{name}:{count}"]
            for name in ("name", "dgx-a100", "")
            for count in ("x", "", "0", "-1", "9" * 400)
        ],
        ["--cluster", "dgx-a100:32768"],  # eight devices each
        ["--cluster", "fpga-vcu118-4:2"],  # with no network to join them
    ],
)
def test_a_name_that_is_too_much_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one short line."""
    assert len(refused(capsys, ["plan", "--planner", "uniform", *words])) <= 300


@pytest.mark.parametrize(
    ("text", "count", "code", "said"),
    [
        (CLUSTER, ":20000", 2, "at most 32768 devices"),
        (CLUSTER, ":x", 2, "after the colon stands the number of servers, a whole number from 1 to 32768: 'x'"),
        (CLUSTER.replace("devices = 2\n", "devices = 20000\n"), "", 4, "at most 32768 devices"),
        (CLUSTER.replace("devices = 2\n", "devices = 20000\n"), ":3", 4, "at most 32768 devices"),
        (CLUSTER.split("[network]")[0], "", 4, "need a [network]"),
        (CLUSTER.split("[network]")[0], ":3", 4, "need a [network]"),
        (CLUSTER.split("[network]")[0].replace("count = 2", "count = 1"), ":3", 2, "need a [network]"),
        (CLUSTER.replace("v100-sxm2", "name:x"), ":3", 4, "accelerator 'name:x' is not known"),
        (
            'name = "c"\n[[devices]]\nname = "a"\naccelerator = "p40"\n',
            ":2",
            2,
            "$.devices: an explicit graph does not scale; name:count needs [[servers]]",
        ),
    ],
)
def test_a_count_is_typed_and_a_cluster_is_a_file(
    text: str, count: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong with a number of servers on the command line is 2; what is wrong without it, or said by a file, is 4."""
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    words = ["plan", "--workload", "chain:2", "--cluster", f"{path}{count}", "--planner", "uniform"]
    assert said in refused(capsys, words, code)
    problem = {"workload": "chain:2", "cluster": f"{path}{count}", "batch": 2}
    file = tmp_path / "problem.json"
    file.write_text(json.dumps({"format": "pipeplan-plan-2", "problem": problem}), encoding="utf-8")
    assert main(["plan", "--problem", str(file), "--planner", "uniform"]) == 4
    assert "$.problem.cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.toml", 'name = "c"\n'),
        ("x.yaml", "n_layer: 2\n"),
        ("x.json", "[2]"),
        ("x.json", "{}"),
        ("x.json", '{"format": "pipeplan-profile-1"}'),
        ("x.onnx", "\x00"),
        ("x", ""),
        ("none.toml", None),
        (".", None),
    ],
)
def test_who_gives_another_file_for_a_workload_is_told_what_may_be_read(
    name: str, text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it is: the file, what is wrong with it, and which forms there are."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text, encoding="utf-8")
    said = refused(capsys, ["plan", "--workload", str(path), "--planner", "uniform"], 4)
    assert str(path) in said
    assert said.endswith("; " + WORKLOAD_FILES + "\n")


@pytest.mark.parametrize(
    "words",
    [
        "--workload loop.json",
        "--workload described:loop.txt",
        "--profile loop.txt",
        "--cluster loop.toml",
        "--stack loop.toml",
    ],
    ids=lambda words: words.split()[1],
)
def test_a_link_to_itself_is_a_file_that_cannot_be_read(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it stands for."""
    option, name = words.replace("loop", f"{tmp_path}/loop").split()
    path = Path(name.removeprefix("described:"))
    path.symlink_to(path)
    assert f"{path}: cannot be read: Too many levels" in refused(
        capsys, ["plan", "--planner", "uniform", option, name], 4
    )


def test_a_name_of_a_file_that_is_no_workload_is_told_what_may_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a folder it might be a name: all names, and that a path may stand in their place."""
    assert main(["plan", "--workload", "x.toml"]) == 2
    assert "or give the path of a config.json or graph.txt" in capsys.readouterr().err


def test_doubts_are_lines_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number that is unusual, a precision that is ignored, seconds that do not follow the accelerator: said once each."""
    path = tmp_path / "gpu.toml"
    path.write_text(GPU.replace("= 15\n", "= 15000\n"), encoding="utf-8")
    assert main(["check", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert captured.err.startswith(f"pipeplan check: warning: {path}: $.compute.tflops_fp32 = 15000 is unusual: ")
    profile = tmp_path / "profile.txt"
    profile.write_text(node(LINEAR, size="80", parameters="400"), encoding="utf-8")
    words = ["plan", "--profile", str(profile), "--cluster", "pipedream-c", "--devices", "1", "--planner", "uniform"]
    assert main([*words, "--precision", "int8", "--json"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": warning: ")[2][:40] for line in lines] == [
        "workload 'profile' was measured on a dev",
        "precision int8 is ignored: workload 'pro",
    ]
    assert main([*words, "--json"]) == 0
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["plan", "--workload", "chain:2", *words[3:], "--json"]) == 0
    assert capsys.readouterr().err == ""
