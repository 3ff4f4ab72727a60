"""The command line in this process, with a home of its own."""

from __future__ import annotations

import itertools
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kinetic._batches import tracker
from kinetic._cli.main import cli
from kinetic._config import home as config_home
from kinetic._config import target as settings
from kinetic._jobs import locate
from kinetic._jobs.handle import JobHandle
from kinetic._stores.files import FileStore
from kinetic._stores.protocol import Store
from kinetic._wire import digests, documents, keys, records
from kinetic._wire.input_table import Input, Table
from kinetic._wire.order import Artifact
from kinetic._wire.outcomes import Outcome
from kinetic._wire.records import Group, Settings

Kinetic = Callable[..., Result]
DAY = 24 * 3600.0
_buckets = itertools.count()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [*os.environ]:
        if name.startswith("KINETIC_") or name in {"GOOGLE_CLOUD_PROJECT", "NO_COLOR"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("KINETIC_PROFILE", "")  # so that what --profile sets is taken back after the test
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def kinetic(home: Path) -> Kinetic:
    """Return a function that runs a command line and returns its exit code and what it printed."""

    def run(*words: str, **more: object) -> Result:
        return CliRunner().invoke(cli, list(words), prog_name="kinetic", **more)

    return run


@pytest.fixture
def store(home: Path) -> Store:
    """Return the store of this caller's jobs; modules that attack a store say ``folder_or_bucket`` instead."""
    return FileStore(home / "store")


@pytest.fixture
def made_job(home: Path, store: Store) -> Callable[..., str]:
    """Return a function that puts a job into the store as it lies there once it has ended; it returns the id.

    ``status`` is "succeeded", "failed", "cancelled", or "" for a job without a verdict; ``days`` how long ago it ended.
    """
    number = itertools.count()

    def make(
        status: str = "succeeded",
        *,
        function: str = "train",
        days: float = 0.0,
        value: object = 7,
        log: str = "",
        accelerator: str = "cpu",
        image_uri: str = "",
        backend: str = "local",
        zone: str = "local",
        name: str | None = None,
        **more,
    ) -> str:
        when = time.time() - days * DAY
        job_id = keys.new_job_id("cpu", f"{function}-{next(number)}", now=when)
        key_id, own = config_home.own_key(settings.ensure_home(os.environ))
        key = documents.job_key(own, job_id, store.url)
        handle = JobHandle(
            job_id=job_id,
            backend=backend,
            project="local",
            cluster_name="local",
            zone=zone,
            namespace="default",
            bucket_name=store.url,
            k8s_name=f"kinetic-{job_id}",
            image_uri=image_uri,
            accelerator=accelerator,
            func_name=function,
            display_name=function,
            created_at=keys.format_utc(when),
            store=store.url,
            host=locate.machine() if backend == "local" else None,
            key_id=key_id,
            name=name,
        )
        store.put(keys.record(job_id), locate.seal_record(records.plain(handle), {}, key))
        if log:
            store.put(keys.log_segment(job_id, 0, 0, 0), log.encode())
            hasher = digests.LogHasher()
            hasher.update(log.encode())
            more = {"logs": (hasher.digest(0, 0),), **more}
        if status:
            body = pickle.dumps(value) if status == "succeeded" else b""
            verdict = Outcome(
                job_id,
                status,
                body_length=len(body),
                body_sha256=digests.of_bytes(body),
                **{"cause": "value" if body else status, "started": when - 2, "ended": when, **more},
            )
            store.put(keys.result(job_id), body + verdict.footer(key))
        return job_id

    return make


@pytest.fixture
def made_batch(home: Path, store: Store) -> Callable[..., str]:
    """Return a function that puts a batch into the store as it lies there once its jobs have ended; it returns the id.

    ``states`` has a word for each input: "succeeded", "failed", "cancelled", or "" for one that was not submitted.
    """

    def make(
        *states: str, name: str | None = None, created: float | None = None, tags: dict[str, str] | None = None
    ) -> str:
        when = time.time() if created is None else created
        group_id = keys.new_group_id()
        key_id, own = config_home.own_key(settings.ensure_home(os.environ))
        table = Table(tuple(Input(f"x={index}", Artifact.within(b"")) for index in range(len(states))))
        group = Group(
            group_id=group_id,
            group_name=name,
            tags=tags or {},
            created=when,
            total_expected=len(states),
            submit_fn_name="train",
            slug="cpu",
            handle={
                "backend": "local",
                "project": "local",
                "cluster_name": "local",
                "zone": "local",
                "namespace": "default",
                "bucket_name": store.url,
                "image_uri": "",
                "accelerator": "cpu",
                "func_name": "train",
                "created_at": keys.format_utc(when),
                "store": store.url,
                "host": locate.machine(),
                "key_id": key_id,
            },
            more={},
            settings=Settings(),
            order_sha256="0" * 64,
            table_sha256=digests.of_bytes(table.to_bytes()),
            outputs=f"{store.url}/outputs",
            key_id=key_id,
        )
        store.put(keys.group_table(group_id), table.to_bytes())
        store.put(keys.group_manifest(group_id), group.to_bytes(documents.job_key(own, group_id, store.url)))
        for index, status in enumerate(states):
            if status:
                _end_child(store, group, index, status, own)
        return group_id

    return make


def _end_child(store: FileStore, group: Group, index: int, status: str, own: bytes) -> None:
    """Put one child of a batch into the store, with its log, its verdict and its mark."""
    handle = tracker.record_of(group, index, 0)
    key = documents.job_key(own, handle.job_id, store.url)
    group_key = documents.job_key(own, group.group_id, store.url)
    store.put(documents.sealed_name(keys.children_of(group.group_id, range(index, index + 1), 0), "", group_key), b"")
    store.put(keys.record(handle.job_id), locate.seal_record(records.plain(handle), {}, key))
    store.put(keys.log_segment(handle.job_id, 0, 0, 0), f"log of {index}\n".encode())
    body = pickle.dumps(index * 10) if status == "succeeded" else b""
    verdict = Outcome(
        handle.job_id,
        status,
        cause="value" if body else "exception",
        error={} if body else {"type": "ValueError", "message": f"no {index}"},
        body_length=len(body),
        body_sha256=digests.of_bytes(body),
        started=group.created,
        ended=group.created + 2,
    )
    store.put(keys.result(handle.job_id), body + verdict.footer(key))
    store.put(documents.sealed_name(keys.mark(group.group_id, index, 0), status, key), b"")
