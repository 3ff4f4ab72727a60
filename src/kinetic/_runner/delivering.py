"""Delivering: a value or an exception becomes the body of an Outcome, or a failure that says why it cannot."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
from pathlib import Path
from typing import Any

from kinetic._runner import calling, pickling
from kinetic._wire import digests, folders, outcome

_FULL = {errno.ENOSPC, errno.EDQUOT}


def deliver(ended: calling.Value | calling.Failure, body: Path) -> dict[str, Any]:
    """Write the body and return the final word about it.

    Returns:
        status, cause, error, body_length, body_sha256, value_type: the worker's part of an Outcome.
    """
    if isinstance(ended, calling.Value):
        return _deliver_value(ended.value, body)
    return _deliver_failure(ended, body)


def _deliver_value(value: object, body: Path) -> dict[str, Any]:
    try:
        length, sha256 = _write(value, body)
    except Exception as error:  # noqa: BLE001 - pickling runs user code
        _discard(body)
        return _undeliverable(value, error)
    return {
        "status": outcome.SUCCEEDED,
        "cause": "value",
        "error": {},
        "body_length": length,
        "body_sha256": sha256,
        "value_type": f"{type(value).__module__}.{type(value).__qualname__}",
    }


def _deliver_failure(failure: calling.Failure, body: Path) -> dict[str, Any]:
    word = {"status": outcome.FAILED, "cause": failure.cause, "error": failure.error}
    try:
        length, sha256 = _write(failure.exception, body)
        _try_to_open(body)
    except Exception as error:  # noqa: BLE001 - pickling runs user code
        _discard(body)
        word["error"] = {**failure.error, "not_delivered": f"{type(error).__name__}: {calling.text_of(error)}"[:2000]}
        return word
    return {**word, "body_length": length, "body_sha256": sha256}


def _undeliverable(value: object, error: Exception) -> dict[str, Any]:
    if isinstance(error, OSError) and error.errno in _FULL:
        what = f"the value does not fit on the disk: {error}"
        return {"status": outcome.FAILED, "cause": "disk-full", "error": {"message": what}}
    described = calling.describe(error)
    described["repr"] = calling.repr_of(value)
    described["value_type"] = f"{type(value).__module__}.{type(value).__qualname__}"
    return {"status": outcome.FAILED, "cause": "serialization", "error": described}


def _write(value: object, body: Path) -> tuple[int, str]:
    with open(body, "wb", buffering=1 << 16, opener=folders.opener) as file:
        writer = digests.HashingWriter(file)
        pickling.dump(value, writer)  # type: ignore[arg-type] # a pickler needs write() only
        file.flush()
        os.fsync(file.fileno())
    return writer.length, writer.hexdigest()


def _try_to_open(body: Path) -> None:
    """Open an exception once here: one that cannot be rebuilt would only fail on the other side, without its words."""
    with body.open("rb") as file:
        pickle.load(file)  # noqa: S301 - written by this very process


def _discard(body: Path) -> None:
    with contextlib.suppress(OSError):
        body.unlink()
