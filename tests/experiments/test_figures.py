"""Every figure of the experiments, drawn from made-up numbers of the shapes that runs give, can be read."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments.benchmarks.growth_plots import engine_figure, partitioner_figure
from experiments.compare.comparison_plots import comparison_figure
from experiments.cost_model import model_error_plots as cost_model_plots
from experiments.fpga_truth import board_plots
from experiments.modern_schedules import memory_point_plots
from experiments.network_rules import rule_plots
from experiments.pipedream_tables import speedup_plots as pipedream_tables_plots
from experiments.report import cluster_plots
from experiments.studies.study_harness import mark_interrupted
from experiments.sweep import sweep_plots
from experiments.sweep.swept import Swept
from experiments.terminal.report_tables import STALE
from experiments.truth import truth_plots
from experiments.umpipe import gain_plots as umpipe_plots
from experiments.umpipe.search_comparison import Instance
from experiments.unequal_sizes.random_tables import random_problem
from hardware_profiles import load_cluster
from planners.unequal import FoundSizes, best_equal
from tests.drawings import drawing
from tests.layout import assert_readable, lightness
from tests.records import Recorded, weights

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
HOSTILE = "x[/red] $\\bad{$ \x1b[31m "
"""Markup of terminals and of formulas, and a control character."""


def compared(planner: str, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "planner": planner,
        "schedule": "interleaved-1f1b",
        "notation": "15-1",
        "samples_per_second": rate,
        "speedup_over_data_parallel": rate / 50.0,
        "peak_memory_bytes": 15.9 * GIB,
        "memory_error_low": 15.0 * GIB,
        "memory_error_high": 17.5 * GIB,
        "capacity_bytes": 16.0 * GIB,
        "lower_bound_seconds": 0.9,
        "iteration_seconds": 100.0 / rate,
        "error_low": 90.0 / rate,
        "error_high": 140.0 / rate,
        "bubble_idle_over_makespan": 0.25,
        "asynchronous": True,
        "interrupted": True,
        "feasible": True,
        **more,
    }


COMPARISONS = {
    "one plan, at the capacity": [compared("bapipe", 90.0)],
    "fourteen plans": [compared(f"planner-{n}", 100.0 - 3.0 * n, bubble_idle_over_makespan=None) for n in range(14)],
    "plans that do not fit": [
        compared("exact-unequal", 90.0, feasible=False, peak_memory_bytes=44.0 * GIB),
        compared("local-greedy", 1e6, speedup_over_data_parallel=None),
    ],
    "capacities and limits apart": [
        compared(f"p{n}", 50.0 * 2**n, capacity_bytes=(4.0 + 9.1 * n) * GIB, lower_bound_seconds=0.1 + 0.1 * n)
        for n in range(5)
    ],
    "hostile names": [compared(HOSTILE * 20, 90.0, notation="1-" * 70 + "1", schedule=HOSTILE)],
}


ALIKE = "one plan, at the capacity", "plans that do not fit"
"""Comparisons whose bars the others have, too."""


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(rows, id=name, marks=[pytest.mark.slow] if name in ALIKE else [])
        for name, rows in COMPARISONS.items()
    ],
)
def test_comparisons_can_be_read(rows: list[dict[str, Any]], recorded: Recorded) -> None:
    """Values stand beside the panels, where no bar and no line of a capacity or a limit runs through them."""
    figure = comparison_figure(rows, title="vgg16 on pipedream-b, 16 devices " * 8)
    assert_readable(figure)
    whole = rows is COMPARISONS["capacities and limits apart"]
    recorded(figure=drawing(figure) if whole else weights(drawing(figure)))


def test_growth_of_the_engines_can_be_read(recorded: Recorded) -> None:
    """Six sizes over six decades; SimPy stops before the last ones."""
    rows = [
        {
            "ops": 250 * 12.2**n,
            "build_seconds": 1e-3 * 8**n,
            "prepare_seconds": 3e-4 * 8**n,
            "replay_seconds": 2e-6 * 8**n,
        }
        | {"simpy_seconds": 4e-3 * 8**n if n < 4 else None, "peak_bytes": 1.5e8 * (1 + 3.0**n)}
        | {"devices": 4096, "microbatches": 8192}
        for n in range(6)
    ]
    figure = engine_figure(rows)
    assert_readable(figure)
    recorded(figure=drawing(figure))


def test_the_cost_model_can_be_read(recorded: Recorded) -> None:
    """Five profiles, one of them with a hundred layers."""
    rng = np.random.default_rng(0)
    profiles = []
    for name, layers in (("vgg16", 16), ("alexnet", 8), ("resnet50", 107), ("gnmt", 11), (HOSTILE, 19)):
        groups = [dict(zip(("measured", "predicted"), rng.uniform(0.001, 0.1, 2), strict=True)) for _ in range(layers)]
        row: dict[str, Any] = {"name": name, "minibatch": 128, "share_distance": 0.14, "groups": groups}
        measured, predicted = (sum(group[of] for group in groups) for of in ("measured", "predicted"))
        for of, seconds in (("measured", measured), ("predicted", predicted)):
            row |= {f"{of}_forward": seconds / 3, f"{of}_backward": seconds * 2 / 3}
        profiles.append(row | {"error": predicted / measured - 1})
    figure = cost_model_plots.draw(profiles, HOSTILE)
    assert_readable(figure)
    recorded(figure=drawing(figure))
    assert len(figure.axes) == 6


def test_truth_can_be_read(recorded: Recorded) -> None:
    """Tables of one row and of a thousand, of several figures, of seconds and bytes, one of them with a hostile name."""
    rng = np.random.default_rng(0)

    def points(count: int, *kinds: str) -> pd.DataFrame:
        what = [kinds[i % len(kinds)] for i in range(count)]
        measured = 10.0 ** rng.uniform(-4, 1, count) * [2.0**30 if kind == "memory" else 1.0 for kind in what]
        return pd.DataFrame({"what": what, "measured": measured, "predicted": measured * rng.uniform(0.8, 1.3, count)})

    tables = {"runs": points(20, "seconds", "memory"), HOSTILE: points(1, "seconds")}
    figure = truth_plots.draw(tables | {"products": points(1000, "forward", "backward"), "more": points(3, "seconds")})
    assert_readable(figure)
    recorded(figure=drawing(figure))


def test_boards_can_be_read(recorded: Recorded) -> None:
    """Seven boards of rates from 1 to 10,000 images a second, one of them of a hostile name, some of them far off."""
    rng = np.random.default_rng(1)
    names = [HOSTILE, *(f"board-{number}" for number in range(6))]
    rows = [
        {"board": name, "measured_images_per_second": rate, "images_per_second": rate * rng.uniform(0.5, 2.0)}
        for name in names
        for rate in 10.0 ** rng.uniform(0, 4, 3)
    ]
    figure = board_plots.draw(rows)
    assert_readable(figure)
    recorded(figure=drawing(figure))


def test_pipedream_growth_can_be_read(recorded: Recorded) -> None:
    """All studies of both forms."""
    rows: list[dict[str, Any]] = []
    for scale, variant in enumerate(("paper", "script"), 1):
        for study in ("states, flat", "states, two levels"):
            rows += [
                {"study": study, "states": n, "workers": 16, "search_cpu_seconds": 4e-9 * scale * n**2}
                for n in (25, 100, 400, 1600)
            ]
        rows += [{"study": "graph", "states": n, "search_cpu_seconds": 1e-4 * scale * n} for n in (1200, 8500)]
        rows += [
            {"study": "workers, flat", "workers": n, "states": 100, "search_cpu_seconds": 4e-5 * scale * n}
            for n in (4, 64, 1024)
        ]
        rows += [
            {"study": "levels", "shape": shape, "search_cpu_seconds": 0.03 * scale}
            for shape in ("64", "8×8", "4×4×4", "2^6")
        ]
        rows = [{"variant": variant, **row} for row in rows]
    figure = partitioner_figure(rows)
    assert_readable(figure)
    recorded(figure=drawing(figure))


def test_memory_points_can_be_read(recorded: Recorded) -> None:
    """Seventeen families close to each other and to four placements' searched orders, one of them at the very bound."""
    places = ("straight", "interleaved", "v", "bidirectional")
    families: list[dict[str, Any]] = []
    searched: list[dict[str, Any]] = []
    for stages, seeds in (("even", (0,)), ("uneven", (0, 1, 2))):
        for seed in seeds:
            about = {"stages": stages, "seed": seed}
            for n in range(17):
                point = {"family": f"family-of-{n}", "peak_microbatches": 4.0 + n // 2 % 6, "placement": places[n % 4]}
                above = 0.04 * (1 + n // 4) + 0.02 * seed
                bounded = {"above_busiest": above, "bound_above_busiest": 0.03 + 0.2 * above}
                families.append({**about, **point, **bounded, "slices": 2 if n == 16 else 1})
            for rank, place in enumerate(places):
                for limit in (1, 2, 4, 8, 16):
                    above = {"above_busiest": 6 / limit**1.5 - 0.02 * rank, "bound_above_busiest": 4 / limit**1.5}
                    searched.append({**about, "placement": place, "limit_microbatches": float(limit), **above})
    figure = memory_point_plots.draw(
        {"families": families, "searched": searched, "limits_microbatches": [1, 2, 4, 8, 16], "uneven_spread": 0.3}
    )
    assert_readable(figure)
    recorded(figure=drawing(figure))


def test_pipedream_tables_can_be_read(recorded: Recorded) -> None:
    """Nine rows, bands on either side of the bar; rows that a constant was fitted to, with another row and without."""
    rows = [
        {"model": "VGG-16", "cluster": "pipedream-arxiv-b", "devices": 16, "published_plan": "9-5-1-1"}
        | {"published_speedup": 5.0 - 0.4 * n, "published_recalled": n == 6, "speedup": 1.0 + 0.6 * n}
        | {"speedup_low": 0.9 + 0.5 * n, "speedup_high": 1.0 + 0.75 * n, "relative_error": 1.64}
        | {"stale": n != 4, "efficiency_fitted_to_it": n % 3 > 0}
        | {"left_out": {"speedup": 1.0 + 0.7 * n, "relative_error": -0.21} if n % 3 == 1 else None}
        for n in range(9)
    ]
    figure = pipedream_tables_plots.draw(rows)
    assert_readable(figure)
    recorded(figure=drawing(figure))


def test_sweeps_can_be_read(recorded: Recorded) -> None:
    """Five batches on three clusters: plans that change, one that does not fit, three counts of devices on the front, and two
    capacities, one of which is beyond the axis.
    """
    points = [
        (
            {"batch": 64 * 2**n, "cluster": f"dgx-a100:{2**place}"},
            {"status": "planned", "feasible": (n, place) != (4, 0), "decisions": {"schedule": f"schedule-{n // 3}"}}
            | {"iteration_seconds": 0.4 * 2**n / 1.7**place, "samples_per_second": 1600.0 * 1.7**place + 20.0 * n}
            | {"peak_memory_bytes": GIB * 2.0 ** (4 + n - place), "plan_devices": 8 * 2**place}
            | {"capacity_bytes": (300.0 if place else 2000.0) * GIB},
        )
        for n in range(5)
        for place in range(3)
    ]
    drawn = sweep_plots.figures_of(Swept.of(points))
    assert set(drawn) == {"lines", "heat_map", "pareto"}
    for figure in drawn.values():
        assert_readable(figure)
    recorded(**{name: drawing(figure) for name, figure in drawn.items()})


@pytest.mark.parametrize("questions", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_rules_of_links_can_be_read(questions: int, recorded: Recorded) -> None:
    """Rows that agree in all, in nothing, and of which nothing is known; no legend lies on one."""
    rows = [
        {"question": f"gpt2-medium, dgx-1-v100 × {n}", "chosen_under": chosen, "judged_under": judged}
        | {"kendall": None if n == 3 else 1.0 - 0.4 * n, "regret": 0.2 * n}
        for n in range(questions)
        for chosen, judged in rule_plots.PAIRS
    ]
    figure = rule_plots.draw({"rows": rows, "plans": 12})
    assert_readable(figure)
    recorded(figure=weights(drawing(figure)))


@pytest.mark.parametrize("cluster", ["dgx-a100:2", "pipedream-b"])
def test_clusters_can_be_read(cluster: str) -> None:
    """Servers with switches, and with links of two bandwidths."""
    assert_readable(cluster_plots.draw(load_cluster(cluster)))


def test_gains_can_be_read_and_show_what_lies_beyond(recorded: Recorded) -> None:
    """Readings of three networks, three rules of re-cutting; a gain beyond the axis is a triangle at its end."""
    rows: list[dict[str, Any]] = [
        {"network": network, "setting": f"setting {n}", "partition": partition, "sizes": sizes, "recut": recut}
        | {"gains": {name: 0.1 * n - 0.2 + 0.05 * place for place, name in enumerate(umpipe_plots.SHOWN)}}
        for network in ("gpt-14", "vgg16")
        for partition in (umpipe_plots.JOINT, "tuned GPipe's", "FLOP, blocks")
        for sizes in ("all", "powers of two")
        for recut in umpipe_plots.RECUTS
        if recut != "nothing stored"
        for n in range(4)
    ]
    given = {"network": "simulation", "partition": "given", "recut": "nothing stored"}
    rows += [
        {**given, "setting": "affine", "sizes": sizes, "gains": dict.fromkeys(umpipe_plots.SHOWN, 0.5)}
        for sizes in ("powers of two", "all")
    ]
    rows[0]["gains"]["gpipe tuned"] = 1.7
    figure = umpipe_plots.gains_figure(rows)
    assert_readable(figure)
    triangles = [[line for line in axes.lines if line.get_marker() == ">"] for axes in figure.axes]
    assert [len(found) for found in triangles] == [1, 0, 0]
    assert STALE in figure.axes[0].get_yticklabels()[-1].get_text()
    whole = drawing(figure)
    mark_interrupted(figure)
    recorded(figure=whole, interrupted=[drawing(figure)[part] for part in ("texts", "looks")])


def test_lines_of_the_gains() -> None:
    """From the top every reading over the GPipe that is tuned alike, then the other baselines where both sides choose all."""
    row = {
        "network": "vgg16",
        "recut": "free",
        "gains": {"gpipe tuned": 0.1, "gpipe M=4K": 0.2, "pipedream tuned": -0.5},
    }
    rows = [
        {**row, "partition": one, "sizes": sizes} for one in ("joint", "FLOP") for sizes in ("all", "powers of two")
    ]
    found = umpipe_plots.lines_of(rows, "vgg16")
    assert [line.words for line in found[:2]] == ["GPipe, tuned · joint · all", "GPipe, tuned · joint · powers of two"]
    assert [(line.system, line.gains) for line in found[4:]] == [
        ("gpipe", {"free": [20.0]}),
        ("pipedream", {}),
        ("pipedream", {"free": [-50.0]}),
    ]


def searched(makespan: float, seconds: float) -> FoundSizes:
    """A search that halves its distance to 1 s in five steps."""
    steps = range(5)
    history = tuple((200 * (n + 1), 1.0 + (makespan - 1.0) * 2.0 ** (4 - n)) for n in steps)
    times = tuple(seconds * (n + 1) / 5 for n in steps)
    return FoundSizes((1,), (1,), makespan, 1.0, 1000, seconds, history, times)


def test_convergence_can_be_read(recorded: Recorded) -> None:
    """Two instances, every search; no panel has more than eight lines, and the same search is drawn once a panel."""
    titles = {*umpipe_plots.SEARCHES, *umpipe_plots.EVALUATORS}
    plans = {"exact": FoundSizes((1,), (1,), 1.0, 1.0, 9, 0.01)}
    cpu_seconds = dict.fromkeys(titles, 1e-4)
    for title, above in (("greedy DP", 0.01), ("best equal size", 0.05), ("local greedy", 0.2)):
        plans[title] = FoundSizes((1,), (1,), 1.0 + above, 1.0, 1, 1e-4)
    for n, title in enumerate(sorted(titles)):
        plans[title], cpu_seconds[title] = searched(1.01 + 0.01 * n, 0.05 * 4**n), 0.05 * 4**n
    instances = [Instance(name, plans, cpu_seconds) for name in ("VGG-16 (dgx-a100, K=8, B=64, recomputed)", HOSTILE)]
    figure = umpipe_plots.convergence_figure(instances)
    assert_readable(figure)
    recorded(figure=drawing(figure))
    assert all(len(axes.lines) <= 8 for axes in figure.axes)


def test_fronts_can_be_read(recorded: Recorded) -> None:
    """Points beyond the panel are left out, not cut."""
    points = [("unequal", 0.25 + 0.02 * n**2, (1700 - 10 * n) * 2**20, n + 1) for n in range(6)]
    points += [("equal", 0.26 + 2.0 / n**2, (1640 + 9 * n) * 2**20, n) for n in range(1, 13)]
    rows = [
        {"setting": setting, "sizes": sizes, "seconds": seconds, "static_bytes": held, "forward_sizes": (size,)}
        | {"capacity_bytes": (1700 if setting == HOSTILE else 15360) * 2**20}
        for setting in ("vgg16 (pipedream-b, K=4, B=64, recomputed)", HOSTILE)
        for sizes, seconds, held, size in points
    ]
    figure = umpipe_plots.pareto_figure(rows)
    assert_readable(figure)
    recorded(figure=drawing(figure))
    for axes in figure.axes:
        (crosses,) = (line for line in axes.lines if line.get_marker() == "x")
        assert axes.get_xlim()[1] > max(crosses.get_xdata())
        assert axes.get_ylim()[1] > max(crosses.get_ydata())


def test_gantt_pairs_can_be_read(recorded: Recorded) -> None:
    """Two plans on one axis; the shorter one ends before it, and is no cut."""
    problem = random_problem(np.random.default_rng(3), "roofline", 4, 16, tuple(range(1, 17)))
    slow, fast = (best_equal(problem), searched(best_equal(problem).makespan_seconds, 1.0))
    fast = FoundSizes((4,) * 4, (4,) * 4, slow.makespan_seconds, 0.0, 1, 1.0)
    shown = SimpleNamespace(
        network="vgg16", setting="dgx-a100, K=4, B=16", problem=problem, plan=fast, gpipe_problem=problem, gpipe=slow
    )
    figure = umpipe_plots.gantt_figure(shown)  # type: ignore[arg-type]
    assert_readable(figure)
    recorded(figure=drawing(figure))
    assert {axes.get_xlabel() for axes in figure.axes} <= {"time, ms"}


# ---- the check itself ------------------------------------------------------------------------------------------------


@dataclass
class Bad:
    """A figure with one fault, and the words for it."""

    draw: Callable[[Figure], None]
    words: str


def _value_on_a_line(figure: Figure) -> None:
    axes = figure.subplots()
    axes.axvline(0.5)
    axes.text(0.45, 0.5, "a long value")
    axes.set(xlabel="x", ylabel="y")


def _legend_on_a_bar(figure: Figure) -> None:
    axes = figure.subplots()
    axes.bar([0, 1], [5, 5], label="bars")
    axes.legend(loc="center")
    axes.set(xlabel="x", ylabel="y")


def _many_lines(figure: Figure) -> None:
    axes = figure.subplots()
    for n in range(9):
        axes.plot([0, 1, 2], [n, n, n + 1])
    axes.set(xlabel="x", ylabel="y")


def _greys(figure: Figure) -> None:
    axes = figure.subplots()
    axes.bar([0], [1], color="#4585cf", label="blue")
    axes.bar([1], [1], color="#a87700", label="brown")
    axes.set(xlabel="x", ylabel="y")
    figure.legend(loc="upper left")


BAD = {
    "title": Bad(lambda figure: figure.suptitle("a title of a figure " * 9), "leaves the figure"),  # type: ignore[arg-type, return-value]
    "texts": Bad(lambda figure: [figure.text(0.4 + x, 0.5, "overlapping") for x in (0.0, 0.1)], "overlap"),  # type: ignore[arg-type, return-value]
    "label": Bad(lambda figure: figure.subplots().plot([0, 1], [0, 1]), "x axis of panel '' has numbers and no label"),  # type: ignore[arg-type, return-value]
    "line": Bad(_value_on_a_line, "a line runs through 'a long value'"),
    "bar": Bad(_legend_on_a_bar, "lies on a bar"),
    "lines": Bad(_many_lines, "9 curves"),
    "grey": Bad(_greys, "look the same in grey"),
    "small": Bad(lambda figure: figure.text(0.5, 0.5, "tiny", fontsize=4), "has 4.0 points"),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_the_check_finds_faults(bad: Bad) -> None:
    """Each fault that it is for."""
    figure = Figure(figsize=(5, 3), dpi=100)
    bad.draw(figure)
    with pytest.raises(AssertionError, match=bad.words):
        assert_readable(figure)


def test_lightness_of_known_colours() -> None:
    """Black 0, white 100, the grey of 18 % reflectance about 50."""
    assert (round(lightness("black")), round(lightness("white")), round(lightness("#777777"))) == (0, 100, 50)


def test_every_figure_has_a_check() -> None:
    """Each function that returns a Figure is drawn by a test that checks it."""
    made = set()
    for path in sorted((ROOT / "experiments").rglob("*plots.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Name) and node.returns.id == "Figure":
                made.add(f"{path.stem}.{node.name}")
    here = {
        "memory_point_plots.draw",
        "pareto_plots.draw",
        "model_error_plots.draw",
        "growth_plots.partitioner_figure",
        "speedup_plots.draw",
        "truth_plots.draw",
        "board_plots.draw",
        "rule_plots.draw",
        "cluster_plots.draw",
        "comparison_plots.comparison_figure",
        "growth_plots.engine_figure",
        "gain_plots.convergence_figure",
        "gain_plots.gains_figure",
        "gain_plots.gantt_figure",
        "gain_plots.pareto_figure",
    }
    bapipe = {f"exploration_plots.{name}" for name in ("schedules", "plans", "claims", "depth")}
    training = {f"xpipe_plots.{name}_figure" for name in ("throughput", "accuracy", "difference")}
    training |= {f"learning_plots.{name}_figure" for name in ("time", "target")}
    sweeps = {f"sweep_plots.{name}_figure" for name in ("lines", "heat_map", "pareto")}
    assert made == here | bapipe | training | sweeps
