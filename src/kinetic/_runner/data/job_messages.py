"""What this room says: lines into the log of the job, and errors of the file system as errors of ours."""

from __future__ import annotations

import errno
import os
import sys
from types import TracebackType
from typing import NoReturn

from kinetic.errors import DataError, KineticError, StoreError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def say(line: str) -> None:
    """Write one line into the log of the job."""
    sys.stderr.write(f"kinetic: {line}\n")


def is_portable() -> bool:
    """Say whether to do without what only some systems can do; the variable is among the job's own."""
    return os.environ.get("KINETIC_PORTABLE") == "1"


def rewritten(function: str, path: str) -> str:
    """Return the same call with an argument in place of a volume."""
    return f"{function or 'train'}(..., data=kinetic.Data({path!r}))"


class translated_disk_errors:  # noqa: N801 - reads as a statement
    """Translate the file system's errors; leave nothing of theirs to the reader at night."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, StoreError) and error.code == "store-full":  # the store's word for any full disk
            _full(self._what, error)
        if not isinstance(error, OSError) or isinstance(error, KineticError):
            return
        if error.errno in FULL:
            _full(self._what, error)
        raise DataError(
            f"{self._what} could not be written on this machine",
            why=str(error),
            next="look at the permissions of the folder that is named",
        ) from error


def _full(what: str, error: BaseException) -> NoReturn:
    raise StoreError(
        f"the disk that holds running jobs is full: there is no room for {what}",
        why=str(getattr(error, "why", None) or error),
        next="free some space there, or point KINETIC_RUNTIME_DIR at a larger disk",
        code="workspace-full",
    ) from error
