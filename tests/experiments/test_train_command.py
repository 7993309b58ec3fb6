"""Rules of `pipeplan train`: what it prints, where its seconds come from, one line for every mistake."""

from __future__ import annotations

import json
import math
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from experiments.cli import main
from experiments.training import DATA_SETS, NETWORKS, OPTIMIZERS, TrainingSettings, check_work, training_order
from experiments.training.clocks import MethodCase, given_clock, network_clock, network_workload
from experiments.training.networks import convolutional, perceptron
from experiments.training.optimizers import MomentumSGD
from experiments.training.run import MOST_TRAINED
from hardware_profiles import load_cluster
from simulator import COPY_RULES, METHOD_SCHEDULES, OpKind, OpSeconds, build_schedule
from tests.experiments.commands import ended, instead, noisy_clusters, refused
from tests.experiments.training.test_replicas import SETTINGS, losses_by_versions, train_once

KEYS = {"seed", "train_loss", "test_accuracy", "diverged", "weight_copies", "simulated_seconds"}
UNIT = given_clock(OpSeconds(4.0, 8.0))
"""A mini-batch takes 4 s forward and 8 s backward on each stage."""

needs_sklearn = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed (extra `learn`)")


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of noisy clusters by the name of `wine`: no scikit-learn needed."""
    data = noisy_clusters("wine")
    monkeypatch.setitem(DATA_SETS, "wine", lambda: data)


SHORT = "train --data wine --stages 3 --microbatches-per-minibatch 2 --batch 8 --epochs 2 --seeds 2"
"""A short training of 3 stages, T = 2, on 12 mini-batches of 8 an epoch."""


def trained(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the short training."""
    return ended(capsys, instead(SHORT.split(), *words))


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The one JSON document of a run that succeeds."""
    code, out, err = trained(capsys, "--json", *words)
    assert (code, err) == (0, "")
    return json.loads(out)


# ---- what it prints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHOD_SCHEDULES)
def test_every_method_prints_a_run_a_seed(capsys: pytest.CaptureFixture[str], clusters: None, method: str) -> None:
    """Seeds 0 and 1 with the promised keys; T = 3 as 2BW needs N micro-batches."""
    found = document(capsys, "--method", method, "--microbatches-per-minibatch", "3")
    assert [run["seed"] for run in found["runs"]] == [0, 1]
    assert all(set(run) >= KEYS and not run["diverged"] for run in found["runs"])
    assert found["minibatches"] == 24
    assert {run["weight_copies"] for run in found["runs"]} == {max(found["weight_copies_per_stage"])}
    assert found["seconds_of"].endswith("on dapple-b, one stage per device, without contention")
    assert all(run["simulated_seconds"] > 0 and 0 < run["test_accuracy"] <= 1 for run in found["runs"])


def test_results_repeat_and_do_not_depend_on_processes(capsys: pytest.CaptureFixture[str], clusters: None) -> None:
    """The same command prints the same bytes, in one process or two; other options change the numbers."""
    first = document(capsys, "--method", "xpipe")
    assert document(capsys, "--method", "xpipe", "--jobs", "2") == first
    for words in (
        ("--forward-rounding", "floor"),
        ("--correction", "literal"),
        ("--lr", "0.004"),
        ("--optimizer", "sgd"),
        ("--lr-schedule", "cosine"),
    ):
        other = document(capsys, "--method", "xpipe", *words)
        assert other["runs"][0]["train_loss"] != first["runs"][0]["train_loss"]


def test_one_stage_has_no_prediction_error(capsys: pytest.CaptureFixture[str], clusters: None) -> None:
    """N = 1: every method trains as the synchronous one, and the undefined ratio is null."""
    one, other = (document(capsys, "--method", name, "--stages", "1") for name in ("synchronous", "xpipe"))
    assert [run["train_loss"] for run in one["runs"]] == [run["train_loss"] for run in other["runs"]]
    assert other["runs"][0]["prediction_error_ratio"] is None


def test_divergence_is_reported(capsys: pytest.CaptureFixture[str], clusters: None) -> None:
    """A learning rate of 1e6: diverged, a loss that is not finite is null, exit code 0."""
    found = document(capsys, "--method", "naive", "--optimizer", "sgd", "--lr", "1e6")
    assert all(run["diverged"] for run in found["runs"])


def test_the_table_says_what_the_seconds_are_of(capsys: pytest.CaptureFixture[str], clusters: None) -> None:
    """A row per seed, means, copies, and the clock."""
    code, out, _ = trained(capsys, "--method", "pipedream", "--microbatches-per-minibatch", "1")
    assert code == 0
    assert "weight copies by stage 3 2 1" in out
    assert "simulated seconds: the network's own layers on dapple-b" in out


# ---- seconds ---------------------------------------------------------------------------------------------------------


def test_given_seconds(capsys: pytest.CaptureFixture[str], clusters: None) -> None:
    """N = 3, T = 2, F = 4 and B = 8 a mini-batch: GPipe-like (T+N-1)(F+B)/T each; XPipe T(F+B)/T each and one fill."""
    words = ("--forward", "4", "--backward", "4,4,4")
    flushed = document(capsys, "--method", "synchronous", *words)
    assert flushed["seconds_of"] == "given seconds"
    assert flushed["runs"][0]["simulated_seconds"] == 24 * (2 + 3 - 1) * 8 / 2
    stream = document(capsys, "--method", "xpipe", *words)
    assert stream["runs"][0]["simulated_seconds"] == 24 * 8 + 2 * 4
    slower = document(capsys, "--method", "xpipe", *words, "--predict", "1", "--update", "1")
    assert slower["runs"][0]["simulated_seconds"] > 24 * 9
    assert slower["runs"][0]["train_loss"] == stream["runs"][0]["train_loss"]


def test_warm_up_is_synchronous_then_asynchronous(capsys: pytest.CaptureFixture[str], clusters: None) -> None:
    """PipeMare's T3: 4 flushed mini-batches of 24 s, then 20 of 12 s behind a fill of 2 · 6 s."""
    found = MethodCase("", "pipemare", 2, warmup=4).order(UNIT, 3, 24)
    assert found.order.makespan == 4 * 24.0 + 20 * 12.0 + 2 * 6.0
    assert found.copies == (2, 2, 1)
    words = ("--method", "pipemare", "--forward", "4", "--backward", "8", "--warmup-minibatches", "4")
    assert document(capsys, *words)["runs"][0]["simulated_seconds"] == found.order.makespan


def test_copies_are_those_of_the_timeline() -> None:
    """Per stage, by the method's rule: 3 for XPipe, N - k for stashing at T = 1, 1 flushed."""
    assert MethodCase("", "xpipe", 2).order(UNIT, 3, 6).copies == (3, 3, 3)
    assert MethodCase("", "pipedream", 1).order(UNIT, 3, 6).copies == (3, 2, 1)
    assert MethodCase("", "synchronous", 2).order(UNIT, 3, 6).copies == (1, 1, 1)
    assert set(METHOD_SCHEDULES) == set(COPY_RULES)


@pytest.mark.parametrize(("rule", "missing"), [("overlapped", [2, 0]), ("barrier", [1, 0])])
def test_replicas_train_on_the_versions_of_their_timeline(
    capsys: pytest.CaptureFixture[str], clusters: None, rule: str, missing: list[int]
) -> None:
    """3-1: a run of the command has the losses of the timeline's versions, which it prints; the clock knows the rounds."""
    words = "--method pipedream --microbatches-per-minibatch 1 --stages 2 --replicas 3,1 --optimizer adam --seeds 1"
    found = document(capsys, *words.split(), "--replica-updates", rule, "--forward", "3,1", "--backward", "6,2")
    assert (found["replicas"], found["replica_updates"], found["stages"]) == ([3, 1], rule, 2)
    assert (found["weight_copies_per_stage"], found["forward_difference_per_stage"]) == ([2, 1], missing)
    assert found["backward_difference_per_stage"] == [missing[0] - 1, 0]
    data = DATA_SETS["wine"]()
    schedule = build_schedule("1f1b-rr", 2, 24, replicas=(3, 1), replica_updates=rule)
    timeline = given_clock(OpSeconds((3.0, 1.0), (6.0, 2.0)))(schedule, 1)
    order = training_order(timeline, 1)
    run = train_once(
        order, "pipedream", perceptron(2, data.features, data.classes), data, OPTIMIZERS["adam"](), TrainingSettings(8)
    )
    assert found["runs"][0]["train_loss"] == run.train_loss
    assert found["runs"][0]["simulated_seconds"] == timeline.makespan_seconds
    straight = document(capsys, *words.replace("--replicas 3,1", "").split())
    assert straight["replica_updates"] is None
    assert straight["runs"][0]["train_loss"] != run.train_loss


@pytest.mark.parametrize("rule", ["overlapped", "barrier"])
def test_replicas_are_trained_by_the_version_table(rule: str, clusters: None) -> None:
    """The order of the command gives each mini-batch the loss that the version table defines; 4-2-2, both rules."""
    data, replicas, clock = DATA_SETS["wine"](), (4, 2, 2), given_clock(OpSeconds((4.0, 2.0, 2.0), (8.0, 4.0, 4.0)))
    found = MethodCase("", "pipedream", replicas=replicas, replica_updates=rule).order(clock, 3, 24)
    network = perceptron(3, data.features, data.classes, hidden=7)
    run = train_once(found.order, "pipedream", network, data, MomentumSGD(), SETTINGS)
    timeline = clock(build_schedule("1f1b-rr", 3, 24, replicas=replicas, replica_updates=rule), 1)
    assert run.update_loss == pytest.approx(losses_by_versions(replicas, timeline, data, 24), rel=1e-9)
    assert run.weight_copies_per_stage == found.copies


def test_replicas_have_devices_of_their_own(capsys: pytest.CaptureFixture[str], clusters: None) -> None:
    """3-1 takes four devices of the cluster; its rounds are all-reduced on the cluster's links; the table names the plan."""
    words = "--method naive --microbatches-per-minibatch 1 --stages 2 --replicas 3,1 --cluster dapple-b:4"
    code, out, _ = trained(capsys, *words.split())
    assert code == 0
    assert "naive: replicas 3-1, overlapped" in out
    assert "weight copies by stage 1 1; updates missing at forward 2 0, at backward 1 0" in " ".join(out.split())
    assert "on dapple-b, one replica per device" in " ".join(out.split())
    network = perceptron(2, (5,), 3)
    clock = network_clock(network, DATA_SETS["wine"](), load_cluster("dapple-b:4"), 8, "adam", (3, 1))
    assert [stage.devices for stage in clock.stages] == [(0, 1, 2), (3,)]
    timeline = clock(build_schedule("1f1b-rr", 2, 24, replicas=(3, 1)), 1)
    reduced = timeline.kind == OpKind.REDUCE
    assert (timeline.end[reduced] > timeline.start[reduced]).all()
    assert reduced.sum() == 24 // 3
    plain = network_clock(network, DATA_SETS["wine"](), load_cluster("dapple-b:4"), 8, "sgd", (3, 1))
    assert (clock.problem.optimizer, plain.problem.optimizer, plain.stages) == ("adam", "sgd", clock.stages)


def test_orders_of_replicas_are_checked() -> None:
    """T and the number of mini-batches, where no command line stands before."""
    with pytest.raises(ValueError, match=r"7 replicas need as many mini-batches, got 6"):
        MethodCase("", "naive", replicas=(7, 1, 1)).order(UNIT, 3, 6)
    with pytest.raises(ValueError, match=r"T = 1, got T = 2"):
        MethodCase("", "naive", 2, replicas=(2, 1, 1)).order(UNIT, 3, 6)


@needs_sklearn
def test_the_network_as_a_workload() -> None:
    """One layer a block: 2·64·64 FLOP and 64·64 + 64 weights of a dense one; 18 FLOP a pixel and channel pair convolved."""
    data = DATA_SETS["digits"]()
    dense = network_workload(perceptron(8, data.features, data.classes), data)
    assert len(dense) == 8
    assert (dense.layers[3].flop, dense.layers[3].parameters) == (8192.0, 4160)
    images = network_workload(convolutional(4, data.features, data.classes), data)
    assert images.layers[0].flop == 18.0 * 64 * 1 * 8
    assert [layer.kind for layer in images.layers] == ["convolution", "convolution", "linear", "linear"]
    assert images.layers[1].output_elements == 4 * 4 * 8


def test_halves_of_a_block_have_the_versions_of_their_stages(
    clusters: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two blocks on three stages: PipeDream keeps 3, 2 and 1 versions of the first block's halves and of the second block."""
    found = document(capsys, "--method", "pipedream", "--split", "0:0.5", "--microbatches-per-minibatch", "1")
    assert (found["split"], found["stages"], found["weight_copies_per_stage"]) == ("0:0.5", 3, [3, 2, 1])


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--method magic", "--method 'magic' is unknown; choices: synchronous, naive"),
        ("--method xpipe --data mnist", "--data 'mnist' is unknown; choices: digits"),
        ("--method xpipe --optimizer lion", "--optimizer 'lion' is unknown; choices: sgd, adam"),
        ("--method xpipe --split 1", "argument --split: '1': '' is not a number"),
        ("--method xpipe --split a:0.5", "argument --split: 'a:0.5': 'a' must be a whole number of at least 0"),
        (
            "--method xpipe --split 2:0.5",
            "argument --split: '2:0.5': block 2 cannot be split: the network has blocks 0 to 1",
        ),
        (
            "--method xpipe --split 1:1",
            "argument --split: '1:1': fraction 1 of the 3 outputs of block 1 leaves one of its parts without any",
        ),
        ("--method xpipe --network vgg", "--network 'vgg' is unknown; choices: mlp, convolutional"),
        (
            "--method xpipe --network convolutional",
            (
                "a convolutional network needs square images and at least 2 stages, got samples of shape "
                "(5,) and 3 stages"
            ),
        ),
        ("--method xpipe --lr-schedule sine", "--lr-schedule 'sine' is unknown"),
        ("--method xpipe --lr 0", "the learning rate must be a positive number, got 0.0"),
        ("--method xpipe --batch 1", "--batch 1 samples cannot be cut into 2 micro-batches"),
        ("--method xpipe --batch 97", "1 to 96 samples"),
        ("--method 2bw", "got T=2, N=3"),
        ("--method naive --correction literal", "--correction goes with --method xpipe or xpipe-exact, not naive"),
        ("--method xpipe --warmup-minibatches 3", "--warmup-minibatches goes with --method pipemare, not xpipe"),
        ("--method pipemare --warmup-minibatches 24", "0 to 23 of 24 mini-batches, got 24"),
        ("--method xpipe --forward-rounding up", "forward rounding must be one of round"),
        ("--method xpipe --forward 1", "--forward needs both --forward and --backward"),
        ("--method xpipe --predict 1", "--predict needs both --forward and --backward"),
        ("--method xpipe --forward 1,1 --backward 1", "one for each of 3 stages, got 2 numbers"),
        ("--method xpipe --forward -1 --backward 1", "must be a finite number of at least 0, got -0.5"),
        ("--method xpipe --forward 1 --backward 1 --cluster dapple-b", "does not go with --forward"),
        ("--method xpipe --cluster dapple-b:2", "--stages 3: cluster dapple-b has 2 devices"),
        ("--method xpipe --cluster atlantis", "atlantis"),
        (
            "--method vertical-sync --replicas 2,1,1",
            "--replicas goes with --method naive or pipedream, not vertical-sync",
        ),
        ("--method pipedream --replicas 2,1,1", "--microbatches-per-minibatch must be 1, got 2"),
        ("--method naive --microbatches-per-minibatch 1 --replicas 2,1", "counts of 2 stages, --stages is 3"),
        (
            "--method naive --microbatches-per-minibatch 1 --replicas 25,1,1 --forward 1 --backward 1",
            "25 replicas need as many mini-batches, got 24",
        ),
        (
            "--method naive --microbatches-per-minibatch 1 --replicas 15,1,1",
            "--replicas of 17 in all: cluster dapple-b has 16",
        ),
        ("--method naive --replica-updates barrier", "--replica-updates goes with --replicas"),
        ("--method naive --replicas 2,1,1 --replica-updates late", "'late' is unknown; choices: overlapped, barrier"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], clusters: None, words: str, message: str) -> None:
    """Exit code 2, nothing on stdout, the rule and the value."""
    assert message in refused(capsys, instead(SHORT.split(), *words.split()))


def test_missing_scikit_learn_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 and the name of the extra."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert "pip install 'pipeplan[learn]'" in refused(capsys, f"{SHORT} --method xpipe".split())


# ---- the paper's order -----------------------------------------------------------------------------------------------


@needs_sklearn
@pytest.mark.slow
@pytest.mark.parametrize("epochs", [4, 10])
def test_stale_weights_cost_train_loss(epochs: int, capsys: pytest.CaptureFixture[str]) -> None:
    """8 stages, digits, Adam .002, 5 seeds: the mean train loss rises with staleness that is not predicted.

    synchronous < XPipe T=4 (these two are not statistically distinguishable, so at most within .02), then naive T=4,
    XPipe T=1, naive T=1.
    """
    losses = {}
    for method, t in (("synchronous", 4), ("xpipe", 4), ("naive", 4), ("xpipe", 1), ("naive", 1)):
        words = (
            f"train --method {method} --microbatches-per-minibatch {t} --stages 8 --epochs {epochs} --seeds 5 --json"
        )
        assert main(words.split()) == 0
        runs = json.loads(capsys.readouterr().out)["runs"]
        losses[method, t] = math.fsum(run["train_loss"] for run in runs) / 5
    assert abs(losses["synchronous", 4] - losses["xpipe", 4]) < 0.02
    assert (
        max(losses["synchronous", 4], losses["xpipe", 4]) < losses["naive", 4] < losses["xpipe", 1] < losses["naive", 1]
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--epochs", "1000000000000"),
        ("--epochs", "100000"),
        ("--seeds", "10000", "--epochs", "30"),
        ("--stages", "700000"),
        ("--stages", "100000", "--forward", "1", "--backward", "1"),
        ("--microbatches-per-minibatch", "8", "--epochs", "1000", "--seeds", "100"),
    ],
    ids=" ".join,
)
def test_work_is_counted_before_it_is_made(
    words: tuple[str, ...], clusters: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ops of all seeds together: exit code 2 and one line, before a network is built."""
    monkeypatch.setitem(NETWORKS, "mlp", lambda *given: pytest.fail("was built"))
    assert "at most" in refused(capsys, instead(SHORT.split(), "--method", "xpipe", *words))


def test_work_is_counted_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that is trained, times the seeds; the last that is allowed is allowed."""
    check_work(1, MOST_TRAINED // 4, 2)
    with pytest.raises(
        ValueError,
        match=(
            "at most 16,777,216 forwards and backwards are trained: those of 1 stages, 4,194,304 "
            "micro-batches and 3 seeds are more"
        ),
    ):
        check_work(1, MOST_TRAINED // 4, 3)
