"""The Call: the function and the arguments, exactly as the user gave them, and how they are pickled."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kinetic._packing import culprit, function
from kinetic._packing.root import Plan, below
from kinetic._stores.protocol import Store, put_file, scratch_folder
from kinetic._wire import digests
from kinetic._wire.order import INLINE_BYTES, Artifact
from kinetic.errors import ArgumentNotPicklableError, CallableError, StoreError

_WARN_MB = 50.0
_MB = 1_000_000


@dataclass(frozen=True)
class Call:
    """What the user wants called."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    name: str


def check_arguments(function_: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> None:
    """Refuse arguments that the function does not take, before anything is submitted.

    Raises:
        CallableError: They do not fit its signature (also a TypeError, as Python itself would raise).
    """
    import inspect  # cloudpickle loads it anyway

    try:
        # Not what functools.wraps points to: a decorator in between may add arguments, or take some away.
        signature = inspect.signature(function_, follow_wrapped=False)
    except (ValueError, TypeError):  # builtins tell none; the job will find out
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CallableError(
            f"{name}() cannot be called so: {error}",
            why=f"its signature is {name}{signature}",
            next="correct the call; nothing was submitted",
            code="arguments",
        ) from None


@dataclass(frozen=True)
class Payload:
    """A call in two pickles: the function, and the arguments.

    Attributes:
        function: Sent once for a whole batch.
        arguments: Sent for each job.
        notes: Sentences for the user.
    """

    function: Artifact
    arguments: Artifact
    notes: tuple[str, ...]


def pack(
    call: Call,
    plan: Plan,
    store: Store,
    keys: tuple[str, str],
    *,
    by_value: Sequence[str] = (),
    swap: function.Swap | None = None,
) -> Payload:
    """Pickle a call; what is small travels inside the Order, the rest is put into the store.

    Args:
        call: The call.
        plan: The project that ships.
        store: Where large pickles go.
        keys: Keys for the function and for the arguments.
        by_value: Modules that the user wants by value.
        swap: What travels in the place of some objects; see ``function.Travel``.

    Raises:
        ArgumentNotPicklableError: It names the path to the value that cannot be pickled.
    """
    travel = function.Travel(plan, by_value, swap=swap)
    roots = [(f"the function {call.name}", call.function), *function.names_of(call.args, call.kwargs)]
    try:
        packed = _write(call.function, travel, store, keys[0])
        arguments = _write((tuple(call.args), dict(call.kwargs)), travel, store, keys[1])
    except Exception as error:
        if _is_not_about_pickling(error):
            raise
        raise culprit.refusal(roots, lambda value: failure(value, travel), error) from error
    return Payload(packed, arguments, (*travel.notes(), *_size_note(arguments.size + packed.size)))


def pack_function(
    call: Call, plan: Plan, store: Store, key: str, *, by_value: Sequence[str] = (), swap: function.Swap | None = None
) -> tuple[Artifact, tuple[str, ...]]:
    """Pickle the function alone, for a batch whose inputs follow; see ``pack``.

    Returns:
        The function, and sentences for the user.
    """
    travel = function.Travel(plan, by_value, swap=swap)
    try:
        packed = _write(call.function, travel, store, key)
    except Exception as error:
        if _is_not_about_pickling(error):
            raise
        raise culprit.refusal(
            [(f"the function {call.name}", call.function)], lambda value: failure(value, travel), error
        ) from error
    return packed, (*travel.notes(), *_size_note(packed.size))


def script_of(plan: Plan) -> str:
    """Return the path of the user's script below the root, or "" in a notebook or a console."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    inside = below(os.path.abspath(file), str(plan.root)) if file else None  # links stay as they are
    return inside or ""


def _write(value: object, travel: function.Travel, store: Store, key: str) -> Artifact:
    spool = _Spool(store)
    try:
        writer = digests.HashingWriter(spool)  # type: ignore[arg-type] # it needs write() only
        function.dump(value, writer, travel)  # type: ignore[arg-type] # a pickler needs write() only
        if spool.small is not None:
            return Artifact.within(spool.small.getvalue())
        spool.put(key)
        return Artifact(writer.hexdigest(), writer.length, key=key)
    finally:
        spool.discard()


class _Spool:
    """Keep a pickle in memory while it is small, then in a file: a gigabyte of arguments is never held twice."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path: Path | None = None
        self._file: IO[bytes] | None = None
        self.small: io.BytesIO | None = io.BytesIO()

    def write(self, data: bytes | memoryview) -> int:
        """Write, and move to a file when it is no longer small."""
        size = memoryview(data).nbytes
        with translated():
            if self.small is not None and self.small.tell() + size > INLINE_BYTES:
                self._file = self._open()
                self._file.write(self.small.getbuffer())
                self.small = None
            (self._file or self.small).write(data)  # type: ignore[union-attr] # one of the two is there
        return size

    def put(self, key: str) -> None:
        """Hand the file to the store: by a rename where that is possible."""
        if self._file is None or self._path is None:
            return
        with translated():
            self._file.close()
        put_file(self._store, key, self._path)

    def discard(self) -> None:
        """Remove what is left of the file."""
        if self._file is not None and self._path is not None:
            with contextlib.suppress(OSError):  # on a full disk, closing fails as writing did
                self._file.close()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _open(self) -> IO[bytes]:
        self._path = scratch_folder(self._store) / f"{os.getpid():x}-{os.urandom(8).hex()}.pkl"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return open(descriptor, "wb", buffering=1 << 16)  # a descriptor


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Translate what the disk says; what the user's own pickling raises passes beside this."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise StoreError(
            f"the disk that holds the store {'is full' if full else 'refused the arguments'}",
            why=f"writing the pickled function and its arguments: {error}",
            next="free some space there, or point KINETIC_HOME at a larger disk",
            code="store-full" if full else None,
        ) from error


def failure(value: object, travel: function.Travel) -> BaseException | None:
    """Try to pickle a value, and return what went wrong, or None."""
    try:
        function.dump(value, _Nowhere(), travel)  # type: ignore[arg-type] # a pickler needs write() only
    except Exception as error:  # noqa: BLE001 - pickling runs user code
        return error
    return None


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)


def _is_not_about_pickling(error: Exception) -> bool:
    from kinetic.errors import KineticError

    return isinstance(error, KineticError | OSError) and not isinstance(error, ArgumentNotPicklableError)


def _size_note(size: int) -> list[str]:
    setting = os.environ.get("KINETIC_PAYLOAD_SIZE_WARN_MB", "")
    try:
        limit = float(setting) if setting else _WARN_MB
    except ValueError:
        limit = _WARN_MB
    if limit <= 0 or size <= limit * _MB:
        return []
    what = f"the function and its arguments are {size / _MB:.0f} MB (KINETIC_PAYLOAD_SIZE_WARN_MB={limit:g})"
    return [f'{what}; write it to a file and pass kinetic.Data("file"): the function gets a path, and it is sent once']
