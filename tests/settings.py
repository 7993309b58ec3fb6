"""Settings: what the modules of a floor fix by name, and what their functions take where nothing is given."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def modules(floor: str) -> dict[str, ast.Module]:
    """Module -> its text, parsed."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / floor).rglob("*.py"))
        if path.stem != "__init__"
    }


def constants(module: str, tree: ast.Module) -> dict[str, Any]:
    """What a module assigns to names in capitals, but for names of types."""
    targets = [
        target
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return {name: getattr(import_module(module), name) for name in names if name.strip("_").isupper()}


def defaults(module: str, tree: ast.Module) -> dict[str, Any]:
    """Function or class of a module -> parameter -> what it is where nothing is given."""
    loaded = import_module(module)
    made = [getattr(loaded, node.name) for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
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
