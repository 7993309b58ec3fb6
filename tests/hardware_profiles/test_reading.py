"""Rules of `hardware_profiles.reading`: files have a size at most, and what is printed moves no cursor."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hardware_profiles import FileError, complaint_of, load_cluster, load_stack, printable, read_bytes, shown
from hardware_profiles.documents import explained
from hardware_profiles.reading import MOST_BYTES
from simulator import workload_from_spec


class Inner(msgspec.Struct):
    """A table in a file."""

    number: float = 1.0


class File(msgspec.Struct, forbid_unknown_fields=True):
    """A file with tables of both kinds and a list."""

    prices: dict[str, float] = {}
    counts: dict[int, float] = {}
    inner: Inner | None = None
    rows: list[float] = []


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"prices": {"x": "y"}}, "$.prices[...]: expected `float`, got `str`"),
        ({"counts": {"x": 1.0}}, "$.counts: expected `int`, got `str`"),
        ({"inner": {"number": "y"}}, "$.inner.number = 'y': expected `float`, got `str`"),
        ({"rows": [1.0, "y"]}, "$.rows[1] = 'y': expected `float`, got `str`"),
        ({"price": {}}, "$.price = {}: unknown key (did you mean prices?)"),
    ],
)
def test_complaints_say_where_and_what(document: dict[str, Any], said: str) -> None:
    """With the value, but where msgspec does not tell which key of a table it is; what is for others has no content."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(document, File)
    told, untold = explained(str(caught.value), document, File)
    assert told.startswith(said)
    assert "'y'" not in untold


def test_a_file_has_a_size_at_most(tmp_path: Path) -> None:
    """The largest file is read whole; one byte more is an OSError that states the limit."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * MOST_BYTES)
    assert len(read_bytes(path)) == MOST_BYTES
    path.write_bytes(b"x" * (MOST_BYTES + 1))
    with pytest.raises(OSError, match="larger than 16 MiB") as caught:
        read_bytes(path)
    assert caught.value.errno == errno.EFBIG


def test_only_regular_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody writes to, a socket, devices and a link to one are refused at once, before they are opened."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # a socket's own path has few characters
        server.bind("socket")
        for one in ("/dev/zero", "/dev/null", "/dev/tty", *(tmp_path / name for name in ("pipe", "link", "socket"))):
            with pytest.raises(OSError, match="is no regular file"):
                read_bytes(Path(one))
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


def test_a_name_with_a_zero_byte_is_no_file() -> None:
    """A file may say one where it names another: whoever reads it says so, of profiles, workloads and measured layers."""
    with pytest.raises(OSError, match="no file has a name with a zero byte"):
        read_bytes(Path("a\0b"))
    loads: tuple[tuple[Callable[[str], object], str], ...] = (
        (load_cluster, "a\0b.toml"),
        (load_stack, "a\0b.toml"),
        (workload_from_spec, "a\0b.json"),
    )
    for load, name in loads:
        with pytest.raises(FileError, match="cannot be read: no file has a name with a zero byte"):
            load(name)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    """The mark that some editors put before a text is left out; it is content elsewhere."""
    path = tmp_path / "file"
    for written, read in ((b"\xef\xbb\xbf{}", b"{}"), (b"{}\xef\xbb\xbf", b"{}\xef\xbb\xbf")):
        path.write_bytes(written)
        assert read_bytes(path) == read


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("a µ, 网 and \U0001f600", "a µ, 网 and \U0001f600"),
        ("\x1b[31mred\a\x00", "\\x1b[31mred\\x07\\x00"),
        ("two\nlines\ttab\r", "two\\nlines\\ttab\\r"),
        ("\u202eleft\u2028\udcff", "\\u202eleft\\u2028\\udcff"),
    ],
)
def test_printable_text_moves_no_cursor(text: str, printed: str) -> None:
    """Letters of any script stay; controls, line ends, reversals and lone surrogates become escapes."""
    assert printable(text) == printed


def test_a_long_value_is_cut() -> None:
    """A message shows 60 characters of a value."""
    assert shown("ab") == "'ab'"
    assert shown("x" * 1000) == "'" + "x" * 59 + "..."
    assert complaint_of(ValueError("x\n" + "y" * 1000)) == f"ValueError: x {'y' * 148}"


def test_a_file_that_becomes_a_pipe_is_not_read_and_left_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at again when it is open; the next file that is opened has the number that it had."""
    path, looked = tmp_path / "pipe", os.stat(__file__)
    os.mkfifo(path)
    before = os.dup(0)
    os.close(before)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_, **__: looked)
        with pytest.raises(OSError, match="is no regular file"):
            read_bytes(path)
    after = os.dup(0)
    os.close(after)
    assert after == before
