"""Tests of what binds layers on a board: by hand on small layers, and at the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from experiments.report.board_roofs import BoardRoofs, board_problem, board_roofs
from hardware_profiles import FieldProgrammableGateArray, load_accelerator
from simulator import Layer, Workload
from tests.chains import measured_chain
from tests.experiments.commands import ended, refused


def roofs(
    samples: int = 1, precision: str = "int8", logic: float = 0.0, link: float = 1e5, layers: int = 3
) -> BoardRoofs:
    """Three layers, or the first of them, on a board of 1 GFLOP/s, of which look-up tables do a part, 1 MB on chip, 1 MB/s of
    memory that is reached by half, and a link of 100 kB/s.
    """
    board = load_accelerator("zcu102")
    assert isinstance(board, FieldProgrammableGateArray)
    changes = {"dsps": 500, "clock": 1e6, "macs_per_cycle": {precision: 1.0}, "efficiency": 1.0, "reduction_half": 0.0}
    memory = {"on_chip_bytes": 1e6, "ddr_bandwidth": 1e6, "memory_efficiency": 0.5, "transceiver_bandwidth": link}
    board = replace(board, **changes, **memory, logic={precision: logic})
    every = (
        Layer("product", "linear", 2e9, 1000, 1e4),
        Layer("weights", "linear", 1e8, 2_000_000, 1e4),
        Layer("features", "convolution", 1e8, 1000, 3e6),
    )
    network = Workload("three", every[:layers], ((0, 1), (1, 2))[: layers - 1])
    return board_roofs(board_problem(board, network, samples, precision))


def test_the_longest_of_its_parts_binds_a_layer() -> None:
    """2 GFLOP take 2 s of DSP blocks; 2 MB of weights 4 s, and 3 MB of features 6 s, of 0.5 MB/s."""
    found = roofs()
    told = [(one.layer, one.roof, one.computing, one.weights, one.features) for one in found.layers]
    assert told == [
        ("product", "DSP", 2.0, 0.002, 0.0),
        ("weights", "bandwidth", 0.1, 4.0, 0.0),
        ("features", "on-chip memory", 0.1, 0.002, pytest.approx(2 * 3.01e6 / 1e6)),
    ]
    assert [one.seconds for one in found.layers] == [2.0, 4.0, pytest.approx(6.022)]
    assert [one.sending for one in found.layers] == [0.1, 0.1, 30.0]
    assert found.seconds == pytest.approx(2.0 + 4.0 + 6.022)
    rows = found._by_roof()
    assert [row["layers"] for row in rows] == [1, 1, 1]
    assert [row["share"] * found.seconds for row in rows] == pytest.approx([6.022, 4.0, 2.0])


def test_twice_a_figure_saves_its_share() -> None:
    """Half of the product's 2 s, half of what moves, nothing by half of no filling; 2 MB on chip hold no 2.002 MB of weights."""
    found = roofs()
    assert found.gains["DSP blocks"] == found.gains["clock"] == pytest.approx(1.0 / found.seconds)
    assert found.gains["bandwidth"] == pytest.approx((2.0 + 3.011) / found.seconds)
    assert found.gains["reduction_half, halved"] == found.gains["on-chip memory"] == 0.0
    assert found.words.endswith("; twice the bandwidth saves most")
    assert repr(found) == f"BoardRoofs({found.words})"


def test_a_line_of_two_boards_is_cut_where_its_slowest_part_takes_least() -> None:
    """6 s before the last layer, and 6.02 of its features, as its weights stay on the chip; twice the bandwidth: 4 and 3.01."""
    found = roofs()
    assert found.line is not None
    assert (found.line.after, found.line.slowest) == ("weights", "second board")
    assert (*found.line.boards, found.line.sending) == pytest.approx((6.0, 6.02, 0.1))
    assert found.line_gains["bandwidth"] == pytest.approx(1 - 4.0 / 6.02)
    assert found.line_gains["DSP blocks"] == found.line_gains["link"] == found.gains["link"] == 0.0
    assert "a line of two, cut after weights, waits for its second board: " in found.remarks()[1]
    three = roofs(3, layers=2)  # 6 s of products of three samples, and one reading of weights
    assert three.line is not None
    assert (three.line.boards, three.line.slowest) == ((6.0, 4.0), "first board")
    alone = roofs(layers=1)
    assert (alone.line, alone.line_gains, alone.record()["line"]) == (None, {}, None)
    assert alone.remarks() == ("0.5 samples/s; twice the DSP blocks saves most",)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_network_that_does_nothing_gains_nothing(layers: int) -> None:
    """Of no multiply-adds and no bytes: no layer takes time, and no figure of a board, or of a line of two, saves any."""
    nothing = tuple(Layer(f"layer{number}", "reshape", 0.0, 0) for number in range(layers))
    board = load_accelerator("zcu102")
    assert isinstance(board, FieldProgrammableGateArray)
    problem = board_problem(board, Workload("nothing", nothing, ((0, 1),)[: layers - 1]), 1, "int8")
    found = board_roofs(problem)
    line = "a line of two, cut after layer0, waits for its first board: inf samples/s"
    assert (found.seconds, found.layers, found.remarks()) == (0.0, (), ("inf samples/s", line)[:layers])
    assert {*found.gains.values(), *found.line_gains.values()} == {0.0}


def test_a_slow_link_binds_before_a_cut_and_twice_of_it_saves() -> None:
    """Outputs of 10 kB take 10 s of 1 kB/s: longer than both boards, which wait 6.02 s for twice the link."""
    found = roofs(link=1e3)
    assert [one.roof_before_cut for one in found.layers] == ["link"] * 3
    assert [one.roof_before_cut for one in roofs().layers] == ["DSP", "bandwidth", "link"]  # 3 MB of 100 kB/s
    assert found.line is not None
    assert (found.line.slowest, found.line.seconds) == ("link", 10.0)
    assert found.line_gains["link"] == pytest.approx(1 - 6.02 / 10)
    assert found.gains["link"] == 0.0
    assert "waits for its link" in found.remarks()[1]
    assert "twice the link saves most" in found.remarks()[1]


def test_look_up_tables_bind_where_they_multiply_most() -> None:
    """Of 1 GFLOP/s tables do three quarters: twice the tables are 1.75, twice the DSP blocks 1.25 GFLOP/s."""
    found = roofs(logic=0.75)
    assert [one.roof for one in found.layers] == ["LUT", "bandwidth", "on-chip memory"]
    assert found.gains["look-up tables"] == pytest.approx((2.0 - 2.0 / 1.75) / found.seconds)
    assert found.gains["DSP blocks"] == pytest.approx((2.0 - 2.0 / 1.25) / found.seconds)
    assert "look-up tables" not in roofs().gains


def test_samples_of_a_pass_share_weights() -> None:
    """Three samples: three products, one reading of weights."""
    found = roofs(3)
    assert found.layers[0].computing == pytest.approx(6.0)
    assert found.layers[1].seconds == 4.0


def test_wider_numbers_take_longer_to_send() -> None:
    """Three samples of 16 bits: 60,000 bytes of 100,000 a second; 4 MB of weights are 8 s of 0.5 MB/s."""
    found = roofs(3, "fp16")
    assert [one.sending for one in found.layers] == pytest.approx([0.6, 0.6, 180.0])
    assert (found.layers[1].weights, found.layers[1].computing) == (8.0, pytest.approx(0.3))


def test_what_binds_measured_layers_is_not_known() -> None:
    """They have seconds, and no FLOP."""
    board = load_accelerator("zcu102")
    assert isinstance(board, FieldProgrammableGateArray)
    with pytest.raises(ValueError, match="measured-chain: its layers were measured, and no FLOP of them are known"):
        board_roofs(board_problem(board, measured_chain([1.0], [2.0]), 1, "int8"))


def test_the_command_tells_roofs_of_boards_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables, or a document of every layer; what is no board, and a document without a network, are refused."""
    asked = ["check", "zcu102", "--workload", "mobilenet-v1"]
    code, said, _ = ended(capsys, asked)
    assert code == 0
    assert "what layers are bound by" in said
    assert "twice the bandwidth saves most" in said
    assert "a line of two, cut after" in said
    document = json.loads(ended(capsys, [*asked, "--json", "--batch", "2"])[1])
    assert document["samples"] == 2
    engines = json.loads(ended(capsys, ["check", "vck190", "--workload", "mobilenet-v1", "--json"])[1])
    assert engines["samples"] == 6  # as many as its array takes at a time
    assert {one["roof"] for one in document["layers"]} <= {"DSP", "bandwidth", "on-chip memory"}
    assert "which a100-80 is not" in refused(capsys, ["check", "a100-80", "--workload", "vgg16"])
    assert "goes with a board and --workload" in refused(capsys, ["check", "zcu102", "--json"])
    assert "choices: fp32, fp16, int8" in refused(capsys, [*asked, "--precision", "bf16"])
