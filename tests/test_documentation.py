"""The README and the documentation are true: their examples run, their commands parse, their links lead somewhere."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

import pipeplan
from experiments.cli import COMMANDS, main
from experiments.targets.names import TARGETS
from planners import PLANNERS
from simulator import SCHEDULES

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}

WORDS = 900
"""Of the README at most, code and tables counted."""

MINUTES = ("study ", "train ", "profile ", "--pareto", "--runner-ups", "--kernels")
"""Commands that take a minute and more, or an extra; these are parsed, and run where slow checks are."""

LINES_OF_OPS = "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n"


def name(page: Path) -> str:
    """A page as a test's parameter."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def files(text: str) -> dict[str, str]:
    """Files that a page asks its reader to save, by name."""
    return dict(re.findall(r"<!-- (?:file|recipe): (\S+\.\w+) -->\n```\w+\n(.*?)```", text, re.DOTALL))


def commands(text: str) -> list[list[str]]:
    """The words of every command line of pipeplan in a page's shell blocks."""
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
    # without what is for the shell: comments, and files that output goes to
    lines = [re.split(" [#>]", line)[0] for line in lines if line.startswith("pipeplan ")]
    return [shlex.split(line)[1:] for line in lines]


def python_of_its_own(page: Path) -> list[str]:
    """The Python blocks of a page that are not how the README's begin."""
    shown = "".join(blocks(TEXT[README], "python"))
    return [block for block in blocks(TEXT[page], "python") if not shown.startswith(block)]


def test_the_readme_is_a_tour() -> None:
    """At most 900 words, and a picture that is there."""
    assert len(TEXT[README].split()) <= WORDS
    assert re.search(r"!\[[^\]]*\]\(docs/comparison\.png\)", TEXT[README])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links and pictures of a page exist."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```|`[^`]*`", "", TEXT[page], flags=re.DOTALL))
    missing = [one for one in targets if "://" not in one and not (page.parent / one).exists()]
    assert not missing


def test_the_page_of_names_has_a_row_for_every_entry() -> None:
    """Every schedule, planner and option stands in a table that the hook of the documentation makes."""
    hook = runpy.run_path(str(ROOT / "docs" / "names_page.py"))
    page = hook["on_page_markdown"](TEXT[ROOT / "docs" / "reference" / "names.md"])
    assert "<!-- names" not in page
    written = set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))
    assert {*SCHEDULES, *PLANNERS, *hook["OPTIONS"]["training-options"], *pipeplan.names("stacks")} <= written


@pytest.mark.parametrize("page", [page for page in PAGES if commands(TEXT[page])], ids=name)
def test_commands_parse(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands and options that a page names exist: each line with --help added prints help."""
    for words in commands(TEXT[page]):
        assert words[0] in COMMANDS or words == ["--help"]
        with pytest.raises(SystemExit) as stop:
            main([*words, "--help"])
        assert stop.value.code == 0
        help_text = capsys.readouterr().out
        options = [word for word in words if word.startswith("--")]
        assert words[0] == "study" or all(option in help_text for option in options), words


@pytest.mark.parametrize("page", [page for page in PAGES if page == README or python_of_its_own(page)], ids=name)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page run as they stand, in their order, in one session."""
    monkeypatch.chdir(tmp_path)
    session: dict[str, object] = {}
    for block in blocks(TEXT[page], "python"):
        exec(compile(block, name(page), "exec"), session)


def test_the_face_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example in the face's docstring runs."""
    monkeypatch.chdir(tmp_path)
    example = re.findall(r"^    (.*)$", pipeplan.__doc__ or "", re.MULTILINE)
    assert example[0] == "import pipeplan as pp"
    exec(compile("\n".join(example), "<example>", "exec"), {})


def test_the_recipe_for_a_new_accelerator_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The two files and the two commands of the README give a comparison on the new accelerator."""
    monkeypatch.chdir(tmp_path)
    saved = files(TEXT[README])
    assert set(saved) == {"my-gpu.toml", "my-cluster.toml"}
    for file, text in saved.items():
        Path(file).write_text(text, encoding="utf-8")
    assert main(["check", "my-gpu.toml"]) == 0
    words = ["compare", "--cluster", "my-cluster.toml", "--workload", "resnet50"]
    assert words in commands(TEXT[README])
    assert main([*words, "--planner", "data-parallel", "--no-figures"]) == 0
    out = capsys.readouterr().out
    assert "my-gpu" in out
    assert "my-cluster, 8 GPUs" in out


def test_the_plan_by_hand_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan file of the how-to page passes `check` and replays."""
    monkeypatch.chdir(tmp_path)
    text = files(TEXT[ROOT / "docs" / "how-to" / "write-a-plan.md"])["mine.json"]
    Path("mine.json").write_text(text, encoding="utf-8")
    assert main(["check", "mine.json"]) == 0
    capsys.readouterr()
    assert main(["simulate", "--plan", "mine.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iteration_seconds"] > 0.0


def test_a_plan_is_written_for_every_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of the how-to page run in their order, with one at least for each target; reports apart."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "how-to" / "run-a-plan.md"
    lines = [words for words in commands(TEXT[page]) if "--report" not in words and words[0] != "compare"]
    assert {words[words.index("--to") + 1] for words in lines if "--to" in words} == set(TARGETS)
    assert all(f"| `{name}` |" in TEXT[page] for name in TARGETS)
    for words in lines:
        assert main(words) == 0, words
    assert "--pipeline-model-parallel-layout" in capsys.readouterr().out


def test_files_of_several_pages_are_the_same() -> None:
    """A file that two pages show has one text."""
    shown: dict[str, set[str]] = {}
    for text in TEXT.values():
        for file, content in files(text).items():
            shown.setdefault(file, set()).add(content)
    assert all(len(texts) == 1 for texts in shown.values())


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(TEXT[page])], ids=name)
def test_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a page run in their order beside the files that it shows; studies, training and profiling apart."""
    monkeypatch.chdir(tmp_path)
    saved = {file: content for text in TEXT.values() for file, content in files(text).items()}
    for file, content in {**saved, "schedule.csv": LINES_OF_OPS}.items():
        Path(file).write_text(content, encoding="utf-8")
    start = ["export", "--format", "plan", "--planner", "greedy", "--workload", "gpt2", "--cluster", "dgx-a100:1"]
    assert main([*start, "--batch", "32", "--out", "plan.json"]) == 0
    for words in commands(TEXT[page]):
        line = " ".join(words)
        if not any(one in f"{line} " for one in (*MINUTES, "graph.txt", "profile.json", "sailor-checkout", "--help")):
            assert main(words) == 0, line
