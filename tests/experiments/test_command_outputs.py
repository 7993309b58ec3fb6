"""What the commands print: small settings of every subcommand, as documents and as tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import simulator
from experiments.cli import main
from experiments.training.data import DATA_SETS
from tests.experiments.commands import noisy_clusters
from tests.records import Recorded, lines, weight, weights, without_measured

SMALL = "--workload chain:4 --cluster pipedream-a --devices 2 --batch 8"
MIXED = "--workload chain:6 --cluster dapple-a:2 --devices 3 --batch 12"
TIMES = "--forward 1,1.5,1 --backward 2 --weight 0.5 --update 0.25 --predict 0.125 --transfer 0.1"
TRAIN = "train --data wine --stages 3 --microbatches-per-minibatch 2 --batch 8 --epochs 2 --seeds 2"
PROFILED = "plan --profile four.txt --workers 2 2 --bandwidths 12e9 1.25e9"

LINES = {
    "studies": "study --json",
    "planners": "list planners --json",
    "schedules": "list schedules --json",
    "plan": f"plan {SMALL} --planner uniform --microbatches 2",
    "plan as a document": f"plan {SMALL} --planner uniform --microbatches 2 --json",
    "plan of the dynamic program": f"plan {MIXED} --planner pipedream --out plan.json",
    "plan without flush": f"plan {SMALL} --planner uniform --schedule pipedream --microbatches 4",
    "plan of unequal sizes": f"plan {MIXED} --planner exact-unequal --stages 2 --no-contention",
    "plan with a proof": f"plan {SMALL} --planner brute-force --schedule gpipe",
    "plan that says all": f"plan {MIXED} --planner greedy --schedule 1f1b --microbatches 4 --precision fp16 --optimizer adam "
    "--recompute --communication send-blocking --seed 3 --out all.json --json",
    "plan from a profile": "plan --profile four.txt --profiled-minibatch 64 --cluster pipedream-b --devices 2 --schedule 1f1b",
    "partition": PROFILED,
    "partition as a document": f"{PROFILED} --variant script --straight --memory 1e9 --json",
    "compare": f"compare {SMALL} --planner uniform --planner pipedream --timelines --out tables",
    "compare as a document": f"compare {MIXED} --planner greedy --planner brute-force --schedule 1f1b --no-figures --json "
    "--out tables",
    "export text": f"export {SMALL} --planner uniform --microbatches 3 --format text",
    "export torch-csv": f"export {SMALL} --planner uniform --microbatches 2 --schedule gpipe --to torch-csv",
    "export a pipeline of two copies": f"export {SMALL} --planner data-parallel --microbatches 2 --to torch-csv",
    "export plan": f"export {SMALL} --planner uniform --microbatches 2 --format plan",
    "export a plan file": "export --plan plan.json --format text --out order.txt",
    "check a profile": "check four.txt",
    "check a plan": "check plan.json",
    "simulate": f"simulate --schedule xpipe --stages 3 --minibatches 3 --microbatches-per-minibatch 2 {TIMES} --out order.txt",
    "simulate as a document": f"simulate --schedule 1f1b --stages 3 --microbatches 4 {TIMES} --json --out order.csv --gantt time",
    "simulate unequal sizes": "simulate --schedule gpipe --stages 2 --microbatches 2 --forward 1 --backward 2 --sizes 1,3 --json "
    "--engine recurrence --noise 0.1 --seed 3",
    "simulate with noise": "simulate --schedule gpipe --stages 2 --microbatches 2 --forward 1 --backward 2 --noise 0.1 "
    "--replays 20 --straggler 1:1.5",
    "compare a straggler": f"compare {SMALL} --planner uniform --planner greedy --straggler 0:2 --no-figures --out tables",
    "compare with noise": f"compare {SMALL} --planner uniform --planner greedy --noise 0.1 --replays 9 --straggler 0:2 "
    "--no-figures --out tables --json",
    "simulate a file": "simulate --schedule-csv order.csv --forward 1 --backward 2 --engine compiled",
    "goodput": "goodput --servers 8 --mtbf 80 --checkpoint-seconds 20 --restart-seconds 300 --spares 0 --slower 1.2 "
    "--days 4 --runs 3",
    "goodput of a plan": "goodput --plan plan.json --mtbf 100 --per device --checkpoint-gb-per-s 0.001 --restart-seconds 60 "
    "--spares 1 --checkpoint-every 600 --days 4 --runs 3 --json",
    "check a schedule": "check order.csv",
    "train": f"{TRAIN} --method xpipe --forward 1 --backward 2 --update 0.5 --predict 0.25 --transfer 0.1",
    "train as a document": f"{TRAIN} --method xpipe --json --forward-rounding ceil --correction literal --optimizer sgd --lr 0.1",
    "train on a cluster": f"{TRAIN} --method pipemare --warmup-minibatches 3 --lr-schedule cosine --optimizer adamw",
    "train replicas": "train --data wine --method naive --replicas 2,1 --batch 8 --epochs 1 --seeds 1 --replica-updates barrier",
}
"""By name, in the order in which they run: some read what others have written."""

BY_WEIGHT = (
    "studies",
    "planners",
    "schedules",
    "plan that says all",
    "partition as a document",
    "compare as a document",
    "compare with noise",
)
"""Documents of which the weights are recorded: another one of the kind is whole, or other tests walk the table."""

MEASURED = ("planning_seconds",)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A folder of its own with a profile of four equal layers, noisy clusters as `wine`, and figures by their titles."""
    monkeypatch.chdir(tmp_path)
    layer = "node{0} -- Linear(in_features=8, out_features=8, bias=True) -- forward_compute_time=1.0, backward_compute_time=2.0, "
    layer += "activation_size=2048.000, parameter_size=4096.000"
    text = [*(layer.format(number) for number in range(1, 5)), *(f"\tnode{n} -- node{n + 1}" for n in range(1, 4))]
    (tmp_path / "four.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    monkeypatch.setitem(DATA_SETS, "wine", lambda: noisy_clusters("wine"))
    drawn: dict[str, Any] = {}

    def save(figure: Figure, stem: Path | str) -> tuple[()]:
        drawn[Path(stem).name] = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
        return ()

    monkeypatch.setattr(simulator, "save", save)
    return drawn


def test_commands_print(
    here: dict[str, Any], capsys: pytest.CaptureFixture[str], recorded: Recorded, tmp_path: Path
) -> None:
    """Exit code, and what is printed: the document (planning seconds are marked), or the lines (so are CPU seconds)."""
    found: dict[str, Any] = {}
    for name, words in LINES.items():
        code = main(words.split())
        out, err = (text.replace(str(tmp_path), "HERE") for text in capsys.readouterr())
        if "--json" in words or name == "export plan":
            said: Any = without_measured(json.loads(out), *MEASURED)
        else:
            said = lines(out, r"planned in (\S+) (?:CPU )?s", r"% +(\d+\.\d\d) *\n")
        if name in BY_WEIGHT:
            said = weights(said)
        found[name] = {"words": words, "code": code, "said": said, **({"stderr": lines(err)} if err else {})}
    written = {name: (tmp_path / name).read_text(encoding="utf-8").splitlines() for name in ("order.txt", "order.csv")}
    tables = json.loads((tmp_path / "tables" / "comparison.json").read_text(encoding="utf-8"))
    assert weight(without_measured(tables, *MEASURED)["plans"]) == found["compare with noise"]["said"]["plans"]
    plan = json.loads((tmp_path / "all.json").read_text(encoding="utf-8").replace(str(tmp_path), "HERE"))
    recorded(commands=found, written=written, plan=plan, drawn=here)
