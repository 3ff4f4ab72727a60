"""Delivering: a value or an exception becomes the body of an Outcome, or a failure that says why it cannot."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
from hashlib import sha256
from io import FileIO as _FileIO
from os import _exit
from os import fsync as _fsync
from os import ftruncate as _ftruncate
from os import getpid as _getpid
from os import lseek as _lseek
from pathlib import Path
from time import monotonic as _monotonic
from typing import Any

from kinetic._runner.worker import function_call, pickling
from kinetic._runner.worker.report import PrivateFile
from kinetic._wire import folders, outcome, pickle_diagnosis

_FULL = {errno.ENOSPC, errno.EDQUOT}
_BLOCK = 1 << 16
_SEARCH_SECONDS = 60.0
_load = pickle.load


class Body:
    """The file for the pickled value, opened before any user code runs, and the error of the disk if it had one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = PrivateFile(path)
        self._pid = _getpid()
        self.error: OSError | None = None

    def write(self, value: object) -> tuple[int, str]:
        """Pickle a value into the file, force it to the disk, and return its length and digest.

        Raises:
            BaseException: Whatever the value's own code raises, or the disk.
        """
        writer = _Writer(self)
        with self._noting():
            writer.descriptor = self.descriptor()
            _ftruncate(writer.descriptor, 0)
            _lseek(writer.descriptor, 0, os.SEEK_SET)
        pickling.dump(value, writer)  # type: ignore[arg-type] # a pickler needs write() only
        with self._noting():
            self.descriptor()
            writer.flush()
            _fsync(writer.descriptor)
        return writer.length, writer.digest.hexdigest()

    def descriptor(self) -> int:
        """Return the descriptor; a child that a value forked while it was pickled ends here and touches nothing."""
        if _getpid() != self._pid:
            _exit(0)
        return self._file.descriptor()

    def try_to_open(self) -> None:
        """Open what was written: an exception that cannot be rebuilt would fail on the other side, without its words.

        It is read from the descriptor that it was written to; a name could stand for another file by now.
        """
        descriptor = self.descriptor()
        _lseek(descriptor, 0, os.SEEK_SET)
        with _FileIO(descriptor, "rb", closefd=False) as file:
            _load(file)

    def discard(self) -> None:
        """Give back the room of what was written in part."""
        with contextlib.suppress(OSError):
            _ftruncate(self.descriptor(), 0)

    @contextlib.contextmanager
    def _noting(self) -> Any:
        try:
            yield
        except OSError as error:
            self.error = error
            raise


class _Writer:
    """What a pickler writes to: it keeps digest and length, so that nothing is read a second time."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._waiting = bytearray()
        self.descriptor = -1
        self.digest = sha256()
        self.length = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of the data."""
        view = memoryview(data).cast("B")
        self.digest.update(view)
        self.length += view.nbytes
        if view.nbytes < _BLOCK:
            self._waiting += view
            if len(self._waiting) < _BLOCK:
                return view.nbytes
            view, size = memoryview(b""), view.nbytes
        else:
            size = view.nbytes
        try:
            self._body.descriptor()
            self.flush()
            folders.write_all(self.descriptor, view)
        except OSError as error:
            self._body.error = error
            raise
        return size

    def flush(self) -> None:
        """Write what waits."""
        waiting, self._waiting = self._waiting, bytearray()
        folders.write_all(self.descriptor, waiting)


def deliver(ended: function_call.Value | function_call.Failure, body: Body) -> dict[str, Any]:
    """Write the body and return the last word about it; never raises, whatever the value's own code does.

    Returns:
        status, cause, error, body_length, body_sha256, value_type: the worker's part of an Outcome.
    """
    if isinstance(ended, function_call.Value):
        return _deliver_value(ended.value, body)
    return _deliver_failure(ended, body)


def _deliver_value(value: object, body: Body) -> dict[str, Any]:
    try:
        length, digest = body.write(value)
    except BaseException as error:  # noqa: BLE001 - pickling runs user code
        body.discard()
        return _undeliverable(value, error, body)
    return {
        "status": outcome.SUCCEEDED,
        "cause": "value",
        "error": {},
        "body_length": length,
        "body_sha256": digest,
        "value_type": function_call.type_name(value),
    }


def _deliver_failure(failure: function_call.Failure, body: Body) -> dict[str, Any]:
    word = {"status": outcome.FAILED, "cause": failure.cause, "error": failure.error}
    try:
        length, digest = body.write(failure.exception)
        body.try_to_open()
    except BaseException as error:  # noqa: BLE001 - pickling runs user code
        body.discard()
        word["error"] = {
            **failure.error,
            "not_delivered": f"{type(error).__name__}: {function_call.text_of(error)}"[:2000],
        }
        return word
    return {**word, "body_length": length, "body_sha256": digest}


def _undeliverable(value: object, error: BaseException, body: Body) -> dict[str, Any]:
    if isinstance(error, OSError) and error.errno in _FULL:
        return _failed("disk-full", f"the value does not fit on the disk: {function_call.text_of(error)}")
    if body.error is not None:
        return _failed(
            "not-written", f"the value could not be written to the disk: {function_call.text_of(body.error)}"
        )
    if isinstance(error, MemoryError):
        return _failed("memory", f"there was not enough memory to pickle the value, a {function_call.type_name(value)}")
    described = function_call.describe(error)
    described["repr"] = function_call.repr_of(value)
    described["value_type"] = function_call.type_name(value)
    with contextlib.suppress(BaseException):  # user code, once more
        described |= _culprit(value)
    return {"status": outcome.FAILED, "cause": "serialization", "error": described}


def _culprit(value: object) -> dict[str, Any]:
    """Name the path to the part that cannot be pickled; parts are tried one by one, for a minute at most."""
    limit = _monotonic() + _SEARCH_SECONDS

    def fails(part: object) -> BaseException | None:
        if _monotonic() > limit:
            return None
        try:
            pickling.dump(part, _Nowhere())  # type: ignore[arg-type] # a pickler needs write() only
        except BaseException as error:  # noqa: BLE001 - user code
            return error
        return None

    found = pickle_diagnosis.find([("the value", value)], fails)
    if found is None:
        return {}
    path, part, reason = found
    return {
        "path": path,
        "culprit": pickle_diagnosis.short(part),
        "culprit_type": function_call.type_name(part),
        "too_deep": int(pickle_diagnosis.is_too_deep(reason)),
        "type": type(reason).__qualname__,
        "message": function_call.text_of(reason)[:4000],
    }


class _Nowhere:
    def write(self, data: object) -> None:
        """Take what is written."""


def _failed(cause: str, message: str) -> dict[str, Any]:
    return {"status": outcome.FAILED, "cause": cause, "error": {"message": message}}
