"""Whether a bucket creates objects only where none is, on which results rest: asked before the first job goes there."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial

from kinetic._stores import open_store, parallel, store_errors
from kinetic._stores.bucket import BucketStore
from kinetic._stores.protocol import RESERVED_FOLDER, Store
from kinetic.errors import KineticError

PROBE = f"{RESERVED_FOLDER}/probe-4"
PROBE_CONTENT = b"kinetic tests here that this service creates objects only where none is. Safe to delete.\n"
RACE = f"{RESERVED_FOLDER}/race-"
_AT_ONCE = 8  # requests: of Swift 2.38, some five of them created the same object
_ROUNDS = 8  # S3Mock 5.2 creates an object twice in every second round, so it passes one of 250 times

_proven: set[str] = set()
_proven_lock = threading.Lock()


@contextlib.contextmanager
def begun(url: str) -> Iterator[Callable[[], Store]]:
    """Open a bucket and ask it while the block asks a cluster; what is yielded waits for the answer.

    The first request of a process takes long: it gets credentials, and connects.
    """
    if url in _proven:
        yield partial(open_store, url)
        return
    pool: parallel.ThreadPool[Store] = parallel.ThreadPool(1)
    pool.give(partial(_open, url))
    try:
        yield pool.take
    finally:
        pool.dismiss()


def _open(url: str) -> Store:
    store = open_store(url)
    check_conditional_writes(store)
    return store


def check_conditional_writes(store: Store) -> None:
    """Prove once per process that this store refuses to create an object that exists.

    Once a bucket has passed, the probe stays there. So the question costs one small request, whose refusal is the
    proof. Only the very first on a bucket costs more: it also has several requests create other objects at the same
    time.

    Raises:
        StoreError: An object was created twice: two jobs, or two attempts of one, could overwrite each other's results.
    """
    if not isinstance(store, BucketStore) or store.url in _proven:
        return
    if store.put(PROBE, PROBE_CONTENT, if_absent=True):
        _check_first(store)
    with _proven_lock:
        _proven.add(store.url)


def _check_first(store: BucketStore) -> None:
    with contextlib.suppress(KineticError):
        store.delete(PROBE)  # until all is proven: where this process ends meanwhile, the next one asks again
    folder = f"{RACE}{os.urandom(8).hex()}/"  # of this process: others may ask at the same time

    def create(name: object) -> bool:
        return store.put(f"{folder}{name}", PROBE_CONTENT, if_absent=True)

    try:
        if create("first") and create("first"):
            raise store_errors.unconditional(store.url, store_errors.TWICE)
        for number in range(_ROUNDS):
            if sum(parallel.in_parallel(store, [partial(create, number)] * _AT_ONCE, limit=_AT_ONCE)) > 1:
                raise store_errors.unconditional(store.url, "requests at the same time created the same object")
    finally:
        with contextlib.suppress(KineticError):
            store.delete(folder)
    store.put(PROBE, PROBE_CONTENT)
