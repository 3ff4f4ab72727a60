"""A terminal, rendered: what stands on its screen while a program runs, a picture each tenth of a second."""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyte

_FRAME_SECONDS = 0.1


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TextTerminal(io.StringIO):
    """A terminal of no known size, which keeps what is written to it."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("it has no size")


class Screen:
    """What a terminal has shown so far, read from its other end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self.seen = descriptor, b""

    def until(self, wanted: bytes, seconds: float = 30) -> None:
        limit = time.monotonic() + seconds
        while wanted not in self.seen:
            left = max(0.0, limit - time.monotonic())
            assert select.select([self._descriptor], [], [], left)[0], self.seen
            try:
                self.seen += os.read(self._descriptor, 4096)
            except OSError:  # EIO: nobody has it open any more
                raise AssertionError(self.seen) from None

    def until_it_answers(self, question: bytes, wanted: bytes) -> None:
        """Ask again until the answer is the right one: what was told to the other end needs a moment."""
        for _ in range(100):
            os.write(self._descriptor, question)
            with contextlib.suppress(AssertionError):
                return self.until(wanted, 0.3)
        raise AssertionError(self.seen)


@dataclass(frozen=True)
class Seen:
    """What a program did on a terminal.

    Attributes:
        frames: The screen, each tenth of a second.
        screen: The screen at the end.
        raw: All bytes that it wrote.
        code: Its exit code, negative for a signal.
    """

    frames: list[str]
    screen: str
    raw: bytes
    code: int

    def share(self, stands: Callable[[str], bool], until: Callable[[str], bool]) -> float:
        """Return in which share of the frames something stood, from the first such frame until something else did."""
        first = next((number for number, frame in enumerate(self.frames) if stands(frame)), None)
        assert first is not None, f"it was never seen in {len(self.frames)} frames; at the end:\n{self.screen}"
        wanted = list(itertools.takewhile(lambda frame: not until(frame), self.frames[first:]))
        return sum(map(stands, wanted)) / max(len(wanted), 1)


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    rows: int = 40,
    columns: int = 120,
    press: tuple[str, bytes] | None = None,
    then: Sequence[tuple[str, bytes]] = (),
    seconds: float = 60,
) -> Seen:
    """Run a command as the leader of a session with a terminal of its own, and render what it writes.

    Args:
        command: What runs.
        cwd: Where.
        env: Its environment.
        rows: Of the terminal.
        columns: Of the terminal.
        press: A text, and the keys that are pressed once it stands on the screen, e.g. Ctrl-C.
        then: Further texts and keys, each waited for once the one before it was pressed.
        seconds: Afterwards it is killed.
    """
    pid, leader = pty.fork()
    if pid == 0:  # the child: its standard streams are the terminal
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.chdir(cwd)
            os.execvpe(command[0], list(command), {**env, "TERM": "xterm-256color"})
        os._exit(127)
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    frames: list[str] = []
    raw = b""
    keys = [*([press] if press else ()), *then]
    limit, due = time.monotonic() + seconds, time.monotonic() + _FRAME_SECONDS
    try:
        while time.monotonic() < limit:
            ready, _, _ = select.select([leader], [], [], max(due - time.monotonic(), 0))
            if not ready:
                frames.append(_shown(screen))
                due = max(due + _FRAME_SECONDS, time.monotonic())  # not the same picture again for a time without looks
                continue
            try:
                data = os.read(leader, 1 << 16)
            except OSError:  # EIO: nobody holds the other end any more
                break
            if not data:
                break
            raw += data
            stream.feed(data)
            if keys and keys[0][0] in _shown(screen):
                frames.append(_shown(screen))  # it may be gone before the next tenth of a second
                os.write(leader, keys.pop(0)[1])
    finally:
        if time.monotonic() >= limit:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(leader)
    code = os.waitstatus_to_exitcode(status)
    return Seen(frames, _shown(screen), raw, code)


def _shown(screen: pyte.Screen) -> str:
    return "\n".join(line.rstrip() for line in screen.display).rstrip()
