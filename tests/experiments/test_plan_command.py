"""Tests of `pipeplan plan`: PipeDream's partition alone, and the runtime's figures beside a plan."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.commands.plan_command import add_arguments
from experiments.terminal.argument_types import DeclaredText
from experiments.terminal.command_parser import Parser
from simulator import ranges
from tests.experiments.commands import refused

LAYER = (
    "node{number} -- Linear(in_features=8, out_features=8, bias=True) -- forward_compute_time=1.0, "
    "backward_compute_time=2.0, activation_size=2048.000, parameter_size=0.000"
)


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """Four equal layers of 3 ms, 64 samples, no weights."""
    path = tmp_path / "four.txt"
    lines = [LAYER.format(number=number) for number in range(1, 5)]
    lines += [f"\tnode{number} -- node{number + 1}" for number in range(1, 4)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_partition_of_four_equal_layers(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without weights 4 workers share 12 ms evenly; a straight pipeline does with a layer a stage."""
    words = ("--profile", profile, "--planner", "pipedream", "--workers", "4", "--bandwidths", "12e9")
    document = planned(capsys, *words)
    assert document["slowest_stage_seconds"] == pytest.approx(0.003)
    assert document["speedup_over_one"] == pytest.approx(4.0)
    assert document["speedup_over_dp"] == pytest.approx(1.0)
    assert document["planning_seconds"] > 0
    straight = planned(capsys, *words, "--straight")
    assert straight["notation"] == "straight"
    assert [stage["states"] for stage in straight["stages"]] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert all(stage["replicas"] == 1 for stage in straight["stages"])


def test_two_levels_and_both_variants_on_vgg16(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4 servers of 4: every worker has a place; replicas are the product over levels; the script's recorded seconds return."""
    path = str(shared_data / "pipedream_profiles" / "vgg16.txt")
    words = ("--profile", path, "--workers", "4", "4", "--bandwidths", "12e9", "1.25e9")
    for variant in ("paper", "script"):
        document = planned(capsys, *words, "--variant", variant)
        stages = document["stages"]
        assert sum(stage["replicas"] for stage in stages) == 16
        assert all(
            stage["replicas"] == stage["replicas_by_level"][0] * stage["replicas_by_level"][1] for stage in stages
        )
        assert sum(len(stage["layers"]) for stage in stages) == 40
    assert document["slowest_stage_seconds"] == pytest.approx(0.06688875213333333, abs=1e-9)  # the script's own run


def test_too_little_memory_is_infeasible(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, one line."""
    path = str(shared_data / "pipedream_profiles" / "vgg16.txt")
    refused(capsys, ["plan", "--profile", path, "--workers", "4", "--bandwidths", "1e9", "--memory", "1e6"], 3)


@pytest.mark.parametrize(
    "words, said",
    [
        (["--workers", "4"], "--bandwidths must be one for each of 1 levels of --workers, got 0"),
        (["--workers", "4", "--bandwidths", "1e9", "2e9"], "got 2"),
        (
            ["--workers", "4", "--bandwidths", "-1"],
            "bandwidth of each level must be finite bytes per second > 0, got (-1.0,)",
        ),
        (["--workers", "4", "--bandwidths", "1e9", "--variant", "other"], "choices: paper, script"),
        (
            ["--workers", "4", "--bandwidths", "1e9", "--memory", "-5"],
            "memory of a device must be a number of bytes > 0, got -5.0",
        ),
        (
            ["--workers", "4", "--bandwidths", "1e9", "--planner", "uniform"],
            "--workers is for --planner pipedream, got 'uniform'",
        ),
        (["--workers", "4", "--bandwidths", "1e9", "--cluster", "pipedream-a"], "--cluster does not go with --workers"),
        (["--workers", "4", "--bandwidths", "1e9", "--batch", "8"], "--batch does not go with --workers"),
        (["--workers", "4", "--bandwidths", "1e9", "--stages", "8"], "--stages does not go with --workers"),
        (["--workers", "4", "--bandwidths", "1e9", "--seconds", "8"], "--seconds does not go with --workers"),
        (["--straight"], "--straight goes with --workers"),
        (["--bandwidths", "1e9"], "--bandwidths goes with --workers"),
    ],
)
def test_usage_errors_are_one_line(
    profile: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line that says what is wrong."""
    assert said in refused(capsys, ["plan", "--profile", profile, *words])


def test_what_is_asked_beside_a_partition_alone_is_used_or_refused(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every option of the command: of the partition, of output, or refused by its name with `--workers`."""
    used = "profile, workload, profiled_minibatch, planner, json, workers, bandwidths, variant, straight, memory, help"
    parser = Parser(prog="plan")
    add_arguments(parser)
    asked = ["plan", "--profile", profile, "--workers", "4", "--bandwidths", "1e9"]
    others = [one for one in parser._actions if one.dest not in used.split(", ")]
    assert len(others) > 35
    for one in others:
        option = one.option_strings[0]
        choices = one.type.option.choices if isinstance(one.type, DeclaredText) else ()
        value = ["a=b"] if option == "--option" else [str((*choices, 1)[0])] * (one.nargs != 0)
        assert option in refused(capsys, [*asked, option, *value])


def test_options_of_planners_that_search_orders(capsys: pytest.CaptureFixture[str]) -> None:
    """The placement and the seconds of a search are options of the command line; other planners refuse them in one line."""
    problem = ["--workload", "chain:8", "--cluster", "pipedream-arxiv-b", "--devices", "2", "--batch", "4"]
    words = [*problem, "--microbatches", "2", "--placement", "v", "--seconds"]
    found = planned(capsys, "--planner", "scheduler", *words, "0.001")
    assert [stage["devices"] for stage in found["stages"]] == [[0], [1], [1], [0]]
    assert main(["plan", "--planner", "greedy", *words, "1"]) == 2
    assert "it has no option 'placement'; planners that have it: modern, scheduler" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--planner", "scheduler", *words, "soon"])
    assert "--seconds: must be a number, more than 0" in capsys.readouterr().err


def test_workers_need_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    """The partition is made from measured seconds."""
    assert main(["plan", "--workers", "4", "--bandwidths", "1e9"]) == 2
    assert "--workers needs --profile FILE" in capsys.readouterr().err


def test_fill_drain_and_flushed_runs_stand_beside_an_asynchronous_plan(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """15-1 of VGG-16: the stream's steady state is faster than GPipe and 1F1B with a flush on the same stages."""
    path = str(shared_data / "pipedream_profiles" / "vgg16.txt")
    words = ("--profile", path, "--cluster", "pipedream-a", "--batch", "1024", "--planner", "pipedream")
    document = planned(capsys, *words)
    assert document["fill_seconds"] > 0
    assert document["drain_seconds"] > 0
    assert document["noam"] == 2  # ceil(16 / 15)
    assert [one["schedule"] for one in document["same_plan_flushed"]] == ["gpipe", "1f1b"]
    assert all(one["iteration_seconds"] > document["iteration_seconds"] for one in document["same_plan_flushed"])


@pytest.fixture
def unsized(tmp_path: Path) -> str:
    """Three convolutions of 3 ms: no shape tells how many samples there were."""
    layer = (
        "node{number} -- Conv2d(3, 3, kernel_size=(1, 1)) -- forward_compute_time=1.0, backward_compute_time=2.0, "
        "activation_size=6144.000, parameter_size=36.000"
    )
    lines = [layer.format(number=number) for number in range(1, 4)]
    lines += [f"\tnode{number} -- node{number + 1}" for number in range(1, 3)]
    path = tmp_path / "unsized.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_profiled_minibatch_is_asked_for_and_taken(
    unsized: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command that reads a profile names the option where the profile needs it, takes it, and a plan file keeps it."""
    out = tmp_path / "plan.json"
    words = ["--profile", unsized, "--cluster", "pipedream-a:1", "--batch", "256"]
    for command in (["plan", "--planner", "pipedream", *words], ["compare", *words], ["check", unsized]):
        assert main(command) == 4
        assert "--profiled-minibatch" in capsys.readouterr().err
    sized = ["--profiled-minibatch", "64"]
    assert main(["check", unsized, *sized]) == 0
    assert "mini-batch 64" in capsys.readouterr().out
    seconds = planned(capsys, "--planner", "data-parallel", *words, *sized)["iteration_seconds"]
    half = planned(capsys, "--planner", "data-parallel", *words, "--profiled-minibatch", "128")["iteration_seconds"]
    assert seconds == pytest.approx(2 * half, rel=0.05)
    assert main(["plan", "--planner", "pipedream", *words, *sized, "--out", str(out)]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["problem"]["workload"]["profiled_minibatch"] == 64
    capsys.readouterr()
    assert main(["export", "--plan", str(out), "--format", "text"]) == 0
    capsys.readouterr()
    for words in (["plan", "--planner", "uniform", *sized], ["check", str(out), *sized]):
        assert "minibatch goes with" in refused(capsys, words)


def test_replica_updates_are_an_option_of_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """The rule is chosen on the command line; an unknown one names the choices."""
    words = ["simulate", "--schedule", "1f1b-rr", "--stages", "2", "--replicas", "2,1", "--microbatches", "8"]
    times = ["--forward", "2,1", "--backward", "4,2", "--json"]
    missing = {}
    for rule in ("overlapped", "barrier"):
        assert main([*words, *times, "--replica-updates", rule]) == 0
        missing[rule] = json.loads(capsys.readouterr().out)["versions"]["forward_difference"]
    assert missing == {"overlapped": [2, 0], "barrier": [1, 0]}
    assert main([*words, *times, "--replica-updates", "never"]) == 2
    assert "replica_updates 'never' is unknown; choices: overlapped, barrier" in capsys.readouterr().err


@pytest.mark.parametrize(("devices", "text"), [((3,), "3"), ((1, 0), "0-1"), ((0, 2, 3, 4, 7), "0, 2-4, 7")])
def test_devices_in_a_row_are_a_range(devices: tuple[int, ...], text: str) -> None:
    """As the table prints them."""
    assert ranges(devices) == text


def test_a_wide_graph_is_planned_and_what_was_not_tried_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """12 branches of two convolutions have 3^12 ways to be cut: both commands plan, and say that these are not all."""
    layer = (
        "node{number} -- Conv2d(3, 3, kernel_size=(1, 1)) -- forward_compute_time=1.0, backward_compute_time=2.0, "
        "activation_size=6144.000, parameter_size=36.000"
    )
    lines = [layer.format(number=number) for number in range(26)]
    for branch in range(12):
        path = (0, 2 * branch + 1, 2 * branch + 2, 25)
        lines += [f"\tnode{one} -- node{other}" for one, other in itertools.pairwise(path)]
    profile = tmp_path / "wide.txt"
    profile.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = [
        "--profile",
        str(profile),
        "--profiled-minibatch",
        "64",
        "--cluster",
        "pipedream-a:1",
        "--planner",
        "pipedream",
    ]
    for command in (["plan", *words], ["compare", *words, "--no-figures", "--out", str(tmp_path / "out")]):
        assert main(command) == 0
        assert "the graph has more than 2,000 ways to be cut" in " ".join(capsys.readouterr().out.split())
