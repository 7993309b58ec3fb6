"""Rules of the records: a changed value is found and named, rounding is not, and every record has its test."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.drawings import drawing
from tests.records import (
    REWRITE,
    WIDTH,
    assert_recorded,
    assert_text,
    differences,
    digest,
    lines,
    plain,
    readable,
    tabled,
    untabled,
    weight,
    without_measured,
)

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("recorded", "found", "said"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-6}, ".a: 1.0 was recorded, 1.000001 was found"),
        ({"a": [1, 2]}, {"a": [1]}, ".a[1]: 2 was recorded, '(absent)' was found"),
        ({"a": 1}, {"b": 1}, ".a: only in the record"),
        ({}, {"b": 1}, ".b: only in the run"),
        ({"a": True}, {"a": 1}, ".a: True was recorded, 1 was found"),
        ("x", "y", ": 'x' was recorded, 'y' was found"),
        (None, 0, ": None was recorded, 0 was found"),
    ],
)
def test_differences_are_named(recorded: Any, found: Any, said: str) -> None:
    """Where, what was recorded, what was found."""
    assert next(differences(recorded, found)) == said


@pytest.mark.parametrize(
    ("recorded", "found"), [(1.0, 1.0 + 1e-12), (1, 1.0), (0.0, 3e-16), ({"a": [2.5]}, {"a": [2.5]})]
)
def test_rounding_is_no_difference(recorded: Any, found: Any) -> None:
    """A billionth of the value, and what is 0 but for rounding."""
    assert not list(differences(recorded, found))


def test_values_become_plain() -> None:
    """Numbers of numpy, settings by fields, functions by name, what is not finite by its name, sets in order."""
    given = {(1, 2): np.float64(1 / 3), "f": partial(max, 1), "s": {2, 1}, "n": float("nan"), "r": range(2), "g": plain}
    assert plain(given) == {
        "[1, 2]": 0.333333333333,
        "f": {"partial": "max", "given": [1, {}]},
        "s": [1, 2],
        "n": "nan",
        "r": "range(0, 2)",
        "g": "plain",
    }


def test_a_digest_sees_values_and_their_order() -> None:
    """One changed number, or two exchanged, change the digest of a long list; a short list and a list of words stay."""
    values = [float(number) for number in range(100)]
    changed, exchanged = values.copy(), values.copy()
    changed[50], exchanged[50:52] = 50.001, [51.0, 50.0]
    for other in (changed, exchanged):
        assert list(differences(digest(values), digest(other)))
    assert digest([1, 2]) == [1, 2]
    assert digest(["a"] * 30) == ["a"] * 30
    assert list(differences(digest([[x, 1.0] for x in values]), digest([[x, 1.0] for x in changed])))


def test_a_weight_sees_values_words_and_their_order() -> None:
    """At any depth; names and what is not there count as words."""
    value = {"a": [1.0, [None, 4]], "b": True}
    assert weight(value)[0] == pytest.approx(
        sum(math.asinh(1e6 * one) * place for place, one in ((1, 1), (2, 4), (3, 1))) / 6
    )
    others: list[Any] = [{"a": [1.0, [None, 5]], "b": True}, {"a": [4, [None, 1.0]], "b": True}]
    others += [{"a": [1.0, [None, 4]], "b": False}, {"a": [1.0, [None, 4]], "c": True}, {"a": [1.0, [0, 4]], "b": True}]
    assert weight(value) not in [weight(one) for one in others]
    assert weight(["a", "b", 2]) == weight(["a", 2, "b"]) == weight([2, "a", "b"])
    beside = [weight({"bytes": [8e10] * 300, "seconds": one}) for one in (2e-3, 2.001e-3)]
    assert list(differences(*beside))
    assert weight(["a", "b", 2]) != weight(["b", "a", 2])
    assert weight([]) == 0.0


def test_like_rows_stand_in_a_table_and_are_read_as_they_were() -> None:
    """Names once, a line a row, at any depth; rows of other names, and a single one, stay as they are."""
    rows = [{"name": "a", "parts": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]}, {"name": "b", "parts": []}]
    value = {"rows": rows, "one": [{"x": 1}], "unlike": [{"x": 1}, {"y": 2}], "numbers": [1.5] * 60}
    table = tabled(value)
    assert table["rows"]["rows"][1] == ["b", []]
    assert table["one"] == value["one"]
    assert table["unlike"] == value["unlike"]
    written = readable(table)
    assert untabled(json.loads(written)) == value
    assert max(map(len, written.splitlines())) <= WIDTH + len('"rows": ')
    assert len(written.splitlines()) < 40


def test_what_is_measured_is_marked() -> None:
    """By key at any depth, and in printed lines by pattern; None stays."""
    assert without_measured({"a": [{"s": 1.0, "t": 2}], "s": None}, "s") == {
        "a": [{"s": "(measured)", "t": 2}],
        "s": None,
    }
    assert lines("took 0.25 s of 1.5 s  \n", r"took (\S+) s") == ["took (measured) s of 1.5 s"]
    assert lines("0.25 s", r"\d\.\d+") == ["(measured) s"]


def test_a_record_is_written_on_request_and_read_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written with the variable set; then the same value passes, and another fails, which leaves the record as it is."""
    path, text = tmp_path / "new" / "one.json", tmp_path / "more" / "one.txt"
    monkeypatch.setenv(REWRITE, "1")
    assert_recorded(path, "what it shows", {"a": [1.5, "x"]})
    assert_text(text, "staircase\n")
    monkeypatch.delenv(REWRITE)
    assert path.read_text().startswith('{"shows": "what it shows", "record": ')
    assert_recorded(path, "what it shows", {"a": [1.5, "x"]})
    assert_text(text, "staircase\n")
    with pytest.raises(AssertionError, match=r"record\.a\[0\]: 1\.5 was recorded, 2\.5 was found"):
        assert_recorded(path, "what it shows", {"a": [2.5, "x"]})
    with pytest.raises(AssertionError):
        assert_text(text, "other\n")
    assert json.loads(path.read_text())["record"] == {"a": [1.5, "x"]}


def test_every_record_has_its_test() -> None:
    """No record lies about unread: the file's name begins with that of a test of its module."""
    for folder in {path.parent for path in TESTS.rglob("golden/*/*.json")}:
        module = folder.parents[1] / f"test_{folder.name}.py"
        tests = tuple(re.findall(r"^def (test_\w+)", module.read_text(encoding="utf-8"), re.MULTILINE))
        for path in folder.glob("*.json"):
            assert f"test_{path.stem}".startswith(tests), path


def test_a_drawing_sees_what_is_drawn() -> None:
    """Data, colours, dashes, widths, sizes, order, bars, notes, limits, ticks, titles, frame, legend: each is seen."""

    def figure(**changed: Any) -> Figure:
        given: dict[str, Any] = {
            "size": 5.0, "y": 2.0, "color": "red", "dashes": "--", "width": 1.5, "bar": 3.0, "note": 0.5, "limit": 9.0,
            "tick": 1.0, "title": "title", "columns": 1, "label": "x",
            "mark": 4.0, "leader": 0.5, "words": 9.0, "bold": "normal", "edge": 0.5, "front": 3, "names": 8.0, "length": 2.0,
            "grid": 0.3, "frame": True, "beside": "left", "size of a dot": 5.0, "of the legend": 8.0,
        } | changed  # fmt: skip
        made = Figure(figsize=(given["size"], 3.0))
        axes = made.subplots()
        axes.plot(
            [0, 1],
            [1, given["y"]],
            color=given["color"],
            linestyle=given["dashes"],
            linewidth=given["width"],
            label="a",
            marker="o",
            markersize=given["mark"],
            zorder=given["front"],
        )
        axes.bar([0], [given["bar"]], label="b", edgecolor="black", linewidth=given["edge"])
        axes.scatter([0], [1], s=given["size of a dot"])
        leader = {"arrowstyle": "-", "linewidth": given["leader"]}
        words = {"fontsize": given["words"], "fontweight": given["bold"], "ha": given["beside"]}
        axes.annotate("note", (given["note"], 1), (3, 4), textcoords="offset points", arrowprops=leader, **words)
        axes.tick_params(labelsize=given["names"], length=given["length"])
        axes.grid(True, linewidth=given["grid"])
        axes.spines["top"].set_visible(given["frame"])
        axes.set(ylim=(0, given["limit"]), title=given["title"], xlabel=given["label"])
        axes.set_xticks([0, given["tick"]], ["no", "yes"])
        axes.legend(ncols=given["columns"], fontsize=given["of the legend"])
        return made

    first = plain(drawing(figure()))
    assert first == plain(drawing(figure()))
    changes: dict[str, Any] = {
        "size": 6.0, "y": 2.5, "color": "blue", "dashes": ":", "width": 2.0, "bar": 4.0, "note": 0.75, "limit": 8.0,
        "tick": 0.75, "title": "other", "columns": 2, "label": "y", "mark": 5.0, "leader": 0.6, "words": 8.0, "bold": "bold",
        "edge": 0.6, "front": 0.5, "names": 9.0, "length": 0.0, "grid": 0.4, "frame": False, "beside": "right",
        "size of a dot": 6.0, "of the legend": 9.0,
    }  # fmt: skip
    for name, value in changes.items():
        assert list(differences(first, plain(drawing(figure(**{name: value}))))), name
