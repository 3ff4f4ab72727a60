"""What a job waits for: the states of its predecessors, where their values are, and the verdict if one did not succeed.

The same for all that look: the supervisors of this machine, the first process of a pod, and clients. What a job may
verify is what its submitter gave it the keys of, in the order of ``Predecessor.ids``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Store
from kinetic._wire import NamedTuple, documents, keys, outcomes
from kinetic._wire.order import Predecessor
from kinetic._wire.outcomes import CANCELLED, FAILED, REMOVED, SUCCEEDED, Outcome
from kinetic.errors import IntegrityError, KeyMissingError, PredecessorError

KeyOf = Callable[[str], "bytes | None"]  # returns the key of a job or batch; None where the user trusts the store
_MESSAGE_CHARACTERS = 500


class Finding(NamedTuple):
    """The state of one predecessor."""

    status: str = ""  # "" while it may still succeed; "succeeded", "failed", "cancelled", or "removed"
    detail: str = ""  # of one that waits, how far it is; of one that did not succeed, why
    has_value: bool = True  # whether its value is still stored, where it succeeded
    next: str = ""  # of one that was closed itself: the advice of its verdict, which leads to the job that failed first

    @property
    def is_over(self) -> bool:
        """Whether the job that waits for it must be closed."""
        return self.status not in {"", SUCCEEDED}


_GONE = Finding(REMOVED, "nothing of it is stored any more")


def key_finder(after: Sequence[Predecessor], data: bytes) -> KeyOf:
    """Return what looks up the keys that a job was given: one behind the other, in the order of its predecessors."""
    size = documents.KEY_BYTES
    places = {name: number * size for number, name in enumerate(name for each in after for name in each.ids())}
    if len(data) != len(places) * size:
        documents.check_key_length(len(data) // max(1, len(places)), "the file with the keys of its predecessors")
    return lambda name: data[places[name] : places[name] + size]


def look(store: Store, each: Predecessor, key_of: KeyOf) -> Finding:
    """Return the state of a predecessor.

    Raises:
        IntegrityError: Its outcome has a wrong seal.
        StoreError: The store does not answer.
    """
    if each.inputs:
        return _look_at_batch(store, each, key_of)
    key = key_of(each.job_id)
    outcome = outcomes.find(store, each.job_id, lambda: key)
    if outcome is None:
        return _without_outcome(store, each, key)
    if outcome.succeeded:
        return Finding(SUCCEEDED)
    advice = str(outcome.error.get("next", "")) if outcome.cause == outcomes.PREDECESSOR else ""
    return Finding(outcome.status, "" if outcome.status == CANCELLED else _failure(outcome), next=advice)


def look_at_all(store: Store, after: Sequence[Predecessor], key_of: KeyOf) -> list[Finding]:
    """Return how predecessors stand, in their order."""

    def numbered(number: int) -> tuple[int, Finding]:
        return number, look(store, after[number], key_of)

    found = in_parallel(store, (partial(numbered, at) for at in range(len(after))), limit=_lanes(store, len(after)))
    return [finding for _, finding in sorted(found, key=lambda pair: pair[0])]


def _lanes(store: Store, count: int) -> int | None:
    return 1 if store.local is not None or count == 1 else None  # no threads before a fork


def _failure(outcome: Outcome) -> str:
    kind, message = outcome.error.get("type", ""), str(outcome.error.get("message", outcome.cause))
    return (f"{kind}: {message}".removesuffix(": ") if kind else message)[:_MESSAGE_CHARACTERS]


def _without_outcome(store: Store, each: Predecessor, key: bytes | None) -> Finding:
    """Return what is known of a job without an outcome: it has not ended, or it was removed."""
    found = _in_history(store, each.job_id, key)
    if found is None and _is_gone(store, each):
        found = _in_history(store, each.job_id, key) or _GONE  # it was removed between the two, and is noted since
    return found or Finding()


def _is_gone(store: Store, each: Predecessor) -> bool:
    """Return whether that is removed by which a job or a batch is found: then nothing of it starts any more."""
    at = keys.group_manifest(each.owner) if keys.is_group_id(each.owner) else keys.record(each.job_id)
    return store.size(at) is None


def _in_history(store: Store, job_id: str, key: bytes | None) -> Finding | None:
    from kinetic._wire.records import HISTORY  # 4 ms; most predecessors have an outcome

    with contextlib.suppress(KeyMissingError, IntegrityError):
        page = documents.open_page(HISTORY, store, keys.history(job_id), key)
        status = str(page.get("status", ""))
        if status == "SUCCEEDED":
            return Finding(SUCCEEDED, has_value=False)
        if status in {"FAILED", "CANCELLED"}:
            return Finding(status.lower(), str(page.get("reason") or ""))
        return Finding(REMOVED, "before it had ended")
    return None


def _look_at_batch(store: Store, each: Predecessor, key_of: KeyOf) -> Finding:
    """Read the marks of its children; of those that left no success, whether another attempt may still follow."""
    succeeded, ended = read_marks(store, each, key_of)
    if len(succeeded) == each.inputs:
        return Finding(SUCCEEDED)  # whether the values of all are still there is found when they are read
    allowed = attempts_of_inputs(store, each, key_of)
    for index, (attempt, word) in sorted(ended.items()):
        if index not in succeeded and (attempt + 1 >= allowed(index) or word in {CANCELLED, REMOVED}):
            return Finding(FAILED, f"its input {index} was {word}" if word != FAILED else f"its input {index} failed")
    if _is_gone(store, each):
        return _GONE
    so_many = f"{len(succeeded)} of its {each.inputs} inputs"
    if stop := stop_of(store, each, key_of):
        how = CANCELLED if stop == CANCELLED else FAILED
        return Finding(how, f"{so_many} had succeeded when it was stopped")
    return Finding("", f"{so_many} have succeeded")


def read_marks(store: Store, each: Predecessor, key_of: KeyOf) -> tuple[dict[int, int], dict[int, tuple[int, str]]]:
    """Return which attempt at each input succeeded, and of the others the last one that ended, and how."""
    succeeded: dict[int, int] = {}
    ended: dict[int, tuple[int, str]] = {}
    for entry in store.entries(keys.marks(each.job_id)):
        found = keys.parse_children(entry.key)
        if found is None or found[0].start >= each.inputs or found[1] >= max(each.attempts, each.retried):
            continue
        index, attempt, word = found[0].start, found[1], found[2]
        key = key_of(each.child_id(index, attempt))
        stem = keys.mark(each.job_id, index, attempt)
        if key is not None and entry.key != documents.sealed_name(stem, word, key):
            continue  # others who can write to the store can put anything there
        if word == SUCCEEDED:
            succeeded[index] = attempt
        elif (attempt, "") > ended.get(index, (-1, "")):
            ended[index] = attempt, word
    return succeeded, ended


def attempts_of_inputs(store: Store, each: Predecessor, key_of: KeyOf) -> Callable[[int], int]:
    """Return what says how many attempts an input of a batch may have, of which some may be tried again by hand."""
    allowed: dict[str, int] = {}
    if each.retried > each.attempts:
        for entry in _control_entries(store, each, key_of):
            allowed |= entry.allowed
    return lambda index: max(each.attempts, min(each.retried, allowed.get(str(index), 0)))


def _control_entries(store: Store, each: Predecessor, key_of: KeyOf) -> Iterator[Any]:
    from kinetic._wire import records  # as above

    for _, entry in keys.numbered(store.entries(keys.control_entries(each.job_id))):
        with contextlib.suppress(KeyMissingError, IntegrityError):
            yield documents.open_page(records.CONTROL_ENTRY, store, entry.key, key_of(each.job_id))


def stop_of(store: Store, each: Predecessor, key_of: KeyOf) -> str:
    """Return why nothing more of a batch is launched; "" where more may follow."""
    from kinetic._wire import records  # as above

    why, exempt = "", False
    for found in _control_entries(store, each, key_of):
        why, exempt = (found.why, False) if found.word == records.STOP else (why, True)
    return "" if exempt else why


# ---------------------------------------------------------------------------------------------------------- the verdict


def why_closed(each: Predecessor, finding: Finding) -> PredecessorError:
    """Return the error of a job that cannot start, because this predecessor did not succeed."""
    how = {FAILED: "failed", CANCELLED: "was cancelled", REMOVED: "was removed"}[finding.status]
    look = command_about(each.job_id)
    if finding.status == REMOVED:
        look = "kinetic batch list" if each.inputs else "kinetic jobs list --all"  # nothing explains what was removed
    return PredecessorError(
        f"{each.shown} {how}, so the job that follows it cannot start",
        why=finding.detail or None,
        next=finding.next or f"{look}     then submit it, and what follows it, again",
    )


def command_about(name: str) -> str:
    """Return the command that shows the state of a job or a batch that another job waits for."""
    return f"kinetic batch status {name}" if keys.is_group_id(name) else f"kinetic jobs explain {name}"


def value_gone(each: Predecessor) -> PredecessorError:
    """Return the error of a job whose argument is a value that was collected and removed."""
    return PredecessorError(
        f"the value of {each.shown} is no longer stored",
        why="it was collected, which removes it, before the job that follows it had read it",
        next="pass the value itself, or collect with result(cleanup=False)",
        code="predecessor-collected",
    )


def as_closed(error: PredecessorError | IntegrityError) -> PredecessorError:
    """Return the error of a job that cannot start, whatever keeps it from that."""
    if isinstance(error, PredecessorError):
        return error
    return PredecessorError(f"it did not start: {error.what}", why=error.why, next=error.next)


def verdict_of(job_id: str, key_id: str, error: PredecessorError, *, witness: str, attempt: int = -1) -> Outcome:
    """Return the outcome of a job that cannot start; it never began, so it has no host, no start and no log."""
    described = {"what": error.what, "why": error.why or "", "next": error.next or "", "code": error.code}
    return Outcome(
        job_id,
        FAILED,
        attempt=attempt,
        cause=outcomes.PREDECESSOR,
        phase="",
        error={"message": error.what, **{name: text for name, text in described.items() if text}},
        ended=time.time(),
        witness=witness,
        key_id=key_id,
    )


# ----------------------------------------------------------------------------------------------------------- the values


def of_task(after: Sequence[Mapping[str, Any]] | None) -> tuple[Predecessor, ...]:
    """Return what a task says of the predecessors of its job."""
    return tuple(Predecessor.from_json(dict(page)) for page in after or ())


def check_ready(store: Store, after: Sequence[Predecessor], data: bytes) -> list[dict[str, Any]]:
    """Return where the values are that a job's arguments refer to, in the order of its predecessors.

    Raises:
        PredecessorError: One did not succeed, has not ended, or its value is gone.
        IntegrityError: What is in the store has a wrong seal.
    """
    key_of = key_finder(after, data)
    found = []
    for each, finding in zip(after, look_at_all(store, after, key_of), strict=True):
        if finding.is_over:
            raise why_closed(each, finding)
        if not finding.status:
            raise PredecessorError(f"{each.shown}, which it follows, has not ended", code="predecessor-waits")
        if each.value and not finding.has_value:
            raise value_gone(each)
        found.append(_value(store, each, key_of) if each.value else {})
    return found


def _value(store: Store, each: Predecessor, key_of: KeyOf) -> dict[str, Any]:
    if not each.inputs:
        return {"many": False, "parts": [_part(store, each, each.job_id, key_of)]}
    succeeded, _ = read_marks(store, each, key_of)

    def part(index: int) -> tuple[int, list[Any]]:
        return index, _part(store, each, each.child_id(index, succeeded[index]), key_of)

    tasks = (partial(part, index) for index in succeeded)
    parts = sorted(in_parallel(store, tasks, limit=_lanes(store, len(succeeded))))
    return {"many": True, "parts": [found for _, found in parts]}


def _part(store: Store, each: Predecessor, job_id: str, key_of: KeyOf) -> list[Any]:
    key = key_of(job_id)
    outcome = outcomes.find(store, job_id, lambda: key)
    if outcome is None or not outcome.succeeded:
        raise value_gone(each)
    return [job_id, outcome.body_length, outcome.body_sha256]


def opener(store: Store, values: Sequence[Mapping[str, Any]], load: Callable[[bytes], Any]) -> Callable[[int], Any]:
    """Return what opens the value of a predecessor by its number: its bytes are those that were sealed."""

    def open_value(number: int) -> Any:
        page = values[number]
        opened = [load(data) for data in _bodies(store, page["parts"])]
        return opened if page["many"] else opened[0]

    return open_value


def _bodies(store: Store, parts: Sequence[Sequence[Any]]) -> Iterator[bytes]:
    from kinetic._wire import digests  # the worker has it

    for job_id, length, sha256 in parts:
        try:
            data = store.get(keys.result(job_id), length=length)
        except KeyMissingError:
            raise value_gone(Predecessor(job_id)) from None
        digests.check(digests.of_bytes(data), sha256, f"the value of {job_id} is not what it wrote", "its seal")
        yield data
