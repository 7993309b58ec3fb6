"""Fuzzing of the readers: files that are nearly right, made from right ones by a seeded generator, put before `pipeplan check`.

A reader is a kind of file that users write by hand or bring from elsewhere. To put another one under the same test, add it to
READERS with a few right files (small ones that hold every key once) and the words of its form.

`python tests/fuzzing.py NAME COUNT` prints the faults found, the longest seconds and the peak of memory as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.cli import main

NUMBERS = (
    *(
        b"0",
        b"-1",
        b"1",
        b"2.5",
        b"1e308",
        b"-1e308",
        b"1e400",
        b"nan",
        b"inf",
        b"-inf",
        b"1e-320",
        b"0x10",
        b"1_0",
        b"007",
    ),
    *(b"2147483647", b"2147483648", b"9223372036854775808", b"1e18", b"9" * 400, b"9" * 5000, b"4.0", b"true", b"null"),
)
"""What a number may be replaced by: ends of ranges, other kinds, and what no float or integer holds."""

TEXTS = (
    *(
        b"",
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
        b"\x1b[31m",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xae",
        b"\r\n",
        b"\t",
        b" ",
        b"[/red]",
    ),
    *(
        b"$\\bad{$",
        b"'",
        b'"',
        b"\\",
        b"#",
        b",",
        b"-",
        b"/",
        b"../..",
        b"/dev/zero",
        b"/dev/null",
        b"x" * 300,
        b"(" * 2000,
    ),
    *(b"[" * 2000, b"{" * 2000, b'{"a":' * 2000, b"[[", b"]]", b"a." * 3000, b"%s%n", b"\xf0\x9f\x98\x80"),
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

    Right is exit code 0 with one line of text, or 4 with one printable line that names the file in about 300 characters.
    """
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["check", str(path)])
    except BaseException as error:
        return f"ends in {type(error).__name__}: {str(error)[:200]}"
    said, complaint = out.getvalue(), err.getvalue()
    if code not in (0, 4):
        return f"exit code {code}: {complaint[:200]}"
    line, silent = (said, complaint) if code == 0 else (complaint, said)
    if silent or line.count("\n") != 1 or not line.rstrip("\n").isprintable() or path.name not in line:
        return f"exit code {code} with stdout {said[:200]!r}, stderr {complaint[:200]!r}"
    if len(line) > 300:
        return f"a message of {len(line)} characters: {line[:100]!r}"
    return None


# ---- readers --------------------------------------------------------------------------------------------------------

PLAN = {
    "format": "pipeplan-plan-1",
    "problem": {
        "workload": "chain:4",
        "profile": None,
        "cluster": "pipedream-arxiv-b",
        "devices": 2,
        "batch": 8,
        "sequence": None,
        "precision": "fp32",
        "optimizer": "momentum",
        "recompute": False,
        "communication": "overlapped",
        "no_contention": False,
        "weight_versions": "stashing",
    },
    "plan": {
        "planner": "hand",
        "schedule": "gpipe",
        "notation": "straight",
        "replication": "split",
        "microbatches": [4, 4],
        "stages": [{"layers": [0, 1], "devices": [0]}, {"layers": [2, 3], "devices": [1]}],
        "forward_sizes": [[4, 4], [5, 3]],
        "backward_sizes": [],
    },
}

READERS: tuple[Reader, ...] = (
    Reader(
        "plan",
        ".json",
        (
            json.dumps(PLAN, indent=2).encode(),
            json.dumps({**PLAN, "plan": {**PLAN["plan"], "schedule": "1f1b", "forward_sizes": []}}).encode(),  # type: ignore[dict-item]
        ),
        (
            *(b'"round-robin"', b'"split"', b'"1f1b-rr"', b'"interleaved-1f1b"', b'"xpipe"', b'"pipedream"', b'"fp16"'),
            *(
                b'"alexnet"',
                b'"chain:100000"',
                b'"profile"',
                b'"out"',
                b'"/etc/passwd"',
                b'"dgx-a100:9999"',
                b"[]",
                b"{}",
                b"[[1]]",
            ),
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
        ),
        (
            b"0F0",
            b"1B1",
            b"7F7",
            b"99999999999F0",
            b"0F99999999999",
            b"0U0",
            b"(0F0;0B0)OVERLAP_F_B",
            b"0UNSHARD",
            b"0B0,0B0",
        ),
    ),
)
"""Every kind of file that `pipeplan check` reads."""


def trial(reader: Reader, count: int, folder: Path, seed: int = 0) -> dict[str, object]:
    """Put `count` files before the command: faults with their files, longest seconds, peak bytes."""
    path = folder / f"file{reader.suffix}"
    faults: list[dict[str, str]] = []
    longest, slowest = 0.0, b""
    for text in inputs(reader, count, seed):
        path.write_bytes(text)
        started = time.perf_counter()
        found = fault(path)
        seconds = time.perf_counter() - started
        if seconds > longest:
            longest, slowest = seconds, text
        if found is not None:
            faults.append({"fault": found, "file": repr(text[:2000])})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"faults": faults, "seconds": longest, "slowest": repr(slowest[:2000]), "peak_bytes": peak}


if __name__ == "__main__":
    named = {reader.name: reader for reader in READERS}
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(trial(named[sys.argv[1]], int(sys.argv[2]), Path(place)), indent=1))
