"""The reader of PipeDream's graph.txt: the five bundled profiles, a small one by hand, and broken ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.workloads.catalog import load_workload
from simulator.workloads.pipedream_profile import WorkloadFileError, read_profile
from tests.chains import kept_bytes


def node(number: int, operator: str, forward: float = 0, backward: float = 0, out: str = "0", w: float = 0) -> str:
    return (
        f"node{number} -- {operator} -- forward_compute_time={forward}, backward_compute_time={backward}, "
        f"activation_size={out}, parameter_size={w}\n"
    )


# 2 samples: 6 inputs -> Linear(3, 4) -> ReLU -> Linear(4, 5), with a shortcut from the first to the last.
LINEAR = (
    "\tnode3 -- node4\n"
    + node(4, "Linear(in_features=4, out_features=5, bias=True)", 5, 7, "40.000", 100)
    + node(1, "Input", 9, 0, "24.0")
    + "\tnode1 -- node2\n"
    + node(3, "ReLU(inplace)", 1, 2, "32")
    + node(2, "Linear(in_features=3, out_features=4, bias=True)", 3, 4, "[16.0; 16.0]", 64)
    + "\tnode2 -- node3\n"
    + "\tnode2 -- node4"
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.txt"
    path.write_text(LINEAR)
    return path


def test_a_small_profile_in_base_units_per_sample(small: Path) -> None:
    """Milliseconds become seconds, bytes elements per sample; list sizes are summed; 32 bytes / 4·4 is 2."""
    workload = read_profile(small)
    assert (workload.name, workload.minibatch, workload.bytes_per_element) == ("small", 2, 4)
    assert [layer.name for layer in workload.layers] == ["node2_Linear", "node3_ReLU", "node4_Linear"]
    assert [layer.kind for layer in workload.layers] == ["linear", "activation", "linear"]
    assert [layer.output_elements for layer in workload.layers] == [4, 4, 5]
    assert [layer.parameters for layer in workload.layers] == [16, 0, 25]
    assert [layer.flop for layer in workload.layers] == [2 * 3 * 4, 0, 2 * 4 * 5]
    assert workload.layers[2].measured == ((2, 0.005, 0.007),)
    assert workload.edges == ((0, 1), (0, 2), (1, 2))
    # the first Linear keeps the image (3), the second keeps ReLU's result, which is the first's own storage
    assert [layer.stashed_elements for layer in workload.layers] == [3, 0, 4]


def test_the_argument_overrides_the_shapes(small: Path) -> None:
    """Profiled with 1 sample instead of 2: twice the elements per sample, the row at 1 sample."""
    workload = read_profile(small, profiled_minibatch=1)
    assert [layer.output_elements for layer in workload.layers] == [8, 8, 10]
    assert workload.layers[0].measured == ((1, 0.003, 0.004),)
    assert workload.minibatch == 1


@pytest.mark.parametrize(("stride", "padding"), [(2, 0), (1, 1)])
def test_images_tell_the_mini_batch(tmp_path: Path, stride: int, padding: int) -> None:
    """Seven images of 3 x 11 x 11 and a window of 3 x 3, in a network without a Linear layer; other sizes do not fit it."""
    made = (11 + 2 * padding - 3) // stride + 1
    operator = f"Conv2d(3, 8, kernel_size=(3, 3), stride=({stride}, {stride}), padding=({padding}, {padding}))"
    path = tmp_path / "images.txt"
    image, size = 4.0 * 7 * 363, 4.0 * 7 * 8 * made**2
    path.write_text(node(1, "Input", out=str(image)) + "\tnode1 -- node2\n" + node(2, operator, 1, 2, str(size), 864))
    assert read_profile(path).minibatch == 7
    path.write_text(path.read_text().replace(str(size), str(size + 4)))
    with pytest.raises(WorkloadFileError, match="no convolution of images"):
        read_profile(path)


@pytest.mark.parametrize(
    ("profile", "name"),
    [("vgg16", "vgg16"), ("alexnet", "alexnet"), ("resnet50", "resnet50"), ("gnmt", "gnmt8"), ("gnmt_large", "gnmt16")],
)
def test_measured_and_analytic_networks_agree(profile: str, name: str, shared_data: Path) -> None:
    """Same parameters, FLOP and steps; of images the same kept elements but for the loss, which profiles lack."""
    measured, analytic = read_profile(shared_data / "pipedream_profiles" / f"{profile}.txt"), load_workload(name)
    assert measured.parameters() == analytic.parameters()
    assert measured.flop() == pytest.approx(analytic.flop(), rel=1e-12)
    steps = [[one.sequential_steps for one in each.layers if one.kind == "recurrent"] for each in (measured, analytic)]
    assert steps[0] == steps[1]
    assert {one.sequential_steps for one in measured.layers if one.kind != "recurrent"} == {1}
    if analytic.sample == "image":
        assert kept_bytes(measured.layers, 4) == kept_bytes(analytic.layers, 4) - 4000
        assert measured.sample == "image"


def test_ties_in_the_order_go_to_the_lowest_node_number(tmp_path: Path) -> None:
    """node10 and node9 are both ready after node1: 9 comes first, then 2, which 9 makes ready."""
    path = tmp_path / "ties.txt"
    path.write_text(
        "".join(node(number, "Add", 1, out="4") for number in (10, 1, 2, 9))
        + "\tnode1 -- node10\n\tnode1 -- node9\n\tnode9 -- node2\n"
    )
    workload = read_profile(path, profiled_minibatch=1)
    assert [layer.name for layer in workload.layers] == ["node1_Add", "node9_Add", "node2_Add", "node10_Add"]


def test_an_unknown_operator_is_linear_with_weights_and_elementwise_without(tmp_path: Path) -> None:
    """A profile of another network is still usable: its times are measured."""
    path = tmp_path / "unknown.txt"
    path.write_text(node(1, "Fancy(3)", 1, w=8) + node(2, "Swish()") + "\tnode1 -- node2\n")
    workload = read_profile(path, profiled_minibatch=4)
    assert [layer.kind for layer in workload.layers] == ["linear", "elementwise"]


RELU = node(1, "ReLU(inplace)", 1, 1, "8")
BROKEN = [
    ("\n  \n", 1, "no nodes"),
    ("\tnode1 -- node2\n", 1, "no nodes"),
    ("hello\n", 1, "a node is `node1 -- operator -- forward_compute_time=..., ...`; got 'hello'"),
    (RELU + node(2, "ReLU", forward="fast"), 2, "forward_compute_time must be a number, got 'fast'"),
    (RELU + node(2, "ReLU", -1), 2, "forward_compute_time must be from 0 to 1e+15, got '-1'"),
    (node(1, "ReLU", 1, "nan"), 1, "backward_compute_time must be a number, got 'nan'"),
    (node(1, "ReLU", out="[4; x]"), 1, "activation_size must be a number, got '[4; x]'"),
    (node(1, "ReLU", out="[4; 55"), 1, "activation_size must be a number, got '[4; 55'"),
    (node(1, "ReLU", "[1; 2]"), 1, "forward_compute_time must be a number, got '[1; 2]'"),
    (node(1, "ReLU", w=1.5), 1, "parameter_size must be a multiple of 4 bytes (fp32), got 1.5"),
    (RELU.replace("parameter_size", "size"), 1, "expected each of forward_compute_time, "),
    (RELU.replace(", parameter_size=0", ""), 1, "parameter_size is missing"),
    (RELU.replace("node1", "knot1"), 1, "a node is called node<number>, got 'knot1'"),
    (RELU + "\n" + RELU, 3, "node1 is already on line 1"),
    (RELU + "\tnode1 -- node7\n", 2, "edge to node7, which has no line of its own"),
    (RELU + "\tnode1\n", 2, "an edge is `node1 -- node2`, indented by a tab; got 'node1'"),
    (RELU + "\tnode1 -- node1\n", 1, "the edges form a cycle, so node1 can never run"),
    (
        RELU + node(2, "Add") + node(3, "Add") + "\tnode1 -- node2\n\tnode2 -- node3\n\tnode3 -- node2\n",
        2,
        "the edges form a cycle, so node2 can never run",
    ),
    (
        RELU + node(2, "Add") + "\tnode1 -- node2\n\tnode1 -- node2\n",
        4,
        "edge node1 -- node2 is already on line 3",
    ),
    (RELU, 1, "no LSTM with its states, no Linear layer and no convolution of images tells the mini-batch"),
    (node(1, "Linear(in_features=2, out_features=3)", out="30"), 1, "mini-batch of 2.5, not a whole number"),
    (node(1, "Linear(in_features=2, out_features=3)", out="0"), 1, "mini-batch of 0, not a whole number"),
    (
        node(1, "Linear(in_features=2, out_features=1)", out="8")
        + node(2, "Linear(in_features=1, out_features=1)", out="12"),
        2,
        "node2 implies a mini-batch of 3, node1 of 2; give the profiled mini-batch",
    ),
]


@pytest.mark.parametrize(("text", "line", "rule"), BROKEN)
def test_a_malformed_profile_is_one_line_with_file_and_line(text: str, line: int, rule: str, tmp_path: Path) -> None:
    """The message is `file:line: what is wrong`."""
    path = tmp_path / "broken.txt"
    path.write_text(text)
    with pytest.raises(WorkloadFileError, match=re.escape(f"{path}:{line}: ") + ".*" + re.escape(rule)) as caught:
        read_profile(path)
    assert "\n" not in str(caught.value)


TWICE = RELU + node(2, "Add") + "\tnode1 -- node2\n\tnode1 -- node2\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RELU + "\n" + RELU, "3: a node is already on line 1"),
        (RELU + "\tnode1 -- node7\n", "2: edge to a node which has no line of its own"),
        (TWICE, "4: an edge is already on line 3"),
        (RELU + node(2, "ReLU", -1), "2: forward_compute_time must be from 0 to 1e+15"),
    ],
)
def test_of_a_profile_that_another_file_names_no_content_is_told(text: str, said: str, tmp_path: Path) -> None:
    """The place and the rule."""
    path = tmp_path / "broken.txt"
    path.write_text(text)
    with pytest.raises(WorkloadFileError) as caught:
        read_profile(path)
    assert caught.value.untold == f"{path}:{said}"


def test_missing_file_directory_and_binary_junk(tmp_path: Path) -> None:
    """What is not a text file is told apart."""
    junk = tmp_path / "junk.txt"
    junk.write_bytes(b"\x89PNG\x00\xff\xfe")
    for path, rule in (
        (tmp_path / "none.txt", ": cannot be read: No such file or directory"),
        (tmp_path, ": cannot be read: Is a directory"),
        (junk, ":1: not a text file"),
    ):
        with pytest.raises(WorkloadFileError, match=re.escape(f"{path}{rule}")):
            read_profile(path)


def test_a_rule_of_the_whole_network_is_told_of_the_file(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 and 25 weights, where a network may have 40."""
    monkeypatch.setattr("simulator.workloads.layers.MOST_PARAMETERS", 40)
    rule = "workload 'small': parameters must be at most 2^63 - 1, got 41"
    with pytest.raises(WorkloadFileError, match=f"^{re.escape(f'{small}:1: {rule}')}$"):
        read_profile(small)
    monkeypatch.setattr("simulator.workloads.layers.MOST_PARAMETERS", 41)
    assert read_profile(small).parameters() == 41


def test_figures_of_no_sample_or_layer_are_refused(small: Path) -> None:
    """A mini-batch below one, and a file of Input nodes, which load data."""
    with pytest.raises(ValueError, match=r"^profiled_minibatch must be at least 1 sample, got 0"):
        read_profile(small, profiled_minibatch=0)
    small.write_text(node(1, "Input", 1, 0, "8"))
    with pytest.raises(WorkloadFileError, match="1: every node is an Input; there is nothing to compute"):
        read_profile(small, profiled_minibatch=1)


@settings(deadline=None, max_examples=30)
@given(st.one_of(st.text(max_size=80), st.integers(0, len(LINEAR)).map(lambda cut: LINEAR[:cut])))
def test_any_text_is_read_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Junk and files cut short give a workload or a WorkloadFileError, never another error."""
    path = tmp_path_factory.mktemp("junk") / "junk.txt"
    path.write_text(text, encoding="utf-8", errors="replace")
    message = ""
    try:
        read_profile(path)
    except WorkloadFileError as error:
        message = str(error)
    assert "\n" not in message
