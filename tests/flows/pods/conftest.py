"""Pods as real processes that start the zip as a container would, with a store of files or of buckets."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from servers.faults import FaultyProxy
from servers.gcs import GcsServer

from kinetic._jobs import logs
from kinetic._runner.worker import command
from kinetic._stores import protocol
from kinetic._stores.bucket import BucketStore
from kinetic._stores.files import FileStore
from kinetic._stores.protocol import Store
from kinetic._wire import digests, keys, outcomes, python_runtime
from kinetic._wire.order import Artifact, Order
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.task import IN_SECRET, PodSettings, Task

SOURCE = Path(__file__).parents[3] / "src"

KEY = bytes(range(32))
JOB = "cpu-train-20261121-120000-abcdef0"
NO_OBSTORE = "raise ImportError('this image has no obstore')\n"


def function(text: str) -> Any:
    """Make the last function of a text, as one of a user's script: it travels by value."""
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(textwrap.dedent(text), script)
    return [value for name, value in script.items() if callable(value) and not name.startswith("__")][-1]


class Pods:
    """One job in a store, and pods that carry it out."""

    def __init__(self, folder: Path, zipped: Path, store: Store, environ: dict[str, str]) -> None:
        self.folder, self.zipped, self.store, self.environ = folder, zipped, store, environ
        self.secret = folder / "secret"
        self.secret.mkdir()
        self.last_words = folder / "termination-log"
        self.last_words.touch()
        self.put_key(KEY)
        self.python, self.argument, self.inside = sys.executable, "", []
        self.started: list[subprocess.Popen[Any]] = []
        settings = PodSettings(secret=str(self.secret), last_words=str(self.last_words))
        self.page = Task(JOB, "0" * 64, store.url, "key-1", 0o022, None, {}, pod=settings)

    def tell(self, **settings: Any) -> None:
        """Change what the first process is told."""
        pod = {name: settings.pop(name) for name in PodSettings.__dataclass_fields__ if name in settings}
        self.page = replace(self.page, **settings, pod=replace(self.page.pod, **pod))

    def put_key(self, key: bytes) -> None:
        (self.secret / "job-key").write_bytes(key)

    def put_cache_key(self) -> None:
        (self.secret / "cache-key").write_bytes(KEY)
        self.tell(cache_key=IN_SECRET)

    def order(self, text: str, *args: Any, **more: Any) -> Pods:
        """Write the order of a job that calls the function with these arguments."""
        written = Order(
            JOB,
            "train",
            Artifact.within(cloudpickle.dumps(function(text))),
            Artifact.within(pickle.dumps((args, {}))),
            **{"fingerprint": {"python": python_runtime.python_version()}, "hosts": self.page.hosts, **more},
        ).to_bytes()
        self.store.put(keys.order(JOB), written)
        self.store.put(keys.record(JOB), b"{}")
        self.page = replace(self.page, order_sha256=digests.of_bytes(written))
        return self

    def command(self, *words: str) -> Pods:
        """Write the order of a job that runs a command."""
        written = Order(
            JOB,
            words[0],
            Artifact.within(pickle.dumps(command.run)),
            Artifact.within(pickle.dumps(((list(words), {}), {}))),
            fingerprint={"python": python_runtime.python_version()},
            is_command=True,
        ).to_bytes()
        self.store.put(keys.order(JOB), written)
        self.store.put(keys.record(JOB), b"{}")
        self.page = replace(self.page, order_sha256=digests.of_bytes(written), is_command=True)
        return self

    def start(self, *, text: bool = True, **environ: str) -> subprocess.Popen[Any]:
        """Start a pod."""
        beside = self.folder / f"pod-{len(self.started)}"
        beside.mkdir()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "PYTHON"))}
        process = subprocess.Popen(
            [*self.inside, self.python, str(self.zipped), self.argument or self.page.to_argument()],
            env={**clean, "TMPDIR": str(beside), **self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=text,
        )
        self.started.append(process)
        return process

    def run(self, **environ: str) -> tuple[int, str]:
        """Run a pod to its end; return its exit code and what it printed."""
        process = self.start(**environ)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()

    def outcome(self) -> Outcome | None:
        size = self.store.size(keys.result(JOB))
        if size is None:
            return None
        read = outcomes.read(
            size, lambda start, length: self.store.get(keys.result(JOB), start=start, length=length), KEY
        )
        assert read.body_length == 0 or digests.of_bytes(self.body(read)) == read.body_sha256
        return read

    def body(self, read: Outcome) -> bytes:
        return self.store.get(keys.result(JOB), length=read.body_length)

    def value(self) -> Any:
        read = self.outcome()
        assert read is not None
        assert read.body_length
        return pickle.loads(self.body(read))

    def log(self, attempt: int = 0, host: int = 0) -> str:
        return logs.text_of(logs.StoredLog(self.store, keys.logs(JOB, attempt, host)))

    def note(self, attempt: int = 0) -> AttemptNote:
        return outcomes.read_note(self.store, JOB, attempt, KEY)

    def keys_below(self, prefix: str) -> list[str]:
        return [entry.key.removeprefix(prefix) for entry in self.store.entries(prefix)]


@pytest.fixture
def pods(tmp_path: Path, zipped: Path) -> Iterator[Pods]:
    """Pods with a store of files."""
    made = Pods(tmp_path, zipped, FileStore(tmp_path / "store"), {})
    yield made
    made.end()


class Bucket:
    """A bucket behind a proxy that injects faults; the test itself speaks to the server."""

    def __init__(self) -> None:
        self.server = GcsServer().start()
        self.server.bucket("jobs")
        self.proxy = FaultyProxy(self.server.url)

    def close(self) -> None:
        self.proxy.close()
        self.server.close()


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    made = Bucket()
    yield made
    made.close()


@pytest.fixture
def cloud_pods(tmp_path: Path, zipped: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    """Pods with a store in a bucket."""
    for name in protocol.CREDENTIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.server.url)
    environ = {"STORAGE_EMULATOR_HOST": bucket.proxy.url}
    made = Pods(tmp_path, zipped, BucketStore("gs://jobs/here"), environ)
    yield made
    made.end()


@pytest.fixture
def slices(pods: Pods) -> Pods:
    pods.tell(hosts=3, poll_seconds=0.1, grace_seconds=5)
    return pods


def start_all(slices: Pods) -> list[subprocess.Popen[str]]:
    """Start all hosts of a set, as a JobSet does, which says how often it did so before."""
    return [slices.start(JOB_COMPLETION_INDEX=str(host), JOBSET_RESTART_ATTEMPT="0") for host in range(3)]


def wait_for_line(pod: subprocess.Popen[str], words: str) -> None:
    """Read what a pod prints until a line has some words."""
    assert pod.stdout is not None
    assert any(words in line for line in iter(pod.stdout.readline, ""))


def ends_of(hosts: list[subprocess.Popen[str]]) -> list[int]:
    for host in hosts:
        host.communicate(timeout=60)
    return [host.returncode for host in hosts]


HOST = """
import os, time

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)

def act(folder):
    host, flag = int(os.environ["KINETIC_HOST_INDEX"]), folder + "/flag"
"""


def act(slices: Pods, body: str) -> None:
    """Order what every host does; it knows its number as ``host`` and has a ``flag`` that it can wait for."""
    slices.order(HOST + textwrap.indent(textwrap.dedent(body), "    "), str(slices.folder))


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


WAITS = """
    import os, time
    def wait(flag):
        print("waiting", flush=True)
        open(flag, "w").close()
        while not os.path.exists(flag + ".go"):
            time.sleep(0.01)
        return "went on"
"""
