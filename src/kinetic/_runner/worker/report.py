"""The report: what a worker says to its supervisor, through a pipe and in a file that outlives both.

User code runs between two sentences of it. It may fork, close our descriptors and open files of its own under their
numbers, drop its rights, or fill the pipe with anything. So every descriptor is checked before it is used, a forked
child never speaks, and whatever arrives is checked before it is believed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from dataclasses import dataclass
from json import dumps, loads
from os import _exit
from os import fstat as _fstat
from os import ftruncate as _ftruncate
from os import getpid as _getpid
from os import getppid as _getppid
from os import kill as _kill
from os import lseek as _lseek
from os import open as _open
from os import write as _write
from pathlib import Path
from typing import Any

from kinetic._wire import folders, outcome
from kinetic._wire.failpoints import step

_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO in its place holds nobody up
_MOST_BYTES = 8 << 20  # of a word: the longest traceback that is kept, escaped


class Held:
    """A descriptor of ours in a process that runs user code.

    Attributes:
        descriptor: Its number, which may be another file's by now.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._identity = _identity(descriptor)

    @property
    def is_ours(self) -> bool:
        """Return whether the number still stands for the file that it stood for at first."""
        return self._identity is not None and _identity(self.descriptor) == self._identity


class PrivateFile:
    """A file in a private folder, opened before any user code runs.

    Later it needs neither its name, nor the rights to open it, nor a free descriptor; only where user code closed the
    descriptor, the file is opened again by name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: Held | None = None
        with contextlib.suppress(OSError):  # tried again when it is needed
            self._held = Held(_open(path, _FILE, folders.PRIVATE_FILE))

    def descriptor(self) -> int:
        """Return the descriptor, open for reading and writing.

        Raises:
            OSError: The file had to be opened again, and could not be.
        """
        if self._held is None or not self._held.is_ours:
            self._held = Held(_open(self._path, _FILE, folders.PRIVATE_FILE))
        return self._held.descriptor


@dataclass
class Report:
    """What the worker said last; the supervisor's only source while it lives.

    Attributes:
        phase: In which phase it is.
        done: The last word, or None.
    """

    phase: str = "order"
    done: dict[str, Any] | None = None


class Teller:
    """The worker's end of the report.

    Args:
        pipe: The descriptor that the supervisor reads.
        page: The file for the last word, in a private folder.
    """

    def __init__(self, pipe: int, page: Path) -> None:
        self._pid = _getpid()
        self._pipe = Held(pipe)
        self._page = PrivateFile(page)
        self._parent = os.getppid()
        self.phase = Report.phase
        self.has_spoken = False

    @property
    def is_the_worker(self) -> bool:
        """Return whether this process is the one that was started as the worker, not a child that user code forked."""
        return _getpid() == self._pid

    def enter(self, phase: str) -> None:
        """Say that a phase begins."""
        self.phase = phase
        self._tell({"phase": phase})

    def done(self, word: dict[str, Any]) -> bool:
        """Say the last word, once: on disk first, so that it outlives both processes.

        Returns:
            Whether the supervisor was told; if not, it finds the word on the disk when this process has ended.
        """
        if not self.is_the_worker or self.has_spoken:
            return False
        self.has_spoken = True
        with contextlib.suppress(OSError):  # a full disk: the pipe remains
            self._keep(dumps(word).encode())
            step("worker:meta-written")
        if _getppid() == self._parent:
            with contextlib.suppress(OSError):
                _kill(self._parent, signal.SIGCONT)  # a supervisor that user code has stopped would never hear it
        return self._tell({"phase": self.phase, "done": word})

    def _keep(self, data: bytes) -> None:
        """Write the word into its file. Half of it is no JSON, so a word that was cut short is never believed."""
        descriptor = self._page.descriptor()
        _ftruncate(descriptor, 0)
        _lseek(descriptor, 0, os.SEEK_SET)
        folders.write_all(descriptor, data)

    def _tell(self, page: dict[str, Any]) -> bool:
        if not self.is_the_worker or not self._pipe.is_ours:
            return False
        line = b"\n" + dumps(page).encode() + b"\n"  # also at a start: what user code wrote here ended no line
        try:
            while line:
                line = line[_write(self._pipe.descriptor, line) :]
        except OSError:  # a supervisor that is gone hears nothing; the file remains
            return False
        return True


class Listener:
    """The supervisor's end of the report."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.report = Report()
        self._half = b""

    def hear(self) -> bool:
        """Read what is there; False when the worker's end is closed."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return True
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._half) > _MOST_BYTES:
            self._half = b""  # no line of ours: user code that writes here harms its own job only
        return bool(data)

    def _take(self, line: bytes) -> None:
        page = _parsed(line)
        if page is not None:
            phase = page.get("phase")
            self.report.phase = phase if isinstance(phase, str) else self.report.phase
            self.report.done = checked(page.get("done")) or self.report.done


def read_word(page: Path) -> dict[str, Any] | None:
    """Return the last word of a worker as it is on the disk, or None: for a supervisor that did not hear it."""
    try:
        descriptor = os.open(page, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return checked(_parsed(file.read(_MOST_BYTES)))


def checked(word: object) -> dict[str, Any] | None:
    """Return a last word as a supervisor can work with it, or None when it is no such thing."""
    if not isinstance(word, dict) or word.get("status") not in (outcome.SUCCEEDED, outcome.FAILED):
        return None
    length = word.get("body_length", 0)
    if type(length) is not int or not 0 <= length < 1 << 62:
        return None
    texts = {name: word[name] for name in ("status", "cause", "phase", "body_sha256", "value_type") if name in word}
    error, phases, files = word.get("error") or {}, word.get("phases") or {}, word.get("files") or ()
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    if not (isinstance(error, dict) and isinstance(phases, dict) and isinstance(files, list | tuple)):
        return None
    return {
        "cause": "",
        **{name: _plain(text) for name, text in texts.items()},
        "body_length": length,
        "exited": word.get("exited") is True,
        "error": {_plain(name): _plain(value) for name, value in error.items() if isinstance(value, _SCALARS)},
        "phases": {_plain(name): seconds for name, seconds in phases.items() if isinstance(seconds, int | float)},
        "files": [_plain(name) for name in files if isinstance(name, str)],
    }


_SCALARS = (str, int, float, type(None))


def _plain(value: Any) -> Any:
    """Return a value that UTF-8 can hold: the name of a file that is not UTF-8 comes with halves of characters."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def end_after(seconds: float, code: int) -> None:
    """End this process after a while, whatever exit handlers do: for a word that the supervisor did not hear."""
    from time import sleep

    def end() -> None:
        sleep(seconds)
        _exit(code)

    threading.Thread(target=end, name="kinetic-end", daemon=True).start()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        page = loads(line)
    except (ValueError, RecursionError):
        return None
    return page if isinstance(page, dict) else None


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = _fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
