"""Tests of the architecture: imports go down, no circles, one door to each library, faces between floors."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from hardware_profiles import percent

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("hardware_profiles", "simulator", "planners", "experiments")
"""From the ground up."""

ROOMS = {
    "simulator": (
        *(
            "options",
            "compiled",
            "workloads",
            "schedules",
            "plans",
            "costs",
            "lowering",
            "engines",
            "memory",
            "results",
        ),
    ),
    "experiments": (
        *(
            "terminal",
            "targets",
            "compare",
            "report",
            "view",
            "sweep",
            "profiling",
            "training",
            "calibration",
            "studies",
            "commands",
            "unequal_sizes",
            "benchmarks",
        ),
        *("bapipe_explore", "cost_model", "dnn_partitioning", "pipedream_tables", "piper", "schedule_search", "truth"),
        *("published_layouts", "sailor", "modern_schedules", "network_rules", "time_to_accuracy", "umpipe", "xpipe"),
        "fpga_truth",
    ),
    "planners": (
        *(
            "search",
            "estimate",
            "partitioning",
            "pipedream",
            "straight",
            "bapipe",
            "xpipe",
            "unequal",
            "scheduler",
            "modern",
        ),
        *("large", "mixed", "joint"),
    ),
}
"""Folders of a floor, from the ground up; modules beside them stand above them all."""

DOORS = {
    "simulator.engines.reference",
    "simulator.engines.event_loop",
    "simulator.engines.recurrence",
    "simulator.results.figures",
    "simulator.results.gantt_plots",
    "simulator.results.memory_plots",
    "simulator.results.traces",
}
"""Modules that other floors enter by name, for what they load: SimPy, numba, matplotlib."""

OWNERS: dict[str, tuple[str, ...]] = {
    "simpy": ("simulator.engines.reference", "simulator.engines.fair_links", "simulator.engines.failures"),
    "networkx": ("hardware_profiles.topology", "experiments.report.cluster_plots"),
}
"""Which modules may import a library; `.*` stands for the modules below."""


@dataclass(frozen=True)
class Import:
    """One import: where it stands, what it names, whether it runs when the module is loaded."""

    module: str
    target: str
    names: tuple[str, ...]
    line: int
    typing_only: bool
    deferred: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def module_files() -> dict[str, Path]:
    """Every module of the four floors, by dotted name."""
    found = {}
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = module_files()


@functools.cache
def tree(module: str) -> ast.Module:
    """What stands in a module; tests share it."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements (and handlers and cases) directly inside one; imports stand in no expression."""
    for blocks in ("body", "handlers", "cases", "orelse", "finalbody"):
        found = getattr(node, blocks, None)
        if isinstance(found, list):
            yield from found


def imports_of(module: str) -> Iterator[Import]:
    """The imports of a module, those under TYPE_CHECKING and inside functions marked as such; a face's stub loads later too."""

    def walk(node: ast.AST, typing_only: bool, deferred: bool) -> Iterator[Import]:
        for child in statements(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, (), child.lineno, typing_only, deferred)
            elif isinstance(child, ast.ImportFrom):
                names = tuple(alias.name for alias in child.names)
                target = ".".join(filter(None, (module if child.level else "", child.module)))
                yield Import(module, target, names, child.lineno, typing_only, deferred)
            elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
                for part in child.body:
                    yield from walk(ast.Module([part], []), True, deferred)
                for part in child.orelse:
                    yield from walk(ast.Module([part], []), typing_only, deferred)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from walk(child, typing_only, deferred or inside)

    path = MODULES[module]
    yield from walk(tree(module), False, False)
    if path.with_suffix(".pyi").exists():
        yield from walk(ast.parse(path.with_suffix(".pyi").read_text(encoding="utf-8")), False, True)


@functools.cache
def imports() -> tuple[Import, ...]:
    """Every import of the four floors."""
    return tuple(one for module in MODULES for one in imports_of(module))


def floor(module: str) -> str:
    """The floor of a module."""
    return module.partition(".")[0]


def modules_named(one: Import) -> Iterator[str]:
    """Modules of ours that an import loads: the target, and names of it that are modules."""
    if one.target in MODULES:
        submodules = [f"{one.target}.{name}" for name in one.names if f"{one.target}.{name}" in MODULES]
        if submodules:
            yield from submodules
        if not submodules or len(submodules) < len(one.names):
            yield one.target


def test_only_faces_import_relatively() -> None:
    """A module is named in full; the stub of a face names the modules beside it."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}
    assert not [name for name, text in texts.items() if re.search(r"^\s*from \.", text, re.MULTILINE)]


def test_the_floors_are_there() -> None:
    """All four, each a package with a face."""
    for name in FLOORS:
        assert name in MODULES


def test_no_import_goes_up() -> None:
    """hardware_profiles < simulator < planners < experiments, annotations included."""
    up = [
        str(one)
        for one in imports()
        if floor(one.target) in FLOORS and FLOORS.index(floor(one.target)) > FLOORS.index(floor(one.module))
    ]
    assert not up


@pytest.mark.parametrize("name", ROOMS)
def test_no_import_goes_up_within_a_floor(name: str) -> None:
    """Rooms import from themselves and from rooms below; a module beside them, from every room."""
    order = {room: height for height, room in enumerate(ROOMS[name])}
    folders = {path.parent.name for path in (ROOT / name).glob("*/*.py")}
    assert folders == set(order)

    def height(module: str) -> int:
        parts = module.split(".")
        return order.get(parts[1], len(order)) if len(parts) > 1 else -1

    up = [
        str(one)
        for one in imports()
        if floor(one.module) == floor(one.target) == name
        and one.module != name
        and height(one.target) > height(one.module)
    ]
    assert not up


def test_imports_name_modules_that_exist() -> None:
    """Every import from a floor of ours finds its module."""
    lost = [str(one) for one in imports() if floor(one.target) in FLOORS and one.target not in MODULES]
    assert not lost


@pytest.mark.parametrize("name", FLOORS)
def test_no_circle_within_a_floor(name: str) -> None:
    """Modules of a floor import each other in one direction only; imports inside functions count, annotations do not."""
    graph: dict[str, set[str]] = {module: set() for module in MODULES if floor(module) == name}
    for one in imports():
        if one.module in graph and not one.typing_only:
            graph[one.module].update(target for target in modules_named(one) if target in graph)
    done: set[str] = set()
    circles = []

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            circles.append(" -> ".join((*path[path.index(module) :], module)))
        elif module not in done:
            for target in sorted(graph[module]):
                visit(target, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())
    assert not circles


@pytest.mark.parametrize("library", OWNERS)
def test_one_door_to_a_library(library: str) -> None:
    """A library is imported by its owners only; annotations do not load it."""

    def owns(module: str) -> bool:
        return any(module == o or (o.endswith(".*") and module.startswith(o[:-1])) for o in OWNERS[library])

    doors = [
        str(one) for one in imports() if floor(one.target) == library and not one.typing_only and not owns(one.module)
    ]
    assert not doors


def test_kernels_are_compiled_in_one_way() -> None:
    """Only `simulator.compiled.numba_kernels` calls numba's `njit`: which knows what to do without a place on disk."""
    doors = [str(one) for one in imports() if one.target == "numba" and {"njit", "jit"} & set(one.names)]
    assert all(door.startswith("simulator.compiled.numba_kernels:") for door in doors)
    assert doors


def test_matplotlib_is_for_plots() -> None:
    """Only modules called plots, or something of plots, draw; one module owns what all figures share."""
    painters = [
        str(one)
        for one in imports()
        if floor(one.target) == "matplotlib"
        and not one.typing_only
        and not one.module.endswith("plots")
        and one.module != "simulator.results.figures"
    ]
    assert not painters


def test_every_figure_is_a_picture() -> None:
    """Which shows names as they are, and itself in a notebook; a bare figure, or one of pyplot's, does neither."""
    maker = re.compile(r"(?<![\w.])(Figure|(plt|pyplot)\.(figure|subplots))\(")
    assert not [name for name, path in MODULES.items() if maker.search(path.read_text(encoding="utf-8"))]


def test_shares_are_written_by_one_helper() -> None:
    """`53.2 %`, with a space: no format of Python's own, which has none, and no sum of its own beside `percent`."""
    own = re.compile(r":[+]?[.0-9]*%\}|\{100(?:\.0)? \* [^{}]*\} %")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for floor in FLOORS
        for path in sorted((ROOT / floor).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if own.search(line)
    ]
    assert not found
    assert percent(0.5321) == "53.2 %"
    assert percent(0.1, "+.0f") == "+10 %"


def test_modules_have_names_of_their_own() -> None:
    """No two modules are called the same, but for `testing`, which each floor offers to authors of plug-ins."""
    names = [
        name.rpartition(".")[2] for name, path in MODULES.items() if path.name not in ("__init__.py", "__main__.py")
    ]
    assert {name for name in names if names.count(name) > 1} == {"testing"}


def test_classes_have_names_of_their_own() -> None:
    """No two classes that are not private are called the same."""
    names = [
        one.name
        for module in MODULES
        for one in ast.walk(tree(module))
        if isinstance(one, ast.ClassDef) and not one.name.startswith("_")
    ]
    assert not {name for name in names if names.count(name) > 1}


def test_floors_meet_at_their_faces() -> None:
    """Between floors imports name a face (a floor, or a package in it): `from simulator import X`, not X's module."""
    faces = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    inside = []
    for one in imports():
        if floor(one.target) in FLOORS and floor(one.target) != floor(one.module):
            named = {one.target} if one.target not in FLOORS else set(modules_named(one))
            inside += [f"{one} ({name})" for name in sorted(named - faces - DOORS)]
    assert not inside


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if path.with_suffix(".pyi").exists()])
def test_faces_keep_their_promises(name: str) -> None:
    """Every public name of a face can be had from it, and is named once, as itself, in its stub."""
    face, stub = import_module(name), MODULES[name].with_suffix(".pyi").read_text(encoding="utf-8")
    aliases = [alias for node in ast.walk(ast.parse(stub)) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(alias.name for alias in aliases) == sorted(face.__all__) == sorted(set(face.__all__))
    assert all(alias.name == alias.asname for alias in aliases)
    for public in face.__all__:
        assert getattr(face, public) is not None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = face.nothing_of_the_kind


def test_faces_load_nothing_heavy() -> None:
    """Importing `pipeplan` and the four faces loads none of the libraries that make start-up slow."""
    heavy = ("numba", "pandas", "matplotlib", "networkx", "simpy", "scipy", "torch", "sklearn", "hypothesis", "rich")
    code = f"import sys, pipeplan, {', '.join(FLOORS)}; print([name for name in {heavy!r} if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert printed.strip() == "[]"


def test_modules_say_what_they_are() -> None:
    """The first line of every module is its docstring: one noun and what it is, ending in a full stop or a colon's sentence."""
    assert not [name for name in MODULES if not ast.get_docstring(tree(name))]
