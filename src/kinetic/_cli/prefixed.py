"""Logs of several hosts on one screen: whole lines, each with the host that wrote it in front."""

from __future__ import annotations

from typing import IO


class Prefixed:
    """Writes one host's bytes as lines with a prefix; half a line waits for its other half."""

    def __init__(self, out: IO[bytes], host: int) -> None:
        self._out = out
        self._prefix = f"[host {host}] ".encode()
        self._half = b""

    def write(self, data: bytes) -> int:
        """Write what is a whole line by now."""
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            self._out.write(self._prefix + line + b"\n")
        return len(data)

    def finish(self) -> None:
        """Write the last line, if no break followed it."""
        if self._half:
            self.write(b"\n")
