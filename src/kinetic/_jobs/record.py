"""The record of a job: made in one place, sealed, read back; and which pages of a store are believed.

A page is believed when a key of this caller's own key ring sealed it, for that very store. Others who can write to a
store can put pages there that name a cluster, a folder or a kubeconfig context. So what cannot be verified becomes an
``Untrusted``: text to be shown, from which nothing is opened and no backend is asked.
"""

from __future__ import annotations

import functools
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

    from kinetic._backends.protocol import Launcher
    from kinetic._stores.protocol import Store
    from kinetic._wire.documents import PageKind

T = TypeVar("T")
LONGEST_NAME = "longest_name"  # beside the fields that all jobs of a submission share
_SHOWN = 80  # characters of what an unverified page says
_NAMED = 3  # in one line
_READERS = {
    **HANDLE,
    "spot": fields.boolean,
    "machine": fields.text(),
    "python": fields.text(),
    "order_sha256": fields.text(64),
}


def longest_name(launcher: Launcher, hosts: int) -> int:
    """Return how long the name of a job's object may be where it runs, so that a record needs no cluster to know it."""
    return len(launcher.name_of("x" * keys.MOST_OF_AN_OBJECT, hosts))


def make_record(shared: Mapping[str, Any], job_id: str, **own: Any) -> JobRecord:
    """Make the record of one job from what all jobs of its submission share, and from its own fields."""
    derived = {
        "job_id": job_id,
        "k8s_name": keys.object_name(job_id, int(shared.get(LONGEST_NAME) or keys.MOST_OF_AN_OBJECT)),
        "display_name": f"kinetic-{shared['func_name']}-{job_id}",
    }
    return JobRecord(**records.known({**shared, **derived, **own}))


def to_bytes(handle: dict[str, Any], more: dict[str, Any], key: bytes) -> bytes:
    """Write a record; the handle's fields win, so that it reads as the documents describe it."""
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


@dataclass(frozen=True)
class Untrusted:
    """A page that cannot be verified here; each text is short and escaped."""

    name: str  # of the job or batch under whose name it is stored
    function: str
    created_at: str
    key_id: str  # that it claims to be sealed with
    why: str  # it is not believed
    next: str
    code: str  # "key-missing-here", "seal" or "other-store"

    def error(self) -> KineticError:
        """Return what to raise where it was to be used."""
        kind = CredentialsError if self.code == "key-missing-here" else IntegrityError
        what = f"{self.name} cannot be verified here, so it is not used"
        return kind(what, why=self.why, next=self.next, code=self.code)


def untrusted_warnings(untrusted: Iterable[Untrusted], what: str) -> Iterator[str]:
    """Yield one line for each reason why things ("job", "batch") are not listed, however many there are."""
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
    """Read a page that names the key it is sealed with and the store it was written for; ``name`` is its job or batch.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is damaged.
    """
    page = documents.read_unverified(kind, store, at)
    if locate.trusts_the_store():
        return documents.verify(kind, page, at, None)
    key_id, written_for = _text(page.get("key_id")), _text(page.get("store"))
    key = locate.key_for(name, key_id, written_for)
    function = _text(page.get("func_name")) or _text(page.get("submit_fn_name"))
    untrusted = functools.partial(
        Untrusted, name, escaped(function), escaped(_text(page.get("created_at"))), escaped(key_id)
    )
    if key is None:
        why = f"it is sealed with the key {escaped(key_id) or '(none)'}, which is not in {locate.home() / 'keys'}"
        export = f"kinetic key export {escaped(key_id)}"
        next_ = f"on the machine that submitted it: {export}     then here: kinetic key import"
        return untrusted(why, next_, code="key-missing-here")
    if not documents.has_seal(page, key, documents.seal_purpose(kind.name, at)):
        why = "it has a wrong seal: it was written or changed without this namespace's key"
        return untrusted(why, "look at who can write to the store", code="seal")
    if not _is_same_store(store.url, written_for):
        why = f"it was written for another store, {escaped(written_for)}, and is in {store.url}"
        return untrusted(why, f"KINETIC_STORE={escaped(written_for)} kinetic jobs list", code="other-store")
    return documents.verify(kind, page, at, key)


def escaped(text: str) -> str:
    """Return a foreign text in a few characters that do nothing to a terminal."""
    safe = ascii(text)[1:-1]
    return safe if len(safe) <= _SHOWN else f"{safe[:_SHOWN]}…"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_same_store(address: str, other: str) -> bool:
    """Return whether two addresses are one store; a folder may be reached through a link."""
    if address == other:
        return True
    if not (address.startswith("file://") and other.startswith("file://")):
        return False
    return os.path.realpath(address.removeprefix("file://")) == os.path.realpath(other.removeprefix("file://"))
