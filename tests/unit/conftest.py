"""Stores that tests of many rooms ask for."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.gcs import GcsServer

from kinetic._stores import Store, open_store, protocol
from kinetic._stores.files import FileStore

_buckets = itertools.count()


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[GcsServer]:
    with contextlib.closing(GcsServer().start()) as server:
        yield server


@pytest.fixture(params=["folder", "bucket"])
def folder_or_bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return an empty store; each test that asks for it runs twice, on a folder and on a bucket of a real server."""
    if request.param == "folder":
        return FileStore(tmp_path / "home" / "store")
    for name in protocol.CREDENTIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    server, name = request.getfixturevalue("bucket_server"), f"shared-{os.getpid()}-{next(_buckets)}"
    server.bucket(name)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    return open_store(f"gs://{name}/jobs")
