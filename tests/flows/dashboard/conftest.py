"""A dashboard that runs, as a process of its own; and stores with many jobs, written as jobs leave them."""

from __future__ import annotations

import http.client
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import browser as browsers
import pytest

from kinetic._config import home as config_home
from kinetic._config import target as settings
from kinetic._jobs import locate
from kinetic._jobs.handle import JobHandle
from kinetic._wire import digests, documents, keys, records
from kinetic._wire.measurements import Device, Measurements
from kinetic._wire.outcomes import Outcome

SOURCE = Path(__file__).parents[3] / "src"


class Served:
    """A dashboard: its address, and requests to it as its own page sends them."""

    def __init__(self, process: subprocess.Popen[str], page: dict[str, Any]) -> None:
        self.process, self.url, self.port = process, str(page["url"]), int(page["port"])
        self.origin = f"http://127.0.0.1:{self.port}"
        self.cookie = ""
        self.cookie = self.ask(self.url.removeprefix(self.origin))[1]["set-cookie"].partition(";")[0]

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Send a request; a header that is "" is left out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        given = {"Cookie": self.cookie}
        given |= {"Origin": self.origin} if method != "GET" else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.putrequest(method, path, skip_host="Host" in given)
            for name, value in given.items():
                if value:
                    connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return a page of the API."""
        status, _, body = self.ask(f"/api/v1{path}")
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str) -> Any:
        """Do something, as its own page does."""
        status, _, body = self.ask(f"/api/v1{path}", "POST")
        assert status == 200, body
        return json.loads(body)

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", f"/api/v1{path}", headers={"Cookie": self.cookie})
        answer = connection.getresponse()
        try:
            while text := answer.readline():
                if text.startswith(b"data: "):
                    yield json.loads(text[6:])
        finally:
            connection.close()

    def end(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit code and what it wrote to stderr."""
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=20)
        return self.process.returncode, err


@pytest.fixture
def dashboard(home, tmp_path) -> Iterator[Callable[..., Served]]:
    """Return a function that starts a dashboard, which ends with the test."""
    pytest.importorskip("uvicorn", reason="the extra dashboard is not installed")
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> Served:
        process = subprocess.Popen(
            [sys.executable, "-m", "kinetic", "dashboard", "--no-open", "--json-url", *(words or ("--port", "0"))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        started.append(process)
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            text += line
        return Served(process, json.loads(text))

    yield start
    for process in started:
        process.kill()
        process.communicate()


def measured(*, gpus: int = 0, kind: str = "gpu", seconds: int = 100) -> Measurements:
    """Return what a host used that was measured every second: a memory that grows to 8 GB, and GPUs that wait."""
    devices = tuple(Device(kind, "NVIDIA H100 80GB", 80 * 10**9) for _ in range(gpus))
    rows = [
        (
            float(second),
            1.5 * second,
            8 * 10**9 * second // seconds,
            10**6 * second,
            2 * 10**6 * second,
            4 * 10**10,
            *(value for gpu in range(gpus) for value in ([50.0 + gpu, None][second % 9 == 0], 7 * 10**10)),
        )
        for second in range(1, seconds + 1)
    ]
    return Measurements(
        "cpu-x",
        0,
        0,
        1.8e9,
        "cgroup",
        4.0,
        16 * 10**9,
        10**11,
        devices,
        float(seconds),
        150.0,
        3.2,
        9 * 10**9,
        tuple(rows),
    )


class StoredJobs:
    """Writes jobs into the store of this machine as they are once they have ended, without running them."""

    def __init__(self, home: Path) -> None:
        self.store = locate.local_store()
        self.root = home / "store"
        self._key_id, self._own = config_home.own_key(settings.ensure_home(os.environ))
        self._number = 0

    def add(
        self,
        status: str = "succeeded",
        *,
        function: str = "train",
        value: object = 7,
        log: bytes = b"",
        error: dict[str, str] | None = None,
        usage: Sequence[Measurements] = (),
        accelerator: str = "cpu",
        after: list[str] | None = None,
    ) -> str:
        """Write one job, and return its id."""
        self._number += 1
        when = time.time() - self._number
        job_id = keys.new_job_id("cpu", "made", now=when)
        key = documents.job_key(self._own, job_id, self.store.url)
        handle = JobHandle(
            **dict.fromkeys(("backend", "project", "cluster_name", "zone"), "local"),
            job_id=job_id,
            namespace="default",
            bucket_name=self.store.url,
            k8s_name=f"kinetic-{job_id}",
            image_uri="",
            accelerator=accelerator,
            func_name=function,
            display_name=function,
            created_at=keys.format_utc(when),
            store=self.store.url,
            host=locate.machine(),
            key_id=self._key_id,
            after=after,
        )
        self._write(keys.record(job_id), locate.seal_record(records.plain(handle), {}, key))
        hasher = digests.LogHasher()
        for start in range(0, len(log), 1 << 20):
            part = log[start : start + (1 << 20)]
            hasher.update(part)
            self._write(keys.log_segment(job_id, 0, 0, start), part)
        body = pickle.dumps(value) if status == "succeeded" else b""
        verdict = Outcome(
            job_id,
            status,
            body_length=len(body),
            body_sha256=digests.of_bytes(body),
            started=when - 2,
            ended=when,
            cause="value" if body else "exception",
            error=error or {},
            key_id=self._key_id,
            logs=(hasher.digest(0, 0),) if log else (),
        )
        self._write(keys.result(job_id), body + verdict.footer(key))
        for host, measured in enumerate(usage):
            page = replace(measured, job_id=job_id, host=host)
            self._write(keys.usage(job_id, 0, host), page.to_bytes(key))
        return job_id

    def write_output(self, job_id: str, name: str, data: bytes) -> None:
        """Write a file into the output folder of a job."""
        self._write(f"{keys.outputs(job_id)}{name}", data)

    def _write(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def stored(home) -> StoredJobs:
    """Return what writes jobs into the store."""
    return StoredJobs(home)


@pytest.fixture(scope="module")  # not longer: while it runs, no test of this process can run an event loop of its own
def browser() -> Iterator[Any]:
    """Start the Chromium of this machine; skip where there is none."""
    browsers.skip_without_browser()
    with browsers.chromium() as running:
        yield running


@pytest.fixture
def axe() -> str:
    """Return the source of axe-core, the accessibility checker."""
    import axe_playwright_python

    return Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
