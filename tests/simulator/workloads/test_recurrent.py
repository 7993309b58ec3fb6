"""GNMT against PipeDream's profiles and sums worked out by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator.workloads.gnmt import gnmt, gnmt8, gnmt16, lstm_parameters
from simulator.workloads.pipedream_profile import read_profile


def test_lstm_parameters_are_four_gates_with_two_biases() -> None:
    """LSTM(1024, 1024) takes 33,587,200 bytes in fp32 and LSTM(2048, 1024) 50,364,416."""
    assert 4 * lstm_parameters(1024, 1024) == 33_587_200
    assert 4 * lstm_parameters(2048, 1024) == 50_364_416


def test_gnmt8_parameters_are_the_sum_of_its_parts() -> None:
    """Two embeddings, 1 bidirectional, 4 wide and 2 narrow LSTMs, attention LSTM, classifier."""
    narrow, wide = lstm_parameters(1024, 1024), lstm_parameters(2048, 1024)
    attention = narrow + 2 * 1024 * 1024 + 1024
    classifier = 1024 * 32320 + 32320
    total = 2 * 32320 * 1024 + 2 * narrow + 4 * wide + 2 * narrow + attention + classifier
    assert gnmt8().parameters() == total == 193_765_952


@pytest.mark.parametrize(("make", "profile"), [(gnmt8, "gnmt.txt"), (gnmt16, "gnmt_large.txt")])
def test_parameters_and_flop_equal_the_profiles(make: object, profile: str, shared_data: Path) -> None:
    """The analytic network and the profiled one have the same weights and work, layer sums included."""
    path = shared_data / "pipedream_profiles" / profile
    sizes = sum(float(size) for size in re.findall(r"parameter_size=([\d.]+)", path.read_text()))
    analytic, measured = make(), read_profile(path)  # type: ignore[operator]
    assert analytic.parameters() == measured.parameters() == sizes / 4
    assert analytic.flop() == pytest.approx(measured.flop(), rel=1e-12)
    steps = [layer.sequential_steps for layer in analytic.layers if layer.kind == "recurrent"]
    assert steps == [layer.sequential_steps for layer in measured.layers if layer.kind == "recurrent"]


def test_recurrent_layers_take_one_step_a_token_and_the_bidirectional_one_two() -> None:
    """GNMT-8 with 5 source and 3 target tokens."""
    workload = gnmt(8, source_tokens=5, target_tokens=3)
    steps = {layer.name: layer.sequential_steps for layer in workload.layers if layer.kind == "recurrent"}
    assert steps["encoder.lstm1"] == 10
    assert steps["encoder.lstm4"] == 5
    assert steps["decoder.attention1"] == 3
    assert steps["decoder.lstm4"] == 3


def test_lstm_flop_is_two_a_weight_a_step() -> None:
    """hidden 1,024, as many inputs, 5 steps: 5·2·4·1024·(1024+1024)."""
    workload = gnmt(8, source_tokens=5)
    lstm3 = next(layer for layer in workload.layers if layer.name == "encoder.lstm3")
    assert lstm3.flop == 5 * 2 * 4 * 1024 * 2048


@pytest.mark.parametrize("layers", [2, 7])
def test_odd_or_few_layers_are_refused(layers: int) -> None:
    """Half of the layers encode."""
    with pytest.raises(ValueError, match=f"GNMT layers must be even and at least 4 .*, got {layers}"):
        gnmt(layers)
