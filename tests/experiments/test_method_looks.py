"""Looks of methods: one for each, in all figures, whatever a figure calls it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

import planners
import simulator
from experiments.bapipe_explore import exploration, exploration_plots
from experiments.compare.method_looks import FAMILIES, SAME, look_of, method_of
from experiments.sweep.sweep_plots import lines_figure
from experiments.sweep.swept import Swept
from experiments.time_to_accuracy import __main__ as time_study
from experiments.time_to_accuracy.learning_plots import target_figure, time_figure
from experiments.xpipe import accuracy as xpipe
from experiments.xpipe.xpipe_plots import difference_figure, throughput_figure
from simulator.results.figures import ALARM, BLUE, FAINT, GREEN, GREY, INK, ORANGE, SERIES
from tests.experiments.test_sweep_page import points
from tests.experiments.test_xpipe import made_result


@pytest.mark.parametrize(
    ("label", "method"),
    [
        ("XPipe T=4*", "xpipe"),
        ("XPipe exact s T=4*", "xpipe-exact"),
        ("data parallel", "data-parallel"),
        ("PipeMare T=4, warm-up*", "pipemare"),
        ("SpecTrain v1 T=1, batch 5*", "spectrain-v1"),
        ("synchronous", "1f1b"),
        ("uniform GPipe", "gpipe"),
        ("PipeDream, flushed", "pipedream-flush"),
        ("pipedream*", "pipedream"),
        ("bapipe 1F1B", "bapipe"),
        ("bapipe 1F1B-SO", "bapipe 1f1b-so"),
        ("1F1B-SO", "1f1b-so"),
        ("pymoo GA", "pymoo ga"),
        ("xpipe-of-another", "xpipe-of-another"),
    ],
)
def test_labels_name_methods(label: str, method: str) -> None:
    """By what they begin with; a longer name of another package is no label of ours."""
    assert method_of(label) == method


def test_every_planner_and_schedule_has_a_look_of_its_own() -> None:
    """In a colour that no other declared one has, or chosen by letters; a family tells its members apart in grey, too."""
    names = [name for own in FAMILIES.values() for name in own]
    assert len({look_of(name).color for name in names}) == len(names) == len(set(names))
    assert not {look_of(name).color for name in names} & {ALARM, BLUE, FAINT, GREEN, GREY, INK, ORANGE, *SERIES}
    known = {*planners.planner_entries(), *simulator.SCHEDULES, *simulator.METHOD_SCHEDULES}
    methods = {method_of(name) for name in known}
    assert len({look_of(name) for name in methods}) == len(methods)
    assert set(SAME.values()) <= {*names}
    for own in FAMILIES.values():
        for part in ("mark", "dashes", "hatch"):
            assert len({getattr(look_of(name), part) for name in own}) == len(own)
    firsts = [look_of(own[0]).mark for own in FAMILIES.values()]
    assert all(one != other for one, other in pairwise(firsts))


def test_a_name_that_is_not_declared_keeps_its_look() -> None:
    """In every process: its letters alone choose it."""
    look = look_of("their-planner")
    assert (look.color, look.mark, look.dashes, look.hatch) == ("#b08d1a", "v", ":", "xxx")
    assert look == look_of("their-planner") != look_of("their-other-planner")


# ---- in figures ------------------------------------------------------------------------------------------------------


def of_bars(figure: Figure) -> Iterator[tuple[str, str]]:
    """Names and colours of bars, a row each; of hollow ones that of the edge."""
    names: dict[float, str] = {}
    for axes in figure.axes:
        names |= {float(y): text.get_text() for y, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
        for bar in axes.patches:
            if isinstance(bar, Rectangle) and bar.get_height() == pytest.approx(0.68):
                face, edge = to_hex(bar.get_facecolor()), to_hex(bar.get_edgecolor())
                yield names[round(bar.get_y() + 0.34)], edge if face == "#ffffff" else face


def of_legends(figure: Figure) -> Iterator[tuple[str, str]]:
    """Names and colours of the entries of legends."""
    for legend in (*figure.legends, *(axes.get_legend() for axes in figure.axes)):
        for handle, text in zip(
            legend.legend_handles if legend else (), legend.get_texts() if legend else (), strict=True
        ):
            if isinstance(handle, Rectangle):
                yield text.get_text(), to_hex(handle.get_facecolor())
            elif isinstance(handle, Line2D):
                yield text.get_text(), to_hex(handle.get_color())  # type: ignore[arg-type]


def of_intervals(figure: Figure) -> Iterator[tuple[str, str]]:
    """Names and colours of lines along rows."""
    for axes in figure.axes:
        names = [text.get_text() for text in axes.get_yticklabels()]
        for line in axes.lines:
            y = np.unique(line.get_ydata())
            if len(y) == 1 and float(y[0]).is_integer():
                yield names[int(y[0])], to_hex(line.get_color())  # type: ignore[arg-type]


def drawn() -> Iterator[tuple[str, str]]:
    """What studies call their methods, and the colours of these, of one figure after the other."""
    plans = [
        {"study": "gpu", "workload": "vgg16", "cluster": "2 V100", "method": method, "speedup": 1.0}
        for method in exploration.METHODS
    ]
    yield from of_legends(exploration_plots.plans(plans, "speedup", "speedup"))
    depth = [{"method": method, "devices": 2, "layers": 8} for method in exploration.DEPTH_METHODS]
    yield from of_legends(exploration_plots.depth(depth))
    cases = [*time_study.CASES]
    timed: list[dict[str, Any]] = [
        {"label": case.label, "fits": n % 2 == 0, "seeds": 1, "seeds_at_target": 1, "seconds_to_target": 9.0}
        | {"samples_per_second": 9.0, "peak_memory_bytes": 2.0**34, "capacity_bytes": 2.0**34}
        for n, case in enumerate(cases)
    ]
    balanced = [{"stages": 2, "microbatches_per_minibatch": t, "speedup": 1.0} for t in (1, 2)]
    yield from of_bars(throughput_figure(balanced, timed, "a problem"))
    yield from of_bars(target_figure({"a": timed}, 0.95))
    yield from of_legends(
        time_figure([(made_result(case, n, 1), np.arange(1.0, 441.0)) for n, case in enumerate(cases)], 0.9, "a")
    )
    differences = [
        {"label": case.label, "optimizer": "adam", "learning_rate": 0.1, "test_accuracy_difference": 0.1}
        | {"test_accuracy_difference_low": 0.0, "test_accuracy_difference_high": 0.2}
        for case in xpipe.CASES
    ]
    yield from of_intervals(difference_figure(differences))
    one_device = [
        ({name: swept[name] for name in ("schedule", "batch")}, record)
        for swept, record in points("gpipe", "1f1b")
        if swept["devices"] == 1
    ]
    yield from (
        (text.removeprefix("schedule="), color) for text, color in of_legends(lines_figure(Swept.of(one_device)))
    )


def test_a_method_has_one_colour_in_all_figures() -> None:
    """Those of the studies and of sweeps: of every method all are of its look."""
    found = defaultdict(set)
    for name, color in drawn():
        found[method_of(name)].add(color)
    declared = {name for own in FAMILIES.values() for name in own}
    assert len(declared & {*found}) >= 14
    assert {name: colors for name, colors in found.items() if name in declared} == {
        name: {look_of(name).color} for name in found if name in declared
    }
