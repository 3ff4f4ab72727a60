"""The Note: what is known of one attempt. Creating it claims the attempt; it is never decisive."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from kinetic._wire import pages


@dataclass(frozen=True)
class Note:
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

    def to_bytes(self) -> bytes:
        """Write the page."""
        return pages.write({"schema": pages.SCHEMA, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Note:
        """Read the page."""
        fields = pages.read(data, "the note of an attempt")
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})
