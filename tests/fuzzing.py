"""Fuzzing of the readers: files that are nearly right, made from right ones by a seeded generator, put before `pipeplan check`.

A reader is a kind of file that users write by hand or bring from elsewhere. To put another one under the same test, add it to
READERS with a few right files (small ones that hold every key once) and the words of its form.

`python tests/fuzzing.py NAME COUNT` prints the faults found, the most CPU seconds and the peak of memory as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.cli import main
from experiments.studies.catalogue import STUDIES
from experiments.studies.study_harness import add_study_options
from experiments.terminal.command_parser import Parser
from experiments.terminal.stops import INTERRUPTED

NUMBERS = (
    *b"0 -1 1 2.5 1e308 -1e308 1e400 nan inf -inf 1e-320 0x10 1_0 007".split(),
    *(b"2147483647", b"2147483648", b"9223372036854775808", b"1e18", b"9" * 400, b"9" * 5000, b"4.0", b"true", b"null"),
)
"""What a number may be replaced by: ends of ranges, other kinds, and what no float or integer holds."""

TEXTS = (
    *(b"", b"\x00", b"\xff", b"\xed\xa0\x80", b"\x1b[31m", b"\xef\xbb\xbf", b"\xe2\x80\xae", b"\r\n", b"\t", b" "),
    *b"[/red] $\\bad{$ ' \" \\ # , - / ../.. /dev/zero /dev/null".split(),
    *(b"x" * 300, b"(" * 2000, b"[" * 2000, b"{" * 2000, b'{"a":' * 2000, b"[[", b"]]", b"a." * 3000, b"%s%n"),
    b"\xf0\x9f\x98\x80",
)
"""What may stand anywhere: controls, broken UTF-8, quotes and brackets, names of devices, deep nesting."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A kind of file that `pipeplan check` reads.

    name: for test ids; suffix: of the file's name, by which the command knows it
    right: right files, at least one
    words: keys, values and separators of the form, to be put where they do not belong
    """

    name: str
    suffix: str
    right: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()


def _replaced_number(rng: random.Random, text: bytes, reader: Reader) -> bytes:
    found = list(re.finditer(rb"[0-9][0-9.eE+]*", text))
    if not found:
        return text
    one = rng.choice(found)
    return text[: one.start()] + rng.choice(NUMBERS) + text[one.end() :]


def _replaced_word(rng: random.Random, text: bytes, reader: Reader) -> bytes:
    found = list(re.finditer(rb'[A-Za-z_"][A-Za-z_0-9"-]*', text))
    if not found:
        return text
    one = rng.choice(found)
    return text[: one.start()] + rng.choice((*reader.words, *TEXTS, *NUMBERS)) + text[one.end() :]


def _inserted(rng: random.Random, text: bytes, reader: Reader) -> bytes:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice((*reader.words, *TEXTS)) + text[place:]


def _flipped(rng: random.Random, text: bytes, reader: Reader) -> bytes:
    place = rng.randrange(len(text) + 1)
    return text[:place] + bytes([rng.randrange(256)]) + text[place + 1 :]


def _cut(rng: random.Random, text: bytes, reader: Reader) -> bytes:
    first, last = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    return text[:first] + text[last:] if rng.random() < 0.7 else text[first:last]


def _lines(rng: random.Random, text: bytes, reader: Reader) -> bytes:
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    one = rng.randrange(len(lines))
    what = rng.randrange(4)
    if what == 0:
        del lines[one]
    elif what == 1:
        lines.insert(one, rng.choice(rng.choice(reader.right).splitlines(keepends=True) or [b"\n"]))
    elif what == 2:
        lines[one] *= rng.choice((2, 3, 100))
    else:
        rng.shuffle(lines)
    return b"".join(lines)


def _joined(rng: random.Random, text: bytes, reader: Reader) -> bytes:
    other = rng.choice(reader.right)
    return text[: rng.randrange(len(text) + 1)] + other[rng.randrange(len(other) + 1) :]


MUTATIONS: tuple[Callable[[random.Random, bytes, Reader], bytes], ...] = (
    *(_replaced_number, _replaced_number, _replaced_word, _replaced_word, _inserted, _flipped, _cut, _lines, _joined),
)


def inputs(reader: Reader, count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` files, each a right one after one to four mutations; the same ones for the same seed."""
    rng = random.Random(f"{reader.name} {seed}")
    for _ in range(count):
        text = rng.choice(reader.right)
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
            text = rng.choice(MUTATIONS)(rng, text, reader)
        yield text


def fault(path: Path) -> str | None:
    """What is wrong with the answer of `pipeplan check` to the file, or None.

    Right is exit code 0 with one line of text, or 4 with one printable line that names the file, in about 300 characters beside.
    """
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["check", str(path)])
    except BaseException as error:
        return f"ends in {type(error).__name__}: {str(error)[:200]}"
    said, complaint = out.getvalue(), err.getvalue()
    if code == 0:  # doubts about a right file are lines of their own
        complaint = "".join(one for one in complaint.splitlines(keepends=True) if ": warning: " not in one)
    if code not in (0, 4):
        return f"exit code {code}: {complaint[:200]}"
    line, silent = (said, complaint) if code == 0 else (complaint, said)
    if silent or line.count("\n") != 1 or not line.rstrip("\n").isprintable() or path.name not in line:
        return f"exit code {code} with stdout {said[:200]!r}, stderr {complaint[:200]!r}"
    if len(line) > 300 + len(str(path)):
        return f"a message of {len(line)} characters: {line[:100]!r}"
    return None


# ---- readers --------------------------------------------------------------------------------------------------------

PLAN = {
    "format": "pipeplan-plan-2",
    "problem": {
        "workload": {"name": "chain:4", "sequence": None},
        "cluster": {"name": "pipedream-arxiv-b", "devices": 2},
        "batch": 8,
        "precision": "fp32",
        "optimizer": "momentum",
        "recompute": False,
        "communication": "overlapped",
        "contention": True,
        "weight_versions": "stashing",
    },
    "plan": {
        "planner": "hand",
        "schedule": "gpipe",
        "replication": "split",
        "microbatches": [4, 4],
        "stages": [{"layers": [0, 1], "devices": [0]}, {"layers": [2, 3], "devices": [1]}],
        "forward_sizes": [[4, 4], [5, 3]],
        "backward_sizes": [],
    },
}

OPPOSITE = {
    "planner": "hand",
    "schedule": "own",
    "replication": "round-robin",
    "microbatches": [4, 4],
    "stages": [{"layers": [0, 1], "devices": [0, 1]}, {"layers": [2, 3], "devices": [1, 0]}],
    "order": ["0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"],
    "recompute": [True, False],
    "options": {},
}
"""Two pipelines in opposite directions."""

MODERN = {
    "planner": "modern",
    "schedule": "search",
    "replication": "split",
    "microbatches": [3, 3, 2],
    "stages": [{"layers": [0, 1], "devices": [0]}, {"layers": [2], "devices": [1]}, {"layers": [3], "devices": [0]}],
    "order": [
        "0F0 2F0 2I0 (0F1;0I0)OVERLAP_F_B 2W0 0W0 (2F1 2I1 2W1 0I1 0W1)*1 0F2 2F2 2B2 0B2",
        "1F0 1A0 1B0 1F1 1A1 1B1 1F2 1A2 1B2",
        "1O0 1L0 1O2 1L2",
    ],
    "recompute": ["none", "whole", False],
    "options": {},
}
"""An order of its own: split backwards, a pair, a pattern, stages that recompute or offload."""


def _node(number: int, operator: str, seconds: str, output: str, parameters: str) -> str:
    return (
        f"node{number} -- {operator} -- forward_compute_time={seconds}, backward_compute_time=0.2, "
        f"activation_size={output}, parameter_size={parameters}\n"
    )


GRAPH = (
    _node(1, "Input0", "0.000", "0.0", "0.0")
    + _node(
        2, "Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), groups=1)", "1.5", "8192.000", "896.000"
    )
    + _node(3, "ReLU(inplace)", "0.1", "8192.0", "0.0")
    + _node(4, "Linear(in_features=10, out_features=5, bias=True)", "1e-1", "40.0", "220.0")
    + "\tnode1 -- node2\n\tnode2 -- node3\n\tnode3 -- node4\n"
).encode()

RECURRENT = (
    _node(1, "Embedding(100, 8, padding_idx=0)", "0.3", "256.0", "3200.0")
    + _node(2, "LSTM(8, 8)", "2.0", "[256.0; 64.0; 64.0]", "2304.0")
    + _node(3, "__getitem__(0)", "0.0", "256.0", "0.0")
    + "\tnode1 -- node2\n\tnode2 -- node3\n"
).encode()

_SHIPPED = Path(__file__).resolve().parents[1] / "hardware_profiles"
COMPUTE = b"""kind = "gpu"
name = "mine"
memory_gib = 24
reserve_gib = 1
memory_bandwidth_gb_per_s = 1008
[compute]
tflops_fp32 = 82.6
tflops_fp16 = 165.2
[overhead]
call_us = 7
step_us = 2
[efficiency.convolution]
forward = 0.5
saturation_us = 3
window_exponent = 0.4
transform_traffic = 9
"""

EXPLICIT = b"""name = "triangle"
allreduce = "flat-ring"
[[devices]]
name = "a"
accelerator = "vcu118"
[[devices]]
name = "b"
accelerator = "p40"
server = "rack"
[[switches]]
name = "hub"
[[links]]
between = ["a", "hub"]
bandwidth_gb_per_s = 1
latency_us = 3
[[links]]
between = ["b", "hub"]
bandwidth_gbps = 10
duplex = "half"
shared = "bus"
"""

CONFIGS = b"""
{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 32,
"resid_pdrop": 0.1}
{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "vocab_size": 32,
"num_key_value_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16, "tie_word_embeddings": true}
{"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 32,
"intermediate_size": 16, "max_position_embeddings": 16, "architectures": ["BertForMaskedLM"]}
{"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "vocab_size":
32, "intermediate_size": 16, "max_position_embeddings": 16, "num_experts": 4, "num_experts_per_tok": 2,
"num_key_value_heads": 2, "moe_intermediate_size": 4, "mlp_only_layers": [1]}
{"model_type": "deepseek_v3", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "vocab_size":
32, "intermediate_size": 16, "max_position_embeddings": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
"moe_intermediate_size": 4, "first_k_dense_replace": 1, "n_shared_experts": null, "q_lora_rank": null,
"kv_lora_rank": 4, "qk_nope_head_dim": 2, "qk_rope_head_dim": 1, "v_head_dim": 2}
"""
"""Configurations of Hugging Face, one after the other."""

TIMING = {
    "samples": 1,
    "forward_seconds": 1e-3,
    "backward_seconds": 2e-3,
    "forward_spread": 0.1,
    "backward_spread": 0.1,
}
PROFILED = {
    "format": "pipeplan-profile-1",
    "name": "two",
    "sample": "image",
    "minibatch": 4,
    "bytes_per_element": 4,
    "measurement": {
        "model": "two",
        "device": "cpu",
        "device_name": "x86",
        "torch": "2",
        "input_shape": [3, 8],
        "warm_up": 1,
        "repeats": 3,
        "spread": 0.1,
        "steady": True,
        "whole": [],
    },
    "layers": [
        {
            "name": "a",
            "kind": "linear",
            "parameters": 10,
            "flop": 20.0,
            "output_elements": 5.0,
            "stashed_elements": 2.0,
            "timings": [TIMING, {**TIMING, "samples": 4}],
        },
        {
            "name": "b",
            "kind": "linear",
            "parameters": 0,
            "flop": 20.0,
            "output_elements": 5.0,
            "stashed_elements": 2.0,
            "timings": [TIMING],
            "tied_to": "a",
            "tied_parameters": 10,
        },
    ],
    "edges": [[0, 1]],
}


def _words(text: str) -> tuple[bytes, ...]:
    """Words that bars part."""
    return tuple(text.encode().split(b" | "))


READERS: tuple[Reader, ...] = (
    Reader(
        "plan",
        ".json",
        (
            json.dumps(PLAN, indent=2).encode(),
            json.dumps({**PLAN, "plan": {**PLAN["plan"], "schedule": "1f1b", "forward_sizes": []}}).encode(),  # type: ignore[dict-item]
            json.dumps({**PLAN, "plan": OPPOSITE}, indent=2).encode(),
            json.dumps({**PLAN, "plan": MODERN}, indent=2).encode(),
        ),
        _words(
            '"round-robin" | "split" | "1f1b-rr" | "interleaved-1f1b" | "xpipe" | "pipedream" | "fp16" | "zb-v" | '
            '"dualpipe" | "hanayo" | "seq1f1b" | "whole" | (0F1;0I0)OVERLAP_F_B | 0O0 0L0 | 1A1 | "alexnet" | '
            '"chain:100000" | "profile" | "out" | "/etc/passwd" | "dgx-a100:9999" | [] | {} | [[1]]'
        ),
    ),
    Reader(
        "schedule",
        ".csv",
        (
            b"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
            b"0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n",
            b"0F0,0SEND_F0,,0F1,0RECV_B0,0B0,(0F2;0B1)OVERLAP_F_B,0I2,0W2\n1RECV_F0,1F0,1B0,1F1,1B1,1F2,1I2,1W2\n",
            b"0F0,0B0,0U0,0P1,0F1,0B1,0U1\n",
            b"0F0 (0F1;0I0)OVERLAP_F_B (0W0 0I1 0W1)*1\n1F0 1A0 1B0 1F1 1A1 1B1\n0O0 0L0\n",
        ),
        _words(
            "0F0 | 1B1 | 7F7 | 99999999999F0 | 0F99999999999 | 0U0 | (0F0;0B0)OVERLAP_F_B | (0F1 0B1)*2 | 0A0 | "
            "0L0 0O0 | 0UNSHARD | 0B0,0B0"
        ),
    ),
    Reader(
        "graph",
        ".txt",
        (GRAPH, RECURRENT),
        _words("node2 --  | \tnode2 -- node3\n | groups=0 | [1; 2] | LSTM(1024, 0) | Add | parameter_size= |  --"),
    ),
    Reader(
        "accelerator",
        ".toml",
        (COMPUTE, (_SHIPPED / "accelerators" / "vcu118.toml").read_bytes()),
        _words('[dsp] | [[compute]] | tflops_bf16 = 1e99 | lanes = 0 | "fpga" | kind | [efficiency.magic] | inf'),
    ),
    Reader(
        "cluster",
        ".toml",
        (
            EXPLICIT,
            *((_SHIPPED / "clusters" / f"{name}.toml").read_bytes() for name in ("pipedream-a", "fpga-mixed-4")),
        ),
        _words(
            '[[servers]] | [network] | "full" | "ring" | "shared-bus" | devices = 100000000 | count = 0 | '
            'accelerator = "/dev/zero" | "a" | "hub" | [[links]] | carries_network = true | "flat-ring"'
        ),
    ),
    Reader(
        "configuration",
        ".json",
        tuple(re.findall(rb"\{[^}]*\}", CONFIGS)),
        _words('"gpt2" | "llama" | "bert" | "n_layer" | 10000000 | 10000 | "n_inner": 1e9 | [] | {} | "head_dim": 3'),
    ),
    Reader(
        "profile",
        ".json",
        (json.dumps(PROFILED, indent=1).encode(),),
        _words('"pipeplan-profile-2" | [[0, 0]] | [1, 0] | "timings" | "loss" | [] | {} | "tied_to": "b" | 1e18'),
    ),
)
"""Every kind of file that `pipeplan check` reads."""


def _timed(path: Path) -> tuple[str | None, float]:
    """The fault, and the CPU seconds of the answer."""
    started = time.process_time()
    found = fault(path)
    return found, time.process_time() - started


def trial(reader: Reader, count: int, folder: Path, seed: int = 0) -> dict[str, object]:
    """Put `count` files before the command: faults with their files, most CPU seconds, peak bytes."""
    path = folder / f"file{reader.suffix}"
    faults: list[dict[str, str]] = []
    longest, slowest = 0.0, b""
    for text in inputs(reader, count, seed):
        path.write_bytes(text)
        found, seconds = _timed(path)
        if seconds > longest:
            longest, slowest = seconds, text
        if found is not None:
            faults.append({"fault": found, "file": repr(text[:2000])})
    return {"faults": faults, "seconds": longest, "slowest": repr(slowest[:2000]), "peak_bytes": _peak_bytes()}


def _peak_bytes() -> int:
    """Most memory of this process; on Linux since it began its program: `getrusage` also counts what started it."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(one for one in status.read_text().splitlines() if one.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ---- options --------------------------------------------------------------------------------------------------------

AMOUNTS = (*("0", "-1", "1" + "0" * 40, "9" * 400, "nan", "inf", "1e308", "1_000", "\u0663", ""),)
"""What an option that takes a number may be given: ends of ranges, and what is no number in the digits 0 to 9."""

_SMALL = ("--workload", "chain:4", "--cluster", "pipedream-b", "--devices", "2")
COMMAND_LINES: dict[str, tuple[str, ...]] = {
    "plan": (*_SMALL, "--planner", "uniform"),
    "compare": (*_SMALL, "--planner", "uniform", "--no-figures"),
    "export": (*_SMALL, "--planner", "uniform", "--format", "text"),
    "simulate": (
        *("--schedule", "zb-h1", "--stages", "2", "--microbatches", "4"),
        *("--forward", "1", "--backward", "1", "--weight", "1", "--stash", "1"),
    ),
    "train": ("--method", "pipedream", "--stages", "2", "--epochs", "1", "--seeds", "1", "--data", "wine"),
    "profile": ("mlp",),
    "calibrate": ("--out", "mine.toml", "--plan", "lost.json"),
    "check": ("graph.txt",),
    "list": (),
    "sensitivity": ("--plan", "lost.json"),
    "explain": ("--plan", "lost.json"),
    "goodput": (
        "--servers",
        "2",
        "--mtbf",
        "100",
        "--checkpoint-seconds",
        "9",
        "--restart-seconds",
        "9",
        "--runs",
        "2",
    ),
    "whatif": ("--plan", "lost.json", "--set", "batch=8"),
    "show": ("dgx-h100",),
    "data": ("sailor",),
    **{f"study {name}": () for name in STUDIES},
    "study benchmark-commits": ("old", "new"),
    "study schedule-search": ("--cases", "optima.json"),
    "study truth": ("--tables", "."),
}
"""Words of small work by command: each is right without the option that is tried, or the study's input is not there."""

FILES = (
    *("--out", "--figure", "--gantt", "--plan", "--problem", "--profile", "--schedule-csv"),
    *("--cases", "--inputs", "--runs", "--profiles", "--tables", "--from"),
)
MOST_SECONDS, MOST_BYTES = 60, 4 * 2**30
STUDY_SECONDS = 4
"""CPU seconds after which a study that has taken a value is interrupted."""


def options(command: str) -> dict[str, int]:
    """The options of a command that take values which are no files, and how many."""
    parser = Parser()
    name, *study = command.split()
    if study:
        add_study_options(parser, STUDIES[study[0]])
    else:
        import_module(f"experiments.commands.{name}_command").add_arguments(parser)
    taking = [one for one in parser._actions if one.option_strings and one.nargs != 0]
    counts = {one.option_strings[-1]: one.nargs if isinstance(one.nargs, int) else 1 for one in taking}
    return {option: count for option, count in counts.items() if option not in FILES}


def option_faults(command: str, folder: Path) -> dict[str, str]:
    """What is wrong with answers to amounts of a command's options that are none, or far too large, by option and amount.

    Of a process of its own: children of one whose torch has started its threads wait for them for ever.
    """
    os.chdir(folder)
    if command != "profile" and not command.startswith("study"):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main([command, *COMMAND_LINES[command]])  # loads what the children then need not
    return {
        f"{option} {amount[:45]}": said
        for option in options(command)
        for amount in AMOUNTS
        if (said := option_fault(command, option, amount, folder))
    }


def option_fault(command: str, option: str, amount: str, folder: Path) -> str | None:
    """What is wrong with the answer to `--option=amount`, or None; in a child that has so much time and memory."""
    said = folder / "fault"
    said.write_text("the child ended without an answer")
    child = os.fork()
    if not child:
        os.chdir(folder)
        seconds = MOST_SECONDS * (3 if command.startswith("study") else 1)  # its kernels may have to be compiled
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        most = MOST_BYTES * (4 if command == "profile" else 1)  # what torch maps, and does not use
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        if command.startswith("study"):
            signal.signal(signal.SIGPROF, lambda *_: signal.raise_signal(signal.SIGINT))
            signal.setitimer(signal.ITIMER_PROF, STUDY_SECONDS)
        more = options(command)[option] - 1
        given = [option, amount, *["2"] * more] if more else [f"{option}={amount}"]
        said.write_text(_option_fault([*command.split(), *COMMAND_LINES[command], *given]) or "")
        os._exit(0)
    os.waitpid(child, 0)
    return said.read_text() or None


def _option_fault(words: list[str]) -> str | None:
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:
        return f"ends in {type(error).__name__}: {str(error)[:200]}"
    complaint = "".join(one for one in err.getvalue().splitlines(keepends=True) if ": warning: " not in one)
    if code == INTERRUPTED and words[0] == "study" and complaint.endswith(": interrupted\n"):
        return None
    if code == 0 or (code == 3 and out.getvalue() and not complaint):  # a replay that does not fit is an answer, too
        return None
    right = (
        code in (2, 3, 4)
        and complaint.count("\n") == 1
        and complaint.rstrip("\n").isprintable()
        and len(complaint) <= 400
    )
    return None if right else f"exit code {code} with {len(complaint)} characters on stderr: {complaint[:200]!r}"


if __name__ == "__main__":
    if sys.argv[1] == "options":
        print(json.dumps(option_faults(sys.argv[2], Path(sys.argv[3]))))
        sys.exit()
    named = {reader.name: reader for reader in READERS}
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(trial(named[sys.argv[1]], int(sys.argv[2]), Path(place)), indent=1))
