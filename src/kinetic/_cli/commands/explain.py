"""``kinetic jobs explain``: why a job waits, or why it failed, and what to do now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic import _output as output
from kinetic._cli import failures, options, tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kinetic._backends.protocol import Diagnosis
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot

_CAUSES_WITH_A_REASON = frozenset({"runner", "serialization"})  # of the others, the log is the evidence
_INDENT = " " * len("phase: ")
_LONG_ROW = 3  # hosts; of more, the first and the last are named
_MOST_LOOKS = 3  # at a job that changes while it is looked at
_LINES = 10  # of the log of a job that failed
_LOG_BYTES = 16 << 10
# The runner's phases, as a person would say where a job was.
_PHASES = {
    "order": "before the function started: reading the order",
    "artifact verification": "before the function started: fetching and verifying the uploaded files",
    "context extract": "before the function started: unpacking the project",
    "environment setup": "before the function started: setting up the environment",
    "debugger setup": "before the function started: starting the debug server, or waiting for a debugger",
    "payload unpickle": "before the function started: loading the function and its arguments, and importing modules",
    "execute": "while the function ran",
    "result serialization": "after the function returned: pickling the value",
}


class Explanation(NamedTuple):
    """Why a job is as it is.

    Attributes:
        what: One sentence.
        why: The evidence, or "".
        phase: Where a failed job was, or "".
        log: The last lines of a failed job's log.
        next: What to do now; a command that can be pasted, or "".
    """

    what: str
    why: str = ""
    phase: str = ""
    log: tuple[str, ...] = ()
    next: str = ""


@click.command
@options.on_a_job
@options.as_json
def explain(handle: JobHandle, as_json: bool) -> None:
    """Show why a job is pending or failed, and what to do.

    For a pending job: what it waits for, and which jobs use it. For a failed job: the cause, the phase, the last
    lines of its log. The last line is the next command to run.

    Example: kinetic jobs explain @last
    """
    from kinetic._jobs import describing

    with output.phase("looking at the job", summary=False):
        seen, told = _look(handle)
        page = describing.page_of(handle, seen)
    if as_json:
        head = {"job_id": handle.job_id, "function": handle.func_name, "status": page["status"]}
        tables.document(**head, **told._asdict())
        return
    print(f"{handle.job_id}: {tables.status(page, time.time())}")
    for name, text in (("what", told.what), ("why", told.why), ("phase", told.phase)):
        _line(name, text)
    _line("log", "\n".join(told.log))
    _line("next", told.next)


def _look(handle: JobHandle) -> tuple[Snapshot, Explanation]:
    """Look at a job and explain it as it was at that moment: where it changed in between, look again."""
    from dataclasses import replace

    from kinetic._jobs.status import observe

    for _ in range(_MOST_LOOKS):
        seen = observe(handle)
        told = _diagnosis(handle, seen)
        is_gone = told is None or (told.status is not None and told.status.is_final)
        if seen.status.is_final or not is_gone:
            break
    if told is not None and told.status is not None and not told.status.is_final:
        seen = replace(seen, status=told.status)  # the cluster was asked once more, with more to show for it
    return seen, _explained(handle, seen, told)


def _diagnosis(handle: JobHandle, seen: Snapshot) -> Diagnosis | None:
    """Ask the place of a job that has not ended why it is as it is."""
    from kinetic._jobs import places

    if seen.status.is_final or not places.can_be_seen(handle):
        return None
    return places.backend_of(handle).explain(handle.job_id)


def explanation(handle: JobHandle, seen: Snapshot) -> Explanation:
    """Explain a job from what was seen of it."""
    return _explained(handle, seen, _diagnosis(handle, seen))


def _explained(handle: JobHandle, seen: Snapshot, told: Diagnosis | None) -> Explanation:
    job_id = handle.job_id
    if seen.past is not None and seen.past.get("collected"):
        return _of_collected(handle, seen.past)
    match seen.status.value:
        case "PENDING" | "RUNNING":
            return _of_live(handle, seen, told)
        case "FAILED":
            return _of_failed(handle, seen)
        case "SUCCEEDED":
            return Explanation("it succeeded, and its result is ready", next=f"kinetic jobs result {job_id}")
    if seen.outcome is not None and seen.outcome.status == "cancelled":
        return Explanation("it was cancelled; its log is kept", next=f"kinetic jobs logs {job_id}")
    return Explanation("it was removed, or never launched", next="kinetic jobs list --all")


def _of_collected(handle: JobHandle, past: Mapping[str, Any]) -> Explanation:
    """Explain a job whose result was collected: how it ended, and what is left."""
    job_id = handle.job_id
    if past.get("status") == "SUCCEEDED":
        return Explanation("it succeeded and was collected; its log is kept", next=f"kinetic jobs logs {job_id}")
    why = str(past.get("reason") or "")
    what = "it failed and was collected; its log is kept"
    return Explanation(what, why, log=_last_lines(handle), next=f"kinetic jobs logs {job_id}")


def _of_live(handle: JobHandle, seen: Snapshot, told: Diagnosis | None) -> Explanation:
    from kinetic._jobs import describing, places

    if not places.can_be_seen(handle):
        what = f"it is on {describing.place_of(handle)}, and only that machine can see more of it"
        return Explanation(what, next=f"on that machine: kinetic jobs explain {handle.job_id}")
    if handle.debug and seen.status.value == "RUNNING" and (waits := _of_debugged(handle)) is not None:
        return waits
    if told is None:  # not in the queue yet, or not any more
        return Explanation(seen.reason or "it is about to start", next="kinetic jobs list")
    what = told.what.removeprefix(f"{handle.job_id} ").removeprefix(f"{handle.job_id}: ")
    why = told.why
    if places.is_here(handle) and seen.status.value == "PENDING" and not places.is_supervised():
        why = "no supervisor is running; the next command starts one"
    return Explanation(what, why, next=told.next)


def _of_debugged(handle: JobHandle) -> Explanation | None:
    """Explain a job that waits for a debugger or has one; None for one that goes on without."""
    from kinetic._jobs import addressing, places

    count = places.hosts_of(handle)
    addresses = addressing.addresses_of(handle, range(count))
    attached = [host for host, address in addresses.items() if address.state == "attached"]
    waiting = [host for host, address in addresses.items() if address.state == "waiting"]
    if attached:
        to = "it" if count == 1 else _named(attached, count)
        return Explanation(f"a debugger is attached to {to}", next=f"kinetic jobs logs {handle.job_id} --follow")
    if not waiting:
        return None
    who = "it waits" if count == 1 else f"{_named(waiting, count)} {'wait' if waiting[1:] else 'waits'}"
    until = time.strftime("%H:%M:%S UTC", time.gmtime(max(addresses[host].until for host in waiting)))
    why = f"it was submitted with debug=True; its function starts when a debugger attaches, or at {until}"
    which = f" --host {waiting[0]}" if waiting[0] else ""
    return Explanation(f"{who} for a debugger", why, next=f"kinetic jobs debug {handle.job_id}{which}")


def _named(hosts: Sequence[int], count: int) -> str:
    """Name hosts of a slice, those in a row by the first and the last of them."""
    words: list[str] = []
    left = list(hosts)
    while left:
        row = [host for at, host in enumerate(left) if host == left[0] + at]
        words += [f"{row[0]} to {row[-1]}"] if len(row) > _LONG_ROW else map(str, row)
        del left[: len(row)]
    *most, last = words
    some = f"hosts {', '.join(most)} and {last}" if most else f"{'hosts' if hosts[1:] else 'host'} {last}"
    return f"{some} of {count}"


def _of_failed(handle: JobHandle, seen: Snapshot) -> Explanation:
    failed = failures.of_job(handle, seen, log_is_shown=True)
    log = _last_lines(handle)
    phase = ""
    if seen.outcome is not None:
        phase = _PHASES.get(seen.outcome.phase, seen.outcome.phase)
    speaks = not log or (seen.outcome is not None and seen.outcome.cause in _CAUSES_WITH_A_REASON)
    why = (failed.why or "") if speaks else ""
    advice = str(seen.outcome.error.get("next") or "") if seen.outcome is not None else ""
    return Explanation(failed.what, why, phase, log, advice or f"kinetic jobs logs {handle.job_id}")


def _last_lines(handle: JobHandle) -> tuple[str, ...]:
    from kinetic._jobs import logs

    log = logs.log_of(handle)
    return tuple(tables.plain(line) for line in logs.tail(log, _LINES, most=_LOG_BYTES).splitlines())


def _line(name: str, text: str) -> None:
    """Print one part; the lines after the first stand below its beginning, also those that were indented already."""
    if text:
        first, *others = text.splitlines()
        print(f"{f'{name}:':<{len(_INDENT)}}{first}")
        print("".join(f"{_INDENT}{line.removeprefix(_INDENT)}\n" for line in others), end="")
