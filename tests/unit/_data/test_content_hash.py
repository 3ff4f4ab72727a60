"""The content hash is the documented one, and what is unchanged is not read again."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import kinetic
from kinetic._blobs import file_tree
from kinetic._data import Data
from kinetic.errors import DataChangedError, DataError, DataMissingError

AS_ROOT = os.geteuid() == 0

# Computed with printf and sha256sum from the documentation alone.
VECTORS = [
    ({"hello.txt": b"hello\n"}, "hello.txt", "565d06b849b37d8a24aae0d602e9b6d12ea51d00864b40ebd026752c90673939"),
    ({"hello.txt": b"hello\n"}, "", "b77375e7355582979783e5ee6570af7ba506d76b7fdd2f0fe5fde59551b7cbd3"),
    ({}, "", "9d1ae5a6cdbe837d499a16cb32234ea2d953c60e8e8fdc88f84a3bbe2d629143"),
    (
        {"a/deep/q": b"", "a/x.txt": b"X", "a-b/y": b"Y", "b.txt": b"B", "z": b"\xff\0"},
        "",
        "6661f4336da37d7c0f3aacd22ab57af497cd0f4ac22ab446dfa5b76528921ea6",
    ),
    ({"grüße €.bin": b"x"}, "grüße €.bin", "ed7375d85d0155cfe40cc1c8387b3f39b1e3c0822199a6ee56f84962a39c3471"),
]
CASES = ["one file", "a folder with it", "an empty folder", "files before folders, depth first", "not ASCII"]


def documented(root: str) -> str:
    """The documented hash in the plainest way: an implementation of its own, to compare with."""
    if os.path.isfile(root):
        name = os.path.basename(root).encode("utf-8", "surrogateescape")
        return hashlib.sha256(b"file:" + hashlib.sha256(name + b"\0" + Path(root).read_bytes()).digest()).hexdigest()
    whole = b"dir:"
    for above, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(above, name)
            relative = os.path.relpath(path, root).encode("utf-8", "surrogateescape")
            whole += hashlib.sha256(relative + b"\0" + Path(path).read_bytes()).digest()
    return hashlib.sha256(whole).hexdigest()


def grow(root: Path, dice: random.Random, depth: int = 3) -> None:
    """Make a tree of everything that a folder may hold."""
    root.mkdir(parents=True, exist_ok=True)
    names = ["a", "a b", "a-b", "A", "ä", "日本", "z.txt", "line\nbreak", ".hidden", "a.b", "a0", "€", "-x", "%41", " "]
    if sys.platform == "linux":
        names.append(os.fsdecode(b"not-utf8-\xff"))
    for name in dice.sample(names, dice.randrange(len(names))):
        what, path = dice.randrange(10), root / name
        if what < 3 and depth:
            grow(path, dice, depth - 1)
        elif what == 3:
            path.mkdir()
        elif what == 4:
            (root.parent / f"target-{dice.random()}").write_bytes(dice.randbytes(5))
            path.symlink_to(dice.choice(list(root.parent.glob("target-*"))))
        elif what == 5:
            path.symlink_to(root.parent)
        else:
            path.write_bytes(dice.randbytes(dice.choice([0, 1, 100, 70_000])))
            path.chmod(dice.choice([0o600, 0o700, 0o644, 0o755]))


@pytest.mark.parametrize(("files", "path", "expected"), VECTORS, ids=CASES)
def test_the_hash_is_what_the_documentation_says(tmp_path, fill, files, path, expected):
    (tmp_path / "set").mkdir()
    root = fill(tmp_path / "set", files)

    assert Data(root / path if path else root).content_hash() == expected
    assert documented(str(root / path if path else root)) == expected


@pytest.mark.parametrize("seed", range(25))
def test_on_any_tree_it_agrees_with_an_implementation_of_its_own(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(file_tree, "_FEW_BYTES", seed % 2 * 10**9)
    monkeypatch.setattr(file_tree, "_BATCH_FILES", 1 + seed % 5)
    grow(tmp_path / "set", random.Random(seed))

    assert Data(tmp_path / "set").content_hash() == documented(str(tmp_path / "set"))
    assert Data(tmp_path / "set").content_hash() == documented(str(tmp_path / "set"))


def test_a_file_larger_than_what_is_read_at_once(tmp_path):
    (tmp_path / "large.bin").write_bytes(os.urandom(3 << 20) * 2 + b"rest")

    assert Data(tmp_path / "large.bin").content_hash() == documented(str(tmp_path / "large.bin"))


def test_modes_times_and_empty_folders_do_not_count(tmp_path, fill):
    root = fill(tmp_path / "set", {"a": b"1", "b/c": b"2"})
    before = Data(root).content_hash()

    (root / "a").chmod(0o777)
    os.utime(root / "b" / "c", (1, 1))
    (root / "nothing" / "here").mkdir(parents=True)

    assert Data(root).content_hash() == before


def test_a_linked_file_counts_by_what_it_holds_and_a_linked_folder_not_at_all(tmp_path, fill):
    root = fill(tmp_path / "set", {"a": b"1"})
    fill(tmp_path / "elsewhere", {"b": b"2", "c": b"3"})
    (root / "b").symlink_to(tmp_path / "elsewhere" / "b")
    (root / "folder").symlink_to(tmp_path / "elsewhere")
    (root / "itself").symlink_to(root)

    linked = Data(root).content_hash()

    plain = fill(tmp_path / "plain", {"a": b"1", "b": b"2"})
    assert linked == Data(plain).content_hash()


def test_a_folder_behind_a_link_is_data_like_any_other(tmp_path, fill):
    root = fill(tmp_path / "set", {"a": b"1"})
    (tmp_path / "link").symlink_to(root)

    assert Data(tmp_path / "link").content_hash() == Data(root).content_hash()


def test_a_link_that_leads_nowhere_is_named(tmp_path, fill):
    root = fill(tmp_path / "set", {"sub/a": b"1"})
    (root / "sub" / "broken").symlink_to("../gone")

    with pytest.raises(DataMissingError, match="sub/broken") as caught:
        Data(root).content_hash()

    assert "its target does not exist: ../gone" in str(caught.value)


def test_pipes_and_sockets_hold_no_data_and_are_left_out(tmp_path, fill):
    root = fill(tmp_path / "set", {"a": b"1"})
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as plug:
        here = Path.cwd()
        os.chdir(root)  # a socket's path must be short
        try:
            plug.bind("plug")
        finally:
            os.chdir(here)

        tree = file_tree.digest_tree(str(root), None)

    assert [file.relative for file in tree.files] == ["a"]
    assert tree.left_out == ["pipe (neither a file nor a folder)", "plug (neither a file nor a folder)"]


@pytest.mark.skipif(AS_ROOT, reason="root reads everything")
@pytest.mark.parametrize("path", ["sub/secret", "sub"])
def test_what_cannot_be_read_is_named(tmp_path, fill, path):
    root = fill(tmp_path / "set", {"sub/secret": b"1"})
    (root / path).chmod(0)

    try:
        with pytest.raises(DataError, match=f"cannot be read: .*{path}"):
            Data(root).content_hash()
    finally:
        (root / path).chmod(0o700)


def test_a_file_that_goes_away_between_walk_and_reading_is_named(tmp_path, fill, monkeypatch):
    root = fill(tmp_path / "set", {"a": b"1", "b": b"2"})
    really = file_tree.Reader.digest

    def slow(self, file):
        (root / "b").unlink(missing_ok=True)
        return really(self, file)

    monkeypatch.setattr(file_tree.Reader, "digest", slow)

    with pytest.raises(DataChangedError, match=r"set/b \["):
        Data(root).content_hash()


@pytest.mark.parametrize("threads", [False, True])
def test_an_error_in_one_file_ends_the_reading_of_all(tmp_path, fill, monkeypatch, threads):
    root = fill(tmp_path / "set", {f"{number:03}": b"x" * 1000 for number in range(200)})
    monkeypatch.setattr(file_tree, "_FEW_BYTES", 0 if threads else 10**9)
    monkeypatch.setattr(file_tree, "_BATCH_FILES", 5)
    read = []

    def failing(self, file):
        read.append(file)
        raise DataError("no")

    monkeypatch.setattr(file_tree.Reader, "digest", failing)

    with pytest.raises(DataError, match="no"):
        Data(root).content_hash()

    assert len(read) < 100


def test_ctrl_c_in_the_middle_of_a_large_file_ends_the_process(tmp_path):
    (tmp_path / "large.bin").touch()
    os.truncate(tmp_path / "large.bin", 1 << 40)  # a hole of a terabyte takes an hour to read
    code = "import sys\nfrom kinetic._data import Data\nprint('go', flush=True)\nData(sys.argv[1]).content_hash()"
    environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}
    child = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "large.bin"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "go\n"
        assert "reading" in child.stderr.readline()  # told after a second: the threads are at work

        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=10)
    finally:
        child.kill()
        child.wait()

    assert "KeyboardInterrupt" in said


def test_a_thread_that_outlives_the_main_one_can_hash(tmp_path, fill):
    root = fill(tmp_path / "set", {"large.bin": os.urandom(file_tree._FEW_BYTES)})
    code = """
import sys, threading
from kinetic._data import Data
def late():
    threading.main_thread().join()
    print(Data(sys.argv[1]).content_hash())
threading.Thread(target=late).start()
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}

    done = subprocess.run(
        [sys.executable, "-c", code, root], env=environ, capture_output=True, text=True, timeout=15, check=False
    )

    assert (done.stdout.strip(), done.stderr) == (documented(str(root)), "")


# --------------------------------------------------------------------------------------------------------- remembering


@pytest.fixture
def read(monkeypatch):
    """The names of files that are read, as they are."""
    names = []
    really = file_tree.Reader.digest

    def noted(self, file):
        names.append(file.relative)
        return really(self, file)

    monkeypatch.setattr(file_tree.Reader, "digest", noted)
    return names


@pytest.fixture
def root(tmp_path, fill):
    return fill(tmp_path / "set", {"a": b"1", "sub/b": b"2", "sub/c": b"3"})


def taken(names: list[str]) -> list[str]:
    found, names[:] = sorted(names), []
    return found


def test_unchanged_files_are_not_read_again(root, read, calm):
    first = Data(root).content_hash()
    assert taken(read) == ["a", "sub/b", "sub/c"]

    assert Data(root).content_hash() == first
    assert taken(read) == []


@pytest.mark.parametrize(
    "edit",
    [
        lambda path: path.write_bytes(b"9"),
        lambda path: (path.write_bytes(b"9"), os.utime(path, ns=(1, 1))),
        lambda path: path.chmod(0o700),
        lambda path: (path.with_name("new").write_bytes(b"9"), path.with_name("new").rename(path)),
    ],
    ids=["content", "content, time set back", "mode", "replaced"],
)
def test_only_what_was_touched_is_read_again(root, read, calm, edit):
    Data(root).content_hash()
    os.utime(root / "sub" / "b", ns=(1, 1))
    Data(root).content_hash()
    taken(read)

    edit(root / "sub" / "b")

    assert Data(root).content_hash() == documented(str(root))
    assert taken(read) == ["sub/b"]


def test_added_renamed_and_removed_files_are_noticed(root, read, calm):
    Data(root).content_hash()
    taken(read)

    (root / "sub" / "c").rename(root / "d")
    (root / "a").unlink()

    assert Data(root).content_hash() == documented(str(root))
    assert taken(read) == ["d"]


def test_a_file_that_changed_a_moment_ago_is_read_again(root, read, busy):
    (root / "sub" / "b").write_bytes(b"4")
    Data(root).content_hash()
    taken(read)

    Data(root).content_hash()

    assert "sub/b" in taken(read)


def test_a_file_whose_clock_goes_ahead_is_read_again(root, read):
    os.utime(root / "a", ns=(1, time.time_ns() + 10**12))
    Data(root).content_hash()
    taken(read)

    Data(root).content_hash()

    assert "a" in taken(read)


def test_a_file_and_a_folder_of_one_name_are_not_confused(tmp_path, fill, calm):
    (tmp_path / "a").write_bytes(b"1")
    as_file = Data(tmp_path / "a").content_hash()
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").rename(tmp_path / "a" / "a")

    assert Data(tmp_path / "a").content_hash() == documented(str(tmp_path / "a")) != as_file


@pytest.mark.parametrize(
    "damage",
    [
        lambda page: b"",
        lambda page: b"{}\n",
        lambda page: b"null\n" + page,
        lambda page: page[: len(page) // 2],
        lambda page: page[:-1] + bytes([page[-1] ^ 1]),
        lambda page: page.replace(b'"kinetic-cache": 1', b'"kinetic-cache": 9'),
        lambda page: page.replace(b'"about": "', b'"about": "00'),
        lambda page: page.replace(b'"number": ', b'"number": "x", "y": '),
        lambda page: b"\xff" * 100,
        lambda page: b"[" * 100_000,
    ],
)
def test_a_damaged_or_foreign_memory_is_an_empty_one(root, cache, read, calm, damage):
    expected = Data(root).content_hash()
    taken(read)
    (page,) = (cache / "data").glob("*.stamps")
    page.write_bytes(damage(page.read_bytes()))

    assert Data(root).content_hash() == expected
    assert taken(read) == ["a", "sub/b", "sub/c"]
    assert Data(root).content_hash() == expected
    assert taken(read) == []


def test_a_memory_that_cannot_be_written_is_no_harm(root, home):
    home.mkdir()
    (home / "cache").write_text("not a folder")

    assert Data(root).content_hash() == documented(str(root))


def test_a_full_disk_leaves_no_half_written_memory(root, cache, calm, monkeypatch):
    def full(*_words):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)

    Data(root).content_hash()

    assert list((cache / "data").iterdir()) == []


def test_a_file_that_never_holds_still_is_hashed_as_it_was_and_not_remembered(root, cache, calm, monkeypatch):
    really = os.readv

    def growing(descriptor, buffers):
        with open(root / "a", "ab") as file:
            file.write(b"!")
        return really(descriptor, buffers) if os.fstat(descriptor).st_size < 20 else 0

    with monkeypatch.context() as patch:
        patch.setattr(os, "readv", growing)
        Data(root).content_hash()

    tree = file_tree.digest_tree(str(root), cache / "data")
    assert tree.hash == documented(str(root))


def test_many_threads_that_hash_one_folder_agree(tmp_path, fill):
    root = fill(tmp_path / "set", {f"{number}": os.urandom(1000) for number in range(300)})
    found = []
    threads = [threading.Thread(target=lambda: found.append(Data(root).content_hash())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(found) == {documented(str(root))}
    assert len(found) == 6
