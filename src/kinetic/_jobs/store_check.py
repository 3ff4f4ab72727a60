"""Whether a bucket creates objects only where none is, on which results rest: asked before the first job goes there."""

from __future__ import annotations

import threading

from kinetic._stores import store_errors
from kinetic._stores.bucket import BucketStore
from kinetic._stores.protocol import RESERVED_FOLDER, Store

PROBE = f"{RESERVED_FOLDER}/probe-2"
PROBE_CONTENT = b"kinetic tests here that this service creates objects only where none is. Safe to delete.\n"

_proven: set[str] = set()
_proven_lock = threading.Lock()


def check_conditional_writes(store: Store) -> None:
    """Prove once per process that this store refuses to create an object that exists.

    The probe stays where it is. So the question costs one small request, whose refusal is the proof; only the very
    first on a bucket costs more.

    Raises:
        StoreError: It overwrote the probe: two jobs, or two attempts of one, could overwrite each other's results.
    """
    if not isinstance(store, BucketStore) or store.url in _proven:
        return
    if store.put(PROBE, PROBE_CONTENT, if_absent=True) and store.put(PROBE, PROBE_CONTENT, if_absent=True):
        raise store_errors.unconditional(store.url, store_errors.TWICE)
    with _proven_lock:
        _proven.add(store.url)
