"""The face `pipeplan`: what it offers, what it costs to import, and that its objects explain themselves in one line."""

from __future__ import annotations

import ast
import math
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeplan as pp
from experiments.cli import main
from planners import Request
from simulator import (
    Layer,
    LayerCosts,
    OpSeconds,
    Plan,
    PlanCosts,
    Problem,
    Stage,
    TextTable,
    Workload,
    build_program,
    given_costs,
)

ROOT = Path(__file__).resolve().parents[1]


def small_problem() -> Problem:
    """Four layers on two devices, eight samples."""
    return pp.Problem("chain:4", "pipedream-a", 8, devices=2)


def test_the_face_has_no_logic() -> None:
    """A docstring and imports of public names from the floors' faces, about twenty of them, each once; run, it is the command."""
    docstring, *imports, run = ast.parse((ROOT / "pipeplan.py").read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr)
    assert isinstance(run, ast.If)
    aliases = []
    for node in imports:
        assert isinstance(node, ast.ImportFrom)
        assert node.module in ("experiments", "hardware_profiles", "planners", "simulator")
        aliases += [alias.asname for alias in node.names]
    assert len(aliases) == len(set(aliases)) <= 24
    assert set(aliases) == {name for name in dir(pp) if not name.startswith("_")}


def test_the_face_runs_as_the_command() -> None:
    """`python -m pipeplan` answers a wrong word as `pipeplan` does."""
    answered = subprocess.run(
        [sys.executable, "-m", "pipeplan", "nonsense"], capture_output=True, text=True, check=False
    )
    assert (answered.returncode, answered.stdout) == (2, "")
    assert answered.stderr.startswith("pipeplan: command 'nonsense' is unknown")


def test_the_face_goes_where_the_packages_go() -> None:
    """The wheel and the source archive hold the file beside the four packages."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    floors = {"experiments", "hardware_profiles", "planners", "simulator"}
    assert set(targets["wheel"]["only-include"]) == {"pipeplan.py", *floors}
    assert {"/pipeplan.py", *(f"/{floor}" for floor in floors)} <= set(targets["sdist"]["include"])


def test_every_value_has_a_short_repr() -> None:
    """One line of less than 200 characters, however much a value holds and however it is named."""
    problem = small_problem()
    result = pp.plan(problem, "uniform", microbatches=4)
    costs, schedule, program = build_program(problem, result.plan)
    replayed = pp.simulate("1f1b", stages=64, microbatches=64, forward=1, backward=2)
    wide = Stage(tuple(range(0, 4000, 2)), tuple(range(1, 4000, 2)))
    values = [
        *(problem, problem.workload, problem.cluster, problem.cluster.devices[0], problem.workload.layers[0]),
        *(result, result.plan, result.outcome, result.outcome.memory[0], result.outcome.timeline, result.proof),
        *(schedule, program, costs, costs.layers, result.outcome.timeline.transfers, replayed, wide),
        *(
            given_costs(4000, OpSeconds(1.0, 2.0)),
            replace(result.plan, stages=(wide,) * 500, microbatches=tuple(range(1, 3000))),
        ),
        replace(problem.workload, name="a\nname " * 100),
        Layer("measured", "linear", 1.0, 1, 1.0, 1.0, measured=tuple((float(n), 1.0, 2.0) for n in range(1, 500))),
        pp.compare(problem, ["uniform", "greedy"]),
    ]
    assert any(isinstance(value, LayerCosts) for value in values)
    assert any(isinstance(value, PlanCosts) for value in values)
    for value in values:
        text = repr(value)
        assert text.startswith((type(value).__name__ + "(", "<"))
        assert len(text) < 200
        assert text.isprintable()
    assert repr(result.plan) == "Plan(uniform: gpipe, straight, 2 stages on 2 devices, 4 micro-batches of 2 samples)"
    assert repr(result.plan.stages[0]) == "Stage(layers 0-1 on devices 0)"


def test_a_problem_by_names_is_the_problem_of_its_parts() -> None:
    """Names are looked up, objects taken as they are; the batch is the workload's on every device where none is given."""
    workload, cluster = pp.load_workload("vgg16"), pp.load_cluster("pipedream-b")
    named = pp.Problem("vgg16", "pipedream-b", optimizer="adam")
    assert named == Problem(workload, cluster, workload.minibatch * 16, optimizer="adam")
    assert pp.Problem(workload, cluster, 1024, devices=4) == Problem(workload, cluster.take(4), 1024)
    with pytest.raises(ValueError, match="cluster pipedream-b has 16 devices"):
        pp.Problem("vgg16", "pipedream-b", devices=17)
    fused = pp.Problem("gpt2", "pipedream-b", sequence=8, attention="fused").workload
    assert fused == pp.load_workload("gpt2", 8, "fused")
    for option, value in (("sequence", 7), ("attention", "fused")):
        with pytest.raises(
            ValueError, match=f"^{option} {value} is for a workload given by name; 'vgg16' has its own$"
        ):
            pp.Problem(workload, cluster, **{option: value})
    with pytest.raises(ValueError, match="vgg16"):
        pp.Problem("vgg61", "pipedream-b")


def test_transformers_are_trained_in_16_bits_with_adam() -> None:
    """Where nobody says otherwise: in bf16 where all devices have it, else in fp16, or as they can; no other network is."""

    def trained(workload: str | Workload, cluster: str, **said: str) -> str:
        """What the title says behind the samples."""
        problem = pp.Problem(workload, cluster, batch=8, **said)
        return problem.title.partition("8 sequences")[2] + problem.title.partition("8 images")[2]

    assert trained("gpt2", "dgx-a100:1") == ", bf16, adam"
    assert trained("bert-large", "pipedream-b") == ", fp16, adam"
    assert trained("gpt2", "pipedream-c") == ", adam"
    assert trained("gpt2", "pipedream-b", precision="fp32") == ", adam"
    assert trained("gpt2", "dgx-a100:1", optimizer="momentum") == ", bf16"
    assert trained("resnet50", "dgx-a100:1") == ""
    gpt = pp.load_workload("gpt2")
    measured = tuple(replace(one, measured=((1.0, 1e-3, 2e-3),)) for one in gpt.layers)
    with pytest.warns(UserWarning, match="was measured"):
        assert trained(replace(gpt, layers=measured, bytes_per_element=4), "dgx-a100:1") == ""


def test_what_has_names_lists_them() -> None:
    """Every topic has names, and what is no topic is refused with the choices."""
    for topic, member in (
        ("workloads", "vgg16"),
        ("clusters", "pipedream-b"),
        ("schedules", "1f1b"),
        ("planners", "bapipe"),
    ):
        assert member in pp.names(topic)
    assert pp.names("accelerators") == tuple(sorted(pp.names("accelerators")))
    with pytest.raises(ValueError, match="choices: workloads, accelerators"):
        pp.names("elephants")


def test_a_schedule_is_replayed_as_the_command_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    """1F1B with 4 stages and 8 micro-batches of 1 and 2 s takes (8 + 3) * 3 s; table and figures are the command's."""
    replayed = pp.simulate("1f1b", stages=4, microbatches=8, forward=1, backward=2)
    assert replayed.timeline.makespan_seconds == 33.0
    assert replayed.record()["peak_in_flight"] == [4, 3, 2, 1]
    words = "simulate --schedule 1f1b --stages 4 --microbatches 8 --forward 1 --backward 2"
    assert main(words.split()) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip(" ─")]
    assert printed == [line.split() for line in replayed.summary().splitlines()]
    again = pp.simulate(replayed.schedule, forward=1, backward=2, engine="compiled")
    assert np.array_equal(again.timeline.start, replayed.timeline.start)
    assert len(replayed.frame) == 64
    with pytest.raises(ValueError, match="says its own stages"):
        pp.simulate(replayed.schedule, stages=4, forward=1, backward=2)


def test_a_plan_of_a_problem_is_replayed_with_its_options() -> None:
    """The finalist of a result is the replay of its plan on the reference engine; noise is drawn with the seed."""
    problem = small_problem()
    result = pp.plan(problem, "uniform")
    assert pp.simulate(problem, result.plan).iteration_seconds == result.outcome.iteration_seconds
    noisy = [pp.simulate(problem, result.plan, noise=0.1, seed=seed).iteration_seconds for seed in (1, 1, 2)]
    assert noisy[0] == noisy[1] != noisy[2]
    with pytest.raises(ValueError, match="a plan of it"):
        pp.simulate(problem)  # type: ignore[call-overload]


def test_a_result_says_what_is_proven_or_why_not() -> None:
    """Brute force names its space; a heuristic and a search cut short say why there is no proof; the gap is to the bound."""
    problem = small_problem()
    proven, open_ended = pp.plan(problem, "brute-force", schedule="gpipe"), pp.plan(problem, "greedy")
    cut = pp.plan(problem, "brute-force", schedule="gpipe", budget=3)
    assert proven.proof
    assert str(proven.proof) == f"proven the fastest of {proven.proof.space}"
    assert proven.proof.engine == "simpy"
    assert not open_ended.proof
    assert "has not ruled out" in str(open_ended.proof)
    assert cut.interrupted
    assert "not proven: interrupted" in cut.summary()
    assert proven.gap == proven.outcome.iteration_seconds / proven.bound - 1.0 >= 0.0
    assert cut.bound == proven.bound
    assert proven.evaluations > cut.evaluations == 3


def test_objects_show_themselves() -> None:
    """In a notebook tables are Markdown and figures PNG; whatever a name holds stays inside its cell."""
    problem = small_problem()
    comparison = pp.compare(problem, "uniform")
    frame = comparison.frame
    assert list(frame.planner) == ["uniform"]
    assert frame.iteration_seconds[0] == comparison.plans[0].result.outcome.iteration_seconds  # type: ignore[union-attr]
    assert comparison._repr_markdown_().count("\n| uniform |") == 2
    result = comparison.plans[0].result
    assert result is not None
    for figure in (comparison.plot(), result.plot_gantt(), result.plot_memory()):
        assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    table = TextTable("a <b>", ("name", "long-\nname"), (("x|y\n", "-1.5 s"), ("zz", "20")))
    assert (
        table.markdown() == "**a &lt;b&gt;**\n\n| name | long-name |\n| --- | --- |\n| x\\|y\\n | -1.5 s |\n| zz | 20 |"
    )
    assert str(table) == "a <b>\nname   long-name\nx|y\\n     -1.5 s\nzz            20"


# ---- what is wrong is said ---------------------------------------------------------------------------------------------

WRONG: tuple[Any, ...] = (
    *(3, -1, 2.5, 10**400, -(10**400), math.nan, math.inf, 1j, True, "x", "", b"x", "9" * 400, ()),
    *((1, "a"), [1, 2], [[]], {}, {"a": 1}, {1}, object(), np.ones(2), np.int64(-5), lambda: 0, int, None),
)
"""What a field hardly ever takes, in every type."""


def public_values() -> dict[str, Any]:
    """One of every value that users make by hand, by name."""
    problem = small_problem()
    stages = (Stage((0, 1), (0,)), Stage((2, 3), (1,)))
    plan = pp.Plan("hand", "gpipe", stages, (4, 4))
    return {
        "problem": problem,
        "stage": stages[0],
        "plan": plan,
        "request": Request(),
        "plan file": pp.PlanFile(problem, plan),
        "schedule": pp.simulate("gpipe", stages=2, microbatches=2, forward=1, backward=2).schedule,
    }


@pytest.mark.parametrize("name", ["problem", "stage", "plan", "request", "plan file", "schedule"])
def test_a_wrong_field_is_one_error_that_names_it(name: str) -> None:
    """Of every field and every wrong value: taken as it is, or a ValueError of one short line that names the field."""
    value, refused = public_values()[name], 0
    for field in fields(value):
        for wrong in WRONG:
            try:
                replace(value, **{field.name: wrong})
            except ValueError as error:
                refused += 1
                said = str(error)
                assert field.name in said.replace("micro-batch", "microbatch") or "option" in said
                assert "\n" not in said
                assert len(said) < 500
    assert refused > 10 * len(fields(value))


def test_a_plan_of_wrong_numbers_is_one_error_when_it_is_replayed() -> None:
    """What a plan may hold by its types, and its problem has not: refused in one line, whatever it is."""
    rng, problem = random.Random(0), small_problem()
    plan = public_values()["plan"]
    numbers, refused = (-(10**12), -1, 0, 1, 2, 3, 4, 8, 10**12), 0
    for _ in range(300):
        count = rng.randrange(4)
        some = tuple(rng.choice(numbers) for _ in range(count))
        name, value = rng.choice(
            (
                ("microbatches", some),
                ("stages", tuple(Stage(some, (rng.choice(numbers),)) for _ in range(rng.randrange(3)))),
                ("stages", tuple(replace(stage, devices=some) for stage in plan.stages)),
                ("stages", tuple(replace(stage, degrees=some) for stage in plan.stages)),
                ("forward_sizes", (some,) * rng.randrange(4)),
                ("backward_sizes", (some,) * rng.randrange(4)),
                ("recompute", ("whole",) * count),
                ("options", (("chunks", rng.choice(numbers)),)),
                ("order", ("0F0", "x" * 400, f"{10**400}F0")[:count]),
                ("context", rng.choice(numbers)),
                ("expert", rng.choice(numbers)),
                ("schedule", rng.choice(("", "x" * 400, "1f1b", "zb-v", "dualpipe", "1f1b-rr"))),
            )
        )
        said = ""
        try:
            pp.simulate(problem, replace(plan, **{name: value}), engine="compiled")
        except ValueError as error:
            said = str(error)
        refused += bool(said)
        assert "\n" not in said
        assert len(said) < 500  # the command line cuts what is longer than a line
    assert refused > 150


SCHEDULE = {"stages": 2, "microbatches": 2, "forward": 1, "backward": 1}


def small_plan() -> Plan:
    """A plan of the small problem."""
    return pp.plan(small_problem(), "uniform").plan


face: Any = pp
"""The face, of which calls are made that no checker of types would let pass."""

CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "workload": (lambda: face.Problem(3, "pipedream-a", 8), "workload must be a Workload or a text, got 3"),
    "cluster": (lambda: face.Problem("chain:4", None, 8), "cluster must be a Cluster or a text, got None"),
    "batch": (lambda: face.Problem("chain:4", "pipedream-a", "8"), "batch of a Problem must be a whole number"),
    "sequence": (lambda: face.Problem("gpt2", "pipedream-a", sequence="x"), "sequence must be a whole number"),
    "field": (lambda: face.Problem("chain:4", "pipedream-a", precison="fp16"), "did you mean precision?"),
    "plan what": (lambda: face.plan("vgg16"), "problem must be a Problem, got 'vgg16'"),
    "wanted": (lambda: face.plan(small_problem(), stage=4), "a request has no 'stage' (did you mean stages?)"),
    "planner": (lambda: face.plan(small_problem(), 3), "a planner is a name, or a function"),
    "budget": (lambda: face.plan(small_problem(), budget="x"), "budget must be a whole number, got 'x'"),
    "compare what": (lambda: face.compare(3), "problem must be a Problem, got 3"),
    "plans": (lambda: face.compare(small_problem(), plans=3), "plans must be a Mapping or None, got 3"),
    "a plan": (lambda: face.compare(small_problem(), plans={"a": 3}), "plan 'a' must be a Plan, got 3"),
    "report what": (lambda: face.report(3), "answer must be a Result or an Outcome, got 3"),
    "simulate what": (
        lambda: face.simulate(3, **SCHEDULE),
        "what is simulated must be a text or a Schedule or a Problem",
    ),
    "simulate plan": (lambda: face.simulate(small_problem(), 3), "plan must be a Plan, got 3"),
    **{
        f"no {name}": (
            lambda given=given: face.simulate("gpipe", stages=2, microbatches=2, **given),
            "a schedule needs forward and backward, seconds of its ops",
        )
        for name, given in (("seconds", {}), ("forward", {"backward": 1}), ("backward", {"forward": 1}))
    },
    "numbers of a problem": (
        lambda: face.simulate(small_problem(), face.plan(small_problem(), "uniform").plan, forward=1),
        "a problem is simulated with a plan of it, and without numbers of its own",
    ),
    "noise of a search": (
        lambda: face.simulate("search", **SCHEDULE, noise=0.1),
        "a schedule that is searched for takes no noise and no stragglers: replay what is found",
    ),
    "a straggler of a search": (
        lambda: face.simulate("search", **SCHEDULE, stragglers={0: 2.0}),
        "a schedule that is searched for takes no noise and no stragglers: replay what is found",
    ),
    "no stash": (
        lambda: face.simulate("gpipe", stages=2, microbatches=2, forward=1, backward=1, memory=4),
        "memory and stash_weight need stash",
    ),
    "no stages": (
        lambda: face.simulate("gpipe", forward=1, backward=1),
        "schedule 'gpipe' needs stages, and microbatches or minibatches",
    ),
    "no search": (
        lambda: face.simulate("search", stages=2, forward=1, backward=1),
        "schedule 'search' needs stages and microbatches",
    ),
    "seconds": (
        lambda: face.simulate("gpipe", **{**SCHEDULE, "forward": "x"}),
        "forward must be a number, or one for each of 2 stages, got 'x'",
    ),
    "sizes": (lambda: face.simulate("gpipe", **SCHEDULE, sizes=3), "sizes must be a Sequence"),
    "searched": (
        lambda: face.simulate("search", **SCHEDULE, second=1),
        "a search has no 'second' (did you mean seconds?)",
    ),
    "a plan of numbers": (lambda: face.simulate("gpipe", 3, **SCHEDULE), "simulate(problem, plan)"),
    "topic": (lambda: face.names([]), "topic [] is unknown; choices: workloads"),
    "load cluster": (lambda: face.load_cluster(3), "cluster must be a text or a PathLike, got 3"),
    "load workload": (lambda: face.load_workload(None), "workload must be a text or a PathLike, got None"),
    "read profile": (lambda: face.read_profile(3), "profile must be a text or a PathLike, got 3"),
    "read plan": (lambda: face.PlanFile.read(3), "plan file must be a text or a PathLike, got 3"),
    **{
        f"sweep {name}": (lambda given=given: face.sweep(**given), said)
        for name, given, said in (
            ("over", {"over": ["batch=8"]}, "what is swept must be a Mapping, got ['batch=8']"),
            ("names", {"over": {3: [8]}}, "name of what is swept must be a text, got 3"),
            ("store", {"over": {"batch": [8]}, "store": 3}, "store must be a text or a Path or None, got 3"),
            ("jobs", {"over": {"batch": [8]}, "jobs": -1}, "jobs must be a whole number of at least 1, got -1"),
            ("many jobs", {"over": {"batch": [8]}, "jobs": 10**9}, "jobs must be a whole number of at most 1,024"),
            ("scheduler", {"over": {"batch": [8]}, "scheduler": 3}, "scheduler must be a text or None, got 3"),
        )
    },
    **{
        f"what if {name}": (lambda given=given: face.what_if(small_problem(), small_plan(), **given), said)
        for name, given, said in (
            ("settings", {"settings": 3}, "settings must be an Iterable, got 3"),
            ("a setting", {"settings": [3]}, "a setting must be a text or a Setting, got 3"),
            ("a path", {"settings": {3: 4}}, "path of a setting must be a text, got 3"),
            (
                "planner",
                {"settings": "batch=16", "planner": "gredy"},
                "planner 'gredy' is unknown (did you mean greedy?)",
            ),
            ("seed", {"settings": "batch=16", "seed": "x"}, "seed must be a whole number"),
            ("budget", {"settings": "batch=16", "budget": 0}, "budget must be a whole number of at least 1, got 0"),
            ("wanted", {"settings": "batch=16", "stage": 4}, "a request has no 'stage' (did you mean stages?)"),
        )
    },
    **{
        f"goodput {name}": (
            lambda given=given: face.goodput(
                face.simulate(small_problem(), small_plan()), mtbf_hours=9, restart_seconds=1, spares=1, **given
            ),
            said,
        )
        for name, given, said in (
            (
                "repair",
                {"checkpoint_seconds": 1, "repair_hours": "x"},
                "repair_hours must be finite and not negative, got 'x'",
            ),
            ("bytes", {"checkpoint_gb_per_s": "x"}, "checkpoint_gb_per_s must be finite and at least 1e-06, got 'x'"),
            ("no bytes", {"checkpoint_gb_per_s": 0}, "checkpoint_gb_per_s must be finite and at least 1e-06, got 0"),
            ("seed", {"checkpoint_seconds": 1, "seed": "x"}, "seed must be a whole number"),
        )
    },
    "explain what": (
        lambda: face.explain(small_plan()),
        "what is explained must be an Outcome or a ScheduleReplay, got Plan(",
    ),
    "sensitivity what": (lambda: face.sensitivity(3, small_plan()), "problem must be a Problem, got 3"),
    "sensitivity of": (lambda: face.sensitivity(small_problem(), 3), "plan must be a Plan, got 3"),
    "sensitivity paths": (
        lambda: face.sensitivity(small_problem(), small_plan(), 3),
        "paths must be an Iterable, got 3",
    ),
    "a path alone": (lambda: face.sensitivity(small_problem(), small_plan(), "nope"), "'nope' names no value"),
    "sensitivity path": (lambda: face.sensitivity(small_problem(), small_plan(), [3]), "a path must be a text, got 3"),
    "launchable what": (lambda: face.launchable(3, "megatron"), "problem must be a Problem, got 3"),
    "planners": (lambda: face.compare(small_problem(), 3), "planners must be an Iterable, got 3"),
    "stacks": (lambda: face.plan(small_problem(), stacks=3), "stacks must be an Iterable, got 3"),
    "price": (lambda: face.report(face.plan(small_problem(), "uniform"), price="x"), "price: must be from 0 to"),
    "a price": (
        lambda: face.report(face.plan(small_problem(), "uniform"), price={"v100-pcie": "x"}),
        "price: must be from 0 to",
    ),
    "stragglers": (
        lambda: face.simulate(small_problem(), small_plan(), stragglers=3),
        "stragglers must be a Mapping or None, got 3",
    ),
    "a straggler": (
        lambda: face.simulate(small_problem(), small_plan(), stragglers={0.5: 2.0}),
        "a straggler must be a whole number",
    ),
    "seed of noise": (lambda: face.simulate(small_problem(), small_plan(), seed="x"), "seed must be a whole number"),
    "one of the seconds": (
        lambda: face.simulate("gpipe", **{**SCHEDULE, "forward": [1, [2]]}),
        "forward of one stage must be a number, got [2]",
    ),
    "plan text": (lambda: face.PlanFile.from_json(3), "text of a plan must be a text or a bytes, got 3"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_one_error_that_names_what_is_wrong(name: str) -> None:
    """A ValueError of one line for every argument of the face, with the rule or the choices."""
    call, said = CALLS[name]
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_every_answer_has_the_same_names() -> None:
    """Of a replay, a search for an order, a plan's replay and a search for a plan: timeline, figures, tables."""
    result = pp.plan(small_problem(), "uniform", microbatches=2)
    numbers = {**SCHEDULE, "stash": 1}
    answers = [
        pp.simulate("gpipe", **numbers),
        pp.simulate("search", **numbers, seconds=0.0),
        result.outcome,
        result,
    ]
    for answer in answers:
        assert answer.makespan_seconds == answer.timeline.makespan_seconds > 0.0
        assert len(answer.frame) > 0
        assert answer.fits
        assert answer.memory
        assert answer.schedule.stages
        assert answer.summary()
        assert answer.record()
        for figure in (answer.plot(), answer.plot_gantt(), answer.plot_memory()):
            assert figure.axes
