"""Rules of plug-ins: a package with each kind is used from the command line, and a broken one breaks only itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli import main

MODULE = '''
from experiments.studies import Study
from simulator import Layer, Stage, Workload, from_text, load_workload

def one_at_a_time(stages, microbatches):
    """Every micro-batch goes all the way before the next one starts."""
    lines = (" ".join(f"{s}F{m} {s}B{m}" for m in range(microbatches)) for s in range(stages))
    return from_text("\\n".join(lines))

def two_devices(problem, evaluate, rng):
    """The first layer on device 0, the others on device 1."""
    from simulator import Plan, equal_microbatches

    layers = len(problem.workload)
    stages = (Stage((0,), (0,)), Stage(tuple(range(1, layers)), (1,)))
    return Plan("two-devices", "one-at-a-time", stages, equal_microbatches(problem.batch, 2))

def five_layers():
    """A chain."""
    from simulator import workload_from_spec
    return workload_from_spec("chain:5")

coin = Study(__name__, "Heads or tails?", 0.1, options={"--heads": "not tails"})

def run(arguments):
    print("heads" if arguments.heads else "tails")
    return 0

class Constant:
    """One millisecond for everything."""
    name = "constant"
    memory_bytes = 2.0**34
    streams = False
    sublinear = True

    def seconds(self, work, samples, phase, precision):
        return 1e-3
'''

CLUSTER = """
name = "pair-of-mine"
[[servers]]
accelerator = "constant"
devices = 2
[servers.inside]
topology = "switch"
bandwidth_gb_per_s = 50
"""

ENTRY_POINTS = """
[pipeplan.schedules]
one-at-a-time = {module}:one_at_a_time
[pipeplan.planners]
two-devices = {module}:two_devices
[pipeplan.workloads]
five-layers = {module}:five_layers
[pipeplan.studies]
coin = {module}:coin
[pipeplan.accelerators]
constant = {module}:Constant
[pipeplan.clusters]
folder = {module}_clusters
"""

BROKEN = {
    "import fails": ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    "name is missing": ("", "AttributeError"),
    "wrong kind": ("one_at_a_time = two_devices = five_layers = coin = Constant = 3", "TypeError"),
    "ends the program": ("raise SystemExit(5)", "SystemExit: 5"),
}


def install(folder: Path, module: str, text: str) -> None:
    """A package as pip leaves it: its module, a folder with a cluster's file, and its entry points."""
    (folder / f"{module}.py").write_text(text, encoding="utf-8")
    (folder / f"{module}_clusters").mkdir()
    (folder / f"{module}_clusters" / "__init__.py").touch()
    (folder / f"{module}_clusters" / "pair-of-mine.toml").write_text(CLUSTER, encoding="utf-8")
    information = folder / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text(ENTRY_POINTS.format(module=module), encoding="utf-8")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `pipeplan words…`."""
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_each_kind_of_plug_in_is_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugins: None
) -> None:
    """A schedule and a planner that are functions, a workload, an accelerator's class and a cluster's file, by their names."""
    install(tmp_path, "pipeplan_test_plugins", MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--schedule", "one-at-a-time", "--stages", "2", "--microbatches", "3", "--forward", "1", "--backward", "2")
    code, out, err = run(capsys, "simulate", *words, "--json")
    assert (code, err, json.loads(out)["makespan_seconds"]) == (0, "", 18.0)
    code, out, err = run(
        capsys,
        *(
            "plan",
            "--planner",
            "two-devices",
            "--workload",
            "five-layers",
            "--cluster",
            "pair-of-mine",
            "--batch",
            "8",
            "--json",
        ),
    )
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert (document["schedule"], document["stages"][1]["layers"]) == ("one-at-a-time", [1, 2, 3, 4])
    # both micro-batches one after the other: 5 layers forward and backward at 1 ms, the update at 1 ms a layer, transfers
    assert document["iteration_seconds"] == pytest.approx(0.02, rel=0.3)
    for topic, name, said in (
        ("schedules", "one-at-a-time", "Every micro-batch goes all the way before the next one starts."),
        ("planners", "two-devices", "The first layer on device 0, the others on device 1."),
        ("workloads", "five-layers", ""),
        ("accelerators", "constant", ""),
        ("clusters", "pair-of-mine", ""),
    ):
        _, out, err = run(capsys, "list", topic, "--json")
        (row,) = [row for row in json.loads(out)[topic] if row["name"] == name]
        assert (row.get("summary", ""), err) == (said, "")
    assert run(capsys, "study", "coin", "--heads") == (0, "heads\n", "")


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_plug_in_is_named_and_passed_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugins: None, how: str
) -> None:
    """What does not use it works as without it; a line on stderr says which entry point is left out, and why."""
    text, said = BROKEN[how]
    module = f"pipeplan_broken_{list(BROKEN).index(how)}"
    install(tmp_path, module, text)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--stages", "2", "--microbatches", "3", "--forward", "1", "--backward", "2", "--json")
    code, out, err = run(capsys, "simulate", "--schedule", "gpipe", *words)
    assert (code, json.loads(out)["makespan_seconds"]) == (0, 12.0)
    assert err.count("\n") == 1
    assert f"passing over plug-in one-at-a-time = {module}:one_at_a_time of pipeplan.schedules: {said}" in err
    for topic, own in (
        ("planners", "uniform"),
        ("workloads", "vgg16"),
        ("accelerators", "p40"),
        ("clusters", "dapple-a"),
    ):
        code, out, err = run(capsys, "list", topic, "--json")
        assert code == 0
        assert own in {row["name"] for row in json.loads(out)[topic]}
        assert err.count("\n") == 1
        assert "passing over" in err
    code, out, err = run(capsys, "study", "--json")
    assert (code, err.count("\n")) == (0, 1)
    assert "coin" not in {row["name"] for row in json.loads(out)["studies"]}
    code, out, err = run(capsys, "simulate", "--schedule", "one-at-a-time", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "schedule 'one-at-a-time' is unknown" in err


def test_a_broken_profile_of_the_user_is_passed_over_in_lists(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`list` goes on; the file's own use still ends with exit code 4."""
    monkeypatch.setenv("PIPEPLAN_PROFILES", str(tmp_path))
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "accelerators" / "mine.toml").write_text("kind = 3\n", encoding="utf-8")
    code, out, err = run(capsys, "list", "accelerators", "--json")
    assert (code, err.count("\n")) == (0, 1)
    assert "passing over accelerator mine" in err
    assert "p40" in out


@pytest.mark.parametrize("home", [None, "/nonexistent", "/dev/null"])
def test_a_user_without_a_home_has_no_profiles(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    """No home in the environment nor among the users, or one that is no folder: names of the package are known."""
    monkeypatch.delenv("PIPEPLAN_PROFILES", raising=False)
    if home is None:
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
    else:
        monkeypatch.setenv("HOME", home)
    code, out, err = run(capsys, "list", "clusters", "--json")
    assert (code, err) == (0, "")
    assert "dapple-a" in out
