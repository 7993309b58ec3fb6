"""Rules of `hardware_profiles.reading`: files have a size at most, and what is printed moves no cursor."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from hardware_profiles import MOST_BYTES, printable, read_bytes, shown


def test_a_file_has_a_size_at_most(tmp_path: Path) -> None:
    """The largest file is read whole; one byte more is an OSError that states the limit."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * MOST_BYTES)
    assert len(read_bytes(path)) == MOST_BYTES
    path.write_bytes(b"x" * (MOST_BYTES + 1))
    with pytest.raises(OSError, match="larger than 16 MiB") as caught:
        read_bytes(path)
    assert caught.value.errno == errno.EFBIG


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe that nobody writes to, a socket, devices and a link to one are refused at once, before they are opened."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for one in ("/dev/zero", "/dev/null", "/dev/tty", *(tmp_path / name for name in ("pipe", "link", "socket"))):
            with pytest.raises(OSError, match="is no regular file"):
                read_bytes(Path(one))
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


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
