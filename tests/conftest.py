"""Shared fixtures: where the reference data lie, if they are here at all; how property tests draw their examples; known skips."""

from __future__ import annotations

import gc
import inspect
import os
import re
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from math import inf
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from experiments.terminal import output
from hardware_profiles import plugged_in
from simulator.compiled.garbage import no_garbage_collection
from tests.records import Recorded, assert_recorded

# Each worker of a run has a core, and a process of a test no more: threads of PyTorch and BLAS that wait for each other spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Compiled modules are kept even where Python is told to keep none: else both workers, and each process of a test, compile them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A default run draws the same examples every time, so that it passes or fails for everybody alike, also where a machine is busy.
# To search for new ones: `python -m pytest --hypothesis-profile random`; what that finds becomes an `@example` of its test.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _no_lines_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints does not depend on how busy the machine is: no line says that long work goes on."""
    monkeypatch.setattr(output, "EVERY", inf)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT is an interrupt here and in what is started, also where tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--known-skips FILE`."""
    parser.addoption(
        "--known-skips",
        type=Path,
        metavar="FILE",
        help="fail where a test is skipped for a reason that no line of FILE (a regular expression) matches",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting makes stays to the end: no garbage is looked for among it, neither meanwhile nor in a test."""
    with no_garbage_collection():
        found = yield
    gc.freeze()
    gc.set_threshold(5_000)  # tests make few cycles: garbage is looked for seven times less often than by default
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of planners come last, so that of two workers the second begins with the simulator: what experiments and planners
    have compiled when it comes to them it finds there. In whatever order folders were read, their modules come by name."""
    planners = Path(__file__).parent / "planners"
    items.sort(key=lambda item: (planners in item.path.parents, item.path))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every second worker reads folders from their ends: of two, each finds half of the modules rewritten for assertions."""
    report = yield
    worker = getattr(collector.config, "workerinput", {}).get("workerid", "gw0")
    if isinstance(collector, pytest.Dir) and int(worker.removeprefix("gw")) % 2:
        report.result.reverse()
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With `--known-skips`, a run with a skip that nobody listed has failed."""
    file: Path | None = session.config.getoption("--known-skips")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if file is None or reporter is None or hasattr(session.config, "workerinput"):
        return
    unknown = unknown_skips(
        file.read_text(encoding="utf-8"), [one.longrepr for one in reporter.stats.get("skipped", ())]
    )
    if unknown:
        reporter.write_line("")
        for line in unknown:
            reporter.write_line(f"a skip that {file} does not list: {line}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def unknown_skips(listed: str, skips: Iterable[object]) -> list[str]:
    """The skips (file, line, reason) whose reason no line of the list matches, each once; lines with `#` are remarks."""
    known = [re.compile(line) for line in listed.splitlines() if line.strip() and not line.startswith("#")]
    reasons = {str(skip[2]).removeprefix("Skipped: ") if isinstance(skip, tuple) else str(skip): skip for skip in skips}
    return [
        f"{skip[0]}:{skip[1]}: {reason}" if isinstance(skip, tuple) else reason
        for reason, skip in reasons.items()
        if not any(one.search(reason) for one in known)
    ]


def _find_shared_data() -> Path | None:
    for parent in Path(__file__).resolve().parents:
        candidate = parent / "shared" / "data"
        if candidate.is_dir():
            return candidate
    return None


@pytest.fixture
def no_plugins() -> Iterator[None]:
    """Plug-ins are read anew in this test, and again after it."""
    plugged_in.cache_clear()
    yield
    plugged_in.cache_clear()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of reference profiles and expected results; the test is skipped where it is absent."""
    found = _find_shared_data()
    if found is None:
        pytest.skip("shared/data is not beside this checkout: reference profiles and results are absent")
    return found


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Recorded:
    """Compares values by name with the record of the test: `golden/MODULE/TEST.json` beside it; its docstring says what they are.

    Nothing of the module's other tests stands in it, so that one changed figure is one changed record.
    """
    test: pytest.Function = request.node
    name = re.sub(r"[^\w.-]+", "-", test.name.removeprefix("test_")).strip("-")
    path = test.path.parent / "golden" / test.path.stem.removeprefix("test_") / f"{name}.json"
    return lambda **values: assert_recorded(path, inspect.getdoc(test.function) or "", values)
