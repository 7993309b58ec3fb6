"""Tests of the measured profile: the file that `pipeplan profile` writes and every planner reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware_profiles import load_cluster
from simulator import LayerCosts, Problem, WorkloadFileError, checked_profile, load_measured_profile
from simulator.workloads.measured_profile import read_measured_profile
from tests.simulator.strategies import UnitDevice, star_cluster


def timing(samples: int, forward: float, backward: float) -> dict[str, float]:
    return {
        "samples": samples,
        "forward_seconds": forward,
        "backward_seconds": backward,
        "forward_spread": 0.1,
        "backward_spread": 0.0,
    }


def layer(name: str, *timings: dict[str, float]) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "linear",
        "parameters": 10,
        "flop": 20.0,
        "output_elements": 3.0,
        "stashed_elements": 2.0,
        "timings": list(timings),
    }


def document() -> dict[str, Any]:
    """Two layers, measured with 2 and 8 samples."""
    return {
        "format": "pipeplan-profile-1",
        "name": "small",
        "sample": "image",
        "minibatch": 8,
        "bytes_per_element": 4,
        "measurement": {
            "model": "small",
            "device": "cpu",
            "device_name": "some processor",
            "torch": "2.13.0",
            "input_shape": [3, 8, 8],
            "warm_up": 1,
            "repeats": 3,
            "spread": 0.1,
            "steady": True,
            "whole": [{"samples": 8, "forward_seconds": 0.5, "backward_seconds": 1.0}],
        },
        "layers": [layer("a", timing(2, 0.1, 0.2), timing(8, 0.4, 0.5)), layer("b", timing(2, 0.2, 0.2))],
        "edges": [[0, 1]],
    }


def written(folder: Path, content: object) -> Path:
    path = folder / "profile.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """A profile's text gives the same profile, and its workload holds every size that was measured."""
    profile = checked_profile(document())
    path = written(tmp_path, profile.to_json())
    assert load_measured_profile(path) == profile
    workload = read_measured_profile(path)
    assert workload == profile.workload()
    assert workload.layers[0].measured == ((2, 0.1, 0.2), (8, 0.4, 0.5))
    assert (workload.minibatch, workload.bytes_per_element, workload.edges) == (8, 4, ((0, 1),))


def test_planners_read_seconds_between_two_sizes(tmp_path: Path) -> None:
    """5 samples lie in the middle of 2 and 8: so do their seconds; a layer measured once scales with its samples."""
    problem = Problem(read_measured_profile(written(tmp_path, document())), load_cluster("pipedream-c"), batch=32)
    costs = LayerCosts(problem)
    assert costs.seconds(0, 5, "forward").tolist() == pytest.approx([0.25, 0.5])
    assert costs.seconds(0, 5, "backward").tolist() == pytest.approx([0.35, 0.5])


def without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda one: one.pop(key)


@pytest.mark.parametrize(
    "change, said",
    [
        (without("edges"), r"profile.json: \$\.edges: is missing"),
        (lambda one: one.update(minibatch=0), r"\$\.minibatch = 0: expected `int` >= 1"),
        (
            lambda one: one.update(extra=1),
            (
                r"\$.extra = 1: unknown key; choose from format, name, sample, minibatch, bytes_per_element, "
                r"measurement, layers, edges"
            ),
        ),
        (
            lambda one: one["measurement"].update(device_name="x" * 101),
            (
                r"\$.measurement.device_name = "
                r"'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...: expected `str` of length "
                r"<= 100"
            ),
        ),
        (
            lambda one: one.update(format="other"),
            r"\$.format = 'other': must be 'pipeplan-profile-1', as pipeplan profile writes it",
        ),
        (
            lambda one: one.update(edges=[[1, 0]]),
            (
                r"workload 'small': layers must be in topological order \(producer before consumer\), got "
                r"edge \(1, 0\)"
            ),
        ),
        (
            lambda one: one["layers"][0].update(kind="nonsense"),
            (
                r"\$.layers\[0\].kind = 'nonsense': must be one of activation, attention, convolution, "
                r"dropout, elementwise, embedding, input, linear, loss, normalization, pooling, recurrent, "
                r"reshape"
            ),
        ),
        (
            lambda one: one["layers"][0]["timings"].reverse(),
            "workload 'small': layer 'a': measured samples must be positive and rise, got 2 after 8",
        ),
        (
            lambda one: one["layers"][1]["timings"][0].update(forward_seconds=-1.0),
            r"\$\.layers\[1\]\.timings\[0\]\.forward_seconds = -1.0: expected `float` >= 0.0",
        ),
        (
            lambda one: [each.update(timings=[timing(2, 0.0, 0.0)]) for each in one["layers"]],
            r"profile.json: \$\.layers: no layer takes any time; at least one of its seconds must be above 0$",
        ),
    ],
)
def test_errors_name_file_key_value_and_rule(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    """A broken rule is one line."""
    changed = document()
    change(changed)
    with pytest.raises(WorkloadFileError, match=said) as caught:
        read_measured_profile(written(tmp_path, changed))
    assert "\n" not in str(caught.value)
    assert "profile.json" in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00", '{"format": NaN}', "[" * 5000])
def test_what_is_no_profile_is_refused(tmp_path: Path, content: str) -> None:
    """Anything else than a JSON object of our format is refused in one line, as is a folder."""
    with pytest.raises(WorkloadFileError, match=r"profile\.json"):
        read_measured_profile(written(tmp_path, content))
    with pytest.raises(WorkloadFileError, match="cannot be read"):
        read_measured_profile(tmp_path)


def test_accelerators_that_a_profile_was_not_measured_on_are_named_in_order() -> None:
    """Of eight kinds in any order, each once: a sentence is the same in every process."""
    names = [f"kind {number}" for number in (3, 1, 4, 1, 5, 9, 2, 6, 8)]
    cluster = replace(star_cluster(9), devices=tuple(UnitDevice(name=name) for name in names))
    (doubt,) = Problem(checked_profile(document()).workload(), cluster, 8).doubts()
    assert f"seconds on {', '.join(sorted(set(names)))}, whatever the accelerator" in doubt
