"""Make a forked supervisor look like the interpreter that the user's code expects: signals, streams, paths, stacks."""

from __future__ import annotations

import _posixsubprocess
import _thread
import binascii
import contextlib
import faulthandler
import fcntl
import functools
import gc
import importlib.util
import io
import itertools
import json
import os
import pickle
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from kinetic._runner import processes
from kinetic._wire import NamedTuple, folders, references
from kinetic._wire.order import WORDS_VARIABLE
from kinetic._wire.task import LOG_STACKS_SIGNAL, STACKS_SIGNAL, Task
from kinetic.errors import RunnerError

_RECURSION = 1000  # Python's own default
_SPARE_DESCRIPTORS = 64  # more than user code may have used up
_RESET = ("SIGTERM", "SIGHUP", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGQUIT")
_BLOCK = 1 << 16
_FLUSH_SECONDS = 0.1


def prepare() -> None:
    """Do what a worker's process needs before any code of the user's, and what does not depend on its task.

    Streams and handlers of crashes name the descriptors 1 and 2, which may be redirected later.
    """
    reset_signals()
    make_streams()
    register_faulthandler()


def reset_signals() -> None:
    """Give the worker the signal handling of a fresh interpreter."""
    signal.set_wakeup_fd(-1)
    for name in _RESET:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


_applied: dict[str, str] = {}  # the variables that were applied before the task was known


def apply_environment(environment: Mapping[str, str], umask: int) -> None:
    """Replace every variable, before anything of the user's is unpickled; a second time, only what differs."""
    global _applied  # noqa: PLW0603 - of this process
    if not _applied:
        os.environ.clear()
    for name in [name for name in _applied if name not in environment]:
        del os.environ[name]
    for name, value in environment.items():
        if _applied.get(name) != value:
            os.environ[name] = value
    if not _applied or _applied.get("TZ") != environment.get("TZ"):
        time.tzset()
    _applied = dict(environment)
    os.umask(umask)
    gc.enable()  # what was there before the fork stays frozen: a collection would copy all of its memory


def register_faulthandler() -> None:
    """Let a crash, and a signal, write the stacks of all threads into the log."""
    faulthandler.enable(file=2, all_threads=True)
    faulthandler.register(LOG_STACKS_SIGNAL, file=2, all_threads=True, chain=False)


def restore_limits() -> None:
    """Undo what the function left that would hinder the delivery of its value.

    Timers that still run, hooks of tracers, a recursion limit too low for a pickler, and limits of this process on
    files, descriptors and memory, as far as they may be raised.
    """
    import resource

    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    if "pydevd" not in sys.modules:  # a debugger guards its own hooks
        sys.settrace(None)
        sys.setprofile(None)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION))
    for name in ("RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_DATA"):
        limit = getattr(resource, name, None)
        soft, hard = resource.getrlimit(limit) if limit is not None else (-1, -1)
        wanted = min(soft + _SPARE_DESCRIPTORS, hard) if name == "RLIMIT_NOFILE" and soft != hard else hard
        if limit is not None and soft != wanted:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(limit, (wanted, hard))


library_settings: dict[str, dict[str, Any]] = {}  # of the client, for ``import_hooks``
later_settings: dict[str, dict[str, Any]] = {}  # likewise, which no library asks for while it is imported
command_line: dict[str, Any] = {}  # likewise: what the client's has told the script


def enter_workspace(workspace: Path, plan: Mapping[str, Any], runner: str) -> None:
    """Rebuild ``sys.path`` in the client's order and the working directory, inside the workspace.

    Entries of the client's project are replaced by the workspace's; whatever else this interpreter searches stays.
    """
    library_settings.update(plan.get("settings", {}))
    later_settings.update(plan.get("later", {}))
    root = str(plan.get("root") or "")
    ours = [str(workspace / entry) if entry else str(workspace) for entry in plan.get("sys_path_rel", ("",))]
    others = [entry for entry in sys.path if entry != runner and not _is_in_project(entry, root)]
    about = _write_metadata(workspace.with_name(f"{workspace.name}.metadata"), plan.get("distributions", {}))
    named = plan.get("python_path", ())  # relative to the client's folder, so the supervisor does not have it
    libraries = plan.get("libraries", ())
    sys.path[:] = dict.fromkeys([*ours, *about, *named, runner, *others, *libraries, str(workspace)])
    if preloaded := sys.modules.get("kinetic._runner.worker.preloaded_modules"):  # most pods have one job
        preloaded.drop_shadowed(ours)
    if "KINETIC_SUPERVISOR" in os.environ:
        os.environ["KINETIC_PACKAGE_ROOT"] = str(workspace)  # of jobs that this one submits
        os.environ["KINETIC_PACKAGE_ORIGIN"] = str(plan.get("origin") or root)
    inside = plan.get("cwd_rel")
    folder = workspace / inside if isinstance(inside, str) and (workspace / inside).is_dir() else workspace
    os.chdir(folder)
    for path in sys.path:  # of packages there are hundreds more in a warm pod, and to look at them is to copy memory
        if not path.startswith("/") or sys.path_importer_cache.get(path, path) is None:
            sys.path_importer_cache.pop(path, None)  # there may be something now; the others see that by themselves


def _write_metadata(folder: Path, distributions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Tell ``importlib.metadata`` of the project, which is installed on the client only; return the folder to search.

    A package asks for its own version, as in ``__version__ = version("mine")``, and finds plugins by entry points.
    """
    for name, files in distributions.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / name / file).write_text(text, "utf-8")
    return [str(folder)] if distributions else []


def continue_the_script(plan: Mapping[str, Any]) -> None:
    """Do what the script has done before the call, and what needs the modules of the function, which are there now."""
    references.register_again()
    if (data := command_line.get("gin")) and importlib.util.find_spec("gin"):
        __import__("gin.config").config._CONFIG.update(pickle.loads(binascii.a2b_base64(data)))  # noqa: S301, SLF001
    _log_as_the_script(plan)


def _log_as_the_script(plan: Mapping[str, Any]) -> None:
    """Show log records as the script does, whose call of ``logging.basicConfig`` is not repeated here.

    The modules of the function are imported by now: one that made handlers itself has done so.
    """
    for name, told in plan.get("loggers", {}).items():
        with contextlib.suppress(Exception):  # as below
            _show_records_of(name, told)
    if "logging" in plan:
        with contextlib.suppress(Exception):  # a format that this Python does not know: the job runs without it
            import logging  # the client had it, too

            if plan["logging"].get("absl"):
                __import__("absl.logging").logging.use_absl_handler()
                return
            preloaded = sys.modules.get("kinetic._runner.worker.preloaded_modules")
            ahead = preloaded.hidden.root_handlers if preloaded is not None else []
            for handler in ahead:
                logging.root.removeHandler(handler)
            logging.basicConfig(**plan["logging"])  # does nothing where there are handlers
            for handler in ahead:
                if type(handler) is not logging.StreamHandler:  # as ``basicConfig`` makes it, which would do nothing
                    logging.root.addHandler(handler)


def set_levels(levels: Mapping[str, int]) -> None:
    """Give loggers of a library the levels that they have in the script, unless it is yet to set them up."""
    import logging  # it has loaded that

    for name, level in levels.items():
        if (logger := logging.getLogger(name)).handlers:
            logger.setLevel(level)


def _show_records_of(name: str, told: Mapping[str, Any]) -> None:
    """Give a logger the level that it has in the script, and a handler that writes to the log, if it has neither."""
    import logging  # as above

    logger, shown = logging.getLogger(name), told.get("handler", told)
    if logger.handlers or logger.level:
        return  # by a module of the function
    logger.setLevel(shown["level"])
    if shown is not told:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(shown.get("format"), shown.get("datefmt"), shown.get("style", "%")))
        # Silent once the function adds one: each record is shown once.
        handler.addFilter(
            lambda _: all(each is handler or isinstance(each, logging.FileHandler) for each in logger.handlers)
        )
        logger.addHandler(handler)
        logger.propagate = told["propagate"]


def _is_in_project(entry: str, root: str) -> bool:
    library = os.path.dirname(os.__file__)  # a Python may be inside the project, as those of pixi and `conda create -p`
    if not root or not entry or "site-packages" in entry or "dist-packages" in entry or entry.startswith(library):
        return False
    return entry == root or entry.startswith(root.rstrip("/") + "/")


def become_main(script: str, workspace: Path, plan: Mapping[str, Any]) -> ModuleType:
    """Put a fresh ``__main__`` in place: the namespace of the user's script, in the job, with its command line.

    ``plan``: of it, whether the script had words, which came with the captured variables, and which module it is:
    processes that are spawned import that one.
    """
    begin_as_main()
    module = sys.modules["__main__"]
    if script:
        module.__file__ = str(workspace / script)
    if name := plan.get("main"):
        module.__spec__ = importlib.util.spec_from_loader(name, None, origin=module.__file__)
    command_line.update(json.loads(os.environ.pop(WORDS_VARIABLE, "{}")))
    sys.argv[:] = [getattr(module, "__file__", "") or "", *command_line.get("words", ())]
    if plan.get("words") and not command_line:
        write_to_log("kinetic: the words of the script's command line did not come here: sys.argv has none of them\n")
    return module


def begin_as_main() -> None:
    """Put an empty ``__main__`` in place, and no words; libraries that are imported ahead of a job may keep both."""
    global _main  # noqa: PLW0603 - of this process
    if _main is None:
        _main = sys.modules["__main__"] = ModuleType("__main__")
        _main.__dict__["__builtins__"] = __builtins__
        sys.argv = [""]


def complete_main(file: str | None) -> None:
    """Repair the script's namespace after something of it was opened: functions bring the client's ``__file__``.

    Its classes become findable in ``__main__``, so that pools and pickles of the user's code find them.
    """
    from cloudpickle import cloudpickle as inner  # preloaded in the supervisor

    main = sys.modules["__main__"]
    if file is not None:
        main.__file__ = file
    for kind in list(getattr(inner, "_DYNAMIC_CLASS_TRACKER_BY_ID", {}).values()):
        name = getattr(kind, "__qualname__", "<")
        if kind.__module__ == "__main__" and "<" not in name and "." not in name and not hasattr(main, name):
            setattr(main, name, kind)


# -------------------------------------------------------------------------------------------------------------- output


class _AfterStdout(io.FileIO):
    """Raw stderr that lets stdout go first."""

    def write(self, data: object, /) -> int | None:  # type: ignore[override] # FileIO says Buffer, 3.12 on
        with contextlib.suppress(ValueError, OSError):
            sys.stdout.flush()
        return super().write(data)  # type: ignore[arg-type]


class _Flusher:
    """Flushes stdout every 100 ms, in a thread that `threading` does not know: a `Thread` takes 0.5 ms to start."""

    def __init__(self) -> None:
        self.number = 0  # of the thread, in the kernel's own count, once it runs
        self._over, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._over.acquire()
        self._ended.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self.number = _thread.get_native_id()
            with _writing_header, contextlib.suppress(OSError):
                for file in _opened:  # by its path: our descriptor may be a file of the function by now
                    with folders.closing(os.open(file.path, os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
                        _write_header(descriptor, file._replace(thread=self.number))
            while not self._over.acquire(timeout=_FLUSH_SECONDS):
                with _flushing, contextlib.suppress(ValueError, OSError):
                    sys.stdout.flush()
        finally:
            self._ended.release()

    def end(self) -> None:
        self._over.release()
        self._ended.acquire()


_main: ModuleType | None = None  # ours, in a worker and what forks it
_log = Path()
_log_identity = (0, 0)
_stderr: object = None  # ours, from redirect()
_flush_c: Callable[[], object] = int
_flushers: list[_Flusher] = []  # one in a worker, none elsewhere
_flushing = _thread.RLock()  # held by its thread: a child forked meanwhile could never write to stdout


def redirect(log: Path) -> None:
    """Send descriptors 1 and 2 into the log."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(target, number, inheritable=True)
    global _log, _log_identity
    found = os.fstat(target)
    _log, _log_identity = log, (found.st_dev, found.st_ino)
    os.close(target)


def make_streams() -> None:
    """Make Python's streams over the descriptors 0 to 2, and read nothing from stdin; once, however often it is forked.

    Libraries that were imported before the fork may hold them.
    """
    global _stderr, _flush_c  # noqa: PLW0603 - a process has one of each
    if _stderr is not None:
        return
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0, inheritable=True)
    os.close(nothing)
    _flush_c = processes.write_lines_of_c()
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(io.FileIO(1, "w", closefd=False), buffered=True)  # type: ignore[misc]
    _stderr = sys.stderr = sys.__stderr__ = _text(_AfterStdout(2, "w", closefd=False), buffered=False)  # type: ignore[misc]
    for module, name in ((_posixsubprocess, "fork_exec"), (os, "system"), (os, "posix_spawn"), (os, "posix_spawnp")):
        setattr(module, name, _after_what_was_printed(getattr(module, name)))


def _text(raw: io.FileIO, *, buffered: bool) -> io.TextIOWrapper:
    block = io.BufferedWriter(raw, _BLOCK if buffered else 8192)
    errors = "surrogateescape" if buffered else "backslashreplace"
    return io.TextIOWrapper(block, encoding="utf-8", errors=errors, line_buffering=not buffered)


def keep_flushing() -> None:
    """Start the thread that flushes, in the worker, after the fork; it also answers for its stacks.

    A child that user code forks has no such thread, and writes each line at once.
    """
    if not _flushers:
        if sys.version_info >= (3, 12):  # which warns at each fork of a process with threads, and this is one
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_a_forked_child)
    _flushers.append(_Flusher())


def _before_fork() -> None:
    stdout = sys.__stdout__
    if _flushing.acquire(timeout=1) and stdout and stdout is sys.stdout:  # one of the user's may block
        with contextlib.suppress(BaseException):
            stdout.flush()


def _after_what_was_printed(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return what starts a program, after what was printed before it: no hook of a fork is called for these."""

    @functools.wraps(start)
    def started(*args: Any, **kwargs: Any) -> Any:
        _before_fork()
        _after_fork()
        return start(*args, **kwargs)

    return started


def _after_fork() -> None:
    with contextlib.suppress(RuntimeError):  # it could not be taken
        _flushing.release()


def _in_a_forked_child() -> None:
    _after_fork()
    if sys.__stdout__:
        with contextlib.suppress(BaseException):  # user code may have closed it
            sys.__stdout__.reconfigure(line_buffering=True)


@contextlib.contextmanager
def without_flusher() -> Iterator[None]:
    """Stop that thread for a moment: a process that enters a namespace must not have any."""
    running = bool(_flushers)
    while _flushers:
        _flushers.pop().end()
    try:
        yield
    finally:
        if running:
            keep_flushing()


def flush() -> None:
    """Write out everything that was printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # user code may have closed or replaced them
            stream.flush()
    _flush_c()


def write_to_log(text: str) -> None:
    """Write something of ours into the log, also if user code has closed, replaced or redirected standard error.

    A stream that user code put in its place gets the text, as Python would write it there; if that fails, or if
    descriptor 2 is another file by now, the text goes to the log by its name.
    """
    with contextlib.suppress(BaseException):  # user code: its stream, or ours without its descriptor
        found = os.fstat(2) if sys.stderr is _stderr else None
        if found is None or (found.st_dev, found.st_ino) == _log_identity:
            sys.stderr.write(text)
            sys.stderr.flush()
            return
    folders.append(_log, text)


# -------------------------------------------------------------------------------------------------------------- stacks

SUFFIX = ".stacks"  # behind the name of the log
_LINE = 512  # bytes, of the first line
_MOST_BYTES = 8 << 20  # of one answer: Python shows 100 frames of each of 100 threads, and a job can write to the file
_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_QUIET_SECONDS = 0.3  # if the system does not tell whether an answer is complete
# Threads of ours, which are left out: one flushes and answers, one writes how far the job is.
_OUR_THREADS = re.compile(r'/_runner/worker/process_setup\.py"|/_wire/progress\.py", line \d+ in _write_later')
_CALLER = "/_runner/worker/function_call.py"  # from the caller of the user's function on, frames are ours


class StackDumpFile(NamedTuple):
    """What the first line of the file says."""

    path: Path  # the file
    pid: int  # the worker
    started: str  # when that process began, in the kernel's own count; "" if the system does not tell
    attempt: int
    host: int
    descriptor: int  # under which number the worker has the file open
    thread: int  # which thread answers, in the kernel's own count; 0 for none in particular


# ---------------------------------------------------------------------------------------------------------- the worker

_opened: list[StackDumpFile] = []  # one in a worker, none elsewhere
_writing_header = _thread.allocate_lock()  # the thread that flushes may be at its begin, and writes its number, too


def open_dump_file(task: Task) -> None:
    """Let this process, a worker, answer; call it before anything of the user's runs.

    The handler is in place before the file says whose it is. A process that is started with exec has neither.
    """
    me = os.getpid()
    with contextlib.suppress(OSError):  # a full disk: a job that cannot be inspected is better than none
        descriptor = os.open(task.stacks, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True, chain=False)
        os.lseek(descriptor, _LINE, os.SEEK_SET)
        started = processes.started_of(me)
        with _writing_header:
            _opened[:] = [StackDumpFile(task.stacks, me, started, task.attempt, task.host, descriptor, thread=0)]
            thread = _flushers[-1].number if _flushers else 0  # which spends its time waiting
            _write_header(descriptor, _opened[0]._replace(thread=thread))


def _write_header(descriptor: int, file: StackDumpFile) -> None:
    page = {name: value for name, value in file._asdict().items() if name != "path"}
    os.pwrite(descriptor, json.dumps(page).encode().ljust(_LINE - 1) + b"\n", 0)


# ---------------------------------------------------------------------------------------------------------- the client


def read_header(path: Path) -> StackDumpFile:
    """Read whose file it is; raises RunnerError if that process is gone, or has not begun yet."""
    try:
        with path.open("rb") as file:
            page = json.loads(file.readline(_LINE))
        found = StackDumpFile(path, *(page[name] for name in StackDumpFile._fields[1:]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunnerError("the job's process has not begun yet", why=f"{path}: {error}", code="not-running") from error
    if not is_alive(found):
        raise RunnerError("the job's process is gone", why=f"it was the process {found.pid}", code="not-running")
    return found


def is_alive(file: StackDumpFile) -> bool:
    """Return whether the process is still there whose file it is."""
    if file.started:
        return processes.started_of(file.pid) == file.started and processes.state(file.pid) not in {"Z", "X"}
    try:
        os.kill(file.pid, 0)
    except ProcessLookupError:
        return False
    return True


def ask(path: Path) -> str:
    """Return the Python stacks of all threads of a worker, the main one first.

    Raises RunnerError if it is gone or does not answer; nothing was done to it.
    """
    target = read_header(path)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of two clients the second gets an answer of its own
        busy = _busy_threads(target.pid)
        begin = request(target)
        limit = time.monotonic() + _ANSWER_SECONDS
        while not _has_answered(target, begin, busy):
            if not is_alive(target):
                raise _ended(target)
            if time.monotonic() > limit:
                raise _no_answer(target)
            time.sleep(_LOOK_SECONDS)
        return "\n\n".join(reversed(answer(target, begin))) + "\n"


def request(target: StackDumpFile) -> int:
    """Have a worker write its stacks, which takes it a moment; return where in its file they begin.

    Raises RunnerError if it is gone or would not answer; nothing was done to it.
    """
    _check(target)
    begin = target.path.stat().st_size
    try:
        _send_signal(target)
    except ProcessLookupError:
        raise _ended(target) from None
    return begin


def answer(target: StackDumpFile, begin: int) -> list[str]:
    """Return what a worker has written there: the stack of each thread, the main one last, without what is ours.

    A file of the project is named relative to its root: the client knows where that is, and this process does not.
    """
    with target.path.open("rb") as file:
        file.seek(begin)
        text = file.read(_MOST_BYTES).decode(errors="replace")
    text = re.sub(rf'(?m)^(  File "){re.escape(str(target.path.parent))}/work[-0-9]*/', r"\1", text)
    threads = [
        thread.strip().replace("Current thread", "Thread").splitlines()
        for thread in text.split("\n\n")
        if thread.strip()
    ]
    theirs = [lines for lines in threads if not any(map(_OUR_THREADS.search, lines))]
    return ["\n".join(itertools.takewhile(lambda line: _CALLER not in line, lines)) for lines in theirs]


def _ended(target: StackDumpFile) -> RunnerError:
    return RunnerError("the job's process ended", why=f"it was the process {target.pid}", code="not-running")


def _send_signal(target: StackDumpFile) -> None:
    """Send the signal; Linux gives it to the named thread, if it is one of that process."""
    thread = target.thread if os.path.isdir(f"/proc/{target.pid}/task/{target.thread}") else target.pid
    try:
        os.kill(thread, STACKS_SIGNAL)
    except ProcessLookupError:  # it has just ended, or this system knows processes only
        os.kill(target.pid, STACKS_SIGNAL)


def _check(target: StackDumpFile) -> None:
    """Make sure that the signal has our handler, and that the worker has the file open."""
    status = processes.status(target.pid)
    if not status:
        return  # no /proc here
    why = ""
    if not _is_in(status.get("SigCgt", "0")):
        why = f"the job's code has changed what the signal {STACKS_SIGNAL} does"
    else:
        try:
            theirs = os.stat(f"/proc/{target.pid}/fd/{target.descriptor}")
            is_open = os.path.samestat(theirs, os.stat(target.path))
        except FileNotFoundError:
            is_open = False
        if not is_open:
            why = f"the job's code has closed the file for its stacks, descriptor {target.descriptor}"
    if why:
        raise RunnerError("the stacks of the job cannot be read", why=why, code="no-stacks")


def _has_answered(target: StackDumpFile, begin: int, busy: frozenset[str]) -> bool:
    """Return whether a complete answer is there: while a thread writes it, the signal is blocked in that thread."""
    size = target.path.stat().st_size
    if size <= begin:
        return False
    if not processes.status(target.pid):
        time.sleep(_QUIET_SECONDS)
        return target.path.stat().st_size == size
    return not (_busy_threads(target.pid) - busy)


def _busy_threads(pid: int) -> frozenset[str]:
    """Return the threads in which the signal is blocked."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return frozenset()
    return frozenset(task for task in tasks if _is_in(processes.status(pid, task).get("SigBlk", "0")))


def _is_in(mask: str) -> bool:
    return bool(int(mask, 16) >> (STACKS_SIGNAL - 1) & 1)


def _no_answer(target: StackDumpFile) -> RunnerError:
    states = {"D": "it waits in the kernel, for a device or a file system", "T": "it is stopped", "t": "it is traced"}
    why = states.get(processes.state(target.pid), "it blocks the signal, or does not get to run")
    return RunnerError(f"the job did not answer within {_ANSWER_SECONDS:.0f} s", why=why, code="no-stacks")
