"""`pipeplan show` and `check` of a name, and a plan on another cluster: what bundled files say can be copied and asked."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from experiments.cli import main
from hardware_profiles import load_accelerator, load_cluster, load_stack
from simulator import Plan, PlanFile, Problem, Stage, simulate, workload_from_spec
from tests.experiments.commands import ended, refused


@pytest.mark.parametrize(
    ("words", "load"),
    [(("dgx-h100",), load_cluster), (("a100-80",), load_accelerator), (("megatron-core",), load_stack)],
    ids=lambda one: getattr(one, "__name__", one[0] if isinstance(one, tuple) else ""),
)
def test_a_shown_file_is_the_same_profile(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], load: object
) -> None:
    """What is printed, saved under another name, is read as the profile that has the name."""
    assert callable(load)
    code, out, err = ended(capsys, ("show", *words))
    assert (code, err) == (0, "")
    copy = tmp_path / "mine.toml"
    copy.write_text(out, encoding="utf-8")
    assert load(copy) == load(words[0])
    document = json.loads(ended(capsys, ("show", *words, "--json"))[1])
    assert document == {"kind": load.__name__.removeprefix("load_"), "name": words[0], "text": out}


def test_a_name_of_two_profiles_needs_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """The GH200 is a chip, and a cluster of them."""
    assert "gh200 is the name of several profiles; --kind says which: accelerator, cluster" in refused(
        capsys, ("show", "gh200")
    )
    for kind in ("accelerator", "cluster"):
        code, out, _ = ended(capsys, ("show", "gh200", "--kind", kind))
        assert (code, "kind" in tomllib.loads(out)) == (0, kind == "accelerator")
        code, told, _ = ended(capsys, ("show", "gh200", "--kind", kind, "--json"))
        assert (code, json.loads(told)) == (0, {"kind": kind, "name": "gh200", "text": out})
    code, out, _ = ended(capsys, ("check", "gh200"))
    assert (code, out.count("gh200: gpu gh200"), out.count("gh200: cluster gh200")) == (0, 1, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show dgx-h10", "no accelerator, cluster or stack is named 'dgx-h10' (did you mean dgx-h100?)"),
        ("show dgx-h100:4", "dgx-h100:4: files are named without a number of servers: pipeplan show dgx-h100"),
        (
            "show ./mine.toml",
            "./mine.toml is a path, where the name of an accelerator, a cluster or a stack is wanted",
        ),
        ("show vgg16 --kind stack", "no stack is named 'vgg16'"),
        ("show h100 --kind board", "--kind 'board' is unknown; choices: accelerator, cluster, stack"),
        ("show nothing:4", "no accelerator, cluster or stack is named 'nothing:4'"),
        ("check dgx-h10", "did you mean dgx-h100?"),
        ("check --draw a.svg", "check takes one of FILE, --plan FILE and --schema KIND; or --draw FILE with a cluster"),
        ("check --draw a.svg --schema plan", "check takes one of FILE, --plan FILE and --schema KIND"),
        ("check dgx-h100 --draw a.svg --schema plan", "check takes one of FILE, --plan FILE and --schema KIND"),
        ("simulate --schedule gpipe --cluster dgx-h100", "--cluster goes with --plan"),
    ],
)
def test_names_that_are_none(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    """Exit code 2 and one line."""
    assert said in refused(capsys, words.split())


def test_a_file_of_a_bundled_name_is_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without an ending in this folder is checked in place of the profile of that name."""
    monkeypatch.chdir(tmp_path)
    Path("dgx-h100").write_text("nothing = 1\n", encoding="utf-8")
    assert (
        'dgx-h100: $: an accelerator says kind = "gpu" or "accelerator" or "fpga", a stack kind = '
        '"stack", a cluster has [[servers]] or [[devices]]; this file has only nothing'
    ) in refused(capsys, ("check", "dgx-h100"), 4)


def two_stages(cluster: str, second: int) -> PlanFile:
    """Four layers on the first device and another one."""
    problem = Problem(workload_from_spec("chain:4"), load_cluster(cluster), 8)
    stages = (Stage((0, 1), (0,)), Stage((2, 3), (second,)))
    return PlanFile(problem, Plan("hand", "1f1b", stages, (2, 2, 2, 2)))


def test_a_plan_on_another_cluster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is the plan replayed on a problem of that cluster; one that has too few devices is refused."""
    path = tmp_path / "plan.json"
    two_stages("pipedream-a", 1).write(path)
    other = two_stages("dgx-h100:1", 1)
    assert main(("simulate", "--plan", str(path), "--cluster", "dgx-h100:1", "--json")) == 0
    assert other.plan is not None
    told = json.loads(capsys.readouterr().out)["iteration_seconds"]
    assert told == simulate(other.problem, other.plan).iteration_seconds
    two_stages("pipedream-a", 15).write(path)
    line = refused(capsys, ("simulate", "--plan", str(path), "--cluster", "dgx-h100:1"))
    assert "--cluster dgx-h100:1 has devices 0 to 7" in line
    assert line.endswith("uses device 15\n")
