"""Names of jobs: made here, checked here, short enough for a pod's hostname."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Sequence

from kinetic._wire import fields, keys
from kinetic.errors import OptionError

_JOB = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_GROUP = re.compile(r"grp-[0-9a-f]{8}")
_CHILD_FUNCTION, _CHILD_HASH = 14, 13  # 52 bits: two of 10,000 children share an id once in 10^8 batches
_NAMED = 5  # in a message
MOST_OF_AN_OBJECT = 63  # characters: of a label's value, of a hostname, of a Service
_OBJECT_HASH = 8  # hexadecimal digits
MOST_INPUTS = 10_000_000  # of a batch: their keys have seven digits
MOST_ATTEMPTS = 1_000_000  # at one job, or at one input
_FUNCTION_LENGTH = 20  # accelerator 16 + function 20 + time 15 + random 7 + three dashes fits Kubernetes' 63 characters


def new_job_id(accelerator: str, function: str, *, now: float | None = None) -> str:
    """Make a job id that says what runs, where and since when.

    Args:
        accelerator: The short word of the accelerator, e.g. "v5e1"; see ``_hardware``.
        function: The function's name; at most 20 characters of it are kept.
        now: Seconds since the epoch; the current time by default.

    Returns:
        ``{accelerator}-{function}-{YYYYMMDD-HHMMSS}-{7 hex}``, UTC, at most 63 characters.
    """
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{accelerator}-{slug(function)}-{when}-{os.urandom(4).hex()[:7]}"


def new_group_id() -> str:
    """Make the id of a batch: ``grp-`` and 8 hexadecimal digits."""
    return f"grp-{os.urandom(4).hex()}"


def check_group_id(group_id: str) -> str:
    """Return the id if it can be one of a batch.

    Raises:
        OptionError: It cannot; nothing was looked up.
    """
    if is_group_id(group_id):
        return group_id
    raise OptionError(
        f"{group_id!r} cannot be the id of a batch",
        why='it has "grp-" and 8 hexadecimal digits, like grp-a1b2c3d4',
        next="kinetic batch list",
    )


def child_id(accelerator: str, function: str, group_id: str, created: float, index: int, attempt: int) -> str:
    """Derive the id of a batch's child, so that nobody can launch the same attempt under two names.

    Args:
        accelerator: The short word of the accelerator.
        function: The function's name; at most 14 characters of it are kept.
        group_id: The batch.
        created: Seconds since the epoch at which the batch was made.
        index: The input.
        attempt: From 0.

    Returns:
        ``{accelerator}-{function}-{YYYYMMDD-HHMMSS}-{13 hex}``, UTC, at most 63 characters.
    """
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(created))
    word = hashlib.sha256(f"{group_id}/{index}/{attempt}".encode()).hexdigest()[:_CHILD_HASH]
    return f"{accelerator}-{slug(function, _CHILD_FUNCTION)}-{when}-{word}"


def slug(text: str, limit: int = _FUNCTION_LENGTH) -> str:
    """Turn any name into a short word of lower-case letters, digits and dashes."""
    word = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:limit].strip("-")
    return word or "job"


def object_name(job_id: str, most: int = MOST_OF_AN_OBJECT) -> str:
    """Name what a job is on its place: ``kinetic-JOB``, or as much of it as fits with a digest of the whole behind it.

    Args:
        job_id: The job, or what else the object stands for.
        most: The longest name that this kind of object may have.
    """
    whole = f"kinetic-{job_id}"  # the prefix, because a Service must begin with a letter, and an id need not
    if len(whole) <= most:
        return whole
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:_OBJECT_HASH]
    return f"{whole[: most - _OBJECT_HASH - 1].rstrip('-')}-{digest}"


def is_job_id(job_id: object) -> bool:
    """Return whether this can be the id of a job; the names of a store's own folders cannot."""
    return isinstance(job_id, str) and _JOB.fullmatch(job_id) is not None and job_id not in keys.RESERVED


def is_group_id(group_id: object) -> bool:
    """Return whether this can be the id of a batch."""
    return isinstance(group_id, str) and _GROUP.fullmatch(group_id) is not None


def check_job_id(job_id: str) -> str:
    """Return the id if it can be one.

    Raises:
        OptionError: It cannot; nothing was looked up.
    """
    if is_job_id(job_id):
        return job_id
    raise OptionError(
        f"{job_id!r} cannot be a job id",
        why="an id has 1 to 63 lower-case letters, digits and dashes, like cpu-train-20261120-143000-1a2b3c4",
        next="kinetic jobs list --all",
    )


def the_one(beginning: str, found: Sequence[str], what: str = "job ids") -> str | None:
    """Return the only id that was found to begin so, or None where there is none.

    Args:
        beginning: What the user gave.
        found: The ids that begin with it.
        what: They are, for humans.

    Raises:
        OptionError: There are several.
    """
    if len(found) > 1:
        raise OptionError(
            f"{beginning!r} is the beginning of {len(found)} {what}",
            why=", ".join(found[:_NAMED]),
            next="give more of it",
            code="ambiguous-id",
        )
    return found[0] if found else None


def moment(written: str) -> float | None:
    """Return the Unix time of a time that ``utc`` wrote, or None where it is none."""
    from datetime import datetime  # commands have it loaded already; strptime would cost 2 ms more

    try:
        return datetime.fromisoformat(written).timestamp()
    except (TypeError, ValueError):
        return None


def utc(seconds: float) -> str:
    """Write a time as everything durable does: UTC, ISO 8601, whole seconds, ending in Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _job_id(value: object) -> str:
    """Read the id of a job from a page."""
    if not is_job_id(value):
        raise fields.FieldError(f"cannot be the id of a job: {fields.shown(value)}")
    return str(value)


JOB_ID = _job_id  # as fields of pages
JOB_ID_OR_NONE = fields.text(63, re.compile(f"(?:{_JOB.pattern})?"))  # the page that a batch's children share has none
GROUP_ID = fields.text(12, _GROUP)
GROUP_ID_OR_NONE = fields.text(12, re.compile(f"(?:{_GROUP.pattern})?"))
INDEX = fields.whole(0, MOST_INPUTS - 1)
ATTEMPT = fields.whole(0, MOST_ATTEMPTS - 1)
