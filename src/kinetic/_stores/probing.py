"""Whether a store keeps the one promise that not every service keeps: to create an object only if none is there."""

from __future__ import annotations

import threading

from kinetic._stores.naming import OWN
from kinetic._stores.protocol import Store
from kinetic.errors import StoreError

PROBE = f"{OWN}/probe-1"
PAGE = b"kinetic asks here whether this service creates objects only where none is. Safe to delete.\n"

_proven: set[str] = set()
_lock = threading.Lock()


def check(store: Store) -> None:
    """Prove once per process that this store refuses to create what is there already.

    The probe stays where it is. So the question costs one small request, whose refusal is the proof; only the very
    first on a bucket costs two.

    Raises:
        StoreError: It overwrote the probe: two jobs, or two attempts of one, could overwrite each other's results.
    """
    if store.url.startswith(("file://", "memory://")) or store.url in _proven:
        return
    created = store.put(PROBE, PAGE, if_absent=True) and store.put(PROBE, PAGE, if_absent=True)
    if created:
        raise refusal(store.url, "an object was created a second time under the same key")
    with _lock:
        _proven.add(store.url)


def refusal(url: str, why: str) -> StoreError:
    """Say that a store cannot be used."""
    return StoreError(
        f"{url} ignores conditional writes, so results in it could be lost",
        why=why,
        next="use a service that honours If-None-Match (Amazon S3, Cloud Storage, MinIO and Ceph of 2024 or later)",
        code="store-unconditional",
    )
