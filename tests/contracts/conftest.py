"""The stores that the contract suite is asked of, and the servers behind them.

One server of each kind per worker, one fresh bucket per test. S3 is moto, and Azure is Azurite, Microsoft's emulator,
in processes of their own. Cloud Storage is
``servers/gcs.py``, ours, on a thread: its docstring says why no emulator serves, and a test compares it with
Google's own client. Listings come in pages of seven, so that nearly every one has several.
"""

from __future__ import annotations

import itertools
import os

import pytest
from servers import azurite as azurite_server

from kinetic._stores import protocol
from kinetic._stores.bucket import BucketStore
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic._stores.parallel import Retry

PAGE_SIZE = 7
QUICK = Retry(attempts=4, first_seconds=0.01, most_seconds=0.02, total_seconds=5)
# The fixture of a service, the variable that says where it is, and what follows in it.
SERVERS = {
    "s3": ("s3_server", "AWS_ENDPOINT_URL", ""),
    "gcs": ("gcs_server", "STORAGE_EMULATOR_HOST", ""),
    "azure": ("azurite", "AZURE_STORAGE_ENDPOINT", "/devstoreaccount1"),
}
_numbers = itertools.count()


@pytest.fixture(scope="session")
def gcs_server():
    from servers.gcs import GcsServer

    server = GcsServer().start()
    server.page_size = PAGE_SIZE
    yield server
    server.close()


@pytest.fixture(scope="session")
def s3_server():
    from servers.moto_s3 import MotoServer

    server = MotoServer(PAGE_SIZE)
    yield server
    server.close()


@pytest.fixture(scope="session")
def azurite():
    with azurite_server.started() as server:
        yield server


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    """Nothing of this machine's accounts is seen."""
    for name in protocol.CREDENTIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))


@pytest.fixture
def make_store(request, tmp_path, monkeypatch, no_credentials):
    """Return a function from the kind of a store to a new, empty one."""

    def make(kind, retry=QUICK):
        if kind == "files":
            return FileStore(tmp_path / "store")
        if kind == "memory":
            return MemoryStore(os.urandom(4).hex())
        bucket = f"bucket-{os.getpid()}-{next(_numbers)}"
        if kind == "s3":
            server = request.getfixturevalue("s3_server")
            for name, value in server.environment().items():
                monkeypatch.setenv(name, value)
            server.bucket(bucket)
            return BucketStore(f"s3://{bucket}/some/prefix", retry=retry)
        if kind == "azure":
            server = request.getfixturevalue("azurite")
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", server.connection_string)
            server.container(bucket)
            return BucketStore(f"az://{bucket}/some/prefix", retry=retry)
        server = request.getfixturevalue("gcs_server")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.bucket(bucket)
        return BucketStore(f"gs://{bucket}/some/prefix", retry=retry)

    return make


@pytest.fixture
def faulty(request, make_store, monkeypatch):
    """Return a function from the kind of a cloud store to a new one, and the proxy between it and its server."""
    from servers.faults import FaultyProxy

    proxies = []

    def make(kind, retry=QUICK):
        straight = make_store(kind)
        straight.size("a")  # it finds its server in the environment, with its first request
        fixture, variable, path = SERVERS[kind]
        proxy = FaultyProxy(request.getfixturevalue(fixture).url)
        proxies.append(proxy)
        monkeypatch.setenv(variable, proxy.url + path)
        return type(straight)(straight.url, retry=retry), proxy, straight

    yield make
    for proxy in proxies:
        proxy.close()
