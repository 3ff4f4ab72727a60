"""What is removed when: the one table. Garbage collection goes by it, and ``kinetic disk`` shows it.

Never removed: outputs. Never before somebody collects or removes it: a result, and what its job's order names.
What belongs to running jobs of this machine is swept by its backend, once an hour; a test compares its times.
"""

from __future__ import annotations

from typing import NamedTuple

DAY = 24 * 3600.0


class Rule(NamedTuple):
    """How long one kind of file stays.

    Attributes:
        name: Of the kind.
        what: What one of them is.
        stays: Until when they stay.
        seconds: After which they are removed; None for what no clock removes.
    """

    name: str
    what: str
    stays: str
    seconds: float | None = None

    @property
    def why(self) -> str:
        """Why they are here, for humans."""
        return f"{self.what}: {self.stays}" if self.what else self.stays


RULES = (
    Rule("results", "values that nobody has collected", "until result() or kinetic jobs cleanup"),
    Rule("failures", "how jobs failed or were cancelled", "until kinetic jobs cleanup"),
    Rule(
        "jobs",
        "records, orders and arguments",
        "as long as their job; large arguments: 7 days after its end",
        7 * DAY,
    ),
    Rule("logs", "what jobs printed that nobody collected", "as long as their job"),
    Rule("packs", "the files of projects", "7 days after the last job that needs them", 7 * DAY),
    Rule("data", "what jobs were sent to read", "60 days after it was sent or looked for last", 60 * DAY),
    Rule(
        "fetched data",
        "what jobs on this machine have read, for the next one",
        "30 days after its last use",
        30 * DAY,
    ),
    Rule("batches", "manifests, inputs and marks of batches", "until kinetic batch cleanup"),
    Rule("outputs", "what jobs wrote into KINETIC_OUTPUT_DIR", "yours, never removed"),
    Rule("history", "logs and records of collected jobs, and what became of removed ones", "30 days", 30 * DAY),
    Rule("working folders", "the projects of running jobs, and of failed ones", "1 day after their end", DAY),
    Rule("runner code", "kinetic's own code for its jobs", "30 days after the last that needs it", 30 * DAY),
    Rule("environments", "isolated environments", "30 days after their last use", 30 * DAY),
    Rule("caches", "digests of files, so that nothing is sent twice", "90 days after their last use", 90 * DAY),
    Rule("queue", "", "the queue, its locks and its supervisors' logs"),
    Rule("keys and settings", "keys that seal results, profiles", "until you remove them"),
    Rule("being written", "half-written files", "1 day", DAY),
    Rule("other", "", "not kinetic's, or of a later version"),
)
_BY_NAME = {rule.name: rule for rule in RULES}


def seconds(name: str) -> float:
    """Return after how long a kind of file is removed."""
    found = _BY_NAME[name].seconds
    assert found is not None  # noqa: S101 - only asked where a clock removes
    return found
