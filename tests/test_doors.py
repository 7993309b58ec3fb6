"""Doors: every number of every file has two ends; what one file says of another is never what stands in it."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from experiments.cli import main
from experiments.terminal.output import InputError
from hardware_profiles import (
    FileError,
    ProfileError,
    json_value,
    load_accelerator,
    load_cluster,
    real_number,
    whole_number,
)
from planners import Evaluator, Request, search_on_numbers
from simulator import (
    Layer,
    Llama,
    OpMemory,
    OpSeconds,
    Plan,
    PlanFile,
    PlanFileError,
    Problem,
    Stage,
    Workload,
    named_schedule,
    replay_schedule,
    simulate,
    workload_from_spec,
)
from simulator.workloads.transformer import Experts

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("hardware_profiles", "simulator", "planners", "experiments")


# ---- ends ------------------------------------------------------------------------------------------------------------


def forms() -> Iterator[type[msgspec.Struct]]:
    """Every table that a file may have; not what values made in Python are compared with, which no module defines."""
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            if "msgspec.Struct" in (text := path.read_text(encoding="utf-8")) or "_Table" in text:
                import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    waiting = list(msgspec.Struct.__subclasses__())
    while waiting:
        form = waiting.pop()
        waiting += form.__subclasses__()
        if form.__module__.split(".")[0] in FLOORS and hasattr(import_module(form.__module__), form.__name__):
            yield form


def open_ends(type_: inspect.Type, where: str, *, ranged: bool = False) -> Iterator[str]:
    """Numbers below a type that lack an end."""
    if isinstance(type_, inspect.Metadata):
        yield from open_ends(type_.type, where, ranged=ranged or "range" in (type_.extra or {}))
    elif isinstance(type_, (inspect.IntType, inspect.FloatType)):
        least, most = (type_.ge, type_.gt), (type_.le, type_.lt)
        if not ranged and (least == (None, None) or most == (None, None)):
            yield f"{where}: {type(type_).__name__}"
    elif isinstance(type_, inspect.UnionType):
        for one in type_.types:
            yield from open_ends(one, where, ranged=ranged)
    elif isinstance(type_, inspect.DictType):
        for one in (type_.key_type, type_.value_type):
            yield from open_ends(one, f"{where}[]", ranged=ranged)
    elif isinstance(type_, inspect.TupleType):
        for one in type_.item_types:
            yield from open_ends(one, f"{where}[]", ranged=ranged)
    elif isinstance(type_, inspect.CollectionType):
        yield from open_ends(type_.item_type, f"{where}[]", ranged=ranged)


def test_every_number_of_every_file_has_two_ends() -> None:
    """Of TOML, JSON, JSON lines and CSV: an upper and a lower one, in the table's own type."""
    found = list(forms())
    assert len(found) > 50
    lacking = [
        line
        for form in found
        for field in inspect.type_info(form).fields  # type: ignore[attr-defined]
        for line in open_ends(field.type, f"{form.__module__}.{form.__name__}.{field.name}")
    ]
    assert lacking == []


NO_WHOLE = (
    "",
    "x",
    "1_000",
    "\u0663",
    "1e3",
    "1.0",
    "0x10",
    "--1",
    "1 2",
    "\u00b2",
    "9" * 400,
    "9" * 5000,
    "1" + "0" * 40,
)
NO_REAL = ("", "x", "1_000.5", "\u0663", "nan", "inf", "-inf", "Infinity", "1e", "0x1p3", "1,5", "1e400", "9" * 400)


def test_numbers_are_written_in_digits() -> None:
    """No separators, no digits of other scripts, nothing infinite; zeros before a number and a sign are well."""
    for text in NO_WHOLE:
        with pytest.raises(ValueError, match="must be a whole number"):
            whole_number(text, -(10**20), 10**20)
    for digits in (3, 400, 401, 5000):
        for sign, end in (("", "most 9"), ("+", "most 9"), ("-", "least -9")):
            with pytest.raises(ValueError, match=f"of at {end}$"):
                whole_number(sign + "9" * digits, -9, 9)
    for text in NO_REAL:
        with pytest.raises(ValueError, match="number"):
            real_number(text, -1e300, 1e300)
    assert [whole_number(text, -9, 9) for text in ("007", "+3", "-0", " 5 ")] == [7, 3, 0, 5]
    assert [real_number(text, -9, 9) for text in ("1.", ".5", "-1e-3", "+2")] == [1.0, 0.5, -1e-3, 2.0]
    assert str(real_number("-0.0")) == "0.0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1,\n "b": {"x": 1, "y": 2,\n "x": 3}}', "f:3: key 'x' stands twice in a table"),
        ('{"x": 1,\n "x": 2,\n "x": 3}', "f:2: key 'x' stands twice in a table"),
        ('{\n"a": 1, "\\u0061": 3}', "f:2: key 'a' stands twice in a table"),
        ("[1,\nNaN]", "f:2: not JSON: NaN is no number"),
        ("[1,\n-Infinity]", "f:2: not JSON: -Infinity is no number"),
        ("[\n" + "9" * 5000 + "]", "f:2: not usable JSON: a whole number has too many digits"),
        ("[" * 501 + "]" * 501, "f:1: not usable JSON: lists or tables are nested too deeply"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "f:1: not usable JSON: lists or tables are nested too deeply"),
        ('["\\ud800"]', "f:1: not JSON: Input data was truncated"),
        ('{"a": 1\n,}', "f:2: not JSON"),
    ],
    ids=lambda one: one[:12],
)
def test_json_says_each_key_once_and_numbers_alone(text: str, said: str) -> None:
    """One line that says where; a pair of halves of a character is one."""
    with pytest.raises(InputError) as caught:
        json_value(text, "f", InputError)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert json_value("[" * 500 + "]" * 500, "f", InputError)
    assert json_value(b'{"a": "\\ud83d\\ude00", "b": [1, 2.5, -0]}', "f", InputError)["a"] == "\U0001f600"


# ---- files that files name -----------------------------------------------------------------------------------------


def secret(rng: random.Random) -> str:
    """A word that stands nowhere else."""
    return "s" + "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(11))


def contents(word: str, number: int) -> dict[str, str]:
    """Files that nobody is meant to read, by suffix and form; the word and the number stand in each."""
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 32}
    gpu = 'kind = "gpu"\nname = "g"\nmemory_gib = 16\nmemory_bandwidth_gb_per_s = 900\n[compute]\ntflops_fp32 = 15\n'
    node = "forward_compute_time=1, backward_compute_time=1, activation_size=4, parameter_size=4"
    return {
        "shadow": f"root:${word}${number}:20228:0:99999:7:::\n",
        "key.toml": f'{word} = "{word}"\n',
        "keys.toml": f"[{word}]\nx = {number}\n[{word}]\n",
        "string.toml": f'name = "{word}\n',
        "kind.toml": f'kind = "{word}"\n',
        "unknown.toml": gpu + f"{word} = {number}\n",
        "value.toml": gpu.replace("15", f'"{word}"'),
        "range.toml": gpu.replace("= 15", f"= {number}"),
        "usual.toml": gpu.replace("= 15", f"= {number % 10**4 + 1000}"),
        "name.toml": gpu.replace('"g"', f'"{word} {number}"'),
        "like.toml": gpu.replace("[compute]", f'like = "{word}"\n[compute]'),
        "path.toml": gpu.replace("[compute]", f'like = "/{word}/{number}.toml"\n[compute]'),
        "cluster.toml": f'name = "c"\n[[servers]]\naccelerator = "{word}"\n',
        "nodes.toml": f'name = "c"\n[[devices]]\nname = "{word}"\naccelerator = "p40"\n' * 2,
        "text.json": f"{word} {number}",
        "list.json": json.dumps([word, number]),
        "type.json": json.dumps({"model_type": word}),
        "key.json": json.dumps({**config, "n_layer": word}),
        "twice.json": f'{{"{word}": 1, "{word}": {number}}}',
        "number.json": json.dumps({**config, "n_layer": number}),
        "fit.json": json.dumps({**config, "n_positions": 10, "n_head": 3, "n_embd": number % 1000 * 3 + 1}),
        "format.json": json.dumps({"format": word}),
        "profile.json": json.dumps({"format": "pipeplan-profile-1", word: number}),
        "line.txt": f"{word} {number}\n",
        "edge.txt": f"\tnode1 -- {word}\n",
        "node.txt": f"{word} -- Linear -- {node}\n",
        "item.txt": f"node1 -- Linear -- {word}={number}\n",
        "amount.txt": f"node1 -- Linear -- {node.replace('=1,', f'={word},')}\n",
        "negative.txt": f"node1 -- Linear -- {node.replace('=1,', f'=-{number},')}\n",
        "size.txt": f"node1 -- Linear(in_features=1, out_features={number}0000000) -- {node}\n",
        "double.txt": f"node{number} -- ReLU -- {node}\n" * 2,
    }


def references(path: Path, folder: Path) -> dict[Path, Callable[[Path], Any]]:
    """Files that name the path, and how each is read."""
    problem = {"workload": "chain:2", "cluster": "pipedream-a", "batch": 4}
    gpu = 'kind = "gpu"\nname = "g"\nmemory_gib = 16\nmemory_bandwidth_gb_per_s = 900\n[compute]\ntflops_fp32 = 15\n'
    named = {
        "workload": {"workload": str(path)},
        "source": {"workload": {"name": str(path), "sequence": 99}},
        "measured": {"workload": {"profile": str(path)}},
        "described": {"workload": f"described:{path}"},
        "machine": {"cluster": str(path)},
    }
    found: dict[Path, Callable[[Path], Any]] = {}
    for name, said in named.items():
        file = folder / f"{name}.problem.json"
        file.write_text(json.dumps({"format": "pipeplan-plan-2", "problem": {**problem, **said}}), encoding="utf-8")
        found[file] = PlanFile.read
    cluster = folder / "outer.cluster.toml"
    cluster.write_text(f'name = "o"\n[[servers]]\naccelerator = "{path}"\n', encoding="utf-8")
    found[cluster] = load_cluster
    (folder / "outer.gpu.toml").write_text(gpu.replace("[compute]", f'like = "{path}"\n[compute]'), encoding="utf-8")
    chained = folder / "chained.cluster.toml"
    chained.write_text('name = "o"\n[[servers]]\naccelerator = "./outer.gpu.toml"\n', encoding="utf-8")
    found[chained] = load_cluster
    return found


@pytest.mark.filterwarnings("error:.*is unusual.*= [0-9]:UserWarning")
def test_of_a_file_that_another_names_no_content_is_told(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Plan files, clusters and likenesses that lead to what they should not: place and rule, no word and no number of it."""
    rng = random.Random(0)
    word, number = secret(rng), rng.randrange(10**7, 10**8)
    refused = 0
    for name, text in contents(word, number).items():
        path = tmp_path / "hidden" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for file, read in references(path, tmp_path).items():
            try:
                read(file)
            except (PlanFileError, ProfileError) as error:
                said = f"{error} {error.untold}"
                refused += 1
                assert file.name in said
                assert "\n" not in said
                assert word not in said, (name, file.name)
                assert str(number) not in said, (name, file.name)
    assert refused > 150
    unusual = [str(one.message) for one in recwarn if "unusual" in str(one.message)]
    assert unusual
    assert all(str(number % 10**4 + 1000) not in line for line in unusual)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        *[("cluster", f"{name}.toml") for name in ("key", "keys", "string", "kind", "cluster", "nodes")],
        *[("stack", f"{name}.toml") for name in ("key", "keys", "kind")],
        *[("workload", name) for name in ("text.json", "type.json", "key.json", "number.json", "shadow", "item.txt")],
        *[("profile", name) for name in ("shadow", "line.txt", "node.txt", "profile.json", "twice.json")],
        *[(option, name) for option in ("plan", "problem") for name in ("format.json", "list.json", "shadow")],
    ],
)
def test_of_what_the_study_of_a_sweep_names_no_content_is_told(
    option: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study is a file as others: options, and values that are swept, name files; neither a line nor a row tells of them."""
    rng = random.Random(1)
    word, number = secret(rng), rng.randrange(10**7, 10**8)
    (tmp_path / name).write_text(contents(word, number)[name], encoding="utf-8")
    study, path = tmp_path / "study.toml", json.dumps(str(tmp_path / name))
    named = {
        "option": f"{option} = {path}\n[over]\nbatch = [8]\n",
        "swept": f"batch = 8\n[over]\n{option} = [{path}]\n",
    }
    for text in named.values() if option not in ("plan", "problem") else [named["option"]]:
        study.write_text(text, encoding="utf-8")
        planner = () if option == "plan" else ("--planner", "uniform")
        assert main(["sweep", str(study), "--jobs", "1", "--quiet", *planner]) in (3, 4)
        said = "".join(capsys.readouterr())
        assert name in said
        assert word not in said
        assert str(number) not in said


def test_a_pipe_in_a_file_s_place_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named by the user or by a file, of any kind: it is not opened, as nobody may ever write to it."""
    for suffix in ("toml", "json", "txt", "csv"):
        os.mkfifo(tmp_path / f"pipe.{suffix}")
    (tmp_path / "c.toml").write_text('name = "c"\n[[servers]]\naccelerator = "./pipe.toml"\n', encoding="utf-8")
    at = {name: str(tmp_path / name) for name in ("pipe.toml", "pipe.json", "pipe.txt", "pipe.csv", "c.toml")}
    plan = ("plan", "--planner", "uniform")
    for words in (
        *[("check", path) for path in at.values()],
        (*plan, "--cluster", at["pipe.toml"]),
        (*plan, "--workload", at["pipe.json"]),
        (*plan, "--profile", at["pipe.txt"]),
        (*plan, "--profile", at["pipe.json"]),
        (*plan, "--problem", at["pipe.json"]),
        ("simulate", "--schedule-csv", at["pipe.csv"], "--forward", "1", "--backward", "1"),
        ("study", "schedule-cases", "--cases", at["pipe.json"]),
        ("study", "schedule-search", "--cases", at["pipe.json"]),
        ("study", "pipedream-optimizer", "--runs", at["pipe.json"], "--profiles", str(tmp_path)),
    ):
        assert main(words) == 4, words
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert "is no regular file" in said.err


def test_errors_of_files_are_of_one_kind() -> None:
    """What is said where another file names one is a choice that each error makes: nothing is told where it makes none."""
    kinds = list(FileError.__subclasses__())
    assert {ProfileError, PlanFileError, InputError} <= set(kinds)
    assert all("x" not in kind("path: x").untold.split() for kind in kinds)


# ---- Python --------------------------------------------------------------------------------------------------------

BEYOND = (10**400, -(10**400), 10**22, float("nan"), True, 2.5)
"""What no count is."""

PROBLEM = Problem(workload_from_spec("chain:4"), load_cluster("pipedream-a").take(2), 8)
STAGES = (Stage((0, 1), (0,)), Stage((2, 3), (1,)))
MODEL: dict[str, Any] = {"layers": 2, "hidden": 8, "heads": 2, "sequence": 16, "vocabulary": 32}

COUNTS: dict[str, Callable[[Any], Any]] = {
    **{
        f"schedule {name}": lambda value, name=name: named_schedule(
            "gpipe", **{"stages": 2, "microbatches": 2, name: value}
        )
        for name in ("stages", "microbatches")
    },
    "mini-batches": lambda value: named_schedule("pipedream", 2, minibatches=value),
    "chunks": lambda value: named_schedule("interleaved-1f1b", 4, 4, chunks=value),
    "group": lambda value: named_schedule("interleaved-1f1b", 4, 4, chunks=2, microbatch_group_size=value),
    "slices": lambda value: named_schedule("seq1f1b", 4, 4, slices=value),
    "replicas": lambda value: named_schedule("1f1b-rr", 2, 4, replicas=(1, value)),
    "micro-batches per mini-batch": lambda value: named_schedule("2bw", 2, 4, microbatches_per_minibatch=value),
    "seed": lambda value: replay_schedule(named_schedule("gpipe", 2, 2), OpSeconds(1.0, 1.0), seed=value),
    "sizes": lambda value: replay_schedule(named_schedule("gpipe", 2, 2), OpSeconds(1.0, 1.0), sizes=(1, value)),
    "batch": lambda value: replace(PROBLEM, batch=value),
    "take": PROBLEM.cluster.take,
    "slices of a plan": lambda value: simulate(
        PROBLEM, Plan("hand", "seq1f1b", STAGES, (4, 4), options=(("slices", value),))
    ),
    **{
        f"request {name}": lambda value, name=name: Request(**{name: value})
        for name in ("stages", "microbatches", "chunks", "slices")
    },
    "budget": lambda value: Evaluator(PROBLEM, budget=value),
    "search seed": lambda value: search_on_numbers(2, 2, OpSeconds(1.0, 1.0), seed=value, seconds=0.0),
    **{
        f"model {name}": lambda value, name=name: Llama(**{**MODEL, name: value})
        for name in (*MODEL, "further", "window")
    },
    **{
        f"experts {name}": lambda value, name=name: Experts(**{"count": 4, "active": 2, "intermediate": 4, name: value})
        for name in ("count", "active", "intermediate", "shared")
    },
    **{
        f"layer {name}": lambda value, name=name: Workload("w", (replace(Layer("a", "linear"), **{name: value}),), ())
        for name in ("parameters", "sequential_steps", "heads", "block")
    },
    "channels": lambda value: Workload("w", (Layer("a", "linear", channels=(1, value)),), ()),
}
"""What takes a count in Python, by name."""

AMOUNTS: dict[str, Callable[[Any], Any]] = {
    **{
        f"seconds {name}": lambda value, name=name: replay_schedule(
            named_schedule("gpipe", 2, 2), OpSeconds(**{"forward": 1.0, "backward": 1.0, name: value})
        )
        for name in ("forward", "backward", "weight", "transfer", "update")
    },
    "stash": lambda value: replay_schedule(named_schedule("gpipe", 2, 2), OpSeconds(1.0, 1.0)).holding(OpMemory(value)),
    "flop": lambda value: Workload("w", (Layer("a", "linear", flop=value),), ()),
    "memory": lambda value: replace(load_accelerator("v100-sxm2"), memory_bytes=value),
    "clock": lambda value: replace(load_accelerator("vcu118"), clock=value),
    "bandwidth": lambda value: replace(PROBLEM.cluster.links[0], bandwidth=value),
    "search seconds": lambda value: search_on_numbers(2, 2, OpSeconds(1.0, 1.0), seconds=value),
}
"""What takes an amount in Python, by name."""


NO_AMOUNT = (math.inf, -math.inf, math.nan, 1.7e308, 10**400, -(10**400))
"""What is not finite, or whose sums may not be."""


@pytest.mark.parametrize("name", [*COUNTS, *AMOUNTS])
def test_every_number_has_two_ends_in_python(name: str) -> None:
    """A ValueError of one short line, before anything of that size is made."""
    take, beyond = (COUNTS[name], BEYOND) if name in COUNTS else (AMOUNTS[name], NO_AMOUNT)
    for value in beyond:
        with pytest.raises(ValueError, match=r"[a-z]") as caught:
            take(value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300
