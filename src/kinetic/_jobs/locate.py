"""From a job to its store, backend and key: always this caller's own key, never one that a record points to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kinetic import _config as settings
from kinetic import _output as output
from kinetic._backends import registry
from kinetic._backends.registry import Address
from kinetic._config import keyring
from kinetic._stores import open_store
from kinetic._wire import documents, folders
from kinetic.errors import CredentialsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetic._backends.local.backend import LocalBackend
    from kinetic._backends.protocol import Backend
    from kinetic._config import Target
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import Group, JobRecord


_MACHINE = "KINETIC_MACHINE_ID"
_runtimes: dict[tuple[str, ...], Path] = {}
_machines: dict[str, str] = {}


def local() -> LocalBackend:
    """Return the backend of this machine."""
    return cast("LocalBackend", _open(registry.HERE.name, Address()))  # it is the one whose queue can be asked


def backend_at(target: Target, *, strict: bool = False) -> Backend:
    """Return the backend that a target names; strict where the user asked for it by name.

    Raises:
        BackendUnavailableError: What it needs is not installed here.
    """
    address = Address(
        target.project.value, target.zone.value, target.cluster.value, target.namespace.value, target.context.value
    )
    return _open(target.backend.value, address, strict=strict)


def backend_of(job: JobRecord) -> Backend:
    """Return the backend that a job runs on; see above. An unknown name is an OptionError."""
    return backend_for(vars(job))


def backend_for(fields: Mapping[str, Any]) -> Backend:
    """Return the backend that the fields of a job name; see ``backend_of``."""
    named = ("project", "zone", "cluster_name", "namespace", "context")
    return _open(fields["backend"], Address(*(str(fields.get(name) or "") for name in named)))


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


def home() -> Path:
    """Return this caller's kinetic home."""
    return settings.kinetic_home(os.environ)


def trusts_the_store() -> bool:
    """Return whether the user said to open what cannot be verified."""
    return settings.read_variable("KINETIC_TRUST_STORE", os.environ) == "1"


def key_for(name: str, key_id: str, store_url: str) -> bytes | None:
    """Return the key of a job or a batch in a store, from this caller's own ring, or None."""
    found = namespace_key(key_id)
    return documents.job_key(found, name, store_url) if found is not None else None


def namespace_key(key_id: str) -> bytes | None:
    """Return a key of this caller's own ring, or None."""
    return keyring.find_key(home(), key_id) if key_id else None


def key_ids() -> frozenset[str]:
    """Return the keys that are in this caller's own ring, without opening them."""
    try:
        return frozenset(os.listdir(home() / "keys"))
    except OSError:
        return frozenset()


def key_to_read(job: JobRecord) -> bytes | None:
    """Return the key without which no page of a job is believed; None only when the user trusts the store.

    Raises:
        CredentialsError: The key is not on this machine.
    """
    return _needed(job.job_id, job.key_id or "", store_of(job).url)


def key_to_seal(job: JobRecord) -> bytes:
    """Return the key that seals what this caller writes about a job; see above."""
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
    """Return the key that opens a job's debug server.

    Raises:
        CredentialsError: The key is not on this machine.
    """
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
    return registry.is_here(job.backend) and (not job.host or job.host == machine())


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
