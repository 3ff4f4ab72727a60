"""Pages as this caller's own kinetic seals them, for tests that put one into a store by hand."""

from __future__ import annotations

from typing import Any

from kinetic._config import home
from kinetic._jobs import locate
from kinetic._stores.protocol import Store
from kinetic._wire import documents, keys
from kinetic._wire.records import HISTORY


def put_history(store: Store, fields: dict[str, Any]) -> None:
    """Write the page of a removed job, sealed with the key of this home."""
    locate.home().mkdir(parents=True, exist_ok=True)
    key_id, key = home.own_key(locate.home())
    sealing_key = documents.job_key(key, fields["job_id"], store.url)
    locate.write_page(store, {**fields, "key_id": key_id}, sealing_key)


def put_sealed(store: Store, at: str, page: dict[str, Any]) -> None:
    """Write a page of the history as it is, whatever is wrong with it, under a seal that is right."""
    key_id, key = home.own_key(locate.home())
    whole = {"schema": documents.SCHEMA, "key_id": key_id, "store": store.url, **page}
    sealing_key = documents.job_key(key, keys.job_of_history(at), store.url)
    store.put(at, documents.write(documents.with_seal(whole, sealing_key, documents.seal_purpose(HISTORY.name, at))))
