"""Settings of the experiments: what each module fixes by name, and what its command takes where nothing is said."""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from experiments.cli import COMMANDS, main
from experiments.studies.catalogue import STUDIES
from experiments.studies.study_harness import run_study
from tests.records import Recorded
from tests.settings import constants, defaults, modules

MODULES = modules("experiments")
NEED_TORCH = {"experiments.profiling.layer_profiler", "experiments.profiling.profiled_models"}


@pytest.mark.parametrize("module", MODULES)
def test_module(module: str, recorded: Recorded) -> None:
    """What the module fixes by name (published figures, sweeps, sizes, tolerances, colours), and what its functions take where
    nothing is given."""
    if module in NEED_TORCH and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed (extra pipeplan[torch])")
    fixed, taken = constants(module, MODULES[module]), defaults(module, MODULES[module])
    if fixed or taken:
        recorded(constants=fixed, defaults=taken)


class _Parsed(Exception):
    """Raised in place of parsing, with the parser."""


def options(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Option -> what it takes and its default, but for the help."""
    return {
        "/".join(action.option_strings) or action.dest: {
            "default": action.default,
            "type": None if action.type is None else getattr(action.type, "__name__", str(action.type)),
            "count": action.nargs,
            "required": action.required,
            "choices": action.choices,
        }
        for action in parser._actions
        if action.dest != "help"
    }


@pytest.mark.parametrize("door", ["pipeplan", *STUDIES])
def test_options_of_experiments(door: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line's and every study's options and their defaults."""

    def stop(parser: argparse.ArgumentParser, *given: Any) -> None:
        raise _Parsed(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(_Parsed) as stopped:
        main([]) if door == "pipeplan" else run_study(door, [])
    recorded(**options(stopped.value.args[0]))


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_commands(command: str, recorded: Recorded) -> None:
    """The command's options and their defaults."""
    parser = argparse.ArgumentParser()
    import_module(f"experiments.commands.{command}_command").add_arguments(parser)
    groups = [[one.dest for one in group._group_actions] for group in parser._mutually_exclusive_groups]
    recorded(options=options(parser), one_of=groups)
