"""Notifications from the side of a client: kept when a job is submitted, sent when this process sees its end first."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic._backends.local import notifier
from kinetic._backends.local.notifier import Ended
from kinetic._jobs import locate
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.records import JobRecord

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"


def keep(kind: str, name: str, of: Mapping[str, Any], targets: Sequence[str]) -> None:
    """Keep on this machine what is to be sent at the end of a "job" or "batch", which has these fields of a record."""
    if targets:
        about = {"id": name, "kind": kind, "name": of.get("name"), "tags": of.get("tags") or {}}
        about |= {"function": of["func_name"], "command": of.get("command")}
        about |= {field: of.get(field) for field in ("accelerator", "backend", "created_at")}
        notifier.keep(locate.runtime(), name, targets, about)


def forget(job_id: str) -> None:
    """Forget it: the job was not launched."""
    notifier.forget(locate.runtime(), job_id)


def resolve(targets: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return targets with the values of variables: an address that is a secret need not be written into code.

    Raises:
        OptionError: A variable is not set, or an address has another scheme.
    """
    found = []
    for target in targets:
        name = target[1:]
        if target.startswith("$") and name.isidentifier():
            if not environ.get(name):
                raise OptionError(
                    f"on_done={target!r} names a variable that is not set", next=f"export {name}=https://…"
                )
            found.append(environ[name])
        else:
            found.append(target)
        is_webhook = notifier.is_webhook(found[-1])
        if re.match(_SCHEME, found[-1]) and not (is_webhook and notifier.names_a_host(found[-1])):
            raise OptionError(
                f"on_done={target!r} is not the address of a webhook",
                why="that begins with https:// or http:// and names a host",
                next="correct the address, or name a command that sends it",
            )
    return tuple(found)


def see(job: JobRecord, seen: Snapshot) -> None:
    """Send what is kept for a job, if it has ended."""
    if not seen.status.is_final or not notifier.is_pending(locate.runtime(), job.job_id):
        return
    if seen.outcome is not None:
        ended = notifier.ended_of(seen.outcome, is_command=bool(job.command))
    else:
        ended = Ended("FAILED", seen.reason, ended=time.time())
    notifier.send(locate.runtime(), job.job_id, ended)


def see_batch(group_id: str, count: Callable[[], Mapping[str, int]]) -> None:
    """Send what is kept for a batch that has ended; ``count`` returns how many inputs are in which state."""
    if notifier.is_pending(locate.runtime(), group_id):
        counts = count()
        reason = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
        bad = [name for name, number in counts.items() if number and name not in {"succeeded", "removed"}]
        status = "CANCELLED" if "cancelled" in bad else "FAILED" if bad else "SUCCEEDED"
        notifier.send(locate.runtime(), group_id, Ended(status, reason, ended=time.time()))


def look(jobs: Sequence[JobRecord]) -> None:
    """Send what has become due of some jobs that are listed: nobody of this machine may have seen their ends."""
    waiting = set(notifier.pending(locate.runtime()))
    if due := [job for job in jobs if job.job_id in waiting]:
        from kinetic._jobs import status  # it is asked only where something waits

        for job, seen in zip(due, status.observe_many(due), strict=True):
            if seen.error is None:
                see(job, seen)
