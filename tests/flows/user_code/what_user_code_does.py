"""A table of what user code does to its own process, and what its caller must get: the right value, or a true error.

Each row is a function that runs as a job, with what is expected of it. `test_what_user_code_does.py` copies this file
into a project, submits every row from one process, and compares.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import pty
import queue
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One line of the table: what the function returns, or the error, its code and words that it must carry."""

    function: Callable[[], Any]
    value: Any = None
    error: str = ""
    code: str = ""
    words: tuple[str, ...] = ()
    deadline: float | None = None


TABLE: dict[str, Row] = {}


def gives(value: Any, **more: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Note a row that returns this value."""
    return _note(value=value, **more)


def raises(error: str, *words: str, code: str = "", **more: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Note a row that ends with this error, whose text has these words."""
    return _note(error=error, words=words, code=code, **more)


def _note(**expected: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def note(function: Callable[[], Any]) -> Callable[[], Any]:
        TABLE[function.__name__] = Row(function, **expected)
        return function

    return note


def a_little_later(value: Any) -> Any:
    time.sleep(0.3)  # whoever speaks for the job meanwhile has spoken too early
    return value


# --------------------------------------------------------------------------------------------------------------- forks


@gives("the parent's")
def a_child_leaves_by_sys_exit() -> Any:
    if os.fork() == 0:
        sys.exit(0)
    time.sleep(6)  # longer than a job is given for its exit handlers: who takes the child for the job ends it by then
    return "the parent's"


@gives("the parent's")
def a_child_returns() -> Any:
    if os.fork() == 0:
        return "the child's"
    return a_little_later("the parent's")


@gives("the parent's")
def a_child_raises() -> Any:
    if os.fork() == 0:
        raise ValueError("the child's")
    return a_little_later("the parent's")


@gives("the parent's")
def a_child_is_interrupted() -> Any:
    if os.fork() == 0:
        raise KeyboardInterrupt
    return a_little_later("the parent's")


@gives([0, 3, 1, 1, 0])
def children_end_as_python_ends_them() -> Any:
    return [_status_of(end) for end in ("return", "sys.exit(3)", "sys.exit('words')", "raise", "sys.exit(None)")]


def _status_of(end: str) -> Any:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    raise _Out(end)


class _Out(SystemExit):
    """Come out of the function through all of its frames, as its end would."""

    def __init__(self, end: str) -> None:
        code = {"sys.exit(3)": 3, "sys.exit('words')": "words"}.get(end)
        super().__init__(code)
        if end == "raise":
            raise ValueError("the child's")


@gives({"parent": True})
def both_return_at_once() -> Any:
    return {"parent": os.fork() != 0}


@gives("the parent's")
def twenty_children_return() -> Any:
    for number in range(20):
        if os.fork() == 0:
            return f"child {number}"
    return "the parent's"


@gives("the parent's")
def a_grandchild_returns() -> Any:
    if os.fork() == 0:
        if os.fork() == 0:
            return "the grandchild's"
        return "the child's"
    return a_little_later("the parent's")


@gives("the parent's")
def a_child_on_a_terminal_of_its_own_returns() -> Any:
    pid, descriptor = pty.fork()
    if pid == 0:
        return "the child's"
    with contextlib.suppress(OSError):
        while os.read(descriptor, 1000):
            pass
    return "the parent's"


@gives("the parent's")
def a_child_of_libc_returns() -> Any:
    if ctypes.CDLL(None).fork() == 0:
        return "the child's"
    return a_little_later("the parent's")


@gives("the parent's")
def a_child_of_a_thread_comes_out_of_it() -> Any:
    thread = threading.Thread(target=os.fork)
    thread.start()
    thread.join()
    return a_little_later("the parent's")


@gives("the parent's")
def a_child_closes_everything_and_returns() -> Any:
    if os.fork() == 0:
        os.closerange(0, 256)
        return "the child's"
    return a_little_later("the parent's")


@gives("the parent's")
def a_child_that_was_told_to_be_quick_is_left_alone() -> Any:
    if os.fork() == 0:
        os._exit(3)
    return a_little_later("the parent's")


@gives(0)
def a_child_becomes_another_program() -> Any:
    pid = os.fork()
    if pid == 0:
        os.execv(shutil.which("true") or "/bin/true", ["true"])
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class ForksWhenPickled:
    def __reduce__(self) -> Any:
        return str, (f"parent {os.fork() != 0}",)


@gives("parent True")
def a_value_forks_while_it_is_pickled() -> Any:
    return ForksWhenPickled()


@gives(1)
def an_exit_handler_forks() -> Any:
    atexit.register(os.fork)
    return 1


@raises("JobError", "ended by itself with exit code 0", code="exit")
def the_parent_leaves_and_its_child_goes_on() -> Any:
    if os.fork():
        os._exit(0)
    return "the child's"


@gives([0, 1, 4])
def a_pool_of_processes() -> Any:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(_square, range(3))


def _square(number: int) -> int:
    return number * number


@gives(9)
def an_executor_of_processes() -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(_square, 3).result()


@gives("out\n")
def a_program_is_run() -> Any:
    return subprocess.run(["echo", "out"], capture_output=True, text=True, check=True).stdout


# --------------------------------------------------------------------------------------------------------- descriptors


@gives(26)
def closes_all_descriptors_but_the_first_three() -> Any:
    os.closerange(3, 256)
    return 26


@gives(27)
def closes_all_descriptors() -> Any:
    os.closerange(0, 256)
    return 27


@raises("ValueError", "after all was closed", "in closes_all_descriptors_and_raises")
def closes_all_descriptors_and_raises() -> Any:
    os.closerange(0, 256)
    raise ValueError("after all was closed")


def _files_of_mine() -> list[str]:
    folder = tempfile.mkdtemp(dir=os.environ["THEIR_FOLDER"])
    os.closerange(0, 256)
    names = []
    for number in range(40):  # under every number that was ours
        names.append(f"{folder}/{number}")
        os.write(os.open(names[-1], os.O_RDWR | os.O_CREAT, 0o600), b"theirs")
    return names


@gives({"only theirs": True})
def opens_files_under_all_numbers_and_returns() -> Any:
    return {"files": _files_of_mine()}


@raises("ValueError", "with files of mine")
def opens_files_under_all_numbers_and_raises() -> Any:
    raise ValueError("with files of mine", _files_of_mine())


@raises("RuntimeError", "sys.exit(3)", "with-files:")
def opens_files_under_all_numbers_and_exits() -> Any:
    sys.stderr = None
    _files_of_mine()
    error = SystemExit(3)
    error.add_note("with-files:")
    raise error


@gives(30)
def prints_where_nothing_is_open() -> Any:
    os.close(1)
    os.close(2)
    print("to nobody", flush=False)
    return 30


@gives(31)
def has_no_standard_output() -> Any:
    sys.stdout = None
    return 31


@raises("ValueError", "without standard error")
def has_no_standard_error() -> Any:
    sys.stderr = None
    raise ValueError("without standard error")


@raises("ValueError", "closed streams")
def closes_its_streams() -> Any:
    sys.stdout.close()
    sys.stderr.close()
    raise ValueError("closed streams")


@raises("ValueError", "closed 2")
def closes_descriptor_2() -> Any:
    os.close(2)
    raise ValueError("closed 2")


@raises("ValueError", "with no stream")
def puts_an_object_in_the_place_of_standard_error() -> Any:
    sys.stderr = object()
    raise ValueError("with no stream")


class Exits:
    def write(self, text: str) -> None:
        raise SystemExit(9)

    flush = write


@raises("ValueError", "with a stream that exits")
def puts_a_stream_that_exits_in_the_place_of_both() -> Any:
    sys.stdout = sys.stderr = Exits()
    raise ValueError("with a stream that exits")


@raises("ValueError", "captured")
def captures_its_streams() -> Any:
    sys.stdout = sys.stderr = io.StringIO()
    raise ValueError("captured")


@raises("ValueError", "redirected")
def redirects_to_nowhere() -> Any:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    raise ValueError("redirected")


@raises("EOFError", "EOF when reading", "a job has no terminal")
def asks_a_question() -> Any:
    return input("who? ")


@raises("RuntimeError" if sys.version_info >= (3, 14) else "BdbQuit", "debug=True")  # there, pdb calls sys.exit(1)
def stops_for_a_debugger_of_a_terminal() -> Any:
    breakpoint()  # noqa: T100 - what users write
    return "not reached"


@gives("")
def closes_standard_input() -> Any:
    sys.stdin.close()
    return ""


def _write_to_pipes(data: bytes) -> None:
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                os.write(number, data)


@gives(40)
def writes_garbage_to_every_pipe() -> Any:
    _write_to_pipes(b"\xff\0 no JSON {[\n" * 50)
    return 40


@gives(41)
def writes_half_a_line_to_every_pipe() -> Any:
    _write_to_pipes(b'{"done": ')
    return 41


@gives(42)
def writes_words_of_wrong_types_to_every_pipe() -> Any:
    for word in ('"x"', "[1]", "3", '{"status": []}', '{"status": "succeeded", "body_length": "x"}'):
        _write_to_pipes(f'\n{{"phase": 3, "done": {word}}}\n'.encode())
    return 42


@gives(43)
def writes_a_deep_nest_to_every_pipe() -> Any:
    _write_to_pipes(b"\n" + b"[" * 60_000 + b"\n")
    return 43


@gives(44)
def writes_a_long_line_to_every_pipe() -> Any:
    for _ in range(200):
        _write_to_pipes(b"x" * 60_000)
    return 44


@gives(45)
def opens_files_until_there_are_no_more() -> Any:
    global kept
    kept = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.suppress(OSError):
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY))
    return 45


@gives(46)
def may_open_no_file_at_all() -> Any:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    return 46


@raises("ValueError", "no descriptor is left")
def may_open_no_file_at_all_and_raises() -> Any:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    raise ValueError("no descriptor is left")


@gives(47)
def leaves_a_socket_open() -> Any:
    global listening
    listening = socket.create_server(("127.0.0.1", 0))
    return 47


# --------------------------------------------------------------------------------------------------------------- exits


@gives(None)
def leaves_by_sys_exit() -> Any:
    sys.exit()


@gives(None)
def leaves_by_sys_exit_0() -> Any:
    sys.exit(0)


@gives(None)
def leaves_by_sys_exit_none() -> Any:
    sys.exit(None)


@raises("RuntimeError", "sys.exit(3)")
def leaves_by_sys_exit_3() -> Any:
    sys.exit(3)


@raises("RuntimeError", "sys.exit('no data')")
def leaves_by_sys_exit_with_words() -> Any:
    sys.exit("no data")


class BadRepr:
    def __repr__(self) -> str:
        raise SystemExit(8)


@raises("RuntimeError", "sys.exit(<", "whose repr fails: SystemExit")
def leaves_by_sys_exit_with_a_code_that_cannot_be_shown() -> Any:
    sys.exit(BadRepr())


@raises("JobError", "ended by itself with exit code 0, as os._exit(0) does", code="exit")
def leaves_at_once_with_0() -> Any:
    os._exit(0)


@raises("JobError", "ended by itself with exit code 5", code="exit")
def leaves_at_once_with_5() -> Any:
    os._exit(5)


@raises("JobError", "SIGABRT", code="signal")
def aborts() -> Any:
    os.abort()


@raises("JobError", "SIGKILL", code="signal")
def kills_itself() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@raises("RuntimeError", "KeyboardInterrupt")
def is_interrupted() -> Any:
    raise KeyboardInterrupt


@raises("RuntimeError", "GeneratorExit")
def raises_generator_exit() -> Any:
    raise GeneratorExit


@gives(5)
def a_thread_exits() -> Any:
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()
    return 5


@gives(6)
def an_exit_handler_raises() -> Any:
    atexit.register(_raise)
    return 6


def _raise() -> None:
    raise ValueError("at the exit")


@gives(7)
def an_exit_handler_exits() -> Any:
    atexit.register(sys.exit, 3)
    return 7


@gives(8)
def an_exit_handler_ends_the_process() -> Any:
    atexit.register(os._exit, 3)
    return 8


@gives(9)
def an_exit_handler_hangs_where_all_descriptors_are_closed() -> Any:
    atexit.register(time.sleep, 300)
    os.closerange(0, 256)
    return 9


# ------------------------------------------------------------------------------------------------------------- signals


class TakesItsTime:
    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        time.sleep(0.3)
        return int, (self.value,)


def _ring(*_: object) -> None:
    raise TimeoutError("the alarm rang after the function had ended")


@gives(60)
def leaves_an_alarm_that_rings() -> Any:
    signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.05)
    return TakesItsTime(60)


@gives(61)
def ignores_all_signals() -> Any:
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    return 61


@gives(62)
def blocks_all_signals() -> Any:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return 62


@gives(63)
def takes_the_wake_up_descriptor() -> Any:
    _, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    return 63


@gives(64)
def stops_its_supervisor() -> Any:
    os.kill(os.getppid(), signal.SIGSTOP)
    return 64


@raises("JobError", "exit code 4", code="exit")
def stops_its_supervisor_and_leaves_at_once() -> Any:
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(4)


@gives(65)
def joins_the_group_of_its_supervisor() -> Any:
    os.setpgid(0, os.getpgid(os.getppid()))
    return 65


@raises("JobError", "ended at its deadline of 1 s", code="deadline", deadline=1.0)
def joins_the_group_of_its_supervisor_and_hangs() -> Any:
    os.setpgid(0, os.getpgid(os.getppid()))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)


@raises("JobError", "ended at its deadline of 1 s", code="deadline", deadline=1.0)
def hangs_with_all_signals_blocked() -> Any:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(300)


# ------------------------------------------------------------------------------------------------- the process itself


@gives(70)
def goes_elsewhere() -> Any:
    os.chdir("/")
    return 70


@gives(71)
def removes_its_working_folder() -> Any:
    shutil.rmtree(os.getcwd())
    return 71


@gives(72)
def takes_all_rights_from_new_files() -> Any:
    os.umask(0o777)
    return 72


@gives(73)
def clears_its_environment() -> Any:
    os.environ.clear()
    return 73


@gives(74)
def clears_its_path() -> Any:
    sys.path.clear()
    return 74


@gives("bytes: 3000000")
def limits_the_size_of_files() -> Any:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return bytes(3_000_000)


@raises("JobError", "could not be written to the disk: [Errno 27] File too large", code="not-written")
def limits_the_size_of_files_for_good() -> Any:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    return bytes(3_000_000)


@gives("bytes: 3000000")
def limits_its_memory() -> Any:
    value = bytes(3_000_000)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return value


@gives(78)
def gives_up_its_rights() -> Any:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    return 78


@raises("ValueError", "without rights")
def gives_up_its_rights_and_raises() -> Any:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    raise ValueError("without rights")


@gives(80)
def locks_itself_into_an_empty_folder() -> Any:
    if os.getuid() == 0:
        os.chroot(tempfile.mkdtemp())
    return 80


@gives(81)
def is_very_nice() -> Any:
    os.nice(19)
    return 81


# ------------------------------------------------------------------------------------------------------------- threads


@gives(82)
def leaves_a_thread() -> Any:
    threading.Thread(target=time.sleep, args=(300,)).start()
    return 82


@gives(83)
def leaves_a_thread_that_prints() -> Any:
    def chatter() -> None:
        while True:
            print("still here")

    threading.Thread(target=chatter, daemon=True).start()
    return 83


@gives(84)
def leaves_an_executor() -> Any:
    global pool
    pool = ThreadPoolExecutor(2)
    return pool.submit(_square, 9).result() + 3


@gives(85)
def a_thread_raises() -> Any:
    thread = threading.Thread(target=_raise)
    thread.start()
    thread.join()
    return 85


# ----------------------------------------------------------------------------------------------------- the interpreter


def _broken(*_: object, **__: object) -> Any:
    raise RuntimeError("this was replaced by user code")


@gives(90)
def replaces_json() -> Any:
    json.dumps = json.loads = json.dump = json.load = _broken
    return 90


@gives([91])
def replaces_pickle() -> Any:
    pickle.dump = pickle.dumps = pickle.load = pickle.loads = pickle.Pickler = pickle.Unpickler = _broken
    return [91]


@raises("KeyError", "92")
def replaces_pickle_and_raises() -> Any:
    pickle.dump = pickle.dumps = pickle.load = pickle.loads = pickle.Pickler = pickle.Unpickler = _broken
    raise KeyError(92)


@gives(93)
def replaces_much_of_os() -> Any:
    for name in ("write", "getpid", "_exit", "fsync", "fstat", "scandir", "stat", "kill", "getppid", "open"):
        setattr(os, name, _broken)
    return 93


@gives("bytes: 3000000")
def replaces_much_of_os_and_returns_much() -> Any:
    for name in ("write", "getpid", "_exit", "fsync", "fstat", "ftruncate", "lseek", "open"):
        setattr(os, name, _broken)
    return bytes(3_000_000)


@gives(94)
def replaces_open_and_print() -> Any:
    builtins.open = io.open = builtins.print = _broken
    return 94


@gives(95)
def replaces_hashlib_and_time() -> Any:
    hashlib.sha256 = hashlib.new = time.monotonic = time.time = time.sleep = _broken
    return 95


@gives(96)
def forgets_all_modules() -> Any:
    sys.modules.clear()
    return 96


@raises("ValueError", "a module is gone")
def forgets_modules_and_raises() -> Any:
    for name in ("traceback", "linecache", "pickle", "json", "cloudpickle"):
        sys.modules.pop(name, None)
    raise ValueError("a module is gone")


@gives(97)
def lowers_the_recursion_limit() -> Any:
    sys.setrecursionlimit(40)
    return 97


@raises("ValueError", "a low limit")
def lowers_the_recursion_limit_and_raises() -> Any:
    sys.setrecursionlimit(40)
    raise ValueError("a low limit")


@gives(98)
def traces_what_comes_after_it() -> Any:
    sys.setprofile(_broken_once_left)
    sys.settrace(_broken_once_left)
    return 98


def _broken_once_left(frame: Any, *_: object) -> Any:
    if "delivering" in frame.f_code.co_filename:
        raise RuntimeError("the hook of user code")
    return None


@gives(99)
def makes_warnings_errors() -> Any:
    warnings.simplefilter("error")
    gc.disable()
    gc.freeze()
    return 99


@raises("ValueError", "for a hook that fails")
def replaces_all_hooks() -> Any:
    sys.excepthook = sys.unraisablehook = threading.excepthook = _broken
    raise ValueError("for a hook that fails")


# -------------------------------------------------------------------------------------------------------------- values


@raises("ResultNotPicklableError", "builtins.generator that cannot be pickled", code="not-picklable")
def returns_a_generator() -> Any:
    return (number for number in range(3))


@raises("ResultNotPicklableError", "['rows'][1]", "_queue.SimpleQueue", code="not-picklable")
def returns_a_queue_deep_inside() -> Any:
    return {"names": ["a"], "rows": [1, queue.SimpleQueue()]}


@raises("ResultNotPicklableError", "a _thread.lock that cannot", "a copy of it would not be", code="not-picklable")
def returns_a_lock() -> Any:
    return threading.Lock()


class Reduces:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error

    def __repr__(self) -> str:
        return "Reduces()"


@raises("ResultNotPicklableError", "SystemExit: 4", code="not-picklable")
def returns_what_exits_when_it_is_pickled() -> Any:
    return Reduces(SystemExit(4))


@raises("ResultNotPicklableError", "KeyboardInterrupt", code="not-picklable")
def returns_what_is_interrupted_when_it_is_pickled() -> Any:
    return Reduces(KeyboardInterrupt())


@raises("ResultNotPicklableError", "Input/output error", code="not-picklable")
def returns_what_meets_the_disk_when_it_is_pickled() -> Any:
    return Reduces(OSError(5, "Input/output error"))


@raises("JobError", "not enough memory", code="memory")
def returns_what_finds_no_memory_when_it_is_pickled() -> Any:
    return Reduces(MemoryError())


class Shows(Reduces):
    def __repr__(self) -> str:
        raise self.error

    __str__ = __repr__


@raises("ResultNotPicklableError", "cannot be pickled", code="not-picklable")
def returns_what_exits_when_it_is_shown() -> Any:
    return Shows(SystemExit(4))


@raises("ResultNotPicklableError", "nested too deeply", code="not-picklable")
def returns_a_deep_nest() -> Any:
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    return nest


@gives("[[...]]")
def returns_a_list_that_holds_itself() -> Any:
    ring: list[Any] = []
    ring.append(ring)
    return ring


class Dies:
    def __del__(self) -> None:
        raise SystemExit(3)


@gives(110)
def leaves_what_exits_when_it_is_deleted() -> Any:
    Dies()
    global dying
    dying = Dies()
    return 110


@gives("bytes: 20971520")
def returns_twenty_mebibytes() -> Any:
    return bytes(20 << 20)


# ---------------------------------------------------------------------------------------------------------- exceptions


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@raises("Mute", "in raises_what_exits_when_it_is_shown")
def raises_what_exits_when_it_is_shown() -> Any:
    raise Mute


class Interrupted(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


@raises("Interrupted", "in raises_what_is_interrupted_when_it_is_shown")
def raises_what_is_interrupted_when_it_is_shown() -> Any:
    raise Interrupted


class ExitsWhenPickled(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit(3)


@raises("JobError", "ExitsWhenPickled: it", "SystemExit: 3", code="exception-not-here")
def raises_what_exits_when_it_is_pickled() -> Any:
    raise ExitsWhenPickled("it")


class ExitsWhenOpened(Exception):
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


@raises("JobError", "ExitsWhenOpened: it", "SystemExit: 3", code="exception-not-here")
def raises_what_exits_when_it_is_opened() -> Any:
    raise ExitsWhenOpened("it")


class Nameless(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise SystemExit(3)


@raises("ValueError", "x" * 1000)
def raises_megabytes() -> Any:
    raise ValueError("x" * (10 << 20))


@raises("ValueError", "number 999")
def raises_a_long_chain() -> Any:
    error: Exception | None = None
    for number in range(1000):
        last = error
        error = ValueError(f"number {number}")
        error.__cause__ = last
    assert error is not None
    raise error


@raises("RecursionError", "recursion")
def recurses_for_ever() -> Any:
    return recurses_for_ever()


@raises("FileNotFoundError", "na")
def raises_with_a_name_that_is_not_utf_8() -> Any:
    os.stat(b"/na\xefve")


@raises("MemoryError")
def raises_memory_error() -> Any:
    raise MemoryError


@raises("ExceptionGroup", "two", "sub-exception")
def raises_a_group() -> Any:
    raise ExceptionGroup("two", [ValueError(1), KeyError(2)])


@raises("ValueError", "with odd notes")
def raises_with_odd_notes() -> Any:
    error = ValueError("with odd notes")
    error.__notes__ = [3, BadRepr()]
    raise error
