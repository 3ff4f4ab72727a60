"""What a job prints: both streams in one file, in true order, soon, and with every byte that was written."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import kinetic

SOURCE = Path(kinetic.__file__).parents[1]


@pytest.fixture
def printed(tmp_path: Path) -> Callable[[str], bytes]:
    """Return a function that runs a text behind redirected streams, and returns the bytes of its log."""

    def run(text: str) -> bytes:
        log = tmp_path / "log"
        program = textwrap.dedent(text)
        head = (
            "import os, sys, time\nfrom pathlib import Path\n"
            "from kinetic._runner.worker import process_setup as output\n"
            f"LOG = Path('{log}')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", f"{head}output.redirect(LOG)\noutput.make_streams()\n{program}"],
            env={"PYTHONPATH": str(SOURCE)},
            capture_output=True,
            check=False,
        )
        assert done.stdout == b""
        assert done.stderr == b""
        return log.read_bytes()

    return run


def test_both_streams_go_into_one_file_in_the_order_in_which_they_were_written(printed) -> None:
    log = printed(
        """
        for number in range(3):
            print("out", number)
            print("err", number, file=sys.stderr)
        output.flush()
        """
    )

    assert log.decode().splitlines() == ["out 0", "err 0", "out 1", "err 1", "out 2", "err 2"]


def test_what_a_child_prints_is_there_as_well(printed) -> None:
    log = printed('print("first")\noutput.flush()\nos.system("echo second; echo third >&2")\nprint("fourth")')

    assert log.decode().splitlines() == ["first", "second", "third", "fourth"]


def test_stdout_gathers_a_block_and_does_not_write_line_by_line(printed) -> None:
    log = printed(
        'print("a line")\nassert LOG.read_bytes() == b""\nprint("x" * 70_000)\nassert LOG.stat().st_size > 60_000'
    )

    assert log.startswith(b"a line\n")


def test_a_flusher_brings_it_to_the_file_within_moments(printed) -> None:
    log = printed(
        """
        output.keep_flushing()
        print("soon")
        limit = time.monotonic() + 5
        while not LOG.read_bytes() and time.monotonic() < limit:
            time.sleep(0.01)
        os._exit(0)
        """
    )

    assert log == b"soon\n"


def test_an_error_is_written_at_once(printed) -> None:
    assert printed('print("told", file=sys.stderr)\nos._exit(0)') == b"told\n"


def test_any_text_and_any_byte_can_be_written(printed) -> None:
    log = printed(
        r"""
        print("ünïcödé ✓", "[/tmp/x]", "\udcff")
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\xff\xfe\n")
        print("\udcff", file=sys.stderr)
        """
    )

    assert log == "ünïcödé ✓ [/tmp/x] ".encode() + b"\xff\n\xff\xfe\n\\udcff\n"


def test_there_is_nothing_to_read(printed) -> None:
    assert printed("print(repr(sys.stdin.read()), os.read(0, 1))") == b"'' b''\n"


def test_a_log_is_for_its_owner_only_and_grows(printed, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("from before\n")

    assert printed('print("more")') == b"from before\nmore\n"

    (tmp_path / "log").unlink()
    printed('print("new")')
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_flushing_survives_whatever_the_user_did_to_the_streams(printed) -> None:
    log = printed('print("last")\nsys.stdout.flush()\nsys.stdout.close()\nsys.stderr = None\noutput.flush()')

    assert log == b"last\n"


def test_the_streams_that_python_keeps_are_ours_as_well(printed) -> None:
    assert printed(
        "assert sys.stdout is sys.__stdout__\nassert sys.stderr is sys.__stderr__\nprint(sys.stdout.encoding)"
    ) == (b"utf-8\n")


def test_whoever_asks_for_stacks_finds_the_thread_that_answers_and_never_disturbs_the_main_one(tmp_path: Path) -> None:
    code = f"""
import _thread, time, types
from pathlib import Path
from kinetic._runner.worker import process_setup
path = Path({str(tmp_path / "stacks")!r})
main_writes, write = _thread.allocate_lock(), process_setup._write_header
main_writes.acquire()

def number():
    main_writes.acquire()
    return _thread.get_native_id()

def late(descriptor, file):
    if not file.thread:  # it was read before the other thread had one, which now tries to be faster
        main_writes.release()
        limit = time.monotonic() + 0.2
        while time.monotonic() < limit and not path.stat().st_size:
            time.sleep(0.01)
    write(descriptor, file)

process_setup._thread = types.SimpleNamespace(**{{**vars(_thread), "get_native_id": number}})
process_setup._write_header = late
process_setup.keep_flushing()
process_setup.open_dump_file(types.SimpleNamespace(stacks=path, attempt=0, host=0))
process_setup._flushers.pop().end()
print(process_setup.read_header(path).thread)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert int(ran.stdout) > 0


def test_a_thread_that_begins_late_writes_into_no_file_that_the_function_opened(tmp_path: Path) -> None:
    code = f"""
import _thread, os, types
from pathlib import Path
from kinetic._runner.worker import process_setup
path, theirs = Path({str(tmp_path / "stacks")!r}), Path({str(tmp_path / "theirs")!r})
function_began = _thread.allocate_lock()
function_began.acquire()

def number():
    function_began.acquire()
    return _thread.get_native_id()

process_setup._thread = types.SimpleNamespace(**{{**vars(_thread), "get_native_id": number}})
process_setup.keep_flushing()
process_setup.open_dump_file(types.SimpleNamespace(stacks=path, attempt=0, host=0))
descriptor = process_setup.read_header(path).descriptor
os.close(descriptor)
assert os.open(theirs, os.O_RDWR | os.O_CREAT) == descriptor
function_began.release()
process_setup._flushers.pop().end()
print(theirs.stat().st_size, process_setup.read_header(path).thread)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    size, thread = map(int, ran.stdout.split())
    assert size == 0
    assert thread > 0


def test_a_child_that_is_forked_while_the_log_is_written_can_write_to_it() -> None:
    code = """
import io, os, signal, sys, time
from kinetic._runner.worker import process_setup

class Slow(io.FileIO):
    def write(self, data):
        if os.getpid() == parent:
            os.write(busy, b"x")
            time.sleep(0.3)
        return super().write(data)

parent, (begun, busy) = os.getpid(), os.pipe()
sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.BufferedWriter(Slow(1, "w", closefd=False)))
process_setup.keep_flushing()
print("parent")
os.read(begun, 1)
child = os.fork()
if child == 0:
    signal.alarm(5)
    print("child")
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "parent\nchild\n"
