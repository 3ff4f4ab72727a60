"""Reading an Outcome: its page first, its body only when it is wanted, and never unverified."""

from __future__ import annotations

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kinetic._jobs import places
from kinetic._stores.protocol import Store
from kinetic._wire import digests, keys
from kinetic._wire import outcome as outcomes
from kinetic._wire.outcome import Outcome
from kinetic.errors import IntegrityError, KeyMissingError, ResultUnreadableError

if TYPE_CHECKING:
    from kinetic._wire.handles import JobRecord

_PIECE, _BLOCK = 1 << 20, 1 << 16
_IN_MEMORY = 16 << 20  # bodies up to 16 MiB are read once, verified and opened from the same bytes


def verdict_of(job: JobRecord) -> Outcome | None:
    """Return the verdict of a job, or None while there is none.

    Raises:
        CredentialsError: There is one, and the key without which it cannot be verified is not here.
        IntegrityError: It is damaged or its seal is wrong.
    """
    return page_of(places.store_of(job), job.job_id, lambda: places.key_to_read(job))


def page_of(store: Store, job_id: str, key_of: Callable[[], bytes | None]) -> Outcome | None:
    """Return the verdict of a job, or None while there is none.

    Args:
        store: Where the job lies.
        job_id: The job.
        key_of: Gives the job's key, or None when the user said to trust the store; asked only if there is a verdict.

    Raises:
        IntegrityError: It is damaged or its seal is wrong.
    """
    name = keys.result(job_id)
    size = store.size(name)
    if size is None:
        return None
    try:
        outcome = outcomes.read(size, lambda start, length: store.get(name, start=start, length=length), key_of())
    except KeyMissingError:  # removed between the two
        return None
    if outcome.job_id != job_id:
        raise IntegrityError(f"the result of {job_id} is about another job, {outcome.job_id}")
    return outcome


def body_of(store: Store, outcome: Outcome) -> Any:
    """Verify the whole body, then unpickle it.

    Raises:
        IntegrityError: Its bytes changed; nothing of them was used.
        ResultUnreadableError: It needs a module or a class that this machine does not have; the bytes stay.
    """
    import pickle  # 3 ms; only when a value is opened

    name = keys.result(outcome.job_id)
    if outcome.body_length <= _IN_MEMORY:
        data = store.get(name, length=outcome.body_length)
        outcomes.check_body(outcome, digests.of_bytes(data))
        return _open(lambda: pickle.loads(data), outcome)  # noqa: S301 - verified
    with _as_file(store, name) as file:
        verified = _Verified(file, outcome)
        return _open(lambda: pickle.load(io.BufferedReader(verified, _BLOCK)), outcome)  # noqa: S301 - verified


def save(store: Store, outcome: Outcome, to: Path) -> int:
    """Write the verified body, an ordinary pickle, into a file, and return its size.

    Raises:
        IntegrityError: Its bytes changed; there is no file.
    """
    beside = to.with_name(f".{to.name}.{os.getpid():x}-{os.urandom(4).hex()}.part")
    try:
        with _as_file(store, keys.result(outcome.job_id)) as file, beside.open("xb") as target:
            digest, left = hashlib.sha256(), outcome.body_length
            while left and (piece := file.read(min(left, _PIECE))):
                digest.update(piece)
                target.write(piece)
                left -= len(piece)
            outcomes.check_body(outcome, digest.hexdigest())  # of what was written, not of what is there now
            target.flush()
            os.fsync(target.fileno())
        beside.replace(to)
    finally:
        beside.unlink(missing_ok=True)
    return outcome.body_length


class _Verified(io.RawIOBase):
    """A body too large for memory, read twice: no byte is given out that differs from what was verified.

    The first pass notes the digest of all that came before each piece; the second one compares before it gives a piece
    away. So it does not matter whether somebody changes the file in between.
    """

    def __init__(self, file: IO[bytes], outcome: Outcome) -> None:
        self._file, self._outcome = file, outcome
        self._left, self._ready = outcome.body_length, memoryview(b"")
        digest, self._expected = hashlib.sha256(), deque[bytes]()
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

    with tempfile.TemporaryDirectory(prefix="kinetic-") as folder:  # closed to others
        path = Path(folder, "result")
        store.fetch(name, path)
        return path.open("rb")  # the descriptor stays


def _open(load: Callable[[], Any], outcome: Outcome) -> Any:
    try:
        return load()
    except IntegrityError:
        raise
    except (ModuleNotFoundError, AttributeError, ImportError) as error:
        raise _missing_here(error, outcome) from error
    except Exception as error:
        raise ResultUnreadableError(
            f"the result of {outcome.job_id} is whole, and cannot be opened here",
            why=f"{type(error).__name__}: {error}",
            next=f"kinetic jobs result {outcome.job_id} --save result.pkl     keeps its bytes",
        ) from error


def _missing_here(error: Exception, outcome: Outcome) -> ResultUnreadableError:
    what = f"it is a {outcome.value_type}" if outcome.value_type else "its type"
    name = ""
    with suppress(AttributeError):
        name = error.name or ""  # type: ignore[attr-defined] # ModuleNotFoundError and AttributeError have it
    return ResultUnreadableError(
        f"the result of {outcome.job_id} cannot be opened here: {name or 'what it is made of'} is missing",
        why=f"{what}, and {type(error).__name__}: {error}",
        next="collect it from the project that submitted it; its bytes stay in the store",
    )
