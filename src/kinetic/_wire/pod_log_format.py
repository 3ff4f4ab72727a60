"""The output of a container: the log of its job, byte for byte, and between its lines the messages of the runner.

The log in the store has the user's bytes only. Readers that go from one to the other, in the middle of a line if need
be, must count alike; so what is ours can be told from what is the user's, whatever the user prints:

    kinetic| text         a line of the runner
    kinetic|=kinetic| x   the user's own line "kinetic| x"
    50 %kinetic|-         the user's "50 %", which has no line break; this one is ours
    50 %kinetic|-=        the user's own line "50 %kinetic|-"

containerd drops the carriage return before a line break, and other runtimes keep it. So each line of the user that ends
with one gets one more. The line that names the attempt ends with one, too: by it a reader sees which kind this is.
"""

from __future__ import annotations

import re

from kinetic._wire import NamedTuple

_WORD = b"kinetic|"
RUNNER_PREFIX = "kinetic| "  # a line of the runner begins so
VERDICT = "the verdict is in the store"  # such a line goes on so once there is one
LEFT_OUT = "left out here: "  # and so where bytes of the log are missing

_OWN, _BREAK = _WORD + b"=", _WORD + b"-"
_ENDING = re.compile(rb"kinetic\|-(=*)\n")
_UNSURE = re.compile(rb"(?:\r+|k(?:i(?:n(?:e(?:t(?:i(?:c(?:\|(?:-=*)?)?)?)?)?)?)?)?)\Z")
_CLAIM = re.compile(rb"kinetic\| attempt (\d+) of (\S+), host (\d+) of (\d+)(\r?)\n")
_BLOCK = 4096  # bytes: behind each mark the rest of them is copied
_MOST_BEFORE = 64 << 10  # bytes before the line that names the attempt; the rest of a log that was rotated has none


class Claim(NamedTuple):
    """Whose log it is."""

    job_id: str
    attempt: int
    host: int


def runner_lines(text: str) -> bytes:
    """Return what the runner says, each line marked."""
    lines = "".join(f"{RUNNER_PREFIX}{line}\n" for line in text.split("\n"))
    return lines.encode(errors="backslashreplace")


def claim_line(claim: Claim, hosts: int) -> str:
    """Return the words by which a reader knows whose log follows."""
    return f"attempt {claim.attempt} of {claim.job_id}, host {claim.host} of {hosts}\r"


def verdict_of(job_id: str) -> str:
    """Return how a line of a warm pod begins that says that a job has its verdict."""
    return f"{VERDICT} of {job_id}"


class Writer:
    """Turns a log into what is written to the container's output."""

    def __init__(self) -> None:
        # whether what was written so far ends with a whole line, so that the runner may say something
        self.is_at_start = True
        self._held = b""  # what may be the beginning of something that is written otherwise

    def write(self, data: bytes, *, last: bool = False) -> bytes:
        """Return what is to be written for the next bytes of the log; with ``last``, what was held back as well."""
        data, self._held = _sure(self._held + data) if not last else (self._held + data, b"")
        if not data:
            return b""
        before = b"\n" if self.is_at_start else b""
        written = (before + data).replace(b"\r\n", b"\r\r\n").replace(b"\n" + _WORD, b"\n" + _OWN + _WORD)
        if _BREAK in written:
            written = _ENDING.sub(rb"kinetic|-\1=\n", written)
        self.is_at_start = written.endswith(b"\n")
        return written[len(before) :]

    def end_line(self) -> bytes:
        """Return what ends a line that the user began; nothing if there is none."""
        if self.is_at_start:
            return b""
        self.is_at_start = True
        return _BREAK + b"\n"


class Reader:
    """Turns a container's output, from its beginning, into the log.

    Args:
        job_id: The job whose log is wanted, of a warm pod, which has many; "" where there is one.

    Attributes:
        claim: Whose log it is, once that was said.
        is_lost: Whether it does not say so, or bytes are missing: nothing more comes.
        has_verdict: Whether the runner said that there is a verdict.
        is_over: Whether all that follows is the log of another attempt, or of another job.
    """

    def __init__(self, job_id: str = "") -> None:
        self._job_id = job_id.encode()
        self.claim: Claim | None = None
        self.is_lost = self.is_over = False
        self.has_verdict = False
        self._held = b""
        self._is_at_start = True
        self._keeps_returns = False

    def read(self, data: bytes) -> bytes:
        """Return the bytes of the log that follow from the next bytes of the output, as far as they are sure."""
        return b"".join(self._read(data[at : at + _BLOCK]) for at in range(0, len(data), _BLOCK))

    def rest(self) -> bytes:
        """Return what was held back, of an output that has ended: nothing follows that could make it a mark."""
        data, self._held = self._held, b""
        if self.claim is None or self.is_lost or self.is_over or (self._is_at_start and data.startswith(_WORD)):
            return b""
        return self._users(data)

    def _read(self, data: bytes) -> bytes:
        data, self._held = self._held + data, b""
        if self.claim is None:
            data = self._find_claim(data)
        found = bytearray()
        while data and not self.is_lost and not self.is_over:
            if self._is_at_start and data.startswith(_WORD):
                rest = self._ours(data)
                if rest is None:
                    self._held = data
                    break
                data = rest
                continue
            more = data.find(b"\n" + _WORD) + 1  # the next line that may not be the user's
            text, data = (data[:more], data[more:]) if more else _sure(data)
            if not more:
                self._held, data = data, b""
            found += self._users(text)
        return bytes(found)

    def _find_claim(self, data: bytes) -> bytes:
        match = _CLAIM.search(data)
        while match is not None and self._job_id not in {b"", match[2]}:
            data = data[match.end() - 1 :]
            match = _CLAIM.search(data)
        if match is not None and (match.start() == 0 or data[match.start() - 1 : match.start()] == b"\n"):
            attempt, job_id, host, _, back = match.groups()
            self.claim = Claim(job_id.decode(errors="replace"), int(attempt), int(host))
            self._keeps_returns = bool(back)
            return data[match.end() :]
        self.is_lost = len(data) > _MOST_BEFORE and not self._job_id
        self._held = data[-_MOST_BEFORE:] if self._job_id else data
        return b""

    def _ours(self, data: bytes) -> bytes | None:
        """Take a mark from the beginning; return what follows, or None while it is not whole."""
        if data.startswith(_OWN):
            self._is_at_start = False
            return data[len(_OWN) :]
        line, end, rest = data.partition(b"\n")
        if not end:
            return None
        text = line.removeprefix(RUNNER_PREFIX.encode())
        self.has_verdict = self.has_verdict or text.startswith(VERDICT.encode())
        if self._job_id:
            self.is_over = self.has_verdict or _CLAIM.fullmatch(line + end) is not None
        self.is_lost = text.startswith(LEFT_OUT.encode())
        return rest

    def _users(self, text: bytes) -> bytes:
        if text:
            self._is_at_start = text.endswith(b"\n")
        if self._keeps_returns:
            text = text.replace(b"\r\r\n", b"\r\n")
        return _ENDING.sub(_without_mark, text) if _BREAK in text else text


def _sure(data: bytes) -> tuple[bytes, bytes]:
    """Cut bytes before what may go on as something that is written otherwise."""
    run = len(data) - len(data.rstrip(b"\r="))
    unsure = _UNSURE.search(data, max(0, len(data) - run - len(_BREAK)))
    return (data[: unsure.start()], data[unsure.start() :]) if unsure else (data, b"")


def _without_mark(ending: re.Match[bytes]) -> bytes:
    more = ending.group(1)
    return _BREAK + more[1:] + b"\n" if more else b""
