"""Hook of mkdocs: tables of what can be named, made of the registries when the documentation is built."""

from __future__ import annotations

import re
from collections.abc import Iterable

from experiments.commands.list_command import TOPICS, rows_of
from hardware_profiles import declared_options
from planners import ASKED, PLANNER_OPTIONS
from simulator import TrainingOptions

OPTIONS = {
    "training-options": declared_options(TrainingOptions, 0),
    "search-options": {**ASKED, **PLANNER_OPTIONS},
}


def on_page_markdown(markdown: str, **_: object) -> str:
    """A page with a table in the place of each mark, `<!-- names: TOPIC -->`; KeyError for an unknown topic."""
    return re.sub(r"<!-- names: (\S+) -->", lambda found: names_table(found[1]), markdown)


def names_table(topic: str) -> str:
    """The table of a topic of `pipeplan list`, or of options, in Markdown."""
    if topic in OPTIONS:
        return _table(("option", "what it says"), ((f"`{one}`", of.words) for one, of in OPTIONS[topic].items()))
    headings = [heading.replace("\n", " ") for heading in TOPICS[topic][0].values()]
    return _table(headings, ((f"`{name}`", *facts) for _, (name, *facts) in rows_of(topic)))


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headings = tuple(headings)
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
