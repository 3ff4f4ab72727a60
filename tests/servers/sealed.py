"""Pages as this caller's own kinetic seals them, for tests that put one into a store by hand."""

from __future__ import annotations

from typing import Any

from kinetic._jobs import places, tombstones
from kinetic._settings import keyring
from kinetic._stores.protocol import Store
from kinetic._wire import keys, pages, seal
from kinetic._wire.handles import HISTORY


def put_history(store: Store, fields: dict[str, Any]) -> None:
    """Write the page of a removed job, sealed with the key of this home."""
    places.home().mkdir(parents=True, exist_ok=True)
    key_id, key = keyring.own_key(places.home())
    sealing_key = seal.job_key(key, fields["job_id"], store.url)
    tombstones.write(store, {**fields, "key_id": key_id}, sealing_key)


def put_sealed(store: Store, at: str, page: dict[str, Any]) -> None:
    """Write a page of the history as it is, whatever is wrong with it, under a seal that is right."""
    key_id, key = keyring.own_key(places.home())
    whole = {"schema": pages.SCHEMA, "key_id": key_id, "store": store.url, **page}
    sealing_key = seal.job_key(key, keys.job_of_history(at), store.url)
    store.put(at, pages.write(seal.sealed(whole, sealing_key, seal.bound(HISTORY.name, at))))
