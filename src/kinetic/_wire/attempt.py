"""The Note: what is known of one attempt. Creating it claims the attempt; it is never decisive."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from kinetic._wire import documents, fields, keys, names

LOGS = "logs"  # a detail: digests of the logs of an attempt that failed, where another one follows


@dataclass(frozen=True)
class AttemptNote:
    """One attempt as it began.

    Attributes:
        job_id: The job.
        attempt: Its number, from 0.
        machine: Name of the machine.
        started: Unix time.
        runner: Digest of the runner's code.
        python: Version of the interpreter.
        details: Whatever else helps a human: pid, devices.
    """

    job_id: str
    attempt: int
    machine: str
    started: float
    runner: str = ""
    python: str = ""
    details: dict[str, object] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Where the page lies."""
        return keys.attempt(self.job_id, self.attempt)

    def to_bytes(self, key: bytes) -> bytes:
        """Write the page, sealed with the job's key."""
        return documents.sealed(NOTE, asdict(self), self.key, key)


def read(store: documents.Readable, job_id: str, attempt: int, key: bytes | None) -> AttemptNote:
    """Read the Note of an attempt.

    Args:
        store: Where the job lies.
        job_id: The job.
        attempt: Which attempt.
        key: The job's key; None only when the user said to trust the store.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is damaged, or its seal is wrong.
    """
    return documents.open_page(NOTE, store, keys.attempt(job_id, attempt), key)


_READERS = {
    "job_id": names.JOB_ID,
    "attempt": names.ATTEMPT,
    "machine": fields.text(),
    "started": fields.number(0, fields.SECONDS),
    "runner": fields.text(),
    "python": fields.text(),
    "details": fields.map_of(fields.anything, 64),
}


def _note(page: dict[str, Any], what: str) -> AttemptNote:
    return fields.build(AttemptNote, _READERS, page, what)


NOTE = documents.PageKind("note", "the note", _note, 1 << 16)
