"""Cost model: numbers of the comparison, then its drawing and its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

import simulator
from experiments.calibration.kernel_fit import with_shares
from experiments.cost_model.__main__ import LEFT_OUT, constants_table, print_document
from experiments.cost_model.left_out import (
    MeasuredNetwork,
    constants_of,
    left_out,
    networks_of,
    with_constants,
)
from experiments.cost_model.model_error_plots import draw
from experiments.cost_model.model_errors import (
    CASES,
    TARGET,
    LayerSeconds,
    ProfileCase,
    Row,
    compare_all,
    compare_case,
    compared,
    grouped,
    mean_errors,
    predicted_seconds,
)
from experiments.studies.study_harness import run_study
from experiments.terminal.run_folder import MANIFEST
from hardware_profiles import GraphicsProcessor, Work, load_accelerator
from simulator import Layer, Workload, load_workload, read_profile
from tests.experiments.commands import no_picture, refused
from tests.experiments.readme_tables import readme_table
from tests.records import Recorded, lines

ROWS = [
    LayerSeconds("view", False, 0.5, 0.5),
    LayerSeconds("conv", True, 1.0, 2.0),
    LayerSeconds("relu", False, 0.25, 0.25),
    LayerSeconds("fc", True, 3.0, 3.0),
]


def test_groups_are_a_parametric_layer_and_what_follows() -> None:
    """conv takes the view before it and the relu after it: 1 + 3 + 0.5; fc stands alone."""
    assert grouped(ROWS) == [("conv", 4.5), ("fc", 6.0)]


def test_share_distance_is_the_time_in_the_wrong_group() -> None:
    """Measured 50:50, predicted 75:25 and twice as long: a quarter is misplaced, the total is off by +100 %."""
    measured = [LayerSeconds("a", True, 1.0, 1.0), LayerSeconds("b", True, 1.0, 1.0)]
    predicted = [LayerSeconds("x", True, 2.0, 4.0), LayerSeconds("y", True, 1.0, 1.0)]
    result = compared("pair", 8, measured, predicted)
    assert result["share_distance"] == pytest.approx(0.25)
    assert result["error"] == pytest.approx(1.0)
    assert (result["measured_forward"], result["predicted_backward"]) == (2.0, 5.0)
    assert [tuple(group.values()) for group in result["groups"]] == [("x", 2.0, 6.0), ("y", 2.0, 2.0)]


def test_other_layers_are_refused() -> None:
    """A profile and a workload with different numbers of parametric layers cannot be aligned."""
    with pytest.raises(
        ValueError, match="odd: profile and workload must have equally many layers with parameters: 1 and 2"
    ):
        compared("odd", 8, ROWS[:2], ROWS)


def test_loss_is_left_out() -> None:
    """The profiles have no loss, so the prediction drops it and keeps everything else."""
    workload = load_workload("vgg16")
    rows = predicted_seconds(workload, load_accelerator("v100-sxm2"), 8)
    assert len(rows) == sum(layer.kind not in ("loss", "elementwise") for layer in workload.layers)
    assert all(row.forward > 0 for row in rows if row.parametric)


PROFILE = """\
node1 -- Input -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=512.0, parameter_size=0.0
node2 -- Embedding(100, 1024) -- forward_compute_time=1.5, backward_compute_time=0.5, activation_size=491520.0, \
parameter_size=409600.0
node3 -- Linear(in_features=1024, out_features=10, bias=True) -- forward_compute_time=2.0, backward_compute_time=4.0, \
activation_size=4800.0, parameter_size=41000.0
node4 -- ReLU() -- forward_compute_time=0.25, backward_compute_time=0.75, activation_size=4800.0, parameter_size=0.0
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4
"""


OTHER = """\
node1 -- Input -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=4816896.0, parameter_size=0.0
node2 -- Conv2d(3, 32, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1)) -- forward_compute_time=1.5, \
backward_compute_time=0.5, activation_size=12845056.0, parameter_size=3584.0
node3 -- Conv2d(32, 32, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), groups=8) -- forward_compute_time=1.0, \
backward_compute_time=0.5, activation_size=12845056.0, parameter_size=4736.0
node4 -- Linear(in_features=401408, out_features=10, bias=True) -- forward_compute_time=1.0, backward_compute_time=1.0, \
activation_size=320.0, parameter_size=16056360.0
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4
"""


def test_a_profile_describes_its_network(tmp_path: Path) -> None:
    """Its layers without their seconds: channels of a group, elements of the images, FLOP; at any precision."""
    (tmp_path / "other.txt").write_text(OTHER, encoding="utf-8")
    network = read_profile(tmp_path / "other.txt").described()
    first, grouped, _ = network.layers
    assert (network.minibatch, network.bytes_per_element) == (8, None)
    assert (first.measured, first.channels, first.loaded_elements) == ((), (3, 32), 3 * 224 * 224)
    assert first.flop == 2 * 27 * 32 * 112 * 112
    assert (grouped.channels, grouped.loaded_elements) == ((4, 4), 0)
    work = network.works()[1]
    assert (work.channels, work.input_elements, work.flop) == ((4, 4), 32 * 112 * 112, 2 * 36 * 32 * 112 * 112)


def test_mean_errors_are_of_what_was_measured() -> None:
    """Absolute errors: their mean and the largest; none where no row has any."""
    rows = [
        {"error": -0.1, "forward_error": None, "backward_error": 0.2},
        {"error": 0.3, "forward_error": None, "backward_error": None},
    ]
    assert mean_errors(rows) == {
        "error": {"mean": pytest.approx(0.2), "worst": 0.3},
        "forward_error": None,
        "backward_error": {"mean": 0.2, "worst": 0.2},
    }


def test_command_on_a_profile_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: Recorded
) -> None:
    """A small profile against networks of as many groups: JSON, table, and exit code 1, as no total is within the target; one
    that no case knows against what its nodes say; the model's seconds of whole networks beside them."""
    (tmp_path / "small.txt").write_text(PROFILE, encoding="utf-8")
    (tmp_path / "other.txt").write_text(OTHER, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("taken on a V100", encoding="utf-8")
    lengths: list[int] = []

    def two_layers(tokens: int) -> Workload:
        lengths.append(tokens)
        layers = (
            Layer("embedding", "embedding", 0.0, 102400, 1024.0 * max(tokens, 1), float(max(tokens, 1))),
            Layer("linear", "linear", 2.0 * 10240 * max(tokens, 1), 10250, 10.0, 1024.0),
            Layer("loss", "loss", 1.0, 0, 1.0, 10.0),
        )
        return Workload("two", layers, ((0, 1), (1, 2)))

    cases = (ProfileCase("small", two_layers), ProfileCase("small", two_layers, 30))
    for module in ("__main__", "left_out", "model_errors"):
        monkeypatch.setattr(f"experiments.cost_model.{module}.CASES", cases)
    words = ["--profiles", str(tmp_path), "--profiled-minibatch", "small=4"]
    assert run_study("cost-model", [*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["within_target"] is False
    assert run_study("cost-model", words) == 1
    printed = lines(capsys.readouterr().out)
    accelerator = load_accelerator("v100-sxm2")
    seconds = {
        name: [
            [row.name, row.parametric, row.forward, row.backward]
            for row in predicted_seconds(load_workload(name), accelerator, 8)
        ]
        for name in ("alexnet", "gnmt8")
    }
    recorded(printed=printed, lengths=lengths, model=seconds)


PEAK = 1e12
PLAIN = {"forward": 0.9, "backward": 0.9, "memory": 1.0, "saturation_seconds": 0.0, "window_exponent": 0.0}
DEVICE = with_shares(
    GraphicsProcessor("plain", 2.0**34, 1e15, {"fp32": PEAK}, call_overhead=0.0, step_overhead=0.0),
    "convolution",
    PLAIN,
)


def one_convolution(name: str, forward: float, backward: float) -> MeasuredNetwork:
    """A network of 1 s forward and 2 s backward at the peak that was measured at these shares of it."""
    work = Work("convolution", PEAK, 1, 1.0, 1.0)
    measured = [LayerSeconds("conv", True, 1.0 / forward, 2.0 / backward)]
    return MeasuredNetwork(name, 1, measured, [LayerSeconds("conv", True, 0.0, 0.0)], {0: work})


def test_a_network_left_out_is_judged_by_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: forwards of a, b and c at 0.5, 0.5 and 0.25 of the peak, backwards at 0.5. With u = 1 / share the errors are
    0.5 u - 1 and 0.25 u - 1. Their squares are least at u = 1.25 / 0.5625 for all, 0.75 / 0.3125 without a or b, 2 without c.
    """
    networks = [one_convolution("a", 0.5, 0.5), one_convolution("b", 0.5, 0.5), one_convolution("c", 0.25, 0.5)]
    begins = [{"forward": (0.9, 0.01, 1.0), "backward": (0.7, 0.01, 1.0)}]
    rows = left_out(networks, DEVICE, begins)
    found = [[row[f"{how}_forward_error"] for how in ("with", "without", "least", "most")] for row in rows]
    assert found == [
        pytest.approx([1 / 9, 0.2, 0.2, 0.2], abs=1e-5),
        pytest.approx([1 / 9, 0.2, 0.2, 0.2], abs=1e-5),
        pytest.approx([-4 / 9, -0.5, -0.5, -0.5], abs=1e-5),
    ]
    assert all(row["without_backward_error"] == pytest.approx(0.0, abs=1e-5) for row in rows)
    assert [row["constants"]["forward"] for row in rows] == pytest.approx([1 / 2.4, 1 / 2.4, 0.5], abs=1e-5)
    assert [row["fitted"]["forward"] for row in rows] == pytest.approx([0.45] * 3, abs=1e-5)
    document = {"left_out": rows, "shipped": constants_of(DEVICE)}
    LEFT_OUT.print(document)
    constants_table(document).print(document)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["c", "-44", "%", "0", "%", "-50", "%"] in [line[:7] for line in printed]
    assert ["forward", "0.9", "0.45", "0.417", "0.417", "0.5"] in printed


def test_the_best_search_counts_and_all_are_told() -> None:
    """One that may not leave a share of 0.8 finds a worse fit: 0.8 of the peak is 5/8 of what 0.5 takes."""
    networks = [one_convolution("a", 0.5, 0.5), one_convolution("b", 0.5, 0.5)]
    begins = [{"forward": (0.8, 0.8, 0.8)}, {"forward": (0.8, 0.01, 1.0)}]
    row, _ = left_out(networks, DEVICE, begins)
    found = [row[f"{how}_forward_error"] for how in ("without", "least", "most")]
    assert found == pytest.approx([0.0, -0.375, 0.0], abs=1e-5)
    assert left_out(networks[:1], DEVICE, begins) == []


def test_other_constants_reach_convolutions_alone(shared_data: Path) -> None:
    """A network with other constants is what the whole model says of it with these."""
    folder, device = shared_data / "pipedream_profiles", cast(GraphicsProcessor, load_accelerator("v100-sxm2"))
    changed = with_constants(device, {name: 1.5 * value for name, value in constants_of(device).items() if value < 0.6})
    networks = networks_of(folder, device, {"vgg16": 32})
    assert [network.name for network in networks] == ["vgg16", "alexnet", "resnet50"]
    for case, network in zip(CASES, networks, strict=False):
        assert network.errors(changed) == compare_case(case, folder, changed, {"vgg16": 32}.get(case.profile))
        assert network.errors(changed)["error"] != network.errors(device)["error"]


@pytest.fixture
def no_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is left out: that takes half a minute."""
    monkeypatch.setattr("experiments.cost_model.__main__.left_out", lambda *given: [])


@pytest.fixture(scope="module")
def document(shared_data: Path) -> Row:
    """All five bundled profiles against the shipped V100."""
    return compare_all(shared_data / "pipedream_profiles", load_accelerator("v100-sxm2"), {})


def test_every_total_is_within_the_target(document: Row) -> None:
    """The same constants bring all five totals within 15 % of the measured ones."""
    assert TARGET == 0.15
    assert [row["name"] for row in document["profiles"]] == [case.profile for case in CASES]
    assert {row["name"]: round(row["error"], 3) for row in document["profiles"] if abs(row["error"]) > TARGET} == {}


@pytest.mark.parametrize(("error", "within"), [(TARGET, True), (-TARGET, True), (1.001 * TARGET, False)])
def test_the_target_is_for_each_profile(monkeypatch: pytest.MonkeyPatch, error: float, within: bool) -> None:
    """Too low or too high; on the target is within it."""
    errors = iter([0.0, error, *[0.0] * len(CASES)])
    of = "experiments.cost_model.model_errors."
    figures = {"forward_error": 0.0, "backward_error": 0.0}
    monkeypatch.setattr(f"{of}compare_case", lambda *given: {"error": next(errors), **figures})
    monkeypatch.setattr(f"{of}compare_described", lambda *given: ([], []))
    found = compare_all(Path(), load_accelerator("v100-sxm2"), {})
    assert found["within_target"] is within
    assert found["mean_errors"]["error"]["worst"] == abs(error)


def test_the_readme_says_what_is_found(document: Row) -> None:
    """Mini-batch, ms measured and by the model, per cent of the three errors and of time in the wrong layer, as rounded there."""
    table = readme_table("| profile | mini-batch | measured, ms")
    for row, cells in zip(document["profiles"], table.values(), strict=True):
        measured, model = (1e3 * (row[f"{of}_forward"] + row[f"{of}_backward"]) for of in ("measured", "predicted"))
        errors = [100 * row[name] for name in ("error", "forward_error", "backward_error")]
        found = [row["minibatch"], *(round(one, 1) for one in (measured, model, *errors))]
        assert [[one] for one in (*found, round(100 * row["share_distance"]))] == cells, row["name"]


@pytest.mark.slow
def test_the_readme_says_what_networks_left_out_are_off_by(shared_data: Path) -> None:
    """Within one per cent of what it says: half a CPU minute of fits."""
    device = cast(GraphicsProcessor, load_accelerator("v100-sxm2"))
    rows = left_out(networks_of(shared_data / "pipedream_profiles", device, {}), device)
    table = readme_table("| left out | forward, backward fitted with it")
    passes = ("forward_error", "backward_error")
    for row, cells in zip(rows, table.values(), strict=True):
        pairs = [[row[f"{how}_{one}"] for one in passes] for how in ("with", "without")]
        spans = [[row[f"{end}_{one}"] for end in ("least", "most")] for one in passes]
        for shares, cell in zip((*pairs, *spans), cells, strict=True):
            assert [100 * one for one in shares] == pytest.approx(cell, abs=1.0), row["name"]


def test_at_most_a_quarter_of_the_time_is_misplaced(document: Row) -> None:
    """Shares by group: the convolutional networks within 17 %, GNMT (whose hooks misplace backwards) within 26 %."""
    for row in document["profiles"]:
        assert row["share_distance"] < (0.26 if row["recorded_tokens"] else 0.17), row["name"]


def test_recorded_lengths_of_gnmt_are_reported(document: Row) -> None:
    """The tensors of `gnmt` hold 48 tokens a sentence, those of `gnmt_large` 25; at 48 the model cannot match."""
    lengths = {row["name"]: row["recorded_tokens"] for row in document["profiles"]}
    assert lengths == {"vgg16": None, "alexnet": None, "resnet50": None, "gnmt": 48, "gnmt_large": 25}
    assert next(row for row in document["profiles"] if row["name"] == "gnmt")["recorded_error"] > TARGET


def test_figure_has_a_panel_of_totals_and_one_a_profile(document: Row) -> None:
    """Six panels; the first has two bars a profile, the others one bar a group."""
    axes = draw(document["profiles"], "v100").axes
    assert len(axes) == 6
    assert len(axes[0].patches) == 2 * len(document["profiles"])
    assert [len(axis.patches) for axis in axes[1:]] == [len(row["groups"]) for row in document["profiles"]]


def test_command(
    document: Row, no_fits: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints JSON, writes PNG and SVG, and ends with 0."""
    monkeypatch.setattr(simulator, "save", no_picture)
    monkeypatch.setattr("experiments.cost_model.__main__.compare_all", lambda *given: document)
    assert run_study("cost-model", ["--out", str(tmp_path / "figures"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["within_target"] is True
    assert [row["name"] for row in printed["profiles"]] == [case.profile for case in CASES]
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"cost_model.png", "cost_model.svg", MANIFEST}


def test_table_names_every_profile(document: Row, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row per profile, and a line on the sentence lengths follows."""
    print_document(document | {"left_out": []})
    printed = capsys.readouterr().out
    assert all(case.profile in printed for case in CASES)
    assert "at the 48 of the recorded tensors" in printed


def test_profiled_minibatches_are_taken(no_fits: None, shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile said to hold fewer samples is compared at these: the model's seconds fall, the measured ones stay."""
    found = []
    for more in ([], ["--profiled-minibatch", "vgg16=32", "--profiled-minibatch", "alexnet=64"]):
        run_study("cost-model", ["--profiles", str(shared_data / "pipedream_profiles"), "--json", *more])
        found.append({row["name"]: row for row in json.loads(capsys.readouterr().out)["profiles"]})
    for name, samples in (("vgg16", 32), ("alexnet", 64), ("resnet50", found[0]["resnet50"]["minibatch"])):
        assert found[1][name]["minibatch"] == samples
        assert found[1][name]["measured_forward"] == found[0][name]["measured_forward"]
    assert found[1]["vgg16"]["predicted_forward"] < 0.5 * found[0]["vgg16"]["predicted_forward"]
    assert found[1]["resnet50"] == found[0]["resnet50"]


def test_missing_folder_is_one_line_and_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without profiles writes nothing but the complaint."""
    out = tmp_path / "figures"
    refused(capsys, ["study", "cost-model", "--profiles", str(tmp_path / "gone"), "--out", str(out)], 4)
    assert not out.exists()
