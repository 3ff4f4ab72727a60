"""From a job to its store, backend and key, and its record and outcome: which pages of a store are believed.

The key is always this caller's own, never one that a record points to. A page is believed when a key of this caller's
own key ring sealed it, for that very store. Others who can write to a store can put pages there that name a cluster, a
folder or a kubeconfig context. So what cannot be verified becomes an ``Untrusted``: text to be shown, from which
nothing is opened and no backend is asked.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kinetic._backends import registry
from kinetic._backends.registry import Address
from kinetic._config import home as config_home
from kinetic._config import target as settings
from kinetic._output import terminal as output
from kinetic._stores import open_store
from kinetic._stores.protocol import Entry, Store
from kinetic._wire import dataclass, documents, fields, folders, keys, outcomes, records
from kinetic._wire.outcomes import Outcome
from kinetic._wire.records import HANDLE, HISTORY, REQUIRED, JobRecord
from kinetic.errors import CredentialsError, IntegrityError, KeyMissingError, KineticError

if TYPE_CHECKING:
    import logging

    from kinetic._backends.local.backend import LocalBackend
    from kinetic._backends.protocol import Backend, Launcher
    from kinetic._config.target import Target
    from kinetic._wire.documents import PageKind
    from kinetic._wire.records import Group


T = TypeVar("T")
_MACHINE = "KINETIC_MACHINE_ID"
_ADDRESS = ("project", "zone", "cluster_name", "namespace", "context")
_runtimes: dict[tuple[str, ...], Path] = {}
_homes: dict[tuple[str, ...], Path] = {}
_keys: dict[str, tuple[tuple[int, int, int], bytes | None]] = {}  # by their files; and what those looked like
_machines: dict[str, str] = {}


def local() -> LocalBackend:
    """Return the backend of this machine."""
    return cast("LocalBackend", _open(registry.HERE.name, Address()))  # it is the one whose queue can be asked


def backend_at(target: Target, *, strict: bool = False) -> Backend:
    """Return the backend that a target names; strict where the user asked for it by name."""
    address = Address(
        target.project.value, target.zone.value, target.cluster.value, target.namespace.value, target.context.value
    )
    return _open(target.backend.value, address, strict=strict)


def backend_of(job: JobRecord) -> Backend:
    """Return the backend that a job runs on. An unknown name is an OptionError."""
    return _open(job.backend, Address(*(str(getattr(job, name) or "") for name in _ADDRESS)))


def backend_for(fields: Mapping[str, Any]) -> Backend:
    """Return the backend that the fields of a job name; see ``backend_of``."""
    return _open(fields["backend"], Address(*(str(fields.get(name) or "") for name in _ADDRESS)))


def _open(name: str, address: Address, *, strict: bool = False) -> Backend:
    found: Backend = registry.open_backend(name, address, runtime=runtime(), environ=os.environ, strict=strict)
    return found


def runtime() -> Path:
    """Return the folder for host-local state; found once for each setting, as that reads the list of mounts."""
    setting = tuple(os.environ.get(name, "") for name in ("KINETIC_HOME", "KINETIC_RUNTIME_DIR", "HOME", _MACHINE))
    if setting not in _runtimes:
        _runtimes[setting] = settings.runtime_folder(os.environ)
    return _runtimes[setting]


def store_of(job: JobRecord) -> Store:
    """Return the store of a job's record and result."""
    return open_store(job.store) if job.store else local_store()


def local_store() -> Store:
    """Return the store of the jobs of this machine."""
    return open_store(settings.resolve(backend=registry.HERE.name).store.value)


def warn_if_shared(store: Store) -> Store:
    """Return a store, and report once if it is a folder that others may write to."""
    who = folders.other_writers(store.local.root) if store.local is not None else ""
    if who:
        output.report_once(f"others may write to the store {store.url}: {who}")
    return store


def log() -> logging.Logger:
    """Return the logger of this room."""
    import logging  # 5 ms; only when there is something to report

    return logging.getLogger("kinetic.jobs")


def home() -> Path:
    """Return this caller's kinetic home; checked once for each setting."""
    setting = tuple(os.environ.get(name, "") for name in ("KINETIC_HOME", "HOME"))
    if setting not in _homes:
        _homes[setting] = settings.kinetic_home(os.environ)
    return _homes[setting]


def trusts_the_store() -> bool:
    """Return whether the user said to open what cannot be verified."""
    return settings.read_variable("KINETIC_TRUST_STORE", os.environ) == "1"


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


def key_ids() -> frozenset[str]:
    """Return the keys that are in this caller's own ring, without opening them."""
    try:
        return frozenset(os.listdir(home() / "keys"))
    except OSError:
        return frozenset()


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
        raise CredentialsError(
            what,
            why=f"{why} the key {key_id or '(none)'}, which is not in {home() / 'keys'}",
            next=f"on the machine that submitted it: kinetic key export {key_id}     then here: kinetic key import",
            code="key-missing-here",
        )
    return key


def can_be_seen(job: JobRecord) -> bool:
    """Return whether the job's processes can be asked about from here: on a cluster, from everywhere."""
    return not registry.is_here(job.backend) or is_here(job)


def is_here(job: JobRecord) -> bool:
    """Return whether this machine can see the job's processes."""
    return is_here_by(job.backend, job.host)


def is_here_by(backend: str, host: str | None) -> bool:
    """Return whether this machine can see the processes of the jobs of a backend and a host."""
    return registry.is_here(backend) and (not host or host == machine())


def hosts_of(job: JobRecord) -> int:
    """Return how many hosts a job has (count)."""
    from kinetic import _hardware as hardware

    return hardware.place(job.accelerator, multi_host=registry.spans_hosts(job.backend)).hosts


def is_supervised() -> bool:
    """Return whether a supervisor is alive or starting here. Who looked at the queue has recovered dead ones."""
    return bool(local().queue.supervisors())


def machine_of(backend: Backend) -> str:
    """Return the machine that sees a backend's jobs: this one, or "" where every machine does."""
    return machine() if backend.is_here else ""


def machine() -> str:
    """Return the word that stands for this machine among those that share a home."""
    setting = os.environ.get(_MACHINE, "")
    if setting not in _machines:
        _machines[setting] = settings.machine_id(os.environ)
    return _machines[setting]


LONGEST_NAME = "longest_name"  # beside the fields that all jobs of a submission share
_SHOWN = 80  # characters of what an unverified page says
_NAMED = 3  # in one line
_READERS = {
    **HANDLE,
    "spot": fields.boolean,
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
    """Read a page that names its key and the store it was written for; ``name`` is its job or batch."""
    page = documents.read_unverified(kind, store, at)
    if trusts_the_store():
        return documents.verify(kind, page, at, None)
    key_id, written_for = _text(page.get("key_id")), _text(page.get("store"))
    key = key_for(name, key_id, written_for)
    function = _text(page.get("func_name")) or _text(page.get("submit_fn_name"))
    untrusted = functools.partial(
        Untrusted, name, escaped(function), escaped(_text(page.get("created_at"))), escaped(key_id)
    )
    if key is None:
        why = f"it is sealed with the key {escaped(key_id) or '(none)'}, which is not in {home() / 'keys'}"
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


def read_outcome(job: JobRecord) -> Outcome | None:
    """Return the verdict of a job, or None while there is none; its key must be here if there is one."""
    return read_outcome_of(store_of(job), job.job_id, lambda: key_to_read(job))


def read_outcome_of(store: Store, job_id: str, key_of: Callable[[], bytes | None]) -> Outcome | None:
    """Return the verdict of a job, or None while there is none; its key is only looked up if there is one."""
    name = keys.result(job_id)
    size = store.size(name)
    if size is None:
        return None
    try:
        outcome = outcomes.read(size, lambda start, length: store.get(name, start=start, length=length), key_of())
    except KeyMissingError:  # removed between the two
        return None
    if outcome.job_id != job_id:
        raise IntegrityError(f"the result of {job_id} is about another job, {outcome.job_id}")
    return outcome


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


_SCHEMA = 1
_RECORD, _OUTCOME, _PAST = "record", "outcome", "past"
_ERROR_FIELDS = ("type", "message", "value_type")  # what a list shows; logs and tracebacks stay in the store
_WORTH_WRITING = 0.02  # of the entries: writing thousands again for each new job would cost more than it saves
_indexes: dict[Path, Index] = {}


def write_page(store: Store, fields: dict[str, Any], key: bytes, *, again: bool = False) -> bool:
    """Write the page of a job, once, sealed with the job's key; ``again`` replaces the page that is there."""
    at = keys.history(fields["job_id"])
    data = documents.seal_page(HISTORY, {"removed": time.time(), **fields, "store": store.url}, at, key)
    if store.put(at, data, if_absent=not again):
        return True
    return read_page(store, fields["job_id"]) is None and store.put(at, data)


def read_page(store: Store, job_id: str) -> dict[str, Any] | None:
    """Return the page of a job; None where there is none, or none that can be read and verified here.

    A forged page says nothing: neither that a job was removed, nor where its outputs are.
    """
    with contextlib.suppress(KeyMissingError, IntegrityError):
        page = open_claimed(HISTORY, store, keys.history(job_id), job_id)
        if not isinstance(page, Untrusted) and page["job_id"] == job_id:
            return page
    return None


def is_collected(page: Mapping[str, Any] | None) -> bool:
    """Return whether a page is of a job that was collected: then its log is kept, and it can be attached."""
    return page is not None and bool(page.get("collected"))


def page_entries(store: Store) -> Iterator[Entry]:
    """Yield the pages as a listing shows them, without what is kept beside them."""
    for entry in store.entries(keys.HISTORY):
        if not keys.job_of_history(entry.key):
            return
        yield entry


def page_ids(store: Store) -> set[str]:
    """Return the jobs that have a page; of a folder only the names are read."""
    if store.local is not None:
        with contextlib.suppress(OSError), folders.opened(store.local.root, keys.HISTORY) as at:
            names = (name.removesuffix(".json") for name in os.listdir(at) if name.endswith(".json"))
            return set(filter(keys.is_job_id, names))
    return set(filter(keys.is_job_id, (keys.job_of_history(entry.key) for entry in page_entries(store))))


def read_pages(store: Store) -> Iterator[dict[str, Any]]:
    """Yield every page that can be read and verified."""
    index = index_of(store, ".history")
    stamps = {keys.job_of_history(entry.key): (entry.size, entry.modified) for entry in page_entries(store)}
    for job_id in sorted(filter(keys.is_job_id, stamps)):
        page = index.past(job_id, stamps[job_id], functools.partial(read_page, store, job_id))
        if page is not None:
            yield page
    index.write(lambda: stamps)


def index_of(store: Store, part: str = "") -> Index:
    """Return the index of a store; where the user trusts a store unverified, one that knows and keeps nothing."""
    if trusts_the_store():
        return Index(None, store.url)
    path = home() / "index" / f"{hashlib.sha256(store.url.encode()).hexdigest()[:16]}{part}.json"
    if path not in _indexes:
        _indexes[path] = Index(path, store.url)
    _indexes[path].key_ids = key_ids()
    return _indexes[path]


class Index:
    """What is known of the jobs of one store; without a path it is not kept."""

    def __init__(self, path: Path | None, store_url: str) -> None:
        self._store, self._path = store_url, path
        self._jobs = {} if path is None else self._load(path)
        self._new = 0
        self.key_ids: frozenset[str] = frozenset()  # of this home, as they are now: what others sealed is not believed

    def record(self, job_id: str) -> dict[str, Any] | None:
        """Return the record of a job as it was verified; None where it must be read."""
        found = self._of(job_id).get(_RECORD)
        return found if isinstance(found, dict) and self._is_ours(found) else None

    def note_record(self, job_id: str, record: dict[str, Any]) -> None:
        """Keep a record that was read and verified."""
        self._note(job_id, _RECORD, record)

    def outcome(self, job_id: str) -> Outcome | None:
        """Return the verdict of a job, without its log and traceback; None where it must be read."""
        found = self._of(job_id).get(_OUTCOME)
        with contextlib.suppress(TypeError):  # of another version
            return Outcome(**found) if isinstance(found, dict) and self.record(job_id) is not None else None
        return None

    def note_outcome(self, job_id: str, outcome: Outcome) -> None:
        """Keep a verdict that was read and verified."""
        error = {name: outcome.error[name] for name in _ERROR_FIELDS if name in outcome.error}
        self._note(job_id, _OUTCOME, asdict(outcome) | {"phases": {}, "files": (), "error": error})

    def past(self, job_id: str, stamp: tuple[int, float], read: Callable[[], dict[str, Any] | None]) -> Any:
        """Return the page of the history of a job, and read it where size or time differ from the known one's."""
        found = self._of(job_id).get(_PAST)
        if isinstance(found, list) and tuple(found[:2]) == stamp and self._is_ours(found[2]):
            return found[2]
        page = read()
        if page is not None:
            self._note(job_id, _PAST, [*stamp, page])
        return page

    def write(self, listed: Callable[[], Iterable[str]]) -> None:
        """Write what is new, once it is worth it, and drop the jobs that the store no longer lists."""
        if self._path is None or self._new <= _WORTH_WRITING * len(self._jobs):
            return
        kept = set(listed())
        page = {name: page for name, page in [*self._jobs.items()] if name in kept}
        data = json.dumps({"schema": _SCHEMA, "store": self._store, "jobs": page}).encode()
        with contextlib.suppress(OSError):  # a full or read-only disk: then the next list reads the store
            folders.write_whole(self._path, data)
            self._new = 0

    def _of(self, job_id: str) -> dict[str, Any]:
        found = self._jobs.get(job_id)
        return found if isinstance(found, dict) else {}

    def _note(self, job_id: str, kind: str, page: object) -> None:
        self._jobs[job_id] = {**self._of(job_id), kind: page}
        self._new += 1

    def _is_ours(self, page: object) -> bool:
        return isinstance(page, dict) and page.get("key_id") in self.key_ids

    def _load(self, path: Path) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            page = json.loads(path.read_bytes())
            if isinstance(page, dict) and page.get("schema") == _SCHEMA and page.get("store") == self._store:
                return dict(page["jobs"]) if isinstance(page.get("jobs"), dict) else {}
        return {}
