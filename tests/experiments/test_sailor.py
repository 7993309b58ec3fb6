"""Study sailor: its judge by hand on inputs of round figures, and the study on a small checkout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import experiments.sailor.__main__ as study
from experiments.cli import main
from experiments.sailor.judge import LAYERS, NETWORK, PROFILES, ZONE, Judge, read_inputs
from planners.mixed import MixedPipeline
from tests.records import Recorded, lines

GPUS = "A100-40", "V100-16", "GH-96"


def checkout(folder: Path) -> Path:
    """Three layers: each takes 3 ms per sample over its degree, on a V100 twice as long; updates 10 ms; groups send 1 GB/s.

    Layers have 1,000,000 parameters and outputs of 250,000 numbers (1 MB) a sample.
    """
    seconds = {
        gpu: {
            str(samples): {
                str(degree): {
                    str(layer): [slow * samples / degree / 1e3, 2 * slow * samples / degree / 1e3, 0.01]
                    for layer in range(3)
                }
                for degree in (1, 2, 4)
            }
            for samples in (1, 2, 4)
        }
        for gpu, slow in zip(GPUS, (1, 2, 1), strict=True)
    }
    layer = {"params_floats": 1_000_000, "act_output_floats": 250_000, "act_mem_floats": 1_000_000_000}
    sizes = {str(degree): {str(number): layer for number in range(3)} for degree in (1, 2, 4)}
    groups = {gpu: {str(degree): [[0.0, 0.0, 1.0], 1e9] for degree in (1, 2, 4)} for gpu in GPUS}
    network = {gpu: {str(degree): {ZONE: groups} for degree in (1, 2, 4)} for gpu in GPUS}
    for name, made in ((PROFILES, {"OPT-350": seconds}), (LAYERS, {"OPT-350": sizes}), (NETWORK, {ZONE: network})):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made))
    return folder


def judge(folder: Path, **gpus: int) -> Judge:
    """Of the small checkout; gpus: by their first letter."""
    names = {gpu[0]: gpu for gpu in GPUS}
    return Judge(read_inputs(checkout(folder), "OPT-350"), {names[one]: count for one, count in gpus.items()}, 8)


def test_seconds_by_hand(tmp_path: Path) -> None:
    """Two stages of two replicas, the second with a slow one: four micro-batches.

    The first of two layers takes 6 ms and sends 1 MB (1 ms); the second of one takes 6 ms on its slow replica and sends
    gradients, counted twice: 8 ms. Three more times the slowest: 15 + 3 * 8. Updates 10 ms; 8 MB over two replicas in 8 ms.
    """
    pipeline = MixedPipeline(1, 2, (2, 3), ((2, 0, 0, 0, 0, 0), (1, 0, 0, 1, 0, 0)))
    expected = (3 * 8 + 1 + 2 + 6 + 6 + 10 + 8) / 1e3
    assert judge(tmp_path, A=3, V=1).seconds(pipeline) == pytest.approx(expected)


def test_stages_without_neighbours_send_nothing(tmp_path: Path) -> None:
    """One stage of two replicas: 4 times 9 ms, updates, 12 MB over two. Of three the middle one sends both ways."""
    one, three = MixedPipeline(1, 2, (3,), ((2, 0, 0),)), MixedPipeline(1, 1, (1, 2, 3), ((1, 0, 0),) * 3)
    space = judge(tmp_path, A=3)
    assert space.seconds(one) == pytest.approx((4 * 9 + 10 + 12) / 1e3)
    assert space.seconds(three) == pytest.approx((7 * (3 + 1 + 1) + (1 + 2 + 2) + 3 * 3 + 10) / 1e3)


def test_what_replicas_reduce_at_least_by_hand(tmp_path: Path) -> None:
    """4 MB a layer: two replicas send 2 MB twice, three 4/3 MB four times; groups of two half of it; one none."""
    space = judge(tmp_path, A=6)
    for replicas, milliseconds in ((1, 0.0), (2, 4.0), (3, 16 / 3)):
        found, longer = space.synchronization(1, replicas, [(0,), (1,)])
        for begin, end in combinations(range(4), 2):
            expected = milliseconds * (end - begin) / 1e3
            assert found[:, begin, end] == pytest.approx([expected, expected / 2])
        assert not longer.any()


def test_memory_by_hand(tmp_path: Path) -> None:
    """A layer keeps 4 GB a micro-batch in flight: a V100 of 17.2 GB holds 2 + 3 * 4 GB and 24 MB a layer, and not one more."""
    small = judge(tmp_path, V=3)
    assert small.fits(MixedPipeline(1, 1, (1, 2, 3), ((1, 0, 0),) * 3))
    assert not small.fits(MixedPipeline(1, 1, (2, 3), ((1, 0, 0),) * 2))
    assert small.deepest(1, 1)[:, 0, 1:].tolist() == [[3, 1, 1], [3, 1, 1], [3, 1, 1]]


def test_memory_of_heavy_layers_by_hand(tmp_path: Path) -> None:
    """An A100 has 42.9 GB, weights and states take 12 GB a layer, and 4 GB a sample in flight; a process 2 GB, in a group 3 GB.

    Of two layers 26 GB leave room for two samples of 8 GB, 27 GB for one; of three 38 GB for none. No more than three count.
    """
    folder = checkout(tmp_path)
    sizes = json.loads((folder / LAYERS).read_text())
    for rows in sizes["OPT-350"].values():
        for row in rows.values():
            row["params_floats"] = 500_000_000
    (folder / LAYERS).write_text(json.dumps(sizes))
    space = Judge(read_inputs(folder, "OPT-350"), {"A100-40": 4}, 8)
    assert space.deepest(1, 1)[:, 0, 1:].tolist() == [[3, 2, 0], [3, 1, 0], [3, 1, 0]]
    assert space.deepest(2, 1)[:, 0, 1:].tolist() == [[3, 1, 0], [3, 0, 0], [3, 0, 0]]


def test_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    """A row per cluster, each with a plan that is proven."""
    published = study.SAILOR
    monkeypatch.setattr(study, "SAILOR", {(("A100-40", 1), ("V100-16", 1)): (9.0, 0.1)})
    words = ["study", "sailor", "--inputs", str(checkout(tmp_path))]
    assert main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["clusters"]
    assert row["proven"]
    assert row["bound_seconds"] == pytest.approx(row["seconds"])
    assert sum(stage["layers"][1] - stage["layers"][0] for stage in row["plan"]["stages"]) == 3
    assert main(words) == 0
    printed = lines(capsys.readouterr().out, r"\b\d+\.\d\d(?!\d)")
    recorded(printed=printed, planning_seconds=[seconds for _, seconds in published.values()])


def test_the_documented_rows_are_those_of_the_study() -> None:
    """GPUs of each kind, and the seconds of Sailor's plan."""
    text = (Path(study.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    table = text.split("## Sailor's inputs")[1].split("|---|---|---|---|---|\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    counts = [[int(number) for number in re.findall(r"(?<![A-Z\d])\d+", row[0])] for row in rows]
    assert counts == [[count for _, count in gpus] for gpus in study.SAILOR]
    assert [float(row[4].split(" ")[0]) for row in rows] == [seconds for seconds, _ in study.SAILOR.values()]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (PROFILES, lambda found: [], "Expected `object`, got `array`"),
        (PROFILES, lambda found: {}, "of 'OPT-350' in zone 'us-central1-a' it has not all inputs: lacks 'OPT-350'"),
        (
            PROFILES,
            lambda found: found["OPT-350"]["GH-96"]["4"]["2"].pop("1"),
            "of 'OPT-350' in zone 'us-central1-a' it has not all inputs: lacks '1'",
        ),
        (
            PROFILES,
            lambda found: found["OPT-350"]["GH-96"]["4"]["2"].update({"1": [0.1]}),
            "Expected `array` of length 3",
        ),
        (
            LAYERS,
            lambda found: found["OPT-350"]["2"]["0"].pop("params_floats"),
            "missing required field `params_floats`",
        ),
        (
            NETWORK,
            lambda found: found[ZONE]["GH-96"]["4"][ZONE].pop("V100-16"),
            "of 'OPT-350' in zone 'us-central1-a' it has not all inputs: lacks 'V100-16'",
        ),
    ],
)
def test_bad_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, change: Callable[[Any], object], words: str
) -> None:
    """A file that holds something else, or not all: one line, exit code 4."""
    path = checkout(tmp_path) / name
    found = json.loads(path.read_text())
    made = change(found)
    path.write_text(json.dumps(made if made in ([], {}) else found))
    assert main(["study", "sailor", "--inputs", str(tmp_path)]) == 4
    (said,) = capsys.readouterr().err.splitlines()
    assert words in said


def test_an_interrupt_keeps_the_rows_so_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the cluster at work, too, without its plan; exit code 130."""
    searched: list[int] = []

    def once(judge: object, row: dict[str, Any]) -> None:
        searched.append(1)
        if len(searched) > 1:
            raise KeyboardInterrupt
        row["seconds"] = 8.0

    clusters = {(("A100-40", count),): (9.0, 0.1) for count in (1, 2, 3)}
    monkeypatch.setattr(study, "SAILOR", clusters)
    monkeypatch.setattr(study, "_search", once)
    assert main(["study", "sailor", "--inputs", str(checkout(tmp_path)), "--json"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["interrupted"]
    assert [(row["gpus"], row.get("seconds")) for row in document["clusters"]] == [
        ({"A100-40": 1}, 8.0),
        ({"A100-40": 2}, None),
    ]


def test_a_folder_without_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the first file, exit code 4."""
    assert main(["study", "sailor", "--inputs", str(tmp_path)]) == 4
    assert PROFILES in capsys.readouterr().err
