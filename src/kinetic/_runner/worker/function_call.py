"""Call the user's function, and pickle what it returned or raised into the body of an Outcome.

What leaves the job is pickled by reference wherever the other side can find it under the same name. By value only what
has no name there: lambdas, nested functions and classes. A class of the script keeps its identity on the collecting
side, because it is found in that side's ``__main__``; where that is another program, such as a job that follows, it is
made from a copy that travels with the name.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copyreg import _slotnames  # type: ignore[attr-defined] # as `object` itself does
from dataclasses import field, replace
from hashlib import sha256
from io import FileIO as _FileIO
from os import _exit
from os import ftruncate as _ftruncate
from os import getpid as _getpid
from os import lseek as _lseek
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any

from kinetic._blobs import fetch as blobs
from kinetic._runner.supervisor.verdicts import PrivateFile
from kinetic._runner.worker import workspace
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Store
from kinetic._wire import (
    NamedTuple,
    dataclass,
    digests,
    folders,
    keys,
    outcomes,
    python_runtime,
    reducers,
    references,
)
from kinetic._wire import order as orders
from kinetic._wire.order import Artifact, Child, Order
from kinetic._wire.task import Task
from kinetic.errors import CommandError, KineticError, RunnerError

PICKLE_PROTOCOL = 5  # Python 3.8 on; buffers of arrays are written without a second copy in a frame

_REPR_CHARACTERS = 20_000
_MESSAGE_CHARACTERS = 4_000
_COPY_BYTES = 1 << 20  # of a class, with what its methods read from the script: more is not worth its bytes
_TRACEBACK_CHARACTERS = 200_000
_MOST_CAUSES, _CAUSE_BYTES = 8, 1 << 18
_ADDRESSES = ("gs:/", "s3:/", "az:/")  # also with one slash, which is what pathlib leaves of two
_NO_PATH = (
    "kinetic: this is an address in a bucket, as the output and checkpoint folders of a job on a cluster are. open() "
    "and pathlib do not understand it; write through a library that supports buckets (docs/clusters.md, Files of a job)"
)
_NO_TERMINAL = (
    "kinetic: a job has no terminal to read from. Pass what it needs as arguments; to stop in the function, attach a "
    "debugger to a job with @kinetic.run(debug=True) (docs/debugging.md)"
)
_TEXTS = "kinetic: texts stand for parts of this exception that cannot be pickled"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_BLOCK = 1 << 16
_SEARCH_SECONDS = 60.0
_MOVED = "kinetic: tensors of the job before were on a device that is not here: they are on the CPU now\n"
OPENING = "it failed before the function started: opening "  # the note of an error that says which part cannot be
_COMMANDS = "kinetic._runner.worker.command"  # raises how a command ended
_load = pickle.load
# Folders of the job's copy of the project, the copy itself last, and those that people know; all end with a slash
copies: list[tuple[str, str]] = []


@dataclass(frozen=True)
class Value:
    """The function returned."""

    value: Any
    exited: bool = field(default=False, compare=False)  # it called sys.exit() instead, as a handler of SIGTERM may


@dataclass(frozen=True)
class Failure:
    """The function raised."""

    exception: BaseException  # what the caller gets
    error: dict[str, Any]  # the same as text, for readers that cannot unpickle the exception
    cause: str = "exception"  # or "exit"
    exit_status: int = field(default=1, compare=False)  # with which a process of its own would have ended


def call_function(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Value | Failure:
    """Call the function and return how it ended.

    ``sys.exit()``, ``sys.exit(0)`` and ``sys.exit(None)`` are success with the value None; any other code is a failure
    that names the code. Exceptions that are not an ``Exception`` (KeyboardInterrupt, …) arrive as a RuntimeError.
    """
    try:
        return Value(function(*args, **kwargs))
    except SystemExit as error:
        if error.code is None or error.code == 0:
            return Value(None, exited=True)
        delivered = RuntimeError(f"the function called sys.exit({repr_of(error.code)})")
        return replace(_failure(delivered, error, "exit"), exit_status=_exit_status(error.code))
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        if isinstance(error, CommandError) and getattr(function, "__module__", "") == _COMMANDS:
            return Failure(error, _of_command(error), "exit", exit_status=error.exit_code)
        return _failure(error, error, "exception")
    except BaseException as error:  # noqa: BLE001 - the same
        message = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
        return _failure(RuntimeError(message), error, "exception")


def _of_command(error: CommandError) -> dict[str, Any]:
    """Describe the failure of a command: what it printed is in the log, and our frames explain nothing."""
    parts = {"what": error.what, "why": error.why, "next": error.next, "code": error.code}
    described = {name: text for name, text in parts.items() if text}
    return {"message": error.what, "traceback": "", "exit_code": error.exit_code, **described}


def failure_of(error: BaseException) -> Failure:
    """Return how Python would end a process with this uncaught exception."""
    if isinstance(error, SystemExit):
        status = _exit_status(error.code) if error.code is not None else 0
        return replace(_failure(error, error, "exit"), exit_status=status)
    return _failure(error, error, "exception")


def _exit_status(code: object) -> int:
    return code & 0xFF if isinstance(code, int) else 1


def _failure(delivered: BaseException, raised: BaseException, cause: str) -> Failure:
    name = getattr(raised, "filename", None)
    if isinstance(raised, OSError) and isinstance(name, str) and name.startswith(_ADDRESSES):
        raised.add_note(_NO_PATH)
    is_input = type(raised) is EOFError and raised.args == ("EOF when reading a line",)
    if is_input or _is_of_pdb(raised):
        raised.add_note(_NO_TERMINAL)
    return Failure(delivered, describe(raised, skip=1), cause)


def _is_of_pdb(error: BaseException) -> bool:
    """Return whether the debugger of ``breakpoint()`` ended a call: since Python 3.14 it calls ``sys.exit(1)``."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if not isinstance(error, SystemExit) or trace is None:
        return type(error).__name__ == "BdbQuit"
    return trace.tb_frame.f_globals.get("__name__") == "pdb"


# ---------------------------------------------------------------------------------- text of what user code has defined


def show_files_of_the_client(order: Order, copy: Path) -> None:
    """Let tracebacks name files of the project where the user has them: the job's copy goes with the job."""
    if root := str(order.plan.get("root") or "").rstrip("/"):
        beside = order.plan.get("beside", {}).items()
        copies[:] = [*((f"{copy}/{name}/", f"{folder}/") for name, folder in beside), (f"{copy}/", f"{root}/")]


def describe(error: BaseException, *, skip: int = 0) -> dict[str, Any]:
    """Describe an exception, whatever its own code does; ``skip`` outermost frames are ours and not the user's."""
    trace = error.__traceback__
    for _ in range(skip):
        trace = trace.tb_next if trace and trace.tb_next else trace
    return {
        "type": _name_of(type(error), "__qualname__"),
        "module": _name_of(type(error), "__module__"),
        "message": text_of(error)[:_MESSAGE_CHARACTERS],
        "traceback": _without_its_middle(_traceback_of(error, trace)),
    }


def _without_its_middle(text: str) -> str:
    """Shorten what is too long to keep; of a traceback with a long message, file and line come first."""
    half, left_out = _TRACEBACK_CHARACTERS // 2, len(text) - _TRACEBACK_CHARACTERS
    return text if left_out <= 0 else f"{text[:half]}\n[… {left_out} characters …]\n{text[-half:]}"


def _traceback_of(error: BaseException, trace: TracebackType | None) -> str:
    try:
        import traceback  # 5 ms; a first call waits for the supervisor to start

        told = traceback.TracebackException(type(error), error, trace, compact=True)
        others = [told]
        while copies and others:
            each = others.pop()
            for frame in each.stack:
                for copy, original in copies:
                    frame.filename = frame.filename.replace(copy, original, 1)
            others += filter(None, (each.__cause__, each.__context__, *(each.exceptions or ())))
        return "".join(told.format())
    except BaseException as broken:  # noqa: BLE001 - user code: the class, its text, or a module that it patched
        return f"{type(error).__name__}: {text_of(error)}\n<its traceback failed: {type(broken).__name__}>\n"


def text_of(error: BaseException) -> str:
    """Return an exception's text, whatever its ``__str__`` does."""
    try:
        return str(error)
    except BaseException as broken:  # noqa: BLE001 - user code
        return f"<its __str__ raised {type(broken).__name__}>"


def repr_of(value: object) -> str:
    """Return a value's repr, whatever its ``__repr__`` does, cut at 20,000 characters."""
    from kinetic._wire import pickle_diagnosis  # few jobs need it

    try:
        return pickle_diagnosis.beginning_of_repr(value, _REPR_CHARACTERS)
    except BaseException as broken:  # noqa: BLE001 - user code
        return f"<{_name_of(type(value), '__qualname__')} whose repr fails: {type(broken).__name__}>"


def type_name(value: object) -> str:
    """Return module and name of a value's type, whatever its metaclass does."""
    return f"{_name_of(type(value), '__module__')}.{_name_of(type(value), '__qualname__')}"


def _name_of(kind: type, attribute: str) -> str:
    try:
        return str(getattr(kind, attribute))
    except BaseException:  # noqa: BLE001 - user code
        return "?"


# ------------------------------------------------------------------------------------------------------------- pickles


def dump_value(value: object, file: Any, *, anew: bool = False, in_part: bool = False) -> None:
    """Pickle a value into a file, piece by piece; the file needs ``write`` only.

    ``anew``: make locks that objects hold, and the like, anew where it is opened; ``in_part``: put texts in place of
    what remains.
    """
    pickler: Any = (_pickler_with_texts() if in_part else pickler_class())(file, protocol=PICKLE_PROTOCOL)
    pickler.given, pickler.remembers = functools.cache(lambda: reducers.shared_in(value)) if anew else None, not anew
    pickler.dump(value)


@functools.cache
def pickler_class() -> type[pickle.Pickler]:
    """Return what pickles; call it before user code runs, which may replace what it is made of."""
    import cloudpickle  # preloaded in the supervisor: workers are its forks

    class Pickler(reducers.ByClass, cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
        dispatch_table = reducers.extended(cloudpickle.Pickler.dispatch_table)

        def reduced(self, obj: Any) -> Any:
            if self.given is not None and (made := reducers.made_anew(obj, self.given)):
                return made
            if isinstance(obj, BaseException) and _leaves_pickling_to_python(type(obj)):
                reduced: Any = obj.__reduce__()  # of Python's own: (type, args) and mostly (…, state)
                slots = {name: getattr(obj, name) for name in _slotnames(type(obj)) if hasattr(obj, name)}  # numpy's
                return references.exception, (*reduced[:2], {**slots, **(reduced[2] if len(reduced) > 2 else {})})
            if isinstance(obj, BaseException) and isinstance(type(obj).__reduce__, FunctionType):
                own: Any = obj.__reduce_ex__(PICKLE_PROTOCOL)
                message = tuple(text for text in obj.args[:1] if isinstance(text, str))
                return references.exception_with, (message, own[0], *own[1]), *own[2:]
            if isinstance(obj, type | FunctionType) and (named := _has_a_name(obj)) | _is_on_the_client(obj):
                if named and obj.__module__ != "__main__":
                    return reducers.of_class(obj, NotImplemented)  # the pickler's own way: by reference
                copy = python_runtime.python_version(), _by_value(obj)
                return references.named, (obj.__module__, obj.__qualname__, *copy)
            is_odd = type(obj) is object or (isinstance(obj, type) and obj.__module__ != "__main__")
            if is_odd and (place := _place_in_the_project(obj)):
                return references.named, (*place, python_runtime.python_version(), _by_value(obj))
            if isinstance(obj, type) and (field := reducers.field_of(obj)):
                return references.field_type, field
            reduced = reducers.without_new(obj)
            return reducers.of_class(obj, super().reduced(obj)) if reduced is NotImplemented else reduced

    return Pickler


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: object) -> None: ...


def _pickler_with_texts() -> type[pickle.Pickler]:
    class Pickler(pickler_class()):  # type: ignore[misc] # made where it is needed
        def reducer_override(self, obj: Any) -> Any:
            try:
                if hasattr(type(obj), "__del__"):  # with texts for its parts, it would fail where it is opened
                    whole: Any = pickler_class()(_Nowhere(), protocol=PICKLE_PROTOCOL)
                    whole.given, whole.remembers = self.given, self.remembers
                    whole.dump(obj)
                reduced = super().reducer_override(obj)
                if reduced is NotImplemented and not isinstance(obj, type | FunctionType):
                    own = self.dispatch_table.get(type(obj))
                    reduced = own(obj) if own else obj.__reduce_ex__(PICKLE_PROTOCOL)
            except Exception:  # noqa: BLE001 - user code
                return references.same, (repr_of(obj),)
            return reduced

    return Pickler


def _by_value(thing: object) -> bytes:
    """Return what makes this thing where it has no name, compressed; nothing if that is large or impossible."""
    import zlib

    import cloudpickle  # as above

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # as above
        dispatch_table = reducers.extended(cloudpickle.Pickler.dispatch_table)

        def reducer_override(self, obj: Any) -> Any:
            return reducers.of_class(obj, super().reducer_override(obj))

    class Limited(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if self.tell() + memoryview(data).nbytes > _COPY_BYTES:
                raise OverflowError
            return super().write(data)

    file = Limited()
    try:
        Pickler(file, protocol=PICKLE_PROTOCOL).dump(thing)
    except Exception:  # noqa: BLE001 - the name alone is what most readers need
        return b""
    return zlib.compress(file.getvalue(), 1)


def _place_in_the_project(thing: object) -> tuple[str, str] | None:
    """Return where a module of the project has a class that says another name of itself, or an ``object()``."""
    spaces = list(sys.modules.values())
    own = [
        each
        for each in spaces
        if copies and str(getattr(each, "__dict__", {}).get("__file__")).startswith(copies[-1][0])
    ]
    return reducers.place_of(thing, own)


def _leaves_pickling_to_python(kind: type) -> bool:
    """Return whether an exception is pickled as Python does: by its ``args``, which its ``__init__`` may not take."""
    methods = ("__reduce__", "__reduce_ex__", "__setstate__")
    owners = {next(base for base in kind.__mro__ if each in vars(base)) for each in methods}  # pydantic's are compiled
    return kind.__module__ != "builtins" and all(owner.__module__ == "builtins" for owner in owners)


def _has_a_name(thing: type | FunctionType) -> bool:
    """Return whether ``module.qualname`` is this very object."""
    found: object = sys.modules.get(getattr(thing, "__module__", None) or "")
    for part in getattr(thing, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is thing


def _is_on_the_client(thing: type | FunctionType) -> bool:
    """Return whether this may have come by value from a module that did not ship: the client has the original."""
    module, qualname = getattr(thing, "__module__", None), thing.__qualname__
    return bool(module) and module not in sys.modules and "<" not in qualname


# ------------------------------------------------------------------------------------------------------------ delivery


class BodyFile:
    """The file for the pickled value, opened before any user code runs, and the error of the disk if it had one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = PrivateFile(path)
        self._pid = _getpid()
        self.error: OSError | None = None

    def write(self, value: object, *causes: bytes, **how: bool) -> tuple[int, str]:
        """Pickle a value into the file, other pickles behind it, and return length and digest of all.

        Raises whatever the value's own code raises, or the disk.
        """
        writer = _BodyWriter(self)
        with self.noting_errors():
            writer.descriptor = self.descriptor()
            _ftruncate(writer.descriptor, 0)
            _lseek(writer.descriptor, 0, os.SEEK_SET)
        dump_value(value, writer, **how)
        writer.write(b"".join(causes))
        with self.noting_errors():
            self.descriptor()
            writer.flush()  # who seals it forces it to the disk
        return writer.length, writer.digest.hexdigest()

    def descriptor(self) -> int:
        """Return the descriptor; a child that a value forked while it was pickled ends here and touches nothing."""
        if _getpid() != self._pid:
            _exit(0)
        return self._file.descriptor()

    def try_to_open(self) -> Any:
        """Return what was written, opened: an exception that cannot be rebuilt fails on the other side, without a text.

        It is read from the descriptor that it was written to; a name could mean another file by now.
        """
        descriptor = self.descriptor()
        _lseek(descriptor, 0, os.SEEK_SET)
        with _FileIO(descriptor, "rb", closefd=False) as file:
            return _load(file)

    def discard(self) -> None:
        """Give back the space of what was written in part."""
        with contextlib.suppress(OSError):
            _ftruncate(self.descriptor(), 0)

    @contextlib.contextmanager
    def noting_errors(self) -> Iterator[None]:
        """Keep an error of the disk, which the pickler may hide."""
        try:
            yield
        except OSError as error:
            self.error = error
            raise


class _BodyWriter:
    """What a pickler writes to: it computes digest and length, so that nothing is read a second time."""

    def __init__(self, body: BodyFile) -> None:
        self._body = body
        self._waiting = bytearray()
        self.descriptor = -1
        self.digest = sha256()
        self.length = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        view = memoryview(data).cast("B")
        size = view.nbytes
        self.digest.update(view)
        self.length += size
        if size < _BLOCK:
            self._waiting += view
            if len(self._waiting) < _BLOCK:
                return size
            view = memoryview(b"")
        with self._body.noting_errors():
            self._body.descriptor()
            self.flush()
            folders.write_all(self.descriptor, view)
        return size

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, bytearray()
        folders.write_all(self.descriptor, waiting)


def deliver(ended: Value | Failure, body: BodyFile) -> dict[str, Any]:
    """Write the body and return the worker's part of an Outcome; never raises, whatever the value's own code does."""
    if isinstance(ended, Value):
        return _deliver_value(ended.value, body)
    return _deliver_failure(ended, body)


def _deliver_value(value: object, body: BodyFile) -> dict[str, Any]:
    try:
        length, digest = _write(value, body)
    except BaseException as error:  # noqa: BLE001 - pickling runs user code
        body.discard()
        return _undeliverable(value, error, body)
    return {
        "status": outcomes.SUCCEEDED,
        "cause": "value",
        "error": {},
        "body_length": length,
        "body_sha256": digest,
        "value_type": type_name(value),
    }


def _write(value: object, body: BodyFile, *causes: bytes) -> tuple[int, str]:
    try:
        return body.write(value, *causes)
    except Exception:
        if body.error is not None:
            raise
    return body.write(value, *causes, anew=True)


def _deliver_failure(failure: Failure, body: BodyFile) -> dict[str, Any]:
    report = {"status": outcomes.FAILED, "cause": failure.cause, "error": failure.error}
    causes = [*causes_of(failure.exception)]
    try:
        try:
            length, digest = _write(failure.exception, body, *causes)
        except Exception:
            with contextlib.suppress(Exception):  # a class that refuses it
                failure.exception.add_note(_TEXTS)
            length, digest = body.write(failure.exception, *causes, anew=True, in_part=True)
            if not isinstance(body.try_to_open(), BaseException):
                raise
        body.try_to_open()
    except BaseException as error:  # noqa: BLE001 - pickling runs user code
        body.discard()
        why = f"{type(error).__name__}: {text_of(error)}"[:2000]
        return {**report, "error": {**failure.error, "not_delivered": why}}
    return {**report, "body_length": length, "body_sha256": digest}


def causes_of(error: BaseException) -> Iterator[bytes]:
    """Yield pickles of what an exception was raised from, and that from, as far as each can be opened again."""
    with contextlib.suppress(BaseException):  # user code; the traceback tells of the rest
        for _ in range(_MOST_CAUSES):
            error = error.__cause__  # type: ignore[assignment] # None ends it
            if error is None:
                return
            data = _cause(error)
            if len(data) > _CAUSE_BYTES:
                return
            yield data


def _cause(error: BaseException) -> bytes:
    for anew in (False, True):
        with contextlib.suppress(Exception):  # user code
            return _opened_again(error, anew=anew)
    with contextlib.suppress(Exception):  # a class that refuses it
        error.add_note(_TEXTS)
    return _opened_again(error, anew=True, in_part=True)


def _opened_again(error: BaseException, **how: bool) -> bytes:
    file = io.BytesIO()
    dump_value(error, file, **how)
    file.seek(0)
    if not isinstance(_load(file), BaseException):
        raise TypeError(f"{type_name(error)} is opened as something else")
    return file.getvalue()


def _undeliverable(value: object, error: BaseException, body: BodyFile) -> dict[str, Any]:
    if isinstance(error, OSError) and error.errno in _FULL:
        return _failed("disk-full", f"the value does not fit on the disk: {text_of(error)}", outcomes.MAKE_ROOM)
    if body.error is not None:
        return _failed("not-written", f"the value could not be written to the disk: {text_of(body.error)}")
    if isinstance(error, MemoryError):
        return _failed("memory", f"there was not enough memory to pickle the value, a {type_name(value)}")
    described = {**describe(error, skip=5), "repr": repr_of(value), "value_type": type_name(value)}
    with contextlib.suppress(BaseException):  # user code, once more
        described |= _diagnosis(value)
    report = {"status": outcomes.FAILED, "cause": "serialization", "error": described}
    try:
        length, digest = body.write(value, anew=True, in_part=True)
    except BaseException:  # noqa: BLE001 - user code
        body.discard()
        return report
    return {**report, "body_length": length, "body_sha256": digest}


def _failed(cause: str, message: str, next_: str = "") -> dict[str, Any]:
    return {"status": outcomes.FAILED, "cause": cause, "error": {"message": message, "next": next_}}


def _diagnosis(value: object) -> dict[str, Any]:
    """Name the path to the part that cannot be pickled; parts are tried one by one, for a minute at most."""
    from kinetic._wire import pickle_diagnosis  # as above

    found = pickle_diagnosis.find([("the value", value)], _why_unpicklable, _SEARCH_SECONDS)
    if found is None:
        return {}
    path, part, reason = found
    return {
        "path": path,
        "culprit": pickle_diagnosis.short(part),
        "culprit_type": type_name(part),
        "too_deep": int(pickle_diagnosis.is_too_deep(reason)),
        "type": type(reason).__qualname__,
        "message": text_of(reason)[:_MESSAGE_CHARACTERS],
    }


def _why_unpicklable(part: object) -> BaseException | None:
    """Try to pickle a part of a value, and return what went wrong, or None."""
    try:
        dump_value(part, _Nowhere(), anew=True)
    except BaseException as error:  # noqa: BLE001 - user code
        return error
    return None


def fetch_order(store: Store, job_id: str, sha256: str, *, key: str, child: Mapping[str, Any] | None = None) -> Order:
    """Fetch and verify the order; raise RunnerError if another Python made its pickles.

    ``key`` and ``child``: for a child of a batch, where the shared order is, and what the launch adds to it.
    """
    found = orders.read(store, key or keys.order(job_id), sha256)
    if child is not None:
        found = found.of_child(Child.from_json(dict(child)))
    why = python_runtime.version_mismatch(found.fingerprint.get("python", python_runtime.python_version()))
    if why:
        raise RunnerError(
            "this job cannot be opened by this Python",
            why=why,
            next="submit with the Python version of the job's environment, or change container_image",
            code="python-mismatch",
        )
    return found


class Fetched(NamedTuple):
    """What comes before the project's files, all of it verified."""

    order: Order
    function: bytes
    arguments: bytes
    last_pack: bytes  # of the project, with its manifest; empty where there is none, or nobody may need it


def fetch(store: Store, task: Task) -> Fetched:
    """Fetch the order, and then at the same time what it names: the pickles, and the pack with the manifest."""
    kept = _kept.get((task.store_url, task.order_key, task.order_sha256))
    if kept is not None and task.child is not None:
        own = kept.order.of_child(Child.from_json(dict(task.child)))
        return kept._replace(order=own, arguments=fetch_artifact(store, own.arguments, "the arguments"))
    found = fetch_order(store, task.job_id, task.order_sha256, key=task.order_key, child=task.child)

    def last_pack() -> tuple[str, bytes]:
        left = workspace.Left.of(task)
        if found.manifest and not (left is not None and left.is_of(found.manifest, found.packs)):
            with contextlib.suppress(KineticError):  # ``unpack`` reads it again, and its phase has the error
                return "last_pack", blobs.read_blob(store, found.packs[-1], "the project")
        return "last_pack", b""

    parts: list[Callable[[], tuple[str, bytes]]] = [
        lambda: ("function", fetch_artifact(store, found.function, "the function")),
        lambda: ("arguments", fetch_artifact(store, found.arguments, "the arguments")),
        last_pack,
    ]
    return Fetched(found, **dict(in_parallel(store, parts, limit=1 if store.local else None)))


_kept: dict[tuple[str, str, str], Fetched] = {}  # of one batch: where its order is, and its digest
_MOST_KEPT = 8 << 20  # bytes of a function: a larger one is read again by each worker


def keep_shared(store: Store, task: Task) -> None:
    """Fetch what all children of a batch share, once in a supervisor: its workers inherit it, verified.

    Only from a folder: other stores have threads. What cannot be fetched is left to the worker, which reports it.
    """
    at = (task.store_url, task.order_key, task.order_sha256)
    if at in _kept:
        return
    _kept.clear()  # no job's process holds what another one's batch shares
    if not task.order_key or store.local is None:
        return
    with contextlib.suppress(KineticError, OSError):
        found = fetch_order(store, task.job_id, task.order_sha256, key=task.order_key)
        function = fetch_artifact(store, found.function, "the function")
        if len(function) <= _MOST_KEPT:
            _kept[at] = Fetched(found, function, b"", b"")


def fetch_artifact(store: Store, artifact: Artifact, what: str) -> bytes:
    """Return the verified bytes of an artifact, of which ``what`` is the name in errors."""
    if artifact.inline or not artifact.key:
        return artifact.unwrap(what)
    data = store.get(artifact.key, start=artifact.start, length=artifact.size)
    artifact.verify(digests.of_bytes(data), what)
    return data


def open_payload(
    function: bytes, arguments: bytes, *, moved: Callable[[bytes], Any] | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Unpickle what was verified; ``moved`` replaces ``pickle.loads`` for a debugger, see ``debug_server``."""
    opened = moved or pickle.loads  # their digests are in the order
    called = _opened(opened, function, "the function")
    args, kwargs = _opened(opened, arguments, "")
    return called, args, kwargs


def _opened(load: Callable[[bytes], Any], data: bytes, name: str) -> Any:
    try:
        return load(data)
    except Exception as error:
        part = ""
        if not isinstance(error, KineticError):
            from kinetic._wire import pickle_diagnosis  # few jobs need it

            with contextlib.suppress(BaseException):  # user code, once more
                part = pickle_diagnosis.find_unopened(data, name)
        if part:
            error.add_note(f"{OPENING}{part}")
        raise


def load_value(data: bytes) -> Any:
    """Unpickle what another job returned, which was verified."""
    from kinetic._wire import device_tensors  # only where a job follows another

    return device_tensors.load(lambda: io.BytesIO(data), lambda: sys.stderr.write(_MOVED))
