"""Kernels that usual commands run: each command that compiles them ends well."""

from __future__ import annotations

import pytest

from experiments import compile_kernels


@pytest.mark.slow
def test_every_command_ends_well() -> None:
    """As the build of a package runs them; one that fails would leave the compiling to its users."""
    compile_kernels.compile_all(studies=True)


def test_kernels_of_studies_are_compiled_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind all commands, of which the others wait for the first ones."""
    asked: list[str] = []
    monkeypatch.setattr(compile_kernels, "_run", lambda name, *words: asked.append(name))
    commands = [f"pipeplan {one}" for one in (*compile_kernels.FIRST, *compile_kernels.OTHERS)]
    for studies, more in ((False, []), (True, [*compile_kernels.STUDIES])):
        asked.clear()
        compile_kernels.compile_all(studies=studies)
        first = len(compile_kernels.FIRST)
        assert asked[:first] == commands[:first]
        assert sorted(asked[first : len(commands)]) == sorted(commands[first:])
        assert sorted(asked[len(commands) :]) == sorted(more)


def test_a_command_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its exit code and what it said."""
    monkeypatch.setattr(compile_kernels, "FIRST", ("list no-such-topic",))
    with pytest.raises(SystemExit, match=r"(?s)no-such-topic: exit code 2\n.*no-such-topic"):
        compile_kernels.compile_all()
