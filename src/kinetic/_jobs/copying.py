"""Copying what a job wrote into a folder here: whole files only, nothing replaced unasked, again where it stopped."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._output.format import size_text
from kinetic._stores import transfer
from kinetic._wire import descriptors
from kinetic.errors import KeyMissingError, KineticError, OptionError, StoreError

if TYPE_CHECKING:
    from kinetic._jobs.outputs import File, Found

_MANY = 5  # names in a message
_SAME_SECONDS = 1e-5  # a time that went through a float and back
_RUN = 0o111
_SCRATCH = ".kinetic-get-"


class Copy:
    """Files on their way into a folder; a thread may ask how far they are while another one carries them.

    Args:
        found: What to copy.
        to: The folder. Each file gets the path there that it has below the output directory.
        force: Replace files that are there and differ.

    Raises:
        OptionError: Files are there that differ, and ``force`` is not given; nothing was copied.
    """

    def __init__(self, found: Found, to: Path, *, force: bool = False) -> None:
        self.to = Path(os.path.abspath(to))
        self.gone: list[str] = []
        self._store = found.store
        states = [(file, _state(file, self.to)) for file in found.files]
        self.same = [file for file, state in states if state == "same"]
        self.todo = [file for file, state in states if state != "same"]
        self.done: list[File] = []
        self._scratch: Path | None = None
        in_the_way = [file.path for file, state in states if state == "folder" or (state == "other" and not force)]
        if in_the_way:
            raise _in_the_way(in_the_way, self.to)

    def carry(self) -> None:
        """Copy. Each file appears under its name when it is complete, with its time and its executable bits.

        What is gone by the time that it is asked for is left out, and named in ``gone``: the job may still be running.

        Raises:
            KineticError: A file cannot be written ("not-saved"), or the store fails. What was copied stays, and is not
                copied again the next time.
        """
        with _writing(self.to):
            self.to.mkdir(parents=True, exist_ok=True)
            with _scratch_in(self.to) as scratch:
                self._scratch = scratch
                tasks = (self._task(file, scratch / str(number)) for number, file in enumerate(self.todo))
                for file, came in transfer.in_parallel(self._store, tasks):
                    self.done.append(file) if came else self.gone.append(file.path)
                self._scratch = None

    def told(self) -> str:
        """Say how far it is."""
        size = sum(file.size for file in self.done) + self._under_way()
        whole = sum(file.size for file in self.todo)
        return f"{len(self.done)} of {len(self.todo)} files, {size_text(min(size, whole))} of {size_text(whole)}"

    def _task(self, file: File, beside: Path) -> Callable[[], tuple[File, bool]]:
        def fetch() -> tuple[File, bool]:
            try:
                self._store.fetch(file.key, beside)
            except KeyMissingError:
                return file, False
            if file.runs:
                mode = beside.stat().st_mode
                beside.chmod(mode | ((mode & 0o444) >> 2 & _RUN))  # for whoever may read it
            os.utime(beside, (file.modified, file.modified))
            with descriptors.above(self.to, file.path, make=0o777) as folder:  # never through a link
                os.replace(beside, descriptors.name_of(file.path), dst_dir_fd=folder)
            return file, True

        return fetch

    def _under_way(self) -> int:
        """Return the bytes that have come of files that are not complete."""
        size = 0
        with contextlib.suppress(OSError):  # they come and go
            for entry in os.scandir(self._scratch) if self._scratch else ():
                size += entry.stat().st_size
        return size


def _state(file: File, to: Path) -> str:
    """Say what is at a file's target: "nothing", the "same", an "other" file, or a "folder" or a link on the way."""
    try:
        about = descriptors.about(to, file.path)
    except FileNotFoundError:
        return "nothing"
    except NotADirectoryError:  # on the way there; a target that is no folder itself is told of by the copying
        return "folder" if to.is_dir() else "nothing"
    if stat.S_ISDIR(about.st_mode):
        return "folder"
    is_same = about.st_size == file.size and abs(about.st_mtime - file.modified) < _SAME_SECONDS
    return "same" if is_same and stat.S_ISREG(about.st_mode) else "other"


def _in_the_way(paths: list[str], to: Path) -> OptionError:
    more = f" and {len(paths) - _MANY} more" if len(paths) > _MANY else ""
    return OptionError(
        f"{to} holds other files under these names; nothing was copied",
        why=f"{', '.join(paths[:_MANY])}{more}",
        next="choose another folder with --to, or add --force to replace files; a folder is never replaced, nor a link "
        "on the way",
        code="file-exists",
    )


@contextlib.contextmanager
def _scratch_in(to: Path) -> Iterator[Path]:
    """Give a folder for what is not complete. It is locked while its copy lives; what dead ones left is removed."""
    for left in to.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError), _locked(left):  # held: another copy is at work
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as held:
        scratch = tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=to, ignore_cleanup_errors=True)
        path = Path(held.enter_context(scratch))
        with contextlib.suppress(OSError):  # a file system without locks: there nobody takes it for a dead one's either
            held.enter_context(_locked(path))
        yield path


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; OSError when somebody else does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _writing(to: Path) -> Iterator[None]:
    """Tell in our words that a folder here cannot be written."""
    try:
        yield
    except StoreError as error:
        if error.code != "store-full":
            raise
        raise _not_saved(to, error.why or error.what) from error
    except OSError as error:
        if isinstance(error, KineticError):
            raise
        raise _not_saved(to, f"{type(error).__name__}: {error.filename or to}: {error.strerror or error}") from error


def _not_saved(to: Path, why: str) -> KineticError:
    return KineticError(
        f"not everything could be copied into {to}",
        why=why,
        next="free some space there or choose another folder with --to; what was copied is not copied again",
        code="not-saved",
    )
