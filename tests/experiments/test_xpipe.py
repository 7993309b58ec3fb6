"""Rules of the XPipe and time-to-accuracy experiments: closed forms, paired tests by hand, whole quick runs, figures."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

import experiments.time_to_accuracy.__main__ as time_study
import experiments.xpipe.__main__ as xpipe_study
import simulator
from experiments.studies.catalogue import STUDIES
from experiments.studies.study_harness import Findings, run_study, seed_range
from experiments.terminal.output import UsageError
from experiments.time_to_accuracy import dated_training
from experiments.time_to_accuracy.learning_plots import GROUPS, curve, target_figure, time_figure
from experiments.training import DATA_SETS, DataSet, TrainingRun, method_throughput
from experiments.training import seed_grid as training_grid
from experiments.training.clocks import MethodCase
from experiments.training.method_comparison import (
    compared,
    directions,
    holm,
    order_of,
    paired_difference,
    replicated,
    seed_blocks,
)
from experiments.training.method_throughput import CLUSTER, WORKLOAD
from experiments.training.seed_grid import UNIT_CLOCK, CaseResult, TrainingSetting, rule_with, train_grid
from experiments.xpipe import accuracy as xpipe
from experiments.xpipe.abstract_claims import accuracy_claims, claims, prediction_claims
from experiments.xpipe.xpipe_plots import accuracy_figure, difference_figure, throughput_figure
from hardware_profiles import load_cluster
from planners import Request
from planners.search.candidates import microbatch_counts
from simulator import InfeasiblePlanError, Plan, Problem, simulate
from simulator.workloads.synthetic import uniform_chain
from tests.drawings import drawing
from tests.experiments.commands import noisy_clusters, processes_asked_for, refused
from tests.layout import assert_readable
from tests.records import Recorded, lines, weights

SMALL = TrainingSetting(stages=4, batch=8, epochs=2)


def words_alone(figure: Figure, stem: Path) -> tuple[()]:
    """Writes the texts of a figure in place of its pictures."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        words = "\n".join(text.get_text() for text in figure.findobj(Text))  # type: ignore[attr-defined]
        simulator.write_atomically(stem.with_name(f"{stem.name}.{kind}"), words)
    return ()


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every figure that is written here can be read; in place of pictures, its texts are written. The drawings by name."""
    found: dict[str, Any] = {}

    def checked(figure: Figure, stem: Path) -> tuple[()]:
        assert_readable(figure)
        found[stem.name] = drawing(figure)
        return words_alone(figure, stem)

    monkeypatch.setattr(simulator, "save", checked)
    return found


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """Noisy clusters in place of the digits: 96 samples, three mini-batches of 32 an epoch."""
    data = noisy_clusters("digits")
    monkeypatch.setitem(DATA_SETS, "digits", lambda: data)
    return data


def chain_problem(devices: int = 8, workload: str = "chain", cluster: str = "dapple-b", batch: int = 32) -> Problem:
    """16 equal layers in place of BERT-large."""
    return Problem(uniform_chain(16), load_cluster(cluster).take(devices), batch, optimizer="adam")


@pytest.fixture(scope="module")
def cluster_rows() -> list[dict[str, Any]]:
    """Every method on the small problem."""
    return method_throughput.cluster_rows(chain_problem(4))


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_equal_stages_reach_the_formula() -> None:
    """XPipe's steady mini-batch takes 3T seconds, GPipe's 3(T+N-1): the ratio is (T+N-1)/T to the last bit."""
    sizes = [(n, t) for n in (2, 4) for t in (1, 2, 8)]
    assert method_throughput.balanced_rows((2, 4), (1, 2, 8)) == [
        {"stages": n, "microbatches_per_minibatch": t, "xpipe_seconds": 3.0 * t, "gpipe_seconds": 3.0 * (t + n - 1)}
        | dict.fromkeys(("speedup", "formula"), (t + n - 1) / t)
        for n, t in sizes
    ]


def test_cluster_rows_hold_every_method(cluster_rows: list[dict[str, Any]]) -> None:
    """4 equal stages: XPipe beats GPipe at every T; copies are 3 for XPipe, N for PipeDream, 1 flushed; small parts hold less."""
    rows = {row["label"]: row for row in cluster_rows}
    for t in (4, 8, 16):
        assert rows[f"XPipe T={t}"]["samples_per_second"] > rows[f"GPipe T={t}"]["samples_per_second"]
    copies = {label: round(row["most_weight_copies"]) for label, row in rows.items()}
    assert (copies["XPipe T=4"], copies["PipeDream T=1"], copies["GPipe T=4"], copies["2BW T=4"]) == (3, 4, 1, 2)
    assert rows["XPipe T=16"]["peak_memory_bytes"] < rows["XPipe T=4"]["peak_memory_bytes"]
    assert all(row["fits"] for row in rows.values())


def test_a_method_that_does_not_fit_is_shown_with_the_largest_minibatch_that_does() -> None:
    """Devices of 120 MB: PipeDream's row fits, and with one sample more it would not."""
    problem = chain_problem(4)
    devices = tuple(replace(device, memory_bytes=120e6) for device in problem.cluster.devices)
    tight = replace(problem, cluster=replace(problem.cluster, devices=devices))
    rows = {row["label"]: row for row in method_throughput.cluster_rows(tight)}
    assert not rows["PipeDream T=1"]["fits"]
    (label,) = (label for label in rows if label.startswith("PipeDream T=1, batch"))
    assert rows[label]["fits"]
    assert rows[label]["peak_memory_bytes"] <= 120e6
    larger = rows[label]["batch"] + 1
    stages = method_throughput.balanced_stages(problem)
    assert not simulate(replace(tight, batch=larger), Plan("hand", "pipedream", stages, (larger,))).fits


@pytest.mark.parametrize(
    ("reference", "other", "p"),
    [([0.0] * 4, [1.0, 2.0, 3.0, 4.0], 2 / 16), ([1.0, 2.0], [1.0, 2.0], 1.0), ([0.0] * 3, [1.0, 1.0, -2.0], 1.0)],
)
def test_the_sign_flip_test_by_hand(reference: list[float], other: list[float], p: float) -> None:
    """Four differences of one sign: 2 of 16 patterns are as far out; equal runs: p = 1; 1 + 1 - 2 = 0: all are. Twenty of one
    sign are sampled, and the draws include the one seen."""
    assert paired_difference(reference, other).p == pytest.approx(p)
    assert 0.0 < paired_difference([0.0] * 20, [1.0] * 20).p < 1e-3


def test_a_paired_difference_leaves_out_what_is_not_finite() -> None:
    """Mean over the pairs that are; the interval holds it; the same bits again; no pair is an error."""
    test = paired_difference([0.0, 0.0, 0.0], [1.0, float("nan"), 3.0])
    assert (test.mean, test.pairs) == (2.0, 2)
    assert test.low <= test.mean <= test.high
    assert test == paired_difference([0.0, 0.0, 0.0], [1.0, float("nan"), 3.0])
    with pytest.raises(ValueError, match="at least one seed with finite values"):
        paired_difference([0.0], [float("inf")])
    with pytest.raises(ValueError, match="the same seeds, got 1 and 2"):
        paired_difference([0.0], [1.0, 2.0])


def test_holm_by_hand() -> None:
    """Sorted .01 .02 .04 times 3 2 1, never falling: .03 .04 .04."""
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


# ---- grid and comparison ---------------------------------------------------------------------------------------------


def trained(data: DataSet, *cases: MethodCase, seeds: int = 6, jobs: int = 1) -> list[CaseResult]:
    """Cases under the small setting."""
    return train_grid([(case, SMALL) for case in cases], data, range(seeds), jobs=jobs)


@pytest.mark.slow
def test_a_grid_does_not_depend_on_its_processes(clusters: DataSet) -> None:
    """Seeds in order, groups of 5 and 1, one process or two: the same numbers; progress reaches every part."""
    cases = (MethodCase("synchronous", "synchronous", 2), MethodCase("XPipe T=2", "xpipe", 2))
    seen: list[int] = []
    one = train_grid(
        [(case, SMALL) for case in cases], clusters, range(6), jobs=1, report=lambda done, text: seen.append(done)
    )
    two = trained(clusters, *cases, jobs=2)
    assert [result.each("train_loss") for result in one] == [result.each("train_loss") for result in two]
    assert [run.seed for run in one[1].runs] == list(range(6))
    assert seen == [1, 2, 3, 4]
    assert one[1].copies == (3, 3, 3, 3)
    assert one[0].record()["label"] == "synchronous"


@pytest.mark.parametrize(("jobs", "processes"), [(None, 2), (1, 1), (2, 2), (8, 3)])
def test_a_grid_has_the_processes_that_are_asked_for(
    clusters: DataSet, monkeypatch: pytest.MonkeyPatch, jobs: int | None, processes: int
) -> None:
    """Or as many as there are cores, here two, and never more than parts: 11 seeds are trained in three."""
    asked = processes_asked_for(monkeypatch, training_grid)
    monkeypatch.setattr(training_grid, "_train", lambda case, setting, data, seeds, every: ((1,), list(seeds)))
    (found,) = train_grid([(MethodCase("synchronous", "synchronous", 2), SMALL)], clusters, range(11), jobs=jobs)
    assert list(found.runs) == list(range(11))
    assert asked == [processes]


def test_comparisons_are_with_the_synchronous_case_of_the_setting(clusters: DataSet) -> None:
    """A method that is synchronous too differs by nothing, p = 1; the reference has no difference of its own."""
    results = trained(
        clusters, MethodCase("synchronous", "synchronous", 2), MethodCase("also", "synchronous", 2, flushed="gpipe")
    )
    reference, other = compared(results)
    assert "test_accuracy_difference" not in reference
    assert (other["test_accuracy_difference"], other["test_accuracy_p_holm"]) == (0.0, 1.0)
    order = order_of(results, ("synchronous", "also"), slice(3))
    assert not order["rises"]
    (step,) = order["steps"]
    assert (step["from"], step["to"], step["p_holm"]) == ("synchronous", "also", 1.0)
    assert step["difference"] == step["low"] == step["high"] == step["rising_seeds"] == 0.0
    assert order["mean_train_loss"]["also"] == pytest.approx(np.mean(results[1].each("train_loss")[:3]))
    assert order["train_loss_deviation"]["also"] == pytest.approx(np.std(results[1].each("train_loss")[:3], ddof=1))
    alone = order_of(results, ("synchronous", "also"), slice(1))
    assert alone["train_loss_deviation"] == {"synchronous": 0.0, "also": 0.0}
    row = directions(results, {"paper": {"synchronous": 90.0, "also": 89.0}}, [("synchronous", "also")])[0]
    assert row["published, paper"] == pytest.approx(0.01)
    assert row["verdict"] == "not distinguishable"


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", range(3)), ("20:40", range(20, 40)), ("0:1", range(1)), ("7:8", range(7, 8))]
)
def test_seeds_are_counted_or_ranged(text: str, seeds: range) -> None:
    """`K` is 0 to K-1, `A:B` is A to B-1."""
    assert seed_range(text) == seeds


@pytest.mark.parametrize("text", ["0", "3:3", "5:2", ":5", "5:", "-1:4", "1:2:3", "a", "", "9" * 5000, "0:99999999"])
def test_other_seeds_are_refused(text: str) -> None:
    """No seed, a falling range, what is no number, too many: one line of bounded length."""
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        seed_range(text)
    assert len(str(refused.value)) < 200


def test_any_range_of_seeds_is_trained_as_a_part_of_the_whole(clusters: DataSet) -> None:
    """Seeds 4 to 6 are the last three of 0 to 6, to the bit."""
    case = MethodCase("XPipe T=2", "xpipe", 2)
    whole = trained(clusters, case, seeds=7)[0]
    part = train_grid([(case, SMALL)], clusters, range(4, 7), jobs=1)[0]
    assert part.each("seed") == [4, 5, 6]
    assert part.each("train_loss") == whole.each("train_loss")[4:]


def test_an_interrupt_leaves_every_case_with_the_same_seeds(clusters: DataSet) -> None:
    """Two cases, seeds in groups of five: after three of four parts both have the first group; after one there is nothing."""
    cases = (MethodCase("synchronous", "synchronous", 2), MethodCase("XPipe T=2", "xpipe", 2))

    def stopped(after: int) -> list[CaseResult]:
        def report(done: int, text: str) -> None:
            if done == after:
                raise KeyboardInterrupt

        return train_grid([(case, SMALL) for case in cases], clusters, range(6), jobs=1, report=report)

    for after in (2, 3):
        assert [result.each("seed") for result in stopped(after)] == [[0, 1, 2, 3, 4]] * 2
    five = trained(clusters, *cases, seeds=5)
    assert [result.each("train_loss") for result in stopped(3)] == [result.each("train_loss") for result in five]
    with pytest.raises(KeyboardInterrupt):
        stopped(1)


def test_inputs_of_another_scale_are_another_training(clusters: DataSet) -> None:
    """`unit_inputs` trains on (x + 1) / 2, as a data set of these inputs does."""
    case = MethodCase("synchronous", "synchronous", 2)
    moved = replace(clusters, train_x=(clusters.train_x + 1.0) / 2.0, test_x=(clusters.test_x + 1.0) / 2.0)
    (unit,) = train_grid([(case, replace(SMALL, unit_inputs=True))], clusters, range(2), jobs=1)
    assert unit.each("train_loss") == trained(moved, case, seeds=2)[0].each("train_loss")
    assert unit.each("train_loss") != trained(clusters, case, seeds=2)[0].each("train_loss")


def test_blocks_of_seeds() -> None:
    """The first five, every whole twenty, all."""
    assert seed_blocks(range(20, 65)) == {
        "seeds 20 to 24": slice(0, 5),
        "seeds 20 to 39": slice(0, 20),
        "seeds 40 to 59": slice(20, 40),
        "seeds 20 to 64": slice(0, 45),
    }
    assert list(seed_blocks([7])) == ["seeds 7 to 7"]
    assert list(seed_blocks(range(39))) == ["seeds 0 to 4", "seeds 0 to 19", "seeds 0 to 38"]


@pytest.mark.parametrize(
    ("differences", "p", "verdict"),
    [((0.1, 0.2), 0.01, True), ((0.1, -0.2), 0.01, False), ((0.1, 0.2), 0.2, False), ((0.1,), 0.01, False)],
)
def test_a_step_replicates_where_it_rises_in_every_block(
    differences: tuple[float, ...], p: float, verdict: bool
) -> None:
    """Two blocks that rise and a clear difference over all; not with one block, a falling one, or no clear difference."""

    def order(difference: float, p: float) -> dict[str, Any]:
        return {"steps": [{"from": "a", "to": "b", "difference": difference, "p_holm": p}]}

    first = {"first": order(1.0, 1.0)}
    blocks = {str(n): order(one, 0.5) for n, one in enumerate(differences)}
    (row,) = replicated(first | blocks | {"all": order(sum(differences), p)})
    assert row["replicates"] is verdict
    assert (row["rising_blocks"], row["blocks"]) == (sum(one > 0 for one in differences), len(differences))


def test_the_headline_alone_is_a_part_of_the_whole() -> None:
    """One setting and its inputs of another scale; the whole has that and more."""
    part, whole = xpipe.grid_parts(False, True, 10), xpipe.grid_parts(False, False, 10)
    assert {setting.label for _, setting in part["accuracy"]} == {xpipe.HEADLINE.label}
    assert set(part["accuracy"]) < set(whole["accuracy"])
    assert part["inputs_0_to_1"] == whole["inputs_0_to_1"]
    assert (part["published"], part["readings"]) == ([], [])
    assert {setting.stages for _, setting in whole["published"]} == {4}


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
def test_parts_of_the_grid(quick: bool, recorded: Recorded) -> None:
    """What is trained for each section: methods by setting, in order."""
    parts = xpipe.grid_parts(quick, False, 7)
    found: dict[str, dict[str, list[str]]] = {name: {} for name in parts}
    for name, pairs in parts.items():
        for case, setting in pairs:
            found[name].setdefault(str(setting), []).append(
                f"{case.label}: {case.method}, T={case.per_minibatch}, {case.rule}"
            )
    recorded(**found, spectrain=xpipe.SPECTRAIN_TABLE)


def test_prediction_errors_are_those_of_methods_that_predict(clusters: DataSet) -> None:
    """Means over seeds of the runs' ratios; methods without prediction have no row, and T=1 of two stages is exact."""
    cases = (MethodCase("naive T=2", "naive", 2), MethodCase("XPipe T=2", "xpipe", 2))
    results = trained(clusters, *cases, seeds=3)
    (row,) = xpipe.prediction_errors(results)
    assert row["label"] == "XPipe T=2"
    assert row["ratio"] == pytest.approx(np.mean(results[1].each("prediction_error_ratio")))
    ratios = results[1].each("prediction_error_ratio")
    assert (row["least"], row["most"]) == (min(ratios), max(ratios))
    (claim,) = prediction_claims([row | {"ratio": 1.5, "p": 0.01}])
    assert claim["verdict"] == "does not hold: it leads away"
    (claim,) = prediction_claims([row | {"ratio": 0.5, "p": 0.2}])
    assert claim["verdict"] == "not shown"


def test_rules_with_settings() -> None:
    """By name of the field; a wrong value is refused by the rule."""
    assert rule_with("pipemare", warmup_updates=3) != rule_with("pipemare")
    with pytest.raises(ValueError, match="bias correction must be one of"):
        rule_with("xpipe", correction="none")


def claim_row(difference: float, low: float, high: float, p: float) -> dict[str, Any]:
    """An accuracy record of XPipe T=4."""
    return {
        "label": "XPipe T=4",
        "optimizer": "adam",
        "learning_rate": 0.002,
        "test_accuracy_difference": difference,
        "test_accuracy_difference_low": low,
        "test_accuracy_difference_high": high,
        "test_accuracy_p_holm": p,
        "train_loss_difference": 0.0,
        "train_loss_p_holm": 1.0,
    }


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (claim_row(0.004, 0.001, 0.008, 0.01), "better"),
        (claim_row(0.004, 0.001, 0.008, 0.2), "comparable"),
        (claim_row(-0.002, -0.006, 0.003, 0.5), "comparable"),
        (claim_row(-0.005, -0.03, 0.02, 0.9), "not shown"),
        (claim_row(-0.03, -0.05, -0.02, 0.001), "worse"),
        (claim_row(-0.03, -0.05, -0.02, 0.2), "not shown"),
    ],
)
def test_accuracy_claims(row: dict[str, Any], verdict: str) -> None:
    """Better: above 0 and p < .05; comparable: interval within a point; worse: below 0 and p < .05; else not shown. Of other
    methods, and without a difference from synchronous training, there is no claim."""
    lacking = {key: value for key, value in row.items() if not key.startswith("test")}
    rows = [row | {"label": "naive T=4"}, lacking, row]
    assert [claim["verdict"] for claim in accuracy_claims(rows)] == [verdict]


def throughput_row(label: str, rate: float, fits: bool = True) -> dict[str, Any]:
    return {"label": label, "samples_per_second": rate, "peak_memory_bytes": 1.0, "fits": fits}


def test_throughput_claims_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """XPipe over GPipe at each T; over the others at the same mini-batch, and by what fits; equal rates are not higher."""
    gpipe = [throughput_row(f"GPipe T={t}", 10.0) for t in (4, 8, 16)]
    others = [throughput_row("PipeDream T=1", 30.0, False), throughput_row("PipeDream T=1, batch 7", 20.0)]
    others += [throughput_row("SpecTrain v2 T=1", 20.0)]

    def verdicts(rates: tuple[float, float, float]) -> list[str]:
        rows = [throughput_row(f"XPipe T={t}", rate) for t, rate in zip((4, 8, 16), rates, strict=True)]
        document = {
            "balanced": [{"speedup": 2.0, "formula": 2.0}],
            "cluster": [*gpipe, *others, *rows],
            "accuracy": [],
            "prediction_error": [],
            "replication": {"headline_order": [{"from": "a", "to": "b", "replicates": True, "blocks": 2}]},
        }
        return [claim["verdict"] for claim in claims(document)]

    no = "does not hold"
    assert verdicts((25.0, 25.0, 25.0)) == ["holds", no, "holds", "holds", "holds", "replicates"]
    assert verdicts((20.0, 25.0, 10.0)) == [no, no, "holds", "holds for some T", "holds", "replicates"]
    assert verdicts((11.0, 20.0, 11.0))[1:5] == [no] * 4


def test_curves_follow_the_clock(clusters: DataSet) -> None:
    """Accuracy at the seconds of its updates; loss as a running mean that starts with its window."""
    result = trained(clusters, MethodCase("XPipe T=2", "xpipe", 2), seeds=2)[0]
    minibatches = len(result.runs[0].update_seconds)
    seconds = np.arange(1.0, minibatches + 1)
    x, y = curve(result, "loss", seconds, window=4)
    assert x.tolist() == seconds[3:].tolist()
    assert y[0] == pytest.approx(np.mean([run.update_loss[:4] for run in result.runs]))
    x, y = curve(result, "accuracy", seconds)
    assert x.tolist() == result.runs[0].evaluated_updates.tolist()


# ---- time to accuracy ------------------------------------------------------------------------------------------------


def test_epochs_and_seconds_to_a_target(clusters: DataSet) -> None:
    """The first evaluation at the target, median over the seeds that reach it; never reached is null."""
    result = trained(clusters, MethodCase("synchronous", "synchronous", 2), seeds=1)[0]
    minibatches = len(result.runs[0].update_seconds)
    run = replace(
        result.runs[0], evaluated_updates=np.array([6, 12, 18, 24]), evaluated_accuracy=np.array([0.5, 0.9, 0.8, 0.95])
    )
    dated = replace(result, runs=(run,))
    record = dated_training.target_record(dated, 2.0 * np.arange(1, minibatches + 1), 0.85, 12)
    assert (record["seeds_at_target"], record["epochs_to_target"], record["seconds_to_target"]) == (1, 1.0, 24.0)
    never = dated_training.target_record(dated, 2.0 * np.arange(1, minibatches + 1), 0.99, 12)
    assert (never["seeds_at_target"], never["epochs_to_target"], never["seconds_to_target"]) == (0, None, None)


def test_the_order_of_ops_does_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """One training may be dated on several clusters: each stage runs the same ops in the same order on all of them."""
    monkeypatch.setattr(dated_training, "cluster_problem", chain_problem)
    clock = dated_training.MachineClock("dapple-b", "chain")
    for case in time_study.CASES:
        shorter = replace(case, warmup=min(case.warmup, 3))
        orders = [shorter.order(seconds, 8, 6).order for seconds in (UNIT_CLOCK, clock.clock)]
        for k in range(8):
            own = [np.stack([order.kind, order.microbatch])[:, order.stage == k] for order in orders]
            assert np.array_equal(*own), case.label


def test_a_network_of_fewer_stages_than_devices_has_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The methods are compared on as many stages as devices."""
    monkeypatch.setattr(dated_training, "cluster_problem", chain_problem)
    stages = dated_training.balanced_stages(chain_problem())
    monkeypatch.setattr(dated_training, "balanced_stages", lambda problem: stages[:3])
    with pytest.raises(UsageError, match=f"--workload chain: 3 stages, {len(stages)} are needed"):
        dated_training.MachineClock("dapple-b", "chain")


def test_machine_clocks_date_data_parallelism_by_its_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal steps of a synchronous iteration; pipelines by their timeline; memory of each plan."""
    monkeypatch.setattr(dated_training, "cluster_problem", chain_problem)
    clock = dated_training.MachineClock("dapple-b", "chain")
    cases = {case.label: case for case in time_study.CASES}
    parallel = clock.update_seconds(cases["data parallel"], TrainingSetting(), 5)
    assert len(parallel) == 5
    assert np.diff(parallel) == pytest.approx(parallel[0])
    stream = clock.update_seconds(cases["XPipe T=4"], TrainingSetting(), 20)
    flushed = clock.update_seconds(cases["GPipe T=4"], TrainingSetting(), 20)
    assert stream[-1] < flushed[-1]
    assert clock.memory(cases["XPipe T=4"])["fits"]


# ---- figures ---------------------------------------------------------------------------------------------------------


def made_result(case: MethodCase, number: int, seeds: int = 20) -> CaseResult:
    """A training whose loss falls and whose accuracy rises, the later the higher its number."""
    updates = np.arange(1, 441)
    loss = 2.3 * np.exp(-updates / (40.0 + 20.0 * number))
    evaluated = updates[10::11]
    accuracy = 0.98 - 0.9 * np.exp(-evaluated / (30.0 + 20.0 * number))
    run = TrainingRun(
        case.method, 0, loss[-1], accuracy[-1], False, 3, (3,) * 8, 440.0, 1.1, updates * (1.0 + 0.3 * number), loss,
        evaluated, evaluated * 1.0, 1.0 - accuracy, accuracy,
    )  # fmt: skip
    spread = np.linspace(0.5, 2.0, seeds)
    runs = tuple(replace(run, seed=seed, train_loss=run.train_loss * spread[seed]) for seed in range(seeds))
    return CaseResult(case, xpipe.HEADLINE, (3,) * 8, runs)


@pytest.mark.slow
def test_figures_of_full_runs_can_be_read(cluster_rows: list[dict[str, Any]]) -> None:
    """Twenty methods near and beyond the capacity, fifteen methods of twenty seeds, six settings, three clusters."""
    rows = [
        {**row, "fits": n % 3 > 0, "capacity_bytes": 1.05 * row["peak_memory_bytes"]}
        for n, row in enumerate(cluster_rows)
    ]
    balanced = method_throughput.balanced_rows((2, 4, 8), (1, 4, 16))
    figures = [throughput_figure(balanced, rows, "bert-large, 8 devices of dapple-b, mini-batch 32")]
    results = [made_result(case, n) for n, case in enumerate((*xpipe.CASES, *xpipe.MORE_CASES))]
    records = [result.record() for result in results]
    figures.append(accuracy_figure(records, "8 stages, adam 0.002, 10 epochs, INTERRUPTED"))
    differences = [
        {**record, "learning_rate": rate, "test_accuracy_difference": 0.004 - 0.015 * n}
        | {"test_accuracy_difference_low": -0.005 - 0.02 * n, "test_accuracy_difference_high": 0.03}
        for rate in (0.0005, 0.001, 0.002, 0.004, 0.1, 0.3)
        for n, record in enumerate(records[1:9])
    ]
    figures += [difference_figure(differences), difference_figure(differences[:8])]
    for figure in figures:
        assert_readable(figure)


@pytest.mark.parametrize("settings", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_the_axis_of_differences_holds_every_interval(settings: int, recorded: Recorded) -> None:
    """From a hundred points below synchronous to three above, drawn whole and with room at both ends of the axis."""
    draw = np.random.default_rng(settings)
    low, mean, high = np.sort(draw.uniform([-1.0] * 8 + [-0.01] * 4, 0.03, (3, 12)), axis=0)
    rows = [
        {"label": f"XPipe T={n + 1}", "stale": True, "optimizer": "adam", "learning_rate": 0.001 * (1 + setting)}
        | {"test_accuracy_difference": mean[n], "test_accuracy_difference_low": low[n]}
        | {"test_accuracy_difference_high": high[n]}
        for setting in range(settings)
        for n in range(12)
    ]
    figure = difference_figure(rows)
    assert_readable(figure)
    for axes in figure.axes[:settings]:
        left, right = axes.get_xlim()
        lines = [line.get_xdata().tolist() for line in axes.lines if line.get_xdata()[0] != 0]  # type: ignore[union-attr]
        assert sorted(lines[::2]) == sorted(map(list, zip(100 * low, 100 * high, strict=True)))
        assert all(left < x < right for line in lines for x in line)
    recorded(figure=weights(drawing(figure)))


def test_time_figures_are_small_multiples_that_can_be_read(recorded: Recorded) -> None:
    """Fifteen methods in four groups, each with at most six curves; the medians of three clusters, some never there."""
    curves = [(made_result(case, n), np.arange(1.0, 441.0) * (1 + n)) for n, case in enumerate(time_study.CASES)]
    figure = time_figure(curves, 0.95, "bert-large on 8 devices of dapple-b, mini-batch 32, INTERRUPTED")
    assert_readable(figure)
    assert sum(belongs(case) for case in time_study.CASES for belongs in GROUPS.values()) == len(curves)
    assert all(len(axes.lines) <= 7 for axes in figure.axes)
    rows = [
        {"label": case.label, "fits": n % 2 == 0, "seeds": 10, "seeds_at_target": n % 11}
        | {"seconds_to_target": 10.0**n if n % 11 and n < 4 else 1e4 if n % 11 else None}
        for n, case in enumerate(time_study.CASES)
    ]
    targets = target_figure({"dapple-b": rows, "dapple-c": rows, "dgx-a100:1": rows}, 0.95)
    assert_readable(targets)
    one = target_figure({"dapple-b": rows}, 0.95)
    assert_readable(one)
    recorded(curves=drawing(figure), targets_on_one=drawing(one), targets=weights(drawing(targets)))


# ---- whole runs ------------------------------------------------------------------------------------------------------


def test_the_options_say_what_the_studies_take() -> None:
    """The catalogue, which loads no study, has their settings in words."""
    assert f" {xpipe.HEADLINE.label} alone" in str(STUDIES["xpipe"].options["--headline"])
    own = STUDIES["time-to-accuracy"].options
    assert [own[name][-1] for name in ("--workload NAME", "--cluster NAME")] == [WORKLOAD, CLUSTER]


def test_xpipe_quick_run(
    clusters: DataSet,
    cluster_rows: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    drawn: dict[str, Any],
    recorded: Recorded,
) -> None:
    """One JSON document with the numbers behind each claim, three figures in two formats; a table without --json."""
    monkeypatch.setattr("experiments.xpipe.__main__.cluster_problem", chain_problem)
    monkeypatch.setattr("experiments.xpipe.__main__.cluster_rows", lambda problem: cluster_rows)
    monkeypatch.setattr(xpipe, "CASES", tuple(case for case in xpipe.CASES if case.label in xpipe.ORDER))
    monkeypatch.setattr(xpipe, "MORE_CASES", xpipe.MORE_CASES[:1])
    monkeypatch.setattr(xpipe, "SPECTRAIN_TABLE", {"VGG on CIFAR-10": {"synchronous": 91.1, "naive T=1": 88.3}})
    monkeypatch.setattr(xpipe, "PRINTED_PAIRS", (("synchronous", "naive T=1"),))
    readings = xpipe.sensitivity_cases()[:2]
    monkeypatch.setattr(xpipe, "sensitivity_cases", lambda: readings)
    out = tmp_path / "figures"
    assert run_study("xpipe", ["--quick", "--json", "--out", str(out), "--jobs", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["quick"], document["seeds"], document["interrupted"]) == (True, [0, 1, 2], False)
    assert list(document["orders"]["headline_order"]) == ["seeds 0 to 2"]
    assert document["claims"][-1]["verdict"] == "not shown"
    assert {row["label"] for row in document["prediction_error"]} >= {"XPipe T=1", "XPipe T=4"}
    assert {record["label"] for record in document["accuracy"]} >= set(xpipe.ORDER)
    assert all({"claim", "verdict", "evidence"} == set(claim) for claim in document["claims"])
    assert {len(row["test_accuracies"]) for row in document["accuracy"]} == {3}
    names = {f"xpipe_{name}.{kind}" for name in ("throughput", "accuracy", "difference") for kind in ("png", "svg")}
    assert {path.name for path in out.iterdir()} == names | {"xpipe.json", "pipeplan-files.json"}
    xpipe_study.print_document(document)
    printed = capsys.readouterr().out
    assert "QUICK RUN" in printed
    assert "chosen after results had been seen" in printed
    recorded(printed=lines(printed), drawn=weights(drawn))


@pytest.mark.parametrize(
    ("name", "experiment"), [pytest.param("xpipe", xpipe, marks=pytest.mark.slow), ("time-to-accuracy", time_study)]
)
def test_an_interrupted_run_writes_what_it_has_and_says_so(
    name: str,
    experiment: Any,
    clusters: DataSet,
    cluster_rows: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Interrupted in the second group of seeds: exit code 130; the first group is written, marked in document and tables."""
    monkeypatch.setattr(simulator, "save", words_alone)
    monkeypatch.setattr(training_grid, "GROUP", 2)
    monkeypatch.setattr(xpipe, "sensitivity_cases", lambda: [xpipe.CASES[1]])
    for door in ("experiments.xpipe.__main__", "experiments.time_to_accuracy.dated_training"):
        monkeypatch.setattr(f"{door}.cluster_problem", chain_problem)
    monkeypatch.setattr("experiments.xpipe.__main__.cluster_rows", lambda problem: cluster_rows)
    monkeypatch.setattr(time_study, "OTHER_CLUSTERS", ())
    kept = {"data parallel", *xpipe.ORDER}
    monkeypatch.setattr(experiment, "CASES", tuple(case for case in experiment.CASES if case.label in kept))
    monkeypatch.setattr(xpipe, "MORE_CASES", ())
    monkeypatch.setattr(xpipe, "SETTINGS", (xpipe.HEADLINE,))
    monkeypatch.setattr(xpipe, "SPECTRAIN_TABLE", {"VGG on CIFAR-10": {"synchronous": 91.1, "naive T=1": 88.3}})
    monkeypatch.setattr(xpipe, "PRINTED_PAIRS", (("synchronous", "naive T=1"),))

    def interrupted(grid: Any, data: DataSet, seeds: Any, **options: Any) -> list[CaseResult]:
        def report(done: int, text: str) -> None:
            if done == 2 * len(grid) - 1:
                raise KeyboardInterrupt

        return train_grid(grid, data, seeds, **{**options, "report": report})

    monkeypatch.setattr(experiment, "train_grid", interrupted)
    assert run_study(name, ["--json", "--seeds", "3:6", "--out", str(tmp_path), "--jobs", "1"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert (document["interrupted"], document["seeds"], document["epochs"]) == (True, [3, 4], 10)
    assert json.loads((tmp_path / f"{name.replace('-', '_')}.json").read_text()) == document
    figure = tmp_path / {"xpipe": "xpipe_accuracy.svg"}.get(name, "time_to_accuracy.svg")
    assert "INTERRUPTED" in figure.read_text()
    Findings(document, (xpipe_study if name == "xpipe" else time_study).print_document).end(None, False)
    printed = capsys.readouterr().out
    assert "INTERRUPTED" in printed
    assert "seeds 3 to 4" in printed


def test_time_to_accuracy_quick_run(
    clusters: DataSet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    recorded: Recorded,
) -> None:
    """Every case on every cluster, dated; the names of the two pictures; tables."""
    drawn: list[str] = []
    monkeypatch.setattr(simulator, "save", lambda figure, stem: (drawn.append(stem.name), words_alone(figure, stem)))
    monkeypatch.setattr(dated_training, "cluster_problem", chain_problem)
    monkeypatch.setattr(time_study, "OTHER_CLUSTERS", ("dgx-a100:1",))
    kept = ("data parallel", "GPipe T=4", "PipeDream T=1", "PipeMare T=4, warm-up", "XPipe T=4")
    monkeypatch.setattr(time_study, "CASES", tuple(case for case in time_study.CASES if case.label in kept))
    out = tmp_path / "figures"
    words = ["--quick", "--json", "--out", str(out), "--jobs", "1", "--target", "0.5"]
    assert run_study("time-to-accuracy", words) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["clusters"]) == {"dapple-b", "dgx-a100:1"}
    for rows in document["clusters"].values():
        assert [row["label"] for row in rows] == [case.label for case in time_study.CASES]
    assert {path.name for path in out.iterdir()} == {
        "pipeplan-files.json",
        "time_to_accuracy.png", "time_to_accuracy.svg", "time_to_target.png", "time_to_target.svg", "time_to_accuracy.json"
    }  # fmt: skip
    time_study.print_document(document)
    printed = capsys.readouterr().out
    assert "one learning rate for all" in printed
    cases = [f"{one.label}: {one.method}, T={one.per_minibatch}, {one.rule}" for one in time_study.CASES]
    recorded(printed=lines(printed), drawn=sorted(drawn), cases=cases)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "0"], "--target must be an accuracy between 0 and 1, got 0"),
        (["--workload", "vgg61"], "vgg61"),
        (["--cluster", "dapple-b:2"], "cluster 'dapple-b:2' has 2 devices, 8 are needed"),
    ],
)
def test_mistakes_are_one_line(
    clusters: DataSet, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Exit code 2, nothing on stdout."""
    assert message in refused(capsys, ["study", "time-to-accuracy", "--quick", *words])


def test_2bw_is_planned_with_a_microbatch_a_stage_or_refused() -> None:
    """Of 32 samples on 4 devices 4 to 32 micro-batches are tried, not 1 to 3; fewer than 4 cannot be asked for."""
    problem = chain_problem(4)
    assert microbatch_counts(problem, Request(schedule="2bw"), 4) == tuple(range(4, 33))
    assert microbatch_counts(problem, Request(schedule="xpipe"), 4) == tuple(range(1, 33))
    with pytest.raises(
        InfeasiblePlanError, match="schedule '2bw' needs at least 4 micro-batches, one per stage, got 2"
    ):
        microbatch_counts(problem, Request(schedule="2bw", microbatches=2), 4)


def test_the_cluster_of_the_methods_may_be_taken_whole() -> None:
    """All devices of a cluster are taken, one more is refused with both numbers."""
    problem = method_throughput.cluster_problem(8, "alexnet", "dgx-a100:1", 8)
    assert len(problem.cluster.devices) == 8
    with pytest.raises(ValueError, match="cluster 'dgx-a100:1' has 8 devices, 9 are needed"):
        method_throughput.cluster_problem(9, "alexnet", "dgx-a100:1", 8)
