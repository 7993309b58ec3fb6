"""The commands that compare and time the evaluators of unequal micro-batches."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments import unequal_cases
from experiments.benchmarks import timing, unequal_speed
from experiments.studies.study_harness import run_study
from experiments.unequal_sizes.evaluators import Evaluate
from experiments.unequal_sizes.random_tables import random_problem
from planners.unequal import Compiled, exact_sizes
from tests.records import Recorded, lines
from tests.unequal import problem_from_callables


def test_cases_agree(capsys: pytest.CaptureFixture[str], recorded: Recorded) -> None:
    """No evaluator disagrees, no exact answer differs from exhaustive search; exit code 0 and one JSON object."""
    assert run_study("unequal-cases", ["--json", "--count", "12", "--small", "4", "--seed", "7"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["instances"], report["disagreements"], report["exact_mismatches"]) == (12, 0, 0)
    assert run_study("unequal-cases", ["--count", "2", "--small", "1"]) == 0
    recorded(report=report, printed=lines(capsys.readouterr().out))


def test_a_disagreement_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluator that is off by one bit is counted on every instance, by name, with exit code 1."""

    def off(problem: object) -> Evaluate:
        right = Compiled(problem)  # type: ignore[arg-type]
        return lambda forward, backward: np.nextafter(right(forward, backward), np.inf)

    monkeypatch.setitem(unequal_cases.EVALUATORS, "off", off)
    assert run_study("unequal-cases", ["--json", "--count", "5", "--small", "0"]) == 1
    assert json.loads(capsys.readouterr().out)["disagreements_by_evaluator"]["off"] == 5


def test_small_instances_are_small_enough_to_try_all(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """At most 4,096 vectors each, of up to seven sizes; an exact method that is wrong, unproven or of another bound counts."""
    asked: list[Any] = []
    exact = exact_sizes

    def tried(problem: Any) -> Any:
        vectors = len(problem.candidates) ** problem.stages
        words = problem.candidates, problem.recomputation
        asked.append([problem.stages, problem.samples, *words, vectors])
        return exact(problem)

    monkeypatch.setattr(unequal_cases, "exact_sizes", tried)
    rng = np.random.default_rng(3)
    assert sum(unequal_cases.exact_mismatch(rng, number) for number in range(40)) == 0
    assert max(vectors for *_, vectors in asked) <= 4096
    recorded(instances=[str(one) for one in asked])
    right = {"makespan_seconds": None, "proven_optimal": True, "lower_bound_seconds": None}
    for wrong in ({"makespan_seconds": 2.0}, {"proven_optimal": False}, {"lower_bound_seconds": 0.5}):

        def off(problem: Any, wrong: dict[str, Any] = wrong) -> Any:
            best = exact(problem).makespan_seconds
            return SimpleNamespace(**{name: value or best for name, value in right.items()} | wrong)

        monkeypatch.setattr(unequal_cases, "exact_sizes", off)
        assert unequal_cases.exact_mismatch(np.random.default_rng(3), 0) == 1


def test_bad_arguments_exit_2() -> None:
    """A negative count is a usage error."""
    with pytest.raises(SystemExit, match="2"):
        run_study("unequal-cases", ["--count", "-1"])


def test_operations_are_counted() -> None:
    """B = 4, sizes (1, 2): stage 0 has 4 blocks, its link 4 forward and 2 backward, stage 1 has 2: 10 + 8 in all."""
    problem = problem_from_callables(4, [float] * 2, [float] * 2)
    sizes = np.array([[1, 2]])
    assert unequal_speed.operations_per_evaluation(problem, sizes, sizes) == (4 + 4 + 2) + (2 + 2 + 4)


def test_speed_reports_every_evaluator() -> None:
    """One small shape: a positive rate for each evaluator, ratios to the plain recurrence, and the counted limit."""
    row = unequal_speed.measure(unequal_speed.PipelineSize(2, 8), "affine", 0, 0.002, unequal_speed.core_rates(0.001))
    assert set(row["evaluators"]) == set(unequal_cases.EVALUATORS)
    assert all(found["evaluations_per_cpu_second"] > 0 for found in row["evaluators"].values())
    assert row["ratio_to_recurrence"]["recurrence"] == 1.0
    assert row["exact_proven"]


def test_generated_instances_repeat(recorded: Recorded) -> None:
    """The same seed gives the same instances; two dozen in turn go through every family and recomputation."""
    rng = np.random.default_rng(5)
    problems = [unequal_cases.generated_problem(rng, number) for number in range(24)]
    recorded(
        instances=[
            f"{one.stages} stages, {one.samples} samples, {len(one.candidates)} sizes, "
            f"recomputed {one.recomputation}, forward {one.forward.sum():.9g} s, links {one.forward_link.sum():.9g} s"
            for one in problems
        ]
    )
    first, second = (unequal_cases.generated_problem(np.random.default_rng(1), 3) for _ in range(2))
    assert first.forward.tobytes() == second.forward.tobytes()
    assert random_problem(np.random.default_rng(1), "affine", 2, 4, (1,)).samples == 4


def test_speeds_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: Recorded
) -> None:
    """Rates of 100, 200, … evaluations in the order in which they are asked for, each with its population: document and text."""
    asked: list[Any] = []

    def rate(evaluate: object, forward: Any, backward: Any, seconds: float) -> dict[str, float]:
        asked.append([*forward.shape, int(forward.sum()), int(backward.sum()), seconds])
        return {"evaluations_per_cpu_second": 1e3 * len(asked), "evaluations_per_second": 500.0 + 1e3 * len(asked)}

    monkeypatch.setattr(unequal_speed, "rate", rate)
    monkeypatch.setattr(
        unequal_speed, "SHAPES", (unequal_speed.PipelineSize(2, 8), unequal_speed.PipelineSize(3, 6, True))
    )
    core = {"chain_max_plus_per_second": 4e8, "stream_max_plus_per_second": 5e9}
    monkeypatch.setattr(unequal_speed, "core_rates", lambda seconds: core | {"seconds": seconds})
    ticks = iter(range(100))
    monkeypatch.setattr(timing, "time", SimpleNamespace(process_time=lambda: 0.25 * next(ticks)))
    assert run_study("unequal-speed", ["--json", "--family", "affine", "--seed", "3"]) == 0
    assert len(json.loads(capsys.readouterr().out)["shapes"]) == 2
    assert run_study("unequal-speed", ["--seconds", "0.25"]) == 0
    recorded(printed=lines(capsys.readouterr().out), asked=asked)


@pytest.mark.parametrize(
    ("each", "many", "count", "calls"), [(1 / 64, 200, 8, 7), (1 / 64, 4, 4, 15), (1 / 512, 1, 1, 511), (4.0, 3, 1, 3)]
)
def test_rates_are_those_of_the_best_call(
    each: float, many: int, count: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that stands but for the calls, `each` seconds an individual: as many individuals as fill an eighth of 1 s; groups
    of calls of an eighth, up to 1 s and three at least. The first of these calls takes twice as long, and does not count."""
    now, made = [0.0], [0]
    trials = 1 + 3 * (count.bit_length() if many > count or count == 1 else count.bit_length() - 1)

    def evaluate(forward: Any, backward: Any) -> Any:
        made[0] += 1
        now[0] += len(forward) * each * (2 if made[0] == trials + 1 else 1)
        return np.zeros(len(forward))

    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 2.0 * now[0])
    monkeypatch.setattr(unequal_speed, "time", clock)
    monkeypatch.setattr(timing, "time", clock)
    population = np.ones((many, 3), dtype=np.int64)
    assert unequal_speed.rate(evaluate, population, population, 1.0) == {
        "evaluations_per_cpu_second": pytest.approx(0.5 / each),
        "evaluations_per_second": pytest.approx(1 / each),
        "median_evaluations_per_second": pytest.approx(1 / each),
        "individuals": count,
        "calls": calls,
    }


@pytest.mark.parametrize(("seconds", "repeats", "calls"), [(1 / 32, 16, 3), (1.0, 64, 16), (2.0, 64, 32)])
@pytest.mark.parametrize("tick", [1e-9, 1 / 256])
def test_a_core_is_rated_by_the_best_of_short_calls(
    seconds: float, repeats: int, calls: int, tick: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of 512 numbers in a microsecond: repeats are doubled up to half of the time or of a tenth of a second, which
    a clock of CPU seconds that goes on by ticks, as under a limit of them, does not change; calls then fill the time."""
    now, done = [0.0], []

    def sweep(values: Any, result: Any, repeated: int) -> None:
        done.append(repeated)
        now[0] += 1e-6 * repeated

    clock = SimpleNamespace(process_time=lambda: now[0] // tick * tick, perf_counter=lambda: now[0])
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(unequal_speed, "_chain", sweep)
    monkeypatch.setattr(unequal_speed, "_stream", sweep)
    rates = unequal_speed.core_rates(seconds)
    tried = [1, *(1000 * 2**power for power in range(repeats.bit_length()))]
    assert done == [*tried, *[1000 * repeats] * calls] * 2
    assert rates == {f"{name}_max_plus_per_second": pytest.approx(512e6, rel=0.03) for name in ("chain", "stream")}


def test_the_sweeps_of_a_core() -> None:
    """The larger of the end and the number, plus a half: in the chain of all numbers, in the stream of each number alone."""
    values, result = np.array([0.0, 3.0, 1.0]), np.zeros(3)
    unequal_speed._chain.py_func(values, result, 2)  # type: ignore[attr-defined]
    assert result.tolist() == [4.5, 5.0, 5.5]
    result = np.zeros(3)
    unequal_speed._stream.py_func(values, result, 2)  # type: ignore[attr-defined]
    assert result.tolist() == [1.0, 4.0, 2.0]
