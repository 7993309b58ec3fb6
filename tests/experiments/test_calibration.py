"""Calibration: constants are found again, priors decide what nothing tells, logs are read, and other plans' errors shrink."""

from __future__ import annotations

import json
import math
import re
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hardware_profiles
from experiments.calibration.fit import (
    NOISE,
    OTHER_SPREAD,
    SPREADS,
    FitError,
    Fitted,
    Model,
    Observation,
    _step,
    _taken,
    fit,
)
from experiments.calibration.logs import read_logs
from experiments.cli import main
from experiments.commands import calibrate_command
from experiments.terminal.output import InputError
from hardware_profiles import (
    RANGES,
    Constant,
    Stack,
    changed_stack,
    errors_of,
    load_cluster,
    load_stack,
    percent,
    stack_names,
)
from simulator import Evaluations, Gpt, Plan, PlanFile, Problem, Stage, load_workload, simulate
from tests.experiments.commands import ended, refused
from tests.records import Recorded, lines

CLUSTER = load_cluster("dgx-h100:1")
FILES = {1: ("gpt2", 2, 8), 2: ("gpt2-medium", 2, 4), 3: ("gpt2", 8, 16)}


def question(number: int, stack: Stack, *, named: bool = False) -> tuple[Problem, Plan]:
    """Data parallelism over some GPUs, as in FILES: the network, or one of a few blocks in its place, devices, batch."""
    name, devices, batch = FILES[number]
    workload = load_workload(name) if named else Gpt(len(name) // 2, 768, 12).workload()
    problem = Problem(workload, CLUSTER, batch, stack, precision="bf16", optimizer="adam")
    layers = tuple(range(len(problem.workload)))
    stage = Stage(layers, tuple(range(devices)))
    return problem, Plan("mine", "gpipe", (stage,), (batch,), zero=1)


def seconds(number: int, stack: Stack, *, named: bool = False) -> float:
    """Of an iteration."""
    problem, plan = question(number, stack, named=named)
    score = Evaluations(problem)(plan)
    assert score is not None
    return score.iteration_seconds


def written(folder: Path, number: int, stack: str = "megatron-core") -> str:
    """The path of a plan file."""
    path = folder / f"plan{number}.json"
    PlanFile(*question(number, load_stack(stack), named=True)).write(path)
    return str(path)


STACK = load_stack("megatron-core")
STACKS = Path(hardware_profiles.__file__).parent / "stacks"


def observations(stack: Stack, numbers: tuple[int, ...] = (1, 2, 3)) -> list[Observation]:
    """What would be measured if a stack were the true one."""
    return [Observation(str(number), *question(number, STACK), seconds(number, stack)) for number in numbers]


def test_constants_that_rows_told_have_a_spread_of_their_own() -> None:
    """It is how far those of shipped stacks lie from one another; of others nothing says it."""
    shipped = [one for name in stack_names() for one in load_stack(name).constants().items()]
    told = {name for name, one in shipped if any(each.fitted for each in (one, *dict(one.generations).values()))}
    assert set(SPREADS) == told & set(RANGES)


def test_spreads_are_of_the_size_of_those_of_shipped_stacks() -> None:
    """Half to twice the deviation of the constants that rows told, of the logarithms of factors, where there are several."""
    compared = 0
    for name, spread in SPREADS.items():
        constants = [load_stack(stack).constants()[name] for stack in stack_names()]
        every = (one for constant in constants for one in (constant, *dict(constant.generations).values()))
        told = [one.value for one in every if one.fitted]
        if len(told) > 1:
            own = stdev([math.log(value) for value in told] if RANGES[name][0] > 0 else told)
            assert own / 2 < spread < 2 * own, name
            compared += 1
    assert compared >= 4


@cache
def unmoved(*numbers: int) -> Fitted:
    """The fit to what is as predicted."""
    return fit(STACK, observations(STACK, numbers))


def test_what_is_as_predicted_moves_nothing() -> None:
    """Measured seconds equal to the predicted ones leave every constant, and narrow those that they tell."""
    found = unmoved(1, 2)
    assert all(one.before == pytest.approx(one.after) for one in found.constants)
    assert all(one.spread_after < one.spread_before for one in found.constants if one.told)
    assert {one.name for one in found.constants if one.told} >= {"elementwise"}
    assert found.generations == ("hopper",)
    for figure in found.figures:  # as any other plan is expected to be off
        again = found.expected(figure.name, *question(int(figure.name), STACK))
        assert (figure.error_before, figure.error_after) == pytest.approx((again.error_before, again.error_after))


def test_a_slower_stack_is_found() -> None:
    """Kernels 1.4 times as slow and passes of 1 ms: predictions meet the measurements, and one left out comes nearer."""
    truth = changed_stack(STACK, {"elementwise": 1.4, "block_pass": 1e-3}, ("hopper",))
    found = fit(STACK, observations(truth, (1, 2)))
    for figure, one in zip(found.figures, observations(truth, (1, 2)), strict=True):
        assert abs(figure.after / one.measured - 1.0) < NOISE / 2 < abs(figure.before / one.measured - 1.0)
    left_out = found.expected("3", *question(3, STACK))
    now, was = (abs(one / seconds(3, truth) - 1.0) for one in (left_out.after, left_out.before))
    assert now < was / 2
    assert NOISE < left_out.error_after < left_out.error_before


def test_a_constant_stops_at_the_end_of_its_range() -> None:
    """Measured to be quicker than without any time of passes, and slower in kernels: the fit's mean error has no sign left."""
    truth = changed_stack(STACK, {"elementwise": 0.7}, ("hopper",))
    own, said = [replace(one, measured=one.measured * 0.97) for one in observations(truth)], list[str]()
    found = fit(STACK, own, report=lambda done, text: said.append(text))
    before = [math.log(figure.before / one.measured) for figure, one in zip(found.figures, own, strict=True)]
    assert said[1] == f"{percent(math.sqrt(sum(one**2 for one in before) / len(before)))} off"
    assert next(one for one in found.constants if one.name == "block_pass").after >= 0.0
    off = [figure.after / one.measured - 1.0 for figure, one in zip(found.figures, own, strict=True)]
    assert abs(sum(off) / len(off)) < NOISE / 3


def test_priors_decide_what_nothing_tells() -> None:
    """Without tensor-parallel groups their collectives stay where they are, with the spread that they had; casts, which no rows
    told, have the spread of such."""
    found = fit(STACK, observations(changed_stack(STACK, {"elementwise": 1.4}, ("hopper",)), (1,)))
    collectives = next(one for one in found.constants if one.name == "tensor_collectives")
    assert not collectives.told
    assert (collectives.after, collectives.spread_after) == (collectives.before, SPREADS["tensor_collectives"])
    others = {one.name: one.spread_before for one in found.constants if one.name not in SPREADS}
    assert others == {"casts": OTHER_SPREAD}
    with pytest.raises(FitError, match="nothing was measured"):
        fit(STACK, [])


def test_more_measurements_leave_less_spread() -> None:
    """Each one narrows what others are expected to be off by, never below what no constant explains."""
    errors = [unmoved(*numbers).expected("3", *question(3, STACK)).error_after for numbers in ((1,), (1, 2))]
    assert NOISE < errors[1] <= errors[0]


def test_derivatives_are_those_of_the_model() -> None:
    """A constant's step of a hundredth moves the logarithm of the seconds by a hundredth of its derivative."""
    model, own = Model(STACK, ("hopper",), ("products", "attention", "block_pass")), observations(STACK, (2,))
    start = model.start
    slopes = model.slopes(own, start, model.logarithms(own, start))[0]
    for number, spread in enumerate(model.spreads):
        step = np.zeros(3)
        step[number] = 0.01 * spread
        moved = model.logarithms(own, start + step) - model.logarithms(own, start)
        assert moved[0] == pytest.approx(slopes[number] * 0.01 * spread, rel=0.1, abs=1e-9)


def test_what_stops_at_its_end_is_made_up_for_by_the_others() -> None:
    """Where one constant may not go as far as it would, what is left is the least squares of the other two."""
    rng = np.random.default_rng(0)
    slopes, off, moved, spreads = rng.normal(size=(6, 3)), rng.normal(size=6), np.array([0.1, 0.0, -0.2]), np.ones(3)
    far = np.array([[-9.0] * 3, [9.0] * 3])

    def pull(step: NDArray[np.float64]) -> NDArray[np.float64]:
        """Slopes of the squares by each constant."""
        return np.asarray(slopes.T @ (slopes @ step - off) / NOISE**2 + (moved + step) / spreads**2)

    free = _step(slopes, off, moved, spreads, np.ones(3, bool), far)
    assert pull(free) == pytest.approx([0.0] * 3, abs=1e-6)
    held = _step(slopes, off, moved, spreads, np.ones(3, bool), np.where(np.arange(3) == 1, free / 2, far))
    assert held[1] == free[1] / 2
    assert pull(held)[[0, 2]] == pytest.approx([0.0] * 2, abs=1e-6)


def test_a_step_too_far_is_halved_until_it_is_none_for_the_worse() -> None:
    """A step of 1 where 0.4 was measured misses by more than none does; half of it misses by a sixth of that, where a host
    that is ahead hides nothing.
    """
    ahead = replace(STACK, launches=Constant(0.1))
    observed = [Observation("2", *question(2, ahead), seconds(2, ahead))]
    model = Model(ahead, ("hopper",), ("elementwise",))
    start, spreads = model.start, model.spreads
    here, whole = model.logarithms(observed, start), np.array([1.0])
    measured = model.logarithms(observed, start + 0.4 * whole)
    where, there, moved = _taken(model, observed, measured, start, spreads, start, here, whole)
    assert where == pytest.approx(start + whole / 2.0)
    assert moved == pytest.approx(0.5 / spreads[0])
    assert there == pytest.approx(model.logarithms(observed, where))


class Identity:
    """A model of one figure, which is its constant."""

    def values(self, where: Any) -> dict[str, float]:
        """A constant that may be 0, as it is."""
        return {next(name for name, (least, _) in RANGES.items() if least <= 0): float(where[0])}

    def logarithms(self, observed: object, where: Any) -> Any:
        """The constant."""
        return where


def test_a_step_that_is_as_good_is_taken() -> None:
    """From 0 to 2 where 1 was measured, and is where the constant begins."""
    one, zero = np.ones(1), np.zeros(1)
    where, there, moved = _taken(Identity(), [], one, one, one, zero, zero, 2.0 * one)  # type: ignore[arg-type]
    assert (where[0], there[0], moved) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("length", "moved"), [(3.1, 3.1 / 16), (3.3, 0.0)])
def test_a_step_is_halved_four_times_and_then_not_taken(length: float, moved: float) -> None:
    """Where 0.1 was measured, and nothing is as good as 0 but what ends below 0.2: a sixteenth of the step, or none of it."""
    zero, step = np.zeros(1), np.full(1, length)
    found = _taken(Identity(), [], zero + 0.1, zero, zero + 1e9, zero, zero, step)  # type: ignore[arg-type]
    assert found == pytest.approx((moved, moved, moved / 1e9))


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float, dict[str, Any]]:
    """A stack that was calibrated to one plan, which took a quarter longer than predicted: its file, the seconds, and what the
    command said.
    """
    folder, said = tmp_path_factory.mktemp("calibrated"), StringIO()
    plan, out, slow = written(folder, 1), folder / "my-stack.toml", 1.25 * seconds(1, STACK, named=True)
    with redirect_stdout(said):
        assert main(["calibrate", "--plan", plan, "--measured", str(slow), "--out", str(out), "--json"]) == 0
    return out, slow, json.loads(said.getvalue())


def test_a_calibrated_stack_plans(calibrated: tuple[Path, float, dict[str, Any]]) -> None:
    """The written stack is read by --stack, and predicts what was measured; one document says what moved."""
    out, slow, document = calibrated
    assert document["measured"][0]["after"] == pytest.approx(slow, rel=NOISE)
    assert {row["change"] for row in document["others"]} >= {"16 samples", "recompute blocks"}
    assert all(row["error_90"] < row["error_90_before"] for row in document["others"])
    assert "1 measured figure for" in document["notes"][0]
    stack = load_stack(out)
    assert stack.name == "my-stack"
    assert seconds(1, stack, named=True) == pytest.approx(document["measured"][0]["after"], rel=1e-3)


def test_a_measured_network_tells_no_constant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its layers take the seconds of its profile whatever the stack: a note says that nothing moved, and nothing has."""
    graph, plan, out = (str(tmp_path / name) for name in ("graph.txt", "plan.json", "mine.toml"))
    told = "forward_compute_time=1000.0, backward_compute_time=2000.0, activation_size=0.0, parameter_size=0.0"
    Path(graph).write_text(f"node1 -- One -- {told}\nnode2 -- Two -- {told}\n\tnode1 -- node2\n")
    words = (
        f"plan --profile {graph} --profiled-minibatch 1 --cluster dgx-h100:1 --devices 1 --batch 4 --planner uniform"
    )
    assert ended(capsys, [*words.split(), "--stack", "megatron-core", "--out", plan])[0] == 0
    code, printed, _ = ended(capsys, ["calibrate", "--plan", plan, "--measured", "12", "--out", out, "--json"])
    document = json.loads(printed)
    assert (code, document["measured"][0]["before"]) == (0, pytest.approx(24.0))
    assert (
        document["notes"][1] == "no constant moved: the measurements tell none of them more closely than it was known"
    )
    assert all(one["before"] == one["after"] for one in document["constants"])


@pytest.fixture
def one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a measured plan stands no more than one that differs from it in one thing."""
    changed = calibrate_command._changed
    monkeypatch.setattr(calibrate_command, "_changed", lambda run: changed(run)[:1])


@pytest.mark.usefixtures("one_change")
def test_memory_and_other_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: Recorded) -> None:
    """A measured memory stands beside the predicted one; a plan of --other has its expected error."""
    plan, other, out = written(tmp_path, 1), written(tmp_path, 3), tmp_path / "mine.toml"
    words = [
        "calibrate",
        "--plan",
        plan,
        "--measured",
        str(1.1 * seconds(1, STACK, named=True)),
        "--memory",
        "9",
        "--other",
        other,
    ]
    code, printed, _ = ended(capsys, [*words, "--out", str(out)])
    shown = [" ".join(line.split()) for line in printed.splitlines()]
    assert code == 0
    assert shown[0] == f"Constants of megatron-core, and where {out} has them"
    assert any(line.startswith(f"{plan} memory 9 ") for line in shown)
    assert any(line.startswith(f"{other} ") for line in shown)
    assert shown[-1] == f"{out} (--stack {out})"
    here = str(tmp_path)
    own = lines(out.read_text(encoding="utf-8").replace(here, "HERE"), r"\d{4}-\d\d-\d\d")
    shipped = (STACKS / "megatron-core.toml").read_text(encoding="utf-8").splitlines()
    recorded(
        printed=[line.replace(here, "HERE") for line in shown if set(line) != {"─"}],
        changed=[line for line in own if line not in shipped],
    )


def test_a_calibrated_stack_states_the_error_that_is_expected_of_it(
    calibrated: tuple[Path, float, dict[str, Any]], tmp_path: Path
) -> None:
    """Of seconds of plans like the measured ones, the widest that is printed; of bytes that of the stack which it begins from."""
    out, _, document = calibrated
    widest = max(row["error_90"] for row in (*document["measured"], *document["others"]) if row["what"] == "seconds")
    first, *others = load_stack(out).errors
    assert (first.figure, first.expected, first.rows, first.tables) == ("seconds", True, 1, ("plan1.json",))
    assert first.high == pytest.approx(1.0 + widest, abs=1e-3)
    assert others == [one for one in errors_of(load_stack("megatron-core")) if one.figure == "memory"]
    problem, plan = PlanFile.read_plan(written(tmp_path, 1))
    found = simulate(replace(problem, stack=load_stack(out)), plan)
    assert found.error_high == pytest.approx(first.high * found.iteration_seconds)
    assert "90 % expected, by 1 run like it" in found.speed


def test_bad_measurements_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Units, counts, a stack that does not run the plan, a plan that is none: what is wrong, and nothing is written."""
    plan, out = written(tmp_path, 1), tmp_path / "mine.toml"
    one = seconds(1, STACK, named=True)
    given = ["calibrate", "--out", str(out), "--plan", plan]
    said = refused(capsys, [*given, "--measured", str(1000 * one)])
    assert f"is predicted to take {one:.4g} seconds, 1,000 times less; is it in seconds?" in said
    assert f"is predicted to take {one:.4g} seconds, 1,000 times more; is it in seconds?" in refused(
        capsys, [*given, "--measured", str(one / 1000)]
    )
    assert " GiB, 2,997 times less; is it in GiB?" in refused(
        capsys, [*given, "--measured", str(one), "--memory", "20000"]
    )
    assert "once for each --plan, 1; got 0" in refused(capsys, given)
    assert "--measured must be above 0 seconds, got 0.0" in refused(capsys, [*given, "--measured", "0"])
    assert "--memory must be above 0 GiB, got 0" in refused(capsys, [*given, "--measured", str(one), "--memory", "0"])
    assert "'gone' is neither a number nor a log that is there" in refused(capsys, [*given, "--measured", "gone"])
    assert (
        "'99999999999999999999999999999999999999999999999999999999999... must be a finite number of "
        "at most 1.79769e+308"
    ) in refused(capsys, [*given, "--measured", "9" * 400])  # no name of a log
    assert "--memory must be given once for each of 1 plans, or not at all; got 2" in refused(
        capsys, [*given, "--measured", str(one), "--memory", "9", "--memory", "9"]
    )
    several = [*given, "--measured", str(one), "--plan", written(tmp_path, 2, "generic"), "--measured", "1"]
    assert "--stack: is missing: the plans have several, megatron-core, generic" in refused(capsys, several)
    (problem, own), path = question(3, load_stack("generic"), named=True), tmp_path / "other.json"
    PlanFile(problem, replace(own, zero=3)).write(path)
    said = refused(capsys, [*given, "--measured", str(one), "--other", str(path)], 3)
    assert "stack 'megatron-core' does not run plan 'mine': it has no ZeRO 3" in said
    stage = replace(own.stages[0], devices=(0, 1, 2), degrees=(2, 1))
    PlanFile(problem, replace(own, zero=0, stages=(stage,), microbatches=(16,))).write(path)
    said = refused(capsys, ["calibrate", "--out", str(out), "--plan", str(path), "--measured", "1"])
    assert "plan 'mine' has more micro-batches, or other stages, than the evaluator replays" in said
    assert "--plan FILE: is missing" in refused(capsys, ["calibrate", "--out", str(out)])
    assert "--out FILE.toml: is missing" in refused(capsys, ["calibrate", "--plan", plan, "--measured", "1"])
    assert "mine.json: the name must end in .toml" in refused(
        capsys, ["calibrate", "--plan", plan, "--measured", "1", "--out", "mine.json"]
    )
    said = refused(capsys, [*given, "--measured", str(one), "--stack", "fsdp1-eager"], 3)
    assert "stack 'fsdp1-eager' does not run plan 'mine'" in said
    bad = tmp_path / "bad.toml"
    bad.write_text('kind = "stack"\nname = "bad"\n[factors.speed]\nvalue = 2\nsource = "hope"\n')
    assert "speed" in refused(capsys, [*given, "--measured", str(one), "--stack", str(bad)], 4)
    assert not out.exists()


# ---- logs ------------------------------------------------------------------------------------------------------------

MEGATRON = (
    " [2025-01-01 00:00:0{n}] iteration {n:8d}/     100 | consumed samples: {n} | elapsed time per iteration (ms): {ms:.1f} | "
    "throughput per GPU (TFLOP/s/GPU): 400.5 | learning rate: 1.0E-04 | global batch size: {batch:5d} | lm loss: 9.1E+00 |"
)
MEMORY = (
    "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1000.0 | max allocated: 2048.0 | reserved: 3000.0 | "
    "max reserved: 4096.0"
)
TITAN = (
    "\x1b[31m[rank0]:2025-01-01 - root - INFO - \x1b[32mstep: {n:2d}  \x1b[33mloss: 8.1  "
    "\x1b[36mgrad_norm: 1.2  memory: 8.00GiB(10.1%)  tps: {tps:,}  tflops: 412.3  mfu: 41.7%\x1b[39m"
)


def log(folder: Path, *lines: str, name: str = "run.log") -> Path:
    """A log of a folder."""
    path = folder / name
    path.write_text("\n".join(("starting", *lines, "done")) + "\n")
    return path


def test_megatrons_steps(tmp_path: Path) -> None:
    """Five steps of warm-up are left out, the median of the others counts; memory is told once, in 2^20 bytes. A log may be
    longer than other files.
    """
    steps = [MEGATRON.format(n=n, ms=9000.0 if n <= 5 else 1000.0 + n, batch=8) for n in range(1, 10)]
    found = read_logs(log(tmp_path, "x" * 2**24, MEMORY, *steps), 1024, 2, 8)
    assert found.seconds == pytest.approx(1.0075)
    assert (found.lines, found.allocated, found.reserved, found.teraflops) == (4, 2.0**31, 2.0**32, 400.5)


def test_lines_that_tell_less(tmp_path: Path) -> None:
    """Without samples and FLOP/s a step is any batch's, and has no rate; a folder in a folder of logs is no log."""
    bare = re.sub(r"throughput per GPU.*", "", MEGATRON)
    path = log(tmp_path, *(bare.format(n=n, ms=1000.0) for n in range(1, 9)))
    (tmp_path / "folder").mkdir()
    for place in (path, tmp_path):
        found = read_logs(place, 0, 2, 8)  # of samples that have no tokens
        assert (found.seconds, found.lines, found.teraflops) == (1.0, 3, 0.0)
        assert (found.allocated, found.reserved) == (None, None)
    rates = log(tmp_path, *(TITAN.replace("tflops: 412.3", "").format(n=n, tps=1024) for n in range(1, 9)))
    assert read_logs(rates, 1024, 2, 8).teraflops == 0.0
    with pytest.raises(InputError, match="tells tokens per second, and the plan's samples have no tokens"):
        read_logs(rates, 0, 2, 8)


def test_lines_of_ten_steps(tmp_path: Path) -> None:
    """The first line speaks for the warm-up, too; so does that after a resumption, and torchtitan's after step 1."""
    steps = [MEGATRON.format(n=n, ms=5000.0 if n in (10, 30) else 1000.0, batch=8) for n in (10, 20)]
    assert read_logs(log(tmp_path, *steps), 1024, 2, 8).seconds == 1.0
    rates = [(1, 10), (10, 500), (20, 1024), (30, 1024)]
    own = [TITAN.format(n=n, tps=tps) for n, tps in rates]
    found = read_logs(log(tmp_path, *own), 1024, 2, 8)  # 8 × 1,024 tokens on 2 devices of 1,024 tokens per second
    assert (found.seconds, found.lines, found.reserved, found.teraflops) == (4.0, 2, 2.0**33, 412.3)
    again = [(1, 10), (2, 1024), (1, 10), (2, 2048)]
    found = read_logs(log(tmp_path, *(TITAN.format(n=n, tps=tps) for n, tps in again)), 1024, 2, 8, warm_up=1)
    assert found.lines == 2


def test_seconds_and_folders(tmp_path: Path) -> None:
    """Megatron-DeepSpeed writes seconds; the logs of a folder are one run's."""
    text = MEGATRON.replace("(ms): {ms:.1f}", "(s): {ms:.1f}")
    for name, base in (("a.log", 10.0), ("b.log", 12.0)):
        log(tmp_path, *(text.format(n=n, ms=base, batch=8) for n in range(1, 10)), name=name)
    assert read_logs(tmp_path, 1024, 2, 8).seconds == 11.0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), "no line of a step"),
        (
            (MEGATRON.format(n=1, ms=1.0, batch=8).replace("1.0 |", "1.0.5 |"),),
            "line 2: '1.0.5' is not a number above 0",
        ),
        ((TITAN.format(n=1, tps=0),), "line 2: '0' is not a number above 0"),
        (
            (MEMORY.replace("2048.0", "2.0.4"), *(MEGATRON.format(n=n, ms=1.0, batch=8) for n in range(1, 9))),
            "memory (MB): '2.0.4' is not a number above 0",
        ),
        ((MEGATRON.format(n=1, ms=1.0, batch=8),), "1, are of the 5 steps of warm-up; --warm-up 0 takes them"),
        (
            tuple(MEGATRON.format(n=n, ms=1.0, batch=16) for n in range(1, 9)),
            "steps have 16 samples, the plan's iteration has 8",
        ),
        ((re.sub("[0-9]", "\u0663", MEGATRON.format(n=1, ms=1.0, batch=8)),), "no line of a step"),
        ((re.sub("[0-9]", "\u0663", TITAN.format(n=1, tps=9)),), "no line of a step"),
        (
            (MEGATRON.format(n=10**12 + 1, ms=1.0, batch=8),),
            "line 2: '1000000000001' must be a whole number of at most",
        ),
        ((MEGATRON.format(n=1, ms=1.0, batch=10**4000),), "must be a whole number of at most 1,000,000,000,000"),
        ((TITAN.format(n=10**4000, tps=9),), "must be a whole number of at most 1,000,000,000,000"),
        (
            (MEGATRON.format(n=1, ms=1.0, batch=8).replace("1.0 |", "1e19 |"),),
            "'1e19' is not a number above 0 of at most 1e+15",
        ),
        ((TITAN.format(n=1, tps=10**16),), "is not a number above 0 of at most 1e+15"),
        *[
            ((word * 200_000,), "no line of a step")  # each begins, and none ends
            for word in ("iteration 1/1 ", "step: 1 loss: 1 ", "memory (MB) | max allocated: 1 ", "step:1 loss:")
        ],
    ],
)
def test_logs_without_steps_are_one_line(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    """What is missing, with the file."""
    path = log(tmp_path, *lines)
    with pytest.raises(InputError) as caught:
        read_logs(path, 1024, 2, 8)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.usefixtures("one_change")
def test_a_folder_of_plans_and_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each plan with the log of its name; one without a log is named."""
    milliseconds = 1100.0 * seconds(1, STACK, named=True)
    written(tmp_path, 1)
    words = ["calibrate", "--logs", str(tmp_path), "--out", str(tmp_path / "mine.toml"), "--json"]
    assert "plan1.log: is missing" in refused(capsys, words, 4)
    log(tmp_path, *(MEGATRON.format(n=n, ms=milliseconds, batch=8) for n in range(1, 9)), name="plan1.log")
    code, printed, _ = ended(capsys, words)
    document = json.loads(printed)
    assert code == 0
    assert document["measured"][0]["measured"] == pytest.approx(milliseconds / 1000.0, abs=1e-4)
    assert document["measured"][0]["lines"] == 3
    plan = [str(tmp_path / "plan1.json"), "--measured", str(tmp_path / "plan1.log")]
    code, printed, _ = ended(capsys, ["calibrate", "--plan", *plan, *words[3:]])
    assert (code, json.loads(printed)) == (0, document)
    assert [one["what"] for one in document["measured"]] == ["seconds"]


def test_memory_of_a_log_is_measured_unless_it_is_said(tmp_path: Path) -> None:
    """The most that tensors took, in 2^20 bytes; --memory, in GiB, goes before it. FLOP/s that no line tells are none."""
    steps = [re.sub(r"throughput per GPU[^|]*", "", MEGATRON).format(n=n, ms=1000.0, batch=8) for n in range(1, 9)]
    with_memory, without = log(tmp_path, MEMORY, *steps), log(tmp_path, *steps, name="other.log")
    problem, plan = question(1, STACK)
    asked = ((with_memory, None), (with_memory, 3.0), (without, 3.0), (without, None))
    runs = [calibrate_command._run("a", problem, plan, path, memory, 5) for path, memory in asked]
    assert [run.memory for run in runs] == [2.0**31, 3 * 2.0**30, 3 * 2.0**30, None]
    assert [len(calibrate_command._observations(run)) for run in runs] == [2, 2, 2, 1]
    assert {run.told["tflops"] for run in runs} == {None}


def test_plans_beside_a_measured_one_change_one_thing() -> None:
    """Micro-batches of twice and of half as many samples, where the batch and the replicas take them, of equal ones alone;
    recomputation where the plan says none of its own; twice the batch always.
    """
    problem, plan = question(1, STACK)  # eight samples on two replicas

    def changed(**changes: Any) -> list[str]:
        run = calibrate_command.Run("a", problem, replace(plan, **changes), 1.0, None, {})
        found = calibrate_command._changed(run)
        assert all(sum(other.microbatches) == asked.batch for _, asked, other in found)
        words = [words for words, _, _ in found]
        again = {"recompute attention", "recompute blocks"}
        assert again.isdisjoint(words) if "recompute" in changes else again <= {*words}
        return [word for word in words if not word.startswith("recompute")]

    assert changed() == ["micro-batches of 4 samples, not 8", "16 samples"]
    assert changed(microbatches=(2,) * 4) == ["micro-batches of 4 samples, not 2", "16 samples"]
    assert changed(microbatches=(2, 6), recompute=("none",)) == ["16 samples"]
    alone = replace(plan.stages[0], devices=(0,))
    assert changed(microbatches=(1,) * 8, stages=(alone,), recompute=("none",)) == [
        "micro-batches of 2 samples, not 1",
        "16 samples",
    ]
