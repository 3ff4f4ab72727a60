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

from kinetic import _settings as settings
from kinetic._cli.main import cli
from kinetic._jobs import places, record
from kinetic._jobs.handle import JobHandle
from kinetic._settings import keyring
from kinetic._stores.files import FileStore
from kinetic._wire import digests, keys, names, seal
from kinetic._wire.outcome import Outcome

Kinetic = Callable[..., Result]
DAY = 24 * 3600.0


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
def made_job(home: Path) -> Callable[..., str]:
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
        **more,
    ) -> str:
        when = time.time() - days * DAY
        job_id = names.new_job_id("cpu", f"{function}-{next(number)}", now=when)
        key_id, own = keyring.own_key(settings.ensure_home(os.environ))
        key, store = seal.job_key(own, job_id), FileStore(home / "store")
        handle = JobHandle(
            job_id=job_id,
            backend="local",
            project="local",
            cluster_name="local",
            zone="local",
            namespace="default",
            bucket_name=str(home / "store"),
            k8s_name=f"kinetic-{job_id}",
            image_uri="",
            accelerator="cpu",
            func_name=function,
            display_name=function,
            created_at=names.utc(when),
            store=store.url,
            host=places.machine(),
            key_id=key_id,
        )
        store.put(keys.record(job_id), record.to_bytes(handle.to_dict(), {}, key))
        if log:
            store.put(keys.log_segment(job_id, 0, 0, 0), log.encode())
        if status:
            body = pickle.dumps(value) if status == "succeeded" else b""
            verdict = Outcome(
                job_id,
                status,
                body_length=len(body),
                body_sha256=digests.of_bytes(body),
                started=when - 2,
                ended=when,
                **{"cause": "value" if body else status, **more},
            )
            store.put(keys.result(job_id), body + verdict.footer(key))
        return job_id

    return make
