"""Doubting what a store promised: after a job found its data missing or damaged, the next submission must send it anew.

A young manifest is believed without a look at its blobs: that is what makes unchanged data cost one request. So when a
job says that a blob is gone or is not what its name says, somebody has to look at all of them, once.
"""

from __future__ import annotations

import functools

from kinetic._data import reusing
from kinetic._stores.protocol import Store
from kinetic._stores.transfer import in_parallel
from kinetic._wire import digests, keys
from kinetic._wire.data import DataRef
from kinetic.errors import KeyMissingError

_LANES = 4  # each holds a chunk in memory


def recheck(ref: DataRef, store: Store) -> int:
    """Read every blob that a reference relies on; remove those that are damaged, and the manifest that promises them.

    What is removed is of no use to anybody: a blob is damaged when its bytes are not those that it is named after.
    Data that a job has no manifest of (plain objects for a mount) loses its marker, so that sizes are compared anew.

    Args:
        ref: Shipped data, from the order of the job that failed.
        store: The store at ``ref.uri``.

    Returns:
        How many promises were broken; 0 when everything is as it should be, so that the fault lies elsewhere.
    """
    if ref.kind != "shipped":
        return store.delete(keys.data_tree_marker(ref.hash)) if ref.hash else 0
    promise = keys.data_manifest(ref.hash, ref.manifest)
    manifest = reusing.read(store, ref.hash, ref.manifest)
    if manifest is None:
        store.delete(promise)
        return 1
    tasks = (functools.partial(_is_broken, store, blob, size) for blob, size in manifest.blobs().items())
    broken = sum(in_parallel(store, tasks, limit=_LANES))
    if broken:
        store.delete(promise)
    return broken


def _is_broken(store: Store, blob: str, size: int) -> bool:
    key = keys.data_blob(blob)
    try:
        data = store.get(key)
    except KeyMissingError:
        return True
    if len(data) >= size and digests.of_bytes(data) == blob:
        return False
    store.delete(key)
    return True
