"""Contract of a study: what its entry and its help owe; the tests of a plug-in call `check_study` with its name."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout

from experiments.cli import main
from experiments.studies.catalogue import studies
from experiments.studies.study_harness import run_study


def check_study(name: str) -> None:
    """Assert that a study is entered with a question and its minutes, and that its help says these and its options.

    The help is the same by its name and by its module; --quick is there where the entry says how long it takes, --out where it
    draws, and --json always. Raises AssertionError for what is not kept.
    """
    known = studies()
    assert name in known, f"study {name!r} is not entered; choices: {', '.join(known)}"
    study = known[name]
    by_name, by_module = _help(lambda: main(["study", name, "--help"])), _help(lambda: run_study(name, ["--help"]))
    assert by_name.split("\n\n", 1)[1] == by_module.split("\n\n", 1)[1], "the helps of its name and its module differ"
    assert by_name.startswith(f"usage: pipeplan study {name} ")
    assert by_module.startswith(f"usage: python -m {study.module} ")
    said, usage = " ".join(by_name.split()), by_name.split("\n\n")[0]
    for words in (study.question, f"about {study.minutes:g} minutes", "does not resume", "--json"):
        assert words in said, f"its help does not say {words!r}"
    assert ("--quick" in usage) == (study.quick_minutes is not None), "--quick goes with the minutes that it takes"
    assert study.minutes < 1 or study.quick_minutes is not None, "what takes a minute has a --quick"
    assert not study.figures or "--out" in said, "what draws figures has an --out"


def _help(call: Callable[[], object]) -> str:
    """What a call prints that ends with exit code 0."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        try:
            call()
        except SystemExit as stop:
            assert stop.code == 0, f"its help ends with exit code {stop.code}"
        else:
            raise AssertionError("its help does not end the program")
    return printed.getvalue()
