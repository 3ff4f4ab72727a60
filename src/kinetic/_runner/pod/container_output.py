"""Telling: what the parent itself has to say, on the container's output and in what Kubernetes shows of a failure.

While the log of the worker is copied to the container's output, whoever copies it takes the lines, so that none lands
in the middle of a line of the user's.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import Protocol

from kinetic._wire import folders, pod_log_format

_PATIENCE_SECONDS = 1.0
_MOST_BYTES = 4096  # of a termination message; Kubernetes cuts what is longer


class Output(Protocol):
    """Whoever writes to the container's output."""

    def take(self, lines: bytes) -> bool:
        """Take lines to be written when it fits; False for one that writes nothing any more."""

    def end_line(self) -> bytes:
        """Return what ends a line that was begun, once nothing more is written."""

    def drain(self, seconds: float) -> None:
        """Write everything out."""


_voice: Output | None = None


def through(voice: Output) -> None:
    """Have lines written by somebody from now on."""
    global _voice  # noqa: PLW0603 - a process has one output
    _voice = voice


def say(text: str) -> None:
    """Write lines to the container's output, whole, whatever else is written there; drop them if nobody reads."""
    lines = pod_log_format.said(text)
    if _voice is not None:
        if _voice.take(lines):
            return
        lines = _voice.end_line() + lines
    outlet = select.poll()
    outlet.register(1, select.POLLOUT)
    with contextlib.suppress(OSError):
        if outlet.poll(_PATIENCE_SECONDS * 1000):
            os.write(1, lines)


def finish(seconds: float) -> None:
    """Let what was said arrive; not at somebody who reads nothing for so many seconds."""
    if _voice is not None:
        _voice.drain(seconds)


def write_termination_message(path: str, text: str) -> None:
    """Leave a message where Kubernetes looks for one; outside of a container there is no such file."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            folders.write_all(descriptor, text.encode(errors="backslashreplace")[:_MOST_BYTES])
        finally:
            os.close(descriptor)
