"""From a job to its store, backend and key, and its record and outcome: which pages of a store are believed.

The key is always this caller's own, never one that a record points to. A page is believed when a key of this caller's
own key ring sealed it, for that very store. Others who can write to a store can put pages there that name a cluster, a
folder or a kubeconfig context. So what cannot be verified becomes an ``Untrusted``: text to be shown, from which
nothing is opened and no backend is asked.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._backends import registry
from kinetic._backends.registry import Address
from kinetic._config import home as config_home
from kinetic._jobs import index
from kinetic._jobs.environment import (
    backend_at,
    home,
    is_supervised,
    key_ids,
    local_store,
    log,
    machine,
    open_backend,
    own_key_id,
    runtime,
    trusts_the_store,
    warn_if_shared,
)
from kinetic._jobs.environment import local as local  # noqa: PLC0414 - as in __all__, where it would name a backend
from kinetic._output.format import names_text, plain
from kinetic._stores import open_store
from kinetic._stores.protocol import CLOUDS, Store
from kinetic._wire import dataclass, documents, fields, keys, outcomes, records
from kinetic._wire.outcomes import Outcome
from kinetic._wire.records import HANDLE, HISTORY, REQUIRED, JobRecord
from kinetic.errors import CredentialsError, IntegrityError, KeyMissingError, KineticError, OptionError, what_of

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, Launcher
    from kinetic._wire.documents import PageKind
    from kinetic._wire.order import Order
    from kinetic._wire.records import Group

__all__ = [  # with what goes with it, of ``environment``
    "backend_at",
    "home",
    "is_supervised",
    "key_ids",
    "local_store",
    "log",
    "machine",
    "runtime",
    "trusts_the_store",
    "warn_if_shared",
]

T = TypeVar("T")
_ADDRESS = ("project", "zone", "cluster_name", "namespace", "context")
_keys: dict[str, tuple[tuple[int, int, int], bytes | None]] = {}  # by their files; and what those looked like


def backend_of(job: JobRecord) -> Backend:
    """Return the backend that a job runs on. An unknown name is an OptionError."""
    return open_backend(job.backend, Address(*(str(getattr(job, name) or "") for name in _ADDRESS)))


def backend_for(fields: Mapping[str, Any]) -> Backend:
    """Return the backend that the fields of a job name; see ``backend_of``."""
    return open_backend(fields["backend"], Address(*(str(fields.get(name) or "") for name in _ADDRESS)))


def store_of(job: JobRecord) -> Store:
    """Return the store of a job's record and result."""
    return store_at(job.store)


def store_at(address: str | None) -> Store:
    """Return the store at an address that a record has, or that of this machine."""
    return open_store(address) if address else local_store()


def key_for(name: str, key_id: str, store_url: str) -> bytes | None:
    """Return the key of a job or a batch in a store, from this caller's own ring, or None."""
    found = namespace_key(key_id)
    return documents.job_key(found, name, store_url) if found is not None else None


def namespace_key(key_id: str) -> bytes | None:
    """Return a key of this caller's own ring, or None. Its file is read once, as long as it stays the same."""
    if not key_id.isalnum():
        return None
    folder = home()
    path = f"{folder}/keys/{key_id}"
    try:
        about = os.stat(path)
    except OSError:
        return None
    stamp = about.st_ino, about.st_mtime_ns, about.st_size
    known, key = _keys.get(path, (None, None))
    if known != stamp:
        key = config_home.find_key(folder, key_id)
        _keys[path] = stamp, key
    return key


def key_to_read(job: JobRecord) -> bytes | None:
    """Return the key without which no page of a job is believed; None only when the user trusts the store."""
    return _needed(job.job_id, job.key_id or "", store_of(job).url)


def key_to_seal(job: JobRecord) -> bytes:
    """Return the key that seals what this caller writes about a job."""
    key = key_to_read(job)
    if key is not None:
        return key
    url = store_of(job).url  # the user trusts the store, as must the readers of this page
    return key_for(job.job_id, job.key_id or "", url) or documents.job_key(bytes(documents.KEY_BYTES), job.job_id, url)


def group_key(group: Group) -> bytes | None:
    """Return the key without which no page of a batch is believed; as for a job."""
    return _needed(group.group_id, group.key_id, group.store)


def _needed(name: str, key_id: str, store_url: str) -> bytes | None:
    if trusts_the_store():
        return None
    what = f"{name} cannot be verified here, so nothing of it was opened or changed"
    return _key(name, key_id, store_url, what, "it is sealed with")


def key_to_attach(job: JobRecord) -> bytes:
    """Return the key that opens a job's debug server."""
    what = f"no debugger can attach to {job.job_id} from here"
    return _key(job.job_id, job.key_id or "", store_of(job).url, what, "its debug server requires")


def _key(name: str, key_id: str, store_url: str, what: str, why: str) -> bytes:
    key = key_for(name, key_id, store_url)
    if key is None:
        raise key_missing(what, why, key_id)
    return key


def key_missing(what: str, why: str, key_id: str) -> CredentialsError:
    """Return the error about a key of another machine; ``why`` says what it does: "it is sealed with"."""
    return CredentialsError(
        what,
        why=f"{why} the key {key_id or '(none)'}, which is not in {home() / 'keys'}",
        next=f"on the machine that submitted it: kinetic key export {key_id}     then here: kinetic key import",
        code="key-missing-here",
    )


def can_be_seen(job: JobRecord) -> bool:
    """Return whether the job's processes can be asked about from here: on a cluster, from everywhere."""
    return not registry.is_here(job.backend) or is_here(job)


def is_here(job: JobRecord) -> bool:
    """Return whether this home can see the job's processes: they are of this machine, and not of another home."""
    if not registry.is_here(job.backend) or (job.host and job.host != machine()):
        return False
    is_imported = job.key_id != own_key_id() and job.key_id in key_ids()
    return not is_imported or job.job_id in local().places()  # this home may have made it with an older key


def hosts_of(job: JobRecord) -> int:
    """Return how many hosts a job has (count)."""
    if job.accelerator == "cpu":
        return 1
    from kinetic import _hardware as hardware  # 5 ms, with its tables

    return hardware.place(job.accelerator, multi_host=registry.spans_hosts(job.backend)).hosts


def no_host(job: JobRecord, host: object, next_: str, kind: type[KineticError] = OptionError) -> KineticError:
    """Return the error that a job has no host of this number."""
    count = hosts_of(job)
    why = "it runs on one host, 0" if count == 1 else f"{job.accelerator} has {count} hosts, 0 to {count - 1}"
    return kind(f"{job.job_id} has no host {host}", why=why, next=next_)


def hosts_or_one(job: JobRecord) -> int:
    """Return how many hosts a job has (count), as far as this version of kinetic knows its accelerator."""
    try:
        return hosts_of(job)
    except KineticError:
        return 1


def machine_of(backend: Backend) -> str:
    """Return the machine that sees a backend's jobs: this one, or "" where every machine does."""
    return machine() if backend.is_here else ""


LONGEST_NAME = "longest_name"  # beside the fields that all jobs of a submission share
_SHOWN = 80  # characters of what an unverified page says
_NAMED = 3  # in one line
_FEW_BYTES = 8 << 10  # of a result: of most of them one request reads all, and so the verdict, which is at the end
_SMALL_BYTES = 32 << 10  # of a result: fewer are read with its verdict
_READERS = {
    **HANDLE,
    "spot": fields.boolean,
    "created": fields.number(0, fields.SECONDS),  # Unix time, with fractions
    "machine": fields.text(),
    "python": fields.text(),
    "order_sha256": fields.text(64),
    "lock": fields.text(),  # where the lock of its environment is in the store; absent for a job without one
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


def seal_record(handle: dict[str, Any], more: dict[str, Any], key: bytes) -> bytes:
    """Write a record; the handle's fields win, so that it reads as the documents describe it."""
    return documents.seal_page(RECORD, {**more, **handle}, keys.record(handle["job_id"]), key)


def read_record(store: Store, job_id: str) -> dict[str, Any] | Untrusted:
    """Read the record of a job, or what can be shown of one that cannot be verified here."""
    return open_claimed(RECORD, store, keys.record(job_id), job_id)


def verified_record(store: Store, job_id: str) -> dict[str, Any] | None:
    """Read the record of a job; None for one that cannot be verified here."""
    page = read_record(store, job_id)
    return None if isinstance(page, Untrusted) else page


def verified_job(store: Store, job_id: str) -> JobRecord | None:
    """Read a job; None for one that cannot be verified here."""
    page = verified_record(store, job_id)
    return None if page is None else record_of(page)


def read_job(store: Store, job_id: str) -> JobRecord:
    """Read a job; one that cannot be verified here is an error."""
    return record_of(believed(read_record(store, job_id)))


def verified_group(store: Store, group_id: str) -> Group | None:
    """Read the manifest of a batch; None for one that cannot be verified here."""
    group = read_group(store, group_id)
    return None if isinstance(group, Untrusted) else group


def order_of(job: JobRecord) -> Order:
    """Read the order of a job, by the digest that its sealed record promises, or the manifest of its batch."""
    from kinetic._wire import order  # few jobs are looked at so closely

    store = store_of(job)
    if job.group_id:
        group = believed(read_group(store, job.group_id))
        return order.read(store, keys.group_order(job.group_id), group.order_sha256)
    page = believed(read_record(store, job.job_id))
    return order.read(store, keys.order(job.job_id), str(page.get("order_sha256")))


def believed(page: T | Untrusted) -> T:
    """Return a page that was verified; any other is an error."""
    if isinstance(page, Untrusted):
        raise page.error()
    return page


def read_group(store: Store, group_id: str) -> Group | Untrusted:
    """Read the manifest of a batch, or what can be shown of one that cannot be verified here."""
    return open_claimed(records.MANIFEST, store, keys.group_manifest(group_id), group_id)


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
    code: str  # "key-missing-here", "seal", "other-store" or, for lists only, "schema"

    @property
    def is_of_others(self) -> bool:
        """Whether it is sealed with a key that is not in this home, as what colleagues submit."""
        return self.code == "key-missing-here"

    def error(self) -> KineticError:
        """Return what to raise where it was to be used."""
        kind = CredentialsError if self.is_of_others else IntegrityError
        what = f"{self.name} cannot be verified here, so it is not used"
        return kind(what, why=self.why, next=self.next, code=self.code)


def untrusted_warnings(untrusted: Iterable[Untrusted], what: str) -> Iterator[str]:
    """Yield one line for each reason why things ("job", "batch") are not listed, however many there are."""
    reasons: dict[tuple[str, str], list[Untrusted]] = {}
    for each in untrusted:
        reasons.setdefault((each.code, each.key_id or each.why), []).append(each)
    for found in reasons.values():
        names = [
            f"{each.name} ({each.function or 'no function'}, {each.created_at or 'no date'})"
            if each.code != "schema"
            else each.name
            for each in found
        ]
        listed = f"{what} is" if len(found) == 1 else f"{what}{'es' if what.endswith('h') else 's'} are"
        yield (
            f"{len(found)} unverified {listed} not listed: {names_text(names, _NAMED)}: {found[0].why}; {found[0].next}"
        )


def set_aside(untrusted: Iterable[Untrusted], of_others: list[Untrusted]) -> list[Untrusted]:
    """Add what colleagues have submitted to a list, and return the rest."""
    of_others += (each for each in untrusted if each.is_of_others)
    return [each for each in untrusted if not each.is_of_others]


def of_another_version(name: str, error: KineticError) -> Untrusted | None:
    """Return what a list shows of a page that another version of kinetic has written; None for other errors."""
    if error.code != "schema":
        return None
    by = error.what.rpartition(" was ")[2]
    return Untrusted(name, "", "", "", f"{by}; {error.why}", str(error.next), "schema")


def open_claimed(kind: PageKind[T], store: Store, at: str, name: str) -> T | Untrusted:
    """Read a page that names its key and the store it was written for; ``name`` is its job or batch."""
    page = documents.read_unverified(kind, store, at)
    if trusts_the_store():
        return documents.verify(kind, page, at, None)
    key_id, written_for = _text(page.get("key_id")), _text(page.get("store"))
    key = key_for(name, key_id, written_for)
    function = _text(page.get("func_name")) or _text(page.get("submit_fn_name"))
    shown = name, escaped(function), escaped(_text(page.get("created_at"))), escaped(key_id)
    untrusted = functools.partial(Untrusted, *shown)
    if key is None:
        return _foreign(*shown)
    if not documents.has_seal(page, key, documents.seal_purpose(kind.name, at)):
        why = "it has a wrong seal: it was written or changed without this namespace's key"
        return untrusted(why, "look at who can write to the store", code="seal")
    if not _is_same_store(store.url, written_for):
        why = f"it was written for another store, {escaped(written_for)}, and is in {store.url}"
        return untrusted(why, _way_to(written_for, store.url, at), code="other-store")
    return documents.verify(kind, page, at, key)


def _foreign(name: str, function: str, created_at: str, key_id: str) -> Untrusted:
    error = key_missing(name, "it is sealed with", key_id)
    return Untrusted(name, function, created_at, key_id, error.why or "", error.next or "", code=error.code)


def _way_to(written_for: str, found_in: str, at: str) -> str:
    """Return the command that reaches a store; of a store or home that was moved, the one that links it.

    What ran meanwhile has made the old place again, with its results only.
    """
    import shlex  # on the way to an error

    old, new = (Path(url.removeprefix("file://")) for url in (written_for, found_in))
    if not written_for.startswith("file:///") or not found_in.startswith("file:///") or os.path.exists(old / at):
        return f"KINETIC_STORE={shlex.quote(plain(written_for))} kinetic jobs list"
    has_old = os.path.exists(old)
    if new.parent == home() and new.name == old.name and not os.path.exists(old.parent):
        old, new = old.parent, new.parent  # with the runtime folder in it, which queued jobs name
    above, old_, new_, aside = (shlex.quote(plain(str(path))) for path in (old.parent, old, new, f"{old}.before"))
    if has_old:
        return f"if it was moved here: mv {old_} {aside} && ln -s {new_} {old_} && cp -Rp {aside}/. {new_}"
    return f"if it was moved here: mkdir -p {above} && ln -s {new_} {old_}"


def read_outcome(job: JobRecord) -> Outcome | None:
    """Return the verdict of a job, or None while there is none; its key must be here if there is one."""
    store = store_of(job)
    if store.url.startswith(CLOUDS):  # one request, if the result is small
        return (read_ended(job, most=_FEW_BYTES) or (None,))[0]
    return outcomes.find(store, job.job_id, lambda: key_to_read(job))


def read_ended(job: JobRecord, *, most: int = _SMALL_BYTES) -> tuple[Outcome, bytes | None] | None:
    """Return the verdict of a job that has probably ended, with its body if that is small: one request for both."""
    store, job_id = store_of(job), job.job_id
    try:
        data = store.get(keys.result(job_id), length=most)
    except KeyMissingError:
        return None
    if len(data) == most:  # there may be more of it
        outcome = outcomes.find(store, job_id, lambda: key_to_read(job))
        return None if outcome is None else (outcome, None)
    key = key_to_read(job)
    outcome = outcomes.read_of(job_id, len(data), lambda start, length: data[start : start + length], key)
    return outcome, data[: outcome.body_length]


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


def write_page(store: Store, fields: dict[str, Any], key: bytes, *, again: bool = False) -> bool:
    """Write the page of a job, once, sealed with the job's key; ``again`` replaces the page that is there."""
    at, data = sealed_page(store, fields, key)
    if store.put(at, data, if_absent=not again):
        return True
    return read_page(store, fields["job_id"]) is None and store.put(at, data)


def sealed_page(store: Store, fields: dict[str, Any], key: bytes) -> tuple[str, bytes]:
    """Return where the page of a job is, and the page."""
    at = keys.history(fields["job_id"])
    return at, documents.seal_page(HISTORY, {"removed": time.time(), **fields, "store": store.url}, at, key)


def read_page(store: Store, job_id: str) -> dict[str, Any] | None:
    """Return the page of a job; None where there is none, or none that can be read and verified here.

    A forged page says nothing: neither that a job was removed, nor where its outputs are.
    """
    page = claimed_page(store, job_id)
    return None if isinstance(page, Untrusted) else page


def claimed_page(store: Store, job_id: str) -> dict[str, Any] | Untrusted | None:
    """Return the page of a job, or what says that it cannot be verified here; None where none can be read."""
    with contextlib.suppress(KeyMissingError, IntegrityError):
        page = open_claimed(HISTORY, store, keys.history(job_id), job_id)
        if isinstance(page, Untrusted) or page["job_id"] == job_id:
            return page
    return None


def past_of(job: JobRecord) -> dict[str, Any] | None:
    """Return the page of the history that a record was made from, or that its own collection wrote; else None."""
    return job._past  # noqa: SLF001 - a field of the record that no page of it has


def is_collected(page: Mapping[str, Any] | None) -> bool:
    """Return whether a page is of a job that was collected: then its log is kept, and it can be attached."""
    return page is not None and bool(page.get("collected"))


def read_records(
    wanted: Iterable[tuple[Store, list[str]]], *, of_others: list[Untrusted] | None = None
) -> Iterator[JobRecord]:
    """Yield the records of jobs, reading several records at a time where that is faster; warn of the others.

    Jobs of colleagues are added to ``of_others`` where it is given, without a warning.
    """
    untrusted: list[Untrusted] = []
    for store, ids in wanted:
        known = index.index_of(store)
        tasks = []
        for job_id in ids:
            if (page := known.record(job_id)) is not None:
                yield record_of(page)
            elif (foreign := known.foreign(job_id)) is not None:
                untrusted.append(_foreign(job_id, *foreign))
            else:
                tasks.append(functools.partial(_try_to_read, store, job_id))
        for read in in_parallel(store, tasks):
            if isinstance(read, Untrusted):
                untrusted.append(read)
                if read.is_of_others:
                    known.note_foreign(read.name, read.function, read.created_at, read.key_id)
            elif read is not None:
                known.note_record(read["job_id"], read)
                yield record_of(read)
        known.write(functools.partial(store.folders, ""))
    warn_of_jobs(untrusted if of_others is None else set_aside(untrusted, of_others))


def warn_of_jobs(untrusted: Iterable[Untrusted]) -> None:
    """Say which jobs are not listed, and why."""
    for line in untrusted_warnings(untrusted, "job"):
        log().warning("%s", line)


def in_parallel(store: Store | None, tasks: Sequence[Callable[[], T]]) -> Iterable[T]:
    """Run tasks side by side, as many as suit a store, and yield what they return as it comes; None: all of them."""
    if not tasks:
        return ()
    from kinetic._stores import parallel  # 1 ms, with threads' queues

    return parallel.in_parallel(store, tasks, limit=None if store is not None else len(tasks))


def in_order(tasks: Sequence[tuple[str, Callable[[], T]]]) -> list[T]:
    """Run tasks, and return what they return in their order; those whose store is far away run side by side.

    Each comes with the address of its store, or "" where it is not known. The first error is raised. Where
    tasks call this as well, at most 64 requests are under way in all.
    """
    far = [number for number, (url, _) in enumerate(tasks) if url.startswith(CLOUDS)] if len(tasks) > 1 else []

    def answered(number: int) -> tuple[int, T]:
        return number, tasks[number][1]()

    found: dict[int, T] = {}
    if far:
        from kinetic._stores import parallel  # 1 ms, with threads' queues

        asked = (functools.partial(answered, number) for number in far)
        found = dict(parallel.in_shares(asked, most=len(far)))
    return [found[number] if number in found else task() for number, (_, task) in enumerate(tasks)]


def record_of(page: Mapping[str, Any]) -> JobRecord:
    """Return the record that a page has."""
    return JobRecord(**records.known(page))


def _try_to_read(store: Store, job_id: str) -> dict[str, Any] | Untrusted | None:
    """Read the record of a job; one that cannot be read is a warning."""
    try:
        return read_record(store, job_id)
    except KeyMissingError:  # being submitted or removed this moment
        return None
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one page, the others are listed
        if isinstance(error, KineticError) and (found := of_another_version(job_id, error)) is not None:
            return found
        log().warning("%s is not listed: %s", plain(job_id), plain(what_of(error)))
        return None
