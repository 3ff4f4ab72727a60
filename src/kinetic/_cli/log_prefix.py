"""Logs of several hosts on one screen: whole lines, each with the host that wrote it in front.

A line that is longer than a MiB is written in pieces, each as a line: nobody can hold every line in memory.
"""

from __future__ import annotations

from typing import IO

from kinetic._output.terminal_text import Terminal

_MOST_BYTES = 1 << 20


class Prefixed:
    """Writes one host's bytes as lines with a prefix; half a line waits for its other half."""

    def __init__(self, out: IO[bytes] | Terminal, host: int) -> None:
        self._out = out
        self._prefix = f"[host {host}] ".encode()
        self._half = bytearray()

    def write(self, data: bytes) -> int:
        """Write what is a whole line by now."""
        *lines, half = data.split(b"\n")
        for line in lines:
            self._out.write(b"".join((self._prefix, self._half, line, b"\n")))
            self._half.clear()
        self._half += half
        if len(self._half) >= _MOST_BYTES:
            self._out.write(b"".join((self._prefix, self._half, b"\n")))
            self._half.clear()
        return len(data)

    def finish(self) -> None:
        """Write the last line, if no break followed it."""
        if self._half:
            self.write(b"\n")
