"""Telling: what the parent itself has to say, on the container's output and in what Kubernetes shows of a failure."""

from __future__ import annotations

import contextlib
import os
import select

_PATIENCE_SECONDS = 1.0
_MOST_BYTES = 4096  # of a termination message; Kubernetes cuts what is longer


def say(text: str) -> None:
    """Write a line to the container's output, whole, whatever else is written there; drop it if nobody reads."""
    outlet = select.poll()
    outlet.register(1, select.POLLOUT)
    with contextlib.suppress(OSError):
        if outlet.poll(_PATIENCE_SECONDS * 1000):
            os.write(1, f"kinetic: {text}\n".encode(errors="backslashreplace"))


def last_words(path: str, text: str) -> None:
    """Leave a message where Kubernetes looks for one; outside of a container there is no such file."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode(errors="backslashreplace")[:_MOST_BYTES])
        finally:
            os.close(descriptor)
