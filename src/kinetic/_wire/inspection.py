"""What a debug server says of itself, and what an order asks of it; all sides read and write the same page."""

from __future__ import annotations

import hmac
import json
from dataclasses import asdict, dataclass
from typing import Any

from kinetic._wire import documents, fields, keys, seal
from kinetic.errors import RunnerError

PORT = 5678  # in a pod, and debugpy's own default; on a machine each server takes a free one
EXPIRES_SECONDS = 7200  # what is left of a debug job goes so long after its end
WAIT_SECONDS = 600.0  # that a job waits for a debugger, unless KINETIC_DEBUG_WAIT_TIMEOUT says something else


# How the debug token reaches the worker, which takes it out of its environment before the function begins.
TOKEN_VARIABLE = "KINETIC_DEBUG_TOKEN"  # noqa: S105 - the name of a variable

WAITING, ATTACHED, OVER = "waiting", "attached", "over"


def token(job_key: bytes) -> str:
    """Return what a debugger must send first. It is derived from the job's key, and does not reveal it."""
    return hmac.digest(job_key, b"kinetic debug server", "sha256").hex()


def page_key(token: str) -> bytes:
    """Return the key that seals what a debug server says of itself; the worker, which has the token, says it."""
    return hmac.digest(token.encode(), b"kinetic debug pages", "sha256")


def mark_begun(job_id: str, attempt: int, key: bytes) -> str:
    """Return the key whose presence says that a debugger came to a host of a slice, so the others need not wait."""
    return seal.mark(keys.debug_begun(job_id, attempt), "begun", key)


@dataclass(frozen=True)
class DebugPage:
    """The state of one host's debug server.

    Attributes:
        port: Where it listens, on the loopback interface.
        state: WAITING, ATTACHED, or OVER: nobody came in time, and the function runs.
        until: Unix time at which it stops waiting.
        pid: The worker's process.
        roots: Pairs of folders: as the client knows one, and where it lies in the job.
        pod: What a pod calls its machine; "" on this machine, and from older runners.
    """

    port: int
    state: str = WAITING
    until: float = 0.0
    pid: int = 0
    roots: tuple[tuple[str, str], ...] = ()
    pod: str = ""

    def to_bytes(self) -> bytes:
        """Write the page for a folder that only our user may enter."""
        return documents.write({"schema": documents.SCHEMA, **asdict(self)})

    def sealed(self, at: str, key: bytes) -> bytes:
        """Write the page for its place in a store, sealed with ``page_key``."""
        return documents.sealed(DEBUG, asdict(self), at, key)

    def is_of_an_older_pod(self, name: str) -> bool:
        """Say whether the pod of this name has taken the place of the one that wrote the page.

        The names of a job's pods differ in their last part. Those of a slice call their machine by their place in it.
        """
        return self.pod != name and self.pod.rpartition("-")[0] == name.rpartition("-")[0]

    @classmethod
    def from_bytes(cls, data: bytes) -> DebugPage:
        """Read the page from such a folder; from a store, ``pages.open_page`` does.

        Raises:
            IntegrityError: It is none, or of another version.
        """
        return _page(documents.read(data, DEBUG.what, most_bytes=MOST_BYTES), DEBUG.what)


def _pair(value: object) -> tuple[str, ...]:
    found = _folders(value)
    if len(found) != 2:
        raise fields.FieldError("must be a pair of folders")
    return found


_folders = fields.list_of(fields.text(fields.PATH), 2)
MOST_BYTES = 1 << 20
_PAGE_READERS = {
    "port": fields.whole(1, 65535),
    "state": fields.one_of(WAITING, ATTACHED, OVER),
    "until": fields.number(0, fields.SECONDS),
    "pid": fields.whole(0, 1 << 31),
    "roots": fields.list_of(_pair, 1000),
    "pod": fields.text(fields.NAME),
}


def _page(page: dict[str, Any], what: str) -> DebugPage:
    return fields.build(DebugPage, _PAGE_READERS, page, what)


DEBUG = documents.PageKind("debug", "the page of a debug server", _page, MOST_BYTES)


TROUBLE = 125  # the exit code of a visitor that did not get to see the worker, or could not become the command
MARK = b"\x1ekinetic-visitor: "  # no text that is meant to be read begins with this byte
_FIELDS = ("what", "why", "next", "code")


def line(error: RunnerError) -> bytes:
    """Put what was wrong into a line."""
    return MARK + json.dumps({name: getattr(error, name) for name in _FIELDS}).encode() + b"\n"


def read_line(text: bytes) -> RunnerError | None:
    """Return what such a line says; None where it is none: then a command wrote it."""
    if not text.startswith(MARK):
        return None
    try:
        page = json.loads(text.removeprefix(MARK))
        what, why, next_, code = (page[name] for name in _FIELDS)
    except (ValueError, KeyError, TypeError):
        return None
    return RunnerError(str(what), why=why, next=next_, code=code)
