"""The record of a job: made in one place, for single jobs and children of batches; sealed, and read back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._jobs import locate
from kinetic._wire import documents, fields, keys, records
from kinetic._wire.records import HANDLE, REQUIRED, JobRecord
from kinetic.errors import CredentialsError, IntegrityError, KineticError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetic._backends.protocol import Backend
    from kinetic._stores.protocol import Store
    from kinetic._wire.documents import PageKind


T = TypeVar("T")
_SHOWN = 80  # characters of what an unverified page says
_NAMED = 3  # in one line


@dataclass(frozen=True)
class Untrusted:
    """A page that cannot be verified here; each text is short and escaped.

    Attributes:
        name: The job or batch under whose name it lies.
        function: The function that it names.
        created_at: When it says that it was made.
        key_id: The key that it says it is sealed with; "" for none.
        why: Why it is not believed.
        next: What to do.
        code: "key-missing-here", "seal" or "other-store".
    """

    name: str
    function: str
    created_at: str
    key_id: str
    why: str
    next: str
    code: str

    def error(self) -> KineticError:
        """Return what to raise where it was to be used."""
        kind = CredentialsError if self.code == "key-missing-here" else IntegrityError
        what = f"{self.name} cannot be verified here, so it is not used"
        return kind(what, why=self.why, next=self.next, code=self.code)


def untrusted_warnings(untrusted: Iterable[Untrusted], what: str) -> Iterator[str]:
    """Say what is not listed because it cannot be verified: one line for each reason, however many there are.

    Args:
        untrusted: What was found.
        what: One of them is, for humans, e.g. "job".
    """
    reasons: dict[tuple[str, str], list[Untrusted]] = {}
    for each in untrusted:
        reasons.setdefault((each.code, each.key_id), []).append(each)
    for found in reasons.values():
        names = [f"{each.name} ({each.function or 'no function'}, {each.created_at or 'no date'})" for each in found]
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        listed = f"{what} is" if len(found) == 1 else f"{what}{'es' if what.endswith('h') else 's'} are"
        yield (
            f"{len(found)} unverified {listed} not listed: {', '.join(names[:_NAMED])}{more}: {found[0].why};"
            f" {found[0].next}"
        )


def open_claimed(kind: PageKind[T], store: Store, at: str, name: str) -> T | Untrusted:
    """Read a page that names the key it is sealed with and the store it was written for.

    Args:
        kind: What it must be.
        store: Where it lies.
        at: Its key there.
        name: The job or batch that it must be about; the key is derived for it.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is damaged.
    """
    page = documents.read_unverified(kind, store, at)
    if locate.trusts_the_store():
        return documents.verify(kind, page, at, None)
    key_id, written_for = _text(page.get("key_id")), _text(page.get("store"))
    key = locate.key_for(name, key_id, written_for)
    if key is None:
        export = f"kinetic key export {escaped(key_id)}"
        next_ = f"on the machine that submitted it: {export}     then here: kinetic key import"
        why = f"it is sealed with the key {escaped(key_id) or '(none)'}, which is not in {locate.home() / 'keys'}"
        return _untrusted(page, name, why, next_, code="key-missing-here")
    if not documents.has_seal(page, key, documents.seal_purpose(kind.name, at)):
        why = "it carries a wrong seal: it was written or changed by somebody who does not hold this namespace's key"
        return _untrusted(page, name, why, "look at who can write to the store", code="seal")
    if not _is_same_store(store.url, written_for):
        why = f"it was written for another store, {escaped(written_for)}, and lies in {store.url}"
        return _untrusted(
            page, name, why, f"KINETIC_STORE={escaped(written_for)} kinetic jobs list", code="other-store"
        )
    return documents.verify(kind, page, at, key)


def escaped(text: str) -> str:
    """Return text of somebody else's in a few characters that do nothing to a terminal."""
    escaped = ascii(text)[1:-1]
    return escaped if len(escaped) <= _SHOWN else f"{escaped[:_SHOWN]}…"


def _untrusted(page: dict[str, Any], name: str, why: str, next_: str, code: str) -> Untrusted:
    function = _text(page.get("func_name")) or _text(page.get("submit_fn_name"))
    created, key_id = escaped(_text(page.get("created_at"))), escaped(_text(page.get("key_id")))
    return Untrusted(name, escaped(function), created, key_id, why, next_, code)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_same_store(address: str, other: str) -> bool:
    """Return whether two addresses are one store; a folder may be reached through a link. Both are our own words."""
    if address == other:
        return True
    if not (address.startswith("file://") and other.startswith("file://")):
        return False
    return os.path.realpath(address.removeprefix("file://")) == os.path.realpath(other.removeprefix("file://"))


_READERS = {
    **HANDLE,
    "spot": fields.boolean,
    "machine": fields.text(),
    "python": fields.text(),
    "order_sha256": fields.text(64),
}


LONGEST_NAME = "longest_name"  # beside the fields that all jobs of a submission share


def longest_name(backend: Backend, hosts: int) -> int:
    """Return how long the name of a job's object may be where it runs, so that a record needs no cluster to know it."""
    return len(backend.name_of("x" * keys.MOST_OF_AN_OBJECT, hosts))


def make_record(shared: Mapping[str, Any], job_id: str, **own: Any) -> JobRecord:
    """Make the record of one job.

    Args:
        shared: What the records of all jobs of its submission have in common; ``LONGEST_NAME`` beside it.
        job_id: The job.
        **own: Its other fields.
    """
    derived = {
        "job_id": job_id,
        "k8s_name": keys.object_name(job_id, int(shared.get(LONGEST_NAME) or keys.MOST_OF_AN_OBJECT)),
        "display_name": f"kinetic-{shared['func_name']}-{job_id}",
    }
    return JobRecord(**records.known({**shared, **derived, **own}))


def to_bytes(handle: dict[str, Any], more: dict[str, Any], key: bytes) -> bytes:
    """Write a record; the handle's fields lie on top, so that it reads as the documents describe it."""
    return documents.seal_page(RECORD, {**more, **handle}, keys.record(handle["job_id"]), key)


def read_record(store: Store, job_id: str) -> dict[str, Any] | Untrusted:
    """Read the record of a job, or what can be shown of one that cannot be verified here.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is damaged.
    """
    return open_claimed(RECORD, store, keys.record(job_id), job_id)


def _record(page: dict[str, Any], what: str) -> dict[str, Any]:
    return fields.checked(_READERS, page, what, REQUIRED)


RECORD = documents.PageKind("record", "the record", _record, 1 << 18)
