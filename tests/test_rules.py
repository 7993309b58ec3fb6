"""Rules of values and calls, each broken once: one line that says the rule and what was given."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeplan as pp
from experiments.calibration.logs import read_logs
from experiments.commands.simulate_command import _without
from experiments.compare.disturbance_options import straggler
from experiments.compare.efficiency import price_of_all
from experiments.dnn_partitioning.graph_files import OperatorGraph
from experiments.report.goodputs import _with_a_server_fewer
from experiments.studies.public_inputs import read_inputs
from experiments.studies.study_harness import seed_range
from experiments.sweep.axes import read_over
from experiments.sweep.study import _switched
from experiments.sweep.swept import Swept
from experiments.targets.imported import StageLayout, plan_of_layout
from experiments.terminal.argument_types import Listed
from experiments.terminal.output import plain
from experiments.training.optimizers import Adam
from experiments.training.order import repeated, training_order
from experiments.training.prediction import PipeMare
from experiments.training.run import TrainingSettings
from experiments.truth.measured_tables import read_tables
from experiments.view.page import _small
from experiments.view.page_option import window, written_page
from hardware_profiles import Operation, Work, load_accelerator, load_cluster, load_stack, profile_text
from hardware_profiles.accelerator import checked_rates
from hardware_profiles.collectives import CollectiveRates
from hardware_profiles.numbers import check_real, check_whole, real_number, whole_number
from hardware_profiles.option_declarations import option_text
from hardware_profiles.prediction_errors import ErrorClass
from planners import SearchedSchedule
from planners.pipedream.state_table import measured_seconds
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.unequal.tables import candidate_sizes
from simulator import (
    Failing,
    Gpt,
    OpSeconds,
    ScheduleFamily,
    build_schedule,
    check_plan,
    check_recompute,
    explain,
    given_costs,
    goodput,
    layer_bounds,
    named_schedule,
    read_any_profile,
    simulate,
    workload_from_spec,
)
from simulator.options.disturbance_limits import check_noise
from simulator.schedules import _plugged_in_schedule, as_family
from simulator.schedules.schedule import check_counts
from simulator.schedules.unequal import bounds_of
from simulator.workloads.catalog import _function
from simulator.workloads.gnmt import gnmt
from simulator.workloads.layers import WorkloadSource
from tests.experiments.commands import ended
from tests.records import Recorded
from tests.simulator.test_cost_figures import CASES

A100 = load_accelerator("a100-80")
DGX = load_cluster("dgx-a100:1")
PRODUCT = Work(kind="linear", flop=1.0, parameters=1.0, output_elements=1.0, input_elements=1.0)
PROBLEM, PLAN = CASES["replicas"]

RATES = "fp32, tf32, fp16, bf16, fp8, int8, int4, int3, int2, int1"


def _planned(here: Path, stage: dict[str, str]) -> object:
    """A plan file of one stage, read again."""
    problem = {"workload": "alexnet", "cluster": "pipedream-b:1", "batch": 8}
    plan = {"schedule": "gpipe", "microbatches": [8], "stages": [stage | {"devices": "0"}]}
    (here / "one.json").write_text(json.dumps({"format": "pipeplan-plan-2", "problem": problem, "plan": plan}))
    return pp.PlanFile.read_plan(here / "one.json")


def _logged(here: Path) -> object:
    """A log of torchtitan of one step, of samples without tokens."""
    file = here / "steps.log"
    file.write_text("step: 1  loss: 9.2  grad_norm: 1.2  memory: 8.00GiB(10.1%)  tps: 100  tflops: 4.3  mfu: 4.7%\n")
    return read_logs(file, 0, 1, 1, warm_up=0)


IN_TURN: dict[str, Any] = {"stages": 1, "microbatches": 4, "replicas": (2,), "forward": 1, "backward": 2, "update": 1}

RULES: dict[str, Callable[[Path], object]] = {
    "a100-80: sequential_steps must be at least 1: 0": lambda _: A100.seconds(
        replace(PRODUCT, sequential_steps=0), 1, "forward", "bf16"
    ),
    "dgx-a100: a cluster has at least one device": lambda _: replace(DGX, devices=(), nodes=()),
    "dgx-a100: 8 devices need as many nodes: 7": lambda _: replace(DGX, nodes=DGX.nodes[1:]),
    "dgx-a100: sharing is fair or fifo: 'lifo'": lambda _: replace(DGX, sharing="lifo"),  # type: ignore[arg-type]
    "link server0.device0 - server0.switch: sharing is fair or fifo: 'lifo'": lambda _: replace(
        DGX.links[0],
        sharing="lifo",  # type: ignore[arg-type]
    ),
    (
        "link server0.device0 - server0.switch: fabric is one of nvlink-3, nvlink-4, nvlink-5, pcie, "
        "infiniband, efa, tcpx, ethernet: 'string'"
    ): lambda _: replace(DGX.links[0], fabric="string"),  # type: ignore[arg-type]
    "size_bytes is at least 0: -1": lambda _: CollectiveRates(DGX.topology, DGX.allreduce).seconds(
        Operation.ALL_REDUCE, [0, 1], -1.0
    ),
    "option x must be a text, a number or a list of them, got {'a': 1}": lambda _: option_text("x", {"a": 1}),
    "recompute 'twice' is unknown": lambda _: check_recompute(PROBLEM.workload, "twice"),
    "schedule '1f1b' needs its micro-batches, or mini-batches in their place": lambda _: named_schedule(
        "1f1b", 2, None
    ),
    "engine 'steam' is unknown": lambda _: simulate(PROBLEM, PLAN, engine="steam"),  # type: ignore[arg-type]
    "build must be a function (stages, microbatches) -> Schedule, not int": lambda _: ScheduleFamily(1, "one"),  # type: ignore[arg-type]
    "options must be names of keyword options of build, got": lambda _: ScheduleFamily(
        build_schedule,
        "one",
        options=(1,),  # type: ignore[arg-type]
    ),
    "options must be names of keyword options of build, got 'ab'": lambda _: ScheduleFamily(
        build_schedule,
        "one",
        options="ab",  # type: ignore[arg-type]
    ),
    "schedule 'gpipe' flushes whole mini-batches: 2 micro-batches are no multiple of T=4": lambda _: named_schedule(
        "gpipe", 2, 2, microbatches_per_minibatch=4
    ),
    **{
        f"{word} must be at least 1, got {count}": lambda _, given=given: named_schedule("gpipe", 2, **given)
        for word, count, given in (
            ("micro-batches", 0, {"microbatches": 0}),
            ("micro-batches", -4, {"microbatches": -4, "microbatches_per_minibatch": 4}),
            ("mini-batches", 0, {"minibatches": 0, "microbatches_per_minibatch": 4}),
            ("mini-batches", -1, {"minibatches": -1, "microbatches_per_minibatch": 4}),
        )
    },
    "placement 'round' is unknown": lambda _: ScheduleFamily(build_schedule, "one", placement="round"),  # type: ignore[arg-type]
    "sizes need at least one stage, got none": lambda _: bounds_of([]),
    "Gpt blocks must be at most 10,000, got 10000 layers and 1 of further tokens": lambda _: Gpt(
        10_000, 64, 1, sequence=8, vocabulary=8, further=1
    ),
    "minibatch must be at least 1 sample, got 0": lambda _: measured_seconds(PROBLEM.workload, 0),
    **{
        f"{text} must be BEGIN:END, seconds that rise from at least 0": lambda _, text=text: window(text)
        for text in ("x", "3", "3:", ":3", "2:2", "-1:2")
    },
    "'٣' must be K, the seeds 0 to K-1, or A:B, the seeds A to B-1, below 1,000,000,000": lambda _: seed_range("٣"),
    "'5:5' must hold 1 to 10,000 seeds, got 0": lambda _: seed_range("5:5"),
    "a page counts to 2147483647, got 2147483648": lambda _: _small(np.array([0, 2**31])),
    "the plan is on one server, and on none fewer is one": lambda _: _with_a_server_fewer(
        simulate(PROBLEM, PLAN), "uniform", 0
    ),
    **{
        words: lambda _, chains=chains: ScheduleProblem(chains=chains, microbatches=1, forward=1.0, input_gradient=1.0)
        for words, chains in (
            ("a schedule problem has at least one chain of at least one stage, all of one length", ()),
            ("at least one chain of at least one stage, all of one length", ((),)),
            ("at least one stage, all of one length", ((0,), (0, 0))),
        )
    },
    "lanes 'half' are unknown; choices: shared, split": lambda _: build_schedule("fbp-as", 2, 2, lanes="half"),
    "a described profile is written described:graph.txt, got 'described:'": lambda _: workload_from_spec("described:"),
    "must be a function that returns a Workload, not int": lambda _: _function(3),
    "must be a function (stages, microbatches) -> Schedule, or a ScheduleFamily, not int": lambda _: as_family(3),
    "profiled_minibatch goes with PipeDream's graph.txt; gone.json says its own samples": lambda _: read_any_profile(
        "gone.json", 4
    ),
    "no cluster is named 'a100-80'": lambda _: profile_text("a100-80", "cluster"),
    "--weight must be one number, or one per stage, and at most the seconds of a backward in f: 2, 3": lambda _: (
        _without([2.0, 3.0], [1.0] * 3, "f")
    ),
    **{
        f"{way} sizes of plan 'mine' must be one list for each of 2 stages, of at least 1 sample each, that sum to 16; got lists "
        "that sum to [7, 16]": lambda _, way=way: check_plan(
            PROBLEM, replace(PLAN, **{"forward_sizes": ((16,),) * 2, f"{way}_sizes": ((7,), (16,))})
        )
        for way in ("forward", "backward")
    },
    "plan 'mine' has backward sizes of its stages and no forward sizes": lambda _: check_plan(
        PROBLEM, replace(PLAN, backward_sizes=((16,),) * 2)
    ),
    "the mini-batch must have at least 1 sample, got 0": lambda _: TrainingSettings(batch=0),
    "updates between evaluations must be at least 1, got 0": lambda _: TrainingSettings(evaluate_every=0),
    "Adam needs epsilon > 0 and weight decay >= 0, got 1e-08 and -1.0": lambda _: Adam(weight_decay=-1.0),
    "dgx-a100: size_bytes is at least 0: -1.0": lambda _: DGX.transfer_seconds(0, 1, -1.0),
    "page.htm: the name must end in .html": lambda _: written_page("page.htm"),
    "candidates 'odd' are unknown; choices: ": lambda _: candidate_sizes(8, "odd"),
    "seconds on a, b: low, median and high are measured / predicted and must rise from above 0, got 0, 1, 2": lambda _: (
        ErrorClass(figure="seconds", accelerators=("a", "b"), plans=(), median=1.0, low=0.0, high=2.0, rows=1)
    ),
    "give one of name and profile": lambda _: WorkloadSource(),
    "one of name and profile": lambda _: WorkloadSource(name="chain:4", profile="graph.txt"),
    "attention goes with name; a profile has its own": lambda _: WorkloadSource(profile="graph.txt", attention="fused"),
    "sequence goes with name; a profile has its own": lambda _: WorkloadSource(profile="graph.txt", sequence=8),
    "gone: is not a folder": lambda here: read_inputs(here / "gone", OperatorGraph),
    "holds no JSON object with maxSizePerFPGA, maxFPGAs, maxCPUs, nodes, edges": lambda here: read_inputs(
        here, OperatorGraph
    ),
    "'2,,4': a part of the list is empty": lambda _: Listed(int)("2,,4"),
    "profiled_minibatch goes with profile": lambda _: WorkloadSource(name="chain:4", profiled_minibatch=4),
    "an order whose replicas take turns cannot be continued, got replicas (2,)": lambda _: repeated(
        training_order(
            pp.simulate("1f1b-rr", stages=1, microbatches=2, replicas=(2,), forward=1, backward=2, update=1).timeline, 1
        ),
        2,
    ),
    "replicas in turn take whole mini-batches, got T=2": lambda _: training_order(
        pp.simulate("1f1b-rr", **IN_TURN).timeline, 2
    ),
    "'1:0.5' must be DEVICE:FACTOR, the number of a device and a factor of 1 to": lambda _: straggler("1:0.5"),
    "must be true or false, got 'perhaps'": lambda _: _switched("perhaps"),
    "cannot write object as JSON": lambda _: plain(object()),
    "micro-batches per mini-batch must be at least 1, got 0": lambda _: training_order(
        simulate(PROBLEM, PLAN).timeline, 0
    ),
    "an order is repeated at least once, got 0": lambda _: repeated(
        training_order(pp.simulate("1f1b", stages=2, microbatches=2, forward=1, backward=2, update=1).timeline, 2), 0
    ),
    f"x: rates needs at least one precision, of {RATES}": lambda _: checked_rates("x", "rates", {}),
    f"x: rates maps a precision ({RATES}) to a rate above 0: fp7 = 1.0": lambda _: checked_rates(
        "x", "rates", {"fp7": 1.0}
    ),
    "noise must be at least 0 and below 2 (standard deviation of the logarithm), got -0.5": lambda _: check_noise(-0.5),
    "schedule 'odd', a plug-in, was asked for 2 stages and 4 micro-batches, and has 3 and 4": lambda _: (
        _plugged_in_schedule(
            "odd", as_family(lambda stages, microbatches: build_schedule("gpipe", stages + 1, microbatches)), 2, 4, {}
        )
    ),
    "heads must be a multiple of key-value heads (3), got 4": lambda _: Gpt(1, 8, 4, key_value_heads=3),
    "$.plan.stages[0].blocks: workload 'alexnet' has no blocks; choices: layers": lambda here: _planned(
        here, {"blocks": "1-2"}
    ),
    "$.plan.stages[0].layers: '0-x' must be whole numbers and ranges of them, as in '0-14, 16'": lambda here: _planned(
        here, {"layers": "0-x"}
    ),
    "steps.log: tells tokens per second, and the plan's samples have no tokens": _logged,
    "nothing: is not a folder of measured tables": lambda here: read_tables(here / "nothing", {}),
    "steps.log: No such file or directory": lambda here: read_logs(here / "steps.log", 1, 1, 1),
    "vgg16 has no transformer blocks": lambda _: plan_of_layout(
        pp.Problem("vgg16", "dgx-a100:1"),
        "x",
        StageLayout(blocks=[1, 1], ranks=2, schedule="1f1b", placement="straight", order=()),
    ),
}


@pytest.mark.parametrize("words", RULES)
def test_a_rule_that_is_broken_is_said(words: str, tmp_path: Path) -> None:
    """In one line, with what was given."""
    with pytest.raises((ValueError, TypeError, ArgumentTypeError)) as told:
        RULES[words](tmp_path)
    assert words in str(told.value)
    assert str(told.value).isprintable()


ENDS: dict[str, tuple[Callable[[float], object], tuple[float, ...], tuple[float, ...]]] = {
    "whole numbers": (lambda one: whole_number(str(one), 3, 5), (3, 5), (2, 6)),
    "numbers": (lambda one: real_number(str(one), 0.5, 1.5), (0.5, 1.5), (0.4999, 1.5001)),
    "checked whole numbers": (lambda one: check_whole("x", one, 3, 5), (3, 5), (2, 6)),
    "checked numbers": (lambda one: check_real("x", one, 0.5, 1.5), (0.5, 1.5), (0.4999, 1.5001)),
    "bytes of a transfer": (lambda one: DGX.transfer_seconds(0, 1, one), (0.0,), (-1.0, np.nan)),
    "prices": (lambda one: price_of_all(PROBLEM, one), (0.0, 1e6), (-0.1, 1e6 + 0.1)),
    "layers of GNMT": (lambda one: gnmt(int(one), 2), (4, 6), (2, 5)),
    "the least error": (
        lambda one: ErrorClass(figure="seconds", accelerators=("a",), plans=(), median=1.0, low=one, high=1.0, rows=1),
        (0.1, 1.0),
        (0.0, 1.1),
    ),
    "seconds of slices": (lambda one: given_costs(1, OpSeconds(1.0, 2.0, slice_seconds=(one,))), (0.0,), (-1.0,)),
    "times of an order": (
        lambda one: repeated(training_order(simulate(PROBLEM, PLAN).timeline, len(PLAN.microbatches)), int(one)),
        (1,),
        (0,),
    ),
    "updates between evaluations": (lambda one: TrainingSettings(evaluate_every=int(one)), (1,), (0,)),
    "a rate of learning": (lambda one: TrainingSettings(learning_rate=one), (1e-9,), (0.0, np.inf, np.nan)),
    "Adam's epsilon": (lambda one: Adam(epsilon=one), (1e-9,), (0.0,)),
    "Adam's decay": (lambda one: Adam(weight_decay=one), (0.0,), (-1e-9,)),
    "updates of PipeMare's annealing": (lambda one: PipeMare(anneal_updates=int(one)), (1,), (0,)),
    "updates of PipeMare's warm-up": (lambda one: PipeMare(warmup_updates=int(one)), (0,), (-1,)),
    "a gradient of weights of a measured backward": (lambda one: _without([2.0, 2.0], [one], "f"), (0.0, 2.0), (2.1,)),
    "a schedule's chunks": (lambda one: check_counts(chunks=int(one)), (2**26,), (2**26 + 1,)),
    "ends of a swept range": (lambda one: read_over(f"batch=4:{one}:+1"), (4, 5), (3,)),
}
"""What takes a number, numbers at its ends that it takes, and those next to them that it refuses."""


@pytest.mark.parametrize("name", ENDS)
def test_ends_are_taken_and_what_is_beyond_is_refused(name: str) -> None:
    """The limits themselves are well."""
    take, within, beyond = ENDS[name]
    for one in within:
        take(one)
    for one in beyond:
        with pytest.raises(ValueError, match=r"."):
            take(one)


COSTS = "--forward 1 --backward 2"
TIMES = f"--stages 2 --microbatches 2 {COSTS}"
SMALL = "--workload alexnet --cluster pipedream-b:1 --devices 2 --batch 8"
GPT = "--workload gpt2 --cluster dgx-a100 --batch 16"
FILES = {
    "latin.toml": b"a = '\xe9'",
    "job.toml": b"parallelism = 3",
    "alone.toml": b"[training]\nlocal_batch_size = 3\n"
    b"[parallelism]\ndata_parallel_shard_degree = 8\n[activation_checkpoint]\nmode = 'none'",
    "used": b"""{"format": "pipeplan-plan-2", "problem": {"workload": "alexnet", "cluster": "pipedream-b:2", "batch": 8},
    "plan": {"schedule": "gpipe", "microbatches": [8], "stages": [{"layers": "0-21", "devices": "12"}]}}""",
    "parts.toml": b"[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = [1]",
}
COMMANDS = {
    "simulate": "one of the arguments --schedule",
    f"simulate --schedule 1f1b --schedule gpipe {COSTS} --stages 2": "several schedules need --stages, one per device",
    "simulate --schedule search --stages 2 --forward 1 --backward 2": "--schedule search needs --stages and --microbatches",
    f"simulate --schedule 1f1b {TIMES} --straggler 1:2 --straggler 1:3": "--straggler names a device twice",
    f"plan {SMALL} --planner uniform --option a=1 --option a=2": "--option a=2: a is given twice",
    **{f"plan {SMALL} --planner uniform --option {one}": f"{one!r} must be NAME=TEXT" for one in ("a", "=1", "a=")},
    f"simulate --schedule 1f1b --schedule gpipe {COSTS} --microbatches 2": "several schedules need --stages, one per device",
    **{
        f"simulate --schedule gpipe --schedule {name} {TIMES}": f"'{name}' does not flush one pipeline on one lane per device"
        for name in ("fbp-as", "1f1b-rr")
    },
    f"simulate --schedule 1f1b --schedule zzz {TIMES}": "schedule 'zzz' is unknown; choices: gpipe, 1f1b",
    f"simulate --schedule search --microbatches 2 {COSTS}": "--schedule search needs --stages and --microbatches",
    f"simulate --schedule 1f1b --microbatches 2 {COSTS}": "--schedule needs --stages and --microbatches, or --minibatches",
    "simulate --schedule 1f1b --stages 2 --microbatches 2 --backward 1": "a schedule needs --forward and --backward",
    f"export {GPT} --plan megatron:Et*12L --format problem --out x.json": "--format problem: --plan megatron:… has no problem",
    **{
        f"simulate {GPT} --plan torchtitan:{file}": said
        for file, said in {
            "": "--plan torchtitan: names no file, as in torchtitan:job.toml",
            "gone.toml": "gone.toml: No such file or directory",
            "latin.toml": "latin.toml: is not a text file (UTF-8)",
            "job.toml": "job.toml: parallelism must be a table",
            "alone.toml": "alone.toml: training.local_batch_size = 3 on 8 replicas does not divide 16 samples",
            "parts.toml": "parts.toml: parallelism.module_fqns_per_model_part must be a list of lists of module names",
        }.items()
    },
    f"plan {GPT} --launchable deepspeed --sequence-parallel": "--sequence-parallel: deepspeed has none",
    f"simulate {GPT} --plan megatron:Et*12L --stack a,b": "--stack a,b: a plan that is there runs under one",
    "simulate --plan used --cluster pipedream-b:1": "pipedream-b:1 has devices 0 to 7, --plan used uses device 12",
    "sweep study.toml store": "store: a store stands behind report; a sweep has one study file",
    "sweep x={1,2}": "x={1,2} is no study file; quote what has braces, which a shell expands: --over 'NAME=A:{1,2}'",
    "sweep study.toml": "study.toml",
    "sweep --problem a --plan b --over batch=4": "--problem and --plan: a plan's file has its problem; give one of both",
    "calibrate --out x.toml --logs nowhere": "nowhere: is not a folder of plans and their logs",
    "calibrate --out x.toml --logs .": ".: holds no plan: NAME.json with its log, NAME.log, is looked for",
    f"export {SMALL} --to deepspeed": "--to deepspeed writes FILE, FILE.py for this plan: it needs --out FILE",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_is_refused_says_why(
    words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line on stderr, nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    code, out, err = ended(capsys, words.split())
    assert (code in (2, 4), out, err.count("\n")) == (True, "", 1)
    assert COMMANDS[words] in err


def test_what_values_show_of_themselves(recorded: Recorded) -> None:
    """The figures that tell one from another, in a line."""
    outcome = simulate(PROBLEM, PLAN, noise=0.1, rng=np.random.default_rng(0), replays=20)
    searched = pp.simulate("search", stages=2, microbatches=4, forward=1, backward=2, seconds=0.01)
    assert isinstance(searched, SearchedSchedule)
    values = [
        explain(simulate(PROBLEM, PLAN)).idle,
        layer_bounds(PROBLEM, PLAN),
        outcome.noisy,
        load_accelerator("vcu129"),
    ]
    values += [searched, searched.found, searched.found.problem, load_stack("megatron-core")]
    values += [goodput(Failing(4, 1e5, 60.0, 600.0), 1.0, runs=3, seed=1), replace(PLAN, forward_sizes=((8, 8),) * 2)]
    values += [Swept.of([({"batch": 8}, None), ({"batch": 16}, None)])]
    assert all(len(repr(one)) < 200 for one in values)
    recorded(shown=[repr(one) for one in values])
