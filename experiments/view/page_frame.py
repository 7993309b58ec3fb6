"""Page frame: one HTML file with the scripts, words and numbers that a browser needs, and no network."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from hardware_profiles import legible

TARGET = "drawing"
"""The part of a page in which Bokeh draws."""

COMPONENTS = "bokeh", "bokeh-widgets"
"""Of BokehJS, what a page without a table of its own needs."""


def framed(layout: Any, *, title: str, above: str, components: tuple[str, ...] = COMPONENTS) -> str:
    """The page of Bokeh models; the same text of models that say the same.

    above: HTML between the heading and the drawing
    """
    from bokeh.resources import Resources

    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(legible(title, 120)),
        scripts=Resources(mode="inline", components=[*components]).render(),
        above=above,
        target=TARGET,
        drawn=json.dumps(document(layout), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c"),
    )


def document(layout: Any) -> dict[str, Any]:
    """What BokehJS draws, as JSON; ids are numbered as they come."""
    from bokeh.embed import json_item

    return _renumbered(dict(json_item(layout, TARGET)))


def _renumbered(item: dict[str, Any]) -> dict[str, Any]:
    """The document with ids that do not depend on what this process has drawn before."""
    numbers: dict[str, str] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [walk(one) for one in value]
        if not isinstance(value, dict):
            return value
        found = {key: walk(one) for key, one in value.items() if key != "id"}
        if "id" in value:
            found["id"] = numbers.setdefault(value["id"], f"m{len(numbers)}")
        return found

    doc = walk(item["doc"])
    return {**item, "doc": doc, "root_id": numbers[item["root_id"]]}


def script(name: str) -> str:
    """The JavaScript that stands beside this file under a name."""
    return Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8")
