"""Input sets: the public files that studies read and this package does not hold: what is in them, where, under which licence."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path

from experiments.terminal.output import UsageError


@dataclass(frozen=True, slots=True)
class InputSet:
    """Files that a study is given by an option.

    holds: what they are
    files: names of those that it needs; more: those without which it runs, and tells less
    forms: where a folder has one, as patterns of paths with `{name}`; the first that is there counts
    repository, commit, licence: where it is published, what of it the study's figures are of, and how; "" is not stated
    environment: folders inside that variables are set to
    single: the option takes the file, and not its folder
    """

    holds: str
    files: tuple[str, ...]
    more: tuple[str, ...] = ()
    forms: tuple[str, ...] = ("{name}",)
    repository: str = ""
    commit: str = ""
    licence: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    single: bool = False

    def find(self, folder: Path, name: str) -> Path | None:
        """The file of a name in a folder; None where it is not there."""
        for form in self.forms:
            try:
                paths = sorted(folder.glob(form.format(name=escape(name))))
            except (OSError, ValueError, NotImplementedError):  # no name that a file inside can have
                paths = []
            for path in paths:
                if path.is_file():
                    return path
        return None

    def path(self, folder: Path, name: str) -> Path:
        """The file of a name in a folder, or where it is missed."""
        return self.find(folder, name) or folder / self.forms[0].format(name=name)


INPUT_SETS: dict[str, InputSet] = {
    "dnn-partitioning": InputSet(
        "graphs of operators and layers with seconds and bytes, and the devices that they are placed on",
        (
            *(
                f"LayerGraphs/{name}_{way}"
                for name in ("bert24", "gnmt", "resnet50")
                for way in ("inference", "training")
            ),
            *(
                f"OperatorGraphs/{name}_{way}"
                for name in ("bert_l-3", "bert_l-6", "resnet50")
                for way in ("inference", "training")
            ),
            "OperatorGraphs/bert_l-12_inference",
            "OperatorGraphs/bert_L-12_training",
        ),
        forms=("throughput-inputs/{name}.json", "{name}.json"),
        repository="https://github.com/msr-fiddle/dnn-partitioning",
        commit="b207b6a",
        licence="MIT",
    ),
    "measured-tables": InputSet(
        "tables of measured iterations, memory, kernels and collectives (study truth --columns tells their columns)",
        ("tables",),
        forms=("*.csv",),
        repository="each row names its own (column source)",
        licence="each row names its own (column licence)",
        environment={"PIPEPLAN_PROFILES": "hardware"},
    ),
    "pipedream-optimizer-runs": InputSet(
        "recorded runs of PipeDream's optimizer, a JSON object a line", ("pipedream_optimizer_runs.jsonl",), single=True
    ),
    "pipedream-profiles": InputSet(
        "layers with the milliseconds of a V100, as PipeDream's profiler writes them (graph.txt)",
        ("vgg16", "alexnet", "resnet50", "gnmt", "gnmt_large"),
        ("inception_v3",),
        forms=("{name}.txt", "profiler/*/profiles/{name}/graph.txt"),
        repository="https://github.com/msr-fiddle/pipedream",
        licence="MIT",
    ),
    "piper": InputSet(
        "networks of layers with variants, their seconds and bytes",
        ("bert32a100",),
        forms=("inputs/{name}.json", "{name}.json"),
        repository="https://github.com/msr-fiddle/piper",
        commit="d7fc8cf",
        licence="MIT",
    ),
    "sailor": InputSet(
        "seconds of OPT-350M's layers by GPU, sizes of layers, rates between groups of GPUs",
        (
            "sailor/Planner/simulations/profiles_tmp.json",
            "sailor/Planner/llm_info.json",
            "sailor/providers/multizone_bandwidths_het.json",
        ),
        repository="https://github.com/eth-easl/sailor",
        commit="cf2c8e3",
        licence="MIT",
    ),
    "schedule-cases": InputSet(
        "schedules with what an independent replay of each found, a JSON list", ("schedule_cases.json",), single=True
    ),
    "schedule-optima": InputSet(
        "small schedule problems with their best makespan, a JSON list", ("schedule_optima.json",), single=True
    ),
}
"""By name."""

PIPEDREAM_PROFILES = INPUT_SETS["pipedream-profiles"]


def lacking(option: str, name: str) -> UsageError:
    """What a study says that was not given an input."""
    published = INPUT_SETS[name].repository
    where = f" ({published})" if published.startswith("https:") else ""
    return UsageError(f"{option}: is missing: inputs {name}{where}; pipeplan data {name} tells which files these are")


@dataclass(frozen=True, slots=True)
class FoundInputs:
    """What of an input set a folder has.

    files: by name, those of `more` too; None: not there
    commit: of a git checkout, whole; licence: file of the folder that tells it
    """

    wanted: InputSet
    folder: Path
    files: Mapping[str, Path | None]
    commit: str | None
    licence: Path | None

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the files that are needed and not there."""
        return tuple(name for name in self.wanted.files if self.files[name] is None)

    @property
    def same_commit(self) -> bool | None:
        """Whether the checkout is at the commit of the study's figures; None where that is not known of either."""
        return self.commit.startswith(self.wanted.commit) if self.commit and self.wanted.commit else None

    @property
    def value(self) -> Path:
        """What the study's option takes."""
        return (self.wanted.single and self.files[self.wanted.files[0]]) or self.folder

    def environment(self) -> Iterator[str]:
        """The variables that the study is run with, of folders that are there."""
        for variable, inside in self.wanted.environment.items():
            if (self.folder / inside).is_dir():
                yield f"{variable}={self.folder / inside}"


def look_in(folder: Path, name: str) -> FoundInputs:
    """What of an input set a folder has."""
    wanted = INPUT_SETS[name]
    files = {one: wanted.find(folder, one) for one in (*wanted.files, *wanted.more)}
    licences = sorted(path for path in folder.glob("LICEN[CS]E*") if path.is_file())
    return FoundInputs(wanted, folder, files, _commit(folder), licences[0] if licences else None)


def _commit(folder: Path) -> str | None:
    """The commit of a git checkout; None for a folder that is none, or where git cannot tell."""
    if not (folder / ".git").exists():
        return None
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    words = ["git", "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, env=environment)
    except FileNotFoundError:
        return None
    return told.stdout.strip() or None
