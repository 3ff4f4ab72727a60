"""Layers in the store: what a submission relies on is not removed as unused."""

from __future__ import annotations

import os
import time

from kinetic._images import stored_layers
from kinetic._images.stored_layers import StoredLayer
from kinetic._stores.files import FileStore
from kinetic._wire import keys

DAY = 24 * 3600.0


def test_a_list_of_layers_that_is_used_is_made_young_with_its_layers(tmp_path) -> None:
    store, environ = FileStore(tmp_path / "store"), {"KINETIC_HOME": str(tmp_path / "home")}
    layer = StoredLayer(keys.layer("a" * 64), "a" * 64, 5)
    store.put(layer.key, b"12345")
    stored_layers._write("lock", (layer,), store, environ)
    for key in (layer.key, keys.layer_list("lock")):
        os.utime(store.root / key, (time.time() - 59 * DAY, time.time() - 59 * DAY))

    assert stored_layers._read("lock", store, environ) == (layer,)

    assert all(time.time() - store.entry(key).modified < DAY for key in (layer.key, keys.layer_list("lock")))


def test_a_list_whose_layer_was_removed_is_not_believed(tmp_path) -> None:
    store, environ = FileStore(tmp_path / "store"), {"KINETIC_HOME": str(tmp_path / "home")}
    stored_layers._write("lock", (StoredLayer(keys.layer("a" * 64), "a" * 64, 5),), store, environ)

    assert stored_layers._read("lock", store, environ) is None
