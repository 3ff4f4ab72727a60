"""The inputs of a batch on their way into the store: pickled one by one, many to an object, never all in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from kinetic._packing import culprit, function
from kinetic._packing.call import failure, translated
from kinetic._packing.root import Plan
from kinetic._stores.protocol import Store, put_file, scratch_folder
from kinetic._wire import digests
from kinetic._wire.order import Artifact
from kinetic.errors import KineticError

MANY = 1000  # inputs to an object: ten requests bring ten thousand inputs
LARGE = 16 << 20  # an object is closed when it holds this many bytes


class InputPacker:
    """Write inputs into objects of the store; a context that leaves no scratch file behind.

    Args:
        plan: The project that ships.
        store: Where to.
        key_of: Gives the key of the object of each number, from 0.
        by_value: Modules that the user wants by value.
    """

    def __init__(self, plan: Plan, store: Store, key_of: Callable[[int], str], *, by_value: Sequence[str] = ()) -> None:
        self._travel = function.Travel(plan, by_value)
        self._store = store
        self._key_of = key_of
        self._number = 0
        self._count = 0
        self._file: IO[bytes] | None = None
        self._path: Path | None = None

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is left, or leave nothing."""
        try:
            if kind is None:
                self.close()
        finally:
            self._discard()

    def add(self, args: Sequence[Any], kwargs: Mapping[str, Any], swap: function.Swap | None) -> Artifact:
        """Pickle the arguments of one call.

        Args:
            args: Positional arguments.
            kwargs: Arguments by name.
            swap: What travels in the place of some objects; see ``function.Travel``.

        Raises:
            ArgumentNotPicklableError: It names the path to the value that cannot be pickled; the others are unharmed.
        """
        self._travel.swap = swap
        with translated():
            file = self._file or self._open()
            start = file.tell()
        writer = digests.HashingWriter(_OnDisk(file))  # type: ignore[arg-type] # it needs write() only
        try:
            function.dump((tuple(args), dict(kwargs)), writer, self._travel)  # type: ignore[arg-type] # it needs write() only
        except BaseException as error:
            with translated():
                file.seek(start)
                file.truncate()
            if not isinstance(error, Exception) or isinstance(error, KineticError):
                raise
            raise self._refusal(args, kwargs, error) from error
        placed = Artifact(writer.hexdigest(), writer.length, key=self._key_of(self._number), start=start)
        self._count += 1
        if self._count >= MANY or file.tell() >= LARGE:
            self.close()
        return placed

    def notes(self) -> tuple[str, ...]:
        """Return sentences for the user: what travelled by value."""
        return self._travel.notes()

    def close(self) -> None:
        """Send the object that is being filled."""
        if self._file is None or self._path is None:
            return
        with translated():
            self._file.close()
        put_file(self._store, self._key_of(self._number), self._path)
        self._discard()
        self._number, self._count = self._number + 1, 0

    def _open(self) -> IO[bytes]:
        name = f"{os.getpid():x}-{os.urandom(8).hex()}.inputs"
        self._path = scratch_folder(self._store) / name
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = open(descriptor, "w+b", buffering=1 << 16)  # noqa: SIM115 - closed by close() and _discard()
        return self._file

    def _discard(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # on a full disk, closing fails as writing did
                self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._file = self._path = None

    def _refusal(self, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception) -> Exception:
        return culprit.refusal(list(function.names_of(args, kwargs)), lambda value: failure(value, self._travel), error)


class _OnDisk:
    """A file whose own troubles are told apart from what an input's pickling raises."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        with translated():
            return self._file.write(data)
