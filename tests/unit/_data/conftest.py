"""What tests of data share: trees, a store that counts requests, and a reader that knows nothing but the manifest."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from kinetic._blobs import sender
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic._wire import folders, keys
from kinetic._wire.order import Manifest


class Watched:
    """A store that notes what it is asked, and can be told to interfere."""

    def __init__(self, store) -> None:
        self.store = store
        self.url, self.local = store.url, store.local
        self.asked: list[tuple[str, str]] = []
        self.before_put = lambda key: None
        self._lock = threading.Lock()

    def __getattr__(self, name):
        found = getattr(self.store, name)

        def watched(key, *arguments, **options):
            with self._lock:
                self.asked.append((name, key))
            if name == "put":
                self.before_put(key)
            return found(key, *arguments, **options)

        return watched

    def take(self) -> list[tuple[str, str]]:
        """Return what was asked since the last time."""
        asked, self.asked = self.asked, []
        return asked

    def sent(self) -> list[str]:
        """Return the keys that were written since the last time."""
        return [key for name, key in self.take() if name == "put"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KINETIC_JOB_ID", raising=False)
    return tmp_path / "home"


@pytest.fixture
def cache(home) -> Path:
    return home / "cache"


@pytest.fixture(params=["files", "memory"])
def store(request, tmp_path) -> Watched:
    plain = FileStore(tmp_path / "store") if request.param == "files" else MemoryStore(os.urandom(4).hex())
    return Watched(plain)


@pytest.fixture
def memory() -> Watched:
    """A store in which data can be mounted only as objects."""
    return Watched(MemoryStore(os.urandom(4).hex()))


@pytest.fixture
def little(monkeypatch) -> None:
    """Packs of 1000 bytes, and chunks of 300 for files of 400 bytes and more."""
    monkeypatch.setattr(sender, "SMALL_BYTES", 400)
    monkeypatch.setattr(sender, "PACK_BYTES", 1000)
    monkeypatch.setattr(sender, "CHUNK_BYTES", 300)


@pytest.fixture
def calm(monkeypatch) -> None:
    """Trust files however new they are, which one would otherwise have to wait for."""
    monkeypatch.setattr(folders, "_RECENT_NS", -(10**18))
    monkeypatch.setattr(folders, "_RECENT_COARSE_NS", -(10**18))


@pytest.fixture
def busy(monkeypatch) -> None:
    """Take files of this test for new, however long the machine needs from their writing to the look at them."""
    monkeypatch.setattr(folders, "_RECENT_NS", 10**12)
    monkeypatch.setattr(folders, "_RECENT_COARSE_NS", 10**12)


@pytest.fixture
def fill():
    def filled(root: Path, files: dict[str, bytes]) -> Path:
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        return root

    return filled


@pytest.fixture
def fetched():
    """Rebuild shipped data as paths and contents, checking every digest on the way."""

    def fetch(store, ref) -> dict[str, bytes | None]:
        page = store.get(keys.data_manifest(ref.hash, ref.manifest))
        manifest = Manifest.from_bytes(page, sha256=ref.manifest)
        found: dict[str, bytes | None] = dict.fromkeys(manifest.folders)
        for file in manifest.files:
            blobs = [(part, store.get(keys.data_blob(part.blob))) for part in file.parts]
            assert all(hashlib.sha256(blob).hexdigest() == part.blob for part, blob in blobs)
            content = b"".join(blob[part.offset : part.offset + part.length] for part, blob in blobs)
            assert hashlib.sha256(os.fsencode(file.path) + b"\0" + content).hexdigest() == file.digest
            found[file.path] = content
        return found

    return fetch


@pytest.fixture
def age():
    """Make objects of a store look older."""

    def aged(store, prefix: str, seconds: float) -> None:
        plain = store.store
        for entry in list(plain.entries(prefix)):
            then = time.time() - seconds
            if isinstance(plain, FileStore):
                os.utime(plain.root / entry.key, (then, then))
            else:
                folder, slash, name = entry.key.rpartition("/")
                found = plain._folder(folder + slash)
                found[name] = (found[name][0], then)

    return aged
