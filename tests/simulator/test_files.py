"""Rules of `simulator.results.written_files`: whole or not at all, through links, into devices, and nothing left behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from simulator import write_atomically
from simulator.results import written_files as files

ROOT = Path(__file__).resolve().parents[2]


def program(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A Python program beside the packages."""
    return subprocess.run([sys.executable, "-c", text, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    """Folders are made, text is UTF-8, a second content replaces the first, nothing else is in the folder."""
    path = tmp_path / "a" / "b.txt"
    for content in ("first µ", b"second\n"):
        assert write_atomically(path, content) == path
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [one.name for one in path.parent.iterdir()] == ["b.txt"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """What a link leads to is written, over two links, into another folder, and where nothing stands there yet."""
    (tmp_path / "there").mkdir()
    target, first, second = tmp_path / "there" / "target", tmp_path / "first", tmp_path / "second"
    first.symlink_to("there/target")
    second.symlink_to(first)
    for content in (b"new", b"changed"):
        write_atomically(second, content)
        assert (target.read_bytes(), target.is_symlink()) == (content, False)
        assert (os.readlink(second), os.readlink(first)) == (str(first), "there/target")


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    """Neither link is replaced by a file."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.symlink_to(second)
    second.symlink_to(first)
    with pytest.raises(OSError, match="symbolic links"):
        write_atomically(first, b"x")
    assert first.is_symlink()


def test_a_fifo_is_written_through(tmp_path: Path) -> None:
    """Its reader gets the content; it stays a FIFO."""
    path, got = tmp_path / "fifo", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    write_atomically(path, b"content")
    reader.join(timeout=60)
    assert got == [b"content"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_devices_stay_devices(tmp_path: Path) -> None:
    """/dev/null takes everything, /dev/full nothing, by a link too; the error names the path that was given."""
    link = tmp_path / "link"
    link.symlink_to("/dev/full")
    write_atomically("/dev/null", b"x")
    for path in ("/dev/full", str(link)):
        with pytest.raises(OSError, match="No space left on device") as caught:
            write_atomically(path, b"x")
        assert caught.value.filename == path
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert link.is_symlink()


def test_an_existing_mode_is_kept(tmp_path: Path) -> None:
    """A private file stays private; a new one has what the umask leaves."""
    private, new = tmp_path / "private", tmp_path / "new"
    private.write_bytes(b"")
    private.chmod(0o600)
    before = os.umask(0o027)
    try:
        write_atomically(private, b"x")
        write_atomically(new, b"x")
    finally:
        os.umask(before)
    assert (stat.S_IMODE(private.stat().st_mode), stat.S_IMODE(new.stat().st_mode)) == (0o600, 0o640)


@pytest.mark.parametrize(("name", "said"), [(".", "Is a directory"), ("file/child", "Not a directory|File exists")])
def test_what_cannot_be_written_is_an_error_with_its_path(tmp_path: Path, name: str, said: str) -> None:
    """A folder, and a file in the place of a folder."""
    (tmp_path / "file").write_bytes(b"kept")
    with pytest.raises(OSError, match=said) as caught:
        write_atomically(tmp_path / name, b"x")
    assert caught.value.filename == str(tmp_path / name)
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A write that the system cuts short: the error, the old content, no half file."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    done = program(
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from simulator.results.written_files import write_atomically\n"
        "try:\n    write_atomically(sys.argv[1], b'x' * 5000)\nexcept OSError as error:\n"
        "    print(error.filename, error.strerror)",
        str(path),
    )
    assert done.stdout == f"{path} File too large\n", done.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from simulator.results import written_files as files
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(sys.argv[1], b"half")
"""


def test_the_leftover_of_a_killed_writer_is_removed(tmp_path: Path) -> None:
    """SIGKILL before the rename leaves a file beside; the next write of that path removes it, and no other's."""
    path = tmp_path / "plan.json"
    assert program(KILLED, str(path)).returncode == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".plan.json.")
    others = [
        tmp_path / name
        for name in (".plan.json.backup", ".plan.json.ABCDEFGH", ".other.json.abcd1234", "plan.json.abcd1234")
    ]
    for other in others:
        other.write_bytes(b"")
    write_atomically(path, b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_the_file_of_a_living_writer_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers of one path at once: the second removes nothing of the first, and both end whole."""
    path, replace, inner = tmp_path / "file", os.replace, []

    def second_writer(source: str, target: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        inner.append(
            program(
                "import sys; from simulator import write_atomically; write_atomically(sys.argv[1], b'2')", str(path)
            )
        )
        assert path.read_bytes() == b"2"
        replace(source, target)

    monkeypatch.setattr(os, "replace", second_writer)
    write_atomically(path, b"1")
    assert inner[0].returncode == 0
    assert path.read_bytes() == b"1"
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_file_that_was_removed_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer takes it for a leftover before it is locked: the next one is written, and no file stays open."""
    lock, gone = files._lock, list[str]()

    def late(handle: int, *, wait: bool) -> bool:
        if not gone:
            (one,) = tmp_path.iterdir()
            gone.append(one.name)
            one.unlink()
        return lock(handle, wait=wait)

    monkeypatch.setattr(files, "_lock", late)
    before = os.dup(0)
    os.close(before)
    write_atomically(tmp_path / "file", b"whole")
    after = os.dup(0)
    os.close(after)
    assert (after, (tmp_path / "file").read_bytes(), len(gone)) == (before, b"whole", 1)
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
