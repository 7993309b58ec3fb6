"""Rules of the command line: one line for every mistake, the right exit code, one JSON document, nothing half-written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import cache
from inspect import signature
from pathlib import Path

import pytest

import pipeplan as pp
import simulator
from experiments.cli import COMMANDS, main, parser_of
from experiments.commands import list_command
from experiments.terminal.command_parser import MEANT, meant
from simulator import BoundTerm, simulation
from simulator.costs.lower_bound import LowerBound
from tests.experiments.commands import ended, no_picture, refused, small_gpt
from tests.records import without_measured


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `pipeplan words…`."""
    return ended(capsys, words)


SIMULATE = (
    "simulate", "--schedule", "1f1b", "--stages", "8", "--microbatches", "64", "--forward", "1", "--backward", "2"
)  # fmt: skip
UNIFORM = ("plan", "--workload", "chain:4", "--planner", "uniform")
REPEATED = (*SIMULATE[:5], *SIMULATE[7:], "--microbatches-per-minibatch", "1")


@pytest.mark.parametrize(("transfer", "makespan"), [("0", 213.0), ("0.1", 225.4), ("0.5", 275.0), ("1", 337.0)])
@pytest.mark.parametrize("engine", ["simpy", "recurrence"])
def test_simulate_prints_the_closed_form(
    capsys: pytest.CaptureFixture[str], engine: str, transfer: str, makespan: float
) -> None:
    """(m+p-1)(F+B) + 2c[(p-1)m/p + (p-2)], p=8, m=64, F=1, B=2."""
    code, out, err = run(capsys, *SIMULATE, "--transfer", transfer, "--engine", engine, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["makespan_seconds"] == pytest.approx(makespan, rel=1e-9)
    assert document["peak_in_flight"] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert (document["ops"], document["engine"]) == (1024, engine)
    assert set(document["bubble"]) == {"idle_over_makespan", "over_ideal", "longest_stage"}


@pytest.mark.parametrize(("memory", "expected"), [("16", 0), ("15", 3)])
def test_simulate_says_whether_devices_hold_what_ops_keep(
    capsys: pytest.CaptureFixture[str], memory: str, expected: int
) -> None:
    """Eight forwards of 2 in flight on the first device: a limit of 16 holds, one of 15 ends in exit code 3."""
    code, out, err = run(capsys, *SIMULATE, "--stash", "2", "--memory", memory, "--json")
    document = json.loads(out)
    assert (code, err, document["fits"]) == (expected, "", expected == 0)
    assert document["peak_memory"] == [16, 14, 12, 10, 8, 6, 4, 2]


@pytest.mark.parametrize(("mode", "makespan"), [("send-blocking", 226.9), ("both-blocking", 240.8)])
def test_simulate_with_blocking_transfers(capsys: pytest.CaptureFixture[str], mode: str, makespan: float) -> None:
    """A transfer of 0.1 s that occupies the sender, or both: 226.9 and 240.8 s."""
    _, out, _ = run(capsys, *SIMULATE, "--transfer", "0.1", "--communication", mode, "--json")
    assert json.loads(out)["makespan_seconds"] == pytest.approx(makespan, rel=1e-9)


def test_simulate_takes_one_number_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    """Two stages of 1+2 and 2+4 s, one micro-batch: 1 + 2 + 4 + 2 s."""
    words = ("--stages", "2", "--microbatches", "1", "--forward", "1,2", "--backward", "2,4", "--json")
    _, out, _ = run(capsys, "simulate", "--schedule", "gpipe", *words)
    assert json.loads(out)["makespan_seconds"] == 9.0


def test_noise_repeats_under_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed gives the same bits, another seed others."""
    makespans = []
    small = (*SIMULATE[:4], "2", "--microbatches", "4", *SIMULATE[7:])
    for seed in ("1", "1", "2"):
        _, out, _ = run(capsys, *small, "--noise", "0.1", "--seed", seed, "--json")
        makespans.append(json.loads(out)["makespan_seconds"])
    assert makespans[0] == makespans[1] != makespans[2]


@pytest.mark.parametrize(
    ("code", "words", "said"),
    [
        (2, ("nonsense",), "'nonsense' is unknown; choices: compare, plan,"),
        (2, ("simulat", "--plan", "plan.json"), "command 'simulat' is unknown (did you mean simulate?)"),
        (2, ("--workload", "vgg16"), "a command stands before its options, got --workload first"),
        (2, ("--verison",), "a command stands before its options, got --verison"),
        (2, ("plan", "--worload", "vgg16"), "plan: option '--worload' is unknown (did you mean --workload?)"),
        (2, ("explain", "--plan", "a.json", "--window", "0:1"), "option '--window' is unknown (see pipeplan explain"),
        (2, ("simulate", "--sched", "1f1b"), "option '--sched' is unknown (did you mean --schedule?)"),
        (2, ("plan", "--worload=vgg16"), "plan: option '--worload' is unknown (did you mean --workload?)"),
        (2, ("plan", "--model", "gpt2"), "option '--model' is unknown (did you mean --workload?)"),
        (2, ("train", "--method", "2bw", "--model", "gpt2"), "option '--model' is unknown (did you mean --network?)"),
        (
            2,
            ("plan", "--num_gpus=8"),
            "option '--num_gpus' is unknown (did you mean --cluster NAME:SERVERS, or --devices?)",
        ),
        (2, ("plan", "--tensor-model-parallel-size", "2"), "(did you mean --tensor?)"),
        (2, ("plan", "--seq-length", "4096"), "(did you mean --sequence?)"),
        (2, ("plan", "--micro-batch-size", "1"), "(did you mean --microbatches, their number in an iteration?)"),
        (2, ("plan", "-PP", "4"), "option '-PP' is unknown (did you mean --stages?)"),
        (2, ("plan", "-workload", "vgg16"), "plan: option '-workload' is unknown (did you mean --workload?)"),
        (2, ("plan", "--plan", "plan.json"), "plan: option '--plan' is unknown"),
        (2, ("plan", "vgg16"), "plan: 'vgg16' belongs to no option"),
        (2, ("plan", "--sequence-parallel", "4"), "plan: '4' belongs to no option"),
        (2, ("plan", "--sequence-parallel", "--no-sequence-parallel"), "says the opposite of --sequence-parallel"),
        (2, ("check", "--", "a.toml", "--plan"), "check: '--plan' belongs to no option"),
        (2, ("list", "workloads", "vgg16"), "list: 'vgg16' belongs to no option"),
        (2, ("study", "umpipe", "--fast"), "study umpipe: option '--fast' is unknown"),
        (2, ("study", "--quick", "umpipe"), "study: option '--quick' is unknown"),
        (
            2,
            ("plan", "--batch", "8", "--batch=9"),
            "plan: option --batch is given twice, as 8 and as 9: it takes one value",
        ),
        (2, ("explain", "--plan", "a.json", "--plan", "b.json"), "--plan is given twice, as a.json and as b.json"),
        (2, ("plan", "--workers", "4", "4", "--workers", "4"), "--workers is given twice, as 4 4 and as 4"),
        (
            2,
            ("study", "xpipe", "--seeds", "2", "--seeds", "3"),
            "xpipe: option --seeds is given twice, as 2 and as 3",
        ),
        (4, ("explain", "--plan", "a.json", "--plan", "a.json"), "a.json: No such file"),
        (2, ("whatif", "--plan", "a.json", "--seconds", "0"), "--seconds: must be a number, more than 0"),
        (2, ("plan", "--workload", ""), "plan: option --workload needs a value, got ''"),
        (2, ("compare", "--out="), "compare: option --out needs a value, got ''"),
        (2, ("study", "umpipe", "--out", ""), "study umpipe: option --out needs a value, got ''"),
        (2, ("study", "schedule-search", "--cases="), "option --cases needs a value, got ''"),
        (2, ("study", "schedule-search", "--seconds", "3"), "--seconds goes with --cases"),
        (4, ("study", "schedule-search", "--cases", "/no/such/file"), "/no/such/file: No such file"),
        (2, ("check", "--", "--no-such-file"), "no accelerator, cluster or stack is named '--no-such-file'"),
        (2, ("study", "unequal-speed", "--family", "x"), "--family"),
        (2, ("plan", ""), "plan: '' belongs to no option"),
        (2, ("train", "--method", "xpipe", "--cluster", "nope"), "cluster 'nope' is not known"),
        (2, ("simulate", "--schedule", "1f1b", "--forward", "1", "--backward", "1"), "--stages"),
        (2, (*SIMULATE[:8], "one", "--backward", "2"), "'one' is not a number"),
        (2, (*SIMULATE[:8], "1,one", "--backward", "2"), "argument --forward: 'one' is not a number"),
        (2, (*SIMULATE[:8], "nan", "--backward", "2"), "finite"),
        (2, (*SIMULATE[:8], "-1", "--backward", "2"), "at least 0"),
        (2, (*SIMULATE[:8], "1,2", "--backward", "2"), "8 stages"),
        (2, (*SIMULATE, "--transfer", "-1"), "at least 0"),
        (2, (*SIMULATE, "--transfer", "nan"), "finite"),
        (2, (*SIMULATE, "--engine", "fast"), "simpy"),
        (2, (*SIMULATE[:4], "1000000000", *SIMULATE[5:]), "at most 8,388,608 ops on SimPy (other engines take more): "),
        (2, (*SIMULATE[:6], "2147483648", *SIMULATE[7:]), "a schedule has at most"),
        (
            2,
            (*SIMULATE[:6], "9" * 400, *SIMULATE[7:]),
            (
                "'99999999999999999999999999999999999999999999999999999999999... must be a whole number of at "
                "most 1,000,000,000,000"
            ),
        ),
        (2, (*REPEATED, "--minibatches", "2147483648"), "a schedule has at most"),
        (
            2,
            (*SIMULATE[:7], "--forward", "1e308", "--backward", "1e308"),
            "the durations of 1024 tasks and their transfers must sum to at most 1e+300 seconds, got inf",
        ),
        (2, (*SIMULATE, "--weight", "1e308", "--transfer", "1e308", "--engine", "recurrence"), "1e+300 seconds"),
        (2, ("plan", "--workload", "chain:4", "--batch", "1000000000000"), "at most 16,777,216, got 1000000000000"),
        (2, (*UNIFORM, "--batch", "2100000", "--microbatches", "2100000"), "a schedule has at most"),
        (2, ("train", "--method", "xpipe", "--epochs", "1000000000"), "a schedule has at most"),
        (2, (*SIMULATE, "--communication", "carrier-pigeon"), "send-blocking"),
        (2, (*SIMULATE, "--chunks", "2"), "does not take chunks"),
        (2, ("simulate", "--schedule", "2f2b", *SIMULATE[3:]), "choices"),
        (
            2,
            ("simulate", "--schedule", "1f1b-rr", *SIMULATE[3:]),
            "schedule '1f1b-rr' needs replicas, one count per stage",
        ),
        (4, ("simulate", "--schedule-csv", "/no/such/file", "--forward", "1", "--backward", "2"), "No such file"),
        (4, ("simulate", "--schedule-csv", "/", "--forward", "1", "--backward", "2"), "directory"),
        (2, ("compare", "--workload", "vgg61"), "vgg16"),
        (2, ("compare", "--cluster", "pipedream-x"), "did you mean pipedream-"),
        (2, ("compare", "--planner", "oracle"), "data-parallel"),
        (2, ("compare", "--schedule", "2f2b"), "choices"),
        (2, ("compare", "--batch", "0"), "at least 1"),
        (2, ("compare", "--batch", "1e3"), "whole number"),
        (2, ("compare", "--devices", "17"), "16 devices"),
        (2, ("compare", "--precision", "fp7"), "fp16"),
        (2, ("compare", "--optimizer", "magic"), "adam"),
        (2, ("compare", "--microbatches", "2000"), "2000"),
        (2, ("compare", "--seed", "-1"), "--seed"),
        (4, ("compare", "--profile", "/no/such/graph.txt"), "No such file"),
        (4, ("compare", "--profile", "."), "must have 1 to 4,096 files in .json or .json.gz, has 0"),
        (4, ("compare", "--cluster", "/no/such/cluster.toml"), "cluster.toml"),
        (3, ("plan", "--planner", "uniform", "--workload", "gpt2-xl", "--devices", "2", "--optimizer", "adam"), "GiB"),
        (2, ("plan", "--planner", "brute-force"), "does not apply"),
        (2, ("plan", "--workload", "gpt2", "--attention", "flash"), "one of fused, unfused, eager"),
        (2, ("plan", "--attention", "fused"), "'vgg16' has no attention to set"),
        (2, ("plan", "--profile", "graph.txt", "--attention", "fused"), "--attention cannot change a measured profile"),
        (2, ("export", "--format", "papyrus"), "chrome-trace"),
        (4, ("export", "--format", "text", "--plan", "/no/such/plan.json"), "No such file"),
        (2, ("list", "elephants"), "workloads"),
        (2, ("check",), "FILE"),
        (2, ("check", "--schema", "elephant"), "accelerator"),
        (4, ("check", "/no/such.toml"), "/no/such.toml"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    words: tuple[str, ...],
    said: str,
) -> None:
    """Every mistake: its exit code, one line on stderr that says what would be right, nothing on stdout, no file written."""
    monkeypatch.chdir(tmp_path)
    err = refused(capsys, words, code)
    assert said in err
    assert "Traceback" not in err
    assert "Errno" not in err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_empty_file_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An empty profile, schedule, plan or configuration: exit code 4, one line that names the file."""
    for name, words in (
        ("graph.txt", ("compare", "--profile")),
        ("cluster.toml", ("compare", "--cluster")),
        ("schedule.csv", ("simulate", "--forward", "1", "--backward", "1", "--schedule-csv")),
        ("plan.json", ("export", "--format", "text", "--plan")),
        ("config.json", ("compare", "--workload")),
        ("any.toml", ("check",)),
    ):
        path = tmp_path / name
        path.write_text("")
        assert name in refused(capsys, (*words, str(path)), 4)


def test_help_needs_no_heavy_library() -> None:
    """`pipeplan --help` loads none of the libraries that take long, and lists every command."""
    code = (
        "import sys\nfrom experiments.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'numba', 'pandas', 'matplotlib', 'networkx', 'simpy', 'rich', 'msgspec', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(name in done.stdout for name in COMMANDS)


def test_a_search_loads_no_more_than_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """With kernels that are compiled: neither compiler nor graph library nor another planner; the end searches no memory."""
    words = [
        "plan",
        "--planner",
        "pipeline-data",
        "--workload",
        "chain:4",
        "--cluster",
        "pipedream-a",
        "--devices",
        "2",
    ]
    words += ["--batch", "8"]
    assert run(capsys, *words)[0] == 0
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "from experiments.cli import main\nmain()\n"
        "needless = {'networkx', 'numba.np.arraymath', 'pandas', 'planners.pipedream', 'planners.unequal', 'scipy.linalg'}\n"
        "print(sorted(needless & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["[]", "True"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """`pipeplan COMMAND --help` exits with 0 and says what the command does."""
    code, out, err = run(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert "--json" in out or name in ("check", "export")


LISTED = {
    "workloads": "alexnet 61,100,840 1.428 22 256 × image",
    "accelerators": "v100-sxm2-32 31",
    "clusters": "fpga-mixed-4 1 4 vcu118, vcu129",
    "schedules": "fbp-as yes lanes forwards beside backwards on accelerators that send while they compute (BaPipe)",
    "planners": "local-greedy unequal sizes, every stage alone stages, candidates, granularity candidates, stages",
}
"""A row of each table."""


@pytest.mark.parametrize("topic", LISTED)
def test_list_names_what_can_be_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """Each topic has names, and JSON gives the same ones as the table; workloads and clusters by group, in 80 columns."""
    monkeypatch.setattr(list_command, "rows_of", cache(list_command.rows_of))
    code, out, _ = run(capsys, "list", topic, "--json")
    rows = json.loads(out)[topic]
    assert code == 0
    assert rows
    code, table, _ = run(capsys, "list", topic)
    assert code == 0
    assert LISTED[topic] in [" ".join(line.split()) for line in table.splitlines()]
    assert all(row["name"] in table for row in rows)
    if topic in ("workloads", "clusters"):
        assert max(map(len, table.splitlines())) <= 80
        assert all(f"\n {row['group']} " in table for row in rows)
    if topic == "clusters":
        kinds = [row["accelerators"].split(", ") for row in rows]
        assert max(map(len, kinds)) > 2
        assert all(one == sorted(set(one)) for one in kinds)


COMPARED = ("data-parallel", "uniform")
COMPARE = (
    *("compare", "--workload", "chain:4", "--cluster", "pipedream-arxiv-b", "--devices", "2", "--batch", "64"),
    *("--microbatches", "4", *(word for name in COMPARED for word in ("--planner", name))),
)


def test_compare_writes_tables_and_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record a planner, in JSON, CSV and the table, with a plan file; where asked a Gantt and a memory figure for every plan,
    PNG and SVG. Same inputs and seed give the same records but for the seconds of planning.
    """
    monkeypatch.setattr(simulator, "save", no_picture)
    code, out, _ = run(capsys, *COMPARE, "--timelines", "--out", str(tmp_path), "--json")
    document = json.loads(out)
    assert code == 0
    assert [record["planner"] for record in document["plans"]] == list(COMPARED)
    for record in document["plans"]:
        assert record["iteration_seconds"] >= record["lower_bound_seconds"] > 0
        assert record["samples_per_second"] == pytest.approx(64 / record["iteration_seconds"])
        assert 0 < record["peak_memory_bytes"] <= record["capacity_bytes"]
        for figure in ("gantt.png", "gantt.svg", "memory.png", "memory.svg"):
            assert (tmp_path / f"{record['planner']}-{figure}").exists()
        file = tmp_path / f"{record['planner']}-plan.json"
        assert json.loads(file.read_text()) == record["plan"]
        _, replayed, _ = run(capsys, "simulate", "--plan", str(file), "--json")
        assert json.loads(replayed)["iteration_seconds"] == record["iteration_seconds"]
    assert document["plans"][0]["speedup_over_data_parallel"] == 1.0
    assert json.loads((tmp_path / "comparison.json").read_text())["plans"] == document["plans"]
    header = (tmp_path / "comparison.csv").read_text().splitlines()[0]
    assert [*header.split(","), "plan"] == list(document["plans"][0])
    assert sorted(map(str, tmp_path.iterdir())) == sorted(document["files"])
    _, out, _ = run(capsys, *COMPARE, "--no-figures", "--out", str(tmp_path / "again"), "--json")
    same = [without_measured(plans, "planning_seconds") for plans in (document["plans"], json.loads(out)["plans"])]
    assert same[0] == same[1]
    assert not [*(tmp_path / "again").glob("*.png")]
    for words, there in (((), {"comparison.png", "comparison.svg"}), (("--timelines", "--no-figures"), set())):
        code, out, err = run(capsys, *COMPARE, *words, "--out", str(tmp_path / "one"))
        assert (code, "ask for one of them" in err) == ((0, False) if there else (2, True))
        drawn = {file.name for file in (tmp_path / "one").iterdir() if file.suffix in (".png", ".svg")}
        assert drawn == (there or {"comparison.png", "comparison.svg"})
        assert ("--timelines draws every plan" in out) == bool(there)


def test_compare_says_what_does_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """GPT-2 XL does not fit two 16 GiB devices: exit code 3, the numbers in the output, tables written."""
    words = ("compare", "--workload", "gpt2-xl", "--cluster", "pipedream-arxiv-b", "--devices", "2", "--batch", "2")
    code, out, _ = run(
        capsys, *words, "--optimizer", "adam", "--planner", "data-parallel", "--no-figures", "--out", str(tmp_path)
    )
    assert code == 3
    assert "data-parallel: no plan" in out
    assert "GiB" in out
    assert (tmp_path / "comparison.json").exists()


def test_a_plan_goes_to_a_file_and_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`plan --out` then `export --plan` gives the ops of the plan, and its trace the plan's makespan."""
    path = tmp_path / "plan.json"
    words = [
        "--workload",
        "chain:4",
        "--cluster",
        "pipedream-arxiv-b",
        "--devices",
        "2",
        "--batch",
        "8",
        "--microbatches",
        "2",
    ]
    code, out, _ = run(capsys, "plan", *words, *UNIFORM[3:], "--schedule", "gpipe", "--out", str(path), "--json")
    document = json.loads(out)
    assert code == 0
    code, out, _ = run(capsys, "export", "--plan", str(path), "--format", "text")
    assert (code, out) == (0, "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n")
    code, out, _ = run(capsys, "export", "--plan", str(path), "--to", "torch-csv", "--out", str(tmp_path / "s.csv"))
    assert (tmp_path / "s.csv").read_text() == "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"
    csv = ("--schedule-csv", str(tmp_path / "s.csv"))
    code, out, _ = run(capsys, "simulate", *csv, "--forward", "1", "--backward", "2", "--json")
    assert json.loads(out)["makespan_seconds"] == 9.0
    _, out, _ = run(capsys, "export", "--plan", str(path), "--format", "chrome-trace")
    assert json.loads(out)["otherData"]["makespan_seconds"] == document["iteration_seconds"]


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--plan", "plan.json"),
        ("compare", "--plan", "plan.json", "--planner", "greedy"),
        ("plan", "--workload", "chain:2", "--cluster", "dapple-a:1", "--planner", "brute-force"),
    ],
)
def test_a_replay_below_the_bound_of_its_problem_ends_a_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Exit code 1 and one line with the plan, its seconds and the bound; nothing else is said or written."""
    monkeypatch.chdir(tmp_path)
    asked = ("plan", "--workload", "chain:2", "--cluster", "dapple-a:1", "--planner", "uniform", "--out", "plan.json")
    assert run(capsys, *asked)[0] == 0
    wrong = LowerBound((BoundTerm("work", 1e6, False),))
    monkeypatch.setattr(simulation, "lower_bound", lambda *given: wrong)
    err = refused(capsys, words, 1)
    assert err.startswith(f"pipeplan {words[0]}: internal error: plan ")
    assert "its work, 1000000 s; please report this with the plan" in err
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_deadlocked_schedule_file_names_device_position_and_op(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Stage 0 wants the backward before stage 1 has run the forward that it needs: device 0, position 1, op 0B0."""
    path = tmp_path / "bad.csv"
    path.write_text("0F0,0B1,0F1,0B0\n1F0,1B0,1F1,1B1\n")
    code, _, err = run(capsys, "simulate", "--schedule-csv", str(path), "--forward", "1", "--backward", "1")
    assert code == 4
    assert "device 0, position 1: op 0B1" in err


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n", 0, "ok: schedule of 2 stages on 2 devices, 2 micro-batches, 8 ops"),
        ("(0F0 0B0)*2\n", 0, "ok: schedule of 1 stage on 1 device, 2 micro-batches, 4 ops"),
        ("0F0 0F1 0B0\n", 4, "device 0: op 0B1 is missing"),
        ("node1 -- Linear\n", 4, "a node is `node1 -- operator"),
    ],
)
def test_lines_of_ops_are_checked_as_a_schedule(
    text: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text file that begins with an op is a schedule, any other a graph of PipeDream's."""
    path = tmp_path / "ops.txt"
    path.write_text(text)
    assert main(["check", str(path)]) == code
    found = capsys.readouterr()
    assert said in found.out + found.err


def test_what_nobody_asked_for_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Batch, tokens, precision and optimizer that the options leave open, with the options; nothing where all are given. Sequence
    parallelism where the plan has tensor-parallel groups; that a profile has no bytes.
    """

    def told(command: str, *words: str) -> list[str]:
        """Lines of what is by default, of a plan or a comparison of data parallelism."""
        planner = "large" if "--tensor" in words else "data-parallel"
        given = ("--planner", planner, *words, *(("--no-figures",) if command == "compare" else ()))
        code, out, _ = run(capsys, command, *given)
        assert code == 0
        return [line for line in out.splitlines() if line.startswith("by default")]

    gpt = "--workload", small_gpt(tmp_path), "--cluster", "dgx-a100:1", "--stack", "megatron-core"
    assert told("plan", *gpt) == [
        "by default: 8 sequences, 64 tokens, bf16, adam (--batch, --sequence, --precision, --optimizer)"
    ]
    assert told("compare", *gpt, "--batch", "16", "--precision", "fp16") == [
        "by default: 64 tokens, adam (--sequence, --optimizer)"
    ]
    every = "--batch", "8", "--sequence", "32", "--precision", "bf16", "--optimizer", "sgd"
    assert told("plan", *gpt, *every) == []
    groups = "--tensor", "2", "--devices", "2"
    assert told("plan", *gpt, *every, *groups) == ["by default: sequence parallelism (--sequence-parallel)"]
    assert told("plan", *gpt, *every, *groups, "--sequence-parallel") == []
    assert told("plan", *gpt, *every, *groups, "--no-sequence-parallel") == []
    assert told("plan", "--workload", "chain:4", "--cluster", "pipedream-a", "--devices", "2") == [
        "by default: 2 samples, fp32, momentum (--batch, --precision, --optimizer)"
    ]
    unsized = (
        "the profile tells seconds alone, no bytes and no weights: transfers take their latency, reductions nothing, and "
        "memory is not judged"
    )
    path = tmp_path / "graph.txt"
    for activation, weights, said in (("0.0", "0.0", f"; {unsized}"), ("0.0", "4.0", ""), ("4.0", "0.0", "")):
        seconds = "forward_compute_time=1.0, backward_compute_time=2.0"
        path.write_text(f"node1 -- One -- {seconds}, activation_size={activation}, parameter_size={weights}\n")
        profile = "--profile", str(path), "--profiled-minibatch", "1", "--cluster", "pipedream-a", "--devices", "1"
        assert told("plan", *profile) == [f"by default: 1 sample, momentum (--batch, --optimizer){said}"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_is_a_page_whose_examples_can_be_typed(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """At most 60 lines of 80 columns with examples; what is beside stands under topics, and all of it in all."""
    page = run(capsys, name, "--help")[1]
    assert len(page.splitlines()) <= 60
    assert max(map(len, page.splitlines())) <= 80
    parser, commands = parser_of([name])
    assert commands[name].examples
    for words in commands[name].examples:
        assert f"pipeplan {name} {words}".strip() in re.sub(r" \\\n +", " ", page)
        assert parser.parse_known_args([name, *shlex.split(words.split(" > ")[0])])[1] == []
    whole = run(capsys, name, "--help", "all")[1]
    topics = commands[name].topics() if "(see --help " in page else {}
    shown = [run(capsys, name, "--help", topic)[1] for topic in topics]
    for action in commands[name]._actions:
        for told in (page, whole):
            assert all(option in told for option in action.option_strings)
    for topic, group in topics.items():
        own = [str(action.help)[:8] for action in group._group_actions]
        assert all(words in shown[[*topics].index(topic)] for words in own)
        assert f"(see --help {topic})" in page


def test_topics_of_help_are_named_where_none_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    """As any word that is none of some choices."""
    said = refused(capsys, ("plan", "--help", "serch"))
    assert "topic of help 'serch' is unknown" in said
    assert "search" in said


def test_without_a_seed_commands_and_functions_draw_alike() -> None:
    """Of whatever takes a seed the default is the same."""
    _, commands = parser_of(COMMANDS)
    told = [one.get_default("seed") for one in commands.values() if "--seed" in one._option_string_actions]
    asked = [
        signature(one).parameters["seed"].default for one in (pp.compare, pp.goodput, pp.plan, pp.simulate, pp.what_if)
    ]
    assert len(told) > 4
    assert len({*told, *asked}) == 1


def test_what_other_tools_call_an_option_names_one_that_is_there() -> None:
    """Every hint is of options that a command has, and every word of it leads there, where the command has no such option."""
    _, commands = parser_of(COMMANDS)
    have = [{name for name in one._option_string_actions if name.startswith("--")} for one in commands.values()]
    for hint, words in MEANT.items():
        options = re.findall("--[a-z-]+", hint)
        having = [known for known in have if known.issuperset(options)]
        assert having, hint
        for word in words.split():
            told = {meant(f"--{word}", known) for known in having if f"--{word}" not in known}
            assert hint in told, (word, hint)


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish"])
def test_completion_knows_commands_and_their_options(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    """Every command, and options of several; a shell that is none is refused."""
    code, script, err = run(capsys, "--completion", shell)
    assert (code, err) == (0, "")
    assert all(word in script for word in (*COMMANDS, "launchable", "microbatches", "paths"))
    assert "fsh" in refused(capsys, ("--completion", "fsh"))


def test_bash_completes_options(tmp_path: Path) -> None:
    """The script is a script: `pipeplan plan --wor` becomes one of two options."""
    script = subprocess.run(
        [sys.executable, "-m", "experiments.cli", "--completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    (tmp_path / "pipeplan").write_text(script)
    typed = "COMP_WORDS=(pipeplan plan --wor); COMP_CWORD=2; _shtab_pipeplan; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "-c", f"source {tmp_path}/pipeplan; {typed}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["--workload", "--workers"]
