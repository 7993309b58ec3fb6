"""Settings of the experiments: what each module fixes by name, and what its command takes where nothing is said."""

from __future__ import annotations

import argparse
import ast
import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import COMMANDS
from tests.records import Recorded

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "experiments").rglob("*.py"))
    if path.stem != "__init__"
}
NEED_TORCH = {"experiments.layer_profiler", "experiments.profiled_models"}


def constants(module: str) -> dict[str, Any]:
    """What a module assigns to names in capitals, but for names of types."""
    targets = [
        target
        for node in MODULES[module].body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return {name: getattr(import_module(module), name) for name in names if name.strip("_").isupper()}


def defaults(module: str) -> dict[str, Any]:
    """Function or class of a module -> parameter -> what it is where nothing is given."""
    loaded = import_module(module)
    made = [
        getattr(loaded, node.name) for node in MODULES[module].body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    return {
        one.__name__: found
        for one in made
        if (
            found := {
                name: given.default for name, given in _parameters(one).items() if given.default is not given.empty
            }
        )
    }


def _parameters(made: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(made).parameters)
    except ValueError:  # a class without a signature
        return {}


@pytest.mark.parametrize("module", MODULES)
def test_module(module: str, recorded: Recorded) -> None:
    """What the module fixes by name (published figures, sweeps, sizes, tolerances, colours), and what its functions take where
    nothing is given."""
    if module in NEED_TORCH and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed (extra pipeplan[torch])")
    fixed, taken = constants(module), defaults(module)
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


@pytest.mark.parametrize(
    "module", [name for name, tree in MODULES.items() if any(getattr(node, "name", "") == "main" for node in tree.body)]
)
def test_options_of_experiments(module: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line's options and their defaults."""

    def stop(parser: argparse.ArgumentParser, *given: Any) -> None:
        raise _Parsed(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    main = import_module(module).main
    with pytest.raises(_Parsed) as stopped:
        main(*([[]] if inspect.signature(main).parameters else []))
    recorded(**options(stopped.value.args[0]))


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_commands(command: str, recorded: Recorded) -> None:
    """The command's options and their defaults."""
    parser = argparse.ArgumentParser()
    import_module(f"experiments.commands.{command}").add_arguments(parser)
    groups = [[one.dest for one in group._group_actions] for group in parser._mutually_exclusive_groups]
    recorded(options=options(parser), one_of=groups)
