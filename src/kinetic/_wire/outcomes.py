"""How an attempt began and how a job ended: the note of an attempt, and the outcome.

Creating a note claims the attempt; it is never decisive. The outcome is the one final verdict of a job: created once,
never replaced, sealed. It is one object, ``{job_id}/result.pkl``: the pickled value or exception first, so that the
file is an ordinary pickle if it must be rescued by hand; then a page that says what it is; then the page's length and a
magic word.

    [ body: a pickle, may be empty ][ page: JSON ][ length of the page: 8 bytes, big-endian ][ b"KINETIC1" ]

In the body, behind the pickle of an exception, are those of what it was raised from, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol

from kinetic._wire import dataclass, digests, documents, fields, keys
from kinetic.errors import IntegrityError, KeyMissingError

MAGIC = b"KINETIC1"
FOOTER_BYTES = 16
MOST_BYTES = 16 << 20  # of the page
PURPOSE = "outcome"
HOST_PURPOSE = "host"  # of what a host of a slice tells its leader: it cannot be used as the verdict

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
MAKE_ROOM = "free some space there, as with: kinetic disk --clean     then submit the job again"
OF_THE_FUNCTION = frozenset({"value", "exception", "exit"})  # causes: it returned, or raised
REMOVED = "removed"  # what became of a job of which only the history is left, if it has not succeeded
LOG_LINES, LOG_BYTES = 20, 8192  # at most so much of the end of its log is in the verdict of a job that failed
PREDECESSOR = "predecessor"  # the cause where a job that it follows did not succeed


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    job_id: str
    status: str  # "succeeded", "failed" or "cancelled"
    attempt: int = 0  # which one decided, from 0; -1 when none had begun
    host: int = 0  # which one of a slice decided
    # What decided: "value", "exception", "exit", "signal", "memory", "deadline", "runner", "serialization",
    # "disk-full", "lost", "cancelled", "preempted", "evicted", "predecessor"; of a job that left no verdict, the code
    # that its cluster gives.
    cause: str = "value"
    phase: str = "execute"  # the runner's phase in which it happened; "" where that is not known
    # Of a failure: type, module, message, traceback, and where it applies repr, exit_code, signal, log.
    error: dict[str, Any] = field(default_factory=dict)
    body_length: int = 0  # bytes of the pickle in front of the page
    body_sha256: str = ""
    value_type: str = ""  # for humans
    started: float | None = None  # Unix time at which the attempt began
    ended: float | None = None  # Unix time at which the verdict was known
    witness: str = "supervisor"  # who created it: "supervisor", "observer", "runner" or "client"
    key_id: str = ""  # which key seals it
    phases: dict[str, float] = field(default_factory=dict)  # seconds that each phase of the runner took
    files: tuple[str, ...] = ()  # that the job left in its working folder and that are not kept
    logs: tuple[digests.LogDigest, ...] = ()  # of the attempt that decided, as far as they were known

    @property
    def succeeded(self) -> bool:
        """Whether there is a value."""
        return self.status == SUCCEEDED

    def footer(self, key: bytes, purpose: str = PURPOSE) -> bytes:
        """Return what follows the body: the sealed page, its length and the magic word."""
        page = documents.write(documents.with_seal({"schema": documents.SCHEMA, **self._fields()}, key, purpose))
        return page + len(page).to_bytes(8, "big") + MAGIC

    def _fields(self) -> dict[str, Any]:
        """Return the fields; not `asdict`, which copies each value, in 0.3 ms for each job."""
        return {**vars(self), "logs": [vars(log) for log in self.logs]}


class Sized(documents.Readable, Protocol):
    """What is needed of a store to find an outcome."""

    def size(self, key: str) -> int | None:
        """Return how long an object is, or None where there is none."""


def find(store: Sized, job_id: str, key_of: Callable[[], bytes | None]) -> Outcome | None:
    """Return the verdict of a job, or None while there is none; its key is only looked up if there is one."""
    at = keys.result(job_id)
    size = store.size(at)
    if size is None:
        return None
    try:
        return read_of(job_id, size, lambda start, length: store.get(at, start=start, length=length), key_of())
    except KeyMissingError:  # removed between the two
        return None


def read_of(job_id: str, size: int, read_range: Callable[[int, int], bytes], key: bytes | None) -> Outcome:
    """Read and verify the page of a job's Outcome."""
    outcome = read(size, read_range, key)
    if outcome.job_id != job_id:
        raise IntegrityError(f"the result of {job_id} is about another job, {outcome.job_id}")
    return outcome


def read(size: int, read_range: Callable[[int, int], bytes], key: bytes | None, purpose: str = PURPOSE) -> Outcome:
    """Read and verify the page of an Outcome; the body is verified by whoever loads it.

    ``key`` is None only when the user said to trust the store.
    """
    guess = min(size, 4096)  # most pages fit: one read
    tail = read_range(size - guess, guess) if size >= FOOTER_BYTES else b""
    if tail[-len(MAGIC) :] != MAGIC:
        raise IntegrityError("the result is damaged", why="it does not end like a result of kinetic")
    length = int.from_bytes(tail[-FOOTER_BYTES : -len(MAGIC)], "big")
    if length > MOST_BYTES or length + FOOTER_BYTES > size:
        raise IntegrityError("the result is damaged", why="its page is longer than the object, or than any page")
    if length + FOOTER_BYTES > guess:
        tail = read_range(size - length - FOOTER_BYTES, length + FOOTER_BYTES)
    page = documents.read(tail[-FOOTER_BYTES - length : -FOOTER_BYTES], "the result", most_bytes=MOST_BYTES)
    if key is not None and not documents.has_seal(page, key, purpose):
        raise IntegrityError(
            f"the result of {fields.shown(page.get('job_id'))} has a wrong seal; it was not opened",
            why="it was written or changed by a process without this job's key",
            next="look at who can write to the store; KINETIC_TRUST_STORE=1 opens it without verification",
            code="seal",
        )
    outcome = fields.build(Outcome, _READERS, page, "the result")
    if outcome.body_length + FOOTER_BYTES > size:
        raise IntegrityError(f"the result of {outcome.job_id} is damaged", why="it is shorter than it says")
    return outcome


def check_body(outcome: Outcome, found: str) -> None:
    """Refuse a body whose digest is not the sealed one."""
    what = f"the result of {outcome.job_id} is not what the job wrote; it was not opened"
    digests.check(found, outcome.body_sha256, what, "the seal", next="look at who can write to the store")


def _error(value: object) -> dict[str, Any]:
    """Read what is said of a failure: a job says part of it itself, so what is of the wrong type is left out."""
    found: dict[str, Any] = fields.map_of(fields.any_value, 64)(value)
    wanted = {**dict.fromkeys(_TEXTS, str), "hosts": int, "exit_code": int}
    return {name: said for name, said in found.items() if isinstance(said, wanted.get(name, object))}


_TEXTS = (
    *("type", "module", "message", "traceback", "repr", "value_type", "log", "signal", "not_delivered"),
    *("what", "why", "next", "code"),
)
_LOG = {
    "attempt": keys.ATTEMPT,
    "host": fields.integer(0, 100_000),
    "size_bytes": fields.integer(0, fields.BYTES),
    "sha256": fields.sha256,
    "blocks": fields.list_of(fields.sha256, digests.LOG_BLOCKS),
}
LOGS = fields.list_of(fields.nested(digests.LogDigest, _LOG), 100_000)
_READERS = {
    "job_id": keys.JOB_ID,
    "status": fields.text(32),  # what hosts of a slice tell each other has a fourth
    "attempt": fields.integer(-1, keys.MOST_ATTEMPTS),
    "host": fields.integer(0, 100_000),
    **fields.each(fields.text(fields.NAME), "cause", "phase", "witness", "key_id"),
    "error": _error,
    "body_length": fields.integer(0, fields.BYTES),
    "body_sha256": fields.text(64),
    "value_type": fields.text(fields.TEXT),
    **fields.each(fields.optional(fields.number(0, fields.SECONDS)), "started", "ended"),
    "phases": fields.map_of(fields.number(-fields.SECONDS, fields.SECONDS), 64),
    "files": fields.list_of(fields.text(fields.PATH), 1_000_000),
    "logs": LOGS,
}


# ------------------------------------------------------------------------------------------------- notes of attempts

LOGS_DETAIL = "logs"  # a detail: digests of the logs of an attempt that failed, where another one follows


@dataclass(frozen=True)
class AttemptNote:
    """One attempt as it began."""

    job_id: str
    attempt: int  # from 0
    machine: str
    started: float  # Unix time
    runner: str = ""  # digest of the runner's code
    python: str = ""  # version of the interpreter
    details: dict[str, object] = field(default_factory=dict)  # whatever else helps a human: pid, devices

    @property
    def key(self) -> str:
        """Where the page is."""
        return keys.attempt(self.job_id, self.attempt)

    def to_bytes(self, key: bytes) -> bytes:
        """Write the page, sealed with the job's key."""
        return documents.seal_page(NOTE, dict(vars(self)), self.key, key)


def read_note(store: documents.Readable, job_id: str, attempt: int, key: bytes | None) -> AttemptNote:
    """Read the note of an attempt."""
    return documents.open_page(NOTE, store, keys.attempt(job_id, attempt), key)


_NOTE_READERS = {
    "job_id": keys.JOB_ID,
    "attempt": keys.ATTEMPT,
    "started": fields.number(0, fields.SECONDS),
    **fields.each(fields.text(), "machine", "runner", "python"),
    "details": fields.map_of(fields.any_value, 64),
}
NOTE = documents.PageKind("note", "the note", fields.builder(AttemptNote, _NOTE_READERS), 1 << 16)
