"""From a verdict to a value, or to the exception of the failure; see ``outcomes`` for how a verdict is read."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kinetic._jobs import locate
from kinetic._output import terminal as output
from kinetic._output import tracebacks
from kinetic._stores import open_store
from kinetic._stores.protocol import Store
from kinetic._wire import digests, folders, keys, outcomes, python_runtime
from kinetic._wire.input_table import read_table
from kinetic._wire.outcomes import Outcome
from kinetic.errors import (
    CommandError,
    IntegrityError,
    JobCancelledError,
    JobError,
    KineticError,
    PredecessorError,
    ResultNotPicklableError,
    ResultUnreadableError,
    RunnerError,
    StoreError,
)

if TYPE_CHECKING:
    from kinetic._wire.order import DataRef
    from kinetic._wire.records import JobRecord

_PIECE, _BLOCK = 1 << 20, 1 << 16
_IN_MEMORY = 16 << 20  # bodies up to 16 MiB are read once, verified and opened from the same bytes
_PARTLY_SECONDS = 5.0  # for what can be opened of a value that cannot: Python takes 15 times as long as C
_COMPILED = b"_make_function"  # cloudpickle's name for what makes a function of its bytecode


def body_of(
    store: Store, outcome: Outcome, data: bytes | None = None, *, opened: list[io.BytesIO] | None = None
) -> Any:
    """Verify the whole body, which may have been read already, then unpickle it.

    ``opened`` gets the file that it was read from, behind which there may be more.
    """
    from kinetic._wire import device_tensors  # with pickle, 3 ms; only when a value is opened

    name = keys.result(outcome.job_id)
    if outcome.body_length <= _IN_MEMORY:
        data = store.get(name, length=outcome.body_length) if data is None else data
        outcomes.check_body(outcome, digests.of_bytes(data))
        if _COMPILED in data:
            _check_python(store, outcome)
        files = opened if opened is not None else []

        def file_again() -> io.BytesIO:
            files[:] = [io.BytesIO(data)]
            return files[0]

        return _open(functools.partial(device_tensors.load, file_again, _moved), outcome, file_again, data)
    with _as_file(store, name) as file:
        verified = functools.partial(_Verified, file, outcome)

        def verified_again() -> IO[bytes]:
            return io.BufferedReader(verified(), _BLOCK)

        return _open(functools.partial(device_tensors.load, verified_again, _moved), outcome, verified_again)


def _check_python(store: Store, outcome: Outcome) -> None:
    """Refuse a function that another Python compiled: calling it would end this process."""
    theirs = ours = python_runtime.python_version()
    with contextlib.suppress(KineticError):  # without a note it is opened
        theirs = outcomes.read_note(store, outcome.job_id, outcome.attempt, None).python
    if python_runtime.version_mismatch(theirs):
        raise ResultUnreadableError(
            f"the result of {outcome.job_id} cannot be opened by this Python",
            why=f"it contains a function that Python {theirs} compiled, and this is Python {ours}",
            next=f"collect it with Python {theirs}; its bytes stay in the store",
        )


def _moved() -> None:
    output.report("the tensors of this result were on a device that is not here: they are on the CPU now")


def save(store: Store, outcome: Outcome, to: Path) -> int:
    """Write the verified body, an ordinary pickle, into a file, and return its size."""
    name = keys.result(outcome.job_id)
    with _as_file(store, name) as file, folders.replaced(to, mode=0o666) as target:  # it may be removed from the store
        digest, left = hashlib.sha256(), outcome.body_length
        while left and (piece := file.read(min(left, _PIECE))):
            digest.update(piece)
            target.write(piece)
            left -= len(piece)
        outcomes.check_body(outcome, digest.hexdigest())  # of what was written, not of what is there now
    return outcome.body_length


class _Verified(io.RawIOBase):
    """A body too large for memory, read twice: no byte is returned that differs from what was verified.

    The first pass notes the digest of everything up to each piece; the second compares before it returns a piece. So a
    change of the file in between is found.
    """

    def __init__(self, file: IO[bytes], outcome: Outcome) -> None:
        self._file, self._outcome = file, outcome
        self._left, self._ready = outcome.body_length, memoryview(b"")
        digest, self._expected = hashlib.sha256(), deque[bytes]()
        file.seek(0)
        while self._left and (piece := file.read(min(self._left, _PIECE))):
            digest.update(piece)
            self._expected.append(digest.digest())
            self._left -= len(piece)
        outcomes.check_body(outcome, digest.hexdigest())
        file.seek(0)
        self._left, self._digest = outcome.body_length, hashlib.sha256()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, into: Any, /) -> int:
        """Fill a buffer with verified bytes; return how many these are."""
        if not self._ready and self._left:
            piece = self._file.read(min(self._left, _PIECE))
            self._digest.update(piece)
            if self._digest.digest() != self._expected.popleft():
                outcomes.check_body(self._outcome, self._digest.hexdigest())
            self._ready, self._left = memoryview(piece), self._left - len(piece)
        count = min(len(into), len(self._ready))
        into[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _as_file(store: Store, name: str) -> IO[bytes]:
    """Return a private, open file with an object: one descriptor for verifying and for opening."""
    if store.local is not None:
        return io.BufferedReader(io.FileIO(store.local.open(name), "rb"), 1 << 16)
    import tempfile  # 3 ms; only for large values in a store that has no files

    try:
        with tempfile.TemporaryDirectory(prefix="kinetic-") as folder:  # closed to others
            path = Path(folder, "result")
            store.fetch(name, path)
            return path.open("rb")  # the descriptor stays
    except OSError as error:
        raise StoreError(
            f"the result {name} cannot be read into a temporary file",
            why=f"{error}; it is still in the store",
            next="free some space there, or name a folder on another disk: export TMPDIR=/path/of/a/folder",
            code="disk-full" if error.errno in {errno.ENOSPC, errno.EDQUOT} else None,
        ) from error


def _open(load: Callable[[], Any], outcome: Outcome, file: Callable[[], IO[bytes]], data: bytes = b"") -> Any:
    try:
        return load()
    except IntegrityError:
        raise
    except Exception as error:
        failed = _unreadable(error, outcome, data)
        with contextlib.suppress(Exception):  # user code, once more
            partial = _opened_partly(file())
            if not isinstance(partial, str):  # a text stands for all of it
                failed.partial = partial
                failed.add_note("What could be opened of it is the .partial of this error, with texts for the rest.")
        raise failed from error


def _opened_partly(file: IO[bytes]) -> Any:
    """Open a pickle of which a part cannot be opened, with a text in the place of that part.

    Raises:
        TimeoutError: It takes long: one of millions of objects would delay the error by minutes.
    """
    import pickle  # only on the way to an error

    limit = time.monotonic() + _PARTLY_SECONDS
    own: dict[int, Callable[[Any], None]] = pickle._Unpickler.dispatch  # noqa: SLF001 - Python's unpickler, as it is written in Python

    class Unpickler(pickle._Unpickler):  # noqa: SLF001 - as above
        def find_class(self, module: str, name: str) -> Any:
            try:
                return super().find_class(module, name)
            except Exception:  # noqa: BLE001 - a module may raise anything when it is imported
                return f"<{module}.{name}>"

    def tolerant(code: int, below: int) -> Callable[[Any], None]:
        def load(self: Any) -> None:
            if time.monotonic() > limit:
                raise TimeoutError
            what = self.stack[-below] if below else None
            try:
                own[code](self)
            except Exception:  # noqa: BLE001 - user code
                if not below:  # what was to be filled is half of itself
                    what = self.stack.pop()
                text = what if isinstance(what, str) else f"<{_name_of(what)}>"
                for place in [place for place, known in self.memo.items() if known is what and not below]:
                    self.memo[place] = text
                if code == pickle.REDUCE[0]:
                    self.stack.pop()
                self.append(text)

        return load

    makes = {pickle.REDUCE: 2, pickle.NEWOBJ: 2, pickle.NEWOBJ_EX: 3}  # how deep on the stack lies what is called
    fills = (pickle.BUILD, pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS, pickle.ADDITEMS)
    places = makes | dict.fromkeys(fills, 0)
    Unpickler.dispatch = own | {code[0]: tolerant(code[0], below) for code, below in places.items()}
    return Unpickler(file).load()


def _name_of(made: object) -> str:
    kind = made if callable(made) else type(made)
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"


def _unreadable(error: Exception, outcome: Outcome, data: bytes) -> ResultUnreadableError:
    from kinetic._wire import pickle_diagnosis  # only on the way to an error

    part = ""
    with contextlib.suppress(Exception):  # user code, once more
        part = pickle_diagnosis.find_unopened(data, "the value")
    said = f"{f'opening {part}: ' if part else ''}{type(error).__name__}: {error}"
    if isinstance(error, (ImportError, AttributeError)):
        name = ""
        with contextlib.suppress(AttributeError):
            name = error.name or ""  # ModuleNotFoundError and AttributeError have it
        return ResultUnreadableError(
            f"the result of {outcome.job_id} cannot be opened here: {name or 'what it is made of'} is missing",
            why=f"{f'it is a {outcome.value_type}' if outcome.value_type else 'its type'}, and {said}",
            next=_how_to_open(error),
        )
    return ResultUnreadableError(
        f"the result of {outcome.job_id} is whole, and cannot be opened here",
        why=said,
        next=f"kinetic jobs result {outcome.job_id} --save result.pkl     keeps its bytes",
    )


def _how_to_open(error: Exception) -> str:
    """Return what a reader can do who lacks a module or a name; Keras imports its backend, TensorFlow by default."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    if isinstance(error, ModuleNotFoundError) and where.startswith("keras."):
        return "set KERAS_BACKEND=jax, as in the job, and collect it again"
    return "collect it from the project that submitted it; its bytes stay in the store"


_DATA_ERRORS = frozenset({"integrity", "key-missing", "data-missing"})
_broken: dict[tuple[str, str], int] = {}  # by the batch or job that failed, and the manifest: checked once


def repair_data(store: Store, outcome: Outcome) -> str:
    """Verify project and data of a job again, and remove what is damaged: the next submission sends it."""
    from kinetic._blobs import fetch  # only when something is wrong

    broken = 0
    with contextlib.suppress(KineticError), output.phase("checking the data again"):
        job = locate.read_job(store, outcome.job_id)
        complaint, order = job.group_id or job.job_id, locate.order_of(job)
        broken += _once((complaint, ""), lambda: fetch.remove_damaged(store, dict.fromkeys(order.packs, 0)))
        for ref in dict.fromkeys((*order.data, *_data_of_input(store, job))):
            if ref.kind == "shipped":
                broken += _once((complaint, ref.manifest), functools.partial(_recheck, ref))
    return "what was damaged in the store was removed: submit again, and it is sent again" if broken else ""


def _once(which: tuple[str, str], check: Callable[[], int]) -> int:
    if which not in _broken:
        _broken[which] = check()
    return _broken[which]


def _recheck(ref: DataRef) -> int:
    from kinetic._data import ship  # only when something is wrong

    return ship.recheck(ref, open_store(ref.uri))


def _data_of_input(store: Store, job: JobRecord) -> Iterable[DataRef]:
    """Return the data that a batch's child has besides what all children share."""
    group = locate.verified_group(store, job.group_id) if job.group_id else None
    inputs = read_table(store, group).inputs if group is not None else ()
    return inputs[job.group_index].data if job.group_index is not None and job.group_index < len(inputs) else ()


# The runner's phases, as a person would say where a job was.
PHASES = {
    "order": "before the function started: reading the order",
    "artifact verification": "before the function started: fetching and verifying the uploaded files",
    "context extract": "before the function started: unpacking the project",
    "environment setup": "before the function started: setting up the environment",
    "debugger setup": "before the function started: starting the debug server, or waiting for a debugger",
    "payload unpickle": "before the function started: loading the function and its arguments, and importing modules",
    "execute": "while the function ran",
    "result serialization": "after the function returned: pickling the value",
}
_LOG_LINES = 5
_OUR_FRAMES = ("/runners/", "/runner.zip/", "<frozen runpy>")  # below the user's own: they explain nothing


def attach_remote_traceback(exception: BaseException, remote_traceback: str | None) -> BaseException:
    """Add the job's traceback to an exception as a note, where there is one, and return the same exception."""
    if remote_traceback:
        _add_note(exception, f"{tracebacks.REMOTE}{remote_traceback}")
    return exception


def _add_note(exception: BaseException, note: str) -> None:
    """Add a note as Python does, also where the class of the user refuses it, as a frozen one does."""
    with contextlib.suppress(Exception):  # they may be anything
        vars(exception).setdefault("__notes__", []).append(note)


def value_of(store: Store, outcome: Outcome, function: str) -> Any:
    """Return the value of a job that succeeded, or raise the exception of its failure."""
    if outcome.succeeded:
        return body_of(store, outcome)
    raise failure_of(store, outcome, function)


def failure_of(store: Store, outcome: Outcome, function: str) -> BaseException:
    """Return the exception of a failed or cancelled job."""
    if outcome.status == outcomes.CANCELLED:
        return JobCancelledError(
            f"{outcome.job_id} was cancelled", why="it left no result", next=f"kinetic jobs cleanup {outcome.job_id}"
        )
    left = None
    if outcome.body_length and not _is_of_command(outcome):  # the log says more than its exception
        with contextlib.suppress(ResultUnreadableError, IntegrityError):
            left = _exception_of(store, outcome)
    if outcome.cause == "serialization":
        raised: BaseException = _not_picklable(outcome, function, left)
    else:
        raised = left if isinstance(left, BaseException) else _error_without_exception(outcome, function)
    failed_on_data = outcome.cause == "runner" and outcome.error.get("code") in _DATA_ERRORS
    if failed_on_data and (repaired := repair_data(store, outcome)):
        _add_note(raised, repaired)
    if where := on_host(outcome):
        _add_note(raised, f"It happened{where}.")
    if traceback := outcome.error.get("traceback"):
        traceback = f"{str(traceback).rstrip()}\n{tracebacks.LOG}{log_command(outcome)}"
    return attach_remote_traceback(raised, traceback)


def _exception_of(store: Store, outcome: Outcome) -> Any:
    """Return the exception that a job left, raised from what it was raised from there, as far as that opens here."""
    files: list[io.BytesIO] = []
    error = raised = body_of(store, outcome, opened=files)
    if files and isinstance(raised, BaseException):
        from kinetic._wire import device_tensors  # loaded by now

        with contextlib.suppress(Exception):  # the end of the file, or a class that is not here: the traceback tells
            while True:
                error.__cause__ = device_tensors.load(lambda: files[0], _moved)
                error = error.__cause__
    return raised


_NOT_FOUND = (
    "name its package in requirements.txt or pyproject.toml; if it is a module of yours, see what is sent: "
    "kinetic package --dry-run FILE.py"
)


def _error_without_exception(outcome: Outcome, function: str) -> BaseException:
    error = outcome.error
    message = str(error.get("message", ""))
    if outcome.cause == "runner":
        return RunnerError(
            error.get("what") or f"{function} did not begin: {error.get('type')}: {message}",
            phase=outcome.phase,
            why=error.get("why") or f"it failed {PHASES.get(outcome.phase, outcome.phase)}",
            next=error.get("next")
            or (_NOT_FOUND if error.get("type") == ModuleNotFoundError.__name__ else log_command(outcome)),
            code=error.get("code"),
        )
    if outcome.cause == outcomes.PREDECESSOR:
        what, why, code = error.get("what") or f"{function} did not start", error.get("why"), error.get("code")
        return PredecessorError(f"{outcome.job_id}: {what}", why=why, next=error.get("next"), code=code)
    if outcome.cause in {"exception", "exit"} and "type" in error:
        lost = error.get("not_delivered")
        return JobError(
            f"{function} raised {error.get('module')}.{error.get('type')}: {message}",
            why=f"the exception itself could not be sent: {lost}" if lost else "its class is not on this machine",
            next=log_command(outcome),
            code="exception-not-here",
        )
    if _is_of_command(outcome):
        return command_error(outcome)
    written = error.get("log", "").splitlines()
    lines = [line for line in written if line.strip() and _OUR_FRAMES[0] not in line and not is_our_frame(line)]
    return JobError(
        f"{function} failed{on_host(outcome)}: {message}",
        why="the last lines of its log:\n       " + "\n       ".join(lines[-_LOG_LINES:]) if lines else None,
        next=error.get("next") or log_command(outcome),
        code=outcome.cause or "job-failed",
    )


def is_our_frame(line: str) -> bool:
    """Return whether a line is a frame of the runner in a stack that faulthandler has written, each on one line."""
    return line.lstrip().startswith('File "') and ", in " not in line and any(part in line for part in _OUR_FRAMES)


def log_command(outcome: Outcome) -> str:
    """Return the command that shows the log of a job, or of the host of a slice that decided."""
    return f"kinetic jobs logs {outcome.job_id}" + (f" --host {outcome.host}" if outcome.host else "")


def on_host(outcome: Outcome) -> str:
    """Return which host of a slice decided, for a sentence; "" where there is one only."""
    hosts = outcome.error.get("hosts", 1)
    return f" on host {outcome.host} of {hosts}" if hosts > 1 else ""


def _is_of_command(outcome: Outcome) -> bool:
    return outcome.cause == "exit" and "what" in outcome.error


def command_error(outcome: Outcome) -> CommandError:
    """Return the error of a command that failed."""
    error, logs = outcome.error, log_command(outcome)
    lines = [line for line in str(error.get("log", "")).splitlines() if line.strip()][-_LOG_LINES:]
    why = error.get("why") or ("the last lines of its log:\n       " + "\n       ".join(lines) if lines else None)
    code, next_ = int(error.get("exit_code", 1)), error.get("next") or logs
    return CommandError(str(error["what"]), exit_code=code, why=why, next=next_, code=error.get("code"))


def _not_picklable(outcome: Outcome, function: str, partial: object) -> JobError:
    error = outcome.error
    kind, path = error.get("value_type"), error.get("path")
    what = f"{function} returned a {kind} that cannot be pickled"
    why = f"{error.get('type')}: {error.get('message')}"
    if path and error.get("too_deep"):
        what = f"{function} returned a {kind}, and {path} is nested too deeply to be pickled"
    elif path and path != "the value":  # which a note shows
        why = f"{path} is {error.get('culprit')}, a {error.get('culprit_type')}: {why}"
    advice = "return list(…) of it" if kind == "builtins.generator" else "return plain data"
    advice += ", or write it into KINETIC_OUTPUT_DIR"
    failed = ResultNotPicklableError(what, why=why, next=advice, code="not-picklable")
    failed.add_note(f"The value was: {error.get('repr')}")
    if partial is not None and not isinstance(partial, str):  # a text stands for all of it
        failed.partial = partial
        failed.add_note("What could be pickled of it is the .partial of this error, with texts for the rest.")
    return failed
